"""Worker rows: one row per worker in a table whose earlier versions stay usable.

Learning from a chunk changes the rows of a few workers among perhaps a million. `scatter`
returns a new version and costs only those rows: the newest version owns the table itself, an
older one keeps just the rows in which it differs, and reading it puts them back (Baker's
rerooting, 1978). A version that is no longer referenced costs nothing.
"""

import threading
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Leaves", "WorkerRows", "forget_row"]

Leaves = Mapping[str, NDArray[Any]]
"""Named arrays that share their leading axis, one entry per worker."""


class _Place(NamedTuple):
    """Where a leaf stands in the block of its type."""

    kind: str
    columns: slice
    shape: tuple[int, ...]  # of one worker's part


class _Version:
    """One version of a table; at the root of the versions is the one that the table shows."""

    def __init__(self) -> None:
        self.newer: _Version | None = None  # towards the root
        self.changed: NDArray[Any] = np.zeros(0, np.intp)  # rows in which that one differs
        self.undo: Leaves = {}  # those rows in this version, of each block


class _Table:
    """The rows behind all versions.

    Leaves of one type stand side by side in one block, so that a worker among a million is one
    place in memory and not as many as there are leaves.
    """

    def __init__(self, leaves: Leaves) -> None:
        self.lock = threading.RLock()
        self.root = _Version()
        self.places: dict[str, _Place] = {}
        self.blocks: dict[str, NDArray[Any]] = {}
        widths: dict[str, int] = {}
        for name, leaf in leaves.items():
            kind, width = leaf.dtype.str, prod(leaf.shape[1:])
            start = widths.get(kind, 0)
            widths[kind] = start + width
            self.places[name] = _Place(kind, slice(start, start + width), leaf.shape[1:])
        n_workers = len(next(iter(leaves.values())))
        for kind, width in widths.items():
            self.blocks[kind] = np.empty((n_workers, width), kind)
        for name, leaf in leaves.items():
            place = self.places[name]
            self.blocks[place.kind][:, place.columns] = leaf.reshape(n_workers, prod(place.shape))

    def reserve(self, n_workers: int) -> None:
        for kind, block in self.blocks.items():
            if len(block) < n_workers:
                room = max(n_workers, len(block) * 3 // 2)
                self.blocks[kind] = np.empty((room, block.shape[1]), kind)
                self.blocks[kind][: len(block)] = block

    def take(
        self, workers: NDArray[np.integer[Any]], names: Iterable[str] | None = None
    ) -> dict[str, NDArray[Any]]:
        n_rows, rows, leaves = len(workers), {}, {}
        for name in names or self.places:
            kind, columns, shape = self.places[name]
            if kind not in rows:
                rows[kind] = self.blocks[kind].take(workers, axis=0)
            leaves[name] = rows[kind][:, columns].reshape(n_rows, *shape)
        return leaves

    def rows(self, workers: NDArray[np.integer[Any]]) -> dict[str, NDArray[Any]]:
        """Rows of each block."""
        return {kind: block.take(workers, axis=0) for kind, block in self.blocks.items()}

    def put(self, workers: NDArray[np.integer[Any]], rows: Leaves) -> None:
        for kind, block in self.blocks.items():
            block[workers] = rows[kind]

    def change(self, workers: NDArray[np.integer[Any]], leaves: Leaves) -> None:
        """Make a new version the root, in which these workers have these rows."""
        parts: dict[str, list[NDArray[Any]]] = {kind: [] for kind in self.blocks}
        for name, place in self.places.items():  # in the order of their columns
            width = place.columns.stop - place.columns.start
            parts[place.kind].append(np.asarray(leaves[name]).reshape(len(workers), width))
        rows = {kind: np.concatenate(some, axis=1) for kind, some in parts.items()}
        older, self.root = self.root, _Version()
        older.newer, older.changed, older.undo = self.root, workers, self.rows(workers)
        self.put(workers, rows)

    def reroot(self, version: _Version) -> None:
        """Make the table show a version; those on the way remember their difference to it."""
        if version is self.root:
            return
        path = [version]
        while (newer := path[-1].newer) is not None:
            path.append(newer)
        for owner, heir in zip(path[:0:-1], path[-2::-1], strict=True):
            mine = self.rows(heir.changed)
            self.put(heir.changed, heir.undo)
            owner.newer, owner.changed, owner.undo = heir, heir.changed, mine
            heir.newer, heir.changed, heir.undo = None, np.zeros(0, np.intp), {}
        self.root = version


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
        with self._table.lock:
            self._table.reroot(self._version)
            return self._table.take(workers, names)

    def scatter(self, workers: NDArray[np.integer[Any]], rows: Leaves) -> "WorkerRows":
        """A version in which these workers have these rows; workers beyond the last are added.

        Added workers must follow on the last one without a gap.
        """
        workers = np.array(workers)  # the caller may change theirs
        highest = int(workers.max()) + 1 if len(workers) else 0
        newer = object.__new__(WorkerRows)
        newer._table, newer.n_workers = self._table, max(self.n_workers, highest)
        with self._table.lock:
            self._table.reroot(self._version)
            self._table.reserve(newer.n_workers)
            self._table.change(workers, rows)
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
        return {name: np.zeros((n_rows, *place.shape), place.kind) for name, place in places}

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Copy out all rows."""
        with self._table.lock:
            self._table.reroot(self._version)
            rows = self._table.take(np.arange(self.n_workers))
            return {name: np.ascontiguousarray(leaf) for name, leaf in rows.items()}


def forget_row(state: Any, worker: int) -> Any:
    """Give a state whose `rows` are WorkerRows, with one worker's row as a newcomer's: zero."""
    return state._replace(rows=state.rows.cleared(worker))
