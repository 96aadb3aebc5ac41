"""What goes in and out, for OpenAPI. BodyReader of labels are read by `ingest`, not by these."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from labelquorum.ingest.validate import WORKER_KINDS
from labelquorum.store.queries import Answer, Undecided

Id = str | int | float
"""A task's, worker's or class's own name."""


class Fine(BaseModel):
    """All is well."""

    ok: bool


class ErrorShape(BaseModel):
    """An error."""

    ok: bool = Field(description="Always false.")
    error: str = Field(description="The first of the errors.")
    errors: list[str] = Field(description="One sentence each; of bad rows, the first 20.")
    status: int


class ReceiptShape(BaseModel):
    """What became of the labels; they are durable once one has it."""

    accepted: int
    late: int = Field(description="Set aside: their items are closed.")
    reason: str | None = Field(description="Why labels are late, and what to do; null if none is.")
    skipped: dict[str, int] = Field(description="Rows left out, by reason.")
    repeated: bool = Field(description="They came before under this key: nothing counts twice.")


class Gone(BaseModel):
    """How much was taken back or forgotten."""

    gone: int


class Told(BaseModel):
    """How many true labels were set."""

    told: int
    late: int = Field(description="Their tasks were closed: only the answers are corrected.")
    repeated: bool


class HookAnswer(BaseModel):
    """What became of an event of Label Studio."""

    action: str
    accepted: int
    late: int
    reason: str | None = Field(description="Why labels are late, and what to do; null if none is.")
    retracted: int
    skipped: dict[str, int]


class RulesShape(BaseModel):
    """When chunks are cut and labels deleted; what is left out stays as it is."""

    model_config = ConfigDict(extra="forbid")
    labels_per_item: int | None = Field(default=None, ge=1)
    max_wait: float | None = Field(default=None, ge=0, description="Null waits for ever.")
    chunk_items: int | None = Field(default=None, ge=1)
    max_chunk_wait: float | None = Field(default=None, ge=0, description="Null waits for ever.")
    retention: str | None = Field(default=None, pattern="^(discard|keep_days|keep)$")
    grace: float | None = Field(default=None, ge=0, description="Null closes no task.")
    days: float | None = Field(default=None, ge=0)
    max_workers: int | None = Field(default=None, ge=1)


class StreamChange(RulesShape):
    """Rules that change, and perhaps a new name."""

    name: str | None = Field(default=None, min_length=1, max_length=256)


class NewStream(BaseModel):
    """A stream that is to be made."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(min_length=1, max_length=256)
    method: str = Field(default="bila", max_length=256)
    settings: dict[str, Any] = Field(default={}, description="Of the method, classes among them.")
    rules: RulesShape = RulesShape()


class StreamShape(BaseModel):
    """A stream: what it learns by, when it cuts, what it holds."""

    name: str
    method: str
    settings: dict[str, Any]
    rules: dict[str, Any]
    classes: list[Any] = Field(description="Those that are known so far.")
    counts: dict[str, int]


class Gain(BaseModel):
    """What one more label of an item would likely do."""

    mean: float = Field(description="By how much it would raise the confidence, by anybody.")
    worker: Id | None = Field(description="Whose label would raise it most.")
    worker_gain: float | None


class ItemShape(BaseModel):
    """An item and its answer; of one that has none yet, label and confidence are null."""

    task: Id
    label: Id | None
    confidence: float | None
    labels: int
    chunk: int | None = Field(description="That answered it last.")
    probabilities: dict[str, float] | None = None
    open: bool | None = None
    why: dict[str, Any] | None = Field(
        default=None, description="Each worker's part in log-odds; null once the labels are gone."
    )
    gain: Gain | None = None


class ItemPage(BaseModel):
    """Some items, and where the next page begins."""

    items: list[ItemShape]
    next: str | None
    total: int | None = Field(
        description="Of all pages together; null after the first page, and where that is costly."
    )


class PendingShape(BaseModel):
    """An item of low confidence."""

    task: Id
    label: Id
    confidence: float
    labels: int
    chunk: int
    open: bool = Field(description="Another label can still change it.")


class PendingList(BaseModel):
    """Items for which another label is wanted, the least sure first."""

    items: list[PendingShape]


class ChunkShape(BaseModel):
    """A chunk that was cut."""

    id: int
    state: str
    items: int
    labels: int
    first_row: int
    last_row: int
    seed: int
    configuration: str
    cut_at: float
    applied_at: float | None
    attempts: int
    error: str | None
    version: int | None


class ChunkPage(BaseModel):
    """Some chunks, and where the next page begins."""

    chunks: list[ChunkShape]
    next: str | None


class NewKey(BaseModel):
    """A key that is to be made."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(min_length=1, max_length=256)
    scope: str = Field(pattern="^(read|write|admin)$")
    stream: str | None = Field(default=None, max_length=256, description="Null: all streams.")


class KeyShape(BaseModel):
    """A key, without its secret."""

    id: int
    name: str
    scope: str
    stream: str | None
    created_at: float
    revoked_at: float | None


class KeyMade(KeyShape):
    """A key that was just made."""

    key: str = Field(description="The secret, shown this once.")


class KeyList(BaseModel):
    """All keys."""

    keys: list[KeyShape]


# ── overviews of a stream and its workers ────────────────────────────────────────────────


class StreamDetail(BaseModel):
    """A stream in a list."""

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
    recent_share: float | None = Field(description="Among recent answers.")


class GoldError(BaseModel):
    """How often an answer was wrong, among items whose true label came later."""

    items: int
    wrong: int
    error: float
    low: float = Field(description="With `high`, Wilson's interval of 95 %.")
    high: float


class ExpectedErrorShape(BaseModel):
    """The expected share of wrong answers, as they were before truths replaced some."""

    estimate: float
    low: float = Field(description="With `high`, between which bounds it lies.")
    high: float
    level: float
    tasks: int
    n_gold: int = Field(description="Gold tasks by which the model's estimate was corrected.")
    method: str = Field(description="`prediction-powered`, or `model` by its confidences alone.")
    says: str


class CertificateShape(BaseModel):
    """Which answers may stand: a task is accepted, gold, or for people (`todo`)."""

    certified: bool
    error: float
    confidence: float
    tasks: int
    gold: int
    accepted: int
    threshold: float | None
    error_bound: float = Field(description="Of all labels, once people have labelled `todo`.")
    accepted_error_bound: float
    gold_needed: int | None = Field(description="Without a certificate: gold in all, at least.")
    todo: list[Id] = Field(description="The least sure first, up to `limit`.")
    todo_tasks: int
    reason: str | None
    says: str


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
    expected_error: ExpectedErrorShape | None
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
    """A worker's recent agreement, and the overall one."""

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
    """A label that the worker gives for a truth more often than the crowd."""

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
        default=None,
        description="P(the worker says z | truth c), by row c; not where `brief` is wanted.",
    )
    trend: Trend | None = None
    worker_kind: str | None = Field(default=None, description="human, llm or model.")
    model: str | None = None
    prompt: str | None = None
    order: str | None = None


class WorkerPage(BaseModel):
    """Some workers, and where the next page begins."""

    workers: list[WorkerRowShape]
    next: str | None
    total: int | None = Field(description="Of all pages together.")


class AgreementShape(BaseModel):
    """How well workers agree with one another: matrices of worker × worker, by `workers`."""

    workers: list[str | int] = Field(description="Those with most labels on these items.")
    left_out: int = Field(description="Workers with fewer labels, who are not compared.")
    items: int = Field(description="Open items that were compared: those answered last.")
    kappa: list[list[float | None]] = Field(
        description="Cohen's kappa: 1 is full agreement, 0 chance; null where nothing is known."
    )
    low: list[list[float | None]] = Field(description="The lower bound of kappa, at 95 %.")
    high: list[list[float | None]] = Field(description="The upper bound.")
    agreement: list[list[float | None]] = Field(description="The share with the same label.")
    shared: list[list[float]] = Field(description="Items that both have labelled.")


class Judge(BaseModel):
    """A judge: how often it is right, and what it is."""

    worker: Id
    labels: int
    reliability: float | None = Field(description="The share right.")
    low: float | None
    high: float | None
    by: str = Field(description="gold: counted on true labels; model: inferred.")
    worker_kind: str | None
    model: str | None
    prompt: str | None
    order: str | None


class JudgeGroup(BaseModel):
    """Judges whose errors are compared with those of the others."""

    group: str
    by: str = Field(description="model: judges of one model; errors: found by their errors.")
    judges: list[Id]
    correlation: float | None = Field(description="Mean correlation of two judges' errors.")
    low: float | None
    high: float | None
    excess: float | None = Field(description="Above that with judges outside the group.")
    excess_low: float | None = Field(description="Above 0: they err together beyond the rest.")
    effective: float | None


class OrderEffectShape(BaseModel):
    """What the order of the answers does to one judge."""

    worker: Id
    other: Id
    order: str
    other_order: str
    tasks: int = Field(description="Tasks that were judged in both orders.")
    flips: float = Field(description="The share of them with another verdict.")
    flips_low: float
    flips_high: float
    label: Id
    shift: float = Field(description="How much more often the label is said in `order`.")
    low: float
    high: float
    first_shown: bool = Field(description="Whether `order` shows this label's answer first.")


class JuryShape(BaseModel):
    """How many independent judges the workers count for, and why."""

    text: str
    items: int = Field(description="Open items the report rests on: those answered last.")
    n_judges: int
    effective: float | None = Field(description="k / (1 + (k - 1) correlation).")
    low: float | None
    high: float | None
    correlation: float | None = Field(description="Mean correlation of two judges' errors.")
    correlation_low: float | None
    correlation_high: float | None
    reference: str = Field(description="gold or consensus: what errors are counted by.")
    tasks: int = Field(description="Tasks on which errors were compared.")
    gold_tasks: int
    judges: list[Judge]
    groups: list[JudgeGroup]
    order_effects: list[OrderEffectShape]
    left_out: int = Field(description="Workers with fewer labels, who are not in the report.")
    level: float


class WorkerShape(WorkerRowShape):
    """A worker compared with the crowd, and over time."""

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
    decides: bool = Field(description="Its true label helps decide which answers are right.")


class AskList(BaseModel):
    """What to ask next: items that decide a doubt, then the largest gain first."""

    items: list[Wanted]
    open_items: int
    says: str | None = Field(description="Why no gain is given, or what is in doubt.")


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


# ── request bodies ───────────────────────────────────────────────────────────────────────


_ID = {"anyOf": [{"type": "string", "minLength": 1, "maxLength": 256}, {"type": "number"}]}
_LABEL = {
    "type": "object",
    "required": ["task", "worker", "label"],
    "properties": {
        "task": _ID,
        "worker": _ID,
        "label": _ID,
        "weight": {"type": "number", "minimum": 0, "maximum": 1_000_000},
        "group": {"anyOf": [_ID, {"type": "null"}]},
        "timestamp": {"anyOf": [_ID, {"type": "null"}]},
        "score": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "worker_kind": {"enum": [*WORKER_KINDS, None]},
        "model": {"anyOf": [_ID, {"type": "null"}]},
        "prompt": {"anyOf": [_ID, {"type": "null"}]},
        "order": {"anyOf": [_ID, {"type": "null"}]},
    },
}
_LABELS = {"type": "array", "items": _LABEL, "maxItems": 100_000}
_ALL = {"type": "object", "required": ["labels"], "properties": {"labels": _LABELS}}
_TEXT, _BYTES = {"type": "string"}, {"type": "string", "format": "binary"}

labels_body: dict[str, Any] = {
    "required": True,
    "content": {
        "application/json": {"schema": {"anyOf": [_LABEL, _LABELS, _ALL]}},
        "application/x-ndjson": {"schema": _TEXT},
        "text/csv": {"schema": _TEXT},
        "application/vnd.apache.parquet": {"schema": _BYTES},
    },
}
"""The body of a request that sends labels."""

gold_body: dict[str, Any] = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "anyOf": [
                    {"type": "object", "additionalProperties": _ID},
                    {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["task", "label"],
                            "properties": {"task": _ID, "label": _ID},
                        },
                    },
                ]
            }
        }
    },
}
"""The body of a request that tells truths."""

hook_body: dict[str, Any] = {
    "required": True,
    "content": {"application/json": {"schema": {"type": "object", "required": ["action"]}}},
}
"""The body of an event of Label Studio."""


def json_body(shape: type[BaseModel]) -> dict[str, Any]:
    """The body of a request that looks like this."""
    schema = shape.model_json_schema()
    parts = schema.pop("$defs", {})
    for name, part in schema["properties"].items():
        if "$ref" in part:
            schema["properties"][name] = parts[part["$ref"].rpartition("/")[2]]
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def item_body(one: Answer | Undecided) -> dict[str, Any]:
    """An item as lists show it."""
    if isinstance(one, Undecided):
        return {
            "task": one.item_id,
            "label": None,
            "confidence": None,
            "labels": one.n_labels,
            "chunk": None,
        }
    return {
        "task": one.item_id,
        "label": one.label,
        "confidence": one.confidence,
        "labels": one.n_labels,
        "chunk": one.chunk,
    }


def chunk_body(row: Mapping[str, Any]) -> dict[str, Any]:
    """A chunk as the API shows it."""
    same = ("id", "state", "first_row", "last_row", "seed", "configuration", "cut_at")
    body = {name: row[name] for name in (*same, "applied_at", "attempts", "error", "version")}
    return body | {"items": row["n_items"], "labels": row["n_labels"]}
