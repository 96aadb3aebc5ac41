"""A process that has imported everything and started nothing; its children are there to be killed.

python zygote.py ADDRESS    reads an order a line, answers a line; both JSON

A victim opens the store, goes on from where the last one was killed, and is killed at the n-th
passing of a fault point, or from outside after a time. What it has had acknowledged is written to a
pipe at once, so it is known whatever happens next.
"""

import json
import os
import random
import select
import signal
import sys
import tempfile
import threading
import traceback
from multiprocessing.connection import Client
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from faults import source

from labelquorum.store.batch import Receipt, Submission
from labelquorum.store.failpoints import arm
from labelquorum.store.store import Store

REPLAYED = 0.3  # of what was acknowledged is sent again


class Remote:
    """A learner in another process, which outlives the victims."""

    def __init__(self, address):
        self._address, self._connections = address, threading.local()

    def _call(self, *arguments):
        if not hasattr(self._connections, "one"):
            self._connections.one = Client(self._address, "AF_UNIX")
        self._connections.one.send(arguments)
        done, value = self._connections.one.recv()
        if not done:
            raise value
        return value

    def configure(self, *arguments):
        return self._call("configure", *arguments)

    def learn(self, work):
        return self._call("learn", work)

    def ask(self, *arguments):
        return self._call("ask", *arguments)


def settled(store, order, say):
    """Settle after every table, so that the cuts are those of any other run."""
    todo = source.batches_of(source.labels_of(order["n_items"]))
    stream = source.drive(store, todo, lambda key, _: say(acknowledged=key))
    return source.ended(stream)


def gold(store, order, say):
    """The same with true labels, and what was learned from them."""
    labels, truths = source.crowd_of(order["n_items"])
    todo = source.batches_of(labels)
    stream = source.drive(store, todo, lambda key, _: say(acknowledged=key), truths)
    return [*source.ended(stream), source.learned_from_gold(stream)]


def free(store, order, say):
    """Send from one thread, in any order, some of it twice; cut and learn in another."""
    todo = source.batches_of(source.labels_of(order["n_items"], order["seed"]), 3)
    chance = random.Random(order["chance"])
    stream = source.opened(store, source.RULES.changed(retention="keep", grace=order["grace"]))
    known = set(order["acknowledged"])
    left = [n for n in range(len(todo)) if f"{n}" not in known or chance.random() < REPLAYED]
    chance.shuffle(left)
    sending, failed = threading.Event(), []

    def settle():
        try:
            while not sending.is_set():
                stream.settle()
        except BaseException:
            failed.append(traceback.format_exc())

    thread = threading.Thread(target=settle)
    thread.start()
    try:
        while left:
            some = [left.pop() for _ in range(min(len(left), chance.randrange(1, 4)))]
            sent = [Submission(source.table_of(todo[n]), f"{n}") for n in some]
            for n, receipt in zip(some, stream.accept_all(sent), strict=True):
                assert isinstance(receipt, Receipt), receipt
                say(acknowledged=f"{n}", receipt=receipt[:5])
                if chance.random() < REPLAYED:
                    left.insert(chance.randrange(len(left) + 1), n)
    finally:
        sending.set()
        thread.join()
    if failed:
        raise RuntimeError(failed[0])
    stream.settle(flush=True)
    return source.ended(stream)


MODES = {"settled": settled, "gold": gold, "free": free}


def live(order, address, pipe):
    """What a victim does, unless it is killed."""

    def say(**reply):
        os.write(pipe, json.dumps(reply).encode() + b"\n")

    left = order.get("times", 0)

    def hook(passed):
        nonlocal left
        left -= passed == order["point"]
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    if order.get("point"):
        arm(hook)
    try:
        with Store.open(order["where"], learner=Remote(address)) as store:
            say(ended=MODES[order["mode"]](store, order, say))
    except BaseException:
        say(error=traceback.format_exc())


def carry_out(order, address):
    """Fork a victim, kill it if it is to be killed from outside, and tell what became of it."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read)
        live(order, address, write)
        os._exit(0)
    os.close(write)
    if order.get("after") is not None:
        # The pipe is at its end when the victim is; what it says until then can wait there.
        poll = select.poll()
        poll.register(read, select.POLLHUP)
        poll.poll(1000 * order["after"])
        os.kill(pid, signal.SIGKILL)
    with os.fdopen(read) as lines:
        said = [json.loads(line) for line in lines if line.endswith("\n")]
    _, status = os.waitpid(pid, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    reply = {name: value for one in said for name, value in one.items()}
    return {
        # One that was at its end when it was killed did all it had to.
        "killed": killed and "ended" not in reply,
        "ended": reply.get("ended"),
        "error": reply.get("error"),
        "acknowledged": {
            one["acknowledged"]: one.get("receipt") for one in said if "acknowledged" in one
        },
    }


def main(address):
    with tempfile.TemporaryDirectory() as folder:  # what is imported when it is needed is needed
        live({"where": folder, "mode": "settled", "n_items": 4}, address, os.open("/dev/null", 1))
    assert "jax" not in sys.modules, "a process that has started JAX cannot be forked"
    assert threading.active_count() == 1
    for line in sys.stdin:
        print(json.dumps(carry_out(json.loads(line), address)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
