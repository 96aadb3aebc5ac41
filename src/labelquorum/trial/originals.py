"""The paper's Age and Heart, as their owners may have them: neither is to be had in public.

Besides our own files, these two may be matrices of numbers, as the paper's authors keep theirs:
`labels.txt`, a row an item and a column a worker, −1 or nan for no label, and `truth.txt`, a number
a line. Items and workers are then counted from 0. Labels of Age may be ages in years, or groups
already, by number or by bounds.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import floor, isfinite
from pathlib import Path
from typing import NamedTuple

from labelquorum.errors import LabelError
from labelquorum.ingest.events import LabelTable

__all__ = [
    "AGE_GROUPS",
    "ORIGINALS",
    "TruthRow",
    "age_group",
    "in_age_groups",
    "in_two_classes",
    "read_column",
    "read_matrix",
]

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
