"""The ledger: the most recent items and no more."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelquorum.errors import StateError
from labelquorum.ingest.chunks import id_key, make_chunk
from labelquorum.ingest.vocabulary import Note
from labelquorum.learn.open_items import OpenItems

chunks_of_items = st.lists(
    st.lists(st.integers(0, 12), min_size=1, max_size=6, unique=True), max_size=10
)


def record(ledger, item_ids, n_labels=2, n_classes=3, notes=None):
    """Keep items, each with labels of workers 0, 1, …, appearing in the order given."""
    names = sorted(item_ids)
    item = np.repeat(np.arange(len(names)), n_labels)
    chunk = make_chunk(
        item,
        np.tile(np.arange(n_labels), len(names)),
        np.tile(np.arange(n_labels), len(names)) % n_classes,
        weight=np.tile(1.0 + np.arange(n_labels), len(names)),
        item_keys=[id_key(name) for name in names],
        n_classes=n_classes,
    )
    order = np.array([names.index(name) for name in item_ids], np.intp)
    evidence = np.arange(chunk.n_labels * n_classes, dtype=np.float32).reshape(-1, n_classes)
    probs = np.full((len(names), n_classes), 1 / n_classes, np.float32)
    answers = np.arange(len(names), dtype=np.int32) % n_classes
    ledger.record(names, order, chunk, evidence, probs, answers, notes)


def keys(item_ids):
    return np.array([id_key(item_id) for item_id in item_ids], np.uint64)


@given(chunks_of_items, st.integers(0, 8))
def test_the_ledger_holds_the_most_recent_items_and_no_more(stream, open_items):
    ledger, appeared = OpenItems(open_items), []
    for item_ids in stream:
        record(ledger, item_ids)
        appeared = [item for item in appeared if item not in item_ids] + item_ids
        expected = appeared[len(appeared) - min(open_items, len(appeared)) :]
        assert list(ledger) == expected
        assert len(ledger) == len(expected)


@given(chunks_of_items, st.integers(0, 8))
def test_items_that_were_let_go_are_known_to_have_been_there(stream, open_items):
    ledger, seen = OpenItems(open_items), set()
    for item_ids in stream:
        record(ledger, item_ids)
        seen |= set(item_ids)
    gone = sorted(seen - set(ledger))
    never = sorted(set(range(20)) - seen)
    assert ledger.was_closed(keys(gone)).all()
    assert not ledger.was_closed(keys(never)).any()


def test_an_open_item_holds_its_labels_weights_evidence_and_answer():
    ledger = OpenItems()
    record(ledger, ["b", "a"], notes=[Note("g", 1), Note("h", 2)])
    held = ledger.get("b")
    assert held.worker.tolist() == [0, 1]
    assert held.label.tolist() == [0, 1]
    assert held.weight.tolist() == [1.0, 2.0]
    assert held.log_evidence.tolist() == [[6, 7, 8], [9, 10, 11]]
    assert held.probs.sum() == pytest.approx(1)
    assert held.aggregated == 1
    assert held.note == Note("h", 2)
    assert "b" in ledger
    assert ledger.get("zebra") is None


def test_an_item_that_is_labelled_again_is_the_most_recent():
    ledger = OpenItems(2)
    record(ledger, ["a", "b"])
    record(ledger, ["a"], n_labels=3)
    record(ledger, ["c"])
    assert list(ledger) == ["a", "c"]
    assert len(ledger.get("a").worker) == 3


def test_a_chunk_larger_than_the_ledger_leaves_its_last_items():
    ledger = OpenItems(2)
    record(ledger, ["x"])
    record(ledger, ["d", "a", "c", "b"])
    assert list(ledger) == ["c", "b"]
    assert ledger.was_closed(keys(["x", "d", "a"])).all()


def test_a_ledger_of_no_items_keeps_nothing():
    ledger = OpenItems(0)
    record(ledger, ["a", "b"])
    assert list(ledger) == []
    assert ledger.was_closed(keys(["a", "b"])).all()


def test_a_negative_size_is_refused():
    with pytest.raises(StateError, match=r"`open_items` must be a whole number ≥ 0. Got -1"):
        OpenItems(-1)


def test_forgetting_a_worker_drops_his_labels_alone():
    ledger = OpenItems()
    record(ledger, ["a", "b"])
    ledger.forget_worker(0)
    for item_id in ("a", "b"):
        held = ledger.get(item_id)
        assert held.worker.tolist() == [1]
        assert held.label.tolist() == [1]
        assert held.weight.tolist() == [2.0]
        assert held.log_evidence.shape == (1, 3)
    ledger.forget_worker(1)
    assert [len(ledger.get(item_id).worker) for item_id in ledger] == [0, 0]


def test_an_item_keeps_what_it_was_counted_by_and_its_truth():
    ledger = OpenItems()
    chunk = make_chunk([0, 1], [0, 1], [0, 2], item_keys=keys(["a", "b"]), n_classes=3)
    chunk = chunk._replace(gold=np.array([-1, 2], np.int32))
    evidence, probs = np.zeros((2, 3), np.float32), np.full((2, 3), 1 / 3, np.float32)
    counted = np.array([[[0.5, 0.5, 0], [1, 0, 0]], [[0, 0, 1], [0, 1, 0]]], np.float32)
    order, answers = np.arange(2), np.array([0, 2], np.int32)
    ledger.record(["a", "b"], order, chunk, evidence, probs, answers, counted_probs=counted)
    assert [ledger.get(name).gold for name in "ab"] == [-1, 2]
    assert ledger.get("a").counted_probs.tolist() == [[0.5, 0.5, 0], [1, 0, 0]]
    again = OpenItems.from_arrays(9, ["a", "b"], ledger.notes, ledger.to_arrays())
    assert again.get("b").counted_probs.tolist() == [[0, 0, 1], [0, 1, 0]]
    assert again.get("b").gold == 2
    # A file of before says neither.
    arrays = {n: a for n, a in ledger.to_arrays().items() if n not in ("counted_probs", "gold")}
    before = OpenItems.from_arrays(9, ["a", "b"], ledger.notes, arrays).get("b")
    assert before.gold == -1 and not before.counted_probs.any()


def test_an_item_can_lose_a_label_or_be_dropped():
    ledger = OpenItems(1)
    record(ledger, ["a"])
    ledger.drop("a", 0)
    assert ledger.get("a").worker.tolist() == [1]
    ledger.discard("a")
    assert "a" not in ledger and not ledger.was_closed(keys(["a"])).any()


def test_an_item_can_be_kept_alone():
    ledger, other = OpenItems(), OpenItems(1)
    record(ledger, ["a", "b"])
    for name in "ab":
        other.keep(name, ledger.get(name), id_key(name))
    assert list(other) == ["b"]
    assert other.was_closed(keys(["a"])).all() and other.closed_keys.tolist() == [id_key("a")]
    assert ledger.among(["b", "x"]) == {"b"}


def test_what_is_kept_can_be_seen_as_one_chunk():
    ledger = OpenItems()
    record(ledger, ["b", "a"])
    chunk = ledger.to_chunk(n_workers=5, n_classes=4)
    assert (chunk.n_items, chunk.n_labels, chunk.n_workers, chunk.n_classes) == (2, 4, 5, 4)
    probs, aggregated = ledger.answers(4)
    assert probs[:, 3].tolist() == [0, 0]  # a class unknown when they were answered
    assert aggregated.tolist() == [1, 0]
    assert OpenItems().to_chunk(3, 2).n_labels == 0


@given(chunks_of_items, st.integers(0, 8))
def test_a_ledger_can_be_written_out_and_rebuilt(stream, open_items):
    ledger = OpenItems(open_items)
    for n_classes, item_ids in enumerate(stream, start=2):  # classes appear on the way
        record(ledger, item_ids, n_labels=n_classes % 3, n_classes=n_classes)
    again = OpenItems.from_arrays(open_items, list(ledger), ledger.notes, ledger.to_arrays())
    assert list(again) == list(ledger)
    for item_id in ledger:
        for one, other in zip(ledger.get(item_id), again.get(item_id), strict=True):
            np.testing.assert_array_equal(one, other)
    everything = keys(range(20))
    assert np.array_equal(ledger.was_closed(everything), again.was_closed(everything))
