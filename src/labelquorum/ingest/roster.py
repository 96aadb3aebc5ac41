"""The roster: which workers and classes are known, and how a table becomes a chunk.

`Roster.read` is pure: it says what a table would add. `Roster.admit` adds it, once the chunk
was learned from. Between the two anything may fail and nothing is lost.
"""

from collections import ChainMap
from collections.abc import Hashable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum.errors import LabelError
from labelquorum.ingest.chunks import Chunk, id_key, id_order, make_chunk
from labelquorum.ingest.events import MISSING, LabelSpace, LabelTable, is_missing
from labelquorum.ingest.ledger import Ledger, Note

__all__ = ["Intake", "Roster", "Tally"]


class Tally(NamedTuple):
    """What became of the rows of a table; nothing is dropped in silence."""

    rows: int = 0
    """Rows that were read and had an item, a worker and a label."""
    repeated: int = 0
    """Labels set aside because the same worker labelled the same item more than once."""
    corrected: int = 0
    """Labels of open items that gave way to another one of the same worker."""
    late_items: int = 0
    """Items that were open and got more labels, or other ones."""
    returned_items: int = 0
    """Items that were closed and came back: counted as new evidence."""
    skipped: Mapping[str, int] = {}
    """Bad rows left out while reading, by reason."""


class Intake(NamedTuple):
    """A table read against the roster: the chunk, and what it would add."""

    chunk: Chunk
    item_ids: list[Hashable]  # in the chunk's order
    order: NDArray[np.intp]  # (N,) positions in order of first appearance
    new_workers: list[Hashable]
    new_classes: list[Hashable]
    notes: list[Note] | None  # one an item, in the chunk's order
    tally: Tally
    returned: NDArray[np.bool_]  # (N,) items that were closed before


class _Kept(NamedTuple):
    """The rows that count, and what they are to the labels held before."""

    rows: NDArray[np.intp]
    known: NDArray[np.bool_]  # says nothing that was not held already
    replaced: NDArray[np.int64]  # the held label it corrects, or MISSING
    replaced_weight: NDArray[np.float64]


class Roster:
    """Workers and classes by the user's own ids, in the order they became known."""

    def __init__(
        self,
        space: LabelSpace | None = None,
        workers: Sequence[Hashable] = (),
        classes: Sequence[Hashable] = (),
    ) -> None:
        self.space = LabelSpace() if space is None else space
        self.worker_ids = list(workers)
        self.classes = list(self.space.classes or classes)
        # A worker who was forgotten leaves an empty place: None.
        self._worker_index = {w: k for k, w in enumerate(self.worker_ids) if w is not None}
        self._class_index = {label: c for c, label in enumerate(self.classes)}
        self._worker_keys = [id_key(worker) for worker in self.worker_ids]

    def worker_index(self, worker_id: Hashable) -> int | None:
        """The index of a known worker."""
        return self._worker_index.get(worker_id)

    def forget(self, worker_id: Hashable) -> int:
        """Let go of a worker's id; his index stays empty, and should he return he is new."""
        k = self._worker_index.pop(worker_id)
        self.worker_ids[k] = None
        return k

    def read(self, table: LabelTable, ledger: Ledger | None = None) -> Intake:
        """Turn a table into a chunk, with the labels still held of its open items."""
        held = Ledger(0) if ledger is None else ledger
        # Canonical order: items by id, whatever the order of rows.
        appearance = list(dict.fromkeys(table.item_ids))
        item_ids = sorted(appearance, key=id_order)
        position = {item_id: i for i, item_id in enumerate(item_ids)}
        workers, new_workers = _index(table.worker_ids, self._worker_index, len(self.worker_ids))
        labels, new_classes = _index(table.labels, self._class_index, len(self.classes))
        if new_classes and self.space.classes is not None:
            row = next(r for r, label in enumerate(table.labels) if label in new_classes)
            raise LabelError(
                f"{table.where(row)}: label {table.labels[row]!r} is not one of the classes "
                f"{self.classes!r}. Fix the label, or pass the full list as classes=."
            )
        n_workers = len(self.worker_ids) + len(new_workers)

        open_items = [(i, entry) for i, d in enumerate(item_ids) if (entry := held.get(d))]
        n_held = sum(len(entry.worker) for _, entry in open_items)
        item = np.fromiter(map(position.__getitem__, table.item_ids), np.int64, len(workers))
        weight = np.ones(len(workers)) if table.weights is None else np.asarray(table.weights)
        if open_items:  # earlier labels of open items come before the table's own rows
            item = np.concatenate([*(np.full(len(e.worker), i) for i, e in open_items), item])
            workers = np.concatenate([*(e.worker for _, e in open_items), workers])
            labels = np.concatenate([*(e.label for _, e in open_items), labels])
            weight = np.concatenate([*(e.weight for _, e in open_items), weight])
        pair = item * max(n_workers, 1) + workers
        kept, tally = self._apply_repeats(table, pair, labels, weight, n_held)
        keep = kept.rows

        item_keys = np.fromiter(map(id_key, item_ids), np.uint64, len(item_ids))
        returned = held.was_closed(item_keys)
        returned[[i for i, _ in open_items]] = False
        chunk = make_chunk(
            item[keep],
            workers[keep],
            labels[keep],
            weight=weight[keep],
            known=kept.known,
            replaced=kept.replaced,
            replaced_weight=kept.replaced_weight,
            item_keys=item_keys,
            n_items=len(item_ids),
            n_workers=n_workers,
            n_classes=len(self.classes) + len(new_classes),
        )
        return Intake(
            chunk=chunk._replace(worker_keys=self._keys_of(chunk.workers, new_workers)),
            item_ids=item_ids,
            order=np.fromiter(map(position.__getitem__, appearance), np.intp, len(appearance)),
            new_workers=new_workers,
            new_classes=new_classes,
            notes=_notes(table, item_ids, held),
            tally=tally._replace(
                late_items=len(open_items),
                returned_items=int(returned.sum()),
                skipped=table.skipped,
            ),
            returned=returned,
        )

    def admit(self, intake: Intake) -> None:
        """Make an intake's new workers and classes known."""
        for worker in intake.new_workers:
            self._worker_index[worker] = len(self.worker_ids)
            self.worker_ids.append(worker)
        for label in intake.new_classes:
            self._class_index[label] = len(self.classes)
            self.classes.append(label)
        self._worker_keys.extend(map(id_key, intake.new_workers))

    def _keys_of(
        self, workers: NDArray[np.int32], new_workers: list[Hashable]
    ) -> NDArray[np.uint64]:
        known, fresh = self._worker_keys, list(map(id_key, new_workers))
        keys = (known[k] if k < len(known) else fresh[k - len(known)] for k in workers.tolist())
        return np.fromiter(keys, np.uint64, len(workers))

    def _apply_repeats(
        self,
        table: LabelTable,
        pair: NDArray[np.int64],
        labels: NDArray[np.int64],
        weight: NDArray[np.float64],
        n_held: int,
    ) -> tuple[_Kept, Tally]:
        """Choose the rows that count among those of equal (item, worker) pair.

        The first `n_held` rows are the labels held of open items.
        """
        tally = Tally(rows=len(table.item_ids))
        everything = np.arange(len(pair))
        known = everything < n_held
        replaced = np.full(len(pair), MISSING)
        replaced_weight = np.zeros(len(pair))
        if self.space.repeats == "all" or len(np.unique(pair)) == len(pair):
            return _Kept(everything, known, replaced, replaced_weight), tally
        arrival = np.concatenate([everything[:n_held], n_held + _arrival(table)])
        by_pair = np.lexsort((arrival, pair))
        same = pair[by_pair][1:] == pair[by_pair][:-1]
        if self.space.repeats == "error":
            row = int(by_pair[1:][same].min()) - n_held
            raise LabelError(
                f"{table.where(row)}: worker {table.worker_ids[row]!r} has labelled task "
                f"{table.item_ids[row]!r} already, and repeats='error' allows one label each. "
                "Remove one, or choose repeats='last', 'first' or 'all'."
            )
        wins = np.ones(len(by_pair), bool)
        if self.space.repeats == "last":
            wins[:-1] = ~same
        else:
            wins[1:] = ~same
        winner = np.empty_like(everything)  # of each row's pair
        groups = np.concatenate([[0], np.cumsum(~same)])
        winner[by_pair] = by_pair[wins][groups]
        keep = np.sort(by_pair[wins])
        lost = np.setdiff1d(everything, keep)
        # A held label that gives way to another one is corrected; all else only repeats.
        gave_way = lost[lost < n_held]
        by = winner[gave_way]
        again = (labels[gave_way] == labels[by]) & (weight[gave_way] == weight[by])
        known[by[again]] = True
        replaced[by[~again]] = labels[gave_way[~again]]
        replaced_weight[by[~again]] = weight[gave_way[~again]]
        corrected = int((~again).sum())
        tally = tally._replace(corrected=corrected, repeated=len(lost) - corrected)
        return _Kept(keep, known[keep], replaced[keep], replaced_weight[keep]), tally


def _index(
    values: Sequence[Hashable], known: MutableMapping[Hashable, int], first: int
) -> tuple[NDArray[np.int64], list[Hashable]]:
    """Number values by a known index, new ones from `first` on in canonical order."""
    new = sorted({value for value in values if value not in known}, key=id_order)
    lookup: Mapping[Hashable, int] = known
    if new:
        lookup = ChainMap({value: first + n for n, value in enumerate(new)}, known)
    return np.fromiter(map(lookup.__getitem__, values), np.int64, len(values)), new


def _arrival(table: LabelTable) -> NDArray[np.intp]:
    """The rank of each row in time: by timestamp where there is one, else as they came."""
    ranks = np.arange(len(table.item_ids))
    if table.timestamps is None:
        return ranks
    stamps: Sequence[Any] = table.timestamps

    def time(row: int) -> tuple[bool, Any]:
        return (False, 0) if is_missing(stamps[row]) else (True, stamps[row])

    try:  # rows without a timestamp come first, as they came
        in_time = sorted(range(len(stamps)), key=time)
    except TypeError as error:
        raise LabelError(
            f"{table.source}: column 'timestamp' must hold values that can be compared "
            f"({error}). Give every row one kind of timestamp, or leave the column out."
        ) from error
    ranks[np.array(in_time, np.intp)] = np.arange(len(ranks))
    return ranks


def _later(one: Any, other: Any) -> Any:
    if one is None or other is None:
        return other if one is None else one
    try:
        return max(one, other)
    except TypeError:  # of another kind than before: the newer row tells
        return other


def _notes(table: LabelTable, item_ids: list[Hashable], ledger: Ledger) -> list[Note] | None:
    """Each item's first group and latest timestamp; what an open item has stays."""
    if table.groups is None and table.timestamps is None:
        if not any(item_id in ledger for item_id in item_ids):
            return None
        return [held.note if (held := ledger.get(d)) else Note() for d in item_ids]
    empty = [None] * len(table.item_ids)
    groups: dict[Hashable, Hashable] = {}
    latest: dict[Hashable, Any] = {}
    by_time = np.argsort(_arrival(table), kind="stable").tolist()
    for row in by_time:
        item_id = table.item_ids[row]
        groups.setdefault(item_id, (table.groups or empty)[row])
        latest[item_id] = (table.timestamps or empty)[row]
    for item_id in item_ids:
        if held := ledger.get(item_id):
            groups[item_id] = groups[item_id] if held.note.group is None else held.note.group
            latest[item_id] = _later(held.note.timestamp, latest[item_id])
    return [Note(groups[item_id], latest[item_id]) for item_id in item_ids]
