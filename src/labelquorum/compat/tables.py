"""Crowd-Kit's tables as integers, and back: column by column, without a loop over rows."""

from functools import cache
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.errors import LabelError, StateError
from labelquorum.learn.methods import dawid_skene
from labelquorum.learn.methods._batch import Incidence, incidence

__all__ = [
    "COLUMNS",
    "EPSILON",
    "NEVER",
    "Table",
    "errors_table",
    "initial_confusion",
    "natural_order",
    "read_gold",
    "read_prior_mean",
    "read_table",
    "said_cells",
]

COLUMNS = ["task", "worker", "label"]

EPSILON = 1e-10
"""Crowd-Kit lets no count, prior or probability be smaller."""

NEVER = 1e-300
"""Stands for a label a worker never gave: its logarithm is finite."""

Codes = NDArray[np.intp]


class Table(NamedTuple):
    """Labels as integers, and what the integers stand for."""

    labels: Incidence
    tasks: pd.Index
    workers: pd.Index
    classes: pd.Index


def read_table(
    data: pd.DataFrame,
    true_labels: pd.Series | None = None,
    *,
    classes: pd.Index | None = None,
    sort_classes: bool | None = None,
    sort_tasks: bool | None = False,
    weight: str | None = None,
) -> Table:
    """Number what occurs in the columns task, worker, label.

    Parameters
    ----------
    true_labels
        The truth of some tasks: what nobody said is a class too, after the others.
    classes
        All classes there are; None takes those that occur.
    sort_classes, sort_tasks
        In their natural order, or else as they appear; None is as pandas counts them.
    weight
        The column of the labels' weights; None is one each.
    """
    absent = [column for column in COLUMNS if column not in data.columns]
    if absent:
        raise LabelError(f"The table must have the columns {COLUMNS}. It lacks {absent}.")
    numbered = [pd.factorize(data[column]) for column in COLUMNS]
    for column, (codes, _) in zip(COLUMNS, numbered, strict=True):
        if (codes < 0).any():
            raise LabelError(
                f"{(codes < 0).sum()} rows have no {column}. Remove them, or fill the {column} in."
            )
    (item, tasks), (worker, workers), (label, said) = numbered
    if _counts_in_order() if sort_tasks is None else sort_tasks:
        item, tasks = _put_in_order(item, tasks)
    if classes is not None:
        classes = classes.take(natural_order(classes))
        label = classes.get_indexer(said)[label]
        if (label < 0).any():
            unknown = said.difference(classes).tolist()
            raise LabelError(f"The labels {unknown} are not in `labels_priors`. Add them to it.")
    elif _counts_in_order() if sort_classes is None else sort_classes:
        label, classes = _put_in_order(label, said)
    else:
        classes = said
    if true_labels is not None:
        golden = pd.Index(true_labels.dropna().unique())
        classes = classes.append(golden[~golden.isin(classes)])
    labels = incidence(
        item,
        worker,
        label,
        None if weight is None else data[weight].to_numpy(np.float64),
        n_items=len(tasks),
        n_workers=len(workers),
        n_classes=len(classes),
    )
    return Table(labels, tasks.rename("task"), workers.rename("worker"), classes.rename("label"))


@cache
def _counts_in_order() -> bool:
    """Tell whether pandas sorts what it counts; from version 3 on it does not.

    Crowd-Kit's vote counts so. Its order of the classes decides ties, there and in Dawid–Skene.
    """
    counted = pd.DataFrame({"task": [1, 0], "label": [1, 0]}).value_counts().unstack("label")
    return counted.columns.is_monotonic_increasing


def _put_in_order(codes: Codes, index: pd.Index) -> tuple[Codes, pd.Index]:
    order = natural_order(index)
    place = np.empty(len(order), np.intp)
    place[order] = np.arange(len(order))
    return place[codes], index.take(order)


def natural_order(index: pd.Index) -> Codes:
    """The natural order; that of appearance where text and numbers are mixed."""
    try:
        return np.asarray(index.argsort())
    except TypeError:
        return np.arange(len(index))


def read_gold(true_labels: pd.Series | None, table: Table) -> dawid_skene.Gold | None:
    """The truth of the tasks in the table; others are passed over."""
    if true_labels is None:
        return None
    known = true_labels.dropna()
    item = table.tasks.get_indexer(known.index)
    truth = table.classes.get_indexer(pd.Index(known))
    return dawid_skene.Gold(item[item >= 0], truth[item >= 0])


def read_prior_mean(given: pd.Series | None, index: pd.Index, name: str) -> Floats:
    """A mean for each worker or task, in the order of `index`; 1 for all where none is given."""
    if given is None:
        return np.asarray(1.0)
    values = given.reindex(index).to_numpy(np.float64)
    if np.isnan(values).any():
        missing = index[np.isnan(values)].tolist()
        raise LabelError(f"`{name}` of GLAD must name every {index.name}. It lacks {missing[:5]}.")
    return values


def said_cells(labels: Incidence) -> NDArray[np.bool_]:
    """Which labels each worker gave, (P, 1, C)."""
    given = np.bincount(labels.cell, minlength=labels.n_workers * labels.n_classes) > 0
    return np.asarray(given.reshape(labels.n_workers, 1, labels.n_classes))


def initial_confusion(
    given: pd.DataFrame,
    strategy: str,
    counts: Floats,
    said: NDArray[np.bool_],
    table: Table,
) -> Floats:
    """The matrices (P, C, C) of the first round, from what is `given` and the soft counts."""
    if strategy not in ("assign", "addition"):
        raise StateError(
            '`initial_error_strategy` of DawidSkene must be "assign" or "addition". '
            f"Got {strategy!r}."
        )
    if list(given.index.names) != ["worker", "label"]:
        raise LabelError(
            "The index of `initial_error` must have the names worker and label. "
            f"Got {list(given.index.names)}."
        )
    worker = table.workers.get_indexer(given.index.get_level_values("worker"))
    label = table.classes.get_indexer(given.index.get_level_values("label"))
    values = given.reindex(columns=table.classes).fillna(0).to_numpy(np.float64)  # rows × truth
    inside, outside = (worker >= 0) & (label >= 0), (worker >= 0) & (label < 0)
    added, there = np.zeros_like(counts), np.zeros_like(said)
    added[worker[inside], :, label[inside]] = values[inside]
    there[worker[inside], 0, label[inside]] = True
    if strategy == "assign":
        if (said & ~there).any():
            lacking = (said & ~there).any(axis=(1, 2)).sum()
            raise LabelError(
                "`initial_error` must have a row for each label of each worker when it is "
                f"assigned. It lacks rows of {lacking} workers; add them, or choose addition."
            )
        sums = given.groupby(level="worker", sort=False).sum()
        if given.le(1).all(axis=None) and not np.allclose(sums, 1):
            raise LabelError(
                "The probabilities in `initial_error` must add up to 1 for each worker and truth."
            )
        counts, said = np.zeros_like(counts), there
    cells = np.where(said | there, np.maximum(counts + added, EPSILON), NEVER)
    total = cells.sum(axis=2)
    # A label that occurs only there has its share of the worker's matrix all the same.
    np.add.at(total, worker[outside], np.maximum(values[outside], EPSILON))
    return np.asarray(cells / total[:, :, None])


def errors_table(confusion: Floats, table: Table) -> pd.DataFrame:
    """Matrices (P, C, C) as Crowd-Kit lays them out: worker and label as they appear × truth."""
    worker, label = np.divmod(pd.unique(table.labels.cell), len(table.classes))
    index = pd.MultiIndex.from_arrays([table.workers.take(worker), table.classes.take(label)])
    columns = pd.Index([*COLUMNS[1:], *table.classes])[2:]  # of the type a table's columns have
    return pd.DataFrame(confusion[worker, :, label], index, columns)
