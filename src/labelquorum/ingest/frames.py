"""Labels in memory → a checked `LabelTable`: frames, Arrow tables, matrices.

No frame library is imported here: pandas, polars and pyarrow frames are recognised by their
types, which are imported once a frame exists; other tables by `__arrow_c_stream__` or `to_pandas`.
"""

import sys
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelquorum.errors import LabelError
from labelquorum.ingest.columns import (
    MIN_ENCODED_ROWS,
    as_column,
    cells_of_pandas,
    distinct,
    mapped,
)
from labelquorum.ingest.labels import MISSING, LabelSpace, LabelTable, is_missing
from labelquorum.ingest.validate import (
    ANY_LABEL,
    COLUMNS,
    NAME_COLUMNS,
    Columns,
    checked,
    find_columns,
    role_of,
)

_FRAMES = (
    ("pandas", "DataFrame"),
    ("polars", "DataFrame"),
    ("polars", "LazyFrame"),
    ("pyarrow", "Table"),
    ("pyarrow", "RecordBatch"),
)


def read_table(table: Any, space: LabelSpace = ANY_LABEL, columns: Columns = None) -> LabelTable:
    """Read a table in memory: one row per label, columns task, worker and label.

    Parameters
    ----------
    table
        A pandas or polars DataFrame, a polars LazyFrame, a pyarrow Table, anything that gives an
        Arrow stream (`__arrow_c_stream__`; this takes pyarrow) or has `to_pandas`, such as a
        `datasets.Dataset`; a pandas Series whose index is (task, worker). A matrix of SciPy or
        a masked array is read by `read_matrix`. A NumPy array is read by `read_matrix`, unless
        its three columns can only be tasks, workers and labels.
    space
        What a label may be, and what happens to bad rows.
    columns
        The names of columns that have no name we know, such as {"task": "image"}.
    """
    if _is_sparse(table) or (isinstance(table, np.ndarray) and not _holds_rows(table)):
        return read_matrix(table, space)
    if isinstance(table, np.ndarray):
        tasks, workers, labels = map(as_column, table.T)
        rows = LabelTable(tasks, workers, labels, source=type(table).__name__, unit="row")
        return checked(rows, space)
    if _is_series(table):
        return checked(collect(_unstacked(table), "Series", columns=columns), space)
    return checked(collect(_frame(table), type(table).__name__, columns=columns), space)


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
            f"Got a {type(true_labels).__name__}. "
            "Of a table, give table.set_index('task')['label']."
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


def read_matrix(matrix: Any, space: LabelSpace = ANY_LABEL, columns: Columns = None) -> LabelTable:
    """Read a matrix of labels in memory: one row per task, one column per worker.

    None, NaN, −1, empty text and what is masked stand for "no label" and are no error here. Of a
    sparse matrix, every element that is stored is a label, zeros too.

    Parameters
    ----------
    matrix
        A NumPy array or a sparse matrix of SciPy (tasks and workers are then its row and column
        numbers), or a DataFrame whose columns are the workers. Its tasks are a column called task
        (or item, example, question); without one, they are a pandas frame's index, another frame's
        first column.
    space
        What a label may be, and what happens to bad rows.
    columns
        {"task": NAME} says which column holds the tasks.

    Examples
    --------
    >>> table = read_matrix(np.array([[0, -1], [1, 0]]))
    >>> table.item_ids, table.worker_ids, table.labels
    ([0, 1, 1], [0, 0, 1], [0, 1, 0])
    """
    source = type(matrix).__name__
    tasks: Sequence[Any]
    workers: Sequence[Any]
    if _is_sparse(matrix):
        stored = matrix.tocoo()
        tasks, workers, labels = map(as_column, (*stored.coords, stored.data))
        table = LabelTable(tasks, workers, labels, source=source, lines=tasks, unit="row")
        return checked(table, space)
    if isinstance(matrix, np.ndarray):
        values = np.asarray(matrix)
        if values.ndim != 2:
            raise LabelError(
                f"{source}: a matrix of labels has two axes, tasks and workers. "
                f"Got {values.ndim}. Reshape it, or pass a table with task, worker and label."
            )
        tasks, workers = range(values.shape[0]), range(values.shape[1])
    else:
        tasks, workers, values = _split_frame(_frame(matrix), source, (columns or {}).get("task"))
    if values.dtype.kind in "biuf":
        held = (values != MISSING) & (values == values)  # NaN does not equal itself
    else:
        values = values.astype(object)
        with np.errstate(invalid="ignore"):  # of cells that are NaN, on Python 3.12
            held = ~np.frompyfunc(is_hole, 1, 1)(values).astype(bool)
    held &= ~np.ma.getmaskarray(matrix) if isinstance(matrix, np.ma.MaskedArray) else True
    rows, places = map(as_column, np.nonzero(held))
    return checked(
        LabelTable(
            mapped(rows, tasks.__getitem__),
            mapped(places, workers.__getitem__),
            as_column(values[held]),
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
    columns = list(map(as_column, matrix.T))
    try:
        sets = [set(distinct(column)) for column in columns]
    except TypeError:  # a list is no label; the reader names its row
        return False
    if any(is_hole(cell) for cell in set().union(*sets)):
        return False
    if sum(map(len, sets)) == len(set().union(*sets)):
        return len(sets[0]) > 1
    n_pairs = len(set(zip(*columns[:2], strict=True)))
    if n_pairs == len(matrix) > max(len(sets[2]) ** 2, 20):
        raise LabelError(
            f"{type(matrix).__name__}: three columns may be the tasks, workers and labels of "
            f"{len(matrix):,} rows or the labels of three workers, and these look like rows. Pass "
            "pandas.DataFrame(array, columns=['task', 'worker', 'label']) for rows, or "
            "labelquorum.read_wide(array) for a matrix."
        )
    return False


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


def collect(
    frame: Any, source: str, lines: Sequence[int] | None = None, columns: Columns = None
) -> LabelTable:
    """Take the columns of a frame, not yet checked."""
    names = _names(frame)
    if columns is None:
        found = _known_columns(tuple(names), source)
    else:
        found = find_columns(names, source, f"{NAME_COLUMNS} {_WIDE}", columns)
    cells: dict[str, Any] = {}
    if hasattr(frame, "iloc"):
        cells = _cells_of_pandas(frame, found)
    for role, at in found.items():
        if COLUMNS[role] not in cells:
            column = frame.iloc[:, at] if hasattr(frame, "iloc") else frame[names[at]]
            cells[COLUMNS[role]] = as_column(column)
    return LabelTable(**cells, source=source, lines=lines, unit="row")


def _cells_of_pandas(frame: Any, found: Mapping[str, int]) -> dict[str, list[Any]]:
    """Columns of a short frame, of types that need no Series: one takes 30 to 50 µs to make."""
    array_of = getattr(frame, "_get_column_array", None)  # not public, so it may go
    if array_of is None or len(frame) >= MIN_ENCODED_ROWS:
        return {}
    cells = {COLUMNS[role]: cells_of_pandas(array_of(at)) for role, at in found.items()}
    return {name: column for name, column in cells.items() if column is not None}


@lru_cache
def _known_columns(names: tuple[Any, ...], source: str) -> dict[str, int]:
    """Where the columns are, found once for all chunks that have the same; not to be changed."""
    return find_columns(names, source, f"{NAME_COLUMNS} {_WIDE}")


_WIDE = "A table with one column per worker is read by read_wide."


def is_tabular(source: object) -> bool:
    """Tell whether this is a table or matrix in memory, which `read_table` may read."""
    return (
        isinstance(source, np.ndarray)
        or _is_frame(source)
        or _is_series(source)
        or _is_sparse(source)
        or hasattr(source, "__arrow_c_stream__")
        or hasattr(source, "to_pandas")
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


def _is_sparse(matrix: Any) -> bool:
    """Whether this is a matrix or two-dimensional array of SciPy."""
    # Of the type: of a frame, hasattr searches the columns, which takes 20 µs.
    return hasattr(type(matrix), "tocoo") and matrix.ndim == 2


def _unstacked(series: Any) -> Any:
    """The frame of a Series whose index is (task, worker), by these names or in this order."""
    names = list(series.index.names)
    if len(names) < 2:
        raise LabelError(
            "Labels cannot be read from a Series whose index has one level. Index it by task and "
            "worker, such as df.set_index(['task', 'worker'])['label'], or pass a DataFrame."
        )
    if not {"task", "worker"} & set(map(role_of, names)):
        names[:2] = ["task", "worker"]
    return series.rename("label").rename_axis(names).reset_index()


def _is_frame(table: object) -> bool:
    for module, name in _FRAMES:
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None and isinstance(table, kind):
            return True
    return False


def _frame(table: Any) -> Any:
    """Take a frame as it is where we know its kind, else its Arrow stream as a pyarrow table."""
    if _is_frame(table):
        return table.collect() if type(table).__name__ == "LazyFrame" else table
    if hasattr(table, "__arrow_c_stream__"):
        pyarrow = require_pyarrow("pyarrow")
        with suppress(pyarrow.ArrowException):  # a column alone is a stream too, but no table
            return pyarrow.table(table)
    elif hasattr(table, "to_pandas") and _is_frame(frame := table.to_pandas()):
        return frame
    raise LabelError(
        f"Labels cannot be read from a {type(table).__name__}. Pass a DataFrame with the columns "
        "task, worker and label, a dict {task: {worker: label}}, a matrix of tasks × workers, "
        "or the path of a file."
    )


def _names(frame: Any) -> list[Any]:
    # The `columns` of pyarrow's tables are the data.
    if type(frame).__module__.startswith("pyarrow"):
        return list(frame.schema.names)
    columns = frame.columns
    if hasattr(frame, "iloc") and (names := cells_of_pandas(columns.array)) is not None:
        return names
    return list(columns)


def _split_frame(
    frame: Any, source: str, first: object
) -> tuple[list[Any], list[Any], NDArray[Any]]:
    """Split a wide frame into its tasks, its workers and their labels, (N, K)."""
    names = _names(frame)
    check_workers(names, source)
    if first is None:
        first = next((name for name in names if role_of(name) == "task"), None)
    elif first not in names:
        raise LabelError(
            f"{source}: columns= says that {first!r} names the task, and there is no such column. "
            f"Got {names!r}. Correct it."
        )
    if first is None and hasattr(frame, "index"):
        tasks, workers = frame.index.tolist(), names
    else:
        first = names[0] if first is None else first
        tasks, workers = list(as_column(frame[first])), [name for name in names if name != first]
    values = np.empty((len(tasks), len(workers)), dtype=object)
    for column, worker in enumerate(workers):
        values[:, column] = as_column(frame[worker])
    return tasks, workers, values
