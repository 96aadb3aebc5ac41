"""The crowd at work: labels go to the service when their time has come, truths a little later."""

import threading
import time
from collections.abc import Iterator

import numpy as np

from labelquorum.client import Client
from labelquorum.demo.crowd import CLASSES, WORKERS, Scene
from labelquorum.errors import LabelQuorumError

__all__ = ["Feeder"]

TICK_SECONDS = 0.25
GOLD_EVERY = 20  # the truth of one task in 20 is sent
GOLD_SECONDS = 6.0
"""Delay of a truth after its task opens: the task is answered by then, so its error shows."""


class Feeder:
    """Sends a crowd's labels in real time, from a thread."""

    def __init__(self, client: Client, stream: str, scene: Scene) -> None:
        self._client, self._stream, self._scene = client, stream, scene
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="labelquorum-demo", daemon=True)
        self._sent = 0
        self.error: Exception | None = None

    @property
    def sent(self) -> int:
        """How many labels the service has taken."""
        return self._sent

    @property
    def done(self) -> bool:
        """Whether all labels are sent, or none can be sent any more."""
        return not self._thread.is_alive()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Send no more."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            for _ in self._ticks():
                pass
        except LabelQuorumError as error:
            if not self._stop.is_set():
                self.error = error

    def _ticks(self) -> Iterator[None]:
        crowd, arrivals = self._scene.crowd, self._scene.arrivals
        opened = np.full(crowd.truth.size, np.inf)
        np.minimum.at(opened, crowd.item[arrivals.row], arrivals.time)
        gold = np.arange(0, crowd.truth.size, GOLD_EVERY)
        gold = gold[np.argsort(opened[gold], kind="stable")]
        began, reported = time.monotonic(), 0
        while self._sent < len(arrivals.row) or reported < len(gold):
            if self._stop.wait(TICK_SECONDS):
                return
            now = time.monotonic() - began
            until = int(np.searchsorted(arrivals.time, now))
            if until > self._sent:
                self._send(self._sent, until)
                self._sent = until
            last = int(np.searchsorted(opened[gold], now - GOLD_SECONDS))
            if last > reported:
                self._tell(gold[reported:last].tolist())
                reported = last
            yield

    def _send(self, first: int, last: int) -> None:
        crowd, tasks = self._scene.crowd, self._scene.tasks
        rows = self._scene.arrivals.row[first:last].tolist()
        labels = [
            {
                "task": tasks[crowd.item[row]],
                "worker": WORKERS[crowd.worker[row]],
                "label": CLASSES[crowd.label[row]],
            }
            for row in rows
        ]
        self._client.send(self._stream, labels, key=f"{self._stream} {first}")

    def _tell(self, items: list[int]) -> None:
        truth, tasks = self._scene.crowd.truth, self._scene.tasks
        self._client.gold(self._stream, {tasks[i]: CLASSES[truth[i]] for i in items})
