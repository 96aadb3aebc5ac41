"""What all routes share: the store, who feeds it, and what is remembered of its streams."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Hashable, Iterator
from dataclasses import replace
from math import inf
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool

from labelquorum.errors import LabelQuorumError
from labelquorum.ingest.labels import LabelSpace
from labelquorum.server.auth import Keyring
from labelquorum.server.cache import Boards, Given, Shared
from labelquorum.server.config import Settings
from labelquorum.server.errors import RETRY_SECONDS, Refusal, told
from labelquorum.server.logging import Log
from labelquorum.server.prometheus import Metrics
from labelquorum.server.request_body import Bodies, parse_json
from labelquorum.server.sse import Hub
from labelquorum.server.throughput import Pace
from labelquorum.store.api_keys import Keys
from labelquorum.store.queries import all_rows
from labelquorum.store.stats import StreamStats
from labelquorum.store.store import Store
from labelquorum.store.stream import Stream

__all__ = ["Known", "Service", "known_stream", "read_shape", "service_of", "shared_body"]

Answer = TypeVar("Answer")
ASKING, MOST_ASKING = 4, 64
"""So many questions for the learner are under way, and so many wait."""

SEARCHING, MOST_SEARCHING = 2, 32
"""So many searches through a stream's items are under way, and so many wait."""


class Known:
    """A stream, and how its rows are read."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.tally = StreamStats(stream)
        space = stream._space
        self.spaces: dict[str, LabelSpace] = {
            on_bad: replace(space, on_bad=on_bad) for on_bad in ("error", "skip")
        }


class Service:
    """What all routes share."""

    def __init__(self, store: Store, pipeline: Any, settings: Settings, log: Log) -> None:
        self.store, self.pipeline, self.settings, self.log = store, pipeline, settings, log
        self.keys = Keys(store)
        self.keyring = Keyring(self.keys)
        self.metrics = Metrics()
        self.bodies = Bodies(settings)
        self.hub = Hub(settings, self.metrics)
        self.metrics.watch(self._gauged)
        self.shared = Shared(self.hub.changes)
        self.boards = Boards(self.ask, self.hub)
        self.pace = Pace(self._paced, log)
        self._following: asyncio.Task[None] | None = None
        self.creating = threading.Lock()
        self._asking = CapacityLimiter(ASKING)
        self._searching = CapacityLimiter(SEARCHING)
        # One process writes to a store, so nobody else makes streams.
        self._known = {name: Known(store.stream(name)) for name in store.streams()}

    def start(self) -> None:
        """Begin to take labels, in the loop that serves."""
        self.hub.open()
        self.pipeline.learning.on_change = self.hub.ring
        self.pipeline.start()
        self._following = asyncio.get_running_loop().create_task(self.pace.follow())

    async def stop(self) -> None:
        """Commit what was taken, and end."""
        self.hub.close()
        self.boards.close()
        if self._following is not None:
            self._following.cancel()
        await run_in_threadpool(self.pipeline.stop)

    async def ask(self, question: Callable[..., Answer], *about: Any) -> Answer:
        """Ask what only the learner knows, in a thread; few at a time, so that reads go on."""
        if self._asking.statistics().tasks_waiting >= MOST_ASKING:
            raise _later("Too many ask the model at the moment. Come back in a second.")
        try:
            return await to_thread.run_sync(question, *about, limiter=self._asking)
        except LabelQuorumError:
            raise
        except RuntimeError as error:  # the learner's process has died; there will be another
            raise _later(
                f"The model could not be asked ({error}). Come back in a second."
            ) from error

    async def search(self, look: Callable[..., Answer], *about: Any) -> Answer:
        """Look through many rows, in a thread; few at a time, so that other reads go on."""
        if self._searching.statistics().tasks_waiting >= MOST_SEARCHING:
            raise _later("Too many search at the moment. Come back in a second.")
        return await to_thread.run_sync(look, *about, limiter=self._searching)

    def _gauged(self) -> Iterator[tuple[str, str, float]]:
        """What is measured when it is asked for: its name, the stream, the value."""
        for name, known in list(self._known.items()):
            yield "chunks_behind", name, self.pipeline.learning.behind(name)
            yield "model_version", name, known.stream.model_version()

    def _paced(self) -> dict[str, tuple[int, int]]:
        """The labels of each stream, and how far learning is behind."""
        return {
            name: (rows, self.pipeline.learning.behind(name))
            for name, rows in all_rows(self.store).items()
        }

    def known(self, name: str) -> Known:
        """A stream by its name."""
        found = self._known.get(name)
        if found is None:
            raise Refusal(404, f"There is no stream {name[:256]!r}. See GET /v1/streams.")
        return found

    def add(self, stream: Stream) -> None:
        """Know one more stream."""
        self._known[stream.name] = Known(stream)


def service_of(request: Request) -> Service:
    """What all routes share."""
    service: Service = request.app.state.service
    return service


def known_stream(request: Request) -> Known:
    """The stream in the address of a request."""
    return service_of(request).known(request.path_params["stream"])


async def shared_body(
    request: Request, stream: str | None, about: Hashable, make: Callable[[], Awaitable[bytes]]
) -> Given:
    """The body of an answer that is made once for all who ask the same; see `Shared`."""
    stale = 0.0
    for directive in request.headers.get("cache-control", "").lower().split(","):
        name, _, seconds = directive.strip().partition("=")
        if name == "max-stale":
            stale = float(seconds) if seconds.isdecimal() else inf
    return await service_of(request).shared.answer(stream, about, make, stale)


def _later(sentence: str) -> Refusal:
    return Refusal(503, sentence, headers={"Retry-After": str(RETRY_SECONDS)})


Shape = TypeVar("Shape", bound=BaseModel)


async def read_shape(request: Request, shape: type[Shape]) -> Shape:
    """The body of a request, as it should look."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip()
    if kind.lower() != "application/json":
        raise Refusal(415, f"The body must be application/json. Got {kind[:40]!r}.")
    async with service_of(request).bodies.of(request) as body:
        said = await parse_json(body)
    try:
        return shape.model_validate(said, strict=True)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False)
        raise Refusal(422, *(told(one, "body") for one in faults[:20])) from None
