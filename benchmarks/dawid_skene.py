"""Dawid–Skene on a million labels: our drop-in for Crowd-Kit's class against the original.

Both fit the same table for the same number of EM rounds, in one process, in turns. Prints JSON.
"""

import argparse
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from crowdkit.aggregation import DawidSkene as CrowdKitDawidSkene
from engine import machine

from labelquorum.compat.crowdkit import DawidSkene
from labelquorum.evaluation import class_conditional_crowd

HERE = Path(__file__).parent
SAVED = HERE / "results" / "dawid_skene.json"
TARGET = 5.0
N_CLASSES = 4
LABELS_PER_ITEM = 5
LABELS_PER_WORKER = 500


def table(n_labels: int) -> pd.DataFrame:
    """A crowd's labels in the order a platform would give them: none."""
    crowd = class_conditional_crowd(
        n_labels // LABELS_PER_ITEM,
        max(n_labels // LABELS_PER_WORKER, 20),
        N_CLASSES,
        LABELS_PER_ITEM,
        skill=(0.4, 0.8),
        seed=0,
    )
    columns = {"task": crowd.item, "worker": crowd.worker, "label": crowd.label}
    names = {"task": "task{}", "worker": "worker{}", "label": "class{}"}
    text = {
        column: np.array([names[column].format(i) for i in range(values.max() + 1)])[values]
        for column, values in columns.items()
    }
    return pd.DataFrame(text).sample(frac=1, random_state=0, ignore_index=True)


def measure(labels: pd.DataFrame, rounds: int, repeats: int) -> dict[str, Any]:
    """The best of some runs of each; `tol=-inf` keeps both from stopping early."""
    best: dict[str, float] = {}
    models: dict[str, Any] = {}
    for turn in range(repeats):
        for name, kind in (("labelquorum", DawidSkene), ("crowdkit", CrowdKitDawidSkene)):
            began = time.perf_counter()
            models[name] = kind(n_iter=rounds, tol=-np.inf).fit(labels)
            seconds = time.perf_counter() - began
            best[name] = min(best.get(name, np.inf), seconds)
            print(f"  turn {turn}: {name} {seconds:.2f} s", file=sys.stderr, flush=True)
    ours, theirs = models["labelquorum"], models["crowdkit"]
    probas = theirs.probas_.loc[ours.probas_.index, ours.probas_.columns]
    return {
        "rounds": len(ours.loss_history_),
        "their_rounds": len(theirs.loss_history_),
        "labelquorum_s": round(best["labelquorum"], 3),
        "crowdkit_s": round(best["crowdkit"], 3),
        "ratio": round(best["crowdkit"] / best["labelquorum"], 1),
        "equal_labels": float((ours.labels_ == theirs.labels_.loc[ours.labels_.index]).mean()),
        "largest_difference_of_probas": float(np.abs(ours.probas_ - probas).to_numpy().max()),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--labels", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--save", action="store_true", help=f"keep the result in {SAVED.name}")
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore", module="crowdkit")
    result = {
        "command": "python3 run.py python benchmarks/dawid_skene.py",
        "machine": machine(),
        "labels": options.labels,
        "classes": N_CLASSES,
        **measure(table(options.labels), options.rounds, options.repeats),
        "target_ratio": TARGET,
    }
    result["holds"] = result["ratio"] >= TARGET
    text = json.dumps(result, indent=2)
    if options.save:
        SAVED.parent.mkdir(exist_ok=True)
        SAVED.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
