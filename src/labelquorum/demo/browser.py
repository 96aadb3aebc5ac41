"""Pictures of the dashboard, by the browser of this machine, which Playwright drives."""

import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from labelquorum.errors import StateError

if TYPE_CHECKING:
    from playwright.sync_api import Page


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
TIMEOUT_MS = 120_000  # a busy machine starts slowly
WIDE, PHONE = 1280, 390
MIN_HEIGHT, MAX_HEIGHT = 800, 1460
"""Limits of a picture's height; between them it shows the whole page."""


LOADED, FAILED = "main:not(:has(.skeleton))", "main .state.bad"
ROWS = """() => [...document.querySelectorAll("main .long-box")].every(
  (box) => box.querySelector("tbody.rows tr"))"""
HEIGHT = "Math.ceil(document.querySelector('main').getBoundingClientRect().bottom)"
DRAWN = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


class Shot(NamedTuple):
    """A picture of a page."""

    name: str
    page: str  # what follows the # of its address
    dark: bool = False
    width: int = WIDE


def find_browser() -> str:
    """The browser that takes the pictures; an error says what to install."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        raise StateError(
            "Pictures of the dashboard take a browser, and there is no chromium on this machine. "
            "Install it (on Debian: apt install chromium), or run the demo without --headless."
        )
    if find_spec("playwright") is None:
        raise StateError(
            "Pictures of the dashboard take Playwright, which is not installed. "
            "Run pip install labelquorum[browser]."
        )
    return found


def shots_of(stream: str, task: str, worker: str) -> list[Shot]:
    """The pages to take, with one task and one worker to look at closely."""
    here = f"/s/{quote(stream, safe='')}"
    pages = {
        "streams": "/",
        "stream": here,
        "items": f"{here}/items",
        "item": f"{here}/items/{quote(task, safe='')}",
        "workers": f"{here}/workers",
        "worker": f"{here}/workers/{quote(worker, safe='')}",
        "ask": f"{here}/ask",
        "settings": f"{here}/settings",
    }
    shots = [Shot(name, page) for name, page in pages.items()]
    return [*shots, Shot("stream-dark", here, dark=True), Shot("stream-phone", here, width=PHONE)]


def take(browser: str, url: str, key: str, shots: Sequence[Shot], folder: Path) -> Iterator[Path]:
    """Take pictures of pages, one after the other, as soon as each shows its data.

    Parameters
    ----------
    browser
        Its program; see `find_browser`.
    url, key
        Where the service is, and what opens it.
    shots
        What to take, and how.
    folder
        Where the files go; each begins with its number.
    """
    with _opened(browser) as window:
        for number, shot in enumerate(shots, 1):
            path = folder / f"{number:02}-{shot.name}.png"
            with _as_state_error(f"The page {shot.name!r} of the dashboard"):
                _take_one(window, f"{url}/#key={quote(key)}&go={quote(shot.page)}", shot, path)
            yield path


def _take_one(window: Any, address: str, shot: Shot, path: Path) -> None:
    with _page(window, shot) as page:
        page.goto(address)
        _wait_for_data(page, shot)
        height = min(max(page.evaluate(HEIGHT), MIN_HEIGHT), MAX_HEIGHT)
        page.screenshot(path=path, clip={"x": 0, "y": 0, "width": shot.width, "height": height})


@contextmanager
def _as_state_error(what: str) -> Iterator[None]:
    from playwright.sync_api import Error

    try:
        yield
    except Error as error:
        raise StateError(
            f"{what} could not be taken: {error.message.splitlines()[0]} Is the machine very busy? "
            "Try again."
        ) from error


@contextmanager
def _opened(browser: str) -> Iterator[Any]:
    from playwright.sync_api import Error, sync_playwright

    with sync_playwright() as driver:
        with _as_state_error(f"Pictures with {browser}"):
            window = driver.chromium.launch(executable_path=browser, args=list(OPTIONS))
        try:
            yield window
        except KeyboardInterrupt:
            # The driver had it too, and is gone; what it still owes is no news.
            logging.getLogger("asyncio").disabled = True
            raise
        finally:
            with suppress(Error):
                window.close()


@contextmanager
def _page(window: Any, shot: Shot) -> Iterator["Page"]:
    context = window.new_context(
        viewport={"width": shot.width, "height": MAX_HEIGHT},
        color_scheme="dark" if shot.dark else "light",
        reduced_motion="reduce",
    )
    context.set_default_timeout(TIMEOUT_MS)
    try:
        yield context.new_page()
    finally:
        context.close()


def _wait_for_data(page: "Page", shot: Shot) -> None:
    """Wait until all data are loaded and drawn."""
    page.wait_for_selector(f"{LOADED} h1, {FAILED}", state="attached")
    page.wait_for_function(ROWS)
    page.evaluate(DRAWN)
    failed = page.locator(FAILED)
    if failed.count():
        raise StateError(
            f"The page {shot.name!r} of the dashboard shows no data: "
            f"{' '.join(failed.first.inner_text().split())}"
        )
