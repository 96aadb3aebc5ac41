"""Rows written for other programs: whole, one after the other, and harmless to open."""

import csv
import io
import json

import pytest

from labelquorum.errors import StateError
from labelquorum.ingest.writers import harmless, names_of, replacing, write_rows

ROWS = [
    {"task": "t1", "label": 1, "sure": 0.5},
    {"task": 'a "b", c\nd', "label": None, "sure": -1.0},
]
COLUMNS = {"task": {str}, "label": {int}, "sure": {float}}


def written(rows, columns, encoding, **options):
    file = io.BytesIO()
    assert write_rows(rows, columns, file, encoding, **options) == len(rows)
    return file.getvalue()


def test_csv_and_json_lines_come_back_as_they_went():
    text = written(ROWS, COLUMNS, "csv").decode()
    assert list(csv.reader(io.StringIO(text))) == [
        ["task", "label", "sure"],
        ["t1", "1", "0.5"],
        ['a "b", c\nd', "", "-1.0"],
    ]
    lines = written(ROWS, COLUMNS, "jsonl").decode().splitlines()
    assert [json.loads(line) for line in lines] == ROWS


def test_parquet_keeps_types_and_writes_mixed_columns_as_text():
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(io.BytesIO(written(ROWS, COLUMNS, "parquet")))
    assert table.to_pylist() == ROWS
    mixed = [{"task": 1}, {"task": "1"}, {"task": 2.5}, {"task": True}]
    data = written(mixed, {"task": {int, str, float, bool}}, "parquet")
    assert pyarrow.parquet.read_table(io.BytesIO(data)).to_pylist() == [
        {"task": "1"},
        {"task": "1"},
        {"task": "2.5"},
        {"task": "true"},
    ]


@pytest.mark.parametrize("encoding", ["csv", "jsonl", "parquet"])
def test_no_rows_are_a_file_all_the_same(encoding):
    data = written([], COLUMNS, encoding)
    if encoding == "parquet":
        import pyarrow.parquet

        assert pyarrow.parquet.read_table(io.BytesIO(data)).column_names == list(COLUMNS)
    else:
        assert data == (b"task,label,sure\n" if encoding == "csv" else b"")


@pytest.mark.parametrize(
    "cell",
    [
        "=1+1",
        "+1+1",
        "-1+1",
        "@SUM(A1)",
        "\t=1",
        "\r=1",
        "\n=1",
        "=cmd|' /C calc'!A0",
        "-cmd|' /C calc'!A0",
        "＝1+1",
        '=HYPERLINK("http://x","y")',
        "+",
        "-",
        "-1_000",
        "+١",
    ],
)
def test_what_a_spreadsheet_would_run_is_text(cell):
    assert harmless(cell) == f"'{cell}"
    row = [{"task": cell}]
    [_, [shown]] = csv.reader(io.StringIO(written(row, {"task": {str}}, "csv").decode()))
    assert shown.startswith("'")
    raw = written(row, {"task": {str}}, "csv", raw=True).decode()
    assert next(csv.DictReader(io.StringIO(raw, newline="")))["task"] == cell
    assert json.loads(written(row, {"task": {str}}, "jsonl")) == row[0]


@pytest.mark.parametrize("cell", [-1, -1.5, 0, "-1", "+1.5", "-1e-5", "cat", "a=b", "", None, True])
def test_what_is_no_formula_stays_as_it_is(cell):
    assert harmless(cell) is cell


def test_rows_are_written_while_others_are_still_to_come():
    file, places = io.BytesIO(), []

    def rows():
        for number in range(30_000):
            places.append(file.tell())
            yield {"task": f"task {number}"}

    write_rows(rows(), {"task": {str}}, file, "csv")
    assert 0 < places[15_000] < places[25_000] < file.tell()


def test_another_encoding_is_refused():
    with pytest.raises(StateError, match=r"`encoding` must be one of .*Got 'xlsx'"):
        write_rows([], {}, io.BytesIO(), "xlsx")


def test_a_file_takes_its_place_only_when_it_is_whole(tmp_path):
    path = tmp_path / "file"
    path.write_text("before")
    with pytest.raises(ZeroDivisionError), replacing(path) as beside:
        beside.write_text("half")
        raise ZeroDivisionError
    assert [one.name for one in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "before"
    with replacing(path) as beside:
        beside.write_text("whole")
    assert path.read_text() == "whole"
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_classes_that_read_alike_have_names_of_their_own():
    assert names_of(["cat", 1, "1"]) == ["cat", "1", "'1'"]


def test_a_new_file_is_for_its_owner_and_one_that_is_replaced_keeps_its_mode(tmp_path):
    path = tmp_path / "answers.csv"
    with replacing(path) as beside:
        assert beside.stat().st_mode & 0o777 == 0o600  # also while it is written
        beside.write_text("first")
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    with replacing(path) as beside:
        beside.write_text("second")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("second", 0o640)
