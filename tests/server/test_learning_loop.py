"""Learning in a process of its own, which joins the store."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from labelquorum.errors import LabelError, StoreError
from labelquorum.evaluation import class_conditional_crowd, label_table
from labelquorum.server.learning_loop import Apart
from labelquorum.server.write_queue import Pipeline
from labelquorum.store.batch import Submission
from labelquorum.store.database.page_checksums import PageChecksums
from labelquorum.store.rules import Rules
from labelquorum.store.store import Store

RULES = Rules(labels_per_item=3, chunk_items=5, max_wait=None, max_chunk_wait=None)


def until(holds, seconds=60):
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


@contextmanager
def running(where):
    where = str(where)
    with Store.open(where) as store, Pipeline(store, Apart(where, store)) as pipeline:
        yield pipeline


@pytest.fixture
def pipeline(tmp_path):
    with running(tmp_path / "store") as found:
        yield found


def rows(n_items=20, seed=3):
    table = label_table(class_conditional_crowd(n_items, 6, 3, labels_per_item=3, seed=seed))
    return list(zip(table.item_ids, table.worker_ids, table.labels, strict=True))


def send(pipeline, stream, sent):
    async def all_of_them():
        batches = [
            stream.prepare(Submission({task: {worker: label}})) for task, worker, label in sent
        ]
        return await asyncio.gather(*(pipeline.accept(stream, one) for one in batches))

    return asyncio.run(all_of_them())


def test_what_is_learned_apart_is_what_is_learned_here(where, tmp_path):
    told = []
    with running(where) as pipeline:
        pipeline.learning.on_change = told.append
        stream = pipeline.store.create("s", rules=RULES)
        send(pipeline, stream, rows())
        until(lambda: len(stream.answers()) == 20)
        until(lambda: told == ["s"] * 4 and pipeline.learning.behind("s") == 0)
        assert stream.count()["held_labels"] == 0 and pipeline.healthy
        state = stream.state_hash()
    with Store.open(tmp_path / "here") as other:
        here = other.create("s", rules=RULES)
        for task, worker, label in rows():
            here.accept({task: {worker: label}})
        here.settle()
        assert here.state_hash() == state


def test_a_process_that_dies_is_followed_by_another_which_goes_on(pipeline):
    stream = pipeline.store.create("s", rules=RULES)
    for part in range(3):
        victim = until(lambda: pipeline.learning.pid)
        send(pipeline, stream, rows()[15 * part : 15 * part + 15])
        os.kill(victim, signal.SIGKILL)
        until(lambda: pipeline.learning.pid not in (None, victim))  # noqa: B023
    send(pipeline, stream, rows()[45:])
    until(lambda: len(stream.answers()) == 20)
    assert [chunk["state"] for chunk in stream.chunks()] == ["applied"] * 4


def test_a_chunk_that_ends_the_process_three_times_is_set_aside(pipeline):
    stream, apart = pipeline.store.create("s", rules=RULES), pipeline.learning
    send(pipeline, stream, rows(5))
    for _ in range(3):
        until(lambda: apart._chunk == ("s", 1))  # the first of a process takes its time
        os.kill(apart.pid, signal.SIGKILL)
        until(lambda: apart._chunk is None)
    [chunk] = until(lambda: [one for one in stream.chunks() if one["state"] == "quarantined"])
    assert "the learner ended while it learned" in chunk["error"]
    assert pipeline.healthy


def test_a_worker_is_forgotten_by_who_learns(pipeline):
    stream = pipeline.store.create("s", rules=RULES)
    send(pipeline, stream, rows())
    until(lambda: len(stream.answers()) == 20)
    worker = rows()[0][1]
    assert pipeline.learning.forget("s", worker) == 0
    assert worker not in [one["worker"] for one in stream.workers()]
    with pytest.raises(LabelError, match="is not known"):
        pipeline.learning.forget("s", worker)


def test_who_waits_for_a_process_that_dies_is_told(pipeline):
    apart, errors = pipeline.learning, []
    until(lambda: pipeline.store.streams() == [] and apart.pid)
    os.kill(apart.pid, signal.SIGSTOP)

    def forget():
        try:
            apart.forget("s", "w")
        except RuntimeError as error:
            errors.append(str(error))

    asker = threading.Thread(target=forget)
    asker.start()
    until(lambda: apart._calls)
    os.kill(apart.pid, signal.SIGKILL)
    asker.join(30)
    # On a loaded machine the kill can come before the request is written: then nobody is there.
    assert errors in (["the learner ended while it learned"], ["the learner is not there"])


def test_a_store_that_could_not_be_joined_is_joined_later_and_all_is_well(tmp_path):
    with Store.open(tmp_path / "store") as store:
        apart = Apart(str(tmp_path / "elsewhere"), store)
        with Pipeline(store, apart) as pipeline:
            until(lambda: not pipeline.healthy)
            apart._where = str(tmp_path / "store")
            until(lambda: pipeline.healthy)  # though there is nothing to learn from


def test_a_process_whose_starter_was_killed_ends_at_once(tmp_path):
    with Store.open(tmp_path / "store") as store:
        apart = Apart(str(tmp_path / "store"), store)
        apart.start()
        process = apart._process
        apart._stopping.set()
        process.stdin.close()
        assert process.wait(30) == 0
        apart.stop()


def test_the_log_of_a_store_that_only_the_other_process_writes_to_is_emptied(tmp_path, monkeypatch):
    monkeypatch.setattr("labelquorum.store.database.sqlite_wal.LOG_BYTES", 40_000)
    monkeypatch.setattr("labelquorum.store.database.sqlite_wal.READ_SECONDS", 0.0)
    where, emptied, renew = tmp_path / "store", [], PageChecksums.renew
    with Store.open(where) as store:
        stream = store.create("s", rules=RULES)
        for task, worker, label in rows(200):
            stream.accept({task: {worker: label}})
        monkeypatch.setattr(PageChecksums, "renew", lambda *all: emptied.append(renew(*all)))
        with Pipeline(store, Apart(str(where), store)):
            until(lambda: len(stream.answers()) == 200)
            until(lambda: emptied)
    with Store.open(where) as store:  # its seal holds
        assert len(store.stream("s").answers()) == 200


def test_a_store_that_nobody_holds_is_joined_by_no_process(tmp_path):
    with pytest.raises(StoreError, match="there is no store in this folder"):
        Store.join(tmp_path / "nothing", 0.0)


def test_a_process_that_leaves_does_not_take_the_log_of_who_stays(tmp_path, monkeypatch):
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
