"""The input doctor: what is odd in these labels, in one sentence each, with a next step.

Nothing here is an error; each finding is something a person should look at before trusting
what is aggregated from such input. Ids are numbered first, table by table; everything after
that works on flat arrays and costs no more than sorting them.
"""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum.errors import LabelError
from labelquorum.ingest.labels import LabelTable
from labelquorum.ingest.validate import shown
from labelquorum.ingest.worker_attributes import Attributes, joined

FEW_LABELS = 5  # fewer labels say little about a worker
ONE_ANSWER_LABELS = 10  # giving one answer only is odd from this number of labels on …
ONE_ANSWER_AGREEMENT = 0.75  # … if others agree with it, on the same tasks, no more often than this
RARE_SHARE = 0.001  # a class below this share of all labels is rare
MANY_CLASSES = 50  # more classes than this, with few labels each, look like free text
LABELS_PER_CLASS = 20  # what "few labels each" means there

_EXAMPLES = 3  # ids shown in a sentence
_EDGES = 100_000  # pairs of workers joined before looking which of the others are left
_WHOLE_NUMBER = re.compile(r"(-?)0*(\d+)(?:\.0*)?", re.ASCII)

_Index = NDArray[np.int64]


class Finding(NamedTuple):
    """One thing about the input: how often it occurs, and what to do about it."""

    name: str
    count: int  # type: ignore[assignment]  # a tuple's own `count` is of no use here
    sentence: str
    severity: Literal["ok", "note", "warning"]


class _Labels(NamedTuple):
    """All tables as flat arrays, B labels; ids in order of first appearance."""

    item: _Index  # (B,)
    worker: _Index  # (B,)
    label: _Index  # (B,)
    item_ids: list[Hashable]  # N of them
    worker_ids: list[Hashable]  # K of them
    classes: list[Hashable]  # C of them
    n_zero_weights: int
    seconds: NDArray[np.float64] | None  # (B,) the timestamps; NaN where there is none
    skipped: Counter[str]
    contradictions: list[str]  # a sentence for each table in which a worker has two values

    @property
    def n_labels(self) -> int:
        return len(self.item)


def examine(tables: LabelTable | Iterable[LabelTable]) -> list[Finding]:
    """Say what is odd in label tables; if nothing is, one finding says "all clear".

    Read the tables with `on_bad="skip"`, so that bad rows are counted here and no error there.

    Parameters
    ----------
    tables
        One table, or the tables of one input in order, as an `iter_…` reader gives them.

    Examples
    --------
    >>> table = LabelTable(["q1", "q1", "q1"], ["ann", "bob", "ann"], ["cat", "dog", "dog"])
    >>> finding = examine(table)[0]
    >>> finding.name, finding.count, finding.severity
    ('repeated labels', 1, 'warning')
    """
    labels = _gather([tables] if isinstance(tables, LabelTable) else tables)
    findings = _find_skipped(labels)
    if not labels.n_labels:
        sentence = "There are no labels. Check that this is the input you meant."
        return [*findings, Finding("no labels", 0, sentence, "warning")]
    for find in (
        _find_repeats,
        _find_single_label_tasks,
        _find_islands,
        _find_one_answer_workers,
        _find_quiet_workers,
        _find_id_traps,
        _find_odd_classes,
        _find_zero_weights,
        _find_contradictions,
        _find_disorder,
    ):
        findings += find(labels)
    if findings:
        return findings
    sizes = (
        f"{_count(labels.n_labels, 'label')} of {_count(len(labels.item_ids), 'task')} by "
        f"{_count(len(labels.worker_ids), 'worker')} in {_count(len(labels.classes), 'class')}"
    )
    return [Finding("all clear", labels.n_labels, f"Nothing is odd in {sizes}.", "ok")]


def _gather(tables: Iterable[LabelTable]) -> _Labels:
    """Number the ids of all tables, and lay the tables end to end."""
    indices: tuple[dict[Hashable, int], ...] = ({}, {}, {})
    columns: tuple[list[_Index], ...] = ([], [], [])
    seconds: list[NDArray[np.float64]] = []
    timed = False
    n_zero_weights = 0
    skipped: Counter[str] = Counter()
    known: dict[Hashable, Attributes] = {}
    contradictions: list[str] = []
    for table in tables:
        n_rows = len(table.item_ids)
        all_ids = (table.item_ids, table.worker_ids, table.labels)
        for index, column, ids in zip(indices, columns, all_ids, strict=True):
            for identity in dict.fromkeys(ids):
                index.setdefault(identity, len(index))
            column.append(np.fromiter(map(index.__getitem__, ids), np.int64, n_rows))
        if table.timestamps is None:
            seconds.append(np.full(n_rows, np.nan))
        else:
            timed = True
            seconds.append(np.fromiter(map(_seconds, table.timestamps), np.float64, n_rows))
        n_zero_weights += sum(weight == 0 for weight in table.weights or ())
        skipped.update(table.skipped)
        try:
            known |= joined(known, [table])
        except LabelError as error:
            contradictions.append(str(error))
    item, worker, label = (np.concatenate([np.zeros(0, np.int64), *parts]) for parts in columns)
    item_ids, worker_ids, classes = map(list, indices)
    return _Labels(
        item,
        worker,
        label,
        item_ids,
        worker_ids,
        classes,
        n_zero_weights,
        np.concatenate(seconds) if timed else None,
        skipped,
        contradictions,
    )


def _find_skipped(labels: _Labels) -> list[Finding]:
    return [
        Finding(
            reason,
            count,
            f"{_count(count, 'label')} {_are(count)} an abstention, taken as no label. "
            "Check that this number is intended."
            if reason == "abstained"
            else f"{_count(count, 'row')} {_are(count)} left out: {reason}. "
            "Correct the input, or go on without them.",
            "note" if reason == "abstained" else "warning",
        )
        for reason, count in labels.skipped.most_common()
    ]


def _find_repeats(labels: _Labels) -> list[Finding]:
    surplus = labels.n_labels - len(_distinct(_pairs(labels)))
    if not surplus:
        return []
    _, pair, sizes = np.unique(_pairs(labels), return_inverse=True, return_counts=True)
    n_classes = len(labels.classes)
    answers = np.bincount(_distinct(pair * n_classes + labels.label) // n_classes)
    repeated, differ = int((sizes > 1).sum()), int((answers > 1).sum())
    return [
        Finding(
            "repeated labels",
            surplus,
            f"{_count(surplus, 'row')} {'repeats' if surplus == 1 else 'repeat'} a (task, worker) "
            f"pair, and in {differ:,} of {_count(repeated, 'such pair')} the labels differ. "
            "The last one counts; choose repeats='majority' or 'all' for votes, or 'first'.",
            "warning" if differ else "note",
        )
    ]


def _find_single_label_tasks(labels: _Labels) -> list[Finding]:
    n_items, n_workers = len(labels.item_ids), len(labels.worker_ids)
    voices = np.bincount(_distinct(_pairs(labels)) // n_workers)
    lonely = np.flatnonzero(voices == 1)
    if not len(lonely):
        return []
    return [
        Finding(
            "single-label tasks",
            len(lonely),
            f"{len(lonely):,} of {_count(n_items, 'task')} {_have(len(lonely))} the label of one "
            f"worker only, such as {_some(labels.item_ids, lonely)}. "
            "Ask a second worker where the answer matters.",
            "note",
        )
    ]


def _find_islands(labels: _Labels) -> list[Finding]:
    """Find groups of workers with no task in common, by union-find over the tasks."""
    n_workers = len(labels.worker_ids)
    _, first = np.unique(labels.item, return_index=True)
    anchor = labels.worker[first][labels.item]  # (B,) the first worker of each label's task
    edges = _distinct(anchor * n_workers + labels.worker)
    parent = list(range(n_workers))
    group = np.arange(n_workers)

    def root(worker: int) -> int:
        while parent[worker] != worker:
            parent[worker] = worker = parent[parent[worker]]
        return worker

    while len(edges):
        edges = edges[group[edges // n_workers] != group[edges % n_workers]]
        for edge in edges[:_EDGES].tolist():
            one, other = divmod(edge, n_workers)
            parent[root(one)] = root(other)
        edges = edges[_EDGES:]  # most of which join workers who are joined by now
        group = np.fromiter(map(root, range(n_workers)), np.int64, n_workers)
    islands = Counter(group.tolist()).most_common()
    if len(islands) == 1:
        return []
    sizes = ", ".join(f"{size:,}" for _, size in islands[:_EXAMPLES])
    return [
        Finding(
            "disconnected workers",
            len(islands),
            f"The workers fall into {len(islands):,} groups that share no task, of sizes {sizes}"
            f"{', …' if len(islands) > _EXAMPLES else ''}. "
            "Give some tasks to workers of several groups, or their skills cannot be compared.",
            "warning",
        )
    ]


def _find_one_answer_workers(labels: _Labels) -> list[Finding]:
    n_workers, n_classes = len(labels.worker_ids), len(labels.classes)
    given = np.bincount(labels.worker, minlength=n_workers)  # (K,)
    answers = np.bincount(_distinct(labels.worker * n_classes + labels.label) // n_classes)
    steady = (answers == 1) & (given >= ONE_ANSWER_LABELS)  # (K,)
    if not steady.any():
        return []
    _, answer, sizes = np.unique(
        labels.item * n_classes + labels.label, return_inverse=True, return_counts=True
    )
    # How many other labels the same task has, and how many of these say the same, (B,).
    others = np.bincount(labels.item)[labels.item] - 1
    agreeing = sizes[answer] - 1
    n_others = np.bincount(labels.worker, others, n_workers)
    n_agreeing = np.bincount(labels.worker, agreeing, n_workers)
    contradicted = (n_others > 0) & (n_agreeing <= ONE_ANSWER_AGREEMENT * n_others)
    odd = np.flatnonzero(steady & contradicted)
    if not len(odd):
        return []
    return [
        Finding(
            "one-answer workers",
            len(odd),
            f"{_count(len(odd), 'worker')} gave the same answer at least {ONE_ANSWER_LABELS} times "
            f"and no other, where others differ, such as {_some(labels.worker_ids, odd)}. "
            "Look at their work before paying for more of it.",
            "warning",
        )
    ]


def _find_quiet_workers(labels: _Labels) -> list[Finding]:
    given = np.bincount(labels.worker)
    quiet = np.flatnonzero(given < FEW_LABELS)
    if not len(quiet):
        return []
    share = given[quiet].sum() / labels.n_labels
    return [
        Finding(
            "workers with few labels",
            len(quiet),
            f"{len(quiet):,} of {_count(len(given), 'worker')} {_have(len(quiet))} fewer than "
            f"{FEW_LABELS} labels ({share:.1%} of all), such as {_some(labels.worker_ids, quiet)}. "
            "Take what is said of their skill with care.",
            "note",
        )
    ]


def _find_id_traps(labels: _Labels) -> list[Finding]:
    findings = []
    for noun, ids in (
        ("task", labels.item_ids),
        ("worker", labels.worker_ids),
        ("class", labels.classes),
    ):
        twins = _look_alikes(ids)
        if twins:
            count = sum(map(len, twins))
            pair = " and ".join(map(shown, twins[0][:2]))
            what = "classes" if noun == "class" else f"{noun} ids"
            findings.append(
                Finding(
                    f"look-alike {what}",
                    count,
                    f"{count:,} {what} differ from another only in case, blanks, leading zeros, "
                    f"a trailing .0 or type, such as {pair}. "
                    f"If they mean one {noun}, write them alike.",
                    "warning",
                )
            )
    return findings


def _find_odd_classes(labels: _Labels) -> list[Finding]:
    n_labels, n_classes = labels.n_labels, len(labels.classes)
    if n_classes == 1:
        sentence = (
            f"Every label is {shown(labels.classes[0])}. Check that the column is the right one."
        )
        return [Finding("one class", 1, sentence, "warning")]
    if n_classes > MANY_CLASSES and n_labels < LABELS_PER_CLASS * n_classes:
        return [
            Finding(
                "many classes",
                n_classes,
                f"There are {n_classes:,} classes for {n_labels:,} labels, which looks like free "
                f"text, such as {_some(labels.classes, range(n_classes))}. "
                "Check the label column, or sort the answers into classes first.",
                "warning",
            )
        ]
    rare = np.flatnonzero(np.bincount(labels.label) < RARE_SHARE * n_labels)
    if not len(rare):
        return []
    return [
        Finding(
            "rare classes",
            len(rare),
            f"{len(rare):,} of {n_classes:,} classes {_have(len(rare))} less than {RARE_SHARE:.1%} "
            f"of the labels, such as {_some(labels.classes, rare)}. "
            "Check for slips, or fix the list with classes=.",
            "note",
        )
    ]


def _find_contradictions(labels: _Labels) -> list[Finding]:
    """Attributes of which a worker has several values: such labels would be refused."""
    if not labels.contradictions:
        return []
    count = len(labels.contradictions)
    return [Finding("contradicting attributes", count, labels.contradictions[0], "warning")]


def _find_zero_weights(labels: _Labels) -> list[Finding]:
    count, everything = labels.n_zero_weights, labels.n_labels
    if not count:
        return []
    sentence = (
        "All weights are zero, so no label counts. Correct or leave out the column weight."
        if count == everything
        else f"{_count(count, 'label')} {_have(count)} the weight 0 and will not count. "
        "Check that this is meant."
    )
    return [Finding("zero weights", count, sentence, "warning" if count == everything else "note")]


def _find_disorder(labels: _Labels) -> list[Finding]:
    if labels.seconds is None:
        return []
    findings = []
    known = labels.seconds[~np.isnan(labels.seconds)]
    unknown = labels.n_labels - len(known)
    if unknown:
        sentence = (
            f"{_count(unknown, 'row')} {_have(unknown)} no timestamp, or none that is a number or "
            "an ISO 8601 time. Write all of them in one way."
        )
        findings.append(Finding("unreadable timestamps", unknown, sentence, "warning"))
    backwards = int((np.diff(known) < 0).sum())
    if backwards:
        sentence = (
            f"{_count(backwards, 'row')} {_are(backwards)} earlier than the row before. Sort the "
            "input by timestamp if it should be learned from in the order of time."
        )
        findings.append(Finding("timestamps out of order", backwards, sentence, "note"))
    return findings


def _pairs(labels: _Labels) -> _Index:
    """One number for the (task, worker) of each label, (B,)."""
    return labels.item * len(labels.worker_ids) + labels.worker


def _distinct(values: _Index) -> _Index:
    """The different values, sorted; several times quicker than `np.unique`."""
    ordered: _Index = np.sort(values)
    starts: _Index = ordered[np.diff(ordered, prepend=-1) != 0]
    return starts


def _look_alikes(ids: Sequence[Hashable]) -> list[list[Hashable]]:
    """Group ids that a person would read as the same; only groups of several."""
    if set(map(type, ids)) == {int}:
        return []
    groups: defaultdict[str, list[Hashable]] = defaultdict(list)
    for identity in ids:
        groups[_as_read(identity)].append(identity)
    return [group for group in groups.values() if len(group) > 1]


def _as_read(identity: Hashable) -> str:
    """An id without what the eye skips: case, blanks around, leading zeros, a trailing .0."""
    text = str(identity)
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    text = " ".join(text.casefold().split())
    number = _WHOLE_NUMBER.fullmatch(text)
    return number[1] + number[2] if number else text


def _seconds(timestamp: Any) -> float:
    """A timestamp as seconds; times without a zone are taken as UTC, NaN is no timestamp."""
    if isinstance(timestamp, int | float):
        return float(timestamp)
    try:
        moment = datetime.fromisoformat(str(timestamp))
    except ValueError:
        return float("nan")
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _count(number: int, noun: str) -> str:
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _have(number: int) -> str:
    return "has" if number == 1 else "have"


def _some(ids: Sequence[Hashable], chosen: Sequence[int] | _Index) -> str:
    return ", ".join(shown(ids[position]) for position in chosen[:_EXAMPLES])
