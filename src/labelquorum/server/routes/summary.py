"""A stream in figures: what people look at first. Made once for all who look."""

from dataclasses import asdict
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from labelquorum.server.auth import Guarded
from labelquorum.server.cache import WorkerTable, as_json, json_response
from labelquorum.server.context import Known, Service, cached_body, known_stream, service_of
from labelquorum.server.errors import error_responses
from labelquorum.server.schemas import Stopping, Summary, chunk_body
from labelquorum.server.telemetry import alerts
from labelquorum.store.rules import Rules
from labelquorum.store.stats import BINS, StreamStats

router = APIRouter(route_class=Guarded)
STREAM = "/v1/streams/{stream}"


@router.get(
    f"{STREAM}/summary",
    response_model=Summary,
    responses=error_responses(401, 403, 404, 422, 429, 503),
)
async def read_summary(request: Request, stream: str) -> Response:
    """A stream in figures: speed, confidence, balance, error on gold, what needs a person."""
    service, known = service_of(request), known_stream(request)

    async def make() -> bytes:
        table = await service.worker_table(known.stream)
        return as_json(await run_in_threadpool(_summary, service, known, table))

    return json_response(*await cached_body(request, known.stream, "summary", make))


def _summary(service: Service, known: Known, table: WorkerTable) -> dict[str, Any]:
    stream, key = known.stream, known.stream.ref.key
    rules: Rules = stream.rules
    gold, expected = stream.gold_error(), stream.expected_error()
    behind = service.write_queue.loop.behind(key)
    with known.tally.fresh() as tally:
        return {
            "name": stream.name,
            "classes": stream.classes(),
            "counts": stream.count(),
            "labels_per_second": service.throughput.labels_per_second(key),
            "chunks_behind": behind,
            "update": _update(tally),
            "confidence": {
                "edges": [k / BINS for k in range(BINS + 1)],
                "items": np.maximum(tally.confidence, 0).tolist(),
            },
            "balance": _balance(tally, stream.classes()),
            "gold": None if gold is None else gold._asdict(),
            "expected_error": None
            if expected is None
            else asdict(expected) | {"says": str(expected)},
            "over_time": [
                {
                    "chunk": point.chunk,
                    "at": point.at,
                    "items": point.items,
                    "new_items": point.new_items,
                    "labels": point.labels,
                    "mean_confidence": point.sure / point.items
                    if point.items and point.sure is not None
                    else None,
                }
                for point in tally.points()
            ],
            "last_chunks": [chunk_body(row) for row in stream.last_chunks()],
            "warnings": alerts(
                tally,
                rules,
                behind,
                service.throughput.growth(key),
                stream.quarantined(),
                table.drifting(),
                service.write_queue.healthy,
                service.store.now(),
            ),
            "workers": table.total,
            "flagged": table.n_flagged,
        }


def _update(tally: StreamStats) -> dict[str, float | None]:
    seconds = tally.update_seconds
    if not seconds:
        return {"p50_seconds": None, "p99_seconds": None, "last_seconds": None}
    half, most = np.quantile(seconds, [0.5, 0.99]).tolist()
    return {"p50_seconds": half, "p99_seconds": most, "last_seconds": seconds[-1]}


def _balance(tally: StreamStats, classes: list[Any]) -> list[dict[str, Any]]:
    counted, (n_recent, recent) = tally.classes, tally.recent
    total = sum(counted.values())
    priors = tally.priors or []
    return [
        {
            "label": label,
            "items": counted.get(label, 0),
            "share": counted.get(label, 0) / total if total else 0.0,
            "prior": priors[k] if k < len(priors) else None,
            "recent_share": recent[label] / n_recent if n_recent else None,
        }
        for k, label in enumerate(classes)
    ]


@router.get(
    f"{STREAM}/stopping",
    response_model=Stopping,
    responses=error_responses(401, 403, 404, 422, 429, 503),
)
async def read_stopping(request: Request, stream: str) -> Response:
    """What if items had been closed as soon as we were so sure: labels saved, errors to expect."""
    known = known_stream(request)

    async def make() -> bytes:
        return as_json(await run_in_threadpool(_stopping, known.tally))

    return json_response(*await cached_body(request, known.stream, "stopping", make))


def _stopping(tally: StreamStats) -> dict[str, Any]:
    with tally.fresh():
        return tally.early_stopping()
