"""Arrivals: every label once, in the order of its time, mixed as the process says."""

from itertools import pairwise

import numpy as np
import pytest

from labelquorum.errors import StateError
from labelquorum.evaluation.simulate.arrivals import (
    ARRIVALS,
    bursts,
    label_table,
    trickle,
    whole_items,
)
from labelquorum.evaluation.simulate.crowds import one_coin_crowd

CROWD = one_coin_crowd(2000, 30, 3, labels_per_item=4, seed=1)
every_process = pytest.mark.parametrize("arrive", ARRIVALS.values(), ids=ARRIVALS)


@every_process
def test_every_label_comes_once_in_the_order_of_its_time(arrive):
    arrivals = arrive(CROWD, seed=2)
    assert np.array_equal(np.sort(arrivals.row), np.arange(CROWD.item.size))
    assert np.all(np.diff(arrivals.time) >= 0)
    assert arrivals.time[0] >= 0


@every_process
def test_same_seed_gives_the_same_arrivals_and_another_seed_others(arrive):
    first, again, other = arrive(CROWD, seed=3), arrive(CROWD, seed=3), arrive(CROWD, seed=4)
    assert np.array_equal(first.row, again.row) and np.array_equal(first.time, again.time)
    assert not np.array_equal(first.time, other.time)


@every_process
def test_rate_is_the_number_of_items_a_second(arrive):
    late = {"delay": 1.0} if arrive is trickle else {}
    # About 40 bursts, so a third of the mean is two of its deviations.
    assert arrive(CROWD, 4.0, **late, seed=5).time[-1] == pytest.approx(500, rel=0.35)


@every_process
def test_table_has_the_rows_of_the_crowd_in_order_of_arrival_with_timestamps(arrive):
    arrivals = arrive(CROWD, seed=6)
    plain, table = label_table(CROWD), label_table(CROWD, arrivals=arrivals)
    for before, after in zip(plain[:3], table[:3], strict=True):
        assert after == [before[row] for row in arrivals.row]
    assert table.timestamps == arrivals.time.tolist()
    assert plain.timestamps is None


def test_whole_items_come_with_all_their_labels_at_once():
    arrivals = whole_items(CROWD, seed=7)
    assert np.array_equal(arrivals.row, np.arange(CROWD.item.size))
    assert np.array_equal(arrivals.time[::4], arrivals.time[3::4])
    gaps = np.diff(arrivals.time[::4])
    assert gaps.mean() == pytest.approx(1, abs=0.1) and gaps.std() == pytest.approx(1, abs=0.1)


def test_single_labels_trickle_in_after_their_delay():
    def distances(delay):
        arrivals = trickle(CROWD, delay=delay, seed=8)
        item = CROWD.item[arrivals.row]
        return np.abs(np.diff(item)), arrivals

    steps, arrivals = distances(100.0)
    assert np.mean(steps > 0) > 0.9  # neighbours are labels of different items
    # The last of four exponential delays comes 1 + 1/2 + 1/3 + 1/4 of the mean later.
    last = np.zeros(CROWD.truth.size)
    np.maximum.at(last, CROWD.item[arrivals.row], arrivals.time)
    opened = whole_items(CROWD, seed=8)
    spent = last.mean() - opened.time.mean()
    assert spent == pytest.approx(100 * 25 / 12, rel=0.2)
    assert distances(0.0)[0].max() == 1
    assert distances(np.inf)[0].mean() == pytest.approx(2000 / 3, rel=0.05)  # no order at all


def test_a_burst_is_many_items_at_one_moment_mixed():
    arrivals = bursts(CROWD, burst_items=50, seed=9)
    item = CROWD.item[arrivals.row]
    times, start, size = np.unique(arrivals.time, return_index=True, return_counts=True)
    assert times.size == pytest.approx(40, abs=20)
    assert size.sum() == CROWD.item.size
    parts = np.split(item, start[1:])
    assert [np.unique(part).size * 4 for part in parts] == size.tolist()  # whole items
    assert all(one.max() < other.min() for one, other in pairwise(parts))
    assert any(np.any(np.diff(part) < 0) for part in parts)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: whole_items(CROWD, rate=0), "`rate` of whole_items .* > 0. Got 0"),
        (lambda: trickle(CROWD, delay=-1), "`delay` of trickle .* ≥ 0. Got -1"),
        (lambda: bursts(CROWD, burst_items=0.5), "`burst_items` of bursts .* ≥ 1. Got 0.5"),
    ],
)
def test_a_setting_out_of_range_is_refused_with_a_sentence(make, sentence):
    with pytest.raises(StateError, match=sentence):
        make()
