"""Several processes answer, each one question at a time, and never later than they may."""

import os
import signal
import threading
import time
from contextlib import suppress

import pytest
from server.served import until

from labelquorum.errors import StoreError
from labelquorum.server.questions import _NOTHING, N_PROCESSES, Questions
from labelquorum.store.learner import read_until
from labelquorum.store.rules import Rules
from labelquorum.store.store import Store


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    learner = Questions()
    learner.start()
    with Store.open(tmp_path_factory.mktemp("store"), learner=learner) as store:
        made = store.create("s", classes=["a", "b"], rules=Rules(chunk_items=2))
        made.accept([(task, worker, "a") for task in "xy" for worker in ("ann", "bob")])
        made.settle(flush=True)
        yield made
    learner.close()
    with pytest.raises(StoreError, match="closed"):
        made.profile("ann")


def processes(stream):
    return stream.ref.store.learner._all


def test_another_process_is_started_ahead_of_time_and_no_more_than_asked_for(stream):
    assert stream.profile("ann")["labels"] == 2
    assert len(processes(stream)) == 2 <= N_PROCESSES
    until(lambda: len(stream.ref.store.learner._idle) == 2)


def test_a_question_whose_process_dies_is_asked_again(stream):
    stream.profile("ann")
    pids = [one.pid for one in processes(stream)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    found = []
    asking = threading.Thread(target=lambda: found.append(stream.profile("bob")))
    asking.start()
    busy = stream.ref.store.learner
    until(lambda: len(busy._idle) < len(busy._all))
    idle = {one.pid for one in busy._idle}
    time.sleep(0.2)
    for pid in pids:
        os.kill(pid, signal.SIGCONT if pid in idle else signal.SIGKILL)
    asking.join(60)
    assert found[0]["worker"] == "bob"


def test_a_late_question_takes_no_process(stream):
    learner = stream.ref.store.learner
    until(lambda: len(learner._idle) == len(learner._all))
    before = [one.pid for one in processes(stream)]
    for seconds in (-1.0, 0.1):
        token = read_until.set(time.monotonic() + seconds)
        with pytest.raises(TimeoutError):
            learner.ask(_NOTHING, "priors", {})
        read_until.reset(token)
    assert [one.pid for one in processes(stream)] == before


def test_a_question_past_its_deadline_ends_its_process_and_not_the_next_question(stream):
    until(lambda: all(one.pid for one in processes(stream)))
    stream.profile("ann")
    before = [one.pid for one in processes(stream)]
    for pid in before:
        os.kill(pid, signal.SIGSTOP)
    token, began = read_until.set(time.monotonic() + 3), time.monotonic()
    try:
        with pytest.raises(TimeoutError):
            stream.profile("ann")
    finally:
        read_until.reset(token)
        for pid in before:
            with suppress(ProcessLookupError):  # it was replaced
                os.kill(pid, signal.SIGCONT)
    assert time.monotonic() - began < 6
    assert stream.profile("ann")["labels"] == 2
    assert [one.pid for one in processes(stream)] != before
