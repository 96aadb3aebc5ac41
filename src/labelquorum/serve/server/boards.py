"""The board: all workers of a stream at a glance, as the model knows them. One question for all.

It is renewed when the model has moved, and so seldom that it takes the learner a tenth of its time.
Meanwhile the last one is shown, unless it is old; who follows events hears `workers` when there is
a new one.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from starlette.concurrency import run_in_threadpool

from labelquorum.errors import LabelQuorumError
from labelquorum.record.glance import model_version
from labelquorum.record.stream import Stream
from labelquorum.serve.server.hub import Hub
from labelquorum.serve.server.refusals import Refusal

__all__ = ["SORTS", "Board", "Boards"]

SECONDS = 2.0
"""A board stands at least so long."""

REST = 10.0
"""And so many times as long as it took to make."""

OLD = 10.0
"""Seconds after which, or so many times as it took to make, nobody is shown it any more."""

MOST = 64
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
        while len(self._held) > MOST:
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
        return time.monotonic() - held.made > max(OLD, REST * held.took)

    def _rested(self, held: _Held) -> bool:
        return time.monotonic() - held.begun > max(SECONDS, REST * held.took)

    async def _renew_later(self, stream: Stream, held: _Held) -> None:
        assert held.board is not None
        try:
            if await run_in_threadpool(model_version, stream) != held.board.version:
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
    return Board(*stream.board())
