"""Columns: values with repeats, as codes into their distinct values.

A column of ten million labels has a few distinct values. Rules are tested on those, ids are looked
up once each, and rows are only ever integers. Arrow calls such a column dictionary-encoded, pandas
categorical. A short column stays a list: encoding it would cost more than it saves.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import chain
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from labelquorum.ingest.rows import encode_list

MIN_ENCODED_ROWS = 4096
"""Shorter columns are lists: below it, pandas' 20 to 100 µs per call cost more than they save."""

_PLAIN = {str, type(None)}
_NUMBERS = {bool, int, float}  # equal across these types, and not written alike: 1, 1.0, True


class DictionaryColumn(Sequence[Any]):
    """A column as codes (B,) into its distinct values.

    Parameters
    ----------
    codes
        Which value each row has, from 0.
    values
        Different from one another.
    in_order
        Whether they are known to be in order of first appearance, each of them present.

    Examples
    --------
    >>> column = DictionaryColumn(np.array([0, 1, 0]), ["cat", "dog"])
    >>> list(column), column[1], column == ["cat", "dog", "cat"]
    (['cat', 'dog', 'cat'], 'dog', True)
    """

    __slots__ = ("codes", "in_order", "values")

    def __init__(
        self, codes: NDArray[np.integer[Any]], values: Sequence[Any], in_order: bool = False
    ) -> None:
        self.codes = codes
        self.values = values
        self.in_order = in_order

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, row: int) -> Any: ...
    @overload
    def __getitem__(self, row: slice) -> "DictionaryColumn": ...
    def __getitem__(self, row: int | slice) -> Any:
        if isinstance(row, slice):
            return DictionaryColumn(self.codes[row], self.values)
        return self.values[self.codes[row]]

    def __iter__(self) -> Iterator[Any]:
        return map(self.values.__getitem__, self.codes.tolist())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """The rows as an array: of floats where all are, else of objects, so that types stay."""
        if dtype is None:
            dtype = np.float64 if set(map(type, self.values)) == {float} else object
        values = np.empty(len(self.values), dtype)
        values[:] = self.values
        return np.asarray(values[self.codes])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(map(_same, self, other))

    __hash__ = None  # type: ignore[assignment]  # as of a list

    def __repr__(self) -> str:
        return repr(list(self))


def as_column(column: Any) -> Sequence[Any]:
    """A column of any library as a list of Python values; a long one encoded, where that is exact.

    Examples
    --------
    >>> as_column(np.array([7, 8, 7]))
    [7, 8, 7]
    """
    if len(column) < MIN_ENCODED_ROWS:
        return _cells(column)
    read = _LIBRARIES.get(type(column).__module__.partition(".")[0])
    found = None if read is None else read(column)
    return _from_objects(_cells(column)) if found is None else found


def encode(column: Iterable[Hashable]) -> DictionaryColumn:
    """Encode a column; its values in order of first appearance, each of them present."""
    if isinstance(column, DictionaryColumn):
        return _compact(column)
    cells = column if isinstance(column, list) else list(column)
    codes, values = encode_list(cells)
    return DictionaryColumn(codes, values, in_order=True)


def distinct(column: Iterable[Hashable]) -> list[Hashable]:
    """The distinct values of a column, in order of first appearance."""
    if isinstance(column, DictionaryColumn):
        return list(_compact(column).values)
    return list(dict.fromkeys(column))


def mapped(column: Sequence[Any], function: Callable[[Any], Any]) -> Sequence[Any]:
    """The column with a function of one cell applied; values that become equal are one."""
    if not isinstance(column, DictionaryColumn):
        return list(map(function, column))
    return _unified(column.codes, list(map(function, column.values)), column.in_order)


def kinds_of(column: Sequence[Any]) -> set[type]:
    """The types that occur in a column."""
    return set(map(type, column.values if isinstance(column, DictionaryColumn) else column))


def rows_with(
    column: Sequence[Any], wanted: Collection[Hashable]
) -> Iterator[tuple[int, Hashable]]:
    """The rows that hold one of these values, each with the value."""
    if not isinstance(column, DictionaryColumn):
        return ((row, value) for row, value in enumerate(column) if value in wanted)
    is_wanted = np.array([value in wanted for value in column.values], bool)
    rows = np.flatnonzero(is_wanted[column.codes])
    return zip(rows.tolist(), some_rows(column, rows), strict=True)


def some_rows(column: Sequence[Any], rows: NDArray[Any]) -> Sequence[Any]:
    """The rows of a column at these positions."""
    if isinstance(column, DictionaryColumn):
        return DictionaryColumn(column.codes[rows], column.values)
    return list(map(column.__getitem__, rows.tolist()))


def join(columns: Sequence[Sequence[Any]]) -> Sequence[Any]:
    """Lay columns end to end; encoded if one of them is."""
    if len(columns) == 1:
        return columns[0]
    if not any(isinstance(column, DictionaryColumn) for column in columns):
        return list(chain.from_iterable(columns))
    codes: list[NDArray[Any]] = []
    values: list[Any] = []
    in_order = True
    for column in columns:
        encoded = column if isinstance(column, DictionaryColumn) else None
        codes.append((np.arange(len(column)) if encoded is None else encoded.codes) + len(values))
        values.extend(column if encoded is None else encoded.values)
        in_order = in_order and (encoded is None or encoded.in_order)
    return _unified(np.concatenate(codes), values, in_order)


def first_rows(codes: NDArray[np.integer[Any]], n_values: int) -> NDArray[np.int64]:
    """The first row of each code, (n_values,); the number of rows for a code without one."""
    first = np.full(n_values, len(codes))
    # Of several rows that are assigned to one place, the last stays.
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return first


def _compact(column: DictionaryColumn) -> DictionaryColumn:
    """The same column, its values in order of first appearance and no other values."""
    if column.in_order:
        return column
    n_values = len(column.values)
    first = first_rows(column.codes, n_values)
    order = np.argsort(first, kind="stable")[: np.count_nonzero(first < len(column.codes))]
    place = np.empty(n_values, np.int32)
    place[order] = np.arange(len(order))
    values = [column.values[n] for n in order.tolist()]
    return DictionaryColumn(place[column.codes], values, in_order=True)


def _unified(codes: NDArray[Any], values: list[Any], in_order: bool = False) -> Sequence[Any]:
    """A column whose values may be equal; a list where those are not written alike, as 1 and True.

    A list too where a value cannot be hashed.
    """
    with suppress(TypeError):
        if len(set(values)) == len(values):
            return DictionaryColumn(codes, values, in_order)
        one = encode(values)
        kinds = set(map(type, values))
        if len(kinds & _NUMBERS) <= 1 or list(map(type, one)) == list(map(type, values)):
            return DictionaryColumn(one.codes[codes], one.values, in_order)
    return list(map(values.__getitem__, codes.tolist()))


def _same(one: object, other: object) -> bool:
    return one is other or one == other


# ── columns of other libraries ───────────────────────────────────────────────────────────


def _cells(column: Any) -> list[Any]:
    for name in ("to_pylist", "to_list", "tolist"):
        if hasattr(column, name):
            cells: list[Any] = getattr(column, name)()
            return cells
    return list(column)


def cells_of_pandas(array: Any) -> list[Any] | None:
    """The values that `tolist` of a Series gives of this array; None where that has to be asked."""
    if isinstance(array, np.ndarray):
        plain: list[Any] = array.tolist()
        return plain if array.dtype.kind in "biufO" else None
    if getattr(array.dtype, "storage", "") != "pyarrow":
        return None
    text = array.__arrow_array__()
    return None if text.null_count else list(text.to_pylist())


def _from_objects(cells: Sequence[Any]) -> Sequence[Any]:
    """Encode Python's own values, unless some are equal that are not written alike."""
    kinds = set(map(type, cells))
    if kinds <= _PLAIN | _NUMBERS and len(kinds & _NUMBERS) <= 1:
        return encode(cells)
    return cells


def _from_numpy(array: NDArray[Any]) -> DictionaryColumn | None:
    if isinstance(array, np.ma.MaskedArray):
        return None
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    kind = array.dtype.kind
    if array.ndim != 1 or kind not in "biuf" or array.dtype.itemsize > 8:
        return None
    if kind == "f":  # by their bits, so that −0.0 stays and NaN is a value
        array = array.astype(np.float64).view(np.int64)
    codes, values = import_module("pandas").factorize(
        array.view(np.uint8) if kind == "b" else array
    )
    plain = values.view({"f": np.float64, "b": np.bool_}.get(kind, values.dtype))
    return DictionaryColumn(codes.astype(np.int32), plain.tolist(), in_order=True)


def _from_pandas(series: Any) -> Sequence[Any] | None:
    dtype = series.dtype
    if isinstance(dtype, np.dtype):
        return _from_numpy(series.to_numpy())
    if hasattr(series, "cat"):
        codes, values = series.cat.codes.to_numpy(), _cells(series.cat.categories)
        return _with_missing(codes, codes < 0, values, float("nan"))
    array = getattr(series, "array", series)  # a Series has one, an extension array is one
    if hasattr(array, "__arrow_array__") and "pyarrow" in (
        getattr(dtype, "storage", ""),  # of text
        type(getattr(dtype, "pyarrow_dtype", None)).__module__.partition(".")[0],
    ):
        return _from_arrow(array.__arrow_array__(), dtype.na_value)
    return None


def _from_polars(series: Any) -> Sequence[Any] | None:
    if series.dtype.is_numeric() and not series.null_count():
        return _from_numpy(series.to_numpy())
    with suppress(ImportError):  # pyarrow is an extra
        return _from_arrow(series.to_arrow())
    return None


def _from_arrow(column: Any, missing: Any = None) -> Sequence[Any] | None:
    types = import_module("pyarrow").types
    if types.is_primitive(column.type) and not column.null_count:
        return _from_numpy(column.to_numpy(zero_copy_only=False))
    is_encoded = types.is_dictionary(column.type)
    kind = column.type.value_type if is_encoded else column.type
    if not (types.is_string(kind) or types.is_large_string(kind)):
        return None
    column = column if is_encoded else column.dictionary_encode()
    if hasattr(column, "chunks"):
        column = column.unify_dictionaries().combine_chunks()
    is_missing = column.indices.is_null().to_numpy(zero_copy_only=False)
    codes = column.indices.fill_null(0).to_numpy()
    return _with_missing(codes, is_missing, column.dictionary.to_pylist(), missing)


def _with_missing(
    codes: NDArray[Any], is_missing: NDArray[np.bool_], values: list[Any], missing: Any
) -> Sequence[Any]:
    """A column of codes and values, and of rows that hold neither."""
    codes = codes.astype(np.int32)
    if is_missing.any():
        codes[is_missing] = len(values)
        values = [*values, missing]
    return _unified(codes, values)


_LIBRARIES: dict[str, Callable[[Any], Sequence[Any] | None]] = {
    "numpy": _from_numpy,
    "pandas": _from_pandas,
    "polars": _from_polars,
    "pyarrow": _from_arrow,
}
