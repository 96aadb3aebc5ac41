"""What large JSON bodies cost others: the latency of `/healthz`, and the memory of the service.

    python3 run.py python benchmarks/large_bodies.py [--save] [--senders N] [--megabytes M]

`labelquorum serve` runs in a subprocess. N clients send a body of M MB at the same moment, while
another asks for `/healthz` every 5 ms until all are answered. Bodies are of three kinds: one object
with a name per 11 bytes, objects whose names all differ, and labels that are taken. `--save` keeps
the result in `results/large_bodies.json`.
"""

import argparse
import json
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import httpx
import numpy as np
from engine import machine
from service import Service, _admin_key
from streams import Result, say

from labelquorum.store.store import Store

RESULT = Path(__file__).parent / "results" / "large_bodies.json"
PAUSE_SECONDS = 0.005
MAX_LABELS = 99_000  # the service takes up to 100,000 per body


def names(size: int) -> bytes:
    """One object; 1.3 million names at 14 MB."""
    return b"{%s}" % b",".join(b'"%d":1' % n for n in range(size // 11))


def different_names(size: int) -> bytes:
    """Rows, each with names of its own."""
    row = b'{"%d":1,"a%d":1,"b%d":1}'
    rows = [row % (n, n, n) for n in range(min(size // 36, MAX_LABELS))]
    return b"[%s]" % b",".join(rows)


def labels(size: int) -> bytes:
    """Labels, each with a field that is ignored, so that few make a large body."""
    n_rows = min(size // 140, MAX_LABELS)
    note = "x" * (size // n_rows - 60)
    rows = [
        {"task": f"task {n}", "worker": f"w{n % 50}", "label": n % 2, "note": note}
        for n in range(n_rows)
    ]
    return json.dumps(rows).encode()


KINDS: dict[str, Callable[[int], bytes]] = {
    "names": names,
    "different names": different_names,
    "labels": labels,
}


def measure(kind: str, senders: int, size: int) -> Result:
    """Send bodies of a kind at once to a service of their own."""
    body = KINDS[kind](size)
    with tempfile.TemporaryDirectory(prefix="labelquorum-", dir=os.environ.get("TMPDIR")) as folder:
        where = Path(folder) / "store"
        with Store.open(where) as store:
            key = _admin_key(store)
            for n in range(senders):
                store.create(f"s{n}")
        service = Service(where)
        try:
            service.ready()
            return {
                "kind": kind,
                "megabytes": round(len(body) / 1e6, 1),
                **under(service, key, body, senders),
            }
        finally:
            service.stop()


def under(service: Service, key: str, body: bytes, senders: int) -> Result:
    """How `/healthz` does while all bodies are on their way, and what the process takes."""
    waits: list[float] = []
    with service.client(key) as client:
        idle = [_asked(client) for _ in range(100)]
    before, done = _peak_mb(service.process.pid, forget=True), threading.Event()

    def ask() -> None:
        with service.client(key) as client:
            while not done.is_set():
                waits.append(_asked(client))
                time.sleep(PAUSE_SECONDS)

    def send(n: int) -> int:
        with service.client(key) as client:
            address = f"/v1/streams/s{n}/labels"
            headers = {"Content-Type": "application/json"}
            return client.post(address, content=body, headers=headers, timeout=600).status_code

    asking = threading.Thread(target=ask)
    asking.start()
    begin = time.monotonic()
    with ThreadPoolExecutor(senders) as pool:
        statuses = Counter(pool.map(send, range(senders)))
    seconds = time.monotonic() - begin
    done.set()
    asking.join()
    return {
        "senders": senders,
        "statuses": dict(statuses),
        "seconds": round(seconds, 1),
        "healthz_idle_ms": _quantiles(idle),
        "healthz_ms": _quantiles(waits),
        "asked": len(waits),
        "before_mb": before,
        "peak_mb": _peak_mb(service.process.pid),
    }


def _asked(client: httpx.Client) -> float:
    begin = time.monotonic()
    client.get("/healthz", timeout=60).raise_for_status()
    return time.monotonic() - begin


def _quantiles(seconds: list[float]) -> dict[str, float]:
    found = np.quantile(seconds, [0.5, 0.99, 1.0]) * 1000
    return dict(zip(["p50", "p99", "max"], found.round(1).tolist(), strict=True))


def _peak_mb(pid: int, forget: bool = False) -> float:
    """The most memory the process has had, since the last call that forgets."""
    if forget:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return round(int(line.split()[1]) / 1024, 1)
    raise SystemExit("The system does not tell how much memory a process had.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--senders", type=int, default=12)
    parser.add_argument("--megabytes", type=float, default=14.0)
    arguments = parser.parse_args()
    parts = []
    for kind in KINDS:
        parts.append(measure(kind, arguments.senders, int(arguments.megabytes * 1e6)))
        say(json.dumps(parts[-1]))
    result = {
        "command": "python3 run.py python benchmarks/large_bodies.py",
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "parts": parts,
    }
    print(json.dumps(result, indent=1))
    if arguments.save:
        RESULT.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
