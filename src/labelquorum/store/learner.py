"""Who learns, and the rows that go in and out: the one part of a stream that needs a model.

`Work` is all that learning from a chunk needs, `Outcome` all that it changes. Both are plain
values. So the learner may be this process (`LocalLearner`) or another one, and a store accepts
labels and returns answers without it.
"""

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from math import inf
from typing import Any, NamedTuple, Protocol

read_until: ContextVar[float] = ContextVar("read_until", default=inf)
"""When a question must be answered, by the steady clock; reading its rows then ends, too."""


class Configuration(NamedTuple):
    """What a stream learns by."""

    method: str
    settings: str  # JSON
    configuration: str  # SHA-256 of the two


class LabelColumns(NamedTuple):
    """Labels as they are kept, in the order they came."""

    row: Sequence[int] = ()
    item: Sequence[str] = ()
    worker: Sequence[str] = ()
    label: Sequence[str] = ()
    weight: Sequence[float | None] = ()
    group: Sequence[str | None] = ()
    timestamp: Sequence[str | None] = ()
    score: Sequence[float | None] = ()


class AttributeRow(NamedTuple):
    """What is known of a worker, as it is kept."""

    worker: str
    worker_kind: str | None
    model: str | None
    prompt: str | None
    order: str | None


class WorkerRow(NamedTuple):
    """A worker as stored."""

    place: int
    worker: str
    n_classes: int
    state: bytes
    labels: int
    agreed: int
    track: bytes | None = None  # float32; None of one who was not followed yet


class OpenRow(NamedTuple):
    """An open item as it is kept; its workers are places."""

    item: str
    evidence: bytes
    note: str


class OpenColumns(NamedTuple):
    """Open items as they are kept, by column; see `OpenRow`."""

    item: Sequence[str] = ()
    evidence: Sequence[bytes] = ()
    note: Sequence[str] = ()


class AnswerColumns(NamedTuple):
    """What is answered of items."""

    item: Sequence[str] = ()
    label: Sequence[str] = ()
    confidence: Sequence[float] = ()
    probs: Sequence[bytes] = ()
    n_labels: Sequence[int] = ()


class Work(NamedTuple):
    """All that learning from a chunk needs."""

    method: str
    settings: str
    chunk: int
    version: int
    classes: str
    n_workers: int
    n_chunks: int
    shared: bytes | None
    workers: Sequence[WorkerRow]  # of the chunk, as far as they are known, by place
    open_items: Sequence[OpenRow]
    labels: LabelColumns  # of the chunk
    gold: Sequence[tuple[str, str]]  # items whose truth is known, and the truth
    keeps_open: bool
    attributes: Sequence[AttributeRow] = ()  # of its workers, as far as something is known


class Outcome(NamedTuple):
    """All that learning from a chunk changes."""

    version: int
    classes: str
    n_workers: int
    n_chunks: int
    shared: bytes
    workers: list[WorkerRow]  # those whose rows are new or changed
    answers: AnswerColumns
    open_items: OpenColumns
    result: str  # for people, JSON
    summary: str  # its statistics, JSON


# ── who learns ───────────────────────────────────────────────────────────────────────────


class Learner(Protocol):
    """What a store needs to have done."""

    def configure(self, method: str, settings: Mapping[str, Any]) -> Configuration:
        """Check what a stream is to learn by, and spell out every setting."""
        ...

    def learn(self, work: Work) -> Outcome:
        """Learn from a chunk, and say which rows are new."""
        ...

    def ask(self, work: Work, question: str, options: Mapping[str, Any]) -> Any:
        """What the model says of these workers and open items; see `model_queries.py`."""
        ...


class LocalLearner:
    """The process itself learns; the methods are imported when it is first asked to."""

    def configure(self, method: str, settings: Mapping[str, Any]) -> Configuration:
        """Check what a stream is to learn by, and spell out every setting."""
        from labelquorum.store.model_rows import configure

        return configure(method, settings)

    def learn(self, work: Work) -> Outcome:
        """Learn from a chunk, and say which rows are new."""
        from labelquorum.store.model_rows import learn

        return learn(work)

    def ask(self, work: Work, question: str, options: Mapping[str, Any]) -> Any:
        """What the model says of these workers and open items; see `model_queries.py`."""
        from labelquorum.store.model_queries import answer

        return answer(work, question, options)
