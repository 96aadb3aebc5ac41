"""How fast is it, and does it stay so? One command, one JSON object.

    python3 run.py python benchmarks/engine.py [--save] [--only PART …] [--preset NAME] [--quick]

Every part runs in a fresh process with a compilation cache of its own, so none can help or
hinder another; with `--quick`, which measures nothing, they share the user's. Progress goes to
stderr. `--save` keeps the result in `results/engine.json`, from which `report.py` writes the page
of the docs; that of a preset goes to `engine-NAME.json`. Times are of a whole machine: run nothing
beside it.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import bulk
import numpy as np
from streams import (
    CHUNK_ITEMS,
    CHUNK_LABELS,
    LABELS_PER_ITEM,
    N_CLASSES,
    QUICK,
    Door,
    Functions,
    Labels,
    Result,
    Sizes,
    draw_chunk,
    frame,
    integer_chunk,
    labels_of,
    latency,
    records,
    resident_mb,
    say,
    seconds_of,
)

HERE = Path(__file__).parent
RESULTS = HERE / "results"


# ── parts ────────────────────────────────────────────────────────────────────────────────────


def measure_throughput(sizes: Sizes) -> Result:
    """Labels per second of `update`, of `aggregate` and of `partial_fit`, by size of chunk."""
    results = []
    for n_items in (CHUNK_ITEMS, 20 * CHUNK_ITEMS):
        rng = np.random.default_rng(0)
        count = max(4, sizes.timed_chunks * CHUNK_ITEMS // n_items)
        drawn = [
            draw_chunk(rng, sizes.crowd, i * n_items, n_items) for i in range(count + WARM_CHUNKS)
        ]
        functions, door = Functions(sizes.preset), Door(sizes.preset)
        seconds: dict[str, list[float]] = {"update": [], "aggregate": [], "partial_fit": []}
        for labels in drawn:
            chunk = integer_chunk(labels, sizes.crowd)
            state = functions.state or functions.method.init(chunk, 0)
            began = time.perf_counter()
            functions.state, _ = functions.method.update(state, chunk)
            updated = time.perf_counter()
            functions.method.aggregate(functions.state, chunk)
            seconds["aggregate"].append(time.perf_counter() - updated)
            seconds["update"].append(updated - began)
            seconds["partial_fit"].append(seconds_of(door.advance, frame(labels)))
        rates = {
            f"{name}_labels_per_second": round(n_items * LABELS_PER_ITEM / median(s[WARM_CHUNKS:]))
            for name, s in seconds.items()
        }
        results.append({"chunk_items": n_items, **rates})
        say(f"chunks of {n_items} items: {rates}")
    return {"known_workers": sizes.crowd, "by_chunk": results}


WARM_CHUNKS = 10


def measure_history(sizes: Sizes) -> Result:
    """Latency of a chunk after few and after many labels; resident memory along the way."""
    rows, memory = [], []
    for kind in (Door, Functions):
        models = []
        for history in sorted(sizes.history, reverse=True):
            rng = np.random.default_rng(history)
            model = kind(sizes.preset)
            streamed = 0
            while streamed < history:
                # Long histories are laid down in larger chunks, which is quicker.
                n_items = min(20 * CHUNK_ITEMS, (history - streamed) // LABELS_PER_ITEM)
                labels = draw_chunk(rng, sizes.crowd, streamed // LABELS_PER_ITEM, n_items)
                model.advance(model.prepare(labels, sizes.crowd))
                streamed += len(labels.item)
                if kind is Door and history == max(sizes.history):
                    memory.append({"labels": streamed, "resident_mb": resident_mb()})
                if streamed % max(history // 10, 1) < len(labels.item):
                    say(f"{kind.name}: {streamed:,} of {history:,} labels, {resident_mb()} MB")
            models.append((history, model, rng))
        for history, times in timed(models, sizes, lambda history: sizes.crowd):
            rows.append({"level": kind.name, "history_labels": history, **latency(times)})
    return {
        "known_workers": sizes.crowd,
        "latency": sorted(rows, key=lambda row: (row["level"], row["history_labels"])),
        "memory": thin(memory),
    }


def measure_workers(sizes: Sizes) -> Result:
    """Latency of a chunk when few and when many workers are known; bytes per worker."""
    rows, cost = [], {}
    for kind in (Door, Functions):
        models = []
        for known in sorted(sizes.workers, reverse=True):
            rng = np.random.default_rng(known)
            model = kind(sizes.preset)
            for first in range(0, known, CHUNK_LABELS):
                # All of them really have rows: everybody labels once.
                worker = np.arange(first, min(first + CHUNK_LABELS, known))
                labels = labels_of(
                    rng, worker.reshape(-1, LABELS_PER_ITEM), first // LABELS_PER_ITEM
                )
                model.advance(model.prepare(labels, known))
                if first == 0:
                    before = resident_mb()
                if first % (known // 5) < CHUNK_LABELS:
                    say(f"{kind.name}: {first:,} of {known:,} workers, {resident_mb()} MB")
            if known == max(sizes.workers):
                grown = (resident_mb() - before) * 2**20 / known
                cost[f"{kind.name}_resident_bytes_per_worker"] = round(grown)
                cost |= stored_bytes(model, known)
            models.append((known, model, rng))
        for known, times in timed(models, sizes, lambda known: known):
            rows.append({"level": kind.name, "known_workers": known, **latency(times)})
    return {
        "latency": sorted(rows, key=lambda row: (row["level"], row["known_workers"])),
        **cost,
    }


def stored_bytes(model: Any, n_workers: int) -> Result:
    """Bytes of a worker's rows in the state, and in the saved file."""
    if isinstance(model, Functions):
        rows = model.state.rows.to_arrays()
        return {"state_bytes_per_worker": sum(a.nbytes for a in rows.values()) // n_workers}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "crowd.lq"
        model.model.save(path)
        return {"file_bytes_per_worker": path.stat().st_size // n_workers}


def timed(
    models: list[tuple[int, Any, np.random.Generator]],
    sizes: Sizes,
    n_workers: Callable[[int], int],
) -> Iterator[tuple[int, list[float]]]:
    """Time chunks on each model, in turns, so that a busy moment of the machine hits all alike."""
    times: dict[int, list[float]] = {size: [] for size, _, _ in models}
    item = 10**9  # beyond everything streamed so far
    turns = max(1, sizes.timed_chunks // 25)
    for turn in range(turns + 1):
        for size, model, rng in models:
            known = n_workers(size)
            drawn = [draw_chunk(rng, known, item + CHUNK_ITEMS * i) for i in range(25)]
            chunks = [model.prepare(labels, known) for labels in drawn]
            seconds = [seconds_of(model.advance, chunk) for chunk in chunks]
            if turn:  # the first turn compiles and warms up
                times[size] += seconds
            item += 25 * CHUNK_ITEMS
    yield from times.items()


def measure_start(sizes: Sizes) -> Result:
    """From the start of a process to the first answered chunk, cache empty and cache filled.

    From a DataFrame to `labels_`, for which the process imports pandas, and from records to
    `answers_`, for which it does not.
    """
    result: Result = {"records": {}}
    for made, kind in ((result, "frame"), (result["records"], "records")):
        with tempfile.TemporaryDirectory() as cache:
            for name, repeats in (("cold", 1), ("warm", sizes.starts)):
                runs = [
                    child("first_chunk", sizes, cache, time.time(), kind) for _ in range(repeats)
                ]
                made[name] = {
                    key: round(median(run[key] for run in runs), 3)
                    for key in ("to_first_answer_s", "imports_s", "first_chunk_s")
                }
                say(f"{name} start from {kind}: {made[name]}")
    return result


def measure_first_chunk(sizes: Sizes, began: float, kind: str) -> Result:
    """The child's side of a start."""
    before = time.perf_counter()
    if kind == "frame":
        import pandas  # noqa: F401

    from labelquorum import BiLA

    imported = time.perf_counter()
    labels = draw_chunk(np.random.default_rng(0), sizes.crowd, 0)
    chunk, model = (frame if kind == "frame" else records)(labels), BiLA(sizes.preset)
    started = time.perf_counter()
    model.partial_fit(chunk)
    assert len(model.labels_ if kind == "frame" else model.answers_) == CHUNK_ITEMS
    first = time.perf_counter() - started
    assert ("pandas" in sys.modules) == (kind == "frame")
    return {
        "to_first_answer_s": time.time() - began,
        "imports_s": imported - before,
        "first_chunk_s": first,
    }


def measure_refit(sizes: Sizes) -> Result:
    """Our stream against Crowd-Kit's DawidSkene fitted again on all labels so far, each chunk."""
    return {
        "crowd": REFIT_CROWD,
        "by_workers": [against_refit(sizes, n) for n in sizes.refit_workers],
    }


# Five labels per item and a hundred per worker (five hundred, in the second crowd) are what real
# data sets have: web 6 and 88, adult2_all 8 and 109, relevance 5 and 126, sentiment_tweets 235.
REFIT_CROWD = {
    "n_classes": N_CLASSES,
    "labels_per_item": 5,
    "skill": (0.5, 0.9),
    "concentration": 10.0,
    "seed": 0,
}
REFIT_CHUNK = CHUNK_ITEMS * 5


def against_refit(sizes: Sizes, n_workers: int) -> Result:
    from labelquorum import MajorityVote
    from labelquorum.evaluation import oracle_error

    with tempfile.TemporaryDirectory() as cache:
        if sizes.own_cache:
            child("our_stream", sizes, cache, n_workers)  # fills the cache
        ours = child("our_stream", sizes, cache, n_workers)
    say(f"{n_workers} workers, ours: {ours}")
    theirs = measure_their_stream(sizes, n_workers)
    crowd, table = refit_crowd(sizes, n_workers)
    vote = MajorityVote().fit_predict(table)
    return {
        "workers": n_workers,
        "labels": len(table),
        "labelquorum": ours,
        "crowdkit_refit": theirs,
        "majority_vote_error": error_of(vote.to_dict(), crowd),
        "oracle_error": round(100 * oracle_error(crowd), 3),
        "times_faster": round(theirs["seconds"] / ours["seconds"], 1),
    }


def refit_crowd(sizes: Sizes, n_workers: int) -> tuple[Any, Any]:
    from labelquorum.evaluation import class_conditional_crowd

    crowd = class_conditional_crowd(sizes.refit_items, n_workers, **REFIT_CROWD)
    return crowd, frame(Labels(crowd.item, crowd.worker, crowd.label))


def measure_our_stream(sizes: Sizes, n_workers: int) -> Result:
    from labelquorum import BiLA

    crowd, table = refit_crowd(sizes, n_workers)
    parts = [table.iloc[start : start + REFIT_CHUNK] for start in range(0, len(table), REFIT_CHUNK)]
    emitted: dict[str, int] = {}
    began = time.perf_counter()
    model = BiLA(sizes.preset)
    first = seconds_of(model.partial_fit, parts[0])
    emitted.update(model.labels_)
    for part in parts[1:]:
        emitted.update(model.partial_fit(part).labels_)
    seconds = time.perf_counter() - began
    return {
        "seconds": round(seconds, 3),
        "first_chunk_s": round(first, 3),
        "emitted_error": error_of(emitted, crowd),
        "final_error": error_of(model.predict(table).to_dict(), crowd),
    }


def measure_their_stream(sizes: Sizes, n_workers: int) -> Result:
    from crowdkit.aggregation import DawidSkene

    crowd, table = refit_crowd(sizes, n_workers)
    emitted: dict[str, int] = {}
    seconds, rounds = 0.0, []
    for stop in range(REFIT_CHUNK, len(table) + REFIT_CHUNK, REFIT_CHUNK):
        so_far = table.iloc[:stop]
        began = time.perf_counter()
        model = DawidSkene().fit(so_far)
        answers = model.labels_.loc[so_far["task"].iloc[stop - REFIT_CHUNK :].unique()]
        seconds += time.perf_counter() - began
        emitted.update(answers)
        rounds.append(len(model.loss_history_))
        if stop % (20 * REFIT_CHUNK) == 0:
            say(f"Crowd-Kit, refitted on {stop:,} of {len(table):,} labels: {seconds:.1f} s so far")
    return {
        "seconds": round(seconds, 3),
        "settings": "DawidSkene(), the defaults",
        "mean_rounds": round(float(np.mean(rounds)), 1),
        "emitted_error": error_of(emitted, crowd),
        "final_error": error_of(model.labels_.to_dict(), crowd),
    }


def error_of(answers: dict[str, int], crowd: Any) -> float:
    """Error in per cent over all items of the crowd."""
    wrong = [answers[f"task{i}"] != true for i, true in enumerate(crowd.truth)]
    return round(100 * float(np.mean(wrong)), 3)


PARTS: dict[str, Callable[[Sizes], Result]] = {
    "throughput": measure_throughput,
    "history": measure_history,
    "workers": measure_workers,
    "start": measure_start,
    "refit": measure_refit,
    "stalls": bulk.measure_stalls,
    "fit": bulk.measure_fit,
    "csv": bulk.measure_csv,
    "classes": bulk.measure_classes,
    "installed": bulk.measure_installed,
}
WITHIN_PARTS: dict[str, Callable[..., Result]] = {
    "first_chunk": measure_first_chunk,
    "our_stream": measure_our_stream,
}


# ── what was promised ────────────────────────────────────────────────────────────────────────


def verdicts(parts: Result) -> list[Result]:
    """The promises, with what was measured."""
    found = []

    def check(promise: str, measured: float, limit: float, at_most: bool = True) -> None:
        holds = measured <= limit if at_most else measured >= limit
        found.append({"promise": promise, "measured": measured, "limit": limit, "holds": holds})

    for part, size, noun in (
        ("history", "history_labels", "labels of history"),
        ("workers", "known_workers", "known workers"),
    ):
        if part in parts:
            p50 = [row["p50_ms"] for row in parts[part]["latency"] if row["level"] == "door"]
            largest = max(row[size] for row in parts[part]["latency"])
            check(f"p50 of a {CHUNK_ITEMS}-item chunk, ms ({part})", p50[0], 2.0)
            check(f"growth of p50 up to {largest:,} {noun}", round(p50[-1] / p50[0], 3), 1.5)
    if "throughput" in parts:
        large = parts["throughput"]["by_chunk"][-1]
        seconds = round(1e6 / large["partial_fit_labels_per_second"], 2)
        check(f"a million labels in chunks of {large['chunk_items']} items, s", seconds, 5.0)
    if "history" in parts:
        memory = parts["history"]["memory"]
        grown = memory["at_end_mb"] / memory["at_tenth_mb"]
        check("resident memory, end over a tenth of the stream", round(grown, 3), 1.1)
    for refit in parts.get("refit", {}).get("by_workers", ()):
        # which model, where the part is older than the default
        model = f", {parts['refit']['model']}" if "model" in parts["refit"] else ""
        who = f"{refit['workers']} workers{model}"
        check(f"times faster than refitting, {who}", refit["times_faster"], 100, at_most=False)
        ours, theirs = (refit[side]["emitted_error"] for side in ("labelquorum", "crowdkit_refit"))
        check(f"emitted error % against refitting, {who}", ours, theirs)
    return found


# ── measuring ────────────────────────────────────────────────────────────────────────────────


def thin(memory: list[Result]) -> Result:
    """Twenty points of the curve; at its tenth the ledger of recent items is full."""
    tenth = memory[len(memory) // 10]
    step = max(1, len(memory) // 20)
    return {
        "curve": memory[::step] + memory[-1:],
        "at_tenth_mb": tenth["resident_mb"],
        "at_end_mb": memory[-1]["resident_mb"],
    }


def machine() -> Result:
    model = platform.processor() or platform.machine()
    if (info := Path("/proc/cpuinfo")).exists():
        names = [
            line.split(":")[1] for line in info.read_text().splitlines() if "model name" in line
        ]
        model = names[0].strip() if names else model
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: version_of(name) for name in PACKAGES},
    }


PACKAGES = ("labelquorum", "jax", "numpy", "pandas", "crowd-kit")


def version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def child(part: str, sizes: Sizes, cache: str, *arguments: float | str) -> Result:
    """Measure one thing in a subprocess."""
    code = "import engine, json, sys; engine.run_child(*json.load(sys.stdin))"
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    own = {"LABELQUORUM_CACHE": cache} if sizes.own_cache else {}
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps([part, asdict(sizes), *arguments]),
        stdout=subprocess.PIPE,
        env={**os.environ, **own, "PYTHONPATH": path},
        text=True,
    )
    if done.returncode:
        sys.exit(f"The benchmark stopped in part {part!r}; its message stands above.")
    return json.loads(done.stdout.splitlines()[-1])


def run_child(part: str, sizes: Result, *arguments: float | str) -> None:
    print(json.dumps((PARTS | WITHIN_PARTS)[part](Sizes(**sizes), *arguments)))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    parser.add_argument("--preset", default="default", help="of BiLA")
    parser.add_argument("--save", action="store_true", help="keep the result in results/")
    options = parser.parse_args(arguments)
    if options.save and options.quick:
        parser.error("--quick measures nothing worth saving.")
    plain = options.preset == "default"
    saved = RESULTS / ("engine.json" if plain else f"engine-{options.preset}.json")
    sizes = replace(QUICK if options.quick else Sizes(), preset=options.preset)
    result: Result = {
        "command": "python3 run.py python benchmarks/engine.py"
        + ("" if plain else f" --preset {options.preset}"),
        "machine": machine(),
        "chunk": {
            "items": CHUNK_ITEMS,
            "labels_per_item": LABELS_PER_ITEM,
            "classes": N_CLASSES,
        },
        "parts": {},
    }
    if options.save and saved.exists():  # parts not measured now stay as they were
        result["parts"] = json.loads(saved.read_text())["parts"]
    for part in options.only:
        print(f"— {part}", file=sys.stderr, flush=True)
        began, when = time.perf_counter(), datetime.now(UTC).isoformat(timespec="minutes")
        with tempfile.TemporaryDirectory() as cache:
            measured = child(part, sizes, cache)
        took = round(time.perf_counter() - began, 1)
        result["parts"][part] = {"measured": when, "took_s": took, **measured}
    result["verdicts"] = verdicts(result["parts"])
    text = json.dumps(result, indent=2)
    if options.save:
        RESULTS.mkdir(exist_ok=True)
        saved.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
