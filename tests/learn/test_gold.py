"""The estimator of a method that counts: true labels, late labels, labels taken back."""

import numpy as np
import pandas as pd
import pytest

import labelquorum as lq
from labelquorum.errors import LabelError, StateError
from labelquorum.evaluation import class_conditional_crowd


@pytest.fixture(scope="module")
def crowd():
    return class_conditional_crowd(60, 12, 3, 4, seed=5)


@pytest.fixture(scope="module")
def labels(crowd):
    return pd.DataFrame({"task": crowd.item, "worker": crowd.worker, "label": crowd.label})


@pytest.fixture
def bits(tmp_path):
    """All a model has learned, as the bytes of its file."""

    def save(model):
        model.save(tmp_path / "model.lq")
        return (tmp_path / "model.lq").read_bytes()

    return save


def recipe(*chunks, **settings):
    model = lq.BiLA(**settings)
    for chunk in chunks:
        model.partial_fit(chunk)
    return model


def counted(model):
    """Labels, items by what was inferred, items by what was said: as they are counted."""
    state = model.model_.learned.state
    sums = state.rows.to_arrays()["rich_counts"], state.class_counts["rich"], state.label_shares
    return [float(array.sum()) for array in sums]


# ── true labels ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", [dict, pd.Series])
def test_a_task_whose_truth_is_given_gets_it(kind, labels, crowd):
    wrong = (crowd.truth[:10] + 1) % 3
    gold = kind({task: int(label) for task, label in enumerate(wrong)})
    model = recipe().partial_fit(labels, true_labels=gold)
    assert model.labels_[:10].tolist() == wrong.tolist()
    assert (model.probas_.to_numpy()[np.arange(10), wrong] == 1).all()
    assert model.tally_.gold_items == 10
    assert lq.BiLA().fit(labels, true_labels=gold).labels_[:10].tolist() == wrong.tolist()


def test_a_truth_stays_when_labels_come_late(labels):
    model = recipe().partial_fit(labels, true_labels={3: 2})
    late = pd.DataFrame({"task": 3, "worker": range(20, 40), "label": 1})
    assert model.partial_fit(late).labels_.to_dict() == {3: 2}
    assert counted(model) == pytest.approx([260, 60, 60], abs=1e-3)


def test_truths_whose_ids_are_of_another_type_are_refused():
    model, labels = lq.BiLA(), {"1": {"ann": "y", "bob": "n"}}
    with pytest.raises(LabelError, match="name a task 1, labels name it '1'"):
        model.partial_fit(labels, true_labels={1: "y"})


def test_truths_of_unknown_tasks_are_refused(labels, bits):
    for model in (lq.BiLA(), recipe(labels), recipe(labels, open_items=2)):
        learn = model.partial_fit if "model_" in vars(model) else model.fit
        with pytest.raises(LabelError, match=r"task 'q1' and 1 others are not among these labels"):
            learn({"q0": {"ann": 1}}, true_labels={"q1": 1, "q2": 0, "q0": 1})
    closed = recipe(labels, open_items=2)
    before = bits(closed)
    with pytest.raises(LabelError, match=r"task 3 is not among these labels and not open"):
        closed.partial_fit(labels[:0], true_labels={3: 2})
    assert bits(closed) == before


def test_truths_and_labels_of_another_type_are_refused(labels):
    said = {"t1": {"ann": "0", "bob": "1"}, "t2": {"ann": "1", "bob": "1"}}
    rule = r"true_labels of task 't2': 1 is of type int and '1' text: two classes"
    for learn in (lq.BiLA().fit, lq.BiLA().partial_fit, recipe(said).partial_fit):
        with pytest.raises(LabelError, match=rule):
            learn(said, true_labels={"t2": 1})


def test_labels_of_another_type_than_before_are_refused(bits):
    model = recipe({"t1": {"ann": 0, "bob": 1}})
    before = bits(model)
    with pytest.raises(LabelError, match=r"dict row 1: of the labels, '1' is text and 1 of type"):
        model.partial_fit({"t2": {"ann": "cat", "bob": "1"}})
    assert bits(model) == before
    with pytest.raises(LabelError, match="two classes"):
        lq.MajorityVote().fit({"t1": {"ann": 1, "bob": "1"}})
    with pytest.raises(LabelError, match="two classes"):
        recipe({"t1": {"ann": 1}}, warmup_items=5).partial_fit({"t2": {"ann": "1"}})
    both = lq.MajorityVote(classes=[1, "1"]).fit({"t1": {"ann": 1, "bob": "1"}})
    assert both.classes_.tolist() == [1, "1"]


def test_a_truth_may_come_after_the_labels(labels):
    model = recipe(labels)
    before = counted(model)
    model.partial_fit(labels[:0], true_labels={3: 2, 5: 0})
    assert model.labels_.to_dict() == {3: 2, 5: 0}
    assert counted(model) == pytest.approx(before, abs=1e-3)
    # What is known already is no news; another truth is.
    assert model.partial_fit(labels[:0], true_labels={3: 2}).labels_.empty
    assert model.partial_fit(labels[:0], true_labels={3: 1}).labels_.to_dict() == {3: 1}
    assert counted(model) == pytest.approx(before, abs=1e-3)


def test_a_truth_of_a_task_without_doubt_is_gold_too():
    tasks = {task: {f"w{k}": task % 2 for k in range(30)} for task in range(40)}
    model = recipe(tasks)
    counted_by = model.model_.learned.open_items.get(1).counted_probs
    assert counted_by[:, 1].max() == 1  # as if its truth had been given
    model.partial_fit({}, true_labels={1: 1, 2: 1})
    assert len(model.model_.learned.state.gold["key"]) == 2


def test_a_truth_given_again_teaches_nothing(labels, bits):
    model = recipe().partial_fit(labels, true_labels={3: 2})
    before = bits(model)
    assert bits(model.partial_fit(labels, true_labels={3: 2})) == before


def test_a_truth_may_be_a_class_nobody_named():
    model = recipe().partial_fit({1: {"ann": "cat", "bob": "dog"}}, true_labels={1: "fox"})
    assert model.classes_.tolist() == ["cat", "dog", "fox"]
    assert model.labels_.to_dict() == {1: "fox"}


def test_a_truth_is_kept_through_warm_up_and_saving(labels, tmp_path):
    model = recipe(warmup_items=50)
    model.partial_fit(labels[labels.task < 30], true_labels={3: 2})
    model.save(tmp_path / "model.lq")
    model = lq.load(tmp_path / "model.lq")
    model.partial_fit(labels[labels.task >= 30])
    assert model.labels_[3] == 2
    model.save(tmp_path / "model.lq")
    again = lq.load(tmp_path / "model.lq")
    assert again.partial_fit({3: {"new": 1}}).labels_.to_dict() == {3: 2}


def test_a_truth_that_is_missing_is_not_known():
    gold = pd.Series({1: "cat", 2: None, 3: np.nan})
    model = recipe().partial_fit({1: {"ann": "cat"}, 2: {"ann": "dog"}}, true_labels=gold)
    assert model.tally_.gold_items == 1


@pytest.mark.parametrize(
    ("gold", "message"),
    [
        ([0, 1], "true_labels must be a Series indexed by task or a dict"),
        ({1: "cow"}, "true_labels of task 1: 'cow' is not one of the classes"),
        (pd.Series(["cat", "dog"], index=[1, 1]), "a task has one truth"),
        ({1: ["cat"]}, "true_labels row 0: the label is neither text"),
    ],
)
def test_what_is_no_truth_is_refused(gold, message, bits):
    model = recipe({0: {"ann": "cat"}}, classes=["cat", "dog"])
    before = bits(model)
    with pytest.raises(LabelError, match=message):
        model.partial_fit({1: {"ann": "cat", "bob": "dog"}}, true_labels=gold)
    assert bits(model) == before


def test_methods_that_do_not_count_refuse_true_labels_and_withdrawals(labels):
    for model in (lq.BiLA("network"), lq.MajorityVote(), lq.estimator("windowed:bila")):
        with pytest.raises(StateError, match="cannot learn from true labels: its"):
            model.partial_fit(labels, true_labels={3: 2})
        model.partial_fit(labels)
        with pytest.raises(StateError, match="cannot take back a label"):
            model.retract(3, 1)


# ── late labels, corrections, withdrawals ────────────────────────────────────────────────


def test_labels_that_trickle_in_are_counted_once(labels, crowd):
    rows = np.random.default_rng(0).permutation(len(labels))
    model = recipe(*(labels.iloc[rows[i : i + 5]] for i in range(0, len(rows), 5)))
    assert counted(model) == pytest.approx([240, 60, 60], abs=1e-3)
    whole = recipe(labels)
    agreed = (model.predict(labels) == whole.predict(labels)).mean()
    assert agreed > 0.9


def test_a_chunk_sent_twice_is_counted_once(labels, bits):
    model = recipe(labels)
    before = bits(model)
    assert bits(model.partial_fit(labels)) == before


def test_a_correction_is_counted_as_the_label_it_is_now():
    model = recipe({1: {"ann": "cat", "bob": "dog", "cat": "dog"}})
    model.partial_fit({1: {"ann": "dog"}})
    assert counted(model) == pytest.approx([3, 1, 1], abs=1e-5)
    np.testing.assert_allclose(model.model_.learned.state.label_shares, [0, 1], atol=1e-9)


def test_a_label_can_be_taken_back():
    chunk = {1: {"ann": "cat", "bob": "cat", "cid": "dog"}, 2: {"ann": "dog", "cid": "dog"}}
    model = recipe(chunk)
    model.retract(1, "ann").retract(1, "bob")
    assert model.labels_.to_dict() == {1: "dog"}
    assert counted(model) == pytest.approx([3, 2, 2], abs=1e-5)
    assert model.report().items["num_annotations"].to_dict() == {2: 2, 1: 1}
    assert model.report().workers["num_examples_labeled"].to_dict() == {
        "ann": 1,
        "bob": 0,
        "cid": 2,
    }
    # It may be given again.
    model.partial_fit({1: {"ann": "cat"}})
    assert counted(model) == pytest.approx([4, 2, 2], abs=1e-5)


def test_a_task_whose_last_label_is_taken_back_never_was(labels):
    model = recipe(labels)
    before = counted(model), model.model_.learned.state.pooled["rich"]
    model.partial_fit({"odd": {0: 1}}).retract("odd", 0)
    assert model.labels_.empty
    assert counted(model) == pytest.approx(before[0], abs=1e-9)
    np.testing.assert_allclose(model.model_.learned.state.pooled["rich"], before[1], atol=1e-9)
    assert model.partial_fit({"odd": {0: 1}}).tally_.returned_items == 0


def test_only_labels_that_are_held_can_be_taken_back(bits):
    model = recipe({1: {"ann": "cat"}, 2: {"bob": "dog"}}, open_items=1)
    before = bits(model)
    for task, worker in ((1, "ann"), (2, "ann"), (2, "zoe"), (9, "bob")):
        with pytest.raises(LabelError, match="is held: only those of open tasks are"):
            model.retract(task, worker)
    assert bits(model) == before


@pytest.mark.slow
def test_a_forgotten_worker_leaves_his_open_tasks_sound(labels):
    model = recipe(labels)
    model.forget(0)
    model.partial_fit(pd.DataFrame({"task": range(60), "worker": 99, "label": 0}))
    assert (model.model_.learned.state.rows.to_arrays()["rich_counts"] >= 0).all()
    assert model.model_.learned.state.class_counts["rich"].sum() == pytest.approx(60, abs=1e-3)
