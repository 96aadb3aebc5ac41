"""What a stream holds, as rows for other programs: read one after the other, from one state."""

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import sqlalchemy as sa

from labelquorum.ingest.validate import ATTRIBUTES
from labelquorum.ingest.writers import names_of
from labelquorum.store.batch import decode
from labelquorum.store.database import schema
from labelquorum.store.database.sql import any_row

if TYPE_CHECKING:
    from labelquorum.store.stream import Stream


Exported = Literal["answers", "workers", "chunks", "labels"]

PROBABILITY = "prob_"  # before a class, so that no class can be taken for another column
DECIMALS = 6  # more than a 32-bit probability knows
_ROWS = 1_000  # read at a time
_LARGEST = 2**63  # whole numbers beyond it fit no column

Row = dict[str, Any]


class Export(NamedTuple):
    """Rows on their way; each has every column."""

    columns: Mapping[str, set[type]]  # and the types that occur, where they were asked for
    rows: Iterator[Row]


class _Column(NamedTuple):
    """Where a column comes from."""

    source: sa.ColumnElement[Any]
    read: Callable[[Any], Any] | None = None  # how, if it is not stored as it is exported
    types: frozenset[type] = frozenset({int})


@contextmanager
def exported(
    stream: "Stream",
    what: Exported = "answers",
    probabilities: bool = True,
    typed: bool = False,
    chunks: list[int] | None = None,
) -> Iterator[Export]:
    """Read a stream from one state of its store, however long the reading takes.

    Parameters
    ----------
    what
        "answers", "workers", "chunks", or "labels" that are still held.
    probabilities
        Give answers a column for each class, empty where the class was not known yet.
    typed
        Look first which types ids and labels have; formats with typed columns ask for that.
    chunks
        Only answers that were given in these chunks.
    """
    with stream.ref.read() as connection:
        columns, query = _COLUMNS[what](stream.ref.key, connection)
        if chunks is not None:
            query = query.where(schema.answers.c.chunk.in_(chunks))
        types = {name: set(column.types) for name, column in columns.items()}
        if typed:
            types |= {
                name: _types(connection, query, column)
                for name, column in columns.items()
                if column.read is decode
            }
        query = query.add_columns(*(column.source for column in columns.values()))
        names: list[str] = []
        if what == "answers" and probabilities:
            names = [PROBABILITY + name for name in names_of(_classes(stream, connection))]
            types |= {name: {float} for name in names}
            query = query.add_columns(schema.answers.c.probs)
        # Closed also where the reader goes away: SQLite ends no snapshot that a cursor still reads,
        # and the connection would show it to the next reader.
        with connection.execute(query, execution_options={"yield_per": _ROWS}) as found:
            yield Export(types, _rows(found, columns, names))


def _rows(found: Any, columns: Mapping[str, _Column], names: list[str]) -> Iterator[Row]:
    for row in found:
        out = {
            name: value if column.read is None or value is None else column.read(value)
            for (name, column), value in zip(columns.items(), row, strict=False)
        }
        if names:
            probs = np.frombuffer(row.probs, np.float32).astype(float).round(DECIMALS).tolist()
            out |= dict.fromkeys(names)
            out |= dict(zip(names, probs, strict=False))
        yield out


def _types(connection: sa.Connection, query: sa.Select[Any], column: _Column) -> set[type]:
    """The types that occur in a column."""
    different = query.with_only_columns(column.source).order_by(None).distinct()
    found = connection.scalars(different, execution_options={"yield_per": _ROWS})
    values = (decode(value) for value in found if value is not None)
    return {str if type(v) is int and abs(v) >= _LARGEST else type(v) for v in values}


def _classes(stream: "Stream", connection: sa.Connection) -> list[Hashable]:
    known: list[Hashable] = decode(stream.ref.model(connection)["classes"])
    return known


def _rounded(value: float) -> float:
    return round(value, DECIMALS)


def _answers(key: int, connection: sa.Connection) -> tuple[dict[str, _Column], sa.Select[Any]]:
    answers = schema.answers.c
    columns = {
        "task": _Column(answers.item, decode),
        "label": _Column(answers.label, decode),
        "confidence": _Column(answers.confidence, _rounded, frozenset({float})),
        "labels": _Column(answers.n_labels),
        "chunk": _Column(answers.chunk),
    }
    return columns, sa.select().where(answers.stream == key).order_by(answers.item)


def _workers(key: int, connection: sa.Connection) -> tuple[dict[str, _Column], sa.Select[Any]]:
    workers = schema.workers.c
    columns = {
        "worker": _Column(workers.worker, decode),
        "labels": _Column(workers.labels),
        "agreed": _Column(workers.agreed),
    }
    known = sa.and_(workers.stream == key, workers.worker != "null")
    query = sa.select().where(known).order_by(workers.place)
    if any_row(connection, schema.attributes, key):
        table, text = schema.attributes, frozenset({str})
        columns |= {role: _Column(table.c[role], types=text) for role in ATTRIBUTES}
        theirs = sa.and_(table.c.stream == key, table.c.worker == workers.worker)
        query = query.select_from(schema.workers.outerjoin(table, theirs))
    return columns, query


def _chunks(key: int, connection: sa.Connection) -> tuple[dict[str, _Column], sa.Select[Any]]:
    chunks = schema.chunks.c
    text, number = frozenset({str}), frozenset({float})
    columns = {
        "chunk": _Column(chunks.id),
        "state": _Column(chunks.state, types=text),
        "items": _Column(chunks.n_items),
        "labels": _Column(chunks.n_labels),
        "first_row": _Column(chunks.first_row),
        "last_row": _Column(chunks.last_row),
        "cut_at": _Column(chunks.cut_at, types=number),
        "attempts": _Column(chunks.attempts),
        "error": _Column(chunks.error, types=text),
        "version": _Column(chunks.version),
    }
    return columns, sa.select().where(chunks.stream == key).order_by(chunks.id)


def _labels(key: int, connection: sa.Connection) -> tuple[dict[str, _Column], sa.Select[Any]]:
    labels = schema.labels.c
    columns = {
        "task": _Column(labels.item, decode),
        "worker": _Column(labels.worker, decode),
        "label": _Column(labels.label, decode),
        "weight": _Column(labels.weight, types=frozenset({float})),
        "group": _Column(labels.group, decode),
        "timestamp": _Column(labels.timestamp, decode),
        "chunk": _Column(labels.chunk),
    }
    scored = sa.select(labels.row).where(labels.stream == key, labels.score.is_not(None)).limit(1)
    if connection.execute(scored).first() is not None:
        columns["score"] = _Column(labels.score, types=frozenset({float}))
    return columns, sa.select().where(labels.stream == key).order_by(labels.row)


_COLUMNS: dict[str, Callable[[int, sa.Connection], tuple[dict[str, _Column], sa.Select[Any]]]] = {
    "answers": _answers,
    "workers": _workers,
    "chunks": _chunks,
    "labels": _labels,
}
