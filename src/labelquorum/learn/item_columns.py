"""Item columns: the labels and answers of several open items, side by side.

`ItemColumns` is how a chunk's items are kept, `Selection` how items of several chunks are read
together, and `OpenItem` is one of them. Columns are never changed in place: what keeps them, and
the last answer, may share them.
"""

from collections.abc import Hashable, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum.ingest.chunks import Chunk
from labelquorum.ingest.labels import MISSING
from labelquorum.ingest.vocabulary import Note

MAX_COPIED_ROWS = 1 << 12
"""Rows up to which a column is copied, as it may be a view of a large one: 64 KiB of 4 classes."""

NO_NOTE = Note()


class OpenItem(NamedTuple):
    """An item whose labels are still held; n labels, C classes known when it was answered."""

    worker: NDArray[np.int32]  # (n,)
    label: NDArray[np.int32]  # (n,)
    weight: NDArray[np.float32]  # (n,)
    log_evidence: NDArray[np.float32]  # (n, C) what each label said for each class
    probs: NDArray[np.float32]  # (C,) the answer given
    aggregated: int  # its class
    counted_probs: NDArray[np.float32]  # (A, C) by which it was counted; 0 if it was not
    gold: int  # its true class, where that was given, or MISSING
    temperature: float = 1.0  # what its log scores were divided by before they became `probs`
    note: Note = NO_NOTE
    votes: NDArray[np.float32] | None = None  # (n, 1 + C) of majorities, as in `Chunk`
    score: NDArray[np.float32] | None = None  # (n,) beside the labels, NaN where there is none


_OF_ROWS = ("worker", "label", "weight", "log_evidence", "votes", "score")
_OF_ITEMS = ("key", "n_classes", "probs", "aggregated", "counted_probs", "gold", "temperature")


class ItemColumns(NamedTuple):
    """N items with L labels; C classes, NaN where an item was answered when fewer were known."""

    ids: Sequence[Hashable]  # (N,)
    key: NDArray[np.uint64]  # (N,)
    edges: NDArray[np.int64]  # (N + 1,) where the rows of each item begin
    n_classes: NDArray[np.int32]  # (N,) known when the item was answered
    worker: NDArray[np.int32]  # (L,)
    label: NDArray[np.int32]  # (L,)
    weight: NDArray[np.float32]  # (L,)
    log_evidence: NDArray[np.float32]  # (L, C)
    votes: NDArray[np.float32] | None  # (L, 1 + C)
    probs: NDArray[np.float32]  # (N, C)
    aggregated: NDArray[np.int32]  # (N,)
    counted_probs: NDArray[np.float32]  # (N, A, C)
    gold: NDArray[np.int32]  # (N,)
    temperature: NDArray[np.float32]  # (N,)
    notes: Sequence[Note] | None  # (N,)
    score: NDArray[np.float32] | None = None  # (L,)

    def item(self, n: int) -> OpenItem:
        """One of the items."""
        rows, n_classes = slice(self.edges[n], self.edges[n + 1]), self.n_classes[n]
        return OpenItem(
            self.worker[rows],
            self.label[rows],
            self.weight[rows],
            self.log_evidence[rows, :n_classes],
            self.probs[n, :n_classes],
            int(self.aggregated[n]),
            self.counted_probs[n, :, :n_classes],
            int(self.gold[n]),
            float(self.temperature[n]),
            NO_NOTE if self.notes is None else self.notes[n],
            None if self.votes is None else self.votes[rows, : n_classes + 1],
            None if self.score is None else self.score[rows],
        )

    def take(self, items: NDArray[np.intp]) -> "ItemColumns":
        """A copy of some items."""
        counts, rows = _rows_of(self.edges, items)
        return self._replace(
            ids=[self.ids[n] for n in items.tolist()],
            edges=edges_of(counts),
            notes=None if self.notes is None else [self.notes[n] for n in items.tolist()],
            **{name: getattr(self, name)[items] for name in _OF_ITEMS},
            **self._cells(rows),
        )

    def without(self, gone: NDArray[np.bool_]) -> "ItemColumns":
        """The same items without some rows, (L,)."""
        return self._replace(edges=edges_of(~gone)[self.edges], **self._cells(~gone))

    def _cells(self, rows: NDArray[Any]) -> dict[str, Any]:
        columns = ((name, getattr(self, name)) for name in _OF_ROWS)
        return {name: None if column is None else column[rows] for name, column in columns}


class Selection:
    """Several open items together, read column by column; n items with L labels."""

    def __init__(
        self, places: NDArray[np.intp], parts: Sequence[tuple[ItemColumns, NDArray[np.intp]]]
    ) -> None:
        self.places = places
        """Which of the ids asked for these are, (n,)."""
        self.parts: list[tuple[ItemColumns, NDArray[np.intp]]] = []
        """The columns they are in, and where in them, in order."""
        for _, run in groupby(parts, key=lambda part: id(part[0])):
            same = list(run)  # blocks of one chunk share their columns, which are then read once
            items = np.concatenate([items for _, items in same])
            self.parts.append((same[0][0], items))
        if not self.parts:
            self.parts.append((_NOTHING, np.zeros(0, np.intp)))

    @property
    def ids(self) -> list[Hashable]:
        """Their ids."""
        return [columns.ids[n] for columns, items in self.parts for n in items.tolist()]

    @property
    def notes(self) -> list[Note]:
        """The notes on them."""
        notes: list[Note] = []
        for columns, items in self.parts:
            of = columns.notes
            notes += [NO_NOTE] * len(items) if of is None else [of[n] for n in items.tolist()]
        return notes

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """How many labels each has, (n,)."""
        return _join([np.diff(columns.edges)[items] for columns, items in self.parts])

    def column(self, name: str, n_classes: int | None = None) -> NDArray[Any]:
        """A column of `OpenItem`, of the items (n, …) or of their labels (L, …).

        One with a class axis is given that of `n_classes`: NaN for classes unknown to an item.
        """
        index = self._rows if name in _OF_ROWS else [items for _, items in self.parts]
        parts = [
            getattr(columns, name)[at] for (columns, _), at in zip(self.parts, index, strict=True)
        ]
        return _join(parts if n_classes is None else [_wide(part, n_classes) for part in parts])

    def votes(self, n_classes: int) -> NDArray[np.float32] | None:
        """The votes, (L, 1 + C): zeros where an item has none; None if all have none."""
        if all(columns.votes is None for columns, _ in self.parts):
            return None
        parts = [
            np.zeros((len(rows), 1), np.float32) if columns.votes is None else columns.votes[rows]
            for (columns, _), rows in zip(self.parts, self._rows, strict=True)
        ]
        return np.asarray(np.nan_to_num(_join([_wide(part, 1 + n_classes) for part in parts])))

    @property
    def scores(self) -> NDArray[np.float32] | None:
        """The scores, (L,): NaN where a label has none; None if all have none."""
        if all(columns.score is None for columns, _ in self.parts):
            return None
        return _join(
            [
                np.full(len(rows), np.nan, np.float32)
                if columns.score is None
                else columns.score[rows]
                for (columns, _), rows in zip(self.parts, self._rows, strict=True)
            ]
        )

    @cached_property
    def _rows(self) -> list[NDArray[np.intp]]:
        return [_rows_of(columns.edges, items)[1] for columns, items in self.parts]


def columns_of_chunk(
    item_ids: Sequence[Hashable],
    chunk: Chunk,
    log_evidence: NDArray[np.float32],
    probs: NDArray[np.float32],
    aggregated: NDArray[np.int32],
    notes: Sequence[Note] | None,
    counted_probs: NDArray[np.float32] | None,
    temperature: NDArray[Any] | None,
) -> ItemColumns:
    """The items of a chunk with their answers."""
    n_items, n_classes = probs.shape
    return ItemColumns(
        ids=item_ids,
        key=chunk.item_keys,
        edges=edges_of(np.bincount(chunk.item, minlength=n_items)),
        n_classes=np.full(n_items, n_classes, np.int32),
        worker=chunk.worker,
        label=chunk.label,
        weight=chunk.weight,
        log_evidence=_kept(log_evidence, np.float32),
        votes=chunk.votes,
        probs=_kept(probs, np.float32),
        aggregated=_kept(aggregated, np.int32),
        counted_probs=np.zeros((n_items, 1, n_classes), np.float32)
        if counted_probs is None
        else _kept(counted_probs, np.float32),
        gold=np.full(n_items, MISSING, np.int32) if chunk.gold is None else chunk.gold,
        temperature=np.ones(n_items, np.float32)
        if temperature is None
        else temperature.astype(np.float32),
        notes=notes,
        score=chunk.score,
    )


def _kept(column: NDArray[Any], dtype: type) -> NDArray[Any]:
    """A column to keep: a copy of a short one, and a long one itself."""
    return (np.array if len(column) <= MAX_COPIED_ROWS else np.asarray)(column, dtype)


def columns_of_items(rows: Sequence[tuple[Hashable, OpenItem, int]]) -> ItemColumns:
    """Items that know as many classes, and of which all have votes, and scores, or none has."""
    ids, items, keys = zip(*rows, strict=True)
    columns: dict[str, Any] = {
        name: np.array([getattr(item, name) for item in items], dtype)
        for name, dtype in (
            ("probs", np.float32),
            ("aggregated", np.int32),
            ("counted_probs", np.float32),
            ("gold", np.int32),
            ("temperature", np.float32),
        )
    }
    for name, dtype in (
        ("worker", np.int32),
        ("label", np.int32),
        ("weight", np.float32),
        ("log_evidence", np.float32),
        ("votes", np.float32),
        ("score", np.float32),
    ):
        cells = [getattr(item, name) for item in items]
        columns[name] = None if cells[0] is None else np.concatenate(cells).astype(dtype)
    return ItemColumns(
        ids=ids,
        key=np.array(keys, np.uint64),
        edges=edges_of(np.array([len(item.worker) for item in items])),
        n_classes=np.full(len(items), items[0].counted_probs.shape[1], np.int32),
        notes=[item.note for item in items],
        **columns,
    )


def edges_of(counts: NDArray[Any]) -> NDArray[np.int64]:
    """Where the rows of each item begin, and where the last end; `counts` has how many they are."""
    edges = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=edges[1:])
    return edges


def _rows_of(
    edges: NDArray[np.int64], items: NDArray[np.intp]
) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """How many rows some items have, and which."""
    counts = edges[items + 1] - edges[items]
    ends = np.cumsum(counts)
    rows = np.repeat(edges[items + 1] - ends, counts)
    return counts, rows + np.arange(len(rows))


def _join(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _wide(part: NDArray[np.float32], n_classes: int) -> NDArray[np.float32]:
    """The last axis with as many entries; what is missing, and what is cut off, is NaN."""
    if part.shape[-1] >= n_classes:
        return part[..., :n_classes]
    wide = np.full((*part.shape[:-1], n_classes), np.nan, np.float32)
    wide[..., : part.shape[-1]] = part
    return wide


_NOTHING = ItemColumns(
    ids=[],
    key=np.zeros(0, np.uint64),
    edges=np.zeros(1, np.int64),
    n_classes=np.zeros(0, np.int32),
    worker=np.zeros(0, np.int32),
    label=np.zeros(0, np.int32),
    weight=np.zeros(0, np.float32),
    log_evidence=np.zeros((0, 0), np.float32),
    votes=None,
    probs=np.zeros((0, 0), np.float32),
    aggregated=np.zeros(0, np.int32),
    counted_probs=np.zeros((0, 1, 0), np.float32),
    gold=np.zeros(0, np.int32),
    temperature=np.zeros(0, np.float32),
    notes=None,
)
