"""Estimator: any aggregator behind the verbs of scikit-learn and the tables of Crowd-Kit.

An estimator is its settings. What it learns is in its `Model`, what it shows of workers and open
tasks in its `Inspection`. The classes of the methods are in `estimators.py`.
"""

from __future__ import annotations

import inspect
import operator
import os
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property
from html import escape
from importlib import import_module
from math import isfinite
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from labelquorum.errors import LabelError, StateError
from labelquorum.ingest.columns import distinct
from labelquorum.ingest.frames import read_gold
from labelquorum.ingest.labels import LabelSpace, LabelTable, OnBad, Repeats
from labelquorum.ingest.readers import read_labels, read_workers
from labelquorum.ingest.validate import Columns
from labelquorum.ingest.vocabulary import Tally
from labelquorum.learn.aggregator import split_name
from labelquorum.learn.analysis.certificate import Certificate
from labelquorum.learn.analysis.expected_error import ExpectedError
from labelquorum.learn.bila.encoder import Encoder
from labelquorum.learn.bila.generative import GenerativeModel
from labelquorum.learn.bila.presets import saved_settings
from labelquorum.learn.inspection import MAX_AGREEMENT_WORKERS, MAX_JURY_WORKERS, Inspection
from labelquorum.learn.jury import Jury
from labelquorum.learn.lazy import pd
from labelquorum.learn.model import (
    Model,
    ModelState,
    check_table,
    empty_state,
    snapshot_parts,
    state_from_snapshot,
    with_history,
)
from labelquorum.learn.model_file import (
    Snapshot,
    crafted_refused,
    read_snapshot,
    snapshot_bytes,
    snapshot_from_bytes,
    write_snapshot,
)
from labelquorum.learn.registry import AGGREGATORS
from labelquorum.learn.reports import Agreement, Doubt, Explanation, Report, id_index
from labelquorum.learn.worker_priors import history_rows, read_history

MAX_SHOWN_CLASSES = 10
"""Classes that a notebook shows of a model."""

SHARED_SETTINGS = (
    "seed",
    "classes",
    "repeats",
    "on_bad",
    "abstain",
    "open_items",
    "warmup_items",
)
"""The settings of every method."""


class Estimator(ABC):
    """The interface of every method; see `BiLA`.

    A subclass names its method, takes the settings in `__init__` (these seven and those of the
    aggregator), keeps them as given, and says which go to the aggregator.
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

    def partial_fit(
        self,
        labels: Any,
        true_labels: Any = None,
        *,
        columns: Columns = None,
        workers: Any = None,
        y: Any = None,
    ) -> Self:
        """Learn from one more chunk and answer its tasks.

        Parameters
        ----------
        labels
            A table with the columns task, worker, label (pandas, polars, Arrow), a path, a wide
            matrix, a dict {task: {worker: label}}, or a list of tuples (task, worker, label) or
            of dicts. A chunk that is refused changes nothing.
        true_labels
            The truth of tasks for which it is known: a Series indexed by task, or a dict. They
            are tasks of this chunk or still open; a truth stays. A NumPy array has the truths of
            all tasks, in order of appearance.
        columns
            The names of columns that have no name we know, such as {"task": "image"}.
        workers
            What is known of workers: a table with the columns worker, worker_kind (or kind: human,
            llm or model), model, prompt and order, or a dict {worker: {"model": …}}. The labels may
            have these columns too. A worker has one value of each.
        y
            scikit-learn's name of `true_labels`.
        """
        warmup_items = self._whole("warmup_items", 0)
        table, gold = _read(self.model_, labels, _one_of(true_labels, y), columns)
        self.model_.learn(table, gold, warmup_items, _read_workers(workers))
        return self

    def fit(
        self,
        labels: Any,
        true_labels: Any = None,
        *,
        columns: Columns = None,
        workers: Any = None,
        y: Any = None,
    ) -> Self:
        """Learn offline: forget everything, then learn from all tasks at once.

        They all stay open, more than `open_items` if need be, so that `report`, `pending`,
        `expected_gain` and `explain` cover them; with `open_items=0` none does.
        """
        model = type(self)(**self.get_params()).model_
        table, gold = _read(model, labels, _one_of(true_labels, y), columns)
        model.learned.open_items.make_room(len(distinct(table.item_ids)))
        model.learn(table, gold, workers=_read_workers(workers))
        self.model_ = model  # a pipeline's own attributes stay
        return self

    def fit_predict(
        self,
        labels: Any,
        true_labels: Any = None,
        *,
        columns: Columns = None,
        workers: Any = None,
        y: Any = None,
    ) -> pd.Series:
        """Learn offline and give the consensus: Series `agg_label`, index `task`."""
        return self.fit(labels, true_labels, columns=columns, workers=workers, y=y).labels_

    def fit_predict_proba(
        self,
        labels: Any,
        true_labels: Any = None,
        *,
        columns: Columns = None,
        workers: Any = None,
        y: Any = None,
    ) -> pd.DataFrame:
        """Learn offline and give the probabilities, task × class."""
        return self.fit(labels, true_labels, columns=columns, workers=workers, y=y).probas_

    def predict(self, labels: Any, *, columns: Columns = None) -> pd.Series:
        """Answer with the present model from these labels alone, learning nothing."""
        return self.model_.predict(read_labels(labels, self.model_.space, columns)).labels

    def predict_proba(self, labels: Any, *, columns: Columns = None) -> pd.DataFrame:
        """Probabilities with the present model from these labels alone, learning nothing."""
        return self.model_.predict(read_labels(labels, self.model_.space, columns)).probas

    def score(
        self, labels: Any, true_labels: Any = None, *, columns: Columns = None, y: Any = None
    ) -> float:
        """The share of tasks `predict` answers rightly, of those whose truth is given."""
        table = read_labels(labels, self.model_.space, columns)
        answers = self.model_.predict(table).labels.to_dict()
        truths = _truths(_one_of(true_labels, y), table)
        check_table(self.model_.learned, table, truths)
        right = [answers[task] == truth for task, truth in truths.items() if task in answers]
        if not right:
            raise LabelError(
                "score: none of these tasks has a true label. Give true_labels, a Series indexed "
                "by task or a dict {task: label}."
            )
        return float(np.mean(right))

    def forget(self, worker: Hashable) -> Self:
        """Remove a worker: their rows, their labels on open tasks, their id.

        What they already contributed to shared numbers (the class prior, the crowd's average, the
        network's shared layers, other workers' rows) stays: it identifies nobody.
        """
        self.model_.forget(worker)
        return self

    def retract(self, task: Hashable, worker: Hashable) -> Self:
        """Withdraw a worker's label of a task that is still open, and answer the task again.

        The task is then counted by its other labels. A task whose last label is withdrawn is
        dropped as if it had never come.
        """
        self.model_.retract(task, worker)
        return self

    def answer_held(self) -> Self:
        """Learn from and answer what the warm-up holds, few as they are: no more will come."""
        if self.held_labels_:
            self.model_.learn(LabelTable([], [], []))
        return self

    # ── what was learned ─────────────────────────────────────────────────────────────────

    @property
    def tally_(self) -> Tally:
        """What became of the rows of the last table."""
        return self.model_.tally

    @property
    def info_(self) -> object:
        """Diagnostics of the last chunk, as the method reports them; None if it learned nothing."""
        return self.model_.info

    @property
    def returned_(self) -> pd.Index:
        """The tasks of the last chunk that were closed before: they count as new evidence."""
        intake = self.model_.answer.intake
        return id_index((intake.item_ids[i] for i in intake.order if intake.returned[i]), "task")

    @property
    def held_labels_(self) -> int:
        """How many labels are held until the warm-up is complete."""
        return self.model_.n_held_labels

    @property
    def labels_(self) -> pd.Series:
        """The consensus on the last chunk's tasks, in order of appearance.

        `report().items` has those of all open tasks, also of a model that was loaded.
        """
        return self.model_.last_answer().labels

    @property
    def answers_(self) -> dict[Hashable, Hashable]:
        """The same as a dict {task: label}; it takes no pandas, which is half of a start."""
        answer = self.model_.last_answer()
        return dict(zip(answer.task_ids, answer.chosen, strict=True))

    @property
    def probas_(self) -> pd.DataFrame:
        """The probabilities of the last chunk's tasks, task × class."""
        return self.model_.last_answer().probas

    @property
    def classes_(self) -> NDArray[np.generic]:
        """The classes known so far; the first chunk's in natural order, later ones after them."""
        return self._class_index().to_numpy()

    @property
    def workers_(self) -> pd.Index:
        """The workers known so far."""
        return id_index(self.model_.known_workers()[0], "worker")

    @property
    def confusion_(self) -> NDArray[np.float32]:
        """P(worker k says z | truth c) as an array [k, c, z]; order of `workers_`, `classes_`."""
        return self.inspection.confusion(self.model_.known_workers()[1])

    @property
    def errors_(self) -> pd.DataFrame:
        """The confusion matrices in Crowd-Kit's layout: rows (worker, label), columns truth."""
        columns = self._class_index()
        confusion = self.confusion_.swapaxes(1, 2)  # [k, z, c]
        index = pd.MultiIndex.from_product([self.workers_, columns], names=["worker", "label"])
        return pd.DataFrame(confusion.reshape(-1, len(columns)), index=index, columns=columns)

    @property
    def priors_(self) -> pd.Series:
        """The class prior."""
        return pd.Series(self.inspection.class_prior(), index=self._class_index(), name="prior")

    @property
    def skills_(self) -> pd.Series:
        """How often each worker is right, on average over the classes as they occur."""
        right = self.inspection.right(self.model_.known_workers()[1])
        skill = right @ self.inspection.class_prior()
        return pd.Series(skill, index=self.workers_, name="skill")

    @property
    def loss_history_(self) -> list[float]:
        """The last mean loss of each chunk, of the last 10,000 chunks."""
        return [float(loss) for loss in self.model_.losses]

    def _class_index(self) -> pd.Index:
        return id_index(self.model_.learned.vocabulary.classes, "label")

    # ── inspection ───────────────────────────────────────────────────────────────────────

    def report(self) -> Report:
        """Items and workers under cleanlab's column names, with the crowd's agreement.

        Items are all answers so far of tasks still open: those given to `fit`, or the last
        `open_items` of a stream; `closed_items` says how many others there were. With none kept,
        they are those of the last chunk.
        """
        return self.inspection.report()

    def skill_intervals(
        self, level: float = 0.95, workers: Iterable[Hashable] | None = None
    ) -> pd.DataFrame:
        """How often each worker is right, and between which bounds that is known.

        Parameters
        ----------
        level
            The probability with which the skill lies between `low` and `high`.
        workers
            The workers to report; all unless given.

        Returns
        -------
        table : index worker; skill, low, high, labels
        """
        return self.inspection.skill_intervals(level, workers)

    def confusion_intervals(
        self, level: float = 0.95, workers: Iterable[Hashable] | None = None
    ) -> pd.DataFrame:
        """What each worker says of each class, and between which bounds that is known.

        Parameters
        ----------
        level
            The probability with which an entry lies between `low` and `high`.
        workers
            The workers to report; all unless given.

        Returns
        -------
        table : index worker, truth, label; prob, low, high
        """
        return self.inspection.confusion_intervals(level, workers)

    def flags(self, level: float = 0.95, workers: Iterable[Hashable] | None = None) -> pd.DataFrame:
        """Suspicious workers, and why.

        Parameters
        ----------
        level
            How certain a flag must be.
        workers
            The workers to check; all unless given.

        Returns
        -------
        table : worker, flag, score, since, partners, says; one row per flag, workers in the order
            of `workers_`
        """
        return self.inspection.flags(level, workers)

    def track(self, worker: Hashable, level: float = 0.95) -> pd.DataFrame:
        """How far a worker agreed with the others over time, and where that changed.

        Returns
        -------
        table : index chunk, the last of a stretch; labels, agreement, crowd (that of all others in
            the same chunks), low, high, change (whether there is a change point at its beginning)
        """
        return self.inspection.track(worker, level)

    def collusion(self) -> pd.DataFrame:
        """How often two workers gave the same answer to open tasks, beside what is expected.

        Returns
        -------
        table : worker, other, shared, same, expected, score; the most suspicious pair first
        """
        return self.inspection.collusion()

    def agreement(
        self,
        workers: Iterable[Hashable] | None = None,
        level: float = 0.95,
        max_workers: int = MAX_AGREEMENT_WORKERS,
    ) -> Agreement:
        """How well each worker agrees with each other one on open tasks: Cohen's kappa, bounds.

        `labelquorum.agreement(labels)` gives the same of any labels, without a model, and
        documents the parameters.
        """
        return self.inspection.agreement(workers, level, max_workers)

    def jury(self, level: float = 0.95, max_workers: int = MAX_JURY_WORKERS) -> Jury:
        """For how many independent judges the workers count, and who errs with whom.

        Computed from the labels of open tasks: against given true labels where at least 20 tasks
        with two labels have one, else against the consensus. Printed, it is a few
        sentences.

        Parameters
        ----------
        level
            Of all intervals.
        max_workers
            Maximum number of judges, those with most labels.

        Returns
        -------
        jury : `effective`, `correlation` and their bounds; the tables `judges`, `groups` and
            `order_effects`
        """
        return self.inspection.jury(level, max_workers)

    def explain(self, task: Hashable) -> Explanation:
        """Why an open task has its answer, and what would flip it.

        Printed, it is a sentence: "t17: 'cat' with 0.93 because ann (+2.1) and bob (+1.9) outweigh
        eve (−1.4)." Labels of workers who were forgotten since are left out.
        """
        return self.inspection.explain(task)

    def pending(self, threshold: float = 0.95) -> pd.DataFrame:
        """Open tasks that need another label: those answered with less confidence than this.

        Tasks whose truth was given need none.

        Returns
        -------
        table : index task, the least confident first; label, confidence, labels
        """
        return self.inspection.pending(threshold)

    def expected_gain(
        self,
        tasks: Iterable[Hashable] | None = None,
        workers: Iterable[Hashable] | None = None,
        top: int | None = None,
    ) -> pd.DataFrame:
        """What one more label would likely do: which tasks to ask about, and whom.

        The gain is by how much the label would raise the probability that the answer is right,
        on average over what the worker may say. Tasks whose truth was given are left out.

        Parameters
        ----------
        tasks
            Open tasks; all of them unless given.
        workers
            Those who may be asked. Unless given, the gain is the mean over the thousand workers
            with most labels, by how many they gave, and the best of them is named.
        top
            The maximum number of rows.

        Returns
        -------
        table : index task, the largest gain first; gain, confidence, expected_confidence,
            best_worker, best_gain. With `workers`: index task, worker; gain, confidence,
            expected_confidence. No worker is asked about a task they have labelled; where all
            have, the gain is that of a new worker who is like them, and no best worker is named.
        """
        return self.inspection.expected_gain(tasks, workers, top)

    def doubt(self) -> Doubt:
        """Whether the labels identify the answers, or only show that workers agree.

        Where ten or more workers labelled a task and answers are still hardly better than guesses,
        because workers err together, `in_doubt` is true: answers are then majority votes with low
        confidence, and a warning says so once.

        Returns
        -------
        doubt : in_doubt, expected_error (1 is a guess), tasks; `says` is a sentence, or empty
        """
        return self.inspection.doubt()

    def deciding_tasks(self, n: int = 10) -> pd.DataFrame:
        """Open tasks whose true labels would best decide a doubt, at most `n` of them.

        They are those on which the vote and the worker model differ most clearly. Give true labels
        with `partial_fit(…, true_labels=…)`.

        Returns
        -------
        table : index task, the clearest first; difference (0 to 1), by_vote, by_model, labels
        """
        return self.inspection.deciding_tasks(n)

    def stopping(self, thresholds: Sequence[float] | None = None) -> pd.DataFrame:
        """What closing open tasks once their answer reaches a confidence would have saved and cost.

        Tasks whose truth was given are left out.

        Returns
        -------
        table : threshold, labels_used, labels_saved (a share of all), expected_error
        """
        return self.inspection.stopping(thresholds)

    def expected_error(
        self, tasks: Iterable[Hashable] | None = None, level: float = 0.95, audit: Any = None
    ) -> ExpectedError:
        """The expected share of wrong answers among open tasks, with an interval.

        Without gold it is the model's own: the mean of 1 − confidence. With gold drawn at random it
        is corrected on it (prediction-powered).

        Parameters
        ----------
        tasks
            Open tasks; all of them unless given. Those whose truth the model learned are left out.
        level
            The probability with which the share lies between `low` and `high`.
        audit
            The truth of tasks that were drawn at random and that the model has not learned: a dict
            {task: truth}, a Series indexed by task, or a table with the columns task and label.
        """
        return self.inspection.expected_error(tasks, level, audit)

    def certify(
        self, error: float = 0.02, confidence: float = 0.95, audit: Any = None
    ) -> Certificate:
        """Say which answers may stand so that few labels are wrong, and what people must still see.

        The bound holds at every moment at once: one may look after each gold label and stop at the
        first certificate. Without enough gold there is none, and it says how much it takes.

        Parameters
        ----------
        error
            The share of wrong labels allowed among all open tasks, once people have labelled those
            in `todo`.
        confidence
            The probability with which the bound holds.
        audit
            The truth of tasks drawn at random, in the order drawn, as `expected_error` takes it.
            Shuffle a file that is sorted.
        """
        return self.inspection.certify(error, confidence, audit)

    # ── scikit-learn's conventions ───────────────────────────────────────────────────────

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The settings, by name."""
        return {name: getattr(self, name) for name in _settings(type(self))}

    def set_params(self, **params: Any) -> Self:
        """Change settings; the model forgets what it learned under the old ones."""
        check_settings(type(self), params)
        for name, value in params.items():
            setattr(self, name, value)
        vars(self).pop("model_", None)
        return self

    def __sklearn_is_fitted__(self) -> bool:
        """What scikit-learn's `check_is_fitted` asks."""
        return "model_" in vars(self) and self.model_.learned.state is not None

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn may assume; it is imported by whoever asks."""
        utils = import_module("sklearn.utils")
        return utils.Tags(
            estimator_type=None,
            target_tags=utils.TargetTags(required=False),
            input_tags=utils.InputTags(
                categorical=True, string=True, dict=True, allow_nan=True, sparse=True
            ),
            no_validation=True,
        )

    def _repr_html_(self) -> str:
        facts = {"model": repr(self)}
        if self.__sklearn_is_fitted__():
            known = self.model_.learned
            facts |= {
                "classes": ", ".join(map(str, known.vocabulary.classes[:MAX_SHOWN_CLASSES]))
                + " …" * (len(known.vocabulary.classes) > MAX_SHOWN_CLASSES),
                "workers": f"{len(self.workers_):,}",
                "open tasks": f"{len(known.open_items):,}",
                "last chunk": f"{len(self.model_.answer.intake.item_ids):,} tasks",
            }
        else:
            facts["learned"] = "nothing yet"
        rows = (f"<tr><th>{name}</th><td>{escape(fact)}</td></tr>" for name, fact in facts.items())
        return f"<table>{''.join(rows)}</table>"

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
        write_snapshot(path, self._snapshot())

    def _snapshot(self) -> Snapshot:
        settings = {n: _plain(value) for n, value in self.get_params().items() if n != "history"}
        classes, learned = self.model_.space.classes, self.model_.learned
        if self.classes is not None:
            settings["classes"] = list(classes or ())
        if self.history is not None:
            settings["history"] = history_rows(self.history, classes)
        ids, arrays = snapshot_parts(learned)
        header: dict[str, Any] = {
            "method": self.method,
            "settings": settings,
            "losses": self.loss_history_,
            "chunks": learned.n_chunks if isfinite(learned.n_chunks) else None,
        }
        if self.model_.sources:
            header["sources"] = self.model_.sources
        return Snapshot(header, ids, arrays)

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
        with crafted_refused(path):
            return cls._from_snapshot(path, snapshot, own)

    @classmethod
    def _from_snapshot(
        cls, path: str | os.PathLike[str], snapshot: Snapshot, own: Mapping[str, Any]
    ) -> Self:
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
        restored = cls(**settings)
        restored._take(snapshot)
        return restored

    def _take(self, snapshot: Snapshot) -> None:
        model = self.model_
        open_items, state_type = model.learned.open_items.open_items, model.aggregator.state_type
        model.learned = state_from_snapshot(model.space, open_items, state_type, snapshot)
        model.was_loaded = model.learned.state is not None
        model.losses.extend(snapshot.header["losses"])
        model.sources.extend(snapshot.header.get("sources", ()))

    def __getstate__(self) -> dict[str, Any]:
        """What pickle, copy and joblib keep: settings, the bytes `save` writes, the last answer."""
        kept = dict(vars(self))
        model: Model | None = kept.pop("model_", None)
        if model is not None:
            kept["saved"] = snapshot_bytes(self._snapshot())
            kept["last"] = model.answer, model.info, model.tally, model.was_loaded
        return kept

    def __setstate__(self, kept: dict[str, Any]) -> None:
        """Go on from what `__getstate__` gave."""
        kept = dict(kept)
        saved, last = kept.pop("saved", None), kept.pop("last", None)
        vars(self).update(kept)
        if saved is not None:
            self._take(snapshot_from_bytes(saved, "pickle"))
            model = self.model_
            model.answer, model.info, model.tally, model.was_loaded = last

    # ── parts ────────────────────────────────────────────────────────────────────────────

    @cached_property
    def model_(self) -> Model:
        """The aggregator that the settings make, with what it has learned."""
        space, seed = self._space(), self._whole("seed") % 2**63
        wrapper, method = split_name(self.method)
        aggregator = AGGREGATORS[method](space, **self._options())
        preset = getattr(self, "preset", "default")
        model = Model(
            type(self).__name__ + ("" if preset == "default" else f"({preset!r})"),
            wrapper(aggregator) if wrapper else aggregator,
            seed,
            empty_state(space, self._whole("open_items", 0)),
        )
        if self.history is None:
            return model
        model.check_counts("have a history")
        if self._whole("warmup_items", 0):
            raise StateError(
                "`warmup_items` must be 0 with a history: that is a first set already."
            )
        known = read_history(self.history, space.classes)
        if known.workers:
            model.learned = with_history(model.learned, known, model.aggregator, seed)
        return model

    @property
    def inspection(self) -> Inspection:
        """The tables of workers and open tasks."""
        return Inspection(self.model_)

    def with_learned(self, learned: ModelState) -> Self:
        """An estimator with these settings that has learned this; they share the aggregator."""
        model = self.model_
        other = type(self)(**self.get_params())
        other.model_ = Model(model.name, model.aggregator, model.seed, learned)
        return other

    def _space(self) -> LabelSpace:
        # A NumPy array of classes gives NumPy scalars; labels are Python's own.
        classes: Any = self.classes
        if classes is not None and not isinstance(classes, str | set | frozenset):
            try:
                classes = tuple(map(_plain, classes))
            except TypeError:
                raise StateError(f"`classes` must be a list. Got {classes!r}.") from None
        return LabelSpace(classes, self.repeats, self.on_bad, self.abstain)

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


def _read(
    model: Model, labels: Any, true_labels: Any, columns: Columns
) -> tuple[LabelTable, dict[Hashable, Hashable]]:
    table = read_labels(labels, model.space, columns)
    if true_labels is not None:
        model.check_counts("learn from true labels")
    gold = _truths(true_labels, table)
    check_table(model.learned, table, gold)
    return table, gold


def _read_workers(workers: Any) -> LabelTable | None:
    return None if workers is None else read_workers(workers)


def _one_of(true_labels: Any, y: Any) -> Any:
    if true_labels is not None and y is not None:
        raise StateError("`y` is another name of `true_labels`. Give one of them.")
    return y if true_labels is None else true_labels


def _truths(true_labels: Any, table: LabelTable) -> dict[Hashable, Hashable]:
    """True labels by task; an array has one for each task of the table."""
    if true_labels is None:
        return {}
    if not isinstance(true_labels, np.ndarray):
        return read_gold(true_labels)
    tasks = distinct(table.item_ids)
    if true_labels.shape != (len(tasks),):
        raise LabelError(
            f"true_labels: an array must have one truth for each of the {len(tasks):,} tasks. Got "
            f"the shape {true_labels.shape}. Pass a Series indexed by task, or a dict."
        )
    return read_gold(dict(zip(tasks, true_labels.tolist(), strict=True)))


def check_settings(kind: type, names: Iterable[str]) -> None:
    """Refuse the name of a setting that an estimator does not have; name the nearest."""
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


def _plain(value: Any) -> Any:
    """A setting as JSON; a model of the user's own only by name."""
    if isinstance(value, GenerativeModel | Encoder):
        return {"custom": value.name}
    if hasattr(value, "tolist"):  # an array of any library, or one of its numbers
        return value.tolist()
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value
