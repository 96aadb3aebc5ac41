"""Flags: raised where a matrix shows it, and held back where it is not known well enough."""

import numpy as np
import pytest

from labelquorum.learn.analysis.collusion import Pairs
from labelquorum.learn.analysis.flags import (
    colluding,
    guessed,
    insight,
    matrix_flags,
    spread,
    suspects,
)

CLASSES = ["cat", "dog", "fox"]
PRIOR = np.full(3, 1 / 3)
SKEWED = np.array([0.9, 0.05, 0.05])


def coin(right):
    return np.where(np.eye(3) > 0, right, (1 - right) / 2)


BOT = np.tile([0.96, 0.02, 0.02], (3, 1))
SHIFTED = np.roll(np.eye(3) * 0.9 + 0.1 / 3, 1, axis=1)


def flags(matrix, labels, prior=PRIOR, level=0.95):
    confusion, labels = matrix[None], np.array([labels])
    drawn = guessed(confusion, prior, labels, 400, seed=1)
    (flag,) = matrix_flags(drawn, confusion, prior, labels, CLASSES, level)
    return flag


def test_insight_is_none_of_the_blind_and_one_of_the_sure():
    assert insight(np.eye(3), PRIOR) == pytest.approx(1)
    assert insight(coin(1 / 3), PRIOR) == pytest.approx(0)
    assert insight(BOT, SKEWED) == pytest.approx(0)  # right on nine of ten, by blind luck
    assert insight(coin(0.0), PRIOR) == pytest.approx(-0.5)


def test_spread_sees_what_depends_on_the_truth_even_if_it_is_wrong():
    assert spread(np.eye(3), SKEWED) == pytest.approx(1)
    assert spread(np.roll(np.eye(3), 1, axis=1), PRIOR) == pytest.approx(1)
    assert spread(BOT, SKEWED) == pytest.approx(0)


@pytest.mark.parametrize(
    ("matrix", "name"),
    [
        (coin(1 / 3), "spammer"),
        (BOT, "one_answer"),
        (SHIFTED, "reversed"),
        (coin(0.05), "reversed"),
    ],
)
def test_a_matrix_that_is_well_known_gets_its_flag(matrix, name):
    flag = flags(matrix, 1000)
    assert flag.flag == name
    assert flag.score >= 0.95
    assert "1000 labels" in flag.says


@pytest.mark.parametrize("matrix", [coin(1 / 3), coin(0.3)])
def test_nobody_is_accused_on_a_handful_of_labels(matrix):
    assert flags(matrix, 25) is None
    assert flags(matrix, 1000) is not None


def test_below_twenty_labels_nothing_is_said_however_clear_it_looks():
    assert flags(np.tile([1.0, 0, 0], (3, 1)), 19) is None
    assert flags(np.tile([1.0, 0, 0], (3, 1)), 60).flag == "one_answer"


@pytest.mark.parametrize("right", [0.5, 0.6, 0.95])
def test_who_knows_something_gets_no_flag(right):
    assert flags(coin(right), 5000) is None


def test_a_rare_class_makes_no_bot_of_a_good_worker():
    assert flags(coin(0.9), 2000, prior=SKEWED) is None  # says 'cat' on four of five tasks
    assert flags(BOT, 2000, prior=SKEWED).flag == "one_answer"


def test_the_reason_has_the_figures():
    assert (
        flags(BOT, 400).says
        == "They answer 'cat' on 96 % of their 400 labels, whatever the truth is."
    )
    said = flags(coin(0.05), 300).says
    assert "right on 5 % of their 300 labels" in said
    assert "would be on 33 %" in said


def test_only_suspects_are_asked_how_sure_it_is():
    matrices = np.stack([coin(1 / 3), coin(0.8), BOT, coin(1 / 3)])
    labels = np.array([100, 100, 100, 5])
    assert suspects(matrices, PRIOR, labels).tolist() == [True, False, True, False]
    assert not suspects(np.ones((2, 1, 1)), np.ones(1), np.array([100, 100])).any()


def test_partners_of_a_ring_are_named():
    pairs = Pairs(
        worker=np.array([2, 2, 0]),
        other=np.array([5, 7, 1]),
        shared=np.array([40, 30, 30]),
        same=np.array([40, 29, 12]),
        expected=np.array([14.0, 11.0, 10.0]),
        score=np.array([60.0, 30.0, 0.4]),
    )
    found = colluding(pairs, lambda k: f"w{k}")
    assert sorted(found) == [2, 5, 7]
    assert found[2].partners == (5, 7)
    assert found[5].partners == (2,)
    assert found[5].says == (
        "They gave the same answer as w2 on 40 of 40 tasks both had, where 14 would be expected "
        "of two who do not talk."
    )
    assert "1 more of their pairs" in found[2].says
