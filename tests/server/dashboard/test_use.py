"""What people do with the dashboard: sign in, look up, change."""

import json
import re
import shlex
import subprocess
import sys
from urllib.parse import quote

import pytest
from playwright.sync_api import expect
from server.dashboard.conftest import BIRDS, CLASSES, PAIRS, as_rows
from server.dashboard.payloads import PAYLOADS
from server.served import until

import labelquorum as lq

pytestmark = pytest.mark.browser

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


@pytest.mark.parametrize("wrong", ["lq_ключ", "lq_“a”", "lq a"])
def test_what_cannot_be_a_key_is_told_from_a_lost_service(view, service, wrong):
    page = view.page
    page.goto(f"{service.url}/#key={quote(wrong)}&go=/s/birds")
    page.wait_for_selector("form.login")
    page.fill("input[name=key]", wrong)
    page.press("input[name=key]", "Enter")
    page.wait_for_selector(".form-error:has-text('This is no key')")
    assert view.text("#banner") == "" and page.evaluate("sessionStorage.length") == 0
    view.check()


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
    assert not view.page.locator("text=New stream").first.is_visible()
    view.go("#/s/empty/settings")
    assert view.page.locator(".rules input").first.is_disabled()
    assert "Rules are changed with a key of the scope admin" in view.text(".rules")
    assert not view.page.locator("text=Change rules").is_visible()
    assert "Keys are made and seen with a key of the scope admin" in view.text(".keys")
    view.go("#/s/birds")
    assert "for the stream 'empty' only" in view.text(".state.bad")


def test_a_worker_is_forgotten_only_by_who_may(view, service):
    reader = service.client.make_key("reader", "read", "birds")
    worker = service.client.workers("birds").index[0]
    for secret, may in ((reader, False), (service.secret, True)):
        view.page.goto(f"{service.url}/#key={secret}&go=/s/birds/workers/{worker}")
        view.page.reload()
        view.ready()
        assert view.page.locator("text=Forget this person").is_visible() == may


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
    before = view.text(".stop-figure")
    page.keyboard.press("Home")
    assert view.text(".stop-figure") != before
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


def test_who_agrees_with_whom_is_shown(view, service):
    found = service.client.agreement("birds")
    view.sign_in("/s/birds/agreement")
    page = view.page
    page.wait_for_selector(".maps :is(.heat-table, .heat-canvas)")
    pairs = [
        (kappa, found["workers"][k], found["workers"][j])
        for k, row in enumerate(found["kappa"])
        for j, kappa in enumerate(row)
        if k < j and kappa is not None
    ]
    least = min(pairs, key=lambda pair: pair[0])
    first = page.locator("table:has(caption:text('agree least')) tbody tr").first
    assert [first.locator("a").nth(n).text_content() for n in (0, 1)] == list(least[1:])
    first.locator("a").first.click()
    page.wait_for_selector(".maps")
    assert page.locator("h1").text_content() == least[1]
    view.check()


def test_how_many_judges_the_jury_counts_for_is_shown(view, service):
    found = service.client.jury("birds")
    view.sign_in("/s/birds")
    page = view.page
    page.click("nav a:has-text('Jury')")
    page.wait_for_selector(".figure")
    assert view.text(".figure:nth-child(1) .value") == f"{found['effective']:.1f}"
    assert view.text(".figure:nth-child(2) .value") == str(found["n_judges"])
    assert view.text(".jury-text") == found["text"]
    rows = page.locator("table:has(caption:text('how often each is right')) tbody tr")
    assert rows.count() == len(found["judges"])
    rows.first.locator("a").click()
    page.wait_for_selector(".maps")
    assert page.locator("h1").text_content() == str(found["judges"][0]["worker"])
    view.check()


def test_groups_and_the_order_of_answers_are_shown_on_the_jury_page(view):
    def juries(reply):
        bounds = {"low": 0.4, "high": 0.6}
        reply["groups"] = [
            {"group": "gpt", "by": "model", "judges": ["a", "b"], "correlation": 0.5, **bounds}
            | {"excess": 0.3, "excess_low": 0.1, "effective": 1.3}
        ]
        reply["order_effects"] = [
            {"worker": "a", "other": "b", "order": "AB", "other_order": "BA", "tasks": 40}
            | {"flips": 0.25, "flips_low": 0.1, "flips_high": 0.4, "label": "owl", "shift": 0.5}
            | {**bounds, "first_shown": True}
        ]

    view.alter("/jury$", juries)
    view.sign_in("/s/birds/jury")
    page = view.page
    page.wait_for_selector("table:has(caption:text('Groups of judges'))")
    group = page.locator("table:has(caption:text('Groups of judges')) tbody tr")
    assert group.locator("th, td").all_text_contents()[0] == "gpt"
    assert group.locator("td").last.text_content() == "beyond the others"
    order = page.locator("table:has(caption:text('order of the answers')) tbody tr")
    assert "the first shown" in order.text_content()
    view.check()


def test_one_worker_is_no_jury(view, service):
    service.client.create("alone", classes=list(BIRDS))
    view.sign_in("/s/alone/jury")
    view.page.wait_for_selector(".state:has-text('No jury yet')")
    view.check()


@pytest.mark.parametrize("name", [".", ".."])
def test_a_worker_whose_name_no_address_holds_has_a_page(view, service, name):
    stream = f"dots {len(name)}"
    service.client.create(stream, classes=list(BIRDS), rules=PAIRS)
    said = [(f"t{n}", worker, "owl") for n in range(60) for worker in (name, "v.1")]
    service.client.send(stream, as_rows(said))
    until(lambda: service.client.stream(stream)["counts"]["answered_items"] == 60)
    view.sign_in(f"/s/{stream}/workers")
    page = view.page
    page.locator(".rows a").get_by_text(name, exact=True).click()
    page.wait_for_selector(".heat-table")
    assert page.locator("h1").text_content() == name
    assert view.text(".figure:nth-child(2) .value") == "60"
    assert f"labelquorum forget {name} " in view.text(".danger-zone")
    view.check()


DRAWN = """window.drawn = [];
const real = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...where) {
  window.drawn.push(text);
  return real.call(this, text, ...where);
};"""

# ── what a page says ─────────────────────────────────────────────────────────────────────────


def test_the_reason_of_an_answer_names_how_frequent_the_classes_are(view):
    def lean(reply):
        workers = [("ann", "owl", 0.4), ("bob", "wren", -0.6)]
        reply.update(label="owl", confidence=0.52)
        reply["why"].update(
            workers=[{"worker": w, "label": x, "log_odds": odds} for w, x, odds in workers],
            prior_log_odds=0.3,
            runner_up="wren",
        )

    view.alter("/items/t207$", lean)
    view.sign_in("/s/birds/items/t207")
    view.page.wait_for_selector(".verdict-why a")
    why = "Because ann (0.60) says so, against bob (0.65). owl is more frequent than wren (0.57)."
    assert view.text(".verdict-why") == why
    view.check()


def test_an_item_that_is_answered_anew_is_not_decided_twice(view):
    def again(reply):
        first, last = dict(reply["over_time"][0]), dict(reply["over_time"][-1])
        first.update(items=30, new_items=30)
        last.update(items=20, new_items=5)
        reply.update(over_time=[first, last])
        reply["counts"]["answered_items"] = 35

    view.alter("/birds/summary$", again)
    view.page.add_init_script(DRAWN)
    view.sign_in("/s/birds")
    view.page.wait_for_selector(".chart canvas")
    says = view.page.locator("[aria-label^='Items decided:']").first.get_attribute("aria-label")
    assert says.startswith("Items decided: 35 in all, 5 since ")
    drawn = view.page.evaluate("drawn")
    assert "0" in drawn, "what is filled begins at nothing"
    view.check()


@pytest.mark.parametrize(
    ("labels", "high", "tone"), [(1, 0.3, ""), (40, 0.8, ""), (40, 0.3, "warn")]
)
def test_a_worker_is_marked_of_late_only_where_the_doubt_allows_it(view, labels, high, tone):
    def lately(reply):
        last = {"labels": labels, "agreement": 0.0, "low": 0.0, "high": high, "crowd": 0.7}
        reply["track"][-1].update(last)

    view.alter("/workers/w03$", lately)
    view.sign_in("/s/birds/workers/w03")
    late = view.page.locator(".figure:has-text('Agrees with the others, recently')")
    expect(late).to_have_attribute("data-tone", tone)
    view.check()


def test_the_unsure_are_found_from_the_overview(view):
    view.sign_in("/s/birds")
    view.page.click("text=See the unsure")
    view.page.wait_for_selector(".rows tr")
    assert view.page.input_value("select[aria-label='Which items']") == "unsure"
    expect(view.page.locator(".rows")).not_to_contain_text("Undecided")
    view.check()


EDGES = """() => [...document.querySelectorAll("table.ask tr")].slice(0, 2).map((row) =>
  [...row.cells].filter((one) => one.checkVisibility()).map((one) => {
    const { paddingLeft, paddingRight, textAlign } = getComputedStyle(one);
    return [paddingLeft, paddingRight, textAlign === "right"];
  }))"""


@pytest.mark.parametrize("width", [390, 800])
def test_whom_to_ask_is_told_on_a_narrow_page_too(seen, width):
    with seen(width) as view:
        view.sign_in("/s/birds/ask")
        view.page.wait_for_selector("table.ask tbody tr")
        heads = view.page.locator("table.ask th[scope=col]:visible").all_text_contents()
        assert heads == ["Task", "Answer", "Gain", "Ask"]
        head, first = view.page.evaluate(EDGES)
        assert head == first
        assert view.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        view.check()


def test_an_empty_stream_gives_lines_that_send_its_first_label(view, service, tmp_path):
    name = "it's new $HOME"
    service.client.create(name, classes=["yes", "no"], rules=PAIRS)
    view.sign_in(f"/s/{quote(quote(name))}")
    lines = view.page.locator(".first-labels pre").all_text_contents()
    program, command = (one.replace("KEY", service.secret) for one in lines)
    subprocess.run([sys.executable, "-c", program], check=True)
    view.page.wait_for_selector(".state:has-text('1 label of 1 item wait')")
    assert service.url in command and "/v1/streams/it'\\''s%20new%20%24HOME/labels" in command
    sent = json.loads(shlex.split(command)[-1])
    assert sent == [{"task": "photo1", "worker": "ann", "label": "yes"}]
    view.go("#/s/empty")
    view.page.click("button[aria-label='Copy the lines for Python']")
    expect(view.page.locator(".first-labels button").first).to_have_text(
        re.compile("Copied|Marked")
    )
    view.check()


def test_what_is_not_known_of_an_item_is_not_called_closed(view):
    view.alter("/items/t207$", lambda reply: reply.update(open=None, why=None, gain=None))
    view.sign_in("/s/birds/items/t207")
    view.page.wait_for_selector(".verdict")
    assert "Whether it is open is not known" in view.text(".verdict")
    assert "losed" not in view.text("main") and "Why is not known." in view.text(".verdict-why")
    view.check()


def test_the_bar_fetches_no_picture_that_could_be_lost(view):
    view.sign_in("/s/birds")
    assert view.page.locator("#bar img").count() == 0
    expect(view.page.locator("#bar .brand svg.logo circle")).to_have_count(3)
    view.check()


@pytest.mark.parametrize(
    ("head", "ways"),
    [
        ("Worker", ("ascending", "descending")),
        ("Labels", ("descending", "ascending")),
        ("Agrees", ("ascending", "descending")),
        ("Flags", ("descending", "ascending")),
    ],
)
def test_workers_are_sorted_both_ways(view, head, ways):
    view.sign_in("/s/birds/workers?sort=place")
    page, firsts = view.page, []
    page.wait_for_selector(".rows tr")
    for way in ways:
        with page.expect_response(re.compile("/workers[?]")):
            page.click(f"th button:has-text('{head}')")
        expect(page.locator("th[aria-sort]")).to_have_attribute("aria-sort", way)
        assert page.locator("th[aria-sort]").text_content().startswith(head)
        assert page.input_value("select[aria-label=Order]").strip("-") != "place"
        page.wait_for_function(
            "(old) => document.querySelector('.rows td').textContent !== old",
            arg=firsts[-1] if firsts else "",
        )
        firsts.append(page.locator(".rows td").first.text_content())
    view.check()


def test_numbers_and_rules_are_told_in_the_words_of_the_page(view):
    view.alter(
        "/birds/summary$", lambda reply: reply["counts"].update(waiting_items=1, waiting_labels=1)
    )
    view.sign_in("/s/birds")
    waiting = view.page.locator(".figure:has-text('Waiting')")
    expect(waiting).to_contain_text("item, with 1 label")
    reply = view.page.evaluate("""async () => {
      const { inOurWords, points } = await import("/assets/format.js");
      const sentence = "`rules.labels_per_item` must be 1. `grace` must be 0.";
      return [points(0.0001), points(0), points(0.02), inOurWords(sentence)];
    }""")
    assert [one.replace("\u202f", " ") for one in reply] == [
        "< 0.1 pt",
        "0 pt",
        "+2.0 pt",
        "“Labels per item” must be 1. “Answered items stay open” must be 0.",
    ]
    view.check()


def test_the_page_of_a_worker_tells_skill_in_percent_and_calls_nobody_he(view):
    view.sign_in("/s/birds/workers/w09")
    view.page.wait_for_selector(".heat-table td")
    assert re.fullmatch(r"[<>]?\s?[\d.]+\s%", view.text(".figure .value"))
    assert not re.search(r"\b(he|his|him)\b", view.text("main"), re.IGNORECASE)
    view.check()


# ── many classes ─────────────────────────────────────────────────────────────────────────────

COUNTED = """() => {
  const real = getComputedStyle;
  window.asked = 0;
  window.getComputedStyle = (...given) => { window.asked += 1; return real(...given); };
}"""


def test_a_matrix_of_many_classes_is_a_picture_with_a_cursor(view):
    view.sign_in(f"/s/{quote(quote(CLASSES, safe=''))}/workers/v")
    page = view.page
    maps = page.locator("canvas.heat-canvas")
    expect(maps).to_have_count(2)
    pixels = "(canvas) => canvas.toDataURL()"
    own, readout = maps.first, page.locator(".heat-figure .readout").first
    plain = own.evaluate(pixels)
    assert plain != maps.last.evaluate(pixels)
    own.focus()
    page.keyboard.press("ArrowDown")
    expect(readout).to_contain_text(f"Truth {PAYLOADS[1]}, says {PAYLOADS[0]}: ")
    marked = own.evaluate(pixels)
    assert marked != plain
    page.evaluate(COUNTED)
    own.scroll_into_view_if_needed()
    box = own.bounding_box()
    for n in range(10, 30):
        page.mouse.move(*(box[at] + (n + 0.5) * box["width"] / 60 for at in ("x", "y")))
        expect(readout).to_contain_text(f"Truth {PAYLOADS[n]}, says {PAYLOADS[n]}: ")
    assert page.evaluate("asked") == 0, "a colour is asked for at each move"
    page.keyboard.press("ArrowUp")
    expect(readout).to_contain_text(f"Truth {PAYLOADS[28]}, says {PAYLOADS[29]}: ")
    moved = own.evaluate(pixels)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(
        "([canvas, old]) => canvas.toDataURL() !== old", arg=[own.element_handle(), moved]
    )
    view.check()


# ── changing things ──────────────────────────────────────────────────────────────────────────


def test_a_stream_is_made_in_the_form(view, service):
    view.sign_in()
    page = view.page
    page.click("text=New stream")
    page.fill("dialog input[name=name]", "birds")
    page.click("dialog button[type=submit]")
    page.wait_for_selector("dialog .form-error:has-text('already')")
    view.faults.clear()  # the browser itself notes a 409
    page.fill("dialog input[name=name]", "made by hand")
    page.fill("dialog textarea", "yes\nno")
    page.click("dialog button[type=submit]")
    page.wait_for_selector(".state:has-text('No labels yet')")
    made = service.client.stream("made by hand")
    assert made["settings"]["classes"] == ["yes", "no"] and made["rules"]["grace"] is None
    view.check()


@pytest.mark.parametrize(
    ("name", "classes", "sentence"),
    [
        ("one line", "owl, wren", "Write one class a line: “owl, wren” has a comma."),
        ("one class", "owl", "One class leaves nothing to decide."),
        ("n" * 257, "owl\nwren", "A name has 256 characters at most. This one has 257."),
    ],
)
def test_a_stream_that_was_not_meant_so_is_not_made(view, service, name, classes, sentence):
    view.sign_in()
    page = view.page
    page.click("text=New stream")
    assert "It can be changed later" in view.text("dialog")
    page.fill("dialog input[name=name]", name)
    page.fill("dialog textarea", classes)
    page.click("dialog button[type=submit]")
    expect(page.locator("dialog .form-error")).to_contain_text(sentence)
    assert name not in service.client.streams()
    view.check()


def test_rules_and_keys_are_changed_in_the_settings(view, service):
    service.client.create("ruled", classes=["a", "b"])
    view.sign_in("/s/ruled/settings")
    page = view.page
    page.fill("input[name=chunk_items]", "7")
    page.fill("input[name=max_wait]", "")
    page.click("text=Change rules")
    page.wait_for_selector(".report:has-text('The new rules hold')")
    rules = service.client.stream("ruled")["rules"]
    assert rules["chunk_items"] == 7 and rules["max_wait"] is None
    page.fill(".keys input", "for a friend")
    page.click("text=Make key")
    secret = page.locator(".secret code").text_content()
    with lq.Client(service.url, secret) as friend:
        assert friend.streams() == ["ruled"]
    page.click("button[aria-label='Revoke the key for a friend']")
    page.click("dialog[open] >> text=Cancel")
    with lq.Client(service.url, secret) as friend:
        assert friend.streams() == ["ruled"]
    page.click("button[aria-label='Revoke the key for a friend']")
    assert "for a friend" in view.text("dialog[open] h2")
    page.click("text=Revoke for good")
    page.wait_for_selector("tr.gone:has-text('for a friend')")
    view.check()


def test_a_stream_is_renamed_and_then_deleted_by_typing_its_name(view, service):
    client = service.client
    client.create("old name", classes=["a", "b"])
    client.create("taken", classes=["a", "b"])
    secret = client.make_key("its own", "admin", "old name")
    page = view.page
    page.goto(f"{service.url}/#key={secret}&go=/s/old%20name/settings")
    view.ready()
    page.fill(".rename input", "taken")
    page.click("text=Rename")
    page.wait_for_selector(".rename .form-error:has-text('taken')")
    page.fill(".rename input", "new <b>name")
    page.click("text=Rename")
    page.wait_for_url("**/settings")
    page.wait_for_selector(".crumb:has-text('new <b>name')")
    view.ready()
    assert "old name" not in client.streams() and "new <b>name" in client.streams()
    assert page.locator(".rules input").first.is_enabled()  # the key is still for this stream
    page.click("text=Delete this stream…")
    end = page.locator("dialog[open] button[type=submit]")
    assert end.is_disabled()
    page.fill("dialog[open] input", "new name")
    page.press("dialog[open] input", "Enter")
    assert end.is_disabled() and "new <b>name" in client.streams()
    page.click("dialog[open] >> text=Cancel")
    page.click("text=Delete this stream…")
    assert page.input_value("dialog[open] input") == ""
    page.fill("dialog[open] input", "new <b>name")
    end.click()
    page.wait_for_selector("form.login")  # the key went with its stream
    assert "new <b>name" not in client.streams() and "taken" in client.streams()


def test_a_deleted_stream_leaves_the_list_and_only_an_admin_may_delete(view, service):
    service.client.create("short lived", classes=["a", "b"])
    reader = service.client.make_key("looks", "read", "short lived")
    view.page.goto(f"{service.url}/#key={reader}&go=/s/short%20lived/settings")
    view.ready()
    assert not view.page.locator(".rename-delete").is_visible()
    view.sign_in("/s/short%20lived/settings")
    view.page.reload()
    view.ready()
    view.page.click("text=Delete this stream…")
    view.page.fill("dialog[open] input", "short lived")
    view.page.press("dialog[open] input", "Enter")
    view.page.wait_for_selector("table.streams")
    names = view.page.locator("table.streams tbody th a").all_text_contents()
    assert "short lived" not in names and "birds" in names
    view.check()


@pytest.mark.parametrize("format", ["csv", "jsonl", "parquet"])
def test_results_are_taken_away(view, format):
    view.sign_in("/s/birds/settings")
    names = {"csv": "CSV", "jsonl": "JSON lines", "parquet": "Parquet"}
    with view.page.expect_download() as waiting:
        view.page.click(f"button[aria-label='Items as {names[format]}']")
    body = waiting.value.path().read_bytes()
    assert waiting.value.suggested_filename == f"birds-items.{format}" and b"t000" in body
    if format == "jsonl":
        assert len([json.loads(line) for line in body.splitlines()]) >= 500
    view.check()


def test_the_list_of_what_to_ask_is_taken_away(view):
    view.sign_in("/s/birds/ask")
    view.page.wait_for_selector("table.ask tbody tr")
    first = view.text("table.ask tbody th")
    with view.page.expect_download() as waiting:
        view.page.click("button:has-text('CSV')")
    assert waiting.value.suggested_filename == "birds-ask-next.csv"
    lines = waiting.value.path().read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("task") and lines[1].startswith(first)
    view.check()


def test_the_expected_error_and_the_certificate_stand_on_the_overview(view, service):
    view.sign_in("/s/birds")
    page, client = view.page, service.client
    figure = view.text(".figure:has(dt:text-is('Expected error'))")
    n_gold = client.expected_error("birds")["n_gold"]
    assert n_gold >= 60 and f"corrected on {n_gold} gold" in figure and "to" in figure
    page.wait_for_selector(".certificate [data-certified]")
    page.fill("#certify-error", "10")
    page.click("button:has-text('Certify')")
    page.wait_for_selector(".certificate [data-certified=yes]")
    found = client.certificate("birds", 0.1)
    assert f"{found['accepted']} answers may stand" in view.text(".certificate")
    shown = page.locator(".certificate .todo a").all_text_contents()
    assert shown == [str(task) for task in found["todo"][: len(shown)]] and shown
    with page.expect_download() as download:
        page.click(".certificate button:has-text('as CSV')")
    lines = download.value.path().read_text(encoding="utf-8").splitlines()
    assert len(lines) == found["todo_tasks"] + 1
    page.fill("#certify-error", "0.2")
    page.press("#certify-error", "Enter")
    page.wait_for_selector(".certificate [data-certified=no]")
    assert "drawn at random" in view.text(".certificate")
    view.check()


def test_a_certificate_that_is_refused_is_told_in_a_sentence(view):
    view.page.route(re.compile(r"/certificate\?"), lambda route: route.fulfill(status=503, body=""))
    view.sign_in("/s/birds")
    view.page.wait_for_selector(".certificate .form-error")
    assert "503" in view.text(".certificate")
