"""Rounds over a crowd that the driver can hold: a round is one job, and labels stay where they are.

The driver tells each shard what all shards counted of its workers, and adds up what it hears back.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from labelquorum.learn.sharding import Gained, Known, sharding_of, together
from labelquorum.serve.spark.packing import gained_bytes, gathered, known_bytes, numbers
from labelquorum.serve.spark.shards import (
    LABELS,
    SUMS,
    WORKER,
    Found,
    Plan,
    Schema,
    Told,
    answer_told,
    crowd_of,
    fit_told,
    kept,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["rounds_gathered"]


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
        told = _told(crowd, known, gained)
        gained = gathered(labels.drop("items").mapInArrow(fit_told(plan, told), schema.counted))
        known = together(sharding, gained, crowd.places, len(plan.classes))
        past.append(known.sums)
    told = _told(crowd, known, None)
    answers = kept(labels.mapInArrow(answer_told(plan, told), schema.answers))
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


def _told(crowd: _Crowd, known: Known, gained: list[Gained] | None) -> dict[int, Told]:
    """What each shard is told: what all counted of its workers and, for a round, what it did.

    It goes with the function, which Spark ships once to each executor; as a table to join it would
    take the memory the labels are in.
    """
    rows = [known_bytes(known._replace(rows=known.rows[at])) for at in crowd.places]
    own = [b""] * len(rows) if gained is None else map(gained_bytes, gained)
    return dict(zip(crowd.shards, map(Told, rows, own), strict=True))
