"""Large answers: few at a time, and sent in pieces of one buffer that all their readers share."""

from collections import Counter
from collections.abc import Awaitable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from labelquorum.server.auth import Keyring
from labelquorum.server.errors import RETRY_SECONDS, error_response
from labelquorum.store.api_keys import Key

LARGE_BYTES = 10**6
"""A body above this counts as large, and so does one of unknown size; events do not."""

MAX_OPEN, MAX_OPEN_PER_KEY = 16, 4
"""Large answers that are sent at a time, each with its body in memory or in a file."""

TOO_MANY = "Too many large answers are being sent at the moment. Retry when one has ended."
LATER = {"Retry-After": str(10 * RETRY_SECONDS)}

PIECE_BYTES = 2**18
"""A reader who takes less than a piece in `read_seconds` is cut off: 13 kB/s at 20 seconds."""


class LargeAnswers:
    """Counts the large answers that are being sent, and cuts off those of a revoked key."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring
        self.open: Counter[int | None] = Counter()  # by the number of their key

    async def answer(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Let an app answer; one large answer too many is 503 instead."""
        key: Key | None = scope.get("key")
        number = None if key is None else key.id
        is_large = False

        def has_room() -> bool:
            return self.open.total() < MAX_OPEN and self.open[number] < MAX_OPEN_PER_KEY

        scope["has_room"] = has_room  # asked before a large answer is made, too

        def sending(message: Message) -> Awaitable[None]:
            begins = message["type"] == "http.response.start" and _is_large(message)
            return send_large(message) if begins or is_large else send(message)

        async def send_large(message: Message) -> None:
            nonlocal is_large
            if not is_large:
                if not has_room():
                    await _refused(scope, receive, send)
                    raise _CutError
                is_large = True
                self.open[number] += 1
                await send(message)
                return
            body, more = memoryview(message.get("body", b"")), message.get("more_body", False)
            for start in range(0, max(1, len(body)), PIECE_BYTES):
                if key is not None and not self._keyring.holds(key):
                    raise _CutError
                end = start + PIECE_BYTES
                has_more = more or end < len(body)
                await send({**message, "body": body[start:end], "more_body": has_more})

        try:
            await app(scope, receive, sending)
        except _CutError:
            pass
        finally:
            if is_large:
                self.open[number] -= 1


class _CutError(Exception):
    """An answer that is cut off, because its key was revoked or it has no place."""


def _is_large(start: Message) -> bool:
    headers = dict(start["headers"])
    if b"content-length" in headers:
        return int(headers[b"content-length"]) > LARGE_BYTES
    kind = headers.get(b"content-type", b"")
    return start["status"] == 200 and not kind.startswith(b"text/event-stream")


_refused = error_response(503, [TOO_MANY], LATER)
