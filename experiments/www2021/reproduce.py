"""The paper reproduced: Tables 1–3, Figures 2, 4, 5 and 6, and the numbers in its text.

    python3 run.py reproduce

runs every cell of `plan.toml`, two at a time, and writes `results/`: the figures as JSON, the
pictures, and `report.html`. Each cell is kept in `results/cells.jsonl` as soon as it is done; a
run that was stopped goes on from there. LABELQUORUM_DATA names the folder of data sets; without
it the synthetic crowds label balanced digits, and the rest is left out.
"""

import argparse
import json
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cells import (
    HERE,
    SYNTHETIC,
    Cell,
    Measured,
    Plan,
    can_run,
    counts,
    has_data,
    measure,
    read_plan,
)

sys.path.append(str(HERE.parent))  # what experiments share
from runner import read_lines, read_records, run_cells, say

COMMAND = "python3 run.py reproduce"
REAL = ("adult", "rte", "heart", "age")


def run_plan(plan: Plan, cells: list[Cell], file: Path, jobs: int) -> int:
    """Run what is not in the file yet; give the number that failed."""
    done = {Cell.from_json(record["cell"]) for record in read_records(file)}
    todo = [cell for cell in cells if cell not in done]
    if len(todo) < len(cells):
        say(f"{len(cells) - len(todo)} of {len(cells)} cells are there already.")
    return run_cells(
        todo, lambda cell: (measure, cell, plan.methods[cell.method]), plan.cost, file, jobs
    )


def facts(arguments: list[str], file: Path) -> dict[str, Any]:
    """What the figures were made with and of. No path is in it."""
    records = read_records(file)
    used = sorted({record["cell"]["data"] for record in records})
    seconds = [line["session_seconds"] for line in read_lines(file) if "session_seconds" in line]
    return {
        "command": " ".join([COMMAND, *arguments]),
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


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog=COMMAND, description=(__doc__ or "").partition("\n")[0], allow_abbrev=False
    )
    parser.add_argument("--smoke", action="store_true", help="a few small cells; needs --output")
    parser.add_argument("--report-only", action="store_true", help="run nothing, write the report")
    parser.add_argument("--seeds", type=int, help="at most so many; plan.toml says how many")
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
        failed = run_plan(plan, [cell for cell in cells if can_run(cell)], file, options.jobs)
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
