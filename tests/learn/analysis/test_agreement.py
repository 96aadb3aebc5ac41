"""Agreement of workers with one another."""

import numpy as np
import pandas as pd
import pytest

import labelquorum as lq
from labelquorum.learn.analysis.agreement import cohen_kappa
from labelquorum.learn.inspection import MAX_AGREEMENT_WORKERS


def table(rows):
    return pd.DataFrame(rows, columns=["task", "worker", "label"])


def test_kappa_of_cohens_textbook_table():
    # 50 applications, two readers: 20 both yes, 5 and 10 differ, 15 both no; kappa is 0.4
    cells = {("yes", "yes"): 20, ("yes", "no"): 5, ("no", "yes"): 10, ("no", "no"): 15}
    rows, task = [], 0
    for (one, two), count in cells.items():
        for _ in range(count):
            rows += [(task, "a", one), (task, "b", two)]
            task += 1
    found = lq.agreement(table(rows))
    assert found.agreement.loc["a", "b"] == pytest.approx(0.7)
    assert found.kappa.loc["a", "b"] == pytest.approx(0.4)
    assert found.kappa.loc["b", "a"] == found.kappa.loc["a", "b"]
    assert found.shared.loc["a", "b"] == 50
    assert found.low.loc["a", "b"] < 0.4 < found.high.loc["a", "b"]


def test_kappa_counts_only_tasks_that_two_share():
    rows = [(t, w, said) for t, (w, said) in enumerate([("a", "x"), ("b", "x"), ("c", "y")])]
    rows += [(9, "a", "x"), (9, "b", "x"), (8, "a", "y"), (8, "b", "y")]
    found = lq.agreement(table(rows))
    assert found.shared.loc["a", "b"] == 2
    assert found.kappa.loc["a", "b"] == 1
    assert found.low.loc["a", "b"] < 0.5  # two tasks tell little
    assert found.shared.loc["a", "a"] == 3
    assert np.isnan(found.kappa.loc["a", "c"])
    assert found.pairs()[["worker", "other", "shared"]].to_numpy().tolist() == [["a", "b", 2]]


def test_votes_of_a_judge_count_by_their_share_of_a_task():
    once = cohen_kappa([0, 0, 1, 1], [0, 1, 0, 1], [0, 0, 1, 0], 2, 2)
    thrice = cohen_kappa(
        np.repeat([0, 0, 1, 1], 3), np.repeat([0, 1, 0, 1], 3), np.repeat([0, 0, 1, 0], 3), 2, 2
    )
    np.testing.assert_allclose(once, thrice)
    split = cohen_kappa([0, 0, 0], [0, 0, 1], [0, 1, 0], 2, 2)
    assert split.agreement[0, 1] == 0.5
    assert split.shared[0, 1] == 1


def test_intervals_hold_what_they_promise():
    rng = np.random.default_rng(5)
    n_items, right, held = 60, 0.8, []
    # two who are right with 0.8 on two equal classes: they agree on 0.68, kappa 0.36
    for _ in range(500):
        truth = rng.integers(2, size=n_items)
        labels = np.where(rng.random((2, n_items)) < right, truth, 1 - truth)
        found = cohen_kappa(
            np.tile(np.arange(n_items), 2), np.repeat([0, 1], n_items), labels.ravel(), 2, 2
        )
        held.append(found.low[0, 1] <= 0.36 <= found.high[0, 1])
    assert 0.92 <= np.mean(held) <= 0.98


def test_workers_beyond_the_limit_are_counted():
    rows = [(t, w, "xy"[t % 2]) for w in range(4) for t in range(5 + w)]
    found = lq.agreement(table(rows), max_workers=3)
    assert found.kappa.index.tolist() == [1, 2, 3]
    assert found.left_out == 1
    assert lq.agreement(table(rows), workers=[3, 0]).kappa.columns.tolist() == [3, 0]
    with pytest.raises(lq.LabelError, match="Worker 'zoe' is not known"):
        lq.agreement(table(rows), workers=["zoe"])
    many = [(0, w, "x") for w in range(MAX_AGREEMENT_WORKERS + 2)]
    assert lq.agreement(table(many)).left_out == 2


def test_a_model_compares_workers_on_its_open_tasks():
    rows = [(t, w, "xy"[(t + (w == 2) * (t % 3 == 0)) % 2]) for t in range(20) for w in range(3)]
    model = lq.MajorityVote().partial_fit(table(rows))
    pd.testing.assert_frame_equal(model.agreement().kappa, lq.agreement(table(rows)).kappa)
    assert model.agreement(workers=[0, 2]).left_out == 1
