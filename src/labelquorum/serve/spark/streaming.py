"""Structured Streaming into a stream of a store: what Spark gives at least once counts once.

Spark numbers its micro-batches and, after any end, gives the last one again under its number. The
store takes the labels, and how far Spark has come, in one transaction. So a micro-batch that comes
again is known, and one that is missing is missed. Learning and answers are the store's own.
"""

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from labelquorum.errors import ConflictError, StateError
from labelquorum.ingest.events import LabelTable
from labelquorum.record.chunking import Rules
from labelquorum.record.export import exported
from labelquorum.record.store import Store
from labelquorum.record.stream import Stream
from labelquorum.serve.spark.session import label_columns, quiet, require_pyspark
from labelquorum.serve.spark.spread import SPREAD_LABELS, Spread

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Feed", "aggregate_stream"]

Sink = Callable[["DataFrame", int], None]


def aggregate_stream(
    df: "DataFrame",
    store_url: str,
    stream: str,
    *,
    checkpoint: str,
    whole_items: bool = False,
    sink: Sink | str | None = None,
    sink_format: str = "parquet",
    source: str = "spark",
    trigger: Mapping[str, Any] | None = None,
    rules: Rules | None = None,
    spread_labels: int = SPREAD_LABELS,
    method: str = "bila",
    **settings: Any,
) -> "Feed":
    """Feed a streaming DataFrame into a stream of a store, and answer it there.

    Parameters
    ----------
    df
        A streaming DataFrame with the columns task, worker, label.
    store_url
        The store: a folder the driver can write to, or the URL of a PostgreSQL database.
    stream
        Its name. It is made where there is none.
    checkpoint
        Where Spark keeps how far it came. It goes with the store: keep both, or neither.
    whole_items
        Each micro-batch has all labels of its items, so all of them are answered at once. Unless
        given, the stream's rules say when an item is ready.
    sink
        Where the answers go besides: a function of (DataFrame, number of the micro-batch), as
        `foreachBatch` takes it, or a path under which each micro-batch has a folder.
    sink_format
        How answers are written under a path.
    source
        Who feeds. Two queries may feed one stream under names of their own.
    trigger
        What `DataStreamWriter.trigger` takes, such as {"availableNow": True}.
    rules, method, settings
        Of the stream, as `Store.create` takes them.
    spread_labels
        A chunk of so many labels is learned from on the executors.
    """
    require_pyspark()
    if not df.isStreaming:
        raise StateError(
            "aggregate_stream takes a streaming DataFrame, and this one is a table. Read it with "
            "spark.readStream, or use aggregate."
        )
    if not hasattr(df.sparkSession, "sparkContext"):
        raise StateError(
            "aggregate_stream takes a classic Spark session: under Spark Connect the store would "
            "be on the server. Submit the driver to the cluster."
        )
    labels = label_columns(df)
    store = _hold(store_url)
    try:
        store.learner = Spread(df.sparkSession, spread_labels)
        found = _prepared(store, stream, method, rules, settings)
        taker = _Taker(found, source, whole_items, sink, sink_format)
        writer = labels.writeStream.foreachBatch(taker).option("checkpointLocation", checkpoint)
        if trigger is not None:
            writer = writer.trigger(**trigger)
        return Feed(writer.start(), found, taker, store_url)
    except BaseException:
        _release(store_url)
        raise


class Feed:
    """A query that feeds a stream; Spark's own is `query`. The store is let go of at its end."""

    def __init__(
        self, query: "StreamingQuery", stream: Stream, taker: "_Taker", store_url: str
    ) -> None:
        self.query, self.stream = query, stream
        self._taker, self._store_url = taker, store_url
        self._ended = threading.Lock()

    def wait(self, seconds: int | None = None) -> bool:
        """Wait for the end; True if it has come. What went wrong is raised as it was."""
        try:
            ended = self.query.awaitTermination(seconds)
        except Exception as error:
            self._end()
            raise (self._taker.error or error) from error
        # Without a time to wait, Spark's own wait gives nothing back.
        if ended is None or ended:
            self._end()
        return ended is None or bool(ended)

    def process_all(self) -> None:
        """Wait until all that is there now was fed and answered."""
        try:
            self.query.processAllAvailable()
        except Exception as error:
            self._end()
            raise (self._taker.error or error) from error

    def stop(self) -> None:
        """End the query after the micro-batch at hand."""
        self.query.stop()
        self._end()

    def _end(self) -> None:
        if self._ended.acquire(blocking=False):
            _release(self._store_url)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.stop()


class _Taker:
    """What Spark calls with each micro-batch."""

    def __init__(
        self,
        stream: Stream,
        source: str,
        whole_items: bool,
        sink: Sink | str | None,
        sink_format: str,
    ) -> None:
        self.error: Exception | None = None
        self._stream, self._source, self._whole_items = stream, source, whole_items
        self._sink, self._sink_format = sink, sink_format
        self._sunk = f"{source} sink"

    def __call__(self, batch: "DataFrame", number: int) -> None:
        try:
            if not self._has(batch, number):
                self._accept(batch, number)
            self._stream.settle(flush=self._whole_items)
            if self._sink is not None:
                self._give(batch, number)
        except Exception as error:
            self.error = error
            raise

    def _has(self, batch: "DataFrame", number: int) -> bool:
        """Tell whether a micro-batch was accepted; refuse one that does not follow on the last."""
        # The checkpoint's own name, the same after every restart.
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId") or ""
        said = self._stream.position(self._source)
        self._place = _Place(query, number)
        last = self._place._replace(number=-1) if said is None else _Place.read(said)
        who = f"Stream {self._stream.name!r} has"
        if last.query != query:
            raise ConflictError(
                f"{who} labels of source {self._source!r} by another checkpoint, up to "
                f"micro-batch {last.number}. Go on with that one; or, if these are other labels, "
                "give source= a name of its own."
            )
        if number > last.number + 1:
            raise ConflictError(
                f"{who} the labels of source {self._source!r} up to micro-batch {last.number}, and "
                f"Spark goes on with {number}: those between are missing. Restore the store this "
                "checkpoint belongs to, or start with a new checkpoint and a new source=."
            )
        return number <= last.number

    def _accept(self, batch: "DataFrame", number: int) -> None:
        with quiet():
            table = batch.toArrow()
        place = str(self._place)
        self._stream.accept(table, f"{self._source} {place}", self._source, place)

    def _give(self, batch: "DataFrame", number: int) -> None:
        """Hand on what was answered since the last micro-batch; a crash may let it come again."""
        said = self._stream.position(self._sunk)
        last, chunk = (-1, 0) if said is None else map(int, said.split())
        if number <= last:
            return
        chunks = [row["id"] for row in self._stream.chunks(after=chunk)]
        answers = self._answers(chunks)
        if answers is not None:
            with quiet():
                given = batch.sparkSession.createDataFrame(answers)
            if callable(self._sink):
                self._sink(given, number)
            else:
                folder = f"{str(self._sink).rstrip('/')}/batch={number}"
                given.write.mode("overwrite").format(self._sink_format).save(folder)
        mark = f"{number} {max(chunks, default=chunk)}"
        self._stream.accept(LabelTable([], [], []), None, self._sunk, mark)

    def _answers(self, chunks: list[int]) -> Any:
        """The answers that were given in these chunks, as an Arrow table; None where none were."""
        import pyarrow

        kinds = {int: pyarrow.int64(), float: pyarrow.float64(), bool: pyarrow.bool_()}
        with exported(self._stream, "answers", probabilities=False, typed=True, chunks=chunks) as (
            columns,
            found,
        ):
            rows = list(found)
        if not rows:
            return None
        arrays = {}
        for name, types in columns.items():
            kind = kinds.get(next(iter(types)), pyarrow.string()) if len(types) == 1 else None
            values = [row[name] for row in rows]
            if kind is None or kind == pyarrow.string():  # a column has one type
                values, kind = [str(value) for value in values], pyarrow.string()
            arrays[name] = pyarrow.array(values, kind)
        return pyarrow.table(arrays)


class _Place(NamedTuple):
    """How far a source was read."""

    query: str
    number: int  # of the micro-batch

    @classmethod
    def read(cls, text: str) -> "_Place":
        query, number = text.split()
        return cls(query, int(number))

    def __str__(self) -> str:
        return f"{self.query} {self.number}"


def _prepared(
    store: Store, name: str, method: str, rules: Rules | None, settings: Mapping[str, Any]
) -> Stream:
    """The stream, made where there is none, with the rules that are asked for."""
    if name not in store.streams():
        return store.create(name, method, rules=rules, **settings)
    stream = store.stream(name)
    wanted = store.learner.configure(method, settings)
    if settings and wanted.configuration != stream.configuration.configuration:
        raise StateError(
            f"Stream {name!r} was made with the settings {stream.configuration.settings}, and a "
            f"stream keeps them. Got {wanted.settings}. Leave them out, or name another stream."
        )
    if rules is not None and rules != stream.rules:
        stream.change(**rules.as_dict())
    return stream


# ── stores this process writes to ────────────────────────────────────────────────────────
# A store has one writer, and several queries of one driver may feed it.


class _Held(NamedTuple):
    store: Store
    by: list[None]  # one for each feed


_stores: dict[str, _Held] = {}
_turn = threading.Lock()


def _name(store_url: str) -> str:
    return store_url if "://" in store_url else str(Path(store_url).resolve())


def _hold(store_url: str) -> Store:
    with _turn:
        name = _name(store_url)
        if name not in _stores:
            _stores[name] = _Held(Store.open(store_url), [])
        _stores[name].by.append(None)
        return _stores[name].store


def _release(store_url: str) -> None:
    with _turn, suppress(KeyError):
        held = _stores[_name(store_url)]
        held.by.pop()
        if not held.by:
            del _stores[_name(store_url)]
            held.store.close()
