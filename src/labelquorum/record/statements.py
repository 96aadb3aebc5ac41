"""Statements for many values at once, the same in SQLite and PostgreSQL.

Each is one text however many values there are, so a database prepares it once. Labels pass here by
the thousand a second, so rows go straight to the driver, within the transaction that is going on.
"""

from collections import namedtuple
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

from labelquorum.record.tables import encode

__all__ = ["among", "any_row", "change", "pick", "put"]


def among(
    connection: sa.Connection, column: sa.Column[Any], values: Collection[Any]
) -> sa.ColumnElement[bool]:
    """That a column has one of these values."""
    listed = list(values)
    if connection.dialect.name == "postgresql":
        return column == sa.any_(sa.bindparam(None, listed, ARRAY(column.type), unique=True))
    given = sa.func.json_each(sa.bindparam(None, encode(listed), sa.Text, unique=True))
    return column.in_(sa.select(given.table_valued("value").c.value))


def pick(
    connection: sa.Connection,
    table: sa.Table,
    columns: Sequence[str],
    stream: int,
    key: str,
    values: Collection[Any],
) -> Sequence[Any]:
    """These columns of the rows of a stream whose key is one of these values."""
    if not values:
        return []
    text = _select(connection.dialect.name, table, tuple(columns), key)
    listed = list(values)
    given = listed if connection.dialect.name == "postgresql" else encode(listed)
    cursor = connection.connection.cursor()
    try:
        cursor.execute(text, (stream, given))
        return list(map(_row(tuple(columns)), cursor.fetchall()))
    finally:
        cursor.close()


def any_row(connection: sa.Connection, table: sa.Table, stream: int) -> bool:
    """Tell whether a stream has a row in a table at all."""
    return connection.execute(_first(table), {"stream": stream}).first() is not None


def put(
    connection: sa.Connection,
    table: sa.Table,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    keys: Sequence[str] = (),
) -> None:
    """Write rows; with keys, in place of those that have the same.

    Parameters
    ----------
    columns
        What a row gives, in this order.
    keys
        Columns of a unique index.
    """
    _many(connection, _insert(connection.dialect.name, table, tuple(columns), tuple(keys)), rows)


def change(
    connection: sa.Connection,
    table: sa.Table,
    columns: Sequence[str],
    keys: Sequence[str],
    rows: Iterable[Sequence[Any]],
) -> None:
    """Set columns of rows that are there; each row gives the columns, and then the keys."""
    _many(connection, _update(connection.dialect.name, table, tuple(columns), tuple(keys)), rows)


def _many(connection: sa.Connection, text: str, rows: Iterable[Sequence[Any]]) -> None:
    given = [tuple(row) for row in rows]
    if given:
        cursor = connection.connection.cursor()
        try:
            cursor.executemany(text, given)
        finally:
            cursor.close()


@lru_cache(maxsize=128)
def _first(table: sa.Table) -> sa.Select[Any]:
    return sa.select(table.c.stream).where(table.c.stream == sa.bindparam("stream")).limit(1)


@lru_cache(maxsize=128)
def _row(columns: tuple[str, ...]) -> Callable[[Sequence[Any]], Any]:
    kind: Any = namedtuple("Picked", columns)  # type: ignore[misc]  # not known before
    make: Callable[[Sequence[Any]], Any] = kind._make
    return make


@lru_cache(maxsize=128)
def _select(dialect: str, table: sa.Table, columns: tuple[str, ...], key: str) -> str:
    names = ", ".join(f'"{table.c[name].name}"' for name in columns)
    text = f'SELECT {names} FROM "{table.name}" WHERE "stream" = '
    if dialect == "postgresql":
        return f'{text}%s AND "{table.c[key].name}" = ANY(%s)'
    return f'{text}? AND "{table.c[key].name}" IN (SELECT value FROM json_each(?))'


@lru_cache(maxsize=128)
def _update(dialect: str, table: sa.Table, columns: tuple[str, ...], keys: tuple[str, ...]) -> str:
    mark = "%s" if dialect == "postgresql" else "?"
    values = ", ".join(f'"{table.c[name].name}" = {mark}' for name in columns)
    found = " AND ".join(f'"{table.c[name].name}" = {mark}' for name in keys)
    return f'UPDATE "{table.name}" SET {values} WHERE {found}'


@lru_cache(maxsize=128)
def _insert(dialect: str, table: sa.Table, columns: tuple[str, ...], keys: tuple[str, ...]) -> str:
    mark = "%s" if dialect == "postgresql" else "?"
    names = {name: f'"{table.c[name].name}"' for name in columns}
    text = (
        f'INSERT INTO "{table.name}" ({", ".join(names.values())}) '
        f"VALUES ({', '.join(mark for _ in columns)})"
    )
    if not keys:
        return text
    others = [name for key, name in names.items() if key not in keys]
    updates = ", ".join(f"{name} = excluded.{name}" for name in others)
    found = ", ".join(names[key] for key in keys)
    return f"{text} ON CONFLICT ({found}) DO {f'UPDATE SET {updates}' if others else 'NOTHING'}"
