"""How far answers can be trusted, over HTTP."""

import csv
import io

import numpy as np
import pytest
from server.served import until

import labelquorum as lq

N_ITEMS = 120


@pytest.fixture(scope="module")
def wrens(running, admin):
    """A stream that has answered all its items, a third of which are gold drawn at random."""
    rng, rows = np.random.default_rng(3), []
    truth = {f"Task {n:03d}": int(rng.integers(2)) for n in range(N_ITEMS)}
    for task, true in truth.items():
        for worker in range(4):
            label = true if rng.random() < 0.85 else 1 - true
            rows.append({"task": task, "worker": f"w{worker}", "label": label})
    rules = {"labels_per_item": 4, "chunk_items": 20, "grace": 0, "max_chunk_wait": None}
    made = {"name": "wrens", "settings": {"classes": [0, 1]}, "rules": rules}
    assert admin.post("/v1/streams", json=made).status_code == 201
    admin.post("/v1/streams/wrens/labels", json=rows)
    path = "/v1/streams/wrens"
    until(lambda: admin.get(path).json()["counts"]["answered_items"] == N_ITEMS)
    return path, {task: truth[task] for task in sorted(truth, key=lambda _: rng.random())[:40]}


def test_gold_corrects_the_error_and_brings_a_certificate(admin, running, wrens):
    path, gold = wrens
    own = admin.get(f"{path}/expected_error").json()
    assert own["method"] == "model" and own["low"] < own["estimate"] < own["high"]
    refused = admin.get(f"{path}/certificate", params={"error": 0.1}).json()
    assert not refused["certified"] and refused["todo_tasks"] == N_ITEMS
    assert len(refused["todo"]) == 100 and str(refused["gold_needed"]) in refused["says"]
    admin.post(f"{path}/gold", json=gold)
    corrected = admin.get(f"{path}/expected_error", params={"level": 0.8}).json()
    assert (corrected["n_gold"], corrected["level"]) == (40, 0.8)
    assert "corrected on 40 gold tasks" in corrected["says"]
    found = admin.get(f"{path}/certificate", params={"error": 0.1, "limit": 5}).json()
    assert found["certified"] and len(found["todo"]) == min(5, found["todo_tasks"])
    assert found["accepted"] + found["gold"] + found["todo_tasks"] == N_ITEMS
    assert not set(found["todo"]) & set(gold)
    summary = admin.get(f"{path}/summary").json()
    assert summary["expected_error"] == admin.get(f"{path}/expected_error").json()
    with lq.Client(str(admin.base_url), running.secret("read", "wrens")) as client:
        assert client.certificate("wrens", 0.1, limit=5) == found
        assert client.expected_error("wrens", 0.8) == corrected


def test_the_tasks_a_person_must_still_see_can_be_downloaded(admin, wrens):
    answer = admin.get(f"{wrens[0]}/certificate", params={"error": 0.05, "format": "csv"})
    assert answer.headers["content-type"].startswith("text/csv")
    assert "todo.csv" in answer.headers["content-disposition"]
    reply = admin.get(f"{wrens[0]}/certificate", params={"error": 0.05, "limit": 1000}).json()
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["task"] for row in rows] == reply["todo"] and len(rows) == reply["todo_tasks"]


def test_a_stream_without_answers_says_so(admin, stream):
    answer = admin.get(f"{stream}/expected_error")
    assert answer.status_code == 409 and "has answered nothing yet" in answer.json()["error"]
    found = admin.get(f"{stream}/certificate").json()
    assert not found["certified"] and found["reason"] == "no task has an answer yet."
    assert admin.get(f"{stream}/summary").json()["expected_error"] is None


@pytest.mark.parametrize("params", [{"error": 0}, {"error": 1}, {"confidence": 1.5}, {"limit": 0}])
def test_shares_out_of_range_are_refused(admin, stream, params):
    assert admin.get(f"{stream}/certificate", params=params).status_code == 422
