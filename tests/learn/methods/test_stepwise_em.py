"""Stepwise EM: a full step is one step of EM, smaller ones are the papers' moving averages."""

import numpy as np
import pytest

from labelquorum.errors import StateError
from labelquorum.evaluation.simulate.crowds import class_conditional_crowd
from labelquorum.ingest.chunks import make_chunk
from labelquorum.learn.methods.stepwise_em import stepwise_em

EVERYBODY = np.arange(9)
PRIOR = np.ones((3, 3)) + 3 * np.eye(3)


def learn(*chunks, method):
    state = method.init(chunks[0], 0)
    for chunk in chunks:
        state, _ = method.update(state, chunk)
    return state


def crowd_chunks(n_chunks, n_items=30, labels_per_item=4):
    crowd = class_conditional_crowd(n_chunks * n_items, 9, 3, labels_per_item, seed=8)
    for start in range(0, len(crowd.truth), n_items):
        rows = (crowd.item >= start) & (crowd.item < start + n_items)
        columns = crowd.item[rows] - start, crowd.worker[rows], crowd.label[rows]
        yield make_chunk(*columns, n_workers=9, n_classes=3)


def e_step(chunk, matrices, classes):
    """Expected counts of a chunk in plain loops: per worker (K, C, C) and per class (C,)."""
    q = np.tile(classes, (chunk.n_items, 1))
    rows = list(zip(chunk.item, chunk.worker, chunk.label, strict=True))
    for item, worker, label in rows:
        q[item] *= matrices[worker, :, label]
    evidence = q.sum(axis=1, keepdims=True)
    q /= evidence
    counts = np.zeros_like(matrices)
    for item, worker, label in rows:
        counts[worker, :, label] += q[item]
    return counts, q.sum(axis=0), -np.log(evidence).mean()


def shares(counts):
    return counts / counts.sum(axis=-1, keepdims=True)


def test_a_full_step_on_one_chunk_is_one_step_of_em():
    [chunk] = crowd_chunks(1)
    method = stepwise_em(step_exponent=0)
    counts, classes, loss = e_step(chunk, shares(np.tile(PRIOR, (9, 1, 1))), np.full(3, 1 / 3))
    state, info = method.update(method.init(chunk, 0), chunk)
    assert info.step_size == 1
    np.testing.assert_allclose(info.losses, [loss], rtol=1e-9)
    np.testing.assert_allclose(
        method.confusion(state, EVERYBODY), shares(counts + PRIOR), rtol=1e-6
    )
    np.testing.assert_allclose(method.class_prior(state), shares(classes + 1), rtol=1e-9)


@pytest.mark.parametrize("exponent", [0, 0.6, 0.7, 1])
def test_counts_are_the_moving_averages_of_the_papers(exponent):
    # One label an item and few items: most workers miss some chunk.
    chunks = list(crowd_chunks(6, n_items=6, labels_per_item=1))
    assert any(len(chunk.workers) < 9 for chunk in chunks)
    method = stepwise_em(step_exponent=exponent)
    average, class_average = np.zeros((9, 3, 3)), np.zeros(3)
    matrices, classes = shares(np.tile(PRIOR, (9, 1, 1))), np.full(3, 1 / 3)
    for t, chunk in enumerate(chunks):
        counts, class_counts, _ = e_step(chunk, matrices, classes)
        step = (t + 2) ** -exponent
        average = (1 - step) * average + step * counts
        class_average = (1 - step) * class_average + step * class_counts
        # In labels: the newest chunk counts fully.
        matrices = shares(average / step + PRIOR)
        classes = shares(class_average / step + 1)
    state = learn(*chunks, method=method)
    np.testing.assert_allclose(method.confusion(state, EVERYBODY), matrices, rtol=1e-5)
    np.testing.assert_allclose(method.class_prior(state), classes, rtol=1e-6)
    log_scores = np.log(classes) + np.zeros((chunks[-1].n_items, 1))
    for item, worker, label in zip(*chunks[-1][:3], strict=True):
        log_scores[item] += np.log(matrices[worker, :, label])
    probs = method.aggregate(state, chunks[-1]).probs
    np.testing.assert_allclose(probs, shares(np.exp(log_scores)), rtol=1e-4)


def test_labels_an_earlier_chunk_held_are_weighed_but_not_counted_again():
    [chunk] = crowd_chunks(1)
    again = chunk._replace(known=np.ones(chunk.n_labels, bool))
    method = stepwise_em(step_exponent=1)  # nothing fades
    once, twice = learn(chunk, method=method), learn(chunk, again, method=method)
    np.testing.assert_allclose(
        method.confusion(once, EVERYBODY), method.confusion(twice, EVERYBODY), rtol=1e-6
    )
    np.testing.assert_allclose(method.class_prior(once), method.class_prior(twice))


def test_a_label_counts_as_much_as_its_weight():
    [chunk] = crowd_chunks(1)
    rows = np.repeat(np.arange(chunk.n_labels), 2)
    twice = make_chunk(chunk.item[rows], chunk.worker[rows], chunk.label[rows], n_workers=9)
    heavy = chunk._replace(weight=np.full(chunk.n_labels, 2, np.float32))
    method = stepwise_em()
    one, other = (learn(each, method=method) for each in (twice, heavy))
    np.testing.assert_allclose(
        method.confusion(one, EVERYBODY), method.confusion(other, EVERYBODY), rtol=1e-6
    )


@pytest.mark.slow
def test_ten_thousand_chunks_fade_without_underflow():
    chunk = make_chunk([0, 0, 0], [0, 1, 2], [1, 1, 0], n_workers=4)
    first = make_chunk([0], [3], [0], n_workers=4, n_classes=2)
    method = stepwise_em(step_exponent=0)
    state = learn(first, *[chunk] * 10_000, method=method)
    confusion = method.confusion(state, np.arange(4))
    assert np.isfinite(confusion).all()
    np.testing.assert_allclose(confusion[3], [[0.8, 0.2], [0.2, 0.8]], rtol=1e-6)


def test_settings_out_of_range_are_refused():
    for exponent in (-0.1, 1.1, float("nan")):
        with pytest.raises(StateError, match="`step_exponent` of stepwise_em must be a number"):
            stepwise_em(step_exponent=exponent)
    for setting in ("right", "wrong", "class_strength"):
        with pytest.raises(StateError, match=f"`{setting}` of stepwise_em must be a number"):
            stepwise_em(**{setting: 0})
