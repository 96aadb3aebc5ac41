"""Streaming VB: variational iBCC chunk by chunk, what was learned so far being the prior.

T. Broderick, N. Boyd, A. Wibisono, A. C. Wilson and M. I. Jordan, Streaming Variational Bayes,
NIPS 2013, on the model of H.-C. Kim and Z. Ghahramani, Bayesian Classifier Combination, AISTATS
2012: every worker has a confusion matrix whose rows are Dirichlet, and so are the classes.

Mean-field iterations solve each chunk, starting from its votes; on one chunk that is iBCC.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.ingest.chunks import Chunk
from labelquorum.ingest.labels import LabelSpace
from labelquorum.learn.aggregator import (
    Aggregation,
    Aggregator,
    consensus,
    sum_by_item,
)
from labelquorum.learn.methods._batch import check_at_least, log_normalise, sum_by_worker
from labelquorum.learn.methods._dirichlet import divergence, expected_log, worker_prior
from labelquorum.learn.worker_table import WorkerRows, forget_row


class State(NamedTuple):
    """The counts of all Dirichlet distributions, less those of the prior."""

    rows: WorkerRows  # "counts" (K, C, C): labels z of worker k on items expected to be c
    class_counts: NDArray[np.float64]  # (C,) items expected to be c
    seed: int


class Info(NamedTuple):
    """What an update did."""

    n_labels: int
    iterations: int
    losses: NDArray[np.float64]  # (1,) minus the lower bound of the chunk, for each of its items


class Settings(NamedTuple):
    """The prior, and when to stop."""

    right: float
    wrong: float
    class_strength: float
    tolerance: float
    iterations: int


def init(chunk: Chunk, seed: int) -> State:
    """Know nobody."""
    counts = np.zeros((0, chunk.n_classes, chunk.n_classes))
    return State(WorkerRows({"counts": counts}), np.zeros(chunk.n_classes), seed)


def update(state: State, chunk: Chunk, settings: Settings) -> tuple[State, Info]:
    """Solve the chunk with the present posterior as its prior, and keep the new one."""
    state = _grow(state, chunk)
    if not chunk.n_labels:
        return state, Info(0, 0, np.zeros(0))
    # What an earlier chunk held, or a label that corrects it, is weighed, but not counted again.
    fresh = chunk._replace(weight=chunk.counted_weight)
    new = chunk.is_new
    before = state.rows.gather(chunk.workers)["counts"]
    class_prior = settings.class_strength + state.class_counts
    prior = worker_prior(chunk.n_classes, settings.right, settings.wrong) + before
    probs, rounds = chunk.vote_shares, 0
    for _ in range(settings.iterations):
        rounds += 1
        # ν_c = ν0_c + Σ_i q_i(c);  α_k[c, z] = α0_k[c, z] + Σ_i q_i(c) 1[l_ik = z]
        class_counts = class_prior + probs[new].sum(axis=0)
        counts = prior + sum_by_worker(probs, fresh)
        log_classes, log_workers = expected_log(class_counts), expected_log(counts)
        # q_i(c) ∝ exp(E[log κ_c] + Σ_k E[log π_k[c, l_ik]])
        log_joint = log_classes + sum_by_item(_evidence(log_workers, chunk), chunk)
        last, (probs, log_evidence) = probs, log_normalise(log_joint)
        if np.abs(probs - last).max() <= settings.tolerance:
            break
    # With this q the lower bound is Σ_i log Z_i − KL(κ) − KL(π).
    loss = (
        divergence(class_counts, class_prior, log_classes)
        + divergence(counts, prior, log_workers)
        - float(log_evidence.sum())
    )
    counts = before + sum_by_worker(probs, fresh)
    return State(
        rows=state.rows.scatter(chunk.workers, {"counts": counts}),
        class_counts=state.class_counts + probs[new].sum(axis=0),
        seed=state.seed,
    ), Info(chunk.n_labels, rounds, np.array([loss / chunk.n_items]))


def aggregate(state: State, chunk: Chunk, settings: Settings) -> Aggregation:
    """Give each item its most probable class; ties fall by seed and item."""
    state = _grow(state, chunk)
    counts = state.rows.gather(chunk.workers)["counts"]
    prior = worker_prior(chunk.n_classes, settings.right, settings.wrong)
    # E[log κ_c] + Σ_k E[log π_k[c, l_ik]]
    evidence = _evidence(expected_log(prior + counts), chunk)
    log_classes = expected_log(settings.class_strength + state.class_counts)
    log_scores = log_classes + sum_by_item(evidence, chunk)
    return consensus(log_scores, evidence, chunk, state.seed)


def streaming_vb(
    space: LabelSpace | None = None,
    *,
    right: float = 4.0,
    wrong: float = 1.0,
    class_strength: float = 1.0,
    tolerance: float = 1e-6,
    iterations: int = 500,
) -> Aggregator:
    """Build streaming variational iBCC.

    Parameters
    ----------
    right, wrong
        Prior counts on and off the diagonal of a worker's matrix.
    class_strength
        Prior count of each class.
    tolerance, iterations
        A chunk is solved when no probability changes by more, or after `iterations` rounds.

    Examples
    --------
    >>> from labelquorum.evaluation.checks import seeded_error
    >>> print(f"{seeded_error(streaming_vb()):.1%}")
    12.6%
    """
    check_at_least("streaming_vb", right=(right, 1e-3), wrong=(wrong, 1e-3))
    check_at_least("streaming_vb", class_strength=(class_strength, 1e-3))
    check_at_least("streaming_vb", tolerance=(tolerance, 0), iterations=(iterations, 1))
    settings = Settings(right, wrong, class_strength, tolerance, iterations)
    return Aggregator(
        name="streaming_vb",
        state_type=State,
        init=init,
        update=partial(update, settings=settings),
        aggregate=partial(aggregate, settings=settings),
        confusion=partial(_confusion, settings=settings),
        class_prior=partial(_class_prior, settings=settings),
        forget=forget_row,
        exceptions={
            "shared_errors": "200 items at a time are too few to tell shared errors from the truth"
        },
    )


def _evidence(log_workers: Floats, chunk: Chunk) -> Floats:
    """What each label says for each class, (B, C)."""
    return np.asarray(log_workers[chunk.local_worker, :, chunk.label])


def _confusion(
    state: State, workers: NDArray[np.integer[Any]], settings: Settings
) -> NDArray[np.float32]:
    """The means of the workers' rows, (P, C, C)."""
    counts = state.rows.gather(workers)["counts"]
    counts += worker_prior(len(state.class_counts), settings.right, settings.wrong)
    return np.asarray(counts / counts.sum(axis=2, keepdims=True), np.float32)


def _class_prior(state: State, settings: Settings) -> NDArray[np.float64]:
    counts = state.class_counts + settings.class_strength
    return np.asarray(counts / counts.sum())


def _grow(state: State, chunk: Chunk) -> State:
    more = max(0, chunk.n_classes - len(state.class_counts))
    return state._replace(
        rows=state.rows.with_room(chunk.n_workers, more),
        class_counts=np.pad(state.class_counts, (0, more)),
    )
