"""Batches: a chunk padded to a few sizes, and minibatches taken from it inside compiled code.

XLA compiles once per shape. Every count is therefore rounded up to a power of two, and the
padding carries weight 0, so that it changes no result.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from labelquorum.ingest.chunks import Chunk

__all__ = [
    "Batch",
    "Leaf",
    "Packed",
    "bucket",
    "labels_in_minibatch",
    "minibatch",
    "minibatch_order",
    "pack",
    "sum_by_item",
    "whole",
]


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
    """A chunk padded to its bucket; rows sorted by item."""

    item: Leaf  # (B,)
    worker: Leaf  # (B,)
    label: Leaf  # (B,)
    weight: Leaf  # (B,)
    start: Leaf  # (N,) first row of each item
    length: Leaf  # (N,) rows of each item
    worker_mask: Leaf  # (K,)
    n_items: Leaf  # () items that are no padding


def bucket(count: int, smallest: int) -> int:
    """Round up to a power of two, at least `smallest`.

    >>> bucket(50, 16), bucket(3, 16)
    (64, 16)
    """
    return max(smallest, 1 << max(count - 1, 0).bit_length())


def pack(chunk: Chunk, workers: NDArray[np.integer[Any]]) -> Packed:
    """Pad a chunk; `workers` are those the parameters have rows of, ascending."""
    n_labels = bucket(chunk.n_labels, 64)
    n_items = bucket(chunk.n_items, 16)
    edges = np.searchsorted(chunk.item, np.arange(chunk.n_items + 1)).astype(np.int32)
    return Packed(
        item=_pad(chunk.item, n_labels, n_items - 1),
        worker=_pad(np.searchsorted(workers, chunk.worker).astype(np.int32), n_labels, 0),
        label=_pad(chunk.label, n_labels, 0),
        weight=_pad(chunk.weight, n_labels, 0),
        start=_pad(edges[:-1], n_items, 0),
        length=_pad(np.diff(edges), n_items, 0),
        worker_mask=_pad(np.ones(len(workers), np.float32), bucket(len(workers), 32), 0),
        n_items=np.int32(chunk.n_items),
    )


def _pad(values: NDArray[Any], length: int, filler: int) -> NDArray[Any]:
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


def sum_by_item(values: jax.Array, batch: Batch) -> jax.Array:
    """Add up rows (B, …) of the same item, times their weight, (M, …)."""
    weight = batch.weight.reshape(-1, *[1] * (values.ndim - 1))
    n_items = len(batch.item_mask)
    return jax.ops.segment_sum(
        values * weight, batch.item, num_segments=n_items, indices_are_sorted=True
    )
