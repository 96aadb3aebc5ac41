"""Merging: shards become one model, and what would be counted twice is refused."""

import numpy as np
import pandas as pd
import pytest

import labelquorum as lq
from labelquorum.errors import LabelError, StateError
from labelquorum.evaluation import class_conditional_crowd


@pytest.fixture(scope="module")
def shards():
    """Four shards of 30 tasks by twelve workers."""
    crowd = class_conditional_crowd(120, 12, 3, 4, seed=5)
    labels = pd.DataFrame(
        {
            "task": [f"t{item:03}" for item in crowd.item],
            "worker": [f"w{worker:02}" for worker in crowd.worker],
            "label": np.array(["cat", "dog", "fox"])[crowd.label],
        }
    )
    return [part.reset_index(drop=True) for _, part in labels.groupby(crowd.item // 30)]


def recipe(*chunks, **settings):
    model = lq.BiLA(**settings)
    for chunk in chunks:
        model.partial_fit(chunk)
    return model


def by_id(model):
    """Everything counted, in the order of the users' ids."""
    state = model.model_.learned.state
    ids, index = model.model_.known_workers()
    rows = state.rows.gather(index[np.argsort(ids)])
    classes = np.argsort(model.classes_)
    return [
        rows["rich_counts"][:, classes][:, :, classes],
        rows["rich_theta"][:, np.r_[0, 1 + classes]],
        state.pooled["rich"][np.ix_(classes, classes)],
        state.class_counts["rich"][classes],
        state.label_shares[classes],
    ]


def assert_same(one, other):
    for array, twin in zip(by_id(one), by_id(other), strict=True):
        np.testing.assert_allclose(array, twin, rtol=1e-9, atol=1e-9)


def copy(model, tmp_path):
    model.save(tmp_path / "copy.lq")
    return lq.load(tmp_path / "copy.lq")


@pytest.mark.slow
def test_merging_is_the_same_in_any_order_and_grouping(shards):
    a, b, c = (recipe(shard) for shard in shards[:3])
    flat = lq.merge(a, b, c)
    assert_same(flat, lq.merge(lq.merge(a, b), c))
    assert_same(flat, lq.merge(a, lq.merge(b, c)))
    assert_same(flat, lq.merge(c, b, a))
    assert flat.model_.learned.state.class_counts["rich"].sum() == pytest.approx(90, abs=1e-4)


def test_a_merged_model_is_about_as_good_as_one_that_saw_everything(shards):
    everything = pd.concat(shards)
    merged = lq.merge(*(recipe(shard) for shard in shards))
    whole = recipe(*shards)
    agreed = (merged.predict(everything) == whole.predict(everything)).mean()
    assert agreed > 0.9
    np.testing.assert_allclose(merged.skills_, whole.skills_[merged.workers_], atol=0.1)


def test_merging_one_model_counts_the_same(shards):
    one = recipe(*shards[:2])
    merged = lq.merge(one)
    for array, twin in zip(by_id(one)[2:], by_id(merged)[2:], strict=True):
        np.testing.assert_allclose(array, twin, atol=1e-9)


def test_workers_and_classes_are_united_by_their_ids():
    one = recipe({1: {"ann": "yes", "bob": "no"}})
    other = recipe({2: {"cat": "maybe", "bob": "maybe"}})
    merged = lq.merge(one, other)
    assert merged.workers_.tolist() == ["ann", "bob", "cat"]
    assert merged.classes_.tolist() == ["no", "yes", "maybe"]
    assert merged.report().workers["num_examples_labeled"].to_dict() == {
        "ann": 1,
        "bob": 2,
        "cat": 1,
    }
    said = merged.model_.learned.state.rows.to_arrays()["rich_counts"].sum(
        axis=1
    )  # by worker and label
    np.testing.assert_allclose(said, [[0, 1, 0], [1, 0, 1], [0, 0, 1]], atol=1e-6)


def test_what_was_learned_before_shards_parted_is_counted_once(shards, tmp_path):
    base = recipe(shards[0])
    parts = [copy(base, tmp_path).partial_fit(shard) for shard in shards[1:3]]
    merged = lq.merge(*parts, base=base)
    assert merged.model_.learned.state.class_counts["rich"].sum() == pytest.approx(90, abs=1e-4)
    assert merged.report().workers["num_examples_labeled"].sum() == 360
    with pytest.raises(StateError, match=r"two of them know task 't000'\. .* give it as base="):
        lq.merge(*parts)


def test_open_tasks_stay_open(shards):
    merged = lq.merge(recipe(shards[0]), recipe(shards[1]))
    assert len(merged.report().items) == 60
    before = merged.model_.learned.state.class_counts["rich"].sum()
    late = pd.DataFrame({"task": ["t001", "t031"], "worker": "new", "label": "fox"})
    merged.partial_fit(late)
    assert merged.tally_.late_items == 2
    assert merged.model_.learned.state.class_counts["rich"].sum() == pytest.approx(before, abs=1e-5)
    # A merged model can be saved, and others merged with it.
    assert lq.merge(merged, recipe(shards[2])).report().items.shape[0] == 90


def test_a_label_of_a_merged_task_can_be_corrected_and_withdrawn():
    one = recipe({1: {"ann": "no", "bob": "no"}})
    other = recipe({2: {"cat": "yes", "bob": "yes", "ann": "no"}})
    merged = lq.merge(one, other)
    assert merged.partial_fit({2: {"ann": "yes"}}).tally_.corrected == 1
    assert merged.retract(2, "ann").labels_.to_dict() == {2: "yes"}
    counts = merged.model_.learned.state.rows.to_arrays()["rich_counts"].sum(axis=(1, 2))
    np.testing.assert_allclose(counts, [1, 2, 1], atol=1e-6)


def test_a_task_of_the_base_that_one_shard_changed_is_taken_from_there(tmp_path):
    base = recipe({1: {"ann": "no", "bob": "no"}, 2: {"ann": "no", "bob": "yes"}})
    one = copy(base, tmp_path).partial_fit({1: {"cat": "yes"}})
    other = copy(base, tmp_path).retract(2, "ann").retract(2, "bob").partial_fit({3: {"cat": "no"}})
    merged = lq.merge(one, other, base=base)
    assert merged.report().items["num_annotations"].to_dict() == {1: 3, 3: 1}
    assert merged.model_.learned.state.rows.to_arrays()["rich_counts"].sum() == pytest.approx(
        4, abs=1e-5
    )
    twice = copy(base, tmp_path).partial_fit({1: {"dan": "yes"}})
    with pytest.raises(StateError, match="two of them know task 1"):
        lq.merge(one, twice, base=base)


def test_a_worker_who_was_forgotten_stays_so():
    one = recipe({1: {"ann": "no", "bob": "no"}}).forget("ann")
    merged = lq.merge(one, recipe({2: {"bob": "yes"}}))
    assert merged.workers_.tolist() == ["bob"]


def test_a_model_that_learned_nothing_adds_nothing():
    one = recipe({1: {"ann": "no", "bob": "yes"}})
    assert_same(lq.merge(one, lq.BiLA()), lq.merge(one))
    with pytest.raises(StateError, match="has learned nothing yet"):
        _ = lq.merge(lq.BiLA(), lq.BiLA()).skills_


@pytest.mark.parametrize("open_items", [10_000, 0])
def test_tasks_that_two_models_know_are_refused(open_items):
    one = recipe({1: {"ann": 0}, 2: {"ann": 1}}, open_items=open_items)
    other = recipe({2: {"bob": 1}, 3: {"bob": 0}}, open_items=open_items)
    known = "task 2" if open_items else "tasks that are closed by now"
    with pytest.raises(StateError, match=f"two of them know {known}"):
        lq.merge(one, other)


def test_models_that_cannot_be_merged_are_refused():
    one, chunk = recipe({1: {"ann": 0, "bob": 1}}), {2: {"ann": 0}}
    for other, message in [
        (lq.MajorityVote().fit(chunk), "This MajorityVote cannot be merged"),
        (lq.BiLA("network").fit(chunk), r"BiLA\('network'\) cannot be merged"),
        (recipe(chunk, tilt_scale=2.0), "`tilt_scale` is None in one and 2.0 in another"),
        (recipe(chunk, classes=[0, 1]), "`classes` is None in one"),
        (recipe(chunk, warmup_items=9), "1 labels of a model are held for its warm-up"),
    ]:
        with pytest.raises(StateError, match=message):
            lq.merge(one, other)
    with pytest.raises(StateError, match="at least one model"):
        lq.merge()


def test_a_history_is_counted_once():
    history = {"ann": {0: {0: 9}}}
    one, other = (recipe({n: {"ann": 0, "bob": 1}}, history=history) for n in (1, 2))
    with pytest.raises(StateError, match="Each of these models counts its history"):
        lq.merge(one, other)
    base = lq.BiLA(history=history)
    merged = lq.merge(one, other, base=base)
    assert merged.model_.learned.state.rows.to_arrays()["rich_counts"].sum() == pytest.approx(
        13, abs=1e-5
    )


def test_seeds_and_room_may_differ():
    one = recipe({1: {"ann": 0, "bob": 1}}, seed=1, open_items=1)
    merged = lq.merge(one, recipe({2: {"ann": 0}}, seed=2))
    assert (merged.seed, merged.open_items) == (1, 1)
    assert merged.report().items.index.tolist() == [2]
    assert merged.partial_fit({1: {"cat": 0}}).tally_.returned_items == 1


def test_true_labels_stay_true(tmp_path):
    one = recipe().partial_fit({1: {"ann": 0, "bob": 0}}, true_labels={1: 1})
    merged = lq.merge(one, recipe({2: {"ann": 0}}))
    assert merged.partial_fit({1: {"cat": 0}}).labels_.to_dict() == {1: 1}
    with pytest.raises(LabelError, match="is not known"):
        merged.forget("zoe")


# ── forgotten and withdrawn ──────────────────────────────────────────────────────────────


def test_a_worker_whom_a_shard_forgot_does_not_come_back(tmp_path):
    base = recipe({1: {"ann": 0, "bob": 1}, 2: {"ann": 1, "bob": 1}})
    base.save(tmp_path / "base.lq")
    one, other = (lq.load(tmp_path / "base.lq") for _ in range(2))
    one.forget("ann").partial_fit({3: {"bob": 0}})
    other.forget("ann").partial_fit({4: {"bob": 1}})
    merged = lq.merge(one, other, base=base)
    assert merged.workers_.tolist() == ["bob"]


def test_a_task_withdrawn_in_one_shard_and_labelled_in_another_is_refused(tmp_path):
    base = recipe({1: {"ann": 0}, 2: {"ann": 1, "bob": 1}})
    base.save(tmp_path / "base.lq")
    one, other = (lq.load(tmp_path / "base.lq") for _ in range(2))
    one.retract(1, "ann")
    other.partial_fit({1: {"bob": 0}})
    with pytest.raises(StateError, match="two of them know task 1"):
        lq.merge(one, other, base=base)


def test_what_is_no_model_is_refused():
    with pytest.raises(StateError, match=r"one after the other, merge\(one, other\)"):
        lq.merge([recipe({1: {"ann": 0}})])
