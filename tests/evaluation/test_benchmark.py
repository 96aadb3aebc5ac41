"""The online benchmark: what is run, what is scored, and what cannot be."""

import time
from pathlib import Path

import numpy as np
import pytest

from labelquorum.errors import LabelError, StateError
from labelquorum.evaluation import benchmark
from labelquorum.evaluation.benchmark import (
    METHODS,
    Protocol,
    check_method,
    digest,
    evaluate,
    evaluate_all,
    kind_of,
)
from labelquorum.evaluation.crowdkit import Peer
from labelquorum.evaluation.datasets.load import Dataset
from labelquorum.evaluation.replay import stream
from labelquorum.evaluation.simulate.arrivals import label_table
from labelquorum.evaluation.simulate.crowds import class_conditional_crowd
from labelquorum.ingest.labels import LabelTable


def dataset(n_classes: int = 2, n_items: int = 120) -> Dataset:
    crowd = class_conditional_crowd(n_items, 12, n_classes, 5, skill=(0.6, 0.95), seed=3)
    truth = dict(enumerate(crowd.truth.tolist()))
    return Dataset("made", label_table(crowd, text_ids=False), truth, Path("made"))


@pytest.fixture
def data_folder(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        data = dataset()
        folder = tmp_path / name
        folder.mkdir()
        rows = zip(data.table.item_ids, data.table.worker_ids, data.table.labels, strict=True)
        lines = [f"{item},{worker},{label}" for item, worker, label in rows]
        (folder / "labels.csv").write_text("\n".join(["task,worker,label", *lines]))
        truths = [f"{item},{true}" for item, true in data.truth.items()]
        (folder / "truth.csv").write_text("\n".join(["task,label", *truths]))
    return tmp_path


def test_a_row_holds_what_the_streams_gave():
    data, protocol = dataset(), Protocol(chunk_items=20, orders=3)
    row = evaluate(data, "streaming_vb", protocol)
    runs = [
        stream(
            lambda seed=seed: benchmark._model("streaming_vb", seed, 120, "items"),
            data.table,
            data.truth,
            chunk_items=20,
            order=seed,
        )
        for seed in range(3)
    ]
    emitted = [100 * run.emitted_error for run in runs]
    assert row["emitted_error"] == pytest.approx(np.mean(emitted), abs=1e-3)
    assert row["emitted_error_sd"] == pytest.approx(np.std(emitted, ddof=1), abs=1e-3)
    assert row["final_error"] == pytest.approx(
        100 * np.mean([r.final_error for r in runs]), abs=1e-3
    )
    assert row["log_loss"] == pytest.approx(np.mean([r.log_loss for r in runs]), abs=1e-3)
    assert row["batch_gap"] == pytest.approx(row["emitted_error"] - row["batch_error"], abs=1e-3)
    assert row["orders"] == 3 and row["kind"] == "online" and not row["capped"]
    assert row["curve"][-1] == [120, pytest.approx(row["emitted_error"], abs=1e-2)]


def test_a_batch_method_is_fitted_once_on_everything():
    row = evaluate(dataset(), "dawid_skene", Protocol(chunk_items=20, orders=3))
    assert row["kind"] == "batch" and row["orders"] == 1
    assert row["emitted_error"] == row["final_error"] == row["batch_error"]


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("bila", "online"),
        ("bila:authors", "online"),
        ("laa", "online"),
        ("mmce", "batch"),
        ("crowdkit:glad", "batch"),
        ("windowed:mmce", "windowed"),
        ("refit:crowdkit:mace", "refit"),
    ],
)
def test_methods_meet_a_stream_in_four_ways(method, kind):
    assert method in METHODS
    assert kind_of(method) == kind


def test_what_cannot_be_done_is_a_row_with_a_reason():
    row = evaluate(dataset(n_classes=3), "sbic", Protocol(orders=1))
    assert "two classes" in row["reason"] and "emitted_error" not in row
    unscored = dataset()._replace(truth={"elsewhere": 1})
    assert "truth" in evaluate(unscored, "majority_vote")["reason"]
    row = evaluate(dataset(), "refit:dawid_skene", Protocol(refit_labels=100))
    assert row["reason"] == "refitting is measured on sets of up to 100 labels"


def test_time_that_is_up_keeps_the_orders_that_were_finished(monkeypatch):
    real = benchmark._run

    def work():
        while time.process_time() < 1e6:
            pass

    def slow(*arguments):
        return work() if arguments[3] == 2 else real(*arguments)  # the third order never ends

    monkeypatch.setattr(benchmark, "_run", slow)
    row = evaluate(dataset(), "majority_vote", Protocol(orders=10, time_cap=2))
    assert row["orders"] == 2 and row["capped"] and row["batch_error"] is None
    monkeypatch.setattr(benchmark, "_run", lambda *_: work())
    row = evaluate(dataset(), "majority_vote", Protocol(orders=10, time_cap=0.2))
    assert row["reason"] == "stopped after 0.2 s"


@pytest.mark.slow
def test_processes_give_the_same_rows_as_one(data_folder):
    folders = [data_folder / "one", data_folder / "two"]
    methods, protocol = ["majority_vote", "la_one_pass"], Protocol(chunk_items=20, orders=2)

    def errors(jobs):
        rows = [row for row, _, _ in evaluate_all(folders, methods, protocol, jobs=jobs)]
        return {(r["dataset"], r["method"]): r["emitted_error_by_order"] for r in rows}

    assert len(errors(1)) == 4
    assert errors(2) == errors(1)


def test_what_is_done_is_not_run_again(data_folder):
    rows = list(
        evaluate_all(
            [data_folder / "one", data_folder / "two"],
            ["majority_vote"],
            Protocol(orders=1),
            done=lambda folder, method: folder.name == "one",
        )
    )
    [(row, finished, total)] = rows
    assert (row["dataset"], finished, total) == ("two", 1, 1)


def test_an_unknown_method_is_refused_before_anything_runs():
    with pytest.raises(StateError, match="nearest names are majority_vote"):
        next(evaluate_all([], ["majority_vot"]))


def test_labels_that_trickle_in_end_as_whole_items_do():
    data = dataset(n_items=40)
    whole = evaluate(data, "majority_vote", Protocol(chunk_items=5, orders=2))
    singly = evaluate(data, "majority_vote", Protocol(chunk_items=1, orders=2, arrival="labels"))
    assert singly["emitted_error_by_order"] == whole["emitted_error_by_order"]


def test_time_order_follows_the_first_timestamp_of_each_item():
    table = LabelTable(
        item_ids=["a", "b", "a", "c"],
        worker_ids=["w", "w", "v", "w"],
        labels=[0, 0, 0, 0],
        timestamps=[5, 3, 1, 4],
    )
    seen = []

    class Recorder:
        def __init__(self):
            self.inner = benchmark._model("majority_vote", 0, 3, "items")

        def partial_fit(self, labels):
            seen.append(labels.item_ids[0])
            return self.inner.partial_fit(labels)

        def __getattr__(self, name):
            return getattr(self.inner, name)

    stream(Recorder, table, {}, chunk_items=1, order="time")
    assert seen == ["a", "b", "c"]
    with pytest.raises(LabelError, match="timestamp"):
        stream(Recorder, table._replace(timestamps=None), {}, chunk_items=1, order="time")


def test_a_vote_has_no_gap_to_itself():
    row = evaluate(dataset(), "majority_vote", Protocol(chunk_items=20, orders=4))
    assert row["batch_gap"] == 0


def test_another_content_has_another_digest():
    data = dataset()
    assert digest(data) == digest(dataset())
    assert digest(data) != digest(data._replace(truth={**data.truth, 0: 1 - data.truth[0]}))


def test_truth_that_is_spelled_otherwise_is_told():
    data = dataset()
    spelled = data._replace(truth={item: f"{true}.0" for item, true in data.truth.items()})
    assert "no class of the labels" in evaluate(spelled, "majority_vote")["reason"]


@pytest.mark.slow
def test_memory_is_measured_in_a_process_of_its_own(data_folder):
    folders, methods = [data_folder / "one"], ["majority_vote", "la_one_pass"]
    rows = [row for row, _, _ in evaluate_all(folders, methods, Protocol(orders=1), memory=True)]
    assert all(0 < row["peak_memory_mb"] < 1000 for row in rows)


@pytest.mark.parametrize("name", ["windowed:crowdkit:glad", "crowdkit:gladd"])
def test_what_crowd_kit_cannot_do_is_refused(name):
    with pytest.raises(StateError, match="crowdkit:glad"):
        check_method(name)


@pytest.mark.slow
def test_a_peer_counts_a_workers_last_label_and_refuses_weights():
    table = LabelTable(["a", "a", "a", "b"], ["v", "v", "w", "w"], [0, 1, 1, 0])
    peer = Peer("crowdkit:dawid_skene").partial_fit(table)
    assert peer.labels_.to_dict() == {"a": 1, "b": 0}
    with pytest.raises(StateError, match="weights"):
        Peer("crowdkit:dawid_skene").partial_fit(table._replace(weights=[1.0] * 4))


def test_a_peer_that_fails_gives_a_row_with_the_reason(monkeypatch):
    def fail(*_):
        raise TypeError("no such thing")

    monkeypatch.setattr("crowdkit.aggregation.DawidSkene.fit_predict_proba", fail)
    assert evaluate(dataset(), "crowdkit:dawid_skene")["reason"] == "Crowd-Kit: no such thing"


def test_a_peer_answers_as_crowd_kit_does():
    import pandas as pd
    from crowdkit.aggregation import DawidSkene

    data = dataset()
    peer = Peer("crowdkit:dawid_skene").partial_fit(data.table)
    frame = pd.DataFrame(
        {"task": data.table.item_ids, "worker": data.table.worker_ids, "label": data.table.labels}
    )
    theirs = DawidSkene().fit_predict(frame)
    assert peer.predict(data.table).to_dict() == theirs.to_dict()
