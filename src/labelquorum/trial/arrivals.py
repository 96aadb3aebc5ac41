"""When labels come in: item by item, one at a time, or in bursts.

The generators of `crowds.py` give the labels of each item together. These say in which order they
arrive, and when: `label_table(crowd, arrivals=trickle(crowd))`. Items are opened in their order, so
a sleeper, who turns at an item, turns at about one time.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from labelquorum.errors import StateError
from labelquorum.trial.crowds import Arrivals, Crowd
from labelquorum.trial.draws import Floats, generator

__all__ = ["ARRIVALS", "bursts", "trickle", "whole_items"]


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
    >>> from labelquorum.trial.crowds import label_table, one_coin_crowd
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
