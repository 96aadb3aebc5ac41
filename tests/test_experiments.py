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
METHODS = tomllib.loads((FOLDER / "plan.toml").read_text(encoding="utf-8"))["methods"]


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
def module(monkeypatch):
    """Imports a module of the experiment."""
    monkeypatch.delenv("LABELQUORUM_DATA", raising=False)
    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:  # another experiment has modules of the same names
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(FOLDER)):
            del sys.modules[name]


@pytest.fixture
def reproduce_here(module, capsys):
    """`reproduce` without a subprocess, for what runs no cell."""

    def run(*arguments):
        try:
            code = module("reproduce").main(list(map(str, arguments)))
        except SystemExit as stop:
            code = stop.code
        return code, capsys.readouterr().err

    return run


def run_script(script, monkeypatch, *arguments):
    """Run a script in this process, which has imported and compiled much of what it needs."""
    monkeypatch.setattr(sys, "argv", [str(script), *map(str, arguments)])
    runpy.run_path(str(script), run_name="__main__")


@pytest.mark.slow
def test_without_data_the_synthetic_crowds_are_run_and_the_rest_is_left_out(smoke):
    folder, said = smoke
    assert "rte is left out" in said
    assert "balanced digits" in said
    assert {json.loads(line)["cell"]["data"] for line in cells(folder)} == {"pendigits", "cifar10"}
    text = text_of(folder)
    assert "the crowd labelled balanced digits" in text
    assert "data not available" in text


@pytest.mark.slow
def test_the_oracle_errs_least_and_bila_less_than_the_vote(smoke):
    folder, _ = smoke
    found = {}
    for row in rows(folder, "table2"):
        errors = {cell["method"]: cell["mean"] for cell in row["cells"] if "mean" in cell}
        if "default" in errors:
            found[row["variant"]] = row["oracle"]["mean"], errors["default"], errors["mv"]
    assert set(found) == {"", "structured crowd"}
    for oracle, ours, vote in found.values():
        assert oracle < ours < vote


@pytest.mark.slow
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


@pytest.mark.slow
def test_every_statement_is_judged_for_each_preset_by_its_parts(smoke):
    folder, _ = smoke
    for row in rows(folder, "prose"):
        judged = {one["subject"] for one in row["judged"]}
        presets, others = {"authors", "www2021", "default"}, {"baselines"}
        assert (
            judged
            == {
                "bila": presets,
                "baselines": others,
                "both": presets | others,
                "optimiser": {"www2021"},
            }[row["about"]]
        )
        for one in row["judged"]:
            parts = [part for each in one["protocols"] if each["counts"] for part in each["parts"]]
            right = [part["holds"] for part in parts]
            given = "holds" if all(right) else "holds in part" if any(right) else "does not hold"
            if row.get("data") and len(row["untested"]) == len(row["data"]):
                given = "cannot be tested"
            elif not right:
                given = "not measured"
            assert one["verdict"] == given


@pytest.mark.slow
def test_a_statement_about_age_alone_cannot_be_tested_without_it(smoke):
    folder, _ = smoke
    by = {row["name"]: row for row in rows(folder, "prose")}
    [one] = by["faster_than_rmsprop"]["judged"]
    assert one["verdict"] == "cannot be tested"
    assert one["protocols"]  # other data stand in, and do not count
    assert not any(each["counts"] for each in one["protocols"])
    assert "cannot be tested without Age" in " ".join(text_of(folder).split())


@pytest.mark.slow
def test_the_log_is_reported_at_the_points_that_were_reached(smoke):
    folder, _ = smoke
    log = rows(folder, "log")
    assert [row["items"] for row in log["rows"]] == [500, 1000]
    assert [row["log"] for row in log["rows"]] == [14.8, 15.6]
    assert not log["complete"] and not log["within"]


@pytest.mark.slow
def test_the_limits_of_the_default_are_taken_on_the_worst_seed(smoke):
    folder, _ = smoke
    limits = rows(folder, "limits")
    assert {row["crowd"] for row in limits} == {"homogeneous crowd", "structured crowd"}
    assert {row["noise"] for row in limits} == {0.6, 0.8}
    for row in limits:
        least = {k: row["errors"]["default"] - row["errors"][k] for k in ("mv", "recipe", "oracle")}
        assert all(row["excess"][k] >= least[k] - 1e-3 for k in least)


@pytest.mark.slow
def test_the_page_needs_nothing_but_itself_and_names_no_folder(smoke):
    folder, _ = smoke
    for path in (folder / "results").iterdir():
        text = path.read_text(encoding="utf-8")
        assert str(folder) not in text
        assert str(ROOT) not in text
    page = (folder / "results" / "report.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert not re.search(r'(?:src|href)="(?!#)', page)


@pytest.mark.slow
def test_a_stopped_run_continues_and_a_method_that_changed_is_run_again(smoke, tmp_path):
    folder, _ = smoke
    (tmp_path / "results").mkdir()
    shutil.copy(folder / "results" / "fingerprints.json", tmp_path / "results")
    whole = cells(folder)
    kept = [line for line in whole if "oracle" not in line]
    other = [  # the vote was another one then
        line.replace('"made_by": "', '"made_by": "x') if '"mv"' in line else line for line in kept
    ]
    torn = [*other, whole[0][:30]]  # the last line was being written
    (tmp_path / "results" / "cells.jsonl").write_text("\n".join(torn) + "\n")
    code, said = reproduce("--smoke", "--jobs", 1, "--output", tmp_path)
    assert code == 0, said
    assert "dropped: mv." in said
    still = [line for line in kept if '"method": "mv"' not in line]
    assert f"{len(still)} of {len(whole)} cells are there" in said
    assert set(still) < set(cells(tmp_path))
    for table in ("table2", "limits"):
        first, second = rows(folder, table), rows(tmp_path, table)
        for row in (*first, *second):
            for cell in row.get("cells", []):
                cell.pop("chunk_milliseconds", None)
        assert first == second


def test_a_smoke_run_beside_the_real_results_is_refused(reproduce_here):
    code, said = reproduce_here("--smoke")
    assert code == 2
    assert "--output" in said


@pytest.mark.slow
@pytest.mark.skipif("LABELQUORUM_DATA" not in os.environ, reason="needs the folder of data sets")
def test_with_data_the_real_tables_are_measured_too(smoke, tmp_path):
    # It continues the run without data; of the synthetic crowd it has the oracle and the vote
    # to do, which compile nothing.
    quick = [f'"method": "{method}"' for method in ("oracle", "mv")]
    kept = [line for line in cells(smoke[0]) if not any(method in line for method in quick)]
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "cells.jsonl").write_text("\n".join([*kept, ""]))
    shutil.copy(smoke[0] / "results" / "fingerprints.json", tmp_path / "results")
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
            assert not [name.name for name in node.names if name.name.startswith("_")]
            assert not any(part.startswith("_") for part in node.module.split("."))


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
    tables = ("table1", "table2", "table3", "prose", "log", "limits")
    for name in ("README.md", *(f"results/{table}.json" for table in tables)):
        made, committed = ((each / name).read_text(encoding="utf-8") for each in (tmp_path, FOLDER))
        assert made == committed, f"{name}: run python3 run.py reproduce --report-only"
    page = (FOLDER / "results" / "report.html").read_text(encoding="utf-8")
    for row in (*rows(FOLDER, "table2"), *rows(FOLDER, "table3")):
        for cell in row["cells"]:
            assert "mean" not in cell or f"{cell['mean']:.2f} ± {cell['sd']:.2f}" in page


# ── results of other code ────────────────────────────────────────────────────────────────────

STALE = "experiments/www2021/results was made by other code: run `python3 run.py reproduce`"


def test_every_committed_run_remembers_the_committed_fingerprint_of_its_method(module):
    known = module("fingerprints").read(FOLDER / "results")
    records = [json.loads(line) for line in cells(FOLDER)]
    old = module("fingerprints").stale(records, known)
    assert not old, f"{STALE}. Methods: {', '.join(old)}."


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_the_committed_runs_were_made_by_the_code_as_it_is(module, method):
    fingerprints, plan = module("fingerprints"), module("plan").read_plan("plan.toml")
    known = fingerprints.read(FOLDER / "results").get(method)
    chosen = [cell for cell in plan.cells(seeds=1) if cell.method == method]
    assert known and known.agrees(fingerprints.current(plan, chosen)[method]), f"{STALE}. {method}"


def test_a_fingerprint_allows_for_rounding_and_for_nothing_else(module):
    Fingerprint = module("fingerprints").Fingerprint
    made = Fingerprint("01" * 100, [0.9] * 50)
    rounded = Fingerprint("11" + "01" * 99, [0.90001] * 49 + [0.5])
    assert made.agrees(rounded) and rounded.id != made.id
    assert not made.agrees(made._replace(labels="1111" * 2 + made.labels[8:]))
    assert not made.agrees(made._replace(probs=[0.9001] * 50))
    assert not made.agrees(Fingerprint("01", [0.9]))


# ── targets ──────────────────────────────────────────────────────────────────────────────────


def test_the_log_is_followed_within_its_tolerances_or_it_is_not(module):
    targets, Measured = module("targets"), module("cells").Measured
    log = targets.LOG
    protocol = {"chunk": 500, "initial": 1000, "again": True, "crowd": "structured"}

    def measured(shift):
        cell = {"data": "cifar10", "method": "authors", "seed": 0, **protocol}
        points = [[n, e + shift(n)] for n, e in zip(log["items"], log["bila"], strict=True)]
        return Measured([{"cell": cell, "result": {"error": 1, "scored": 1, "curve": points}}])

    assert targets.authors_log(measured(lambda n: 5 if n < 5000 else 0.69))["within"]
    assert targets.authors_log(measured(lambda n: 1.19 if n == 5000 else 0))["within"]
    assert not targets.authors_log(measured(lambda n: 0.71 if n == 10_000 else 0))["within"]
    assert targets.authors_log(Measured([])) is None


def test_one_seed_above_the_vote_breaks_the_limits_of_the_default(module):
    targets, Measured = module("targets"), module("cells").Measured
    protocol = {"chunk": 200, "initial": 1000}

    def measured(default):
        errors = {"default": default, "mv": [25, 20], "recipe": [9, 21], "oracle": [9, 19]}
        return Measured(
            {
                "cell": {"data": "pendigits", "method": method, "seed": seed}
                | ({"chunk": 0} if method == "oracle" else protocol),
                "result": {"error": error, "scored": 1},
            }
            for method, found in errors.items()
            for seed, error in enumerate(found)
        )

    [row] = targets.default_limits(measured([10, 19.9]))
    assert row["holds"] and row["excess"] == pytest.approx({"mv": -0.1, "recipe": 1, "oracle": 1})
    [row] = targets.default_limits(measured([10, 20.1]))
    assert not row["holds"]


# ── other experiments ────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_confidence_is_measured_as_the_committed_figures_were(tmp_path, monkeypatch):
    run_script(CONFIDENCE / "measure.py", monkeypatch, "--smoke", "--output", tmp_path)
    made = json.loads((tmp_path / "measured.json").read_text(encoding="utf-8"))
    kept = json.loads((CONFIDENCE / "results" / "measured.json").read_text(encoding="utf-8"))
    assert made["made"] == kept["made"]
    for part in ("coverage", "gain", "asking"):
        assert set(made[part][0]) == set(kept[part][0])
        assert len(kept[part]) >= 2


@pytest.mark.slow
def test_the_crowd_is_measured_as_the_committed_figures_were(tmp_path, monkeypatch):
    run_script(CROWD / "measure.py", monkeypatch, "--smoke", "--output", tmp_path)
    made = json.loads((tmp_path / "measured.json").read_text(encoding="utf-8"))
    kept = json.loads((CROWD / "results" / "measured.json").read_text(encoding="utf-8"))
    assert made["made"] == kept["made"]
    for part in ("flags", "calm", "stopping"):
        assert set(made[part][0]) == set(kept[part][0])
        assert len(kept[part]) >= 2
