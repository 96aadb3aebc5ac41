"""Rows → files that other programs read: the only writer of CSV, JSON lines and Parquet.

Rows are written as they come; none are held. In CSV, text that a spreadsheet would take for a
formula is preceded by an apostrophe, unless it is wanted raw: names are untrusted, and a
spreadsheet executes a cell that starts with `=` or `@`. Numbers stay as they are.
"""

import csv
import io
import json
import os
import re
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from json.encoder import encode_basestring
from pathlib import Path
from typing import IO, Any, Literal, get_args

import numpy as np

from labelquorum.errors import StateError
from labelquorum.ingest.columns import DictionaryColumn, as_column, encode
from labelquorum.ingest.frames import require_pyarrow

Written = Literal["csv", "jsonl", "parquet"]
Row = Mapping[str, Any]

FORMULA = tuple("=+-@\t\r\n＝＋－＠")
"""First characters of a cell that a spreadsheet executes; some accept the full-width forms too."""

_FORMULA = frozenset(FORMULA)
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_ROWS_PER_WRITE = 10_000
_OWNER_ONLY = 0o600


def write_rows(
    rows: Iterable[Row],
    columns: Mapping[str, Collection[type]],
    target: IO[bytes],
    encoding: Written,
    raw: bool = False,
) -> int:
    """Write rows as they come, and return their number.

    Parameters
    ----------
    rows
        Each with a value, or None, for every column.
    columns
        Their names, and the types that occur there, which only Parquet needs.
    target
        A file opened for writing bytes.
    encoding
        "csv", "jsonl" or "parquet", which needs pyarrow. A column of Parquet has one type: where
        text and numbers occur together, all become text.
    raw
        Write CSV for programs: formulas are left as they are.

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
    target.write(encode_rows((), columns, encoding))
    n_rows = 0
    for some in _pieces(rows):
        target.write(encode_rows(some, columns, encoding, raw=raw, header=False))
        n_rows += len(some)
    return n_rows


def write_columns(
    columns: Mapping[str, Any], target: IO[bytes], encoding: Written, raw: bool = False
) -> int:
    """Write columns as `write_rows` writes their rows, byte for byte, and return their number.

    A column is a list, or a NumPy array of floats, of which each distinct one is formatted once.

    Examples
    --------
    >>> file = io.BytesIO()
    >>> write_columns({"task": ["q1", "q2"], "label": [0, 1]}, file, "jsonl")
    2
    >>> print(file.getvalue().decode(), end="")
    {"task": "q1", "label": 0}
    {"task": "q2", "label": 1}
    """
    n_rows = len(next(iter(columns.values()), ()))
    lists = {name: cells for name, cells in columns.items() if isinstance(cells, list)}
    if encoding == "parquet" or (encoding == "csv" and any(map(_has_return, lists.values()))):
        plain = [cells if name in lists else cells.tolist() for name, cells in columns.items()]
        rows = (dict(zip(columns, row, strict=True)) for row in zip(*plain, strict=True))
        kinds = {name: set(map(type, lists.get(name, [0.0]))) for name in columns}
        return write_rows(rows, kinds, target, encoding, raw)
    is_csv = encoding == "csv"
    texts: dict[str, Sequence[Any]] = dict(lists)
    for name, cells in lists.items():
        if not is_csv:
            texts[name] = list(map(_json, cells))
        elif not raw and not _FORMULA.isdisjoint(c[:1] for c in cells if isinstance(c, str)):
            texts[name] = list(map(harmless, cells))
    floats = [name for name in columns if name not in lists]
    if floats:
        column = encode(as_column(np.concatenate([columns[name] for name in floats])))
        spelled = DictionaryColumn(
            column.codes, list(map(repr if is_csv else _json, column.values))
        )
        for at, name in enumerate(floats):
            texts[name] = spelled[at * n_rows : (at + 1) * n_rows]
    if not is_csv:
        keys = [json.dumps(name, ensure_ascii=False).replace("%", "%%") for name in columns]
        form = f"{{{', '.join(f'{key}: %s' for key in keys)}}}\n".__mod__
    is_bare = len(columns) > 1 and not any(map(_needs_quotes, lists.values()))
    target.write(encode_rows((), columns, encoding))
    for start in range(0, n_rows, _ROWS_PER_WRITE):
        some = zip(*(texts[name][start : start + _ROWS_PER_WRITE] for name in columns), strict=True)
        if not is_csv:
            target.write("".join(map(form, some)).encode())
        elif is_bare:  # in half the time of csv.writer
            target.write("\n".join([*map(",".join, some), ""]).encode())
        else:
            target.write(_minimal_csv(some))
    return n_rows


def _needs_quotes(cells: list[Any]) -> bool:
    """Whether CSV may have to quote one of these cells, or convert it to text."""
    return set(map(type, cells)) != {str} or not set(',"\n').isdisjoint("".join(cells))


def _has_return(cells: list[Any]) -> bool:
    return "\r" in "".join(cell for cell in cells if isinstance(cell, str))


def _json(cell: Any) -> str:
    return encode_basestring(cell) if type(cell) is str else json.dumps(cell, ensure_ascii=False)


def encode_rows(
    rows: Iterable[Row],
    columns: Collection[str],
    encoding: Literal["csv", "jsonl"],
    *,
    raw: bool = False,
    header: bool = True,
) -> bytes:
    """Encode rows as CSV, with a header unless it was written before, or as JSON lines.

    Examples
    --------
    >>> encode_rows([{"task": "q1", "label": 1}], ["task", "label"], "csv").splitlines()
    [b'task,label', b'q1,1']
    """
    if encoding == "jsonl":
        plain = ({name: row[name] for name in columns} for row in rows)
        return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in plain).encode()
    cells = ([row[name] for name in columns] for row in rows)
    body = _csv(cells if raw else ([harmless(cell) for cell in line] for line in cells))
    return _csv([list(columns)]) + body if header else body


def harmless(cell: Any) -> Any:
    """A cell no spreadsheet executes: an apostrophe before what looks like a formula.

    Examples
    --------
    >>> [harmless(cell) for cell in ("=cmd", "-1.5", -1.5, "-1+1", "@x", "cat")]
    ["'=cmd", '-1.5', -1.5, "'-1+1", "'@x", 'cat']
    """
    if isinstance(cell, str) and cell.startswith(FORMULA) and not _NUMBER.fullmatch(cell):
        return f"'{cell}"
    return cell


def names_of(classes: Sequence[Hashable]) -> list[str]:
    """Name classes as text; where the text of two is the same (1 and "1"), by their repr."""
    seen = Counter(map(str, classes))
    return [str(label) if seen[str(label)] == 1 else repr(label) for label in classes]


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary file in the path's folder; on success it is synced and replaces the path.

    What is written here names workers and tasks, so a new file is for its owner alone (0600). One
    that is replaced keeps its mode.
    """
    whole = Path(path)
    beside = whole.with_name(f".{whole.name}.{os.getpid()}.part")
    beside.unlink(missing_ok=True)
    os.close(os.open(beside, os.O_CREAT | os.O_EXCL, _OWNER_ONLY))
    try:
        yield beside
        beside.chmod(whole.stat().st_mode & 0o7777 if whole.exists() else _OWNER_ONLY)
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
    while some := list(islice(rest, _ROWS_PER_WRITE)):
        yield some


def _csv(lines: Iterable[Sequence[Any]]) -> bytes:
    rows = list(lines)
    text = _minimal_csv(rows)
    if b"\r" not in text:
        return text
    # Which older Pythons leave without quotes.
    return _minimal_csv(rows, csv.QUOTE_NONNUMERIC)


def _minimal_csv(lines: Iterable[Sequence[Any]], quoting: Any = csv.QUOTE_MINIMAL) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n", quoting=quoting).writerows(lines)
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
