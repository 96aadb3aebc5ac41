"""MACE: a worker either knows the truth or spams, by a habit of their own.

D. Hovy, T. Berg-Kirkpatrick, A. Vaswani and E. Hovy, Learning Whom to Trust with MACE, NAACL-HLT
2013. The constants of the priors are those of the authors' program and of Crowd-Kit's MACE.

    (1) P(l_ik = z | y_i = c) = θ_k [z = c] + (1 − θ_k) ξ_k[z]
    (2) P(y_i = c, all l) = 1/C Π_k P(l_ik | y_i = c)
    (3) P(k knew y_i | all l) = P(y_i = l_ik | all l) θ_k / (θ_k + (1 − θ_k) ξ_k[l_ik])
    (4) log θ, log ξ ← E[log θ], E[log ξ] under Beta and Dirichlet of these soft counts
"""

from collections.abc import Callable, Iterator
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
    incidence,
    incidence_of,
    log_likelihood_alike,
    log_normalise,
    offline,
    probs_of_labels,
)
from labelquorum.learn.methods._dirichlet import expected_log

SMOOTHING = 0.01
"""Without priors, this over C is added to every count."""

STRATEGY_PRIOR = 10.0
"""The Dirichlet's count of each class in a worker's habit."""

MAX_LABELS_PER_PASS = 100_000
"""Labels that are passed over at once, some of them several times."""


class Params(NamedTuple):
    """The logarithms of what a worker does; under priors they are of less than 1 in sum."""

    log_spamming: Floats  # (P, 2) log (1 − θ), spams, and log θ, knows
    log_strategy: Floats  # (P, C) log ξ, what is said by one who spams


class Normalise(NamedTuple):
    """How counts (…, 2) and (…, C) become the two parameters."""

    spamming: Callable[[Floats], Floats]
    strategy: Callable[[Floats], Floats]


def mace(
    space: LabelSpace | None = None,
    *,
    inference: Literal["vb", "em"] = "vb",
    spam_prior: float = 0.5,
    know_prior: float = 0.5,
    strategy_prior: float = STRATEGY_PRIOR,
    restarts: int = 10,
    tolerance: float = 1e-7,
    iterations: int = 50,
) -> Aggregator:
    """Build MACE.

    Parameters
    ----------
    inference
        "vb" learns by variational Bayes under the three priors, "em" by maximum likelihood.
    spam_prior, know_prior
        The Beta prior's counts of labels given spamming and knowing.
    strategy_prior
        The Dirichlet prior's count of each class in what a spammer says.
    restarts
        Number of random starts; the one that ends with the best likelihood is kept.
    tolerance, iterations
        Ends when the log-likelihood changes by less, relatively, or after `iterations` rounds.

    Examples
    --------
    >>> from labelquorum.evaluation.checks import seeded_error
    >>> print(f"{seeded_error(mace()):.1%}")
    13.1%
    """
    if inference not in ("vb", "em"):
        raise StateError(f'`inference` of mace must be "vb" or "em". Got {inference!r}.')
    check_at_least("mace", spam_prior=(spam_prior, 1e-300), know_prior=(know_prior, 1e-300))
    check_at_least("mace", strategy_prior=(strategy_prior, 1e-300), restarts=(restarts, 1))
    check_at_least("mace", tolerance=(tolerance, 0), iterations=(iterations, 1))

    def normalise(n_classes: int) -> Normalise:
        if inference == "vb":
            return variational(np.array([spam_prior, know_prior]), strategy_prior)
        return log_shares(SMOOTHING / max(n_classes, 1))

    def fit(chunk: Chunk, seed: int) -> Fit:
        labels, how = incidence_of(chunk), normalise(chunk.n_classes)
        # Small chunks are fitted from all starts at once, as if each had its own crowd.
        together = max(1, min(restarts, MAX_LABELS_PER_PASS // max(chunk.n_labels, 1)))
        runs: list[tuple[Params, list[float]]] = []
        for first in range(0, restarts, together):
            runs += fit_crowds(labels, how, seed, range(first, min(first + together, restarts)))
        params, losses = min(runs, key=lambda run: run[1][-1])
        return Fit(params._asdict(), {"class_prior": _uniform(labels.n_classes)}, losses)

    def fit_crowds(
        labels: Incidence, how: Normalise, seed: int, starts: range
    ) -> list[tuple[Params, list[float]]]:
        crowds, shape = _repeat(labels, len(starts)), (len(starts), -1)
        params = _random_start(labels, seed, starts)
        losses: list[Floats] = []  # (R,) each
        for found in islice(rounds(crowds, params, how), iterations):
            params = found.params
            losses.append(-found.log_evidence.reshape(shape).sum(axis=1))
            if all(has_settled(pair, tolerance) for pair in zip(*losses[-2:], strict=True)):
                break
        return [
            (
                Params(*(leaf.reshape(*shape, leaf.shape[1])[r] for leaf in params)),
                [float(run[r]) for run in losses],
            )
            for r in range(len(starts))
        ]

    def newcomer(shared: Leaves) -> Leaves:
        # A worker without labels is as the priors have it.
        how = normalise(n_classes := len(shared["class_prior"]))
        return Params(how.spamming(np.zeros(2)), how.strategy(np.zeros(n_classes)))._asdict()

    return offline(
        "mace",
        fit=fit,
        newcomer=newcomer,
        log_scores=lambda rows, shared, chunk: _log_joint(Params(**rows), incidence_of(chunk)),
        confusion=_confusion,
    )._replace(exceptions={})


def rounds(labels: Incidence, start: Params, normalise: Normalise) -> Iterator[Round[Params]]:
    """Iterate from some parameters, E step first."""

    def maximise(probs: Floats, params: Params) -> Params:
        right = labels.total(labels.cell, probs_of_labels(probs, labels), said.size)
        # (3): P(k knew | all labels) = q_i(l) θ_k / (θ_k + (1 − θ_k) ξ_k[l])
        _, log_either = _log_says(params)
        knew = right.reshape(said.shape) * np.exp(params.log_spamming[:, 1:] - log_either)
        spammed = np.maximum(said - knew, 0)  # rounding may go below
        return Params(
            normalise.spamming(np.stack([spammed.sum(axis=1), knew.sum(axis=1)], axis=1)),
            normalise.strategy(spammed),
        )

    shape = labels.n_workers, labels.n_classes
    said = labels.total(labels.cell, None, shape[0] * shape[1]).reshape(shape)

    return em_rounds(start, lambda params: expect(params, labels), maximise)


def expect(params: Params, labels: Incidence) -> tuple[Floats, Floats]:
    """E step: the probabilities of the classes, (N, C), and each item's log evidence, (N,)."""
    return log_normalise(_log_joint(params, labels))


def variational(spamming_prior: Floats, strategy_prior: float) -> Normalise:
    """The variational M step (4)."""
    return Normalise(
        lambda counts: expected_log(counts + spamming_prior),
        lambda counts: expected_log(counts + strategy_prior),
    )


def log_shares(smoothing: float) -> Normalise:
    """The M step of maximum likelihood, a little added to each count."""

    def share(counts: Floats) -> Floats:
        counts = counts + smoothing
        return np.asarray(np.log(counts / counts.sum(axis=-1, keepdims=True)))

    return Normalise(share, share)


def _log_joint(params: Params, labels: Incidence) -> Floats:
    """The logarithm of (2), (N, C)."""
    log_spam, log_either = (table.ravel() for table in _log_says(params))
    likelihood = log_likelihood_alike(
        log_spam[labels.cell], (log_either - log_spam)[labels.cell], labels
    )
    return np.log(_uniform(labels.n_classes)) + likelihood


def _log_says(params: Params) -> tuple[Floats, Floats]:
    """The logarithm of (1) for a label that is wrong and for one that is right, (P, C) each."""
    log_spam = params.log_spamming[:, :1] + params.log_strategy
    return log_spam, np.logaddexp(log_spam, params.log_spamming[:, 1:])


def _repeat(labels: Incidence, times: int) -> Incidence:
    """The labels repeated, each time of other items and other workers."""
    n_items, n_workers = labels.n_items, labels.n_workers
    return incidence(
        (labels.item + np.arange(times)[:, None] * n_items).ravel(),
        (labels.worker + np.arange(times)[:, None] * n_workers).ravel(),
        np.tile(labels.label, times),
        None if labels.weight is None else np.tile(labels.weight, times),
        n_items=times * n_items,
        n_workers=times * n_workers,
        n_classes=labels.n_classes,
    )


def _random_start(labels: Incidence, seed: int, starts: range) -> Params:
    """Workers who spam half of the time, more or less, in no way of their own; (R · P, …).

    The paper draws the habits too; here they start alike, so that the classes' names do not matter.
    """
    size = labels.n_workers, 2
    drawn = [np.random.default_rng([seed, start]).uniform(1.0, 2.5, size) for start in starts]
    spamming = np.concatenate(drawn)
    strategy = np.tile(_uniform(labels.n_classes), (len(spamming), 1))
    return Params(np.log(spamming / spamming.sum(axis=1, keepdims=True)), np.log(strategy))


def _uniform(n_classes: int) -> Floats:
    return np.full(n_classes, 1 / max(n_classes, 1))


def _confusion(rows: Leaves, shared: Leaves) -> Floats:
    # (1)
    spamming, strategy = (
        np.exp(rows[leaf]) / np.exp(rows[leaf]).sum(axis=1, keepdims=True)
        for leaf in ("log_spamming", "log_strategy")
    )
    spam, know = spamming[:, :1, None], spamming[:, 1:, None]
    return np.asarray(know * np.eye(strategy.shape[1]) + spam * strategy[:, None, :])
