"""The write queue: labels of many clients are made durable by group commit.

One thread stands between many clients and one store. It writes whatever has arrived in one
transaction per stream, because a commit costs one fsync whether it holds one label or a thousand.
The queue in memory is bounded; beyond that, clients are asked to retry later. The learning loop is
woken after each commit.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from labelquorum.errors import LabelQuorumError, StateError, StoreError
from labelquorum.server.learning_loop import LearningLoop, SubprocessLoop
from labelquorum.store.batch import Batch, Receipt
from labelquorum.store.store import Store
from labelquorum.store.stream import Stream

log = logging.getLogger("labelquorum.write_queue")

GROUP_LABELS = 2_000
"""Maximum number of labels per transaction, unless one batch alone has more: other writers wait."""

MAX_QUEUED_LABELS = 50_000
"""Maximum number of labels that wait in memory."""

MAX_CHUNKS_BEHIND = 200
"""A stream with more chunks to learn from accepts no labels."""

COMMIT_INTERVAL_SECONDS = 0.005
"""Commits are at least this far apart: what arrives in between goes into one."""

STUCK_SECONDS = 3.0
"""A transaction that takes longer is stuck: no more labels are queued behind it."""

POLL_SECONDS = 0.5
"""How often a store that refused a write is tried again while no labels come."""


class BusyError(StoreError):
    """Too much is waiting. Nothing was accepted; retry later."""


Outcome = Receipt | LabelQuorumError
Future = asyncio.Future[Outcome]


class _Waiting(NamedTuple):
    stream: Stream
    batch: Batch
    future: Future


class WriteQueue:
    """A thread that writes, and the loop that learns; see `start` and `accept`."""

    def __init__(self, store: Store, loop: LearningLoop | SubprocessLoop | None = None) -> None:
        self.store = store
        self.loop = loop or LearningLoop(store)
        self._queue: deque[_Waiting] = deque()
        self._queued = 0  # labels
        self._arrived = threading.Condition()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write, name="labelquorum_write", daemon=True)
        self.writes = True
        """False while the store refuses writes."""
        self._writing_since: float | None = None

    @property
    def problem(self) -> str | None:
        """Why labels are not taken or not learned from; None while all is well."""
        if not self.healthy:
            return "Labels are not taken at the moment: the store refuses writes."
        return self._stuck() or self.loop.problem

    def _stuck(self) -> str | None:
        since = self._writing_since
        seconds = 0.0 if since is None else time.monotonic() - since
        if seconds < STUCK_SECONDS:
            return None
        return f"Labels have waited for {seconds:.0f} seconds to be written."

    @property
    def healthy(self) -> bool:
        """Whether the store takes what is written and what is learned."""
        return self.writes and self.loop.healthy

    def start(self) -> None:
        """Start the thread and the learning loop."""
        self._thread.start()
        self.loop.start()

    def stop(self, seconds: float = 30.0) -> None:
        """Write what has arrived, finish the chunk that is being learned from, and end."""
        with self._arrived:
            self._stop.set()
            self._arrived.notify_all()
        if self._thread.ident is not None:
            self._thread.join(seconds)
        self.loop.stop(seconds)

    def __enter__(self) -> "WriteQueue":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def accept(self, stream: Stream, batch: Batch) -> Receipt:
        """Accept a batch; once this returns, it is durable."""
        outcome = await self.submit(stream, batch)
        if isinstance(outcome, LabelQuorumError):
            raise outcome
        return outcome

    def submit(self, stream: Stream, batch: Batch) -> Future:
        """Queue a batch; the future gives its receipt, or the error."""
        future: Future = asyncio.get_running_loop().create_future()
        if self.loop.behind(stream.ref.key) > MAX_CHUNKS_BEHIND:
            raise BusyError(
                f"Stream {stream.name!r} has more than {MAX_CHUNKS_BEHIND} chunks to learn from. "
                "Nothing was accepted. Retry later."
            )
        stuck = self._stuck()
        if stuck is not None:
            raise BusyError(f"{stuck} Nothing was accepted. Retry later.")
        with self._arrived:
            if self._stop.is_set():
                raise BusyError("The service is stopping. Nothing was accepted. Retry later.")
            if self._queued + len(batch.rows) > MAX_QUEUED_LABELS and self._queue:
                raise BusyError(
                    f"{self._queued} labels wait to be written. Nothing was accepted. Retry later."
                )
            self._queue.append(_Waiting(stream, batch, future))
            self._queued += len(batch.rows)
            self._arrived.notify()
        return future

    def _write(self) -> None:
        while group := self._group():
            begun = self._writing_since = time.monotonic()
            by_stream: dict[int, list[_Waiting]] = {}  # by key: a name may be another's by now
            for one in group:
                by_stream.setdefault(one.stream.ref.key, []).append(one)
            for key, some in by_stream.items():
                stream = some[0].stream
                try:
                    outcomes = stream.accept_all([one.batch for one in some])
                    self.writes = True
                except LabelQuorumError as error:  # of the store: the same for all
                    self.writes = isinstance(error, StateError)  # the stream was deleted
                    log.warning(
                        "accept refused", extra={"stream": stream.name, "error": str(error)}
                    )
                    outcomes = [error] * len(some)
                except Exception as error:
                    log.exception("accept failed", extra={"stream": stream.name})
                    failure = StoreError(f"The labels could not be written ({error}).")
                    outcomes = [failure] * len(some)
                _resolve([one.future for one in some], outcomes)
                self.loop.wake(key)
            self._writing_since = None
            if self._queued < GROUP_LABELS:
                self._stop.wait(max(0.0, begun + COMMIT_INTERVAL_SECONDS - time.monotonic()))

    def _group(self) -> list[_Waiting]:
        """What has arrived, in order; waits for the first; empty at the end."""
        with self._arrived:
            while not self._queue and not self._stop.is_set():
                if not self._arrived.wait(None if self.writes else POLL_SECONDS):
                    self._probe()
            group: list[_Waiting] = []
            labels = 0
            while self._queue and (
                not group or labels + len(self._queue[0].batch.rows) <= GROUP_LABELS
            ):
                group.append(self._queue.popleft())
                labels += len(group[-1].batch.rows)
            self._queued -= labels
            return group

    def _probe(self) -> None:
        """Find out whether the store takes writes again, even if no client sends."""
        try:
            with self.store.write():
                self.writes = True
        except StoreError as error:
            log.warning("store refused", extra={"error": str(error)})


def _resolve(futures: Sequence[Future], outcomes: Sequence[Outcome]) -> None:
    """Resolve futures; each event loop is woken once, and not per future."""
    by_event_loop: dict[asyncio.AbstractEventLoop, list[tuple[Future, Outcome]]] = {}
    for future, outcome in zip(futures, outcomes, strict=True):
        by_event_loop.setdefault(future.get_loop(), []).append((future, outcome))
    for event_loop, pairs in by_event_loop.items():
        with suppress(RuntimeError):  # it is closed, and nothing waits
            event_loop.call_soon_threadsafe(_settle, pairs)


def _settle(pairs: Sequence[tuple[Future, Outcome]]) -> None:
    for future, outcome in pairs:
        if not future.done():  # the client may have gone
            future.set_result(outcome)
