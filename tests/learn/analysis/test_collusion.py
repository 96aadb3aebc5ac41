"""Pairs: copies are found, the honest are left alone, and the cost is bounded."""

import numpy as np
import pytest

import labelquorum as lq
from labelquorum.evaluation import chunks, class_conditional_crowd, with_judges, with_ring
from labelquorum.ingest.chunks import make_chunk
from labelquorum.ingest.labels import LabelTable
from labelquorum.learn.analysis import collusion
from labelquorum.learn.analysis.collusion import believed, pair_scores, rings


def coin(right, n_classes=2):
    return np.where(np.eye(n_classes) > 0, right, (1 - right) / (n_classes - 1))


def learned(crowd):
    model = lq.BiLA()
    for part in chunks(crowd, 50):
        model.partial_fit(LabelTable(*(column.tolist() for column in part)))
    return model


def pairs_of(item, worker, label, skills, prior=0.5):
    """Pairs of workers whose skills are known, on items of two classes."""
    matrices = np.stack([coin(skill) for skill in skills])
    chunk = make_chunk(item, worker, label, n_classes=2, n_workers=len(skills))
    evidence = np.log(matrices)[chunk.worker, :, chunk.label]
    scores = np.tile(np.log([prior, 1 - prior]), (chunk.n_items, 1))
    np.add.at(scores, chunk.item, evidence)
    probs = np.exp(scores)
    probs /= probs.sum(axis=1, keepdims=True)
    return pair_scores(chunk, probs, evidence, np.ones(chunk.n_items), lambda k: matrices[k])


def test_what_is_expected_is_what_two_who_do_not_talk_would_do():
    # nobody else: given either class both are right with 0.8 · 0.7 and both wrong with 0.2 · 0.3
    items = np.repeat(np.arange(10), 2)
    pairs = pairs_of(items, [0, 1] * 10, [0, 1] * 5 + [0, 0] * 5, [0.8, 0.7])
    assert pairs.shared.tolist() == [10]
    assert pairs.same.tolist() == [5]
    assert pairs.expected == pytest.approx([10 * (0.8 * 0.7 + 0.2 * 0.3)])
    assert pairs.score.tolist() == [0.0]  # less often than expected is no sign


def test_the_score_bounds_what_chance_does():
    items = np.repeat(np.arange(20), 2)
    pairs = pairs_of(items, [0, 1] * 20, [1, 1] * 20, [0.5, 0.5])
    # all 20 the same, with ½ each; what is common to all pairs is not taken off one that is odd
    assert pairs.score == pytest.approx([20 * np.log(2)])
    assert believed(pairs).tolist() == [True]


def test_two_judges_share_tasks_however_often_they_vote_on_each():
    rows = [(n, judge, n % 2) for n in range(30) for judge in ("ann", "bob") for _ in range(3)]
    columns = [list(column) for column in zip(*rows, strict=True)]
    model = lq.BiLA(repeats="all").fit(LabelTable(*columns))
    assert model.collusion()["shared"].tolist() == [30]  # not the nine pairs of votes on each


def test_pairs_with_few_shared_items_are_not_compared():
    assert not len(pairs_of([0, 0, 1, 1], [0, 1, 0, 1], [1, 1, 0, 0], [0.5, 0.5]).score)
    assert not len(pairs_of([], [], [], [0.5]).score)


@pytest.mark.parametrize("seed", range(3))
def test_a_ring_is_found_and_nobody_else(seed):
    crowd = with_ring(class_conditional_crowd(1500, 30, 3, 6, seed=seed), 0.1, seed=seed)
    flags = learned(crowd).flags()
    members = set(np.flatnonzero(crowd.role == "ring").tolist())
    colluding = flags[flags["flag"] == "colluding"]
    assert set(colluding["worker"]) == members
    assert all(set(partners) <= members for partners in colluding["partners"])


def test_a_ring_that_is_mostly_right_is_found_too():
    crowd = class_conditional_crowd(2500, 30, 3, 6, seed=4)
    crowd = with_ring(crowd, [3, 11], accuracy=0.7, seed=4)
    table = learned(crowd).collusion()
    assert table.loc[0, ["worker", "other"]].tolist() == [3, 11]
    assert table.loc[0, "same"] == table.loc[0, "shared"] > table.loc[0, "expected"] + 10


def test_errors_all_have_in_common_make_no_ring():
    crowd = class_conditional_crowd(2500, 30, 3, 6, seed=6)
    crowd = with_judges(crowd, 1.0, correlation=0.15, seed=6)
    assert "colluding" not in set(learned(crowd).flags()["flag"])


@pytest.mark.slow
def test_honest_pairs_are_believed_as_seldom_as_the_level_says():
    wrong = 0
    for seed in range(10):
        table = learned(class_conditional_crowd(1000, 30, 3, 6, seed=40 + seed)).flags()
        wrong += (table["flag"] == "colluding").any()
    assert wrong <= 2


def test_rings_hang_together():
    one, two = np.array([4, 1, 9, 7, 2]), np.array([1, 6, 8, 9, 3])
    pairs = collusion.Pairs(one, two, one, one, one.astype(float), one.astype(float))
    chosen = np.array([True, True, True, True, False])
    assert rings(pairs, chosen) == [[1, 4, 6], [7, 8, 9]]


def test_an_item_with_very_many_labels_costs_no_more_than_others():
    chunk = make_chunk(np.zeros(3000), np.arange(3000), np.zeros(3000), n_classes=2)
    one, _ = collusion._label_pairs(chunk)
    assert len(one) == collusion.MAX_LABELS_PER_ITEM * (collusion.MAX_LABELS_PER_ITEM - 1) // 2


def test_of_too_many_labels_those_of_the_newest_items_are_looked_at(monkeypatch):
    monkeypatch.setattr(collusion, "MAX_ARRAY_SIZE", 2 * 12)
    chunk = make_chunk(np.repeat(np.arange(10), 3), list(range(3)) * 10, [0] * 30, n_classes=2)
    one, two = collusion._label_pairs(chunk)
    assert len(one) == 12
    assert set(chunk.item[one]) == set(chunk.item[two]) == {6, 7, 8, 9}


def test_blocks_do_not_change_what_is_found(monkeypatch):
    model = learned(class_conditional_crowd(600, 12, 3, 5, seed=2))
    whole = model.collusion()
    monkeypatch.setattr(collusion, "_label_pairs", lambda c, f=collusion._label_pairs: f(c))
    rows = collusion._label_pairs(model.inspection._open_evidence()[0])
    monkeypatch.setattr(collusion, "_label_pairs", lambda chunk: rows)
    monkeypatch.setattr(collusion, "MAX_ARRAY_SIZE", 9 * 5)  # five pairs at a time
    assert model.collusion().equals(whole)
