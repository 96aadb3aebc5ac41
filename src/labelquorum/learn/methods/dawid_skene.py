"""Dawid–Skene: a confusion matrix for each worker, found by expectation maximisation.

A. P. Dawid and A. M. Skene, Maximum Likelihood Estimation of Observer Error-Rates Using the EM
Algorithm, Applied Statistics 28(1), 1979. The "EM" of the BiLA paper.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.ingest.chunks import Chunk
from labelquorum.ingest.labels import LabelSpace
from labelquorum.learn.aggregator import (
    Aggregation,
    Aggregator,
    break_ties,
    softmax,
)
from labelquorum.learn.methods._batch import (
    Fit,
    Incidence,
    Info,
    Leaves,
    State,
    check_at_least,
    incidence,
    incidence_of,
    log_likelihood,
    offline,
    with_unknown_classes,
)
from labelquorum.learn.methods._cells import (
    Cells,
    Smoothing,
    additive,
    cells_of,
    confusion_of,
    find,
    sweep,
)
from labelquorum.learn.methods._sparse_em import fit_probs

MAX_DENSE_NUMBERS = 1 << 23
"""A state with more numbers in its matrices than this, 64 MiB, keeps what they are made of."""


class Params(NamedTuple):
    """What the M step gives."""

    class_prior: Floats  # (C,) π
    confusion: Floats  # (P, C, C) ψ
    counts: Floats  # (P, C, C) the soft counts ψ was made of


def dawid_skene(
    space: LabelSpace | None = None,
    *,
    smoothing: float = 1e-5,
    tolerance: float = 1e-7,
    iterations: int = 500,
) -> Aggregator:
    """Build Dawid–Skene.

    Parameters
    ----------
    smoothing
        Added to every count, so that no probability is 0.
    tolerance, iterations
        EM ends when the log-likelihood changes by less, relatively, or after `iterations` rounds.

    Examples
    --------
    >>> from labelquorum.evaluation.checks import seeded_error
    >>> print(f"{seeded_error(dawid_skene()):.1%}")
    13.8%
    """
    check_at_least("dawid_skene", smoothing=(smoothing, 1e-300))
    check_at_least("dawid_skene", tolerance=(tolerance, 0), iterations=(iterations, 1))

    smooth = additive(smoothing)

    def climb(chunk: Chunk) -> tuple[Cells, Floats, list[float]]:
        cells = cells_of(incidence_of(chunk))
        return (cells, *fit_probs(chunk.vote_shares, cells, smoothing, tolerance, iterations))

    def fit(chunk: Chunk, seed: int) -> Fit:
        cells, probs, losses = climb(chunk)
        # Eq. (2.3): ψ_k[c, z] = Σ_i q_i(c) [l_ik = z] / Σ_i q_i(c)
        confusion = confusion_of(probs, cells, smooth, np.float64)
        return Fit({"confusion": confusion}, _shared(probs, cells, smooth), losses)

    dense = offline(
        "dawid_skene",
        fit=fit,
        newcomer=lambda shared: {"confusion": shared["crowd"]},
        log_scores=_log_scores,
        confusion=lambda rows, shared: rows["confusion"],
    )

    def init(chunk: Chunk, seed: int) -> State:
        if _fits(chunk):
            return State(*dense.init(chunk, seed))
        empty, n_classes = np.zeros(0, np.intp), chunk.n_classes
        nothing = incidence(empty, empty, empty, n_items=0, n_workers=0, n_classes=n_classes)
        return _sparse_state(np.zeros((0, n_classes)), cells_of(nothing), empty, smooth, seed)

    def update(state: State, chunk: Chunk) -> tuple[State, Info]:
        if _fits(chunk) or not chunk.n_labels:
            return dense.update(state, chunk)
        cells, probs, losses = climb(chunk)
        info = Info(chunk.n_labels, len(losses), np.asarray(losses, np.float64))
        return _sparse_state(probs, cells, chunk.workers, smooth, state.seed), info

    def aggregate(state: State, chunk: Chunk) -> Aggregation:
        if not _is_sparse(state):
            return dense.aggregate(state, chunk)
        if chunk.n_classes > len(state.shared["class_prior"]):
            return with_unknown_classes(aggregate, state, chunk)
        return _aggregate_sparse(state, chunk, smooth)

    def confusion(state: State, workers: NDArray[np.integer[Any]]) -> NDArray[np.float32]:
        if not _is_sparse(state):
            return dense.confusion(state, workers)
        present, place = np.unique(workers, return_inverse=True)
        cells, is_known = _cells_of_workers(state, present)
        matrices = confusion_of(state.shared["probs"].T, cells, smooth, np.float32)
        matrices[~is_known] = state.shared["crowd"]
        return matrices if np.array_equal(present, workers) else matrices[place]

    def forget(state: State, worker: int) -> State:
        if not _is_sparse(state):
            return State(*dense.forget(state, worker))
        others = state.shared["worker"] != worker
        kept = {name: state.shared[name][others] for name in _LABELS}
        return state._replace(shared={**state.shared, **kept})

    return dense._replace(
        init=init, update=update, aggregate=aggregate, confusion=confusion, forget=forget
    )


# ── a state of many workers and classes: labels and probabilities, not matrices ──────────

_LABELS = ("item", "worker", "label", "weight")


def _fits(chunk: Chunk) -> bool:
    """Tell whether all matrices are small, or smaller than what they are made of."""
    numbers = chunk.n_workers * chunk.n_classes**2
    made_of = chunk.n_items * chunk.n_classes + len(_LABELS) * chunk.n_labels
    return numbers <= max(MAX_DENSE_NUMBERS, made_of)


def _is_sparse(state: State) -> bool:
    return "probs" in state.shared


def _sparse_state(
    probs: Floats,
    cells: Cells,
    workers: NDArray[np.integer[Any]],
    smoothing: Smoothing,
    seed: int,
) -> State:
    labels = cells.labels
    weight = np.ones(len(labels.item)) if labels.weight is None else labels.weight
    columns = labels.item, workers[labels.worker], labels.label, weight
    kept = {
        name: np.asarray(column, np.float32 if name == "weight" else np.int32)
        for name, column in zip(_LABELS, columns, strict=True)
    }
    # (C, N), so that those of one class are together in a file too.
    return State({}, {**_shared(probs, cells, smoothing), **kept, "probs": probs.T}, seed)


def _shared(probs: Floats, cells: Cells, smoothing: Smoothing) -> Leaves:
    n_classes = cells.labels.n_classes
    crowd = np.zeros((n_classes, n_classes))
    for c, found in enumerate(sweep(probs, cells, smoothing)):
        crowd[c] = np.bincount(cells.label, found.counts, n_classes)
    return {
        # Eq. (2.4): π_c = Σ_i q_i(c) / N
        "class_prior": shares(smoothing.classes(probs.sum(axis=0))),
        "crowd": shares(smoothing.said(crowd)),  # (C, C)
    }


def _cells_of_workers(
    state: State, workers: NDArray[np.integer[Any]]
) -> tuple[Cells, NDArray[np.bool_]]:
    """The cells of these workers, in ascending order, and which of them the fit had."""
    shared = state.shared
    place = np.minimum(np.searchsorted(workers, shared["worker"]), max(len(workers) - 1, 0))
    rows = workers[place] == shared["worker"] if len(workers) else np.zeros(len(place), bool)
    labels = incidence(
        shared["item"][rows],
        place[rows],
        shared["label"][rows],
        shared["weight"][rows],
        n_items=shared["probs"].shape[1],
        n_workers=len(workers),
        n_classes=len(shared["class_prior"]),
    )
    return cells_of(labels), np.bincount(labels.worker, minlength=len(workers)) > 0


def _aggregate_sparse(state: State, chunk: Chunk, smoothing: Smoothing) -> Aggregation:
    cells, is_known = _cells_of_workers(state, chunk.workers)
    labels = incidence_of(chunk)
    cell = find(cells, labels.worker, labels.label)
    strange = np.flatnonzero(~is_known[labels.worker])
    with np.errstate(divide="ignore"):
        log_crowd, log_prior = np.log(state.shared["crowd"]), np.log(state.shared["class_prior"])
    scores = np.empty((chunk.n_items, chunk.n_classes), order="F")
    evidence = np.empty((chunk.n_labels, chunk.n_classes), np.float32, order="F")
    for c, found in enumerate(sweep(state.shared["probs"].T, cells, smoothing)):
        said = np.concatenate([found.log_said, found.log_unsaid]).take(cell)
        said[strange] = log_crowd[c, labels.label[strange]]
        evidence[:, c] = said * chunk.weight
        scores[:, c] = log_prior[c] + labels.total(labels.item, said, chunk.n_items)
    return Aggregation(break_ties(scores, chunk.item_keys, state.seed), softmax(scores), evidence)


def shares(counts: Floats) -> Floats:
    """Counts as probabilities along the last axis."""
    return np.asarray(counts / counts.sum(axis=-1, keepdims=True))


def log_joint(class_prior: Floats, confusion: Floats, labels: Incidence) -> Floats:
    """The logarithm of π_c Π_k ψ_k[c, l_ik], (N, C)."""
    return np.log(class_prior) + log_likelihood(np.log(confusion), labels)


def _log_scores(rows: Leaves, shared: Leaves, chunk: Chunk) -> Floats:
    return log_joint(shared["class_prior"], rows["confusion"], incidence_of(chunk))
