"""History: what is known of workers before the first label, as counts.

Workers who labelled tasks whose truth is known have counts: labels z on tasks of class c. They
enter the state as if those tasks had come with their true labels, except in the class prior: how
frequent classes were there says nothing about this stream.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from math import isfinite
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum.errors import LabelError
from labelquorum.ingest.chunks import id_order
from labelquorum.ingest.labels import LabelTable
from labelquorum.ingest.validate import ANY_LABEL, checked

Row = tuple[Hashable, Hashable, Hashable, Any]
"""A worker, the truth, their label, and how often."""

_FORMS = (
    "`history` must be a dict {worker: {truth: {label: count}}}, a dict {worker: (right, total)}, "
    "a table with rows (worker, label) and a column for each truth, as in errors_, or a list of "
    "(worker, truth, label, count)."
)


class History(NamedTuple):
    """Counts of P workers over C classes."""

    workers: list[Hashable]
    classes: list[Hashable]
    counts: NDArray[np.float64]  # (P, C, C)


def read_history(history: Any, classes: Sequence[Hashable] | None) -> History:
    """Bring any form of history to counts.

    Parameters
    ----------
    history
        `{worker: {truth: {label: count}}}`; `{worker: (right, total)}`, which takes the classes
        as equally frequent and errors as equally spread; a table like `errors_`, of counts; or
        rows (worker, truth, label, count).
    classes
        The classes where they are fixed.

    Examples
    --------
    >>> known = read_history({"ann": (8, 10)}, ["cat", "dog"])
    >>> known.counts[0].tolist()
    [[4.0, 1.0], [1.0, 4.0]]
    """
    rows = history_rows(history, classes)
    named = {name for _, *pair, _ in rows for name in pair}
    known = sorted(named, key=id_order) if classes is None else list(classes)
    for name in named.difference(known):
        raise LabelError(
            f"history: {name!r} is not one of the classes {known!r}. Fix it, or pass the full "
            "list as classes=."
        )
    workers = sorted({worker for worker, *_ in rows}, key=id_order)
    place, number = ({name: i for i, name in enumerate(ids)} for ids in (workers, known))
    counts = np.zeros((len(workers), len(known), len(known)))
    for worker, truth, label, count in rows:
        counts[place[worker], number[truth], number[label]] += count
    return History(workers, known, counts)


def history_rows(history: Any, classes: Sequence[Hashable] | None) -> list[Row]:
    """Any form of history as rows, which can also be saved."""
    rows = list(_rows(history, classes))
    for worker, _, _, count in rows:
        if not isinstance(count, Real) or not isfinite(count) or count < 0:
            raise LabelError(
                f"history: the counts of worker {worker!r} must be finite numbers ≥ 0. "
                f"Got {count!r}."
            )
    workers, truths, labels, counts = zip(*rows, strict=True) if rows else ((), (), (), ())
    # The same rules for ids as everywhere: the truth stands where the item stands elsewhere.
    sound = checked(LabelTable(truths, workers, labels, source="history", unit="row"), ANY_LABEL)
    return [
        (worker, truth, label, float(count))
        for worker, truth, label, count in zip(
            sound.worker_ids, sound.item_ids, sound.labels, counts, strict=True
        )
    ]


def _rows(history: Any, classes: Sequence[Hashable] | None) -> Iterator[Row]:
    if hasattr(history, "columns") and getattr(history.index, "nlevels", 1) == 2:
        for (worker, label), counts in zip(history.index, history.to_numpy(), strict=True):
            for truth, count in zip(history.columns, counts, strict=True):
                yield worker, truth, label, count
    elif isinstance(history, Mapping):
        for worker, known in history.items():
            if isinstance(known, Mapping):
                yield from _nested(worker, known)
            else:
                yield from _right_of_total(worker, known, classes)
    elif isinstance(history, list | tuple) and all(
        isinstance(row, list | tuple) and len(row) == 4 for row in history
    ):
        yield from (tuple(row) for row in history)
    else:
        raise LabelError(f"{_FORMS} Got a {type(history).__name__}.")


def _nested(worker: Hashable, known: Mapping[Hashable, Any]) -> Iterable[Row]:
    for truth, said in known.items():
        if not isinstance(said, Mapping):
            raise LabelError(f"{_FORMS} Got {said!r} for truth {truth!r} of worker {worker!r}.")
        for label, count in said.items():
            yield worker, truth, label, count


def _right_of_total(
    worker: Hashable, pair: Any, classes: Sequence[Hashable] | None
) -> Iterable[Row]:
    try:
        right, total = map(float, pair)
    except (TypeError, ValueError):
        raise LabelError(f"{_FORMS} Got {pair!r} for worker {worker!r}.") from None
    if not 0 <= right <= total:
        raise LabelError(
            f"history: worker {worker!r} must be right at least 0 times and at most as often as "
            f"they labelled. Got {right:g} of {total:g}."
        )
    if classes is None:
        raise LabelError(
            "history of the form (right, total) needs the classes to spread it over. Pass classes=."
        )
    n = len(classes)
    for truth in classes:
        for label in classes:
            # Where there is one class, all labels name it.
            wrong = (total - right) / (n * max(n - 1, 1))
            yield worker, truth, label, (right / n if label == truth else wrong)
