"""Ids in addresses, and where a page ends."""

import base64
import binascii
import json
from collections.abc import Hashable
from math import isfinite
from typing import Annotated, Any

from fastapi import Query

from labelquorum.ingest.validate import fault_of_name
from labelquorum.server.errors import Refusal

__all__ = ["Cursor", "Limit", "Search", "after_cursor", "cursor_of", "spellings"]


def spellings(segment: str, what: str) -> list[Hashable]:
    """What a part of an address may name: the text, then the number it reads as.

    Parameters
    ----------
    segment
        As it was in the address.
    what
        Its name in errors.

    Examples
    --------
    >>> spellings("7", "task"), spellings("owl", "task")
    (['7', 7], ['owl'])
    """
    if not segment.strip() or "\ufffd" in segment:
        raise Refusal(422, f"The address has no {what} in it, or one that is not UTF-8.")
    fault = fault_of_name(segment)
    if fault is not None:
        raise Refusal(422, f"The {what} in the address {fault}. No {what} is called so.")
    found: list[Hashable] = [segment]
    if segment[0] in "-0123456789":
        try:
            number = json.loads(segment, parse_constant=float)
        except ValueError:
            return found
        if isinstance(number, float) and number.is_integer():
            number = int(number)
        if number == number and fault_of_name(number) is None:
            found.append(number)
    return found


def cursor_of(place: Any) -> str:
    """Where a page ended, as it is told to the reader."""
    text = json.dumps(place, ensure_ascii=False)
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def after_cursor(cursor: str | None, kind: type | tuple[type, ...]) -> Any:
    """Where the page before ended; None where there was none."""
    if cursor is None:
        return None
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        place = json.loads(base64.b64decode(padded, b"-_", validate=True))
        if isinstance(place, kind) and _is_place(place) and (kind is not int or _fits(place)):
            return place
    except (binascii.Error, ValueError, RecursionError):
        pass
    raise Refusal(
        422, f"`cursor` must be the `next` of the page before. Got {cursor[:40]!r}. Leave it out."
    )


def _is_place(place: Any) -> bool:
    """Tell whether a page can have ended there: at an id, or at a number and an id."""
    if isinstance(place, list):
        if len(place) != 2 or not isinstance(place[0], int | float) or not _fits(place[0]):
            return False
        place = place[1]
    return isinstance(place, str | int | float) and not (
        isinstance(place, bool) or fault_of_name(place)
    )


def _fits(number: Any) -> bool:
    """Tell whether a column of a database can hold a number."""
    return not isinstance(number, bool) and abs(number) < 2**63 and isfinite(number)


Cursor = Annotated[str | None, Query(max_length=1024, description="The `next` of the page before.")]
Limit = Annotated[int, Query(ge=1, le=1000)]
Search = Annotated[str | None, Query(max_length=256, description="A part of the id.")]
