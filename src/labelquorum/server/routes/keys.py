"""Keys: made, listed, revoked while the service runs."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from starlette.concurrency import run_in_threadpool

from labelquorum.server.auth import Guarded
from labelquorum.server.context import service_of
from labelquorum.server.errors import ApiError, error_responses
from labelquorum.server.request_parsing import read_shape
from labelquorum.server.schemas import KeyList, KeyMade, KeyShape, NewKey, json_body
from labelquorum.store.api_keys import Key

router = APIRouter(route_class=Guarded)


@router.get("/v1/key", response_model=KeyShape, responses=error_responses(401, 403, 429, 503))
def read_own_key(request: Request) -> dict[str, Any]:
    """The key of this very request: its scope, and the stream it is for."""
    own: Key = request.scope["key"]
    return own.shown()


@router.get("/v1/keys", response_model=KeyList, responses=error_responses(401, 403, 429, 503))
def list_keys(request: Request) -> dict[str, Any]:
    """All keys, without their secrets."""
    return {"keys": [key.shown() for key in service_of(request).keys.all()]}


@router.post(
    "/v1/keys",
    status_code=201,
    response_model=KeyMade,
    responses=error_responses(401, 403, 408, 413, 415, 422, 429, 503, 507),
    openapi_extra={"requestBody": json_body(NewKey)},
)
async def make_key(request: Request) -> dict[str, Any]:
    """Make a key. Its secret is in the answer, and never shown again."""
    service = service_of(request)
    wanted = await read_shape(request, service_of(request).bodies, NewKey)
    key, secret = await run_in_threadpool(
        service.keys.make, wanted.name, wanted.scope, wanted.stream
    )
    await run_in_threadpool(service.keyring.refresh)
    service.log.write("key made", key=key.id, scope=key.scope, stream=key.stream)
    return {**key.shown(), "key": secret}


@router.delete(
    "/v1/keys/{number}",
    response_model=KeyShape,
    responses=error_responses(401, 403, 404, 409, 422, 429, 503, 507),
)
def revoke_key(request: Request, number: Annotated[int, Path(ge=1, le=2**31 - 1)]) -> Any:
    """Let a key open nothing from now on."""
    service = service_of(request)
    if number == request.scope["key"].id:
        raise ApiError(409, "A key cannot revoke itself. Use another one with the scope admin.")
    if not service.keys.revoke(number):
        raise ApiError(404, f"There is no key {number} that opens anything. See GET /v1/keys.")
    service.keyring.refresh()
    service.log.write("key revoked", key=number)
    [key] = [key for key in service.keys.all() if key.id == number]
    return key.shown()
