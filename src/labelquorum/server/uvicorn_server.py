"""uvicorn with read timeouts, header limits and graceful shutdown."""

import asyncio
import json
import resource
import socket
from asyncio import TimerHandle
from types import FrameType

import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from labelquorum.errors import StateError
from labelquorum.server.config import Settings, log_config
from labelquorum.server.learner_process import tune_garbage_collection
from labelquorum.server.middleware import Middleware

MAX_HEADER_BYTES = 2**16
"""Of the request line and all headers together; of trailers, and of the line before a chunk."""

MAX_UNANSWERED = 16
"""Requests of one connection that may wait for their answers before it is read on."""

SMALLEST_REQUEST_BYTES = 18
"""`GET / HTTP/1.1` and two line breaks: n times as many bytes end at most n requests."""

MAX_IGNORED_BYTES = 2**16
"""Rest of a body that is read after the answer; with more to come the connection is closed."""


class _Flow(FlowControl):
    """Flow control that reads on only when all that has come is parsed."""

    is_full = False

    def resume_reading(self) -> None:
        if not self.is_full:
            super().resume_reading()


class _Impatient(HttpToolsProtocol):
    """A connection with timeouts for requests and for readers, and limits on what it holds."""

    patience = 20.0
    flow: _Flow
    _timer: TimerHandle | None = None  # of a request that has not come whole
    _stalled: TimerHandle | None = None  # of an answer that is not read
    _unparsed = memoryview(b"")
    _head_bytes = 0  # since the last of a body
    _body_left = 0  # as declared
    _in_head = True
    _stays_after_body = False
    _active: RequestResponseCycle | None = None  # the request whose answer is next

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # so `pause_writing` means: not all was taken
        self.flow = _Flow(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        self._unparsed = memoryview(data)  # none is left: else nothing is read
        self._parse()

    @property
    def _n_unanswered(self) -> int:
        is_answered = getattr(self.cycle, "response_complete", True)  # there may be none yet
        return 0 if is_answered else len(self.pipeline) + 1

    def _parse(self) -> None:
        """Parse what has come, in pieces too small for more requests than may wait."""
        if self._n_unanswered == 0:
            self._wait()
        while self._unparsed and not self.transport.is_closing():
            most = SMALLEST_REQUEST_BYTES * (MAX_UNANSWERED - self._n_unanswered)
            if most <= 0:
                break
            end = max(most, self._body_left)
            piece, self._unparsed = self._unparsed[:end], self._unparsed[end:]
            self._head_bytes += len(piece)
            super().data_received(piece)  # type: ignore[arg-type]
            if self._head_bytes > MAX_HEADER_BYTES:
                self._refuse(431, f"Headers may have {MAX_HEADER_BYTES:,} bytes. Send fewer.")
        if self._unparsed:
            self.flow.is_full = True
            self.flow.pause_reading()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._wait()

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        super().on_headers_complete()
        if not self.pipeline:
            self._active = self.cycle
        headers, self.headers = dict(self.headers), []  # no trailer is a header: it may name a key
        self._body_left = int(headers.get(b"content-length", 0))
        is_long = self._body_left > MAX_IGNORED_BYTES or b"transfer-encoding" in headers
        self._stays_after_body = self.cycle.keep_alive and (is_long or self.expect_100_continue)
        if self._stays_after_body:
            self.cycle.keep_alive = False  # so an answer before that closes the connection

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        self._body_left -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unwait()
        self._in_head, self._body_left = True, 0
        if self._stays_after_body and not self.cycle.response_started:
            self.cycle.keep_alive = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._active = self.pipeline[-1][0] if self.pipeline else None
        super().on_response_complete()
        if self._unparsed:
            self.flow.is_full = False
            self.flow.resume_reading()
            self._parse()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(self.patience, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwait()
        self.resume_writing()
        self._unparsed = memoryview(b"")
        super().connection_lost(exc)
        if self._active is not None:  # uvicorn says it to the newest request only
            self._active.disconnected = True
            self._active.message_event.set()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, f"{msg} Send HTTP/1.1.")

    def _wait(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.patience, self._give_up)

    def _unwait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if self._unparsed:  # it waits for answers, not for its client
            self._wait()
            return
        part = "headers" if self._in_head else "body"
        self._refuse(408, f"The {part} took longer than {self.patience:g} seconds.")

    def _refuse(self, status: int, sentence: str) -> None:
        """Close the connection, after an error in our shape unless another answer comes first."""
        if self.transport.is_closing():
            return
        n_before = self._n_unanswered - (not self._in_head)
        if n_before == 0 and (self._in_head or not self.cycle.response_started):
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
