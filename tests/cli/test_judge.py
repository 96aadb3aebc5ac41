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


def test_gold_of_other_tasks_is_refused():
    write("other.csv", ("task", "label"), [("elsewhere", "A")])
    result = run("votes.csv", "--gold", "other.csv", code=1)
    assert "none of its 1 tasks has a vote" in result.stderr
