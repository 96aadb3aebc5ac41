"""Records → a checked `LabelTable`: objects with a task, a worker and a label, as JSON has them.

The keys of a record are the names of its columns, by any alias and in any case. Records need not
be alike, though most are, and then they are read as columns.
"""

from collections.abc import Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

from labelquorum.ingest.events import COLUMN_ALIASES, LabelSpace, LabelTable
from labelquorum.ingest.rules import (
    ANY_LABEL,
    COLUMNS,
    NEEDED,
    SKIP,
    Fault,
    checked,
    match_columns,
    role_of,
    shown,
)

__all__ = ["Shape", "read_records", "shape_of"]


class Shape(NamedTuple):
    """How records with the same keys are read."""

    cells: tuple[tuple[str | None, Any], ...]  # for each role its key, and what holds without one
    present: frozenset[str]  # the roles that have a key


@lru_cache(maxsize=1000)  # most sources have one shape; memory stays flat whatever is sent
def shape_of(keys: tuple[str, ...]) -> Shape | Fault:
    """Say under which key a record has each role, and what holds where it has none."""
    found = match_columns(keys, SKIP)
    if isinstance(found, Fault):
        return found
    cells = tuple(
        (keys[found[role]] if role in found else None, 1.0 if role == "weight" else None)
        for role in COLUMN_ALIASES
    )
    return Shape(cells, frozenset(filter(None, map(role_of, keys))))


def read_records(
    records: Sequence[Any], space: LabelSpace = ANY_LABEL, source: str = "records"
) -> LabelTable:
    """Read a list of dicts, each a label.

    Parameters
    ----------
    records
        The labels, one dict each.
    space
        What a label may be, and what happens to bad rows.
    source
        How errors name them.

    Examples
    --------
    >>> table = read_records([{"item": 7, "rater": "ann", "label": "cat"}])
    >>> table.item_ids, table.worker_ids, table.labels
    ([7], ['ann'], ['cat'])
    """
    table = _alike(records, source)
    if table is not None:
        return checked(table, space)
    present, faults, rows = set(NEEDED), [], []
    for row, record in enumerate(records):
        if not isinstance(record, dict):
            rule = f"every label is a JSON object. Got {shown(record)}"
            faults.append(Fault(row, "malformed row", f"{rule}. {SKIP}"))
            continue
        shape = shape_of(tuple(record))
        if isinstance(shape, Fault):
            faults.append(shape._replace(line=row))
        else:
            present |= shape.present
            rows.append((row, *(record.get(key, default) for key, default in shape.cells)))
    lines, *cells = map(list, zip(*rows, strict=True)) if rows else [[]] * (len(COLUMN_ALIASES) + 1)
    columns: dict[str, Any] = {
        COLUMNS[role]: column
        for role, column in zip(COLUMN_ALIASES, cells, strict=True)
        if role in present
    }
    return checked(LabelTable(**columns, source=source, lines=lines, unit="row"), space, faults)


def _alike(records: Sequence[Any], source: str) -> LabelTable | None:
    """The columns of records that all have the same keys; None where they have not."""
    if not records or type(records[0]) is not dict:
        return None
    keys = tuple(records[0])
    shape = shape_of(keys)
    if isinstance(shape, Fault) or set(map(type, records)) != {dict}:
        return None
    if set(map(len, records)) != {len(keys)}:
        return None
    try:
        cells = dict(zip(keys, zip(*map(itemgetter(*keys), records), strict=True), strict=True))
    except KeyError:
        return None
    columns: dict[str, Any] = {
        COLUMNS[role]: list(cells[key])
        for role, (key, _) in zip(COLUMN_ALIASES, shape.cells, strict=True)
        if key is not None
    }
    return LabelTable(**columns, source=source, unit="row")
