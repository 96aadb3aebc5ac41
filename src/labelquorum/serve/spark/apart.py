"""Rounds over a crowd too large for the driver: its workers' rows are added up in Spark, by worker.

Each shard is sent the rows of its own workers as all shards counted them. The driver sees a few
sums of each shard, however many workers there are.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from safetensors.numpy import load, save

from labelquorum.ingest.chunks import Chunk
from labelquorum.learn.sharding import Gained, Known, Sums, added, sharding_of
from labelquorum.serve.spark.packing import chunk_from, numbers, table_from
from labelquorum.serve.spark.shards import (
    LABELS,
    SUMS,
    WORKER,
    Found,
    Plan,
    Run,
    Schema,
    answers_of,
    by_shard,
    crowd_of,
    kept,
    rows_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["rounds_apart"]

POOLED = 4
"""One kind of row more: a part of P."""


class Shared(NamedTuple):
    """What all shards counted, but of single workers."""

    sums: bytes
    pooled: bytes  # empty where a method has none

    def known(self, rows: Any) -> Known:
        """With the rows of some workers, (P, D)."""
        return Known(rows, load(self.sums), load(self.pooled) if self.pooled else {})


# ── the driver ───────────────────────────────────────────────────────────────────────────


def rounds_apart(
    first: "DataFrame", plan: Plan, schema: Schema, partitions: int, rounds: int | None
) -> Found:
    """Go on from the first round, whose rows are given."""
    sharding, gained = sharding_of(plan.model()), first
    labels, past = first.where(f"kind = {LABELS}"), [_sums(first)]
    totals = _totals(gained, plan, partitions, schema)
    shared = Shared(save(past[0]), _pooled(totals))
    while len(past) < (rounds or sharding.rounds) and not sharding.settled(past):
        again = _joined(labels, gained, totals, partitions)
        # Cut off from how it was made: a plan would double with each round.
        gained = again.mapInArrow(_fit_again(plan, shared), schema.rows).localCheckpoint()
        past.append(_sums(gained))
        totals = _totals(gained, plan, partitions, schema)
        shared = Shared(save(past[-1]), _pooled(totals))
    found = _joined(labels, gained, totals, partitions)
    answers = kept(found.mapInArrow(_answer(plan, shared), schema.answers))
    everybody = totals.where(f"kind = {WORKER}").select("worker", "labels", "data")
    workers = kept(everybody.mapInArrow(_workers_of(plan, shared), schema.workers))
    prior = sharding.class_prior(shared.known(np.zeros((0, 0))))
    return Found(answers, workers, prior, len(past))


def _totals(gained: "DataFrame", plan: Plan, partitions: int, schema: Schema) -> "DataFrame":
    """What all shards counted of each worker, and parts of P."""
    rows = gained.where(f"kind = {WORKER}").select("shard", "worker", "labels", "data")
    added_up = rows.repartition(partitions, "worker").mapInArrow(_total(plan), schema.totals)
    return added_up.localCheckpoint()


def _joined(
    labels: "DataFrame", gained: "DataFrame", totals: "DataFrame", partitions: int
) -> "DataFrame":
    """Each shard with what it counted itself, and what all counted of its workers."""
    from pyspark.sql import functions

    everybody = totals.where(f"kind = {WORKER}").select(
        "worker", functions.col("data").alias("total")
    )
    crowd = gained.where(f"kind = {WORKER}").join(everybody, "worker")
    others = labels.unionByName(gained.where(f"kind = {SUMS}"))
    rows = crowd.unionByName(others.withColumn("total", functions.lit(None).cast("binary")))
    return rows.repartitionById(partitions, "shard")


def _collected(found: "DataFrame", kind: int) -> list[bytes]:
    rows: list[bytes] = found.where(f"kind = {kind}").select("data").toArrow()["data"].to_pylist()
    return rows


def _sums(gained: "DataFrame") -> Sums:
    # In one order, or else the same table would not give the same bits.
    return added([load(data) for data in sorted(_collected(gained, SUMS))])


def _pooled(totals: "DataFrame") -> bytes:
    parts = sorted(_collected(totals, POOLED))
    return save(added([load(data) for data in parts])) if parts[0] else b""


# ── an executor ──────────────────────────────────────────────────────────────────────────


def _fit_again(plan: Plan, shared: Shared) -> Run:
    """From a shard's rows, with what all shards counted of its workers, to its new ones."""

    def again(shard: int, table: Any) -> Any:
        found = _shard(table, shared)
        gained = sharding_of(plan.model()).fit(found.chunk, found.known, found.own)
        return rows_of(shard, table["worker"].type, [], gained, found.workers, found.labels)

    return by_shard(again)


def _answer(plan: Plan, shared: Shared) -> Run:
    """From a shard's rows to its answers: task, label, confidence, labels."""

    def answer(shard: int, table: Any) -> Any:
        found = _shard(table, shared)
        result = sharding_of(plan.model()).answer(found.chunk, found.known)
        items = _of_kind(table, LABELS)["items"][0].as_py()
        return answers_of(result, found.chunk, table_from(items), plan.said())

    return by_shard(answer)


def _total(plan: Plan) -> Run:
    """From what shards counted of some workers to what all did, and what those give to P."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow

        parts = [batch for batch in batches if batch.num_rows]
        if not parts:
            return
        # In one order, or else the same table would not give the same bits.
        table = pyarrow.Table.from_batches(parts).sort_by("shard")
        coded = table["worker"].combine_chunks().dictionary_encode()
        places = coded.indices.to_numpy(zero_copy_only=False)
        rows = numbers(table["data"])
        sums = np.zeros((len(coded.dictionary), rows.shape[1]))
        np.add.at(sums, places, rows)
        labels = np.bincount(places, table["labels"].to_numpy(), len(sums)).astype(np.int64)
        pooled = sharding_of(plan.model()).pool(sums, len(plan.classes))
        names = ["kind", "worker", "labels", "data"]
        data = [row.tobytes() for row in sums]
        everybody = [[WORKER] * len(sums), coded.dictionary, labels, data]
        once = [[POOLED], [None], [0], [save(pooled) if pooled else b""]]
        types = [pyarrow.int32(), table["worker"].type, pyarrow.int64(), pyarrow.binary()]
        for columns in (everybody, once):
            arrays = [
                pyarrow.array(column, kind) for column, kind in zip(columns, types, strict=True)
            ]
            yield pyarrow.RecordBatch.from_arrays(arrays, names)

    return run


def _workers_of(plan: Plan, shared: Shared) -> Run:
    """From what all shards counted of workers to their skills and matrices."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        sharding = sharding_of(plan.model())
        for batch in batches:
            if batch.num_rows:
                known = shared.known(numbers(batch["data"]))
                labels = batch["labels"].to_numpy()
                confusion, prior = sharding.confusion(known), sharding.class_prior(known)
                yield from crowd_of(batch["worker"], labels, confusion, prior).to_batches()

    return run


class _Shard(NamedTuple):
    chunk: Chunk
    known: Known
    own: Gained
    workers: Any  # their ids, as Arrow holds them
    labels: Any


def _shard(table: Any, shared: Shared) -> _Shard:
    workers = _of_kind(table, WORKER).sort_by("place")
    chunk = chunk_from(_of_kind(table, LABELS)["data"][0].as_py())
    own = Gained(numbers(workers["data"]), load(_of_kind(table, SUMS)["data"][0].as_py()))
    known = shared.known(numbers(workers["total"]))
    return _Shard(chunk, known, own, workers["worker"].combine_chunks(), workers["labels"])


def _of_kind(table: Any, kind: int) -> Any:
    import pyarrow.compute

    return table.filter(pyarrow.compute.equal(table["kind"], kind))
