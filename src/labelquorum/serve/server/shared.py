"""Answers that many look at: made once for all of them.

A hundred open pages ask the same at the same moment, whenever something happens. What is made for
one is given to all who ask until something happens again, and is made so seldom that the making
takes a thirtieth of the time. Nobody is given what was made before the last thing he may have heard
of.
"""

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

from starlette.responses import Response

__all__ = ["Shared", "as_json"]

OLDEST = 1.0
"""Seconds after which an answer is made anew, also where nothing is known to have happened."""

REST, LONGEST = 30.0, 5.0
"""So many times as long as the making took, it rests; but never longer than so many seconds."""

MOST = 256
"""So many answers are held."""


class _Answer:
    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.body: bytes | None = None
        self.begun = self.took = 0.0
        self.changes = -1


class Shared:
    """Holds answers.

    Parameters
    ----------
    changes
        How often something happened in a stream; of all streams together for None.
    """

    def __init__(
        self,
        changes: Callable[[str | None], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._changes, self._clock = changes, clock
        self._held: OrderedDict[Hashable, _Answer] = OrderedDict()

    async def answer(
        self, stream: str | None, about: Hashable, make: Callable[[], Awaitable[bytes]]
    ) -> bytes:
        """What is held of this question to a stream, or what is made now."""
        asked, key = self._clock(), (stream, about)
        held = self._held.setdefault(key, _Answer())
        self._held.move_to_end(key)
        while len(self._held) > MOST:
            self._held.popitem(last=False)
        async with held.turn:
            now = self._clock()
            if held.body is not None:
                same = held.changes == self._changes(stream) and now - held.begun < OLDEST
                if same or held.begun > asked:  # others had waited, too
                    return held.body
                rest = held.begun + min(REST * held.took, LONGEST) - now
                if rest > 0:
                    await asyncio.sleep(rest)
            begun, changes = self._clock(), self._changes(stream)
            body = await make()
            held.body, held.begun, held.changes = body, begun, changes
            held.took = self._clock() - begun
            return body


def as_json(value: Any) -> bytes:
    """A value as the body of an answer."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def json_answer(body: bytes) -> Response:
    """An answer that is JSON already."""
    return Response(body, media_type="application/json")
