"""The memory behind the door: who and what is known, what is open, and what was learned."""

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum.ingest.chunks import Chunk, concatenate, has_news, make_chunk, with_news
from labelquorum.ingest.labels import MISSING, LabelSpace, LabelTable
from labelquorum.ingest.open_items import Ledger, Note, OpenItem
from labelquorum.ingest.vocabulary import Intake, Roster
from labelquorum.learn.aggregator import Aggregation, Aggregator
from labelquorum.learn.analysis.drift import extend, fresh_track, left_out, taken_back
from labelquorum.learn.model_file import Snapshot, state_arrays, state_from_arrays
from labelquorum.learn.worker_priors import History
from labelquorum.learn.worker_table import WorkerRows

__all__ = [
    "Memory",
    "Step",
    "count_agreement",
    "counted_probs",
    "empty_book",
    "learn_chunk",
    "memory_parts",
    "nothing_learned",
    "remember",
    "restored",
    "uncount",
    "with_history",
]

_HELD = ("item_ids", "worker_ids", "labels", "weights", "groups", "timestamps")


class Memory(NamedTuple):
    """All a model has learned; a new one is put in place only when a chunk is through."""

    roster: Roster
    ledger: Ledger
    state: Any  # of the aggregator; None until there was a label
    book: WorkerRows  # by worker "labels", those that "agreed" with the consensus, his "track"
    held: list[LabelTable]  # chunks waiting for the warm-up to be complete
    held_gold: dict[Hashable, Hashable]  # and the true labels given with them
    n_chunks: float = 0  # learned from; infinite where that is not known


class Step(NamedTuple):
    """What learning from one chunk gave, before anything is changed."""

    intake: Intake
    state: Any  # of the aggregator
    info: Any
    result: Aggregation
    book: WorkerRows


def nothing_learned(space: LabelSpace, open_items: int) -> Memory:
    """Where every model starts."""
    return Memory(Roster(space), Ledger(open_items), None, empty_book(0), [], {})


def empty_book(n_workers: int) -> WorkerRows:
    """What is kept beside the state of so many workers who have said nothing yet."""
    nothing = np.zeros(n_workers, np.int64)
    return WorkerRows({"labels": nothing, "agreed": nothing, "track": fresh_track(n_workers)})


def with_history(memory: Memory, history: History, method: Aggregator, seed: int) -> Memory:
    """A memory that has learned nothing but knows these workers."""
    assert method.counts is not None
    n_workers, n_classes = history.counts.shape[:2]
    nothing = make_chunk([], [], [], n_workers=n_workers, n_classes=n_classes)
    state = method.counts.add(method.init(nothing, seed), np.arange(n_workers), history.counts)
    return memory._replace(
        roster=Roster(memory.roster.space, history.workers, history.classes),
        state=state,
        book=empty_book(n_workers),
    )


def learn_chunk(
    memory: Memory, method: Aggregator, intake: Intake, seed: int, number: int | None = None
) -> Step:
    """Learn from a chunk that has labels, and answer it; the memory stays as it is.

    It is the one way from a chunk to its answers, for models in memory and in a store alike.
    `number` is the chunk's, where chunks have one; else they are counted.
    """
    state = method.init(intake.chunk, seed) if memory.state is None else memory.state
    state, info = method.update(state, with_news(intake.chunk))
    result = method.aggregate(state, intake.chunk)
    at = memory.n_chunks + 1 if number is None else number
    book = count_agreement(memory.book, intake, result, at)
    return Step(intake, state, info, result, book)


def remember(memory: Memory, step: Step) -> Memory:
    """The memory once a chunk is through; its roster and ledger are changed in place."""
    intake, result = step.intake, step.result
    memory.roster.admit(intake)
    memory.ledger.record(
        intake.item_ids,
        intake.order,
        intake.chunk,
        result.log_evidence,
        result.probs,
        result.aggregated,
        intake.notes,
        counted_probs(intake.chunk, step.info),
        result.temperature,
    )
    n_chunks = memory.n_chunks + (not intake.chunk.known.all())
    return Memory(memory.roster, memory.ledger, step.state, step.book, [], {}, n_chunks)


def count_agreement(
    book: WorkerRows, intake: Intake, result: Aggregation, number: float
) -> WorkerRows:
    """Count each worker's labels, those that went with the consensus, and go on with his track."""
    chunk = intake.chunk
    book = book.with_room(chunk.n_workers)
    fresh = ~chunk.known & (chunk.replaced == MISSING)
    if not fresh.any():
        return book
    agreed = chunk.label == result.aggregated[chunk.item]
    temperature = np.ones(chunk.n_items) if result.temperature is None else result.temperature
    going_along = left_out(
        result.probs[chunk.item], result.log_evidence, temperature[chunk.item], chunk.label
    )
    worker, n_workers = chunk.local_worker[fresh], len(chunk.workers)
    rows = book.gather(chunk.workers)
    labels = np.bincount(worker, minlength=n_workers)
    rows["labels"] += labels
    rows["agreed"] += np.bincount(worker[agreed[fresh]], minlength=n_workers)
    own = np.bincount(worker, going_along[fresh], n_workers)
    if not np.isfinite(number):  # of merged models: after the latest these workers know of
        number = rows["track"][..., -1].max(initial=0) + 1
    squares = np.bincount(worker, going_along[fresh] ** 2, n_workers)
    news = np.stack([labels, own, squares, _of_others(labels, own)], axis=1)
    rows["track"] = extend(rows["track"], news, number)
    return book.scatter(chunk.workers, rows)


def _of_others(labels: NDArray[Any], own: NDArray[Any]) -> NDArray[np.float64]:
    """How far each worker's labels would go along if he were like all others of the chunk, (P,)."""
    others = labels.sum() - labels
    mean = np.divide(own.sum() - own, others, np.zeros(len(own)), where=others > 0)
    return np.asarray(np.where(others > 0, labels * mean, own))


def uncount(book: WorkerRows, worker: int, held: OpenItem) -> WorkerRows:
    """Take a worker's labels of an item back."""
    mine = held.worker == worker
    labels = held.label[mine]
    rows = book.gather(np.array([worker]))
    for name, lost in (("labels", len(labels)), ("agreed", (labels == held.aggregated).sum())):
        rows[name] = np.maximum(rows[name] - lost, 0)
    gone = left_out(
        held.probs, held.log_evidence[mine], np.full(len(labels), held.temperature), labels
    ).sum()
    rows["track"] = taken_back(rows["track"][0], len(labels), float(gone))[None]
    return book.scatter(np.array([worker]), rows)


def counted_probs(chunk: Chunk, info: Any) -> NDArray[np.float32] | None:
    """By what a chunk's items are counted now, (N, A, C); None of a method that does not count.

    Items without news were not learned from, and stay counted as they were.
    """
    learned: NDArray[np.float32] | None = getattr(info, "counted_probs", None)
    if learned is None or chunk.counted_probs is None or len(learned) == chunk.n_items:
        return learned
    counted = chunk.counted_probs.copy()
    counted[has_news(chunk)] = learned
    return counted


def memory_parts(
    memory: Memory,
) -> tuple[dict[str, list[Hashable]], dict[str, NDArray[Any]]]:
    """What a file holds of a memory: lists of ids, and named arrays."""
    parts = {"book": memory.book.to_arrays(), "ledger": memory.ledger.to_arrays()}
    if memory.state is not None:
        parts["state"] = state_arrays(memory.state)
    ids: dict[str, list[Hashable]] = {
        "workers": memory.roster.worker_ids,
        "classes": memory.roster.classes,
        "open_items": list(memory.ledger),
        "open_groups": [note.group for note in memory.ledger.notes],
        "open_timestamps": [_as_text(note.timestamp) for note in memory.ledger.notes],
    }
    if memory.held:
        held = concatenate(memory.held)
        for column in _HELD:
            values = getattr(held, column)
            if values is not None:
                ids[f"held_{column}"] = [_as_text(value) for value in values]
    if memory.held_gold:
        ids["held_gold"] = list(memory.held_gold)
        ids["held_truth"] = list(memory.held_gold.values())
    arrays = {f"{part}/{n}": a for part, named in parts.items() for n, a in named.items()}
    return ids, arrays


def restored(space: LabelSpace, open_items: int, state_type: type, snapshot: Snapshot) -> Memory:
    """Rebuild a memory from what `memory_parts` gave."""
    ids, state = snapshot.ids, _part(snapshot.arrays, "state")
    held: dict[str, Any] = {n: ids[f"held_{n}"] for n in _HELD if f"held_{n}" in ids}
    notes = list(map(Note, ids["open_groups"], ids["open_timestamps"]))
    book = _part(snapshot.arrays, "book")
    book.setdefault("track", fresh_track(len(book["labels"])))  # files of before there were tracks
    return Memory(
        Roster(space, ids["workers"], ids["classes"]),
        Ledger.from_arrays(open_items, ids["open_items"], notes, _part(snapshot.arrays, "ledger")),
        state_from_arrays(state_type, state) if state else None,
        WorkerRows(book),
        [LabelTable(**held, source="held labels")] if held else [],
        dict(zip(ids.get("held_gold", []), ids.get("held_truth", []), strict=True)),
    )


def _part(arrays: Mapping[str, NDArray[Any]], name: str) -> dict[str, NDArray[Any]]:
    prefix = f"{name}/"
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}


def _as_text(value: Any) -> Any:
    """A value JSON can hold; a date becomes text."""
    return value if value is None or isinstance(value, str | int | float) else str(value)
