"""Every format goes through the same round trip and the same bad rows."""

import csv
import gzip
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelquorum.errors import LabelError, StateError
from labelquorum.ingest.labels import LabelSpace, LabelTable
from labelquorum.ingest.readers import (
    FORMATS,
    iter_csv,
    iter_jsonl,
    iter_labels,
    iter_parquet,
    iter_wide,
    read_csv,
    read_dict,
    read_jsonl,
    read_labels,
    read_parquet,
    read_table,
    read_wide,
)

FIXTURES = Path(__file__).parent / "fixtures"
SKIP = LabelSpace(on_bad="skip")
GOOD = [("q1", "ann", "cat"), ("q2", "bob", "dog"), ("q3", "ann", "dog"), ("q4", "eve", "cat")]
NAMES = ("task", "worker", "label", "weight", "group", "timestamp")
steady = settings(derandomize=True, deadline=None, max_examples=60)

Row = tuple[Any, ...]


# One way of writing labels per format; each returns what its reader is given.


def write_csv(rows: list[Row], folder: Path) -> Path:
    path = folder / "labels.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([NAMES[: len(rows[0])], *rows])
    return path


def write_gz(rows: list[Row], folder: Path) -> Path:
    path = folder / "labels.csv.gz"
    path.write_bytes(gzip.compress(write_csv(rows, folder).read_bytes()))
    return path


def write_jsonl(rows: list[Row], folder: Path) -> Path:
    path = folder / "labels.jsonl"
    lines = [json.dumps(dict(zip(NAMES, row, strict=False)), ensure_ascii=False) for row in rows]
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path


def columns_of(rows: list[Row]) -> dict[str, list[Any]]:
    return dict(zip(NAMES, map(list, zip(*rows, strict=True)), strict=False))


def write_parquet(rows: list[Row], folder: Path) -> Path:
    path = folder / "labels.parquet"
    pq.write_table(pa.table(columns_of(rows)), path)
    return path


def write_wide(rows: list[Row], folder: Path) -> Path:
    tasks, workers = (list(dict.fromkeys(row[at] for row in rows)) for at in (0, 1))
    said = {row[:2]: row[2] for row in rows}
    path = folder / "labels.wide.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["task", *workers])
        writer.writerows([t, *(said.get((t, w), "") for w in workers)] for t in tasks)
    return path


def make_dict(rows: list[Row], _: Path) -> dict[Any, dict[Any, Any]]:
    answers: dict[Any, dict[Any, Any]] = {}
    for task, worker, label in rows:
        answers.setdefault(task, {})[worker] = label
    return answers


class Form(NamedTuple):
    """How one format is written and read, and how it counts its rows."""

    name: str
    write: Callable[[list[Row], Path], Any]
    read: Callable[..., LabelTable]
    iterate: Callable[..., Iterator[LabelTable]] = iter_labels
    place: str = "line"
    first: int = 0
    typed: bool = True  # integers come back as integers
    is_matrix: bool = False  # a cell is a label: none may be missing, none has a weight
    is_file: bool = True


FORMS = [
    Form("csv", write_csv, read_csv, iter_csv, first=2, typed=False),
    Form("csv.gz", write_gz, read_csv, iter_csv, first=2, typed=False),
    Form("jsonl", write_jsonl, read_jsonl, iter_jsonl, first=1),
    Form("parquet", write_parquet, read_parquet, iter_parquet, "row"),
    Form("wide", write_wide, read_wide, iter_wide, first=2, typed=False, is_matrix=True),
    Form("dict", make_dict, read_dict, place="row", is_matrix=True, is_file=False),
    Form(
        "pandas", lambda rows, _: pd.DataFrame(columns_of(rows)), read_table,
        place="row", is_file=False,
    ),
    Form(
        "pandas objects", lambda rows, _: pd.DataFrame(columns_of(rows), dtype=object), read_table,
        place="row", is_file=False,
    ),
    Form(
        "polars", lambda rows, _: pl.DataFrame(columns_of(rows)), read_table,
        place="row", is_file=False,
    ),
    Form(
        "arrow", lambda rows, _: pa.table(columns_of(rows)), read_table,
        place="row", is_file=False,
    ),
]  # fmt: skip
every_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
every_long_form = pytest.mark.parametrize(
    "form", [form for form in FORMS if not form.is_matrix], ids=lambda form: form.name
)
every_file = pytest.mark.parametrize(
    "form", [form for form in FORMS if form.is_file], ids=lambda form: form.name
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("formats")


def rows_of(*tables: LabelTable) -> list[Row]:
    return [row for t in tables for row in zip(t.item_ids, t.worker_ids, t.labels, strict=True)]


def types_of(rows: list[Row]) -> list[list[type]]:
    return [[type(cell) for cell in row] for row in rows]


# What every format must do.

# Text a person may use as an id: anything but half characters, with something to be seen.
text_ids = st.text(
    st.one_of(st.sampled_from("a0,;'\"\n\r\t é漢🐈"), st.characters(exclude_categories=["Cs"])),
    min_size=1,
    max_size=8,
).filter(str.strip)
whole_ids = st.integers(0, 2**63 - 1)


@st.composite
def crowds(draw: st.DrawFn, typed: bool) -> list[Row]:
    """Some labels of a tasks × workers matrix, row by row."""
    kinds = [text_ids, whole_ids] if typed else [text_ids]
    tasks, workers, classes = (
        draw(st.lists(draw(st.sampled_from(kinds)), min_size=1, max_size=5, unique=True))
        for _ in range(3)
    )
    classes = [c for c in classes if c not in ("-1", "-1.0") and str(c).strip().lower() != "nan"]
    cells = st.sampled_from([None, *classes])
    drawn = [(task, worker, draw(cells)) for task in tasks for worker in workers]
    return [row for row in drawn if row[2] is not None]


@every_form
@steady
@given(data=st.data())
def test_what_is_written_comes_back_with_its_types(
    form: Form, folder: Path, data: st.DataObject
) -> None:
    rows = data.draw(crowds(form.typed).filter(bool))
    table = form.read(form.write(rows, folder))
    got = rows_of(table)
    if form.is_matrix:  # whose columns have an order of their own
        got, rows = sorted(got), sorted(rows)
    assert got == rows
    assert types_of(got) == types_of(rows)
    assert table.skipped == {}


@every_form
def test_the_iterator_gives_the_rows_of_the_reader(form: Form, tmp_path: Path) -> None:
    source = form.write(GOOD, tmp_path)
    tables = list(form.iterate(source, LabelSpace(), 3))
    assert rows_of(*tables) == rows_of(form.read(source)) == GOOD
    if form.is_file:
        assert [len(table.labels) for table in tables] == [3, 1]
        assert [place for table in tables for place in table.lines or ()] == [
            form.first + n for n in range(4)
        ]


@every_form
def test_any_reader_is_found_by_type_or_suffix(form: Form, tmp_path: Path) -> None:
    source = form.write(GOOD, tmp_path)
    assert rows_of(read_labels(source)) == GOOD
    assert rows_of(*iter_labels(source, rows=1)) == GOOD


@pytest.mark.parametrize(
    ("form", "cell", "reason"),
    [
        pytest.param(form, cell, reason, id=f"{form.name}-{reason}")
        for form in FORMS
        for cell, reason in enumerate(("missing task", "missing worker", "missing label"))
        if (form.name, reason) != ("wide", "missing label")  # which is no error there
    ],
)
def test_a_missing_cell_is_an_error_that_names_the_line_or_is_counted(
    form: Form, cell: int, reason: str, tmp_path: Path
) -> None:
    rows = [list(row) for row in GOOD]
    rows[2][cell] = None
    source = form.write([tuple(row) for row in rows], tmp_path)
    with pytest.raises(LabelError, match=f"{form.place} {form.first + 2}: the {reason.split()[1]}"):
        form.read(source)
    table = form.read(source, SKIP)
    assert rows_of(table) == [GOOD[0], GOOD[1], GOOD[3]]
    assert table.skipped == {reason: 1}
    assert list(table.lines or ()) == [form.first + n for n in (0, 1, 3)]


@every_form
def test_an_unknown_class_is_an_error_that_names_the_line_or_is_counted(
    form: Form, tmp_path: Path
) -> None:
    source = form.write([*GOOD[:3], ("q4", "eve", "Cat")], tmp_path)
    sentence = "label 'Cat' is not one of the classes \\['cat', 'dog'\\]. Correct it, add it"
    with pytest.raises(LabelError, match=f"{form.place} {form.first + 3}: {sentence}"):
        form.read(source, LabelSpace(classes=("cat", "dog")))
    table = form.read(source, LabelSpace(classes=("cat", "dog"), on_bad="skip"))
    assert rows_of(table) == GOOD[:3]
    assert table.skipped == {"unknown class": 1}


@every_form
def test_an_abstention_is_counted_and_never_an_error(form: Form, tmp_path: Path) -> None:
    source = form.write([("q0", "ann", "skip"), *GOOD], tmp_path)
    table = form.read(source, LabelSpace(classes=("cat", "dog"), abstain="skip"))
    assert rows_of(table) == GOOD
    assert table.skipped == {"abstained": 1}


@every_long_form
@pytest.mark.parametrize("weight", [-1.0, "heavy", float("inf"), None])
def test_a_bad_weight_is_an_error_that_names_the_line_or_is_counted(
    form: Form, weight: Any, tmp_path: Path
) -> None:
    values = [1.0, 0.5, weight, 0.0]
    if isinstance(weight, str):  # columns of one type are all text then
        values = list(map(str, values))
    source = form.write([(*row, w) for row, w in zip(GOOD, values, strict=True)], tmp_path)
    with pytest.raises(
        LabelError, match=f"{form.place} {form.first + 2}: the weight is not a number"
    ):
        form.read(source)
    table = form.read(source, SKIP)
    assert table.weights == [1.0, 0.5, 0.0]
    assert table.skipped == {"bad weight": 1}


@every_long_form
def test_optional_columns_come_along(form: Form, tmp_path: Path) -> None:
    rows = [("q1", "ann", "cat", 2.5, "a", 9), ("q1", "bob", "dog", 1, None, 10)]
    table = form.read(form.write(rows, tmp_path))
    assert (table.weights, table.groups, table.timestamps) == ([2.5, 1.0], ["a", None], [9, 10])
    assert form.read(form.write(GOOD, tmp_path)).weights is None


@every_file
def test_a_later_bad_row_does_not_stop_the_tables_before_it(form: Form, tmp_path: Path) -> None:
    tables = form.iterate(form.write([*GOOD, (None, "ann", "cat")], tmp_path), LabelSpace(), 2)
    assert rows_of(next(tables), next(tables)) == GOOD
    with pytest.raises(LabelError, match=f"{form.place} {form.first + 4}: the task is missing"):
        next(tables)


@every_file
def test_a_file_is_named_as_it_was_given(form: Form, tmp_path: Path) -> None:
    path = form.write([("q0", "ann", "bird"), *GOOD], tmp_path)
    with pytest.raises(LabelError) as caught:
        form.read(path, LabelSpace(classes=("cat", "dog")))
    assert str(caught.value).startswith(f"{path} {form.place} {form.first}: ")


# One good and one bad file per format.


def test_the_good_csv_keeps_text_as_written() -> None:
    table = read_csv(FIXTURES / "good.csv")
    assert rows_of(table) == [
        ("007", "ann", "cat"),
        ("007", "Bob, Jr.", "dog"),
        (" 8 ", "ann", "cat"),
    ]
    assert table.weights == [1.0, 0.5, 2.0]
    assert table.lines == [2, 3, 5]  # the second row takes two lines


def test_the_bad_csv_is_told_row_by_row() -> None:
    space = LabelSpace(classes=("cat", "dog"), on_bad="skip")
    table = read_csv(FIXTURES / "bad.csv", space)
    assert rows_of(table) == [("q1", "ann", "cat")]
    assert table.skipped == {
        "missing label": 1,
        "unknown class": 1,
        "malformed row": 3,  # one has a cell too few, and one leaves a quote open over two lines
        "missing task": 1,
        "missing worker": 1,
        "bad weight": 1,
    }
    with pytest.raises(LabelError, match=r"bad\.csv line 3: the label is missing"):
        read_csv(FIXTURES / "bad.csv")


def test_the_good_jsonl_may_mix_aliases_and_optional_keys() -> None:
    table = read_jsonl(FIXTURES / "good.jsonl")
    assert rows_of(table) == [(7, "ann", "cat"), (7, "Bob, Jr.", "dog"), (8, "ann", "cat")]
    assert table.weights == [1.0, 0.5, 1.0]
    assert table.lines == [1, 2, 4]


def test_the_bad_jsonl_is_told_row_by_row() -> None:
    space = LabelSpace(classes=("cat", "dog"), on_bad="skip")
    table = read_jsonl(FIXTURES / "bad.jsonl", space)
    assert rows_of(table) == [("q1", "ann", "cat")]
    assert table.skipped == {
        "missing label": 2,
        "unknown class": 1,
        "malformed row": 3,
        "bad worker": 1,
        "bad weight": 1,
    }
    with pytest.raises(LabelError, match=r"bad\.jsonl line 2: the label is missing"):
        read_jsonl(FIXTURES / "bad.jsonl")


def test_the_good_matrix_takes_empty_nan_and_minus_one_for_no_label() -> None:
    table = read_labels(FIXTURES / "good.wide.csv")
    assert rows_of(table) == [
        ("007", "ann", "cat"),
        ("007", "Bob, Jr.", "dog"),
        ("9", "Bob, Jr.", "dog"),
        ("9", "eve", "cat"),
    ]
    assert table.lines == [2, 2, 4, 4]
    assert table.skipped == {}


def test_the_bad_matrix_is_told_row_by_row() -> None:
    space = LabelSpace(classes=("cat", "dog"), on_bad="skip")
    table = read_wide(FIXTURES / "bad.wide.csv", space)
    assert rows_of(table) == [("q1", "ann", "cat"), ("q1", "bob", "dog"), ("q2", "bob", "dog")]
    assert table.skipped == {"unknown class": 1, "missing task": 1, "malformed row": 1}


def test_a_file_that_is_no_parquet_is_refused_with_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "labels.parquet"
    path.write_bytes(b"task,worker,label\n")
    with pytest.raises(LabelError, match=r"labels\.parquet: the file is not readable as Parquet"):
        read_parquet(path)


# Where the rows come from.


class Meter:
    """A stream that counts the lines taken from it."""

    def __init__(self, lines: Iterator[str]) -> None:
        self.lines = lines
        self.taken = 0

    def __iter__(self) -> Iterator[str]:
        for line in self.lines:
            self.taken += 1
            yield line


def endless(header: list[str], line: str) -> Iterator[str]:
    yield from header
    while True:
        yield line


@pytest.mark.parametrize(
    ("iterate", "header", "line", "taken"),
    [
        (iter_csv, ["task,worker,label\n"], "q,w,cat\n", 4),
        (iter_jsonl, [], '{"task": 1, "worker": 2, "label": 3}\n', 3),
        (iter_wide, ["task,ann,bob,eve\n"], "q,cat,dog,cat\n", 2),
        (iter_labels, ["task,worker,label\n"], "q,w,cat\n", 4),
        (iter_labels, [], '{"task": 1, "worker": 2, "label": 3}\n', 3),
    ],
)
def test_an_iterator_takes_no_line_it_does_not_need(
    iterate: Callable[..., Iterator[LabelTable]], header: list[str], line: str, taken: int
) -> None:
    meter = Meter(endless(header, line))
    tables = iterate(meter, LabelSpace(), rows=3)
    assert meter.taken == 0
    assert len(next(tables).labels) == 3
    assert meter.taken == taken


@pytest.mark.parametrize("mode", ["r", "rb"])
def test_rows_arrive_while_the_pipe_is_open(mode: str) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, mode) as stream, os.fdopen(writing, "w") as pipe:
        tables = iter_labels(stream, rows=1)
        for row in GOOD:
            pipe.write(json.dumps(dict(zip(NAMES, row, strict=False))) + "\n")
            pipe.flush()
            assert rows_of(next(tables)) == [row]


def test_a_stream_is_left_open() -> None:
    stream = io.StringIO("task,worker,label\nq1,ann,cat\n")
    read_csv(stream)
    assert not stream.closed


def test_bytes_are_read_as_text() -> None:
    stream = io.BytesIO("task,worker,label\nq1,ann,café\n".encode())
    assert read_csv(stream).labels == ["café"]


@pytest.mark.parametrize("wrap", [io.BytesIO, lambda raw: io.StringIO(raw.decode())])
def test_a_byte_order_mark_is_no_part_of_the_header(wrap: Callable[[bytes], Any]) -> None:
    raw = "\ufefftask,worker,label\r\nq1,ann,cat\r\n".encode()
    assert rows_of(read_csv(wrap(raw))) == [("q1", "ann", "cat")]


def test_a_cut_gz_file_is_refused_with_a_sentence(tmp_path: Path) -> None:
    path = write_gz(GOOD, tmp_path)
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(LabelError, match="cannot be read to its end"):
        read_csv(path)


def test_text_that_is_not_utf8_is_a_bad_row() -> None:
    lines = [b"task,worker,label\n", b"q1,ann,cat\n", "q1,bob,café\n".encode("latin-1")]
    with pytest.raises(LabelError, match=r"line 3: the label is neither text \(UTF-8\)"):
        read_csv(lines)
    assert read_csv(lines, SKIP).skipped == {"bad label": 1}


def test_a_stream_that_cannot_decode_itself_is_refused_with_a_sentence() -> None:
    stream = io.TextIOWrapper(io.BytesIO(b"task,worker,label\nq1,ann,caf\xe9\n"), "utf-8")
    with pytest.raises(LabelError, match="Check that it is whole, and UTF-8"):
        read_csv(stream)


def test_half_a_character_in_json_is_a_bad_row() -> None:
    lines = ['{"task": "\\ud800", "worker": "ann", "label": "cat"}']
    assert read_jsonl(lines, SKIP).skipped == {"bad task": 1}


def test_objects_of_ever_new_shapes_are_read_in_bounded_memory() -> None:
    lines = (f'{{"task": {n}, "worker": 1, "label": 1, "extra{n}": 0}}' for n in range(3000))
    assert read_jsonl(lines).item_ids == list(range(3000))


def test_json_nested_beyond_reason_is_a_bad_row() -> None:
    assert read_jsonl(["[" * 100_000], SKIP).skipped == {"malformed row": 1}


def test_a_missing_file_is_python_s_own_error(tmp_path: Path) -> None:
    for suffix in FORMATS:
        with pytest.raises(FileNotFoundError):
            read_labels(tmp_path / f"nowhere{suffix}")


def test_an_unknown_suffix_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(LabelError, match=r"labels.doc: .*'\.wide\.csv', '\.csv', '\.tsv'"):
        read_labels("labels.doc")


def test_what_is_no_table_is_refused_by_its_type() -> None:
    with pytest.raises(LabelError, match="cannot be read from a int"):
        read_labels(3)
    with pytest.raises(LabelError, match="cannot be read from a Series"):
        read_table(pd.Series([1]))
    with pytest.raises(LabelError, match="two axes"):
        read_table(np.zeros(3))
    with pytest.raises(LabelError, match=r"lines of text. Got \[0, 1\]"):
        read_labels([[0, 1], [1, 0]])


@pytest.mark.parametrize("iterate", [iter_csv, iter_jsonl, iter_wide, iter_parquet, iter_labels])
def test_rows_below_one_are_refused(iterate: Callable[..., Iterator[LabelTable]]) -> None:
    with pytest.raises(StateError, match=r"`rows` must be a whole number ≥ 1. Got 0"):
        next(iterate(["task,worker,label"], LabelSpace(), 0))


# Headers.


@pytest.mark.parametrize(
    "header",
    ["task,worker,label", "item,rater,rating", "example,annotator,value", "question,worker,answer",
     "label,performer,task", "Task, Worker ,LABEL"],
)  # fmt: skip
def test_the_aliases_of_the_field_are_read_unasked(header: str) -> None:
    row = "cat,ann,q1" if header.startswith("label") else "q1,ann,cat"
    assert rows_of(read_csv([header, row])) == [("q1", "ann", "cat")]
    frame = pd.DataFrame([row.split(",")], columns=header.split(","))
    assert rows_of(read_table(frame)) == [("q1", "ann", "cat")]


def test_two_columns_for_one_thing_are_refused_and_both_named(tmp_path: Path) -> None:
    columns = {"task": ["a"], "item": ["b"], "worker": ["w"], "label": ["x"]}
    path = tmp_path / "both.parquet"
    pq.write_table(pa.table(columns), path)
    for read, source in [
        (read_csv, ["task,item,worker,label", "a,b,w,x"]),
        (read_jsonl, ['{"task": "a", "item": "b", "worker": "w", "label": "x"}']),
        (read_parquet, path),
        (read_table, pd.DataFrame(columns)),
        (read_table, pl.DataFrame(columns)),
    ]:
        with pytest.raises(LabelError, match="'task' and 'item' both name the task"):
            read(source)


def test_a_missing_column_is_refused_with_what_was_found(tmp_path: Path) -> None:
    columns = {"task": ["a"], "worker": ["w"], "lable": ["x"]}
    path = tmp_path / "lable.parquet"
    pq.write_table(pa.table(columns), path)
    for read, source in [
        (read_csv, ["task,worker,lable", "a,w,x"]),
        (read_jsonl, ['{"task": "a", "worker": "w", "lable": "x"}']),
        (read_parquet, path),
        (read_table, pd.DataFrame(columns)),
        (read_table, pa.table(columns)),
    ]:
        with pytest.raises(
            LabelError,
            match=r"nothing names the label, which may be called 'label', 'rating', 'value' or "
            r"'answer'. Got \['task', 'worker', 'lable'\]",
        ):
            read(source)


def test_a_worker_who_owns_two_columns_is_refused() -> None:
    with pytest.raises(LabelError, match="'ann' stands over more than one"):
        read_wide(["task,ann,ann", "q1,cat,dog"])


def test_a_header_alone_is_an_empty_table(tmp_path: Path) -> None:
    path = tmp_path / "none.parquet"
    pq.write_table(pa.table({name: pa.array([], pa.string()) for name in NAMES[:3]}), path)
    for read, iterate, source in [
        (read_csv, iter_csv, ["task,worker,label\n"]),
        (read_wide, iter_wide, ["task,ann\n"]),
        (read_jsonl, iter_jsonl, []),
        (read_parquet, iter_parquet, path),
        (read_table, iter_labels, pd.DataFrame(columns=NAMES[:3])),
        (read_table, iter_labels, pl.DataFrame(schema=NAMES[:3])),
        (read_dict, iter_labels, {}),
    ]:
        table = read(source)
        assert rows_of(table) == []
        assert table.skipped == {}
        assert [rows_of(part) for part in iterate(source)] == [[]]


@pytest.mark.parametrize("read", [read_csv, read_wide])
def test_a_file_without_even_a_header_is_refused(
    read: Callable[..., LabelTable], tmp_path: Path
) -> None:
    path = tmp_path / "nothing.csv"
    path.touch()
    with pytest.raises(LabelError, match=r"nothing\.csv: the file is empty, and a CSV file starts"):
        read(path)


# Types.


@pytest.mark.parametrize("dtype", [None, object, "string", "str", "category"])
def test_pandas_text_of_any_dtype_is_text(dtype: Any) -> None:
    frame = pd.DataFrame(columns_of(GOOD), dtype=dtype)
    assert rows_of(read_table(frame)) == GOOD
    frame.loc[1, "label"] = None
    assert read_table(frame, SKIP).skipped == {"missing label": 1}


@pytest.mark.parametrize("dtype", ["int64", "uint8", "Int64", "category", object])
def test_pandas_integers_of_any_dtype_are_python_integers(dtype: Any) -> None:
    rows = [(1, 10, 0), (2, 20, 1)]
    table = read_table(pd.DataFrame(columns_of(rows)).astype(dtype))
    assert rows_of(table) == rows
    assert types_of(rows_of(table)) == [[int] * 3] * 2


@pytest.mark.parametrize("dtype", ["float64", "Int64", object])
def test_integers_beside_a_missing_cell_are_still_integers(dtype: str) -> None:
    frame = pd.DataFrame({"task": [1, 2, None], "worker": [7, None, 7], "label": [0, 1, 1]})
    table = read_table(frame.astype(dtype), SKIP)
    assert rows_of(table) == [(1, 7, 0)]
    assert types_of(rows_of(table)) == [[int] * 3]
    assert table.skipped == {"missing worker": 1, "missing task": 1}
    assert table.lines == [0]


def test_fractions_stay_fractions() -> None:
    table = read_table(pd.DataFrame({"task": [1, 2], "worker": [1, 1], "label": [2.0, 2.5]}))
    assert rows_of(table) == [(1, 1, 2), (2, 1, 2.5)]


def test_minus_one_is_a_label_like_others_in_a_long_table() -> None:
    assert read_table(pd.DataFrame({"task": [1], "worker": [1], "label": [-1]})).labels == [-1]


@pytest.mark.parametrize("value", [["a"], {"a": 1}, ("a", 1), np.zeros(2), float("inf"), b"a"])
def test_what_is_neither_text_nor_number_is_no_id(value: Any) -> None:
    frame = pd.DataFrame({"task": ["q1", None], "worker": ["ann", "ann"], "label": ["cat", "cat"]})
    frame = frame.astype(object)
    frame.at[1, "task"] = value
    with pytest.raises(LabelError, match="DataFrame row 1: the task is neither text"):
        read_table(frame)
    assert read_table(frame, SKIP).skipped == {"bad task": 1}


def test_a_list_in_arrow_is_no_id() -> None:
    table = pa.table({"task": [["a"]], "worker": [1], "label": [1]})
    with pytest.raises(LabelError, match="Table row 0: the task is neither text"):
        read_table(table)


class ArrowStream:
    """Something we have never heard of that speaks the Arrow PyCapsule interface."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


def test_whatever_gives_an_arrow_stream_is_a_table() -> None:
    assert rows_of(read_labels(ArrowStream(pa.table(columns_of(GOOD))))) == GOOD


def test_without_pyarrow_the_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = ArrowStream(pa.table(columns_of(GOOD)))
    frame = pl.DataFrame(columns_of(GOOD))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for read, source in [(read_parquet, "labels.parquet"), (read_table, stream)]:
        with pytest.raises(LabelError, match=r"pip install labelquorum\[parquet\]"):
            read(source)
    assert rows_of(read_table(frame)) == GOOD  # polars is read without it


@pytest.mark.parametrize("dtype", ["int64", "float64", object])
def test_a_numpy_matrix_has_row_and_column_numbers_for_ids(dtype: str) -> None:
    table = read_table(np.array([[2, -1, 0], [-1, -1, 1]]).astype(dtype))
    assert rows_of(table) == [(0, 0, 2), (0, 2, 0), (1, 2, 1)]
    assert types_of(rows_of(table)) == [[int] * 3] * 3
    with pytest.raises(LabelError, match="ndarray row 1: label 1 is not one of the classes"):
        read_table(np.array([[0, np.nan], [np.nan, 1]]), LabelSpace(classes=(0,)))


def test_a_numpy_matrix_of_text_may_have_empty_cells() -> None:
    table = read_wide(np.array([["cat", ""], ["-1", "dog"]]))
    assert rows_of(table) == [(0, 0, "cat"), (1, 1, "dog")]


def test_a_wide_pandas_frame_has_its_tasks_in_the_index() -> None:
    frame = pd.DataFrame({"ann": [1, None], "bob": [0, -1]}, index=["q1", "q2"])
    assert rows_of(read_wide(frame)) == [("q1", "ann", 1), ("q1", "bob", 0)]


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
def test_a_wide_frame_may_have_its_tasks_in_a_column(make: Callable[..., Any]) -> None:
    frame = make({"item": ["q1", "q2"], "ann": ["cat", None], "bob": ["dog", "dog"]})
    assert rows_of(read_wide(frame)) == [
        ("q1", "ann", "cat"),
        ("q1", "bob", "dog"),
        ("q2", "bob", "dog"),
    ]


# The label space.


def test_text_classes_for_integer_labels_are_pointed_out() -> None:
    frame = pd.DataFrame({"task": [1], "worker": [1], "label": [1]})
    with pytest.raises(LabelError, match="The class '1' is text and the label of type int"):
        read_table(frame, LabelSpace(classes=("0", "1")))


def test_an_empty_label_may_be_declared_an_abstention() -> None:
    lines = ["task,worker,label", "q1,ann,", "q1,bob,cat"]
    assert read_csv(lines, LabelSpace(abstain="")).skipped == {"abstained": 1}
    with pytest.raises(LabelError, match="line 2: the label is missing"):
        read_csv(lines)


def test_repeated_rows_all_come_through_in_order() -> None:
    lines = ["task,worker,label", "q1,ann,cat", "q1,ann,dog", "q1,ann,cat"]
    table = read_csv(lines, LabelSpace(repeats="error"))
    assert table.labels == ["cat", "dog", "cat"]
    assert table.lines == [2, 3, 4]


def test_the_first_bad_row_speaks_even_if_a_later_one_cannot_be_split() -> None:
    with pytest.raises(LabelError, match="line 3: the label is missing"):
        read_csv(["task,worker,label", "q1,ann,cat", "q1,bob,", "q2"])


def test_a_checked_table_may_be_checked_again() -> None:
    table = read_csv(["task,worker,label", "q1,ann,cat", "q1,bob,"], SKIP)
    assert read_labels(table) == table
    with pytest.raises(LabelError, match="line 2: label 'cat' is not one of the classes"):
        read_labels(table, LabelSpace(classes=("dog",)))


def test_a_dict_without_workers_is_refused() -> None:
    answers = {"q1": {"ann": "cat"}, "q2": ["cat"]}
    with pytest.raises(LabelError, match="dict row 1: task 'q2' must have a dict of workers"):
        read_dict(answers)
    assert read_dict(answers, SKIP).skipped == {"malformed row": 1}


def test_timestamps_written_as_numbers_are_ordered_as_numbers() -> None:
    table = read_csv(["task,worker,label,timestamp", "q1,a,x,10", "q1,b,x,9", "q1,c,x,2024-01-05"])
    assert table.timestamps == [10.0, 9.0, "2024-01-05"]


# ── arrays of rows ───────────────────────────────────────────────────────────────────────

VOTES = [("q1", "ann", "cat"), ("q1", "bob", "cat"), ("q2", "ann", "dog"), ("q2", "bob", "cat")]


@pytest.mark.parametrize("dtype", [str, object])
def test_an_array_of_rows_is_not_read_as_three_workers(dtype):
    table = read_labels(np.array(VOTES, dtype))
    assert list(zip(table.item_ids, table.worker_ids, table.labels, strict=True)) == VOTES
    codes = np.array([(100 + i // 3, 10 + i % 3, i % 2) for i in range(12)])
    assert read_labels(codes).worker_ids == [10, 11, 12] * 4


def test_an_array_that_may_be_rows_or_a_matrix_is_refused():
    codes = np.array([(i // 3, i % 3, i % 2) for i in range(60)])
    with pytest.raises(LabelError, match="look like rows") as error:
        read_labels(codes)
    assert "read_wide" in str(error.value)
    as_rows = read_labels(pd.DataFrame(codes, columns=["task", "worker", "label"]))
    assert len(as_rows.labels) == 60
    assert len(read_labels(read_wide(codes)).labels) == 180


def test_a_matrix_of_three_workers_is_still_one():
    truth = np.arange(500) % 4
    noise = np.random.default_rng(0).integers(0, 4, (500, 3))
    matrix = np.where(np.random.default_rng(1).random((500, 3)) < 0.6, truth[:, None], noise)
    assert len(read_labels(matrix).labels) == 1500
    assert len(read_labels(np.array(list("abcd"))[matrix]).labels) == 1500
    assert len(read_labels(np.array([[0, 1, 2]])).labels) == 3
    holes = matrix.copy()
    holes[0, 0] = -1
    assert len(read_labels(holes).labels) == 1499
