"""Labels a second and memory, by size and cores: LabelQuorum on Spark, and what stands beside it.

    python3 run.py spark experiments/spark/scale.py --sizes 1e5 1e6 1e7 --save

A simulated table of 4 classes, 5 labels an item, is written as Parquet, and each way runs in a
process of its own, under a limit of memory and time:

    bila            lq.spark.aggregate, as it is by default
    bila_one_pass   the same with rounds=1
    dawid_skene     lq.spark.aggregate(method="dawid_skene")
    plain           Dawid–Skene as an EM over DataFrames, joins and sums, with nothing of ours
    crowdkit        Crowd-Kit's Dawid–Skene on one machine
    stream          lq.spark.aggregate_stream, one file a micro-batch

Peak memory is that of each process, the Java of Spark and its Python workers told apart.
"""

import argparse
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet

import labelquorum as lq
from labelquorum.record.chunking import Rules

HERE = Path(__file__).resolve().parent
CLASSES, LABELS, WORKERS = 4, 5, 2_000
FILE_LABELS = 500_000
WAYS = ("bila", "bila_one_pass", "dawid_skene", "plain", "crowdkit", "stream")
MEMORY, SECONDS = 8 << 30, 600


def write_labels(folder: Path, n_labels: int, seed: int = 0) -> None:
    """Simulate a crowd, a file at a time; items are integers, and so is their truth modulo C."""
    folder.mkdir()
    skill = np.random.default_rng(seed).uniform(0.5, 0.95, WORKERS)
    for number, start in enumerate(range(0, n_labels, FILE_LABELS)):
        size = min(FILE_LABELS, n_labels - start)
        rng = np.random.default_rng([seed, number])
        item = start // LABELS + np.repeat(np.arange(-(-size // LABELS)), LABELS)[:size]
        worker = rng.integers(0, WORKERS, size)
        truth = _truth(item)
        wrong = rng.integers(0, CLASSES, size)
        label = np.where(rng.random(size) < skill[worker], truth, wrong)
        table = pyarrow.table({"task": item, "worker": worker, "label": label})
        file = folder / f"{number:05}.parquet"
        pyarrow.parquet.write_table(table, file)
        os.utime(file, (1_000_000 + number, 1_000_000 + number))


def _truth(item: Any) -> Any:
    return (item * 2654435761 >> 7) % CLASSES


# ── the ways ─────────────────────────────────────────────────────────────────────────────


def session(cores: int, folder: Path) -> Any:
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "3g",
        "spark.local.dir": str(folder / "tmp"),
        "spark.sql.shuffle.partitions": 2 * cores,
        "spark.sql.execution.arrow.maxRecordsPerBatch": 100_000,
    }
    spark = lq.spark.session(f"local[{cores}]", settings)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def run_batch(way: str, folder: Path, cores: int) -> dict[str, Any]:
    spark = session(cores, folder)
    labels = spark.read.parquet(str(folder / "labels"))
    began = monotonic()
    if way == "plain":
        answers, rounds = plain_dawid_skene(labels), PLAIN_ROUNDS
    else:
        options: dict[str, Any] = {"rounds": 1} if way == "bila_one_pass" else {}
        method = "dawid_skene" if way == "dawid_skene" else "bila"
        found = lq.spark.aggregate(labels, method, **options)
        answers, rounds = found.answers, found.rounds
    answers.write.mode("overwrite").parquet(str(folder / "answers"))
    seconds = monotonic() - began
    told = pyarrow.parquet.read_table(folder / "answers", columns=["task", "label"])
    item, label = (told[name].to_numpy() for name in ("task", "label"))
    spark.stop()
    return {"seconds": seconds, "error": float((label != _truth(item)).mean()), "rounds": rounds}


PLAIN_ROUNDS = 5


def plain_dawid_skene(labels: Any) -> Any:
    """Dawid–Skene as it is written in Spark by hand: each iteration joins and sums."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    smoothing = 1e-5
    labels = labels.select("task", "worker", "label").persist()
    votes = labels.groupBy("task", F.col("label").alias("c")).count()
    total = Window.partitionBy("task")
    probs = votes.select("task", "c", (F.col("count") / F.sum("count").over(total)).alias("q"))
    for _ in range(PLAIN_ROUNDS):
        counts = (
            labels.join(probs, "task").groupBy("worker", "c", "label").agg(F.sum("q").alias("n"))
        )
        row = Window.partitionBy("worker", "c")
        share = (F.col("n") + smoothing) / (F.sum("n").over(row) + CLASSES * smoothing)
        confusion = counts.select("worker", "c", "label", F.log(share).alias("s"))
        mass = probs.groupBy("c").agg(F.sum("q").alias("m"))
        prior = mass.select(
            "c", F.log(F.col("m") / F.sum("m").over(Window.partitionBy())).alias("p")
        )
        said = labels.join(confusion, ["worker", "label"]).groupBy("task", "c")
        # A class no worker's row has is one for which a label says as good as nothing.
        scores = said.agg(F.sum("s").alias("s"), F.count("s").alias("k"))
        scores = scores.join(F.broadcast(prior), "c")
        most = F.max("k").over(total)
        scores = scores.select(
            "task",
            "c",
            (F.col("s") + F.col("p") + (most - F.col("k")) * np.log(smoothing)).alias("s"),
        )
        weight = F.exp(F.col("s") - F.max("s").over(total))
        probs = scores.select("task", "c", weight.alias("w"))
        probs = probs.select("task", "c", (F.col("w") / F.sum("w").over(total)).alias("q"))
        probs = probs.localCheckpoint()
    best = probs.groupBy("task").agg(F.max_by("c", "q").alias("label"))
    return best


def run_crowdkit(folder: Path) -> dict[str, Any]:
    from crowdkit.aggregation import DawidSkene

    labels = pyarrow.parquet.read_table(folder / "labels").to_pandas()
    began = monotonic()
    answers = DawidSkene(n_iter=20).fit_predict(labels)
    seconds = monotonic() - began
    wrong = float((answers.to_numpy() != _truth(answers.index.to_numpy())).mean())
    return {"seconds": seconds, "error": wrong}


def run_stream(folder: Path, cores: int) -> dict[str, Any]:
    spark = session(cores, folder)
    reader = spark.readStream.schema("task bigint, worker bigint, label bigint")
    labels = reader.option("maxFilesPerTrigger", 1).parquet(str(folder / "labels"))
    began = monotonic()
    feed = lq.spark.aggregate_stream(
        labels,
        str(folder / "store"),
        "scale",
        checkpoint=str(folder / "checkpoint"),
        whole_items=True,
        rules=Rules(chunk_items=20_000),
        trigger={"availableNow": True},
    )
    feed.wait()
    seconds = monotonic() - began
    spark.stop()
    return {"seconds": seconds}


# ── a process of its own ─────────────────────────────────────────────────────────────────


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
    command = [sys.executable, str(Path(__file__).resolve()), "--run", way, str(folder), str(cores)]
    row: dict[str, Any] = {"way": way, "labels": n_labels, "cores": cores}
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
        out, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return row | {"ended": f"after {SECONDS} s", "peak_mb": peaks}
    if process.returncode:
        why = "by the limit of memory" if "stopped" in peaks else f"with {process.returncode}"
        return row | {"ended": why, "peak_mb": peaks}
    told = json.loads(out.splitlines()[-1])
    told = {name: round(value, 4) for name, value in told.items()}
    rate = round(n_labels / told["seconds"])
    return (
        row
        | told
        | {
            "labels_per_second": rate,
            "with_start": round(monotonic() - began, 1),
            "peak_mb": peaks,
        }
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--sizes", nargs="+", type=float, default=[1e5, 1e6, 1e7])
    parser.add_argument("--cores", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--save", action="store_true", help="add to results/scale.json")
    options = parser.parse_args(arguments)
    if options.run:
        way, folder, cores = options.run[0], Path(options.run[1]), int(options.run[2])
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
        if way == "crowdkit":
            told = run_crowdkit(folder)
        elif way == "stream":
            told = run_stream(folder, cores)
        else:
            told = run_batch(way, folder, cores)
        told["driver_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(told))
        return 0
    results = HERE / "results" / "scale.json"
    rows = json.loads(results.read_text())["rows"] if options.save and results.exists() else []
    for size in map(int, options.sizes):
        with tempfile.TemporaryDirectory() as name:
            write_labels(Path(name, "labels"), size)
            for cores in options.cores:
                for way in options.ways:
                    for leftover in ("store", "checkpoint", "answers", "tmp"):
                        subprocess.run(["rm", "-rf", str(Path(name, leftover))], check=True)
                    row = measure(way, size, cores, Path(name))
                    print(json.dumps(row), flush=True)
                    same = ("way", "labels", "cores")
                    rows = [old for old in rows if any(old[key] != row[key] for key in same)]
                    rows.append(row)
                    if options.save:
                        results.parent.mkdir(exist_ok=True)
                        made = {"cores": os.cpu_count(), "machine": platform.machine()}
                        told = {"made": made, "rows": rows}
                        results.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
