"""What people do with the dashboard: sign in, look up, change, stay in touch."""

import json
import re
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import expect
from serve.dashboard.conftest import PAIRS, one_chunk
from serve.server.served import until

import labelquorum as lq


@pytest.fixture
def view(seen):
    with seen() as opened:
        yield opened


def text(view, selector):
    return " ".join(view.page.locator(selector).first.text_content().split())


# ── signing in ───────────────────────────────────────────────────────────────────────────────


def test_a_key_is_typed_and_kept_in_the_tab_alone(view, service):
    page = view.page
    page.goto(f"{service.url}/#/s/birds/items")
    page.fill("input[name=key]", "lq_wrong")
    page.press("input[name=key]", "Enter")
    page.wait_for_selector(".form-error:has-text('opens nothing')")
    assert page.evaluate("sessionStorage.length") == 0
    page.fill("input[name=key]", service.secret)
    page.press("input[name=key]", "Enter")
    page.wait_for_selector(".rows tr")
    assert page.evaluate("Object.values(sessionStorage)") == [service.secret]
    assert service.secret not in page.evaluate("JSON.stringify(localStorage) + document.cookie")
    page.click("button:has-text('Sign out')")
    page.wait_for_selector("form.login")
    assert page.evaluate("sessionStorage.length") == 0


def test_a_link_with_a_key_signs_in_and_the_key_leaves_the_address(view, service):
    view.page.goto(f"{service.url}/#key={service.secret}&go=/s/birds/workers")
    view.page.wait_for_selector(".rows tr")
    assert view.page.url == f"{service.url}/#/s/birds/workers"
    assert view.page.evaluate("history.length") <= 2
    view.check()


def test_a_key_for_one_stream_sees_that_stream_and_is_told_what_it_may_not(view, service):
    narrow = service.client.make_key("narrow", "read", "empty")
    view.page.goto(f"{service.url}/#key={narrow}")
    view.ready()
    assert view.page.locator("table.streams tbody th a").all_text_contents() == ["empty"]
    view.go("#/s/empty/settings")
    assert "Keys are made and seen with a key of the scope admin" in text(view, ".keys")
    view.go("#/s/birds")
    assert "for the stream 'empty' only" in text(view, ".state.bad")


# ── by keyboard alone ────────────────────────────────────────────────────────────────────────


def test_all_of_it_is_reached_by_keyboard(view):
    view.sign_in()
    page = view.page

    def tab_to(wanted, key="Tab", most=80):
        for _ in range(most):
            page.keyboard.press(key)
            here = page.evaluate(
                "((one) => (one.textContent || one.ariaLabel || '').trim())(document.activeElement)"
            )
            if re.search(wanted, here):
                return page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        raise AssertionError(f"{wanted!r} is not reached")

    tab_to("Skip to content")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    assert tab_to("^birds$") == "solid"  # and it is seen where one is
    page.keyboard.press("Enter")
    page.wait_for_selector(".chart canvas")
    for tab, sign in (("Items", ".rows tr"), ("Workers", ".rows tr"), ("Ask next", "table.ask")):
        tab_to(f"^{tab}$", "Shift+Tab")
        page.keyboard.press("Enter")
        page.wait_for_selector(sign)
        assert page.evaluate("document.activeElement.tagName") == "H1"
    slider = page.locator("#stop-at")
    slider.focus()
    before = text(view, ".stop-figure")
    page.keyboard.press("Home")
    assert text(view, ".stop-figure") != before
    view.go("#/s/birds/items")
    first = page.locator(".rows a").first
    first.focus()
    names = page.locator(".rows a").all_text_contents()
    for _ in range(30):
        page.keyboard.press("ArrowDown")
    here = page.evaluate("document.activeElement.textContent")
    assert here not in names[:25] and page.evaluate("scrollY") > 0
    page.keyboard.press("Enter")
    page.wait_for_selector(".verdict, .state")
    assert page.locator("h1").text_content() == here
    view.check()


# ── long lists ───────────────────────────────────────────────────────────────────────────────


def test_a_long_list_holds_few_rows_and_loses_none(view):
    view.sign_in("/s/birds/items?sort=task")
    page = view.page
    page.wait_for_selector(".rows tr")
    names = set()

    def at_the_end():
        names.update(page.locator(".rows td:first-child a").all_text_contents())
        assert page.locator(".rows tr").count() < 80
        page.evaluate("scrollBy(0, 700)")
        page.wait_for_timeout(30)  # a frame, in which rows are drawn
        return page.evaluate("scrollY + innerHeight >= document.documentElement.scrollHeight - 2")

    for _ in range(3):
        until(at_the_end)
    names.update(page.locator(".rows td:first-child a").all_text_contents())
    assert len([name for name in names if re.fullmatch(r"t\d{3}", name)]) == 500
    view.check()


def test_items_are_searched_filtered_and_sorted(view):
    view.sign_in("/s/birds/items")
    page = view.page
    page.wait_for_selector(".rows tr")
    assert page.locator(".rows td:nth-child(2)").first.text_content() == "Undecided"
    page.fill("input[type=search]", "t12")
    expect(page.locator(".rows tr")).to_have_count(10)
    page.select_option("select[aria-label=Answer]", "owl")
    others = page.locator(".rows td:nth-child(2)").filter(has_not_text="owl")
    expect(others).to_have_count(0)
    assert "search=t12" in page.url and "label=owl" in page.url
    page.fill("input[type=search]", "nothing is called so")
    page.wait_for_selector(".state:has-text('Nothing matches')")
    page.click("text=Show all items")
    page.wait_for_selector(".rows tr:nth-child(15)")
    page.click("th button:has-text('Confidence')")
    page.wait_for_selector("th[aria-sort]:has-text('Confidence')")
    expect(page.locator(".rows")).not_to_contain_text("Undecided")
    view.check()


def test_workers_are_shown_flagged_first_with_the_reason(view, service):
    flagged = {
        name: flags for name, flags in service.client.workers("birds")["flags"].items() if flags
    }
    view.sign_in("/s/birds/workers")
    page = view.page
    page.wait_for_selector(".rows tr")
    shown = page.locator(".rows tr:has(.chip) td:first-child").all_text_contents()
    assert flagged and set(shown) == set(flagged)
    assert page.locator(".rows td:first-child").first.text_content() in flagged
    assert all(why for why in page.locator(".rows tr:has(.chip) .why-cell").all_text_contents())
    view.check()


# ── changing things ──────────────────────────────────────────────────────────────────────────


def test_a_stream_is_made_in_the_form(view, service):
    view.sign_in()
    page = view.page
    page.click("text=New stream")
    page.fill("dialog input[maxlength]", "birds")
    page.click("dialog button[type=submit]")
    page.wait_for_selector("dialog .form-error:has-text('already')")
    view.faults.clear()  # the browser itself notes a 409
    page.fill("dialog input[maxlength]", "made by hand")
    page.fill("dialog textarea", "yes\nno")
    page.click("dialog button[type=submit]")
    page.wait_for_selector(".state:has-text('No labels yet')")
    made = service.client.stream("made by hand")
    assert made["settings"]["classes"] == ["yes", "no"] and made["rules"]["grace"] == 3600
    view.check()


def test_rules_and_keys_are_changed_in_the_settings(view, service):
    service.client.create("ruled", classes=["a", "b"])
    view.sign_in("/s/ruled/settings")
    page = view.page
    page.fill("input[name=chunk_items]", "7")
    page.fill("input[name=max_wait]", "")
    page.click("text=Change rules")
    page.wait_for_selector(".told:has-text('The new rules hold')")
    rules = service.client.stream("ruled")["rules"]
    assert rules["chunk_items"] == 7 and rules["max_wait"] is None
    page.fill(".keys input", "for a friend")
    page.click("text=Make key")
    secret = page.locator(".secret code").text_content()
    with lq.Client(service.url, secret) as friend:
        assert friend.streams() == ["ruled"]
    page.click("button[aria-label='Revoke the key for a friend']")
    page.wait_for_selector("tr.gone:has-text('for a friend')")
    view.check()


@pytest.mark.parametrize("format", ["csv", "jsonl", "parquet"])
def test_results_are_taken_away(view, format):
    view.sign_in("/s/birds/settings")
    names = {"csv": "CSV", "jsonl": "JSON lines", "parquet": "Parquet"}
    with view.page.expect_download() as waiting:
        view.page.click(f"button[aria-label='Items as {names[format]}']")
    body = waiting.value.path().read_bytes()
    assert waiting.value.suggested_filename == f"items.{format}" and b"t000" in body
    if format == "jsonl":
        assert len([json.loads(line) for line in body.splitlines()]) >= 500
    view.check()


def test_the_list_of_what_to_ask_is_taken_away(view):
    view.sign_in("/s/birds/ask")
    view.page.wait_for_selector("table.ask tbody tr")
    first = text(view, "table.ask tbody th")
    with view.page.expect_download() as waiting:
        view.page.click("button:has-text('CSV')")
    lines = waiting.value.path().read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("task") and lines[1].startswith(first)
    view.check()


# ── staying in touch ─────────────────────────────────────────────────────────────────────────


def test_what_is_learned_is_shown_without_asking(view, service):
    service.client.create("lively", classes=["a", "b"], rules=PAIRS)
    view.sign_in("/s/lively")
    page = view.page
    page.wait_for_selector(".pill[data-state=live]")
    assert "No labels yet" in text(view, "main")
    service.client.send("lively", one_chunk())
    page.wait_for_selector(".pill:has-text('chunk 1 applied')")
    expect(page.locator(".figure .value").first).to_have_text("60")
    view.check()


def test_a_lost_service_is_told_and_found_again(view, service):
    view.sign_in("/s/birds")
    page = view.page
    page.wait_for_selector(".pill[data-state=live]")
    page.context.set_offline(True)
    page.wait_for_selector("#banner:has-text('The service does not answer')")
    assert text(view, ".pill") == "Offline"
    assert page.locator(".figure").count() == 7  # what was known stays
    page.context.set_offline(False)
    expect(page.locator("#banner")).to_be_empty()
    page.wait_for_selector(".pill[data-state=live]")


def test_an_error_is_told_in_a_sentence_with_a_way_to_try_again(view):
    view.sign_in()
    page = view.page
    shape = {"ok": False, "error": "It broke.", "errors": ["It broke."], "status": 500}
    page.route("**/summary", lambda route: route.fulfill(status=500, json=shape))
    view.go("#/s/birds")
    assert "It broke." in text(view, ".state.bad[role=alert]")
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
