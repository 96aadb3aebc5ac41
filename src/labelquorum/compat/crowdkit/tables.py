"""Crowd-Kit's tables as integers, and back: column by column, without a loop over rows."""

from abc import ABC, abstractmethod
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.errors import LabelError, StateError
from labelquorum.learn.methods._batch import Incidence, incidence

COLUMNS = ["task", "worker", "label"]

Codes = NDArray[np.intp]


class MissingColumnError(LabelError, KeyError):
    """A column is not there: a KeyError to programs written for Crowd-Kit."""

    __str__ = Exception.__str__  # a KeyError shows its message in quotes


def require_scipy(module: str) -> Any:
    """Import a module of SciPy, or say how to get it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise StateError(
            "This part of compat.crowdkit takes SciPy, which is not installed. Run pip install "
            "'labelquorum[crowdkit]'."
        ) from error


class Table(NamedTuple):
    """Labels as integers, and what the integers stand for."""

    labels: Incidence
    tasks: pd.Index
    workers: pd.Index
    classes: pd.Index


class Aggregator(ABC):
    """What all classes have in common."""

    labels_: pd.Series
    probas_: pd.DataFrame

    @abstractmethod
    def fit(self, data: pd.DataFrame, *more: Any, **named: Any) -> Self:
        """Learn from a table with the columns task, worker, label."""

    def fit_predict(self, data: pd.DataFrame, *more: Any, **named: Any) -> pd.Series:
        """Learn as `fit` does and give `labels_`."""
        return self.fit(data, *more, **named).labels_

    def fit_predict_proba(self, data: pd.DataFrame, *more: Any, **named: Any) -> pd.DataFrame:
        """Learn as `fit` does and give `probas_`."""
        return self.fit(data, *more, **named).probas_

    def _answer(self, probs: Floats, tasks: pd.Index, classes: pd.Index) -> None:
        """Keep probabilities (N, C); ties fall to the first class."""
        self.probas_ = pd.DataFrame(probs, index=tasks, columns=classes)
        best = classes.take(np.argmax(probs, axis=1)) if probs.size else classes[:0]
        self.labels_ = pd.Series(best, index=tasks.rename("task"), name="agg_label")

    def _nothing(self) -> Self:
        self.probas_ = pd.DataFrame()
        self.labels_ = pd.Series(dtype=float, name="agg_label")
        return self


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
        The truth of some tasks: what no worker said is a class too, after the others.
    classes
        All classes there are; None takes those that occur.
    sort_classes, sort_tasks
        In their natural order, or else as they appear; None is as pandas counts them.
    weight
        The column of the labels' weights; None is one each.
    """
    check_columns(data)
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


def check_columns(data: pd.DataFrame) -> None:
    """Refuse a table that lacks a column."""
    absent = [column for column in COLUMNS if column not in data.columns]
    if absent:
        raise MissingColumnError(f"The table must have the columns {COLUMNS}. It lacks {absent}.")
