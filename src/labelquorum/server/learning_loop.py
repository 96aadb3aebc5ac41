"""The learning loop: what is due is cut, what is cut is learned from, one chunk after the other.

`Learning` does that in a thread. `python -m labelquorum.server.learning_loop` is a process which
has one and nothing else: it joins the store of whoever started it, takes lines of JSON from
standard input, writes lines of JSON to standard output, and ends when its input does.

`Apart` supervises that process. If it dies, another is started; the chunk it died of counts that
as an attempt, so that a chunk which ends every process is set aside after the third.
"""

import faulthandler
import json
import logging
import logging.config
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import IO, Any

from labelquorum.errors import LabelQuorumError, StateError, StoreError
from labelquorum.server.learner_process import collect_seldom, raised, told
from labelquorum.store.store import Store

__all__ = ["Apart", "Learning"]

log = logging.getLogger("labelquorum.learning")

LOOK_SECONDS = 0.03
"""How long a stream is left alone after it was looked at for chunks to cut."""

POLL_SECONDS = 0.5
"""How often streams are looked at for items that have waited long enough."""

RETRY_SECONDS = 0.5
"""How long to wait after the store refused."""

CHUNK_SECONDS = 600.0
"""A chunk that takes longer ends the process, where there is one for it."""


class Learning:
    """A thread that learns; see `Learning.start` and `Learning.wake`."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.on_change: Callable[[str], None] = lambda stream: None
        """Called from the thread with the name of a stream in which something happened."""
        self.on_look: Callable[[str, int, int | None], None] = lambda stream, behind, chunk: None
        """Called with a stream, how many chunks wait, and the one that is learned from next."""
        self.on_health: Callable[[bool], None] = lambda healthy: None
        """Called when the store begins to refuse, and when it takes writes again."""
        self.healthy = True
        """False while the store refuses."""
        self._due = threading.Event()
        self._changed: set[str] = set()
        self._behind: dict[str, int] = {}  # chunks that wait to be learned from, by stream
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._learn, name="labelquorum_learn", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, seconds: float = 30.0) -> None:
        """Finish the chunk that is being learned from, and end."""
        self._stop.set()
        self._due.set()
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def wake(self, stream: str) -> None:
        """Look at a stream soon: something came."""
        self._changed.add(stream)
        self._due.set()

    def behind(self, stream: str) -> int:
        """How many chunks of a stream are due or cut, and not learned from yet."""
        return self._behind.get(stream, 0)

    def forget(self, stream: str, worker: Hashable) -> int:
        """Remove a worker; see `Stream.forget`."""
        return self.store.stream(stream).forget(worker)

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
                todo, n_due = stream.backlog()
                self._behind[name] = len(todo) + n_due
                self.on_look(name, self._behind[name], todo[0] if todo else None)
                if not todo:
                    return
                try:
                    stream.advance(todo[0])
                except StateError as error:  # it counts as an attempt
                    log.warning("chunk failed", extra={"stream": name, "error": str(error)})
                self._is_healthy(True)
                self.on_change(name)
        except StoreError as error:
            self._is_healthy(False)
            log.warning("store refused", extra={"stream": name, "error": str(error)})
            self._pause()
            self.wake(name)
        except Exception:
            log.exception("stream failed", extra={"stream": name})
            self._pause()
            self.wake(name)

    def _is_healthy(self, healthy: bool) -> None:
        if healthy != self.healthy:
            self.healthy = healthy
            self.on_health(healthy)

    def _pause(self) -> None:
        self._stop.wait(RETRY_SECONDS)


# ── in a process of its own ──────────────────────────────────────────────────────────────────


def main() -> None:
    """Learn from what comes to a store, as standard input says, until it ends."""
    from labelquorum.server.logging import log_config

    logging.config.dictConfig(log_config())
    # Lines go where standard output went; what anybody prints goes to standard error.
    lines, one_line = os.fdopen(os.dup(1), "w", encoding="utf-8"), threading.Lock()
    os.dup2(2, 1)

    def tell(**facts: Any) -> None:
        with one_line:
            try:
                lines.write(json.dumps(facts) + "\n")
                lines.flush()
            except OSError:  # nobody is there any more
                os._exit(0)

    first = json.loads(sys.stdin.readline() or "null")
    if first is None:
        return
    try:
        store = Store.join(first["store"], first["start"])
    except LabelQuorumError as error:
        tell(refused=str(error))
        return
    learning = Learning(store)

    def on_look(stream: str, behind: int, chunk: int | None) -> None:
        tell(stream=stream, behind=behind, chunk=chunk)
        if chunk is None:
            faulthandler.cancel_dump_traceback_later()
        else:
            faulthandler.dump_traceback_later(CHUNK_SECONDS, exit=True)

    learning.on_look = on_look
    learning.on_health = lambda healthy: tell(healthy=healthy)
    learning.on_change = lambda stream: tell(changed=stream)
    import labelquorum.store.model_rows  # noqa: F401  # JAX is there when the first chunk comes

    collect_seldom()
    tell(healthy=True)
    learning.start()
    for line in sys.stdin:
        asked = json.loads(line)
        if "wake" in asked:
            learning.wake(asked["wake"])
        elif "forget" in asked:
            threading.Thread(target=partial(_forget, learning, asked, tell), daemon=True).start()
        else:  # it is time to end in order
            learning.stop()
            break
    # Who started us is gone, or waits for our end; a chunk that is under way will be learned again.
    os._exit(0)


def _forget(learning: Learning, asked: dict[str, Any], tell: Callable[..., None]) -> None:
    try:
        gone = learning.forget(*asked["forget"])
    except Exception as error:
        tell(call=asked["call"], failed=told(error))
    else:
        tell(call=asked["call"], gone=gone)


# ── the supervisor of the process ────────────────────────────────────────────────────────


supervisor_log = logging.getLogger("labelquorum.apart")

ANSWER_SECONDS = 600.0
"""Who waits longer for an answer is told that there is none."""

RESTART_SECONDS = 0.5
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
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "labelquorum.server.learning_loop",
                ],  # no code from here
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
            if self._stopping.wait(RESTART_SECONDS):
                return
            try:
                self._begin()
            except OSError:
                supervisor_log.exception("no process can be started")

    def _listen(self, lines: IO[bytes]) -> None:
        """Take what the process tells, until it ends."""
        for line in lines:
            try:
                self._hear(json.loads(line))
            except Exception:  # whatever it is, the thread goes on
                supervisor_log.exception("what was told could not be taken")

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
            supervisor_log.warning("store refused", extra={"error": told["refused"]})
        else:
            self.healthy = told["healthy"]

    def _bury(self) -> None:
        """A process has died: whoever waits for it is told, and the chunk it died of."""
        reason = RuntimeError("the learner ended while it learned")
        supervisor_log.warning("learner ended", extra={"stream": self._chunk and self._chunk[0]})
        self._end()
        calls, self._calls = self._calls, {}
        for answer in calls.values():
            answer.set_exception(reason)
        chunk, self._chunk = self._chunk, None
        if chunk is not None:
            try:
                raise self.store.stream(chunk[0]).failed(chunk[1], reason)
            except LabelQuorumError as error:
                supervisor_log.warning(
                    "chunk failed", extra={"stream": chunk[0], "error": str(error)}
                )
                if isinstance(error, StoreError):
                    self.healthy = False


if __name__ == "__main__":
    main()
