"""Crafted input: a key like a webhook's, a name twice in an object, rows no store would write."""

import sqlite3
import subprocess
import sys

import pytest
from faults.service import running

from labelquorum.store.store import Store

pytestmark = pytest.mark.kill

CLASSES = ["owl", "wren"]
CHOICE = {"from_name": "bird", "type": "choices", "value": {"choices": ["owl"]}}
ANNOTATION = {"id": 9, "task": 3, "project": 1, "completed_by": 4, "result": [CHOICE]}
EVENT = {"action": "ANNOTATION_CREATED", "annotation": ANNOTATION}
LABEL = {"task": "t", "worker": "w", "label": "owl"}
TWICE = {
    "gold": ('{"t": "owl", "t": "wren"}', "application/json"),
    "labels": ('{"task": "a", "task": "b", "worker": "w", "label": "owl"}', "application/json"),
    "labels?on_bad=error": (
        '{"task": "a", "task": "b", "worker": "w", "label": "owl"}',
        "application/x-ndjson",
    ),
}


def test_a_key_or_a_name_twice_of_a_client_changes_nothing_that_is_anothers(
    tmp_path, record_property
):
    with running(tmp_path / "store") as service, service.client() as http:
        made = {"name": "s", "settings": {"classes": CLASSES}, "rules": {"max_wait": None}}
        http.post("/v1/streams", json=made).raise_for_status()
        path, forged = "/v1/streams/s", {"Idempotency-Key": "label-studio 1 9 9999"}
        refused = [
            http.post(f"{path}/labels", json=LABEL, headers=forged),
            http.post(f"{path}/gold", json={"t": "owl"}, headers=forged),
        ]
        heard = http.post(f"{path}/hooks/label-studio", json=EVENT).json()
        statuses = []
        for where, (body, kind) in TWICE.items():
            headers = {"Content-Type": kind}
            reply = http.post(f"{path}/{where}", content=body, headers=headers)
            statuses.append(reply.status_code)
            assert (
                reply.status_code == 200
                or "'t' twice" in reply.text
                or "'task' twice" in reply.text
            )
        record_property("annotations outdated by a client's key", 1 - heard["accepted"])
        record_property("bodies with a name twice accepted", statuses.count(200))
        assert heard["accepted"] == 1 and statuses == [422] * len(TWICE)
        assert [one.status_code for one in refused] == [422, 422]
        assert "must not begin with 'label-studio '" in refused[0].json()["error"]


@pytest.mark.parametrize(
    ("command", "change"),
    [
        (["doctor", "--store"], "settings = json_remove(settings, '$.repeats')"),
        (["serve", "--port", "0"], "moment = 'noon'"),
    ],
)
def test_a_store_with_a_row_that_is_no_streams_ends_in_a_sentence(
    tmp_path, command, change, record_property
):
    with Store.open(tmp_path / "store") as store:
        store.create("s")
    with sqlite3.connect(tmp_path / "store" / "labelquorum.db") as connection:
        connection.execute(f"UPDATE streams SET {change}")
    connection.close()
    (tmp_path / "store" / "labelquorum.seal").unlink(missing_ok=True)  # which notes every change
    done = subprocess.run(
        [sys.executable, "-m", "labelquorum", *command, str(tmp_path / "store")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    record_property("tracebacks", done.stderr.count("Traceback"))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "row of stream 's' cannot be read" in done.stderr
