"""Who may do what: keys, scopes, rates. What is not declared here is denied.

A key is for one stream or for all, and has a scope: read, write or admin, each of which includes
those before it. `ROUTES` says what every route asks for.
"""

import asyncio
import hmac
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from contextvars import copy_context
from typing import Any, Literal, NamedTuple, TypeVar

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from labelquorum.errors import LabelQuorumError
from labelquorum.server.errors import BUG, ApiError, api_error_of, error_response, retry_later
from labelquorum.server.questions import QUESTION_SECONDS
from labelquorum.store.api_keys import SCOPES, Key, Keys, digest_of
from labelquorum.store.learner import read_until

LATE = (
    f"The answer took longer than the {QUESTION_SECONDS:g} seconds that a question may take. "
    "Ask for less, or again after the seconds in Retry-After."
)
Bare = TypeVar("Bare", bound=Callable[..., Any])
Reach = Literal["stream", "any", "all"]


class Need(NamedTuple):
    """What a route asks of a key: a scope, and how far it must reach."""

    scope: str
    reach: Reach = "stream"  # the stream of the path; any stream; all streams


READ, WRITE, ADMIN = Need("read"), Need("write"), Need("admin")
_STREAM = "/v1/streams/{stream}"

ROUTES: Mapping[tuple[str, str], Need | None] = {
    ("POST", f"{_STREAM}/labels"): WRITE,
    ("DELETE", f"{_STREAM}/labels"): WRITE,
    ("GET", "/v1/streams"): Need("read", "any"),
    ("POST", "/v1/streams"): Need("admin", "all"),
    ("GET", _STREAM): READ,
    ("PATCH", _STREAM): ADMIN,
    ("DELETE", _STREAM): ADMIN,
    ("GET", f"{_STREAM}/items"): READ,
    ("GET", f"{_STREAM}/items/{{task:path}}"): READ,
    ("GET", f"{_STREAM}/workers"): READ,
    ("GET", f"{_STREAM}/workers/{{worker:path}}"): READ,
    ("DELETE", f"{_STREAM}/workers/{{worker:path}}"): ADMIN,
    ("GET", f"{_STREAM}/pending"): READ,
    ("GET", f"{_STREAM}/chunks"): READ,
    ("GET", f"{_STREAM}/events"): READ,
    ("GET", f"{_STREAM}/model"): READ,
    ("GET", f"{_STREAM}/summary"): READ,
    ("GET", f"{_STREAM}/stopping"): READ,
    ("GET", f"{_STREAM}/expected_error"): READ,
    ("GET", f"{_STREAM}/certificate"): READ,
    ("GET", f"{_STREAM}/agreement"): READ,
    ("GET", f"{_STREAM}/jury"): READ,
    ("GET", f"{_STREAM}/ask"): READ,
    ("GET", f"{_STREAM}/export"): READ,
    ("POST", f"{_STREAM}/gold"): WRITE,
    ("POST", f"{_STREAM}/hooks/label-studio"): WRITE,
    ("GET", "/v1/key"): Need("read", "any"),
    ("GET", "/v1/keys"): Need("admin", "all"),
    ("POST", "/v1/keys"): Need("admin", "all"),
    ("DELETE", "/v1/keys/{number}"): Need("admin", "all"),
    ("GET", "/metrics"): Need("read", "all"),
    ("GET", "/openapi.json"): Need("read", "any"),
    ("GET", "/"): None,  # open to everybody
    ("GET", "/assets/{path:path}"): None,
    ("GET", "/healthz"): None,
    ("GET", "/readyz"): None,
}
"""What each route asks for; None where it asks for nothing."""

PUBLIC = frozenset(path for (_, path), need in ROUTES.items() if need is None)
PUBLIC_BELOW = tuple(path.partition("{")[0] for path in PUBLIC if "{" in path)


class Keyring:
    """The valid keys, in memory, so that a request costs no query."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._by_digest: dict[str, Key] = {}
        self._reading = threading.Lock()  # what was read first must not be put in place last
        self.refresh()

    def refresh(self) -> None:
        """Read the keys again; one that was revoked is invalid from now on."""
        with self._reading:
            found = self._keys.all()
            self._by_digest = {key.digest: key for key in found if key.revoked_at is None}

    def holds(self, key: Key) -> bool:
        """Tell whether a key is still valid."""
        return key.digest in self._by_digest

    def find(self, secret: str) -> Key | None:
        """The key with this secret, if there is one."""
        digest = digest_of(secret)
        key = self._by_digest.get(digest)
        # The digest of a guess tells nothing of the digest of a key, and yet: no early end.
        return key if key is not None and hmac.compare_digest(key.digest, digest) else None


MAX_BUCKETS = 10_000
"""More are forgotten, all of them: a key has one, and so has an address that sends wrong keys."""


class RateLimiter:
    """A rate limit per key or address: a token bucket."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._most, self._clock = rate, max(2 * rate, 1.0), clock
        self._buckets: dict[int | str, tuple[float, float]] = {}

    def take(self, key: int | str) -> float:
        """Take a token of a key; seconds to wait if there is none, else 0."""
        now = self._clock()
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.clear()
        left, since = self._buckets.get(key, (self._most, now))
        left = min(self._most, left + (now - since) * self._rate)
        if left < 1:
            self._buckets[key] = (left, now)
            return (1 - left) / self._rate
        self._buckets[key] = (left - 1, now)
        return 0.0


def bare(endpoint: Bare) -> Bare:
    """Mark an endpoint that reads its request by itself; FastAPI's own reading would cost more."""
    endpoint.is_bare = True  # type: ignore[attr-defined]
    return endpoint


class Guarded(APIRoute):
    """A route that looks at the key before anything else, and refuses what is not declared."""

    @property
    def is_bare(self) -> bool:
        """Whether the endpoint reads its request by itself."""
        return getattr(self.endpoint, "is_bare", False)

    async def direct(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that was matched with this route, without FastAPI's own parts."""
        try:
            _check(ROUTES.get((scope["method"], self.path)) or _UNDECLARED, scope)
            response = await self.endpoint(Request(scope, receive, send))
        except (LabelQuorumError, ApiError) as error:
            api_error = api_error_of(error)
            response = error_response(api_error.status, api_error.sentences, api_error.headers)
        except Exception:
            await error_response(500, [BUG])(scope, receive, send)
            raise
        await response(scope, receive, send)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, behind the guard."""
        handle = super().get_route_handler()
        if self.is_bare:
            handle = self.endpoint
        needs = {
            method: ROUTES.get((method, self.path), _UNDECLARED) for method in self.methods or ()
        }

        async def guarded(request: Request) -> Response:
            need = needs.get(request.scope["method"], _UNDECLARED)
            if need is not None:
                _check(need, request.scope)
            if request.method != "GET" or self.is_bare:
                return await handle(request)
            return await _answer_in_time(request, handle)

        return guarded


async def _answer_in_time(
    request: Request, handle: Callable[[Request], Coroutine[Any, Any, Response]]
) -> Response:
    """Answer by the deadline and while the client is there; what waits for its turn is dropped."""
    context = copy_context()
    context.run(read_until.set, time.monotonic() + QUESTION_SECONDS)
    handling = asyncio.create_task(handle(request), context=context)
    leaving = asyncio.create_task(_leave(request))
    try:
        await asyncio.wait(
            (handling, leaving), timeout=QUESTION_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        if handling.done():
            return handling.result()
        if leaving.done():
            raise ApiError(499, "The client has gone.")
        raise TimeoutError
    except TimeoutError as error:
        raise retry_later(LATE) from error
    finally:
        leaving.cancel()
        handling.cancel()
        handling.add_done_callback(lambda one: one.cancelled() or one.exception())


async def _leave(request: Request) -> None:
    """Wait until the client has gone; what comes before is the body, which is empty."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


_UNDECLARED = Need("nobody")


def _check(need: Need, scope: Any) -> None:
    name = scope["path_params"].get("stream")
    # Looked up once per request: the stream that the key was checked for is the one that is used.
    known = scope["known"] = name and scope["app"].state.service.find(name)
    key: Key | None = scope.get("key")
    if key is None:
        raise ApiError(401, "This route needs a key.", headers={"WWW-Authenticate": "Bearer"})
    if need.scope not in SCOPES:
        raise ApiError(403, "This route is closed to every key.")
    if SCOPES.index(key.scope) < SCOPES.index(need.scope):
        raise ApiError(
            403,
            f"This takes a key with the scope {need.scope}. Yours has the scope {key.scope}. "
            "Ask the administrator for another.",
        )
    if key.stream_key is None or need.reach == "any":
        return
    if need.reach == "all" or not known or known.stream.ref.key != key.stream_key:
        raise ApiError(
            403,
            f"Your key is for the stream {key.stream!r} only. Ask the administrator for another.",
        )
