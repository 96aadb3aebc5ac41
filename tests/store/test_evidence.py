"""The evidence of open items as bytes, in the present format and in that of earlier versions."""

import numpy as np
import pytest

import labelquorum as lq
from labelquorum.ingest.vocabulary import Note
from labelquorum.learn.item_columns import NO_NOTE
from labelquorum.store.evidence import read_evidence, worker_places, write_evidence

PLACES = np.array([7, 2**40, 0, 12, 5])


def open_items(repeats="all"):
    """Items with different numbers of labels and classes, one with a truth."""
    model = lq.BiLA(repeats=repeats, seed=0)
    model.partial_fit([("a", "u", "x"), ("a", "v", "y"), ("b", "w", "x"), ("b", "w", "x")])
    model.partial_fit(
        [("c", "u", "z"), ("d", "v", "y"), ("d", "w", "z"), ("d", "s", "z"), ("e", "t", "x")],
        true_labels={"e": "x"},
    )
    return model.model_.learned.open_items


def same(found, expected, places):
    expected = expected._replace(worker=places[expected.worker])
    found = found._replace(worker=np.sort(places)[found.worker])
    return all(
        np.array_equal(one, other) for one, other in zip(found[:-3], expected[:-3], strict=True)
    ) and all(np.array_equal(getattr(found, n), getattr(expected, n)) for n in ("votes", "score"))


@pytest.mark.parametrize("repeats", ["all", "majority"])
def test_what_is_written_is_read_again(repeats):
    ledger = open_items(repeats)
    ids = list(ledger)
    items = [ledger.get(item_id) for item_id in ids]
    parts = ledger.everything().parts
    written = [one for part in parts for one in write_evidence(*part, PLACES)]
    notes = [NO_NOTE, *(Note(item_id, 5) for item_id in ids[1:])]
    runs = list(read_evidence(ids, written, notes, np.sort(PLACES)))
    found = [run.item(n) for run in runs for n in range(len(run.ids))]
    assert [item_id for run in runs for item_id in run.ids] == ids
    assert all(same(one, other, PLACES) for one, other in zip(found, items, strict=True))
    assert [one.note for one in found] == notes
    for one, item in zip(written, items, strict=True):
        assert worker_places(one) == PLACES[item.worker].tolist()


def test_scores_are_written_beside_their_labels():
    [(columns, items), *_] = open_items().everything().parts
    scored = columns._replace(score=np.arange(len(columns.worker), dtype=np.float32))
    written, notes = write_evidence(scored, items, PLACES), [NO_NOTE] * len(items)
    [read, *_] = read_evidence(columns.ids, written, notes, np.sort(PLACES))
    assert np.array_equal(read.score, scored.score[: len(read.score)]) and len(read.score)


def test_an_item_without_labels_is_evidence_of_its_answer_alone():
    [(columns, items), *_] = open_items().everything().parts
    bare = columns.without(np.ones(len(columns.worker), bool))
    written, notes = write_evidence(bare, items, PLACES), [NO_NOTE] * len(items)
    [read] = read_evidence(columns.ids, written, notes, PLACES)
    assert not len(read.worker)
    assert np.array_equal(read.probs, columns.probs[items])
