"""Scores and worker attributes in a store: accepted, learned from, shown, exported, forgotten."""

import numpy as np
import pandas as pd
import pytest
from store.conftest import store_on

import labelquorum as lq
from labelquorum.errors import ConflictError, LabelError
from labelquorum.ingest.worker_attributes import Attributes
from labelquorum.store.backup import backup, restore
from labelquorum.store.export import exported
from labelquorum.store.refit import refit
from labelquorum.store.rules import Rules
from labelquorum.store.store import Store

where = store_on("sqlite", "postgresql")
CLASSES = ["a", "b"]
RULES = Rules(
    labels_per_item=3, chunk_items=10, max_wait=None, max_chunk_wait=None, retention="keep"
)
MODELS = {"j1": "m", "j2": "m", "j3": "n"}


def jury(first=0, last=30, seed=0, workers=("j1", "j2", "j3", "ann", 7)):
    random = np.random.default_rng(seed)
    rows = []
    for n in range(first, last):
        for worker in workers:
            label = "ab"[n % 2 if random.random() < 0.8 else 1 - n % 2]
            row = {"task": f"t{n:03d}", "worker": worker, "label": label}
            if worker in MODELS:
                row |= {"score": random.normal(), "worker_kind": "llm", "model": MODELS[worker]}
            rows.append(row)
    return rows


@pytest.fixture
def stream(store):
    return store.create("s", classes=CLASSES, rules=RULES)


def held_scores(model):
    learned = model.model_.learned
    items = [learned.open_items.get(task) for task in learned.open_items]
    return np.concatenate([item.score for item in items if item.score is not None])


def test_a_stream_learns_what_the_library_learns_from_the_same_chunks(stream, tmp_path):
    library = lq.BiLA(classes=CLASSES)
    for start in (0, 10, 20):
        rows = jury(start, start + 10, seed=start)
        library.partial_fit(rows)
        stream.accept(rows)
        stream.settle()
    late = jury(5, 15, seed=9, workers=("j4", "bob"))  # of open tasks
    library.partial_fit(late)
    stream.accept(late)
    stream.settle(flush=True)
    ours, theirs = stream.estimator(), library
    roster, other = ours.model_.learned.vocabulary, theirs.model_.learned.vocabulary
    assert roster.attributes == other.attributes
    assert roster.attributes["j3"] == Attributes("llm", "n")
    pd.testing.assert_frame_equal(
        ours.report().workers.sort_index(key=lambda ids: ids.map(str)),
        theirs.report().workers.sort_index(key=lambda ids: ids.map(str)),
    )
    np.testing.assert_array_equal(np.sort(held_scores(ours)), np.sort(held_scores(theirs)))
    assert np.count_nonzero(~np.isnan(held_scores(ours))) == 90


def test_attributes_and_scores_are_shown_and_exported(stream):
    stream.accept(jury())
    stream.settle(flush=True)
    shown = stream.worker("j1")
    assert (shown["worker_kind"], shown["model"], shown["prompt"]) == ("llm", "m", None)
    assert "model" not in stream.worker("ann")
    with exported(stream, "workers", typed=True) as found:
        rows = {row["worker"]: row for row in found.rows}
        assert found.columns["model"] == {str}
    assert rows["j3"]["model"] == "n" and rows[7]["model"] is None
    with exported(stream, "labels") as found:
        scores = {(row["task"], row["worker"]): row["score"] for row in found.rows}
    sent = {(row["task"], row["worker"]): row.get("score") for row in jury()}
    assert scores == sent


def test_a_stream_without_them_exports_the_columns_it_always_had(stream):
    stream.accept([{k: row[k] for k in ("task", "worker", "label")} for row in jury()])
    stream.settle(flush=True)
    for what, unknown in (("workers", "model"), ("labels", "score")):
        with exported(stream, what) as found:
            assert unknown not in found.columns


def test_another_value_is_refused_and_changes_nothing(stream):
    stream.accept(jury(0, 10))
    before = stream.count()
    bad = [{**row, "model": "other"} for row in jury(10, 12, workers=("j1",))]
    good = jury(12, 14)
    results = stream.accept_all([lq_submission(bad), lq_submission(good)])
    assert isinstance(results[0], LabelError) and results[1].accepted == len(good)
    assert str(results[0]).startswith("Stream 's': worker 'j1' has the model 'other' here and 'm'")
    assert stream.count()["held_labels"] == before["held_labels"] + len(good)
    news = [{**row, "worker": "new", "model": "m"} for row in bad]
    with pytest.raises(LabelError, match="has the model 'other'"):
        stream.accept([*news, *bad])
    with pytest.raises(LabelError, match="two worker ids, with the same model and prompt"):
        stream.accept([{**bad[0], "model": "m", "order": order} for order in ("AB", "BA")])


def test_a_refused_batch_brings_no_workers(store):
    stream = store.create("few", rules=lq.Rules(max_workers=3))
    stream.accept(jury(0, 2, workers=("j1",)))
    bad = jury(2, 4, workers=("j1", "j2", "j3"))
    with pytest.raises(LabelError, match="has the model 'other'"):
        stream.accept([{**row, "model": "other"} for row in bad])
    stream.accept(jury(4, 6, workers=("j4", "j5")))  # with j2 and j3 these would be too many


def test_an_attribute_that_is_no_text_is_refused(stream):
    with pytest.raises(LabelError, match="the prompt has the character"):
        stream.accept([{**row, "prompt": "a\0b"} for row in jury(0, 1, workers=("j1",))])


def lq_submission(rows):
    from labelquorum.store.batch import Submission

    return Submission(rows)


def test_a_later_value_fills_a_gap(stream):
    rows = jury(0, 10, workers=("ann",))
    stream.accept(rows)
    stream.accept([{**row, "worker_kind": "human"} for row in jury(10, 20, workers=("ann",))])
    stream.settle(flush=True)
    assert stream.worker("ann")["worker_kind"] == "human"


def test_the_same_key_with_another_score_or_model_is_a_conflict(stream):
    [row] = jury(0, 1, workers=("j1",))
    stream.accept([row], key="k")
    assert stream.accept([row], key="k").repeated
    for changed in ({"score": 0.25}, {"model": "n"}, {"prompt": "p"}):
        with pytest.raises(ConflictError, match="came before with other labels"):
            stream.accept([row | changed], key="k")


def test_a_forgotten_worker_leaves_neither_attributes_nor_scores(store, stream, where):
    stream.accept(jury())
    stream.settle(flush=True)
    stream.forget("j3")
    model = stream.estimator()
    assert "j3" not in model.model_.learned.vocabulary.attributes
    assert np.count_nonzero(~np.isnan(held_scores(model))) == 60
    stream.accept(jury(40, 50, workers=("j1", "j3")))  # and comes back as a new worker
    stream.accept([{"task": "x", "worker": "j3", "label": "a", "prompt": "p"}])
    stream.settle(flush=True)
    assert stream.worker("j3")["prompt"] == "p"


def test_a_backup_has_them_and_goes_on_with_the_same_hash(where, tmp_path, clock):
    with Store.open(where, clock) as store:
        stream = store.create("s", classes=CLASSES, rules=RULES)
        stream.accept(jury(0, 15))
        stream.settle(flush=True)
        before = stream.state_hash()
    backup(where, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "again")
    ends = []
    for place in (where, tmp_path / "again"):
        with Store.open(place, clock) as store:
            stream = store.stream("s")
            assert stream.state_hash() == before
            stream.accept(jury(10, 25, seed=2))
            stream.settle(flush=True)
            ends.append(stream.state_hash())
    assert ends[0] == ends[1] != before


def test_the_hash_tells_other_attributes_and_other_scores_apart(store):
    def hash_of(name, change):
        stream = store.create(name, classes=CLASSES, rules=RULES)
        stream.accept([row | change(row) for row in jury()])
        stream.settle(flush=True)
        return stream.state_hash()

    judges = lambda change: lambda row: change if row["worker"] == "j1" else {}  # noqa: E731
    hashes = [
        hash_of("one", judges({})),
        hash_of("score", judges({"score": 0.125})),
        hash_of("model", judges({"model": "x"})),
    ]
    assert len(set(hashes)) == 3
    assert hash_of("again", judges({})) == hashes[0]


def test_the_model_file_and_the_refit_have_them(stream, tmp_path):
    stream.accept(jury())
    stream.settle(flush=True)
    (tmp_path / "model.lq").write_bytes(stream.model_file())
    model = lq.load(tmp_path / "model.lq")
    assert model.report().workers.loc["j1", "model"] == "m"
    assert refit(stream).compared == 30
