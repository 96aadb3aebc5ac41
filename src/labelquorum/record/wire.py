"""Work and outcomes as bytes, for a learner in a process of its own.

A frame is its length and JSON; bytes travel as base64. Nothing that is read is ever run.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any

from labelquorum import errors
from labelquorum.errors import LabelQuorumError
from labelquorum.record.rows import AnswerRow, LabelRow, OpenRow, Outcome, Work, WorkerRow

__all__ = ["LENGTH_BYTES", "outcome_from", "pack", "raised", "told", "unpack", "work_from"]

LENGTH_BYTES = 8
_BYTES = "$bytes"


def pack(value: Any) -> bytes:
    """A value as a frame; named tuples become lists."""
    body = json.dumps(value, separators=(",", ":"), default=_as_text).encode()
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def unpack(body: bytes) -> Any:
    """What was packed, without the length."""
    return json.loads(body, object_hook=_as_bytes)


def work_from(parts: list[Any]) -> Work:
    """Work as it was before it was packed."""
    work = Work(*parts)
    return work._replace(
        workers=[WorkerRow(*row) for row in work.workers],
        open_items=[OpenRow(*row) for row in work.open_items],
        labels=[LabelRow(*row) for row in work.labels],
        gold=[(item, truth) for item, truth in work.gold],
    )


def outcome_from(parts: list[Any]) -> Outcome:
    """An outcome as it was before it was packed."""
    outcome = Outcome(*parts)
    return outcome._replace(
        workers=[WorkerRow(*row) for row in outcome.workers],
        answers=[AnswerRow(*row) for row in outcome.answers],
        open_items=[OpenRow(*row) for row in outcome.open_items],
    )


def told(error: Exception) -> dict[str, str]:
    """An error as it travels."""
    return {"error": type(error).__name__, "message": str(error)}


def raised(reply: dict[str, str]) -> Exception:
    """The error that was told: our own by its name, any other as a sentence."""
    name, message = reply["error"], reply["message"]
    if name in errors.__all__:
        kind: Callable[[str], LabelQuorumError] = getattr(errors, name)
        return kind(message)
    return RuntimeError(f"{name}: {message}")


def _as_text(value: object) -> dict[str, str]:
    if isinstance(value, bytes):
        return {_BYTES: b64encode(value).decode()}
    raise TypeError(f"{type(value).__name__} has no place in a frame.")


def _as_bytes(found: dict[str, Any]) -> Any:
    return b64decode(found[_BYTES]) if found.keys() == {_BYTES} else found
