"""What goes out about a stream as a whole and about its crowd, for OpenAPI."""

from typing import Any

from pydantic import BaseModel, Field

from labelquorum.server.schemas import ChunkShape, Id

__all__ = [
    "AskList",
    "Stopping",
    "StreamsShape",
    "Summary",
    "WorkerPage",
    "WorkerShape",
]


class StreamDetail(BaseModel):
    """A stream at a glance."""

    name: str
    counts: dict[str, int]
    rules: dict[str, Any]
    classes: list[Id]
    chunks_behind: int
    labels_per_second: float
    spark: list[int] = Field(description="Labels in each of the last 60 seconds, the newest last.")


class StreamsShape(BaseModel):
    """The streams that the key may read."""

    streams: list[str]
    details: list[StreamDetail] | None = Field(default=None, description="With `full=true`.")


class Update(BaseModel):
    """How long it took from the cut of a chunk until its answers were there."""

    p50_seconds: float | None
    p99_seconds: float | None
    last_seconds: float | None


class Histogram(BaseModel):
    """How sure the answers are."""

    edges: list[float] = Field(description="21 numbers from 0 to 1.")
    items: list[int] = Field(description="20 numbers, between each two edges.")


class Balance(BaseModel):
    """How often a class is the answer."""

    label: Id
    items: int
    share: float
    prior: float | None = Field(description="How frequent the model takes it to be.")
    recent_share: float | None = Field(description="Among the answers of late.")


class GoldError(BaseModel):
    """How often the answer to an item was wrong whose truth was told later."""

    items: int
    wrong: int
    error: float
    low: float = Field(description="With `high`, Wilson's interval of 95 %.")
    high: float


class Point(BaseModel):
    """What one chunk, or a few together, came to."""

    chunk: int
    at: float | None
    items: int
    new_items: int = Field(description="Those of `items` that had no answer before.")
    labels: int
    mean_confidence: float | None


class Warned(BaseModel):
    """Something that needs a person."""

    code: str
    says: str
    since: int | None = Field(default=None, description="The number of a chunk.")
    worker: Id | None = None
    label: Id | None = None


class Summary(BaseModel):
    """A stream in figures."""

    name: str
    classes: list[Id]
    counts: dict[str, int]
    labels_per_second: float
    chunks_behind: int
    update: Update
    confidence: Histogram
    balance: list[Balance]
    gold: GoldError | None
    over_time: list[Point]
    last_chunks: list[ChunkShape]
    warnings: list[Warned]
    workers: int = Field(description="Of whom labels were learned from, as `…/workers` lists them.")
    flagged: int


class Flag(BaseModel):
    """What is odd about a worker."""

    flag: str
    says: str
    score: float | None = None
    since: int | None = Field(default=None, description="The number of a chunk.")
    partners: list[Id] | None = None


class Trend(BaseModel):
    """A worker's agreement of late beside that of all time."""

    recent: float
    overall: float
    recent_labels: int


class Stretch(BaseModel):
    """What a worker did over some chunks, up to this one."""

    chunk: int
    at: float | None
    labels: float
    agreement: float
    crowd: float | None = Field(description="The others' agreement in the same chunks.")
    low: float | None
    high: float | None


class Change(BaseModel):
    """From a chunk on a worker agrees more, or less."""

    chunk: int
    before: float
    after: float


class Confused(BaseModel):
    """An answer he gives for a truth more often than the crowd."""

    truth: Id
    says: Id
    prob: float
    crowd: float


class WorkerRowShape(BaseModel):
    """A worker: how good, how sure that is, and what is odd."""

    worker: Id
    labels: int
    agreed: int
    skill: float
    low: float | None
    high: float | None
    flags: list[Flag]
    classes: list[Id] | None = None
    confusion: list[list[float]] | None = Field(
        default=None, description="P(he says z | truth c), by row c; not where `brief` is wanted."
    )
    trend: Trend | None = None


class WorkerPage(BaseModel):
    """Some workers, and where the next page begins."""

    workers: list[WorkerRowShape]
    next: str | None
    total: int | None = Field(description="Of all pages together.")


class WorkerShape(WorkerRowShape):
    """A worker beside the crowd, and over time."""

    crowd_confusion: list[list[float]] = Field(description="The crowd's mean, by its labels.")
    track: list[Stretch]
    changes: list[Change]
    confuses: list[Confused] = Field(description="The largest differences from the crowd first.")


class Wanted(BaseModel):
    """An item of which another label is wanted."""

    task: Id
    label: Id | None
    confidence: float | None
    labels: int
    gain: float | None = Field(description="By how much one more label would raise `confidence`.")
    worker: Id | None = Field(description="Whose label would raise it most.")
    worker_gain: float | None
    open: bool = Field(description="Another label can still change it.")


class AskList(BaseModel):
    """What to ask next, the largest gain first."""

    items: list[Wanted]
    open_items: int
    says: str | None = Field(description="Why no gain is told, where none is.")


class StoppingPoint(BaseModel):
    """What if every item were closed once we are this sure."""

    threshold: float
    labels_used: int
    labels_saved: float = Field(description="A share of all labels.")
    expected_error: float


class Stopping(BaseModel):
    """What if one stopped asking earlier, on the chunks that were learned from."""

    items: int
    labels: int
    curve: list[StoppingPoint]
    chunks: int
