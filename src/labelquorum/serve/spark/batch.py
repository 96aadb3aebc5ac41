"""A table too large for one machine: aggregated in shards that share no item.

A Spark job costs a good part of a second however small it is, so a round is one pass: every shard
is fitted where it is, with the rows of its own workers as all shards counted them, and what it
counted goes back: to the driver where it is small (`gathered.py`), else by worker (`apart.py`).
"""

from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from labelquorum.errors import LabelError, StateError
from labelquorum.ingest.chunks import id_order
from labelquorum.ingest.formats import read_labels
from labelquorum.learn.estimator import estimator
from labelquorum.learn.sharding import sharding_of
from labelquorum.serve.spark.apart import rounds_apart
from labelquorum.serve.spark.gathered import rounds_gathered
from labelquorum.serve.spark.session import cause_of, label_columns, require_frame
from labelquorum.serve.spark.shards import (
    ANSWERS,
    SUMS,
    WORKER,
    Plan,
    Schema,
    classes_from,
    fit_alone,
    fit_first,
    kept,
    unpack,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["PARTITION_LABELS", "Aggregated", "aggregate"]

PARTITION_LABELS = 500_000
"""So many labels are fitted in one piece, unless one is told otherwise."""

GATHER_BYTES = 64 << 20
"""What shards counted of their workers is gathered on the driver, up to this size."""


class Aggregated(NamedTuple):
    """What a table says."""

    answers: "DataFrame"  # task, label, confidence, labels
    workers: "DataFrame"  # worker, labels, skill, confusion (C · C numbers, row by true class)
    classes: list[Hashable]  # in the order of every matrix
    priors: list[float]
    partitions: int
    rounds: int


def aggregate(
    df: "DataFrame",
    method: str = "bila",
    *,
    partitions: int | None = None,
    rounds: int | None = None,
    **settings: Any,
) -> Aggregated:
    """Aggregate all labels of a table at once.

    In one partition the result is, bit for bit, that of `lq.estimator(method).fit`. The tables of
    the result are kept where the executors are, until they are unpersisted or Spark is stopped.

    Parameters
    ----------
    df
        A DataFrame with the columns task, worker, label.
    method
        "bila" or "dawid_skene"; in one partition, any method.
    partitions
        In how many parts the items are dealt out; unless given, one for every 500,000 labels.
    rounds
        How often every partition is fitted, at most; unless given, 5 times for BiLA, and for
        Dawid–Skene until it has settled. With 1 each is fitted once, on its own.
    settings
        Of the method, as `lq.estimator` takes them.
    """
    require_frame(df)
    import pyarrow.compute
    from pyspark.sql import functions

    if df.isStreaming:
        raise StateError(
            "aggregate takes a table, and this DataFrame is a stream. Use aggregate_stream."
        )
    for name, value in (("partitions", partitions), ("rounds", rounds)):
        if value is not None and value < 1:
            raise StateError(f"`{name}` must be a whole number ≥ 1. Got {value!r}.")
    model, labels = estimator(method, **settings), label_columns(df)
    try:
        said = "task is not null and worker is not null"
        counts = ("count(*) as labels", f"count_if({said}) as said")
        counted = labels.groupBy("label").agg(*map(functions.expr, counts)).toArrow()
        n_labels = sum(counted["labels"].to_pylist())
        if not n_labels:
            raise LabelError("The DataFrame has no rows, and so nothing to aggregate.")
        if partitions is None:
            partitions = max(1, -(-n_labels // PARTITION_LABELS))
        whole = counted.filter(pyarrow.compute.field("said") > 0)
        classes = _classes(model, whole["label"])
        plan = Plan(method, settings, classes, counted["label"].type)
        if partitions == 1:
            return _in_one(labels, plan)
        return _in_shards(labels, plan, partitions, rounds)
    except Exception as error:
        cause = cause_of(error)
        if cause is None or cause is error:
            raise
        raise cause from error


def _classes(model: Any, said: Any) -> list[Hashable]:
    """All classes, in the order the library gives them; of what it would leave out, none."""
    if model._space.classes is not None:
        return list(model._space.classes)
    import pyarrow

    rows = {"task": range(len(said)), "worker": [0] * len(said), "label": said}
    found = read_labels(pyarrow.table(rows), replace(model._space, on_bad="skip"))
    return sorted(set(found.labels), key=id_order)


# ── one partition, and many ──────────────────────────────────────────────────────────────


def _in_one(labels: "DataFrame", plan: Plan) -> Aggregated:
    """As the library does it, on one executor."""
    schema = Schema(labels)
    found = _dealt(labels, 1).mapInArrow(fit_alone(plan), schema.rows).persist()
    [shared] = found.where(f"kind = {SUMS}").select("data").toArrow()["data"].to_pylist()
    classes, prior = classes_from(shared)
    answers, workers = (
        kept(found.where(f"kind = {kind}").select("data").mapInArrow(unpack, kind_schema))
        for kind, kind_schema in ((ANSWERS, schema.answers), (WORKER, schema.workers))
    )
    found.unpersist()
    return Aggregated(answers, workers, classes, prior, 1, 1)


def _in_shards(labels: "DataFrame", plan: Plan, partitions: int, rounds: int | None) -> Aggregated:
    """Round by round; what a later round counts takes the place of what an earlier one did."""
    schema = Schema(labels)
    sharding_of(plan.model())  # refuses a method that cannot
    first = _dealt(labels, partitions).mapInArrow(fit_first(plan), schema.rows).persist()
    counted = first.where(f"kind = {WORKER}").selectExpr("sum(length(data)) as size").toArrow()
    if counted["size"][0].as_py() <= GATHER_BYTES:
        found = rounds_gathered(first, plan, schema, rounds)
    else:
        found = rounds_apart(first, plan, schema, partitions, rounds)
    first.unpersist()
    prior, classes = found.prior.tolist(), plan.said().to_pylist()
    return Aggregated(found.answers, found.workers, classes, prior, partitions, found.rounds)


def _dealt(labels: "DataFrame", partitions: int) -> "DataFrame":
    """All labels of an item in one shard, and shard n in partition n."""
    from pyspark.sql import functions

    shard = functions.pmod(functions.xxhash64("task"), functions.lit(partitions)).cast("int")
    return labels.withColumn("shard", shard).repartitionById(partitions, "shard")
