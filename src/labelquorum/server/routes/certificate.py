"""How far answers can be trusted: the expected error, and a certificate by gold drawn at random."""

import io
from dataclasses import asdict, replace
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from labelquorum.ingest.writers import write_rows
from labelquorum.server.auth import Guarded
from labelquorum.server.cache import as_json, json_response
from labelquorum.server.context import cached_body, known_stream, service_of
from labelquorum.server.errors import ApiError, error_responses
from labelquorum.server.request_parsing import Limit
from labelquorum.server.schemas import CertificateShape, ExpectedErrorShape
from labelquorum.store.stream import Stream

router = APIRouter(route_class=Guarded)
STREAM = "/v1/streams/{stream}"
Share = Annotated[float, Query(gt=0, lt=1)]


@router.get(
    f"{STREAM}/expected_error",
    response_model=ExpectedErrorShape,
    responses=error_responses(401, 403, 404, 409, 422, 429, 503),
)
async def read_expected_error(request: Request, stream: str, level: Share = 0.95) -> Response:
    """The expected share of wrong answers, corrected on gold where there is some."""
    service, known = service_of(request), known_stream(request).stream

    def look() -> bytes:
        found = known.expected_error(level)
        if found is None:
            raise ApiError(409, f"Stream {stream!r} has answered nothing yet. Send labels first.")
        return as_json(asdict(found) | {"says": str(found)})

    async def make() -> bytes:
        return await service.search(known, look)

    about = ("expected_error", level)
    return json_response(*await cached_body(request, known, about, make))


@router.get(
    f"{STREAM}/certificate",
    response_model=CertificateShape,
    responses={
        200: {
            "content": {"text/csv": {"schema": {"type": "string"}}},
            "description": "As JSON, or the whole `todo` as a file of CSV.",
        },
        **error_responses(401, 403, 404, 422, 429, 503),
    },
)
async def read_certificate(
    request: Request,
    stream: str,
    error: Annotated[
        float, Query(gt=0, lt=1, description="The share of wrong labels allowed.")
    ] = 0.02,
    confidence: Share = 0.95,
    limit: Limit = 100,
    format: Annotated[str, Query(pattern="^(json|csv)$")] = "json",
) -> Response:
    """Which answers may stand, by gold drawn at random, and which tasks a person must still see."""
    service, known = service_of(request), known_stream(request).stream

    def look() -> bytes:
        return _body(known, error, confidence, limit, format)

    async def make() -> bytes:
        return await service.search(known, look)

    if format == "csv":  # not cached: the list may be as long as the stream
        headers = {"Content-Disposition": 'attachment; filename="todo.csv"'}
        return Response(await make(), media_type="text/csv", headers=headers)
    about = ("certificate", error, confidence, limit)
    return json_response(*await cached_body(request, known, about, make))


def _body(stream: Stream, error: float, confidence: float, limit: int, format: str) -> bytes:
    found = stream.certificate(error, confidence)
    if format == "csv":
        file = io.BytesIO()
        write_rows(({"task": task} for task in found.todo), {"task": set()}, file, "csv")
        return file.getvalue()
    shown: dict[str, Any] = asdict(replace(found, todo=found.todo[:limit])) | {
        "todo_tasks": len(found.todo),
        "says": str(found),
    }
    return as_json(shown)
