"""The solver over arrays in float64: NumPy, or JAX, compiled, for a GPU.

The same functions as in `kernel`. NumPy is what runs where the kernel was not built.
"""

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.ingest.labels import MISSING
from labelquorum.learn.bila.dependence import CLARITY, gain_of_clear, log_sum_exp, sums
from labelquorum.learn.bila.hierarchical import Recipe, class_prior
from labelquorum.learn.bila.identification import expected_error_of
from labelquorum.learn.bila.lazy_jax import jax, jit, jnp
from labelquorum.learn.bila.minibatch import (
    CountedBatch,
    Leaf,
    array_namespace,
    bucket,
    pad,
    sum_by_item,
    workers_last,
)
from labelquorum.learn.bila.worker_models import (
    WORKER_MODELS,
    Fitted,
    Known,
    Settled,
    WorkerModel,
)

STEP_TOLERANCE, MAX_STEPS = 1e-12, 1000
"""A worker is solved when no number of θ moves further in a step, or after `MAX_STEPS` steps."""

WORKERS_PER_BLOCK = 1 << 14
"""Workers solved at a time, to bound memory."""


def fit(
    name: str, batch: CountedBatch, known: Known, label_shares: Floats, recipe: Recipe
) -> Fitted:
    """Solve a chunk by one worker model together with all that was counted before."""
    result = _fit(WORKER_MODELS[name], batch, _last(known), label_shares, recipe, _repeat)
    return _fitted(name, known, result, recipe)


def fit_compiled(
    name: str, batch: CountedBatch, known: Known, label_shares: Floats, recipe: Recipe
) -> Fitted:
    """`fit` in JAX."""
    with jax.enable_x64(True):
        with_room = _last(known, bucket(len(known.theta), 32))
        result = _fit_jax(on_device(batch), with_room, label_shares, name=name, recipe=recipe)
        theta, probs, counts, *rest = map(np.asarray, result)
    n_workers = len(known.theta)
    cut = theta[..., :n_workers], probs[: len(batch.gold)], counts[..., :n_workers]
    return _fitted(name, known, (*cut, *rest), recipe)


def _fitted(name: str, known: Known, result: tuple[Leaf, ...], recipe: Recipe) -> Fitted:
    theta, probs, counts, sums, unexplained, loss, rounds = result
    counts = _first(counts)
    pooled = known.others + pool(name, counts, recipe)
    numbers = np.array([loss, rounds])
    return Fitted(counts, _first(theta), probs, pooled, unexplained, numbers, sums)


@jit(static_argnames=("name", "recipe"))
def _fit_jax(
    batch: CountedBatch, known: Known, label_shares: Leaf, *, name: str, recipe: Recipe
) -> tuple[Leaf, ...]:
    model = WORKER_MODELS[name]
    theta, probs, *rest = _fit(model, batch, known, label_shares, recipe, jax.lax.while_loop)
    return theta, probs.astype(np.float32), *rest  # they are rounded: half to copy


def _repeat(unsettled: Callable[[Any], Any], again: Callable[[Any], Any], carry: Any) -> Any:
    while unsettled(carry):
        carry = again(carry)
    return carry


def _fit(
    model: WorkerModel,
    batch: CountedBatch,
    known: Known,
    label_shares: Leaf,
    recipe: Recipe,
    loop: Callable[..., Any],
) -> tuple[Leaf, ...]:
    """θ, q, counts, sums of q by class, unexplained sums, loss and rounds; workers are last."""
    n_classes, n_workers = len(label_shares), known.theta.shape[-1]
    xp = array_namespace(known.theta, batch.gold)
    given = batch.gold[:, None] != MISSING
    is_true = batch.gold[:, None] == np.arange(n_classes)

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
        log_scores = xp.log(prior) + _log_likelihood(model, theta, counts, crowd, batch, recipe)
        encoded = xp.where(given, is_true, _softmax(log_scores))
        # As it is kept of open items, so that it can be taken back exactly.
        encoded = encoded.astype(np.float32).astype(known.theta.dtype)
        moved = xp.abs(encoded - probs).max()
        return number + 1, theta, encoded, log_scores, crowd, prior, moved

    # The first round is one before anything is said of the chunk: a θ step with the stored N.
    unsaid = xp.zeros((len(batch.gold), n_classes), known.theta.dtype)
    crowd = xp.zeros_like(model.crowd(known.others, recipe))
    start = (
        xp.asarray(0),
        known.theta,
        unsaid,
        unsaid,
        crowd,
        label_shares,
        xp.asarray(np.inf, known.theta.dtype),
    )
    rounds, theta, probs, log_scores, crowd, prior, _ = loop(unsettled, again, start)
    # With this q the loss is −log p(l_i), or −log p(l_i, y_i) where the truth is given.
    reached = xp.where(given & ~is_true, -xp.inf, log_scores)
    log_evidence = log_sum_exp(reached) * batch.counted_item
    loss = -log_evidence.sum() / xp.maximum(batch.counted_item.sum(), 1)
    counts = known.counts + model.count_labels(probs, batch, n_workers)
    reported = _unexplained(model, batch, probs, theta, counts, crowd, prior, recipe)
    return theta, probs, counts, batch.counted_item @ probs, reported, loss, rounds


def _softmax(log_scores: Leaf) -> Leaf:
    xp = array_namespace(log_scores)
    probs = xp.exp(log_scores - log_scores.max(axis=1, keepdims=True))
    return probs / probs.sum(axis=1, keepdims=True)


def _log_likelihood(
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
    xp = array_namespace(probs, theta)
    log_prior = xp.log(prior)
    said = _log_likelihood(model, theta, counts, crowd, batch, recipe)
    powers = model.log_powers(theta, counts, crowd, recipe, CLARITY).T[batch.worker]
    once, said_once = batch, said
    if batch.worker_share is not None:
        once = batch._replace(weight=batch.worker_share)
        said_once = _log_likelihood(model, theta, counts, crowd, once, recipe)
    # on a clear item Σ_k log( m_k[c, l]^λ / Σ_z m_k[c, z]^λ )
    clear = CLARITY * said_once - sum_by_item(powers, once)
    gain = gain_of_clear(log_prior + said_once, log_prior + clear)
    right = model.right(theta, counts, crowd, recipe).T[batch.worker]
    # log p(l_i), or log p(l_i, y_i) where the truth is given
    gold = batch.gold[:, None]
    excluded = (gold != MISSING) & (gold != np.arange(probs.shape[1]))
    if batch.worker_share is not None and batch.first_vote is None:
        # By shares a majority says less than it knows, and labels would seem to lean on each other.
        probs = _softmax(xp.where(excluded, -xp.inf, log_prior + said_once))
    believed = probs * batch.counted_item[:, None]
    evidence = log_sum_exp(xp.where(excluded, -xp.inf, log_prior + said))
    weight, votes = batch.counted_weight, (batch.worker_share, batch.first_vote)
    return sums(batch.item, batch.label, weight, right, believed, gain, evidence, *votes)


# ── a model that is settled ──────────────────────────────────────────────────────────────


def score(
    name: str, batch: CountedBatch, settled: Settled, recipe: Recipe
) -> tuple[Floats, NDArray[np.float32]]:
    """Log scores of items, (N, C), and what each label says for each class, weighted, (B, C)."""
    scores, evidence = _score(batch, _last(settled), name=name, recipe=recipe)
    return scores, evidence.astype(np.float32)


def score_compiled(
    name: str, batch: CountedBatch, settled: Settled, recipe: Recipe
) -> tuple[Floats, NDArray[np.float32]]:
    """`score` in JAX."""
    with jax.enable_x64(True):
        with_room = _last(settled, bucket(len(settled.theta), 32))
        scores, evidence = _score_jax(on_device(batch), with_room, name=name, recipe=recipe)
        return np.asarray(scores)[: len(batch.gold)], np.asarray(evidence)[: len(batch.item)]


def expected_errors_compiled(
    name: str,
    batch: CountedBatch,
    settled: Settled,
    n_workers: Floats,
    recipe: Recipe,
) -> Floats:
    """`expected_errors` of `score`, in JAX: what is scored stays on the device."""
    with jax.enable_x64(True):
        room = bucket(len(batch.gold), 16)
        with_room = _last(settled, bucket(len(settled.theta), 32))
        arguments = on_device(batch), with_room, pad(n_workers, room)
        return np.asarray(_expected_errors_jax(*arguments, name=name, recipe=recipe))


def _score(
    batch: CountedBatch, settled: Settled, *, name: str, recipe: Recipe
) -> tuple[Leaf, Leaf]:
    model, xp = WORKER_MODELS[name], array_namespace(settled.theta)
    crowd = model.crowd(settled.pooled, recipe)
    said = model.label_log_probs(
        settled.theta, settled.counts, crowd, batch.worker, batch.label, recipe
    )
    prior = class_prior(settled.label_shares, settled.class_counts, recipe)
    return xp.log(prior) + sum_by_item(said, batch), said * batch.weight[:, None]


@jit(static_argnames=("name", "recipe"))
def _score_jax(
    batch: CountedBatch, settled: Settled, *, name: str, recipe: Recipe
) -> tuple[Leaf, Leaf]:
    scores, evidence = _score(batch, settled, name=name, recipe=recipe)
    return scores, evidence.astype(np.float32)


@jit(static_argnames=("name", "recipe"))
def _expected_errors_jax(
    batch: CountedBatch,
    settled: Settled,
    n_workers: Leaf,
    *,
    name: str,
    recipe: Recipe,
) -> Leaf:
    scores, _ = _score(batch, settled, name=name, recipe=recipe)
    errors = expected_error_of(scores.T, jnp.maximum(n_workers, 1))
    return jnp.where(n_workers > 0, errors, 0).sum(axis=-1)


def past_unexplained(
    name: str, batch: CountedBatch, probs: Floats, settled: Settled, recipe: Recipe
) -> Floats:
    """What labels counted before left unexplained, as the model sees it now: `sums`."""
    model, (counts, theta, pooled, label_shares, class_counts) = WORKER_MODELS[name], _last(settled)
    crowd = model.crowd(pooled, recipe)
    prior = class_prior(label_shares, class_counts, recipe)
    return np.asarray(_unexplained(model, batch, probs, theta, counts, crowd, prior, recipe))


def count(name: str, batch: CountedBatch, probs: Floats, n_workers: int) -> Floats:
    """The counts of labels by q (N, C), (P, …)."""
    return _first(WORKER_MODELS[name].count_labels(probs, batch, n_workers))


def pool(name: str, counts: Floats, recipe: Recipe) -> Floats:
    """What workers give to P, of their counts (P, …)."""
    return np.asarray(WORKER_MODELS[name].pool(np.moveaxis(counts, 0, -1), recipe))


def solve_workers(name: str, counts: Floats, pooled: Floats, recipe: Recipe) -> Floats:
    """θ of workers at the maximum of J, (P, D): J has one maximum."""
    model, n_classes = WORKER_MODELS[name], pooled.shape[-1]
    size, crowd = model.theta_size(n_classes), model.crowd(pooled, recipe)
    solved = np.zeros((len(counts), size))
    for start in range(0, len(counts), WORKERS_PER_BLOCK):
        some = slice(start, start + WORKERS_PER_BLOCK)
        block = np.moveaxis(counts[some], 0, -1)
        theta, moved = np.zeros((size, block.shape[-1])), np.inf
        for _ in range(MAX_STEPS):
            if moved <= STEP_TOLERANCE:
                break
            theta, before = model.step(theta, block, crowd, recipe), theta
            moved = np.abs(theta - before).max(initial=0)
        solved[some] = theta.T
    return solved


def _last(given: Any, room: int | None = None) -> Any:
    """`Known` or `Settled` with the workers last, and room for more of them."""
    n_workers = len(given.theta)
    kept = {
        name: workers_last(value, n_workers if room is None else room)
        if name in ("counts", "theta")
        else value
        for name, value in given._asdict().items()
    }
    return type(given)(**kept)


def _first(values: Floats) -> Floats:
    return np.ascontiguousarray(np.moveaxis(values, -1, 0))


# ── on a device ──────────────────────────────────────────────────────────────────────────

MAX_SENT = 128
"""Columns that stay on the device at most: those of twenty chunks, made ahead of the solver."""

_sent: dict[tuple[int, int, int], tuple[weakref.ref[NDArray[Any]], Leaf]] = {}
"""Columns that are on the device, while they are alive here, by `id`, padded length and filler."""


def on_device(batch: CountedBatch) -> CountedBatch:
    """The batch on the device, padded to few sizes; columns that are there are not sent again.

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
    if known is not None and known[0]() is column:
        return known[1]
    sent = jnp.asarray(pad(column, length, filler))
    _sent[key] = weakref.ref(column, partial(_drop, key)), sent
    for oldest in list(_sent)[:-MAX_SENT]:
        _sent.pop(oldest, None)
    return sent


def _drop(key: tuple[int, int, int], gone: object) -> None:
    known = _sent.get(key)
    if known is not None and known[0] is gone:
        _sent.pop(key, None)
