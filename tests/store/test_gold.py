"""True labels: as the library takes them, once, and what becomes of those that come late."""

import numpy as np
import pytest
import sqlalchemy as sa
from store.test_stream import as_frame, assert_same_model, crowd, rows_of, shuffled

import labelquorum as lq
from labelquorum.errors import ConflictError, LabelError, StateError
from labelquorum.ingest.chunks import id_key
from labelquorum.store import failpoints
from labelquorum.store import gold as gold_module
from labelquorum.store import model_rows as model_module
from labelquorum.store.batch import decode, encode
from labelquorum.store.database import schema
from labelquorum.store.gold import TOO_LATE
from labelquorum.store.rules import Rules
from labelquorum.store.store import Store

AT_ONCE = Rules(chunk_items=1, max_wait=None, max_chunk_wait=None, retention="discard", grace=0)
OPEN = AT_ONCE.changed(grace=1e9)


@pytest.fixture
def learned(monkeypatch):
    """The labels and truths of every chunk that was learned from."""
    seen = []

    def learn(work, real=model_module.learn):
        truths = {decode(item): decode(label) for item, label in work.gold}
        seen.append((rows_of(model_module.table_of(work)), truths))
        return real(work)

    monkeypatch.setattr(model_module, "learn", learn)
    return seen


def reply(store, task):
    """What is written down of a truth: label, what was answered before, chunk."""
    gold = schema.gold.c
    with store.read() as connection:
        row = connection.execute(
            sa.select(gold.label, gold.answered, gold.chunk).where(gold.item == encode(task))
        ).one()
    label, answered = (None if cell is None else decode(cell) for cell in row[:2])
    return label, answered, row.chunk


def answer(stream, task):
    [given] = [one for one in stream.answers() if one.item_id == task]
    return given


# ── as the library ───────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("grace", [0.0, 1e9])
def test_truths_teach_to_the_bit_what_they_teach_the_library(store, learned, grace):
    rules = Rules(labels_per_item=3, chunk_items=4, max_chunk_wait=0, grace=grace)
    stream, model = store.create("s", rules=rules), lq.BiLA(open_items=10_000 if grace else 0)
    rows = shuffled(rows_of(crowd(16)))
    tasks = sorted({row[0] for row in rows})
    stream.gold({tasks[0]: rows[0][2], tasks[1]: "a class nobody named"})  # before any label
    for start in range(0, len(rows), 8):
        stream.accept(as_frame(rows[start : start + 8]))
        stream.gold({tasks[start // 8 + 2]: rows[start][2]}, key=f"{start}")
        stream.settle()
    stream.gold({tasks[5]: "another", tasks[2]: rows[1][2]})
    stream.settle(flush=True)
    for part, truths in learned:
        model.partial_fit(as_frame(part), true_labels=truths)
    assert sum(len(truths) for _, truths in learned) > 5
    assert not grace or any(not part for part, _ in learned)  # a chunk of truths alone
    assert_same_model(stream, model)
    if grace:
        again = stream.estimator()
        for task in model.model_.learned.open_items:
            ours, theirs = (
                again.model_.learned.open_items.get(task),
                model.model_.learned.open_items.get(task),
            )
            for one, other in zip(ours, theirs, strict=True):
                np.testing.assert_array_equal(one, other)
    for task in (tasks[0], tasks[1], tasks[2]):
        assert answer(stream, task).label == reply(store, task)[0]
        assert answer(stream, task).confidence == 1


# ── where the item is ────────────────────────────────────────────────────────────────────


def test_a_truth_goes_with_the_labels_that_wait(store):
    stream = store.create("s", rules=Rules(labels_per_item=2, chunk_items=1), classes=["x", "y"])
    stream.accept({"t": {"a": "x"}})
    receipt = stream.gold({"t": "y"})
    assert (receipt.accepted, receipt.late) == (1, 0)
    assert stream.cut() is None  # a truth is no label
    stream.accept({"t": {"b": "x"}})
    stream.settle()
    assert (answer(stream, "t").label, answer(stream, "t").confidence) == ("y", 1)
    assert reply(store, "t") == ("y", None, 1)


def test_a_truth_of_an_open_item_answers_it_anew(store):
    stream = store.create("s", rules=OPEN, classes=["x", "y"])
    stream.accept({"t": {"a": "x", "b": "x"}})
    stream.settle()
    assert stream.gold({"t": "y"}).accepted == 1
    [applied] = stream.settle()
    assert (applied.n_items, applied.n_labels) == (1, 0)
    assert (answer(stream, "t").label, answer(stream, "t").confidence) == ("y", 1)
    assert reply(store, "t") == ("y", "x", 2)
    stream.accept({"t": {"c": "x"}})  # and it stays when labels come late
    stream.settle()
    assert (answer(stream, "t").label, answer(stream, "t").n_labels) == ("y", 3)


def test_a_truth_of_a_closed_item_is_its_answer_and_teaches_nothing(store):
    stream = store.create("s", rules=AT_ONCE, classes=["x", "y"])
    stream.accept({"t": {"a": "x"}, "u": {"a": "x"}})
    stream.settle()
    before, version = stream.snapshot(), stream.count()["version"]
    receipt = stream.gold({"t": "y", "u": "x"})
    assert (receipt.accepted, receipt.late) == (0, 2)
    assert stream.settle() == []
    given = answer(stream, "t")
    assert (given.label, given.confidence, given.probs.tolist()) == ("y", 1, [0, 1])
    assert reply(store, "t") == ("y", "x", TOO_LATE)
    assert reply(store, "u") == ("x", "x", TOO_LATE)
    assert stream.count()["version"] == version
    for name, array in before.arrays.items():
        assert stream.snapshot().arrays[name].tobytes() == array.tobytes()


def test_a_truth_that_comes_between_cut_and_answer_is_the_answer(store):
    stream = store.create("s", rules=AT_ONCE, classes=["x", "y"])
    stream.accept({"t": {"a": "x"}})
    cut = stream.cut()
    assert stream.gold({"t": "y"}).late == 1
    stream.advance(cut)
    assert (answer(stream, "t").label, answer(stream, "t").confidence) == ("y", 1)
    assert reply(store, "t") == ("y", "x", TOO_LATE)


def test_a_truth_that_comes_between_cut_and_answer_of_an_item_that_stays_open_counts(store):
    stream = store.create("s", rules=OPEN, classes=["x", "y"])
    stream.accept({"t": {"a": "x"}})
    cut = stream.cut()
    assert stream.gold({"t": "y"}).accepted == 1
    stream.advance(cut)
    assert answer(stream, "t").label == "x"
    stream.settle()
    assert answer(stream, "t").label == "y"
    assert reply(store, "t") == ("y", "x", 2)


def test_a_truth_finds_its_item_open_however_long_its_chunk_waits(store, clock):
    rules = Rules(labels_per_item=1, chunk_items=1, grace=10)
    stream = store.create("s", rules=rules, classes=["x", "y"])
    stream.accept({"t": {"a": "x"}})
    stream.settle()
    clock.time += 9
    stream.accept({"u": {"a": "x"}})
    stream.gold({"t": "y"})
    clock.time += 9
    first, second = stream.cut(), stream.cut()
    stream.advance(first)
    assert stream.advance(second).result["tally"]["gold_items"] == 1  # it was learned from
    assert answer(stream, "t").label == "y"
    assert reply(store, "t") == ("y", "x", 3)


def test_a_label_that_comes_when_a_truth_is_about_to_close_its_item_is_late(store):
    stream = store.create("s", rules=OPEN, classes=["x", "y"])
    stream.accept({"t": {"a": "x"}})
    stream.settle()
    stream.gold({"t": "y"})
    stream.change(grace=0)
    cut = stream.cut()
    assert stream.accept({"t": {"b": "x"}}).late == 1
    stream.advance(cut)
    stream.settle()
    assert (answer(stream, "t").label, answer(stream, "t").n_labels) == ("y", 1)


def test_a_truth_of_a_chunk_that_is_quarantined_goes_with_the_next_labels(store, monkeypatch):
    stream = store.create("s", rules=AT_ONCE, classes=["x", "y"])
    stream.gold({"t": "y"})
    stream.accept({"t": {"a": "x"}})
    with monkeypatch.context() as patch:
        patch.setattr(model_module, "learn", lambda work: 1 / 0)
        stream.settle()
    assert reply(store, "t") == ("y", None, None)
    stream.accept({"t": {"b": "x"}})
    stream.settle()
    assert answer(stream, "t").label == "y"
    assert reply(store, "t") == ("y", None, 2)


def test_a_truth_waits_on_when_the_late_label_beside_it_is_retracted(store):
    stream = store.create("s", rules=OPEN, classes=["x", "y"])
    stream.accept({"t": {"a": "x"}})
    stream.settle()
    stream.gold({"t": "y"})
    stream.accept({"t": {"b": "x"}})
    stream.retract("t", "b")
    stream.settle()
    assert (answer(stream, "t").label, answer(stream, "t").n_labels) == ("y", 1)


# ── again ────────────────────────────────────────────────────────────────────────────────


def test_the_same_key_is_taken_once(store):
    stream = store.create("s")
    first = stream.gold({"t": "x"}, key="k")
    assert stream.gold({"t": "x"}, key="k") == first._replace(repeated=True)
    with pytest.raises(ConflictError, match="'k' came before with something else"):
        stream.gold({"t": "y"}, key="k")
    with pytest.raises(ConflictError, match="'k' came before"):
        stream.accept({"t": {"a": "x"}}, key="k")
    stream.accept({"t": {"a": "x"}}, key="labels")
    with pytest.raises(ConflictError, match="'labels' came before"):
        stream.gold({"t": "x"}, key="labels")


def test_a_truth_told_again_is_no_news_and_another_takes_its_place(store):
    stream = store.create("s", rules=OPEN, classes=["x", "y"])
    stream.accept({"t": {"a": "x"}})
    stream.settle()
    stream.gold({"t": "y"})
    stream.settle()
    before = stream.state_hash()
    assert stream.gold({"t": "y"}).accepted == 1
    assert stream.settle() == []
    assert stream.state_hash() == before
    stream.gold({"t": "x"})
    cut = stream.cut()
    with pytest.raises(ConflictError, match="'t' is being answered with another truth"):
        stream.gold({"t": "y"})
    stream.advance(cut)
    assert answer(stream, "t").label == "x"


def test_truths_are_the_same_after_a_restart(where, clock, learned):
    hashes = set()
    with Store.open(where, clock) as store:
        for name in ("one", "two"):
            store.create(name, rules=OPEN, classes=["x", "y"]).accept({"t": {"a": "x"}})
    for name, restarts in (("one", True), ("two", False)):
        store = Store.open(where, clock)
        for step in ("settle", "gold", "cut", "settle"):
            stream = store.stream(name)
            getattr(stream, step)(*([{"t": "y"}] if step == "gold" else []))
            if restarts:
                store.close()
                store = Store.open(where, clock)
        hashes.add(store.stream(name).state_hash())
        store.close()
    assert len(hashes) == 1


# ── refused ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("truths", "sentence"),
    [
        ({"t": "z"}, "'z' is not one of the classes"),
        ([1], "must be a Series indexed by task or a dict"),
        ({7: "x"}, "name a task 7, labels name it '7'"),
        ({"t" * 300: "x"}, "task is longer than 256 bytes"),
    ],
)
def test_a_bad_truth_changes_nothing(store, truths, sentence):
    stream = store.create("s", classes=["x", "y"])
    stream.accept({"7": {"a": "x"}})
    with pytest.raises(LabelError, match=sentence):
        stream.gold(truths, key="k")
    with store.read() as connection:
        assert connection.execute(schema.gold.select()).all() == []
    assert not stream.gold({"7": "x"}, key="k").repeated


def test_a_bad_key_is_refused(store):
    with pytest.raises(StateError, match="`key` must be text"):
        store.create("s").gold({"t": "x"}, key="")


# ── what gold says of workers ────────────────────────────────────────────────────────────


def test_a_stream_learns_from_gold_whom_to_trust_as_the_library_does(where, clock, learned):
    rules = Rules(labels_per_item=4, chunk_items=4, max_chunk_wait=0, grace=1e9)
    rows, model = rows_of(crowd(24)), lq.BiLA()
    tasks = sorted({row[0] for row in rows})
    with Store.open(where, clock) as store:
        store.create("s", rules=rules)
    for start in range(0, len(tasks), 4):
        with Store.open(where, clock) as store:  # opened again before every chunk
            stream, some = store.stream("s"), set(tasks[start : start + 4])
            part = [row for row in rows if row[0] in some]
            stream.gold({tasks[start]: part[0][2], tasks[start + 1]: part[-1][2]})
            stream.accept(as_frame(part))
            stream.settle()
    for part, truths in learned:
        model.partial_fit(as_frame(part), true_labels=truths)
    with Store.open(where, clock) as store:
        stream = store.stream("s")
        assert len(stream.snapshot().arrays["state/gold/key"]) == 12
        assert len(stream.snapshot().arrays["state/stack/tasks"]) > 0
        assert_same_model(stream, model)
        worker = rows[0][1]
        stream.forget(worker)
        model.forget(worker)
        for name in ("state/gold/worker", "state/stack/workers"):
            left = stream.snapshot().arrays[name]
            assert len(left) and id_key(worker) not in left.tolist()
        assert_same_model(stream, model)


# ── many at once ─────────────────────────────────────────────────────────────────────────


def stored(store):
    """The truths that are written down, by task."""
    gold = schema.gold.c
    with store.read() as connection:
        rows = connection.execute(sa.select(gold.item, gold.label)).all()
    return {decode(row.item): decode(row.label) for row in rows}


def test_many_truths_in_parts_are_what_they_are_at_once(where, clock, tmp_path, monkeypatch):
    states = []
    truths = {f"t{number}": "y" for number in range(8)} | {"late": "y", "waits": "x"}
    for folder, size in ((where, 3), (tmp_path / "whole", 100)):
        monkeypatch.setattr(gold_module, "TRUTHS_PER_COMMIT", size)
        with Store.open(folder, clock) as store:
            stream = store.create("s", rules=AT_ONCE, classes=["x", "y"])
            stream.accept({"late": {"a": "x"}})
            stream.settle()
            stream.change(grace=1e9)
            stream.accept({f"t{number}": {"a": "x", "b": "y"} for number in range(6)})
            stream.settle()
            receipt = stream.gold(truths, key="k")
            assert (receipt.accepted, receipt.late, receipt.repeated) == (9, 1, False)
            assert stream.gold(truths, key="k") == receipt._replace(repeated=True)
            assert stored(store) == truths
            stream.settle(flush=True)
            events = [one["body"] for one in stream.events() if one["kind"] == "gold"]
            states.append((stream.state_hash(), events))
    assert states[0] == states[1]


@pytest.mark.parametrize("at", [1, 2, 3])
def test_many_truths_cut_short_are_completed_by_sending_them_again(where, clock, monkeypatch, at):
    monkeypatch.setattr(gold_module, "TRUTHS_PER_COMMIT", 3)
    truths, left = {f"t{number}": "y" for number in range(9)}, at

    def hook(point):
        nonlocal left
        left -= point == "before_gold_commit"
        if not left:
            raise KeyboardInterrupt

    with Store.open(where, clock) as store:
        stream = store.create("s", rules=OPEN, classes=["x", "y"])
        failpoints.arm(hook)
        try:
            with pytest.raises(KeyboardInterrupt):
                stream.gold(truths, key="k")
        finally:
            failpoints.arm(None)
    with Store.open(where, clock) as store:
        stream = store.stream("s")
        assert len(stored(store)) == 3 * (at - 1)
        receipt = stream.gold(truths, key="k")
        assert (receipt.accepted, receipt.late, receipt.repeated) == (9, 0, False)
        assert stream.gold(truths, key="k").repeated
        assert stored(store) == truths
        assert [one["kind"] for one in stream.events()] == ["gold"]


@pytest.mark.parametrize(
    "last", [{"t9": "z"}, {"t\0": "x"}, {5: "x"}], ids=["class", "id", "twin of a task"]
)
def test_an_error_in_the_last_of_many_truths_changes_nothing(store, monkeypatch, last):
    monkeypatch.setattr(gold_module, "TRUTHS_PER_COMMIT", 3)
    stream = store.create("s", rules=OPEN, classes=["x", "y"])
    stream.accept({"5": {"a": "x"}})
    with pytest.raises(LabelError):
        stream.gold({f"t{number}": "y" for number in range(8)} | last, key="k")
    assert stored(store) == {} and stream.events() == []
