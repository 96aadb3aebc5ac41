"""Many senders, one store."""

import asyncio
import threading
import time

import pytest

from labelquorum.errors import ConflictError, StoreError
from labelquorum.evaluation import class_conditional_crowd, label_table
from labelquorum.server import learning_loop as loop_module
from labelquorum.server import write_queue as queue_module
from labelquorum.server.write_queue import BusyError, WriteQueue
from labelquorum.store.batch import Submission
from labelquorum.store.rules import Rules
from labelquorum.store.store import Store

RULES = Rules(
    labels_per_item=3,
    chunk_items=5,
    max_wait=None,
    max_chunk_wait=0.0,
    retention="discard",
    grace=0,
)


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "store") as opened:
        yield opened


def rows():
    table = label_table(class_conditional_crowd(20, 6, 3, labels_per_item=3, seed=3))
    return list(zip(table.item_ids, table.worker_ids, table.labels, strict=True))


def test_labels_of_many_senders_are_durable_and_answered(store):
    stream, reply = store.create("s", rules=RULES), threading.Event()

    def on_change(name):
        if len(stream.answers()) == 20:
            reply.set()

    async def send(queue):
        batches = [
            stream.prepare(Submission({task: {worker: label}}, key=f"{task} {worker}"))
            for task, worker, label in rows()
        ]
        return await asyncio.gather(*(queue.accept(stream, one) for one in batches))

    with WriteQueue(store) as queue:
        queue.loop.on_change = on_change
        receipts = asyncio.run(send(queue))
        assert reply.wait(60)
    assert sum(one.accepted for one in receipts) == 60
    assert stream.count()["held_labels"] == 0
    assert queue.loop.behind(stream.ref.key) == 0 and queue.healthy


def test_a_refusal_is_one_senders_alone(store):
    stream = store.create("s", rules=RULES)

    async def send(queue):
        first, other = (stream.prepare(Submission({"t": {"a": x}}, key="k")) for x in (0, 1))
        return await asyncio.gather(
            queue.accept(stream, first),
            queue.accept(stream, other),
            queue.accept(stream, first),
            return_exceptions=True,
        )

    with WriteQueue(store) as queue:
        taken, refused, again = asyncio.run(send(queue))
    assert taken.accepted == 1 and not taken.repeated
    assert isinstance(refused, ConflictError)
    assert again.repeated


def batch(stream, worker):
    return stream.prepare(Submission({"t": {worker: 0}}))


def test_a_full_queue_refuses_and_what_it_holds_is_written_at_the_end(store, monkeypatch):
    monkeypatch.setattr(queue_module, "MAX_QUEUED_LABELS", 2)
    stream, queue = store.create("s", rules=RULES), WriteQueue(store)

    async def send():
        sent = [queue.submit(stream, batch(stream, worker)) for worker in "ab"]
        with pytest.raises(BusyError, match="2 labels wait to be written"):  # it was not started
            queue.submit(stream, batch(stream, "c"))
        queue.start()
        queue.stop()
        with pytest.raises(BusyError, match="stopping"):
            queue.submit(stream, batch(stream, "c"))
        return [await one for one in sent]

    assert [one.accepted for one in asyncio.run(send())] == [1, 1]


def test_a_stream_far_behind_takes_no_more(store, monkeypatch):
    monkeypatch.setattr(queue_module, "MAX_CHUNKS_BEHIND", -1)
    stream = store.create("s", rules=RULES)
    with pytest.raises(BusyError, match="chunks to learn from"):
        asyncio.run(WriteQueue(store).accept(stream, batch(stream, "c")))


def test_a_store_that_refuses_is_told_to_every_sender(store, monkeypatch):
    stream, queue = store.create("s", rules=RULES), WriteQueue(store)

    def refuse(self):
        raise StoreError("no")

    async def send():
        sent = [queue.submit(stream, batch(stream, worker)) for worker in "ab"]
        queue.start()
        queue.stop()
        return [await one for one in sent]

    monkeypatch.setattr(Store, "write", refuse)
    assert [str(one) for one in asyncio.run(send())] == ["no", "no"]
    assert not queue.healthy


def test_a_sender_whose_loop_is_gone_keeps_no_other_waiting(store):
    stream, queue = store.create("s", rules=RULES), WriteQueue(store)

    async def leave():
        queue.submit(stream, batch(stream, "a"))

    asyncio.run(leave())
    with queue:
        assert asyncio.run(queue.accept(stream, batch(stream, "b"))).accepted == 1
    assert stream.item("t").n_labels == 2


def test_a_store_that_takes_writes_again_is_found_out_without_a_sender(store, monkeypatch):
    for module in (queue_module, loop_module):
        monkeypatch.setattr(module, "POLL_SECONDS", 0.01)
    queue = WriteQueue(store)
    queue.writes = queue.loop.healthy = False
    assert not queue.healthy
    with queue:
        for _ in range(500):
            if queue.healthy:
                break
            time.sleep(0.02)
    assert queue.healthy


def test_items_that_have_waited_long_enough_are_answered_without_another_label(store, monkeypatch):
    monkeypatch.setattr(loop_module, "POLL_SECONDS", 0.05)
    reply = threading.Event()
    stream = store.create("s", rules=Rules(max_wait=0.1, max_chunk_wait=0.0))
    stream.accept({"t": {"a": 0}})
    queue = WriteQueue(store)
    queue.loop.on_change = lambda name: reply.set()
    with queue:
        assert reply.wait(60)
    assert [one.item_id for one in stream.answers()] == ["t"]


def test_learning_goes_on_after_the_streams_could_not_be_looked_at(store, monkeypatch):
    stream, reply = store.create("s", rules=RULES), threading.Event()
    monkeypatch.setattr(loop_module, "RETRY_SECONDS", 0.01)
    whole, faults = store.unsettled, [TimeoutError("no connection is free")]

    def unsettled():
        if faults:
            raise faults.pop()
        return whole()

    monkeypatch.setattr(store, "unsettled", unsettled)
    stream.accept({task: {worker: label} for task, worker, label in rows()[:1]})
    stream.change(labels_per_item=1)
    with WriteQueue(store) as queue:
        queue.loop.on_change = lambda name: reply.set()
        assert reply.wait(30) and not faults


def test_who_forgets_and_who_learns_do_not_learn_the_same_chunk_twice(store):
    stream, learned, here = store.create("s", rules=RULES), [], store.learner.learn
    for task, worker, label in rows():
        stream.accept({task: {worker: label}})
    while stream.cut():
        pass

    def learn(work):
        learned.append(work.chunk)
        return here(work)

    store.learner.learn = learn
    others = [threading.Thread(target=store.stream("s").settle) for _ in range(2)]
    for other in others:
        other.start()
    stream.forget(rows()[0][1])
    for other in others:
        other.join()
    assert learned == sorted(set(learned))
