"""Following events, and clients that take their time."""

import json
import socket
import threading
from contextlib import suppress

import httpx
import pytest
from server.served import serving, until


def answer_one_chunk(client, path, number):
    """Send labels that make a chunk."""
    rows = [
        {"task": f"t{number}.{task}", "worker": worker, "label": "owl"}
        for task in range(2)
        for worker in ("ann", "bob")
    ]
    assert client.post(f"{path}/labels", json=rows).json()["accepted"] == 4


class Viewer:
    """Reads events in a thread."""

    def __init__(self, client, path, **headers):
        self.events, self.comments, self.status = [], [], None
        self.ended = threading.Event()
        self._asked = (client, f"{path}/events", headers)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self):
        client, path, headers = self._asked
        try:
            with client.stream("GET", path, headers=headers, timeout=30) as answer:
                self.kind = answer.headers["content-type"]
                self.status = answer.status_code
                event = {}
                for line in answer.iter_lines():
                    name, _, value = line.partition(": ")
                    if line.startswith(":"):
                        self.comments.append(line)
                    elif line:
                        event[name] = value
                    else:
                        if "data" in event:
                            self.events.append({**event, "data": json.loads(event["data"])})
                        event = {}
        except httpx.HTTPError as error:
            self.error = error
        self.ended.set()

    def wait(self, n_events):
        until(lambda: len(self.events) >= n_events or self.ended.is_set())
        return self.events


def test_events_are_followed_and_taken_up_again(running, admin, stream):
    viewer = Viewer(running.client("read"), stream)
    until(lambda: viewer.comments)
    for number in range(3):
        answer_one_chunk(admin, stream, number)
    events = viewer.wait(3)
    assert viewer.kind.startswith("text/event-stream")
    assert [event["event"] for event in events] == ["applied"] * 3
    assert [event["data"]["chunk"] for event in events] == [1, 2, 3]
    first = int(events[0]["id"])
    again = Viewer(running.client("read"), stream, **{"Last-Event-ID": str(first)})
    assert again.wait(2)[:2] == events[1:]
    every = Viewer(running.client("read"), stream, **{"Last-Event-ID": "0"})
    assert every.wait(first + 2)[-2:] == events[1:]
    from_now = Viewer(running.client("read"), stream)
    until(lambda: from_now.comments)
    answer_one_chunk(admin, stream, 3)
    assert from_now.wait(1)[0]["data"]["chunk"] == 4


def test_who_starts_far_back_reads_all_of_it_from_the_store(running, admin, stream, monkeypatch):
    from labelquorum.server import sse

    monkeypatch.setattr(sse, "MAX_BUFFERED_EVENTS", 2)
    monkeypatch.setattr(sse, "_AT_ONCE", 3)
    early = Viewer(running.client("read"), stream)  # so that a channel is there, and forgets
    until(lambda: early.comments)
    for number in range(10):
        admin.patch(stream, json={"grace": number})
    viewer = Viewer(running.client("read"), stream, **{"Last-Event-ID": "0"})
    assert [event["data"]["grace"] for event in viewer.wait(10)] == list(range(10))
    assert [event["data"]["grace"] for event in early.wait(10)] == list(range(10))


def test_a_wrong_number_to_start_from_is_refused(admin, stream):
    for number in ("x", "-1", "9" * 30):
        answer = admin.get(f"{stream}/events", headers={"Last-Event-ID": number})
        assert answer.status_code == 422 and answer.json()["status"] == 422


@pytest.fixture(scope="module")
def hasty(tmp_path_factory):
    """A service with little patience and little room."""
    settings = {"viewers": 2, "beat_seconds": 0.05, "read_seconds": 0.5, "keep_alive_seconds": 1}
    with serving(tmp_path_factory.mktemp("hasty"), **settings) as service:
        made = {"name": "s", "settings": {"classes": ["owl", "wren"]}}
        assert service.client().post("/v1/streams", json=made).status_code == 201
        yield service


def test_silence_is_filled_with_a_beat(hasty):
    with hasty.client("read") as client:
        viewer = Viewer(client, "/v1/streams/s")
        until(lambda: len(viewer.comments) > 3)
    until(lambda: "labelquorum_viewers 0.0" in hasty.client().get("/metrics").text)


def test_there_is_room_for_so_many_viewers(hasty):
    clients = [hasty.client("read") for _ in range(3)]
    viewers = [Viewer(client, "/v1/streams/s") for client in clients[:2]]
    until(lambda: all(viewer.comments for viewer in viewers))
    refused = clients[2].get("/v1/streams/s/events")
    assert refused.status_code == 503 and int(refused.headers["retry-after"]) > 0
    assert refused.json()["status"] == 503
    clients[0].close()
    until(lambda: "labelquorum_viewers 1.0" in hasty.client().get("/metrics").text)
    again = Viewer(clients[2], "/v1/streams/s")
    until(lambda: again.comments)
    for client in clients[1:]:
        client.close()
    until(lambda: "labelquorum_viewers 0.0" in hasty.client().get("/metrics").text)


def test_who_loses_the_key_stops_seeing(hasty):
    admin = hasty.client()
    made = admin.post("/v1/keys", json={"name": "brief", "scope": "read"}).json()
    client = hasty.client(None)
    client.headers["Authorization"] = f"Bearer {made['key']}"
    viewer = Viewer(client, "/v1/streams/s")
    until(lambda: viewer.comments)
    admin.delete(f"/v1/keys/{made['id']}")
    assert viewer.ended.wait(30)


def raw(service, *parts):
    """Send bytes as they are, and read until the other side hangs up."""
    with socket.create_connection(service.address, timeout=30) as connection:
        for part in parts:
            connection.sendall(part)
        answer = b""
        with suppress(ConnectionResetError):  # what was not read by then
            while piece := connection.recv(65536):
                answer += piece
    return answer


def test_headers_that_never_end_are_given_up(hasty):
    assert b" 408 " in raw(hasty, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
    assert b" 408 " in raw(hasty)


def test_a_body_that_never_comes_is_given_up(hasty):
    head = (
        "POST /v1/streams/s/labels HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: Bearer {hasty.secret('write')}\r\nContent-Length: 100\r\n\r\n"
    )
    answer = raw(hasty, head.encode(), b'{"task"')
    assert b" 408 " in answer and b'"ok": false' in answer
    until(lambda: hasty.app.service.bodies.held == 0)  # once the connection is gone


def test_headers_without_end_and_what_is_no_http_are_refused(hasty):
    start = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
    endless = raw(hasty, start, b"X-A: " + b"a" * 2**17)
    assert b" 431 " in endless and b'"ok": false' in endless
    assert b" 400 " in raw(hasty, b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n")


def test_a_silent_connection_is_closed_after_an_answer(hasty):
    assert b" 200 " in raw(hasty, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")


def test_bodies_together_are_bounded(tmp_path):
    with serving(tmp_path / "store", waiting_bytes=1000) as service:
        admin = service.client()
        made = {"name": "s", "settings": {"classes": ["owl", "wren"]}}
        assert admin.post("/v1/streams", json=made).status_code == 201
        refused = admin.post("/v1/streams/s/labels", content=b" " * 2000)
        assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
        label = {"task": 1, "worker": 2, "label": "owl"}
        assert admin.post("/v1/streams/s/labels", json=label).status_code == 200


def test_viewers_do_not_hold_up_the_end(tmp_path):
    with serving(tmp_path / "store", stop_seconds=30) as service:
        made = {"name": "s", "settings": {"classes": ["owl", "wren"]}}
        assert service.client().post("/v1/streams", json=made).status_code == 201
        client = httpx.Client(base_url=service.url)
        client.headers["Authorization"] = f"Bearer {service.secret('read')}"
        viewer = Viewer(client, "/v1/streams/s")
        until(lambda: viewer.comments)
        service.server.should_exit = True
        assert viewer.ended.wait(20)
    client.close()
    assert [e["event"] for e in service.events()][-2:] == ["stopping", "stopped"]
