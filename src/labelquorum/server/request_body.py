"""The body of a request, read within its limits: size, packing, and all bodies together.

How long it may take is the connection's affair (`uvicorn_server.py`).
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NoReturn

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from labelquorum.errors import LimitError
from labelquorum.ingest.untrusted import MOST_ROWS, gunzip
from labelquorum.server.config import Settings
from labelquorum.server.errors import RETRY_SECONDS, Refusal

__all__ = ["Bodies", "parse_json", "refuse_long_texts"]

SMALL = 2**16
"""Up to here a body is worked on at once; more goes to a thread, so that others need not wait."""

_WINDOW = 2**15

GZIP = b"\x1f\x8b"
"""So does a gzip file begin, and none of the formats."""


class Bodies:
    """Reads bodies, and knows how much of them is in memory."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.held = 0  # bytes
        self._unpacking = asyncio.Lock()

    @asynccontextmanager
    async def alone(self, packed: bytes) -> AsyncIterator[None]:
        """While something packed is unpacked, whose size nobody knows before: one at a time."""
        if len(packed) <= SMALL:
            yield
            return
        async with self._unpacking:
            yield

    @asynccontextmanager
    async def of(self, request: Request) -> AsyncIterator[bytes]:
        """The body of a request, unpacked, and accounted for until it was worked on."""
        headers = request.scope["headers_by_name"]
        packing = headers.get(b"content-encoding", b"identity").strip().lower()
        if packing not in (b"gzip", b"identity"):
            raise Refusal(
                415,
                "A body may be packed with gzip and nothing else. "
                f"Got {packing[:40].decode('latin-1')!r}. Send it as it is.",
            )
        declared = headers.get(b"content-length", b"")
        if declared.isdigit() and int(declared) > self._settings.body_bytes:
            self._refuse_large()
        size = 0
        try:
            parts: list[bytes] = []
            try:
                async for part in request.stream():
                    if not part:
                        continue
                    size += len(part)
                    self._hold(len(part))
                    if size > self._settings.body_bytes:
                        self._refuse_large()
                    parts.append(part)
            except ClientDisconnect:
                raise Refusal(400, "The connection ended before the body did.") from None
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            parts.clear()
            if packing == b"identity" and body.startswith(GZIP):
                raise Refusal(
                    422,
                    "The body is gzip, and no header says so. Send Content-Encoding: gzip with it, "
                    "and the Content-Type of what is packed.",
                )
            if packing == b"gzip":
                async with self.alone(body):
                    body = await run_in_threadpool(gunzip, body, self._settings.unpacked_bytes)
                    self.held -= size  # what was packed is gone
                    size = len(body)
                    self._hold(size)
            yield body
        finally:
            self.held -= size

    def _hold(self, size: int) -> None:
        self.held += size
        if self.held > self._settings.waiting_bytes:
            raise Refusal(
                503,
                "Too many large bodies are being read at the moment. Come back in a second.",
                headers={"Retry-After": str(RETRY_SECONDS)},
            )

    def _refuse_large(self) -> NoReturn:
        raise Refusal(
            413,
            f"A body may have {self._settings.body_bytes:,} bytes at most. Send it in parts.",
            headers={"Connection": "close"},
        )


async def parse_json(body: bytes) -> Any:
    """Parse a JSON body; what is no JSON of ours is refused."""
    return await run_in_threadpool(_parse_large, body) if len(body) > SMALL else _parse(body)


def _parse_large(body: bytes) -> Any:
    # Each of these makes an object that takes far more room than its text.
    if body.count(b"{") > 2 * MOST_ROWS or body.count(b"[") > 2 * MOST_ROWS:
        raise _too_many()
    if body.count(b",") > 16 * MOST_ROWS:
        raise _too_many()
    refuse_long_texts(body, b'"')
    return _parse(body)


def refuse_long_texts(body: bytes, mark: bytes) -> None:
    """Refuse, before anything is made of it, a body with a text far longer than any name.

    Parameters
    ----------
    body
        What was sent.
    mark
        What ends a text in it: a quote, or a line break.
    """
    for start in range(0, len(body) - _WINDOW, _WINDOW):
        if body.find(mark, start, start + _WINDOW) < 0:
            raise Refusal(
                422, f"The body has a text of more than {_WINDOW:,} bytes. No name is so long."
            )


def _parse(body: bytes) -> Any:
    try:
        return _DECODER.decode(body.decode("utf-8-sig"))
    except RecursionError:
        reason = "it is nested too deep"
    except ValueError as error:
        reason = str(error)
    raise Refusal(422, f"The body is not JSON: {reason}. Correct it.")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number that JSON knows")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _too_many() -> LimitError:
    return LimitError(f"At most {MOST_ROWS:,} labels are taken at once. Send them in parts.")
