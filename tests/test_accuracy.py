"""The accuracy tables are made at a size that measures nothing, and their verdicts are computed."""

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "experiments" / "accuracy"
PARTS = ("ten", "benchmark", "paper", "chunks", "calibration", "robustness", "speed")


def measure(*arguments):
    variables = {name: value for name, value in os.environ.items() if name != "LABELQUORUM_DATA"}
    done = subprocess.run(
        [sys.executable, str(FOLDER / "measure.py"), *map(str, arguments)],
        capture_output=True,
        text=True,
        env=variables,
    )
    return done.returncode, done.stderr


def targets(folder):
    reply = json.loads((folder / "results" / "targets.json").read_text(encoding="utf-8"))
    return reply["targets"]


def lines(folder):
    text = (folder / "results" / "cells.jsonl").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line.startswith('{"cell"')]


@pytest.fixture(scope="session")
def smoke(once):
    def make(folder):
        # One process: two would compile the same at the same time.
        code, said = measure("--smoke", "--jobs", 1, "--output", folder)
        assert code == 0, said

    return once("accuracy", make)[0]


@pytest.fixture
def modules(monkeypatch):
    """The experiment's own modules, which stand in its folder."""
    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None) or ""
        if file.startswith(str(FOLDER)):
            del sys.modules[name]


@pytest.fixture
def measure_here(modules, monkeypatch, capsys):
    """`measure` without a subprocess, for what runs no cell."""
    monkeypatch.delenv("LABELQUORUM_DATA", raising=False)

    def run(*arguments):
        try:
            code = modules("measure").main(list(map(str, arguments)))
        except SystemExit as stop:
            code = stop.code
        return code, capsys.readouterr().err

    return run


@pytest.mark.slow
def test_every_part_is_written_and_says_that_it_is_a_smoke_run(smoke):
    for part in ("targets", *PARTS):
        text = (smoke / "results" / f"{part}.md").read_text(encoding="utf-8")
        assert text.startswith("**A smoke run")
        assert str(smoke) not in text
        assert str(ROOT) not in text


@pytest.mark.slow
def test_a_verdict_follows_from_what_was_measured_and_what_is_wanted(smoke):
    for target in targets(smoke):
        if target["measured"] is None:
            assert target["verdict"] == "not measured"
            continue
        less = target["measured"] < target["limit"]
        met = less or (target["measured"] == target["limit"] and not target["strictly"])
        assert target["verdict"] == ("met" if met else "not met")
    assert {target["part"] for target in targets(smoke)} == set(PARTS) - {"speed"}


@pytest.mark.slow
def test_what_has_no_data_is_said_to_be_not_measured(smoke):
    verdicts = {t["promise"]: t["verdict"] for t in targets(smoke)}
    assert all(v == "not measured" for promise, v in verdicts.items() if "RTE" in promise)
    assert "not measured" not in [v for promise, v in verdicts.items() if "chunks of 1:" in promise]


@pytest.mark.slow
def test_pictures_are_drawn_and_shown(smoke):
    for part, picture in (("calibration", "reliability.svg"), ("chunks", "chunk_sizes.svg")):
        assert (smoke / "results" / picture).exists()
        text = (smoke / "results" / f"{part}.md").read_text(encoding="utf-8")
        assert f"]({picture})" in text


@pytest.mark.slow
def test_a_stopped_run_goes_on_and_cells_of_other_code_or_data_are_run_again(smoke, tmp_path):
    (tmp_path / "results").mkdir()
    whole = lines(smoke)
    kept = [line for line in whole if '"oracle"' not in line]
    other = json.loads(kept[0])
    other["result"] |= {"code": "of another day", "emitted": 99.0}
    torn = [json.dumps(other), *kept[1:], whole[0][:30]]  # the last line was being written
    (tmp_path / "results" / "cells.jsonl").write_text("\n".join(torn))
    code, said = measure("--smoke", "--jobs", 1, "--output", tmp_path)
    assert code == 0, said
    assert f"{len(kept) - 1} of {len(whole)} cells are there" in said
    assert "1 cells are of other code or data" in said

    def figures(line):
        record = json.loads(line)
        timed = ("seconds", "chunk_ms")
        reply = {name: v for name, v in record["result"].items() if name not in timed}
        return record["cell"], reply

    assert list(map(figures, lines(tmp_path))) == list(map(figures, whole))


def test_a_smoke_run_beside_the_real_results_and_an_unknown_part_are_refused(
    tmp_path, measure_here
):
    code, said = measure_here("--smoke")
    assert code == 2
    assert "--output" in said
    code, said = measure_here("--smoke", "--output", tmp_path, "--only", "everything")
    assert code == 2
    assert "There are ten, benchmark" in said


def test_nothing_that_is_not_measured_yet_is_reported(tmp_path, measure_here):
    code, said = measure_here("--report-only", "--output", tmp_path)
    assert code == 2
    assert "nothing to report" in said


def test_a_target_is_met_by_as_much_as_is_wanted_unless_less_is(modules):
    target = modules("targets").Target
    assert target("error", 2.0, 2.0).verdict == "met"
    assert target("error", 2.0, 2.0, strictly=True).verdict == "not met"
    assert target("error", 2.004, 2.0).verdict == "not met"  # shown as 2.00
    assert target("error", None, 2.0).verdict == "not measured"


def test_a_mean_over_families_counts_a_family_once_and_needs_every_set(modules):
    targets = modules("targets")
    errors = {"snow_joy": 1.0, "snow_fear": 3.0, "rte": 8.0}
    assert targets.over_sets(errors) == 4.0
    assert targets.over_families(errors) == 5.0
    assert targets.over_families({**errors, "web": None}) is None
    assert targets.over_sets({**errors, "web": None}) is None


def test_the_plan_streams_the_ten_sets_and_names_sets_the_registry_knows(modules):
    from labelquorum.evaluation import known_datasets

    plan = modules("cells").read_plan("plan.toml")
    assert len(plan.sets["ten"]) == 10
    assert set(plan.sets["ten"]) < set(plan.sets["development"]) <= set(known_datasets())
    benchmark = {path.stem for path in (ROOT / "benchmarks" / "online").glob("*.json")}
    assert set(plan.sets["development"]) == benchmark
    assert len(set(plan.cells())) == len(plan.cells())


def test_comments_do_not_change_the_digest_of_the_code_and_code_does(modules, monkeypatch):
    cells = modules("cells")
    before = cells.code_digest()
    read = Path.read_text

    def with_more(text):
        return lambda path, **options: read(path, **options) + text

    for text, same in (("\n# a comment\n", True), ("\nmore = 1\n", False)):
        cells.code_digest.cache_clear()
        monkeypatch.setattr(Path, "read_text", with_more(text))
        assert (cells.code_digest() == before) is same


def test_the_committed_tables_follow_from_the_committed_runs(tmp_path, measure_here):
    if not (FOLDER / "results" / "cells.jsonl").exists():
        assert "Not measured yet" in (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
        return
    (tmp_path / "results").mkdir()
    for name in ("cells.jsonl", "run.json"):
        shutil.copy(FOLDER / "results" / name, tmp_path / "results")
    code, said = measure_here("--report-only", "--output", tmp_path)
    assert code == 0, said
    for part in ("targets", *PARTS):
        for name in (f"results/{part}.md", f"results/{part}.json"):
            both = ((folder / name).read_text(encoding="utf-8") for folder in (tmp_path, FOLDER))
            made, committed = both
            assert made == committed, f"{name}: run python3 run.py accuracy --report-only"
