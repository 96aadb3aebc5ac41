"""The online benchmark: any methods on any data sets, under one protocol, one row each.

Whole items come in chunks, in several random orders, with no warm-up unless asked. A method that
fits all it is given (`dawid_skene`) is fitted once on everything and marked "batch": its emitted
error is its final error. On a stream it runs as `windowed:dawid_skene` or `refit:dawid_skene`.
Rows are plain dicts, made for JSON; errors are in per cent.
"""

import gc
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import lru_cache, partial
from hashlib import sha256
from importlib.metadata import version
from math import isnan
from multiprocessing import active_children, get_context
from pathlib import Path
from statistics import fmean, stdev
from time import perf_counter
from typing import Any, Literal, NamedTuple

import numpy as np

from labelquorum.errors import LabelQuorumError, StateError
from labelquorum.evaluation.crowdkit import PEERS, Peer
from labelquorum.evaluation.datasets.load import Dataset, read_dataset
from labelquorum.evaluation.replay import Arrival, Prequential, Streamed, stream
from labelquorum.learn.aggregator import split_name, windowed
from labelquorum.learn.estimators import estimator, method_names
from labelquorum.learn.methods import _batch
from labelquorum.learn.registry import AGGREGATORS

Row = dict[str, Any]
Kind = Literal["online", "batch", "windowed", "refit"]

METHODS = (
    *method_names(),
    "windowed:dawid_skene",
    "windowed:mmce",
    "refit:dawid_skene",
    *PEERS,
    *(f"refit:{peer}" for peer in PEERS),
)
"""What is run unless methods are named."""

_LEAVE_TO_PARENT = (signal.SIGINT, signal.SIG_IGN)  # what Ctrl-C does
CURVE_POINTS = 50  # kept of the error along the stream


class Protocol(NamedTuple):
    """How a stream is fed, and how much is spent on it."""

    chunk_items: int = 50  # labels, where they arrive singly
    orders: int = 10  # random orders, the first drawn by seed 0
    order: Literal["random", "file", "time"] = "random"
    arrival: Arrival = "items"
    warmup_items: int = 0
    time_cap: float = 150.0  # seconds of processor time for a method on a data set
    peer_cap: float = 60.0  # the same for a peer: the slower ones would take hours
    refit_labels: int = 10_000  # the largest set on which refitting at each chunk is measured
    refit_orders: int = 2

    def cap_of(self, method: str) -> float:
        """The processor time a method may spend on a data set, in seconds."""
        is_peer = split_name(method)[1] in PEERS
        return min(self.time_cap, self.peer_cap) if is_peer else self.time_cap


class _OutOfTimeError(BaseException):
    """The time cap is reached; no `except Exception` on the way may swallow it."""


def kind_of(method: str) -> Kind:
    """Say how a method meets a stream."""
    wrapper, name = split_name(method)
    if wrapper:
        return "windowed" if method.startswith("windowed") else "refit"
    if name in PEERS:
        return "batch"
    built = AGGREGATORS[name.partition(":")[0]]()
    return "batch" if built.state_type is _batch.State else "online"


def check_method(method: str) -> None:
    """Refuse a name that is neither a method of ours nor a peer."""
    wrapper, name = split_name(method)
    if name.startswith("crowdkit:") and (wrapper is windowed or name not in PEERS):
        raise StateError(
            f"There is no method {method!r}. Crowd-Kit's are {', '.join(PEERS)}; "
            "refit: may stand before each."
        )
    if name not in PEERS:
        estimator(method)


def evaluate(data: Dataset, method: str, protocol: Protocol = Protocol()) -> Row:
    """Run a method on a data set in all orders of a protocol.

    A method that cannot do it gives a row with the `reason`.

    Examples
    --------
    >>> row = evaluate(read_dataset("toy"), "majority_vote", Protocol(chunk_items=2, orders=3))
    >>> row["emitted_error"], row["orders"]
    (25.0, 3)
    """
    kind = kind_of(method)
    table, n_items = data.table, len(set(data.table.item_ids))
    cap = protocol.cap_of(method)
    facts = {
        "dataset": data.name,
        "method": method,
        "kind": kind,
        "chunk_items": protocol.chunk_items,
        "order": protocol.order,
        "arrival": protocol.arrival,
        "warmup_items": protocol.warmup_items,
        "items": n_items,
        "labels": len(table.item_ids),
        "workers": len(set(table.worker_ids)),
        "classes": len(set(table.labels)),
        "scored": sum(item in data.truth for item in set(table.item_ids)),
        "time_cap": cap,
        "data_sha256": digest(data),
        "labelquorum": version("labelquorum"),
    }
    if not facts["scored"]:
        return {**facts, "reason": "no item with labels has truth to score by"}
    said, true = set(table.labels), set(data.truth.values())
    if not said & true:
        lists = f"{sorted(map(str, said))[:5]} and {sorted(map(str, true))[:5]}"
        return {**facts, "reason": f"no class of the labels is one of the truth: {lists}"}
    if kind == "refit" and len(table.item_ids) > protocol.refit_labels:
        limit = f"{protocol.refit_labels:,}"
        return {**facts, "reason": f"refitting is measured on sets of up to {limit} labels"}
    began = perf_counter()
    runs: list[Prequential] = []
    twins: list[Prequential] = []
    memory, rise = _PeakMemory(), None
    wanted = n_orders(kind, protocol)
    try:
        with _time_cap(cap):
            for seed in range(0 if kind == "batch" else wanted):
                runs.append(_run(data, method, protocol, seed, n_items))
            rise = memory.rise()
            for seed in range(len(runs) or 1):
                whole = Protocol(chunk_items=n_items)
                twins.append(_run(data, split_name(method)[1], whole, seed, n_items))
            rise = memory.rise() if kind == "batch" else rise
    except _OutOfTimeError:
        if not runs:
            return {**facts, "reason": f"stopped after {cap:g} s"}
    except (LabelQuorumError, ArithmeticError, MemoryError, RuntimeError, ValueError) as error:
        return {**facts, "reason": " ".join(str(error).split())}
    if kind == "batch":
        runs = [twin._replace(final_error=twin.emitted_error) for twin in twins]
    seconds = np.concatenate([run.seconds for run in runs]) * 1000
    # Runs and twins are paired by their seeds: a tie falls alike in both.
    pairs = [
        100 * (run.emitted_error - twin.emitted_error)
        for run, twin in zip(runs, twins, strict=False)
    ]
    return {
        **facts,
        "orders": len(runs),
        "capped": len(runs) < wanted,
        **_summary("emitted_error", [100 * run.emitted_error for run in runs]),
        **_summary("final_error", [100 * run.final_error for run in runs]),
        **_summary("log_loss", [run.log_loss for run in runs]),
        **_summary("calibration_error", [100 * run.calibration_error for run in runs]),
        "batch_error": _mean([100 * twin.emitted_error for twin in twins]),
        "batch_gap": _mean(pairs),
        "latency_p50_ms": round(float(np.percentile(seconds, 50)), 3),
        "latency_p99_ms": round(float(np.percentile(seconds, 99)), 3),
        "peak_memory_mb": rise,
        "seconds": round(perf_counter() - began, 2),
        "curve": _mean_curve(runs),
    }


def evaluate_all(
    folders: Sequence[Path],
    methods: Sequence[str],
    protocol: Protocol = Protocol(),
    *,
    jobs: int = 1,
    memory: bool = False,
    done: Callable[[Path, str], bool] = lambda folder, method: False,
) -> Generator[tuple[Row, int, int]]:
    """Run all methods on all data sets, over several processes.

    Parameters
    ----------
    folders
        A folder for each data set.
    memory
        Measure each one's peak memory, in a subprocess.
    done
        Says what need not be run again.

    Yields
    ------
    row, finished, total
        In the order in which they finish.
    """
    for method in methods:
        check_method(method)
    if jobs < 1:
        raise StateError(f"`jobs` of evaluate_all must be a whole number ≥ 1. Got {jobs}.")
    work = [(folder, m) for folder in folders for m in methods if not done(folder, m)]
    if jobs == 1 and not memory:
        _read.cache_clear()  # the files may have changed since an earlier call
        for finished, (folder, method) in enumerate(work, 1):
            yield _task(folder, method, protocol), finished, len(work)
        return
    others = set(active_children())
    with _one_thread_each():
        pool = ProcessPoolExecutor(
            max(1, min(jobs, len(work))),
            get_context("spawn"),
            signal.signal,
            _LEAVE_TO_PARENT,
            max_tasks_per_child=1 if memory else None,
        )
        try:
            futures: list[Future[Row]] = [pool.submit(_task, *task, protocol) for task in work]
            for finished, future in enumerate(as_completed(futures), 1):
                yield future.result(), finished, len(work)
        except BrokenProcessPool:
            raise StateError(
                "A process of the benchmark was killed from outside, perhaps for want of memory. "
                "What is finished is kept; run the rest with --jobs 1."
            ) from None
        finally:  # also when nobody wants the rest: what still runs would run for minutes
            pool.shutdown(wait=False, cancel_futures=True)
            for process in set(active_children()) - others:
                process.terminate()


def _task(folder: Path, method: str, protocol: Protocol) -> Row:
    return evaluate(_read(folder), method, protocol)


@lru_cache(maxsize=1)  # the tasks of a set follow one another
def _read(folder: Path) -> Dataset:
    return read_dataset(folder.name, folder.parent)


def _run(data: Dataset, method: str, protocol: Protocol, seed: int, n_items: int) -> Prequential:
    """One stream: every order has a seed, and so has its model."""
    order: Any = {"random": seed, "file": None, "time": "time"}[protocol.order]
    return stream(
        partial(_model, method, seed, n_items, protocol.arrival),
        data.table,
        data.truth,
        chunk_items=protocol.chunk_items,
        warmup_items=protocol.warmup_items,
        order=order,
        arrival=protocol.arrival,
    )


def _model(method: str, seed: int, n_items: int, arrival: Arrival) -> Streamed:
    name = split_name(method)[1]
    if name in PEERS:
        return Peer(name)
    # Labels that trickle in meet items that are still open; whole items are closed at once.
    return estimator(method, seed=seed, open_items=n_items if arrival == "labels" else 0)


def digest(data: Dataset) -> str:
    """What tells the content of a data set from another of the same name."""
    parts = [*data.table.item_ids, *data.table.worker_ids, *data.table.labels]
    parts += [value for pair in data.truth.items() for value in pair]
    return sha256("\n".join(map(str, parts)).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def n_orders(kind: Kind, protocol: Protocol) -> int:
    """How often a method is run; in file and time order, only the model's seed differs."""
    if kind == "batch":
        return 1
    return min(protocol.orders, protocol.refit_orders) if kind == "refit" else protocol.orders


def _summary(name: str, values: Sequence[float]) -> Row:
    """The mean over orders, its standard deviation, and the values."""
    if any(map(isnan, values)):
        return {name: None, f"{name}_sd": None, f"{name}_by_order": []}
    return {
        name: _round(fmean(values)),
        f"{name}_sd": _round(stdev(values)) if len(values) > 1 else 0.0,
        f"{name}_by_order": [_round(value) for value in values],
    }


def _round(value: float) -> float:
    return round(value, 4) + 0.0  # no -0.0


def _mean(values: Sequence[float]) -> float | None:
    return _round(fmean(values)) if values and not any(map(isnan, values)) else None


def _mean_curve(runs: Sequence[Prequential]) -> list[list[float]]:
    """Items fed and the mean error so far, in per cent, at a few places along the stream."""
    n_chunks = min(len(run.curve) for run in runs)
    at = np.unique(np.linspace(0, n_chunks - 1, CURVE_POINTS).astype(int))
    curves = np.stack([run.curve[at] for run in runs])  # (orders, places, 2)
    known = ~np.isnan(curves[..., 1])
    sums = np.where(known, curves[..., 1], 0.0).sum(axis=0)
    counts = known.sum(axis=0)
    items = curves[..., 0].mean(axis=0)
    return [
        [round(float(items[i])), round(100 * float(sums[i] / counts[i]), 3)]
        for i in range(len(at))
        if counts[i]
    ]


# ── limits and measures of a process ─────────────────────────────────────────────────────


@contextmanager
def _time_cap(seconds: float) -> Iterator[None]:
    """Raise in the running code when its time is up: the processor's, not the wall clock's."""

    def stop(*_: Any) -> None:
        raise _OutOfTimeError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds, 1.0)  # and again, should it get lost
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Let processes started here compute on one thread each: they would fight over the cores."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false"
    ours: Mapping[str, str] = {
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "XLA_FLAGS": f"{flags} intra_op_parallelism_threads=1".strip(),
    }
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class _PeakMemory:
    """How far this process's memory rises from here on.

    Only Linux tells, and only a process that has run nothing else yet: memory that an earlier run
    gave back would hide what this one takes.
    """

    fresh = True

    def __init__(self) -> None:
        self._start: float | None = None
        if sys.platform == "linux" and _PeakMemory.fresh:
            _PeakMemory.fresh = False
            gc.collect()
            try:
                Path("/proc/self/clear_refs").write_text("5")  # the peak starts from now
            except OSError:
                return
            self._start = _status_mb("VmRSS")

    def rise(self) -> float | None:
        """The peak above the start, in MB."""
        return None if self._start is None else round(_status_mb("VmHWM") - self._start, 1)


def _status_mb(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(name))) / 1024
