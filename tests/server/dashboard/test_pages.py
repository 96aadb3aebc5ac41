"""Every page in a real browser: light and dark, wide and narrow, without a fault, open to all."""

import os
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import expect
from server.dashboard.conftest import CLASSES, NAMES
from server.dashboard.payloads import PAYLOADS, as_stream

pytestmark = pytest.mark.browser

AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text(encoding="utf-8")
ROOT = Path(__file__).parents[3]
PICTURES = Path(os.environ.get("LABELQUORUM_ARTIFACTS", ROOT / "artifacts")) / "screenshots"
MODES = [(theme, width) for theme in ("light", "dark") for width in (1280, 390)]
CRUMBS = """async (names) => {
  const found = [];
  for (const name of names) {
    const turned = new Promise((done) => addEventListener("hashchange", done, { once: true }));
    location.hash = `#/s/${encodeURIComponent(name)}`;
    await turned;
    found.push([document.querySelector(".crumb").textContent, document.title]);
  }
  return found;
}"""
PAGES = {
    "streams": ("#/", "table.streams tbody tr"),
    "stream": ("#/s/birds", ".chart canvas"),
    "items": ("#/s/birds/items", "table.long .rows tr"),
    "item": ("#/s/birds/items/t207", ".verdict-why a"),
    "workers": ("#/s/birds/workers", "table.long .rows tr"),
    "worker": ("#/s/birds/workers/w09", ".heat-table td"),
    "ask": ("#/s/birds/ask", "table.ask tbody tr"),
    "settings": ("#/s/birds/settings", ".keys tbody tr"),
    "empty": ("#/s/empty", ".state"),
    "no items": ("#/s/empty/items", ".state"),
    "no workers": ("#/s/empty/workers", ".state"),
    "nothing to ask": ("#/s/empty/ask", ".state"),
    "undecided item": ("#/s/birds/items/new3", ".state"),
}


@pytest.fixture(scope="module", params=MODES, ids=lambda mode: f"{mode[0]} {mode[1]}")
def view(request, seen):
    theme, width = request.param
    with seen(width, 800 if width > 600 else 844, theme) as opened:
        opened.mode = f"{theme}-{width}"
        opened.page.goto(opened.service.url)
        opened.page.wait_for_selector("form.login")
        opened.page.evaluate(AXE)  # by the debugger, past the policy of the page
        opened.at_the_door = serious(opened.page)
        picture(opened.page, f"login-{opened.mode}")
        opened.sign_in()
        yield opened


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_shown_without_a_fault_and_reads_well(view, name):
    place, sign = PAGES[name]
    view.go(place)
    page = view.page
    page.wait_for_selector(sign)
    assert page.locator("h1").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "too wide"
    assert serious(page) == []
    picture(page, f"{name.replace(' ', '-')}-{view.mode}")
    view.check()


def test_the_page_to_sign_in_reads_well(view):
    assert view.at_the_door == []


def test_sixty_bad_names_are_shown_as_they_were_typed(seen):
    names, classes = (f"#/s/{quote(stream, safe='')}" for stream in (NAMES, CLASSES))
    with seen(1280, 4000) as opened:
        page = opened.page
        opened.sign_in()
        found = page.locator("table.streams tbody th a").all_text_contents()
        assert {as_stream(one) for one in PAYLOADS} <= set(found)
        for kind in ("items", "workers"):
            opened.go(f"{names}/{kind}")
            expect(page.locator(".rows tr")).to_have_count(60)
            assert set(page.locator(".rows td:first-child a").all_text_contents()) == set(PAYLOADS)
        opened.go(f"{names}/ask")
        page.wait_for_selector("table.ask tbody tr")
        assert set(page.locator("table.ask tbody th").all_text_contents()) <= set(PAYLOADS)
        opened.go(f"{classes}/items")
        expect(page.locator(".rows tr")).to_have_count(60)
        shown = page.locator("select[aria-label=Answer] option").all_text_contents()
        assert shown[1:] == PAYLOADS
        assert set(page.locator(".rows td:nth-child(2)").all_text_contents()) == set(PAYLOADS)
        opened.check()


def test_each_bad_name_has_pages_of_its_own(seen):
    with seen() as opened:
        page = opened.page
        opened.sign_in()
        streams = [as_stream(payload) for payload in PAYLOADS]
        assert page.evaluate(CRUMBS, streams) == [
            [name, f"{name} · LabelQuorum"] for name in streams
        ]
        for n in range(0, 60, 10):
            opened.go(f"#/s/{quote(CLASSES, safe='')}/items/t{n}")
            assert page.locator(".verdict-label").text_content() == PAYLOADS[n]
        home = f"#/s/{quote(NAMES, safe='')}"
        for payload in PAYLOADS[::10]:
            for kind, sign in (("items", ".verdict"), ("workers", ".heat-table")):
                opened.go(f"{home}/{kind}/{quote(payload, safe='')}")
                assert page.locator("h1").text_content() == payload
                page.wait_for_selector(sign)
        opened.check()


def serious(page):
    """What axe-core finds that would keep a reader out."""
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
    return [
        f"{one['id']}: {node['target']} {node['failureSummary']}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


def picture(page, name):
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / f"{name}.png", full_page=True)
