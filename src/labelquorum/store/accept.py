"""Accept labels once, with their key and the position of their source; retract and revise them.

What becomes of labels that are late, repeated or retracted is in `rules.py`. Labels can be
retracted or replaced until they are cut into a chunk.

Some senders name what a label came from, not the label itself: an annotation that is changed, and
then deleted by its number. Each version of it is sent under a key of its own. The keys of one
annotation share a prefix, and a later version's key sorts after an earlier one's. So the key says
what a version replaces, and nothing else has to be stored.
"""

from collections.abc import Hashable, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import sqlalchemy as sa

from labelquorum.errors import ConflictError, LabelError, LabelQuorumError, LimitError
from labelquorum.ingest.worker_attributes import Attributes, merged
from labelquorum.store.batch import (
    CLOSED,
    Batch,
    Receipt,
    Row,
    Submission,
    decode,
    encode,
    encode_id,
    prepare,
)
from labelquorum.store.database import schema
from labelquorum.store.database.sql import among, pick, put
from labelquorum.store.failpoints import fault
from labelquorum.store.learner import AttributeRow
from labelquorum.store.new_classes import NewClasses
from labelquorum.store.stream_ref import StreamRef, rules_of


class WaitingItem(NamedTuple):
    """An item with labels that are not cut yet."""

    item: str
    n_labels: int
    first_row: int
    first_at: float
    ready_at: float | None


class Revision(NamedTuple):
    """A later version of something that was sent, or may have been."""

    prefix: str  # of the keys of all its versions
    submission: Submission  # the labels it holds now, perhaps none, under a key with that prefix


class Revised(NamedTuple):
    """What became of a revision."""

    accepted: int
    late: int  # set aside: their items are closed
    retracted: int  # labels of earlier versions that are gone or replaced
    outdated: bool = False  # this version or a later one had come: nothing was done

    @property
    def reason(self) -> str | None:
        """Why some of the labels do not count, and what to do; None where all do."""
        return CLOSED if self.late else None


class Acceptor:
    """Accepts labels for a stream; see `Stream`, which offers the same methods."""

    def __init__(self, ref: StreamRef) -> None:
        self._ref, self.new_classes = ref, NewClasses(ref)

    def accept(
        self,
        labels: Any,
        key: str | None = None,
        source: str | None = None,
        position: str | None = None,
    ) -> Receipt:
        """Accept labels; once this returns they are durable.

        Parameters
        ----------
        labels
            What `BiLA.partial_fit` takes. A table with an error changes nothing.
        key
            The sender's idempotency key: the same table under it is accepted once.
        source, position
            How far a source was read with these labels, in the sender's own format.
        """
        [receipt] = self.accept_all([Submission(labels, key, source, position)])
        if isinstance(receipt, LabelQuorumError):
            raise receipt
        return receipt

    def prepare(self, submission: Submission) -> Batch:
        """Read and check a submission, without the store."""
        return prepare(submission, self._ref.space)

    def accept_all(self, sent: Sequence[Submission | Batch]) -> list[Receipt | LabelQuorumError]:
        """Accept several tables in one transaction (group commit), as if each had come alone.

        A table with an error has that error in place of a receipt; the others are not affected.
        """
        outcomes: list[Receipt | LabelQuorumError | None] = [None] * len(sent)
        batches: dict[int, Batch] = {}
        for number, one in enumerate(sent):
            try:
                batches[number] = one if isinstance(one, Batch) else self.prepare(one)
            except LabelQuorumError as error:
                outcomes[number] = error
        with self.new_classes.admitting(), self._ref.write() as connection:
            seen = self.receipts(connection, [one.key for one in batches.values() if one.key])
            fresh: dict[int, Batch] = {}
            repeats: dict[int, str] = {}  # the same key again within this call
            for number, batch in batches.items():
                before = seen.get(batch.key) if batch.key else None
                if before is None:
                    fresh[number] = batch
                    if batch.key:
                        seen[batch.key] = (batch.body, None)
                elif before[0] != batch.body:
                    outcomes[number] = ConflictError(
                        f"Stream {self._ref.name!r}: key {batch.key!r} came before with other "
                        "labels, and a key names one table for good. Send these under another key."
                    )
                elif before[1] is None:
                    repeats[number] = batch.key or ""
                else:
                    outcomes[number] = _repeated(before[1])
            by_key: dict[str | None, Receipt | LabelQuorumError] = {}
            for number, refused in self._admit(connection, fresh).items():
                outcomes[number] = by_key[fresh.pop(number).key] = refused
            if fresh:
                receipts = self._take(connection, list(fresh.values()))
                for (number, batch), receipt in zip(fresh.items(), receipts, strict=True):
                    outcomes[number] = by_key[batch.key] = receipt
            for number, key in repeats.items():
                outcomes[number] = _repeated(by_key[key])
            fault("before_accept_commit")
        fault("after_accept")
        return [outcome for outcome in outcomes if outcome is not None]

    def position(self, source: str) -> str | None:
        """How far a source was read."""
        positions = schema.positions.c
        with self._ref.read() as connection:
            return connection.scalar(
                sa.select(positions.position).where(
                    positions.stream == self._ref.key, positions.source == source
                )
            )

    def receipts(
        self, connection: sa.Connection, keys: Sequence[str]
    ) -> dict[str, tuple[str, Receipt | None]]:
        """By key: the hash of what was accepted under it, and the receipt."""
        columns = ("key", "body", "receipt")
        found = pick(connection, schema.batches, columns, self._ref.key, "key", keys)
        return {row.key: (row.body, Receipt(**decode(row.receipt))) for row in found}

    def _take(self, connection: sa.Connection, batches: Sequence[Batch]) -> list[Receipt]:
        """Write labels, keys and positions."""
        now = self._ref.now()
        stream = self._ref.row(connection)
        rules = rules_of(stream.rules)
        items = list(dict.fromkeys(row.item for batch in batches for row in batch.rows))
        waiting = {
            row.item: WaitingItem(*row) for row in self._ref.of_items(connection, _WAITING, items)
        }
        before = dict(waiting)
        pairs = self._pairs(connection, list(waiting))
        others = [item for item in items if item not in waiting]
        closed, again = self.closed_or_open(connection, others, now)
        taken: list[tuple[Any, ...]] = []
        receipts: list[Receipt] = []
        number = first = stream.next_row
        for batch in batches:
            for row, score in zip(batch.rows, batch.scores or repeat(None), strict=False):
                item, pair = row.item, (row.item, row.worker)
                if item in closed:
                    continue
                taken.append((self._ref.key, number, *row, score))
                entry = waiting.get(item)
                if entry is None:
                    entry = WaitingItem(item, 0, number, now, now if item in again else None)
                number += 1
                if self._ref.counts_all or pair not in pairs:
                    pairs.add(pair)
                    n_labels, ready_at = entry.n_labels + 1, entry.ready_at
                    if ready_at is None and rules.is_full(n_labels):
                        ready_at = now
                    waiting[item] = WaitingItem(
                        item, n_labels, entry.first_row, entry.first_at, ready_at
                    )
            span = (first, number - 1) if number > first else (None, None)
            late = len(batch.rows) - (number - first)
            receipts.append(Receipt(number - first, late, batch.skipped, *span))
            first = number
        put(connection, schema.labels, ("stream", "row", *Row._fields, "score"), taken)
        self._put_waiting(connection, before, waiting)
        late_labels = stream.late_labels + sum(one.late for one in receipts)
        moved = {"key": self._ref.key, "row": number, "late": late_labels, "now": now}
        moved["held"] = stream.held_labels + len(taken)
        connection.execute(_MOVED, moved)
        self.write_receipts(connection, batches, receipts, now)
        return receipts

    def _put_waiting(
        self,
        connection: sa.Connection,
        before: Mapping[str, WaitingItem],
        after: Mapping[str, WaitingItem],
    ) -> None:
        """Write the waiting items that are new or have changed."""
        rows = [
            (self._ref.key, *entry) for item, entry in after.items() if before.get(item) != entry
        ]
        columns, keys = ("stream", *WaitingItem._fields), ("stream", "item")
        put(connection, schema.waiting, columns, rows, keys, changes=("n_labels", "ready_at"))

    def write_receipts(
        self,
        connection: sa.Connection,
        batches: Sequence[Batch],
        receipts: Sequence[Receipt],
        now: float,
    ) -> None:
        """Write the receipt of each key, and how far each source was read."""
        keyed = [
            (self._ref.key, batch.key, batch.body, encode(receipt._asdict()), now)
            for batch, receipt in zip(batches, receipts, strict=True)
            if batch.key
        ]
        columns = ("stream", "key", "body", "receipt", "accepted_at")
        put(connection, schema.batches, columns, keyed)
        read = {p.source: p.position for p in batches if p.source is not None}
        self._ref.put(connection, schema.positions, "source", ("source", "position"), read.items())

    def _admit(
        self, connection: sa.Connection, batches: Mapping[int, Batch]
    ) -> dict[int, LabelQuorumError]:
        """Admit new classes, workers and attributes; returns the error of each batch with one."""
        errors: dict[int, LabelQuorumError] = {**self.new_classes.errors(connection, batches)}

        def left() -> dict[int, Batch]:
            return {number: one for number, one in batches.items() if number not in errors}

        errors |= self._other_attributes(connection, left())[0]  # before anything is written
        errors |= self._admit_workers(connection, left())
        self._admit_attributes(connection, left())
        return errors

    def _admit_attributes(self, connection: sa.Connection, batches: Mapping[int, Batch]) -> None:
        """Keep new attributes of workers."""
        _, new = self._other_attributes(connection, batches)
        self._ref.put(connection, schema.attributes, "worker", AttributeRow._fields, new)

    def _other_attributes(
        self, connection: sa.Connection, batches: Mapping[int, Batch]
    ) -> tuple[dict[int, LabelQuorumError], list[AttributeRow]]:
        """An error per batch with another value than is known, and the rows that are new."""
        names = {worker for batch in batches.values() for worker in batch.attributes}
        if not names:
            return {}, []
        errors: dict[int, LabelQuorumError] = {}
        kept = {row.worker: row for row in self._ref.attributes(connection, names)}
        known = {worker: Attributes(*row[1:]) for worker, row in kept.items()}
        where = f"Stream {self._ref.name!r}"
        for number, batch in batches.items():
            theirs = {worker: known[worker] for worker in batch.attributes if worker in known}
            try:
                known |= merged([theirs, batch.attributes], where, decode)
            except LabelError as error:
                errors[number] = error
        rows = (AttributeRow(worker, *one) for worker, one in known.items())
        return errors, [row for row in rows if kept.get(row.worker) != row]

    def _admit_workers(
        self, connection: sa.Connection, batches: Mapping[int, Batch]
    ) -> dict[int, LabelQuorumError]:
        """Count new workers; returns an error per batch with too many."""
        errors: dict[int, LabelQuorumError] = {}
        crowd = schema.crowd
        names = {row.worker for batch in batches.values() for row in batch.rows}
        here = pick(connection, crowd, ["worker"], self._ref.key, "worker", names)
        known = {row.worker for row in here}
        if len(known) == len(names):
            return errors
        stream = self._ref.row(connection)
        most, n_crowd = rules_of(stream.rules).max_workers, stream.n_crowd
        newcomers: dict[str, None] = {}
        for number, batch in batches.items():
            new = dict.fromkeys(
                row.worker
                for row in batch.rows
                if row.worker not in known and row.worker not in newcomers
            )
            if new and n_crowd + len(newcomers) + len(new) > most:
                errors[number] = LimitError(
                    f"Stream {self._ref.name!r}: these labels bring {len(new)} new workers, and "
                    f"with {n_crowd + len(newcomers)} known that is more than max_workers={most}. "
                    "Nothing of them was taken. Raise the rule, or check the worker ids."
                )
            else:
                newcomers |= new
        if newcomers:
            rows = [(self._ref.key, worker) for worker in newcomers]
            put(connection, crowd, ("stream", "worker"), rows)
            connection.execute(
                schema.streams.update()
                .where(schema.streams.c.id == self._ref.key)
                .values(n_crowd=n_crowd + len(newcomers))
            )
        return errors

    def closed_or_open(
        self, connection: sa.Connection, items: Sequence[str], now: float
    ) -> tuple[set[str], set[str]]:
        """Of these items, those that are closed, and those that are open though answered or cut."""
        answers, opened = schema.answers.c, schema.open_items.c
        closed = {row.item for row in self._ref.of_items(connection, answers.item, items)}
        held = self._ref.of_items(connection, (opened.item, opened.open_until), list(closed))
        again = {row.item for row in held if row.open_until > now}
        cut = connection.execute(_CUT, {"stream": self._ref.key}).all()
        until = {row.id: row.open_until for row in cut}
        if until:
            last: dict[str, int] = {}  # the chunk each was cut into, which opens or closes it
            for table in (schema.labels.c, schema.gold.c):
                for row in self._ref.of_items(connection, (table.item, table.chunk), items):
                    if row.chunk in until:
                        last[row.item] = max(row.chunk, last.get(row.item, 0))
            again |= last.keys()
            again -= {item for item, chunk in last.items() if until[chunk] is None}
            closed |= last.keys()
        return closed - again, again

    def recount(self, connection: sa.Connection, items: Sequence[str]) -> None:
        """Recompute waiting items after some of their labels were deleted."""
        waiting, labels, gold = schema.waiting.c, schema.labels.c, schema.gold.c
        entries = {
            row.item: WaitingItem(*row) for row in self._ref.of_items(connection, _WAITING, items)
        }
        closed, again = self.closed_or_open(connection, items, self._ref.now())
        answered = closed | again  # what came in time finds its item open, however long it waits
        truths = self._ref.of_items(connection, (gold.item, gold.chunk), items)
        # Ready by a truth, without any label.
        wanted = answered.intersection(row.item for row in truths if row.chunk is None)
        columns = (labels.item, labels.row, labels.worker, labels.chunk)
        left: dict[str, list[Any]] = {item: [] for item in entries}
        for row in self._ref.of_items(connection, columns, items):
            if row.chunk is None:
                left[row.item].append(row)
        rules = self._ref.rules(connection)
        for item, rows in left.items():
            n_labels = len(rows) if self._ref.counts_all else len({row.worker for row in rows})
            first = min((row.row for row in rows), default=entries[item].first_row)
            entries[item] = entries[item]._replace(n_labels=n_labels, first_row=first)
            if item not in answered and not rules.is_full(n_labels):
                entries[item] = entries[item]._replace(ready_at=None)
        gone = [item for item, rows in left.items() if not rows and item not in wanted]
        idle = among(connection, waiting.item, gone)
        connection.execute(schema.waiting.delete().where(waiting.stream == self._ref.key, idle))
        kept = [entry for item, entry in entries.items() if item not in gone]
        self._ref.put(connection, schema.waiting, "item", WaitingItem._fields, kept)

    def _pairs(self, connection: sa.Connection, items: Sequence[str]) -> set[tuple[str, str]]:
        """The (item, worker) pairs of the labels of these waiting items."""
        if self._ref.counts_all:
            return set()
        labels = schema.labels.c
        found = self._ref.of_items(connection, (labels.item, labels.worker, labels.chunk), items)
        return {(row.item, row.worker) for row in found if row.chunk is None}

    # ── labels that are retracted or replaced ─────────────────────────────────────────────

    def retract(self, task: Hashable, worker: Hashable) -> int:
        """Delete a worker's labels of a task that is not cut yet; returns how many there were."""
        labels = schema.labels.c
        theirs = sa.and_(
            labels.item == encode_id(task, "task", "retract"),
            labels.worker == encode_id(worker, "worker", "retract"),
        )
        with self._ref.write() as connection:
            n_gone = self._remove(connection, theirs)
            if not n_gone:
                raise LabelError(
                    f"No label of worker {worker!r} on task {task!r} is waiting: it never came, "
                    "or its chunk was cut. Check both ids, or send a correction."
                )
        return n_gone

    def revise_all(self, revisions: Sequence[Revision]) -> list[Revised | LabelQuorumError]:
        """Replace the labels of earlier versions, in one transaction; idempotent.

        A revision with an error has that error in place of its result, and changes nothing; the
        others are not affected. Labels that are cut stay as they are.
        """
        outcomes: list[Revised | LabelQuorumError] = []
        prepared: list[Batch | LabelQuorumError] = []
        for revision in revisions:
            try:
                prepared.append(self.prepare(revision.submission))
            except LabelQuorumError as error:
                prepared.append(error)
        with self.new_classes.admitting(), self._ref.write() as connection:
            for revision, batch in zip(revisions, prepared, strict=True):
                if isinstance(batch, Batch):
                    outcomes.append(self._revise(connection, revision.prefix, batch))
                else:
                    outcomes.append(batch)
            fault("before_accept_commit")
        fault("after_accept")
        return outcomes

    def _revise(
        self, connection: sa.Connection, prefix: str, batch: Batch
    ) -> Revised | LabelQuorumError:
        rows = self._earlier(connection, prefix, batch.key or "")
        if rows is None:
            return Revised(0, 0, 0, outdated=True)
        errors = self._admit(connection, {0: batch})
        if errors:
            return errors[0]
        [receipt] = self._take(connection, [batch])
        # After the new ones are in: an item that keeps a label keeps its place in the order.
        n_gone = 0
        if rows:
            n_gone = self._remove(connection, among(connection, schema.labels.c.row, rows))
        return Revised(receipt.accepted, receipt.late, n_gone)

    def withdraw(
        self, connection: sa.Connection, versions: Sequence[Sequence[str]]
    ) -> dict[str, int]:
        """Delete the labels of earlier versions, of many at once; see `Stream.withdraw`."""
        batches, gone, outdated = [], list[int](), 0
        for prefix, key in versions:
            rows = self._earlier(connection, prefix, key)
            if rows is None:
                outdated += 1
                continue
            batches.append(self.prepare(Submission({}, key)))
            gone += rows
        self._take(connection, batches)
        n_gone = self._remove(connection, among(connection, schema.labels.c.row, gone))
        return {"retracted": n_gone, "outdated": outdated}

    def _earlier(self, connection: sa.Connection, prefix: str, key: str) -> list[int] | None:
        """The rows of the versions before this one; None if it or a later one had come."""
        assert prefix and key.startswith(prefix)
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)  # the first text after those with the prefix
        its = {"stream": self._ref.key, "prefix": prefix, "end": end}
        earlier = connection.execute(_EARLIER, its).all()
        if earlier and earlier[-1].key >= key:
            return None
        receipts = [decode(version.receipt) for version in earlier]
        spans = [(one["first_row"], one["last_row"]) for one in receipts if one["accepted"]]
        return [row for first, last in spans for row in range(first, last + 1)]

    def _remove(self, connection: sa.Connection, which: sa.ColumnElement[bool]) -> int:
        """Delete labels that are not cut, and recompute their items."""
        labels = schema.labels.c
        uncut = sa.and_(labels.stream == self._ref.key, labels.chunk.is_(None))
        items = list(connection.scalars(sa.select(labels.item).where(uncut, which).distinct()))
        n_gone = connection.execute(schema.labels.delete().where(uncut, which)).rowcount
        self._ref.release(connection, n_gone)
        self.recount(connection, items)
        return n_gone


# Built once: building a statement takes longer than executing it.
_MOVED = (
    schema.streams.update()
    .where(schema.streams.c.id == sa.bindparam("key"))
    .values(
        next_row=sa.bindparam("row"),
        late_labels=sa.bindparam("late"),
        held_labels=sa.bindparam("held"),
        moment=sa.bindparam("now"),
    )
)
_batches = schema.batches.c
_EARLIER = (
    sa.select(_batches.key, _batches.receipt)
    .where(
        _batches.stream == sa.bindparam("stream"),
        _batches.key >= sa.bindparam("prefix"),
        _batches.key < sa.bindparam("end"),
    )
    .order_by(_batches.key)
)
_WAITING = tuple(schema.waiting.c[name] for name in WaitingItem._fields)
_CUT = sa.select(schema.chunks.c.id, schema.chunks.c.open_until).where(
    schema.chunks.c.stream == sa.bindparam("stream"), schema.chunks.c.state == "cut"
)


def _repeated(first: Receipt | LabelQuorumError) -> Receipt | LabelQuorumError:
    """The outcome for the same table under the same key."""
    return first._replace(repeated=True) if isinstance(first, Receipt) else first
