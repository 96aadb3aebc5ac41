"""SBIC: streaming Bayesian inference for two classes, its fast form.

E. Manino, L. Tran-Thanh and N. R. Jennings, Streaming Bayesian Inference for Crowdsourced
Classification, NeurIPS 2019: Fast SBIC.

A worker is right with one probability whatever the class, and a Beta distribution says what is
known of it. Items are taken one by one, in the order of the chunk: the workers' present means give
the item's log-odds, and these tell how probably each of them was right. That is the paper's order
of labels in which all labels of an item come together; a label that comes late is weighed with all
the others of its item, but what those said about their workers is not taken back. The answers a
chunk gets are weighed by what is known at its end.
"""

from functools import partial
from itertools import pairwise
from math import log, tanh
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.errors import LabelError, StateError
from labelquorum.ingest.chunks import Chunk
from labelquorum.ingest.labels import MISSING, LabelSpace
from labelquorum.learn.aggregator import Aggregation, Aggregator, consensus, sum_by_item
from labelquorum.learn.methods._batch import Leaves, check_at_least
from labelquorum.learn.worker_table import WorkerRows, forget_row


class State(NamedTuple):
    """How often each worker was right."""

    rows: WorkerRows  # (K,) "labels" of worker k, and how many of them are expected to be "right"
    n_classes: int
    seed: int


class Info(NamedTuple):
    """What an update did."""

    n_labels: int


class Prior(NamedTuple):
    """What is held before the first label."""

    right: float  # α
    wrong: float  # β
    second_class: float  # q


def init(chunk: Chunk, seed: int) -> State:
    """Know nobody."""
    _check_classes(chunk.n_classes)
    rows = WorkerRows({"labels": np.zeros(0), "right": np.zeros(0)})
    return State(rows, chunk.n_classes, seed)


def update(state: State, chunk: Chunk, prior: Prior) -> tuple[State, Info]:
    """Weigh the chunk's items one after the other, and count who was right."""
    state = _grow(state, chunk)
    if not chunk.n_labels:
        return state, Info(0)
    rows = _pass(state.rows.gather(chunk.workers), chunk, prior)
    state = state._replace(rows=state.rows.scatter(chunk.workers, rows))
    return state, Info(chunk.n_labels)


def aggregate(state: State, chunk: Chunk, prior: Prior) -> Aggregation:
    """Give each item the more probable class; ties fall by seed and item."""
    rows = _grow(state, chunk).rows.gather(chunk.workers)
    mean = _mean(rows, prior)[chunk.local_worker, None]
    # log q_c + Σ_k log(p̄_k if l_ik = c else 1 − p̄_k)
    evidence = np.log(np.where(chunk.label[:, None] == np.arange(chunk.n_classes), mean, 1 - mean))
    log_classes = np.log([1 - prior.second_class, prior.second_class])[: chunk.n_classes]
    log_scores = log_classes + sum_by_item(evidence, chunk)
    return consensus(log_scores, evidence, chunk, state.seed)


def sbic(
    space: LabelSpace | None = None,
    *,
    right: float = 2.0,
    wrong: float = 1.0,
    second_class: float = 0.5,
) -> Aggregator:
    """Build Fast SBIC, for two classes.

    Parameters
    ----------
    right, wrong
        The Beta prior of how often a worker is right. 2 and 1 are the paper's.
    second_class
        How probable the second class is beforehand; the other one is the first.

    Examples
    --------
    >>> from labelquorum.evaluation.checks import seeded_error
    >>> print(f"{seeded_error(sbic(), n_classes=2):.1%}")
    16.6%
    """
    check_at_least("sbic", right=(right, 1e-3), wrong=(wrong, 1e-3))
    if not 0 < second_class < 1:
        raise StateError(
            f"`second_class` of sbic must be a number between 0 and 1. Got {second_class!r}."
        )
    if space is not None and space.classes is not None:
        _check_classes(len(space.classes))
    prior = Prior(right, wrong, second_class)
    return Aggregator(
        name="sbic",
        state_type=State,
        init=init,
        update=partial(update, prior=prior),
        aggregate=partial(aggregate, prior=prior),
        confusion=partial(_confusion, prior=prior),
        class_prior=partial(_class_prior, prior=prior),
        forget=forget_row,
        exceptions={"new_class": "it tells two classes apart, and a third is refused"},
    )


def _pass(rows: Leaves, chunk: Chunk, prior: Prior) -> Leaves:
    """Go through the items once; tells the workers' rows.

    Each item needs the means the one before it left behind, so this is a loop, and over so few
    numbers at a time plain Python is the fastest there is.
    """
    right, labels = rows["right"].tolist(), rows["labels"].tolist()
    worker, weight = chunk.local_worker.tolist(), chunk.weight.tolist()
    known = (chunk.known | (chunk.replaced != MISSING)).tolist()
    sign = np.where(chunk.label == 1, 1.0, -1.0).tolist()  # x_ik
    class_log_odds = log(prior.second_class / (1 - prior.second_class))
    edges = np.searchsorted(chunk.item, np.arange(chunk.n_items + 1)).tolist()
    for start, stop in pairwise(edges):
        # z_i = log(q / (1 − q)) + Σ_k x_ik log(p̄_k / (1 − p̄_k)), with
        # p̄_k = (Σ_i sig(x_ik z_i) + α) / (|M_k| + α + β)
        log_odds = class_log_odds
        for row in range(start, stop):
            k = worker[row]
            odds = (right[k] + prior.right) / (labels[k] - right[k] + prior.wrong)
            log_odds += weight[row] * sign[row] * log(odds)
        # sig(x_ik z_i), the probability that k was right
        for row in range(start, stop):
            if not known[row]:
                labels[worker[row]] += weight[row]
                right[worker[row]] += weight[row] * (0.5 + 0.5 * tanh(0.5 * sign[row] * log_odds))
    return {"right": np.array(right), "labels": np.array(labels)}


def _mean(rows: Leaves, prior: Prior) -> Floats:
    """How often each worker is right, (P,)."""
    # p̄_k = (Σ_i sig(x_ik z_i) + α) / (|M_k| + α + β)
    return np.asarray((rows["right"] + prior.right) / (rows["labels"] + prior.right + prior.wrong))


def _confusion(
    state: State, workers: NDArray[np.integer[Any]], prior: Prior
) -> NDArray[np.float32]:
    """Right as often as the worker's mean whatever the class, (P, C, C)."""
    if state.n_classes < 2:
        return np.ones((len(workers), state.n_classes, state.n_classes), np.float32)
    right = _mean(state.rows.gather(workers), prior)[:, None, None]
    return np.where(np.eye(2, dtype=bool), right, 1 - right).astype(np.float32)


def _class_prior(state: State, prior: Prior) -> NDArray[np.float64]:
    """The prior as it was given: the paper does not learn it."""
    if state.n_classes < 2:
        return np.ones(state.n_classes)
    return np.array([1 - prior.second_class, prior.second_class])


def _grow(state: State, chunk: Chunk) -> State:
    _check_classes(chunk.n_classes)
    return state._replace(
        rows=state.rows.with_room(chunk.n_workers),
        n_classes=max(state.n_classes, chunk.n_classes),
    )


def _check_classes(n_classes: int) -> None:
    if n_classes > 2:
        raise LabelError(
            f"sbic tells two classes apart, and there are {n_classes}: use la_one_pass instead."
        )
