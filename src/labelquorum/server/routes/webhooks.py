"""Hooks: what other tools tell by themselves."""

from collections import Counter
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool

from labelquorum.errors import LabelError, LabelQuorumError
from labelquorum.ingest.label_studio import Heard, Version, read_label_studio
from labelquorum.ingest.labels import LabelSpace, LabelTable
from labelquorum.ingest.validate import check_names, checked
from labelquorum.server.auth import Guarded
from labelquorum.server.context import known_stream, service_of
from labelquorum.server.errors import error_responses
from labelquorum.server.request_parsing import parse_json
from labelquorum.server.schemas import HookAnswer, hook_body
from labelquorum.store.accept import Revised, Revision
from labelquorum.store.batch import Submission
from labelquorum.store.stream import REVISIONS_PER_COMMIT

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
        heard = await parse_json(body, lambda said: read_label_studio(said, control, task))
    revisions, refused = await run_in_threadpool(_revisions, heard, known.spaces["error"])
    done: list[Revised] = []
    if len(heard.deleted) > REVISIONS_PER_COMMIT:  # a recorded job, completed after a kill
        keys = [(one.prefix, one.submission.key) for one in revisions]
        gone = await service.job(service.write_queue.loop.withdraw, known.stream, keys)
        done.append(Revised(0, 0, gone.get("retracted", 0)))
        done += [Revised(0, 0, 0, outdated=True)] * gone.get("outdated", 0)
        revisions = []
    for some in range(0, len(revisions), REVISIONS_PER_COMMIT):
        part = revisions[some : some + REVISIONS_PER_COMMIT]
        for one in await service.write(known.stream, known.stream.revise_all, part):
            done.append(one) if isinstance(one, Revised) else refused.append(one)
    service.write_queue.loop.wake(known.stream.ref.key)
    if refused and not done:
        raise refused[0]
    skipped = Counter(heard.skipped) + Counter(outdated=sum(one.outdated for one in done))
    skipped["refused"] += len(refused)
    return {
        "action": heard.action[:256].encode("utf-8", "replace").decode(),
        "accepted": sum(one.accepted for one in done),
        "late": sum(one.late for one in done),
        "reason": next((one.reason for one in done if one.late), None),
        "retracted": sum(one.retracted for one in done),
        "skipped": {reason: count for reason, count in skipped.items() if count},
    }


def _revisions(heard: Heard, space: LabelSpace) -> tuple[list[Revision], list[LabelQuorumError]]:
    """What is to be revised, and what is no label of the stream."""
    revisions: list[Revision] = []
    refused: list[LabelQuorumError] = []
    for version in heard.versions:
        try:
            revisions.append(_revision(version, space))
        except LabelError as error:
            refused.append(error)
    revisions += [
        Revision(beginning, Submission(_NOTHING, key=f"{beginning}{_LAST}"))
        for beginning in heard.deleted
    ]
    return revisions, refused


def _revision(version: Version, space: LabelSpace) -> Revision:
    event = version.event
    if event is None:
        return Revision(version.annotation, Submission(_NOTHING, key=version.key))
    moments = None if event.timestamp is None else [event.timestamp]
    raw = LabelTable([event.item_id], [event.worker_id], [event.label], timestamps=moments)
    table = raw._replace(source=version.annotation.strip(), unit="row")
    sent = Submission(check_names(checked(table, space), space), key=version.key)
    return Revision(version.annotation, sent)


_NOTHING = LabelTable([], [], [])
_LAST = "deleted"  # sorts after every moment
