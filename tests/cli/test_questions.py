"""What is asked of a model, a stream or a file of answers, as a person or a script would."""

import json
from pathlib import Path

import pytest
from cli.test_cli import ROWS, VOTE, as_csv, run, unboxed
from cli.test_plot import STORE, TRUTH, place  # noqa: F401
from juries import MISLED_SEED, jury_rows

from labelquorum.learn.estimators import BiLA


@pytest.fixture(autouse=True)
def _inside(place, monkeypatch):  # noqa: F811
    monkeypatch.chdir(place)


@pytest.mark.parametrize("source", [("crowd.lq",), ("animals", *STORE)], ids=["file", "store"])
def test_questions_are_answered_as_the_library_does(source):
    model = BiLA.load("crowd.lq")
    found = json.loads(run("ask", *source, "--limit", "3", "--json").stdout)
    assert len(found) == 3 and found[0]["gain"] >= found[-1]["gain"]
    curve = json.loads(run("stopping", *source, "--json").stdout)
    assert [row["threshold"] for row in curve] == model.stopping()["threshold"].tolist()
    assert isinstance(json.loads(run("flags", *source, "--json").stdout), list)
    if len(source) == 1:
        assert [row["task"] for row in found] == model.expected_gain(top=3).index.tolist()
        task = ROWS[0][0]
        assert run("explain", *source, task).stdout == f"{model.explain(task)}\n"
        [found] = json.loads(run("explain", *source, task, "--json").stdout)
        assert found["task"] == task and len(found["workers"]) == 4


def test_ask_lists_first_what_decides_a_doubt():
    rows, _ = jury_rows(MISLED_SEED, sound=False)
    with pytest.warns(UserWarning, match="in doubt"):
        model = BiLA(open_items=1000).fit(rows)
    model.save("jury.lq")
    reply = run("ask", "jury.lq", "--limit", "12", "--json")
    assert "It is in doubt which answers are right" in reply.stderr
    assert "They are chosen, not drawn at random" in reply.stderr
    found = json.loads(reply.stdout)
    assert [row["decides"] for row in found] == [True] * 10 + [False] * 2
    assert {row["task"] for row in found[:10]} == set(model.deciding_tasks().index)


def test_labels_are_fitted_first_and_ids_are_not_cut():
    model = BiLA().fit("labels.csv")
    found = json.loads(run("ask", "labels.csv", "--limit", "3", "--json").stdout)
    assert [row["task"] for row in found] == model.expected_gain(top=3).index.tolist()
    task = "a task with a name of thirty chars"
    lines = [f"{task},w{n},{'cat' if n else 'dog'}" for n in range(4)]
    Path("long.csv").write_text("\n".join(["task,worker,label", *lines]) + "\n")
    shown = run("ask", "long.csv").stdout
    assert task in shown and "best worker" not in shown


def test_tables_for_people_have_heads_and_unknown_tasks_a_sentence():
    assert "expected confidence" in run("ask", "crowd.lq", "--workers", "w0,w1").stdout
    assert "labels saved" in run("stopping", "crowd.lq").stdout
    assert "Task 'nowhere' is not open" in run("explain", "crowd.lq", "nowhere", code=1).stderr


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_answers_are_scored_by_a_file_of_truths(suffix):
    said = run("aggregate", "labels.csv", "-o", f"answers{suffix}", *VOTE)
    assert "Tasks answered: 60" in said.stderr
    found = json.loads(run("score", f"answers{suffix}", "truth.csv", "--json").stdout)
    assert (found["tasks"], found["with_truth"]) == (60, 60)
    assert found["error_low"] < found["error"] == round(found["wrong"] / 60, 6)
    assert 0 <= found["calibration_error"] < 1
    assert f"Wrong: {found['wrong']} (" in run("score", f"answers{suffix}", "truth.csv").stdout


def test_what_cannot_be_scored_is_refused_with_the_next_step():
    Path("other.csv").write_text("task,label\nelsewhere,cat\n")
    run("aggregate", "labels.csv", "-o", "answers.csv", *VOTE)
    assert (
        "Check that tasks have the same ids"
        in run("score", "answers.csv", "other.csv", code=1).stderr
    )
    assert "It lacks ['confidence']" in run("score", "labels.csv", "truth.csv", code=1).stderr
    Path("formula.csv").write_text("task,label,confidence\n'=1+1,cat,0.9\n")
    Path("formula-truth.csv").write_text("task,label\n=1+1,cat\n")
    assert '"wrong": 0' in run("score", "formula.csv", "formula-truth.csv", "--json").stdout


def test_a_report_of_a_model_shows_its_workers_and_open_tasks():
    run("report", "crowd.lq", "-o", "model.html")
    page = Path("model.html").read_text(encoding="utf-8")
    assert "A model of 8 workers and 3 classes. 60 tasks are open" in page
    assert all(worker in page for worker in {row[1] for row in ROWS})


def test_columns_may_be_named():
    Path("odd.csv").write_text(as_csv().replace("task,worker,label", "pic,who,says"))
    named = ("--task-column", "pic", "--worker-column", "who", "--label-column", "says")
    whole = run("aggregate", "labels.csv", *VOTE).stdout
    assert run("aggregate", "odd.csv", *named, *VOTE).stdout == whole
    odd = Path("odd.csv").read_text()
    assert len(run("stream", *named, *VOTE, stdin=odd).stdout.splitlines()) == len(TRUTH)
    assert run("doctor", "odd.csv", *named).stdout == run("doctor", "labels.csv").stdout


def test_refine_advises_no_option_that_it_lacks():
    said = unboxed(run("refine", "animals", *STORE, "-o", "differ.txt", code=2).stderr)
    assert "must be one of .csv" in said and "--format" not in said
    said = unboxed(run("export", "animals", *STORE, "-o", "out.txt", code=2).stderr)
    assert "Or give --format" in said


def test_ids_cannot_act_on_the_terminal():
    acting = "\x1b]0;x\x07\x9b2J\u202e"
    rows = {f"t{acting}{n}": {f"w{acting}{m}": f"c{acting}{m}" for m in (0, 1)} for n in (0, 1)}
    BiLA().fit(rows).save("acting.lq")
    for command in (["explain", "acting.lq", f"t{acting}0"], ["ask", "acting.lq"]):
        for options in ([], ["--json"]):
            said = run(*command, *options).stdout
            assert "\\x9b2J" in said or "\\u009b2J" in said
            assert all(one.isprintable() or one == "\n" for one in said)
            if options:
                assert json.loads(said)[0]["task"].startswith(f"t{acting}")
    said = run("aggregate", "no\x9b2J.csv", "-o", "x.csv", code=1)
    assert r"no\x9b2J.csv" in said.stderr
