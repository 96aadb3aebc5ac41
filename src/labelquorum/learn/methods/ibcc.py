"""iBCC: Bayesian classifier combination by mean-field variational Bayes.

E. Simpson, S. Roberts, I. Psorakis and A. Smith, Dynamic Bayesian Combination of Multiple
Imperfect Classifiers, in Decision Making and Imperfection, Springer, 2013: the "independent BCC"
of Kim and Ghahramani (AISTATS 2012), every worker having their own confusion matrix.
"""

from typing import NamedTuple

import numpy as np

from labelquorum._types import Floats
from labelquorum.ingest.chunks import Chunk
from labelquorum.ingest.labels import LabelSpace
from labelquorum.learn.aggregator import Aggregator
from labelquorum.learn.methods._batch import (
    Fit,
    Incidence,
    Leaves,
    check_at_least,
    has_settled,
    incidence_of,
    log_likelihood,
    log_normalise,
    offline,
    soft_counts,
)
from labelquorum.learn.methods._dirichlet import divergence, expected_log, worker_prior


class _Counts(NamedTuple):
    """The parameters of the Dirichlet distributions."""

    classes: Floats  # (C,) ν
    workers: Floats  # (P, C, C) α


def ibcc(
    space: LabelSpace | None = None,
    *,
    right: float = 4.0,
    wrong: float = 1.0,
    class_strength: float = 1.0,
    tolerance: float = 1e-7,
    iterations: int = 500,
) -> Aggregator:
    """Build variational iBCC.

    Parameters
    ----------
    right, wrong
        Prior counts on and off the diagonal of a worker's matrix. 4 and 1 are those of Li,
        Rubinstein and Cohn (ICML 2019) for this model.
    class_strength
        Prior count of each class.
    tolerance, iterations
        It ends when the lower bound changes by less, relatively, or after `iterations` rounds.

    Examples
    --------
    >>> from labelquorum.evaluation.checks import seeded_error
    >>> print(f"{seeded_error(ibcc()):.1%}")
    12.6%
    """
    check_at_least("ibcc", right=(right, 1e-3), wrong=(wrong, 1e-3))
    check_at_least("ibcc", class_strength=(class_strength, 1e-3))
    check_at_least("ibcc", tolerance=(tolerance, 0), iterations=(iterations, 1))

    def fit(chunk: Chunk, seed: int) -> Fit:
        labels, prior = incidence_of(chunk), worker_prior(chunk.n_classes, right, wrong)

        def count(probs: Floats) -> _Counts:
            # ν_c = ν0 + Σ_i q_i(c);  α_k[c, z] = α0[c, z] + Σ_i q_i(c) 1[l_ik = z]
            return _Counts(class_strength + probs.sum(axis=0), prior + soft_counts(probs, labels))

        probs = chunk.vote_shares
        losses: list[float] = []
        for _ in range(iterations):
            counts = count(probs)
            log_classes, log_workers = (expected_log(each) for each in counts)
            # q_i(c) ∝ exp(E[log κ_c] + Σ_k E[log π_k[c, l_ik]])
            probs, log_evidence = log_normalise(_log_joint(log_classes, log_workers, labels))
            # With this q the lower bound is Σ_i log Z_i − KL(κ) − KL(π).
            losses.append(
                divergence(
                    counts.classes, np.full_like(counts.classes, class_strength), log_classes
                )
                + divergence(counts.workers, prior, log_workers)
                - float(log_evidence.sum())
            )
            if has_settled(losses, tolerance):
                break
        counts = count(probs)
        return Fit(
            {"counts": counts.workers},
            {
                "class_prior": counts.classes / counts.classes.sum(),
                "class_counts": counts.classes,
                "prior": prior,
            },
            losses,
        )

    return offline(
        "ibcc",
        fit=fit,
        newcomer=lambda shared: {"counts": shared["prior"]},
        log_scores=_log_scores,
        confusion=lambda rows, shared: rows["counts"] / rows["counts"].sum(axis=2, keepdims=True),
    )._replace(
        exceptions={  # no "cold_start": its prior carries it
            "shared_errors": "200 items at a time are too few to tell shared errors from the truth"
        }
    )


def _log_joint(log_classes: Floats, log_workers: Floats, labels: Incidence) -> Floats:
    """E[log κ_c] + Σ_k E[log π_k[c, l_ik]], (N, C)."""
    return log_classes + log_likelihood(log_workers, labels)


def _log_scores(rows: Leaves, shared: Leaves, chunk: Chunk) -> Floats:
    logs = expected_log(shared["class_counts"]), expected_log(rows["counts"])
    return _log_joint(*logs, incidence_of(chunk))
