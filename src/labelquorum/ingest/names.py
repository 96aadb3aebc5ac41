"""What an id may look like that strangers send: short, and without control characters.

A file of one's own may hold any text. What comes over a network is kept, logged and shown, so
names that could break a line, a terminal or a page have to stay outside.
"""

import re
from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import compress
from typing import Any

from labelquorum.errors import LabelError
from labelquorum.ingest.events import LabelSpace, LabelTable
from labelquorum.ingest.rules import COLUMNS, NAMED_ROWS, SKIP, shown

__all__ = ["NAME_BYTES", "check_names", "fault_of_name"]

NAME_BYTES = 256
"""No name is longer, written as UTF-8."""

_NAMES = ("task", "worker", "label", "group", "timestamp")
_SURELY_SHORT = NAME_BYTES // 4  # characters; none has more than four bytes
_LARGEST_BITS = 850  # of a whole number; more would not fit into the bytes as digits
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def fault_of_name(name: Hashable) -> str | None:
    """Say which rule a name breaks; None where it keeps them all."""
    if isinstance(name, str):
        if not name.isprintable() and _CONTROL.search(name):
            return "has a control character in it"
        if len(name) > _SURELY_SHORT and len(_escaped(name).encode()) > NAME_BYTES:
            return f"is longer than {NAME_BYTES} bytes"
    elif isinstance(name, int) and name.bit_length() > _LARGEST_BITS:
        return f"is longer than {NAME_BYTES} bytes"
    return None


def check_names(table: LabelTable, space: LabelSpace) -> LabelTable:
    """Make a table keep the rules for names; rows that break them are treated as bad rows are.

    Parameters
    ----------
    table
        Labels that were checked.
    space
        What happens to bad rows.
    """
    bad: dict[int, tuple[str, str]] = {}
    for role in _NAMES:
        column: Sequence[Any] | None = getattr(table, COLUMNS[role])
        if column is None:
            continue
        faults = {name: why for name in set(column) if (why := fault_of_name(name))}
        if faults:
            for row, name in enumerate(column):
                if name in faults:
                    bad.setdefault(row, (role, faults[name]))
    if not bad:
        return table
    if space.on_bad == "error":
        told = []
        for row in sorted(bad)[:NAMED_ROWS]:
            role, why = bad[row]
            got = shown(getattr(table, COLUMNS[role])[row])
            told.append(f"{table.where(row)}: the {role} {why}. Got {got}. {SKIP}")
        raise LabelError(told[0], told[1:])
    good = [row not in bad for row in range(len(table.labels))]
    kept: dict[str, Any] = {
        name: list(compress(column, good))
        for name in (*COLUMNS.values(), "lines")
        if (column := getattr(table, name)) is not None
    }
    if table.lines is None:
        kept["lines"] = [row for row, is_good in enumerate(good) if is_good]
    skipped = Counter(table.skipped) + Counter(f"bad {role}" for role, _ in bad.values())
    return table._replace(**kept, skipped=dict(skipped))


def _escaped(name: str) -> str:
    """As JSON text has it, less the quotes around."""
    return name.replace("\\", "\\\\").replace('"', '\\"')
