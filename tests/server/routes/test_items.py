"""Answers over HTTP: items, why, workers, pending, chunks, the model; counted and written down."""

import io
import json

import numpy as np
import pytest
from server.served import serving, until

import labelquorum as lq
from labelquorum.evaluation import class_conditional_crowd, label_table
from labelquorum.store.store import Store

N_ITEMS = 40


@pytest.fixture(scope="module")
def crowd():
    table = label_table(class_conditional_crowd(N_ITEMS, 9, 3, labels_per_item=3, seed=5))
    rows = zip(table.item_ids, table.worker_ids, table.labels, strict=True)
    return [{"task": task, "worker": worker, "label": label} for task, worker, label in rows]


@pytest.fixture(scope="module")
def birds(running, admin, crowd):
    """A stream that has answered all its items, and keeps them open."""
    rules = {"labels_per_item": 3, "chunk_items": 10, "grace": 3600, "retention": "keep"}
    settings = {"classes": [0, 1, 2]}
    admin.post("/v1/streams", json={"name": "birds", "settings": settings, "rules": rules})
    for row in crowd:
        assert admin.post("/v1/streams/birds/labels", json=row).json()["accepted"] == 1
    path = "/v1/streams/birds"
    until(lambda: admin.get(path).json()["counts"]["answered_items"] == N_ITEMS)
    return path


def pages(client, path, what, **params):
    """All there is, page by page, and how many pages it took."""
    found, cursor, n_pages = [], None, 0
    while True:
        params |= {} if cursor is None else {"cursor": cursor}
        answer = client.get(path, params=params)
        assert answer.status_code == 200, answer.text
        found += answer.json()[what]
        n_pages += 1
        cursor = answer.json()["next"]
        if cursor is None:
            return found, n_pages


def test_a_stream_fed_label_by_label_answers_as_the_library_fed_the_same_chunks(
    running, admin, birds, crowd
):
    settings = admin.get(birds).json()["settings"]
    model = lq.BiLA(classes=[0, 1, 2], seed=settings["seed"], open_items=N_ITEMS)
    chunks, _ = pages(admin, f"{birds}/chunks", "chunks")
    assert [chunk["items"] for chunk in chunks] == [10] * 4
    expected = {}
    for chunk in chunks:
        rows = crowd[chunk["first_row"] - 1 : chunk["last_row"]]
        table = lq.ingest.labels.LabelTable(
            *([row[name] for row in rows] for name in ("task", "worker", "label"))
        )
        model.partial_fit(table)
        expected |= dict(zip(model.labels_.index, model.labels_, strict=True))
    answers, _ = pages(admin, f"{birds}/items", "items")
    assert {item["task"]: item["label"] for item in answers} == expected


def test_items_come_in_pages_each_once(admin, birds):
    items, n_pages = pages(admin, f"{birds}/items", "items", limit=7)
    assert n_pages == 6
    assert sorted(item["task"] for item in items) == sorted({item["task"] for item in items})
    assert len(items) == N_ITEMS
    assert set(items[0]) == {"task", "label", "confidence", "labels", "chunk"}


def test_items_are_found_by_confidence_and_by_change(admin, birds):
    every, _ = pages(admin, f"{birds}/items", "items")
    middle = sorted(item["confidence"] for item in every)[N_ITEMS // 2]
    unsure, _ = pages(admin, f"{birds}/items", "items", confidence_below=middle, limit=3)
    assert {i["task"] for i in unsure} == {i["task"] for i in every if i["confidence"] < middle}
    later, _ = pages(admin, f"{birds}/items", "items", changed_since=2)
    assert {i["task"] for i in later} == {i["task"] for i in every if i["chunk"] > 2}
    both = admin.get(f"{birds}/items", params={"undecided": True, "changed_since": 1})
    assert both.status_code == 422


def test_an_item_says_why(admin, birds, crowd):
    answer = admin.get(f"{birds}/items/{crowd[0]['task']}").json()
    assert sum(answer["probabilities"].values()) == pytest.approx(1)
    assert answer["probabilities"][str(answer["label"])] == pytest.approx(answer["confidence"])
    assert answer["open"] is True
    said = {row["worker"]: row["label"] for row in crowd if row["task"] == crowd[0]["task"]}
    assert {one["worker"]: one["label"] for one in answer["why"]["workers"]} == said
    assert all(np.isfinite(one["log_odds"]) for one in answer["why"]["workers"])
    gain = answer["gain"]
    assert 0 <= gain["mean"] <= gain["worker_gain"] and gain["worker"] not in said


def test_an_item_that_is_closed_does_not_say_why(admin, stream):
    for worker in ("ann", "bob"):
        for task in ("a/b?c", "007"):
            label = {"task": task, "worker": worker, "label": "owl"}
            admin.post(f"{stream}/labels", json=label)
    answer = until(lambda: (a := admin.get(f"{stream}/items/a%2Fb%3Fc").json())["label"] and a)
    assert answer["task"] == "a/b?c" and answer["why"] is None and answer["open"] is False
    assert answer["gain"] is None
    assert admin.get(f"{stream}/items/007").json()["task"] == "007"
    assert admin.get(f"{stream}/items/7").status_code == 404


def test_an_item_without_an_answer_is_undecided(admin, stream):
    admin.post(f"{stream}/labels", json={"task": "t", "worker": "ann", "label": "owl"})
    answer = admin.get(f"{stream}/items/t").json()
    assert answer["label"] is None and answer["labels"] == 1 and answer["why"] is None
    found, _ = pages(admin, f"{stream}/items", "items", undecided=True)
    assert [item["task"] for item in found] == ["t"]
    assert pages(admin, f"{stream}/items", "items")[0] == []


def test_workers_are_told_with_bounds_and_their_matrices(admin, birds, crowd):
    workers, n_pages = pages(admin, f"{birds}/workers", "workers", limit=4)
    assert n_pages == 3 and {w["worker"] for w in workers} == {row["worker"] for row in crowd}
    for worker in workers:
        assert 0 <= worker["low"] <= worker["skill"] <= worker["high"] <= 1
        assert np.sum(worker["confusion"], axis=1) == pytest.approx([1, 1, 1], abs=1e-5)
        assert 0 <= worker["agreed"] <= worker["labels"]
    one = admin.get(f"{birds}/workers/{workers[0]['worker']}").json()
    assert one["labels"] == sum(row["worker"] == one["worker"] for row in crowd)
    assert one["classes"] == [0, 1, 2]
    assert one["trend"]["recent_labels"] == one["labels"]  # all of them are kept here
    assert 0 <= one["trend"]["recent"] <= 1
    assert admin.get(f"{birds}/workers/nobody").status_code == 404


def test_workers_are_compared_with_one_another(admin, birds, crowd):
    found = admin.get(f"{birds}/agreement").json()
    assert set(found["workers"]) == {row["worker"] for row in crowd}
    said = {(row["task"], row["worker"]): row["label"] for row in crowd}
    one, two = found["workers"][:2]
    both = [task for task, worker in said if worker == one and (task, two) in said]
    assert found["shared"][0][1] == len(both) > 0
    same = sum(said[task, one] == said[task, two] for task in both) / len(both)
    assert found["agreement"][0][1] == pytest.approx(same)
    assert found["low"][0][1] <= found["kappa"][0][1] <= found["high"][0][1]
    assert found["kappa"][0][0] is None
    fewer = admin.get(f"{birds}/agreement", params={"limit": 2}).json()
    assert len(fewer["workers"]) == 2 and fewer["left_out"] == len(found["workers"]) - 2
    assert admin.get(f"{birds}/agreement", params={"limit": 1}).status_code == 422


def test_the_jury_is_reported(admin, birds, crowd):
    found = admin.get(f"{birds}/jury").json()
    workers = {row["worker"] for row in crowd}
    assert found["n_judges"] == len(workers) and found["items"] > 0
    assert {row["worker"] for row in found["judges"]} == workers
    assert 1 <= found["low"] <= found["effective"] <= found["high"] <= len(workers)
    assert found["text"].startswith(f"{len(workers)} judges count as")
    assert all(row["low"] <= row["reliability"] <= row["high"] for row in found["judges"])
    fewer = admin.get(f"{birds}/jury", params={"limit": 2}).json()
    assert len(fewer["judges"]) == 2 and fewer["left_out"] == len(workers) - 2
    assert admin.get(f"{birds}/jury", params={"limit": 1}).status_code == 422


def test_pending_items_come_least_sure_first(admin, birds):
    items = admin.get(f"{birds}/pending", params={"threshold": 0.9, "limit": 5}).json()["items"]
    sure = [item["confidence"] for item in items]
    assert sure == sorted(sure) and all(c < 0.9 for c in sure) and len(items) <= 5
    assert all(item["open"] for item in items)
    assert admin.get(f"{birds}/pending", params={"threshold": 2}).status_code == 422


def test_the_model_is_a_file_the_library_loads(admin, birds, tmp_path):
    answer = admin.get(f"{birds}/model")
    assert answer.headers["content-type"] == "application/octet-stream"
    (tmp_path / "model.lq").write_bytes(answer.content)
    model = lq.load(tmp_path / "model.lq")
    workers, _ = pages(admin, f"{birds}/workers", "workers")
    skills = dict(zip(model.workers_.tolist(), model.skills_.tolist(), strict=True))
    for worker in workers:
        assert worker["skill"] == pytest.approx(skills[worker["worker"]], abs=1e-6)


def test_rules_are_changed_while_it_runs_and_wrong_ones_are_refused(admin, stream):
    changed = admin.patch(stream, json={"chunk_items": 9, "max_chunk_wait": None})
    assert changed.json()["rules"]["chunk_items"] == 9
    assert changed.json()["rules"]["max_chunk_wait"] is None
    for wrong in ({"chunk_items": 0}, {"chunk_items": None}, {"nothing": 1}, {"grace": "1"}, []):
        refused = admin.patch(stream, json=wrong)
        assert refused.status_code == 422, wrong
    assert admin.get(stream).json()["rules"]["chunk_items"] == 9


@pytest.mark.parametrize(
    "wanted",
    [
        {"name": ""},
        {"name": "a/b"},
        {"name": "a\nb"},
        {"name": "x" * 300},
        {"name": "x", "method": "nonsense"},
        {"name": "x", "settings": {"classes": []}},
        {"name": "x", "settings": {"classes": "ab"}},
        {"name": "x", "settings": {"classes": [["a"]]}},
        {"name": "x", "settings": {"classes": ["a", "a"]}},
        {"name": "x", "settings": {"classes": list(range(2000))}},
        {"name": "x", "settings": {"nonsense": 1}},
        {"name": "x", "settings": {"self": 1}},
        {"name": "x", "settings": {"rules": 1}},
        {"name": "x", "settings": {"repeats": "error"}},
        {"name": "x", "rules": {"retention": "burn"}},
        {"name": "x", "more": 1},
    ],
    ids=str,
)
def test_a_stream_that_makes_no_sense_is_not_made(admin, wanted):
    answer = admin.post("/v1/streams", json=wanted)
    assert answer.status_code == 422 and answer.json()["status"] == 422, answer.text


def test_a_name_is_taken_once(admin, stream):
    name = admin.get(stream).json()["name"]
    assert admin.post("/v1/streams", json={"name": name}).status_code == 409


def test_what_happens_is_counted(admin, running, birds):
    text = admin.get("/metrics").text
    assert f'labelquorum_labels_total{{outcome="accepted",stream="birds"}} {3 * N_ITEMS}.0' in text
    assert 'labelquorum_model_version{stream="birds"} 4.0' in text
    assert 'labelquorum_chunks_behind{stream="birds"} 0.0' in text
    route = 'route="/v1/streams/{stream}/labels",status="200"'
    assert f'labelquorum_requests_total{{method="POST",{route}}}' in text
    admin.get("/v1/never/heard/of/it")
    assert "never" not in admin.get("/metrics").text


def test_what_was_taken_is_there_after_a_restart(tmp_path):
    with serving(tmp_path / "store") as service:
        admin = service.client()
        admin.post("/v1/streams", json={"name": "s", "settings": {"classes": ["a", "b"]}})
        admin.post("/v1/streams/s/labels", json={"task": 1, "worker": 2, "label": "a"})
        secret = service.secret("read", "s")
    with Store.open(tmp_path / "store") as store:
        assert store.stream("s").count()["waiting_labels"] == 1
    with serving(tmp_path / "store") as service:
        client = service.client(None)
        client.headers["Authorization"] = f"Bearer {secret}"
        assert client.get("/v1/streams/s").json()["counts"]["waiting_labels"] == 1


def test_every_line_of_the_log_is_one_event_whatever_it_is_called(tmp_path):
    lines = io.StringIO()
    from labelquorum.server.config import Log

    Log(lines).write("refused", path='a\n{"event": "forged"}\r\x1b[2J\u2028', client=object())
    [line] = lines.getvalue().split("\n")[:-1]
    assert line.isascii() and line.isprintable()
    assert json.loads(line)["path"] == 'a\n{"event": "forged"}\r\x1b[2J\u2028'
