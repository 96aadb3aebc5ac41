"""Crowd-Kit's metrics of answers and workers."""

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import pandas as pd

from labelquorum._types import Floats
from labelquorum.compat.crowdkit.tables import (
    MissingColumnError,
    Table,
    read_table,
    require_scipy,
)
from labelquorum.compat.crowdkit.votes import MajorityVote, accuracy
from labelquorum.errors import LabelError, StateError


class MissingSkillError(LabelError, AssertionError):
    """Workers without a skill: an AssertionError to programs written for Crowd-Kit."""


def consistency(
    answers: pd.DataFrame,
    workers_skills: pd.Series | None = None,
    aggregator: Any = None,
    by_task: bool = False,
) -> Any:
    """The posterior probability of a task's answer, given its labels and the workers' skills.

    A worker says the truth with the probability of their skill, or else any other class.

    Parameters
    ----------
    answers
        Columns task, worker, label.
    workers_skills
        Indexed by worker; unless given, those of the aggregator.
    aggregator
        What answers the tasks; a `MajorityVote` unless given.
    by_task
        Give a Series of all tasks, not their mean.
    """
    table = read_table(answers, sort_tasks=True, sort_classes=False)
    aggregator = MajorityVote() if aggregator is None else aggregator
    aggregated = aggregator.fit_predict(answers)
    skills = _skills_of(aggregator) if workers_skills is None else workers_skills
    likelihood = _said(table, skills).groupby(table.labels.item).prod().to_numpy()
    truth = table.classes.get_indexer(pd.Index(aggregated.reindex(table.tasks)))
    total = likelihood.sum(axis=1)
    agreed = likelihood[np.arange(len(truth)), truth]
    share = np.divide(agreed, total, out=np.zeros_like(total), where=total != 0)
    shares = pd.Series(share, index=table.tasks)
    return shares if by_task else float(shares.mean())


def uncertainty(
    answers: pd.DataFrame,
    workers_skills: pd.Series | None = None,
    aggregator: Any = None,
    compute_by: str = "task",
    aggregate: bool = True,
) -> Any:
    """The entropy of the labels of a task or of a worker, in nats.

    Parameters
    ----------
    answers
        Columns task, worker, label.
    workers_skills
        Indexed by worker; unless given, those of the aggregator, or 1 for all without one.
    aggregator
        What learns the skills.
    compute_by
        "task" or "worker".
    aggregate
        Give the mean, not a Series of all.
    """
    table = read_table(answers, sort_tasks=True, sort_classes=False)
    if workers_skills is None and aggregator is not None:
        workers_skills = _skills_of(aggregator.fit(answers))
    if workers_skills is None:
        workers_skills = pd.Series(1.0, index=table.workers)
    groups = {
        "task": (table.labels.item, table.tasks),
        "worker": (table.labels.worker, table.workers),
    }
    if compute_by not in groups:
        raise MissingColumnError(f'`compute_by` must be "task" or "worker". Got {compute_by!r}.')
    index, names = groups[compute_by]
    said = _said(table, workers_skills).groupby(index).sum().to_numpy()
    entropy = require_scipy("scipy.stats").entropy
    found = pd.Series(entropy(said, axis=1), index=names).sort_index()
    return float(found.mean()) if aggregate else found


def accuracy_on_aggregates(
    answers: pd.DataFrame,
    aggregator: Any = None,
    aggregates: pd.Series | None = None,
    by: str | None = None,
) -> Any:
    """The share of labels that are their task's answer.

    Parameters
    ----------
    answers
        Columns task, worker, label.
    aggregator
        What answers the tasks; a `MajorityVote` unless given.
    aggregates
        The answers, indexed by task; unless given, those of the aggregator.
    by
        Give a Series of each "worker" or "task".
    """
    if aggregates is None:
        aggregates = (MajorityVote() if aggregator is None else aggregator).fit_predict(answers)
    return accuracy(answers, aggregates, by)


def alpha_krippendorff(
    answers: pd.DataFrame, distance: Callable[[Any, Any], float] | None = None
) -> float:
    """Krippendorff's alpha: 1 is full agreement, 0 is chance.

    Parameters
    ----------
    answers
        Columns task, worker, label.
    distance
        Of two labels, from 0 to 1; unless given, 0 of equal labels and 1 of others.

    Examples
    --------
    >>> rows = {"task": [1, 1, 2, 2, 3, 3], "worker": [1, 2] * 3, "label": [0, 0, 4, 4, 0, 4]}
    >>> round(alpha_krippendorff(pd.DataFrame(rows)), 3)
    0.444
    >>> round(alpha_krippendorff(pd.DataFrame(rows), lambda one, other: abs(one - other) / 4), 3)
    0.444
    """
    table = read_table(answers, sort_classes=False)
    labels, classes = table.labels, list(table.classes)
    apart = _distances(classes, distance)
    counts = np.zeros((labels.n_items, labels.n_classes))
    np.add.at(counts, (labels.item, labels.label), 1)
    counts = counts[counts.sum(axis=1) > 1]  # a single label meets no other
    if not len(counts):
        raise LabelError("No task has two labels, so there is no agreement. Give more labels.")
    size, whole = counts.sum(axis=1), counts.sum(axis=0)
    total = whole.sum()
    observed = float((((counts @ apart) * counts).sum(axis=1) / (size - 1)).sum() / total)
    expected = float(whole @ apart @ whole) / (total * (total - 1))
    return 1.0 if expected == 0 else float(1.0 - observed / expected)


def _distances(classes: list[Hashable], distance: Callable[[Any, Any], float] | None) -> Floats:
    if distance is None:
        return 1.0 - np.eye(len(classes))
    return np.array([[distance(one, other) for other in classes] for one in classes], np.float64)


def _said(table: Table, skills: pd.Series) -> pd.DataFrame:
    """P(label | truth) of each label (B, C): the worker's skill, or a share of the rest."""
    known = skills.reindex(table.workers).to_numpy(np.float64)
    if np.isnan(known).any():
        missing = table.workers[np.isnan(known)].tolist()
        raise MissingSkillError(
            f"`workers_skills` must name every worker. It lacks {missing[:5]}. Add them."
        )
    labels, n_classes = table.labels, len(table.classes)
    skill = known[labels.worker]
    wrong = (1 - skill) / max(n_classes - 1, 1)
    probs = np.repeat(wrong[:, None], n_classes, axis=1)
    probs[np.arange(len(skill)), labels.label] = skill
    return pd.DataFrame(probs)


def _skills_of(aggregator: Any) -> pd.Series:
    if not hasattr(aggregator, "skills_"):
        raise StateError(
            f"{type(aggregator).__name__} has no skills of workers. Give workers_skills."
        )
    skills: pd.Series = aggregator.skills_
    return skills
