"""How soon an event reaches an open page, what a hundred pages cost, how long lists run.

    python3 run.py python benchmarks/dashboard.py [--save] [--only PART …] [--quick]

A real service on loopback. `event` has a browser with the page of a stream open, and takes the time
from the moment the store wrote an event to the moment the page shows it. `viewers` sends labels as
fast as they are taken, in turns with and without a hundred viewers, in one run: each has one of the
pages open (`PAGES`), follows the events, and asks when something happened for what the page shows.
`long` scrolls through 100,000 items and 10,000 workers. `--save` keeps `results/dashboard.json`.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import uvloop
from engine import machine
from service import CLASSES, Connection, Service, chunks_behind, requests
from streams import Result, say

RESULT = Path(__file__).parent / "results" / "dashboard.json"
BROWSER = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
BATCH, SENDERS, N_VIEWERS = 100, 8, 100
OVERVIEW, LIST = 1.0, 2.0  # seconds between two renewals, as the pages have them,
REST, LONGEST_REST = 20.0, 5.0  # a page rests REST times as long as one took
PAGES = (  # of ten viewers
    *([(OVERVIEW, ["summary"])] * 4),
    *([(LIST, ["summary", "items?sort=confidence&limit=200"])] * 3),
    *([(LIST, ["workers?brief=true&sort=flags&limit=200"])] * 2),
    (OVERVIEW, ["ask?limit=100", "stopping"]),
)
SEEN = """() => {
  window.seen = {};
  const pill = document.querySelector(".pill");
  new MutationObserver(() => { window.seen[pill.dataset.event] ??= Date.now() / 1000; })
    .observe(pill, { attributes: true, attributeFilter: ["data-event"] });
}"""
SCROLL = """async (seconds) => {
  const gaps = [], end = performance.now() + 1000 * seconds;
  let last = performance.now(), rows = 0, blank = 0;
  while (performance.now() < end) {
    scrollBy(0, 900);
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    gaps.push(now - last);
    last = now;
    rows = Math.max(rows, document.querySelectorAll(".rows tr").length);
    const here = document.elementFromPoint(innerWidth / 2, innerHeight / 2);
    blank += here && here.closest(".gap") ? 1 : 0;
  }
  return { gaps, rows, blank, at: scrollY };
}"""


@contextmanager
def served() -> Iterator[tuple[Service, httpx.Client, str]]:
    """A service that begins with nothing."""
    with tempfile.TemporaryDirectory(prefix="labelquorum-", dir=os.environ.get("TMPDIR")) as folder:
        service = Service(Path(folder) / "store")
        key = (service.process.stdout or sys.stdin).readline().strip()
        service.ready()
        try:
            with service.client(key) as client:
                yield service, client, key
        finally:
            service.stop()


def make(client: httpx.Client, name: str, **rules: Any) -> None:
    body = {"name": name, "settings": {"classes": CLASSES}, "rules": rules}
    client.post("/v1/streams", json=body).raise_for_status()


@contextmanager
def page_of(service: Service, key: str, place: str) -> Iterator[Any]:
    """A page of the dashboard in a browser."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("There is no `chromium` here. Install Debian's package of that name.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=BROWSER)
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(f"http://127.0.0.1:{service.port}/#key={key}&go={place}")
        page.wait_for_selector("main:not(:has(.skeleton)) h1", state="attached")
        yield page
        browser.close()


# ── an event ─────────────────────────────────────────────────────────────────────────────────


def measure_event(n_events: int) -> Result:
    """From the store's own time of an event to the time at which an open page shows it."""
    with served() as (service, client, key):
        make(client, "event", labels_per_item=1, chunk_items=5, max_wait=None, grace=3600)

        def send(number: int) -> None:
            rows = [
                {"task": f"{number}-{k}", "worker": f"w{k}", "label": CLASSES[k % 4]}
                for k in range(5)
            ]
            client.post("/v1/streams/event/labels", json=rows).raise_for_status()
            while client.get("/v1/streams/event").json()["counts"]["version"] <= number:
                time.sleep(0.02)

        for number in range(3):  # compiles
            send(number)
        with page_of(service, key, "/s/event") as page:
            page.wait_for_selector(".pill[data-state=live]")
            page.evaluate(SEEN)
            for number in range(3, 3 + n_events):
                send(number)
                page.wait_for_timeout(200)
            seen = page.evaluate("window.seen")
        reply = told_at(client, "/v1/streams/event/events?after=0", n_events + 3)
    took = [1000 * (seen[name] - reply[name]) for name in seen]
    p50, p99, worst = np.quantile(took, [0.5, 0.99, 1.0]).tolist()
    return {
        "events": len(took),
        "sent": n_events,
        "p50_ms": round(p50, 1),
        "p99_ms": round(p99, 1),
        "max_ms": round(worst, 1),
    }


def told_at(client: httpx.Client, path: str, last: int) -> dict[str, float]:
    """When each event happened, by the store's clock."""
    found: dict[str, float] = {}
    number = ""
    with client.stream("GET", path) as answer:
        for line in answer.iter_lines():
            if line.startswith("id: "):
                number = line[4:]
            elif line.startswith("data: "):
                found[number] = json.loads(line[6:])["at"]
                if int(number) >= last:
                    break
    return found


# ── a hundred pages ──────────────────────────────────────────────────────────────────────────


async def watch(port: int, key: str, n_viewers: int) -> None:
    """Viewers who follow events, and ask as an open page does."""
    head = f"HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n\r\n"

    async def one(gap: float, shown: list[str]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET /v1/streams/load/events {head}".encode())
        _, asking = await asyncio.get_running_loop().create_connection(
            Connection, "127.0.0.1", port
        )
        due = 0.0
        while await reader.read(1 << 16):
            if (begun := time.monotonic()) >= due:
                for path in shown:
                    await asking.ask(f"GET /v1/streams/load/{path} {head}".encode())
                took = time.monotonic() - begun
                due = begun + max(gap, min(REST * took, LONGEST_REST))

    await asyncio.gather(*(one(*PAGES[k % len(PAGES)]) for k in range(n_viewers)))


def watching(port: int, key: str, n_viewers: int) -> None:
    uvloop.run(watch(port, key, n_viewers))


async def send_for(port: int, seconds: float, source: Iterator[bytes]) -> float:
    """Labels per second, sent as fast as they are taken."""
    loop = asyncio.get_running_loop()
    begin, sent = loop.time(), 0

    async def one() -> None:
        nonlocal sent
        _, connection = await loop.create_connection(Connection, "127.0.0.1", port)
        while loop.time() < begin + seconds:
            assert await connection.ask(next(source)) == 200
            sent += BATCH

    await asyncio.gather(*(one() for _ in range(SENDERS)))
    return sent / (loop.time() - begin)


def measure_viewers(n_rounds: int, seconds: float) -> Result:
    """Labels per second without viewers and with a hundred, in turns."""
    rates: dict[str, list[float]] = {"without": [], "with": []}
    spawn = multiprocessing.get_context("spawn")
    with served() as (service, client, key):
        make(client, "load", labels_per_item=3, chunk_items=2000)
        source = requests("load", key, BATCH, seed=1)
        uvloop.run(send_for(service.port, seconds, source))  # compiles
        for _ in range(n_rounds):
            for kind in rates:
                viewers = spawn.Process(target=watching, args=(service.port, key, N_VIEWERS))
                if kind == "with":
                    viewers.start()
                    while _viewers(client) < N_VIEWERS:
                        time.sleep(0.05)
                while chunks_behind(client):
                    time.sleep(0.05)
                rates[kind].append(uvloop.run(send_for(service.port, seconds, source)))
                if kind == "with":
                    viewers.terminate()
                    viewers.join()
                    while _viewers(client):
                        time.sleep(0.05)
    pairs = [b / a for a, b in zip(rates["without"], rates["with"], strict=True)]
    return {
        "viewers": N_VIEWERS,
        "batch": BATCH,
        "seconds": seconds,
        "labels_per_second": {kind: [round(one) for one in found] for kind, found in rates.items()},
        "ratios": [round(pair, 3) for pair in pairs],
        "ratio": round(float(np.median(pairs)), 3),
    }


def _viewers(client: httpx.Client) -> int:
    text = client.get("/metrics").text
    return round(float(text.partition("\nlabelquorum_viewers ")[2].split("\n")[0]))


# ── long lists ───────────────────────────────────────────────────────────────────────────────


def measure_long(n_items: int, n_workers: int, seconds: float) -> Result:
    """Scroll through all items and all workers, and look for blanks and slow frames."""
    found: Result = {"items": n_items, "workers": n_workers}
    with served() as (service, client, key):
        make(client, "long", labels_per_item=1, chunk_items=2000)
        rng = np.random.default_rng(0)
        said = rng.integers(len(CLASSES), size=n_items)
        for first in range(0, n_items, 5000):
            rows = [
                {
                    "task": f"task{i:06d}",
                    "worker": f"w{i % n_workers:05d}",
                    "label": CLASSES[said[i]],
                }
                for i in range(first, min(first + 5000, n_items))
            ]
            client.post("/v1/streams/long/labels", json=rows).raise_for_status()
        while chunks_behind(client):
            time.sleep(0.1)
        for kind, place in (("items", "items?sort=task"), ("workers", "workers?sort=labels")):
            with page_of(service, key, "/") as page:
                begin = time.monotonic()
                page.evaluate(f"location.hash = '/s/long/{place}'")
                page.wait_for_selector(".rows tr")
                first_row = time.monotonic() - begin
                reply = page.evaluate(SCROLL, seconds)
            p50, p99, worst = np.quantile(reply["gaps"], [0.5, 0.99, 1.0]).tolist()
            found[kind] = {
                "first_row_s": round(first_row, 2),
                "frames": len(reply["gaps"]),
                "frame_p50_ms": round(p50, 1),
                "frame_p99_ms": round(p99, 1),
                "frame_max_ms": round(worst, 1),
                "rows_in_the_page": reply["rows"],
                "blank_frames": reply["blank"],
                "rows_passed": round(reply["at"] / 44),
            }
    return found


# ── all of it ────────────────────────────────────────────────────────────────────────────────


def parts(quick: bool) -> dict[str, Callable[[], Result]]:
    return {
        "event": lambda: measure_event(5 if quick else 50),
        "viewers": lambda: measure_viewers(*((1, 2.0) if quick else (15, 5.0))),
        "long": lambda: measure_long(*((5_000, 500, 1.0) if quick else (100_000, 10_000, 8.0))),
    }


def verdicts(found: dict[str, Result]) -> list[Result]:
    rows: list[Result] = []

    def add(promise: str, measured: float, limit: float, holds: bool) -> None:
        rows.append({"promise": promise, "measured": measured, "limit": limit, "holds": holds})

    if "event" in found:
        slow = found["event"]["max_ms"]
        all_seen = found["event"]["events"] == found["event"]["sent"]
        add("an event is on the page after, ms at most", slow, 1000, all_seen and slow < 1000)
    if "viewers" in found:
        ratio = found["viewers"]["ratio"]
        add("labels per second with 100 pages over those without", ratio, 0.9, ratio > 0.9)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--save", action="store_true", help="keep the result")
    parser.add_argument("--only", nargs="+", metavar="PART", help="some of the parts")
    parser.add_argument("--quick", action="store_true", help="small, to see it run")
    given = parser.parse_args()
    todo = parts(given.quick)
    for name in given.only or ():
        if name not in todo:
            parser.error(f"there is no part {name!r}. There are {list(todo)}.")
    result: Result = {"parts": {}}
    if given.save and RESULT.exists():
        result = json.loads(RESULT.read_text())
    for name in given.only or todo:
        say(f"{name}…")
        found = {"load_before": round(os.getloadavg()[0], 2), **todo[name]()}
        found["measured"] = datetime.now(UTC).isoformat(timespec="seconds")
        result["parts"][name] = found
        say(f"  {json.dumps(found)}")
        result["machine"] = machine()
        result["command"] = "python3 run.py python benchmarks/dashboard.py"
        result["verdicts"] = verdicts(result["parts"])
        if given.save:
            RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
