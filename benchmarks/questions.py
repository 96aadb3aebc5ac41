"""How long does every question take at the documented limits? A real store, one JSON object.

    python3 run.py python benchmarks/questions.py [--save] [--where FOLDER] [--quick]

Two streams: one of 100,000 workers, 10⁶ open tasks and 10,000 truths, and one of 1,000 judges with
100,000 labels. Each question is asked in the process that asked the ones before; the first of all
is not counted, because it imports what they take. `--where` keeps the store, and finds it there
again. `--save` keeps the result in `results/questions.json`. Run nothing else.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from engine import machine
from streams import SKILL, Result, say

from labelquorum.store.rules import Rules
from labelquorum.store.search import find_items, find_undecided
from labelquorum.store.stats import StreamStats
from labelquorum.store.store import Store
from labelquorum.store.stream import Stream

RESULT = Path(__file__).parent / "results" / "questions.json"
CLASSES = 4
CHUNK_TASKS = 20_000


class Limits(NamedTuple):
    """How much of everything a stream has."""

    tasks: int
    workers: int
    labels_per_task: int
    truths: int


LARGE, QUICK = Limits(10**6, 100_000, 3, 10_000), Limits(2000, 500, 3, 100)
JUDGES, QUICK_JUDGES = Limits(1000, 1000, 100, 0), Limits(100, 100, 20, 0)


def fill(store: Store, name: str, size: Limits) -> None:
    """Make a stream in which every task stays open."""
    rng, begin = np.random.default_rng(0), time.monotonic()
    rules = Rules(
        labels_per_item=size.labels_per_task,
        chunk_items=CHUNK_TASKS,
        retention="discard",
        grace=None,
        max_workers=size.workers,
    )
    stream = store.create(name, rules=rules)
    truth = rng.integers(CLASSES, size=size.tasks)
    for first in range(0, size.tasks, CHUNK_TASKS):
        task = np.arange(first, min(first + CHUNK_TASKS, size.tasks))
        shape = (len(task), size.labels_per_task)
        step = size.workers // size.labels_per_task  # nobody labels a task twice
        worker = rng.integers(step, size=shape) + step * np.arange(size.labels_per_task)
        noise = rng.integers(CLASSES, size=shape)
        label = np.where(rng.random(shape) < SKILL, truth[task][:, None], noise)
        columns = {"task": np.repeat(task, shape[1]), "worker": worker.ravel()}
        names = {name: [f"{name}{n}" for n in ids.tolist()] for name, ids in columns.items()}
        stream.accept(pd.DataFrame({**names, "label": label.ravel()}))
        stream.settle(flush=True)
    drawn = rng.choice(size.tasks, size.truths, replace=False).tolist()
    for begun in range(0, size.truths, 1000):
        stream.gold({f"task{n}": int(truth[n]) for n in drawn[begun : begun + 1000]})
    stream.settle(flush=True)
    say(f"{name}: {size.tasks:,} tasks after {time.monotonic() - begin:.0f} s")


def stopping(stream: Stream) -> Any:
    """What early stopping shows, by a service that has just started."""
    with StreamStats(stream).fresh() as stats:
        return stats.early_stopping()


def questions(stream: Stream, size: Limits) -> dict[str, Callable[[], Any]]:
    """Every question, with its largest limit."""
    task, worker = f"task{size.tasks // 2}", f"worker{size.workers // 2}"
    some = [f"task{n}" for n in range(min(1000, size.tasks))]
    crowd = [f"worker{n}" for n in range(min(1000, size.workers))]
    return {
        "answers, 1,000": lambda: stream.answers(limit=1000),
        "item": lambda: stream.item(task),
        "pending, 1,000": lambda: stream.pending(limit=1000),
        "chunks": lambda: stream.chunks(limit=1000),
        "events": stream.events,
        "count": stream.count,
        "recent agreement, 1,000 workers": lambda: stream.recent_agreement(crowd),
        "items with a text": lambda: find_items(stream, search="999"),
        "items by confidence": lambda: find_items(stream, sort="confidence"),
        "undecided items": lambda: find_undecided(stream),
        "early stopping": lambda: stopping(stream),
        "gold error": stream.gold_error,
        "expected error": stream.expected_error,
        "certificate": stream.certificate,
        "workers, 100": stream.workers,
        "workers, 1,000": lambda: stream.workers(limit=1000),
        "worker": lambda: stream.worker(worker),
        "profile": lambda: stream.profile(worker),
        "worker table": stream.worker_table,
        "agreement, 100": lambda: stream.agreement(100),
        "jury, 300": lambda: stream.jury(300),
        "jury, 1,000": lambda: stream.jury(1000),
        "suggestions, 1,000": lambda: stream.suggestions(1000),
        "gains, 1,000 tasks": lambda: stream.gains(some),
        "explain": lambda: stream.explain(task),
        "reasons": lambda: stream.reasons(task),
        "model file": stream.model_file,
    }


def measure(store: Store, name: str, size: Limits) -> dict[str, Result]:
    """Seconds, and seconds of the processor, of each question."""
    stream, found = store.stream(name), {}
    for asked, ask in questions(stream, size).items():
        began, used = time.perf_counter(), time.process_time()
        ask()
        took, busy = time.perf_counter() - began, time.process_time() - used
        found[asked] = {"seconds": round(took, 3), "processor_seconds": round(busy, 3)}
        say(f"{name}: {asked}: {took:.2f} s")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--quick", action="store_true", help="a size that measures nothing")
    parser.add_argument("--where", type=Path, help="keep the store in this folder")
    arguments = parser.parse_args()
    sizes = (QUICK, QUICK_JUDGES) if arguments.quick else (LARGE, JUDGES)
    streams = dict(zip(("crowd", "judges"), sizes, strict=True))
    with ExitStack() as stack:
        folder = arguments.where or Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="labelquorum-", dir=os.environ.get("TMPDIR"))
            )
        )
        store = stack.enter_context(Store.open(folder / "store"))
        for name, size in streams.items():
            if name not in store.streams():
                fill(store, name, size)
        store.stream("judges").jury(2)
        store.stream("crowd").worker_table()
        result = {
            "command": "python3 run.py python benchmarks/questions.py",
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine(),
            "streams": {
                name: {**size._asdict(), "questions": measure(store, name, size)}
                for name, size in streams.items()
            },
        }
    print(json.dumps(result, indent=1))
    if arguments.save:
        RESULT.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
