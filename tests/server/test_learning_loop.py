"""Learning in a subprocess, which joins the store."""

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from server.served import serving

from labelquorum.errors import LabelError, StoreError
from labelquorum.evaluation import class_conditional_crowd, label_table
from labelquorum.server.learning_loop import SubprocessLoop
from labelquorum.server.write_queue import WriteQueue
from labelquorum.store.batch import Submission
from labelquorum.store.database import TURN_NUMBER, open_postgresql
from labelquorum.store.database.page_checksums import PageChecksums
from labelquorum.store.rules import Rules
from labelquorum.store.store import Store

RULES = Rules(
    labels_per_item=3,
    chunk_items=5,
    max_wait=None,
    max_chunk_wait=None,
    retention="discard",
    grace=0,
)


def until(holds, seconds=300):
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


@contextmanager
def running(where):
    where = str(where)
    with Store.open(where) as store, WriteQueue(store, SubprocessLoop(where, store)) as queue:
        yield queue


@pytest.fixture
def queue(tmp_path):
    with running(tmp_path / "store") as found:
        yield found


def rows(n_items=20, seed=3):
    table = label_table(class_conditional_crowd(n_items, 6, 3, labels_per_item=3, seed=seed))
    return list(zip(table.item_ids, table.worker_ids, table.labels, strict=True))


def send(queue, stream, sent):
    async def all_of_them():
        batches = [
            stream.prepare(Submission({task: {worker: label}})) for task, worker, label in sent
        ]
        return await asyncio.gather(*(queue.accept(stream, one) for one in batches))

    return asyncio.run(all_of_them())


@pytest.mark.slow
def test_a_subprocess_learns_the_same_as_this_process(where, tmp_path):
    reply = []
    with running(where) as queue:
        queue.loop.on_change = reply.append
        stream = queue.store.create("s", rules=RULES)
        send(queue, stream, rows())
        until(lambda: len(stream.answers()) == 20)
        # Once per commit, of which several chunks may have one.
        key = stream.ref.key
        until(lambda: set(reply) == {key} and queue.loop.behind(key) == 0)
        assert stream.model_version() == 4
        assert stream.count()["held_labels"] == 0 and queue.healthy
        state = stream.state_hash()
    with Store.open(tmp_path / "here") as other:
        here = other.create("s", rules=RULES)
        for task, worker, label in rows():
            here.accept({task: {worker: label}})
        here.settle()
        assert here.state_hash() == state


@pytest.mark.kill
def test_a_process_that_dies_is_followed_by_another_which_goes_on(queue):
    stream = queue.store.create("s", rules=RULES)
    for part in range(3):
        victim = until(lambda: queue.loop.pid)
        send(queue, stream, rows()[15 * part : 15 * part + 15])
        os.kill(victim, signal.SIGKILL)
        until(lambda: queue.loop.pid not in (None, victim))  # noqa: B023
    send(queue, stream, rows()[45:])
    until(lambda: len(stream.answers()) == 20)
    assert [chunk["state"] for chunk in stream.chunks()] == ["applied"] * 4


@pytest.mark.kill
def test_a_chunk_that_ends_the_process_three_times_is_quarantined(queue):
    n_items = 8000  # enough for a process to be met while it learns from them
    stream = queue.store.create("s", rules=RULES.changed(chunk_items=n_items))
    loop = queue.loop
    send(queue, stream, rows(n_items))
    for _ in range(3):
        until(lambda: loop._chunk == (stream.ref.key, 1))  # the first of a process takes its time
        os.kill(loop.pid, signal.SIGKILL)
        until(lambda: loop._chunk is None)
    [chunk] = until(lambda: [one for one in stream.chunks() if one["state"] == "quarantined"])
    assert "the learner ended while it learned" in chunk["error"]
    assert queue.healthy


@contextmanager
def turns_of(where):
    """Give a function that tells whether a process writes: it takes the writers' lock, or fails."""
    if "://" in where:
        ask = sa.select(sa.func.pg_try_advisory_xact_lock(TURN_NUMBER))
        engine, _ = open_postgresql(where)

        def is_held():
            with engine.begin() as connection:
                return not connection.scalar(ask)

        yield is_held
        engine.dispose()
        return
    with (Path(where) / "labelquorum.turn").open("a") as file:

        def is_held():
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            fcntl.flock(file, fcntl.LOCK_UN)
            return False

        yield is_held


def stop_process(pid, where, in_turn):
    """Stop a process while it writes, or while it does not."""
    with turns_of(where) as is_held:
        while True:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.05)  # whoever else writes is done by then
            if is_held() == in_turn:
                return
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.003)


@pytest.mark.kill
@pytest.mark.parametrize("database_kind", ["sqlite", "postgresql"])
@pytest.mark.parametrize("in_turn", [True, False], ids=["writing", "not writing"])
def test_a_learner_that_was_stopped_is_noticed_and_replaced(
    tmp_path, request, database_kind, in_turn
):
    is_file = database_kind == "sqlite"
    where = str(tmp_path / "store") if is_file else request.getfixturevalue("database")
    rules = {"labels_per_item": 1, "chunk_items": 1, "max_wait": None}
    with serving(where, in_subprocess=True) as service, turns_of(where) as is_held:
        admin, loop = service.client(), service.app.service.write_queue.loop
        admin.post("/v1/streams", json={"name": "s", "rules": rules}).raise_for_status()

        def send(first):
            labels = [{"task": n, "worker": "w", "label": n % 2} for n in range(first, first + 60)]
            return admin.post("/v1/streams/s/labels", json=labels)

        stream = service.store.stream("s")
        send(0).raise_for_status()
        until(lambda: stream.answers())
        victim = loop.pid
        stop_process(victim, where, in_turn)
        begun = time.monotonic()
        statuses = [send(60).status_code]
        if not in_turn:
            until(lambda: loop.behind(stream.ref.key) >= 60, 30)
        until(lambda: admin.get("/readyz").status_code == 503, 30)
        until(lambda: loop.pid not in (None, victim), 30)
        assert time.monotonic() - begun < 30
        until(lambda: not is_held(), 30)  # whatever was stopped holds the writers' lock no longer
        until(lambda: admin.get("/readyz").status_code == 200)
        until(lambda: send(60).status_code == 200)
        until(lambda: len(stream.answers()) == 120)
        assert set(statuses) <= {200, 503}
        until(lambda: {one["state"] for one in stream.chunks()} == {"applied"})  # some came twice


@pytest.mark.slow
def test_a_worker_is_forgotten_by_the_subprocess(queue):
    stream = queue.store.create("s", rules=RULES)
    send(queue, stream, rows())
    until(lambda: len(stream.answers()) == 20)
    worker = rows()[0][1]
    assert queue.loop.forget(stream.ref.key, worker) == 0
    assert worker not in [one["worker"] for one in stream.workers()]
    with pytest.raises(LabelError, match="is not known"):
        queue.loop.forget(stream.ref.key, worker)


def test_a_call_to_a_process_that_dies_fails(queue):
    loop, errors = queue.loop, []
    until(lambda: queue.store.streams() == [] and loop.pid)
    os.kill(loop.pid, signal.SIGSTOP)

    def forget():
        try:
            loop.forget(1, "w")
        except RuntimeError as error:
            errors.append(str(error))

    caller = threading.Thread(target=forget)
    caller.start()
    until(lambda: loop._process._calls)
    with loop._process._changed:  # it is written by now
        os.kill(loop.pid, signal.SIGKILL)
    caller.join(30)
    assert errors == ["the learner ended while it was asked to forget"]


@pytest.mark.slow
def test_a_store_that_could_not_be_joined_is_joined_later_and_all_is_well(tmp_path):
    with Store.open(tmp_path / "store") as store:
        loop = SubprocessLoop(str(tmp_path / "elsewhere"), store)
        with WriteQueue(store, loop) as queue:
            until(lambda: not queue.healthy)
            loop._where = str(tmp_path / "store")
            until(lambda: queue.healthy)  # though there is nothing to learn from


@pytest.mark.kill
def test_a_process_whose_starter_was_killed_ends_at_once(tmp_path):
    with Store.open(tmp_path / "store") as store:
        loop = SubprocessLoop(str(tmp_path / "store"), store)
        loop.start()
        process = loop._process._process
        loop._process._closing.set()
        process.stdin.close()
        assert process.wait(30) == 0
        loop.stop()


@pytest.mark.slow
def test_the_WAL_of_a_store_that_only_the_subprocess_writes_to_is_checkpointed(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("labelquorum.store.database.sqlite_wal.LOG_BYTES", 40_000)
    monkeypatch.setattr("labelquorum.store.database.sqlite_wal.READ_SECONDS", 0.0)
    where, checkpoints, renew = tmp_path / "store", [], PageChecksums.renew
    with Store.open(where) as store:
        stream = store.create("s", rules=RULES)
        for task, worker, label in rows(200):
            stream.accept({task: {worker: label}})
        monkeypatch.setattr(PageChecksums, "renew", lambda *all: checkpoints.append(renew(*all)))
        with WriteQueue(store, SubprocessLoop(str(where), store)):
            until(lambda: len(stream.answers()) == 200)
            until(lambda: checkpoints)
    with Store.open(where) as store:  # its seal holds
        assert len(store.stream("s").answers()) == 200


def test_a_store_that_nobody_holds_is_joined_by_no_process(tmp_path):
    with pytest.raises(StoreError, match="there is no store in this folder"):
        Store.join(tmp_path / "nothing", 0.0)


def test_a_process_that_leaves_does_not_take_the_WAL_of_one_that_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "labelquorum.store.database.sqlite_wal.LOG_BYTES", 1
    )  # sealed after each commit
    where = tmp_path / "store"
    with Store.open(where) as store:
        stream = store.create("s", rules=RULES)
        stream.accept({"t": {"a": 0}})
        log = where / "labelquorum.db-wal"
        before = log.stat().st_ino
        reads = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('SELECT 1 FROM labels')"
        subprocess.run([sys.executable, "-c", reads, where / "labelquorum.db"], check=True)
        assert log.stat().st_ino == before
        stream.accept({"t": {"b": 0}})
    with Store.open(where) as store:
        assert store.stream("s").item("t").n_labels == 2
