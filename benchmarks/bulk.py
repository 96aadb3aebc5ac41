"""The parts of `engine.py` that learn from a lot at once, or from chunks of every shape.

What is measured runs in a subprocess, and the system says how much memory that had. The
process that starts it has little: on Linux a child's peak is at least what its parent had.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from streams import LABELS_PER_ITEM, N_CLASSES, Labels, Result, Sizes, frame, labels_of, say

HERE = Path(__file__).parent
LABELS_PER_WORKER = 500
STALL_MS = (100, 250)
MAX_MEMORY = 16 << 30
"""Bytes that a process may ask for, so that one without bounds fails and the machine goes on."""


def peak_mb() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20)


MAX_PEER_SECONDS = 150
"""After six times our target, the peer is stopped."""


def run_measured(command: Sequence[str], limit_s: float | None = None) -> Result:
    """Run a command to its end: seconds, processor time and peak memory, or how it failed."""
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        timer = threading.Timer(limit_s or threading.TIMEOUT_MAX, process.kill)
        timer.daemon = True
        timer.start()
        _, status, used = os.wait4(process.pid, 0)
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        last = (errors.read().strip().splitlines() or [f"exit code {process.returncode}"])[-1]
    unit = 1 if sys.platform == "darwin" else 1024
    return {
        "seconds": round(time.perf_counter() - began, 2),
        "cpu_s": round(used.ru_utime + used.ru_stime, 2),
        "peak_mb": round(used.ru_maxrss * unit / 2**20),
        **({"failed": last[:200]} if process.returncode else {}),
    }


def run_action(action: str, *arguments: str | int, limit_s: float | None = None) -> Result:
    """Run one of the actions below in a subprocess."""
    command = [sys.executable, str(HERE / "bulk.py"), action, *map(str, arguments)]
    return run_measured(command, limit_s)


def bulk_labels(n_labels: int, n_classes: int = N_CLASSES, n_workers: int | None = None) -> Labels:
    """Labels in bulk, ten per item by different workers, in the order of the items."""
    n_items = n_labels // LABELS_PER_ITEM
    if n_workers is None:
        n_workers = max(n_labels // LABELS_PER_WORKER, 2 * LABELS_PER_ITEM)
    rng = np.random.default_rng(0)
    # Ten different workers: a step that is smaller than a tenth of the crowd, ten times.
    step = rng.integers(1, max(n_workers // LABELS_PER_ITEM, 2), size=(n_items, 1))
    first = rng.integers(n_workers, size=(n_items, 1))
    worker = (first + step * np.arange(LABELS_PER_ITEM)) % n_workers
    return labels_of(rng, worker, 0, n_classes)


def confused_labels(n_labels: int, n_classes: int, n_workers: int) -> Labels:
    """Five labels per item by workers of different skill; half of the errors name a neighbour."""
    labels = bulk_labels(2 * n_labels, n_classes, n_workers)
    kept = np.arange(2 * n_labels) % LABELS_PER_ITEM < LABELS_PER_ITEM // 2
    item, worker = labels.item[kept], labels.worker[kept]
    rng = np.random.default_rng(1)
    skill, truth = rng.uniform(0.3, 0.8, n_workers)[worker], labels.truth[item]
    neighbour, noise = truth ^ 1, rng.integers(n_classes, size=len(item))
    neighbour = np.where(neighbour < n_classes, neighbour, truth)
    wrong = np.where(rng.random(len(item)) < 0.5, neighbour, noise)
    label = np.where(rng.random(len(item)) < skill, truth, wrong)
    return Labels(item, worker, label, labels.truth)


# ── parts ────────────────────────────────────────────────────────────────────────────────────


def measure_stalls(sizes: Sizes) -> Result:
    """Chunks of random size, more classes and workers as it goes on; the first is not counted."""
    from labelquorum import BiLA

    rng, model, item = np.random.default_rng(0), BiLA(sizes.preset), 0
    seconds: list[float] = []
    for turn in range(sizes.stall_chunks + 1):
        n_items, per_item = int(rng.integers(1, 201)), int(rng.integers(1, 11))
        n_classes = 2 + 8 * turn // sizes.stall_chunks
        n_workers = 20 + 10 * turn
        worker = (rng.integers(n_workers, size=(n_items, 1)) + np.arange(per_item)) % n_workers
        table = frame(labels_of(rng, worker, item, n_classes))
        item += n_items
        began = time.perf_counter()
        assert len(model.partial_fit(table).labels_)
        seconds.append(time.perf_counter() - began)
    first, after = seconds[0], 1000 * np.array(seconds[1:])
    found = {f"above_{limit}_ms": int((after > limit).sum()) for limit in STALL_MS}
    found |= {"chunks": len(after), "slowest_ms": round(float(after.max()), 1)}
    say(f"{found}")
    return {**found, "first_ms": round(1000 * first, 1), "total_s": round(sum(seconds), 2)}


def measure_fit(sizes: Sizes) -> Result:
    """`BiLA().fit` of integer columns: the time of the call, and the peak of its process."""
    import pandas as pd

    from labelquorum import BiLA

    labels = bulk_labels(sizes.bulk_labels)
    table = pd.DataFrame({"task": labels.item, "worker": labels.worker, "label": labels.label})
    del labels
    before = peak_mb()
    began = time.perf_counter()
    answers = BiLA(sizes.preset).fit(table).labels_
    found = {"labels": len(table), "seconds": round(time.perf_counter() - began, 2)}
    assert len(answers) == len(table) // LABELS_PER_ITEM
    say(f"{found}")
    return {**found, "peak_mb": peak_mb(), "peak_mb_before": before}


def measure_csv(sizes: Sizes) -> Result:
    """`labelquorum aggregate` of a CSV with text ids, and Crowd-Kit's DawidSkene on that file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        run_action("write_csv", sizes.bulk_labels, path / "labels.csv", path / "truth.csv")
        size = (path / "labels.csv").stat().st_size
        found: Result = {"labels": sizes.bulk_labels, "file_mb": round(size / 2**20, 1)}
        command = [sys.executable, "-m", "labelquorum", "aggregate", str(path / "labels.csv")]
        found["labelquorum"] = run_measured([*command, "-o", str(path / "ours.csv")])
        say(f"labelquorum aggregate: {found['labelquorum']}")
        found["crowdkit"] = run_action(
            "crowdkit", path / "labels.csv", path / "theirs.csv", limit_s=MAX_PEER_SECONDS
        )
        if found["crowdkit"].get("failed") == "exit code -9":  # also where memory ran out
            found["crowdkit"]["failed"] = f"stopped after {found['crowdkit']['seconds']:.0f} s"
        say(f"Crowd-Kit: {found['crowdkit']}")
        for side, name in (("labelquorum", "ours.csv"), ("crowdkit", "theirs.csv")):
            if "failed" not in found[side]:
                found[side]["error"] = _error_of(path / name, path / "truth.csv")
    return found


def measure_classes(sizes: Sizes) -> Result:
    """Many workers and classes: seconds and error of `fit_predict`, and the peak of the process.

    The second crowd, "confused", is for the errors: of the first, ten labels leave no doubt.
    """
    n_workers, n_classes, n_labels = sizes.many_classes
    found: Result = {"workers": n_workers, "classes": n_classes, "labels": n_labels, "confused": {}}
    runs = [("plain", name, found) for name in MODELS]
    runs += [("confused", name, found["confused"]) for name in (*MODELS, *FOR_ERRORS)]
    with tempfile.TemporaryDirectory() as folder:
        for crowd, name, of_crowd in runs:
            result = Path(folder, "result.json")
            ended = run_action("classes", crowd, name, n_workers, n_classes, n_labels, result)
            inner = json.loads(result.read_text()) if "failed" not in ended else {}
            of_crowd[name] = {**ended, **inner}
            say(f"{crowd} crowd, {name}: {of_crowd[name]}")
    return found


def measure_installed(sizes: Sizes) -> Result:
    """Megabytes that `pip install '.[serve]'` adds to a fresh environment."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        before = _sizes(Path(folder))
        source = f"{HERE.parent}[serve]"
        pip = [str(Path(folder, "bin", "python")), "-m", "pip", "install", "-q", source]
        subprocess.run(pip, check=True, stdout=sys.stderr)
        after = _sizes(Path(folder))
    largest = sorted(after.items(), key=lambda entry: -entry[1])[:5]
    return {
        "mb": round((sum(after.values()) - sum(before.values())) / 2**20),
        "largest_mb": {name: round(size / 2**20) for name, size in largest},
    }


def _sizes(environment: Path) -> dict[str, int]:
    """Bytes of each package in an environment."""
    sizes: dict[str, int] = {}
    for packages in environment.glob("lib/python*/site-packages"):
        for file in packages.rglob("*"):
            if file.is_file() and not file.is_symlink():
                package = file.relative_to(packages).parts[0]
                sizes[package] = sizes.get(package, 0) + file.stat().st_size
    return sizes


def _error_of(answers: Path, truths: Path) -> float:
    """Error in per cent; both files have the columns task and label."""
    import pandas as pd

    answer, truth = (pd.read_csv(path, index_col="task", dtype=str) for path in (answers, truths))
    said = answer.iloc[:, 0].reindex(truth.index)
    return round(100 * float((said != truth["label"]).mean()), 3)


# ── actions: what the processes do ───────────────────────────────────────────────────────────


def write_csv(n_labels: str, path: str, truths: str) -> None:
    labels = bulk_labels(int(n_labels))
    rows = zip(labels.item.tolist(), labels.worker.tolist(), labels.label.tolist(), strict=True)
    with Path(path).open("w") as file:
        file.write("task,worker,label\n")
        file.writelines(f"task{i},worker{k},class{c}\n" for i, k, c in rows)
    with Path(truths).open("w") as file:
        file.write("task,label\n")
        truth = enumerate(labels.truth.tolist())
        file.writelines(f"task{i},class{c}\n" for i, c in truth)


def crowdkit(path: str, answers: str) -> None:
    import pandas as pd
    from crowdkit.aggregation import DawidSkene

    DawidSkene().fit_predict(pd.read_csv(path)).rename("label").to_csv(answers)


def classes(
    crowd: str, name: str, n_workers: str, n_classes: str, n_labels: str, result: str
) -> None:
    import pandas as pd

    import labelquorum
    from labelquorum.compat.crowdkit import DawidSkene, MajorityVote

    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    draw = {"plain": bulk_labels, "confused": confused_labels}[crowd]
    labels = draw(int(n_labels), int(n_classes), int(n_workers))
    table = pd.DataFrame({"task": labels.item, "worker": labels.worker, "label": labels.label})
    build: dict[str, Callable[[], Any]] = {
        "dawid_skene": labelquorum.DawidSkene,
        "crowdkit_drop_in": DawidSkene,
        "bila": labelquorum.BiLA,
        "online": labelquorum.BiLA,
        "one_coin": lambda: labelquorum.BiLA(generative="one_coin"),
        "majority_vote": MajorityVote,
    }
    model = build[name]()
    began = time.perf_counter()
    if name == "online":
        chunk = table["task"] // CHUNK_TASKS
        said = pd.concat([model.partial_fit(rows).labels_ for _, rows in table.groupby(chunk)])
    else:
        said = model.fit_predict(table)
    seconds = time.perf_counter() - began
    error = float((said.sort_index().to_numpy() != labels.truth).mean())
    Path(result).write_text(
        json.dumps({"seconds": round(seconds, 2), "error": round(100 * error, 2)})
    )


MODELS = ("dawid_skene", "crowdkit_drop_in", "bila", "online")
FOR_ERRORS = ("one_coin", "majority_vote")
CHUNK_TASKS = 500
"""Tasks per chunk of the model that learns online."""
ACTIONS = {"write_csv": write_csv, "crowdkit": crowdkit, "classes": classes}

if __name__ == "__main__":
    ACTIONS[sys.argv[1]](*sys.argv[2:])
