"""Labels per second and memory, by size and cores: LabelQuorum on Spark, and what stands beside it.

    python3 run.py spark experiments/spark/scale.py --save [--sizes 1e5 1e6 1e7 1e8] [--ways …]

A simulated lake of Parquet files is read in each of the `ways.py`, in a subprocess, by one
core and by two. All have 8 GB; what stands beside us has 10 minutes too, and a way that came to a
limit is not tried with more labels. A cell is saved as soon as it is measured, and not measured
again unless `--again` is given. Peak memory is that of each kind of process: the driver, the Java
of Spark, and the largest of its Python workers; `all` is their sum at one moment.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from lake import write_labels
from ways import WAYS

import labelquorum as lq

HERE = Path(__file__).resolve().parent
COMMAND = "python3 run.py spark experiments/spark/scale.py --save"
MEMORY, SECONDS, PATIENCE = 8 << 30, 600, 3 * 3600
BESIDE = ("plain", "crowdkit")  # which have at most SECONDS
STREAMED = 10**7  # labels, at most
SAME = ("way", "labels", "cores")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def watch(pid: int, limit: int) -> tuple[dict[str, int], threading.Thread]:
    """The most memory each kind of process had, in MB; what has more than the limit is ended."""
    peaks: dict[str, int] = {}

    def look() -> None:
        while Path(f"/proc/{pid}").exists():
            now = 0
            for process in _family(pid):
                try:
                    status = Path(f"/proc/{process}/status").read_text()
                    command = Path(f"/proc/{process}/cmdline").read_text()
                except OSError:
                    continue
                found = [line for line in status.splitlines() if line.startswith("VmRSS")]
                size = int(found[0].split()[1]) // 1024 if found else 0
                kind = "java" if "java" in command.split("\0")[0] else "worker"
                kind = "driver" if process == pid else kind
                peaks[kind] = max(peaks.get(kind, 0), size)
                now += size
            peaks["all"] = max(peaks.get("all", 0), now)
            if now > limit >> 20:
                peaks["stopped"] = now
                os.killpg(pid, signal.SIGKILL)
            sleep(0.5)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    return peaks, thread


def _family(pid: int) -> list[int]:
    found, todo = [], [pid]
    while todo:
        one = todo.pop()
        found.append(one)
        try:
            tasks = Path(f"/proc/{one}/task").iterdir()
            children = [(task / "children").read_text().split() for task in tasks]
            todo += [int(child) for part in children for child in part]
        except OSError:
            continue
    return found


def measure(way: str, n_labels: int, cores: int, folder: Path) -> dict[str, Any]:
    """One cell."""
    row: dict[str, Any] = {"way": way, "labels": n_labels, "cores": cores}
    for leftover in ("store", "checkpoint", "answers", "tmp"):
        shutil.rmtree(folder / leftover, ignore_errors=True)
    command = [sys.executable, str(HERE / "ways.py"), way, str(folder), str(cores)]
    limit = SECONDS if way in BESIDE else PATIENCE
    began = monotonic()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    peaks, _ = watch(process.pid, MEMORY)
    try:
        out, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return row | {"ended": f"{limit} s", "peak_mb": peaks}
    if process.returncode:
        why = f"{MEMORY >> 30} GB" if "stopped" in peaks else f"code {process.returncode}"
        return row | {"ended": why, "peak_mb": peaks}
    reply = {name: round(value, 4) for name, value in json.loads(out.splitlines()[-1]).items()}
    speed = {"labels_per_second": round(n_labels / reply["seconds"])}
    with_start = {"with_start": round(monotonic() - began, 1)}
    return row | reply | speed | with_start | {"peak_mb": peaks}


def is_hopeless(rows: list[dict[str, Any]], way: str, size: int, cores: int) -> bool:
    """Tell whether a way came to a limit with fewer labels."""
    return any(
        "ended" in row and (row["way"], row["cores"]) == (way, cores) and row["labels"] < size
        for row in rows
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", nargs="+", type=float, default=[1e5, 1e6, 1e7, 1e8])
    parser.add_argument("--cores", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--again", action="store_true", help="measure also what was measured")
    parser.add_argument("--save", action="store_true", help="add to results/scale.json")
    options = parser.parse_args(arguments)
    file = HERE / "results" / "scale.json"
    rows = json.loads(file.read_text())["rows"] if options.save and file.exists() else []
    for size in map(int, options.sizes):
        cells = [
            (way, size, cores)
            for way in options.ways
            for cores in options.cores
            if not (way == "stream" and size > STREAMED)
        ]
        if not options.again:
            done = {tuple(row[key] for key in SAME) for row in rows}
            cells = [cell for cell in cells if cell not in done]
        with tempfile.TemporaryDirectory() as name:
            if cells:
                say(f"{size:,} labels: {len(cells)} cells to measure")
                write_labels(Path(name, "labels"), size)
            for way, _, cores in cells:
                if is_hopeless(rows, way, size, cores):
                    continue
                row = measure(way, size, cores, Path(name))
                say(json.dumps(row))
                rows = [old for old in rows if any(old[key] != row[key] for key in SAME)]
                rows.append(row)
                if options.save:
                    save(file, rows)
    return 0


def save(file: Path, rows: list[dict[str, Any]]) -> None:
    """Write all cells, in one order."""
    made = {
        "command": COMMAND,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "engine": os.environ.get("LABELQUORUM_ENGINE", "default"),
        "version": lq.__version__,
        "limits": {"memory_gb": MEMORY >> 30, "seconds": SECONDS, "of": BESIDE},
    }
    rows = sorted(rows, key=lambda row: (WAYS.index(row["way"]), row["labels"], row["cores"]))
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"made": made, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
