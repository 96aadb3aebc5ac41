"""Structured Streaming into a stream of a store: what Spark gives at least once counts once.

Spark numbers its micro-batches and, after any end, gives the last one again under its number. The
store takes the labels, and how far Spark has come, in one transaction. So a micro-batch that comes
again is known, and one that is missing is missed. Learning and answers are the store's own; between
micro-batches a clock lets the stream's rules of time hold.
"""

import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from labelquorum.errors import StateError
from labelquorum.ingest.events import OnBad
from labelquorum.record.chunking import Rules
from labelquorum.record.store import Store
from labelquorum.record.stream import Stream
from labelquorum.record.tables import decode
from labelquorum.serve.spark.session import label_columns, require_frame
from labelquorum.serve.spark.spread import SPREAD_LABELS, Spread
from labelquorum.serve.spark.taker import Sink, Taker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Feed", "aggregate_stream"]

WHOLE_CHUNK_ITEMS = 100_000
"""A chunk's items at most, where micro-batches have whole items and no rules are given."""

CLOCK_SECONDS, CLOCK_TRIES = 1.0, 5
"""So often it is looked whether an item waited long enough; so many failures in a row end all."""

_SUCH_AS = {
    "rules": "of labelquorum.record.chunking, such as Rules(labels_per_item=5)",
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
    spread_labels: int = SPREAD_LABELS,
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
        chunk unless `rules` say otherwise. Unless given, the stream's rules say when an item is
        ready.
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
    spread_labels
        A chunk of so many labels is learned from on the executors.
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
        store.learner = Spread(df.sparkSession, spread_labels)
        usual = Rules(chunk_items=WHOLE_CHUNK_ITEMS) if whole_items else None
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
    """A query that feeds a stream; Spark's own is `query`. The store is let go of at its end."""

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
                    with suppress(Exception):  # the first error is the one to be told
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
