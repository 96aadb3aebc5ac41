"""A model in rows: one that all workers share, and one per worker.

`learn` is the update as a pure function from `Work`, the rows needed, to `Outcome`, the rows
changed. Both are plain values, so it may run in another process. A chunk needs what is shared
and its own workers: everybody else enters only through the sums that are shared. So the model is
built with those workers alone, in the order they first appeared, and learns as it would with all.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from itertools import starmap
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from labelquorum.errors import StateError
from labelquorum.ingest.chunks import id_key, make_chunk
from labelquorum.ingest.labels import LabelTable
from labelquorum.ingest.vocabulary import Intake, Note, Roster
from labelquorum.learn.aggregator import Aggregation, Aggregator
from labelquorum.learn.analysis.drift import fresh_track
from labelquorum.learn.analysis.stopping import THRESHOLDS, stopping_of
from labelquorum.learn.bila.presets import saved_settings
from labelquorum.learn.bila.sparse_counts import as_matrices, rows_with_classes
from labelquorum.learn.estimator import Estimator
from labelquorum.learn.estimators import estimator
from labelquorum.learn.model import ModelState, Step, commit, learn_chunk, snapshot_parts
from labelquorum.learn.model_file import Snapshot, state_arrays, state_from_arrays
from labelquorum.learn.open_items import OpenItem, OpenItems
from labelquorum.learn.worker_table import WorkerRows
from labelquorum.store.batch import decode, decode_all, encode, encode_id
from labelquorum.store.learner import (
    AnswerRow,
    Configuration,
    LabelRow,
    OpenRow,
    Outcome,
    Work,
    WorkerRow,
)
from labelquorum.store.stats import chunk_summary

__all__ = ["configure", "estimator_of", "kept_table", "learn", "looked_at", "snapshot_of"]

_ROWS = "rows/"  # what a state calls the numbers of single workers
_WITH_BYTES = b"\0sparse\0"  # starts a row that ends in bytes of any length; no count is that small

_NOT_HERE = {
    "open_items": "Set grace= of its rules instead.",
    "warmup_items": "Set chunk_items= of its rules instead.",
    "history": "Send those labels instead.",
}


@lru_cache(maxsize=64)
def model_of(method: str, settings: str) -> Estimator:
    """The model behind a stream, which never learns: its method, its seed, its rules for rows."""
    model = estimator(method, **saved_settings(decode(settings)))
    if model.model_.aggregator.counts is None:
        raise StateError(
            f"The method {method!r} with these settings cannot be kept in a store: its update "
            "needs every worker, and a store reads those of a chunk. Use bila, with the preset "
            "default or recipe."
        )
    return model


def configure(method: str, settings: Mapping[str, Any]) -> Configuration:
    """What a stream learns by, checked, with every setting spelled out."""
    for name, instead in _NOT_HERE.items():
        if name in settings:
            raise StateError(f"A stream has no setting `{name}`. {instead}")
    model = estimator(method, **settings)
    if model.repeats == "error":
        raise StateError(
            "`repeats` of a stream must be 'last', 'first', 'majority' or 'all': a label that was "
            "acknowledged cannot be refused later. Got 'error'."
        )
    spelled = {n: v for n, v in model.get_params().items() if n not in _NOT_HERE}
    spelled["seed"] = model.model_.seed
    if model.model_.space.classes is not None:
        spelled["classes"] = list(model.model_.space.classes)
    try:
        text = encode(spelled)
    except TypeError as error:
        raise StateError(
            f"The settings of a stream must be text and numbers ({error}). Name your settings so."
        ) from error
    model_of(model.method, text)
    digest = sha256(encode([model.method, text]).encode()).hexdigest()
    return Configuration(model.method, text, digest)


def learn(work: Work, by: Callable[..., Step] = learn_chunk) -> Outcome:
    """Learn from a chunk, and say which rows are new.

    `by` is how: as `learn_chunk` does it, or in its place.
    """
    model = model_of(work.method, work.settings)
    memory = memory_of(work)
    known = memory.vocabulary.worker_ids[:]
    gold = {decode(item): decode(truth) for item, truth in work.gold}
    intake = memory.vocabulary.read(table_of(work), memory.open_items, gold)
    if not intake.chunk.n_labels:
        return _nothing_learned(work, intake)
    step = by(memory, model.model_.aggregator, intake, model.model_.seed, work.chunk)
    memory = commit(memory, step)
    classes, chunk = memory.vocabulary.classes, intake.chunk
    places = [row.place for row in work.workers]
    n_new = len(memory.vocabulary.worker_ids) - len(known)
    places += range(work.n_workers, work.n_workers + n_new)
    before = {row.place: row for row in work.workers}
    rows = _worker_rows(memory, places)
    arrays = state_arrays(memory.state)
    shared = {name: array for name, array in arrays.items() if not name.startswith(_ROWS)}
    n_labels = np.bincount(chunk.item, minlength=chunk.n_items)
    aggregated = step.result.aggregated
    confidence = step.result.probs[np.arange(chunk.n_items), aggregated]
    return Outcome(
        version=work.version,
        classes=encode(classes),
        n_workers=work.n_workers + n_new,
        n_chunks=int(memory.n_chunks),
        shared=save({name: np.asarray(array, order="C") for name, array in shared.items()}),
        workers=[row for row in rows if before.get(row.place) != row],
        answers=_answer_rows(intake, classes, step.result, confidence, n_labels),
        open_items=_open_rows(memory.open_items, places) if work.keeps_open else [],
        result=_result(getattr(step.info, "losses", [])[-1:], intake),
        summary=chunk_summary(
            classes,
            aggregated,
            confidence,
            n_labels,
            model.model_.aggregator.class_prior(memory.state),
            before=[_answered(row) for row in work.open_items],
            stopping=(THRESHOLDS, _stopping(model, memory, step)),
        ),
    )


def _nothing_learned(work: Work, intake: Intake) -> Outcome:
    """Truths of items whose labels were all forgotten: there is nothing to hold them against."""
    assert work.shared is not None
    nothing = np.zeros(0, np.int64)
    return Outcome(
        version=work.version,
        classes=work.classes,
        n_workers=work.n_workers,
        n_chunks=work.n_chunks,
        shared=work.shared,
        workers=[],
        answers=[],
        open_items=list(work.open_items) if work.keeps_open else [],
        result=_result([], intake),
        summary=chunk_summary([], nothing, nothing, nothing, None),
    )


def _stopping(model: Estimator, memory: ModelState, step: Step) -> NDArray[np.float64]:
    """What asking for fewer labels would have come to, on this chunk."""
    evidence = step.result.log_evidence
    return stopping_of(model.model_.aggregator, memory.state, step.intake.chunk, evidence)


def _answered(row: OpenRow) -> tuple[int, float]:
    """What an open item is answered, and how sure."""
    arrays = load(row.evidence)
    label = int(arrays["aggregated"])
    return label, float(arrays["probs"][label])


def _result(losses: Sequence[Any], intake: Intake) -> str:
    """What learning did, for people."""
    tally = {**intake.tally._asdict(), "skipped": dict(intake.tally.skipped)}
    return encode({"loss": [float(loss) for loss in losses], "tally": tally})


def table_of(work: Work) -> LabelTable:
    """The labels of a chunk, as they came."""
    return kept_table(work.labels, f"chunk {work.chunk}")


def kept_table(kept: Sequence[LabelRow], source: str) -> LabelTable:
    """Labels that were kept, as they came."""

    def values(texts: Sequence[str | None]) -> list[Any]:
        different = [text for text in dict.fromkeys(texts) if text is not None]
        known: dict[str | None, Any] = dict(zip(different, decode_all(different), strict=True))
        return list(map(known.get, texts))

    if not kept:
        return LabelTable([], [], [])
    rows, items, workers, labels, weights, groups, moments = zip(*kept, strict=True)
    weighted = any(weight is not None for weight in weights)
    return LabelTable(
        values(items),
        values(workers),
        values(labels),
        weights=[1.0 if w is None else w for w in weights] if weighted else None,
        groups=values(groups) if any(groups) else None,
        timestamps=values(moments) if any(moments) else None,
        source=source,
        lines=list(rows),
        unit="row",
    )


def memory_of(work: Work) -> ModelState:
    """The memory of a model that knows these workers and these open items only."""
    model = model_of(work.method, work.settings)
    classes = decode(work.classes)
    workers = decode_all([row.worker for row in work.workers])
    roster = Roster(model.model_.space, workers, classes)
    place = {row.place: k for k, row in enumerate(work.workers)}
    room = len(work.open_items) + len({row.item for row in work.labels})
    ledger = OpenItems(room if work.keeps_open or work.open_items else 0)
    item_ids = decode_all([row.item for row in work.open_items])
    items = (_open_item(row, place) for row in work.open_items)
    ledger.keep_all(item_ids, items, map(id_key, item_ids))
    book = WorkerRows(
        {
            "labels": np.array([row.labels for row in work.workers], np.int64),
            "agreed": np.array([row.agreed for row in work.workers], np.int64),
            "track": _tracks(work.workers),
        }
    )
    state: Any = None
    if work.shared is not None:
        method = model.model_.aggregator
        leaves = _leaves(method, work.workers, len(classes))
        arrays: dict[str, NDArray[Any]] = {**load(work.shared)}
        arrays |= {f"{_ROWS}{name}": leaf for name, leaf in leaves.items()}
        state = state_from_arrays(method.state_type, arrays)
    return ModelState(roster, ledger, state, book, [], {}, work.n_chunks)


def _tracks(workers: Sequence[WorkerRow]) -> NDArray[np.float32]:
    """How workers did over time, (P, BINS, 5); of bins that are not used nothing is kept."""
    tracks = fresh_track(len(workers))
    for k, row in enumerate(workers):
        if row.track:
            bins = np.frombuffer(row.track, np.float32).reshape(-1, tracks.shape[2])
            tracks[k, : len(bins)] = bins
    return tracks


def snapshot_of(work: Work) -> Snapshot:
    """A model of these workers and open items, as `BiLA.save` would write it."""
    ids, arrays = snapshot_parts(memory_of(work))
    settings = {**decode(work.settings), "open_items": len(work.open_items)}
    header = {"method": work.method, "settings": settings, "losses": [], "chunks": work.n_chunks}
    return Snapshot(header, ids, arrays)


def looked_at(work: Work) -> Estimator:
    """A model of these workers and open items, to be asked and never taught."""
    return model_of(work.method, work.settings).with_learned(memory_of(work))


def estimator_of(work: Work, name: str) -> Estimator:
    """A model of these workers and open items, as the library's own."""
    return type(estimator(work.method)).from_snapshot(name, snapshot_of(work), {})


def _blank(method: Aggregator, n_classes: int) -> dict[str, NDArray[Any]]:
    """The leaves of nobody, (0, …) each, by name and in the order they are written."""
    nobody = make_chunk([], [], [], n_workers=0, n_classes=n_classes)
    rows: WorkerRows = method.init(nobody, 0).rows
    return dict(sorted(rows.to_arrays().items()))


def _leaves(
    method: Aggregator, workers: Sequence[WorkerRow], n_classes: int
) -> dict[str, NDArray[Any]]:
    """The numbers of these workers, (P, …) each; zeros for classes a worker had not met."""
    blank = _blank(method, n_classes)
    leaves = {
        name: np.zeros((len(workers), *leaf.shape[1:]), leaf.dtype) for name, leaf in blank.items()
    }
    kinds = [(row.n_classes, row.state.startswith(_WITH_BYTES)) for row in workers]
    for size, has_bytes in sorted(set(kinds)):
        if not size:  # who was forgotten has zeros
            continue
        here = [k for k, kind in enumerate(kinds) if kind == (size, has_bytes)]
        found = _read_rows([workers[k].state for k in here], _blank(method, size), size)
        if found.keys() != leaves.keys():  # matrices, from when there were fewer classes
            found = rows_with_classes(found, n_classes)
        for name, values in found.items():
            corner: Any = (np.array(here), *(slice(length) for length in values.shape[1:]))
            leaves[name][corner] = values
    return leaves


def _read_rows(
    rows: Sequence[bytes], blank: Mapping[str, NDArray[Any]], n_classes: int
) -> dict[str, NDArray[Any]]:
    """The leaves that `_bytes_of_leaves` wrote, all in the same way."""
    has_bytes = rows[0].startswith(_WITH_BYTES)
    if not has_bytes and any(leaf.dtype == object for leaf in blank.values()):
        blank = as_matrices(blank, n_classes)  # written before counts could be sparse
    shapes = {name: leaf.shape[1:] for name, leaf in blank.items() if leaf.dtype != object}
    start = len(_WITH_BYTES) if has_bytes else 0
    ends = start + 8 * np.cumsum([0, *(prod(shape) for shape in shapes.values())])
    data = b"".join(row[start : ends[-1]] for row in rows)
    parts = np.split(
        np.frombuffer(data, np.float64).reshape(len(rows), -1), (ends[1:-1] - start) // 8, 1
    )
    leaves: dict[str, NDArray[Any]] = {
        name: part.reshape(len(rows), *shape)
        for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }
    if has_bytes:
        [name] = blank.keys() - shapes.keys()
        leaves[name] = np.empty(len(rows), object)
        leaves[name][:] = [row[ends[-1] :] for row in rows]
    return leaves


def _bytes_of_leaves(leaves: Mapping[str, NDArray[Any]], n_workers: int) -> list[bytes]:
    """The rows of workers: numbers, and after them a leaf of bytes if there is one."""
    numbers = [leaf for leaf in leaves.values() if leaf.dtype != object]
    rows = _bytes_of_rows(np.concatenate([leaf.reshape(n_workers, -1) for leaf in numbers], axis=1))
    tails = [leaf for leaf in leaves.values() if leaf.dtype == object]
    if not tails:
        return rows
    [tail] = tails
    return [_WITH_BYTES + row + (end or b"") for row, end in zip(rows, tail, strict=True)]


def _answer_rows(
    intake: Intake,
    classes: Sequence[Hashable],
    result: Aggregation,
    confidence: NDArray[Any],
    n_labels: NDArray[Any],
) -> list[AnswerRow]:
    """The answers, in the order in which their items first appeared."""
    order, labels = intake.order, [encode(label) for label in classes]
    columns = (
        [encode_id(intake.item_ids[i], "item", "answer") for i in order.tolist()],
        [labels[c] for c in result.aggregated[order].tolist()],
        confidence[order].tolist(),
        _bytes_of_rows(result.probs[order]),
        n_labels[order].tolist(),
    )
    return list(starmap(AnswerRow, zip(*columns, strict=True)))


def _bytes_of_rows(rows: NDArray[Any]) -> list[bytes]:
    data, size = rows.tobytes(), rows.itemsize * rows.shape[1]
    return [data[start : start + size] for start in range(0, len(data), size)]


def _worker_rows(memory: ModelState, places: Sequence[int]) -> list[WorkerRow]:
    leaves = dict(sorted(memory.state.rows.to_arrays().items()))
    n_workers, n_classes = len(places), len(memory.vocabulary.classes)
    book = memory.worker_stats.to_arrays()
    used = book["track"].any(axis=2).sum(axis=1).tolist()  # bins, the first of all
    columns = (
        places,
        [encode_id(worker, "worker", "model") for worker in memory.vocabulary.worker_ids],
        [n_classes] * n_workers,
        _bytes_of_leaves(leaves, n_workers),
        book["labels"].tolist(),
        book["agreed"].tolist(),
        [track[:bins].tobytes() or None for track, bins in zip(book["track"], used, strict=True)],
    )
    return list(starmap(WorkerRow, zip(*columns, strict=True)))


def _open_rows(ledger: OpenItems, places: Sequence[int]) -> list[OpenRow]:
    rows = []
    for item_id in ledger:
        held = ledger.get(item_id)
        assert held is not None
        evidence = {
            "worker": np.array([places[k] for k in held.worker.tolist()], np.int64),
            "label": held.label,
            "weight": held.weight,
            "log_evidence": held.log_evidence,
            "probs": held.probs,
            "aggregated": np.array(held.aggregated),
            "counted_probs": held.counted_probs,
            "gold": np.array(held.gold),
            "heat": np.array(held.temperature),
        }
        if held.votes is not None:
            evidence["votes"] = held.votes
        arrays = {name: np.asarray(array, order="C") for name, array in evidence.items()}
        rows.append(
            OpenRow(encode_id(item_id, "item", "answer"), save(arrays), encode(tuple(held.note)))
        )
    return rows


def _open_item(row: OpenRow, place: Mapping[int, int]) -> OpenItem:
    arrays = load(row.evidence)
    group: Hashable
    group, moment = decode(row.note)
    return OpenItem(
        np.array([place[k] for k in arrays["worker"].tolist()], np.int32),
        arrays["label"],
        arrays["weight"],
        arrays["log_evidence"],
        arrays["probs"],
        int(arrays["aggregated"]),
        arrays["counted_probs"],
        int(arrays["gold"]),
        float(arrays["heat"]),
        Note(group, moment),
        arrays.get("votes"),
    )
