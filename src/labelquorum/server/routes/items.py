"""Answers out: items, why they are what they are, what is pending, chunks, the model."""

from collections.abc import Hashable
from typing import Annotated, Any, NoReturn

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from labelquorum.server.auth import Guarded
from labelquorum.server.cache import as_json, json_response
from labelquorum.server.context import cached_body, known_stream, service_of
from labelquorum.server.errors import Refusal, error_responses
from labelquorum.server.paging import Cursor, Limit, Search, after_cursor, cursor_of, spellings
from labelquorum.server.schemas import (
    ChunkPage,
    ItemPage,
    ItemShape,
    PendingList,
    told_chunk,
    told_item,
)
from labelquorum.store.queries import Answer, Undecided
from labelquorum.store.search import Found, find_items, find_undecided
from labelquorum.store.stream import Stream

__all__ = ["router"]

router = APIRouter(route_class=Guarded)
STREAM = "/v1/streams/{stream}"
Share = Annotated[float | None, Query(ge=0, le=1)]


@router.get(
    f"{STREAM}/items",
    response_model=ItemPage,
    response_model_exclude_unset=True,
    responses=error_responses(401, 403, 404, 422, 429, 503),
)
async def list_items(
    request: Request,
    stream: str,
    cursor: Cursor = None,
    limit: Limit = 100,
    undecided: Annotated[bool, Query(description="Those with labels and no answer yet.")] = False,
    confidence_below: Share = None,
    changed_since: Annotated[
        int | None, Query(ge=0, le=2**62, description="The number of a chunk.")
    ] = None,
    search: Search = None,
    sort: Annotated[str, Query(pattern="^(task|confidence|-confidence|newest)$")] = "task",
    label: Annotated[
        str | None, Query(max_length=256, description="Those with this answer.")
    ] = None,
) -> Response:
    """Items by page, in the order of their ids as text, or another."""
    service, known = service_of(request), known_stream(request).stream
    after = _after(cursor, sort)
    below = (confidence_below, changed_since)
    if undecided and (label is not None or any(limit is not None for limit in below)):
        raise Refusal(
            422, "What is undecided has no label, confidence or chunk. Leave one of them out."
        )

    def look() -> bytes:
        if undecided:
            found = find_undecided(known, None if after is None else after[1], limit, search)
        else:
            meant = None if label is None else _class(known, label)
            found = find_items(known, sort, after, limit, search, meant, *below)
        return as_json(_told_page(found))

    async def make() -> bytes:
        looks_through = bool(search) or label is not None
        return await (service.search(look) if looks_through else run_in_threadpool(look))

    if undecided or cursor is not None:
        return json_response(await make())
    # The page that everybody sees first; all that changes an answer is an event.
    event = await run_in_threadpool(known.last_event)
    about = ("items", event, limit, search, sort, label, *below)
    return json_response(*await cached_body(request, known.name, about, make))


def _told_page(found: Found) -> dict[str, Any]:
    rest = found.next
    return {
        "items": [told_item(one) for one in found.items],
        "next": None if rest is None else cursor_of(rest[1] if rest[0] is None else list(rest)),
        "total": found.total,
    }


def _after(cursor: str | None, sort: str) -> tuple[float | None, Hashable] | None:
    """Where the page before ended: by its id, or by what it is sorted by and its id."""
    place = after_cursor(cursor, (str, int, float, list))
    if place is None:
        return None
    if not isinstance(place, list):
        return (None, place) if sort == "task" else _refuse_cursor()
    return (place[0], place[1]) if sort != "task" else _refuse_cursor()


def _refuse_cursor() -> NoReturn:
    raise Refusal(422, "`cursor` is of pages in another order. Begin with the first page.")


def _class(stream: Stream, label: str) -> Hashable:
    """The class that is meant: the text, or else the number it reads as."""
    classes = stream.classes()
    for spelled in spellings(label, "label"):
        if spelled in classes:
            return spelled
    return label


@router.get(
    f"{STREAM}/items/{{task:path}}",
    response_model=ItemShape,
    responses=error_responses(401, 403, 404, 422, 429, 503),
)
async def read_item(request: Request, stream: str, task: str) -> dict[str, Any]:
    """One item: its answer, how sure, and why, as long as its labels are held."""
    known = known_stream(request).stream
    for spelled in spellings(task, "task"):
        found = await run_in_threadpool(known.item, spelled)
        if found is not None:
            reasons = await service_of(request).ask(_reasons, known, spelled, found)
            return told_item(found) | reasons
    raise Refusal(404, f"Stream {stream!r} has no task {task!r}. See its items.")


@router.get(
    f"{STREAM}/pending",
    response_model=PendingList,
    responses=error_responses(401, 403, 404, 422, 429, 503),
)
def list_pending(
    request: Request,
    stream: str,
    threshold: Annotated[float, Query(ge=0, le=1)] = 0.95,
    limit: Limit = 100,
) -> dict[str, Any]:
    """Items of which we are less sure than the threshold, the least sure first."""
    found = known_stream(request).stream.pending(threshold, limit)
    return {"items": [{**told_item(given), "open": is_open} for given, is_open in found]}


@router.get(
    f"{STREAM}/chunks",
    response_model=ChunkPage,
    responses=error_responses(401, 403, 404, 422, 429, 503),
)
def list_chunks(
    request: Request, stream: str, cursor: Cursor = None, limit: Limit = 100
) -> dict[str, Any]:
    """Chunks that were cut, by number, and what became of each."""
    known = known_stream(request).stream
    after = after_cursor(cursor, int)
    found = known.chunks(after or 0, limit + 1)
    page = found[:limit]
    return {
        "chunks": [told_chunk(one) for one in page],
        "next": cursor_of(page[-1]["id"]) if len(found) > limit else None,
    }


@router.get(
    f"{STREAM}/model",
    response_class=Response,
    responses={
        200: {
            "content": {
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}
            },
            "description": "A file that labelquorum.load reads.",
        },
        **error_responses(401, 403, 404, 422, 429, 503),
    },
)
async def read_model(request: Request, stream: str) -> Response:
    """The whole model as a file."""
    file = await service_of(request).ask(known_stream(request).stream.model_file)
    headers = {"Content-Disposition": 'attachment; filename="model.lq"'}
    return Response(file, media_type="application/octet-stream", headers=headers)


def _reasons(stream: Stream, task: Hashable, found: Answer | Undecided) -> dict[str, Any]:
    if isinstance(found, Undecided):
        return {"probabilities": None, "open": True, "why": None, "gain": None}
    why, gain = stream.reasons(task)
    probs = [float(p) for p in found.probs]
    names = [str(label) for label in stream.classes()][: len(probs)]
    return {
        "probabilities": dict(zip(names, probs, strict=True)),
        "open": why is not None,
        "why": why,
        "gain": gain,
    }
