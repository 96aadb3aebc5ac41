"""The table of faults names tests that exist, and follows from what was measured."""

import ast
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "experiments" / "faults"
PLAN = tomllib.loads((FOLDER / "plan.toml").read_text(encoding="utf-8"))["fault"]


def names_in(file):
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if getattr(node, "name", "").startswith("test_")}


@pytest.mark.parametrize("row", PLAN, ids=lambda row: row["name"])
def test_every_row_names_tests_that_exist(row):
    assert row["tests"] or row["elsewhere"]
    for link in re.findall(r"\]\(\.\./(.*?)\)", row.get("elsewhere", "")):
        assert (ROOT / link).exists()
    for name in row["tests"]:
        file, _, test = name.partition("::")
        assert test in names_in(ROOT / file)


def test_every_test_of_faults_stands_behind_a_row():
    named = {name for row in PLAN for name in row["tests"]}
    for file in Path(__file__).parent.glob("test_*.py"):
        if file != Path(__file__):
            for test in names_in(file):
                assert f"tests/faults/{file.name}::{test}" in named


def test_the_committed_table_follows_from_the_committed_run(tmp_path):
    (tmp_path / "results").mkdir()
    shutil.copy(FOLDER / "results" / "long.json", tmp_path / "results")
    command = [sys.executable, FOLDER / "measure.py", "--report-only", "--output", tmp_path]
    subprocess.run(command, check=True, timeout=60)
    made, committed = (
        (each / "results" / "faults.md").read_text(encoding="utf-8") for each in (tmp_path, FOLDER)
    )
    assert made == committed, "run python3 run.py faults --report-only"


def test_the_committed_run_was_long_enough():
    tests = json.loads((FOLDER / "results" / "long.json").read_text(encoding="utf-8"))["tests"]
    assert not any(test["failed"] for test in tests.values())
    [kills] = [test["figures"] for name, test in tests.items() if "killed_again" in name]
    assert kills["kills in SQLite"] >= 2000
    assert kills["kills in PostgreSQL"] >= 200
    assert kills["lost"] == kills["doubled"] == 0
