"""What the two minimax entropy methods share: multipliers of workers and items, and their descent.

`baselines/minimax_entropy.py` has a vector for each item, `baselines/mmce.py` a matrix.
"""

from collections.abc import Callable
from functools import reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum.learn.offline import Floats, Incidence, Leaves, incidence

__all__ = ["Logits", "confusion", "descend", "label_log_probs", "mean_logits", "take_items"]


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
