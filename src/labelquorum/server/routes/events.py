"""Events: what happens in a stream, as it happens."""

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from labelquorum.server.auth import Guarded
from labelquorum.server.context import known_stream, service_of
from labelquorum.server.errors import error_responses
from labelquorum.server.sse import Hub
from labelquorum.store.stream import Stream

__all__ = ["router"]

router = APIRouter(route_class=Guarded)
MOST = 2**62


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
    after: Annotated[int | None, Query(ge=0, le=MOST)] = None,
    last_event_id: Annotated[
        int | None, Header(ge=0, le=MOST, description="Go on after this event.")
    ] = None,
) -> StreamingResponse:
    """Follow what happens: chunks applied or quarantined, rules changed."""
    service, known = service_of(request), known_stream(request)
    key = request.scope["key"]
    start = last_event_id if last_event_id is not None else after
    return _Events(service.hub, known.stream, start, lambda: service.keyring.holds(key))


class _Events(StreamingResponse):
    """Events to one viewer, who is counted from here to the end, whatever that is."""

    def __init__(
        self, hub: Hub, stream: Stream, after: int | None, may_go_on: Callable[[], bool]
    ) -> None:
        hub.enter()
        self._hub = hub
        super().__init__(hub.follow(stream, after, may_go_on), media_type="text/event-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._hub.leave()
