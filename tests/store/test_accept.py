"""Labels that are put in another's place, or taken back, by what their keys begin with."""

import pytest
import sqlalchemy as sa
from store.conftest import store_on

from labelquorum.errors import LabelError, LimitError
from labelquorum.ingest.labels import LabelTable
from labelquorum.store.accept import Revised, Revision
from labelquorum.store.batch import Submission, decode
from labelquorum.store.database import schema
from labelquorum.store.rules import Rules

where = store_on("sqlite", "postgresql")
NOTHING = LabelTable([], [], [])
PATIENT = Rules(labels_per_item=3, chunk_items=1, max_wait=None, retention="discard", grace=0)


def said(number, moment, task="t", worker="a", label="x"):
    """Annotation `number` as it is at a moment."""
    beginning = f"note {number} "
    labels = NOTHING if label is None else {task: {worker: label}}
    return Revision(beginning, Submission(labels, f"{beginning}{moment}"))


def held(store):
    """The labels that are there, as (task, worker, label)."""
    labels = schema.labels.c
    query = sa.select(labels.item, labels.worker, labels.label).order_by(labels.row)
    with store.read() as connection:
        return [tuple(map(decode, row)) for row in connection.execute(query)]


@pytest.mark.parametrize("repeats", ["last", "first", "majority", "all"])
def test_a_later_state_takes_the_place_of_an_earlier_one_whatever_a_repeat_means(store, repeats):
    stream = store.create("s", rules=PATIENT, repeats=repeats)
    assert stream.revise_all([said(1, "m1")]) == [Revised(1, 0, 0)]
    assert stream.revise_all([said(1, "m2", label="y")]) == [Revised(1, 0, 1)]
    assert held(store) == [("t", "a", "y")]
    assert stream.item("t").n_labels == 1


def test_a_state_that_holds_no_label_takes_back_what_was_said(store):
    stream = store.create("s", rules=PATIENT)
    stream.revise_all([said(1, "m1"), said(2, "m1", worker="b")])
    assert stream.revise_all([said(1, "m2", label=None)]) == [Revised(0, 0, 1)]
    assert held(store) == [("t", "b", "x")]
    stream.revise_all([said(2, "m2", label=None)])
    assert stream.item("t") is None
    assert stream.count()["waiting_items"] == 0


def test_one_of_two_annotations_of_a_worker_can_go_and_the_other_stays(store):
    stream = store.create("s", rules=PATIENT)
    stream.revise_all([said(1, "m1"), said(2, "m1", label="y")])
    stream.revise_all([said(2, "m2", label=None)])
    assert held(store) == [("t", "a", "x")]


def test_number_10_is_not_a_state_of_number_1(store):
    stream = store.create("s", rules=PATIENT)
    stream.revise_all([said(1, "m1"), said(10, "m1", worker="b"), said(1, "m2", label=None)])
    assert held(store) == [("t", "b", "x")]


def test_what_comes_twice_or_after_a_later_state_changes_nothing(store):
    stream = store.create("s", rules=PATIENT)
    outdated = Revised(0, 0, 0, outdated=True)
    stream.revise_all([said(1, "m2", label="y")])
    assert stream.revise_all([said(1, "m2", label="y"), said(1, "m1")]) == [outdated, outdated]
    assert held(store) == [("t", "a", "y")]
    stream.revise_all([said(1, "~", label=None), said(2, "~", label=None)])  # gone for good
    assert stream.revise_all([said(1, "m3"), said(2, "m1")]) == [outdated, outdated]
    assert held(store) == []


def test_what_was_cut_stays_and_a_correction_is_late(store):
    stream = store.create("s", rules=PATIENT.changed(labels_per_item=1))
    stream.revise_all([said(1, "m1")])
    stream.cut()
    assert stream.revise_all([said(1, "m2", label="y")]) == [Revised(0, 1, 0)]
    assert stream.revise_all([said(1, "m3", label=None)]) == [Revised(0, 0, 0)]
    assert held(store) == [("t", "a", "x")]


def test_while_an_item_is_open_a_correction_is_honoured(store):
    stream = store.create("s", rules=PATIENT.changed(labels_per_item=2, grace=60.0))
    stream.revise_all([said(1, "m1"), said(2, "m1", worker="b")])
    stream.settle()
    assert stream.revise_all([said(n, "m2", worker=w, label="y") for n, w in ((1, "a"), (2, "b"))])
    stream.settle()
    [answer] = stream.answers()
    assert (answer.label, answer.n_labels) == ("y", 2)


def test_an_item_that_is_corrected_keeps_its_moment_and_readiness(store, clock):
    stream = store.create("s", rules=PATIENT.changed(max_wait=100.0, max_chunk_wait=0.0))
    stream.revise_all([said(1, "m1")])
    clock.time += 99
    stream.revise_all([said(1, "m2", label="y")])
    assert stream.cut() is None
    clock.time += 1
    assert stream.cut().n_labels == 1


def test_an_item_that_loses_a_label_by_revision_is_less_ready(store):
    stream = store.create("s", rules=PATIENT.changed(labels_per_item=2))
    stream.revise_all([said(1, "m1"), said(2, "m1", worker="b"), said(2, "m2", label=None)])
    assert stream.cut() is None
    stream.revise_all([said(3, "m1", worker="c")])
    assert stream.cut().n_labels == 2


def test_a_revision_that_is_refused_changes_nothing_and_the_others_do_not_mind(store):
    stream = store.create("s", classes=["x", "y"], rules=PATIENT.changed(max_workers=1))
    stream.revise_all([said(1, "m1")])
    refused = [said(1, "m2", label="z"), said(2, "m1", worker="b"), said(3, "m1", task="u")]
    no_class, too_many, good = stream.revise_all(refused)
    assert isinstance(no_class, LabelError)
    assert isinstance(too_many, LimitError)
    assert good == Revised(1, 0, 0)
    assert held(store) == [("t", "a", "x"), ("u", "a", "x")]
    assert stream.revise_all([said(1, "m2", label="y")]) == [Revised(1, 0, 1)]
