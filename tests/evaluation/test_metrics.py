"""Scores against hand-worked and published values."""

import math

import numpy as np
import pytest

from labelquorum.errors import StateError
from labelquorum.evaluation.metrics import calibration_error, error_rate, log_loss, reliability
from labelquorum.learn.analysis.agreement import class_agreement, krippendorff_alpha

# Krippendorff, "Computing Krippendorff's Alpha-Reliability", 2011, section C: four observers,
# twelve units, missing data. A row is an observer, a column a unit.
FOUR_OBSERVERS = """
    1 2 3 3 2 1 4 1 2 . . .
    1 2 3 3 2 2 4 1 2 5 . 3
    . 3 3 3 2 3 4 2 2 5 1 .
    1 2 3 3 2 4 4 1 2 5 1 .
"""
# The worked example with three coders and fifteen units (Wikipedia, "Krippendorff's alpha").
THREE_CODERS = """
    . . . . . 3 4 1 2 1 1 3 3 . 3
    1 . 2 1 3 3 4 3 . . . . . . .
    . . 2 1 3 4 4 . 2 1 1 3 3 . 4
"""


def columns_of(matrix: str) -> tuple[list[int], list[int]]:
    cells = [
        (unit, int(value) - 1)
        for row in matrix.split("\n")
        for unit, value in enumerate(row.split())
        if value != "."
    ]
    return [unit for unit, _ in cells], [value for _, value in cells]


def random_labels(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(40, size=150), rng.integers(4, size=150)


@pytest.mark.parametrize(("matrix", "published"), [(FOUR_OBSERVERS, 0.743), (THREE_CODERS, 0.691)])
def test_alpha_of_published_examples_with_missing_data(matrix, published):
    assert round(krippendorff_alpha(*columns_of(matrix), n_classes=5), 3) == published


def test_alpha_is_one_when_all_agree_and_about_zero_when_labels_are_dealt_at_random():
    assert krippendorff_alpha([0, 0, 1, 1], [0, 0, 1, 1], 2) == 1
    rng = np.random.default_rng(1)
    chance = krippendorff_alpha(np.repeat(np.arange(9000), 3), rng.integers(3, size=27_000), 3)
    assert chance == pytest.approx(0, abs=0.02)


def test_alpha_of_nothing_to_compare_is_not_a_number():
    assert math.isnan(krippendorff_alpha([], [], 2))
    assert math.isnan(krippendorff_alpha([0, 1, 2], [0, 1, 0], 2))  # no item with two labels
    assert math.isnan(krippendorff_alpha([0, 0, 1, 1], [1, 1, 1, 1], 2))  # no class to confuse


def test_alpha_ignores_single_labels_the_order_of_rows_and_the_numbers_of_items():
    item, label = random_labels(2)
    alpha = krippendorff_alpha(item, label, 4)
    order = np.random.default_rng(3).permutation(item.size)
    assert krippendorff_alpha(1000 * item[order], label[order], 4) == pytest.approx(alpha)
    assert krippendorff_alpha([*item, 77, 78], [*label, 0, 3], 4) == pytest.approx(alpha)


def test_alpha_with_weights_leaves_out_weight_zero_and_a_common_factor():
    item, label = random_labels(4)
    kept = np.random.default_rng(5).random(item.size) < 0.7
    alpha = krippendorff_alpha(item[kept], label[kept], 4)
    assert krippendorff_alpha(item, label, 4, weight=3.5 * kept) == pytest.approx(alpha)


def test_weight_moves_alpha_towards_the_heavy_pairs():
    item, label = [0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 0, 1]
    light = krippendorff_alpha(item, label, 2, weight=[1, 1, 1, 1, 0.1, 0.1])
    assert krippendorff_alpha(item, label, 2) < light < 1


def test_class_agreement_of_a_hand_worked_table():
    # Item 0 has labels 0 0 1, item 1 has 1 1, item 2 stands alone.
    agreement, alpha = class_agreement([0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 1, 2], n_classes=3)
    # Each label 0 meets one 0 and one 1; the lone 1 meets two 0s, the others meet each other.
    assert agreement[:2] == pytest.approx([1 / 2, 2 / 3])
    expected = np.array([(2 - 1) / (5 - 1), (3 - 1) / (5 - 1)])
    assert alpha[:2] == pytest.approx((agreement[:2] - expected) / (1 - expected))
    assert math.isnan(agreement[2])
    assert math.isnan(alpha[2])


@pytest.mark.parametrize("weighted", [False, True])
def test_alpha_of_a_class_is_alpha_of_that_class_against_the_rest(weighted):
    item, label = random_labels(6)
    weight = np.random.default_rng(7).random(item.size) if weighted else None
    alpha = class_agreement(item, label, 4, weight).alpha
    for c in range(4):
        asked = krippendorff_alpha(item, (label == c).astype(int), 2, weight)
        assert alpha[c] == pytest.approx(asked)


def test_error_rate_counts_items_with_truth_only():
    assert error_rate([0, 1, 2, 2], [0, 1, 1, -1]) == pytest.approx(1 / 3)


def test_an_item_without_an_answer_counts_as_an_error():
    assert error_rate([0, -1], [0, 1]) == 0.5


def test_scores_without_any_truth_are_not_numbers():
    probs = [[0.5, 0.5]]
    scores = error_rate([0], [-1]), log_loss(probs, [-1]), calibration_error(probs, [-1])
    assert all(map(math.isnan, scores))


def test_log_loss_is_the_mean_surprise_and_stays_finite():
    probs = [[0.25, 0.75], [1.0, 0.0], [0.5, 0.5]]
    assert log_loss(probs, [1, 0, -1]) == pytest.approx(-math.log(0.75) / 2)
    assert log_loss(probs[1:2], [1]) == pytest.approx(-math.log(1e-12))


def test_calibration_error_of_a_hand_worked_table():
    probs = np.array([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6], [0.3, 0.7]])
    # Bins of width 1/2: all confidences lie in the upper one; 3 of 4 are right.
    assert calibration_error(probs, [0, 1, 1, 1], bins=2) == pytest.approx(abs(0.75 - 0.775))
    # Bins of width 1/4: 0.6 and 0.7 (both right), then 0.9 twice (one right).
    fine = 0.5 * abs(1 - 0.65) + 0.5 * abs(0.5 - 0.9)
    assert calibration_error(probs, [0, 1, 1, 1], bins=4) == pytest.approx(fine)


def test_calibration_error_of_honest_probabilities_is_near_zero():
    rng = np.random.default_rng(8)
    probs = rng.dirichlet([1, 1, 1], size=50_000)
    truth = (rng.random((50_000, 1)) > np.cumsum(probs, axis=1)).sum(axis=1)
    assert calibration_error(probs, truth) < 0.01
    assert calibration_error(probs**4 / (probs**4).sum(axis=1, keepdims=True), truth) > 0.1


def test_reliability_counts_items_confidence_and_right_answers_of_each_bin():
    probs = [[0.9, 0.1], [0.9, 0.1], [0.4, 0.6], [0.3, 0.7], [0.5, 0.5]]
    counts = reliability(probs, [0, 1, 1, 1, -1], bins=4)
    assert counts == pytest.approx(np.array([[0, 0, 0], [0, 0, 0], [2, 1.3, 2], [2, 1.8, 1]]))
    assert not reliability(probs, [-1] * 5).any()


@pytest.mark.parametrize("confidence", [0.0, 1.0])
def test_calibration_error_takes_the_ends_of_the_scale(confidence):
    assert calibration_error([[confidence]], [0]) == pytest.approx(1 - confidence)


@pytest.mark.parametrize(
    ("score", "sentence"),
    [
        (lambda: error_rate([0, 1], [0]), "one entry for each item. Got shapes"),
        (lambda: log_loss([[0.5, 0.5]], [0, 1]), "one entry for each item"),
        (lambda: log_loss([[0.5, 0.5]], [2]), "class indices below 2"),
        (lambda: calibration_error([[1.0]], [0], bins=0), "`bins` .* ≥ 1. Got 0"),
    ],
)
def test_tables_that_do_not_fit_are_refused_with_a_sentence(score, sentence):
    with pytest.raises(StateError, match=sentence):
        score()
