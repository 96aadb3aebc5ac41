"""What all routes share: the store, the write queue, the caches."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextvars import Context
from dataclasses import replace
from functools import partial
from math import ceil, inf
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from anyio import CapacityLimiter
from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from labelquorum.ingest.labels import LabelSpace
from labelquorum.server.auth import Keyring
from labelquorum.server.cache import Cache, Cached, WorkerTable, as_json, json_response
from labelquorum.server.config import Log, Settings
from labelquorum.server.errors import ApiError, retry_later
from labelquorum.server.large_answers import LATER, TOO_MANY
from labelquorum.server.questions import N_PROCESSES, QUESTION_SECONDS
from labelquorum.server.request_parsing import BodyReader, ParquetReader
from labelquorum.server.sse import Hub
from labelquorum.server.telemetry import Metrics, Throughput
from labelquorum.server.turns import Turns, in_thread
from labelquorum.store.api_keys import Keys
from labelquorum.store.queries import all_rows
from labelquorum.store.stats import StreamStats
from labelquorum.store.store import Store
from labelquorum.store.stream import Stream

Answer = TypeVar("Answer")

MAX_SEARCHES = 2
"""Maximum number of searches that run: through a million items each holds 500 MB."""

MAX_CHANGES = 4
"""Maximum number of streams that are created, renamed or deleted, and of those with a job."""

MAX_WRITES = 2
"""Maximum number of requests that write truths, revisions or rules: labels wait for the
transactions that came before, each of which takes 0.1 s."""

MAX_CACHED_RESPONSES, RESPONSE_TTL_SECONDS = 256, 1.0
RESPONSE_REST, MAX_RESPONSE_REST_SECONDS = 30.0, 5.0
"""A response rests for 30 times as long as it took: making it takes a thirtieth of the time."""

MAX_STALE_SECONDS = 5.0
"""The largest `max-stale` that a client is granted."""

MAX_CACHED_TABLES, TABLE_TTL_SECONDS = 64, 2.0
TABLE_REST, TABLE_STALE_SECONDS = 10.0, 10.0
"""Worker tables take the learner a tenth of its time, and are shown while the next one is made."""

REPORT_REST, MAX_REPORTS_PER_STREAM = 1.0, 8
"""Reports of a stream that is learned from all the time take half of the time. Of one stream eight
are kept, so that who asks with every `limit` drops none of another's."""

MAX_UNCLAIMED_FILES, UNCLAIMED_SECONDS = 2, 60.0
"""Model files that were made too late for who asked, 40 MB and more each, wait for the next one."""

MAX_EXPORTS, MAX_EXPORTS_PER_STREAM = 4, 3
"""Maximum number of exports that are written at a time; a stream leaves one to others."""


class Known:
    """A stream, and how its rows are read."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.tally = StreamStats(stream)
        space = stream.space
        self.spaces: dict[str, LabelSpace] = {
            on_bad: replace(space, on_bad=on_bad) for on_bad in ("error", "skip")
        }


class _ModelFile:
    """A model as a file, which is being made or was made, for as long as something holds it."""

    def __init__(self, making: asyncio.Task[bytes]) -> None:
        self.making, self.begun = making, time.monotonic()


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
        self._model_files = WeakValueDictionary[Hashable, _ModelFile]()
        self._unclaimed: dict[int, _ModelFile] = {}  # by stream: no request was given it yet
        self.throughput = Throughput(self._paced, log)
        self._following: asyncio.Task[None] | None = None
        self.creating = threading.Lock()
        self.reports = Cache[bytes](
            MAX_CACHED_RESPONSES, 0.0, REPORT_REST, stale=0.0, share=MAX_REPORTS_PER_STREAM
        )
        self._clients = Counter[Hashable]()  # who wait for a report, by its key
        self._questions = Turns(N_PROCESSES, N_PROCESSES)
        # What takes seconds leaves a place to what does not, and others to other streams.
        self._long_questions, self._searches = Turns(N_PROCESSES - 1, 1), Turns(MAX_SEARCHES, 1)
        self.exports = Turns(MAX_EXPORTS, MAX_EXPORTS_PER_STREAM)
        self._changing = CapacityLimiter(MAX_CHANGES)
        self._jobs, self._writes = Turns(MAX_CHANGES, 1), Turns(MAX_WRITES, 1)
        # One process writes to a store, so no other process creates streams.
        self._known = {name: Known(store.stream(name)) for name in store.streams()}

    def start(self) -> None:
        """Begin to take labels, in the loop that serves."""
        self.hub.open()
        loop = asyncio.get_running_loop()
        self.write_queue.loop.on_change = self.hub.ring
        self.write_queue.loop.on_resumed = lambda key: loop.call_soon_threadsafe(self.forgot, key)
        self.write_queue.start()
        self._following = loop.create_task(self.throughput.run())

    async def stop(self) -> None:
        """Commit what was taken, and end."""
        self.hub.close()
        self.worker_tables.close()
        self.reports.close()
        for file in self._unclaimed.values():
            file.making.cancel()
        if self._following is not None:
            self._following.cancel()
        await run_in_threadpool(self.write_queue.stop)
        await run_in_threadpool(self.parquet.close)

    async def ask(
        self, stream: Stream, question: Callable[..., Answer], *about: Any, kind: str = "page"
    ) -> Answer:
        """Ask what only the learner knows, in turn with other streams and other kinds of question.

        What is neither a page nor an export is long, and leaves places to these.
        """
        key, work = (stream.ref.key, kind), partial(in_thread, question, *about)
        if kind in ("page", "export"):
            return await self._questions.run(key, work)
        return await self._long_questions.run(key, lambda: self._questions.run(key, work))

    async def report(
        self, request: Request, stream: Stream, question: Callable[..., Any], limit: int, usual: int
    ) -> Response:
        """Respond with what is made once per model version, however long it takes.

        Reports with the usual limit, which pages ask for, do not wait for all the others.
        """
        key = (stream.ref.key, stream.name, question.__name__, limit)
        version = await run_in_threadpool(stream.model_version)

        def asked() -> bytes:
            if not self._clients[key]:
                raise retry_later("The clients have gone.")
            return as_json(question(limit))

        kind = "report" if limit == usual else "report with a limit"
        make = partial(self.ask, stream, asked, kind=kind)
        self._clients[key] += 1
        try:
            stale = _max_stale(request)
            return json_response(*await self.reports.get(key, make, lambda: version, stale))
        finally:
            self._clients[key] -= 1
            self._clients += Counter()  # without those of whom none are left

    async def worker_table(self, stream: Stream) -> WorkerTable:
        """The worker table of a stream; events announce a new one as `workers`."""
        version = await run_in_threadpool(stream.model_version)

        async def make() -> WorkerTable:
            table = await self.ask(stream, lambda: WorkerTable(*stream.worker_table()))
            if self.worker_tables.peek(stream.ref.key) is not None:
                self.hub.note(stream.ref.key, "workers")
            return table

        return (await self.worker_tables.get(stream.ref.key, make, lambda: version)).value

    async def model_file(self, request: Request, stream: Stream) -> Cached[bytes]:
        """The model of a stream as a file, in one buffer for all who read it at a time.

        It is made in the background. One that is being made, or was made too late for who asked, is
        given to the next request, with its age: a busy stream has a new version by then.
        """
        key, event = stream.ref.key, await run_in_threadpool(stream.last_event)
        file, is_late = self._model_files.get((key, event)), False
        if file is None and key in self._unclaimed:
            file, is_late = self._unclaimed[key], True
        if file is None:
            if not request.scope["has_room"]():
                raise ApiError(503, TOO_MANY, headers=LATER)
            making = self.ask(stream, stream.model_file, kind="model")
            file = _ModelFile(asyncio.create_task(making, context=Context()))
            self._model_files[key, event] = self._unclaimed[key] = file
            file.making.add_done_callback(partial(self._settle_file, key, event, file))
        request.scope["model_file"] = file  # held until the answer is sent
        body = await asyncio.shield(file.making)
        self._claim(key, file)
        return Cached(body, ceil(time.monotonic() - file.begun) if is_late else 0)

    def _claim(self, key: int, file: _ModelFile) -> None:
        if self._unclaimed.get(key) is file:
            del self._unclaimed[key]

    def _settle_file(
        self, key: int, event: int, file: _ModelFile, made: asyncio.Task[bytes]
    ) -> None:
        """Keep a file that took longer than a request for who comes next."""
        if has_failed := made.cancelled() or made.exception() is not None:
            self._model_files.pop((key, event), None)
        in_time = has_failed or time.monotonic() - file.begun < QUESTION_SECONDS
        seconds = 0.0 if in_time else UNCLAIMED_SECONDS
        made.get_loop().call_later(seconds, self._claim, key, file)
        done = [old for old, one in self._unclaimed.items() if one.making.done()]
        for old in done[:-MAX_UNCLAIMED_FILES]:
            del self._unclaimed[old]

    async def search(self, stream: Stream, look: Callable[[], Answer]) -> Answer:
        """Look through many rows, in a thread, in turn with other streams."""
        return await self._searches.run(stream.ref.key, partial(in_thread, look))

    async def change(self, change: Callable[..., Answer], *about: Any) -> Answer:
        """Create, rename or delete a stream, in a thread; no question takes these places."""
        return await in_thread(change, *about, limiter=self._changing)

    async def job(self, job: Callable[..., Answer], stream: Stream, *about: Any) -> Answer:
        """Have the learner forget or withdraw; it may wait for a chunk, and holds up no change."""
        key = stream.ref.key
        return await self._jobs.run(key, partial(in_thread, job, key, *about))

    async def write(self, stream: Stream, change: Callable[..., Answer], *about: Any) -> Answer:
        """Write to a stream, in a thread, in turn with other streams; labels have their queue."""
        return await self._writes.run(stream.ref.key, partial(in_thread, change, *about))

    def _gauged(self) -> Iterator[tuple[str, str, float]]:
        """What is measured when it is asked for: its name, the stream, the value."""
        for name, known in list(self._known.items()):
            yield "chunks_behind", name, self.write_queue.loop.behind(known.stream.ref.key)
            yield "model_version", name, known.stream.model_version()

    def _paced(self) -> dict[int, tuple[int, int]]:
        """By key: the labels of each stream, and how far learning is behind."""
        return {
            key: (rows, self.write_queue.loop.behind(key))
            for key, rows in all_rows(self.store).items()
        }

    def discard(self, stream: int | None) -> None:
        """Drop cached responses about a stream (its key), or about all: they are wrong by now."""
        if stream is not None:
            self._unclaimed.pop(stream, None)
        for kept in (self.responses, self.reports):
            kept.discard(lambda key: key[0] == stream)

    def forgot(self, stream: int) -> None:
        """Drop what is cached of a stream (its key): a worker of it was forgotten."""
        self.worker_tables.discard(lambda key: key == stream)
        self.discard(stream)
        self.hub.ring(stream)

    def find(self, name: str) -> Known | None:
        """The stream that has this name now, if there is one."""
        return self._known.get(name)

    def add(self, stream: Stream) -> None:
        """Know one more stream."""
        self._known[stream.name] = Known(stream)

    def drop(self, stream: Stream) -> None:
        """Know a stream no longer under this name: it was deleted or renamed; in the loop."""
        if self.has(stream):  # else another has its name by now
            del self._known[stream.name]
        self.worker_tables.discard(lambda key: key == stream.ref.key)
        for about in (stream.ref.key, None):
            self.discard(about)
        self.hub.drop(stream.ref.key)

    def has(self, stream: Stream) -> bool:
        """Whether a stream is still known, under the same name."""
        found = self._known.get(stream.name)
        return found is not None and found.stream.ref.key == stream.ref.key


def service_of(request: Request) -> Service:
    """What all routes share."""
    service: Service = request.app.state.service
    return service


def known_stream(request: Request) -> Known:
    """The stream in the address of a request, as it was found when the key was checked."""
    found: Known | None = request.scope["known"]
    if found is None:
        name = request.path_params["stream"]
        raise ApiError(404, f"There is no stream {name[:256]!r}. See GET /v1/streams.")
    return found


async def cached_body(
    request: Request, stream: Stream | None, about: Hashable, make: Callable[[], Awaitable[bytes]]
) -> Cached[bytes]:
    """The body of a response that is made once for all clients who ask the same.

    `stream` is None for what depends on all streams. A page that is being opened has heard of no
    event yet; it may say `Cache-Control: max-stale`, and need not wait.
    """
    service, key = service_of(request), None if stream is None else stream.ref.key
    about = (key, stream and stream.name, about)
    changes = partial(service.hub.changes, key)
    return await service.responses.get(about, make, changes, _max_stale(request))


def _max_stale(request: Request) -> float:
    max_stale = 0.0
    for directive in request.headers.get("cache-control", "").lower().split(","):
        name, _, seconds = directive.strip().partition("=")
        if name == "max-stale":
            max_stale = float(seconds) if seconds.isdecimal() else inf
    return min(max_stale, MAX_STALE_SECONDS)
