"""Files of labels → checked `LabelTable`s, whole (`read_…`) or lazily (`iter_…`).

Text is UTF-8, with or without a byte order mark; a path that ends in `.gz`, `.bz2`, `.xz` or `.zip`
is unpacked on the fly; an open stream is read line by line as the lines arrive, and left open. CSV
cells are text exactly as written: `007` is not 7, and outer blanks belong to the id (`labelquorum
doctor` points out ids that differ in nothing else). JSON and Parquet keep the types they hold. What
is a bad row, and what becomes of it, is in `validate.py` and the same for every reader.
"""

import csv
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain, islice
from operator import itemgetter
from typing import Any, NamedTuple

from labelquorum.errors import LabelError, LabelQuorumError, StateError
from labelquorum.ingest.files import (
    PACKED,
    check_rows,
    iter_parquet,
    name_of,
    opened,
    read_excel,
    read_feather,
    read_json,
    read_parquet,
    unpacked_name,
)
from labelquorum.ingest.frames import (
    check_workers,
    is_hole,
    is_tabular,
    read_matrix,
    read_table,
)
from labelquorum.ingest.labels import COLUMN_ALIASES, LabelSpace, LabelTable
from labelquorum.ingest.plain_csv import split
from labelquorum.ingest.records import (
    holds_columns,
    read_columns,
    read_dict,
    read_records,
    read_tuples,
    shape_of,
)
from labelquorum.ingest.validate import (
    ANY_LABEL,
    ATTRIBUTES,
    COLUMNS,
    NAME_COLUMNS,
    NEEDED,
    OF_WORKERS,
    SKIP,
    Columns,
    Fault,
    checked,
    find_columns,
    match_columns,
    shown,
    unique_names,
)

TextSource = str | os.PathLike[str] | Iterable[str] | Iterable[bytes]
"""A path, an open file of text or bytes, or any iterable of lines."""

SEPARATORS = ",\t;|"
"""What may separate the cells of a file that calls itself CSV."""

MIN_PLAIN_BYTES = 1 << 17
"""Smaller files are read row by row: that takes no longer than to import and call pandas."""

_ROWS = 10_000
_ALL_ROWS = 2**62


class _Parsed(NamedTuple):
    """A text file on its way: rows as tuples, the line first, then a cell for each role."""

    roles: Sequence[str]
    present: Collection[str]  # the roles that occur at all; JSON objects may add one on the way
    rows: Iterator[tuple[Any, ...] | Fault]


_Parser = Callable[[str, Iterator[str]], _Parsed]


def read_csv(
    source: TextSource,
    space: LabelSpace = ANY_LABEL,
    columns: Columns = None,
    sep: str | None = None,
) -> LabelTable:
    """Read a CSV file: a header, then one row per label.

    Parameters
    ----------
    source
        A path, an open stream, or an iterable of lines.
    space
        What a label may be, and what happens to bad rows.
    columns
        The names of columns that have no name we know, such as {"task": "image"}.
    sep
        What separates cells; unless given, what makes the header one we know: a comma, a tab, a
        semicolon or a bar.

    Examples
    --------
    >>> table = read_csv(["item,rater,rating", "007,ann,cat", "007,bob,dog"])
    >>> table.item_ids, table.labels, table.where(1)
    (['007', '007'], ['cat', 'dog'], 'stream line 3')
    """
    plain = _read_plain_csv(source, columns, sep)
    if plain is not None:
        return checked(plain, space)
    [table] = iter_csv(source, space, _ALL_ROWS, columns, sep)
    return table


def iter_csv(
    source: TextSource,
    space: LabelSpace = ANY_LABEL,
    rows: int = _ROWS,
    columns: Columns = None,
    sep: str | None = None,
) -> Iterator[LabelTable]:
    """Read a CSV file lazily: a table for every `rows` rows, as soon as they are there."""
    yield from _iterate(partial(_parse_csv, columns=columns, sep=sep), source, space, rows)


def read_jsonl(
    source: TextSource, space: LabelSpace = ANY_LABEL, columns: Columns = None
) -> LabelTable:
    """Read a file with one JSON object per line, each a label; an empty file has no labels.

    Parameters
    ----------
    source
        A path, an open stream, or an iterable of lines.
    space
        What a label may be, and what happens to bad rows.
    columns
        The names of keys that have no name we know, such as {"task": "image"}.

    Examples
    --------
    >>> read_jsonl(['{"task": 7, "worker": "ann", "label": "cat"}']).item_ids
    [7]
    """
    [table] = iter_jsonl(source, space, _ALL_ROWS, columns)
    return table


def iter_jsonl(
    source: TextSource, space: LabelSpace = ANY_LABEL, rows: int = _ROWS, columns: Columns = None
) -> Iterator[LabelTable]:
    """Read JSON lines lazily: a table for every `rows` rows, as soon as they are there."""
    yield from _iterate(partial(_parse_jsonl, columns=columns), source, space, rows)


def read_wide(
    source: Any,
    space: LabelSpace = ANY_LABEL,
    columns: Columns = None,
    sep: str | None = None,
) -> LabelTable:
    """Read a matrix of labels: a CSV file, a DataFrame or a NumPy array.

    In a file, the first column is the task, and each other column belongs to one
    worker. A cell that is empty, NaN or −1 holds no label, and that is no error here.

    Parameters
    ----------
    source
        A path, an open stream, an iterable of lines, or what `frames.read_matrix` takes.
    space
        What a label may be, and what happens to bad rows.
    columns
        {"task": NAME} says which column holds the tasks.
    sep
        What separates cells; unless given, what makes most of the header.

    Examples
    --------
    >>> table = read_wide(["task,ann,bob", "q1,cat,", "q2,dog,cat"])
    >>> table.worker_ids, table.labels
    (['ann', 'ann', 'bob'], ['cat', 'dog', 'cat'])
    """
    [table] = iter_wide(source, space, _ALL_ROWS, columns, sep)
    return table


def iter_wide(
    source: Any,
    space: LabelSpace = ANY_LABEL,
    rows: int = _ROWS,
    columns: Columns = None,
    sep: str | None = None,
) -> Iterator[LabelTable]:
    """Read a matrix of labels lazily: a table for every `rows` labels; in memory, at once."""
    if is_tabular(source):
        yield read_matrix(source, space, columns)
    else:
        yield from _iterate(partial(_parse_wide, columns=columns, sep=sep), source, space, rows)


def read_labels(
    source: Any,
    space: LabelSpace = ANY_LABEL,
    columns: Columns = None,
    sep: str | None = None,
) -> LabelTable:
    """Read labels from anything we know: by its type, or by the suffix of its path.

    Parameters
    ----------
    source
        A path with a suffix in `FORMATS` (`.gz`, `.bz2`, `.xz` or `.zip` may follow), a DataFrame
        or other table, a matrix, a dict, a list of dicts or of tuples (task, worker, label), or an
        open stream or iterable of lines, CSV or JSON by its look.
    space
        What a label may be, and what happens to bad rows.
    columns
        The names of columns that have no name we know, such as {"task": "image"}.
    sep
        What separates the cells of CSV; found out unless given.
    """
    if isinstance(source, str | os.PathLike):
        known, options = _format_of(source, columns, sep)
        return known.read(source, space, **options)
    [table] = iter_labels(source, space, _ALL_ROWS, columns, sep)
    return table


def read_workers(workers: Any) -> LabelTable:
    """Read a table of workers: worker, worker_kind (or kind), model, prompt, order.

    Parameters
    ----------
    workers
        A DataFrame or another table, a path, a list of dicts, or a dict {worker: {"model": …}}.

    Examples
    --------
    >>> read_workers({"j1": {"kind": "llm", "model": "m-7b"}}).models
    ['m-7b']
    """
    if isinstance(workers, Mapping) and all(isinstance(v, Mapping) for v in workers.values()):
        workers = [{"worker": worker, **known} for worker, known in workers.items()]
    table = read_labels(workers, columns=OF_WORKERS)
    if len(table.worker_ids) and all(getattr(table, COLUMNS[role]) is None for role in ATTRIBUTES):
        raise LabelError(
            f"workers: a table of workers has one of the columns {', '.join(ATTRIBUTES)} beside "
            "worker, and this one none. Name them so."
        )
    return table._replace(source="workers") if table.source in ("list", "dict") else table


def iter_labels(
    source: Any,
    space: LabelSpace = ANY_LABEL,
    rows: int = _ROWS,
    columns: Columns = None,
    sep: str | None = None,
) -> Iterator[LabelTable]:
    """Read labels lazily from anything we know; what is in memory comes as one table."""
    if isinstance(source, str | os.PathLike):
        known, options = _format_of(source, columns, sep)
        yield from known.iterate(source, space, rows, **options)
    elif isinstance(source, LabelTable):
        yield checked(source, space)
    elif isinstance(source, Mapping):
        is_table = holds_columns(source, columns)
        yield read_columns(source, space, columns=columns) if is_table else read_dict(source, space)
    elif is_tabular(source) or not isinstance(source, Iterable):
        yield read_table(source, space, columns)
    else:
        yield from _from_iterable(source, space, rows, columns, sep)


def _from_iterable(
    source: Iterable[Any], space: LabelSpace, rows: int, columns: Columns, sep: str | None
) -> Iterator[LabelTable]:
    """Read what is iterated over by its first element: a dict, a tuple, or a line of text."""
    lines: Iterable[Any] = source
    if not hasattr(source, "name"):  # a file is named in errors, and has lines
        several = iter(source)
        first = list(islice(several, 1))
        if first and isinstance(first[0], dict):
            yield read_records([*first, *several], space, "list", columns)
            return
        if first and isinstance(first[0], tuple):
            yield read_tuples([*first, *several], space)
            return
        lines = chain(first, several)
    parse = partial(_parse_by_look, columns=columns, sep=sep)
    yield from _iterate(parse, lines, space, rows)


class Format(NamedTuple):
    """How files of one suffix are read, whole and lazily."""

    read: Callable[..., LabelTable]
    iterate: Callable[..., Iterator[LabelTable]]
    has_sep: bool = False


def _at_once(read: Callable[..., LabelTable]) -> Format:
    """The format of files that cannot be read in parts."""

    def iterate(source: Any, space: LabelSpace, rows: int, **options: Any) -> Iterator[LabelTable]:
        check_rows(rows)
        yield read(source, space, **options)

    return Format(read, iterate)


FORMATS: dict[str, Format] = {
    ".wide.csv": Format(read_wide, iter_wide, has_sep=True),
    ".csv": Format(read_csv, iter_csv, has_sep=True),
    ".tsv": Format(read_csv, iter_csv, has_sep=True),
    ".jsonl": Format(read_jsonl, iter_jsonl),
    ".ndjson": Format(read_jsonl, iter_jsonl),
    ".json": _at_once(read_json),
    ".parquet": Format(read_parquet, iter_parquet),
    ".feather": _at_once(read_feather),
    ".xlsx": _at_once(read_excel),
}
"""What is read how, by suffix; of two that fit, the one that stands first."""


def _format_of(
    source: str | os.PathLike[str], columns: Columns, sep: str | None
) -> tuple[Format, dict[str, Any]]:
    """The format of a path, and the options its reader is given."""
    path = os.fspath(source)
    name = unpacked_name(path).lower()
    for suffix, known in FORMATS.items():
        if not name.endswith(suffix):
            continue
        if sep is None:
            return known, {"columns": columns}
        if known.has_sep:
            return known, {"columns": columns, "sep": sep}
        raise StateError(f"{path}: cells are separated in CSV alone, so leave out `sep`.")
    raise LabelError(
        f"{path}: the format follows from the suffix, which must be one of {list(FORMATS)} "
        f"({', '.join([*PACKED, '.zip'])} may follow). Rename a text file with a header to .csv, "
        "whatever separates its cells; save any other as one of these."
    )


def _iterate(
    parse: _Parser, source: TextSource, space: LabelSpace, rows: int
) -> Iterator[LabelTable]:
    """Check the rows of a text file batch by batch; a file without rows gives an empty table."""
    check_rows(rows)
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


def _parse_csv(name: str, lines: Iterator[str], columns: Columns, sep: str | None) -> _Parsed:
    records = _csv_records(*_separated(lines, sep, columns))
    header = _header(records, name, "task,worker,label")
    found = find_columns(header, name, f"The first line must be a header. {NAME_COLUMNS}", columns)
    pick = itemgetter(*found.values())

    def rows() -> Iterator[tuple[Any, ...] | Fault]:
        for line, cells in _even(records, len(header)):
            yield cells if isinstance(cells, Fault) else (line, *pick(cells))

    return _Parsed(tuple(found), found, rows())


def _read_plain_csv(source: TextSource, columns: Columns, sep: str | None) -> LabelTable | None:
    """Read a large file of plain lines at once; None where it has to be read row by row."""
    # A pipe can be read only once.
    if not isinstance(source, str | os.PathLike) or not os.path.isfile(source):
        return None
    if os.path.getsize(source) < MIN_PLAIN_BYTES:
        return None
    name = name_of(source)
    with suppress(LabelQuorumError), opened(source) as stream:
        first = list(islice(_text([stream.readline()], name), 1))
        lines, separator = _separated(iter(first), sep, columns)
        header = _header(_csv_records(lines, separator), name, "")
        found = find_columns(header, name, "", columns)
        cells = split(stream, separator, len(header), list(found.values()))
        if cells is not None:
            named: dict[str, Any] = dict(zip(map(COLUMNS.__getitem__, found), cells, strict=True))
            return LabelTable(**named, source=name, lines=range(2, len(cells[0]) + 2))
    return None  # what is wrong is said with the line


def _parse_wide(name: str, lines: Iterator[str], columns: Columns, sep: str | None) -> _Parsed:
    records = _csv_records(*_separated(lines, sep))
    header = _header(records, name, "task,ann,bob")
    named = (columns or {}).get("task", header[0])
    if named not in header:
        raise LabelError(
            f"{name}: columns= says that {named!r} names the task, and there is no such column. "
            f"Got {header!r}. Correct it."
        )
    at = header.index(named)
    workers = header[:at] + header[at + 1 :]
    check_workers(workers, name)

    def rows() -> Iterator[tuple[Any, ...] | Fault]:
        for line, cells in _even(records, len(header)):
            if isinstance(cells, Fault):
                yield cells
                continue
            task, labels = cells[at], cells[:at] + cells[at + 1 :]
            for worker, label in zip(workers, labels, strict=True):
                if not is_hole(label):
                    yield line, task, worker, label

    return _Parsed(NEEDED, NEEDED, rows())


_decode_line = json.JSONDecoder(object_pairs_hook=unique_names).decode


def _parse_jsonl(name: str, lines: Iterator[str], columns: Columns) -> _Parsed:
    present = set(NEEDED)

    def rows() -> Iterator[tuple[Any, ...] | Fault]:
        for line, text in enumerate(lines, 1):
            if not text.strip():
                continue
            try:
                event = _decode_line(text)
            except (ValueError, RecursionError) as error:
                yield Fault(line, "malformed row", f"the line is not JSON ({error}). {SKIP}")
                continue
            if not isinstance(event, dict):
                rule = f"every line is a JSON object. Got {text.strip()[:80]}"
                yield Fault(line, "malformed row", f"{rule}. {SKIP}")
                continue
            shape = shape_of(tuple(event), columns)
            if isinstance(shape, Fault):
                yield shape._replace(line=line)
            else:
                present.update(shape.present)
                yield shape.row(line, event)

    return _Parsed(tuple(COLUMN_ALIASES), present, rows())


def _parse_by_look(name: str, lines: Iterator[str], columns: Columns, sep: str | None) -> _Parsed:
    """Take a stream for JSON if it starts with a brace, else for CSV."""
    first = list(islice(lines, 1))
    if "".join(first).lstrip().startswith("{"):
        return _parse_jsonl(name, chain(first, lines), columns)
    return _parse_csv(name, chain(first, lines), columns, sep)


def _separated(
    lines: Iterator[str], sep: str | None, columns: Columns = None
) -> tuple[Iterator[str], str]:
    """The lines, and what separates their cells.

    Unless given, it is what makes the header name a task, a worker and a label; where nothing does,
    what makes most cells.
    """
    if sep is not None:
        if len(sep) != 1 or sep in '"\r\n':
            raise StateError(f"`sep` must be one character, such as ';'. Got {sep!r}.")
        return lines, sep
    first: list[str] = []
    while not "".join(first).strip() and (line := list(islice(lines, 1))):
        first += line
    headers = {one: _cells(first[-1:], one) for one in SEPARATORS}
    fitting = [
        one for one, names in headers.items() if isinstance(match_columns(names, "", columns), dict)
    ]
    most = max(SEPARATORS, key=lambda one: len(headers[one]))
    return chain(first, lines), fitting[0] if fitting else most


def _cells(line: list[str], separator: str) -> list[str]:
    try:
        return next(csv.reader(line, delimiter=separator), [])
    except csv.Error:  # a cell with a line break in it: the reader takes the whole header
        return []


def _csv_records(lines: Iterator[str], separator: str) -> Iterator[tuple[int, list[str] | Fault]]:
    """Split CSV into records, each with the line it starts on; blank lines are none."""
    reader = csv.reader(lines, delimiter=separator, strict=True)
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
            sentence = f"{rule}; a cell that holds a separator needs quotes around it. {SKIP}"
            yield line, Fault(line, "malformed row", sentence)


@contextmanager
def _opened(source: TextSource) -> Iterator[tuple[str, Iterator[str]]]:
    """Open a path, or take a stream as it is: its name for messages, and its lines."""
    name = name_of(source)
    with opened(source) as stream:
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
                    f"Got {shown(line)}. Pass tuples (task, worker, label), dicts, a table, or a "
                    "NumPy matrix instead."
                )
            yield text.removeprefix(mark) if mark else text
            mark = ""
    except UnicodeDecodeError as error:
        raise LabelError(
            f"{name}: cannot be read to its end ({error}). Check that it is whole, and UTF-8."
        ) from error
