"""Dirichlet distributions: the special functions and divergences agree with SciPy's."""

import numpy as np
import pytest
from scipy import special, stats

from labelquorum.learn.methods._dirichlet import (
    digamma,
    divergence,
    expected_log,
    log_gamma,
    worker_prior,
)

X = np.geomspace(1e-5, 1e8, 4000)


def test_special_functions_agree_with_scipy():
    np.testing.assert_allclose(digamma(X), special.digamma(X), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(log_gamma(X), special.gammaln(X), rtol=1e-12, atol=1e-12)


def test_expected_logarithms_agree_with_draws():
    counts = np.array([4.0, 1.0, 2.5])
    draws = np.random.default_rng(0).dirichlet(counts, 200_000)
    np.testing.assert_allclose(expected_log(counts), np.log(draws).mean(axis=0), atol=0.01)


def test_divergence_is_the_mean_log_ratio_of_the_densities():
    counts, prior = np.array([6.0, 2.0, 3.5]), np.array([4.0, 1.0, 1.0])
    draws = np.random.default_rng(0).dirichlet(counts, 100_000)
    ratio = stats.dirichlet(counts).logpdf(draws.T) - stats.dirichlet(prior).logpdf(draws.T)
    assert divergence(counts, prior, expected_log(counts)) == pytest.approx(ratio.mean(), abs=0.01)


def test_divergence_adds_up_rows_and_is_nothing_from_itself():
    counts, prior = np.array([[4.0, 1.0], [2.0, 7.0]]), worker_prior(2, 4.0, 1.0)
    rows = [divergence(a, b, expected_log(a)) for a, b in zip(counts, prior, strict=True)]
    assert divergence(counts, prior, expected_log(counts)) == pytest.approx(sum(rows))
    assert rows[0] == pytest.approx(0, abs=1e-12)
    assert rows[1] > 0


def test_no_class_has_no_divergence():
    nothing = np.zeros((0, 0))
    assert expected_log(nothing).shape == (0, 0)
    assert divergence(nothing, nothing, nothing) == 0


def test_the_prior_of_a_worker_has_right_on_its_diagonal():
    assert worker_prior(3, 4.0, 1.0).tolist() == [[4, 1, 1], [1, 4, 1], [1, 1, 4]]
