"""Majority vote: the class most workers named.

The oldest aggregator there is, and the shape every other one follows.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum.ingest.chunks import Chunk
from labelquorum.ingest.labels import LabelSpace
from labelquorum.learn.aggregator import (
    Aggregation,
    Aggregator,
    break_ties,
    vote_counts,
)
from labelquorum.learn.worker_table import WorkerRows, forget_row


class State(NamedTuple):
    """How each worker's labels went with the vote; the vote itself needs nothing."""

    rows: WorkerRows  # "votes" (K, C, C): labels z of worker k where the vote said c
    shares: NDArray[np.float64]  # (C,) sum over items of the vote
    seed: int


class Info(NamedTuple):
    """What an update did."""

    n_labels: int


def init(chunk: Chunk, seed: int) -> State:
    """Know nobody."""
    votes = np.zeros((0, chunk.n_classes, chunk.n_classes))
    return State(WorkerRows({"votes": votes}), np.zeros(chunk.n_classes), seed)


def update(state: State, chunk: Chunk) -> tuple[State, Info]:
    """Count how the chunk's workers agreed with its vote."""
    state = _grow(state, chunk)
    if not chunk.n_labels:
        return state, Info(0)
    votes = state.rows.gather(chunk.workers)["votes"] + vote_counts(chunk)
    rows = state.rows.scatter(chunk.workers, {"votes": votes})
    # An item that was counted when it first came is not counted again.
    again = np.bincount(chunk.item, chunk.counted_weight < chunk.weight, chunk.n_items) > 0
    shares = state.shares + chunk.vote_shares[~again].sum(axis=0)
    return State(rows, shares, state.seed), Info(chunk.n_labels)


def aggregate(state: State, chunk: Chunk) -> Aggregation:
    """Give each item the class with most votes; ties fall by seed and item."""
    shares = chunk.vote_shares.copy()
    # An item without a counted label gets every class alike.
    shares[shares.sum(axis=1) == 0] = 1 / max(chunk.n_classes, 1)
    evidence = np.eye(chunk.n_classes, dtype=np.float32)[chunk.label] * chunk.weight[:, None]
    return Aggregation(
        break_ties(shares, chunk.item_keys, state.seed), shares.astype(np.float32), evidence
    )


def majority_vote(space: LabelSpace | None = None) -> Aggregator:
    """Build the majority vote.

    Examples
    --------
    >>> from labelquorum.ingest.chunks import make_chunk
    >>> chunk = make_chunk([0, 0, 0, 1], [0, 1, 2, 0], [1, 1, 0, 0])
    >>> vote = majority_vote()
    >>> state, _ = vote.update(vote.init(chunk, 0), chunk)
    >>> vote.aggregate(state, chunk).aggregated.tolist()
    [1, 0]
    """
    return Aggregator(
        name="majority_vote",
        state_type=State,
        init=init,
        update=update,
        aggregate=aggregate,
        confusion=_confusion,
        class_prior=_class_prior,
        forget=forget_row,
    )


def _confusion(state: State, workers: NDArray[np.integer[Any]]) -> NDArray[np.float32]:
    """How each worker's labels went with the vote, (P, C, C), half a label added to each cell."""
    votes = state.rows.gather(workers)["votes"] + 0.5
    return np.asarray(votes / votes.sum(axis=2, keepdims=True), np.float32)


def _class_prior(state: State) -> NDArray[np.float64]:
    shares = state.shares + 0.5
    return np.asarray(shares / shares.sum())


def _grow(state: State, chunk: Chunk) -> State:
    more = max(0, chunk.n_classes - len(state.shares))
    return state._replace(
        rows=state.rows.with_room(chunk.n_workers, more),
        shares=np.pad(state.shares, (0, more)),
    )
