"""The ledger: a bounded memory of the most recent items, so that late labels find them.

While an item is open its labels, what each of them weighed, and the answer given are kept.
A late label is then answered from all the item's evidence, and a correction replaces what it
corrects. When an item is pushed out by newer ones its labels are gone; a small table of
hashes remembers only that it was there.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum.errors import StateError
from labelquorum.ingest.chunks import Chunk, id_key, make_chunk

__all__ = ["Ledger", "Note", "OpenItem"]

CLOSED_SLOTS = 1 << 17
"""How many closed items' hashes are remembered; a newer one takes its slot from an older."""


class Note(NamedTuple):
    """What is kept of an item for reports alone."""

    group: Hashable = None
    timestamp: Any = None  # the latest


class OpenItem(NamedTuple):
    """An item whose labels are still held; n labels, C classes known when it was answered."""

    worker: NDArray[np.int32]  # (n,)
    label: NDArray[np.int32]  # (n,)
    weight: NDArray[np.float32]  # (n,)
    log_evidence: NDArray[np.float32]  # (n, C) what each label said for each class
    probs: NDArray[np.float32]  # (C,) the answer given
    aggregated: int  # its class
    note: Note = Note()


class Ledger:
    """The most recent `open_items` items; 0 keeps nothing, as in the paper."""

    def __init__(self, open_items: int = 10_000) -> None:
        if open_items < 0:
            raise StateError(f"`open_items` must be a whole number ≥ 0. Got {open_items!r}.")
        self.open_items = open_items
        self._items: OrderedDict[Hashable, OpenItem] = OrderedDict()
        self._closed = np.zeros(CLOSED_SLOTS, np.uint64)

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, item_id: Hashable) -> bool:
        return item_id in self._items

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._items)

    def get(self, item_id: Hashable) -> OpenItem | None:
        """The item if it is still open."""
        return self._items.get(item_id)

    def to_chunk(self, n_workers: int, n_classes: int) -> Chunk:
        """All labels of the open items, in the order the items are kept."""
        items = list(self._items.values())
        return make_chunk(
            np.repeat(np.arange(len(items)), [len(held.worker) for held in items]),
            _join([held.worker for held in items], np.int32),
            _join([held.label for held in items], np.int32),
            weight=_join([held.weight for held in items], np.float32),
            n_items=len(items),
            n_workers=n_workers,
            n_classes=n_classes,
        )

    @property
    def notes(self) -> list[Note]:
        """The notes on the open items."""
        return [held.note for held in self._items.values()]

    def answers(self, n_classes: int) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """The answers given to the open items: probabilities (N, C) and classes (N,).

        A class that was unknown then has probability 0.
        """
        items = self._items.values()
        probs = np.nan_to_num(_pad([held.probs[None] for held in items], n_classes))
        return probs, np.array([held.aggregated for held in items], np.int32)

    def was_closed(self, keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Tell which items were answered and let go before, as far back as hashes reach."""
        return np.equal(self._closed[keys % CLOSED_SLOTS], keys)

    def record(
        self,
        item_ids: Sequence[Hashable],
        order: NDArray[np.intp],
        chunk: Chunk,
        log_evidence: NDArray[np.float32],
        probs: NDArray[np.float32],
        aggregated: NDArray[np.int32],
        notes: Sequence[Note] | None = None,
    ) -> None:
        """Keep a chunk's items as the most recent, in order of appearance; let older ones go."""
        starts = np.searchsorted(chunk.item, np.arange(chunk.n_items + 1))
        kept = order[max(0, len(order) - self.open_items) :]
        for position in order[: len(order) - len(kept)]:
            self._items.pop(item_ids[position], None)
        self._close(chunk.item_keys[order[: len(order) - len(kept)]])
        for position in kept:
            rows = slice(starts[position], starts[position + 1])
            self._items[item_ids[position]] = OpenItem(
                chunk.worker[rows].copy(),
                chunk.label[rows].copy(),
                chunk.weight[rows].copy(),
                log_evidence[rows].copy(),
                probs[position].copy(),
                int(aggregated[position]),
                Note() if notes is None else notes[position],
            )
            self._items.move_to_end(item_ids[position])
        overflow = len(self._items) - self.open_items
        gone = [self._items.popitem(last=False)[0] for _ in range(overflow)]
        self._close(np.fromiter((id_key(item_id) for item_id in gone), np.uint64, len(gone)))

    def forget_worker(self, worker: int) -> None:
        """Drop every label of one worker from the open items."""
        for item_id, held in self._items.items():
            keep = held.worker != worker
            if not keep.all():
                self._items[item_id] = held._replace(
                    worker=held.worker[keep],
                    label=held.label[keep],
                    weight=held.weight[keep],
                    log_evidence=held.log_evidence[keep],
                )

    def _close(self, keys: NDArray[np.uint64]) -> None:
        self._closed[keys % CLOSED_SLOTS] = keys

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Everything but ids and notes as flat arrays, for saving; classes padded with NaN."""
        items = list(self._items.values())
        n_classes = max((len(held.probs) for held in items), default=0)
        slots = np.flatnonzero(self._closed)
        return {
            "counts": np.array([len(held.worker) for held in items], np.int64),
            "worker": _join([held.worker for held in items], np.int32),
            "label": _join([held.label for held in items], np.int32),
            "weight": _join([held.weight for held in items], np.float32),
            "log_evidence": _pad([held.log_evidence for held in items], n_classes),
            "probs": _pad([held.probs[None] for held in items], n_classes),
            "aggregated": np.array([held.aggregated for held in items], np.int32),
            "closed": self._closed[slots],
        }

    @classmethod
    def from_arrays(
        cls,
        open_items: int,
        item_ids: Sequence[Hashable],
        notes: Sequence[Note],
        arrays: dict[str, NDArray[Any]],
    ) -> "Ledger":
        """Rebuild what `to_arrays` wrote."""
        ledger = cls(open_items)
        ends = np.cumsum(arrays["counts"])
        kept = zip(item_ids, notes, ends, strict=True)
        for position, (item_id, note, end) in enumerate(kept):
            rows = slice(end - arrays["counts"][position], end)
            probs = arrays["probs"][position]
            known = ~np.isnan(probs)
            ledger._items[item_id] = OpenItem(
                arrays["worker"][rows],
                arrays["label"][rows],
                arrays["weight"][rows],
                arrays["log_evidence"][rows][:, known],
                probs[known],
                int(arrays["aggregated"][position]),
                note,
            )
        ledger._close(arrays["closed"])
        return ledger


def _join(parts: Sequence[NDArray[Any]], dtype: type) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.zeros(0, dtype)


def _pad(parts: Sequence[NDArray[np.float32]], n_classes: int) -> NDArray[np.float32]:
    padded = np.full((sum(map(len, parts)), n_classes), np.nan, np.float32)
    start = 0
    for part in parts:
        padded[start : start + len(part), : part.shape[1]] = part
        start += len(part)
    return padded
