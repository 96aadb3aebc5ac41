"""Minimax entropy (ME) and minimax conditional entropy (MMCE): labels as random as counts allow.

D. Zhou, J. C. Platt, S. Basu and Y. Mao, Learning from the Wisdom of Crowds by Minimax Entropy,
NIPS 2012: the "ME" of the BiLA paper, with a vector for each item. D. Zhou, Q. Liu, J. C. Platt and
C. Meek, Aggregating Ordinal Labels from Crowds by Minimax Conditional Entropy, ICML 2014; with N.
B. Shah, Regularized Minimax Conditional Entropy for Crowdsourcing, arXiv:1503.07240: their
multiclass method, the "MMCE" of the BiLA paper, with a matrix for each item.

Labels shall be as random as the confusion counts of each worker and the label counts of each item
allow, and the truth is what leaves them least random. With Lagrange multipliers σ_k and τ_i,

    p(k says z of i | truth c) = exp(σ_k[c, z] + τ_i[c, z]) / Σ_z' exp(σ_k[c, z'] + τ_i[c, z'])

where ME has the same τ_i[z] for every c. The regularised dual, minimised over (σ, τ) and over q in
turn, is

    F = −Σ_i Σ_c q_i(c) Σ_k log p(l_ik | c) − Σ_i H(q_i) + α/2 ‖σ‖² + β/2 ‖τ‖²

Given q, it falls apart into one convex problem for each group of truths that share their τ: all of
them in ME, each one alone in MMCE. The soft q and the numbers the papers leave open are those of
the code that Q. Liu released with the first of them.
"""

from collections.abc import Callable
from functools import reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.ingest.chunks import Chunk
from labelquorum.ingest.labels import LabelSpace
from labelquorum.learn.aggregator import Aggregator
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


class Logits(NamedTuple):
    """The multipliers of workers and items, or sums of the same shapes."""

    worker: Floats  # (T, C, P) σ, of the T truths of a group
    item: Floats  # (C, N) τ, which they share


Weigh = Callable[[list[Floats], Logits, Incidence], Logits]
"""What a group's labels weigh, by q of each label, (B,) for every truth, and the observed sums."""


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
        Stop after this number of steps, or when no multiplier moves by more.
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


# ── the two methods ──────────────────────────────────────────────────────────────────────


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
        α and β. Unless given, α = `strength` · C² and β = α times the mean number of labels
        per worker over the mean number of labels per item.
    strength
        γ of this rule; ¼ is that of the released code, which can also choose among ¼, ½, 1, 2 and 4
        by the likelihood of labels held out.
    tolerance, iterations
        It ends when no class probability moves by more, or after `iterations` rounds.
    steps, step_tolerance
        A round takes `steps` steps in σ and τ, or stops when no entry moves by more.

    Examples
    --------
    >>> from labelquorum.evaluation.checks import seeded_error
    >>> print(f"{seeded_error(minimax_entropy()):.1%}")
    13.3%
    """
    settings = _Settings(
        worker_penalty, item_penalty, strength, tolerance, iterations, steps, step_tolerance
    )
    return _build("minimax_entropy", settings, lambda n_classes: [list(range(n_classes))], _sums)


def mmce(
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
    """Build MMCE; the settings are those of `minimax_entropy`.

    Examples
    --------
    >>> from labelquorum.evaluation.checks import seeded_error
    >>> print(f"{seeded_error(mmce()):.1%}")
    13.3%
    """
    settings = _Settings(
        worker_penalty, item_penalty, strength, tolerance, iterations, steps, step_tolerance
    )
    return _build("mmce", settings, lambda n_classes: [[c] for c in range(n_classes)], _totals)


class _Settings(NamedTuple):
    worker_penalty: float | None
    item_penalty: float | None
    strength: float
    tolerance: float
    iterations: int
    steps: int
    step_tolerance: float

    def check(self, method: str) -> None:
        for name in ("worker_penalty", "item_penalty"):
            if (penalty := getattr(self, name)) is not None:
                check_at_least(method, **{name: (penalty, 1e-9)})
        check_at_least(method, strength=(self.strength, 1e-9), tolerance=(self.tolerance, 0))
        check_at_least(method, iterations=(self.iterations, 1), steps=(self.steps, 1))
        check_at_least(method, step_tolerance=(self.step_tolerance, 0))


def _build(
    name: str, settings: _Settings, group: Callable[[int], list[list[int]]], weigh: Weigh
) -> Aggregator:
    """Make an aggregator of groups of truths, and of how their labels are added up."""
    settings.check(name)

    def fit(chunk: Chunk, seed: int) -> Fit:
        labels = incidence_of(chunk)
        N, P, C = labels.n_items, labels.n_workers, labels.n_classes
        # α = γ C²;  β = α · (labels per worker) / (labels per item), and that is α N / P
        alpha = settings.worker_penalty or settings.strength * C**2
        beta = settings.item_penalty or alpha * (N / P if P else 1)
        groups = group(C)
        logits = [Logits(np.zeros((len(each), C, P)), np.zeros((C, N))) for each in groups]
        probs = chunk.vote_shares
        losses: list[float] = []
        for _ in range(settings.iterations if chunk.n_labels else 0):
            shares = _shares(probs, labels)
            logits = [
                _descend(start, [shares[c] for c in each], labels, alpha, beta, settings, weigh)
                for start, each in zip(logits, groups, strict=True)
            ]
            # q_i(c) ∝ Π_k p(l_ik | c), after which F = penalties − Σ_i log Σ_c Π_k p(l_ik | c)
            before, (probs, log_evidence) = probs, log_normalise(_log_likelihood(logits, labels))
            penalty = sum(
                alpha * np.square(each.worker).sum() + beta * np.square(each.item).sum()
                for each in logits
            )
            losses.append(float(penalty / 2 - log_evidence.sum()))
            if np.abs(probs - before).max() <= settings.tolerance:
                break
        workers = np.concatenate([each.worker for each in logits]) if C else np.zeros((0, 0, P))
        return Fit(
            {"worker_logits": workers.transpose(2, 0, 1)},
            {
                "class_prior": np.full(C, 1 / max(C, 1)),  # the method has no other
                "crowd": mean_logits(workers, labels),
                "item_penalty": np.array(beta),
            },
            losses,
        )

    def log_scores(rows: Leaves, shared: Leaves, chunk: Chunk) -> Floats:
        """Find the items' τ and q as in a fit, but with the workers' σ held, (N, C).

        Every item is done when it has settled itself, so nothing depends on the items beside it.
        """
        beta = float(shared["item_penalty"])
        labels, probs = incidence_of(chunk), chunk.vote_shares
        N, C = labels.n_items, labels.n_classes
        groups = group(C)
        workers = np.ascontiguousarray(rows["worker_logits"].transpose(1, 2, 0))
        logits = [Logits(workers[each], np.zeros((C, N))) for each in groups]
        scores, open_items = np.zeros((N, C)), np.arange(N)
        for _ in range(settings.iterations):
            shares = _shares(probs, labels)
            logits = [
                _descend_items(at, [shares[c] for c in each], labels, beta, settings.steps, weigh)
                for at, each in zip(logits, groups, strict=True)
            ]
            found = _log_likelihood(logits, labels)
            scores[open_items] = found
            before, (probs, _) = probs, log_normalise(found)
            moving = np.abs(probs - before).max(axis=1, initial=0) > settings.tolerance
            if not moving.any():
                break
            open_items, probs = open_items[moving], probs[moving]
            labels = take_items(labels, moving)
            logits = [each._replace(item=each.item[:, moving]) for each in logits]
        return scores

    return offline(
        name,
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
    shares: list[Floats],
    labels: Incidence,
    alpha: float,
    beta: float,
    settings: _Settings,
    weigh: Weigh,
) -> Logits:
    """Minimise F over the σ and τ of a group of truths, given q.

    A label depends on two rows, which counts the curvature of its softmax, ½, twice:
    ∇² ≼ Σ_i q_i(c) + α for row c of a worker, and likewise with β for an item.
    """
    observed = _observed(shares, labels)
    weight = weigh(shares, observed, labels)
    bound = Logits(weight.worker + alpha, weight.item + beta)

    def gradient(at: Logits) -> Logits:
        expected = _expected(at, shares, labels)
        return Logits(
            # ∂F/∂σ_k[c, z] = Σ_i q_i(c) (p(z | c) − 1[l_ik = z]) + α σ_k[c, z]
            expected.worker - observed.worker + alpha * at.worker,
            # ∂F/∂τ_i[z] = Σ_k Σ_c q_i(c) (p(z | c) − 1[l_ik = z]) + β τ_i[z]
            expected.item - observed.item + beta * at.item,
        )

    return descend(start, gradient, bound, settings.steps, settings.step_tolerance)


def _descend_items(
    logits: Logits,
    shares: list[Floats],
    labels: Incidence,
    beta: float,
    steps: int,
    weigh: Weigh,
) -> Logits:
    """Minimise F over the τ of a group of truths alone, given q; every item for itself."""
    observed = _observed(shares, labels)
    bound = weigh(shares, observed, labels).item / 2 + beta  # ∇² ≼ ½ Σ_k Σ_c q_i(c) + β
    for _ in range(steps):
        grad = _expected(logits, shares, labels).item - observed.item + beta * logits.item
        logits = logits._replace(item=logits.item - grad / bound)
    return logits


# Σ q_i(c) over the labels of each worker, and of each item: the same but for the last bit, which
# saved models keep.


def _sums(shares: list[Floats], observed: Logits, labels: Incidence) -> Logits:
    return Logits(observed.worker.sum(axis=1, keepdims=True), observed.item.sum(axis=0))


def _totals(shares: list[Floats], observed: Logits, labels: Incidence) -> Logits:
    workers = [labels.total(labels.worker, share, labels.n_workers) for share in shares]
    items = labels.total(labels.item, reduce(np.add, shares), labels.n_items)
    return Logits(np.array(workers)[:, None], items)


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


def _log_likelihood(logits: list[Logits], labels: Incidence) -> Floats:
    """Σ_k log p(l_ik | c), (N, C)."""
    scores = np.zeros((labels.n_items, labels.n_classes))
    pairs = [(worker, group.item) for group in logits for worker in group.worker]
    for c, (worker, item) in enumerate(pairs):
        said = label_log_probs(worker, item, labels)[labels.label, np.arange(len(labels.label))]
        scores[:, c] = labels.total(labels.item, said, labels.n_items)
    return scores
