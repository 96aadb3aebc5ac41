"""Chunks: the labels of a few items as flat integer arrays, in one defined order.

Everything that learns sees a `Chunk` and nothing of the user's ids but their keys, so the
order in which rows arrived cannot change a bit of any result.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from hashlib import blake2b
from string import ascii_letters
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelquorum.errors import LabelError
from labelquorum.ingest.labels import MISSING, LabelTable, validated

__all__ = [
    "Chunk",
    "concatenate",
    "cut_chunks",
    "has_news",
    "id_key",
    "id_order",
    "make_chunk",
    "scramble",
    "take_items",
    "take_rows",
    "with_news",
    "withdrawn",
]


_LARGEST_KEY = 2**62
_NO_NUMBER = frozenset(ascii_letters) - frozenset("iInN")  # inf and nan are numbers to Python


class Chunk(NamedTuple):
    """Labels of N items by P workers; B rows sorted by item, worker, label."""

    item: NDArray[np.int32]  # (B,) position of the item in this chunk
    worker: NDArray[np.int32]  # (B,) index of the worker among all known workers
    label: NDArray[np.int32]  # (B,) index of the class
    weight: NDArray[np.float32]  # (B,) how much the label counts
    known: NDArray[np.bool_]  # (B,) whether an earlier chunk held this label of an open item
    replaced: NDArray[np.int32]  # (B,) the label of an open item it corrects, or MISSING
    replaced_weight: NDArray[np.float32]  # (B,) how much that one counted
    item_keys: NDArray[np.uint64]  # (N,) a hash of each item's id: it breaks ties
    workers: NDArray[np.int32]  # (P,) the distinct workers present, ascending
    worker_keys: NDArray[np.uint64]  # (P,) a hash of each id: it seeds the worker's first rows
    n_workers: int  # K, all workers known so far
    n_classes: int  # C, all classes known so far
    counted_probs: NDArray[np.float32] | None = None  # (N, A, C) by which open items were counted
    gold: NDArray[np.int32] | None = None  # (N,) the true class where it was given, or MISSING
    votes: NDArray[np.float32] | None = None  # (B, 1 + C) of labels that are majorities: how many
    # votes, and their weight by class; a row of zeros stands for one vote

    @property
    def n_items(self) -> int:
        """N, the items of this chunk."""
        return len(self.item_keys)

    @property
    def n_labels(self) -> int:
        """B, the labels of this chunk."""
        return len(self.item)

    @property
    def counted_weight(self) -> NDArray[np.float32]:
        """The weight of labels by workers who had not labelled the item before, else 0, (B,)."""
        return np.where(self.known | (self.replaced != MISSING), np.float32(0), self.weight)

    @property
    def is_new(self) -> NDArray[np.bool_]:
        """The items of which no earlier chunk had a label, (N,)."""
        again = self.known | (self.replaced != MISSING)
        return np.asarray(np.bincount(self.item, again, self.n_items) == 0)

    @property
    def first_votes(self) -> NDArray[np.int32] | None:
        """The first row of the same worker on the same item, (B,); None where each has one row."""
        again = np.zeros(self.n_labels, bool)
        again[1:] = (self.item[1:] == self.item[:-1]) & (self.worker[1:] == self.worker[:-1])
        if not again.any():
            return None
        rows = np.arange(self.n_labels, dtype=np.int32)
        return np.asarray(np.maximum.accumulate(np.where(again, 0, rows)), np.int32)

    @property
    def weight_by_item(self) -> NDArray[np.float64]:
        """How many labels each item has, by weight, (N,)."""
        return np.asarray(np.bincount(self.item, self.weight, self.n_items), np.float64)

    @property
    def workers_by_item(self) -> NDArray[np.float64]:
        """How many workers labelled each item, (N,); by weight, where each gave one label."""
        first = self.first_votes
        if first is None and self.votes is None:
            return self.weight_by_item
        counts = self.weight > 0
        if first is not None:
            counts = np.bincount(first, counts, self.n_labels) > 0
        return np.asarray(np.bincount(self.item, counts, self.n_items), np.float64)

    @property
    def local_worker(self) -> NDArray[np.int32]:
        """The rows' workers as positions in `workers`, (B,)."""
        return np.searchsorted(self.workers, self.worker).astype(np.int32)


def make_chunk(
    item: ArrayLike,
    worker: ArrayLike,
    label: ArrayLike,
    *,
    weight: ArrayLike | None = None,
    known: ArrayLike | None = None,
    replaced: ArrayLike | None = None,
    replaced_weight: ArrayLike | None = None,
    votes: NDArray[Any] | None = None,
    item_keys: ArrayLike | None = None,
    worker_keys: ArrayLike | None = None,
    n_items: int | None = None,
    n_workers: int | None = None,
    n_classes: int | None = None,
) -> Chunk:
    """Put integer labels into canonical order.

    Parameters
    ----------
    item, worker, label
        Zero-based integers, (B,) each.
    weight
        How much each label counts, (B,); one each unless given.
    known
        Which labels an earlier chunk already held, (B,); none unless given.
    replaced, replaced_weight
        The labels of open items these correct, or MISSING, and their weights, (B,) each; none
        unless given.
    votes
        What the labels are majorities of, (B, 1 + C); see `Chunk`.
    item_keys, worker_keys
        What stands for the ids, (N,) and (K,); the integers themselves unless given.
    n_items, n_workers, n_classes
        The counts, where more are known than occur here.

    Examples
    --------
    >>> chunk = make_chunk([1, 0, 0], [2, 2, 0], [1, 1, 0])
    >>> chunk.item.tolist(), chunk.worker.tolist(), chunk.label.tolist()
    ([0, 0, 1], [0, 2, 2], [0, 1, 1])
    """
    item, worker, label = (np.asarray(a, dtype=np.int32).reshape(-1) for a in (item, worker, label))
    if not len(item) == len(worker) == len(label):
        raise LabelError(
            "item, worker and label must have one entry per label each. "
            f"Got {len(item)}, {len(worker)} and {len(label)}."
        )
    weights = (
        np.ones(len(item), np.float32)
        if weight is None
        else np.asarray(weight, np.float32).reshape(-1)
    )
    n_items = _count(item, n_items, "item")
    n_workers = _count(worker, n_workers, "worker")
    n_classes = _count(label, n_classes, "label")
    order = _canonical_order(item, worker, label, None if weight is None else weights)
    worker = worker[order]
    workers = _distinct(worker)
    keys = (
        workers.astype(np.uint64)
        if worker_keys is None
        else np.asarray(worker_keys, np.uint64)[workers]
    )
    return Chunk(
        item=item[order],
        worker=worker,
        label=label[order],
        weight=weights[order],
        known=(
            np.zeros(len(order), bool) if known is None else np.asarray(known, bool).reshape(-1)
        )[order],
        replaced=(
            np.full(len(order), MISSING, np.int32)
            if replaced is None
            else np.asarray(replaced, np.int32).reshape(-1)[order]
        ),
        replaced_weight=(
            np.zeros(len(order), np.float32)
            if replaced_weight is None
            else np.asarray(replaced_weight, np.float32).reshape(-1)[order]
        ),
        item_keys=(
            np.arange(n_items, dtype=np.uint64)
            if item_keys is None
            else np.asarray(item_keys, np.uint64)
        ),
        workers=workers,
        worker_keys=keys,
        n_workers=n_workers,
        n_classes=n_classes,
        votes=None if votes is None else np.asarray(votes, np.float32)[order],
    )


def _canonical_order(
    item: NDArray[np.int32],
    worker: NDArray[np.int32],
    label: NDArray[np.int32],
    weight: NDArray[np.float32] | None,
) -> NDArray[np.intp]:
    """Sort rows by item, worker, label and weight; all weights are alike where None is given."""
    n_workers, n_classes = (int(column.max(initial=0)) + 1 for column in (worker, label))
    if weight is not None or int(item.max(initial=0)) * n_workers * n_classes >= _LARGEST_KEY:
        keys = (label, worker, item) if weight is None else (weight, label, worker, item)
        return np.lexsort(keys)
    # One sort of one number is several times faster.
    key = (item.astype(np.int64) * n_workers + worker) * n_classes + label
    return np.argsort(key, kind="stable")


def _distinct(values: NDArray[np.int32]) -> NDArray[np.int32]:
    """What `np.unique` gives, in a third of the time."""
    ordered = np.sort(values)
    first = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def has_news(chunk: Chunk) -> NDArray[np.bool_]:
    """Tell which items have a label no earlier chunk held, or a truth they were not counted by.

    What was sent twice teaches nothing.
    """
    fresh: NDArray[np.bool_] = np.bincount(chunk.item, ~chunk.known, chunk.n_items) > 0
    if chunk.gold is None:
        return fresh
    given: NDArray[np.bool_] = chunk.gold != MISSING
    if chunk.counted_probs is not None:
        given &= chunk.counted_probs[np.arange(chunk.n_items), :, chunk.gold].min(axis=1) < 1
    news: NDArray[np.bool_] = fresh | given
    return news


def with_news(chunk: Chunk) -> Chunk:
    """The items that have news."""
    if not chunk.known.any():
        return chunk
    return take_items(chunk, has_news(chunk))


def take_items(chunk: Chunk, kept: NDArray[np.bool_]) -> Chunk:
    """The items of a chunk where `kept` (N,) is true, with all their labels."""
    rows = kept[chunk.item]
    position = np.cumsum(kept) - 1
    present = np.isin(chunk.workers, chunk.worker[rows])
    return chunk._replace(
        item=position[chunk.item[rows]].astype(np.int32),
        worker=chunk.worker[rows],
        label=chunk.label[rows],
        weight=chunk.weight[rows],
        known=chunk.known[rows],
        replaced=chunk.replaced[rows],
        replaced_weight=chunk.replaced_weight[rows],
        item_keys=chunk.item_keys[kept],
        workers=chunk.workers[present],
        worker_keys=chunk.worker_keys[present],
        counted_probs=None if chunk.counted_probs is None else chunk.counted_probs[kept],
        gold=None if chunk.gold is None else chunk.gold[kept],
        votes=None if chunk.votes is None else chunk.votes[rows],
    )


def withdrawn(chunk: Chunk, worker: int) -> Chunk:
    """The chunk once a worker's labels count for nothing, which corrects those they were."""
    theirs = chunk.worker == worker
    return chunk._replace(
        weight=np.where(theirs, np.float32(0), chunk.weight),
        known=chunk.known & ~theirs,
        replaced=np.where(theirs, chunk.label, chunk.replaced),
        replaced_weight=np.where(theirs, chunk.weight, chunk.replaced_weight),
    )


def _count(index: NDArray[np.int32], given: int | None, what: str) -> int:
    if len(index) and index.min() < 0:
        raise LabelError(f"`{what}` must count from 0. Got {index.min()}.")
    seen = int(index.max()) + 1 if len(index) else 0
    if given is not None and given < seen:
        raise LabelError(f"`{what}` must be below {given}, its stated count. Got {seen - 1}.")
    return seen if given is None else given


def id_key(identity: Hashable) -> int:
    """Hash an id to 64 bits, the same in every process; equal ids have equal keys."""
    if isinstance(identity, str):
        text = "s" + identity
    elif isinstance(identity, int | float) and identity == int(identity):
        text = f"n{int(identity)}"
    else:
        text = f"{type(identity).__name__}:{identity!r}"
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def scramble(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix 64 bits (the finaliser of SplitMix64): lots for ties and orders."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(bits ^ (bits >> np.uint64(31)))


def id_order(identity: Hashable) -> tuple[int, float, str]:
    """Sort key of ids of any type: numbers (and text that is a number) by value, then text."""
    if not isinstance(identity, str):
        return (0, identity, "") if isinstance(identity, int | float) else (2, 0, repr(identity))
    if identity[:1] in _NO_NUMBER:  # the first letter decides for most text
        return (1, 0, identity)
    for number in (int, float):  # a whole number stays exact, however long
        try:
            value = number(identity)
        except ValueError:
            continue
        if value == value:
            return (0, value, identity)
    return (1, 0, identity)


def concatenate(tables: Iterable[LabelTable]) -> LabelTable:
    """Lay tables of one source end to end."""
    parts = list(tables)
    if len(parts) == 1:
        return parts[0]
    skipped: dict[str, int] = {}
    for part in parts:
        for reason, count in part.skipped.items():
            skipped[reason] = skipped.get(reason, 0) + count
    full = [_with_lines(part) for part in parts if len(part.item_ids)]
    spaces = {getattr(part, "valid_for", None) for part in parts if len(part.item_ids)}

    def column(name: str, filler: object) -> list[object] | None:
        columns = [getattr(part, name) for part in full]
        if all(values is None for values in columns):
            return None
        return [
            value
            for part, values in zip(full, columns, strict=True)
            for value in (values if values is not None else [filler] * len(part.item_ids))
        ]

    table = LabelTable(
        item_ids=column("item_ids", None) or [],
        worker_ids=column("worker_ids", None) or [],
        labels=column("labels", None) or [],
        weights=column("weights", 1.0),  # type: ignore[arg-type]
        groups=column("groups", None),
        timestamps=column("timestamps", None),
        source=parts[0].source if parts else "labels",
        lines=column("lines", 0),  # type: ignore[arg-type]
        skipped=skipped,
        unit=full[0].unit if full else "line",
    )
    return validated(table, spaces.pop() if len(spaces) == 1 else None)


def _with_lines(table: LabelTable) -> LabelTable:
    """A table whose rows know their number, so that they keep it beside others."""
    if table.lines is not None:
        return table
    return table._replace(lines=range(len(table.item_ids)), unit="row")


def cut_chunks(tables: Iterable[LabelTable], chunk_items: int) -> Iterator[LabelTable]:
    """Cut a stream of rows into chunks of at most `chunk_items` different items.

    A chunk ends just before the row that would bring one item too many, so rows that are
    grouped by item are never torn apart, and a stream is cut the same however it was read.
    """
    if chunk_items < 1:
        raise LabelError(f"`chunk_items` must be a whole number ≥ 1. Got {chunk_items}.")
    held: list[LabelTable] = []
    seen: set[Hashable] = set()
    for table in tables:
        start = 0
        for row, item_id in enumerate(table.item_ids):
            if item_id in seen:
                continue
            if len(seen) == chunk_items:
                held.append(take_rows(table, range(start, row)))
                yield concatenate(held)
                held, seen, start = [], set(), row
            seen.add(item_id)
        # What was skipped while reading is reported once, with the rows that close the table.
        held.append(
            take_rows(table, range(start, len(table.item_ids)))._replace(skipped=table.skipped)
        )
    if seen or any(part.skipped for part in held):
        yield concatenate(held)


def take_rows(table: LabelTable, rows: Sequence[int]) -> LabelTable:
    """Some rows of a table, with nothing said of what was skipped."""
    columns: dict[str, Any] = {
        name: [values[row] for row in rows]
        for name in ("item_ids", "worker_ids", "labels", "weights", "groups", "timestamps", "lines")
        if (values := getattr(table, name)) is not None
    }
    some = table._replace(**columns, skipped={})
    return validated(some, getattr(table, "valid_for", None))
