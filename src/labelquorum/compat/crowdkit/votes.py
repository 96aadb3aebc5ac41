"""Votes of Crowd-Kit: plain, and weighted by what is known of the workers."""

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import pandas as pd

from labelquorum._types import Floats
from labelquorum.compat.crowdkit.tables import (
    COLUMNS,
    Aggregator,
    MissingColumnError,
    check_columns,
    read_table,
)
from labelquorum.errors import LabelError, StateError
from labelquorum.learn.methods._batch import Incidence, sum_votes


@dataclass(eq=False)
class MajorityVote(Aggregator):
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
        share = _agreement(votes, _distinct(labels))
        self.skills_ = pd.Series(share, index=table.workers, name="skill").sort_index()
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


class VoteBySkill(Aggregator):
    """A vote weighted by skills that are learned first, perhaps on other tasks."""

    skills_: pd.Series

    @abstractmethod
    def fit(self, data: pd.DataFrame, *more: Any, **named: Any) -> Self:
        """Learn the workers' skills."""

    def predict(self, data: pd.DataFrame) -> pd.Series:
        """Answer tasks by the vote of workers whose skills are known."""
        return self._vote(data).labels_

    def predict_proba(self, data: pd.DataFrame) -> pd.DataFrame:
        """Give each class its share of the skills behind a task's labels."""
        return self._vote(data).probas_

    def fit_predict(self, data: pd.DataFrame, *more: Any, **named: Any) -> pd.Series:
        """Learn as `fit` does, and answer the same tasks."""
        return self.fit(data, *more, **named).predict(data)

    def fit_predict_proba(self, data: pd.DataFrame, *more: Any, **named: Any) -> pd.DataFrame:
        """Learn as `fit` does, and give the probabilities of the same tasks."""
        return self.fit(data, *more, **named).predict_proba(data)

    def _vote(self, data: pd.DataFrame) -> Self:
        if not hasattr(self, "skills_"):
            raise StateError(f"This {type(self).__name__} knows no skills yet. Call fit first.")
        vote = MajorityVote().fit(data, self.skills_)
        self.labels_, self.probas_ = vote.labels_, vote.probas_
        return self


@dataclass(eq=False)
class Wawa(VoteBySkill):
    """Worker agreement with aggregate: a vote weighted by how often workers agree with the vote.

    Examples
    --------
    >>> labels = pd.DataFrame(
    ...     {"task": ["t", "t", "u", "u", "u"], "worker": list("abbcd"), "label": [0, 1, 1, 0, 1]}
    ... )
    >>> Wawa().fit(labels).skills_.to_dict()
    {'a': 1.0, 'b': 0.5, 'c': 0.0, 'd': 1.0}
    """

    skills_: pd.Series = field(init=False, repr=False)
    """How often each worker agrees with the vote."""

    def fit(self, data: pd.DataFrame) -> Self:
        """Count the votes, and how often each worker agrees with them."""
        self.skills_ = MajorityVote().fit(data).skills_
        return self


@dataclass(eq=False)
class ZeroBasedSkill(VoteBySkill):
    """A vote by skills that are moved, from chance on, towards the agreement with that vote."""

    n_iter: int = 100
    lr_init: float = 1.0
    lr_steps_to_reduce: int = 20
    lr_reduce_factor: float = 0.5
    eps: float = 1e-5
    """By how much skills exceed chance at first."""
    skills_: pd.Series = field(init=False, repr=False)

    def fit(self, data: pd.DataFrame) -> Self:
        """Vote `n_iter` times, and move the skills after each.

        The step is `lr_init`, times `lr_reduce_factor` at every `lr_steps_to_reduce`-th vote.
        """
        table = read_table(data, sort_tasks=True, sort_classes=True)
        labels, distinct = table.labels, _distinct(table.labels)
        skills = np.full(labels.n_workers, 1 / max(labels.n_classes, 1) + self.eps)
        rate = self.lr_init
        for step in range(1, self.n_iter + 1 if len(labels.item) else 1):
            if step % self.lr_steps_to_reduce == 0:
                rate *= self.lr_reduce_factor
            votes = sum_votes(None, labels._replace(weight=skills[labels.worker]))
            skills += rate * (_agreement(votes, distinct) - skills)
        self.skills_ = pd.Series(skills, index=table.workers, name="skill").sort_index()
        return self


@dataclass(eq=False)
class GoldMajorityVote(VoteBySkill):
    """A vote weighted by how often workers are right where the truth is known."""

    skills_: pd.Series = field(init=False, repr=False)
    """How often each worker is right."""

    def fit(self, data: pd.DataFrame, true_labels: pd.Series) -> Self:
        """Count how often workers are right.

        Parameters
        ----------
        data
            Columns task, worker, label.
        true_labels
            The truth of some tasks, indexed by task; a task may have several.
        """
        self.skills_ = accuracy(data, true_labels, by="worker").rename("skill")
        return self


def accuracy(
    data: pd.DataFrame, true_labels: pd.Series, by: str | None = None
) -> Any:  # a number, or a Series where `by` names a column
    """The share of distinct labels that are true, of tasks whose truth is known.

    Parameters
    ----------
    data
        Columns task, worker, label.
    true_labels
        Indexed by task; any of several counts.
    by
        Give the share of each worker ("worker") or task ("task").
    """
    check_columns(data)
    if by is not None and by not in COLUMNS:
        raise MissingColumnError(f"`by` must be one of {COLUMNS}. Got {by!r}.")
    truth = pd.Series(true_labels).dropna()
    labels = data[COLUMNS].drop_duplicates()
    labels = labels[labels["task"].isin(truth.index)]
    said = pd.MultiIndex.from_arrays([labels["task"], labels["label"]])
    right = said.isin(pd.MultiIndex.from_arrays([truth.index, truth.array]))
    if by is None:
        return float(right.mean())
    return pd.Series(right, labels.index, dtype=float).groupby(labels[by]).mean()


def _distinct(labels: Incidence) -> Incidence:
    """The labels without repetitions: a label sent twice is no more evidence of skill."""
    row = labels.item * (labels.n_workers * labels.n_classes) + labels.cell
    first = ~pd.Series(row).duplicated().to_numpy()
    return labels._replace(
        item=labels.item[first], worker=labels.worker[first], label=labels.label[first]
    )


def _agreement(votes: Floats, labels: Incidence) -> Floats:
    """How often each worker agrees with the class of most votes (N, C), the first of equals."""
    agrees = np.argmax(votes, axis=1)[labels.item] == labels.label
    right = np.bincount(labels.worker, agrees, labels.n_workers)
    return np.asarray(right / np.bincount(labels.worker, minlength=labels.n_workers))
