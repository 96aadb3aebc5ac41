"""Twice, out of order, at the wrong time, by two at once: each label counts once."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
from faults.learners import Remembering
from faults.source import (
    RULES,
    batches_of,
    drive,
    ended,
    labels_of,
    opened,
    recorded,
    replayed,
    table_of,
)

from labelquorum.errors import ConflictError, StoreError
from labelquorum.store.rules import DAY
from labelquorum.store.store import Store

pytestmark = pytest.mark.kill

TODO = batches_of(labels_of(30))
SHARE = 0.3  # of requests that are sent again
HOLD = """
import sys
from labelquorum.store.store import Store
store = Store.open(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("seed", range(3))
def test_requests_sent_again_and_out_of_order_count_once(where, tmp_path, record_property, seed):
    chance = random.Random(seed)
    sent = [*range(len(TODO)), *chance.sample(range(len(TODO)), round(SHARE * len(TODO)))]
    chance.shuffle(sent)
    receipts = {}
    with Store.open(where, learner=Remembering()) as store:
        stream = opened(store, RULES.changed(retention="keep"))
        for number in sent:
            receipt = stream.accept(table_of(TODO[number]), f"{number}")
            assert receipt.repeated == (number in receipts)
            first = receipts.setdefault(number, receipt)
            assert receipt._replace(repeated=False) == first
            if chance.random() < 0.5:
                stream.settle()
            other = table_of(TODO[number][1:])
            with pytest.raises(ConflictError, match=r"came before with other labels"):
                stream.accept(other, f"{number}")
        stream.settle(flush=True)
        chunks = recorded(store)
        in_chunks, late, _, state = ended(stream)
    record_property("requests sent again", len(sent) - len(TODO))
    assert (in_chunks, late) == (sum(map(len, TODO)), 0)
    assert sorted(row for rows in chunks.values() for row in rows) == sorted(labels_of(30))
    assert state == replayed(chunks, tmp_path / "again", RULES.grace)


class Jumping:
    """A clock that goes by seconds, and now and then jumps a day back or ten years on."""

    def __init__(self, seed):
        self.time, self._chance, self.jumps = 1e9, random.Random(seed), []

    def __call__(self):
        self.time += self._chance.random()
        if self._chance.random() < 0.2:
            self.jumps.append(self._chance.choice((-DAY, 3650 * DAY)))
            self.time += self.jumps[-1]
        return self.time


@pytest.mark.parametrize("seed", range(3))
def test_a_clock_that_jumps_changes_nothing(where, tmp_path, seed):
    rules = RULES.changed(grace=1e15)
    with Store.open(tmp_path / "steady", learner=Remembering()) as store:
        opened(store, rules)
        steady = ended(drive(store, TODO))
    clock = Jumping(seed)
    with Store.open(where, clock, Remembering()) as store:
        stream = opened(store, rules)
        for number in range(len(TODO) // 2):
            stream.accept(table_of(TODO[number]), None, "source", f"{number + 1}")
            stream.settle()
    with Store.open(where, clock, Remembering()) as store:
        assert ended(drive(store, TODO)) == steady
    assert {-DAY, 3650 * DAY} <= set(clock.jumps)


def test_a_second_service_is_refused_with_the_name_of_the_first(where, record_property):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, where],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout.readline() == "held\n"
        asked = time.monotonic()
        with pytest.raises(StoreError, match=rf"in use by .*process {holder.pid} on "):
            Store.open(where)
        record_property("seconds to refuse", round(time.monotonic() - asked, 2))
        os.kill(holder.pid, signal.SIGKILL)  # what it held is free again
        with Store.open(where) as store:
            assert store.streams() == []
    finally:
        holder.kill()
        holder.communicate()
