"""The pipeline: what arrives is made durable in groups, and what is due is learned from.

A thread stands between many senders and one store. It takes whatever has arrived and writes it in
one transaction for each stream: a disk takes as long for one commit as for another. What waits in
memory is bounded; beyond that senders are told to come back later. Somebody else is told to learn:
another thread, or a process of its own (`learning_loop.py`).
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from labelquorum.errors import LabelQuorumError, StoreError
from labelquorum.server.learning_loop import Learning
from labelquorum.store.batch import Batch, Receipt
from labelquorum.store.store import Store
from labelquorum.store.stream import Stream

__all__ = ["BusyError", "Learns", "Pipeline"]

log = logging.getLogger("labelquorum.pipeline")

GROUP_LABELS = 2_000
"""A transaction takes no more labels than so many, unless one batch alone has more."""

QUEUE_LABELS = 50_000
"""No more labels than so many wait in memory."""

BACKLOG_CHUNKS = 200
"""No labels are taken while so many chunks of their stream wait to be learned from."""

COMMIT_SECONDS = 0.005
"""Commits are at least so long apart: what arrives meanwhile goes into one."""

POLL_SECONDS = 0.5
"""How often a store that refused is asked again, if nobody sends."""


class BusyError(StoreError):
    """Too much is waiting. Nothing was taken; come back later."""


Outcome = Receipt | LabelQuorumError


Future = asyncio.Future[Outcome]


class _Waiting(NamedTuple):
    stream: Stream
    batch: Batch
    future: Future


class Learns(Protocol):
    """Who learns from what was written."""

    on_change: Callable[[str], None]
    healthy: bool

    def start(self) -> None:
        """Begin."""
        ...

    def stop(self, seconds: float = 30.0) -> None:
        """Finish the chunk that is being learned from, and end."""
        ...

    def wake(self, stream: str) -> None:
        """Look at a stream soon: something came."""
        ...

    def behind(self, stream: str) -> int:
        """How many chunks of a stream are due or cut, and not learned from yet."""
        ...

    def forget(self, stream: str, worker: Hashable) -> int:
        """Remove a worker; see `Stream.forget`."""
        ...


class Pipeline:
    """A thread that writes, and who learns; see `Pipeline.start` and `Pipeline.accept`."""

    def __init__(self, store: Store, learning: Learns | None = None) -> None:
        self.store = store
        self.learning = learning or Learning(store)
        self._queue: deque[_Waiting] = deque()
        self._queued = 0  # labels
        self._arrived = threading.Condition()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write, name="labelquorum_write", daemon=True)
        self.writes = True
        """False while the store refuses what is written."""

    @property
    def healthy(self) -> bool:
        """Whether the store takes what is written and what is learned."""
        return self.writes and self.learning.healthy

    def start(self) -> None:
        """Start the thread, and whoever learns."""
        self._thread.start()
        self.learning.start()

    def stop(self, seconds: float = 30.0) -> None:
        """Write what has arrived, finish the chunk that is being learned from, and end."""
        with self._arrived:
            self._stop.set()
            self._arrived.notify_all()
        if self._thread.ident is not None:
            self._thread.join(seconds)
        self.learning.stop(seconds)

    def __enter__(self) -> "Pipeline":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ── taking ────────────────────────────────────────────────────────────────────────────────

    async def accept(self, stream: Stream, batch: Batch) -> Receipt:
        """Take a batch; once this returns it is durable."""
        outcome = await self.submit(stream, batch)
        if isinstance(outcome, LabelQuorumError):
            raise outcome
        return outcome

    def submit(self, stream: Stream, batch: Batch) -> Future:
        """Take a batch; the future will say what became of it."""
        future: Future = asyncio.get_running_loop().create_future()
        if self.learning.behind(stream.name) > BACKLOG_CHUNKS:
            raise BusyError(
                f"Stream {stream.name!r} has more than {BACKLOG_CHUNKS} chunks to learn from. "
                "Nothing was taken. Send it again later."
            )
        with self._arrived:
            if self._stop.is_set():
                raise BusyError("The service is stopping. Nothing was taken. Send it again later.")
            if self._queued + len(batch.rows) > QUEUE_LABELS and self._queue:
                raise BusyError(
                    f"{self._queued} labels wait to be written. Nothing was taken. "
                    "Send it again later."
                )
            self._queue.append(_Waiting(stream, batch, future))
            self._queued += len(batch.rows)
            self._arrived.notify()
        return future

    def _write(self) -> None:
        while group := self._group():
            begun = time.monotonic()
            by_stream: dict[str, list[_Waiting]] = {}
            for one in group:
                by_stream.setdefault(one.stream.name, []).append(one)
            for name, some in by_stream.items():
                try:
                    outcomes = some[0].stream.accept_all([one.batch for one in some])
                    self.writes = True
                except LabelQuorumError as error:  # of the store: it is the same for all
                    self.writes = False
                    log.warning("accept refused", extra={"stream": name, "error": str(error)})
                    outcomes = [error] * len(some)
                except Exception as error:
                    log.exception("accept failed", extra={"stream": name})
                    refusal = StoreError(f"The labels could not be written ({error}).")
                    outcomes = [refusal] * len(some)
                _tell([one.future for one in some], outcomes)
                self.learning.wake(name)
            if self._queued < GROUP_LABELS:
                self._stop.wait(max(0.0, begun + COMMIT_SECONDS - time.monotonic()))

    def _group(self) -> list[_Waiting]:
        """What has arrived, in order; waits for something; empty at the end."""
        with self._arrived:
            while not self._queue and not self._stop.is_set():
                if not self._arrived.wait(None if self.writes else POLL_SECONDS):
                    self._ask_again()
            group: list[_Waiting] = []
            labels = 0
            while self._queue and (
                not group or labels + len(self._queue[0].batch.rows) <= GROUP_LABELS
            ):
                group.append(self._queue.popleft())
                labels += len(group[-1].batch.rows)
            self._queued -= labels
            return group

    def _ask_again(self) -> None:
        """Nobody may send any more, so it is for us to find out whether the store takes writes."""
        try:
            with self.store.write():
                self.writes = True
        except StoreError as error:
            log.warning("store refused", extra={"error": str(error)})


def _tell(futures: Sequence[Future], outcomes: Sequence[Outcome]) -> None:
    """Say what became of batches: each loop that waits is woken once, and not for every one."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Future, Outcome]]] = {}
    for future, outcome in zip(futures, outcomes, strict=True):
        by_loop.setdefault(future.get_loop(), []).append((future, outcome))
    for loop, pairs in by_loop.items():
        with suppress(RuntimeError):  # it is closed, and nobody waits any more
            loop.call_soon_threadsafe(_settle, pairs)


def _settle(pairs: Sequence[tuple[Future, Outcome]]) -> None:
    for future, outcome in pairs:
        if not future.done():  # whoever waited may have gone
            future.set_result(outcome)
