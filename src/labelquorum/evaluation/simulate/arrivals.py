"""The labels of a simulated crowd as a table or a stream, and when they come in.

The generators of `crowds.py` give the labels of each item together. Arrivals say in which order
they come, and when: item by item, one at a time, or in bursts, as in
`label_table(crowd, arrivals=trickle(crowd))`. Items are opened in their order, so a sleeper, who
turns at an item, turns at about one time.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from labelquorum._types import Floats, Ints
from labelquorum.errors import StateError
from labelquorum.evaluation.simulate.crowds import check_count, generator
from labelquorum.evaluation.simulate.oracle import Crowd
from labelquorum.ingest.labels import LabelTable


class Arrivals(NamedTuple):
    """When the labels of a crowd come in."""

    row: Ints  # (L,) rows of the crowd in order of arrival
    time: Floats  # (L,) seconds, never less than the one before


def label_table(
    crowd: Crowd, *, text_ids: bool = True, arrivals: Arrivals | None = None
) -> LabelTable:
    """Give the labels as a table a person could have collected.

    Parameters
    ----------
    text_ids
        True names items "t0000", "t0001", … and workers "w00", "w01", …, padded so that text
        order is number order; False keeps the integers. Labels are integers either way.
    arrivals
        The order of the rows, and their timestamps; None gives item after item, without.
    """
    row = slice(None) if arrivals is None else arrivals.row
    item_ids, worker_ids = crowd.item[row].tolist(), crowd.worker[row].tolist()
    if text_ids:
        item_names = names("t", crowd.truth.size)
        worker_names = names("w", len(crowd.confusion))
        item_ids = [item_names[i] for i in item_ids]
        worker_ids = [worker_names[k] for k in worker_ids]
    return LabelTable(
        item_ids,
        worker_ids,
        crowd.label[row].tolist(),
        timestamps=None if arrivals is None else arrivals.time.tolist(),
        source="simulated crowd",
    )


def truth_by_item(crowd: Crowd, *, text_ids: bool = True) -> dict[Hashable, int]:
    """Give the true class of every item, by the ids of `label_table`."""
    item_ids = names("t", crowd.truth.size) if text_ids else range(crowd.truth.size)
    return dict(zip(item_ids, crowd.truth.tolist(), strict=True))


def chunks(
    crowd: Crowd, chunk_items: int, warmup_items: int = 0
) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Walk through a crowd as a stream: item, worker and label columns of whole items.

    Parameters
    ----------
    chunk_items
        Items in a chunk; the last one may have fewer.
    warmup_items
        Items in a first, larger chunk (the paper's initial set L*); 0 leaves it out.
    """
    check_count("chunk_items", "chunks", chunk_items)
    check_count("warmup_items", "chunks", warmup_items, least=0)
    n_items = crowd.truth.size
    starts = [0] if warmup_items else []
    starts += range(warmup_items, n_items, chunk_items)
    rows = np.searchsorted(crowd.item, [*starts, n_items])
    for start, stop in pairwise(rows):
        yield crowd.item[start:stop], crowd.worker[start:stop], crowd.label[start:stop]


def names(letter: str, n: int) -> list[str]:
    """Name n things by a letter and their number, padded so that text order is number order."""
    width = len(str(n - 1))
    return [f"{letter}{index:0{width}d}" for index in range(n)]


def whole_items(crowd: Crowd, rate: float = 1.0, *, seed: int = 0) -> Arrivals:
    """Let items come in one after the other, each with all its labels at once.

    Parameters
    ----------
    rate
        Items a second, on average; the time between two is exponential.
    """
    _check_positive("rate", "whole_items", rate)
    opened = _openings(generator(seed, "whole_items"), crowd, rate)
    row = np.argsort(crowd.item, kind="stable")
    return Arrivals(row, opened[crowd.item[row]])


def trickle(crowd: Crowd, rate: float = 1.0, delay: float = 100.0, *, seed: int = 0) -> Arrivals:
    """Let single labels trickle in, those of many items mixed.

    Parameters
    ----------
    rate
        Items opened a second, on average; the time between two is exponential.
    delay
        Seconds from the opening of an item to each of its labels, on average; each is drawn from
        an exponential law of its own. Infinite puts all labels into random order.

    Examples
    --------
    >>> from labelquorum.evaluation.simulate.arrivals import label_table
    >>> from labelquorum.evaluation.simulate.crowds import one_coin_crowd
    >>> crowd = one_coin_crowd(1000, 20, 2, labels_per_item=3)
    >>> table = label_table(crowd, arrivals=trickle(crowd))
    >>> print(table.item_ids[0], table.worker_ids[0], f"{table.timestamps[0]:.1f} s")
    t001 w08 8.2 s
    """
    _check_positive("rate", "trickle", rate)
    if not delay >= 0:
        raise StateError(f"`delay` of trickle must be a number ≥ 0. Got {delay}.")
    rng = generator(seed, "trickle")
    if np.isinf(delay):
        time = rng.uniform(0, crowd.truth.size / rate, crowd.item.size)
    else:
        time = _openings(rng, crowd, rate)[crowd.item]
        time = time + rng.exponential(delay, crowd.item.size)
    row = np.argsort(time, kind="stable")
    return Arrivals(row, time[row])


def bursts(
    crowd: Crowd, rate: float = 1.0, burst_items: float = 50.0, *, seed: int = 0
) -> Arrivals:
    """Let labels come in bursts: those of many items at one moment, mixed, then nothing for long.

    Parameters
    ----------
    rate
        Items a second, on average over bursts and silence.
    burst_items
        Items in a burst, on average (≥ 1); the number is geometric, the silence exponential.
    """
    _check_positive("rate", "bursts", rate)
    if not 1 <= burst_items < np.inf:
        raise StateError(f"`burst_items` of bursts must be a number ≥ 1. Got {burst_items}.")
    rng = generator(seed, "bursts")
    begins = rng.random(crowd.truth.size) * burst_items < 1  # whether an item begins a burst
    begins[0] = False
    burst = np.cumsum(begins)  # (N,)
    time = np.cumsum(rng.exponential(burst_items / rate, burst[-1] + 1))[burst][crowd.item]
    row = np.lexsort((rng.random(time.size), time))
    return Arrivals(row, time[row])


ARRIVALS: Mapping[str, Callable[..., Arrivals]] = {
    "items": whole_items,
    "trickle": trickle,
    "bursts": bursts,
}
"""What `labelquorum simulate --arrival` knows."""


def _openings(rng: np.random.Generator, crowd: Crowd, rate: float) -> Floats:
    """The time at which each item is opened: (N,)."""
    return np.cumsum(rng.exponential(1 / rate, crowd.truth.size))


def _check_positive(name: str, where: str, value: Any) -> None:
    if not 0 < value < np.inf:
        raise StateError(f"`{name}` of {where} must be a number > 0. Got {value}.")
