"""Files of labels → checked `LabelTable`s, whole (`read_…`) or lazily (`iter_…`).

Text is UTF-8, with or without a byte order mark; a path that ends in `.gz` is unpacked on the
fly; an open stream is read line by line as the lines arrive, and left open. CSV cells are text
exactly as written: `007` is not 7, and outer blanks belong to the id (`labelquorum doctor` points
out ids that differ in nothing else). JSON and Parquet keep the types they hold. What is a bad
row, and what becomes of it, is in `validate.py` and the same for every reader.
"""

import csv
import gzip
import json
import os
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain, islice
from operator import itemgetter
from typing import Any, NamedTuple

from labelquorum.errors import LabelError, StateError
from labelquorum.ingest.frames import (
    check_workers,
    collect,
    is_hole,
    is_tabular,
    read_dict,
    read_gold,
    read_matrix,
    read_table,
    require_pyarrow,
    shape_of,
)
from labelquorum.ingest.labels import COLUMN_ALIASES, LabelSpace, LabelTable
from labelquorum.ingest.validate import (
    ANY_LABEL,
    COLUMNS,
    NEEDED,
    SKIP,
    Fault,
    checked,
    find_columns,
    shown,
)

__all__ = [
    "FORMATS",
    "Format",
    "TextSource",
    "iter_csv",
    "iter_jsonl",
    "iter_labels",
    "iter_parquet",
    "iter_wide",
    "read_csv",
    "read_dict",
    "read_gold",
    "read_jsonl",
    "read_labels",
    "read_parquet",
    "read_table",
    "read_wide",
]

TextSource = str | os.PathLike[str] | Iterable[str] | Iterable[bytes]
"""A path, an open file of text or bytes, or any iterable of lines."""

_ROWS = 10_000
_ALL_ROWS = 2**62


class _Parsed(NamedTuple):
    """A text file on its way: rows as tuples, the line first, then a cell for each role."""

    roles: Sequence[str]
    present: Collection[str]  # the roles that occur at all; JSON objects may add one on the way
    rows: Iterator[tuple[Any, ...] | Fault]


_Parser = Callable[[str, Iterator[str]], _Parsed]


def read_csv(source: TextSource, space: LabelSpace = ANY_LABEL) -> LabelTable:
    """Read a CSV file: a header, then one row per label.

    Parameters
    ----------
    source
        A path, an open stream, or an iterable of lines.
    space
        What a label may be, and what happens to bad rows.

    Examples
    --------
    >>> table = read_csv(["item,rater,rating", "007,ann,cat", "007,bob,dog"])
    >>> table.item_ids, table.labels, table.where(1)
    (['007', '007'], ['cat', 'dog'], 'stream line 3')
    """
    [table] = iter_csv(source, space, _ALL_ROWS)
    return table


def iter_csv(
    source: TextSource, space: LabelSpace = ANY_LABEL, rows: int = _ROWS
) -> Iterator[LabelTable]:
    """Read a CSV file lazily: a table for every `rows` rows, as soon as they are there."""
    yield from _iterate(_parse_csv, source, space, rows)


def read_jsonl(source: TextSource, space: LabelSpace = ANY_LABEL) -> LabelTable:
    """Read a file with one JSON object per line, each a label; an empty file has no labels.

    Parameters
    ----------
    source
        A path, an open stream, or an iterable of lines.
    space
        What a label may be, and what happens to bad rows.

    Examples
    --------
    >>> read_jsonl(['{"task": 7, "worker": "ann", "label": "cat"}']).item_ids
    [7]
    """
    [table] = iter_jsonl(source, space, _ALL_ROWS)
    return table


def iter_jsonl(
    source: TextSource, space: LabelSpace = ANY_LABEL, rows: int = _ROWS
) -> Iterator[LabelTable]:
    """Read JSON lines lazily: a table for every `rows` rows, as soon as they are there."""
    yield from _iterate(_parse_jsonl, source, space, rows)


def read_wide(source: Any, space: LabelSpace = ANY_LABEL) -> LabelTable:
    """Read a matrix of labels: a CSV file, a DataFrame or a NumPy array.

    In a file, the first column is the task, and each other column belongs to one
    worker. A cell that is empty, NaN or −1 holds no label, and that is no error here.

    Parameters
    ----------
    source
        A path, an open stream, an iterable of lines, or what `frames.read_matrix` takes.
    space
        What a label may be, and what happens to bad rows.

    Examples
    --------
    >>> table = read_wide(["task,ann,bob", "q1,cat,", "q2,dog,cat"])
    >>> table.worker_ids, table.labels
    (['ann', 'ann', 'bob'], ['cat', 'dog', 'cat'])
    """
    [table] = iter_wide(source, space, _ALL_ROWS)
    return table


def iter_wide(
    source: Any, space: LabelSpace = ANY_LABEL, rows: int = _ROWS
) -> Iterator[LabelTable]:
    """Read a matrix of labels lazily: a table for every `rows` labels; in memory, at once."""
    if is_tabular(source):
        yield read_matrix(source, space)
    else:
        yield from _iterate(_parse_wide, source, space, rows)


def read_parquet(source: Any, space: LabelSpace = ANY_LABEL) -> LabelTable:
    """Read a Parquet file, one row per label; needs pyarrow.

    Parameters
    ----------
    source
        A path, or a file opened for reading bytes.
    space
        What a label may be, and what happens to bad rows.
    """
    with _opened_parquet(source) as (name, file, columns):
        return checked(collect(file.read(columns), name), space)


def iter_parquet(
    source: Any, space: LabelSpace = ANY_LABEL, rows: int = _ROWS
) -> Iterator[LabelTable]:
    """Read a Parquet file lazily: a table for every `rows` rows or less."""
    _check_rows(rows)
    with _opened_parquet(source) as (name, file, columns):
        start = 0
        empty = [file.schema_arrow.empty_table()] if not file.metadata.num_rows else []
        for batch in chain(empty, file.iter_batches(rows, columns=columns)):
            lines = range(start, start + batch.num_rows)
            yield checked(collect(batch, name, lines), space)
            start += batch.num_rows


def read_labels(source: Any, space: LabelSpace = ANY_LABEL) -> LabelTable:
    """Read labels from anything we know: by its type, or by the suffix of its path.

    Parameters
    ----------
    source
        A path with a suffix in `FORMATS` (`.gz` may follow), a DataFrame or other table, a
        NumPy matrix, a dict, or an open stream or iterable of lines, CSV or JSON by its look.
    space
        What a label may be, and what happens to bad rows.
    """
    if isinstance(source, LabelTable):
        return checked(source, space)
    if isinstance(source, Mapping):
        return read_dict(source, space)
    if isinstance(source, str | os.PathLike):
        return _format_of(source).read(source, space)
    if is_tabular(source) or not isinstance(source, Iterable):
        return read_table(source, space)
    [table] = _iterate(_parse_by_look, source, space, _ALL_ROWS)
    return table


def iter_labels(
    source: Any, space: LabelSpace = ANY_LABEL, rows: int = _ROWS
) -> Iterator[LabelTable]:
    """Read labels lazily from anything we know; what is in memory comes as one table."""
    if isinstance(source, str | os.PathLike):
        yield from _format_of(source).iterate(source, space, rows)
    elif isinstance(source, LabelTable | Mapping) or is_tabular(source):
        yield read_labels(source, space)
    else:
        yield from _iterate(_parse_by_look, source, space, rows)


class Format(NamedTuple):
    """How files of one suffix are read, whole and lazily."""

    read: Callable[[Any, LabelSpace], LabelTable]
    iterate: Callable[[Any, LabelSpace, int], Iterator[LabelTable]]


FORMATS: dict[str, Format] = {
    ".wide.csv": Format(read_wide, iter_wide),
    ".csv": Format(read_csv, iter_csv),
    ".jsonl": Format(read_jsonl, iter_jsonl),
    ".ndjson": Format(read_jsonl, iter_jsonl),
    ".parquet": Format(read_parquet, iter_parquet),
}
"""What is read how, by suffix; of two that fit, the one that stands first."""


def _format_of(source: str | os.PathLike[str]) -> Format:
    path = os.fspath(source)
    for suffix, known in FORMATS.items():
        if path.lower().removesuffix(".gz").endswith(suffix):
            return known
    raise LabelError(
        f"{path}: the format follows from the suffix, which must be one of {list(FORMATS)} "
        "(.gz may follow). Rename the file, or call the reader you want, such as read_csv."
    )


def _iterate(
    parse: _Parser, source: TextSource, space: LabelSpace, rows: int
) -> Iterator[LabelTable]:
    """Check the rows of a text file batch by batch; a file without rows gives an empty table."""
    _check_rows(rows)
    with _opened(source) as (name, lines):
        parsed = parse(name, lines)
        batch = list(islice(parsed.rows, rows))
        while True:
            faults = [row for row in batch if isinstance(row, Fault)]
            if faults:
                batch = [row for row in batch if not isinstance(row, Fault)]
            columns = zip(*batch, strict=True) if batch else [()] * (len(parsed.roles) + 1)
            places, *cells = map(list, columns)
            found: dict[str, Any] = {
                COLUMNS[role]: column
                for role, column in zip(parsed.roles, cells, strict=True)
                if role in parsed.present
            }
            yield checked(LabelTable(**found, source=name, lines=places), space, faults)
            batch = list(islice(parsed.rows, rows))
            if not batch:
                return


def _parse_csv(name: str, lines: Iterator[str]) -> _Parsed:
    records = _csv_records(lines)
    header = _header(records, name, "task,worker,label")
    found = find_columns(header, name, "Make the first line a header such as task,worker,label.")
    pick = itemgetter(*found.values())

    def rows() -> Iterator[tuple[Any, ...] | Fault]:
        for line, cells in _even(records, len(header)):
            yield cells if isinstance(cells, Fault) else (line, *pick(cells))

    return _Parsed(tuple(found), found, rows())


def _parse_wide(name: str, lines: Iterator[str]) -> _Parsed:
    records = _csv_records(lines)
    header = _header(records, name, "task,ann,bob")
    workers = header[1:]
    check_workers(workers, name)

    def rows() -> Iterator[tuple[Any, ...] | Fault]:
        for line, cells in _even(records, len(header)):
            if isinstance(cells, Fault):
                yield cells
                continue
            task, *labels = cells
            for worker, label in zip(workers, labels, strict=True):
                if not is_hole(label):
                    yield line, task, worker, label

    return _Parsed(NEEDED, NEEDED, rows())


def _parse_jsonl(name: str, lines: Iterator[str]) -> _Parsed:
    present = set(NEEDED)

    def rows() -> Iterator[tuple[Any, ...] | Fault]:
        for line, text in enumerate(lines, 1):
            if not text.strip():
                continue
            try:
                event = json.loads(text)
            except (ValueError, RecursionError) as error:
                yield Fault(line, "malformed row", f"the line is not JSON ({error}). {SKIP}")
                continue
            if not isinstance(event, dict):
                rule = f"every line is a JSON object. Got {text.strip()[:80]}"
                yield Fault(line, "malformed row", f"{rule}. {SKIP}")
                continue
            shape = shape_of(tuple(event))
            if isinstance(shape, Fault):
                yield shape._replace(line=line)
            else:
                present.update(shape.present)
                yield (line, *(event.get(key, default) for key, default in shape.cells))

    return _Parsed(tuple(COLUMN_ALIASES), present, rows())


def _parse_by_look(name: str, lines: Iterator[str]) -> _Parsed:
    """Take a stream for JSON if it starts with a brace, else for CSV."""
    first = list(islice(lines, 1))
    is_json = "".join(first).lstrip().startswith("{")
    return (_parse_jsonl if is_json else _parse_csv)(name, chain(first, lines))


def _csv_records(lines: Iterator[str]) -> Iterator[tuple[int, list[str] | Fault]]:
    """Split CSV into records, each with the line it starts on; blank lines are none."""
    reader = csv.reader(lines, strict=True)
    while True:
        first = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            # A quote left open swallows lines; each of them is a row that was lost.
            for line in range(first, reader.line_num + 1):
                sentence = f"the row is not well-formed CSV ({error}). {SKIP}"
                yield line, Fault(line, "malformed row", sentence)
        else:
            if cells:
                yield first, cells


def _header(records: Iterator[tuple[int, list[str] | Fault]], name: str, example: str) -> list[str]:
    for _, cells in records:
        if isinstance(cells, Fault):
            raise LabelError(f"{name} line {cells.line}: {cells.sentence}")
        return cells
    raise LabelError(
        f"{name}: the file is empty, and a CSV file starts with a header such as {example}. "
        "Write at least the header."
    )


def _even(
    records: Iterator[tuple[int, list[str] | Fault]], width: int
) -> Iterator[tuple[int, list[str] | Fault]]:
    """Fault records that have more or fewer cells than the header."""
    for line, cells in records:
        if isinstance(cells, Fault) or len(cells) == width:
            yield line, cells
        else:
            rule = f"the header has {width} cells, and so must every row. Got {len(cells)}"
            sentence = f"{rule}; a cell that holds a comma needs quotes around it. {SKIP}"
            yield line, Fault(line, "malformed row", sentence)


@contextmanager
def _opened(source: TextSource) -> Iterator[tuple[str, Iterator[str]]]:
    """Open a path, or take a stream as it is: its name for messages, and its lines."""
    name = _name(source)
    if not isinstance(source, str | os.PathLike):
        yield name, _text(source, name)
        return
    opener: Callable[[str, str], Any] = gzip.open if name.lower().endswith(".gz") else open
    with opener(name, "rb") as stream:
        yield name, _text(stream, name)


def _text(lines: Iterable[str] | Iterable[bytes], name: str) -> Iterator[str]:
    """Decode lines; a byte that is not UTF-8 makes its cell a bad one, not the whole file."""
    mark = "\ufeff"
    try:
        for line in lines:
            text = line.decode("utf-8", "surrogateescape") if isinstance(line, bytes) else line
            if not isinstance(text, str):
                raise LabelError(
                    f"{name}: labels are read from a path or from lines of text. "
                    f"Got {shown(line)}. Pass a table or a NumPy matrix instead."
                )
            yield text.removeprefix(mark) if mark else text
            mark = ""
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError) as error:
        raise LabelError(
            f"{name}: cannot be read to its end ({error}). Check that it is whole, and UTF-8."
        ) from error


@contextmanager
def _opened_parquet(source: Any) -> Iterator[tuple[str, Any, list[str]]]:
    """Open a Parquet file: its name, the file, and the columns we read of it."""
    pyarrow, parquet = map(require_pyarrow, ("pyarrow", "pyarrow.parquet"))
    name = _name(source)
    with ExitStack() as stack:
        if isinstance(source, str | os.PathLike):
            source = stack.enter_context(open(source, "rb"))
        try:
            file = stack.enter_context(parquet.ParquetFile(source))
            names = file.schema_arrow.names
            found = find_columns(names, name, "Rename a column.")
            yield name, file, [names[position] for position in found.values()]
        except pyarrow.ArrowException as error:
            raise LabelError(
                f"{name}: the file is not readable as Parquet ({error}). Write it again."
            ) from error


def _name(source: object) -> str:
    """Name a source as messages do: by its path, as it was given to us."""
    if not isinstance(source, str | os.PathLike):
        source = getattr(source, "name", None)
    return str(source) if isinstance(source, str | os.PathLike) else "stream"


def _check_rows(rows: int) -> None:
    if rows < 1:
        raise StateError(f"`rows` must be a whole number ≥ 1. Got {rows}.")
