"""What can be asked of a stream: its items and workers by page, why an answer is what it is.

Answers and counts are read from the store. What only the model knows (skills with their bounds,
the reasons of an answer, the gain of one more label) is asked of the learner, with the rows it
takes and no more.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from math import sqrt
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from labelquorum.errors import LabelError, StateError
from labelquorum.store.codec import decode, encode_id
from labelquorum.store.database import schema
from labelquorum.store.learner import OpenRow, Work, WorkerRow, worker_places
from labelquorum.store.stream_ref import Answer, View, given

if TYPE_CHECKING:
    from labelquorum.store.store import Store

__all__ = ["Answer", "GoldError", "Reader", "Recent", "Undecided", "all_counts", "all_rows"]

WINDOW = 20_000
"""So many of a stream's last labels are looked through."""


WILSON = 1.959964
"""Standard deviations to either side that hold 95 % of a normal law."""

CROWD = 1000
"""So many workers, those with most labels, stand for all where the crowd matters."""

BOARD = 20_000
"""So many workers, those with most labels, are on a board."""

BUDGET = 64 << 20
"""Bytes of the states of workers with which a question is asked; of more, the busiest count."""

MOST_CLASSES = 64
"""With more classes the board is made without the model, of what is counted of each worker."""

BOARD_ITEMS = 2_000
"""Who goes together is looked for in so many open items, those that were opened last."""

DOUBTED = 500
"""The gain of a label is asked of so many open items, the least sure."""


class Undecided(NamedTuple):
    """An item with labels and no answer yet."""

    item_id: Hashable
    n_labels: int
    ready: bool


class GoldError(NamedTuple):
    """How often answers were wrong whose truth was told later, and between which bounds."""

    items: int
    wrong: int
    error: float
    low: float
    high: float


class Recent(NamedTuple):
    """What a worker said of late, as far as labels are held."""

    labels: int
    agreed: int  # with the answer


class Reader(View):
    """What can be asked of a stream; see `Stream`."""

    def item(self, task: Hashable) -> Answer | Undecided | None:
        """One item: its answer, or what it waits for; None of one that is not known."""
        item = encode_id(task, "task", "item")
        with self._store.read() as connection:
            for row in self._of_items(connection, schema.answers, [item]):
                return given(row)
            for row in self._of_items(connection, schema.waiting, [item]):
                return Undecided(task, row.n_labels, row.ready_at is not None)
            labels = len(list(self._of_items(connection, schema.labels, [item])))
        return Undecided(task, labels, ready=True) if labels else None

    def pending(self, threshold: float = 0.95, limit: int = 100) -> list[tuple[Answer, bool]]:
        """Answers with less confidence than this, the least first, and whether each is open."""
        if not 0 <= threshold <= 1:
            raise StateError(f"`threshold` must be a number between 0 and 1. Got {threshold!r}.")
        answers, items = schema.answers.c, schema.open_items.c
        is_open = sa.exists().where(
            items.stream == self._key,
            items.item == answers.item,
            items.open_until > self._store.now(),
        )
        query = (
            sa.select(schema.answers, is_open.label("open"))
            .where(answers.stream == self._key, answers.confidence < threshold)
            .order_by(answers.confidence, answers.item)
            .limit(limit)
        )
        with self._store.read() as connection:
            return [(given(row), bool(row.open)) for row in connection.execute(query)]

    def recent_agreement(self, workers: Sequence[Hashable]) -> dict[Hashable, Recent]:
        """How often each of these workers agreed with the answers lately.

        Only labels that are still held can be told, so a stream that discards them tells nothing.
        """
        names = [encode_id(worker, "worker", "recent") for worker in workers]
        labels, answers, streams = schema.labels.c, schema.answers.c, schema.streams.c
        last = sa.select(streams.next_row).where(streams.id == self._key).scalar_subquery()
        agreed = sa.func.sum(sa.case((labels.label == answers.label, 1), else_=0))
        n_answered = sa.func.count(answers.item)
        # An outer join begins with the labels, which are few: SQLite might begin with all answers.
        with_answers = schema.labels.outerjoin(
            schema.answers, sa.and_(answers.stream == labels.stream, answers.item == labels.item)
        )
        query = (
            sa.select(labels.worker, n_answered, agreed)
            .select_from(with_answers)
            .where(
                labels.stream == self._key,
                labels.row >= last - WINDOW,
                labels.worker.in_(names),
                labels.chunk.is_not(None),
            )
            .group_by(labels.worker)
            .having(n_answered > 0)
        )
        with self._store.read() as connection:
            return {decode(name): Recent(n, int(a)) for name, n, a in connection.execute(query)}

    def model_version(self) -> int:
        """How many chunks were learned from."""
        models = schema.models.c
        with self._store.read() as connection:
            return (
                connection.scalar(sa.select(models.version).where(models.stream == self._key)) or 0
            )

    def last_chunks(self, limit: int = 10) -> list[Mapping[str, Any]]:
        """The chunks that were cut last, the newest first."""
        chunks = schema.chunks.c
        query = sa.select(schema.chunks).where(chunks.stream == self._key)
        with self._store.read() as connection:
            found = connection.execute(query.order_by(chunks.id.desc()).limit(limit))
            return [{**row._mapping} for row in found]

    def quarantined(self) -> list[int]:
        """The chunks that could not be learned from."""
        chunks = schema.chunks.c
        query = sa.select(chunks.id).where(
            chunks.stream == self._key, chunks.state == "quarantined"
        )
        with self._store.read() as connection:
            return list(connection.scalars(query.order_by(chunks.id)))

    def gold_error(self) -> GoldError | None:
        """How often an answer was wrong, by truths that were told after it; None where none was."""
        gold = schema.gold.c
        wrong = sa.func.sum(sa.case((gold.answered != gold.label, 1), else_=0))
        query = sa.select(sa.func.count(), wrong).where(
            gold.stream == self._key, gold.answered.is_not(None)
        )
        with self._store.read() as connection:
            n_items, n_wrong = connection.execute(query).one()
        if not n_items:
            return None
        error = n_wrong / n_items
        # Wilson (1927)
        scale, z = 1 + WILSON**2 / n_items, WILSON
        centre = (error + z**2 / (2 * n_items)) / scale
        half = z * sqrt(error * (1 - error) / n_items + z**2 / (4 * n_items**2)) / scale
        return GoldError(
            n_items, int(n_wrong), error, max(0.0, centre - half), min(1.0, centre + half)
        )

    # ── what the model knows ──────────────────────────────────────────────────────────────────

    def workers(
        self,
        after: int = -1,
        limit: int = 100,
        places: Sequence[int] | None = None,
        matrices: bool = True,
    ) -> list[dict[str, Any]]:
        """Workers in order of appearance, with skill, its bounds, and what they did.

        Parameters
        ----------
        after
            Those that follow this `place`.
        limit
            At most so many.
        places
            Those at these places, as far as they are there; by then the others do not count.
        matrices
            Also what each confuses.
        """
        workers = schema.workers.c
        query = sa.select(workers.place).where(
            workers.stream == self._key, workers.place > after, workers.worker != "null"
        )
        with self._store.read() as connection:
            if places is None:
                places = list(connection.scalars(query.order_by(workers.place).limit(limit)))
            crowd, room = self._busiest(connection), self._room(connection)
        told = []
        for start in range(0, len(places), room):
            some = places[start : start + room]
            with self._store.read() as connection:
                asked = self._workers(connection, [], some)
                work = self._part(connection, [*some, *crowd])
            told += self._skills(asked, work, matrices=matrices)
        return told

    def worker(self, worker: Hashable) -> dict[str, Any]:
        """One worker: skill, its bounds, his confusion matrix, and what he did."""
        with self._store.read() as connection:
            asked = self._known_worker(connection, worker)
            work = self._part(connection, [asked.place, *self._busiest(connection)])
        return self._skills([asked], work)[0]

    def _known_worker(self, connection: sa.Connection, worker: Hashable) -> WorkerRow:
        found = self._workers(connection, [encode_id(worker, "worker", "worker")], [])
        if not found:
            raise LabelError(
                f"Stream {self.name!r}: worker {worker!r} is not known: no label of theirs was "
                "learned from. Check the id."
            )
        return found[0]

    def worker_table(self) -> tuple[int, list[dict[str, Any]], int]:
        """The workers with most labels, by place: labels, agreement, skill, and what is odd.

        Returns
        -------
        version : of the model
        rows : worker, place, labels, agreed, skill, flags
        n_workers : those who are not among them included
        """
        workers, items = schema.workers.c, schema.open_items.c
        with self._store.read() as connection:
            known = sa.and_(workers.stream == self._key, workers.worker != "null")
            n_workers = connection.scalar(sa.select(sa.func.count()).where(known)) or 0
            shared = self._shared(connection)
            if len(decode(shared["classes"])) > MOST_CLASSES:
                return shared["version"], self._counted_board(connection), n_workers
            places = self._busiest(connection, BOARD)
            latest = connection.execute(
                sa.select(items.item, items.evidence, items.note)
                .where(items.stream == self._key)
                .order_by(items.open_until.desc(), items.item)
                .limit(BOARD_ITEMS)
            )
            seen, rows, room = set(places), [], self._room(connection)
            for row in (OpenRow(*one) for one in latest):
                more = seen.union(worker_places(row))
                if len(more) > len(places) + room:
                    break
                seen = more
                rows.append(row)
            # The newest stand last, as where they are opened one by one.
            work = self._part(connection, seen)._replace(open_items=rows[::-1])
        on_it = set(places)
        asked = [row for row in work.workers if row.place in on_it]
        if not asked:
            return work.version, [], n_workers
        told = self._store.learner.ask(work, "board", {})
        place_of = {row.worker: row.place for row in work.workers}
        flags: dict[int, list[dict[str, Any]]] = {}
        for worker, flag in told["flags"]:
            flags.setdefault(place_of[encode_id(worker, "worker", "board")], []).append(flag)
        skill = dict(zip(map(attrgetter("place"), work.workers), told["skill"], strict=True))
        return (
            work.version,
            [
                {
                    "worker": decode(row.worker),
                    "place": row.place,
                    "labels": row.labels,
                    "agreed": row.agreed,
                    "skill": skill[row.place],
                    "flags": flags.get(row.place, []),
                }
                for row in asked
            ],
            n_workers,
        )

    def _counted_board(self, connection: sa.Connection) -> list[dict[str, Any]]:
        """The workers with most labels, by place; in place of his skill, how often he agreed."""
        workers = schema.workers.c
        names = ("place", "worker", "labels", "agreed")
        busiest = (
            sa.select(*(workers[name] for name in names))
            .where(workers.stream == self._key, workers.worker != "null")
            .order_by(workers.labels.desc(), workers.place)
            .limit(BOARD)
        )
        return [
            {
                "worker": decode(row.worker),
                "place": row.place,
                "labels": row.labels,
                "agreed": row.agreed,
                "skill": row.agreed / max(row.labels, 1),
                "flags": [],
            }
            for row in sorted(connection.execute(busiest))
        ]

    def profile(self, worker: Hashable) -> dict[str, Any]:
        """One worker beside the crowd and over time: as `worker`, with track and changes."""
        with self._store.read() as connection:
            asked = self._known_worker(connection, worker)
            work = self._part(connection, [asked.place, *self._busiest(connection)])
        return self._skills([asked], work, "profile")[0]

    def wanted(self, limit: int = 100) -> tuple[list[dict[str, Any]], int]:
        """Open items by what one more label would likely do, the largest gain first.

        It is asked of the least sure. Also tells how many items are open.
        """
        answers, items = schema.answers.c, schema.open_items.c
        now = self._store.now()
        is_open = sa.and_(items.stream == self._key, items.open_until > now)
        with self._store.read() as connection:
            n_open = connection.scalar(sa.select(sa.func.count()).where(is_open)) or 0
            if not n_open:
                return [], 0
            doubted = connection.execute(
                sa.select(schema.answers)
                .where(
                    answers.stream == self._key,
                    sa.exists().where(is_open, items.item == answers.item),
                )
                .order_by(answers.confidence, answers.item)
                .limit(max(limit, DOUBTED))
            ).all()
            work = self._about(connection, [row.item for row in doubted])
        if work is None:
            return [], n_open
        options = {"tasks": [decode(row.item) for row in work.open_items], "top": limit}
        found = self._store.learner.ask(work, "gains", options)
        by_item = {row.item: given(row) for row in doubted}
        told = []
        for one in found:
            item = by_item[encode_id(one["task"], "task", "wanted")]
            told.append(
                {
                    "task": item.item_id,
                    "label": item.label,
                    "confidence": item.confidence,
                    "labels": item.n_labels,
                    "gain": one["gain"],
                    "worker": one["best_worker"],
                    "worker_gain": one["best_gain"],
                    "open": True,
                }
            )
        return told, n_open

    def explain(self, task: Hashable) -> dict[str, Any] | None:
        """Why an open item has its answer; None of an item whose labels are not held any more."""
        with self._store.read() as connection:
            work = self._about(connection, [encode_id(task, "task", "explain")])
        if work is None:
            return None
        found: dict[str, Any] = self._store.learner.ask(work, "explain", {"task": task})
        return found

    def reasons(self, task: Hashable) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """Why an open item has its answer, and what one more label would do, where that is known.

        Both are None of an item whose labels are not held any more; the second also where the
        truth was told.
        """
        with self._store.read() as connection:
            work = self._about(connection, [encode_id(task, "task", "reasons")])
        if work is None:
            return None, None
        found = self._store.learner.ask(work, "reasons", {"task": task})
        return found["why"], found["gain"]

    def gains(self, tasks: Sequence[Hashable], top: int | None = None) -> list[dict[str, Any]]:
        """What one more label of each of these open items would likely do."""
        with self._store.read() as connection:
            work = self._about(connection, [encode_id(task, "task", "gains") for task in tasks])
        if work is None:
            return []
        options = {"tasks": [decode(row.item) for row in work.open_items], "top": top}
        found: list[dict[str, Any]] = self._store.learner.ask(work, "gains", options)
        return found

    def model_file(self) -> bytes:
        """The whole model as the file `labelquorum.load` reads."""
        file: bytes = self._store.learner.ask(self._whole(), "snapshot", {})
        return file

    def _skills(
        self, asked: Sequence[WorkerRow], work: Work, question: str = "skills", **options: Any
    ) -> list[dict[str, Any]]:
        if not asked:
            return []
        options["workers"] = [decode(row.worker) for row in asked]
        told = self._store.learner.ask(work, question, options)
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

    def _busiest(self, connection: sa.Connection, limit: int = CROWD) -> list[int]:
        """The workers with most labels: among them the others are seen as they are."""
        workers = schema.workers.c
        busiest = (
            sa.select(workers.place)
            .where(workers.stream == self._key, workers.worker != "null")
            .order_by(workers.labels.desc(), workers.place)
            .limit(min(limit, self._room(connection)))
        )
        return list(connection.scalars(busiest))

    def _room(self, connection: sa.Connection) -> int:
        """With how many workers a question may be asked; all have a state as large as the last."""
        workers = schema.workers.c
        last = (
            sa.select(sa.func.length(workers.state))
            .where(workers.stream == self._key, workers.worker != "null")
            .order_by(workers.n_classes.desc(), workers.place.desc())
            .limit(1)
        )
        return max(1, BUDGET // (connection.scalar(last) or 1))

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

    def _about(self, connection: sa.Connection, items: Sequence[str]) -> Work | None:
        """What is shared, these items as far as they are open, and who is seen with them."""
        rows = self._open(connection, items)
        if not rows:
            return None
        places = [place for row in rows for place in worker_places(row)]
        work = self._part(connection, [*places, *self._busiest(connection)])
        return work._replace(open_items=rows)

    def _open(self, connection: sa.Connection, items: Sequence[str]) -> list[OpenRow]:
        return sorted(
            OpenRow(row.item, row.evidence, row.note)
            for row in self._of_items(connection, schema.open_items, items)
        )


def all_rows(store: "Store") -> dict[str, int]:
    """How many labels were accepted in each stream since it was made."""
    streams = schema.streams.c
    with store.read() as connection:
        return {
            name: rows - 1
            for name, rows in connection.execute(sa.select(streams.name, streams.next_row))
        }


def all_counts(store: "Store", only: str | None = None) -> dict[str, dict[str, Any]]:
    """What `Stream.count` tells of each stream, with its rules and classes, in a few queries.

    Parameters
    ----------
    only
        Of the stream of this name alone.
    """
    streams, models = schema.streams.c, schema.models.c
    labels, waiting, answers = schema.labels.c, schema.waiting.c, schema.answers.c
    counted = {
        "waiting_items": sa.select(waiting.stream, sa.func.count()),
        "held_labels": sa.select(labels.stream, sa.func.count()),
        "cut_labels": sa.select(labels.stream, sa.func.count()).where(labels.chunk.is_not(None)),
        "answered_items": sa.select(answers.stream, sa.func.count()),
    }
    query = sa.select(
        streams.id, streams.name, streams.rules, streams.late_labels, models.version, models.classes
    ).where(models.stream == streams.id)
    if only is not None:
        own = sa.select(streams.id).where(streams.name == only).scalar_subquery()
        query = query.where(streams.name == only)
        counted = {name: one.where(sa.column("stream") == own) for name, one in counted.items()}
    with store.read() as connection:
        found: dict[str, Counter[int]] = {
            name: Counter(dict(map(tuple, connection.execute(one.group_by("stream")))))
            for name, one in counted.items()
        }
        # An index has the labels that are cut, and none those that are not.
        waiting_labels = found["held_labels"] - found.pop("cut_labels")
        found = {"waiting_labels": waiting_labels, **found}
        return {
            row.name: {
                "counts": {
                    **{name: by_stream[row.id] for name, by_stream in found.items()},
                    "late_labels": row.late_labels,
                    "version": row.version,
                },
                "rules": decode(row.rules),
                "classes": decode(row.classes),
            }
            for row in connection.execute(query.order_by(streams.name))
        }
