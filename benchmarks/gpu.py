"""Measure how many labels per second bulk learning takes, from integer arrays, on one device.

    LABELQUORUM_ENGINE=jax python3 run.py python benchmarks/gpu.py [--labels N] [--save]
    LABELQUORUM_ENGINE=jax JAX_PLATFORMS=cpu python3 run.py python benchmarks/gpu.py --quick

Labels are drawn before the clock starts. It runs from arrays of integers in memory to the class of
every item: chunks are made, learned from (`update`) and answered (`aggregate`). States are
immutable, so these are three stages of a pipeline: while a chunk is learned from, the next ones are
made and sent to the device, and the one before is answered, in threads. The first chunk, which
compiles, is timed by itself, and so is each stage without the others. What the device did is read
from a trace of one chunk. Prints one JSON object; `--save` keeps it in `results/gpu.json`.

The process starts itself again with an allocator that keeps freed memory (`ALLOCATOR`): to ask the
system for every array costs as much as the work on it.
"""

import argparse
import gzip
import json
import os
import sys
import tempfile
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from bulk import bulk_labels, peak_mb
from engine import machine
from streams import N_CLASSES, Functions, Labels, Result, draw_chunk, integer_chunk, say

from labelquorum.learn.bila.engines import ENGINE, matrix_engine
from labelquorum.learn.bila.gpu import on_device
from labelquorum.learn.bila.minibatch import pack_counted

SAVED = Path(__file__).parent / "results" / "gpu.json"


def device() -> str:
    """What the engine computes on."""
    if os.environ.get(ENGINE) != "jax":
        return "processor, the default engine"
    import jax

    found = jax.devices()[0]
    return f"{found.platform}: {found.device_kind}, the jax engine"


ALLOCATOR = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TOP_PAD_": str(1 << 28),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
}
WARM_CHUNKS = 3
MADE_AHEAD = 10
SWITCH_SECONDS = 1e-4  # in which a thread gives others a turn: a stage waits for less


def measure(n_labels: int, chunk_labels: int, n_classes: int, preset: str, threads: int) -> Result:
    """Learn from chunks of `chunk_labels` labels until `n_labels` were learned from."""
    drawn = bulk_labels(chunk_labels, n_classes)
    # The same labels again and again, as of other items: drawing takes longer than learning.
    labels = Labels(*(np.asarray(column, np.int32) for column in drawn))
    n_workers, model = int(labels.worker.max()) + 1, Functions(preset)

    def make() -> Any:
        chunk = integer_chunk(labels, n_workers, n_classes)
        counts = (chunk.weight_by_item > 0).astype(np.float64)
        assert len(chunk.vote_shares)  # computed now, once, as is the line above
        if os.environ.get(ENGINE) == "jax":
            on_device(pack_counted(chunk, chunk.weight, counts))
        return chunk

    def learn(chunk: Any) -> Any:
        state = model.method.init(chunk, 0) if model.state is None else model.state
        model.state, _ = model.method.update(state, chunk)
        return model.state

    def answer(state: Any, chunk: Any) -> int:
        answers = model.method.aggregate(state, chunk).aggregated
        return int((answers != labels.truth).sum())

    stages: dict[str, list[float]] = {"make": [], "learn": [], "answer": []}
    for _ in range(2 * WARM_CHUNKS):
        times = [time.perf_counter()]
        chunk = make()
        times.append(time.perf_counter())
        state = learn(chunk)
        times.append(time.perf_counter())
        answer(state, chunk)
        times.append(time.perf_counter())
        for stage, seconds in zip(stages, np.diff(times), strict=True):
            stages[stage].append(seconds)
    say(f"one after the other, in s: {[[round(float(t), 3) for t in s] for s in stages.values()]}")
    turns = max(1, n_labels // chunk_labels)
    sys.setswitchinterval(SWITCH_SECONDS)
    with ThreadPoolExecutor(threads) as makers, ThreadPoolExecutor(1) as answerer:
        began = time.perf_counter()
        made = deque(makers.submit(make) for _ in range(min(MADE_AHEAD, turns)))
        wrong: list[Future[int]] = []
        for turn in range(turns):
            chunk = made.popleft().result()
            if turn + MADE_AHEAD < turns:
                made.append(makers.submit(make))
            wrong.append(answerer.submit(answer, learn(chunk), chunk))
        n_wrong = sum(future.result() for future in wrong)
        seconds = time.perf_counter() - began
    learned = turns * chunk_labels
    alone = {
        f"{stage}_ns_per_label": round(
            1e9 * float(np.median(times[WARM_CHUNKS:])) / chunk_labels, 1
        )
        for stage, times in stages.items()
    }
    return {
        "labels": learned,
        "chunk_labels": chunk_labels,
        "classes": n_classes,
        "workers": n_workers,
        "threads": threads,
        "first_chunk_s": round(sum(times[0] for times in stages.values()), 2),
        "seconds": round(seconds, 2),
        "labels_per_second": round(learned / seconds),
        "error": round(100 * n_wrong / (turns * len(labels.truth)), 3),
        **alone,
        **device_time(lambda: answer(learn(chunk), chunk), chunk_labels),
        "peak_mb": peak_mb(),
    }


def difference() -> Result:
    """How far answers are from those of the default engine, of twenty chunks of 5,000 labels."""

    def answers(engine: str) -> tuple[Any, Any]:
        with mock.patch.dict(os.environ, {ENGINE: engine}):
            matrix_engine.cache_clear()
            model, found = Functions("default"), []
            for seed in range(20):
                rng = np.random.default_rng(seed)
                chunk = integer_chunk(draw_chunk(rng, 500, 0, 500), 500)
                state = model.method.init(chunk, 0) if model.state is None else model.state
                model.state, _ = model.method.update(state, chunk)
                found.append(model.method.aggregate(model.state, chunk))
        return tuple(
            np.concatenate([getattr(answer, field) for answer in found])
            for field in ("aggregated", "probs")
        )

    (labels, probs), (other_labels, other_probs) = answers(os.environ.get(ENGINE, "")), answers("")
    return {
        "labels_that_differ_from_the_default_engine": int((labels != other_labels).sum()),
        "largest_difference_of_a_probability": float(np.abs(probs - other_probs).max()),
    }


def device_time(work: Any, n_labels: int) -> Result:
    """How long the device computed and copied, per label, by JAX's trace; nothing without one."""
    if os.environ.get(ENGINE) != "jax":
        return {}
    import jax

    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            work()
        traces = list(Path(folder).rglob("*.trace.json.gz"))
        events = json.loads(gzip.decompress(traces[0].read_bytes()))["traceEvents"]
    places = {
        event["pid"]: event["args"]["name"]
        for event in events
        if event.get("name") == "process_name"
    }
    busy = sum(
        event["dur"]
        for event in events
        if event.get("ph") == "X" and "/device:GPU" in places.get(event["pid"], "")
    )
    return {"device_ns_per_label": round(1e3 * busy / n_labels, 2)} if busy else {}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--labels", type=int, default=10**8)
    parser.add_argument("--chunk-labels", type=int, default=5 * 10**6)
    parser.add_argument("--classes", type=int, default=N_CLASSES)
    parser.add_argument("--preset", default="default", help="of BiLA")
    parser.add_argument("--threads", type=int, default=10, help="that make chunks")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    parser.add_argument("--save", action="store_true", help="keep the result in results/")
    options = parser.parse_args(arguments)
    if options.save and options.quick:
        parser.error("--quick measures nothing worth saving.")
    if options.quick:
        options.labels, options.chunk_labels = 20_000, 10_000
    found = measure(
        options.labels, options.chunk_labels, options.classes, options.preset, options.threads
    )
    command = "LABELQUORUM_ENGINE=jax python3 run.py python benchmarks/gpu.py"
    found |= {"device": device(), **difference()}
    text = json.dumps({"command": command, "machine": machine(), **found}, indent=2)
    if options.save:
        SAVED.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    if any(os.environ.get(name) != value for name, value in ALLOCATOR.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ALLOCATOR})
    main()
