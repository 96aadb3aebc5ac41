"""Streams: created, listed, configured; their chunks, their model, their events."""

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from labelquorum.ingest.validate import fault_of_new_name
from labelquorum.server.auth import Guarded
from labelquorum.server.cache import as_json, json_response
from labelquorum.server.context import Service, cached_body, known_stream, service_of
from labelquorum.server.errors import ApiError, error_responses
from labelquorum.server.request_parsing import Cursor, Limit, after_cursor, cursor_of, read_shape
from labelquorum.server.schemas import (
    ChunkPage,
    Gone,
    NewStream,
    StreamChange,
    StreamShape,
    StreamsShape,
    chunk_body,
    json_body,
)
from labelquorum.server.sse import EventStreamResponse
from labelquorum.store.queries import all_counts
from labelquorum.store.rules import Rules
from labelquorum.store.stream import Stream

router = APIRouter(route_class=Guarded)
MAX_CLASSES = 1000
MAX_EVENT = 2**62  # an id of the database is below 2**63
_NOT_SETTINGS = ("self", "name", "method", "rules")


@router.get(
    "/v1/streams",
    response_model=StreamsShape,
    response_model_exclude_unset=True,
    responses=error_responses(401, 403, 422, 429, 503),
)
async def list_streams(
    request: Request,
    full: Annotated[
        bool, Query(description="With what each holds, and how fast it grows.")
    ] = False,
) -> Any:
    """The streams that the key may read."""
    service, only = service_of(request), request.scope["key"].stream_key
    if not full:
        names = await run_in_threadpool(service.store.streams)
        found = [(name, service.find(name)) for name in names]
        mine = [name for name, one in found if only is None or (one and one.stream.ref.key == only)]
        return {"streams": mine}

    async def make() -> bytes:
        found = await run_in_threadpool(all_counts, service.store, only)
        details = [{**one, **_pace(service, key)} for key, one in found.items()]
        return as_json({"streams": [one["name"] for one in details], "details": details})

    return json_response(*await cached_body(request, None, ("streams", only), make))


def _pace(service: Service, key: int) -> dict[str, Any]:
    return {
        "chunks_behind": service.write_queue.loop.behind(key),
        "labels_per_second": service.throughput.labels_per_second(key),
        "spark": service.throughput.spark(key),
    }


@router.post(
    "/v1/streams",
    status_code=201,
    response_model=StreamShape,
    responses=error_responses(401, 403, 408, 409, 413, 415, 422, 429, 503, 507),
    openapi_extra={"requestBody": json_body(NewStream)},
)
async def create_stream(request: Request) -> dict[str, Any]:
    """Make a stream."""
    service = service_of(request)
    wanted = await read_shape(request, service_of(request).bodies, NewStream)
    made = await service.change(_create, service, wanted)
    service.discard(None)
    return made


@router.get(
    "/v1/streams/{stream}",
    response_model=StreamShape,
    responses=error_responses(401, 403, 404, 422, 429, 503),
)
def read_stream(request: Request, stream: str) -> dict[str, Any]:
    """One stream: what it learns by, when it cuts, what it holds."""
    return _body(known_stream(request).stream)


@router.patch(
    "/v1/streams/{stream}",
    response_model=StreamShape,
    responses=error_responses(401, 403, 404, 408, 409, 413, 415, 422, 429, 503, 507),
    openapi_extra={"requestBody": json_body(StreamChange)},
)
async def change_rules(request: Request, stream: str) -> dict[str, Any]:
    """Change some of the rules from now on, or the stream's name."""
    known = known_stream(request)
    wanted = await read_shape(request, service_of(request).bodies, StreamChange)
    changes = wanted.model_dump(exclude_unset=True)
    name = changes.pop("name", None) or stream
    if name != stream:
        _check_name(name)
    if name != stream and not changes:
        return await _rename(service_of(request), known.stream, name)
    await service_of(request).write(known.stream, lambda: known.stream.change(**changes))
    service_of(request).log.write("rules", stream=stream, changes=changes)
    service_of(request).write_queue.loop.wake(known.stream.ref.key)
    service_of(request).hub.ring(known.stream.ref.key)
    if name != stream:
        return await _rename(service_of(request), known.stream, name)
    return await run_in_threadpool(_body, known.stream)


@router.delete(
    "/v1/streams/{stream}",
    response_model=Gone,
    responses=error_responses(401, 403, 404, 409, 422, 429, 503, 507),
)
async def delete_stream(request: Request, stream: str) -> dict[str, int]:
    """Delete a stream with all it holds, for good; tells how many labels went."""
    service, known = service_of(request), known_stream(request).stream
    n_labels = await service.change(service.store.delete, known)
    service.drop(known)
    await run_in_threadpool(service.keyring.refresh)
    service.log.write("deleted", stream=stream)
    return {"gone": n_labels}


@router.get(
    "/v1/streams/{stream}/chunks",
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
        "chunks": [chunk_body(one) for one in page],
        "next": cursor_of(page[-1]["id"]) if len(found) > limit else None,
    }


@router.get(
    "/v1/streams/{stream}/model",
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
    file, age = await service_of(request).model_file(request, known_stream(request).stream)
    headers = {"Content-Disposition": 'attachment; filename="model.lq"'}
    headers |= {"Age": str(age)} if age else {}
    return Response(file, media_type="application/octet-stream", headers=headers)


@router.get(
    "/v1/streams/{stream}/events",
    response_class=StreamingResponse,
    responses={
        200: {
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
            "description": "Events until either side ends it.",
        },
        **error_responses(401, 403, 404, 422, 429, 503),
    },
)
async def follow_events(
    request: Request,
    stream: str,
    after: Annotated[int | None, Query(ge=0, le=MAX_EVENT)] = None,
    last_event_id: Annotated[
        int | None, Header(ge=0, le=MAX_EVENT, description="Go on after this event.")
    ] = None,
) -> StreamingResponse:
    """Follow what happens: chunks applied or quarantined, rules changed."""
    service, known = service_of(request), known_stream(request)
    key = request.scope["key"]
    start = last_event_id if last_event_id is not None else after

    def may_go_on() -> bool:
        return service.keyring.holds(key) and service.has(known.stream)

    return EventStreamResponse(service.hub, known.stream, start, may_go_on)


def _check_name(name: str) -> None:
    fault = fault_of_new_name(name)
    if fault or "/" in name or not name.strip(". "):
        raise ApiError(
            422,
            f"The name of a stream {fault or 'must be more than dots, and have no slash'}. "
            f"Got {name[:40]!r}. Choose another.",
        )


async def _rename(service: Service, stream: Stream, new: str) -> dict[str, Any]:
    renamed = await service.change(service.store.rename, stream, new)
    service.add(renamed)
    service.drop(stream)
    await run_in_threadpool(service.keyring.refresh)
    service.log.write("renamed", stream=stream.name, to=new)
    return await run_in_threadpool(_body, renamed)


def _create(service: Service, wanted: NewStream) -> dict[str, Any]:
    _check_name(wanted.name)
    for name in _NOT_SETTINGS:
        if name in wanted.settings:
            raise ApiError(422, f"`settings` has no {name!r}. Leave it out.")
    _check_classes(wanted.settings.get("classes"))
    rules = Rules().changed(**wanted.rules.model_dump(exclude_unset=True))
    with service.creating:
        if wanted.name in service.store.streams():
            raise ApiError(409, f"There is a stream {wanted.name!r} already. Choose another name.")
        stream = service.store.create(wanted.name, wanted.method, rules=rules, **wanted.settings)
        service.add(stream)
    service.log.write("created", stream=wanted.name)
    return _body(stream)


def _check_classes(classes: Any) -> None:
    if classes is None:
        return
    if not isinstance(classes, list) or len(classes) > MAX_CLASSES:
        raise ApiError(422, f"`classes` must be a list of at most {MAX_CLASSES} names.")
    for one in classes:
        fault = (
            fault_of_new_name(one) if isinstance(one, str | int | float) else "is no text or number"
        )
        if fault or (isinstance(one, str) and not one.strip()):
            raise ApiError(422, f"A class {fault or 'is empty'}. Got {str(one)[:40]!r}. Rename it.")


def _body(stream: Stream) -> dict[str, Any]:
    return {
        "name": stream.name,
        "method": stream.configuration.method,
        "settings": stream.settings,
        "rules": stream.rules.as_dict(),
        "classes": stream.classes(),
        "counts": stream.count(),
    }
