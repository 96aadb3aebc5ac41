"""Long writes of one stream: labels of another do not wait, and a kill leaves nothing half done."""

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import httpx
import pytest
import sqlalchemy as sa
from faults.service import Pace, running

from labelquorum.ingest.labels import LabelTable
from labelquorum.store.check import BROKEN, examine_store
from labelquorum.store.database import schema
from labelquorum.store.rules import Rules
from labelquorum.store.store import Store

pytestmark = pytest.mark.kill

MOST = 10_000  # truths of a request, where the service says so
BY_ITSELF = 60  # seconds in which what was cut short is completed after a restart


@pytest.fixture
def wait(size):
    """Seconds another stream's label may wait: machines of CI are shared."""
    return size(1.0, 0.5)


@contextmanager
def pace(service):
    """Labels of another stream, sent one by one."""
    row = {"task": "t", "worker": "w", "label": "x"}
    with service.client() as http:
        http.post("/v1/streams", json={"name": "other", "rules": {"chunk_items": 1}})
        http.post("/v1/streams/other/labels", json=row)

        def learned():
            return http.get("/v1/streams/other").json()["counts"]["answered_items"]

        assert becomes(learned)  # its learner has started
        with Pace(lambda: http.post("/v1/streams/other/labels", json=row).status_code) as paced:
            yield paced


def killed(service, seconds, request):
    """Send a request, kill the service before it is answered, and start it again."""

    def send():
        with suppress(httpx.TransportError), service.client() as http:
            http.request(**request)

    sender = threading.Thread(target=send)
    sender.start()
    time.sleep(seconds)
    service.end(signal.SIGKILL)
    sender.join()
    service.start()


def becomes(holds):
    deadline = time.monotonic() + BY_ITSELF
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.2)
    return False


def send_truths(http, truths, key):
    """Send truths, in parts where the service asks for parts; give what each reply says."""
    address, rows = "/v1/streams/s/gold", list(truths.items())
    reply = http.post(address, json=truths, headers={"Idempotency-Key": key})
    if reply.status_code != 413:
        return [reply.raise_for_status().json()]
    replies = []
    for start in range(0, len(rows), MOST):
        part = dict(rows[start : start + MOST])
        reply = http.post(address, json=part, headers={"Idempotency-Key": f"{key} {start}"})
        replies.append(reply.raise_for_status().json())
    return replies


def test_labels_do_not_wait_for_the_truths_of_another_stream(tmp_path, size, wait, record_property):
    n, killed_n = size(20_000, 100_000), MOST
    truths = {f"t{number}": "x" for number in range(n)}
    others = {f"u{number}": "x" for number in range(killed_n)}
    with running(tmp_path) as service, service.client() as http:
        http.post("/v1/streams", json={"name": "s", "settings": {"classes": ["x", "y"]}})
        with pace(service) as paced:
            began = time.monotonic()
            replies = send_truths(http, truths, "k")
            took = time.monotonic() - began
        address, key = "/v1/streams/s/gold", {"Idempotency-Key": "killed"}
        request = {"method": "POST", "url": address, "json": others, "headers": key}
        killed(service, took * killed_n / n / 2, request)
        again = http.post(**{k: v for k, v in request.items() if k != "method"}).json()
        service.end()
    with Store.open(tmp_path) as store:
        events = [one["body"] for one in store.stream("s").events() if one["kind"] == "gold"]
        with store.read() as connection:
            kept = connection.scalar(sa.select(sa.func.count()).select_from(schema.gold))
    record_property("truths", n)
    record_property("longest wait of another stream's label, truths", round(paced.longest, 3))
    assert sum(one["told"] for one in replies) == n and again["told"] == killed_n
    assert kept == n + killed_n == sum(one["counted"] for one in events)
    assert set(paced.statuses) == {200}
    assert paced.longest <= wait


def test_labels_and_pages_do_not_wait_for_many_requests_with_truths(
    tmp_path, size, wait, record_property
):
    n_truths, path = size(3_000, MOST), "/v1/streams/s/gold"
    bodies = [{f"t{part} {number}": "x" for number in range(n_truths)} for part in range(45)]
    with running(tmp_path) as service, service.client() as http:
        http.post("/v1/streams", json={"name": "s", "settings": {"classes": ["x", "y"]}})

        def page():
            return http.get("/v1/streams/other").status_code

        with pace(service) as paced, Pace(page) as pages, ThreadPoolExecutor(45) as senders:
            sent = [senders.submit(http.post, path, json=one, timeout=300) for one in bodies]
            counted = [one.result().json()["told"] for one in sent]
    record_property("longest wait of another stream's label, 45 gold", round(paced.longest, 3))
    record_property("longest wait of another stream's page, 45 gold", round(pages.longest, 3))
    assert counted == [n_truths] * 45
    assert set(paced.statuses) == {200} and set(pages.statuses) == {200}
    assert max(paced.longest, pages.longest) <= wait


def annotations(first, last):
    """Tasks with an annotation each, as Label Studio exports them."""
    choice = {"from_name": "bird", "type": "choices", "value": {"choices": ["x"]}}
    return [
        {
            "id": number,
            "annotations": [
                {"id": number, "task": number, "project": 1, "completed_by": 1, "result": [choice]}
            ],
        }
        for number in range(first, last)
    ]


def test_labels_do_not_wait_for_a_deletion_of_annotations_and_it_is_completed(
    tmp_path, size, wait, record_property
):
    n, killed_n = size(5_000, 100_000), size(3_000, 20_000)
    hook, rules = "/v1/streams/s/hooks/label-studio", {"labels_per_item": 2, "max_wait": None}

    def deletion(first, last):
        gone = [{"id": number} for number in range(first, last)]
        return {"action": "ANNOTATIONS_DELETED", "annotations": gone, "project": {"id": 1}}

    def waiting(http):
        return http.get("/v1/streams/s").json()["counts"]["waiting_labels"]

    with running(tmp_path) as service, service.client() as http:
        shape = {"name": "s", "settings": {"classes": ["x", "y"]}, "rules": rules}
        http.post("/v1/streams", json=shape)
        for start in range(0, n + killed_n, 5_000):
            part = annotations(start, min(start + 5_000, n + killed_n))
            assert http.post(hook, json=part).json()["accepted"] == len(part)
        with pace(service) as paced:
            began = time.monotonic()
            reply = http.post(hook, json=deletion(0, n)).json()
            took = time.monotonic() - began
        left = waiting(http)
        request = {"method": "POST", "url": hook, "json": deletion(n, n + killed_n)}
        killed(service, took * killed_n / n / 2, request)
        done = becomes(lambda: waiting(http) == 0)
        at_end = waiting(http)
        service.end()
    record_property("annotations", n)
    record_property("longest wait of another stream's label, deletion", round(paced.longest, 3))
    record_property("annotations left after a kill", at_end)
    assert (reply["retracted"], left) == (n, killed_n)
    assert done, at_end
    assert [one for one in examine_store(tmp_path) if one.name == BROKEN] == []
    assert set(paced.statuses) == {200}
    assert paced.longest <= wait


def test_labels_do_not_wait_for_a_worker_who_is_forgotten_and_it_is_completed(
    tmp_path, size, wait, record_property
):
    n, part = size(30_000, 1_000_000), 10_000
    rules = Rules(chunk_items=2_000, max_wait=None, max_chunk_wait=None, retention="keep")
    with Store.open(tmp_path) as store:
        stream = store.create("s", rules=rules, classes=["x", "y"])
        for start in range(0, n, part):
            tasks = [f"t{number}" for number in range(start, start + part)]
            labels = LabelTable(tasks * 2, ["ann"] * part + ["bob"] * part, ["x"] * 2 * part)
            stream.accept(labels)
            stream.settle(flush=True)
    with running(tmp_path) as service, service.client() as http:
        with pace(service) as paced:
            began = time.monotonic()
            reply = http.delete("/v1/streams/s/workers/ann").json()
            took = time.monotonic() - began
        request = {"method": "DELETE", "url": "/v1/streams/s/workers/bob"}
        killed(service, took / 2, request)

        def held():
            return http.get("/v1/streams/s").json()["counts"]["held_labels"]

        done = becomes(lambda: held() == 0)
        at_end = held()
        service.end()
    with Store.open(tmp_path) as store:
        stream = store.stream("s")
        events = [one["body"]["labels"] for one in stream.events() if one["kind"] == "forgot"]
        workers = stream.workers()
    record_property("labels of the worker", n)
    record_property("longest wait of another stream's label, forgetting", round(paced.longest, 3))
    record_property("seconds to forget", round(took, 1))
    record_property("labels left after a kill", at_end)
    assert reply == {"gone": n}
    assert done, at_end
    assert (events, workers) == ([n, n], [])
    assert [one for one in examine_store(tmp_path) if one.name == BROKEN] == []
    assert set(paced.statuses) == {200}
    assert paced.longest <= wait
