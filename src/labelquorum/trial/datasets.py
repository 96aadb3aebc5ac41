"""Crowd-label data sets from a folder of the user's, one folder each.

A data set is a folder with `labels.csv` (or `labels.csv.gz`: task, worker, label and perhaps
timestamp) and `truth.csv` (task, label), which may cover part of the items. Either file may be
absent: labels without truth can be aggregated, truth without labels can be given a simulated
crowd. The folder is named by the variable LABELQUORUM_DATA or by an argument.
"""

import csv
import os
from collections.abc import Hashable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from labelquorum.errors import LabelError
from labelquorum.ingest.events import COLUMN_ALIASES, LabelTable, is_missing
from labelquorum.ingest.formats import read_csv

__all__ = ["DATA_VARIABLE", "Dataset", "data_folder", "list_datasets", "read_dataset"]

DATA_VARIABLE = "LABELQUORUM_DATA"
LABEL_FILES = ("labels.csv", "labels.csv.gz")
TRUTH_FILE = "truth.csv"


class Dataset(NamedTuple):
    """Labels of a real crowd, and the truth of as many items as it is known for."""

    name: str
    table: LabelTable
    truth: Mapping[Hashable, Hashable]  # item id → true class
    folder: Path


def data_folder(folder: str | Path | None = None) -> Path:
    """Find the folder of data sets: the argument, or else the variable LABELQUORUM_DATA."""
    given = os.environ.get(DATA_VARIABLE) if folder is None else folder
    if not given:
        raise LabelError(
            f"No folder of data sets is known. Set {DATA_VARIABLE} to a folder that holds one "
            f"folder for each data set, with {LABEL_FILES[0]} and {TRUTH_FILE} in it."
        )
    if not Path(given).is_dir():
        origin = f"{DATA_VARIABLE} names" if folder is None else "we were given"
        raise LabelError(
            f"The folder of data sets must exist, but {origin} {str(given)!r}, which is no "
            f"folder. Set {DATA_VARIABLE} to a folder that holds one folder for each data set."
        )
    return Path(given)


def list_datasets(folder: str | Path | None = None) -> list[str]:
    """Name the data sets in a folder, in alphabetical order."""
    files = (*LABEL_FILES, TRUTH_FILE)
    return sorted(
        path.name
        for path in data_folder(folder).iterdir()
        if any((path / file).is_file() for file in files)
    )


def read_dataset(name: str, folder: str | Path | None = None) -> Dataset:
    """Read the labels and the truth of a data set.

    Ids and labels are text, as in the files. A data set that has no labels file gives an
    empty table, one that has no truth file an empty mapping.
    """
    root = data_folder(folder)
    known = list_datasets(root)
    if name not in known:
        near = get_close_matches(name, known, n=3) or known[:3]
        hint = f"The nearest are {', '.join(map(repr, near))}" if near else "It holds none"
        raise LabelError(f"There is no data set {name!r} in {str(root)!r}. {hint}.")
    files = [root / name / file for file in LABEL_FILES if (root / name / file).is_file()]
    table = read_csv(files[0]) if files else LabelTable([], [], [])
    truth_file = root / name / TRUTH_FILE
    truth = _read_truth(truth_file) if truth_file.is_file() else {}
    return Dataset(name, table, truth, root / name)


def _read_truth(path: Path) -> dict[Hashable, Hashable]:
    """Read item id → true class; an item may be named once."""
    truth: dict[Hashable, Hashable] = {}
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        header = reader.fieldnames or []
        task, label = (
            next((name for name in header if name.strip().lower() in COLUMN_ALIASES[kind]), None)
            for kind in ("task", "label")
        )
        if task is None or label is None:
            raise LabelError(
                f"{path} line 1: a truth file needs the columns task and label. "
                f"Got {list(header)}. Name them so in the first line."
            )
        for row in reader:
            item_id, true_class = row[task], row[label]
            if None in row:
                rule = f"there are more cells than the {len(header)} columns. Quote a comma in text"
            elif is_missing(item_id) or is_missing(true_class):
                rule = "a task and its label must both be there. Fill it in, or remove the line"
            elif item_id in truth:
                rule = f"task {item_id!r} is named a second time. Keep one of the two lines"
            else:
                truth[item_id] = true_class
                continue
            raise LabelError(f"{path} line {reader.line_num}: {rule}.")
    return truth
