"""Gold tasks as they are kept: a sample by keys, replaced by news, merged, forgotten."""

import numpy as np
import pandas as pd
import pytest

import labelquorum as lq
from labelquorum.evaluation import class_conditional_crowd
from labelquorum.ingest.chunks import id_key, make_chunk
from labelquorum.learn.bila import gold as gold_module
from labelquorum.learn.bila.gold import GoldTasks, gold_items, join, remember, vote_weights


@pytest.fixture(scope="module")
def crowd():
    return class_conditional_crowd(80, 10, 3, 4, seed=5)


@pytest.fixture(scope="module")
def labels(crowd):
    return pd.DataFrame({"task": crowd.item, "worker": crowd.worker, "label": crowd.label})


def truths(crowd, tasks):
    return {int(task): int(crowd.truth[task]) for task in tasks}


def kept(model):
    return GoldTasks.read(model.model_.learned.state.gold)


def some_of(labels, tasks):
    return labels[labels["task"].isin(list(tasks))]


def learned(labels, crowd, *parts, n_gold=80, **settings):
    model = lq.BiLA(classes=[0, 1, 2], **settings)
    for tasks in parts:
        gold = truths(crowd, [task for task in tasks if task < n_gold])
        model.partial_fit(some_of(labels, tasks), true_labels=gold)
    return model


def assert_equal(one, other, *but):
    for name in GoldTasks._fields:
        if name not in but:
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), name)


def test_gold_is_kept_by_key_with_its_labels(labels, crowd):
    found = kept(learned(labels, crowd, range(80), n_gold=7))
    assert found.key.tolist() == sorted(id_key(task) for task in range(7))
    assert len(found.task) == len(some_of(labels, range(7)))
    by_key = {id_key(task): int(crowd.truth[task]) for task in range(7)}
    assert found.truth.tolist() == [by_key[key] for key in found.key.tolist()]
    assert int(found.seen) == 7


def test_nothing_is_kept_without_gold(labels):
    state = lq.BiLA().partial_fit(labels).model_.learned.state
    assert state.gold == {} and state.stack == {}


@pytest.mark.parametrize("limit", ["MAX_TASKS", "MAX_LABELS"])
def test_of_too_much_gold_the_smallest_keys_stay_whatever_the_order(
    labels, crowd, monkeypatch, limit
):
    monkeypatch.setattr(gold_module, limit, {"MAX_TASKS": 9, "MAX_LABELS": 40}[limit])
    one = kept(learned(labels, crowd, range(40), range(40, 80)))
    other = kept(learned(labels, crowd, range(60, 80), range(30, 60), range(30)))
    smallest = sorted(id_key(task) for task in range(80))
    assert 8 < len(one.key) < 12
    assert one.key.tolist() == smallest[: len(one.key)]
    assert_equal(one, other, "log_odds")
    assert int(one.seen) == 80


def test_merged_gold_is_that_of_one_model_that_saw_both(labels, crowd):
    first, second = (learned(labels, crowd, part) for part in (range(30), range(30, 80)))
    both = kept(learned(labels, crowd, range(30), range(30, 80)))
    assert_equal(kept(lq.merge(first, second)), both, "log_odds")


def test_merging_what_grew_from_one_base_counts_its_gold_once(labels, crowd):
    base = learned(labels, crowd, range(20))
    parts = [learned(labels, crowd, range(20), part) for part in (range(20, 50), range(50, 80))]
    found = kept(lq.merge(*parts, base=base))
    assert (len(found.key), int(found.seen)) == (80, 80)


def test_another_truth_takes_the_place_of_the_first(labels, crowd):
    model = learned(labels, crowd, range(80), n_gold=5)
    other = (int(crowd.truth[3]) + 1) % 3
    model.partial_fit(labels[:0], true_labels={3: other})
    found = kept(model)
    assert len(found.key) == 5
    assert found.truth[found.key == id_key(3)].tolist() == [other]


def test_late_labels_of_a_gold_task_join_its_rows(labels, crowd):
    model = learned(labels, crowd, range(80), n_gold=5)
    before = len(kept(model).task)
    model.partial_fit(pd.DataFrame({"task": 3, "worker": ["late", "later"], "label": 1}))
    found = kept(model)
    assert (len(found.key), len(found.task)) == (5, before + 2)
    assert id_key("late") in found.worker.tolist()


def test_several_votes_of_one_judge_weigh_as_one():
    chunk = make_chunk([0, 0, 0, 0], [0, 0, 0, 1], [0, 1, 1, 1])
    assert vote_weights(chunk).tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1])


def test_a_truth_without_labels_teaches_nothing():
    chunk = make_chunk([0], [0], [1], n_items=2)._replace(gold=np.array([-1, 1], np.int32))
    assert gold_items(chunk)[0] is None
    assert gold_items(make_chunk([0], [0], [1]))[0] is None


def test_a_class_that_appears_later_widens_what_was_kept():
    def piece(key, n_classes):
        chunk = make_chunk([0], [0], [0], item_keys=[key], n_classes=n_classes)
        return chunk._replace(gold=np.array([n_classes - 1], np.int32))

    first = remember(GoldTasks.read({}), piece(4, 2), np.array([[0.5, -0.5]]))
    found = remember(first, piece(2, 3), np.array([[9.0, 0.0, -9.0]]))
    assert found.key.tolist() == [2, 4]
    assert found.truth.tolist() == [2, 1]
    assert found.log_odds.tolist() == [[5, 0, -5], [0.5, -0.5, -5]]  # at most MAX_LOG_ODDS
    assert_equal(found, join([found], 3))


def test_who_is_forgotten_leaves_no_rows_and_no_weights(labels, crowd):
    model = learned(labels, crowd, range(80), n_gold=20)
    assert id_key(4) in kept(model).worker.tolist()
    model.forget(4)
    state = model.model_.learned.state
    assert id_key(4) not in state.gold["worker"].tolist()
    assert id_key(4) not in state.stack["workers"].tolist()
    assert len(state.stack["votes"]) == len(state.stack["scores"]) == 9


def test_a_worker_forgotten_by_one_part_is_forgotten_in_the_merged_gold(labels, crowd):
    first, second = (learned(labels, crowd, part) for part in (range(30), range(30, 80)))
    first.forget(4)
    second.forget(4)
    assert id_key(4) not in kept(lq.merge(first, second)).worker.tolist()


def test_a_label_that_is_taken_back_leaves_the_gold_too(labels, crowd):
    model = learned(labels, crowd, range(80), n_gold=7)
    task = 3
    workers = some_of(labels, [task])["worker"].tolist()
    model.retract(task, workers[0])
    found = kept(model)
    rows = found.task == found.key.tolist().index(id_key(task))
    assert set(found.worker[rows].tolist()) == {id_key(worker) for worker in workers[1:]}
    for worker in workers[1:]:
        model.retract(task, worker)
    assert id_key(task) not in kept(model).key.tolist()
    assert len(kept(model).key) == 6


@pytest.mark.parametrize("turned", [False, True])
def test_a_part_that_knew_nothing_new_of_a_task_does_not_undo_what_another_learned(
    labels, crowd, turned
):
    early = labels.groupby("task").head(3)
    late = labels.drop(early.index)
    first = some_of(early, range(10))

    def base():
        return lq.BiLA(classes=[0, 1, 2]).partial_fit(first, true_labels=truths(crowd, range(10)))

    one = base().partial_fit(some_of(late, range(10)))
    other = base().partial_fit(some_of(early, range(10, 20)))
    merged = lq.merge(*((other, one) if turned else (one, other)), base=base())
    n_late = len(some_of(late, range(10)))
    assert n_late > 0 and len(kept(merged).task) == len(first) + n_late


def test_a_corrected_truth_is_learned_at_once(labels, crowd):
    model = learned(labels, crowd, range(80), n_gold=40)
    before = model.model_.learned.state.stack["votes"]
    model.partial_fit(labels[:0], true_labels={5: (int(crowd.truth[5]) + 1) % 3})
    assert not np.array_equal(model.model_.learned.state.stack["votes"], before)


def test_a_few_gold_tasks_are_kept_before_there_is_a_stack(labels, crowd):
    model = learned(labels, crowd, range(80), n_gold=4)
    assert len(kept(model).key) == 4 and model.model_.learned.state.stack == {}
    model.forget(int(labels["worker"][0]))
    assert id_key(int(labels["worker"][0])) not in kept(model).worker.tolist()
