"""Chunks: one defined order, and a stream cut the same however it was read."""

import json
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelquorum.errors import LabelError
from labelquorum.ingest.chunks import (
    concatenate,
    cut_chunks,
    has_news,
    id_key,
    id_order,
    make_chunk,
    take_rows,
    with_news,
    withdrawn,
)
from labelquorum.ingest.labels import MISSING, LabelTable

ids = (
    st.integers(-(2**70), 2**70)
    | st.text(min_size=1, max_size=6)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.integers(0, 9).map(str)
    | st.booleans()
)
rows = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 4), st.integers(0, 2), st.sampled_from([0.5, 1.0])),
    max_size=30,
)


def table_of(item_ids, **columns):
    said = range(len(item_ids))
    return LabelTable(list(item_ids), [f"w{row}" for row in said], list(said), **columns)


# ── canonical order ──────────────────────────────────────────────────────────────────────


@given(rows, st.randoms(use_true_random=False))
def test_a_chunk_does_not_depend_on_the_order_of_its_rows(labels, random):
    def chunk_of(some):
        item, worker, label, weight = zip(*some, strict=True) if some else ([], [], [], [])
        counts = {"n_items": 6, "n_workers": 5, "n_classes": 3}
        return make_chunk(item, worker, label, weight=weight, **counts)

    shuffled = random.sample(labels, len(labels))
    for one, other in zip(chunk_of(labels), chunk_of(shuffled), strict=True):
        assert np.array_equal(one, other)


@given(rows)
def test_rows_are_sorted_by_item_worker_label(labels):
    item, worker, label, _ = zip(*labels, strict=True) if labels else ([], [], [], [])
    chunk = make_chunk(item, worker, label)
    seen = list(zip(chunk.item, chunk.worker, chunk.label, strict=True))
    assert seen == sorted(zip(item, worker, label, strict=True))
    assert chunk.workers.tolist() == sorted(set(worker))
    assert chunk.workers[chunk.local_worker].tolist() == chunk.worker.tolist()
    assert chunk.n_labels == len(labels)


def test_counts_may_exceed_what_occurs():
    chunk = make_chunk([0], [2], [1], n_items=3, n_workers=9, n_classes=4)
    assert (chunk.n_items, chunk.n_workers, chunk.n_classes) == (3, 9, 4)


def test_keys_belong_to_their_workers():
    chunk = make_chunk([0, 0], [3, 1], [0, 0], worker_keys=[10, 11, 12, 13])
    assert chunk.worker_keys.tolist() == [11, 13]


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        (([0, 1], [0], [0]), {}, "one entry per label each. Got 2, 1 and 1"),
        (([0], [0], [-1]), {}, "`label` must count from 0. Got -1"),
        (([0], [5], [0]), {"n_workers": 3}, "`worker` must be below 3, its stated count. Got 5"),
    ],
)
def test_integers_that_make_no_chunk_are_refused(columns, options, sentence):
    with pytest.raises(LabelError, match=sentence):
        make_chunk(*columns, **options)


@given(rows, st.data())
def test_only_items_with_a_label_that_is_new_are_news(labels, data):
    item, worker, label, _ = zip(*labels, strict=True) if labels else ([], [], [], [])
    known = [data.draw(st.booleans()) for _ in labels]
    chunk = make_chunk(item, worker, label, known=known, n_items=6, n_workers=5, n_classes=3)
    news = with_news(chunk)
    if not any(known):
        assert news is chunk
        return
    fresh = {i for i, old in zip(item, known, strict=True) if not old}
    assert news.item_keys.tolist() == sorted(fresh)  # keys are the items' numbers here
    seen = [
        (news.item_keys[i], k, c)
        for i, k, c in zip(news.item, news.worker, news.label, strict=True)
    ]
    assert seen == sorted(row[:3] for row in labels if row[0] in fresh)
    assert news.workers.tolist() == sorted({k for _, k, _ in seen})
    assert news.worker_keys.tolist() == news.workers.tolist()
    assert (news.n_workers, news.n_classes) == (5, 3)


def test_a_truth_an_item_was_not_counted_by_is_news():
    chunk = make_chunk([0, 1, 2], [0, 0, 0], [0, 0, 1], known=[True] * 3)
    gold = np.array([0, 0, MISSING], np.int32)
    counted = np.array([[[1, 0]] * 2, [[1, 0], [0.5, 0.5]], [[0, 1]] * 2], np.float32)
    reply = chunk._replace(gold=gold, counted_probs=counted)
    assert has_news(reply).tolist() == [False, True, False]
    news = with_news(reply)
    assert news.gold.tolist() == [0] and news.counted_probs.tolist() == [[[1, 0], [0.5, 0.5]]]
    assert has_news(chunk._replace(gold=gold)).tolist() == [True, True, False]


def test_withdrawn_labels_correct_themselves_to_nothing():
    chunk = make_chunk([0, 0], [1, 2], [0, 1], weight=[2, 3], known=[True, True])
    gone = withdrawn(chunk, 2)
    assert gone.weight.tolist() == [2, 0] and gone.known.tolist() == [True, False]
    assert gone.replaced.tolist() == [MISSING, 1] and gone.replaced_weight.tolist() == [0, 3]


@given(rows)
def test_the_order_of_rows_is_that_of_a_plain_sort(labels):
    item, worker, label, _ = zip(*labels, strict=True) if labels else ([], [], [], [])
    chunk = make_chunk(item, worker, label)
    seen = zip(chunk.item.tolist(), chunk.worker.tolist(), chunk.label.tolist(), strict=True)
    assert list(seen) == sorted(row[:3] for row in labels)
    assert chunk.workers.tolist() == sorted(set(worker))


def test_numbers_too_large_for_one_key_are_sorted_all_the_same():
    chunk = make_chunk([2**31 - 2, 0], [2**30, 2**31 - 2], [2**30, 5], item_keys=[0])
    assert chunk.item.tolist() == [0, 2**31 - 2]


# ── ids ──────────────────────────────────────────────────────────────────────────────────


@given(st.lists(ids, max_size=12, unique_by=lambda value: (value, isinstance(value, str))))
def test_different_ids_never_tie_in_the_canonical_order(values):
    # A tie would fall to whoever came first, and row order would matter.
    order = [id_order(value) for value in sorted(values, key=id_order)]
    assert all(one < other for one, other in pairwise(order))


def test_neighbouring_large_integers_are_told_apart():
    # 64-bit ids are everywhere, and a float cannot tell 2**60 from 2**60 + 1.
    assert id_order(2**60) < id_order(2**60 + 1)
    assert id_order(10**400) < id_order(10**400 + 1)


def test_numbers_come_in_their_natural_order_before_text():
    values = ["b", "10", 9, "a", 2.5, "9", 100]
    assert sorted(values, key=id_order) == [2.5, 9, "9", "10", 100, "a", "b"]


@given(ids, ids)
def test_equal_ids_have_equal_keys_and_others_do_not(one, other):
    assert (id_key(one) == id_key(other)) == (one == other)


def test_keys_are_the_same_in_another_process():
    values = ["ann", 7, 2.5, "7", True, "ü"]
    code = (
        "import json, sys; from labelquorum.ingest.chunks import id_key;"
        "print(json.dumps([id_key(v) for v in json.loads(sys.argv[1])]))"
    )
    command = [sys.executable, "-c", code, json.dumps(values)]
    output = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    assert json.loads(output) == [id_key(value) for value in values]


# ── cutting a stream ─────────────────────────────────────────────────────────────────────


@st.composite
def batched_streams(draw):
    """A stream of rows, and two ways of cutting it into tables."""
    item_ids = draw(st.lists(st.integers(0, 6), max_size=40))
    whole = table_of(item_ids, lines=list(range(2, 2 + len(item_ids))))

    def batches():
        cuts = sorted(draw(st.lists(st.integers(0, len(item_ids)), max_size=4)))
        edges = [0, *cuts, len(item_ids)]
        return [take_rows(whole, range(start, stop)) for start, stop in pairwise(edges)]

    return whole, batches(), batches(), draw(st.integers(1, 5))


def contents(tables):
    columns = ("item_ids", "worker_ids", "labels", "lines")
    return [[list(getattr(table, name)) for name in columns] for table in tables]


@given(batched_streams())
def test_a_stream_is_cut_the_same_however_it_was_batched(stream):
    _, one, other, chunk_items = stream
    assert contents(cut_chunks(one, chunk_items)) == contents(cut_chunks(other, chunk_items))


@given(batched_streams())
def test_cutting_keeps_every_row_in_order_and_every_chunk_within_its_size(stream):
    whole, batches, _, chunk_items = stream
    chunks = list(cut_chunks(batches, chunk_items))
    assert [label for chunk in chunks for label in chunk.labels] == whole.labels
    for position, chunk in enumerate(chunks):
        n_items = len(set(chunk.item_ids))
        assert 1 <= n_items <= chunk_items
        assert n_items == chunk_items or position == len(chunks) - 1


@given(st.lists(st.integers(1, 4), max_size=12), st.integers(1, 5))
def test_rows_grouped_by_item_are_never_torn_apart(counts, chunk_items):
    item_ids = [item for item, count in enumerate(counts) for _ in range(count)]
    seen = [set(chunk.item_ids) for chunk in cut_chunks([table_of(item_ids)], chunk_items)]
    assert sum(map(len, seen)) == len(counts)  # no item in two chunks


def test_a_chunk_is_out_as_soon_as_the_next_item_begins():
    def endless():
        row = 0
        while True:
            yield table_of([row // 2])
            row += 1

    chunk = next(cut_chunks(endless(), 3))
    assert chunk.item_ids == [0, 0, 1, 1, 2, 2]


@given(batched_streams(), st.lists(st.integers(0, 3), min_size=5, max_size=5))
def test_what_was_skipped_is_told_exactly_once(stream, counts):
    _, batches, _, chunk_items = stream
    batches = [
        table._replace(skipped={"missing label": count} if count else {})
        for table, count in zip(batches, counts, strict=False)
    ]
    reply = sum(table.skipped.get("missing label", 0) for table in cut_chunks(batches, chunk_items))
    assert reply == sum(counts[: len(batches)])


def test_chunks_need_at_least_one_item():
    with pytest.raises(LabelError, match=r"`chunk_items` must be a whole number ≥ 1. Got 0"):
        list(cut_chunks([], 0))


def test_tables_with_and_without_weights_can_be_laid_end_to_end():
    with_weights = table_of([1], weights=[2.0], groups=["g"])
    both = concatenate([table_of([0]), with_weights, table_of([])])
    assert both.item_ids == [0, 1]
    assert both.weights == [1.0, 2.0]
    assert both.groups == [None, "g"]
    assert both.timestamps is None


def test_shares_of_votes_that_all_share_cannot_be_changed():
    chunk = make_chunk([0, 0, 1], [0, 1, 2], [1, 0, 1], weight=[1, 3, 0], n_items=2)
    assert chunk.vote_shares.tolist() == [[0.75, 0.25], [0, 0]]  # nothing counts on the second
    with pytest.raises(ValueError, match="read-only"):
        chunk.vote_shares[1] = 0.5
