"""Where a chunk of a stream is learned from: on the driver, or spread over the executors.

    python3 run.py spark experiments/spark/switch.py [--sizes 1e5 …] [--repeats 3] [--save]

Chunks of one size go into a stream one after the other, once with each learner, and the seconds of
learning are taken; the first chunk, for which code is compiled, is left out, and the median of the
others stands. `--save` writes results/switch.json.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

import lake

import labelquorum as lq
from labelquorum.ingest.readers import read_labels
from labelquorum.spark.streaming import ExecutorLearner
from labelquorum.store.learner import Learner, LocalLearner
from labelquorum.store.rules import Rules
from labelquorum.store.store import Store

HERE = Path(__file__).resolve().parent
COMMAND = "python3 run.py spark experiments/spark/switch.py --save"
WAYS = ("driver", "executors")


class Timed:
    """A learner that takes the time another needs."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self.seconds: list[float] = []

    def configure(self, method: str, settings: Mapping[str, Any]) -> Any:
        """As the learner does."""
        return self._learner.configure(method, settings)

    def ask(self, work: Any, question: str, options: Mapping[str, Any]) -> Any:
        """As the learner does."""
        return self._learner.ask(work, question, options)

    def learn(self, work: Any) -> Any:
        """As the learner does, and note how long it took."""
        began = monotonic()
        outcome = self._learner.learn(work)
        self.seconds.append(monotonic() - began)
        return outcome


def measure(spark: Any, n_labels: int, repeats: int) -> dict[str, Any]:
    """The seconds of a chunk of this size, each way."""
    row: dict[str, Any] = {"labels": n_labels}
    for way in WAYS:
        learner = Timed(LocalLearner() if way == "driver" else ExecutorLearner(spark, least=1))
        with tempfile.TemporaryDirectory() as folder, Store.open(folder) as store:
            store.learner = learner
            stream = store.create("switch", "bila", rules=Rules(chunk_items=n_labels))
            for number in range(repeats + 1):
                stream.accept(read_labels(lake.simulated(number, n_labels)))
                stream.settle(flush=True)
        assert len(learner.seconds) == repeats + 1
        row[way] = round(median(learner.seconds[1:]), 3)
    return row


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    sizes = [2e4, 5e4, 1e5, 2e5, 5e5, 1e6]
    parser.add_argument("--sizes", nargs="+", type=float, default=sizes)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--save", action="store_true", help="write results/switch.json")
    options = parser.parse_args(arguments)
    settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    cores = len(os.sched_getaffinity(0))
    spark = lq.spark.session(f"local[{cores}]", {**settings, "spark.driver.memory": "3g"})
    spark.sparkContext.setLogLevel("ERROR")
    rows = []
    for size in map(int, options.sizes):
        rows.append(measure(spark, size, options.repeats))
        print(json.dumps(rows[-1]), flush=True)
        if options.save:
            made = {"command": COMMAND, "cores": cores, "version": lq.__version__}
            text = json.dumps({"made": made, "rows": rows}, indent=1) + "\n"
            (HERE / "results" / "switch.json").write_text(text, encoding="utf-8")
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
