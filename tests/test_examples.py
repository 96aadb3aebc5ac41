"""The examples run at small size, and show what they promise."""

import ast
import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    def run_example(name, *arguments):
        [script] = (path for path in EXAMPLES if path.name.startswith(name))
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [str(script), *map(str, arguments)])
        runpy.run_path(str(script), run_name="__main__")
        return capsys.readouterr().out

    return run_example


def test_there_are_six_examples_numbered_in_order():
    assert [path.name[:3] for path in EXAMPLES] == ["01_", "02_", "03_", "04_", "05_", "06_"]


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_says_first_what_it_shows(script):
    source = script.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 70
    assert ast.get_docstring(ast.parse(source))


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_imports_public_names_only(script):
    tree = ast.parse(script.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("labelquorum"):
            assert not [name.name for name in node.names if name.name.startswith("_")]
            assert not any(part.startswith("_") for part in node.module.split("."))


def test_01_believes_cleo_rather_than_dan(run):
    shown = run("01")
    assert re.search(r"photo 6 +dog", shown)
    assert shown.rstrip().splitlines()[-1].split()[0] == "dan"  # the least skilled stands last


def test_02_is_right_more_often_where_it_is_sure(run):
    sure, unsure = re.findall(r"([\d.]+)% right(?:,| among)", run("02", 400))[-2:]
    assert float(sure) > float(unsure) + 10


def test_03_finds_the_five_bad_workers(run):
    shown = run("03", 600)
    lowest = shown.split("worker ")[1].split("\n\n")[0].splitlines()[1:6]
    assert not any(line.startswith("honest") for line in lowest)
    assert "mixed up" in shown


def test_04_takes_late_labels_and_corrections_and_starts_anew_once_closed(run):
    lines = run("04", 200).splitlines()
    answers = [re.search(r"→ (\d)", line)[1] for line in lines]
    assert answers[0] == answers[4] == "0"
    assert answers[2] == answers[3] == "1"
    tallies = [re.search(r"late (\d), corrected (\d), returned (\d)", line) for line in lines]
    assert [tally.groups() for tally in tallies] == [
        ("0", "0", "0"),
        ("1", "0", "0"),
        ("1", "0", "0"),
        ("1", "1", "0"),
        ("0", "0", "1"),
    ]


@pytest.mark.slow
def test_05_errs_no_more_than_majority_vote_and_no_less_than_the_oracle(run):
    errors = map(float, re.findall(r"([\d.]+)% wrong", run("05", 1000)))
    vote, matrices, one_skill, default, oracle = errors
    assert oracle <= one_skill <= vote
    assert oracle <= default <= vote
    assert matrices <= vote + 2
