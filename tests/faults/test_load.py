"""Learning keeps up with what is accepted, also in small chunks."""

import json
import signal
import time

import pytest
from faults import source
from faults.load import RULES, Load
from faults.service import running

from labelquorum.store.store import Store

pytestmark = pytest.mark.kill

SINGLES_PER_SECOND = 500  # by one client, each after the last was answered


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_small_chunks_are_learned_as_fast_as_labels_are_accepted(
    request, tmp_path, size, record_property, kind
):
    where = str(tmp_path / "store") if kind == "sqlite" else request.getfixturevalue("database")
    with running(where) as service:
        with service.client() as http:
            made = {"name": "s", "settings": {"classes": source.CLASSES}, "rules": RULES}
            http.post("/v1/streams", json=made).raise_for_status()
        load = Load(service, where, "s")
        load.send(size(0.2, 5))  # the first chunk takes its time
        found = load.send(size(1.5, 60))
        refused = load.refused
        load.close()
        service.end(signal.SIGTERM)
    for name, figure in {**found, "refused": refused}.items():
        record_property(name, round(figure, 3))
    # What is sent waits for learning at a lag of 40 chunks; those are soon learned from.
    assert found["seconds until learned"] < 10 and not refused
    if size(True, False):  # as long a replay as the run itself
        with Store.open(where) as store:
            stream = store.stream("s")
            stream.settle(flush=True)
            chunks, state = source.recorded(store), stream.state_hash()
        assert source.replayed(chunks, tmp_path / "again", None) == state
    # One by one, a commit has one chunk, and two versions are seldom missed between two looks.
    assert found["chunks behind at the last label"] < 10 or found["chunks per commit"] > 2.5


def test_single_labels_are_answered_soon_while_they_are_learned_from(
    tmp_path, size, record_property
):
    took, n = [], size(600, 10_000)
    with running(tmp_path / "store") as service, service.connect() as connection:
        with service.client() as http:
            made = {"name": "s", "settings": {"classes": source.CLASSES}, "rules": RULES}
            http.post("/v1/streams", json=made).raise_for_status()
        head = (
            f"POST /v1/streams/s/labels HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Authorization: Bearer {service.key}\r\nContent-Type: application/json\r\n"
        )
        time.sleep(size(2, 10))  # until the processes beside the service are ready
        begin = time.monotonic()
        for number in range(n):
            time.sleep(max(0.0, begin + number / SINGLES_PER_SECOND - time.monotonic()))
            label = {"task": f"t{number // 3}", "worker": f"w{number % 3}", "label": "a"}
            body = json.dumps(label)
            sent = time.monotonic()
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            answer = b""
            while not answer.endswith(b"}"):
                answer += connection.recv(65536)
            took.append(1000 * (time.monotonic() - sent))
            assert answer.startswith(b"HTTP/1.1 200"), answer
    took.sort()
    for name, value in {"p50": took[n // 2], "p99": took[n * 99 // 100]}.items():
        record_property(f"{name} of a single label, ms", round(value, 2))
    assert took[n // 2] < 100
