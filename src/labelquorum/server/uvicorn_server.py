"""uvicorn with read timeouts, header limits and graceful shutdown."""

import asyncio
import json
import resource
import socket
from asyncio import TimerHandle
from types import FrameType

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from labelquorum.errors import StateError
from labelquorum.server.config import Settings, log_config
from labelquorum.server.learner_process import tune_garbage_collection
from labelquorum.server.middleware import Middleware

MAX_HEADER_BYTES = 2**16
"""Of the request line and all headers together."""


class _Impatient(HttpToolsProtocol):
    """A connection with a timeout for requests, and a limit for their headers."""

    patience = 20.0
    _timer: TimerHandle | None = None
    _head_bytes = 0
    _in_head = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > MAX_HEADER_BYTES:
            self._refuse(431, f"Headers may have {MAX_HEADER_BYTES:,} bytes. Send fewer.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._wait()

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._unwait()
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwait()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, f"{msg} Send HTTP/1.1.")

    def _wait(self) -> None:
        self._in_head = True
        if self._timer is None:
            self._timer = self.loop.call_later(self.patience, self._give_up)

    def _unwait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        part = "headers" if self._in_head else "body"
        self._refuse(408, f"The {part} took longer than {self.patience:g} seconds.")

    def _refuse(self, status: int, sentence: str) -> None:
        """Send an error in our shape, and close the connection."""
        if self.transport.is_closing():
            return
        content = {"ok": False, "error": sentence, "errors": [sentence], "status": status}
        body = json.dumps(content).encode()
        self.transport.write(
            b"HTTP/1.1 %d Refused\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
            b"Connection: close\r\n\r\n" % (status, len(body)) + body
        )
        self.transport.close()


class Server(uvicorn.Server):
    """A server that disconnects viewers before it waits for requests to end."""

    def __init__(self, app: Middleware, settings: Settings) -> None:
        kind = type("Impatient", (_Impatient,), {"patience": settings.read_seconds})
        super().__init__(
            uvicorn.Config(
                app,
                host=settings.host,
                port=settings.port,
                http=kind,
                ws="none",
                lifespan="on",
                log_config=log_config(),
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=settings.keep_alive_seconds,
                timeout_graceful_shutdown=settings.stop_seconds,
            )
        )
        self._app = app

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End in order at the first signal, at once at the second."""
        self.force_exit = self.should_exit
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin, and say where."""
        await super().startup(sockets)
        if self.started:
            addresses = [
                "{}:{}".format(*one.getsockname()[:2])
                for server in self.servers
                for one in server.sockets
            ]
            self._app.service.log.write("serving", at_address=addresses)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End in order."""
        self._app.service.log.write("stopping")
        self._app.service.hub.close()
        await super().shutdown(sockets)
        self._app.service.log.write("stopped")


def check_free(settings: Settings) -> None:
    """Raise an error for an address that cannot be listened on, before anything is started."""
    host, port = settings.host, settings.port
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, protocol) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                tried.bind(address)
    except OSError as error:
        raise StateError(
            f"{host}:{port}: the service cannot listen there ({error.strerror}). "
            "Choose another --port, or 0 for a free one."
        ) from error


def serve(app: Middleware, settings: Settings) -> None:
    """Serve until a signal stops it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # viewers take a file each
    tune_garbage_collection()
    Server(app, settings).run()
