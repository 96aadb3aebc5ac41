"""Answers that many look at: made once for all of them.

A hundred open pages ask the same at the same moment, whenever something happens. What is made for
one is given to all who ask until something happens again, and is made so seldom that the making
takes a thirtieth of the time. Nobody is given what was made before the last thing he may have heard
of. Who has heard of nothing yet, as a page that is being opened, may say so by `Cache-Control:
max-stale`, and need not wait.
"""

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from math import ceil
from typing import Any, NamedTuple

from starlette.responses import Response

__all__ = ["Given", "Shared", "as_json", "json_answer"]

OLDEST = 1.0
"""Seconds after which an answer that has rested is made anew, whatever has happened."""

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


class Given(NamedTuple):
    """The body of an answer, and its age in whole seconds: 0 of one that is not stale."""

    body: bytes
    age: int = 0


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
        self._held: OrderedDict[tuple[str | None, Hashable], _Answer] = OrderedDict()

    async def answer(
        self,
        stream: str | None,
        about: Hashable,
        make: Callable[[], Awaitable[bytes]],
        stale: float = 0.0,
    ) -> Given:
        """What is held of this question to a stream, or what is made now.

        Parameters
        ----------
        stale
            What was made so many seconds ago will do, if that is not more than `LONGEST`.
        """
        asked, key = self._clock(), (stream, about)
        held = self._held.setdefault(key, _Answer())
        self._held.move_to_end(key)
        while len(self._held) > MOST:
            self._held.popitem(last=False)
        age = asked - held.begun
        if held.body is not None and age < min(stale, LONGEST):
            new = held.changes == self._changes(stream) and age < OLDEST
            return Given(held.body, 0 if new else ceil(age))
        async with held.turn:
            now = self._clock()
            if held.body is not None:
                age, rest = now - held.begun, min(REST * held.took, LONGEST)
                same = held.changes == self._changes(stream) and age < max(OLDEST, rest)
                if same or held.begun > asked:  # others had waited, too
                    return Given(held.body)
                if age < rest:
                    await asyncio.sleep(rest - age)
            begun, changes = self._clock(), self._changes(stream)
            body = await make()
            held.body, held.begun, held.changes = body, begun, changes
            held.took = self._clock() - begun
            return Given(body)

    def forget(self, stream: str | None) -> None:
        """Hold nothing of a stream, or of all together: what was made is not true any more."""
        for key in [key for key in self._held if key[0] == stream]:
            del self._held[key]


def as_json(value: Any) -> bytes:
    """A value as the body of an answer."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def json_answer(body: bytes, age: int = 0) -> Response:
    """An answer that is JSON already."""
    headers = {"Age": str(age)} if age else None
    return Response(body, media_type="application/json", headers=headers)
