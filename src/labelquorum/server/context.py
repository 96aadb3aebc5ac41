"""What all routes share: the store, the write queue, the caches."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Hashable, Iterator
from dataclasses import replace
from math import inf
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import Request
from starlette.concurrency import run_in_threadpool

from labelquorum.errors import LabelQuorumError
from labelquorum.ingest.labels import LabelSpace
from labelquorum.server.auth import Keyring
from labelquorum.server.cache import Cache, Cached, WorkerTable
from labelquorum.server.config import Log, Settings
from labelquorum.server.errors import RETRY_SECONDS, ApiError
from labelquorum.server.request_parsing import BodyReader, ParquetReader
from labelquorum.server.sse import Hub
from labelquorum.server.telemetry import Metrics, Throughput
from labelquorum.store.api_keys import Keys
from labelquorum.store.queries import all_rows
from labelquorum.store.stats import StreamStats
from labelquorum.store.store import Store
from labelquorum.store.stream import Stream

__all__ = ["Known", "Service", "cached_body", "known_stream", "service_of"]

Answer = TypeVar("Answer")

MAX_QUESTIONS, MAX_WAITING_QUESTIONS = 4, 64
"""Maximum number of questions to the learner that run, and that wait."""

MAX_SEARCHES, MAX_WAITING_SEARCHES = 2, 32
"""Maximum number of searches through a stream's items that run, and that wait."""

MAX_CACHED_RESPONSES, RESPONSE_TTL_SECONDS = 256, 1.0
RESPONSE_REST, MAX_RESPONSE_REST_SECONDS = 30.0, 5.0
"""A response rests for 30 times as long as it took: making it takes a thirtieth of the time."""

MAX_STALE_SECONDS = 5.0
"""The largest `max-stale` that a client is granted."""

MAX_CACHED_TABLES, TABLE_TTL_SECONDS = 64, 2.0
TABLE_REST, TABLE_STALE_SECONDS = 10.0, 10.0
"""Worker tables take the learner a tenth of its time, and are shown while the next one is made."""


class Known:
    """A stream, and how its rows are read."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.tally = StreamStats(stream)
        space = stream.space
        self.spaces: dict[str, LabelSpace] = {
            on_bad: replace(space, on_bad=on_bad) for on_bad in ("error", "skip")
        }


class Service:
    """What all routes share."""

    def __init__(self, store: Store, write_queue: Any, settings: Settings, log: Log) -> None:
        self.store, self.write_queue, self.settings, self.log = store, write_queue, settings, log
        self.keys = Keys(store)
        self.keyring = Keyring(self.keys)
        self.metrics = Metrics()
        self.bodies = BodyReader(settings)
        self.parquet = ParquetReader()
        self.hub = Hub(settings, self.metrics)
        self.metrics.set_gauges(self._gauged)
        self.responses = Cache[bytes](
            MAX_CACHED_RESPONSES, RESPONSE_TTL_SECONDS, RESPONSE_REST, MAX_RESPONSE_REST_SECONDS
        )
        self.worker_tables = Cache[WorkerTable](
            MAX_CACHED_TABLES, TABLE_TTL_SECONDS, TABLE_REST, stale=TABLE_STALE_SECONDS
        )
        self.throughput = Throughput(self._paced, log)
        self._following: asyncio.Task[None] | None = None
        self.creating = threading.Lock()
        self._asking = CapacityLimiter(MAX_QUESTIONS)
        self._searching = CapacityLimiter(MAX_SEARCHES)
        # One process writes to a store, so no other process creates streams.
        self._known = {name: Known(store.stream(name)) for name in store.streams()}

    def start(self) -> None:
        """Begin to take labels, in the loop that serves."""
        self.hub.open()
        self.write_queue.loop.on_change = self.hub.ring
        self.write_queue.start()
        self._following = asyncio.get_running_loop().create_task(self.throughput.run())

    async def stop(self) -> None:
        """Commit what was taken, and end."""
        self.hub.close()
        self.worker_tables.close()
        if self._following is not None:
            self._following.cancel()
        await run_in_threadpool(self.write_queue.stop)
        await run_in_threadpool(self.parquet.close)

    async def ask(self, question: Callable[..., Answer], *about: Any) -> Answer:
        """Ask what only the learner knows, in a thread; few at a time, so that reads go on."""
        if self._asking.statistics().tasks_waiting >= MAX_WAITING_QUESTIONS:
            raise _later("Too many ask the model at the moment. Retry in a second.")
        try:
            return await to_thread.run_sync(question, *about, limiter=self._asking)
        except LabelQuorumError:
            raise
        except RuntimeError as error:  # the learner's process has died; there will be another
            raise _later(f"The model could not be asked ({error}). Retry in a second.") from error

    async def worker_table(self, stream: Stream) -> WorkerTable:
        """The worker table of a stream; events announce a new one as `workers`."""

        async def make() -> WorkerTable:
            old = self.worker_tables.peek(stream.name)
            if old is not None and old.version == await run_in_threadpool(stream.model_version):
                return old
            table = await self.ask(lambda: WorkerTable(*stream.worker_table()))
            if old is not None:
                self.hub.note(stream.name, "workers")
            return table

        return (await self.worker_tables.get(stream.name, make)).value

    async def search(self, look: Callable[..., Answer], *about: Any) -> Answer:
        """Look through many rows, in a thread; few at a time, so that other reads go on."""
        if self._searching.statistics().tasks_waiting >= MAX_WAITING_SEARCHES:
            raise _later("Too many search at the moment. Retry in a second.")
        return await to_thread.run_sync(look, *about, limiter=self._searching)

    def _gauged(self) -> Iterator[tuple[str, str, float]]:
        """What is measured when it is asked for: its name, the stream, the value."""
        for name, known in list(self._known.items()):
            yield "chunks_behind", name, self.write_queue.loop.behind(name)
            yield "model_version", name, known.stream.model_version()

    def _paced(self) -> dict[str, tuple[int, int]]:
        """The labels of each stream, and how far learning is behind."""
        return {
            name: (rows, self.write_queue.loop.behind(name))
            for name, rows in all_rows(self.store).items()
        }

    def discard(self, stream: str | None) -> None:
        """Drop cached responses about a stream, or about all together: they are wrong by now."""
        self.responses.discard(lambda key: key[0] == stream)

    def known(self, name: str) -> Known:
        """A stream by its name."""
        found = self._known.get(name)
        if found is None:
            raise ApiError(404, f"There is no stream {name[:256]!r}. See GET /v1/streams.")
        return found

    def add(self, stream: Stream) -> None:
        """Know one more stream."""
        self._known[stream.name] = Known(stream)

    def drop(self, name: str) -> None:
        """Know a stream no longer under this name: it was deleted or renamed."""
        self._known.pop(name, None)
        self.keyring.refresh()
        self.worker_tables.discard(lambda key: key == name)
        for about in (name, None):
            self.discard(about)
        self.hub.drop(name)

    def has(self, stream: Stream) -> bool:
        """Whether a stream is still known, under the same name."""
        found = self._known.get(stream.name)
        return found is not None and found.stream.ref.key == stream.ref.key


def service_of(request: Request) -> Service:
    """What all routes share."""
    service: Service = request.app.state.service
    return service


def known_stream(request: Request) -> Known:
    """The stream in the address of a request."""
    return service_of(request).known(request.path_params["stream"])


async def cached_body(
    request: Request, stream: str | None, about: Hashable, make: Callable[[], Awaitable[bytes]]
) -> Cached[bytes]:
    """The body of a response that is made once for all clients who ask the same.

    `stream` is None for what depends on all streams. A page that is being opened has heard of no
    event yet; it may say `Cache-Control: max-stale`, and need not wait.
    """
    max_stale = 0.0
    for directive in request.headers.get("cache-control", "").lower().split(","):
        name, _, seconds = directive.strip().partition("=")
        if name == "max-stale":
            max_stale = float(seconds) if seconds.isdecimal() else inf
    service = service_of(request)
    return await service.responses.get(
        (stream, about),
        make,
        lambda: service.hub.changes(stream),
        min(max_stale, MAX_STALE_SECONDS),
    )


def _later(sentence: str) -> ApiError:
    return ApiError(503, sentence, headers={"Retry-After": str(RETRY_SECONDS)})
