"""`labelquorum evaluate`, as a person and as a program would call it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from labelquorum.cli import app
from labelquorum.evaluation.simulate.arrivals import label_table
from labelquorum.evaluation.simulate.crowds import class_conditional_crowd


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two data sets of two and three classes."""
    for name, n_classes in (("two", 2), ("three", 3)):
        crowd = class_conditional_crowd(60, 9, n_classes, 4, skill=(0.6, 0.95), seed=3)
        table = label_table(crowd)
        made = tmp_path / "sets" / name
        made.mkdir(parents=True)
        rows = zip(table.item_ids, table.worker_ids, table.labels, strict=True)
        lines = [",".join(map(str, row)) for row in rows]
        (made / "labels.csv").write_text("\n".join(["task,worker,label", *lines]))
        items = dict.fromkeys(table.item_ids)
        truths = [f"{item},{true}" for item, true in zip(items, crowd.truth, strict=True)]
        (made / "truth.csv").write_text("\n".join(["task,label", *truths]))
    return tmp_path / "sets"


def run(*arguments):
    return CliRunner().invoke(app, ["evaluate", *map(str, arguments)])


def test_json_is_one_object_with_a_row_for_each_set_and_method(folder):
    methods = "majority_vote,dawid_skene,sbic"
    done = run(folder, "--methods", methods, "--orders", 2, "--jobs", 1, "--json")
    assert done.exit_code == 0, done.stderr
    rows = json.loads(done.stdout)["results"]
    assert [(row["dataset"], row["method"]) for row in rows] == [
        (name, method) for name in ("three", "two") for method in methods.split(",")
    ]
    by_name = {(row["dataset"], row["method"]): row for row in rows}
    assert by_name["two", "majority_vote"]["orders"] == 2
    assert 0 <= by_name["two", "sbic"]["emitted_error"] < 50
    assert "two classes" in by_name["three", "sbic"]["reason"]


def test_a_table_for_people_names_the_sets_that_could_not_be_done(folder):
    done = run(folder, "--methods", "majority_vote,sbic", "--orders", 1, "--jobs", 1)
    assert done.exit_code == 0
    assert "emitted %" in done.stdout and "majority_vote" in done.stdout
    assert "three, sbic: sbic tells two classes apart" in done.stderr


@pytest.mark.slow
def test_what_is_written_is_not_run_again(folder, tmp_path):
    output = tmp_path / "results"
    command = (folder / "two", "--methods", "majority_vote", "--orders", 1, "--jobs", 1)
    assert run(*command, "-o", output).exit_code == 0
    assert "`majority_vote`" in (output / "table.md").read_text()
    assert (output / "two.png").stat().st_size > 1000
    file = output / "two.json"
    stored = json.loads(file.read_text())
    stored["results"][0]["emitted_error"] = 12.5  # a mark that a new run would wipe out
    file.write_text(json.dumps(stored))
    done = run(*command, "-o", output, "--json")
    assert json.loads(done.stdout)["results"][0]["emitted_error"] == 12.5


def test_other_labels_under_the_same_name_are_run_again(folder, tmp_path):
    command = ("--methods", "majority_vote", "--orders", 1, "--jobs", 1, "--json", "-o", tmp_path)
    first = json.loads(run(folder / "two", *command).stdout)["results"][0]
    truth = folder / "two" / "truth.csv"
    truth.write_text(truth.read_text().replace(",1", ",x").replace(",0", ",1").replace(",x", ",0"))
    second = json.loads(run(folder / "two", *command).stdout)["results"][0]
    assert second["emitted_error"] == pytest.approx(100 - first["emitted_error"], abs=0.01)


def test_two_folders_of_one_name_are_refused(folder, tmp_path):
    other = tmp_path / "elsewhere" / "two"
    other.mkdir(parents=True)
    for file in (folder / "two").iterdir():
        (other / file.name).write_text(file.read_text())
    done = run(folder / "two", other, "--methods", "majority_vote")
    assert done.exit_code == 1 and "two is there twice" in done.stderr


def test_an_unknown_method_names_its_neighbours(folder):
    done = run(folder, "--methods", "dawid_sken")
    assert done.exit_code == 1
    assert "nearest names are dawid_skene" in done.stderr


def test_an_unknown_set_names_its_neighbours(folder):
    done = run("tree", "--data", folder)
    assert done.exit_code == 1
    assert "'three'" in done.stderr


def test_a_broken_file_names_its_line(folder):
    with (folder / "two" / "labels.csv").open("a") as file:
        file.write("\nt1,w1,1,extra\n")
    done = run(folder, "--methods", "majority_vote")
    assert done.exit_code == 1
    assert "labels.csv line 242" in done.stderr


def test_a_folder_without_data_sets_is_no_folder_of_data_sets(tmp_path):
    (tmp_path / "empty").mkdir()
    done = run(tmp_path / "empty")
    assert done.exit_code == 1
    assert "no data set is in this folder" in done.stderr


def test_sets_with_too_little_truth_are_left_out_of_a_folder(folder):
    (folder / "two" / "truth.csv").write_text("task,label\nt00,1\n")
    command = ("--methods", "majority_vote", "--orders", 1, "--jobs", 1, "--json")
    done = run(folder, "--min-truth", 10, *command)
    assert [row["dataset"] for row in json.loads(done.stdout)["results"]] == ["three"]
    done = run(folder, "--min-truth", 100, *command)
    assert done.exit_code == 1 and "truth on 100 items" in done.stderr


def test_ctrl_c_keeps_the_rows_that_are_finished(folder, monkeypatch):
    from labelquorum.evaluation import benchmark

    def stopped(sets, names, *rest, **named):
        yield benchmark.evaluate(benchmark._read(sets[0]), names[0]), 1, 2
        raise KeyboardInterrupt

    monkeypatch.setattr(benchmark, "evaluate_all", stopped)
    done = run(folder / "two", "--methods", "majority_vote,dawid_skene", "--orders", 1, "--json")
    assert done.exit_code == 130
    assert [row["method"] for row in json.loads(done.stdout)["results"]] == ["majority_vote"]
    assert "Stopped after 1 results. They are shown" in done.stderr


def test_a_short_list_is_run_unless_methods_are_named_and_a_pipe_shows_progress(
    folder, monkeypatch
):
    from labelquorum.evaluation import benchmark

    asked = []

    def noted(sets, names, *rest, **named):
        asked.append(list(names))
        row = {"dataset": "two", "method": names[0], "kind": "online", "reason": "Not run."}
        yield row, 1, len(names)

    monkeypatch.setattr(benchmark, "evaluate_all", noted)
    assert "1 of 5: two: bila." in run(folder / "two").stderr
    run(folder / "two", "--methods", "all")
    assert asked == [
        ["bila", "majority_vote", "dawid_skene", "one_coin", "glad"],
        list(benchmark.METHODS),
    ]
