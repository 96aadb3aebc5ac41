"""Laplace's approximation of logistic regressions with a normal prior, several at once.

f ~ N(mean, K) and P(true) = σ(f) per class: the most probable f, and the evidence p(true).
Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), section 3.4. The regressions
share most of K, so that few tasks are solved exactly and many by conjugate gradients, in which a
step of all classes is one product of matrices.
"""

from typing import NamedTuple

import numpy as np

from labelquorum._types import Floats

MAX_ROUNDS, TOLERANCE = 30, 1e-5
"""Newton's method ends once a round gains less than this in every log p."""

DIRECT_TASKS = 192
"""Up to which equations are solved directly: at 128 tasks in 0.1 ms, at 512 in 5 ms, which is 200
products of K and a vector."""

MAX_STEPS, RESIDUAL = 200, 1e-6
"""Conjugate gradients end at this share of the right side. Each round of Newton's method starts
them again, so what is left is never less: at 1e-3 judges who say nearly the same cost 5 nats."""


class Covariance(NamedTuple):
    """K of each class: K_c = kernel + s_c s_cᵀ + bias."""

    kernel: Floats  # (G, G)
    slopes: Floats  # s (C, G)
    bias: float

    def times(self, values: Floats) -> Floats:
        """K_c v_c of each class, (C, G)."""
        along = (values * self.slopes).sum(axis=1, keepdims=True) * self.slopes
        level = self.bias * values.sum(axis=1, keepdims=True)
        return np.asarray(values @ self.kernel + along + level)

    def scaled(self, c: int, root: Floats) -> Floats:
        """I + W^½ K_c W^½, (G, G)."""
        matrix: Floats = np.multiply.outer(self.slopes[c], self.slopes[c])
        matrix += self.kernel
        matrix += self.bias
        matrix *= root[:, None]
        matrix *= root
        matrix.flat[:: len(root) + 1] += 1
        return matrix


class Fit(NamedTuple):
    """The maximum of each class."""

    dual: Floats  # (C, G) where f = mean + K dual
    log_odds: Floats  # f (C, G)
    log_prob: Floats  # log p(true | f) − ½ dualᵀ K dual (C,)


def laplace(
    covariance: Covariance, is_true: Floats, mean: Floats, start: Floats | None = None
) -> Fit:
    """The most probable f of a logistic likelihood under N(mean, K), by Newton's method.

    f = mean + K dual, where dual = 1[true] − σ(f) at the maximum; is_true and mean are (C, G).
    `start` is a dual near that of the maximum, such as that of another K.
    """
    found = _at(np.zeros_like(mean), covariance, is_true, mean)
    if start is not None:
        near = _at(start, covariance, is_true, mean)
        if (near.log_prob > found.log_prob).all():
            found = near
    for _ in range(MAX_ROUNDS):
        prob, curvature = _curvature(found.log_odds)
        # b = W (f − m) + ∇ log p;  dual = b − W^½ (I + W^½ K W^½)⁻¹ W^½ K b
        target = curvature * (found.log_odds - mean) + is_true - prob
        root = np.sqrt(curvature)
        newton = target - root * _solved(covariance, root, root * covariance.times(target))
        before, step = found, np.ones((len(mean), 1))
        while True:
            found = _at(before.dual + step * (newton - before.dual), covariance, is_true, mean)
            worse = found.log_prob < before.log_prob - TOLERANCE
            if not (worse & (step[:, 0] > 1e-3)).any():
                break
            step[worse] /= 2
        if (found.log_prob - before.log_prob < TOLERANCE).all():
            break
    return found


def log_evidence(covariance: Covariance, fit: Fit, c: int) -> float:
    """Log p(true) of a class, its weights integrated out."""
    root = np.sqrt(_curvature(fit.log_odds[c])[1])
    # In float32, which takes half the time and errs by about 0.001.
    matrix = covariance.scaled(c, root).astype(np.float32)
    return float(fit.log_prob[c] - np.linalg.slogdet(matrix)[1] / 2)


def _at(dual: Floats, covariance: Covariance, is_true: Floats, mean: Floats) -> Fit:
    shift = covariance.times(dual)
    log_prob = -0.5 * (dual * shift).sum(axis=1) - _log_loss(mean + shift, is_true).sum(axis=1)
    return Fit(dual, mean + shift, log_prob)


def _solved(covariance: Covariance, root: Floats, right: Floats) -> Floats:
    """(I + W^½ K W^½)⁻¹ r of each class."""
    if right.shape[1] <= DIRECT_TASKS:
        matrices = np.stack([covariance.scaled(c, root[c]) for c in range(len(right))])
        return np.asarray(np.linalg.solve(matrices, right[:, :, None])[:, :, 0])
    found, rest = np.zeros_like(right), right
    towards, size = rest, (rest**2).sum(axis=1, keepdims=True)
    enough = RESIDUAL**2 * np.maximum(size, 1e-12)
    for _ in range(MAX_STEPS):
        image = towards + root * covariance.times(root * towards)
        length = size / np.maximum((towards * image).sum(axis=1, keepdims=True), 1e-300)
        found = found + length * towards
        rest = rest - length * image
        following = (rest**2).sum(axis=1, keepdims=True)
        if (following <= enough).all():
            break
        towards = rest + following / np.maximum(size, 1e-300) * towards
        size = following
    return found


def _curvature(log_odds: Floats) -> tuple[Floats, Floats]:
    """σ(f), and W = σ (1 − σ)."""
    prob = np.asarray(1 / (1 + np.exp(-np.clip(log_odds, -60, 60))))
    return prob, np.maximum(prob * (1 - prob), 1e-10)


def _log_loss(log_odds: Floats, is_true: Floats) -> Floats:
    return np.asarray(np.logaddexp(0, np.where(is_true > 0, -log_odds, log_odds)))
