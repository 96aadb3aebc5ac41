"""The command line, as a person or a script would use it."""

import csv
import io
import json
import os
import re
import select
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from safetensors import safe_open
from typer.main import get_command
from typer.testing import CliRunner, Result

import labelquorum
from labelquorum.cli import app
from labelquorum.evaluation.simulate.arrivals import label_table
from labelquorum.evaluation.simulate.crowds import class_conditional_crowd
from labelquorum.ingest.labels import LabelTable
from labelquorum.learn.estimators import BiLA, MajorityVote

N_ITEMS, CHUNK_ITEMS = 60, 20
PATIENCE = 120  # seconds a test waits for another process before it fails
VOTE = ("--method", "majority_vote")  # compiles nothing
CHUNKS = ("--chunk-items", str(CHUNK_ITEMS))
COMMANDS = [
    "aggregate",
    "ask",
    "backup",
    "certify",
    "datasets",
    "delete",
    "demo",
    "doctor",
    "evaluate",
    "expected-error",
    "explain",
    "export",
    "flags",
    "forget",
    "judge",
    "keys",
    "plot",
    "refine",
    "rename",
    "report",
    "restore",
    "run",
    "score",
    "serve",
    "simulate",
    "stopping",
    "stream",
    "streams",
    "version",
    "workers",
]


def crowd_rows() -> list[tuple[str, str, str]]:
    table = label_table(class_conditional_crowd(N_ITEMS, 8, 3, labels_per_item=4, seed=5))
    labels = [("cat", "dog", "fox")[label] for label in table.labels]
    return list(zip(table.item_ids, table.worker_ids, labels, strict=True))


ROWS = crowd_rows()


def as_csv(rows: list[tuple[str, str, str]] = ROWS) -> str:
    return "".join(",".join(row) + "\n" for row in [("task", "worker", "label"), *rows])


def rows_of_chunks(first: int, last: int) -> list[tuple[str, str, str]]:
    per_chunk = len(ROWS) // N_ITEMS * CHUNK_ITEMS
    return ROWS[first * per_chunk : last * per_chunk]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "labels.csv").write_text(as_csv())
    return tmp_path


def run(*arguments: str, stdin: str | None = None, code: int = 0) -> Result:
    result = CliRunner().invoke(app, arguments, input=stdin)
    assert result.exit_code == code, result.output
    return result


def unboxed(text: str) -> str:
    """Help and usage errors as words, whatever colours and boxes they are printed in."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯─]", " ", text).split())


def read_rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def read_json_lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


# ── the whole ────────────────────────────────────────────────────────────────────────────────


def test_every_command_is_tried_here():
    assert sorted(get_command(app).commands) == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_teaches_by_an_example(command):
    example = unboxed(run(command, "--help").stdout).partition("Example: ")[2]
    assert f"labelquorum {command}" in example


def test_help_needs_nothing_that_takes_long_to_import():
    # A stand-in for the package itself, whose own imports are not the command line's concern.
    program = f"""
import sys, types
package = types.ModuleType("labelquorum")
package.__path__ = [{os.path.dirname(labelquorum.__file__)!r}]
sys.modules["labelquorum"] = package
import labelquorum.cli
assert not {{"jax", "numpy", "pandas", "matplotlib"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE)


def test_version_is_that_of_the_package():
    assert run("--version").stdout == run("version").stdout == version("labelquorum") + "\n"


def test_package_runs_as_a_module():
    command = [sys.executable, "-m", "labelquorum", "aggregate", "nowhere.csv"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "nowhere.csv: No such file or directory. Check the path and try again.\n"
    )


@pytest.mark.parametrize("command", ["aggregate", "doctor", "workers"])
def test_unknown_file_gives_one_sentence(command):
    said = run(command, "nowhere.csv", code=1)
    assert said.stdout == ""
    assert said.stderr.startswith("nowhere.csv: ") and said.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["aggregate", "labels.csv", "--method", "guess"], "majority_vote"),
        (["aggregate", "labels.csv", "--preset", "best"], "www2021"),
        (["aggregate", "labels.csv", "--preset", "authors", *VOTE], "without preset"),
        (["aggregate", "labels.csv", "--classes", "[cat]"], "JSON"),
        (["aggregate", "labels.csv", "-o", "out.xlsx"], ".jsonl"),
        (["aggregate", "labels.csv", "-o", "nowhere/out.csv"], "folder"),
        (["aggregate", "labels.csv", "-o", "./labels.csv"], "would be lost"),
        (["stream", "--chunk-items", "0"], "--chunk-items"),
        (["workers", "crowd.lq", "--sort", "name"], "skill"),
    ],
)
def test_wrong_usage_is_explained_with_exit_code_2(arguments, word):
    assert word in unboxed(run(*arguments, stdin="", code=2).stderr)
    assert Path("labels.csv").read_text() == as_csv()


# ── aggregate ────────────────────────────────────────────────────────────────────────────────


def test_aggregate_writes_a_row_a_task():
    said = run("aggregate", "labels.csv")
    rows = read_rows(said.stdout)
    model = BiLA().fit("labels.csv")
    assert {row["task"]: row["label"] for row in rows} == model.labels_.to_dict()
    assert list(rows[0]) == ["task", "label", "confidence", "prob_cat", "prob_dog", "prob_fox"]
    for row in rows:
        assert row["confidence"] == row[f"prob_{row['label']}"]
        total = sum(float(row[f"prob_{label}"]) for label in ("cat", "dog", "fox"))
        assert total == pytest.approx(1, abs=1e-5)
    assert said.stderr == "Tasks answered: 60. Labels: 240. Workers known: 8. Classes: 3.\n"


def test_aggregate_writes_json_lines_by_suffix_with_ids_as_they_came():
    Path("labels.jsonl").write_text('{"task": 7, "worker": 1, "label": true}\n')
    said = run("aggregate", "labels.jsonl", "-o", "out.jsonl", *VOTE)
    assert said.stdout == ""
    assert "out.jsonl" in said.stderr
    assert read_json_lines(Path("out.jsonl").read_text()) == [
        {"task": 7, "label": True, "confidence": 1.0, "prob_True": 1.0}
    ]


def test_answers_and_models_are_for_their_owner():
    run("aggregate", "labels.csv", "-o", "out.csv", "--model", "crowd.lq", *VOTE)
    assert {Path(name).stat().st_mode & 0o777 for name in ("out.csv", "crowd.lq")} == {0o600}


def test_aggregate_takes_several_files_and_standard_input_as_one():
    Path("half.csv").write_text(as_csv(ROWS[:100]))
    whole = run("aggregate", "labels.csv", *VOTE).stdout
    assert run("aggregate", "half.csv", "-", *VOTE, stdin=as_csv(ROWS[100:])).stdout == whole


def test_labels_that_read_alike_are_refused():
    lines = (
        '{"task": "t", "worker": "a", "label": 1}',
        '{"task": "u", "worker": "a", "label": "1"}',
    )
    done = run("aggregate", "-", *VOTE, stdin="\n".join(lines), code=1)
    assert "1 is of type int and '1' text: two classes" in done.stderr


@pytest.mark.parametrize("command", [("aggregate", "-"), ("stream", "--format-out", "csv")])
def test_a_spreadsheet_runs_none_of_the_answers_unless_raw(command):
    ids = ["=1+1", "@evil", '=HYPERLINK("http://x")', "-7"]
    stdin = "".join(f"{json.dumps({'task': i, 'worker': 'w', 'label': '+cat'})}\n" for i in ids)
    rows = read_rows(run(*command, *VOTE, stdin=stdin).stdout)
    assert [row["task"] for row in rows] == ["'=1+1", "'@evil", '\'=HYPERLINK("http://x")', "-7"]
    assert {row["label"] for row in rows} == {"'+cat"}
    raw = read_rows(run(*command, "--raw", *VOTE, stdin=stdin).stdout)
    assert [row["task"] for row in raw] == ids and {row["label"] for row in raw} == {"+cat"}


def test_bad_row_is_named_and_leaves_earlier_output_alone():
    Path("labels.csv").write_text(as_csv(ROWS[:3]) + "t9,,dog\n")
    Path("out.csv").write_text("yesterday")
    said = run("aggregate", "labels.csv", "-o", "out.csv", "--model", "crowd.lq", *VOTE, code=1)
    assert said.stderr.startswith("labels.csv line 5: the worker is missing")
    assert Path("out.csv").read_text() == "yesterday"
    assert sorted(os.listdir()) == ["labels.csv", "out.csv"]


@pytest.mark.filterwarnings("ignore:labels.csv. 1 of 5 labels do not count")
def test_rows_left_out_are_counted():
    Path("labels.csv").write_text(as_csv(ROWS[:3]) + "t9,,dog\nt9,w1,?\nt9,w1,cat\nt9,w1,dog\n")
    said = run("aggregate", "labels.csv", "--on-bad", "skip", "--abstain", "?", *VOTE).stderr
    for count in ("Left out, missing worker: 1.", "Left out, abstained: 1.", "Repeated labels: 1."):
        assert count in said


def test_class_list_is_text_or_json():
    run("aggregate", "labels.csv", "--classes", "cat, dog,fox", *VOTE)
    said = run("aggregate", "labels.csv", "--classes", "cat,dog", *VOTE, code=1).stderr
    assert "'fox' is not one of the classes ['cat', 'dog']" in said
    line = '{"task": 1, "worker": 2, "label": 0}\n'
    said = run("aggregate", "-", "--classes", "[0, 1]", *VOTE, stdin=line).stdout
    assert said == "task,label,confidence,prob_0,prob_1\n1,0,1.0,1.0,0.0\n"


@pytest.mark.parametrize("command", ["aggregate", "stream"])
def test_a_file_of_workers_tells_what_they_are(command):
    names = sorted({worker for _, worker, _ in ROWS})
    rows = "".join(f"{name},llm,m{n % 2}\n" for n, name in enumerate(names))
    Path("workers.csv").write_text("worker,kind,model\n" + rows)
    labels = ["labels.csv"] if command == "aggregate" else []
    stdin = None if labels else as_csv()
    run(command, *labels, "--workers", "workers.csv", "-m", "crowd.lq", stdin=stdin)
    workers = BiLA.load("crowd.lq").report().workers
    assert workers["model"].to_dict() == {name: f"m{n % 2}" for n, name in enumerate(names)}
    Path("workers.csv").write_text(f"worker,kind\n{names[0]},human\n")
    arguments = ["labels.csv", "--again"] if labels else []
    said = run(
        command, *arguments, "--workers", "workers.csv", "-m", "crowd.lq", stdin=stdin, code=1
    )
    assert f"workers.csv line 2: worker {names[0]!r} has the worker_kind 'human'" in said.stderr


def test_saved_model_is_continued():
    for chunk in range(3):
        Path("chunk.csv").write_text(as_csv(rows_of_chunks(chunk, chunk + 1)))
        said = run("aggregate", "chunk.csv", "-m", "crowd.lq", "--seed", "3")
    model = BiLA(seed=3)
    for chunk in range(3):
        model.partial_fit(LabelTable(*zip(*rows_of_chunks(chunk, chunk + 1), strict=True)))
    assert {r["task"]: r["label"] for r in read_rows(said.stdout)} == model.labels_.to_dict()
    assert BiLA.load("crowd.lq").skills_.equals(model.skills_)


def test_tasks_that_a_model_does_not_keep_open_are_reported():
    said = run("aggregate", "labels.csv", "-m", "crowd.lq", "--open-items", "20", *VOTE).stderr
    assert "It keeps the last 20 of these 60 tasks open" in said
    assert len(MajorityVote.load("crowd.lq").report().items) == 20
    said = run("aggregate", "labels.csv", "-m", "all.lq", "--open-items", "60", *VOTE).stderr
    assert "tasks open" not in said
    assert len(MajorityVote.load("all.lq").report().items) == 60


def test_the_same_command_again_does_not_count_its_file_twice():
    command = ("aggregate", "labels.csv", "--model", "crowd.lq", *VOTE)
    run(*command)
    before = Path("crowd.lq").read_bytes()
    assert "has learned from labels.csv before" in run(*command, code=1).stderr
    assert Path("crowd.lq").read_bytes() == before


def test_a_file_counts_once_unless_it_is_given_again_on_purpose():
    def labels() -> int:
        table = MajorityVote.load("crowd.lq").report().workers
        return int(table["num_examples_labeled"].sum())

    command = ("aggregate", "labels.csv", "--model", "crowd.lq", "--open-items", "0", *VOTE)
    run(*command)
    Path("moved.csv").write_bytes(Path("labels.csv").read_bytes())
    for name, stdin in (("labels.csv", None), ("moved.csv", None), ("-", as_csv())):
        said = run("aggregate", name, "--model", "crowd.lq", stdin=stdin, code=1)
        assert f"crowd.lq has learned from {name} before" in said.stderr
    assert labels() == len(ROWS)
    run("aggregate", "labels.csv", "--model", "crowd.lq", "--again")
    assert labels() == 2 * len(ROWS)


@pytest.mark.parametrize(
    "option",
    [("--method", "bila"), ("--classes", "cat,dog"), ("--repeats", "majority"), ("--seed", "1")],
)
def test_saved_model_keeps_its_settings(option):
    run("aggregate", "labels.csv", "--model", "crowd.lq", *VOTE)
    run("aggregate", "labels.csv", "--model", "crowd.lq", "--again", *VOTE, "--seed", "0")
    said = run("aggregate", "labels.csv", "--model", "crowd.lq", *option, code=2)
    assert "crowd.lq was made with" in unboxed(said.stderr)


# ── workers and doctor ───────────────────────────────────────────────────────────────────────


@pytest.fixture
def saved() -> MajorityVote:
    model = MajorityVote().fit("labels.csv")
    model.save("crowd.lq")
    return model


def test_workers_shows_the_worst_and_the_best(saved):
    order = saved.skills_.sort_values(kind="stable").index.tolist()
    said = run("workers", "crowd.lq", "--limit", "3").stdout
    words = said.split()
    assert [word for word in words if word in order] == [*order[:2], order[-1]]
    assert "… 5 more" in said
    assert all(worker in run("workers", "crowd.lq").stdout for worker in order)


def test_workers_as_json_are_all_of_them(saved):
    rows = json.loads(run("workers", "crowd.lq", "--json", "--sort", "labels").stdout)
    assert [row["labels"] for row in rows] == sorted((r["labels"] for r in rows), reverse=True)
    assert sum(row["labels"] for row in rows) == len(ROWS)
    assert {row["worker"]: row["skill"] for row in rows} == pytest.approx(saved.skills_.to_dict())
    assert set(rows[0]) == {"worker", "skill", "labels", "agreement", "worst_class"}
    assert len(json.loads(run("workers", "crowd.lq", "--json", "--limit", "1").stdout)) == 1


def test_workers_of_a_model_that_knows_how_sure_it_is_have_bounds():
    model = BiLA("recipe").partial_fit(LabelTable(*zip(*ROWS, strict=True)))
    model.save("crowd.lq")
    rows = json.loads(run("workers", "crowd.lq", "--json").stdout)
    table = model.skill_intervals()
    for row in rows:
        reply = row["skill_low"], row["skill"], row["skill_high"]
        known = tuple(table.loc[row["worker"], ["low", "skill", "high"]])
        assert reply == pytest.approx(known, abs=1e-6)
    low, high = table.loc[rows[0]["worker"], ["low", "high"]]
    said = run("workers", "crowd.lq").stdout
    assert "95 %" in said and f"{low:.0%}–{high:.0%}" in said
    MajorityVote().fit({"t": {"ann": "cat", "bob": "cat"}}).save("vote.lq")
    assert "95 %" not in run("workers", "vote.lq").stdout


def test_ids_cannot_play_with_the_terminal():
    MajorityVote().fit({"t": {"[red]ann": "cat", "\x1b[2Jbob": "cat"}}).save("crowd.lq")
    said = run("workers", "crowd.lq").stdout
    assert "[red]ann" in said
    assert r"'\x1b[2Jbob'" in said


def test_workers_of_a_foreign_file_are_refused_with_a_sentence():
    said = run("workers", "labels.csv", code=1)
    assert said.stderr.startswith("labels.csv: this is no whole model file")


def test_doctor_tells_what_is_odd_and_is_content():
    rows = [*ROWS, (ROWS[0][0], ROWS[0][1], "owl"), ("t99", "w9", "")]
    Path("labels.csv").write_text(as_csv(rows))
    said = run("doctor", "labels.csv").stdout
    assert "1 row is left out: missing label." in said
    assert "1 row repeats a (task, worker) pair" in said
    findings = json.loads(run("doctor", "labels.csv", "--json").stdout)
    assert all(finding["sentence"] in said for finding in findings)
    assert [f["count"] for f in findings if f["name"] == "repeated labels"] == [1]


# ── stream ───────────────────────────────────────────────────────────────────────────────────


def test_stream_answers_chunk_by_chunk_as_the_library_does():
    said = run("stream", *CHUNKS, stdin=as_csv())
    model, expected = BiLA(), []
    for chunk in range(3):
        model.partial_fit(LabelTable(*zip(*rows_of_chunks(chunk, chunk + 1), strict=True)))
        expected += model.labels_.items()
    assert [(row["task"], row["label"]) for row in read_json_lines(said.stdout)] == expected
    assert said.stderr.splitlines()[0] == "Chunk 1: tasks 20, up to line 81."


def test_resumed_stream_gives_the_same_lines_as_an_uninterrupted_one():
    whole = run("stream", *CHUNKS, stdin=as_csv()).stdout
    halves = [
        run("stream", *CHUNKS, "-m", "crowd.lq", stdin=as_csv(rows)).stdout
        for rows in (rows_of_chunks(0, 2), rows_of_chunks(2, 3))
    ]
    assert "".join(halves) == whole


def test_crash_between_answer_and_save_neither_loses_nor_doubles(monkeypatch):
    whole = run("stream", *CHUNKS, *VOTE, "-m", "whole.lq", stdin=as_csv()).stdout
    save = MajorityVote.save

    def crash_at_second(self, path):
        monkeypatch.setattr(MajorityVote, "save", crash)
        save(self, path)

    def crash(self, path):
        raise KeyboardInterrupt

    monkeypatch.setattr(MajorityVote, "save", crash_at_second)
    before = run("stream", *CHUNKS, *VOTE, "-m", "crowd.lq", stdin=as_csv(), code=130).stdout
    monkeypatch.setattr(MajorityVote, "save", save)
    again = as_csv(rows_of_chunks(1, 3))
    after = run("stream", *CHUNKS, "-m", "crowd.lq", stdin=again).stdout
    lines = whole.splitlines()
    assert before.splitlines() == lines[: 2 * CHUNK_ITEMS]
    assert after.splitlines() == lines[CHUNK_ITEMS:]
    assert fingerprint("crowd.lq") == fingerprint("whole.lq")


def fingerprint(path: str) -> dict[str, str]:
    """The header of a saved model, with the SHA-256 of everything in it."""
    with safe_open(path, framework="numpy") as file:
        return file.metadata()


def test_bad_line_stops_the_stream_after_what_came_before_was_answered_and_saved():
    stdin = as_csv(ROWS[:100]) + "t99,w0,\n" + "t98,w0,cat\n"
    said = run("stream", *CHUNKS, *VOTE, "-m", "crowd.lq", stdin=stdin, code=1)
    assert len(said.stdout.splitlines()) == 25
    assert said.stderr.splitlines()[-1].startswith("stream line 102: the label is missing")
    assert MajorityVote.load("crowd.lq").report().workers["num_examples_labeled"].sum() == 100
    said = run("stream", *CHUNKS, *VOTE, "--on-bad", "skip", "--quiet", stdin=stdin)
    assert len(said.stdout.splitlines()) == 26
    assert "Tasks answered: 26. Labels: 101." in said.stderr
    assert "Left out, missing label: 1." in said.stderr


def test_stream_reads_json_lines_and_writes_csv():
    lines = [json.dumps(dict(zip(("item", "rater", "rating"), row, strict=True))) for row in ROWS]
    options = ("--format", "jsonl", "--format-out", "csv")
    said = run("stream", *CHUNKS, *VOTE, *options, stdin="\n".join(lines)).stdout
    assert said.splitlines()[0] == "task,label,confidence"
    assert len(read_rows(said)) == N_ITEMS


def start_stream() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "labelquorum", "stream", *CHUNKS, *VOTE, "-m", "crowd.lq"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, **pipes)


def read_some(pipe, least: int) -> str:
    """Wait for at least `least` lines, not for the end of the output."""
    text = b""
    while text.count(b"\n") < least:
        assert select.select([pipe], [], [], PATIENCE)[0], "no answer came"
        part = os.read(pipe.fileno(), 65_536)
        assert part, "the output has ended"
        text += part
    return text.decode()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stream_answers_before_the_input_ends_and_saves_when_told_to_stop(number):
    with start_stream() as process:
        process.stdin.write(as_csv(ROWS[:100]).encode())
        process.stdin.flush()
        early = read_some(process.stdout, CHUNK_ITEMS)  # the input is still open
        read_some(process.stderr, 1)  # the chunk is saved
        assert MajorityVote.load("crowd.lq").workers_.size == 8
        process.send_signal(number)
        assert process.wait(PATIENCE) == 0
        late = process.stdout.read().decode()
    answered = [row["task"] for row in read_json_lines(early + late)]
    assert answered == list(dict.fromkeys(row[0] for row in ROWS[:100]))
    assert MajorityVote.load("crowd.lq").report().workers["num_examples_labeled"].sum() == 100
