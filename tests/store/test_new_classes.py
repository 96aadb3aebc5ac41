"""Labels that would become unintended classes are refused when they come."""

import pytest

from labelquorum.errors import LabelError
from labelquorum.learn import model
from labelquorum.store import new_classes
from labelquorum.store.accept import Revision
from labelquorum.store.batch import Submission
from labelquorum.store.rules import Rules
from labelquorum.store.store import Store

RULES = Rules(labels_per_item=2, chunk_items=1, max_chunk_wait=0)
TWO = r"Stream 's': label '1' \(task 't2', worker 'bob'\) is text, and the label 1 of type int: "


def learned(stream):
    stream.accept({"t1": {"ann": 1, "bob": 0}})
    stream.settle()
    assert stream.classes() == [0, 1]


@pytest.mark.parametrize("state", ["waiting", "cut", "learned", "learned before a restart"])
def test_a_number_and_the_text_that_reads_alike_are_no_two_classes(store, where, clock, state):
    stream = store.create("s", rules=RULES)
    stream.accept({"t1": {"ann": 1, "bob": 0}})
    if state != "waiting":
        stream.cut()
    if state.startswith("learned"):
        stream.settle()
    if state.endswith("restart"):
        store.close()
        store = Store.open(where, clock)
        stream = store.stream("s")
    with pytest.raises(LabelError, match=TWO + "they would be two classes. Nothing of this was"):
        stream.accept({"t2": {"bob": "1"}})
    stream.accept({"t2": {"bob": 1}})
    assert stream.count()["waiting_labels"] == (3 if state == "waiting" else 1)
    store.close()


def test_one_table_with_both_is_refused_and_others_of_its_group_are_not(store):
    stream = store.create("s", rules=RULES)
    sent = [{"a": {"w": "1"}}, {"b": {"w": 1}}, {"c": {"w": "1"}}, {"d": {"w": 2, "v": "2"}}]
    first, second, third, fourth = stream.accept_all([Submission(one) for one in sent])
    assert first.accepted == third.accepted == 1
    assert isinstance(second, LabelError) and isinstance(fourth, LabelError)


def test_a_truth_is_of_the_type_of_the_labels(store):
    stream = store.create("s", rules=RULES)
    learned(stream)
    with pytest.raises(LabelError, match=r"label '1' \(true label of task 't1'\) is text"):
        stream.gold({"t1": "1"})
    stream.gold({"t1": 1, "t5": "owl"})
    with pytest.raises(LabelError, match="two classes"):
        stream.gold({"t2": "0"})


def test_a_label_that_was_taken_back_is_no_class(store):
    stream = store.create("s", rules=RULES)
    stream.accept({"t1": {"ann": 1}})
    stream.retract("t1", "ann")
    stream.accept({"t1": {"ann": "1"}})
    revision = Revision("ls 7 ", Submission({"t2": {"ann": "2"}}, "ls 7 1"))
    stream.revise_all([revision])
    [again] = stream.revise_all([Revision("ls 7 ", Submission({"t2": {"ann": "3"}}, "ls 7 2"))])
    assert again.retracted == 1
    stream.accept({"t3": {"ann": 2}})
    [refused] = stream.revise_all([Revision("ls 8 ", Submission({"t4": {"ann": 3}}, "ls 8 1"))])
    assert isinstance(refused, LabelError)


@pytest.mark.parametrize("as_text", [False, True], ids=["numbers", "texts"])
def test_fractions_by_the_dozen_are_no_classes(store, as_text):
    assert new_classes.MAX_FRACTIONAL_CLASSES == model.MAX_FRACTIONAL_CLASSES
    value = str if as_text else float
    stream = store.create("s", rules=RULES)
    stream.accept({f"t{n}": {"ann": value(n + 0.5)} for n in range(50)})
    stream.accept({"t50": {"ann": value(7.5)}, "t51": {"ann": value(7)}})
    with pytest.raises(LabelError, match=r"is a fraction, and with it there are 51 .* Bin them"):
        stream.accept({"t52": {"ann": value(99.5)}})
    listed = store.create("listed", rules=RULES, classes=[value(n + 0.5) for n in range(60)])
    listed.accept({f"t{n}": {"ann": value(n + 0.5)} for n in range(60)})


def test_a_stream_that_has_both_classes_already_takes_them(store):
    stream = store.create("s", rules=RULES)
    with pytest.MonkeyPatch.context() as before:
        before.setattr(new_classes.NewClasses, "errors", lambda *_: {})
        stream.accept({"t1": {"ann": 1, "bob": "1"}})
    again = store.stream("s")
    assert again.accept({"t2": {"ann": 1, "bob": "1"}}).accepted == 2


def test_a_label_that_was_refused_in_a_revision_is_refused_the_next_time_too(store):
    stream = store.create("revised")
    stream.accept({"t1": {"a": "1"}})
    revision = Revision("v:", Submission({"t2": {"a": 1}}, key="v:1"))
    for _ in range(2):
        (outcome,) = stream.revise_all([revision])
        assert isinstance(outcome, LabelError)
        with pytest.raises(LabelError, match="two classes"):
            stream.accept({"t3": {"b": 1}})


def test_twins_in_revisions_that_come_together_are_refused(store):
    stream = store.create("together")
    first, second = stream.revise_all(
        [
            Revision("v:", Submission({"t1": {"a": "1"}}, key="v:1")),
            Revision("w:", Submission({"t2": {"a": 1}}, key="w:1")),
        ]
    )
    assert not isinstance(first, LabelError) and isinstance(second, LabelError)


def test_a_truth_may_follow_a_label_that_was_retracted(store):
    stream = store.create("retracted")
    stream.accept({"t1": {"a": 1, "b": "x"}, "t5": {"b": "x"}})
    stream.retract("t1", "a")
    stream.gold({"t5": "1"})
