"""Labels on their way to the service: cut into batches, written as lines of JSON, packed."""

import gzip
import json
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any

from labelquorum.errors import LabelError
from labelquorum.ingest.events import LabelSpace, LabelTable
from labelquorum.ingest.formats import iter_labels
from labelquorum.ingest.rules import COLUMNS, shown

__all__ = ["BATCH_ROWS", "batches", "packed", "plain"]

BATCH_ROWS = 5_000
_WORTH_PACKING = 1_000  # bytes
_MOST_PACKED = 50  # the service takes what is packed tighter than 100 to 1 for a bomb


def batches(labels: Any, space: LabelSpace) -> Iterator[LabelTable]:
    """Labels in tables that one request can take."""
    for table in iter_labels(_lines(labels), space, BATCH_ROWS):
        columns = {name: getattr(table, name) for name in COLUMNS.values()}
        for start in range(0, max(1, len(table.item_ids)), BATCH_ROWS):
            part: dict[str, Any] = {
                name: None if column is None else column[start : start + BATCH_ROWS]
                for name, column in columns.items()
            }
            yield LabelTable(**part, skipped={} if start else table.skipped)


def _lines(labels: Any) -> Any:
    """Dicts, one a label, as lines of JSON; anything else as it is."""
    is_tuple = isinstance(labels, tuple) and not isinstance(labels, LabelTable)
    is_stream = isinstance(labels, Iterator) and not hasattr(labels, "read")
    if not (is_tuple or is_stream or isinstance(labels, list)):
        return labels
    rest = iter(labels)
    first = list(islice(rest, 1))
    if not first:
        return LabelTable([], [], [])
    rows = chain(first, rest)
    return map(_line, rows) if isinstance(first[0], Mapping) else rows


def _line(row: Any) -> str:
    try:
        return json.dumps(dict(row), default=plain)
    except (TypeError, ValueError) as error:
        raise LabelError(
            f"A label is a dict of text and numbers. Got {shown(row)} ({error}). Correct it."
        ) from error


def _ndjson(table: LabelTable) -> bytes:
    names = [role for role, column in COLUMNS.items() if getattr(table, column) is not None]
    columns = [getattr(table, COLUMNS[role]) for role in names]
    rows = (
        {role: value for role, value in zip(names, row, strict=True) if value is not None}
        for row in zip(*columns, strict=True)
    )
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode()


def packed(table: LabelTable) -> tuple[bytes, dict[str, str]]:
    """The body of a request that sends a table, and its headers; packed where that is worth it."""
    body = _ndjson(table)
    headers = {"Content-Type": "application/x-ndjson"}
    if len(body) >= _WORTH_PACKING:
        packed = gzip.compress(body, 5, mtime=0)
        if len(body) <= _MOST_PACKED * len(packed):
            return packed, {**headers, "Content-Encoding": "gzip"}
    return body, headers


def plain(value: Any) -> Any:
    """NumPy's scalars and dates, as JSON can hold them."""
    if hasattr(value, "item"):
        return value.item()
    return value.isoformat() if hasattr(value, "isoformat") else value
