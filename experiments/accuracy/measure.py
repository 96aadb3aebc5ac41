"""Every target of accuracy measured: real crowds, the paper's, chunk sizes, probabilities, trouble.

    python3 run.py accuracy

runs every cell of `plan.toml`, two at a time, and writes `results/`: a Markdown table and a JSON
file for each part, and pictures, which docs/accuracy.md shows. Each cell is kept in
`results/cells.jsonl` as soon as it is done; a run that was stopped goes on from there. A cell whose
code or data have changed since is run again. LABELQUORUM_DATA names the folder of data sets; what
it does not have is left out and said to be missing.
"""

import argparse
import json
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cells import HERE, Cell, Measured, Plan, read_plan

sys.path.append(str(HERE.parent))  # what experiments share
from runner import read_lines, read_records, run_cells, say

COMMAND = "python3 run.py accuracy"


def run_plan(plan: Plan, cells: list[Cell], file: Path, jobs: int, keep_old: bool) -> int:
    """Run what is not in the file yet, or is there of other code or data."""
    say("Looking at the code and the data…")
    latest = {Cell(**record["cell"]): record["result"] for record in read_records(file)}

    def is_done(cell: Cell) -> bool:
        reply = latest.get(cell)
        if reply is None:
            return False
        now = plan.digests(cell)
        return bool(reply["data"] == now["data"] and (keep_old or reply["code"] == now["code"]))

    todo = [cell for cell in cells if not is_done(cell)]
    old = sum(cell in latest for cell in todo)
    if len(todo) < len(cells):
        say(f"{len(cells) - len(todo)} of {len(cells)} cells are there already.")
    if old:
        say(f"{old} cells are of other code or data and are run again.")
    return run_cells(todo, plan.task, plan.cost, file, jobs)


def tidy(file: Path) -> None:
    """Keep the last record of each cell, in order, and the time of all sessions."""
    lines = read_lines(file)
    latest = {Cell(**line["cell"]): line for line in lines if "cell" in line}
    kept = [latest[cell] for cell in sorted(latest, key=lambda cell: str(cell.to_json()))]
    seconds = sum(line.get("session_seconds", 0) for line in lines)
    text = "".join(json.dumps(line) + "\n" for line in [*kept, {"session_seconds": seconds}])
    beside = file.with_suffix(".part")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, file)


def facts(smoke: bool, file: Path) -> dict[str, Any]:
    """What the figures were made with. No path is in it."""
    records = read_records(file)
    seconds = [line["session_seconds"] for line in read_lines(file) if "session_seconds" in line]
    return {
        "command": f"{COMMAND} --smoke" if smoke else COMMAND,
        "smoke": smoke,
        "cells": len(records),
        "session_seconds": sum(seconds),
        "cell_seconds": round(sum(record["result"]["seconds"] for record in records)),
        "states_of_code": len({record["result"]["code"] for record in records}),
        "labelquorum": version("labelquorum"),
        "jax": version("jax"),
        "numpy": version("numpy"),
        "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "cores": os.cpu_count(),
    }


def main(arguments: list[str] | None = None) -> int:
    from report import PARTS, write_all

    parser = argparse.ArgumentParser(
        prog=COMMAND, description=(__doc__ or "").partition("\n")[0], allow_abbrev=False
    )
    parser.add_argument("--smoke", action="store_true", help="a few small cells; needs --output")
    parser.add_argument("--report-only", action="store_true", help="run nothing, write the report")
    parser.add_argument("--only", nargs="+", metavar="PART", default=[], help=", ".join(PARTS))
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--keep-old", action="store_true", help="even cells of other code are done")
    parser.add_argument("--output", type=Path, default=HERE, help="default: beside this file")
    options = parser.parse_args(arguments)
    if options.smoke and options.output == HERE:
        parser.error("--smoke needs --output DIR, so that it replaces no real result.")
    if options.jobs < 1:
        parser.error("--jobs must be at least 1.")
    if unknown := [part for part in options.only if part not in PARTS]:
        parser.error(f"--only {unknown[0]}: there is no such part. There are {', '.join(PARTS)}.")
    plan = read_plan("smoke.toml" if options.smoke else "plan.toml")
    results = options.output / "results"
    file = results / "cells.jsonl"
    if options.report_only and not (results / "run.json").exists():
        parser.error(f"there is nothing to report in {results} yet. Leave out --report-only.")
    results.mkdir(parents=True, exist_ok=True)

    failed = 0
    if not options.report_only:
        cells = plan.cells(options.only)
        for data in sorted({cell.data for cell in cells if not plan.can_run(cell)}):
            say(f"{data} is left out: LABELQUORUM_DATA does not name a folder that has it.")
        ready = [cell for cell in cells if plan.can_run(cell)]
        failed = run_plan(plan, ready, file, options.jobs, options.keep_old)
        tidy(file)
        made = facts(options.smoke, file)
        (results / "run.json").write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")

    made = json.loads((results / "run.json").read_text(encoding="utf-8"))
    plan = read_plan("smoke.toml" if made["smoke"] else "plan.toml")
    write_all(Measured(read_records(file), plan.cells()), plan, made, results)
    say(f"Written: {results / 'targets.md'}, and the tables beside it.")
    if failed:
        say(f"{failed} cells failed; see above. The same command tries them again.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
