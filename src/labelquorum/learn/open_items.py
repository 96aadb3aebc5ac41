"""Open items: the most recent items are held, so that late labels find them.

While an item is open its labels, what each of them weighed, the answer given, and the
probabilities by which it was counted are kept. A late label is then answered from all the item's
evidence, and a correction replaces what it corrects. When an item is evicted by newer ones its
labels are gone; a small table of hashes keeps only that it was there.

Items are kept as the columns of the chunk they came in, in blocks of at most `BLOCK_ITEMS`. An
item is one entry of a dict: its id and its slot, which is the number of the block and the place in
it. Blocks stand in the order in which their items came, so the oldest items are in the first one.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelquorum.errors import StateError
from labelquorum.ingest.chunks import Chunk, id_key, make_chunk
from labelquorum.ingest.labels import MISSING
from labelquorum.ingest.vocabulary import Note
from labelquorum.learn.item_columns import (
    ItemColumns,
    OpenItem,
    Selection,
    columns_of_chunk,
    columns_of_items,
    edges_of,
)

CLOSED_SLOTS = 1 << 17
"""Hashes of closed items that are kept, 1 MiB; a newer one takes its slot from an older."""

BLOCK_BITS = 12
"""Bits of a slot that are the place in its block."""

BLOCK_ITEMS = 1 << BLOCK_BITS
"""Items of a block at most: to write one again without the items that left it takes about 1 ms."""

MIN_LIVE_SHARE = 0.25
"""The share of a block's items below which it is written again without those that came again."""


class _Block:
    """Items that came together, or what is left of them."""

    __slots__ = ("columns", "items", "live", "n_live")

    def __init__(self, columns: ItemColumns, items: NDArray[np.intp]) -> None:
        self.columns = columns
        self.items = items  # their positions in the columns, in order of appearance
        self.live = np.ones(len(items), bool)
        self.n_live = len(items)

    @property
    def held(self) -> NDArray[np.intp]:
        """The positions of those that are still open."""
        return self.items[self.live]


class OpenItems:
    """The most recent `open_items` items; 0 keeps nothing, as in the paper."""

    def __init__(self, open_items: int = 10_000) -> None:
        if open_items < 0:
            raise StateError(f"`open_items` must be a whole number ≥ 0. Got {open_items!r}.")
        self.open_items = open_items
        self._slots: dict[Hashable, int] = {}
        # Ordered: of a plain dict the first entry is found in steps as many as were deleted.
        self._blocks: OrderedDict[int, _Block] = OrderedDict()
        self._next_block = 0
        self._closed = np.zeros(CLOSED_SLOTS, np.uint64)

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, item_id: Hashable) -> bool:
        return item_id in self._slots

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self.everything().ids)

    def get(self, item_id: Hashable) -> OpenItem | None:
        """The item if it is still open."""
        if item_id not in self._slots:
            return None
        columns, n = self._find(item_id)
        return columns.item(n)

    def among(self, item_ids: Iterable[Hashable]) -> set[Hashable]:
        """Those of these items that are open."""
        return self._slots.keys() & item_ids

    def select(self, item_ids: Iterable[Hashable]) -> Selection:
        """Those of these items that are open, to be read together, in no particular order."""
        found = [(n, s) for n, s in enumerate(map(self._slots.get, item_ids)) if s is not None]
        places, slots = np.array(found, np.intp).reshape(-1, 2).T
        order = np.argsort(slots, kind="stable")
        slots = slots[order]
        cuts = np.flatnonzero(np.diff(slots >> BLOCK_BITS)) + 1
        blocks = [
            (self._blocks[int(run[0]) >> BLOCK_BITS], run % BLOCK_ITEMS)
            for run in np.split(slots, cuts)
            if len(run)
        ]
        return Selection(places[order], [(block.columns, block.items[at]) for block, at in blocks])

    def everything(self) -> Selection:
        """All open items, the oldest first."""
        parts = [(block.columns, block.held) for block in self._blocks.values()]
        return Selection(np.arange(len(self)), parts)

    def to_chunk(self, n_workers: int, n_classes: int) -> Chunk:
        """All labels of the open items, in the order the items are kept."""
        held = self.everything()
        return make_chunk(
            np.repeat(np.arange(len(self)), held.counts),
            held.column("worker"),
            held.column("label"),
            weight=held.column("weight"),
            votes=held.votes(n_classes),
            score=held.scores,
            n_items=len(self),
            n_workers=n_workers,
            n_classes=n_classes,
        )

    @property
    def notes(self) -> list[Note]:
        """The notes on the open items."""
        return self.everything().notes

    def answers(self, n_classes: int) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """The answers given to the open items: probabilities (N, C) and classes (N,).

        A class that was unknown then has probability 0.
        """
        held = self.everything()
        return np.nan_to_num(held.column("probs", n_classes)), held.column("aggregated")

    @property
    def gold(self) -> NDArray[np.int32]:
        """The true classes of the open items where they were given, or MISSING, (N,)."""
        return self.everything().column("gold")

    @property
    def keys(self) -> NDArray[np.uint64]:
        """The hashes of the open items, (N,)."""
        return self.everything().column("key")

    def was_closed(self, keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Which items were answered and closed before, as far back as hashes reach."""
        return np.equal(self._closed[keys % CLOSED_SLOTS], keys)

    @property
    def closed_keys(self) -> NDArray[np.uint64]:
        """The hashes of closed items that are remembered."""
        return self._closed[self._closed > 0]

    def record(
        self,
        item_ids: Sequence[Hashable],
        order: NDArray[np.intp],
        chunk: Chunk,
        log_evidence: NDArray[np.float32],
        probs: NDArray[np.float32],
        aggregated: NDArray[np.int32],
        notes: Sequence[Note] | None = None,
        counted_probs: NDArray[np.float32] | None = None,
        temperature: NDArray[Any] | None = None,
    ) -> None:
        """Keep a chunk's items as the most recent, in order of appearance; close the oldest."""
        too_many = max(len(order) - self.open_items, 0)
        if too_many:
            self._remove([item_ids[n] for n in order[:too_many].tolist()])
            self.close(chunk.item_keys[order[:too_many]])
        if not self.open_items:
            return
        columns = columns_of_chunk(
            item_ids,
            chunk,
            log_evidence,
            probs,
            aggregated,
            notes or None,
            counted_probs,
            temperature,
        )
        self._append(columns, order[too_many:])
        self._evict()

    def make_room(self, n_items: int) -> None:
        """Keep as many items at least; 0 stays 0."""
        self.open_items = max(self.open_items, n_items) if self.open_items else 0

    def n_classes_of(self, item_id: Hashable) -> int:
        """The classes that were known when an open item was answered."""
        columns, n = self._find(item_id)
        return int(columns.n_classes[n])

    def answer_again(self, item_ids: Sequence[Hashable], chunk: Chunk, result: Any) -> None:
        """Put another answer, an `Aggregation`, in place of what open items have."""
        held = self.select(item_ids)
        at = np.argsort(held.places)
        notes, counted_probs = held.notes, held.column("counted_probs", chunk.n_classes)[at]
        fresh = columns_of_chunk(
            item_ids,
            chunk,
            result.log_evidence,
            result.probs,
            result.aggregated,
            [notes[n] for n in at.tolist()],
            np.nan_to_num(counted_probs),
            result.temperature,
        )._replace(key=held.column("key")[at], gold=held.column("gold")[at])
        again = {item_id: n for n, item_id in enumerate(item_ids)}
        blocks, self._blocks, self._slots = self._blocks.values(), OrderedDict(), {}
        for columns, items in ((block.columns, block.held) for block in blocks):
            now = np.array([again.get(columns.ids[n], -1) for n in items.tolist()], np.intp)
            cuts = np.flatnonzero(np.diff(now < 0)) + 1  # items stay in their order
            for old, new in zip(np.split(items, cuts), np.split(now, cuts), strict=True):
                self._append(*((columns, old) if new[0] < 0 else (fresh, new)))

    def keep(self, item_id: Hashable, item: OpenItem, key: int) -> None:
        """Keep one item as the most recent."""
        self.keep_all([item_id], [item], [key])

    def keep_all(
        self, item_ids: Iterable[Hashable], items: Iterable[OpenItem], keys: Iterable[int]
    ) -> None:
        """Keep some items as the most recent."""
        kept = zip(item_ids, items, keys, strict=True)
        for _, run in groupby(
            kept,
            key=lambda row: (
                row[1].counted_probs.shape,
                row[1].votes is None,
                row[1].score is None,
            ),
        ):
            self._append(columns := columns_of_items(list(run)), np.arange(len(columns.ids)))
        self._evict()

    def keep_columns(self, columns: ItemColumns) -> None:
        """Keep the items of columns as the most recent."""
        self._append(columns, np.arange(len(columns.ids)))
        self._evict()

    def key_of(self, item_id: Hashable) -> int:
        """The hash of an open item."""
        columns, n = self._find(item_id)
        return int(columns.key[n])

    def discard(self, item_id: Hashable) -> None:
        """Drop an open item as if it had never been there."""
        self._remove([item_id])

    def close(self, keys: NDArray[np.uint64]) -> None:
        """Remember that these items were there."""
        self._closed[keys % CLOSED_SLOTS] = keys

    def forget_worker(self, worker: int) -> None:
        """Drop every label of one worker from the open items."""
        for _, run in groupby(self._blocks.values(), key=lambda block: id(block.columns)):
            blocks = list(run)
            columns = blocks[0].columns
            gone = columns.worker == worker
            if gone.any():
                columns = columns.without(gone)
                for block in blocks:
                    block.columns = columns

    def drop(self, item_id: Hashable, worker: int) -> None:
        """Drop the labels of one worker from an open item."""
        columns, n = self._find(item_id)
        if worker not in columns.item(n).worker:
            return
        block = self._rewrite(self._slots[item_id] >> BLOCK_BITS)
        columns, n = self._find(item_id)
        gone = columns.worker == worker
        gone[: columns.edges[n]] = gone[columns.edges[n + 1] :] = False
        block.columns = columns.without(gone)

    def _find(self, item_id: Hashable) -> tuple[ItemColumns, int]:
        slot = self._slots[item_id]
        block = self._blocks[slot >> BLOCK_BITS]
        return block.columns, int(block.items[slot % BLOCK_ITEMS])

    def _append(self, columns: ItemColumns, items: NDArray[np.intp]) -> None:
        """Put items at the end, where they may be already."""
        if 2 * len(items) < len(columns.ids):
            columns, items = columns.take(items), np.arange(len(items))
        ids = list(map(columns.ids.__getitem__, items.tolist()))
        self._remove(ids)
        first = self._next_block << BLOCK_BITS
        for start in range(0, len(items), BLOCK_ITEMS):
            self._blocks[self._next_block] = _Block(columns, items[start : start + BLOCK_ITEMS])
            self._next_block += 1
        self._slots.update(zip(ids, range(first, first + len(ids)), strict=True))

    def _remove(self, item_ids: Iterable[Hashable]) -> None:
        for item_id in self.among(item_ids) if self._slots else ():
            slot = self._slots.pop(item_id)
            number, block = slot >> BLOCK_BITS, self._blocks[slot >> BLOCK_BITS]
            block.live[slot % BLOCK_ITEMS] = False
            block.n_live -= 1
            if not block.n_live:
                del self._blocks[number]
            elif block.n_live < MIN_LIVE_SHARE * len(block.items):
                self._rewrite(number)

    def _rewrite(self, number: int) -> _Block:
        """Write a block again, with columns of its own and without items that left it."""
        old = self._blocks[number]
        columns = old.columns.take(old.held)
        block = self._blocks[number] = _Block(columns, np.arange(old.n_live))
        first = number << BLOCK_BITS
        self._slots.update(zip(columns.ids, range(first, first + old.n_live), strict=True))
        return block

    def _evict(self) -> None:
        """Close the oldest items that are too many."""
        while (excess := len(self._slots) - self.open_items) > 0:
            number, block = next(iter(self._blocks.items()))
            oldest = np.flatnonzero(block.live)[:excess]
            items = block.items[oldest]
            for n in items.tolist():
                del self._slots[block.columns.ids[n]]
            self.close(block.columns.key[items])
            block.live[oldest] = False
            block.n_live -= len(oldest)
            if not block.n_live:
                del self._blocks[number]

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Everything but ids and notes as flat arrays, for saving; classes padded with NaN."""
        held = self.everything()
        n_classes = int(held.column("n_classes").max(initial=0))
        votes, scores = held.votes(n_classes), held.scores
        return {
            "counts": held.counts,
            "worker": held.column("worker"),
            "label": held.column("label"),
            "weight": held.column("weight"),
            "log_evidence": held.column("log_evidence", n_classes),
            "probs": held.column("probs", n_classes),
            "aggregated": held.column("aggregated"),
            "counted_probs": held.column("counted_probs", n_classes),
            "gold": held.column("gold"),
            "heat": held.column("temperature"),
            "closed": self.closed_keys,
            **({} if votes is None else {"votes": votes}),
            **({} if scores is None else {"score": scores}),
        }

    @classmethod
    def from_arrays(
        cls,
        open_items: int,
        item_ids: Sequence[Hashable],
        notes: Sequence[Note],
        arrays: dict[str, NDArray[Any]],
    ) -> "OpenItems":
        """Rebuild what `to_arrays` wrote."""
        n_items, probs = len(item_ids), arrays["probs"]
        ledger = cls(open_items)
        columns = ItemColumns(
            ids=item_ids,
            key=np.fromiter(map(id_key, item_ids), np.uint64, n_items),
            edges=edges_of(arrays["counts"]),
            n_classes=(~np.isnan(probs)).sum(axis=1, dtype=np.int32),
            worker=arrays["worker"],
            label=arrays["label"],
            weight=arrays["weight"],
            log_evidence=arrays["log_evidence"],
            votes=arrays.get("votes"),
            probs=probs,
            aggregated=arrays["aggregated"],
            counted_probs=arrays.get("counted_probs", np.zeros_like(probs)[:, None]),
            gold=arrays.get("gold", np.full(n_items, MISSING, np.int32)),
            temperature=arrays.get("heat", np.ones(n_items, np.float32)),
            notes=notes,
            score=arrays.get("score"),
        )
        ledger._append(columns, np.arange(n_items))
        ledger.close(arrays["closed"])
        return ledger
