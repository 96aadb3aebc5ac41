"""What is counted, in a registry of the app's own."""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

__all__ = ["Metrics"]

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
GAUGES = {
    "chunks_behind": "Chunks that were cut and not learned from yet.",
    "model_version": "Chunks that were learned from.",
}


class Metrics:
    """Counts requests, labels, streams and viewers, and gives them out as Prometheus reads them."""

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
            "From the headers of a request to the end of its answer.",
            ["method", "route"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.labels = Counter(
            "labelquorum_labels",
            "Labels sent, by what became of them: accepted, late, skipped.",
            ["stream", "outcome"],
            registry=self.registry,
        )
        self.viewers = Gauge(
            "labelquorum_viewers", "Connections that follow events.", registry=self.registry
        )
        self._gauges = {
            name: Gauge(f"labelquorum_{name}", says, ["stream"], registry=self.registry)
            for name, says in GAUGES.items()
        }
        self._watched: Callable[[], Iterable[tuple[str, str, float]]] = tuple
        self._counted = lru_cache(maxsize=4096)(self.requests.labels)
        self._timed = lru_cache(maxsize=1024)(self.seconds.labels)
        self._labels = lru_cache(maxsize=4096)(self.labels.labels)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._counted(method, route, status).inc()
        self._timed(method, route).observe(seconds)

    def sent(self, stream: str, receipt: Any) -> None:
        """Count labels that were sent."""
        if receipt.repeated:
            return
        self._labels(stream, "accepted").inc(receipt.accepted)
        if receipt.late:
            self._labels(stream, "late").inc(receipt.late)
        if receipt.skipped:
            self._labels(stream, "skipped").inc(sum(receipt.skipped.values()))

    def watch(self, measure: Callable[[], Iterable[tuple[str, str, float]]]) -> None:
        """Say who knows the gauges: each by its name, its stream and its value."""
        self._watched = measure

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        for name, stream, value in self._watched():
            self._gauges[name].labels(stream).set(value)
        return generate_latest(self.registry)
