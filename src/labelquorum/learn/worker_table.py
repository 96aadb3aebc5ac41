"""Worker rows: one row per worker in a table whose earlier versions stay usable.

Learning from a chunk changes the rows of a few workers among perhaps a million. `scatter`
returns a new version and costs only those rows: the newest version owns the table itself, an
older one keeps just the rows in which it differs, and reading it puts them back (Baker's
rerooting, 1978). A version that is no longer referenced costs nothing.
"""

import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_worker_table: Any = None
with suppress(ImportError):  # no compiler was there when the package was installed
    _worker_table = import_module("labelquorum.learn._worker_table")

MAX_LEAVES_IN_C = 16
"""As in `_worker_table.c`; built-in methods have up to 10."""


Leaves = Mapping[str, NDArray[Any]]
"""Named arrays that share their leading axis, one entry per worker."""


class _Place(NamedTuple):
    """Where a leaf stands in a row."""

    offset: int  # bytes
    dtype: np.dtype[Any]
    shape: tuple[int, ...]  # of one worker's part


class _Version:
    """One version of a table; at the root of the versions is the one that the table shows."""

    def __init__(self) -> None:
        self.newer: _Version | None = None  # towards the root
        self.changed: NDArray[np.int32] = np.zeros(0, np.int32)  # rows in which that one differs
        self.undo: NDArray[Any] | None = None  # those rows in this version


class _Table:
    """The rows behind all versions.

    The leaves of a worker stand side by side in one record, so that a worker among a million is
    one place in memory and not as many as there are leaves.
    """

    def __init__(self, leaves: Leaves) -> None:
        self.lock = threading.RLock()
        self.root = _Version()
        kinds = [(name, leaf.dtype, leaf.shape[1:]) for name, leaf in leaves.items()]
        self.block = np.empty(len(next(iter(leaves.values()))), np.dtype(kinds))
        self.places: dict[str, _Place] = {}
        fields: Any = self.block.dtype.fields
        for name, leaf in leaves.items():
            self.block[name] = leaf
            self.places[name] = _Place(fields[name][1], leaf.dtype, leaf.shape[1:])
        # Objects are counted by NumPy when they are copied.
        few = len(self.places) <= MAX_LEAVES_IN_C
        self.in_c = _worker_table is not None and few and not self.block.dtype.hasobject

    def reserve(self, n_workers: int) -> None:
        n_before = len(self.block)
        if n_before < n_workers:
            block = np.empty(max(n_workers, n_before * 3 // 2), self.block.dtype)
            block[:n_before] = self.block
            self.block = block

    def take(
        self, workers: NDArray[np.int32], names: Iterable[str] | None = None
    ) -> dict[str, NDArray[Any]]:
        """The rows of some workers, by leaf."""
        chosen = self.places if names is None else {name: self.places[name] for name in names}
        return (take_in_c if self.in_c else take_in_numpy)(self.block, workers, chosen)

    def change(self, workers: NDArray[np.int32], leaves: Leaves) -> None:
        """Make a new version the root, in which these workers have these rows."""
        shaped = {
            name: np.ascontiguousarray(leaves[name], place.dtype).reshape(
                len(leaves[name]), *place.shape
            )
            for name, place in self.places.items()
        }
        if any(len(leaf) != len(workers) for leaf in shaped.values()):
            raise ValueError(f"each leaf must have {len(workers)} rows, one per worker")
        before = (put_in_c if self.in_c else put_in_numpy)(self.block, workers, shaped, self.places)
        older, self.root = self.root, _Version()
        older.newer, older.changed, older.undo = self.root, workers, before

    def reroot(self, version: _Version) -> None:
        """Make the table show a version; those on the way remember their difference to it."""
        if version is self.root:
            return
        path = [version]
        while (newer := path[-1].newer) is not None:
            path.append(newer)
        for owner, heir in zip(path[:0:-1], path[-2::-1], strict=True):
            mine = self.block[heir.changed]
            self.block[heir.changed] = heir.undo
            owner.newer, owner.changed, owner.undo = heir, heir.changed, mine
            heir.newer, heir.changed, heir.undo = None, np.zeros(0, np.int32), None
        self.root = version


def take_in_numpy(
    block: NDArray[Any], workers: NDArray[np.int32], places: Mapping[str, _Place]
) -> dict[str, NDArray[Any]]:
    """Copy out the leaves of some rows."""
    rows = block.take(workers)
    return {name: np.array(rows[name]) for name in places}  # aligned, as in C


def take_in_c(
    block: NDArray[Any], workers: NDArray[np.int32], places: Mapping[str, _Place]
) -> dict[str, NDArray[Any]]:
    """`take_in_numpy`, each leaf as one run of memory."""
    leaves = {
        name: np.empty((len(workers), *place.shape), place.dtype) for name, place in places.items()
    }
    offsets = tuple(place.offset for place in places.values())
    _worker_table.take(
        block.view(np.uint8), block.itemsize, workers, offsets, tuple(leaves.values())
    )
    return leaves


def put_in_numpy(
    block: NDArray[Any],
    workers: NDArray[np.int32],
    leaves: Leaves,
    places: Mapping[str, _Place],
) -> NDArray[Any]:
    """Replace the rows of different workers, and give them as they were."""
    before = block.take(workers)
    rows = np.empty_like(before)
    for name in places:
        rows[name] = leaves[name]
    block[workers] = rows
    return before


def put_in_c(
    block: NDArray[Any],
    workers: NDArray[np.int32],
    leaves: Leaves,
    places: Mapping[str, _Place],
) -> NDArray[Any]:
    """The same as `put_in_numpy`."""
    before = np.empty(len(workers), block.dtype)
    offsets = tuple(place.offset for place in places.values())
    given = tuple(leaves[name] for name in places)
    raw = block.view(np.uint8), block.itemsize
    _worker_table.put(*raw, workers, offsets, given, before.view(np.uint8))
    return before


class WorkerRows:
    """An immutable table of `n_workers` rows.

    Parameters
    ----------
    leaves
        Named arrays (K, …); they are copied.

    Examples
    --------
    >>> old = WorkerRows({"skill": np.array([0.5, 0.5])})
    >>> new = old.scatter(np.array([1]), {"skill": np.array([0.9])})
    >>> new.to_arrays()["skill"].tolist(), old.to_arrays()["skill"].tolist()
    ([0.5, 0.9], [0.5, 0.5])
    """

    __slots__ = ("_table", "_version", "n_workers")

    def __init__(self, leaves: Leaves) -> None:
        self.n_workers = len(next(iter(leaves.values())))
        self._table = _Table({name: np.asarray(leaf) for name, leaf in leaves.items()})
        self._version = self._table.root

    def __reduce__(self) -> tuple[Any, ...]:
        return WorkerRows, (self.to_arrays(),)  # a copy has a table of its own

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the leaves."""
        return tuple(self._table.places)

    def gather(
        self, workers: NDArray[np.integer[Any]], names: Iterable[str] | None = None
    ) -> dict[str, NDArray[Any]]:
        """Copy out the rows of some workers, (P, …) each; all leaves unless named."""
        if len(workers) and workers.max() >= self.n_workers:
            raise IndexError(f"there are {self.n_workers} workers, none with index {workers.max()}")
        index = np.ascontiguousarray(workers, np.int32)
        with self._table.lock:
            self._table.reroot(self._version)
            return self._table.take(index, names)

    def scatter(self, workers: NDArray[np.integer[Any]], rows: Leaves) -> "WorkerRows":
        """A version in which these workers have these rows; workers beyond the last are added.

        The workers are different ones; added ones must follow on the last without a gap.
        """
        index = np.array(workers, np.int32)  # the caller may change theirs
        highest = int(index.max()) + 1 if len(index) else 0
        newer = object.__new__(WorkerRows)
        newer._table, newer.n_workers = self._table, max(self.n_workers, highest)
        with self._table.lock:
            self._table.reroot(self._version)
            self._table.reserve(newer.n_workers)
            self._table.change(index, rows)
            newer._version = self._table.root
        return newer

    def with_room(self, n_workers: int, more_classes: int = 0) -> "WorkerRows":
        """A version with at least `n_workers` rows, each longer by `more_classes` along each axis.

        What is new is zero.
        """
        rows = self
        if more_classes > 0:
            rows = WorkerRows(
                {
                    name: np.pad(leaf, [(0, 0)] + [(0, more_classes)] * (leaf.ndim - 1))
                    for name, leaf in self.to_arrays().items()
                }
            )
        if n_workers <= rows.n_workers:
            return rows
        new = np.arange(rows.n_workers, n_workers)
        return rows.scatter(new, rows._zeros(len(new)))

    def cleared(self, worker: int) -> "WorkerRows":
        """A version in which a worker's row is zero."""
        return self.scatter(np.array([worker]), self._zeros(1))

    def _zeros(self, n_rows: int) -> dict[str, NDArray[Any]]:
        places = self._table.places.items()
        return {name: np.zeros((n_rows, *place.shape), place.dtype) for name, place in places}

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Copy out all rows."""
        with self._table.lock:
            self._table.reroot(self._version)
            rows = self._table.block[: self.n_workers]
            return {name: np.array(rows[name], order="C") for name in self.names}


def forget_row(state: Any, worker: int) -> Any:
    """Give a state whose `rows` are WorkerRows, with one worker's row as a newcomer's: zero."""
    return state._replace(rows=state.rows.cleared(worker))
