"""From the files a source offers to our two tables: pure functions, bytes in, rows out.

A converter takes the source's files in the order `datasets.toml` names them. What it makes is
held against the checksums there, so a source that has changed is noticed. Two rules hold for all:
of a worker's labels for one item the first counts, and truth is kept for items that have labels.

The paper's Age and Heart are not public. Their owners may have them as our own files, or as
matrices of numbers, as the paper's authors keep theirs: `labels.txt`, a row per item and a column
per worker, −1 or nan for no label, and `truth.txt`, a number per line. Items and workers are then
counted from 0. Labels of Age may be ages in years, or groups already, by number or by bounds.
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from math import floor, isfinite
from pathlib import Path
from typing import NamedTuple

from labelquorum.errors import LabelError
from labelquorum.ingest.labels import LabelTable

Row = tuple[str, ...]

LABEL_COLUMNS = "task", "worker", "label", "timestamp"
TRUTH_COLUMNS = "task", "label"

# How the paper may have cut its Adult data: these limits come nearest to its counts.
MOST_LABELS_AN_ITEM, FEWEST_LABELS_A_WORKER = 13, 47


class Tables(NamedTuple):
    """Labels (task, worker, label and perhaps timestamp) and truth (task, label)."""

    labels: list[Row]
    truth: list[Row]


Converter = Callable[[Sequence[bytes]], Tables]


def as_files(tables: Tables) -> dict[str, bytes]:
    """Write the tables that have rows as the files of a data set."""
    named = {
        "labels.csv": (LABEL_COLUMNS, tables.labels),
        "truth.csv": (TRUTH_COLUMNS, tables.truth),
    }
    files = {}
    for name, (header, rows) in named.items():
        if rows:
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows([header[: len(rows[0])], *rows])
            files[name] = text.getvalue().encode()
    return files


# ── one row per label, truth in a second file ────────────────────────────────────────────────


def text_pair(files: Sequence[bytes], columns: Sequence[int] = (0, 1, 2)) -> Tables:
    """Read two files of cells with blanks between: labels, and item and truth.

    Parameters
    ----------
    files
        The labels, the truth.
    columns
        Where item, worker and label stand.
    """
    labels, truth = ([tuple(line.split()) for line in _lines(file)] for file in files)
    return _tidy((_pick(row, columns) for row in labels), truth)


def csv_pair(files: Sequence[bytes], header: bool = True) -> Tables:
    """Read two CSV files: item, worker, label; and item, truth."""
    labels, truth = (_records(file)[header:] for file in files)
    return _tidy((_pick(row, (0, 1, 2)) for row in labels), (_pick(row, (0, 1)) for row in truth))


def adult_sites(files: Sequence[bytes], with_truth: bool = False) -> Tables:
    """Read lines worker, item, label and lines item, truth, with tabs between."""
    labels, truth = ([tuple(line.split("\t")) for line in _lines(file)] for file in files)
    known = {task for task, _ in truth}
    picked = (_pick(row, (1, 0, 2)) for row in labels)
    return _tidy((row for row in picked if not with_truth or row[0] in known), truth)


def adult_sites_reconstructed(files: Sequence[bytes]) -> Tables:
    """Leave out items with many labels, then workers with few, as the paper may have done."""
    labels, truth = adult_sites(files, with_truth=True)
    per_item = Counter(row[0] for row in labels)
    labels = [row for row in labels if per_item[row[0]] <= MOST_LABELS_AN_ITEM]
    per_worker = Counter(row[1] for row in labels)
    return _tidy((row for row in labels if per_worker[row[1]] >= FEWEST_LABELS_A_WORKER), truth)


# ── one row per label, truth beside it ───────────────────────────────────────────────────────


def named_columns(
    files: Sequence[bytes],
    names: Sequence[str],
    delimiter: str = ",",
    classify: Callable[[str], str] = str,
) -> Tables:
    """Read columns of a table with a header; rows without a label are left out.

    Parameters
    ----------
    files
        The table.
    names
        The columns of item, worker, label and truth.
    delimiter
        What stands between cells.
    classify
        Makes a class of what stands in the table.
    """
    rows = [row for row in _named(_records(files[0], delimiter), names) if all(row[:3])]
    labels = ((task, worker, classify(label)) for task, worker, label, _ in rows)
    return _tidy(labels, ((row[0], classify(row[3])) for row in rows if row[3]))


def crowd_toolkit(files: Sequence[bytes]) -> Tables:
    """Read rows worker, item, label, truth, without a header; a fifth cell is the time spent."""
    rows = [_pick(row, (1, 0, 2, 3)) for row in _records(files[0])]
    return _tidy((row[:3] for row in rows), ((row[0], row[3]) for row in rows if row[3]))


def crisis_judgements(files: Sequence[bytes]) -> Tables:
    """Read a CrowdFlower report: judgements that name one type of message, as they were made."""
    names = "_unit_id", "_worker_id", "type_of_message", "type_of_message_gold", "_created_at"
    labels, truth = [], []
    for task, worker, label, true, time in _named(_records(files[0]), names):
        made = datetime.strptime(time, "%m/%d/%Y %H:%M:%S")
        if label and "\n" not in label:  # else several types, a line each
            labels.append((task, worker, label, made.isoformat()))
        if true and "\n" not in true:
            truth.append((task, true))
    return _tidy(sorted(labels, key=lambda row: row[3]), truth)


# ── one row many labels ──────────────────────────────────────────────────────────────────────


def metaphor_assignments(files: Sequence[bytes]) -> Tables:
    """Read Mechanical Turk assignments, a row each, of the crowd and of an expert."""
    crowd, expert = (list(_assignments(file)) for file in files)
    labels = sorted(crowd, key=lambda row: row[3])
    return _tidy(labels, ((row[0], row[2]) for row in expert))


def _assignments(file: bytes) -> Iterator[Row]:
    """Give task, worker, rating and time of submission; the header is there more than once."""
    header: Row = ()
    for row in _records(file):
        if row[0] == "HITId":
            header = row
            continue
        cells = dict(zip(header, row, strict=False))
        moment, _zone, year = cells["AcceptTime"].rsplit(" ", 2)  # one zone throughout
        accepted = datetime.strptime(f"{moment} {year}", "%a %b %d %H:%M:%S %Y")
        submitted = accepted + timedelta(seconds=int(cells["WorkTimeInSeconds"]))
        for name, cell in cells.items():
            if "metaphorNovelty" in name and cell:
                task, rating = cell.rsplit(" ", 1)
                yield task, cells["WorkerId"], rating, submitted.isoformat()


def matrix_head(files: Sequence[bytes], rows: int) -> Tables:
    """Read the first rows of a matrix, an item a row, a worker a column, −1 for no label."""
    matrix, truth = files
    labels = (
        (str(item), str(worker), label)
        for item, line in zip(range(rows), _lines(matrix), strict=False)
        for worker, label in enumerate(map(_whole, line.split()))
        if label != "-1"
    )
    return _tidy(labels, truth_column([truth]).truth)


# ── truth only ───────────────────────────────────────────────────────────────────────────────


def truth_column(files: Sequence[bytes]) -> Tables:
    """Read a number a line, the class; items are counted from 0."""
    return Tables([], [(str(item), _whole(line)) for item, line in enumerate(_lines(files[0]))])


def one_hot_digits(files: Sequence[bytes]) -> Tables:
    """Read training and test rows whose last cell has a 1 at the place of the digit."""
    return Tables(
        [],
        [
            (f"{part}{number:05}", str(row[-1].index("1")))
            for part, file in zip(("tra", "tes"), files, strict=True)
            for number, row in enumerate(_records(file))
        ],
    )


_SNOW = partial(
    named_columns, names=("orig_id", "!amt_worker_ids", "response", "gold"), delimiter="\t"
)
_INTERVENTION = "paper ID", "intervention worker ID", "intervention Vote", "GOLD INTERVENTION"
_OLDER = "older adult paper ID", "older adult worker ID", "older adult vote", "GOLD OLD"
_TECH = "use of tech paper ID", "use of tech worker ID", "use of tech vote", "GOLD USE OF TECH"

CONVERTERS: dict[str, Converter] = {
    "adult_sites": adult_sites,
    "adult_sites_reconstructed": adult_sites_reconstructed,
    "adult_sites_with_truth": partial(adult_sites, with_truth=True),
    "crisis_judgements": crisis_judgements,
    "crowd_toolkit": crowd_toolkit,
    "csv_pair": csv_pair,
    "csv_pair_without_header": partial(csv_pair, header=False),
    # The bins of SemEval-2007 task 14.
    "emotion_scores": partial(_SNOW, classify=lambda score: str(int(float(score) >= 50))),
    "matrix_head64": partial(matrix_head, rows=64),
    "metaphor_assignments": metaphor_assignments,
    "one_hot_digits": one_hot_digits,
    "slr_intervention": partial(named_columns, names=_INTERVENTION),
    "slr_older": partial(named_columns, names=_OLDER),
    "slr_tech": partial(named_columns, names=_TECH),
    "standardized": _SNOW,
    "text_pair": text_pair,
    "text_pair_worker_first": partial(text_pair, columns=(1, 0, 2)),
    "truth_column": truth_column,
    "valence_scores": partial(
        _SNOW, classify=lambda score: str(1 + (float(score) >= 50) - (float(score) <= -50))
    ),
}
"""How a source's files become ours, by the name `datasets.toml` uses."""


def _tidy(labels: Iterable[Row], truth: Iterable[Row]) -> Tables:
    """Keep a worker's first label for an item, and the first truth of an item with labels."""
    firsts: dict[Row, Row] = {}
    for row in labels:
        firsts.setdefault(row[:2], row)
    labelled = {task for task, _ in firsts}
    truths: dict[str, str] = {}
    for task, true in truth:
        if task in labelled:
            truths.setdefault(task, true)
    return Tables(list(firsts.values()), list(truths.items()))


def _text(file: bytes) -> str:
    """Decode; a byte that is not UTF-8 may stand in a column we do not take."""
    return file.decode("utf-8-sig", "surrogateescape")


def _lines(file: bytes) -> list[str]:
    lines = (line.rstrip("\r") for line in _text(file).split("\n"))
    return [line for line in lines if line.strip()]


def _records(file: bytes, delimiter: str = ",") -> list[Row]:
    """Cut a table into cells; blank lines are none. Where tabs part them, quotes are text."""
    text = io.StringIO(_text(file), newline="")
    is_tab = delimiter == "\t"
    reader = csv.reader(
        text, delimiter=delimiter, quoting=csv.QUOTE_NONE if is_tab else csv.QUOTE_MINIMAL
    )
    return [tuple(row) for row in reader if row]


def _named(records: Sequence[Row], names: Sequence[str]) -> Iterator[Row]:
    """Give the columns of these names, row by row; the first record has the names."""
    columns = [records[0].index(name) for name in names]
    for row in records[1:]:
        yield _pick(row, columns)


def _pick(row: Sequence[str], columns: Iterable[int]) -> Row:
    return tuple(row[column] for column in columns)


def _whole(number: str) -> str:
    """Write 6.000e+00 as 6."""
    return str(int(float(number)))


# ── Age and Heart ────────────────────────────────────────────────────────────────────────


AGE_GROUPS = ("0-9", "10-19", "20-29", "30-39", "40-49", "50-59", "60-100")
"""The groups of the paper, bounds included; their names are the classes."""

OLDEST = 100
HOLES = ("-1", "nan")


class TruthRow(NamedTuple):
    """The truth of an item, and where it stands."""

    where: str
    item_id: str
    label: str


def age_group(age: float) -> str:
    """Name the group an age in years belongs to; who is 39.9 has not turned 40.

    Examples
    --------
    >>> [age_group(age) for age in (0, 9, 10, 59.9, 60, 100)]
    ['0-9', '0-9', '10-19', '50-59', '60-100', '60-100']
    """
    if not 0 <= age <= OLDEST:
        raise LabelError(f"an age must be a number from 0 to {OLDEST}. Got {age:g}.")
    return AGE_GROUPS[min(floor(age / 10), len(AGE_GROUPS) - 1)]


def in_age_groups(
    table: LabelTable, truth: Sequence[TruthRow]
) -> tuple[LabelTable, list[TruthRow]]:
    """Put the groups of the paper in the place of ages."""
    read = _age_reader(table.labels)
    labels = [_placed(read, table.where(row), label) for row, label in enumerate(table.labels)]
    read = _age_reader(row.label for row in truth)
    grouped = [row._replace(label=_placed(read, row.where, row.label)) for row in truth]
    return table._replace(labels=labels), grouped


def in_two_classes(
    table: LabelTable, truth: Sequence[TruthRow]
) -> tuple[LabelTable, list[TruthRow]]:
    """Refuse a third class."""
    classes: dict[object, None] = {}
    places = ((label, table.where(row)) for row, label in enumerate(table.labels))
    for label, where in (*places, *((row.label, row.where) for row in truth)):
        classes.setdefault(label)
        if len(classes) > 2:
            first, second, third = classes
            raise LabelError(
                f"{where}: there may be two classes, here {first!r} and {second!r}. Got {third!r}. "
                "Fix the file."
            )
    return table, list(truth)


Original = Callable[[LabelTable, Sequence[TruthRow]], tuple[LabelTable, list[TruthRow]]]

ORIGINALS: Mapping[str, Original] = {"age": in_age_groups, "heart": in_two_classes}
"""What becomes of the labels and the truth of these data sets once they are read."""


def read_matrix(path: Path) -> LabelTable:
    """Read a matrix of numbers with blanks between, an item a row and a worker a column."""
    items, workers, labels, lines = [], [], [], []
    width = 0
    for item, (line, cells) in enumerate(_rows(path)):
        width = width or len(cells)
        if len(cells) != width:
            raise LabelError(
                f"{path} line {line}: the first row has {width} numbers, and so must every row. "
                f"Got {len(cells)}. Write -1 where a worker gave no label."
            )
        for worker, label in enumerate(cells):
            if label not in HOLES:
                items.append(str(item))
                workers.append(str(worker))
                labels.append(label)
                lines.append(line)
    return LabelTable(items, workers, labels, source=str(path), lines=lines)


def read_column(path: Path) -> list[TruthRow]:
    """Read a number a line, the truth of an item."""
    rows = []
    for item, (line, cells) in enumerate(_rows(path)):
        if len(cells) != 1 or cells[0] in HOLES:
            raise LabelError(
                f"{path} line {line}: a line must hold one number, the truth of an item. "
                f"Got {' '.join(cells)!r}. Fix the line."
            )
        rows.append(TruthRow(f"{path} line {line}", str(item), cells[0]))
    return rows


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Give the lines that are not blank, each with its place; 6.000e+00 is written 6."""
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
        for line, text in enumerate(file, 1):
            cells = text.replace(",", " ").split()
            for place, cell in enumerate(cells):
                try:
                    cells[place] = f"{float(cell):.15g}"
                except ValueError:
                    raise LabelError(
                        f"{path} line {line}: every cell must be a number. Got {cell!r}. "
                        "Write -1 where there is no label."
                    ) from None
            if cells:
                yield line, cells


def _age_reader(cells: Iterable[object]) -> Callable[[object], str]:
    """Choose how the cells of a file become groups.

    If every number in it is 0 to 6, these are the numbers of groups: no crowd saw none but small
    children. Otherwise they are ages. Text such as [20,29] or 20-29 names a group in either case.
    """
    numbers = [number for number in map(_number, cells) if number is not None]
    are_groups = all(number in range(len(AGE_GROUPS)) for number in numbers)

    def read(cell: object) -> str:
        number = _number(cell)
        if number is not None:
            return AGE_GROUPS[int(number)] if are_groups else age_group(number)
        bounds = re.fullmatch(r"\s*\[?\s*(\d+)\s*[-–,]\s*(\d+)\s*\]?\s*", str(cell))
        if bounds is None or (group := f"{bounds[1]}-{bounds[2]}") not in AGE_GROUPS:
            raise LabelError(
                f"a label of age must be an age from 0 to {OLDEST}, or one of the groups "
                f"{', '.join(AGE_GROUPS)}. Got {cell!r}."
            )
        return group

    return read


def _placed(read: Callable[[object], str], where: str, cell: object) -> str:
    try:
        return read(cell)
    except LabelError as error:
        raise LabelError(f"{where}: {error} Fix the file.") from None


def _number(cell: object) -> float | None:
    try:
        number = float(str(cell))
    except ValueError:
        return None
    return number if isfinite(number) else None
