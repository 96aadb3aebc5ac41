"""Errors of the API, in one JSON shape.

`{"ok": false, "error": "…", "errors": ["…"], "status": 422}`: the first sentence, and all.
"""

import errno
import json
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from labelquorum.errors import ConflictError, LabelError, LabelQuorumError, LimitError, StateError
from labelquorum.server.schemas import ErrorShape

RETRY_SECONDS = 1
BUG = "The service could not do this; the reason is in its log. Ask its administrator."


class ApiError(Exception):
    """An error response: its status and its sentences."""

    def __init__(
        self, status: int, *sentences: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(sentences[0])
        self.status, self.sentences, self.headers = status, sentences, dict(headers or {})


def retry_later(sentence: str) -> ApiError:
    """The error of what may succeed in a second."""
    return ApiError(503, sentence, headers={"Retry-After": str(RETRY_SECONDS)})


def error_response(
    status: int, sentences: Sequence[str], headers: Mapping[str, str] | None = None
) -> Response:
    """The response of an error."""
    plain = [sentence.encode("utf-8", "replace").decode() for sentence in sentences]
    body = {"ok": False, "error": plain[0], "errors": plain, "status": status}
    return Response(
        json.dumps(body, ensure_ascii=False).encode(), status, headers, "application/json"
    )


def api_error_of(error: Exception) -> ApiError:
    """An error as the client sees it."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, LimitError):
        return ApiError(413, str(error))
    if isinstance(error, LabelError):
        return ApiError(422, *error.sentences)
    if isinstance(error, StateError):
        return ApiError(422, str(error))
    if isinstance(error, ConflictError):
        return ApiError(409, str(error))
    status = 507 if _is_full(error) else 503
    return ApiError(status, str(error), headers={"Retry-After": str(RETRY_SECONDS)})


def add_error_handlers(app: FastAPI) -> None:
    """Answer every error in the one shape, FastAPI's own included."""

    async def on_api_error(_: Request, error: Exception) -> Response:
        api_error = api_error_of(error)
        return error_response(api_error.status, api_error.sentences, api_error.headers)

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        method, path = request.method, request.url.path
        sentence = {
            404: f"There is no {path!r} here. The routes are in /openapi.json.",
            405: f"{method} is not for {path!r}. The routes are in /openapi.json.",
        }.get(error.status_code, str(error.detail))
        return error_response(error.status_code, [sentence], error.headers)

    async def on_invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return error_response(
            422, [sentence_of(one, str(one["loc"][0])) for one in error.errors()[:20]]
        )

    async def on_bug(_: Request, __: Exception) -> Response:  # the middleware logs it
        return error_response(500, [BUG])

    for kind in (ApiError, LabelQuorumError):
        app.add_exception_handler(kind, on_api_error)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(Exception, on_bug)


def sentence_of(error: Mapping[str, Any], place: str) -> str:
    """One of pydantic's complaints as a sentence."""
    path = [str(part) for part in error["loc"]]
    if path[:1] == [place]:
        path = path[1:]
    name = ".".join(path) or place
    got = repr(error.get("input"))[:80]
    return f"`{name}` in the {place}: {_rule(error)}. Got {got}."


def _rule(error: Mapping[str, Any]) -> str:
    """The rule that is broken, in our words where pydantic's name no remedy."""
    kind = error["type"]
    if kind == "extra_forbidden":
        return "nothing of this name belongs there; /openapi.json lists what does"
    if kind == "missing":
        return "this is needed"
    if kind == "string_pattern_mismatch":
        choices = re.search(r"'\^\((\w+(?:\|\w+)*)\)\$'", error["msg"])
        if choices:
            return f"it must be one of {choices[1].split('|')}"
    return str(error["msg"])


def _is_full(error: BaseException | None) -> bool:
    """Tell whether there is no room left on a disk."""
    while error is not None:
        original = getattr(error, "orig", error)
        if (
            getattr(original, "errno", None) == errno.ENOSPC
            or getattr(original, "sqlite_errorname", None) == "SQLITE_FULL"
            or getattr(original, "sqlstate", None) == "53100"
        ):
            return True
        error = error.__cause__
    return False


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors of a route, for OpenAPI."""
    return {
        status: {"model": ErrorShape, "description": HTTPStatus(status).phrase}
        for status in statuses
    }
