"""Learning: what is due is cut, what is cut is learned from, one chunk after the other.

`Learning` does that in a thread. `python -m labelquorum.serve.learning` is a process which has one
and nothing else: it joins the store of whoever started it (`serve/apart.py`), takes lines of JSON
from standard input, tells lines of JSON on standard output, and ends when its input does.
"""

import faulthandler
import json
import logging
import logging.config
import os
import sys
import threading
import time
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

from labelquorum.errors import LabelQuorumError, StateError, StoreError
from labelquorum.record.store import Store
from labelquorum.record.wire import told
from labelquorum.serve.litter import collect_seldom

__all__ = ["Learning"]

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
                todo, n_due = stream.standing()
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
    from labelquorum.serve.server.logs import log_config

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
    import labelquorum.record.model  # noqa: F401  # JAX is there when the first chunk comes

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


if __name__ == "__main__":
    main()
