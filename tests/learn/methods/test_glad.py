"""GLAD: known answers, gradients, the same end as Crowd-Kit's search, and difficult items."""

from itertools import islice

import numpy as np
import pandas as pd
import pytest
from crowdkit.aggregation import GLAD as CrowdKitGLAD  # noqa: N811

from labelquorum.compat.crowdkit import GLAD
from labelquorum.errors import StateError
from labelquorum.evaluation import class_conditional_crowd
from labelquorum.ingest.chunks import make_chunk
from labelquorum.learn.methods import glad as module
from labelquorum.learn.methods._batch import incidence_of
from labelquorum.learn.methods.glad import Params, Priors, glad

ONES = np.asarray(1.0)


def learn(aggregator, chunk, seed=0):
    state, info = aggregator.update(aggregator.init(chunk, seed), chunk)
    return state, info, aggregator.aggregate(state, chunk)


def chunk_of(crowd):
    return make_chunk(crowd.item, crowd.worker, crowd.label, n_classes=len(crowd.class_prior))


@pytest.mark.parametrize("n_classes", [2, 3])
def test_probabilities_are_as_computed_by_hand(n_classes):
    # α = 1 and β = 1: a label is right with σ(1), so it makes its class e·(C − 1) times as
    # probable as any other. Two labels agree on item 0, one stands alone on item 1.
    labels = incidence_of(make_chunk([0, 0, 1], [0, 1, 0], [0, 0, 1], n_classes=n_classes))
    priors = Priors(np.full(n_classes, 1 / n_classes), ONES, ONES)
    probs, log_evidence = module.expect(Params(np.ones(2), np.zeros(2)), labels, priors)
    odds = np.e * (n_classes - 1)
    assert probs[0, 0] == pytest.approx(odds**2 / (odds**2 + n_classes - 1))
    assert probs[1, 1] == pytest.approx(odds / (odds + n_classes - 1))
    assert log_evidence[1] == pytest.approx(np.log(1 / n_classes))  # no label is likelier


def test_the_gradient_is_that_of_the_objective():
    rng = np.random.default_rng(0)
    labels = incidence_of(chunk_of(class_conditional_crowd(12, 5, 3, 3, seed=0)))
    priors = Priors(np.full(3, 1 / 3), rng.normal(size=5), rng.normal(size=12))
    point, right = rng.normal(size=17), rng.random(36)

    def value(point):
        return module.objective(right, Params(point[:5], point[5:]), labels, priors)[0]

    _, gradient = module.objective(right, Params(point[:5], point[5:]), labels, priors)
    step = 1e-6 * np.eye(17)
    slopes = [(value(point + h) - value(point - h)) / 2e-6 for h in step]
    np.testing.assert_allclose(np.concatenate(gradient), slopes, rtol=1e-6, atol=1e-7)


def test_the_posterior_never_falls():
    labels = incidence_of(chunk_of(class_conditional_crowd(150, 10, 4, 5, seed=3)))
    priors, params = Priors(np.full(4, 1 / 4), ONES, ONES), Params(np.ones(10), np.ones(150))
    heights = []
    for found in islice(module.rounds(labels, params, priors), 60):
        far = np.concatenate(params) - 1
        heights.append(found.log_evidence.sum() - far @ far / 2)
        params = found.params
    assert (np.diff(heights) > -1e-9).all()
    assert heights[-1] - heights[-2] < 1e-6


def test_newton_steps_end_where_conjugate_gradients_end():
    crowd = class_conditional_crowd(120, 10, 3, 5, seed=6)
    table = pd.DataFrame({"task": crowd.item, "worker": crowd.worker, "label": crowd.label})
    # Their rule ends at the first fall of Q, which EM does not forbid; so it is switched off.
    slow = GLAD(n_iter=200, tol=-np.inf, m_step_tol=1e-5).fit(table)
    method = glad(tolerance=1e-12)
    state, _, answer = learn(method, chunk_of(crowd))
    abilities = slow.alphas_.sort_index().to_numpy()
    np.testing.assert_allclose(state.rows["ability"], abilities, atol=1e-3)
    np.testing.assert_allclose(answer.probs, slow.probas_.to_numpy(), atol=1e-3)


def test_labels_are_those_of_crowd_kit():
    crowd = class_conditional_crowd(120, 10, 3, 5, seed=6)
    table = pd.DataFrame({"task": crowd.item, "worker": crowd.worker, "label": crowd.label})
    theirs = CrowdKitGLAD(n_iter=2).fit_predict(table).sort_index()
    ours = learn(glad(), chunk_of(crowd))[2].aggregated
    assert np.mean(ours == theirs.to_numpy()) >= 0.99


def test_disputed_items_are_found_difficult_and_who_errs_on_easy_ones_unable():
    # Ten workers; the last errs on half of the 40 items. Item 0 divides the others.
    n_items, n_workers = 40, 10
    item, worker = (a.ravel() for a in np.indices((n_items, n_workers)))
    truth = np.arange(n_items) % 2
    label = truth[item]
    label[(worker == n_workers - 1) & (item % 4 < 2)] ^= 1
    label[(item == 0) & (worker % 2 == 0)] ^= 1
    labels = incidence_of(make_chunk(item, worker, label))
    priors = Priors(np.full(2, 1 / 2), ONES, ONES)
    start = Params(np.ones(n_workers), np.ones(n_items))
    *_, found = islice(module.rounds(labels, start, priors), 50)
    assert found.params.ability.argmin() == n_workers - 1
    assert found.params.ease.argmin() == 0


def test_extreme_abilities_stay_finite():
    chunk = make_chunk(np.repeat(np.arange(500), 2), np.tile([0, 1], 500), np.tile([0, 1], 500))
    state, _, answer = learn(glad(), chunk)
    assert np.isfinite(state.rows["ability"]).all()
    assert np.isfinite(answer.probs).all()


def test_a_class_alone_is_the_answer():
    chunk = make_chunk([0, 1], [0, 0], [0, 0], n_classes=1)
    method = glad()
    state, _, answer = learn(method, chunk)
    assert answer.probs.tolist() == [[1], [1]]
    assert method.confusion(state, np.array([0])).tolist() == [[[1]]]


def test_a_setting_out_of_range_is_named():
    with pytest.raises(StateError, match="`iterations` of glad must be a number ≥ 1"):
        glad(iterations=0)
