"""The report on a jury: how many judges it counts for, who errs with whom, what the order does.

The mathematics is in `analysis/jury.py`; here are the judges' ids and attributes, and the tables.
"""

from __future__ import annotations  # those that name pandas would import it

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields
from html import escape
from itertools import combinations
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.ingest.chunks import Chunk
from labelquorum.ingest.labels import MISSING
from labelquorum.ingest.worker_attributes import Attributes
from labelquorum.learn.analysis.intervals import wilson
from labelquorum.learn.analysis.jury import (
    MIN_SHARED_TASKS,
    Correlations,
    effective_number,
    error_correlations,
    first_shown,
    found_groups,
    order_effect,
)
from labelquorum.learn.lazy import pd
from labelquorum.learn.reports import MAX_SHOWN_ROWS, id_index

__all__ = ["MIN_GOLD_TASKS", "Jury", "jury_report"]

MIN_GOLD_TASKS = 20
"""Gold tasks that two or more judges must have labelled for errors to be counted by them; and half
of the pairs that can be compared must share enough of them."""

MIN_JUDGE_GOLD = 10
"""Gold tasks a judge must have labelled for their reliability to be counted, not modelled."""

NAMED = 3
"""Judges of a group found by errors that the sentence names."""

MAX_ORDER_PAIRS = 10_000
"""Pairs of judges whose orders are compared, those that share most tasks: 500 judges of one model
in each of two orders would be 250,000 rows of 300 bytes."""

JUDGES = ("labels", "reliability", "low", "high", "by", *Attributes._fields)
GROUPS = (
    "group",
    "by",
    "judges",
    "correlation",
    "low",
    "high",
    "excess",
    "excess_low",
    "effective",
)
ORDERS = (
    *("worker", "other", "order", "other_order", "tasks", "flips", "flips_low", "flips_high"),
    *("label", "shift", "low", "high", "first_shown"),
)


@dataclass(frozen=True)
class Jury:
    """What `jury()` gives; as text it is a few sentences."""

    n_judges: int
    """Workers with labels on the open tasks, of those compared."""
    effective: float
    """k / (1 + (k − 1) ρ): how many judges with independent errors count for as much; NaN where
    errors cannot be compared."""
    low: float
    high: float
    """Between which bounds it is known, by the jackknife over tasks."""
    correlation: float
    """ρ, the mean correlation of the errors of two judges."""
    correlation_low: float
    correlation_high: float
    reference: Literal["gold", "consensus"]
    """What a judge is wrong by: given true labels, or the consensus with its probabilities. Where
    these are too sure, the effective number is too large: what all judges get wrong together is
    not seen."""
    tasks: int
    """Tasks on which errors were compared."""
    gold_tasks: int
    """Open tasks whose truth was given."""
    judges: pd.DataFrame
    """Index worker: labels, reliability, low, high, by ("gold": the share right; "model": the
    skill the model infers), worker_kind, model, prompt, order."""
    groups: pd.DataFrame
    """group, by ("model": its attribute; "errors": found), judges (their ids), correlation, low,
    high (within the group), excess, excess_low (above that with judges outside), effective; the
    largest excess first. They err together beyond the rest where `excess_low` is above 0."""
    order_effects: pd.DataFrame
    """One row per judge that was asked in two orders: worker, other, order, other_order, tasks,
    flips, flips_low, flips_high (the share of tasks with another verdict), label, shift, low, high
    (how much more often the label is said in `order`), first_shown (whether that is the answer
    shown first there; False where the orders do not tell). Of more than 10,000, those that share
    most tasks."""
    left_out: int
    """Workers with fewer labels, who are not in the report."""
    level: float

    def _repr_html_(self) -> str:
        tables = (self.judges, self.groups, self.order_effects)
        shown = [one.to_html(max_rows=MAX_SHOWN_ROWS) for one in tables if len(one)]
        return "".join([f"<p>{escape(str(self))}</p>", *shown])

    def to_dict(self) -> dict[str, Any]:
        """Everything as values JSON can hold, with the sentences as `text`; None for NaN."""
        tables = ("judges", "groups", "order_effects")
        plain = {
            one.name: _plain(getattr(self, one.name))
            for one in fields(self)
            if one.name not in tables
        }
        frames = self.judges.reset_index(), self.groups, self.order_effects
        rows = {name: _rows(frame) for name, frame in zip(tables, frames, strict=True)}
        return {"text": str(self), **plain, **rows}

    def __str__(self) -> str:
        return " ".join([self._counted(), *self._grouped(), *self._ordered()])

    def _counted(self) -> str:
        judges = f"{self.n_judges:,} judge{'s' * (self.n_judges != 1)}"
        if self.n_judges < 2:
            return f"{judges}: a jury has two or more."
        if np.isnan(self.effective):
            return f"{judges}: they share too few tasks, or differ too rarely, to compare errors."
        text = f"{judges} count as {self.effective:.1f} (ρ = {self.correlation:.2f}"
        if not np.isnan(self.low):
            text += f"; {self.level * 100:g} % interval {self.low:.1f} to {self.high:.1f}"
        if self.reference == "gold":
            return f"{text}), by their errors on {self.tasks:,} gold tasks."
        needed = f"{MIN_GOLD_TASKS} gold tasks would count real errors"
        if self.gold_tasks >= MIN_GOLD_TASKS:
            needed = f"the judges share too few of the {self.gold_tasks:,} gold tasks"
        elif self.gold_tasks:
            needed += f", {self.gold_tasks:,} {'is' if self.gold_tasks == 1 else 'are'} there"
        return (
            f"{text}), by their errors against the consensus on {self.tasks:,} tasks. Where that "
            f"consensus errs, so does this: {needed}."
        )

    def _grouped(self) -> list[str]:
        together = self.groups[self.groups["excess_low"] > 0]
        if together.empty:
            return []
        top = together.iloc[0]
        others = len(together) - 1
        more = f"; so do the judges of {others} other group{'s' * (others > 1)}" if others else ""
        n_judges = len(top["judges"])
        who = f"The {n_judges} judges of {top['group']}"
        if top["by"] == "errors":  # the number of such a group does not say who is in it
            some = [str(judge) for judge in top["judges"][:NAMED]]
            rest = f"{n_judges - NAMED:,} more" if n_judges > NAMED else some.pop()
            who = f"{', '.join(some)} and {rest}"
        return [
            f"{who} err together (ρ = {top['correlation']:.2f}) and count as "
            f"{top['effective']:.1f}{more}."
        ]

    def _ordered(self) -> list[str]:
        moved = self.order_effects[
            (self.order_effects["low"] > 0) | (self.order_effects["high"] < 0)
        ]
        if self.order_effects.empty:
            return []
        flips = self.order_effects["flips"]
        text = (
            f"The order of the answers flips {flips.mean():.0%} of the verdicts on average, "
            f"{flips.max():.0%} of those of {self.order_effects['worker'].iloc[0]}"
        )
        return [f"{text}; {len(moved):,} of {len(flips):,} judges lean one way."]


def jury_report(
    chunk: Chunk,
    probs: Floats,
    gold: NDArray[np.int32],
    workers: NDArray[np.intp],
    roster: tuple[Sequence[Hashable], Sequence[Hashable], dict[Hashable, Attributes]],
    skills: Floats,
    level: float,
) -> Jury:
    """Make the report of these workers, by index.

    Parameters
    ----------
    chunk
        Labels of the open tasks, one row per worker and task.
    probs
        The consensus on each task, (N, C).
    gold
        The true class of each task, or MISSING, (N,).
    roster
        The ids of workers, the classes, and what is known of workers.
    skills
        How often each of the workers is right by the model, and its bounds, (P, 3).
    """
    ids, classes, attributes = roster
    place = np.full(chunk.n_workers, -1, np.intp)
    place[workers] = np.arange(len(workers))
    rows = np.flatnonzero((place[chunk.worker] >= 0) & (chunk.weight > 0))
    item, judge, label = chunk.item[rows], place[chunk.worker[rows]], chunk.label[rows]
    said = np.full((chunk.n_items, len(workers)), MISSING, np.int32)
    said[item, judge] = label
    known = [attributes.get(ids[k], Attributes()) for k in workers.tolist()]
    names = [ids[k] for k in workers.tolist()]

    has_gold = gold != MISSING
    on_gold = np.where(said[has_gold] == MISSING, np.nan, said[has_gold] != gold[has_gold, None])
    reference: Literal["gold", "consensus"] = "consensus"
    errors = np.full(said.shape, np.nan)
    errors[item, judge] = 1 - probs[item, label]
    errors[has_gold] = on_gold
    several = (said != MISSING).sum(axis=1) > 1
    errors = errors[several]
    by_truth, found = on_gold[(said[has_gold] != MISSING).sum(axis=1) > 1], None
    # A few pairs of a sparse crowd do not stand for all of them.
    if (
        len(by_truth) >= MIN_GOLD_TASKS
        and _n_comparable(by_truth) >= _n_comparable(errors) / 2
        and np.isfinite((counted := _compared(by_truth, known, level))[0].within[0])
    ):
        reference, errors, found = "gold", by_truth, counted
    correlations, groups = found or _compared(errors, known, level, said[several])
    rho = (correlations.within[0], correlations.within_low[0], correlations.within_high[0])
    n_judges = len(workers)
    effective, high, low = (effective_number(n_judges, float(value)) for value in rho)
    others = np.unique(chunk.worker[(place[chunk.worker] < 0) & (chunk.weight > 0)])
    return Jury(
        n_judges=n_judges,
        effective=effective if np.isfinite(rho[0]) else np.nan,
        low=low if np.isfinite(rho[2]) else np.nan,
        high=high if np.isfinite(rho[1]) else np.nan,
        correlation=float(rho[0]),
        correlation_low=float(rho[1]),
        correlation_high=float(rho[2]),
        reference=reference,
        tasks=len(errors),
        gold_tasks=int(has_gold.sum()),
        judges=_judge_table(
            names, known, np.bincount(judge, minlength=n_judges), on_gold, skills, level
        ),
        groups=_group_table(groups, correlations, names),
        order_effects=_order_table(said, names, known, classes, level),
        left_out=len(others),
        level=level,
    )


_Group = tuple[str, str, NDArray[np.intp]]  # name, by, judges


def _compared(
    errors: Floats,
    known: Sequence[Attributes],
    level: float,
    said: NDArray[np.int32] | None = None,
) -> tuple[Correlations, list[_Group]]:
    """The correlations of errors, and the groups they are reported for."""
    by_model: dict[str, list[int]] = {}
    for k, one in enumerate(known):
        if one.model is not None:
            by_model.setdefault(one.model, []).append(k)
    groups: list[_Group] = [
        (model, "model", np.array(some, np.intp))
        for model, some in by_model.items()
        if len(some) > 1
    ]
    if groups:
        members = [some for _, _, some in groups]
        return error_correlations(errors, members, level, said), groups
    found = error_correlations(errors, found_groups, level, said)
    return found, [(f"group {n}", "errors", some) for n, some in enumerate(found.groups, 1)]


def _n_comparable(errors: Floats) -> int:
    """The number of pairs of judges that share enough tasks."""
    seen = np.isfinite(errors).astype(np.float64)
    return int((seen.T @ seen >= MIN_SHARED_TASKS).sum())


def _judge_table(
    names: Sequence[Hashable],
    known: Sequence[Attributes],
    labels: NDArray[np.intp],
    on_gold: Floats,
    skills: Floats,
    level: float,
) -> pd.DataFrame:
    seen = np.isfinite(on_gold).sum(axis=0)
    wrong = np.nansum(on_gold, axis=0)
    columns: dict[str, Any] = {"labels": labels}
    table, by = skills.copy(), ["model"] * len(names)
    for k in np.flatnonzero(seen >= MIN_JUDGE_GOLD).tolist():
        right = 1 - float(wrong[k]) / int(seen[k])
        table[k] = right, *wilson(right, int(seen[k]), level)
        by[k] = "gold"
    columns |= dict(zip(("reliability", "low", "high"), table.T, strict=True))
    columns["by"] = by
    for role in Attributes._fields:
        columns[role] = pd.Series([getattr(one, role) for one in known], dtype=object).to_numpy()
    return pd.DataFrame(columns, index=id_index(names, "worker"), columns=list(JUDGES))


def _group_table(
    groups: Sequence[_Group], found: Correlations, names: Sequence[Hashable]
) -> pd.DataFrame:
    rows = []
    for g, (name, by, members) in enumerate(groups, 1):
        within = (found.within[g], found.within_low[g], found.within_high[g])
        beyond = (found.excess[g], found.excess_low[g])
        count = effective_number(len(members), within[0]) if np.isfinite(within[0]) else np.nan
        rows.append((name, by, [names[k] for k in members.tolist()], *within, *beyond, count))
    table = pd.DataFrame(rows, columns=list(GROUPS))
    return table.sort_values("excess", ascending=False, kind="stable", ignore_index=True)


def _order_table(
    said: NDArray[np.int32],
    names: Sequence[Hashable],
    known: Sequence[Attributes],
    classes: Sequence[Hashable],
    level: float,
) -> pd.DataFrame:
    """Judges with one model and prompt in two orders; the most flips first."""
    asked: dict[tuple[str, str | None], list[int]] = {}
    for k, judge in enumerate(known):
        if judge.model is not None and judge.order is not None:
            asked.setdefault((judge.model, judge.prompt), []).append(k)
    pairs = [
        (one, two)
        for same in asked.values()
        for one, two in combinations(sorted(same, key=lambda k: str(known[k].order)), 2)
        if known[one].order != known[two].order
    ]
    if len(pairs) > MAX_ORDER_PAIRS:
        seen = (said != MISSING).astype(np.float32)
        shared = (seen.T @ seen)[tuple(np.transpose(pairs))]
        most = np.argsort(-shared, kind="stable")[:MAX_ORDER_PAIRS]
        pairs = [pairs[n] for n in np.sort(most).tolist()]
    rows, by_judge = [], np.ascontiguousarray(said.T).astype(np.intp)
    for one, two in pairs:
        order, other = str(known[one].order), str(known[two].order)
        verdicts = by_judge[[one, two]]
        verdicts = verdicts[:, (verdicts != MISSING).all(axis=0)]
        first = first_shown(order, other, classes)
        effect = order_effect(verdicts[0], verdicts[1], len(classes), first, level)
        if effect is not None:
            rows.append((names[one], names[two], order, other, *effect, first is not None))
    table = pd.DataFrame(rows, columns=list(ORDERS))
    table["label"] = pd.Series([classes[c] for c in table["label"]], dtype=object)
    return table.sort_values("flips", ascending=False, kind="stable", ignore_index=True)


def _rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    columns = {str(name): table[name].tolist() for name in table.columns}
    values = zip(*columns.values(), strict=True)
    return [dict(zip(columns, map(_plain, row), strict=True)) for row in values]


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not np.isfinite(value) else value
