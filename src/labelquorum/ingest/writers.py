"""Rows → files that other programs read: CSV, JSON lines, Parquet, one row after the other.

Nothing is held but the rows on their way. In CSV, text that a spreadsheet would take for a formula
gets an apostrophe before it, unless it is wanted raw: names come from strangers, and `=` or `@` at
the start of a cell is run by whoever opens the file. A number is no formula, and stays as it is.
"""

import csv
import io
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal, get_args

from labelquorum.errors import StateError
from labelquorum.ingest.frames import require_pyarrow

__all__ = ["Written", "harmless", "names_of", "replacing", "write_rows"]

Written = Literal["csv", "jsonl", "parquet"]
Row = Mapping[str, Any]

FORMULA = tuple("=+-@\t\r\n＝＋－＠")
"""What a cell that a spreadsheet runs begins with; some read the wide forms of Asia as well."""

_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_ROWS = 10_000  # in one piece


def write_rows(
    rows: Iterable[Row],
    columns: Mapping[str, Collection[type]],
    target: IO[bytes],
    encoding: Written,
    raw: bool = False,
) -> int:
    """Write rows as they come, and say how many there were.

    Parameters
    ----------
    rows
        Each with a value, or None, for every column.
    columns
        Their names, and the types that occur there; only Parquet asks for them.
    target
        A file opened for writing bytes.
    encoding
        "csv", "jsonl" or "parquet", which takes pyarrow. A column of Parquet has one type: where
        text and numbers stand together, all become text.
    raw
        Leave CSV as it is, for programs: nothing is done against formulas.

    Examples
    --------
    >>> file = io.BytesIO()
    >>> write_rows([{"task": "=1+1", "label": -1}], {"task": [str], "label": [int]}, file, "csv")
    1
    >>> print(file.getvalue().decode())
    task,label
    '=1+1,-1
    """
    if encoding not in get_args(Written):
        raise StateError(f"`encoding` must be one of {list(get_args(Written))}. Got {encoding!r}.")
    if encoding == "parquet":
        return _write_parquet(rows, columns, target)
    encode: Callable[[Iterable[Row]], str]
    if encoding == "jsonl":

        def encode(some: Iterable[Row]) -> str:
            plain = ({name: row[name] for name in columns} for row in some)
            return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in plain)

    else:
        target.write(_csv([list(columns)]))

        def encode(some: Iterable[Row]) -> str:
            cells = ([row[name] for name in columns] for row in some)
            if raw:
                return _csv(cells).decode()
            return _csv([harmless(cell) for cell in line] for line in cells).decode()

    n_rows = 0
    for some in _pieces(rows):
        target.write(encode(some).encode())
        n_rows += len(some)
    return n_rows


def harmless(cell: Any) -> Any:
    """A cell no spreadsheet runs: an apostrophe before what looks like a formula.

    Examples
    --------
    >>> [harmless(cell) for cell in ("=cmd", "-1.5", -1.5, "-1+1", "@x", "cat")]
    ["'=cmd", '-1.5', -1.5, "'-1+1", "'@x", 'cat']
    """
    if isinstance(cell, str) and cell.startswith(FORMULA) and not _NUMBER.fullmatch(cell):
        return f"'{cell}"
    return cell


def names_of(classes: Sequence[Hashable]) -> list[str]:
    """Name classes as text; where the text of two is the same (1 and "1"), as Python does."""
    seen = Counter(map(str, classes))
    return [str(label) if seen[str(label)] == 1 else repr(label) for label in classes]


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a file to write beside a path; it takes the path's place, on disk, if all went well."""
    whole = Path(path)
    beside = whole.with_name(f".{whole.name}.{os.getpid()}.part")
    beside.unlink(missing_ok=True)
    try:
        yield beside
        _sync(beside)
        beside.replace(whole)
        _sync(whole.parent)
    finally:
        beside.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _pieces(rows: Iterable[Row]) -> Iterator[list[Row]]:
    rest = iter(rows)
    while some := list(islice(rest, _ROWS)):
        yield some


def _csv(lines: Iterable[Sequence[Any]]) -> bytes:
    rows = list(lines)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    if "\r" in text.getvalue():  # which older Pythons leave without quotes
        text = io.StringIO()
        csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC).writerows(rows)
    return text.getvalue().encode()


def _write_parquet(
    rows: Iterable[Row], columns: Mapping[str, Collection[type]], target: IO[bytes]
) -> int:
    arrow, parquet = require_pyarrow("pyarrow"), require_pyarrow("pyarrow.parquet")
    kinds = {name: _kind(types) for name, types in columns.items()}
    named = {str: arrow.string(), int: arrow.int64(), float: arrow.float64(), bool: arrow.bool_()}
    schema = arrow.schema([(name, named[kind]) for name, kind in kinds.items()])

    def column(some: Sequence[Row], name: str) -> list[Any]:
        values = [row[name] for row in some]
        if kinds[name] is str:
            return [None if value is None else _text(value) for value in values]
        return values

    n_rows = 0
    with parquet.ParquetWriter(target, schema) as writer:
        for some in _pieces(rows):
            table = arrow.table({name: column(some, name) for name in columns}, schema=schema)
            writer.write_table(table)
            n_rows += len(some)
    return n_rows


def _kind(types: Iterable[type]) -> type:
    """The one type of a column with values of these."""
    found = {kind for kind in types if kind is not type(None)}
    if found == {int, float}:
        return float
    return found.pop() if len(found) == 1 else str


def _text(value: Hashable) -> str:
    return value if isinstance(value, str) else json.dumps(value)
