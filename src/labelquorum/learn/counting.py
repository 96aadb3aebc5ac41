"""Counting: learning from a stream whose whole past is counts, chunk by chunk.

BiLA's loss over everything seen so far, with the q of the past as it was when it was counted,
depends on the past only through the counts N, the pooled matrix P, and two sums over items, f
and ν. So a chunk is solved together with all that came before it, and then its labels can go.
`docs/recipe.md` has the derivation, `hierarchical.py` the model, `fitting.py` a chunk's rounds.

Counts are kept and added in float64, outside compiled code: at 2²⁴ a float32 ignores +0.4.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

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
from labelquorum.learn.fitting import fit_chunk, pack, solve_workers, workers_last
from labelquorum.learn.hierarchical import (
    Recipe,
    class_prior,
    crowd_matrix,
    row_sums,
    worker_weight,
)
from labelquorum.learn.laplace import draws
from labelquorum.learn.offline import Floats
from labelquorum.learn.rows import WorkerRows
from labelquorum.learn.training import keep_compiled_code

__all__ = ["Info", "State", "add", "aggregate", "counting", "heat", "init", "merge", "update"]

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
    fitted = fit_chunk(
        pack(chunk, tally.labels.weight, tally.items),
        workers_last(counts),
        workers_last(known["theta"]),
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
    return Aggregation(
        aggregated=break_ties(log_scores, chunk.item_keys, state.seed),
        probs=softmax(log_scores / heat(state, n_labels, recipe)[:, None]),
        log_evidence=evidence.astype(np.float32),
    )


def heat(state: State, n_labels: NDArray[Any], recipe: Recipe) -> Floats:
    """What the log-odds of an item with so many labels are divided by, (N,)."""
    # 1 + ρ (n_i − 1)
    return np.asarray(1 + recipe.dependence * np.maximum(n_labels - 1, 0), np.float64)


def add(state: State, workers: NDArray[np.intp], counts: Floats, recipe: Recipe) -> State:
    """Count labels whose truth is known, (P, C, C), of workers who may be new."""
    state = _with_workers(state, int(workers.max(initial=-1)) + 1)
    before = state.rows.gather(workers)["counts"]
    pooled = state.pooled + _pool(before + counts, recipe) - _pool(before, recipe)
    rows = {"counts": before + counts, "theta": solve_workers(before + counts, pooled, recipe)}
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
        rows=WorkerRows({"counts": counts, "theta": solve_workers(counts, pooled, recipe)}),
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
        draws=partial(draws, recipe=recipe),
        heat=partial(heat, recipe=recipe),
    )


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
    if more < 0:
        raise StateError(
            f"`n_classes` of a chunk must count all classes known, {len(state.pooled)} by now. "
            f"Got {chunk.n_classes}."
        )
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
