"""`labelquorum serve` in a subprocess, which tests attack over HTTP and may kill.

The package that it runs is the one on `PYTHONPATH`, so a test that uses nothing else measures any
commit: `python3 run.py faults --long --against REVISION` alternates two.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx


class Service:
    """A service on one port, however often it is killed."""

    def __init__(self, where, *options):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url, self._where, self.key = f"http://127.0.0.1:{self.port}", str(where), None
        self._options = options
        self.start()

    def start(self):
        command = [sys.executable, "-m", "labelquorum", "serve", self._where]
        self._process = subprocess.Popen(
            [*command, "--port", str(self.port), *self._options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        said = []
        for line in self._process.stderr:
            said.append(line)
            if '"serving"' in line:
                break
        else:
            raise AssertionError(said)
        self.lines = []  # of its log, from here on
        self._log = threading.Thread(target=self._read_log, daemon=True)
        self._log.start()
        self.key = self.key or self._process.stdout.readline().strip()

    def _read_log(self):
        for line in self._process.stderr:
            self.lines.append(line)

    @property
    def pid(self):
        return self._process.pid

    def client(self, key=None, timeout=600):
        """HTTP with a key, the administrator's unless given."""
        headers = {"Authorization": f"Bearer {key or self.key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=timeout, trust_env=False)

    def make_key(self, scope, stream=None):
        with self.client() as http:
            body = {"name": scope, "scope": scope, "stream": stream}
            reply = http.post("/v1/keys", json={k: v for k, v in body.items() if v is not None})
        return reply.raise_for_status().json()["key"]

    def connect(self, receive_buffer=None):
        """A bare connection."""
        made = socket.socket()
        if receive_buffer is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        made.connect(("127.0.0.1", self.port))
        return made

    def memory(self):
        """Megabytes of the service's own process that are in memory."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise AssertionError("the process has ended")

    @contextmanager
    def watching_memory(self):
        """Give a list whose one element grows to the most memory used inside the block."""
        peak, done = [self.memory()], threading.Event()

        def watch():
            while not done.wait(0.02):
                with suppress(OSError, AssertionError):
                    peak[0] = max(peak[0], self.memory())

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield peak
        finally:
            done.set()
            watcher.join()

    def children(self, role=""):
        """The subprocesses with this role, such as loop or questions."""
        found = []
        for thread in Path(f"/proc/{self.pid}/task").iterdir():
            with suppress(FileNotFoundError):  # a thread that has just ended
                found += map(int, (thread / "children").read_text().split())
        end = f"labelquorum.server.learner_process\0{role}".encode()
        return [one for one in found if end in Path(f"/proc/{one}/cmdline").read_bytes()]

    def kill_learner(self):
        """Kill the subprocess that learns; the service starts another."""
        for child in self.children("loop")[:1]:
            os.kill(child, signal.SIGKILL)
            return 1
        return 0

    def end(self, number=signal.SIGTERM):
        self._process.send_signal(number)
        self._process.wait(60)
        self._log.join()  # the learners, who have it too, end with the service
        for pipe in (self._process.stdout, self._process.stderr):
            pipe.close()


@contextmanager
def running(where, *options):
    """A service that is ended, also where the test fails."""
    service = Service(where, *options)
    try:
        yield service
    finally:
        with suppress(ProcessLookupError):
            service.end(signal.SIGKILL)


class Pace:
    """A client that sends one small request again and again, and keeps the longest wait."""

    def __init__(self, ask, pause=0.02):
        self._ask, self._pause, self._done = ask, pause, threading.Event()
        self.waits, self.statuses = [], []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        while not self._done.is_set():
            began = time.monotonic()
            self.statuses.append(self._ask())
            self.waits.append(time.monotonic() - began)
            self._done.wait(self._pause)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        self._thread.join()

    @property
    def longest(self):
        return max(self.waits)
