"""How long every question takes at the documented limits, asked once with a cold cache.

    python3 run.py python benchmarks/questions.py [--save] [--scale SHARE] [--store FOLDER]

A stream of 100,000 workers, 1,000,000 open tasks and 10,000 truths is made, in which 1,000 judges
label the last 2,000 tasks 50 times each. `labelquorum serve` runs on it in a subprocess, and every
GET route of a stream is asked once. `--store` keeps the stream in a folder, and takes it from there
the next time. `--save` keeps the result in `results/questions.json`.
"""

import argparse
import json
import os
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import httpx
import numpy as np
import pandas as pd
from engine import machine
from service import Service
from streams import Result, say

from labelquorum.store.api_keys import Keys
from labelquorum.store.rules import Rules
from labelquorum.store.store import Store

RESULT = Path(__file__).parent / "results" / "questions.json"
N_WORKERS, N_TASKS, N_TRUTHS, N_JUDGES = 100_000, 1_000_000, 10_000, 1_000
JUDGED_TASKS, LABELS_PER_JUDGED_TASK, LABELS_PER_TASK = 2_000, 50, 2
BATCH_TASKS, CHUNK_TASKS = 10_000, 10_000
CLASSES = ["a", "b", "c", "d"]
SKILL = 0.7

QUESTIONS = (
    *("", "/summary", "/stopping", "/chunks?limit=1000", "/items?limit=1000"),
    *("/items?sort=confidence", "/items?sort=-confidence", "/items?sort=newest"),
    *("/items?search=999", "/items?search=nothing", "/items?label=a", "/items?undecided=true"),
    *("/items?confidence_below=0.5&changed_since=0", "/items/{task}", "/pending?limit=1000"),
    *("/workers?limit=1000", "/workers?limit=1000&brief=true", "/workers?sort=-flags"),
    *(
        "/workers?search=99",
        "/workers/{worker}",
        "/agreement?limit=100",
        "/jury",
        "/jury?limit=1000",
    ),
    *("/ask?limit=1000", "/expected_error", "/certificate?limit=1000", "/certificate?format=csv"),
    *("/model", "/export?what=items", "/export?what=workers"),
)


def make_stream(where: Path, scale: float) -> None:
    """Fill a stream to this share of the limits."""
    n_workers, n_tasks = int(N_WORKERS * scale), int(N_TASKS * scale)
    n_judges, n_truths = max(10, int(N_JUDGES * scale)), int(N_TRUTHS * scale)
    n_judged = min(JUDGED_TASKS, n_tasks // 2)
    rng = np.random.default_rng(0)
    with Store.open(where) as store:
        rules = Rules(chunk_items=min(CHUNK_TASKS, n_tasks), labels_per_item=LABELS_PER_TASK)
        stream = store.create("s", classes=CLASSES, rules=rules)
        for first in range(0, n_tasks, BATCH_TASKS):
            tasks = np.arange(first, min(first + BATCH_TASKS, n_tasks))
            is_judged = tasks[0] >= n_tasks - n_judged
            task = np.repeat(tasks, LABELS_PER_TASK)
            start = rng.integers(n_workers, size=len(tasks))
            worker = (start[:, None] + np.arange(LABELS_PER_TASK) * 7919).ravel() % n_workers
            stream.accept(_table(rng, task, worker))
            stream.settle(flush=is_judged)
            say(f"{tasks[-1] + 1} tasks")
        judged = np.arange(n_tasks - n_judged, n_tasks)
        per_task = min(LABELS_PER_JUDGED_TASK, n_judges)
        judges = (rng.integers(n_judges, size=n_judged)[:, None] + np.arange(per_task)) % n_judges
        task = np.repeat(judged, per_task)
        for part in np.array_split(np.arange(len(task)), 4):
            stream.accept(_table(rng, task[part], judges.ravel()[part]))
        stream.settle(flush=True)
        drawn = rng.choice(n_tasks, n_truths, replace=False).tolist()
        for first in range(0, n_truths, 1000):
            stream.gold({f"task{t}": CLASSES[t % 4] for t in drawn[first : first + 1000]})
        stream.settle(flush=True)


def _table(rng: np.random.Generator, task: np.ndarray, worker: np.ndarray) -> pd.DataFrame:
    said = np.where(rng.random(len(task)) < SKILL, task % 4, rng.integers(4, size=len(task)))
    return pd.DataFrame(
        {
            "task": [f"task{t}" for t in task.tolist()],
            "worker": [f"worker{w}" for w in worker.tolist()],
            "label": np.array(CLASSES)[said],
        }
    )


def ask_all(where: Path) -> list[Result]:
    """Ask every question once; the first status, and how long until an answer came."""
    with Store.open(where) as store:
        key = Keys(store).make("questions", "admin")[1]
        stream = store.stream("s")
        n_tasks = stream.count()["answered_items"]
    service, found = Service(where), []
    try:
        service.ready()
        with service.client(key) as client:
            client.timeout = httpx.Timeout(600)
            for question in QUESTIONS:
                path = question.format(task=f"task{n_tasks - 1}", worker="worker1")
                begin = time.monotonic()
                reply = client.get(f"/v1/streams/s{path}")
                row = {"question": question or "/", "seconds": round(time.monotonic() - begin, 3)}
                row |= {
                    "status": reply.status_code,
                    "megabytes": round(len(reply.content) / 1e6, 2),
                }
                while reply.status_code == 503 and time.monotonic() < begin + 300:
                    time.sleep(int(reply.headers.get("Retry-After", 1)))
                    reply = client.get(f"/v1/streams/s{path}")
                    row["answered_after_seconds"] = round(time.monotonic() - begin, 1)
                found.append(row)
                say(json.dumps(row))
    finally:
        service.stop()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--scale", type=float, default=1.0, help="Share of the limits.")
    parser.add_argument("--store", type=Path, help="Folder in which the stream is kept.")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="labelquorum-", dir=os.environ.get("TMPDIR")) as folder:
        where = arguments.store or Path(folder) / "store"
        if not where.exists():
            make_stream(where, arguments.scale)
        result = {
            "command": "python3 run.py python benchmarks/questions.py",
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine(),
            "scale": arguments.scale,
            "questions": ask_all(where),
        }
    print(json.dumps(result, indent=1))
    if arguments.save:
        RESULT.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
