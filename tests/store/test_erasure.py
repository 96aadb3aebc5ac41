"""Erasure: a worker is forgotten as the library does it, and their id is nowhere left."""

import threading
import time
from contextlib import suppress

import numpy as np
import pytest
import sqlalchemy as sa
from store.test_stream import as_frame, assert_same_model, crowd, rows_of, shuffled

import labelquorum as lq
from labelquorum.errors import LabelError, StateError
from labelquorum.store import erasure, failpoints
from labelquorum.store import model_rows as model_module
from labelquorum.store import stream as stream_module
from labelquorum.store.batch import encode
from labelquorum.store.check import BROKEN, examine_store
from labelquorum.store.database import schema
from labelquorum.store.evidence import worker_places
from labelquorum.store.rules import Rules
from labelquorum.store.store import Store

AT_ONCE = Rules(labels_per_item=1, chunk_items=1, max_wait=None, max_chunk_wait=None)
OPEN = AT_ONCE.changed(grace=1e9)


def everything(store):
    """All cells of all tables, as text."""
    with store.read() as connection:
        tables = schema.metadata.sorted_tables
        return repr([sorted(map(repr, connection.execute(t.select()))) for t in tables])


def test_a_worker_is_forgotten_to_the_bit_as_in_the_library(store, monkeypatch):
    rules = Rules(labels_per_item=3, chunk_items=4, max_chunk_wait=0, grace=1e9)
    stream, model, seen = store.create("s", rules=rules), lq.BiLA(), []

    def learn(work, real=model_module.learn):
        seen.append(rows_of(model_module.table_of(work)))
        return real(work)

    monkeypatch.setattr(model_module, "learn", learn)
    rows = shuffled(rows_of(crowd(16)))
    workers = sorted({row[1] for row in rows})[:2]
    for start in range(0, len(rows), 16):
        stream.accept(as_frame(rows[start : start + 16]))
        stream.settle()
        for part in seen:
            model.partial_fit(as_frame(part))
        seen.clear()
        if start == 16:
            for worker in workers:  # they come back later, as new ones
                stream.forget(worker)
                model.forget(worker)
    stream.settle(flush=True)
    for part in seen:
        model.partial_fit(as_frame(part))
    assert stream.snapshot().ids["workers"].count(None) == 2
    assert set(workers) < set(stream.estimator().workers_)
    assert_same_model(stream, model)
    again = stream.estimator()
    for task in model.model_.learned.open_items:
        ours, theirs = (
            again.model_.learned.open_items.get(task),
            model.model_.learned.open_items.get(task),
        )
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one, other)


def test_his_id_is_nowhere_left(store, where, monkeypatch):
    rules = OPEN.changed(retention="keep")
    stream = store.create("s", rules=rules, classes=["x", "y"])
    stream.accept({"t": {"someone": "x", "b": "y"}, "u": {"b": "y"}}, key="k")
    stream.settle()
    stream.accept({"bad": {"someone": "x", "b": "y"}})

    def learn(work):
        raise ValueError("I do not like someone")

    with monkeypatch.context() as patch:
        patch.setattr(model_module, "learn", learn)
        stream.settle()
    stream.change(labels_per_item=2)
    stream.accept({"v": {"someone": "x", "b": "y"}, "w": {"someone": "y"}})
    assert "someone" in everything(store)
    assert stream.forget("someone") == 4
    assert "someone" not in everything(store)
    assert [f for f in examine_store(where) if f.name == BROKEN] == []
    assert stream.count()["waiting_labels"] == 1
    assert stream.cut() is None  # one label of v is left
    stream.accept({"v": {"c": "y"}})
    stream.settle()
    assert {one.item_id: one.n_labels for one in stream.answers()} == {"t": 2, "u": 1, "v": 2}


def test_the_file_holds_nothing_of_a_forgotten_worker(tmp_path):
    from labelquorum.store.store import Store

    with Store.open(tmp_path) as store:
        stream = store.create("s", rules=AT_ONCE)
        for number in range(50):
            stream.accept({f"t{number}": {"someone": "x", "b": "y"}})
        stream.settle()
        stream.forget("someone")
        store.compact()
        held = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"someone" not in held
    assert b"t49" in held


def test_chunks_that_are_cut_are_applied_first(store):
    stream = store.create("s", rules=AT_ONCE, classes=["x", "y"])
    stream.accept({"t": {"a": "x"}, "u": {"a": "y", "b": "x"}})
    stream.cut()
    stream.cut()
    stream.forget("a")
    assert {one.item_id: one.n_labels for one in stream.answers()} == {"t": 1, "u": 2}
    assert list(stream.estimator().workers_) == ["b"]


def test_a_chunk_learned_from_before_he_was_forgotten_is_learned_from_again(store, monkeypatch):
    stream = store.create("s", rules=AT_ONCE, classes=["x", "y"])
    stream.accept({"t": {"a": "x"}})
    stream.settle()
    stream.accept({"u": {"a": "y"}})
    cut, n_learned = stream.cut(), []

    def learn(work, real=model_module.learn):
        n_learned.append(len(work.workers))
        if len(n_learned) == 1:
            stream.forget("a")  # which applies the chunk itself
        return real(work)

    monkeypatch.setattr(model_module, "learn", learn)
    stream.advance(cut)
    assert n_learned == [1, 1]
    assert len(stream.chunks()) == 2
    assert list(stream.estimator().workers_) == []


def test_a_truth_of_an_item_without_labels_left_is_its_answer(store):
    stream = store.create("s", rules=OPEN, classes=["x", "y"])
    stream.accept({"t": {"a": "x"}, "u": {"b": "x"}})
    stream.settle()
    stream.forget("a")
    before = stream.snapshot()
    stream.gold({"t": "y"})
    stream.settle()
    [given] = [one for one in stream.answers() if one.item_id == "t"]
    assert (given.label, given.confidence) == ("y", 1)
    for name, array in stream.snapshot().arrays.items():
        if not name.startswith("ledger/"):
            assert array.tobytes() == before.arrays[name].tobytes()


def test_a_stranger_is_refused(store):
    stream = store.create("s", rules=AT_ONCE)
    stream.accept({"t": {"a": 0}})
    before = everything(store)
    with pytest.raises(LabelError, match="worker 'b' is not known"):
        stream.forget("b")
    assert everything(store) == before


def test_who_is_forgotten_makes_room_in_the_crowd(store):
    stream = store.create("s", rules=AT_ONCE.changed(max_workers=1), classes=[0, 1])
    stream.accept({"t": {"a": 0}})
    stream.forget("a")
    assert stream.accept({"t": {"b": 0}}).accepted == 1


# ── in steps ─────────────────────────────────────────────────────────────────────────────


def crowded(where, rules, clock):
    """A store with a stream in which `a` labelled all tasks, some of which wait."""
    store = Store.open(where, clock)
    stream = store.create("s", rules=rules, classes=["x", "y"])
    for start in range(0, 24, 8):
        tasks = [f"t{number}" for number in range(start, start + 8)]
        stream.accept({task: {"a": "x", "b": "y", "c": "x"} for task in tasks})
        stream.settle()
    stream.change(labels_per_item=9)
    stream.accept({f"w{number}": {"a": "x", "b": "y"} for number in range(7)})
    stream.accept({f"v{number}": {"a": "x"} for number in range(7)})
    return store


@pytest.mark.parametrize("retention", ["keep", "discard"])
def test_a_worker_forgotten_in_steps_with_kills_leaves_what_one_step_leaves(
    where, tmp_path, clock, monkeypatch, retention
):
    rules, left = OPEN.changed(retention=retention, chunk_items=8), 0
    with crowded(tmp_path / "whole", rules, clock) as store:
        gone = store.stream("s").forget("a")
        assert gone == (14 if retention == "discard" else 38)
        whole = everything(store)
    monkeypatch.setattr(erasure, "STEP", 5)

    def hook(point):
        nonlocal left
        left -= point == "before_job_commit"
        if not left:
            raise KeyboardInterrupt

    crowded(where, rules, clock).close()
    kills, done = 0, False
    failpoints.arm(hook)
    try:
        while not done:
            left = 2  # one step is committed, the next one is not
            with suppress(KeyboardInterrupt), Store.open(where, clock) as store:
                if kills:
                    store.resume()
                else:
                    store.stream("s").forget("a")
                done = True
            kills += not done
    finally:
        failpoints.arm(None)
    assert kills >= 3
    with Store.open(where, clock) as store:
        assert store.stream("s").events()[-1]["body"] == {"labels": gone}
        assert everything(store) == whole
    assert [f for f in examine_store(where) if f.name == BROKEN] == []


def test_labels_that_come_while_a_worker_is_forgotten_go_too(store, monkeypatch):
    stream = store.create("s", rules=OPEN, classes=["x", "y"])
    stream.accept({f"t{number}": {"a": "x", "b": "y"} for number in range(8)})
    stream.settle()
    monkeypatch.setattr(erasure, "STEP", 4)
    passed = []

    def hook(point):
        passed.append(point)
        if passed.count("before_job_commit") == 2:
            raise KeyboardInterrupt

    failpoints.arm(hook)
    try:
        with pytest.raises(KeyboardInterrupt):
            stream.forget("a")
    finally:
        failpoints.arm(None)
    stream.accept({"late": {"a": "x", "b": "x"}, "alone": {"a": "y"}})
    assert stream.cut(flush=True) is None
    assert stream.forget("a") == 10
    assert encode("a") not in everything(store)
    stream.settle(flush=True)
    assert {one.item_id: one.n_labels for one in stream.answers()}["late"] == 1


def test_labels_are_withdrawn_in_steps_and_a_kill_between_them_changes_no_count(
    where, clock, monkeypatch
):
    monkeypatch.setattr(stream_module, "REVISIONS_PER_COMMIT", 4)
    versions = [(f"p {number} ", f"p {number} z") for number in range(10)]
    left = 3

    def hook(point):
        nonlocal left
        left -= point == "before_job_commit"
        if not left:
            raise KeyboardInterrupt

    with Store.open(where, clock) as store:
        stream = store.create("s", rules=OPEN.changed(labels_per_item=9), classes=["x", "y"])
        for number in range(9):
            stream.accept({f"t{number}": {"a": "x"}}, key=f"p {number} 1")
        failpoints.arm(hook)
        try:
            with pytest.raises(KeyboardInterrupt):
                stream.withdraw(versions)
        finally:
            failpoints.arm(None)
        assert stream.count()["waiting_labels"] == 1  # two steps of four
    with Store.open(where, clock) as store:
        stream = store.stream("s")
        gone = stream.withdraw(versions)
        assert (gone["retracted"], gone["outdated"]) == (9, 0)
        assert stream.count()["waiting_labels"] == 0
        gone = stream.withdraw(versions)
        assert (gone["retracted"], gone["outdated"]) == (0, 10)
        with store.read() as connection:
            assert connection.execute(sa.select(schema.jobs)).all() == []


def test_a_version_that_cannot_be_kept_is_refused_before_anything_is_recorded(store):
    stream = store.create("s", rules=OPEN.changed(labels_per_item=9), classes=["x", "y"])
    stream.accept({"t": {"a": "x"}}, key="p 1 1")
    with pytest.raises(StateError, match="`key` must be text of 1 to 256 bytes"):
        stream.withdraw([("p 1 ", "p 1 z"), ("p 2 ", f"p {'2' * 300} z")])
    assert stream.count()["waiting_labels"] == 1
    with store.read() as connection:
        assert connection.execute(sa.select(schema.jobs)).all() == []


def recorded(store, stream, job, kind, body):
    row = {"stream": stream.ref.key, "id": job, "kind": kind, "progress": encode({})}
    with store.write() as connection:
        connection.execute(schema.jobs.insert().values(**row, body=encode(body)))


def test_a_job_that_fails_is_dropped_and_keeps_out_no_other(store):
    stream, other = (store.create(name, rules=AT_ONCE, classes=["x"]) for name in ("s", "other"))
    for one in (stream, other):
        one.accept({"t": {"a": "x"}, "u": {"b": "x"}})
        one.settle()
    recorded(store, stream, 1, "withdraw", [["p 2 ", f"p 2 {'2' * 300}"]])
    recorded(store, stream, 2, "forget", encode("a"))
    recorded(store, other, 1, "forget", encode("b"))
    done = []
    with pytest.raises(StateError, match="`key` must be text"):
        store.resume(done.append)
    assert [one["worker"] for one in stream.workers()] == ["b"]
    assert [one["worker"] for one in other.workers()] == ["a"]
    assert other.ref.key in done
    with store.read() as connection:
        assert connection.execute(sa.select(schema.jobs)).all() == []
    store.resume(lambda stream: pytest.fail("nothing was left"))


def test_a_worker_forgotten_by_several_at_once_is_forgotten_once(store, monkeypatch):
    stream = store.create("s", rules=AT_ONCE, classes=["x"])
    stream.accept({f"t{number}": {"a": "x", "b": "x"} for number in range(20)})
    monkeypatch.setattr(erasure, "STEP", 2)
    outcomes, all_asked = [], threading.Barrier(3)

    def forget():
        all_asked.wait()
        try:
            outcomes.append(store.stream("s").forget("a"))
        except LabelError:
            outcomes.append("not known")

    with store.working(stream.ref.key):  # until all have found the worker there
        asking = [threading.Thread(target=forget) for _ in range(3)]
        for one in asking:
            one.start()
        time.sleep(0.5)
    for one in asking:
        one.join()
    assert sorted(map(str, outcomes)) == ["20", "not known", "not known"]
    assert [one["kind"] for one in stream.events()].count("forgot") == 1


@pytest.mark.parametrize("retention", ["keep", "discard"])
def test_chunks_are_cut_and_applied_while_many_labels_are_deleted(store, monkeypatch, retention):
    stream = store.create("s", rules=OPEN.changed(retention=retention), classes=["x", "y"])
    stream.accept({f"t{number}": {"a": "x", "b": "y"} for number in range(8)})
    stream.settle()
    stream.accept({f"w{number}": {"a": "x", "b": "y"} for number in range(8)})
    monkeypatch.setattr(erasure, "STEP", 4)
    monkeypatch.setattr(erasure, "MAX_LABELS_AT_ONCE", 5)
    opened = erasure._open_items_with

    def looked_through(ref, place, since):
        yield from opened(ref, place, since)
        if not since:  # the labels are deleted, and the last steps are still to come
            stream.accept({"t1": {"a": "y", "c": "x"}, "late": {"a": "x", "c": "y"}})
            assert stream.cut_some()
            stream.advance_some()  # which may put a label back that was deleted
            stream.accept({"cut": {"a": "x", "c": "y"}})
            assert stream.cut() is not None
            stream.accept({"last": {"a": "x", "c": "y"}})
        else:
            assert stream.cut(flush=True) is None

    monkeypatch.setattr(erasure, "_open_items_with", looked_through)
    assert stream.forget("a") == (20 if retention == "keep" else 9)
    assert encode("a") not in everything(store)
    assert [one["worker"] for one in stream.workers()] == ["b", "c"]
    with store.read() as connection:
        evidence = connection.scalars(sa.select(schema.open_items.c.evidence)).all()
        known = set(connection.scalars(sa.select(schema.workers.c.place)))
    assert len(evidence) == 18 and {p for one in evidence for p in worker_places(one)} == known
    stream.settle(flush=True)
    assert {one.item_id: one.n_labels for one in stream.answers()}["last"] == 1


def test_beside_a_learning_loop_a_worker_is_forgotten_once_the_loop_has_applied_what_is_cut(store):
    stream = store.create("s", rules=AT_ONCE, classes=["x"])
    stream.accept({"t": {"a": "x", "b": "x"}})
    cut, store.has_loop = stream.cut(), True
    forgetting = threading.Thread(target=stream.forget, args=["a"])
    forgetting.start()
    time.sleep(0.3)
    assert stream.to_apply() == [cut.id]  # a chunk that kills the process is counted by the loop
    stream.advance(cut)
    forgetting.join(30)
    assert [one["worker"] for one in stream.workers()] == ["b"]
