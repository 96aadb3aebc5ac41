"""The paper reproduced: Tables 1–3, Figures 2, 4, 5 and 6, the statements of its text, and its log.

    python3 run.py reproduce

runs every cell of `plan.toml`, two at a time, and writes `results/`: the figures as JSON, the
pictures, and `report.html`. Each cell is kept in `results/cells.jsonl` as soon as it is done; a
run that was stopped continues from there. Cells of a method that answers differently now are run
again (see fingerprints.py). LABELQUORUM_DATA names the folder of data sets; without it the
synthetic crowds label balanced digits, and the rest is left out.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import fingerprints
from cells import Measured, can_run, counts, has_data, measure
from plan import HERE, SYNTHETIC, Cell, Plan, read_plan

sys.path.append(str(HERE.parent))  # what experiments share
from runner import keep_records, read_lines, read_records, run_cells, say

COMMAND = "python3 run.py reproduce"
REAL = ("adult", "rte", "heart", "age")


def run_plan(plan: Plan, planned: list[Cell], results: Path, jobs: int) -> int:
    """Run what is missing or was made by other code; return the number of cells that failed."""
    file = results / "cells.jsonl"
    cells = [cell for cell in planned if can_run(cell)]
    used = {cell.method for cell in cells} | {r["cell"]["method"] for r in read_records(file)}
    say("Computing the fingerprints of the methods…")
    now = fingerprints.current(plan, [cell for cell in planned if cell.method in used])
    known = fingerprints.settle(fingerprints.read(results), now)
    old = fingerprints.stale(read_records(file), known)
    if old:
        say(f"Made by other code, or no longer in the plan, and dropped: {', '.join(old)}.")
        keep_records(file, lambda record: record["cell"]["method"] not in old)
    fingerprints.write(results, known)
    done = {Cell.from_json(record["cell"]) for record in read_records(file)}
    todo = [cell for cell in cells if cell not in done]
    if len(todo) < len(cells):
        say(f"{len(cells) - len(todo)} of {len(cells)} cells are there already.")

    def task(cell: Cell) -> tuple[Any, ...]:
        return measure, cell, plan.methods[cell.method], known[cell.method].id

    return run_cells(todo, task, plan.cost, file, jobs)


def facts(arguments: list[str], file: Path) -> dict[str, Any]:
    """What the figures were made with and of. It contains no path."""
    records = read_records(file)
    used = sorted({record["cell"]["data"] for record in records})
    seconds = [line["session_seconds"] for line in read_lines(file) if "session_seconds" in line]
    return {
        "command": " ".join([COMMAND, *arguments]),
        "commit": commit(),
        "cells": len(records),
        "session_seconds": sum(seconds),
        "cell_seconds": round(sum(record["result"]["cell_seconds"] for record in records)),
        "labelquorum": version("labelquorum"),
        "jax": version("jax"),
        "numpy": version("numpy"),
        "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "cores": os.cpu_count(),
        "data": {name: has_data(name) for name in REAL},
        "counts": {data: counts(data) for data in used},
        "truth": {data: has_data(name) for data, (name, _) in SYNTHETIC.items()},
    }


def commit() -> str | None:
    """The git commit of the code, with "-dirty" where it was changed since."""
    code = ["--", "src", "experiments", ":!experiments/*/results", ":!experiments/*/README.md"]
    try:
        head, changes = (
            subprocess.run(
                ["git", *command], cwd=HERE.parents[1], capture_output=True, text=True, check=True
            ).stdout.strip()
            for command in (["rev-parse", "--short=12", "HEAD"], ["diff", "--stat", "HEAD", *code])
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{head}-dirty" if changes else head


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog=COMMAND, description=(__doc__ or "").partition("\n")[0], allow_abbrev=False
    )
    parser.add_argument("--smoke", action="store_true", help="a few small cells; needs --output")
    parser.add_argument("--report-only", action="store_true", help="run nothing, write the report")
    parser.add_argument("--seeds", type=int, help="maximum number; plan.toml has the usual one")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--output", type=Path, default=HERE, help="default: beside this file")
    options = parser.parse_args(arguments)
    if options.smoke and options.output == HERE:
        parser.error("--smoke needs --output DIR, so that it replaces no real result.")
    if min(options.jobs, 1 if options.seeds is None else options.seeds) < 1:
        parser.error("--jobs and --seeds must be at least 1.")
    plan = read_plan("smoke.toml" if options.smoke else "plan.toml")
    results = options.output / "results"
    if options.report_only and not (results / "run.json").exists():
        parser.error(f"there is nothing to report in {results} yet. Leave out --report-only.")
    results.mkdir(parents=True, exist_ok=True)
    file = results / "cells.jsonl"

    failed = 0
    if not options.report_only:
        cells = plan.cells(options.seeds)
        left_out = sorted({cell.data for cell in cells if not can_run(cell)})
        for data in left_out:
            say(f"{data} is left out: LABELQUORUM_DATA does not name a folder that has it.")
        for data, (name, _) in SYNTHETIC.items():
            if not has_data(name) and any(cell.data == data for cell in cells):
                say(f"{data}: no file of true labels, so the crowd labels balanced digits.")
        failed = run_plan(plan, cells, results, options.jobs)
        shown = [f"--seeds {options.seeds}"] if options.seeds else []
        made = facts([*(["--smoke"] if options.smoke else []), *shown], file)
        (results / "run.json").write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")

    from report import write_all

    measured = Measured(read_records(file))
    made = json.loads((results / "run.json").read_text(encoding="utf-8"))
    write_all(measured, plan, made, options.output)
    say(f"Written: {results / 'report.html'}, and the tables beside it.")
    if failed:
        say(f"{failed} cells failed; see above. The same command tries them again.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
