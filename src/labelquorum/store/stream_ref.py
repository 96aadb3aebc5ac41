"""What the parts of a stream share: its identity, its settings, and access to its rows."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, repeat
from math import isfinite
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from labelquorum.errors import StateError, StoreError
from labelquorum.ingest.labels import LabelSpace
from labelquorum.store.batch import decode, encode
from labelquorum.store.database import schema
from labelquorum.store.database.sql import any_row, pick, put
from labelquorum.store.learner import (
    AttributeRow,
    Configuration,
    LabelColumns,
    OpenRow,
    Work,
    WorkerRow,
)
from labelquorum.store.rules import Rules

if TYPE_CHECKING:
    from labelquorum.store.store import Store

_NO_LABELS = LabelColumns()


@dataclass(frozen=True, eq=False)
class StreamRef:
    """One stream of a store; every part of `Stream` holds it."""

    store: "Store"
    key: int  # of its row in `streams`
    name: str
    configuration: Configuration

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings of the method, by name."""
        settings: dict[str, Any] = decode(self.configuration.settings)
        return settings

    @cached_property
    def space(self) -> LabelSpace:
        """How labels are read and checked."""
        return _space_of(self.settings)

    @property
    def counts_all(self) -> bool:
        """Whether several labels of one worker on one item all count."""
        return self.space.repeats == "all"

    def read(self) -> AbstractContextManager[sa.Connection]:
        """A connection that sees one state of the store."""
        return self.store.read()

    def write(self) -> AbstractContextManager[sa.Connection]:
        """A transaction; see `Store.write`."""
        return self.store.write()

    def now(self) -> float:
        """The store's time, which never goes back."""
        return self.store.now()

    # ── reading rows ──────────────────────────────────────────────────────────────────────

    def row(self, connection: sa.Connection) -> Any:
        """The stream's own row."""
        found = connection.execute(_STREAM, {"stream": self.key}).one_or_none()
        if found is None:
            raise self.deleted()
        return found

    def deleted(self) -> StateError:
        """The error of who asks a stream that is gone."""
        return StateError(f"Stream {self.name!r} was deleted. Make it again, or name another.")

    def rules(self, connection: sa.Connection) -> Rules:
        """The rules in force."""
        return rules_of(self.row(connection).rules)

    def chunk(self, connection: sa.Connection, number: int) -> Any:
        """The row of a chunk."""
        found = connection.execute(_CHUNK, {"stream": self.key, "chunk": number}).one_or_none()
        if found is None:
            self.row(connection)
            raise StoreError(f"Stream {self.name!r} has no chunk {number!r}. Cut it first.")
        return found

    def cut_chunks(self, connection: sa.Connection) -> list[int]:
        """The chunks that are cut and not applied, in order."""
        return list(connection.scalars(_CUT_CHUNKS, {"stream": self.key}))

    def model(self, connection: sa.Connection) -> dict[str, Any]:
        """What all workers share: version, classes, n_workers, n_chunks, shared."""
        self.row(connection)
        return dict(connection.execute(_MODEL, {"stream": self.key}).mappings().one())

    def workers(
        self, connection: sa.Connection, names: Sequence[str], places: Iterable[int]
    ) -> list[WorkerRow]:
        """The workers of these names and these places, by place."""
        found: dict[int, WorkerRow] = {}
        columns, make = WorkerRow._fields, WorkerRow._make
        for column, values in (("worker", names), ("place", list(places))):
            rows = pick(connection, schema.workers, columns, self.key, column, values, make)
            found.update((row.place, row) for row in rows)
        return [found[place] for place in sorted(found)]

    def attributes(self, connection: sa.Connection, names: Iterable[str]) -> list[AttributeRow]:
        """What is known of these workers, in order."""
        if not any_row(connection, schema.attributes, self.key):
            return []
        columns, make = AttributeRow._fields, AttributeRow._make
        rows = pick(connection, schema.attributes, columns, self.key, "worker", set(names), make)
        return sorted(rows, key=itemgetter(0))

    def open_rows(self, connection: sa.Connection, items: Sequence[str]) -> list[OpenRow]:
        """Those of these items that are open, in order."""
        columns, make = OpenRow._fields, OpenRow._make
        return sorted(pick(connection, schema.open_items, columns, self.key, "item", items, make))

    def of_items(
        self, connection: sa.Connection, selected: Any, items: Sequence[str]
    ) -> Sequence[Any]:
        """The rows of these items, of a table or of some of its columns."""
        columns = selected if isinstance(selected, tuple) else (selected,)
        if isinstance(selected, sa.Table):
            columns = tuple(selected.c)
        names = [column.name for column in columns]
        return pick(connection, columns[0].table, names, self.key, "item", items)

    def work(
        self,
        connection: sa.Connection,
        workers: Sequence[WorkerRow],
        open_items: Sequence[OpenRow] = (),
        also: Iterable[str] = (),
    ) -> Work:
        """The model with these rows, for the learner; attributes are those of `also`, too."""
        names = chain((row.worker for row in workers), also)
        return Work(
            method=self.configuration.method,
            settings=self.configuration.settings,
            chunk=0,
            **self.model(connection),
            workers=workers,
            open_items=open_items,
            labels=LabelColumns(),
            gold=(),
            keeps_open=False,
            attributes=self.attributes(connection, names),
        )

    # ── writing rows ──────────────────────────────────────────────────────────────────────

    def put(
        self,
        connection: sa.Connection,
        table: sa.Table,
        key: str,
        columns: Sequence[str],
        rows: Iterable[Sequence[Any]],
        changes: Sequence[str] | None = None,
    ) -> None:
        """Insert rows of the stream, or replace those with the same key; see `sql.put`."""
        own = [(self.key, *row) for row in rows]
        put(connection, table, ("stream", *columns), own, ("stream", key), changes)

    def put_columns(
        self,
        connection: sa.Connection,
        table: sa.Table,
        key: str,
        columns: Mapping[str, Iterable[Any]],
    ) -> None:
        """The same for rows that are given by column, of which some may be `repeat(value)`."""
        own = zip(repeat(self.key), *columns.values(), strict=False)
        put(connection, table, ("stream", *columns), own, ("stream", key))

    def release(self, connection: sa.Connection, n_labels: int) -> None:
        """Hold this many raw labels less: they were deleted."""
        connection.execute(_RELEASED, {"key": self.key, "gone": n_labels})

    def add_event(self, connection: sa.Connection, kind: str, body: Mapping[str, Any]) -> None:
        """Append to the stream's events."""
        last = connection.scalar(_LAST_EVENT, {"stream": self.key}) or 0
        event = (self.key, last + 1, self.now(), kind, encode(body))
        put(connection, schema.events, ("stream", "id", "at", "kind", "body"), [event])


@lru_cache(maxsize=256)
def rules_of(text: str) -> Rules:
    """Rules as they are stored."""
    return Rules(**decode(text))


def _space_of(settings: Mapping[str, Any]) -> LabelSpace:
    names = ("classes", "repeats", "on_bad", "abstain")
    return LabelSpace(**{name: settings[name] for name in names})


def check_streams(
    connection: sa.Connection, where: str, configure: Callable[[str, Any], Any] = lambda *_: None
) -> None:
    """Refuse a store in which a row of a stream, or of its model, is not what one must be.

    SQLite keeps text in a column of numbers, and knows no JSON. `configure` checks the method and
    its settings; older tables may lack columns.
    """
    found = connection.exec_driver_sql("SELECT stream, classes FROM models")
    models = {row.stream: row.classes for row in found}
    for row in connection.exec_driver_sql("SELECT * FROM streams").mappings():
        try:
            for name, value in row.items():
                kind = schema.streams.c[name].type.python_type
                fits = isinstance(value, kind if kind is str else int | kind)
                if not fits or (kind is not str and not isfinite(value)):
                    raise ValueError(f"its {name} is {str(value)[:40]!r}")
            rules_of(row["rules"])
            settings = decode(row["settings"])
            _space_of(settings)
            seed, classes = settings["seed"], decode(models.get(row["id"], "null"))
            if not isinstance(seed, int) or not isinstance(classes, list):
                raise ValueError("its seed is no number, or its model has no classes")
            configure(row["method"], settings)
        except (LookupError, RecursionError, TypeError, ValueError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else error
            raise StoreError(
                f"{where}: the row of stream {str(row['name'])[:40]!r} cannot be read ({reason}). "
                "Restore a sound backup."
            ) from error


# Built once: building a statement takes longer than executing it.
_key: sa.BindParameter[int] = sa.bindparam("stream")
_models, _chunks = schema.models.c, schema.chunks.c
_STREAM = sa.select(schema.streams).where(schema.streams.c.id == _key)
_MODEL = sa.select(*(column for column in _models if column is not _models.stream)).where(
    _models.stream == _key
)
_CHUNK = sa.select(schema.chunks).where(_chunks.stream == _key, _chunks.id == sa.bindparam("chunk"))
_CUT_CHUNKS = (
    sa.select(_chunks.id).where(_chunks.stream == _key, _chunks.state == "cut").order_by(_chunks.id)
)
_RELEASED = (
    schema.streams.update()
    .where(schema.streams.c.id == sa.bindparam("key"))
    .values(held_labels=schema.streams.c.held_labels - sa.bindparam("gone"))
)
_LAST_EVENT = sa.select(sa.func.max(schema.events.c.id)).where(schema.events.c.stream == _key)
