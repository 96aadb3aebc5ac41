"""Crowd-Kit's classification aggregators under their own names, run by LabelQuorum.

Replace `from crowdkit.aggregation import DawidSkene` by
`from labelquorum.compat.crowdkit import DawidSkene`: the arguments, the tables and the values are
those of Crowd-Kit 1.4, the time is a fraction. Where they differ:

- a row without a task, worker or label is refused; Crowd-Kit drops it, or fails later;
- `silent` and `verbose` are accepted, and nothing is printed;
- a true label that nobody gave is a class of probability 0 to begin with, not NaN;
- in `MACE` each worker has a habit of their own. Crowd-Kit's mixes them up unless the names of
  workers and labels first appear in alphabetical order, and gives NaN where a task has very many
  labels.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.errors import LabelError, StateError
from labelquorum.learn.methods import dawid_skene, glad, mace, one_coin
from labelquorum.learn.methods._batch import Incidence, incidence, probs_of_labels, sum_votes

__all__ = ["GLAD", "MACE", "DawidSkene", "MajorityVote", "OneCoinDawidSkene"]

COLUMNS = ["task", "worker", "label"]

EPSILON = 1e-10
"""Crowd-Kit lets no count, prior or probability be smaller."""

NEVER = 1e-300
"""Stands for a label a worker never gave: its logarithm is finite."""

Codes = NDArray[np.intp]


class Table(NamedTuple):
    """Labels as integers, and what the integers stand for."""

    labels: Incidence
    tasks: pd.Index
    workers: pd.Index
    classes: pd.Index


class _Aggregator(ABC):
    """What the five have in common."""

    labels_: pd.Series
    probas_: pd.DataFrame

    @abstractmethod
    def fit(self, data: pd.DataFrame, *more: Any, **named: Any) -> Self:
        """Learn from a table with the columns task, worker, label."""

    def fit_predict(self, data: pd.DataFrame, *more: Any, **named: Any) -> pd.Series:
        """Learn as `fit` does and give `labels_`."""
        return self.fit(data, *more, **named).labels_

    def fit_predict_proba(self, data: pd.DataFrame, *more: Any, **named: Any) -> pd.DataFrame:
        """Learn as `fit` does and give `probas_`."""
        return self.fit(data, *more, **named).probas_

    def _answer(self, probs: Floats, tasks: pd.Index, classes: pd.Index) -> None:
        """Keep probabilities (N, C); ties fall to the first class."""
        self.probas_ = pd.DataFrame(probs, index=tasks, columns=classes)
        best = classes.take(np.argmax(probs, axis=1)) if probs.size else classes[:0]
        self.labels_ = pd.Series(best, index=tasks.rename("task"), name="agg_label")

    def _nothing(self) -> Self:
        self.probas_ = pd.DataFrame()
        self.labels_ = pd.Series(dtype=float, name="agg_label")
        return self


@dataclass(eq=False)
class MajorityVote(_Aggregator):
    """The class with most votes, or most skill behind it; ties fall to the first class.

    Examples
    --------
    >>> import pandas as pd
    >>> labels = pd.DataFrame(
    ...     {"task": ["t1"] * 3, "worker": ["ann", "bob", "cat"], "label": [0, 1, 1]}
    ... )
    >>> MajorityVote().fit_predict(labels).to_dict()
    {'t1': 1}
    >>> MajorityVote().fit_predict(labels, pd.Series({"ann": 3, "bob": 1, "cat": 1})).to_dict()
    {'t1': 0}
    """

    default_skill: float | None = None
    on_missing_skill: str = "error"
    skills_: pd.Series = field(init=False, repr=False)
    """How often each worker agrees with the answers."""

    def fit(self, data: pd.DataFrame, skills: pd.Series | None = None) -> Self:
        """Count the votes.

        Parameters
        ----------
        data
            Columns task, worker, label.
        skills
            What a worker's vote counts, indexed by worker; None counts one each.
        """
        if skills is None:
            table = read_table(data, sort_tasks=None)
        else:
            weighted = self._with_skills(data, skills)
            table = read_table(weighted, sort_tasks=True, sort_classes=True, weight="skill")
        labels = table.labels
        if not len(labels.item):
            self.skills_ = pd.Series(dtype=float, name="skill")
            return self._nothing()
        votes = sum_votes(None, labels)
        with np.errstate(invalid="ignore"):  # a task without skill has no probabilities
            self._answer(votes / votes.sum(axis=1, keepdims=True), table.tasks, table.classes)
        agrees = np.argmax(self.probas_.to_numpy(), axis=1)[labels.item] == labels.label
        # A label sent twice is one label here.
        row = labels.item * (labels.n_workers * labels.n_classes) + labels.cell
        once = ~pd.Series(row).duplicated().to_numpy()
        right = np.bincount(labels.worker[once], agrees[once], labels.n_workers)
        total = np.bincount(labels.worker[once], minlength=labels.n_workers)
        skill = pd.Series(right / total, index=table.workers, name="skill")
        self.skills_ = skill.sort_index()
        return self

    def _with_skills(self, data: pd.DataFrame, skills: pd.Series) -> pd.DataFrame:
        if self.on_missing_skill not in ("error", "ignore", "value"):
            raise StateError(
                '`on_missing_skill` of MajorityVote must be "error", "ignore" or "value". '
                f"Got {self.on_missing_skill!r}."
            )
        if (self.default_skill is not None) != (self.on_missing_skill == "value"):
            raise StateError(
                '`default_skill` of MajorityVote goes with on_missing_skill="value", and that '
                f"needs it. Got {self.default_skill!r} and {self.on_missing_skill!r}."
            )
        data = data[COLUMNS].assign(skill=data["worker"].map(skills))
        unknown = data["skill"].isna()
        if self.on_missing_skill == "value":
            return data.fillna({"skill": self.default_skill})
        if self.on_missing_skill == "error" and unknown.any():
            raise LabelError(
                f"{unknown.sum()} labels are by workers without a skill. Give the skills of all "
                'workers, or choose on_missing_skill="ignore" or "value".'
            )
        kept = data[~unknown]
        if kept["task"].nunique() < data["task"].nunique():
            raise LabelError(
                "Some tasks have labels only by workers without a skill. Give each task a worker "
                'with a skill, or choose on_missing_skill="value".'
            )
        return kept


@dataclass(eq=False)
class DawidSkene(_Aggregator):
    """Dawid–Skene: a confusion matrix for each worker.

    Examples
    --------
    >>> from labelquorum.evaluation import class_conditional_crowd, error_rate
    >>> crowd = class_conditional_crowd(1000, 30, 3, labels_per_item=5, seed=0)
    >>> labels = pd.DataFrame({"task": crowd.item, "worker": crowd.worker, "label": crowd.label})
    >>> print(f"{error_rate(DawidSkene(100).fit_predict(labels), crowd.truth):.1%}")
    13.8%
    """

    n_iter: int = 100
    tol: float = 1e-5
    initial_error_strategy: Literal["assign", "addition"] | None = None
    priors_: pd.Series = field(init=False, repr=False)
    """The share of each class."""
    errors_: pd.DataFrame = field(init=False, repr=False)
    """P(worker says label | truth): rows worker and label, as far as they occur; columns truth."""
    loss_history_: list[float] = field(init=False, repr=False)
    """The lower bound after each round, as Crowd-Kit computes it."""

    def fit(
        self,
        data: pd.DataFrame,
        true_labels: pd.Series | None = None,
        initial_error: pd.DataFrame | None = None,
    ) -> Self:
        """Learn by expectation maximisation.

        Parameters
        ----------
        data
            Columns task, worker, label.
        true_labels
            The truth of some tasks, indexed by task.
        initial_error
            What is known of the workers' matrices, in the layout of `errors_`: counts to add or
            matrices to start from, as `initial_error_strategy` says. The first round sees them.
        """
        self.loss_history_ = []
        table, strategy = read_table(data, true_labels), self.initial_error_strategy
        first = None if strategy is None else initial_error
        if first is not None and first.columns.tolist() != table.classes.tolist():
            # pandas sorts the classes where the columns of two tables differ.
            table = read_table(data, true_labels, sort_classes=True)
        labels = table.labels
        if not len(labels.item):
            self.priors_, self.errors_ = pd.Series(dtype=float, name="prior"), pd.DataFrame()
            return self._nothing()
        said = said_cells(labels)

        def smooth(counts: Floats) -> Floats:
            if counts.ndim == 1:  # of the classes
                return np.maximum(counts, EPSILON * labels.n_items)
            return np.where(said, np.maximum(counts, EPSILON), NEVER)

        probs, gold = _shares(sum_votes(None, labels)), read_gold(true_labels, table)
        if gold is not None:
            probs = gold.correct(probs)
        params = dawid_skene.maximise(probs, labels, smooth)
        if first is not None and strategy is not None:
            confusion = initial_confusion(first, strategy, params.counts, said, table)
            params = params._replace(confusion=confusion)
        for found in islice(dawid_skene.rounds(labels, params, smooth, gold), self.n_iter):
            probs, params = found.probs, found.params
            # Σ q log ψ over all labels is a sum over the soft counts ψ was made of.
            reported = float((params.counts * np.log(params.confusion)).sum())
            if _is_enough(self.loss_history_, _lower_bound(probs, reported, labels), self.tol):
                break
        self._answer(np.maximum(probs, EPSILON), table.tasks, table.classes)
        self.priors_ = pd.Series(probs.mean(axis=0), index=table.classes, name="prior")
        self.errors_ = errors_table(params.confusion, table)
        return self


@dataclass(eq=False)
class OneCoinDawidSkene(_Aggregator):
    """Dawid–Skene with one number per worker: how often they are right."""

    n_iter: int = 100
    tol: float = 1e-5
    initial_error_strategy: Literal["assign", "addition"] | None = None
    """Without effect, as in Crowd-Kit."""
    priors_: pd.Series = field(init=False, repr=False)
    errors_: pd.DataFrame = field(init=False, repr=False)
    skills_: pd.Series = field(init=False, repr=False)
    loss_history_: list[float] = field(init=False, repr=False)

    def fit(self, data: pd.DataFrame) -> Self:
        """Learn by expectation maximisation from the columns task, worker, label."""
        self.loss_history_ = []
        table = read_table(data)
        labels = table.labels
        if not len(labels.item):
            self.priors_, self.errors_ = pd.Series(dtype=float, name="prior"), pd.DataFrame()
            return self._nothing()
        probs = _shares(sum_votes(None, labels))
        params = one_coin.maximise(probs, labels, 0.0, learned=True)
        for found in islice(one_coin.rounds(labels, params, 0.0, learned=True), self.n_iter):
            probs, params = found.probs, found.params
            right, wrong = one_coin.right_and_wrong(params.skill, labels.n_classes)
            reported = params.right @ np.log(right) + (params.total - params.right) @ np.log(wrong)
            if _is_enough(
                self.loss_history_, _lower_bound(probs, float(reported), labels), self.tol
            ):
                break
        self._answer(np.maximum(probs, EPSILON), table.tasks, table.classes)
        self.priors_ = pd.Series(probs.mean(axis=0), index=table.classes, name="prior")
        self.skills_ = pd.Series(params.skill, index=table.workers, name="skill")
        right, wrong = one_coin.right_and_wrong(params.skill, labels.n_classes)
        same = np.eye(labels.n_classes, dtype=bool)
        self.errors_ = errors_table(
            np.where(same, right[:, None, None], wrong[:, None, None]), table
        )
        return self


@dataclass(eq=False)
class GLAD(_Aggregator):
    """GLAD: the ability of each worker and the ease of each task."""

    n_iter: int = 100
    tol: float = 1e-5
    silent: bool = True
    labels_priors: pd.Series | None = None
    alphas_priors_mean: pd.Series | None = None
    betas_priors_mean: pd.Series | None = None
    m_step_max_iter: int = 25
    m_step_tol: float = 1e-2
    alphas_: pd.Series = field(init=False, repr=False)
    """The workers' abilities."""
    betas_: pd.Series = field(init=False, repr=False)
    """The logarithm of the tasks' inverse difficulty."""
    priors_: pd.Series = field(init=False, repr=False)
    loss_history_: list[float] = field(init=False, repr=False)

    def fit(self, data: pd.DataFrame) -> Self:
        """Learn by expectation maximisation from the columns task, worker, label.

        Each M step is Crowd-Kit's own search by conjugate gradients, so that stopping early gives
        its values; `labelquorum.learn.methods.glad` gets to the same end much faster.
        """
        self.loss_history_ = []
        given = self.labels_priors
        table = read_table(data, classes=None if given is None else given.index, sort_classes=True)
        labels, n_classes = table.labels, len(table.classes)
        if not len(labels.item):
            return self._nothing()
        self.priors_ = (
            pd.Series(1 / n_classes, index=pd.unique(data["label"])) if given is None else given
        )
        priors = glad.Priors(
            self.priors_.reindex(table.classes).to_numpy(np.float64),
            read_prior_mean(self.alphas_priors_mean, table.workers, "alphas_priors_mean"),
            read_prior_mean(self.betas_priors_mean, table.tasks, "betas_priors_mean"),
        )
        params = glad.Params(np.ones(labels.n_workers), np.ones(labels.n_items))
        probs, _ = glad.expect(params, labels, priors)
        for found in islice(glad.rounds(labels, params, priors, self._climb), self.n_iter):
            probs, params = found.probs, found.params
            value, _ = glad.objective(probs_of_labels(probs, labels), params, labels, priors)
            value /= len(labels.item) * n_classes
            if _is_enough(self.loss_history_, value, self.tol):
                break
        order = natural_order(table.tasks)
        self._answer(probs[order], table.tasks.take(order), table.classes.rename("variable"))
        self.alphas_ = pd.Series(params.ability, index=table.workers, name="alpha")
        self.betas_ = pd.Series(params.ease, index=table.tasks, name="beta")
        return self

    def _climb(
        self, right: Floats, params: glad.Params, labels: Incidence, priors: glad.Priors
    ) -> glad.Params:
        from scipy.optimize import minimize  # type: ignore[import-untyped]

        def split(point: Floats) -> glad.Params:
            return glad.Params(point[: labels.n_workers], point[labels.n_workers :])

        def descend(point: Floats) -> tuple[float, Floats]:
            value, gradient = glad.objective(right, split(point), labels, priors)
            return -value, -np.concatenate(gradient)

        found = minimize(
            descend,
            np.concatenate(params),
            jac=True,
            method="CG",
            tol=self.m_step_tol,
            options={"maxiter": self.m_step_max_iter},
        )
        return split(found.x)


@dataclass(eq=False)
class MACE(_Aggregator):
    """MACE: a worker knows the truth, or spams by a habit of their own.

    With a number as `random_state` all of Crowd-Kit's restarts are one and the same, so one is
    made here; give a `numpy.random.RandomState` for starts that differ.
    """

    n_restarts: int = 10
    n_iter: int = 50
    method: str = "vb"
    smoothing: float = 0.1
    """Without effect, as in Crowd-Kit: 0.01 over the number of classes is added to each count."""
    default_noise: float = 0.5
    alpha: float = 0.5
    beta: float = 0.5
    random_state: int | np.random.RandomState | np.random.Generator | None = 0
    verbose: int = 0
    spamming_: Floats = field(init=False, repr=False)
    """(K, 2): P(a worker spams), P(they know the truth); workers in order of appearance."""
    thetas_: Floats = field(init=False, repr=False)
    """(K, C): what a worker says when spamming; labels in order of appearance."""
    theta_priors_: Floats | None = field(init=False, repr=False)
    strategy_priors_: Floats | None = field(init=False, repr=False)
    smoothing_: float = field(init=False, repr=False)

    def fit(self, data: pd.DataFrame) -> Self:
        """Learn by variational Bayes or maximum likelihood from the columns task, worker, label."""
        table = read_table(data, sort_classes=False)
        labels, shape = table.labels, (len(table.workers), len(table.classes))
        self.smoothing_ = mace.SMOOTHING / max(shape[1], 1)
        self.theta_priors_ = self.strategy_priors_ = None
        how = mace.log_shares(self.smoothing_)
        if self.method == "vb":
            self.theta_priors_ = np.tile([self.alpha, self.beta], (shape[0], 1))
            self.strategy_priors_ = np.full(shape, mace.STRATEGY_PRIOR)
            how = mace.variational(np.array([self.alpha, self.beta]), mace.STRATEGY_PRIOR)
        best, highest = mace.Params(np.zeros((0, 2)), np.zeros((0, 0))), -np.inf
        for _ in range(1 if self._is_number() else self.n_restarts):
            params = mace.Params(self._draw((shape[0], 2)), self._draw(shape))
            for found in islice(mace.rounds(labels, params, how), self.n_iter):
                params = found.params
            evidence = float(mace.expect(params, labels)[1].sum())
            if evidence > highest:
                best, highest = params, evidence
        self.spamming_, self.thetas_ = np.exp(best.log_spamming), np.exp(best.log_strategy)
        self._answer(mace.expect(best, labels)[0], table.tasks, table.classes.rename(None))
        return self

    def _is_number(self) -> bool:
        return isinstance(self.random_state, int | np.integer)

    def _draw(self, size: tuple[int, int]) -> Floats:
        state: Any = self.random_state
        if state is None or self._is_number():
            state = np.random.RandomState(state)
        drawn = 1 + (1 + self.default_noise) * state.uniform(size=size)
        return np.asarray(np.log(drawn / drawn.sum(axis=1, keepdims=True)))


def _lower_bound(probs: Floats, reported: float, labels: Incidence) -> float:
    """Crowd-Kit's bound per label: the class prior of an item is counted once per label."""
    often = np.bincount(labels.item, minlength=labels.n_items) @ probs
    prior = np.maximum(probs.mean(axis=0), EPSILON)
    probs = np.maximum(probs, EPSILON)
    return float(reported + often @ np.log(prior) - (probs * np.log(probs)).sum()) / len(
        labels.item
    )


def _is_enough(history: list[float], bound: float, tolerance: float) -> bool:
    """Write the bound down, and tell whether it rose by less than the tolerance."""
    history.append(bound)
    return len(history) > 1 and history[-1] - history[-2] < tolerance


def _shares(votes: Floats) -> Floats:
    return np.asarray(votes / votes.sum(axis=1, keepdims=True))


# Crowd-Kit's tables as integers, and back: column by column, without a loop over rows.


def read_table(
    data: pd.DataFrame,
    true_labels: pd.Series | None = None,
    *,
    classes: pd.Index | None = None,
    sort_classes: bool | None = None,
    sort_tasks: bool | None = False,
    weight: str | None = None,
) -> Table:
    """Number what occurs in the columns task, worker, label.

    Parameters
    ----------
    true_labels
        The truth of some tasks: what nobody said is a class too, after the others.
    classes
        All classes there are; None takes those that occur.
    sort_classes, sort_tasks
        In their natural order, or else as they appear; None is as pandas counts them.
    weight
        The column of the labels' weights; None is one each.
    """
    absent = [column for column in COLUMNS if column not in data.columns]
    if absent:
        raise LabelError(f"The table must have the columns {COLUMNS}. It lacks {absent}.")
    numbered = [pd.factorize(data[column]) for column in COLUMNS]
    for column, (codes, _) in zip(COLUMNS, numbered, strict=True):
        if (codes < 0).any():
            raise LabelError(
                f"{(codes < 0).sum()} rows have no {column}. Remove them, or fill the {column} in."
            )
    (item, tasks), (worker, workers), (label, said) = numbered
    if _counts_in_order() if sort_tasks is None else sort_tasks:
        item, tasks = _put_in_order(item, tasks)
    if classes is not None:
        classes = classes.take(natural_order(classes))
        label = classes.get_indexer(said)[label]
        if (label < 0).any():
            unknown = said.difference(classes).tolist()
            raise LabelError(f"The labels {unknown} are not in `labels_priors`. Add them to it.")
    elif _counts_in_order() if sort_classes is None else sort_classes:
        label, classes = _put_in_order(label, said)
    else:
        classes = said
    if true_labels is not None:
        golden = pd.Index(true_labels.dropna().unique())
        classes = classes.append(golden[~golden.isin(classes)])
    labels = incidence(
        item,
        worker,
        label,
        None if weight is None else data[weight].to_numpy(np.float64),
        n_items=len(tasks),
        n_workers=len(workers),
        n_classes=len(classes),
    )
    return Table(labels, tasks.rename("task"), workers.rename("worker"), classes.rename("label"))


@cache
def _counts_in_order() -> bool:
    """Tell whether pandas sorts what it counts; from version 3 on it does not.

    Crowd-Kit's vote counts so. Its order of the classes decides ties, there and in Dawid–Skene.
    """
    counted = pd.DataFrame({"task": [1, 0], "label": [1, 0]}).value_counts().unstack("label")
    return counted.columns.is_monotonic_increasing


def _put_in_order(codes: Codes, index: pd.Index) -> tuple[Codes, pd.Index]:
    order = natural_order(index)
    place = np.empty(len(order), np.intp)
    place[order] = np.arange(len(order))
    return place[codes], index.take(order)


def natural_order(index: pd.Index) -> Codes:
    """The natural order; that of appearance where text and numbers are mixed."""
    try:
        return np.asarray(index.argsort())
    except TypeError:
        return np.arange(len(index))


def read_gold(true_labels: pd.Series | None, table: Table) -> dawid_skene.Gold | None:
    """The truth of the tasks in the table; others are passed over."""
    if true_labels is None:
        return None
    known = true_labels.dropna()
    item = table.tasks.get_indexer(known.index)
    truth = table.classes.get_indexer(pd.Index(known))
    return dawid_skene.Gold(item[item >= 0], truth[item >= 0])


def read_prior_mean(given: pd.Series | None, index: pd.Index, name: str) -> Floats:
    """A mean for each worker or task, in the order of `index`; 1 for all where none is given."""
    if given is None:
        return np.asarray(1.0)
    values = given.reindex(index).to_numpy(np.float64)
    if np.isnan(values).any():
        missing = index[np.isnan(values)].tolist()
        raise LabelError(f"`{name}` of GLAD must name every {index.name}. It lacks {missing[:5]}.")
    return values


def said_cells(labels: Incidence) -> NDArray[np.bool_]:
    """Which labels each worker gave, (P, 1, C)."""
    given = np.bincount(labels.cell, minlength=labels.n_workers * labels.n_classes) > 0
    return np.asarray(given.reshape(labels.n_workers, 1, labels.n_classes))


def initial_confusion(
    given: pd.DataFrame,
    strategy: str,
    counts: Floats,
    said: NDArray[np.bool_],
    table: Table,
) -> Floats:
    """The matrices (P, C, C) of the first round, from what is `given` and the soft counts."""
    if strategy not in ("assign", "addition"):
        raise StateError(
            '`initial_error_strategy` of DawidSkene must be "assign" or "addition". '
            f"Got {strategy!r}."
        )
    if list(given.index.names) != ["worker", "label"]:
        raise LabelError(
            "The index of `initial_error` must have the names worker and label. "
            f"Got {list(given.index.names)}."
        )
    worker = table.workers.get_indexer(given.index.get_level_values("worker"))
    label = table.classes.get_indexer(given.index.get_level_values("label"))
    values = given.reindex(columns=table.classes).fillna(0).to_numpy(np.float64)  # rows × truth
    inside, outside = (worker >= 0) & (label >= 0), (worker >= 0) & (label < 0)
    added, there = np.zeros_like(counts), np.zeros_like(said)
    added[worker[inside], :, label[inside]] = values[inside]
    there[worker[inside], 0, label[inside]] = True
    if strategy == "assign":
        if (said & ~there).any():
            lacking = (said & ~there).any(axis=(1, 2)).sum()
            raise LabelError(
                "`initial_error` must have a row for each label of each worker when it is "
                f"assigned. It lacks rows of {lacking} workers; add them, or choose addition."
            )
        sums = given.groupby(level="worker", sort=False).sum()
        if given.le(1).all(axis=None) and not np.allclose(sums, 1):
            raise LabelError(
                "The probabilities in `initial_error` must add up to 1 for each worker and truth."
            )
        counts, said = np.zeros_like(counts), there
    cells = np.where(said | there, np.maximum(counts + added, EPSILON), NEVER)
    total = cells.sum(axis=2)
    # A label that occurs only there has its share of the worker's matrix all the same.
    np.add.at(total, worker[outside], np.maximum(values[outside], EPSILON))
    return np.asarray(cells / total[:, :, None])


def errors_table(confusion: Floats, table: Table) -> pd.DataFrame:
    """Matrices (P, C, C) as Crowd-Kit lays them out: worker and label as they appear × truth."""
    worker, label = np.divmod(pd.unique(table.labels.cell), len(table.classes))
    index = pd.MultiIndex.from_arrays([table.workers.take(worker), table.classes.take(label)])
    columns = pd.Index([*COLUMNS[1:], *table.classes])[2:]  # of the type a table's columns have
    return pd.DataFrame(confusion[worker, :, label], index, columns)
