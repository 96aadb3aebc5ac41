"""Labels as Python's own lists and dicts → a checked `LabelTable`.

The keys of a record are the names of its columns, by any alias and in any case. Records need not be
alike, though most are, and then they are read as columns.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

from labelquorum.errors import LabelError
from labelquorum.ingest.columns import as_column
from labelquorum.ingest.labels import COLUMN_ALIASES, LabelSpace, LabelTable
from labelquorum.ingest.validate import (
    ANY_LABEL,
    COLUMNS,
    NAME_COLUMNS,
    NEEDED,
    SKIP,
    Columns,
    Fault,
    checked,
    find_columns,
    match_columns,
    shown,
)


def read_dict(
    answers: Mapping[Any, Any], space: LabelSpace = ANY_LABEL, source: str = "dict"
) -> LabelTable:
    """Read labels in the form `{task: {worker: label}}`.

    Parameters
    ----------
    answers
        The labels of each worker, by task.
    space
        What a label may be, and what happens to bad rows.
    source
        How errors name them.

    Examples
    --------
    >>> read_dict({"q1": {"ann": "cat", "bob": "dog"}}).labels
    ['cat', 'dog']
    """
    rows: list[tuple[Any, Any, Any]] = []
    faults = []
    for task, labels in answers.items():
        if isinstance(labels, Mapping):
            rows.extend((task, worker, label) for worker, label in labels.items())
        else:
            rule = f"task {shown(task)} must have a dict of workers and their labels"
            sentence = f"{rule}. Got {shown(labels)}. {SKIP}"
            faults.append(Fault(len(rows), "malformed row", sentence))
    items, workers, said = zip(*rows, strict=True) if rows else ([], [], [])
    return checked(LabelTable(items, workers, said, source=source, unit="row"), space, faults)


def read_tuples(
    rows: Sequence[Any], space: LabelSpace = ANY_LABEL, source: str = "list"
) -> LabelTable:
    """Read rows in memory: (task, worker, label), and a weight, a group and a timestamp if given.

    Parameters
    ----------
    rows
        The labels, one tuple each, all of one length.
    space
        What a label may be, and what happens to bad rows.
    source
        How errors name them.

    Examples
    --------
    >>> read_tuples([("q1", "ann", "cat"), ("q1", "bob", "dog")]).worker_ids
    ['ann', 'bob']
    """
    width = len(rows[0]) if rows else len(NEEDED)
    good = [isinstance(row, tuple) and len(row) == width for row in rows]
    if not len(NEEDED) <= width <= len(COLUMNS) or not all(good):
        row = good.index(False) if False in good else 0
        raise LabelError(
            f"{source} row {row}: every row is a tuple of task, worker and label, and as long as "
            f"the first. Got {shown(rows[row])}. Correct it, or pass a DataFrame with columns."
        )
    cells = map(list, zip(*rows, strict=True)) if rows else [[], [], []]
    named: dict[str, Any] = dict(zip(COLUMNS.values(), cells, strict=False))
    return checked(LabelTable(**named, source=source, unit="row"), space)


def read_columns(
    named: Mapping[Any, Any],
    space: LabelSpace = ANY_LABEL,
    source: str = "dict",
    columns: Columns = None,
) -> LabelTable:
    """Read a dict of columns: lists, or as pandas writes JSON, dicts by row.

    Parameters
    ----------
    named
        The columns by name.
    space
        What a label may be, and what happens to bad rows.
    source
        How errors name them.
    columns
        The names of columns that have no name we know.

    Examples
    --------
    >>> read_columns({"task": ["q1", "q2"], "worker": ["ann", "bob"], "label": [0, 1]}).labels
    [0, 1]
    """
    names = list(named)
    found = find_columns(names, source, NAME_COLUMNS, columns)
    cells: dict[str, Any] = {}
    for role, at in found.items():
        column = named[names[at]]
        if isinstance(column, Mapping):
            column = column.values()
        cells[COLUMNS[role]] = as_column(column if hasattr(column, "__len__") else list(column))
    if len(set(map(len, cells.values()))) > 1:
        raise LabelError(
            f"{source}: all columns must be of one length. Got "
            f"{ {names[at]: len(cells[COLUMNS[role]]) for role, at in found.items()} }. Correct it."
        )
    return checked(LabelTable(**cells, source=source, unit="row"), space)


def holds_columns(answers: Mapping[Any, Any], columns: Columns = None) -> bool:
    """Tell a dict of columns from one of tasks."""
    return not isinstance(match_columns(list(answers), "", columns), Fault) if answers else False


class Shape(NamedTuple):
    """How records with the same keys are read."""

    cells: tuple[tuple[str | None, Any], ...]  # for each role its key, and what holds without one
    present: frozenset[str]  # the roles that have a key
    absent: tuple[None, ...]  # the cells of later roles, none of which has a key

    def row(self, line: int, record: Mapping[Any, Any]) -> tuple[Any, ...]:
        """The line, and a cell for each role."""
        return (line, *[record.get(key, default) for key, default in self.cells], *self.absent)


def shape_of(keys: tuple[str, ...], columns: Columns = None) -> Shape | Fault:
    """Say under which key a record has each role, and what holds where it has none."""
    named = None if columns is None else tuple(columns.items())
    # Most sources have one shape; memory stays flat whatever is sent.
    if len(keys) > _FEW_KEYS or sum(map(len, keys)) > _SHORT_KEYS:
        return _shape_of(keys, named)
    return _known_shape(keys, named)


def _shape_of(keys: tuple[str, ...], named: tuple[tuple[str, Any], ...] | None) -> Shape | Fault:
    found = match_columns(keys, SKIP, None if named is None else dict(named))
    if isinstance(found, Fault):
        return found
    roles = list(COLUMN_ALIASES)
    last = max(map(roles.index, ("weight", *found)))  # a weight has a default
    cells = tuple(
        (keys[found[role]] if role in found else None, 1.0 if role == "weight" else None)
        for role in roles[: last + 1]
    )
    return Shape(cells, frozenset(found), (None,) * (len(roles) - len(cells)))


_known_shape = lru_cache(maxsize=1000)(_shape_of)
_FEW_KEYS, _SHORT_KEYS = 100, 2_000  # keys, and characters of all of them


def read_records(
    records: Sequence[Any],
    space: LabelSpace = ANY_LABEL,
    source: str = "records",
    columns: Columns = None,
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
    columns
        The names of columns that have no name we know.

    Examples
    --------
    >>> table = read_records([{"item": 7, "rater": "ann", "label": "cat"}])
    >>> table.item_ids, table.worker_ids, table.labels
    ([7], ['ann'], ['cat'])
    """
    table = _alike(records, source, columns)
    if table is not None:
        return checked(table, space)
    present, faults, rows = set(NEEDED), [], []
    for row, record in enumerate(records):
        if not isinstance(record, dict):
            rule = f"every label is a JSON object. Got {shown(record)}"
            faults.append(Fault(row, "malformed row", f"{rule}. {SKIP}"))
            continue
        shape = shape_of(tuple(record), columns)
        if isinstance(shape, Fault):
            faults.append(shape._replace(line=row))
        else:
            present |= shape.present
            rows.append(shape.row(row, record))
    lines, *cells = map(list, zip(*rows, strict=True)) if rows else [[]] * (len(COLUMN_ALIASES) + 1)
    named: dict[str, Any] = {
        COLUMNS[role]: column
        for role, column in zip(COLUMN_ALIASES, cells, strict=True)
        if role in present
    }
    return checked(LabelTable(**named, source=source, lines=lines, unit="row"), space, faults)


def _alike(records: Sequence[Any], source: str, columns: Columns) -> LabelTable | None:
    """The columns of records that all have the same keys; None where they have not."""
    if not records or type(records[0]) is not dict:
        return None
    keys = tuple(records[0])
    shape = shape_of(keys, columns)
    if isinstance(shape, Fault) or set(map(type, records)) != {dict}:
        return None
    if set(map(len, records)) != {len(keys)}:
        return None
    try:
        cells = dict(zip(keys, zip(*map(itemgetter(*keys), records), strict=True), strict=True))
    except KeyError:
        return None
    named: dict[str, Any] = {
        COLUMNS[role]: list(cells[key])
        for role, (key, _) in zip(COLUMN_ALIASES, shape.cells, strict=False)
        if key is not None
    }
    return LabelTable(**named, source=source, unit="row")
