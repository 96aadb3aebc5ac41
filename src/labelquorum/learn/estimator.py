"""The door: any aggregator behind the verbs of scikit-learn and the tables of Crowd-Kit.

It is thin: ids are mapped to integers and back, and no mathematics lives here.
"""

import inspect
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labelquorum.errors import LabelError, StateError
from labelquorum.ingest.chunks import concatenate
from labelquorum.ingest.events import LabelSpace, LabelTable, Repeats
from labelquorum.ingest.formats import read_labels
from labelquorum.ingest.ledger import Ledger
from labelquorum.ingest.roster import Intake, Roster, Tally
from labelquorum.learn import AGGREGATORS
from labelquorum.learn.aggregator import Aggregation, Aggregator
from labelquorum.learn.bila import PRESETS
from labelquorum.learn.encoder import Encoder
from labelquorum.learn.generative import GenerativeModel
from labelquorum.learn.report import Report, item_report, worker_report
from labelquorum.learn.rows import WorkerRows
from labelquorum.learn.snapshot import (
    Snapshot,
    read_snapshot,
    state_arrays,
    state_from_arrays,
    write_snapshot,
)

__all__ = ["ESTIMATORS", "BiLA", "Estimator", "MajorityVote", "load"]

LOSSES_KEPT = 10_000


class _Memory(NamedTuple):
    """All a model has learned; a new one is put in place only when a chunk is through."""

    roster: Roster
    ledger: Ledger
    state: Any  # of the aggregator; None until there was a label
    book: WorkerRows  # "labels" and "agreed" with the consensus, counted by worker
    held: list[LabelTable]  # chunks waiting for the warm-up to be complete


class Estimator(ABC):
    """What every method can do; see `BiLA`."""

    method: ClassVar[str]

    # The settings all methods share.
    seed: int
    classes: Sequence[Hashable] | None
    repeats: Repeats
    on_bad: Any
    abstain: Hashable
    open_items: int
    warmup_items: int

    @abstractmethod
    def _options(self) -> dict[str, Any]:
        """The aggregator's own keyword arguments."""

    # ── learning ─────────────────────────────────────────────────────────────────────────

    def partial_fit(self, labels: Any) -> Self:
        """Learn from one more chunk and answer its tasks.

        Parameters
        ----------
        labels
            A table with the columns task, worker, label (pandas, polars, Arrow), a path, a wide
            matrix or a dict {task: {worker: label}}. A chunk that is refused changes nothing.
        """
        return self._learn(read_labels(labels, self._space), self.warmup_items)

    def fit(self, labels: Any) -> Self:
        """Learn offline: forget everything, then take all tasks at once."""
        table = read_labels(labels, self._space)
        self.__dict__.pop("_memory", None)
        return self._learn(table, warmup_items=0)

    def fit_predict(self, labels: Any) -> pd.Series:
        """Learn offline and give the consensus: Series `agg_label`, index `task`."""
        return self.fit(labels).labels_

    def fit_predict_proba(self, labels: Any) -> pd.DataFrame:
        """Learn offline and give the probabilities, task × class."""
        return self.fit(labels).probas_

    def predict(self, labels: Any) -> pd.Series:
        """Answer with the present model from these labels alone, learning nothing."""
        return _Answer(*self._ask(labels)).labels

    def predict_proba(self, labels: Any) -> pd.DataFrame:
        """Probabilities with the present model from these labels alone, learning nothing."""
        return _Answer(*self._ask(labels)).probas

    def forget(self, worker: Hashable) -> Self:
        """Remove a worker: his rows, his labels on open tasks, his id.

        What he already contributed to shared numbers (the class prior, the crowd's average, the
        network's shared layers, other workers' rows) stays: it names nobody.
        """
        memory = self._fitted()
        if memory.roster.worker_index(worker) is None:
            raise LabelError(f"Worker {worker!r} is not known. See model.workers_ for those who are.")
        k = memory.roster.forget(worker)
        memory.ledger.forget_worker(k)
        nothing = {name: np.zeros(1, np.int64) for name in memory.book.names}
        self._memory = memory._replace(
            state=self._aggregator.forget(memory.state, k),
            book=memory.book.scatter(np.array([k]), nothing),
        )
        return self

    def _learn(self, table: LabelTable, warmup_items: int) -> Self:
        memory = self._memory
        if memory.state is None and warmup_items:
            held = [*memory.held, table]
            if len({item for part in held for item in part.item_ids}) < warmup_items:
                self._memory = memory._replace(held=held)
                self._answer = _Answer(*self._nothing(memory.roster))
                self.tally_ = Tally(rows=len(table.item_ids), skipped=table.skipped)
                return self
            table = concatenate(held)
        intake = memory.roster.read(table, memory.ledger)
        self.tally_ = intake.tally
        if not intake.chunk.n_labels:
            self._answer = _Answer(*self._nothing(memory.roster))
            return self
        method = self._aggregator
        state = method.init(intake.chunk, self.seed) if memory.state is None else memory.state
        state, info = method.update(state, intake.chunk)
        result = method.aggregate(state, intake.chunk)
        # Nothing was changed so far; from here on nothing can fail.
        memory.roster.admit(intake)
        memory.ledger.record(
            intake.item_ids, intake.order, intake.chunk, result.log_evidence, result.probs
        )
        self._memory = _Memory(
            memory.roster, memory.ledger, state, _count_agreement(memory.book, intake, result), []
        )
        losses = getattr(info, "losses", ())
        if len(losses):
            self._losses.append(float(losses[-1]))
        self._answer = _Answer(intake, result, list(memory.roster.classes))
        return self

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

    tally_: Tally
    """What became of the rows of the last table."""

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
        return pd.Index(self._memory.roster.classes).to_numpy()

    @property
    def workers_(self) -> pd.Index:
        """The workers known so far."""
        return pd.Index(self._known()[0], name="worker")

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
        return list(self._losses)

    def report(self) -> Report:
        """Items and workers under cleanlab's column names, with the crowd's agreement.

        Items are those still open (`open_items`); with none kept, those of the last chunk.
        """
        memory = self._fitted()
        classes = memory.roster.classes
        if len(memory.ledger):
            chunk = memory.ledger.to_chunk(len(memory.roster.worker_ids), len(classes))
            probs, item_ids = memory.ledger.probs(len(classes)), list(memory.ledger)
            aggregated = probs.argmax(axis=1).astype(np.int32)
        else:
            intake, result, _ = self._answer.parts
            chunk, item_ids = intake.chunk, intake.item_ids
            probs, aggregated = result.probs, result.aggregated
        items, alpha, agreement = item_report(chunk, item_ids, probs, aggregated, classes)
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
        """Change settings of a model that has learned nothing yet."""
        known = _settings(type(self))
        for name, value in params.items():
            if name not in known:
                raise StateError(f"{type(self).__name__} has no setting {name!r}. It has {known}.")
            setattr(self, name, value)
        for stale in ("_memory", "_aggregator", "_space", "_losses"):
            self.__dict__.pop(stale, None)
        return self

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self).__init__).parameters
        changed = [
            f"{name}={value!r}"
            for name, value in self.get_params().items()
            if value != defaults[name].default
        ]
        return f"{type(self).__name__}({', '.join(changed)})"

    # ── files ────────────────────────────────────────────────────────────────────────────

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one file; learning goes on from it as if it had never stopped."""
        memory = self._memory
        parts = {"book": memory.book.to_arrays(), "ledger": memory.ledger.to_arrays()}
        if memory.state is not None:
            parts["state"] = state_arrays(memory.state)
        held = concatenate(memory.held) if memory.held else None
        ids = {
            "workers": memory.roster.worker_ids,
            "classes": memory.roster.classes,
            "open_items": list(memory.ledger),
        }
        if held is not None:
            ids |= {"held_items": list(held.item_ids), "held_workers": list(held.worker_ids)}
            ids |= {"held_labels": list(held.labels)}
            parts["held"] = {"weights": np.asarray(held.weights or np.ones(len(held.labels)))}
        header = {
            "method": self.method,
            "settings": {name: _plain(value) for name, value in self.get_params().items()},
            "losses": list(self._losses),
        }
        arrays = {f"{part}/{n}": a for part, named in parts.items() for n, a in named.items()}
        write_snapshot(path, Snapshot(header, ids, arrays))

    @classmethod
    def load(cls, path: str | os.PathLike[str], **own: Any) -> Self:
        """Read a saved model; `own` gives again a generative model or encoder of your own."""
        model = load(path, **own)
        if not isinstance(model, cls):
            raise StateError(
                f"{path}: this is a model of {type(model).__name__}, not of {cls.__name__}. "
                f"Use {type(model).__name__}.load."
            )
        return model

    # ── made when first needed ───────────────────────────────────────────────────────────

    @cached_property
    def _space(self) -> LabelSpace:
        classes = None if self.classes is None else tuple(self.classes)
        return LabelSpace(classes, self.repeats, self.on_bad, self.abstain)

    @cached_property
    def _aggregator(self) -> Aggregator:
        return AGGREGATORS[self.method](self._space, **self._options())

    @cached_property
    def _memory(self) -> _Memory:
        nobody = WorkerRows({"labels": np.zeros(0, np.int64), "agreed": np.zeros(0, np.int64)})
        return _Memory(Roster(self._space), Ledger(self.open_items), None, nobody, [])

    @cached_property
    def _losses(self) -> deque[float]:
        return deque(maxlen=LOSSES_KEPT)

    @cached_property
    def _answer(self) -> "_Answer":
        return _Answer(*self._nothing(self._memory.roster))

    def _fitted(self, allow_warmup: bool = False) -> _Memory:
        memory = self._memory
        if memory.state is None and not allow_warmup:
            held = sum(len(part.item_ids) for part in memory.held)
            waiting = f" {held} labels are held for the warm-up." if held else ""
            raise StateError(
                f"This {type(self).__name__} has learned nothing yet.{waiting} "
                "Call partial_fit or fit first."
            )
        return memory

    def _known(self) -> tuple[list[Hashable], NDArray[np.intp]]:
        """Ids and indices of all workers but the forgotten."""
        ids = self._fitted().roster.worker_ids
        index = [k for k, worker in enumerate(ids) if worker is not None]
        return [ids[k] for k in index], np.array(index, np.intp)

    def _class_index(self) -> pd.Index:
        return pd.Index(self._memory.roster.classes, name="label")


class _Answer:
    """A chunk's answers; tables are made when somebody looks."""

    def __init__(self, intake: Intake, result: Aggregation, classes: list[Hashable]) -> None:
        self.parts = intake, result, classes

    @cached_property
    def _tasks(self) -> pd.Index:
        intake, _, _ = self.parts
        return pd.Index([intake.item_ids[i] for i in intake.order], name="task")

    @cached_property
    def labels(self) -> pd.Series:
        intake, result, classes = self.parts
        chosen = [classes[c] for c in result.aggregated[intake.order]]
        dtype = None if chosen else object
        return pd.Series(chosen, index=self._tasks, name="agg_label", dtype=dtype)

    @cached_property
    def probas(self) -> pd.DataFrame:
        intake, result, classes = self.parts
        columns = pd.Index(classes, name="label")
        return pd.DataFrame(result.probs[intake.order], index=self._tasks, columns=columns)


class BiLA(Estimator):
    """Online label aggregation: consensus now, and a model of every worker.

    Parameters
    ----------
    preset
        "default", "www2021" (Algorithm 1 to the letter) or "authors" (as the released code
        behaves). What follows overrides the preset; see `labelquorum.learn.bila.bila`.
    seed
        Everything random follows from it.
    classes
        The fixed list of classes; None lets them appear.
    repeats, on_bad, abstain
        The rules for rows; see `LabelSpace`.
    open_items
        How many recent tasks stay open for late labels and corrections; 0 discards at once.
    warmup_items
        Hold chunks until this many tasks are there, then answer them together.

    Examples
    --------
    >>> import pandas as pd
    >>> chunk = pd.DataFrame({
    ...     "task": ["t1", "t1", "t1", "t2", "t2", "t2"],
    ...     "worker": ["ann", "bob", "cat", "ann", "bob", "cat"],
    ...     "label": ["yes", "yes", "no", "no", "no", "no"],
    ... })
    >>> BiLA().partial_fit(chunk).labels_.to_dict()
    {'t1': 'yes', 't2': 'no'}

    On a simulated crowd of which a third of the labels are wrong:

    >>> from labelquorum.trial.crowds import class_conditional_crowd, label_table
    >>> crowd = class_conditional_crowd(2000, 40, 3, labels_per_item=6, seed=0)
    >>> labels = BiLA().fit_predict(label_table(crowd))
    """

    method = "bila"

    def __init__(
        self,
        preset: str = "default",
        *,
        generative: str | GenerativeModel | None = None,
        encoder: str | Encoder | None = None,
        hidden_sizes: Sequence[int] | None = None,
        labels_as: str | None = None,
        init_from: str | None = None,
        init_strength: float | None = None,
        kl_weight: float | None = None,
        class_prior: str | None = None,
        optimizer: str | None = None,
        learning_rate: float | None = None,
        decay: float | None = None,
        minibatch_items: int | None = None,
        epochs: int | None = None,
        tolerance: float | None = None,
        predict_by: str | None = None,
        seed: int = 0,
        classes: Sequence[Hashable] | None = None,
        repeats: Repeats = "last",
        on_bad: str = "error",
        abstain: Hashable = None,
        open_items: int = 10_000,
        warmup_items: int = 0,
    ) -> None:
        for name, value in locals().items():
            if name not in ("self", "__class__"):
                setattr(self, name, value)

    def _options(self) -> dict[str, Any]:
        preset = self.get_params()["preset"]
        if preset not in PRESETS:
            raise StateError(f"`preset` of BiLA must be one of {list(PRESETS)}. Got {preset!r}.")
        shared = set(_settings(MajorityVote)) | {"preset"}
        own = {
            name: value
            for name, value in self.get_params().items()
            if name not in shared and value is not None
        }
        return {**PRESETS[preset], **own}


class MajorityVote(Estimator):
    """The class most workers named; ties fall by seed and task.

    Examples
    --------
    >>> MajorityVote().fit_predict({"t1": {"ann": 1, "bob": 1, "cat": 0}}).to_dict()
    {'t1': 1}
    """

    method = "majority_vote"

    def __init__(
        self,
        *,
        seed: int = 0,
        classes: Sequence[Hashable] | None = None,
        repeats: Repeats = "last",
        on_bad: str = "error",
        abstain: Hashable = None,
        open_items: int = 10_000,
        warmup_items: int = 0,
    ) -> None:
        for name, value in locals().items():
            if name not in ("self", "__class__"):
                setattr(self, name, value)

    def _options(self) -> dict[str, Any]:
        return {}


ESTIMATORS: dict[str, type[Estimator]] = {"bila": BiLA, "majority_vote": MajorityVote}


def load(path: str | os.PathLike[str], **own: Any) -> Estimator:
    """Read a saved model of any method."""
    snapshot = read_snapshot(path)
    settings = {**snapshot.header["settings"], **own}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            raise StateError(
                f"{path}: this model was made with a {name} of your own, {value['custom']!r}. "
                f"Give it again: load(path, {name}=…)."
            )
    model = ESTIMATORS[snapshot.header["method"]](**settings)

    def part(name: str) -> dict[str, NDArray[Any]]:
        prefix = f"{name}/"
        return {n.removeprefix(prefix): a for n, a in snapshot.arrays.items() if n.startswith(prefix)}

    ids, state = snapshot.ids, part("state")
    held = []
    if "held_items" in ids:
        rows = (ids["held_items"], ids["held_workers"], ids["held_labels"])
        held = [LabelTable(*rows, weights=part("held")["weights"].tolist(), source="held labels")]
    model._memory = _Memory(
        Roster(model._space, ids["workers"], ids["classes"]),
        Ledger.from_arrays(model.open_items, ids["open_items"], part("ledger")),
        state_from_arrays(model._aggregator.state_type, state) if state else None,
        WorkerRows(part("book")),
        held,
    )
    model._losses.extend(snapshot.header["losses"])
    return model


def _settings(kind: type) -> list[str]:
    return [name for name in inspect.signature(kind.__init__).parameters if name != "self"]


def _plain(value: Any) -> Any:
    """A setting as JSON; a model of the user's own only by name."""
    if isinstance(value, GenerativeModel | Encoder):
        return {"custom": value.name}
    return list(value) if isinstance(value, tuple) else value


def _count_agreement(book: WorkerRows, intake: Intake, result: Aggregation) -> WorkerRows:
    """Count each worker's labels, and those that went with the consensus."""
    chunk = intake.chunk
    new = np.arange(book.n_workers, chunk.n_workers)
    if len(new):
        book = book.scatter(new, {name: np.zeros(len(new), np.int64) for name in book.names})
    fresh = ~chunk.known
    agreed = fresh & (chunk.label == result.aggregated[chunk.item])
    rows = book.gather(chunk.workers)
    for name, counted in (("labels", fresh), ("agreed", agreed)):
        rows[name] += np.bincount(chunk.local_worker[counted], minlength=len(chunk.workers))
    return book.scatter(chunk.workers, rows)
