"""What load does the service bear? A real service, a real store, loopback, one JSON object.

    python3 run.py python benchmarks/service.py [--save] [--only PART …] [--minutes N] [--quick]
    python3 run.py python benchmarks/service.py --only limit    # at which rate does it break?

Authentication, validation and updates are on, and the client runs on the same cores. Requests are
sent at a set rate, whether or not earlier ones were answered, and a latency counts from the moment
the request was due: a service that stalls cannot hide it. `--save` keeps the result in
`results/service.json`, from which `service_report.py` writes a page of the docs. Run nothing else.
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import uvloop
from engine import machine
from streams import Result, say

from labelquorum.store.batch import Submission
from labelquorum.store.rules import Rules
from labelquorum.store.store import Store

RESULT = Path(__file__).parent / "results" / "service.json"
LABELS_PER_ITEM = 3
CLASSES = ["a", "b", "c", "d"]
N_WORKERS = 1000
CONNECTIONS = 64
SINGLE_RATE, BATCH_RATE, BATCH = 2_000, 200, 100
SLOWEST_SINGLE_MS, SLOWEST_BATCH_MS, MAX_CHUNKS_BEHIND = 50, 250, 2
RATE_STEP = 1.25
SMALL_CHUNK_ITEMS = 200


# ── what is sent ─────────────────────────────────────────────────────────────────────────────


def crowd(seed: int = 0, n_workers: int = N_WORKERS) -> Iterator[dict[str, str]]:
    """Labels without end; those of an item are spread over those of some hundred others."""
    rng, item = np.random.default_rng(seed), 0
    while True:
        truth = rng.integers(len(CLASSES), size=300)
        workers = rng.integers(n_workers, size=(300, LABELS_PER_ITEM))
        wrong = rng.integers(len(CLASSES), size=workers.shape)
        said = np.where(rng.random(workers.shape) < 0.7, truth[:, None], wrong)
        for flat in rng.permutation(said.size).tolist():
            i, k = divmod(flat, LABELS_PER_ITEM)
            worker = (int(workers[i, 0]) + 7 * k) % n_workers  # never one twice
            label = CLASSES[said[i, k]]
            yield {"task": f"task{item + i}", "worker": f"worker{worker}", "label": label}
        item += 300


def requests(stream: str, key: str, batch: int, seed: int) -> Iterator[bytes]:
    """Whole requests, each under a key of its own."""
    labels = crowd(seed)
    head = (
        f"POST /v1/streams/{stream}/labels HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\n"
    )
    number = 0
    while True:
        number += 1
        some = [next(labels) for _ in range(batch)]
        body = json.dumps(some[0] if batch == 1 else some).encode()
        own = f"Idempotency-Key: {seed}-{number}\r\nContent-Length: {len(body)}\r\n\r\n"
        yield (head + own).encode() + body


class Connection(asyncio.Protocol):
    """One request after the other, each answered before the next."""

    def __init__(self) -> None:
        self._data = b""
        self._waiter: asyncio.Future[int] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, rest = self._data.partition(b"\r\n\r\n")
        if not found:
            return
        length = re.search(rb"(?i)content-length: *(\d+)", head)
        assert length is not None and self._waiter is not None
        if len(rest) >= int(length[1]):
            self._data = b""
            self._waiter.set_result(int(head[9:12]))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(0)

    async def ask(self, request: bytes) -> int:
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._waiter


async def send_at(port: int, rate: float, seconds: float, source: Iterator[bytes]) -> Result:
    """Send at this rate, and say how long the answers took since each request was due."""
    loop = asyncio.get_running_loop()
    free: asyncio.Queue[Connection] = asyncio.Queue()
    for _ in range(CONNECTIONS):
        _, connection = await loop.create_connection(Connection, "127.0.0.1", port)
        free.put_nowait(connection)
    took: list[float] = []
    statuses: dict[int, int] = {}

    async def one(due: float, request: bytes) -> None:
        connection = await free.get()
        status = await connection.ask(request)
        took.append(loop.time() - due)
        statuses[status] = statuses.get(status, 0) + 1
        free.put_nowait(connection)

    begin, number, running = loop.time(), 0, set()
    while (due := begin + number / rate) < begin + seconds:
        await asyncio.sleep(max(0.0, due - loop.time()))
        task = loop.create_task(one(due, next(source)))
        running.add(task)
        task.add_done_callback(running.discard)
        number += 1
    while running:
        await asyncio.wait(set(running))
    lasted = loop.time() - begin
    p50, p99, worst = np.quantile(took, [0.5, 0.99, 1.0])
    return {
        "requests": number,
        "refused": sum(count for status, count in statuses.items() if status != 200),
        "requests_per_second": round(number / lasted, 1),
        "p50_ms": round(1000 * p50, 2),
        "p99_ms": round(1000 * p99, 2),
        "max_ms": round(1000 * worst, 1),
    }


# ── the service ──────────────────────────────────────────────────────────────────────────────


class Service:
    """`labelquorum serve` on a store, in a subprocess."""

    def __init__(self, folder: Path) -> None:
        self.begun = time.monotonic()
        self.log = (folder.parent / f"{folder.name}.log").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "labelquorum", "serve", str(folder), "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )

    def ready(self) -> float:
        """Wait until it is ready; say how many seconds that took."""
        while time.monotonic() < self.begun + 60:
            text = Path(self.log.name).read_text()
            if found := re.search(r"127\.0\.0\.1:(\d+)", text):
                self.port = int(found[1])
                try:
                    if httpx.get(f"http://127.0.0.1:{self.port}/readyz").status_code == 200:
                        return time.monotonic() - self.begun
                except httpx.TransportError:
                    pass
            if self.process.poll() is not None:
                raise SystemExit(f"The service ended: {text}")
            time.sleep(0.02)
        raise SystemExit("The service was not ready within a minute.")

    def client(self, key: str) -> httpx.Client:
        return httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}",
            headers={"Authorization": f"Bearer {key}"},
            timeout=30,
        )

    def resident_mb(self) -> float:
        """Of the service and the processes beside it."""
        kilobytes = 0
        for pid in (self.process.pid, *self.children()):
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmRSS"):
                    kilobytes += int(line.split()[1])
        return round(kilobytes / 1024, 1)

    def cpu_seconds(self) -> list[float]:
        """Of the service, of all that answer questions to the model, and of the learner."""
        found = [0.0, 0.0, 0.0]
        for pid in (self.process.pid, *self.children()):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            role = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[-2]
            place = 0 if pid == self.process.pid else 2 if role == b"loop" else 1
            found[place] += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return found

    def children(self) -> list[int]:
        pid = self.process.pid
        return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)
        self.log.close()


def chunks_behind(client: httpx.Client) -> float:
    """Chunks that are due or cut, and not learned from yet."""
    text = client.get("/metrics").text
    found = re.search(r"^labelquorum_chunks_behind\{.*\} ([\d.]+)", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


@asynccontextmanager
async def watched(service: Service, client: httpx.Client, every: float) -> AsyncIterator[Result]:
    """Look at lag and memory every so often while a load runs."""
    seen: Result = {"behind": [], "resident_mb": []}

    async def look() -> None:
        while True:
            seen["behind"].append(await asyncio.to_thread(chunks_behind, client))
            seen["resident_mb"].append(service.resident_mb())
            await asyncio.sleep(every)

    task = asyncio.create_task(look())
    try:
        yield seen
    finally:
        task.cancel()


def measure_load(
    rate: float, batch: int, seconds: float, chunk_items: int, warm: float = 5.0
) -> Result:
    """Send labels at a rate to a service that begins with nothing, after some seconds at half."""
    with tempfile.TemporaryDirectory(prefix="labelquorum-", dir=os.environ.get("TMPDIR")) as folder:
        service = Service(Path(folder) / "store")
        key = (service.process.stdout or sys.stdin).readline().strip()
        ready = service.ready()
        with service.client(key) as client:
            rules = {"labels_per_item": LABELS_PER_ITEM, "chunk_items": chunk_items}
            made = client.post(
                "/v1/streams",
                json={"name": "load", "settings": {"classes": CLASSES}, "rules": rules},
            )
            made.raise_for_status()

            async def run() -> Result:
                # The first chunks compile; that is the learner's affair, and it is part of a start.
                source = requests("load", key, batch, seed=1)
                await send_at(service.port, rate / 2, warm, source)
                before = service.cpu_seconds()
                async with watched(service, client, max(0.5, seconds / 60)) as seen:
                    sent = await send_at(service.port, rate, seconds, source)
                used = [b - a for a, b in zip(before, service.cpu_seconds(), strict=True)]
                each = [round(1e6 * one / sent["requests"]) for one in used]
                return {**sent, **seen, "cpu_us_per_request": each}

            found = uvloop.run(run())
            begin = time.monotonic()
            while chunks_behind(client):
                time.sleep(0.05)
            found["settled_s"] = round(time.monotonic() - begin, 2)
        service.stop()
    behind, resident = found.pop("behind"), found.pop("resident_mb")
    tenth = len(resident) // 10
    return {
        "seconds": seconds,
        "batch": batch,
        "chunk_items": chunk_items,
        "labels_per_second": round(batch * found["requests_per_second"]),
        **found,
        "learner_cpu_ms_per_request": found["cpu_us_per_request"][-1] / 1000,
        "chunks_behind_p50": float(np.median(behind)),
        "chunks_behind_max": float(max(behind)),
        "resident_mb_tenth": resident[tenth],
        "resident_mb_end": resident[-1],
        "resident_mb": resident,
        "start_s": round(ready, 2),
    }


def measure_limit(
    rate: float, seconds: float, warm: float, max_steps: int = 20, chunk_items: int = 2000
) -> Result:
    """Offer a quarter more each time, to a new service, until it breaks; then hold what held.

    The rates are found in steps of a third of the time. A rate counts as held once it was for all
    of the time: the last that did not break, or the one before where it breaks then.
    """
    steps: list[Result] = []

    def holds(rate: float, seconds: float) -> bool:
        load = measure_load(rate, BATCH, seconds, chunk_items, warm)
        steps.append({name: load[name] for name in LIMIT_FIGURES})
        steps[-1] |= {
            "offered_labels_per_second": round(rate * BATCH),
            "broken": broken(load, rate),
        }
        say(f"  {json.dumps(steps[-1])}")
        return not steps[-1]["broken"]

    while len(steps) < max_steps and holds(rate, seconds / 3):
        rate *= RATE_STEP
    while len(steps) < 2 * max_steps and not holds(rate := rate / RATE_STEP, seconds):
        pass
    offered = [step["offered_labels_per_second"] for step in steps if step["broken"]]
    return {
        "seconds": seconds,
        "chunk_items": chunk_items,
        "held_labels_per_second": 0 if steps[-1]["broken"] else steps[-1]["labels_per_second"],
        "broken_labels_per_second": min(offered, default=None),
        "steps": steps,
    }


LIMIT_FIGURES = (
    "seconds",
    "labels_per_second",
    "refused",
    "p50_ms",
    "p99_ms",
    "chunks_behind_max",
    "settled_s",
    "learner_cpu_ms_per_request",
    "cpu_us_per_request",
)


def broken(load: Result, rate: float) -> list[str]:
    """What a service under a load of batches did not keep."""
    kept = {
        "the rate": load["requests_per_second"] >= 0.99 * rate,
        "every request": not load["refused"],
        "p99": load["p99_ms"] < SLOWEST_BATCH_MS,
        # As many tasks, however small the chunks are: a stream is looked at every 0.1 s.
        "chunks behind": load["chunks_behind_max"] * load["chunk_items"] < 2000 * MAX_CHUNKS_BEHIND,
    }
    return [name for name, holds in kept.items() if not holds]


def measure_restart(
    n_items: int, n_workers: int, labels_per_item: int, n_starts: int = 5
) -> Result:
    """How soon a service is ready on a store of this size, all learned from."""
    with tempfile.TemporaryDirectory(prefix="labelquorum-", dir=os.environ.get("TMPDIR")) as folder:
        where = Path(folder) / "store"
        rules = Rules(
            labels_per_item=labels_per_item,
            chunk_items=5000,
            max_wait=None,
            max_chunk_wait=None,
            retention="discard",
            grace=0,
        )
        with Store.open(where) as store:
            stream = store.create("all", classes=CLASSES, rules=rules)
            rng, step, begin = np.random.default_rng(0), 5000, time.monotonic()
            for first in range(0, n_items, step):
                worker = rng.integers(n_workers, size=(step, 1)) + np.arange(labels_per_item) * 13
                if first == 0:
                    worker = np.arange(step * labels_per_item).reshape(step, -1)
                truth = rng.integers(len(CLASSES), size=(step, 1))
                wrong = rng.integers(len(CLASSES), size=worker.shape)
                said = np.where(rng.random(worker.shape) < 0.7, truth, wrong)
                rows = {
                    "task": [f"t{first + i}" for i in range(step) for _ in range(labels_per_item)],
                    "worker": [f"w{k % n_workers}" for k in worker.ravel().tolist()],
                    "label": [CLASSES[c] for c in said.ravel().tolist()],
                }
                stream.accept_all([Submission(_frame(rows))])
                stream.settle()
                if first % 100_000 == 0:
                    say(f"  {first:,} items after {time.monotonic() - begin:.0f} s")
            stream.settle(flush=True)
            counts = stream.count()
            keys = _admin_key(store)
        size = sum(file.stat().st_size for file in where.iterdir())
        starts = []
        for _ in range(n_starts):
            service = Service(where)
            starts.append(round(service.ready(), 2))
            with service.client(keys) as client:
                begin = time.monotonic()
                client.get("/v1/streams/all/items").raise_for_status()
                first_page = time.monotonic() - begin
            resident = service.resident_mb()
            service.stop()
    return {
        "items": counts["answered_items"],
        "workers": n_workers,
        "labels": n_items * labels_per_item,
        "store_mb": round(size / 2**20),
        "ready_s": starts,
        "first_page_s": round(first_page, 3),
        "resident_mb": resident,
    }


def _frame(rows: dict[str, list[str]]) -> Any:
    import pandas as pd

    return pd.DataFrame(rows)


def _admin_key(store: Store) -> str:
    from labelquorum.store.api_keys import Keys

    key: str = Keys(store).make("benchmark", "admin")[1]
    return key


# ── all of it ────────────────────────────────────────────────────────────────────────────────


def parts(seconds: float, minutes: float, quick: bool) -> dict[str, Callable[[], Result]]:
    scale, warm = (0.02, 1.0) if quick else (1.0, 5.0)
    full = (5_000, 1_000, 3, 1) if quick else (10**6, 10**5, 3)
    return {
        "singles": lambda: measure_load(SINGLE_RATE * scale, 1, seconds, 500, warm),
        "batches": lambda: measure_load(BATCH_RATE * scale, BATCH, seconds, 2000, warm),
        "steady": lambda: measure_load(BATCH_RATE * scale / 2, BATCH, 60 * minutes, 2000, warm),
        "restart": lambda: measure_restart(*full),
        "limit": lambda: measure_limit(
            RATE_STEP * BATCH_RATE * scale, seconds, warm, 2 if quick else 20
        ),
        "small": lambda: measure_limit(
            BATCH_RATE * scale, seconds, warm, 2 if quick else 20, SMALL_CHUNK_ITEMS
        ),
    }


def verdicts(found: dict[str, Result]) -> list[Result]:
    rows: list[Result] = []

    def add(promise: str, measured: float, limit: float, holds: bool) -> None:
        row = {"promise": promise, "measured": float(measured), "limit": limit}
        rows.append({**row, "holds": bool(holds)})

    for name, unit, least, slowest in (
        ("singles", "requests_per_second", SINGLE_RATE, SLOWEST_SINGLE_MS),
        ("batches", "labels_per_second", BATCH_RATE * BATCH, SLOWEST_BATCH_MS),
    ):
        if name in found:
            one = found[name]
            what = unit.replace("_", " ")
            # The last answers come after the time is up, so a rate that is kept reads a bit less.
            kept = one[unit] >= 0.99 * least and not one["refused"]
            add(f"{name}: {what}", one[unit], least, kept)
            add(f"{name}: p99, ms", one["p99_ms"], slowest, one["p99_ms"] < slowest)
            lag = one["chunks_behind_max"]
            add(f"{name}: chunks behind, at most", lag, MAX_CHUNKS_BEHIND, lag < MAX_CHUNKS_BEHIND)
    if "steady" in found:
        grown = round(found["steady"]["resident_mb_end"] / found["steady"]["resident_mb_tenth"], 3)
        minutes = found["steady"]["seconds"] / 60
        add(f"memory after {minutes:g} minutes over that after a tenth", grown, 1.1, grown < 1.1)
    if "restart" in found:
        slow = max(found["restart"]["ready_s"])
        add("ready on a full store, s", slow, 5, slow < 5)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--save", action="store_true", help="keep the result")
    parser.add_argument("--only", nargs="+", metavar="PART", help="some of the parts")
    parser.add_argument("--seconds", type=float, default=60.0, help="of singles and of batches")
    parser.add_argument("--minutes", type=float, default=10.0, help="of the steady part")
    parser.add_argument("--quick", action="store_true", help="a small load, to see it run")
    given = parser.parse_args()
    todo = parts(given.seconds, given.minutes, given.quick)
    for name in given.only or ():
        if name not in todo:
            parser.error(f"there is no part {name!r}. There are {list(todo)}.")
    result: Result = {"parts": {}}
    if given.save and RESULT.exists():
        result = json.loads(RESULT.read_text())
    for name in given.only or todo:
        say(f"{name}…")
        load_before = round(os.getloadavg()[0], 2)
        found = {"load_before": load_before, **todo[name]()}
        found["measured"] = datetime.now(UTC).isoformat(timespec="seconds")
        result["parts"][name] = found
        say(f"  {json.dumps({k: v for k, v in found.items() if k != 'resident_mb'})}")
        result["machine"] = machine()
        result["command"] = "python3 run.py python benchmarks/service.py"
        result["verdicts"] = verdicts(result["parts"])
        if given.save:
            RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
