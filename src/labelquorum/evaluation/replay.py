"""Answer first, be scored later: a model is fed a stream in chunks and scored as it goes.

What counts online is the label a model gives when an item's chunk arrives, the *emitted* label;
beside it stands the error after everything was seen, when the final model labels all items once
more. Truth is for scoring only: items without it are streamed and not scored.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import pairwise
from time import perf_counter
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labelquorum.errors import LabelError, StateError
from labelquorum.evaluation.metrics import calibration_error, log_loss, reliability
from labelquorum.ingest.chunks import take_rows
from labelquorum.ingest.labels import MISSING, LabelTable

Arrival = Literal["items", "labels"]
Order = int | Literal["time"] | None


class Streamed(Protocol):
    """What `stream` asks of a model: every estimator has it, and so have the peers."""

    def partial_fit(self, labels: LabelTable, /) -> Any: ...  # noqa: D102
    def predict(self, labels: LabelTable, /) -> pd.Series: ...  # noqa: D102
    @property
    def labels_(self) -> pd.Series: ...  # noqa: D102
    @property
    def probas_(self) -> pd.DataFrame: ...  # noqa: D102


class Prequential(NamedTuple):
    """What a model did on one stream of S chunks; errors are shares of the items with truth."""

    emitted_error: float  # of the labels given as their chunks arrived
    final_error: float  # of the labels the final model gives to all items
    log_loss: float  # of the probabilities given as their chunks arrived, in nats
    calibration_error: float  # of the same (ECE)
    reliability: NDArray[np.float64]  # (15, 3) of the same: items, confidence, right, by confidence
    n_items: int
    n_scored: int  # items with truth
    curve: NDArray[np.float64]  # (S, 2) items fed so far, error of all emitted so far
    seconds: NDArray[np.float64]  # (S,) to learn from each chunk and answer it
    emitted: dict[Hashable, Hashable]  # item id → label


def stream(
    model_factory: Callable[[], Streamed],
    table: LabelTable,
    truth: Mapping[Any, Hashable],
    *,
    chunk_items: int,
    warmup_items: int = 0,
    repeat_warmup: bool = False,
    order: Order = None,
    arrival: Arrival = "items",
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
        None takes items as they first appear in the table, "time" by their first timestamp; a
        number is the seed of a random order.
    arrival
        "items" come whole. "labels" trickle in one by one, those of an item far apart: then
        `chunk_items` and `warmup_items` count labels, and the model needs as many `open_items` as
        there are items.

    Examples
    --------
    >>> from labelquorum.learn.estimators import MajorityVote
    >>> from labelquorum.evaluation.simulate.arrivals import label_table
    >>> from labelquorum.evaluation.simulate.crowds import class_conditional_crowd
    >>> crowd = class_conditional_crowd(400, 20, 3, labels_per_item=5, seed=1)
    >>> table = label_table(crowd, text_ids=False)
    >>> result = stream(MajorityVote, table, dict(enumerate(crowd.truth)), chunk_items=50)
    >>> print(f"{len(result.seconds)} chunks, emitted error {result.emitted_error:.1%}")
    8 chunks, emitted error 9.5%
    """
    for name, value, least in (("chunk_items", chunk_items, 1), ("warmup_items", warmup_items, 0)):
        if value < least:
            raise StateError(f"`{name}` of stream must be a whole number ≥ {least}. Got {value}.")
    if arrival not in ("items", "labels"):
        raise StateError(f"`arrival` of stream must be 'items' or 'labels'. Got {arrival!r}.")
    position = _positions(table, order, arrival)
    model = model_factory()
    emitted: dict[Hashable, Hashable] = {}
    wrong: dict[Hashable, bool] = {}
    probs: dict[Hashable, tuple[Sequence[Hashable], NDArray[Any]]] = {}
    seen: set[Hashable] = set()
    seconds, curve = [], []
    n_wrong = 0
    for part in _parts(table, position, chunk_items, warmup_items, repeat_warmup):
        began = perf_counter()
        answers = model.partial_fit(part).labels_
        seconds.append(perf_counter() - began)
        seen.update(part.item_ids)
        table_probs = model.probas_
        classes = table_probs.columns.tolist()
        shares = table_probs.to_numpy()
        for row, (item, answer) in enumerate(
            zip(answers.index.tolist(), answers.tolist(), strict=True)
        ):
            emitted[item] = answer
            if item in truth:
                probs[item] = classes, shares[row]
                is_wrong = bool(answer != truth[item])
                n_wrong += is_wrong - wrong.get(item, False)
                wrong[item] = is_wrong
        curve.append((len(seen), n_wrong / len(wrong) if wrong else float("nan")))
    items = list(dict.fromkeys(table.item_ids))
    final = model.predict(table) if items else model.labels_
    class_probs, true_class = _scored_probs(probs, truth)
    return Prequential(
        emitted_error=_error(emitted, items, truth),
        final_error=_error(
            dict(zip(final.index.tolist(), final.tolist(), strict=True)), items, truth
        ),
        log_loss=log_loss(class_probs, true_class),
        calibration_error=calibration_error(class_probs, true_class),
        reliability=reliability(class_probs, true_class),
        n_items=len(items),
        n_scored=sum(item in truth for item in items),
        curve=np.array(curve, np.float64).reshape(-1, 2),
        seconds=np.array(seconds, np.float64),
        emitted=emitted,
    )


def _positions(table: LabelTable, order: Order, arrival: Arrival) -> NDArray[np.int64]:
    """The place of each row in the stream, (L,); the rows of one item share it, if whole."""
    n_rows = len(table.item_ids)
    place: dict[Hashable, int] = {}
    whose = np.fromiter((place.setdefault(i, len(place)) for i in table.item_ids), np.int64, n_rows)
    unit = whose if arrival == "items" else np.arange(n_rows)
    n_units = len(place) if arrival == "items" else n_rows
    if order is None:
        return unit
    if order == "time":
        if table.timestamps is None:
            raise LabelError(
                f"{table.source}: the order of time needs a column `timestamp`, and there is none. "
                "Add it, or take random orders."
            )
        try:
            rank = pd.Series(table.timestamps).rank(method="first").to_numpy(np.float64)
        except TypeError:
            raise LabelError(
                f"{table.source}: timestamps must all be numbers or all be text, to be put in "
                "order. Got both."
            ) from None
        first = np.full(n_units, np.inf)
        np.fmin.at(first, unit, rank)  # a label without a timestamp does not count
        return np.argsort(np.argsort(first, kind="stable"))[unit]
    # The r-th unit of a random order is the r-th of the permutation.
    return np.argsort(np.random.default_rng(order).permutation(n_units))[unit]


def _parts(
    table: LabelTable,
    position: NDArray[np.int64],
    chunk_items: int,
    warmup_items: int,
    repeat_warmup: bool,
) -> Iterator[LabelTable]:
    """Cut the table into the initial set, where there is one, and chunks."""
    rows = np.argsort(position, kind="stable")  # an item's rows stay in order of arrival
    n_units = int(position.max()) + 1 if len(position) else 0

    def between(start: int, stop: int) -> LabelTable:
        low, high = np.searchsorted(position, (start, stop), sorter=rows)
        return take_rows(table, rows[low:high].tolist())

    if warmup_items and n_units:
        yield between(0, warmup_items)
    first = 0 if repeat_warmup else warmup_items
    edges = [*range(first, n_units, chunk_items), n_units]
    for start, stop in pairwise(edges):
        yield between(start, stop)


def _scored_probs(
    probs: Mapping[Hashable, tuple[Sequence[Hashable], NDArray[Any]]],
    truth: Mapping[Any, Hashable],
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Emitted probabilities over all classes, (N, C), and true classes, (N,)."""
    column: dict[Hashable, int] = {}
    for classes, _ in probs.values():
        for label in classes:
            column.setdefault(label, len(column))
    for item in probs:  # a class nobody ever said has probability 0
        column.setdefault(truth[item], len(column))
    matrix = np.zeros((len(probs), len(column)))
    true_class = np.full(len(probs), MISSING, np.int64)
    for row, (item, (classes, shares)) in enumerate(probs.items()):
        matrix[row, [column[label] for label in classes]] = shares
        true_class[row] = column[truth[item]]
    return matrix, true_class


def _error(
    answers: Mapping[Hashable, Hashable],
    items: Sequence[Hashable],
    truth: Mapping[Any, Hashable],
) -> float:
    """The share of these items, of those with truth, whose answer is another class or none."""
    wrong = [item not in answers or answers[item] != truth[item] for item in items if item in truth]
    return float(np.mean(wrong)) if wrong else float("nan")
