"""Dawid–Skene: a confusion matrix for each worker, found by expectation maximisation.

A. P. Dawid and A. M. Skene, Maximum Likelihood Estimation of Observer Error-Rates Using the EM
Algorithm, Applied Statistics 28(1), 1979. The "EM" of the BiLA paper.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.ingest.chunks import Chunk
from labelquorum.ingest.labels import LabelSpace
from labelquorum.learn.aggregator import Aggregator, vote_shares
from labelquorum.learn.methods._batch import (
    Fit,
    Incidence,
    Leaves,
    Round,
    check_at_least,
    em_rounds,
    has_settled,
    incidence_of,
    log_likelihood,
    log_normalise,
    offline,
    soft_counts,
)

__all__ = ["Gold", "Params", "dawid_skene", "log_joint", "maximise", "rounds", "shares"]

Smooth = Callable[[Floats], Floats]
"""Counts (…, C) in, counts without a zero that matters out."""


class Params(NamedTuple):
    """What the M step gives."""

    class_prior: Floats  # (C,) π
    confusion: Floats  # (P, C, C) ψ
    counts: Floats  # (P, C, C) the soft counts ψ was made of


class Gold(NamedTuple):
    """Items whose truth is known beforehand."""

    item: NDArray[np.intp]
    truth: NDArray[np.intp]

    def correct(self, probs: Floats) -> Floats:
        """Put certainty where the truth is known."""
        probs[self.item] = 0
        probs[self.item, self.truth] = 1
        return probs


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
        EM ends when the log-likelihood changes by less, relatively, or after `iterations` rounds.

    Examples
    --------
    >>> from labelquorum.evaluation.checks import seeded_error
    >>> print(f"{seeded_error(dawid_skene()):.1%}")
    13.8%
    """
    check_at_least("dawid_skene", smoothing=(smoothing, 1e-300))
    check_at_least("dawid_skene", tolerance=(tolerance, 0), iterations=(iterations, 1))

    def smooth(counts: Floats) -> Floats:
        return counts + smoothing

    def fit(chunk: Chunk, seed: int) -> Fit:
        labels = incidence_of(chunk)
        params = maximise(vote_shares(chunk), labels, smooth)
        losses: list[float] = []
        for found in islice(rounds(labels, params, smooth), iterations):
            params = found.params
            losses.append(-float(found.log_evidence.sum()))
            if has_settled(losses, tolerance):
                break
        return Fit(
            {"confusion": params.confusion},
            {
                "class_prior": params.class_prior,
                "crowd": shares(smooth(params.counts.sum(axis=0))),  # (C, C)
            },
            losses,
        )

    return offline(
        "dawid_skene",
        fit=fit,
        newcomer=lambda shared: {"confusion": shared["crowd"]},
        log_scores=_log_scores,
        confusion=lambda rows, shared: rows["confusion"],
    )


def rounds(
    labels: Incidence, start: Params, smooth: Smooth, gold: Gold | None = None
) -> Iterator[Round[Params]]:
    """Iterate from some parameters, E step first."""

    def expect(params: Params) -> tuple[Floats, Floats]:
        # Eq. (2.5): q_i(c) ∝ π_c Π_k ψ_k[c, l_ik]
        probs, log_evidence = log_normalise(log_joint(params.class_prior, params.confusion, labels))
        return probs if gold is None else gold.correct(probs), log_evidence

    return em_rounds(start, expect, lambda probs, _: maximise(probs, labels, smooth))


def maximise(probs: Floats, labels: Incidence, smooth: Smooth) -> Params:
    """M step: shares of the soft counts."""
    # Eq. (2.3): ψ_k[c, z] = Σ_i q_i(c) [l_ik = z] / Σ_i q_i(c)
    counts = soft_counts(probs, labels)
    # Eq. (2.4): π_c = Σ_i q_i(c) / N
    return Params(shares(smooth(probs.sum(axis=0))), shares(smooth(counts)), counts)


def shares(counts: Floats) -> Floats:
    """Counts as probabilities along the last axis."""
    return np.asarray(counts / counts.sum(axis=-1, keepdims=True))


def log_joint(class_prior: Floats, confusion: Floats, labels: Incidence) -> Floats:
    """The logarithm of π_c Π_k ψ_k[c, l_ik], (N, C)."""
    return np.log(class_prior) + log_likelihood(np.log(confusion), labels)


def _log_scores(rows: Leaves, shared: Leaves, chunk: Chunk) -> Floats:
    return log_joint(shared["class_prior"], rows["confusion"], incidence_of(chunk))
