"""Label Studio's recorded payloads, sent to the service as Label Studio sends them."""

import json
from pathlib import Path

import pytest
from server.served import until

from labelquorum.store.database import schema

RECORDED = Path(__file__).parents[1] / "label_studio"


@pytest.fixture
def hook(running, admin, stream):
    """Send a recorded event, changed or not, with its own headers and a key of the stream."""
    secret = running.secret("write", admin.get(stream).json()["name"])

    def send(name, key=secret, query="", edit=None, **changes):
        request = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
        headers = {"Content-Type": "application/json", **request["headers"]}
        headers["Authorization"] = f"Bearer {key}"
        if edit is not None:
            edit(request["body"])
        if changes:
            request["body"]["annotation"].update(changes)
        return anonymous.post(
            f"{stream}/hooks/label-studio{query}", json=request["body"], headers=headers
        )

    anonymous = running.client(scope=None)
    return send


def waiting(admin, stream):
    """How many labels wait for each task."""
    found = admin.get(f"{stream}/items", params={"undecided": True}).json()["items"]
    return {one["task"]: one["labels"] for one in found}


def shown(reply):
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_an_annotation_is_created_updated_emptied_and_comes_back(hook, admin, stream):
    assert shown(hook("annotation_created"))["accepted"] == 1
    assert waiting(admin, stream) == {1: 1}
    reply = shown(hook("annotation_updated"))
    assert (reply["accepted"], reply["retracted"]) == (1, 1)
    assert waiting(admin, stream) == {1: 1}
    reply = shown(hook("annotation_emptied"))
    assert (reply["accepted"], reply["retracted"]) == (0, 1)
    assert reply["skipped"] == {"no choice": 1}
    assert waiting(admin, stream) == {}


def test_a_deleted_annotation_is_taken_back_and_stays_away(hook, admin, stream):
    hook("annotation_created")
    hook("annotation_created_by_another", task=2)
    assert waiting(admin, stream) == {1: 1, 2: 1}
    assert shown(hook("annotations_deleted"))["retracted"] == 1
    assert waiting(admin, stream) == {1: 1}
    reply = shown(hook("annotation_created_by_another", task=2))  # it comes late
    assert (reply["accepted"], reply["skipped"]) == (0, {"outdated": 1})


def test_what_comes_twice_counts_once(hook, admin, stream):
    shown(hook("annotation_created"))
    assert shown(hook("annotation_created"))["skipped"] == {"outdated": 1}
    assert admin.get(stream).json()["counts"]["waiting_labels"] == 1


def test_an_older_state_does_not_take_the_place_of_a_later_one(hook, admin, stream):
    shown(hook("annotation_updated"))  # wren
    assert shown(hook("annotation_created"))["skipped"] == {"outdated": 1}  # owl
    shown(hook("annotation_created_by_another"))  # wren
    shown(hook("annotation_created", id=90, task=2, completed_by=2))
    shown(hook("annotation_created", id=91, task=2, completed_by=3))
    answers = until(lambda: admin.get(f"{stream}/items").json()["items"])
    assert {one["task"]: one["label"] for one in answers} == {1: "wren", 2: "owl"}


def test_after_the_answer_a_correction_is_late_and_a_deletion_does_nothing(hook, admin, stream):
    for number, (task, worker) in enumerate([(1, 2), (1, 3), (2, 2), (2, 3)], 1):
        shown(hook("annotation_created", id=number, task=task, completed_by=worker))
    until(lambda: len(admin.get(f"{stream}/items").json()["items"]) == 2)
    late = shown(hook("annotation_updated"))
    assert late["late"] == 1 and "`grace`" in late["reason"]
    assert shown(hook("annotations_deleted"))["retracted"] == 0
    assert [one["label"] for one in admin.get(f"{stream}/items").json()["items"]] == ["owl"] * 2


@pytest.mark.parametrize("name", ["tasks_created", "tasks_deleted", "project_updated"])
def test_events_without_annotations_are_taken_politely(hook, admin, stream, name):
    assert shown(hook(name))["skipped"] == {"no annotation": 1}
    assert waiting(admin, stream) == {}


def test_a_skipped_annotation_is_counted_and_no_label(hook, admin, stream):
    assert shown(hook("annotation_skipped"))["skipped"] == {"skipped by the annotator": 1}
    assert waiting(admin, stream) == {}


def test_an_export_brings_what_was_missed_once(hook, admin, stream):
    shown(hook("annotations_created"))
    reply = shown(hook("export"))
    assert (reply["action"], reply["accepted"]) == ("export", 0)
    assert reply["skipped"]["outdated"] == 1
    assert waiting(admin, stream) == {1: 1}


def test_one_bad_annotation_of_an_export_does_not_keep_the_others_out(hook, admin, stream):
    def edit(tasks):
        [good] = [one for one in tasks[0]["annotations"] if one["result"]]
        bad = json.loads(json.dumps(good).replace("wren", "eagle"))
        long = {**good, "task": "x" * 1000}
        tasks[0]["annotations"] = [
            {**one, "id": number} for number, one in enumerate([good, bad, long, good], 50)
        ]

    reply = shown(hook("export", edit=edit))
    assert (reply["accepted"], reply["skipped"]["refused"]) == (2, 2)
    assert waiting(admin, stream) == {1: 1}


def test_tasks_may_have_names_of_their_own(hook, admin, stream):
    shown(hook("annotation_created", query="?task=code&control=bird"))
    assert waiting(admin, stream) == {"q1": 1}


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("annotation_of_two_choices", "a label is one choice"),
        ("annotation_of_two_controls", "?control=NAME"),
        ("annotation_created_without_payload", "Send payload"),
    ],
)
def test_what_is_no_label_is_refused_with_the_way_out(hook, name, sentence):
    reply = hook(name)
    assert reply.status_code == 422
    assert sentence in reply.json()["error"]


def test_a_class_that_the_stream_does_not_have_is_refused_and_changes_nothing(hook, admin, stream):
    shown(hook("annotation_created"))
    choice = {"from_name": "bird", "type": "choices", "value": {"choices": ["eagle"]}}
    reply = hook("annotation_updated", result=[choice])
    assert reply.status_code == 422
    assert "'eagle' is not one of the classes" in reply.json()["error"]
    assert waiting(admin, stream) == {1: 1}


def test_the_key_is_that_of_the_stream_with_the_scope_write(hook, running, admin, stream):
    name = admin.get(stream).json()["name"]
    assert hook("annotation_created", key="wrong").status_code == 401
    assert hook("annotation_created", key=running.secret("read", name)).status_code == 403
    admin.post("/v1/streams", json={"name": f"beside {name}"[:200]})
    other = running.secret("write", f"beside {name}"[:200])
    assert hook("annotation_created", key=other).status_code == 403
    assert waiting(admin, stream) == {}


def test_a_large_deletion_is_done_by_the_learner_and_counts_once(hook, admin, stream):
    choice = {"from_name": "bird", "type": "choices", "value": {"choices": ["owl"]}}
    numbers = range(1000, 1120)
    tasks = [
        {
            "id": number,
            "annotations": [
                {"id": number, "task": number, "project": 1, "completed_by": 1, "result": [choice]}
            ],
        }
        for number in numbers
    ]
    assert admin.post(f"{stream}/hooks/label-studio", json=tasks).json()["accepted"] == 120

    def only(body):
        body["annotations"] = [{"id": number} for number in numbers]

    assert shown(hook("annotations_deleted", edit=only))["retracted"] == 120
    assert waiting(admin, stream) == {}
    reply = shown(hook("annotations_deleted", edit=only))
    assert (reply["retracted"], reply["skipped"]) == (0, {"outdated": 120})


def test_a_deletion_with_an_id_that_cannot_be_kept_is_refused_and_recorded_nowhere(
    hook, running, stream
):
    def edit(body):
        body["annotations"] = [{"id": number} for number in (*range(60), 10**300)]

    reply = hook("annotations_deleted", edit=edit)
    assert reply.status_code == 422 and "`key` must be text of 1 to 256 bytes" in reply.text
    with running.store.read() as connection:
        assert connection.execute(schema.jobs.select()).all() == []
