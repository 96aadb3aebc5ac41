"""Dawid–Skene: a confusion matrix for each worker, found by expectation maximisation.

A. P. Dawid and A. M. Skene, Maximum Likelihood Estimation of Observer Error-Rates Using the EM
Algorithm, Applied Statistics 28(1), 1979. The "EM" of the BiLA paper.
"""

from typing import NamedTuple

import numpy as np

from labelquorum.ingest.chunks import Chunk
from labelquorum.ingest.events import LabelSpace
from labelquorum.learn.aggregator import Aggregator, vote_shares
from labelquorum.learn.offline import (
    Fit,
    Floats,
    Leaves,
    check_at_least,
    has_settled,
    log_normalise,
    offline,
    sum_by_item,
    sum_by_worker,
)

__all__ = ["dawid_skene"]


class _Params(NamedTuple):
    class_prior: Floats  # (C,)
    confusion: Floats  # (P, C, C)
    crowd: Floats  # (C, C) the matrix of everybody together


def dawid_skene(
    space: LabelSpace | None = None,
    *,
    smoothing: float = 1e-5,
    tolerance: float = 1e-7,
    iterations: int = 500,
) -> Aggregator:
    """Build Dawid–Skene.

    Parameters
    ----------
    smoothing
        Added to every count, so that no probability is 0.
    tolerance, iterations
        EM ends when the log-likelihood changes by less, relatively, or after so many rounds.

    Examples
    --------
    >>> from labelquorum.trial.checks import seeded_error
    >>> print(f"{seeded_error(dawid_skene()):.1%}")
    13.8%
    """
    check_at_least("dawid_skene", smoothing=(smoothing, 1e-300))
    check_at_least("dawid_skene", tolerance=(tolerance, 0), iterations=(iterations, 1))

    def fit(chunk: Chunk, seed: int) -> Fit:
        probs = vote_shares(chunk)
        losses: list[float] = []
        for _ in range(iterations):
            params = _maximise(probs, chunk, smoothing)
            # E step: q_i(c) ∝ π_c Π_k ψ_k[c, l_ik]
            probs, log_evidence = log_normalise(_log_joint(params, chunk))
            losses.append(-float(log_evidence.sum()))
            if has_settled(losses, tolerance):
                break
        params = _maximise(probs, chunk, smoothing)
        return Fit(
            {"confusion": params.confusion},
            {"class_prior": params.class_prior, "crowd": params.crowd},
            losses,
        )

    return offline(
        "dawid_skene",
        fit=fit,
        newcomer=lambda shared: {"confusion": shared["crowd"]},
        log_scores=_log_scores,
        confusion=lambda rows, shared: rows["confusion"],
    )


def _maximise(probs: Floats, chunk: Chunk, smoothing: float) -> _Params:
    """M step: shares of the soft counts."""
    counts = sum_by_worker(probs, chunk)
    priors = probs.sum(axis=0) + smoothing
    return _Params(
        class_prior=priors / priors.sum(),
        confusion=_shares(counts + smoothing),
        crowd=_shares(counts.sum(axis=0) + smoothing),
    )


def _shares(counts: Floats) -> Floats:
    return np.asarray(counts / counts.sum(axis=-1, keepdims=True))


def _log_joint(params: _Params, chunk: Chunk) -> Floats:
    """log π_c + Σ_k log ψ_k[c, l_ik], (N, C)."""
    evidence = np.log(params.confusion)[chunk.local_worker, :, chunk.label]
    return np.log(params.class_prior) + sum_by_item(evidence, chunk)


def _log_scores(rows: Leaves, shared: Leaves, chunk: Chunk) -> Floats:
    return _log_joint(_Params(shared["class_prior"], rows["confusion"], shared["crowd"]), chunk)
