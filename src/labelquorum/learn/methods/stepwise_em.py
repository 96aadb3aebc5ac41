"""Stepwise EM: Dawid–Skene online, one E step and one M step a chunk.

O. Cappé and E. Moulines, On-line Expectation–Maximization Algorithm for Latent Data Models, JRSS B
71(3), 2009; P. Liang and D. Klein, Online EM for Unsupervised Models, NAACL 2009, for mini-batches
(here: chunks) and the step size (t + 2)^−a. The model is that of Dawid and Skene, 1979.

The papers move averages, s ← (1 − η_t) s + η_t ŝ. What is kept here is S = s / η_t, in which the
newest chunk counts fully and S ← ρ_t S + ŝ with ρ_t = (1 − η_t) η_(t−1) / η_t ≤ 1: the same model,
but in labels, so that the prior counts of a worker weigh alike at any time. Counts of workers who
are not in a chunk fade when they are next looked at.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.errors import StateError
from labelquorum.ingest.chunks import Chunk
from labelquorum.ingest.labels import LabelSpace
from labelquorum.learn.aggregator import Aggregation, Aggregator, consensus, sum_by_item
from labelquorum.learn.methods._batch import (
    Leaves,
    check_at_least,
    log_normalise,
    sum_by_worker,
)
from labelquorum.learn.methods._dirichlet import worker_prior
from labelquorum.learn.worker_table import WorkerRows, forget_row

_TINY = 1e-300  # stands for 0 where a logarithm is taken


class State(NamedTuple):
    """Expected counts, the older the fainter."""

    rows: WorkerRows  # "counts" (K, C, C): labels z of worker k on items expected to be c;
    # "log_faded" (K,): what `log_faded` was when they were last written
    class_counts: NDArray[np.float64]  # (C,) items expected to be c
    log_faded: NDArray[np.float64]  # () Σ_t log ρ_t
    chunk_index: int  # t
    seed: int


class Info(NamedTuple):
    """What an update did."""

    n_labels: int
    step_size: float
    losses: NDArray[np.float64]  # (1,) minus the log-likelihood of an item, before learning


class Settings(NamedTuple):
    """The step size and the prior counts."""

    step_exponent: float
    right: float
    wrong: float
    class_strength: float


def init(chunk: Chunk, seed: int) -> State:
    """Know nobody."""
    rows = {"counts": np.zeros((0, chunk.n_classes, chunk.n_classes)), "log_faded": np.zeros(0)}
    return State(WorkerRows(rows), np.zeros(chunk.n_classes), np.zeros(()), 0, seed)


def update(state: State, chunk: Chunk, settings: Settings) -> tuple[State, Info]:
    """One E step on the chunk, and one M step towards it."""
    state = _grow(state, chunk)
    if not chunk.n_labels:
        return state, Info(0, 0.0, np.zeros(0))
    # What an earlier chunk held, or a label that corrects it, is weighed, but not counted again.
    fresh = chunk._replace(weight=chunk.counted_weight)
    new = chunk.is_new
    rows = state.rows.gather(chunk.workers)
    # E step: q_i(c) ∝ π_c Π_k ψ_k[c, l_ik]
    evidence = _evidence(_matrices(rows, state, settings), chunk)
    log_joint = np.log(_class_prior(state, settings)) + sum_by_item(evidence, chunk)
    probs, log_evidence = log_normalise(log_joint)
    # η_t = (t + 2)^−a;  ρ_t = (1 − η_t) η_(t−1) / η_t
    step_size, before = ((state.chunk_index + n) ** -settings.step_exponent for n in (2, 1))
    fade = (1 - step_size) * before / step_size
    log_faded = state.log_faded + np.log(max(fade, _TINY))
    # S ← ρ_t S + ŝ
    counts = _faded(rows, log_faded) + sum_by_worker(probs, fresh)
    touched = {"counts": counts, "log_faded": np.full(len(counts), log_faded)}
    return State(
        rows=state.rows.scatter(chunk.workers, touched),
        class_counts=fade * state.class_counts + probs[new].sum(axis=0),
        log_faded=np.asarray(log_faded),
        chunk_index=state.chunk_index + 1,
        seed=state.seed,
    ), Info(chunk.n_labels, step_size, np.array([-log_evidence.mean()]))


def aggregate(state: State, chunk: Chunk, settings: Settings) -> Aggregation:
    """Give each item its most probable class; ties fall by seed and item."""
    state = _grow(state, chunk)
    # log π_c + Σ_k log ψ_k[c, l_ik]
    evidence = _evidence(_matrices(state.rows.gather(chunk.workers), state, settings), chunk)
    log_scores = np.log(_class_prior(state, settings)) + sum_by_item(evidence, chunk)
    return consensus(log_scores, evidence, chunk, state.seed)


def stepwise_em(
    space: LabelSpace | None = None,
    *,
    step_exponent: float = 0.7,
    right: float = 4.0,
    wrong: float = 1.0,
    class_strength: float = 1.0,
) -> Aggregator:
    """Build stepwise EM for Dawid–Skene.

    Parameters
    ----------
    step_exponent
        Chunk t moves the averages by (t + 2)^−a, t from 0. 1 counts all chunks alike, less lets
        old ones fade, 0 keeps the newest alone; EM is known to converge above 0.5.
    right, wrong
        Prior counts on and off the diagonal of a worker's matrix.
    class_strength
        Prior count of each class.

    Examples
    --------
    >>> from labelquorum.evaluation.checks import seeded_error
    >>> print(f"{seeded_error(stepwise_em()):.1%}")
    12.6%
    """
    if not 0 <= step_exponent <= 1:
        raise StateError(
            f"`step_exponent` of stepwise_em must be a number from 0 to 1. Got {step_exponent!r}."
        )
    check_at_least("stepwise_em", right=(right, 1e-3), wrong=(wrong, 1e-3))
    check_at_least("stepwise_em", class_strength=(class_strength, 1e-3))
    settings = Settings(step_exponent, right, wrong, class_strength)
    return Aggregator(
        name="stepwise_em",
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


def _faded(rows: Leaves, log_faded: NDArray[np.float64]) -> Floats:
    """The counts as they stand by now, (P, C, C)."""
    return np.asarray(rows["counts"] * np.exp(log_faded - rows["log_faded"])[:, None, None])


def _matrices(rows: Leaves, state: State, settings: Settings) -> Floats:
    """M step: shares of the counts, (P, C, C)."""
    # ψ_k[c, z] ∝ S_k[c, z] + prior
    counts = _faded(rows, state.log_faded) + worker_prior(
        len(state.class_counts), settings.right, settings.wrong
    )
    return np.asarray(counts / counts.sum(axis=2, keepdims=True))


def _evidence(matrices: Floats, chunk: Chunk) -> Floats:
    """What each label says for each class, (B, C)."""
    return np.asarray(np.log(matrices)[chunk.local_worker, :, chunk.label])


def _confusion(
    state: State, workers: NDArray[np.integer[Any]], settings: Settings
) -> NDArray[np.float32]:
    return _matrices(state.rows.gather(workers), state, settings).astype(np.float32)


def _class_prior(state: State, settings: Settings) -> NDArray[np.float64]:
    counts = state.class_counts + settings.class_strength
    return np.asarray(counts / counts.sum())


def _grow(state: State, chunk: Chunk) -> State:
    more = max(0, chunk.n_classes - len(state.class_counts))
    return state._replace(
        rows=state.rows.with_room(chunk.n_workers, more),
        class_counts=np.pad(state.class_counts, (0, more)),
    )
