"""What an executor does with a shard: plain functions from Arrow tables to Arrow tables.

A shard is all labels of some items. It travels as rows of one shape, `ROW`: its labels as integers,
the ids of its items, and for each of its workers what was counted of him, here and everywhere.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load, save

from labelquorum.ingest.chunks import Chunk
from labelquorum.ingest.formats import read_labels
from labelquorum.ingest.roster import Roster
from labelquorum.learn.aggregator import Aggregation
from labelquorum.learn.door import Estimator
from labelquorum.learn.estimator import estimator
from labelquorum.learn.sharding import Gained, Known, sharding_of

__all__ = [
    "ITEMS",
    "LABELS",
    "POOLED",
    "SUMS",
    "WORKER",
    "Plan",
    "Shared",
    "answer",
    "chunk_bytes",
    "chunk_from",
    "classes_from",
    "fit_again",
    "fit_alone",
    "fit_first",
    "total",
    "unpack",
    "workers_of",
]

LABELS, ITEMS, WORKER, SUMS, POOLED = range(5)
"""Kinds of rows: a shard's labels, its item ids, one of its workers, its sums; a part of P."""

_WHOLE = ("n_workers", "n_classes")


class Plan(NamedTuple):
    """What every executor must know; plain values, so that it travels with the function."""

    method: str
    settings: Mapping[str, Any]
    classes: Sequence[Hashable]

    def model(self) -> Estimator:
        """The model, which never learns itself."""
        return estimator(self.method, **self.settings)


class Shared(NamedTuple):
    """What all shards counted, but of single workers."""

    sums: bytes
    pooled: bytes  # empty where a method has none

    def known(self, rows: Any) -> Known:
        """With the rows of some workers, (P, D)."""
        return Known(rows, load(self.sums), load(self.pooled) if self.pooled else {})


# ── a round ──────────────────────────────────────────────────────────────────────────────


def fit_first(plan: Plan) -> Callable[[Any], Any]:
    """From a shard's labels as they came to all its rows, fitted on its own."""

    def run(table: Any) -> Any:
        shard, model = table["shard"][0].as_py(), plan.model()
        roster = Roster(model._space, [], plan.classes)
        intake = roster.read(read_labels(table.drop_columns("shard"), model._space))
        chunk = intake.chunk
        gained = sharding_of(model).fit(chunk, None, None)
        places = np.empty(len(intake.order), np.int64)
        places[intake.order] = np.arange(len(places))
        kept = [(LABELS, chunk_bytes(chunk)), (ITEMS, _ids_bytes(intake.item_ids, places, table))]
        counted = np.bincount(chunk.local_worker, minlength=len(chunk.workers))
        return _rows(table, shard, kept, gained, intake.new_workers, counted)

    return run


def fit_again(plan: Plan, shared: Shared) -> Callable[[Any], Any]:
    """From a shard's rows, with what all shards counted of its workers, to its new ones."""

    def run(table: Any) -> Any:
        shard, found = table["shard"][0].as_py(), _shard(table, shared)
        gained = sharding_of(plan.model()).fit(found.chunk, found.known, found.own)
        return _rows(table, shard, [], gained, found.workers, found.labels)

    return run


def answer(plan: Plan, shared: Shared) -> Callable[[Any], Any]:
    """From a shard's rows to its answers: task, label, confidence, labels."""

    def run(table: Any) -> Any:
        found = _shard(table, shared)
        result = sharding_of(plan.model()).answer(found.chunk, found.known)
        items = _of_kind(table, ITEMS)["data"][0].as_py()
        return _answers(result, found.chunk, _table_from(items), plan.classes)

    return run


def fit_alone(plan: Plan) -> Callable[[Any], Any]:
    """From all labels to what the library itself makes of them, as one row of each kind."""

    def run(table: Any) -> Any:
        import pyarrow

        model = plan.model().fit(table.drop_columns("shard"))
        intake, result, classes = model._answer.parts
        places = np.empty(len(intake.order), np.int64)
        places[intake.order] = np.arange(len(places))
        ids = _table_from(_ids_bytes(intake.item_ids, places, table))
        given = _answers(result, intake.chunk, ids, classes)
        n_labels = np.bincount(intake.chunk.local_worker, minlength=len(intake.chunk.workers))
        crowd = _workers(
            pyarrow.array(intake.new_workers, table["worker"].type),
            n_labels,
            np.asarray(model.confusion_, np.float64),
            model.priors_.to_numpy(),
        )
        shared = _ipc(pyarrow.table({"class": list(classes), "prior": model.priors_.to_numpy()}))
        kinds = [(ITEMS, _ipc(given)), (WORKER, _ipc(crowd)), (SUMS, shared)]
        return _rows(table, 0, kinds, None, [], np.zeros(0, np.int64))

    return run


def classes_from(data: bytes) -> tuple[list[Hashable], list[float]]:
    """The classes and their prior, as `fit_alone` tells them."""
    told = _table_from(data)
    return told["class"].to_pylist(), told["prior"].to_pylist()


# ── all workers ──────────────────────────────────────────────────────────────────────────


def total(plan: Plan) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """From what shards counted of some workers to what all did, and what those give to P."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow

        parts = [batch for batch in batches if batch.num_rows]
        if not parts:
            return
        table = pyarrow.Table.from_batches(parts)
        coded = table["worker"].combine_chunks().dictionary_encode()
        places = coded.indices.to_numpy(zero_copy_only=False)
        rows = _numbers(table["data"])
        sums = np.zeros((len(coded.dictionary), rows.shape[1]))
        np.add.at(sums, places, rows)
        labels = np.bincount(places, table["labels"].to_numpy(), len(sums)).astype(np.int64)
        pooled = sharding_of(plan.model()).pool(sums, len(plan.classes))
        names = ["kind", "worker", "labels", "data"]
        data = [row.tobytes() for row in sums]
        everybody = [[WORKER] * len(sums), coded.dictionary, labels, data]
        once = [[POOLED], [None], [0], [save(pooled) if pooled else b""]]
        types = [pyarrow.int32(), table["worker"].type, pyarrow.int64(), pyarrow.binary()]
        for columns in (everybody, once):
            arrays = [
                pyarrow.array(column, kind) for column, kind in zip(columns, types, strict=True)
            ]
            yield pyarrow.RecordBatch.from_arrays(arrays, names)

    return run


def workers_of(plan: Plan, shared: Shared) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """From what all shards counted of workers to their skills and matrices."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        sharding = sharding_of(plan.model())
        for batch in batches:
            if batch.num_rows:
                known = shared.known(_numbers(batch["data"]))
                labels = batch["labels"].to_numpy()
                confusion, prior = sharding.confusion(known), sharding.class_prior(known)
                yield from _workers(batch["worker"], labels, confusion, prior).to_batches()

    return run


def unpack(batches: Iterator[Any]) -> Iterator[Any]:
    """From rows that hold tables to the rows of those tables."""
    for batch in batches:
        for data in batch["data"].to_pylist():
            yield from _table_from(data).to_batches()


# ── rows ─────────────────────────────────────────────────────────────────────────────────


class _Shard(NamedTuple):
    chunk: Chunk
    known: Known
    own: Gained
    workers: Any  # their ids, as Arrow holds them
    labels: Any


def _shard(table: Any, shared: Shared) -> _Shard:
    workers = _of_kind(table, WORKER).sort_by("place")
    chunk = chunk_from(_of_kind(table, LABELS)["data"][0].as_py())
    own = Gained(_numbers(workers["data"]), load(_of_kind(table, SUMS)["data"][0].as_py()))
    known = shared.known(_numbers(workers["total"]))
    return _Shard(chunk, known, own, workers["worker"].combine_chunks(), workers["labels"])


def _of_kind(table: Any, kind: int) -> Any:
    import pyarrow.compute

    return table.filter(pyarrow.compute.equal(table["kind"], kind))


def _rows(
    table: Any,
    shard: int,
    kept: Sequence[tuple[int, bytes]],
    gained: Gained | None,
    workers: Any,
    labels: Any,
) -> Any:
    """Rows of a shard as Spark takes them."""
    import pyarrow

    once = [*kept, *([] if gained is None else [(SUMS, save(dict(gained.sums)))])]
    rows = [] if gained is None else [row.tobytes() for row in gained.rows]
    n_once, n_rows = len(once), len(rows)
    nobody = pyarrow.nulls(n_once, table["worker"].type)
    crowd = workers if isinstance(workers, pyarrow.Array) else pyarrow.array(workers, nobody.type)
    return pyarrow.table(
        {
            "shard": pyarrow.array([shard] * (n_once + n_rows), pyarrow.int32()),
            "kind": pyarrow.array([kind for kind, _ in once] + [WORKER] * n_rows, pyarrow.int32()),
            "worker": pyarrow.concat_arrays([nobody, crowd.slice(0, n_rows)]),
            "place": pyarrow.array([0] * n_once + list(range(n_rows)), pyarrow.int32()),
            "labels": pyarrow.array(
                [0] * n_once + list(map(int, labels))[:n_rows], pyarrow.int64()
            ),
            "data": pyarrow.array([data for _, data in once] + rows, pyarrow.binary()),
        }
    )


def _answers(result: Aggregation, chunk: Chunk, ids: Any, classes: Sequence[Hashable]) -> Any:
    import pyarrow

    chosen = result.aggregated
    order = np.argsort(ids["place"].to_numpy(), kind="stable")  # as they came
    confidence = result.probs[np.arange(len(chosen)), chosen].astype(np.float64)
    n_labels = np.bincount(chunk.item, minlength=chunk.n_items)
    return pyarrow.table(
        {
            "task": ids["task"].combine_chunks().take(pyarrow.array(order)),
            "label": pyarrow.array(list(classes)).take(pyarrow.array(chosen[order])),
            "confidence": confidence[order],
            "labels": n_labels[order],
        }
    )


def _workers(ids: Any, n_labels: Any, confusion: Any, prior: Any) -> Any:
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


# ── bytes ────────────────────────────────────────────────────────────────────────────────


def chunk_bytes(chunk: Chunk) -> bytes:
    """A chunk as bytes."""
    arrays = {name: value for name, value in chunk._asdict().items() if value is not None}
    return save({name: np.atleast_1d(np.ascontiguousarray(a)) for name, a in arrays.items()})


def chunk_from(data: bytes) -> Chunk:
    """The chunk that `chunk_bytes` was given."""
    arrays: dict[str, Any] = load(data)
    return Chunk(**arrays | {name: int(arrays[name][0]) for name in _WHOLE})


def _numbers(column: Any) -> Any:
    """Rows of numbers from their bytes, (P, D)."""
    rows = [np.frombuffer(data, np.float64) for data in column.to_pylist()]
    return np.stack(rows) if rows else np.zeros((0, 0))


def _ids_bytes(item_ids: Sequence[Hashable], places: Any, table: Any) -> bytes:
    """Item ids in the chunk's order, and which of them came first."""
    import pyarrow

    ids = pyarrow.array(item_ids, table["task"].type)
    return _ipc(pyarrow.table({"task": ids, "place": places}))


def _table_from(data: bytes) -> Any:
    import pyarrow

    return pyarrow.ipc.open_stream(data).read_all()


def _ipc(table: Any) -> bytes:
    import pyarrow

    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())
