"""Counting: learning from a stream whose whole past is counts, chunk by chunk.

BiLA's loss over everything seen so far, with the q of the past as it was when it was counted,
depends on the past only through the counts N, the pooled matrix P, and two sums over items, f
and ν. So a chunk is solved together with all that came before it, and then its labels can go.
`docs/recipe.md` has the derivation, `hierarchical.py` the model.

Counts are kept and added in float64, outside compiled code: at 2²⁴ a float32 ignores +0.4.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from labelquorum.errors import StateError
from labelquorum.ingest.chunks import Chunk
from labelquorum.ingest.events import MISSING
from labelquorum.learn.aggregator import (
    Aggregation,
    Aggregator,
    Counts,
    Part,
    break_ties,
    softmax,
    vote_shares,
)
from labelquorum.learn.batch import Leaf, bucket
from labelquorum.learn.hierarchical import (
    Recipe,
    class_prior,
    crowd_matrix,
    log_confusion,
    pool,
    row_sums,
    step,
    worker_weight,
)
from labelquorum.learn.offline import Floats
from labelquorum.learn.rows import WorkerRows
from labelquorum.learn.training import keep_compiled_code

__all__ = ["Info", "State", "add", "aggregate", "counting", "init", "merge", "update"]

SETTLED, MOST_STEPS = 1e-12, 1000
"""θ is solved when no number moves further in a step, or after so many steps."""

BLOCK = 1 << 14
"""Workers that are solved at a time."""

MOST_CELLS = 1 << 22
"""Numbers that are laid out at a time when labels are counted."""


class State(NamedTuple):
    """All that is kept: zeros at the start, and a new worker or class is a row of zeros."""

    rows: WorkerRows  # "counts" N (K, C, C); "theta" (K, C + 1), the tilt a and then the biases b
    pooled: Floats  # P (C, C), the counts with each worker's weight
    class_counts: Floats  # ν (C,), the sum of q over items
    label_shares: Floats  # f (C,), the sum over items of the share of labels that named a class
    seed: int


class Info(NamedTuple):
    """What an update did."""

    n_labels: int
    steps: int
    losses: NDArray[np.float32]  # (1,) mean of −log p(labels of an item)
    counted_probs: NDArray[np.float32]  # (N, C) the q by which each item's labels were counted


def init(chunk: Chunk, seed: int) -> State:
    """Know nobody."""
    n_classes = chunk.n_classes
    rows = WorkerRows(_blank_rows(0, n_classes))
    return State(
        rows, np.zeros((n_classes, n_classes)), np.zeros(n_classes), np.zeros(n_classes), seed
    )


def update(state: State, chunk: Chunk, recipe: Recipe) -> tuple[State, Info]:
    """Solve the chunk together with the counts of all that came before it, and count it."""
    state = _grow(state, chunk)
    if not chunk.n_labels:
        nothing = np.zeros((chunk.n_items, chunk.n_classes), np.float32)
        return state, Info(0, 0, np.zeros(0, np.float32), nothing)
    known = state.rows.gather(chunk.workers)
    counts, class_counts, label_shares = known["counts"], state.class_counts, state.label_shares
    tally = _tally(chunk)
    if tally.past is not None:
        # Open items are counted anew, with all their labels: what they gave before is taken back.
        past, past_probs = tally.past
        counts = np.maximum(counts - _soft_counts(past_probs, past), 0)
        class_counts = np.maximum(class_counts - past_probs.sum(axis=0), 0)
        label_shares = np.maximum(label_shares - vote_shares(past).sum(axis=0), 0)
    # (1) f' = f + label shares
    label_shares = label_shares + tally.items @ vote_shares(chunk)
    # P without the chunk's workers, whose part of it changes in each step
    others = state.pooled - _pool(known["counts"], recipe)
    fitted = _fit_chunk(
        _pack(chunk, tally),
        _workers_last(counts),
        _workers_last(known["theta"]),
        *(part.astype(np.float32) for part in (others, label_shares, class_counts)),
        recipe=recipe,
    )
    theta = np.asarray(fitted.theta)[:, : len(counts)].T
    if not np.isfinite(theta).all():
        raise StateError(
            "Learning from this chunk gave no finite numbers, so it was not learned from. "
            "Look for extreme weights, or for settings far from their defaults."
        )
    # (4) commit, and drop the labels
    probs = np.asarray(fitted.class_probs, np.float64)[: chunk.n_items]
    counts = counts + _soft_counts(probs, tally.labels)
    counted = probs * tally.items[:, None]
    following = State(
        rows=state.rows.scatter(chunk.workers, {"counts": counts, "theta": theta}),
        pooled=others + _pool(counts, recipe),
        class_counts=class_counts + counted.sum(axis=0),
        label_shares=label_shares,
        seed=state.seed,
    )
    losses = np.asarray(fitted.loss)[None]
    counted_probs = counted.astype(np.float32)
    return following, Info(chunk.n_labels, recipe.inner_steps + 1, losses, counted_probs)


def aggregate(state: State, chunk: Chunk, recipe: Recipe) -> Aggregation:
    """Give each item its most probable class; an item whose truth was given gets that."""
    state = _grow(state, chunk)
    theta = state.rows.gather(chunk.workers, ("theta",))["theta"].T
    crowd = crowd_matrix(state.pooled, recipe)
    evidence = _evidence(crowd, theta, chunk) * chunk.weight[:, None]
    # q(y = c | l_i) ∝ π_c Π_k m_k[c, l_ik]
    log_prior = np.log(class_prior(state.label_shares, state.class_counts, recipe))
    log_scores = log_prior + _sum_by_item(evidence, chunk)
    if chunk.gold is not None:
        given = (chunk.gold != MISSING)[:, None]
        is_true = np.arange(chunk.n_classes) == chunk.gold[:, None]
        log_scores = np.where(given & ~is_true, -np.inf, log_scores)
    # (5) labels of one item lean on each other: q^(1 / (1 + ρ (n_i − 1))), normalised
    n_labels = np.bincount(chunk.item, chunk.weight, chunk.n_items)
    heat = 1 + recipe.dependence * np.maximum(n_labels - 1, 0)
    return Aggregation(
        aggregated=break_ties(log_scores, chunk.item_keys, state.seed),
        probs=softmax(log_scores / heat[:, None]),
        log_evidence=evidence.astype(np.float32),
    )


def add(state: State, workers: NDArray[np.intp], counts: Floats, recipe: Recipe) -> State:
    """Count labels whose truth is known, (P, C, C), of workers who may be new."""
    state = _with_workers(state, int(workers.max(initial=-1)) + 1)
    before = state.rows.gather(workers)["counts"]
    pooled = state.pooled + _pool(before + counts, recipe) - _pool(before, recipe)
    rows = {"counts": before + counts, "theta": _solve(before + counts, pooled, recipe)}
    return state._replace(rows=state.rows.scatter(workers, rows), pooled=pooled)


def merge(
    parts: Sequence[Part], base: Part | None, n_workers: int, n_classes: int, recipe: Recipe
) -> State:
    """Add up what each part counted beyond the base; P is built and θ solved anew."""
    counts = np.zeros((n_workers, n_classes, n_classes))
    class_counts, label_shares = np.zeros(n_classes), np.zeros(n_classes)
    # base + Σ_i (part_i − base)
    terms = [(part, 1) for part in parts] + ([(base, 1 - len(parts))] if base else [])
    for (state, workers, classes), times in terms:
        known = workers != MISSING
        cells = np.ix_(workers[known], classes, classes)
        counts[cells] += times * state.rows.to_arrays()["counts"][known]
        class_counts[classes] += times * state.class_counts
        label_shares[classes] += times * state.label_shares
    counts = np.maximum(counts, 0)
    pooled = _pool(counts, recipe)
    return State(
        rows=WorkerRows({"counts": counts, "theta": _solve(counts, pooled, recipe)}),
        pooled=pooled,
        class_counts=np.maximum(class_counts, 0),
        label_shares=np.maximum(label_shares, 0),
        seed=(parts[0] if base is None else base).state.seed,
    )


def counting(recipe: Recipe) -> Aggregator:
    """Bind the constants; `bila` is the door to it."""
    keep_compiled_code()
    return Aggregator(
        name="bila",
        state_type=State,
        init=init,
        update=partial(update, recipe=recipe),
        aggregate=partial(aggregate, recipe=recipe),
        confusion=partial(_confusion, recipe=recipe),
        class_prior=lambda state: class_prior(state.label_shares, state.class_counts, recipe),
        forget=_forget,
        counts=Counts(partial(add, recipe=recipe), partial(merge, recipe=recipe)),
    )


# ── what is compiled ─────────────────────────────────────────────────────────────────────


class _Packed(NamedTuple):
    """A chunk padded to its bucket; padding has weight 0."""

    item: Leaf  # (B,)
    cell: Leaf  # (B,) worker · C + label
    weight: Leaf  # (B,) what a label counts for in q
    counted_weight: Leaf  # (B,) and in the counts
    counted_item: Leaf  # (M,) 1 where an item counts in ν
    gold: Leaf  # (M,) the true class where it was given, or MISSING


class _Fitted(NamedTuple):
    theta: Leaf  # (C + 1, K)
    class_probs: Leaf  # (M, C)
    loss: Leaf  # ()


@partial(jax.jit, static_argnames="recipe")
def _fit_chunk(
    packed: _Packed,
    counts: Leaf,
    theta: Leaf,
    others: Leaf,
    label_shares: Leaf,
    class_counts: Leaf,
    *,
    recipe: Recipe,
) -> _Fitted:
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
    return _Fitted(theta, class_probs(log_scores), loss)


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


def _solve(counts: Floats, pooled: Floats, recipe: Recipe) -> Floats:
    """θ of these workers in float64, (K, C + 1), as far as it goes: J has one maximum."""
    theta, crowd = np.zeros((len(counts), len(pooled) + 1)), crowd_matrix(pooled, recipe)
    with jax.enable_x64(True):
        for start in range(0, len(counts), BLOCK):
            block = _workers_last(counts[start : start + BLOCK], np.float64)
            solved = np.asarray(_solve_block(block, crowd, recipe=recipe)).T
            theta[start : start + BLOCK] = solved[: len(counts) - start]
    return theta


# ── from a chunk to what is counted ──────────────────────────────────────────────────────


class _Tally(NamedTuple):
    """What of a chunk is counted now, and what of it was counted before."""

    labels: Chunk  # with the weight by which each label is counted
    items: Floats  # (N,) 1 where the item counts in f and ν
    past: tuple[Chunk, Floats] | None  # labels as they were counted, and the q (N, C) of then


def _tally(chunk: Chunk) -> _Tally:
    """Sort out the labels of open items.

    An item that was counted before is counted again with all its labels, and the past is taken
    back. Where the q of then is not known, only labels of workers new to the item are counted.
    """
    items = (np.bincount(chunk.item, chunk.weight, chunk.n_items) > 0).astype(np.float64)
    corrects = chunk.replaced != MISSING
    seen = chunk.known | corrects
    if not seen.any():
        return _Tally(chunk, items, None)
    label = np.where(corrects, chunk.replaced, chunk.label)
    weight = np.where(seen, np.where(corrects, chunk.replaced_weight, chunk.weight), 0)
    past = chunk._replace(label=label, weight=weight.astype(np.float32))
    probs = np.zeros((chunk.n_items, chunk.n_classes))
    if chunk.counted_probs is not None:
        probs += chunk.counted_probs
    was_counted = np.bincount(chunk.item, past.weight, chunk.n_items) > 0
    lost = was_counted & (probs.sum(axis=1) == 0)
    past = past._replace(weight=np.where(lost[chunk.item], np.float32(0), past.weight))
    counted = np.where(lost[chunk.item], chunk.counted_weight, chunk.weight)
    return _Tally(chunk._replace(weight=counted), np.where(lost, 0.0, items), (past, probs))


def _pack(chunk: Chunk, tally: _Tally) -> _Packed:
    n_labels, n_items = _room(chunk.n_labels, 128), _room(chunk.n_items, 16)
    gold = np.full(n_items, MISSING, np.int32)
    if chunk.gold is not None:
        gold[: chunk.n_items] = chunk.gold
    return _Packed(
        item=_pad(chunk.item, n_labels, n_items - 1),
        cell=_pad(chunk.local_worker * np.int32(chunk.n_classes) + chunk.label, n_labels),
        weight=_pad(chunk.weight, n_labels),
        counted_weight=_pad(tally.labels.weight, n_labels),
        counted_item=_pad(tally.items.astype(np.float32), n_items),
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


def _workers_last(rows: Floats, kind: type = np.float32) -> NDArray[Any]:
    """Rows (K, …) as compiled code takes them: (…, K), padded with zeros."""
    # 128 workers, but no more than 2¹³ cells of their matrices
    fewest = min(128, max(4, bucket((1 << 13) // max(rows.shape[1], 1) ** 2, 1)))
    padded = np.zeros((*rows.shape[1:], _room(len(rows), fewest)), kind)
    padded[..., : len(rows)] = np.moveaxis(rows, 0, -1)
    return padded


def _soft_counts(probs: Floats, labels: Chunk) -> Floats:
    """Labels z of worker k, times P(truth is c), (P, C, C)."""
    n_classes, n_workers = labels.n_classes, len(labels.workers)
    cell = labels.local_worker.astype(np.intp) * n_classes + labels.label
    counts = np.empty((n_workers, n_classes, n_classes))
    together = max(1, MOST_CELLS // max(len(cell), n_workers * n_classes))  # classes at a time
    for first in range(0, n_classes, together):
        some = probs[:, first : first + together]
        width = some.shape[1]
        where = cell[:, None] * width + np.arange(width)
        shares = some.take(labels.item, axis=0) * labels.weight[:, None]
        total = np.bincount(where.ravel(), shares.ravel(), n_workers * n_classes * width)
        total = total.reshape(n_workers, n_classes, width)
        counts[:, first : first + together] = total.swapaxes(1, 2)
    return counts


def _pool(counts: Floats, recipe: Recipe) -> Floats:
    """What these workers give to P, in float64, (C, C); counts are (K, C, C)."""
    # Σ_k N_k[c, z] κ/(κ + n_k[c])
    n_classes = counts.shape[2]
    totals = (counts.reshape(-1, n_classes) @ np.ones(n_classes)).reshape(-1, n_classes)
    return np.asarray(np.einsum("kcz,kc->cz", counts, worker_weight(totals, recipe)))


# ── looking at the state ─────────────────────────────────────────────────────────────────


def _evidence(crowd: Floats, theta: Floats, chunk: Chunk) -> Floats:
    """Say what each label says for each class: log m_k[c, l_ik], (B, C)."""
    log_sums: Floats = np.log(row_sums(crowd, np.exp(theta[0]), np.exp(theta[1:])))
    worker = chunk.local_worker
    # log m_k[c, z] = log G[c, z] + a 1[c = z] + b_z − log R_k[c]
    evidence: Floats = np.log(crowd).T.take(chunk.label, axis=0) - log_sums.T.take(worker, axis=0)
    evidence += theta[1 + chunk.label, worker][:, None]
    evidence[np.arange(chunk.n_labels), chunk.label] += theta[0].take(worker)
    return evidence


def _sum_by_item(values: Floats, chunk: Chunk) -> Floats:
    """Add up rows (B, C) of the same item, (N, C)."""
    edges = np.searchsorted(chunk.item, np.arange(chunk.n_items + 1))
    labelled = edges[1:] > edges[:-1]
    total = np.zeros((chunk.n_items, chunk.n_classes))
    if len(values):
        total[labelled] = np.add.reduceat(values, edges[:-1][labelled], axis=0)
    return total


def _confusion(
    state: State, workers: NDArray[np.integer[Any]], recipe: Recipe
) -> NDArray[np.float32]:
    """The matrices m of these workers, (P, C, C)."""
    crowd, theta = crowd_matrix(state.pooled, recipe), state.rows.gather(workers)["theta"]
    # softmax_z( log G[c, z] + a 1[c = z] + b_z )
    logits = np.log(crowd) + theta[:, :1, None] * np.eye(len(crowd)) + theta[:, None, 1:]
    matrix = np.exp(logits - logits.max(axis=2, keepdims=True, initial=-np.inf))
    return np.asarray(matrix / matrix.sum(axis=2, keepdims=True), np.float32)


def _forget(state: State, worker: int) -> State:
    """Zero the worker's rows; what he gave to P stays, so that nobody else's matrix moves."""
    blank = _blank_rows(1, len(state.pooled))
    return state._replace(rows=state.rows.scatter(np.array([worker]), blank))


def _blank_rows(n_workers: int, n_classes: int) -> dict[str, Floats]:
    return {
        "counts": np.zeros((n_workers, n_classes, n_classes)),
        "theta": np.zeros((n_workers, n_classes + 1)),
    }


def _grow(state: State, chunk: Chunk) -> State:
    """Make room for classes and workers the state has not met; nobody's numbers change."""
    more = chunk.n_classes - len(state.pooled)
    if more > 0:
        known = state.rows.to_arrays()
        rows = {
            "counts": np.pad(known["counts"], ((0, 0), (0, more), (0, more))),
            "theta": np.pad(known["theta"], ((0, 0), (0, more))),
        }
        state = state._replace(
            rows=WorkerRows(rows),
            pooled=np.pad(state.pooled, (0, more)),
            class_counts=np.pad(state.class_counts, (0, more)),
            label_shares=np.pad(state.label_shares, (0, more)),
        )
    return _with_workers(state, chunk.n_workers)


def _with_workers(state: State, n_workers: int) -> State:
    new = np.arange(state.rows.n_workers, n_workers)
    if not len(new):
        return state
    blank = _blank_rows(len(new), len(state.pooled))
    return state._replace(rows=state.rows.scatter(new, blank))
