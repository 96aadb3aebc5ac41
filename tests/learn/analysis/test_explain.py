"""What one more label would do, and what would flip an answer: laws and small examples."""

import numpy as np
import pytest

from labelquorum.ingest.chunks import make_chunk
from labelquorum.ingest.labels import MISSING
from labelquorum.learn.analysis import explain
from labelquorum.learn.analysis.explain import (
    discounted,
    gains,
    labels_to_flip,
    odds,
    prospects,
    removals_to_flip,
)
from labelquorum.learn.open_items import OpenItem


def one_coin(skill, n_classes=3):
    matrix = np.full((n_classes, n_classes), (1 - skill) / (n_classes - 1))
    np.fill_diagonal(matrix, skill)
    return matrix


SKILLS = np.array([one_coin(skill) for skill in (1 / 3, 0.5, 0.7, 0.9)])
PROBS = np.random.default_rng(0).dirichlet(np.ones(3), 500)
ONES = np.ones(len(PROBS))


# ── one more label ───────────────────────────────────────────────────────────────────────


def test_a_gain_is_never_negative():
    matrix = np.random.default_rng(1).dirichlet(np.ones(3), (20, 3))
    assert (gains(PROBS, matrix, 1 + 3 * np.random.default_rng(2).random(500)) >= 0).all()


def test_who_guesses_whatever_the_truth_gains_nothing():
    always = np.tile([0.5, 0.3, 0.2], (1, 3, 1))
    np.testing.assert_allclose(gains(PROBS, always, ONES), 0, atol=1e-12)


def test_a_better_worker_gains_more():
    table = gains(PROBS, SKILLS, ONES)
    assert (np.diff(table, axis=1) >= -1e-12).all()
    assert (np.diff(table.mean(axis=0)) > 0.01).all()


def test_the_gain_falls_as_confidence_rises():
    first = np.linspace(1 / 3, 1, 30)
    probs = np.stack([first, (1 - first) / 2, (1 - first) / 2], axis=1)
    gain = gains(probs, SKILLS[3:], np.ones(30))[:, 0]
    assert (np.diff(gain) < 0)[:20].all()
    assert gain[-1] == pytest.approx(0)


def test_a_gain_is_what_it_says_on_a_small_example():
    # q = (0.6, 0.4), and a worker who is right 8 times in 10: says 0, 0.48 + 0.08; says 1, 0.12
    # against 0.32. The answer is right with 0.48 + 0.32.
    gain = gains(np.array([[0.6, 0.4]]), one_coin(0.8, 2)[None], np.ones(1))
    assert gain[0, 0] == pytest.approx(0.8 - 0.6)


def test_a_label_that_leans_on_others_gains_less():
    cool, hot = (gains(PROBS, SKILLS, ONES * temperature).mean() for temperature in (1, 2))
    assert hot < cool
    np.testing.assert_allclose(discounted(SKILLS, 1.0), SKILLS)
    np.testing.assert_allclose(discounted(SKILLS, 2.0).sum(axis=2), 1)


def test_nobody_is_asked_twice_and_the_mean_is_over_those_who_are_left(monkeypatch):
    asked = make_chunk([0, 1, 1, 1, 1], [3, 0, 1, 2, 3], [0] * 5, n_items=500, n_workers=4)
    share = np.array([0.1, 0.2, 0.3, 0.4])
    found = prospects(PROBS, SKILLS, ONES, share, asked)
    table = gains(PROBS, SKILLS, ONES)
    assert found.worker[0] != 3
    assert found.mean[0] == pytest.approx(table[0, :3] @ share[:3] / 0.6)
    assert found.worker[1] == MISSING
    # All were asked: a new worker is expected to be like them.
    assert np.isnan(found.gain[1]) and found.mean[1] == pytest.approx(table[1] @ share)
    np.testing.assert_allclose(found.gain[2:], table[2:].max(axis=1))
    np.testing.assert_allclose(found.mean[2:], table[2:] @ share)
    monkeypatch.setattr(explain, "MAX_ARRAY_SIZE", 28)  # seven items at a time
    again = prospects(PROBS, SKILLS, ONES, share, asked)
    for one, other in zip(found, again, strict=True):
        np.testing.assert_array_equal(one, other)


def test_without_workers_there_are_no_prospects():
    asked = make_chunk([], [], [], n_items=500, n_workers=0, n_classes=3)
    found = prospects(PROBS, np.zeros((0, 3, 3)), ONES, np.zeros(0), asked)
    assert (found.worker == MISSING).all() and np.isnan(found.gain).all()


# ── what would flip an answer ────────────────────────────────────────────────────────────


def open_item(probs, evidence, answer=0, gold=MISSING):
    evidence, probs = np.asarray(evidence, np.float32), np.asarray(probs, np.float32)
    n_labels = len(evidence)
    return OpenItem(
        np.arange(n_labels, dtype=np.int32),
        evidence.argmax(axis=1).astype(np.int32),
        np.ones(n_labels, np.float32),
        evidence,
        probs,
        answer,
        np.zeros_like(probs),
        gold,
    )


def softmax(scores):
    return np.exp(scores) / np.exp(scores).sum()


EVIDENCE = np.array([[-0.2, -2.2], [-0.3, -1.3], [-1.9, -0.4]])
LOG_PRIOR = np.log([0.7, 0.3])


@pytest.mark.parametrize("temperature", [1.0, 1.4])
def test_the_log_odds_are_the_priors_and_the_labels(temperature):
    probs = softmax((LOG_PRIOR + EVIDENCE.sum(axis=0)) / temperature)
    found = odds(open_item(probs, EVIDENCE), temperature, LOG_PRIOR, np.log(one_coin(0.8, 2)))
    assert found.runner_up == 1
    np.testing.assert_allclose(found.by_label, [2.0, 1.0, -1.5], rtol=1e-6)
    assert found.prior == pytest.approx(np.log(7 / 3), abs=1e-5)
    assert found.total == pytest.approx(1.5 + np.log(7 / 3), abs=1e-5)
    assert found.removals == [0, 1]  # 2.35 without the first is still for the answer
    assert found.further_labels == 2  # each says log 4 = 1.39


def test_a_probability_lost_in_float32_is_told_by_the_labels():
    evidence = np.tile([-0.01, -5.0], (30, 1))
    found = odds(open_item([1.0, 0.0], evidence), 1.0, LOG_PRIOR, np.log(one_coin(0.8, 2)))
    assert found.prior == pytest.approx(np.log(7 / 3))
    assert found.total == pytest.approx(30 * 4.99 + np.log(7 / 3), rel=1e-5)


def test_where_nothing_adds_up_there_is_no_prior_but_what_the_labels_say():
    votes = np.eye(2)[[0, 0, 0, 1]]
    found = odds(open_item([0.75, 0.25], votes), 1.0, None, np.log(one_coin(0.8, 2)))
    assert np.isnan(found.prior)
    assert found.total == 2
    assert found.further_labels is None
    assert len(found.removals) == 3  # two leave a tie


def test_a_given_truth_is_flipped_by_nothing():
    found = odds(open_item([1.0, 0.0], EVIDENCE, gold=0), 1.0, LOG_PRIOR, np.log(one_coin(0.8, 2)))
    assert (found.removals, found.further_labels) == ([], None)


def test_one_class_has_no_runner_up():
    found = odds(open_item([1.0], [[0.0]]), 1.0, np.zeros(1), np.zeros((1, 1)))
    assert found.runner_up == MISSING


def test_the_removed_labels_are_the_fewest():
    rng = np.random.default_rng(3)
    for _ in range(200):
        evidence = np.log(rng.dirichlet(np.ones(2), 5))
        scores = evidence.sum(axis=0)
        answer = int(scores.argmax())
        by_label = evidence[:, answer] - evidence[:, 1 - answer]
        gone = removals_to_flip(scores, evidence, answer, by_label)
        fewest = next(
            (
                n
                for n in range(1, 5)
                if scores[answer] - scores[1 - answer] < np.sort(by_label)[::-1][:n].sum()
            ),
            0,
        )
        assert len(gone) == fewest
        left = np.delete(evidence, gone, axis=0).sum(axis=0)
        assert not gone or left.argmax() != answer


def test_labels_of_who_knows_nothing_flip_nothing():
    assert labels_to_flip(1.0, np.log(np.full((2, 2), 0.5)), 0, 1) is None
    assert labels_to_flip(1.0, np.log(one_coin(0.9, 2)), 0, 1) == 1
    assert labels_to_flip(10.0, np.log(one_coin(0.9, 2)), 0, 1) == 5
