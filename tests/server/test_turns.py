"""Streams take turns, and who has gone away takes no place."""

import asyncio
import time

import pytest

from labelquorum.server import turns
from labelquorum.server.errors import ApiError
from labelquorum.server.learner_process import EndedError
from labelquorum.server.turns import Turns, in_thread
from labelquorum.store.learner import read_until


class Working:
    """Work that is noted when it begins, and ends when it may."""

    def __init__(self):
        self.begun, self.may_end = [], asyncio.Event()

    def ask(self, places, stream, name):
        async def work():
            self.begun.append(name)
            await self.may_end.wait()
            return name

        return asyncio.create_task(places.run(stream, work))


async def settled():
    for _ in range(20):
        await asyncio.sleep(0)


def test_streams_that_wait_are_served_in_turn():
    async def look():
        places, working = Turns(1, 1), Working()
        asked = [working.ask(places, 1, f"one {n}") for n in range(4)]
        asked += [working.ask(places, 2, f"two {n}") for n in range(2)]
        await settled()
        assert working.begun == ["one 0"]
        working.may_end.set()
        await asyncio.gather(*asked)
        assert working.begun == ["one 0", "one 1", "two 0", "one 2", "two 1", "one 3"]

    asyncio.run(look())


def test_a_stream_takes_no_more_places_than_it_may():
    async def look():
        places, working = Turns(3, 2), Working()
        asked = [working.ask(places, 1, f"one {n}") for n in range(3)]
        asked.append(working.ask(places, 2, "two"))
        await settled()
        assert working.begun == ["one 0", "one 1", "two"]
        working.may_end.set()
        assert await asyncio.gather(*asked) == ["one 0", "one 1", "one 2", "two"]

    asyncio.run(look())


def test_who_goes_away_leaves_the_queue_and_keeps_the_place_of_what_has_begun():
    async def look():
        places, working = Turns(1, 1), Working()
        asked = [working.ask(places, 1, n) for n in range(3)]
        await settled()
        for gone in asked[:2]:
            gone.cancel()
        await settled()
        assert working.begun == [0]  # which still works
        working.may_end.set()
        assert await asked[2] == 2 and working.begun == [0, 2]

    asyncio.run(look())


def test_a_stream_that_waits_too_often_is_refused_and_others_are_not(monkeypatch):
    monkeypatch.setattr(turns, "MAX_WAITING_PER_STREAM", 2)

    async def look():
        places, working = Turns(1, 1), Working()
        asked = [working.ask(places, 1, n) for n in range(3)]
        await settled()
        with pytest.raises(ApiError, match="Retry in a second") as error:
            await working.ask(places, 1, "too many")
        assert error.value.status == 503 and "Retry-After" in error.value.headers
        asked.append(working.ask(places, 2, "another"))
        asked[1].cancel()
        await settled()
        asked.append(working.ask(places, 1, "after one has gone"))
        await settled()
        working.may_end.set()
        await asyncio.wait(asked)
        assert working.begun == [0, 2, "another", "after one has gone"]

    asyncio.run(look())


def test_an_error_gives_the_place_back_and_a_learner_that_died_is_a_503():
    def die():
        raise EndedError("the learner ended")

    async def look():
        places = Turns(1, 1)
        for _ in range(2):
            with pytest.raises(ApiError, match="the learner ended") as error:
                await places.run(1, lambda: in_thread(die))
            assert error.value.status == 503

    asyncio.run(look())


def test_an_error_of_our_own_is_no_learner_that_died():
    def fail():
        raise RuntimeError("dictionary changed size during iteration")

    with pytest.raises(RuntimeError, match="changed size"):
        asyncio.run(in_thread(fail))


def test_work_whose_deadline_passed_while_it_waited_is_not_done():
    done = []

    async def look():
        read_until.set(time.monotonic() - 0.1)
        with pytest.raises(TimeoutError):
            await Turns(1, 1).run(1, lambda: in_thread(done.append, 1))

    asyncio.run(look())
    assert not done
