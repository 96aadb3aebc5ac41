"""Age and Heart in every form an owner may have them, and what is said when nobody does."""

import re

import pytest

from labelquorum.errors import LabelError
from labelquorum.evaluation.datasets.converters import AGE_GROUPS, age_group
from labelquorum.evaluation.datasets.load import DATA_VARIABLE, list_datasets, read_dataset

BOUNDS = [(0, 9), (10, 19), (20, 29), (30, 39), (40, 49), (50, 59), (60, 100)]


def write(folder, **texts):
    """Write files into a data set's folder; `labels_csv` is labels.csv."""
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / name.replace("_", ".")).write_text(text)


@pytest.mark.parametrize("bounds", BOUNDS)
def test_the_bounds_of_every_group_belong_to_it(bounds):
    lowest, highest = bounds
    ages = [lowest, (lowest + highest) / 2, highest]
    assert {age_group(age) for age in ages} == {f"{lowest}-{highest}"}
    assert age_group(highest) in AGE_GROUPS


def test_who_has_not_had_the_birthday_is_in_the_younger_group():
    assert (age_group(39.9), age_group(40)) == ("30-39", "40-49")


@pytest.mark.parametrize("age", [-1, -0.1, 100.5, 101, float("inf"), float("nan")])
def test_an_age_nobody_has_is_refused(age):
    with pytest.raises(LabelError, match="from 0 to 100"):
        age_group(age)


def test_ages_become_groups_in_a_long_table(tmp_path):
    write(
        tmp_path / "age",
        labels_csv="task,worker,label\nf1,ann,9\nf1,bob,10\nf2,ann,60.0\n",
        truth_csv="task,label\nf1,9.5\nf2,100\n",
    )
    age = read_dataset("age", tmp_path)
    assert list(age.table.labels) == ["0-9", "10-19", "60-100"]
    assert age.truth == {"f1": "0-9", "f2": "60-100"}


def test_ages_become_groups_in_a_wide_table_with_holes(tmp_path):
    write(tmp_path / "age", labels_wide_csv="face,ann,bob,cleo\nf1,9,,-1\nf2,,35,40\n")
    table = read_dataset("age", tmp_path).table
    assert list(zip(table.item_ids, table.worker_ids, table.labels, strict=True)) == [
        ("f1", "ann", "0-9"),
        ("f2", "bob", "30-39"),
        ("f2", "cleo", "40-49"),
    ]


def test_ages_become_groups_in_a_matrix_without_a_header(tmp_path):
    write(
        tmp_path / "age",
        labels_txt="2.500000000000000000e+01 -1.000000000000000000e+00\n\n-1 7\n",
        truth_txt="2.6e+01\n8\n",
    )
    age = read_dataset("age", tmp_path)
    assert list_datasets(tmp_path) == ["age"]
    assert list(age.table.item_ids) == ["0", "1"]
    assert list(age.table.worker_ids) == ["0", "1"]
    assert list(age.table.labels) == ["20-29", "0-9"]
    assert age.truth == {"0": "20-29", "1": "0-9"}


@pytest.mark.parametrize("six", ["6", "6.0", "60-100", "[60,100]", "[60, 100]", " 60 – 100 "])
def test_groups_by_number_or_by_bounds_are_taken_as_they_are(tmp_path, six):
    write(tmp_path / "age", labels_csv=f'task,worker,label\nf1,ann,0\nf1,bob,"{six}"\n')
    assert list(read_dataset("age", tmp_path).table.labels) == ["0-9", "60-100"]


def test_labels_may_be_ages_while_truth_is_groups(tmp_path):
    write(
        tmp_path / "age",
        labels_csv="task,worker,label\nf1,ann,5\nf1,bob,25\n",
        truth_csv="task,label\nf1,5\nf2,2\n",
    )
    age = read_dataset("age", tmp_path)
    assert list(age.table.labels) == ["0-9", "20-29"]
    assert age.truth == {"f1": "50-59", "f2": "20-29"}


@pytest.mark.parametrize("label", ["101", "-1", "old", "20-30", "inf"])
def test_an_age_out_of_range_names_the_line_of_labels_and_of_truth(tmp_path, label):
    good = "task,worker,label\nf1,ann,30\n"
    write(tmp_path / "age", labels_csv=f"{good}f2,ann,{label}\n")
    with pytest.raises(LabelError, match=r"labels\.csv line 3: .*Got .* Fix the file\."):
        read_dataset("age", tmp_path)
    write(tmp_path / "age", labels_csv=good, truth_csv=f"task,label\nf1,30\nf2,{label}\n")
    with pytest.raises(LabelError, match=r"truth\.csv line 3: "):
        read_dataset("age", tmp_path)


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        ({"labels_txt": "1 0\n1 0 1\n"}, "labels.txt line 2: .* 2 numbers, and so must"),
        ({"labels_txt": "1 0\n\nno 1\n"}, "labels.txt line 3: every cell must be a number"),
        ({"truth_txt": "1\n1 0\n"}, "truth.txt line 2: a line must hold one number"),
        ({"truth_txt": "1\n-1\n"}, "truth.txt line 2: a line must hold one number"),
        ({"labels_txt": "0 1\n1 2\n"}, "labels.txt line 2: there may be two classes"),
        ({"labels_txt": "0 1\n", "truth_txt": "1\n5\n"}, "truth.txt line 2: .* Got '5'"),
    ],
)
def test_a_broken_file_of_heart_names_the_line(tmp_path, texts, sentence):
    write(tmp_path / "heart", **texts)
    with pytest.raises(LabelError, match=sentence):
        read_dataset("heart", tmp_path)


def test_heart_is_read_from_our_files_and_from_a_matrix(tmp_path):
    write(tmp_path / "heart", labels_txt="1 -1\n0 1\n", truth_txt="1\n0\n")
    matrix = read_dataset("heart", tmp_path)
    write(
        tmp_path / "heart",
        labels_csv="task,worker,label\n0,0,1\n1,0,0\n1,1,1\n",
        truth_csv="task,label\n0,1\n1,0\n",
    )
    ours = read_dataset("heart", tmp_path)
    assert list(ours.table.labels) == list(matrix.table.labels) == ["1", "0", "1"]
    assert ours.truth == matrix.truth == {"0": "1", "1": "0"}


def test_a_matrix_without_a_header_is_nobody_else_s_form(tmp_path):
    write(tmp_path / "mine", labels_txt="1 0\n")
    assert list_datasets(tmp_path) == []


@pytest.mark.parametrize("name", ["age", "heart"])
@pytest.mark.parametrize("is_set", [True, False])
def test_what_is_not_public_is_said_to_be_not_available(tmp_path, monkeypatch, name, is_set):
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    place = re.escape(str(tmp_path / name)) if is_set else f"DIR/{name}"
    with pytest.raises(LabelError, match=rf"Data not available: {name} .* own it, .* into {place}"):
        read_dataset(name, tmp_path if is_set else None)
