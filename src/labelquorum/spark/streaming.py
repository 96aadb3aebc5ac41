"""Structured Streaming into a stream of a store: what Spark gives at least once counts once.

Spark numbers its micro-batches and, after any end, gives the last one again under its number. The
store takes the labels, and how far Spark has come, in one transaction. So a micro-batch that comes
again is known, and one that is missing is missed. Learning and answers are the store's own; between
micro-batches a clock lets the stream's rules of time hold.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Self
from urllib.parse import quote

import pandas as pd

from labelquorum.errors import ConflictError, LabelError, StateError
from labelquorum.ingest.labels import LabelTable, OnBad
from labelquorum.ingest.readers import read_labels
from labelquorum.spark.session import label_columns, require_frame
from labelquorum.store.batch import decode
from labelquorum.store.export import exported
from labelquorum.store.rules import Rules
from labelquorum.store.store import Store
from labelquorum.store.stream import Stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


Sink = Callable[["DataFrame", int], None]

_AT_ONCE = 500  # chunks whose answers are read


class Taker:
    """What Spark calls with each micro-batch."""

    def __init__(
        self,
        stream: Stream,
        source: str,
        whole_items: bool,
        sink: Sink | str | None,
        sink_format: str,
        on_bad: OnBad | None = None,
    ) -> None:
        self.skipped = 0  # rows
        self.error: Exception | None = None
        self._stream, self._source, self._whole_items = stream, source, whole_items
        self._sink, self._sink_format = sink, sink_format
        self._sunk = f"{source} sink"
        space = stream.space
        self._space = space if on_bad is None else replace(space, on_bad=on_bad)

    def __call__(self, batch: "DataFrame", number: int) -> None:
        """Take a micro-batch; what goes wrong is kept in `error`, as it was."""
        try:
            self._accept(batch, number)
            self._stream.settle(flush=self._whole_items)
            if self._sink is not None:
                self._give(batch, number)
        except Exception as error:
            self.error = error
            raise

    def _accept(self, batch: "DataFrame", number: int) -> None:
        """Take a micro-batch once; refuse one that does not follow on the last."""
        # The checkpoint's own name, the same after every restart.
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if query is None:
            raise StateError(
                "Spark does not tell which query a micro-batch is of. Let it pin its threads "
                "(PYSPARK_PIN_THREAD=true, as it is unless set)."
            )
        said = self._stream.position(self._source)
        last = _Place(query, -1, "") if said is None else _Place.read(said)
        who = f"Stream {self._stream.name!r} has"
        has = f"{who} the labels of source {self._source!r} up to micro-batch {last.number}"
        if last.query != query:
            raise ConflictError(
                f"{who} labels of source {self._source!r} by another checkpoint, up to "
                f"micro-batch {last.number}. Go on with that one, in place of the one begun now; "
                "if it is gone, start over with a new store; or, if these are other labels, give "
                "source= a name of its own."
            )
        if number > last.number + 1:
            has = has if said is not None else f"{who} no labels of source {self._source!r}"
            raise ConflictError(
                f"{has}, and Spark goes on with {number}: those between are missing. Restore the "
                "store this checkpoint belongs to, or start with a new checkpoint and a new "
                "source=."
            )
        table = batch.toArrow()
        place = _Place(query, number, _digest_of(table))
        if number < last.number or (number == last.number and place != last):
            raise ConflictError(
                f"{has}, and Spark gives others as {number}: the checkpoint is older than the "
                "store. Restore the store that belongs to it, or start with a new checkpoint and a "
                "new source=."
            )
        if number > last.number:
            key = f"{self._source} {query} {number}"
            try:
                labels = read_labels(table, self._space)
                receipt = self._stream.accept(labels, key, self._source, str(place))
            except LabelError as error:
                first, *others = (f"Micro-batch {number}: {said}" for said in error.sentences)
                raise LabelError(first, others) from error
            self.skipped += sum(receipt.skipped.values())

    def _give(self, batch: "DataFrame", number: int) -> None:
        """Hand on what was answered since the last micro-batch; a crash may let it come again."""
        said = self._stream.position(self._sunk)
        last, chunk = (-1, 0) if said is None else map(int, said.split())
        if number <= last:
            return
        # Up to the first that another query of this driver has cut and not learned from yet.
        rows = takewhile(lambda row: row["state"] != "cut", self._stream.chunks(after=chunk))
        chunks = [row["id"] for row in rows]
        answers = self._answers(chunks)
        if answers is not None:
            given = batch.sparkSession.createDataFrame(answers)
            if callable(self._sink):
                self._sink(given, number)
            else:
                # By source, too: each numbers its micro-batches from 0 on.
                place = f"source={quote(self._source, safe='')}/batch={number}"
                folder = f"{str(self._sink).rstrip('/')}/{place}"
                given.write.mode("overwrite").format(self._sink_format).save(folder)
        mark = f"{number} {max(chunks, default=chunk)}"
        self._stream.accept(LabelTable([], [], []), None, self._sunk, mark)

    def _answers(self, chunks: list[int]) -> Any:
        """The answers that were given in these chunks, as an Arrow table; None where none were."""
        import pyarrow

        kinds = {int: pyarrow.int64(), float: pyarrow.float64(), bool: pyarrow.bool_()}
        columns: dict[str, set[type]] = {}
        rows: list[dict[str, Any]] = []
        for first in range(0, len(chunks), _AT_ONCE):
            some = chunks[first : first + _AT_ONCE]
            with exported(
                self._stream, "answers", probabilities=False, typed=True, chunks=some
            ) as (types, found):
                rows += found
            for name, kinds_of_some in types.items():
                columns.setdefault(name, set()).update(kinds_of_some)
        if not rows:
            return None
        arrays = {}
        for name, types_of in columns.items():
            kind = kinds.get(next(iter(types_of)), pyarrow.string()) if len(types_of) == 1 else None
            values = [row[name] for row in rows]
            if kind is None or kind == pyarrow.string():  # a column has one type
                values, kind = [str(value) for value in values], pyarrow.string()
            arrays[name] = pyarrow.array(values, kind)
        return pyarrow.table(arrays)


class _Place(NamedTuple):
    """How far a source was read."""

    query: str
    number: int  # of the micro-batch
    digest: str  # of its rows, in whatever order

    @classmethod
    def read(cls, text: str) -> "_Place":
        query, number, digest = text.split()
        return cls(query, int(number), digest)

    def __str__(self) -> str:
        return f"{self.query} {self.number} {self.digest}"


def _digest_of(table: Any) -> str:
    """What tells the rows of one micro-batch from those of another; their order may differ."""
    hashes = pd.util.hash_pandas_object(table.to_pandas(), index=False)
    return f"{table.num_rows}-{int(hashes.sum()) % 2**64:016x}"


# ── the query ────────────────────────────────────────────────────────────────────────────


WHOLE_CHUNK_ITEMS = 100_000
"""A chunk's items at most, where micro-batches have whole items and no rules are given."""

CLOCK_SECONDS, CLOCK_TRIES = 1.0, 5
"""Seconds between two checks whether an item waited long enough; failures in a row that end it."""

_SUCH_AS = {
    "rules": "of labelquorum.store.rules, such as Rules(labels_per_item=5)",
    "trigger": 'a dict, such as {"availableNow": True}',
}


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
    on_bad: OnBad | None = None,
    method: str | None = None,
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
        Each micro-batch has all labels of its items, so all of them are answered at once, as one
        chunk, and closed, unless `rules` say otherwise. Unless given, the stream's rules say when
        an item is ready.
    sink
        Where the answers go besides: a function of (DataFrame, number of the micro-batch), as
        `foreachBatch` takes it, or a path under which each micro-batch that answers something has
        a folder, `source=NAME/batch=N`. Answers that are given between two micro-batches come with
        the next, and those that were given before there was a sink with its first.
    sink_format
        How answers are written under a path.
    source
        Who feeds. Two queries may feed one stream under names of their own.
    trigger
        What `DataStreamWriter.trigger` takes, such as {"availableNow": True}.
    rules, method, settings
        Of the stream, as `Store.create` takes them; the method is "bila" unless given.
    on_bad
        "skip" passes over rows without task, worker or label; "error" ends the query at one.
        Unless given, as the stream was made; a new one has "error".
    """
    require_frame(df)
    for name, value, kind in (("rules", rules, Rules), ("trigger", trigger, Mapping)):
        if value is not None and not isinstance(value, kind):
            raise StateError(f"`{name}` must be {_SUCH_AS[name]}. Got {value!r}.")
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
        usual = Rules(chunk_items=WHOLE_CHUNK_ITEMS, grace=0.0) if whole_items else None
        if on_bad is not None and stream not in store.streams():
            settings["on_bad"] = on_bad
        found = _prepared(store, stream, method, rules, settings, usual)
        found.settle(flush=whole_items)  # what a driver before us left
        taker = Taker(found, source, whole_items, sink, sink_format, on_bad)
        writer = labels.writeStream.foreachBatch(taker).option("checkpointLocation", checkpoint)
        if trigger is not None:
            writer = writer.trigger(**trigger)
        return Feed(writer.start(), found, taker, store_url, keeps_time=not whole_items)
    except BaseException:
        _release(store_url)
        raise


class Feed:
    """A query that feeds a stream; Spark's own is `query`. The store is released at its end."""

    def __init__(
        self,
        query: "StreamingQuery",
        stream: Stream,
        taker: Taker,
        store_url: str,
        keeps_time: bool,
    ) -> None:
        self.query, self.stream = query, stream
        self._taker, self._store_url = taker, store_url
        self._ended, self._over = threading.Lock(), threading.Event()
        self._failed: Exception | None = None  # what the clock met
        self._clock = threading.Thread(
            target=self._keep_time, name="labelquorum-spark", daemon=True
        )
        if keeps_time:  # nothing waits where micro-batches have whole items
            self._clock.start()

    @property
    def skipped(self) -> int:
        """Rows that were passed over since the start, because they lack something."""
        return self._taker.skipped

    def wait(self, seconds: int | None = None) -> bool:
        """Wait for the end; True if it has come. What went wrong is raised as it was."""
        try:
            ended = self.query.awaitTermination(seconds)
        except Exception as error:
            self._end()
            self._raise(error)
        if ended is not None and not ended:  # without a time to wait, Spark gives nothing back
            return False
        self._end()
        self._tell()
        return True

    def process_all(self) -> None:
        """Wait until all that is there now was fed and answered."""
        try:
            self.query.processAllAvailable()
        except Exception as error:
            self._end()
            self._raise(error)
        self._tell()

    def stop(self) -> None:
        """End the query; a micro-batch at hand is broken off, and comes again at the next start."""
        self._halt()
        self._tell()

    def _halt(self) -> None:
        self.query.stop()
        self._end()

    def _raise(self, error: Exception) -> NoReturn:
        cause = self._failed or self._taker.error
        if cause is None:
            raise error
        raise cause from error

    def _tell(self) -> None:
        """Raise what the clock met: it ended the query, of which Spark knows no reason."""
        if self._failed is not None:
            self._end()
            raise self._failed

    def _keep_time(self) -> None:
        """Let items become ready, and chunks be cut, also while no micro-batch comes."""
        failures = 0
        while not self._over.wait(CLOCK_SECONDS):
            try:
                self.stream.settle()
                failures = 0
            except Exception as error:
                failures += 1
                if failures == CLOCK_TRIES:  # it ends the query, as it would in a micro-batch
                    self._failed = error
                    with suppress(Exception):  # the first error is the one to report
                        self.query.stop()
                    return

    def _end(self) -> None:
        if self._ended.acquire(blocking=False):
            self._over.set()
            if self._clock.is_alive():
                self._clock.join()
            _release(self._store_url)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if kind is None:
            self.stop()
        else:
            self._halt()


def _prepared(
    store: Store,
    name: str,
    method: str | None,
    rules: Rules | None,
    settings: Mapping[str, Any],
    usual: Rules | None,
) -> Stream:
    """The stream with the rules asked for; made where there is none, with the usual ones."""
    if name not in store.streams():
        return store.create(name, method or "bila", rules=rules or usual, **settings)
    stream = store.stream(name)
    held = stream.configuration
    wanted = store.learner.configure(method or held.method, settings)
    has, wants = decode(held.settings), decode(wanted.settings)
    # Of all settings only those that are given: others may have another default by now.
    given = {*settings, *(["preset"] if ":" in (method or "") else [])}
    other = {name: wants[name] for name in given & wants.keys() if has.get(name) != wants[name]}
    if wanted.method != held.method or other:
        raise StateError(
            f"Stream {name!r} learns by {held.method} with {_some(has, other)}, and a stream keeps "
            f"that. Got {wanted.method} with {_some(other, other)}. Leave it out, or name another "
            "stream."
        )
    if rules is not None and rules != stream.rules:
        stream.change(**rules.as_dict())
    return stream


def _some(settings: Mapping[str, Any], names: Iterable[str]) -> str:
    return ", ".join(f"{name}={settings.get(name)!r}" for name in names) or "these settings"


# ── stores this process writes to ────────────────────────────────────────────────────────
# A store has one writer, and several queries of one driver may feed it.


class _Held:
    def __init__(self, store: Store) -> None:
        self.store, self.n_feeds = store, 0


_stores: dict[str, _Held] = {}
_turn = threading.Lock()


def _name(store_url: str) -> str:
    return store_url if "://" in store_url else str(Path(store_url).resolve())


def _hold(store_url: str) -> Store:
    with _turn:
        name = _name(store_url)
        if name not in _stores:
            _stores[name] = _Held(Store.open(store_url))
        _stores[name].n_feeds += 1
        return _stores[name].store


def _release(store_url: str) -> None:
    with _turn, suppress(KeyError):
        held = _stores[_name(store_url)]
        held.n_feeds -= 1
        if not held.n_feeds:
            del _stores[_name(store_url)]
            held.store.close()
