"""Statements for many values at once, the same in SQLite and PostgreSQL.

Each is one text however many values there are, so a database prepares it once. Labels pass here by
the thousand a second, so rows go straight to the driver, within the transaction that is going on.
To SQLite they go many in one step, and come back as one: Python's driver lets other threads run at
every step, and waits for its turn again, so that a row a step costs a busy process many times the
row. To PostgreSQL they go as one text of JSON.
"""

import json
from collections import namedtuple
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

MAX_ROWS_PER_STEP, ROW_MULTIPLE = 256, 16
"""Rows per step to SQLite: the first, or a multiple of the second, or fewer than that: so few
sizes that their statements stay parsed, and two steps for most numbers of rows. A statement that
stays parsed keeps the values of its last rows; rows with bytes go one by one."""
CACHED_STATEMENTS = 512
"""Number of statements that a writing connection keeps parsed."""
POSTGRESQL = sa.make_url("postgresql://").get_dialect()()
"""What types are called there."""


def among(
    connection: sa.Connection, column: sa.Column[Any], values: Collection[Any]
) -> sa.ColumnElement[bool]:
    """That a column has one of these values."""
    return _among(connection.dialect.name, column, None, as_parameter(connection, values))


def among_given(dialect: str, column: sa.ColumnElement[Any], name: str) -> sa.ColumnElement[bool]:
    """The same, of a statement that is built once: its parameter is made by `as_parameter`."""
    return _among(dialect, column, name)


def as_parameter(connection: sa.Connection, values: Collection[Any]) -> Any:
    """These values as one parameter of a statement."""
    listed = list(values)
    return listed if connection.dialect.name == "postgresql" else json.dumps(listed)


def _among(
    dialect: str, column: sa.ColumnElement[Any], name: str | None, value: Any = None
) -> sa.ColumnElement[bool]:
    kind = ARRAY(column.type) if dialect == "postgresql" else sa.Text()
    parameter = sa.bindparam(name, value, kind, unique=name is None)
    if dialect == "postgresql":
        return column == sa.any_(parameter)
    listed = sa.func.json_each(parameter).table_valued("value")
    return column.in_(sa.select(listed.c.value))


def pick(
    connection: sa.Connection,
    table: sa.Table,
    columns: Sequence[str],
    stream: int,
    key: str,
    values: Collection[Any],
    make: Callable[[Sequence[Any]], Any] | None = None,
) -> Sequence[Any]:
    """These columns of the rows of a stream whose key is one of these values.

    `make` gives each row its type; a named tuple of the columns unless given.
    """
    found = _fetch(connection, table, columns, stream, key, values)
    return list(map(make or _row(tuple(columns)), found))


def _fetch(
    connection: sa.Connection,
    table: sa.Table,
    columns: Sequence[str],
    stream: int,
    key: str,
    values: Collection[Any],
) -> Sequence[Any]:
    """What `pick` gives, as plain tuples or lists."""
    if not values:
        return []
    names = tuple(columns)
    in_one = connection.dialect.name == "sqlite" and _is_plain(table, names)
    text = _select(connection.dialect.name, table, names, key, in_one)
    cursor = connection.connection.cursor()
    try:
        cursor.execute(text, (stream, as_parameter(connection, values)))
        rows = cursor.fetchall()
    finally:
        cursor.close()
    return json.loads(rows[0][0]) if in_one else rows


def fetch_columns(
    connection: sa.Connection,
    table: sa.Table,
    columns: Sequence[str],
    stream: int,
    key: str,
    value: Any,
) -> list[Sequence[Any]]:
    """These columns of the rows of a stream with this key, in the order of the first, a number.

    From SQLite each column comes as one text: no column of text may hold a line break.
    """
    names = tuple(columns)
    if connection.dialect.name == "sqlite":
        cursor = connection.connection.cursor()
        try:
            cursor.execute(_joined(table, names, key), (stream, value))
            [found] = cursor.fetchall()
        finally:
            cursor.close()
        n_rows, counts, texts = found[0], found[1::2], found[2::2]
        whole = all(
            n == 0 or (n == n_rows and not isinstance(table.c[name].type, sa.Double))
            for name, n in zip(names, counts, strict=True)
        )
        if whole and n_rows:
            read = [
                [None] * n_rows if text is None else text.split("\n") for text in texts
            ]  # a column of nothing but NULL has no text
            for place, name in enumerate(names):
                if isinstance(table.c[name].type, sa.Integer):
                    read[place] = list(map(int, read[place]))
            if read[0] == sorted(read[0]):
                return read
    rows = sorted(_fetch(connection, table, names, stream, key, [value]))
    return list(zip(*rows, strict=True)) if rows else [[] for _ in names]


def any_row(connection: sa.Connection, table: sa.Table, stream: int) -> bool:
    """Whether a stream has any row in a table."""
    return connection.execute(_first(table), {"stream": stream}).first() is not None


def put(
    connection: sa.Connection,
    table: sa.Table,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    keys: Sequence[str] = (),
    changes: Sequence[str] | None = None,
) -> None:
    """Write rows; with keys, in place of those that have the same.

    Parameters
    ----------
    columns
        What a row gives, in this order.
    keys
        Columns of a unique index.
    changes
        What is written of a row that is there already; all of it unless given.
    """
    listed, dialect = list(rows), connection.dialect.name
    if not listed:
        return
    shape = (
        dialect,
        table,
        tuple(columns),
        tuple(keys),
        None if changes is None else tuple(changes),
    )
    cursor = connection.connection.cursor()
    try:
        if dialect == "postgresql":
            cursor.execute(_insert(*shape, 1), [_as_json(listed)])
            return
        if _has_bytes(table, shape[2]):
            cursor.executemany(_insert(*shape, 1), listed)
            return
        start = 0
        while left := len(listed) - start:
            size = min(left - left % ROW_MULTIPLE or left, MAX_ROWS_PER_STEP)
            block = listed[start : start + size]
            cursor.execute(_insert(*shape, size), list(chain.from_iterable(block)))
            start += size
    finally:
        cursor.close()


def _as_json(rows: Sequence[Sequence[Any]]) -> str:
    """Rows for PostgreSQL as one text: a message per row takes the client ten times as long."""
    try:
        return json.dumps(rows, default=_hexadecimal, allow_nan=False)
    except ValueError:  # infinity, which JSON does not have
        texts = [[str(v) if isinstance(v, float) else v for v in row] for row in rows]
        return json.dumps(texts, default=_hexadecimal)


def _hexadecimal(value: bytes) -> str:
    return f"\\x{value.hex()}"


@lru_cache(maxsize=128)
def _first(table: sa.Table) -> sa.Select[Any]:
    return sa.select(table.c.stream).where(table.c.stream == sa.bindparam("stream")).limit(1)


@lru_cache(maxsize=128)
def _row(columns: tuple[str, ...]) -> Callable[[Sequence[Any]], Any]:
    kind: Any = namedtuple("Picked", columns)  # type: ignore[misc]  # not known before
    make: Callable[[Sequence[Any]], Any] = kind._make
    return make


@lru_cache(maxsize=128)
def _is_plain(table: sa.Table, columns: tuple[str, ...]) -> bool:
    """Whether JSON in SQLite returns these columns as they are: text and whole numbers."""
    numbers = any(isinstance(table.c[name].type, sa.Double) for name in columns)
    return not (numbers or _has_bytes(table, columns))


@lru_cache(maxsize=128)
def _has_bytes(table: sa.Table, columns: tuple[str, ...]) -> bool:
    return any(isinstance(table.c[name].type, sa.LargeBinary) for name in columns)


@lru_cache(maxsize=128)
def _select(dialect: str, table: sa.Table, columns: tuple[str, ...], key: str, in_one: bool) -> str:
    names = ", ".join(f'"{table.c[name].name}"' for name in columns)
    if in_one:
        names = f"json_group_array(json_array({names}))"
    text = f'SELECT {names} FROM "{table.name}" WHERE "stream" = '
    if dialect == "postgresql":
        return f'{text}%s AND "{table.c[key].name}" = ANY(%s)'
    return f'{text}? AND "{table.c[key].name}" IN (SELECT value FROM json_each(?))'


@lru_cache(maxsize=128)
def _joined(table: sa.Table, columns: tuple[str, ...], key: str) -> str:
    """How many rows there are; of each column how many are not NULL, and all of these."""
    parts = []
    for name in columns:
        column, quoted = table.c[name], f'"{table.c[name].name}"'
        is_text = not isinstance(column.type, sa.Double)  # of which SQLite makes other numbers
        parts.append(f"count({quoted if column.nullable else '*'})")
        parts.append(f"group_concat({quoted}, '\n')" if is_text else "NULL")
    return (
        f'SELECT count(*), {", ".join(parts)} FROM "{table.name}" '
        f'WHERE "stream" = ? AND "{table.c[key].name}" = ?'
    )


@lru_cache(maxsize=CACHED_STATEMENTS)
def _insert(
    dialect: str,
    table: sa.Table,
    columns: tuple[str, ...],
    keys: tuple[str, ...],
    changes: tuple[str, ...] | None,
    size: int,
) -> str:
    names = {name: f'"{table.c[name].name}"' for name in columns}
    if dialect == "postgresql":
        kinds = (table.c[name].type.compile(POSTGRESQL) for name in columns)
        cells = (f"(r->>{n})::{kind}" for n, kind in enumerate(kinds))
        rows = f"SELECT {', '.join(cells)} FROM json_array_elements(%s::json) AS r"
    else:
        row = f"({', '.join('?' for _ in columns)})"
        rows = f"VALUES {', '.join(row for _ in range(size))}"
    text = f'INSERT INTO "{table.name}" ({", ".join(names.values())}) {rows}'
    if not keys:
        return text
    set_again = [name for name in columns if name not in keys] if changes is None else changes
    updates = ", ".join(f"{names[name]} = excluded.{names[name]}" for name in set_again)
    found = ", ".join(names[key] for key in keys)
    return f"{text} ON CONFLICT ({found}) DO {f'UPDATE SET {updates}' if updates else 'NOTHING'}"
