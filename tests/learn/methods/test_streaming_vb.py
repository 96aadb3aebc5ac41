"""Streaming VB: on one chunk it is batch iBCC, on more the posterior is the next prior."""

import os

import numpy as np
import pytest
from scipy.special import digamma

from labelquorum.errors import StateError
from labelquorum.evaluation.datasets.load import DATA_VARIABLE, read_dataset
from labelquorum.evaluation.simulate.crowds import class_conditional_crowd
from labelquorum.ingest.chunks import cut_chunks, make_chunk
from labelquorum.ingest.labels import LabelSpace, LabelTable
from labelquorum.ingest.vocabulary import Roster
from labelquorum.learn.methods.streaming_vb import streaming_vb

VB = streaming_vb(tolerance=1e-12, iterations=2000)


def learn(*chunks, method=VB):
    state = method.init(chunks[0], 0)
    for chunk in chunks:
        state, _ = method.update(state, chunk)
    return state


def crowd_chunks(n_chunks, n_items=40, n_classes=3):
    crowd = class_conditional_crowd(n_chunks * n_items, 9, n_classes, 4, seed=6)
    for start in range(0, len(crowd.truth), n_items):
        rows = (crowd.item >= start) & (crowd.item < start + n_items)
        columns = crowd.item[rows] - start, crowd.worker[rows], crowd.label[rows]
        yield make_chunk(*columns, n_workers=9, n_classes=n_classes)


def batch_ibcc(chunk, worker_counts, class_counts):
    """Mean-field iBCC in plain loops, from any prior; tells q and the posterior counts."""
    n_items, n_classes = chunk.n_items, chunk.n_classes
    rows = list(zip(chunk.item, chunk.worker, chunk.label, chunk.weight, strict=True))
    q = np.zeros((n_items, n_classes))
    for item, _, label, weight in rows:
        q[item, label] += weight
    q /= q.sum(axis=1, keepdims=True)
    for _ in range(2000):
        workers, classes = worker_counts.copy(), class_counts + q.sum(axis=0)
        for item, worker, label, weight in rows:
            workers[worker, :, label] += weight * q[item]
        log_q = np.tile(digamma(classes) - digamma(classes.sum()), (n_items, 1))
        for item, worker, label, weight in rows:
            for c in range(n_classes):
                row = workers[worker, c]
                log_q[item, c] += weight * (digamma(row[label]) - digamma(row.sum()))
        new = np.exp(log_q - log_q.max(axis=1, keepdims=True))
        new /= new.sum(axis=1, keepdims=True)
        moved, q = np.abs(new - q).max(), new
        if moved < 1e-12:
            break
    return q, workers, classes


PRIOR = np.ones((9, 3, 3)) + 3 * np.eye(3)


def test_one_chunk_is_batch_ibcc():
    [chunk] = crowd_chunks(1)
    weight = np.random.default_rng(0).choice([0.5, 1, 2], chunk.n_labels).astype(np.float32)
    chunk = chunk._replace(weight=weight)
    q, workers, classes = batch_ibcc(chunk, PRIOR, np.ones(3))
    state = learn(chunk)
    np.testing.assert_allclose(VB.aggregate(state, chunk).probs, q, atol=1e-6)
    expected = workers / workers.sum(axis=2, keepdims=True)
    np.testing.assert_allclose(VB.confusion(state, np.arange(9)), expected, rtol=1e-5)
    np.testing.assert_allclose(VB.class_prior(state), classes / classes.sum(), rtol=1e-7)


def test_the_posterior_of_a_chunk_is_the_prior_of_the_next():
    chunks = list(crowd_chunks(3))
    workers, classes = PRIOR, np.ones(3)
    for chunk in chunks:
        q, workers, classes = batch_ibcc(chunk, workers, classes)
    state = learn(*chunks)
    np.testing.assert_allclose(VB.aggregate(state, chunks[-1]).probs, q, atol=1e-6)
    expected = workers / workers.sum(axis=2, keepdims=True)
    np.testing.assert_allclose(VB.confusion(state, np.arange(9)), expected, rtol=1e-5)


def test_a_newcomer_has_the_prior_matrix():
    [chunk] = crowd_chunks(1)
    state = learn(chunk._replace(n_workers=10))
    expected = np.full((3, 3), 1 / 6) + np.eye(3) * 3 / 6
    np.testing.assert_allclose(VB.confusion(state, np.array([9]))[0], expected, rtol=1e-6)
    strict = streaming_vb(right=9, wrong=0.5)
    state = learn(chunk._replace(n_workers=10), method=strict)
    assert strict.confusion(state, np.array([9]))[0, 0, 0] == pytest.approx(0.9)


def test_each_round_lowers_the_loss():
    [chunk] = crowd_chunks(1)
    losses = []
    for rounds in range(1, 12):
        method = streaming_vb(iterations=rounds, tolerance=0)
        _, info = method.update(method.init(chunk, 0), chunk)
        assert info.iterations == rounds
        losses.extend(info.losses)
    assert (np.diff(losses) < 0).all()


def test_labels_an_earlier_chunk_held_are_weighed_but_not_counted_again():
    [chunk] = crowd_chunks(1)
    again = chunk._replace(known=np.ones(chunk.n_labels, bool))
    once, twice = learn(chunk), learn(chunk, again)
    workers = np.arange(9)
    np.testing.assert_array_equal(VB.confusion(once, workers), VB.confusion(twice, workers))
    np.testing.assert_array_equal(VB.class_prior(once), VB.class_prior(twice))


def test_a_late_label_is_weighed_with_the_labels_held():
    first = make_chunk([0, 0, 0], [0, 1, 2], [1, 1, 1], n_workers=4, n_classes=2)
    known = [True, True, True, False]
    late = make_chunk([0, 0, 0, 0], [0, 1, 2, 3], [1, 1, 1, 0], known=known)
    state = learn(first, late)
    # Three say 1, so the latecomer's 0 counts nearly all as an error on an item of class 1.
    confusion = VB.confusion(state, np.array([3]))[0]
    assert confusion[1, 0] > 0.31 > 0.25 > confusion[0, 1] > 0.19
    assert VB.class_prior(state)[1] == pytest.approx(2 / 3, abs=0.01)


def test_settings_out_of_range_are_refused():
    for setting in ("right", "wrong", "class_strength", "iterations"):
        with pytest.raises(StateError, match=f"`{setting}` of streaming_vb must be a number"):
            streaming_vb(**{setting: 0})
    with pytest.raises(StateError, match="`tolerance` of streaming_vb must be a number"):
        streaming_vb(tolerance=-1)


def test_emitted_error_on_rte_is_near_the_published_one():
    if not os.environ.get(DATA_VARIABLE):
        pytest.skip(f"real data sets are read only where {DATA_VARIABLE} names their folder")
    rte, method = read_dataset("rte"), streaming_vb()
    columns = rte.table.item_ids, rte.table.worker_ids, rte.table.labels
    items = list(dict.fromkeys(rte.table.item_ids))
    errors = []
    for order in range(5):
        place = dict(zip(items, np.random.default_rng(order).permutation(len(items)), strict=True))
        rows = sorted(zip(*columns, strict=True), key=lambda row: place[row[0]])
        roster, state, wrong = Roster(LabelSpace(("0", "1"))), None, 0
        table = LabelTable(*map(list, zip(*rows, strict=True)))
        for part in cut_chunks([table], 50):
            intake = roster.read(part)
            roster.admit(intake)
            state = method.init(intake.chunk, 0) if state is None else state
            state, _ = method.update(state, intake.chunk)
            answers = method.aggregate(state, intake.chunk).aggregated
            named = [roster.classes[answer] for answer in answers]
            wrong += sum(rte.truth[i] != a for i, a in zip(intake.item_ids, named, strict=True))
        errors.append(100 * wrong / len(items))
    assert np.mean(errors) == pytest.approx(7.04, abs=0.7)
