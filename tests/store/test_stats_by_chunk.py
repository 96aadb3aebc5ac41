"""How a stream went, by hand."""

import numpy as np

from labelquorum.store.rules import Rules
from labelquorum.store.stats import BINS, chunk_series, truths
from labelquorum.store.store import Store

RULES = Rules(labels_per_item=2, chunk_items=2, grace=100.0)
TABLE = {
    "t1": {"ann": "owl", "bob": "owl"},
    "t2": {"ann": "wren", "bob": "wren"},
    "t3": {"ann": "owl", "bob": "owl", "cat": "owl"},
    "t4": {"ann": "owl", "bob": "owl"},
}


def filled(folder):
    store = Store.open(folder, clock=iter(range(1000, 9000)).__next__)
    stream = store.create("birds", classes=["owl", "wren"], rules=RULES)
    stream.accept(TABLE)
    stream.settle()
    return store, stream


def test_answers_are_counted_by_chunk_and_class(tmp_path):
    store, stream = filled(tmp_path)
    with store:
        found = chunk_series(stream)
        given = stream.answers()
    assert found.chunk == [1, 2]
    assert found.classes == ["owl", "wren"]
    assert found.items.tolist() == [[1, 1], [2, 0]]
    assert found.labels.tolist() == [4, 5]
    assert found.at[0] < found.at[1]
    sure = [one.confidence for one in given]
    assert np.allclose(found.confidence, [np.mean(sure[:2]), np.mean(sure[2:])])


def test_confidence_is_counted_in_equal_parts(tmp_path):
    store, stream = filled(tmp_path)
    with store:
        stream.gold({"t1": "owl"})  # it is open, and is answered again with 1
        stream.settle(flush=True)
        found = chunk_series(stream)
        sure = [one.confidence for one in stream.answers()]
    assert max(sure) == 1.0
    by_hand = np.bincount([min(int(one * BINS), BINS - 1) for one in sure], minlength=BINS)
    assert found.histogram.tolist() == by_hand.tolist()
    assert found.items.sum() == 4


def test_truths_come_with_what_had_been_answered(tmp_path):
    store, stream = filled(tmp_path)
    with store:
        stream.gold({"t1": "wren", "t9": "owl"})
        stream.settle(flush=True)
        assert truths(stream) == [("t1", "wren", "owl"), ("t9", "owl", None)]


def test_a_truth_may_name_a_class_that_no_worker_did(tmp_path):
    with Store.open(tmp_path) as store:
        stream = store.create("open", rules=Rules(labels_per_item=2, chunk_items=1, grace=0))
        stream.accept({"t1": {"ann": "owl", "bob": "owl"}})
        stream.settle()
        stream.gold({"t1": "hawk"})  # closed: the answer becomes the truth
        found = chunk_series(stream)
    assert found.classes == ["owl", "hawk"]
    assert found.items.tolist() == [[0, 1]]


def test_an_empty_stream_went_nowhere(tmp_path):
    with Store.open(tmp_path) as store:
        found = chunk_series(store.create("birds", classes=["owl", "wren"]))
    assert found.chunk == [] and found.histogram.sum() == 0
