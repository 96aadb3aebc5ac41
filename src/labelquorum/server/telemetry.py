"""What the service measures: Prometheus metrics, throughput per stream, and alerts."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.concurrency import run_in_threadpool

from labelquorum.errors import LabelQuorumError
from labelquorum.server.config import Log
from labelquorum.store.rules import Rules
from labelquorum.store.stats import DEPTH, StreamStats

# ── metrics ──────────────────────────────────────────────────────────────────────────────

BUCKET_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
GAUGES = {
    "chunks_behind": "Chunks that were cut and not learned from yet.",
    "model_version": "Chunks that were learned from.",
}


class Metrics:
    """Counts requests, labels, streams and viewers in a separate Prometheus registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "labelquorum_requests",
            "Requests answered.",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "labelquorum_request_seconds",
            "From the headers of a request to the end of its response.",
            ["method", "route"],
            buckets=BUCKET_SECONDS,
            registry=self.registry,
        )
        self.labels = Counter(
            "labelquorum_labels",
            "Labels sent, by outcome: accepted, late, skipped.",
            ["stream", "outcome"],
            registry=self.registry,
        )
        self.viewers = Gauge(
            "labelquorum_viewers", "Connections that follow events.", registry=self.registry
        )
        self._gauges = {
            name: Gauge(f"labelquorum_{name}", text, ["stream"], registry=self.registry)
            for name, text in GAUGES.items()
        }
        self._measure: Callable[[], Iterable[tuple[str, str, float]]] = tuple
        self._requests = lru_cache(maxsize=4096)(self.requests.labels)
        self._seconds = lru_cache(maxsize=1024)(self.seconds.labels)
        self._labels = lru_cache(maxsize=4096)(self.labels.labels)

    def count_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests(method, route, status).inc()
        self._seconds(method, route).observe(seconds)

    def count_labels(self, stream: str, receipt: Any) -> None:
        """Count the labels of a request, unless they are a repetition."""
        if receipt.repeated:
            return
        self._labels(stream, "accepted").inc(receipt.accepted)
        if receipt.late:
            self._labels(stream, "late").inc(receipt.late)
        if receipt.skipped:
            self._labels(stream, "skipped").inc(sum(receipt.skipped.values()))

    def set_gauges(self, measure: Callable[[], Iterable[tuple[str, str, float]]]) -> None:
        """Set what measures the gauges when metrics are read: name, stream and value of each."""
        self._measure = measure

    def text(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        for name, stream, value in self._measure():
            self._gauges[name].labels(stream).set(value)
        return generate_latest(self.registry)


# ── throughput ───────────────────────────────────────────────────────────────────────────

WINDOW_SECONDS = 60
"""How long samples are kept."""

SAMPLE_SECONDS = 1.0
"""The interval between two samples."""

RATE_SECONDS = 10
"""Labels per second are an average over this time."""


class Sample(NamedTuple):
    """A stream at one moment."""

    at: float
    rows: int  # labels accepted since the stream was created
    behind: int  # chunks


class Throughput:
    """Samples every stream once a second, and keeps the last minute.

    Parameters
    ----------
    measure
        Gives rows and chunks behind by the key of a stream; called in a thread: it reads the store.
    log
        Where a failed measurement is logged.
    """

    def __init__(self, measure: Callable[[], Mapping[int, tuple[int, int]]], log: Log) -> None:
        self._measure, self._log = measure, log
        self._samples: dict[int, deque[Sample]] = {}

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            try:
                self.add(time.monotonic(), await run_in_threadpool(self._measure))
            except LabelQuorumError:
                pass  # a store that does not answer is reported elsewhere
            except Exception as error:  # the next sample may succeed
                self._log.write("error", of="throughput", error=repr(error))
            await asyncio.sleep(SAMPLE_SECONDS)

    def add(self, now: float, found: Mapping[int, tuple[int, int]]) -> None:
        """Add a sample per stream."""
        for gone in self._samples.keys() - found.keys():
            del self._samples[gone]
        for key, (rows, behind) in found.items():
            kept = self._samples.setdefault(key, deque(maxlen=WINDOW_SECONDS + 1))
            kept.append(Sample(now, rows, behind))

    def labels_per_second(self, key: int) -> float:
        """The rate of labels over the last seconds."""
        samples = list(self._samples.get(key, ()))  # another thread may add to it
        if not samples:
            return 0.0
        last = samples[-1]
        first = next(one for one in samples if last.at - one.at <= RATE_SECONDS)
        return (last.rows - first.rows) / (last.at - first.at) if last.at > first.at else 0.0

    def spark(self, key: int) -> list[int]:
        """The labels in each of the last 60 seconds, the newest last."""
        samples = list(self._samples.get(key, ()))
        found = [after.rows - before.rows for before, after in pairwise(samples)]
        return [0] * (WINDOW_SECONDS - len(found)) + found

    def growth(self, key: int) -> int:
        """By how many chunks learning fell behind in the last minute."""
        samples = list(self._samples.get(key, ()))
        return samples[-1].behind - samples[0].behind if samples else 0


# ── alerts ───────────────────────────────────────────────────────────────────────────────

MAX_CHUNKS_BEHIND = 10
"""More chunks that wait to be learned from are an alert."""

MAX_GROWTH_CHUNKS = 3
"""So is a backlog that grew by this many within a minute."""

MIN_MEAN_LABELS = 2.0
"""Labels per item: with fewer than two there is no agreement to learn from."""

MAX_SHARE_BELOW_RULE = 0.05
"""The share of recent items that may have fewer labels than the rule asks for."""

RECENT_SECONDS = 3600.0
"""Items of the last chunk are recent for this long."""

MIN_RECENT_ITEMS = 20
"""With fewer items their number of labels is left uncommented."""

MAX_NAMED = 5
"""Maximum number of workers, and of classes, that are named."""

Alert = dict[str, Any]


def alerts(
    stats: StreamStats,
    rules: Rules,
    behind: int,
    growth: int,
    quarantined: Sequence[int],
    drifting: Sequence[Alert],
    healthy: bool,
    now: float,
) -> list[Alert]:
    """What needs a person, the most severe first.

    Parameters
    ----------
    behind, growth
        Chunks that wait to be learned from, and by how many more than a minute ago.
    quarantined
        Chunks that could not be learned from.
    drifting
        Workers who are drifting: worker, says, since.
    healthy
        Whether the store takes writes.
    now
        Seconds since 1970.
    """
    found = [*_service_alerts(behind, growth, quarantined, healthy)]
    for gone in stats.missing_classes()[:MAX_NAMED]:
        says = (
            f"{gone.label!r} was {gone.share:.0%} of the answers until chunk {gone.since}, and "
            f"none of the {gone.answers:,} since. Check the tasks that come, and who labels."
        )
        since = {"since": gone.since, "label": gone.label}
        found.append({"code": "class_vanished", "says": says, **since})
    for one in drifting[:MAX_NAMED]:
        says = f"Worker {one['worker']}: {one['says'][:1].lower()}{one['says'][1:]}"
        found.append({"code": "worker_turned", **one, "says": says})
    if stats.moved_at is None or now - stats.moved_at <= RECENT_SECONDS:
        found += _depth_alerts(stats.depth, rules)
    return found


def _service_alerts(
    behind: int, growth: int, quarantined: Sequence[int], healthy: bool
) -> Iterator[Alert]:
    if not healthy:
        yield {
            "code": "store",
            "says": "The store does not accept labels at the moment. Check its disk or its "
            "database; acknowledged labels are safe.",
        }
    if behind > MAX_CHUNKS_BEHIND or growth >= MAX_GROWTH_CHUNKS:
        more = f", {growth} more than a minute ago" if growth > 0 else ""
        says = (
            f"Learning is {behind} chunks behind{more}. Answers come late; larger chunks, or fewer "
            "labels at a time, would help."
        )
        yield {"code": "lag", "says": says}
    if quarantined:
        n = len(quarantined)
        which = f"Chunk {quarantined[0]}" if n == 1 else f"{n} chunks"
        says = (
            f"{which} could not be learned from, and {'is' if n == 1 else 'are'} quarantined with "
            "the labels. The reason is with the chunk."
        )
        yield {"code": "quarantined", "says": says, "since": quarantined[0]}


def _depth_alerts(depth: Sequence[int], rules: Rules) -> Iterator[Alert]:
    n_items = sum(depth)
    if n_items < MIN_RECENT_ITEMS:
        return
    mean = sum(n * items for n, items in enumerate(depth)) / n_items
    fewer = sum(depth[: min(rules.labels_per_item, DEPTH)])
    if mean < MIN_MEAN_LABELS:
        says = (
            f"The last {n_items:,} tasks have {mean:.1f} labels each. With fewer than "
            f"{MIN_MEAN_LABELS:g} nobody can tell who is right; ask more workers for each task."
        )
        yield {"code": "few_labels", "says": says}
    elif fewer > MAX_SHARE_BELOW_RULE * n_items:
        says = (
            f"{fewer:,} of the last {n_items:,} tasks have fewer than the "
            f"{rules.labels_per_item} labels that are wanted, for they had waited long enough."
        )
        yield {"code": "few_labels", "says": says}
