"""Workers: how good each is, how sure that is, and what is odd about him.

A flag is raised by a rule on his confusion matrix, once he gave `ENOUGH` labels:

- `one_answer`: whatever the truth, he gives one and the same answer in nine of ten cases.
- `spammer`: his answers hardly depend on the truth; no two rows of his matrix differ by more than
  a tenth.
- `reversed`: whatever the truth, another answer is likelier than the right one, and he is right
  less often than by chance.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from labelquorum.errors import LabelError
from labelquorum.record.glance import Recent, late_agreement
from labelquorum.serve.server.access import Guarded
from labelquorum.serve.server.ids import after_cursor, cursor_of, spellings
from labelquorum.serve.server.items import Cursor, Limit
from labelquorum.serve.server.refusals import Refusal, error_responses
from labelquorum.serve.server.service import known_stream, service_of
from labelquorum.serve.server.outlines import WorkerPage, WorkerShape
from labelquorum.serve.server.shapes import Gone

__all__ = ["flags_of", "router"]

router = APIRouter(route_class=Guarded)
STREAM = "/v1/streams/{stream}"
ENOUGH = 20
"""Labels without which nothing is said against a worker."""

ENOUGH_LATELY = 10
SAME_ANSWER = 0.9
ALIKE = 0.1


@router.get(
    f"{STREAM}/workers",
    response_model=WorkerPage,
    responses=error_responses(401, 403, 404, 422, 429, 503),
)
async def list_workers(
    request: Request, stream: str, cursor: Cursor = None, limit: Limit = 100
) -> dict[str, Any]:
    """Workers by page, in the order they first appeared."""
    known = known_stream(request).stream
    after = after_cursor(cursor, int)
    first = -1 if after is None else after
    found = await service_of(request).ask(known.workers, first, limit + 1)
    page = found[:limit]
    names = [one["worker"] for one in page]
    lately = await run_in_threadpool(late_agreement, known, names)
    return {
        "workers": [_worker(one, lately) for one in page],
        "next": cursor_of(page[-1]["place"]) if len(found) > limit else None,
        "total": None,
    }


@router.get(
    f"{STREAM}/workers/{{worker:path}}",
    response_model=WorkerShape,
    responses=error_responses(401, 403, 404, 422, 429, 503),
)
async def read_worker(request: Request, stream: str, worker: str) -> dict[str, Any]:
    """One worker: skill with an interval, confusion matrix, trend, flags."""
    known = known_stream(request).stream
    for spelled in spellings(worker, "worker"):
        try:
            found = await service_of(request).ask(known.worker, spelled)
        except LabelError:
            continue
        told = _worker(found, await run_in_threadpool(late_agreement, known, [spelled]))
        return told | {"crowd_confusion": [], "track": [], "changes": [], "confuses": []}
    raise Refusal(404, f"Stream {stream!r} knows no worker {worker!r}. See its workers.")


@router.delete(
    f"{STREAM}/workers/{{worker:path}}",
    response_model=Gone,
    responses=error_responses(401, 403, 404, 422, 429, 503, 507),
)
async def forget_worker(request: Request, stream: str, worker: str) -> dict[str, int]:
    """Forget a person for good; tells how many labels of theirs went."""
    known = known_stream(request).stream
    for spelled in spellings(worker, "worker"):
        try:
            gone = await service_of(request).ask(known.forget, spelled)
        except LabelError:
            continue
        service_of(request).log.write("forgot", stream=stream)  # and not whom
        service_of(request).hub.ring(stream)
        return {"gone": gone}
    raise Refusal(404, f"Stream {stream!r} knows no worker {worker!r}. See its workers.")


def flags_of(confusion: Sequence[Sequence[float]], labels: int) -> list[dict[str, str]]:
    """What is odd about a worker, by his confusion matrix (C, C) and how much he said."""
    matrix = np.asarray(confusion, dtype=float)
    n_classes = len(matrix)
    if labels < ENOUGH or n_classes < 2:
        return []
    says = matrix.min(axis=0)  # of each answer, how often he gives it at the least
    if says.max() >= SAME_ANSWER:
        return [_flag("one_answer", "Gives the same answer whatever the truth is.")]
    apart = np.abs(matrix[:, None] - matrix[None]).sum(axis=2).max() / 2
    if apart <= ALIKE:
        return [_flag("spammer", "Answers hardly depend on the truth.")]
    right = np.diag(matrix)
    if (matrix.max(axis=1) > right).all() and right.mean() < 1 / n_classes:
        return [_flag("reversed", "Another answer is likelier than the right one.")]
    return []


def _flag(name: str, says: str) -> dict[str, str]:
    return {"flag": name, "says": says}


def _worker(one: Mapping[str, Any], lately: Mapping[Hashable, Recent]) -> dict[str, Any]:
    names = ("worker", "labels", "agreed", "skill", "low", "high", "classes", "confusion")
    recent = lately.get(one["worker"])
    trend = None
    if recent is not None and recent.labels >= ENOUGH_LATELY and one["labels"]:
        trend = {
            "recent": recent.agreed / recent.labels,
            "overall": one["agreed"] / one["labels"],
            "recent_labels": recent.labels,
        }
    flags = flags_of(one["confusion"], one["labels"])
    return {**{name: one[name] for name in names}, "trend": trend, "flags": flags}
