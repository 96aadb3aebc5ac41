"""Data sets from a folder: a small one made here, and the real ones where they are at hand."""

import csv
import gzip
import os
from pathlib import Path

import pytest

from labelquorum.errors import LabelError
from labelquorum.trial.datasets import DATA_VARIABLE, data_folder, list_datasets, read_dataset

# name → workers, items, labels, classes, items with truth: what one should see in the real ones
REAL_COUNTS = {
    "rte": (164, 800, 8000, 2, 800),
    "web": (177, 2665, 15567, 5, 2653),
    "adult2_all": (825, 11040, 89799, 4, 333),
    "pendigits_truth": (0, 0, 0, 0, 10992),
}


def write_csv(path: Path, *rows: tuple[str, ...]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") if path.suffix == ".gz" else path.open("w") as file:
        csv.writer(file).writerows(rows)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    labels = ("task", "worker", "label"), ("01", "ann", "cat"), ("01", "bob", "dog, wet")
    truth = ("task", "label"), ("01", "cat")
    write_csv(tmp_path / "pets" / "labels.csv", *labels, ("2", "ann", "dog, wet"))
    write_csv(tmp_path / "pets" / "truth.csv", *truth)
    write_csv(tmp_path / "pressed" / "labels.csv.gz", *labels)
    write_csv(tmp_path / "truth_only" / "truth.csv", *truth)
    (tmp_path / "README.md").write_text("not a data set")
    (tmp_path / "empty").mkdir()
    return tmp_path


@pytest.fixture(scope="module")
def real_folder() -> Path:
    if not os.environ.get(DATA_VARIABLE):
        pytest.skip(f"real data sets are read only where {DATA_VARIABLE} names their folder")
    if not Path(os.environ[DATA_VARIABLE]).is_dir() and os.environ.get("LABELQUORUM_CI") != "1":
        pytest.skip(f"{DATA_VARIABLE} names {os.environ[DATA_VARIABLE]!r}, which is no folder")
    return data_folder()  # in CI a named folder that is missing is a failure


def test_labels_and_truth_are_read_with_their_ids_as_written(folder):
    pets = read_dataset("pets", folder)
    assert list(pets.table.item_ids) == ["01", "01", "2"]
    assert list(pets.table.worker_ids) == ["ann", "bob", "ann"]
    assert list(pets.table.labels) == ["cat", "dog, wet", "dog, wet"]
    assert pets.truth == {"01": "cat"}
    assert (pets.name, pets.folder) == ("pets", folder / "pets")


def test_compressed_labels_are_read_and_truth_may_be_absent(folder):
    pressed = read_dataset("pressed", folder)
    assert list(pressed.table.labels) == ["cat", "dog, wet"]
    assert pressed.truth == {}


def test_truth_without_labels_is_a_data_set_with_an_empty_table(folder):
    truth_only = read_dataset("truth_only", folder)
    assert list(truth_only.table.labels) == []
    assert truth_only.truth == {"01": "cat"}


def test_only_folders_with_data_are_listed(folder):
    assert list_datasets(folder) == ["pets", "pressed", "truth_only"]


def test_the_variable_names_the_folder_and_an_argument_goes_before_it(folder, monkeypatch):
    monkeypatch.setenv(DATA_VARIABLE, str(folder))
    assert data_folder() == folder
    assert read_dataset("pets").folder == folder / "pets"
    assert data_folder(folder / "pets") == folder / "pets"


@pytest.mark.parametrize("value", [None, ""])
def test_without_the_variable_the_error_says_what_to_set(value, monkeypatch):
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(DATA_VARIABLE, value)
    with pytest.raises(LabelError, match=f"Set {DATA_VARIABLE} to a folder"):
        list_datasets()


def test_a_folder_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(LabelError, match=f"{DATA_VARIABLE} names '.*nowhere'"):
        list_datasets()
    with pytest.raises(LabelError, match=r"we were given '.*elsewhere'"):
        read_dataset("pets", tmp_path / "elsewhere")


def test_an_unknown_name_names_its_nearest_neighbours(folder):
    with pytest.raises(LabelError, match=r"no data set 'pest' in .* nearest are 'pets'"):
        read_dataset("pest", folder)
    with pytest.raises(LabelError, match="It holds none"):
        read_dataset("pets", folder / "empty")


@pytest.mark.parametrize("name", ["", ".", "..", "pets/../pets"])
def test_a_name_is_never_a_path(folder, name):
    with pytest.raises(LabelError, match="no data set"):
        read_dataset(name, folder / "..")


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ((("task", "truth"), ("01", "cat")), "line 1: .* columns task and label. Got"),
        ((("task", "label"), ("01", "cat"), ("02", "")), "line 3: .* both be there"),
        ((("task", "label"), ("01", "cat"), ("02",)), "line 3: .* both be there"),
        ((("task", "label"), ("01", "dog", " wet")), "line 2: .* more cells"),
        ((("task", "label"), ("01", "cat"), ("01", "dog")), "line 3: task '01' .* second time"),
    ],
)
def test_a_broken_truth_file_names_the_line(folder, rows, sentence):
    write_csv(folder / "pets" / "truth.csv", *rows)
    with pytest.raises(LabelError, match=sentence):
        read_dataset("pets", folder)


def test_a_broken_labels_file_names_the_line(folder):
    write_csv(folder / "pets" / "labels.csv", ("task", "worker", "label"), ("1", "ann", ""))
    with pytest.raises(LabelError, match=r"labels.csv line 2"):
        read_dataset("pets", folder)


@pytest.mark.parametrize("name", REAL_COUNTS)
def test_real_data_sets_have_the_counts_they_should(real_folder, name):
    if name not in list_datasets(real_folder):
        pytest.skip(f"{name} is not in {real_folder}")
    _, table, truth, _ = read_dataset(name, real_folder)
    columns = table.worker_ids, table.item_ids, table.labels
    workers, items, classes = (len(set(column)) for column in columns)
    assert (workers, items, len(table.labels), classes, len(truth)) == REAL_COUNTS[name]
    assert not table.labels or truth.keys() <= set(table.item_ids)


def test_every_real_data_set_can_be_read_and_its_truth_is_about_its_items(real_folder):
    for name in list_datasets(real_folder):
        _, table, truth, _ = read_dataset(name, real_folder)
        if table.labels:
            assert truth.keys() & set(table.item_ids), name
