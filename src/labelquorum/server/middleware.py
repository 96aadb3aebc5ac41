"""What every request passes before any route sees it, and what is written down about it.

In this order: whom it was asked for (Host), from where (Origin), by whom (the key), how often (the
rate). All of it is done on bare ASGI, for it stands in the way of every single label.
"""

import ipaddress
import re
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Mapping
from math import ceil
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from labelquorum.server.auth import PUBLIC, PUBLIC_BELOW, Guarded, RateLimiter
from labelquorum.server.context import Service
from labelquorum.server.errors import ApiError, error_response
from labelquorum.server.large_answers import LargeAnswers

HOOKS = re.compile(r"/v1/streams/[^/]+/hooks/[^/]+")
SECRET_HEADER = b"x-labelquorum-key"
"""Where a hook may carry its key, whose sender cannot set Authorization."""

_HOST = re.compile(r"([\w.-]+|\[[\da-f:.]+\])(:\d*)?", re.ASCII)
_SAFE = frozenset(("GET", "HEAD", "OPTIONS"))
_LOCAL = frozenset(("localhost", "127.0.0.1", "::1"))
_ANYWHERE = frozenset(("0.0.0.0", "::", ""))

WRONG_KEYS_PER_SECOND = 100.0
"""How many wrong keys an address may send before it is asked to wait; right ones do not count."""

LINES_PER_SECOND = 20.0
"""Lines in the log about requests without a key; how many more there were is in the next one."""

_HEADERS = [
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
]


class Middleware:
    """An app behind its guards."""

    def __init__(self, app: FastAPI, service: Service) -> None:
        settings = service.settings
        self.inner, self.service = app, service
        self._keyring = service.keyring
        self.large = LargeAnswers(service.keyring)
        self._metrics, self._log = service.metrics, service.log
        self._log_requests = settings.log_requests
        self._rates = RateLimiter(settings.rate)
        self._wrong_keys = RateLimiter(WRONG_KEYS_PER_SECOND)
        self._lines = RateLimiter(LINES_PER_SECOND)
        self._unwritten = 0  # lines since the last one
        own = {settings.host} - _ANYWHERE
        self._hosts = {name.lower() for name in (*own, *_LOCAL, *settings.allow_host)}
        self._origins = {origin.lower().rstrip("/") for origin in settings.allow_origin}
        self._good_hosts: dict[bytes, None] = {}  # seen before, as they were spelled
        self._bare = [route for route in app.routes if isinstance(route, Guarded) and route.is_bare]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer it here."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.inner(scope, receive, send)
            return  # no route of ours is a websocket
        started, status = time.perf_counter(), 500

        async def answering(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *message["headers"],
                    *scope.get("answer_headers", _HEADERS),
                ]
            await send(message)

        try:
            headers = scope["headers_by_name"] = dict(scope["headers"])
            if len(headers) != len(scope["headers"]):
                _refuse_twice(scope["headers"])
            self._check_host(headers)
            self._check_origin(scope["method"], headers, scope["scheme"])
            self._check_key(scope, headers)
        except ApiError as api_error:
            response = error_response(api_error.status, api_error.sentences, api_error.headers)
            await response(scope, receive, answering)
        else:
            try:
                app = self._express(scope) or self.inner
                await self.large.answer(app, scope, receive, answering)
            except Exception as error:  # answered by now, in our shape
                report = "".join(traceback.format_exception(error))
                path = getattr(scope.get("route"), "path", "none")
                self._log.write("error", path=path, error=report)
        finally:
            self._write_down(scope, status, time.perf_counter() - started)

    def _express(self, scope: Scope) -> ASGIApp | None:
        """The short way to a route that reads its request by itself, past FastAPI's own parts."""
        for route in self._bare:
            if scope["method"] in (route.methods or ()):
                found = route.path_regex.match(scope["path"])
                if found is not None:
                    scope["path_params"], scope["route"] = found.groupdict(), route
                    scope["app"] = self.inner
                    return route.direct
        return None

    def _check_host(self, headers: Mapping[bytes, bytes]) -> None:
        """A page elsewhere may give its own name our address; so we answer to our names alone."""
        host = headers.get(b"host", b"")
        if host in self._good_hosts:
            return
        name = _hostname(host)
        if name not in self._hosts and not _is_address(name):
            raise ApiError(
                421,
                f"This service does not answer to the name {name!r}. "
                "Start it with --allow-host to add a name.",
            )
        if len(self._good_hosts) < 100:
            self._good_hosts[host] = None

    def _check_origin(self, method: str, headers: Mapping[bytes, bytes], scheme: str) -> None:
        """Pages of other origins may not write."""
        if method in _SAFE:
            return
        origin = headers.get(b"origin")
        if origin is None:
            if headers.get(b"sec-fetch-site", b"none") in (b"none", b"same-origin"):
                return
            shown = "another site"
        else:
            shown = origin.decode("latin-1").lower()
            own = headers.get(b"host", b"").decode("latin-1").lower()
            if shown == f"{scheme}://{own}" or shown in self._origins:
                return
        raise ApiError(
            403, f"A page of {shown!r} may not write here. Start the service with --allow-origin."
        )

    def _check_key(self, scope: Scope, headers: Mapping[bytes, bytes]) -> None:
        path: str = scope["path"]
        if path in PUBLIC or path.startswith(PUBLIC_BELOW):
            return
        given = headers.get(b"authorization", b"")
        kind, _, secret = given.partition(b" ")
        if not given and HOOKS.fullmatch(path):
            kind, secret = b"bearer", headers.get(SECRET_HEADER, b"")
        secret = secret.strip()
        found = None
        if kind.lower() == b"bearer" and secret:
            found = self._keyring.find(secret.decode("latin-1"))
        if found is None:
            wait = self._wrong_keys.take(_client(scope) or "") if secret else 0.0
            if wait:
                raise ApiError(
                    429,
                    "Too many wrong keys came from this address. Come back after the seconds in "
                    "Retry-After.",
                    headers={"Retry-After": str(ceil(wait))},
                )
            what = "This key opens nothing" if secret else "There is no key with this request"
            raise ApiError(
                401,
                f"{what}. Send the header Authorization: Bearer KEY, with a key that is not "
                "revoked.",
                headers={"WWW-Authenticate": "Bearer"},
            )
        wait = self._rates.take(found.id)
        if wait:
            raise ApiError(
                429,
                "This key asks too often. Come back after the seconds in Retry-After.",
                headers={"Retry-After": str(ceil(wait))},
            )
        scope["key"] = found

    def _write_down(self, scope: Scope, status: int, seconds: float) -> None:
        route = scope.get("route")
        path = getattr(route, "path", "none")
        method = scope["method"] if path != "none" else "any"
        self._metrics.count_request(method, path, status, seconds)
        if status >= 400 or self._log_requests:
            key = scope.get("key")
            if key is None and self._lines.take(""):  # anyone can send these
                self._unwritten += 1
                return
            left_out, self._unwritten = self._unwritten, 0
            self._log.write(
                "request" if status < 400 else "refused" if status < 500 else "failed",
                method=scope["method"],
                path=path,  # of the route: the address itself may name a person
                stream=scope.get("path_params", {}).get("stream"),
                status=status,
                seconds=round(seconds, 6),
                key=None if key is None else key.id,
                client=_client(scope),
                **({"left_out": left_out} if left_out else {}),
            )


def _refuse_twice(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Refuse a header that comes twice and says who asks whom: a proxy may read the other one."""
    twice = [name for name, n in Counter(name for name, _ in headers).items() if n > 1]
    for name in (b"host", b"authorization", SECRET_HEADER, b"origin"):
        if name in twice:
            raise ApiError(400, f"The header {name.decode()} came twice. Send it once.")


def _hostname(host: bytes) -> str:
    """The name in a Host header, which has nothing but a name and a port."""
    shown = host.decode("latin-1").lower()
    try:
        name = urlsplit(f"//{shown}").hostname or ""
    except ValueError:
        return ""
    return name if _HOST.fullmatch(shown) else shown[:256]


def _is_address(name: str) -> bool:
    """An address cannot be rebound, as a name can."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _client(scope: Any) -> str | None:
    client = scope.get("client")
    return None if client is None else str(client[0])
