"""Open items: the most recent items are held, so that late labels find them.

While an item is open its labels, what each of them weighed, the answer given, and the
probabilities by which it was counted are kept. A late label is then answered from all the item's
evidence, and a correction replaces what it corrects. When an item is evicted by newer ones its
labels are gone; a small table of hashes keeps only that it was there.

An item is kept as two strings of bytes, the rows and the answer: a slice of bytes is the cheapest
copy there is, and arrays are made of it on access.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum.errors import StateError
from labelquorum.ingest.chunks import Chunk, id_key, make_chunk
from labelquorum.ingest.labels import MISSING
from labelquorum.ingest.vocabulary import Note

__all__ = ["OpenItem", "OpenItems"]

CLOSED_SLOTS = 1 << 17
"""Hashes of closed items that are kept, 1 MiB; a newer one takes its slot from an older."""

_KEY_BYTES = 8  # an answer starts with the item's key


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


class _Held(NamedTuple):
    """An open item as it is kept."""

    rows: bytes
    answer: bytes
    n_classes: int
    n_models: int
    note: Note
    has_votes: bool = False


class OpenItems:
    """The most recent `open_items` items; 0 keeps nothing, as in the paper."""

    def __init__(self, open_items: int = 10_000) -> None:
        if open_items < 0:
            raise StateError(f"`open_items` must be a whole number ≥ 0. Got {open_items!r}.")
        self.open_items = open_items
        self._items: OrderedDict[Hashable, _Held] = OrderedDict()
        self._closed = np.zeros(CLOSED_SLOTS, np.uint64)

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, item_id: Hashable) -> bool:
        return item_id in self._items

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._items)

    def get(self, item_id: Hashable) -> OpenItem | None:
        """The item if it is still open."""
        held = self._items.get(item_id)
        return None if held is None else _open(held)

    def among(self, item_ids: Iterable[Hashable]) -> set[Hashable]:
        """Those of these items that are open."""
        return self._items.keys() & item_ids

    def to_chunk(self, n_workers: int, n_classes: int) -> Chunk:
        """All labels of the open items, in the order the items are kept."""
        items = self._all()
        votes = _votes(items, n_classes)
        return make_chunk(
            np.repeat(np.arange(len(items)), [len(held.worker) for held in items]),
            _join([held.worker for held in items], np.int32),
            _join([held.label for held in items], np.int32),
            weight=_join([held.weight for held in items], np.float32),
            votes=votes,
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
        items = self._all()
        probs = np.nan_to_num(_pad([held.probs[None] for held in items], n_classes))
        return probs, np.array([held.aggregated for held in items], np.int32)

    @property
    def gold(self) -> NDArray[np.int32]:
        """The true classes of the open items where they were given, or MISSING, (N,)."""
        return np.array([held.gold for held in self._all()], np.int32)

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
        positions = order.tolist()
        too_many = max(len(positions) - self.open_items, 0)
        for position in positions[:too_many]:
            self.discard(item_ids[position])
        self.close(chunk.item_keys[order[:too_many]])
        n_classes = probs.shape[1]
        has_votes = chunk.votes is not None
        rows = np.empty(chunk.n_labels, _row_type(n_classes, has_votes))
        rows["worker"], rows["label"], rows["weight"] = chunk.worker, chunk.label, chunk.weight
        if has_votes:
            rows["votes"] = chunk.votes
        rows["log_evidence"] = log_evidence
        n_models = 1 if counted_probs is None else counted_probs.shape[1]
        answers = np.empty(chunk.n_items, _answer_type(n_classes, n_models))
        answers["key"], answers["aggregated"], answers["probs"] = chunk.item_keys, aggregated, probs
        answers["counted_probs"] = 0 if counted_probs is None else counted_probs
        answers["gold"] = MISSING if chunk.gold is None else chunk.gold
        answers["temperature"] = 1 if temperature is None else temperature
        edges = np.searchsorted(chunk.item, np.arange(chunk.n_items + 1)) * rows.itemsize
        note_of = notes.__getitem__ if notes else lambda position: NO_NOTE
        cut = _cut(rows, edges.tolist(), answers, positions[too_many:])
        self._keep(
            [item_ids[position] for position in positions[too_many:]],
            [
                _Held(said, answer, n_classes, n_models, note_of(position), has_votes)
                for position, said, answer in cut
            ],
        )

    def make_room(self, n_items: int) -> None:
        """Keep as many items at least; 0 stays 0."""
        self.open_items = max(self.open_items, n_items) if self.open_items else 0

    def n_classes_of(self, item_id: Hashable) -> int:
        """The classes that were known when an open item was answered."""
        return self._items[item_id].n_classes

    def answer_again(self, item_ids: Sequence[Hashable], chunk: Chunk, result: Any) -> None:
        """Put another answer, an `Aggregation`, in place of what open items have."""
        edges = np.searchsorted(chunk.item, np.arange(chunk.n_items + 1))
        temperature = np.ones(chunk.n_items) if result.temperature is None else result.temperature
        for position, item_id in enumerate(item_ids):
            held, rows = _open(self._items[item_id]), slice(*edges[position : position + 2])
            known = held.counted_probs.shape[1]
            counted = np.pad(held.counted_probs, [(0, 0), (0, chunk.n_classes - known)])
            again = held._replace(
                worker=chunk.worker[rows],
                label=chunk.label[rows],
                weight=chunk.weight[rows],
                log_evidence=result.log_evidence[rows],
                probs=result.probs[position],
                aggregated=int(result.aggregated[position]),
                counted_probs=counted,
                temperature=float(temperature[position]),
                votes=None if chunk.votes is None else chunk.votes[rows],
            )
            self._items[item_id] = _close(again, self.key_of(item_id))

    def keep(self, item_id: Hashable, item: OpenItem, key: int) -> None:
        """Keep one item as the most recent."""
        self._keep([item_id], [_close(item, key)])

    def key_of(self, item_id: Hashable) -> int:
        """The hash of an open item."""
        return int.from_bytes(self._items[item_id].answer[:_KEY_BYTES], "little")

    def discard(self, item_id: Hashable) -> None:
        """Drop an open item as if it had never been there."""
        self._items.pop(item_id, None)

    def close(self, keys: NDArray[np.uint64]) -> None:
        """Remember that these items were there."""
        self._closed[keys % CLOSED_SLOTS] = keys

    def forget_worker(self, worker: int) -> None:
        """Drop every label of one worker from the open items."""
        for item_id in self._items:
            self.drop(item_id, worker)

    def drop(self, item_id: Hashable, worker: int) -> None:
        """Drop the labels of one worker from an open item."""
        held = self._items[item_id]
        rows = np.frombuffer(held.rows, _row_type(held.n_classes, held.has_votes))
        keep = rows["worker"] != worker
        if not keep.all():
            self._items[item_id] = held._replace(rows=rows[keep].tobytes())

    def _all(self) -> list[OpenItem]:
        return list(map(_open, self._items.values()))

    def _keep(self, item_ids: Sequence[Hashable], items: Sequence[_Held]) -> None:
        for item_id in self.among(item_ids):  # an item that comes again goes to the end
            del self._items[item_id]
        self._items.update(zip(item_ids, items, strict=True))
        overflow = max(len(self._items) - self.open_items, 0)
        gone = [self._items.popitem(last=False)[1] for _ in range(overflow)]
        if gone:
            self.close(
                np.frombuffer(b"".join(held.answer[:_KEY_BYTES] for held in gone), np.uint64)
            )

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Everything but ids and notes as flat arrays, for saving; classes padded with NaN."""
        items = self._all()
        n_classes = max((len(held.probs) for held in items), default=0)
        n_models = max((len(held.counted_probs) for held in items), default=1)
        counted = _pad([held.counted_probs for held in items], n_classes)
        votes = _votes(items, n_classes)
        return {
            "counts": np.array([len(held.worker) for held in items], np.int64),
            "worker": _join([held.worker for held in items], np.int32),
            "label": _join([held.label for held in items], np.int32),
            "weight": _join([held.weight for held in items], np.float32),
            "log_evidence": _pad([held.log_evidence for held in items], n_classes),
            "probs": _pad([held.probs[None] for held in items], n_classes),
            "aggregated": np.array([held.aggregated for held in items], np.int32),
            "counted_probs": counted.reshape(len(items), n_models, n_classes),
            "gold": np.array([held.gold for held in items], np.int32),
            "heat": np.array([held.temperature for held in items], np.float32),
            "closed": self.closed_keys,
            **({} if votes is None else {"votes": votes}),
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
        ledger = cls(open_items)
        ends = np.cumsum(arrays["counts"])
        counted = arrays.get("counted_probs", np.zeros_like(arrays["probs"])[:, None])
        gold = arrays.get("gold", np.full(len(ends), MISSING, np.int32))
        temperature = arrays.get("heat", np.ones(len(ends), np.float32))
        kept = zip(item_ids, notes, ends, strict=True)
        for position, (item_id, note, end) in enumerate(kept):
            rows = slice(end - arrays["counts"][position], end)
            known = ~np.isnan(arrays["probs"][position])
            item = OpenItem(
                arrays["worker"][rows],
                arrays["label"][rows],
                arrays["weight"][rows],
                arrays["log_evidence"][rows][:, known],
                arrays["probs"][position][known],
                int(arrays["aggregated"][position]),
                counted[position][:, known],
                int(gold[position]),
                float(temperature[position]),
                note,
                arrays["votes"][rows][:, np.append(True, known)] if "votes" in arrays else None,
            )
            ledger._items[item_id] = _close(item, id_key(item_id))
        ledger.close(arrays["closed"])
        return ledger


@lru_cache
def _row_type(n_classes: int, has_votes: bool) -> np.dtype[Any]:
    cells = ("worker", "i4"), ("label", "i4"), ("weight", "f4")
    evidence = ("log_evidence", "f4", (n_classes,))
    votes = [("votes", "f4", (1 + n_classes,))] if has_votes else []
    return np.dtype([*cells, evidence, *votes])


@lru_cache
def _answer_type(n_classes: int, n_models: int) -> np.dtype[Any]:
    per_class = ("probs", "f4", (n_classes,)), ("counted_probs", "f4", (n_models, n_classes))
    cells = ("key", "u8"), ("aggregated", "i4"), ("gold", "i4"), ("temperature", "f4")
    return np.dtype([*cells, *per_class])


def _cut(
    rows: NDArray[Any], edges: list[int], answers: NDArray[Any], order: list[int]
) -> Iterator[tuple[int, bytes, bytes]]:
    """Each item's position, rows and answer as bytes; `edges` are where its rows begin."""
    said, answered, size = rows.tobytes(), answers.tobytes(), answers.itemsize
    for position in order:
        yield (
            position,
            said[edges[position] : edges[position + 1]],
            answered[position * size : (position + 1) * size],
        )


def _open(held: _Held) -> OpenItem:
    rows = np.frombuffer(held.rows, _row_type(held.n_classes, held.has_votes))
    answer = np.frombuffer(held.answer, _answer_type(held.n_classes, held.n_models))[0]
    return OpenItem(
        rows["worker"],
        rows["label"],
        rows["weight"],
        rows["log_evidence"],
        answer["probs"],
        int(answer["aggregated"]),
        answer["counted_probs"],
        int(answer["gold"]),
        float(answer["temperature"]),
        held.note,
        rows["votes"] if held.has_votes else None,
    )


def _close(item: OpenItem, key: int) -> _Held:
    n_models, n_classes = item.counted_probs.shape
    has_votes = item.votes is not None
    rows = np.empty(len(item.worker), _row_type(n_classes, has_votes))
    for name in rows.dtype.names or ():
        rows[name] = getattr(item, name)
    answer = np.empty(1, _answer_type(n_classes, n_models))
    answer["key"] = key
    for name in ("aggregated", "gold", "temperature", "probs", "counted_probs"):
        answer[name] = getattr(item, name)
    return _Held(rows.tobytes(), answer.tobytes(), n_classes, n_models, item.note, has_votes)


def _votes(items: Sequence[OpenItem], n_classes: int) -> NDArray[np.float32] | None:
    """The votes of all items, (L, 1 + C): zeros where an item has none; None if all have none."""
    if all(held.votes is None for held in items):
        return None
    none = [np.zeros((len(held.worker), 1), np.float32) for held in items]
    votes = [z if held.votes is None else held.votes for held, z in zip(items, none, strict=True)]
    return np.nan_to_num(_pad(votes, 1 + n_classes))


def _join(parts: Sequence[NDArray[Any]], dtype: type) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.zeros(0, dtype)


def _pad(parts: Sequence[NDArray[np.float32]], n_classes: int) -> NDArray[np.float32]:
    padded = np.full((sum(map(len, parts)), n_classes), np.nan, np.float32)
    start = 0
    for part in parts:
        padded[start : start + len(part), : part.shape[1]] = part
        start += len(part)
    return padded
