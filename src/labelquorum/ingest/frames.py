"""Labels in memory → a checked `LabelTable`: frames, Arrow tables, matrices, dicts, records.

No frame library is imported here: pandas, polars and pyarrow frames are recognised by their
types, which are imported once a frame exists. The keys of a record are the names of its columns, by
any alias and in any case. Records need not be alike, though most are, and then they are read as
columns.
"""

import sys
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum.errors import LabelError
from labelquorum.ingest.labels import COLUMN_ALIASES, MISSING, LabelSpace, LabelTable, is_missing
from labelquorum.ingest.validate import (
    ANY_LABEL,
    COLUMNS,
    NEEDED,
    SKIP,
    Fault,
    checked,
    find_columns,
    match_columns,
    role_of,
    shown,
)

__all__ = [
    "Shape",
    "check_workers",
    "collect",
    "is_hole",
    "is_tabular",
    "read_dict",
    "read_gold",
    "read_matrix",
    "read_records",
    "read_table",
    "require_pyarrow",
    "shape_of",
]

_FRAMES = (
    ("pandas", "DataFrame"),
    ("polars", "DataFrame"),
    ("pyarrow", "Table"),
    ("pyarrow", "RecordBatch"),
)


def read_table(table: Any, space: LabelSpace = ANY_LABEL) -> LabelTable:
    """Read a table in memory: one row per label, columns task, worker and label.

    Parameters
    ----------
    table
        A pandas or polars DataFrame, a pyarrow Table, or anything that gives an Arrow stream
        (`__arrow_c_stream__`; this takes pyarrow). A NumPy array is read by `read_matrix`, unless
        its three columns can only be tasks, workers and labels.
    space
        What a label may be, and what happens to bad rows.
    """
    if isinstance(table, np.ndarray):
        return _read_rows(table, space) if _holds_rows(table) else read_matrix(table, space)
    return checked(collect(_frame(table), type(table).__name__), space)


def read_dict(answers: Mapping[Any, Any], space: LabelSpace = ANY_LABEL) -> LabelTable:
    """Read labels in the form `{task: {worker: label}}`.

    Parameters
    ----------
    answers
        The labels of each worker, by task.
    space
        What a label may be, and what happens to bad rows.

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
    return checked(LabelTable(items, workers, said, source="dict", unit="row"), space, faults)


def read_gold(true_labels: Any) -> dict[Hashable, Hashable]:
    """Read what is known of the truth: a Series indexed by task, or a dict {task: label}.

    A task whose label is missing is one whose truth is not known.

    Examples
    --------
    >>> read_gold({"q1": "cat", "q2": None})
    {'q1': 'cat'}
    """
    if not isinstance(true_labels, Mapping) and not _is_series(true_labels):
        raise LabelError(
            "true_labels must be a Series indexed by task or a dict {task: label}. "
            f"Got a {type(true_labels).__name__}."
        )
    pairs = [(task, label) for task, label in true_labels.items() if not is_missing(label)]
    tasks, labels = zip(*pairs, strict=True) if pairs else ((), ())
    source = LabelTable(tasks, ["truth"] * len(tasks), labels, source="true_labels", unit="row")
    table = checked(source, ANY_LABEL)
    gold = dict(zip(table.item_ids, table.labels, strict=True))
    for task, label in zip(table.item_ids, table.labels, strict=True):
        if gold[task] != label:
            raise LabelError(
                f"true_labels: task {task!r} is {label!r} and {gold[task]!r}, and a task has one "
                "truth. Remove one of them."
            )
    return gold


def read_matrix(matrix: Any, space: LabelSpace = ANY_LABEL) -> LabelTable:
    """Read a matrix of labels in memory: one row per task, one column per worker.

    None, NaN, −1 and empty text stand for "no label" and are no error here.

    Parameters
    ----------
    matrix
        A NumPy array (tasks and workers are then its row and column numbers) or a DataFrame
        whose columns are the workers. Its tasks are a column called task (or item, example,
        question); without one, they are a pandas frame's index, another frame's first column.
    space
        What a label may be, and what happens to bad rows.

    Examples
    --------
    >>> table = read_matrix(np.array([[0, -1], [1, 0]]))
    >>> table.item_ids, table.worker_ids, table.labels
    ([0, 1, 1], [0, 0, 1], [0, 1, 0])
    """
    source = type(matrix).__name__
    tasks: Sequence[Any]
    workers: Sequence[Any]
    if isinstance(matrix, np.ndarray):
        values = matrix
        if values.ndim != 2:
            raise LabelError(
                f"{source}: a matrix of labels has two axes, tasks and workers. "
                f"Got {values.ndim}. Reshape it, or pass a table with task, worker and label."
            )
        tasks, workers = range(values.shape[0]), range(values.shape[1])
    else:
        tasks, workers, values = _split_frame(_frame(matrix), source)
    if values.dtype.kind in "biuf":
        held = (values != MISSING) & (values == values)  # NaN does not equal itself
    else:
        values = values.astype(object)
        held = ~np.frompyfunc(is_hole, 1, 1)(values).astype(bool)
    rows, columns = (axis.tolist() for axis in np.nonzero(held))
    return checked(
        LabelTable(
            [tasks[row] for row in rows],
            [workers[column] for column in columns],
            values[held].tolist(),
            source=source,
            lines=rows,
            unit="row",
        ),
        space,
    )


def _holds_rows(matrix: NDArray[Any]) -> bool:
    """Tell rows of (task, worker, label) from a matrix of three workers.

    Workers who label the same tasks use the same labels, and few pairs of them. So three columns
    without a common value are rows; and where the first two never repeat a pair but the third has
    too few values for as many pairs, it may be either, which is an error.
    """
    if matrix.ndim != 2 or matrix.shape[1] != 3 or len(matrix) < 2 or np.ma.is_masked(matrix):
        return False
    tasks, workers, labels = (column.tolist() for column in matrix.T)
    try:
        sets = [set(column) for column in (tasks, workers, labels)]
    except TypeError:  # a list is no label; the reader names its row
        return False
    if any(is_hole(cell) for cell in set().union(*sets)):
        return False
    if sum(map(len, sets)) == len(set().union(*sets)):
        return len(sets[0]) > 1
    n_pairs = len(set(zip(tasks, workers, strict=True)))
    if n_pairs == len(matrix) > max(len(sets[2]) ** 2, 20):
        raise LabelError(
            f"{type(matrix).__name__}: three columns may be the tasks, workers and labels of "
            f"{len(matrix):,} rows or the labels of three workers, and these look like rows. Pass "
            "pandas.DataFrame(array, columns=['task', 'worker', 'label']) for rows, or "
            "labelquorum.read_wide(array) for a matrix."
        )
    return False


def _read_rows(rows: NDArray[Any], space: LabelSpace) -> LabelTable:
    items, workers, labels = (column.tolist() for column in rows.T)
    return checked(LabelTable(items, workers, labels, source="ndarray", unit="row"), space)


def is_hole(cell: Any) -> bool:
    """Tell whether a cell of a matrix holds no label: empty, NaN or −1."""
    if isinstance(cell, str):
        return cell.strip().lower() in ("", "nan", "-1", "-1.0")
    return is_missing(cell) or bool(cell == MISSING)


def check_workers(names: Sequence[object], source: str) -> None:
    """Every column of a matrix is one worker, so no name may stand twice."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise LabelError(
            f"{source}: every column of a matrix is one worker, and {twice[0]!r} stands over "
            "more than one. Rename or merge these columns."
        )


def collect(frame: Any, source: str, lines: Sequence[int] | None = None) -> LabelTable:
    """Take the columns of a frame as Python lists, not yet checked."""
    names = _names(frame)
    found = find_columns(
        names, source, "Rename a column, or read one column per worker with read_wide."
    )
    cells: dict[str, Any] = {COLUMNS[role]: _cells(frame, names[at]) for role, at in found.items()}
    return LabelTable(**cells, source=source, lines=lines, unit="row")


def is_tabular(source: object) -> bool:
    """Tell whether this is a table or matrix in memory, which `read_table` may read."""
    return (
        isinstance(source, np.ndarray) or _is_frame(source) or hasattr(source, "__arrow_c_stream__")
    )


def require_pyarrow(module: str) -> Any:
    """Import pyarrow, or say how to get it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise LabelError(
            "Reading Parquet and Arrow takes pyarrow, which is not installed. "
            "Run pip install labelquorum[parquet], or write the labels as CSV."
        ) from error


def _is_series(values: object) -> bool:
    series = getattr(sys.modules.get("pandas"), "Series", None)
    return series is not None and isinstance(values, series)


def _is_frame(table: object) -> bool:
    kinds = [getattr(sys.modules.get(module), name, None) for module, name in _FRAMES]
    return isinstance(table, tuple(kind for kind in kinds if kind is not None))


def _frame(table: Any) -> Any:
    """Take a frame as it is where we know its kind, else its Arrow stream as a pyarrow table."""
    if _is_frame(table):
        return table
    if hasattr(table, "__arrow_c_stream__"):
        pyarrow = require_pyarrow("pyarrow")
        with suppress(pyarrow.ArrowException):  # a column alone is a stream too, but no table
            return pyarrow.table(table)
    raise LabelError(
        f"Labels cannot be read from a {type(table).__name__}. Pass a DataFrame with the columns "
        "task, worker and label, a dict {task: {worker: label}}, a matrix of tasks × workers, "
        "or the path of a file."
    )


def _names(frame: Any) -> list[Any]:
    # The `columns` of pyarrow's tables are the data.
    is_arrow = type(frame).__module__.startswith("pyarrow")
    return list(frame.schema.names if is_arrow else frame.columns)


def _cells(frame: Any, name: object) -> list[Any]:
    column = frame[name]
    cells: list[Any] = column.to_pylist() if hasattr(column, "to_pylist") else column.to_list()
    return cells


def _split_frame(frame: Any, source: str) -> tuple[list[Any], list[Any], NDArray[Any]]:
    """Split a wide frame into its tasks, its workers and their labels, (N, K)."""
    names = _names(frame)
    check_workers(names, source)
    first = next((name for name in names if role_of(name) == "task"), None)
    if first is None and hasattr(frame, "index"):
        tasks, workers = frame.index.tolist(), names
    else:
        first = names[0] if first is None else first
        tasks, workers = _cells(frame, first), [name for name in names if name != first]
    values = np.empty((len(tasks), len(workers)), dtype=object)
    for column, worker in enumerate(workers):
        values[:, column] = _cells(frame, worker)
    return tasks, workers, values


# ── records ──────────────────────────────────────────────────────────────────────────────


class Shape(NamedTuple):
    """How records with the same keys are read."""

    cells: tuple[tuple[str | None, Any], ...]  # for each role its key, and what holds without one
    present: frozenset[str]  # the roles that have a key


def shape_of(keys: tuple[str, ...]) -> Shape | Fault:
    """Say under which key a record has each role, and what holds where it has none."""
    # Most sources have one shape; memory stays flat whatever is sent.
    if len(keys) > _FEW_KEYS or sum(map(len, keys)) > _SHORT_KEYS:
        return _shape_of(keys)
    return _known_shape(keys)


def _shape_of(keys: tuple[str, ...]) -> Shape | Fault:
    found = match_columns(keys, SKIP)
    if isinstance(found, Fault):
        return found
    cells = tuple(
        (keys[found[role]] if role in found else None, 1.0 if role == "weight" else None)
        for role in COLUMN_ALIASES
    )
    return Shape(cells, frozenset(filter(None, map(role_of, keys))))


_known_shape = lru_cache(maxsize=1000)(_shape_of)
_FEW_KEYS, _SHORT_KEYS = 100, 2_000  # keys, and characters of all of them


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
