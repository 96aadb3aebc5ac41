"""Downloads: the answers, or the workers, as a file.

The rows go to a file of the system's own first, as fast as the store gives them, and from there to
the client as fast as it reads them, from the first row on. So a slow client never holds up the
store.
"""

import asyncio
import tempfile
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import IO, Annotated, Any

from anyio import CapacityLimiter, from_thread, to_thread
from fastapi import APIRouter, Query, Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from labelquorum.errors import LabelQuorumError, StateError
from labelquorum.ingest.frames import require_pyarrow
from labelquorum.ingest.validate import ATTRIBUTES
from labelquorum.ingest.writers import Written, write_rows
from labelquorum.server.auth import Guarded
from labelquorum.server.cache import WorkerTable
from labelquorum.server.context import Service, known_stream, service_of
from labelquorum.server.errors import ApiError, error_responses
from labelquorum.server.large_answers import PIECE_BYTES
from labelquorum.store.export import exported
from labelquorum.store.stream import Stream

router = APIRouter(route_class=Guarded)
WORKERS_PER_READ = 500
"""Workers that are read from the store at a time."""

_TYPES = {
    "csv": "text/csv",
    "jsonl": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
}
_BYTES = {"schema": {"type": "string", "format": "binary"}}


@router.get(
    "/v1/streams/{stream}/export",
    response_class=StreamingResponse,
    responses={
        200: {
            "content": dict.fromkeys(_TYPES.values(), _BYTES),
            "description": "A file.",
        },
        **error_responses(401, 403, 404, 422, 429, 503),
    },
)
async def export(
    request: Request,
    stream: str,
    what: Annotated[str, Query(pattern="^(items|workers)$")] = "items",
    format: Annotated[str, Query(pattern="^(csv|jsonl|parquet)$")] = "csv",
) -> StreamingResponse:
    """Download all answers, or all workers with their skills, as a file."""
    service, known = service_of(request), known_stream(request).stream
    kind: Written = format  # type: ignore[assignment]  # it is one of them
    if kind == "parquet":
        try:
            require_pyarrow("pyarrow")
        except LabelQuorumError as error:
            raise ApiError(422, str(error)) from error
    if what == "items":
        write: Callable[[IO[bytes]], None] = partial(_items, known, kind)
    else:
        table = await service.worker_table(known)
        write = partial(_workers, service, known, table, kind)
    return _Download(
        _downloaded(partial(service.exports.run, known.ref.key), write),
        media_type=_TYPES[kind],
        headers={"Content-Disposition": f'attachment; filename="{what}.{kind}"'},
    )


class _Download(StreamingResponse):
    """A file on its way to its reader; writing it ends with the response, however that ends."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self.body_iterator.aclose()  # type: ignore[attr-defined]


def _items(stream: Stream, kind: Written, file: IO[bytes]) -> None:
    with exported(stream, "answers", typed=kind == "parquet") as found:
        write_rows(found.rows, found.columns, file, kind)


def _workers(
    service: Service, stream: Stream, table: WorkerTable, kind: Written, file: IO[bytes]
) -> None:
    with exported(stream, "workers", typed=kind == "parquet") as found:
        columns = {name: set(types) for name, types in found.columns.items()}
    columns |= {"skill": {float}, "low": {float}, "high": {float}, "flags": {str}}
    roles = [role for role in ATTRIBUTES if role in columns]
    write_rows(_worker_rows(service, stream, table, roles), columns, file, kind)


def _worker_rows(
    service: Service, stream: Stream, table: WorkerTable, roles: Sequence[str]
) -> Iterator[dict[str, Any]]:
    after, ask = -1, partial(service.ask, stream, stream.workers, kind="export")
    while found := from_thread.run(ask, after, WORKERS_PER_READ, None, False):
        for one in found:
            known = table.by_place.get(one["place"], {"flags": []})
            names = ("worker", "labels", "agreed", "skill", "low", "high")
            row = {name: one[name] for name in names} | {role: one.get(role) for role in roles}
            yield row | {"flags": " ".join(flag["flag"] for flag in known["flags"])}
        after = found[-1]["place"]


class _Growing:
    """A file that one thread writes while it is read from its beginning."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._turn = file, threading.Lock()
        self.size = 0
        self.stopped = False

    def write(self, data: bytes) -> int:
        """Add to its end."""
        if self.stopped:
            raise StateError("The client of this download is gone.")
        with self._turn:
            self._file.seek(self.size)
            self._file.write(data)
            self.size += len(data)
        return len(data)

    def read(self, start: int) -> bytes:
        """Some of it, from here on."""
        with self._turn:
            self._file.seek(start)
            return self._file.read(min(PIECE_BYTES, self.size - start))

    def flush(self) -> None:
        """It is read through the same handle."""

    def tell(self) -> int:
        """Where it ends."""
        return self.size

    @property
    def closed(self) -> bool:
        """Parquet asks for it."""
        return False


async def _downloaded(
    in_turn: Callable[..., Coroutine[Any, Any, None]], write: Callable[[Any], None]
) -> AsyncGenerator[bytes]:
    """What a function writes in its turn, as it is written."""
    with tempfile.TemporaryFile(prefix="labelquorum-") as file:
        growing, sent = _Growing(file), 0
        work = partial(to_thread.run_sync, write, growing, limiter=CapacityLimiter(1))
        writing = asyncio.ensure_future(in_turn(work))
        try:
            while not writing.done() or sent < growing.size:
                if sent < growing.size:
                    piece = await to_thread.run_sync(growing.read, sent)
                    sent += len(piece)
                    yield piece
                else:
                    await asyncio.wait([writing], timeout=0.02)
            await writing  # an error cuts the answer short, which its reader sees
        finally:
            growing.stopped = True
            if not writing.done():
                await asyncio.wait([writing])
            if not writing.cancelled():
                writing.exception()
