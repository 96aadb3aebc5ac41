"""Errors of the store, the learner and the queue as HTTP responses."""

import json

import pytest
from server.served import until

from labelquorum.errors import ConflictError, LabelError, LimitError, StateError, StoreError
from labelquorum.server.errors import api_error_of
from labelquorum.server.learner_process import EndedError
from labelquorum.server.write_queue import BusyError

LABEL = {"task": "t", "worker": "ann", "label": "owl"}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (LabelError("a", ["b"]), 422),
        (StateError("a"), 422),
        (LimitError("a"), 413),
        (ConflictError("a"), 409),
        (BusyError("a"), 503),
        (StoreError("a"), 503),
    ],
    ids=str,
)
def test_errors_of_the_library_have_a_status_each(error, status):
    found = api_error_of(error)
    assert found.status == status and found.sentences[0] == "a"
    assert ("Retry-After" in found.headers) == (status == 503)


@pytest.mark.parametrize(
    "fault", [{"errno": 28}, {"sqlite_errorname": "SQLITE_FULL"}, {"sqlstate": "53100"}], ids=str
)
def test_a_full_disk_is_told_from_other_faults(fault):
    class FaultError(Exception):
        pass

    original = FaultError()
    vars(original).update(fault)
    wrapped = FaultError()
    wrapped.orig = original
    error = StoreError("the database refused")
    error.__cause__ = wrapped
    assert api_error_of(error).status == 507


def test_a_full_disk_refuses_what_is_sent_and_reads_go_on(running, admin, stream):
    rows = [{"task": n, "worker": f"worker {n} " + "x" * 200, "label": "owl"} for n in range(5000)]
    with running.store.write() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 1")  # as many as there are, then
    full = admin.post(f"{stream}/labels", json=rows, headers={"Idempotency-Key": "k"})
    reply = full.json()
    assert full.status_code == reply["status"] == 507 and int(full.headers["retry-after"]) > 0
    assert admin.get(stream).json()["counts"]["waiting_labels"] == 0
    # The connection that failed is not used again, and a new one knows no such limit.
    again = admin.post(f"{stream}/labels", json=rows, headers={"Idempotency-Key": "k"})
    assert again.json()["accepted"] == 5000 and again.json()["repeated"] is False
    until(lambda: admin.get("/readyz").status_code == 200)


def test_who_comes_while_too_much_waits_is_asked_to_come_again(running, admin, stream):
    service = running.app.service
    key = service.find(admin.get(stream).json()["name"]).stream.ref.key
    service.write_queue.loop._behind[key] = 10**6
    busy = admin.post(f"{stream}/labels", json=LABEL)
    assert busy.status_code == 503 and int(busy.headers["retry-after"]) > 0
    service.write_queue.loop._behind[key] = 0
    assert admin.post(f"{stream}/labels", json=LABEL).status_code == 200


def test_a_learner_that_has_died_is_no_fault_of_the_reader(running, admin, stream, monkeypatch):
    rows = [{**LABEL, "task": t, "worker": w} for t in "ab" for w in "cd"]
    admin.post(f"{stream}/labels", json=rows)
    until(lambda: admin.get(f"{stream}/workers").json().get("workers"))

    def ask(*_):
        raise EndedError("the learner ended while it was asked to ask")

    monkeypatch.setattr(running.store.learner, "ask", ask, raising=False)
    for path in ("workers", "workers/c", "model"):
        answer = admin.get(f"{stream}/{path}")
        assert answer.status_code == 503 and answer.headers["retry-after"] == "1", path
    monkeypatch.undo()
    assert admin.get(f"{stream}/workers").status_code == 200


def test_a_service_whose_store_refuses_is_not_ready(running, admin, monkeypatch):
    def refuse():
        raise StoreError("The database does not answer. Start it.")

    monkeypatch.setattr(running.store, "streams", refuse)
    answer = running.client(None).get("/readyz")
    assert answer.status_code == 503 and answer.json()["error"].startswith("The database")
    monkeypatch.undo()
    running.app.service.write_queue.writes = False
    assert admin.get("/readyz").status_code == 503
    running.app.service.write_queue.writes = True
    assert admin.get("/readyz").status_code == 200


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json", json.dumps([LABEL, {**LABEL, "task": "x" * 2**20}]).encode()),
        ("application/json", b" " * 2**20 + json.dumps(LABEL).encode()),
        ("application/x-ndjson", json.dumps({**LABEL, "task": "x" * 2**20}).encode()),
        ("text/csv", b"task,worker,label\n" + b"x" * 2**20 + b",ann,owl"),
    ],
    ids=["a name", "blanks", "a line of JSON", "a line of CSV"],
)
def test_text_that_is_far_longer_than_any_name_is_refused_unread(admin, stream, kind, body):
    answer = admin.post(f"{stream}/labels", content=body, headers={"Content-Type": kind})
    assert answer.status_code == 422 and "No name is that long" in answer.json()["error"]


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (
            {"name": "s", "classes": ["owl"]},
            "`classes` in the body: nothing of this name belongs there; "
            "/openapi.json lists what does. Got ['owl'].",
        ),
        ({}, "`name` in the body: this is needed. Got {}."),
        (
            {"name": "s", "rules": {"retention": "forever"}},
            "`rules.retention` in the body: it must be one of ['discard', 'keep_days', 'keep']. "
            "Got 'forever'.",
        ),
    ],
    ids=["unknown", "missing", "choice"],
)
def test_a_field_that_breaks_a_rule_is_told_in_our_words(admin, body, sentence):
    answer = admin.post("/v1/streams", json=body)
    assert answer.status_code == 422 and answer.json()["error"] == sentence
