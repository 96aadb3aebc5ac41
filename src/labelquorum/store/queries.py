"""Reading a stream: answers, chunks, events and counts from the store, the rest from the learner.

What only the model knows (skills with their intervals, the reasons of an answer, the gain of one
more label) is asked of the learner, which gets the rows it needs and no more.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from hashlib import sha256
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from safetensors.numpy import load as parse_arrays

from labelquorum.errors import LabelError, StateError
from labelquorum.ingest.worker_attributes import Attributes
from labelquorum.learn.analysis.intervals import wilson
from labelquorum.store.batch import decode, encode, encode_id
from labelquorum.store.database import schema
from labelquorum.store.database.sql import any_row
from labelquorum.store.evidence import worker_places
from labelquorum.store.learner import OpenRow, Work, WorkerRow
from labelquorum.store.stream_ref import StreamRef

if TYPE_CHECKING:
    from labelquorum.learn.estimator import Estimator
    from labelquorum.learn.model_file import Snapshot
    from labelquorum.store.store import Store

__all__ = [
    "Answer",
    "GoldError",
    "Queries",
    "Recent",
    "Undecided",
    "all_counts",
    "all_rows",
    "answer_of",
]

RECENT_LABELS = 20_000
"""Recent agreement of workers is measured on this many of the stream's last labels."""

CROWD_WORKERS = 1_000
"""Number of workers, those with most labels, that represent the crowd in a question."""

MAX_TABLE_WORKERS = 20_000
"""Number of workers in a worker table, those with most labels."""

MAX_STATE_BYTES = 64 << 20
"""Bytes of worker states sent with a question; beyond it, only the busiest workers are sent."""

MAX_MODEL_CLASSES = 64
"""With more classes the worker table is made of counts, without the model."""

FLAG_ITEMS = 2_000
"""Collusion and agreement rest on this many items, those answered last, as far as they are open."""

AGREEMENT_WORKERS = 30
"""Workers whose agreement with one another is computed unless more are asked for: a screen holds
as many."""

JURY_WORKERS = 300
"""Judges in the report on a jury unless more are asked for: with 2,000 items it takes 0.1 s."""

_NO_JURY: Mapping[str, Any] = {
    "text": "No task is open: a jury is reported on open tasks.",
    **dict.fromkeys(("effective", "low", "high")),
    **dict.fromkeys(("correlation", "correlation_low", "correlation_high")),
    **dict.fromkeys(("n_judges", "tasks", "gold_tasks", "left_out"), 0),
    **{"reference": "consensus", "judges": [], "groups": [], "order_effects": [], "level": 0.95},
}

MODEL_ITEMS = 10_000
"""A model file holds the open ones of this many items, those answered last; `BiLA` keeps as many.
A stream may have millions open, and the file would be as large as its store."""

COUNTED_ITEMS = 10_000
"""Open items are counted up to this many."""

GAIN_ITEMS = 500
"""The gain of a label is computed for at least this many open items, the least sure."""

_FORGOTTEN = "null"  # in place of the id of a worker who was forgotten


class Answer(NamedTuple):
    """The answer of an item."""

    item_id: Hashable
    label: Hashable
    confidence: float
    probs: NDArray[np.float32]  # (C,) of the classes known then
    n_labels: int
    chunk: int


class Undecided(NamedTuple):
    """An item with labels and no answer yet."""

    item_id: Hashable
    n_labels: int
    ready: bool


class GoldError(NamedTuple):
    """How often answers were wrong whose truth came later, with a 95 % interval."""

    items: int
    wrong: int
    error: float
    low: float
    high: float


class Recent(NamedTuple):
    """What a worker said recently, as far as labels are kept."""

    labels: int
    agreed: int  # with the answer


class Queries:
    """Reads a stream; see `Stream`, which offers the same methods."""

    def __init__(self, ref: StreamRef) -> None:
        self._ref = ref

    # ── items ─────────────────────────────────────────────────────────────────────────────

    def answers(self, after: Hashable = None, limit: int | None = None) -> list[Answer]:
        """The answers by item, in the order of their ids as text.

        Parameters
        ----------
        after
            Start behind this item; at the first unless given.
        limit
            Maximum number of answers; all unless given.
        """
        with self._ref.read() as connection:
            return self._answers(connection, after, limit)

    def _answers(
        self, connection: sa.Connection, after: Hashable = None, limit: int | None = None
    ) -> list[Answer]:
        answers = schema.answers.c
        query = sa.select(schema.answers).where(answers.stream == self._ref.key)
        if after is not None:
            query = query.where(answers.item > encode_id(after, "task", "answers"))
        found = connection.execute(query.order_by(answers.item).limit(limit))
        return [answer_of(row) for row in found]

    def item(self, task: Hashable) -> Answer | Undecided | None:
        """One item: its answer, or what it waits for; None of an unknown item."""
        item = encode_id(task, "task", "item")
        with self._ref.read() as connection:
            for row in self._ref.of_items(connection, schema.answers, [item]):
                return answer_of(row)
            for row in self._ref.of_items(connection, schema.waiting, [item]):
                return Undecided(task, row.n_labels, row.ready_at is not None)
            n_labels = len(self._ref.of_items(connection, schema.labels, [item]))
        return Undecided(task, n_labels, ready=True) if n_labels else None

    def pending(self, threshold: float = 0.95, limit: int = 100) -> list[tuple[Answer, bool]]:
        """Answers with less confidence than this, the least first, and whether each is open."""
        if not 0 <= threshold <= 1:
            raise StateError(f"`threshold` must be a number between 0 and 1. Got {threshold!r}.")
        answers, items = schema.answers.c, schema.open_items.c
        # Which are open is asked of this page alone.
        page = (
            sa.select(schema.answers)
            .where(answers.stream == self._ref.key, answers.confidence < threshold)
            .order_by(answers.confidence, answers.item)
            .limit(limit)
            .subquery()
        )
        is_open = sa.exists().where(
            items.stream == self._ref.key,
            items.item == page.c.item,
            items.open_until > self._ref.now(),
        )
        query = sa.select(page, is_open.label("open")).order_by(page.c.confidence, page.c.item)
        with self._ref.read() as connection:
            return [(answer_of(row), bool(row.open)) for row in connection.execute(query)]

    # ── chunks, events, counts ────────────────────────────────────────────────────────────

    def chunks(self, after: int = 0, limit: int | None = None) -> list[Mapping[str, Any]]:
        """Chunks that were cut after this one, and what became of each; at most `limit`."""
        chunks = schema.chunks.c
        return self._chunks(chunks.id, limit, chunks.id > after)

    def last_chunks(self, limit: int = 10) -> list[Mapping[str, Any]]:
        """The chunks that were cut last, the newest first."""
        return self._chunks(schema.chunks.c.id.desc(), limit)

    def _chunks(self, order: Any, limit: int | None, *where: Any) -> list[Mapping[str, Any]]:
        query = sa.select(schema.chunks).where(schema.chunks.c.stream == self._ref.key, *where)
        with self._ref.read() as connection:
            found = connection.execute(query.order_by(order).limit(limit)).mappings()
            return [dict(row) for row in found]

    def quarantined(self) -> list[int]:
        """The chunks that could not be learned from."""
        chunks = schema.chunks.c
        query = sa.select(chunks.id).where(
            chunks.stream == self._ref.key, chunks.state == "quarantined"
        )
        with self._ref.read() as connection:
            return list(connection.scalars(query.order_by(chunks.id)))

    def events(self, after: int = 0, limit: int = 1000) -> list[dict[str, Any]]:
        """What happened after the event of this number: id, at, kind, body."""
        events = schema.events.c
        query = (
            sa.select(events.id, events.at, events.kind, events.body)
            .where(events.stream == self._ref.key, events.id > after)
            .order_by(events.id)
            .limit(limit)
        )
        with self._ref.read() as connection:
            found = connection.execute(query).mappings()
            return [{**row, "body": decode(row["body"])} for row in found]

    def last_event(self) -> int:
        """The number of the last event; 0 where there was none."""
        events = schema.events.c
        last = sa.select(sa.func.max(events.id)).where(events.stream == self._ref.key)
        with self._ref.read() as connection:
            return connection.scalar(last) or 0

    def classes(self) -> list[Hashable]:
        """The classes known so far, in the order of every probability."""
        models = schema.models.c
        query = sa.select(models.classes).where(models.stream == self._ref.key)
        with self._ref.read() as connection:
            known: list[Hashable] = decode(connection.scalar(query) or "[]")
        return known

    def model_version(self) -> int:
        """How many chunks were learned from."""
        models = schema.models.c
        version = sa.select(models.version).where(models.stream == self._ref.key)
        with self._ref.read() as connection:
            return connection.scalar(version) or 0

    def count(self) -> dict[str, int]:
        """How many labels and items wait, were late, were answered; the model's version."""
        with self._ref.read() as connection:
            name = self._ref.row(connection).name  # it may have another by now
        counts: dict[str, int] = all_counts(self._ref.store, name)[name]["counts"]
        return counts

    def recent_agreement(self, workers: Sequence[Hashable]) -> dict[Hashable, Recent]:
        """How often each of these workers agreed with the answers recently.

        Only labels that are kept count, so a stream that discards them has none.
        """
        names = [encode_id(worker, "worker", "recent") for worker in workers]
        labels, answers, streams = schema.labels.c, schema.answers.c, schema.streams.c
        last = sa.select(streams.next_row).where(streams.id == self._ref.key).scalar_subquery()
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
                labels.stream == self._ref.key,
                labels.row >= last - RECENT_LABELS,
                labels.worker.in_(names),
                labels.chunk.is_not(None),
            )
            .group_by(labels.worker)
            .having(n_answered > 0)
        )
        with self._ref.read() as connection:
            return {decode(name): Recent(n, int(a)) for name, n, a in connection.execute(query)}

    def gold_error(self) -> GoldError | None:
        """How often answers were wrong, by truths that came after them; None where none did."""
        gold = schema.gold.c
        wrong = sa.func.sum(sa.case((gold.answered != gold.label, 1), else_=0))
        query = sa.select(sa.func.count(), wrong).where(
            gold.stream == self._ref.key, gold.answered.is_not(None)
        )
        with self._ref.read() as connection:
            n, n_wrong = connection.execute(query).one()
        if not n:
            return None
        error = n_wrong / n
        return GoldError(n, int(n_wrong), error, *wilson(error, n))

    # ── the whole model ───────────────────────────────────────────────────────────────────

    def snapshot(self) -> "Snapshot":
        """The whole model, every worker, as `BiLA.save` would write it."""
        from labelquorum.store.model_rows import snapshot_of

        return snapshot_of(self._whole())

    def estimator(self) -> "Estimator":
        """The whole model as an estimator of the library, detached from the store."""
        from labelquorum.store.model_rows import estimator_of

        return estimator_of(self._whole(), self._ref.name)

    def model_file(self) -> bytes:
        """The model as the file `labelquorum.load` reads, with the items answered last."""
        with self._ref.read() as connection:
            work = self._everything(connection, self._latest_open(connection, MODEL_ITEMS))
        file: bytes = self._ask(work, "snapshot")
        return file

    def state_hash(self) -> str:
        """SHA-256 of the model and all answers: equal after the same cuts, whatever happened."""
        digest = sha256()
        with self._ref.read() as connection:
            work = self._everything(connection)
            digest.update(
                encode([work.version, work.classes, work.n_workers, work.n_chunks]).encode()
            )
            shared = {} if work.shared is None else parse_arrays(work.shared)
            for name, array in sorted(shared.items()):
                digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
            for row in (*work.workers, *work.open_items):
                for part in row:
                    digest.update(part if isinstance(part, bytes) else encode(part).encode())
            if work.attributes:
                digest.update(encode(work.attributes).encode())
            for one in self._answers(connection):
                plain = [one.item_id, one.label, one.n_labels, one.chunk]
                digest.update(encode(plain).encode() + one.probs.tobytes())
        return digest.hexdigest()

    def _whole(self) -> Work:
        with self._ref.read() as connection:
            return self._everything(connection)

    def _everything(
        self, connection: sa.Connection, opened: Sequence[OpenRow] | None = None
    ) -> Work:
        """The model with all workers, and with these open items or all."""
        workers, items = schema.workers.c, schema.open_items.c
        everybody = sa.select(*(workers[name] for name in WorkerRow._fields)).where(
            workers.stream == self._ref.key
        )
        still_open = sa.select(items.item, items.evidence, items.note).where(
            items.stream == self._ref.key
        )
        known = {row.place: WorkerRow(*row) for row in connection.execute(everybody)}
        if opened is None:
            opened = [OpenRow(*row) for row in connection.execute(still_open)]
        work = self._ref.work(connection, list(known.values()), sorted(opened))
        # A worker who was forgotten leaves an empty place.
        rows = [
            known.get(place) or WorkerRow(place, _FORGOTTEN, 0, b"", 0, 0)
            for place in range(work.n_workers)
        ]
        return work._replace(workers=rows)

    # ── workers ───────────────────────────────────────────────────────────────────────────

    def workers(
        self,
        after: int = -1,
        limit: int = 100,
        places: Sequence[int] | None = None,
        matrices: bool = True,
    ) -> list[dict[str, Any]]:
        """Workers in order of appearance, with skill, its interval, and their counts.

        Parameters
        ----------
        after
            Start behind this `place`.
        limit
            Maximum number of workers.
        places
            Those at these places, in place of `after` and `limit`.
        matrices
            Add the confusion matrix of each.
        """
        workers = schema.workers.c
        with self._ref.read() as connection:
            if places is None:
                query = sa.select(workers.place).where(self._known(), workers.place > after)
                places = list(connection.scalars(query.order_by(workers.place).limit(limit)))
            crowd, room = self._busiest(connection), self._room(connection)
        found = []
        for start in range(0, len(places), room):
            some = places[start : start + room]
            with self._ref.read() as connection:
                asked = self._ref.workers(connection, [], some)
                work = self._part(connection, [*some, *crowd])
            found += self._skills(asked, work, matrices=matrices)
        return found

    def worker(self, worker: Hashable) -> dict[str, Any]:
        """One worker: skill, its interval, the confusion matrix, and their counts."""
        return self._one_worker(worker, "skills")

    def profile(self, worker: Hashable) -> dict[str, Any]:
        """One worker beside the crowd and over time: as `worker`, with track and changes."""
        return self._one_worker(worker, "profile")

    def _one_worker(self, worker: Hashable, question: str) -> dict[str, Any]:
        with self._ref.read() as connection:
            asked = self._ref.workers(connection, [encode_id(worker, "worker", "worker")], [])
            if not asked:
                raise LabelError(
                    f"Stream {self._ref.name!r}: worker {worker!r} is not known: no label of "
                    "theirs was learned from. Check the id."
                )
            work = self._part(connection, [asked[0].place, *self._busiest(connection)])
        return self._skills(asked, work, question)[0]

    def worker_table(self) -> tuple[int, list[dict[str, Any]], int]:
        """The workers with most labels, by place: labels, agreement, skill, and flags.

        Returns
        -------
        version : of the model
        rows : worker, place, labels, agreed, skill, flags
        n_workers : all of them, also those who are not in the table
        """
        with self._ref.read() as connection:
            n_workers = connection.scalar(sa.select(sa.func.count()).where(self._known())) or 0
            model = self._ref.model(connection)
            if len(decode(model["classes"])) > MAX_MODEL_CLASSES:
                return model["version"], self._counted_table(connection), n_workers
            places = self._busiest(connection, MAX_TABLE_WORKERS)
            work = self._with_latest_open(connection, places)
        listed = set(places)
        asked = [row for row in work.workers if row.place in listed]
        if not asked:
            return work.version, [], n_workers
        found = self._ask(work, "worker_table")
        place_of = {row.worker: row.place for row in work.workers}
        flags: dict[int, list[dict[str, Any]]] = {}
        for worker, flag in found["flags"]:
            flags.setdefault(place_of[encode_id(worker, "worker", "table")], []).append(flag)
        skill = dict(zip(map(attrgetter("place"), work.workers), found["skill"], strict=True))
        table = [_table_row(row, skill[row.place], flags.get(row.place, [])) for row in asked]
        return work.version, table, n_workers

    def agreement(self, limit: int = AGREEMENT_WORKERS) -> dict[str, Any]:
        """Cohen's kappa of every two of the workers with most labels on the items answered last.

        Returns
        -------
        workers, left_out, items : who is compared, how many are not, and on how many open items
        kappa, low, high, agreement, shared : (K, K) lists; None where nothing is known
        """
        with self._ref.read() as connection:
            work = self._with_latest_open(connection, [])
        if not work.open_items:
            names = ("kappa", "low", "high", "agreement", "shared")
            return {"workers": [], "left_out": 0, "items": 0} | {name: [] for name in names}
        return {**self._ask(work, "agreement", limit=limit), "items": len(work.open_items)}

    def jury(self, limit: int = JURY_WORKERS) -> dict[str, Any]:
        """The report on the jury of the items answered last, as `Jury.to_dict` gives it."""
        with self._ref.read() as connection:
            work = self._with_latest_open(connection, [])
        found = self._ask(work, "jury", limit=limit) if work.open_items else _NO_JURY
        return {**found, "items": len(work.open_items)}

    def _with_latest_open(self, connection: sa.Connection, places: Sequence[int]) -> Work:
        """The model with these workers, the open items answered last, and the workers of these."""
        seen, rows, room = set(places), [], self._room(connection)
        for row in self._latest_open(connection, FLAG_ITEMS):
            more = set(worker_places(row.evidence)) - seen
            if len(seen) + len(more) > len(places) + room:
                break
            seen |= more
            rows.append(row)
        # The newest stand last, as where they are opened one by one.
        return self._part(connection, seen)._replace(open_items=rows[::-1])

    def _counted_table(self, connection: sa.Connection) -> list[dict[str, Any]]:
        """The workers with most labels, by place; with the share of agreement as skill."""
        workers = schema.workers.c
        busiest = (
            sa.select(workers.place, workers.worker, workers.labels, workers.agreed)
            .where(self._known())
            .order_by(workers.labels.desc(), workers.place)
            .limit(MAX_TABLE_WORKERS)
        )
        return [
            _table_row(row, row.agreed / max(row.labels, 1), [])
            for row in sorted(connection.execute(busiest))
        ]

    # ── open items ────────────────────────────────────────────────────────────────────────

    def suggestions(self, limit: int = 100) -> tuple[list[dict[str, Any]], int]:
        """Open items by what one more label would likely do, the largest gain first.

        Where it is in doubt which answers are right, those whose true label decides it come first.
        Only the least sure items are compared. Also returns how many items are open, counted up to
        `COUNTED_ITEMS`.
        """
        items = schema.open_items.c
        now = self._ref.now()
        is_open = sa.and_(items.stream == self._ref.key, items.open_until > now)
        with self._ref.read() as connection:
            some = sa.select(items.open_until).where(is_open).limit(COUNTED_ITEMS).subquery()
            n_open = connection.scalar(sa.select(sa.func.count()).select_from(some)) or 0
            if not n_open:
                return [], 0
            wanted = max(limit, GAIN_ITEMS)
            unsure: Sequence[Any] = []
            if n_open == COUNTED_ITEMS:  # then most of the least sure are open, as a rule
                unsure = self._least_sure(connection, 4 * wanted)
                until = (items.item, items.open_until)
                held = self._ref.of_items(connection, until, [row.item for row in unsure])
                still = {row.item for row in held if row.open_until > now}
                unsure = [row for row in unsure if row.item in still][:wanted]
            if len(unsure) < wanted:
                unsure = self._least_sure(connection, wanted, is_open)
            work = self._about(connection, [row.item for row in unsure])
        by_item = {row.item: answer_of(row) for row in unsure}
        found = []
        for one in self._gains(work, limit):
            item = by_item[encode_id(one["task"], "task", "suggestions")]
            found.append(
                {
                    "task": item.item_id,
                    "label": item.label,
                    "confidence": item.confidence,
                    "labels": item.n_labels,
                    "gain": one["gain"],
                    "worker": one["best_worker"],
                    "worker_gain": one["best_gain"],
                    "open": True,
                    "decides": one["decides"],
                }
            )
        return found, n_open

    def _least_sure(
        self, connection: sa.Connection, limit: int, is_open: sa.ColumnElement[bool] | None = None
    ) -> Sequence[Any]:
        """The answers with the least confidence; of open items only, if it is said which are."""
        answers = schema.answers.c
        query = sa.select(schema.answers).where(answers.stream == self._ref.key)
        if is_open is not None:
            of_item = schema.open_items.c.item == answers.item
            query = query.join(schema.open_items, of_item).where(is_open)
        ordered = query.order_by(answers.confidence, answers.item)
        return connection.execute(ordered.limit(limit)).all()

    def gains(self, tasks: Sequence[Hashable], top: int | None = None) -> list[dict[str, Any]]:
        """What one more label of each of these open items would likely do."""
        with self._ref.read() as connection:
            work = self._about(connection, [encode_id(task, "task", "gains") for task in tasks])
        return self._gains(work, top)

    def _gains(self, work: Work | None, top: int | None) -> list[dict[str, Any]]:
        if work is None:
            return []
        tasks = [decode(row.item) for row in work.open_items]
        found: list[dict[str, Any]] = self._ask(work, "gains", tasks=tasks, top=top)
        return found

    def explain(self, task: Hashable) -> dict[str, Any] | None:
        """Why an open item has its answer; None of an item whose labels are no longer held."""
        with self._ref.read() as connection:
            work = self._about(connection, [encode_id(task, "task", "explain")])
        return None if work is None else self._ask(work, "explain", task=task)

    def reasons(self, task: Hashable) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """Why an open item has its answer, and what one more label would do, if known.

        Both are None of an item whose labels are no longer held; the second also where the truth
        is known.
        """
        with self._ref.read() as connection:
            work = self._about(connection, [encode_id(task, "task", "reasons")])
        if work is None:
            return None, None
        found = self._ask(work, "reasons", task=task)
        return found["why"], found["gain"]

    # ── what a question is asked with ─────────────────────────────────────────────────────

    def _ask(self, work: Work, question: str, **options: Any) -> Any:
        return self._ref.store.learner.ask(work, question, options)

    def _skills(
        self, asked: Sequence[WorkerRow], work: Work, question: str = "skills", **options: Any
    ) -> list[dict[str, Any]]:
        if not asked:
            return []
        workers = [decode(row.worker) for row in asked]
        known = {row.worker: Attributes(*row[1:])._asdict() for row in work.attributes}
        return [
            {
                **one,
                "place": row.place,
                "labels": row.labels,
                "agreed": row.agreed,
                "classes": decode(work.classes),
                **known.get(row.worker, {}),
            }
            for one, row in zip(
                self._ask(work, question, workers=workers, **options), asked, strict=True
            )
        ]

    def _known(self) -> sa.ColumnElement[bool]:
        """Workers of the stream, without those who were forgotten."""
        workers = schema.workers.c
        return sa.and_(workers.stream == self._ref.key, workers.worker != _FORGOTTEN)

    def _busiest(self, connection: sa.Connection, limit: int = CROWD_WORKERS) -> list[int]:
        """The workers with most labels, who represent the crowd."""
        workers = schema.workers.c
        busiest = (
            sa.select(workers.place)
            .where(self._known())
            .order_by(workers.labels.desc(), workers.place)
            .limit(min(limit, self._room(connection)))
        )
        return list(connection.scalars(busiest))

    def _room(self, connection: sa.Connection) -> int:
        """How many workers fit into a question; no state is larger than the last one's."""
        workers = schema.workers.c
        last = (
            sa.select(sa.func.length(workers.state))
            .where(self._known())
            .order_by(workers.n_classes.desc(), workers.place.desc())
            .limit(1)
        )
        return max(1, MAX_STATE_BYTES // (connection.scalar(last) or 1))

    def _latest_open(self, connection: sa.Connection, limit: int) -> list[OpenRow]:
        """Those of the items answered last that are open, the newest first.

        By their chunks, not by `open_until`, which is the same for all that never close: sorting
        them would take as long as there are many.
        """
        if not any_row(connection, schema.open_items, self._ref.key):
            return []
        answers = schema.answers.c
        latest = list(
            connection.scalars(
                sa.select(answers.item)
                .where(answers.stream == self._ref.key)
                .order_by(answers.chunk.desc(), answers.item)
                .limit(limit)
            )
        )
        is_open = {row.item: row for row in self._ref.open_rows(connection, latest)}
        return [is_open[item] for item in latest if item in is_open]

    def _part(self, connection: sa.Connection, places: Iterable[int]) -> Work:
        """The model with these workers."""
        return self._ref.work(connection, self._ref.workers(connection, [], set(places)))

    def _about(self, connection: sa.Connection, items: Sequence[str]) -> Work | None:
        """The model with these items as far as they are open, their workers, and the crowd."""
        rows = self._ref.open_rows(connection, items)
        if not rows:
            return None
        places = [place for row in rows for place in worker_places(row.evidence)]
        work = self._part(connection, [*places, *self._busiest(connection)])
        return work._replace(open_items=rows)


def answer_of(row: Any) -> Answer:
    """An answer as it is stored."""
    return Answer(
        decode(row.item),
        decode(row.label),
        row.confidence,
        np.frombuffer(row.probs, np.float32),
        row.n_labels,
        row.chunk,
    )


def _table_row(row: Any, skill: float, flags: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "worker": decode(row.worker),
        "place": row.place,
        "labels": row.labels,
        "agreed": row.agreed,
        "skill": skill,
        "flags": flags,
    }


# ── all streams of a store ────────────────────────────────────────────────────────────────


def all_rows(store: "Store") -> dict[str, int]:
    """How many labels were accepted in each stream since it was made."""
    streams = schema.streams.c
    with store.read() as connection:
        return {
            name: rows - 1
            for name, rows in connection.execute(sa.select(streams.name, streams.next_row))
        }


def all_counts(store: "Store", only: str | None = None) -> dict[str, dict[str, Any]]:
    """`Stream.count` of each stream, with its rules and classes, in a few queries.

    Parameters
    ----------
    only
        The stream of this name alone.
    """
    streams, models = schema.streams.c, schema.models.c
    labels, waiting, answers = schema.labels.c, schema.waiting.c, schema.answers.c
    # From the items that wait, which are few: labels that are kept may be millions.
    of_waiting = sa.and_(
        labels.stream == waiting.stream, labels.item == waiting.item, labels.chunk.is_(None)
    )
    counted = {
        "waiting_labels": sa.select(waiting.stream, sa.func.count(labels.row)).select_from(
            schema.waiting.outerjoin(schema.labels, of_waiting)
        ),
        "waiting_items": sa.select(waiting.stream, sa.func.count()),
        "answered_items": sa.select(answers.stream, sa.func.count()),
    }
    query = sa.select(
        streams.id,
        streams.name,
        streams.rules,
        streams.late_labels,
        streams.held_labels,
        models.version,
        models.classes,
    ).where(models.stream == streams.id)
    if only is not None:
        own = sa.select(streams.id).where(streams.name == only).scalar_subquery()
        query = query.where(streams.name == only)
        counted = {name: one.where(one.selected_columns[0] == own) for name, one in counted.items()}
    with store.read() as connection:
        found: dict[str, Counter[int]] = {
            name: Counter(
                dict(map(tuple, connection.execute(one.group_by(one.selected_columns[0]))))
            )
            for name, one in counted.items()
        }
        return {
            row.name: {
                "counts": {
                    "waiting_labels": found["waiting_labels"][row.id],
                    "waiting_items": found["waiting_items"][row.id],
                    "held_labels": row.held_labels,
                    "answered_items": found["answered_items"][row.id],
                    "late_labels": row.late_labels,
                    "version": row.version,
                },
                "rules": decode(row.rules),
                "classes": decode(row.classes),
            }
            for row in connection.execute(query.order_by(streams.name))
        }
