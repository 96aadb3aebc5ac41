"""Minimax entropy: a matrix for each worker, and for each item a vector that misleads everybody.

D. Zhou, J. C. Platt, S. Basu and Y. Mao, Learning from the Wisdom of Crowds by Minimax Entropy,
NIPS 2012. The "ME" of the BiLA paper.

Labels shall be as random as the confusion counts of each worker and the label counts of each item
allow, and the truth is what leaves them least random. With Lagrange multipliers σ_k and τ_i,

    p(k says z of i | truth c) = exp(σ_k[c, z] + τ_i[z]) / Σ_z' exp(σ_k[c, z'] + τ_i[z'])

and the regularised dual, minimised over (σ, τ) and over q in turn, is

    F = −Σ_i Σ_c q_i(c) Σ_k log p(l_ik | c) − Σ_i H(q_i) + α/2 ‖σ‖² + β/2 ‖τ‖²

The soft q and all numbers are those of the code for this paper that Q. Liu, the second author of
its successor (see `mmce`), released with it.
"""

from functools import reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum.ingest.chunks import Chunk
from labelquorum.ingest.events import LabelSpace
from labelquorum.learn.aggregator import Aggregator, vote_shares
from labelquorum.learn.offline import (
    Fit,
    Floats,
    Incidence,
    Leaves,
    check_at_least,
    incidence,
    incidence_of,
    log_normalise,
    offline,
)

__all__ = ["minimax_entropy"]


class _Logits(NamedTuple):
    """The multipliers, or sums of the same shape; truth c first, then label z."""

    worker: Floats  # (C, C, P) σ_k[c, z]
    item: Floats  # (C, N) τ_i[z]


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
    >>> from labelquorum.trial.checks import seeded_error
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
        logits = _Logits(np.zeros((C, C, P)), np.zeros((C, N)))
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
                "crowd": _crowd(logits.worker, labels),
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
        logits = _Logits(workers, np.zeros((C, N)))
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
            labels = _take_items(labels, moving)
            logits = logits._replace(item=logits.item[:, moving])
        return scores

    return offline(
        "minimax_entropy",
        fit=fit,
        newcomer=lambda shared: {"worker_logits": shared["crowd"]},
        log_scores=log_scores,
        confusion=_confusion,
        exceptions={
            "no_worse_than_majority": "α = γ C² outweighs what 320 items say of ten classes"
        },
    )


def _descend(
    start: _Logits,
    probs: Floats,
    labels: Incidence,
    alpha: float,
    beta: float,
    steps: int,
    tolerance: float,
) -> _Logits:
    """Minimise F over σ and τ, given q, (N, C).

    Accelerated gradient steps (Nesterov 1983; restarted where momentum leads uphill, O'Donoghue
    and Candès 2015) under the bound of Böhning (1992) on the curvature of a softmax,
    diag(p) − p pᵀ ≼ ½ I. A label depends on two rows, which counts twice, so that
    ∇² ≼ Σ_i q_i(c) + α for row c of a worker, and ∇² ≼ (labels of i) + β for an item.
    """
    shares = _shares(probs, labels)
    observed = _observed(shares, labels)
    worker_bound = observed.worker.sum(axis=1, keepdims=True) + alpha
    item_bound = observed.item.sum(axis=0) + beta
    now = ahead = start
    momentum = 1.0
    for _ in range(steps):
        expected = _expected(ahead, shares, labels)
        # ∂F/∂σ_k[c, z] = Σ_i q_i(c) (p(z | c) − 1[l_ik = z]) + α σ_k[c, z]
        worker_grad = expected.worker - observed.worker + alpha * ahead.worker
        # ∂F/∂τ_i[z] = Σ_k Σ_c q_i(c) (p(z | c) − 1[l_ik = z]) + β τ_i[z]
        item_grad = expected.item - observed.item + beta * ahead.item
        before = now
        now = _Logits(
            ahead.worker - worker_grad / worker_bound, ahead.item - item_grad / item_bound
        )
        step = _Logits(now.worker - before.worker, now.item - before.item)
        if (worker_grad * step.worker).sum() + (item_grad * step.item).sum() > 0:
            momentum = 1.0
        following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        carry, momentum = (momentum - 1) / following, following
        ahead = _Logits(now.worker + carry * step.worker, now.item + carry * step.item)
        if max(np.abs(each).max() for each in step) <= tolerance:
            break
    return now


def _descend_items(
    logits: _Logits, probs: Floats, labels: Incidence, beta: float, steps: int
) -> _Logits:
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


def _observed(shares: list[Floats], labels: Incidence) -> _Logits:
    """Σ q_i(c) 1[l_ik = z] over the labels of each worker; Σ_k 1[l_ik = z] of each item."""
    N, P, C = labels.n_items, labels.n_workers, labels.n_classes
    return _Logits(
        np.array([labels.total(labels.cell, share, P * C).reshape(P, C).T for share in shares]),
        labels.total(labels.ballot, reduce(np.add, shares), C * N).reshape(C, N),
    )


def _expected(logits: _Logits, shares: list[Floats], labels: Incidence) -> _Logits:
    """Σ q_i(c) p(z | c) over the labels of each worker; Σ_k Σ_c q_i(c) p(z | c) of each item."""
    worker, item = np.zeros_like(logits.worker), np.zeros((labels.n_classes, len(labels.item)))
    for c, share in enumerate(shares):
        probs = np.exp(_log_probs(logits, c, labels)) * share
        worker[c] = [labels.total(labels.worker, row, labels.n_workers) for row in probs]
        item += probs
    return _Logits(
        worker, np.array([labels.total(labels.item, row, labels.n_items) for row in item])
    )


def _log_probs(logits: _Logits, c: int, labels: Incidence) -> Floats:
    """Logarithm of p(k says z of i | c) for the worker and item of each label, (C, B)."""
    scores = np.take(logits.worker[c], labels.worker, axis=1)
    scores += np.take(logits.item, labels.item, axis=1)
    # Row by row: NumPy reduces a short first axis slowly.
    scores -= reduce(np.maximum, scores)
    scores -= np.log(reduce(np.add, np.exp(scores)))
    return scores


def _log_likelihood(logits: _Logits, labels: Incidence) -> Floats:
    """Σ_k log p(l_ik | c), (N, C)."""
    scores = np.zeros((labels.n_items, labels.n_classes))
    for c in range(labels.n_classes):
        said = _log_probs(logits, c, labels)[labels.label, np.arange(len(labels.label))]
        scores[:, c] = labels.total(labels.item, said, labels.n_items)
    return scores


def _take_items(labels: Incidence, kept: NDArray[np.bool_]) -> Incidence:
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


def _crowd(workers: Floats, labels: Incidence) -> Floats:
    """The mean σ of a label's worker, (C, C); before any label, a vote."""
    weight = labels.total(labels.worker, None, labels.n_workers)
    if not weight.any():
        return np.eye(labels.n_classes)
    return np.asarray(workers @ (weight / weight.sum()))


def _confusion(rows: Leaves, shared: Leaves) -> Floats:
    """P(k says z | c) on an item that misleads nobody (τ = 0), (P, C, C)."""
    logits = rows["worker_logits"]
    probs = np.exp(logits - logits.max(axis=2, keepdims=True, initial=-np.inf))
    return np.asarray(probs / probs.sum(axis=2, keepdims=True))
