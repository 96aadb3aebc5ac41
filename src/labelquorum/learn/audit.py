"""Audits: true labels of tasks drawn at random, compared with what was answered without them."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from labelquorum.errors import LabelError
from labelquorum.ingest.frames import read_gold
from labelquorum.learn.analysis.certificate import Audit, checked_audit


def audit_of(
    tasks: Sequence[Hashable], labels: Sequence[Hashable], truths: Mapping[Hashable, Hashable]
) -> Audit:
    """Compare the answers of tasks with true labels of some, in the order these were drawn."""
    place = {task: n for n, task in enumerate(tasks)}
    as_text = {str(label): label for label in set(labels)}
    places, wrong = [], []
    for task, truth in truths.items():
        if task not in place:
            raise LabelError(
                f"audit: task {task!r} is none of the {len(place):,} answered tasks. Draw from "
                "these; ids that are numbers must be numbers here too."
            )
        if as_text.get(str(truth), truth) != truth:
            raise LabelError(
                f"audit: the truth of task {task!r} is {truth!r}, answers say "
                f"{as_text[str(truth)]!r}: a number and a text are two labels. Convert one of them."
            )
        places.append(place[task])
        wrong.append(labels[place[task]] != truth)
    return checked_audit(places, wrong, len(tasks))


def read_audit(audit: Any) -> dict[Hashable, Hashable]:
    """Truths in the order drawn, of a dict, a Series or a table with task and label."""
    if audit is None:
        return {}
    if {"task", "label"} <= set(getattr(audit, "columns", ())):  # a table, of pandas or polars
        tasks, labels = list(audit["task"]), list(audit["label"])
        audit = dict(zip(tasks, labels, strict=True))
        if len(audit) < len(tasks):
            raise LabelError("audit: a task is drawn twice. Draw without replacement.")
    if not hasattr(audit, "items"):
        raise LabelError(
            "audit must be a dict {task: truth}, a Series indexed by task, or a table with the "
            f"columns task and label, in the order drawn. Got a {type(audit).__name__}."
        )
    return read_gold(audit)
