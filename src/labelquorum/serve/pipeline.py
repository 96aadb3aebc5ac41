"""The pipeline: what arrives is made durable in groups, and what is due is learned from.

Two threads stand between many senders and one store. One takes whatever has arrived and writes it
in one transaction for each stream: a disk takes as long for one commit as for another. The other
cuts what is due and applies what is cut. What waits in memory is bounded; beyond that senders are
told to come back later.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from labelquorum.errors import LabelQuorumError, StateError, StoreError
from labelquorum.record.parcel import Parcel, Receipt
from labelquorum.record.store import Store
from labelquorum.record.stream import Stream

__all__ = ["BusyError", "Pipeline"]

log = logging.getLogger("labelquorum.pipeline")

GROUP_LABELS = 2_000
"""A transaction takes no more labels than so many, unless one parcel alone has more."""

QUEUE_LABELS = 50_000
"""No more labels than so many wait in memory."""

BACKLOG_CHUNKS = 200
"""No labels are taken while so many chunks of their stream wait to be learned from."""

COMMIT_SECONDS = 0.015
"""Commits are at least so long apart: what arrives meanwhile goes into one."""

LOOK_SECONDS = 0.03
"""How long a stream is left alone after it was looked at for chunks to cut."""

POLL_SECONDS = 0.5
"""How often streams are looked at for items that have waited long enough."""

RETRY_SECONDS = 0.5
"""How long to wait after the store refused."""


class BusyError(StoreError):
    """Too much is waiting. Nothing was taken; come back later."""


Outcome = Receipt | LabelQuorumError


Future = asyncio.Future[Outcome]


class _Waiting(NamedTuple):
    stream: Stream
    parcel: Parcel
    future: Future


class Pipeline:
    """Threads that write and learn; see `Pipeline.start` and `Pipeline.accept`."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.on_change: Callable[[str], None] = lambda stream: None
        """Called from a thread with the name of a stream in which something happened."""
        self._queue: deque[_Waiting] = deque()
        self._queued = 0  # labels
        self._arrived = threading.Condition()
        self._due = threading.Event()
        self._changed: set[str] = set()
        self._behind: dict[str, int] = {}  # chunks that wait to be learned from, by stream
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self.healthy = True
        """False while the store refuses."""

    def start(self) -> None:
        """Start the threads."""
        for work in (self._write, self._learn):
            thread = threading.Thread(target=work, name=f"labelquorum{work.__name__}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self, seconds: float = 30.0) -> None:
        """Write what has arrived, finish the chunk that is being learned from, and end."""
        with self._arrived:
            self._stop.set()
            self._arrived.notify_all()
        self._due.set()
        for thread in self._threads:
            thread.join(seconds)

    def __enter__(self) -> "Pipeline":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ── taking ────────────────────────────────────────────────────────────────────────────────

    async def accept(self, stream: Stream, parcel: Parcel) -> Receipt:
        """Take a parcel; once this returns it is durable."""
        outcome = await self.submit(stream, parcel)
        if isinstance(outcome, LabelQuorumError):
            raise outcome
        return outcome

    def submit(self, stream: Stream, parcel: Parcel) -> Future:
        """Take a parcel; the future will say what became of it."""
        future: Future = asyncio.get_running_loop().create_future()
        if self._behind.get(stream.name, 0) > BACKLOG_CHUNKS:
            raise BusyError(
                f"Stream {stream.name!r} has more than {BACKLOG_CHUNKS} chunks to learn from. "
                "Nothing was taken. Send it again later."
            )
        with self._arrived:
            if self._stop.is_set():
                raise BusyError("The service is stopping. Nothing was taken. Send it again later.")
            if self._queued + len(parcel.rows) > QUEUE_LABELS and self._queue:
                raise BusyError(
                    f"{self._queued} labels wait to be written. Nothing was taken. "
                    "Send it again later."
                )
            self._queue.append(_Waiting(stream, parcel, future))
            self._queued += len(parcel.rows)
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
                    outcomes = some[0].stream.accept_all([one.parcel for one in some])
                    self.healthy = True
                except LabelQuorumError as error:  # of the store: it is the same for all
                    self.healthy = False
                    log.warning("accept refused", extra={"stream": name, "error": str(error)})
                    outcomes = [error] * len(some)
                except Exception as error:
                    log.exception("accept failed", extra={"stream": name})
                    refusal = StoreError(f"The labels could not be written ({error}).")
                    outcomes = [refusal] * len(some)
                _tell([one.future for one in some], outcomes)
                self.wake(name)
            if self._queued < GROUP_LABELS:
                self._stop.wait(max(0.0, begun + COMMIT_SECONDS - time.monotonic()))

    def _group(self) -> list[_Waiting]:
        """What has arrived, in order; waits for something; empty at the end."""
        with self._arrived:
            while not self._queue and not self._stop.is_set():
                self._arrived.wait()
            group: list[_Waiting] = []
            labels = 0
            while self._queue and (
                not group or labels + len(self._queue[0].parcel.rows) <= GROUP_LABELS
            ):
                group.append(self._queue.popleft())
                labels += len(group[-1].parcel.rows)
            self._queued -= labels
            return group

    # ── learning ──────────────────────────────────────────────────────────────────────────────

    def wake(self, stream: str) -> None:
        """Look at a stream soon: something came."""
        self._changed.add(stream)
        self._due.set()

    def behind(self, stream: str) -> int:
        """How many chunks of a stream are due or cut, and not learned from yet."""
        return self._behind.get(stream, 0)

    def _learn(self) -> None:
        looked = 0.0
        while not self._stop.is_set():
            self._due.wait(POLL_SECONDS)
            self._due.clear()
            names, self._changed = self._changed, set()
            if time.monotonic() - looked > POLL_SECONDS:
                looked = time.monotonic()
                try:
                    names |= set(self.store.unsettled())
                    if not self.healthy:  # nobody may send any more, so it is for us to find out
                        with self.store.write():
                            self.healthy = True
                except StoreError as error:
                    self.healthy = False
                    log.warning("store refused", extra={"error": str(error)})
                    self._pause()
                except Exception:  # whatever it is, the thread goes on
                    log.exception("streams could not be looked at")
                    self._pause()
            for name in sorted(names):
                if self._stop.is_set():
                    return
                self._advance(name)
            self._stop.wait(LOOK_SECONDS)

    def _advance(self, name: str) -> None:
        """Cut what is due and apply what is cut, until nothing is."""
        try:
            stream = self.store.stream(name)
            while not self._stop.is_set():
                # One at a time: were all that is due cut first, a busy stream would never learn.
                stream.cut()
                todo, n_due = stream.standing()
                self._behind[name] = len(todo) + n_due
                if not todo:
                    return
                try:
                    stream.advance(todo[0])
                except StateError as error:  # it counts as an attempt
                    log.warning("chunk failed", extra={"stream": name, "error": str(error)})
                self.healthy = True
                self.on_change(name)
        except StoreError as error:
            self.healthy = False
            log.warning("store refused", extra={"stream": name, "error": str(error)})
            self._pause()
            self.wake(name)
        except Exception:
            log.exception("stream failed", extra={"stream": name})
            self._pause()
            self.wake(name)

    def _pause(self) -> None:
        self._stop.wait(RETRY_SECONDS)


def _tell(futures: Sequence[Future], outcomes: Sequence[Outcome]) -> None:
    """Say what became of parcels: each loop that waits is woken once, and not for every one."""
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
