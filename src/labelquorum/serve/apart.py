"""Learning in a process of its own, so that it never holds up who takes labels in.

The process joins the store (`serve/learning.py`), cuts and learns and commits there by itself, and
tells what it has done. If it dies, another is started; the chunk it died of counts that as an
attempt, so that a chunk which ends every process is set aside after the third.
"""

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from contextlib import suppress
from typing import IO, Any

from labelquorum.errors import LabelQuorumError, StoreError
from labelquorum.record.store import Store
from labelquorum.record.wire import raised

__all__ = ["Apart"]

log = logging.getLogger("labelquorum.apart")

ANSWER_SECONDS = 600.0
"""Who waits longer for an answer is told that there is none."""

RETRY_SECONDS = 0.5
"""How long to wait before another process is started."""

Chunk = tuple[str, int]


class Apart:
    """Learns in a process of its own; takes the place of a `Learning`.

    Parameters
    ----------
    where
        What the store was opened by.
    store
        The store, which this process holds.
    """

    def __init__(self, where: str, store: Store) -> None:
        self.store, self._where = store, where
        self.on_change: Callable[[str], None] = lambda stream: None
        """Called from a thread with the name of a stream in which something happened."""
        self.healthy = True
        """False while the store refuses."""
        self._behind: dict[str, int] = {}
        self._calls: dict[int, Future[int]] = {}
        self._n_calls = 0
        self._chunk: Chunk | None = None  # that is being learned from
        self._said = threading.Lock()
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._follow, name="labelquorum_apart", daemon=True)

    @property
    def pid(self) -> int | None:
        """The process, if it runs."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process, and a thread that listens to it."""
        self._begin()
        self._thread.start()

    def stop(self, seconds: float = 30.0) -> None:
        """Let the process finish the chunk that is being learned from, and end."""
        self._stopping.set()
        self._say(stop=True)
        if self._thread.ident is not None:
            self._thread.join(seconds)
        self._end()

    def wake(self, stream: str) -> None:
        """Look at a stream soon: something came."""
        self._say(wake=stream)

    def behind(self, stream: str) -> int:
        """How many chunks of a stream are due or cut, and not learned from yet."""
        return self._behind.get(stream, 0)

    def forget(self, stream: str, worker: Hashable) -> int:
        """Remove a worker; see `Stream.forget`."""
        answer: Future[int] = Future()
        with self._said:
            self._n_calls += 1
            number = self._n_calls
            self._calls[number] = answer
        if not self._say(forget=[stream, worker], call=number):
            del self._calls[number]
            raise RuntimeError("the learner is not there")
        return answer.result(ANSWER_SECONDS)

    # ── the process ──────────────────────────────────────────────────────────────────────────

    def _begin(self) -> None:
        with self._said:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "labelquorum.serve.learning"],  # no code from here
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for whoever started it
            )
            assert self._process.stdin is not None
            os.set_blocking(self._process.stdin.fileno(), False)
            # Not as arguments, which everybody can read: a URL may have a password.
            self._write({"store": self._where, "start": self.store.start})

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(OSError):  # what could not be sent any more
                        pipe.close()

    def _say(self, **words: Any) -> bool:
        """Say something; false where nobody listens, or so many words wait that it is at it."""
        with self._said, suppress(OSError, ValueError):  # ValueError: the pipe was closed
            return self._write(words)
        return False

    def _write(self, words: dict[str, Any]) -> bool:
        if self._process is None or self._process.stdin is None:
            return False
        # Short lines are written whole or not at all.
        os.write(self._process.stdin.fileno(), json.dumps(words).encode() + b"\n")
        return True

    def _follow(self) -> None:
        """Listen until the end, and start another process after each that died."""
        while True:
            process = self._process
            if process is not None and process.stdout is not None:
                self._listen(process.stdout)
            if self._stopping.is_set():
                return
            self._bury()
            if self._stopping.wait(RETRY_SECONDS):
                return
            try:
                self._begin()
            except OSError:
                log.exception("no process can be started")

    def _listen(self, lines: IO[bytes]) -> None:
        """Take what the process tells, until it ends."""
        for line in lines:
            try:
                self._hear(json.loads(line))
            except Exception:  # whatever it is, the thread goes on
                log.exception("what was told could not be taken")

    def _hear(self, told: dict[str, Any]) -> None:
        if "changed" in told:
            self._chunk = None
            self.on_change(told["changed"])
            with suppress(StoreError), self.store.write():
                pass  # but the log is emptied once it is long
        elif "stream" in told:
            self._behind[told["stream"]] = told["behind"]
            self._chunk = (told["stream"], told["chunk"]) if told["chunk"] else None
        elif "call" in told:
            answer = self._calls.pop(told["call"])
            if "failed" in told:
                answer.set_exception(raised(told["failed"]))
            else:
                answer.set_result(told["gone"])
        elif "refused" in told:
            self.healthy = False
            log.warning("store refused", extra={"error": told["refused"]})
        else:
            self.healthy = told["healthy"]

    def _bury(self) -> None:
        """A process has died: whoever waits for it is told, and the chunk it died of."""
        reason = RuntimeError("the learner ended while it learned")
        log.warning("learner ended", extra={"stream": self._chunk and self._chunk[0]})
        self._end()
        calls, self._calls = self._calls, {}
        for answer in calls.values():
            answer.set_exception(reason)
        chunk, self._chunk = self._chunk, None
        if chunk is not None:
            try:
                raise self.store.stream(chunk[0]).failed(chunk[1], reason)
            except LabelQuorumError as error:
                log.warning("chunk failed", extra={"stream": chunk[0], "error": str(error)})
                if isinstance(error, StoreError):
                    self.healthy = False
