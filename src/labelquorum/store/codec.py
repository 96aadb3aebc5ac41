"""Ids, labels and settings as JSON text of one spelling.

They are the user's own. Kept as JSON their type comes back, and NUL and quotes are only
text to either database.
"""

import json
import re
from collections.abc import Hashable, Sequence
from typing import Any

from labelquorum.errors import LabelError
from labelquorum.ingest.validate import NAME_BYTES

__all__ = ["decode", "decode_all", "encode", "encode_id"]

_encoder = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def encode(value: Any) -> str:
    """A value as JSON text of one spelling."""
    return _encoder.encode(value)


def decode(text: str) -> Any:
    """The value `encode` was given."""
    return json.loads(text)


def decode_all(texts: Sequence[str]) -> list[Any]:
    """The values `encode` was given, many at once, which takes a fraction of the time."""
    values: list[Any] = json.loads(f"[{','.join(texts)}]")
    if len(values) != len(texts):
        raise ValueError("a text that was kept is not one value of JSON")
    return values


def encode_id(identity: Hashable, what: str, where: str) -> str:
    """An id or a label as text; equal ids have equal text."""
    if isinstance(identity, str):
        if not identity.isprintable() and (bad := _UNFIT.search(identity)):
            raise LabelError(
                f"{where}: the {what} has the character {bad[0]!a}, which is no text. "
                f"Got {identity[:40]!a}. Take it out."
            )
        text = _quoted(identity)
    else:
        text = encode(identity + 0 if isinstance(identity, bool) and what != "label" else identity)
    if len(text) > NAME_BYTES // 4 and len(text.encode()) > NAME_BYTES + 2:  # quotes
        raise LabelError(
            f"{where}: the {what} is longer than {NAME_BYTES} bytes. Got {text[:40]}…. Shorten it."
        )
    return text


_quoted = json.encoder.encode_basestring  # what `encode` does to text
_UNFIT = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\ud800-\\udfff]")  # controls, half characters
