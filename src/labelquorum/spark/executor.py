"""What an executor does with a shard: plain functions from Arrow tables to Arrow tables.

A shard is all labels of some items. It travels as rows of one shape, `rows_of`: its labels as
integers with the ids of its items, and for each of its workers what was counted of them. Values
travel between the driver and the executors as bytes, empty where there is nothing.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from safetensors.numpy import load, save

from labelquorum.ingest.chunks import Chunk
from labelquorum.ingest.readers import read_labels
from labelquorum.ingest.vocabulary import Intake, Roster
from labelquorum.learn.aggregator import Aggregation
from labelquorum.learn.estimator import Estimator
from labelquorum.learn.estimators import estimator
from labelquorum.learn.shards import Gained, Known, Sums, sharding_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


LABELS, ANSWERS, WORKER, SUMS = range(4)
"""Kinds of rows: a shard's labels, its answers, one of its workers, its sums."""

Run = Callable[[Iterator[Any]], Iterator[Any]]
"""From the batches of a partition to those of its result."""


class Plan(NamedTuple):
    """What every executor must know; plain values, so that it travels with the function."""

    method: str
    settings: Mapping[str, Any]
    classes: Sequence[Hashable]
    label_type: Any = None  # as Arrow has it

    def model(self) -> Estimator:
        """The model, which never learns itself."""
        return estimator(self.method, **self.settings)

    def said(self) -> Any:
        """The classes as labels came, an Arrow array."""
        import pyarrow

        return pyarrow.array(self.classes, self.label_type)


class ShardCounts(NamedTuple):
    """What the driver sends to a shard."""

    known: bytes  # what all shards counted of its workers
    own: bytes  # what it counted itself, in the round before


class Found(NamedTuple):
    """What the rounds came to."""

    answers: "DataFrame"
    workers: "DataFrame"
    prior: Any
    rounds: int


class Schema:
    """The shapes of rows; ids and labels have the types they came with."""

    def __init__(self, labels: "DataFrame") -> None:
        kinds = {field.name: field.dataType.simpleString() for field in labels.schema.fields}
        task, worker, label = kinds["task"], kinds["worker"], kinds["label"]
        ids = f"shard int, kind int, worker {worker}, place int, labels bigint"
        self.rows = f"{ids}, data binary, items binary"
        self.counted = "shard int, data binary"
        self.totals = f"kind int, worker {worker}, labels bigint, data binary"
        self.answers = f"task {task}, label {label}, confidence double, labels bigint"
        self.workers = f"worker {worker}, labels bigint, skill double, confusion array<double>"


# ── the first round, and one piece ───────────────────────────────────────────────────────


def fit_first(plan: Plan) -> Run:
    """From labels as they came to all rows of their shards, each fitted on its own."""

    def first(shard: int, table: Any) -> Any:
        model = plan.model()
        roster = Roster(model.model_.space, [], plan.classes)
        intake = roster.read(read_labels(table, model.model_.space))
        gained = sharding_of(model).fit(intake.chunk, None, None)
        kept = [(LABELS, chunk_bytes(intake.chunk), _ids(intake, table))]
        counted = _counted(intake.chunk)
        return rows_of(shard, table["worker"].type, kept, gained, intake.new_workers, counted)

    return by_shard(first)


def fit_alone(plan: Plan) -> Run:
    """From all labels to what the library itself makes of them, as one row of each kind."""

    def alone(shard: int, table: Any) -> Any:
        import pyarrow

        model = plan.model().fit(table)
        answer = model.model_.answer
        intake, result, classes = answer.intake, answer.result, answer.classes
        ids, said = table_from(_ids(intake, table)), pyarrow.array(classes, plan.label_type)
        given = answers_of(result, intake.chunk, ids, said)
        crowd = crowd_of(
            pyarrow.array(intake.new_workers, table["worker"].type),
            _counted(intake.chunk),
            np.asarray(model.confusion_, np.float64),
            model.priors_.to_numpy(),
        )
        shared = pyarrow.table({"class": said, "prior": model.priors_.to_numpy()})
        tables = ((ANSWERS, given), (WORKER, crowd), (SUMS, shared))
        kinds = [(kind, table_bytes(found), b"") for kind, found in tables]
        return rows_of(shard, table["worker"].type, kinds, None, [], np.zeros(0, np.int64))

    return by_shard(alone)


def by_shard(fit: Callable[[int, Any], Any]) -> Run:
    """Part what a partition holds; most hold one shard, and some none."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow.compute

        parts = [batch for batch in batches if batch.num_rows]
        if not parts:
            return
        table = pyarrow.Table.from_batches(parts)
        parts.clear()
        for shard in sorted(table["shard"].unique().to_pylist()):
            own = table.filter(pyarrow.compute.equal(table["shard"], shard))
            yield from fit(shard, own.drop_columns("shard")).to_batches()

    return run


def _ids(intake: Intake, table: Any) -> bytes:
    places = np.empty(len(intake.order), np.int64)
    places[intake.order] = np.arange(len(places))
    return ids_bytes(intake.item_ids, places, table["task"].type)


def _counted(chunk: Chunk) -> Any:
    """How many labels each worker gave."""
    return np.bincount(chunk.local_worker, minlength=len(chunk.workers))


def classes_from(data: bytes) -> tuple[list[Hashable], list[float]]:
    """The classes and their prior, as `fit_alone` tells them."""
    reported = table_from(data)
    return reported["class"].to_pylist(), reported["prior"].to_pylist()


def kept(found: "DataFrame") -> "DataFrame":
    """A frame that is made now, and kept until it is unpersisted."""
    held = found.persist()
    held.count()
    return held


def unpack(batches: Iterator[Any]) -> Iterator[Any]:
    """From rows that hold tables to the rows of those tables."""
    for batch in batches:
        for data in batch["data"].to_pylist():
            yield from table_from(data).to_batches()


# ── later rounds, with what the driver sends ─────────────────────────────────────────────


def fit_with_counts(plan: Plan, counts: Mapping[int, ShardCounts]) -> Run:
    """From shards (shard, labels), with the counts sent to each, to what they count."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow

        sharding = sharding_of(plan.model())
        for row in _each(batches):
            known, own = counts[row["shard"]]
            chunk = chunk_from(row["labels"])
            gained = sharding.fit(chunk, known_from(known), gained_from(own))
            columns = [
                pyarrow.array([row["shard"]], pyarrow.int32()),
                pyarrow.array([gained_bytes(gained)], pyarrow.binary()),
            ]
            yield pyarrow.RecordBatch.from_arrays(columns, ["shard", "data"])

    return run


def answer_with_counts(plan: Plan, counts: Mapping[int, ShardCounts]) -> Run:
    """From shards (shard, labels, items), with the counts sent to each, to their answers."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        sharding = sharding_of(plan.model())
        for row in _each(batches):
            chunk, known = chunk_from(row["labels"]), known_from(counts[row["shard"]].known)
            assert known is not None
            result, items = sharding.answer(chunk, known), table_from(row["items"])
            yield from answers_of(result, chunk, items, plan.said()).to_batches()

    return run


def _each(batches: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """Row by row; each is a shard."""
    for batch in batches:
        for place in range(batch.num_rows):
            [row] = batch.slice(place, 1).to_pylist()
            yield row


# ── rows ─────────────────────────────────────────────────────────────────────────────────


def rows_of(
    shard: int,
    worker_type: Any,
    kept: Sequence[tuple[int, bytes, bytes]],
    gained: Gained | None,
    workers: Any,
    labels: Any,
) -> Any:
    """Rows of a shard as Spark takes them."""
    import pyarrow

    once = [*kept, *([] if gained is None else [(SUMS, save(dict(gained.sums)), b"")])]
    rows = [] if gained is None else [row.tobytes() for row in gained.rows]
    n_once, n_rows = len(once), len(rows)
    kinds, data, items = zip(*once, strict=True)
    nobody = pyarrow.nulls(n_once, worker_type)
    crowd = workers if isinstance(workers, pyarrow.Array) else pyarrow.array(workers, worker_type)
    counted = np.concatenate([np.zeros(n_once, np.int64), np.asarray(labels, np.int64)[:n_rows]])
    return pyarrow.table(
        {
            "shard": pyarrow.array(np.full(n_once + n_rows, shard, np.int32)),
            "kind": pyarrow.array([*kinds, *[WORKER] * n_rows], pyarrow.int32()),
            "worker": pyarrow.concat_arrays([nobody, crowd.slice(0, n_rows)]),
            "place": pyarrow.array([*[0] * n_once, *range(n_rows)], pyarrow.int32()),
            "labels": pyarrow.array(counted),
            "data": pyarrow.array([*data, *rows], pyarrow.binary()),
            "items": pyarrow.array([*items, *[b""] * n_rows], pyarrow.binary()),
        }
    )


def answers_of(result: Aggregation, chunk: Chunk, ids: Any, said: Any) -> Any:
    """The answers of a chunk: task, label, confidence, labels; `said` is how each class is said."""
    import pyarrow

    chosen = result.aggregated
    order = np.argsort(ids["place"].to_numpy(), kind="stable")  # as they came
    confidence = result.probs[np.arange(len(chosen)), chosen].astype(np.float64)
    n_labels = np.bincount(chunk.item, minlength=chunk.n_items)
    return pyarrow.table(
        {
            "task": ids["task"].combine_chunks().take(pyarrow.array(order)),
            "label": said.take(pyarrow.array(chosen[order])),
            "confidence": confidence[order],
            "labels": n_labels[order],
        }
    )


def crowd_of(ids: Any, n_labels: Any, confusion: Any, prior: Any) -> Any:
    """Workers: worker, labels, skill, confusion."""
    import pyarrow

    skill = np.diagonal(confusion, axis1=1, axis2=2) @ prior
    return pyarrow.table(
        {
            "worker": ids,
            "labels": pyarrow.array(np.asarray(n_labels, np.int64)),
            "skill": skill,
            "confusion": pyarrow.array(
                list(confusion.reshape(len(confusion), -1)), pyarrow.list_(pyarrow.float64())
            ),
        }
    )


# ── values as bytes ──────────────────────────────────────────────────────────────────────


_WHOLE = ("n_workers", "n_classes")
_OF_ROWS = {
    "worker": np.int32,
    "label": np.int32,
    "weight": np.float32,
    "known": np.bool_,
    "replaced": np.int32,
    "replaced_weight": np.float32,
}


def chunk_bytes(chunk: Chunk) -> bytes:
    """A chunk: 5 bytes per label where they are plain, as all are kept until the last round."""
    arrays = {name: value for name, value in chunk._asdict().items() if value is not None}
    arrays["item"] = _narrow(np.bincount(chunk.item, minlength=chunk.n_items))  # rows are sorted
    for name in _OF_ROWS:
        column = arrays[name]
        alike = len(column) and (column == column[0]).all()
        arrays[name] = _narrow(column[:1] if alike else column)
    return save({name: np.atleast_1d(np.ascontiguousarray(a)) for name, a in arrays.items()})


def chunk_from(data: bytes) -> Chunk:
    """The chunk that `chunk_bytes` was given."""
    arrays: dict[str, Any] = load(data)
    item = np.repeat(np.arange(len(arrays["item"]), dtype=np.int32), arrays["item"])
    columns = {
        name: np.full(len(item), arrays[name], kind) if len(arrays[name]) == 1 else arrays[name]
        for name, kind in _OF_ROWS.items()
    }
    columns = {name: column.astype(_OF_ROWS[name]) for name, column in columns.items()}
    whole = {name: int(arrays[name][0]) for name in _WHOLE}
    return Chunk(**arrays | columns | whole | {"item": item})


def _narrow(column: Any) -> Any:
    """Whole numbers in the fewest bytes that hold them."""
    if column.dtype.kind != "i" or not len(column):
        return column
    low, high = np.min_scalar_type(column.min()), np.min_scalar_type(column.max())
    return column.astype(np.promote_types(low, high))


def gained_bytes(gained: Gained | None) -> bytes:
    """What a shard counted."""
    if gained is None:
        return b""
    return save({"rows": gained.rows, **_named("sums", gained.sums)})


def gained_from(data: bytes) -> Gained | None:
    """What `gained_bytes` was given."""
    arrays = load(data) if data else {}
    return Gained(arrays["rows"], _part("sums", arrays)) if arrays else None


def gathered(found: "DataFrame") -> list[Gained]:
    """What shards counted, brought to the driver, in their order."""
    reported = found.toArrow().sort_by("shard")["data"].to_pylist()
    return [part for part in map(gained_from, reported) if part is not None]


def known_bytes(known: Known | None) -> bytes:
    """What all shards counted."""
    if known is None:
        return b""
    named = {**_named("sums", known.sums), **_named("pooled", known.pooled)}
    return save({"rows": known.rows, **named})


def known_from(data: bytes) -> Known | None:
    """What `known_bytes` was given."""
    arrays = load(data) if data else {}
    if not arrays:
        return None
    return Known(arrays["rows"], _part("sums", arrays), _part("pooled", arrays))


def _named(part: str, sums: Sums) -> Sums:
    return {f"{part}:{name}": np.ascontiguousarray(array) for name, array in sums.items()}


def _part(part: str, arrays: Sums) -> Sums:
    prefix = f"{part}:"
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}


def numbers(column: Any) -> Any:
    """Rows of numbers, (P, D), from a column that holds each as bytes."""
    rows = [np.frombuffer(data, np.float64) for data in column.to_pylist()]
    return np.stack(rows) if rows else np.zeros((0, 0))


def ids_bytes(item_ids: Sequence[Hashable], places: Any, kind: Any) -> bytes:
    """Item ids in a chunk's order, and which of them came first."""
    import pyarrow

    return table_bytes(pyarrow.table({"task": pyarrow.array(item_ids, kind), "place": places}))


def table_bytes(table: Any) -> bytes:
    """An Arrow table."""
    import pyarrow

    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def table_from(data: bytes) -> Any:
    """The table that `table_bytes` was given."""
    import pyarrow

    return pyarrow.ipc.open_stream(data).read_all()
