"""The rules every reader keeps: what a row is, what an id may be, and what becomes of a bad row.

A reader collects columns as it finds them; `checked` makes a sound `LabelTable` of them.

- A row has a task, a worker and a label, each text or a finite number, and a weight, where
  there is one, that is a number from 0 to 1,000,000. Where the classes are given, the label is one.
- A score, where there is one, is a finite number. A worker_kind is human, llm or model; a worker's
  model, prompt and order are text, and a number becomes text.
- A row that breaks a rule is an error that names its place or, with `on_bad="skip"`, is
  left out and counted by reason. An abstention is left out and counted, never an error.
- Ids and labels keep their type, and text is kept as written, outer blanks included. NumPy's
  scalars become Python's. 1 and 1.0 are one id to Python and both are spelled 1, so that a
  column of integers which pandas widened to floats for one NaN comes back as integers.
- A group, a timestamp, a score or an attribute may be missing. Text that reads as a number is a
  timestamp by value; a date becomes ISO text.

A file of one's own may hold any text. What comes over a network is kept, logged and shown, so
`check_names` keeps out names that could break a line, a terminal or a page.
"""

import re
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from datetime import UTC, date, datetime
from heapq import nsmallest
from math import inf, isfinite
from typing import Any, NamedTuple

import numpy as np

from labelquorum.errors import LabelError, StateError
from labelquorum.ingest.chunks import take_rows
from labelquorum.ingest.columns import DictionaryColumn, distinct, kinds_of, mapped, rows_with
from labelquorum.ingest.labels import (
    COLUMN_ALIASES,
    COMMON_NAMES,
    LabelSpace,
    LabelTable,
    ValidTable,
    is_missing,
    validated,
)
from labelquorum.ingest.rows import is_text

ANY_LABEL = LabelSpace()
"""Any class, and the first bad row is an error: the default of every reader."""

COLUMNS = {
    "task": "item_ids",
    "worker": "worker_ids",
    "label": "labels",
    "weight": "weights",
    "group": "groups",
    "timestamp": "timestamps",
    "score": "scores",
    "worker_kind": "worker_kinds",
    "model": "models",
    "prompt": "prompts",
    "order": "orders",
}
"""The field of a `LabelTable` for each role a column may have."""

NEEDED = ("task", "worker", "label")
"""The roles no table can do without."""

ATTRIBUTES = ("worker_kind", "model", "prompt", "order")
"""The roles of columns that tell about the worker, not the label."""

WORKER_KINDS = ("human", "llm", "model")
"""What a worker may be."""

MAX_SCORE = float(np.finfo(np.float32).max)
"""Maximum absolute score: chunks hold scores as float32."""

MAX_WEIGHT = 1e6
"""Maximum weight; more would outweigh all other labels, and lose them in float32."""

SKIP = "Correct it, or choose on_bad='skip' to leave such rows out and count them."
"""The next step after most bad rows."""

CLASSES = SKIP.replace(",", ", add it to the classes if they are yours to choose,", 1)
"""The next step after a label of no class."""

NAMED_ROWS = 20
"""Maximum number of bad rows that one error names."""

Columns = Mapping[str, Any] | None
"""The name of a column for each role, such as {"task": "image"}; None leaves it to aliases."""

_ROLES = {alias: role for role, aliases in COLUMN_ALIASES.items() for alias in aliases}
_COMMON_ROLES = {
    name.replace("_", ""): role for role, names in COMMON_NAMES.items() for name in names
}
_ANY_WORKER = object()
OF_WORKERS: Columns = {"worker": _ANY_WORKER}
"""Says that a table has one row per worker: no task, no label, and `kind` is the worker_kind."""

NAME_COLUMNS = "Rename a column, or name it with columns={'task': …, 'worker': …, 'label': …}."
"""The next step where a table lacks a column."""

_UNUSABLE = object()  # stands for a cell that cannot be an id, such as a list
_LARGEST_EXACT = 2**53  # beyond it a float does not tell one integer from the next
_SHOWN_CLASSES = 20
_SHOWN_CHARACTERS = 80


class Fault(NamedTuple):
    """A bad row: its line, the reason it is counted under, and what an error says of it."""

    line: int
    reason: str
    sentence: str


def find_columns(
    names: Sequence[object], source: str, remedy: str, columns: Columns = None
) -> dict[str, int]:
    """Say at which position a header has the task, the worker, the label and the optional ones."""
    found = match_columns(names, remedy, columns)
    if isinstance(found, Fault):
        raise LabelError(f"{source}: {found.sentence}")
    return found


def match_columns(
    names: Sequence[object], remedy: str, columns: Columns = None
) -> dict[str, int] | Fault:
    """Match names with columns, or say why they do not.

    A column is found by what `columns` says; else by an alias, in any case; else by a common name,
    if only one column has one.
    """
    needed: Sequence[str] = NEEDED
    if columns is not None and columns.get("worker") is _ANY_WORKER:
        columns, needed = _columns_of_workers(names), ("worker",)
        remedy = "Give a table with the column worker, one row per worker."
    found: dict[str, int] = {}
    for role, name in (columns or {}).items():
        if role not in COLUMN_ALIASES:
            raise StateError(f"`columns` names {list(COLUMN_ALIASES)}. Got {role!r}.")
        if name not in names:
            rule = f"columns= says that {name!r} names the {role}, and there is no such column"
            return Fault(1, f"missing {role}", f"{rule}. Got {list(names)!r}. Correct it.")
        found[role] = names.index(name)
    free = [at for at in range(len(names)) if at not in found.values()]
    for known, is_common in ((_ROLES, False), (_COMMON_ROLES, True)):
        matched: dict[str, list[int]] = {}
        for at in free:
            name = names[at]
            key = _bare(name, is_common) if isinstance(name, str) else None
            if key in known and known[key] not in found:
                matched.setdefault(known[key], []).append(at)
        for role, places in matched.items():
            if len(places) > 1:
                several = " and ".join(repr(names[at]) for at in places[:2])
                rule = f"{several} both name the {role}, and only one may"
                choose = f", or choose: columns={{{role!r}: …}}" if "columns=" in remedy else ""
                fault = f"{rule}. Remove or rename one of them{choose}."
                return Fault(1, "malformed row", fault)
            found[role] = places[0]
    for role in needed:
        if role not in found:
            *others, last = (repr(alias) for alias in COLUMN_ALIASES[role])
            rule = f"nothing names the {role}, which may be called {', '.join(others)} or {last}"
            return Fault(1, f"missing {role}", f"{rule}. Got {list(names)!r}. {remedy}")
    return found


def _columns_of_workers(names: Sequence[object]) -> dict[str, object]:
    """The worker's column as every column a table of labels needs; `kind` as the worker_kind."""
    columns = {_bare(name): name for name in names if isinstance(name, str)}
    worker = next((name for bare, name in columns.items() if role_of(bare) == "worker"), None)
    found: dict[str, object] = {} if worker is None else dict.fromkeys(NEEDED, worker)
    if "kind" in columns and "worker_kind" not in columns:
        found["worker_kind"] = columns["kind"]
    return found


def role_of(name: object) -> str | None:
    """Say what a column of this name holds; None where it is no concern of ours."""
    if not isinstance(name, str):
        return None
    return _ROLES.get(_bare(name)) or _COMMON_ROLES.get(_bare(name, is_common=True))


def _bare(name: str, is_common: bool = False) -> str:
    """A name without what spellings differ in."""
    bare = name.strip().lower()
    return re.sub(r"[\W_]+", "", bare) if is_common else bare


def checked(raw: LabelTable, space: LabelSpace, faults: Sequence[Fault] = ()) -> LabelTable:
    """Make a table keep the rules: the one gate every reader goes through.

    Rules are tested on the distinct values of a column, not row by row, so a sound table
    costs little.

    Parameters
    ----------
    raw
        The columns as found.
    space
        What a label may be, and what happens to bad rows.
    faults
        Rows that are not in `raw` because they could not be split into cells.
    """
    if isinstance(raw, ValidTable) and raw.is_valid(space) and not faults:
        return raw
    bad: dict[int, str] = {}  # row: the first rule it breaks
    columns: dict[str, Any] = {}
    for role in (*NEEDED, "group", *ATTRIBUTES):
        name = COLUMNS[role]
        if getattr(raw, name) is not None:
            columns[name], reasons = _check_ids(role, getattr(raw, name))
            if role == "label":
                _check_classes(columns[name], reasons, space)
            if role not in NEEDED and reasons:  # a label need not have one
                columns[name] = mapped(columns[name], lambda v: None if is_missing(v) else v)
                reasons.pop(None, None)
            if role in ATTRIBUTES:
                columns[name] = mapped(columns[name], _attribute)
            if role == "worker_kind":
                columns[name] = mapped(columns[name], _kind)
                unknown = set(columns[name]).difference(WORKER_KINDS, {None})
                reasons.update(dict.fromkeys(unknown, "bad worker_kind"))
            if reasons:
                for row, value in rows_with(columns[name], reasons):
                    bad.setdefault(row, reasons[value])
    if raw.weights is not None:
        columns["weights"] = mapped(raw.weights, _number)
        weights = np.asarray(columns["weights"], np.float64)
        for row in np.flatnonzero(~((weights >= 0) & (weights <= MAX_WEIGHT))).tolist():
            bad.setdefault(row, "bad weight")
    if raw.scores is not None:
        columns["scores"] = mapped(raw.scores, _score)
        scores = np.asarray(columns["scores"], np.float64)  # None is NaN here
        for row in np.flatnonzero(np.abs(scores) > MAX_SCORE).tolist():
            bad.setdefault(row, "bad score")
    if raw.timestamps is not None:
        columns["timestamps"] = mapped(raw.timestamps, _moment)
        if not isinstance(raw.timestamps, DictionaryColumn):  # whose values can be hashed
            for row, value in enumerate(columns["timestamps"]):
                if isinstance(value, list | dict | set):
                    bad.setdefault(row, "bad timestamp")

    if not bad and not faults:
        return validated(raw._replace(**columns), space)
    if space.on_bad == "error":
        _raise_bad(raw, space, bad, faults)
    skipped = Counter(raw.skipped) + Counter(bad.values()) + Counter(f.reason for f in faults)
    return validated(_without(raw._replace(**columns), bad, skipped), space)


def _without(table: LabelTable, bad: Collection[int], skipped: Mapping[str, int]) -> LabelTable:
    """The table without its bad rows; the others keep their number."""
    n_rows = len(table.labels)
    is_good = np.ones(n_rows, bool)
    is_good[list(bad)] = False
    table = table._replace(lines=range(n_rows) if table.lines is None else table.lines)
    return take_rows(table, np.flatnonzero(is_good))._replace(skipped=dict(skipped))


def _check_ids(role: str, column: Sequence[Any]) -> tuple[Sequence[Any], dict[Hashable, str]]:
    """Bring a column to plain values, and say which of them break a rule, and why."""
    if not isinstance(column, list | DictionaryColumn):
        column = list(column)
    if isinstance(column, list) and is_text(column):
        return column, {}
    kinds = kinds_of(column)
    if not kinds <= {str, int, bool}:
        column = mapped(column, _plain)
        kinds = kinds_of(column)
    if kinds <= {int, bool, float}:
        return column, {}
    values: Any = column.values if isinstance(column, DictionaryColumn) else set(column)
    if kinds == {str} and all(map(str.strip, values)) and _is_utf8("".join(values)):
        return column, {}
    reasons: dict[Hashable, str] = {}
    for value in values:
        if is_missing(value):
            reasons[value] = f"missing {role}"
        elif value is _UNUSABLE or not _is_utf8(value):
            reasons[value] = f"bad {role}"
    return column, reasons


def _check_classes(
    labels: Sequence[Hashable], reasons: dict[Hashable, str], space: LabelSpace
) -> None:
    """Add to the reasons the labels that are an abstention or none of the classes."""
    if space.abstain is not None:
        if is_missing(space.abstain):  # an empty label is how this crowd abstains
            empty = [label for label, reason in reasons.items() if reason == "missing label"]
            reasons.update(dict.fromkeys(empty, "abstained"))
        else:
            reasons[space.abstain] = "abstained"
    if space.classes is not None:
        said = labels.values if isinstance(labels, DictionaryColumn) else labels
        unknown = set(said).difference(space.classes, reasons)
        reasons.update(dict.fromkeys(unknown, "unknown class"))


def _plain(value: Any) -> Hashable:
    """One cell as Python text or number; None where it is missing."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str | int):
        return value
    if isinstance(value, float) and isfinite(value):
        whole = value.is_integer() and abs(value) < _LARGEST_EXACT
        return int(value) if whole else value
    if getattr(value, "__hash__", None) is not None and is_missing(value):
        return None
    return _UNUSABLE


def _is_utf8(value: object) -> bool:
    """Tell text that can be written out again from text that holds half a character."""
    try:
        return not isinstance(value, str) or value.encode() is not None
    except UnicodeEncodeError:
        return False


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def _score(value: Any) -> float | None:
    """One score; None where it is missing, infinite where it is no finite number."""
    if getattr(value, "__hash__", None) is not None and is_missing(value):
        return None
    number = _number(value)
    return number if isfinite(number) else inf


def _attribute(value: Any) -> Any:
    """An attribute of a worker as text; what is missing or unusable stays."""
    return value if value is None or value is _UNUSABLE else str(value)


def _kind(value: Any) -> Any:
    return value.strip().lower() if isinstance(value, str) else value


def _moment(value: Any) -> Any:
    """One timestamp: a number where it is text that reads as one, so that 9 comes before 10.

    A date becomes ISO text of one width, which sorts by time and can be saved.
    """
    if isinstance(value, datetime) and not is_missing(value):
        moment = value if value.tzinfo is None else value.astimezone(UTC)
        return moment.isoformat(timespec="microseconds")
    if isinstance(value, date) and not is_missing(value):
        return value.isoformat()
    number = _number(value) if isinstance(value, str) else float("nan")
    return number if isfinite(number) else None if is_missing(value) else value


def _raise_bad(
    raw: LabelTable,
    space: LabelSpace,
    bad: Mapping[int, str],
    faults: Sequence[Fault],
) -> None:
    """Raise an error that names the first bad rows, if there are any."""
    lines = range(len(raw.labels)) if raw.lines is None else raw.lines
    rows = nsmallest(NAMED_ROWS, (row for row, reason in bad.items() if reason != "abstained"))
    found = [Fault(lines[row], bad[row], _sentence(raw, space, row, bad[row])) for row in rows]
    if found or faults:
        first = nsmallest(NAMED_ROWS, [*faults, *found])
        sentences = [f"{raw.source} {raw.unit} {f.line}: {f.sentence}" for f in first]
        raise LabelError(sentences[0], sentences[1:])


def _sentence(raw: LabelTable, space: LabelSpace, row: int, reason: str) -> str:
    """Say which rule a row breaks, what it holds, and what to do."""
    if reason == "unknown class":
        label, classes = _plain(raw.labels[row]), list(space.classes or ())
        some = classes[:_SHOWN_CLASSES] + ["…"] * (len(classes) > _SHOWN_CLASSES)
        twins = [c for c in classes if str(c) == str(label)]
        hint = "".join(
            f" The class {twin!r} is {kind_of_value(twin)} and the label {kind_of_value(label)}: "
            "write both alike."
            for twin in twins
        )
        return f"label {shown(label)} is not one of the classes {some!r}.{hint} {CLASSES}"
    fault, role = reason.split()
    got = ", ".join(
        f"{role} {shown(getattr(raw, COLUMNS[role])[row])}"
        for role in dict.fromkeys((*NEEDED, role))
    )
    if fault == "missing":
        rule = f"the {role} is missing, and every row needs a task, a worker and a label"
    elif role == "weight":
        rule = "the weight is not a number from 0 to 1,000,000"
    elif role == "score":
        rule = "the score is not a finite number"
    elif role == "worker_kind":
        rule = f"the worker_kind is not one of {', '.join(WORKER_KINDS)}"
    else:
        rule = f"the {role} is neither text (UTF-8) nor a finite number"
    return f"{rule}. Got {got}. {SKIP}"


def kind_of_value(value: object) -> str:
    """Name a value's type for a message."""
    return "text" if isinstance(value, str) else f"of type {type(value).__name__}"


def shown(value: object) -> str:
    """Write a value for a message, not too long."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


# ── names that strangers send ────────────────────────────────────────────────────────────


NAME_BYTES = 256
"""Maximum length of a name as UTF-8."""

_NAMES = ("task", "worker", "label", "group", "timestamp", "model", "prompt", "order")
_SURELY_SHORT = NAME_BYTES // 4  # characters; none has more than four bytes
_LARGEST_BITS = 850  # of a whole number; more would not fit into the bytes as digits
_BIDI = re.compile(r"[\u202a-\u202e\u2066-\u2069]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def is_printable_name(name: object) -> bool:
    """Whether this is text that can be printed, not blank and not too long: a stream, a key."""
    return (
        isinstance(name, str)
        and bool(name.strip())
        and name.isprintable()
        and len(name.encode("utf-8", "replace")) <= NAME_BYTES
    )


def unique_names(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dict of the names and values of a JSON object; raise a ValueError for a name twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"an object has the name {name[:40]!r} twice")
    return found


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


def fault_of_new_name(name: Hashable) -> str | None:
    """The same for a name that comes in: it may not change the direction of the text around it."""
    fault = fault_of_name(name)
    if fault is None and isinstance(name, str) and not name.isprintable() and _BIDI.search(name):
        return "has a bidirectional control character in it"
    return fault


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
        faults = {name: why for name in distinct(column) if (why := fault_of_new_name(name))}
        if faults:
            for row, name in rows_with(column, faults):
                bad.setdefault(row, (role, faults[name]))
    if not bad:
        return table
    if space.on_bad == "error":
        sentences = []
        for row in sorted(bad)[:NAMED_ROWS]:
            role, why = bad[row]
            got = shown(getattr(table, COLUMNS[role])[row])
            sentences.append(f"{table.where(row)}: the {role} {why}. Got {got}. {SKIP}")
        raise LabelError(sentences[0], sentences[1:])
    skipped = Counter(table.skipped) + Counter(f"bad {role}" for role, _ in bad.values())
    return _without(table, bad, skipped)


def _escaped(name: str) -> str:
    """As JSON text has it, less the quotes around."""
    return name.replace("\\", "\\\\").replace('"', '\\"')
