"""Certificates from the command line: of answers, labels, a model or a stream."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from cli.test_cli import VOTE, run
from cli.test_plot import STORE, TRUTH, place  # noqa: F401

from labelquorum.learn.estimators import BiLA


@pytest.fixture(autouse=True)
def _inside(place, monkeypatch):  # noqa: F811
    monkeypatch.chdir(place)


@pytest.fixture
def gold():
    """A file of 45 of the 60 truths, in an order that is not that of the ids."""
    drawn = np.random.default_rng(8).permutation(sorted(TRUTH))[:45].tolist()
    lines = "".join(f"{task},{TRUTH[task]}\n" for task in drawn)
    Path("gold.csv").write_text(f"task,label\n{lines}")
    return drawn


def test_a_model_is_certified_as_the_library_does(gold):
    model = BiLA.load("crowd.lq")
    found = json.loads(
        run("certify", "crowd.lq", "--audit", "gold.csv", "--error", "0.2", "--json").stdout
    )
    direct = model.certify(0.2, audit={task: TRUTH[task] for task in gold})
    assert found["certified"] == direct.certified and found["todo"] == list(direct.todo)
    assert (found["accepted"], found["gold"], found["tasks"]) == (direct.accepted, 45, 60)
    said = run("certify", "crowd.lq", "--audit", "gold.csv", "--error", "0.2").stdout
    assert said == f"{direct}\n"
    share = json.loads(run("expected-error", "crowd.lq", "--audit", "gold.csv", "--json").stdout)
    assert share["method"] == "prediction-powered" and share["n_gold"] == 45


def test_labels_and_answers_are_taken_as_files_and_the_rest_is_written(gold):
    fitted = json.loads(
        run("certify", "labels.csv", "--audit", "gold.csv", "--error", "0.2", "--json").stdout
    )
    assert fitted["tasks"] == 60
    run("aggregate", "labels.csv", "-o", "answers.csv", *VOTE)
    arguments = ("certify", "answers.csv", "--audit", "gold.csv", "--error", "0.2")
    found = json.loads(run(*arguments, "-o", "todo.csv", "--json").stdout)
    with Path("todo.csv").open() as lines:
        assert [row["task"] for row in csv.DictReader(lines)] == found["todo"]
    assert not set(found["todo"]) & set(gold)
    own = run("expected-error", "answers.csv").stdout
    assert "by the model's own confidence, which no gold checks" in own


def test_without_enough_gold_it_says_how_much_it_takes(gold):
    said = run("certify", "crowd.lq").stdout
    assert "No certificate: 0 gold labels" in said and "of 60 tasks, drawn at random" in said


def test_a_stream_is_certified_by_its_own_gold_or_by_an_audit(gold):
    own = json.loads(run("certify", "animals", *STORE, "--error", "0.2", "--json").stdout)
    assert own["gold"] == 10 and own["tasks"] == 60
    assert "corrected on 10 gold tasks" in run("expected-error", "animals", *STORE).stdout
    learned = list(TRUTH)[:10]
    with Path("gold.csv").open() as lines:
        rest = [line for line in lines if line.partition(",")[0] not in learned]
    Path("rest.csv").write_text("".join(rest))
    arguments = ("animals", *STORE, "--audit", "rest.csv", "--error", "0.2", "--json")
    audited = json.loads(run("certify", *arguments).stdout)
    assert (audited["gold"], audited["tasks"]) == (len(rest) - 1, 50)
    said = run("certify", "animals", *STORE, "--audit", "gold.csv", code=1).stderr
    assert "has learned the truth of task" in said


def test_what_cannot_be_audited_is_refused_with_the_next_step(gold):
    Path("other.csv").write_text("task,label\nelsewhere,cat\n")
    said = run("certify", "crowd.lq", "--audit", "other.csv", code=1).stderr
    assert "task 'elsewhere' is none of the 60 answered tasks" in said
    said = run("certify", "crowd.lq", "--audit", "gold.csv", "--error", "0", code=1).stderr
    assert "`error` must be a number between 0 and 1" in said
