"""One service with labels in it, one browser, and pages that tell what went wrong in them."""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from server.dashboard.payloads import PAYLOADS, as_stream
from server.served import until

import labelquorum as lq
from labelquorum.evaluation.simulate.arrivals import label_table
from labelquorum.evaluation.simulate.crowds import one_coin_crowd
from labelquorum.evaluation.simulate.roles import with_bots, with_ring, with_sleepers, with_spammers

CLASSES, NAMES = as_stream(PAYLOADS[0]), as_stream(PAYLOADS[1])
PAIRS = {"labels_per_item": 2, "chunk_items": 60, "grace": 86_400}
BIRDS = ("owl", "wren", "heron", "swift")
OPTIONS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WATCH = """
window.breaches = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.breaches.push(`${event.violatedDirective} ${event.blockedURI}`));
"""


class Service:
    """`labelquorum serve` in a subprocess, and a client with its first key."""

    def __init__(self, folder, port=0):
        command = [sys.executable, "-m", "labelquorum", "serve", str(folder), "--port", str(port)]
        self.folder = folder
        self.log = folder.with_name(f"{folder.name}.log").open("a+", encoding="utf-8")
        self._process = subprocess.Popen(
            [*command, "--rate", "2000"],
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self.url = f"http://{until(self._address)}"
        self.port = int(self.url.rpartition(":")[2])

    def _address(self):
        assert self._process.poll() is None, Path(self.log.name).read_text(encoding="utf-8")
        for line in reversed(Path(self.log.name).read_text(encoding="utf-8").splitlines()):
            if '"stopped"' in line:
                return None
            if '"serving"' in line and line.endswith("}"):
                return json.loads(line)["at_address"][0]
        return None

    def key(self):
        return self._process.stdout.readline().strip()

    def stop(self):
        self._process.send_signal(signal.SIGTERM)
        self._process.communicate(timeout=60)
        self.log.close()


def simulated_birds():
    """A crowd with spammers, a bot, a ring and a sleeper, as rows of task, worker and label."""
    crowd = one_coin_crowd(500, 20, len(BIRDS), labels_per_item=5, skill=(0.75, 0.95), seed=3)
    crowd = with_sleepers(with_ring(with_spammers(crowd, [1, 2]), [5, 6], 0.5), [9], 0.5)
    table = label_table(with_bots(crowd, [12], 0))
    rows = zip(table.item_ids, table.worker_ids, table.labels, strict=True)
    reply = as_rows([(task, worker, BIRDS[int(label)]) for task, worker, label in rows])
    names = sorted({row["task"] for row in reply})
    return reply, dict(zip(names, (BIRDS[int(c)] for c in crowd.truth), strict=True))


def feed(client):
    """All that the pages show: a full stream, an empty one, and one of bad names."""
    rules = {"labels_per_item": 5, "chunk_items": 20, "grace": 86_400, "max_wait": None}
    client.create("birds", classes=list(BIRDS), rules={**rules, "max_chunk_wait": None})
    rows, truth = simulated_birds()
    client.send("birds", rows)
    client.send("birds", as_rows([(f"new{n}", "w03", "owl") for n in range(7)]))
    client.create("empty", classes=["yes", "no"])
    for payload in PAYLOADS[2:]:
        client.create(as_stream(payload), classes=["a", "b"])
    feed_bad_names(client)
    for stream, n_items in (("birds", 500), (CLASSES, 60), (NAMES, 60)):
        until(lambda: client.stream(stream)["counts"]["answered_items"] == n_items, 120)  # noqa: B023
    client.gold("birds", {task: truth[task] for task in sorted(truth)[:60]})


def feed_bad_names(client):
    """A stream whose classes are bad names, and one whose tasks and workers are."""
    client.create(CLASSES, classes=PAYLOADS, rules=PAIRS)
    said = [(f"t{n}", worker, name) for n, name in enumerate(PAYLOADS) for worker in ("v", "w")]
    client.send(CLASSES, as_rows(said))
    client.create(NAMES, classes=list(BIRDS), rules=PAIRS)  # as many as birds: compiled once
    client.send(NAMES, one_chunk())


def one_chunk():
    """Sixty tasks with two labels each: what a stream with the rules `PAIRS` cuts at once."""
    turned = zip(PAYLOADS * 2, PAYLOADS + PAYLOADS[1:] + PAYLOADS[:1], strict=True)
    return as_rows([(task, worker, "owl") for task, worker in turned])


def as_rows(said):
    return [{"task": task, "worker": worker, "label": label} for task, worker, label in said]


@pytest.fixture(scope="session")
def service(tmp_path_factory):
    """The one service of all processes of a test run.

    The first process that needs it starts and feeds it, and stops it once no other uses it.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # what the processes have in common
    reply, own = folder / "dashboard.json", None
    with (folder / "starts").open("a") as starts, (folder / "uses").open("a") as uses:
        try:
            with held(starts):
                fcntl.flock(uses, fcntl.LOCK_SH)
                if not reply.exists():
                    own = Service(folder / f"dashboard-{os.getpid()}")
                    reply.write_text(json.dumps(fed(own)), encoding="utf-8")
                found = SimpleNamespace(**json.loads(reply.read_text(encoding="utf-8")))
            with lq.Client(found.url, found.secret) as found.client:
                yield found
        finally:
            if own is not None:
                with held(starts):
                    reply.unlink(missing_ok=True)
                fcntl.flock(uses, fcntl.LOCK_EX)  # taken once the others have released it
                own.stop()


@contextmanager
def held(file):
    """Lock a file inside the block."""
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def fed(service):
    """How to reach a service, once all is in it."""
    secret = service.key()
    with lq.Client(service.url, secret) as client:
        feed(client)
    return {"url": service.url, "secret": secret}


@pytest.fixture(scope="module")
def browser():
    """One browser a file: while it is open Playwright's event loop runs in this thread, so that
    a test of another folder could run none of its own.
    """
    chromium = shutil.which("chromium")
    if chromium is None:
        reason = "the dashboard is tested in a browser, and there is no `chromium` here"
        (pytest.fail if os.environ.get("LABELQUORUM_CI") else pytest.skip)(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=OPTIONS)
        yield found
        found.close()


class Seen:
    """A page of the browser, and all that went wrong in it."""

    def __init__(self, page, service):
        self.page, self.service = page, service
        self.faults = []
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("dialog", self._on_dialog)
        page.add_init_script(WATCH)

    def _on_console(self, message):
        if message.type == "error":
            self.faults.append(f"console: {message.text}")

    def _on_dialog(self, dialog):
        self.faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def sign_in(self, place="/"):
        self.page.goto(f"{self.service.url}/#key={self.service.secret}&go={place}")
        self.ready()

    def go(self, place):
        """Open a page by its address, as a click on a link does, and wait until it is shown."""
        self.page.evaluate("(hash) => { location.hash = hash; }", place)
        self.ready()

    def ready(self):
        self.page.wait_for_selector("main:not(:has(.skeleton)) h1", state="attached")

    def text(self, selector):
        return " ".join(self.page.locator(selector).first.text_content().split())

    def alter(self, pattern, change):
        """Let `change` change what the service answers on some path before the page has it."""

        def answer(route):
            found = route.fetch()
            reply = found.json()
            change(reply)
            route.fulfill(response=found, json=reply)

        self.page.route(re.compile(pattern), answer)

    def check(self):
        """Nothing went wrong, no rule was broken."""
        breaches = self.page.evaluate("window.breaches")
        assert (self.faults, breaches) == ([], [])


@pytest.fixture(scope="module")
def seen(browser, service):
    """A new page of a given size and theme; use it in a `with`."""

    @contextmanager
    def opened(width=1280, height=800, theme="light"):
        size = {"width": width, "height": height}
        context = browser.new_context(viewport=size, color_scheme=theme)
        context.set_default_timeout(30_000)
        try:
            yield Seen(context.new_page(), service)
        finally:
            for page in context.pages:  # what is asked for while it closes
                page.unroute_all(behavior="ignoreErrors")
            context.close()

    return opened


@pytest.fixture
def view(seen):
    with seen() as opened:
        yield opened
