"""Every fault a stream must survive, provoked for minutes instead of seconds, and written down.

    python3 run.py faults --long

runs `tests/faults` at the size of a long run, two processes at a time, and writes `results/`: what
each test measured, and a table of all faults, which docs/faults.md shows. Without `--long` it runs
them at the size of CI and writes nothing.

    python3 run.py faults --against 1498bf2 --times 7 [--long] [--only NAME …]

runs the attacks on the service of that commit and of this one in turn, one process at a time, and
writes what each has measured, with medians, to `results/against.md`. There tests of the other
commit may fail; what they measured before they did counts.
"""

import argparse
import json
import os
import platform
import sqlite3
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
COMMAND = "python3 run.py faults"
MOST = ("seconds", "MB")  # figures of which the largest is reported; of others the sum
ATTACKS = (
    "streams",
    "connections",
    "readers",
    "long_writes",
    "questions",
    "jury",
    "client",
    "load",
)
"""Tests that drive the service from outside, and so can be run on another commit."""


def run_tests(long: bool, only: list[str], xml: Path, source: Path | None = None) -> int:
    """Run the tests, of the package in another folder if `source` is given; give the exit code."""
    variables = {"LABELQUORUM_CI": "1", "LABELQUORUM_FAULTS": "long" if long else ""}
    files = [f"tests/faults/test_{name}.py" for name in only] or ["tests/faults"]
    files += ["--ignore=tests/faults/test_report.py"]  # which reads what is to be written
    processes = "2"
    if source is not None:
        variables["PYTHONPATH"], processes = str(source), "1"
    arguments = ["-n", processes, "--dist", "worksteal", "-q", "-m", "", f"--junitxml={xml}"]
    arguments += files
    return subprocess.run(
        [sys.executable, "-m", "pytest", *arguments], cwd=ROOT, env={**os.environ, **variables}
    ).returncode


def read_tests(xml: Path) -> dict[str, dict[str, Any]]:
    """What each test found, all its cases together, by file and name."""
    tests: dict[str, dict[str, Any]] = {}
    for case in ElementTree.parse(xml).iter("testcase"):
        file = case.get("classname", "").replace(".", "/") + ".py"
        name = f"{file}::{case.get('name', '').partition('[')[0]}"
        found = tests.setdefault(name, {"cases": 0, "failed": 0, "seconds": 0.0, "figures": {}})
        found["cases"] += 1
        found["failed"] += any(case.find(kind) is not None for kind in ("failure", "error"))
        found["failed"] += case.find("skipped") is not None
        found["seconds"] = round(found["seconds"] + float(case.get("time", 0)), 2)
        for one in case.iter("property"):
            label, value = one.get("name", ""), float(one.get("value", "nan"))
            before = found["figures"].get(label)
            if before is not None:
                value = max(before, value) if label.startswith(MOST) else before + value
            found["figures"][label] = int(value) if value == int(value) else value
    return tests


@contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """Give the folder `src` of another commit, with its compiled parts, until it is left."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "-q", "--detach", tree, revision], check=True)
        try:
            build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
            subprocess.run(build, cwd=tree, check=True)
            yield tree / "src"
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], check=True)


def compare(revision: str, times: int, long: bool, only: list[str]) -> dict[str, Any]:
    """Measure another commit and this one in turn; give all figures, by test and name."""
    figures: dict[str, dict[str, dict[str, list[float]]]] = {}
    with checkout(revision) as before, tempfile.TemporaryDirectory() as folder:
        for number in range(times):
            for which, source in (("before", before), ("now", ROOT / "src")):
                print(f"round {number + 1} of {times}: {which}", file=sys.stderr, flush=True)
                xml = Path(folder) / "tests.xml"
                xml.unlink(missing_ok=True)
                run_tests(long, only or list(ATTACKS), xml, source)
                for case in ElementTree.parse(xml).iter("testcase"):
                    name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
                    for one in case.iter("property"):
                        found = figures.setdefault(name, {}).setdefault(one.get("name", ""), {})
                        found.setdefault(which, []).append(float(one.get("value", "nan")))
    return figures


def table_against(reply: dict[str, Any]) -> str:
    """The medians of both commits in Markdown, with their ratio and their spread."""
    columns = f"| test | figure | {reply['against']} | now | now / before | n |"
    lines = [columns, "|---|---|---:|---:|---:|---:|"]
    for test, figures in reply["figures"].items():
        for name, found in figures.items():
            cells, middles = [], []
            for which in ("before", "now"):
                values = found.get(which, [])
                if not values:
                    cells.append("–")
                    continue
                middles.append(median(values))
                cells.append(f"{middles[-1]:,.4g} ({min(values):,.4g} to {max(values):,.4g})")
            ratio = f"{middles[1] / middles[0]:.2f}" if len(middles) == 2 and middles[0] else "–"
            n = max(map(len, found.values()))
            title = test.replace("_", " ").replace("::", ": ")
            lines.append(f"| {title} | {name} | {cells[0]} | {cells[1]} | {ratio} | {n} |")
    made = reply["made"]
    return (
        "\n".join(lines) + f"\n\nMedians (smallest to largest). Made by `{made['command']}` in "
        f"{made['seconds'] / 60:.0f} minutes on {made['cores']} cores, {made['machine']}.\n"
    )


def facts(seconds: float, command: str = f"{COMMAND} --long") -> dict[str, Any]:
    """What the figures were made with. No path is in it."""
    return {
        "command": command,
        "seconds": round(seconds),
        "labelquorum": version("labelquorum"),
        "sqlite": sqlite3.sqlite_version,
        "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "cores": os.cpu_count(),
    }


def table(reply: dict[str, Any]) -> str:
    """The faults, how each is provoked, where its test is and what was measured, in Markdown."""
    lines = ["| fault | how it is provoked | test | measured |", "|---|---|---|---|"]
    plan = tomllib.loads((HERE / "plan.toml").read_text(encoding="utf-8"))
    for row in plan["fault"]:
        found = [reply["tests"].get(name) for name in row["tests"]]
        files = dict.fromkeys(name.partition("::")[0] for name in row["tests"])
        links = ", ".join(f"[{Path(file).stem}](../{file})" for file in files)
        measured = "in CI"
        if found and all(found):
            measured = _measured(found, row.get("figures", []))
        elif found:
            measured = "not measured yet"
        where = links or row["elsewhere"]
        lines.append(f"| {row['name']} | {row['how']} | {where} | {measured} |")
    made = reply["made"]
    return (
        "\n".join(lines)
        + f"\n\nMade by `{made['command']}` in {made['seconds'] / 60:.0f} minutes on "
        f"{made['cores']} cores, SQLite {made['sqlite']}, {made['machine']}.\n"
    )


def _measured(found: list[Any], wanted: list[str]) -> str:
    cases, failed = (sum(one[name] for one in found) for name in ("cases", "failed"))
    parts = []
    for name in wanted:
        values = [one["figures"][name] for one in found if name in one["figures"]]
        if values:
            value = max(values) if name.startswith(MOST) else sum(values)
            parts.append(f"{value:,} {name}" if name[0].islower() else f"{name} {value:,}")
    held = "held" if cases == 1 else f"all {cases} cases held"
    return "; ".join([*parts, f"**{failed} of {cases} cases failed**" if failed else held])


def measure_against(options: argparse.Namespace, results: Path) -> int:
    """Write what both commits measured; attacks that were not run keep their figures."""
    file, began = results / "against.json", perf_counter()
    found = compare(options.against, options.times, options.long, options.only)
    before = {"figures": {}, "made": {"seconds": 0}}
    if options.only and file.exists():
        before = json.loads(file.read_text(encoding="utf-8"))
    command = f"{COMMAND} --against {options.against} --times {options.times}"
    command += " --long" * options.long
    seconds = before["made"]["seconds"] + perf_counter() - began
    reply = {
        "against": options.against,
        "made": facts(seconds, command),
        "figures": dict(sorted((before["figures"] | found).items())),
    }
    file.write_text(json.dumps(reply, indent=1) + "\n", encoding="utf-8")
    (results / "against.md").write_text(table_against(reply), encoding="utf-8")
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog=COMMAND, description=(__doc__ or "").partition("\n")[0], allow_abbrev=False
    )
    parser.add_argument("--long", action="store_true", help="for minutes; writes results/")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", default=[], help="kills, power, …; the rest stays"
    )
    parser.add_argument("--report-only", action="store_true", help="run nothing, write the table")
    parser.add_argument("--against", metavar="REVISION", help="measure that commit and this one")
    parser.add_argument("--times", type=int, default=7, help="of each, in turn; default: 7")
    parser.add_argument("--output", type=Path, default=HERE, help="default: beside this file")
    options = parser.parse_args(arguments)
    results = options.output / "results"
    results.mkdir(parents=True, exist_ok=True)
    if options.against:
        return measure_against(options, results)
    file, code = results / "long.json", 0
    if not options.report_only:
        began = perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            xml = Path(folder) / "tests.xml"
            code = run_tests(options.long, options.only, xml)
            if not options.long or not xml.exists():
                return code
            found, before = read_tests(xml), {"made": {"seconds": 0}, "tests": {}}
        if options.only and file.exists():
            before = json.loads(file.read_text(encoding="utf-8"))
        seconds = before["made"]["seconds"] + perf_counter() - began
        reply = {"made": facts(seconds), "tests": dict(sorted((before["tests"] | found).items()))}
        file.write_text(json.dumps(reply, indent=1) + "\n", encoding="utf-8")
    elif not file.exists():
        parser.error(f"there is nothing to report in {results} yet. Run it with --long.")
    reply = json.loads(file.read_text(encoding="utf-8"))
    (results / "faults.md").write_text(table(reply), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
