"""When an item is ready, when a chunk is cut, and how long labels stay.

An item is ready once it has `labels_per_item` labels, or `max_wait` seconds after its first. By
default its first label is enough, and later ones answer it again. A chunk is cut as soon as
`chunk_items` items are ready, or `max_chunk_wait` seconds after the first of them was. Items go in
the order of their first labels, so no clock decides an order.

What becomes of a label that is not simply new:

- The same worker on the same item again, before the item is cut: one of the two counts, by the
  stream's `repeats`, and the item is no more ready than before.
- Retracted before it is cut (`Stream.retract`): gone as if it had never come.
- Late, while its item is still open (`grace`): the item is ready again at once and is answered
  again from all its labels; a correction replaces what it corrects.
- Late, and its item is closed: set aside, counted by the stream, and reported in the receipt with
  the reason. It teaches nothing and changes no answer: one late label knows less than those that
  are gone. By default no item closes.
- Of an item whose chunk was quarantined: it counts as a new item's.
"""

import operator
from dataclasses import asdict, dataclass, fields, replace
from math import inf, isfinite
from typing import Any, Literal, get_args

from labelquorum.errors import StateError

DAY = 86_400.0
"""Seconds."""
MAX_COUNT = 2**31 - 1
"""No count is larger; a database could not compare with it."""

Retention = Literal["discard", "keep_days", "keep"]


@dataclass(frozen=True, slots=True)
class Rules:
    """When chunks are cut and labels deleted; any of it can be changed while the stream runs.

    Parameters
    ----------
    labels_per_item
        Number of labels that make an item ready: with 1 it is answered from its first label, and
        again from later ones while it is open.
    max_wait
        Seconds after its first label until it is ready with fewer; None waits forever.
    chunk_items
        Number of ready items that make a chunk.
    max_chunk_wait
        Seconds after the first was ready until fewer do; None waits forever.
    retention
        "keep" deletes no raw labels, "keep_days" deletes them `days` after their chunk was cut,
        "discard" in the commit that answers their item.
    grace
        Seconds an answered item stays open, with its evidence; None never closes it, 0 at once.
    days
        Days that "keep_days" keeps labels.
    max_workers
        Maximum number of workers; labels of more are refused.

    Notes
    -----
    The defaults lose no label. The paper's regime, in which a task is answered once and its labels
    are then deleted, is `Rules(labels_per_item=3, retention="discard", grace=0)`.
    """

    labels_per_item: int = 1
    max_wait: float | None = 3600.0
    chunk_items: int = 50
    max_chunk_wait: float | None = 60.0
    retention: Retention = "keep"
    grace: float | None = None
    days: float = 30.0
    max_workers: int = 100_000

    def __post_init__(self) -> None:
        for name in ("labels_per_item", "chunk_items", "max_workers"):
            value = getattr(self, name)
            try:
                whole = not isinstance(value, bool) and 1 <= operator.index(value) <= MAX_COUNT
            except TypeError:
                whole = False
            if not whole:
                raise StateError(
                    f"`{name}` must be a whole number from 1 to {MAX_COUNT:,}. Got {value!r}."
                )
        for name in ("max_wait", "max_chunk_wait", "grace", "days"):
            value = getattr(self, name)
            if value is None and name != "days":
                continue
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not isfinite(value) or value < 0:
                never = "" if name == "days" else ", or None for never"
                raise StateError(f"`{name}` must be a number ≥ 0{never}. Got {value!r}.")
        if self.retention not in get_args(Retention):
            raise StateError(
                f"`retention` must be one of {list(get_args(Retention))}. Got {self.retention!r}."
            )

    def changed(self, **changes: Any) -> "Rules":
        """The rules with some of them changed."""
        known = [field.name for field in fields(self)]
        for name in changes:
            if name not in known:
                raise StateError(f"A stream has no rule {name!r}. It has {known}.")
        return replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        """The rules by name."""
        return asdict(self)

    def is_full(self, n_labels: int) -> bool:
        """Whether this number of labels makes an item ready."""
        return n_labels >= self.labels_per_item

    def is_due(self, n_ready: int, first_ready: float | None, now: float) -> bool:
        """Whether a chunk is due: how many items are ready, and since when the first is."""
        if n_ready >= self.chunk_items:
            return True
        if not n_ready or first_ready is None or self.max_chunk_wait is None:
            return False
        return now - first_ready >= self.max_chunk_wait

    def open_until(self, cut_at: float) -> float | None:
        """How long the items of a chunk stay open; None closes them at once."""
        if self.grace is None:
            return inf
        return cut_at + self.grace if self.grace else None
