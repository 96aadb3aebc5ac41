"""What is parsed from a request: its body within limits, ids in its path, the cursor of a page.

How long a body may take is up to the connection (`uvicorn_server.py`).
"""

import asyncio
import base64
import binascii
import json
import tempfile
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import numpy as np
from anyio import CapacityLimiter, to_thread
from fastapi import Query, Request
from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from labelquorum.errors import LabelQuorumError, LimitError
from labelquorum.ingest.frames import collect, require_pyarrow
from labelquorum.ingest.labels import LabelSpace, LabelTable
from labelquorum.ingest.untrusted import MAX_ROWS, gunzip
from labelquorum.ingest.validate import checked, fault_of_name, unique_names
from labelquorum.server.config import Settings
from labelquorum.server.errors import RETRY_SECONDS, ApiError, sentence_of
from labelquorum.server.learner_process import LearnerProcess

Shape = TypeVar("Shape", bound=BaseModel)
Result = TypeVar("Result")

SMALL_BYTES = 2**16
"""Up to here a body is worked on at once; more goes to a thread, so that others need not wait."""

MAX_DEPTH = 64
"""Maximum number of levels of a large JSON body; those of Label Studio have ten."""

_WINDOW = 2**15

DECODE_SECONDS = 60.0
"""A Parquet file that takes longer is given up, and the subprocess killed."""

GZIP = b"\x1f\x8b"
"""So does a gzip file begin, and none of the formats."""


class BodyReader:
    """Reads bodies, and knows how much of them is in memory."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.held = 0  # bytes
        self._unpacking = asyncio.Lock()

    @asynccontextmanager
    async def alone(self, packed: bytes) -> AsyncIterator[None]:
        """Unpack one large body at a time: its size is unknown before."""
        if len(packed) <= SMALL_BYTES:
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
            raise ApiError(
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
                raise ApiError(400, "The connection ended before the body did.") from None
            if not request.app.state.service.keyring.holds(request.scope["key"]):
                raise ApiError(
                    401, "The key was revoked while the body came. Nothing was accepted."
                )
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            parts.clear()
            if packing == b"identity" and body.startswith(GZIP):
                raise ApiError(
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
            raise ApiError(
                503,
                "Too many large bodies are being read at the moment. Retry in a second.",
                headers={"Retry-After": str(RETRY_SECONDS)},
            )

    def _refuse_large(self) -> NoReturn:
        raise ApiError(
            413,
            f"A body may have {self._settings.body_bytes:,} bytes at most. Send it in parts.",
            headers={"Connection": "close"},
        )


class ParquetReader:
    """Reads Parquet bodies, one at a time, in a subprocess that the first one starts."""

    def __init__(self) -> None:
        self._process = LearnerProcess("parquet", is_watched=False)
        self._process.timeout = DECODE_SECONDS
        self._turn = asyncio.Lock()

    async def read(self, body: bytes, space: LabelSpace) -> LabelTable:
        """The labels of a file."""
        async with self._turn:
            return await run_in_threadpool(self._read, body, space)

    def _read(self, body: bytes, space: LabelSpace) -> LabelTable:
        pyarrow = require_pyarrow("pyarrow")
        with tempfile.TemporaryDirectory(prefix="labelquorum-") as folder:
            source, target = Path(folder, "body"), Path(folder, "table")
            source.write_bytes(body)
            try:
                self._process.call("decode", str(source), str(target))
            except LabelQuorumError:
                raise
            except RuntimeError as error:  # the subprocess has died; there will be another
                raise ApiError(
                    503,
                    f"The file could not be decoded ({error}). Retry in a second.",
                    headers={"Retry-After": str(RETRY_SECONDS)},
                ) from error
            with pyarrow.memory_map(str(target)) as file:
                return checked(collect(pyarrow.ipc.open_stream(file).read_all(), "body"), space)

    def close(self) -> None:
        """End the subprocess."""
        self._process.close()


async def parse_json(body: bytes, read: Callable[[Any], Result] = lambda said: said) -> Result:
    """Parse a JSON body, and read what it holds; what is no JSON of ours is refused.

    Parameters
    ----------
    body
        What was sent.
    read
        Makes something of it. A large body is parsed and read in a thread, one at a time: it takes
        several times its size until it is read.
    """
    if len(body) <= SMALL_BYTES:
        return read(_parse(body, _DECODER))
    return await to_thread.run_sync(lambda: read(_parse_large(body)), limiter=_parsing)


_parsing = CapacityLimiter(1)


def _parse_large(body: bytes) -> Any:
    # Each of these makes an object that takes far more room than its text.
    if body.count(b"{") > 2 * MAX_ROWS or body.count(b"[") > 2 * MAX_ROWS:
        raise too_many_labels()
    if body.count(b",") > 16 * MAX_ROWS:
        raise too_many_labels()
    refuse_long_texts(body, b'"')
    most_names, depth = measure_json(body)
    if depth > MAX_DEPTH:
        raise ApiError(422, f"The body is nested deeper than {MAX_DEPTH} levels. Make it flat.")
    if most_names > MAX_ROWS:
        raise LimitError(
            f"A JSON object has at most {MAX_ROWS:,} names here. Got {most_names:,}. Send labels "
            "as a list of rows."
        )
    shapes: set[tuple[str, ...]] = set()
    n_names = 0

    def count_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        # Names that are alike are held once; as many that differ take long to parse.
        nonlocal n_names
        found = unique_names(pairs)
        shape = tuple(found)
        if shape not in shapes:
            shapes.add(shape)
            n_names += len(shape)
            if n_names > 2 * MAX_ROWS:
                raise LimitError(
                    f"The objects of a body have at most {2 * MAX_ROWS:,} different names here. "
                    "Send labels as rows with the same names."
                )
        return found

    return _parse(body, _decoder(count_names))


def measure_json(body: bytes) -> tuple[int, int]:
    """How many names the largest object of a JSON body has, and how deep it is nested.

    NumPy reads it without holding the interpreter, which a parser holds until it has finished.

    Examples
    --------
    >>> measure_json(b'{"a": [{"b": 1, "c": "x:{"}, {"d": 2}]}')
    (2, 3)
    """
    if b"\\" in body:  # so that every quote is the beginning or the end of a text
        body = body.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    codes, inside, parts = np.frombuffer(body, np.uint8), 0, []
    for start in range(0, len(codes), _MEASURED_BYTES):
        part = codes[start : start + _MEASURED_BYTES]
        quotes = np.cumsum(part == ord('"'), dtype=np.int32) + inside
        inside = int(quotes[-1]) & 1
        parts.append(part[(quotes & 1 == 0) & _MARKS[part]])
    marks = np.concatenate(parts)
    depths = np.cumsum(_STEPS[marks], dtype=np.int32)  # after a mark
    depth = int(depths.max(initial=0))
    most = 0
    for level in range(1, min(depth, MAX_DEPTH) + 1):
        here = marks[depths == level]
        objects = np.cumsum((here == ord("{")) | (here == ord("[")))
        most = max(most, int(np.bincount(objects[here == ord(":")], minlength=1).max()))
    return most, depth


_MEASURED_BYTES = 2**20  # at a time
_STEPS = np.zeros(256, np.int8)
_STEPS[[ord("{"), ord("[")]], _STEPS[[ord("}"), ord("]")]] = 1, -1
_MARKS = _STEPS != 0
_MARKS[ord(":")] = True


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
            raise ApiError(
                422, f"The body has a text of more than {_WINDOW:,} bytes. No name is that long."
            )


def _parse(body: bytes, decoder: json.JSONDecoder) -> Any:
    try:
        return decoder.decode(body.decode("utf-8-sig"))
    except RecursionError:
        reason = "it is nested too deep"
    except ValueError as error:
        reason = str(error)
    raise ApiError(422, f"The body is not JSON: {reason}. Correct it.")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number that JSON knows")


def _decoder(of_object: Callable[[list[tuple[str, Any]]], Any]) -> json.JSONDecoder:
    return json.JSONDecoder(object_pairs_hook=of_object, parse_constant=_refuse_constant)


_DECODER = _decoder(unique_names)


def too_many_labels() -> LimitError:
    """The error of a body with too many labels."""
    return LimitError(f"At most {MAX_ROWS:,} labels are taken at once. Send them in parts.")


async def read_shape(request: Request, bodies: BodyReader, shape: type[Shape]) -> Shape:
    """The JSON body of a request, validated."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip()
    if kind.lower() != "application/json":
        raise ApiError(415, f"The body must be application/json. Got {kind[:40]!r}.")
    async with bodies.of(request) as body:
        said: Any = await parse_json(body)
    try:
        return shape.model_validate(said, strict=True)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False)
        raise ApiError(422, *(sentence_of(one, "body") for one in faults[:20])) from None


# ── ids and cursors ──────────────────────────────────────────────────────────────────────


def spellings(segment: str, what: str) -> list[Hashable]:
    """What a part of an address may name: the text, then the number it reads as.

    Parameters
    ----------
    segment
        As it was in the address.
    what
        Its name in errors.

    Examples
    --------
    >>> spellings("7", "task"), spellings("owl", "task")
    (['7', 7], ['owl'])
    """
    if not segment.strip() or "\ufffd" in segment:
        raise ApiError(422, f"The address has no {what} in it, or one that is not UTF-8.")
    fault = fault_of_name(segment)
    if fault is not None:
        raise ApiError(422, f"The {what} in the address {fault}. No {what} is called so.")
    found: list[Hashable] = [segment]
    if segment[0] in "-0123456789":
        try:
            number = json.loads(segment, parse_constant=float)
        except ValueError:
            return found
        if isinstance(number, float) and number.is_integer():
            number = int(number)
        if number == number and fault_of_name(number) is None:
            found.append(number)
    return found


def cursor_of(place: Any) -> str:
    """Where a page ended, as a cursor."""
    text = json.dumps(place, ensure_ascii=False)
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def after_cursor(cursor: str | None, kind: type | tuple[type, ...]) -> Any:
    """Where the page before ended; None where there was none."""
    if cursor is None:
        return None
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        place = json.loads(base64.b64decode(padded, b"-_", validate=True))
        if isinstance(place, kind) and _is_place(place) and (kind is not int or _fits(place)):
            return place
    except (binascii.Error, ValueError, RecursionError):
        pass
    raise ApiError(
        422, f"`cursor` must be the `next` of the page before. Got {cursor[:40]!r}. Leave it out."
    )


def _is_place(place: Any) -> bool:
    """Tell whether a page can have ended there: at an id, or at a number and an id."""
    if isinstance(place, list):
        if len(place) != 2 or not isinstance(place[0], int | float) or not _fits(place[0]):
            return False
        place = place[1]
    return isinstance(place, str | int | float) and not (
        isinstance(place, bool) or fault_of_name(place)
    )


def _fits(number: Any) -> bool:
    """Tell whether a column of a database can hold a number."""
    return not isinstance(number, bool) and abs(number) < 2**63 and isfinite(number)


Cursor = Annotated[str | None, Query(max_length=1024, description="The `next` of the page before.")]
Limit = Annotated[int, Query(ge=1, le=1000)]
Search = Annotated[str | None, Query(max_length=256, description="A part of the id.")]
