"""What all routes share: turns of questions, model files made in the background, names."""

import asyncio
import io
import threading
import time
from math import inf
from types import SimpleNamespace

import pytest
from server.served import until

from labelquorum.server import context
from labelquorum.server.config import Log, Settings
from labelquorum.server.context import Service
from labelquorum.server.errors import ApiError
from labelquorum.server.turns import Turns
from labelquorum.server.write_queue import WriteQueue
from labelquorum.store.learner import read_until
from labelquorum.store.store import Store


@pytest.fixture
def service(tmp_path):
    with Store.open(tmp_path / "store") as store:
        yield Service(store, WriteQueue(store), Settings(), Log(io.StringIO()))


class Stream:
    """A stream whose model takes as long as a test wants."""

    def __init__(self, key=1):
        self.ref, self.event, self.n = SimpleNamespace(key=key), 1, 0
        self.may_end, self.deadlines = threading.Event(), []

    def last_event(self):
        return self.event

    def model_file(self):
        self.n += 1
        n = self.n
        self.deadlines.append(read_until.get())
        assert self.may_end.wait(60)
        return b"model %d" % n


def request(has_room=True):
    return SimpleNamespace(scope={"has_room": lambda: has_room})


async def begun(stream, n=1):
    while stream.n < n:
        await asyncio.sleep(0.005)


def test_reports_with_every_limit_hold_up_no_model_and_no_usual_report(service):
    stream, order = Stream(), []

    def look(name):
        order.append(name)
        time.sleep(0.02)

    async def ask_all():
        kinds = [*["report with a limit"] * 12, "report", "model"]
        asked = [service.ask(stream, look, kind, kind=kind) for kind in kinds]
        await asyncio.gather(*asked)

    asyncio.run(ask_all())
    assert max(order.index("report"), order.index("model")) <= 3


def test_a_model_that_takes_longer_than_a_request_is_given_to_the_next_with_its_age(
    service, monkeypatch
):
    monkeypatch.setattr(context, "QUESTION_SECONDS", 0.0)
    stream = Stream()

    async def look():
        read_until.set(time.monotonic() + 5)
        first = asyncio.create_task(service.model_file(request(), stream))
        await begun(stream)
        first.cancel()  # its time is over
        stream.event = 2
        second = asyncio.create_task(service.model_file(request(), stream))
        await asyncio.sleep(0.05)
        second.cancel()
        stream.may_end.set()
        await asyncio.wait([first, second])
        await asyncio.sleep(0.1)
        assert await service.model_file(request(), stream) == (b"model 1", 1)
        assert await service.model_file(request(), stream) == (b"model 2", 0)

    asyncio.run(look())
    assert stream.deadlines == [inf, inf]


def test_a_model_that_would_be_refused_is_not_made(service):
    stream = Stream()
    with pytest.raises(ApiError, match="large answers") as error:
        asyncio.run(service.model_file(request(has_room=False), stream))
    assert error.value.status == 503 and stream.n == 0


def test_a_model_that_failed_is_made_again_and_few_wait_for_a_request(service, monkeypatch):
    monkeypatch.setattr(context, "QUESTION_SECONDS", 0.0)

    async def leave(stream):
        asking = asyncio.create_task(service.model_file(request(), stream))
        await begun(stream)
        asking.cancel()
        stream.may_end.set()
        await asyncio.sleep(0.1)

    async def look():
        for key in range(5):
            await leave(Stream(key))
        assert list(service._unclaimed) == [3, 4]
        service.discard(4)  # a worker was forgotten
        assert list(service._unclaimed) == [3]
        stream = Stream(9)
        stream.may_end = None  # an AttributeError
        with pytest.raises(AttributeError):
            await service.model_file(request(), stream)
        stream.may_end = threading.Event()
        stream.may_end.set()
        assert await service.model_file(request(), stream) == (b"model 2", 0)

    asyncio.run(look())


def test_a_stream_that_has_the_name_of_one_that_was_renamed_stays_known(service):
    old = service.store.create("A")
    service.add(old)
    renamed = service.store.rename(old, "B")
    new = service.store.create("A")
    service.add(new)  # by a request that came before the rename was heard of
    service.add(renamed)
    service.drop(old)
    assert service.find("A").stream.ref.key == new.ref.key
    assert service.find("B").stream.ref.key == old.ref.key


def test_an_export_of_workers_waits_for_its_turn_with_questions(running, admin, stream):
    assert admin.get(f"{stream}/export", params={"what": "workers"}).status_code == 200
    service, found = running.app.service, []
    free, service._questions = service._questions, Turns(0, 9)

    def download():
        found.append(admin.get(f"{stream}/export", params={"what": "workers"}).status_code)

    downloading = threading.Thread(target=download)
    downloading.start()
    try:
        until(lambda: service._questions._waiting, 20)
        assert (known := next(iter(service._questions._waiting))) and known[1] == "export"
        assert not found
    finally:
        waiting, service._questions = service._questions, free
        waiting._free = 9
        service.hub._loop.call_soon_threadsafe(waiting._give)
        downloading.join(60)
    assert found == [200]
