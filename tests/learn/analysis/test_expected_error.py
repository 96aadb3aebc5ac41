"""Expected errors: the model's own, corrected on gold, and intervals that hold the truth."""

import numpy as np
import pytest

from labelquorum.errors import LabelError, StateError
from labelquorum.learn.analysis.certificate import Audit
from labelquorum.learn.analysis.expected_error import expected_error


def test_without_gold_it_is_the_mean_doubt_of_the_model_and_says_so():
    found = expected_error([0.9, 0.7, 0.8, 1.0])
    assert found.estimate == pytest.approx(0.15)
    assert (found.method, found.n_gold) == ("model", 0) and found.low < 0.15 < found.high
    assert "by the model's own confidence" in str(found)


def test_answers_without_doubt_have_no_width():
    found = expected_error([1.0, 1.0])
    assert (found.estimate, found.low, found.high) == (0, 0, 0)


def test_gold_corrects_a_model_that_is_too_sure():
    rng = np.random.default_rng(2)
    sure = rng.beta(9, 1, 2000)
    wrong = rng.random(2000) < 3 * (1 - sure)
    place = rng.permutation(2000)[:200]
    found = expected_error(sure, Audit(place, wrong[place]))
    assert found.method == "prediction-powered" and found.n_gold == 200
    assert expected_error(sure).high < wrong.mean()
    assert found.low < wrong.mean() < found.high
    assert "corrected on 200 gold tasks" in str(found)


def test_gold_without_a_wrong_answer_leaves_an_upper_bound():
    place = np.arange(20)
    found = expected_error(np.full(1000, 0.9), Audit(place, np.zeros(20, bool)))
    assert found.estimate == 0 and 0.1 < found.high < 0.2


def test_with_all_tasks_seen_it_is_exact():
    wrong = np.arange(40) % 4 == 0
    found = expected_error(np.linspace(0.5, 1, 40), Audit(np.arange(40), wrong))
    assert found.estimate == found.low == found.high == pytest.approx(0.25)


def test_selected_gold_is_not_used():
    audit = Audit(np.arange(3), np.ones(3, bool))
    found = expected_error(np.full(9, 0.9), audit, sampling="selected")
    assert (found.method, found.n_gold) == ("model", 0)


def test_bad_input_is_refused_in_a_sentence():
    with pytest.raises(LabelError, match="no task has an answer"):
        expected_error([])
    with pytest.raises(StateError, match="`level` must be a number between 0 and 1"):
        expected_error([0.5], level=2)


@pytest.mark.coverage
@pytest.mark.parametrize("n_gold", [20, 50, 200])
@pytest.mark.parametrize("factor", [0.5, 1.0, 2.5])
def test_the_interval_holds_the_true_share_as_often_as_it_says(n_gold, factor):
    rng, held, narrower = np.random.default_rng(11), 0, []
    for _ in range(600):
        sure = rng.beta(6, 1, 800)
        wrong = rng.random(800) < np.minimum(factor * (1 - sure), 1)
        place = rng.permutation(800)[:n_gold]
        found = expected_error(sure, Audit(place, wrong[place]))
        held += found.low <= wrong.mean() <= found.high
        plain = expected_error(np.full(800, 0.5), Audit(place, wrong[place]))
        narrower.append((found.high - found.low) / (plain.high - plain.low))
    # 0.927: 600 trials of 95 % stay above it with 99.5 %.
    assert held / 600 >= 0.927
    assert np.mean(narrower) < 1  # what the model knows helps
