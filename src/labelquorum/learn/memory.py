"""The memory behind the door: who and what is known, what is open, and what was learned."""

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum.ingest.chunks import Chunk, concatenate, has_news, make_chunk, with_news
from labelquorum.ingest.events import MISSING, LabelSpace, LabelTable
from labelquorum.ingest.ledger import Ledger, Note, OpenItem
from labelquorum.ingest.roster import Intake, Roster
from labelquorum.learn.aggregator import Aggregation, Aggregator
from labelquorum.learn.history import History
from labelquorum.learn.rows import WorkerRows
from labelquorum.learn.snapshot import Snapshot, state_arrays, state_from_arrays

__all__ = [
    "Memory",
    "Step",
    "count_agreement",
    "counted_probs",
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
    book: WorkerRows  # "labels" and "agreed" with the consensus, counted by worker
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
    nobody = WorkerRows({"labels": np.zeros(0, np.int64), "agreed": np.zeros(0, np.int64)})
    return Memory(Roster(space), Ledger(open_items), None, nobody, [], {})


def with_history(memory: Memory, history: History, method: Aggregator, seed: int) -> Memory:
    """A memory that has learned nothing but knows these workers."""
    assert method.counts is not None
    n_workers, n_classes = history.counts.shape[:2]
    nothing = make_chunk([], [], [], n_workers=n_workers, n_classes=n_classes)
    state = method.counts.add(method.init(nothing, seed), np.arange(n_workers), history.counts)
    unlabelled = {name: np.zeros(n_workers, np.int64) for name in memory.book.names}
    return memory._replace(
        roster=Roster(memory.roster.space, history.workers, history.classes),
        state=state,
        book=WorkerRows(unlabelled),
    )


def learn_chunk(memory: Memory, method: Aggregator, intake: Intake, seed: int) -> Step:
    """Learn from a chunk that has labels, and answer it; the memory stays as it is.

    It is the one way from a chunk to its answers, for models in memory and in a store alike.
    """
    state = method.init(intake.chunk, seed) if memory.state is None else memory.state
    state, info = method.update(state, with_news(intake.chunk))
    result = method.aggregate(state, intake.chunk)
    return Step(intake, state, info, result, count_agreement(memory.book, intake, result))


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
        result.heat,
    )
    n_chunks = memory.n_chunks + (not intake.chunk.known.all())
    return Memory(memory.roster, memory.ledger, step.state, step.book, [], {}, n_chunks)


def count_agreement(book: WorkerRows, intake: Intake, result: Aggregation) -> WorkerRows:
    """Count each worker's labels, and those that went with the consensus."""
    chunk = intake.chunk
    new = np.arange(book.n_workers, chunk.n_workers)
    if len(new):
        book = book.scatter(new, {name: np.zeros(len(new), np.int64) for name in book.names})
    fresh = ~chunk.known & (chunk.replaced == MISSING)
    agreed = fresh & (chunk.label == result.aggregated[chunk.item])
    worker, n_workers = chunk.local_worker, len(chunk.workers)
    rows = book.gather(chunk.workers)
    for name, counted in (("labels", fresh), ("agreed", agreed)):
        rows[name] += np.bincount(worker[counted], minlength=n_workers)
    return book.scatter(chunk.workers, rows)


def uncount(book: WorkerRows, worker: int, held: OpenItem) -> WorkerRows:
    """Take a worker's labels of an item back."""
    labels = held.label[held.worker == worker]
    rows = book.gather(np.array([worker]))
    for name, lost in (("labels", len(labels)), ("agreed", (labels == held.aggregated).sum())):
        rows[name] = np.maximum(rows[name] - lost, 0)
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
    return Memory(
        Roster(space, ids["workers"], ids["classes"]),
        Ledger.from_arrays(open_items, ids["open_items"], notes, _part(snapshot.arrays, "ledger")),
        state_from_arrays(state_type, state) if state else None,
        WorkerRows(_part(snapshot.arrays, "book")),
        [LabelTable(**held, source="held labels")] if held else [],
        dict(zip(ids.get("held_gold", []), ids.get("held_truth", []), strict=True)),
    )


def _part(arrays: Mapping[str, NDArray[Any]], name: str) -> dict[str, NDArray[Any]]:
    prefix = f"{name}/"
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}


def _as_text(value: Any) -> Any:
    """A value JSON can hold; a date becomes text."""
    return value if value is None or isinstance(value, str | int | float) else str(value)
