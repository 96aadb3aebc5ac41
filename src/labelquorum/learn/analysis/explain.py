"""The outlook: why an item has its answer, what would change it, and what one more label would do.

Pure functions over probabilities, evidence and matrices. `docs/confidence.md` has the formulas.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.ingest.chunks import Chunk, make_chunk
from labelquorum.ingest.labels import MISSING
from labelquorum.learn.aggregator import Aggregator, State
from labelquorum.learn.item_columns import OpenItem

CLOSE = 0.05
"""Log-odds that differ by no more are taken for the same."""

MAX_ARRAY_SIZE = 1 << 22
"""Numbers in an array at a time."""

TINY = 1e-30
"""A probability below is lost in float32, and its logarithm with it."""


# ── one more label ───────────────────────────────────────────────────────────────────────


class Prospects(NamedTuple):
    """What one more label would do for each item."""

    mean: Floats  # (N,) the gain by whoever labels next; NaN where nobody is left
    worker: NDArray[np.intp]  # (N,) whose label would help most; MISSING where nobody is left
    gain: Floats  # (N,) and by how much; NaN there


def discounted(matrix: Floats, temperature: float) -> Floats:
    """What a label says that leans on others: m^(1 / temperature), each row divided by its sum."""
    powered = np.maximum(matrix, TINY) ** (1 / temperature)
    return np.asarray(powered / powered.sum(axis=-1, keepdims=True))


def gains(probs: Floats, matrix: Floats, temperature: Floats) -> Floats:
    """By how much one more label would raise the probability that the answer is right, (N, P).

    Parameters
    ----------
    probs
        q (N, C).
    matrix
        m (P, C, C), of those who may be asked.
    temperature
        (N,), what log-odds are divided by once the label is there.
    """
    gain = np.empty((len(probs), len(matrix)))
    together = max(1, MAX_ARRAY_SIZE // max(len(matrix), 1))
    for level, items in _by_temperature(temperature):
        said = discounted(matrix, level)
        for start in range(0, len(items), together):
            some = items[start : start + together]
            gain[some] = _expected_best(probs[some], said) - probs[some].max(axis=1)[:, None]
    return np.maximum(gain, 0)  # rounding aside it never falls


def prospects(
    probs: Floats, matrix: Floats, temperature: Floats, share: Floats, asked: Chunk
) -> Prospects:
    """What a label of one of P workers would do for each item, on average and at best.

    Parameters
    ----------
    probs, matrix, temperature
        As in `gains`.
    share
        How often each of them labels, (P,).
    asked
        The labels there are, their workers as positions among the P: nobody is asked twice.
    """
    n_items = len(probs)
    mean, gain = np.full(n_items, np.nan), np.full(n_items, np.nan)
    worker = np.full(n_items, MISSING, np.intp)
    if not len(matrix):
        return Prospects(mean, worker, gain)
    together = max(1, MAX_ARRAY_SIZE // len(matrix))
    for start in range(0, n_items, together):
        some = slice(start, min(start + together, n_items))
        table = gains(probs[some], matrix, temperature[some])
        anybody = table @ share / share.sum()  # where all were asked: a new worker, like them
        labels = slice(*np.searchsorted(asked.item, [some.start, some.stop]))
        taken = asked.item[labels] - start, asked.worker[labels]
        table[taken] = 0
        free = np.full(some.stop - start, share.sum())
        free -= np.bincount(taken[0], share[taken[1]], len(free))
        table_mean = table @ share
        table[taken] = -1
        best = table.argmax(axis=1)
        most = np.take_along_axis(table, best[:, None], axis=1)[:, 0]
        left = most >= 0
        worker[some] = np.where(left, best, MISSING)
        gain[some] = np.where(left, most, np.nan)
        mean[some] = np.where(left, table_mean / np.maximum(free, TINY), anybody)
    return Prospects(mean, worker, gain)


def _expected_best(probs: Floats, matrix: Floats) -> Floats:
    """Σ_z max_c q_c m_k[c, z], (N, P)."""
    n_classes = probs.shape[1]
    total = np.zeros((len(probs), len(matrix)))
    for z in range(n_classes):
        best = np.outer(probs[:, 0], matrix[:, 0, z])
        for c in range(1, n_classes):
            np.maximum(best, np.outer(probs[:, c], matrix[:, c, z]), out=best)
        total += best
    return total


def _by_temperature(temperature: Floats) -> list[tuple[float, NDArray[np.intp]]]:
    """Items by temperature, to hundredths."""
    levels, group = np.unique(np.round(temperature, 2), return_inverse=True)
    order = np.argsort(group, kind="stable")
    edges = np.searchsorted(group[order], np.arange(len(levels) + 1))
    spans = zip(levels, pairwise(edges), strict=True)
    return [(float(level), order[start:stop]) for level, (start, stop) in spans]


# ── why an answer ────────────────────────────────────────────────────────────────────────


class Odds(NamedTuple):
    """The log-odds of an item's answer against the runner-up, and what would turn them."""

    runner_up: int  # its class; MISSING where no other class is known
    by_label: Floats  # (n,)
    prior: float  # what the labels do not account for; NaN where that is unknown
    total: float
    removals: list[int]  # labels without which another class would win
    further_labels: int | None  # labels of average workers for the runner-up that would do it


def odds(item: OpenItem, temperature: float, log_prior: Floats | None, log_average: Floats) -> Odds:
    """Take the log-odds of an item's answer apart.

    Parameters
    ----------
    temperature
        What they were divided by.
    log_prior
        What is added to the evidence, (C,), as `adds_up` tells it; None where it does not add up.
    log_average
        log m of those who may give further labels, on average, (C, C).
    """
    probs, answer = item.probs.astype(np.float64), item.aggregated
    evidence, n_classes = item.log_evidence.astype(np.float64), len(probs)
    if n_classes < 2:
        return Odds(MISSING, np.zeros(len(evidence)), np.nan, np.inf, [], None)
    scores = evidence.sum(axis=0)
    if log_prior is not None:
        scores += log_prior[:n_classes]
        if probs.min() >= TINY:
            # temperature · log q_c = log π_c + Σ_k log m_k[c, l_k] + a constant; π as it was then
            scores = temperature * np.log(probs)
    others = np.where(np.arange(n_classes) == answer, -np.inf, scores)
    runner_up = int(others.argmax())
    by_label = evidence[:, answer] - evidence[:, runner_up]
    total, said = float(scores[answer] - scores[runner_up]), float(by_label.sum())
    removals, further = [], None
    if item.gold == MISSING and total >= 0:
        removals = removals_to_flip(scores, evidence, answer, by_label)
        if log_prior is not None:
            further = labels_to_flip(total, log_average, answer, runner_up)
    prior = np.nan if log_prior is None else total - said
    return Odds(runner_up, by_label, prior, total, removals, further)


def adds_up(method: Aggregator, state: State, chunk: Chunk) -> Floats | None:
    """What a method adds to the evidence of labels, (C,): the log prior, or nothing.

    It is tried on an item, the first of the chunk, and on each class named once by each of its
    workers. None where a method does something else than to add up.
    """
    n_classes, first = chunk.n_classes, chunk.item == 0
    worker = np.repeat(chunk.worker[first], n_classes)
    label = np.tile(np.arange(n_classes), int(first.sum()))
    trial = make_chunk(
        np.concatenate([chunk.item[first], 1 + np.arange(len(worker))]),
        np.concatenate([chunk.worker[first], worker]),
        np.concatenate([chunk.label[first], label]),
        weight=np.concatenate([chunk.weight[first], np.ones(len(worker))]),
        n_workers=chunk.n_workers,
        n_classes=n_classes,
    )
    answer = method.aggregate(state, trial)
    temperature = np.ones(trial.n_items)
    if method.temperature is not None:
        temperature = method.temperature(state, trial.workers_by_item, trial.weight_by_item)
    log_prior = np.log(np.maximum(method.class_prior(state), TINY))
    if (answer.probs[1:] <= 0).any() or len(log_prior) < n_classes:
        return None
    summed = np.zeros((trial.n_items, n_classes))
    np.add.at(summed, trial.item, answer.log_evidence)
    left = temperature[:, None] * np.log(np.maximum(answer.probs, TINY)) - summed
    left = left[(answer.probs > TINY).all(axis=1)]
    for added in (log_prior, np.zeros(n_classes)):
        if (np.ptp(left - added, axis=1) <= CLOSE).all():
            return added
    return None


def removals_to_flip(scores: Floats, evidence: Floats, answer: int, by_label: Floats) -> list[int]:
    """The fewest labels without which another class would win, the weightiest first.

    Parameters
    ----------
    scores
        Of the classes, all labels counted, (C,).
    evidence, by_label
        (n, C), and what each label says for the answer against the runner-up, (n,).

    Returns
    -------
    labels : positions; empty where that takes all labels there are
    """
    order = np.argsort(-by_label, kind="stable")
    left = scores - np.cumsum(evidence[order], axis=0, dtype=np.float64)  # (n, C)
    others = np.where(np.arange(len(scores)) == answer, -np.inf, left).max(axis=1)
    flipped = np.flatnonzero((others > left[:, answer])[:-1] & (by_label[order] > 0)[:-1])
    return [int(row) for row in order[: flipped[0] + 1]] if len(flipped) else []


def labels_to_flip(total: float, log_matrix: Floats, answer: int, runner_up: int) -> int | None:
    """How many further labels for the runner-up flip an answer with these log-odds.

    `log_matrix` is log m of who gives them, (C, C); None where they say nothing for it.
    """
    gain = float(log_matrix[runner_up, runner_up] - log_matrix[answer, runner_up])
    return int(total // gain) + 1 if gain > CLOSE else None
