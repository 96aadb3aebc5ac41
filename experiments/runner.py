"""Run the cells of an experiment over several processes, and keep each as soon as it is done.

A cell is one run. A file of JSON lines has one record per cell, so a run that was stopped continues
from there. What a cell is, and what it measures, is up to the experiment.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

__all__ = ["keep_records", "read_lines", "read_records", "run_cells", "say"]

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}
"""For each process, so that it keeps one core busy and no more."""
MAX_REPORTED = 20  # failures that are reported one by one


def run_cells(
    todo: Sequence[Any],
    task: Callable[[Any], tuple[Any, ...]],
    cost: Callable[[Any], float],
    file: Path,
    jobs: int,
) -> int:
    """Run cells and add a record of each to a file; return the number that failed.

    A cell has `data`, `method` and `to_json()`. `task` returns what a process is to call for it: a
    function and its arguments. `cost` is the expected time in seconds.
    """
    os.environ.update({name: os.environ.get(name, value) for name, value in ONE_THREAD.items()})
    failed, began = 0, perf_counter()
    # At Ctrl-C a process of the pool just ends; its cell is run again.
    on_interrupt = (signal.SIGINT, signal.SIG_DFL)
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), signal.signal, on_interrupt)
    try:
        with progress(todo, cost) as advance, file.open("a", encoding="utf-8") as lines:
            if lines.tell() and not file.read_bytes().endswith(b"\n"):
                lines.write("\n")  # after an incomplete line
            futures: dict[Future[Any], Any] = {pool.submit(*task(cell)): cell for cell in todo}
            for future in as_completed(futures):
                cell = futures[future]
                if error := future.exception():
                    failed += 1
                    if failed <= MAX_REPORTED:
                        say(f"{cell.to_json()}: {type(error).__name__}: {error}")
                else:
                    record = {"cell": cell.to_json(), "result": future.result()}
                    lines.write(json.dumps(record) + "\n")
                    lines.flush()
                advance(cell)
    except KeyboardInterrupt:
        say("Stopped. The same command continues from here.")
        sys.exit(130)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        if todo:
            with file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps({"session_seconds": round(perf_counter() - began)}) + "\n")
    return failed


def read_lines(file: Path) -> list[dict[str, Any]]:
    """All complete lines; one that a stopped run left incomplete is run again."""
    found = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found


def read_records(file: Path) -> list[dict[str, Any]]:
    return [line for line in read_lines(file) if "cell" in line]


def keep_records(file: Path, wanted: Callable[[dict[str, Any]], bool]) -> None:
    """Drop the other records; the file is replaced at once."""
    kept = [line for line in read_lines(file) if "cell" not in line or wanted(line)]
    if not any("cell" in line for line in kept):
        kept = []  # nor does the time of earlier sessions count
    beside = file.with_suffix(".part")
    beside.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
    os.replace(beside, file)


@contextmanager
def progress(cells: Sequence[Any], cost: Callable[[Any], float]) -> Iterator[Any]:
    """A bar on a terminal, else one line per minute; both show the time that remains."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    total = sum(map(cost, cells))
    terminal = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.completed:.0f} %"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("elapsed,"),
        TimeRemainingColumn(),
        TextColumn("left   {task.description}"),
        console=terminal,
        disable=not terminal.is_terminal,
        speed_estimate_period=300,
    )
    task = bar.add_task("", total=100)
    began = reported = perf_counter()
    spent, count = 0.0, 0

    def advance(cell: Any) -> None:
        nonlocal reported, spent, count
        spent, count = spent + cost(cell), count + 1
        bar.update(task, completed=100 * spent / total, description=f"{cell.data}, {cell.method}")
        now = perf_counter()
        if not terminal.is_terminal and (now - reported > 60 or count == len(cells)):
            reported, left = now, max((now - began) * (total - spent) / spent, 0)
            say(
                f"{count} of {len(cells)} cells, {(now - began) / 60:.1f} min, {left / 60:.1f} left"
            )

    with bar:
        yield advance


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
