"""The processes that answer questions about models, each of them one question at a time."""

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from labelquorum.errors import StateError, StoreError
from labelquorum.server.learner_process import CALL_TIMEOUT_SECONDS, EndedError, LearnerProcess
from labelquorum.store.learner import Configuration, LabelColumns, LocalLearner, Work, read_until

N_PROCESSES = min(max(os.cpu_count() or 1, 2), 8)
"""One per core; at least two, so that a long question leaves one to others."""

QUESTION_SECONDS, REPORT_SECONDS = 5.0, 120.0
"""Most time for an answer, its turn and its rows included; and for one made in the background."""

MIN_QUESTION_SECONDS = 0.25
"""With less time left no process is given a question: it would end late, and healthy as it is."""

_NOTHING = Work("bila", "", 0, 0, "[]", 0, 0, None, (), (), LabelColumns(), (), False)
"""A model that has learned nothing."""


class Questions(LocalLearner):
    """A `store.learner.Learner` whose questions go to processes, one at a time to each.

    One is started when the last one that is idle begins to work. A question that takes too long
    ends its process; one whose process dies of another cause is asked again, once.
    """

    def __init__(self) -> None:
        self._changed, self._is_closed = threading.Condition(), False
        self._all: list[LearnerProcess] = []
        self._idle: list[LearnerProcess] = []  # and ready; the last one is used next
        self._n_starting = 0

    def start(self) -> None:
        """Start a process now, so that the first question need not wait for it."""
        with self._changed:
            self._add()

    def close(self) -> None:
        """End all processes; later questions fail."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for process in self._all:
            process.close()

    def configure(self, method: str, settings: Mapping[str, Any]) -> Configuration:
        """Check the method of a stream, and spell out every setting."""
        with self._process(CALL_TIMEOUT_SECONDS) as process:
            return process.configure(method, settings)

    def ask(self, work: Work, question: str, options: Mapping[str, Any]) -> Any:
        """Ask the model about these workers and open items."""
        until = min(read_until.get(), time.monotonic() + REPORT_SECONDS)
        for has_died in (False, True):
            try:
                with self._process(until - time.monotonic()) as process:
                    return process.ask(work, question, options)
            except EndedError as error:
                if time.monotonic() >= until:
                    raise TimeoutError(str(error)) from error
                if has_died:
                    raise

    @contextmanager
    def _process(self, seconds: float) -> Iterator[LearnerProcess]:
        until = time.monotonic() + seconds
        with self._changed:
            if not self._all:
                self._add()
            if not self._changed.wait_for(lambda: self._idle or self._is_closed, seconds):
                raise TimeoutError("no process was ready in time")
            if until - time.monotonic() < MIN_QUESTION_SECONDS:
                raise TimeoutError("too little time is left to answer")
            if self._is_closed:
                raise StoreError("The learner was closed. Open the store again.")
            process = self._idle.pop()
            # One more than answer questions: for who makes a stream.
            if not self._idle and not self._n_starting and len(self._all) <= N_PROCESSES:
                self._add()
        process.timeout, take_back = until - time.monotonic(), self._idle.append
        try:
            yield process
        except EndedError:
            take_back = self._prepare
            raise
        finally:
            with self._changed:
                take_back(process)
                self._changed.notify()

    def _add(self) -> None:
        process = LearnerProcess(on_death=lambda: self._lose(process))
        self._all.append(process)
        self._prepare(process)

    def _lose(self, process: LearnerProcess) -> None:
        with self._changed:
            if process in self._idle:  # else who uses it takes care of it
                self._idle.remove(process)
                self._prepare(process)

    def _prepare(self, process: LearnerProcess) -> None:
        """Let a process, or the one after it, load all that a question takes, and give it back."""

        def wait() -> None:
            process.timeout, is_ready = CALL_TIMEOUT_SECONDS, False
            while not is_ready and not self._is_closed:
                with suppress(EndedError, StoreError):  # it died again; the service ends
                    made = process.configure("bila", {})
                    with suppress(StateError):  # it has learned nothing
                        process.ask(_NOTHING._replace(settings=made.settings), "priors", {})
                    is_ready = True
            with self._changed:
                self._n_starting -= 1
                self._idle.append(process)
                self._changed.notify()

        self._n_starting += 1
        threading.Thread(target=wait, name="labelquorum_prepare", daemon=True).start()
