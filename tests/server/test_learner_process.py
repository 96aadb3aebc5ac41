"""The learner in a process of its own."""

import os
import resource
import signal
import subprocess
import sys

import numpy as np
import pytest

from labelquorum.errors import StateError, StoreError
from labelquorum.evaluation import class_conditional_crowd, label_table
from labelquorum.server import learner_process as learner_module
from labelquorum.server.learner_process import LENGTH_BYTES, Beside
from labelquorum.store.learner import LocalLearner
from labelquorum.store.rules import Rules
from labelquorum.store.store import Store

RULES = Rules(labels_per_item=3, chunk_items=5, max_wait=None, max_chunk_wait=None, grace=1e9)


@pytest.fixture(scope="module")
def beside():
    learner = Beside()
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
def both(tmp_path, beside):
    opened = [settled(tmp_path / name, one) for name, one in (("h", LocalLearner()), ("b", beside))]
    yield [stream for _, stream in opened]
    for store, _ in opened:
        store.close()


def test_a_learner_beside_learns_the_same_bits(both):
    here, beside = both
    assert here.state_hash() == beside.state_hash()


def test_a_learner_beside_gives_the_same_answers_to_questions(both):
    here, beside = both
    assert here.workers() == beside.workers()
    assert here.worker(here.workers()[2]["worker"]) == beside.workers()[2]
    task = here.answers()[0].item_id
    assert here.explain(task) == beside.explain(task)
    assert here.gains([task]) == beside.gains([task])


def test_what_is_told_of_some_workers_is_what_the_whole_model_tells(both):
    here, _ = both
    model = here.estimator()
    table = model.skill_intervals()
    for number, told in enumerate(here.workers()):
        assert told["worker"] == model.workers_[number]
        assert told["confusion"] == model.confusion_[number].tolist()
        assert [told[name] for name in table] == table.iloc[number].tolist()


def test_the_model_file_is_read_by_the_library(both, tmp_path):
    import labelquorum as lq

    here, beside = both
    path = tmp_path / "model.lq"
    path.write_bytes(beside.model_file())
    model = lq.load(path)
    assert model.workers_.tolist() == here.estimator().workers_.tolist()
    assert np.array_equal(model.confusion_, here.estimator().confusion_)


def test_an_error_comes_back_as_itself(beside):
    with pytest.raises(StateError, match="'dawid_skene' with these settings cannot be kept"):
        beside.configure("dawid_skene", {})


def test_a_learner_that_dies_counts_as_an_attempt_and_another_is_started(tmp_path):
    learner = Beside()
    with Store.open(tmp_path / "store", learner=learner) as store:
        stream = store.create("s", rules=RULES)
        stream.accept({"t": {"a": 0, "b": 1, "c": 1}})
        cut = stream.cut(flush=True)
        os.kill(learner.pid, signal.SIGSTOP)  # so that it dies in the middle of the call
        learner._seconds = 0.2
        with pytest.raises(StateError, match=r"attempt 1 of 3 .*the learner ended.*took too long"):
            stream.advance(cut)
        learner._seconds = 600
        assert stream.advance(cut).version == 1
        learner.close()


def test_a_learner_that_was_closed_is_no_fault_of_the_chunk(tmp_path):
    learner = Beside()
    with Store.open(tmp_path / "store", learner=learner) as store:
        stream = store.create("s", rules=RULES)
        stream.accept({"t": {"a": 0, "b": 1, "c": 1}})
        cut = stream.cut(flush=True)
        learner.close()
        with pytest.raises(StoreError, match="The learner was closed"):
            stream.advance(cut)
        assert stream.chunks()[0]["attempts"] == 0


def test_a_process_with_very_many_files_learns_all_the_same():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    held, learner = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)], Beside()
    try:
        assert learner.configure("bila", {"classes": ["a", "b"]}).method == "bila"
    finally:
        learner.close()
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_reply_that_was_not_read_answers_no_later_call(beside, monkeypatch):
    beside.start()
    with monkeypatch.context() as patch:
        patch.setattr(learner_module, "_read", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            beside.configure("bila", {"classes": ["a", "b"]})
    assert '["c","d"]' in beside.configure("bila", {"classes": ["c", "d"]}).settings


def test_code_of_the_folder_it_is_started_in_is_not_run(tmp_path, monkeypatch):
    (tmp_path / "safetensors.py").write_text("raise SystemExit('taken over')")
    monkeypatch.chdir(tmp_path)
    learner = Beside()
    try:
        assert learner.configure("bila", {"classes": ["a", "b"]}).method == "bila"
    finally:
        learner.close()


def test_a_learner_whose_asker_is_gone_ends_without_a_traceback():
    program = [sys.executable, "-m", "labelquorum.server.learner_process"]
    pipe = subprocess.PIPE
    with subprocess.Popen(program, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        process.stdout.close()
        process.stdin.write((0).to_bytes(LENGTH_BYTES, "big"))
        process.stdin.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0
