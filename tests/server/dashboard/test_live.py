"""A page stays in touch: with what is learned, with a service that is lost, with its viewer."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import expect
from server.dashboard.conftest import BIRDS, PAIRS, one_chunk
from server.served import until

pytestmark = pytest.mark.browser

BROKEN = {"ok": False, "error": "It broke.", "errors": ["It broke."], "status": 500}
SLOW_WORK = """async (took) => {
  const { coalesced } = await import(new URL("live.js", document.querySelector("script").src));
  window.begun = [];
  const renewal = coalesced(async () => {
    window.begun.push(performance.now());
    await new Promise((done) => setTimeout(done, took));
  });
  setInterval(renewal.nudge, 10);
}"""


def test_what_is_learned_is_shown_without_asking(view, service):
    service.client.create("lively", classes=list(BIRDS), rules=PAIRS)
    view.sign_in("/s/lively")
    page = view.page
    page.wait_for_selector(".pill[data-state=live]")
    assert "No labels yet" in view.text("main")
    service.client.send("lively", one_chunk())
    page.wait_for_selector(".pill:has-text('chunk 1 applied')")
    expect(page.locator(".figure .value").first).to_have_text("60")
    view.check()


def test_a_page_that_opens_with_what_is_old_is_renewed_without_an_event(view):
    asked = []

    def answer(route):
        asked.append(route.request.headers.get("cache-control"))
        found = route.fetch()
        reply = found.json()
        if len(asked) > 1:
            route.fulfill(response=found)
            return
        reply["counts"]["answered_items"] = 7
        route.fulfill(response=found, json=reply, headers={**found.headers, "Age": "3"})

    view.page.route("**/birds/summary", answer)
    view.sign_in("/s/birds")
    figure = view.page.locator(".figure .value").first
    expect(figure).to_have_text("500", timeout=15_000)
    assert asked[0] == "max-stale"
    assert "max-stale" not in asked[1:]


def test_what_the_banner_says_goes_once_it_is_no_longer_so(view):
    page = view.page
    page.clock.install()
    view.sign_in("/s/birds")
    banner = page.locator("#banner")
    for mend in ("renewed", "left"):
        page.route("**/summary", lambda route: route.fulfill(status=500, json=BROKEN))
        page.clock.fast_forward(5000)
        expect(banner).to_contain_text("It broke.")
        page.unroute("**/summary")
        if mend == "renewed":
            page.clock.fast_forward(5000)
        else:
            page.evaluate("location.hash = '#/s/birds/workers'")
        expect(banner).to_be_empty()


def test_a_renewed_list_still_tells_how_many_there_are(view, service):
    view.sign_in("/s/birds/items")
    page = view.page
    page.wait_for_selector(".pill[data-state=live]")
    counter = page.locator(".counter")
    expect(counter).to_have_text("507 items")
    page.evaluate("document.querySelector('.rows tr').dataset.old = 'yes'")
    service.client.change("birds", chunk_items=20)  # no change, but an event
    expect(page.locator(".rows tr[data-old]")).to_have_count(0)
    assert counter.text_content() == "507 items"
    view.check()


def test_what_takes_long_is_asked_for_less_often(view):
    page = view.page
    page.clock.install()
    view.sign_in("/s/birds")
    page.evaluate(SLOW_WORK, 100)
    page.clock.run_for(4500)
    first, *others = page.evaluate("window.begun")
    assert [round((one - first) / 100) for one in others] == [20, 40]


def test_a_lost_service_is_told_and_found_again(view, service):
    view.sign_in("/s/birds")
    page = view.page
    page.wait_for_selector(".pill[data-state=live]")
    page.context.set_offline(True)
    page.wait_for_selector("#banner:has-text('The service does not answer')")
    assert view.text(".pill") == "Offline"
    assert page.locator(".figure").count() == 7  # what was known stays
    page.context.set_offline(False)
    expect(page.locator("#banner")).to_be_empty()
    page.wait_for_selector(".pill[data-state=live]")


def test_an_error_is_told_in_a_sentence_with_a_way_to_try_again(view):
    view.sign_in()
    page = view.page
    page.route("**/summary", lambda route: route.fulfill(status=500, json=BROKEN))
    view.go("#/s/birds")
    assert "It broke." in view.text(".state.bad[role=alert]")
    page.unroute("**/summary")
    page.click("text=Try again")
    page.wait_for_selector(".chart canvas")


def test_what_takes_long_has_a_shape_until_it_is_there(view):
    view.sign_in()
    page = view.page
    held = []
    page.route("**/summary", lambda route: held.append(route))
    page.evaluate("location.hash = '#/s/birds'")
    page.wait_for_selector(".skeleton[role=status]")
    until(lambda: held or page.wait_for_timeout(10))
    held[0].continue_()
    page.wait_for_selector(".chart canvas")
    assert page.locator(".skeleton").count() == 0
    view.check()


def test_a_theme_is_chosen_and_stays(view):
    view.sign_in()
    page = view.page
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    for name in ("light", "dark"):
        page.click("button.theme")
        page.wait_for_selector(f"html[data-theme={name}]")
    assert page.evaluate(ground) != light
    page.reload()
    view.ready()
    assert page.locator("html[data-theme=dark]").count() == 1
    view.check()


def test_times_are_told_in_the_zone_of_the_viewer(browser, service):
    context = browser.new_context(timezone_id="Asia/Tokyo", locale="en-GB")
    page = context.new_page()
    page.goto(f"{service.url}/#key={service.secret}&go=/s/birds")
    shown = page.locator("table.plain tbody tr").first.locator("td").nth(3).text_content()
    newest = service.client.chunks("birds")["cut_at"].iloc[-1]
    cut = datetime.fromtimestamp(newest, ZoneInfo("Asia/Tokyo"))
    assert shown == cut.strftime("%H:%M:%S")
    context.close()
