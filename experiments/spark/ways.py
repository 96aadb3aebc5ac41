"""The ways to aggregate a lake that `scale.py` measures, each in a subprocess.

bila            lq.spark.aggregate, as it is by default
bila_one_pass   the same with rounds=1
dawid_skene     lq.spark.aggregate(method="dawid_skene")
plain           Dawid–Skene as an EM over DataFrames, joins and sums, with nothing of ours
crowdkit        Crowd-Kit's Dawid–Skene on one machine
stream          lq.spark.aggregate_stream, one file a micro-batch
"""

import json
import os
import sys
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pyarrow.parquet
from lake import CLASSES, truth_of

import labelquorum as lq
from labelquorum.store.rules import Rules

__all__ = ["WAYS"]

WAYS = ("bila", "bila_one_pass", "dawid_skene", "plain", "crowdkit", "stream")
PLAIN_ROUNDS = 5


def session(cores: int, folder: Path) -> Any:
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "3g",
        "spark.local.dir": str(folder / "tmp"),
        "spark.sql.shuffle.partitions": 2 * cores,
        "spark.sql.execution.arrow.maxRecordsPerBatch": 100_000,
    }
    spark = lq.spark.session(f"local[{cores}]", settings)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def run_batch(way: str, folder: Path, cores: int) -> dict[str, Any]:
    spark = session(cores, folder)
    labels = spark.read.parquet(str(folder / "labels"))
    began = monotonic()
    if way == "plain":
        answers, rounds = plain_dawid_skene(labels), PLAIN_ROUNDS
    else:
        options: dict[str, Any] = {"rounds": 1} if way == "bila_one_pass" else {}
        method = "dawid_skene" if way == "dawid_skene" else "bila"
        found = lq.spark.aggregate(labels, method, **options)
        answers, rounds = found.answers, found.rounds
    answers.write.mode("overwrite").parquet(str(folder / "answers"))
    seconds = monotonic() - began
    reply = pyarrow.parquet.read_table(folder / "answers", columns=["task", "label"])
    item, label = (reply[name].to_numpy() for name in ("task", "label"))
    spark.stop()
    return {"seconds": seconds, "error": float((label != truth_of(item)).mean()), "rounds": rounds}


def plain_dawid_skene(labels: Any) -> Any:
    """Dawid–Skene as it is written in Spark by hand: each iteration joins and sums."""
    from pyspark.sql import Window, functions

    smoothing = 1e-5
    labels = labels.select("task", "worker", "label").persist()
    votes = labels.groupBy("task", functions.col("label").alias("c")).count()
    total = Window.partitionBy("task")
    probs = votes.select(
        "task", "c", (functions.col("count") / functions.sum("count").over(total)).alias("q")
    )
    for _ in range(PLAIN_ROUNDS):
        counts = (
            labels.join(probs, "task")
            .groupBy("worker", "c", "label")
            .agg(functions.sum("q").alias("n"))
        )
        row = Window.partitionBy("worker", "c")
        share = (functions.col("n") + smoothing) / (
            functions.sum("n").over(row) + CLASSES * smoothing
        )
        confusion = counts.select("worker", "c", "label", functions.log(share).alias("s"))
        mass = probs.groupBy("c").agg(functions.sum("q").alias("m"))
        prior = mass.select(
            "c",
            functions.log(functions.col("m") / functions.sum("m").over(Window.partitionBy())).alias(
                "p"
            ),
        )
        said = labels.join(confusion, ["worker", "label"]).groupBy("task", "c")
        # A class no worker's row has is one for which a label says as good as nothing.
        scores = said.agg(functions.sum("s").alias("s"), functions.count("s").alias("k"))
        scores = scores.join(functions.broadcast(prior), "c")
        most = functions.max("k").over(total)
        scores = scores.select(
            "task",
            "c",
            (
                functions.col("s")
                + functions.col("p")
                + (most - functions.col("k")) * np.log(smoothing)
            ).alias("s"),
        )
        weight = functions.exp(functions.col("s") - functions.max("s").over(total))
        probs = scores.select("task", "c", weight.alias("w"))
        probs = probs.select(
            "task", "c", (functions.col("w") / functions.sum("w").over(total)).alias("q")
        )
        probs = probs.localCheckpoint()
    best = probs.groupBy("task").agg(functions.max_by("c", "q").alias("label"))
    return best


def run_crowdkit(folder: Path) -> dict[str, Any]:
    from crowdkit.aggregation import DawidSkene

    labels = pyarrow.parquet.read_table(folder / "labels").to_pandas()
    began = monotonic()
    answers = DawidSkene(n_iter=20).fit_predict(labels)
    seconds = monotonic() - began
    wrong = float((answers.to_numpy() != truth_of(answers.index.to_numpy())).mean())
    return {"seconds": seconds, "error": wrong}


def run_stream(folder: Path, cores: int) -> dict[str, Any]:
    spark = session(cores, folder)
    reader = spark.readStream.schema("task bigint, worker bigint, label bigint")
    labels = reader.option("maxFilesPerTrigger", 1).parquet(str(folder / "labels"))
    began = monotonic()
    feed = lq.spark.aggregate_stream(
        labels,
        str(folder / "store"),
        "scale",
        checkpoint=str(folder / "checkpoint"),
        whole_items=True,
        rules=Rules(chunk_items=20_000),
        trigger={"availableNow": True},
    )
    feed.wait()
    seconds = monotonic() - began
    spark.stop()
    return {"seconds": seconds}


def main() -> None:
    """Run the way that is named, on a number of cores, and print what it took."""
    way, folder, cores = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    if way == "crowdkit":
        reply = run_crowdkit(folder)
    elif way == "stream":
        reply = run_stream(folder, cores)
    else:
        reply = run_batch(way, folder, cores)
    print(json.dumps(reply))


if __name__ == "__main__":
    main()
