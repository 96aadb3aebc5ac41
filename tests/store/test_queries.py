"""With how much the learner is asked: workers by the bytes of their states, items by their age."""

from dataclasses import replace

import numpy as np
import pytest
from juries import MISLED_SEED, jury_rows

import labelquorum as lq
from labelquorum.store import queries
from labelquorum.store.batch import decode
from labelquorum.store.rules import Rules

RULES = Rules(labels_per_item=2, chunk_items=4, max_wait=None, max_chunk_wait=None, grace=1e9)


@pytest.fixture
def asked(store, monkeypatch):
    """What the learner was asked: the question, what came with it, and the reply."""
    seen, ask = [], store.learner.ask

    def noted(work, question, options):
        reply = ask(work, question, options)
        seen.append((question, work, reply))
        return reply

    monkeypatch.setattr(store.learner, "ask", noted)
    return seen


def fed(store, classes=("a", "b")):
    """A stream of six workers, of whom those with a low number have most labels."""
    stream = store.create("s", classes=list(classes), rules=RULES)
    for n in range(12):
        stream.accept({f"t{n:02d}": {f"w{n % 6}": "a", f"w{n % 4}x": "b", f"w{n % 3}y": "a"}})
        stream.settle()
    return stream


def test_a_question_takes_no_more_states_than_the_budget(store, asked, monkeypatch):
    stream = fed(store)
    everybody = stream.workers()
    size = max(len(row.state) for row in asked[-1][1].workers)
    asked.clear()
    monkeypatch.setattr(queries, "MAX_STATE_BYTES", 3 * size)
    _, rows, total = stream.worker_table()
    assert total == len(everybody) == 13 and len(rows) == 3
    busiest = sorted(everybody, key=lambda one: (-one["labels"], one["place"]))[:3]
    assert {row["worker"] for row in rows} == {one["worker"] for one in busiest}
    assert [one["worker"] for one in stream.workers()] == [one["worker"] for one in everybody]
    stream.profile("w5")
    assert all(len(work.workers) <= 6 for _, work, _ in asked)


def test_with_many_classes_the_board_is_made_without_the_learner(store, asked, monkeypatch):
    stream = fed(store)
    wanted = stream.worker_table()
    asked.clear()
    monkeypatch.setattr(queries, "MAX_MODEL_CLASSES", 1)
    version, rows, total = stream.worker_table()
    assert asked == [] and (version, total) == (wanted[0], wanted[2])
    for row, other in zip(rows, wanted[1], strict=True):
        assert row["skill"] == row["agreed"] / row["labels"]
        same = ("worker", "place", "labels", "agreed")
        assert [row[name] for name in same] == [other[name] for name in same]


def test_workers_are_compared_as_the_library_compares_them(store, asked, monkeypatch):
    stream = store.create("s", classes=["a", "b"], rules=RULES.changed(chunk_items=1))
    assert stream.agreement()["workers"] == []
    said = {f"t{n}": {"u": "a", "v": "ab"[n % 2], "w": "aab"[n % 3]} for n in range(9)}
    stream.accept(said)
    stream.settle()
    found, wanted = stream.agreement(), lq.agreement(said)
    assert found["workers"] == ["u", "v", "w"] and found["items"] == 9 and not found["left_out"]
    for name in ("kappa", "low", "high", "agreement", "shared"):
        table = np.array(found[name], dtype=float)
        np.testing.assert_allclose(table, getattr(wanted, name).to_numpy())
    assert stream.agreement(limit=2)["left_out"] == 1
    monkeypatch.setattr(queries, "FLAG_ITEMS", 4)
    assert stream.agreement()["items"] == 4


def test_the_jury_is_reported_as_the_library_reports_it(store, rng_votes):
    stream = store.create("s", classes=["a", "b"], rules=RULES.changed(chunk_items=40))
    nobody = stream.jury()
    assert nobody["n_judges"] == nobody["items"] == 0 and nobody["judges"] == []
    stream.accept(rng_votes)
    stream.settle()
    found = stream.jury()
    wanted = lq.BiLA().partial_fit(rng_votes).jury().to_dict()
    assert found.keys() - {"items"} == wanted.keys() == nobody.keys() - {"items"}
    assert found["items"] == found["tasks"] == 40 and found["n_judges"] == 3
    names = ("labels", "by", "worker", "model")
    rows = ([[one[name] for name in names] for one in each["judges"]] for each in (found, wanted))
    assert next(rows) == next(rows)
    assert found["effective"] == pytest.approx(wanted["effective"], rel=1e-3)
    assert stream.jury(limit=2)["left_out"] == 1


@pytest.fixture
def rng_votes():
    """Votes of three judges on 40 tasks."""
    said = np.random.default_rng(3).random((40, 3)) < 0.7
    return {
        f"t{n:02d}": {name: "ab"[(n + right) % 2] for name, right in zip("uvw", row, strict=True)}
        for n, row in enumerate(said.tolist())
    }


def test_who_goes_together_is_looked_for_in_the_items_that_were_opened_last(
    store, clock, asked, monkeypatch
):
    stream = store.create("s", classes=["a", "b"], rules=RULES.changed(chunk_items=1))
    for task in ("z", "b", "a"):
        stream.accept({task: {"v": "a", "w": "b"}})
        stream.settle()
        clock.time += 1
    monkeypatch.setattr(queries, "FLAG_ITEMS", 2)
    stream.worker_table()
    assert [row.item for row in asked[-1][1].open_items] == ['"b"', '"a"']


def test_matrices_are_made_only_where_they_are_wanted(store, asked):
    stream = fed(store)
    assert "confusion" not in asked_of(stream.workers(matrices=False), asked)
    assert "confusion" in asked_of(stream.workers(), asked)


def asked_of(reply, asked):
    assert set(asked[-1][2][0]) <= set(reply[0])
    return asked[-1][2][0]


def test_of_many_classes_the_bounds_of_a_skill_are_told_by_labels_alone(store, monkeypatch):
    stream = fed(store)
    before = stream.workers(matrices=False)
    monkeypatch.setattr("labelquorum.learn.inspection.MAX_POSTERIOR_CLASSES", 1)
    monkeypatch.setattr("labelquorum.learn.inspection.DRAWS", None)  # it would fail
    after = stream.workers(matrices=False)
    for one, other in zip(before, after, strict=True):
        assert one["skill"] == other["skill"]
        assert 0 <= other["low"] < other["skill"] < other["high"] <= 1
        assert (one["low"], one["high"]) != (other["low"], other["high"])


def test_flags_and_the_model_file_have_the_open_tasks_answered_last(store, asked, monkeypatch):
    """Of all that stay open for good, and without sorting them."""
    rules = RULES.changed(chunk_items=1, labels_per_item=1, grace=None)
    stream = store.create("s", classes=["a", "b"], rules=rules)
    for task in "zyxwv":
        stream.accept({task: {"ann": "a", "bob": "b"}})
        stream.settle()
    monkeypatch.setattr(queries, "FLAG_ITEMS", 2)
    monkeypatch.setattr(queries, "MODEL_ITEMS", 3)
    stream.worker_table()
    stream.model_file()
    given = [[decode(row.item) for row in work.open_items] for _, work, _ in asked]
    assert given == [["w", "v"], ["v", "w", "x"]]
    assert len(stream.snapshot().ids["open_items"]) == 5
    monkeypatch.setattr(queries, "COUNTED_ITEMS", 4)
    assert stream.suggestions()[1] == 4


def test_what_decides_a_doubt_is_suggested_first(store):
    rows, _ = jury_rows(MISLED_SEED, sound=False)
    n_items = len({task for task, *_ in rows})
    rules = replace(RULES, chunk_items=n_items)
    stream = store.create("jury", rules=rules)
    stream.accept(rows)
    stream.settle()
    found, n_open = stream.suggestions(limit=12)
    assert n_open == n_items
    assert [one["decides"] for one in found] == [True] * 10 + [False] * 2


def test_what_is_suggested_is_open_however_many_are_closed(store, monkeypatch, clock):
    """The least sure are looked at first, and all that are open if too few of these are."""
    monkeypatch.setattr(queries, "COUNTED_ITEMS", 2)
    monkeypatch.setattr(queries, "GAIN_ITEMS", 1)
    rules = replace(RULES, chunk_items=1, labels_per_item=2, grace=60)
    stream = store.create("s", classes=["a", "b"], rules=rules)
    for task in ("doubted 1", "doubted 2", "doubted 3", "doubted 4", "doubted 5"):
        stream.accept({task: {"ann": "a", "bob": "b"}})
        stream.settle()
    clock.time += 100
    for task in ("clear 1", "clear 2", "clear 3"):
        stream.accept({task: {"ann": "a", "bob": "a"}})
        stream.settle()
    found, _ = stream.suggestions(limit=1)
    assert [one["task"] for one in found] == ["clear 1"]
