"""What many look at is made once for all; how fast labels come; what needs a person."""

import asyncio
import io
import json
from collections import deque
from itertools import count
from types import SimpleNamespace

import pytest
from server.routes.test_events import Viewer, answer_one_chunk
from server.served import until

from labelquorum.errors import StateError
from labelquorum.server import context
from labelquorum.server.cache import Cache
from labelquorum.server.config import Log
from labelquorum.server.context import Service
from labelquorum.server.errors import ApiError
from labelquorum.server.telemetry import Sample, Throughput, alerts
from labelquorum.store.rules import Rules

TTL, STALE_SECONDS = context.RESPONSE_TTL_SECONDS, context.MAX_STALE_SECONDS


class Clock:
    def __init__(self):
        self.time = 0.0

    def __call__(self):
        return self.time


@pytest.fixture
def clock():
    return Clock()


def responses(clock):
    """A cache as the service has it for responses."""
    rest = (context.RESPONSE_REST, context.MAX_RESPONSE_REST_SECONDS)
    return Cache(context.MAX_CACHED_RESPONSES, TTL, *rest, clock=clock)


async def given(cache, key, make, version=lambda: 0, **how):
    return (await cache.get(key, make, version, **how)).value


class Making:
    """Counts how often an answer is made, and can be held up."""

    def __init__(self):
        self.n, self.may_end = 0, asyncio.Event()
        self.may_end.set()

    async def __call__(self):
        self.n += 1
        n = self.n
        await self.may_end.wait()
        return b"%d" % n


def test_a_value_is_made_once_until_its_version_changes_or_its_time_to_live_is_over(clock):
    cache, version = responses(clock), [0]

    async def look():
        making = Making()

        async def get(key):
            return await given(cache, key, making, lambda: version[0])

        assert [await get("a") for _ in range(3)] == [b"1"] * 3
        assert await get("another") == b"2"
        version[0] += 1
        assert await get("a") == b"3"
        clock.time += TTL
        assert await get("a") == b"4"

    asyncio.run(look())


def test_a_value_that_takes_long_to_make_rests_many_times_as_long(clock, monkeypatch):
    cache, rests = responses(clock), []

    async def rest(seconds):
        rests.append(seconds)
        clock.time += seconds

    monkeypatch.setattr(asyncio, "sleep", rest)

    async def look():
        lengths = iter([0.1, 2.0, 0.0])

        async def make():
            clock.time += next(lengths)
            return b"made"

        for _ in range(3):
            await given(cache, "a", make, lambda: round(clock.time * 1000))

    asyncio.run(look())
    assert rests == [pytest.approx(2.9), pytest.approx(3.0)]


def test_a_resting_value_is_given_at_once_if_it_is_unchanged_or_may_be_stale(clock):
    cache, version = responses(clock), [0]

    async def look():
        numbers = count()

        async def make():
            clock.time += 0.1
            return b"%d" % next(numbers)

        async def get(**how):
            return await given(cache, "a", make, lambda: version[0], **how)

        first = await get()
        clock.time += 2.0
        assert await get() == first
        version[0] += 1
        assert await get(max_stale=STALE_SECONDS) == first
        clock.time += STALE_SECONDS
        assert await get(max_stale=STALE_SECONDS) != first
        held = await get()
        cache.discard(lambda key: key == "another")
        assert await get() == held
        cache.discard(lambda key: key == "a")
        assert await get(max_stale=STALE_SECONDS) != held

    asyncio.run(look())


def test_a_hundred_simultaneous_callers_are_given_one_value(clock):
    cache = responses(clock)

    async def look():
        making = Making()
        making.may_end.clear()
        asked = [asyncio.create_task(given(cache, "a", making)) for _ in range(100)]
        await asyncio.sleep(0)
        making.may_end.set()
        assert set(await asyncio.gather(*asked)) == {b"1"} and making.n == 1

    asyncio.run(look())


def test_a_caller_after_a_change_is_not_given_what_was_begun_before_it(clock):
    cache, version = responses(clock), [0]

    async def look():
        making = Making()
        making.may_end.clear()
        early = asyncio.create_task(given(cache, "a", making, lambda: version[0]))
        await asyncio.sleep(0)
        clock.time += 0.001
        version[0] += 1
        late = asyncio.create_task(given(cache, "a", making, lambda: version[0]))
        await asyncio.sleep(0)
        making.may_end.set()
        assert await asyncio.gather(early, late) == [b"1", b"2"]

    asyncio.run(look())


def test_a_value_that_cannot_be_made_is_an_error_for_its_caller_and_made_for_the_next(clock):
    cache = responses(clock)

    async def fail():
        raise RuntimeError("no")

    async def look():
        with pytest.raises(RuntimeError):
            await given(cache, "a", fail)
        assert await given(cache, "a", Making()) == b"1"

    asyncio.run(look())


def test_the_least_recently_used_value_is_dropped_beyond_the_bound(clock):
    cache = Cache(2, TTL, 0.0, clock=clock)

    async def look():
        for key in ("a", "b", "a", "c"):
            await given(cache, key, Making())
        assert [cache.peek(key) is not None for key in "abc"] == [True, False, True]

    asyncio.run(look())


def test_the_pace_of_a_stream_is_that_of_its_last_seconds():
    throughput = Throughput(dict, Log())
    assert throughput.labels_per_second("s") == 0 and throughput.spark("s") == [0] * 60
    for second in range(100):
        throughput.add(float(second), {"s": (second * second, second // 10)})
    assert throughput.labels_per_second("s") == pytest.approx((99**2 - 89**2) / 10)
    spark = throughput.spark("s")
    assert len(spark) == 60 and spark[-1] == 99**2 - 98**2 and spark[0] == 40**2 - 39**2
    assert throughput.growth("s") == 9 - 3 and throughput.growth("nobody") == 0


def test_the_pace_is_told_while_another_look_is_noted():
    throughput = Throughput(dict, Log())

    class Watched(Sample):
        """While it is looked at, another thread notes one more."""

        def __getattribute__(self, name):
            if name == "at":
                throughput.add(100.0, {"s": (100, 0)})
            return super().__getattribute__(name)

    throughput._samples["s"] = deque(
        [Watched(0.0, 0, 0), Watched(90.0, 90, 0), Sample(92.0, 100, 0)]
    )
    assert throughput.labels_per_second("s") == 5


def test_the_pace_goes_on_after_a_look_that_failed(monkeypatch):
    from labelquorum.server import telemetry as module

    monkeypatch.setattr(module, "SAMPLE_SECONDS", 0.0)
    lines, n_looks = io.StringIO(), 0

    def look():
        nonlocal n_looks
        n_looks += 1
        if n_looks == 1:
            raise RuntimeError("the dictionary changed")
        return {"s": (n_looks, 0)}

    async def follow():
        throughput = Throughput(look, Log(lines))
        following = asyncio.create_task(throughput.run())
        while not throughput._samples and not following.done():
            await asyncio.sleep(0.001)
        following.cancel()
        assert throughput._samples["s"][0].rows == 2

    asyncio.run(follow())
    assert "the dictionary changed" in lines.getvalue()


class Figures:
    """What `alerts` asks of a tally."""

    def __init__(self, depth=(), lost=(), moved_at=None):
        self.depth, self._lost, self.moved_at = list(depth), list(lost), moved_at

    def missing_classes(self):
        return self._lost


NOW = 1.7e9


def codes(figures=None, behind=0, grew=0, quarantined=(), turned=(), healthy=True, **rules):
    reply = (behind, grew, quarantined, turned, healthy, NOW)
    found = alerts(figures or Figures(), Rules(**rules), *reply)
    assert all(one["says"].endswith(".") and not one["says"][0].islower() for one in found)
    return [one["code"] for one in found]


def test_nothing_is_said_where_nothing_is_wrong():
    assert codes() == []
    assert codes(Figures([0, 0, 0, 100]), behind=10, grew=2) == []
    assert codes(Figures([0, 5])) == []  # too few items to tell


def test_each_alarm_is_raised_by_its_rule():
    assert codes(behind=11) == ["lag"] == codes(behind=3, grew=3)
    assert codes(healthy=False) == ["store"]
    assert codes(quarantined=[3, 4]) == ["quarantined"]
    assert codes(Figures([0, 60, 40])) == ["few_labels"]
    assert codes(Figures([0, 0, 6, 94]), labels_per_item=3) == ["few_labels"]
    assert codes(Figures([0, 0, 6, 94]), labels_per_item=2) == []
    assert codes(Figures([0, 0, 5, 95]), labels_per_item=3) == []
    turned = [{"worker": "w", "says": "Changed at chunk 4.", "since": 4}]
    assert codes(turned=turned) == ["worker_turned"]


def test_few_labels_are_not_told_of_a_stream_that_stands_still():
    assert codes(Figures([0, 60, 40], moved_at=NOW - 3500)) == ["few_labels"]
    assert codes(Figures([0, 60, 40], moved_at=NOW - 3700)) == []


def test_a_chunk_that_is_set_aside_is_told_in_the_summary(running, admin, stream):
    store, name = running.store, admin.get(stream).json()["name"]
    learn = store.learner.learn

    def poisoned(work):
        if any("poison" in row.item for row in work.labels):
            raise ValueError("it is poison")
        return learn(work)

    store.learner.learn = poisoned
    try:
        rows = [
            {"task": task, "worker": worker, "label": "owl"}
            for task in ("poison", "other")
            for worker in ("ann", "bob")
        ]
        admin.post(f"{stream}/labels", json=rows)
        until(lambda: [one["state"] for one in admin.get(f"{stream}/chunks").json()["chunks"]]
              == ["quarantined"])  # fmt: skip
    finally:
        store.learner.learn = learn
    reply = admin.get(f"{stream}/summary").json()
    assert [(one["code"], one["since"]) for one in reply["warnings"]] == [("quarantined", 1)]
    assert reply["name"] == name and reply["last_chunks"][0]["state"] == "quarantined"


# ── the worker table ─────────────────────────────────────────────────────────────────────


class Hub:
    def __init__(self):
        self.notes = []

    def note(self, *said):
        self.notes.append(said)


class Moving:
    """A stream whose model moves; its worker table takes no rest."""

    ref, version, n = SimpleNamespace(key=1), 1, 0

    def model_version(self):
        return self.version

    def worker_table(self):
        self.n += 1
        return self.version, [], 0


class Tables:
    """What `Service.worker_table` needs of a service."""

    worker_table = Service.worker_table

    def __init__(self, stale):
        self.hub = Hub()
        self.worker_tables = Cache(2, 0.0, 0.0, stale=stale)

    async def ask(self, stream, question):
        return question()


@pytest.fixture
def moving():
    return Moving()


def test_a_worker_table_is_renewed_in_the_background_and_only_once_the_model_has_moved(moving):
    async def look():
        service = Tables(stale=1e9)
        every = await asyncio.gather(*(service.worker_table(moving) for _ in range(10)))
        assert {one.version for one in every} == {1} and moving.n == 1
        await settled(service)
        assert moving.n == 1 and service.hub.notes == []
        moving.version = 2
        assert (await service.worker_table(moving)).version == 1  # and another is made
        await settled(service)
        assert moving.n == 2 and service.hub.notes == [(1, "workers")]
        assert (await service.worker_table(moving)).version == 2
        service.worker_tables.discard(lambda key: key == 1)
        assert (await service.worker_table(moving)).version == 2 and moving.n == 3
        await settled(service)

    async def settled(service):
        await service.worker_table(moving)
        [entry] = service.worker_tables._entries.values()
        while entry.renewing is not None:
            await entry.renewing

    asyncio.run(look())


def test_an_old_worker_table_is_not_shown_once_the_model_has_moved(moving):
    async def look():
        service = Tables(stale=0.0)
        assert (await service.worker_table(moving)).version == 1
        moving.version = 2
        assert (await service.worker_table(moving)).version == 2 and moving.n == 2
        assert (await service.worker_table(moving)).version == 2 and moving.n == 2

    asyncio.run(look())


def test_a_table_that_cannot_be_renewed_is_shown_until_the_next_attempt(moving):
    async def look():
        service = Tables(stale=0.0)
        await service.worker_table(moving)
        moving.version, ask = 2, service.ask

        async def fail(stream, question):
            raise StateError("no")

        service.ask = fail
        assert (await service.worker_table(moving)).version == 1
        service.ask = ask
        assert (await service.worker_table(moving)).version == 2

    asyncio.run(look())


def test_a_failing_renewal_is_not_tried_at_every_request():
    async def look():
        clock, n, old, fails, version = Clock(), count(1), object(), True, 1

        async def make():
            next(n)
            if fails:
                raise StateError("no")
            return old

        cache = Cache(2, 2.0, 0.0, stale=10.0, clock=clock)

        async def get():
            given = await cache.get("a", make, lambda: version)
            await asyncio.sleep(0.01)  # for the one in the background
            return given

        fails = False
        await get()
        fails, version, clock.time = True, 2, clock.time + 4
        assert [await get() for _ in range(5)] == [(old, 4)] * 5
        assert next(n) == 3  # made once, tried once
        fails, clock.time = False, clock.time + 2.5
        assert await get() == (old, 7) and await get() == (old, 0)
        assert next(n) == 5

    asyncio.run(look())


def test_what_takes_longer_than_a_request_waits_is_made_in_the_background(monkeypatch):
    monkeypatch.setattr("labelquorum.server.cache.PATIENCE_SECONDS", 0.05)

    async def look():
        cache, version, making = Cache(2, 0.0, 0.0, stale=0.0), 1, Making()

        async def get():
            return await cache.get("a", making, lambda: version)

        making.may_end.clear()
        for _ in range(2):
            with pytest.raises(ApiError, match="still being computed") as error:
                await get()
            assert error.value.status == 503 and error.value.headers["Retry-After"] == "1"
        making.may_end.set()
        assert await get() == (b"1", 0) and making.n == 1
        making.may_end.clear()
        version = 2
        assert await get() == (b"1", 1) and await get() == (b"1", 1)
        making.may_end.set()
        assert await get() == (b"2", 0) and making.n == 2

    asyncio.run(look())


def test_what_is_being_made_is_never_dropped_and_the_end_of_the_service_is_a_503():
    async def look():
        cache, making = Cache(1, 0.0, 0.0, stale=0.0), Making()
        making.may_end.clear()
        slow = [asyncio.create_task(cache.get("slow", making)) for _ in range(2)]
        await asyncio.sleep(0.01)
        other = asyncio.create_task(cache.get("other", making))
        await asyncio.sleep(0.01)
        assert set(cache._entries) == {"slow", "other"}
        making.may_end.set()
        assert (await asyncio.gather(*slow))[0] == (b"1", 0) and (await other).value == b"2"
        await cache.get("third", making)
        assert set(cache._entries) == {"third"}
        making.may_end.clear()
        last = asyncio.create_task(cache.get("last", making))
        await asyncio.sleep(0.01)
        cache.close()
        with pytest.raises(ApiError) as error:
            await last
        assert error.value.status == 503

    asyncio.run(look())


def test_many_values_of_one_stream_drop_none_of_another():
    async def look():
        cache, making = Cache(10, 1e9, 0.0, stale=0.0, share=3), Making()
        for key in [("one", 1), *(("two", limit) for limit in range(20))]:
            await cache.get(key, making)
        assert list(cache._entries) == [("one", 1), ("two", 17), ("two", 18), ("two", 19)]

    asyncio.run(look())


def test_events_announce_a_new_worker_table(running, admin, stream, monkeypatch):
    monkeypatch.setattr(running.app.service.worker_tables, "ttl", 0.0)
    monkeypatch.setattr(running.app.service.worker_tables, "rest", 0.0)
    viewer = Viewer(running.client("read"), stream)
    until(lambda: viewer.comments)
    answer_one_chunk(admin, stream, 0)
    viewer.wait(1)
    assert viewer.events[0]["data"]["kind"] == "applied"

    def heard():
        answer_one_chunk(admin, stream, heard.n)
        heard.n += 1
        admin.get(f"{stream}/workers", params={"brief": True})
        return [event for event in viewer.events if event["event"] == "workers"]

    heard.n = 1
    [note, *_] = until(heard)
    assert note["data"] == {"kind": "workers"}
    again = [e for e in viewer.events if e["event"] == "applied"]
    assert [json.dumps(e["data"]["chunk"]) for e in again] == [
        str(n + 1) for n in range(len(again))
    ]


# ── what was made a moment ago ───────────────────────────────────────────────────────────────

STALE = {"Cache-Control": "no-transform, Max-Stale"}


@pytest.fixture
def held_long(monkeypatch):
    monkeypatch.setattr(context, "MAX_STALE_SECONDS", 600.0)


def test_who_says_so_is_given_what_was_made_before_with_its_age(held_long, admin, stream):
    before = admin.get(f"{stream}/summary")
    assert "Age" not in before.headers
    answer_one_chunk(admin, stream, 1)
    until(lambda: admin.get(stream).json()["counts"]["answered_items"] == 2)
    old = admin.get(f"{stream}/summary", headers=STALE)
    assert old.content == before.content and int(old.headers["Age"]) >= 1
    for headers in ({"Cache-Control": "max-stale=0"}, {}):
        new = admin.get(f"{stream}/summary", headers=headers)
        assert new.json()["counts"]["answered_items"] == 2 and "Age" not in new.headers


def test_who_was_forgotten_is_not_in_what_was_made_before(held_long, admin, stream):
    answer_one_chunk(admin, stream, 1)
    until(lambda: admin.get(stream).json()["counts"]["answered_items"] == 2)
    about = {"sort": "labels", "brief": "true"}
    reply = admin.get(f"{stream}/workers", params=about).json()
    assert {one["worker"] for one in reply["workers"]} == {"ann", "bob"}
    assert admin.delete(f"{stream}/workers/bob").status_code == 200
    reply = admin.get(f"{stream}/workers", params=about, headers=STALE).json()
    assert {one["worker"] for one in reply["workers"]} == {"ann"}


def test_a_new_stream_is_among_all_at_once_and_tells_its_classes(held_long, admin, stream):
    admin.get("/v1/streams", params={"full": "true"})
    made = admin.post(
        "/v1/streams", json={"name": "newborn", "settings": {"classes": [True, False]}}
    )
    assert admin.get("/v1/streams/newborn").json()["classes"] == made.json()["classes"]
    reply = admin.get("/v1/streams", params={"full": "true"}, headers=STALE).json()
    assert "newborn" in reply["streams"]
