"""Label Studio's own payloads, as they were recorded, and what they mean."""

import copy
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelquorum import LabelError, LabelEvent
from labelquorum.ingest.label_studio import read_label_studio

RECORDED = Path(__file__).parents[1] / "server" / "label_studio"
NAMES = sorted(path.stem for path in RECORDED.glob("*.json"))


def body(name):
    return json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))["body"]


def said(heard):
    """The labels of a payload as (task, worker, label)."""
    events = [version.event for version in heard.versions if version.event]
    return [(event.item_id, event.worker_id, event.label) for event in events]


def test_every_kind_of_event_was_recorded():
    actions = {body(name)["action"] for name in NAMES if name != "export"}
    assert actions == {
        "ANNOTATION_CREATED",
        "ANNOTATION_UPDATED",
        "ANNOTATIONS_CREATED",
        "ANNOTATIONS_DELETED",
        "PROJECT_UPDATED",
        "TASKS_CREATED",
        "TASKS_DELETED",
    }


def test_a_choice_is_a_label_of_who_completed_it():
    [version] = read_label_studio(body("annotation_created")).versions
    moment = version.key.removeprefix(version.annotation)
    assert version.annotation == "label-studio 1 1 "
    assert version.event == LabelEvent(1, 2, "owl", timestamp=moment)


def test_an_update_is_a_later_version_of_the_same_annotation():
    names = ("annotation_created", "annotation_updated", "annotation_updated_by_another")
    versions = [read_label_studio(body(name)).versions[0] for name in names]
    assert [version.event.label for version in versions] == ["owl", "wren", "owl"]
    assert len({version.annotation for version in versions}) == 1
    keys = [version.key for version in versions]
    assert keys == sorted(set(keys))


def test_who_corrects_another_leaves_the_label_with_its_annotator():
    payload = body("annotation_updated_by_another")
    assert payload["annotation"]["updated_by"] == 1
    assert said(read_label_studio(payload)) == [(1, 2, "owl")]


def test_two_annotators_are_two_workers():
    assert said(read_label_studio(body("annotation_created_by_another"))) == [(1, 3, "wren")]


@pytest.mark.parametrize(
    ("name", "reason"),
    [("annotation_skipped", "skipped by the annotator"), ("annotation_emptied", "no choice")],
)
def test_an_annotation_that_says_nothing_is_counted_and_takes_back_what_it_said(name, reason):
    heard = read_label_studio(body(name))
    assert [version.event for version in heard.versions] == [None]
    assert heard.skipped == {reason: 1}


def test_a_deletion_names_what_the_versions_of_its_annotation_begin_with():
    [version] = read_label_studio(body("annotation_created_by_another")).versions
    assert read_label_studio(body("annotations_deleted")).deleted == [version.annotation]
    assert len(read_label_studio(body("annotations_deleted_at_once")).deleted) == 2


def test_a_deletion_that_names_nothing_is_counted():
    payload = body("annotations_deleted")
    del payload["annotations"]
    assert read_label_studio(payload).skipped == {"deletion that names no annotation": 1}


@pytest.mark.parametrize("name", ["tasks_created", "tasks_deleted", "project_updated"])
def test_other_events_say_nothing_and_are_no_error(name):
    heard = read_label_studio(body(name))
    assert (heard.versions, heard.deleted) == ([], [])
    assert heard.skipped == {"no annotation": 1}


def test_many_annotations_come_in_one_payload():
    heard = read_label_studio(body("annotations_created"), task="code")
    assert said(heard) == [("q1", 1, "wren")]


def test_an_export_says_what_the_webhooks_said():
    by_hook = read_label_studio(body("annotations_created")).versions
    heard = read_label_studio(body("export"))
    assert set(by_hook) < set(heard.versions)
    assert heard.skipped == {"no choice": 1, "skipped by the annotator": 1, "no label": 1}


def test_a_task_may_be_named_by_a_field_of_its_data():
    assert said(read_label_studio(body("annotation_created"), task="code")) == [("q1", 2, "owl")]
    with pytest.raises(LabelError, match="the task's id is its field 'no'"):
        read_label_studio(body("annotation_created"), task="no")


def test_several_choices_are_refused_by_name():
    with pytest.raises(
        LabelError, match=r"annotation 4: a label is one choice. Got \['owl', 'wren"
    ):
        read_label_studio(body("annotation_of_two_choices"))


def test_of_several_controls_one_has_to_be_named():
    payload = body("annotation_of_two_controls")
    with pytest.raises(LabelError, match=r"Got \['bird', 'mood'\]. Name one .* \?control=NAME"):
        read_label_studio(payload)
    with pytest.raises(LabelError, match="control='nose'"):
        read_label_studio(payload, control="nose")
    assert [label for *_, label in said(read_label_studio(payload, control="bird"))] == ["owl"]
    with pytest.raises(LabelError, match="a label is one choice"):
        read_label_studio(payload, control="mood")


def test_of_several_controls_one_has_to_be_named_where_the_project_is_not_told():
    payload = body("annotation_of_two_controls")
    del payload["project"]
    with pytest.raises(LabelError, match=r"choices for \['bird', 'mood'\]"):
        read_label_studio(payload)


def test_a_webhook_that_sends_no_payload_is_told_how_to():
    with pytest.raises(LabelError, match="Switch on 'Send payload'"):
        read_label_studio(body("annotation_created_without_payload"))


def test_who_is_told_as_an_object_is_the_same_worker():
    payload = body("annotation_created")
    payload["annotation"]["completed_by"] = {"id": 2, "email": "ann@example.org"}
    assert said(read_label_studio(payload)) == [(1, 2, "owl")]
    payload["annotation"]["completed_by"] = None  # the user is gone
    assert read_label_studio(payload).skipped == {"no annotator": 1}


@pytest.mark.parametrize("payload", [None, 7, "text", {}, {"action": 3}, {"annotation": {}}])
def test_what_is_no_payload_is_refused(payload):
    with pytest.raises(LabelError, match="JSON object with an action"):
        read_label_studio(payload)


def places(value, path=()):
    """Where anything stands in a payload."""
    yield path
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(part, (*path, key))


@given(st.data())
def test_a_payload_with_anything_in_a_wrong_place_is_read_or_refused_in_a_sentence(data):
    payload = copy.deepcopy(body(data.draw(st.sampled_from(NAMES))))
    path = data.draw(st.sampled_from([path for path in places(payload) if path]))
    odd = st.sampled_from([None, True, -1, 2.5, "", "9999-12-31T23:59:59-23:59", [], [[]], {}])
    target = payload
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = data.draw(odd)
    try:
        heard = read_label_studio(payload)
    except LabelError as error:
        assert str(error).startswith("Label Studio")
    else:
        assert all(version.key.startswith(version.annotation) for version in heard.versions)
