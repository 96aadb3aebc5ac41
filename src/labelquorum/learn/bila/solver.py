"""The solver of `counts.py`: θ and q in turn on a chunk, and a worker's maximum, compiled.

This is the update of `docs/hierarchical.md`, for one worker model or for both. Chunks are solved in
float32, which is enough for q; a single worker can also be solved in float64, to the end.
"""

from collections.abc import Mapping
from functools import lru_cache, partial
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.ingest.labels import MISSING
from labelquorum.learn.bila.dependence import CLARITY, gain_of_clear, sums
from labelquorum.learn.bila.hierarchical import Recipe, class_prior
from labelquorum.learn.bila.minibatch import (
    CountedBatch,
    Leaf,
    sum_by_item,
    worker_room,
    workers_last,
)
from labelquorum.learn.bila.worker_models import WORKER_MODELS, WorkerModel

__all__ = ["Fitted", "Known", "fit_chunk", "past_unexplained", "solve_workers"]

STEP_TOLERANCE, MAX_STEPS = 1e-12, 1000
"""A worker is solved when no number of θ moves further in a step, or after `MAX_STEPS` steps."""

WORKERS_PER_BLOCK = 1 << 14
"""Workers solved at a time, to bound memory."""


class Known(NamedTuple):
    """What a model knows before a chunk."""

    counts: Leaf  # (…, K) of the chunk's workers
    theta: Leaf  # (D, K)
    others: Leaf  # (…) what all other workers give to P
    class_counts: Leaf  # ν (C,)


class Fitted(NamedTuple):
    """What a worker model learned from a chunk."""

    theta: Leaf  # (D, K)
    class_probs: Leaf  # (M, C)
    unexplained: Leaf  # `sums` of `dependence`
    loss: Leaf  # ()
    rounds: Leaf  # (), a whole number


def fit_chunk(
    batch: CountedBatch, known: Mapping[str, Known], label_shares: Floats, *, recipe: Recipe
) -> dict[str, Fitted]:
    """Steps (2) and (3) of the update: θ and q in turn, with all that came before in the counts.

    Parameters
    ----------
    known
        By worker model.
    label_shares
        f', this chunk's labels included, (C,).
    """
    floats, integers, layout = _flatten((batch, dict(known), label_shares))
    fitted = np.asarray(_fit_flat(floats, integers, layout=layout, recipe=recipe))
    result: dict[str, Fitted] = _unflatten(fitted, fitted, _result_layout(layout, recipe))
    return result


@partial(jax.jit, static_argnames=("layout", "recipe"))
def _fit_flat(floats: Leaf, integers: Leaf, *, layout: "_Layout", recipe: Recipe) -> Leaf:
    fitted = _fit_each(_unflatten(floats, integers, layout), recipe)
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(fitted)])


def _fit_each(given: tuple[Any, ...], recipe: Recipe) -> dict[str, Fitted]:
    batch, known, label_shares = given
    return {
        name: _fit(WORKER_MODELS[name], batch, before, label_shares, recipe)
        for name, before in known.items()
    }


def _fit(
    model: WorkerModel, batch: CountedBatch, known: Known, label_shares: Leaf, recipe: Recipe
) -> Fitted:
    n_classes, n_workers = len(label_shares), known.theta.shape[-1]
    given = batch.gold[:, None] != MISSING
    is_true = batch.gold[:, None] == np.arange(n_classes)

    def encode(log_scores: Leaf) -> Leaf:
        return jnp.where(given, is_true, jax.nn.softmax(log_scores))

    def unsettled(carry: tuple[Leaf, ...]) -> Leaf:
        number, *_, moved = carry
        return (number <= recipe.inner_steps) & (moved >= recipe.tolerance)

    def again(carry: tuple[Leaf, ...]) -> tuple[Leaf, ...]:
        number, theta, probs, *_ = carry
        # ΔN by q, P' and G, a θ step with N + ΔN
        counts = known.counts + model.count_labels(probs, batch, n_workers)
        crowd = model.crowd(known.others + model.pool(counts, recipe), recipe)
        theta = model.step(theta, counts, crowd, recipe)
        # π with f' and ν + Σ_i q_i
        inferred = known.class_counts + batch.counted_item @ probs
        prior = class_prior(label_shares, inferred, recipe)
        # q_i(c) ∝ π_c Π_k m_k[c, l_ik]
        log_scores = jnp.log(prior) + log_likelihood(model, theta, counts, crowd, batch, recipe)
        encoded = encode(log_scores)
        moved = (jnp.abs(encoded - probs) * batch.item_mask[:, None]).max()
        return number + 1, theta, encoded, log_scores, crowd, prior, moved

    # (2) is (3) before anything is said of the chunk: a θ step with the stored N.
    unsaid = jnp.zeros((len(batch.gold), n_classes))
    crowd = jnp.zeros_like(model.crowd(known.others, recipe))
    start = jnp.int32(0), known.theta, unsaid, unsaid, crowd, label_shares, jnp.float32(jnp.inf)
    rounds, theta, probs, log_scores, crowd, prior, _ = jax.lax.while_loop(unsettled, again, start)
    # With this q the loss is −log p(l_i), or −log p(l_i, y_i) where the truth is given.
    reached = jnp.where(given & ~is_true, -jnp.inf, log_scores)
    log_evidence = jax.nn.logsumexp(reached, axis=1) * batch.counted_item
    loss = -log_evidence.sum() / jnp.maximum(batch.counted_item.sum(), 1)
    counts = known.counts + model.count_labels(probs, batch, n_workers)
    reported = _unexplained(model, batch, probs, theta, counts, crowd, prior, recipe)
    return Fitted(theta, probs, reported, loss, rounds.astype(jnp.float32))


def log_likelihood(
    model: WorkerModel,
    theta: Leaf,
    counts: Leaf,
    crowd: Leaf,
    batch: CountedBatch,
    recipe: Recipe,
) -> Leaf:
    """Σ_k log m_k[c, l_ik] of each item, (M, C)."""
    said = model.label_log_probs(theta, counts, crowd, batch.worker, batch.label, recipe)
    return sum_by_item(said, batch)


def _unexplained(
    model: WorkerModel,
    batch: CountedBatch,
    probs: Leaf,
    theta: Leaf,
    counts: Leaf,
    crowd: Leaf,
    prior: Leaf,
    recipe: Recipe,
) -> Leaf:
    """What a model leaves unexplained of a chunk, and its evidence: `sums`."""
    said = log_likelihood(model, theta, counts, crowd, batch, recipe)
    powers = model.log_powers(theta, counts, crowd, recipe, CLARITY).T[batch.worker]
    once, said_once = batch, said
    if batch.worker_share is not None:
        once = batch._replace(weight=batch.worker_share)
        said_once = log_likelihood(model, theta, counts, crowd, once, recipe)
    # on a clear item Σ_k log( m_k[c, l]^λ / Σ_z m_k[c, z]^λ )
    clear = CLARITY * said_once - sum_by_item(powers, once)
    gain = gain_of_clear(jnp.log(prior) + said_once, jnp.log(prior) + clear)
    right = model.right(theta, counts, crowd, recipe).T[batch.worker]
    # log p(l_i), or log p(l_i, y_i) where the truth is given
    gold = batch.gold[:, None]
    excluded = (gold != MISSING) & (gold != np.arange(probs.shape[1]))
    if batch.worker_share is not None and batch.first_vote is None:
        # By shares a majority says less than it knows, and labels would seem to lean on each other.
        probs = jax.nn.softmax(jnp.where(excluded, -jnp.inf, jnp.log(prior) + said_once))
    believed = probs * batch.counted_item[:, None]
    reached = jnp.where(excluded, -jnp.inf, jnp.log(prior) + said)
    evidence = jax.nn.logsumexp(reached, axis=1)
    weight, votes = batch.counted_weight, (batch.worker_share, batch.first_vote)
    return sums(batch.item, batch.label, weight, right, believed, gain, evidence, *votes)


@partial(jax.jit, static_argnames=("name", "recipe"))
def past_unexplained(
    batch: CountedBatch,
    probs: Leaf,
    known: Known,
    label_shares: Leaf,
    *,
    name: str,
    recipe: Recipe,
) -> Leaf:
    """What labels counted before left unexplained, as the model sees it now: `sums`.

    `known.others` is P itself here.
    """
    theta, counts, model = known.theta, known.counts, WORKER_MODELS[name]
    crowd = model.crowd(known.others, recipe)
    prior = class_prior(label_shares, known.class_counts, recipe)
    return _unexplained(model, batch, probs, theta, counts, crowd, prior, recipe)


@partial(jax.jit, static_argnames=("name", "size", "recipe"))
def _solve_block(counts: Leaf, crowd: Leaf, *, name: str, size: int, recipe: Recipe) -> Leaf:
    """The θ that maximises J, (D, K): curvature steps until none moves."""

    def unsettled(carry: tuple[Leaf, Leaf, Leaf]) -> Leaf:
        number, _, moved = carry
        return (moved > STEP_TOLERANCE) & (number < MAX_STEPS)

    def again(carry: tuple[Leaf, Leaf, Leaf]) -> tuple[Leaf, Leaf, Leaf]:
        number, theta, _ = carry
        moved = WORKER_MODELS[name].step(theta, counts, crowd, recipe)
        return number + 1, moved, jnp.abs(moved - theta).max()

    theta = jnp.zeros((size, counts.shape[-1]), counts.dtype)
    first = (jnp.int32(0), theta, jnp.asarray(jnp.inf, counts.dtype))
    return jax.lax.while_loop(unsettled, again, first)[1]


def solve_workers(name: str, counts: Floats, pooled: Floats, recipe: Recipe) -> Floats:
    """θ of workers by a worker model in float64, (K, D), to the end: J has one maximum."""
    model, n_classes = WORKER_MODELS[name], pooled.shape[-1]
    size, crowd = model.theta_size(n_classes), model.crowd(pooled, recipe)
    theta = np.zeros((len(counts), size))
    with jax.enable_x64(True):
        for start in range(0, len(counts), WORKERS_PER_BLOCK):
            some = slice(start, min(start + WORKERS_PER_BLOCK, len(counts)))
            room = worker_room(some.stop - start, n_classes)
            block = workers_last(counts[some], room, np.float64)
            solved = _solve_block(block, crowd, name=name, size=size, recipe=recipe)
            theta[some] = np.asarray(solved)[:, : some.stop - start].T
    return theta


# ── arguments in one piece ───────────────────────────────────────────────────────────────
# To hand an array to compiled code, or to take one back, costs 10 to 20 µs however small it is. So
# all arguments are concatenated, floats and integers apart, and so are the results.


class _Layout(NamedTuple):
    """How named arrays were concatenated."""

    tree: Any  # the names, as JAX knows them
    shapes: tuple[tuple[int, ...], ...]
    is_integer: tuple[bool, ...]


def _flatten(tree: Any) -> tuple[NDArray[np.float32], NDArray[np.int32], _Layout]:
    leaves, names = jax.tree.flatten(tree)
    is_integer = tuple(leaf.dtype.kind == "i" for leaf in leaves)
    parts: tuple[list[Any], list[Any]] = ([], [])
    for leaf, kind in zip(leaves, is_integer, strict=True):
        parts[kind].append(leaf.ravel())
    shapes = tuple(leaf.shape for leaf in leaves)
    numbers, integers = (np.concatenate(part) for part in parts)
    return numbers.astype(np.float32, copy=False), integers, _Layout(names, shapes, is_integer)


def _unflatten(floats: Leaf, integers: Leaf, layout: _Layout) -> Any:
    """The named arrays again, of NumPy or of JAX as they came."""
    leaves, used = [], [0, 0]
    for shape, kind in zip(layout.shapes, layout.is_integer, strict=True):
        end = used[kind] + prod(shape)
        leaves.append((integers if kind else floats)[used[kind] : end].reshape(shape))
        used[kind] = end
    return jax.tree.unflatten(layout.tree, leaves)


@lru_cache
def _result_layout(layout: _Layout, recipe: Recipe) -> _Layout:
    kinds = [np.int32 if is_integer else np.float32 for is_integer in layout.is_integer]
    leaves = map(jax.ShapeDtypeStruct, layout.shapes, kinds)
    given = jax.tree.unflatten(layout.tree, leaves)
    fitted, names = jax.tree.flatten(jax.eval_shape(partial(_fit_each, recipe=recipe), given))
    return _Layout(names, tuple(leaf.shape for leaf in fitted), (False,) * len(fitted))
