"""The cache of the service, and the worker table of a stream, which is kept in it.

A hundred open pages ask the same question at the same moment, whenever something happens. Its
answer is made once and given to all, until something happens again.
"""

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from contextvars import Context
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import ceil, inf
from typing import Any, Generic, NamedTuple, TypeVar

from starlette.responses import Response

from labelquorum.server.errors import retry_later

Value = TypeVar("Value")

PATIENCE_SECONDS = 4.5
"""How long a caller waits for what is made in the background: half a second is left to respond."""

UNFINISHED = (
    "The answer takes longer than 5 seconds and is still being computed. "
    "Ask again after the seconds in Retry-After."
)


class Cached(NamedTuple, Generic[Value]):
    """A value, and its age in whole seconds: 0 if it is not stale."""

    value: Value
    age: int = 0


class _Entry(Generic[Value]):
    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.value: Value | None = None  # None before it is made for the first time
        self.version: Any = None
        self.begun, self.took = -inf, 0.0
        self.tried = -inf  # when the last renewal ended
        self.renewing: asyncio.Task[Value] | None = None

    @property
    def is_idle(self) -> bool:
        return self.renewing is None and not self.turn.locked()


class Cache(Generic[Value]):
    """Values that are made once for all callers, each with a time to live.

    A value is made again once its version has changed or its time to live is over, and never before
    it has rested: so making it takes a bounded share of the time. No caller is given a value whose
    making began before a change that they may have heard of.

    Parameters
    ----------
    bound
        Maximum number of values; beyond, the least recently used that is not being made is
        dropped (LRU).
    ttl
        Time to live in seconds.
    rest
        A value rests for this many times as long as it took to make.
    max_rest
        Seconds after which it has rested in any case.
    share
        Maximum number of values whose keys begin with the same part.
    stale
        Values are made in the background, once per version, a number that grows. A caller waits
        for some seconds, and is then given the last value. For this many seconds it is given
        without waiting (stale-while-revalidate).
    """

    def __init__(
        self,
        bound: int,
        ttl: float,
        rest: float,
        max_rest: float = inf,
        stale: float | None = None,
        share: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.bound, self.ttl, self.stale, self.share = bound, ttl, stale, share
        self.rest, self.max_rest = rest, max_rest
        self._clock = clock
        self._entries: OrderedDict[Any, _Entry[Value]] = OrderedDict()

    async def get(
        self,
        key: Hashable,
        make: Callable[[], Awaitable[Value]],
        version: Callable[[], Any] = lambda: 0,
        max_stale: float = 0.0,
    ) -> Cached[Value]:
        """The value of this key, made now if need be.

        Parameters
        ----------
        make
            Makes the value.
        version
            Changes when the value is outdated.
        max_stale
            A value of up to this many seconds will do.
        """
        asked, entry = self._clock(), self._entry(key)
        age = asked - entry.begun
        if self.stale is not None:
            return await self._get_stale(entry, make, version, max(self.stale, max_stale))
        if entry.value is not None and age < max_stale:
            is_fresh = entry.version == version() and age < self.ttl
            return Cached(entry.value, 0 if is_fresh else ceil(age))
        async with entry.turn:
            if entry.value is not None:
                age, rest = self._clock() - entry.begun, self._rest(entry)
                is_fresh = entry.version == version() and age < max(self.ttl, rest)
                if is_fresh or entry.begun > asked:  # made for another caller, who waited too
                    return Cached(entry.value)
                if age < rest:
                    await asyncio.sleep(rest - age)
            return Cached(await self._renew(entry, make, version))

    def peek(self, key: Hashable) -> Value | None:
        """The value of this key, however old; None if there is none."""
        entry = self._entries.get(key)
        return None if entry is None else entry.value

    def discard(self, where: Callable[[Any], bool]) -> None:
        """Drop the values of these keys, which are wrong by now even for a caller of stale ones."""
        for key in [key for key in self._entries if where(key)]:
            del self._entries[key]

    def close(self) -> None:
        """Make nothing more in the background."""
        for entry in self._entries.values():
            if entry.renewing is not None:
                entry.renewing.cancel()

    def _entry(self, key: Any) -> _Entry[Value]:
        entry = self._entries.setdefault(key, _Entry())
        self._entries.move_to_end(key)
        if self.share is not None:
            self._evict([old for old in self._entries if old[0] == key[0]], self.share)
        self._evict(self._entries, self.bound)
        return entry

    def _evict(self, keys: Collection[Any], most: int) -> None:
        """Drop the first of these that are not being made, and never the last, which is asked."""
        excess = len(keys) - most
        if excess > 0:
            idle = [old for old in list(keys)[:-1] if self._entries[old].is_idle]
            for old in idle[:excess]:
                del self._entries[old]

    def _rest(self, entry: _Entry[Value]) -> float:
        return min(self.rest * entry.took, self.max_rest)

    async def _get_stale(
        self,
        entry: _Entry[Value],
        make: Callable[[], Awaitable[Value]],
        version: Callable[[], Any],
        stale: float,
    ) -> Cached[Value]:
        until = self._clock() + PATIENCE_SECONDS
        while entry.value is None or entry.version < version():
            now, rest = self._clock(), self._rest(entry)
            pause = entry.tried + max(self.ttl, rest) - now
            if entry.renewing is None and pause <= 0:
                making = self._renew(entry, make, version)  # without the deadline of a request
                entry.renewing = asyncio.create_task(making, context=Context())
                entry.renewing.add_done_callback(partial(self._settle, entry))
            is_given = entry.value is not None and now - entry.begun < max(stale, rest)
            if now >= until or (stale and is_given):
                break
            if entry.renewing is None:
                await asyncio.sleep(min(pause, until - now))
                continue
            done, _ = await asyncio.wait([entry.renewing], timeout=until - now)
            ended = done.pop() if done else None
            if ended is not None and ended.cancelled():  # the service ends
                raise retry_later(UNFINISHED)
            error = None if ended is None else ended.exception()
            if error is not None:
                if entry.value is None:
                    raise error
                break
        if entry.value is None:
            raise retry_later(UNFINISHED)
        is_fresh = entry.version >= version()
        return Cached(entry.value, 0 if is_fresh else ceil(self._clock() - entry.begun))

    def _settle(self, entry: _Entry[Value], ended: asyncio.Task[Value]) -> None:
        entry.tried, entry.renewing = self._clock(), None
        if not ended.cancelled():
            ended.exception()  # for whom it was made may have gone

    async def _renew(
        self,
        entry: _Entry[Value],
        make: Callable[[], Awaitable[Value]],
        version: Callable[[], Any],
    ) -> Value:
        begun, seen = self._clock(), version()
        value = await make()
        entry.value, entry.begun, entry.version = value, begun, seen
        entry.took = self._clock() - begun
        return value


def as_json(value: Any) -> bytes:
    """A value as the body of a response."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def json_response(body: bytes, age: int = 0) -> Response:
    """A response whose body is JSON already."""
    headers = {"Age": str(age)} if age else None
    return Response(body, media_type="application/json", headers=headers)


# ── the worker table ─────────────────────────────────────────────────────────────────────


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
"""The orders in which workers can be listed."""

BACKWARDS = {"-worker"}
"""Sorted in reverse, for text cannot be negated."""


@dataclass(frozen=True)
class WorkerTable:
    """The workers of a stream by place: worker, place, labels, agreed, skill, flags."""

    version: int
    rows: list[dict[str, Any]]
    total: int  # number of workers, those without a row included
    orders: dict[str, list[int]] = field(default_factory=dict)

    @cached_property
    def by_place(self) -> dict[int, dict[str, Any]]:
        """The rows by place."""
        return {row["place"]: row for row in self.rows}

    @cached_property
    def n_flagged(self) -> int:
        """How many workers have a flag."""
        return sum(bool(row["flags"]) for row in self.rows)

    def drifting(self) -> list[dict[str, Any]]:
        """Workers who are drifting, the most recent first."""
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
