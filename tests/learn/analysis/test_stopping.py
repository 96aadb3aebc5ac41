"""Stopping: replays say what asking less would have done, and add up over chunks."""

import numpy as np
import pytest

import labelquorum as lq
from labelquorum.errors import StateError
from labelquorum.evaluation import class_conditional_crowd, label_table
from labelquorum.ingest.chunks import make_chunk
from labelquorum.learn.analysis.stopping import (
    ERROR,
    ITEMS,
    THRESHOLDS,
    USED,
    curve,
    stopping_of,
    stopping_sums,
)

EVEN = np.log([0.5, 0.5])


def replay(said, thresholds, prior=EVEN, **columns):
    """Sums of one item on which workers say class 0 with these odds, one after the other."""
    n = len(said)
    chunk = make_chunk(np.zeros(n), np.arange(n), np.zeros(n), n_classes=2, **columns)
    evidence = np.log(np.stack([said, 1 - np.array(said)], axis=1))
    return stopping_sums(chunk, evidence, prior, None, thresholds)


def test_asking_stops_at_the_first_label_that_is_sure_enough():
    sums = replay([0.8] * 4, (0.7, 0.9, 0.99))
    sure = [0.8**n / (0.8**n + 0.2**n) for n in range(1, 5)]  # 0.8, 0.94, 0.985, 0.996
    assert sums[:, ITEMS].tolist() == [1, 1, 1, 1]
    assert sums[:, USED].tolist() == [1, 2, 4, 4]
    assert sums[:, ERROR] == pytest.approx([1 - sure[0], 1 - sure[1], 1 - sure[3], 1 - sure[3]])


def test_an_item_that_is_never_sure_uses_all_its_labels():
    sums = replay([0.6, 0.6], (0.5, 0.95))
    assert sums[:, USED].tolist() == [1, 2, 2]


def test_every_item_is_asked_about_once_however_sure_the_prior_is():
    sums = replay([0.6, 0.6], (0.5,), prior=np.log([0.99, 0.01]))
    assert sums[0, USED] == 1


def test_labels_lean_on_each_other_by_the_heat_of_as_many():
    chunk = make_chunk(np.zeros(4), np.arange(4), np.zeros(4), n_classes=2)
    evidence = np.log(np.tile([0.8, 0.2], (4, 1)))
    sums = stopping_sums(chunk, evidence, EVEN, lambda n, _: n, (0.9,))
    # 4 labels that say the same, divided by 4, are worth one
    assert sums[0].tolist() == pytest.approx([1, 4, 0.2])


def test_a_label_of_weight_two_is_as_warm_as_two():
    chunk = make_chunk([0], [0], [0], weight=[2.0], n_classes=2)
    seen = []

    def temperature(n, _):
        seen.extend(n.tolist())
        return np.ones(len(n))

    stopping_sums(chunk, np.log([[0.8, 0.2]]), EVEN, temperature, (0.9,))
    assert seen == [2.0]


def test_items_whose_truth_was_given_are_left_out():
    chunk = make_chunk([0, 0, 1], [0, 1, 0], [0, 0, 1], n_classes=2)
    evidence = np.log([[0.8, 0.2], [0.8, 0.2], [0.2, 0.8]])
    sums = stopping_sums(chunk._replace(gold=np.array([0, -1])), evidence, EVEN)
    assert (sums[:, ITEMS] == 1).all()
    assert (sums[:, USED] == 1).all()


def test_sums_of_chunks_are_sums_of_items():
    rng = np.random.default_rng(3)
    item, worker = np.repeat(np.arange(40), 5), np.tile(np.arange(5), 40)
    label = rng.integers(0, 3, 200)
    evidence = np.log(rng.dirichlet(np.ones(3), 200))
    prior = np.log(np.full(3, 1 / 3))
    whole = stopping_sums(make_chunk(item, worker, label, n_classes=3), evidence, prior)
    parts = np.zeros_like(whole)
    for some, start in ((item < 15, 0), (item >= 15, 15)):
        keys = np.arange(start, start + len(np.unique(item[some])))
        columns = (item[some] - start, worker[some], label[some])
        chunk = make_chunk(*columns, item_keys=keys, n_classes=3)
        parts += stopping_sums(chunk, evidence[some], prior)
    assert parts == pytest.approx(whole)


def test_an_item_that_comes_again_is_counted_once():
    first = replay([0.8, 0.8], (0.7, 0.99))
    again = replay([0.8, 0.8, 0.8], (0.7, 0.99), known=[True, True, False])
    both = replay([0.8, 0.8, 0.8], (0.7, 0.99))
    assert first + again == pytest.approx(both)
    assert (again[:, ITEMS] == 0).all()


def test_the_order_of_labels_is_a_draw_and_no_habit():
    # of every item one label says everything and two say nothing; whose it is, must not matter
    n = 3000
    item, worker = np.repeat(np.arange(n), 3), np.tile(np.arange(3), n)
    for telling in range(3):
        odds = np.where(worker == telling, 0.999, 0.5)
        chunk = make_chunk(item, worker, np.zeros(3 * n), n_classes=2)
        evidence = np.log(np.stack([odds, 1 - odds], axis=1))
        sums = stopping_sums(chunk, evidence, EVEN, None, (0.9,))
        assert sums[0, USED] / n == pytest.approx(2.0, abs=0.06)


def test_a_curve_tells_shares():
    sums = np.array([[10, 10, 4.0], [10, 25, 1.0], [10, 50, 0.5]])
    reply = curve(sums, (0.6, 0.9))
    assert [one.labels_saved for one in reply] == pytest.approx([0.8, 0.5])
    assert [one.expected_error for one in reply] == pytest.approx([0.4, 0.1])
    assert [one.expected_error for one in curve(np.zeros((3, 3)), (0.6, 0.9))] == [0, 0]


@pytest.fixture(scope="module")
def model():
    crowd = class_conditional_crowd(400, 20, 3, 6, seed=9)
    return lq.BiLA().partial_fit(label_table(crowd))


def test_the_model_replays_its_open_tasks(model):
    table = model.stopping()
    assert table["threshold"].tolist() == list(THRESHOLDS)
    assert table["labels_used"].is_monotonic_increasing
    assert table["labels_saved"].between(0, 1).all()
    assert (table["labels_saved"] == 1 - table["labels_used"] / 2400).all()


def test_with_all_labels_the_replay_is_the_answer_that_was_given(model):
    table = model.stopping([1.0])
    assert table["labels_used"].tolist() == [2400]
    reply = 1 - model.probas_.max(axis=1).mean()
    assert table["expected_error"].tolist() == pytest.approx([reply], abs=1e-5)


def test_the_model_and_the_sums_of_its_chunk_say_the_same(model):
    memory, method = model.model_.learned, model.model_.aggregator
    intake, result = model.model_.answer.intake, model.model_.answer.result
    sums = stopping_of(method, memory.state, intake.chunk, result.log_evidence)
    # the order of an item's labels is drawn by other keys
    one, other = (np.array([list(row)[1:] for row in table]) for table in (
        curve(sums), model.stopping().to_numpy()
    ))  # fmt: skip
    assert one == pytest.approx(other, rel=0.05, abs=0.02)


def test_a_threshold_must_be_a_share(model):
    with pytest.raises(StateError, match="`thresholds` must be a number between 0 and 1"):
        model.stopping([0.9, 1.5])


@pytest.mark.slow
def test_a_model_without_open_tasks_has_nothing_to_replay():
    model = lq.BiLA(open_items=0).partial_fit({"q1": {"ann": 1, "bob": 1}, "q2": {"ann": 0}})
    assert len(model.stopping()) == 0
