"""A stream: what the library would learn, once, and what becomes of every kind of label."""

import re

import numpy as np
import pytest
import sqlalchemy as sa

import labelquorum as lq
from labelquorum.errors import (
    ConflictError,
    LabelError,
    LabelQuorumError,
    LimitError,
    StateError,
    StoreError,
)
from labelquorum.evaluation import class_conditional_crowd, label_table
from labelquorum.learn.bila import sparse_counts
from labelquorum.learn.model import snapshot_parts
from labelquorum.store import chunker
from labelquorum.store import model_rows as model_module
from labelquorum.store.apply import MAX_ATTEMPTS
from labelquorum.store.batch import Submission, decode, encode
from labelquorum.store.database import schema
from labelquorum.store.learner import WorkerRow
from labelquorum.store.rules import DAY, Rules
from labelquorum.store.store import Store

AT_ONCE = Rules(chunk_items=1, max_wait=None, max_chunk_wait=None, retention="discard", grace=0)
FOREVER = 1e9


def crowd(n_items=24, n_workers=9, seed=3):
    return label_table(class_conditional_crowd(n_items, n_workers, 3, labels_per_item=4, seed=seed))


def rows_of(table):
    return list(zip(table.item_ids, table.worker_ids, table.labels, strict=True))


def as_frame(rows):
    import pandas as pd

    return pd.DataFrame(rows, columns=["task", "worker", "label"])


def shuffled(rows, seed=1):
    return [rows[i] for i in np.random.default_rng(seed).permutation(len(rows))]


def recorded_chunks(store):
    """The labels of each chunk, in the order they came; they must have been kept."""
    labels = schema.labels.c
    with store.read() as connection:
        found = connection.execute(
            sa.select(labels.chunk, labels.item, labels.worker, labels.label).order_by(
                labels.chunk, labels.row
            )
        ).all()
    by_chunk = {}
    for chunk, *cells in found:
        by_chunk.setdefault(chunk, []).append(tuple(map(decode, cells)))
    return by_chunk


def assert_same_model(stream, model):
    ours, theirs = stream.snapshot(), snapshot_parts(model.model_.learned)
    assert ours.ids["workers"] == theirs[0]["workers"]
    assert ours.ids["classes"] == theirs[0]["classes"]
    for name, array in theirs[1].items():
        if not name.startswith("ledger/"):
            assert ours.arrays[name].tobytes() == array.tobytes(), name


# ── as the library ───────────────────────────────────────────────────────────────────────


def test_answers_and_model_are_bit_for_bit_those_of_the_library(store):
    rules = Rules(labels_per_item=4, chunk_items=3, retention="keep")
    stream, model, answers = store.create("s", rules=rules), lq.BiLA(open_items=0), {}
    for row in shuffled(rows_of(crowd(n_workers=40))):  # label by label
        stream.accept(as_frame([row]))
        stream.settle()
    stream.settle(flush=True)
    for rows in recorded_chunks(store).values():
        model.partial_fit(as_frame(rows))
        probas = model.probas_.to_numpy(np.float32)
        for task, label, probs in zip(model.labels_.index, model.labels_, probas, strict=True):
            answers[task] = (label, probs.tobytes())
    given = {one.item_id: (one.label, one.probs.tobytes()) for one in stream.answers()}
    assert given == answers
    assert len(stream.chunks()) > 3
    assert list(model.workers_) != sorted(model.workers_)  # the order of appearance matters
    assert_same_model(stream, model)
    assert stream.estimator().skill_intervals().equals(model.skill_intervals())


@pytest.mark.filterwarnings("ignore:DataFrame. 1 of")  # the repetition
def test_open_items_are_counted_once_as_in_the_library(store):
    rules = Rules(labels_per_item=2, chunk_items=4, max_chunk_wait=0, grace=FOREVER)
    stream, model = store.create("s", rules=rules), lq.BiLA()
    rows = rows_of(crowd(12))
    rows += [("1", rows[0][1], "z"), rows[3]]  # a correction with a new class, and a repetition
    seen = {}

    def learn(work, real=model_module.learn):
        seen[len(seen)] = rows_of(model_module.table_of(work))
        return real(work)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_module, "learn", learn)
        for start in range(0, len(rows), 6):
            stream.accept(as_frame(shuffled(rows)[start : start + 6]))
            stream.settle()
        stream.settle(flush=True)
    for part in seen.values():
        model.partial_fit(as_frame(part))
    assert sum(chunk["n_labels"] for chunk in stream.chunks()) == len(rows)
    assert any(decode(chunk["result"])["tally"]["late_items"] for chunk in stream.chunks())
    assert_same_model(stream, model)
    again = stream.estimator()
    assert set(again.model_.learned.open_items) == set(model.model_.learned.open_items)
    for task in model.model_.learned.open_items:
        ours, theirs = (
            again.model_.learned.open_items.get(task),
            model.model_.learned.open_items.get(task),
        )
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_the_order_of_streams_and_stores_changes_nothing(tmp_path, database):
    hashes = set()
    for where in (tmp_path, database):
        with Store.open(where) as store:
            first, second = (
                store.create(name, rules=Rules(labels_per_item=4, chunk_items=5))
                for name in ("one", "two")
            )
            for row in rows_of(crowd()):
                first.accept(as_frame([row]))
                second.accept(as_frame([row]))
                first.settle()
            second.settle()
            hashes |= {first.state_hash(), second.state_hash()}
    assert len(hashes) == 1


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["default", "www2021"])
def test_a_stream_of_before_a_preset_changed_goes_on_with_what_it_meant(store, preset):
    """Of `www2021` only the tolerance has an effect where p is learned by counting."""
    parts = {"generative": "hierarchical", "encoder": "tied", "optimizer": "curvature"}
    settings = {"preset": preset, **parts, "class_prior": "uniform"}
    rules = Rules(labels_per_item=4, chunk_items=6)
    streams = [store.create("before", rules=rules, **settings)]
    streams.append(store.create("given", rules=rules, **settings, tolerance=1e-3))
    kept = decode(streams[0].configuration.settings)
    for name in ("weight_init", "init_smoothing", "newcomer_rows"):
        del kept[name]
    row = schema.streams.update().where(schema.streams.c.name == "before")
    with store.write() as connection:
        connection.execute(row.values(settings=encode(kept)))
    streams[0] = store.stream("before")
    for stream in streams:
        for row in rows_of(crowd()):
            stream.accept(as_frame([row]))
        stream.settle(flush=True)
    assert streams[0].state_hash() == streams[1].state_hash()
    assert streams[0].estimator().get_params()["tolerance"] == (
        None if preset == "default" else 1e-3
    )


def test_ids_keep_their_types(store):
    stream = store.create("s", rules=AT_ONCE, classes=[True, False])
    stream.accept({7: {"7": True}, "7": {7: False}, "a'\"\\": {1.5: True}})
    stream.settle()
    assert {one.item_id for one in stream.answers()} == {7, "7", "a'\"\\"}
    assert set(stream.estimator().workers_) == {"7", 7, 1.5}
    assert {type(one.label) for one in stream.answers()} == {bool}


@pytest.mark.parametrize("name", ["mace", "bila:network", "windowed:bila", "majority_vote"])
def test_a_method_that_needs_everybody_is_refused(store, name):
    with pytest.raises(StateError, match="cannot be kept in a store"):
        store.create("s", name)
    assert store.streams() == []


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"open_items": 5}, "Set grace="),
        ({"warmup_items": 5}, "Set chunk_items="),
        ({"history": {}}, "no setting `history`"),
        ({"repeats": "error"}, "acknowledged cannot be refused"),
        ({"no_such": 1}, "no_such"),
        ({"seed": 1.5}, "`seed` must be a whole number"),
    ],
)
def test_a_setting_a_stream_cannot_have_is_refused(store, settings, sentence):
    with pytest.raises(StateError, match=sentence):
        store.create("s", **settings)


# ── accepting ────────────────────────────────────────────────────────────────────────────


def test_the_same_key_and_body_are_counted_once(store):
    stream, table = store.create("s"), {"t": {"a": "x", "b": "y"}}
    first = stream.accept(table, key="k")
    assert not first.repeated
    assert stream.accept(table, key="k") == first._replace(repeated=True)
    assert stream.count()["waiting_labels"] == 2


def test_another_body_under_a_key_is_refused(store):
    stream = store.create("s")
    stream.accept({"t": {"a": "x"}}, key="k")
    with pytest.raises(ConflictError, match="'k' came before with other labels"):
        stream.accept({"t": {"a": "y"}}, key="k")
    assert stream.count()["waiting_labels"] == 1


def test_keys_of_streams_are_their_own(store):
    one, two = store.create("one"), store.create("two")
    one.accept({"t": {"a": "x"}}, key="k")
    assert not two.accept({"t": {"a": "y"}}, key="k").repeated


def test_a_position_goes_with_its_labels(store):
    stream = store.create("s", classes=["x"])
    stream.accept({"t": {"a": "x"}}, source="file", position="10")
    with pytest.raises(LabelError, match="not one of the classes"):
        stream.accept({"t": {"a": "y"}}, source="file", position="20")
    assert stream.position("file") == "10"
    assert stream.position("other") is None


@pytest.mark.parametrize(
    ("sent", "sentence"),
    [
        ({"key": ""}, "`key` must be text"),
        ({"key": "k" * 300}, "`key` must be text"),
        ({"key": 5}, "`key` must be text"),
        ({"source": "a"}, "go together"),
    ],
)
def test_a_bad_key_or_source_is_refused(store, sent, sentence):
    with pytest.raises(StateError, match=sentence):
        store.create("s").accept({"t": {"a": "x"}}, **sent)


def test_a_name_that_is_too_long_is_refused(store):
    with pytest.raises(LabelError, match="worker is longer than 256 bytes"):
        store.create("s").accept({"t": {"w" * 257: "x"}})


@pytest.mark.parametrize("character", ["\0", "\n", "\x1b", "\x7f", "\x9b"])
def test_an_id_with_a_character_that_is_no_text_is_refused(store, character):
    stream = store.create("s")
    with pytest.raises(LabelError, match=r"dict row 0: the task has the character .* no text"):
        stream.accept({f"t{character}": {"a": 0}})


def test_a_crowd_larger_than_the_rule_is_refused_whole(store):
    stream = store.create("s", rules=Rules(max_workers=2))
    assert stream.accept({"t": {"a": 0, "b": 1}}).accepted == 2
    with pytest.raises(LimitError, match=r"bring 2 new workers, .* max_workers=2"):
        stream.accept({"t": {"a": 1, "c": 1, "d": 1}}, key="k")
    assert stream.count()["waiting_labels"] == 2
    stream.change(max_workers=4)
    assert stream.accept({"t": {"a": 1, "c": 1, "d": 1}}, key="k").accepted == 3


def test_bad_rows_are_told_in_the_receipt(store):
    stream = store.create("s", classes=["x", "y"], on_bad="skip")
    receipt = stream.accept({"t": {"a": "x", "b": "z"}})
    assert (receipt.accepted, receipt.skipped) == (1, {"unknown class": 1})


def test_tables_taken_together_are_taken_as_if_each_had_come_alone(store):
    one, other = {"t": {"a": "x", "b": "y"}}, {"t": {"c": "x"}, "u": {"a": "y"}}
    sent = [
        Submission(one, "k1", "file", "1"),
        Submission({"t": {"a": "no class"}}, "k2"),
        Submission(other, "k3", "file", "2"),
        Submission(one, "k1"),
        Submission(other, "k1"),
        Submission(other),
        Submission(one, source="file"),
    ]
    together = store.create("together", classes=["x", "y"])
    alone = store.create("alone", classes=["x", "y"])
    outcomes = together.accept_all(sent)
    for part, outcome in zip(sent, outcomes, strict=True):
        if isinstance(outcome, LabelQuorumError):
            with pytest.raises(type(outcome), match=re.escape(str(outcome).split(": ")[-1])):
                alone.accept(*part)
        else:
            assert alone.accept(*part) == outcome
    assert [type(outcome).__name__ for outcome in outcomes] == [
        *("Receipt", "LabelError", "Receipt", "Receipt", "ConflictError", "Receipt", "StateError")
    ]
    assert together.accept_all(sent[:1])[0] == outcomes[3]
    assert together.position("file") == alone.position("file") == "2"
    assert together.count() == alone.count()
    together.settle(flush=True)
    alone.settle(flush=True)
    assert together.state_hash() == alone.state_hash()


def test_an_empty_table_is_accepted(store):
    assert store.create("s").accept({}, key="k").accepted == 0


# ── ready, cut ───────────────────────────────────────────────────────────────────────────


def test_an_item_is_ready_by_labels_or_by_waiting(store, clock):
    stream = store.create(
        "s", rules=Rules(labels_per_item=2, max_wait=10, chunk_items=1, max_chunk_wait=None)
    )
    stream.accept({"full": {"a": "x", "b": "x"}, "thin": {"a": "x"}})
    assert stream.cut().n_labels == 2
    assert stream.cut() is None
    clock.time += 10
    assert stream.cut().n_labels == 1


def test_a_chunk_is_cut_by_items_or_by_waiting(store, clock):
    stream = store.create("s", rules=Rules(labels_per_item=1, chunk_items=3, max_chunk_wait=5))
    stream.accept({"a": {"w": 0}, "b": {"w": 1}})
    assert stream.cut() is None
    stream.accept({"c": {"w": 0}, "d": {"w": 0}})
    assert stream.cut().n_items == 3
    assert stream.cut() is None
    clock.time += 5
    assert stream.cut().n_items == 1


def test_rules_change_while_the_stream_runs(store):
    stream = store.create("s", rules=Rules(labels_per_item=3, chunk_items=1))
    stream.accept({"a": {"v": 0, "w": 1}})
    assert stream.cut() is None
    assert stream.change(labels_per_item=2).labels_per_item == 2
    assert stream.cut().n_items == 1
    assert stream.rules.labels_per_item == 2


@pytest.mark.parametrize(
    "change",
    [
        {"chunk_items": 0},
        {"max_wait": -1},
        {"retention": "x"},
        {"grace": -1},
        {"days": None},
        {"q": 1},
    ],
)
def test_a_bad_rule_is_refused(store, change):
    stream = store.create("s")
    with pytest.raises(StateError):
        stream.change(**change)
    assert stream.rules == Rules()


def test_a_clock_that_jumps_orders_nothing(store, clock):
    stream = store.create("s", rules=Rules(labels_per_item=1, chunk_items=2, max_chunk_wait=50))
    stream.accept({"b": {"w": 0}})
    clock.time -= DAY
    stream.accept({"a": {"w": 0}})
    cut = stream.cut()
    assert (cut.first_row, cut.last_row) == (1, 2)
    stream.accept({"c": {"w": 0}})
    clock.time += 49
    assert stream.cut() is None  # it went on from where it was
    clock.time += 10 * 365 * DAY
    assert stream.cut().n_items == 1


def test_a_clock_set_back_over_a_restart_goes_on(where, clock):
    with Store.open(where, clock) as store:
        store.create("s", rules=Rules(labels_per_item=1, max_chunk_wait=50)).accept({"a": {"w": 0}})
    clock.time -= DAY
    with Store.open(where, clock) as store:
        assert store.stream("s").cut() is None
        clock.time += 50
        assert store.stream("s").cut() is not None


# ── late, corrected, retracted ───────────────────────────────────────────────────────────


@pytest.mark.parametrize("rows_per_label", [0, 1e9], ids=["by item", "by row"])
def test_a_chunk_has_the_labels_of_its_items_however_they_are_found(
    store, rows_per_label, monkeypatch
):
    """Of items whose labels came apart, between those of others, some of which were cut before."""
    monkeypatch.setattr(chunker, "MAX_ROWS_PER_LABEL", rows_per_label)
    rules = Rules(labels_per_item=4, chunk_items=5, max_wait=None, max_chunk_wait=None, grace=0)
    stream = store.create("s", rules=rules)
    rows = shuffled(rows_of(crowd()))
    for start in range(0, len(rows), 16):
        stream.accept(as_frame(rows[start : start + 16]))
        stream.settle()
    stream.settle(flush=True)
    chunks = recorded_chunks(store)
    assert sum(map(len, chunks.values())) == len(rows) and len(chunks) == 5
    for found in chunks.values():
        items = {item for item, _, _ in found}
        assert found == [row for row in rows if row[0] in items]
    for chunk in stream.chunks():
        of_chunk = [n for n, row in enumerate(rows, 1) if row in chunks[chunk["id"]]]
        assert (chunk["first_row"], chunk["last_row"]) == (of_chunk[0], of_chunk[-1])


def test_a_correction_before_the_cut_counts_once(store):
    stream = store.create("s", rules=Rules(labels_per_item=2, chunk_items=1), classes=["x", "y"])
    stream.accept({"t": {"a": "x"}})
    stream.accept({"t": {"a": "y"}})
    assert stream.cut() is None  # one worker still
    stream.accept({"t": {"b": "y"}})
    [applied] = stream.settle()
    assert applied.result["tally"]["repeated"] == 1
    assert stream.answers()[0].n_labels == 2
    assert stream.answers()[0].label == "y"


def test_a_label_of_a_closed_item_is_set_aside(store):
    stream = store.create("s", rules=AT_ONCE, classes=["x", "y"])
    stream.accept({"t": {"a": "x"}})
    cut = stream.cut()
    assert stream.accept({"t": {"b": "y"}}).late == 1  # cut already
    stream.advance(cut)
    before = stream.state_hash()
    receipt = stream.accept({"t": {"b": "y"}, "u": {"b": "y"}})
    assert (receipt.accepted, receipt.late) == (1, 1)
    assert stream.count()["late_labels"] == 2
    assert stream.state_hash() == before


def test_a_late_label_of_an_open_item_answers_it_anew(store, clock):
    rules = Rules(labels_per_item=2, chunk_items=1, grace=10)
    stream = store.create("s", rules=rules, classes=["x", "y"])
    stream.accept({"t": {"a": "x", "b": "x"}})
    stream.settle()
    clock.time += 9
    assert stream.accept({"t": {"c": "y"}}).accepted == 1
    clock.time += 9  # it came in time, so it finds its item open
    stream.accept({"u": {"a": "x", "b": "x"}})
    stream.settle()
    assert {one.item_id: one.n_labels for one in stream.answers()} == {"t": 3, "u": 2}
    clock.time += 10
    assert stream.accept({"t": {"d": "y"}}).late == 1
    stream.accept({"v": {"a": "x", "b": "x"}})
    stream.settle()
    assert list(stream.snapshot().ids["open_items"]) == ["v"]


@pytest.mark.parametrize("waits", [True, False])
def test_an_item_stays_open_for_a_label_that_came_in_time(store, clock, waits):
    rules = Rules(labels_per_item=2, chunk_items=1, grace=10)
    stream = store.create("s", rules=rules, classes=["x", "y"])
    stream.accept({"t": {"a": "x", "b": "x"}, "u": {"a": "x"}})
    stream.settle()
    clock.time += 9
    stream.accept({"t": {"c": "y"}})
    clock.time += 9
    stream.accept({"u": {"b": "x"}})
    if waits:  # while the chunk of u, which goes first, is committed
        stream.advance(stream.cut())
    stream.settle()
    assert {one.item_id: one.n_labels for one in stream.answers()} == {"t": 3, "u": 2}


def test_a_label_is_late_when_rules_that_changed_are_about_to_close_its_item(store):
    rules = Rules(labels_per_item=1, chunk_items=1, grace=FOREVER)
    stream = store.create("s", rules=rules, classes=["x", "y"])
    stream.accept({"t": {"a": "x"}})
    stream.settle()
    stream.accept({"t": {"b": "x"}})
    stream.change(grace=0)
    cut = stream.cut()
    assert stream.accept({"t": {"c": "y"}}).late == 1
    stream.advance(cut)
    stream.settle()
    assert stream.answers()[0].n_labels == 2


def test_a_waiting_label_can_be_retracted(store):
    stream = store.create("s", rules=Rules(labels_per_item=2, chunk_items=1))
    stream.accept({"t": {"a": 0}, "u": {"a": 1, "b": 0}})
    assert stream.retract("t", "a") == 1
    assert stream.count()["waiting_items"] == 1
    stream.settle()
    assert [one.item_id for one in stream.answers()] == ["u"]
    for task, worker in (("t", "a"), ("u", "a")):
        with pytest.raises(LabelError, match="is waiting"):
            stream.retract(task, worker)


def test_an_item_that_loses_a_label_is_as_ready_as_if_it_had_never_come(store):
    stream = store.create("s", rules=Rules(labels_per_item=2, chunk_items=1))
    stream.accept({"t": {"a": 0, "b": 1}})
    stream.retract("t", "b")
    assert stream.cut() is None
    stream.accept({"t": {"c": 1}})
    assert stream.cut().n_labels == 2


def test_an_open_item_stays_ready_when_one_of_its_late_labels_is_retracted(store, clock):
    rules = Rules(labels_per_item=2, chunk_items=1, grace=10)
    stream = store.create("s", rules=rules, classes=["x", "y"])
    stream.accept({"t": {"a": "x", "b": "x"}})
    stream.settle()
    clock.time += 9
    stream.accept({"t": {"c": "y", "d": "y"}})
    clock.time += 9  # they came in time
    stream.retract("t", "c")
    stream.settle()
    assert stream.answers()[0].n_labels == 3


# ── what a stream does without rules ─────────────────────────────────────────────────────


def test_a_stream_without_rules_loses_no_label(store, clock):
    stream = store.create("s", classes=["owl", "wren"])
    assert stream.accept({"t": {"ann": "owl"}}).accepted == 1
    clock.time += 60  # max_chunk_wait
    stream.settle()
    assert [(one.label, one.n_labels) for one in stream.answers()] == [("owl", 1)]
    clock.time += 7 * DAY
    receipt = stream.accept({"t": {"bob": "wren", "cy": "wren"}})
    assert (receipt.accepted, receipt.late, receipt.reason) == (2, 0, None)
    clock.time += 60
    stream.settle()
    assert [(one.label, one.n_labels) for one in stream.answers()] == [("wren", 3)]
    assert {one["worker"]: one["labels"] for one in stream.workers()} == {
        "ann": 1,
        "bob": 1,
        "cy": 1,
    }
    count = stream.count()
    assert (count["held_labels"], count["late_labels"]) == (3, 0)
    assert stream.explain("t")["workers"]


def test_a_label_that_can_no_longer_count_comes_back_with_the_reason(store):
    stream = store.create("s", rules=AT_ONCE, classes=["x", "y"])
    stream.accept({"t": {"a": "x"}})
    stream.settle()
    receipt = stream.accept({"t": {"b": "y"}}, key="k")
    assert (receipt.accepted, receipt.late) == (0, 1)
    assert "`grace`" in receipt.reason
    assert stream.accept({"t": {"b": "y"}}, key="k").reason == receipt.reason
    stream.change(grace=None)
    stream.accept({"u": {"a": "x"}})
    stream.settle()
    assert stream.accept({"u": {"b": "y"}}).reason is None  # the advice works


def test_tasks_that_would_stay_open_for_good_close_once_a_grace_is_set(store, clock):
    stream = store.create("s", rules=AT_ONCE.changed(grace=None), classes=["x", "y"])
    stream.accept({"t": {"a": "x"}})
    stream.settle()
    stream.accept({"u": {"a": "x"}})
    stream.cut()  # not applied yet
    stream.change(grace=10)
    stream.settle()
    clock.time += 9
    assert stream.accept({"t": {"b": "x"}, "u": {"b": "x"}}).accepted == 2
    clock.time += 20
    stream.settle()
    clock.time += 20
    assert stream.accept({"t": {"c": "x"}, "u": {"c": "x"}}).late == 2


@pytest.mark.parametrize(
    "rules",
    [{"retention": "keep"}, {"retention": "discard"}, {"retention": "keep_days", "days": 1}],
)
def test_a_stream_counts_the_labels_it_holds(store, clock, rules):
    def counted():
        count, labels = stream.count(), schema.labels.c
        with store.read() as connection:
            held = connection.execute(sa.select(labels.chunk)).all()
        assert count["held_labels"] == len(held)
        assert count["waiting_labels"] == sum(row.chunk is None for row in held)
        return count["held_labels"]

    stream = store.create(
        "s", rules=AT_ONCE.changed(chunk_items=2, grace=None, **rules), classes=["x", "y"]
    )
    stream.accept({"t": {"a": "x", "b": "y"}, "u": {"a": "x"}, "v": {"c": "x"}})
    assert counted() == 4
    stream.retract("u", "a")
    assert counted() == 3
    stream.settle()
    counted()
    clock.time += 2 * DAY
    stream.accept({"t": {"d": "x"}, "v": {"d": "x"}})
    stream.settle()
    assert counted() == {"keep": 5, "discard": 0, "keep_days": 2}[rules["retention"]]
    stream.forget("d")
    counted()


# ── retention ────────────────────────────────────────────────────────────────────────────


def test_raw_labels_are_discarded_in_the_commit(store):
    stream = store.create("s", rules=AT_ONCE)
    stream.accept({"t": {"a": 0}, "u": {"a": 1}})
    stream.settle()
    assert stream.count()["held_labels"] == 0


def test_raw_labels_are_kept_for_days_or_for_ever(store, clock):
    stream = store.create("s", rules=AT_ONCE.changed(retention="keep_days", days=2), classes=[0, 1])
    stream.accept({"t": {"a": 0}})
    stream.settle()
    clock.time += 2 * DAY
    stream.accept({"u": {"a": 1}})
    stream.settle()
    assert stream.count()["held_labels"] == 1
    stream.change(retention="keep")
    clock.time += 9 * DAY
    stream.accept({"v": {"a": 1}})
    stream.settle()
    assert stream.count()["held_labels"] == 2


# ── advancing ────────────────────────────────────────────────────────────────────────────


def test_a_chunk_is_applied_once_and_in_order(store):
    stream = store.create("s", rules=AT_ONCE, classes=[0, 1])
    stream.accept({"t": {"a": 0}, "u": {"a": 1}})
    first, second = stream.cut(), stream.cut()
    with pytest.raises(ConflictError, match="chunk 1 comes before it"):
        stream.advance(second)
    applied = stream.advance(first)
    stream.advance(second)
    before = stream.state_hash()
    assert stream.advance(first) == applied == stream.advance(1)
    assert stream.state_hash() == before
    with pytest.raises(StoreError, match="has no chunk 9"):
        stream.advance(9)


def test_a_model_that_moved_on_is_not_overwritten(store, monkeypatch):
    stream = store.create("s", rules=AT_ONCE, classes=[0, 1])
    stream.accept({"t": {"a": 0}})
    cut = stream.cut()

    def learn(work, real=model_module.learn):
        with store.write() as connection:
            connection.execute(schema.models.update().values(version=7))
        return real(work)

    monkeypatch.setattr(model_module, "learn", learn)
    with pytest.raises(ConflictError, match="no longer the present one"):
        stream.advance(cut)
    assert stream.answers() == []
    assert stream.count()["held_labels"] == 1


def test_a_chunk_that_fails_thrice_is_quarantined_and_the_stream_goes_on(store, monkeypatch):
    stream = store.create("s", rules=AT_ONCE, classes=[0, 1])
    stream.accept({"bad": {"a": 0}, "good": {"a": 1}})

    def learn(work, real=model_module.learn):
        if "bad" in model_module.table_of(work).item_ids:
            raise ValueError("poison")
        return real(work)

    monkeypatch.setattr(model_module, "learn", learn)
    cut = stream.cut()
    for attempt in (1, 2, 3):
        with pytest.raises(StateError, match=rf"attempt {attempt} of 3 \(ValueError: poison\)"):
            stream.advance(cut)
    with pytest.raises(StateError, match="is quarantined: ValueError: poison"):
        stream.advance(cut)
    stream.settle()
    assert [one.item_id for one in stream.answers()] == ["good"]
    assert stream.count()["held_labels"] == 1  # those of the bad one are there to be looked at
    assert [chunk["state"] for chunk in stream.chunks()] == ["quarantined", "applied"]


def test_a_new_class_leaves_old_rows_to_be_widened_when_read(store):
    stream, model = store.create("s", rules=AT_ONCE), lq.BiLA(open_items=0)
    for table in ({"t": {"a": "x", "b": "y"}}, {"u": {"c": "z", "d": "x"}}, {"v": {"a": "z"}}):
        stream.accept(table)
        stream.settle()
        model.partial_fit(table)
    assert_same_model(stream, model)


def test_sparse_counts_are_kept_and_matrices_become_sparse_as_classes_come(store, monkeypatch):
    """With more than two classes here, and with rows from when there were two."""
    monkeypatch.setattr(sparse_counts, "MAX_DENSE_CLASSES", 2)
    stream, model = store.create("s", rules=AT_ONCE), lq.BiLA(open_items=0)
    tables = (
        {"t": {"a": "x", "b": "y"}},
        {"u": {"c": "y", "d": "x"}},
        {"v": {"a": "z", "e": "x", "f": "z"}},
        {"w": {"b": "z", "d": "x", "g": "w"}},
        {"p": {"a": "w", "b": "w", "c": "z"}},
    )
    for table in tables:
        stream.accept(table)
        stream.settle()
        model.partial_fit(table)
    assert_same_model(stream, model)
    assert "rich_cells" in model.model_.learned.state.rows.names
    stream.forget("b")
    model.forget("b")
    assert_same_model(stream, model)


class Traffic:
    """Counts the rows that statements read and write."""

    def __init__(self, store):
        self.written = 0
        sa.event.listen(store._engine, "after_cursor_execute", self._count)

    def _count(self, connection, cursor, statement, parameters, context, executemany):
        if context.isinsert or context.isupdate or context.isdelete:
            self.written += max(cursor.rowcount, 0)


@pytest.mark.slow
def test_a_commit_costs_what_its_chunk_has_however_many_workers_there_are(store):
    traffic, costs, works = Traffic(store), [], []
    for n_workers in (0, 100_000):
        stream = store.create(f"{n_workers}", rules=AT_ONCE, classes=["x", "y"])
        stream.accept({"t": {"a": "x", "b": "y"}})
        stream.settle()
        others(store, stream, n_workers)
        stream.accept({"u": {"a": "y", "c": "y"}})
        cut, before = stream.cut(), traffic.written
        with store.read() as connection:
            chunk = stream.ref.chunk(connection, cut.id)
            [part], rows = stream._applier._read(connection, [chunk])
            works.append(rows.work(chunk, *part))
        stream.advance(cut)
        costs.append(traffic.written - before)
    assert costs[0] == costs[1] <= 10
    assert [len(work.workers) for work in works] == [1, 1]
    assert [one.probs.tobytes() for one in store.stream("0").answers()] == [
        one.probs.tobytes() for one in stream.answers()
    ]


def others(store, stream, n_workers):
    """Put workers who are not in any chunk into a stream."""
    workers = schema.workers.c
    with store.write() as connection:
        known = connection.execute(
            sa.select(*(workers[name] for name in WorkerRow._fields)).where(
                workers.stream == stream.ref.key
            )
        ).all()
        rows = [
            {
                **WorkerRow(*known[0])._asdict(),
                "stream": stream.ref.key,
                "place": 2 + k,
                "worker": f'"w{k}"',
            }
            for k in range(n_workers)
        ]
        if rows:
            connection.execute(schema.workers.insert(), rows)
            connection.execute(
                schema.models.update()
                .where(schema.models.c.stream == stream.ref.key)
                .values(n_workers=2 + n_workers)
            )


def test_a_failure_that_comes_after_the_chunk_was_applied_changes_nothing(store):
    stream = store.create("s", classes=["a", "b"])
    stream.accept({"t": {"w": "a"}})
    stream.gold({"t": "a"})
    cut = stream.cut(flush=True)
    stream.advance(cut)
    before, events = stream.state_hash(), stream.last_event()
    for _ in range(MAX_ATTEMPTS):
        assert "applied by now" in str(stream.failed(cut.id, RuntimeError("too late")))
    assert (stream.state_hash(), stream.last_event()) == (before, events)
    with store.read() as connection:
        assert stream._gold.of_chunk(connection, cut.id) == [('"t"', '"a"')]


def test_what_was_learned_of_a_chunk_that_was_set_aside_meanwhile_is_not_applied(store):
    stream = store.create("s", classes=["a", "b"])
    stream.accept({"t": {"w": "a"}})
    cut = stream.cut(flush=True)
    learned = []
    learn = store.learner.learn

    def slow(work):
        learned.append(learn(work))
        for _ in range(MAX_ATTEMPTS):
            stream.failed(cut.id, RuntimeError("another thread's"))
        return learned[0]

    store.learner.learn = slow
    with pytest.raises(StateError, match="quarantined"):
        stream.advance(cut)
    assert [row["state"] for row in stream.chunks()] == ["quarantined"] and not stream.answers()
