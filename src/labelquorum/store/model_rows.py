"""A model in rows: one that all workers share, and one per worker.

`learn` is the update as a pure function from `Work`, the rows needed, to `Outcome`, the rows
changed. Both are plain values, so it may run in another process. A chunk needs what is shared
and its own workers: everybody else enters only through the sums that are shared. So the model is
built with those workers alone, in the order they first appeared, and learns as it would with all.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from itertools import chain
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from labelquorum.errors import StateError
from labelquorum.ingest.chunks import make_chunk
from labelquorum.ingest.columns import encode as dictionary
from labelquorum.ingest.columns import mapped
from labelquorum.ingest.labels import LabelTable
from labelquorum.ingest.vocabulary import Intake, Note, Roster
from labelquorum.ingest.worker_attributes import Attributes
from labelquorum.learn.aggregator import Aggregation, Aggregator
from labelquorum.learn.analysis.drift import fresh_track
from labelquorum.learn.analysis.stopping import THRESHOLDS, stopping_of
from labelquorum.learn.bila.presets import saved_settings
from labelquorum.learn.bila.sparse_counts import as_matrices, rows_with_classes
from labelquorum.learn.estimator import Estimator
from labelquorum.learn.estimators import estimator
from labelquorum.learn.item_columns import NO_NOTE
from labelquorum.learn.model import ModelState, Step, commit, learn_chunk, snapshot_parts
from labelquorum.learn.model_file import Snapshot, state_arrays, state_from_arrays
from labelquorum.learn.open_items import OpenItems
from labelquorum.learn.worker_table import WorkerRows
from labelquorum.store.batch import decode, decode_all, encode
from labelquorum.store.evidence import read_evidence, write_evidence
from labelquorum.store.learner import (
    AnswerColumns,
    AttributeRow,
    Configuration,
    LabelColumns,
    OpenColumns,
    OpenRow,
    Outcome,
    Work,
    WorkerRow,
)
from labelquorum.store.stats import chunk_summary

__all__ = [
    "attributes_of",
    "configure",
    "estimator_of",
    "kept_table",
    "learn",
    "looked_at",
    "snapshot_of",
]

_NO_NOTE = encode(tuple(NO_NOTE))
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
    answered = _answered(memory.open_items)
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
    names = [row.worker for row in work.workers]
    if n_new:
        text_of = _by_id(work.labels.worker)
        names += [text_of[worker] for worker in memory.vocabulary.worker_ids[len(known) :]]
    rows = _worker_rows(memory, places, names)
    texts = _by_id(
        work.labels.item,
        (row.item for row in work.open_items),
        (item for item, _ in work.gold),
    )
    opened = OpenColumns()
    if work.keeps_open:
        opened = _open_columns(memory.open_items, texts, places)
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
        answers=_answers(intake, texts, classes, step.result, confidence, n_labels),
        open_items=opened,
        result=_result(getattr(step.info, "losses", [])[-1:], intake),
        summary=chunk_summary(
            classes,
            aggregated,
            confidence,
            n_labels,
            model.model_.aggregator.class_prior(memory.state),
            before=answered,
            stopping=(THRESHOLDS, _stopping(model, memory, step)),
        ),
    )


def _nothing_learned(work: Work, intake: Intake) -> Outcome:
    """Truths of items whose labels were all forgotten: there is nothing to hold them against."""
    assert work.shared is not None
    nothing, kept = np.zeros(0, np.int64), work.open_items if work.keeps_open else ()
    return Outcome(
        version=work.version,
        classes=work.classes,
        n_workers=work.n_workers,
        n_chunks=work.n_chunks,
        shared=work.shared,
        workers=[],
        answers=AnswerColumns(),
        open_items=OpenColumns(*zip(*kept, strict=True)),
        result=_result([], intake),
        summary=chunk_summary([], nothing, nothing, nothing, None),
    )


def _stopping(model: Estimator, memory: ModelState, step: Step) -> NDArray[np.float64]:
    """What asking for fewer labels would have come to, on this chunk."""
    evidence = step.result.log_evidence
    return stopping_of(model.model_.aggregator, memory.state, step.intake.chunk, evidence)


def _answered(ledger: OpenItems) -> list[tuple[int, float]]:
    """What open items are answered, and how sure."""
    held = ledger.everything()
    label = held.column("aggregated")
    probs = held.column("probs", int(label.max(initial=-1)) + 1)
    return list(zip(label.tolist(), probs[np.arange(len(label)), label].tolist(), strict=True))


def _result(losses: Sequence[Any], intake: Intake) -> str:
    """What learning did, for people."""
    tally = {**intake.tally._asdict(), "skipped": dict(intake.tally.skipped)}
    return encode({"loss": [float(loss) for loss in losses], "tally": tally})


def table_of(work: Work) -> LabelTable:
    """The labels of a chunk, as they came."""
    return kept_table(work.labels, f"chunk {work.chunk}")


def kept_table(kept: LabelColumns, source: str) -> LabelTable:
    """Labels that were kept, as they came."""
    if not kept.row:
        return LabelTable([], [], [])
    weighted = any(weight is not None for weight in kept.weight)
    return LabelTable(
        _decoded(kept.item),
        _decoded(kept.worker),
        _decoded(kept.label),
        weights=[1.0 if w is None else w for w in kept.weight] if weighted else None,
        groups=_decoded(kept.group) if any(kept.group) else None,
        timestamps=_decoded(kept.timestamp) if any(kept.timestamp) else None,
        source=source,
        lines=list(kept.row),
        unit="row",
        scores=list(kept.score) if any(score is not None for score in kept.score) else None,
    )


def _decoded(texts: Sequence[str | None]) -> Sequence[Any]:
    """The values of a column; None where there is none."""
    column = dictionary(texts)
    there: list[Any] = [text for text in column.values if text is not None]
    known: dict[Any, Any] = dict(zip(there, decode_all(there), strict=True))
    return mapped(column, known.get)


def _by_id(*columns: Iterable[str]) -> dict[Hashable, str]:
    """The texts of ids, by id; of two spellings of one id, the first."""
    texts = list(dict.fromkeys(chain(*columns)))[::-1]
    return dict(zip(decode_all(texts), texts, strict=True))


def memory_of(work: Work) -> ModelState:
    """The memory of a model that knows these workers and these open items only."""
    model = model_of(work.method, work.settings)
    classes = decode(work.classes)
    workers = decode_all([row.worker for row in work.workers])
    roster = Roster(model.model_.space, workers, classes, attributes_of(work.attributes))
    room = len(work.open_items) + len(work.labels.row)
    ledger = OpenItems(room if work.keeps_open or work.open_items else 0)
    _keep_open(ledger, work.open_items, [row.place for row in work.workers])
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


def attributes_of(rows: Sequence[AttributeRow]) -> dict[Hashable, Attributes]:
    """What is known of workers, by their own ids."""
    workers = decode_all([row[0] for row in rows])
    return {worker: Attributes(*row[1:]) for worker, row in zip(workers, rows, strict=True)}


def _tracks(workers: Sequence[WorkerRow]) -> NDArray[np.float32]:
    """How workers did over time, (P, BINS, 5); of bins that are not used nothing is kept."""
    tracks = fresh_track(len(workers))
    sizes = [len(row.track or b"") for row in workers]
    for size in set(sizes) - {0}:
        alike = [k for k, one in enumerate(sizes) if one == size]
        bins = np.frombuffer(b"".join(workers[k].track or b"" for k in alike), np.float32)
        bins = bins.reshape(len(alike), -1, tracks.shape[2])
        tracks[alike, : bins.shape[1]] = bins
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
    """The leaves without workers, (0, …) each, by name and in the order they are written."""
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


def _answers(
    intake: Intake,
    texts: Mapping[Hashable, str],
    classes: Sequence[Hashable],
    result: Aggregation,
    confidence: NDArray[Any],
    n_labels: NDArray[Any],
) -> AnswerColumns:
    """The answers, in the order in which their items first appeared."""
    order, labels = intake.order, [encode(label) for label in classes]
    return AnswerColumns(
        [texts[intake.item_ids[i]] for i in order.tolist()],
        [labels[c] for c in result.aggregated[order].tolist()],
        confidence[order].tolist(),
        _bytes_of_rows(result.probs[order]),
        n_labels[order].tolist(),
    )


def _bytes_of_rows(rows: NDArray[Any]) -> list[bytes]:
    data, size = rows.tobytes(), rows.itemsize * rows.shape[1]
    return [data[start : start + size] for start in range(0, len(data), size)]


def _worker_rows(
    memory: ModelState, places: Sequence[int], names: Sequence[str]
) -> list[WorkerRow]:
    leaves = dict(sorted(memory.state.rows.to_arrays().items()))
    n_workers, n_classes = len(places), len(memory.vocabulary.classes)
    book = memory.worker_stats.to_arrays()
    columns = (
        places,
        names,
        [n_classes] * n_workers,
        _bytes_of_leaves(leaves, n_workers),
        book["labels"].tolist(),
        book["agreed"].tolist(),
        _bytes_of_tracks(book["track"]),
    )
    return list(map(WorkerRow._make, zip(*columns, strict=True)))


def _bytes_of_tracks(tracks: NDArray[np.float32]) -> list[bytes | None]:
    """What is kept of tracks, (P, BINS, 5): the bins that are used, which are the first."""
    rows = _bytes_of_rows(tracks.reshape(len(tracks), -1))
    used = tracks.any(axis=2).sum(axis=1) * tracks.itemsize * tracks.shape[2]
    return [row[:end] or None for row, end in zip(rows, used.tolist(), strict=True)]


def _open_columns(
    ledger: OpenItems, texts: Mapping[Hashable, str], places: Sequence[int]
) -> OpenColumns:
    ids: list[str] = []
    evidence: list[bytes] = []
    written: list[str] = []
    for columns, items in ledger.everything().parts:
        chosen, notes = items.tolist(), columns.notes
        ids += (texts[columns.ids[n]] for n in chosen)
        evidence += write_evidence(columns, items, np.array(places, np.int64))
        written += (_NO_NOTE if notes is None else encode(tuple(notes[n])) for n in chosen)
    return OpenColumns(ids, evidence, written)


def _keep_open(ledger: OpenItems, rows: Sequence[OpenRow], places: Sequence[int]) -> None:
    """Keep open items as they are stored; `places` are those of their workers, in order."""
    item_ids = decode_all([row.item for row in rows])
    notes = [NO_NOTE if row.note == _NO_NOTE else Note(*decode(row.note)) for row in rows]
    evidence = [row.evidence for row in rows]
    for columns in read_evidence(item_ids, evidence, notes, np.array(places, np.int64)):
        ledger.keep_columns(columns)
