"""Draws for simulated crowds, all rows at once: who labels an item, and what he says.

Ten million labels are drawn in one go, so nothing here is as large as items × workers or
labels × classes.
"""

from zlib import crc32

import numpy as np

from labelquorum._types import Floats, Ints
from labelquorum.errors import StateError

__all__ = [
    "check_count",
    "check_share",
    "draw_distinct",
    "draw_labels",
    "draw_workers",
    "generator",
]

TRIES = 50  # draws before a race decides
RACERS = 1 << 22  # numbers in one block of a race


def generator(seed: int, purpose: str, turn: int = 0) -> np.random.Generator:
    """Give random numbers of their own to each purpose, so that seeds may be the same.

    A crowd and what is done to it later may have one seed. Were the numbers the same too, labels
    that should be independent would not be.
    """
    return np.random.default_rng([seed, crc32(purpose.encode()), turn])


def draw_labels(rng: np.random.Generator, confusion: Floats, worker: Ints, truth: Ints) -> Ints:
    """Draw a label from row `truth` of each worker's matrix; worker and truth are (L,)."""
    cumulative = np.cumsum(confusion, axis=2)
    cumulative /= cumulative[:, :, -1:]
    level = rng.random(worker.size)
    label = np.zeros(worker.size, dtype=np.int64)
    # Inverse of the cumulative law, class by class: no (L, C) array at ten million labels.
    for z in range(confusion.shape[2] - 1):
        label += level >= cumulative[worker, truth, z]
    return label


def draw_workers(
    rng: np.random.Generator, n_items: int, n_workers: int, size: int, participation: float
) -> Ints:
    """Draw `size` different workers for each item, sorted: (N, size).

    The worker of rank r has the weight r^-participation; who has which rank is drawn. An item's
    workers are drawn one after the other by weight, each from those who are left.
    """
    if participation == 0:
        return draw_distinct(rng, n_items, n_workers, size)
    log_weight = -participation * np.log(rng.permutation(np.arange(1.0, n_workers + 1)))
    return _draw_weighted(rng, log_weight, n_items, size)


def draw_distinct(rng: np.random.Generator, n_rows: int, n: int, size: int) -> Ints:
    """Draw `size` different numbers below n for each row, sorted: (n_rows, size).

    Floyd's algorithm (Bentley and Floyd, CACM 1987), all rows at once.
    """
    drawn = np.empty((size, n_rows), dtype=np.int64)
    for column, bound in enumerate(range(n - size, n)):
        pick = rng.integers(bound + 1, size=n_rows)
        taken = (drawn[:column] == pick).any(axis=0)
        drawn[column] = np.where(taken, bound, pick)
    return np.sort(drawn.T, axis=1)


def check_count(name: str, where: str, value: int, least: int = 1) -> None:
    """Refuse what is no count."""
    if value < least:
        raise StateError(f"`{name}` of {where} must be a whole number ≥ {least}. Got {value}.")


def check_share(name: str, where: str, value: float) -> None:
    """Refuse what is no share or probability."""
    if not 0 <= value <= 1:
        raise StateError(f"`{name}` of {where} must be a number from 0 to 1. Got {value}.")


def _draw_weighted(rng: np.random.Generator, log_weight: Floats, n_rows: int, size: int) -> Ints:
    """Draw different numbers by weight, each from those that are left, sorted: (n_rows, size)."""
    level = np.cumsum(np.exp(log_weight - log_weight.max()))
    level /= level[-1]
    drawn = np.empty((size, n_rows), dtype=np.int64)
    for column in range(size):
        # To draw from all and try again is to draw from those that are left.
        left = np.arange(n_rows)
        for _ in range(TRIES):
            pick = np.searchsorted(level, rng.random(left.size), side="right")
            drawn[column, left] = pick
            left = left[(drawn[:column, left] == pick).any(axis=0)]
            if not left.size:
                break
        # So is a race: the first of exponential times whose rates are the weights.
        for start in range(0, left.size, rows := max(1, RACERS // log_weight.size)):
            racing = left[start : start + rows]
            time = rng.standard_exponential((racing.size, log_weight.size))
            log_time = np.log(time, out=time) - log_weight
            np.put_along_axis(log_time, drawn[:column, racing].T, np.inf, axis=1)
            drawn[column, racing] = log_time.argmin(axis=1)
    return np.sort(drawn.T, axis=1)
