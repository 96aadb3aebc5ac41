"""The learning loop: chunks that are due are cut and learned from, one after the other.

`LearningLoop` does that in a thread, `SubprocessLoop` in a subprocess.
"""

import logging
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from labelquorum.errors import LabelQuorumError, StateError, StoreError
from labelquorum.server.learner_process import LearnerProcess
from labelquorum.store.store import Store

log = logging.getLogger("labelquorum.learning")

LOOK_INTERVAL_SECONDS = 0.1
"""Between two looks at a stream for chunks to cut: labels that came until then go into one. A look
costs what learning from ten tasks costs, and a busy stream has labels for every one."""

POLL_SECONDS = 0.5
"""How often streams are searched for items that have waited long enough."""

CHECKPOINT_TRIES = 30
"""Seconds after the last change in which a WAL checkpoint is tried: a reader may keep the WAL from
being truncated, and then no other change may come."""

LAG_SECONDS = 1.0
"""How often the service counts the chunks that a subprocess is behind."""

RETRY_SECONDS = 0.5
"""The pause after the store refused a write."""


class _Streams:
    """Keys of streams in which something happened, added by any thread, taken by one."""

    def __init__(self) -> None:
        self._keys: set[int] = set()
        self._lock = threading.Lock()

    def add(self, key: int) -> None:
        with self._lock:
            self._keys.add(key)

    def take(self) -> set[int]:
        with self._lock:
            keys, self._keys = self._keys, set()
        return keys


class LearningLoop:
    """A thread that learns; see `LearningLoop.start` and `LearningLoop.wake`."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.on_change: Callable[[int], None] = lambda stream: None
        """Called from the thread with the key of a stream in which something happened."""
        self.on_resumed: Callable[[int], object] = lambda stream: None
        """Called with the key of a stream in which a job was done that no call waits for."""
        self.on_look: Callable[[int, int, int | None], None] = lambda stream, behind, chunk: None
        """Called with the key of a stream, how many chunks wait, and the one to learn from next."""
        self.on_health: Callable[[bool], None] = lambda healthy: None
        """Called when the store begins to refuse writes, and when it takes them again."""
        self.healthy = True
        """False while the store refuses writes."""
        self.problem: str | None = None
        """Why nothing is learned, besides the store's own reasons: a thread has none."""
        self._due = threading.Event()
        self._changed = _Streams()
        self._behind: dict[int, int] = {}  # chunks that wait to be learned from, by stream
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._learn, name="labelquorum_learn", daemon=True)
        self._jobs = threading.Thread(target=self._resume, name="labelquorum_jobs", daemon=True)

    def start(self) -> None:
        """Start the threads."""
        self.store.has_loop = True
        self._thread.start()
        self._jobs.start()

    def stop(self, seconds: float = 30.0) -> None:
        """Finish the chunk that is being learned from, and end."""
        self._stop.set()
        self._due.set()
        if self._thread.ident is not None:
            self._thread.join(seconds)
        self.store.has_loop = False

    def wake(self, stream: int) -> None:
        """Look at a stream soon: something came."""
        self._changed.add(stream)
        self._due.set()

    def behind(self, stream: int) -> int:
        """How many chunks of a stream are due or cut, and not learned from yet."""
        return self._behind.get(stream, 0)

    def forget(self, stream: int, worker: Hashable) -> int:
        """Remove a worker; see `Stream.forget`."""
        return self.store.by_key(stream).forget(worker)

    def withdraw(self, stream: int, versions: Sequence[Sequence[str]]) -> Mapping[str, int]:
        """Delete labels; see `Stream.withdraw`."""
        return self.store.by_key(stream).withdraw(versions)

    def _resume(self) -> None:
        """Go on with jobs that no call does: it was killed, or the store refused."""
        while not self._stop.wait(POLL_SECONDS):
            try:
                self.store.resume(self.on_resumed)
            except Exception as error:  # whatever it is, the thread goes on
                log.warning("jobs wait", extra={"error": str(error)})

    def _learn(self) -> None:
        looked = 0.0
        while not self._stop.is_set():
            self._due.wait(POLL_SECONDS)
            self._due.clear()
            keys = self._changed.take()
            if time.monotonic() - looked > POLL_SECONDS:
                looked = time.monotonic()
                try:
                    keys |= set(self.store.unsettled())
                    if not self.healthy:
                        with self.store.write():
                            pass
                        self._is_healthy(True)
                except StoreError as error:
                    self._is_healthy(False)
                    log.warning("store refused", extra={"error": str(error)})
                    self._pause()
                except Exception:  # whatever it is, the thread goes on
                    log.exception("streams could not be looked at")
                    self._pause()
            for key in sorted(keys):
                if self._stop.is_set():
                    return
                self._advance(key)
            self._stop.wait(LOOK_INTERVAL_SECONDS)

    def _advance(self, key: int) -> None:
        """Cut what is due and apply what is cut, until nothing is."""
        name = None
        try:
            stream = self.store.by_key(key)
            name = stream.name
            while not self._stop.is_set():
                todo, n_due = stream.backlog()
                # Some at a time: were all that is due cut first, a busy stream would never learn.
                cuts = stream.cut_some() if n_due else []
                behind = self._behind[key] = len(todo) + max(n_due, len(cuts))
                if not (todo or cuts):
                    self.on_look(key, behind, None)
                    return
                try:
                    stream.advance_some(partial(self.on_look, key, behind))
                except StateError as error:  # it counts as an attempt
                    log.warning("chunk failed", extra={"stream": name, "error": str(error)})
                self._is_healthy(True)
                self.on_change(key)
        except StateError as error:  # the stream was deleted
            self._behind.pop(key, None)
            log.warning("stream not learned from", extra={"stream": name, "error": str(error)})
        except StoreError as error:
            self._is_healthy(False)
            log.warning("store refused", extra={"stream": name, "error": str(error)})
            self._pause()
            self.wake(key)
        except Exception:
            log.exception("stream failed", extra={"stream": name})
            self._pause()
            self.wake(key)

    def _is_healthy(self, healthy: bool) -> None:
        if healthy != self.healthy:
            self.healthy = healthy
            self.on_health(healthy)

    def _pause(self) -> None:
        self._stop.wait(RETRY_SECONDS)


# ── in a subprocess ──────────────────────────────────────────────────────────────────────


class SubprocessLoop:
    """A learning loop in a subprocess, which joins the store; has the interface of `LearningLoop`.

    How far it is behind is counted here, from the store: a subprocess that hangs tells nothing. A
    process that dies counts as an attempt at the chunk that it was learning from, so a chunk that
    ends every process is quarantined after the third.

    Parameters
    ----------
    where
        What the store was opened by.
    store
        The store, which this process holds.
    """

    def __init__(self, where: str, store: Store) -> None:
        self.store, self._where = store, where
        self.on_change: Callable[[int], None] = lambda stream: None
        """Called from a thread with the key of a stream in which something happened."""
        self.on_resumed: Callable[[int], object] = lambda stream: None
        """The same of a job that was done and that no call waits for."""
        self.healthy = True
        """False while the store refuses writes."""
        self._behind: dict[int, int] = {}
        self._checkpoint_tries = 0  # left
        self._stop, self._due = threading.Event(), threading.Event()
        self._changed = _Streams()  # streams that the process is to look at
        self._threads = [
            threading.Thread(target=self._count, name="labelquorum_lag", daemon=True),
            threading.Thread(target=self._notify, name="labelquorum_wake", daemon=True),
        ]
        self._chunk: tuple[int, int] | None = None  # that is being learned from, after its stream
        self._process = LearnerProcess(
            "loop",
            greeting=lambda: ("join", self._where, store.start),
            on_event=self._handle,
            on_death=self._count_attempt,
        )

    @property
    def pid(self) -> int | None:
        """The process, if it runs."""
        return self._process.pid

    @property
    def problem(self) -> str | None:
        """Why nothing is learned, besides the store's own reasons."""
        return None if self._process.answers else "The learner does not answer; it is replaced."

    def start(self) -> None:
        """Start the process."""
        self._process.start()
        for thread in self._threads:
            thread.start()

    def stop(self, seconds: float = 30.0) -> None:
        """Let the process finish the chunk that is being learned from, and end."""
        self._stop.set()
        self._due.set()
        self._process.close(seconds)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(seconds)

    def wake(self, stream: int) -> None:
        """Look at a stream soon: something came."""
        self._changed.add(stream)
        self._due.set()

    def behind(self, stream: int) -> int:
        """How many chunks of a stream are due or cut, and not learned from yet."""
        return self._behind.get(stream, 0)

    def forget(self, stream: int, worker: Hashable) -> int:
        """Remove a worker; see `Stream.forget`."""
        return int(self._process.call("forget", stream, worker))

    def withdraw(self, stream: int, versions: Sequence[Sequence[str]]) -> Mapping[str, int]:
        """Delete labels; see `Stream.withdraw`."""
        gone: Mapping[str, int] = self._process.call("withdraw", stream, versions)
        return gone

    def _handle(self, event: str, *facts: Any) -> None:
        if event == "changed":
            self._chunk = None
            self._checkpoint_tries = CHECKPOINT_TRIES
            self.on_change(facts[0])
        elif event == "look":
            stream, _, chunk = facts
            self._chunk = (stream, chunk) if chunk else None
        elif event == "resumed":
            self.on_resumed(facts[0])
            self.store.checkpoint()  # a joined process makes none
        elif event == "healthy":
            self.healthy = facts[0]
        else:
            self.healthy = False
            log.warning("store refused", extra={"error": facts[-1]})

    def _notify(self) -> None:
        """Wake the process, no more often than it looks: a message per commit took it longer."""
        while not self._stop.is_set():
            self._due.wait()
            self._due.clear()
            for key in sorted(self._changed.take()):
                self._process.notify("wake", key)  # if the pipe is full, the loop is busy anyway
            self._stop.wait(LOOK_INTERVAL_SECONDS)

    def _count(self) -> None:
        """Count the chunks that wait, and make WAL checkpoints for the subprocess."""
        while not self._stop.wait(LAG_SECONDS):
            try:
                self._behind = {key: self._waiting(key) for key in self.store.unsettled()}
                if self._checkpoint_tries > 0:
                    self._checkpoint_tries -= 1
                    with self.store.write():
                        pass  # which makes one once the log is long
            except StoreError:  # the write queue tells
                pass
            except Exception:  # whatever it is, the thread goes on
                log.exception("the lag could not be counted")

    def _waiting(self, key: int) -> int:
        with suppress(StateError):  # a stream that was deleted just now
            to_apply, n_due = self.store.by_key(key).backlog()
            return len(to_apply) + n_due
        return 0

    def _count_attempt(self) -> None:
        """Count the death of a process as an attempt at its chunk."""
        chunk, self._chunk = self._chunk, None
        log.warning("learner ended")
        if chunk is not None:
            try:
                reason = RuntimeError("the learner ended while it learned")
                raise self.store.by_key(chunk[0]).failed(chunk[1], reason)
            except LabelQuorumError as error:
                log.warning("chunk failed", extra={"error": str(error)})  # which names the stream
                if isinstance(error, StoreError):
                    self.healthy = False
