"""The input doctor: what is odd in these labels, in one sentence each, with a next step.

Nothing here is an error: each finding is something a person should look at before trusting
what is aggregated from such input. Ids are numbered first, table by table; everything after
that works on flat arrays, in time that grows with the labels and no faster than sorting them.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from datetime import UTC, date, datetime
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum.ingest.events import LabelTable

__all__ = ["Finding", "examine"]

FEW_LABELS = 5
"""A worker with fewer labels than this tells little about himself."""
ONE_ANSWER_LABELS = 10
"""A worker may give one answer this often before it is odd …"""
ONE_ANSWER_AGREEMENT = 0.75
"""… if others agree with it, on the same tasks, no more often than this."""
RARE_SHARE = 0.001
"""A class below this share of all labels is rare."""
MANY_CLASSES = 50
"""More classes than this, if they are also …"""
MANY_CLASSES_SHARE = 0.05
"""… more than this share of the labels, look like free text."""

_EXAMPLES = 3

_Index = NDArray[np.int64]


class Finding(NamedTuple):
    """One thing about the input: how often it occurs, and what to do about it."""

    name: str
    count: int
    sentence: str
    severity: Literal["ok", "note", "warning"]


class _Labels(NamedTuple):
    """All tables as flat arrays, B labels; ids in order of first appearance."""

    item: _Index  # (B,)
    worker: _Index  # (B,)
    label: _Index  # (B,)
    item_ids: list[Hashable]  # N
    worker_ids: list[Hashable]  # K
    classes: list[Hashable]  # C
    weights: list[float] | None
    times: list[float] | None  # seconds; NaN where there is none
    skipped: Counter[str]


def examine(tables: LabelTable | Iterable[LabelTable]) -> list[Finding]:
    """Say what is odd in label tables; one finding, "all clear", if nothing is.

    Read the tables with `on_bad="skip"`, so that bad rows are counted here and not an error.

    Parameters
    ----------
    tables
        One table, or the tables of one input in order, as an `iter_…` reader gives them.

    Examples
    --------
    >>> table = LabelTable(["q1", "q1", "q2", "q2"], ["ann", "bob", "ann", "bob"], list("ccdc"))
    >>> [finding.name for finding in examine(table)]
    ['workers with few labels']
    """
    labels = _gather([tables] if isinstance(tables, LabelTable) else tables)
    findings = _find_skipped(labels)
    if not len(labels.item):
        sentence = "There are no labels. Check that this is the right input."
        return [*findings, Finding("no labels", 0, sentence, "warning")]
    findings += _find_repeats(labels)
    findings += _find_lonely_tasks(labels)
    findings += _find_islands(labels)
    findings += _find_one_answer_workers(labels)
    findings += _find_quiet_workers(labels)
    findings += _find_id_traps(labels)
    findings += _find_odd_classes(labels)
    findings += _find_zero_weights(labels)
    findings += _find_disorder(labels)
    if findings:
        return findings
    sizes = (
        f"{_count(len(labels.item), 'label')} of {_count(len(labels.item_ids), 'task')} by "
        f"{_count(len(labels.worker_ids), 'worker')} in {_count(len(labels.classes), 'class')}"
    )
    return [Finding("all clear", len(labels.item), f"Nothing odd in {sizes}.", "ok")]


def _gather(tables: Iterable[LabelTable]) -> _Labels:
    """Number the ids of all tables and lay them end to end."""
    known: tuple[dict[Hashable, int], ...] = ({}, {}, {})
    columns: tuple[list[_Index], ...] = ([], [], [])
    weights: list[float] = []
    times: list[float] = []
    weighted = timed = False
    skipped: Counter[str] = Counter()
    for table in tables:
        n_rows = len(table.item_ids)
        for index, column, ids in zip(known, columns, table[:3], strict=True):
            for identity in dict.fromkeys(ids):
                index.setdefault(identity, len(index))
            column.append(np.fromiter(map(index.__getitem__, ids), np.int64, n_rows))
        weighted |= table.weights is not None
        weights += [1.0] * n_rows if table.weights is None else table.weights
        timed |= table.timestamps is not None
        times += [np.nan] * n_rows if table.timestamps is None else map(_seconds, table.timestamps)
        skipped.update(table.skipped)
    empty = np.zeros(0, np.int64)
    item, worker, label = (np.concatenate([empty, *column]) for column in columns)
    return _Labels(
        item,
        worker,
        label,
        *map(list, known),
        weights if weighted else None,
        times if timed else None,
        skipped,
    )
