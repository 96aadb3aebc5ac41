"""Learning from a large chunk of a stream on the executors, and from a small one on the driver.

A distributed pass costs its jobs, however small the chunk is.
"""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from labelquorum.errors import StoreError
from labelquorum.learn.shards import Gained, Shard, learn_in_shards
from labelquorum.spark.executor import (
    Plan,
    Told,
    chunk_bytes,
    fit_told,
    gained_bytes,
    gathered,
    known_bytes,
)
from labelquorum.spark.session import cause_of
from labelquorum.store.codec import decode
from labelquorum.store.learner import Configuration, LocalLearner, Outcome, Work
from labelquorum.store.model_rows import learn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SPREAD_LABELS", "ExecutorLearner"]

SPREAD_LABELS = 1_000_000
"""A chunk of so many labels is learned from on the executors, unless one is told otherwise.

Reckoned for six cores or more; on two the driver is the faster here too. See `docs/spark.md`.
"""

SHARD_LABELS = 250_000
"""So many labels go to one executor. It does not follow the cluster: results would, too."""


class ExecutorLearner:
    """A learner for a store that is fed by Spark; see `store.learner.Learner`."""

    def __init__(self, session: "SparkSession", least: int = SPREAD_LABELS) -> None:
        self._session, self._least, self._here = session, least, LocalLearner()

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
            }
        )
        reported = {
            number: Told(known_bytes(shard.known), gained_bytes(shard.own))
            for number, shard in enumerate(todo)
        }
        try:
            rows = self._session.createDataFrame(table).repartitionById(len(todo), "shard")
            return gathered(rows.mapInArrow(fit_told(plan, reported), "shard int, data binary"))
        except Exception as error:
            cause = cause_of(error)
            if cause is not None:
                raise cause from error
            # An executor was lost, or Spark stopped: no fault of the chunk, which comes again.
            raise StoreError(
                f"Spark could not learn from a chunk of {table.num_rows} shards. It is kept, and "
                f"is learned from when the query starts again. Spark said: {_first_line(error)}"
            ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300]
