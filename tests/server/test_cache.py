"""What many look at is made once for all; how fast labels come; what needs a person."""

import asyncio
import io
import json
from collections import deque
from itertools import count

import pytest
from server.routes.test_events import Viewer, answer_one_chunk
from server.served import until

from labelquorum.server.alerts import alarms
from labelquorum.server.cache import LONGEST, OLDEST, Board, Boards, Shared
from labelquorum.server.logging import Log
from labelquorum.server.throughput import Look, Pace
from labelquorum.store.rules import Rules


class Clock:
    def __init__(self):
        self.time = 0.0

    def __call__(self):
        return self.time


@pytest.fixture
def clock():
    return Clock()


async def given(shared, *asked, **how):
    return (await shared.answer(*asked, **how)).body


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


def test_an_answer_is_made_once_until_something_happens(clock):
    changes = [0]
    shared = Shared(lambda stream: changes[0], clock)

    async def look():
        making = Making()
        assert [await given(shared, "s", "a", making) for _ in range(3)] == [b"1"] * 3
        assert await given(shared, "s", "another", making) == b"2"
        changes[0] += 1
        assert await given(shared, "s", "a", making) == b"3"
        clock.time += OLDEST
        assert await given(shared, "s", "a", making) == b"4"

    asyncio.run(look())


def test_what_takes_long_to_make_rests_as_many_times_as_long(clock, monkeypatch):
    shared, rests = Shared(lambda stream: round(clock.time * 1000), clock), []

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
            await given(shared, "s", "a", make)

    asyncio.run(look())
    assert rests == [pytest.approx(2.9), pytest.approx(3.0)]


def test_what_rests_is_given_at_once_where_nothing_happened_or_what_is_held_will_do(clock):
    changes = [0]
    shared = Shared(lambda stream: changes[0], clock)

    async def look():
        numbers = count()

        async def make():
            clock.time += 0.1
            return b"%d" % next(numbers)

        first = await given(shared, "s", "a", make)
        clock.time += 2.0
        assert await given(shared, "s", "a", make) == first
        changes[0] += 1
        assert await given(shared, "s", "a", make, stale=LONGEST) == first
        clock.time += LONGEST
        assert await given(shared, "s", "a", make, stale=LONGEST) != first
        held = await given(shared, "s", "a", make)
        shared.forget("another")
        assert await given(shared, "s", "a", make) == held
        shared.forget("s")
        assert await given(shared, "s", "a", make, stale=LONGEST) != held

    asyncio.run(look())


def test_a_hundred_who_ask_at_once_are_given_one_answer(clock):
    shared = Shared(lambda stream: 0, clock)

    async def look():
        making = Making()
        making.may_end.clear()
        asked = [asyncio.create_task(given(shared, "s", "a", making)) for _ in range(100)]
        await asyncio.sleep(0)
        making.may_end.set()
        assert set(await asyncio.gather(*asked)) == {b"1"} and making.n == 1

    asyncio.run(look())


def test_who_asks_after_something_happened_is_not_given_what_was_begun_before_it(clock):
    changes = [0]
    shared = Shared(lambda stream: changes[0], clock)

    async def look():
        making = Making()
        making.may_end.clear()
        early = asyncio.create_task(given(shared, "s", "a", making))
        await asyncio.sleep(0)
        clock.time += 0.001
        changes[0] += 1
        late = asyncio.create_task(given(shared, "s", "a", making))
        await asyncio.sleep(0)
        making.may_end.set()
        assert await asyncio.gather(early, late) == [b"1", b"2"]

    asyncio.run(look())


def test_an_answer_that_cannot_be_made_is_an_error_for_who_asked_and_made_for_the_next(clock):
    shared = Shared(lambda stream: 0, clock)

    async def fail():
        raise RuntimeError("no")

    async def look():
        with pytest.raises(RuntimeError):
            await given(shared, "s", "a", fail)
        assert await given(shared, "s", "a", Making()) == b"1"

    asyncio.run(look())


def test_the_pace_of_a_stream_is_that_of_its_last_seconds():
    pace = Pace(dict, Log())
    assert pace.labels_per_second("s") == 0 and pace.spark("s") == [0] * 60
    for second in range(100):
        pace.note(float(second), {"s": (second * second, second // 10)})
    assert pace.labels_per_second("s") == pytest.approx((99**2 - 89**2) / 10)
    spark = pace.spark("s")
    assert len(spark) == 60 and spark[-1] == 99**2 - 98**2 and spark[0] == 40**2 - 39**2
    assert pace.grew("s") == 9 - 3 and pace.grew("nobody") == 0


def test_the_pace_is_told_while_another_look_is_noted():
    pace = Pace(dict, Log())

    class Watched(Look):
        """While it is looked at, another thread notes one more."""

        def __getattribute__(self, name):
            if name == "at":
                pace.note(100.0, {"s": (100, 0)})
            return super().__getattribute__(name)

    pace._seen["s"] = deque([Watched(0.0, 0, 0), Watched(90.0, 90, 0), Look(92.0, 100, 0)])
    assert pace.labels_per_second("s") == 5


def test_the_pace_goes_on_after_a_look_that_failed(monkeypatch):
    from labelquorum.server import throughput as module

    monkeypatch.setattr(module, "PERIOD", 0.0)
    lines, n_looks = io.StringIO(), 0

    def look():
        nonlocal n_looks
        n_looks += 1
        if n_looks == 1:
            raise RuntimeError("the dictionary changed")
        return {"s": (n_looks, 0)}

    async def follow():
        pace = Pace(look, Log(lines))
        following = asyncio.create_task(pace.follow())
        while not pace._seen and not following.done():
            await asyncio.sleep(0.001)
        following.cancel()
        assert pace._seen["s"][0].rows == 2

    asyncio.run(follow())
    assert "the dictionary changed" in lines.getvalue()


class Figures:
    """What `alarms` asks of a tally."""

    def __init__(self, depth=(), lost=(), moved_at=None):
        self.depth, self._lost, self.moved_at = list(depth), list(lost), moved_at

    def lost(self):
        return self._lost


NOW = 1.7e9


def codes(figures=None, behind=0, grew=0, quarantined=(), turned=(), healthy=True, **rules):
    told = (behind, grew, quarantined, turned, healthy, NOW)
    found = alarms(figures or Figures(), Rules(**rules), *told)
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
    turned = [{"worker": "w", "says": "Since chunk 4 he is another.", "since": 4}]
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
    told = admin.get(f"{stream}/summary").json()
    assert [(one["code"], one["since"]) for one in told["warnings"]] == [("quarantined", 1)]
    assert told["name"] == name and told["last_chunks"][0]["state"] == "quarantined"


# ── the board ────────────────────────────────────────────────────────────────────────────


class Hub:
    def __init__(self):
        self.notes = []

    def note(self, *said):
        self.notes.append(said)


class Asked:
    """A stream whose model moves, and a learner that counts how often it is asked."""

    def __init__(self, monkeypatch):
        from labelquorum.server import cache

        self.name, self.n, self.version = "s", 0, 1
        monkeypatch.setattr(cache, "model_version", lambda stream: stream.version)
        monkeypatch.setattr(cache, "BOARD_SECONDS", 0.0)
        monkeypatch.setattr(cache, "BOARD_REST", 0.0)

    async def ask(self, question, stream):
        self.n += 1
        return Board(stream.version, [], 0)


def test_a_board_is_made_anew_beside_and_only_once_the_model_has_moved(monkeypatch):
    asked, hub = Asked(monkeypatch), Hub()

    async def look():
        boards = Boards(asked.ask, hub)
        every = await asyncio.gather(*(boards.of(asked) for _ in range(10)))
        assert {one.version for one in every} == {1} and asked.n == 1
        await settled(boards)
        assert asked.n == 1 and hub.notes == []
        asked.version = 2
        assert (await boards.of(asked)).version == 1  # and another is made
        await settled(boards)
        assert asked.n == 2 and hub.notes == [("s", "workers")]
        assert (await boards.of(asked)).version == 2
        boards.forget("s")
        assert (await boards.of(asked)).version == 2 and asked.n == 3
        await settled(boards)

    async def settled(boards):
        await boards.of(asked)
        while boards._held["s"].renewing is not None:
            await boards._held["s"].renewing

    asyncio.run(look())


def test_a_board_that_is_old_is_not_shown_once_the_model_has_moved(monkeypatch):
    from labelquorum.server import cache as module

    asked = Asked(monkeypatch)
    monkeypatch.setattr(module, "BOARD_OLD", 0.0)

    async def look():
        boards = Boards(asked.ask, Hub())
        assert (await boards.of(asked)).version == 1
        asked.version = 2
        assert (await boards.of(asked)).version == 2 and asked.n == 2
        assert (await boards.of(asked)).version == 2 and asked.n == 2

    asyncio.run(look())


def test_boards_at_which_nobody_looks_are_let_go(monkeypatch):
    from labelquorum.server import cache as module

    asked = Asked(monkeypatch)
    monkeypatch.setattr(module, "MAX_BOARDS", 2)

    async def look():
        boards = Boards(asked.ask, Hub())
        for asked.name in ("a", "b", "a", "c"):
            await boards.of(asked)
        assert list(boards._held) == ["a", "c"]

    asyncio.run(look())


def test_who_follows_events_hears_of_a_new_board(running, admin, stream, monkeypatch):
    from labelquorum.server import cache

    monkeypatch.setattr(cache, "BOARD_SECONDS", 0.0)
    monkeypatch.setattr(cache, "BOARD_REST", 0.0)
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
    monkeypatch.setattr("labelquorum.server.cache.LONGEST", 600.0)


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
    told = admin.get(f"{stream}/workers", params=about).json()
    assert {one["worker"] for one in told["workers"]} == {"ann", "bob"}
    assert admin.delete(f"{stream}/workers/bob").status_code == 200
    told = admin.get(f"{stream}/workers", params=about, headers=STALE).json()
    assert {one["worker"] for one in told["workers"]} == {"ann"}


def test_a_new_stream_is_among_all_at_once_and_tells_its_classes(held_long, admin, stream):
    admin.get("/v1/streams", params={"full": "true"})
    made = admin.post(
        "/v1/streams", json={"name": "newborn", "settings": {"classes": [True, False]}}
    )
    assert admin.get("/v1/streams/newborn").json()["classes"] == made.json()["classes"]
    told = admin.get("/v1/streams", params={"full": "true"}, headers=STALE).json()
    assert "newborn" in told["streams"]
