"""Fitting: the rounds of θ and q in a chunk, and a worker's maximum, as compiled code.

This is the update of `docs/recipe.md`. XLA compiles once per shape, so chunks are padded to a few
sizes; padding has weight 0 and changes no result. Chunks are solved in float32, which is enough
for q; a single worker can also be solved in float64, to the end.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from labelquorum.ingest.chunks import Chunk
from labelquorum.ingest.events import MISSING
from labelquorum.learn.batch import Leaf, bucket
from labelquorum.learn.hierarchical import (
    Recipe,
    class_prior,
    crowd_matrix,
    log_confusion,
    pool,
    step,
)

__all__ = ["Fitted", "Packed", "fit_chunk", "pack", "solve_workers", "workers_last"]

Floats = NDArray[np.float64]

SETTLED, MOST_STEPS = 1e-12, 1000
"""θ is solved when no number moves further in a step, or after so many steps."""

BLOCK = 1 << 14
"""Workers that are solved at a time."""


class Packed(NamedTuple):
    """A chunk padded to its bucket; padding has weight 0."""

    item: Leaf  # (B,)
    cell: Leaf  # (B,) worker · C + label
    weight: Leaf  # (B,) what a label counts for in q
    counted_weight: Leaf  # (B,) and in the counts
    counted_item: Leaf  # (M,) 1 where an item counts in ν
    gold: Leaf  # (M,) the true class where it was given, or MISSING


class Fitted(NamedTuple):
    """What a chunk gave."""

    theta: Leaf  # (C + 1, K)
    class_probs: Leaf  # (M, C)
    loss: Leaf  # ()


@partial(jax.jit, static_argnames="recipe")
def fit_chunk(
    packed: Packed,
    counts: Leaf,
    theta: Leaf,
    others: Leaf,
    label_shares: Leaf,
    class_counts: Leaf,
    *,
    recipe: Recipe,
) -> Fitted:
    """Steps (2) and (3) of the update: θ and q in turn, with all that came before in the counts.

    Parameters
    ----------
    counts, theta
        Of the chunk's workers, (C, C, K) and (C + 1, K).
    others
        What all other workers give to P, (C, C).
    label_shares, class_counts
        f', this chunk's labels included, and ν, (C,) each.
    """
    n_classes, n_workers = len(label_shares), counts.shape[-1]
    given = packed.gold[:, None] != MISSING
    is_true = packed.gold[:, None] == np.arange(n_classes)

    def encode(said: Leaf, prior: Leaf) -> Leaf:
        """Score the classes: log π_c + Σ_k log m_k[c, l_ik], (M, C)."""
        rows = said.reshape(-1, n_classes)[packed.cell] * packed.weight[:, None]
        return jnp.log(prior) + _segment_sum(rows, packed.item, len(given), ordered=True)

    def class_probs(log_scores: Leaf) -> Leaf:
        return jnp.where(given, is_true, jax.nn.softmax(log_scores))

    def again(number: Leaf, carry: tuple[Leaf, Leaf, Leaf]) -> tuple[Leaf, Leaf, Leaf]:
        theta, said, prior = carry
        # (2) is (3) before anything is said of the chunk: a θ step with the stored N.
        probs = class_probs(encode(said, prior)) * (number > 0)
        # ΔN_k[c, z] = Σ_i q_i(c) 1[l_ik = z]
        rows = probs[packed.item] * packed.counted_weight[:, None]
        news = _segment_sum(rows, packed.cell, n_workers * n_classes)
        news = news.reshape(n_workers, n_classes, n_classes).transpose(2, 1, 0)
        # P' and G, a θ step with N + ΔN, and what each label says by then
        crowd = crowd_matrix(others + pool(counts + news, recipe), recipe)
        theta = step(theta, counts + news, crowd, recipe)
        # π with f' and ν + Σ_i q_i
        inferred = class_counts + packed.counted_item @ probs
        prior = class_prior(label_shares, inferred, recipe)
        return theta, log_confusion(crowd, theta), prior

    silence = jnp.zeros((n_workers, n_classes, n_classes))
    start = theta, silence, class_prior(label_shares, class_counts, recipe)
    theta, said, prior = jax.lax.fori_loop(0, 1 + recipe.inner_steps, again, start)
    log_scores = encode(said, prior)
    # With this q the loss is −log p(l_i), or −log p(l_i, y_i) where the truth is given.
    reached = jnp.where(given & ~is_true, -jnp.inf, log_scores)
    log_evidence = jax.nn.logsumexp(reached, axis=1) * packed.counted_item
    loss = -log_evidence.sum() / jnp.maximum(packed.counted_item.sum(), 1)
    return Fitted(theta, class_probs(log_scores), loss)


def _segment_sum(rows: Leaf, segment: Leaf, count: int, ordered: bool = False) -> Leaf:
    return jax.ops.segment_sum(rows, segment, num_segments=count, indices_are_sorted=ordered)


@partial(jax.jit, static_argnames="recipe")
def _solve_block(counts: Leaf, crowd: Leaf, *, recipe: Recipe) -> Leaf:
    """The θ that maximises J, (C + 1, K): curvature steps until none moves any more."""

    def unsettled(carry: tuple[Leaf, Leaf, Leaf]) -> Leaf:
        number, _, moved = carry
        return (moved > SETTLED) & (number < MOST_STEPS)

    def again(carry: tuple[Leaf, Leaf, Leaf]) -> tuple[Leaf, Leaf, Leaf]:
        number, theta, _ = carry
        moved = step(theta, counts, crowd, recipe)
        return number + 1, moved, jnp.abs(moved - theta).max()

    theta = jnp.zeros((len(crowd) + 1, counts.shape[-1]), counts.dtype)
    first = (jnp.int32(0), theta, jnp.asarray(jnp.inf, counts.dtype))
    return jax.lax.while_loop(unsettled, again, first)[1]


def solve_workers(counts: Floats, pooled: Floats, recipe: Recipe) -> Floats:
    """θ of these workers in float64, (K, C + 1), as far as it goes: J has one maximum."""
    theta, crowd = np.zeros((len(counts), len(pooled) + 1)), crowd_matrix(pooled, recipe)
    with jax.enable_x64(True):
        for start in range(0, len(counts), BLOCK):
            some = slice(start, min(start + BLOCK, len(counts)))
            solved = _solve_block(workers_last(counts[some], np.float64), crowd, recipe=recipe)
            theta[some] = np.asarray(solved)[:, : some.stop - start].T
    return theta


# ── shapes that recur ────────────────────────────────────────────────────────────────────


def pack(chunk: Chunk, counted_weight: NDArray[np.float32], counted_item: Floats) -> Packed:
    """Pad a chunk; the two other arrays are as in `Packed`."""
    n_labels, n_items = _room(chunk.n_labels, 128), _room(chunk.n_items, 16)
    gold = np.full(n_items, MISSING, np.int32)
    if chunk.gold is not None:
        gold[: chunk.n_items] = chunk.gold
    return Packed(
        item=_pad(chunk.item, n_labels, n_items - 1),
        cell=_pad(chunk.local_worker * np.int32(chunk.n_classes) + chunk.label, n_labels),
        weight=_pad(chunk.weight, n_labels),
        counted_weight=_pad(counted_weight, n_labels),
        counted_item=_pad(counted_item.astype(np.float32), n_items),
        gold=gold,
    )


def _room(count: int, fewest: int) -> int:
    """Round up to a few sizes, each of which is compiled: in fours at first, then in twos."""
    if count <= 16 * fewest:
        return fewest if count <= fewest else 4 * fewest if count <= 4 * fewest else 16 * fewest
    return bucket(count, fewest)


def _pad(values: NDArray[Any], length: int, filler: int = 0) -> NDArray[Any]:
    padded = np.full(length, filler, values.dtype)
    padded[: len(values)] = values
    return padded


def workers_last(rows: Floats, kind: type = np.float32) -> NDArray[Any]:
    """Rows (K, …) as compiled code takes them: (…, K), padded with zeros."""
    # 128 workers, but no more than 2¹³ cells of their matrices
    fewest = min(128, max(4, bucket((1 << 13) // max(rows.shape[1], 1) ** 2, 1)))
    padded = np.zeros((*rows.shape[1:], _room(len(rows), fewest)), kind)
    padded[..., : len(rows)] = np.moveaxis(rows, 0, -1)
    return padded
