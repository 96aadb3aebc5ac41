"""A table too large for one machine: aggregated in shards that share no item.

A Spark job costs a good part of a second however small it is, so a round is one pass: every shard
is fitted where it is, with the rows of its own workers as all shards counted them, and what it
counted goes back. Rows of workers are added up by worker, in Spark; the driver sees a few sums.
"""

import re
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from safetensors.numpy import load, save

from labelquorum.errors import LabelError, StateError
from labelquorum.ingest.chunks import id_order
from labelquorum.learn.estimator import estimator
from labelquorum.learn.sharding import Sums, added, sharding_of
from labelquorum.serve.spark import shards
from labelquorum.serve.spark.session import label_columns, quiet, require_pyspark
from labelquorum.serve.spark.shards import ITEMS, LABELS, POOLED, SUMS, WORKER, Plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, GroupedData

__all__ = ["PARTITION_LABELS", "Aggregated", "aggregate"]

PARTITION_LABELS = 500_000
"""So many labels are fitted in one piece, unless one is told otherwise."""


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
        How often every partition is fitted, at most; unless given, 4 times for BiLA, and for
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
    schema = _Schema(labels)
    found = _dealt(labels, 1).applyInArrow(shards.fit_alone(plan), schema.rows)
    found = found.localCheckpoint()
    [shared] = _collected(found, SUMS)
    classes, prior = shards.classes_from(shared)
    answers, workers = (
        found.where(f"kind = {kind}").select("data").mapInArrow(shards.unpack, kind_schema)
        for kind, kind_schema in ((ITEMS, schema.answers), (WORKER, schema.workers))
    )
    return Aggregated(answers, workers, classes, prior, 1, 1)


def _in_shards(labels: "DataFrame", plan: Plan, partitions: int, rounds: int | None) -> Aggregated:
    """Round by round; what a later round counts takes the place of what an earlier one did."""
    schema, sharding = _Schema(labels), sharding_of(plan.model())
    first = _dealt(labels, partitions).applyInArrow(shards.fit_first(plan), schema.rows)
    # Cut off from how it was made: a plan would double with each round.
    gained = first.localCheckpoint()
    kept, past = gained.where(f"kind in ({LABELS}, {ITEMS})"), [_sums(gained, SUMS)]
    totals = _totals(gained, plan, partitions, schema)
    shared = shards.Shared(save(past[0]), _pooled(totals))
    for _ in range(1, rounds or sharding.rounds):
        if sharding.settled(past):
            break
        again = _joined(kept.where(f"kind = {LABELS}"), gained, totals, partitions)
        gained = again.applyInArrow(shards.fit_again(plan, shared), schema.rows).localCheckpoint()
        past.append(_sums(gained, SUMS))
        totals = _totals(gained, plan, partitions, schema)
        shared = shards.Shared(save(past[-1]), _pooled(totals))
    found = _joined(kept, gained, totals, partitions)
    answers = found.applyInArrow(shards.answer(plan, shared), schema.answers).localCheckpoint()
    everybody = totals.where(f"kind = {WORKER}").select("worker", "labels", "data")
    workers = everybody.mapInArrow(shards.workers_of(plan, shared), schema.workers)
    prior = sharding.class_prior(shared.known(np.zeros((0, 0))))
    return Aggregated(answers, workers, list(plan.classes), prior.tolist(), partitions, len(past))


class _Schema:
    """The shapes of rows; ids and labels have the types they came with."""

    def __init__(self, labels: "DataFrame") -> None:
        kinds = {field.name: field.dataType.simpleString() for field in labels.schema.fields}
        task, worker, label = kinds["task"], kinds["worker"], kinds["label"]
        self.totals = f"kind int, worker {worker}, labels bigint, data binary"
        self.rows = f"shard int, kind int, worker {worker}, place int, labels bigint, data binary"
        self.answers = f"task {task}, label {label}, confidence double, labels bigint"
        self.workers = f"worker {worker}, labels bigint, skill double, confusion array<double>"


def _dealt(labels: "DataFrame", partitions: int) -> "GroupedData":
    """All labels of an item in one shard."""
    from pyspark.sql import functions as F  # noqa: N812

    shard = F.pmod(F.xxhash64("task"), F.lit(partitions)).cast("int")
    # A number of partitions that is asked for is left alone by what joins small ones.
    return labels.withColumn("shard", shard).repartition(partitions, "shard").groupBy("shard")


def _totals(gained: "DataFrame", plan: Plan, partitions: int, schema: _Schema) -> "DataFrame":
    """What all shards counted of each worker, and parts of P."""
    rows = gained.where(f"kind = {WORKER}").select("worker", "labels", "data")
    added_up = rows.repartition(partitions, "worker").mapInArrow(shards.total(plan), schema.totals)
    return added_up.localCheckpoint()


def _joined(
    kept: "DataFrame", gained: "DataFrame", totals: "DataFrame", partitions: int
) -> "GroupedData":
    """Each shard with what it counted itself, and what all counted of its workers."""
    from pyspark.sql import functions as F  # noqa: N812

    everybody = totals.where(f"kind = {WORKER}").select("worker", F.col("data").alias("total"))
    crowd = gained.where(f"kind = {WORKER}").join(everybody, "worker")
    others = kept.unionByName(gained.where(f"kind = {SUMS}"))
    rows = crowd.unionByName(others.withColumn("total", F.lit(None).cast("binary")))
    return rows.repartition(partitions, "shard").groupBy("shard")


def _collected(found: "DataFrame", kind: int) -> list[bytes]:
    rows: list[bytes] = found.where(f"kind = {kind}").select("data").toArrow()["data"].to_pylist()
    return rows


def _sums(found: "DataFrame", kind: int) -> Sums:
    # In one order, or else the same table would not give the same bits.
    return added([load(data) for data in sorted(_collected(found, kind))])


def _pooled(totals: "DataFrame") -> bytes:
    parts = sorted(_collected(totals, POOLED))
    return save(added([load(data) for data in parts])) if parts[0] else b""
