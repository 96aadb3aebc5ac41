"""History: every form gives the same counts, and what is no history is refused."""

import numpy as np
import pandas as pd
import pytest

import labelquorum as lq
from labelquorum.errors import LabelError, StateError
from labelquorum.learn.worker_priors import history_rows, read_history

NESTED = {"ann": {"cat": {"cat": 8, "dog": 2}, "dog": {"dog": 5}}, "bob": {"cat": {"dog": 1}}}
CHUNK = {"q1": {"ann": "cat", "bob": "dog"}, "q2": {"ann": "dog", "bob": "cat"}}


def test_all_forms_say_the_same():
    rows = [
        ("ann", "cat", "cat", 8),
        ("ann", "cat", "dog", 2),
        ("ann", "dog", "dog", 5),
        ("bob", "cat", "dog", 1),
    ]
    index = pd.MultiIndex.from_product([["ann", "bob"], ["cat", "dog"]], names=["worker", "label"])
    table = pd.DataFrame({"cat": [8, 2, 0, 1], "dog": [0, 5, 0, 0]}, index=index)
    expected = [[[8, 2], [0, 5]], [[0, 1], [0, 0]]]
    for history in (NESTED, rows, table, history_rows(NESTED, None)):
        known = read_history(history, None)
        assert (known.workers, known.classes) == (["ann", "bob"], ["cat", "dog"])
        np.testing.assert_array_equal(known.counts, expected)


def test_right_of_total_is_spread_evenly():
    known = read_history({7: (9, 12)}, ["x", "y", "z"])
    np.testing.assert_allclose(known.counts[0], np.full((3, 3), 0.5) + 2.5 * np.eye(3))
    np.testing.assert_array_equal(read_history({7: (3, 3)}, ["x"]).counts, [[[3]]])


@pytest.mark.parametrize(
    ("history", "classes", "message"),
    [
        ({"ann": (8, 10)}, None, "needs the classes to spread it over"),
        ({"ann": (11, 10)}, [0, 1], "at most as often as they labelled. Got 11 of 10"),
        ({"ann": 0.8}, [0, 1], "`history` must be a dict .* Got 0.8 for worker 'ann'"),
        ({"ann": {"cat": 3}}, None, "Got 3 for truth 'cat' of worker 'ann'"),
        ({"ann": {"cat": {"cat": -1}}}, None, "must be finite numbers ≥ 0. Got -1"),
        ({"ann": {"cat": {"cat": float("nan")}}}, None, "must be finite numbers ≥ 0"),
        ({"ann": {"cat": {"cow": 1}}}, ["cat", "dog"], "'cow' is not one of the classes"),
        ({"": {"cat": {"cat": 1}}}, None, "the worker is missing"),
        (5, None, "`history` must be a dict .* Got a int"),
    ],
)
def test_what_is_no_history_is_refused(history, classes, message):
    with pytest.raises(LabelError, match=message):
        read_history(history, classes)


def test_a_model_with_a_history_knows_its_workers_at_once():
    model = lq.BiLA(history={"ann": (95, 100), "bob": (30, 100)}, classes=["cat", "dog"])
    assert model.skills_["ann"] > 0.85 and model.skills_["bob"] < 0.45
    assert model.predict(CHUNK).to_dict() == {"q1": "cat", "q2": "dog"}
    assert model.partial_fit(CHUNK).labels_.to_dict() == {"q1": "cat", "q2": "dog"}
    assert model.report().workers["num_examples_labeled"].tolist() == [2, 2]


def test_fit_forgets_the_stream_and_keeps_the_history():
    model = lq.BiLA(history=NESTED).partial_fit(CHUNK)
    once = model.fit(CHUNK).confusion_
    np.testing.assert_array_equal(model.fit(CHUNK).confusion_, once)
    plain = lq.BiLA().fit(CHUNK).confusion_
    assert not np.allclose(once, plain)


def test_a_history_is_saved_with_the_model(tmp_path):
    model = lq.BiLA(history=NESTED).partial_fit(CHUNK)
    model.save(tmp_path / "model.lq")
    again = lq.load(tmp_path / "model.lq")
    np.testing.assert_array_equal(again.confusion_, model.confusion_)
    np.testing.assert_array_equal(again.fit(CHUNK).confusion_, model.fit(CHUNK).confusion_)


def test_a_history_needs_counts_and_no_warm_up():
    with pytest.raises(StateError, match="cannot have a history"):
        lq.BiLA("network", history=NESTED).fit(CHUNK)
    with pytest.raises(StateError, match="`warmup_items` must be 0 with a history"):
        lq.BiLA(history=NESTED, warmup_items=5).partial_fit(CHUNK)
