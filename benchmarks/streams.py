"""What the benchmarks stream, through which doors, and how they measure."""

import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

CHUNK_ITEMS = 50
LABELS_PER_ITEM = 10
N_CLASSES = 4
CHUNK_LABELS = CHUNK_ITEMS * LABELS_PER_ITEM
SKILL = 0.7  # of the crowd whose answers are timed, not scored

Result = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    history: Sequence[int] = (10**4, 10**6, 10**7)  # labels streamed
    workers: Sequence[int] = (10**3, 10**5, 10**6)  # workers known
    crowd: int = 1000  # workers where their number is not the question
    timed_chunks: int = 500
    starts: int = 5
    refit_items: int = 20_000
    refit_workers: Sequence[int] = (1000, 200)
    stall_chunks: int = 300
    bulk_labels: int = 10**7
    many_classes: Sequence[int] = (3000, 500, 10**5)  # workers, classes, labels
    preset: str = "default"
    own_cache: bool = True  # of compiled code, for each part; else that of the environment


QUICK = Sizes(
    (500, 1000),
    (500, 1000),
    100,
    20,
    starts=1,
    refit_items=300,
    refit_workers=(50,),
    stall_chunks=20,
    bulk_labels=10**5,
    many_classes=(100, 20, 2000),
    own_cache=False,
)


class Labels(NamedTuple):
    """One chunk's labels as flat integers, items numbered along the stream."""

    item: Any
    worker: Any
    label: Any
    truth: Any = None  # of each item


def labels_of(
    rng: np.random.Generator, worker: Any, first_item: int, n_classes: int = N_CLASSES
) -> Labels:
    """What these workers, (N, labels per item), say: the truth with chance SKILL, else anything."""
    n_items, per_item = worker.shape
    truth = rng.integers(n_classes, size=(n_items, 1))
    noise = rng.integers(n_classes, size=worker.shape)
    label = np.where(rng.random(worker.shape) < SKILL, truth, noise)
    item = first_item + np.repeat(np.arange(n_items), per_item)
    return Labels(item, worker.ravel(), label.ravel(), truth.ravel())


def draw_chunk(
    rng: np.random.Generator, n_workers: int, first_item: int, n_items: int = CHUNK_ITEMS
) -> Labels:
    """Items labelled by different workers drawn from all."""
    rows = [rng.choice(n_workers, LABELS_PER_ITEM, replace=False) for _ in range(n_items)]
    return labels_of(rng, np.array(rows), first_item)


def frame(labels: Labels) -> Any:
    """A chunk as a user has it: a DataFrame with ids in text."""
    import pandas as pd

    return pd.DataFrame(
        {
            "task": [f"task{i}" for i in labels.item.tolist()],
            "worker": [f"worker{k}" for k in labels.worker.tolist()],
            "label": labels.label,
        }
    )


def records(labels: Labels) -> list[tuple[str, str, int]]:
    """A chunk as it comes from a queue or a socket: rows (task, worker, label)."""
    task = [f"task{i}" for i in labels.item.tolist()]
    worker = [f"worker{k}" for k in labels.worker.tolist()]
    return list(zip(task, worker, labels.label.tolist(), strict=True))


def integer_chunk(labels: Labels, n_workers: int, n_classes: int = N_CLASSES) -> Any:
    from labelquorum.ingest.chunks import make_chunk

    item = labels.item - labels.item[0]
    return make_chunk(item, labels.worker, labels.label, n_workers=n_workers, n_classes=n_classes)


class Door:
    """`BiLA.partial_fit` on DataFrames, up to the labels in the user's hands."""

    name = "door"

    def __init__(self, preset: str) -> None:
        from labelquorum import BiLA

        self.model = BiLA(preset)

    def prepare(self, labels: Labels, n_workers: int) -> Any:
        return frame(labels)

    def advance(self, chunk: Any) -> None:
        assert len(self.model.partial_fit(chunk).labels_)


class Functions:
    """`update`, then `aggregate`, on chunks of integers."""

    name = "functions"

    def __init__(self, preset: str) -> None:
        from labelquorum.learn.bila import PRESETS, bila

        self.method = bila(**PRESETS[preset])
        self.state: Any = None

    def prepare(self, labels: Labels, n_workers: int) -> Any:
        return integer_chunk(labels, n_workers)

    def advance(self, chunk: Any) -> None:
        if self.state is None:
            self.state = self.method.init(chunk, 0)
        self.state, _ = self.method.update(self.state, chunk)
        self.method.aggregate(self.state, chunk)


def seconds_of(action: Callable[[Any], object], argument: Any) -> float:
    began = time.perf_counter()
    action(argument)
    return time.perf_counter() - began


def latency(seconds: Sequence[float]) -> Result:
    p50, p99 = np.percentile(seconds, (50, 99)) * 1000
    return {"p50_ms": round(p50, 3), "p99_ms": round(p99, 3), "chunks": len(seconds)}


def resident_mb() -> float:
    """Memory of this process; where the system does not tell, the most it ever had."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return round(pages * resource.getpagesize() / 2**20, 1)
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20, 1)


def say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)
