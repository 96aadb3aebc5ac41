"""A stream that is renamed or deleted, and another of its name: no label goes to the wrong one."""

import asyncio
import json
import threading
import time

import httpx
import pytest
import sqlalchemy as sa
from faults.service import running

from labelquorum.errors import LabelQuorumError
from labelquorum.server.learning_loop import LearningLoop
from labelquorum.server.write_queue import WriteQueue
from labelquorum.store.batch import Submission, decode
from labelquorum.store.database import schema
from labelquorum.store.rules import Rules
from labelquorum.store.store import Store

pytestmark = pytest.mark.kill

# Nothing is cut, so that every label is found where it was put.
RULES = {"labels_per_item": 10, "max_wait": None, "retention": "keep"}
SENDERS, SLOW_SENDERS = 4, 24
OTHER = [{"task": f"t{n}", "worker": "w", "label": 0} for n in range(1500)]
WORDS = ("renamed", "deleted")


def tasks_of(store):
    """The tasks of each stream's labels, by the name of the stream."""
    labels, streams = schema.labels.c, schema.streams.c
    query = sa.select(streams.name, labels.item).where(labels.stream == streams.id)
    with store.read() as connection:
        return [(name, decode(item)) for name, item in connection.execute(query)]


@pytest.mark.parametrize("what", WORDS)
@pytest.mark.parametrize("old_first", [True, False])
def test_labels_that_wait_together_are_written_to_the_streams_they_were_sent_to(
    where, what, old_first, record_property
):
    async def send(queue, sent):
        replies = [queue.submit(stream, one) for stream, one in sent]
        queue.start()
        return [await one for one in replies]

    with Store.open(where) as store:
        old = store.create("A", rules=Rules(**RULES))
        if what == "renamed":
            store.rename("A", "B")
        else:
            store.delete("A")
        new = store.create("A", rules=Rules(**RULES))
        sent = [(s, s.prepare(Submission({t: {"w": 0}}))) for s, t in ((old, "old"), (new, "new"))]
        queue = WriteQueue(store)
        try:
            replies = asyncio.run(send(queue, sent if old_first else sent[::-1]))
        finally:
            queue.stop()
        errors = [str(one) for one in replies if isinstance(one, LabelQuorumError)]
        expected = [("A", "new")] + [("B", "old")] * (what == "renamed")
        astray = set(tasks_of(store)) ^ set(expected)
        record_property("labels astray", len(astray))
        assert not astray and queue.writes
        assert len(errors) == (what == "deleted") and all("was deleted" in one for one in errors)


def test_a_stream_that_is_deleted_while_it_is_learned_from_writes_no_traceback(
    where, caplog, record_property
):
    learns, deleted = threading.Event(), threading.Event()
    with Store.open(where) as store, Store.join(where, store.start) as joined:
        learn, loop = joined.learner.learn, LearningLoop(joined)

        def slowly(work):
            learns.set()
            deleted.wait(60)
            return learn(work)

        joined.learner.learn = slowly
        store.create("s", rules=Rules(max_chunk_wait=0.0)).accept({"t": {"w": 0}})
        loop.start()
        try:
            assert learns.wait(60)
            store.delete("s")
            deleted.set()
            time.sleep(1.5)  # it looks at all streams in between
        finally:
            loop.stop()
    tracebacks = [one for one in caplog.records if one.exc_info]
    record_property("tracebacks", len(tracebacks))
    assert not tracebacks and loop.healthy
    assert any("was deleted" in str(getattr(one, "error", "")) for one in caplog.records)


class Sender(threading.Thread):
    """Sends labels one after the other, and keeps when each request began, ended, and how."""

    def __init__(self, service, path, name):
        super().__init__(daemon=True)
        self._service, self._path, self._name = service, path, name
        self.sent, self.done = [], threading.Event()

    def run(self):
        with self._service.client() as http:
            while not self.done.is_set():
                task = f"{self._name} {len(self.sent)}"
                self.send(http, task, {"json": {"task": task, "worker": "w", "label": 0}})

    def send(self, http, task, body):
        began = time.monotonic()
        reply = http.post(self._path, **body, headers={"Idempotency-Key": task})
        self.sent.append((task, began, time.monotonic(), reply.status_code))


class SlowSender(Sender):
    """Begins requests before the stream is changed, and ends them when another has its name."""

    def __init__(self, service, path, name):
        super().__init__(service, path, name)
        self.begun, self.end = threading.Event(), threading.Event()

    def run(self):
        with self._service.client() as http:
            task = f"{self._name} slow"
            self.send(http, task, {"content": self._body(task)})

    def _body(self, task):
        body = json.dumps({"task": task, "worker": "w", "label": 0}).encode()
        yield body[:10]
        self.begun.set()
        self.end.wait(60)
        yield body[10:]


class OtherSender(Sender):
    """Sends many labels to another stream at a time, so that others' labels wait together."""

    def run(self):
        with self._service.client() as http:
            while not self.done.is_set():
                self.send(http, f"{self._name} {len(self.sent)}", {"json": OTHER})


def race(service, http, name):
    """Change stream `name` while labels come, and make another; gives requests and moments."""
    path, created = f"/v1/streams/{name}", {"name": name, "rules": RULES}
    http.post("/v1/streams", json=created).raise_for_status()
    quick = [Sender(service, f"{path}/labels", f"{name} {k}") for k in range(SENDERS)]
    slow = [SlowSender(service, f"{path}/labels", f"{name} {k}") for k in range(SLOW_SENDERS)]
    other = OtherSender(service, "/v1/streams/other/labels", name)
    for sender in (*quick, *slow, other):
        sender.start()
    assert all(sender.begun.wait(60) for sender in slow)
    time.sleep(0.2)
    moments = [time.monotonic()]
    if name.startswith("renamed"):
        http.patch(path, json={"name": f"{name} before"}).raise_for_status()
    else:
        http.delete(path).raise_for_status()
    moments.append(time.monotonic())
    http.post("/v1/streams", json=created).raise_for_status()
    moments.append(time.monotonic())
    for sender in slow:
        sender.end.set()
        time.sleep(0.02)
    time.sleep(0.2)
    for sender in (*quick, *slow, other):
        sender.done.set()
        sender.join()
    return [one for sender in (*quick, *slow) for one in sender.sent], moments


def is_astray(name, request, moments, places):
    """Whether a label is not where its sender may expect it."""
    _, began, ended, status = request
    changing, changed, created = moments
    here = [name] if began > changed else [name, f"{name} before"]
    if ended < changing:
        here = [f"{name} before"]
    if began > created and status != 200:  # refused, because of another's
        return True
    if status != 200:
        return bool(places)
    if name.startswith("deleted") and began < changed:  # what was deleted with it is nowhere
        return len(places) > (ended > changing)
    return len(places) != 1 or places[0] not in here


def test_labels_that_are_sent_while_their_stream_changes_go_to_one_of_its_name(
    where, size, record_property
):
    rounds = [f"{what} {number}" for number in range(size(1, 12)) for what in WORDS]
    with running(where) as service, service.client() as http:
        http.post("/v1/streams", json={"name": "other", "rules": RULES}).raise_for_status()
        seen = [race(service, http, name) for name in rounds]
        service.end()
    places = {}
    with Store.open(where) as store:
        for place, task in tasks_of(store):
            places.setdefault(task, []).append(place)
    acknowledged = sum(one[3] == 200 for sent, _ in seen for one in sent)
    astray = [
        (one, moments, places.get(one[0], []))
        for name, (sent, moments) in zip(rounds, seen, strict=True)
        for one in sent
        if is_astray(name, one, moments, places.get(one[0], []))
    ]
    record_property("labels acknowledged", acknowledged)
    record_property("labels astray", len(astray))
    assert acknowledged > 10 * len(rounds)
    assert not astray, astray[:5]


def test_a_request_changes_the_stream_that_its_address_and_key_were_checked_for(
    tmp_path, record_property
):
    begun, go_on = threading.Event(), threading.Event()

    def body():
        yield b'{"name": '
        begun.set()
        go_on.wait(60)
        yield b'"C"}'

    with running(tmp_path / "store") as service, service.client() as http:
        http.post("/v1/streams", json={"name": "A"}).raise_for_status()
        key, replies = service.make_key("admin", "A"), []

        def rename():
            with service.client(key) as own:
                replies.append(own.patch("/v1/streams/A", content=body()))

        renaming = threading.Thread(target=rename)
        renaming.start()
        assert begun.wait(60)
        http.patch("/v1/streams/A", json={"name": "B"}).raise_for_status()
        http.post("/v1/streams", json={"name": "A"}).raise_for_status()
        go_on.set()
        renaming.join()
        streams = http.get("/v1/streams").json()["streams"]
        record_property("streams renamed for a key of another", int(streams != ["A", "B"]))
        assert streams == ["A", "B"]
        assert replies[0].status_code == httpx.codes.CONFLICT
        assert "was deleted or renamed" in replies[0].text
        with service.client(key) as own:  # it went with its stream
            assert own.get("/v1/streams/A").status_code == httpx.codes.FORBIDDEN
            assert own.get("/v1/streams").json()["streams"] == ["B"]
