"""One-coin Dawid–Skene: a worker is right as often on every class, and errors are all alike.

Y. Zhang, X. Chen, D. Zhou and M. I. Jordan, Spectral Methods Meet EM: A Provably Optimal Algorithm
for Crowdsourcing, NIPS 2014 and JMLR 17, 2016: their EM for one coin, started from the vote.

    (1) P(l_ik = z | y_i = c) = p_k where z = c, (1 − p_k) / (C − 1) elsewhere
    (2) q_i(c) ∝ π_c Π_k P(l_ik | y_i = c)
    (3) p_k = Σ_i q_i(l_ik) / n_k

In the paper no class is likelier than another beforehand; Crowd-Kit's OneCoinDawidSkene learns π.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Literal, NamedTuple

import numpy as np

from labelquorum._types import Floats
from labelquorum.errors import StateError
from labelquorum.ingest.chunks import Chunk
from labelquorum.ingest.labels import LabelSpace
from labelquorum.learn.aggregator import Aggregator
from labelquorum.learn.methods._batch import (
    Fit,
    Incidence,
    Leaves,
    Round,
    check_at_least,
    em_rounds,
    has_settled,
    incidence_of,
    log_likelihood_alike,
    log_normalise,
    offline,
    probs_of_labels,
)

FLOOR = 1e-10
"""No probability is smaller."""


class Params(NamedTuple):
    """What the M step gives."""

    class_prior: Floats  # (C,) π
    skill: Floats  # (P,) p
    right: Floats  # (P,) how many of the worker's labels are right, softly
    total: Floats  # (P,) the worker's labels


def one_coin(
    space: LabelSpace | None = None,
    *,
    class_prior: Literal["uniform", "learned"] = "uniform",
    smoothing: float = 1e-5,
    tolerance: float = 1e-7,
    iterations: int = 500,
) -> Aggregator:
    """Build one-coin Dawid–Skene.

    Parameters
    ----------
    class_prior
        "uniform" is the paper's, "learned" is Crowd-Kit's. Learned, it takes over where labels
        are few or noisy: on the public set `relevance` the error rises from 52 % to 81 %.
    smoothing
        Added to the right labels, the wrong labels and the items of each class.
    tolerance, iterations
        EM ends when the log-likelihood changes by less, relatively, or after `iterations` rounds.

    Examples
    --------
    >>> from labelquorum.evaluation.checks import seeded_error
    >>> print(f"{seeded_error(one_coin()):.1%}")
    14.7%
    """
    if class_prior not in ("uniform", "learned"):
        raise StateError(
            f'`class_prior` of one_coin must be "uniform" or "learned". Got {class_prior!r}.'
        )
    learned = class_prior == "learned"
    check_at_least("one_coin", smoothing=(smoothing, 1e-300))
    check_at_least("one_coin", tolerance=(tolerance, 0), iterations=(iterations, 1))

    def fit(chunk: Chunk, seed: int) -> Fit:
        labels = incidence_of(chunk)
        params = maximise(chunk.vote_shares, labels, smoothing, learned=learned)
        losses: list[float] = []
        for found in islice(rounds(labels, params, smoothing, learned=learned), iterations):
            params = found.params
            losses.append(-float(found.log_evidence.sum()))
            if has_settled(losses, tolerance):
                break
        crowd = (params.right.sum() + smoothing) / (params.total.sum() + 2 * smoothing)
        return Fit(
            {"skill": params.skill},
            {"class_prior": params.class_prior, "crowd": np.asarray(crowd)},
            losses,
        )

    return offline(
        "one_coin",
        fit=fit,
        newcomer=lambda shared: {"skill": shared["crowd"]},
        log_scores=_log_scores,
        confusion=_confusion,
    )._replace(  # no "cold_start": one number per worker is soon learned
        exceptions={
            "shared_errors": "one accuracy per worker cannot tell to which labels errors go"
        }
    )


def rounds(
    labels: Incidence, start: Params, smoothing: float, *, learned: bool
) -> Iterator[Round[Params]]:
    """Iterate from some parameters, E step first."""

    def expect(params: Params) -> tuple[Floats, Floats]:
        # (2)
        return log_normalise(_log_joint(params.class_prior, params.skill, labels))

    def improve(probs: Floats, _: Params) -> Params:
        return maximise(probs, labels, smoothing, learned=learned)

    return em_rounds(start, expect, improve)


def maximise(probs: Floats, labels: Incidence, smoothing: float, *, learned: bool) -> Params:
    """M step: the share of a worker's labels that are right; the class prior where `learned`."""
    right = labels.total(labels.worker, probs_of_labels(probs, labels), labels.n_workers)
    total = labels.total(labels.worker, None, labels.n_workers)
    classes = probs.sum(axis=0) + smoothing if learned else np.ones(labels.n_classes)
    return Params(
        class_prior=classes / classes.sum(),
        # (3)
        skill=(right + smoothing) / (total + 2 * smoothing),
        right=right,
        total=total,
    )


def right_and_wrong(skill: Floats, n_classes: int) -> tuple[Floats, Floats]:
    """P(label z | truth c) for z = c and for each z ≠ c, within `FLOOR` and 1 − `FLOOR`."""
    # (1)
    wrong = (1 - skill) / max(n_classes - 1, 1)
    return np.clip(skill, FLOOR, 1 - FLOOR), np.clip(wrong, FLOOR, 1 - FLOOR)


def _log_joint(class_prior: Floats, skill: Floats, labels: Incidence) -> Floats:
    """The logarithm of (2), (N, C)."""
    right, wrong = (np.log(rate) for rate in right_and_wrong(skill, labels.n_classes))
    likelihood = log_likelihood_alike(wrong[labels.worker], (right - wrong)[labels.worker], labels)
    return np.log(np.maximum(class_prior, FLOOR)) + likelihood


def _log_scores(rows: Leaves, shared: Leaves, chunk: Chunk) -> Floats:
    return _log_joint(shared["class_prior"], rows["skill"], incidence_of(chunk))


def _confusion(rows: Leaves, shared: Leaves) -> Floats:
    n_classes = len(shared["class_prior"])
    if n_classes == 1:
        return np.ones((len(rows["skill"]), 1, 1))
    skill = rows["skill"][:, None, None]
    return np.where(np.eye(n_classes) > 0, skill, (1 - skill) / (n_classes - 1))
