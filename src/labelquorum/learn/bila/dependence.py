"""Dependence: how far labels of one item depend on each other, estimated from labels alone.

A worker model takes the labels of an item for independent, given the truth. Where they are not
(hard items, clear items, copied answers), its probabilities are too close to 0 and 1. Two
statistics show it, and both have mean 0 or less if the model is right:

- ρ̂, the correlation of residuals. With m = P(worker j says c | truth c), r_j = 1[l_j = c] − m has
  mean 0 and variance m (1 − m) on items of class c, and two of one item are uncorrelated.
- u, what is gained by supposing that a fifth of the items are clear, so that everybody errs less
  on them: a mean log-likelihood ratio, which is below 0 for a model that is right.

Seven sums per class keep them, and the evidence log p(l), up to date. Both look at workers, not at
votes: what a worker says of an item counts once, and pairs are of different workers. How far
several votes of one worker on one item go together is a statistic of its own, ρ̂_w, of three more
sums, kept once there are such votes. The formulas are in `docs/worker-models.md`.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelquorum.learn.bila.minibatch import Leaf, array_namespace, segment_sum

N_SUMS, N_VOTE_SUMS = 7, 3
"""The rows of `sums`, and those beyond where workers have several votes on an item."""

CLARITY, CLEAR_SHARE = 3.0, 0.2
"""On a clear item labels follow m³, normalised; the share of such items."""

RHO_HALF, GAIN_HALF = 0.04, 0.005
"""The ρ̂, and the u in nats a label, at which n labels are worth √n: with the two above chosen on
the development sets (`docs/accuracy.md`)."""

RHO_OF_CLEAR, STANDARD_ERRORS = 0.01, 0.5
"""The ρ̂, less half a standard error, from which on u counts in full. Where items are clear or hard
for all, residuals of an item go together; a u above 0 without that is taken for workers who
differ more than is known yet. Chosen as `docs/trust.md` says."""

PER_CLASS = 0.5
"""How far ρ̂ and u count for more with many classes, at most: residuals tell whether workers err
together, and not whether they then say the same. With two classes these are one."""

SHIFT, SHIFT_NOISE, PER_SHIFT = 0.09, 0.5, 10.0
"""The share of tasks that a model may move between classes, more by so much / items, and how the
temperature rises beyond it: these and the one above chosen as `docs/doubt.md` says."""


def sums(
    item: Leaf,
    label: Leaf,
    weight: Leaf,
    right: Leaf,
    class_probs: Leaf,
    gain: Leaf,
    log_evidence: Leaf,
    worker_share: Leaf | None = None,
    first_vote: Leaf | None = None,
) -> Leaf:
    """What a chunk adds to the sums behind both signs and to the evidence, (7, C) or (10, C).

    Parameters
    ----------
    item, label, weight
        Of the labels, (B,) each.
    right
        P(worker says c | truth c) for the worker of each label, (B, C).
    class_probs
        q, 0 where an item does not count, (M, C).
    gain
        `gain_of_clear`, (M,).
    log_evidence
        log p(l_i), (M,).
    worker_share, first_vote
        As in `CountedBatch`.
    """
    n_items, n_classes = class_probs.shape
    xp = array_namespace(right)
    surprise = (label[:, None] == np.arange(n_classes)) - right
    share = (weight if worker_share is None else worker_share)[:, None]
    residual, spread = surprise * share, _deviation(right) * share
    squared = residual**2, spread**2, share**2
    if first_vote is not None:  # what a worker says of an item, in one row
        said = _sum_by_worker(xp.concatenate([residual, spread, share], axis=1), first_vote)
        one, two, three = xp.split(said**2, [n_classes, 2 * n_classes], axis=1)
        squared = one, two, three
    columns = [residual, squared[0], spread, squared[1], share, squared[2]]
    by_item = segment_sum(xp.concatenate(columns, axis=1), item, n_items, is_sorted=True)
    ends = np.cumsum([column.shape[1] for column in columns])[:-1]
    residual, residual_2, spread, spread_2, labels, labels_2 = xp.split(by_item, ends, axis=1)
    # Σ_i q_i(c) { Σ_{j ≠ j'} r_j r_j', Σ_{j ≠ j'} √(v_j v_j'), Σ_j r_j, n_i, n_i (n_i − 1), g_i,
    #              log p(l_i) }
    pairs = residual**2 - residual_2, spread**2 - spread_2, residual, labels, labels**2 - labels_2
    parts = (*pairs, gain[:, None], log_evidence[:, None])
    if first_vote is not None:
        votes = _vote_pairs(surprise, right, weight[:, None], item, first_vote, n_items)
        parts = (*parts, *votes)
    return xp.stack([(class_probs * part).sum(axis=0) for part in parts])


def _vote_pairs(
    surprise: Leaf, right: Leaf, weight: Leaf, item: Leaf, first_vote: Leaf, n_items: int
) -> list[Leaf]:
    """Σ_k Σ_{v ≠ v'} { r_v r_v', √(v_v v_v'), 1 } over votes of one worker, (M, C) or (M, 1)."""
    n_classes = surprise.shape[1]
    xp = array_namespace(right)
    columns = [surprise * weight, _deviation(right) * weight, weight]
    each = xp.concatenate(columns, axis=1)
    # The squares of a worker's own sums, less those of their votes.
    pairs = _sum_by_worker(each, first_vote) ** 2 - _sum_by_worker(each**2, first_vote)
    by_item = segment_sum(pairs, item, n_items, is_sorted=True)
    parts: list[Leaf] = xp.split(by_item, [n_classes, 2 * n_classes], axis=1)
    return parts


def _sum_by_worker(values: Leaf, first_vote: Leaf) -> Leaf:
    """Add up rows of one worker on one item, in the first of these rows, (B, …)."""
    return segment_sum(values, first_vote, len(values), is_sorted=True)


def gain_of_clear(log_scores: Leaf, clear_log_scores: Leaf) -> Leaf:
    """g_i, what an item gains by the supposition that a fifth of all are clear, in nats, (M,)."""
    # log(0.8 + 0.2 · p(l_i | clear) / p(l_i))
    ratio = log_sum_exp(clear_log_scores) - log_sum_exp(log_scores)
    xp = array_namespace(ratio)
    return xp.logaddexp(np.log(1 - CLEAR_SHARE), np.log(CLEAR_SHARE) + ratio)


def log_sum_exp(log_scores: Leaf) -> Leaf:
    """Log Σ_c e^s of scores (M, C), (M,)."""
    xp = array_namespace(log_scores)
    highest = log_scores.max(axis=1)
    return highest + xp.log(xp.exp(log_scores - highest[:, None]).sum(axis=1))


def _deviation(right: Leaf) -> Leaf:
    """√v of a label that is right with this probability."""
    return array_namespace(right).sqrt(right * (1 - right))


def correlation(sums: NDArray[np.float64]) -> float:
    """ρ̂, how far residuals of one item go together, by `sums`."""
    products, spreads, residuals, labels, pairs = sums[:5]
    if pairs.sum() < 1:  # where items have one label each, all the rest is rounding
        return 0.0
    # The mean residual of a class is misfit of its rate, not dependence; it is taken off.
    mean = residuals / np.maximum(labels, 1e-12)
    # ρ̂ = (Σ r_j r_j' − Σ_c pairs_c · mean_c²) / Σ √(v_j v_j')
    return float((products - pairs * mean**2).sum() / max(spreads.sum(), 1e-12))


def vote_correlation(sums: NDArray[np.float64]) -> float:
    """ρ̂_w, how far votes of one worker on one item go together, from 0 to 1."""
    if len(sums) < N_SUMS + N_VOTE_SUMS:
        return 0.0
    (products, spreads, pairs), mean = sums[N_SUMS:], sums[2] / np.maximum(sums[3], 1e-12)
    if pairs.sum() < 1:
        return 0.0
    excess = (products - pairs * mean**2).sum() / max(spreads.sum(), 1e-12)
    return float(np.clip(excess, 0, 1))


def clear_gain(sums: NDArray[np.float64]) -> float:
    """u, what a label gains by the supposition that some items are clear, by `sums`."""
    return float(sums[5].sum() / max(sums[3].sum(), 1e-12))


def is_contradicted(sums: NDArray[np.float64]) -> bool:
    """Whether labels of one item go together more than the model explains.

    A model that is right has ρ̂ of mean 0 and u below 0 in the mean, so their sum, each in units
    of its half-value, is below 0.
    """
    return correlation(sums) / RHO_HALF + clear_gain(sums) / GAIN_HALF >= 0


def evidence_gain(
    sums: NDArray[np.float64], other: NDArray[np.float64], n_parameters: float
) -> float:
    """How much better a model explains a label than another, in nats, by `sums` of both.

    Each of the parameters it has beyond the other's fits half a nat of noise.
    """
    # ( Σ_i log p(l_i) − Σ_i log p'(l_i) − d/2 ) / Σ_i n_i
    gain = sums[6].sum() - other[6].sum() - n_parameters / 2
    return float(gain / max(sums[3].sum(), 1e-12))


def exponent(sums: NDArray[np.float64]) -> float:
    """γ: n labels of an item are worth n^(1 − γ) independent ones."""
    rho, gain = max(correlation(sums), 0.0), max(clear_gain(sums), 0.0)
    # Of B pairs whose residuals are independent, ρ̂ has the standard error √(2 / B).
    surely = rho - STANDARD_ERRORS * float(np.sqrt(2 / max(sums[4].sum(), 1.0)))
    # γ = x / (1 + x),  x = (ρ̂ / 0.04 + w u / 0.005) (1 + (1 − 2 / C) / 2),
    # w = (ρ̂ − se / 2) / 0.01 between 0 and 1
    share = min(max(surely / RHO_OF_CLEAR, 0.0), 1.0)
    unseen = 1 + PER_CLASS * max(1 - 2 / sums.shape[1], 0.0)
    beyond: float = (rho / RHO_HALF + share * gain / GAIN_HALF) * unseen
    return beyond / (1 + beyond)


def class_shift_factor(
    label_shares: NDArray[np.float64], class_counts: NDArray[np.float64]
) -> float:
    """By what the temperature is multiplied because answers name other classes than labels do.

    Either workers lean to some labels, or the model took tasks of one class for another. Labels
    do not tell which.

    Parameters
    ----------
    label_shares, class_counts
        f and ν, (C,).
    """
    n_items = max(float(label_shares.sum()), 1e-12)
    # 1 + 10 (D − 0.09 − 0.5 / n)₊,  D = Σ_c |ν_c / Σ ν − f_c / Σ f| / 2
    named, inferred = label_shares / n_items, class_counts / max(class_counts.sum(), 1e-12)
    shift = float(np.abs(inferred - named).sum()) / 2
    return 1 + PER_SHIFT * max(shift - SHIFT - SHIFT_NOISE / n_items, 0.0)


def temperature(
    n_workers: NDArray[Any],
    n_labels: NDArray[Any],
    dependence: float | str,
    sums: NDArray[np.float64],
) -> NDArray[np.float64]:
    """By what an item's log scores are divided for dependence, (N,): 1 to n for n labels."""
    if dependence == "learned":
        many = np.maximum(n_workers, 1.0)
        by_workers = np.asarray(many ** exponent(sums))
        if within := vote_correlation(sums):
            # Kish's design effect of v votes per worker: 1 + ρ̂_w (v − 1)
            return np.asarray(by_workers * (1 + within * (np.maximum(n_labels / many, 1) - 1)))
        return by_workers
    # 1 + ρ (n − 1)
    return np.asarray(1 + float(dependence) * (np.maximum(n_labels, 1.0) - 1))
