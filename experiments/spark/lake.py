"""A simulated lake of labels: 4 classes, 5 labels per item, 2,000 workers.

Items are integers, and so is their truth, which follows from the item alone.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet

__all__ = ["FILE_LABELS", "simulated", "truth_of", "write_labels"]

CLASSES, LABELS, WORKERS = 4, 5, 2_000
FILE_LABELS = 500_000


def simulated(number: int, n_labels: int, start: int | None = None, seed: int = 0) -> Any:
    """Part `number` of the labels, as an Arrow table; its first label is `start`."""
    skill = np.random.default_rng(seed).uniform(0.5, 0.95, WORKERS)
    rng = np.random.default_rng([seed, number])
    first = (number * n_labels if start is None else start) // LABELS
    item = first + np.repeat(np.arange(-(-n_labels // LABELS)), LABELS)[:n_labels]
    worker = rng.integers(0, WORKERS, n_labels)
    wrong = rng.integers(0, CLASSES, n_labels)
    label = np.where(rng.random(n_labels) < skill[worker], truth_of(item), wrong)
    return pyarrow.table({"task": item, "worker": worker, "label": label})


def truth_of(item: Any) -> Any:
    """The true classes of items."""
    return (item * 2654435761 >> 7) % CLASSES


def write_labels(folder: Path, n_labels: int) -> None:
    """Write labels as Parquet files, each with an age that says its turn."""
    folder.mkdir()
    for number, start in enumerate(range(0, n_labels, FILE_LABELS)):
        file = folder / f"{number:05}.parquet"
        table = simulated(number, min(FILE_LABELS, n_labels - start), start)
        pyarrow.parquet.write_table(table, file)
        os.utime(file, (1_000_000 + number, 1_000_000 + number))
