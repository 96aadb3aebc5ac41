"""Minimax entropy: a matrix for each worker, and for each item a vector that misleads everybody.

D. Zhou, J. C. Platt, S. Basu and Y. Mao, Learning from the Wisdom of Crowds by Minimax Entropy,
NIPS 2012. The "ME" of the BiLA paper.

Labels shall be as random as the confusion counts of each worker and the label counts of each item
allow, and the truth is what leaves them least random. With Lagrange multipliers σ_k and τ_i,

    p(k says z of i | truth c) = exp(σ_k[c, z] + τ_i[z]) / Σ_z' exp(σ_k[c, z'] + τ_i[z'])

and the regularised dual, minimised over (σ, τ) and over q in turn, is

    F = −Σ_i Σ_c q_i(c) Σ_k log p(l_ik | c) − Σ_i H(q_i) + α/2 ‖σ‖² + β/2 ‖τ‖²

The soft q and all numbers are those of the code for this paper that Q. Liu, the second author of
its successor, released with it. The successor, `mmce.py`, has a matrix for each item instead of a
vector, and takes the multipliers and their descent from here.
"""

from collections.abc import Callable
from functools import reduce
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
    check_at_least,
    incidence,
    incidence_of,
    log_normalise,
    offline,
)

__all__ = [
    "Logits",
    "confusion",
    "descend",
    "label_log_probs",
    "mean_logits",
    "minimax_entropy",
    "take_items",
]


class Logits(NamedTuple):
    """The multipliers of workers and items, or sums of the same shapes."""

    worker: Floats  # (…, P) σ
    item: Floats  # (…, N) τ


def descend(
    start: Logits,
    gradient: Callable[[Logits], Logits],
    bound: Logits,
    steps: int,
    tolerance: float,
) -> Logits:
    """Minimise a convex function of σ and τ whose curvature has a bound.

    Accelerated gradient steps (Nesterov 1983; restarted where momentum leads uphill, O'Donoghue
    and Candès 2015) under the bound of Böhning (1992) on the curvature of a softmax,
    diag(p) − p pᵀ ≼ ½ I.

    Parameters
    ----------
    bound
        What ∇² is no larger than, for each multiplier.
    steps, tolerance
        Stop after so many steps, or when no multiplier moves by more.
    """
    now = ahead = start
    momentum = 1.0
    for _ in range(steps):
        slope = gradient(ahead)
        before = now
        now = Logits(
            ahead.worker - slope.worker / bound.worker, ahead.item - slope.item / bound.item
        )
        step = Logits(now.worker - before.worker, now.item - before.item)
        if (slope.worker * step.worker).sum() + (slope.item * step.item).sum() > 0:
            momentum = 1.0
        following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        carry, momentum = (momentum - 1) / following, following
        ahead = Logits(now.worker + carry * step.worker, now.item + carry * step.item)
        if max(np.abs(each).max() for each in step) <= tolerance:
            break
    return now


def label_log_probs(worker: Floats, item: Floats, labels: Incidence) -> Floats:
    """Logarithm of p(k says z of i | c) for the worker and item of each label, (C, B).

    Parameters
    ----------
    worker, item
        (C, P) and (C, N), for one truth c.
    """
    scores = np.take(worker, labels.worker, axis=1)
    scores += np.take(item, labels.item, axis=1)
    # Row by row: NumPy reduces a short first axis slowly.
    scores -= reduce(np.maximum, scores)
    scores -= np.log(reduce(np.add, np.exp(scores)))
    return scores


def take_items(labels: Incidence, kept: NDArray[np.bool_]) -> Incidence:
    """The labels of some items, renumbered."""
    rows = kept[labels.item]
    place = np.cumsum(kept) - 1
    return incidence(
        place[labels.item[rows]],
        labels.worker[rows],
        labels.label[rows],
        None if labels.weight is None else labels.weight[rows],
        n_items=int(kept.sum()),
        n_workers=labels.n_workers,
        n_classes=labels.n_classes,
    )


def mean_logits(workers: Floats, labels: Incidence) -> Floats:
    """The mean σ of a label's worker, (C, C); before any label, a vote."""
    weight = labels.total(labels.worker, None, labels.n_workers)
    if not weight.any():
        return np.eye(labels.n_classes)
    return np.asarray(workers @ (weight / weight.sum()))


def confusion(rows: Leaves, shared: Leaves) -> Floats:
    """P(k says z | c) on an item that is neither hard nor misleading (τ = 0), (P, C, C)."""
    logits = rows["worker_logits"]
    probs = np.exp(logits - logits.max(axis=2, keepdims=True, initial=-np.inf))
    return np.asarray(probs / probs.sum(axis=2, keepdims=True))


# ── the method ───────────────────────────────────────────────────────────────────────────


def minimax_entropy(
    space: LabelSpace | None = None,
    *,
    worker_penalty: float | None = None,
    item_penalty: float | None = None,
    strength: float = 0.25,
    tolerance: float = 5e-3,
    iterations: int = 50,
    steps: int = 25,
    step_tolerance: float = 1e-3,
) -> Aggregator:
    """Build minimax entropy.

    Parameters
    ----------
    worker_penalty, item_penalty
        α and β. Unless given, α = `strength` · C² and β = α times the mean number of labels a
        worker gave over the mean number of labels an item got.
    strength
        γ of this rule; ¼ is that of the released code.
    tolerance, iterations
        It ends when no class probability moves by more, or after so many rounds.
    steps, step_tolerance
        A round takes so many steps in σ and τ, or until no entry moves by more.

    Examples
    --------
    >>> from labelquorum.evaluation.checks import seeded_error
    >>> print(f"{seeded_error(minimax_entropy()):.1%}")
    13.3%
    """
    for name, penalty in (("worker_penalty", worker_penalty), ("item_penalty", item_penalty)):
        if penalty is not None:
            check_at_least("minimax_entropy", **{name: (penalty, 1e-9)})
    check_at_least("minimax_entropy", strength=(strength, 1e-9), tolerance=(tolerance, 0))
    check_at_least("minimax_entropy", iterations=(iterations, 1), steps=(steps, 1))
    check_at_least("minimax_entropy", step_tolerance=(step_tolerance, 0))

    def fit(chunk: Chunk, seed: int) -> Fit:
        labels = incidence_of(chunk)
        N, P, C = labels.n_items, labels.n_workers, labels.n_classes
        # α = γ C²;  β = α · (labels a worker) / (labels an item), and that is α N / P
        alpha = worker_penalty or strength * C**2
        beta = item_penalty or alpha * (N / P if P else 1)
        logits = Logits(np.zeros((C, C, P)), np.zeros((C, N)))
        probs = vote_shares(chunk)
        losses: list[float] = []
        for _ in range(iterations if chunk.n_labels else 0):
            logits = _descend(logits, probs, labels, alpha, beta, steps, step_tolerance)
            # q_i(c) ∝ Π_k p(l_ik | c), after which F = penalties − Σ_i log Σ_c Π_k p(l_ik | c)
            before, (probs, log_evidence) = probs, log_normalise(_log_likelihood(logits, labels))
            penalty = alpha * np.square(logits.worker).sum() + beta * np.square(logits.item).sum()
            losses.append(float(penalty / 2 - log_evidence.sum()))
            if np.abs(probs - before).max() <= tolerance:
                break
        return Fit(
            {"worker_logits": logits.worker.transpose(2, 0, 1)},
            {
                "class_prior": np.full(C, 1 / max(C, 1)),  # the method has no other
                "crowd": mean_logits(logits.worker, labels),
                "item_penalty": np.array(beta),
            },
            losses,
        )

    def log_scores(rows: Leaves, shared: Leaves, chunk: Chunk) -> Floats:
        """Find the items' τ and q as in a fit, but with the workers' σ held, (N, C).

        Every item is done when it has settled itself, so nothing depends on its company.
        """
        beta = float(shared["item_penalty"])
        labels, probs = incidence_of(chunk), vote_shares(chunk)
        N, C = labels.n_items, labels.n_classes
        workers = np.ascontiguousarray(rows["worker_logits"].transpose(1, 2, 0))
        logits = Logits(workers, np.zeros((C, N)))
        scores, open_items = np.zeros((N, C)), np.arange(N)
        for _ in range(iterations):
            logits = _descend_items(logits, probs, labels, beta, steps)
            found = _log_likelihood(logits, labels)
            scores[open_items] = found
            before, (probs, _) = probs, log_normalise(found)
            moving = np.abs(probs - before).max(axis=1, initial=0) > tolerance
            if not moving.any():
                break
            open_items, probs = open_items[moving], probs[moving]
            labels = take_items(labels, moving)
            logits = logits._replace(item=logits.item[:, moving])
        return scores

    return offline(
        "minimax_entropy",
        fit=fit,
        newcomer=lambda shared: {"worker_logits": shared["crowd"]},
        log_scores=log_scores,
        confusion=confusion,
        exceptions={
            "no_worse_than_majority": "α = γ C² outweighs what 320 items say of ten classes",
            "shared_errors": "α = γ C² outweighs what 200 items say of ten classes",
        },
    )


def _descend(
    start: Logits,
    probs: Floats,
    labels: Incidence,
    alpha: float,
    beta: float,
    steps: int,
    tolerance: float,
) -> Logits:
    """Minimise F over σ and τ, given q, (N, C).

    A label depends on two rows, which counts the curvature of its softmax, ½, twice:
    ∇² ≼ Σ_i q_i(c) + α for row c of a worker, and ∇² ≼ (labels of i) + β for an item.
    """
    shares = _shares(probs, labels)
    observed = _observed(shares, labels)
    bound = Logits(
        observed.worker.sum(axis=1, keepdims=True) + alpha, observed.item.sum(axis=0) + beta
    )

    def gradient(at: Logits) -> Logits:
        expected = _expected(at, shares, labels)
        return Logits(
            # ∂F/∂σ_k[c, z] = Σ_i q_i(c) (p(z | c) − 1[l_ik = z]) + α σ_k[c, z]
            expected.worker - observed.worker + alpha * at.worker,
            # ∂F/∂τ_i[z] = Σ_k Σ_c q_i(c) (p(z | c) − 1[l_ik = z]) + β τ_i[z]
            expected.item - observed.item + beta * at.item,
        )

    return descend(start, gradient, bound, steps, tolerance)


def _descend_items(
    logits: Logits, probs: Floats, labels: Incidence, beta: float, steps: int
) -> Logits:
    """Minimise F over τ alone, given q, (N, C); every item for itself."""
    shares = _shares(probs, labels)
    observed = _observed(shares, labels).item
    bound = observed.sum(axis=0) / 2 + beta  # ∇² ≼ ½ (labels of i) + β
    for _ in range(steps):
        grad = _expected(logits, shares, labels).item - observed + beta * logits.item
        logits = logits._replace(item=logits.item - grad / bound)
    return logits


def _shares(probs: Floats, labels: Incidence) -> list[Floats]:
    """q_i(c) of each label's item, (B,) for every c."""
    return [np.take(column, labels.item) for column in np.ascontiguousarray(probs.T)]


def _observed(shares: list[Floats], labels: Incidence) -> Logits:
    """Σ q_i(c) 1[l_ik = z] over the labels of each worker; Σ_k 1[l_ik = z] of each item."""
    N, P, C = labels.n_items, labels.n_workers, labels.n_classes
    return Logits(
        np.array([labels.total(labels.cell, share, P * C).reshape(P, C).T for share in shares]),
        labels.total(labels.ballot, reduce(np.add, shares), C * N).reshape(C, N),
    )


def _expected(logits: Logits, shares: list[Floats], labels: Incidence) -> Logits:
    """Σ q_i(c) p(z | c) over the labels of each worker; Σ_k Σ_c q_i(c) p(z | c) of each item."""
    worker, item = np.zeros_like(logits.worker), np.zeros((labels.n_classes, len(labels.item)))
    for c, share in enumerate(shares):
        probs = np.exp(label_log_probs(logits.worker[c], logits.item, labels)) * share
        worker[c] = [labels.total(labels.worker, row, labels.n_workers) for row in probs]
        item += probs
    return Logits(
        worker, np.array([labels.total(labels.item, row, labels.n_items) for row in item])
    )


def _log_likelihood(logits: Logits, labels: Incidence) -> Floats:
    """Σ_k log p(l_ik | c), (N, C)."""
    scores = np.zeros((labels.n_items, labels.n_classes))
    for c in range(labels.n_classes):
        said = label_log_probs(logits.worker[c], logits.item, labels)[
            labels.label, np.arange(len(labels.label))
        ]
        scores[:, c] = labels.total(labels.item, said, labels.n_items)
    return scores
