"""The page to send, in a real browser."""

import pytest

from labelquorum.report import opened, report_page
from labelquorum.store.rules import Rules
from labelquorum.store.store import Store

pytestmark = pytest.mark.browser

LONG = "somebody-with-a-long-name@photographs-of-birds.example.org"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A page about tasks, workers and classes whose names are long."""
    folder = tmp_path_factory.mktemp("report")
    with Store.open(folder / "data") as store:
        rules = Rules(labels_per_item=2, chunk_items=12, grace=1000.0)
        stream = store.create("birds", classes=["a " + LONG, "b" + LONG], rules=rules)
        said = ["a " + LONG, "b" + LONG]
        stream.accept(
            {f"{LONG}-{n}": {f"v{LONG}": said[n % 2], "w": said[n % 3 == 0]} for n in range(12)}
        )
        stream.settle(flush=True)
    with opened("birds", folder / "data") as gallery:
        (folder / "report.html").write_text(report_page(gallery), encoding="utf-8")
    return folder / "report.html"


def test_a_report_is_as_wide_as_a_phone_and_breaks_no_word_but_names(browser, report):
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto(report.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    wraps = "(all) => [...new Set(all.map((one) => getComputedStyle(one).overflowWrap))]"
    assert page.eval_on_selector_all("th, td.number", wraps) == ["normal"]
    assert page.eval_on_selector_all("td.name", wraps) == ["anywhere"]
    narrowest = "(all) => Math.min(...all.map((one) => one.getBoundingClientRect().width))"
    assert page.eval_on_selector_all("td.name", narrowest) >= 96
    page.close()
