"""The commands of a store, as a person or a script would use them."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli.test_cli import ROWS, as_csv, read_json_lines, run, unboxed

from labelquorum.store.rules import Rules
from labelquorum.store.store import Store

PATIENCE = 120  # seconds a test waits for another process before it fails
STORE = ("--store", "data")
SMALL = ("--labels-per-item", "4", "--chunk-items", "20")
KILLED = """
import os, signal, sys
from labelquorum.store import failpoints
from labelquorum.cli import app
point, times, *arguments = sys.argv[1:]
left = int(times)
def hook(passed):
    global left
    left -= passed == point
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
failpoints.arm(hook)
app(arguments)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    for number in range(3):  # 20 tasks each
        part = ROWS[number * 80 : (number + 1) * 80]
        (tmp_path / "in" / f"{number}.csv").write_text(as_csv(part))
    return tmp_path


@pytest.fixture
def filled():
    run("run", "s", "in", *STORE, "--once", "--retention", "keep", *SMALL)


def state():
    with Store.look("data") as store:
        stream = store.stream("s")
        return stream.state_hash(), sum(chunk["n_labels"] for chunk in stream.chunks())


def table(text):
    return list(csv.DictReader(io.StringIO(text)))


# ── run ──────────────────────────────────────────────────────────────────────────────────


def test_run_answers_the_files_of_a_folder_once():
    said = run("run", "s", "in", *STORE, "--once", "--print", *SMALL)
    assert "Made stream 's'." in said.stderr
    assert said.stderr.splitlines()[-1] == (
        "Labels taken: 240. Chunks applied: 3. Tasks answered: 60."
    )
    answers = read_json_lines(said.stdout)
    assert {row["task"] for row in answers} == {row[0] for row in ROWS}
    assert list(answers[0])[:5] == ["task", "label", "confidence", "labels", "chunk"]
    again = run("run", "s", "in", *STORE, "--once", "--print")
    assert (again.stdout, again.stderr) == ("", "There were no new labels.\n")


def test_run_takes_standard_input_under_a_name_once():
    named = ("run", "s", "-", *STORE, "--source", "january", "-q", *SMALL)
    half = as_csv(ROWS[:100])
    assert "Labels taken: 100." in run(*named, stdin=half).stderr
    assert "Labels taken: 140." in run(*named, "--flush", stdin=as_csv()).stderr
    assert run(*named, stdin=as_csv()).stderr == "There were no new labels.\n"
    assert state()[1] == 240


def test_run_reads_what_standard_input_looks_like():
    lines = "".join(
        json.dumps(dict(zip(("task", "worker", "label"), row, strict=True))) + "\n" for row in ROWS
    )
    assert "Labels taken: 240." in run("run", "s", *STORE, *SMALL, stdin=lines).stderr
    wrong = run("run", "s", *STORE, "--format", "csv", stdin=lines, code=1)
    assert "standard input: nothing names the task" in wrong.stderr


def test_run_stops_at_a_bad_line_with_all_before_it_taken():
    Path("in/1.csv").write_text(as_csv(ROWS[80:90]) + "t,,x\n" + as_csv(ROWS[90:100]))
    said = run("run", "s", "in", *STORE, "--once", code=1)
    assert "Labels taken: 90." in said.stderr
    assert said.stderr.splitlines()[-1].startswith("in/1.csv line 12: the worker is missing")
    Path("in/1.csv").write_text(as_csv(ROWS[80:100]))
    assert "Labels taken: 90." in run("run", "s", "in", *STORE, "--once").stderr


def test_run_may_leave_bad_lines_out():
    Path("in/1.csv").write_text(as_csv(ROWS[80:90]) + "t,,x\n")
    said = run("run", "s", "in", *STORE, "--once", "--on-bad", "skip")
    assert "Left out: in/1.csv line 12" in said.stderr
    assert "Left out, missing worker: 1." in said.stderr


def test_run_tells_why_labels_are_late():
    once = ("--once", "--flush", "--grace", "0")
    run("run", "s", "in", *STORE, *once)
    task, _, label = ROWS[0]
    Path("in/9.csv").write_text(as_csv([(task, "one more", label)]))
    said = run("run", "s", "in", *STORE, *once).stderr
    assert "Late labels: 1." in said and "set the stream's rule `grace` longer" in said
    assert "`grace`" in run("doctor", "--store", "data").stdout


def test_run_changes_rules_and_refuses_other_settings():
    run("run", "s", *STORE, "--classes", "cat,dog", "--max-wait", "never", stdin="")
    run("run", "s", *STORE, "--classes", "cat,dog", "--grace", "5", stdin="")
    with Store.look("data") as store:
        assert store.stream("s").rules == Rules(max_wait=None, grace=5.0)
    run("run", "s", *STORE, "--grace", "never", stdin="")
    with Store.look("data") as store:
        assert store.stream("s").rules.grace is None
    said = run("run", "s", *STORE, "--classes", "cat,fox", stdin="", code=2)
    assert "was made with the classes ['cat', 'dog']" in unboxed(said.stderr)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["run", "s", "nowhere", *STORE], "no folder"),
        (["run", "s", *STORE, "--max-wait", "long"], "number of seconds, or never"),
        (["export", "s", *STORE, "--format", "parquet"], "Name it"),
        (["export", "s", *STORE, "-o", "x.xlsx"], ".parquet"),
        (["backup", "data", "-o", "nowhere/x"], "no folder"),
        (["doctor"], "--store"),
        (["doctor", "labels.csv", *STORE], "--store"),
    ],
)
def test_wrong_usage_is_explained_with_exit_code_2(arguments, word):
    assert word in unboxed(run(*arguments, stdin="", code=2).stderr)


@pytest.mark.kill
@pytest.mark.parametrize(
    ("point", "times"),
    [("before_accept_commit", 2), ("after_accept", 2), ("after_cut", 2), ("inside_apply", 2)],
)
def test_a_run_that_was_killed_goes_on_without_loss_or_double_counts(point, times):
    arguments = ["run", "s", "in", *STORE, "--once", *SMALL]
    run(*arguments)
    uninterrupted = state()
    assert uninterrupted[1] == 240
    os.rename("data", "whole")
    program = [sys.executable, "-c", KILLED, point, str(times), *arguments]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    run(*arguments)
    assert state() == uninterrupted


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_follows_its_folder_until_it_is_told_to_stop(number):
    Path("in/2.csv").unlink()
    program = [sys.executable, "-m", "labelquorum", "run", "s", "in", *STORE, *SMALL]
    with subprocess.Popen([*program, "--poll", "0.05"], stderr=subprocess.PIPE, text=True) as job:
        lines = iter(job.stderr.readline, "")
        assert any(line.startswith("Chunk 2:") for line in lines)
        with Path("in/1.csv").open("a") as file:
            file.write(as_csv(ROWS[160:]).partition("\n")[2])
        assert any(line.startswith("Chunk 3:") for line in lines)
        job.send_signal(number)
        assert list(lines) == ["Labels taken: 240. Chunks applied: 3. Tasks answered: 60.\n"]
        assert job.wait(PATIENCE) == 0


def test_a_store_in_use_is_refused_to_a_second_writer():
    with Store.open("data"):
        said = run("run", "s", "in", *STORE, "--once", code=1)
    assert "the store is in use by process" in said.stderr


# ── export ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("filled")
def test_export_writes_answers_in_three_formats():
    rows = table(run("export", "s", *STORE).stdout)
    assert list(rows[0]) == ["task", "label", "confidence", "labels", "chunk"]
    assert len(rows) == 60
    run("export", "s", *STORE, "-o", "a.jsonl")
    lines = read_json_lines(Path("a.jsonl").read_text())
    assert [row["task"] for row in lines] == [row["task"] for row in rows]
    assert {"prob_cat", "prob_dog", "prob_fox"} < set(lines[0])
    said = run("export", "s", *STORE, "-o", "a.parquet")
    assert said.stderr == "Rows: 60. Wrote a.parquet.\n"
    import pyarrow.parquet

    assert pyarrow.parquet.read_table("a.parquet").to_pylist() == lines
    assert len(table(run("export", "s", *STORE, "--what", "labels").stdout)) == 240
    assert len(table(run("export", "s", *STORE, "--what", "workers").stdout)) == 8
    assert len(table(run("export", "s", *STORE, "--what", "chunks").stdout)) == 3


def test_export_is_harmless_to_a_spreadsheet_unless_raw():
    names = ["=1+1", "+x", "-x", "@x", "-5"]
    rows = [(name, worker, "cat") for name in names for worker in "ab"]
    run("run", "s", *STORE, "--flush", stdin=as_csv(rows))
    shown = {row["task"] for row in table(run("export", "s", *STORE).stdout)}
    assert shown == {"'=1+1", "'+x", "'-x", "'@x", "-5"}
    raw = {row["task"] for row in table(run("export", "s", *STORE, "--raw").stdout)}
    assert raw == set(names)


def test_what_is_not_there_is_one_sentence():
    for arguments in (
        ["export", "s", *STORE],
        ["streams", "data"],
        ["backup", "data", "-o", "b"],
        ["restore", "b", "data"],
        ["refine", "s", *STORE],
        ["doctor", *STORE],
    ):
        said = run(*arguments, code=1)
        assert said.stdout == ""
        assert said.stderr.count("\n") == 1
    assert not Path("data").exists()


# ── the others ───────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("filled")
def test_backup_and_restore_bring_all_back():
    before = state()
    assert run("backup", "data", "-o", "b").stderr.startswith("Wrote b, ")
    os.rename("data", "gone")
    assert "Streams restored: 1." in run("restore", "b", "data").stderr
    assert state() == before
    assert "not an empty folder" in run("restore", "b", "data", code=1).stderr


@pytest.mark.usefixtures("filled")
def test_streams_are_listed():
    assert " s " in run("streams", "data").stdout
    [row] = json.loads(run("streams", "data", "--json").stdout)
    assert (row["stream"], row["answered_items"], row["held_labels"]) == ("s", 60, 240)


@pytest.mark.usefixtures("filled")
def test_the_doctor_examines_a_store():
    said = run("doctor", *STORE)
    assert "60 tasks are answered" in said.stdout
    findings = json.loads(run("doctor", *STORE, "--json").stdout)
    assert {"SQLite", "pages", "tables", "writer", "disk"} < {one["name"] for one in findings}
    import sqlite3

    with sqlite3.connect("data/labelquorum.db") as connection:
        connection.execute("UPDATE streams SET next_row = 2")
    connection.close()
    assert "labels have numbers" in run("doctor", *STORE, code=1).stdout


@pytest.mark.usefixtures("filled")
def test_refine_tells_the_gap():
    said = run("refine", "s", *STORE, "-o", "differ.csv")
    assert said.stdout.startswith("Answers compared: 60. Answers that differ: ")
    reply = json.loads(run("refine", "s", *STORE, "--json").stdout)
    assert (reply["answered"], reply["compared"]) == (60, 60)
    assert len(table(Path("differ.csv").read_text())) == len(reply["differ"])
    assert [row["task"] for row in table(Path("differ.csv").read_text())] == [
        row["task"] for row in reply["differ"]
    ]


@pytest.mark.usefixtures("filled")
def test_refine_tells_what_it_could_not_compare():
    worker = ROWS[0][1]
    left = 60 - len({row[0] for row in ROWS if row[1] == worker})
    run("forget", worker, "--stream", "s", *STORE)
    assert f"{left} of 60 answers could be compared" in run("refine", "s", *STORE).stderr


@pytest.mark.usefixtures("filled")
def test_forget_takes_a_worker_by_text_or_by_number():
    worker = ROWS[0][1]
    n_labels = sum(row[1] == worker for row in ROWS)
    said = run("forget", worker, "--stream", "s", *STORE)
    assert f"Labels that were deleted: {n_labels}." in said.stderr
    assert "is not known" in run("forget", worker, "--stream", "s", *STORE, code=1).stderr
    run("run", "s", *STORE, stdin='{"task": 1, "worker": 77, "label": "cat"}\n')
    assert "deleted: 1." in run("forget", "77", "--stream", "s", *STORE).stderr
