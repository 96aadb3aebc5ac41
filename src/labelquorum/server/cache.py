"""Cached answers: each is made once for all who ask, and so is the worker table of a stream.

A hundred open pages ask the same at the same moment, whenever something happens. What is made for
one is given to all who ask until something happens again, and is made so seldom that the making
takes a thirtieth of the time. Nobody is given what was made before the last event they may have
heard of. A page that is being opened has heard of none; it may say so by `Cache-Control:
max-stale`, and need not wait.

The worker table, `Board`, is renewed when the model has moved, and so seldom that it takes the
learner a tenth of its time. Until then the last one is shown, unless it is old; who follows events
hears `workers` when there is a new one.
"""

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil
from typing import Any, NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from labelquorum.errors import LabelQuorumError
from labelquorum.server.errors import Refusal
from labelquorum.server.sse import Hub
from labelquorum.store.stream import Stream

__all__ = ["SORTS", "Board", "Boards", "Given", "Shared", "as_json", "json_answer"]

OLDEST = 1.0
"""Seconds after which an answer that has rested is made anew, whatever has happened."""

REST, LONGEST = 30.0, 5.0
"""So many times as long as the making took, it rests; but never longer than so many seconds."""

MAX_ANSWERS = 256
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
        while len(self._held) > MAX_ANSWERS:
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


# ── the workers of a stream ──────────────────────────────────────────────────────────────


BOARD_SECONDS = 2.0
"""A board stands at least so long."""

BOARD_REST = 10.0
"""And so many times as long as it took to make."""

BOARD_OLD = 10.0
"""Seconds after which, or so many times as it took to make, nobody is shown it any more."""

MAX_BOARDS = 64
"""So many boards are held, those that were looked at last."""

Row = Mapping[str, Any]


def _busy(row: Row) -> float:
    return float(-row["labels"])


def _agreement(row: Row) -> float:
    return float(row["agreed"] / row["labels"]) if row["labels"] else 2.0


def _disagreement(row: Row) -> float:
    return float(-row["agreed"] / row["labels"]) if row["labels"] else 2.0


def _serious(row: Row) -> tuple[int, float]:
    return -len(row["flags"]), -float(row["labels"])


def _calm(row: Row) -> tuple[int, float]:
    return len(row["flags"]), -float(row["labels"])


def _name(row: Row) -> tuple[str, str]:
    return str(row["worker"]).casefold(), str(row["worker"])


SORTS: Mapping[str, Callable[[Row], Any]] = {
    "place": lambda row: row["place"],
    "worker": _name,
    "-worker": _name,
    "labels": _busy,
    "-labels": lambda row: -_busy(row),
    "agreement": _agreement,
    "-agreement": _disagreement,
    "skill": lambda row: row["skill"],
    "-skill": lambda row: -row["skill"],
    "flags": _serious,
    "-flags": _calm,
}
"""In which orders workers can be listed."""

BACKWARDS = {"-worker"}
"""Those for whom the key runs from its end: what is text has no opposite."""


@dataclass(frozen=True)
class Board:
    """The workers of a stream by place: worker, place, labels, agreed, skill, flags."""

    version: int
    rows: list[dict[str, Any]]
    total: int  # of workers, those who are not on it included
    orders: dict[str, list[int]] = field(default_factory=dict)

    @cached_property
    def by_place(self) -> dict[int, dict[str, Any]]:
        """The rows by place."""
        return {row["place"]: row for row in self.rows}

    @cached_property
    def n_flagged(self) -> int:
        """How many workers have a flag."""
        return sum(bool(row["flags"]) for row in self.rows)

    def turned(self) -> list[dict[str, Any]]:
        """Workers who are drifting, the latest first."""
        found = [
            {"worker": row["worker"], "says": flag["says"], "since": flag["since"]}
            for row in self.rows
            for flag in row["flags"]
            if flag["flag"] == "drifting"
        ]
        return sorted(found, key=lambda one: -(one["since"] or 0))

    def listed(self, sort: str) -> list[dict[str, Any]]:
        """The rows in this order; those of one rank by place."""
        if sort not in self.orders:
            key = SORTS[sort]
            self.orders[sort] = sorted(
                range(len(self.rows)),
                key=lambda k: key(self.rows[k]),
                reverse=sort in BACKWARDS,
            )
        return [self.rows[k] for k in self.orders[sort]]


class _Held:
    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.board: Board | None = None
        self.begun = self.made = self.took = 0.0
        self.renewing: asyncio.Task[None] | None = None


class Boards:
    """Holds a board for each stream that somebody looks at.

    Parameters
    ----------
    ask
        Asks what only the learner knows, in a thread.
    hub
        Who tells viewers of a new board.
    """

    def __init__(self, ask: Callable[..., Any], hub: Hub) -> None:
        self._ask, self._hub = ask, hub
        self._held: OrderedDict[str, _Held] = OrderedDict()

    async def of(self, stream: Stream) -> Board:
        """The board of a stream; one that is a little old while another is made."""
        held = self._held.setdefault(stream.name, _Held())
        self._held.move_to_end(stream.name)
        while len(self._held) > MAX_BOARDS:
            self._drop(next(iter(self._held)))
        if held.board is None:
            async with held.turn:
                if held.board is None:
                    await self._renew(stream, held)
        assert held.board is not None
        if held.renewing is None and self._rested(held):
            held.renewing = asyncio.create_task(self._renew_later(stream, held))
        if held.renewing is not None and self._is_old(held):
            await asyncio.wait([held.renewing])  # which ends at once where nothing has moved
        return held.board

    def close(self) -> None:
        """Make no more boards."""
        for held in self._held.values():
            if held.renewing is not None:
                held.renewing.cancel()

    def forget(self, name: str) -> None:
        """Hold no board of a stream: somebody on it was forgotten."""
        self._held.pop(name, None)

    def _drop(self, name: str) -> None:
        held = self._held.pop(name)
        if held.renewing is not None:
            held.renewing.cancel()

    def _is_old(self, held: _Held) -> bool:
        return time.monotonic() - held.made > max(BOARD_OLD, BOARD_REST * held.took)

    def _rested(self, held: _Held) -> bool:
        return time.monotonic() - held.begun > max(BOARD_SECONDS, BOARD_REST * held.took)

    async def _renew_later(self, stream: Stream, held: _Held) -> None:
        assert held.board is not None
        try:
            if await run_in_threadpool(stream.model_version) != held.board.version:
                await self._renew(stream, held)
                self._hub.note(stream.name, "workers")
        except (LabelQuorumError, Refusal):
            pass  # the next who looks tries again
        finally:
            held.renewing = None

    async def _renew(self, stream: Stream, held: _Held) -> None:
        held.begun = time.monotonic()
        held.board = await self._ask(_board_of, stream)
        held.made, held.took = held.begun, time.monotonic() - held.begun


def _board_of(stream: Stream) -> Board:
    return Board(*stream.worker_table())
