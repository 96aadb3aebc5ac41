"""Clients with a read key ask for what is large, and never read it."""

import os
import socket
import time
from contextlib import ExitStack

import pytest
from faults.service import Pace, running

from labelquorum.store.rules import Rules
from labelquorum.store.store import Store

pytestmark = pytest.mark.kill

N_CLASSES = 100


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """A service with a model of 17 MB, or of 40 MB in a long run: a matrix per worker."""
    where = tmp_path_factory.mktemp("store")
    n_workers = 480 if os.environ.get("LABELQUORUM_FAULTS") == "long" else 200
    with Store.open(where) as store:
        rules = Rules().changed(labels_per_item=2, chunk_items=n_workers // 2, max_wait=None)
        stream = store.create("S", classes=[f"c{c}" for c in range(N_CLASSES)], rules=rules)
        stream.accept(
            [
                {"task": f"t{k // 2}", "worker": f"w{k}", "label": f"c{k // 2 % N_CLASSES}"}
                for k in range(n_workers)
            ]
        )
        stream.settle(flush=True)
    with running(where) as service:
        with service.client() as http:
            http.get("/v1/streams/S").raise_for_status()
        yield service


def ask(service, key, path, receive_buffer=4096):
    """A connection that has asked, and has read nothing."""
    connection = service.connect(receive_buffer)
    lines = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n\r\n"
    connection.sendall(lines.encode())
    return connection


def status_of(connection, seconds):
    """The status of what has come, or None: without taking it."""
    connection.settimeout(seconds)
    try:
        found = connection.recv(12, socket.MSG_PEEK)
    except OSError:
        return None
    return int(found[9:12]) if len(found) == 12 else None


def test_readers_that_never_read_share_one_body(service, size, record_property):
    key, start = service.make_key("read", "S"), service.memory()
    n, seconds = size(60, 300), size(6, 60)
    with ExitStack() as held, service.watching_memory() as peak:
        asked = [held.enter_context(ask(service, key, "/v1/streams/S/model")) for _ in range(n)]
        time.sleep(seconds)
        above = service.memory() - start
        statuses = [status_of(one, 0.1) for one in asked]
    record_property("megabytes above the start", round(above))
    record_property("most megabytes above the start", round(peak[0] - start))
    record_property("large answers begun", statuses.count(200))
    assert above < 150
    assert statuses.count(200) == 4 and statuses.count(503) == n - 4


def test_viewers_and_small_answers_of_a_key_go_on_beside_its_large_ones(
    service, size, record_property
):
    key, n = service.make_key("write", "S"), size(100, 1000)
    with ExitStack() as held, service.client(key) as http, service.client() as admin:
        for _ in range(8):
            held.enter_context(ask(service, key, "/v1/streams/S/model"))
        viewers = [held.enter_context(ask(service, key, "/v1/streams/S/events")) for _ in range(n)]
        with Pace(lambda: http.get("/v1/streams/S").status_code) as pace:
            began = time.monotonic()
            for viewer in viewers:
                viewer.settimeout(60)
                while b": hello" not in viewer.recv(4096):
                    pass
            admin.patch("/v1/streams/S", json={"grace": 5}).raise_for_status()
            for viewer in viewers:
                while b"event: rules" not in viewer.recv(4096):
                    pass
        record_property("seconds until all viewers saw the event", time.monotonic() - began)
        record_property("longest wait for a small answer", pace.longest)
        assert set(pace.statuses) == {200}
        statuses = [http.get("/v1/streams/S/model").status_code for _ in range(3)]
        assert statuses == [503] * 3
