"""Truths, forgotten workers, and what Label Studio tells by itself."""

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote

import pytest
from server.served import until

from labelquorum.server.context import MAX_WRITES
from labelquorum.store.database import schema

PAYLOADS = Path(__file__).parents[1] / "label_studio"


def payload(name):
    return json.loads((PAYLOADS / f"{name}.json").read_text(encoding="utf-8"))["body"]


def answered(admin, stream, n_items):
    until(lambda: admin.get(stream).json()["counts"]["answered_items"] == n_items)


def send(admin, stream, labels):
    rows = [{"task": t, "worker": w, "label": label} for t, w, label in labels]
    assert admin.post(f"{stream}/labels", json=rows).json()["accepted"] == len(rows)


def test_a_truth_takes_the_place_of_what_the_crowd_says(admin, stream):
    reply = admin.post(f"{stream}/gold", json={"t1": "wren"})
    assert reply.status_code == 200 and reply.json()["told"] == 1, reply.text
    crowd = [(task, worker, "owl") for task in ("t1", "t2") for worker in ("ann", "bob")]
    send(admin, stream, crowd)
    answered(admin, stream, 2)
    items = {i["task"]: i["label"] for i in admin.get(f"{stream}/items").json()["items"]}
    assert items == {"t1": "wren", "t2": "owl"}


@pytest.mark.parametrize(
    "truths",
    [
        {"t1": "crow"},
        {"t1": None},
        {"t1": ["owl"]},
        {"t\n1": "owl"},
        [{"task": "t1"}],
        [{"task": "t1", "label": "owl"}, {"task": "t1", "label": "wren"}],
        ["t1"],
        "owl",
    ],
    ids=str,
)
def test_truths_that_make_no_sense_are_refused(admin, stream, truths):
    answer = admin.post(f"{stream}/gold", json=truths)
    assert answer.status_code == 422 and answer.json()["status"] == 422


def test_truths_come_as_rows_and_count_once_under_a_key(admin, stream):
    rows, key = [{"task": 7, "label": "owl"}], {"Idempotency-Key": "k"}
    first, again = (admin.post(f"{stream}/gold", json=rows, headers=key) for _ in range(2))
    assert first.json()["repeated"] is False and again.json()["repeated"] is True
    other = admin.post(f"{stream}/gold", json={"8": "owl"}, headers=key)
    assert other.status_code == 409


def test_a_worker_is_forgotten_for_good(running, admin, stream):
    crowd = [(task, worker, "owl") for task in ("t1", "t2") for worker in ("ann", "secretly me")]
    send(admin, stream, crowd)
    answered(admin, stream, 2)
    send(admin, stream, [("t3", "secretly me", "owl")])
    gone = admin.delete(f"{stream}/workers/secretly%20me")
    assert gone.json() == {"gone": 1}, gone.text
    assert admin.get(f"{stream}/workers/secretly%20me").status_code == 404
    assert admin.delete(f"{stream}/workers/secretly%20me").status_code == 404
    assert "secretly me" not in json.dumps(running.events())
    assert {w["worker"] for w in admin.get(f"{stream}/workers").json()["workers"]} == {"ann"}


@pytest.fixture
def studio(running, admin):
    """Sends recorded payloads to a stream of its own, with a key in Label Studio's header."""
    made = admin.post("/v1/streams", json={"name": "studio", "rules": {"labels_per_item": 9}})
    assert made.status_code in (201, 409)
    client = running.client(None)
    client.headers["X-LabelQuorum-Key"] = running.secret("write", "studio")

    def hear(name, **changes):
        return client.post("/v1/streams/studio/hooks/label-studio", json=payload(name) | changes)

    return hear


def test_an_annotation_is_a_label_once_changed_and_taken_back(admin, studio):
    created = studio("annotation_created")
    assert created.status_code == 200, created.text
    assert created.json()["accepted"] == 1
    again = studio("annotation_created").json()
    assert again["accepted"] == 0 and again["skipped"] == {"outdated": 1}
    updated = studio("annotation_updated").json()
    assert (updated["accepted"], updated["retracted"]) == (1, 1)
    assert admin.get("/v1/streams/studio").json()["counts"]["waiting_labels"] == 1
    deleted = studio("annotations_deleted", annotations=[{"id": 1}]).json()
    assert deleted["retracted"] == 1
    assert admin.get("/v1/streams/studio").json()["counts"]["waiting_labels"] == 0
    late = studio("annotation_updated").json()
    assert late["accepted"] == 0 and late["skipped"] == {"outdated": 1}


def test_events_of_label_studio_that_say_nothing_are_no_error(studio):
    for name in ("tasks_created", "tasks_deleted", "project_updated", "annotation_skipped"):
        answer = studio(name)
        assert answer.status_code == 200, answer.text
        assert answer.json()["accepted"] == 0


def test_what_label_studio_cannot_have_meant_is_refused(studio, running):
    answer = studio("annotation_of_two_choices")
    assert answer.status_code == 422 and "one choice" in answer.json()["error"]
    client = running.client("write", "studio")
    for body in ([1], {}, {"action": 7}, "x", None, {"action": "ANNOTATION_CREATED"}):
        refused = client.post("/v1/streams/studio/hooks/label-studio", json=body)
        assert refused.status_code == 422, refused.text


def test_more_truths_than_a_request_may_bring_are_refused_with_the_limit(admin, stream):
    truths = {f"t{number}": "owl" for number in range(10_001)}
    answer = admin.post(f"{stream}/gold", json=truths)
    assert answer.status_code == 413
    assert answer.json()["error"] == (
        "At most 10,000 true labels are taken at once. Got 10,001. "
        "Send them in parts, each under its own key."
    )
    del truths["t0"]
    answer = admin.post(f"{stream}/gold", json=truths)
    assert (answer.status_code, answer.json()["told"]) == (200, 10_000)


def test_requests_that_write_truths_stand_in_few_places(running, admin, stream):
    service = running.app.service
    path = f"{stream}/gold"
    with ThreadPoolExecutor(80) as senders:
        with running.store.write():  # the requests wait for it
            asked = [senders.submit(admin.post, path, json={f"t{n}": "owl"}) for n in range(70)]
            until(lambda: any(one.done() for one in asked))
            assert len(running.store._turn._waiting) <= MAX_WRITES + 1  # and the learning loop
            assert admin.get(stream).status_code == 200
        statuses = Counter(one.result().status_code for one in asked)
    assert statuses[200] >= 64 and statuses[503] >= 1 and len(statuses) == 2
    [refused] = {one.result().json()["error"] for one in asked if one.result().status_code == 503}
    assert refused == "Too many requests of this stream wait. Retry in a second."
    assert not service._writes._waiting


def test_a_job_that_was_resumed_empties_the_caches(running, admin, stream):
    send(admin, stream, [(task, worker, "owl") for task in "tu" for worker in ("ann", "bob")])
    answered(admin, stream, 2)
    service = running.app.service
    known = service.find(unquote(stream.rsplit("/")[-1])).stream

    def names():
        return [one["worker"] for one in admin.get(f"{stream}/workers").json()["workers"]]

    assert sorted(names()) == ["ann", "bob"]
    row = {"stream": known.ref.key, "id": 1, "kind": "forget", "progress": "{}"}
    with running.store.write() as connection:
        connection.execute(schema.jobs.insert().values(**row, body=json.dumps('"ann"')))
    until(lambda: known.events()[-1]["kind"] == "forgot")
    until(lambda: service.worker_tables.peek(known.ref.key) is None, 2)
    assert names() == ["bob"]
