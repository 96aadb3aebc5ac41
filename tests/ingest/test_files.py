"""Labels in the files and objects people have; every one gives the same four labels."""

import bz2
import gzip
import json
import lzma
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
from pyarrow import feather

import labelquorum as lq
from labelquorum.errors import LabelError, StateError
from labelquorum.ingest.label_studio import read_label_studio
from labelquorum.ingest.labels import COMMON_NAMES
from labelquorum.ingest.readers import iter_labels, read_csv, read_labels, read_wide
from labelquorum.ingest.tail import Kind, kind_of, split_records

ROWS = [("q1", "ann", "cat"), ("q1", "bob", "cat"), ("q2", "ann", "dog"), ("q2", "bob", "cat")]
FRAME = pd.DataFrame(ROWS, columns=["task", "worker", "label"])
EXPORT = Path(__file__).parent.parent / "server" / "label_studio" / "export.json"


def rows_of(table):
    return list(zip(table.item_ids, table.worker_ids, table.labels, strict=True))


# ── names of columns ─────────────────────────────────────────────────────────────────────


def written(frame, folder):
    """A frame in every form that has names of columns."""
    yield frame
    yield pl.DataFrame(frame.to_dict("list"))
    yield frame.to_dict("records")
    yield frame.to_dict("list")
    for suffix, write in {
        ".csv": lambda path: frame.to_csv(path, index=False),
        ".jsonl": lambda path: frame.to_json(path, orient="records", lines=True),
        ".json": lambda path: frame.to_json(path, orient="records"),
        ".parquet": frame.to_parquet,
        ".feather": frame.to_feather,
    }.items():
        write(folder / f"labels{suffix}")
        yield folder / f"labels{suffix}"


def test_columns_are_named_by_the_caller(tmp_path):
    columns = {"task": "image", "worker": "who", "label": "said"}
    # Columns of known names are no hindrance.
    frame = FRAME.rename(columns=columns)
    frame = frame.assign(task="?", worker="?", answer="?")
    for source in written(frame, tmp_path):
        assert rows_of(read_labels(source, columns=columns)) == ROWS
        [table] = iter_labels(source, columns=columns)
        assert rows_of(table) == ROWS
    model = lq.MajorityVote()
    for verb in ("fit_predict", "fit_predict_proba", "predict", "predict_proba"):
        assert getattr(model, verb)(frame, columns=columns).index.tolist() == ["q1", "q2"]
    for verb in ("fit", "partial_fit"):
        learned = getattr(lq.MajorityVote(), verb)(frame, columns=columns)
        assert learned.labels_.index.tolist() == ["q1", "q2"]


def test_a_column_of_a_matrix_is_named_by_the_caller():
    lines = ["ann,image,bob", "cat,q1,cat", "dog,q2,cat"]
    assert sorted(rows_of(read_wide(lines, columns={"task": "image"}))) == ROWS
    frame = pd.DataFrame([line.split(",") for line in lines[1:]], columns=lines[0].split(","))
    assert sorted(rows_of(read_wide(frame, columns={"task": "image"}))) == ROWS
    for source in (lines, frame):
        with pytest.raises(LabelError, match="columns= says that 'picture' names the task"):
            read_wide(source, columns={"task": "picture"})


def test_a_column_that_is_not_there_is_named():
    with pytest.raises(LabelError, match=r"says that 'image' names the task.*Got \['task'"):
        read_labels(FRAME, columns={"task": "image"})
    with pytest.raises(StateError, match=r"`columns` names \['task', 'worker'.*Got 'item'"):
        read_labels(FRAME, columns={"item": "task"})


@pytest.mark.parametrize("role", COMMON_NAMES)
def test_common_names_are_recognised(role):
    for name in COMMON_NAMES[role]:
        for spelled in (name, name.upper(), name.replace("_", " "), name.replace("_", "")):
            assert rows_of(read_labels(FRAME.rename(columns={role: spelled}))) == ROWS


def test_a_common_name_gives_way_to_one_of_ours():
    assert rows_of(read_labels(FRAME.assign(user="?", annotation="?", task_id="?"))) == ROWS


def test_two_common_names_are_ambiguous():
    frame = FRAME.rename(columns={"worker": "user"}).assign(annotator_id="?")
    with pytest.raises(LabelError, match="'user' and 'annotator_id' both name the worker"):
        read_labels(frame)
    assert rows_of(read_labels(frame, columns={"worker": "user"})) == ROWS


# ── text ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
@pytest.mark.parametrize("sep", [",", "\t", ";", "|"])
def test_the_separator_is_found_out(sep, suffix, tmp_path):
    path = tmp_path / f"labels{suffix}"
    FRAME.to_csv(path, index=False, sep=sep)
    assert rows_of(read_labels(path)) == ROWS
    assert rows_of(read_csv(path.read_text().splitlines())) == ROWS
    FRAME.pivot(index="task", columns="worker", values="label").to_csv(path, sep=sep)
    assert sorted(rows_of(read_wide(path))) == ROWS


def test_the_separator_may_be_given(tmp_path):
    path = tmp_path / "labels.csv"
    FRAME.to_csv(path, index=False, sep="#")
    assert rows_of(read_labels(path, sep="#")) == ROWS
    with pytest.raises(StateError, match=r"`sep` must be one character, such as ';'. Got '##'"):
        read_labels(path, sep="##")
    with pytest.raises(StateError, match="cells are separated in CSV alone"):
        read_labels(tmp_path / "labels.jsonl", sep=";")


def test_a_comma_in_a_header_with_semicolons_is_no_separator():
    lines = ["task;worker;label;what, if any", "q1;ann;cat;a, b"]
    assert rows_of(read_labels(lines)) == ROWS[:1]


def test_tabs_of_a_file_that_grows():
    kind = kind_of("labels.tsv")
    assert (kind, kind.grows, kind.has_header) == (Kind(".tsv"), True, True)
    assert not kind_of("labels.tsv.xz").grows
    assert not kind_of("labels.xlsx").grows
    records, rest = split_records(b'q1\t"an\nn"\tcat\nq2', kind)
    assert ([len(record) for record in records], rest) == ([2], b"q2")


# ── packed files ─────────────────────────────────────────────────────────────────────────


def zipped(path, data, *more):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("labels.csv", data)
        for name in more:
            archive.writestr(name, b"")


PACK = {
    "labels.csv.gz": lambda path, data: path.write_bytes(gzip.compress(data)),
    "labels.csv.bz2": lambda path, data: path.write_bytes(bz2.compress(data)),
    "labels.csv.xz": lambda path, data: path.write_bytes(lzma.compress(data)),
    "labels.csv.zip": zipped,
    "labels.zip": lambda path, data: zipped(path, data, "__MACOSX/._labels.csv"),
}


@pytest.mark.parametrize("name", PACK)
def test_a_packed_file_is_read(name, tmp_path):
    PACK[name](tmp_path / name, FRAME.to_csv(index=False).encode())
    assert rows_of(read_labels(tmp_path / name)) == ROWS
    assert [rows_of(table) for table in iter_labels(tmp_path / name, rows=3)] == [
        ROWS[:3],
        ROWS[3:],
    ]


@pytest.mark.parametrize("name", PACK)
def test_a_packed_file_that_is_damaged_is_named(name, tmp_path):
    path = tmp_path / name
    PACK[name](path, FRAME.to_csv(index=False).encode() * 50)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(LabelError, match=rf"{name}: cannot be read to its end"):
        read_labels(path)
    path.write_bytes(b"no such thing")
    with pytest.raises(LabelError, match=rf"{name}: cannot be read to its end"):
        read_labels(path)


def test_a_zip_file_of_two_files_is_refused(tmp_path):
    zipped(tmp_path / "labels.zip", b"", "truth.csv")
    with pytest.raises(LabelError, match=r"must hold one file. It holds 2: .*'truth.csv'"):
        read_labels(tmp_path / "labels.zip")


def test_packed_parquet_and_json_are_read(tmp_path):
    FRAME.to_parquet(tmp_path / "labels.parquet")
    data = (tmp_path / "labels.parquet").read_bytes()
    (tmp_path / "labels.parquet.gz").write_bytes(gzip.compress(data))
    assert rows_of(read_labels(tmp_path / "labels.parquet.gz")) == ROWS
    data = FRAME.to_json(orient="records").encode()
    (tmp_path / "labels.json.bz2").write_bytes(bz2.compress(data))
    assert rows_of(read_labels(tmp_path / "labels.json.bz2")) == ROWS


# ── whole files ──────────────────────────────────────────────────────────────────────────


def test_feather_is_read(tmp_path):
    feather.write_feather(FRAME, str(tmp_path / "labels.feather"))
    assert rows_of(read_labels(tmp_path / "labels.feather")) == ROWS
    (tmp_path / "labels.feather").write_bytes(b"no feather")
    with pytest.raises(LabelError, match=r"labels.feather: the file is not readable as Feather"):
        read_labels(tmp_path / "labels.feather")


def test_excel_is_read(tmp_path):
    pytest.importorskip("openpyxl")
    path = tmp_path / "labels.xlsx"
    FRAME.assign(task=[7, 7, "q2", "q2"], note=None).to_excel(path, index=False)
    table = read_labels(path)
    assert table.item_ids == [7, 7, "q2", "q2"]
    assert table.where(0) == f"{path} row 2"
    FRAME.assign(label=["cat", None, "dog", "cat"]).to_excel(path, index=False)
    with pytest.raises(LabelError, match=r"labels.xlsx row 3: the label is missing"):
        read_labels(path)
    assert len(read_labels(path, lq.LabelSpace(on_bad="skip")).labels) == 3
    path.write_bytes(b"no workbook")
    with pytest.raises(LabelError, match=r"labels.xlsx: the file is not readable as Excel"):
        read_labels(path)


def test_a_row_of_zeros_in_excel_is_a_label(tmp_path):
    pytest.importorskip("openpyxl")
    path = tmp_path / "labels.xlsx"
    pd.DataFrame({"task": [0, 0, 1], "worker": [0, 1, 0], "label": [0, 0, 1]}).to_excel(
        path, index=False
    )
    assert list(read_labels(path).labels) == [0, 0, 1]


def test_without_openpyxl_excel_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    (tmp_path / "labels.xlsx").write_bytes(b"")
    with pytest.raises(LabelError, match=r"pip install labelquorum\[excel\]"):
        read_labels(tmp_path / "labels.xlsx")


@pytest.mark.parametrize(
    "document",
    [
        FRAME.to_dict("records"),
        FRAME.to_dict("list"),
        FRAME.to_dict(),
        {"q1": {"ann": "cat", "bob": "cat"}, "q2": {"ann": "dog", "bob": "cat"}},
    ],
    ids=["records", "columns", "as pandas writes", "by task"],
)
def test_a_json_document_is_read(document, tmp_path):
    path = tmp_path / "labels.json"
    path.write_text(json.dumps(document))
    assert rows_of(read_labels(path)) == ROWS


@pytest.mark.parametrize("text", ["3", '"q1"', "{", "{}", "[1]"])
def test_a_json_document_of_another_kind_is_refused(text, tmp_path):
    path = tmp_path / "labels.json"
    path.write_text(text)
    with pytest.raises(LabelError, match=r"labels.json"):
        read_labels(path)


def test_an_export_of_label_studio_is_read(tmp_path):
    export = json.loads(EXPORT.read_text())["body"]
    (tmp_path / "export.json").write_text(json.dumps(export))
    table = read_labels(tmp_path / "export.json")
    heard = read_label_studio(export)
    events = [version.event for version in heard.versions if version.event]
    assert rows_of(table) == [(event.item_id, event.worker_id, event.label) for event in events]
    assert table.timestamps == [event.timestamp for event in events]
    assert rows_of(table) == [(1, 1, "wren")] and table.skipped == heard.skipped != {}


# ── in memory ────────────────────────────────────────────────────────────────────────────


class Dataset:
    """As far as we use it, a `datasets.Dataset`."""

    column_names = ("task", "worker", "label")

    def __iter__(self):
        return iter(FRAME.to_dict("records"))

    def to_pandas(self):
        return FRAME


IN_MEMORY = {
    "tuples": list(ROWS),
    "a generator of tuples": lambda: iter(ROWS),
    "dicts": FRAME.to_dict("records"),
    "a generator of dicts": lambda: iter(FRAME.to_dict("records")),
    "a dict of lists": FRAME.to_dict("list"),
    "polars, lazy": pl.LazyFrame(FRAME.to_dict("list")),
    "datasets": Dataset(),
    "a Series": FRAME.set_index(["task", "worker"])["label"],
    "a Series, turned": FRAME.set_index(["worker", "task"])["label"],
    "a Series without names": FRAME.set_index(["task", "worker"])["label"].rename_axis([None] * 2),
    "a Series of other names": FRAME.set_index(["task", "worker"])["label"].rename_axis(["a", "b"]),
}


@pytest.mark.parametrize("source", IN_MEMORY.values(), ids=IN_MEMORY.keys())
def test_what_people_have_in_memory_is_read(source):
    given = source() if callable(source) else source
    assert rows_of(read_labels(given)) == ROWS
    given = source() if callable(source) else source
    assert lq.MajorityVote().fit_predict(given).index.tolist() == ["q1", "q2"]


def test_tuples_may_have_a_weight_and_must_be_alike():
    table = read_labels([(*row, 0.5) for row in ROWS])
    assert table.weights == [0.5] * 4
    for rows, at in (([*ROWS, ("q3", "ann")], 4), ([("q3", "ann")], 0), ([ROWS[0], "q1"], 1)):
        with pytest.raises(LabelError, match=rf"list row {at}: every row is a tuple of task"):
            read_labels(rows)


def test_a_series_that_has_no_workers_says_what_to_do():
    with pytest.raises(LabelError, match=r"whose index has one level. Index it by task and worker"):
        read_labels(FRAME["label"])


def test_masked_cells_hold_no_label():
    matrix = np.ma.MaskedArray([[5, 0], [1, 1]], mask=[[True, False], [False, False]])
    assert rows_of(read_labels(matrix)) == [(0, 1, 0), (1, 0, 1), (1, 1, 1)]
    text = np.ma.MaskedArray([["?", "no"], ["yes", "yes"]], mask=matrix.mask)
    assert rows_of(read_labels(text)) == [(0, 1, "no"), (1, 0, "yes"), (1, 1, "yes")]


@pytest.mark.parametrize("kind", ["csr_matrix", "coo_array", "csc_array", "lil_matrix"])
def test_what_a_sparse_matrix_stores_is_a_label(kind):
    dense = np.array([[0, 2, 1], [1, 0, 0]])
    matrix = getattr(scipy.sparse, kind)(dense)
    assert sorted(rows_of(read_labels(matrix))) == [(0, 1, 2), (0, 2, 1), (1, 0, 1)]
    stored = scipy.sparse.coo_array(([0, 2], ([0, 0], [0, 1])), shape=(1, 2))
    assert rows_of(read_labels(stored)) == [(0, 0, 0), (0, 1, 2)]


def test_optional_packages_are_imported_only_when_needed():
    code = "import sys, labelquorum.ingest.readers; print([m for m in {!r} if m in sys.modules])"
    names = ["openpyxl", "polars", "scipy", "datasets", "pandas", "pyarrow"]
    done = subprocess.run(
        [sys.executable, "-c", code.format(names)], capture_output=True, text=True
    )
    assert done.stdout == "[]\n", done.stderr
