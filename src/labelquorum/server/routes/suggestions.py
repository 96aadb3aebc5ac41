"""What to ask next: items by what one more label would likely do, and whom to ask."""

import io
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from labelquorum.ingest.writers import write_rows
from labelquorum.server.auth import Guarded
from labelquorum.server.cache import as_json, json_response
from labelquorum.server.context import cached_body, known_stream, service_of
from labelquorum.server.errors import error_responses
from labelquorum.server.overview_schemas import AskList
from labelquorum.server.paging import Limit
from labelquorum.server.schemas import told_item
from labelquorum.store.search import find_undecided
from labelquorum.store.stream import Stream

__all__ = ["router"]

router = APIRouter(route_class=Guarded)
COLUMNS = ("task", "label", "confidence", "labels", "gain", "worker", "worker_gain", "open")
CLOSES = (
    "This stream closes a task with its answer (its rule `grace` is 0), so no gain can be told. "
    "These wait for labels, or were answered with the least confidence."
)
NONE_OPEN = (
    "No answered task is open at the moment, so no gain can be told. "
    "These wait for labels, or were answered with the least confidence."
)


@router.get(
    "/v1/streams/{stream}/ask",
    response_model=AskList,
    responses={
        200: {
            "content": {"text/csv": {"schema": {"type": "string"}}},
            "description": "As JSON, or as a file of CSV.",
        },
        **error_responses(401, 403, 404, 422, 429, 503),
    },
)
async def list_wanted(
    request: Request,
    stream: str,
    limit: Limit = 100,
    format: Annotated[str, Query(pattern="^(json|csv)$")] = "json",
) -> Response:
    """What to ask next: open items by what one more label would likely do, and of whom."""
    service, known = service_of(request), known_stream(request).stream

    async def make() -> bytes:
        items, n_open = await service.ask(known.wanted, limit)
        says = None
        if not items:
            items, says = await run_in_threadpool(_without_gain, known, limit)
        if format == "csv":
            return _csv(items)
        return as_json({"items": items, "open_items": n_open, "says": says})

    body, age = await cached_body(request, known.name, ("ask", limit, format), make)
    if format == "json":
        return json_response(body, age)
    headers = {"Content-Disposition": 'attachment; filename="ask-next.csv"'}
    return Response(body, media_type="text/csv", headers=headers)


def _without_gain(stream: Stream, limit: int) -> tuple[list[dict[str, Any]], str]:
    """Items that wait for labels, then those of which we are least sure; and why."""
    nothing = {"gain": None, "worker": None, "worker_gain": None}
    waiting = find_undecided(stream, limit=limit).items
    told = [{**told_item(one), **nothing, "open": True} for one in waiting]
    doubted = stream.pending(limit=limit - len(told)) if len(told) < limit else []
    told += [{**told_item(one), **nothing, "open": is_open} for one, is_open in doubted]
    told = [{name: one[name] for name in COLUMNS} for one in told]
    return told, NONE_OPEN if stream.rules.grace else CLOSES


def _csv(items: list[dict[str, Any]]) -> bytes:
    file = io.BytesIO()
    write_rows(items, {name: set() for name in COLUMNS}, file, "csv")
    return file.getvalue()
