"""Learning from a large chunk of a stream on the executors, and from a small one on the driver.

A distributed pass costs its jobs, however small the chunk is.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from safetensors.numpy import load, save

from labelquorum.learn.sharding import (
    Gained,
    Known,
    Shard,
    Sums,
    learn_in_shards,
    sharding_of,
)
from labelquorum.record.learner import Here
from labelquorum.record.model import learn
from labelquorum.record.rows import Configuration, Outcome, Work
from labelquorum.record.tables import decode
from labelquorum.serve.spark.session import quiet
from labelquorum.serve.spark.shards import Plan, chunk_bytes, chunk_from

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SPREAD_LABELS", "Spread"]

SPREAD_LABELS = 1_000_000
"""A chunk of so many labels is learned from on the executors, unless one is told otherwise."""

SHARD_LABELS = 250_000
"""So many labels go to one executor. It does not follow the cluster: results would, too."""


class Spread:
    """A learner for a store that is fed by Spark; see `record.learner.Learner`."""

    def __init__(self, session: "SparkSession", least: int = SPREAD_LABELS) -> None:
        self._session, self._least, self._here = session, least, Here()

    def configure(self, method: str, settings: Mapping[str, Any]) -> Configuration:
        """Check what a stream is to learn by, and spell out every setting."""
        return self._here.configure(method, settings)

    def ask(self, work: Work, question: str, options: Mapping[str, Any]) -> Any:
        """What the model says of these workers and open items."""
        return self._here.ask(work, question, options)

    def learn(self, work: Work) -> Outcome:
        """Learn from a chunk, and say which rows are new."""
        is_plain = not (work.keeps_open or work.open_items or work.gold)
        if len(work.labels) < self._least or not is_plain:
            return self._here.learn(work)
        plan = Plan(work.method, decode(work.settings), ())
        n_shards = max(2, -(-len(work.labels) // SHARD_LABELS))
        by = partial(learn_in_shards, n_shards=n_shards, run=partial(self._run, plan))
        return learn(work, by=by)

    def _run(self, plan: Plan, todo: list[Shard]) -> list[Gained]:
        """Fit shards on the executors."""
        import pyarrow

        table = pyarrow.table(
            {
                "shard": pyarrow.array(range(len(todo)), pyarrow.int32()),
                "labels": [chunk_bytes(shard.chunk) for shard in todo],
                "known": [_known_bytes(shard.known) for shard in todo],
                "own": [_gained_bytes(shard.own) for shard in todo],
            }
        )
        with quiet():
            rows = self._session.createDataFrame(table).repartition(len(todo), "shard")
            found = rows.mapInArrow(_fit(plan), "shard int, data binary").toArrow()
        data = dict(zip(found["shard"].to_pylist(), found["data"].to_pylist(), strict=True))
        gained = [_gained_from(data[number]) for number in range(len(todo))]
        return [one for one in gained if one is not None]


def _fit(plan: Plan) -> Any:
    """What an executor does."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow

        sharding = sharding_of(plan.model())
        for batch in batches:
            for row in batch.to_pylist():
                known, own = _known_from(row["known"]), _gained_from(row["own"])
                gained = sharding.fit(chunk_from(row["labels"]), known, own)
                columns = [
                    pyarrow.array([row["shard"]], pyarrow.int32()),
                    pyarrow.array([_gained_bytes(gained)], pyarrow.binary()),
                ]
                yield pyarrow.RecordBatch.from_arrays(columns, ["shard", "data"])

    return run


# ── bytes; empty where there is nothing ──────────────────────────────────────────────────


def _gained_bytes(gained: Gained | None) -> bytes:
    if gained is None:
        return b""
    return save({"rows": gained.rows, **_named("sums", gained.sums)})


def _gained_from(data: bytes) -> Gained | None:
    arrays = load(data) if data else {}
    return Gained(arrays["rows"], _part("sums", arrays)) if arrays else None


def _known_bytes(known: Known | None) -> bytes:
    if known is None:
        return b""
    named = {**_named("sums", known.sums), **_named("pooled", known.pooled)}
    return save({"rows": known.rows, **named})


def _known_from(data: bytes) -> Known | None:
    arrays = load(data) if data else {}
    if not arrays:
        return None
    return Known(arrays["rows"], _part("sums", arrays), _part("pooled", arrays))


def _named(part: str, sums: Sums) -> Sums:
    return {f"{part}:{name}": array for name, array in sums.items()}


def _part(part: str, arrays: Sums) -> Sums:
    prefix = f"{part}:"
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}
