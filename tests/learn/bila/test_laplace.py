"""Laplace's approximation: its maximum and its evidence."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from labelquorum.learn.bila.laplace import laplace


def sigmoid(log_odds):
    return 1 / (1 + np.exp(-log_odds))


def problem(n_tasks, n_features, scale=0.5, seed=0):
    rng = np.random.default_rng(seed)
    factor = scale * rng.normal(size=(n_tasks, n_features))
    mean = rng.normal(size=n_tasks)
    is_true = (rng.random(n_tasks) < sigmoid(mean + factor.sum(axis=1))).astype(float)
    return factor, is_true, mean


@pytest.mark.parametrize("shape", [(30, 50), (50, 7), (1, 1), (1, 4)])
def test_the_gradient_is_zero_at_the_maximum(shape):
    factor, is_true, mean = problem(*shape)
    found = laplace(factor, is_true, mean)
    np.testing.assert_allclose(found.dual, is_true - sigmoid(found.log_odds), atol=1e-3)
    np.testing.assert_allclose(found.log_odds, mean + factor @ factor.T @ found.dual, atol=1e-9)


@pytest.mark.parametrize("shape", [(40, 60), (60, 10)])
def test_weights_are_those_of_ridge_logistic_regression(shape):
    factor, is_true, mean = problem(*shape)
    found = laplace(factor, is_true, 0 * mean)
    theirs = LogisticRegression(C=1, fit_intercept=False, tol=1e-8).fit(factor, is_true)
    np.testing.assert_allclose(factor.T @ found.dual, theirs.coef_[0], atol=2e-3)


def test_solving_by_task_and_by_feature_is_the_same():
    factor, is_true, mean = problem(20, 8)
    wide = np.concatenate([factor, np.zeros((20, 30))], axis=1)
    one, other = laplace(factor, is_true, mean), laplace(wide, is_true, mean)
    np.testing.assert_allclose(one.log_odds, other.log_odds, atol=1e-6)
    assert one.log_evidence == pytest.approx(other.log_evidence, abs=1e-6)


@pytest.mark.parametrize("n_tasks", [1, 2])
def test_the_evidence_is_that_of_numerical_integration(n_tasks):
    factor, is_true, mean = problem(n_tasks, 1, seed=3)
    grid = np.linspace(-8, 8, 4001)
    prior = np.exp(-0.5 * grid**2) / np.sqrt(2 * np.pi)
    prob = sigmoid(mean[:, None] + factor @ grid[None])
    likelihood = np.where(is_true[:, None] > 0, prob, 1 - prob).prod(axis=0)
    exact = np.log((prior * likelihood).sum() * (grid[1] - grid[0]))
    assert laplace(factor, is_true, mean).log_evidence == pytest.approx(exact, abs=0.02)
