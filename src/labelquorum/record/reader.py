"""What can be asked of a stream: its items and workers by page, why an answer is what it is.

Answers and counts are read from the store. What only the model knows (skills with their bounds,
the reasons of an answer, the gain of one more label) is asked of the learner, with the rows it
takes and no more.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from labelquorum.errors import LabelError, StateError
from labelquorum.record import tables
from labelquorum.record.rows import OpenRow, Work, WorkerRow, worker_places
from labelquorum.record.tables import decode, encode_id
from labelquorum.record.view import Given, View, given

__all__ = ["Reader", "Undecided"]

CROWD = 1000
"""So many workers, those with most labels, stand for all where the crowd matters."""


class Undecided(NamedTuple):
    """An item with labels and no answer yet."""

    item_id: Hashable
    n_labels: int
    ready: bool


class Reader(View):
    """What can be asked of a stream; see `Stream`."""

    def items(
        self,
        after: Hashable = None,
        limit: int = 100,
        confidence_below: float | None = None,
        changed_since: int | None = None,
    ) -> list[Given]:
        """Answers in the order of item ids as text.

        Parameters
        ----------
        after
            Those that follow this item; from the first unless given.
        limit
            At most so many.
        confidence_below
            Only those answered with less confidence.
        changed_since
            Only those answered, or answered anew, after the chunk of this number.
        """
        answers = tables.answers.c
        query = sa.select(tables.answers).where(answers.stream == self._key)
        if after is not None:
            query = query.where(answers.item > encode_id(after, "task", "items"))
        if confidence_below is not None:
            query = query.where(answers.confidence < confidence_below)
        if changed_since is not None:
            query = query.where(answers.chunk > changed_since)
        with self._store.read() as connection:
            found = connection.execute(query.order_by(answers.item).limit(limit))
            return [given(row) for row in found]

    def item(self, task: Hashable) -> Given | Undecided | None:
        """One item: its answer, or what it waits for; None of one that is not known."""
        item = encode_id(task, "task", "item")
        with self._store.read() as connection:
            for row in self._of_items(connection, tables.answers, [item]):
                return given(row)
            for row in self._of_items(connection, tables.waiting, [item]):
                return Undecided(task, row.n_labels, row.ready_at is not None)
            labels = len(list(self._of_items(connection, tables.labels, [item])))
        return Undecided(task, labels, ready=True) if labels else None

    def undecided(self, after: Hashable = None, limit: int = 100) -> list[Undecided]:
        """Items with labels and no answer yet, in the order of their ids as text."""
        labels, waiting, answers = tables.labels.c, tables.waiting, tables.answers.c
        answered = sa.exists().where(answers.stream == self._key, answers.item == labels.item)
        query = (
            sa.select(labels.item, sa.func.count(sa.distinct(labels.worker)), waiting.c.ready_at)
            .select_from(
                tables.labels.outerjoin(
                    waiting,
                    sa.and_(waiting.c.stream == labels.stream, waiting.c.item == labels.item),
                )
            )
            .where(labels.stream == self._key, ~answered)
            .group_by(labels.item, waiting.c.ready_at, waiting.c.item)
            .add_columns(waiting.c.item.is_(None))
        )
        if after is not None:
            query = query.where(labels.item > encode_id(after, "task", "items"))
        with self._store.read() as connection:
            found = connection.execute(query.order_by(labels.item).limit(limit))
            return [
                Undecided(decode(item), n_labels, ready_at is not None or bool(is_cut))
                for item, n_labels, ready_at, is_cut in found
            ]

    def pending(self, threshold: float = 0.95, limit: int = 100) -> list[tuple[Given, bool]]:
        """Answers with less confidence than this, the least first, and whether each is open."""
        if not 0 <= threshold <= 1:
            raise StateError(f"`threshold` must be a number between 0 and 1. Got {threshold!r}.")
        answers, items = tables.answers.c, tables.open_items.c
        is_open = sa.exists().where(
            items.stream == self._key,
            items.item == answers.item,
            items.open_until > self._store.now(),
        )
        query = (
            sa.select(tables.answers, is_open.label("open"))
            .where(answers.stream == self._key, answers.confidence < threshold)
            .order_by(answers.confidence, answers.item)
            .limit(limit)
        )
        with self._store.read() as connection:
            return [(given(row), bool(row.open)) for row in connection.execute(query)]

    # ── what the model knows ──────────────────────────────────────────────────────────────────

    def workers(self, after: int = -1, limit: int = 100) -> list[dict[str, Any]]:
        """Workers in order of appearance, with skill, its bounds, and what they did.

        Parameters
        ----------
        after
            Those that follow this `place`.
        limit
            At most so many.
        """
        workers = tables.workers.c
        query = sa.select(workers.place).where(
            workers.stream == self._key, workers.place > after, workers.worker != "null"
        )
        with self._store.read() as connection:
            places = list(connection.scalars(query.order_by(workers.place).limit(limit)))
            asked = self._workers(connection, [], places)
            work = self._part(connection, [*places, *self._busiest(connection)])
        return self._skills(asked, work)

    def worker(self, worker: Hashable) -> dict[str, Any]:
        """One worker: skill, its bounds, his confusion matrix, and what he did."""
        with self._store.read() as connection:
            asked = self._workers(connection, [encode_id(worker, "worker", "worker")], [])
            if not asked:
                raise LabelError(
                    f"Stream {self.name!r}: worker {worker!r} is not known: no label of theirs was "
                    "learned from. Check the id."
                )
            work = self._part(connection, [asked[0].place, *self._busiest(connection)])
        return self._skills(asked, work)[0]

    def explain(self, task: Hashable) -> dict[str, Any] | None:
        """Why an open item has its answer; None of an item whose labels are not held any more."""
        with self._store.read() as connection:
            rows = self._open(connection, [encode_id(task, "task", "explain")])
            if not rows:
                return None
            places = [place for row in rows for place in worker_places(row)]
            work = self._part(connection, [*places, *self._busiest(connection)])
        found: dict[str, Any] = self._store.learner.ask(
            work._replace(open_items=rows), "explain", {"task": task}
        )
        return found

    def gains(self, tasks: Sequence[Hashable], top: int | None = None) -> list[dict[str, Any]]:
        """What one more label of each of these open items would likely do."""
        with self._store.read() as connection:
            rows = self._open(connection, [encode_id(task, "task", "gains") for task in tasks])
            if not rows:
                return []
            places = [place for row in rows for place in worker_places(row)]
            work = self._part(connection, [*places, *self._busiest(connection)])
        options = {"tasks": [decode(row.item) for row in rows], "top": top}
        found: list[dict[str, Any]] = self._store.learner.ask(
            work._replace(open_items=rows), "gains", options
        )
        return found

    def model_file(self) -> bytes:
        """The whole model as the file `labelquorum.load` reads."""
        file: bytes = self._store.learner.ask(self._whole(), "snapshot", {})
        return file

    def _skills(self, asked: Sequence[WorkerRow], work: Work) -> list[dict[str, Any]]:
        if not asked:
            return []
        options = {"workers": [decode(row.worker) for row in asked]}
        told = self._store.learner.ask(work, "skills", options)
        return [
            {
                **one,
                "place": row.place,
                "labels": row.labels,
                "agreed": row.agreed,
                "classes": decode(work.classes),
            }
            for one, row in zip(told, asked, strict=True)
        ]

    def _busiest(self, connection: sa.Connection) -> list[int]:
        """The workers with most labels: among them the others are seen as they are."""
        workers = tables.workers.c
        busiest = (
            sa.select(workers.place)
            .where(workers.stream == self._key, workers.worker != "null")
            .order_by(workers.labels.desc(), workers.place)
            .limit(CROWD)
        )
        return list(connection.scalars(busiest))

    def _part(self, connection: sa.Connection, places: Iterable[int]) -> Work:
        """What is shared, and these workers."""
        return Work(
            method=self.configuration.method,
            settings=self.configuration.settings,
            chunk=0,
            **self._shared(connection),
            workers=self._workers(connection, [], set(places)),
            open_items=[],
            labels=[],
            gold=[],
            keeps_open=False,
        )

    def _open(self, connection: sa.Connection, items: Sequence[str]) -> list[OpenRow]:
        return sorted(
            OpenRow(row.item, row.evidence, row.note)
            for row in self._of_items(connection, tables.open_items, items)
        )
