"""The demo: a service, a simulated crowd that labels in real time, and pages to watch it on.

`crowd` draws the crowd, sends its labels in real time and sums up what was found; `service` runs
the service in a subprocess; `browser` takes pictures of the pages.
"""

import os
import signal
import sys
import tempfile
import time
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn
from urllib.parse import quote

from labelquorum.errors import StateError

if TYPE_CHECKING:
    from labelquorum.client import Client
    from labelquorum.demo.crowd import Feeder, Scene
    from labelquorum.demo.service import Service

__all__ = ["HEADLESS_SECONDS", "SECONDS", "STREAM", "Plan", "run_demo"]

SECONDS, HEADLESS_SECONDS = 180.0, 30.0
STREAM = "animals"
ITEMS_PER_SECOND = 60.0
CHUNK_ITEMS = 50
RULES: dict[str, Any] = {
    "labels_per_item": 5,
    "max_wait": 5.0,
    "chunk_items": CHUNK_ITEMS,
    "max_chunk_wait": 2.0,
}
LOOK_SECONDS, REPORT_SECONDS = 0.25, 5.0
EXTRA_SECONDS = 60.0
"""Additional time the crowd labels while pictures are taken."""
BEHIND_LABELS = 1_000
"""Maximum number of labels not yet learned from when pictures are taken."""
CATCH_UP_SECONDS = 180.0  # timeout of that wait


class Plan(NamedTuple):
    """What the demo is to do."""

    seconds: float = SECONDS  # the crowd labels for; half-way one worker turns bad
    headless: bool = False  # take pictures instead of opening a browser
    output: Path = Path("labelquorum-demo")  # where they go
    store: str | None = None  # kept after the demo; a temporary folder unless given
    port: int = 0
    seed: int = 0
    opens_browser: bool = True


class Running(NamedTuple):
    """A demo that runs."""

    plan: Plan
    service: "Service"
    client: "Client"
    stream: str
    scene: "Scene"
    feeder: "Feeder"
    url: str
    key: str


def run_demo(plan: Plan, say: Callable[[str], None], tell: Callable[[str], None]) -> None:
    """Run the demo until Control-C or, headless, until its pictures are taken.

    Parameters
    ----------
    plan
        What it is to do.
    say, tell
        Who takes the summary, and who takes the progress, a line each.
    """
    from labelquorum.demo.browser import find_browser

    browser = find_browser() if plan.headless else ""
    with _interrupted_by_signals(), ExitStack() as stack:
        running = _start(plan, stack, tell)
        pictures: list[Path] = []
        if plan.headless:
            plan.output.mkdir(parents=True, exist_ok=True)
            _watch(running, tell, plan.seconds)
            _catch_up(running, tell)
            pictures = _take_pictures(running, browser)
        else:
            _show(running, tell)
            try:
                _watch(running, tell)
            except KeyboardInterrupt:
                tell("\nStopping…")
        running.feeder.stop()
        from labelquorum.demo.crowd import summary

        text = summary(running.client, running.stream, running.scene, running.feeder.sent)
        say(text)
        if plan.headless:
            path = plan.output / "summary.txt"
            path.write_text(text, encoding="utf-8")
            for one in (*pictures, path):
                tell(f"Saved {one}")


def _start(plan: Plan, stack: ExitStack, tell: Callable[[str], None]) -> Running:
    """Start the service, draw the crowd while it starts, then let the crowd label."""
    from labelquorum.demo.service import Service

    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="labelquorum-demo-")))
    tell("Starting a service, and drawing a crowd of 26 workers…")
    where = plan.store or str(folder / "store")
    service = stack.enter_context(Service(where, plan.port, folder / "service.log"))
    # Imported while the service starts: they bring pandas along, which takes a second.
    from labelquorum.client import Client
    from labelquorum.demo.crowd import CLASSES, Feeder, simulate
    from labelquorum.learn.bila.engines import matrix_engine

    matrix_engine()  # what it warns of, the service writes into its log alone
    seconds = plan.seconds + (EXTRA_SECONDS if plan.headless else 0.0)
    n_items = max(CHUNK_ITEMS, int(ITEMS_PER_SECOND * seconds))
    scene = simulate(n_items, ITEMS_PER_SECOND, plan.seconds / 2 / seconds, plan.seed)
    url, key = service.address()
    client = stack.enter_context(Client(url, key))
    stream = _free_name(client.streams())
    client.create(stream, rules=RULES, classes=list(CLASSES), seed=plan.seed)
    feeder = Feeder(client, stream, scene)
    stack.callback(feeder.stop)
    feeder.start()
    return Running(plan, service, client, stream, scene, feeder, url, key)


def _show(running: Running, tell: Callable[[str], None]) -> None:
    """Say where to look, and open the browser where there is one."""
    link = f"{running.url}/#key={running.key}&go=/s/{quote(running.stream, safe='')}"
    tell(f"Open {link}")
    where = "" if running.plan.store is None else f" The store stays in {running.plan.store}."
    tell(f"The key in it opens everything until the demo ends. Control-C ends it.{where}")
    if running.plan.opens_browser and _has_display():
        webbrowser.open(link)


def _watch(running: Running, tell: Callable[[str], None], seconds: float | None = None) -> None:
    """Report now and then, until the time is over or, without one, for ever."""
    began = reported = time.monotonic()
    all_sent = False
    while seconds is None or time.monotonic() - began < seconds:
        time.sleep(LOOK_SECONDS)
        if running.feeder.error is not None:
            raise running.feeder.error
        if not running.service.runs:
            raise StateError("The demo's service has ended by itself. Start the demo again.")
        if running.feeder.done and seconds is None and not all_sent:
            tell("All labels are in. The pages stay until Control-C.")
            all_sent = True
        if time.monotonic() - reported >= REPORT_SECONDS and not all_sent:
            reported = time.monotonic()
            counts = running.client.stream(running.stream)["counts"]
            tell(
                f"{running.feeder.sent:7,} labels sent, {counts['answered_items']:6,} tasks decided"
            )


def _catch_up(running: Running, tell: Callable[[str], None]) -> None:
    """Wait until what was sent is learned from: at first, the learner has to start."""
    began = time.monotonic()
    while _labels_behind(running) > BEHIND_LABELS:
        if time.monotonic() - began > CATCH_UP_SECONDS:
            tell("The service has not caught up with the labels; the pictures show it so.")
            return
        time.sleep(LOOK_SECONDS)


def _labels_behind(running: Running) -> int:
    """How many labels are not learned from, those of chunks by their usual size."""
    now = running.client.summary(running.stream)
    in_chunks: int = now["chunks_behind"] * CHUNK_ITEMS * RULES["labels_per_item"]
    return in_chunks + int(now["counts"]["waiting_labels"])


def _take_pictures(running: Running, browser: str) -> list[Path]:
    from labelquorum.demo.browser import shots_of, take
    from labelquorum.demo.crowd import SLEEPER

    doubtful = running.client.pending(running.stream, threshold=1.0, limit=1)
    task = str(doubtful.index[0]) if len(doubtful) else running.scene.tasks[0]
    [sleeper] = running.scene.of_kind(SLEEPER)
    shots = shots_of(running.stream, task, sleeper)
    return list(take(browser, running.url, running.key, shots, running.plan.output))


def _free_name(taken: list[str]) -> str:
    """A name for the stream that no other has."""
    number, name = 1, STREAM
    while name in taken:
        number += 1
        name = f"{STREAM} {number}"
    return name


def _has_display() -> bool:
    """Whether a window can be opened here; browsers of the terminal would take it from us."""
    if sys.platform == "darwin":
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


@contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """Take SIGTERM and SIGHUP for Control-C, so that nothing is left running."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = {
        number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
