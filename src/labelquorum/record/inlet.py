"""The way in: labels are accepted once, with their key and the position of their source.

What becomes of labels that are late, repeated or taken back is told in `chunking.py`.
"""

from collections.abc import Hashable, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import sqlalchemy as sa

from labelquorum.errors import ConflictError, LabelError, LabelQuorumError, StateError
from labelquorum.ingest.events import LabelTable
from labelquorum.ingest.formats import read_labels
from labelquorum.record import tables
from labelquorum.record.chunking import Rules
from labelquorum.record.faults import fault
from labelquorum.record.tables import decode, encode, encode_id
from labelquorum.record.view import View, batched

__all__ = ["Inlet", "Receipt", "Sent"]


class Sent(NamedTuple):
    """A table as it is sent; see `Inlet.accept`."""

    labels: Any
    key: str | None = None
    source: str | None = None
    position: str | None = None


class Receipt(NamedTuple):
    """What became of the labels that were sent; they are durable once one has it."""

    accepted: int
    late: int  # set aside: their items are closed
    skipped: Mapping[str, int]  # bad rows left out, by reason
    first_row: int | None
    last_row: int | None
    repeated: bool = False  # they were accepted before under this key: nothing is counted twice


class _Part(NamedTuple):
    """A table that was read and checked."""

    rows: list[dict[str, Any]]
    skipped: dict[str, int]
    body: str  # SHA-256
    key: str | None
    source: str | None
    position: str | None


class Inlet(View):
    """What can be sent to a stream; see `Stream`."""

    def accept(
        self,
        labels: Any,
        key: str | None = None,
        source: str | None = None,
        position: str | None = None,
    ) -> Receipt:
        """Take labels; once this returns they are durable.

        Parameters
        ----------
        labels
            What `BiLA.partial_fit` takes. A table that is refused changes nothing.
        key
            The sender's own name for this very table. Sent again, it is counted once.
        source, position
            How far a source was read with these labels, in the sender's own words.
        """
        [receipt] = self.accept_all([Sent(labels, key, source, position)])
        if isinstance(receipt, LabelQuorumError):
            raise receipt
        return receipt

    def accept_all(self, sent: Sequence[Sent]) -> list[Receipt | LabelQuorumError]:
        """Take several tables in one transaction, as if each had come alone, one after the other.

        A table that is refused has its error in place of a receipt, and the others do not mind.
        A disk takes as long for one commit as for another, so many small tables are best taken
        together.
        """
        outcomes: list[Receipt | LabelQuorumError | None] = [None] * len(sent)
        parts: dict[int, _Part] = {}
        for number, one in enumerate(sent):
            try:
                parts[number] = self._read(one)
            except LabelQuorumError as error:
                outcomes[number] = error
        with self._store.write() as connection:
            seen = self._seen(connection, [part.key for part in parts.values() if part.key])
            fresh: dict[int, _Part] = {}
            twins: dict[int, str] = {}  # sent again, within this very call
            for number, part in parts.items():
                before = seen.get(part.key) if part.key else None
                if before is None:
                    fresh[number] = part
                    if part.key:
                        seen[part.key] = (part.body, None)
                elif before[0] != part.body:
                    outcomes[number] = ConflictError(
                        f"Stream {self.name!r}: key {part.key!r} came before with other labels, "
                        "and a key names one table for good. Send these under a key of their own."
                    )
                elif before[1] is None:
                    twins[number] = part.key or ""
                else:
                    outcomes[number] = before[1]._replace(repeated=True)
            if fresh:
                receipts = self._take(connection, list(fresh.values()))
                by_key: dict[str | None, Receipt] = {}
                for (number, part), receipt in zip(fresh.items(), receipts, strict=True):
                    outcomes[number] = by_key[part.key] = receipt
                for number, key in twins.items():
                    outcomes[number] = by_key[key]._replace(repeated=True)
            fault("before_accept_commit")
        fault("after_accept")
        return [outcome for outcome in outcomes if outcome is not None]

    def retract(self, task: Hashable, worker: Hashable) -> int:
        """Take back a worker's labels of a task that is not cut yet; say how many there were."""
        item = encode_id(task, "task", "retract")
        labels, waiting = tables.labels.c, tables.waiting.c
        his = sa.and_(
            labels.stream == self._key,
            labels.item == item,
            labels.chunk.is_(None),
            labels.worker == encode_id(worker, "worker", "retract"),
        )
        with self._store.write() as connection:
            n_gone = connection.execute(tables.labels.delete().where(his)).rowcount
            if not n_gone:
                raise LabelError(
                    f"No label of worker {worker!r} on task {task!r} is waiting: it never came, "
                    "or its chunk was cut. Check both ids, or send a correction."
                )
            here = sa.and_(waiting.stream == self._key, waiting.item == item)
            left = connection.execute(
                sa.select(labels.row, labels.worker).where(
                    labels.stream == self._key, labels.item == item, labels.chunk.is_(None)
                )
            ).all()
            if not left:
                connection.execute(tables.waiting.delete().where(here))
                return n_gone
            n_labels = len(left) if self._counts_all else len({row.worker for row in left})
            entry: dict[str, int | None] = {
                "n_labels": n_labels,
                "first_row": min(row.row for row in left),
            }
            closed, again = self._answered(connection, [item], self._store.now())
            rules = Rules(**decode(self._row(connection).rules))
            if not closed and not again and not rules.is_full(n_labels):
                entry["ready_at"] = None
            connection.execute(tables.waiting.update().where(here).values(entry))
        return n_gone

    def position(self, source: str) -> str | None:
        """How far a source was read."""
        positions = tables.positions.c
        with self._store.read() as connection:
            return connection.scalar(
                sa.select(positions.position).where(
                    positions.stream == self._key, positions.source == source
                )
            )

    def _read(self, sent: Sent) -> "_Part":
        """Check what was sent, before any transaction."""
        labels, key, source, position = sent
        if (source is None) != (position is None):
            raise StateError("`source` and `position` go together. Give both, or neither.")
        for what, value in (("key", key), ("source", source), ("position", position)):
            if value is not None and not _is_name(value):
                raise StateError(
                    f"`{what}` must be text of 1 to {tables.NAME_BYTES} bytes. "
                    f"Got {str(value)[:40]!r}."
                )
        table = read_labels(labels, self._model._space)
        rows = _rows(table)
        body = sha256(encode(rows).encode()).hexdigest()
        return _Part(rows, dict(table.skipped), body, key, source, position)

    def _seen(
        self, connection: sa.Connection, keys: Sequence[str]
    ) -> dict[str, tuple[str, Receipt | None]]:
        """What came under these keys before, and what was answered."""
        batches = tables.batches.c
        seen: dict[str, tuple[str, Receipt | None]] = {}
        for some in batched(keys):
            found = sa.select(batches.key, batches.body, batches.receipt).where(
                batches.stream == self._key, batches.key.in_(some)
            )
            for row in connection.execute(found):
                seen[row.key] = (row.body, Receipt(**decode(row.receipt)))
        return seen

    def _take(self, connection: sa.Connection, parts: Sequence["_Part"]) -> list[Receipt]:
        """Write labels, keys and positions."""
        now = self._store.now()
        stream = self._row(connection)
        rules = Rules(**decode(stream.rules))
        items = list(dict.fromkeys(row["item"] for part in parts for row in part.rows))
        waiting = {
            row.item: {**row._mapping} for row in self._of_items(connection, tables.waiting, items)
        }
        others = [item for item in items if item not in waiting]
        closed, again = self._answered(connection, others, now)
        pairs = self._pairs(connection, list(waiting))
        taken: list[dict[str, Any]] = []
        receipts: list[Receipt] = []
        for part in parts:
            first = stream.next_row + len(taken)
            for row in part.rows:
                item, pair = row["item"], (row["item"], row["worker"])
                if item in closed:
                    continue
                number = stream.next_row + len(taken)
                taken.append({**row, "stream": self._key, "row": number, "chunk": None})
                entry = waiting.setdefault(
                    item,
                    {
                        "stream": self._key,
                        "item": item,
                        "n_labels": 0,
                        "first_row": number,
                        "first_at": now,
                        "ready_at": now if item in again else None,
                    },
                )
                if self._counts_all or pair not in pairs:
                    pairs.add(pair)
                    entry["n_labels"] += 1
                if entry["ready_at"] is None and rules.is_full(entry["n_labels"]):
                    entry["ready_at"] = now
            n_taken = stream.next_row + len(taken) - first
            late, last = len(part.rows) - n_taken, first + n_taken - 1
            span = (first, last) if n_taken else (None, None)
            receipts.append(Receipt(n_taken, late, part.skipped, *span))
        if taken:
            connection.execute(tables.labels.insert(), taken)
            self._put(connection, tables.waiting, ("stream", "item"), list(waiting.values()))
        connection.execute(
            tables.streams.update()
            .where(tables.streams.c.id == self._key)
            .values(
                next_row=stream.next_row + len(taken),
                late_labels=stream.late_labels + sum(one.late for one in receipts),
                moment=now,
            )
        )
        keyed = [
            {
                "stream": self._key,
                "key": part.key,
                "body": part.body,
                "receipt": encode(receipt._asdict()),
                "accepted_at": now,
            }
            for part, receipt in zip(parts, receipts, strict=True)
            if part.key
        ]
        if keyed:
            connection.execute(tables.batches.insert(), keyed)
        read = {part.source: part.position for part in parts if part.source is not None}
        positions = [{"source": source, "position": position} for source, position in read.items()]
        self._put(connection, tables.positions, ("stream", "source"), positions)
        return receipts

    def _answered(
        self, connection: sa.Connection, items: Sequence[str], now: float
    ) -> tuple[set[str], set[str]]:
        """Of these items, those that are closed, and those that are open though answered or cut."""
        closed = {row.item for row in self._of_items(connection, tables.answers, items)}
        again: set[str] = set()
        for row in self._of_items(connection, tables.open_items, items):
            if row.open_until > now:
                again.add(row.item)
        labels, chunks = tables.labels.c, tables.chunks.c
        for some in batched(items):
            cut = sa.select(labels.item, chunks.open_until).where(
                labels.stream == self._key,
                labels.item.in_(some),
                chunks.stream == labels.stream,
                chunks.id == labels.chunk,
                chunks.state == "cut",
            )
            for row in connection.execute(cut):
                (closed if row.open_until is None else again).add(row.item)
        return closed - again, again

    def _pairs(self, connection: sa.Connection, items: Sequence[str]) -> set[tuple[str, str]]:
        """Who has labelled which of these waiting items."""
        if self._counts_all:
            return set()
        labels = tables.labels.c
        return {
            (row.item, row.worker)
            for row in self._of_items(connection, tables.labels, items, labels.chunk.is_(None))
        }


def _rows(table: LabelTable) -> list[dict[str, Any]]:
    """The labels as they are kept."""
    n_rows = len(table.item_ids)
    weights: Sequence[float | None] = table.weights or [None] * n_rows
    groups, moments = table.groups or [None] * n_rows, table.timestamps or [None] * n_rows
    rows = []
    for row in range(n_rows):
        where = table.where(row)
        rows.append(
            {
                "item": encode_id(table.item_ids[row], "task", where),
                "worker": encode_id(table.worker_ids[row], "worker", where),
                "label": encode_id(table.labels[row], "label", where),
                "weight": weights[row],
                "group": None if groups[row] is None else encode_id(groups[row], "group", where),
                "timestamp": _moment(moments[row], where),
            }
        )
    return rows


def _moment(value: Any, where: str) -> str | None:
    if value is None:
        return None
    plain = value.item() if hasattr(value, "item") else value
    if not isinstance(plain, str | int | float):
        raise LabelError(
            f"{where}: the timestamp is neither text nor a number. Got {value!r}. Correct it."
        )
    return encode_id(plain, "timestamp", where)


def _is_name(value: object) -> bool:
    return (
        isinstance(value, str)
        and "\0" not in value
        and 0 < len(value.encode("utf-8", "replace")) <= tables.NAME_BYTES
    )
