"""Juries with known answers: effective judges, groups that err together, order effects."""

import json
from itertools import combinations
from statistics import NormalDist

import numpy as np
import pandas as pd
import pytest

import labelquorum as lq
from labelquorum.errors import StateError
from labelquorum.learn import inspection
from labelquorum.learn import jury as jury_of_model
from labelquorum.learn.analysis.intervals import wilson
from labelquorum.learn.analysis.jury import (
    effective_number,
    error_correlations,
    first_shown,
    found_groups,
    order_effect,
)

N_TASKS = 400


def votes(said):
    """A column per judge, w00 and on, a row per task."""
    n, k = said.shape
    tasks = np.repeat([f"t{i}" for i in range(n)], k)
    workers = [f"w{j:02d}" for j in range(k)] * n
    return pd.DataFrame({"task": tasks, "worker": workers, "label": said.ravel()})


def said_by(truth, rng, n_judges, skill=0.75):
    right = rng.random((len(truth), n_judges)) < skill
    return np.where(right, truth[:, None], 1 - truth[:, None])


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def truth(rng):
    return rng.integers(0, 2, N_TASKS)


def gold_of(truth, n):
    return {f"t{i}": int(truth[i]) for i in range(n)}


def test_judges_with_independent_errors_count_for_themselves(truth, rng):
    said = said_by(truth, rng, 12)
    jury = lq.BiLA().fit(votes(said), gold_of(truth, N_TASKS)).jury()
    assert jury.reference == "gold" and jury.tasks == jury.gold_tasks == N_TASKS
    assert jury.low <= jury.effective <= jury.high <= 12
    assert jury.effective > 10
    assert jury.groups.empty


def test_copies_of_a_judge_count_as_one(truth, rng):
    said = np.repeat(said_by(truth, rng, 1), 6, axis=1)
    jury = lq.BiLA().fit(votes(said), gold_of(truth, 100)).jury()
    assert jury.effective == pytest.approx(1) and jury.correlation == pytest.approx(1)


def test_the_correlation_is_pearsons_of_errors_on_shared_tasks(truth, rng):
    said = said_by(truth, rng, 4)
    errors = np.where(rng.random(said.shape) < 0.1, np.nan, said != truth[:, None])
    found = error_correlations(errors)
    wanted = pd.DataFrame(errors).corr().to_numpy(copy=True)
    np.fill_diagonal(wanted, np.nan)
    np.testing.assert_allclose(found.pairs, wanted)
    assert found.within[0] == pytest.approx(np.nanmean(wanted))


@pytest.mark.parametrize("rho", [0.0, 0.3])
def test_the_interval_of_the_correlation_holds_as_often_as_it_says(rho, rng):
    covered = 0
    for _ in range(200):
        shared = rng.random((150, 1)) < 0.3
        copies = rng.random((150, 6)) < np.sqrt(rho)
        errors = np.where(copies, shared, rng.random((150, 6)) < 0.3).astype(float)
        found = error_correlations(errors)
        covered += found.within_low[0] <= rho <= found.within_high[0]
    assert covered >= 180  # 95 % of 200 are 190; 180 is 3 standard deviations below


def test_judges_of_one_model_who_err_together_are_reported_as_a_group(truth, rng):
    said = said_by(truth, rng, 10)
    for j in range(4):
        copied = rng.random(N_TASKS) < 0.8
        said[copied, j] = said[copied, 0]
    workers = pd.DataFrame(
        {"worker": [f"w{j:02d}" for j in range(10)], "model": ["m"] * 4 + ["n", "o"] * 3}
    )
    table, gold = votes(said), gold_of(truth, N_TASKS)
    jury = lq.BiLA().fit(table, gold, workers=workers).jury()
    by_model = jury.groups.set_index("group")
    assert by_model.index[0] == "m" and by_model.loc["m", "excess_low"] > 0
    assert (by_model.loc[["n", "o"], "excess_low"] < 0).all()
    assert by_model.loc["m", "effective"] < 2
    assert "4 judges of m err together" in str(jury)
    found = lq.BiLA().fit(table, gold).jury().groups  # the same judges, without attributes
    assert found["by"].tolist() == ["errors"]
    assert found["judges"][0] == ["w00", "w01", "w02", "w03"]


def test_of_independent_judges_no_group_is_found(rng):
    found = 0
    for _ in range(50):
        errors = (rng.random((200, 15)) < 0.3).astype(float)
        pairs = error_correlations(errors)
        found += bool(found_groups(pairs.pairs, pairs.shared))
    assert found <= 2


def test_without_gold_errors_are_those_against_the_consensus(truth, rng):
    said = said_by(truth, rng, 8)
    for gold in (None, gold_of(truth, 19)):
        jury = lq.BiLA().fit(votes(said), gold).jury()
        assert jury.reference == "consensus" and "20 gold tasks" in str(jury)
        assert jury.gold_tasks == len(gold or ())
        assert (jury.judges["by"] == "model").sum() == (8 if gold is None else 0)
    assert lq.BiLA().fit(votes(said), gold_of(truth, 20)).jury().reference == "gold"


@pytest.mark.parametrize("n_judges", [6, 12])
def test_without_gold_independent_judges_count_for_themselves(n_judges):
    found = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        truth = rng.integers(0, 2, N_TASKS)
        found.append(lq.BiLA().fit(votes(said_by(truth, rng, n_judges))).jury().effective)
    assert np.mean(found) > 0.85 * n_judges


def test_without_gold_judges_who_err_together_count_as_often_as_with_gold():
    for seed in range(3):
        rng = np.random.default_rng(seed)
        truth = rng.integers(0, 2, N_TASKS)
        said = said_by(truth, rng, 12, skill=0.85)
        tricky = np.tile(rng.random((N_TASKS, 6)) < 0.2, 2)  # two judges fall for the same tasks
        said = np.where(tricky, 1 - truth[:, None], said)
        alone, counted = (
            lq.BiLA().fit(votes(said), gold).jury().effective
            for gold in (None, gold_of(truth, N_TASKS))
        )
        assert 0.75 < alone / counted < 1.25


def test_how_often_two_are_wrong_together_is_expected_by_the_posterior(rng):
    said = rng.integers(0, 3, (300, 4)).astype(np.int32)
    posterior = rng.dirichlet(np.ones(3), 300)
    wrong = said[:, :, None] != np.arange(3)  # (N, K, C)
    n_tasks = len(said)
    both = np.einsum("njc,nkc,nc->jk", wrong, wrong, posterior) / n_tasks
    one = np.einsum("njc,nc->j", wrong, posterior) / n_tasks
    wanted = (both - np.outer(one, one)) / np.sqrt(np.outer(one * (1 - one), one * (1 - one)))
    np.fill_diagonal(wanted, np.nan)
    errors = 1 - np.take_along_axis(posterior, said.astype(np.intp), axis=1)
    np.testing.assert_allclose(error_correlations(errors, said=said).pairs, wanted)


def test_a_group_that_was_found_is_named_by_its_judges(truth, rng):
    said = said_by(truth, rng, 12)
    said[:, 1:6] = said[:, :1]
    text = str(lq.BiLA().fit(votes(said), gold_of(truth, N_TASKS)).jury())
    assert "w00, w01, w02 and 3 more err together" in text and "group 1" not in text


def test_gold_that_is_not_enough_is_counted_in_the_sentence(truth, rng):
    table = votes(said_by(truth, rng, 8))
    assert "count real errors, 15 are there." in str(
        lq.BiLA().fit(table, gold_of(truth, 15)).jury()
    )


def test_gold_that_few_pairs_of_a_sparse_crowd_share_does_not_stand_for_all(truth, rng):
    table = votes(said_by(truth, rng, 20))
    sparse = table[rng.random(len(table)) < 0.25]
    tasks = sparse["task"].unique().tolist()
    gold = {task: true for task, true in gold_of(truth, N_TASKS).items() if task in tasks}
    some = dict(list(gold.items())[:40])
    jury = lq.BiLA().fit(sparse, some).jury()
    assert jury.reference == "consensus" and "too few of the 40 gold tasks" in str(jury)
    assert lq.BiLA().fit(sparse, gold).jury().reference == "gold"


def test_reliability_is_the_share_right_on_gold_and_else_the_skill(truth, rng):
    said = said_by(truth, rng, 5)
    table = votes(said)
    late = (table["worker"] == "w04") & table["task"].isin([f"t{i}" for i in range(95)])
    model = lq.BiLA().fit(table[~late], gold_of(truth, 100))
    judges = model.jury().judges
    share = (said[:100, 0] == truth[:100]).mean()
    assert judges.loc["w00", "reliability"] == pytest.approx(share)
    assert judges.loc["w00", "by"] == "gold"
    low, high = judges.loc["w00", ["low", "high"]]
    assert low < share < high and high - low < 0.2
    assert judges.loc["w04", "by"] == "model"  # 5 gold tasks are too few
    assert judges.loc["w04", "reliability"] == pytest.approx(model.skills_["w04"], abs=1e-6)
    assert judges.loc["w04", "labels"] == N_TASKS - 95


def test_the_preference_for_the_answer_shown_first_is_recovered(truth, rng):
    both = said_by(truth, rng, 2, 0.9).repeat(2, axis=1)
    lean = rng.random((N_TASKS, 2)) < 0.3
    both[lean[:, 0], 0], both[lean[:, 1], 1] = 0, 1  # 0 is shown first in AB, 1 in BA
    workers = pd.DataFrame(
        {
            "worker": ["w00", "w01", "w02", "w03"],
            "model": ["m", "m", "n", "n"],
            "order": ["AB", "BA"] * 2,
        }
    )
    jury = lq.BiLA().fit(votes(both), workers=workers).jury()
    rows = jury.order_effects.set_index("worker")
    flips = (both[:, 0] != both[:, 1]).mean()
    assert rows.loc["w00", "flips"] == pytest.approx(flips)
    assert rows.loc["w00", "label"] == 0 and rows.loc["w00", "first_shown"]
    # 0.3 chosen by position in either order: it takes the first shown 30 points more often
    assert rows.loc["w00", "low"] < 0.3 < rows.loc["w00", "high"]
    assert rows.loc["w00", "low"] > 0.2
    assert rows.loc["w02", "flips"] == 0 and rows.loc["w02", "low"] < 0 < rows.loc["w02", "high"]
    assert "1 of 2 judges lean one way" in str(jury)


def test_which_answer_is_shown_first_is_not_guessed():
    assert first_shown("AB", "BA", ["2", "1"]) == 1
    assert first_shown("BA", "AB", ["2", "1"]) == 0
    for order, other in (("x", "y"), ("AB", "AC"), ("AA", "AA")):
        assert first_shown(order, other, ["1", "2"]) is None
    assert first_shown("AB", "BA", ["1", "2", "3"]) is None
    effect = order_effect(np.array([0, 1, 2, 2]), np.array([0, 1, 1, 1]), 3)
    assert effect is not None and effect.label in (1, 2) and abs(effect.shift) == 0.5
    assert order_effect(np.zeros(0, np.intp), np.zeros(0, np.intp), 2) is None


def test_a_number_of_judges_is_at_most_their_number():
    assert effective_number(5, -0.2) == 5
    assert effective_number(5, 1) == 1


def test_one_judge_is_no_jury_and_a_forgotten_one_is_not_in_it(truth, rng):
    model = lq.BiLA().fit(votes(said_by(truth, rng, 3)))
    model.forget("w01")
    assert model.jury().judges.index.tolist() == ["w00", "w02"]
    model.forget("w02")
    alone = model.jury()
    assert alone.n_judges == 1 and np.isnan(alone.effective)
    assert str(alone) == "1 judge: a jury has two or more."
    nobody = lq.BiLA(open_items=0).fit(votes(said_by(truth, rng, 3))).jury()
    assert nobody.n_judges == 0 and nobody.groups.empty and nobody.order_effects.empty


def test_a_large_crowd_is_cut_to_those_with_most_labels(truth, rng):
    table = votes(said_by(truth, rng, 6))
    fewer = table[~((table["worker"] == "w03") & (table.index % 4 == 1))]
    jury = lq.BiLA().fit(fewer).jury(max_workers=5)
    assert jury.left_out == 1 and "w03" not in jury.judges.index
    with pytest.raises(StateError, match="level"):
        lq.BiLA().fit(table).jury(level=1)


def test_a_method_without_intervals_reports_without_bounds(truth, rng):
    judges = lq.MajorityVote().fit(votes(said_by(truth, rng, 4))).jury().judges
    assert judges["reliability"].between(0, 1).all() and judges["low"].isna().all()


def test_the_report_as_plain_values_is_json(truth, rng):
    jury = lq.BiLA().fit(votes(said_by(truth, rng, 4))).jury()
    plain = json.loads(json.dumps(jury.to_dict(), allow_nan=False))
    assert plain["text"] == str(jury) and plain["effective"] == pytest.approx(jury.effective)
    assert [row["worker"] for row in plain["judges"]] == jury.judges.index.tolist()
    assert jury._repr_html_().startswith("<p>4 judges count as")


# ── the same, pair by pair ───────────────────────────────────────────────────────────────────


def pair_correlation(errors, said, j, k):
    """Pearson's correlation on the tasks both have labelled; NaN where one never differs."""
    both = np.isfinite(errors[:, j]) & np.isfinite(errors[:, k])
    a, b = errors[both, j], errors[both, k]
    if both.sum() < 2:
        return np.nan
    wrong = a * b if said is None else a + b - 1 + (1 - a) * (said[both, j] == said[both, k])
    variances = a.mean() - a.mean() ** 2, b.mean() - b.mean() ** 2
    if min(variances) <= 1e-12:
        return np.nan
    return (wrong.mean() - a.mean() * b.mean()) / np.sqrt(variances[0] * variances[1])


def group_means(pairs, groups):
    """Means of pairs within groups, and those less the mean with judges outside."""
    every = np.arange(len(pairs))
    found = []
    for members in (every, *groups):
        outside = np.setdiff1d(every, members)
        inside, across = pairs[np.ix_(members, members)], pairs[np.ix_(members, outside)]
        some = [one[np.isfinite(one)] for one in (inside, across)]
        within, beyond = (one.mean() if len(one) else np.nan for one in some)
        found.append((within, within - beyond))
    return np.array(found).T


def straightforward(errors, groups, said):
    """Correlations, means, and half-widths by the jackknife, leaving out each part in turn."""
    n, k = errors.shape
    seen = np.isfinite(errors).astype(int)

    def correlated(rows):
        pairs = np.full((k, k), np.nan)
        for i, j in zip(*np.triu_indices(k, 1), strict=True):
            labels = None if said is None else said[rows]
            pairs[i, j] = pairs[j, i] = pair_correlation(errors[rows], labels, i, j)
        return pairs

    pairs = correlated(np.ones(n, bool))
    pairs[seen.T @ seen < 5] = np.nan
    without = []
    for part in range(50):
        rest = np.where(np.isfinite(pairs), correlated(np.arange(n) % 50 != part), np.nan)
        without.append(group_means(rest, groups))
    spread = (without - np.mean(without, axis=0)) ** 2
    return pairs, group_means(pairs, groups), 1.959963984540054 * np.sqrt(49 * spread.mean(axis=0))


@pytest.mark.parametrize("is_given", [True, False])
def test_correlations_and_intervals_are_those_computed_pair_by_pair(rng, is_given):
    posterior = rng.dirichlet(np.ones(3), 120)
    said = rng.integers(0, 3, (120, 7)).astype(np.int32)
    said[:, 1] = np.where(rng.random(120) < 0.7, said[:, 0], said[:, 1])
    errors = 1 - np.take_along_axis(posterior, said.astype(np.intp), axis=1)
    if is_given:
        errors = (said != 0).astype(float)
    errors[rng.random(errors.shape) < 0.6] = np.nan
    errors[6:, 6] = np.nan  # shares about two tasks with each
    errors[:, 5] = np.where(np.isnan(errors[:, 5]), np.nan, 0.0)  # never wrong
    groups = [np.array([0, 1]), np.array([2, 5, 6]), np.array([3])]
    labels = None if is_given else said
    pairs, means, reach = straightforward(errors, groups, labels)
    found = error_correlations(errors, groups, said=labels)
    assert 6 < np.isfinite(pairs).sum() < 42
    np.testing.assert_allclose(found.pairs, pairs, atol=1e-9)
    np.testing.assert_allclose([found.within, found.excess], means, atol=1e-9)
    half = [(found.excess_high - found.excess_low) / 2, found.within - found.within_low]
    np.testing.assert_allclose(half[0], reach[1], atol=1e-9)
    np.testing.assert_allclose(half[1], np.minimum(reach[0], means[0] + 1), atol=1e-9)


def joined_by_hand(pairs, shared):
    """Groups by the p-values of all pairs, and the mean over all pairs of two groups."""
    one, two = np.triu_indices(len(pairs), 1)
    known = np.isfinite(pairs[one, two])
    one, two = one[known], two[known]
    usual = np.median(pairs[one, two])
    reach = np.arctanh(np.clip(pairs[one, two], -0.999, 0.999)) - np.arctanh(usual)
    score = reach * np.sqrt(np.maximum(shared[one, two] - 3, 1))
    chance = np.array([NormalDist().cdf(-value) for value in score])
    order = np.argsort(chance)
    passed = np.flatnonzero(chance[order] <= 0.01 * np.arange(1, len(order) + 1) / len(order))
    excess = np.zeros(pairs.shape)
    for n in order[: passed.max(initial=-1) + 1]:
        excess[one[n], two[n]] = excess[two[n], one[n]] = pairs[one[n], two[n]] - usual
    groups = [[k] for k in range(len(pairs))]
    while len(groups) > 1:
        mean, a, b = max(
            (excess[np.ix_(groups[a], groups[b])].mean(), -a, -b)
            for a, b in combinations(range(len(groups)), 2)
        )
        if mean < 0.2:
            break
        groups[-a] += groups.pop(-b)
    return sorted(sorted(group) for group in groups if len(group) > 1)


def test_groups_are_those_joined_by_hand(rng):
    n_found = 0
    for _ in range(5):
        errors = (rng.random((150, 18)) < 0.3).astype(float)
        for members, share in ((slice(0, 5), 0.7), (slice(5, 12), 0.5), (slice(12, 15), 0.4)):
            copied = rng.random((150, 1)) < share
            errors[:, members] = np.where(copied, errors[:, members][:, :1], errors[:, members])
        errors[rng.random(errors.shape) < 0.3] = np.nan
        pairs = error_correlations(errors)
        found = found_groups(pairs.pairs, pairs.shared)
        assert [one.tolist() for one in found] == joined_by_hand(pairs.pairs, pairs.shared)
        n_found += len(found)
    assert n_found > 9


def test_of_a_crowd_in_which_few_pairs_share_tasks_no_group_is_found(rng):
    errors = np.full((200, 200), np.nan)
    for pair in range(20):  # of 19,900 pairs
        errors[pair * 10 : pair * 10 + 10, pair * 2 : pair * 2 + 2] = rng.random((10, 2)) < 0.4
    pairs = error_correlations(errors)
    assert 10 < np.isfinite(pairs.pairs).sum() / 2 < 100
    assert not found_groups(pairs.pairs, pairs.shared)


def test_groups_can_be_found_while_errors_are_correlated(rng):
    errors = (rng.random((200, 9)) < 0.3).astype(float)
    errors[:, 1:4] = errors[:, :1]
    found = error_correlations(errors, found_groups)
    assert [one.tolist() for one in found.groups] == [[0, 1, 2, 3]]
    np.testing.assert_array_equal(found.excess, error_correlations(errors, found.groups).excess)


def test_of_many_pairs_in_two_orders_those_that_share_most_tasks_are_compared(
    truth, rng, monkeypatch
):
    table = votes(said_by(truth, rng, 6))
    table = table[~table["worker"].isin(["w00", "w03"]) | (rng.random(len(table)) < 0.7)]
    workers = pd.DataFrame(
        {"worker": [f"w0{k}" for k in range(6)], "model": "m", "order": ["AB", "BA"] * 3}
    )
    model = lq.BiLA().fit(table, workers=workers)
    rows = model.jury().order_effects
    assert len(rows) == 9
    monkeypatch.setattr(jury_of_model, "MAX_ORDER_PAIRS", 4)
    fewer = model.jury().order_effects
    pd.testing.assert_frame_equal(fewer, rows[rows["tasks"] == N_TASKS].reset_index(drop=True))


def test_with_many_classes_the_bounds_of_a_skill_are_wilsons(truth, rng, monkeypatch):
    model = lq.BiLA().fit(votes(said_by(truth, rng, 4)))
    by_posterior = model.jury().judges
    monkeypatch.setattr(inspection, "MAX_POSTERIOR_CLASSES", 1)
    judges = model.jury().judges
    for row in judges.itertuples():
        bounds = wilson(row.reliability, N_TASKS, 0.95)
        assert (row.low, row.high) == pytest.approx(bounds, abs=1e-6)
    np.testing.assert_allclose(judges["reliability"], by_posterior["reliability"], atol=1e-6)
