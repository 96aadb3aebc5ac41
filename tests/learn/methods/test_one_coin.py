"""One-coin Dawid–Skene: known answers, and Crowd-Kit's labels."""

import numpy as np
import pandas as pd
import pytest
from crowdkit.aggregation import OneCoinDawidSkene as CrowdKitOneCoin

from labelquorum.errors import StateError
from labelquorum.evaluation import class_conditional_crowd
from labelquorum.ingest.chunks import make_chunk
from labelquorum.learn.methods.one_coin import one_coin


def learn(aggregator, chunk, seed=0):
    state, info = aggregator.update(aggregator.init(chunk, seed), chunk)
    return state, info, aggregator.aggregate(state, chunk)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_one_round_is_as_computed_by_hand(n_classes):
    # Both say 0 of item 0; of item 1 worker 0 says 1 and worker 1 says 0. By the votes (1, 0) and
    # (½, ½) each is right ¾ of the time, and says a wrong class with w = ¼ / (C − 1).
    chunk = make_chunk([0, 0, 1, 1], [0, 1, 0, 1], [0, 0, 1, 0], n_classes=n_classes)
    method = one_coin(smoothing=1e-13, iterations=1)
    state, info, _ = learn(method, chunk)
    w = 1 / 4 / (n_classes - 1)
    agreed = 9 / 16 + (n_classes - 1) * w * w  # C times the probability of item 0's labels
    parted = 2 * 3 / 4 * w + (n_classes - 2) * w * w
    assert info.losses[0] == pytest.approx(-np.log(agreed / n_classes * parted / n_classes))
    # Both labels of item 0 are right with 9/16 of `agreed`, those of item 1 with ¾ w of `parted`.
    skill = (9 / 16 / agreed + 3 / 4 * w / parted) / 2
    np.testing.assert_allclose(state.rows["skill"], [skill, skill], rtol=1e-9)
    confusion = method.confusion(state, np.array([0]))[0]
    expected = np.full((n_classes, n_classes), (1 - skill) / (n_classes - 1))
    np.fill_diagonal(expected, skill)
    np.testing.assert_allclose(confusion, expected, rtol=1e-6)
    assert method.class_prior(state).tolist() == [1 / n_classes] * n_classes


def test_a_newcomer_is_as_right_as_the_crowd():
    crowd = class_conditional_crowd(100, 6, 3, 4, seed=1)
    method = one_coin()
    state, _, _ = learn(method, make_chunk(crowd.item, crowd.worker, crowd.label))
    newcomer = method.confusion(state, np.array([99]))[0, 0, 0]
    labels = np.bincount(crowd.worker)
    assert newcomer == pytest.approx(labels @ state.rows["skill"] / labels.sum(), abs=1e-5)


def test_a_class_alone_is_the_answer():
    chunk = make_chunk([0, 1], [0, 0], [0, 0], n_classes=1)
    method = one_coin()
    state, _, answer = learn(method, chunk)
    assert answer.aggregated.tolist() == [0, 0] and answer.probs.tolist() == [[1], [1]]
    assert method.confusion(state, np.array([0])).tolist() == [[[1]]]


def test_with_a_learned_prior_labels_are_those_of_crowd_kit():
    crowd = class_conditional_crowd(300, 20, 4, 6, seed=5)
    table = pd.DataFrame({"task": crowd.item, "worker": crowd.worker, "label": crowd.label})
    theirs = CrowdKitOneCoin(n_iter=50).fit_predict(table).sort_index()
    chunk = make_chunk(crowd.item, crowd.worker, crowd.label)
    ours = learn(one_coin(class_prior="learned"), chunk)[2].aggregated
    assert np.mean(ours == theirs.to_numpy()) >= 0.99


def test_a_prior_nobody_knows_is_refused():
    with pytest.raises(StateError, match='must be "uniform" or "learned"'):
        one_coin(class_prior="flat")
