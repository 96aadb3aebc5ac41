"""The roster: a table becomes a chunk, and nothing else happens until it is admitted."""

import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelquorum.errors import LabelError
from labelquorum.ingest.chunks import id_key, id_order
from labelquorum.ingest.labels import LabelSpace, LabelTable
from labelquorum.ingest.vocabulary import Roster
from labelquorum.learn.open_items import OpenItems

names = st.sampled_from(["t1", "t2", "t10", 3, 2**60, 2**60 + 1, "ü"])
workers = st.sampled_from(["ann", "bob", 7, 2**60, 2**60 + 1])
labels = st.sampled_from(["cat", "dog", 0])
rows = st.lists(st.tuples(names, workers, labels), max_size=25)
# One label each, so that which of them is the last does not depend on the order.
single = st.dictionaries(st.tuples(names, workers), labels, max_size=25)


def table_of(events, **columns):
    item_ids, worker_ids, said = zip(*events, strict=True) if events else ([], [], [])
    return LabelTable(list(item_ids), list(worker_ids), list(said), **columns)


def admitted(*tables, space=None, ledger=None):
    """A roster that has learned these tables, and its ledger."""
    roster, ledger = Roster(space), OpenItems(100) if ledger is None else ledger
    for table in tables:
        intake = roster.read(table, ledger)
        record(roster, ledger, intake)
    return roster, ledger


def record(roster, ledger, intake):
    roster.admit(intake)
    chunk = intake.chunk
    evidence = np.zeros((chunk.n_labels, chunk.n_classes), np.float32)
    probs = np.zeros((chunk.n_items, chunk.n_classes), np.float32)
    answers = np.zeros(chunk.n_items, np.int32)
    ledger.record(intake.item_ids, intake.order, chunk, evidence, probs, answers, intake.notes)


def said(roster, intake):
    """What a chunk says, in the user's own words: (task, worker, label, weight, known)."""
    chunk = intake.chunk
    ids = [*roster.worker_ids, *intake.new_workers]
    classes = [*roster.classes, *intake.new_classes]
    columns = chunk.item, chunk.worker, chunk.label, chunk.weight, chunk.known
    return [
        (intake.item_ids[i], ids[k], classes[c], float(weight), bool(known))
        for i, k, c, weight, known in zip(*columns, strict=True)
    ]


def same_chunk(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


# ── canonical order ──────────────────────────────────────────────────────────────────────


@given(single, single, st.randoms(use_true_random=False))
def test_row_order_changes_neither_the_chunk_nor_the_roster(first, second, random):
    def stream(shuffle):
        roster, ledger = Roster(), OpenItems(100)
        for part in (first, second):
            events = [(*pair, label) for pair, label in part.items()]
            intake = roster.read(table_of(shuffle(events)), ledger)
            record(roster, ledger, intake)
            yield intake.chunk, intake.item_ids, list(roster.worker_ids), list(roster.classes)

    plain = list(stream(lambda events: events))
    shuffled = list(stream(lambda events: random.sample(events, len(events))))
    for one, other in zip(plain, shuffled, strict=True):
        assert same_chunk(one[0], other[0])
        assert one[1:] == other[1:]


@given(rows)
def test_a_chunk_says_what_the_table_said(events):
    roster = Roster(LabelSpace(repeats="all"))
    intake = roster.read(table_of(events))
    spoken = [event[:3] for event in said(roster, intake)]
    assert sorted(spoken, key=repr) == sorted(events, key=repr)
    assert intake.tally.rows == len(events)


@given(rows)
def test_order_tells_which_item_appeared_first(events):
    intake = Roster().read(table_of(events))
    assert [intake.item_ids[i] for i in intake.order] == list(dict.fromkeys(e[0] for e in events))


@given(rows)
def test_items_workers_and_classes_come_in_canonical_order(events):
    intake = Roster().read(table_of(events))
    for values in (intake.item_ids, intake.new_workers, intake.new_classes):
        assert values == sorted(values, key=id_order)


def test_ids_keep_their_type():
    intake = Roster().read(table_of([("7", 7, True), (7, "7", "True")]))
    assert set(map(type, intake.item_ids)) == set(map(type, intake.new_workers)) == {str, int}
    assert set(map(type, intake.new_classes)) == {bool, str}


def test_keys_are_those_of_the_ids_for_known_and_new_workers():
    roster, _ = admitted(table_of([("t", "bob", 0), ("t", "ann", 0)]))
    intake = roster.read(table_of([("u", "eve", 0), ("u", "bob", 0), ("v", "abe", 0)]))
    ids = [*roster.worker_ids, *intake.new_workers]
    expected = [id_key(ids[k]) for k in intake.chunk.workers]
    assert intake.chunk.worker_keys.tolist() == expected
    assert intake.chunk.item_keys.tolist() == [id_key("u"), id_key("v")]


# ── reading changes nothing ──────────────────────────────────────────────────────────────


@given(rows, rows)
def test_reading_is_pure_until_the_intake_is_admitted(first, second):
    roster, ledger = admitted(table_of(first))
    before = copy.deepcopy((vars(roster), ledger.to_arrays(), list(ledger)))
    once = roster.read(table_of(second), ledger)
    again = roster.read(table_of(second), ledger)
    assert same_chunk(once.chunk, again.chunk)
    assert once.tally == again.tally
    after = vars(roster), ledger.to_arrays(), list(ledger)
    assert before[0] == after[0]
    assert before[2] == after[2]
    for name, array in before[1].items():
        np.testing.assert_array_equal(array, after[1][name])


def test_admitting_makes_workers_and_classes_known_after_those_before():
    roster, _ = admitted(table_of([("t", "m", "x")]), table_of([("u", "a", "b"), ("u", "m", "x")]))
    assert roster.worker_ids == ["m", "a"]
    assert roster.classes == ["x", "b"]
    assert roster.worker_index("a") == 1
    assert roster.worker_index("zoe") is None


def test_an_empty_table_is_an_empty_chunk():
    roster, ledger = admitted(table_of([("t", "m", "x")]))
    intake = roster.read(table_of([]), ledger)
    assert (intake.chunk.n_items, intake.chunk.n_labels) == (0, 0)
    assert (intake.chunk.n_workers, intake.chunk.n_classes) == (1, 1)


def test_a_class_outside_the_fixed_list_is_refused_with_its_line():
    roster = Roster(LabelSpace(classes=("cat", "dog")))
    table = table_of([("t", "ann", "cat"), ("t", "bob", "Cat")], source="labels.csv", lines=[2, 3])
    with pytest.raises(LabelError, match=r"labels.csv line 3: label 'Cat' is not one of"):
        roster.read(table)
    assert roster.worker_ids == []


def test_a_forgotten_worker_who_returns_is_new():
    roster, _ = admitted(table_of([("t", "ann", 0), ("t", "bob", 0)]))
    assert roster.forget("ann") == 0
    assert roster.worker_ids == [None, "bob"]
    intake = roster.read(table_of([("u", "ann", 0)]))
    assert intake.new_workers == ["ann"]
    assert intake.chunk.worker.tolist() == [2]


# ── repeats ──────────────────────────────────────────────────────────────────────────────

AGAIN = [("t", "ann", "x"), ("t", "bob", "x"), ("t", "ann", "y")]


@pytest.mark.parametrize(
    ("repeats", "left", "repeated"),
    [
        ("last", [("ann", "y"), ("bob", "x")], 1),
        ("first", [("ann", "x"), ("bob", "x")], 1),
        ("all", [("ann", "x"), ("ann", "y"), ("bob", "x")], 0),
        ("majority", [("ann", "x"), ("bob", "x")], 1),  # a tie, by lot
    ],
)
def test_repeats_within_a_table(repeats, left, repeated):
    roster = Roster(LabelSpace(repeats=repeats))
    intake = roster.read(table_of(AGAIN))
    assert [event[1:3] for event in said(roster, intake)] == left
    assert (intake.tally.rows, intake.tally.repeated) == (3, repeated)


def test_repeats_can_be_an_error_that_names_the_row():
    with pytest.raises(LabelError, match=r"labels row 2: worker 'ann' has labelled task 't'"):
        Roster(LabelSpace(repeats="error")).read(table_of(AGAIN))


@pytest.mark.parametrize(
    ("repeats", "left", "corrected", "repeated"),
    [
        ("last", [("ann", "y", False), ("bob", "x", True)], 1, 0),
        ("first", [("ann", "x", True), ("bob", "x", True)], 0, 1),
        ("all", [("ann", "x", True), ("ann", "y", False), ("bob", "x", True)], 0, 0),
        ("majority", [("ann", "x", False), ("bob", "x", True)], 1, 0),
    ],
)
def test_repeats_hold_across_tables_while_the_item_is_open(repeats, left, corrected, repeated):
    roster, ledger = admitted(table_of(AGAIN[:2]), space=LabelSpace(repeats=repeats))
    intake = roster.read(table_of(AGAIN[2:]), ledger)
    seen = [(worker, label, known) for _, worker, label, _, known in said(roster, intake)]
    assert seen == left
    tally = intake.tally
    assert (tally.rows, tally.late_items) == (1, 1)
    assert (tally.corrected, tally.repeated) == (corrected, repeated)


def test_repeats_across_tables_can_be_an_error():
    roster, ledger = admitted(table_of(AGAIN[:2]), space=LabelSpace(repeats="error"))
    with pytest.raises(LabelError, match=r"labels row 0: worker 'ann' has labelled task 't'"):
        roster.read(table_of(AGAIN[2:]), ledger)


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xyz")), min_size=1, max_size=8),
    st.randoms(use_true_random=False),
    st.sampled_from(["last", "first"]),
)
def test_timestamps_decide_which_repeat_is_last(votes, random, repeats):
    events = [(time, ("t", worker, label)) for time, (worker, label) in enumerate(votes)]
    expected = {}
    for _, (_, worker, label) in events if repeats == "last" else events[::-1]:
        expected[worker] = label
    arrived = random.sample(events, len(events))
    table = table_of([e for _, e in arrived], timestamps=[time for time, _ in arrived])
    roster = Roster(LabelSpace(repeats=repeats))
    seen = {worker: label for _, worker, label, _, _ in said(roster, roster.read(table))}
    assert seen == expected


def majorities(rows, **columns):
    """What votes become: {(task, worker): (label, weight)}."""
    roster = Roster(LabelSpace(repeats="majority"))
    seen = said(roster, roster.read(table_of(rows, **columns)))
    return {(task, worker): (label, weight) for task, worker, label, weight, _ in seen}


def test_votes_become_one_label_weighted_by_its_share():
    votes = [("t", "ann", "x"), ("t", "ann", "y"), ("t", "ann", "x"), ("t", "bob", "y")]
    assert majorities(votes) == {
        ("t", "ann"): ("x", pytest.approx(2 / 3)),
        ("t", "bob"): ("y", 1),
    }
    # 0.5 for x and 0.9 for y in three votes, which weigh 0.47 on average
    weighed = majorities(votes, weights=[0.25, 0.9, 0.25, 0.5])
    assert weighed == {
        ("t", "ann"): ("y", pytest.approx(0.9 / 3)),
        ("t", "bob"): ("y", pytest.approx(0.5)),
    }


@given(
    st.lists(
        st.tuples(st.sampled_from("tu"), st.sampled_from("ab"), st.sampled_from("xyz")), max_size=12
    ),
    st.randoms(use_true_random=False),
)
def test_majorities_do_not_depend_on_the_order_of_votes(votes, random):
    assert majorities(random.sample(votes, len(votes))) == majorities(votes)


def test_ties_fall_to_either_label():
    tied = [(t, "ann", label) for t in range(200) for label in "xy"]
    drawn = [label for label, _ in majorities(tied).values()]
    assert 70 < drawn.count("x") < 130
    assert {weight for _, weight in majorities(tied).values()} == {0.5}


@given(
    st.lists(st.tuples(st.just("t"), st.sampled_from("ab"), st.sampled_from("xyz")), min_size=1),
    st.data(),
)
def test_votes_of_an_open_item_go_on(votes, data):
    cut = data.draw(st.integers(0, len(votes)))
    roster, ledger = admitted(table_of(votes[:cut]), space=LabelSpace(repeats="majority"))
    seen = said(roster, roster.read(table_of(votes[cut:]), ledger))
    if cut < len(votes):
        assert {(t, w): (label, weight) for t, w, label, weight, _ in seen} == {
            pair: (label, pytest.approx(weight))
            for pair, (label, weight) in majorities(votes).items()
        }


def test_equal_timestamps_leave_the_order_of_arrival():
    table = table_of([("t", "ann", "x"), ("t", "ann", "y")], timestamps=[5, 5])
    roster = Roster()
    assert [event[2] for event in said(roster, roster.read(table))] == ["y"]


def test_timestamps_that_cannot_be_compared_are_refused():
    table = table_of([("t", "ann", "x"), ("t", "ann", "y")], timestamps=[5, "noon"])
    with pytest.raises(LabelError, match="column 'timestamp' must hold values that can be"):
        Roster().read(table)


@given(rows, rows, st.sampled_from(["last", "first", "majority", "all"]))
def test_every_label_is_kept_or_counted(first, second, repeats):
    roster, ledger = admitted(table_of(first), space=LabelSpace(repeats=repeats))
    held = sum(
        len(ledger.get(item).worker) for item in {event[0] for event in second} if item in ledger
    )
    intake = roster.read(table_of(second), ledger)
    tally = intake.tally
    assert intake.chunk.n_labels + tally.corrected + tally.repeated == held + len(second)


# ── open and closed items ────────────────────────────────────────────────────────────────


def test_a_late_label_brings_along_what_is_held_of_its_item():
    table = table_of([("t", "ann", "x"), ("u", "ann", "y")], weights=[2.0, 1.0])
    roster, ledger = admitted(table)
    intake = roster.read(table_of([("t", "bob", "y")]), ledger)
    assert said(roster, intake) == [("t", "ann", "x", 2.0, True), ("t", "bob", "y", 1.0, False)]
    assert (intake.tally.late_items, intake.tally.returned_items) == (1, 0)


def test_a_closed_item_that_returns_is_new_evidence_and_counted():
    table = table_of([("t", "ann", "x")])
    roster, ledger = admitted(table, ledger=OpenItems(0))
    intake = roster.read(table_of([("t", "bob", "y"), ("new", "bob", "y")]), ledger)
    assert (intake.tally.late_items, intake.tally.returned_items) == (0, 1)
    assert dict(zip(intake.item_ids, intake.returned, strict=True)) == {"new": False, "t": True}
    assert len(said(roster, intake)) == 2


def test_weights_and_notes_travel_with_their_rows():
    columns = {"weights": [3.0, 1.0], "groups": ["g", "h"], "timestamps": [4, 9]}
    intake = Roster().read(table_of([("u", "ann", "x"), ("t", "ann", "x")], **columns))
    assert intake.item_ids == ["t", "u"]
    assert intake.chunk.weight.tolist() == [1.0, 3.0]
    assert [tuple(note) for note in intake.notes] == [("h", 9), ("g", 4)]
