"""Fitting: the rounds of θ and q in a chunk, and a worker's maximum, as compiled code.

This is the update of `docs/hierarchical.md`, for one model or for both. XLA compiles once per
shape, so chunks are padded to a few sizes; padding has weight 0 and changes no result. Chunks are
solved in float32, which is enough for q; a single worker can also be solved in float64, to the end.
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
from labelquorum.ingest.chunks import Chunk
from labelquorum.ingest.labels import MISSING
from labelquorum.learn.bila.dependence import CLARITY, gain_of_clear, sums
from labelquorum.learn.bila.hierarchical import Recipe, class_prior
from labelquorum.learn.bila.minibatch import Leaf, bucket
from labelquorum.learn.bila.worker_models import WORKER_MODELS, Packed, WorkerModel, sum_by_item

__all__ = [
    "Fitted",
    "Standing",
    "fit_chunk",
    "pack",
    "past_unexplained",
    "solve_workers",
    "worker_room",
    "workers_last",
]

SETTLED, MOST_STEPS = 1e-12, 1000
"""θ is solved when no number moves further in a step, or after so many steps."""

BLOCK = 1 << 14
"""Workers that are solved at a time."""


class Standing(NamedTuple):
    """What an model knows before a chunk."""

    counts: Leaf  # (…, K) of the chunk's workers
    theta: Leaf  # (D, K)
    others: Leaf  # (…) what all other workers give to P
    class_counts: Leaf  # ν (C,)


class Fitted(NamedTuple):
    """What a chunk gave an model."""

    theta: Leaf  # (D, K)
    class_probs: Leaf  # (M, C)
    unexplained: Leaf  # (7, C)
    loss: Leaf  # ()
    rounds: Leaf  # (), a whole number


def fit_chunk(
    packed: Packed, standings: Mapping[str, Standing], label_shares: Floats, *, recipe: Recipe
) -> dict[str, Fitted]:
    """Steps (2) and (3) of the update: θ and q in turn, with all that came before in the counts.

    Parameters
    ----------
    standings
        By model.
    label_shares
        f', this chunk's labels included, (C,).
    """
    floats, whole, layout = _lay_out((packed, dict(standings), label_shares))
    fitted = np.asarray(_fit_accounts(floats, whole, layout=layout, recipe=recipe))
    result: dict[str, Fitted] = _pick_up(fitted, fitted, _result_layout(layout, recipe))
    return result


@partial(jax.jit, static_argnames=("layout", "recipe"))
def _fit_accounts(floats: Leaf, whole: Leaf, *, layout: "_Layout", recipe: Recipe) -> Leaf:
    fitted = _fit_each(_pick_up(floats, whole, layout), recipe)
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(fitted)])


def _fit_each(given: tuple[Any, ...], recipe: Recipe) -> dict[str, Fitted]:
    packed, standings, label_shares = given
    return {
        name: _fit(WORKER_MODELS[name], packed, standing, label_shares, recipe)
        for name, standing in standings.items()
    }


def _fit(
    model: WorkerModel, packed: Packed, known: Standing, label_shares: Leaf, recipe: Recipe
) -> Fitted:
    n_classes, n_workers = len(label_shares), known.theta.shape[-1]
    given = packed.gold[:, None] != MISSING
    is_true = packed.gold[:, None] == np.arange(n_classes)
    is_item = np.arange(len(packed.gold)) < packed.n_items

    def encode(log_scores: Leaf) -> Leaf:
        return jnp.where(given, is_true, jax.nn.softmax(log_scores))

    def unsettled(carry: tuple[Leaf, ...]) -> Leaf:
        number, *_, moved = carry
        return (number <= recipe.inner_steps) & (moved >= recipe.tolerance)

    def again(carry: tuple[Leaf, ...]) -> tuple[Leaf, ...]:
        number, theta, probs, *_ = carry
        # ΔN by q, P' and G, a θ step with N + ΔN
        counts = known.counts + model.count_labels(probs, packed, n_workers)
        crowd = model.crowd(known.others + model.pool(counts, recipe), recipe)
        theta = model.step(theta, counts, crowd, recipe)
        # π with f' and ν + Σ_i q_i
        inferred = known.class_counts + packed.counted_item @ probs
        prior = class_prior(label_shares, inferred, recipe)
        # q_i(c) ∝ π_c Π_k m_k[c, l_ik]
        said = model.log_likelihood(theta, counts, crowd, packed, recipe)
        log_scores = jnp.log(prior) + said
        encoded = encode(log_scores)
        moved = (jnp.abs(encoded - probs) * is_item[:, None]).max()
        return number + 1, theta, encoded, log_scores, crowd, prior, moved

    # (2) is (3) before anything is said of the chunk: a θ step with the stored N.
    unsaid = jnp.zeros((len(packed.gold), n_classes))
    crowd = jnp.zeros_like(model.crowd(known.others, recipe))
    start = jnp.int32(0), known.theta, unsaid, unsaid, crowd, label_shares, jnp.float32(jnp.inf)
    rounds, theta, probs, log_scores, crowd, prior, _ = jax.lax.while_loop(unsettled, again, start)
    # With this q the loss is −log p(l_i), or −log p(l_i, y_i) where the truth is given.
    reached = jnp.where(given & ~is_true, -jnp.inf, log_scores)
    log_evidence = jax.nn.logsumexp(reached, axis=1) * packed.counted_item
    loss = -log_evidence.sum() / jnp.maximum(packed.counted_item.sum(), 1)
    counts = known.counts + model.count_labels(probs, packed, n_workers)
    told = _unexplained(model, packed, probs, theta, counts, crowd, prior, recipe)
    return Fitted(theta, probs, told, loss, rounds.astype(jnp.float32))


def _unexplained(
    model: WorkerModel,
    packed: Packed,
    probs: Leaf,
    theta: Leaf,
    counts: Leaf,
    crowd: Leaf,
    prior: Leaf,
    recipe: Recipe,
) -> Leaf:
    """What an model leaves unexplained of a chunk, and its evidence, (7, C)."""
    said = model.log_likelihood(theta, counts, crowd, packed, recipe)
    powers = model.log_powers(theta, counts, crowd, recipe, CLARITY).T[packed.worker]
    # on a clear item Σ_k log( m_k[c, l]^λ / Σ_z m_k[c, z]^λ )
    clear = CLARITY * said - sum_by_item(powers * packed.weight[:, None], packed)
    gain = gain_of_clear(jnp.log(prior) + said, jnp.log(prior) + clear)
    right = model.right(theta, counts, crowd, recipe).T[packed.worker]
    believed = probs * packed.counted_item[:, None]
    # log p(l_i), or log p(l_i, y_i) where the truth is given
    known = packed.gold[:, None]
    excluded = (known != MISSING) & (known != np.arange(probs.shape[1]))
    reached = jnp.where(excluded, -jnp.inf, jnp.log(prior) + said)
    evidence = jax.nn.logsumexp(reached, axis=1)
    weight = packed.counted_weight
    return sums(packed.item, packed.label, weight, right, believed, gain, evidence)


@partial(jax.jit, static_argnames=("name", "recipe"))
def past_unexplained(
    packed: Packed,
    probs: Leaf,
    standing: Standing,
    label_shares: Leaf,
    *,
    name: str,
    recipe: Recipe,
) -> Leaf:
    """What labels counted before left unexplained, as the model sees it now, (7, C).

    `others` of the standing is P itself here.
    """
    theta, counts, model = standing.theta, standing.counts, WORKER_MODELS[name]
    crowd = model.crowd(standing.others, recipe)
    prior = class_prior(label_shares, standing.class_counts, recipe)
    return _unexplained(model, packed, probs, theta, counts, crowd, prior, recipe)


@partial(jax.jit, static_argnames=("name", "size", "recipe"))
def _solve_block(counts: Leaf, crowd: Leaf, *, name: str, size: int, recipe: Recipe) -> Leaf:
    """The θ that maximises J, (D, K): curvature steps until none moves any more."""

    def unsettled(carry: tuple[Leaf, Leaf, Leaf]) -> Leaf:
        number, _, moved = carry
        return (moved > SETTLED) & (number < MOST_STEPS)

    def again(carry: tuple[Leaf, Leaf, Leaf]) -> tuple[Leaf, Leaf, Leaf]:
        number, theta, _ = carry
        moved = WORKER_MODELS[name].step(theta, counts, crowd, recipe)
        return number + 1, moved, jnp.abs(moved - theta).max()

    theta = jnp.zeros((size, counts.shape[-1]), counts.dtype)
    first = (jnp.int32(0), theta, jnp.asarray(jnp.inf, counts.dtype))
    return jax.lax.while_loop(unsettled, again, first)[1]


def solve_workers(name: str, counts: Floats, pooled: Floats, recipe: Recipe) -> Floats:
    """θ of these workers by an model in float64, (K, D), as far as it goes: J has one maximum."""
    model, n_classes = WORKER_MODELS[name], pooled.shape[-1]
    size, crowd = model.theta_size(n_classes), model.crowd(pooled, recipe)
    theta = np.zeros((len(counts), size))
    with jax.enable_x64(True):
        for start in range(0, len(counts), BLOCK):
            some = slice(start, min(start + BLOCK, len(counts)))
            room = worker_room(some.stop - start, n_classes)
            block = workers_last(counts[some], room, np.float64)
            solved = _solve_block(block, crowd, name=name, size=size, recipe=recipe)
            theta[some] = np.asarray(solved)[:, : some.stop - start].T
    return theta


# ── in one piece ─────────────────────────────────────────────────────────────────────────
# To hand an array to compiled code, or to take one back, costs 10 to 20 µs however small it is. So
# all that goes in is laid end to end, numbers and whole numbers apart, and so is what comes out.


class _Layout(NamedTuple):
    """How named arrays were laid end to end."""

    tree: Any  # the names, as JAX knows them
    shapes: tuple[tuple[int, ...], ...]
    is_whole: tuple[bool, ...]


def _lay_out(tree: Any) -> tuple[NDArray[np.float32], NDArray[np.int32], _Layout]:
    leaves, names = jax.tree.flatten(tree)
    is_whole = tuple(leaf.dtype.kind == "i" for leaf in leaves)
    parts: tuple[list[Any], list[Any]] = ([], [])
    for leaf, kind in zip(leaves, is_whole, strict=True):
        parts[kind].append(leaf.ravel())
    shapes = tuple(leaf.shape for leaf in leaves)
    numbers, whole = (np.concatenate(part) for part in parts)
    return numbers.astype(np.float32, copy=False), whole, _Layout(names, shapes, is_whole)


def _pick_up(floats: Leaf, whole: Leaf, layout: _Layout) -> Any:
    """The named arrays again, of NumPy or of JAX as they came."""
    leaves, used = [], [0, 0]
    for shape, kind in zip(layout.shapes, layout.is_whole, strict=True):
        end = used[kind] + prod(shape)
        leaves.append((whole if kind else floats)[used[kind] : end].reshape(shape))
        used[kind] = end
    return jax.tree.unflatten(layout.tree, leaves)


@lru_cache
def _result_layout(layout: _Layout, recipe: Recipe) -> _Layout:
    kinds = [np.int32 if whole else np.float32 for whole in layout.is_whole]
    leaves = map(jax.ShapeDtypeStruct, layout.shapes, kinds)
    given = jax.tree.unflatten(layout.tree, leaves)
    fitted, names = jax.tree.flatten(jax.eval_shape(partial(_fit_each, recipe=recipe), given))
    return _Layout(names, tuple(leaf.shape for leaf in fitted), (False,) * len(fitted))


# ── shapes that recur ────────────────────────────────────────────────────────────────────


def pack(chunk: Chunk, counted_weight: NDArray[np.float32], counted_item: Floats) -> Packed:
    """Pad a chunk; the two other arrays are as in `Packed`."""
    n_labels, n_items = _room(chunk.n_labels, 128), _room(chunk.n_items, 16)
    gold = np.full(n_items, MISSING, np.int32)
    if chunk.gold is not None:
        gold[: chunk.n_items] = chunk.gold
    return Packed(
        item=_pad(chunk.item, n_labels, n_items - 1),
        worker=_pad(chunk.local_worker, n_labels),
        label=_pad(chunk.label, n_labels),
        weight=_pad(chunk.weight, n_labels),
        counted_weight=_pad(counted_weight, n_labels),
        counted_item=_pad(counted_item.astype(np.float32), n_items),
        gold=gold,
        n_items=np.int32(chunk.n_items),
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


def worker_room(n_workers: int, n_classes: int) -> int:
    """For how many workers compiled code is made, where there are so many."""
    # from 128 workers on, but from no more than 2¹³ cells of their matrices
    return _room(n_workers, min(128, max(4, bucket((1 << 13) // max(n_classes, 1) ** 2, 1))))


def workers_last(rows: Floats, room: int, kind: type = np.float32) -> NDArray[Any]:
    """Rows (K, …) as compiled code takes them: (…, room), padded with zeros."""
    padded = np.zeros((*rows.shape[1:], room), kind)
    padded[..., : len(rows)] = np.moveaxis(rows, 0, -1)
    return padded
