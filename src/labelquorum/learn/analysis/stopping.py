"""Stopping: what would be saved, and lost, if items were closed once their answer is so sure.

The labels of an item are replayed one by one, in an order drawn by item and worker. After each the
answer has the probabilities it would have had with no more, and for every threshold the first
label that reaches it is where asking would have stopped. What is kept are sums, which add up over
chunks. `docs/crowd.md` has the formulas.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.ingest.chunks import Chunk, scramble
from labelquorum.ingest.labels import MISSING
from labelquorum.learn.aggregator import Aggregator, State

THRESHOLDS: tuple[float, ...] = (
    *(round(0.5 + 0.025 * step, 3) for step in range(19)),
    0.96,
    0.97,
    0.98,
    0.985,
    0.99,
    0.995,
)
"""Confidences at which asking may stop."""

ITEMS, USED, ERROR = range(3)
"""The columns of sums."""

_ODD = np.uint64(0x9E3779B97F4A7C15)  # spreads keys that are small numbers

Temperature = Callable[[Floats, Floats], Floats]


class Stop(NamedTuple):
    """What stopping at a confidence would have done."""

    threshold: float
    labels_used: float
    labels_saved: float  # the share of all labels
    expected_error: float  # the share of items


def stopping_sums(
    chunk: Chunk,
    log_evidence: NDArray[Any],
    log_prior: Floats,
    temperature: Temperature | None = None,
    thresholds: Sequence[float] = THRESHOLDS,
    is_stacked: bool = False,
) -> Floats:
    """Replay a chunk: items, labels used and expected errors, (G + 1, 3).

    There is a row for each threshold, and a last one for using all labels. Items whose truth was
    given are left out. Of an item that was there before, what its earlier labels gave is taken
    off, so that sums of chunks are sums of items.

    Parameters
    ----------
    log_evidence
        What each label says for each class, (B, C).
    log_prior
        What is added to it, (C,).
    temperature
        What log scores are divided by, by an item's numbers of workers and labels; None for 1.
    is_stacked
        Whether the evidence holds what gold says of workers, which is not divided: it was
        multiplied by the temperature of all labels, so that one is taken throughout.
    """
    how = log_prior, temperature, thresholds, is_stacked
    sums = _replayed(chunk, log_evidence, *how, np.ones(chunk.n_labels, bool))
    before = chunk.known | (chunk.replaced != MISSING)
    if before.any():
        sums -= _replayed(chunk, log_evidence, *how, before)
    return sums


def stopping_of(
    method: Aggregator,
    state: State,
    chunk: Chunk,
    log_evidence: NDArray[Any],
    thresholds: Sequence[float] = THRESHOLDS,
) -> Floats:
    """`stopping_sums` by the prior and the temperature of a model, (G + 1, 3)."""
    log_prior = np.log(np.maximum(method.class_prior(state), 1e-30))
    temperature = None if method.temperature is None else partial(method.temperature, state)
    return stopping_sums(chunk, log_evidence, log_prior, temperature, thresholds, has_stack(state))


def has_stack(state: State) -> bool:
    """Whether answers hold what gold says of workers beyond the worker models."""
    return bool(getattr(state, "stack", None))


def curve(sums: Floats, thresholds: Sequence[float] = THRESHOLDS) -> list[Stop]:
    """What each threshold would have done, by sums over any number of chunks."""
    sums = np.asarray(sums, np.float64)
    everything = max(float(sums[-1, USED]), 1e-12)
    reported = []
    for row, threshold in zip(sums[:-1], thresholds, strict=True):
        error = float(row[ERROR]) / max(float(row[ITEMS]), 1e-12)
        used = float(row[USED])
        reported.append(
            Stop(float(threshold), used, max(1 - used / everything, 0.0), max(error, 0.0))
        )
    return reported


def _replayed(
    chunk: Chunk,
    log_evidence: NDArray[Any],
    log_prior: Floats,
    temperature: Temperature | None,
    thresholds: Sequence[float],
    is_stacked: bool,
    rows: NDArray[np.bool_],
) -> Floats:
    """Sums over the labels in these rows, (G + 1, 3)."""
    sums = np.zeros((len(thresholds) + 1, 3))
    if chunk.gold is not None:
        rows = rows & (chunk.gold == MISSING)[chunk.item]
    if not rows.any():
        return sums
    place = np.flatnonzero(rows)
    place = place[np.lexsort((_lots(chunk)[place], chunk.item[place]))]
    item = chunk.item[place]
    first = np.flatnonzero(np.diff(item, prepend=-1))  # where each item begins
    length = np.diff(np.append(first, len(item)))
    confidence = _confidence(
        np.asarray(log_evidence, np.float64)[place],
        chunk.weight[place],
        _next_worker(chunk, place),
        first,
        length,
        log_prior,
        temperature,
        is_stacked,
    )
    number = np.arange(len(item)) - np.repeat(first, length) + 1  # 1, 2, … within each item
    # Label i is where asking stops for the thresholds that it reaches and no label before it did;
    # the last label of an item, for all that are left.
    levels = np.sort(thresholds)
    reached = np.searchsorted(levels, confidence, side="right")
    reached[first + length - 1] = len(levels) + 1
    begin = np.repeat(np.arange(len(first)), length) * (len(levels) + 2)
    highest = np.maximum.accumulate(reached + begin) - begin
    before = np.concatenate([[0], highest[:-1]])
    before[first] = 0
    stops = np.flatnonzero(reached > before)
    sizes = (len(levels) + 2,)
    for column, values in ((ITEMS, None), (USED, number[stops]), (ERROR, 1 - confidence[stops])):
        gained = np.bincount(before[stops], values, *sizes)
        lost = np.bincount(reached[stops], values, *sizes)
        sums[:, column] = np.cumsum(gained - lost)[:-1]
    order = np.argsort(np.argsort(thresholds, kind="stable"), kind="stable")
    return sums[[*order, len(levels)]]


def _confidence(
    evidence: Floats,
    weight: NDArray[Any],
    next_worker: NDArray[Any],
    first: NDArray[np.intp],
    length: NDArray[np.intp],
    log_prior: Floats,
    temperature: Temperature | None,
    is_stacked: bool,
) -> Floats:
    """The probability of the best class after each label, (B,)."""
    running = np.cumsum(evidence, axis=0)
    before = np.repeat(running[first] - evidence[first], length, axis=0)
    divisor = np.ones(len(running))
    if temperature is not None:
        n_workers, n_labels = (np.cumsum(each, dtype=np.float64) for each in (next_worker, weight))
        n_labels = n_labels - np.repeat(n_labels[first] - weight[first], length)
        n_workers = n_workers - np.repeat(n_workers[first] - next_worker[first], length)
        divisor = temperature(n_workers, n_labels)
        if is_stacked:
            divisor = np.repeat(divisor[first + length - 1], length)
    # q_n ∝ ( π Π_{j ≤ n} m_j[·, l_j] )^(1 / temperature(n))
    scores = (running - before + log_prior[: evidence.shape[1]]) / divisor[:, None]
    scores -= scores.max(axis=1, keepdims=True)
    return np.asarray(1 / np.exp(scores).sum(axis=1))


def _next_worker(chunk: Chunk, place: NDArray[np.intp]) -> NDArray[Any]:
    """What each label adds to the number of workers, as `workers_by_item` counts them, (B,)."""
    if chunk.first_votes is None and chunk.votes is None:
        return chunk.weight[place]
    item, worker = chunk.item[place], chunk.worker[place]  # labels of one worker are neighbours
    again = (np.diff(item, prepend=-1) == 0) & (np.diff(worker, prepend=-1) == 0)
    return np.where(again, 0.0, 1.0)


def _lots(chunk: Chunk) -> NDArray[np.uint64]:
    """A number for each label by which an item's labels are put in order, (B,)."""
    bits = chunk.item_keys[chunk.item] ^ (chunk.worker_keys[chunk.local_worker] * _ODD + _ODD)
    return scramble(bits)
