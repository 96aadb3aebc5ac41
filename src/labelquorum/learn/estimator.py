"""The door: any aggregator behind the verbs of scikit-learn and the tables of Crowd-Kit.

It is thin: ids are mapped to integers and back, and no mathematics lives here. The methods that
stand behind it are in `estimators.py`.
"""

import inspect
import operator
import os
from abc import abstractmethod
from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property
from math import inf, isfinite
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labelquorum.errors import LabelError, StateError
from labelquorum.ingest.chunks import concatenate, take_rows, withdrawn
from labelquorum.ingest.labels import LabelSpace, LabelTable, OnBad, Repeats
from labelquorum.ingest.readers import read_gold, read_labels
from labelquorum.ingest.vocabulary import Intake, Roster, Tally
from labelquorum.learn import AGGREGATORS
from labelquorum.learn.aggregator import Aggregation, Aggregator
from labelquorum.learn.bila.encoder import Encoder
from labelquorum.learn.bila.generative import GenerativeModel
from labelquorum.learn.bila.presets import saved_settings
from labelquorum.learn.model_file import Snapshot, read_snapshot, write_snapshot
from labelquorum.learn.model_state import (
    Memory,
    Step,
    learn_chunk,
    memory_parts,
    nothing_learned,
    remember,
    restored,
    uncount,
    with_history,
)
from labelquorum.learn.monitoring import Watch
from labelquorum.learn.reports import Answer, Report, id_index, item_report, worker_report
from labelquorum.learn.worker_priors import history_rows, read_history
from labelquorum.learn.wrappers import split_name

__all__ = ["SHARED_SETTINGS", "Estimator", "check_settings"]

LOSSES_KEPT = 10_000
SHARED_SETTINGS = (
    "seed",
    "classes",
    "repeats",
    "on_bad",
    "abstain",
    "open_items",
    "warmup_items",
)
"""What every method can be told."""


class Estimator(Watch):
    """What every method can do; see `BiLA`.

    A method of its own names its aggregator, takes its settings in `__init__` (these seven and
    those of the aggregator), keeps them as they came, and says which go to the aggregator.
    """

    method: ClassVar[str]

    seed: int
    classes: Sequence[Hashable] | None
    repeats: Repeats
    on_bad: OnBad
    abstain: Hashable
    open_items: int
    warmup_items: int
    history: Any = None  # of a method whose state is counts

    @abstractmethod
    def _options(self) -> dict[str, Any]:
        """The aggregator's own keyword arguments."""

    def _keep(self, settings: Mapping[str, Any]) -> None:
        for name in _settings(type(self)):
            setattr(self, name, settings[name])

    # ── learning ─────────────────────────────────────────────────────────────────────────

    def partial_fit(self, labels: Any, true_labels: Any = None) -> Self:
        """Learn from one more chunk and answer its tasks.

        Parameters
        ----------
        labels
            A table with the columns task, worker, label (pandas, polars, Arrow), a path, a wide
            matrix or a dict {task: {worker: label}}. A chunk that is refused changes nothing.
        true_labels
            The truth of tasks for which it is known: a Series indexed by task, or a dict. It
            counts for tasks of this chunk and for tasks still open, and stays; others are left
            out.
        """
        table, gold = read_labels(labels, self._space), self._read_gold(true_labels)
        return self._learn(table, self._whole("warmup_items", 0), gold)

    def fit(self, labels: Any, true_labels: Any = None) -> Self:
        """Learn offline: forget everything, then take all tasks at once."""
        fresh = type(self)(**self.get_params())
        table, gold = read_labels(labels, self._space), fresh._read_gold(true_labels)
        fresh._learn(table, warmup_items=0, gold=gold)
        self._start_afresh()
        vars(self).update(vars(fresh))
        return self

    def fit_predict(self, labels: Any) -> pd.Series:
        """Learn offline and give the consensus: Series `agg_label`, index `task`."""
        return self.fit(labels).labels_

    def fit_predict_proba(self, labels: Any) -> pd.DataFrame:
        """Learn offline and give the probabilities, task × class."""
        return self.fit(labels).probas_

    def predict(self, labels: Any) -> pd.Series:
        """Answer with the present model from these labels alone, learning nothing."""
        return Answer(*self._ask(labels)).labels

    def predict_proba(self, labels: Any) -> pd.DataFrame:
        """Probabilities with the present model from these labels alone, learning nothing."""
        return Answer(*self._ask(labels)).probas

    def forget(self, worker: Hashable) -> Self:
        """Remove a worker: his rows, his labels on open tasks, his id.

        What he already contributed to shared numbers (the class prior, the crowd's average, the
        network's shared layers, other workers' rows) stays: it names nobody.
        """
        memory = self._memory
        if any(worker in part.worker_ids for part in memory.held):  # the warm-up still waits
            held = [_without(part, worker) for part in memory.held]
            self._memory = memory._replace(held=held)
            return self
        k = self._fitted().roster.worker_index(worker)
        if k is None:
            raise LabelError(
                f"Worker {worker!r} is not known. See model.workers_ for those who are."
            )
        state = self._aggregator.forget(memory.state, k)
        book = memory.book.cleared(k)
        # All that can fail is done.
        memory.roster.forget(worker)
        memory.ledger.forget_worker(k)
        self._memory = memory._replace(state=state, book=book)
        return self

    def retract(self, task: Hashable, worker: Hashable) -> Self:
        """Withdraw a worker's label of a task that is still open, and answer the task again.

        What is counted of the task is then what its other labels say. A task whose last label
        goes is let go as if it had never come.
        """
        self._require_counts("take back a label")
        memory, method = self._fitted(), self._aggregator
        held, k = memory.ledger.get(task), memory.roster.worker_index(worker)
        if held is None or k is None or k not in held.worker:
            raise LabelError(
                f"No label of worker {worker!r} on task {task!r} is held: only those of open "
                "tasks are. Check both ids, or set open_items= higher."
            )
        intake = memory.roster.read(LabelTable([], [], []), memory.ledger, also=(task,))
        chunk = withdrawn(intake.chunk, k)
        state, info = method.update(memory.state, chunk)
        result = method.aggregate(state, chunk)
        book = uncount(memory.book, k, held)
        # All that can fail is done; nothing was changed so far.
        self._commit(Step(intake._replace(chunk=chunk), state, info, result, book))
        if (held.worker == k).all():
            memory.ledger.discard(task)
            self._answer = Answer(*self._nothing(memory.roster))
        else:
            memory.ledger.drop(task, k)
        return self

    def answer_held(self) -> Self:
        """Learn from and answer what the warm-up holds, few as they are: no more will come."""
        return self._learn(LabelTable([], [], []), warmup_items=0) if self.held_labels_ else self

    def _learn(
        self,
        table: LabelTable,
        warmup_items: int,
        gold: Mapping[Hashable, Hashable] | None = None,
    ) -> Self:
        memory, method = self._memory, self._aggregator
        waiting, truth = [*memory.held, table], {**memory.held_gold, **(gold or {})}
        intake = memory.roster.read(concatenate(waiting), memory.ledger, truth)
        if truth and not intake.tally.gold_items:
            _check_same_ids(truth, intake.item_ids)
        if memory.state is None and intake.chunk.n_items < warmup_items:
            if intake.chunk.n_labels:
                method.init(intake.chunk, self._seed)  # refuses what could never be learned
            self._memory = memory._replace(held=waiting, held_gold=truth)
            self._answer = Answer(*self._nothing(memory.roster))
            self.info_ = None
            self.tally_ = Tally(rows=len(table.item_ids), skipped=table.skipped)
            return self
        if not intake.chunk.n_labels:
            self._answer = Answer(*self._nothing(memory.roster))
            self.info_ = None
            self.tally_ = intake.tally
            return self
        step = learn_chunk(memory, method, intake, self._seed)
        # All that can fail is done; nothing was changed so far.
        self._commit(step)
        # Of the chunks held before, rows and skips were told when they came.
        self.tally_ = intake.tally._replace(rows=len(table.item_ids), skipped=table.skipped)
        return self

    def _commit(self, step: Step) -> None:
        """Remember what was learned from a chunk, and what was answered."""
        self._memory = remember(self._memory, step)
        self._losses.extend(getattr(step.info, "losses", [])[-1:])
        self._answer = Answer(step.intake, step.result, list(self._memory.roster.classes))
        self.info_ = step.info
        self.tally_ = step.intake.tally

    def _read_gold(self, true_labels: Any) -> dict[Hashable, Hashable]:
        if true_labels is None:
            return {}
        self._require_counts("be told true labels")
        return read_gold(true_labels)

    def _require_counts(self, deed: str) -> None:
        if self._aggregator.counts is None:
            preset = getattr(self, "preset", None)
            this = f"{type(self).__name__}({preset!r})" if preset else f"This {type(self).__name__}"
            raise StateError(
                f"{this} cannot {deed}: its state is no counts. Use BiLA() with the preset "
                "'default' or 'recipe'."
            )

    def _ask(self, labels: Any) -> tuple[Intake, Aggregation, list[Hashable]]:
        memory = self._fitted()
        intake = memory.roster.read(read_labels(labels, self._space))
        classes = [*memory.roster.classes, *intake.new_classes]
        return intake, self._aggregator.aggregate(memory.state, intake.chunk), classes

    def _nothing(self, roster: Roster) -> tuple[Intake, Aggregation, list[Hashable]]:
        intake = roster.read(LabelTable([], [], []))
        width = (0, len(roster.classes))
        empty = np.zeros(width, np.float32)
        return intake, Aggregation(np.zeros(0, np.int32), empty, empty), list(roster.classes)

    # ── what was learned ─────────────────────────────────────────────────────────────────

    tally_: Tally = Tally()
    """What became of the rows of the last table."""

    info_: Any = None
    """What learning from the last chunk did, as the method tells it; None where it did nothing."""

    @property
    def returned_(self) -> pd.Index:
        """The tasks of the last chunk that were closed before: they count as new evidence."""
        intake, _, _ = self._answer.parts
        return id_index((intake.item_ids[i] for i in intake.order if intake.returned[i]), "task")

    @property
    def held_labels_(self) -> int:
        """How many labels are held until the warm-up is complete."""
        return sum(len(part.item_ids) for part in self._memory.held)

    @property
    def labels_(self) -> pd.Series:
        """The consensus on the last chunk's tasks, in order of appearance."""
        self._fitted(allow_warmup=True)
        return self._answer.labels

    @property
    def probas_(self) -> pd.DataFrame:
        """The probabilities of the last chunk's tasks, task × class."""
        self._fitted(allow_warmup=True)
        return self._answer.probas

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes known so far; the first chunk's in natural order, later ones after them."""
        return self._class_index().to_numpy()

    @property
    def workers_(self) -> pd.Index:
        """The workers known so far."""
        return id_index(self._known()[0], "worker")

    @property
    def confusion_(self) -> NDArray[np.float32]:
        """P(worker k says z | truth c) as an array [k, c, z]; order of `workers_`, `classes_`."""
        memory = self._fitted()
        return self._aggregator.confusion(memory.state, self._known()[1])

    @property
    def errors_(self) -> pd.DataFrame:
        """The confusion matrices in Crowd-Kit's layout: rows (worker, label), columns truth."""
        classes = self._memory.roster.classes
        confusion = self.confusion_.swapaxes(1, 2)  # [k, z, c]
        index = pd.MultiIndex.from_product([self.workers_, classes], names=["worker", "label"])
        return pd.DataFrame(
            confusion.reshape(-1, len(classes)), index=index, columns=self._class_index()
        )

    @property
    def priors_(self) -> pd.Series:
        """The class prior."""
        prior = self._aggregator.class_prior(self._fitted().state)
        return pd.Series(prior, index=self._class_index(), name="prior")

    @property
    def skills_(self) -> pd.Series:
        """How often each worker is right, on average over the classes as they occur."""
        right = np.diagonal(self.confusion_, axis1=1, axis2=2) @ self.priors_.to_numpy()
        return pd.Series(right, index=self.workers_, name="skill")

    @property
    def loss_history_(self) -> list[float]:
        """The last mean loss of each chunk, of the last 10,000 chunks."""
        return [float(loss) for loss in self._losses]

    def report(self) -> Report:
        """Items and workers under cleanlab's column names, with the crowd's agreement.

        Items are those still open (`open_items`); with none kept, those of the last chunk.
        """
        memory = self._fitted()
        classes = memory.roster.classes
        if len(memory.ledger):
            chunk = memory.ledger.to_chunk(len(memory.roster.worker_ids), len(classes))
            probs, aggregated = memory.ledger.answers(len(classes))
            item_ids, notes = list(memory.ledger), memory.ledger.notes
        else:
            intake, result, _ = self._answer.parts
            chunk, item_ids, notes = intake.chunk, intake.item_ids, intake.notes or []
            probs, aggregated = result.probs, result.aggregated
        items, alpha, agreement = item_report(chunk, item_ids, probs, aggregated, classes, notes)
        ids, index = self._known()
        book = memory.book.gather(index)
        workers = worker_report(
            ids,
            classes,
            self.confusion_,
            self.priors_.to_numpy(),
            book["labels"],
            book["agreed"],
        )
        return Report(items, workers, alpha, agreement)

    # ── scikit-learn's habits ────────────────────────────────────────────────────────────

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The settings, by name."""
        return {name: getattr(self, name) for name in _settings(type(self))}

    def set_params(self, **params: Any) -> Self:
        """Change settings; the model forgets what it learned under the old ones."""
        check_settings(type(self), params)
        for name, value in params.items():
            setattr(self, name, value)
        self._start_afresh()
        return self

    def _start_afresh(self) -> None:
        kept = set(_settings(type(self)))
        for name in [name for name in vars(self) if name not in kept]:
            delattr(self, name)

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self)).parameters
        changed = [
            f"{name}={value!r}"
            for name, value in self.get_params().items()
            if repr(value) != repr(defaults[name].default)
        ]
        return f"{type(self).__name__}({', '.join(changed)})"

    # ── files ────────────────────────────────────────────────────────────────────────────

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one file; learning goes on from it as if it had never stopped."""
        settings = {n: _plain(value) for n, value in self.get_params().items() if n != "history"}
        if self.classes is not None:
            settings["classes"] = list(self._space.classes or ())
        if self.history is not None:
            settings["history"] = history_rows(self.history, self._space.classes)
        ids, arrays = memory_parts(self._memory)
        chunks = self._memory.n_chunks
        header = {
            "method": self.method,
            "settings": settings,
            "losses": self.loss_history_,
            "chunks": chunks if isfinite(chunks) else None,
        }
        write_snapshot(path, Snapshot(header, ids, arrays))

    @classmethod
    def load(cls, path: str | os.PathLike[str], **own: Any) -> Self:
        """Read a saved model.

        Parameters
        ----------
        path
            A file that `save` wrote.
        own
            A generative model or encoder of your own, given again by the name of its setting:
            code is never saved.
        """
        return cls.from_snapshot(path, read_snapshot(path), own)

    @classmethod
    def from_snapshot(
        cls, path: str | os.PathLike[str], snapshot: Snapshot, own: Mapping[str, Any]
    ) -> Self:
        """Take over what was read from a file."""
        if snapshot.header["method"] != cls.method:
            raise StateError(
                f"{path}: this is a model of the method {snapshot.header['method']!r}, not of "
                f"{cls.method!r}. Use labelquorum.load, which reads both."
            )
        for name in own:
            if name not in ("generative", "encoder"):
                raise StateError(
                    f"{path}: a saved model keeps its {name!r}. Only a generative model or an "
                    "encoder of your own can be given to load."
                )
        settings = {**saved_settings(snapshot.header["settings"]), **own}
        for name, value in settings.items():
            if name not in _settings(cls):
                raise StateError(
                    f"{path}: {cls.__name__} has no setting {name!r} in this version. "
                    "Update labelquorum."
                )
            if isinstance(value, Mapping):
                raise StateError(
                    f"{path}: the {name} of this model is your own, {value['custom']!r}. "
                    f"Give it again: load(path, {name}=…)."
                )
        return cls(**settings)._restore(snapshot)

    def _restore(self, snapshot: Snapshot) -> Self:
        state_type = self._aggregator.state_type
        memory = restored(self._space, self._whole("open_items", 0), state_type, snapshot)
        chunks = snapshot.header.get("chunks")
        self._memory = memory._replace(n_chunks=inf if chunks is None else chunks)
        self._losses.extend(snapshot.header["losses"])
        return self

    # ── made when first needed ───────────────────────────────────────────────────────────

    @cached_property
    def _space(self) -> LabelSpace:
        # A NumPy array of classes gives NumPy scalars; labels come as Python's own.
        classes: Any = self.classes
        if classes is not None and not isinstance(classes, str | set | frozenset):
            try:
                classes = tuple(map(_plain, classes))
            except TypeError:
                raise StateError(f"`classes` must be a list. Got {classes!r}.") from None
        return LabelSpace(classes, self.repeats, self.on_bad, self.abstain)

    @cached_property
    def _seed(self) -> int:
        return self._whole("seed") % 2**63

    def _whole(self, name: str, least: int | None = None) -> int:
        """A setting that must be a whole number."""
        value = getattr(self, name)
        try:
            number = operator.index(value)
        except TypeError:
            number = None
        if number is None or (least is not None and number < least):
            rule = "" if least is None else f" ≥ {least}"
            raise StateError(f"`{name}` must be a whole number{rule}. Got {value!r}.")
        return number

    @cached_property
    def _aggregator(self) -> Aggregator:
        wrapper, name = split_name(self.method)
        aggregator = AGGREGATORS[name](self._space, **self._options())
        return wrapper(aggregator) if wrapper else aggregator

    @cached_property
    def _memory(self) -> Memory:
        memory = nothing_learned(self._space, self._whole("open_items", 0))
        if self.history is None:
            return memory
        self._require_counts("have a history")
        if self._whole("warmup_items", 0):
            raise StateError(
                "`warmup_items` must be 0 with a history: that is a first set already."
            )
        known = read_history(self.history, self._space.classes)
        if not known.workers:
            return memory
        return with_history(memory, known, self._aggregator, self._seed)

    @cached_property
    def _losses(self) -> deque[float]:
        return deque(maxlen=LOSSES_KEPT)

    @cached_property
    def _answer(self) -> Answer:
        return Answer(*self._nothing(self._memory.roster))

    def _fitted(self, allow_warmup: bool = False) -> Memory:
        memory = self._memory
        if memory.state is None and not allow_warmup:
            held = self.held_labels_
            waiting = f" {held} labels are held for the warm-up." if held else ""
            raise StateError(
                f"This {type(self).__name__} has learned nothing yet.{waiting} "
                "Call partial_fit or fit first."
            )
        return memory

    def _known(self) -> tuple[list[Hashable], NDArray[np.intp]]:
        """Tell ids and indices of all workers but the forgotten."""
        ids = self._fitted().roster.worker_ids
        index = [k for k, worker in enumerate(ids) if worker is not None]
        return [ids[k] for k in index], np.array(index, np.intp)

    def _class_index(self) -> pd.Index:
        return id_index(self._memory.roster.classes, "label")


def _check_same_ids(truth: Mapping[Hashable, Hashable], item_ids: Sequence[Hashable]) -> None:
    """Refuse truths of which none was used because ids are text here and numbers there."""
    as_text = {str(task): task for task in item_ids}
    for task in truth:
        if str(task) in as_text:
            raise LabelError(
                f"True labels name a task {task!r}, labels name it {as_text[str(task)]!r}: a "
                "number and a text are two ids. Convert one of them."
            )


def check_settings(kind: type, names: Iterable[str]) -> None:
    """Refuse the name of a setting that an estimator does not have; tell the nearest."""
    known = _settings(kind)
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=3) or known
            nearest = "It has" if near is known else "The nearest it has:"
            raise StateError(
                f"{kind.__name__} has no setting {name!r}. {nearest} {', '.join(near)}."
            )


def _settings(kind: type) -> list[str]:
    return list(inspect.signature(kind).parameters)


def _without(table: LabelTable, worker: Hashable) -> LabelTable:
    rows = [row for row, other in enumerate(table.worker_ids) if other != worker]
    return take_rows(table, rows)._replace(skipped=table.skipped)


def _plain(value: Any) -> Any:
    """A setting as JSON; a model of the user's own only by name."""
    if isinstance(value, GenerativeModel | Encoder):
        return {"custom": value.name}
    if hasattr(value, "tolist"):  # an array of any library, or one of its numbers
        return value.tolist()
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value
