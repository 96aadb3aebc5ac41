"""Files that are opened as bytes → a checked `LabelTable`: Parquet, Feather, Excel, JSON documents.

A path may end in `.gz`, `.bz2`, `.xz` or `.zip`: it is unpacked on the fly. These are for files of
one's own; what strangers send is read by `untrusted.py`.
"""

import bz2
import gzip
import json
import lzma
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from itertools import chain
from typing import Any

from labelquorum.errors import LabelError, StateError
from labelquorum.ingest.frames import collect, require_pyarrow
from labelquorum.ingest.label_studio import read_label_studio
from labelquorum.ingest.labels import LabelSpace, LabelTable
from labelquorum.ingest.records import holds_columns, read_columns, read_dict, read_records
from labelquorum.ingest.validate import (
    ANY_LABEL,
    COLUMNS,
    NAME_COLUMNS,
    Columns,
    checked,
    find_columns,
    shown,
    unique_names,
)

PACKED: Mapping[str, Callable[[str, Any], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
"""How a path that ends so is opened; `.zip` may end one too."""


def name_of(source: object) -> str:
    """Name a source as messages do: by its path, as it was given to us."""
    if not isinstance(source, str | os.PathLike):
        source = getattr(source, "name", None)
    return str(source) if isinstance(source, str | os.PathLike) else "stream"


def unpacked_name(path: str) -> str:
    """A path without the suffix of a packer; of a zip file that has no other, the file in it.

    Examples
    --------
    >>> unpacked_name("labels.csv.gz")
    'labels.csv'
    """
    bare, suffix = os.path.splitext(path)
    if suffix.lower() != ".zip":
        return bare if suffix.lower() in PACKED else path
    if os.path.splitext(bare)[1]:
        return bare
    with _named(path), zipfile.ZipFile(path) as archive:
        return _only_member(archive, path)


@contextmanager
def opened(source: Any) -> Iterator[Any]:
    """Open a path for reading bytes, unpacked; take a stream as it is."""
    with ExitStack() as stack:
        stack.enter_context(_named(name_of(source)))
        if isinstance(source, str | os.PathLike):
            path = os.fspath(source)
            if path.lower().endswith(".zip"):
                archive = stack.enter_context(zipfile.ZipFile(path))
                source = archive.open(_only_member(archive, path))
            else:
                source = PACKED.get(os.path.splitext(path)[1].lower(), open)(path, "rb")
            stack.enter_context(source)
        yield source


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Name the file in what unpacking raises where it is cut short or not what its suffix says."""
    try:
        yield
    except (EOFError, OSError, zlib.error, lzma.LZMAError, zipfile.BadZipFile) as error:
        if isinstance(error, OSError) and error.errno is not None:  # Python's own, with the path
            raise
        raise LabelError(
            f"{name}: cannot be read to its end ({error}). Check that it is whole."
        ) from error


def _only_member(archive: zipfile.ZipFile, path: str) -> str:
    names = [
        one.filename
        for one in archive.infolist()
        if not one.is_dir() and not one.filename.startswith("__MACOSX/")
    ]
    if len(names) != 1:
        raise LabelError(
            f"{path}: a zip file of labels must hold one file. It holds {len(names)}: "
            f"{shown(names)}. Unpack it."
        )
    return names[0]


def read_parquet(source: Any, space: LabelSpace = ANY_LABEL, columns: Columns = None) -> LabelTable:
    """Read a Parquet file, one row per label; needs pyarrow.

    Parameters
    ----------
    source
        A path, or a file opened for reading bytes.
    space
        What a label may be, and what happens to bad rows.
    columns
        The names of columns that have no name we know.
    """
    with _opened_parquet(source, columns) as (name, file, used):
        return checked(collect(file.read(used), name, columns=columns), space)


def iter_parquet(
    source: Any, space: LabelSpace = ANY_LABEL, rows: int = 10_000, columns: Columns = None
) -> Iterator[LabelTable]:
    """Read a Parquet file lazily: a table for every `rows` rows or less."""
    check_rows(rows)
    with _opened_parquet(source, columns) as (name, file, used):
        start = 0
        empty = [file.schema_arrow.empty_table()] if not file.metadata.num_rows else []
        for batch in chain(empty, file.iter_batches(rows, columns=used)):
            lines = range(start, start + batch.num_rows)
            yield checked(collect(batch, name, lines, columns), space)
            start += batch.num_rows


@contextmanager
def _opened_parquet(source: Any, columns: Columns) -> Iterator[tuple[str, Any, list[str]]]:
    """Open a Parquet file: its name, the file, and the columns we read of it."""
    pyarrow, parquet = map(require_pyarrow, ("pyarrow", "pyarrow.parquet"))
    name = name_of(source)
    with opened(source) as stream:
        try:
            with parquet.ParquetFile(stream) as file:
                names = file.schema_arrow.names
                found = find_columns(names, name, NAME_COLUMNS, columns)
                yield name, file, [names[position] for position in found.values()]
        except pyarrow.ArrowException as error:
            raise _unreadable(name, "Parquet", error) from error


def read_feather(source: Any, space: LabelSpace = ANY_LABEL, columns: Columns = None) -> LabelTable:
    """Read a Feather (Arrow IPC) file, one row per label; needs pyarrow.

    Parameters
    ----------
    source
        A path, or a file opened for reading bytes.
    space
        What a label may be, and what happens to bad rows.
    columns
        The names of columns that have no name we know.
    """
    pyarrow, feather = map(require_pyarrow, ("pyarrow", "pyarrow.feather"))
    name = name_of(source)
    with opened(source) as stream:
        try:
            table = feather.read_table(stream)
        except pyarrow.ArrowException as error:
            raise _unreadable(name, "Feather", error) from error
    return checked(collect(table, name, columns=columns), space)


def read_excel(source: Any, space: LabelSpace = ANY_LABEL, columns: Columns = None) -> LabelTable:
    """Read the first sheet of an Excel workbook: a header, then one row per label; needs openpyxl.

    Numbers stay numbers and text text; a formula is read by its last value.

    Parameters
    ----------
    source
        A path, or a file opened for reading bytes.
    space
        What a label may be, and what happens to bad rows.
    columns
        The names of columns that have no name we know.
    """
    name = name_of(source)
    with opened(source) as stream:
        try:
            openpyxl = import_module("openpyxl")
        except ImportError as error:
            raise LabelError(
                "Reading Excel takes openpyxl, which is not installed. "
                "Run pip install labelquorum[excel], or save the sheet as CSV."
            ) from error
        try:
            book = openpyxl.load_workbook(stream, read_only=True, data_only=True)
        except (
            openpyxl.utils.exceptions.InvalidFileException,
            KeyError,
            zipfile.BadZipFile,
        ) as error:
            raise _unreadable(name, "Excel", error) from error
        sheet = book.worksheets[0]
        rows = [
            (n, row)
            for n, row in enumerate(sheet.iter_rows(values_only=True), 1)
            if set(row) != {None}
        ]
        book.close()
    header = list(rows[0][1]) if rows else []
    found = find_columns(header, f"{name} row 1", NAME_COLUMNS, columns)
    cells: dict[str, Any] = {
        COLUMNS[role]: [row[at] for _, row in rows[1:]] for role, at in found.items()
    }
    lines = [line for line, _ in rows[1:]]
    return checked(LabelTable(**cells, source=name, lines=lines, unit="row"), space)


def read_json(source: Any, space: LabelSpace = ANY_LABEL, columns: Columns = None) -> LabelTable:
    """Read a JSON document: a list of objects, each a label, or an export of Label Studio.

    It may also be an object {task: {worker: label}}, or one of columns, as pandas writes.

    Parameters
    ----------
    source
        A path, or an open file.
    space
        What a label may be, and what happens to bad rows.
    columns
        The names of keys that have no name we know.
    """
    name = name_of(source)
    with opened(source) as stream:
        try:
            document = json.loads(stream.read(), object_pairs_hook=unique_names)
        except (ValueError, RecursionError) as error:
            raise _unreadable(name, "JSON", error) from error
    if isinstance(document, dict) and document:
        if holds_columns(document, columns):
            return read_columns(document, space, name, columns)
        return read_dict(document, space, name)
    if not isinstance(document, list):
        raise LabelError(
            f"{name}: a JSON file of labels is a list of objects with task, worker and label, or "
            f"an object {{task: {{worker: label}}}}. Got {shown(document)}. Write it so."
        )
    if document and all(isinstance(part, dict) and "annotations" in part for part in document):
        return _from_label_studio(document, space, name)
    return read_records(document, space, name, columns)


def _from_label_studio(export: Sequence[Any], space: LabelSpace, name: str) -> LabelTable:
    heard = read_label_studio(export)
    events = [version.event for version in heard.versions if version.event is not None]
    return checked(
        LabelTable(
            [event.item_id for event in events],
            [event.worker_id for event in events],
            [event.label for event in events],
            timestamps=[event.timestamp for event in events],
            source=name,
            skipped=heard.skipped,
            unit="row",
        ),
        space,
    )


def check_rows(rows: int) -> None:
    """Refuse a size of tables below one row."""
    if rows < 1:
        raise StateError(f"`rows` must be a whole number ≥ 1. Got {rows}.")


def _unreadable(name: str, kind: str, error: Exception) -> LabelError:
    return LabelError(f"{name}: the file is not readable as {kind} ({error}). Write it again.")
