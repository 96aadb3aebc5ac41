"""Labels in: sent, taken back, or known to be true."""

import json
from collections.abc import Callable, Hashable, Iterator, Mapping
from io import BytesIO
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from labelquorum.errors import LabelError, LimitError
from labelquorum.ingest.label_studio import KEY_PREFIX
from labelquorum.ingest.labels import LabelSpace, LabelTable
from labelquorum.ingest.readers import iter_csv, iter_jsonl
from labelquorum.ingest.records import read_records
from labelquorum.ingest.untrusted import MAX_ROWS, MAX_TRUTHS
from labelquorum.ingest.validate import check_names
from labelquorum.server.auth import Guarded, bare
from labelquorum.server.context import known_stream, service_of
from labelquorum.server.errors import ApiError, error_responses
from labelquorum.server.request_parsing import (
    parse_json,
    refuse_long_texts,
    spellings,
    too_many_labels,
)
from labelquorum.server.schemas import Gone, ReceiptShape, Told, gold_body, labels_body
from labelquorum.store.batch import Batch, batch_of

router = APIRouter(route_class=Guarded)
STREAM = "/v1/streams/{stream}"
NAME = {"type": "string", "minLength": 1, "maxLength": 256}
MAX_INLINE_LABELS = 500
"""More labels are processed in a thread, so that other requests need not wait."""

_KEY = b"idempotency-key"
_PARAMETERS: list[dict[str, Any]] = [
    {"name": "stream", "in": "path", "required": True, "schema": NAME},
    {
        "name": "on_bad",
        "in": "query",
        "required": False,
        "description": "Refuse everything for one bad row, or skip and count it.",
        "schema": {"enum": ["error", "skip"], "default": "error"},
    },
    {
        "name": "Idempotency-Key",
        "in": "header",
        "required": False,
        "description": "Your own name for this very body. Sent again, it counts once.",
        "schema": NAME,
    },
]


@router.post(
    f"{STREAM}/labels",
    response_model=ReceiptShape,
    responses=error_responses(401, 403, 404, 408, 409, 413, 415, 422, 429, 503, 507),
    openapi_extra={"requestBody": labels_body, "parameters": _PARAMETERS},
)
@bare
async def send_labels(request: Request) -> Response:
    """Send labels: one, a list, or a file. They are durable once this is answered."""
    service, known = service_of(request), known_stream(request)
    headers = request.scope["headers_by_name"]
    on_bad = "error"
    if request.scope["query_string"]:
        on_bad = request.query_params.get("on_bad", "error")
    space = known.spaces.get(on_bad)
    if space is None:
        raise ApiError(422, f"`on_bad` must be error or skip. Got {on_bad[:40]!r}.")
    kind = _kind_of(headers.get(b"content-type"))
    async with service.bodies.of(request) as body:
        if kind == _JSON:
            table = await parse_json(body, lambda said: _from_json(said, space))
        elif kind in _READERS:
            table = await run_in_threadpool(_READERS[kind], body, space)
        elif kind == _PARQUET:
            table = await service.parquet.read(body, space)
        else:
            kinds = [_JSON, *_READERS, _PARQUET]
            raise ApiError(415, f"Labels are read from {kinds}. Got {kind[:40]!r}. Send one.")
        key = _key_of(headers.get(_KEY))
        if len(table.labels) > MAX_INLINE_LABELS:
            batch = await run_in_threadpool(_batch, table, space, key)
        else:
            batch = _batch(table, space, key)
    receipt = await service.write_queue.accept(known.stream, batch)
    service.metrics.count_labels(known.stream.name, receipt)
    return Response(
        json.dumps(
            {
                "accepted": receipt.accepted,
                "late": receipt.late,
                "reason": receipt.reason,
                "skipped": dict(receipt.skipped),
                "repeated": receipt.repeated,
            }
        ),
        media_type="application/json",
    )


@router.delete(
    f"{STREAM}/labels",
    response_model=Gone,
    responses=error_responses(401, 403, 404, 422, 429, 503, 507),
)
async def retract_labels(
    request: Request,
    stream: str,
    task: Annotated[str, Query(min_length=1, max_length=256)],
    worker: Annotated[str, Query(min_length=1, max_length=256)],
) -> dict[str, int]:
    """Take back a worker's label of a task that is not cut yet."""
    known = known_stream(request).stream
    for one in spellings(task, "task"):
        for other in spellings(worker, "worker"):
            try:
                retracted = service_of(request).write(known, known.retract, one, other)
                return {"gone": await retracted}
            except LabelError as error:
                reason = str(error)
    raise ApiError(404, reason)


@router.post(
    f"{STREAM}/gold",
    response_model=Told,
    responses=error_responses(401, 403, 404, 408, 409, 413, 415, 422, 429, 503, 507),
    openapi_extra={"requestBody": gold_body, "parameters": [_PARAMETERS[-1]]},
)
async def tell_gold(request: Request, stream: str) -> dict[str, Any]:
    """Tell true labels, which then count: `{"task": "label"}`, or rows of task and label."""
    service, known = service_of(request), known_stream(request)
    async with service.bodies.of(request) as body:
        truths = await parse_json(body, lambda said: _truths(said, known.spaces["error"]))
    key = _key_of(request.scope["headers_by_name"].get(_KEY))
    receipt = await service.write(known.stream, known.stream.gold, truths, key)
    service.write_queue.loop.wake(known.stream.ref.key)
    service.hub.ring(known.stream.ref.key)
    return {"told": len(truths), "late": receipt.late, "repeated": receipt.repeated}


# ── bodies ───────────────────────────────────────────────────────────────────────────────────


def _from_json(said: Any, space: LabelSpace) -> LabelTable:
    if isinstance(said, dict):
        said = said.get("labels", [said])
    if not isinstance(said, list):
        raise ApiError(
            422,
            "Labels are an object with task, worker and label, a list of these, or "
            f'{{"labels": […]}}. Got {type(said).__name__}.',
        )
    if len(said) > MAX_ROWS:
        raise too_many_labels()
    return read_records(said, space, "body")


def _batch(table: LabelTable, space: LabelSpace, key: str | None) -> Batch:
    return batch_of(check_names(table, space), key)


class _Body(BytesIO):
    """A body as a file, with a name for messages."""

    name = "body"


def _from_text(
    iterate: Callable[[Any, LabelSpace, int], Iterator[LabelTable]],
) -> Callable[[bytes, LabelSpace], LabelTable]:
    def read(body: bytes, space: LabelSpace) -> LabelTable:
        refuse_long_texts(body, b"\n")
        tables = iterate(_Body(body), space, MAX_ROWS)
        first = next(tables)
        if next(tables, None) is not None:
            raise too_many_labels()
        return first

    return read


_JSON, _PARQUET = "application/json", "application/vnd.apache.parquet"
_READERS: dict[str, Callable[[bytes, LabelSpace], LabelTable]] = {
    "application/x-ndjson": _from_text(iter_jsonl),
    "text/csv": _from_text(iter_csv),
}


def _truths(said: Any, space: LabelSpace) -> Mapping[Hashable, Hashable]:
    """True labels, validated as labels are."""
    if isinstance(said, dict) and "gold" in said and isinstance(said["gold"], dict | list):
        said = said["gold"]
    if isinstance(said, dict):
        said = [{"task": task, "label": label} for task, label in said.items()]
    if not isinstance(said, list) or not all(isinstance(one, dict) for one in said):
        raise ApiError(422, 'Truths are {"task": "label"}, or a list of rows with both.')
    if len(said) > MAX_TRUTHS:
        raise LimitError(
            f"At most {MAX_TRUTHS:,} true labels are taken at once. Got {len(said):,}. "
            "Send them in parts, each under its own key."
        )
    rows = [{**one, "worker": "truth"} for one in said]
    table = check_names(read_records(rows, space, "body"), space)
    truths = dict(zip(table.item_ids, table.labels, strict=True))
    if len(truths) != len(table.labels):
        raise ApiError(422, "A task has one truth, and one of these tasks has two. Remove one.")
    return truths


def _kind_of(header: bytes | None) -> str:
    if header in (None, b"application/json"):
        return _JSON
    return (header or b"").partition(b";")[0].strip().lower().decode("latin-1")


def _key_of(header: bytes | None) -> str | None:
    try:
        key = None if header is None else header.decode()
    except UnicodeError:
        raise ApiError(422, "`Idempotency-Key` must be UTF-8. Send another.") from None
    if key is not None and key.startswith(KEY_PREFIX):
        raise ApiError(
            422,
            f"`Idempotency-Key` must not begin with {KEY_PREFIX!r}, as the keys of annotations do. "
            f"Got {key[:40]!r}. Send another.",
        )
    return key
