"""The reproduction runs at a size that measures nothing, and its report says what is beside it."""

import ast
import importlib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from html import unescape
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "experiments" / "www2021"
CONFIDENCE = ROOT / "experiments" / "confidence"
CROWD = ROOT / "experiments" / "crowd"
SCRIPTS = sorted((ROOT / "experiments").rglob("*.py"))


def reproduce(*arguments, data=None):
    variables = {name: value for name, value in os.environ.items() if name != "LABELQUORUM_DATA"}
    done = subprocess.run(
        [sys.executable, str(FOLDER / "reproduce.py"), *map(str, arguments)],
        capture_output=True,
        text=True,
        env=variables | ({"LABELQUORUM_DATA": data} if data else {}),
    )
    return done.returncode, done.stderr


def rows(folder, name):
    return json.loads((folder / "results" / f"{name}.json").read_text(encoding="utf-8"))["rows"]


def cells(folder):
    lines = (folder / "results" / "cells.jsonl").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.startswith('{"cell"')]


def text_of(folder):
    page = (folder / "results" / "report.html").read_text(encoding="utf-8")
    page = re.sub(r"<(style|svg).*?</\1>", "", page, flags=re.DOTALL)
    return unescape(re.sub(r"<[^>]+>", " ", page))


@pytest.fixture(scope="session")
def smoke(once):
    """The smoke size without any data set."""

    def make(folder):
        # One process: two would compile the same at the same time.
        code, said = reproduce("--smoke", "--jobs", 1, "--output", folder)
        assert code == 0, said
        return said

    return once("www2021", make)


@pytest.fixture
def reproduce_here(monkeypatch, capsys):
    """`reproduce` without a process of its own, for what runs no cell."""
    monkeypatch.delenv("LABELQUORUM_DATA", raising=False)
    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)

    def run(*arguments):
        try:
            code = importlib.import_module("reproduce").main(list(map(str, arguments)))
        except SystemExit as stop:
            code = stop.code
        return code, capsys.readouterr().err

    yield run
    for name in set(sys.modules) - before:  # another experiment has modules of the same names
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(FOLDER)):
            del sys.modules[name]


def run_script(script, monkeypatch, *arguments):
    """Run a script in this process, which has imported and compiled much of what it needs."""
    monkeypatch.setattr(sys, "argv", [str(script), *map(str, arguments)])
    runpy.run_path(str(script), run_name="__main__")


def test_without_data_the_synthetic_crowd_is_run_and_the_rest_is_said_to_be_left_out(smoke):
    folder, said = smoke
    assert "rte is left out" in said
    assert "balanced digits" in said
    assert {json.loads(line)["cell"]["data"] for line in cells(folder)} == {"pendigits"}
    text = text_of(folder)
    assert "the crowd labelled balanced digits" in text
    assert "data not available" in text


def test_the_oracle_errs_least_and_bila_less_than_the_vote(smoke):
    folder, _ = smoke
    [row] = [row for row in rows(folder, "table2") if row["available"]]
    errors = {cell["method"]: cell["mean"] for cell in row["cells"] if "mean" in cell}
    assert row["oracle"]["mean"] < errors["default"] < errors["mv"]


def test_every_cell_has_a_verdict_and_the_rule_gives_it(smoke):
    folder, _ = smoke
    for table in ("table2", "table3"):
        for row in rows(folder, table):
            for cell in row["cells"]:
                if "mean" not in cell:
                    assert cell["verdict"] in ("not measured", "data not available")
                    continue
                assert cell["difference"] == pytest.approx(cell["mean"] - cell["printed"], abs=1e-3)
                matches = abs(cell["difference"]) <= cell["noise"]
                sign = "better" if cell["difference"] < 0 else "worse"
                assert cell["verdict"] == ("matches within noise" if matches else sign)


def test_every_statement_of_the_paper_has_a_verdict_its_parts_give(smoke):
    folder, _ = smoke
    for row in rows(folder, "prose"):
        right = [part["holds"] for part in row["parts"]]
        given = "holds" if all(right) else "holds in part" if any(right) else "does not hold"
        assert row["verdict"] in (given, "not measured")


def test_the_page_needs_nothing_but_itself_and_names_no_folder(smoke):
    folder, _ = smoke
    for path in (folder / "results").iterdir():
        text = path.read_text(encoding="utf-8")
        assert str(folder) not in text
        assert str(ROOT) not in text
    page = (folder / "results" / "report.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert not re.search(r'(?:src|href)="(?!#)', page)


def test_a_stopped_run_goes_on_where_it_was(smoke, tmp_path):
    folder, _ = smoke
    (tmp_path / "results").mkdir()
    whole = cells(folder)
    kept = [line for line in whole if "oracle" not in line]
    torn = [*kept, whole[0][:30]]  # the last line was being written
    (tmp_path / "results" / "cells.jsonl").write_text("\n".join(torn) + "\n")
    code, said = reproduce("--smoke", "--output", tmp_path)
    assert code == 0, said
    assert f"{len(kept)} of {len(whole)} cells are there" in said
    oracles = [[row["oracle"] for row in rows(each, "table2")] for each in (tmp_path, folder)]
    assert oracles[0] == oracles[1]


def test_a_smoke_run_beside_the_real_results_is_refused(reproduce_here):
    code, said = reproduce_here("--smoke")
    assert code == 2
    assert "--output" in said


@pytest.mark.skipif("LABELQUORUM_DATA" not in os.environ, reason="needs the folder of data sets")
def test_with_data_the_real_tables_are_measured_too(smoke, tmp_path):
    # It goes on from the run without data; of the synthetic crowd it has the oracle and the vote
    # to do, which compile nothing.
    quick = [f'"method": "{method}"' for method in ("oracle", "mv")]
    kept = [line for line in cells(smoke[0]) if not any(method in line for method in quick)]
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "cells.jsonl").write_text("\n".join([*kept, ""]))
    data = os.environ["LABELQUORUM_DATA"]
    code, said = reproduce("--smoke", "--jobs", 1, "--output", tmp_path, data=data)
    assert code == 0, said
    offline = {row["data"]: row["available"] for row in rows(tmp_path, "table3")}
    assert offline["rte"] and offline["adult"]
    counts = {row["data"]: row for row in rows(tmp_path, "table1")}
    assert counts["rte"]["remark"] == "classes: printed 4 (the text says 2), found 2"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.stem}/{path.stem}")
def test_a_script_is_of_modest_size_and_imports_public_names_only(script):
    source = script.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 350
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("labelquorum"):
            public = importlib.import_module(node.module).__all__
            assert {name.name for name in node.names} <= set(public)


def test_every_statement_has_a_check_and_every_check_a_statement():
    paper = tomllib.loads((FOLDER / "paper.toml").read_text(encoding="utf-8"))
    source = (FOLDER / "claims.py").read_text(encoding="utf-8")
    checks = re.search(r"^CHECKS.*?^}", source, re.DOTALL | re.M)[0]
    assert [row["name"] for row in paper["prose"]] == re.findall(r'^    "(\w+)":', checks, re.M)


def test_the_committed_report_follows_from_the_committed_runs(tmp_path, reproduce_here):
    (tmp_path / "results").mkdir()
    for name in ("cells.jsonl", "run.json"):
        shutil.copy(FOLDER / "results" / name, tmp_path / "results")
    shutil.copy(FOLDER / "README.md", tmp_path)
    code, said = reproduce_here("--report-only", "--output", tmp_path)
    assert code == 0, said
    for name in (
        "README.md",
        *(f"results/{n}.json" for n in ("table1", "table2", "table3", "prose")),
    ):
        made, committed = ((each / name).read_text(encoding="utf-8") for each in (tmp_path, FOLDER))
        assert made == committed, f"{name}: run python3 run.py reproduce --report-only"
    page = (FOLDER / "results" / "report.html").read_text(encoding="utf-8")
    for row in (*rows(FOLDER, "table2"), *rows(FOLDER, "table3")):
        for cell in row["cells"]:
            assert "mean" not in cell or f"{cell['mean']:.2f} ± {cell['sd']:.2f}" in page


def test_confidence_is_measured_as_the_committed_figures_were(tmp_path, monkeypatch):
    run_script(CONFIDENCE / "measure.py", monkeypatch, "--smoke", "--output", tmp_path)
    made = json.loads((tmp_path / "measured.json").read_text(encoding="utf-8"))
    kept = json.loads((CONFIDENCE / "results" / "measured.json").read_text(encoding="utf-8"))
    assert made["made"] == kept["made"]
    for part in ("coverage", "gain", "asking"):
        assert set(made[part][0]) == set(kept[part][0])
        assert len(kept[part]) >= 2


def test_the_crowd_is_measured_as_the_committed_figures_were(tmp_path, monkeypatch):
    run_script(CROWD / "measure.py", monkeypatch, "--smoke", "--output", tmp_path)
    made = json.loads((tmp_path / "measured.json").read_text(encoding="utf-8"))
    kept = json.loads((CROWD / "results" / "measured.json").read_text(encoding="utf-8"))
    assert made["made"] == kept["made"]
    for part in ("flags", "calm", "stopping"):
        assert set(made[part][0]) == set(kept[part][0])
        assert len(kept[part]) >= 2
