"""Servers of bare sockets that mean harm: they drip their answers, or never end them."""

import socket
import threading
import time
from contextlib import contextmanager, suppress


class Hostile:
    """Servers that each do one thing to whoever connects, until `seconds` are over."""

    def __init__(self, seconds=0.0):
        self._listeners, self._over, self._seconds = [], threading.Event(), seconds

    def serve(self, answer, buffer=None):
        """The port of one; `answer(connection)` is what it does."""
        listener = socket.socket()
        if buffer is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        listener.bind(("127.0.0.1", 0))
        listener.listen(100)
        self._listeners.append(listener)
        threading.Thread(target=self._accept, args=(listener, answer), daemon=True).start()
        return listener.getsockname()[1]

    def _accept(self, listener, answer):
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                one = threading.Thread(target=self._answer, args=(connection, answer), daemon=True)
                one.start()

    def _answer(self, connection, answer):
        with connection, suppress(OSError):
            answer(connection)

    def drip(self, connection, piece, pause=0.2):
        """Send a piece again and again."""
        ends = time.monotonic() + self._seconds
        while time.monotonic() < ends and not self._over.wait(pause):
            connection.sendall(piece)

    def close(self):
        self._over.set()
        for listener in self._listeners:
            listener.close()


@contextmanager
def hostile(seconds=0.0):
    made = Hostile(seconds)
    try:
        yield made
    finally:
        made.close()


def head(status="200 OK", length=None, *more):
    lines = [f"HTTP/1.1 {status}", "Connection: close", *more]
    if length is not None:
        lines.append(f"Content-Length: {length}")
    return "\r\n".join([*lines, "", ""]).encode()


def request_of(connection):
    """Read a request that has no body."""
    read = b""
    while b"\r\n\r\n" not in read and (piece := connection.recv(2**16)):
        read += piece
