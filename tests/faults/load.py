"""A client that sends labels as fast as they are accepted, and sees how fast they are learned."""

import json
import random
import selectors
import sqlite3
import time
from pathlib import Path

import psycopg
from faults.source import CLASSES

BATCH, CHUNK_ITEMS, LABELS_PER_ITEM = 100, 200, 3
CHUNK_LABELS = CHUNK_ITEMS * LABELS_PER_ITEM
RULES = {"labels_per_item": LABELS_PER_ITEM, "chunk_items": CHUNK_ITEMS}
CONNECTIONS = 16
N_BODIES = 900  # different ones; sent again, their tasks have other names
MAX_LAG = 40  # chunks; beyond, nothing is sent until some are learned from
KEPT_UP = 4  # chunks; with fewer to learn from, learning keeps up


def bodies(seed=0):
    """Bodies of 100 labels each; those of a task are spread over those of 300 others."""
    chance, rows = random.Random(seed), []
    for start in range(0, N_BODIES * BATCH // LABELS_PER_ITEM, 300):
        block = []
        for item in range(start, start + 300):
            truth, first = chance.choice(CLASSES), chance.randrange(1000)
            for place in range(LABELS_PER_ITEM):
                label = truth if chance.random() < 0.7 else chance.choice(CLASSES)
                worker = f"worker{(first + 7 * place) % 1000}"
                block.append({"task": f"task@{item}", "worker": worker, "label": label})
        rows += chance.sample(block, len(block))
    return [json.dumps(rows[k : k + BATCH]).encode() for k in range(0, len(rows), BATCH)]


class Load:
    """One thread with some connections to a service, each with one request under way.

    How many chunks were learned from is read from the database itself, which asks nothing of the
    service.
    """

    def __init__(self, service, where, stream):
        if "://" in where:
            self._database = psycopg.connect(where, autocommit=True)
        else:
            file = f"file:{Path(where) / 'labelquorum.db'}?mode=ro"
            self._database = sqlite3.connect(file, uri=True)
        self._head = (
            f"POST /v1/streams/{stream}/labels HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Authorization: Bearer {service.key}\r\nContent-Type: application/json\r\n"
        )
        self._bodies, self._ready = bodies(), selectors.DefaultSelector()
        self._free = [service.connect() for _ in range(CONNECTIONS)]
        for connection in self._free:
            self._ready.register(connection, selectors.EVENT_READ)
        self._number = self.accepted = self.refused = 0
        self._looked, self._learned = 0.0, 0

    def _request(self):
        turn, place = divmod(self._number, N_BODIES)
        self._number += 1
        body = self._bodies[place].replace(b"@", b"%d-" % turn)
        own = f"Idempotency-Key: {self._number}\r\nContent-Length: {len(body)}\r\n\r\n"
        return (self._head + own).encode() + body

    def lag(self, seconds=0.02):
        """Chunks that are acknowledged and not learned from, looked up this often at most."""
        if time.monotonic() - self._looked > seconds:
            [found] = self._database.execute("SELECT max(version) FROM models").fetchone()
            self._learned, self._looked = found, time.monotonic()
        return self.accepted / CHUNK_LABELS - self._learned

    def send(self, seconds):
        """Send for this many seconds; then wait until under 4 chunks are left to learn from."""
        begin, before, waits, took = time.monotonic(), self.accepted, {}, []
        while (going := time.monotonic() < begin + seconds) or waits:
            while going and self._free and self.lag() < MAX_LAG:
                connection = self._free.pop()
                connection.sendall(self._request())
                waits[connection] = time.monotonic()
            for key, _ in self._ready.select(0.002):
                connection, answer = key.fileobj, key.fileobj.recv(65536)
                if not answer.endswith(b"}"):  # the head alone
                    answer += connection.recv(65536)
                took.append(time.monotonic() - waits.pop(connection))
                self._free.append(connection)
                if answer.startswith(b"HTTP/1.1 200"):
                    self.accepted += BATCH
                else:
                    self.refused += 1
        behind, first, versions = self.lag(0.0), self._learned, set()
        while self.lag(0.0) >= KEPT_UP:
            versions.add(self._learned)
            time.sleep(0.002)
        return {
            "labels per second": (self.accepted - before) / (time.monotonic() - begin),
            "p99 of a batch, ms": 1000 * sorted(took)[len(took) * 99 // 100],
            "chunks behind at the last label": behind,
            "seconds until learned": time.monotonic() - begin - seconds,
            "chunks per commit": (self._learned - first) / max(len(versions), 1),
        }

    def close(self):
        for key in list(self._ready.get_map().values()):
            key.fileobj.close()
        self._ready.close()
        self._database.close()
