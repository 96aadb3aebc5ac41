"""Measure how many labels per second bulk learning takes, from integer arrays, on one device.

    LABELQUORUM_ENGINE=jax python3 run.py python benchmarks/gpu.py [--labels N] [--save]
    LABELQUORUM_ENGINE=jax JAX_PLATFORMS=cpu python3 run.py python benchmarks/gpu.py --quick

Labels are drawn before the clock starts. It runs from arrays of integers in memory to the class of
every item: chunks are made, learned from (`update`) and answered (`aggregate`) one after the other.
A first chunk, which compiles, is timed by itself. Prints one JSON object; `--save` keeps it in
`results/gpu.json`.
"""

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
from bulk import bulk_labels, peak_mb
from engine import machine
from streams import LABELS_PER_ITEM, N_CLASSES, Functions, Labels, Result, integer_chunk, say

SAVED = Path(__file__).parent / "results" / "gpu.json"


def device() -> str:
    """What the engine computes on."""
    if os.environ.get("LABELQUORUM_ENGINE") != "jax":
        return "processor, the default engine"
    import jax

    found = jax.devices()[0]
    return f"{found.platform}: {found.device_kind}, the jax engine"


def measure(n_labels: int, chunk_labels: int, n_classes: int, preset: str) -> Result:
    """Learn from chunks of `chunk_labels` labels until `n_labels` were learned from."""
    labels = bulk_labels(chunk_labels, n_classes)
    n_workers, model = int(labels.worker.max()) + 1, Functions(preset)
    n_items = chunk_labels // LABELS_PER_ITEM

    def learn(first_item: int) -> float:
        # The same labels of other items: drawing new ones would take longer than learning.
        part = Labels(labels.item + first_item, labels.worker, labels.label)
        began = time.perf_counter()
        model.advance(integer_chunk(part, n_workers, n_classes))
        return time.perf_counter() - began

    first = learn(0)
    seconds = [learn(turn * n_items) for turn in range(1, 1 + max(1, n_labels // chunk_labels))]
    say(f"first chunk {first:.2f} s, then {np.median(seconds):.3f} s each")
    learned = len(seconds) * chunk_labels
    return {
        "labels": learned,
        "chunk_labels": chunk_labels,
        "classes": n_classes,
        "workers": n_workers,
        "first_chunk_s": round(first, 2),
        "seconds": round(sum(seconds), 2),
        "labels_per_second": round(learned / sum(seconds)),
        "peak_mb": peak_mb(),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--labels", type=int, default=10**8)
    parser.add_argument("--chunk-labels", type=int, default=2 * 10**6)
    parser.add_argument("--classes", type=int, default=N_CLASSES)
    parser.add_argument("--preset", default="default", help="of BiLA")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    parser.add_argument("--save", action="store_true", help="keep the result in results/")
    options = parser.parse_args(arguments)
    if options.save and options.quick:
        parser.error("--quick measures nothing worth saving.")
    if options.quick:
        options.labels, options.chunk_labels = 20_000, 10_000
    found = measure(options.labels, options.chunk_labels, options.classes, options.preset)
    command = "LABELQUORUM_ENGINE=jax python3 run.py python benchmarks/gpu.py"
    text = json.dumps(
        {"command": command, "device": device(), "machine": machine(), **found}, indent=2
    )
    if options.save:
        SAVED.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
