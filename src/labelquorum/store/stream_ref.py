"""What can be read of a stream: answers, chunks, and the model as the library's own."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from safetensors.numpy import load as parse_arrays

from labelquorum.errors import StoreError
from labelquorum.ingest.labels import LabelSpace
from labelquorum.store.codec import decode, encode, encode_id
from labelquorum.store.database import schema
from labelquorum.store.database.sql import pick, put
from labelquorum.store.learner import Configuration, OpenRow, Work, WorkerRow
from labelquorum.store.rules import Rules

if TYPE_CHECKING:
    from labelquorum.learn.estimator import Estimator
    from labelquorum.learn.model_file import Snapshot
    from labelquorum.store.store import Store

__all__ = ["Answer", "View", "given", "rules_of"]


class Answer(NamedTuple):
    """The answer given to an item."""

    item_id: Hashable
    label: Hashable
    confidence: float
    probs: NDArray[np.float32]  # (C,) of the classes known then
    n_labels: int
    chunk: int


class View:
    """What can be read of a stream, and the rows it is kept in; see `Stream`."""

    def __init__(self, store: "Store", key: int, name: str, configuration: Configuration) -> None:
        self.name = name
        self.configuration = configuration
        self._store, self._key = store, key

    @property
    def rules(self) -> Rules:
        """When chunks are cut and labels deleted."""
        with self._store.read() as connection:
            return rules_of(self._row(connection).rules)

    def answers(self, after: Hashable = None, limit: int | None = None) -> list[Answer]:
        """The answers by item, in the order of their ids as text.

        Parameters
        ----------
        after
            Those that follow this item; from the first unless given.
        limit
            At most so many.
        """
        with self._store.read() as connection:
            return self._given(connection, after, limit)

    def _given(
        self, connection: sa.Connection, after: Hashable = None, limit: int | None = None
    ) -> list[Answer]:
        answers = schema.answers.c
        query = sa.select(schema.answers).where(answers.stream == self._key)
        if after is not None:
            query = query.where(answers.item > encode_id(after, "task", "answers"))
        found = connection.execute(query.order_by(answers.item).limit(limit))
        return [given(row) for row in found]

    def chunks(self, after: int = 0, limit: int | None = None) -> list[Mapping[str, Any]]:
        """Chunks that were cut, and what became of each.

        Parameters
        ----------
        after
            Those that follow the chunk of this number.
        limit
            At most so many; all unless given.
        """
        chunks = schema.chunks.c
        query = sa.select(schema.chunks).where(chunks.stream == self._key, chunks.id > after)
        with self._store.read() as connection:
            found = connection.execute(query.order_by(chunks.id).limit(limit))
            return [{**row._mapping} for row in found]

    def classes(self) -> list[Hashable]:
        """The classes known so far, in the order of every probability."""
        models = schema.models.c
        with self._store.read() as connection:
            found = connection.scalar(sa.select(models.classes).where(models.stream == self._key))
        known: list[Hashable] = decode(found or "[]")
        return known

    def count(self) -> dict[str, int]:
        """How many labels and items wait, were late, were answered; the model's version."""
        labels, waiting, answers = schema.labels.c, schema.waiting.c, schema.answers.c
        with self._store.read() as connection:

            def count(*where: Any) -> int:
                return connection.scalar(sa.select(sa.func.count()).where(*where)) or 0

            own = labels.stream == self._key
            held = count(own)
            return {
                # An index has those that are cut, and none those that are not.
                "waiting_labels": held - count(own, labels.chunk.is_not(None)),
                "waiting_items": count(waiting.stream == self._key),
                "held_labels": held,
                "answered_items": count(answers.stream == self._key),
                "late_labels": self._row(connection).late_labels,
                "version": self._shared(connection)["version"],
            }

    def events(self, after: int = 0, limit: int = 1000) -> list[dict[str, Any]]:
        """What happened after the event of this number: id, at, kind, body."""
        events = schema.events.c
        query = (
            sa.select(events.id, events.at, events.kind, events.body)
            .where(events.stream == self._key, events.id > after)
            .order_by(events.id)
            .limit(limit)
        )
        with self._store.read() as connection:
            return [{**row._mapping, "body": decode(row.body)} for row in connection.execute(query)]

    def last_event(self) -> int:
        """The number of the last event; 0 where there was none."""
        events = schema.events.c
        last = sa.select(sa.func.max(events.id)).where(events.stream == self._key)
        with self._store.read() as connection:
            return connection.scalar(last) or 0

    def snapshot(self) -> "Snapshot":
        """The whole model, every worker, as `BiLA.save` would write it."""
        from labelquorum.store.model_rows import snapshot_of

        return snapshot_of(self._whole())

    def estimator(self) -> "Estimator":
        """The whole model, as the library's own; it knows nothing of the store."""
        from labelquorum.store.model_rows import estimator_of

        return estimator_of(self._whole(), self.name)

    def state_hash(self) -> str:
        """SHA-256 of the model and all answers: equal after the same cuts, whatever happened."""
        digest = sha256()
        with self._store.read() as connection:
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
            for one in self._given(connection):
                plain = [one.item_id, one.label, one.n_labels, one.chunk]
                digest.update(encode(plain).encode() + one.probs.tobytes())
        return digest.hexdigest()

    # ── rows ──────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = decode(self.configuration.settings)
        return settings

    @cached_property
    def _space(self) -> LabelSpace:
        names = ("classes", "repeats", "on_bad", "abstain")
        return LabelSpace(**{name: self._settings[name] for name in names})

    @property
    def _counts_all(self) -> bool:
        return self._space.repeats == "all"

    def _whole(self) -> Work:
        with self._store.read() as connection:
            return self._everything(connection)

    def _row(self, connection: sa.Connection) -> Any:
        return connection.execute(_STREAM, {"stream": self._key}).one()

    def _chunk(self, connection: sa.Connection, number: int) -> Any:
        found = connection.execute(_CHUNK, {"stream": self._key, "chunk": number}).one_or_none()
        if found is None:
            raise StoreError(f"Stream {self.name!r} has no chunk {number!r}. Cut it first.")
        return found

    def _shared(self, connection: sa.Connection) -> dict[str, Any]:
        found = connection.execute(_MODEL, {"stream": self._key}).one()
        return {name: value for name, value in found._mapping.items() if name != "stream"}

    def _workers(
        self, connection: sa.Connection, names: Sequence[str], places: Iterable[int]
    ) -> list[WorkerRow]:
        """The workers of these names and these places, by place."""
        found: dict[int, WorkerRow] = {}
        for column, values in (("worker", names), ("place", list(places))):
            rows = pick(connection, schema.workers, WorkerRow._fields, self._key, column, values)
            found.update((row.place, WorkerRow(*row)) for row in rows)
        return [found[place] for place in sorted(found)]

    def _everything(self, connection: sa.Connection) -> Work:
        workers, items = schema.workers.c, schema.open_items.c
        everybody = sa.select(*(workers[name] for name in WorkerRow._fields)).where(
            workers.stream == self._key
        )
        still_open = sa.select(items.item, items.evidence, items.note).where(
            items.stream == self._key
        )
        shared = self._shared(connection)
        known = {row.place: WorkerRow(*row) for row in connection.execute(everybody)}
        return Work(
            method=self.configuration.method,
            settings=self.configuration.settings,
            chunk=0,
            **shared,
            # A worker who was forgotten leaves an empty place.
            workers=[
                known.get(place) or WorkerRow(place, "null", 0, b"", 0, 0)
                for place in range(shared["n_workers"])
            ],
            open_items=sorted(OpenRow(*row) for row in connection.execute(still_open)),
            labels=[],
            gold=[],
            keeps_open=False,
        )

    def _tell(self, connection: sa.Connection, kind: str, body: Mapping[str, Any]) -> None:
        """Write down what happened, for those who follow."""
        last = connection.scalar(_LAST_EVENT, {"stream": self._key}) or 0
        event = (self._key, last + 1, self._store.now(), kind, encode(body))
        put(connection, schema.events, ("stream", "id", "at", "kind", "body"), [event])

    def _of_items(
        self, connection: sa.Connection, wanted: Any, items: Sequence[str]
    ) -> Sequence[Any]:
        """The rows of a table, or these columns of it, that are of these items."""
        columns = wanted if isinstance(wanted, tuple) else (wanted,)
        if isinstance(wanted, sa.Table):
            columns = tuple(wanted.c)
        names = [column.name for column in columns]
        return pick(connection, columns[0].table, names, self._key, "item", items)

    def _put(
        self,
        connection: sa.Connection,
        table: sa.Table,
        key: str,
        columns: Sequence[str],
        rows: Iterable[Sequence[Any]],
    ) -> None:
        """Write rows of the stream, in place of those with the same key."""
        own = ((self._key, *row) for row in rows)
        put(connection, table, ("stream", *columns), own, keys=("stream", key))


# Made once: making a statement takes longer than asking it.
_MODEL = sa.select(schema.models).where(schema.models.c.stream == sa.bindparam("stream"))
_CHUNK = sa.select(schema.chunks).where(
    schema.chunks.c.stream == sa.bindparam("stream"), schema.chunks.c.id == sa.bindparam("chunk")
)
_LAST_EVENT = sa.select(sa.func.max(schema.events.c.id)).where(
    schema.events.c.stream == sa.bindparam("stream")
)
_STREAM = sa.select(schema.streams).where(schema.streams.c.id == sa.bindparam("stream"))


@lru_cache(maxsize=256)
def rules_of(text: str) -> Rules:
    """Rules as they were kept."""
    return Rules(**decode(text))


def given(row: Any) -> Answer:
    """An answer as it was kept."""
    return Answer(
        decode(row.item),
        decode(row.label),
        row.confidence,
        np.frombuffer(row.probs, np.float32),
        row.n_labels,
        row.chunk,
    )
