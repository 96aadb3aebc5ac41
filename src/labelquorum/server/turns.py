"""Turns of the streams whose requests wait, so that none keeps out another."""

import asyncio
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread

from labelquorum.server.errors import retry_later
from labelquorum.server.learner_process import EndedError
from labelquorum.store.learner import read_until

Answer = TypeVar("Answer")

MAX_WAITING_PER_STREAM = 64
"""Requests of a stream that wait for their turn."""


class Turns:
    """Places for what is asked about streams, given in turn to the streams that wait."""

    def __init__(self, places: int, places_per_stream: int) -> None:
        self._free, self._per_stream = places, places_per_stream
        self._running = Counter[Hashable]()
        self._waiting: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()

    async def run(self, stream: Hashable, work: Callable[[], Awaitable[Answer]]) -> Answer:
        """Do some work once there is a place, which is held to the end, whoever has gone."""
        queue = self._waiting.setdefault(stream, deque())
        if sum(not turn.done() for turn in queue) >= MAX_WAITING_PER_STREAM:
            raise retry_later("Too many requests of this stream wait. Retry in a second.")
        queue.append(turn := asyncio.get_running_loop().create_future())
        self._give()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._end(stream)
            raise
        running = asyncio.ensure_future(work())
        running.add_done_callback(partial(self._end, stream))
        return await asyncio.shield(running)

    def _end(self, stream: Hashable, ended: asyncio.Future[Any] | None = None) -> None:
        if ended is not None and not ended.cancelled():
            ended.exception()  # whoever asked may have gone
        self._free += 1
        self._running[stream] -= 1
        self._give()

    def _give(self) -> None:
        """Give free places to streams, of which each is then behind the others."""
        while self._free:
            allowed = (one for one in self._waiting if self._running[one] < self._per_stream)
            stream = next(allowed, None)
            if stream is None:
                return
            queue = deque(turn for turn in self._waiting.pop(stream) if not turn.cancelled())
            if queue:
                self._free -= 1
                self._running[stream] += 1
                queue.popleft().set_result(None)
            if queue:
                self._waiting[stream] = queue


async def in_thread(
    work: Callable[..., Answer], *about: Any, limiter: CapacityLimiter | None = None
) -> Answer:
    """Do some work in a thread before its deadline, and tell of a learner that died."""
    if time.monotonic() >= read_until.get():
        raise TimeoutError("the deadline passed while the work waited for its turn")
    try:
        return await to_thread.run_sync(work, *about, limiter=limiter or CapacityLimiter(1))
    except EndedError as error:  # there will be another process
        sentence = f"The model could not be asked ({error}). Retry in a second."
        raise retry_later(sentence) from error
