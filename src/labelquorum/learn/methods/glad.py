"""GLAD: how able a worker is, how easy an item is, and errors that are all alike.

J. Whitehill, P. Ruvolo, T. Wu, J. Bergsma and J. Movellan, Whose Vote Should Count More: Optimal
Integration of Labels from Labelers of Unknown Expertise, NIPS 2009. With more than two classes
the errors are spread evenly, as in Crowd-Kit's GLAD.

    (1) P(l_ik = z | y_i = c) = σ(α_k β_i) where z = c, (1 − σ(α_k β_i)) / (C − 1) elsewhere
    (2) q_i(c) ∝ p_c Π_k P(l_ik | y_i = c)
    (3) Q = Σ_ik q_i(l_ik) log σ(α_k β_i) + (1 − q_i(l_ik)) log (1 − σ(α_k β_i)) + log priors
    (4) dQ/dα_k = Σ_i (q_i(l_ik) − σ) β_i, dQ/dlog β_i = Σ_k (q_i(l_ik) − σ) α_k β_i, + priors

The paper climbs Q by gradients in each M step. Here an M step is one Newton step, abilities first
(K. Lange, A Gradient Algorithm Locally Equivalent to the EM Algorithm, JRSS B 57(2), 1995): it
ends where they end, and many times sooner.
"""

from collections.abc import Callable, Iterator
from itertools import islice
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

EASE_ROUNDS = 30
"""Rounds in which the ease of items is found when the abilities are known."""

MAX_NEWTON_STEP = 1.0
"""No Newton step moves an ability or an ease further."""


class Params(NamedTuple):
    """What is searched for in the M step."""

    ability: Floats  # (P,) α
    ease: Floats  # (N,) log β, the logarithm of one over the difficulty


class Priors(NamedTuple):
    """The class prior, and the means of normal distributions of variance 1."""

    class_prior: Floats  # (C,) p
    ability: Floats  # (P,) or ()
    ease: Floats  # (N,) or ()


Improve = Callable[[Floats, Params, Incidence, Priors], Params]
"""An M step: how probable each label is to be right (B,), the parameters before, …"""


def glad(
    space: LabelSpace | None = None,
    *,
    ability_mean: float = 1.0,
    ease_mean: float = 1.0,
    tolerance: float = 1e-7,
    iterations: int = 500,
) -> Aggregator:
    """Build GLAD.

    Parameters
    ----------
    ability_mean, ease_mean
        The means of the normal priors of α and log β; their variance is 1.
    tolerance, iterations
        EM ends when the log posterior changes by less, relatively, or after `iterations` rounds.

    Examples
    --------
    >>> from labelquorum.evaluation.checks import seeded_error
    >>> print(f"{seeded_error(glad()):.1%}")
    14.5%
    """
    check_at_least("glad", tolerance=(tolerance, 0), iterations=(iterations, 1))

    def fit(chunk: Chunk, seed: int) -> Fit:
        labels = incidence_of(chunk)
        uniform = np.full(chunk.n_classes, 1 / max(chunk.n_classes, 1))
        priors = Priors(uniform, np.asarray(ability_mean), np.asarray(ease_mean))
        params = Params(np.full(labels.n_workers, ability_mean), np.full(labels.n_items, ease_mean))
        losses: list[float] = []
        for found in islice(rounds(labels, params, priors), iterations):
            losses.append(_distance(params, priors) - float(found.log_evidence.sum()))
            params = found.params
            if has_settled(losses, tolerance):
                break
        return Fit(
            {"ability": params.ability},
            {
                "class_prior": priors.class_prior,
                "ability_mean": priors.ability,
                "ease_mean": priors.ease,
                "typical_ease": np.asarray(np.append(params.ease, ease_mean).mean()),
            },
            losses,
        )

    return offline(
        "glad",
        fit=fit,
        newcomer=lambda shared: {"ability": shared["ability_mean"]},
        log_scores=_log_scores,
        confusion=_confusion,
    )._replace(
        exceptions={
            "shared_errors": "one accuracy per worker cannot tell to which labels errors go"
        }
    )


def rounds(
    labels: Incidence, start: Params, priors: Priors, improve: Improve | None = None
) -> Iterator[Round[Params]]:
    """Iterate from some parameters, E step first; another M step than Newton's can be given."""
    climb = improve or _newton

    def maximise(probs: Floats, params: Params) -> Params:
        return climb(probs_of_labels(probs, labels), params, labels, priors)

    return em_rounds(start, lambda params: expect(params, labels, priors), maximise)


def objective(
    right: Floats, params: Params, labels: Incidence, priors: Priors
) -> tuple[float, Params]:
    """Q and its gradient, (3) and (4); `right` is q_i(l_ik), (B,)."""
    scale = np.exp(params.ease)[labels.item]
    x = params.ability[labels.worker] * scale
    softplus = np.logaddexp(0, x)
    # log σ(x) = x − log(1 + eˣ), log(1 − σ(x)) = −log(1 + eˣ)
    reported = labels.sum(right * x - softplus - (1 - right) * _log_others(labels.n_classes))
    constant = 0.5 * np.log(2 * np.pi) * (labels.n_workers + labels.n_items)
    gap = right - np.exp(x - softplus)
    gradient = Params(
        labels.total(labels.worker, gap * scale, labels.n_workers)
        + priors.ability
        - params.ability,
        labels.total(labels.item, gap * x, labels.n_items) + priors.ease - params.ease,
    )
    return reported - _distance(params, priors) - float(constant), gradient


def expect(params: Params, labels: Incidence, priors: Priors) -> tuple[Floats, Floats]:
    """E step: the probabilities of the classes, (N, C), and each item's log evidence, (N,)."""
    return log_normalise(_log_joint(params, labels, priors.class_prior))  # (2)


def _newton(right: Floats, params: Params, labels: Incidence, priors: Priors) -> Params:
    """An M step: one step up Q in the abilities, then one in the eases."""
    scale = np.exp(params.ease)[labels.item]
    sigma = _sigmoid(params.ability[labels.worker] * scale)
    climb = labels.total(labels.worker, (right - sigma) * scale, labels.n_workers)  # (4)
    bend = labels.total(labels.worker, sigma * (1 - sigma) * scale * scale, labels.n_workers)
    ability = params.ability + _step(climb, bend, priors.ability - params.ability)
    return _newton_ease(right, Params(ability, params.ease), labels, priors)


def _newton_ease(right: Floats, params: Params, labels: Incidence, priors: Priors) -> Params:
    x = params.ability[labels.worker] * np.exp(params.ease)[labels.item]
    sigma = _sigmoid(x)
    climb = labels.total(labels.item, (right - sigma) * x, labels.n_items)  # (4)
    # The curvature in log β is Σ σ(1 − σ) x² − climb; where that is the smaller, the first term.
    bend = labels.total(labels.item, sigma * (1 - sigma) * x * x, labels.n_items)
    bend += np.maximum(-climb, 0)
    return Params(params.ability, params.ease + _step(climb, bend, priors.ease - params.ease))


def _step(climb: Floats, bend: Floats, home: Floats) -> Floats:
    """Newton's step; the prior pulls `home` with curvature 1."""
    return np.clip((climb + home) / (bend + 1), -MAX_NEWTON_STEP, MAX_NEWTON_STEP)


def _distance(params: Params, priors: Priors) -> float:
    """−log of the normal priors, but for a constant."""
    ability, ease = params.ability - priors.ability, params.ease - priors.ease
    return float(0.5 * (ability @ ability + ease @ ease))


def _log_joint(params: Params, labels: Incidence, class_prior: Floats) -> Floats:
    """The logarithm of (2), (N, C)."""
    x = params.ability[labels.worker] * np.exp(params.ease)[labels.item]
    others = _log_others(labels.n_classes)
    # (1): the two cases, and the second less the first
    likelihood = log_likelihood_alike(-np.logaddexp(0, x) - others, x + others, labels)
    return np.log(class_prior) + likelihood


def _log_scores(rows: Leaves, shared: Leaves, chunk: Chunk) -> Floats:
    """Find the ease of each item under the abilities known, then score it.

    For a fixed number of rounds, so that no item's answer depends on the items beside it.
    """
    labels = incidence_of(chunk)
    priors = Priors(shared["class_prior"], shared["ability_mean"], shared["ease_mean"])
    params = Params(rows["ability"], np.full(labels.n_items, float(priors.ease)))
    for found in islice(rounds(labels, params, priors, _newton_ease), EASE_ROUNDS):
        params = found.params
    return _log_joint(params, labels, priors.class_prior)


def _confusion(rows: Leaves, shared: Leaves) -> Floats:
    """The matrix of each worker on an item of typical ease."""
    n_classes = len(shared["class_prior"])
    if n_classes == 1:
        return np.ones((len(rows["ability"]), 1, 1))
    right = _sigmoid(rows["ability"][:, None, None] * np.exp(shared["typical_ease"]))
    return np.where(np.eye(n_classes) > 0, right, (1 - right) / (n_classes - 1))  # (1)


def _sigmoid(x: Floats) -> Floats:
    return np.asarray(np.exp(-np.logaddexp(0, -x)))


def _log_others(n_classes: int) -> float:
    return float(np.log(max(n_classes - 1, 1)))
