"""One durable stream: labels are accepted, chunks are cut, the model advances.

Five rules (`docs/store.md`). Labels are accepted with their key and the position of their source in
one transaction. A cut is a transaction of its own. The update is a pure function, outside any
transaction. One transaction then puts the next model in place of the one it was made from, gives
the answers, and deletes the raw labels. So a chunk is applied once or not at all, and what was
acknowledged is never lost.
"""

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa

from labelquorum.errors import ConflictError, LabelError, StateError, StoreError
from labelquorum.store.accept import Recall
from labelquorum.store.chunker import Cut, Cutting
from labelquorum.store.codec import decode, encode_id
from labelquorum.store.database import schema
from labelquorum.store.database.sql import among, any_row, pick
from labelquorum.store.erasure import erase
from labelquorum.store.failpoints import fault
from labelquorum.store.learner import (
    AnswerRow,
    LabelRow,
    OpenRow,
    Outcome,
    Work,
    WorkerRow,
    worker_places,
)
from labelquorum.store.rules import DAY
from labelquorum.store.stream_ref import rules_of

__all__ = ["ATTEMPTS", "Applied", "Stream"]

ATTEMPTS = 3
"""A chunk that failed so often is quarantined."""


class Applied(NamedTuple):
    """A chunk that was applied."""

    id: int
    version: int  # of the model it made
    n_items: int
    n_labels: int
    result: Mapping[str, Any]


class Stream(Recall, Cutting):
    """One stream of a store; made by `Store.create` and `Store.stream`."""

    def advance(self, chunk: Cut | int) -> Applied:
        """Learn from a chunk that was cut, answer it, and commit; once, however often it is asked.

        Chunks are applied in the order they were cut. One that cannot be learned from is an error
        that names the reason; after three it is quarantined, its labels are kept, and the stream
        goes on without it.
        """
        with self._store.learning(self._key):
            return self._advance(chunk.id if isinstance(chunk, Cut) else chunk)

    def _advance(self, number: int) -> Applied:
        with self._store.read() as connection:
            row = self._chunk(connection, number)
            if row.state == "applied":
                return _applied(row)
            if row.state == "quarantined":
                raise StateError(
                    f"Chunk {number} of stream {self.name!r} is quarantined: {row.error}"
                )
            chunks = schema.chunks.c
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
            outcome = self._store.learner.learn(work)
        except StoreError:  # nobody could learn just now: no fault of the chunk
            raise
        except Exception as error:
            raise self.failed(number, error) from error
        fault("after_update")
        return self._apply(number, outcome)

    def settle(self, flush: bool = False) -> list[Applied]:
        """Cut all that is due and apply all that is cut; what fails is tried until it is set aside.

        This is also how a stream goes on after a restart.
        """
        while self.cut(flush):
            pass
        return self._apply_all()

    def forget(self, worker: Hashable) -> int:
        """Remove a worker: his row, his labels, his part in open items, his id.

        Chunks that are cut are applied first. What he contributed to shared numbers and to answers
        stays: it names nobody.

        Returns
        -------
        n_labels : of his raw labels, how many were deleted
        """
        name = encode_id(worker, "worker", "forget")
        with self._store.learning(self._key):  # or else there might always be another chunk
            while True:
                self._apply_all()
                with self._store.write() as connection:
                    if self._is_cut(connection):
                        continue  # meanwhile
                    n_labels = erase(self, connection, name)
                    if n_labels is None:
                        raise LabelError(
                            f"Stream {self.name!r}: worker {worker!r} is not known. Check the id."
                        )
                    self._tell(connection, "forgot", {"labels": n_labels})
                return n_labels

    def _apply_all(self) -> list[Applied]:
        """Apply all that is cut; what fails is tried until it is set aside."""
        applied = []
        for number in self.to_apply():
            for _ in range(ATTEMPTS):
                try:
                    applied.append(self.advance(number))
                    break
                except StateError:
                    continue
        return applied

    def _work(self, connection: sa.Connection, chunk: Any) -> Work:
        """Read what learning from a chunk needs, and no more."""
        rows = self._labels_of(connection, chunk.id)
        truths = self._truths_of(connection, chunk.id)
        items = list(dict.fromkeys([*(row.item for row in rows), *(item for item, _ in truths)]))
        open_rows = [
            OpenRow(row.item, row.evidence, row.note)
            for row in self._of_items(connection, schema.open_items, items)
        ]
        names = list(dict.fromkeys(row.worker for row in rows))
        places = {place for row in open_rows for place in worker_places(row)}
        return Work(
            method=self.configuration.method,
            settings=self.configuration.settings,
            chunk=chunk.id,
            **self._shared(connection),
            workers=self._workers(connection, names, places),
            open_items=sorted(open_rows),
            labels=rows,
            gold=truths,
            keeps_open=chunk.open_until is not None,
        )

    def _labels_of(self, connection: sa.Connection, number: int) -> list[LabelRow]:
        """The labels of a chunk, in the order they came."""
        # Weights are no plain text, so that rows come one by one: who learns in a busy service is
        # alone in a process of its own.
        found = pick(connection, schema.labels, LabelRow._fields, self._key, "chunk", [number])
        return sorted(map(LabelRow._make, found))

    def _apply(self, number: int, outcome: Outcome) -> Applied:
        """Commit: one transaction, from one version of the model to the next."""
        with self._store.write() as connection:
            chunk = self._chunk(connection, number)
            if chunk.state == "applied":  # somebody was quicker
                return _applied(chunk)
            if chunk.state != "cut":  # its truths and its items went on without it
                raise StateError(
                    f"Chunk {number} of stream {self.name!r} is quarantined: {chunk.error}"
                )
            model = {
                "version": outcome.version + 1,
                "classes": outcome.classes,
                "n_workers": outcome.n_workers,
                "n_chunks": outcome.n_chunks,
                "shared": outcome.shared,
            }
            here = {"key": self._key, "before": outcome.version}
            swapped = connection.execute(_SWAP, {**model, **here})
            if swapped.rowcount != 1:
                raise ConflictError(
                    f"Stream {self.name!r}: chunk {number} was learned from with version "
                    f"{outcome.version} of the model, which is no longer the present one. "
                    "Advance it again."
                )
            self._put(connection, schema.workers, "place", WorkerRow._fields, outcome.workers)
            fault("inside_apply")
            self._note_emitted(connection, number)
            given = ((*row, number) for row in outcome.answers)
            self._put(connection, schema.answers, "item", (*AnswerRow._fields, "chunk"), given)
            self._apply_truths(connection, number, outcome)
            self._close(connection, chunk, outcome)
            kept = self._discard(connection, chunk)
            done = {"version": outcome.version + 1, "result": outcome.result, "labels_kept": kept}
            done |= {"applied_at": self._store.now(), "summary": outcome.summary}
            here = {"key": self._key, "number": number}
            connection.execute(_APPLIED, {"state": "applied", **done, **here})
            applied = _applied(self._chunk(connection, number))
            told = {"chunk": number, "version": applied.version}
            told |= {"items": applied.n_items, "labels": applied.n_labels}
            self._tell(connection, "applied", told)
            fault("before_apply_commit")
        fault("after_apply")
        return applied

    def _close(self, connection: sa.Connection, chunk: Any, outcome: Outcome) -> None:
        """Open the chunk's items, or close them, and those whose grace is over."""
        items, waiting = schema.open_items.c, schema.waiting.c
        labels, chunks = schema.labels.c, schema.chunks.c
        opened = [(*row, chunk.open_until) for row in outcome.open_items]
        if not opened and not any_row(connection, schema.open_items, self._key):
            return
        columns = (*OpenRow._fields, "open_until")
        self._put(connection, schema.open_items, "item", columns, opened)
        if not opened:
            answered = among(connection, items.item, [row.item for row in outcome.answers])
            connection.execute(
                schema.open_items.delete().where(items.stream == self._key, answered)
            )
        # A late label that was accepted in time finds its item open, however long it waits.
        waits = sa.exists().where(waiting.stream == self._key, waiting.item == items.item)
        over = [items.stream == self._key, items.open_until <= chunk.cut_at, ~waits]
        for table in (labels, schema.gold.c):
            is_cut = sa.exists().where(
                table.stream == self._key,
                table.item == items.item,
                chunks.stream == self._key,
                chunks.id == table.chunk,
                chunks.state == "cut",
                chunks.id != chunk.id,
            )
            over.append(~is_cut)
        connection.execute(schema.open_items.delete().where(*over))

    def _discard(self, connection: sa.Connection, chunk: Any) -> int:
        """Delete raw labels by the rule of retention; 1 where those of this chunk stay."""
        labels, chunks = schema.labels.c, schema.chunks.c
        rules = rules_of(self._row(connection).rules)
        if rules.retention == "discard":
            connection.execute(_DISCARD, {"key": self._key, "number": chunk.id})
            return 0
        if rules.retention == "keep_days":
            old = sa.and_(
                chunks.stream == self._key,
                chunks.state == "applied",
                chunks.labels_kept == 1,
                chunks.cut_at <= chunk.cut_at - rules.days * DAY,
            )
            gone = among(
                connection, labels.chunk, connection.scalars(sa.select(chunks.id).where(old)).all()
            )
            connection.execute(schema.labels.delete().where(labels.stream == self._key, gone))
            connection.execute(schema.chunks.update().where(old).values(labels_kept=0))
        return 1

    def failed(self, number: int, error: Exception) -> StateError:
        """Write down that a chunk could not be learned from; the third time it is set aside."""
        chunks = schema.chunks.c
        reason = f"{type(error).__name__}: {error}"[:1000]
        with self._store.write() as connection:
            chunk = self._chunk(connection, number)
            if chunk.state != "cut":  # somebody else has applied it, or set it aside
                return StateError(
                    f"Chunk {number} of stream {self.name!r} could not be learned from ({reason}), "
                    f"and is {chunk.state} by now."
                )
            attempts = chunk.attempts + 1
            state = "quarantined" if attempts >= ATTEMPTS else "cut"
            connection.execute(
                schema.chunks.update()
                .where(chunks.stream == self._key, chunks.id == number, chunks.state == "cut")
                .values(attempts=attempts, error=reason, state=state)
            )
            if state == "quarantined":
                self._free_truths(connection, number)
                self._tell(connection, "quarantined", {"chunk": number, "error": reason})
        ending = " It is quarantined, and the stream goes on without it."
        return StateError(
            f"Chunk {number} of stream {self.name!r} could not be learned from, attempt {attempts} "
            f"of {ATTEMPTS} ({reason}).{ending if state == 'quarantined' else ''}"
        )


# Made once: making a statement takes longer than asking it.
_labels, _models, _chunks = schema.labels.c, schema.models.c, schema.chunks.c
_of_chunk = sa.and_(_labels.stream == sa.bindparam("key"), _labels.chunk == sa.bindparam("number"))
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
    .where(_chunks.stream == sa.bindparam("key"), _chunks.id == sa.bindparam("number"))
    .values(
        {
            name: sa.bindparam(name)
            for name in ("state", "version", "result", "labels_kept", "applied_at", "summary")
        }
    )
)


def _applied(row: Any) -> Applied:
    return Applied(row.id, row.version, row.n_items, row.n_labels, decode(row.result))
