"""Laplace's approximation of logistic regression with a normal prior.

f = mean + F w with w ~ N(0, I), and P(true) = σ(f): the most probable f, and the evidence p(true).
Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), section 3.4. Where there are
fewer features than tasks, the same equations are solved by feature.
"""

from typing import NamedTuple

import numpy as np

from labelquorum._types import Floats

__all__ = ["Fit", "laplace"]

MAX_ROUNDS, TOLERANCE = 30, 1e-6
"""Newton's method ends once a round gains less than this in log p."""


class Fit(NamedTuple):
    """The maximum, and how probable it makes what was seen."""

    dual: Floats  # (G,) weights are Fᵀ × dual
    log_odds: Floats  # f (G,)
    log_evidence: float


def laplace(factor: Floats, is_true: Floats, mean: Floats) -> Fit:
    """The most probable f of a logistic likelihood under N(mean, F Fᵀ), by Newton's method.

    f = mean + F Fᵀ dual, where dual = 1[true] − σ(f) at the maximum.
    """
    dual, log_odds = np.zeros_like(mean), mean
    objective = -_log_loss(log_odds, is_true).sum()
    covariance = _covariance(factor)
    for _ in range(MAX_ROUNDS):
        prob, curvature = _curvature(log_odds)
        # b = W (f − m) + ∇ log p;  dual = b − W F (I + Fᵀ W F)⁻¹ Fᵀ b
        target = curvature * (log_odds - mean) + is_true - prob
        newton = target - _shrunk(factor, covariance, curvature, target)
        step, before = 1.0, objective
        while True:
            moved = dual + step * (newton - dual)
            log_odds = mean + factor @ (factor.T @ moved)
            objective = -0.5 * moved @ (log_odds - mean) - _log_loss(log_odds, is_true).sum()
            if objective >= before - TOLERANCE or step < 1e-3:
                break
            step /= 2
        dual = moved
        if objective - before < TOLERANCE:
            break
    matrix = _matrix(factor, covariance, _curvature(log_odds)[1])
    log_root = np.log(np.diagonal(np.linalg.cholesky(matrix))).sum()
    return Fit(dual, log_odds, float(objective - log_root))


def _covariance(factor: Floats) -> Floats | None:
    """K = F Fᵀ, where that is smaller than Fᵀ F."""
    n_tasks, n_features = factor.shape
    return factor @ factor.T if n_tasks <= n_features else None


def _matrix(factor: Floats, covariance: Floats | None, curvature: Floats) -> Floats:
    """I + W^½ K W^½, or I + Fᵀ W F, which has the same determinant and fewer rows."""
    if covariance is None:
        return np.eye(factor.shape[1]) + factor.T @ (curvature[:, None] * factor)
    root = np.sqrt(curvature)
    return np.eye(len(factor)) + root[:, None] * covariance * root


def _shrunk(factor: Floats, covariance: Floats | None, curvature: Floats, target: Floats) -> Floats:
    """W F (I + Fᵀ W F)⁻¹ Fᵀ b = W^½ (I + W^½ K W^½)⁻¹ W^½ K b."""
    matrix = _matrix(factor, covariance, curvature)
    if covariance is None:
        return np.asarray(curvature * (factor @ np.linalg.solve(matrix, factor.T @ target)))
    root = np.sqrt(curvature)
    return np.asarray(root * np.linalg.solve(matrix, root * (covariance @ target)))


def _curvature(log_odds: Floats) -> tuple[Floats, Floats]:
    """σ(f), and W = σ (1 − σ)."""
    prob = _sigmoid(log_odds)
    return prob, np.maximum(prob * (1 - prob), 1e-10)


def _sigmoid(log_odds: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-np.clip(log_odds, -60, 60))))


def _log_loss(log_odds: Floats, is_true: Floats) -> Floats:
    return np.asarray(np.logaddexp(0, np.where(is_true > 0, -log_odds, log_odds)))
