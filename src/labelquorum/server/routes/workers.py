"""Workers: how good each is, how sure that is, what is odd, and who agrees with whom."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from labelquorum.errors import LabelError
from labelquorum.ingest.validate import ATTRIBUTES
from labelquorum.server.auth import Guarded
from labelquorum.server.cache import WorkerTable, as_json, json_response
from labelquorum.server.context import Service, cached_body, known_stream, service_of
from labelquorum.server.errors import ApiError, error_responses
from labelquorum.server.request_parsing import (
    Cursor,
    Limit,
    Search,
    after_cursor,
    cursor_of,
    spellings,
)
from labelquorum.server.schemas import AgreementShape, Gone, JuryShape, WorkerPage, WorkerShape
from labelquorum.store.queries import AGREEMENT_WORKERS, JURY_WORKERS, Recent
from labelquorum.store.stats import StreamStats
from labelquorum.store.stream import Stream

router = APIRouter(route_class=Guarded)
STREAM = "/v1/streams/{stream}"

MIN_RECENT_LABELS = 10
"""With fewer recent labels no trend is given."""

MIN_EXCESS, MAX_CONFUSED = 0.05, 5
"""Confused labels are 5 points likelier than of the crowd; at most 5 are listed."""

_BRIEF = ("worker", "labels", "agreed", "skill", "low", "high")


@router.get(
    f"{STREAM}/workers",
    response_model=WorkerPage,
    responses=error_responses(401, 403, 404, 422, 429, 503),
)
async def list_workers(
    request: Request,
    stream: str,
    cursor: Cursor = None,
    limit: Limit = 100,
    sort: Annotated[
        str, Query(pattern="^(place|-?(worker|labels|agreement|skill|flags))$")
    ] = "place",
    search: Search = None,
    flag: Annotated[
        str | None, Query(pattern="^(any|spammer|one_answer|reversed|drifting|colluding)$")
    ] = None,
    brief: Annotated[bool, Query(description="Without matrices and trends.")] = False,
) -> Response:
    """Workers by page, in the order they first appeared, or another."""
    service, known = service_of(request), known_stream(request).stream
    after = after_cursor(cursor, int)

    async def make() -> bytes:
        table = await service.worker_table(known)
        if sort == "place" and not search and flag is None:
            first = -1 if after is None else after
            found = await service.ask(known, known.workers, first, limit + 1, None, not brief)
            page, total = found[:limit], table.total
            rest = cursor_of(page[-1]["place"]) if len(found) > limit else None
        else:
            chosen = await run_in_threadpool(_chosen, table, sort, search, flag)
            start = await run_in_threadpool(_start, chosen, after)
            places = [row["place"] for row in chosen[start : start + limit]]
            page, total = await _at(service, known, places, not brief), len(chosen)
            rest = cursor_of(places[-1]) if len(chosen) > start + limit else None
        bodies = await _worker_bodies(known, page, table, brief)
        return as_json({"workers": bodies, "next": rest, "total": total})

    if not brief:
        return json_response(await make())
    about = ("workers", sort, search, flag, cursor, limit)
    return json_response(*await cached_body(request, known, about, make))


@router.get(
    f"{STREAM}/workers/{{worker:path}}",
    response_model=WorkerShape,
    responses=error_responses(401, 403, 404, 422, 429, 503),
)
async def read_worker(request: Request, stream: str, worker: str) -> Response:
    """One worker: skill with an interval, matrix and the crowd's, over time, flags."""
    service, known = service_of(request), known_stream(request)
    for spelled in spellings(worker, "worker"):
        try:
            found = await service.ask(known.stream, known.stream.profile, spelled)
        except LabelError:
            continue
        table = await service.worker_table(known.stream)
        [bodies] = await _worker_bodies(known.stream, [found], table, brief=False)
        bodies |= await run_in_threadpool(_over_time, found, known.tally)
        bodies["crowd_confusion"] = found["crowd_confusion"]
        bodies["confuses"] = _confuses(found)
        return json_response(as_json(bodies))
    raise ApiError(404, f"Stream {stream!r} knows no worker {worker!r}. See its workers.")


@router.get(
    f"{STREAM}/agreement",
    response_model=AgreementShape,
    responses=error_responses(401, 403, 404, 422, 429, 503),
)
async def read_agreement(
    request: Request,
    stream: str,
    limit: Annotated[int, Query(ge=2, le=100, description="Workers at most.")] = AGREEMENT_WORKERS,
) -> Response:
    """How well workers agree with one another: Cohen's kappa with intervals."""
    service, known = service_of(request), known_stream(request).stream
    return await service.report(request, known, known.agreement, limit, AGREEMENT_WORKERS)


@router.get(
    f"{STREAM}/jury",
    response_model=JuryShape,
    responses=error_responses(401, 403, 404, 422, 429, 503),
)
async def read_jury(
    request: Request,
    stream: str,
    limit: Annotated[int, Query(ge=2, le=1000, description="Judges at most.")] = JURY_WORKERS,
) -> Response:
    """How many independent judges the workers count for, who errs together, what order does."""
    service, known = service_of(request), known_stream(request).stream
    return await service.report(request, known, known.jury, limit, JURY_WORKERS)


@router.delete(
    f"{STREAM}/workers/{{worker:path}}",
    response_model=Gone,
    responses=error_responses(401, 403, 404, 422, 429, 503, 507),
)
async def forget_worker(request: Request, stream: str, worker: str) -> dict[str, int]:
    """Forget a person for good; tells how many labels of theirs went."""
    service, known = service_of(request), known_stream(request).stream
    for spelled in spellings(worker, "worker"):
        try:
            gone = await service.job(service.write_queue.loop.forget, known, spelled)
        except LabelError:
            continue
        await run_in_threadpool(service.store.checkpoint)  # a joined process makes none
        service.log.write("forgot", stream=stream)  # and not whom
        service.forgot(known.ref.key)
        return {"gone": gone}
    raise ApiError(404, f"Stream {stream!r} knows no worker {worker!r}. See its workers.")


def _chosen(
    table: WorkerTable, sort: str, search: str | None, flag: str | None
) -> Sequence[Mapping[str, Any]]:
    """The rows of a table that are wanted, in order."""
    rows: Sequence[Mapping[str, Any]] = table.listed(sort)
    if search:
        wanted = search.casefold()
        rows = [row for row in rows if wanted in str(row["worker"]).casefold()]
    if flag is not None:
        rows = [row for row in rows if any(flag in ("any", one["flag"]) for one in row["flags"])]
    return rows


def _start(rows: Sequence[Mapping[str, Any]], after: int | None) -> int:
    """Where the page after this place begins."""
    if after is None:
        return 0
    for k, row in enumerate(rows):
        if row["place"] == after:
            return k + 1
    raise ApiError(
        422, "`cursor` names a worker who is no longer in this list. Begin with the first page."
    )


async def _at(
    service: Service, stream: Stream, places: list[int], matrices: bool
) -> list[dict[str, Any]]:
    """The workers at these places, in this order; a worker who was forgotten since is left out."""
    about = (-1, len(places), places, matrices)
    found = await service.ask(stream, stream.workers, *about) if places else []
    by_place = {one["place"]: one for one in found}
    return [by_place[place] for place in places if place in by_place]


async def _worker_bodies(
    stream: Stream, page: Sequence[Mapping[str, Any]], table: WorkerTable, brief: bool
) -> list[dict[str, Any]]:
    """Workers as the API shows them."""
    bodies = []
    lately: Mapping[Hashable, Recent] = {}
    if not brief:
        names = [one["worker"] for one in page]
        lately = await run_in_threadpool(stream.recent_agreement, names)
    for one in page:
        known = table.by_place.get(one["place"])
        row = {name: one[name] for name in _BRIEF}
        row |= {role: one[role] for role in ATTRIBUTES if role in one}
        row["flags"] = [] if known is None else known["flags"]
        if not brief:
            row |= {"classes": one["classes"], "confusion": one["confusion"]}
            row["trend"] = _trend(one, lately.get(one["worker"]))
        bodies.append(row)
    return bodies


def _trend(one: Mapping[str, Any], recent: Recent | None) -> dict[str, Any] | None:
    if recent is None or recent.labels < MIN_RECENT_LABELS or not one["labels"]:
        return None
    return {
        "recent": recent.agreed / recent.labels,
        "overall": one["agreed"] / one["labels"],
        "recent_labels": recent.labels,
    }


def _over_time(found: Mapping[str, Any], tally: StreamStats) -> dict[str, Any]:
    with tally.fresh():
        track = [{**one, "at": tally.applied_at(one["chunk"])} for one in found["track"]]
    return {"track": track, "changes": found["changes"]}


def _confuses(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The labels that the worker gives for a truth more often than the crowd."""
    classes, own, crowd = found["classes"], found["confusion"], found["crowd_confusion"]
    excess = [
        (own[c][z] - crowd[c][z], c, z)
        for c in range(len(own))
        for z in range(len(own))
        if c != z and own[c][z] - crowd[c][z] >= MIN_EXCESS
    ]
    return [
        {"truth": classes[c], "says": classes[z], "prob": own[c][z], "crowd": crowd[c][z]}
        for _, c, z in sorted(excess, key=lambda one: -one[0])[:MAX_CONFUSED]
    ]
