"""A service under everything at once: labels, renames, true labels, forgetting, and kills.

At its end each stream holds what was acknowledged, and the recorded cuts, given to a fresh store
one by one with the true labels and the workers forgotten in between, end in the same state.
"""

import random
import signal
import tempfile
import threading
import time
from collections import Counter

import httpx
import pytest
import sqlalchemy as sa
from faults.service import Service
from faults.source import CLASSES, RULES, opened

from labelquorum.ingest.labels import LabelTable
from labelquorum.store.batch import decode
from labelquorum.store.database import schema
from labelquorum.store.store import Store

pytestmark = pytest.mark.kill

N_WORKERS, TASKS_PER_BATCH = 12, 20
NAMES = {"s": ("s", "renamed"), "other": ("other",)}
SOAK_RULES = RULES.changed(chunk_items=50, retention="keep")


class Soak:
    """Clients of one service, and what was acknowledged to them."""

    def __init__(self, service):
        self.service, self.stopped, self.failed = service, threading.Event(), []
        self.http = httpx.Client(
            base_url=service.url,
            headers={"Authorization": f"Bearer {service.key}"},
            timeout=60,
            trust_env=False,
        )
        self.sent = {"s": {}, "other": {}}  # rows by key
        self.forgotten, self.gold, self.renames = {}, {}, 0
        self._lock = threading.Lock()

    def ask(self, method, stream, path, **request):
        """Ask until it is done, under each of the stream's names in turn."""
        turn = 0
        while True:
            name = NAMES[stream][turn % len(NAMES[stream])]
            turn += 1
            try:
                reply = self.http.request(method, f"/v1/streams/{name}{path}", **request)
            except httpx.TransportError:  # it is being killed
                time.sleep(0.05)
                continue
            if reply.status_code in (404, 429, 503) and not self.stopped.wait(0.02):
                continue
            return reply

    def send(self, stream, seed):
        chance, number = random.Random(f"{stream} {seed}"), 0
        while not self.stopped.is_set():
            number += 1
            gone = set(self.forgotten)
            crowd = [w for w in range(N_WORKERS) if f"w{w}" not in gone]
            rows = []
            for task in range(TASKS_PER_BATCH):
                truth = chance.choice(CLASSES)
                for worker in chance.sample(crowd, 3):
                    label = truth if chance.random() < 0.75 else chance.choice(CLASSES)
                    rows.append((f"{seed}-{number}-{task}", f"w{worker}", label))
            key = f"{stream} {seed} {number}"
            body = [dict(zip(("task", "worker", "label"), row, strict=True)) for row in rows]
            head = {"Idempotency-Key": key}
            for _ in range(1 + (number % 3 == 0)):  # some of it twice
                reply = self.ask("POST", stream, "/labels", json=body, headers=head)
                if reply.status_code != 200:
                    return  # it is over
                self.sent[stream][key] = rows
            time.sleep(chance.random() * 0.05)

    def rename(self):
        current = 0
        while not self.stopped.wait(0.7):
            names = NAMES["s"]
            try:
                reply = self.http.patch(
                    f"/v1/streams/{names[current]}", json={"name": names[1 - current]}
                )
            except httpx.TransportError:
                reply = None
            if reply is None or reply.status_code == 404:  # it may have been done
                current = 1 - current
            elif reply.status_code == 200:
                current, self.renames = 1 - current, self.renames + 1

    def tell(self):
        chance = random.Random(7)
        while not self.stopped.wait(0.9):
            with self._lock:
                tasks = sorted({row[0] for rows in list(self.sent["s"].values()) for row in rows})
            some = {t: chance.choice(CLASSES) for t in chance.sample(tasks, min(5, len(tasks)))}
            some = {task: truth for task, truth in some.items() if task not in self.gold}
            if some and self.ask("POST", "s", "/gold", json=some).status_code == 200:
                self.gold |= some

    def forget(self, worker):
        while self.ask("GET", "s", f"/workers/{worker}").status_code != 200:
            time.sleep(0.1)  # until it was learned from
        self.forgotten[worker] = True  # from now on it is not drawn again
        while (reply := self.ask("DELETE", "s", f"/workers/{worker}")).status_code != 200:
            assert reply.status_code in (404, 503), reply.text
            if reply.status_code == 404:  # done before a kill, whose answer was lost
                return
            time.sleep(0.1)


def state_and_replay(where, sent, forgotten):
    """Compare a stream with what was sent; give its labels, lost, doubled, and both states."""
    with Store.open(where) as store:
        by_stream = {}
        for name in store.streams():
            stream = store.stream(name)
            stream.settle(flush=True)
            by_stream["s" if name in NAMES["s"] else name] = stream
        found = {}
        for which, stream in by_stream.items():
            found[which] = (*_kept(store, stream, sent[which], forgotten), stream.state_hash())
    return found


def _kept(store, stream, sent, forgotten):
    labels, gold, own = schema.labels.c, schema.gold.c, stream.ref.key
    with store.read() as connection:
        cells = (labels.row, labels.chunk, labels.item, labels.worker, labels.label)
        rows = {
            row.row: (row.chunk, *map(decode, row[2:]))
            for row in connection.execute(sa.select(*cells).where(labels.stream == own))
        }
        receipts = {
            row.key: decode(row.receipt)
            for row in connection.execute(
                sa.select(schema.batches).where(schema.batches.c.stream == own)
            )
        }
        truths = {}
        given = sa.select(gold.item, gold.label, gold.chunk).where(gold.stream == own)
        for item, label, chunk in connection.execute(given):
            truths.setdefault(chunk, {})[decode(item)] = decode(label)
    order = [
        (one["kind"], one["body"].get("chunk"))
        for one in stream.events(limit=10**9)
        if one["kind"] in ("applied", "forgot")
    ]
    last = {}  # the last chunk before the worker was forgotten
    for kind, chunk in order:
        last = {**last, "chunk": chunk} if kind == "applied" else {**last, "forgot": last["chunk"]}
    chunk_of = {row[1]: row[0] for row in rows.values()}
    lost = doubled = 0
    everything = {}
    for key, mine in sent.items():
        receipt = receipts.pop(key)
        assert receipt["accepted"] == len(mine), receipt
        for number, row in zip(
            range(receipt["first_row"], receipt["last_row"] + 1), mine, strict=True
        ):
            here = rows.pop(number, None)
            if here is not None:
                lost += here[1:] != row
                everything[number] = here
            elif row[1] in forgotten:
                if chunk_of.get(row[0], 10**9) <= last.get("forgot", 0):
                    everything[number] = (chunk_of[row[0]], *row)
            else:
                lost += 1
    doubled += len(rows) + len(receipts)
    return len(everything), lost, doubled, _replayed(everything, truths, order, forgotten)


def _replayed(everything, truths, order, forgotten):
    by_chunk = {}
    for _, (chunk, *row) in sorted(everything.items()):
        by_chunk.setdefault(chunk, []).append(tuple(row))
    rules = SOAK_RULES.changed(labels_per_item=10**6, chunk_items=10**6)
    with tempfile.TemporaryDirectory() as folder, Store.open(folder) as store:
        stream = opened(store, rules)
        for kind, chunk in order:
            if kind == "forgot":
                [worker] = forgotten
                stream.forget(worker)
                continue
            if chunk in truths:
                stream.gold(truths[chunk])
            if chunk in by_chunk:
                stream.accept(LabelTable(*map(list, zip(*by_chunk[chunk], strict=True))))
            stream.settle(flush=True)
        return stream.state_hash()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_soak_with_renames_gold_forgetting_and_kills_ends_as_its_replay(
    request, tmp_path, size, record_property, kind
):
    where = str(tmp_path / "store") if kind == "sqlite" else request.getfixturevalue("database")
    seconds, kills, recovery = size(8, 420), size(2, 10), []
    service = Service(where)
    request.addfinalizer(lambda: service.end(signal.SIGKILL))
    soak = Soak(service)
    for name in ("s", "other"):
        body = {
            "name": name,
            "settings": {"classes": CLASSES},
            "rules": SOAK_RULES.as_dict(),
        }
        assert soak.http.post("/v1/streams", json=body).status_code == 201
    threads = [
        *(threading.Thread(target=soak.send, args=("s", seed)) for seed in range(3)),
        threading.Thread(target=soak.send, args=("other", 9)),
        threading.Thread(target=soak.rename),
        threading.Thread(target=soak.tell),
    ]
    for thread in threads:
        thread.start()
    for number in range(kills):
        time.sleep(seconds / (kills + 1))
        if number == kills // 2:
            forgetter = threading.Thread(target=soak.forget, args=("w3",))
            forgetter.start()
            time.sleep(0.02)
        if number % 3 == 2:
            service.kill_learner()
            continue
        service.end(signal.SIGKILL)
        gone = time.monotonic()
        service.start()
        recovery.append(time.monotonic() - gone)
    time.sleep(seconds / (kills + 1))
    forgetter.join()
    soak.stopped.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    soak.http.close()
    service.end(signal.SIGTERM)
    found = state_and_replay(where, soak.sent, set(soak.forgotten))
    totals = Counter()
    for labels, lost, doubled, *_ in found.values():
        totals.update(labels=labels, lost=lost, doubled=doubled)
    for name, value in totals.items():
        record_property(name, value)
    record_property("renames", soak.renames)
    record_property("truths", len(soak.gold))
    record_property("seconds to serve again", round(max(recovery), 2))
    assert (totals["lost"], totals["doubled"]) == (0, 0)
    assert soak.renames and soak.gold
    for _, _, _, again, state in found.values():
        assert again == state
