"""Chunks: the labels of a few items as flat integer arrays, in one defined order.

Everything that learns sees a `Chunk` and nothing of the user's ids but their keys, so the
order in which rows arrived cannot change a bit of any result.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from hashlib import blake2b
from math import inf
from string import ascii_letters, digits
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelquorum.errors import LabelError
from labelquorum.ingest.columns import join, some_rows
from labelquorum.ingest.labels import MISSING, LabelTable, validated
from labelquorum.ingest.rows import SortedRows, positions_in, sort_rows, votes_of_items

_OPTIONAL = ("groups", "timestamps", "scores", "worker_kinds", "models", "prompts", "orders")
_LETTERS = frozenset(ascii_letters)
_DIGITS = frozenset(digits)
_INT64_DIGITS = 18
_HASH_OF_TEXT, _HASH_OF_NUMBER = (blake2b(kind, digest_size=8).copy for kind in (b"s", b"n"))


class _ChunkColumns(NamedTuple):
    """The fields of a `Chunk`."""

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
    score: NDArray[np.float32] | None = None  # (B,) beside the label, NaN where there is none
    worker_groups: NDArray[np.uint64] | None = None  # (P,) a hash of the worker's model, or 0
    new_gold: NDArray[np.bool_] | None = None  # (N,) whether the truth is other than what was known


class Chunk(_ChunkColumns):
    """Labels of N items by P workers; B rows sorted by item, worker, label.

    What follows from the columns is computed once, when it is first asked for.
    """

    def __getstate__(self) -> None:
        """A copy or a pickle has the columns alone."""

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

    @cached_property
    def is_all_new(self) -> bool:
        """Whether no earlier chunk had a label of these workers on these items."""
        return not (self.known.any() or (self.replaced != MISSING).any())

    @cached_property
    def first_votes(self) -> NDArray[np.int32] | None:
        """The first row of the same worker on the same item, (B,); None where each has one row."""
        again = np.zeros(self.n_labels, bool)
        again[1:] = (self.item[1:] == self.item[:-1]) & (self.worker[1:] == self.worker[:-1])
        if not again.any():
            return None
        rows = np.arange(self.n_labels, dtype=np.int32)
        return np.asarray(np.maximum.accumulate(np.where(again, 0, rows)), np.int32)

    @cached_property
    def weight_by_item(self) -> NDArray[np.float64]:
        """How many labels each item has, by weight, (N,)."""
        return votes_of_items(self.item, self.label, self.weight, self.n_items, 0)[1]

    @cached_property
    def workers_by_item(self) -> NDArray[np.float64]:
        """How many workers labelled each item, (N,); by weight, where each gave one label."""
        first = self.first_votes
        if first is None and self.votes is None:
            return self.weight_by_item
        counts = self.weight > 0
        if first is not None:
            counts = np.bincount(first, counts, self.n_labels) > 0
        return np.asarray(np.bincount(self.item, counts, self.n_items), np.float64)

    @cached_property
    def vote_shares(self) -> NDArray[np.float64]:
        """The share of each item's labels that each class got, (N, C); no labels, no shares."""
        columns = self.item, self.label, self.weight
        shares, total = votes_of_items(*columns, self.n_items, self.n_classes)
        np.divide(shares, total[:, None], out=shares, where=total[:, None] > 0)
        shares.flags.writeable = False  # all who ask get this array
        return shares

    @cached_property
    def local_worker(self) -> NDArray[np.int32]:
        """The rows' workers as positions in `workers`, (B,)."""
        return positions_in(self.workers, self.worker)


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
    score: ArrayLike | None = None,
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
    score
        What a judge scored beside each label, (B,), NaN where nothing; none unless given.
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
    item, worker, label = (np.ascontiguousarray(a, np.int32).ravel() for a in (item, worker, label))
    if not len(item) == len(worker) == len(label):
        raise LabelError(
            "item, worker and label must have one entry per label each. "
            f"Got {len(item)}, {len(worker)} and {len(label)}."
        )
    weights = None if weight is None else np.asarray(weight, np.float32).reshape(-1)
    n_items = _count(item, n_items, "item")
    n_workers = _count(worker, n_workers, "worker")
    n_classes = _count(label, n_classes, "label")
    scores = None if score is None else np.asarray(score, np.float32).reshape(-1)
    rows = sort_rows(item, worker, label, weights, n_items, scores)
    keys = np.arange(n_items) if item_keys is None else item_keys
    chunk = sorted_chunk(rows, np.asarray(keys, np.uint64), n_workers, n_classes)
    given: dict[str, tuple[ArrayLike | None, type]] = {
        "known": (known, np.bool_),
        "replaced": (replaced, np.int32),
        "replaced_weight": (replaced_weight, np.float32),
    }
    more: dict[str, Any] = {
        name: np.asarray(column, dtype).reshape(-1)[rows.order]
        for name, (column, dtype) in given.items()
        if column is not None
    }
    if votes is not None:
        more["votes"] = np.asarray(votes, np.float32)[rows.order]
    if scores is not None:
        more["score"] = scores[rows.order]
    if worker_keys is not None:
        more["worker_keys"] = np.asarray(worker_keys, np.uint64)[chunk.workers]
    return chunk._replace(**more) if more else chunk


def sorted_chunk(
    rows: SortedRows,
    item_keys: NDArray[np.uint64],
    n_workers: int,
    n_classes: int,
    worker_keys: NDArray[np.uint64] | None = None,
    gold: NDArray[np.int32] | None = None,
) -> Chunk:
    """The chunk of sorted rows, all of them new; workers are their own keys unless given."""
    n_rows = len(rows.item)
    chunk = Chunk(
        item=rows.item,
        worker=rows.worker,
        label=rows.label,
        weight=np.ones(n_rows, np.float32) if rows.weight is None else rows.weight,
        known=np.zeros(n_rows, bool),
        replaced=np.full(n_rows, MISSING, np.int32),
        replaced_weight=np.zeros(n_rows, np.float32),
        item_keys=item_keys,
        workers=rows.workers,
        worker_keys=rows.workers.astype(np.uint64) if worker_keys is None else worker_keys,
        n_workers=n_workers,
        n_classes=n_classes,
        gold=gold,
    )
    # What the sort has found out is not computed again.
    vars(chunk).update(local_worker=rows.local_worker, is_all_new=True)
    if not rows.has_repeats:
        vars(chunk).update(first_votes=None)
    return chunk


def has_news(chunk: Chunk) -> NDArray[np.bool_]:
    """Tell which items have a label no earlier chunk held, or a truth they were not counted by.

    What was sent twice teaches nothing.
    """
    fresh: NDArray[np.bool_] = np.bincount(chunk.item, ~chunk.known, chunk.n_items) > 0
    if chunk.gold is None:
        return fresh
    given: NDArray[np.bool_] = chunk.gold != MISSING
    if chunk.counted_probs is not None:
        # q is 1 where a truth was counted, and also where all labels left no doubt in float32.
        counted = chunk.counted_probs[np.arange(chunk.n_items), :, chunk.gold].min(axis=1) == 1
        given &= ~counted if chunk.new_gold is None else ~counted | chunk.new_gold
    news: NDArray[np.bool_] = fresh | given
    return news


def with_news(chunk: Chunk) -> Chunk:
    """The items that have news."""
    if chunk.is_all_new or not chunk.known.any():
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
        new_gold=None if chunk.new_gold is None else chunk.new_gold[kept],
        votes=None if chunk.votes is None else chunk.votes[rows],
        score=None if chunk.score is None else chunk.score[rows],
        worker_groups=None if chunk.worker_groups is None else chunk.worker_groups[present],
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


def id_keys(ids: Sequence[Any]) -> NDArray[np.uint64]:
    """The `id_key` of each id, (N,)."""
    kinds = set(map(type, ids))
    if kinds == {str}:
        texts = [text.encode("utf-8", "surrogatepass") for text in ids]
        begin = _HASH_OF_TEXT
    elif kinds == {int}:
        texts, begin = [b"%d" % number for number in ids], _HASH_OF_NUMBER
    else:
        return np.fromiter(map(id_key, ids), np.uint64, len(ids))
    digests = []
    for text in texts:  # a copy of a hash takes half as long as a new one
        state = begin()
        state.update(text)
        digests.append(state.digest())
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64, copy=False)


def id_order(identity: Hashable) -> tuple[int, float, str]:
    """Sort key of ids of any type: numbers (and text that is a number) by value, then text."""
    if not isinstance(identity, str):
        return (0, identity, "") if isinstance(identity, int | float) else (2, 0, repr(identity))
    if identity[:1] in _LETTERS:  # the first letter decides for most text
        is_number = identity[0] in "iI" and _is_infinite(identity)
        return (0, inf, identity) if is_number else (1, 0, identity)
    for number in (int, float):  # a whole number stays exact, however long
        try:
            value = number(identity)
        except ValueError:
            continue
        if value == value:
            return (0, value, identity)
    return (1, 0, identity)


def _is_infinite(text: str) -> bool:
    """Whether this is the only text that starts with a letter and is a number."""
    return text.strip().lower() in ("inf", "infinity")


def sort_ids(ids: Sequence[Any]) -> NDArray[np.int64]:
    """Say which of these different ids is first in the order of `id_order`, which next, (N,).

    Examples
    --------
    >>> sort_ids(["b", "10", "a", "9"]).tolist()
    [3, 1, 2, 0]
    """
    kinds = set(map(type, ids))
    numbers = ids if kinds == {int} else None
    keys = None
    if kinds == {str}:
        first = {text[:1] for text in ids}
        if first <= _DIGITS and max(map(len, ids)) <= _INT64_DIGITS and "".join(ids).isdecimal():
            numbers = list(map(int, ids))
        elif first <= _LETTERS and not (first & {"i", "I"} and any(map(_is_infinite, ids))):
            keys = ids
    if numbers is not None:
        with suppress(OverflowError):
            values = np.array(numbers, np.int64)
            order = np.argsort(values, kind="stable")
            ordered = values[order]
            if (ordered[1:] > ordered[:-1]).all():  # "7" and "07" are two ids
                return order
    keys = list(map(id_order, ids)) if keys is None else keys
    return np.array(sorted(range(len(ids)), key=keys.__getitem__), np.int64)


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

    def column(name: str, filler: object) -> Any:
        columns = [getattr(part, name) for part in full]
        if all(values is None for values in columns):
            return None
        return join(
            [
                [filler] * len(part.item_ids) if values is None else values
                for part, values in zip(full, columns, strict=True)
            ]
        )

    table = LabelTable(
        item_ids=column("item_ids", None) or [],
        worker_ids=column("worker_ids", None) or [],
        labels=column("labels", None) or [],
        weights=column("weights", 1.0),
        source=parts[0].source if parts else "labels",
        lines=column("lines", 0),
        skipped=skipped,
        unit=full[0].unit if full else "line",
        **{name: column(name, None) for name in _OPTIONAL},
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


def take_rows(table: LabelTable, rows: Sequence[int] | NDArray[Any]) -> LabelTable:
    """Some rows of a table, with nothing said of what was skipped."""
    if isinstance(rows, range):  # which NumPy would read number by number
        rows = np.arange(rows.start, rows.stop, rows.step)
    positions = np.asarray(rows, np.intp)
    columns: dict[str, Any] = {
        name: some_rows(values, positions)
        for name in ("item_ids", "worker_ids", "labels", "weights", "lines", *_OPTIONAL)
        if (values := getattr(table, name)) is not None
    }
    some = table._replace(**columns, skipped={})
    return validated(some, getattr(table, "valid_for", None))
