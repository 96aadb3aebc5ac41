"""Data sets from a folder: a small one made here, and the real ones where they are at hand."""

import csv
import gzip
import os
from pathlib import Path

import pytest

from labelquorum import MajorityVote
from labelquorum.errors import LabelError
from labelquorum.evaluation.datasets.load import (
    DATA_VARIABLE,
    TOY,
    check_dataset,
    count_dataset,
    data_folder,
    data_folders,
    known_datasets,
    list_datasets,
    read_dataset,
)


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
    write_csv(tmp_path / "wide" / "labels.wide.csv", ("task", "ann", "bob"), ("01", "cat", ""))
    write_csv(tmp_path / "wide" / "truth.csv.gz", *truth)
    write_csv(tmp_path / ".hidden" / "labels.csv", *labels)
    (tmp_path / "README.md").write_text("not a data set")
    (tmp_path / "empty").mkdir()
    return tmp_path


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


def test_a_wide_table_and_compressed_truth_are_read(folder):
    wide = read_dataset("wide", folder)
    assert (list(wide.table.worker_ids), list(wide.table.labels)) == (["ann"], ["cat"])
    assert wide.truth == {"01": "cat"}


def test_only_folders_with_data_are_listed(folder):
    assert list_datasets(folder) == ["pets", "pressed", "truth_only", "wide"]


def test_the_variable_names_the_folder_and_an_argument_goes_before_it(folder, monkeypatch):
    monkeypatch.setenv(DATA_VARIABLE, str(folder))
    assert data_folder() == folder
    assert read_dataset("pets").folder == folder / "pets"
    assert data_folder(folder / "pets") == folder / "pets"


def test_several_folders_are_searched_in_order(folder, tmp_path, monkeypatch):
    other = tmp_path / "other"
    for name in ("pets", "more"):
        (other / name).mkdir(parents=True)
        (other / name / "labels.csv").write_text("task,worker,label\n1,ann,cat\n")
    monkeypatch.setenv(DATA_VARIABLE, os.pathsep.join([str(folder), str(other), ""]))
    assert data_folders() == [folder, other] and data_folder() == folder
    assert list_datasets() == ["more", "pets", "pressed", "truth_only", "wide"]
    assert read_dataset("pets").folder == folder / "pets"
    assert read_dataset("more").folder == other / "more"
    with pytest.raises(LabelError, match=f"no data set 'mor' in '{folder}' or '{other}'. The near"):
        read_dataset("mor")
    with pytest.raises(
        LabelError, match=f"no data set 'rte' in '{folder}' or '{other}'. Get it by"
    ):
        read_dataset("rte")
    monkeypatch.setenv(DATA_VARIABLE, os.pathsep.join([str(folder), str(tmp_path / "no")]))
    with pytest.raises(LabelError, match=r"names '.*:.*', of which '.*no' is no folder"):
        list_datasets()


def test_a_file_of_workers_is_read_with_the_labels(folder):
    (folder / "pets" / "workers.csv").write_text("worker,kind,model\nann,llm,m\n")
    workers = read_dataset("pets", folder).workers
    assert (workers.worker_ids, workers.worker_kinds) == (["ann"], ["llm"])
    assert read_dataset("wide", folder).workers is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["llmbar_natural", "llmbar_one_prompt", "care_civilcomments", "paclabels_stance"]
)
def test_juries_have_scores_and_attributes(real_sets, name):
    if name not in real_sets:
        pytest.skip(f"{name} is in none of the folders")
    jury = read_dataset(name)
    assert (jury.table.scores is None) == (name == "llmbar_one_prompt")
    workers = MajorityVote().fit(jury.table, workers=jury.workers).report().workers
    assert set(workers["worker_kind"]) == {"llm"} and workers["model"].notna().all()
    assert ("order" in workers) == name.startswith("llmbar")


@pytest.mark.parametrize("value", [None, ""])
def test_without_the_variable_the_error_says_what_to_set(value, monkeypatch):
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(DATA_VARIABLE, value)
    with pytest.raises(LabelError, match=f"set {DATA_VARIABLE} to it"):
        list_datasets()


def test_a_folder_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(LabelError, match=f"{DATA_VARIABLE} names '.*nowhere'"):
        list_datasets()
    with pytest.raises(LabelError, match=r"we were given '.*elsewhere'"):
        read_dataset("pets", tmp_path / "elsewhere")


def test_an_unknown_name_names_its_nearest_neighbours(folder, monkeypatch):
    with pytest.raises(LabelError, match=r"no data set 'pest' in .* nearest are 'pets'"):
        read_dataset("pest", folder)
    with pytest.raises(LabelError, match=r"no data set 'rtee' in .* nearest are 'rte'"):
        read_dataset("rtee", folder / "empty")
    with pytest.raises(LabelError, match=r"no data set 'xyzzy' in '.*'\. `labelquorum datasets`"):
        read_dataset("xyzzy", folder)
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    with pytest.raises(LabelError, match=r"no data set 'toi'. The nearest are .*'toy'"):
        read_dataset("toi")


def test_a_known_set_that_is_absent_can_be_had_somehow(folder, monkeypatch):
    with pytest.raises(LabelError, match=r"no data set 'rte' in .* --download rte`"):
        read_dataset("rte", folder)
    with pytest.raises(LabelError, match=r"Put labels.csv and truth.csv into .*cifar10n yourself"):
        read_dataset("cifar10n", folder)
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    with pytest.raises(LabelError, match=f"set {DATA_VARIABLE} to it"):
        read_dataset("rte")


def test_the_toy_set_is_there_without_a_folder(monkeypatch, folder):
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    toy = read_dataset("toy")
    assert toy.folder == TOY
    assert check_dataset(toy) == []
    assert check_dataset(read_dataset("toy", folder)) == []


def test_a_set_of_yours_goes_before_the_toy(folder):
    (folder / "pets").rename(folder / "toy")
    assert len(read_dataset("toy", folder).table.labels) == 3


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


BROKEN_TRUTH = {
    b"task,label\n01,cat\n02,\xff\n": r"line 3: text must be UTF-8",
    b'task,label\n01,cat\n"02,dog\n03,dog\n': r"line 3: the row is not well-formed CSV",
    b"task,label\n01,cat\n\n02\n": r"line 4: a task and its label must both be there",
    b"": r"line 1: a truth file needs",
}


@pytest.mark.parametrize("name", ["truth.csv", "truth.csv.gz"])
@pytest.mark.parametrize(("content", "sentence"), BROKEN_TRUTH.items(), ids=BROKEN_TRUTH.values())
def test_truth_that_is_no_csv_names_file_and_line(tmp_path, name, content, sentence):
    (tmp_path / "pets").mkdir()
    pressed = gzip.compress(content) if name.endswith(".gz") else content
    (tmp_path / "pets" / name).write_bytes(pressed)
    with pytest.raises(LabelError, match=rf"{name} {sentence}"):
        read_dataset("pets", tmp_path)


@pytest.mark.parametrize("name", ["labels.csv", "labels.csv.gz"])
@pytest.mark.parametrize(
    ("row", "rule"), [(("1", "ann", ""), "missing"), (("1", "ann"), "the header has 3 cells")]
)
def test_a_broken_labels_file_names_file_and_line(tmp_path, name, row, rule):
    rows = ("task", "worker", "label"), ("1", "bob", "cat")
    write_csv(tmp_path / "pets" / name, *rows, row)
    with pytest.raises(LabelError, match=rf"{name} line 3: .*{rule}"):
        read_dataset("pets", tmp_path)


@pytest.mark.parametrize("name", ["labels.csv.gz", "truth.csv.gz"])
@pytest.mark.parametrize("is_cut", [True, False])
def test_a_file_that_cannot_be_unpacked_is_named(folder, name, is_cut):
    content = b"task,worker,label\n1,ann,cat\n"
    (folder / "empty" / name).write_bytes(gzip.compress(content)[:-9] if is_cut else content)
    with pytest.raises(LabelError, match=rf"{name}: cannot be read to its end"):
        read_dataset("empty", folder)


def test_a_set_that_differs_from_the_registry_is_told(folder):
    for name in ("labels.csv", "truth.csv"):
        (folder / "empty" / name).write_bytes((TOY / name).read_bytes())
    (folder / "empty").rename(folder / "toy")
    assert check_dataset(read_dataset("toy", folder)) == []

    content = (TOY / "labels.csv").read_bytes()
    (folder / "toy" / "labels.csv").unlink()
    (folder / "toy" / "labels.csv.gz").write_bytes(gzip.compress(content))
    assert check_dataset(read_dataset("toy", folder)) == []  # packed or not

    (folder / "toy" / "labels.csv.gz").write_bytes(gzip.compress(content + b"picture 5,ann,cat\n"))
    count, labels, checksum = check_dataset(read_dataset("toy", folder))
    assert count.endswith("toy: 4 items were expected. Got 5.")
    assert labels.endswith("12 labels were expected. Got 13.")
    assert "labels.csv.gz: its SHA-256 must be" in checksum
    assert check_dataset(read_dataset("pets", folder)) == []  # nobody knows it


@pytest.mark.slow
@pytest.mark.parametrize("name", [info.name for info in known_datasets().values() if info.files])
def test_real_data_sets_are_those_the_registry_knows(real_sets, name):
    if name not in real_sets:
        pytest.skip(f"{name} is in none of the folders")
    dataset = read_dataset(name)
    assert check_dataset(dataset) == []
    info = known_datasets()[name]
    assert count_dataset(dataset) == info.counts
    timestamps = dataset.table.timestamps
    assert (timestamps is not None) == (info.order == "arrival")
    assert timestamps is None or list(timestamps) == sorted(timestamps)
    assert not dataset.table.labels or dataset.truth.keys() <= set(dataset.table.item_ids)
