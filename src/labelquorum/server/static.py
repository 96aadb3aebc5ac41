"""The dashboard: files of the package, open to everybody, for they hold nothing of anybody.

They are read once, when the first is asked for, so no address can lead to another file. What a page
shows it asks for with a key, by the same routes as anyone.
"""

from functools import lru_cache
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple

from fastapi import APIRouter, Request, Response

from labelquorum.server.auth import Guarded
from labelquorum.server.errors import ApiError, error_responses

router = APIRouter(route_class=Guarded)
ASSETS = "/assets/"
INDEX = "index.html"

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""What a page may load: its own files, and nothing that is written into it."""

PAGE_HEADERS = [
    (b"cache-control", b"no-cache"),  # asked for again each time; unchanged, it is not sent again
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", POLICY.encode()),
    (b"referrer-policy", b"no-referrer"),
]

TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".md": "text/plain; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}
"""Of other files none is served, but for those without a suffix, such as a LICENSE, as text."""


class _File(NamedTuple):
    body: bytes
    type: str
    tag: str  # changes with the body


_WHOLE: dict[int | str, dict[str, Any]] = {
    304: {"description": "It is still the one that If-None-Match names."},
}


@router.get(
    "/",
    response_class=Response,
    responses={
        200: {"content": {"text/html": {"schema": {"type": "string"}}}, "description": "A page."},
        **_WHOLE,
    },
)
async def read_dashboard(request: Request) -> Response:
    """The dashboard, a page for people."""
    return _sent(request, INDEX)


@router.get(
    f"{ASSETS}{{path:path}}",
    response_class=Response,
    responses={
        200: {
            "content": {"*/*": {"schema": {"type": "string", "format": "binary"}}},
            "description": "A file.",
        },
        **_WHOLE,
        **error_responses(404, 422),
    },
)
async def read_asset(request: Request, path: str) -> Response:
    """A file of the dashboard."""
    return _sent(request, path)


def _sent(request: Request, name: str) -> Response:
    file = page_files().get(name)
    if file is None:
        raise ApiError(404, f"The dashboard has no file {name[:256]!r}. It begins at /.")
    request.scope["answer_headers"] = PAGE_HEADERS
    headers = {"ETag": file.tag}
    known = request.headers.get("if-none-match", "")
    if file.tag in (tag.strip().removeprefix("W/") for tag in known.split(",")):
        return Response(status_code=304, headers=headers)
    return Response(file.body, headers={**headers, "Content-Type": file.type})


@lru_cache(maxsize=1)
def page_files() -> dict[str, _File]:
    """The files of the dashboard by their paths below its folder."""
    found: dict[str, _File] = {}
    _gather(files("labelquorum.server").joinpath("dashboard"), "", found)
    return found


def _gather(folder: Traversable, before: str, found: dict[str, _File]) -> None:
    for one in folder.iterdir():
        if one.name.startswith((".", "_")):
            continue
        if one.is_dir():
            _gather(one, f"{before}{one.name}/", found)
            continue
        _, dot, suffix = one.name.rpartition(".")
        kind = TYPES.get(f".{suffix.lower()}") if dot else TYPES[".txt"]
        if kind is not None:
            body = one.read_bytes()
            found[before + one.name] = _File(body, kind, f'"{sha256(body).hexdigest()[:32]}"')
