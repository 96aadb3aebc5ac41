"""The figures of a stream are those of its answers, whatever happened to them."""

import json
from collections import Counter

import numpy as np
import pytest
import sqlalchemy as sa

from labelquorum.store import stats
from labelquorum.store.database import schema
from labelquorum.store.queries import all_counts, all_rows
from labelquorum.store.rules import Rules
from labelquorum.store.stats import BINS, StreamStats, histogram

RULES = Rules(labels_per_item=2, chunk_items=4, max_wait=None, max_chunk_wait=None, grace=1e9)


def labels(n_items, start=0, truth="a"):
    return {
        f"t{n:03d}": {f"w{n % 3}": truth, f"w{(n + 1) % 3}": truth if n % 4 else "b"}
        for n in range(start, start + n_items)
    }


def check(stream, figures):
    """Hold figures against the answers themselves."""
    answers = stream.answers()
    with figures.fresh() as reply:
        assert {k: n for k, n in reply.classes.items() if n} == Counter(
            one.label for one in answers
        )
        assert reply.confidence.tolist() == histogram(np.array([one.confidence for one in answers]))


@pytest.fixture
def stream(store):
    return store.create("s", classes=["a", "b", "c"], rules=RULES)


def test_figures_are_those_of_the_answers_as_they_come(stream):
    figures = StreamStats(stream)
    check(stream, figures)
    for start in range(0, 24, 8):
        stream.accept(labels(8, start))
        stream.settle()
        check(stream, figures)
    check(stream, StreamStats(stream))
    with figures.fresh() as reply:
        assert reply.n_chunks == 6 and reply.labels == 48
        assert [point.items for point in reply.points()] == [4] * 6
        assert [point.new_items for point in reply.points()] == [4] * 6
        assert sum(point.labels for point in reply.points()) == 48
        assert reply.recent[0] == 24 and sum(reply.recent[1].values()) == 24
        assert reply.depth[2] == 24 and sum(reply.depth) == 24
        assert reply.priors == pytest.approx(stream.estimator().priors_.tolist(), abs=1e-5)
        for row in stream.chunks():
            assert reply.applied_at(row["id"]) == row["applied_at"] >= row["cut_at"]
        assert reply.applied_at(99) is None


def test_an_item_that_is_answered_anew_counts_once(stream):
    figures = StreamStats(stream)
    stream.accept(labels(4))
    stream.settle()
    stream.accept({"t000": {"x": "c", "y": "c", "z": "c"}, "t001": {"w1": "b", "w2": "b"}})
    stream.settle(flush=True)
    check(stream, figures)
    with figures.fresh() as reply:
        stops = reply.early_stopping()
        assert (stops["items"], stops["labels"]) == (4, 11)
        assert stops["chunks"] == reply.n_chunks
        assert [(point.items, point.new_items) for point in reply.points()] == [(4, 4), (2, 0)]
        assert sum(reply.depth) == 4 and reply.depth[5] == 1  # each once, by its present labels


def test_stopping_is_that_of_the_model_on_the_same_items(stream):
    stream.accept(labels(8))
    stream.settle()
    with StreamStats(stream).fresh() as reply:
        stops = reply.early_stopping()
    assert (stops["items"], stops["labels"], stops["chunks"]) == (8, 16, 2)
    used = [point["labels_used"] for point in stops["curve"]]
    assert used == sorted(used) and used[0] >= 8 and used[-1] <= 16
    assert len(stops["curve"]) == len(stream.estimator().stopping())


def test_chunks_that_were_applied_before_there_were_figures_are_counted_by_their_answers(
    store, stream
):
    stream.accept(labels(8))
    stream.settle()
    with store.write() as connection:
        connection.execute(schema.chunks.update().values(summary=None, applied_at=None))
    stream.accept(labels(4, 8))
    stream.settle()
    figures = StreamStats(stream)
    check(stream, figures)
    with figures.fresh() as reply:
        assert [point.sure is None for point in reply.points()] == [True, True, False]
        assert reply.applied_at(1) is None and reply.applied_at(3) is not None
        assert len(reply.update_seconds) == 1 and reply.early_stopping()["chunks"] == 1


def test_an_item_of_a_chunk_without_figures_that_was_answered_anew_counts_once(store, stream):
    stream.accept(labels(8))
    stream.settle()
    with store.write() as connection:
        connection.execute(schema.chunks.update().values(summary=None, applied_at=None))
    warm = StreamStats(stream)
    check(stream, warm)
    stream.accept({"t000": {"x": "c", "y": "c", "z": "c"}, "t001": {"x": "b", "y": "b"}})
    stream.settle(flush=True)
    check(stream, warm)
    check(stream, StreamStats(stream))


def test_figures_that_could_not_be_read_to_the_end_are_counted_once(stream, monkeypatch):
    figures = StreamStats(stream)
    stream.accept(labels(4))
    stream.settle()
    check(stream, figures)
    stream.accept(labels(12, 4))
    stream.settle()
    add, n_added = StreamStats._add, 0

    def lost(self, *row):
        nonlocal n_added
        n_added += 1
        if n_added == 3:
            raise OSError("the connection is lost")
        add(self, *row)

    monkeypatch.setattr(StreamStats, "_add", lost)
    with pytest.raises(OSError, match="lost"), figures.fresh():
        pass
    check(stream, figures)
    with figures.fresh() as reply:
        assert (
            reply.n_chunks == len(reply.update_seconds) == len(reply.points()) == 4
            and reply.labels == 32
        )
        assert reply.recent[0] == 16 and reply.early_stopping()["chunks"] == 4


@pytest.mark.parametrize("has_figures", [True, False])
def test_a_truth_that_comes_late_is_counted_in_place_of_the_answer(store, has_figures):
    rules = RULES.changed(grace=0.0)
    stream = store.create("s", classes=["a", "b", "c"], rules=rules)
    stream.accept(labels(8))
    stream.settle()
    if not has_figures:
        with store.write() as connection:
            connection.execute(schema.chunks.update().values(summary=None))
    warm = StreamStats(stream)
    check(stream, warm)
    assert stream.gold({"t000": "c", "t001": "c", "t002": "b"}).late == 3
    check(stream, warm)
    check(stream, StreamStats(stream))
    stream.gold({"t000": "b", "t001": "c"})  # another truth, and one that is no news
    check(stream, warm)
    stream.accept(labels(4, 8))
    cut = stream.cut()
    assert stream.gold({"t008": "c"}).late == 1  # between cut and answer
    check(stream, warm)
    stream.advance(cut)
    check(stream, warm)
    check(stream, StreamStats(stream))


def test_a_truth_is_counted_once_where_the_item_was_open_first_and_closed_then(stream):
    warm = StreamStats(stream)
    stream.accept(labels(4))
    stream.settle()
    stream.gold({"t000": "c"})
    stream.settle(flush=True)
    check(stream, warm)
    stream.change(grace=0)
    stream.accept(labels(4, 4) | {"t001": {"x": "b"}})
    cut = stream.cut()
    stream.gold({"t001": "c", "t000": "b"})
    check(stream, warm)
    stream.advance(cut)
    stream.settle(flush=True)
    check(stream, warm)
    check(stream, StreamStats(stream))


def test_a_class_that_is_not_answered_any_more_is_missed(store, monkeypatch):
    stream = store.create("s", classes=["a", "b"], rules=RULES)
    figures = StreamStats(stream)
    monkeypatch.setattr(stats, "MIN_EXPECTED_ANSWERS", 4.0)
    half = {f"t{n:03d}": dict.fromkeys(("x", "y", "z"), "ab"[n % 2]) for n in range(12)}
    stream.accept(half)
    stream.settle()
    with figures.fresh() as reply:
        assert reply.missing_classes() == []
    stream.accept({f"u{n:03d}": dict.fromkeys(("x", "y", "z"), "a") for n in range(12)})
    stream.settle()
    with figures.fresh() as reply:
        [lost] = reply.missing_classes()
        assert (lost.label, lost.since, lost.answers) == ("b", 3, 12)
        assert lost.share == pytest.approx(0.5)


def test_many_chunks_are_shown_together(stream, monkeypatch):
    monkeypatch.setattr(stats, "MAX_POINTS", 2)
    stream.accept(labels(20))
    stream.settle()
    with StreamStats(stream).fresh() as reply:
        assert [(p.chunk, p.items, p.labels) for p in reply.points()] == [(3, 12, 24), (5, 8, 16)]


def test_the_error_on_gold_is_that_of_what_was_answered_before_the_truth(stream):
    assert stream.gold_error() is None
    stream.accept(labels(8))
    stream.settle()
    given = {one.item_id: one.label for one in stream.answers()}
    stream.gold({"t000": "c", "t001": given["t001"], "t002": given["t002"], "new": "a"})
    stream.settle(flush=True)
    found = stream.gold_error()
    assert (found.items, found.wrong) == (3, 1)
    assert 0 < found.low < found.error < found.high < 1


def test_a_glance_at_all_streams_tells_what_each_tells_by_itself(store, stream):
    other = store.create("other", classes=["x", "y"])
    stream.accept(labels(6))
    stream.settle()
    other.accept({"t": {"w": "x"}})
    reply = all_counts(store)
    assert [one["name"] for one in reply.values()] == ["other", "s"]
    for one in (stream, other):
        assert reply[one.ref.key]["counts"] == one.count()
        assert reply[one.ref.key]["rules"] == one.rules.as_dict()
        assert reply[one.ref.key]["classes"] == one.classes()
    key = other.ref.key
    assert all_counts(store, key) == {key: reply[key]}
    assert all_counts(store, 99) == {}
    assert all_rows(store) == {stream.ref.key: 12, key: 1}


def test_a_chunk_has_its_figures_and_its_moment_and_they_are_the_same_again(where, clock, store):
    stored = []
    for name in ("one", "two"):
        stream = store.create(name, classes=["a", "b"], rules=RULES, seed=3)
        stream.accept(labels(4))
        stream.settle()
        [row] = stream.chunks()
        reply = json.loads(row["summary"])
        assert reply["items"] == 4 and reply["labels"] == 8 and len(reply["confidence"]) == BINS
        assert len(reply["stopping"]) == len(reply["thresholds"]) + 1
        assert row["applied_at"] == clock.time
        stored.append(row["summary"])
    assert stored[0] == stored[1]


def test_a_worker_keeps_his_track_over_a_restart(store, stream):
    stream.accept(labels(12))
    stream.settle()
    model = stream.estimator()
    with store.read() as connection:
        kept = dict(map(tuple, connection.execute(
            sa.select(schema.workers.c.worker, schema.workers.c.track))))  # fmt: skip
    for worker in ("w0", "w1", "w2"):
        track = model.track(worker)
        assert track["labels"].sum() == model.model_.learned.worker_stats.gather(
            np.array([model.workers_.tolist().index(worker)]))["labels"][0]  # fmt: skip
        assert track.index.tolist() == [1, 2, 3]
        # Bins that are not used take no room.
        assert (
            len(kept[f'"{worker}"'])
            == 3 * model.model_.learned.worker_stats.to_arrays()["track"][0, 0].nbytes
        )
    profile = stream.profile("w0")
    assert [one["chunk"] for one in profile["track"]] == [1, 2, 3]
