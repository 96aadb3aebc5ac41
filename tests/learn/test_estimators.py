"""Every method by name, as an estimator: learn, answer, save, load, go on."""

import numpy as np
import pandas as pd
import pytest

import labelquorum as lq
from labelquorum.errors import StateError
from labelquorum.evaluation import class_conditional_crowd
from labelquorum.ingest.chunks import make_chunk
from labelquorum.learn.aggregator import refit
from labelquorum.learn.estimators import ESTIMATORS, method_names
from labelquorum.learn.methods.majority_vote import majority_vote

NAMES = [*method_names(), "windowed:dawid_skene", "refit:dawid_skene", "refit:bila:authors"]


@pytest.fixture(scope="module")
def chunks() -> list[pd.DataFrame]:
    crowd = class_conditional_crowd(60, 8, 2, 4, skill=(0.7, 0.95), seed=5)
    labels = pd.DataFrame(
        {"task": crowd.item, "worker": [f"w{k}" for k in crowd.worker], "label": crowd.label}
    )
    return [part for _, part in labels.groupby(crowd.item // 30)]


@pytest.mark.parametrize("name", NAMES)
def test_every_method_learns_answers_and_is_saved(name, chunks, tmp_path):
    model = lq.estimator(name, seed=3).partial_fit(chunks[0])
    assert model.labels_.index.tolist() == list(range(30))
    assert np.allclose(model.probas_.sum(axis=1), 1, atol=1e-5)
    assert len(model.skills_) == 8 and model.confusion_.shape == (8, 2, 2)
    model.save(tmp_path / "model.lq")
    resumed = lq.load(tmp_path / "model.lq")
    assert resumed.get_params() == model.get_params()
    pd.testing.assert_frame_equal(
        resumed.partial_fit(chunks[1]).probas_, model.partial_fit(chunks[1]).probas_
    )


def test_no_setting_hides_what_an_estimator_is():
    for name, kind in ESTIMATORS.items():
        assert kind().method == name
        settings = set(kind().get_params()) - {"history"}  # which all have, most as None
        assert not [setting for setting in settings if hasattr(kind, setting)]


@pytest.mark.parametrize("method", ["dawid_skene", "majority_vote", "streaming_vb"])
def test_refitting_answers_as_one_fit_of_everything(method, chunks):
    refitted = lq.estimator(f"refit:{method}")
    for chunk in chunks:
        refitted.partial_fit(chunk)
    everything = pd.concat(chunks)
    whole = lq.estimator(method).fit(everything)
    pd.testing.assert_frame_equal(refitted.predict_proba(everything), whole.probas_)


def test_refitting_takes_a_correction_in_place_of_the_label(chunks):
    corrected = chunks[0].copy()
    corrected.iloc[5, 2] = 1 - corrected.iloc[5, 2]
    model = lq.estimator("refit:dawid_skene").partial_fit(chunks[0])
    model.partial_fit(corrected.iloc[[5]])
    pd.testing.assert_frame_equal(
        model.predict_proba(corrected), lq.DawidSkene().fit(corrected).probas_
    )


def test_refitting_keeps_scores():
    seen = []

    def update(state, chunk):
        seen.append(chunk.score)
        return majority.update(state, chunk)

    majority = majority_vote()
    method = refit(majority._replace(update=update))
    chunks = [
        make_chunk([0], [0], [0], item_keys=[task], score=score, n_classes=2)
        for task, score in enumerate((None, [0.5], None))
    ]
    state = method.init(chunks[0], 0)
    for chunk in chunks:
        state, _ = method.update(state, chunk)
    assert seen[0] is None and "score" in state.labels
    np.testing.assert_array_equal(seen[-1], np.float32([np.nan, 0.5, np.nan]))


def test_refitting_forgets_the_labels_of_a_worker(chunks):
    model = lq.estimator("refit:dawid_skene").partial_fit(chunks[0]).forget("w3")
    model.partial_fit(chunks[1][chunks[1]["worker"] != "w3"])
    others = pd.concat(chunks).query("worker != 'w3'")
    pd.testing.assert_frame_equal(
        model.predict_proba(others), lq.DawidSkene().fit(others).probas_, atol=1e-6
    )


def test_an_unknown_method_names_its_neighbours():
    with pytest.raises(StateError, match=r"'refit:dawid_sken'.*nearest names are dawid_skene"):
        lq.estimator("refit:dawid_sken")


ONLINE = ["streaming_vb", "stepwise_em", "la_one_pass", "la_two_pass", "sbic", "laa"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ONLINE)
def test_a_correction_is_not_counted_as_one_more_label(name, chunks):
    model = lq.estimator(name).partial_fit(chunks[0])
    before = count(model)
    corrected = chunks[0].iloc[[5]].assign(label=1 - chunks[0].iloc[5, 2])
    assert count(model.partial_fit(corrected)) <= before * (1 + 1e-6)


def count(model):
    """How many labels and items a model says it has learned from."""
    state = model.model_.learned.state
    rows = state.rows.to_arrays()
    leaves = [rows[n].sum() for n in ("counts", "labels", "rich_counts") if n in rows]
    fields = [getattr(state, f) for f in ("class_counts", "answers", "shares") if hasattr(state, f)]
    return sum(leaves) + sum((f["rich"] if isinstance(f, dict) else f).sum() for f in fields)


@pytest.mark.parametrize("name", ["dawid_skene", "windowed:dawid_skene", "glad", "mmce"])
def test_a_class_nobody_knew_touches_no_other_item(name, chunks):
    model = lq.estimator(name).fit(chunks[0])
    known = model.predict(chunks[0])
    strange = pd.DataFrame({"task": ["new"], "worker": ["w0"], "label": [7]})
    answers = model.predict(pd.concat([chunks[0], strange]))
    assert answers["new"] == 7
    pd.testing.assert_series_equal(answers.drop("new"), known, check_index_type=False)
