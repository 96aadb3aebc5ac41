"""How well workers agree with one another, without truth and without a model.

Krippendorff's alpha for nominal data and its share for each class, and Cohen's kappa of two
workers, from sparse labels: every item may have any number of labels, and items with a single
label say nothing. NumPy only.

K. Krippendorff, Content Analysis: An Introduction to Its Methodology, 2nd edition, 2004,
chapter 11. J. Cohen, A coefficient of agreement for nominal scales, Educational and
Psychological Measurement 20, 1960.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelquorum._types import Floats
from labelquorum.learn.analysis.intervals import wilson


class ClassAgreement(NamedTuple):
    """Agreement on each class; NaN where a class has no label with a partner."""

    agreement: Floats  # (C,)
    alpha: Floats  # (C,)


def krippendorff_alpha(
    item: ArrayLike, label: ArrayLike, n_classes: int, weight: ArrayLike | None = None
) -> float:
    """Give Krippendorff's alpha of nominal labels: 1 is full agreement, 0 is chance.

    alpha = 1 - observed disagreement / expected disagreement. The observed one is the share of
    pairs of labels on the same item that differ, every item counting as much as it has labels;
    the expected one is the share among all pairs of labels whatever their items.

    Parameters
    ----------
    item
        (L,) item of each label, integers ≥ 0.
    label
        (L,) integers from 0 to `n_classes` - 1.
    weight
        (L,) weights ≥ 0. A pair counts the product of its weights, and a label never pairs
        with itself, so weight 0 is as good as absent and a common factor changes nothing.

    Returns
    -------
    alpha
        NaN when no item has two labels or a single class is in use: nothing to compare.

    Examples
    --------
    >>> round(krippendorff_alpha([0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 0, 1], n_classes=2), 3)
    0.444
    """
    pairs = _count_pairs(item, label, n_classes, weight)
    differing = float(np.sum(pairs.met - pairs.agreeing))
    chance = float(np.sum(pairs.chance_differing))
    return 1 - differing / chance if chance > 0 else float("nan")


def class_agreement(
    item: ArrayLike, label: ArrayLike, n_classes: int, weight: ArrayLike | None = None
) -> ClassAgreement:
    """Give the agreement on each class, plain and corrected for chance.

    `agreement[c]` answers: when one label of an item is c, how often is another label of that
    item c too? Every label c counts once, however many others its item has. `alpha[c]` is
    Krippendorff's alpha of the question "c or not?". For labels without weights it is
    (agreement - expected) / (1 - expected), where expected = (n_c - 1) / (n - 1) is the
    agreement of labels dealt at random over the items.

    Parameters are those of `krippendorff_alpha`.
    """
    pairs = _count_pairs(item, label, n_classes, weight)
    with np.errstate(invalid="ignore", divide="ignore"):  # 0 / 0: a class without pairs
        agreement = np.where(pairs.met > 0, pairs.agreeing / pairs.met, np.nan)
        ratio = (pairs.met - pairs.agreeing) / pairs.chance_differing
    return ClassAgreement(agreement, np.where(pairs.chance_differing > 0, 1 - ratio, np.nan))


class PairwiseAgreement(NamedTuple):
    """Agreement of each worker with each other one, (K, K) each and symmetric."""

    shared: Floats  # items both have labelled; on the diagonal, those the worker has
    agreement: Floats  # the share of them with the same label
    kappa: Floats  # beyond chance; NaN on the diagonal, and where nothing can disagree
    low: Floats
    high: Floats


def cohen_kappa(
    item: ArrayLike,
    worker: ArrayLike,
    label: ArrayLike,
    n_workers: int,
    n_classes: int,
    weight: ArrayLike | None = None,
    level: float = 0.95,
) -> PairwiseAgreement:
    """Give Cohen's kappa of all pairs of workers, with intervals.

    kappa = (observed - expected) / (1 - expected): the share of shared items on which two said the
    same, beside the share that would be by chance if each said their labels of those items at
    random. A worker with several labels on an item says each by its share of their weight. The
    bounds are Wilson's of the observed share, on the scale of kappa with `expected` as it is.
    It takes as many steps as there are labels times workers at most.

    Parameters
    ----------
    item, worker, label
        (L,) integers ≥ 0, below `n_workers` and `n_classes`.
    weight
        (L,) weights ≥ 0; one each unless given.
    level
        The probability with which kappa lies between `low` and `high`.

    Examples
    --------
    >>> found = cohen_kappa([0, 0, 1, 1, 2, 2, 3, 3], [0, 1] * 4, [0, 0, 0, 0, 1, 1, 0, 1], 2, 2)
    >>> float(found.shared[0, 1]), float(found.agreement[0, 1]), float(found.kappa[0, 1])
    (4.0, 0.75, 0.5)
    """
    items, workers, labels = (np.asarray(a, np.int64).ravel() for a in (item, worker, label))
    weights = np.ones(items.size) if weight is None else np.asarray(weight, np.float64)
    rows = np.flatnonzero(weights > 0)
    rows = rows[np.lexsort((workers[rows], items[rows]))]
    items, workers, labels, weights = items[rows], workers[rows], labels[rows], weights[rows]
    pair = np.unique(items * max(n_workers, 1) + workers, return_inverse=True)[1]
    share = weights / _sums(weights, pair)[pair]
    edges = np.flatnonzero(np.r_[True, items[1:] != items[:-1], True]) if len(items) else items
    of_item = np.repeat(np.arange(max(len(edges) - 1, 0)), np.diff(edges))
    shared, same, chance = np.zeros((3, n_workers, n_workers))
    for k in range(n_workers):
        # every label of k beside every label of the same item
        own = np.flatnonzero(workers == k)
        start, length = edges[of_item[own]], np.diff(edges)[of_item[own]]
        one = np.repeat(own, length)
        two = np.repeat(start - np.cumsum(length) + length, length) + np.arange(length.sum())
        other, both = workers[two], share[one] * share[two]
        shared[k] = _sums(both, other, n_workers)
        same[k] = _sums(both * (labels[one] == labels[two]), other, n_workers)
        mine, theirs = (
            _sums(both, other * n_classes + said, n_workers * n_classes).reshape(n_workers, -1)
            for said in (labels[one], labels[two])
        )
        chance[k] = (mine * theirs).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):  # 0 / 0: no item is shared
        observed, expected = same / shared, chance / shared**2
    low, high = np.full((2, n_workers, n_workers), np.nan)
    for k, other in zip(*np.nonzero(shared), strict=True):
        bounds = wilson(float(np.clip(observed[k, other], 0, 1)), float(shared[k, other]), level)
        low[k, other], high[k, other] = bounds
    defined = (shared > 0) & (expected < 1 - 1e-12) & ~np.eye(n_workers, dtype=bool)
    with np.errstate(invalid="ignore", divide="ignore"):
        kappa, low, high = (
            np.where(defined, (value - expected) / (1 - expected), np.nan)
            for value in (observed, low, high)
        )
    return PairwiseAgreement(shared, observed, kappa, low, high)


class _Pairs(NamedTuple):
    """Pairs of labels by the class of the first, scaled so that `met` sums to all weight.

    In the book's terms, without weights: `met` = n_c, `agreeing` = o_cc,
    `chance_differing` = n_c (n - n_c) / (n - 1).
    """

    met: Floats  # (C,) pairs on the same item
    agreeing: Floats  # (C,) those with both labels c
    chance_differing: Floats  # (C,) pairs expected to differ were labels dealt at random


def _count_pairs(
    item: ArrayLike, label: ArrayLike, n_classes: int, weight: ArrayLike | None
) -> _Pairs:
    items = np.unique(np.asarray(item, dtype=np.int64), return_inverse=True)[1]
    labels = np.asarray(label, dtype=np.int64)
    weights = np.ones(labels.size) if weight is None else np.asarray(weight, dtype=np.float64)

    # m_u, and what a label's pairing with itself would add to an item's pairs
    item_weight = _sums(weights, items)
    item_pairs = item_weight**2 - _sums(weights**2, items)
    paired = (weights > 0) & (_sums(weights > 0, items) > 1)[items]
    items, labels, weights = items[paired], labels[paired], weights[paired]

    cells, cell = np.unique(items * n_classes + labels, return_inverse=True)
    of_item, of_class = np.divmod(cells, n_classes)
    cell_weight = _sums(weights, cell)
    cell_self = _sums(weights**2, cell)
    # o_ck = sum over items u of (pairs c-k in u) / (m_u - 1): an item's pairs add up to m_u
    scale = item_weight[of_item] / item_pairs[of_item]
    met = scale * (cell_weight * item_weight[of_item] - cell_self)
    agreeing = scale * (cell_weight**2 - cell_self)

    class_weight = _sums(cell_weight, of_class, n_classes)
    total = class_weight.sum()
    all_pairs = total**2 - cell_self.sum()
    dealt = class_weight * (total - class_weight)  # 0 for all, where there is no pair
    return _Pairs(
        met=_sums(met, of_class, n_classes),
        agreeing=_sums(agreeing, of_class, n_classes),
        chance_differing=dealt * total / all_pairs if dealt.any() else dealt,
    )


def _sums(values: NDArray[Any], index: NDArray[np.int64], size: int = 0) -> Floats:
    """Add up the values of each index; at least `size` sums."""
    return np.bincount(index, values, minlength=size).astype(np.float64)
