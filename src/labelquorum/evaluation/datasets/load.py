"""Crowd-label data sets: what is known of each, and reading them from a folder of the user's.

The facts are in `datasets.toml`, a table each: who made a set, under which licence, where it is,
what to expect. A set that shares items or labels with others belongs to their family, and a result
that counts both as independent counts twice.

A data set is a folder with `labels.csv` (task, worker, label and perhaps timestamp; or
`labels.wide.csv`, a row per task and a column per worker) and `truth.csv` (task, label), which may
cover part of the items; `.gz` may follow. Either file may be absent: labels without truth can be
aggregated, truth without labels can be given a simulated crowd. `workers.csv`, where there is one,
says what the workers are. The folder of data sets is named by an argument, or one or several by the
variable LABELQUORUM_DATA, with a colon between them. A toy set is always there.
"""

import csv
import gzip
import io
import os
import tomllib
import zlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

from labelquorum.errors import LabelError
from labelquorum.evaluation.datasets.converters import ORIGINALS, TruthRow, read_column, read_matrix
from labelquorum.ingest.labels import COLUMN_ALIASES, LabelTable, is_missing
from labelquorum.ingest.readers import read_labels, read_workers

Order = Literal["source", "arrival", "arrival within items"]


class Counts(NamedTuple):
    """How large a data set is."""

    n_workers: int
    n_items: int  # with labels or with truth
    n_labels: int
    n_classes: int
    n_truth: int  # items whose truth is known


class DatasetInfo(NamedTuple):
    """A data set as the registry knows it."""

    name: str
    title: str
    citation: str
    licence: str
    counts: Counts
    family: str
    """Sets of one family share items or labels; the set's own name if it stands alone."""

    order: Order = "source"
    """Rows stand as in the source, or as the labels arrived, at all or within each item."""

    repository: str | None = None
    files: tuple[str, ...] = ()
    """Paths in the repository, in the order the converter takes them."""

    converter: str | None = None
    labels_sha256: str | None = None
    truth_sha256: str | None = None
    public: bool = True
    note: str | None = None

    @property
    def sources(self) -> tuple[str, ...]:
        """Addresses of the source's files, for a person to open."""
        return tuple(f"{self.repository}/blob/HEAD/{quote(path)}" for path in self.files)


def dataset_info(name: str) -> DatasetInfo | None:
    """Give what the registry knows of a data set, or None if it does not know it.

    Parameters
    ----------
    name
        The name of a data set.

    Examples
    --------
    >>> rte = dataset_info("rte")
    >>> rte.counts.n_labels, rte.family, dataset_info("snow_joy").family
    (8000, 'rte', 'snow_emotions')
    """
    return known_datasets().get(name)


@cache
def known_datasets() -> Mapping[str, DatasetInfo]:
    """Give everything the registry knows, by name."""
    text = (
        files("labelquorum.evaluation.datasets")
        .joinpath("datasets.toml")
        .read_text(encoding="utf-8")
    )
    return MappingProxyType(
        {name: _info(name, facts) for name, facts in tomllib.loads(text).items()}
    )


def _info(name: str, facts: dict[str, Any]) -> DatasetInfo:
    counts = Counts(*(facts.pop(field) for field in Counts._fields))
    paths = tuple(facts.pop("files", ()))
    return DatasetInfo(name, counts=counts, family=facts.pop("family", name), files=paths, **facts)


# ── reading ──────────────────────────────────────────────────────────────────────────────


DATA_VARIABLE = "LABELQUORUM_DATA"
LABEL_FILES = ("labels.csv", "labels.csv.gz", "labels.wide.csv", "labels.wide.csv.gz")
TRUTH_FILES = ("truth.csv", "truth.csv.gz")
WORKERS_FILE = "workers.csv"
ORIGINAL_FILES = ("labels.txt", "truth.txt")  # Age and Heart may have these
TOY = Path(__file__).parent / "toy"
"""The data set that is always there."""


class Dataset(NamedTuple):
    """Labels of a real crowd, and the truth of as many items as it is known for."""

    name: str
    table: LabelTable
    truth: Mapping[Hashable, Hashable]  # item id → true class
    folder: Path
    workers: LabelTable | None = None  # what they are, for `fit(table, workers=…)`


def data_folder(folder: str | Path | None = None) -> Path:
    """Find the folder of data sets; the first of several, which is where new ones go."""
    return data_folders(folder)[0]


def data_folders(folder: str | Path | None = None) -> list[Path]:
    """Find the folders of data sets: the argument, or else what LABELQUORUM_DATA names."""
    given = os.environ.get(DATA_VARIABLE, "") if folder is None else str(folder)
    folders = given.split(os.pathsep) if folder is None else [given]
    folders = [one for one in folders if one]
    if not folders:
        raise LabelError(
            f"No folder of data sets is known. Name one (--data), or set {DATA_VARIABLE} to it: it "
            f"holds a folder for each data set, with {LABEL_FILES[0]} and {TRUTH_FILES[0]} in it."
        )
    for one in folders:
        if not Path(one).is_dir():
            origin = f"{DATA_VARIABLE} names" if folder is None else "we were given"
            which = "which" if len(folders) == 1 else f"of which {one!r}"
            raise LabelError(
                f"The folder of data sets must exist, but {origin} {given!r}, {which} is no "
                "folder. Give one that holds a folder for each data set."
            )
    return list(map(Path, folders))


def list_datasets(folder: str | Path | None = None) -> list[str]:
    """Name the data sets in the folders, in alphabetical order."""
    return sorted(dataset_paths(folder))


def dataset_paths(folder: str | Path | None = None) -> dict[str, Path]:
    """Where each data set in the folders is; of two with one name, the one found first."""
    return {
        path.name: path
        for root in reversed(data_folders(folder))
        for path in root.iterdir()
        if not path.name.startswith(".") and is_dataset(path)
    }


def is_dataset(folder: Path) -> bool:
    """Whether a folder holds the files of a data set; one we may not look into does not."""
    return any(_files(folder))


def read_dataset(name: str, folder: str | Path | None = None) -> Dataset:
    """Read the labels and the truth of a data set.

    Ids and labels are text, as in the files. A data set that has no labels file gives an
    empty table, one that has no truth file an empty mapping.

    Parameters
    ----------
    name
        The name of its folder; "toy" needs none.
    folder
        The folder above it; unless given, the folders that LABELQUORUM_DATA names, in order.

    Examples
    --------
    >>> from labelquorum import MajorityVote
    >>> toy = read_dataset("toy")
    >>> labels = MajorityVote().fit_predict(toy.table)
    >>> sum(labels[task] != true for task, true in toy.truth.items()), "wrong of", len(labels)
    (1, 'wrong of', 4)
    """
    path = _find(name, folder)
    labels_file, truth_file = _files(path)
    table = LabelTable([], [], []) if labels_file is None else _read_table(labels_file)
    truth = [] if truth_file is None else _read_truth(truth_file)
    if name in ORIGINALS:
        table, truth = ORIGINALS[name](table, truth)
    workers = read_workers(path / WORKERS_FILE) if (path / WORKERS_FILE).is_file() else None
    return Dataset(name, table, {row.item_id: row.label for row in truth}, path, workers)


def count_dataset(dataset: Dataset) -> Counts:
    """Count workers, items, labels, classes and items with truth."""
    table, truth = dataset.table, dataset.truth
    return Counts(
        n_workers=len(set(table.worker_ids)),
        n_items=len({*table.item_ids, *truth}),
        n_labels=len(table.labels),
        n_classes=len({*table.labels, *truth.values()}),
        n_truth=len(truth),
    )


def check_dataset(dataset: Dataset) -> list[str]:
    """Say in what a data set differs from what the registry knows of it, a sentence each.

    An empty list means that counts and checksums are right, or that the set is your own.

    Examples
    --------
    >>> check_dataset(read_dataset("toy"))
    []
    """
    info = dataset_info(dataset.name)
    if info is None:
        return []
    found, sentences = count_dataset(dataset), []
    for field in Counts._fields:
        count, expected = getattr(found, field), getattr(info.counts, field)
        if count != expected:
            what = "items with truth" if field == "n_truth" else field.removeprefix("n_")
            sentences.append(f"{dataset.folder}: {expected} {what} were expected. Got {count}.")
    expected_sums = info.labels_sha256, info.truth_sha256
    for file, expected_sum in zip(_files(dataset.folder), expected_sums, strict=True):
        if file is not None and expected_sum is not None:
            found_sum = sha256(_content(file)).hexdigest()
            if found_sum != expected_sum:
                sentences.append(
                    f"{file}: its SHA-256 must be {expected_sum[:12]}…. Got {found_sum[:12]}…. "
                    "Get the set again, or give yours another name."
                )
    return sentences


def unknown_dataset(name: str, folders: Sequence[Path] = ()) -> LabelError:
    """Make the error for a name nobody knows; it tells the nearest ones."""
    here = [other for folder in folders for other in list_datasets(folder)]
    near = get_close_matches(name, sorted({*here, *known_datasets()}), n=3)
    hint = f"The nearest are {', '.join(map(repr, near))}. " if near else ""
    return LabelError(
        f"There is no data set {name!r}{_in(folders)}. {hint}"
        "`labelquorum datasets` lists what is known and what is there."
    )


def way_to_get(info: DatasetInfo, folder: Path | None = None) -> str:
    """Say in a sentence how a data set that is known comes to be in a folder."""
    place = Path("DIR" if folder is None else folder) / info.name
    if not info.public:
        ages = " with ages or groups as labels" if info.name == "age" else ""
        return (
            f"Data not available: {info.name} is not public. If you own it, put labels.csv (task, "
            f"worker, label) and truth.csv (task, label){ages} into {place}."
        )
    if info.name == TOY.name:
        return "It comes with LabelQuorum."
    if info.converter is None:
        return f"Put labels.csv and truth.csv into {place} yourself, after {info.repository}."
    return f"Get it by `labelquorum datasets --download {info.name}`, or put it into {place}."


def _find(name: str, folder: str | Path | None) -> Path:
    """Find where a data set is; one in the folder goes before the one we bring."""
    given = folder is not None or os.environ.get(DATA_VARIABLE)
    roots = data_folders(folder) if given else []
    found = dataset_paths(folder).get(name) if given else None
    if found is not None:
        return found
    if name == TOY.name:
        return TOY
    info = dataset_info(name)
    if info is None:
        raise unknown_dataset(name, roots)
    if info.public:
        roots = data_folders(folder)  # an error where no folder was named
    way = way_to_get(info, roots[0] if roots else None)
    raise LabelError(f"There is no data set {name!r}{_in(roots)}. {way}")


def _in(folders: Sequence[Path]) -> str:
    return f" in {' or '.join(repr(str(folder)) for folder in folders)}" if folders else ""


def _files(folder: Path) -> tuple[Path | None, Path | None]:
    """Find the files of labels and of truth."""
    original = ORIGINAL_FILES if folder.name in ORIGINALS else ()
    labels, truth = (
        next((folder / name for name in names if os.path.isfile(folder / name)), None)
        for names in ((*LABEL_FILES, *original[:1]), (*TRUTH_FILES, *original[1:]))
    )
    return labels, truth


def read_truth(path: str | Path) -> dict[str, str]:
    """Read the true class of each task from a CSV file with the columns task and label, as text."""
    return {row.item_id: row.label for row in _read_truth(Path(path))}


def _read_table(path: Path) -> LabelTable:
    return read_matrix(path) if path.suffix == ".txt" else read_labels(path)


def _read_truth(path: Path) -> list[TruthRow]:
    """Read item and true class of each row; an item may be named once."""
    if path.suffix == ".txt":
        return read_column(path)
    rows: dict[str, TruthRow] = {}
    records = _records(path)
    _, header = next(records, ("", []))
    roles = {name.strip().lower(): column for column, name in reversed(list(enumerate(header)))}
    task, label = (
        next((roles[alias] for alias in COLUMN_ALIASES[kind] if alias in roles), None)
        for kind in ("task", "label")
    )
    if task is None or label is None:
        raise LabelError(
            f"{path} line 1: a truth file needs the columns task and label. "
            f"Got {header}. Name them so in the first line."
        )
    for where, cells in records:
        if len(cells) > len(header):
            rule = f"there are more cells than the {len(header)} columns. Quote a comma in text"
        elif len(cells) <= max(task, label) or is_missing(cells[task]) or is_missing(cells[label]):
            rule = "a task and its label must both be there. Fill it in, or remove the line"
        elif cells[task] in rows:
            rule = f"task {cells[task]!r} is named a second time. Keep one of the two lines"
        else:
            rows[cells[task]] = TruthRow(where, cells[task], cells[label])
            continue
        raise LabelError(f"{where}: {rule}.")
    return list(rows.values())


def _records(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Split a small CSV file into records, each with its place; blank lines are none."""
    content = _content(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise LabelError(f"{path} line {line}: text must be UTF-8 ({error.reason}).") from error
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    while True:
        where = f"{path} line {reader.line_num + 1}"
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise LabelError(f"{where}: the row is not well-formed CSV ({error}).") from error
        if cells:
            yield where, cells


def _content(path: Path) -> bytes:
    """Read a file, unpacked."""
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise LabelError(
            f"{path}: cannot be read to its end ({error}). Check that it is whole."
        ) from error
