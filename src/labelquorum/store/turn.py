"""The turn of the threads that write: each gets it in the order in which it asked."""

import threading
from collections import deque


class Turn:
    """A re-entrant lock that goes to the thread that has waited longest.

    `threading.RLock` goes to any: a thread that writes in a loop has it again before others wake.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: deque[tuple[int, threading.Lock]] = deque()
        self._owner, self._depth = 0, 0  # no thread's number is 0

    def __enter__(self) -> None:
        me, given = threading.get_ident(), threading.Lock()
        if self._owner != me:
            with self._guard:
                if self._owner:
                    given.acquire()
                    self._waiting.append((me, given))
                else:
                    self._owner = me
            try:
                given.acquire()  # released by the owner before
            except BaseException:  # Ctrl-C: it may have been given all the same
                with self._guard:
                    if self._owner != me:
                        self._waiting.remove((me, given))
                if self._owner == me:
                    self._pass_on()
                raise
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._pass_on()

    def _pass_on(self) -> None:
        with self._guard:
            self._owner = 0
            if self._waiting:
                self._owner, given = self._waiting.popleft()
                given.release()
