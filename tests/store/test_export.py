"""What a stream holds, as rows; how a store is; what all kept labels say together."""

import sqlite3
from dataclasses import replace

import numpy as np
import pytest
import sqlalchemy as sa
from store.test_stream import as_frame

import labelquorum as lq
from labelquorum.errors import StateError, StoreError
from labelquorum.store import check
from labelquorum.store import model_rows as model_module
from labelquorum.store.check import BROKEN, examine_store
from labelquorum.store.export import exported
from labelquorum.store.refit import refit
from labelquorum.store.rules import Rules
from labelquorum.store.store import Store

AT_ONCE = Rules(chunk_items=1, max_wait=None, max_chunk_wait=None, retention="discard", grace=0)


def rows(stream, what="answers", **options):
    with exported(stream, what, **options) as found:
        return list(found.rows)


# ── export ───────────────────────────────────────────────────────────────────────────────


def test_an_export_that_breaks_off_leaves_no_old_snapshot_to_the_next_reader(store):
    stream = store.create("s", rules=replace(AT_ONCE, chunk_items=3000))
    stream.accept({task: {"a": "x"} for task in range(3000)})  # more than are read at a time
    stream.settle()
    with pytest.raises(RuntimeError) as broken, exported(stream) as found:
        next(found.rows)
        raise RuntimeError("the reader went away")
    store.create("later")
    assert "later" in store.streams()
    del broken, found  # which kept the cursor


def test_answers_come_with_the_probabilities_of_the_classes_known_then(store):
    stream = store.create("s", rules=AT_ONCE)
    stream.accept({"t": {"a": "x", "b": "y"}})
    stream.settle()
    stream.accept({7: {"a": "z"}})
    stream.settle()
    by_task = {row["task"]: row for row in rows(stream)}
    assert set(by_task) == {7, "t"}
    assert by_task["t"]["prob_z"] is None
    assert by_task["t"]["labels"] == 2 and by_task["t"]["chunk"] == 1
    assert sum(by_task[7][f"prob_{label}"] for label in "xyz") == pytest.approx(1, abs=1e-5)
    assert by_task[7]["confidence"] == by_task[7][f"prob_{by_task[7]['label']}"]
    assert "prob_x" not in rows(stream, probabilities=False)[0]
    assert [row["task"] for row in rows(stream, chunks=[2])] == [7]


def test_types_are_looked_up_where_they_are_asked_for(store):
    stream = store.create("s", rules=AT_ONCE)
    stream.accept({7: {"a": True}, "t": {2**70: 1.5}})
    with exported(stream, "labels", typed=True) as found:
        assert found.columns["task"] == {int, str}
        assert found.columns["worker"] == {str}  # a number no column holds
        assert found.columns["label"] == {bool, float}
        assert [row["worker"] for row in found.rows] == ["a", 2**70]


def test_workers_chunks_and_labels_are_rows_too(store):
    stream = store.create("s", rules=AT_ONCE.changed(retention="keep"), classes=["x", "y"])
    stream.accept(as_frame([("t", "a", "x"), ("t", "b", "x"), ("u", "a", "y")]).assign(weight=0.5))
    stream.settle()
    assert rows(stream, "workers") == [
        {"worker": "a", "labels": 2, "agreed": 2},
        {"worker": "b", "labels": 1, "agreed": 1},
    ]
    assert [(row["chunk"], row["state"], row["items"]) for row in rows(stream, "chunks")] == [
        (1, "applied", 1),
        (2, "applied", 1),
    ]
    first = rows(stream, "labels")[0]
    assert first == {
        "task": "t",
        "worker": "a",
        "label": "x",
        "weight": 0.5,
        "group": None,
        "timestamp": None,
        "chunk": 1,
    }


def test_one_state_is_read_while_another_is_made(store, where):
    stream = store.create("s", rules=AT_ONCE, classes=["x", "y"])
    stream.accept({f"t{n:04}": {"a": "x"} for n in range(20)})
    stream.settle()
    with Store.look(where) as beside, exported(beside.stream("s")) as found:
        next(found.rows)
        stream.accept({"zzz": {"a": "x"}})
        stream.settle()
        assert len(list(found.rows)) == 19
    assert len(rows(stream)) == 21


# ── the doctor ───────────────────────────────────────────────────────────────────────────


def findings(where):
    return {finding.name: finding for finding in examine_store(where)}


def broken(where):
    return [f.sentence for f in examine_store(where) if f.name == BROKEN]


@pytest.fixture
def busy(store):
    """A stream with something everywhere."""
    rules = Rules(labels_per_item=2, chunk_items=1, max_wait=None, grace=1e9, retention="discard")
    stream = store.create("s", rules=rules, classes=["x", "y"])
    stream.accept({"t": {"a": "x", "b": "y"}, "u": {"a": "x", "b": "y"}, "w": {"a": "x"}})
    stream.advance(stream.cut())
    stream.gold({"t": "x"})
    return stream


def test_a_sound_store_has_no_broken_rules(busy, where):
    assert broken(where) == []
    busy.cut()
    assert broken(where) == []
    assert findings(where)["lag"].count == 1
    assert "in use by" in findings(where)["writer"].sentence
    assert "1 tasks are answered" in findings(where)["stream"].sentence


def test_a_store_that_nobody_writes_to_says_so(where):
    Store.open(where).close()
    assert "nobody writes" in findings(where)["writer"].sentence


def test_chunks_that_are_stuck_are_told(busy, where, monkeypatch):
    monkeypatch.setattr(model_module, "learn", lambda work: 1 / 0)
    cut = busy.cut()
    with pytest.raises(StateError):
        busy.advance(cut)
    assert "failed 1 times (ZeroDivisionError" in findings(where)["failing"].sentence
    busy.settle()
    assert findings(where)["quarantined"].severity == "warning"
    assert broken(where) == []


@pytest.mark.parametrize(
    ("harm", "rule"),
    [
        ("UPDATE waiting SET n_labels = 9 WHERE item = '\"w\"'", "counts its labels"),
        ("DELETE FROM waiting WHERE item = '\"w\"'", "counts its labels"),
        ("DELETE FROM labels WHERE item = '\"w\"'", "a waiting task has labels"),
        (
            "DELETE FROM labels WHERE chunk = 2 AND worker = '\"a\"'",
            "that was cut holds its labels",
        ),
        ("UPDATE labels SET chunk = 1 WHERE item = '\"w\"'", "were deleted has none left"),
        ("UPDATE streams SET next_row = 2", "labels have numbers"),
        ("UPDATE streams SET next_chunk = 1", "chunks have numbers"),
        ("UPDATE models SET n_workers = 1", "workers have places"),
    ],
)
def test_a_broken_rule_is_told(busy, store, where, harm, rule):
    busy.cut()
    with store.write() as connection:
        connection.execute(sa.text(harm))
    assert any(rule in sentence for sentence in broken(where))


def test_damage_is_found(tmp_path):
    with Store.open(tmp_path) as store:
        stream = store.create("s", rules=AT_ONCE, classes=["x"])
        stream.accept({f"t{n}": {"a": "x"} for n in range(500)})
    file = tmp_path / "labelquorum.db"
    connection = sqlite3.connect(file)
    [page] = connection.execute(
        "SELECT rootpage FROM sqlite_master WHERE name = 'labels_of_item'"
    ).fetchone()
    connection.close()
    content = bytearray(file.read_bytes())
    start = (page - 1) * 4096
    content[start + 100 : start + 4096] = bytes(3996)
    file.write_bytes(content)
    try:
        assert any("is damaged" in sentence for sentence in broken(tmp_path))
    except StoreError as error:
        assert "malformed" in str(error)


def test_a_file_that_is_not_as_it_was_sealed_is_told(tmp_path):
    with Store.open(tmp_path) as store:
        store.create("s", rules=AT_ONCE, classes=["x"]).accept({"t": {"a": "x"}})
    assert not list(broken(tmp_path))
    with sqlite3.connect(tmp_path / "labelquorum.db") as connection:
        connection.execute("UPDATE labels SET worker = '\"b\"'")  # as no program but ours may
    connection.close()
    assert any("not as it was written" in sentence for sentence in broken(tmp_path))


def test_the_version_with_the_bug_and_a_full_disk_are_told(tmp_path, monkeypatch):
    Store.open(tmp_path).close()
    for version, severity in (((3, 51, 2), "note"), ((3, 51, 3), "ok"), ((3, 7, 0), "note")):
        monkeypatch.setattr(check.sqlite3, "sqlite_version_info", version)
        assert findings(tmp_path)["SQLite"].severity == severity
    assert findings(tmp_path)["disk"].severity in ("ok", "warning")
    monkeypatch.setattr(check, "MIN_FREE_BYTES", 1 << 62)
    assert findings(tmp_path)["disk"].severity == "warning"


def test_a_server_that_does_not_wait_for_its_disk_is_told(database):
    with Store.open(database) as store, store.write() as connection:
        name = sa.make_url(database).database
        connection.execute(sa.text(f"ALTER DATABASE {name} SET synchronous_commit = off"))
    assert "synchronous_commit off" in findings(database)["durability"].sentence


# ── refitting ────────────────────────────────────────────────────────────────────────────


def test_the_refit_is_that_of_the_library_and_the_gap_is_told(store):
    rules = Rules(labels_per_item=3, chunk_items=2, retention="keep")
    stream, chance = store.create("s", rules=rules), np.random.default_rng(1)
    all_rows = [(f"t{n}", f"w{k}", "xyz"[chance.integers(3)]) for n in range(40) for k in range(3)]
    stream.accept(as_frame(all_rows))
    stream.settle(flush=True)
    model = lq.BiLA().fit(as_frame(all_rows))
    expected = model.labels_.to_dict()
    found = refit(stream)
    assert (found.answered, found.compared, found.discarded) == (40, 40, 0)
    differ = {one.task: one for one in found.differ}
    assert set(differ) == {g.item_id for g in stream.answers() if g.label != expected[g.item_id]}
    assert differ
    for task, one in differ.items():
        assert one.refit_label == expected[task]
        assert one.refit_confidence == pytest.approx(float(model.probas_.loc[task].max()))
    assert sum(count for *_, count in found.by_class()) == len(differ)


def test_labels_that_were_discarded_are_told(store):
    stream = store.create("s", rules=AT_ONCE, classes=["x", "y"])
    stream.accept({"t": {"a": "x"}})
    stream.settle()
    with pytest.raises(StateError, match=r"no labels of applied chunks are kept.*'discard'"):
        refit(stream)
    stream.change(retention="keep")
    stream.accept({"u": {"a": "x"}})
    stream.settle()
    found = refit(stream)
    assert (found.answered, found.compared, found.discarded) == (2, 1, 1)


def test_the_refit_holds_truths_for_true(store):
    rules = AT_ONCE.changed(retention="keep")
    stream = store.create("s", rules=rules, classes=["x", "y"])
    stream.gold({"t": "y"})
    stream.accept({"t": {"a": "x", "b": "x"}, "u": {"a": "x", "b": "x"}})
    stream.settle()
    assert "t" not in {one.task for one in refit(stream).differ}
