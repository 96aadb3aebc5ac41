"""What keeping all labels and all tasks open costs: how a store grows, how long a restart takes.

    python3 run.py python benchmarks/kept_labels.py [--save] [--labels N]

A stream with the default rules takes 10⁵ labels, three per task, in chunks of 50 tasks. Their rows
(labels, answers, open tasks, chunks, events) are then copied under other ids until there are N:
the tables are as large as if all had been sent, and the model is that of the first 10⁵. Every
figure is taken at each power of ten. `--save` keeps the result in `results/kept_labels.json`.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from engine import machine
from service import CLASSES, Service, _admin_key, _frame
from streams import Result, say

from labelquorum.store.rules import Rules
from labelquorum.store.search import find_items
from labelquorum.store.store import Store

RESULT = Path(__file__).parent / "results" / "kept_labels.json"
LABELS_PER_ITEM, BASE_LABELS, N_WORKERS = 3, 100_000, 1_000

# What is copied, by table: columns with another value in copy number :copy, and up to where.
_ITEM = "'\"' || substr('000' || :copy, -3) || '-' || substr(item, 2)"
COPIED = {
    "labels": ("row <= :rows", {"row": "row + :row", "item": _ITEM, "chunk": "chunk + :chunk"}),
    "answers": ("chunk <= :chunks", {"item": _ITEM, "chunk": "chunk + :chunk"}),
    "open_items": ("item LIKE '\"task%'", {"item": _ITEM}),
    "chunks": (
        "id <= :chunks",
        {
            "id": "id + :chunk",
            "first_row": "first_row + :row",
            "last_row": "last_row + :row",
            "version": "version + :chunk",
        },
    ),
    "events": ("id <= :events", {"id": "id + :event"}),
}


def rows_of(tasks: list[str], rng: np.random.Generator) -> Any:
    """Labels of these tasks as a table."""
    n = len(tasks)
    first = rng.integers(N_WORKERS, size=(n, 1))
    worker = (first + np.arange(LABELS_PER_ITEM) * 13) % N_WORKERS
    truth = rng.integers(len(CLASSES), size=(n, 1))
    wrong = rng.integers(len(CLASSES), size=worker.shape)
    said = np.where(rng.random(worker.shape) < 0.7, truth, wrong)
    return _frame(
        {
            "task": [task for task in tasks for _ in range(LABELS_PER_ITEM)],
            "worker": [f"worker{k}" for k in worker.ravel().tolist()],
            "label": [CLASSES[c] for c in said.ravel().tolist()],
        }
    )


def fill(where: Path) -> dict[str, int]:
    """Send the first labels, as a client would; return the last row, chunk and event."""
    rng, n_items = np.random.default_rng(0), BASE_LABELS // LABELS_PER_ITEM
    with Store.open(where) as store:
        stream = store.create("all", classes=CLASSES, rules=Rules(max_chunk_wait=0))
        for first in range(0, n_items, 1_000):
            tasks = [f"task{n}" for n in range(first, min(first + 1_000, n_items))]
            stream.accept(rows_of(tasks, rng), key=f"batch {first}")
            stream.settle()
        with store.read() as connection:
            return dict(connection.exec_driver_sql(_LAST).mappings().one())


_LAST = """SELECT next_row - 1 AS rows, next_chunk - 1 AS chunks,
(SELECT max(id) FROM events) AS events FROM streams"""


def copy(where: Path, base: dict[str, int], numbers: range) -> None:
    """Copy the first labels and what was learned from them, under other ids."""
    with Store.open(where) as store:
        for number in numbers:
            with store.write() as connection:
                ask = connection.exec_driver_sql
                last = ask(_LAST).mappings().one()
                to = {"row": last["rows"], "chunk": last["chunks"], "event": last["events"]}
                given = {"copy": number, **base, **to}
                for table, (which, changed) in COPIED.items():
                    columns = [row[1] for row in ask(f"PRAGMA table_info({table})")]
                    values = ", ".join(changed.get(name, f'"{name}"') for name in columns)
                    ask(f"INSERT INTO {table} SELECT {values} FROM {table} WHERE {which}", given)
                ask(
                    "UPDATE streams SET next_row = next_row + :rows, "
                    "next_chunk = next_chunk + :chunks, held_labels = held_labels + :rows",
                    given,
                )
                ask("UPDATE models SET version = version + :chunks", given)


def measure(where: Path) -> Result:
    """What is asked of a store of this size, in seconds."""
    found: Result = {}

    def timed(name: str, call: Callable[[], Any]) -> Any:
        begin = time.monotonic()
        reply = call()
        found[name] = round(time.monotonic() - begin, 3)
        say(f"  {name}: {found[name]} s")
        return reply

    size = sum(file.stat().st_size for file in where.iterdir())
    store = timed("open_s", lambda: Store.open(where))
    with store:
        stream, rng = store.stream("all"), np.random.default_rng(1)
        count = timed("count_s", stream.count)
        found |= {"labels": count["held_labels"], "tasks": count["answered_items"]}
        found |= {"bytes": size, "bytes_per_label": round(size / count["held_labels"])}
        stream.accept(rows_of([f"warm {n}" for n in range(50)], rng))
        stream.settle()
        fresh = [f"new {count['held_labels']} {n}" for n in range(50)]
        known = [f"task{n}" for n in range(50)]
        for name, tasks in (("new", fresh), ("open", known)):
            rows = rows_of(tasks, rng)
            timed(f"accept_{name}_s", lambda: stream.accept(rows))  # noqa: B023
            timed(f"learn_{name}_s", stream.settle)
        for name, call in {
            "worker_table": stream.worker_table,
            "suggestions": lambda: stream.suggestions(50),
            "explain": lambda: stream.explain("task7"),
            "pending": stream.pending,
            "items_page": lambda: find_items(stream, sort="confidence"),
            "model_file": stream.model_file,
        }.items():
            call()  # compiles
            timed(f"{name}_s", call)
        timed("forget_s", lambda: stream.forget("worker7"))
        keys = _admin_key(store)
        begin = time.monotonic()
    found["close_s"] = round(time.monotonic() - begin, 3)
    starts = []
    for _ in range(3):
        service = Service(where)
        starts.append(round(service.ready(), 2))
        with service.client(keys) as client:
            begin = time.monotonic()
            client.get("/v1/streams/all/summary").raise_for_status()
            found["first_summary_s"] = round(time.monotonic() - begin, 2)
            found["resident_mb"] = service.resident_mb()
        service.stop()
    return found | {"service_ready_s": starts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--labels", type=int, default=10_000_000)
    arguments = parser.parse_args()
    sizes, begin = [], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="labelquorum-", dir=os.environ.get("TMPDIR")) as folder:
        where = Path(folder) / "store"
        base = fill(where)
        say(f"{BASE_LABELS:,} labels sent after {time.monotonic() - begin:.0f} s")
        done, n_labels = 1, BASE_LABELS
        while n_labels <= arguments.labels:
            copy(where, base, range(done, n_labels // BASE_LABELS))
            done = n_labels // BASE_LABELS
            say(f"{n_labels:,} labels after {time.monotonic() - begin:.0f} s")
            sizes.append(measure(where))
            n_labels *= 10
    result = {
        "command": "python3 run.py python benchmarks/kept_labels.py",
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "sizes": sizes,
        "seconds": round(time.monotonic() - begin),
    }
    print(json.dumps(result, indent=1))
    if arguments.save:
        RESULT.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
