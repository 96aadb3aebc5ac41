"""Rows: the loops over cells that every table goes through, ids → integers in canonical order.

In C where it was built (`_rows.c`), else in Python and NumPy, with the same results.
"""

from collections.abc import Hashable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_rows: Any = None
with suppress(ImportError):  # no compiler was there when the package was installed
    _rows = import_module("labelquorum.ingest._rows")

MIN_SLOTS = 1 << 6

_KEY_BITS = 63  # of a number that is sorted


class SortedRows(NamedTuple):
    """Rows in canonical order, and their workers numbered; B rows, P workers."""

    item: NDArray[np.int32]  # (B,)
    worker: NDArray[np.int32]  # (B,)
    label: NDArray[np.int32]  # (B,)
    weight: NDArray[np.float32] | None  # (B,)
    order: NDArray[np.integer[Any]] | slice  # the row each was
    workers: NDArray[np.int32]  # (P,) the distinct workers, ascending
    local_worker: NDArray[np.int32]  # (B,) positions in `workers`
    has_repeats: bool  # whether a worker has several rows of one item


def encode_list(cells: list[Any]) -> tuple[NDArray[np.int32], list[Any]]:
    """Codes (B,) of cells into their distinct values, which are in order of first appearance."""
    if _rows is not None:
        codes = np.empty(len(cells), np.int32)
        return codes, _rows.encode(cells, codes)
    values = list(dict.fromkeys(cells))
    place = dict(zip(values, range(len(values)), strict=True))
    return np.fromiter(map(place.__getitem__, cells), np.int32, len(cells)), values


def look_up(cells: list[Any], known: Mapping[Hashable, int]) -> NDArray[np.int32] | None:
    """The numbers that cells are known by, (B,); None where one is not known."""
    if _rows is not None:
        index = np.empty(len(cells), np.int32)
        return index if _rows.look_up(cells, known, index) else None
    try:
        return np.fromiter(map(known.__getitem__, cells), np.int32, len(cells))
    except KeyError:
        return None


class IdIndex:
    """The positions of ids in a list that grows, for many ids at once.

    A dict has them too; of a million ids, C finds some in a third of the time a dict takes,
    because it fetches the memory of several before it reads the first (`_rows.c`).

    Parameters
    ----------
    ids
        Different ones, or None in places that are empty.
    known
        The same as a dict, kept by the caller.
    """

    def __init__(self, ids: list[Any], known: Mapping[Hashable, int]) -> None:
        self._ids, self._known = ids, known
        self._slots = np.zeros(MIN_SLOTS, np.uint64)
        self._n_ids = 0
        self.update()

    def __reduce__(self) -> tuple[Any, ...]:
        return IdIndex, (self._ids, self._known)  # Python hashes text otherwise in each process

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdIndex) and self._ids == other._ids

    __hash__ = None  # type: ignore[assignment]  # it grows

    def update(self) -> None:
        """Take in the ids that came after the last ones."""
        if _rows is None:
            return
        if 2 * len(self._ids) > len(self._slots):
            self._slots = np.zeros(1 << (4 * len(self._ids)).bit_length(), np.uint64)
            self._n_ids = 0
        _rows.insert(self._ids, self._n_ids, self._slots)
        self._n_ids = len(self._ids)

    def look_up(self, cells: list[Any]) -> NDArray[np.int32] | None:
        """The positions of cells, (B,); None where one is not known."""
        if _rows is None:
            return look_up(cells, self._known)
        index = np.empty(len(cells), np.int32)
        return index if _rows.find(cells, self._ids, self._slots, index) else None


def is_text(cells: list[Any]) -> bool:
    """Whether all cells are text that is not blank and can be written as UTF-8.

    Where C does not see it at once, this is False although it may be so.
    """
    return _rows is not None and _rows.is_text(cells) and "".join(cells).isascii()


def sort_rows(
    item: NDArray[np.int32],
    worker: NDArray[np.int32],
    label: NDArray[np.int32],
    weight: NDArray[np.float32] | None,
    n_items: int,
    score: NDArray[np.float32] | None = None,
) -> SortedRows:
    """Put rows into canonical order: by item, worker, label, weight and score.

    Equal ones stay as they came.
    """
    n_rows = len(item)
    if _rows is None or weight is not None or score is not None:
        return _sort_in_numpy(item, worker, label, weight, score)
    made = tuple(np.empty(n_rows, np.int32) for _ in range(6))
    n_workers, has_repeats = _rows.sort(n_items, (item, worker, label), made)
    item, worker, label, order, local_worker, workers = made
    workers = workers[:n_workers].copy()  # chunks are kept
    return SortedRows(item, worker, label, None, order, workers, local_worker, has_repeats)


def votes_of_items(
    item: NDArray[np.int32],
    label: NDArray[np.int32],
    weight: NDArray[np.float32],
    n_items: int,
    n_classes: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The weight of each item's labels by class, (N, C), and in all, (N,); C = 0 for that alone."""
    votes, total = np.zeros((n_items, n_classes)), np.zeros(n_items)
    if _rows is None:
        total += np.bincount(item, weight, n_items)
        if n_classes:
            cell = item * n_classes + label
            votes += np.bincount(cell, weight, votes.size).reshape(votes.shape)
    else:  # not by `bincount`, which lets no other thread run
        columns = np.ascontiguousarray(item), np.ascontiguousarray(label)
        _rows.add_votes(columns, np.ascontiguousarray(weight), n_classes, votes, total)
    return votes, total


def _sort_in_numpy(
    item: NDArray[np.int32],
    worker: NDArray[np.int32],
    label: NDArray[np.int32],
    weight: NDArray[np.float32] | None,
    score: NDArray[np.float32] | None,
) -> SortedRows:
    order = canonical_order(item, worker, label, weight, score)
    item, worker, label = item[order], worker[order], label[order]
    repeats = (item[1:] == item[:-1]) & (worker[1:] == worker[:-1])
    weight = None if weight is None else weight[order]
    workers = _distinct(worker)
    local_worker = positions_in(workers, worker)
    return SortedRows(
        item, worker, label, weight, order, workers, local_worker, bool(repeats.any())
    )


def canonical_order(
    item: NDArray[np.int32],
    worker: NDArray[np.int32],
    label: NDArray[np.int32],
    weight: NDArray[np.floating[Any]] | None = None,
    score: NDArray[np.floating[Any]] | None = None,
) -> NDArray[np.intp] | slice:
    """Sort rows by item, worker, label, weight and score; None stands for a column all alike.

    The rows that are equal stay in their order. Rows that are sorted already get `slice(None)`.
    """
    columns = (item, worker, label)
    bits = [int(column.max(initial=0)).bit_length() for column in columns]
    row_bits = len(item).bit_length()
    # One sort of one number, which holds the row too, is ten times faster than one of columns.
    if sum(bits) + row_bits <= _KEY_BITS:
        key = item.astype(np.int64)
        for column, width in zip(columns[1:], bits[1:], strict=True):
            key <<= width
            key |= column
        order: NDArray[np.intp] | slice = slice(None)
        if len(key) and not (key[1:] >= key[:-1]).all():
            rows = np.arange(len(key))
            # Stable: the algorithm that is fast on rows which are nearly sorted.
            key = np.sort((key << row_bits) | rows, kind="stable")
            order = key & ((1 << row_bits) - 1)
            key >>= row_bits
        if (weight is None and score is None) or not (key[1:] == key[:-1]).any():
            return order
    optional = (column for column in (score, weight) if column is not None)
    return np.lexsort((*optional, *columns[::-1]))


def _distinct(values: NDArray[np.int32]) -> NDArray[np.int32]:
    """What `np.unique` gives, in less time."""
    n_values = int(values.max(initial=-1)) + 1
    if n_values <= len(values):
        is_present = np.zeros(n_values, bool)
        is_present[values] = True
        return np.flatnonzero(is_present).astype(np.int32)
    ordered = np.sort(values)
    first = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def positions_in(workers: NDArray[np.int32], worker: NDArray[np.int32]) -> NDArray[np.int32]:
    """Where each row's worker (B,) stands among distinct ones in ascending order, (B,)."""
    n_workers = int(workers.max(initial=-1)) + 1
    if n_workers > len(worker):
        return np.searchsorted(workers, worker).astype(np.int32)
    place = np.empty(n_workers, np.int32)  # ten times faster, where it is not mostly empty
    place[workers] = np.arange(len(workers))
    return place[worker]
