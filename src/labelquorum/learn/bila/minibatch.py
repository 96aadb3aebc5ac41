"""Batches: chunks padded to a few sizes, and minibatches taken from them inside compiled code.

XLA compiles once per shape. Every count is therefore rounded up to one of a few sizes; padding has
weight 0, so that it changes no result.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.ingest.chunks import Chunk
from labelquorum.ingest.labels import MISSING
from labelquorum.learn.bila.lazy_jax import jax, jnp

Leaf = Any
"""An array: NumPy's outside compiled code, JAX's inside it."""


class Batch(NamedTuple):
    """What q and p see: M items' labels as flat rows, some of them padding of weight 0."""

    item: Leaf  # (B,) position in the batch, below M
    worker: Leaf  # (B,) row of the worker in the parameters
    label: Leaf  # (B,)
    weight: Leaf  # (B,)
    item_mask: Leaf  # (M,) 1 for an item, 0 for padding
    worker_mask: Leaf  # (K,) 1 for a worker, 0 for padding


class Packed(NamedTuple):
    """A chunk padded to be cut into minibatches; rows sorted by item."""

    item: Leaf  # (B,)
    worker: Leaf  # (B,)
    label: Leaf  # (B,)
    weight: Leaf  # (B,)
    start: Leaf  # (N,) first row of each item
    length: Leaf  # (N,) rows of each item
    worker_mask: Leaf  # (K,)
    n_items: Leaf  # () items that are no padding


class CountedBatch(NamedTuple):
    """A chunk to be solved as a whole, and what of it is counted; rows sorted by item."""

    item: Leaf  # (B,)
    worker: Leaf  # (B,) position among the chunk's workers
    label: Leaf  # (B,)
    weight: Leaf  # (B,) what a label counts for in q
    counted_weight: Leaf  # (B,) what a label counts for in the counts
    counted_item: Leaf  # (M,) 1 where an item counts in ν
    gold: Leaf  # (M,) the true class where it was given, or MISSING
    # None where each worker has one label per item, of its own weight:
    worker_share: Leaf | None = None  # (B,) the share of a label in what its worker says of an item
    first_vote: Leaf | None = None  # (B,) the first row of the same worker on the same item


def array_namespace(*leaves: Leaf) -> Any:
    """The module of functions for arrays: `numpy`, or `jax.numpy` if one of them is JAX's."""
    return np if all(isinstance(leaf, np.ndarray | np.generic) for leaf in leaves) else jnp


def segment_sum(values: Leaf, segment: Leaf, n_segments: int, *, is_sorted: bool = False) -> Any:
    """Add up rows (B, …) of the same segment, (n_segments, …)."""
    if array_namespace(values) is np:
        total = np.zeros((n_segments, *values.shape[1:]), values.dtype)
        if is_sorted and values.ndim == 2 and len(values):
            first = np.flatnonzero(np.diff(segment, prepend=-1))
            total[segment[first]] = np.add.reduceat(values, first, axis=0)  # in the same order
        else:
            np.add.at(total, segment, values)
        return total
    return jax.ops.segment_sum(values, segment, n_segments, indices_are_sorted=is_sorted)


MAX_COARSE = 1 << 17
"""Up to here a size is a power of two. Beyond, where padding costs more than what is compiled once
more, there are eight sizes to each doubling."""


def bucket(count: int, smallest: int) -> int:
    """Round up to one of few sizes, at least `smallest`.

    >>> bucket(50, 16), bucket(3, 16), bucket(2_000_000, 16)
    (64, 16, 2097152)
    >>> bucket(2_100_000, 16)
    2359296
    """
    power = 1 << max(count - 1, 0).bit_length()
    step = power if power <= MAX_COARSE else power // 16
    return max(smallest, -(-count // step) * step)


def pack(chunk: Chunk, workers: NDArray[np.integer[Any]]) -> Packed:
    """Pad a chunk; `workers` are those the parameters have rows of, ascending."""
    n_labels = bucket(chunk.n_labels, 64)
    n_items = bucket(chunk.n_items, 16)
    edges = np.searchsorted(chunk.item, np.arange(chunk.n_items + 1)).astype(np.int32)
    return Packed(
        item=pad(chunk.item, n_labels, n_items - 1),
        worker=pad(np.searchsorted(workers, chunk.worker).astype(np.int32), n_labels),
        label=pad(chunk.label, n_labels),
        weight=pad(chunk.weight, n_labels),
        start=pad(edges[:-1], n_items),
        length=pad(np.diff(edges), n_items),
        worker_mask=pad(np.ones(len(workers), np.float32), bucket(len(workers), 32)),
        n_items=np.int32(chunk.n_items),
    )


def pack_counted(
    chunk: Chunk, counted_weight: NDArray[np.float32], counted_item: Floats
) -> CountedBatch:
    """A chunk to be solved as a whole; the two other arrays are as in `CountedBatch`."""
    first, share = chunk.first_votes, None
    if first is not None or chunk.votes is not None:
        rows = np.arange(chunk.n_labels) if first is None else first
        total = np.bincount(rows, counted_weight, chunk.n_labels)[rows]
        share = np.divide(counted_weight, total, np.zeros_like(total), where=total > 0)
    return CountedBatch(
        item=chunk.item,
        worker=chunk.local_worker,
        label=chunk.label,
        weight=chunk.weight,
        counted_weight=counted_weight,
        counted_item=counted_item,
        gold=np.full(chunk.n_items, MISSING, np.int32) if chunk.gold is None else chunk.gold,
        worker_share=None if share is None else share.astype(np.float32),
        first_vote=first,
    )


def pad(values: NDArray[Any], length: int, filler: int = 0) -> NDArray[Any]:
    """Rows, and then more of one number up to this length."""
    padded = np.full((length, *values.shape[1:]), filler, values.dtype)
    padded[: len(values)] = values
    return padded


def labels_in_minibatch(packed: Packed, minibatch_items: int) -> int:
    """The most rows any minibatch can need, as a bucket: those of the items with most labels."""
    largest = np.sort(packed.length)[::-1][:minibatch_items]
    return min(bucket(int(largest.sum()), 64), len(packed.item))


def whole(packed: Packed) -> Batch:
    """All items as one batch."""
    mask = (jnp.arange(len(packed.start)) < packed.n_items).astype(jnp.float32)
    return Batch(packed.item, packed.worker, packed.label, packed.weight, mask, packed.worker_mask)


def minibatch(packed: Packed, items: jax.Array, item_mask: jax.Array, n_labels: int) -> Batch:
    """The rows of some items, (M,), as a batch of at most `n_labels` rows."""
    length = jnp.where(item_mask > 0, packed.length[items], 0)
    end = jnp.cumsum(length)
    slot = jnp.arange(n_labels)
    owner = jnp.searchsorted(end, slot, side="right").clip(0, len(items) - 1)
    used = slot < end[-1]
    row = jnp.where(used, packed.start[items][owner] + slot - (end - length)[owner], 0)
    return Batch(
        item=owner,
        worker=packed.worker[row],
        label=packed.label[row],
        weight=jnp.where(used, packed.weight[row], 0.0),
        item_mask=item_mask,
        worker_mask=packed.worker_mask,
    )


def minibatch_order(key: jax.Array, n_slots: int, n_items: jax.Array | int) -> jax.Array:
    """A random order of the items, padding last, (n_slots,); it does not depend on the padding."""
    slots = jnp.arange(n_slots)
    bits = jax.vmap(lambda slot: jax.random.bits(jax.random.fold_in(key, slot)))(slots)
    return jnp.lexsort((bits, slots >= n_items))


def sum_by_item(values: Leaf, batch: Batch | CountedBatch) -> jax.Array:
    """Add up rows (B, …) of the same item, times their weight, (M, …)."""
    weight = batch.weight.reshape(-1, *[1] * (values.ndim - 1))
    n_items = len(batch.gold if isinstance(batch, CountedBatch) else batch.item_mask)
    total: jax.Array = segment_sum(values * weight, batch.item, n_items, is_sorted=True)
    return total
