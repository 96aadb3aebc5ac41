"""Applying a chunk: learn from it outside any transaction, then commit the outcome in one.

The commit puts the next model in place of the one it was made from, writes the answers, and
deletes the raw labels. So a chunk is applied once or not at all.
"""

from collections.abc import Mapping
from itertools import repeat
from typing import Any, NamedTuple

import sqlalchemy as sa

from labelquorum.errors import ConflictError, StateError, StoreError
from labelquorum.store.batch import decode
from labelquorum.store.database import schema
from labelquorum.store.database.sql import among, any_row, fetch_columns
from labelquorum.store.evidence import worker_places
from labelquorum.store.failpoints import fault
from labelquorum.store.gold import GoldLabels
from labelquorum.store.learner import LabelColumns, Outcome, Work, WorkerRow
from labelquorum.store.rules import DAY
from labelquorum.store.stream_ref import StreamRef

MAX_ATTEMPTS = 3
"""A chunk that fails this often is quarantined."""


class Applied(NamedTuple):
    """A chunk that was applied."""

    id: int
    version: int  # of the model it made
    n_items: int
    n_labels: int
    result: Mapping[str, Any]


class Applier:
    """Applies the chunks of a stream; see `Stream`, which offers the same methods."""

    def __init__(self, ref: StreamRef, gold: GoldLabels) -> None:
        self._ref, self._gold = ref, gold

    def advance(self, number: int) -> Applied:
        """Learn from a chunk that was cut, answer it, and commit; idempotent."""
        with self._ref.store.learning(self._ref.key):
            return self._advance(number)

    def _advance(self, number: int) -> Applied:
        with self._ref.read() as connection:
            row = self._ref.chunk(connection, number)
            if row.state == "applied":
                return _applied(row)
            if row.state == "quarantined":
                raise StateError(
                    f"Chunk {number} of stream {self._ref.name!r} is quarantined: {row.error}"
                )
            first = self._ref.first_cut_chunk(connection)
            if first != number:
                raise ConflictError(
                    f"Chunk {number} of stream {self._ref.name!r} has to wait: chunks are applied "
                    f"as they were cut, and chunk {first} comes before it."
                )
            work = self.work(connection, row)
        try:
            outcome = self._ref.store.learner.learn(work)
        except StoreError:  # the learner was not available: no fault of the chunk
            raise
        except Exception as error:
            raise self.failed(number, error) from error
        fault("after_update")
        return self._commit(number, outcome)

    def apply_all(self) -> list[Applied]:
        """Apply all chunks that are cut; one that fails is tried again until it is quarantined."""
        applied = []
        with self._ref.read() as connection:
            numbers = self._ref.cut_chunks(connection)
        for number in numbers:
            for _ in range(MAX_ATTEMPTS):
                try:
                    applied.append(self.advance(number))
                    break
                except StateError:
                    continue
        return applied

    def work(self, connection: sa.Connection, chunk: Any) -> Work:
        """Read what learning from a chunk needs, and no more."""
        labels = self._labels_of(connection, chunk.id)
        truths = self._gold.of_chunk(connection, chunk.id)
        items = list(dict.fromkeys([*labels.item, *(item for item, _ in truths)]))
        open_rows = self._ref.open_rows(connection, items)
        names = list(dict.fromkeys(labels.worker))
        places = {place for row in open_rows for place in worker_places(row.evidence)}
        return self._ref.work(
            connection,
            self._ref.workers(connection, names, places),
            open_rows,
            chunk=chunk.id,
            labels=labels,
            gold=truths,
            keeps_open=chunk.open_until is not None,
        )

    def _labels_of(self, connection: sa.Connection, number: int) -> LabelColumns:
        """The labels of a chunk, in the order they came."""
        names, key = LabelColumns._fields, self._ref.key
        return LabelColumns(*fetch_columns(connection, schema.labels, names, key, "chunk", number))

    def _commit(self, number: int, outcome: Outcome) -> Applied:
        """Commit: one transaction, from one version of the model to the next."""
        with self._ref.write() as connection:
            chunk = self._ref.chunk(connection, number)
            if chunk.state == "applied":  # by another process, in the meantime
                return _applied(chunk)
            if chunk.state != "cut":  # quarantined in the meantime; its truths were released
                raise StateError(
                    f"Chunk {number} of stream {self._ref.name!r} is quarantined: {chunk.error}"
                )
            model = {
                "version": outcome.version + 1,
                "classes": outcome.classes,
                "n_workers": outcome.n_workers,
                "n_chunks": outcome.n_chunks,
                "shared": outcome.shared,
            }
            here = {"key": self._ref.key, "before": outcome.version}
            swapped = connection.execute(_SWAP, {**model, **here})
            if swapped.rowcount != 1:
                raise ConflictError(
                    f"Stream {self._ref.name!r}: chunk {number} was learned from with version "
                    f"{outcome.version} of the model, which is no longer the present one. "
                    "Advance it again."
                )
            self._ref.put(
                connection,
                schema.workers,
                "place",
                WorkerRow._fields,
                outcome.workers,
                changes=WorkerRow._fields[2:],  # a place is one worker's: no index changes
            )
            fault("inside_apply")
            self._gold.keep_answers(connection, number)
            answers = {**outcome.answers._asdict(), "chunk": repeat(number)}
            self._ref.put_columns(connection, schema.answers, "item", answers)
            self._gold.apply(connection, number, outcome)
            self._close(connection, chunk, outcome)
            kept = self._discard(connection, chunk)
            done = {"version": outcome.version + 1, "result": outcome.result, "labels_kept": kept}
            done |= {"applied_at": self._ref.now(), "summary": outcome.summary}
            here = {"key": self._ref.key, "number": number}
            connection.execute(_APPLIED, {"state": "applied", **done, **here})
            applied = _applied(self._ref.chunk(connection, number))
            event = {"chunk": number, "version": applied.version}
            event |= {"items": applied.n_items, "labels": applied.n_labels}
            self._ref.add_event(connection, "applied", event)
            fault("before_apply_commit")
        fault("after_apply")
        return applied

    def _close(self, connection: sa.Connection, chunk: Any, outcome: Outcome) -> None:
        """Open or close the chunk's items, and close those whose grace is over."""
        items, opened = schema.open_items.c, outcome.open_items
        if opened.item:
            columns = {**opened._asdict(), "open_until": repeat(chunk.open_until)}
            self._ref.put_columns(connection, schema.open_items, "item", columns)
        elif any_row(connection, schema.open_items, self._ref.key):
            answered = among(connection, items.item, outcome.answers.item)
            connection.execute(
                schema.open_items.delete().where(items.stream == self._ref.key, answered)
            )
        else:
            return
        over = {"key": self._ref.key, "number": chunk.id, "moment": chunk.cut_at}
        connection.execute(_CLOSE, over)

    def _discard(self, connection: sa.Connection, chunk: Any) -> int:
        """Delete raw labels by the rule of retention; returns 1 if those of this chunk stay."""
        labels, chunks = schema.labels.c, schema.chunks.c
        rules = self._ref.rules(connection)
        if rules.retention == "discard":
            gone = connection.execute(_DISCARD, {"key": self._ref.key, "number": chunk.id})
            self._ref.release(connection, gone.rowcount)
            return 0
        if rules.retention == "keep_days":
            old = sa.and_(
                chunks.stream == self._ref.key,
                chunks.state == "applied",
                chunks.labels_kept == 1,
                chunks.cut_at <= chunk.cut_at - rules.days * DAY,
            )
            of_old = among(
                connection, labels.chunk, connection.scalars(sa.select(chunks.id).where(old)).all()
            )
            gone = connection.execute(
                schema.labels.delete().where(labels.stream == self._ref.key, of_old)
            )
            self._ref.release(connection, gone.rowcount)
            connection.execute(schema.chunks.update().where(old).values(labels_kept=0))
        return 1

    def failed(self, number: int, error: Exception) -> StateError:
        """Record that a chunk could not be learned from; the third time it is quarantined."""
        chunks = schema.chunks.c
        reason = f"{type(error).__name__}: {error}"[:1000]
        with self._ref.write() as connection:
            chunk = self._ref.chunk(connection, number)
            if chunk.state != "cut":  # another process has applied or quarantined it
                return StateError(
                    f"Chunk {number} of stream {self._ref.name!r} could not be learned from "
                    f"({reason}), and is {chunk.state} by now."
                )
            attempts = chunk.attempts + 1
            state = "quarantined" if attempts >= MAX_ATTEMPTS else "cut"
            connection.execute(
                schema.chunks.update()
                .where(chunks.stream == self._ref.key, chunks.id == number, chunks.state == "cut")
                .values(attempts=attempts, error=reason, state=state)
            )
            if state == "quarantined":
                self._gold.release(connection, number)
                self._ref.add_event(connection, "quarantined", {"chunk": number, "error": reason})
        ending = " It is quarantined, and the stream goes on without it."
        return StateError(
            f"Chunk {number} of stream {self._ref.name!r} could not be learned from, attempt "
            f"{attempts} of {MAX_ATTEMPTS} ({reason}).{ending if state == 'quarantined' else ''}"
        )


# Built once: building a statement takes longer than executing it.
_labels, _models, _chunks = schema.labels.c, schema.models.c, schema.chunks.c
_number: sa.BindParameter[int] = sa.bindparam("number")
_of_chunk = sa.and_(_labels.stream == sa.bindparam("key"), _labels.chunk == _number)
_DISCARD = schema.labels.delete().where(_of_chunk)
_SWAP = (
    schema.models.update()
    .where(_models.stream == sa.bindparam("key"), _models.version == sa.bindparam("before"))
    .values(
        {
            name: sa.bindparam(name)
            for name in ("version", "classes", "n_workers", "n_chunks", "shared")
        }
    )
)
_APPLIED = (
    schema.chunks.update()
    .where(_chunks.stream == sa.bindparam("key"), _chunks.id == _number)
    .values(
        {
            name: sa.bindparam(name)
            for name in ("state", "version", "result", "labels_kept", "applied_at", "summary")
        }
    )
)


def _is_over() -> sa.ColumnElement[bool]:
    """Open items whose grace is over, and of which nothing waits or is cut.

    A late label that was accepted in time finds its item open, however long it waits.
    """
    items, waiting = schema.open_items.c, schema.waiting.c
    key: sa.BindParameter[int] = sa.bindparam("key")
    here = [sa.exists().where(waiting.stream == key, waiting.item == items.item)]
    for table in (_labels, schema.gold.c):
        in_chunk = (table.stream == key, table.item == items.item, _chunks.id == table.chunk)
        is_cut = (_chunks.stream == key, _chunks.state == "cut", _chunks.id != _number)
        here.append(sa.exists().where(*in_chunk, *is_cut))
    over = items.open_until <= sa.bindparam("moment", type_=sa.Double)
    return sa.and_(items.stream == key, over, *(~one for one in here))


_CLOSE = schema.open_items.delete().where(_is_over())


def _applied(row: Any) -> Applied:
    return Applied(row.id, row.version, row.n_items, row.n_labels, decode(row.result))
