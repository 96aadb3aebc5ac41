"""LA: a vote weighted by how often each worker was right, in one pass or in two.

Y. Yang, Z.-Q. Zhao, G. Wu, X. Zhuo, Q. Liu, Q. Bai and W. Li, A Lightweight, Effective, and
Efficient Model for Label Aggregation in Crowdsourcing, ACM TKDD, 2024 (arXiv:2212.00007).

The first pass takes items one by one, in the order of the chunk: the weighted vote answers an
item, and the answer tells which of its workers were right. The paper draws lots where a vote is
tied; here a worker is right by the share of the tied classes they named, so that nothing depends
on the names of the classes. LA one-pass weights its answers by what is known at the chunk's end.

LA two-pass answers all items again, and this time a worker who is right less often than by chance
counts against what they say, so that a class nobody named may win (the authors' code chooses among
the named ones). Online the passes go over each chunk, and over everything when all items are asked
for again.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.ingest.chunks import Chunk
from labelquorum.ingest.labels import MISSING, LabelSpace
from labelquorum.learn.aggregator import (
    TIE_TOLERANCE,
    Aggregation,
    Aggregator,
    break_ties,
    consensus,
    sum_by_item,
)
from labelquorum.learn.methods._batch import Leaves, check_at_least
from labelquorum.learn.worker_table import WorkerRows, forget_row


class State(NamedTuple):
    """How often each worker was right, and what was answered."""

    rows: WorkerRows  # (K,) "labels" of worker k, and those of them that were "right"
    answers: NDArray[np.float64]  # (C,) items that each class was the answer to
    seed: int


class Info(NamedTuple):
    """What an update did."""

    n_labels: int


class Credit(NamedTuple):
    """Labels every worker is taken to have given before their first."""

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
        forget=forget_row,
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
    """Right with the worker's quality on any class, wrong on all others alike, (P, C, C)."""
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


def _grow(state: State, chunk: Chunk) -> State:
    more = max(0, chunk.n_classes - len(state.answers))
    return state._replace(
        rows=state.rows.with_room(chunk.n_workers), answers=np.pad(state.answers, (0, more))
    )


# ── one pass ─────────────────────────────────────────────────────────────────────────────


def aggregate_one_pass(state: State, chunk: Chunk, credit: Credit) -> Aggregation:
    """Give each item the class with the heaviest vote; ties fall by seed and item."""
    quality = qualities(state, chunk, credit)
    # Σ_k a_k 1[l_ik = c]
    evidence = np.eye(chunk.n_classes)[chunk.label] * quality[:, None]
    votes = sum_by_item(evidence, chunk)
    total = votes.sum(axis=1, keepdims=True)
    # An item without a counted label gets every class alike.
    alike = np.full_like(votes, 1 / max(chunk.n_classes, 1))
    shares = np.divide(votes, total, out=alike, where=total > 0)
    return Aggregation(
        aggregated=break_ties(shares, chunk.item_keys, state.seed),
        probs=shares.astype(np.float32),
        log_evidence=(evidence * chunk.weight[:, None]).astype(np.float32),
    )


def la_one_pass(
    space: LabelSpace | None = None, *, right: float = 1.0, wrong: float = 1.0
) -> Aggregator:
    """Build LA one-pass.

    Parameters
    ----------
    right, wrong
        Labels every worker is credited with before their first. 1 and 1 are the paper's prior,
        Beta(2, 2), at whose mode it estimates.

    Examples
    --------
    >>> from labelquorum.evaluation.checks import seeded_error
    >>> print(f"{seeded_error(la_one_pass()):.1%}")
    14.3%
    """
    return lightweight("la_one_pass", aggregate_one_pass, right=right, wrong=wrong)


# ── two passes ───────────────────────────────────────────────────────────────────────────


def aggregate_two_pass(state: State, chunk: Chunk, credit: Credit) -> Aggregation:
    """The second pass: vote with the qualities as they are now; ties fall by seed and item."""
    quality = qualities(state, chunk, credit)
    # Σ_k (C a_k − 1) 1[l_ik = c], times C / (C − 1): to first order around a_k = 1/C these are
    # the log-odds of workers who are right with probability a_k, so softmax makes probabilities.
    n_classes = chunk.n_classes
    scale = n_classes / max(n_classes - 1, 1)
    evidence = np.eye(n_classes)[chunk.label] * scale * (n_classes * quality[:, None] - 1)
    log_scores = sum_by_item(evidence, chunk)
    return consensus(log_scores, evidence, chunk, state.seed)


def la_two_pass(
    space: LabelSpace | None = None, *, right: float = 1.0, wrong: float = 1.0
) -> Aggregator:
    """Build LA two-pass.

    Parameters
    ----------
    right, wrong
        As for `la_one_pass`.

    Examples
    --------
    >>> from labelquorum.evaluation.checks import seeded_error
    >>> print(f"{seeded_error(la_two_pass()):.1%}")
    13.8%
    """
    return lightweight("la_two_pass", aggregate_two_pass, right=right, wrong=wrong)
