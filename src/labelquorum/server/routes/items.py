"""Items: their answers and why, which are pending, which to ask about next."""

import io
from collections.abc import Hashable
from typing import Annotated, Any, NoReturn

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from labelquorum.ingest.writers import write_rows
from labelquorum.learn.reports import CHOSEN_GOLD
from labelquorum.server.auth import Guarded
from labelquorum.server.cache import as_json, json_response
from labelquorum.server.context import cached_body, known_stream, service_of
from labelquorum.server.errors import ApiError, error_responses
from labelquorum.server.request_parsing import (
    Cursor,
    Limit,
    Search,
    after_cursor,
    cursor_of,
    spellings,
)
from labelquorum.server.schemas import (
    AskList,
    ItemPage,
    ItemShape,
    PendingList,
    item_body,
)
from labelquorum.store.queries import Answer, Undecided
from labelquorum.store.search import Found, find_items, find_undecided
from labelquorum.store.stream import Stream

router = APIRouter(route_class=Guarded)
STREAM = "/v1/streams/{stream}"
ASK_COLUMNS = (
    *("task", "label", "confidence", "labels", "gain", "worker", "worker_gain", "open", "decides"),
)
IN_DOUBT = (
    "It is in doubt which answers are right, because workers err together: answers are votes with "
    "low confidence. First come the tasks whose true label, sent as gold, decides it. "
    f"{CHOSEN_GOLD}"
)
CLOSES = (
    "This stream closes a task with its answer (its rule `grace` is 0), so no gain is known. "
    "These wait for labels, or were answered with the least confidence."
)
NONE_OPEN = (
    "No answered task is open at the moment, so no gain is known. "
    "These wait for labels, or were answered with the least confidence."
)
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
        raise ApiError(
            422, "What is undecided has no label, confidence or chunk. Leave one of them out."
        )

    def look() -> bytes:
        if undecided:
            found = find_undecided(known, None if after is None else after[1], limit, search)
        else:
            meant = None if label is None else _class(known, label)
            found = find_items(known, sort, after, limit, search, meant, *below)
        return as_json(_page_body(found))

    async def make() -> bytes:
        looks_through = bool(search) or label is not None
        return await (service.search(known, look) if looks_through else run_in_threadpool(look))

    if undecided or cursor is not None:
        return json_response(await make())
    # The page that everybody sees first; all that changes an answer is an event.
    event = await run_in_threadpool(known.last_event)
    about = ("items", event, limit, search, sort, label, *below)
    return json_response(*await cached_body(request, known, about, make))


def _page_body(found: Found) -> dict[str, Any]:
    rest = found.next
    return {
        "items": [item_body(one) for one in found.items],
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
    raise ApiError(422, "`cursor` is of pages in another order. Begin with the first page.")


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
            reasons = await service_of(request).ask(known, _reasons, known, spelled, found)
            return item_body(found) | reasons
    raise ApiError(404, f"Stream {stream!r} has no task {task!r}. See its items.")


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
    return {"items": [{**item_body(given), "open": is_open} for given, is_open in found]}


@router.get(
    f"{STREAM}/ask",
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
        items, n_open = await service.ask(known, known.suggestions, limit)
        says = None
        if not items:
            items, says = await run_in_threadpool(_without_gain, known, limit)
        elif items[0]["decides"]:
            says = IN_DOUBT
        if format == "csv":
            return _csv(items)
        return as_json({"items": items, "open_items": n_open, "says": says})

    body, age = await cached_body(request, known, ("ask", limit, format), make)
    if format == "json":
        return json_response(body, age)
    headers = {"Content-Disposition": 'attachment; filename="ask-next.csv"'}
    return Response(body, media_type="text/csv", headers=headers)


def _without_gain(stream: Stream, limit: int) -> tuple[list[dict[str, Any]], str]:
    """Items that wait for labels, then those of which we are least sure; and why."""
    nothing = {"gain": None, "worker": None, "worker_gain": None, "decides": False}
    waiting = find_undecided(stream, limit=limit).items
    rows = [{**item_body(one), **nothing, "open": True} for one in waiting]
    doubted = stream.pending(limit=limit - len(rows)) if len(rows) < limit else []
    rows += [{**item_body(one), **nothing, "open": is_open} for one, is_open in doubted]
    rows = [{name: one[name] for name in ASK_COLUMNS} for one in rows]
    return rows, CLOSES if stream.rules.grace == 0 else NONE_OPEN


def _csv(items: list[dict[str, Any]]) -> bytes:
    file = io.BytesIO()
    write_rows(items, {name: set() for name in ASK_COLUMNS}, file, "csv")
    return file.getvalue()


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
