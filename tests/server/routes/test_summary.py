"""What a dashboard asks for: summaries, the worker table, what to ask, downloads."""

import csv
import io
import json
import threading

import numpy as np
import pyarrow.parquet
import pytest
from juries import MISLED_SEED, jury_rows
from server.routes.test_items import pages
from server.served import until

from labelquorum.server import large_answers
from labelquorum.server.request_parsing import cursor_of
from labelquorum.server.routes import export, items

N_ITEMS, N_WORKERS = 80, 9


@pytest.fixture(scope="module")
def owls(admin):
    """A stream that has answered all its items, and keeps them open, with a spammer."""
    rng = np.random.default_rng(7)
    rows = []
    for task, truth in enumerate(rng.integers(0, 3, N_ITEMS).tolist()):
        for worker in sorted(rng.choice(N_WORKERS, 4, replace=False).tolist()):
            label = truth if rng.random() < 0.85 else int(rng.integers(0, 3))
            rows.append({"task": f"Task {task:02d}", "worker": f"w{worker}", "label": label})
        rows.append({"task": f"Task {task:02d}", "worker": "=spam", "label": 2})
    rules = {"labels_per_item": 5, "chunk_items": 10, "grace": 3600, "max_chunk_wait": None}
    made = {"name": "owls", "settings": {"classes": [0, 1, 2]}, "rules": rules}
    assert admin.post("/v1/streams", json=made).status_code == 201
    assert admin.post("/v1/streams/owls/labels", json=rows).json()["accepted"] == len(rows)
    path = "/v1/streams/owls"
    until(lambda: admin.get(path).json()["counts"]["answered_items"] == N_ITEMS)
    return path


def test_a_summary_tells_what_its_answers_are(admin, owls):
    reply = admin.get(f"{owls}/summary").json()
    items, _ = pages(admin, f"{owls}/items", "items")
    assert reply["name"] == "owls" and reply["classes"] == [0, 1, 2]
    assert reply["counts"] == admin.get(owls).json()["counts"]
    for one in reply["balance"]:
        assert one["items"] == sum(item["label"] == one["label"] for item in items)
        assert one["share"] == pytest.approx(one["items"] / N_ITEMS)
        assert 0 < one["prior"] < 1 and 0 <= one["recent_share"] <= 1
    edges, bars = reply["confidence"]["edges"], reply["confidence"]["items"]
    assert (edges[0], edges[-1], len(bars)) == (0, 1, len(edges) - 1)
    for low, high, bar in zip(edges, edges[1:], bars, strict=False):
        last = high == 1
        assert bar == sum(low <= i["confidence"] < high or (last and i["confidence"] == 1)
                          for i in items)  # fmt: skip
    assert [one["items"] for one in reply["over_time"]] == [10] * 8
    assert sum(one["labels"] for one in reply["over_time"]) == 5 * N_ITEMS
    mean = sum(item["confidence"] for item in items if item["chunk"] == 1) / 10
    assert reply["over_time"][0]["mean_confidence"] == pytest.approx(mean, abs=1e-5)
    assert [one["id"] for one in reply["last_chunks"]] == [8, 7, 6, 5, 4, 3, 2, 1]
    assert all(one["applied_at"] >= one["cut_at"] for one in reply["last_chunks"])
    assert 0 <= reply["update"]["p50_seconds"] <= reply["update"]["p99_seconds"]
    assert reply["workers"] == N_WORKERS + 1
    assert reply["gold"] is None and reply["chunks_behind"] == 0
    flagged, _ = pages(admin, f"{owls}/workers", "workers", flag="any")
    assert reply["flagged"] == len(flagged) >= 1


def test_a_summary_has_the_error_on_gold_with_its_interval(admin, stream):
    rows = [
        {"task": task, "worker": worker, "label": "owl"}
        for task in ("a", "b", "c", "d")
        for worker in ("ann", "bob")
    ]
    admin.post(f"{stream}/labels", json=rows)
    until(lambda: admin.get(stream).json()["counts"]["answered_items"] == 4)
    assert admin.get(f"{stream}/summary").json()["gold"] is None
    admin.post(f"{stream}/gold", json={"a": "wren", "b": "owl", "c": "owl"})
    gold = admin.get(f"{stream}/summary").json()["gold"]
    assert (gold["items"], gold["wrong"]) == (3, 1) and gold["error"] == pytest.approx(1 / 3)
    assert gold["low"] == pytest.approx(0.0615, abs=1e-3)  # Wilson's of 1 in 3
    assert gold["high"] == pytest.approx(0.7923, abs=1e-3)


def test_a_summary_counts_the_workers_that_are_listed(admin, stream):
    rows = [{"task": "only one", "worker": "ann", "label": "owl"}]
    assert admin.post(f"{stream}/labels", json=rows).json()["accepted"] == 1  # and it waits
    listed = admin.get(f"{stream}/workers", params={"sort": "flags"}).json()["total"]
    assert admin.get(f"{stream}/summary").json()["workers"] == listed == 0


def test_a_summary_of_a_stream_without_labels_is_empty(admin, stream):
    reply = admin.get(f"{stream}/summary").json()
    assert reply["counts"]["answered_items"] == reply["flagged"] == reply["workers"] == 0
    assert reply["over_time"] == reply["last_chunks"] == reply["warnings"] == []
    assert reply["update"] == {"p50_seconds": None, "p99_seconds": None, "last_seconds": None}
    assert sum(reply["confidence"]["items"]) == 0
    assert admin.get(f"{stream}/stopping").json() == {
        "items": 0,
        "labels": 0,
        "curve": [],
        "chunks": 0,
    }
    assert admin.get(f"{stream}/workers", params={"brief": True}).json() == {
        "workers": [],
        "next": None,
        "total": 0,
    }


def test_streams_are_told_in_full_to_who_may_read_them(running, admin, owls, stream):
    plain = admin.get("/v1/streams").json()
    assert set(plain) == {"streams"}
    full = admin.get("/v1/streams", params={"full": True}).json()
    assert full["streams"] == plain["streams"] == [one["name"] for one in full["details"]]
    [one] = [one for one in full["details"] if one["name"] == "owls"]
    described = admin.get(owls).json()
    assert one["counts"] == described["counts"] and one["rules"] == described["rules"]
    assert one["classes"] == [0, 1, 2] and len(one["spark"]) == 60
    mine = running.client("read", "owls").get("/v1/streams", params={"full": True}).json()
    assert mine["streams"] == ["owls"] and [one["name"] for one in mine["details"]] == ["owls"]


@pytest.mark.parametrize("sort", ["task", "confidence", "-confidence", "newest"])
@pytest.mark.parametrize("more", [{}, {"search": "task"}, {"label": "1"}], ids=str)
def test_items_come_in_every_order_each_once(admin, owls, sort, more):
    every, _ = pages(admin, f"{owls}/items", "items")
    found, n_pages = pages(admin, f"{owls}/items", "items", sort=sort, limit=7, **more)
    wanted = [item for item in every if "label" not in more or item["label"] == 1]
    assert n_pages == -(-len(wanted) // 7) and len(found) == len(wanted)
    assert sorted(item["task"] for item in found) == [item["task"] for item in wanted]
    order = {
        "task": lambda item: item["task"],
        "confidence": lambda item: (item["confidence"], item["task"]),
        "-confidence": lambda item: -item["confidence"],
        "newest": lambda item: -item["chunk"],
    }[sort]
    keys = [order(item) for item in found]
    assert keys == sorted(keys)
    total = admin.get(f"{owls}/items", params={"sort": sort, **more}).json()["total"]
    assert total == len(wanted)


def test_items_are_found_by_a_part_of_their_ids(admin, stream):
    tasks = ['say "owl"', "back\\slash", "OWL-7", 7, 77, "żółw", "100%", "a_b", "axb"]
    for task in tasks:
        rows = [{"task": task, "worker": worker, "label": "owl"} for worker in ("ann", "bob")]
        assert admin.post(f"{stream}/labels", json=rows).status_code == 200
    admin.post(f"{stream}/labels", json={"task": "owlet", "worker": "ann", "label": "owl"})
    until(lambda: admin.get(stream).json()["counts"]["answered_items"] >= 8)

    def found(search, **more):
        reply = admin.get(f"{stream}/items", params={"search": search, **more}).json()
        assert reply["total"] == len(reply["items"])
        return {item["task"] for item in reply["items"]}

    admin.patch(stream, json={"max_chunk_wait": 0})
    until(lambda: admin.get(stream).json()["counts"]["answered_items"] == 9)
    assert found("owl") == {'say "owl"', "OWL-7"}
    assert found('"') == {'say "owl"'} and found("\\") == {"back\\slash"}
    assert found("7") == {"OWL-7", 7, 77} and found("77") == {77}
    assert found("ółw") == {"żółw"} and found("%") == {"100%"} and found("_") == {"a_b"}
    assert found("nothing") == found("\x00") == set()
    assert found("owl", undecided=True) == {"owlet"} and found("OWL", undecided=True) == {"owlet"}


def test_the_first_page_of_items_is_made_once_until_something_happens(
    running, admin, stream, monkeypatch
):
    looks, find = [], items.find_items

    def noted(known, *about):
        looks.append(about)
        return find(known, *about)

    monkeypatch.setattr(items, "find_items", noted)
    until(lambda: admin.get(f"{stream}/items").json()["items"] == [])
    monkeypatch.setattr(running.app.service.responses, "ttl", 1e9)
    admin.get(f"{stream}/items")
    looks.clear()
    assert [admin.get(f"{stream}/items").json()["total"] for _ in range(5)] == [0] * 5
    assert looks == []
    rows = [{"task": t, "worker": w, "label": "owl"} for t in "xy" for w in ("ann", "bob")]
    admin.post(f"{stream}/labels", json=rows)
    until(lambda: admin.get(stream).json()["counts"]["answered_items"] == 2)
    assert admin.get(f"{stream}/items").json()["total"] == 2
    assert admin.post(f"{stream}/gold", json={"x": "wren"}).status_code == 200
    reply = admin.get(f"{stream}/items").json()["items"]
    assert [item["label"] for item in reply] == ["wren", "owl"] and len(looks) == 2


def test_too_many_searches_are_refused(running, admin, owls, monkeypatch):
    monkeypatch.setattr("labelquorum.server.turns.MAX_WAITING_PER_STREAM", 0)
    for params in ({"search": "task 1"}, {"label": "1", "limit": 3}):
        refused = admin.get(f"{owls}/items", params=params)
        assert refused.status_code == 503 and "Retry-After" in refused.headers
    assert admin.get(f"{owls}/items").status_code == 200


def test_a_cursor_of_another_order_is_refused(admin, owls):
    def begun(sort):
        params = {"sort": sort, "limit": 2}
        return admin.get(f"{owls}/items", params=params).json()["next"]

    for sort, cursor in (("task", begun("newest")), ("newest", begun("task"))):
        answer = admin.get(f"{owls}/items", params={"sort": sort, "cursor": cursor})
        assert answer.status_code == 422 and "another order" in answer.json()["error"]


@pytest.mark.parametrize(
    ("page", "sort", "place"),
    [
        ("items", "confidence", [float("inf"), "t"]),
        ("items", "confidence", [float("nan"), "t"]),
        ("items", "newest", [2**63, "t"]),
        ("items", "newest", [-(10**400), "t"]),
        ("items", "newest", [True, "t"]),
        ("workers", "place", 2**63),
        ("chunks", "task", -(2**64)),
    ],
)
def test_a_forged_cursor_is_refused(admin, owls, page, sort, place):
    params = {"sort": sort, "cursor": cursor_of(place)}
    answer = admin.get(f"{owls}/{page}", params=params)
    assert answer.status_code == 422 and "`cursor` must be" in answer.json()["error"]


ORDERS = {
    "worker": lambda one: one["worker"],
    "labels": lambda one: -one["labels"],
    "agreement": lambda one: one["agreed"] / one["labels"],
    "skill": lambda one: one["skill"],
    "flags": lambda one: -len(one["flags"]),
}


@pytest.mark.parametrize("sort", [*ORDERS, *(f"-{sort}" for sort in ORDERS)])
def test_workers_come_in_every_order_each_once(admin, owls, sort):
    found, n_pages = pages(admin, f"{owls}/workers", "workers", sort=sort, limit=4, brief=True)
    assert n_pages == 3 and len({one["worker"] for one in found}) == N_WORKERS + 1
    keys = [ORDERS[sort.strip("-")](one) for one in found]
    assert keys == sorted(keys, reverse=sort.startswith("-"))
    assert all(one["low"] <= one["skill"] <= one["high"] for one in found)
    assert not any("confusion" in one for one in found)


def test_a_cursor_of_a_worker_who_is_gone_is_refused(admin, owls):
    first = admin.get(f"{owls}/workers", params={"sort": "labels", "limit": 2}).json()
    params = {"sort": "labels", "search": "=spam", "cursor": first["next"]}
    assert first["workers"][-1]["worker"] != "=spam"
    answer = admin.get(f"{owls}/workers", params=params)
    assert answer.status_code == 422 and "no longer in this list" in answer.json()["error"]


def test_so_many_downloads_are_open_and_no_more(running, admin, owls, monkeypatch):
    monkeypatch.setattr(large_answers, "MAX_OPEN_PER_KEY", 1)
    may_end, write = threading.Event(), export._items

    def held_up(*about):
        assert may_end.wait(30)
        write(*about)

    monkeypatch.setattr(export, "_items", held_up)
    with admin.stream("GET", f"{owls}/export") as slow:
        refused = admin.get(f"{owls}/export")
        assert refused.status_code == 503 and "Retry-After" in refused.headers
        with running.client("read").stream("GET", f"{owls}/export") as other:
            monkeypatch.setattr(large_answers, "MAX_OPEN", 2)
            assert running.client("read").get(f"{owls}/export").status_code == 503
            may_end.set()
            assert slow.read() == other.read()
    until(lambda: not running.app.large.open.total())
    assert admin.get(f"{owls}/export").status_code == 200
    may_end.clear()
    with admin.stream("GET", f"{owls}/export"):
        pass  # its reader goes away
    may_end.set()
    until(lambda: not running.app.large.open.total())


def test_a_spammer_is_flagged_with_the_reason(admin, owls):
    found = admin.get(f"{owls}/workers", params={"search": "SPAM"}).json()
    assert found["total"] == 1
    [spammer] = found["workers"]
    assert spammer["worker"] == "=spam" and len(spammer["confusion"]) == 3
    [flag] = spammer["flags"]
    assert flag["flag"] == "one_answer" and "2" in flag["says"] and flag["score"] >= 0.95
    named = admin.get(f"{owls}/workers", params={"flag": "one_answer", "brief": True}).json()
    assert [one["worker"] for one in named["workers"]] == ["=spam"]
    assert admin.get(f"{owls}/workers", params={"flag": "nonsense"}).status_code == 422


def test_a_worker_is_shown_beside_the_crowd_and_over_time(admin, owls):
    one = admin.get(f"{owls}/workers/%3Dspam").json()
    assert [flag["flag"] for flag in one["flags"]] == ["one_answer"]
    assert [sum(row) for row in one["crowd_confusion"]] == pytest.approx([1, 1, 1])
    assert [stretch["chunk"] for stretch in one["track"]] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert sum(stretch["labels"] for stretch in one["track"]) == N_ITEMS
    chunks = admin.get(f"{owls}/chunks").json()["chunks"]
    assert [stretch["at"] for stretch in one["track"]] == [one["applied_at"] for one in chunks]
    for stretch in one["track"]:
        assert 0 <= stretch["low"] <= stretch["agreement"] <= stretch["high"] <= 1
    assert one["changes"] == []
    first = one["confuses"][0]
    assert first["says"] == 2 != first["truth"] and first["prob"] > first["crowd"] + 0.05
    assert first["prob"] == one["confusion"][first["truth"]][2]


def test_what_decides_a_doubt_is_asked_first(admin):
    rows, _ = jury_rows(MISLED_SEED, sound=False)
    n_items = len({task for task, *_ in rows})
    rules = {"labels_per_item": 2, "chunk_items": n_items, "grace": 3600, "max_chunk_wait": None}
    assert admin.post("/v1/streams", json={"name": "jury", "rules": rules}).status_code == 201
    labels = [{"task": task, "worker": worker, "label": label} for task, worker, label in rows]
    assert admin.post("/v1/streams/jury/labels", json=labels).json()["accepted"] == len(rows)
    path = "/v1/streams/jury"
    until(lambda: admin.get(path).json()["counts"]["answered_items"] == n_items)
    reply = admin.get(f"{path}/ask", params={"limit": 12}).json()
    assert reply["says"] == items.IN_DOUBT and "chosen, not drawn at random" in reply["says"]
    assert [item["decides"] for item in reply["items"]] == [True] * 10 + [False] * 2
    kept = admin.get(f"{path}/ask", params={"limit": 12, "format": "csv"}).text
    assert next(csv.DictReader(io.StringIO(kept)))["decides"].lower() == "true"


def test_what_to_ask_next_is_ranked_by_gain(admin, owls):
    reply = admin.get(f"{owls}/ask", params={"limit": 5}).json()
    assert reply["open_items"] == N_ITEMS and reply["says"] is None and len(reply["items"]) == 5
    gains = [item["gain"] for item in reply["items"]]
    assert gains == sorted(gains, reverse=True) and gains[0] > 0
    assert all(item["open"] and item["worker_gain"] >= item["gain"] for item in reply["items"])
    item = admin.get(f"{owls}/items/{reply['items'][0]['task']}").json()
    assert item["gain"]["mean"] == pytest.approx(gains[0])
    assert item["gain"]["worker"] == reply["items"][0]["worker"]


def test_the_list_of_what_to_ask_can_be_downloaded(admin, owls):
    answer = admin.get(f"{owls}/ask", params={"limit": 5, "format": "csv"})
    assert answer.headers["content-type"].startswith("text/csv")
    assert "attachment" in answer.headers["content-disposition"]
    reply = admin.get(f"{owls}/ask", params={"limit": 5}).json()["items"]
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["task"] for row in rows] == [item["task"] for item in reply]


def test_of_a_stream_that_closes_its_items_those_are_named_that_wait(admin, stream):
    rows = [
        {"task": task, "worker": worker, "label": label}
        for task in ("a", "b")
        for worker, label in (("ann", "owl"), ("bob", "wren"))
    ]
    admin.post(f"{stream}/labels", json=[*rows, {"task": "w", "worker": "ann", "label": "owl"}])
    until(lambda: admin.get(stream).json()["counts"]["answered_items"] == 2)
    reply = admin.get(f"{stream}/ask").json()
    assert [item["task"] for item in reply["items"]] == ["w", "a", "b"]
    assert [item["open"] for item in reply["items"]] == [True, False, False]
    assert reply["open_items"] == 0 and "`grace` is 0" in reply["says"]
    assert all(item["gain"] is None for item in reply["items"])


def test_stopping_earlier_saves_labels_and_costs_errors(admin, owls):
    reply = admin.get(f"{owls}/stopping").json()
    assert (reply["items"], reply["labels"], reply["chunks"]) == (N_ITEMS, 5 * N_ITEMS, 8)
    used = [point["labels_used"] for point in reply["curve"]]
    errors = [point["expected_error"] for point in reply["curve"]]
    assert used == sorted(used) and used[-1] <= 5 * N_ITEMS
    assert 0 <= errors[-1] < errors[0] < 0.5
    for point in reply["curve"]:
        saved = 1 - point["labels_used"] / (5 * N_ITEMS)
        assert point["labels_saved"] == pytest.approx(saved, abs=1e-3)


def read(answer, kind):
    if kind == "csv":
        return list(csv.DictReader(io.StringIO(answer.text)))
    if kind == "jsonl":
        return [json.loads(line) for line in answer.text.splitlines()]
    return pyarrow.parquet.read_table(io.BytesIO(answer.content)).to_pylist()


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_everything_can_be_downloaded(admin, owls, kind):
    answer = admin.get(f"{owls}/export", params={"what": "items", "format": kind})
    assert answer.status_code == 200
    assert f"items.{kind}" in answer.headers["content-disposition"]
    rows = read(answer, kind)
    items, _ = pages(admin, f"{owls}/items", "items")
    assert [row["task"] for row in rows] == [item["task"] for item in items]
    assert [str(row["label"]) for row in rows] == [str(item["label"]) for item in items]
    answer = admin.get(f"{owls}/export", params={"what": "workers", "format": kind})
    rows = read(answer, kind)
    workers, _ = pages(admin, f"{owls}/workers", "workers")
    names = [one["worker"] for one in workers]
    if kind == "csv":  # a spreadsheet would run what begins so
        names = [f"'{name}" if name.startswith("=") else name for name in names]
    assert [row["worker"] for row in rows] == names
    assert [float(row["skill"]) for row in rows] == pytest.approx([w["skill"] for w in workers])
    assert [row["flags"] for row in rows if row["worker"].endswith("spam")] == ["one_answer"]


def test_who_was_forgotten_is_on_no_board(admin, stream):
    rows = [
        {"task": task, "worker": worker, "label": "owl"}
        for task in ("a", "b")
        for worker in ("ann", "bob")
    ]
    admin.post(f"{stream}/labels", json=rows)
    until(lambda: admin.get(stream).json()["counts"]["answered_items"] == 2)

    def listed():
        found = admin.get(f"{stream}/workers", params={"sort": "skill", "brief": True}).json()
        return {one["worker"] for one in found["workers"]}

    assert listed() == {"ann", "bob"}
    assert admin.delete(f"{stream}/workers/ann").status_code == 200
    until(lambda: listed() == {"bob"})
