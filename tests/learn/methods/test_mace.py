"""MACE: known answers, spammers found out, and Crowd-Kit's labels."""

import numpy as np
import pandas as pd
import pytest
from crowdkit.aggregation import MACE as CrowdKitMACE  # noqa: N811

from labelquorum.errors import StateError
from labelquorum.evaluation import class_conditional_crowd
from labelquorum.ingest.chunks import make_chunk
from labelquorum.learn.methods import mace as module
from labelquorum.learn.methods._batch import incidence_of
from labelquorum.learn.methods.mace import Params, mace


def learn(aggregator, chunk, seed=0):
    state, info = aggregator.update(aggregator.init(chunk, seed), chunk)
    return state, info, aggregator.aggregate(state, chunk)


def test_one_round_is_as_computed_by_hand():
    # Two workers who know or spam evenly, and spam evenly, both say 0 of one item. A label has
    # probability ½ + ½·½ = ¾ if it is right, ¼ if not: q = (9/10, 1/10), and the labels have
    # probability ½ (9/16 + 1/16) = 5/16. Each knew with 9/10 · ½ / ¾ = 3/5; spam only ever said 0.
    labels = incidence_of(make_chunk([0, 0], [0, 1], [0, 0], n_classes=2))
    even = np.log(np.full((2, 2), 1 / 2))
    found = next(module.rounds(labels, Params(even, even), module.log_shares(1e-300)))
    np.testing.assert_allclose(found.probs, [[9 / 10, 1 / 10]])
    np.testing.assert_allclose(found.log_evidence, [np.log(5 / 16)])
    np.testing.assert_allclose(np.exp(found.params.log_spamming), [[2 / 5, 3 / 5]] * 2)
    np.testing.assert_allclose(np.exp(found.params.log_strategy), [[1, 0]] * 2, atol=1e-12)


def test_the_variational_step_takes_the_expected_logarithm():
    # ψ(1) − ψ(2) = −1, and ψ(2) − ψ(3) = −½: Beta counts (1, 1) and (2, 1).
    how = module.variational(np.array([1.0, 1.0]), 1.0)
    np.testing.assert_allclose(how.spamming(np.zeros(2)), [-1, -1])
    np.testing.assert_allclose(how.strategy(np.array([1.0, 0.0])), [-1 / 2, -3 / 2])


@pytest.mark.parametrize("method", ["vb", "em"])
def test_a_bot_is_found_out(method):
    crowd = class_conditional_crowd(200, 8, 3, 6, skill=(0.8, 0.9), seed=1)
    label = np.where(crowd.worker == 3, 2, crowd.label)  # says 2 whatever the item
    chunk = make_chunk(crowd.item, crowd.worker, label)
    aggregator = mace(inference=method)
    state, _, answer = learn(aggregator, chunk)
    knows = np.exp(state.rows["log_spamming"][:, 1])
    assert knows.argmin() == 3 and knows[3] < 0.2 and np.delete(knows, 3).min() > 0.5
    assert np.exp(state.rows["log_strategy"][3]).argmax() == 2
    assert np.mean(answer.aggregated != crowd.truth) < 0.03


def test_starts_are_tried_together_as_they_are_one_by_one(monkeypatch):
    crowd = class_conditional_crowd(60, 8, 3, 4, seed=2)
    chunk = make_chunk(crowd.item, crowd.worker, crowd.label, weight=1 + crowd.item % 2)
    together = learn(mace(restarts=4, tolerance=0), chunk)[1]
    monkeypatch.setattr(module, "MAX_LABELS_PER_PASS", 1)
    alone = learn(mace(restarts=4, tolerance=0), chunk)[1]
    np.testing.assert_allclose(together.losses, alone.losses, rtol=1e-12)


def test_more_starts_never_end_lower():
    crowd = class_conditional_crowd(60, 8, 3, 4, skill=(0.3, 0.7), seed=2)
    chunk = make_chunk(crowd.item, crowd.worker, crowd.label)
    one, many = (learn(mace(inference="em", restarts=n), chunk)[1].losses[-1] for n in (1, 20))
    assert many <= one + 1e-6


def test_labels_are_those_of_crowd_kit():
    crowd = class_conditional_crowd(200, 12, 3, 5, seed=7)
    # Names that first appear in their own order: theirs mixes the habits up otherwise.
    columns = zip(("task", "worker", "label"), (crowd.item, crowd.worker, crowd.label), strict=True)
    table = pd.DataFrame({name: pd.factorize(values)[0] for name, values in columns})
    theirs = CrowdKitMACE(n_restarts=1).fit_predict(table).sort_index()
    chunk = make_chunk(table["task"], table["worker"], table["label"])
    ours = learn(mace(), chunk)[2].aggregated
    assert np.mean(ours == theirs.to_numpy()) >= 0.99


def test_a_method_nobody_knows_is_refused():
    with pytest.raises(StateError, match='`inference` of mace must be "vb" or "em"'):
        mace(inference="gibbs")


def test_a_prior_out_of_range_is_named():
    with pytest.raises(StateError, match="`know_prior` of mace must be a number"):
        mace(know_prior=0)
