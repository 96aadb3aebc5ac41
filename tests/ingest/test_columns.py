"""Encoded columns: whatever is read through them is what the lists give, errors included."""

import contextlib
import io
import math

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from labelquorum.errors import LabelError
from labelquorum.ingest import columns, readers
from labelquorum.ingest.chunks import concatenate, cut_chunks, id_key, id_keys, id_order, sort_ids
from labelquorum.ingest.columns import DictionaryColumn, as_column, distinct, encode, join, mapped
from labelquorum.ingest.labels import LabelSpace, LabelTable
from labelquorum.ingest.readers import read_csv, read_labels, read_wide
from labelquorum.ingest.validate import check_names
from labelquorum.ingest.vocabulary import Roster
from labelquorum.ingest.writers import write_columns, write_rows
from labelquorum.learn.open_items import OpenItems

WORDS = ["a", "b", "1", "01", "1.0", "inf", "i", "nan", " ", "", "é", "\ud800", "a\0", "=x", "10"]
texts = st.sampled_from(WORDS)
numbers = st.sampled_from([0, 1, 2, -1, 10, 2**60, 2**60 + 1])
floats = st.sampled_from([0.0, 1.0, 1.5, math.nan, math.inf, 2.0**60])
mixed = st.one_of(texts, numbers, floats, st.booleans(), st.none())
spaces = st.builds(
    LabelSpace,
    classes=st.sampled_from([None, ("a", "b", "1", 1), (0, 1, 2)]),
    repeats=st.sampled_from(["last", "first", "majority", "all", "error"]),
    on_bad=st.sampled_from(["error", "skip", "skip"]),
    abstain=st.sampled_from([None, "b", 1, ""]),
)


@contextlib.contextmanager
def encoded(min_rows=0):
    """Encode columns of as many rows."""
    before = columns.MIN_ENCODED_ROWS, readers.MIN_PLAIN_BYTES
    columns.MIN_ENCODED_ROWS, readers.MIN_PLAIN_BYTES = min_rows, min_rows
    try:
        yield
    finally:
        columns.MIN_ENCODED_ROWS, readers.MIN_PLAIN_BYTES = before


def outcome(act):
    """What an act gives, or the error it ends with."""
    try:
        return act()
    except LabelError as error:
        return str(error)


def typed(column):
    return None if column is None else [(type(cell), cell) for cell in column]


def plain(table):
    """A table as lists of cells with their types, so that 1 and True differ."""
    if isinstance(table, str):
        return table
    lines = range(len(table.labels)) if table.lines is None else table.lines
    return (*map(typed, table[:6]), table.source, list(lines), dict(table.skipped), table.unit)


def same_intake(one, other):
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    for a, b in zip(one.chunk, other.chunk, strict=True):
        if not np.array_equal(a, b) or getattr(a, "dtype", None) != getattr(b, "dtype", None):
            return False
    return (
        typed(one.item_ids) == typed(other.item_ids)
        and one.order.tolist() == other.order.tolist()
        and typed(one.new_workers) == typed(other.new_workers)
        and typed(one.new_classes) == typed(other.new_classes)
        and one.notes == other.notes
        and one.tally == other.tally
        and one.returned.tolist() == other.returned.tolist()
    )


@st.composite
def tables(draw, cells=mixed):
    """Columns of one length by name; some of them optional."""
    n_rows = draw(st.integers(1, 12))

    def column(of):
        return draw(st.lists(of, min_size=n_rows, max_size=n_rows))

    named = {name: column(cells) for name in ("task", "worker", "label")}
    for name, of in (
        ("weight", st.sampled_from([0.0, 0.5, 1.0, 2.0])),
        ("group", st.one_of(st.none(), cells)),
        ("timestamp", st.sampled_from([1.0, 2.0, 3.0])),
    ):
        if draw(st.booleans()):
            named[name] = column(of)
    return named


def read_twice(source, space, read=read_labels):
    """The table as lists and as encoded columns."""
    lists = outcome(lambda: read(source, space))
    with encoded():
        codes = outcome(lambda: read(source, space))
        if not isinstance(codes, str):
            codes = codes._replace(
                **{  # what cannot be encoded by type is, by value
                    name: encode(getattr(codes, name))
                    for name in ("item_ids", "worker_ids", "labels")
                    if not {bool, int, float} & set(map(type, getattr(codes, name)))
                }
            )
    return lists, codes


def check(source, space):
    lists, codes = read_twice(source, space)
    assert plain(lists) == plain(codes)
    if not isinstance(lists, str):
        rosters = Roster(space), Roster(space)
        intakes = [
            outcome(lambda r=roster, t=table: r.read(t, OpenItems()))
            for roster, table in zip(rosters, (lists, codes), strict=True)
        ]
        assert same_intake(*intakes)


# ── tables ───────────────────────────────────────────────────────────────────────────────


@given(tables(), spaces)
@example({"task": [1, True, 1.0], "worker": ["1", 1, True], "label": ["a", "b", "a"]}, LabelSpace())
def test_objects_of_any_type_are_read_alike(named, space):
    check(
        pd.DataFrame({name: pd.Series(cells, dtype=object) for name, cells in named.items()}), space
    )
    check(named, space)


@given(tables(st.one_of(texts, st.none())), spaces, st.sampled_from(["str", "string", "category"]))
def test_text_of_any_dtype_is_read_alike(named, space, dtype):
    words = {"\ud800": "c"}  # Arrow holds no half characters
    frame = pd.DataFrame(
        {
            name: cells
            if name in ("weight", "timestamp")
            else pd.Series([words.get(cell, cell) for cell in cells]).astype(dtype)
            for name, cells in named.items()
        }
    )
    check(frame, space)
    arrow = pa.Table.from_pandas(frame)
    check(arrow, space)
    check(pa.concat_tables([arrow, arrow.slice(1)]), space)
    check(pl.from_arrow(arrow), space)


@given(
    tables(st.sampled_from([-1, 0, 1, 2, 100])),
    spaces,
    st.sampled_from(["int8", "int64", "float32", "float64", "Int64", "int64[pyarrow]"]),
)
def test_numbers_of_any_dtype_are_read_alike(named, space, dtype):
    frame = pd.DataFrame(
        {
            name: cells
            if name in ("weight", "timestamp")
            else pd.Series([0 if cell is None else cell for cell in cells]).astype(dtype)
            for name, cells in named.items()
        }
    )
    check(frame, space)
    check(pl.from_pandas(frame), space)
    check({name: frame[name].to_numpy() for name in frame}, space)


@given(tables(floats), spaces)
def test_floats_with_holes_are_read_alike(named, space):
    check(pd.DataFrame(named), space)


@given(st.lists(st.lists(st.sampled_from([-1, 0, 1, 2]), min_size=4, max_size=4), min_size=1))
def test_matrices_are_read_alike(rows):
    lists, codes = read_twice(np.array(rows), LabelSpace(), read_wide)
    assert plain(lists) == plain(codes)
    frame = pd.DataFrame(rows, index=[1, True, "1", "x"][: len(rows)] if len(rows) < 5 else None)
    lists, codes = read_twice(frame, LabelSpace(), read_wide)
    assert plain(lists) == plain(codes)


@given(tables(texts), tables(mixed), st.integers(1, 3))
def test_tables_are_joined_and_cut_alike(one, two, chunk_items):
    def parts():
        space = LabelSpace(on_bad="skip")
        read = [read_labels(part, space) for part in (one, two)]
        return [concatenate(read), *cut_chunks(read, chunk_items)]

    lists = parts()
    with encoded():
        codes = parts()
    assert list(map(plain, lists)) == list(map(plain, codes))


@given(tables(texts))
def test_names_are_refused_alike(named):
    for on_bad in ("error", "skip"):
        space = LabelSpace(on_bad=on_bad)

        def read(space=space):
            return check_names(read_labels(named, LabelSpace(on_bad="skip")), space)

        lists = outcome(read)
        with encoded():
            assert plain(outcome(read)) == plain(lists)


@given(tables(texts), tables(texts), spaces)
def test_late_labels_find_open_items_alike(one, two, space):
    def stream():
        roster, ledger, intakes = Roster(space), OpenItems(100), []
        for part in (one, two, one):
            intake = roster.read(read_labels(part, space), ledger)
            roster.admit(intake)
            chunk = intake.chunk
            ledger.record(
                intake.item_ids,
                intake.order,
                chunk,
                np.zeros((chunk.n_labels, chunk.n_classes), np.float32),
                np.zeros((chunk.n_items, chunk.n_classes), np.float32),
                np.zeros(chunk.n_items, np.int32),
                intake.notes,
            )
            intakes.append(intake)
        return intakes

    lists = outcome(stream)
    with encoded():
        codes = outcome(stream)
    if isinstance(lists, str):
        assert lists == codes
    else:
        assert all(map(same_intake, lists, codes))


# ── CSV ──────────────────────────────────────────────────────────────────────────────────

cells = st.sampled_from(
    [
        "a",
        "b",
        "007",
        "7",
        "NA",
        "",
        " ",
        "é",
        "a b",
        '"q"',
        '""',
        '"',
        'x"',
        "long" * 20,
        "12345678",
    ]
)
lines = st.lists(st.lists(cells, min_size=3, max_size=3).map(",".join), min_size=1, max_size=12)


@given(
    lines,
    spaces,
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["", "\n", "\n\n", "a,b\n", "a,b,c,d", "a\0,b,c", "a,\r,b", "\r\n"]),
    st.sampled_from([b"", b"\xef\xbb\xbf", b"\n"]),
    st.sampled_from([b"", b"x,\xc3,a\n", b"x,w,\xe2\x82\n"]),
    st.sampled_from([7, 40, 1 << 24]),
)
def test_plain_csv_is_read_as_row_by_row(
    tmp_path_factory, rows, space, newline, end, mark, odd, block
):
    path = tmp_path_factory.mktemp("csv") / "labels.csv"
    body = newline.join(["task,worker,label", *rows]).encode() + newline.encode()
    path.write_bytes(mark + body + odd + end.encode())
    lists = outcome(lambda: read_csv(path, space))
    with encoded(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("labelquorum.ingest.plain_csv.BLOCK_BYTES", block)
        assert plain(outcome(lambda: read_csv(path, space))) == plain(lists)


@pytest.mark.parametrize("suffix", ["csv", "tsv", "csv.gz", "csv.zip"])
def test_plain_csv_is_read_by_column_whatever_packs_it(tmp_path, suffix, monkeypatch):
    sep = "\t" if suffix == "tsv" else ","
    frame = pd.DataFrame(
        {
            "extra": range(9),
            "label": ["cat", "dog", "NA"] * 3,
            "task": [f"0{n // 3}" for n in range(9)],
            "worker": [f"a worker with a name of more than forty bytes {n % 3}" for n in range(9)],
            "weight": [0.5, 1, 2] * 3,
        }
    )
    path = tmp_path / f"labels.{suffix}"
    frame.to_csv(path, index=False, sep=sep, quoting=2)
    lists = read_labels(path)
    with encoded():
        codes = read_labels(path)
    assert isinstance(codes.item_ids, DictionaryColumn)
    assert plain(codes) == plain(lists)


def test_two_cells_of_one_hash_stay_two(tmp_path, monkeypatch):
    path = tmp_path / "labels.csv"
    rows = [f"a task of some length {n},w,a" for n in range(5)]
    path.write_text("\n".join(["task,worker,label", *rows]) + "\n")
    monkeypatch.setattr("labelquorum.ingest.plain_csv._MIX", np.uint64(0))
    with encoded():
        assert len(distinct(read_csv(path).item_ids)) == 5


# ── columns ──────────────────────────────────────────────────────────────────────────────


@given(st.lists(mixed), st.lists(mixed))
def test_a_column_is_the_sequence_of_its_cells(one, two):
    column = encode(one)
    assert column == one
    assert distinct(column) == list(dict.fromkeys(one))
    assert distinct(column[1:]) == list(dict.fromkeys(column[1:]))
    with encoded():
        joined = join([as_column(one), as_column(two)])
    assert typed(joined) == typed([*one, *two])


def test_values_that_become_equal_become_one():
    column = mapped(DictionaryColumn(np.array([0, 1, 2]), ["a", "A", "b"]), str.lower)
    assert isinstance(column, DictionaryColumn)
    assert (list(column), column.values) == (["a", "a", "b"], ["a", "b"])
    assert type(mapped(column, {"a": 1, "b": True}.__getitem__)) is list  # which spell two ids


def test_a_column_is_an_array_of_its_types():
    column = DictionaryColumn(np.array([0, 1, 0]), ["a", 1])
    assert np.asarray(column).tolist() == ["a", 1, "a"]
    assert np.asarray(DictionaryColumn(np.array([1, 0]), [0.5, 2.0])).dtype == np.float64


identities = st.one_of(
    st.text(st.sampled_from("iInNfFtTyYaA01.eE_ +-\u2003\u0661\ud800"), max_size=9),
    st.sampled_from(["inf", "INF", "Infinity ", "infinity", "nan", "7", "07", "9" * 30, ""]),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
)


@given(
    st.one_of(
        st.lists(identities, unique=True),
        st.lists(st.integers(), unique=True),
        st.lists(st.text(st.sampled_from("0123456789"), min_size=1), unique=True),
        st.lists(st.sampled_from(["item", "I", "inf", "a", "Inf"]), unique=True),
    )
)
def test_ids_are_sorted_and_hashed_as_one_by_one(ids):
    assert [ids[n] for n in sort_ids(ids)] == sorted(ids, key=id_order)
    assert id_keys(ids).tolist() == list(map(id_key, ids))
    for identity in ids:
        if isinstance(identity, str):  # a number is what Python takes for one
            try:
                is_number = float(identity) == float(identity)
            except ValueError:
                is_number = False
            assert (id_order(identity)[0] == 0) == is_number


# ── writing ──────────────────────────────────────────────────────────────────────────────


@given(
    st.lists(
        st.tuples(
            st.one_of(
                st.sampled_from(["a", "=x", "-1", "a,b", 'q"', "\n", "\r", "é", "%s", ""]), numbers
            ),
            st.sampled_from(["cat", 1, True, None]),
            st.sampled_from([0.0, -0.0, 0.1, 1e-6, 1.0, 123456.7]),
            st.sampled_from([0.5, math.nan, math.inf]),
        ),
        max_size=8,
    ),
    st.sampled_from(["csv", "jsonl", "parquet"]),
    st.booleans(),
    st.integers(1, 3),
)
def test_columns_are_written_as_their_rows(rows, encoding, raw, piece):
    names = ["task", "label %", "confidence", "prob_é"]
    by_row, by_column = io.BytesIO(), io.BytesIO()
    kinds = {name: {type(row[at]) for row in rows} or {float} for at, name in enumerate(names)}
    lists = [list(column) for column in zip(*rows, strict=True)] or [[], [], [], []]
    arrays = [*lists[:2], *(np.array(column, float) for column in lists[2:])]
    if encoding == "parquet" and not rows:
        return  # whose columns have no types
    with encoded(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("labelquorum.ingest.writers._ROWS_PER_WRITE", piece)
        dicts = [dict(zip(names, row, strict=True)) for row in rows]
        write_rows(dicts, kinds, by_row, encoding, raw)
        assert write_columns(
            dict(zip(names, arrays, strict=True)), by_column, encoding, raw
        ) == len(rows)
    assert by_column.getvalue() == by_row.getvalue()


def test_a_table_may_hold_both_kinds_of_columns():
    column = encode(["q1", "q2", "q1"])
    table = LabelTable(column, ["ann", "bob", "bob"], column)
    intake = Roster().read(table)
    assert intake.item_ids == ["q1", "q2"]
    assert intake.chunk.worker.tolist() == [0, 1, 1]


def test_digits_that_are_no_decimals_are_text_to_the_order_of_ids():
    table = LabelTable(["a", "b", "c"], ["1²", "2", "①"], ["x", "y", "x"])
    assert sorted(Roster().read(table).new_workers) == ["1²", "2", "①"]


@pytest.mark.parametrize("n_rows", [50, 5000])
def test_masked_cells_are_missing_however_long_the_column_is(n_rows):
    labels = np.ma.masked_array(np.zeros(n_rows, int), mask=np.arange(n_rows) == 7)
    columns = {"task": np.arange(n_rows), "worker": np.arange(n_rows), "label": labels}
    with pytest.raises(LabelError, match="the label is missing"):
        read_labels(columns)


@pytest.mark.parametrize("n_rows", [50, 5000])
@pytest.mark.parametrize("kind", [">i4", "category", "string"])
def test_columns_of_any_storage_are_read_however_long_they_are(n_rows, kind):
    numbers = np.arange(n_rows) % 3
    column = numbers.astype(">i4") if kind == ">i4" else pd.array(numbers.astype(str), dtype=kind)
    table = read_labels({"task": np.arange(n_rows), "worker": column, "label": numbers})
    expected = numbers.tolist() if kind == ">i4" else list(map(str, numbers))
    assert table.worker_ids == expected
