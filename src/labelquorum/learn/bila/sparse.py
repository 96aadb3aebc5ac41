"""The engine of sparse counts: the hierarchical model with many classes, in NumPy and float64.

No matrix per worker is made: every sum over a worker's matrix is a product with the crowd's, the
same for all workers, and a few cells. Arrays have the workers first, (P, C). The worker model's
name, which other engines need, is given and not used.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.ingest.labels import MISSING
from labelquorum.learn.bila.dependence import CLARITY, gain_of_clear, log_sum_exp, sums
from labelquorum.learn.bila.hierarchical import (
    Recipe,
    class_prior,
    crowd_matrix,
    worker_weight,
)
from labelquorum.learn.bila.identification import expected_errors
from labelquorum.learn.bila.minibatch import CountedBatch
from labelquorum.learn.bila.reference import MAX_STEPS, STEP_TOLERANCE
from labelquorum.learn.bila.sparse_counts import (
    NUMBERS_PER_BLOCK,
    Indices,
    SparseCounts,
    added,
    count,
    expanded,
)
from labelquorum.learn.bila.worker_models import Fitted, Known, Settled


def fit(
    name: str, batch: CountedBatch, known: Known, recipe: Recipe, n_workers: Floats | None = None
) -> Fitted:
    """Solve a chunk by the hierarchical model together with all that was counted before."""
    n_items, n_classes = len(batch.gold), len(known.label_shares)
    theta, counts = known.theta, known.counts
    probs = np.zeros((n_items, n_classes), np.float32)  # as it is kept of open items
    moved, rounds, evidence = np.inf, 0, np.zeros(n_items)
    model: Any = None
    while rounds <= recipe.inner_steps and moved >= recipe.tolerance:
        # P' and G with N + ΔN, a θ step, π with f' and ν + Σ_i q_i
        pooled = _pooled(known, counts, batch, probs, recipe)
        theta = _step(theta, counts.margins, crowd_matrix(pooled, recipe), recipe)
        inferred = known.class_counts + batch.counted_item @ probs
        model = Settled(counts, theta, pooled, known.label_shares, inferred)
        says, moved = _Says(model, batch, recipe), 0.0
        for items, rows in _blocks(batch, n_classes):
            # q_i(c) ∝ π_c Π_k m_k[c, l_ik], or 1 at the truth where it is given
            scores = says.log_prior + _by_item(says.of(rows), batch.weight, batch, items, rows)
            evidence[items], scores = _reached(scores, batch.gold[items])
            now = np.exp(scores - evidence[items, None]).astype(np.float32)
            moved = max(moved, float(np.abs(now - probs[items]).max(initial=0)))
            probs[items] = now
        counts = added(known.counts, count(name, batch, probs, len(theta)))
        rounds += 1
    loss = -(evidence * batch.counted_item).sum() / max(batch.counted_item.sum(), 1)
    fitted = Fitted(
        counts=counts,
        theta=theta,
        class_probs=probs,
        pooled=_pooled(known, counts, batch, probs, recipe),
        unexplained=past_unexplained(name, batch, probs, model._replace(counts=counts), recipe),
        numbers=np.array([loss, rounds]),
        class_sums=batch.counted_item @ probs,
    )
    if n_workers is None:
        return fitted
    log_scores, _ = score(name, batch, fitted.settled(known), recipe)
    return fitted._replace(expected_errors=expected_errors(log_scores, n_workers))


def score(
    name: str, batch: CountedBatch, settled: Settled, recipe: Recipe
) -> tuple[Floats, NDArray[np.float32]]:
    """Return log scores of items, (N, C), and what labels say for classes, weighted, (B, C)."""
    n_classes = len(settled.label_shares)
    says = _Says(settled, batch, recipe)
    scores = np.empty((len(batch.gold), n_classes))
    evidence = np.empty((len(batch.item), n_classes), np.float32)
    for items, rows in _blocks(batch, n_classes):
        said = says.of(rows)
        evidence[rows] = said * batch.weight[rows, None]
        scores[items] = says.log_prior + _by_item(said, batch.weight, batch, items, rows)
    return scores, evidence


def past_unexplained(
    name: str, batch: CountedBatch, probs: NDArray[Any], settled: Settled, recipe: Recipe
) -> Floats:
    """Return what labels leave unexplained by the model as it is: `sums` of `dependence`."""
    says = _Says(settled, batch, recipe)
    log_prior, right, cubes = says.log_prior, says.right(), says.log_cubes()
    share, first_vote = batch.worker_share, batch.first_vote
    once = batch.weight if share is None else share
    total: Any = 0.0
    for items, rows in _blocks(batch, len(log_prior)):
        said, worker = says.of(rows), batch.worker[rows]
        said_once = log_prior + _by_item(said, once, batch, items, rows)
        # on a clear item Σ_k log( m_k[c, l]³ / Σ_z m_k[c, z]³ )
        clear = log_prior + _by_item(CLARITY * said - cubes[worker], once, batch, items, rows)
        gain = gain_of_clear(said_once, clear)
        scores = log_prior + _by_item(said, batch.weight, batch, items, rows)
        evidence, _ = _reached(scores, batch.gold[items])
        believed = probs[items]
        if share is not None and first_vote is None:
            # By shares a majority says less than it knows, as in `reference`.
            reached, said_once = _reached(said_once, batch.gold[items])
            believed = np.exp(said_once - reached[:, None])
        total = total + sums(
            batch.item[rows] - items.start,
            batch.label[rows],
            batch.counted_weight[rows],
            right[worker],
            believed * batch.counted_item[items, None],
            gain,
            evidence,
            None if share is None else share[rows],
            None if first_vote is None else first_vote[rows] - rows.start,
        )
    return np.asarray(total)


def _pooled(
    known: Known, counts: SparseCounts, batch: CountedBatch, probs: NDArray[Any], recipe: Recipe
) -> Floats:
    """P with this chunk; what was taken off it by a worker's remainder was not exactly there."""
    return np.maximum(known.others + pool_labels(known.counts, counts, batch, probs, recipe), 0)


def pool_labels(
    before: SparseCounts,
    counts: SparseCounts,
    batch: CountedBatch,
    probs: NDArray[Any],
    recipe: Recipe,
) -> Floats:
    """Return what workers give to P by counts before a batch, and exactly by its labels, (C, C).

    `counts` are those with the batch, by which workers are weighed.
    """
    weight = worker_weight(counts.margins[:, 0], recipe)
    said = np.zeros((counts.n_classes, counts.n_classes))  # [z, c]
    order = np.argsort(batch.label, kind="stable")
    size = max(NUMBERS_PER_BLOCK // counts.n_classes, 1)
    for start in range(0, len(order), size):
        some = order[start : start + size]
        label = batch.label[some]
        # Σ_b q_i(c) w_b κ/(κ + n_k[c]) over labels z
        rows = weight[batch.worker[some]]
        rows *= batch.counted_weight[some, None]
        rows *= probs[batch.item[some]]
        first = np.flatnonzero(np.diff(label, prepend=-1))
        said[label[first]] += np.add.reduceat(rows, first, axis=0)
    return _pool(before, weight) + said.T


def pool(name: str, counts: SparseCounts, recipe: Recipe) -> Floats:
    """Return what workers give to P, (C, C)."""
    return _pool(counts, worker_weight(counts.margins[:, 0], recipe))


def _pool(counts: SparseCounts, weight: Floats) -> Floats:
    """Return what workers with these weights (P, C) give to P, (C, C)."""
    n_classes, (rows, columns) = counts.n_classes, counts.remainder()
    # Σ_k N_k[c, z] κ/(κ + n_k[c]): of the remainder, of the cells, of the diagonal
    pooled = (weight * rows).T @ columns
    given = counts.values * weight[counts.worker, counts.truth]
    cell = counts.truth * n_classes + counts.label
    pooled += np.bincount(cell, given, n_classes**2).reshape(n_classes, n_classes)
    np.fill_diagonal(pooled, (weight * counts.margins[:, 2]).sum(axis=0))
    return np.asarray(pooled)


def solve_workers(name: str, counts: SparseCounts, pooled: Floats, recipe: Recipe) -> Floats:
    """Return θ of workers at the maximum of J, (P, D)."""
    crowd = crowd_matrix(pooled, recipe)
    theta = np.zeros((len(counts.margins), 1 + counts.n_classes))
    size = max(16 * NUMBERS_PER_BLOCK // counts.n_classes, 1)
    for start in range(0, len(theta), size):
        unsolved = np.arange(start, min(start + size, len(theta)))
        for _ in range(MAX_STEPS):
            reached = _step(theta[unsolved], counts.margins[unsolved], crowd, recipe)
            moved = np.abs(reached - theta[unsolved]).max(axis=1, initial=0) > STEP_TOLERANCE
            theta[unsolved] = reached
            unsolved = unsolved[moved]
            if not len(unsolved):
                break
    return theta


# ── workers ──────────────────────────────────────────────────────────────────────────────


class _Factors(NamedTuple):
    """What the matrices of P workers are products of."""

    tilt: Floats  # e^a (P, 1)
    bias: Floats  # e^b (P, C)
    diagonal: Floats  # G[c, c] (C,)
    others: Floats  # G without its diagonal (C, C)
    sums: Floats  # R_k[c] (P, C)


def _factors(theta: Floats, crowd: Floats) -> _Factors:
    tilt, bias, diagonal = np.exp(theta[:, :1]), np.exp(theta[:, 1:]), np.diagonal(crowd)
    others = crowd - np.diag(diagonal)
    # R_k[c] = Σ_{z ≠ c} G[c, z] e^{b_z} + G[c, c] e^{b_c} e^a
    return _Factors(tilt, bias, diagonal, others, bias @ others.T + diagonal * bias * tilt)


def _step(theta: Floats, margins: Floats, crowd: Floats, recipe: Recipe) -> Floats:
    """One step of every worker by the diagonal of the curvature, (P, C + 1)."""
    tilt, bias, diagonal, others, row_sums = _factors(theta, crowd)
    totals, said, right = margins[:, 0], margins[:, 1], margins[:, 2]
    share = totals / row_sums
    own = diagonal * bias * tilt / row_sums  # m[c, c]
    # Σ_c n_c m[c, z] and Σ_c n_c m[c, z]²
    expected = bias * (share @ others) + totals * own
    squares = bias**2 * ((share / row_sums) @ others**2) + totals * own**2
    precision = np.full(theta.shape[1], recipe.bias_scale**-2.0)
    precision[0] = recipe.tilt_scale**-2.0
    slope = np.empty_like(theta)
    slope[:, 0], slope[:, 1:] = (right - totals * own).sum(axis=1), said - expected
    curvature = np.empty_like(theta)
    curvature[:, 0] = (totals * own * (1 - own)).sum(axis=1)
    curvature[:, 1:] = expected - squares
    # θ ← θ + clip(½ g / diag H, −1, 1), and then the mean of b is 0
    move = (slope - precision * theta) / (curvature + precision) / 2
    theta = theta + np.clip(move, -recipe.step_limit, recipe.step_limit)
    theta[:, 1:] -= theta[:, 1:].mean(axis=1, keepdims=True)
    return theta


class _Says:
    """What labels say: log m_k[c, l] of the labels of a batch, with the workers' own counts.

    With R_k[c] and w = `own_weight`,

        m'_k[c, z] = (G[c, z] e^{b_z} + w N_k[c, z] R_k[c]) / (R_k[c] (1 + w n_k[c])),  c ≠ z
    """

    def __init__(self, settled: Settled, batch: CountedBatch, recipe: Recipe) -> None:
        counts, theta, pooled, label_shares, class_counts = settled
        crowd = crowd_matrix(pooled, recipe)
        self.log_prior = np.log(class_prior(label_shares, class_counts, recipe))
        self.factors = tilt, bias, diagonal, _, row_sums = _factors(theta, crowd)
        self.counts, self.own_weight = counts, recipe.own_weight
        self.by_label = np.ascontiguousarray(crowd.T)
        self.worker, self.label = batch.worker.astype(np.intp), batch.label.astype(np.intp)
        self.divisor = np.log(row_sums * (1 + self.own_weight * counts.margins[:, 0]))
        at = self.worker, self.label
        self.bias = bias[at]
        # G[l, l] e^{a + b_l} + w N_k[l, l] R_k[l]
        own = self.own_weight * counts.margins[:, 2] * row_sums
        self.if_right = diagonal[self.label] * self.bias * tilt[self.worker, 0] + own[at]
        self.rows, columns = counts.remainder()
        self.remainder, self.columns = self.own_weight * self.rows * row_sums, columns
        key = self.worker * counts.n_classes + self.label
        cells = counts.worker * counts.n_classes + counts.label
        self.first, self.last = np.searchsorted(cells, key), np.searchsorted(cells, key, "right")

    def of(self, rows: slice) -> Floats:
        """Log m'_k[c, l] of some labels, (b, C)."""
        worker, label, counts = self.worker[rows], self.label[rows], self.counts
        table = self.by_label[label]
        table *= self.bias[rows, None]
        if self.own_weight:
            table += self.remainder[worker] * self.columns[worker, label][:, None]
            of, at = expanded(self.first[rows], self.last[rows])
            truth = counts.truth[at]
            known = counts.values[at] * self.factors.sums[worker[of], truth]
            table[of, truth] += self.own_weight * known
        table[np.arange(len(label)), label] = self.if_right[rows]
        np.log(table, out=table)
        table -= self.divisor[worker]
        return np.asarray(table)

    def right(self) -> Floats:
        """P(k says c | c), (P, C)."""
        tilt, bias, diagonal, _, row_sums = self.factors
        totals, own = self.counts.margins[:, 0], self.counts.margins[:, 2]
        shown = diagonal * bias * tilt / row_sums + self.own_weight * own
        return np.asarray(shown / (1 + self.own_weight * totals))

    def log_cubes(self) -> Floats:
        """Compute log Σ_z m'_k[c, z]³, (P, C): of `CLARITY` 3, a sum of products with G."""
        tilt, bias, diagonal, others, row_sums = self.factors
        counts, columns = self.counts, self.columns
        rows = self.own_weight * self.rows
        own = diagonal * bias * tilt / row_sums + self.own_weight * counts.margins[:, 2]
        # Σ_{z ≠ c} (x + y)³ with x = G[c, z] e^{b_z} / R[c] and y = w ρ[c] γ[z] / Σ ρ
        total = own**3 + (bias**3 @ (others**3).T) / row_sums**3
        if self.own_weight:
            total += 3 * rows * ((bias**2 * columns) @ (others**2).T) / row_sums**2
            total += 3 * rows**2 * ((bias * columns**2) @ others.T) / row_sums
            total += rows**3 * ((columns**3).sum(axis=1, keepdims=True) - columns**3)
            # and in the cells (x + y + w S)³ − (x + y)³
            k, c, z = counts.worker, counts.truth, counts.label
            less = others[c, z] * bias[k, z] / row_sums[k, c] + rows[k, c] * columns[k, z]
            more = less + self.own_weight * counts.values
            cell = k * counts.n_classes + c
            total += np.bincount(cell, more**3 - less**3, total.size).reshape(total.shape)
        return np.asarray(np.log(total) - 3 * np.log1p(self.own_weight * counts.margins[:, 0]))


# ── items ────────────────────────────────────────────────────────────────────────────────


def _blocks(batch: CountedBatch, n_classes: int) -> Iterator[tuple[slice, slice]]:
    """Items that are looked at together, and their labels."""
    n_items, size = len(batch.gold), max(NUMBERS_PER_BLOCK // n_classes, 1)
    edges = np.searchsorted(batch.item, np.arange(n_items + 1))
    first = 0
    while first < n_items:
        last = int(np.searchsorted(edges, edges[first] + size, "right")) - 1
        last = min(max(last, first + 1), first + size, n_items)
        yield slice(first, last), slice(edges[first], edges[last])
        first = last


def _by_item(
    said: Floats, weight: NDArray[Any], batch: CountedBatch, items: slice, rows: slice
) -> Floats:
    """Add up rows of the same item, times their weight."""
    total = np.zeros((items.stop - items.start, said.shape[1]))
    if len(said):
        item = batch.item[rows] - items.start
        first = np.flatnonzero(np.diff(item, prepend=-1))
        total[item[first]] = np.add.reduceat(said * weight[rows, None], first, axis=0)
    return total


def _reached(scores: Floats, gold: Indices) -> tuple[Floats, Floats]:
    """Log p(l_i), or log p(l_i, y_i) where the truth is given, and the scores that are left."""
    given = np.flatnonzero(gold != MISSING)
    if len(given):
        true = scores[given, gold[given]]
        scores[given] = -np.inf
        scores[given, gold[given]] = true
    return log_sum_exp(scores), scores
