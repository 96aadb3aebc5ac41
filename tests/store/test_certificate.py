"""Certificates of a stream rest on what it had answered before truths came."""

import numpy as np
import pytest

from labelquorum.learn.analysis.certificate import Audit, certificate
from labelquorum.learn.analysis.expected_error import expected_error
from labelquorum.store.rules import Rules

CLOSED = Rules(labels_per_item=3, chunk_items=20, max_wait=None, max_chunk_wait=None, grace=0)
OPEN = CLOSED.changed(grace=1e9)


def crowd(n_items=200, seed=4):
    """Labels of three workers each, and the truth."""
    rng = np.random.default_rng(seed)
    truth = {f"t{n:03d}": "abc"[rng.integers(3)] for n in range(n_items)}
    said = {
        task: {
            f"w{k}": true if rng.random() < 0.75 else "abc"[rng.integers(3)]
            for k in rng.choice(8, 3, replace=False)
        }
        for task, true in truth.items()
    }
    return said, truth


@pytest.fixture(params=[CLOSED, OPEN], ids=["closed", "open"])
def stream(request, store):
    made = store.create("s", classes=["a", "b", "c"], rules=request.param)
    made.accept(crowd()[0])
    made.settle(flush=True)
    return made


def test_without_gold_the_error_is_the_models_own_and_nothing_is_certified(stream):
    sure = [one.confidence for one in stream.answers()]
    found = stream.expected_error()
    assert found.method == "model" and found.tasks == 200
    assert found.estimate == pytest.approx(expected_error(sure).estimate)
    assert found.high == pytest.approx(expected_error(sure).high)
    refused = stream.certificate(0.1)
    assert not refused.certified and refused.gold_needed > 20 and len(refused.todo) == 200


def test_gold_counts_with_the_answer_and_the_confidence_it_had_before(stream, clock):
    truth = crowd()[1]
    before = {one.item_id: one for one in stream.answers()}
    drawn = [f"t{n:03d}" for n in np.random.default_rng(1).permutation(200)[:60]]
    for task in drawn:  # one by one, so that they have an order
        stream.gold({task: truth[task]})
        clock.time += 1
    # Learning from truths may change other answers; what is compared below is read after it.
    stream.settle(flush=True)
    after = {one.item_id: one for one in stream.answers()}
    assert all(after[task].label == truth[task] for task in drawn)
    sure = [before[t].confidence if t in drawn else after[t].confidence for t in sorted(before)]
    place = np.array([sorted(before).index(task) for task in drawn])
    audit = Audit(place, np.array([before[task].label != truth[task] for task in drawn]))
    expected, found = expected_error(sure, audit), stream.expected_error()
    assert (found.n_gold, found.tasks, found.method) == (60, 200, "prediction-powered")
    for name in ("estimate", "low", "high"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name))
    direct, certified = certificate(sure, audit, 0.1), stream.certificate(0.1)
    assert certified.certified and certified.gold == 60
    assert list(certified.todo) == [sorted(before)[n] for n in direct.todo]
    assert certified.accepted == direct.accepted


def test_truths_that_came_before_any_answer_are_no_evidence(store):
    stream, (said, truth) = store.create("early", classes=["a", "b", "c"], rules=CLOSED), crowd()
    stream.gold({task: truth[task] for task in list(truth)[:50]})
    stream.accept(said)
    stream.settle(flush=True)
    found = stream.expected_error()
    assert (found.n_gold, found.tasks, found.method) == (0, 150, "model")
    assert stream.certificate(0.1).tasks == 150


def test_a_stream_that_has_answered_nothing_has_no_error_and_no_certificate(store):
    stream = store.create("empty", classes=["a", "b"], rules=CLOSED)
    assert stream.expected_error() is None
    assert "no task has an answer" in str(stream.certificate())


def test_gold_of_a_store_before_this_version_lacks_its_confidence_and_is_left_out(stream, store):
    from labelquorum.store.database import schema

    truth = crowd()[1]
    stream.gold(dict(list(truth.items())[:40]))
    stream.settle(flush=True)
    assert stream.expected_error().n_gold == 40
    with store.write() as connection:
        connection.execute(schema.gold.update().values(answered_confidence=None))
    found = stream.expected_error()
    assert (found.n_gold, found.tasks) == (0, 160) and stream.gold_error().items == 40
