"""A model: an aggregator with what it has learned, by the users' own ids.

`learn_chunk` is the one way from a chunk to its answers, for models in memory and in a store alike.
"""

import re
import sys
import warnings
from collections import deque
from collections.abc import Hashable, Mapping
from math import inf, isfinite
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum.errors import LabelError, StateError
from labelquorum.ingest.chunks import (
    Chunk,
    concatenate,
    has_news,
    id_key,
    id_order,
    make_chunk,
    take_rows,
    with_news,
    withdrawn,
)
from labelquorum.ingest.columns import distinct, encode
from labelquorum.ingest.labels import MISSING, LabelSpace, LabelTable
from labelquorum.ingest.validate import ATTRIBUTES, COLUMNS, kind_of_value
from labelquorum.ingest.vocabulary import Intake, Note, Roster, Tally
from labelquorum.ingest.worker_attributes import Attributes
from labelquorum.learn.aggregator import Aggregation, Aggregator
from labelquorum.learn.analysis.drift import count, fresh_track, left_out, taken_back
from labelquorum.learn.item_columns import OpenItem
from labelquorum.learn.model_file import Snapshot, state_arrays, state_from_arrays
from labelquorum.learn.open_items import OpenItems
from labelquorum.learn.reports import NO_DOUBT, Answer, Doubt
from labelquorum.learn.worker_priors import History
from labelquorum.learn.worker_table import WorkerRows

MAX_FRACTIONAL_CLASSES = 50
"""Fractional labels that may be classes: half stars from 0 to 10 are 20; measurements are more."""

MAX_LOSSES = 10_000
"""Chunks whose losses are kept: enough for a plot, and a bound on the memory of a long stream."""


_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?")  # CSV has numbers as text
_HELD = tuple(COLUMNS.values())


class ModelState(NamedTuple):
    """All a model has learned; replaced as a whole once a chunk was learned from."""

    vocabulary: Roster
    open_items: OpenItems
    state: Any  # of the aggregator; None until there was a label
    worker_stats: WorkerRows  # "labels", those that "agreed" with the consensus, and the "track"
    held: list[LabelTable]  # chunks held until the warm-up is complete
    held_gold: dict[Hashable, Hashable]  # the true labels given with them
    n_chunks: float = 0  # learned from; infinite where that is not known


class Step(NamedTuple):
    """What learning from one chunk gave, before anything is changed."""

    intake: Intake
    state: Any  # of the aggregator
    info: Any
    result: Aggregation
    worker_stats: WorkerRows


class Model:
    """An aggregator with what it has learned. A verb that fails changes nothing.

    Parameters
    ----------
    name
        What error sentences call it: "BiLA".
    seed
        A whole number from 0 to 2⁶³ − 1.
    learned
        What it goes on from.
    """

    def __init__(self, name: str, aggregator: Aggregator, seed: int, learned: ModelState) -> None:
        self.name, self.aggregator, self.seed = name, aggregator, seed
        self.learned = learned
        self.losses: deque[float] = deque(maxlen=MAX_LOSSES)  # the last of each chunk
        self.sources: list[str] = []  # SHA-256 of files it learned from, where those were noted
        self.was_loaded = False  # from a file, which does not keep the last answer
        self._warned_of_repeats = False
        self._warned_of_doubt = False
        self._skip_answer(Tally())

    @property
    def space(self) -> LabelSpace:
        """The rules for rows."""
        return self.learned.vocabulary.space

    @property
    def n_held_labels(self) -> int:
        """How many labels are held until the warm-up is complete."""
        return sum(len(part.item_ids) for part in self.learned.held)

    def fitted(self) -> ModelState:
        """What was learned, or an error if that is nothing."""
        if self.learned.state is None:
            held = self.n_held_labels
            waiting = f" {held} labels are held for the warm-up." if held else ""
            raise _not_fitted()(
                f"This {self.name} has learned nothing yet.{waiting} Call partial_fit or fit first."
            )
        return self.learned

    def known_workers(self) -> tuple[list[Hashable], NDArray[np.intp]]:
        """The ids and indices of all workers except the forgotten."""
        ids = self.fitted().vocabulary.worker_ids
        index = [k for k, worker in enumerate(ids) if worker is not None]
        return [ids[k] for k in index], np.array(index, np.intp)

    def check_counts(self, verb: str) -> None:
        """Refuse what only a method whose state is counts can do."""
        if self.aggregator.counts is None:
            raise StateError(
                f"This {self.name} cannot {verb}: its state is not counts. Use BiLA() with the "
                "preset 'default' or 'recipe'."
            )

    # ── verbs ────────────────────────────────────────────────────────────────────────────

    def learn(
        self,
        table: LabelTable,
        gold: Mapping[Hashable, Hashable] | None = None,
        warmup_items: int = 0,
        workers: LabelTable | None = None,
    ) -> None:
        """Learn from a table and answer its tasks; hold it while the warm-up is incomplete.

        `workers` has more attributes of workers, as `read_workers` gives them.
        """
        learned = self.learned
        waiting, truth = [*learned.held, table], {**learned.held_gold, **(gold or {})}
        intake = learned.vocabulary.read(
            concatenate(waiting), learned.open_items, truth, workers=workers
        )
        self._warn_of_repeats(table, intake.tally)
        # Rows and skips of the chunks held before were reported when they came.
        tally = intake.tally._replace(rows=len(table.item_ids), skipped=table.skipped)
        if learned.state is None and intake.chunk.n_items < warmup_items:
            if intake.chunk.n_labels:
                self.aggregator.init(intake.chunk, self.seed)  # refuses what cannot be learned
            self.learned = learned._replace(held=waiting, held_gold=truth)
            learned.vocabulary.attributes.update(intake.attributes)
            self._skip_answer(Tally(rows=tally.rows, skipped=tally.skipped))
        elif intake.chunk.n_labels:
            step = learn_chunk(learned, self.aggregator, intake, self.seed)
            self._commit(step, tally)
            if step.result.in_doubt:
                self._warn_of_doubt()
        else:
            learned.vocabulary.attributes.update(intake.attributes)
            self._skip_answer(intake.tally)

    def last_answer(self) -> Answer:
        """The answer to the last chunk, or an error where a file has not kept it."""
        if self.was_loaded:
            raise StateError(
                f"This {self.name} was loaded from a file, which does not keep the last chunk's "
                "answers. See report().items for all open tasks, or call predict, partial_fit or "
                "fit."
            )
        return self.answer

    def _warn_of_repeats(self, table: LabelTable, tally: Tally) -> None:
        """Warn once if labels were dropped that may be votes: nothing says which came last."""
        may_be_votes = self.space.repeats == "last" and table.timestamps is None
        if self._warned_of_repeats or not may_be_votes or not tally.repeated:
            return
        task, worker = encode(table.item_ids), encode(table.worker_ids)
        pairs = np.sort(task.codes.astype(np.int64) * len(worker.values) + worker.codes)
        dropped = int(np.count_nonzero(pairs[1:] == pairs[:-1]))
        if dropped:
            self._warned_of_repeats = True
            warnings.warn(
                f"{table.source}: {dropped:,} of {len(table.item_ids):,} labels do not count, "
                "because a worker labels the same task again in the same table, and by "
                "repeats='last' the last row replaces the others. If they are votes, choose "
                "repeats='majority' or 'all'; if they are corrections, add a timestamp column.",
                stacklevel=4,
            )

    def doubt(self) -> Doubt:
        """How far it is in doubt which answers are right; never, of a method that cannot tell."""
        doubt = self.aggregator.doubt
        found: Doubt = NO_DOUBT if doubt is None else doubt(self.fitted().state)
        return found

    def _warn_of_doubt(self) -> None:
        """Warn once when answers have become votes, because the labels do not identify them."""
        if not self._warned_of_doubt:
            self._warned_of_doubt = True
            warnings.warn(self.doubt().says, stacklevel=4)

    def predict(self, table: LabelTable) -> Answer:
        """Answer a table's tasks from its labels alone, learning nothing."""
        learned = self.fitted()
        intake = learned.vocabulary.read(table)
        result = self.aggregator.aggregate(learned.state, intake.chunk)
        return Answer(intake, result, [*learned.vocabulary.classes, *intake.new_classes])

    def forget(self, worker: Hashable) -> None:
        """Remove a worker: their rows, their labels on open tasks, their attributes, their id."""
        learned = self.learned
        if any(worker in part.worker_ids for part in learned.held):
            held = [_without(part, worker) for part in learned.held]
            learned.vocabulary.attributes.pop(worker, None)
            self.learned = learned._replace(held=held)
            return
        k = learned.vocabulary.worker_index(worker)
        if k is None and learned.vocabulary.attributes.pop(worker, None) is not None:
            return  # named in a table of workers, and without a label
        self.fitted()  # or an error
        if k is None:
            raise unknown_worker(worker)
        state = self.aggregator.forget(learned.state, k)
        if self.aggregator.counts is not None:
            state = self.aggregator.counts.forget_gold(state, id_key(worker))
        worker_stats = learned.worker_stats.cleared(k)
        # Nothing below can fail.
        learned.vocabulary.forget(worker)
        learned.open_items.forget_worker(k)
        self.learned = learned._replace(state=state, worker_stats=worker_stats)

    def retract(self, task: Hashable, worker: Hashable) -> None:
        """Withdraw a worker's labels of an open task, and answer the task again."""
        self.check_counts("take back a label")
        learned, method = self.fitted(), self.aggregator
        held, k = learned.open_items.get(task), learned.vocabulary.worker_index(worker)
        if held is None or k is None or k not in held.worker:
            raise LabelError(
                f"No label of worker {worker!r} on task {task!r} is held: only those of open "
                "tasks are. Check both ids, or set open_items= higher."
            )
        nothing = LabelTable([], [], [])
        intake = learned.vocabulary.read(nothing, learned.open_items, also=(task,))
        chunk = withdrawn(intake.chunk, k)
        state, info = method.update(learned.state, chunk)
        result = method.aggregate(state, chunk)
        worker_stats = uncount(learned.worker_stats, k, held)
        # Nothing below can fail.
        step = Step(intake._replace(chunk=chunk), state, info, result, worker_stats)
        self._commit(step, intake.tally)
        if (held.worker == k).all():
            learned.open_items.discard(task)
            self.answer = self._no_answer()
        else:
            learned.open_items.drop(task, k)

    def _commit(self, step: Step, tally: Tally) -> None:
        """Keep what was learned from a chunk, and what was answered."""
        self.learned = commit(self.learned, step)
        self.losses.extend(getattr(step.info, "losses", [])[-1:])
        self.answer = Answer(step.intake, step.result, list(self.learned.vocabulary.classes))
        self.info, self.tally, self.was_loaded = step.info, tally, False
        if step.intake.new_classes:
            self._answer_sole_class_again()

    def _answer_sole_class_again(self) -> None:
        """Answer open tasks again that were answered when a single class was known, with 1."""
        learned = self.learned
        held = learned.open_items.everything()
        sole = np.flatnonzero(held.column("n_classes") == 1)
        if not len(sole):
            return
        item_ids = held.ids
        tasks = [item_ids[n] for n in sole.tolist()]
        nothing = LabelTable([], [], [])
        intake = learned.vocabulary.read(nothing, learned.open_items, also=tasks)
        result = self.aggregator.aggregate(learned.state, intake.chunk)
        learned.open_items.answer_again(intake.item_ids, intake.chunk, result)

    def _skip_answer(self, tally: Tally) -> None:
        """Report a table from which nothing was learned yet."""
        self.answer, self.info, self.tally = self._no_answer(), None, tally
        self.was_loaded = False

    def _no_answer(self) -> Answer:
        vocabulary = self.learned.vocabulary
        empty = np.zeros((0, len(vocabulary.classes)), np.float32)
        return Answer(
            vocabulary.read(LabelTable([], [], [])),
            Aggregation(np.zeros(0, np.int32), empty, empty),
            list(vocabulary.classes),
        )


def _not_fitted() -> type[StateError]:
    """The error of a model that learned nothing: scikit-learn's too, where that is in use."""
    theirs = getattr(sys.modules.get("sklearn.exceptions"), "NotFittedError", None)
    return StateError if theirs is None else type("NotFittedError", (StateError, theirs), {})


def unknown_worker(worker: Hashable) -> LabelError:
    """The error for a worker who was never seen, or was forgotten."""
    return LabelError(f"Worker {worker!r} is not known. See model.workers_ for those who are.")


def check_table(learned: ModelState, table: LabelTable, gold: Mapping[Hashable, Hashable]) -> None:
    """Refuse what would be learned as something else than was meant.

    True labels of tasks that are neither in the table nor open nor held; 1 and "1", which would be
    two classes; and fractional labels by the dozen, each of which would be a class.
    """
    _check_truths(learned, table, gold)
    classes = learned.vocabulary.classes
    said = {label for part in (*learned.held, table) for label in distinct(part.labels)}
    new = said.union(gold.values()).difference(classes)
    if not new or learned.vocabulary.space.classes is not None:
        return  # classes that were listed are checked one by one
    ordered = [*gold.values(), *sorted(said, key=id_order), *classes]
    known: dict[str, Hashable] = {str(label): label for label in ordered}
    for label in sorted(new, key=id_order):
        other = known.get(str(label), label)
        if other != label:
            raise LabelError(_two_classes(table, gold, label, other))
    n_fractional = sum(map(_is_fractional, said.union(classes)))
    if n_fractional > MAX_FRACTIONAL_CLASSES:
        row, label = next(pair for pair in enumerate(table.labels) if _is_fractional(pair[1]))
        raise LabelError(
            f"{table.where(row)}: label {label!r} is a fraction, and with it there are "
            f"{n_fractional:,} different ones, more than {MAX_FRACTIONAL_CLASSES}: each would be a "
            "class. Bin them, such as pandas.cut(labels, 5).astype(str), or list all in classes=."
        )


def _check_truths(
    learned: ModelState, table: LabelTable, gold: Mapping[Hashable, Hashable]
) -> None:
    unknown = set(gold)
    for part in (*learned.held, table) if gold else ():
        unknown.difference_update(distinct(part.item_ids))
    unknown -= learned.open_items.among(unknown)
    if not unknown:
        return
    as_text = {str(task): task for task in distinct(table.item_ids)}
    task = min(unknown, key=lambda task: (str(task) not in as_text, id_order(task)))
    if str(task) in as_text:
        raise LabelError(
            f"True labels name a task {task!r}, labels name it {as_text[str(task)]!r}: a "
            "number and a text are two ids. Convert one of them."
        )
    more = f" and {len(unknown) - 1:,} others are" if len(unknown) > 1 else " is"
    raise LabelError(
        f"true_labels: task {task!r}{more} not among these labels and not open, so the truth would "
        "be lost. Give it with the labels of its task, or leave it out."
    )


def _two_classes(
    table: LabelTable, gold: Mapping[Hashable, Hashable], label: Hashable, other: Hashable
) -> str:
    """What is said of 1 and "1"."""
    kinds = f"{label!r} is {kind_of_value(label)} and {other!r} {kind_of_value(other)}"
    if label in table.labels or other in table.labels:
        row = next(row for row, said in enumerate(table.labels) if said in (label, other))
        where = f"{table.where(row)}: of the labels, "
    else:
        where = "The labels: "
    truth = next((task for task, said in gold.items() if said == label), None)
    if truth is not None:
        where = f"true_labels of task {truth!r}: "
    return f"{where}{kinds}: two classes. Convert one of them to the other's type."


def _is_fractional(label: Hashable) -> bool:
    if isinstance(label, str) and _NUMBER.fullmatch(label):
        label = float(label)
    return isinstance(label, float) and not label.is_integer()


def _without(table: LabelTable, worker: Hashable) -> LabelTable:
    rows = [row for row, other in enumerate(table.worker_ids) if other != worker]
    return take_rows(table, rows)._replace(skipped=table.skipped)


# ── pure functions over the state ────────────────────────────────────────────────────────


def empty_state(space: LabelSpace, open_items: int) -> ModelState:
    """Where every model starts."""
    return ModelState(Roster(space), OpenItems(open_items), None, _no_stats(0), [], {})


def _no_stats(n_workers: int) -> WorkerRows:
    """The statistics of workers who have said nothing yet."""
    nothing = np.zeros(n_workers, np.int64)
    return WorkerRows({"labels": nothing, "agreed": nothing, "track": fresh_track(n_workers)})


def with_history(
    learned: ModelState, history: History, method: Aggregator, seed: int
) -> ModelState:
    """A state that has learned nothing except what is known of these workers."""
    assert method.counts is not None
    n_workers, n_classes = history.counts.shape[:2]
    nothing = make_chunk([], [], [], n_workers=n_workers, n_classes=n_classes)
    state = method.counts.add(method.init(nothing, seed), np.arange(n_workers), history.counts)
    return learned._replace(
        vocabulary=Roster(learned.vocabulary.space, history.workers, history.classes),
        state=state,
        worker_stats=_no_stats(n_workers),
    )


def learn_chunk(
    learned: ModelState, method: Aggregator, intake: Intake, seed: int, number: int | None = None
) -> Step:
    """Learn from a chunk that has labels, and answer it; the state given is not changed.

    `number` is the chunk's, where chunks have one; otherwise they are counted.
    """
    state = method.init(intake.chunk, seed) if learned.state is None else learned.state
    state, info = method.update(state, with_news(intake.chunk))
    result = method.aggregate(state, intake.chunk)
    at = learned.n_chunks + 1 if number is None else number
    return Step(
        intake, state, info, result, count_agreement(learned.worker_stats, intake, result, at)
    )


def commit(learned: ModelState, step: Step) -> ModelState:
    """The state after a chunk; its vocabulary and open items are changed in place."""
    intake, result = step.intake, step.result
    learned.vocabulary.admit(intake)
    learned.open_items.record(
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
    n_chunks = learned.n_chunks + (not intake.chunk.known.all())
    return learned._replace(
        state=step.state,
        worker_stats=step.worker_stats,
        held=[],
        held_gold={},
        n_chunks=n_chunks,
    )


def count_agreement(
    stats: WorkerRows, intake: Intake, result: Aggregation, number: float
) -> WorkerRows:
    """Count each worker's labels and those that agreed with the consensus; extend the track."""
    chunk = intake.chunk
    stats = stats.with_room(chunk.n_workers)
    item, label, log_evidence = chunk.item, chunk.label, result.log_evidence
    worker = chunk.local_worker
    if not chunk.is_all_new:
        fresh = ~chunk.known & (chunk.replaced == MISSING)
        item, label, worker = item[fresh], label[fresh], worker[fresh]
        log_evidence = log_evidence[fresh]
    if not len(item):
        return stats
    agreement = left_out(result.probs, result.temperature, item, log_evidence, label)
    agrees = label == result.aggregated.take(item)
    rows = stats.gather(chunk.workers)
    if not isfinite(number):  # of merged models: after the latest these workers know of
        number = rows["track"][..., -1].max(initial=0) + 1
    labels, agreed, rows["track"] = count(rows["track"], worker, agreement, agrees, number)
    rows["labels"] += labels
    rows["agreed"] += agreed
    return stats.scatter(chunk.workers, rows)


def uncount(stats: WorkerRows, worker: int, held: OpenItem) -> WorkerRows:
    """Subtract a worker's labels of an item."""
    own = held.worker == worker
    labels = held.label[own]
    rows = stats.gather(np.array([worker]))
    for name, lost in (("labels", len(labels)), ("agreed", (labels == held.aggregated).sum())):
        rows[name] = np.maximum(rows[name] - lost, 0)
    temperature, item = np.array([held.temperature]), np.zeros(len(labels), np.intp)
    gone = left_out(held.probs[None], temperature, item, held.log_evidence[own], labels).sum()
    rows["track"] = taken_back(rows["track"][0], len(labels), float(gone))[None]
    return stats.scatter(np.array([worker]), rows)


def counted_probs(chunk: Chunk, info: Any) -> NDArray[np.float32] | None:
    """The probabilities a chunk's items are counted by now, (N, A, C); None if never counted.

    Items without news were not learned from, and stay counted as they were.
    """
    learned: NDArray[np.float32] | None = getattr(info, "counted_probs", None)
    if learned is None or chunk.counted_probs is None or len(learned) == chunk.n_items:
        return learned
    counted = chunk.counted_probs.copy()
    counted[has_news(chunk)] = learned
    return counted


def snapshot_parts(
    learned: ModelState,
) -> tuple[dict[str, list[Hashable]], dict[str, NDArray[Any]]]:
    """What a file holds of a state: lists of ids, and named arrays."""
    parts = {"book": learned.worker_stats.to_arrays(), "ledger": learned.open_items.to_arrays()}
    if learned.state is not None:
        parts["state"] = state_arrays(learned.state)
    ids: dict[str, list[Hashable]] = {
        "workers": learned.vocabulary.worker_ids,
        "classes": learned.vocabulary.classes,
        "open_items": list(learned.open_items),
        "open_groups": [note.group for note in learned.open_items.notes],
        "open_timestamps": [_as_text(note.timestamp) for note in learned.open_items.notes],
    }
    if attributes := learned.vocabulary.attributes:
        workers = ids["attributed_workers"] = sorted(attributes, key=id_order)
        for role in ATTRIBUTES:
            ids[role] = [getattr(attributes[worker], role) for worker in workers]
    if learned.held:
        held = concatenate(learned.held)
        for column in _HELD:
            values = getattr(held, column)
            if values is not None:
                ids[f"held_{column}"] = [_as_text(value) for value in values]
    if learned.held_gold:
        ids["held_gold"] = list(learned.held_gold)
        ids["held_truth"] = list(learned.held_gold.values())
    arrays = {f"{part}/{n}": a for part, named in parts.items() for n, a in named.items()}
    return ids, arrays


def state_from_snapshot(
    space: LabelSpace, open_items: int, state_type: type, snapshot: Snapshot
) -> ModelState:
    """Rebuild a state from what `snapshot_parts` gave; its header has the number of chunks."""
    ids, state = snapshot.ids, _part(snapshot.arrays, "state")
    held: dict[str, Any] = {n: ids[f"held_{n}"] for n in _HELD if f"held_{n}" in ids}
    notes = list(map(Note, ids["open_groups"], ids["open_timestamps"]))
    chunks = snapshot.header.get("chunks")
    book, held_arrays = _part(snapshot.arrays, "book"), _part(snapshot.arrays, "ledger")
    room = max(open_items, len(ids["open_items"]))  # `fit` keeps more than the setting
    attributes: dict[Hashable, Attributes] = {}
    if "attributed_workers" in ids:
        known: Any = map(Attributes, *(ids[role] for role in ATTRIBUTES))
        attributes = dict(zip(ids["attributed_workers"], known, strict=True))
    return ModelState(
        Roster(space, ids["workers"], ids["classes"], attributes),
        OpenItems.from_arrays(room, ids["open_items"], notes, held_arrays),
        state_from_arrays(state_type, state) if state else None,
        WorkerRows(book),
        [LabelTable(**held, source="held labels")] if held else [],
        dict(zip(ids.get("held_gold", []), ids.get("held_truth", []), strict=True)),
        inf if chunks is None else chunks,
    )


def _part(arrays: Mapping[str, NDArray[Any]], name: str) -> dict[str, NDArray[Any]]:
    prefix = f"{name}/"
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}


def _as_text(value: Any) -> Any:
    """A value JSON can hold; a date becomes text."""
    return value if value is None or isinstance(value, str | int | float) else str(value)
