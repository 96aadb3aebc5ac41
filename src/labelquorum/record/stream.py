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
from labelquorum.record import tables
from labelquorum.record.chunking import DAY, Rules
from labelquorum.record.faults import fault
from labelquorum.record.forgetting import erase
from labelquorum.record.recall import Recall
from labelquorum.record.rows import (
    AnswerRow,
    LabelRow,
    OpenRow,
    Outcome,
    Work,
    WorkerRow,
    worker_places,
)
from labelquorum.record.statements import among, any_row, pick
from labelquorum.record.tables import decode, encode, encode_id
from labelquorum.record.truths import Truths
from labelquorum.record.view import rules_of

__all__ = ["ATTEMPTS", "Applied", "Cut", "Stream"]

ATTEMPTS = 3
"""A chunk that failed so often is quarantined."""


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


class Stream(Recall, Truths):
    """One stream of a store; made by `Store.create` and `Store.stream`."""

    def cut(self, flush: bool = False) -> Cut | None:
        """Cut a chunk if it is time; None if it is not.

        Parameters
        ----------
        flush
            Cut what is there, ready or not: no more labels will come.
        """
        with self._store.read() as connection:  # which keeps nobody from writing
            rules, now = rules_of(self._row(connection).rules), self._store.now()
            if not (flush or self._due(connection, rules, now)):
                return None
            if flush and not any_row(connection, tables.waiting, self._key):
                return None
        with self._store.write() as connection:
            now, stream = self._store.now(), self._row(connection)
            items = self._chosen(connection, rules_of(stream.rules), now, flush)
            if not items:
                return None
            labels, waiting = tables.labels.c, tables.waiting.c
            of_these = among(connection, labels.item, items)
            n_labels = connection.execute(
                tables.labels.update()
                .where(labels.stream == self._key, labels.chunk.is_(None), of_these)
                .values(chunk=stream.next_chunk)
            ).rowcount
            of_these = among(connection, waiting.item, items)
            connection.execute(tables.waiting.delete().where(waiting.stream == self._key, of_these))
            self._cut_truths(connection, items, stream.next_chunk)
            here = {"key": self._key, "number": stream.next_chunk}
            first, last = connection.execute(_SPAN, here).one()
            cut = Cut(
                stream.next_chunk,
                stream.next_row if first is None else first,  # of truths alone
                stream.next_row - 1 if last is None else last,
                len(items),
                n_labels,
                self._settings["seed"],
                self.configuration.configuration,
            )
            connection.execute(
                tables.chunks.insert().values(
                    stream=self._key,
                    **cut._asdict(),
                    state="cut",
                    cut_at=now,
                    open_until=rules_of(stream.rules).open_until(now),
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

    def standing(self) -> tuple[list[int], int]:
        """The chunks that are cut and not applied, and how many are to be cut now."""
        with self._store.read() as connection:
            rules = rules_of(self._row(connection).rules)
            return self._is_cut(connection), self._due(connection, rules, self._store.now())

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

    def to_apply(self) -> list[int]:
        """The chunks that are cut and not applied, in order."""
        with self._store.read() as connection:
            return self._is_cut(connection)

    def _is_cut(self, connection: sa.Connection) -> list[int]:
        chunks = tables.chunks.c
        cut = sa.select(chunks.id).where(chunks.stream == self._key, chunks.state == "cut")
        return list(connection.scalars(cut.order_by(chunks.id)))

    def change(self, **changes: Any) -> Rules:
        """Change some of the rules from now on; items that are ready stay so."""
        waiting = tables.waiting.c
        with self._store.write() as connection:
            rules = rules_of(self._row(connection).rules).changed(**changes)
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
            self._tell(connection, "rules", rules.as_dict())
        return rules

    def _is_ready(self, rules: Rules, now: float) -> sa.ColumnElement[bool]:
        """That an item of the stream is ready, by its labels or by waiting."""
        waiting, since = tables.waiting.c, rules.waited_since(now)
        ready: sa.ColumnElement[bool] = waiting.ready_at.is_not(None)
        if since is not None:
            ready = ready | (waiting.first_at <= since)
        return sa.and_(waiting.stream == self._key, ready)

    def _due(self, connection: sa.Connection, rules: Rules, now: float) -> int:
        """How many chunks are to be cut now."""
        waiting = tables.waiting.c
        # Who is ready by waiting is so since the wait was over.
        waited = waiting.first_at + (rules.max_wait or 0)
        ready_since = sa.func.min(sa.func.coalesce(waiting.ready_at, waited))
        n_ready, first = connection.execute(
            sa.select(sa.func.count(), ready_since).where(self._is_ready(rules, now))
        ).one()
        return max(int(n_ready) // rules.chunk_items, int(rules.is_due(n_ready, first, now)))

    def _chosen(
        self, connection: sa.Connection, rules: Rules, now: float, flush: bool
    ) -> list[str]:
        """The items of the chunk that is to be cut now, in the order of their first labels."""
        waiting = tables.waiting.c
        if not flush and not self._due(connection, rules, now):
            return []
        ready = waiting.stream == self._key if flush else self._is_ready(rules, now)
        chosen = sa.select(waiting.item).where(ready).order_by(waiting.first_row)
        return list(connection.scalars(chosen.limit(rules.chunk_items)))

    def _work(self, connection: sa.Connection, chunk: Any) -> Work:
        """Read what learning from a chunk needs, and no more."""
        rows = self._labels_of(connection, chunk.id)
        truths = self._truths_of(connection, chunk.id)
        items = list(dict.fromkeys([*(row.item for row in rows), *(item for item, _ in truths)]))
        open_rows = [
            OpenRow(row.item, row.evidence, row.note)
            for row in self._of_items(connection, tables.open_items, items)
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
        columns = [name for name in LabelRow._fields if name != "weight"]  # few have one
        found = sorted(pick(connection, tables.labels, columns, self._key, "chunk", [number]))
        here = {"key": self._key, "number": number}
        weights = {row.row: row.weight for row in connection.execute(_WEIGHTS, here).all()}
        return [
            LabelRow(row, item, worker, label, weights.get(row), group, timestamp)
            for row, item, worker, label, group, timestamp in found
        ]

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
            self._put(connection, tables.workers, "place", WorkerRow._fields, outcome.workers)
            fault("inside_apply")
            self._note_emitted(connection, number)
            given = ((*row, number) for row in outcome.answers)
            self._put(connection, tables.answers, "item", (*AnswerRow._fields, "chunk"), given)
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
        items, waiting = tables.open_items.c, tables.waiting.c
        labels, chunks = tables.labels.c, tables.chunks.c
        opened = [(*row, chunk.open_until) for row in outcome.open_items]
        if not opened and not any_row(connection, tables.open_items, self._key):
            return
        columns = (*OpenRow._fields, "open_until")
        self._put(connection, tables.open_items, "item", columns, opened)
        if not opened:
            answered = among(connection, items.item, [row.item for row in outcome.answers])
            connection.execute(
                tables.open_items.delete().where(items.stream == self._key, answered)
            )
        # A late label that was accepted in time finds its item open, however long it waits.
        waits = sa.exists().where(waiting.stream == self._key, waiting.item == items.item)
        over = [items.stream == self._key, items.open_until <= chunk.cut_at, ~waits]
        for table in (labels, tables.gold.c):
            is_cut = sa.exists().where(
                table.stream == self._key,
                table.item == items.item,
                chunks.stream == self._key,
                chunks.id == table.chunk,
                chunks.state == "cut",
                chunks.id != chunk.id,
            )
            over.append(~is_cut)
        connection.execute(tables.open_items.delete().where(*over))

    def _discard(self, connection: sa.Connection, chunk: Any) -> int:
        """Delete raw labels by the rule of retention; 1 where those of this chunk stay."""
        labels, chunks = tables.labels.c, tables.chunks.c
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
            connection.execute(tables.labels.delete().where(labels.stream == self._key, gone))
            connection.execute(tables.chunks.update().where(old).values(labels_kept=0))
        return 1

    def failed(self, number: int, error: Exception) -> StateError:
        """Write down that a chunk could not be learned from; the third time it is set aside."""
        chunks = tables.chunks.c
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
                tables.chunks.update()
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
_labels, _models, _chunks = tables.labels.c, tables.models.c, tables.chunks.c
_of_chunk = sa.and_(_labels.stream == sa.bindparam("key"), _labels.chunk == sa.bindparam("number"))
_SPAN = sa.select(sa.func.min(_labels.row), sa.func.max(_labels.row)).where(_of_chunk)
_WEIGHTS = sa.select(_labels.row, _labels.weight).where(_of_chunk, _labels.weight.is_not(None))
_DISCARD = tables.labels.delete().where(_of_chunk)
_SWAP = (
    tables.models.update()
    .where(_models.stream == sa.bindparam("key"), _models.version == sa.bindparam("before"))
    .values(
        {
            name: sa.bindparam(name)
            for name in ("version", "classes", "n_workers", "n_chunks", "shared")
        }
    )
)
_APPLIED = (
    tables.chunks.update()
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
