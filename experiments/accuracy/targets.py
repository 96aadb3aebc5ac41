"""A target, the figure beside it and whether it is met; means over sets; tables as Markdown.

A verdict follows from the two numbers, before they are rounded. A mean over sets is none as long
as one of its sets has no figure.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from textwrap import fill
from typing import Any, NamedTuple

from cells import Measured, Plan, Summary, standard_error

from labelquorum.evaluation import dataset_info

MET, NOT_MET, NOT_MEASURED = "met", "not met", "not measured"
RANDOM = {"order": "random"}
TITLES = {"vote": "majority vote", "recipe": "`bila:recipe`", "bila": "`bila`", "oracle": "oracle"}
Value = float | None


class Target(NamedTuple):
    """What is wanted, what was measured, and the most that is allowed."""

    promise: str
    measured: Value
    limit: float
    form: str = ".2f"
    strictly: bool = False  # less than the limit, not as much
    error: Value = None  # standard error of what was measured, over orders or crowds

    @property
    def verdict(self) -> str:
        if self.measured is None:
            return NOT_MEASURED
        less = self.measured < self.limit or (self.measured == self.limit and not self.strictly)
        return MET if less else NOT_MET

    def to_json(self, part: str) -> dict[str, Any]:
        reply = {"part": part, **self._asdict(), "verdict": self.verdict}
        return {name: value for name, value in reply.items() if name != "form"}

    def line(self) -> list[str]:
        sign = "<" if self.strictly else "≤"
        measured = written(self.measured, self.form)
        if self.measured is not None and self.error is not None:
            measured += f" ± {self.error:.2f}"
        return [self.promise, measured, f"{sign} {self.limit:{self.form}}", marked(self.verdict)]


@dataclass
class Part:
    """A part of the report: its targets, its tables and sentences, and its rows as data."""

    title: str
    targets: list[Target] = field(default_factory=list)
    blocks: list[str] = field(default_factory=list)
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def add(self, name: str, text: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add a table, and keep the figures behind it under a name."""
        self.blocks.append(text)
        self.rows[name] = [dict(row) for row in rows]

    def say(self, text: str) -> None:
        filled = fill(text, 112, break_long_words=False, break_on_hyphens=False)
        self.blocks.append(f"{filled}\n")


TARGET_HEAD = ["target", "measured", "wanted", ""]


def marked(verdict: str) -> str:
    return f"**{verdict}**" if verdict == NOT_MET else verdict


def written(value: Value, form: str = ".2f") -> str:
    return "–" if value is None else f"{round(value, 4) + 0.0:{form}}"  # no -0.0


def plus_minus(values: Sequence[float], form: str = ".2f") -> str:
    """The mean and its standard error."""
    if not values:
        return "–"
    shown = written(fmean(values), form)
    return f"{shown} ± {standard_error(list(values)):.2f}" if len(values) > 1 else shown


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, rule, *lines))


# ── means ────────────────────────────────────────────────────────────────────────────────────


def family(name: str) -> str:
    info = dataset_info(name)
    return info.family if info else name


def over_sets(values: Mapping[str, Value]) -> Value:
    """The plain mean; none if one is missing."""
    known = [value for value in values.values() if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def over_families(values: Mapping[str, Value]) -> Value:
    """The mean over families of the means over their sets."""
    known = by_family(values)
    return fmean(known) if known and None not in values.values() else None


def by_family(values: Mapping[str, Value]) -> list[float]:
    groups: dict[str, list[float]] = {}
    for name, value in values.items():
        if value is not None:
            groups.setdefault(family(name), []).append(value)
    return [fmean(group) for group in groups.values()]


class Scores:
    """What was measured, asked for by part of the plan."""

    def __init__(self, measured: Measured, plan: Plan) -> None:
        self.measured, self.plan = measured, plan

    def runs(self, data: str, method: str, chunk: int = 50, **others: Any) -> Summary | None:
        return self.measured(data, method, chunk, **others)

    def mean(self, data: str, method: str, score: str = "emitted", **others: Any) -> Value:
        runs = self.runs(data, method, **others)
        return None if runs is None else runs.mean(score)

    def means(
        self, names: Iterable[str], method: str, score: str = "emitted", **others: Any
    ) -> dict[str, Value]:
        return {name: self.mean(name, method, score, **{**RANDOM, **others}) for name in names}

    def error(
        self, names: Iterable[str], method: str, score: str = "emitted", **others: Any
    ) -> Value:
        """The standard error over orders of a mean over sets: sets are given, orders drawn."""
        runs = [self.runs(name, method, **{**RANDOM, **others}) for name in names]
        if not runs or any(run is None or len(run.runs) < 2 for run in runs):
            return None
        squares = [standard_error(run.values(score)) ** 2 for run in runs if run is not None]
        return float(sum(squares) ** 0.5 / len(squares))

    def pairs(self, data: str, one: str, other: str, **others: Any) -> list[float]:
        """Differences of two methods on the same orders."""
        return self.differences((data, one, others), (data, other, others))

    def differences(
        self,
        this: tuple[str, str, Mapping[str, Any]],
        that: tuple[str, str, Mapping[str, Any]],
        score: str = "emitted",
    ) -> list[float]:
        """The differences of the one and the other, seed by seed."""
        ours, theirs = (self.runs(data, m, **others) for data, m, others in (this, that))
        if ours is None or theirs is None:
            return []
        shared = [seed for seed in ours.runs if seed in theirs.runs]
        return [ours.runs[seed][score] - theirs.runs[seed][score] for seed in shared]

    def orders(self, names: Iterable[str], method: str, **others: Any) -> str:
        """How many orders there are of each set, in short."""
        counts = {
            name: len(runs.runs) if (runs := self.runs(name, method, **RANDOM, **others)) else 0
            for name in names
        }
        most = max(counts.values(), default=0)
        fewer = [f"{name} {n}" for name, n in counts.items() if n < most]
        return f"{most} ({', '.join(fewer)})" if fewer else str(most)


def less(one: Value, other: Value) -> Value:
    return None if one is None or other is None else one - other


def largest(values: Iterable[Value]) -> Value:
    """The largest; none if one is missing."""
    known = list(values)
    return None if not known or None in known else max(v for v in known if v is not None)


PartMaker = Callable[[Scores], Part]
