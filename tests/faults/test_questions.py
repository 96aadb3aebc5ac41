"""Questions that take long, hang, lose their process or their client hold up no other stream."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from faults.service import Pace, running

from labelquorum.store.rules import Rules
from labelquorum.store.store import Store

pytestmark = pytest.mark.kill

N_CLIENTS = 8
CLASSES = ["a", "b"]
PAGE = "/v1/streams/small/workers/w1"


def fill(store, name, n_judges, n_tasks, per_task):
    """A stream whose judges label as many tasks each, right seven times of ten."""
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(n_tasks), per_task)
    judge = np.arange(len(task)) % n_judges
    is_right = rng.random(len(task)) < 0.7
    table = pd.DataFrame(
        {
            "task": [f"t{n}" for n in task.tolist()],
            "worker": [f"w{n}" for n in judge.tolist()],
            "label": np.array(CLASSES)[(task + ~is_right) % 2],
        }
    )
    stream = store.create(name, classes=CLASSES, rules=Rules(chunk_items=n_tasks))
    stream.accept(table)
    stream.settle(flush=True)


@pytest.fixture(scope="module")
def service(tmp_path_factory, size):
    where = tmp_path_factory.mktemp("questions") / "store"
    with Store.open(where) as store:
        fill(store, "large", size(300, 1000), size(400, 1000), size(50, 100))
        for name in ("small", "gone", "renamed", "forgetful"):
            fill(store, name, 10, 20, 5)
    with running(where) as started:
        yield started


@pytest.fixture
def client(service):
    with service.client() as client:
        until_answered(client)
        until_idle(service)
        yield client


def until_answered(client):
    """Ask until the model answers; how long that took."""
    began = time.monotonic()
    while client.get(PAGE).status_code != 200:
        assert time.monotonic() < began + 60
        time.sleep(0.05)
    return time.monotonic() - began


def until_idle(service):
    """Wait until the processes that answer have started, and work no longer."""
    before, now = None, {}
    while now != before:
        time.sleep(0.5)
        before, now = now, {}
        for pid in service.children("questions"):
            # User and system time, in ticks, after the name in brackets.
            now[pid] = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]


def timed(ask):
    began = time.monotonic()
    return ask(), time.monotonic() - began


def test_a_question_that_hangs_holds_up_no_other_and_is_refused_after_five_seconds(
    service, client, record_property
):
    os.kill(service.children("questions")[0], signal.SIGSTOP)
    with ThreadPoolExecutor(4) as pool:
        asked = list(pool.map(lambda _: timed(lambda: client.get(PAGE)), range(20)))
    waits = [seconds for reply, seconds in asked if reply.status_code == 200]
    hung = [(reply, seconds) for reply, seconds in asked if reply.status_code != 200]
    record_property("questions answered beside one that hangs", len(waits))
    record_property("seconds they waited", round(max(waits, default=0.0), 2))
    record_property("seconds until the one that hangs was refused", round(hung[0][1], 2))
    [(reply, seconds)] = hung
    assert reply.status_code == 503 and reply.headers["Retry-After"] == "1"
    assert "took longer than the 5 seconds" in reply.json()["error"]
    assert seconds < 7 and max(waits) < 4


def test_a_question_whose_process_is_killed_is_asked_again(service, client, record_property):
    lost = 0
    with ThreadPoolExecutor(1) as pool:
        for number in range(2):  # one of them has the question
            until_answered(client)
            until_idle(service)
            stopped = service.children("questions")
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            asked = pool.submit(client.get, PAGE)
            time.sleep(0.5)
            os.kill(stopped.pop(number % len(stopped)), signal.SIGKILL)
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
            lost += asked.result().status_code != 200
    record_property("questions lost with their process", lost)
    assert lost == 0


def test_clients_that_go_away_free_their_places(service, client, record_property):
    request = (
        f"GET {PAGE} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {service.key}\r\n\r\n"
    )
    stopped = service.children("questions")
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    connections = [service.connect() for _ in range(100)]
    for connection in connections:
        connection.sendall(request.encode())
    time.sleep(0.5)
    for connection in connections:
        connection.close()
    time.sleep(0.5)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(client.get, PAGE)
        time.sleep(0.5)
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        reply = asked.result()
    record_property("questions refused because of clients that went", int(reply.status_code != 200))
    assert reply.status_code == 200, reply.text


def change_streams(client):
    """Delete, rename and create streams, and forget a worker; the longest wait."""
    asks = (
        lambda: client.delete("/v1/streams/gone"),
        lambda: client.patch("/v1/streams/renamed", json={"name": "other"}),
        lambda: client.post("/v1/streams", json={"name": "new"}),
        lambda: client.delete("/v1/streams/forgetful/workers/w1"),
    )
    done = [timed(ask) for ask in asks]
    assert all(reply.is_success for reply, _ in done), [reply.text for reply, _ in done]
    return max(seconds for _, seconds in done)


def test_juries_of_one_stream_hold_up_no_page_and_no_change_of_another(
    service, client, size, record_property
):
    def ask_jury(client, limit):
        """Ask until it is there; or the test is over."""
        statuses.append(503)
        while statuses[-1] == 503 and not done.is_set():
            reply = client.get(f"/v1/streams/large/jury?limit={limit}")
            statuses.append(reply.status_code)
            time.sleep(int(reply.headers.get("Retry-After", 0)))

    def ask_juries():
        with service.client() as own:
            while not done.is_set():
                ask_jury(own, next(limits))

    done, limits, statuses = threading.Event(), count(size(299, 999), -1), []
    _, alone = timed(lambda: ask_jury(client, 1000))
    with ThreadPoolExecutor(N_CLIENTS) as pool, Pace(lambda: client.get(PAGE).status_code) as pace:
        asked = [pool.submit(ask_juries) for _ in range(N_CLIENTS)]
        time.sleep(1)
        with service.client() as another:
            change = change_streams(another)
        time.sleep(size(3, 60))
        done.set()
        for one in asked:
            one.result()
    figures = {"seconds a jury took": alone, "seconds a worker page waited": pace.longest}
    figures["seconds a change waited"] = change
    for name, value in figures.items():
        record_property(name, round(value, 2))
    assert set(pace.statuses) == {200} and set(statuses) <= {200, 503}
    assert pace.longest <= size(3.0, 1.0) and change <= size(3.0, 1.0)
