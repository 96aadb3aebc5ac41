"""Server-sent events: one reader of the store for all viewers of a stream."""

import asyncio
import json
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from labelquorum.server.config import Settings
from labelquorum.server.errors import RETRY_SECONDS, ApiError
from labelquorum.server.telemetry import Metrics
from labelquorum.store.stream import Stream

MAX_BUFFERED_EVENTS = 1000
"""Per stream, in memory; older events are read from the store."""

_AT_ONCE = 500


class _Channel:
    """The events of one stream: a buffer of recent ones, and a signal for new ones."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.bell = asyncio.Event()
        self._held: deque[tuple[int, bytes]] = deque(maxlen=MAX_BUFFERED_EVENTS)
        self._newest: int | None = None
        self._stale = True
        self._reading = asyncio.Lock()
        self.notes: deque[tuple[int, bytes]] = deque(maxlen=8)  # of what no store keeps
        self.n_notes = 0

    def note(self, kind: str) -> None:
        """Say something that is only for who follows just now."""
        self.n_notes += 1
        said = f"event: {kind}\ndata: {json.dumps({'kind': kind})}\n\n".encode()
        self.notes.append((self.n_notes, said))
        self.bell.set()
        self.bell = asyncio.Event()

    def ring(self) -> None:
        """Say that something happened."""
        self._stale = True
        self.bell.set()
        self.bell = asyncio.Event()

    async def newest(self) -> int:
        """The number of the last event."""
        await self._refresh()
        return self._newest or 0

    async def after(self, number: int) -> list[tuple[int, bytes]]:
        """The events after this one, or the first of them."""
        await self._refresh()
        if number >= (self._newest or 0):
            return []
        if self._held and number >= self._held[0][0] - 1:
            return [event for event in self._held if event[0] > number]
        found = await run_in_threadpool(self.stream.events, number, _AT_ONCE)
        return [(event["id"], _spelled(event)) for event in found]

    async def _refresh(self) -> None:
        """Read what is new, once for all who wait for it."""
        async with self._reading:
            if self._newest is None:
                self._newest = await run_in_threadpool(self.stream.last_event)
            while self._stale:
                self._stale = False
                try:
                    found = await run_in_threadpool(self.stream.events, self._newest, _AT_ONCE)
                except BaseException:
                    self._stale = True  # for the next who asks
                    raise
                self._held.extend((event["id"], _spelled(event)) for event in found)
                if found:
                    self._newest = found[-1]["id"]
                    self._stale = self._stale or len(found) == _AT_ONCE


class Hub:
    """Tells viewers what happens."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._most, self._beat = settings.viewers, settings.beat_seconds
        self._metrics = metrics
        self._channels: dict[int, _Channel] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._viewers = 0
        self._changes: Counter[int | None] = Counter()
        self._closed = asyncio.Event()

    def open(self) -> None:
        """Begin, in the loop that serves."""
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        """Disconnect all viewers."""
        self._closed.set()
        for channel in self._channels.values():
            channel.ring()

    def ring(self, key: int) -> None:
        """Say that something happened in a stream; from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ring, key)

    def drop(self, key: int) -> None:
        """Disconnect the viewers of a stream, if their `may_go_on` says so; from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._drop, key)

    def _drop(self, key: int) -> None:
        self._ring(key)
        self._channels.pop(key, None)

    def changes(self, key: int | None) -> int:
        """How often something happened in a stream, or in all together."""
        return self._changes[key]

    def _ring(self, key: int) -> None:
        self._changes.update((key, None))
        if key in self._channels:
            self._channels[key].ring()

    def note(self, key: int, kind: str) -> None:
        """Notify followers of a stream that something changed; in the event loop."""
        self._changes.update((key, None))
        if key in self._channels:
            self._channels[key].note(kind)

    def enter(self) -> None:
        """Count one more viewer, if there is room."""
        if self._viewers >= self._most:
            raise ApiError(
                503,
                f"There are {self._most:,} viewers already. Retry later, or poll.",
                headers={"Retry-After": str(10 * RETRY_SECONDS)},
            )
        self._viewers += 1
        self._metrics.viewers.set(self._viewers)

    def leave(self) -> None:
        """Count a viewer who left."""
        self._viewers -= 1
        self._metrics.viewers.set(self._viewers)

    async def follow(
        self, stream: Stream, after: int | None, may_go_on: Callable[[], bool]
    ) -> AsyncIterator[bytes]:
        """Everything that happens after an event, or from now on, as it is sent."""
        channel = self._channels.setdefault(stream.ref.key, _Channel(stream))
        newest = await channel.newest()
        # A later one is of another stream, which had this name before.
        number = newest if after is None else min(after, newest)
        noted = channel.n_notes
        # With a number, so that who loses the connection before the first event misses none.
        yield f"id: {number}\nretry: 2000\n: hello\n\n".encode()
        while not self._closed.is_set() and may_go_on():
            bell = channel.bell
            found = await channel.after(number)
            if found:
                number = found[-1][0]
                yield b"".join(spelled for _, spelled in found)
                continue
            if channel.n_notes > noted:
                said = b"".join(spelled for n, spelled in channel.notes if n > noted)
                noted = channel.n_notes
                yield said
                continue
            try:
                await asyncio.wait_for(bell.wait(), self._beat)
            except TimeoutError:
                yield b": still here\n\n"


def _spelled(event: dict[str, Any]) -> bytes:
    data = json.dumps({"at": event["at"], "kind": event["kind"], **event["body"]})
    return f"id: {event['id']}\nevent: {event['kind']}\ndata: {data}\n\n".encode()


class EventStreamResponse(StreamingResponse):
    """Events to one viewer, who is counted until the response ends, however it ends."""

    def __init__(
        self, hub: Hub, stream: Stream, after: int | None, may_go_on: Callable[[], bool]
    ) -> None:
        hub.enter()
        self._hub = hub
        super().__init__(hub.follow(stream, after, may_go_on), media_type="text/event-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them until either side closes."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._hub.leave()
