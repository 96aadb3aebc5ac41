"""The engine for a GPU: `reference`, compiled by JAX.

What is asked of workers outside chunks the kernel answers, or `reference` where it was not built.
"""

import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.learn.bila import kernel, reference
from labelquorum.learn.bila.hierarchical import Recipe
from labelquorum.learn.bila.identification import expected_error_of
from labelquorum.learn.bila.lazy_jax import jax, jit, jnp
from labelquorum.learn.bila.minibatch import CountedBatch, Leaf, bucket, pad
from labelquorum.learn.bila.worker_models import Fitted, Known, Settled

_host = kernel if kernel.is_built() else reference
past_unexplained, count = _host.past_unexplained, _host.count
pool, solve_workers = _host.pool, _host.solve_workers

MAX_SENT = 128
"""Columns that stay on the device at most: those of twenty chunks, made ahead of the solver."""

_sent: dict[tuple[int, int, int], tuple[weakref.ref[NDArray[Any]], Leaf]] = {}
"""Columns that are on the device, while they are alive here, by `id`, padded length and filler."""


def fit(
    name: str, batch: CountedBatch, known: Known, recipe: Recipe, n_workers: Floats | None = None
) -> Fitted:
    """Solve a chunk by one worker model together with all that was counted before."""
    with jax.enable_x64(True):
        sent = on_device(batch)
        asked = None if n_workers is None else pad(n_workers, len(sent.gold))
        found = _fit(name, sent, _with_room(known), recipe, asked)
        fitted = Fitted(*map(np.asarray, found))
    rows = slice(len(known.theta))
    probs = fitted.class_probs[: len(batch.gold)]
    return fitted._replace(counts=fitted.counts[rows], theta=fitted.theta[rows], class_probs=probs)


def score(
    name: str, batch: CountedBatch, settled: Settled, recipe: Recipe
) -> tuple[Floats, NDArray[np.float32]]:
    """Return log scores of items, (N, C), and what labels say for classes, weighted, (B, C)."""
    with jax.enable_x64(True):
        found = _score(name, on_device(batch), _with_room(settled), recipe)
        scores, evidence = map(np.asarray, found)
    return scores[: len(batch.gold)], evidence[: len(batch.item)]


@jit(static_argnames=("name", "recipe"))
def _fit(
    name: str, batch: CountedBatch, known: Known, recipe: Recipe, n_workers: Leaf | None
) -> Fitted:
    fitted = reference.fit(name, batch, known, recipe)
    if n_workers is None:
        return fitted
    scores, _ = reference.score(name, batch, fitted.settled(known), recipe)
    errors: Leaf = expected_error_of(scores.T, jnp.maximum(n_workers, 1))
    total: Leaf = jnp.where(n_workers > 0, errors, 0).sum(axis=-1)
    return fitted._replace(expected_errors=total)


_score = jit(static_argnames=("name", "recipe"))(reference.score)


def _with_room(given: Any) -> Any:
    """Return `Known` or `Settled` padded to one of few numbers of workers."""
    room = bucket(len(given.theta), 32)
    return given._replace(counts=pad(given.counts, room), theta=pad(given.theta, room))


def on_device(batch: CountedBatch) -> CountedBatch:
    """Return the batch on the device, padded to few sizes; columns that are there are not sent.

    A chunk is fitted by each worker model, and scored.
    """
    n_labels, n_items = bucket(len(batch.item), 128), bucket(len(batch.gold), 16)
    of_items = {"counted_item", "gold"}  # an item that is only padding has a truth: q never moves
    fillers = {"item": n_items - 1, "first_vote": n_labels - 1}
    with jax.enable_x64(True):
        columns = {
            name: _send(column, n_items if name in of_items else n_labels, fillers.get(name, 0))
            for name, column in batch._asdict().items()
            if column is not None
        }
    return batch._replace(**columns)


def _send(column: NDArray[Any], length: int, filler: int) -> Leaf:
    key = id(column), length, filler
    known = _sent.get(key)
    if known is None:
        alive = weakref.ref(column, lambda gone: _sent.pop(key, None))
        known = _sent[key] = alive, jnp.asarray(pad(column, length, filler))
        for oldest in list(_sent)[:-MAX_SENT]:
            _sent.pop(oldest, None)
    return known[1]
