"""A learner that hangs before it has answered anything."""

import os
import signal
import time

import pytest

from labelquorum.server import learner_process
from labelquorum.server.learner_process import LearnerProcess

pytestmark = pytest.mark.kill

BEAT_SECONDS = 0.2
MOST_BEATS = 60
"""Of 1 second in the service. A busy machine has 50 more than are needed."""


def test_a_learner_that_hangs_while_it_starts_is_replaced(monkeypatch, record_property):
    monkeypatch.setattr(learner_process, "BEAT_SECONDS", BEAT_SECONDS)
    learner = LearnerProcess()
    try:
        learner.start()
        hangs = learner.pid
        os.kill(hangs, signal.SIGSTOP)
        begun = time.monotonic()
        while learner.pid in (None, hangs) and time.monotonic() - begun < 2 * MOST_BEATS:
            time.sleep(0.01)
        beats = (time.monotonic() - begun) / BEAT_SECONDS
        record_property("beats until a learner that hangs is replaced", round(beats, 1))
        assert beats < MOST_BEATS
    finally:
        learner.close()
