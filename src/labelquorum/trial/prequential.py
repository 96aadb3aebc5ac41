"""Answer first, be scored later: a model is fed whole items in chunks and scored as it goes.

What counts online is the label a model gives when an item's chunk arrives, the *emitted* label;
beside it stands the error after everything was seen, when the final model labels all items once
more. Truth is for scoring only: items without it are streamed and not scored.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import pairwise
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum.errors import StateError
from labelquorum.ingest.chunks import take_rows
from labelquorum.ingest.events import LabelTable
from labelquorum.learn.door import Estimator

__all__ = ["Prequential", "stream"]


class Prequential(NamedTuple):
    """What a model did on one stream of S chunks; errors are shares of the items with truth."""

    emitted_error: float  # of the labels given as their chunks arrived
    final_error: float  # of the labels the final model gives to all items
    n_items: int
    n_scored: int  # items with truth
    curve: NDArray[np.float64]  # (S, 2) items fed so far, error of all emitted so far
    seconds: NDArray[np.float64]  # (S,) to learn from each chunk and answer it
    emitted: dict[Hashable, Hashable]  # item id → label


def stream(
    model_factory: Callable[[], Estimator],
    table: LabelTable,
    truth: Mapping[Any, Hashable],
    *,
    chunk_items: int,
    warmup_items: int = 0,
    repeat_warmup: bool = False,
    order: int | None = None,
) -> Prequential:
    """Feed a fresh model whole items in chunks, and score what it emits and what it knows at last.

    An item that was never answered counts as an error; one answered twice counts as it was last.

    Parameters
    ----------
    model_factory
        Makes the model, one that has learned nothing yet.
    table
        The labels; rows of one item are brought together.
    truth
        The true class of each item, as far as known.
    chunk_items
        Items in a chunk; the last may have fewer.
    warmup_items
        Items in a first, larger chunk: the paper's initial set L*; 0 for none.
    repeat_warmup
        Stream the initial set again, chunk by chunk, before going on (the authors' code does).
        Labels of open items are learned from once: give the model `open_items=0` for this.
    order
        None takes items as they first appear in the table; a number is the seed of a random order.

    Examples
    --------
    >>> from labelquorum.learn.estimator import MajorityVote
    >>> from labelquorum.trial.crowds import class_conditional_crowd, label_table
    >>> crowd = class_conditional_crowd(400, 20, 3, labels_per_item=5, seed=1)
    >>> table = label_table(crowd, text_ids=False)
    >>> result = stream(MajorityVote, table, dict(enumerate(crowd.truth)), chunk_items=50)
    >>> print(f"{len(result.seconds)} chunks, emitted error {result.emitted_error:.1%}")
    8 chunks, emitted error 9.5%
    """
    for name, value, least in (("chunk_items", chunk_items, 1), ("warmup_items", warmup_items, 0)):
        if value < least:
            raise StateError(f"`{name}` of stream must be a whole number ≥ {least}. Got {value}.")
    items = _items_in_order(table, order)
    model = model_factory()
    emitted: dict[Hashable, Hashable] = {}
    wrong: dict[Hashable, bool] = {}
    seconds, curve = [], []
    fed = n_wrong = 0
    for part in _parts(table, items, chunk_items, warmup_items, repeat_warmup):
        began = perf_counter()
        answers = model.partial_fit(part).labels_
        seconds.append(perf_counter() - began)
        fed += len(set(part.item_ids))
        for item, answer in zip(answers.index.tolist(), answers.tolist(), strict=True):
            emitted[item] = answer
            if item in truth:
                is_wrong = bool(answer != truth[item])
                n_wrong += is_wrong - wrong.get(item, False)
                wrong[item] = is_wrong
        curve.append((fed, n_wrong / len(wrong) if wrong else float("nan")))
    final = model.predict(table) if items else model.labels_
    return Prequential(
        emitted_error=_error(emitted, items, truth),
        final_error=_error(
            dict(zip(final.index.tolist(), final.tolist(), strict=True)), items, truth
        ),
        n_items=len(items),
        n_scored=sum(item in truth for item in items),
        curve=np.array(curve, np.float64).reshape(-1, 2),
        seconds=np.array(seconds, np.float64),
        emitted=emitted,
    )


def _items_in_order(table: LabelTable, order: int | None) -> list[Hashable]:
    """The distinct items as they first appear, or in a random order drawn by a seed."""
    items = list(dict.fromkeys(table.item_ids))
    if order is None:
        return items
    return [items[i] for i in np.random.default_rng(order).permutation(len(items))]


def _parts(
    table: LabelTable,
    items: Sequence[Hashable],
    chunk_items: int,
    warmup_items: int,
    repeat_warmup: bool,
) -> Iterator[LabelTable]:
    """Cut the table into the initial set, where there is one, and chunks of whole items."""
    place = {item: i for i, item in enumerate(items)}
    position = np.fromiter(map(place.__getitem__, table.item_ids), np.int64, len(table.item_ids))
    rows = np.argsort(position, kind="stable")  # an item's rows stay in order of arrival

    def between(start: int, stop: int) -> LabelTable:
        low, high = np.searchsorted(position, (start, stop), sorter=rows)
        return take_rows(table, rows[low:high].tolist())

    if warmup_items and items:
        yield between(0, warmup_items)
    first = 0 if repeat_warmup else warmup_items
    edges = [*range(first, len(items), chunk_items), len(items)]
    for start, stop in pairwise(edges):
        yield between(start, stop)


def _error(
    answers: Mapping[Hashable, Hashable],
    items: Sequence[Hashable],
    truth: Mapping[Any, Hashable],
) -> float:
    """The share of these items, of those with truth, whose answer is another class or none."""
    wrong = [item not in answers or answers[item] != truth[item] for item in items if item in truth]
    return float(np.mean(wrong)) if wrong else float("nan")
