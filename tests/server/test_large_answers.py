"""Large answers: how many are sent at a time, and to whom no longer."""

import time

import pytest
from server.served import serving, until
from server.test_uvicorn_server import unread

from labelquorum.server import large_answers
from labelquorum.store.rules import Rules
from labelquorum.store.store import Store

MODEL = "/v1/streams/S/model"


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A service whose stream has a model of 8 MB: a matrix per worker."""
    where = tmp_path_factory.mktemp("store")
    rows = [{"task": k // 2, "worker": f"w{k}", "label": f"c{k // 2}"} for k in range(100)]
    with Store.open(where) as store:
        rules = Rules().changed(labels_per_item=2, chunk_items=50, max_wait=None)
        stream = store.create("S", classes=[f"c{c}" for c in range(100)], rules=rules)
        stream.accept(rows)
        stream.settle(flush=True)
    with serving(where, read_seconds=1.0) as service:
        yield service


def asking(running, secret, path=MODEL):
    connection = unread(running)
    lines = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {secret}\r\n\r\n"
    connection.sendall(lines.encode())
    return connection


def test_a_large_answer_comes_whole(running):
    file = running.client("read").get(MODEL).content
    assert len(file) > 20 * large_answers.PIECE_BYTES
    assert file == running.store.stream("S").model_file()
    assert running.app.large.open.total() == 0


def test_readers_who_stop_free_their_places_and_others_wait_for_one(running, monkeypatch):
    monkeypatch.setattr(large_answers, "MAX_OPEN", 6)
    secrets = [running.secret("read"), running.secret("read")]
    opened, reader = running.app.large.open, running.client("read")
    held = [asking(running, secret) for secret in secrets for _ in range(4)]
    until(lambda: opened.total() == 6)
    assert max(opened.values()) <= large_answers.MAX_OPEN_PER_KEY
    refused = reader.get(MODEL)
    assert refused.status_code == 503 and int(refused.headers["retry-after"]) > 1
    assert "large answers" in refused.json()["error"]
    assert reader.get("/v1/streams/S").status_code == 200
    until(lambda: opened.total() == 0, 15)
    assert reader.get(MODEL).status_code == 200
    for connection in held:
        connection.close()


def test_a_reader_who_takes_little_now_and_then_is_cut_off(running):
    opened = running.app.large.open
    with asking(running, running.secret("read")) as connection:
        until(lambda: opened.total() == 1)
        began = time.monotonic()
        while opened.total():
            assert connection.recv(100)
            time.sleep(0.01)
        assert 0.5 < time.monotonic() - began < 15


def test_a_large_answer_ends_with_its_key(running):
    admin = running.client()
    made = admin.post("/v1/keys", json={"name": "brief", "scope": "read"}).json()
    with asking(running, made["key"]) as connection:
        until(lambda: running.app.large.open.total() == 1)
        admin.delete(f"/v1/keys/{made['id']}").raise_for_status()
        connection.settimeout(15)
        size = 0
        while part := connection.recv(2**20):
            size += len(part)
        assert size < 2**23
    until(lambda: running.app.large.open.total() == 0)


def test_readers_of_one_model_share_its_file_until_the_last_has_it(running):
    shared = running.app.service._model_files
    held = [asking(running, running.secret("read")) for _ in range(3)]
    until(lambda: running.app.large.open.total() == 3)
    assert len(shared) == 1
    for connection in held:
        connection.close()
    until(lambda: not shared)
