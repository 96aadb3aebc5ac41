"""The learner subprocess: its protocol and its supervisor."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import Future

import numpy as np
import pytest
from server.served import until

from labelquorum.errors import StateError, StoreError
from labelquorum.evaluation import class_conditional_crowd, label_table
from labelquorum.server import learner_process
from labelquorum.server.learner_process import LearnerProcess, pack
from labelquorum.store.learner import LocalLearner
from labelquorum.store.rules import Rules
from labelquorum.store.store import Store

RULES = Rules(labels_per_item=3, chunk_items=5, max_wait=None, max_chunk_wait=None, grace=1e9)


@pytest.fixture(scope="module")
def remote():
    learner = LearnerProcess()
    yield learner
    learner.close()


def settled(folder, learner):
    crowd = class_conditional_crowd(10, 6, 3, labels_per_item=3, seed=3)
    store = Store.open(folder, learner=learner)
    stream = store.create("s", rules=RULES)
    stream.accept(label_table(crowd))
    stream.settle(flush=True)
    return store, stream


@pytest.fixture
def both(tmp_path, remote):
    opened = [settled(tmp_path / name, one) for name, one in (("h", LocalLearner()), ("b", remote))]
    yield [stream for _, stream in opened]
    for store, _ in opened:
        store.close()


def test_a_subprocess_learns_the_same_bits(both):
    here, remote = both
    assert here.state_hash() == remote.state_hash()


def test_a_subprocess_gives_the_same_answers_to_questions(both):
    here, remote = both
    assert here.workers() == remote.workers()
    assert here.worker(here.workers()[2]["worker"]) == remote.workers()[2]
    task = here.answers()[0].item_id
    assert here.explain(task) == remote.explain(task)
    assert here.gains([task]) == remote.gains([task])


def test_some_workers_are_reported_as_by_the_whole_model(both):
    here, _ = both
    model = here.estimator()
    table = model.skill_intervals()
    for number, row in enumerate(here.workers()):
        assert row["worker"] == model.workers_[number]
        assert row["confusion"] == model.confusion_[number].tolist()
        assert [row[name] for name in table] == table.iloc[number].tolist()


def test_the_model_file_is_read_by_the_library(both, tmp_path):
    import labelquorum as lq

    here, remote = both
    path = tmp_path / "model.lq"
    path.write_bytes(remote.model_file())
    model = lq.load(path)
    assert model.workers_.tolist() == here.estimator().workers_.tolist()
    assert np.array_equal(model.confusion_, here.estimator().confusion_)


def test_an_error_comes_back_as_itself(remote):
    with pytest.raises(StateError, match="'dawid_skene' with these settings cannot be kept"):
        remote.configure("dawid_skene", {})


@pytest.mark.kill
def test_a_learner_that_dies_counts_as_an_attempt_and_another_is_started(tmp_path):
    learner = LearnerProcess()
    with Store.open(tmp_path / "store", learner=learner) as store:
        stream = store.create("s", rules=RULES)
        stream.accept({"t": {"a": 0, "b": 1, "c": 1}})
        cut = stream.cut(flush=True)
        os.kill(learner.pid, signal.SIGSTOP)  # so that it dies in the middle of the call
        learner.timeout = 0.2
        with pytest.raises(StateError, match=r"attempt 1 of 3 .*the learner ended.*took too long"):
            stream.advance(cut)
        learner.timeout = 600
        assert stream.advance(cut).version == 1
        learner.close()


@pytest.mark.slow
def test_a_learner_that_was_closed_is_no_fault_of_the_chunk(tmp_path):
    learner = LearnerProcess()
    with Store.open(tmp_path / "store", learner=learner) as store:
        stream = store.create("s", rules=RULES)
        stream.accept({"t": {"a": 0, "b": 1, "c": 1}})
        cut = stream.cut(flush=True)
        learner.close()
        with pytest.raises(StoreError, match="The learner was closed"):
            stream.advance(cut)
        assert stream.chunks()[0]["attempts"] == 0


@pytest.mark.slow
def test_a_process_with_very_many_files_learns_all_the_same():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    held, learner = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)], LearnerProcess()
    try:
        assert learner.configure("bila", {"classes": ["a", "b"]}).method == "bila"
    finally:
        learner.close()
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
def test_a_reply_that_was_not_read_answers_no_later_call(remote, monkeypatch):
    remote.start()
    with monkeypatch.context() as patch:
        patch.setattr(Future, "result", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            remote.configure("bila", {"classes": ["a", "b"]})
    assert '["c","d"]' in remote.configure("bila", {"classes": ["c", "d"]}).settings


def test_calls_of_several_threads_get_their_own_replies(remote):
    found = {}

    def ask(name):
        found[name] = remote.configure("bila", {"classes": [name, "other"]}).settings

    threads = [threading.Thread(target=ask, args=(name,)) for name in "abcdefgh"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(f'["{name}","other"]' in found[name] for name in "abcdefgh")


def test_a_process_that_was_killed_is_followed_by_another(remote):
    remote.configure("bila", {"classes": ["a", "b"]})
    killed = remote._process
    killed.kill()
    killed.wait()
    assert remote.configure("bila", {"classes": ["a", "b"]}).method == "bila"
    assert remote.pid not in (None, killed.pid)


def test_a_process_that_cannot_start_is_started_again_with_exponential_backoff(monkeypatch):
    delays = []

    class Waits(threading.Event):
        def wait(self, timeout=None):
            delays.append(timeout)
            return len(delays) == 4

    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    monkeypatch.setattr(learner_process, "MIN_RESTART_SECONDS", 1000.0)
    monkeypatch.setattr(learner_process, "MAX_RESTART_SECONDS", 4000.0)
    learner = LearnerProcess()
    learner._closing = Waits()
    learner.start()
    learner._thread.join(60)
    learner.close()
    assert delays == pytest.approx([1000, 2000, 4000, 4000], abs=60)  # less what each lived


def test_a_process_that_cannot_join_the_store_says_why_and_ends(tmp_path):
    events = []
    (tmp_path / "file").touch()
    where = str(tmp_path / "file" / "store")  # a NotADirectoryError, or our own error
    process = LearnerProcess(
        "loop", greeting=lambda: ("join", where, 0.0), on_event=lambda *event: events.append(event)
    )
    try:
        process.start()
        first = process.pid
        until(lambda: process.pid != first)
        assert events[0][0] == "refused"
    finally:
        process.close()


def test_a_call_that_takes_too_long_kills_the_process_unless_it_forgets():
    learner = LearnerProcess()
    try:
        learner.configure("bila", {})
        process, learner.timeout = learner.pid, 0.5
        os.kill(process, signal.SIGSTOP)
        with pytest.raises(RuntimeError, match=r"asked to forget \(it took too long"):
            learner.call("forget", "s", "ann")
        os.kill(process, signal.SIGCONT)  # it is there
        os.kill(process, signal.SIGSTOP)
        with pytest.raises(RuntimeError, match=r"asked to configure \(it took too long"):
            learner.configure("bila", {})
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
    finally:
        learner.close()


@pytest.mark.kill
def test_a_process_that_does_not_answer_is_replaced(monkeypatch):
    monkeypatch.setattr(learner_process, "BEAT_SECONDS", 0.2)
    learner = LearnerProcess()
    try:
        learner.configure("bila", {})
        stopped = learner.pid
        os.kill(stopped, signal.SIGSTOP)
        until(lambda: not learner.answers, 60)
        until(lambda: learner.pid not in (None, stopped), 60)
        assert learner.configure("bila", {}).method == "bila"
        until(lambda: learner.answers, 60)
    finally:
        learner.close()


@pytest.mark.slow
def test_a_process_that_loads_its_modules_slowly_is_not_replaced(tmp_path, monkeypatch):
    slow = """
        import sys, time
        class Slow:
            def find_spec(self, name, path=None, target=None):
                if name == "labelquorum.store.model_queries":
                    time.sleep(8)
        sys.meta_path.insert(0, Slow())
    """
    (tmp_path / "sitecustomize.py").write_text(textwrap.dedent(slow))
    known = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{known}")
    monkeypatch.setattr(learner_process, "BEAT_SECONDS", 0.5)  # it takes longer than all beats
    learner = LearnerProcess()
    try:
        begun = time.monotonic()
        learner.start()
        first = learner.pid
        until(lambda: not learner.answers, 7)  # it does to pings
        assert learner.configure("bila", {}).method == "bila"
        assert learner.pid == first and time.monotonic() - begun > 8
        until(lambda: learner.answers, 10)
    finally:
        learner.close()


@pytest.mark.slow
def test_a_process_that_hangs_while_it_joins_the_store_is_replaced(tmp_path, monkeypatch):
    hangs = """
        import faulthandler, sys, time
        dump = faulthandler.dump_traceback_later
        faulthandler.dump_traceback_later = lambda seconds, exit: dump(6, exit=exit)
        class Hangs:
            def find_spec(self, name, path=None, target=None):
                if name == "labelquorum.server.learning_loop":
                    time.sleep(600)
        sys.meta_path.insert(0, Hangs())
    """
    (tmp_path / "sitecustomize.py").write_text(textwrap.dedent(hangs))
    known = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{known}")
    learner = LearnerProcess("loop", greeting=lambda: ("join", str(tmp_path / "store"), 0.0))
    try:
        learner.start()
        first = learner.pid
        until(lambda: learner.pid not in (None, first), 40)
    finally:
        learner.close()


@pytest.mark.kill
def test_a_process_that_was_stopped_is_closed_in_seconds():
    learner = LearnerProcess()
    learner.configure("bila", {})
    os.kill(learner.pid, signal.SIGSTOP)
    begun = time.monotonic()
    learner.close(seconds=60)
    assert time.monotonic() - begun < 30  # it has 60 to finish a chunk, if it answers


def test_a_process_whose_pipe_holds_part_of_a_frame_is_killed(remote, monkeypatch):
    remote.configure("bila", {"classes": ["a", "b"]})
    pid = remote.pid
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(remote, "timeout", 0.2)
    with pytest.raises(RuntimeError, match="took too long"):
        remote.call("unknown", "x" * 2_000_000)  # more than a pipe holds
    monkeypatch.setattr(remote, "timeout", 120)
    assert remote.configure("bila", {"classes": ["a", "b"]}).method == "bila"
    assert remote.pid != pid


def test_a_notification_that_finds_the_pipe_full_is_dropped_and_a_large_call_waits(remote):
    remote.configure("bila", {"classes": ["a", "b"]})
    pid = remote.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        while remote.notify("unknown", "x" * 1000):
            pass
    finally:
        os.kill(pid, signal.SIGCONT)
    classes = [f"class {k}" for k in range(30_000)]  # several times what a pipe holds
    assert remote.configure("bila", {"classes": classes[:2]}).method == "bila"
    with pytest.raises(RuntimeError, match="KeyError"):
        remote.call("unknown", classes)


@pytest.mark.slow
def test_code_of_the_folder_it_is_started_in_is_not_run(tmp_path, monkeypatch):
    (tmp_path / "safetensors.py").write_text("raise SystemExit('taken over')")
    monkeypatch.chdir(tmp_path)
    learner = LearnerProcess()
    try:
        assert learner.configure("bila", {"classes": ["a", "b"]}).method == "bila"
    finally:
        learner.close()


@pytest.mark.slow
def test_a_learner_whose_parent_is_gone_ends_without_a_traceback():
    program = [sys.executable, "-m", "labelquorum.server.learner_process"]
    pipe = subprocess.PIPE
    with subprocess.Popen(program, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        process.stdout.close()
        process.stdin.write(pack([1, "configure", "bila", {"classes": ["a", "b"]}]))
        process.stdin.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0
