"""Kill the driver again and again: every label counts once, and the end is the same.

    python3 run.py spark experiments/spark/kills.py [--files 50] [--kills 12] [--seed 0]

Spark reads one file a micro-batch into a stream of a store. The driver is killed with SIGKILL: by
itself at each fault point of the store, or from outside after a time, alone or with its Java. The
seed draws the order of these ways, and when each is due. The driver starts again on the same
checkpoint and store, until all files are read. Then the state must be that of a run nobody killed.
`--save` writes results/kills.json.
"""

import argparse
import csv
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import labelquorum as lq
from labelquorum.evaluation import class_conditional_crowd, label_table
from labelquorum.store.failpoints import POINTS, arm
from labelquorum.store.rules import Rules
from labelquorum.store.store import Store

HERE = Path(__file__).resolve().parent
COMMAND = "python3 run.py spark experiments/spark/kills.py --save"
ITEMS, LABELS = 12, 5  # of a file, of an item
LONGEST = 3.0  # seconds after the first micro-batch
PASSES = 4  # so often, at most, a fault point is passed before the kill that is due there
WAYS = (*POINTS, "alone", "with its Java")


def write_files(folder: Path, n_files: int, seed: int) -> int:
    """Write files of whole items, each with an age that says its turn; give the labels."""
    table = label_table(class_conditional_crowd(n_files * ITEMS, 30, 3, LABELS, seed=seed))
    rows = list(zip(table.item_ids, table.worker_ids, table.labels, strict=True))
    size = ITEMS * LABELS
    folder.mkdir()
    for number in range(n_files):
        file = folder / f"{number:03}.csv"
        with file.open("w", newline="", encoding="utf-8") as stream:
            written = csv.writer(stream)
            written.writerow(["task", "worker", "label"])
            written.writerows(rows[number * size : (number + 1) * size])
        os.utime(file, (1_000_000 + number, 1_000_000 + number))
    return len(rows)


def drive(folder: Path) -> None:
    """Be the driver: feed all files, and say which micro-batches are through."""
    at, _, passes = os.environ.get("KILL_AT", "").partition(" ")
    left = int(passes or 0)

    def hook(point: str) -> None:
        nonlocal left
        left -= point == at
        if point == at and left == 0:
            print(f"killed {point}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    arm(hook)
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": 2}
    settings |= {"spark.ui.showConsoleProgress": "false", "spark.local.dir": str(folder / "tmp")}
    spark = lq.spark.session("local[2]", settings)
    spark.sparkContext.setLogLevel("OFF")
    feed(spark, folder)
    print("ended", flush=True)


def feed(spark: Any, folder: Path) -> None:
    """Feed all files that were not fed yet."""
    reader = spark.readStream.schema("task string, worker string, label int").option("header", True)
    frame = reader.option("maxFilesPerTrigger", 1).csv(str(folder / "in"))
    lq.spark.aggregate_stream(
        frame,
        str(folder / "store"),
        "birds",
        checkpoint=str(folder / "checkpoint"),
        whole_items=True,
        rules=Rules(chunk_items=ITEMS // 2),
        sink=lambda answers, number: print(f"batch {number}", flush=True),
        trigger={"availableNow": True},
    ).wait()


def live(folder: Path, way: str = "", chance: random.Random | None = None) -> tuple[bool, str]:
    """Let a driver live until it ends or is killed in a way; tell whether it ended, and the way."""
    chance = chance or random.Random(0)
    at = f"{way} {chance.randint(1, PASSES)}" if way in POINTS else ""
    command = [sys.executable, str(Path(__file__).resolve()), "--drive", str(folder)]
    driver = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "KILL_AT": at},
        start_new_session=True,
    )
    assert driver.stdout is not None
    reply, ended = "", False
    for line in driver.stdout:
        ended = ended or line.startswith("ended")
        if line.startswith("killed"):
            reply = line.split()[1]
            break
        if way and not at and line.startswith("batch"):
            with suppress(subprocess.TimeoutExpired):
                driver.wait(chance.uniform(0, LONGEST))
            if driver.poll() is None:
                reply = way
                os.kill(driver.pid, signal.SIGKILL) if way == "alone" else _kill_all(driver.pid)
            break
    for line in driver.stdout:  # to the end of its Java, which follows its driver
        ended = ended or line.startswith("ended")
    driver.stdout.close()
    driver.wait()
    _kill_all(driver.pid)
    return ended and not reply, reply


def _kill_all(group: int) -> None:
    """Kill a driver and its Java, as far as they are there."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def state_of(folder: Path) -> dict[str, Any]:
    with Store.look(folder / "store") as store:
        stream = store.stream("birds")
        counts = stream.count()
        labels = sum(chunk["n_labels"] for chunk in stream.chunks())
        return {"hash": stream.state_hash(), "labels": labels, **counts}


def measure(n_files: int, n_kills: int, seed: int) -> dict[str, Any]:
    """Kill so often, and compare with a run that nobody killed."""
    chance, began = random.Random(seed), monotonic()
    kills = dict.fromkeys(WAYS, 0)
    todo: list[str] = []
    while len(todo) < n_kills:  # each way, in some order, before any comes again
        todo += chance.sample(WAYS, len(WAYS))
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name, run) for run in ("whole", "killed")]
        for folder in folders:
            folder.mkdir()
            n_labels = write_files(folder / "in", n_files, seed)
        whole, _ = live(folders[0])
        assert whole, "the driver nobody killed did not come to its end"
        starts = 0
        ended = False
        while not ended:
            starts += 1
            done = sum(kills.values())
            ended, reply = live(folders[1], todo[done] if done < n_kills else "", chance)
            if reply:
                kills[reply] += 1
                print(f"{done + 1} of {n_kills} kills: {reply}", file=sys.stderr, flush=True)
        one, other = map(state_of, folders)
    return {
        "made": {"command": COMMAND, "version": lq.__version__},
        "files": n_files,
        "labels": n_labels,
        "kills": sum(kills.values()),
        "kills_by_way": {way: count for way, count in kills.items() if count},
        "starts": starts,
        "counted": other["labels"],
        "late": other["late_labels"],
        "waiting": other["waiting_labels"],
        "equal": one["hash"] == other["hash"],
        "seconds": round(monotonic() - began),
        "seed": seed,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--drive", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--files", type=int, default=50, help="micro-batches")
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", action="store_true", help="write results/kills.json")
    options = parser.parse_args(arguments)
    if options.drive is not None:
        drive(options.drive)
        return 0
    found = measure(options.files, options.kills, options.seed)
    text = json.dumps(found, indent=1) + "\n"
    print(text, end="")
    if options.save:
        (HERE / "results").mkdir(exist_ok=True)
        (HERE / "results" / "kills.json").write_text(text, encoding="utf-8")
    once = found["counted"] == found["labels"] and not found["late"]
    return 0 if found["equal"] and once and found["kills"] >= options.kills else 1


if __name__ == "__main__":
    sys.exit(main())
