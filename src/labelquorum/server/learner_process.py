"""A learner in a subprocess, so that learning never delays the acceptance of labels.

`python -m labelquorum.server.learner_process` is that process: it answers frames one after the
other, and ends when its input does, so it never outlives whoever started it. If it dies, the call
that was under way fails, and the next one starts another. A frame is its length and JSON; bytes
travel as base64. Nothing that is read is ever run.
"""

import gc
import json
import os
import select
import subprocess
import sys
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Any

from labelquorum import errors
from labelquorum.errors import LabelQuorumError, StoreError
from labelquorum.store.learner import (
    AnswerRow,
    Configuration,
    LabelRow,
    LocalLearner,
    OpenRow,
    Outcome,
    Work,
    WorkerRow,
)

__all__ = [
    "LENGTH_BYTES",
    "Beside",
    "collect_seldom",
    "outcome_from",
    "pack",
    "raised",
    "told",
    "unpack",
    "work_from",
]

LENGTH_BYTES = 8
_BYTES = "$bytes"


def pack(value: Any) -> bytes:
    """A value as a frame; named tuples become lists."""
    body = json.dumps(value, separators=(",", ":"), default=_as_text).encode()
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def unpack(body: bytes) -> Any:
    """What was packed, without the length."""
    return json.loads(body, object_hook=_as_bytes)


def work_from(parts: list[Any]) -> Work:
    """Work as it was before it was packed."""
    work = Work(*parts)
    return work._replace(
        workers=[WorkerRow(*row) for row in work.workers],
        open_items=[OpenRow(*row) for row in work.open_items],
        labels=[LabelRow(*row) for row in work.labels],
        gold=[(item, truth) for item, truth in work.gold],
    )


def outcome_from(parts: list[Any]) -> Outcome:
    """An outcome as it was before it was packed."""
    outcome = Outcome(*parts)
    return outcome._replace(
        workers=[WorkerRow(*row) for row in outcome.workers],
        answers=[AnswerRow(*row) for row in outcome.answers],
        open_items=[OpenRow(*row) for row in outcome.open_items],
    )


def told(error: Exception) -> dict[str, str]:
    """An error as it travels."""
    return {"error": type(error).__name__, "message": str(error)}


def raised(reply: dict[str, str]) -> Exception:
    """The error that was told: our own by its name, any other as a sentence."""
    name, message = reply["error"], reply["message"]
    if name in errors.__all__:
        kind: Callable[[str], LabelQuorumError] = getattr(errors, name)
        return kind(message)
    return RuntimeError(f"{name}: {message}")


def _as_text(value: object) -> dict[str, str]:
    if isinstance(value, bytes):
        return {_BYTES: b64encode(value).decode()}
    raise TypeError(f"{type(value).__name__} has no place in a frame.")


def _as_bytes(found: dict[str, Any]) -> Any:
    return b64decode(found[_BYTES]) if found.keys() == {_BYTES} else found


# ── garbage collection ───────────────────────────────────────────────────────────────────


NEW_OBJECTS = 50_000
"""Garbage is looked for after so many new objects: rows by the thousand are none, and by default
Python looks at all of them again and again."""


def collect_seldom() -> None:
    """Look for garbage seldom, and never among what is here now: the modules."""
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, 20, 100)


# ── the process ──────────────────────────────────────────────────────────────────────────


CALL_SECONDS = 600.0
"""A call that takes longer is given up, and its process ended."""


class Beside:
    """A learner in a process beside this one."""

    def __init__(self, seconds: float = CALL_SECONDS) -> None:
        self._seconds = seconds
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def start(self) -> None:
        """Start the process now, so that the first call need not wait for it."""
        with self._turn:
            self._running()

    def close(self) -> None:
        """End the process; no call is answered any more."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()  # it holds nothing that could be lost
        with self._turn:
            self._drop()

    @property
    def pid(self) -> int | None:
        """The process, if it runs."""
        return None if self._process is None else self._process.pid

    def configure(self, method: str, settings: Mapping[str, Any]) -> Configuration:
        """Check what a stream is to learn by, and spell out every setting."""
        return Configuration(*self._call("configure", method, dict(settings)))

    def learn(self, work: Work) -> Outcome:
        """Learn from a chunk, and say which rows are new."""
        return outcome_from(self._call("learn", work))

    def ask(self, work: Work, question: str, options: Mapping[str, Any]) -> Any:
        """What the model says of these workers and open items."""
        return self._call("ask", work, question, dict(options))

    def _call(self, name: str, *arguments: Any) -> Any:
        frame = pack([name, *arguments])
        with self._turn:
            process = self._running()
            try:
                reply = self._exchange(process, frame)
            except (OSError, EOFError, TimeoutError) as error:
                self._drop()
                if self._closed:
                    raise StoreError("The learner was closed. Open the store again.") from error
                reason = f" ({error})" if str(error) else ""
                raise RuntimeError(
                    f"the learner ended while it was asked to {name}{reason}"
                ) from error
            except BaseException:  # its reply may still come, and is no answer to the next call
                self._drop()
                raise
        if isinstance(reply, dict):
            raise raised(reply)
        return reply[0]

    def _exchange(self, process: subprocess.Popen[bytes], frame: bytes) -> Any:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(frame)
        process.stdin.flush()
        deadline = time.monotonic() + self._seconds
        length = int.from_bytes(_read(process.stdout.fileno(), LENGTH_BYTES, deadline), "big")
        return unpack(_read(process.stdout.fileno(), length, deadline))

    def _running(self) -> subprocess.Popen[bytes]:
        if self._closed:
            raise StoreError("The learner was closed. Open the store again.")
        if self._process is None or self._process.poll() is not None:
            self._drop()
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "labelquorum.server.learner_process",
                ],  # no code of this folder
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for whoever started it
            )
        return self._process

    def _drop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(OSError):  # what could not be sent any more
                        pipe.close()


def _read(descriptor: int, size: int, deadline: float) -> bytes:
    """So many bytes, by then."""
    parts: list[bytes] = []
    waiting = select.poll()  # `select.select` knows no descriptor above 1023
    waiting.register(descriptor, select.POLLIN)
    while size:
        if not waiting.poll(1000 * max(0.0, deadline - time.monotonic())):
            raise TimeoutError("it took too long")
        part = os.read(descriptor, min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def main() -> None:
    """Answer frames from standard input until it ends."""
    # Frames go where standard output went; what anybody prints goes to standard error.
    replies: IO[bytes] = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    here = LocalLearner()
    calls: dict[str, Callable[..., Any]] = {
        "configure": here.configure,
        "learn": lambda work: here.learn(work_from(work)),
        "ask": lambda work, question, options: here.ask(work_from(work), question, options),
    }
    import labelquorum.store.model_queries  # noqa: F401  # JAX is there when the first call comes

    collect_seldom()
    source = sys.stdin.buffer
    while head := source.read(LENGTH_BYTES):
        body = source.read(int.from_bytes(head, "big"))
        try:
            name, *arguments = unpack(body)
            reply = pack([calls[name](*arguments)])
        except Exception as error:
            reply = pack(told(error))
        try:
            replies.write(reply)
            replies.flush()
        except BrokenPipeError:  # who asked was killed; the store will ask again
            with suppress(OSError):  # of what could not be sent
                replies.close()
            return


if __name__ == "__main__":
    main()
