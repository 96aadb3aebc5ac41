"""`labelquorum simulate`: what it writes can be read by everything else, and is what it says."""

import csv
import io
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from labelquorum.cli import app
from labelquorum.evaluation import (
    balanced_truth,
    bimodal_crowd,
    class_conditional_crowd,
    label_table,
    oracle_error,
    read_dataset,
    with_ring,
    with_sleepers,
    with_spammers,
)
from labelquorum.ingest.readers import read_labels

KINDS = ["one-coin", "class-conditional", "ordinal", "bimodal", "judges"]
SMALL = ("--items", "60")
FILES = ("-o", "labels.csv", "--truth", "truth.csv", "--roles", "roles.csv")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str, stdin: str | None = None, code: int = 0) -> Result:
    result = CliRunner().invoke(app, arguments, input=stdin)
    assert result.exit_code == code, result.output
    return result


def unboxed(text: str) -> str:
    return " ".join(re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯─]", " ", text).split())


def read_rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_writes_labels_truth_and_roles_that_belong_together(kind):
    said = run("simulate", "--kind", kind, *SMALL, "--bots", "0.2", *FILES)
    assert said.stdout == ""
    labels, truth, roles = (
        read_rows(Path(f"{name}.csv").read_text()) for name in ("labels", "truth", "roles")
    )
    assert [row["task"] for row in truth] == sorted({row["task"] for row in labels})
    assert {row["worker"] for row in labels} <= {row["worker"] for row in roles}
    assert len(truth) == 60
    assert {row["label"] for row in labels} <= {str(c) for c in range(10)}
    assert sum(int(row["labels"]) for row in roles) == len(labels)
    bots = [row["worker"] for row in roles if row["role"] == "bot"]
    assert len(bots) == round(0.2 * len(roles))
    for bot in bots:
        assert len({row["label"] for row in labels if row["worker"] == bot}) == 1
    assert "Oracle error: " in said.stderr and "Wrote roles.csv." in said.stderr


def test_labels_are_those_of_the_library_and_the_oracle_is_told():
    said = run("simulate", "--items", "300", "--workers", "30", "--labels-per-item", "4",
               "--skill", "0.6", "0.8", "--spammers", "0.2", "--ring", "0.1",
               "--sleepers", "0.1", "--turn-at", "0.25", "--seed", "7")  # fmt: skip
    crowd = class_conditional_crowd(300, 30, 3, 4, skill=(0.6, 0.8), seed=7)
    crowd = with_spammers(crowd, 0.2, seed=7)
    crowd = with_sleepers(with_ring(crowd, 0.1, seed=7), 0.1, at=0.25, seed=7)
    table = label_table(crowd)
    rows = read_rows(said.stdout)
    assert [row["task"] for row in rows] == table.item_ids
    assert [row["worker"] for row in rows] == table.worker_ids
    assert [int(row["label"]) for row in rows] == table.labels
    wrong = np.mean(crowd.label != crowd.truth[crowd.item])
    assert said.stderr == (
        "Tasks: 300. Workers: honest 18, spammer 6, ring 3, sleeper 3. "
        f"Labels: 1,200, {wrong:.1%} of them wrong. Oracle error: {oracle_error(crowd):.1%}.\n"
    )


def test_the_papers_crowd_is_the_papers_crowd():
    said = run("simulate", "--kind", "bimodal", *SMALL, "--noise-rate", "0.4", "--seed", "3")
    crowd = bimodal_crowd(balanced_truth(60, seed=3), noise_rate=0.4, seed=3)
    assert [int(row["label"]) for row in read_rows(said.stdout)] == crowd.label.tolist()


def test_labels_can_be_missing_as_in_the_published_file():
    said = run("simulate", "--kind", "bimodal", *SMALL, "--missing-pattern", "halves")
    crowd = bimodal_crowd(balanced_truth(60), missing_pattern="halves")
    rows = read_rows(said.stdout)
    assert [int(row["label"]) for row in rows] == crowd.label.tolist()
    assert len(rows) > 500 and {"w1", "w3"} <= {row["worker"] for row in rows[:10]}


def test_same_seed_writes_the_same_bytes():
    first, again = (run("simulate", *SMALL, "--arrival", "trickle").stdout for _ in range(2))
    assert first == again
    assert first != run("simulate", *SMALL, "--arrival", "trickle", "--seed", "1").stdout


def test_suffix_chooses_json_lines_with_numbers_as_labels():
    run("simulate", *SMALL, "-o", "labels.jsonl", "--roles", "roles.jsonl",
        "--sleepers", "0.05", "--turn-at", "1")  # fmt: skip
    first = json.loads(Path("labels.jsonl").read_text().splitlines()[0])
    assert list(first) == ["task", "worker", "label"] and type(first["label"]) is int
    assert read_labels("labels.jsonl").labels[0] == first["label"]
    roles = [json.loads(line) for line in Path("roles.jsonl").read_text().splitlines()]
    assert [row["since"] for row in roles if row["role"] == "sleeper"] == [None]


@pytest.mark.parametrize("arrival", ["items", "trickle", "bursts"])
def test_arrivals_put_rows_in_order_of_their_timestamps(arrival):
    plain = read_rows(run("simulate", *SMALL).stdout)
    rows = read_rows(run("simulate", *SMALL, "--arrival", arrival).stdout)
    times = [float(row.pop("timestamp")) for row in rows]
    assert times == sorted(times)
    by_name = [sorted(map(tuple, map(dict.items, part))) for part in (plain, rows)]
    assert by_name[0] == by_name[1]
    assert (plain == rows) == (arrival == "items")


def test_folder_of_labels_and_truth_is_a_data_set(folder):
    Path("sets/mine").mkdir(parents=True)
    run("simulate", *SMALL, "-o", "sets/mine/labels.csv", "--truth", "sets/mine/truth.csv")
    dataset = read_dataset("mine", folder / "sets")
    assert set(dataset.table.item_ids) == set(dataset.truth)
    assert set(dataset.table.labels) <= set(dataset.truth.values())


@pytest.mark.parametrize("arrival", [(), ("--arrival", "bursts")])
def test_other_commands_take_what_is_written(arrival):
    run("simulate", "--items", "200", "--skill", "0.8", "0.9", *arrival, *FILES)
    truth = {row["task"]: row["label"] for row in read_rows(Path("truth.csv").read_text())}
    vote = ("--method", "majority_vote")
    answers = read_rows(run("aggregate", "labels.csv", *vote).stdout)
    assert np.mean([truth[row["task"]] == row["label"] for row in answers]) > 0.9
    streamed = run("stream", "-q", *vote, "--format-out", "csv",
                   stdin=Path("labels.csv").read_text()).stdout  # fmt: skip
    assert {row["task"] for row in read_rows(streamed)} == truth.keys()
    assert run("doctor", "labels.csv").stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--labels-per-item", "21"], "at most `n_workers`, 20"),
        (["--skill", "0.9", "0.5"], "the lower first"),
        (["--kind", "bimodal", "--width", "1", "2"], "'--width': The crowd bimodal has no such"),
        (["--missing-pattern", "halves"], "'--missing-pattern': The crowd class-conditional"),
        (["--kind", "bimodal", "--missing-pattern", "thirds"], "halves"),
        (["--kind", "bimodal", "--labels-per-item", "3"], "'--labels-per-item': The crowd bimodal"),
        (["--correlation", "0.3"], "'--correlation': The crowd class-conditional has no such"),
        (["--turn-at", "0.3"], "'--turn-at': There are no sleepers. Leave the option out"),
        (["--drift", "0.3"], "give --drifters a share"),
        (["--spammers", "0.8", "--bots", "0.4"], "8 of 20 workers, and 4 are still honest"),
        (["--spammers", "1.5"], "--spammers"),
        (["--items", "0"], "--items"),
        (["--seed", "-1"], "--seed"),
        (["--kind", "two-coin"], "one-coin"),
        (["-o", "labels.xlsx"], "must be one of .csv, .jsonl"),
        (["--truth", "truth.txt"], "'--truth': The suffix says how to write"),
        (["--roles", "nowhere/roles.csv"], "There is no folder 'nowhere'"),
        (["-o", "labels.csv", "--roles", "./labels.csv"], "is the file of --output already"),
    ],
)
def test_wrong_usage_is_explained_and_nothing_is_written(arguments, sentence):
    Path("labels.csv").write_text("yesterday")
    said = run("simulate", *arguments, code=2)
    assert sentence in unboxed(said.stderr)
    assert said.stdout == ""
    assert os.listdir() == ["labels.csv"] and Path("labels.csv").read_text() == "yesterday"
