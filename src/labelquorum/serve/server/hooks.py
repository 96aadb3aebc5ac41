"""Hooks: what other tools tell by themselves."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool

from labelquorum.errors import LabelError
from labelquorum.ingest.events import LabelEvent, LabelSpace, LabelTable
from labelquorum.ingest.label_studio import Version, read_label_studio
from labelquorum.ingest.names import check_names
from labelquorum.ingest.rules import checked
from labelquorum.record.glance import rows_of_keys
from labelquorum.record.inlet import Sent
from labelquorum.record.stream import Stream
from labelquorum.serve.server.access import Guarded
from labelquorum.serve.server.bodies import parse_json
from labelquorum.serve.server.refusals import error_responses
from labelquorum.serve.server.service import known_stream, service_of
from labelquorum.serve.server.shapes import HookAnswer, hook_body

__all__ = ["router"]

router = APIRouter(route_class=Guarded)
Field = Annotated[str | None, Query(min_length=1, max_length=256)]


@router.post(
    "/v1/streams/{stream}/hooks/label-studio",
    response_model=HookAnswer,
    responses=error_responses(401, 403, 404, 408, 409, 413, 415, 422, 429, 503, 507),
    openapi_extra={"requestBody": hook_body},
)
async def hear_label_studio(
    request: Request, stream: str, control: Field = None, task: Field = None
) -> dict[str, Any]:
    """Take an event of Label Studio. Its key may be in the header X-LabelQuorum-Key."""
    service, known = service_of(request), known_stream(request)
    async with service.bodies.of(request) as body:
        heard = read_label_studio(await parse_json(body), control, task)
    accepted = retracted = 0
    for version in heard.versions:
        if version.event is None:
            retracted += await run_in_threadpool(_retract, known.stream, version.annotation)
            continue
        table = _table(version.event, version, known.spaces["error"])
        parcel = known.stream.prepare(Sent(table, key=version.key))
        receipt = await service.pipeline.accept(known.stream, parcel)
        service.metrics.sent(known.stream.name, receipt)
        accepted += 0 if receipt.repeated else receipt.accepted
    for beginning in heard.deleted:
        retracted += await run_in_threadpool(_retract, known.stream, beginning)
    return {
        "action": heard.action[:256],
        "accepted": accepted,
        "retracted": retracted,
        "skipped": dict(heard.skipped),
    }


def _table(event: LabelEvent, version: Version, space: LabelSpace) -> LabelTable:
    moment = None if event.timestamp is None else [event.timestamp]
    raw = LabelTable(
        [event.item_id],
        [event.worker_id],
        [event.label],
        timestamps=moment,
        source=version.annotation.strip(),
        unit="row",
    )
    return check_names(checked(raw, space), space)


def _retract(stream: Stream, beginning: str) -> int:
    """Take back what an annotation said, as far as it is not cut."""
    gone = 0
    for task, worker in rows_of_keys(stream, beginning):
        try:
            gone += stream.retract(task, worker)
        except LabelError:  # cut in the meantime
            continue
    return gone
