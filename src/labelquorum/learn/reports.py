"""Tables: a chunk's answers, an explanation, and the report under cleanlab's column names."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import cache, cached_property
from html import escape
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum.ingest.chunks import Chunk
from labelquorum.ingest.vocabulary import Intake, Note
from labelquorum.learn.aggregator import Aggregation
from labelquorum.learn.analysis.agreement import (
    class_agreement,
    cohen_kappa,
    krippendorff_alpha,
)
from labelquorum.learn.lazy import pd

CHOSEN_GOLD = (
    "They are chosen, not drawn at random: an expected error or a certificate counts their true "
    "labels as random, and does not hold. With gold_sampling='selected' neither uses them."
)
"""What to say of true labels of the tasks that decide a doubt."""

MAX_SHOWN_ROWS = 10
"""Rows of a table that a notebook shows."""

MIN_TAKEN_LABELS = 500
"""Answers from which on each class is converted once; a short list of labels is faster as it is."""

MAX_NAMED, MIN_LOG_ODDS = 3, 0.05
"""Workers that a sentence names on either side, and the least log-odds that it mentions."""


class Report(NamedTuple):
    """What `report()` gives."""

    items: pd.DataFrame
    """Index task: consensus_label, consensus_quality_score, annotator_agreement,
    num_annotations; and group, timestamp (the latest) where labels had them."""
    workers: pd.DataFrame
    """Index worker: annotator_quality, agreement_with_consensus, num_examples_labeled,
    worst_class."""
    krippendorff_alpha: float
    """Agreement beyond chance over the items above, nominal; NaN where nothing can disagree."""
    class_agreement: pd.DataFrame
    """Index label: how often another label of an item agrees with one of that class, plain
    (`agreement`) and beyond chance (`alpha`)."""
    closed_items: int = 0
    """Tasks that were answered and are left out, because their labels are no longer held; of
    131,072 or more, some are forgotten."""
    doubt: str = ""
    """Why answers are votes with low confidence, where the labels do not identify them."""

    def _repr_html_(self) -> str:
        parts = [f"<p>{escape(self.doubt)}</p>"] if self.doubt else []
        parts += [
            f"<p>Krippendorff's alpha {self.krippendorff_alpha:.3f}, {len(self.items):,} tasks, "
            f"{len(self.workers):,} workers</p>"
        ]
        parts += [table.to_html(max_rows=MAX_SHOWN_ROWS) for table in (self.items, self.workers)]
        return "".join([*parts, self.class_agreement.to_html(max_rows=MAX_SHOWN_ROWS)])


class Doubt(NamedTuple):
    """How far it is in doubt which answers are right."""

    in_doubt: bool
    """Whether answers fall back to the vote."""
    expected_error: float
    """Of the latest answers to tasks with ten workers or more, as a share of that of a guess; NaN
    where there are none. The more workers agree, and the fewer tasks, the higher must it be."""
    tasks: int
    """How many such tasks there are."""

    @property
    def says(self) -> str:
        """A sentence for people; empty where nothing is in doubt."""
        if not self.in_doubt:
            return ""
        return (
            f"It is in doubt which answers are right: on {self.tasks:,} tasks with "
            f"ten or more workers, answers would be wrong {self.expected_error:.0%} as "
            "often as guesses, because workers err together. Answers are majority votes with low "
            "confidence until true labels decide it: of tasks drawn at random, or of those that "
            "deciding_tasks() and `labelquorum ask` name."
        )


NO_DOUBT = Doubt(False, float("nan"), 0)


class Agreement(NamedTuple):
    """What `agreement()` gives: worker × worker, the same index and columns in each table."""

    kappa: pd.DataFrame
    """Cohen's kappa: 1 is full agreement, 0 is chance; NaN on the diagonal, where two share no
    task, and where both always say one class. `kappa.mean()` is each worker's mean."""
    low: pd.DataFrame
    high: pd.DataFrame
    """Between which bounds kappa is known."""
    agreement: pd.DataFrame
    """The share of shared tasks on which both said the same."""
    shared: pd.DataFrame
    """Tasks both have labelled; on the diagonal, those the worker has."""
    left_out: int
    """Workers with fewer labels than these, who are not compared."""

    def pairs(self) -> pd.DataFrame:
        """One row per pair that shares a task: worker, other, shared, agreement, kappa, low, high.

        The pair that agrees least comes first.
        """
        one, two = np.nonzero(np.triu(self.shared.to_numpy() > 0, 1))
        index = self.kappa.index
        columns: dict[str, Any] = {"worker": index[one], "other": index[two]}
        for name in ("shared", "agreement", "kappa", "low", "high"):
            columns[name] = getattr(self, name).to_numpy()[one, two]
        table = pd.DataFrame(columns)
        return table.sort_values("kappa", kind="stable", ignore_index=True)


class Explanation(NamedTuple):
    """What `explain(task)` gives; as text it is a sentence or two.

    Log-odds are those of the answer against the runner-up, before the discount.
    """

    task: Hashable
    label: Hashable
    """The answer given."""
    confidence: float
    """Its probability."""
    runner_up: Hashable
    """The most probable other class; None where no other is known."""
    prior_log_odds: float
    """What the labels do not account for: how frequent the classes are. NaN of a method that does
    not add up evidence."""
    workers: pd.DataFrame
    """Index worker: label, weight, log_odds; the weightiest for the answer first."""
    evidence: pd.DataFrame
    """Worker × class: what each label said for each class, as a logarithm."""
    total_log_odds: float
    """The prior's and the workers' together."""
    heat: float
    """What the log-odds were divided by before they became a probability, 1 for not at all:
    labels of one task lean on each other."""
    flips: list[Hashable]
    """The fewest workers without whose labels the answer would be another; empty for none."""
    further_labels: int | None
    """How many labels of average workers for the runner-up would flip the answer; None where that
    is not defined."""
    truth_given: bool
    """Whether the truth was given, and so is the answer."""

    def _repr_html_(self) -> str:
        return f"<p>{escape(str(self))}</p>{self.workers.to_html(max_rows=MAX_SHOWN_ROWS)}"

    def __str__(self) -> str:
        answer = f"{self.task}: {self.label!r}"
        if self.truth_given:
            return f"{answer}, because its truth was given."
        rows = zip(self.workers.index, self.workers["label"], self.workers["log_odds"], strict=True)
        parts = [(self._with_label(*row), row[2]) for row in rows]
        parts.sort(key=lambda pair: -abs(pair[1]))
        ours = [pair for pair in parts if pair[1] >= MIN_LOG_ODDS]
        theirs = [pair for pair in parts if pair[1] <= -MIN_LOG_ODDS]
        text = f"{answer} with {self.confidence:.2f}"
        verb = "s" * (len(ours or theirs) == 1)
        if ours and theirs:
            outweighed = sum(value for _, value in parts) >= 0
            said = f"outweigh{verb} " if outweighed else f"say{verb} so, against "
            text += f" because {_named(ours)} {said}{_named(theirs)}"
        elif ours:
            text += f" because {_named(ours)} say{verb} so"
        elif theirs:
            text += f" although {_named(theirs)} say{verb} otherwise"
        text += "."
        if abs(self.prior_log_odds) >= MIN_LOG_ODDS:  # NaN is not
            often, rare = self.label, self.runner_up
            if self.prior_log_odds < 0:
                often, rare = rare, often
            text += f" {often!r} is more frequent than {rare!r} ({_signed(self.prior_log_odds)})."
        if self.flips:
            text += f" Without {_shortened([str(worker) for worker in self.flips])} it would change"
            if self.further_labels is not None:
                text += "; so it would"
        elif self.further_labels is not None:
            text += " It would change"
        if self.further_labels is not None:
            number = self.further_labels
            text += f" if {number} more average worker{'s' * (number > 1)} said {self.runner_up!r}"
        return text if text.endswith(".") else f"{text}."

    def _with_label(self, worker: Hashable, label: Hashable, log_odds: float) -> str:
        """The worker; and their label, if it counts for the other side: they are mostly wrong."""
        surprising = (label == self.label) != (log_odds > 0)
        return f"{worker} by saying {label!r}" if surprising else str(worker)


def _named(pairs: Sequence[tuple[str, float]]) -> str:
    """The weightiest, with their log-odds."""
    return _shortened([f"{name} ({_signed(value)})" for name, value in pairs])


def _shortened(parts: Sequence[str]) -> str:
    more = len(parts) - MAX_NAMED
    return _listed([*parts[:MAX_NAMED], f"{more} more"] if more > 0 else parts)


def _listed(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


class Answer:
    """A chunk's answers; tables are made on first access."""

    def __init__(self, intake: Intake, result: Aggregation, classes: list[Hashable]) -> None:
        self.intake, self.result, self.classes = intake, result, classes

    @property
    def task_ids(self) -> list[Hashable]:
        """The tasks, in order of appearance."""
        ids = self.intake.item_ids
        return [ids[i] for i in self.intake.order.tolist()]

    @property
    def chosen(self) -> list[Hashable]:
        """The consensus on them."""
        return [self.classes[c] for c in self.result.aggregated[self.intake.order].tolist()]

    @cached_property
    def _tasks(self) -> pd.Index:
        return id_index(self.task_ids, "task")

    @cached_property
    def labels(self) -> pd.Series:
        """The consensus, Series `agg_label`, in order of appearance."""
        codes = self.result.aggregated[self.intake.order]
        if len(codes) < MIN_TAKEN_LABELS:
            values: Any = self.chosen
            kind = _dtype(values)
            if set(map(type, values)) == {int} and max(map(abs, values)) < 2**63:
                values = np.array(values, np.int64)  # which pandas need not find out
            return pd.Series(values, self._tasks, kind, "agg_label", copy=False)
        occurs = np.bincount(codes, minlength=len(self.classes)) > 0
        labels = [self.classes[c] for c in np.flatnonzero(occurs).tolist()]
        each = pd.Series(labels, dtype=_dtype(labels)).array  # pandas chooses a type for these
        taken = each.take((np.cumsum(occurs) - 1)[codes])
        return pd.Series(taken, index=self._tasks, name="agg_label")

    @cached_property
    def probas(self) -> pd.DataFrame:
        """The probabilities, task × class, in order of appearance."""
        columns = id_index(self.classes, "label")
        probs = self.result.probs[self.intake.order]
        return pd.DataFrame(probs, index=self._tasks, columns=columns)


def id_index(ids: Iterable[Hashable], name: str) -> pd.Index:
    """The user's ids as an index, types kept."""
    values: list[Any] = list(ids)
    index: pd.Index[Any] = pd.Index(values, name=name, dtype=_dtype(values))
    return index


def _dtype(values: list[Any]) -> Any:
    """Let pandas choose a type, unless it would lose something: digits, or what is empty."""
    kinds = set(map(type, values))
    if len(kinds) == 1:
        # What pandas chooses for text it need not find out again.
        return _dtype_of_text() if kinds == {str} else None
    exact = all(abs(value) <= 2**53 for value in values if isinstance(value, int))
    return None if values and exact else object


@cache
def _dtype_of_text() -> Any:
    return pd.Index(["text"]).dtype


def item_report(
    chunk: Chunk,
    item_ids: Sequence[Hashable],
    probs: NDArray[np.float32],
    aggregated: NDArray[np.int32],
    classes: Sequence[Hashable],
    notes: Sequence[Note],
) -> tuple[pd.DataFrame, float, pd.DataFrame]:
    """The items of a chunk as a table, Krippendorff's alpha, and the agreement by class."""
    agrees = chunk.label == aggregated[chunk.item]
    total = np.bincount(chunk.item, chunk.weight, chunk.n_items)
    share = np.bincount(chunk.item, chunk.weight * agrees, chunk.n_items)
    items = pd.DataFrame(
        {
            "consensus_label": [classes[c] for c in aggregated.tolist()],
            "consensus_quality_score": probs[np.arange(len(aggregated)), aggregated],
            "annotator_agreement": np.divide(
                share, total, out=np.full(len(total), np.nan), where=total > 0
            ),
            "num_annotations": np.bincount(chunk.item, minlength=chunk.n_items),
        },
        index=id_index(item_ids, "task"),
    )
    for column in Note._fields:
        values = [getattr(note, column) for note in notes]
        if any(value is not None for value in values):
            items[column] = values
    alpha = krippendorff_alpha(chunk.item, chunk.label, len(classes), chunk.weight)
    agreement = class_agreement(chunk.item, chunk.label, len(classes), chunk.weight)
    return (
        items,
        alpha,
        pd.DataFrame(agreement._asdict(), index=id_index(classes, "label")),
    )


def agreement_report(
    chunk: Chunk, worker_ids: Sequence[Hashable], workers: NDArray[np.intp], level: float
) -> Agreement:
    """The agreement of these workers, by index, on the labels of a chunk, worker × worker."""
    place = np.full(chunk.n_workers, -1, np.intp)
    place[workers] = np.arange(len(workers))
    rows = place[chunk.worker] >= 0
    found = cohen_kappa(
        chunk.item[rows],
        place[chunk.worker[rows]],
        chunk.label[rows],
        len(workers),
        chunk.n_classes,
        chunk.weight[rows],
        level,
    )
    ids = id_index([worker_ids[k] for k in workers.tolist()], "worker")
    tables = {
        name: pd.DataFrame(values, index=ids, columns=ids.rename("other"))
        for name, values in found._asdict().items()
    }
    tables["shared"] = tables["shared"].round().astype(np.int64)
    others = len(np.unique(chunk.worker[~rows & (chunk.weight > 0)]))
    return Agreement(**tables, left_out=others)


def worker_report(
    worker_ids: Sequence[Hashable],
    classes: Sequence[Hashable],
    right: NDArray[np.float32],
    class_prior: NDArray[np.float64],
    n_labels: NDArray[np.int64],
    n_agreed: NDArray[np.int64],
) -> pd.DataFrame:
    """The workers as a table; `right` is how often each is right on each class, (K, C)."""
    # The worst class is the one on which most of a worker's errors fall.
    errors = (1 - right) * class_prior
    worst = [classes[c] for c in errors.argmax(axis=1)] if len(classes) else []
    return pd.DataFrame(
        {
            "annotator_quality": right @ class_prior,
            "agreement_with_consensus": np.divide(
                n_agreed, n_labels, out=np.full(len(n_labels), np.nan), where=n_labels > 0
            ),
            "num_examples_labeled": n_labels,
            "worst_class": worst,
        },
        index=id_index(worker_ids, "worker"),
    )
