"""Kill what keeps a stream, again and again, and check the five rules when it is at its end."""

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from contextlib import contextmanager
from multiprocessing.connection import Listener
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa
from faults import source

from labelquorum.store.batch import Receipt, decode
from labelquorum.store.database import schema
from labelquorum.store.failpoints import POINTS
from labelquorum.store.learner import LocalLearner
from labelquorum.store.store import Store

ZYGOTE = Path(__file__).with_name("zygote.py")
OUTSIDE = "from outside"
WAYS = (*POINTS, OUTSIDE)
LONGEST = 0.25  # seconds; later a victim is mostly at its end


class Checked(NamedTuple):
    """What became of a stream that was killed again and again."""

    kills: dict[str, int]  # by fault point
    labels: int
    lost: int
    doubled: int
    equal: bool  # the state hash


class Arena:
    """A learner, and victims to kill."""

    def __init__(self, folder):
        self._folder, self._ends = Path(folder), {}
        self._listener = Listener(str(self._folder / "learner"), "AF_UNIX", backlog=64)
        threading.Thread(target=self._listen, daemon=True).start()
        self._zygote = subprocess.Popen(
            [sys.executable, str(ZYGOTE), self._listener.address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )

    def close(self):
        self._zygote.stdin.close()
        self._zygote.wait(60)
        self._zygote.stdout.close()
        self._listener.close()

    def _listen(self):
        while True:
            try:
                connection = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        """Learn for a victim until it is gone."""
        with connection:
            while True:
                try:
                    name, *arguments = connection.recv()
                    try:
                        answer = (True, getattr(LocalLearner(), name)(*arguments))
                    except Exception as error:
                        answer = (False, error)
                    connection.send(answer)
                except (EOFError, OSError):
                    return

    def victim(self, **order):
        """Let a victim live, and tell how far it came."""
        self._zygote.stdin.write(json.dumps(order) + "\n")
        self._zygote.stdin.flush()
        reply = json.loads(self._zygote.stdout.readline())
        assert reply["error"] is None, reply["error"]
        return reply

    def uninterrupted(self, n_items, mode="settled"):
        """Where a run that nobody kills ends."""
        if (n_items, mode) not in self._ends:
            with tempfile.TemporaryDirectory(dir=self._folder) as folder:
                reply = self.victim(where=folder, mode=mode, n_items=n_items)
            self._ends[n_items, mode] = reply["ended"]
        return self._ends[n_items, mode]

    def killed(self, where, seed, mode, ways=WAYS, n_items=12, grace=1e9):
        """Kill victims of one store until its source is at an end, and check it."""
        chance, kills, acknowledged = random.Random(f"{mode} {seed}"), Counter(), {}
        for turn, way in enumerate(_turns(ways, chance)):
            assert turn < 10 * n_items, "it comes to no end"
            order = {"where": str(where), "mode": mode, "n_items": n_items, "seed": seed}
            order |= {"grace": grace, "chance": chance.random(), "acknowledged": list(acknowledged)}
            if way == OUTSIDE:
                order["after"] = chance.random() * LONGEST
            else:
                order |= {"point": way, "times": chance.choice((1, 1, 2, 3))}
            reply = self.victim(**order)
            for key, receipt in reply["acknowledged"].items():
                assert acknowledged.setdefault(key, receipt) == receipt, "two receipts for one key"
            if not reply["killed"]:
                break
            kills[way] += 1
        if mode == "free":
            checked = self._check_free(where, seed, n_items, acknowledged, reply["ended"])
        else:
            checked = self._check_settled(n_items, mode, reply["ended"])
        return Checked(dict(kills), *checked)

    def _check_settled(self, n_items, mode, end):
        """Compare the state, and with gold also what it taught, with that of a run left alone."""
        labels = source.labels_of(n_items)
        in_chunks, late, held, *state = end
        found = in_chunks + late
        lost, doubled = max(len(labels) - found, 0) + held, max(found - len(labels), 0)
        return len(labels), lost, doubled, state == self.uninterrupted(n_items, mode)[3:]

    def _check_free(self, where, seed, n_items, acknowledged, end):
        todo = source.batches_of(source.labels_of(n_items, seed), 3)
        sent = {f"{number}": rows for number, rows in enumerate(todo)}
        *counts, state = check_kept(where, sent, acknowledged)
        return *counts, state == end[3]


def check_kept(where, sent, acknowledged):
    """Compare a store that keeps all labels with what was sent and acknowledged, key by key.

    Gives how many labels were sent, lost and doubled, and the state, if it is also that of the
    recorded cuts given to a fresh store.
    """
    labels = schema.labels.c
    with Store.open(where, learner=LocalLearner()) as store:
        stream = store.stream("s")
        with store.read() as connection:
            cells = (labels.item, labels.worker, labels.label)
            rows = {
                row.row: (row.chunk, *map(decode, row[2:]))
                for row in connection.execute(sa.select(labels.row, labels.chunk, *cells))
            }
            receipts = {
                row.key: decode(row.receipt)
                for row in connection.execute(sa.select(schema.batches))
            }
        chunks, state = source.recorded(store), stream.state_hash()
        grace, late = stream.rules.grace, stream.count()["late_labels"]
    lost = doubled = 0
    for key, mine in sent.items():
        receipt = receipts.pop(key)
        kept = [receipt[name] for name in Receipt._fields]
        reply = list(acknowledged[key])
        assert reply == kept[: len(reply)], "a receipt that changed"
        first, last = receipt["first_row"], receipt["last_row"]
        here = [rows.pop(row, None) for row in range(first or 0, (last or -1) + 1)]
        there = Counter(row[1:] for row in here if row and row[0] is not None)
        doubled += (there - Counter(mine)).total()
        lost += receipt["accepted"] - there.total()
        lost += len(mine) - receipt["accepted"] - receipt["late"]
        late -= receipt["late"]
    doubled += len(rows)  # rows that are nobody's
    assert not late and not receipts
    with tempfile.TemporaryDirectory() as folder:
        again = source.replayed(chunks, folder, grace)
    return sum(map(len, sent.values())), lost, doubled, state if again == state else None


def _turns(ways, chance):
    """All ways of being killed, in one random order after another."""
    while True:
        yield from chance.sample(ways, len(ways))


@contextmanager
def arena():
    """An arena, for as long as it is needed."""
    with tempfile.TemporaryDirectory(prefix="labelquorum-", dir="/tmp") as folder:
        made = Arena(folder)
        try:
            yield made
        finally:
            made.close()
