"""The roster: which workers and classes are known, and how a table becomes a chunk.

`Roster.read` is pure: it says what a table would add. `Roster.admit` adds it, once the chunk
was learned from. Between the two anything may fail and nothing is lost.
"""

from array import array
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from labelquorum.errors import LabelError
from labelquorum.ingest.chunks import (
    Chunk,
    id_key,
    id_keys,
    id_order,
    make_chunk,
    scramble,
    sort_ids,
    sorted_chunk,
)
from labelquorum.ingest.columns import DictionaryColumn, encode, first_rows, some_rows
from labelquorum.ingest.labels import MISSING, LabelSpace, LabelTable, is_missing
from labelquorum.ingest.rows import IdIndex, look_up, sort_rows
from labelquorum.ingest.worker_attributes import Attributes, joined


class Note(NamedTuple):
    """What is kept of an item for reports alone."""

    group: Hashable = None
    timestamp: Any = None  # the latest


class HeldItem(Protocol):
    """An open item with n labels, as far as reading late labels needs it."""

    @property
    def worker(self) -> NDArray[np.int32]:
        """One per label, (n,)."""

    @property
    def label(self) -> NDArray[np.int32]:
        """One per label, (n,)."""

    @property
    def weight(self) -> NDArray[np.float32]:
        """One per label, (n,)."""

    @property
    def votes(self) -> NDArray[np.float32] | None:
        """What the labels are majorities of, (n, 1 + C), as in `Chunk`."""

    @property
    def score(self) -> NDArray[np.float32] | None:
        """Beside the labels, (n,), NaN where there is none."""

    @property
    def counted_probs(self) -> NDArray[np.float32]:
        """(A, C); carried to the method, not read here."""

    @property
    def gold(self) -> int:
        """The true class, or MISSING."""

    @property
    def note(self) -> Note:
        """For reports."""


class HeldItems(Protocol):
    """The open items; see `learn.open_items`."""

    def among(self, item_ids: Iterable[Hashable], /) -> set[Hashable]:
        """Those of these items that are open."""

    def get(self, item_id: Hashable, /) -> HeldItem | None:
        """The item if it is open."""

    def was_closed(self, keys: NDArray[np.uint64], /) -> NDArray[np.bool_]:
        """Which items were answered and closed before."""


class _NothingHeld:
    """No open items."""

    def among(self, item_ids: Iterable[Hashable]) -> set[Hashable]:
        return set()

    def get(self, item_id: Hashable) -> None:
        return None

    def was_closed(self, keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
        return np.zeros(len(keys), bool)


class Tally(NamedTuple):
    """What became of the rows of a table; nothing is dropped in silence."""

    rows: int = 0
    """Rows that were read and had an item, a worker and a label."""
    repeated: int = 0
    """Labels set aside because the same worker labelled the same item more than once; votes that
    became one label with others."""
    corrected: int = 0
    """Labels of open items that gave way to another one of the same worker."""
    late_items: int = 0
    """Items that were open and got more labels, or other ones."""
    returned_items: int = 0
    """Items that were closed and came back: counted as new evidence."""
    gold_items: int = 0
    """Items whose true label is given."""
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
    attributes: Mapping[Hashable, Attributes] = {}  # of workers with something new


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
        attributes: Mapping[Hashable, Attributes] | None = None,
    ) -> None:
        self.space = LabelSpace() if space is None else space
        self.worker_ids = list(workers)
        self.classes = list(self.space.classes or classes)
        # A worker who was forgotten leaves an empty place: None.
        self._worker_index = {w: k for k, w in enumerate(self.worker_ids) if w is not None}
        self._class_index = {label: c for c, label in enumerate(self.classes)}
        self._worker_keys = array("Q", id_keys(self.worker_ids).tobytes())
        self._workers = IdIndex(self.worker_ids, self._worker_index)
        # Of those of whom something is known, also before their first label.
        self.attributes = dict(attributes or {})

    def worker_index(self, worker_id: Hashable) -> int | None:
        """The index of a known worker."""
        return self._worker_index.get(worker_id)

    def forget(self, worker_id: Hashable) -> int:
        """Erase a worker's id; the index stays empty, and a worker who returns is new."""
        self.attributes.pop(worker_id, None)
        k = self._worker_index.pop(worker_id)
        self.worker_ids[k] = None
        return k

    def read(
        self,
        table: LabelTable,
        open_items: HeldItems | None = None,
        gold: Mapping[Hashable, Hashable] | None = None,
        also: Sequence[Hashable] = (),
        workers: LabelTable | None = None,
    ) -> Intake:
        """Turn a table into a chunk, with the labels still held of its open items.

        Parameters
        ----------
        open_items
            The open items; none unless given.
        gold
            True labels by item. An open item that is not in the table joins it where its true
            label is news; other items that are not in the table are left out.
        also
            Open items that join it in any case.
        workers
            More attributes of workers, as `read_workers` gives them.
        """
        held = _NothingHeld() if open_items is None else open_items
        # Canonical order: items by id, whatever the order of rows.
        items = encode(table.item_ids)
        appearance = list(dict.fromkeys([*items.values, *also]) if also else items.values)
        appearance += self._news_of_gold(gold or {}, appearance, held)
        by_id = sort_ids(appearance)
        item_ids = [appearance[n] for n in by_id.tolist()]
        order = _inverse(by_id)
        item = order.astype(np.int32)[items.codes]
        truth = {i: gold[d] for i, d in enumerate(item_ids) if d in gold} if gold else {}
        attributes = joined(self.attributes, (table,) if workers is None else (workers, table))
        worker, new_workers = _index(
            table.worker_ids, self._worker_index, self._workers.look_up, len(self.worker_ids)
        )
        labels, new_classes = _index(
            table.labels,
            self._class_index,
            partial(look_up, known=self._class_index),
            len(self.classes),
            list(truth.values()),
        )
        labels, true_labels = labels[: len(worker)], labels[len(worker) :]
        if new_classes and self.space.classes is not None:
            self._refuse_classes(table, new_classes, gold or {})
        n_workers = len(self.worker_ids) + len(new_workers)
        n_classes = len(self.classes) + len(new_classes)

        late = held.among(item_ids)
        position = {item_id: i for i, item_id in enumerate(item_ids)} if late else {}
        entries = [(position[d], entry) for d in late if (entry := held.get(d))]
        entries.sort(key=itemgetter(0))
        notes = _notes(table, item, item_ids, [(i, entry.note) for i, entry in entries])
        weight = None if table.weights is None else np.asarray(table.weights)
        item_keys = id_keys(item_ids)
        weights = None if weight is None else weight.astype(np.float32)
        score = _scores(table, [entry for _, entry in entries])
        of_rows = None if score is None else score[len(score) - len(worker) :]
        rows = sort_rows(item, worker, labels, weights, len(item_ids), of_rows)
        tally = Tally(rows=len(item))
        returned = held.was_closed(item_keys)
        shape = len(item_ids), n_classes
        counted, truths, new_truths = _of_items(entries, truth, true_labels, shape)
        if not entries and (self.space.repeats == "all" or not rows.has_repeats):
            keys = self._keys_of(rows.workers, new_workers)
            chunk = sorted_chunk(rows, item_keys, n_workers, n_classes, keys, truths)
            if score is not None:
                chunk = chunk._replace(score=score[rows.order])
        else:
            votes = None
            if entries:  # earlier labels of open items come before the table's own rows
                weight = np.ones(len(worker)) if weight is None else weight
                item = np.concatenate([*(np.full(len(e.worker), i) for i, e in entries), item])
                worker = np.concatenate([*(e.worker for _, e in entries), worker])
                labels = np.concatenate([*(e.label for _, e in entries), labels])
                weight = np.concatenate([*(e.weight for _, e in entries), weight])
                returned[[i for i, _ in entries]] = False
            n_held = sum(len(entry.worker) for _, entry in entries)
            pair = item * np.int64(max(n_workers, 1)) + worker
            if self.space.repeats == "majority":
                votes = _votes_of_pairs(pair, labels, weight, [e for _, e in entries], n_classes)
            if votes is not None:
                present, at = np.unique(worker, return_inverse=True)
                keys = item_keys[item] ^ scramble(
                    self._keys_of(present.astype(np.int32), new_workers)[at]
                )
                voted = _majority(votes, labels, keys, [*self.classes, *new_classes])
                weight = np.ones(len(labels)) if weight is None else weight
                if score is not None:
                    score = _mean_scores(
                        score, pair, labels == voted[0], weight, [e for _, e in entries]
                    )
                # What was held stays, to be corrected by the majority of now.
                labels = np.concatenate([labels[:n_held], voted[0][n_held:]])
                weight = np.concatenate([weight[:n_held], voted[1][n_held:]])
            kept, tally = self._apply_repeats(table, pair, labels, weight, score, n_held)
            chunk = make_chunk(
                *(column[kept.rows] for column in (item, worker, labels)),
                weight=None if weight is None else weight[kept.rows],
                known=kept.known,
                replaced=kept.replaced,
                replaced_weight=kept.replaced_weight,
                votes=None if votes is None else votes[kept.rows],
                score=None if score is None else score[kept.rows],
                item_keys=item_keys,
                n_items=len(item_ids),
                n_workers=n_workers,
                n_classes=n_classes,
            )
            keys = self._keys_of(chunk.workers, new_workers)
            chunk = chunk._replace(
                worker_keys=keys, counted_probs=counted, gold=truths, new_gold=new_truths
            )
        if self.attributes or attributes:
            groups = self.groups_of(chunk.workers, new_workers, attributes)
            chunk = chunk._replace(worker_groups=groups)
        return Intake(
            chunk=chunk,
            item_ids=item_ids,
            order=order,
            new_workers=new_workers,
            new_classes=new_classes,
            notes=notes,
            tally=tally._replace(
                late_items=len(entries),
                returned_items=int(returned.sum()),
                gold_items=0 if chunk.gold is None else int((chunk.gold != MISSING).sum()),
                skipped=table.skipped,
            ),
            returned=returned,
            attributes=attributes,
        )

    def _news_of_gold(
        self, gold: Mapping[Hashable, Hashable], items: list[Hashable], held: HeldItems
    ) -> list[Hashable]:
        """Open items outside the table whose true label was not given before, or otherwise."""
        joined = []
        for item_id in held.among(set(gold).difference(items)) if gold else ():
            entry = held.get(item_id)
            if entry and self._class_index.get(gold[item_id]) != entry.gold:
                joined.append(item_id)
        return sorted(joined, key=id_order)

    def _refuse_classes(
        self, table: LabelTable, unknown: list[Hashable], gold: Mapping[Hashable, Hashable]
    ) -> None:
        for row, label in enumerate(table.labels):
            if label in unknown:
                raise LabelError(
                    f"{table.where(row)}: label {label!r} is not one of the classes "
                    f"{self.classes!r}. Fix the label, or pass the full list as classes=."
                )
        task, label = next((d, label) for d, label in gold.items() if label in unknown)
        raise LabelError(
            f"true_labels of task {task!r}: {label!r} is not one of the classes "
            f"{self.classes!r}. Fix it, or pass the full list as classes=."
        )

    def admit(self, intake: Intake) -> None:
        """Make an intake's new workers and classes known."""
        for worker in intake.new_workers:
            self._worker_index[worker] = len(self.worker_ids)
            self.worker_ids.append(worker)
        for label in intake.new_classes:
            self._class_index[label] = len(self.classes)
            self.classes.append(label)
        if intake.new_workers:
            self._worker_keys.frombytes(id_keys(intake.new_workers).tobytes())
            self._workers.update()
        self.attributes.update(intake.attributes)

    def groups_of(
        self,
        workers: NDArray[np.int32],
        new_workers: Sequence[Hashable] = (),
        news: Mapping[Hashable, Attributes] | None = None,
    ) -> NDArray[np.uint64] | None:
        """A hash of each worker's model, (P,), 0 where none is known; None if all have none."""
        news = news or {}
        if not self.attributes and not news:
            return None
        n_old = len(self.worker_ids)
        ids = (
            self.worker_ids[k] if k < n_old else new_workers[k - n_old] for k in workers.tolist()
        )
        found = (news.get(worker) or self.attributes.get(worker) for worker in ids)
        models = encode([None if known is None else known.model for known in found])
        if not any(models.values):
            return None
        keys = [0 if model is None else id_key(model) for model in models.values]
        return np.asarray(np.array(keys, np.uint64)[models.codes])

    def _keys_of(
        self, workers: NDArray[np.int32], new_workers: list[Hashable]
    ) -> NDArray[np.uint64]:
        known = np.frombuffer(self._worker_keys, np.uint64)  # a view: nothing is copied
        if not new_workers:
            return known[workers]
        fresh = id_keys(new_workers)
        n_old = np.searchsorted(workers, len(known))  # workers are sorted, new ones last
        return np.concatenate([known[workers[:n_old]], fresh[workers[n_old:] - len(known)]])

    def _apply_repeats(
        self,
        table: LabelTable,
        pair: NDArray[np.int64],
        labels: NDArray[np.integer[Any]],
        weight: NDArray[np.float64] | None,
        score: NDArray[np.float32] | None,
        n_held: int,
    ) -> tuple[_Kept, Tally]:
        """Choose the rows that count among those of equal (item, worker) pair.

        The first `n_held` rows are the labels held of open items.
        """
        tally = Tally(rows=len(table.item_ids))
        ordered = np.sort(pair)
        repeats = self.space.repeats != "all" and bool((ordered[1:] == ordered[:-1]).any())
        weight = np.ones(len(pair)) if weight is None else weight
        everything = np.arange(len(pair))
        known = everything < n_held
        replaced = np.full(len(pair), MISSING)
        replaced_weight = np.zeros(len(pair))
        if not repeats:
            return _Kept(everything, known, replaced, replaced_weight), tally
        arrival = np.concatenate([everything[:n_held], n_held + _inverse(_in_time(table))])
        by_pair = np.lexsort((arrival, pair))
        same = pair[by_pair][1:] == pair[by_pair][:-1]
        if self.space.repeats == "error":
            row = int(by_pair[1:][same].min()) - n_held
            raise LabelError(
                f"{table.where(row)}: worker {table.worker_ids[row]!r} has labelled task "
                f"{table.item_ids[row]!r} already, and repeats='error' allows one label each. "
                "Remove one, or choose repeats='last', 'first', 'majority' or 'all'."
            )
        wins = np.ones(len(by_pair), bool)
        if self.space.repeats == "first":
            wins[1:] = ~same
        else:  # all rows of a majority say the same
            wins[:-1] = ~same
        winner = np.empty_like(everything)  # of each row's pair
        groups = np.concatenate([[0], np.cumsum(~same)])
        winner[by_pair] = by_pair[wins][groups]
        is_kept = np.zeros(len(pair), bool)
        is_kept[by_pair[wins]] = True
        keep, lost = np.flatnonzero(is_kept), np.flatnonzero(~is_kept)
        # A held label that gives way to another one is corrected; all else only repeats.
        gave_way = lost[lost < n_held]
        by = winner[gave_way]
        again = (labels[gave_way] == labels[by]) & (weight[gave_way] == weight[by])
        if score is not None:  # another score is a correction too
            one, other = score[gave_way], score[by]
            again &= (one == other) | (np.isnan(one) & np.isnan(other))
        known[by[again]] = True
        replaced[by[~again]] = labels[gave_way[~again]]
        replaced_weight[by[~again]] = weight[gave_way[~again]]
        corrected = int((~again).sum())
        tally = tally._replace(corrected=corrected, repeated=len(lost) - corrected)
        return _Kept(keep, known[keep], replaced[keep], replaced_weight[keep]), tally


def _index(
    column: Sequence[Hashable],
    known: Mapping[Hashable, int],
    find: Callable[[list[Any]], NDArray[np.int32] | None],
    first: int,
    more: Sequence[Hashable] = (),
) -> tuple[NDArray[np.int32], list[Hashable]]:
    """Number a column and more values by a known index, new ones from `first` on by `id_order`.

    `find` gives the numbers of many values at once, or None where one is not known.
    """
    cells = encode(column) if isinstance(column, DictionaryColumn) else None
    values = column if cells is None else cells.values
    values = [*values, *more] if more else values
    new: list[Hashable] = []
    index = find(values if isinstance(values, list) else list(values))
    if index is None:  # most chunks have no new id
        unknown = list(dict.fromkeys(value for value in values if value not in known))
        new = [unknown[n] for n in sort_ids(unknown).tolist()]
        place = dict(zip(new, range(first, first + len(new)), strict=True))
        index = np.array([known[v] if v in known else place[v] for v in values], np.int32)
    if cells is None:
        return index, new
    n_values = len(cells.values)
    rows = index[:n_values][cells.codes]
    return np.concatenate([rows, index[n_values:]]) if more else rows, new


def _votes_of_pairs(
    pair: NDArray[np.int64],
    labels: NDArray[np.integer[Any]],
    weight: NDArray[np.float64] | None,
    held: Sequence[HeldItem],
    n_classes: int,
) -> NDArray[np.float64] | None:
    """How many votes each row's pair has, and their weight by class, (B, 1 + C).

    The rows of the held items come first. None where no worker has voted on an item twice.
    """
    pairs, group = np.unique(pair, return_inverse=True)
    if len(pairs) == len(pair) and all(entry.votes is None for entry in held):
        return None
    weight = np.ones(len(pair)) if weight is None else weight
    votes = np.zeros((len(pairs), 1 + n_classes))
    start = 0
    for entry in held:
        own = np.zeros((len(entry.worker), 1 + n_classes))
        if entry.votes is not None:
            own[:, : entry.votes.shape[1]] = entry.votes
        single = np.flatnonzero(own[:, 0] == 0)
        own[single, 0], own[single, 1 + entry.label[single]] = 1, entry.weight[single]
        votes[group[start : start + len(own)]] += own
        start += len(own)
    # Sorted, so that the order of rows changes no bit of a sum.
    cast = start + np.lexsort((weight[start:], labels[start:], group[start:]))
    votes[:, 0] += np.bincount(group[cast], minlength=len(votes))
    np.add.at(votes, (group[cast], 1 + labels[cast]), weight[cast])
    return np.asarray(votes[group])


def _majority(
    votes: NDArray[np.float64],
    labels: NDArray[np.integer[Any]],
    keys: NDArray[np.uint64],
    classes: Sequence[Hashable],
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The label with most votes, and its share of them by weight, (B,) each.

    A tie falls to a class drawn by the ids of task, worker and class, whatever their order.
    """
    by_class = votes[:, 1:]
    most = by_class.max(axis=1, initial=0)
    best = by_class >= most[:, None] * (1 - 1e-9)
    chosen = np.asarray(best.argmax(axis=1), np.int64)
    tied = np.flatnonzero(best.sum(axis=1) > 1)
    if len(tied):
        lots = scramble(keys[tied, None] ^ scramble(id_keys(classes))) >> np.uint64(1)
        chosen[tied] = np.where(best[tied], lots, 0).argmax(axis=1)
    chosen = np.where(most > 0, chosen, labels)  # votes that weigh nothing
    return chosen, most / votes[:, 0]


def _scores(table: LabelTable, held: Sequence[HeldItem]) -> NDArray[np.float32] | None:
    """The scores of held labels and of the table's rows, in this order; None if all have none."""
    parts: list[NDArray[Any] | None] = [entry.score for entry in held]
    sizes = [*(len(entry.worker) for entry in held), len(table.item_ids)]
    parts.append(None if table.scores is None else np.asarray(table.scores, np.float64))
    if all(part is None for part in parts):
        return None
    filled = [
        np.full(size, np.nan) if part is None else part
        for size, part in zip(sizes, parts, strict=True)
    ]
    scores = np.concatenate(filled).astype(np.float32)
    return None if np.isnan(scores).all() else scores


def _mean_scores(
    score: NDArray[np.float32],
    pair: NDArray[np.int64],
    agrees: NDArray[np.bool_],
    weight: NDArray[np.float64],
    held: Sequence[HeldItem],
) -> NDArray[np.float32]:
    """The score of a majority: the mean over the votes for it that have one, by weight, (B,).

    The rows of the held items come first, each for all votes for its label. Votes of a task that
    was answered before for what was not the majority then have left no score.
    """
    _, group, n_rows = np.unique(pair, return_inverse=True, return_counts=True)
    weight = weight.copy()
    start = 0
    for entry in held:
        if entry.votes is not None:
            several = np.flatnonzero(entry.votes[:, 0])
            weight[start + several] = entry.votes[several, 1 + entry.label[several]]
        start += len(entry.worker)
    # Sorted, so that the order of rows changes no bit of a sum.
    rows = np.lexsort((score, weight, group))
    rows = rows[agrees[rows] & ~np.isnan(score[rows])]
    total = np.bincount(group[rows], weight[rows], len(n_rows))
    sums = np.bincount(group[rows], weight[rows] * score[rows], len(n_rows))
    mean = np.divide(sums, total, np.full(len(n_rows), np.nan), where=total > 0)
    return np.where(n_rows[group] > 1, mean[group], score).astype(np.float32)


def _in_time(table: LabelTable) -> NDArray[np.intp]:
    """The rows in order of time: by timestamp where there is one, else as they came."""
    stamps = table.timestamps
    if stamps is None:
        return np.arange(len(table.item_ids))
    if isinstance(stamps, DictionaryColumn):
        with suppress(TypeError):  # the rows tell which two cannot be compared
            rank = _inverse(_sorted_by_time(stamps.values))
            return np.argsort(rank[stamps.codes], kind="stable")
    try:
        return _sorted_by_time(list(stamps))
    except TypeError as error:
        raise LabelError(
            f"{table.source}: column 'timestamp' must hold values that can be compared "
            f"({error}). Give every row one kind of timestamp, or leave the column out."
        ) from error


def _sorted_by_time(stamps: Sequence[Any]) -> NDArray[np.intp]:
    def time(row: int) -> tuple[bool, Any]:  # rows without a timestamp come first, as they came
        return (False, 0) if is_missing(stamps[row]) else (True, stamps[row])

    return np.array(sorted(range(len(stamps)), key=time), np.intp)


def _inverse(order: NDArray[np.integer[Any]]) -> NDArray[np.intp]:
    """The place of each element in an order of all."""
    place = np.empty(len(order), np.intp)
    place[order] = np.arange(len(order))
    return place


def _later(one: Any, other: Any) -> Any:
    if one is None or other is None:
        return other if one is None else one
    try:
        return max(one, other)
    except TypeError:  # of another kind than before: the newer row tells
        return other


def _of_items(
    open_items: list[tuple[int, HeldItem]],
    truth: Mapping[int, Hashable],
    true_labels: NDArray[np.integer[Any]],
    shape: tuple[int, int],
) -> tuple[NDArray[np.float32] | None, NDArray[np.int32] | None, NDArray[np.bool_] | None]:
    """By what open items were counted, (N, A, C), and where a truth is given, and is new, (N,)."""
    if not open_items and not truth:
        return None, None, None
    n_items, n_classes = shape
    n_models = max((len(entry.counted_probs) for _, entry in open_items), default=0)
    counted = np.zeros((n_items, n_models, n_classes), np.float32) if open_items else None
    gold = np.full(n_items, MISSING, np.int32)
    for i, entry in open_items:
        if counted is not None:
            counted[i, :, : entry.counted_probs.shape[1]] = entry.counted_probs
        gold[i] = entry.gold
    before = gold.copy()
    gold[list(truth)] = true_labels
    if (gold == MISSING).all():
        return counted, None, None
    return counted, gold, gold != before


def _notes(
    table: LabelTable,
    item: NDArray[np.int32],
    item_ids: Sequence[Hashable],
    held: Sequence[tuple[int, Note]],
) -> list[Note] | None:
    """Each item's first group and latest timestamp; what an open item has stays.

    Parameters
    ----------
    item
        The position of each row's item, (B,).
    held
        The notes of open items, by position.
    """
    if table.groups is None and table.timestamps is None:
        if not held:
            return None
        notes = [Note()] * len(item_ids)
        for i, note in held:
            notes[i] = note
        return notes
    in_time = _in_time(table)
    by_time = item[in_time]
    first = first_rows(by_time, len(item_ids))
    labelled = np.flatnonzero(first < len(item))
    last = np.zeros(len(item_ids), np.intp)
    last[by_time] = np.arange(len(item))  # of several assignments, the last stays
    found: list[list[Any]] = []
    for column, rows in ((table.groups, first), (table.timestamps, last)):
        cells: list[Any] = [None] * len(item_ids)
        if column is not None:
            for i, cell in zip(
                labelled.tolist(), some_rows(column, in_time[rows[labelled]]), strict=True
            ):
                cells[i] = cell
        found.append(cells)
    groups, moments = found
    for i, note in held:
        groups[i] = groups[i] if note.group is None else note.group
        moments[i] = _later(note.timestamp, moments[i])
    return list(map(Note, groups, moments))
