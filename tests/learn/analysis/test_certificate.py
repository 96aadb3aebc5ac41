"""Certificates: known answers, exact ends, and promises that are kept however often one looks."""

from itertools import permutations
from math import floor

import numpy as np
import pytest

from labelquorum.errors import LabelError, StateError
from labelquorum.learn.analysis.certificate import BETS, Audit, certificate, checked_audit

NONE = Audit(np.zeros(0, np.intp), np.zeros(0, bool))


def drawn(order, wrong):
    """The gold after these draws."""
    return Audit(np.asarray(order, np.intp), np.asarray(wrong, bool)[order])


def stands(found, audit):
    """The accepted answers."""
    kept = np.ones(found.tasks, bool)
    kept[audit.place] = kept[list(found.todo)] = False
    return kept if found.certified else np.zeros(found.tasks, bool)


def capital(n_tasks, r, hits):
    """K of the definition, factor by factor."""
    by_bet = np.ones(len(BETS))
    for i, hit in enumerate(hits, 1):
        p = r / (n_tasks - i + 1)
        by_bet *= BETS if hit else (1 - BETS * p) / (1 - p)
    return by_bet.mean()


def test_the_capital_of_the_frontier_is_a_fair_game():
    # All orders of 6 tasks, 3 of them wrong, 1 allowed: the frontier has 2 unseen wrong answers.
    wrong, r = np.array([0, 1, 1, 0, 1, 0], bool), 2
    totals = []
    for order in permutations(range(6)):
        unseen, by_bet = set(np.flatnonzero(wrong).tolist()), np.ones(len(BETS))
        for i, task in enumerate(order[:3], 1):
            frontier = sorted(unseen)[:r]
            if len(frontier) < r:
                break
            p = r / (6 - i + 1)
            by_bet = by_bet * (BETS if task in frontier else (1 - BETS * p) / (1 - p))
            unseen.discard(task)
        totals.append(by_bet.mean())
    assert np.mean(totals) == pytest.approx(1)


def test_sets_are_accepted_up_to_the_wrong_answer_that_takes_their_capital():
    rng, sure = np.random.default_rng(3), np.linspace(1, 0.5, 300)
    wrong = rng.random(300) < (1 - sure) / 2
    audit = drawn(rng.permutation(300)[:90], wrong)
    found = certificate(sure, audit, error=0.1)
    kept = stands(found, audit)
    assert found.certified and kept.sum() == found.accepted > 30
    assert found.accepted + found.gold + len(found.todo) == 300
    assert sure[kept].min() == found.threshold
    # By the definition, over every n at once.
    last = np.flatnonzero(kept).max()
    for end, reached in ((last, True), (int(found.todo[-1]), False)):
        hits = audit.wrong & (audit.place <= end)
        peak = max(capital(300, 31, hits[:n]) for n in range(1, 91))
        assert (peak >= 20) == reached


def test_tasks_for_people_come_least_sure_first_and_ties_are_split_by_their_order():
    sure = np.array([0.9] * 200 + [0.8] * 200)
    wrong = np.zeros(400, bool)
    wrong[[120, 150, 170, 180, 190, 250, 300, 350]] = True
    order = [*range(0, 400, 5), 120, 150, 170, 180, 190, 250]
    order = list(dict.fromkeys(order))
    found = certificate(sure, drawn(order, wrong), error=0.05)
    assert found.certified and found.threshold == 0.9
    assert sure[list(found.todo)].tolist() == sorted(sure[list(found.todo)])
    assert 0.9 in sure[list(found.todo)]


def test_without_enough_gold_it_refuses_and_says_how_much_it_takes():
    sure = np.linspace(0, 1, 1000)
    found = certificate(sure, NONE, error=0.05)
    assert not found.certified and found.threshold is None and found.accepted == 0
    assert len(found.todo) == 1000 and f"at least {found.gold_needed} of 1,000" in str(found)
    order = np.random.default_rng(0).permutation(1000)
    right = np.zeros(1000, bool)
    n = found.gold_needed
    assert certificate(sure, drawn(order[:n], right), error=0.05).certified
    short = certificate(sure, drawn(order[: n - 1], right), error=0.05)
    assert not short.certified and short.gold_needed == n


def test_a_wrong_answer_among_the_surest_takes_more_gold():
    sure = np.linspace(1, 0, 1000)
    before = certificate(sure, NONE, error=0.05).gold_needed
    wrong = np.arange(1000) == 0
    assert certificate(sure, drawn([0], wrong), error=0.05).gold_needed > before


def test_with_all_tasks_seen_nothing_is_left_to_doubt():
    wrong = np.arange(50) % 2 == 0
    found = certificate(np.linspace(0, 1, 50), drawn(range(50), wrong), error=0.02)
    assert found.certified and found.error_bound == 0 and not len(found.todo)
    # All but as many as may be wrong: the rest stands by counting.
    found = certificate(np.linspace(0, 1, 50), drawn(range(45), wrong), error=0.1)
    assert (found.certified, found.accepted, found.error_bound) == (True, 5, 0.1)


def test_selected_gold_is_no_evidence():
    sure, right = np.linspace(0, 1, 500), np.zeros(500, bool)
    audit = drawn(range(0, 500, 2), right)
    assert certificate(sure, audit, error=0.1).certified
    found = certificate(sure, audit, error=0.1, sampling="selected")
    assert not found.certified and found.gold == 0 and "people selected" in str(found)


def test_no_tasks_have_no_certificate():
    assert "no task has an answer" in str(certificate([], NONE))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: certificate([0.5, 1.2], NONE), "Got 1.2 at place 1"),
        (lambda: certificate([[0.5]], NONE), "shape"),
        (lambda: certificate([0.5], NONE, error=0), "`error` must be a number between 0 and 1"),
        (
            lambda: certificate([0.5], NONE, level=1),
            "`confidence` must be a number between 0 and 1",
        ),
        (lambda: checked_audit([0, 0], [True, False], 3), "drawn twice"),
        (lambda: checked_audit([3], [True], 3), "not in 0 … 2"),
        (lambda: checked_audit([0], [True, False], 3), "1 tasks and 2 outcomes"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(call, sentence):
    with pytest.raises((StateError, LabelError), match=sentence):
        call()


def violated(sure, wrong, error, replays, seed):
    """The share of replays in which any certificate, after any draw, promised too much."""
    rng, n_tasks, broken = np.random.default_rng(seed), len(sure), 0
    for _ in range(replays):
        order = rng.permutation(n_tasks)
        n, bad = 0, False
        while n < n_tasks and not bad:
            audit = drawn(order[:n], wrong)
            found = certificate(sure, audit, error)
            bad = wrong[stands(found, audit)].sum() > floor(error * n_tasks + 1e-9)
            n = found.gold_needed or n + 5
        broken += bad
    return broken / replays


@pytest.mark.coverage
@pytest.mark.parametrize(
    ("error", "shape"),
    [
        (0.05, "as promised"),  # confidences hold
        (0.1, "useless"),  # they say nothing, and the error is just above what is allowed
        (0.1, "reversed"),  # the surest are wrong
        (0.02, "small"),
    ],
)
def test_promises_are_kept_however_often_one_looks(error, shape):
    rng = np.random.default_rng(7)
    n_tasks = 120 if shape == "small" else 300
    sure = rng.beta(4, 1, n_tasks)
    wrong = rng.random(n_tasks) < 1 - sure
    if shape == "useless":
        wrong = np.zeros(n_tasks, bool)
        wrong[rng.permutation(n_tasks)[: floor(error * n_tasks) + 1]] = True
    if shape == "reversed":
        wrong = sure > 0.9
    # 6.4 %: what 5 % of 500 replays stay under with 95 %.
    assert violated(sure, wrong, error, 500, seed=1) <= 0.064


def test_a_bound_that_ignored_the_peeking_would_be_violated():
    # The same replays with the plain bound at each look: the test above can fail.
    rng, n_tasks, error, broken = np.random.default_rng(5), 300, 0.1, 0
    wrong = np.zeros(n_tasks, bool)
    wrong[:31] = True
    for _ in range(300):
        found = np.cumsum(wrong[rng.permutation(n_tasks)])[29:]
        n = np.arange(30, n_tasks + 1)
        share = found / n
        high = share + 1.645 * np.sqrt(share * (1 - share) / n * (1 - n / n_tasks))
        broken += bool((high <= error).any())
    assert broken / 300 > 0.15
