"""The reference engine: the solver over arrays in float64, in NumPy.

The kernel is compared with it, and it solves where no kernel was built. `gpu` compiles `fit` and
`score` with JAX. Workers come first in what is given and returned, and last in between.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.ingest.labels import MISSING
from labelquorum.learn.bila.dependence import CLARITY, gain_of_clear, log_sum_exp, sums
from labelquorum.learn.bila.hierarchical import Recipe, class_prior
from labelquorum.learn.bila.identification import expected_errors
from labelquorum.learn.bila.lazy_jax import jax
from labelquorum.learn.bila.minibatch import CountedBatch, Leaf, array_namespace, sum_by_item
from labelquorum.learn.bila.worker_models import WORKER_MODELS, Fitted, Known, Settled

STEP_TOLERANCE, MAX_STEPS = 1e-12, 1000
"""A worker is solved when no number of θ moves further in a step, or after `MAX_STEPS` steps."""

WORKERS_PER_BLOCK = 1 << 14
"""Workers solved at a time, to bound memory."""

Workers = tuple[Leaf, Leaf, Leaf]
"""θ, counts and crowd, by which a worker model knows what labels say."""


def fit(
    name: str, batch: CountedBatch, known: Known, recipe: Recipe, n_workers: Floats | None = None
) -> Fitted:
    """Solve a chunk by one worker model together with all that was counted before."""
    xp = array_namespace(known.theta, batch.gold)
    before, theta = _moved(known.counts, 0, -1), _moved(known.theta, 0, -1)
    model, n_classes, dtype = WORKER_MODELS[name], len(known.label_shares), known.theta.dtype
    given = batch.gold[:, None] != MISSING
    is_true = batch.gold[:, None] == np.arange(n_classes)

    def unsettled(carry: tuple[Leaf, ...]) -> Leaf:
        return (carry[0] <= recipe.inner_steps) & (carry[-1] >= recipe.tolerance)

    def again(carry: tuple[Leaf, ...]) -> tuple[Leaf, ...]:
        number, theta, probs, *_ = carry
        # ΔN by q, P' and G, a θ step with N + ΔN
        counts = before + model.count_labels(probs, batch, len(known.theta))
        pooled = known.others + model.pool(counts, recipe)
        crowd = model.crowd(pooled, recipe)
        theta = model.step(theta, counts, crowd, recipe)
        # π with f' and ν + Σ_i q_i
        inferred = known.class_counts + batch.counted_item @ probs
        log_prior = xp.log(class_prior(known.label_shares, inferred, recipe))
        # q_i(c) ∝ π_c Π_k m_k[c, l_ik]
        log_scores = log_prior + _log_likelihood(name, batch, (theta, counts, crowd), recipe)
        encoded = xp.where(given, is_true, _softmax(log_scores))
        # As it is kept of open items, so that it can be taken back exactly.
        encoded = encoded.astype(np.float32).astype(dtype)
        moved = xp.abs(encoded - probs).max()
        return number + 1, theta, encoded, log_scores, pooled, inferred, moved

    # The first round is one before anything is said of the chunk: a θ step with the stored N.
    unsaid = xp.zeros((len(batch.gold), n_classes), dtype)
    sums_before, infinite = (known.others, known.class_counts), xp.asarray(np.inf, dtype)
    start = xp.asarray(0), theta, unsaid, unsaid, *sums_before, infinite
    loop = _while if xp is np else jax.lax.while_loop
    rounds, theta, probs, log_scores, pooled, inferred, _ = loop(unsettled, again, start)
    # With this q the loss is −log p(l_i), or −log p(l_i, y_i) where the truth is given.
    reached = xp.where(given & ~is_true, -xp.inf, log_scores)
    log_evidence = log_sum_exp(reached) * batch.counted_item
    loss = -log_evidence.sum() / xp.maximum(batch.counted_item.sum(), 1)
    counts = before + model.count_labels(probs, batch, len(known.theta))
    counts, theta = _moved(counts, -1, 0), _moved(theta, -1, 0)
    settled = Settled(counts, theta, pooled, known.label_shares, inferred)
    fitted = Fitted(
        counts=counts,
        theta=theta,
        class_probs=probs.astype(np.float32),
        pooled=known.others + pool(name, counts, recipe),
        unexplained=past_unexplained(name, batch, probs, settled, recipe),
        numbers=xp.array([loss, rounds]),
        class_sums=batch.counted_item @ probs,
    )
    if n_workers is None:
        return fitted
    scores, _ = score(name, batch, fitted.settled(known), recipe)
    return fitted._replace(expected_errors=expected_errors(scores, n_workers))


def score(
    name: str, batch: CountedBatch, settled: Settled, recipe: Recipe
) -> tuple[Floats, NDArray[np.float32]]:
    """Return log scores of items, (N, C), and what labels say for classes, weighted, (B, C)."""
    xp, (workers, prior) = array_namespace(settled.theta), _model_of(name, settled, recipe)
    said = WORKER_MODELS[name].label_log_probs(*workers, batch.worker, batch.label, recipe)
    evidence = (said * batch.weight[:, None]).astype(np.float32)
    return xp.log(prior) + sum_by_item(said, batch), evidence


def past_unexplained(
    name: str, batch: CountedBatch, probs: Floats, settled: Settled, recipe: Recipe
) -> Floats:
    """Return what labels leave unexplained by the model as it is: `sums` of `dependence`."""
    model, xp = WORKER_MODELS[name], array_namespace(probs, settled.theta)
    workers, prior = _model_of(name, settled, recipe)
    log_prior = xp.log(prior)
    said = _log_likelihood(name, batch, workers, recipe)
    powers = model.log_powers(*workers, recipe, CLARITY).T[batch.worker]
    once, said_once = batch, said
    if batch.worker_share is not None:
        once = batch._replace(weight=batch.worker_share)
        said_once = _log_likelihood(name, once, workers, recipe)
    # on a clear item Σ_k log( m_k[c, l]^λ / Σ_z m_k[c, z]^λ )
    clear = CLARITY * said_once - sum_by_item(powers, once)
    gain = gain_of_clear(log_prior + said_once, log_prior + clear)
    right = model.right(*workers, recipe).T[batch.worker]
    # log p(l_i), or log p(l_i, y_i) where the truth is given
    gold = batch.gold[:, None]
    excluded = (gold != MISSING) & (gold != np.arange(probs.shape[1]))
    if batch.worker_share is not None and batch.first_vote is None:
        # By shares a majority says less than it knows, and labels would seem to lean on each other.
        probs = _softmax(xp.where(excluded, -xp.inf, log_prior + said_once))
    believed = probs * batch.counted_item[:, None]
    evidence = log_sum_exp(xp.where(excluded, -xp.inf, log_prior + said))
    weight, votes = batch.counted_weight, (batch.worker_share, batch.first_vote)
    found: Floats = sums(batch.item, batch.label, weight, right, believed, gain, evidence, *votes)
    return found


def count(name: str, batch: CountedBatch, probs: Floats, n_workers: int) -> Floats:
    """Count labels by q (N, C), (P, …)."""
    counts: Floats = _moved(WORKER_MODELS[name].count_labels(probs, batch, n_workers), -1, 0)
    return counts


def pool(name: str, counts: Floats, recipe: Recipe) -> Floats:
    """Return what workers give to P, by their counts (P, …)."""
    last = array_namespace(counts).moveaxis(counts, 0, -1)
    pooled: Floats = WORKER_MODELS[name].pool(last, recipe)
    return pooled


def solve_workers(name: str, counts: Floats, pooled: Floats, recipe: Recipe) -> Floats:
    """Return θ of workers at the maximum of J, (P, D): J has one maximum."""
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


def _moved(values: Leaf, axis: int, to: int) -> Leaf:
    """Return a copy with an axis moved: workers first or last."""
    return array_namespace(values).moveaxis(values, axis, to).copy()


def _model_of(name: str, settled: Settled, recipe: Recipe) -> tuple[Workers, Leaf]:
    """Return what a worker model knows of workers, workers last, and π."""
    counts, theta = _moved(settled.counts, 0, -1), _moved(settled.theta, 0, -1)
    crowd = WORKER_MODELS[name].crowd(settled.pooled, recipe)
    return (theta, counts, crowd), class_prior(settled.label_shares, settled.class_counts, recipe)


def _while(unsettled: Callable[[Any], Any], again: Callable[[Any], Any], carry: Any) -> Any:
    while unsettled(carry):
        carry = again(carry)
    return carry


def _softmax(log_scores: Leaf) -> Leaf:
    xp = array_namespace(log_scores)
    probs = xp.exp(log_scores - log_scores.max(axis=1, keepdims=True))
    return probs / probs.sum(axis=1, keepdims=True)


def _log_likelihood(name: str, batch: CountedBatch, workers: Workers, recipe: Recipe) -> Leaf:
    """Return Σ_k log m_k[c, l_ik] of each item, (M, C)."""
    said = WORKER_MODELS[name].label_log_probs(*workers, batch.worker, batch.label, recipe)
    return sum_by_item(said, batch)
