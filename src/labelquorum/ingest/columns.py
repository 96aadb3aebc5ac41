"""Columns: values with repeats, as codes into their distinct values.

A column of ten million labels has a few distinct values. Rules are tested on those, ids are looked
up once each, and rows are only ever integers. Arrow calls such a column dictionary-encoded, pandas
categorical. A short column stays a list: encoding it would cost more than it saves.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

__all__ = ["DictionaryColumn", "distinct", "encode"]


class DictionaryColumn(Sequence[Hashable]):
    """A column as codes (B,) into its distinct values.

    Examples
    --------
    >>> column = DictionaryColumn(np.array([0, 1, 0]), ["cat", "dog"])
    >>> list(column), column[1], column == ["cat", "dog", "cat"]
    (['cat', 'dog', 'cat'], 'dog', True)
    """

    __slots__ = ("codes", "values")

    def __init__(self, codes: NDArray[np.integer[Any]], values: Sequence[Hashable]) -> None:
        self.codes = codes
        self.values = values

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, row: int) -> Hashable: ...
    @overload
    def __getitem__(self, row: slice) -> "DictionaryColumn": ...
    def __getitem__(self, row: int | slice) -> Any:
        if isinstance(row, slice):
            return DictionaryColumn(self.codes[row], self.values)
        return self.values[self.codes[row]]

    def __iter__(self) -> Iterator[Hashable]:
        return map(self.values.__getitem__, self.codes.tolist())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(map(_same, self, other))

    __hash__ = None  # type: ignore[assignment]  # as of a list

    def __repr__(self) -> str:
        return repr(list(self))

    def take(self, rows: NDArray[Any]) -> "DictionaryColumn":
        """The rows of a mask or of positions."""
        return DictionaryColumn(self.codes[rows], self.values)


def encode(column: Iterable[Hashable]) -> DictionaryColumn:
    """Encode a column; its values in order of first appearance, each of them present."""
    if isinstance(column, DictionaryColumn):
        return _compact(column)
    cells = column if isinstance(column, Sequence) else list(column)
    places: dict[Hashable, int] = {value: place for place, value in enumerate(dict.fromkeys(cells))}
    codes = np.fromiter(map(places.__getitem__, cells), np.int64, len(cells))
    return DictionaryColumn(codes, list(places))


def distinct(column: Iterable[Hashable]) -> list[Hashable]:
    """The distinct values of a column, in order of first appearance."""
    if isinstance(column, DictionaryColumn):
        return list(_compact(column).values)
    return list(dict.fromkeys(column))


def _compact(column: DictionaryColumn) -> DictionaryColumn:
    """The same column, its values in order of first appearance and no other values."""
    n_values = len(column.values)
    first = np.full(n_values, len(column.codes), np.int64)
    np.minimum.at(first, column.codes, np.arange(len(column.codes)))
    order = np.argsort(first, kind="stable")[: int((first < len(column.codes)).sum())]
    if len(order) == n_values and (order == np.arange(n_values)).all():
        return column
    place = np.empty(n_values, np.int64)
    place[order] = np.arange(len(order))
    return DictionaryColumn(place[column.codes], [column.values[n] for n in order.tolist()])


def _same(one: object, other: object) -> bool:
    return one is other or one == other
