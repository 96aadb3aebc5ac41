"""The same aggregator on Apache Spark: streams into a store, and tables too large for one machine.

`pip install labelquorum[spark]` and Java 17 or newer; `docs/spark.md` has all of it. Spark does the
distribution, the sources, the offsets and the recovery.
"""

from labelquorum.spark.batch import Aggregated, aggregate
from labelquorum.spark.session import session
from labelquorum.spark.streaming import Feed, aggregate_stream

__all__ = ["Aggregated", "Feed", "aggregate", "aggregate_stream", "session"]
