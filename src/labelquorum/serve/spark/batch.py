"""A table too large for one machine: aggregated in shards that share no item.

A Spark job costs a good part of a second however small it is, so a round is one pass: every shard
is fitted where it is, with the rows of its own workers as all shards counted them, and what it
counted goes back: to the driver where it is small (`gathered.py`), else by worker (`apart.py`).
"""

import re
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

from labelquorum.errors import LabelError, StateError
from labelquorum.ingest.chunks import id_order
from labelquorum.learn.estimator import estimator
from labelquorum.learn.sharding import sharding_of
from labelquorum.serve.spark.apart import rounds_apart
from labelquorum.serve.spark.gathered import rounds_gathered
from labelquorum.serve.spark.session import label_columns, quiet, require_pyspark
from labelquorum.serve.spark.shards import (
    ANSWERS,
    SUMS,
    WORKER,
    Plan,
    Schema,
    classes_from,
    fit_alone,
    fit_first,
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
    the result are kept where the executors are, until Spark is stopped or they are unpersisted.

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
    require_pyspark()
    if df.isStreaming:
        raise StateError(
            "aggregate takes a table, and this DataFrame is a stream. Use aggregate_stream."
        )
    for name, value in (("partitions", partitions), ("rounds", rounds)):
        if value is not None and value < 1:
            raise StateError(f"`{name}` must be a whole number ≥ 1. Got {value!r}.")
    model, labels = estimator(method, **settings), label_columns(df)
    try:
        with quiet():
            counted = labels.groupBy("label").count().toArrow()
            n_labels = sum(counted["count"].to_pylist())
            if not n_labels:
                raise LabelError("The DataFrame has no rows, and so nothing to aggregate.")
            if partitions is None:
                partitions = max(1, -(-n_labels // PARTITION_LABELS))
            classes = _classes(model, counted["label"].to_pylist())
            plan = Plan(method, settings, classes)
            if partitions == 1:
                return _in_one(labels, plan)
            return _in_shards(labels, plan, partitions, rounds)
    except Exception as error:
        raise _own(error) from error


def _classes(model: Any, said: list[Hashable]) -> list[Hashable]:
    """All classes, in the order the library gives them."""
    if model._space.classes is not None:
        return list(model._space.classes)
    return sorted((z for z in said if z is not None and z != model.abstain), key=id_order)


def _own(error: Exception) -> Exception:
    """What went wrong on an executor, as it was said there."""
    told = re.search(r"labelquorum\.errors\.(\w+): (.*)", str(error))
    if told is None:
        return error
    kinds: dict[str, type[Exception]] = {"LabelError": LabelError, "StateError": StateError}
    return kinds.get(told[1], StateError)(told[2].strip())


# ── one partition, and many ──────────────────────────────────────────────────────────────


def _in_one(labels: "DataFrame", plan: Plan) -> Aggregated:
    """As the library does it, on one executor."""
    schema = Schema(labels)
    found = _dealt(labels, 1).mapInArrow(fit_alone(plan), schema.rows).localCheckpoint()
    [shared] = found.where(f"kind = {SUMS}").select("data").toArrow()["data"].to_pylist()
    classes, prior = classes_from(shared)
    answers, workers = (
        found.where(f"kind = {kind}").select("data").mapInArrow(unpack, kind_schema)
        for kind, kind_schema in ((ANSWERS, schema.answers), (WORKER, schema.workers))
    )
    return Aggregated(answers, workers, classes, prior, 1, 1)


def _in_shards(labels: "DataFrame", plan: Plan, partitions: int, rounds: int | None) -> Aggregated:
    """Round by round; what a later round counts takes the place of what an earlier one did."""
    schema = Schema(labels)
    sharding_of(plan.model())  # refuses a method that cannot
    first = _dealt(labels, partitions).mapInArrow(fit_first(plan), schema.rows).localCheckpoint()
    counted = first.where(f"kind = {WORKER}").selectExpr("sum(length(data)) as size").toArrow()
    if counted["size"][0].as_py() <= GATHER_BYTES:
        found = rounds_gathered(first, plan, schema, rounds)
    else:
        found = rounds_apart(first, plan, schema, partitions, rounds)
    prior, classes = found.prior.tolist(), list(plan.classes)
    return Aggregated(found.answers, found.workers, classes, prior, partitions, found.rounds)


def _dealt(labels: "DataFrame", partitions: int) -> "DataFrame":
    """All labels of an item in one shard, and each shard in one partition."""
    from pyspark.sql import functions as F  # noqa: N812

    shard = F.pmod(F.xxhash64("task"), F.lit(partitions)).cast("int")
    # A number of partitions that is asked for is left alone by what joins small ones.
    return labels.withColumn("shard", shard).repartition(partitions, "shard")
