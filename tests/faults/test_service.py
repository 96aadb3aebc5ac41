"""The service, or the process that learns for it, is killed from outside while clients send."""

import random
import signal
import threading
import time

import pytest
from faults.kills import check_kept
from faults.service import Service
from faults.source import CLASSES, RULES, batches_of, labels_of, table_of

import labelquorum as lq
from labelquorum.store.store import Store

pytestmark = pytest.mark.kill

SENDERS = 4


def send_all(client, todo, left, acknowledged, failed):
    """Send what is left, and some of it again, until all is acknowledged."""
    try:
        while left:
            number = left.pop()
            reply = client.send("s", table_of(todo[number]), key=f"{number}")
            assert acknowledged.setdefault(f"{number}.0", reply[:2]) == reply[:2]
            if number % 3 == 0 and not reply.repeated:
                left.insert(0, number)
    except BaseException as error:
        failed.append(error)
        raise


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_service_or_its_learner_killed_while_clients_send_loses_and_doubles_nothing(
    request, tmp_path, size, record_property, kind
):
    where = str(tmp_path / "store") if kind == "sqlite" else request.getfixturevalue("database")
    todo = batches_of(labels_of(size(60, 600)), 3)
    service, chance, acknowledged, failed = Service(where), random.Random(1), {}, []
    request.addfinalizer(lambda: service.end(signal.SIGKILL))  # also where it fails
    rules = RULES.changed(retention="keep").as_dict()
    kills, longest, ended = size(4, 40), 0.0, 0
    # Killed so often, it is up for moments only, and who waits in between may miss some of them.
    with lq.Client(service.url, service.key, timeout=600) as client:
        client.create("s", classes=CLASSES, rules=rules)
        left = list(range(len(todo)))
        chance.shuffle(left)
        # Numbers of acknowledged requests after which it is killed.
        marks = sorted(chance.sample(range(len(todo) * 4 // 5), kills))
        arguments = (client, todo, left, acknowledged, failed)
        senders = [threading.Thread(target=send_all, args=arguments) for _ in range(SENDERS)]
        for sender in senders:
            sender.start()
        answered = 0
        for number, mark in enumerate(marks):
            while len(acknowledged) < mark and not failed:
                time.sleep(0.001)
            time.sleep(chance.random() * 0.02)
            if number % 2:
                # A chunk that ends three learners is set aside: there has to be one between.
                before = answered
                while answered <= before and left and not failed:
                    answered = client.stream("s")["counts"]["answered_items"]
                    time.sleep(0.01)
                ended += service.kill_learner()
                continue
            service.end(signal.SIGKILL)
            gone = time.monotonic()
            service.start()
            longest = max(longest, time.monotonic() - gone)
        for sender in senders:
            sender.join()
        assert not failed
    service.end(signal.SIGTERM)
    with Store.open(where) as store:
        store.stream("s").settle(flush=True)
        state = store.stream("s").state_hash()
    sent = {f"{number}.0": rows for number, rows in enumerate(todo)}
    labels, lost, doubled, again = check_kept(where, sent, acknowledged)
    figures = {"kills of the service": kills // 2, "kills of the learner": ended, "labels": labels}
    figures["seconds to serve again"] = longest
    for name, value in figures.items():
        record_property(name, round(value, 2))
    assert (lost, doubled, again) == (0, 0, state)
