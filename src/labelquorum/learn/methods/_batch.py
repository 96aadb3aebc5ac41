"""Offline methods as aggregators: each update fits its chunk alone, from scratch.

A method that iterates over all labels until it settles has no use for an earlier state. Given
everything at once it is what its paper describes; given a stream it is the paper's sliding window.
It is written as four functions, and this module makes an aggregator of them:

    fit(chunk, seed)                → Fit, the worker rows and the shared numbers
    newcomer(shared)                → the row of a worker the chunk did not have
    log_scores(rows, shared, chunk) → (N, C), up to a constant per item
    confusion(rows, shared)         → (K, C, C)
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.errors import StateError
from labelquorum.ingest.chunks import Chunk, take_items
from labelquorum.learn.aggregator import Aggregation, Aggregator, break_ties, consensus

Leaves = dict[str, NDArray[Any]]
Indices = NDArray[np.intp]
ParamsT = TypeVar("ParamsT")

_NEVER = np.log(1e-30)  # what a label says for a class that nobody knew


class Fit(NamedTuple):
    """What a method found in a chunk of P workers."""

    rows: Leaves  # (P, …) in the order of `chunk.workers`
    shared: Leaves  # "class_prior" (C,) among them
    losses: Sequence[float] = ()  # what was minimised, after each iteration


class State(NamedTuple):
    """The fit of the last chunk, with a row for each of the K workers known."""

    rows: Leaves  # (K, …)
    shared: Leaves
    seed: int


class Info(NamedTuple):
    """What an update did."""

    n_labels: int
    iterations: int
    losses: NDArray[np.float64]


def offline(
    name: str,
    *,
    fit: Callable[[Chunk, int], Fit],
    newcomer: Callable[[Leaves], Leaves],
    log_scores: Callable[[Leaves, Leaves, Chunk], Floats],
    confusion: Callable[[Leaves, Leaves], Floats],
    exceptions: Mapping[str, str] | None = None,
) -> Aggregator:
    """Make an aggregator of a method that fits all it is given at once."""

    def init(chunk: Chunk, seed: int) -> State:
        empty = _no_labels(chunk)
        return _spread(fit(empty, seed), empty, newcomer, seed)

    def update(state: State, chunk: Chunk) -> tuple[State, Info]:
        if not chunk.n_labels:
            return state, Info(0, 0, np.zeros(0))
        found = fit(chunk, state.seed)
        losses = np.asarray(found.losses, np.float64)
        return _spread(found, chunk, newcomer, state.seed), Info(
            chunk.n_labels, len(losses), losses
        )

    def aggregate(state: State, chunk: Chunk) -> Aggregation:
        n_classes = len(state.shared["class_prior"])
        if chunk.n_classes > n_classes:
            return with_unknown_classes(aggregate, state, chunk)
        rows = _rows_of(state, chunk.workers, newcomer)
        scores = log_scores(rows, state.shared, chunk)
        log_confusion = np.log(np.maximum(confusion(rows, state.shared), 1e-300))
        evidence = log_confusion[chunk.local_worker, :, chunk.label]
        return consensus(scores, evidence, chunk, state.seed)

    def forget(state: State, worker: int) -> State:
        blank = newcomer(state.shared)
        rows = {leaf: values.copy() for leaf, values in state.rows.items()}
        for leaf, values in rows.items():
            values[worker] = blank[leaf]
        return state._replace(rows=rows)

    return Aggregator(
        name=name,
        state_type=State,
        init=init,
        update=update,
        aggregate=aggregate,
        confusion=lambda state, workers: np.asarray(
            confusion(_rows_of(state, workers, newcomer), state.shared), np.float32
        ),
        class_prior=lambda state: np.asarray(state.shared["class_prior"], np.float64),
        forget=forget,
        exceptions={
            "cold_start": "it fits each chunk alone, and a few items are too few",
            **(exceptions or {}),
        },
    )


def with_unknown_classes(
    aggregate: Callable[[State, Chunk], Aggregation], state: State, chunk: Chunk
) -> Aggregation:
    """Answer by the fit what names only classes it knew; the other items are put to the vote."""
    n_classes = len(state.shared["class_prior"])
    strange = np.bincount(chunk.item, chunk.label >= n_classes, chunk.n_items) > 0
    familiar = take_items(chunk, ~strange)._replace(n_classes=n_classes)
    known = aggregate(state, familiar)
    votes = chunk.vote_shares
    more = ((0, 0), (0, chunk.n_classes - n_classes))
    probs = votes.astype(np.float32)
    probs[~strange] = np.pad(known.probs, more)
    aggregated = break_ties(votes, chunk.item_keys, state.seed)
    aggregated[~strange] = known.aggregated
    # A vote says one for its class, and for the others nothing.
    evidence = np.eye(chunk.n_classes, dtype=np.float32)[chunk.label] * chunk.weight[:, None]
    evidence[~strange[chunk.item]] = np.pad(known.log_evidence, more, constant_values=_NEVER)
    return Aggregation(aggregated, probs, evidence)


# ── expectation maximisation ─────────────────────────────────────────────────────────────


class Round(NamedTuple, Generic[ParamsT]):
    """One round of expectation maximisation: what E found, and what M made of it."""

    probs: Floats  # (N, C)
    log_evidence: Floats  # (N,) of each item's labels, under the parameters before
    params: ParamsT


def em_rounds(
    params: ParamsT,
    expect: Callable[[ParamsT], tuple[Floats, Floats]],
    maximise: Callable[[Floats, ParamsT], ParamsT],
) -> Iterator[Round[ParamsT]]:
    """Go on for ever, E step and M step in turn; whoever looks on decides when it is enough."""
    while True:
        probs, log_evidence = expect(params)
        params = maximise(probs, params)
        yield Round(probs, log_evidence, params)


def log_normalise(log_scores: Floats) -> tuple[Floats, Floats]:
    """Log scores (N, C) as probabilities (N, C), and the logarithm of their sum, (N,)."""
    highest = log_scores.max(axis=1, keepdims=True, initial=-np.inf)
    scores = log_scores - highest
    np.exp(scores, out=scores)
    total = scores.sum(axis=1, keepdims=True)
    scores /= total
    return scores, (highest + np.log(total))[:, 0]


def has_settled(losses: Sequence[float], tolerance: float) -> bool:
    """Tell whether the last iteration changed the loss by no more than `tolerance`, relatively."""
    return len(losses) > 1 and abs(losses[-1] - losses[-2]) <= tolerance * abs(losses[-2])


# ── sums over labels, never larger than the labels or the answer ─────────────────────────


class Incidence(NamedTuple):
    """Who said what of which item, laid out for many passes; rows in any order."""

    item: Indices  # (B,)
    worker: Indices  # (B,) position among the P workers present
    label: Indices  # (B,)
    cell: Indices  # (B,) worker · C + label
    ballot: Indices  # (B,) label · N + item
    weight: Floats | None  # (B,); None where every label counts one
    n_items: int
    n_workers: int
    n_classes: int

    def total(self, index: Indices, values: Floats | None, length: int) -> Floats:
        """Add up the rows' weights, or weighted values (B,), that have the same index."""
        if values is None:
            weight = self.weight
        elif self.weight is None:
            weight = values
        else:
            weight = values * self.weight
        return np.asarray(np.bincount(index, weight, length), np.float64)

    def sum(self, values: Floats) -> float:
        """Add up weighted values (B,) of all rows."""
        return float(values.sum() if self.weight is None else values @ self.weight)


def incidence(
    item: NDArray[np.integer[Any]],
    worker: NDArray[np.integer[Any]],
    label: NDArray[np.integer[Any]],
    weight: NDArray[np.floating[Any]] | None = None,
    *,
    n_items: int,
    n_workers: int,
    n_classes: int,
) -> Incidence:
    """Lay out labels given as zero-based integers, (B,) each."""
    # Indices of the machine's own width, or else every pass would convert them.
    item, worker, label = (np.asarray(column, np.intp) for column in (item, worker, label))
    if weight is not None and np.all(weight == 1):
        weight = None
    return Incidence(
        item,
        worker,
        label,
        worker * n_classes + label,
        label * n_items + item,
        None if weight is None else np.asarray(weight, np.float64),
        n_items,
        n_workers,
        n_classes,
    )


def incidence_of(chunk: Chunk) -> Incidence:
    """Lay out a chunk."""
    return incidence(
        chunk.item,
        chunk.local_worker,
        chunk.label,
        chunk.weight,
        n_items=chunk.n_items,
        n_workers=len(chunk.workers),
        n_classes=chunk.n_classes,
    )


def log_likelihood(log_confusion: Floats, labels: Incidence) -> Floats:
    """Σ over an item's labels of log P(label | truth c), (N, C), from a table (P, C, C)."""
    sums = np.empty((labels.n_classes, labels.n_items))
    row = np.empty(len(labels.item))  # used again for every class: fresh memory is slow
    for c in range(labels.n_classes):
        table = np.ascontiguousarray(log_confusion[:, c]).ravel()
        sums[c] = labels.total(labels.item, take(table, labels.cell, row), labels.n_items)
    return sums.T


def soft_counts(probs: Floats, labels: Incidence) -> Floats:
    """Labels z of worker k, times P(truth is c), (P, C, C)."""
    counts = np.empty((labels.n_classes, labels.n_workers, labels.n_classes))
    row = np.empty(len(labels.item))
    for c in range(labels.n_classes):
        share = take(np.ascontiguousarray(probs[:, c]), labels.item, row)
        counts[c].flat = labels.total(labels.cell, share, counts[c].size)
    return counts.swapaxes(0, 1)


def log_likelihood_alike(log_wrong: Floats, log_gain: Floats, labels: Incidence) -> Floats:
    """Σ over an item's labels of log P(label | truth c), (N, C), where all errors are alike.

    Parameters
    ----------
    log_wrong
        log P(the label | truth is some other class), (B,).
    log_gain
        By how much it is larger where the label is the truth, (B,).
    """
    wrong = labels.total(labels.item, log_wrong, labels.n_items)
    return wrong[:, None] + sum_votes(log_gain, labels)


def sum_votes(values: Floats | None, labels: Incidence) -> Floats:
    """Add up values (B,), or the weights alone, by item and label, (N, C)."""
    size = labels.n_classes * labels.n_items
    votes = labels.total(labels.ballot, values, size)
    return votes.reshape(labels.n_classes, labels.n_items).T


def probs_of_labels(probs: Floats, labels: Incidence) -> Floats:
    """How probable it is that each label is right, (B,)."""
    return np.take(np.ravel(probs, order="F"), labels.ballot)


def sum_by_worker(probs: Floats, chunk: Chunk) -> Floats:
    """Soft confusion counts: labels z of worker k, times P(truth is c), (P, C, C)."""
    return soft_counts(probs, incidence_of(chunk))


def take(values: Floats, index: Indices, out: Floats) -> Floats:
    """Write values at indices known to be valid into memory that is there."""
    # Without a mode, `take` would check the indices into a copy of its own.
    return np.take(values, index, out=out, mode="clip")


# ── settings, and rows of workers ────────────────────────────────────────────────────────


def check_at_least(method: str, **settings: tuple[float, float]) -> None:
    """Refuse a setting (value, least) that is below its least value."""
    for name, (value, least) in settings.items():
        if not value >= least:
            raise StateError(f"`{name}` of {method} must be a number ≥ {least}. Got {value!r}.")


def _spread(found: Fit, chunk: Chunk, newcomer: Callable[[Leaves], Leaves], seed: int) -> State:
    """Give every known worker a row: their own, or a newcomer's."""
    blank = newcomer(found.shared)
    rows = {}
    for leaf, values in found.rows.items():
        rows[leaf] = np.repeat(np.asarray(blank[leaf])[None], chunk.n_workers, axis=0)
        rows[leaf][chunk.workers] = values
    return State(rows, found.shared, seed)


def _rows_of(
    state: State, workers: NDArray[np.integer[Any]], newcomer: Callable[[Leaves], Leaves]
) -> Leaves:
    known = len(next(iter(state.rows.values())))
    inside = np.minimum(workers, max(known - 1, 0))
    blank = newcomer(state.shared)
    rows = {}
    for leaf, values in state.rows.items():
        new = np.repeat(np.asarray(blank[leaf])[None], len(workers), axis=0)
        rows[leaf] = (
            new if not known else np.where(_like(workers < known, new), values[inside], new)
        )
    return rows


def _like(mask: NDArray[np.bool_], values: NDArray[Any]) -> NDArray[np.bool_]:
    return mask.reshape(-1, *[1] * (values.ndim - 1))


def _no_labels(chunk: Chunk) -> Chunk:
    empty = np.zeros(0, np.int32)
    return chunk._replace(
        item=empty,
        worker=empty,
        label=empty,
        weight=np.zeros(0, np.float32),
        known=np.zeros(0, bool),
        replaced=empty,
        replaced_weight=np.zeros(0, np.float32),
        item_keys=np.zeros(0, np.uint64),
        workers=empty,
        worker_keys=np.zeros(0, np.uint64),
    )
