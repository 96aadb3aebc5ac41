"""Crowd-Kit's models of workers that are fitted by expectation maximisation."""

from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.compat.crowdkit.tables import (
    COLUMNS,
    Aggregator,
    Table,
    natural_order,
    read_table,
    require_scipy,
)
from labelquorum.errors import LabelError, StateError
from labelquorum.learn.methods import glad, mace, one_coin
from labelquorum.learn.methods._batch import (
    Incidence,
    Indices,
    log_normalise,
    probs_of_labels,
    sum_votes,
)
from labelquorum.learn.methods._cells import (
    Cells,
    Smoothing,
    cells_of,
    find,
    log_joint,
    sweep,
)
from labelquorum.learn.methods._sparse_em import Sparse, em_rounds

EPSILON = 1e-10
"""Crowd-Kit lets no count, prior or probability be smaller."""


@dataclass(eq=False)
class DawidSkene(Aggregator):
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
        cells = cells_of(labels)
        smoothing = Smoothing(
            lambda counts: np.maximum(counts, EPSILON),
            0.0,
            lambda sums: np.maximum(sums, EPSILON * labels.n_items),
        )
        probs, gold = (
            np.asfortranarray(_shares(sum_votes(None, labels))),
            read_gold(true_labels, table),
        )
        if gold is not None:
            probs = gold.correct(probs)
        start = None
        if first is not None and strategy is not None:
            start = initial_columns(first, strategy, probs, cells, table)
        probs = self._iterate(probs, start, cells, smoothing, gold)
        self._answer(np.maximum(probs, EPSILON), table.tasks, table.classes)
        self.priors_ = pd.Series(probs.mean(axis=0), index=table.classes, name="prior")
        order = pd.unique(cells.cell)
        if start is None or self.n_iter:
            columns = np.empty((len(order), labels.n_classes), order="F")
            for c, found in enumerate(sweep(probs, cells, smoothing)):
                np.exp(found.log_said[order], out=columns[:, c])
        else:
            columns = start[order]
        self.errors_ = errors_table(columns, order, cells, table)
        if first is not None and strategy == "assign" and not self.n_iter:
            floor = first.clip(lower=EPSILON)  # nothing was learned: the rows are those given
            self.errors_ = floor / floor.groupby(level="worker").transform("sum")
        return self

    def _iterate(
        self,
        probs: Floats,
        start: Floats | None,
        cells: Cells,
        smoothing: Smoothing,
        gold: "Gold | None",
    ) -> Floats:
        """The probabilities (N, C) after `n_iter` rounds, or when the bound no longer rises."""
        if not self.n_iter:
            return probs
        correct = None if gold is None else gold.correct
        before: Floats | Sparse | None = None
        if start is not None:
            scores, _ = log_joint(probs, cells, smoothing, start)
            probs = log_normalise(scores)[0]
            before = probs = probs if correct is None else correct(probs)
        for found in em_rounds(probs, cells, smoothing, correct):
            # The M step of a round is the end of the round before.
            if before is not None:
                bound = _lower_bound(before, found.reported, cells.labels)
                if _is_enough(self.loss_history_, bound, self.tol):
                    break
                if len(self.loss_history_) == self.n_iter:
                    break
            before = found.probs
        assert before is not None
        return before.dense() if isinstance(before, Sparse) else before


@dataclass(eq=False)
class OneCoinDawidSkene(Aggregator):
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
        cells = cells_of(labels)
        is_right = cells.label[:, None] == np.arange(labels.n_classes)
        columns = np.where(is_right, right[cells.worker, None], wrong[cells.worker, None])
        order = pd.unique(cells.cell)
        self.errors_ = errors_table(columns[order], order, cells, table)
        return self


@dataclass(eq=False)
class GLAD(Aggregator):
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
    prior_labels_: pd.Index = field(init=False, repr=False)
    alphas_priors_mean_: pd.Series = field(init=False, repr=False)
    betas_priors_mean_: pd.Series = field(init=False, repr=False)
    workers_: pd.Index = field(init=False, repr=False)
    tasks_: pd.Index = field(init=False, repr=False)
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
        alphas = read_prior_mean(self.alphas_priors_mean, table.workers, "alphas_priors_mean")
        betas = read_prior_mean(self.betas_priors_mean, table.tasks, "betas_priors_mean")
        self.prior_labels_, self.workers_, self.tasks_ = (
            self.priors_.index,
            table.workers,
            table.tasks,
        )
        self.alphas_priors_mean_ = pd.Series(alphas, index=table.workers)
        self.betas_priors_mean_ = pd.Series(betas, index=table.tasks)
        priors = glad.Priors(
            self.priors_.reindex(table.classes).to_numpy(np.float64), alphas, betas
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
        minimize = require_scipy("scipy.optimize").minimize

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
class MACE(Aggregator):
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
        if state is None:
            state = np.random  # what np.random.seed has set, as in Crowd-Kit
        elif self._is_number():
            state = np.random.RandomState(state)
        drawn = 1 + (1 + self.default_noise) * state.uniform(size=size)
        return np.asarray(np.log(drawn / drawn.sum(axis=1, keepdims=True)))


def _lower_bound(probs: Floats | Sparse, reported: float, labels: Incidence) -> float:
    """Crowd-Kit's bound per label: the class prior of an item is counted once per label."""
    n_labels = labels.total(labels.item, None, labels.n_items)
    if isinstance(probs, Sparse):
        item, c = np.divmod(probs.pair, labels.n_classes)
        often = np.zeros(labels.n_classes)
        often += np.bincount(c, n_labels[item] * probs.probs, labels.n_classes)
        prior = np.bincount(c, probs.probs, labels.n_classes) / labels.n_items
        values, n_zeros = probs.probs, labels.n_items * labels.n_classes - len(c)
    else:
        often, prior, values, n_zeros = n_labels @ probs, probs.mean(axis=0), probs, 0
    values = np.maximum(values, EPSILON)
    entropy = -(values * np.log(values)).sum() - n_zeros * EPSILON * np.log(EPSILON)
    bound = reported + often @ np.log(np.maximum(prior, EPSILON)) + entropy
    return float(bound) / len(labels.item)


def _is_enough(history: list[float], bound: float, tolerance: float) -> bool:
    """Write the bound down, and tell whether it rose by less than the tolerance."""
    history.append(bound)
    return len(history) > 1 and history[-1] - history[-2] < tolerance


def _shares(votes: Floats) -> Floats:
    return np.asarray(votes / votes.sum(axis=1, keepdims=True))


class Gold(NamedTuple):
    """Items whose truth is known beforehand."""

    item: NDArray[np.intp]
    truth: NDArray[np.intp]

    def correct(self, probs: Floats) -> Floats:
        """Put certainty where the truth is known."""
        probs[self.item] = 0
        probs[self.item, self.truth] = 1
        return probs


def read_gold(true_labels: pd.Series | None, table: Table) -> Gold | None:
    """The truth of the tasks in the table; others are passed over."""
    if true_labels is None:
        return None
    known = true_labels.dropna()
    item = table.tasks.get_indexer(known.index)
    truth = table.classes.get_indexer(pd.Index(known))
    return Gold(item[item >= 0], truth[item >= 0])


def read_prior_mean(given: pd.Series | None, index: pd.Index, name: str) -> Floats:
    """A mean for each worker or task, in the order of `index`; 1 for all where none is given."""
    if given is None:
        return np.ones(len(index))
    values = given.reindex(index).to_numpy(np.float64)
    if np.isnan(values).any():
        missing = index[np.isnan(values)].tolist()
        raise LabelError(f"`{name}` of GLAD must name every {index.name}. It lacks {missing[:5]}.")
    return values


def initial_columns(
    given: pd.DataFrame, strategy: str, probs: Floats, cells: Cells, table: Table
) -> Floats:
    """The columns ψ_k[·, z] of the first round, (S, C), from what is `given` and soft counts."""
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
    n_cells, n_classes = len(cells.worker), len(table.classes)
    worker = table.workers.get_indexer(given.index.get_level_values("worker"))
    label = table.classes.get_indexer(given.index.get_level_values("label"))
    values = given.reindex(columns=table.classes).fillna(0).to_numpy(np.float64)  # rows × truth
    cell = np.where((worker >= 0) & (label >= 0), find(cells, worker, label), n_cells)
    occurs = cell < n_cells
    added = np.zeros((n_cells, n_classes))
    added[cell[occurs]] = values[occurs]
    if strategy == "assign":
        lacking = np.setdiff1d(np.arange(n_cells), cell[occurs])
        if len(lacking):
            n_workers = len(np.unique(cells.worker[lacking]))
            raise LabelError(
                "`initial_error` must have a row for each label of each worker when it is "
                f"assigned. It lacks rows of {n_workers} workers; add them, or choose addition."
            )
        sums = given.groupby(level="worker", sort=False).sum()
        if given.le(1).all(axis=None) and not np.allclose(sums, 1):
            raise LabelError(
                "The sum of each worker's error matrix in initial_error should be 1.0, for each "
                "truth. Divide each by its sum, or give counts."
            )
    else:
        row = cells.labels
        for c in range(n_classes):
            added[:, c] += row.total(cells.cell, probs[:, c].take(row.item), n_cells)
    columns = np.maximum(added, EPSILON)
    total = np.zeros((len(table.workers), n_classes))
    np.add.at(total, cells.worker, columns)
    # A label that occurs only there has its share of the worker's matrix all the same.
    only_there = (worker >= 0) & ~occurs
    np.add.at(total, worker[only_there], np.maximum(values[only_there], EPSILON))
    return np.asarray(columns / total[cells.worker])


def errors_table(columns: Floats, order: Indices, cells: Cells, table: Table) -> pd.DataFrame:
    """Columns (S, C) of cells in the order they appear, as in Crowd-Kit: worker, label × truth."""
    index = pd.MultiIndex.from_arrays(
        [table.workers.take(cells.worker[order]), table.classes.take(cells.label[order])]
    )
    truths = pd.Index([*COLUMNS[1:], *table.classes])[2:]  # of the type a table's columns have
    return pd.DataFrame(columns, index, truths, copy=False)
