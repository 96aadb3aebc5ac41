"""Worker models: what a p must provide to be learned by counting, and which of two is selected.

The *hierarchical* model has a matrix per worker, the *one-coin* model an accuracy per worker. Each
reads the same stream with its own q. The first is selected unless it makes the average worker look
clearly less skilled than the second does, and its evidence does not settle the matter:
`docs/worker-models.md`.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.ingest.chunks import Chunk
from labelquorum.learn.bila import hierarchical, one_coin
from labelquorum.learn.bila.dependence import evidence_gain, is_contradicted
from labelquorum.learn.bila.hierarchical import HIERARCHICAL, ONE_COIN, Recipe, worker_weight
from labelquorum.learn.bila.minibatch import Leaf

__all__ = [
    "DROP",
    "MIN_EVIDENCE_GAIN",
    "NOISE",
    "WORKER_MODELS",
    "Packed",
    "WorkerModel",
    "hierarchical_evidence_gain",
    "log_skill",
    "select_worker_model",
    "sum_by_item",
]

MOST_CELLS = 1 << 22
"""Numbers that are laid out at a time when labels are counted."""

DROP, NOISE = 0.10, 4.0
"""By so much the log skill may fall, and by so much / items more, before the hierarchical model is
distrusted: chosen on the development sets (`docs/accuracy.md`)."""

MIN_EVIDENCE_GAIN = 0.03
"""Nats per label by which the hierarchical model must explain labels better to be selected whatever
the skill: chosen on simulated crowds (`experiments/accuracy/selection.py`)."""


class Packed(NamedTuple):
    """A chunk padded to its bucket; padding has weight 0."""

    item: Leaf  # (B,)
    worker: Leaf  # (B,) position among the chunk's workers
    label: Leaf  # (B,)
    weight: Leaf  # (B,) what a label counts for in q
    counted_weight: Leaf  # (B,) and in the counts
    counted_item: Leaf  # (M,) 1 where an item counts in ν
    gold: Leaf  # (M,) the true class where it was given, or MISSING
    n_items: Leaf  # () items that are no padding


class WorkerModel(NamedTuple):
    """A p as functions of its counts.

    Those of the first group run inside compiled code, with workers last: counts (…, K) and θ
    (D, K). Those of the second run in NumPy and float64, with workers first: (P, …) and (P, D).
    "Crowd" is what all workers share: the matrix G, or the odds of being right.
    """

    count_axes: tuple[int | None, ...]  # the shape of a worker's counts; None is an axis of classes
    theta_size: Callable[[int], int]  # D, by the number of classes
    crowd: Callable[[Leaf, Recipe], Leaf]  # of pooled counts

    count_labels: Callable[[Leaf, Packed, int], Leaf]  # ΔN of q (M, C) and so many workers
    pool: Callable[[Leaf, Recipe], Leaf]  # P, of counts
    step: Callable[[Leaf, Leaf, Leaf, Recipe], Leaf]  # θ, of θ, counts and crowd
    log_likelihood: Callable[[Leaf, Leaf, Leaf, Packed, Recipe], Leaf]  # (M, C), of the same
    right: Callable[[Leaf, Leaf, Leaf, Recipe], Leaf]  # P(k says c | c), (C, K), of the same
    log_powers: Callable[[Leaf, Leaf, Leaf, Recipe, float], Leaf]  # log Σ_z m[c, z]^λ, (C, K)

    count_exactly: Callable[[Floats, Chunk], Floats]  # ΔN of q (N, C), (P, …)
    pool_exactly: Callable[[Floats, Recipe], Floats]  # P, of counts (P, …)
    evidence: Callable[[Floats, Floats, Floats, Chunk, Recipe], Floats]  # log m_k[c, l], (B, C)
    confusion: Callable[[Floats, Floats, Floats, Recipe], Floats]  # m, (P, C, C)
    from_matrix: Callable[[Floats], Floats]  # counts of labels z on items of class c, (P, C, C)
    hits: Callable[[Floats], Floats]  # the diagonal of P and its row sums, (2, C)

    def count_shape(self, n_classes: int) -> tuple[int, ...]:
        """The shape of a worker's counts, and of P."""
        return tuple(n_classes if axis is None else axis for axis in self.count_axes)


# ── which worker model is selected ───────────────────────────────────────────────────────


def select_worker_model(
    pooled: Mapping[str, Floats],
    unexplained: Mapping[str, Floats],
    n_items: float,
    recipe: Recipe,
) -> str:
    """The worker model whose answers are given, by the pooled counts and the sums of each."""
    if len(pooled) == 1:
        return next(iter(pooled))
    hits = [WORKER_MODELS[name].hits(pooled[name]) for name in (HIERARCHICAL, ONE_COIN)]
    skill, one_coin_skill = log_skill(np.array(hits), recipe)
    # log J_hierarchical − log J_one-coin > −(0.1 + 4/items)
    allowed = DROP + NOISE / max(n_items, 1e-12)
    if skill - one_coin_skill > -allowed or _is_established(pooled, unexplained, recipe):
        return HIERARCHICAL
    return ONE_COIN


def hierarchical_evidence_gain(
    pooled: Mapping[str, Floats], unexplained: Mapping[str, Floats], recipe: Recipe
) -> float:
    """How much better the hierarchical model explains a label than the one-coin model, in nats.

    Only what all workers share is asked, so a store that loads the workers of a chunk alone, and
    a shard, decide as the whole model does.
    """
    n_classes = len(pooled[HIERARCHICAL])
    # d = Σ_k Σ_c n_k[c] / (κ + n_k[c]) + C (C − 1) = P/κ + C (C − 1): a worker's rows, each by how
    # far labels determine it, and the crowd's matrix
    n_parameters = pooled[HIERARCHICAL].sum() / recipe.worker_cap + n_classes * (n_classes - 1)
    return evidence_gain(unexplained[HIERARCHICAL], unexplained[ONE_COIN], n_parameters)


def _is_established(
    pooled: Mapping[str, Floats], unexplained: Mapping[str, Floats], recipe: Recipe
) -> bool:
    """Whether the evidence establishes the hierarchical model and nothing contradicts it."""
    gain = hierarchical_evidence_gain(pooled, unexplained, recipe)
    return gain > MIN_EVIDENCE_GAIN and not is_contradicted(unexplained[HIERARCHICAL])


def log_skill(hits: Floats, recipe: Recipe) -> Floats:
    """Log J: how far above chance the average worker is, all classes alike, (A,) by (A, 2, C)."""
    odds = one_coin.crowd_odds(hits, recipe)
    crowd_accuracy = (odds / (1 + odds))[:, None]  # ā
    # J = (mean_c G¹[c, c] − 1/C) / (1 − 1/C),  G¹ = (P + S) with rows divided by their sums
    chance = 1 / hits.shape[2]
    mean = ((hits[:, 0] + crowd_accuracy) / (hits[:, 1] + 1)).mean(axis=1)
    skill: Floats = (mean - chance) / max(1 - chance, 1e-12)
    return np.log(np.maximum(skill, 1e-12))


# ── the hierarchical model ───────────────────────────────────────────────────────────────


def _hierarchical_count(class_probs: Leaf, packed: Packed, n_workers: int) -> Leaf:
    n_classes = class_probs.shape[1]
    # ΔN_k[c, z] = Σ_i q_i(c) 1[l_ik = z]
    rows = class_probs[packed.item] * packed.counted_weight[:, None]
    cell = packed.worker * n_classes + packed.label
    total = jax.ops.segment_sum(rows, cell, num_segments=n_workers * n_classes)
    return total.reshape(n_workers, n_classes, n_classes).transpose(2, 1, 0)


def _hierarchical_log_likelihood(
    theta: Leaf, counts: Leaf, crowd: Leaf, packed: Packed, recipe: Recipe
) -> Leaf:
    n_classes = len(crowd)
    cell = packed.worker * n_classes + packed.label
    said = hierarchical.log_confusion(crowd, theta).reshape(-1, n_classes)[cell]
    if recipe.own_weight:
        known = counts.transpose(2, 1, 0).reshape(-1, n_classes)[cell]  # N_k[c, l]
        total = counts.sum(axis=1).T[packed.worker]  # n_k[c]
        said = jnp.log(hierarchical.with_own(jnp.exp(said), known, total, recipe))
    # Σ_k log m_k[c, l_ik]
    return sum_by_item(said * packed.weight[:, None], packed)


def _hierarchical_right(theta: Leaf, counts: Leaf, crowd: Leaf, recipe: Recipe) -> Leaf:
    tilt_factor, bias_factor = jnp.exp(theta[0]), jnp.exp(theta[1:])
    index = np.arange(len(crowd))
    # m_k[c, c] = G[c, c] e^{a + b_c} / R_k[c]
    own = crowd[index, index][:, None] * bias_factor * tilt_factor
    right = own / hierarchical.row_sums(crowd, tilt_factor, bias_factor)
    return hierarchical.with_own(right, counts[index, index], counts.sum(axis=1), recipe)


def _hierarchical_log_powers(
    theta: Leaf, counts: Leaf, crowd: Leaf, recipe: Recipe, power: float
) -> Leaf:
    matrix = hierarchical.confusion(crowd, theta)
    matrix = hierarchical.with_own(matrix, counts, counts.sum(axis=1, keepdims=True), recipe)
    return jnp.log((matrix**power).sum(axis=1))


def _hierarchical_count_exactly(class_probs: Floats, labels: Chunk) -> Floats:
    n_classes, n_workers = labels.n_classes, len(labels.workers)
    cell = labels.local_worker.astype(np.intp) * n_classes + labels.label
    counts = np.empty((n_workers, n_classes, n_classes))
    together = max(1, MOST_CELLS // max(len(cell), n_workers * n_classes))  # classes at a time
    for first in range(0, n_classes, together):
        some = class_probs[:, first : first + together]
        total = _sum_rows(some, cell, labels, n_workers * n_classes)
        total = total.reshape(n_workers, n_classes, some.shape[1])
        counts[:, first : first + together] = total.swapaxes(1, 2)
    return counts


def _hierarchical_pool_exactly(counts: Floats, recipe: Recipe) -> Floats:
    # Σ_k N_k[c, z] κ/(κ + n_k[c])
    n_classes = counts.shape[2]
    totals = (counts.reshape(-1, n_classes) @ np.ones(n_classes)).reshape(-1, n_classes)
    return np.asarray(np.einsum("kcz,kc->cz", counts, worker_weight(totals, recipe)))


def _hierarchical_evidence(
    theta: Floats, counts: Floats, crowd: Floats, chunk: Chunk, recipe: Recipe
) -> Floats:
    worker, label = chunk.local_worker, chunk.label
    log_sums = np.log(hierarchical.row_sums(crowd, np.exp(theta[:, 0]), np.exp(theta[:, 1:].T)))
    # log m_k[c, z] = log G[c, z] + a 1[c = z] + b_z − log R_k[c]
    evidence: Floats = np.log(crowd).T.take(label, axis=0) - log_sums.T.take(worker, axis=0)
    evidence += theta[worker, 1 + label][:, None]
    evidence[np.arange(chunk.n_labels), label] += theta[:, 0].take(worker)
    if recipe.own_weight:
        cell, n_classes = worker * np.int32(len(crowd)) + label, len(crowd)
        known = counts.swapaxes(1, 2).reshape(-1, n_classes).take(cell, axis=0)  # N_k[c, l]
        total = (counts @ np.ones(n_classes)).take(worker, axis=0)  # n_k[c]
        evidence = np.log(hierarchical.with_own(np.exp(evidence), known, total, recipe))
    return evidence


def _hierarchical_confusion(theta: Floats, counts: Floats, crowd: Floats, recipe: Recipe) -> Floats:
    # softmax_z( log G[c, z] + a 1[c = z] + b_z )
    logits = np.log(crowd) + theta[:, :1, None] * np.eye(len(crowd)) + theta[:, None, 1:]
    matrix = np.exp(logits - logits.max(axis=2, keepdims=True, initial=-np.inf))
    matrix /= matrix.sum(axis=2, keepdims=True)
    totals = counts.sum(axis=2, keepdims=True)
    return np.asarray(hierarchical.with_own(matrix, counts, totals, recipe))


# ── the one-coin model ───────────────────────────────────────────────────────────────────


def _one_coin_count(class_probs: Leaf, packed: Packed, n_workers: int) -> Leaf:
    n_classes = class_probs.shape[1]
    rows = class_probs[packed.item] * packed.counted_weight[:, None]
    # ΔN_k[c, c] = Σ_i q_i(c) 1[l_ik = c];  Δn_k[c] = Σ_i q_i(c)
    own = jnp.where(packed.label[:, None] == np.arange(n_classes), rows, 0.0)
    total = jax.ops.segment_sum(
        jnp.concatenate([own, rows], axis=1), packed.worker, num_segments=n_workers
    )
    return total.T.reshape(2, n_classes, n_workers)


def _one_coin_log_likelihood(
    theta: Leaf, counts: Leaf, odds: Leaf, packed: Packed, recipe: Recipe
) -> Leaf:
    n_classes = counts.shape[1]
    right, wrong = _one_coin_logs(odds, jnp.exp(theta[0]), n_classes)
    # Σ_k log m_k[c, l_ik]: log r_k where the label is c, log (1 − r_k)/(C − 1) where it is not
    is_label = packed.label[:, None] == np.arange(n_classes)
    rows = jnp.where(is_label, right[packed.worker][:, None], wrong[packed.worker][:, None])
    return sum_by_item(rows * packed.weight[:, None], packed)


def _one_coin_right(theta: Leaf, counts: Leaf, odds: Leaf, recipe: Recipe) -> Leaf:
    return jnp.broadcast_to(one_coin.right(odds, jnp.exp(theta[0])), counts.shape[1:])


def _one_coin_log_powers(
    theta: Leaf, counts: Leaf, odds: Leaf, recipe: Recipe, power: float
) -> Leaf:
    n_classes = counts.shape[1]
    right, wrong = _one_coin_logs(odds, jnp.exp(theta[0]), n_classes)
    # log( r^λ + (C − 1) ((1 − r)/(C − 1))^λ )
    others = np.log(max(n_classes - 1, 1)) + power * wrong
    return jnp.broadcast_to(jnp.logaddexp(power * right, others), counts.shape[1:])


def _one_coin_count_exactly(class_probs: Floats, labels: Chunk) -> Floats:
    n_classes, n_workers = labels.n_classes, len(labels.workers)
    worker = labels.local_worker.astype(np.intp)
    own = class_probs[labels.item, labels.label] * labels.weight
    hits = np.bincount(worker * n_classes + labels.label, own, n_workers * n_classes)
    counts = np.empty((n_workers, 2, n_classes))
    counts[:, 0] = hits.reshape(n_workers, n_classes)
    together = max(1, MOST_CELLS // max(len(worker), n_workers))  # classes at a time
    for first in range(0, n_classes, together):
        some = class_probs[:, first : first + together]
        total = _sum_rows(some, worker, labels, n_workers)
        counts[:, 1, first : first + together] = total.reshape(n_workers, some.shape[1])
    return counts


def _one_coin_pool_exactly(counts: Floats, recipe: Recipe) -> Floats:
    return np.asarray((counts * worker_weight(counts[:, 1:], recipe)).sum(axis=0))


def _one_coin_evidence(
    theta: Floats, counts: Floats, odds: Floats, chunk: Chunk, recipe: Recipe
) -> Floats:
    right, wrong = _one_coin_logs(odds, np.exp(theta[:, 0]), chunk.n_classes)
    evidence = np.repeat(wrong[chunk.local_worker, None], chunk.n_classes, axis=1)
    evidence[np.arange(chunk.n_labels), chunk.label] = right[chunk.local_worker]
    return evidence


def _one_coin_confusion(theta: Floats, counts: Floats, odds: Floats, recipe: Recipe) -> Floats:
    n_classes = counts.shape[2]
    if n_classes == 1:
        return np.ones((len(theta), 1, 1))
    often = one_coin.right(odds, np.exp(theta[:, 0]))[:, None, None]
    same = np.eye(n_classes)
    return np.asarray(often * same + (1 - often) / (n_classes - 1) * (1 - same))


def _one_coin_logs(odds: Leaf, tilt_factor: Leaf, n_classes: int) -> tuple[Leaf, Leaf]:
    """What a label says for its class, log r_k, and for any other, log (1 − r_k)/(C − 1), (K,)."""
    arrays: Any = np if isinstance(tilt_factor, np.ndarray) else jnp
    often = odds * tilt_factor
    against = -arrays.log1p(often)  # log (1 − r)
    return arrays.log(often) + against, against - np.log(max(n_classes - 1, 1))


# ── both ─────────────────────────────────────────────────────────────────────────────────


def sum_by_item(rows: Leaf, packed: Packed) -> Leaf:
    """Add up rows (B, C) of the same item, (M, C)."""
    return jax.ops.segment_sum(
        rows, packed.item, num_segments=len(packed.gold), indices_are_sorted=True
    )


def _sum_rows(class_probs: Floats, place: NDArray[np.intp], labels: Chunk, n_places: int) -> Floats:
    """Add up q (N, D) of each label, times its weight, by place, (n_places · D,)."""
    width = class_probs.shape[1]
    where = place[:, None] * width + np.arange(width)
    shares = class_probs.take(labels.item, axis=0) * labels.weight[:, None]
    return np.asarray(np.bincount(where.ravel(), shares.ravel(), n_places * width), np.float64)


def _own_and_all(matrix: Floats) -> Floats:
    """The diagonal and the row sums of matrices (…, C, C), as (…, 2, C)."""
    own = np.diagonal(matrix, axis1=-2, axis2=-1)
    return np.stack([own, matrix.sum(axis=-1)], axis=-2)


WORKER_MODELS: Mapping[str, WorkerModel] = {
    HIERARCHICAL: WorkerModel(
        count_axes=(None, None),
        theta_size=lambda n_classes: 1 + n_classes,
        crowd=hierarchical.crowd_matrix,
        count_labels=_hierarchical_count,
        pool=hierarchical.pool,
        step=hierarchical.step,
        log_likelihood=_hierarchical_log_likelihood,
        right=_hierarchical_right,
        log_powers=_hierarchical_log_powers,
        count_exactly=_hierarchical_count_exactly,
        pool_exactly=_hierarchical_pool_exactly,
        evidence=_hierarchical_evidence,
        confusion=_hierarchical_confusion,
        from_matrix=lambda counts: counts,
        hits=_own_and_all,
    ),
    ONE_COIN: WorkerModel(
        count_axes=(2, None),
        theta_size=lambda n_classes: 1,
        crowd=one_coin.crowd_odds,
        count_labels=_one_coin_count,
        pool=one_coin.pool,
        step=one_coin.step,
        log_likelihood=_one_coin_log_likelihood,
        right=_one_coin_right,
        log_powers=_one_coin_log_powers,
        count_exactly=_one_coin_count_exactly,
        pool_exactly=_one_coin_pool_exactly,
        evidence=_one_coin_evidence,
        confusion=_one_coin_confusion,
        from_matrix=_own_and_all,
        hits=lambda pooled: pooled,
    ),
}
"""By name; where there are both, the first is asked first."""
