"""Juries: for how many independent judges a panel counts, and which judges err together.

With the mean correlation ρ of their errors, the mean of k judges varies as that of
k / (1 + (k − 1) ρ) independent ones (the design effect of L. Kish, Survey Sampling, 1965).
Arrays in, arrays out; `learn/jury.py` makes the report of them. `docs/judges.md` explains it.
"""

from collections.abc import Callable, Hashable, Sequence
from math import sqrt
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.learn.analysis.intervals import wilson

__all__ = [
    "MIN_SHARED_TASKS",
    "Correlations",
    "OrderEffect",
    "effective_number",
    "error_correlations",
    "found_groups",
    "order_effect",
]

MIN_SHARED_TASKS = 5
"""Tasks two judges must share, as two workers for collusion: fewer tell next to nothing."""

JACKKNIFE_PARTS = 50
"""Parts of the tasks that are left out in turn for intervals; of fewer tasks, each is a part."""

MIN_EXCESS_CORRELATION = 0.2
"""By how much the errors within a group that was found must correlate above the usual pair."""

FALSE_DISCOVERY_RATE = 0.01
"""The share of pairs held for dependent by chance (Y. Benjamini, Y. Hochberg, JRSS B 57, 1995)."""

VOTES_AT_ONCE = 4096
"""Answers to tasks that are counted by one matrix product: 10 MB for 300 judges."""

TINY = 1e-12


Columns = NDArray[np.intp]  # of judges
Groups = Sequence[Columns]


class Correlations(NamedTuple):
    """How the errors of judges go together, (…, G) for all judges first and then each group."""

    pairs: Floats  # (K, K); NaN on the diagonal and where two share too few tasks or never differ
    shared: Floats  # (K, K) tasks both have labelled
    groups: Groups  # without that of all judges
    within: Floats  # (G,) mean correlation of two judges of the group
    within_low: Floats
    within_high: Floats
    excess: Floats  # (G,) that, less the mean correlation with a judge outside; NaN without any
    excess_low: Floats
    excess_high: Floats


def effective_number(n_judges: int, correlation: float) -> float:
    """For how many judges with independent errors this many count; at most for themselves.

    Examples
    --------
    >>> [effective_number(12, rho) for rho in (0.0, 0.5, 1.0)]
    [12.0, 1.8461538461538463, 1.0]
    """
    return n_judges / max(1 + (n_judges - 1) * correlation, 1.0)


def error_correlations(
    errors: Floats,
    groups: Groups | Callable[[Floats, Floats], Groups] = (),
    level: float = 0.95,
    said: NDArray[np.int32] | None = None,
) -> Correlations:
    """Correlate the errors of every two judges, and average them over all and over groups.

    Without the truth, how often two are wrong together is expected under the consensus. That is
    right on average if its probabilities are, whether errors are independent or not: P(both wrong)
    is the mean over tasks of P(both wrong | all labels).

    Parameters
    ----------
    errors
        (N, K): 1 where the judge is wrong, 0 where right, between them for a probability given all
        labels; NaN where they have not labelled the task.
    groups
        Columns of judges that are reported together, each in one group at most; or a function that
        finds them in `pairs` and `shared`.
    level
        Of the intervals, by the jackknife over tasks.
    said
        (N, K) labels; for probabilities, which alone do not tell who is wrong together.
    """
    n_tasks, n_judges = errors.shape
    total, is_expected = _sums(errors, said), said is not None
    pairs = np.full((n_judges, n_judges), np.nan)
    one, two = np.nonzero(np.triu(total[0] >= MIN_SHARED_TASKS, 1))
    found = _correlate(*_of_pairs(total, one, two, is_expected))
    pairs[one, two] = pairs[two, one] = found
    if callable(groups):
        groups = groups(pairs, total[0])
    group = np.full(n_judges, len(groups), np.intp)
    for g, members in enumerate(groups):
        group[members] = g
    usable = np.triu(np.isfinite(pairs))
    sums = _group_sums(found, group[one], group[two], len(groups))
    point = _means(sums)
    parts = [slice(n, None, JACKKNIFE_PARTS) for n in range(min(JACKKNIFE_PARTS, n_tasks))]
    without = np.full((len(parts), *point.shape), np.nan)  # (P, 2, G)
    for p, part in enumerate(parts):
        left_out = _sums(errors[part], None if said is None else said[part])
        one, two = np.nonzero(usable & (left_out[0] > 0))  # the other pairs stay as they are
        terms = (_of_pairs(some, one, two, is_expected) for some in (total, left_out))
        rest = _correlate(*(a - b for a, b in zip(*terms, strict=True)))
        sides = group[one], group[two], len(groups)
        change = _group_sums(rest, *sides) - _group_sums(pairs[one, two], *sides)
        without[p] = _means(sums + change)
    reach = np.full(point.shape, np.nan)
    if len(parts) > 1:
        # (P − 1) / P Σ_p (θ_p − θ̄)²
        spread = (without - without.mean(axis=0)) ** 2
        z = NormalDist().inv_cdf((1 + level) / 2)
        reach = z * np.sqrt((len(parts) - 1) * spread.mean(axis=0))
    low, high = np.maximum(point - reach, -1), point + reach
    return Correlations(
        pairs,
        total[0],
        groups,
        point[0],
        low[0],
        np.minimum(high[0], 1),
        point[1],
        low[1],
        high[1],
    )


def found_groups(pairs: Floats, shared: Floats) -> list[NDArray[np.intp]]:
    """Judges whose errors correlate clearly more than those of the usual pair, by column.

    Pairs that are not significantly above the median pair count as that; judges are then joined
    by average linkage as long as two groups correlate by `MIN_EXCESS_CORRELATION` more.
    """
    one, two = np.nonzero(np.triu(np.isfinite(pairs), 1))
    if len(one) < 2:
        return []
    found = pairs[one, two]
    usual = float(np.median(found))
    # atanh r is about normal with variance 1 / (n − 3) (R. A. Fisher, 1921)
    reach = np.arctanh(np.clip(found, -0.999, 0.999)) - np.arctanh(min(usual, 0.999))
    score = reach * np.sqrt(np.maximum(shared[one, two] - 3, 1))
    # Of the others, chance alone exceeds the rate, which is the bound of the last rank.
    likely = np.flatnonzero(score >= -NormalDist().inv_cdf(FALSE_DISCOVERY_RATE) - TINY)
    chance = np.array([NormalDist().cdf(-value) for value in score[likely].tolist()])
    order = np.argsort(chance, kind="stable")
    bound = FALSE_DISCOVERY_RATE * np.arange(1, len(order) + 1) / len(found)
    passed = np.flatnonzero(chance[order] <= bound)
    chosen = likely[order[: passed[-1] + 1]] if len(passed) else order[:0]
    excess = np.zeros(pairs.shape)
    excess[one[chosen], two[chosen]] = found[chosen] - usual
    excess += excess.T
    return _average_linkage(excess)


class OrderEffect(NamedTuple):
    """How verdicts of one judge differ between two orders of the answers."""

    tasks: int  # that it judged in both orders
    flips: float  # the share of them with another verdict
    flips_low: float
    flips_high: float
    label: int  # whose share is compared
    shift: float  # how much more often it is said in the first order, as a share of the tasks
    low: float
    high: float


def order_effect(
    first: NDArray[np.intp],
    second: NDArray[np.intp],
    n_classes: int,
    label: int | None = None,
    level: float = 0.95,
) -> OrderEffect | None:
    """Compare the verdicts on the same tasks in two orders, (T,) each; None without tasks.

    Parameters
    ----------
    label
        The class whose share is compared; unless given, the one whose share differs most.
    """
    n = len(first)
    if not n:
        return None
    if label is None:
        counts = [np.bincount(said, minlength=n_classes) for said in (first, second)]
        label = int(np.argmax(np.abs(counts[0] - counts[1])))
    differs = float((first != second).mean())
    change = (first == label).astype(np.float64) - (second == label)
    shift = float(change.mean())
    # One task more each way, so that verdicts without a flip are not held for certain.
    variance = (float((change**2).sum()) + 2) / (n + 2) - (change.sum() / (n + 2)) ** 2
    reach = NormalDist().inv_cdf((1 + level) / 2) * sqrt(variance / n)
    bounds = max(shift - reach, -1.0), min(shift + reach, 1.0)
    return OrderEffect(n, differs, *wilson(differs, n, level), label, shift, *bounds)


def first_shown(order: str, other: str, classes: Sequence[Hashable]) -> int | None:
    """The class that `order` shows first, where two orders spell two options, as AB and BA do.

    The options in the order of the alphabet are the classes in theirs: in AB, A or 1 or "left"
    beside "right" is shown first. None where the orders say something else.
    """
    if len(classes) != 2 or len(order) != 2 or order[0] == order[1] or other != order[::-1]:
        return None
    ranked = sorted(range(2), key=lambda c: str(classes[c]))
    return ranked[sorted(order).index(order[0])]


def _sums(errors: Floats, said: NDArray[np.int32] | None) -> tuple[Floats, Floats, Floats]:
    """Over the tasks two judges share: their number, errors of the first and of both, (K, K) each.

    Of labels a and b with the probabilities e of being wrong, both are wrong with
    P(z ≠ a, z ≠ b) = e_a + e_b − 1 + (1 − e_a) [a = b]: then the last term alone is summed.
    """
    seen = np.isfinite(errors)
    x, m = np.where(seen, errors, 0.0), seen.astype(np.float64)
    n, sums = m.T @ m, x.T @ m
    if said is None:
        return n, sums, x.T @ x
    both = np.zeros(n.shape)
    task, judge = np.nonzero(seen)
    votes = task * (int(said.max(initial=0)) + 1) + said[task, judge]  # the same for [a = b]
    votes = np.unique(votes, return_inverse=True)[1]
    order = np.argsort(votes, kind="stable")
    votes, task, judge = votes[order], task[order], judge[order]
    starts = np.searchsorted(votes, np.arange(0, votes.max(initial=-1) + 1, VOTES_AT_ONCE))
    for some in map(slice, starts, [*starts[1:], len(votes)]):
        row = votes[some] - votes[some.start]
        who = np.zeros((row.max() + 1, len(n)))
        right = who.copy()
        who[row, judge[some]] = 1.0
        right[row, judge[some]] = 1 - errors[task[some], judge[some]]
        both += right.T @ who
    return n, sums, both


def _of_pairs(
    sums: tuple[Floats, Floats, Floats], one: Columns, two: Columns, is_expected: bool
) -> tuple[Floats, Floats, Floats, Floats]:
    """Of pairs: tasks they share, errors of the first, of the second, of both, (P,) each."""
    n, first, second = sums[0][one, two], sums[1][one, two], sums[1][two, one]
    both = sums[2][one, two]
    return n, first, second, first + second - n + both if is_expected else both


def _correlate(n: Floats, first: Floats, second: Floats, both: Floats) -> Floats:
    """Pearson's correlation of pairs, (P,); an error is 0 or 1, so that E x² = E x."""
    with np.errstate(invalid="ignore", divide="ignore"):  # 0 / 0: nothing is shared
        variance, other = first / n - (first / n) ** 2, second / n - (second / n) ** 2
        found = (both / n - first * second / n**2) / np.sqrt(variance * other)
    return np.where((n > 1) & (np.minimum(variance, other) > TINY), found, np.nan)


def _group_sums(pairs: Floats, one: Columns, two: Columns, n_groups: int) -> Floats:
    """Sums and numbers of known pairs (P,), from the groups of both sides; (2, 2, 1 + G).

    Those of all pairs and of each group, and those with one side in the group. A side in no group
    has the number `n_groups`.
    """
    known, within = np.isfinite(pairs), one == two
    sums = np.zeros((2, 2, 1 + n_groups))
    for n, values in enumerate((np.where(known, pairs, 0.0), known.astype(np.float64))):
        inside, across = np.where(within, values, 0.0), np.where(within, 0.0, values)
        sums[n, 0, 0] = values.sum()
        sums[n, 0, 1:] = np.bincount(one, inside, n_groups + 1)[:-1]
        sums[n, 1, 1:] = sum(np.bincount(side, across, n_groups + 1)[:-1] for side in (one, two))
    return sums


def _means(sums: Floats) -> Floats:
    """The mean of all pairs and within each group, and that less the mean across, (2, 1 + G)."""
    empty = np.full(sums[0].shape, np.nan)
    within, across = np.divide(sums[0], sums[1], out=empty, where=sums[1] > 0)
    return np.stack([within, within - across])


def _average_linkage(excess: Floats) -> list[Columns]:
    """Join the two groups with the largest mean excess until it is too small."""
    groups = [[k] for k in range(len(excess))]
    mean = excess.copy()
    np.fill_diagonal(mean, -np.inf)
    while True:
        one, two = sorted(divmod(int(mean.argmax()), len(groups)))
        if mean[one, two] < MIN_EXCESS_CORRELATION:
            break
        n_one, n_two = len(groups[one]), len(groups[two])
        joined = (n_one * mean[one] + n_two * mean[two]) / (n_one + n_two)
        joined[one] = -np.inf
        mean[one], mean[:, one] = joined, joined
        mean[two], mean[:, two] = -np.inf, -np.inf  # it has no row of its own any longer
        groups[one] += groups[two]
        groups[two] = []
    return [np.array(sorted(group), np.intp) for group in groups if len(group) > 1]
