"""A real service on a loopback port: uvicorn, the middleware, a write queue, a SQLite store."""

import io
import json
import threading
import time
from contextlib import contextmanager

import httpx

from labelquorum.server.app import create_app
from labelquorum.server.config import Log, Settings
from labelquorum.server.learning_loop import SubprocessLoop
from labelquorum.server.uvicorn_server import Server
from labelquorum.server.write_queue import WriteQueue
from labelquorum.store.store import Store


class Running:
    """A service that runs, and keys for it."""

    def __init__(self, store, settings, loop=None):
        self.store, self.settings = store, settings
        self.lines = io.StringIO()
        self.app = create_app(store, WriteQueue(store, loop), settings, Log(self.lines))
        self.keys = self.app.service.keys
        self.server = Server(self.app, settings)
        self._thread = threading.Thread(target=self.server.run, daemon=True)
        self._clients = []

    def start(self):
        self._thread.start()
        until(lambda: self.server.started)
        [server] = self.server.servers
        self.address = server.sockets[0].getsockname()
        self.url = "http://{}:{}".format(*self.address)

    def stop(self):
        for client in self._clients:
            client.close()
        self.server.should_exit = True
        self._thread.join(30)
        assert not self._thread.is_alive()

    def secret(self, scope="admin", stream=None):
        secret = self.keys.make(f"{scope} of {stream}", scope, stream)[1]
        self.app.service.keyring.refresh()
        return secret

    def client(self, scope="admin", stream=None):
        headers = {} if scope is None else {"Authorization": f"Bearer {self.secret(scope, stream)}"}
        self._clients.append(httpx.Client(base_url=self.url, headers=headers, timeout=120))
        return self._clients[-1]

    def events(self):
        return [json.loads(line) for line in self.lines.getvalue().splitlines()]


def until(holds, seconds=120):
    """Wait until something holds; fail if it never does."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


@contextmanager
def serving(folder, in_subprocess=False, **settings):
    with Store.open(folder) as store:
        loop = SubprocessLoop(str(folder), store) if in_subprocess else None
        running = Running(store, Settings(port=0, **settings), loop)
        running.start()
        try:
            yield running
        finally:
            running.stop()
