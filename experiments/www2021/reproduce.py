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
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
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

COMMAND = "python3 run.py reproduce"
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}
"""For each process, so that so many processes keep so many cores busy and no more."""
REAL = ("adult", "rte", "heart", "age")


def run_cells(plan: Plan, cells: list[Cell], file: Path, jobs: int) -> int:
    """Run what is not in the file yet; give the number that failed."""
    done = {Cell.from_json(record["cell"]) for record in read_records(file)}
    todo = [cell for cell in cells if cell not in done]
    if len(todo) < len(cells):
        say(f"{len(cells) - len(todo)} of {len(cells)} cells are there already.")
    os.environ.update({name: os.environ.get(name, value) for name, value in ONE_THREAD.items()})
    failed, began = 0, perf_counter()
    # At Ctrl-C a process of the pool just ends; what it was at is run again.
    on_interrupt = (signal.SIGINT, signal.SIG_DFL)
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), signal.signal, on_interrupt)
    try:
        with progress(plan, todo) as advance, file.open("a", encoding="utf-8") as lines:
            futures: dict[Future[Any], Cell] = {
                pool.submit(measure, cell, plan.methods[cell.method]): cell for cell in todo
            }
            for future in as_completed(futures):
                cell = futures[future]
                if error := future.exception():
                    failed += 1
                    say(f"{cell.to_json()}: {type(error).__name__}: {error}")
                else:
                    record = {"cell": cell.to_json(), "result": future.result()}
                    lines.write(json.dumps(record) + "\n")
                    lines.flush()
                advance(cell)
    except KeyboardInterrupt:
        say("Stopped. The same command goes on from here.")
        sys.exit(130)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        if todo:
            with file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps({"session_seconds": round(perf_counter() - began)}) + "\n")
    return failed


def read_lines(file: Path) -> list[dict[str, Any]]:
    """All whole lines; one that a stopped run tore is run again."""
    found = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found


def read_records(file: Path) -> list[dict[str, Any]]:
    return [line for line in read_lines(file) if "cell" in line]


@contextmanager
def progress(plan: Plan, cells: list[Cell]) -> Iterator[Any]:
    """A bar on a terminal, else a line a minute; both tell the time that remains."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    total = sum(map(plan.cost, cells))
    terminal = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.completed:.0f} %"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("gone,"),
        TimeRemainingColumn(),
        TextColumn("left   {task.description}"),
        console=terminal,
        disable=not terminal.is_terminal,
        speed_estimate_period=300,
    )
    task = bar.add_task("", total=100)
    began = told = perf_counter()
    spent, count = 0.0, 0

    def advance(cell: Cell) -> None:
        nonlocal told, spent, count
        spent, count = spent + plan.cost(cell), count + 1
        bar.update(task, completed=100 * spent / total, description=f"{cell.data}, {cell.method}")
        now = perf_counter()
        if not terminal.is_terminal and (now - told > 60 or count == len(cells)):
            told, left = now, max((now - began) * (total - spent) / spent, 0)
            say(
                f"{count} of {len(cells)} cells, {(now - began) / 60:.1f} min, {left / 60:.1f} left"
            )

    with bar:
        yield advance


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


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


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
        failed = run_cells(plan, [cell for cell in cells if can_run(cell)], file, options.jobs)
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
