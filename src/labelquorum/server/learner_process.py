"""The learner subprocess: its protocol, its supervisor and its program.

The model runs there and nowhere else in the service, so that learning never delays the acceptance
of labels. The service runs one for `learning_loop`, and several that answer questions about models
(`questions`), so that none waits for another.

A watchdog kills a process that does not answer a ping, so that another takes its place: one that
hangs, or that was stopped, may hold the lock of those who write.

A message is a frame: the length of its body in 8 bytes, then JSON, in which bytes are base64. The
parent sends `[call, verb, *arguments]`; the subprocess replies `[call, "reply", value]` or
`[call, "error", class, message]`. Call 0 is a notification, in both directions, and has no reply.
Nothing that is read is ever run. The subprocess ends when its input does, so it never outlives its
parent.
"""

import faulthandler
import gc
import json
import logging
import logging.config
import os
import select
import subprocess
import sys
import threading
import time
import warnings
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from queue import SimpleQueue
from typing import IO, TYPE_CHECKING, Any

from labelquorum import errors
from labelquorum.errors import LabelError, LabelQuorumError, StoreError
from labelquorum.store.learner import (
    AnswerColumns,
    AttributeRow,
    Configuration,
    LabelColumns,
    LocalLearner,
    OpenColumns,
    OpenRow,
    Outcome,
    Work,
    WorkerRow,
)

if TYPE_CHECKING:
    from labelquorum.server.learning_loop import LearningLoop


log = logging.getLogger("labelquorum.learner")

LENGTH_BYTES = 8
_BYTES_KEY = "$bytes"

NOTIFICATION = 0
"""The number of a call that has no reply."""

JOBS = ("forget", "withdraw")
"""Calls that take long: each is done in another thread."""

CALL_TIMEOUT_SECONDS = 600.0
"""A call that takes longer fails, and its process is killed."""

CHUNK_TIMEOUT_SECONDS = 600.0
"""A chunk that takes longer ends the process; it counts as an attempt."""

MIN_RESTART_SECONDS, MAX_RESTART_SECONDS = 0.5, 30.0
"""Between two starts: doubled from the first to the second while processes die without a reply, so
that one that cannot start does not take a whole core. One that lived longer is no such process."""

BEAT_SECONDS, MAX_MISSED_BEATS = 1.0, 5
"""Interval of the pings to a process, and how many may go without an answer before it is killed.
Beats are counted, and not seconds: none is missed while both processes are suspended."""

MAX_START_BEATS = 10
"""The same for a process that has not answered yet: it loads what it takes to answer."""

START_SECONDS = 60.0
"""A process that takes longer to load its other modules, or to join the store, ends; on a busy
machine it takes 10."""

SILENT_BEATS = 3
"""From here on a process is said not to answer."""

GC_THRESHOLD_OBJECTS = 50_000
"""Allocations between two collections: rows by the thousand are no garbage, and at the default of
2,000 Python looks at all of them again and again."""


def tune_garbage_collection() -> None:
    """Collect seldom, and never look at what is loaded by now: the modules."""
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD_OBJECTS, 20, 100)


# ── the protocol ─────────────────────────────────────────────────────────────────────────


def pack(message: Any) -> bytes:
    """A message as a frame; named tuples become lists."""
    body = json.dumps(message, separators=(",", ":"), default=_encode_bytes).encode()
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def unpack(body: bytes) -> Any:
    """The message in the body of a frame."""
    return json.loads(body, object_hook=_decode_bytes)


def work_from(parts: list[Any]) -> Work:
    """Work as it was before it was packed."""
    work = Work(*parts)
    return work._replace(
        workers=[WorkerRow(*row) for row in work.workers],
        open_items=[OpenRow(*row) for row in work.open_items],
        labels=LabelColumns(*work.labels),
        attributes=[AttributeRow(*row) for row in work.attributes],
        gold=[(item, truth) for item, truth in work.gold],
    )


def outcome_from(parts: list[Any]) -> Outcome:
    """An outcome as it was before it was packed."""
    outcome = Outcome(*parts)
    return outcome._replace(
        workers=[WorkerRow(*row) for row in outcome.workers],
        answers=AnswerColumns(*outcome.answers),
        open_items=OpenColumns(*outcome.open_items),
    )


def _encode_bytes(value: object) -> dict[str, str]:
    if isinstance(value, bytes):
        return {_BYTES_KEY: b64encode(value).decode()}
    raise TypeError(f"{type(value).__name__} has no place in a frame.")


def _decode_bytes(found: dict[str, Any]) -> Any:
    return b64decode(found[_BYTES_KEY]) if found.keys() == {_BYTES_KEY} else found


def _error_from(name: str, message: str) -> Exception:
    """The error of a reply: our own by its class, any other as a sentence."""
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, LabelQuorumError):
        return kind(message)
    return RuntimeError(f"{name}: {message}")


def _read_frame(source: IO[bytes]) -> Any:
    """The next message; None at the end, also in the middle of a frame."""
    head = source.read(LENGTH_BYTES)
    size = int.from_bytes(head, "big")
    body = source.read(size) if len(head) == LENGTH_BYTES else b""
    return unpack(body) if body and len(body) == size else None


# ── the supervisor ───────────────────────────────────────────────────────────────────────


class LearnerProcess:
    """Supervises a learner subprocess, and is a `store.learner.Learner` through it.

    If the process dies, the calls under way fail with a `RuntimeError` and another process is
    started.

    Parameters
    ----------
    role
        What it is for; shown by `ps`.
    greeting
        Gives the first notification to each new process: a verb and its arguments.
    on_event
        Called from a thread with each notification of the process.
    on_death
        Called from the same thread after a process has died, before the next one is started.
    is_watched
        Whether a process that answers no ping is killed.
    """

    def __init__(
        self,
        role: str = "questions",
        *,
        greeting: Callable[[], tuple[Any, ...]] | None = None,
        on_event: Callable[..., None] = lambda *_: None,
        on_death: Callable[[], None] = lambda: None,
        is_watched: bool = True,
    ) -> None:
        self.timeout = CALL_TIMEOUT_SECONDS
        self._role, self._greeting = role, greeting
        self._on_event, self._on_death = on_event, on_death
        self._process: subprocess.Popen[bytes] | None = None
        self._changed = threading.Condition()  # guards `_process` and what is written to it
        self._calls: dict[int, Future[Any]] = {}
        self._numbers = count(NOTIFICATION + 1)
        self._closing, self._ended = threading.Event(), threading.Event()
        self._heard_from: subprocess.Popen[bytes] | None = None  # since the last beat
        self._working: subprocess.Popen[bytes] | None = None  # gave more than an answer to a ping
        self._silent_beats = 0  # since any process that works was heard from
        self._has_answered = False
        self._thread = threading.Thread(
            target=self._supervise, name=f"labelquorum_{role}", daemon=True
        )
        self._watchdog = None
        if is_watched:
            name = f"labelquorum_{role}_watch"
            self._watchdog = threading.Thread(target=self._watch, name=name, daemon=True)

    @property
    def pid(self) -> int | None:
        """The process, if it runs."""
        return None if self._process is None else self._process.pid

    @property
    def answers(self) -> bool:
        """Whether a process that has loaded answered a moment ago; True at the start."""
        return self._silent_beats < (SILENT_BEATS if self._has_answered else MAX_START_BEATS)

    def start(self) -> None:
        """Start the process now, so that the first call need not wait for it."""
        with self._changed:
            if self._closing.is_set():
                raise self._ending("start")
            if self._thread.ident is None:
                self._spawn()
                self._thread.start()
                if self._watchdog is not None:
                    self._watchdog.start()

    def close(self, seconds: float = 0.0) -> None:
        """End the process, which has this long to finish a chunk; later calls fail."""
        self._closing.set()
        if self._thread.ident is None:
            with self._changed:  # `start` may be under way
                if self._thread.ident is None:
                    return
        if seconds:
            self.notify("stop")
            self._thread.join(seconds)
        self._kill()  # it holds nothing that could be lost
        with self._changed:  # which a writer held until the process was gone; none is started now
            self._kill()
            self._changed.notify_all()
        self._thread.join()

    def _kill(self) -> None:
        process = self._process
        if process is not None:
            process.kill()

    def configure(self, method: str, settings: Mapping[str, Any]) -> Configuration:
        """Check the method of a stream, and spell out every setting."""
        return Configuration(*self.call("configure", method, dict(settings)))

    def learn(self, work: Work) -> Outcome:
        """Learn from a chunk, and return the rows that changed."""
        return outcome_from(self.call("learn", work))

    def ask(self, work: Work, question: str, options: Mapping[str, Any]) -> Any:
        """Ask the model about these workers and open items."""
        return self.call("ask", work, question, dict(options))

    def call(self, verb: str, *arguments: Any) -> Any:
        """Have the process do something, and return its reply."""
        self.start()
        deadline = time.monotonic() + self.timeout
        number = next(self._numbers)
        frame = pack([number, verb, *arguments])
        process, reply = None, Future[Any]()
        try:
            process = self._submit(number, frame, reply, deadline)
            return reply.result(deadline - time.monotonic())
        except TimeoutError as error:
            # A job is done in a thread, after chunks: the process is well, and goes on.
            if process is not None and verb not in JOBS:
                process.kill()
                process.wait()
            raise self._ending(verb, " (it took too long)") from error
        except _DeadError as error:
            raise self._ending(verb) from error
        finally:  # a reply that comes now is ignored
            self._calls.pop(number, None)

    def _submit(
        self, number: int, frame: bytes, reply: Future[Any], deadline: float
    ) -> subprocess.Popen[bytes]:
        """Write a call to the process, or to the next one if that has just died."""
        dead: list[Any] = [None]
        with self._changed:
            while True:
                self._changed.wait_for(
                    lambda: self._closing.is_set() or self._process not in dead,
                    deadline - time.monotonic(),
                )
                if self._closing.is_set():
                    raise _DeadError
                process = self._process
                if process is None or process in dead:
                    raise TimeoutError
                self._calls[number] = reply
                try:
                    self._write(frame, deadline)
                    return process
                except BrokenPipeError:
                    del self._calls[number]
                    dead.append(process)
                except BaseException:  # part of the frame may be in the pipe
                    process.kill()
                    raise

    def notify(self, verb: str, *arguments: Any) -> bool:
        """Send a notification; false where no process listens, or its pipe is full."""
        with self._changed, suppress(OSError):
            self._write(pack([NOTIFICATION, verb, *arguments]), deadline=None)
            return True
        return False

    def _ending(self, verb: str, reason: str = "") -> Exception:
        if self._closing.is_set():
            return StoreError("The learner was closed. Open the store again.")
        return EndedError(f"the learner ended while it was asked to {verb}{reason}")

    def _write(self, frame: bytes, deadline: float | None) -> None:
        """Write a whole frame by then; without a deadline, at once or not at all."""
        if self._process is None or self._process.stdin is None or self._process.stdin.closed:
            raise BrokenPipeError("no process runs")
        pipe = self._process.stdin.fileno()
        if deadline is None:
            os.write(pipe, frame)  # a short one is written whole, or BlockingIOError is raised
            return
        ready = select.poll()  # `select.select` cannot take a descriptor above 1023
        ready.register(pipe, select.POLLOUT)
        rest = memoryview(frame)
        while rest:
            if not ready.poll(1000 * max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            with suppress(BlockingIOError):
                rest = rest[os.write(pipe, rest) :]

    # ── the thread ───────────────────────────────────────────────────────────────────────

    def _supervise(self) -> None:
        """Listen to the process, and start another after each that died, with backoff."""
        try:
            self._supervise_all()
        finally:
            self._ended.set()

    def _supervise_all(self) -> None:
        delay = MIN_RESTART_SECONDS
        while True:
            process, started, works = self._process, time.monotonic(), False
            if process is not None:
                works = self._listen(process)
                self._bury(process)
            lived = time.monotonic() - started
            if works or lived > MAX_RESTART_SECONDS:
                delay = MIN_RESTART_SECONDS
            if self._closing.wait(max(0.0, delay - lived)):
                return
            delay = min(2 * delay, MAX_RESTART_SECONDS)
            with self._changed:
                if self._closing.is_set():
                    return
                try:
                    self._spawn()
                except OSError:
                    log.exception("no process can be started")

    def _spawn(self) -> None:
        """Start a process, with the lock held."""
        self._process = subprocess.Popen(
            # -P: code of the working directory is not run
            [sys.executable, "-P", "-m", "labelquorum.server.learner_process", self._role],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the parent
        )
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        if self._greeting is not None:
            # Not as arguments, which everybody can read: a URL may have a password.
            with suppress(OSError):
                self._write(pack([NOTIFICATION, *self._greeting()]), deadline=None)
        self._changed.notify_all()

    def _listen(self, process: subprocess.Popen[bytes]) -> bool:
        """Take messages until the process ends; whether it got to work."""
        assert process.stdout is not None
        works = False
        while (message := _read_frame(process.stdout)) is not None:
            number, kind, *rest = message
            self._heard_from = process
            if kind == "pong":
                continue
            if kind not in ("refused", "error"):
                works, self._working, self._has_answered = True, process, True
            if number != NOTIFICATION:
                reply = self._calls.pop(number, None)  # None: its caller has given up
                if reply is not None:
                    _settle(reply, kind, rest)
                continue
            try:
                self._on_event(kind, *rest)
            except Exception:  # whatever it is, the thread goes on
                log.exception("an event could not be handled")
        return works

    def _watch(self) -> None:
        """Ping the process at every beat, and kill it once it has missed too many."""
        watched, known, missed = None, None, 0
        while not self._ended.wait(BEAT_SECONDS):
            process, heard_from = self._process, self._heard_from
            self._heard_from = None
            answers = heard_from is not None and heard_from is self._working
            self._silent_beats = 0 if answers else self._silent_beats + 1
            known = heard_from or known
            missed = 0 if heard_from is not None or process is not watched else missed + 1
            watched = process
            if process is None:
                continue
            if missed >= (MAX_MISSED_BEATS if known is process else MAX_START_BEATS):
                log.warning("learner does not answer, and is killed")
                process.kill()
            elif self._changed.acquire(blocking=False):  # held: a call is being written
                try:
                    with suppress(OSError, ValueError):  # the pipe is full, or closed
                        self._write(_PING, deadline=None)
                finally:
                    self._changed.release()

    def _bury(self, process: subprocess.Popen[bytes]) -> None:
        """Fail the calls of a process that has died."""
        process.kill()
        process.wait()
        with self._changed:
            self._process = None
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(OSError):  # what could not be sent
                        pipe.close()
            calls, self._calls = self._calls, {}
        for reply in calls.values():
            reply.set_exception(_DeadError())
        if not self._closing.is_set():
            self._on_death()


_PING = pack([NOTIFICATION, "ping"])


class EndedError(RuntimeError):
    """The process of a call died, or took too long and was killed."""


class _DeadError(Exception):
    """The process died before it replied."""


def _settle(reply: Future[Any], kind: str, rest: list[Any]) -> None:
    if kind == "error":
        reply.set_exception(_error_from(*rest))
    else:
        reply.set_result(rest[0])


# ── the program ──────────────────────────────────────────────────────────────────────────


class _Program:
    """What the subprocess does: replies to calls, and runs a learning loop after `join`."""

    def __init__(self, replies: IO[bytes]) -> None:
        self._replies, self._one_frame = replies, threading.Lock()
        self._learner = LocalLearner()
        self._loop: LearningLoop | None = None
        self._joined = threading.Event()
        self._learns = False  # a chunk was the last that was looked at
        self._verbs: dict[str, Callable[..., Any]] = {
            "configure": self._learner.configure,
            "learn": lambda work: self._learner.learn(work_from(work)),
            "ask": lambda work, *rest: self._learner.ask(work_from(work), *rest),
            "join": self._join,
            "stop": self._stop,
        }

    def run(self, source: IO[bytes]) -> None:
        """Do what is asked, in another thread, until the input ends; answer pings at once."""
        todo: SimpleQueue[Any] = SimpleQueue()
        threading.Thread(target=self._work, args=(todo,), daemon=True).start()
        while (message := _read_frame(source)) is not None:
            if message[1] == "ping":
                self._event("pong")
            elif message[1] == "wake" and self._loop is not None:
                self._loop.wake(message[2])
            elif message[1] in JOBS:  # it may wait for a chunk, and the next message must not
                threading.Thread(target=self._reply, args=message, daemon=True).start()
            else:
                todo.put(message)

    def decode_alone(self, source: IO[bytes]) -> None:
        """Decode Parquet in this thread alone: a fork of several threads is not whole."""
        from labelquorum.ingest.frames import require_pyarrow
        from labelquorum.ingest.untrusted import decode_in_fork

        self._verbs = {"decode": decode_in_fork}
        with suppress(LabelError):  # not installed: every file gets the sentence
            for module in ("pyarrow.compute", "pyarrow.parquet"):
                require_pyarrow(module)  # once, and not in every fork
        while (message := _read_frame(source)) is not None:
            self._reply(*message)

    def _work(self, todo: "SimpleQueue[Any]") -> None:
        faulthandler.dump_traceback_later(START_SECONDS, exit=True)
        _log_as_service()
        import labelquorum.store.model_queries  # noqa: F401  # loads it before the first call

        tune_garbage_collection()
        faulthandler.cancel_dump_traceback_later()
        while True:
            self._reply(*todo.get())

    def _reply(self, number: int, verb: str, *arguments: Any) -> None:
        if verb in JOBS:
            self._joined.wait()  # in a thread for this call
        try:
            reply = [number, "reply", self._verbs[verb](*arguments)]
            frame = b"" if number == NOTIFICATION else pack(reply)
        except Exception as error:
            frame = pack([number, "error", type(error).__name__, str(error)])
        self._send(frame)

    def _send(self, frame: bytes) -> None:
        with self._one_frame:
            try:
                self._replies.write(frame)
                self._replies.flush()
            except OSError:  # the parent was killed; a chunk under way will be learned again
                os._exit(0)

    def _event(self, *facts: Any) -> None:
        self._send(pack([NOTIFICATION, *facts]))

    def _join(self, where: str, start: float) -> None:
        """Join the store of the parent, and learn from what comes to it."""
        faulthandler.dump_traceback_later(START_SECONDS, exit=True)
        from labelquorum.server.learning_loop import LearningLoop
        from labelquorum.store.store import Store

        try:
            store = Store.join(where, start)
        except Exception as error:  # without the store it could only wait; the next process retries
            self._event("refused", str(error) or type(error).__name__)
            os._exit(1)
        loop = self._loop = LearningLoop(store)
        loop.on_look = self._look
        loop.on_health = lambda healthy: self._event("healthy", healthy)
        loop.on_change = lambda key: self._event("changed", key)
        self._verbs |= {"forget": loop.forget, "withdraw": loop.withdraw, "wake": loop.wake}
        loop.on_resumed = lambda key: self._event("resumed", key)
        faulthandler.cancel_dump_traceback_later()
        self._event("healthy", True)
        loop.start()
        self._joined.set()

    def _look(self, stream: int, behind: int, chunk: int | None) -> None:
        if chunk is None and not self._learns:  # which the parent knows
            return
        self._learns = chunk is not None
        self._event("look", stream, behind, chunk)
        if chunk is None:
            faulthandler.cancel_dump_traceback_later()
        else:
            faulthandler.dump_traceback_later(CHUNK_TIMEOUT_SECONDS, exit=True)

    def _stop(self) -> None:
        if self._loop is not None:
            self._loop.stop()
        os._exit(0)


def _log_as_service() -> None:
    from labelquorum.server.config import log_config

    logging.config.dictConfig(log_config())
    warnings.showwarning = lambda message, *_: log.warning("%s", message)


def main() -> None:
    """Answer frames from standard input until it ends.

    What takes long to load is loaded once pings are answered, so that a slow process is not
    mistaken for one that hangs.
    """
    # Frames go where standard output went; what is printed goes to standard error.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    program = _Program(replies)
    if sys.argv[1:] == ["parquet"]:
        _log_as_service()
        program.decode_alone(sys.stdin.buffer)
    else:
        program.run(sys.stdin.buffer)
    os._exit(0)  # with the threads, and what cannot be sent


if __name__ == "__main__":
    main()
