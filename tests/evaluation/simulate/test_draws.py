"""Draws: who is drawn how often, against chances written out."""

from itertools import permutations

import numpy as np
import pytest

from labelquorum.evaluation.simulate import crowds
from labelquorum.evaluation.simulate.crowds import draw_workers, generator

N_ROWS = 60_000


def chance_of_sets(weight: np.ndarray, size: int) -> dict[tuple[int, ...], float]:
    """The chance of every set when workers are drawn by weight, each from those who are left."""
    chances: dict[tuple[int, ...], float] = {}
    for order in permutations(range(weight.size), size):
        left, chance = weight.sum(), 1.0
        for k in order:
            chance *= weight[k] / left
            left -= weight[k]
        key = tuple(sorted(order))
        chances[key] = chances.get(key, 0.0) + chance
    return chances


@pytest.mark.parametrize("tries", [50, 1], ids=["by trying again", "by a race"])
def test_every_set_of_workers_is_as_likely_as_its_weights_say(tries, monkeypatch):
    monkeypatch.setattr(crowds, "TRIES", tries)
    monkeypatch.setattr(crowds, "RACERS", 1000)  # many blocks
    drawn = draw_workers(np.random.default_rng(1), N_ROWS, 5, 3, participation=1.3)
    # The ranks are the first thing that is drawn.
    ranks = np.random.default_rng(1).permutation(np.arange(1.0, 6.0))
    sets, counts = np.unique(drawn, axis=0, return_counts=True)
    shown = {tuple(row): count / N_ROWS for row, count in zip(sets.tolist(), counts, strict=True)}
    for key, chance in chance_of_sets(ranks**-1.3, 3).items():
        bound = 4 * np.sqrt(chance * (1 - chance) / N_ROWS)
        assert shown.get(key, 0.0) == pytest.approx(chance, abs=bound)


def test_workers_of_an_item_are_different_and_sorted_however_unequal_the_work():
    drawn = draw_workers(np.random.default_rng(2), 300, 40, 40, participation=30.0)
    assert np.array_equal(drawn, np.tile(np.arange(40), (300, 1)))
    some = draw_workers(np.random.default_rng(2), 300, 40, 7, participation=3.0)
    assert np.all(np.diff(some, axis=1) > 0)


def test_each_purpose_and_turn_has_numbers_of_its_own():
    purposes = [("with_ring", 0), ("with_ring", 1), ("with_bots", 0)]
    first = {generator(7, *purpose).random() for purpose in purposes}
    assert len(first | {np.random.default_rng(7).random()}) == 4
    assert generator(7, "with_ring").random() in first
