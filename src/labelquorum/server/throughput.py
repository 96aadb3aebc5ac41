"""How fast labels come, and how far learning is behind: looked at once a second."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import NamedTuple

from starlette.concurrency import run_in_threadpool

from labelquorum.errors import LabelQuorumError
from labelquorum.server.logging import Log

__all__ = ["Look", "Pace"]

SECONDS = 60
"""So many are remembered."""

PERIOD = 1.0
"""Seconds from one look to the next."""

LATELY = 10
"""Over so many seconds the labels a second are told."""


class Look(NamedTuple):
    """What one look at a stream found."""

    at: float
    rows: int  # labels accepted since the stream was made
    behind: int  # chunks


class Pace:
    """Remembers the last minute of every stream.

    Parameters
    ----------
    look
        Gives rows and chunks behind, by stream; it may take a moment, and is called in a thread.
    log
        Where it is told that a look failed.
    """

    def __init__(self, look: Callable[[], Mapping[str, tuple[int, int]]], log: Log) -> None:
        self._look, self._log = look, log
        self._seen: dict[str, deque[Look]] = {}

    async def follow(self) -> None:
        """Look once a second until cancelled."""
        while True:
            try:
                self.note(time.monotonic(), await run_in_threadpool(self._look))
            except LabelQuorumError:
                pass  # a store that does not answer is told of elsewhere
            except Exception as error:  # the next look may find more
                self._log.write("error", of="pace", error=repr(error))
            await asyncio.sleep(PERIOD)

    def note(self, now: float, found: Mapping[str, tuple[int, int]]) -> None:
        """Remember what was found."""
        for name, (rows, behind) in found.items():
            self._seen.setdefault(name, deque(maxlen=SECONDS + 1)).append(Look(now, rows, behind))

    def labels_per_second(self, name: str) -> float:
        """How fast labels came in the last seconds."""
        seen = list(self._seen.get(name, ()))  # another thread may add to it meanwhile
        if not seen:
            return 0.0
        last = seen[-1]
        first = next(look for look in seen if last.at - look.at <= LATELY)
        return (last.rows - first.rows) / (last.at - first.at) if last.at > first.at else 0.0

    def spark(self, name: str) -> list[int]:
        """The labels of each of the last seconds, the newest last."""
        seen = list(self._seen.get(name, ()))
        found = [later.rows - look.rows for look, later in pairwise(seen)]
        return [0] * (SECONDS - len(found)) + found

    def grew(self, name: str) -> int:
        """By how many chunks learning fell behind in the last minute."""
        seen = list(self._seen.get(name, ()))
        return seen[-1].behind - seen[0].behind if seen else 0
