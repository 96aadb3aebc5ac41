"""The watch: tracks and flags stay right whatever is done to a model, and flags are right."""

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import labelquorum as lq
from labelquorum.errors import LabelError, StateError
from labelquorum.evaluation import chunks, class_conditional_crowd, with_sleepers
from labelquorum.ingest.labels import LabelTable
from labelquorum.learn.analysis.drift import AGREED, BINS, CHUNK, LABELS, WIDTH

EXPERIMENT = Path(__file__).parents[2] / "experiments" / "crowd" / "measure.py"


def load_experiment():
    spec = spec_from_file_location("crowd_measure", EXPERIMENT)
    module = module_from_spec(spec)
    sys.modules["crowd_measure"] = module
    spec.loader.exec_module(module)
    return module


measure = load_experiment()


def learned(crowd, chunk_items=50, model=None, **settings):
    model = lq.BiLA(**settings) if model is None else model
    for part in chunks(crowd, chunk_items):
        model.partial_fit(LabelTable(*(column.tolist() for column in part)))
    return model


def book(model):
    return model.model_.learned.worker_stats.to_arrays()


def balanced(model):
    """Whether tracks hold as many labels as are counted."""
    rows = book(model)
    return rows["track"][:, :, LABELS].sum(axis=1) == pytest.approx(rows["labels"])


@pytest.fixture(scope="module")
def crowd():
    crowd = class_conditional_crowd(2000, 15, 3, 5, seed=8)
    return with_sleepers(crowd, [4], at=0.6, seed=8)


@pytest.fixture(scope="module")
def model(crowd):
    """Look, do not touch."""
    return learned(crowd)


@pytest.fixture
def mine(model, tmp_path):
    """The same, to touch."""
    model.save(tmp_path / "mine.lq")
    return lq.load(tmp_path / "mine.lq")


# ── tables ───────────────────────────────────────────────────────────────────────────────


def test_a_sleeper_is_told_with_the_chunk_he_turned_in(model):
    flags = model.flags()
    assert list(flags.columns) == ["worker", "flag", "score", "since", "partners", "says"]
    drifting = flags[flags["flag"] == "drifting"]
    assert drifting["worker"].tolist() == [4]
    assert drifting["since"].item() == pytest.approx(25, abs=4)  # since item 1200, chunk 25
    assert drifting["says"].item().startswith(f"Since chunk {drifting['since'].item()} they agree")


def test_a_track_shows_where_he_turned(model):
    table = model.track(4)
    assert list(table.columns) == ["labels", "agreement", "crowd", "low", "high", "change"]
    assert table.index.name == "chunk"
    assert table.index[-1] == 40
    assert len(table) <= BINS
    assert table["change"].sum() == 1
    turn = table.index[table["change"]][0]
    agreement = table["agreement"]
    before, after = agreement[agreement.index < turn], agreement[agreement.index >= turn]
    assert before.mean() > after.mean() + 0.1
    assert (table["low"] <= agreement).all()
    assert (agreement <= table["high"]).all()
    assert table["labels"].sum() == book(model)["labels"][model.workers_.get_loc(4)]


def test_flags_of_some_are_those_of_all(model):
    everybody = model.flags()
    some = model.flags(workers=[4, 0])
    assert set(some["worker"]) <= {0, 4}
    for worker in (0, 4):
        of_all = everybody[everybody["worker"] == worker]["says"].tolist()
        assert some[some["worker"] == worker]["says"].tolist() == of_all


def test_pairs_come_with_what_is_expected(model):
    table = model.collusion()
    assert list(table.columns) == ["worker", "other", "shared", "same", "expected", "score"]
    assert len(table) == 15 * 14 / 2
    assert table["score"].is_monotonic_decreasing
    assert (table["same"] <= table["shared"]).all()
    # on the whole it comes as expected
    assert table["same"].sum() == pytest.approx(table["expected"].sum(), rel=0.05)


def test_what_cannot_be_is_refused(model):
    with pytest.raises(StateError, match="`level` must be a number between 0 and 1"):
        model.flags(level=1)
    with pytest.raises(LabelError, match="Worker 99 is not known"):
        model.track(99)
    with pytest.raises(StateError, match="has learned nothing yet"):
        lq.BiLA().flags()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["majority_vote", "dawid_skene", "bila:recipe"])
def test_other_methods_have_flags_too(crowd, method):
    part = next(chunks(crowd, 600))
    model = lq.estimator(method).partial_fit(LabelTable(*(column.tolist() for column in part)))
    assert set(model.flags()["flag"]) <= {"spammer", "one_answer", "reversed", "colluding"}
    assert balanced(model)
    assert len(model.track(0)) == 1


@pytest.mark.slow
def test_one_class_and_one_worker_are_no_reason_for_flags():
    model = lq.BiLA().partial_fit({f"q{i}": {"ann": "yes"} for i in range(60)})
    assert len(model.flags()) == 0
    assert len(model.collusion()) == 0


# ── tracks stay right ────────────────────────────────────────────────────────────────────


def test_tracks_hold_as_many_labels_as_are_counted(model):
    assert balanced(model)
    track = book(model)["track"]
    assert track.shape == (15, BINS, WIDTH)
    assert (track[:, :, AGREED] <= track[:, :, LABELS] + 1e-3).all()
    assert (track[:, :, CHUNK].max(axis=1) == 40).all()


def test_what_is_sent_twice_is_tracked_once(model, mine, crowd):
    *_, last = chunks(crowd, 50)
    mine.partial_fit(LabelTable(*(column.tolist() for column in last)))
    assert (book(mine)["track"] == book(model)["track"]).all()


def test_a_late_label_is_tracked_and_a_correction_is_not():
    model = lq.BiLA().partial_fit({"q1": {"ann": "a", "bob": "b"}, "q2": {"ann": "a", "bob": "a"}})
    before = book(model)["track"][:, :, LABELS].sum()
    model.partial_fit({"q1": {"cat": "a"}})
    assert book(model)["track"][:, :, LABELS].sum() == before + 1
    model.partial_fit({"q1": {"cat": "b"}})
    assert book(model)["track"][:, :, LABELS].sum() == before + 1
    assert balanced(model)


@pytest.mark.slow
def test_a_saved_model_goes_on_as_if_it_had_never_stopped(crowd, tmp_path):
    parts = [LabelTable(*(c.tolist() for c in part)) for part in chunks(crowd, 100)]
    whole, half = lq.BiLA(), lq.BiLA()
    for part in parts[:5]:
        half.partial_fit(part)
    half.save(tmp_path / "half.lq")
    half = lq.load(tmp_path / "half.lq")
    for part in parts[5:8]:
        half.partial_fit(part)
    for part in parts[:8]:
        whole.partial_fit(part)
    assert (book(whole)["track"] == book(half)["track"]).all()
    assert whole.flags().equals(half.flags())


def test_who_is_forgotten_has_no_track(mine):
    k = mine.workers_.get_loc(4)
    mine.forget(4)
    assert not book(mine)["track"][k].any()
    assert 4 not in set(mine.flags()["worker"])
    assert all(4 not in (partners or []) for partners in mine.flags()["partners"])
    with pytest.raises(LabelError, match="Worker 4 is not known"):
        mine.track(4)


def test_a_label_that_is_withdrawn_leaves_the_track(mine, crowd):
    item = int(crowd.item[crowd.worker == 4][-1])
    mine.retract(item, 4)
    assert balanced(mine)


@pytest.mark.slow
def test_merged_models_hold_the_tracks_of_both(crowd):
    half = len(crowd.item) // 2
    shards = []
    for rows in (slice(half), slice(half, None)):
        columns = (crowd.item[rows], crowd.worker[rows], crowd.label[rows])
        shards.append(lq.BiLA().partial_fit(LabelTable(*(c.tolist() for c in columns))))
    merged = lq.merge(*shards)
    assert balanced(merged)
    assert book(merged)["labels"].sum() == len(crowd.item)
    merged.partial_fit({"new": {4: 0, 5: 0, "newcomer": 1}})
    assert balanced(merged)
    assert merged.track(4).index[-1] == 2


def test_models_that_went_on_from_one_do_not_track_it_twice(mine, tmp_path):
    mine.save(tmp_path / "base.lq")
    shards = [lq.load(tmp_path / "base.lq") for _ in range(2)]
    for number, shard in enumerate(shards):
        tasks = {f"more {number} {i}": {4: i % 3, 5: i % 3, 6: i % 3} for i in range(30)}
        shard.partial_fit(tasks)
    merged = lq.merge(*shards, base=mine)
    assert balanced(merged)
    assert book(merged)["labels"].sum() == book(mine)["labels"].sum() + 180


def test_a_history_is_no_part_of_a_track():
    model = lq.BiLA(history={"ann": (8, 10)}, classes=["a", "b"])
    model.partial_fit({"q1": {"ann": "a", "bob": "a"}})
    assert model.track("ann")["labels"].tolist() == [1]


# ── flags are right ──────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_flags_are_right_ten_chunks_after_a_sleeper_turned():
    """20 % spammers, a sleeper and a ring of 5 %, on crowds no threshold was chosen on."""
    reply = measure.flags_of(measure.Scene("class-conditional", 4, 8), range(500, 510))
    assert reply["precision"] >= 0.9
    assert reply["recall"] >= 0.8
    for flag in ("spammer", "drifting", "colluding"):
        counted = reply["by_flag"][flag]
        assert counted["right"] >= 0.8 * counted["flags"]
        assert counted["found"] >= 0.7 * counted["wanted"] > 0


def test_a_judge_of_flags_counts_what_is_wrong():
    """The figures can fall: flags of the wrong workers are not right."""
    role = np.array(["honest", "spammer", "sleeper", "ring", "ring"])
    columns = ["worker", "flag", "partners"]
    rows = [(0, "spammer", None), (1, "spammer", None), (3, "colluding", [0])]
    counted = measure.judge(role, pd.DataFrame(rows, columns=columns))
    assert counted["spammer"].tolist() == [2, 1, 1, 1]
    assert counted["colluding"].tolist() == [1, 0, 2, 1]
    assert counted["drifting"].tolist() == [0, 0, 1, 0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["class-conditional", "one-coin"])
def test_stopping_errs_no_more_than_it_promises_and_saves_labels(kind):
    rows = measure.stopping_of(measure.Scene(kind, 3, 10, workers=30), 20, range(600, 602))
    assert [row["confidence"] for row in rows] == [0.8, 0.9, 0.95]
    for row in rows:
        assert row["error"] <= 1 - row["confidence"] + 0.01
        assert row["closed_error"] <= 1 - row["confidence"] + 0.01
        assert row["saved"] >= 0.3
        assert row["closed"] > 0.8
        # and what was said beforehand, from all labels, came about
        assert row["said_saved"] == pytest.approx(row["saved"], abs=0.1)
        assert row["said_error"] == pytest.approx(row["error"], abs=0.04)


def test_where_tasks_have_labels_enough_the_committed_figures_reach_what_was_asked_for():
    reply = json.loads((EXPERIMENT.parent / "results" / "measured.json").read_text())
    rows = {row["crowd"]: row for row in reply["flags"] if row["labels_per_item"] >= 6}
    assert len(rows) >= 7
    assert all(row["precision"] >= 0.9 and row["recall"] >= 0.8 for row in rows.values())
    for row in reply["stopping"]:
        assert row["closed_error"] <= 1 - row["confidence"] + 0.01
        assert row["saved"] >= 0.3 or row["labels_per_item"] <= 5
