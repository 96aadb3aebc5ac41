"""LA two-pass: the first pass is that of one-pass, the second can vote against a worker."""

import numpy as np
import pytest

from labelquorum.errors import StateError
from labelquorum.evaluation.simulate.crowds import class_conditional_crowd
from labelquorum.ingest.chunks import make_chunk
from labelquorum.learn.methods.la import la_one_pass, la_two_pass

TWO_PASS = la_two_pass()


def learn(*chunks, method=TWO_PASS):
    state = method.init(chunks[0], 0)
    for chunk in chunks:
        state, _ = method.update(state, chunk)
    return state


def test_answers_follow_the_worked_example():
    # The first pass leaves qualities 3/4, 3/4 and 1/5 (see test_la_one_pass).
    chunk = make_chunk([0, 0, 0, 1, 1, 2, 2], [0, 1, 2, 0, 2, 1, 2], [1, 1, 0, 0, 1, 1, 0])
    state = learn(chunk)
    confusion = TWO_PASS.confusion(state, np.arange(3))
    np.testing.assert_allclose(confusion[:, 0, 0], [3 / 4, 3 / 4, 1 / 5], rtol=1e-6)
    answer = TWO_PASS.aggregate(state, chunk)
    # C / (C − 1) · (C a − 1) is 1 for the first two and −6/5 for the third.
    evidence = [[0, 1], [0, 1], [-1.2, 0], [1, 0], [0, -1.2], [0, 1], [-1.2, 0]]
    np.testing.assert_allclose(answer.log_evidence, evidence, rtol=1e-5)
    odds = np.exp([3.2, -2.2, 2.2])  # of class 1
    np.testing.assert_allclose(answer.probs[:, 1], odds / (1 + odds), rtol=1e-5)
    assert answer.aggregated.tolist() == [1, 0, 1]


def test_a_worker_below_chance_counts_against_what_they_say():
    # Worker 2 goes against two others eight times; then they are asked alone.
    item, worker = np.repeat(np.arange(8), 3), np.tile([0, 1, 2], 8)
    state = learn(make_chunk(item, worker, np.tile([1, 1, 0], 8)))
    alone = make_chunk([0], [2], [0], n_workers=3, n_classes=2)
    assert TWO_PASS.aggregate(state, alone).aggregated.tolist() == [1]
    assert la_one_pass().aggregate(state, alone).aggregated.tolist() == [0]


def test_the_first_pass_is_that_of_one_pass():
    crowd = class_conditional_crowd(120, 9, 3, 4, seed=2)
    chunk = make_chunk(crowd.item, crowd.worker, crowd.label)
    one_pass, workers = la_one_pass(), np.arange(9)
    np.testing.assert_array_equal(
        TWO_PASS.confusion(learn(chunk), workers),
        one_pass.confusion(learn(chunk, method=one_pass), workers),
    )


def test_what_the_end_of_the_stream_knows_answers_the_whole_stream_again():
    crowd = class_conditional_crowd(120, 9, 3, 4, seed=2)
    half = crowd.item < 60
    chunks = [
        make_chunk(crowd.item[rows] - crowd.item[rows].min(), crowd.worker[rows], crowd.label[rows])
        for rows in (half, ~half)
    ]
    together = make_chunk(crowd.item, crowd.worker, crowd.label)
    streamed, batch = learn(*chunks), learn(together)
    np.testing.assert_array_equal(
        TWO_PASS.aggregate(streamed, together).probs, TWO_PASS.aggregate(batch, together).probs
    )


def test_a_label_an_earlier_chunk_held_is_not_counted_again():
    chunk = make_chunk([0, 0], [0, 1], [0, 0], n_classes=2)
    again = chunk._replace(known=np.array([True, True]))
    workers = np.array([0, 1])
    once, twice = learn(chunk), learn(chunk, again)
    np.testing.assert_array_equal(
        TWO_PASS.confusion(once, workers), TWO_PASS.confusion(twice, workers)
    )
    np.testing.assert_array_equal(TWO_PASS.class_prior(once), TWO_PASS.class_prior(twice))


def test_credit_must_be_positive():
    with pytest.raises(StateError, match="`right` of la_two_pass must be a number"):
        la_two_pass(right=-1)
