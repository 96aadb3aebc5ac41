"""What is sent to a stream, read and checked before any transaction.

A `Batch` is a table of labels as the store keeps them, under the sender's own key. Making one
needs no database, so it may be done anywhere, by many at a time.

Ids, labels and settings are stored as JSON text of one spelling: their type comes back, and NUL and
quotes are only text to either database.
"""

import json
import re
from collections.abc import Hashable, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from labelquorum.errors import LabelError, StateError
from labelquorum.ingest.labels import LabelSpace, LabelTable
from labelquorum.ingest.readers import read_labels
from labelquorum.ingest.validate import NAME_BYTES
from labelquorum.ingest.worker_attributes import Attributes, joined

CLOSED = (
    "Late labels came when their tasks were closed: they are not stored and change no answer. For "
    "later labels to count, set the stream's rule `grace` longer, or to null so that tasks stay "
    "open from now on."
)
"""Why a label does not count, and what to do."""


class Submission(NamedTuple):
    """A table as it is sent; see `Stream.accept`."""

    labels: Any
    key: str | None = None
    source: str | None = None
    position: str | None = None


class Receipt(NamedTuple):
    """What became of the labels that were sent; they are durable once one has it."""

    accepted: int
    late: int  # set aside: their items are closed
    skipped: Mapping[str, int]  # bad rows left out, by reason
    first_row: int | None
    last_row: int | None
    repeated: bool = False  # they were accepted before under this key: nothing is counted twice

    @property
    def reason(self) -> str | None:
        """Why some of the labels do not count, and what to do; None where all do."""
        return CLOSED if self.late else None


class Row(NamedTuple):
    """A label as it is kept."""

    item: str
    worker: str
    label: str
    weight: float | None
    group: str | None
    timestamp: str | None


class Batch(NamedTuple):
    """A table that was read and checked."""

    rows: list[Row]
    skipped: Mapping[str, int]
    body: str  # SHA-256
    key: str | None
    source: str | None
    position: str | None
    scores: Sequence[float | None] | None = None  # one per row
    attributes: Mapping[str, Attributes] = {}  # by worker


def prepare(sent: Submission, space: LabelSpace) -> Batch:
    """Read and check what was sent."""
    labels, key, source, position = sent
    if (source is None) != (position is None):
        raise StateError("`source` and `position` go together. Give both, or neither.")
    return batch_of(read_labels(labels, space), key, source, position)


def batch_of(
    table: LabelTable,
    key: str | None = None,
    source: str | None = None,
    position: str | None = None,
) -> Batch:
    """Make a batch of labels that were read and checked by the stream's own rules."""
    check_names(key=key, source=source, position=position)
    rows = _rows(table)
    scores = None if table.scores is None else list(table.scores)
    attributes = {
        encode_id(worker, "worker", table.source): known
        for worker, known in joined({}, [table]).items()
    }
    for known in attributes.values():
        for name, value in known._asdict().items():
            if value is not None:
                encode_id(value, name, table.source)  # refuses what is no text, or too long
    # Of labels that have neither, as before there were any: senders may send them again.
    body: Any = rows if scores is None and not attributes else [rows, scores, attributes]
    digest = sha256(encode(body).encode()).hexdigest()
    return Batch(rows, dict(table.skipped), digest, key, source, position, scores, attributes)


def check_names(**names: object) -> None:
    """Refuse a key, a source or a position that cannot be kept."""
    for what, value in names.items():
        if value is not None and not _is_name(value):
            raise StateError(
                f"`{what}` must be text of 1 to {NAME_BYTES} bytes. Got {str(value)[:40]!r}."
            )


def _rows(table: LabelTable) -> list[Row]:
    """The labels as they are kept."""
    columns = [
        _texts(table, table.item_ids, "task"),
        _texts(table, table.worker_ids, "worker"),
        _texts(table, table.labels, "label"),
    ]
    nothing: list[None] = [None] * len(table.item_ids)
    groups = _texts(table, table.groups, "group") if table.groups else nothing
    weights = table.weights or nothing
    moments = nothing
    if table.timestamps:
        moments = [_moment(value, table, row) for row, value in enumerate(table.timestamps)]
    return list(map(Row, *columns, weights, groups, moments))


def _texts(table: LabelTable, values: Sequence[Any], what: str) -> list[Any]:
    """Ids as text; the same id is seldom alone in a table."""
    known: dict[Any, str] = {}
    texts: list[str | None] = []
    for row, value in enumerate(values):
        if value is None:  # a label without a group
            texts.append(None)
            continue
        # 1, 1.0 and True are equal, and are not spelled alike.
        identity = value if type(value) is str else (type(value), value)
        text = known.get(identity)
        if text is None:
            text = known[identity] = encode_id(value, what, table.where(row))
        texts.append(text)
    return texts


def _moment(value: Any, table: LabelTable, row: int) -> Any:
    if value is None:
        return None
    plain = value.item() if hasattr(value, "item") else value
    if not isinstance(plain, str | int | float):
        raise LabelError(
            f"{table.where(row)}: the timestamp is neither text nor a number. Got {value!r}. "
            "Correct it."
        )
    return encode_id(plain, "timestamp", table.where(row))


def _is_name(value: object) -> bool:
    return (
        isinstance(value, str)
        and "\0" not in value
        and 0 < len(value.encode("utf-8", "replace")) <= NAME_BYTES
    )


# ── ids, labels and settings as text ──────────────────────────────────────────────────────

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
