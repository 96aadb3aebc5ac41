"""LA: counting who was right, item by item; what its one-pass and two-pass forms share.

Y. Yang, Z.-Q. Zhao, G. Wu, X. Zhuo, Q. Liu, Q. Bai and W. Li, A Lightweight, Effective, and
Efficient Model for Label Aggregation in Crowdsourcing, ACM TKDD, 2024 (arXiv:2212.00007).

Items are taken one by one, in the order of the chunk: the weighted vote answers an item, and the
answer tells which of its workers were right. The paper draws lots where a vote is tied; here a
worker is right by the share of the tied classes that he named, so that nothing hangs on the names
of the classes.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum.ingest.chunks import Chunk
from labelquorum.ingest.events import MISSING
from labelquorum.learn.aggregator import TIE_TOLERANCE, Aggregation, Aggregator
from labelquorum.learn.offline import Floats, Leaves, check_at_least
from labelquorum.learn.rows import WorkerRows

__all__ = ["Credit", "Info", "State", "init", "lightweight", "qualities", "update"]


class State(NamedTuple):
    """How often each worker was right, and what was answered."""

    rows: WorkerRows  # (K,) "labels" of worker k, and those of them that were "right"
    answers: NDArray[np.float64]  # (C,) items that each class was the answer to
    seed: int


class Info(NamedTuple):
    """What an update did."""

    n_labels: int


class Credit(NamedTuple):
    """Labels every worker is taken to have given before his first."""

    right: float  # α − 1
    wrong: float  # β − 1


def init(chunk: Chunk, seed: int) -> State:
    """Know nobody."""
    rows = WorkerRows({"labels": np.zeros(0), "right": np.zeros(0)})
    return State(rows, np.zeros(chunk.n_classes), seed)


def update(state: State, chunk: Chunk, credit: Credit) -> tuple[State, Info]:
    """Answer the chunk's items one after the other, and count who was right."""
    state = _grow(state, chunk)
    if not chunk.n_labels:
        return state, Info(0)
    rows, answers = _pass(state.rows.gather(chunk.workers), chunk, credit)
    return State(
        rows=state.rows.scatter(chunk.workers, rows),
        answers=state.answers + answers,
        seed=state.seed,
    ), Info(chunk.n_labels)


def qualities(state: State, chunk: Chunk, credit: Credit) -> Floats:
    """How often the worker of each label is right, (B,)."""
    rows = _grow(state, chunk).rows.gather(chunk.workers)
    return _quality(rows, credit)[chunk.local_worker]


def lightweight(
    name: str,
    aggregate: Callable[..., Aggregation],
    *,
    right: float,
    wrong: float,
) -> Aggregator:
    """Make an aggregator of a way to vote with the qualities."""
    check_at_least(name, right=(right, 1e-3), wrong=(wrong, 1e-3))
    credit = Credit(right, wrong)
    return Aggregator(
        name=name,
        state_type=State,
        init=init,
        update=partial(update, credit=credit),
        aggregate=partial(aggregate, credit=credit),
        confusion=partial(_confusion, credit=credit),
        class_prior=_class_prior,
        forget=_forget,
    )


def _pass(rows: Leaves, chunk: Chunk, credit: Credit) -> tuple[Leaves, Floats]:
    """Go through the items once; tells the workers' rows and the answers to new items, (C,).

    Each item needs the qualities the one before it left behind, so this is a loop, and over so
    few numbers at a time plain Python is the fastest there is.
    """
    right, labels = rows["right"].tolist(), rows["labels"].tolist()
    worker, label, weight = chunk.local_worker.tolist(), chunk.label.tolist(), chunk.weight.tolist()
    known = (chunk.known | (chunk.replaced != MISSING)).tolist()
    answers = [0.0] * chunk.n_classes
    edges = np.searchsorted(chunk.item, np.arange(chunk.n_items + 1)).tolist()
    for start, stop in pairwise(edges):
        # ŷ_i = argmax_c Σ_k a_k 1[l_ik = c], with a_k = (c_k + α − 1) / (t_k + α + β − 2)
        votes = [0.0] * chunk.n_classes
        for row in range(start, stop):
            k = worker[row]
            quality = (right[k] + credit.right) / (labels[k] + credit.right + credit.wrong)
            votes[label[row]] += weight[row] * quality
        tied = max(votes) - TIE_TOLERANCE
        best = [c for c, vote in enumerate(votes) if vote >= tied]
        share = 1 / len(best)
        # c_k ← c_k + 1[l_ik = ŷ_i];  t_k ← t_k + 1
        for row in range(start, stop):
            if not known[row]:
                labels[worker[row]] += weight[row]
                right[worker[row]] += weight[row] * share * (label[row] in best)
        if not any(known[start:stop]):
            for c in best:
                answers[c] += share
    return {"right": np.array(right), "labels": np.array(labels)}, np.array(answers)


def _quality(rows: Leaves, credit: Credit) -> Floats:
    """How often each worker is right, (P,)."""
    # a_k = (c_k + α − 1) / (t_k + α + β − 2)
    return np.asarray((rows["right"] + credit.right) / (rows["labels"] + sum(credit)))


def _confusion(
    state: State, workers: NDArray[np.integer[Any]], credit: Credit
) -> NDArray[np.float32]:
    """Right with his quality whatever the class, and else any other class alike, (P, C, C)."""
    n_classes = len(state.answers)
    right = _quality(state.rows.gather(workers), credit)[:, None, None]
    if n_classes < 2:
        return np.ones((len(workers), n_classes, n_classes), np.float32)
    wrong = (1 - right) / (n_classes - 1)
    return np.where(np.eye(n_classes, dtype=bool), right, wrong).astype(np.float32)


def _class_prior(state: State) -> NDArray[np.float64]:
    """The shares of the answers, half an item added to each class; the vote does not use them."""
    answers = state.answers + 0.5
    return np.asarray(answers / answers.sum())


def _forget(state: State, worker: int) -> State:
    return state._replace(rows=state.rows.cleared(worker))


def _grow(state: State, chunk: Chunk) -> State:
    more = max(0, chunk.n_classes - len(state.answers))
    return state._replace(
        rows=state.rows.with_room(chunk.n_workers), answers=np.pad(state.answers, (0, more))
    )
