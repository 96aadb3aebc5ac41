"""Dirichlet distributions: what the Bayesian methods know of a worker and of the classes.

A row of a confusion matrix is a distribution over labels; its Dirichlet is a row of counts, those
of the prior and those of the labels seen. The special functions are here, in float64, because
SciPy is none of the package's dependencies.
"""

import numpy as np

from labelquorum._types import Floats

_SHIFT = 8  # from here on the series below are good to 12 digits
# B_2n / 2n and B_2n / (2n (2n − 1)) for n = 1 … 6, B the Bernoulli numbers
_DIGAMMA_SERIES = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760)
_LOG_GAMMA_SERIES = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)


def worker_prior(n_classes: int, right: float, wrong: float) -> Floats:
    """The counts every worker starts with, (C, C): `right` where label and truth agree."""
    return np.asarray(np.full((n_classes, n_classes), wrong) + np.eye(n_classes) * (right - wrong))


def expected_log(counts: Floats) -> Floats:
    """E[log p] of p ~ Dirichlet(counts), along the last axis."""
    if not counts.size:  # before the first class is known
        return np.zeros_like(counts)
    # E[log p_z] = ψ(a_z) − ψ(Σ a)
    return digamma(counts) - digamma(counts.sum(axis=-1, keepdims=True))


def divergence(counts: Floats, prior: Floats, expected: Floats) -> float:
    """KL(Dirichlet(counts) ‖ Dirichlet(prior)), added up over all rows.

    Parameters
    ----------
    counts, expected
        (…, C), with `expected` the `expected_log` of `counts`.
    prior
        Anything that broadcasts against them.
    """
    if not counts.size:
        return 0.0
    # log Γ(Σa) − Σ log Γ(a) − log Γ(Σb) + Σ log Γ(b) + Σ (a − b) E[log p]
    rows = log_gamma(counts.sum(axis=-1)) - log_gamma(counts).sum(axis=-1)
    rows = rows - log_gamma(prior.sum(axis=-1)) + log_gamma(prior).sum(axis=-1)
    return float(rows.sum() + ((counts - prior) * expected).sum())


def digamma(x: Floats) -> Floats:
    """ψ(x), the derivative of log Γ(x), for x > 0.

    Examples
    --------
    >>> print(digamma(np.array([1.0, 2.0])).round(6))
    [-0.577216  0.422784]
    """
    # ψ(x) = ψ(x + n) − Σ_j 1 / (x + j);  ψ(y) = log y − 1/2y − Σ_n B_2n / (2n y^2n)
    steps = 1 / x
    for j in range(1, _SHIFT):
        steps += 1 / (x + j)
    y = x + _SHIFT
    return np.asarray(np.log(y) - 0.5 / y - _series(_DIGAMMA_SERIES, 1 / (y * y)) - steps)


def log_gamma(x: Floats) -> Floats:
    """Compute log Γ(x), for x > 0.

    Examples
    --------
    >>> print(np.exp(log_gamma(np.array([5.0]))).round(6))
    [24.]
    """
    # log Γ(x) = log Γ(x + n) − log Π_j (x + j);  Stirling's series for the first
    steps = np.array(x)
    for j in range(1, _SHIFT):
        steps *= x + j
    y = x + _SHIFT
    stirling = (y - 0.5) * np.log(y) - y + 0.5 * np.log(2 * np.pi)
    return np.asarray(stirling + _series(_LOG_GAMMA_SERIES, 1 / (y * y)) * y - np.log(steps))


def _series(terms: tuple[float, ...], z: Floats) -> Floats:
    """Σ_n terms[n] z^(n + 1)."""
    total = np.full_like(z, terms[-1])
    for term in terms[-2::-1]:
        total *= z
        total += term
    return total * z
