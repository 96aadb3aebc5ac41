"""One durable stream: labels are accepted, chunks are cut, the model advances.

Five rules (`docs/store.md`). Labels are accepted with their key and the position of their source in
one transaction. A cut is a transaction of its own. The update is a pure function, outside any
transaction. One transaction then puts the next model in place of the one it was made from, gives
the answers, and deletes the raw labels. So a chunk is applied once or not at all, and what was
acknowledged is never lost.
"""

import inspect
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from safetensors.numpy import load as parse_arrays

from labelquorum.errors import LabelError, StateError, StoreError
from labelquorum.ingest.events import LabelTable
from labelquorum.ingest.formats import read_labels
from labelquorum.learn.door import Estimator
from labelquorum.learn.estimator import estimator
from labelquorum.learn.memory import memory_parts
from labelquorum.learn.snapshot import Snapshot
from labelquorum.record import tables
from labelquorum.record.chunking import DAY, Rules
from labelquorum.record.faults import fault
from labelquorum.record.model import (
    OpenRow,
    Outcome,
    Work,
    WorkerRow,
    learn,
    memory_of,
    model_of,
    worker_places,
)
from labelquorum.record.tables import decode, encode, encode_id

if TYPE_CHECKING:
    from labelquorum.record.store import Store

__all__ = ["Applied", "Configuration", "ConflictError", "Cut", "Given", "Receipt", "Stream"]

ATTEMPTS = 3
"""A chunk that failed so often is quarantined."""

_AT_ONCE = 10_000  # values in one statement; SQLite takes 32,766
_NOT_HERE = {
    "open_items": "Set grace= of its rules instead.",
    "warmup_items": "Set chunk_items= of its rules instead.",
    "history": "Send those labels instead.",
}


class ConflictError(StoreError):
    """What was asked does not go with what is already there."""


class Configuration(NamedTuple):
    """What a stream learns by."""

    method: str
    settings: str  # JSON
    configuration: str  # SHA-256 of the two


class Receipt(NamedTuple):
    """What became of the labels that were sent; they are durable once one has it."""

    accepted: int
    late: int  # set aside: their items are closed
    skipped: Mapping[str, int]  # bad rows left out, by reason
    first_row: int | None
    last_row: int | None
    repeated: bool = False  # they were accepted before under this key: nothing is counted twice


class Cut(NamedTuple):
    """A chunk that was cut."""

    id: int
    first_row: int
    last_row: int
    n_items: int
    n_labels: int
    seed: int
    configuration: str


class Applied(NamedTuple):
    """A chunk that was applied."""

    id: int
    version: int  # of the model it made
    n_items: int
    n_labels: int
    result: Mapping[str, Any]


class Given(NamedTuple):
    """The answer given to an item."""

    item_id: Hashable
    label: Hashable
    confidence: float
    probs: NDArray[np.float32]  # (C,) of the classes known then
    n_labels: int
    chunk: int


class Stream:
    """One stream of a store; made by `Store.create` and `Store.stream`."""

    def __init__(self, store: "Store", key: int, name: str, configuration: Configuration) -> None:
        self.name = name
        self.configuration = configuration
        self._store, self._key = store, key

    # ── labels in ────────────────────────────────────────────────────────────────────────

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
        with self._store.write() as connection:
            before = self._receipt(connection, key, body)
            if before is not None:
                return before
            receipt = self._take(connection, rows, table)
            if key is not None:
                connection.execute(
                    tables.batches.insert().values(
                        stream=self._key,
                        key=key,
                        body=body,
                        receipt=encode(receipt._asdict()),
                        accepted_at=self._store.now(),
                    )
                )
            if source is not None:
                connection.execute(
                    self._store.upsert(tables.positions, "stream", "source"),
                    {"stream": self._key, "source": source, "position": position},
                )
            fault("before_accept_commit")
        fault("after_accept")
        return receipt

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
            left = connection.scalar(
                sa.select(sa.func.count()).where(
                    labels.stream == self._key, labels.item == item, labels.chunk.is_(None)
                )
            )
            counted = n_gone if self._counts_all else 1
            connection.execute(
                tables.waiting.update().where(here).values(n_labels=waiting.n_labels - counted)
                if left
                else tables.waiting.delete().where(here)
            )
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

    def _receipt(self, connection: sa.Connection, key: str | None, body: str) -> Receipt | None:
        """What was answered when this came before."""
        batches = tables.batches.c
        if key is None:
            return None
        found = connection.execute(
            sa.select(batches.body, batches.receipt).where(
                batches.stream == self._key, batches.key == key
            )
        ).one_or_none()
        if found is None:
            return None
        if found.body != body:
            raise ConflictError(
                f"Stream {self.name!r}: key {key!r} came before with other labels, and a key names "
                "one table for good. Send these under a key of their own."
            )
        return Receipt(**{**decode(found.receipt), "repeated": True})

    def _take(
        self, connection: sa.Connection, rows: Sequence[dict[str, Any]], table: LabelTable
    ) -> Receipt:
        now = self._store.now()
        stream = self._row(connection)
        rules = Rules(**decode(stream.rules))
        items = list(dict.fromkeys(row["item"] for row in rows))
        waiting = {
            row.item: {**row._mapping} for row in self._of_items(connection, tables.waiting, items)
        }
        others = [item for item in items if item not in waiting]
        closed, again = self._answered(connection, others, now)
        pairs = self._pairs(connection, list(waiting))
        taken: list[dict[str, Any]] = []
        for row in rows:
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
        late = len(rows) - len(taken)
        if taken:
            connection.execute(tables.labels.insert(), taken)
            upsert = self._store.upsert(tables.waiting, "stream", "item")
            connection.execute(upsert, list(waiting.values()))
        connection.execute(
            tables.streams.update()
            .where(tables.streams.c.id == self._key)
            .values(
                next_row=stream.next_row + len(taken),
                late_labels=stream.late_labels + late,
                moment=now,
            )
        )
        first = stream.next_row if taken else None
        last = stream.next_row + len(taken) - 1 if taken else None
        return Receipt(len(taken), late, dict(table.skipped), first, last)

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
        for some in _batched(items):
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

    # ── chunks ───────────────────────────────────────────────────────────────────────────

    def cut(self, flush: bool = False) -> Cut | None:
        """Cut a chunk if it is time; None if it is not.

        Parameters
        ----------
        flush
            Cut what is there, ready or not: no more labels will come.
        """
        with self._store.read() as connection:
            if not self._ready(connection, self._store.now(), flush):
                return None
        with self._store.write() as connection:
            now = self._store.now()
            items = self._ready(connection, now, flush)
            if not items:
                return None
            stream = self._row(connection)
            labels, waiting = tables.labels.c, tables.waiting.c
            for some in _batched(items):
                connection.execute(
                    tables.labels.update()
                    .where(
                        labels.stream == self._key, labels.chunk.is_(None), labels.item.in_(some)
                    )
                    .values(chunk=stream.next_chunk)
                )
                connection.execute(
                    tables.waiting.delete().where(
                        waiting.stream == self._key, waiting.item.in_(some)
                    )
                )
            first, last, n_labels = connection.execute(
                sa.select(sa.func.min(labels.row), sa.func.max(labels.row), sa.func.count()).where(
                    labels.stream == self._key, labels.chunk == stream.next_chunk
                )
            ).one()
            cut = Cut(
                stream.next_chunk,
                first,
                last,
                len(items),
                n_labels,
                self._model._seed,
                self.configuration.configuration,
            )
            connection.execute(
                tables.chunks.insert().values(
                    stream=self._key,
                    **cut._asdict(),
                    state="cut",
                    cut_at=now,
                    open_until=Rules(**decode(stream.rules)).open_until(now),
                    attempts=0,
                    labels_kept=1,
                )
            )
            connection.execute(
                tables.streams.update()
                .where(tables.streams.c.id == self._key)
                .values(next_chunk=stream.next_chunk + 1, moment=now)
            )
            fault("before_cut_commit")
        fault("after_cut")
        return cut

    def _ready(self, connection: sa.Connection, now: float, flush: bool) -> list[str]:
        """The items of the chunk that is to be cut now, in the order of their first labels."""
        waiting = tables.waiting.c
        rules = Rules(**decode(self._row(connection).rules))
        here, since = waiting.stream == self._key, rules.waited_since(now)
        ready: sa.ColumnElement[bool] = waiting.ready_at.is_not(None)
        if since is not None:
            ready = ready | (waiting.first_at <= since)
        if flush:
            ready = sa.true()
        else:
            # Who is ready by waiting is so since the wait was over.
            waited = waiting.first_at + (rules.max_wait or 0)
            ready_since = sa.func.min(sa.func.coalesce(waiting.ready_at, waited))
            n_ready, first = connection.execute(
                sa.select(sa.func.count(), ready_since).where(here, ready)
            ).one()
            if not rules.is_due(n_ready, first, now):
                return []
        chosen = sa.select(waiting.item).where(here, ready).order_by(waiting.first_row)
        return list(connection.scalars(chosen.limit(rules.chunk_items)))

    def advance(self, chunk: Cut | int) -> Applied:
        """Learn from a chunk that was cut, answer it, and commit; once, however often it is asked.

        Chunks are applied in the order they were cut. One that cannot be learned from is an error
        that names the reason; after three it is quarantined, its labels are kept, and the stream
        goes on without it.
        """
        number = chunk.id if isinstance(chunk, Cut) else chunk
        with self._store.read() as connection:
            row = self._chunk(connection, number)
            if row.state == "applied":
                return _applied(row)
            if row.state == "quarantined":
                raise StateError(
                    f"Chunk {number} of stream {self.name!r} is quarantined: {row.error}"
                )
            chunks = tables.chunks.c
            first = connection.scalar(
                sa.select(sa.func.min(chunks.id)).where(
                    chunks.stream == self._key, chunks.state == "cut"
                )
            )
            if first != number:
                raise ConflictError(
                    f"Chunk {number} of stream {self.name!r} has to wait: chunks are applied as "
                    f"they were cut, and chunk {first} comes before it."
                )
            work = self._work(connection, row)
        try:
            outcome = learn(work)
        except Exception as error:
            raise self._failed(number, error) from error
        fault("after_update")
        return self._apply(number, outcome)

    def settle(self, flush: bool = False) -> list[Applied]:
        """Cut all that is due and apply all that is cut; what fails is tried until it is set aside.

        This is also how a stream goes on after a restart.
        """
        while self.cut(flush):
            pass
        applied = []
        for number in self._to_apply():
            for _ in range(ATTEMPTS):
                try:
                    applied.append(self.advance(number))
                    break
                except StateError:
                    continue
        return applied

    def _to_apply(self) -> list[int]:
        chunks = tables.chunks.c
        with self._store.read() as connection:
            cut = sa.select(chunks.id).where(chunks.stream == self._key, chunks.state == "cut")
            return list(connection.scalars(cut.order_by(chunks.id)))

    def _work(self, connection: sa.Connection, chunk: Any) -> Work:
        """Read what learning from a chunk needs, and no more."""
        labels = tables.labels.c
        rows = connection.execute(
            sa.select(tables.labels)
            .where(labels.stream == self._key, labels.chunk == chunk.id)
            .order_by(labels.row)
        ).all()
        items = list(dict.fromkeys(row.item for row in rows))
        open_rows = [
            OpenRow(row.item, row.evidence, row.note)
            for row in self._of_items(connection, tables.open_items, items)
        ]
        names = list(dict.fromkeys(row.worker for row in rows))
        places = {place for row in open_rows for place in worker_places(row)}
        return Work(
            method=self.configuration.method,
            settings=self.configuration.settings,
            **self._shared(connection),
            workers=self._workers(connection, names, places),
            open_items=sorted(open_rows),
            table=_table(rows, f"chunk {chunk.id}"),
            keeps_open=chunk.open_until is not None,
        )

    def _shared(self, connection: sa.Connection) -> dict[str, Any]:
        models = tables.models.c
        columns = (models.version, models.classes, models.n_workers, models.shared)
        found = connection.execute(sa.select(*columns).where(models.stream == self._key)).one()
        return {**found._mapping}

    def _workers(
        self, connection: sa.Connection, names: Sequence[str], places: Iterable[int]
    ) -> list[WorkerRow]:
        """The workers of these names and these places, by place."""
        workers = tables.workers.c
        found: set[WorkerRow] = set()
        for column, values in ((workers.worker, names), (workers.place, sorted(places))):
            for some in _batched(values):
                known = sa.select(*(workers[name] for name in WorkerRow._fields)).where(
                    workers.stream == self._key, column.in_(some)
                )
                found.update(WorkerRow(*row) for row in connection.execute(known))
        return sorted(found)

    def _apply(self, number: int, outcome: Outcome) -> Applied:
        """Commit: one transaction, from one version of the model to the next."""
        models, chunks = tables.models.c, tables.chunks.c
        with self._store.write() as connection:
            chunk = self._chunk(connection, number)
            if chunk.state == "applied":  # somebody was quicker
                return _applied(chunk)
            swapped = connection.execute(
                tables.models.update()
                .where(models.stream == self._key, models.version == outcome.version)
                .values(
                    version=outcome.version + 1,
                    classes=outcome.classes,
                    n_workers=outcome.n_workers,
                    shared=outcome.shared,
                )
            )
            if swapped.rowcount != 1:
                raise ConflictError(
                    f"Stream {self.name!r}: chunk {number} was learned from with version "
                    f"{outcome.version} of the model, which is no longer the present one. "
                    "Advance it again."
                )
            self._put(connection, tables.workers, ("stream", "place"), outcome.workers)
            fault("inside_apply")
            given = [{**row._asdict(), "chunk": number} for row in outcome.answers]
            self._put(connection, tables.answers, ("stream", "item"), given)
            self._close(connection, chunk, outcome)
            kept = self._discard(connection, chunk)
            connection.execute(
                tables.chunks.update()
                .where(chunks.stream == self._key, chunks.id == number)
                .values(
                    state="applied",
                    version=outcome.version + 1,
                    result=outcome.result,
                    labels_kept=kept,
                )
            )
            applied = _applied(self._chunk(connection, number))
            fault("before_apply_commit")
        fault("after_apply")
        return applied

    def _close(self, connection: sa.Connection, chunk: Any, outcome: Outcome) -> None:
        """Open the chunk's items, or close them, and those whose grace is over."""
        items, waiting, labels = tables.open_items.c, tables.waiting.c, tables.labels.c
        opened = [{**row._asdict(), "open_until": chunk.open_until} for row in outcome.open_items]
        self._put(connection, tables.open_items, ("stream", "item"), opened)
        if not opened:
            answered = [row.item for row in outcome.answers]
            for some in _batched(answered):
                connection.execute(
                    tables.open_items.delete().where(
                        items.stream == self._key, items.item.in_(some)
                    )
                )
        # A late label that was accepted in time finds its item open, however long it waits.
        comes = sa.select(waiting.item).where(waiting.stream == self._key)
        cut = sa.select(labels.item).where(
            labels.stream == self._key,
            labels.chunk.in_(
                sa.select(tables.chunks.c.id).where(
                    tables.chunks.c.stream == self._key,
                    tables.chunks.c.state == "cut",
                    tables.chunks.c.id != chunk.id,
                )
            ),
        )
        connection.execute(
            tables.open_items.delete().where(
                items.stream == self._key,
                items.open_until <= chunk.cut_at,
                items.item.not_in(comes),
                items.item.not_in(cut),
            )
        )

    def _discard(self, connection: sa.Connection, chunk: Any) -> int:
        """Delete raw labels by the rule of retention; 1 where those of this chunk stay."""
        labels, chunks = tables.labels.c, tables.chunks.c
        rules = Rules(**decode(self._row(connection).rules))
        if rules.retention == "discard":
            connection.execute(
                tables.labels.delete().where(labels.stream == self._key, labels.chunk == chunk.id)
            )
            return 0
        if rules.retention == "keep_days":
            old = sa.and_(
                chunks.stream == self._key,
                chunks.state == "applied",
                chunks.labels_kept == 1,
                chunks.cut_at <= chunk.cut_at - rules.days * DAY,
            )
            gone = list(connection.scalars(sa.select(chunks.id).where(old)))
            for some in _batched(gone):
                connection.execute(
                    tables.labels.delete().where(labels.stream == self._key, labels.chunk.in_(some))
                )
            connection.execute(tables.chunks.update().where(old).values(labels_kept=0))
        return 1

    def _failed(self, number: int, error: Exception) -> StateError:
        """Write down that a chunk could not be learned from."""
        chunks = tables.chunks.c
        reason = f"{type(error).__name__}: {error}"[:1000]
        with self._store.write() as connection:
            attempts = self._chunk(connection, number).attempts + 1
            state = "quarantined" if attempts >= ATTEMPTS else "cut"
            connection.execute(
                tables.chunks.update()
                .where(chunks.stream == self._key, chunks.id == number, chunks.state == "cut")
                .values(attempts=attempts, error=reason, state=state)
            )
        ending = " It is quarantined, and the stream goes on without it."
        return StateError(
            f"Chunk {number} of stream {self.name!r} could not be learned from, attempt {attempts} "
            f"of {ATTEMPTS} ({reason}).{ending if state == 'quarantined' else ''}"
        )

    # ── rules ────────────────────────────────────────────────────────────────────────────

    @property
    def rules(self) -> Rules:
        """When chunks are cut and labels deleted."""
        with self._store.read() as connection:
            return Rules(**decode(self._row(connection).rules))

    def change(self, **changes: Any) -> Rules:
        """Change some of the rules from now on; items that are ready stay so."""
        waiting = tables.waiting.c
        with self._store.write() as connection:
            rules = Rules(**decode(self._row(connection).rules)).changed(**changes)
            now = self._store.now()
            connection.execute(
                tables.streams.update()
                .where(tables.streams.c.id == self._key)
                .values(rules=encode(rules.as_dict()), moment=now)
            )
            connection.execute(
                tables.waiting.update()
                .where(
                    waiting.stream == self._key,
                    waiting.ready_at.is_(None),
                    waiting.n_labels >= rules.labels_per_item,
                )
                .values(ready_at=now)
            )
        return rules

    # ── answers out ──────────────────────────────────────────────────────────────────────

    def answers(self, after: Hashable = None, limit: int | None = None) -> list[Given]:
        """The answers by item, in the order of their ids as text.

        Parameters
        ----------
        after
            Those that follow this item; from the first unless given.
        limit
            At most so many.
        """
        answers = tables.answers.c
        query = sa.select(tables.answers).where(answers.stream == self._key)
        if after is not None:
            query = query.where(answers.item > encode_id(after, "task", "answers"))
        with self._store.read() as connection:
            found = connection.execute(query.order_by(answers.item).limit(limit)).all()
        return [
            Given(
                decode(row.item),
                decode(row.label),
                row.confidence,
                np.frombuffer(row.probs, np.float32),
                row.n_labels,
                row.chunk,
            )
            for row in found
        ]

    def chunks(self) -> list[Mapping[str, Any]]:
        """All chunks that were cut, and what became of each."""
        chunks = tables.chunks.c
        query = sa.select(tables.chunks).where(chunks.stream == self._key).order_by(chunks.id)
        with self._store.read() as connection:
            return [{**row._mapping} for row in connection.execute(query)]

    def count(self) -> dict[str, int]:
        """How many labels and items wait, were late, were answered; the model's version."""
        labels, waiting, answers = tables.labels.c, tables.waiting.c, tables.answers.c
        with self._store.read() as connection:

            def count(*where: Any) -> int:
                return connection.scalar(sa.select(sa.func.count()).where(*where)) or 0

            return {
                "waiting_labels": count(labels.stream == self._key, labels.chunk.is_(None)),
                "waiting_items": count(waiting.stream == self._key),
                "held_labels": count(labels.stream == self._key),
                "answered_items": count(answers.stream == self._key),
                "late_labels": self._row(connection).late_labels,
                "version": self._shared(connection)["version"],
            }

    def snapshot(self) -> Snapshot:
        """The whole model, every worker, as `BiLA.save` would write it."""
        with self._store.read() as connection:
            work = self._everything(connection)
        ids, arrays = memory_parts(memory_of(work))
        settings = {**decode(self.configuration.settings), "open_items": len(work.open_items)}
        return Snapshot(
            {"method": self.configuration.method, "settings": settings, "losses": []}, ids, arrays
        )

    def estimator(self) -> Estimator:
        """The whole model, as the library's own; it knows nothing of the store."""
        kind = type(estimator(self.configuration.method))
        return kind.from_snapshot(self.name, self.snapshot(), {})

    def state_hash(self) -> str:
        """SHA-256 of the model and all answers: equal after the same cuts, whatever happened."""
        digest = sha256()
        with self._store.read() as connection:
            work = self._everything(connection)
            digest.update(encode([work.version, work.classes, work.n_workers]).encode())
            shared = {} if work.shared is None else parse_arrays(work.shared)
            for name, array in sorted(shared.items()):
                digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
            for row in (*work.workers, *work.open_items):
                for part in row:
                    digest.update(part if isinstance(part, bytes) else encode(part).encode())
        for given in self.answers():
            plain = [given.item_id, given.label, given.n_labels, given.chunk]
            digest.update(encode(plain).encode() + given.probs.tobytes())
        return digest.hexdigest()

    def _everything(self, connection: sa.Connection) -> Work:
        workers, items = tables.workers.c, tables.open_items.c
        everybody = sa.select(*(workers[name] for name in WorkerRow._fields)).where(
            workers.stream == self._key
        )
        still_open = sa.select(items.item, items.evidence, items.note).where(
            items.stream == self._key
        )
        return Work(
            method=self.configuration.method,
            settings=self.configuration.settings,
            **self._shared(connection),
            workers=sorted(WorkerRow(*row) for row in connection.execute(everybody)),
            open_items=sorted(OpenRow(*row) for row in connection.execute(still_open)),
            table=LabelTable([], [], []),
            keeps_open=False,
        )

    # ── rows ─────────────────────────────────────────────────────────────────────────────

    @property
    def _model(self) -> Estimator:
        return model_of(self.configuration.method, self.configuration.settings)

    @property
    def _counts_all(self) -> bool:
        return self._model._space.repeats == "all"

    def _row(self, connection: sa.Connection) -> Any:
        streams = tables.streams
        return connection.execute(sa.select(streams).where(streams.c.id == self._key)).one()

    def _chunk(self, connection: sa.Connection, number: int) -> Any:
        chunks = tables.chunks
        found = connection.execute(
            sa.select(chunks).where(chunks.c.stream == self._key, chunks.c.id == number)
        ).one_or_none()
        if found is None:
            raise StoreError(f"Stream {self.name!r} has no chunk {number!r}. Cut it first.")
        return found

    def _of_items(
        self, connection: sa.Connection, table: sa.Table, items: Sequence[str], *where: Any
    ) -> Iterator[Any]:
        """The rows of a table that are of these items."""
        for some in _batched(items):
            chosen = sa.select(table).where(
                table.c.stream == self._key, table.c.item.in_(some), *where
            )
            yield from connection.execute(chosen)

    def _put(
        self, connection: sa.Connection, table: sa.Table, keys: Sequence[str], rows: Sequence[Any]
    ) -> None:
        """Write rows, in place of those with the same keys."""
        if rows:
            plain = (row if isinstance(row, dict) else row._asdict() for row in rows)
            connection.execute(
                self._store.upsert(table, *keys), [{"stream": self._key, **row} for row in plain]
            )


def configuration_of(method: str, settings: Mapping[str, Any]) -> Configuration:
    """What a stream learns by, checked, with every setting spelled out."""
    for name, instead in _NOT_HERE.items():
        if name in settings:
            raise StateError(f"A stream has no setting `{name}`. {instead}")
    try:
        model = estimator(method, **settings)
    except TypeError as error:
        known = list(inspect.signature(type(estimator(method))).parameters)
        raise StateError(f"{error}. The settings of {method} are {known}.") from error
    if model.repeats == "error":
        raise StateError(
            "`repeats` of a stream must be 'last', 'first' or 'all': a label that was "
            "acknowledged cannot be refused later. Got 'error'."
        )
    spelled = {n: v for n, v in model.get_params().items() if n not in _NOT_HERE}
    spelled["seed"] = model._seed
    if model._space.classes is not None:
        spelled["classes"] = list(model._space.classes)
    try:
        text = encode(spelled)
    except TypeError as error:
        raise StateError(
            f"The settings of a stream must be text and numbers ({error}). Name your settings so."
        ) from error
    model_of(model.method, text)
    digest = sha256(encode([model.method, text]).encode()).hexdigest()
    return Configuration(model.method, text, digest)


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


def _table(rows: Sequence[Any], source: str) -> LabelTable:
    """The labels as they came."""

    def column(name: str) -> list[Any] | None:
        values = [getattr(row, name) for row in rows]
        if all(value is None for value in values):
            return None
        return [None if value is None else decode(value) for value in values]

    weights = [row.weight for row in rows]
    weighted = any(weight is not None for weight in weights)
    return LabelTable(
        [decode(row.item) for row in rows],
        [decode(row.worker) for row in rows],
        [decode(row.label) for row in rows],
        weights=[1.0 if w is None else w for w in weights] if weighted else None,
        groups=column("group"),
        timestamps=column("timestamp"),
        source=source,
        lines=[row.row for row in rows],
        unit="row",
    )


def _applied(row: Any) -> Applied:
    return Applied(row.id, row.version, row.n_items, row.n_labels, decode(row.result))


def _is_name(value: object) -> bool:
    return (
        isinstance(value, str)
        and "\0" not in value
        and 0 < len(value.encode("utf-8", "replace")) <= tables.NAME_BYTES
    )


def _batched(values: Iterable[Any]) -> Iterator[list[Any]]:
    rest = iter(values)
    while some := list(islice(rest, _AT_ONCE)):
        yield some
