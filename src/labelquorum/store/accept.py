"""Accept labels once, with their key and the position of their source; retract and revise them.

What becomes of labels that are late, repeated or retracted is in `rules.py`. Labels can be
retracted or replaced until they are cut into a chunk.

Some senders name what a label came from, not the label itself: an annotation that is changed, and
then deleted by its number. Each state of it is sent under a key of its own. The keys of one
annotation begin alike, and a later state's sorts after an earlier one's. So what is sent says by
its key what it replaces, and nothing else has to be remembered.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from labelquorum.errors import ConflictError, LabelError, LabelQuorumError, LimitError
from labelquorum.store.batch import Batch, Receipt, Row, Submission, prepare
from labelquorum.store.codec import decode, encode, encode_id
from labelquorum.store.database import schema
from labelquorum.store.database.sql import among, pick, put
from labelquorum.store.failpoints import fault
from labelquorum.store.queries import Reader
from labelquorum.store.stream_ref import rules_of

__all__ = ["Entry", "Inlet", "Recall", "Receipt", "Revised", "Revision", "Submission"]


class Entry(NamedTuple):
    """An item that waits."""

    item: str
    n_labels: int
    first_row: int
    first_at: float
    ready_at: float | None


class Inlet(Reader):
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
        [receipt] = self.accept_all([Submission(labels, key, source, position)])
        if isinstance(receipt, LabelQuorumError):
            raise receipt
        return receipt

    def prepare(self, sent: Submission) -> Batch:
        """Read and check what is to be sent, without the store."""
        return prepare(sent, self._space)

    def accept_all(self, sent: Sequence[Submission | Batch]) -> list[Receipt | LabelQuorumError]:
        """Take several tables in one transaction, as if each had come alone, one after the other.

        A table that is refused has its error in place of a receipt, and the others do not mind.
        A disk takes as long for one commit as for another, so many small tables are best taken
        together.
        """
        outcomes: list[Receipt | LabelQuorumError | None] = [None] * len(sent)
        batches: dict[int, Batch] = {}
        for number, one in enumerate(sent):
            try:
                batches[number] = one if isinstance(one, Batch) else self.prepare(one)
            except LabelQuorumError as error:
                outcomes[number] = error
        with self._store.write() as connection:
            seen = self._seen(connection, [one.key for one in batches.values() if one.key])
            fresh: dict[int, Batch] = {}
            twins: dict[int, str] = {}  # sent again, within this very call
            for number, batch in batches.items():
                before = seen.get(batch.key) if batch.key else None
                if before is None:
                    fresh[number] = batch
                    if batch.key:
                        seen[batch.key] = (batch.body, None)
                elif before[0] != batch.body:
                    outcomes[number] = ConflictError(
                        f"Stream {self.name!r}: key {batch.key!r} came before with other labels, "
                        "and a key names one table for good. Send these under a key of their own."
                    )
                elif before[1] is None:
                    twins[number] = batch.key or ""
                else:
                    outcomes[number] = _again(before[1])
            by_key: dict[str | None, Receipt | LimitError] = {}
            for number, refusal in self._welcome(connection, fresh).items():
                outcomes[number] = by_key[fresh.pop(number).key] = refusal
            if fresh:
                receipts = self._take(connection, list(fresh.values()))
                for (number, batch), receipt in zip(fresh.items(), receipts, strict=True):
                    outcomes[number] = by_key[batch.key] = receipt
            for number, key in twins.items():
                outcomes[number] = _again(by_key[key])
            fault("before_accept_commit")
        fault("after_accept")
        return [outcome for outcome in outcomes if outcome is not None]

    def position(self, source: str) -> str | None:
        """How far a source was read."""
        positions = schema.positions.c
        with self._store.read() as connection:
            return connection.scalar(
                sa.select(positions.position).where(
                    positions.stream == self._key, positions.source == source
                )
            )

    def _seen(
        self, connection: sa.Connection, keys: Sequence[str]
    ) -> dict[str, tuple[str, Receipt | None]]:
        """What came under these keys before, and what was answered."""
        columns = ("key", "body", "receipt")
        found = pick(connection, schema.batches, columns, self._key, "key", keys)
        return {row.key: (row.body, Receipt(**decode(row.receipt))) for row in found}

    def _take(self, connection: sa.Connection, batches: Sequence[Batch]) -> list[Receipt]:
        """Write labels, keys and positions."""
        now = self._store.now()
        stream = self._row(connection)
        rules = rules_of(stream.rules)
        items = list(dict.fromkeys(row.item for batch in batches for row in batch.rows))
        waiting = {
            row.item: Entry(*row)
            for row in self._of_items(connection, _columns(schema.waiting, Entry._fields), items)
        }
        before = dict(waiting)
        pairs = self._pairs(connection, list(waiting))
        others = [item for item in items if item not in waiting]
        closed, again = self._answered(connection, others, now)
        taken: list[tuple[Any, ...]] = []
        receipts: list[Receipt] = []
        number = first = stream.next_row
        for batch in batches:
            for row in batch.rows:
                item, pair = row.item, (row.item, row.worker)
                if item in closed:
                    continue
                taken.append((self._key, number, *row))
                entry = waiting.get(item)
                if entry is None:
                    entry = Entry(item, 0, number, now, now if item in again else None)
                number += 1
                if self._counts_all or pair not in pairs:
                    pairs.add(pair)
                    n_labels, ready_at = entry.n_labels + 1, entry.ready_at
                    if ready_at is None and rules.is_full(n_labels):
                        ready_at = now
                    waiting[item] = Entry(item, n_labels, entry.first_row, entry.first_at, ready_at)
            span = (first, number - 1) if number > first else (None, None)
            late = len(batch.rows) - (number - first)
            receipts.append(Receipt(number - first, late, batch.skipped, *span))
            first = number
        put(connection, schema.labels, ("stream", "row", *Row._fields), taken)
        self._wait(connection, before, waiting)
        late_labels = stream.late_labels + sum(one.late for one in receipts)
        moved = {"key": self._key, "row": number, "late": late_labels, "now": now}
        connection.execute(_MOVED, moved)
        self._sign(connection, batches, receipts, now)
        return receipts

    def _wait(
        self, connection: sa.Connection, before: Mapping[str, Entry], after: Mapping[str, Entry]
    ) -> None:
        """Write down what waits: items that are new, and of others what has changed."""
        rows = [(self._key, *entry) for item, entry in after.items() if before.get(item) != entry]
        columns, keys = ("stream", *Entry._fields), ("stream", "item")
        put(connection, schema.waiting, columns, rows, keys, changes=("n_labels", "ready_at"))

    def _sign(
        self,
        connection: sa.Connection,
        batches: Sequence[Batch],
        receipts: Sequence[Receipt],
        now: float,
    ) -> None:
        """Write down what came under which key, and how far each source was read."""
        keyed = [
            (self._key, batch.key, batch.body, encode(receipt._asdict()), now)
            for batch, receipt in zip(batches, receipts, strict=True)
            if batch.key
        ]
        columns = ("stream", "key", "body", "receipt", "accepted_at")
        put(connection, schema.batches, columns, keyed)
        read = {p.source: p.position for p in batches if p.source is not None}
        self._put(connection, schema.positions, "source", ("source", "position"), read.items())

    def _welcome(
        self, connection: sa.Connection, batches: Mapping[int, Batch]
    ) -> dict[int, LimitError]:
        """Count who is new to the crowd; those batches that bring more than the rules allow."""
        crowd = schema.crowd
        names = {row.worker for batch in batches.values() for row in batch.rows}
        here = pick(connection, crowd, ["worker"], self._key, "worker", names)
        known = {row.worker for row in here}
        if len(known) == len(names):
            return {}
        stream = self._row(connection)
        most, n_crowd = rules_of(stream.rules).max_workers, stream.n_crowd
        newcomers: dict[str, None] = {}
        refused: dict[int, LimitError] = {}
        for number, batch in batches.items():
            new = dict.fromkeys(
                row.worker
                for row in batch.rows
                if row.worker not in known and row.worker not in newcomers
            )
            if new and n_crowd + len(newcomers) + len(new) > most:
                refused[number] = LimitError(
                    f"Stream {self.name!r}: these labels bring {len(new)} new workers, and with "
                    f"{n_crowd + len(newcomers)} known that is more than max_workers={most}. "
                    "Nothing of them was taken. Raise the rule, or check the worker ids."
                )
            else:
                newcomers |= new
        if newcomers:
            rows = [(self._key, worker) for worker in newcomers]
            put(connection, crowd, ("stream", "worker"), rows)
            connection.execute(
                schema.streams.update()
                .where(schema.streams.c.id == self._key)
                .values(n_crowd=n_crowd + len(newcomers))
            )
        return refused

    def _answered(
        self, connection: sa.Connection, items: Sequence[str], now: float
    ) -> tuple[set[str], set[str]]:
        """Of these items, those that are closed, and those that are open though answered or cut."""
        answers, opened = schema.answers.c, schema.open_items.c
        closed = {row.item for row in self._of_items(connection, answers.item, items)}
        held = self._of_items(connection, (opened.item, opened.open_until), list(closed))
        again = {row.item for row in held if row.open_until > now}
        cut = connection.execute(_CUT, {"stream": self._key}).all()
        until = {row.id: row.open_until for row in cut}
        if until:
            last: dict[str, int] = {}  # the chunk each was cut into, which opens or closes it
            for table in (schema.labels.c, schema.gold.c):
                for row in self._of_items(connection, (table.item, table.chunk), items):
                    if row.chunk in until:
                        last[row.item] = max(row.chunk, last.get(row.item, 0))
            again |= last.keys()
            again -= {item for item, chunk in last.items() if until[chunk] is None}
            closed |= last.keys()
        return closed - again, again

    def _recount(self, connection: sa.Connection, items: Sequence[str]) -> None:
        """Make waiting items as ready as if labels that are gone now had never come."""
        waiting, labels, gold = schema.waiting.c, schema.labels.c, schema.gold.c
        entries = {
            row.item: Entry(*row)
            for row in self._of_items(connection, _columns(schema.waiting, Entry._fields), items)
        }
        closed, again = self._answered(connection, items, self._store.now())
        answered = closed | again  # what came in time finds its item open, however long it waits
        told = self._of_items(connection, (gold.item, gold.chunk), items)
        # By a truth, without any label.
        wanted = answered.intersection(row.item for row in told if row.chunk is None)
        columns = (labels.item, labels.row, labels.worker, labels.chunk)
        left: dict[str, list[Any]] = {item: [] for item in entries}
        for row in self._of_items(connection, columns, items):
            if row.chunk is None:
                left[row.item].append(row)
        rules = rules_of(self._row(connection).rules)
        for item, rows in left.items():
            n_labels = len(rows) if self._counts_all else len({row.worker for row in rows})
            first = min((row.row for row in rows), default=entries[item].first_row)
            entries[item] = entries[item]._replace(n_labels=n_labels, first_row=first)
            if item not in answered and not rules.is_full(n_labels):
                entries[item] = entries[item]._replace(ready_at=None)
        gone = [item for item, rows in left.items() if not rows and item not in wanted]
        idle = among(connection, waiting.item, gone)
        connection.execute(schema.waiting.delete().where(waiting.stream == self._key, idle))
        kept = [entry for item, entry in entries.items() if item not in gone]
        self._put(connection, schema.waiting, "item", Entry._fields, kept)

    def _pairs(self, connection: sa.Connection, items: Sequence[str]) -> set[tuple[str, str]]:
        """Who has labelled which of these waiting items."""
        if self._counts_all:
            return set()
        labels = schema.labels.c
        found = self._of_items(connection, (labels.item, labels.worker, labels.chunk), items)
        return {(row.item, row.worker) for row in found if row.chunk is None}


_MOVED = (
    schema.streams.update()
    .where(schema.streams.c.id == sa.bindparam("key"))
    .values(
        next_row=sa.bindparam("row"), late_labels=sa.bindparam("late"), moment=sa.bindparam("now")
    )
)
_CUT = sa.select(schema.chunks.c.id, schema.chunks.c.open_until).where(
    schema.chunks.c.stream == sa.bindparam("stream"), schema.chunks.c.state == "cut"
)


def _again(first: Receipt | LimitError) -> Receipt | LimitError:
    """What is answered to the same table under the same key."""
    return first._replace(repeated=True) if isinstance(first, Receipt) else first


def _columns(table: sa.Table, names: Sequence[str]) -> tuple[sa.Column[Any], ...]:
    return tuple(table.c[name] for name in names)


# ── labels that are taken back or replaced ───────────────────────────────────────────────


class Revision(NamedTuple):
    """A later state of something that was sent, or may have been."""

    beginning: str
    """How the keys of all its states begin."""
    sent: Submission
    """The labels it holds now, perhaps none, under a key that begins so."""


class Revised(NamedTuple):
    """What became of a revision."""

    accepted: int
    late: int  # set aside: their items are closed
    retracted: int  # labels of earlier states that are gone, or another stands in their place
    outdated: bool = False  # this state or a later one had come: nothing was done


class Recall(Inlet):
    """What can be taken back from a stream; see `Stream`."""

    def retract(self, task: Hashable, worker: Hashable) -> int:
        """Take back a worker's labels of a task that is not cut yet; say how many there were."""
        labels = schema.labels.c
        his = sa.and_(
            labels.item == encode_id(task, "task", "retract"),
            labels.worker == encode_id(worker, "worker", "retract"),
        )
        with self._store.write() as connection:
            n_gone = self._remove(connection, his)
            if not n_gone:
                raise LabelError(
                    f"No label of worker {worker!r} on task {task!r} is waiting: it never came, "
                    "or its chunk was cut. Check both ids, or send a correction."
                )
        return n_gone

    def revise_all(self, revisions: Sequence[Revision]) -> list[Revised | LabelQuorumError]:
        """Put labels in the place of those that came under keys that begin alike, once each.

        It is one transaction. A revision that is refused has its error in the place of what became
        of it; it changes nothing, and the others do not mind. What was cut stays as it is.
        """
        outcomes: list[Revised | LabelQuorumError] = []
        prepared: list[Batch | LabelQuorumError] = []
        for revision in revisions:
            try:
                prepared.append(self.prepare(revision.sent))
            except LabelQuorumError as error:
                prepared.append(error)
        with self._store.write() as connection:
            for revision, batch in zip(revisions, prepared, strict=True):
                if isinstance(batch, Batch):
                    outcomes.append(self._revise(connection, revision.beginning, batch))
                else:
                    outcomes.append(batch)
            fault("before_accept_commit")
        fault("after_accept")
        return outcomes

    def _revise(
        self, connection: sa.Connection, beginning: str, batch: Batch
    ) -> Revised | LabelQuorumError:
        batches, labels = schema.batches.c, schema.labels.c
        key = batch.key or ""
        assert beginning and key.startswith(beginning)
        end = beginning[:-1] + chr(ord(beginning[-1]) + 1)  # the first text that does not begin so
        earlier = connection.execute(
            sa.select(batches.key, batches.receipt)
            .where(batches.stream == self._key, batches.key >= beginning, batches.key < end)
            .order_by(batches.key)
        ).all()
        if earlier and earlier[-1].key >= key:
            return Revised(0, 0, 0, outdated=True)
        refused = self._welcome(connection, {0: batch})
        if refused:
            return refused[0]
        [receipt] = self._take(connection, [batch])
        # After the new ones are in: an item that keeps a label keeps its place in the order.
        n_gone = 0
        for state in earlier:
            rows = decode(state.receipt)
            if rows["first_row"] is not None:
                span = labels.row.between(rows["first_row"], rows["last_row"])
                n_gone += self._remove(connection, span)
        return Revised(receipt.accepted, receipt.late, n_gone)

    def _remove(self, connection: sa.Connection, which: sa.ColumnElement[bool]) -> int:
        """Delete labels that are not cut, and count anew what their items have left."""
        labels = schema.labels.c
        uncut = sa.and_(labels.stream == self._key, labels.chunk.is_(None))
        items = list(connection.scalars(sa.select(labels.item).where(uncut, which).distinct()))
        n_gone = connection.execute(schema.labels.delete().where(uncut, which)).rowcount
        self._recount(connection, items)
        return n_gone
