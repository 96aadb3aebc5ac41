"""Chunks that are cut and applied together are cut and applied as if each had come alone."""

import pytest
import sqlalchemy as sa
from faults.source import CLASSES, RULES, batches_of, crowd_of, table_of
from store.conftest import Clock, store_on

import labelquorum.store.model_rows as model_module
from labelquorum.errors import StateError
from labelquorum.store.database import schema
from labelquorum.store.store import Store

where = store_on("sqlite", "postgresql")


def everything(store):
    """All rows of all tables."""
    found = {}
    with store.read() as connection:
        for table in schema.metadata.sorted_tables:
            columns = [column for column in table.c if column.name != "stream"]
            rows = connection.execute(sa.select(*columns)).all()
            found[table.name] = sorted(map(tuple, rows), key=repr)
    return found


def driven(store, clock, rules, advance):
    """A stream to which labels, late ones and true ones come faster than chunks are learned."""
    labels, truths = crowd_of(90, n_workers=9)
    todo, sizes = batches_of(labels, 20), []
    stream = store.create("s", rules=rules, classes=CLASSES)
    for number, rows in enumerate(todo):
        tasks = {task for task, *_ in rows if int(task[1:]) % 3 == 0}
        if number % 4 == 2:
            stream.gold({task: truths[task] for task in sorted(tasks)})
        stream.accept(table_of(rows))
        if number % 6 == 5:
            clock.time += 100.0
            sizes += advance(stream)
    stream.change(chunk_items=3, max_chunk_wait=0.0)
    sizes += advance(stream)
    return stream, sizes


def one_by_one(stream):
    sizes = []
    while stream.cut():
        [number] = stream.to_apply()
        stream.advance(number)
        sizes.append(1)
    return sizes


def together(stream):
    sizes = []
    while cuts := stream.cut_some():
        seen = []
        applied = stream.advance_some(seen.append)
        assert [one.id for one in applied] == [cut.id for cut in cuts] == seen
        sizes.append(len(applied))
    return sizes


@pytest.mark.parametrize("retention", ["keep", "discard"])
@pytest.mark.parametrize("grace", [None, 150.0, 0.0])
def test_chunks_that_are_applied_together_leave_the_rows_of_chunks_applied_alone(
    where, tmp_path, grace, retention
):
    rules, ends = RULES.changed(grace=grace, retention=retention), []
    for place, advance in ((tmp_path / "alone", one_by_one), (where, together)):
        clock = Clock()
        with Store.open(place, clock) as store:
            stream, sizes = driven(store, clock, rules, advance)
            ends.append((everything(store), stream.state_hash(), sum(sizes)))
    assert max(sizes) > 5 and sum(sizes) > 20
    assert ends[0] == ends[1]
    rows = ends[1][0]
    assert rows["gold"] and bool(rows["open_items"]) == (grace != 0.0)


def test_a_chunk_that_fails_among_others_counts_alone(store, monkeypatch):
    rules = RULES.changed(labels_per_item=1, chunk_items=1)
    stream = store.create("s", rules=rules, classes=CLASSES)
    stream.accept({f"t{n}": {"w": "a"} for n in range(6)})

    def learn(work, real=model_module.learn):
        if work.chunk == 3:
            raise ValueError("three")
        return real(work)

    monkeypatch.setattr(model_module, "learn", learn)
    assert len(stream.cut_some()) == 6
    assert [one.id for one in stream.advance_some()] == [1, 2]
    assert stream.chunks()[2]["attempts"] == 1
    for attempt in (2, 3):
        with pytest.raises(StateError, match=f"attempt {attempt} of 3"):
            stream.advance_some()
    assert [one.id for one in stream.advance_some()] == [4, 5, 6]
    assert stream.advance_some() == [] and stream.quarantined() == [3]
    assert [chunk["attempts"] for chunk in stream.chunks()] == [0, 0, 3, 0, 0, 0]


def test_a_chunk_that_failed_once_is_committed_alone(store):
    rules = RULES.changed(labels_per_item=1, chunk_items=1)
    stream = store.create("s", rules=rules, classes=CLASSES)
    stream.accept({f"t{n}": {"w": "a"} for n in range(4)})
    stream.cut_some()
    stream.failed(2, RuntimeError("the learner ended while it learned"))
    assert [[one.id for one in stream.advance_some()] for _ in range(3)] == [[1], [2], [3, 4]]
