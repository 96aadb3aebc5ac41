"""A table too large for one machine: aggregated in shards that share no item.

A Spark job costs a good part of a second however small it is, so a round is one pass: every shard
is fitted where it is, with the rows of its own workers as all shards counted them, and what it
counted goes back to the driver.
"""

from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from labelquorum.errors import LabelError, StateError
from labelquorum.ingest.chunks import id_order
from labelquorum.ingest.readers import read_labels
from labelquorum.learn.estimators import estimator
from labelquorum.learn.shards import Gained, Known, sharding_of, together
from labelquorum.spark.executor import (
    ANSWERS,
    LABELS,
    SUMS,
    WORKER,
    Found,
    Plan,
    Schema,
    ShardCounts,
    answer_with_counts,
    classes_from,
    crowd_of,
    fit_alone,
    fit_first,
    fit_with_counts,
    gained_bytes,
    gathered,
    kept,
    known_bytes,
    numbers,
    unpack,
)
from labelquorum.spark.session import cause_of, label_columns, require_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


PARTITION_LABELS = 500_000
"""Maximum number of labels fitted in one piece, unless given."""


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
    if model.model_.space.classes is not None:
        return list(model.model_.space.classes)
    import pyarrow

    rows = {"task": range(len(said)), "worker": [0] * len(said), "label": said}
    found = read_labels(pyarrow.table(rows), replace(model.model_.space, on_bad="skip"))
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
    found = rounds_gathered(first, plan, schema, rounds)
    first.unpersist()
    prior, classes = found.prior.tolist(), plan.said().to_pylist()
    return Aggregated(found.answers, found.workers, classes, prior, partitions, found.rounds)


def _dealt(labels: "DataFrame", partitions: int) -> "DataFrame":
    """All labels of an item in one shard, and shard n in partition n."""
    from pyspark.sql import functions

    shard = functions.pmod(functions.xxhash64("task"), functions.lit(partitions)).cast("int")
    return labels.withColumn("shard", shard).repartitionById(partitions, "shard")


# ── rounds ───────────────────────────────────────────────────────────────────────────────


class _Crowd(NamedTuple):
    """Who is in which shard."""

    workers: Any  # their ids, as Arrow holds them
    labels: NDArray[np.int64]  # of each worker
    shards: list[int]
    places: list[NDArray[np.intp]]  # of each shard: where its workers stand among all


def rounds_gathered(
    first: "DataFrame", plan: Plan, schema: Schema, rounds: int | None = None
) -> Found:
    """Go on from the first round, whose rows are given."""
    sharding = sharding_of(plan.model())
    crowd, gained = _met(first)
    labels = first.where(f"kind = {LABELS}").selectExpr("shard", "data as labels", "items")
    known = together(sharding, gained, crowd.places, len(plan.classes))
    past = [known.sums]
    while len(past) < (rounds or sharding.rounds) and not sharding.settled(past):
        counts = _shard_counts(crowd, known, gained)
        gained = gathered(
            labels.drop("items").mapInArrow(fit_with_counts(plan, counts), schema.counted)
        )
        known = together(sharding, gained, crowd.places, len(plan.classes))
        past.append(known.sums)
    counts = _shard_counts(crowd, known, None)
    answers = kept(labels.mapInArrow(answer_with_counts(plan, counts), schema.answers))
    prior, confusion = sharding.class_prior(known), sharding.confusion(known)
    everybody = crowd_of(crowd.workers, crowd.labels, confusion, prior)
    workers = first.sparkSession.createDataFrame(everybody, schema.workers)
    return Found(answers, workers, prior, len(past))


def _met(first: "DataFrame") -> tuple[_Crowd, list[Gained]]:
    """All workers, and what each shard counted in the first round."""
    rows = first.where(f"kind in ({WORKER}, {SUMS})").drop("items").toArrow()
    rows = rows.sort_by([("shard", "ascending"), ("place", "ascending")])
    kinds = rows["kind"].to_numpy()
    sums, everybody = rows.filter(kinds == SUMS), rows.filter(kinds == WORKER)
    coded = everybody["worker"].combine_chunks().dictionary_encode()
    place = coded.indices.to_numpy(zero_copy_only=False)
    labels = np.bincount(place, everybody["labels"].to_numpy(), len(coded.dictionary))
    shards, counted = sums["shard"].to_numpy(), numbers(everybody["data"])
    ends = np.searchsorted(everybody["shard"].to_numpy(), shards, side="right")[:-1]
    parts = zip(np.split(counted, ends), sums["data"].to_pylist(), strict=True)
    gained = [Gained(own, load(data)) for own, data in parts]
    who = _Crowd(coded.dictionary, labels.astype(np.int64), shards.tolist(), np.split(place, ends))
    return who, gained


def _shard_counts(
    crowd: _Crowd, known: Known, gained: list[Gained] | None
) -> dict[int, ShardCounts]:
    """What is sent to each shard: what all counted of its workers and, for a round, what it did.

    It goes with the function, which Spark ships once to each executor; as a table to join it would
    take the memory the labels are in.
    """
    rows = [known_bytes(known._replace(rows=known.rows[at])) for at in crowd.places]
    own = [b""] * len(rows) if gained is None else map(gained_bytes, gained)
    return dict(zip(crowd.shards, map(ShardCounts, rows, own), strict=True))
