"""Applying a chunk: learn from it outside any transaction, then commit the outcome in one.

The commit puts the next model in place of the one it was made from, writes the answers, and
deletes the raw labels. So a chunk is applied once or not at all. Chunks that wait are learned from
one after the other, and committed together: a commit takes longer than most chunks.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, chain, repeat
from typing import Any, NamedTuple

import sqlalchemy as sa

from labelquorum.errors import ConflictError, StateError, StoreError
from labelquorum.store.batch import decode
from labelquorum.store.chunker import MAX_CHUNKS_PER_COMMIT, MAX_ITEMS_PER_COMMIT
from labelquorum.store.database import schema
from labelquorum.store.database.sql import among, any_row, fetch_columns
from labelquorum.store.evidence import worker_places
from labelquorum.store.failpoints import fault
from labelquorum.store.gold import GoldLabels
from labelquorum.store.learner import LabelColumns, OpenRow, Outcome, Work, WorkerRow
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


class _Rows:
    """What chunks are learned from, one after the other: each finds what those before changed."""

    def __init__(self, read: Work) -> None:
        self._read = read
        self._open = {row.item: row for row in read.open_items}
        self._workers: dict[int, WorkerRow] = {}  # by place
        self._places: dict[str, int] = {}
        self._keep(read.workers)

    def _keep(self, workers: Sequence[WorkerRow]) -> None:
        self._workers.update((row.place, row) for row in workers)
        self._places.update((row.worker, row.place) for row in workers)

    def work(self, chunk: Any, labels: LabelColumns, gold: Sequence[tuple[str, str]]) -> Work:
        """What learning from a chunk needs of them."""
        items = {*labels.item, *(item for item, _ in gold)}
        open_items = sorted(self._open[item] for item in items & self._open.keys())
        places = {place for row in open_items for place in worker_places(row.evidence)}
        places.update(self._places[name] for name in self._places.keys() & labels.worker)
        workers = [self._workers[place] for place in sorted(places & self._workers.keys())]
        names = {row.worker for row in workers}.union(labels.worker)
        return self._read._replace(
            chunk=chunk.id,
            workers=workers,
            open_items=open_items,
            labels=labels,
            gold=gold,
            keeps_open=chunk.open_until is not None,
            attributes=[row for row in self._read.attributes if row.worker in names],
        )

    def change(self, outcome: Outcome) -> None:
        """Change them by what a chunk taught, as its commit would."""
        self._read = self._read._replace(**_model(outcome))
        self._keep(outcome.workers)
        for item in () if outcome.open_items.item else outcome.answers.item:
            self._open.pop(item, None)
        self._open.update((row.item, row) for row in map(OpenRow, *outcome.open_items))


class Applier:
    """Applies the chunks of a stream; see `Stream`, which offers the same methods."""

    def __init__(self, ref: StreamRef, gold: GoldLabels) -> None:
        self._ref, self._gold = ref, gold

    def advance(self, number: int) -> Applied:
        """Learn from a chunk that was cut, answer it, and commit; idempotent."""
        with self._ref.store.learning(self._ref.key):
            return self._advance(number)[0]

    def advance_some(self, on_chunk: Callable[[int], None] = lambda number: None) -> list[Applied]:
        """Learn from the chunks that were cut first, as if each were alone, and commit once.

        `on_chunk` is called with each before it is learned from. Where one fails, those before it
        are committed, and it is tried again alone.
        """
        with self._ref.store.learning(self._ref.key):
            return self._advance(None, on_chunk)

    def _advance(
        self, number: int | None, on_chunk: Callable[[int], None] = lambda number: None
    ) -> list[Applied]:
        with self._ref.read() as connection:
            chunks = self._first_cut(connection)
            if number is not None:
                row = self._ref.chunk(connection, number)
                if row.state == "applied":
                    return [_applied(row)]
                if row.state == "quarantined":
                    raise StateError(
                        f"Chunk {number} of stream {self._ref.name!r} is quarantined: {row.error}"
                    )
                if chunks[0].id != number:
                    raise ConflictError(
                        f"Chunk {number} of stream {self._ref.name!r} has to wait: chunks are "
                        f"applied as they were cut, and chunk {chunks[0].id} comes before it."
                    )
                chunks = chunks[:1]
            if not chunks:
                return []
            parts, rows = self._read(connection, chunks)
        outcomes: list[Outcome] = []
        for chunk, part in zip(chunks, parts, strict=True):
            on_chunk(chunk.id)
            try:
                outcomes.append(self._ref.store.learner.learn(rows.work(chunk, *part)))
            except StoreError:  # the learner was not available: no fault of the chunk
                raise
            except Exception as error:
                if outcomes:
                    applied = self._commit(chunks[: len(outcomes)], outcomes)
                    self.failed(chunk.id, error)
                    return applied
                raise self.failed(chunk.id, error) from error
            rows.change(outcomes[-1])
            fault("after_update")
        return self._commit(chunks, outcomes)

    def apply_all(self) -> list[Applied]:
        """Apply all chunks that are cut; one that fails is tried again until it is quarantined."""
        applied: list[Applied] = []
        while True:
            try:
                some = self.advance_some()
            except StateError:
                continue
            if not some:
                return applied
            applied += some

    def _first_cut(self, connection: sa.Connection) -> Sequence[Any]:
        """The chunks that were cut first, as many as go together; one that failed goes alone."""
        chunks = connection.execute(_FIRST_CUT, {"key": self._ref.key}).all()
        n_items = list(accumulate(chunk.n_items for chunk in chunks))
        whole = sum(total <= MAX_ITEMS_PER_COMMIT for total in n_items)
        tried = (place for place, chunk in enumerate(chunks) if chunk.attempts)
        return chunks[: max(1, min(whole, next(tried, whole)))]

    def _read(
        self, connection: sa.Connection, chunks: Sequence[Any]
    ) -> tuple[list[tuple[LabelColumns, list[tuple[str, str]]]], "_Rows"]:
        """Read what learning from these chunks needs, and no more.

        That is the labels and truths of each, and the other rows of all.
        """
        parts = [
            (self._labels_of(connection, chunk.id), self._gold.of_chunk(connection, chunk.id))
            for chunk in chunks
        ]
        names = list(dict.fromkeys(chain.from_iterable(labels.worker for labels, _ in parts)))
        items = chain.from_iterable(
            (*labels.item, *(item for item, _ in truths)) for labels, truths in parts
        )
        open_rows = self._ref.open_rows(connection, list(dict.fromkeys(items)))
        places = {place for row in open_rows for place in worker_places(row.evidence)}
        workers = self._ref.workers(connection, names, places)
        return parts, _Rows(self._ref.work(connection, workers, open_rows, names))

    def _labels_of(self, connection: sa.Connection, number: int) -> LabelColumns:
        """The labels of a chunk, in the order they came."""
        names, key = LabelColumns._fields, self._ref.key
        return LabelColumns(*fetch_columns(connection, schema.labels, names, key, "chunk", number))

    def _commit(self, chunks: Sequence[Any], outcomes: Sequence[Outcome]) -> list[Applied]:
        """Commit: one transaction, from one version of the model to a later one."""
        first, last = outcomes[0], outcomes[-1]
        workers = {row.place: row for outcome in outcomes for row in outcome.workers}
        with self._ref.write() as connection:
            chunks = [self._ref.chunk(connection, chunk.id) for chunk in chunks]
            number = chunks[0].id
            for chunk in chunks:
                if chunk.state == "applied":  # by another process, in the meantime
                    return [_applied(chunk)]
                if chunk.state != "cut":  # quarantined in the meantime; its truths were released
                    raise StateError(
                        f"Chunk {chunk.id} of stream {self._ref.name!r} is quarantined: "
                        f"{chunk.error}"
                    )
            here = {"key": self._ref.key, "before": first.version}
            swapped = connection.execute(_SWAP, {**_model(last), **here})
            if swapped.rowcount != 1:
                raise ConflictError(
                    f"Stream {self._ref.name!r}: chunk {number} was learned from with version "
                    f"{first.version} of the model, which is no longer the present one. "
                    "Advance it again."
                )
            self._ref.put(
                connection,
                schema.workers,
                "place",
                WorkerRow._fields,
                workers.values(),
                changes=WorkerRow._fields[2:],  # a place is one worker's: no index changes
            )
            fault("inside_apply")
            applied = [self._answer(connection, *one) for one in zip(chunks, outcomes, strict=True)]
            fault("before_apply_commit")
        fault("after_apply")
        return applied

    def _answer(self, connection: sa.Connection, chunk: Any, outcome: Outcome) -> Applied:
        """Write the answers of a chunk and that it is applied, and delete what it closes."""
        self._gold.keep_answers(connection, chunk.id)
        answers = {**outcome.answers._asdict(), "chunk": repeat(chunk.id)}
        self._ref.put_columns(connection, schema.answers, "item", answers)
        self._gold.apply(connection, chunk.id, outcome)
        self._close(connection, chunk, outcome)
        kept = self._discard(connection, chunk)
        done = {"version": outcome.version + 1, "result": outcome.result, "labels_kept": kept}
        done |= {"applied_at": self._ref.now(), "summary": outcome.summary}
        here = {"key": self._ref.key, "number": chunk.id}
        connection.execute(_APPLIED, {"state": "applied", **done, **here})
        applied = Applied(
            chunk.id, outcome.version + 1, chunk.n_items, chunk.n_labels, decode(outcome.result)
        )
        event = {"chunk": chunk.id, "version": applied.version}
        event |= {"items": applied.n_items, "labels": applied.n_labels}
        self._ref.add_event(connection, "applied", event)
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


_FIRST_CUT = (
    sa.select(schema.chunks)
    .where(_chunks.stream == sa.bindparam("key"), _chunks.state == "cut")
    .order_by(_chunks.id)
    .limit(MAX_CHUNKS_PER_COMMIT)
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


def _model(outcome: Outcome) -> dict[str, Any]:
    """What all workers share after a chunk."""
    names = ("classes", "n_workers", "n_chunks", "shared")
    return {"version": outcome.version + 1, **{name: getattr(outcome, name) for name in names}}


def _applied(row: Any) -> Applied:
    return Applied(row.id, row.version, row.n_items, row.n_labels, decode(row.result))
