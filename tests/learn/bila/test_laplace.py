"""Laplace's approximation: its maximum and its evidence."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from labelquorum.learn.bila import laplace as module
from labelquorum.learn.bila.laplace import DIRECT_TASKS, Covariance, laplace, log_evidence


def sigmoid(log_odds):
    return 1 / (1 + np.exp(-log_odds))


def problem(n_tasks, n_features, scale=0.5, seed=0):
    rng = np.random.default_rng(seed)
    factor = scale * rng.normal(size=(n_tasks, n_features))
    mean = rng.normal(size=n_tasks)
    is_true = (rng.random(n_tasks) < sigmoid(mean + factor.sum(axis=1))).astype(float)
    return factor, is_true, mean


def fitted(factor, is_true, mean):
    covariance = Covariance(factor @ factor.T, np.zeros((1, len(mean))), 0.0)
    return covariance, laplace(covariance, is_true[None], mean[None])


@pytest.mark.parametrize("shape", [(30, 50), (50, 7), (1, 1), (1, 4), (DIRECT_TASKS + 50, 90)])
def test_the_gradient_is_zero_at_the_maximum(shape):
    factor, is_true, mean = problem(*shape)
    found = fitted(factor, is_true, mean)[1]
    np.testing.assert_allclose(found.dual[0], is_true - sigmoid(found.log_odds[0]), atol=1e-3)
    expected = mean + factor @ factor.T @ found.dual[0]
    np.testing.assert_allclose(found.log_odds[0], expected, atol=1e-9)


def test_judges_who_say_nearly_the_same_are_solved_to_the_end(monkeypatch):
    rng = np.random.default_rng(0)
    said = np.sign(rng.normal(size=(512, 1)) + 0.3 * rng.normal(size=(512, 13)))
    factor, mean = 8 * said / np.sqrt(13), np.zeros(512)
    is_true = (rng.random(512) < sigmoid(2 * said[:, 0])).astype(float)
    found = fitted(factor, is_true, mean)[1]
    monkeypatch.setattr(module, "DIRECT_TASKS", 512)
    exact = fitted(factor, is_true, mean)[1]
    np.testing.assert_allclose(found.log_prob, exact.log_prob, atol=1e-3)
    np.testing.assert_allclose(found.log_odds, exact.log_odds, atol=0.02)


@pytest.mark.parametrize("shape", [(40, 60), (60, 10), (DIRECT_TASKS + 100, 30)])
def test_weights_are_those_of_ridge_logistic_regression(shape):
    factor, is_true, mean = problem(*shape)
    dual = fitted(factor, is_true, 0 * mean)[1].dual[0]
    theirs = LogisticRegression(C=1, fit_intercept=False, tol=1e-8).fit(factor, is_true)
    np.testing.assert_allclose(factor.T @ dual, theirs.coef_[0], atol=2e-3)


@pytest.mark.parametrize("n_tasks", [40, DIRECT_TASKS + 40])
def test_classes_fitted_at_once_are_as_each_alone_and_as_with_their_own_features(n_tasks):
    rng = np.random.default_rng(1)
    factor, _, mean = problem(n_tasks, 12)
    is_true = (rng.random((3, n_tasks)) < 0.4).astype(float)
    slopes, means = rng.normal(size=(3, n_tasks)), np.stack([mean, -mean, 0 * mean])
    together = laplace(Covariance(factor @ factor.T, slopes, 0.3), is_true, means)
    for c in range(3):
        level = np.full((n_tasks, 1), np.sqrt(0.3))
        wide = np.concatenate([factor, slopes[c][:, None], level], axis=1)
        alone = fitted(wide, is_true[c], means[c])[1]
        np.testing.assert_allclose(together.log_odds[c], alone.log_odds[0], atol=1e-3)


def test_a_start_leads_to_the_same_maximum():
    factor, is_true, mean = problem(DIRECT_TASKS + 30, 40)
    covariance, found = fitted(factor, is_true, mean)
    other = laplace(covariance, is_true[None], mean[None], start=0.8 * found.dual)
    np.testing.assert_allclose(other.log_odds, found.log_odds, atol=1e-3)


@pytest.mark.parametrize("n_tasks", [1, 2])
def test_the_evidence_is_that_of_numerical_integration(n_tasks):
    factor, is_true, mean = problem(n_tasks, 1, seed=3)
    grid = np.linspace(-8, 8, 4001)
    prior = np.exp(-0.5 * grid**2) / np.sqrt(2 * np.pi)
    prob = sigmoid(mean[:, None] + factor @ grid[None])
    likelihood = np.where(is_true[:, None] > 0, prob, 1 - prob).prod(axis=0)
    exact = np.log((prior * likelihood).sum() * (grid[1] - grid[0]))
    found = log_evidence(*fitted(factor, is_true, mean), 0)
    assert found == pytest.approx(exact, abs=0.02)
