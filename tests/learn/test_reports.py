"""The report: cleanlab's columns, checked by hand on a crowd of three."""

import numpy as np
import pandas as pd
import pytest

import labelquorum as lq
from labelquorum.evaluation import class_agreement, krippendorff_alpha
from labelquorum.learn import reports

ROWS = [
    *[("t1", worker, label) for worker, label in zip("abc", "xxy", strict=True)],
    *[("t2", worker, label) for worker, label in zip("abc", "yyy", strict=True)],
    *[("t3", worker, label) for worker, label in zip("ab", "xx", strict=True)],
]


def frame(rows, **columns):
    return pd.DataFrame(rows, columns=["task", "worker", "label"]).assign(**columns)


@pytest.fixture(scope="module")
def report():
    return lq.MajorityVote().partial_fit(frame(ROWS)).report()


def test_items_have_cleanlabs_columns(report):
    items = report.items
    assert items.index.name == "task"
    assert items.columns.tolist() == [
        "consensus_label",
        "consensus_quality_score",
        "annotator_agreement",
        "num_annotations",
    ]
    assert items.index.tolist() == ["t1", "t2", "t3"]
    assert items.consensus_label.tolist() == ["x", "y", "x"]
    np.testing.assert_allclose(items.consensus_quality_score, [2 / 3, 1, 1], rtol=1e-6)
    np.testing.assert_allclose(items.annotator_agreement, [2 / 3, 1, 1], rtol=1e-6)
    assert items.num_annotations.tolist() == [3, 3, 2]


def test_workers_have_cleanlabs_columns(report):
    workers = report.workers
    assert workers.index.name == "worker"
    assert workers.columns.tolist() == [
        "annotator_quality",
        "agreement_with_consensus",
        "num_examples_labeled",
        "worst_class",
    ]
    assert workers.index.tolist() == ["a", "b", "c"]
    assert workers.agreement_with_consensus.tolist() == [1, 1, 0.5]
    assert workers.num_examples_labeled.tolist() == [3, 3, 2]
    assert workers.annotator_quality["c"] < workers.annotator_quality["a"]
    # c said y where the vote said x.
    assert workers.worst_class["c"] == "x"


def test_quality_is_the_skill():
    model = lq.BiLA().partial_fit(frame(ROWS))
    pd.testing.assert_series_equal(
        model.report().workers.annotator_quality, model.skills_, check_names=False
    )


def test_agreement_is_that_of_the_metrics(report):
    item, label = [0, 0, 0, 1, 1, 1, 2, 2], [0, 0, 1, 1, 1, 1, 0, 0]
    assert report.krippendorff_alpha == pytest.approx(krippendorff_alpha(item, label, 2))
    by_class = class_agreement(item, label, 2)
    assert report.class_agreement.index.tolist() == ["x", "y"]
    assert report.class_agreement.index.name == "label"
    np.testing.assert_allclose(report.class_agreement.agreement, by_class.agreement)
    np.testing.assert_allclose(report.class_agreement.alpha, by_class.alpha)


def test_items_are_all_open_ones_as_they_now_stand():
    model = lq.MajorityVote().partial_fit(frame(ROWS)).partial_fit(frame([("t3", "c", "y")]))
    model.partial_fit(frame([("t4", "z", "z")]))
    items = model.report().items
    assert set(items.index) == {"t1", "t2", "t3", "t4"}
    assert items.num_annotations["t3"] == 3
    assert items.consensus_quality_score["t3"] == pytest.approx(2 / 3)
    assert items.consensus_label["t4"] == "z"


def test_without_open_items_the_last_chunk_is_reported():
    model = lq.MajorityVote(open_items=0).partial_fit(frame(ROWS[:3])).partial_fit(frame(ROWS[3:]))
    assert model.report().items.index.tolist() == ["t2", "t3"]
    assert model.report().workers.num_examples_labeled.tolist() == [3, 3, 2]


@pytest.mark.parametrize("open_items", [0, 100])
def test_the_consensus_on_a_tie_is_the_label_that_was_given(open_items):
    tied = frame([(task, worker, label) for task in range(8) for worker, label in ("ax", "by")])
    model = lq.MajorityVote(open_items=open_items).partial_fit(tied)
    assert model.labels_.nunique() == 2
    reported = model.report().items.consensus_label
    assert reported[model.labels_.index].tolist() == model.labels_.tolist()


def test_groups_and_timestamps_are_kept_for_the_report():
    first = frame(ROWS, group=["g1"] * 3 + ["g2"] * 5, timestamp=[3, 9, 4, 1, 1, 1, 2, 2])
    model = lq.MajorityVote().partial_fit(first)
    items = model.report().items
    assert items.group.to_dict() == {"t1": "g1", "t2": "g2", "t3": "g2"}
    assert items.timestamp.to_dict() == {"t1": 9, "t2": 1, "t3": 2}
    late = model.partial_fit(frame([("t1", "d", "x")], timestamp=[12])).report().items
    assert (late.group["t1"], late.timestamp["t1"]) == ("g1", 12)


def test_weights_count_in_the_agreement():
    model = lq.MajorityVote().partial_fit(frame(ROWS[:3], weight=[1, 1, 6]))
    assert model.report().items.consensus_label["t1"] == "y"
    assert model.report().items.annotator_agreement["t1"] == pytest.approx(0.75)


def test_an_item_without_labels_left_has_no_agreement():
    model = lq.MajorityVote().partial_fit(frame([*ROWS, ("t9", "z", "x")])).forget("z")
    items = model.report().items
    assert items.num_annotations["t9"] == 0
    assert np.isnan(items.annotator_agreement["t9"])
    assert "z" not in model.report().workers.index


def test_the_report_survives_a_file(tmp_path):
    model = lq.BiLA().partial_fit(frame(ROWS, group="g", timestamp=range(8)))
    model.save(tmp_path / "model.lq")
    before, after = model.report(), lq.load(tmp_path / "model.lq").report()
    pd.testing.assert_frame_equal(before.items, after.items)
    pd.testing.assert_frame_equal(before.workers, after.workers)
    pd.testing.assert_frame_equal(before.class_agreement, after.class_agreement)
    assert before.krippendorff_alpha == after.krippendorff_alpha


def test_a_report_does_not_change_the_model(tmp_path):
    model = lq.BiLA().partial_fit(frame(ROWS))
    model.save(tmp_path / "before.lq")
    model.report()
    model.save(tmp_path / "after.lq")
    assert (tmp_path / "before.lq").read_bytes() == (tmp_path / "after.lq").read_bytes()


@pytest.mark.parametrize(
    "classes", [["a", "b"], [1, 2], [1, 2.5], [True, 2], ["a", 2], [2**60, 0.5]]
)
def test_a_long_series_of_labels_has_the_type_of_a_short_one(classes, monkeypatch):
    rows = [(task, 0, label) for task, label in enumerate(classes * 3)]
    short = lq.MajorityVote(classes=classes).partial_fit(rows).labels_
    monkeypatch.setattr(reports, "MIN_TAKEN_LABELS", 0)
    long = lq.MajorityVote(classes=classes).partial_fit(rows).labels_
    pd.testing.assert_series_equal(long, short)
    assert list(map(type, long)) == list(map(type, short))
