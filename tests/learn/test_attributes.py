"""Scores and worker attributes in models: late labels, files, forgetting, merging, reports."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest

import labelquorum as lq
from labelquorum.errors import LabelError
from labelquorum.ingest.labels import LabelSpace
from labelquorum.ingest.readers import read_labels
from labelquorum.learn.merge import merge

JUDGES = {
    "j1": {"kind": "llm", "model": "m", "prompt": "p", "order": "AB"},
    "j2": {"kind": "llm", "model": "m", "prompt": "p", "order": "BA"},
    "ann": {"kind": "human"},
}


def jury(n_tasks=20, first=0, workers=("j1", "j2", "ann"), seed=0):
    random = np.random.default_rng(seed)
    rows = [
        (f"t{n:03d}", worker, "ab"[n % 2 if random.random() < 0.8 else 1 - n % 2])
        for n in range(first, first + n_tasks)
        for worker in workers
    ]
    table = pd.DataFrame(rows, columns=["task", "worker", "label"])
    table["score"] = random.normal(size=len(table)).round(3)
    table.loc[table.worker == "ann", "score"] = None
    return table


def scores_of(model):
    """The scores a model holds, by task and worker."""
    learned = model.model_.learned
    names = learned.vocabulary.worker_ids
    return {
        (task, names[k]): float(score)
        for task in learned.open_items
        for held in [learned.open_items.get(task)]
        for k, score in zip(held.worker.tolist(), held.score, strict=True)
        if not np.isnan(score)
    }


def expected_scores(table):
    given = table.dropna(subset=["score"])
    keys = zip(given.task, given.worker, strict=True)
    return dict(zip(keys, given.score.astype(np.float32).astype(float), strict=True))


def test_attributes_and_scores_change_no_answer_of_today():
    table = jury()
    plain = lq.BiLA().fit(table[["task", "worker", "label"]])
    with_more = lq.BiLA().fit(table, workers=JUDGES)
    pd.testing.assert_frame_equal(plain.probas_, with_more.probas_)


def test_late_labels_find_the_scores_of_earlier_ones():
    table = jury()
    early, late = table[table.worker != "j2"], table[table.worker == "j2"]
    model = lq.BiLA().partial_fit(early).partial_fit(late)
    assert scores_of(model) == expected_scores(table)
    np.testing.assert_array_equal(
        np.sort(model.model_.answer.intake.chunk.score),
        np.sort(np.float32(table.score)),
    )


def test_labels_without_scores_join_labels_with_scores_and_the_other_way_round():
    table = jury()
    scored, plain = table[table.worker == "j1"], table[table.worker == "ann"].drop(columns="score")
    for parts in ((scored, plain), (plain, scored)):
        model = lq.BiLA()
        for part in parts:
            model.partial_fit(part)
        assert scores_of(model) == expected_scores(scored)


def test_a_label_that_is_sent_again_with_another_score_is_a_correction():
    table = jury()
    model = lq.BiLA().partial_fit(table)
    before = model.probas_
    again = table[table.worker == "j1"].assign(score=0.125)
    assert model.partial_fit(again).tally_.corrected == len(again)
    assert {score for (_, who), score in scores_of(model).items() if who == "j1"} == {0.125}
    np.testing.assert_allclose(model.report().items.shape[0], len(before))
    assert model.partial_fit(again).tally_.repeated == len(again)


def test_majorities_of_late_votes_average_their_scores():
    model = lq.BiLA(repeats="majority")
    rows = [("t", "j1", "a", 0.5), ("t", "j1", "a", 1.0), ("t", "j1", "a", 3.0)]
    votes = pd.DataFrame(rows, columns=["task", "worker", "label", "score"])
    model.partial_fit(votes[:2]).partial_fit(votes[2:])
    assert scores_of(model) == {("t", "j1"): 1.5}  # (0.5 + 1.0 + 3.0) / 3


@pytest.mark.parametrize("warmup_items", [0, 1000])
def test_a_file_keeps_scores_and_attributes_and_learning_goes_on(warmup_items, tmp_path):
    first, second = jury(), jury(first=10, seed=1)
    whole = lq.BiLA(warmup_items=warmup_items).partial_fit(first, workers=JUDGES)
    whole.save(tmp_path / "model.lq")
    loaded = lq.load(tmp_path / "model.lq")
    copy = pickle.loads(pickle.dumps(whole))
    assert loaded.model_.learned.vocabulary.attributes == whole.model_.learned.vocabulary.attributes
    for model in (whole, loaded, copy):
        model.partial_fit(second).answer_held()
        model.save(tmp_path / "after.lq")
        now = (tmp_path / "after.lq").read_bytes()
        assert now == (tmp_path / "before.lq").read_bytes() if model is not whole else True
        (tmp_path / "before.lq").write_bytes(now)
    assert list(loaded.report().workers["model"]) == [None, "m", "m"]


def test_a_file_without_attributes_has_the_bytes_it_always_had(tmp_path):
    table = jury()[["task", "worker", "label"]]
    lq.BiLA().fit(table).save(tmp_path / "plain.lq")
    data = (tmp_path / "plain.lq").read_bytes()
    assert b"attributed_workers" not in data and b"ledger/score" not in data


def test_a_report_shows_the_attributes_that_any_worker_has():
    model = lq.BiLA().fit(jury(), workers=JUDGES)
    workers = model.report().workers
    assert workers.loc["j2", ["worker_kind", "model", "prompt", "order"]].tolist() == [
        "llm",
        "m",
        "p",
        "BA",
    ]
    assert workers.loc["ann", "worker_kind"] == "human" and workers.loc["ann", "model"] is None
    people = lq.BiLA().fit(jury().assign(worker_kind="human")).report().workers
    assert "model" not in people and set(people.worker_kind) == {"human"}
    assert "worker_kind" not in lq.BiLA().fit(jury()).report().workers


def test_a_forgotten_worker_leaves_no_attributes(tmp_path):
    for warmup_items in (0, 1000):
        model = lq.BiLA(warmup_items=warmup_items).partial_fit(
            jury(), workers={**JUDGES, "eve": {"model": "secret"}}
        )
        model.forget("j2")
        assert "j2" not in model.model_.learned.vocabulary.attributes
        model.save(tmp_path / "model.lq")
        assert b"BA" not in (tmp_path / "model.lq").read_bytes()
    model = lq.BiLA().fit(jury(), workers={"eve": {"model": "secret"}})
    assert model.forget("eve").model_.learned.vocabulary.attributes == {}
    with pytest.raises(LabelError, match="'eve' is not known"):
        model.forget("eve")


def test_merging_joins_attributes_and_keeps_scores():
    one = lq.BiLA().fit(jury(), workers={"j1": JUDGES["j1"]})
    other = lq.BiLA().fit(jury(first=50), workers={"j1": {"model": "m"}, "ann": JUDGES["ann"]})
    both = merge(one, other)
    assert both.report().workers["worker_kind"].to_dict() == {
        "ann": "human",
        "j1": "llm",
        "j2": None,
    }
    assert scores_of(both) == scores_of(one) | scores_of(other)
    with pytest.raises(LabelError, match="merge: worker 'j1' has the model 'x' here and 'm'"):
        merge(one, lq.BiLA().fit(jury(first=50), workers={"j1": {"model": "x"}}))


def test_a_refused_attribute_changes_nothing():
    model = lq.BiLA().partial_fit(jury(), workers=JUDGES)
    before = model.probas_
    with pytest.raises(LabelError, match="a worker has one prompt"):
        model.partial_fit(
            jury(first=40), workers={"j1": {"prompt": "other"}, "new": {"model": "x"}}
        )
    assert "new" not in model.model_.learned.vocabulary.attributes
    pd.testing.assert_frame_equal(model.probas_, before)


def test_worker_groups_and_scores_reach_the_chunk_of_open_tasks():
    model = lq.BiLA().fit(jury(), workers=JUDGES)
    chunk = model.inspection._open()[0]
    assert np.count_nonzero(chunk.worker_groups) == 2
    assert np.count_nonzero(~np.isnan(chunk.score)) == 40


def test_rows_in_any_order_give_the_same_bytes(tmp_path):
    table = jury().assign(model=lambda t: t.worker.map({"j1": "m", "j2": "m"}))
    lq.BiLA(repeats="all").fit(table).save(tmp_path / "one.lq")
    shuffled = table.sample(frac=1, random_state=3)
    order = list(dict.fromkeys(table.task))
    shuffled = shuffled.sort_values("task", key=lambda t: t.map(order.index), kind="stable")
    lq.BiLA(repeats="all").fit(shuffled).save(tmp_path / "other.lq")
    assert (tmp_path / "one.lq").read_bytes() == (tmp_path / "other.lq").read_bytes()


def test_a_table_with_all_columns_needs_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lq.BiLA().fit(
            read_labels(jury(), LabelSpace()),
            workers=pd.DataFrame(JUDGES).T.rename_axis("worker").reset_index(),
        )
