"""How the service is: alive, ready, counted, described."""

from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.responses import JSONResponse

from labelquorum.server.auth import Guarded
from labelquorum.server.context import service_of
from labelquorum.server.errors import ApiError, error_responses
from labelquorum.server.schemas import Fine

router = APIRouter(route_class=Guarded)


@router.get("/healthz", response_model=Fine)
async def is_alive() -> dict[str, bool]:
    """Tell that the process answers."""
    return {"ok": True}


@router.get("/readyz", response_model=Fine, responses=error_responses(503))
def is_ready(request: Request) -> dict[str, bool]:
    """Tell that labels are taken and answers are given."""
    service = service_of(request)
    service.store.streams()
    problem = service.write_queue.problem
    if problem is not None:
        raise ApiError(503, problem, headers={"Retry-After": "1"})
    return {"ok": True}


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Counts."},
        **error_responses(401, 403, 429),
    },
)
def read_metrics(request: Request) -> Response:
    """What was counted, as Prometheus reads it."""
    service = service_of(request)
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get(
    "/openapi.json",
    response_class=JSONResponse,
    responses=error_responses(401, 403, 429),
    include_in_schema=False,
)
def read_openapi(request: Request) -> Any:
    """The description of all routes."""
    return JSONResponse(request.app.openapi())
