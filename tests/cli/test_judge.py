"""`labelquorum judge`: votes of judges in, a report on their jury and a consensus out."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from labelquorum.cli import app

N_TASKS, MODELS = 60, ("gpt", "llama", "palm")


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["judge", *arguments], env={"COLUMNS": "160"})
    assert result.exit_code == code, result.output
    return result


@pytest.fixture(autouse=True)
def truth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Three models in two orders; the second one chooses what it is shown first."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(7)
    truth = rng.choice(["A", "B"], N_TASKS).tolist()
    rows = []
    for task, answer in enumerate(truth):
        other = "B" if answer == "A" else "A"
        for model, skill in zip(MODELS, (0.9, 0.8, 0.75), strict=True):
            said = answer if rng.random() < skill else other
            for order in ("AB", "BA"):
                verdict = order[0] if model == "llama" and rng.random() < 0.5 else said
                rows.append((f"t{task}", f"{model}|{order}", verdict, model, order))
    write("votes.csv", ("task", "worker", "label", "model", "order"), rows)
    gold = [(f"t{task}", answer) for task, answer in enumerate(truth[:30])]
    write("gold.csv", ("task", "label"), [*gold, ("elsewhere", "A")])
    return truth


def write(name: str, head: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    lines = [",".join(row) for row in [head, *rows]]
    Path(name).write_text("\n".join(lines) + "\n")


def test_the_jury_is_reported_by_gold_and_the_consensus_written(truth):
    result = run("votes.csv", "--gold", "gold.csv", "--output", "consensus.csv")
    report = " ".join(result.stdout.split())
    assert report.startswith("6 judges count as") and "on 30 gold tasks" in report
    assert "gpt|AB" in report and "count as" in report and "first shown" in report
    assert "1 tasks have no vote" in result.stderr
    assert "Wrote the consensus on 60 tasks to consensus.csv." in result.stderr
    assert "label 20 tasks" not in result.stderr
    with Path("consensus.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    assert [row["task"] for row in rows] == [f"t{n}" for n in range(N_TASKS)]
    right = sum(row["label"] == answer for row, answer in zip(rows, truth, strict=True))
    assert right / N_TASKS > 0.85 and all(0.5 <= float(row["confidence"]) <= 1 for row in rows)


def test_without_gold_it_says_what_gold_would_add():
    result = run("votes.csv")
    assert "against the consensus on 60 tasks" in " ".join(result.stdout.split())
    assert "label 20 tasks by hand, drawn at random" in result.stderr


def test_the_report_as_json_has_what_the_tables_show():
    found = json.loads(run("votes.csv", "--gold", "gold.csv", "--json").stdout)
    assert found["reference"] == "gold" and found["n_judges"] == 6 and found["tasks"] == 30
    assert {row["group"] for row in found["groups"]} == set(MODELS)
    flips = {row["worker"]: row for row in found["order_effects"]}
    assert flips["gpt|AB"]["flips"] == 0 and flips["llama|AB"]["low"] > 0
    assert flips["llama|AB"]["first_shown"] and flips["llama|AB"]["label"] == "A"
    assert all(row["by"] == "gold" for row in found["judges"])


def test_attributes_may_come_from_a_file_of_workers():
    votes = [line.split(",")[:3] for line in Path("votes.csv").read_text().splitlines()]
    Path("plain.csv").write_text("\n".join(map(",".join, votes)) + "\n")
    assert json.loads(run("plain.csv", "--json").stdout)["order_effects"] == []
    people = [(f"{m}|{o}", "llm", m, o) for m in MODELS for o in ("AB", "BA")]
    write("workers.csv", ("worker", "worker_kind", "model", "order"), people)
    found = json.loads(run("plain.csv", "--workers", "workers.csv", "--json").stdout)
    assert len(found["order_effects"]) == 3
    assert {row["worker_kind"] for row in found["judges"]} == {"llm"}


def test_json_lines_with_numbers_meet_gold_of_text():
    lines = [
        json.dumps({"task": n, "worker": judge, "label": (n + (judge == "c") * (n % 3 == 0)) % 2})
        for n in range(40)
        for judge in "abc"
    ]
    Path("votes.jsonl").write_text("\n".join(lines) + "\n")
    write("numbers.csv", ("task", "label"), [(str(n), str(n % 2)) for n in range(25)])
    found = json.loads(run("votes.jsonl", "--gold", "numbers.csv", "--json").stdout)
    judges = {row["worker"]: row["reliability"] for row in found["judges"]}
    assert found["gold_tasks"] == 25 and judges["a"] == 1 and judges["c"] == pytest.approx(16 / 25)


def test_gold_that_was_learned_is_marked_and_no_evidence_for_a_certificate(truth):
    run("votes.csv", "--gold", "gold.csv", "--output", "consensus.csv")
    rows = list(csv.DictReader(Path("consensus.csv").read_text().splitlines()))
    assert [row["gold"] for row in rows] == ["1"] * 30 + ["0"] * 30
    run("votes.csv", "--output", "plain.csv")
    assert "gold" not in Path("plain.csv").read_text()

    def certify(audit: str, *more: str, code: int = 0) -> Result:
        result = CliRunner().invoke(app, ["certify", "consensus.csv", "--audit", audit, *more])
        assert result.exit_code == code, result.output
        return result

    write("again.csv", ("task", "label"), [("t3", truth[3])])
    assert (
        "answers task 't3' with the truth that was given as gold"
        in certify("again.csv", code=1).stderr
    )
    drawn = [(f"t{n}", truth[n]) for n in range(59, 29, -1)]
    write("audit.csv", ("task", "label"), drawn)
    found = json.loads(certify("audit.csv", "--json").stdout)
    assert found["tasks"] == found["gold"] == 30  # as the library counts them
    scored = CliRunner().invoke(app, ["score", "consensus.csv", "gold.csv"])
    assert scored.exit_code == 1 and "none of its 31 tasks" in scored.stderr


def test_ids_are_never_cut_and_attributes_go_first_in_a_narrow_terminal():
    rows = [
        (f"t{task}", f"a long model|its long prompt|{judge}", "AB"[task % 2], judge * 30)
        for task in range(40)
        for judge in "xyz"
    ]
    write("long.csv", ("task", "worker", "label", "model"), rows)
    result = CliRunner().invoke(app, ["judge", "long.csv"], env={"COLUMNS": "80"})
    assert "a long model|its long prompt|x" in result.stdout
    assert "x" * 30 not in result.stdout and "…" not in result.stdout
    assert "x" * 30 in run("long.csv").stdout


def test_true_labels_that_no_judge_gave_are_told():
    write("other.csv", ("task", "label"), [("t1", "A"), ("t2", "a"), ("t3", "a")])
    said = run("votes.csv", "--gold", "other.csv").stderr
    assert (
        "other.csv: 2 true labels are none of the labels there are: 'a', and not 'A', 'B'" in said
    )
    assert "3 gold labels: label 17 more tasks" in said


def test_columns_may_be_named_and_bad_rows_left_out():
    write("odd.csv", ("q", "who", "says", "score"), [("t1", "x", "A", "1"), ("t1", "y", "A", "-")])
    named = ("--task-column", "q", "--worker-column", "who", "--label-column", "says")
    assert "--on-bad" in run("--help").stdout
    assert "Rows left out: 1." in run("odd.csv", *named, "--on-bad", "skip").stderr
    assert "not a finite number" in run("odd.csv", *named, code=1).stderr


def test_a_file_of_workers_that_tells_nothing_is_refused():
    write("workers.csv", ("worker", "model"), [("nobody", "gpt")])
    rows = [(f"t{n}", judge, "AB"[n % 2]) for n in range(9) for judge in "xy"]
    write("plain.csv", ("task", "worker", "label"), rows)
    said = run("plain.csv", "--workers", "workers.csv", code=1).stderr
    assert "workers.csv: it tells nothing of the judges" in said


def test_gold_without_a_row_is_refused():
    write("empty.csv", ("task", "label"), [])
    assert "empty.csv has no true label" in run("votes.csv", "--gold", "empty.csv", code=1).stderr


def test_gold_of_other_tasks_is_refused():
    write("other.csv", ("task", "label"), [("elsewhere", "A")])
    result = run("votes.csv", "--gold", "other.csv", code=1)
    assert "none of its 1 tasks has a vote" in result.stderr
