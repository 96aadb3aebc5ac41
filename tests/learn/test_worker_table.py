"""`WorkerRows` against a plain dict of arrays, copied whole at every version."""

import gc
import threading
import weakref

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, rule

from labelquorum.learn import worker_table
from labelquorum.learn.worker_table import (
    WorkerRows,
    put_in_c,
    put_in_numpy,
    take_in_c,
    take_in_numpy,
)


def made_rows(rng, n):
    """Rows unlike any others, of several shapes and types."""
    return {
        "weight": rng.normal(size=(n, 2, 3)).astype(np.float32),
        "seen": rng.random(n) < 0.5,
        "step": rng.integers(1 << 40, size=n),
    }


class Model(dict):
    """What a version must show: its arrays, copied whole."""

    def scattered(self, workers, rows):
        length = max(len(self["step"]), max(workers, default=-1) + 1)
        after = Model()
        for name, old in self.items():
            after[name] = np.zeros((length, *old.shape[1:]), old.dtype)
            after[name][: len(old)] = old
            after[name][workers] = rows[name]
        return after


def assert_shows(version, model):
    shown = version.to_arrays()
    assert shown.keys() == model.keys() == set(version.names)
    for name, expected in model.items():
        assert shown[name].dtype == expected.dtype
        np.testing.assert_array_equal(shown[name], expected)
    assert version.n_workers == len(model["step"])


class Versions(RuleBasedStateMachine):
    """Any version may be read, written from or thrown away at any time."""

    versions = Bundle("versions")

    @initialize(target=versions, n=st.integers(1, 4), seed=st.integers(0, 9))
    def first(self, n, seed):
        self.rng = np.random.default_rng(seed)
        rows = made_rows(self.rng, n)
        return WorkerRows(rows), Model(rows)

    @rule(target=versions, pair=versions, data=st.data())
    def scatter(self, pair, data):
        version, model = pair
        known = st.integers(0, version.n_workers - 1)
        workers = data.draw(st.lists(known, unique=True, max_size=version.n_workers))
        return self._scattered(version, model, workers)

    @rule(target=versions, pair=versions, new=st.integers(1, 5), data=st.data())
    def add_workers(self, pair, new, data):
        version, model = pair
        known = st.integers(0, version.n_workers - 1)
        workers = data.draw(st.lists(known, unique=True, max_size=2))
        workers = [*workers, *range(version.n_workers, version.n_workers + new)]
        return self._scattered(version, model, workers)

    def _scattered(self, version, model, workers):
        rows = made_rows(self.rng, len(workers))
        after = version.scatter(np.array(workers, np.int64), rows)
        expected = model.scattered(workers, rows)
        for leaf in rows.values():
            leaf[...] = 0  # what was handed in is no longer the table's business
        return after, expected

    @rule(pair=versions, data=st.data())
    def gather(self, pair, data):
        version, model = pair
        known = st.integers(0, version.n_workers - 1)
        workers = np.array(data.draw(st.lists(known, max_size=6)), np.int64)
        names = data.draw(st.none() | st.just(("seen",)) | st.just(("step", "weight")))
        got = version.gather(workers, names)
        assert got.keys() == set(names or model)
        for name, rows in got.items():
            np.testing.assert_array_equal(rows, model[name][workers])
            rows[...] = 0  # a copy: no version sees this

    @rule(pair=versions)
    def read(self, pair):
        assert_shows(*pair)
        for leaf in pair[0].to_arrays().values():
            leaf[...] = 0

    @rule(first=versions, second=versions)
    def read_in_turn(self, first, second):
        for _ in range(2):
            assert_shows(*first)
            assert_shows(*second)


TestVersions = Versions.TestCase
TestVersions.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, derandomize=True
)


@pytest.mark.skipif(worker_table._worker_table is None, reason="no C compiler was here")
@given(seed=st.integers(0, 2**32 - 1), n_rows=st.integers(1, 90), wide=st.booleans())
def test_rows_are_copied_in_c_as_in_numpy(seed, n_rows, wide):
    rng = np.random.default_rng(seed)
    leaves = made_rows(rng, n_rows)
    if wide:
        leaves["track"] = rng.normal(size=(n_rows, 16, 5))
    tables = [WorkerRows(leaves)._table for _ in range(2)]
    workers = rng.permutation(n_rows).astype(np.int32)[: rng.integers(n_rows + 1)]
    places = tables[0].places
    news = {name: leaf[rng.permutation(n_rows)][: len(workers)] for name, leaf in leaves.items()}
    undo = [
        put(table.block, workers, {n: np.ascontiguousarray(a) for n, a in news.items()}, places)
        for put, table in zip((put_in_c, put_in_numpy), tables, strict=True)
    ]
    np.testing.assert_array_equal(*undo)
    np.testing.assert_array_equal(tables[0].block, tables[1].block)
    some = {name: places[name] for name in list(places)[::2]}
    again = rng.integers(n_rows, size=40).astype(np.int32)
    taken, expected = (
        take(table.block, again, some)
        for take, table in zip((take_in_c, take_in_numpy), tables, strict=True)
    )
    assert taken.keys() == expected.keys()
    for name in some:
        np.testing.assert_array_equal(taken[name], expected[name])


@pytest.mark.skipif(worker_table._worker_table is None, reason="no C compiler was here")
@pytest.mark.parametrize("workers", [[-1], [3]])
def test_a_row_that_is_not_there_is_an_error_in_c(workers):
    table = WorkerRows({"skill": np.zeros(3)})._table
    with pytest.raises(ValueError, match="not among those of the table"):
        take_in_c(table.block, np.array(workers, np.int32), table.places)
    with pytest.raises(ValueError, match="not among those of the table"):
        put_in_c(table.block, np.array(workers, np.int32), {"skill": np.ones(1)}, table.places)


def test_rows_with_objects_are_counted_by_numpy():
    cells = np.array([b"one", b"two", None], object)
    rows = WorkerRows({"cells": cells, "step": np.arange(3)})
    newer = rows.scatter(np.array([2]), {"cells": np.array([b"three"]), "step": np.array([9])})
    assert newer.to_arrays()["cells"].tolist() == [b"one", b"two", b"three"]
    assert rows.gather(np.array([2, 0]))["cells"].tolist() == [None, b"one"]


def test_what_was_handed_in_can_be_changed_afterwards():
    leaves = {"skill": np.arange(3.0)}
    rows = WorkerRows(leaves)
    leaves["skill"][:] = 9
    assert rows.to_arrays()["skill"].tolist() == [0, 1, 2]


def test_an_index_that_was_handed_in_can_be_changed_afterwards():
    old = WorkerRows({"skill": np.zeros(3)})
    workers = np.array([0])
    new = old.scatter(workers, {"skill": np.ones(1)})
    workers[0] = 2
    assert old.to_arrays()["skill"].tolist() == [0, 0, 0]
    assert new.to_arrays()["skill"].tolist() == [1, 0, 0]


def test_a_worker_a_version_does_not_know_is_an_error():
    old = WorkerRows({"skill": np.zeros(2)})
    old.scatter(np.arange(2, 9), {"skill": np.ones(7)})
    with pytest.raises(IndexError):
        old.gather(np.array([3]))


def test_a_version_nobody_holds_is_gone():
    first = WorkerRows({"skill": np.zeros(3)})
    watch = weakref.ref(first._version)
    newest = first.scatter(np.array([1]), {"skill": np.ones(1)})
    del first
    gc.collect()
    assert watch() is None
    assert newest.to_arrays()["skill"].tolist() == [0, 1, 0]


def test_a_scatter_that_fails_leaves_the_version_as_it_was():
    rows = WorkerRows({"skill": np.arange(3.0), "step": np.arange(3)})
    for bad in ({"skill": np.ones(1)}, {"skill": np.ones(2), "step": np.ones(7)}):
        with pytest.raises((KeyError, ValueError)):
            rows.scatter(np.array([0, 1]), bad)
        assert rows.to_arrays()["skill"].tolist() == [0, 1, 2]
        assert rows.to_arrays()["step"].tolist() == [0, 1, 2]


def test_a_scatter_of_nothing_is_a_version_that_shows_the_same():
    rows = WorkerRows({"skill": np.arange(3.0)})
    same = rows.scatter(np.zeros(0, np.int64), {"skill": np.zeros(0)})
    assert same.to_arrays()["skill"].tolist() == rows.to_arrays()["skill"].tolist()


def test_a_table_may_start_without_workers():
    rows = WorkerRows({"skill": np.zeros((0, 2))})
    one = rows.scatter(np.array([0]), {"skill": np.ones((1, 2))})
    assert rows.to_arrays()["skill"].shape == (0, 2)
    assert one.to_arrays()["skill"].tolist() == [[1, 1]]


def test_a_scatter_among_very_many_workers_copies_only_its_rows():
    rows = WorkerRows({"skill": np.zeros((1_000_000, 4))})
    table = rows._table.block
    newer = rows.scatter(np.array([5, 70]), {"skill": np.ones((2, 4))})
    assert newer._table.block is table
    assert rows._version.undo["skill"].shape == (2, 4)
    np.testing.assert_array_equal(rows.gather(np.array([5]))["skill"], 0)
    np.testing.assert_array_equal(newer.gather(np.array([5]))["skill"], 1)
    assert rows._table.block is table


@pytest.mark.slow
def test_threads_that_read_and_write_different_versions_see_their_own():
    rng = np.random.default_rng(0)
    base = WorkerRows({"skill": np.zeros(50), "step": np.zeros(50, np.int64)})
    failures = []

    def work(mark, order):
        version, expected = base, np.zeros(50)
        for n, workers in enumerate(order, start=1):
            value = mark + n / 1000
            rows = {"skill": np.full(5, value), "step": np.full(5, n)}
            version = version.scatter(workers, rows)
            expected[workers] = value
            if not np.array_equal(version.to_arrays()["skill"], expected):
                failures.append(f"thread {mark}, write {n}")
            if base.to_arrays()["skill"].any():
                failures.append(f"thread {mark} saw another's rows in the base, write {n}")

    threads = [
        threading.Thread(
            target=work, args=(mark, [rng.choice(50, 5, replace=False) for _ in range(150)])
        )
        for mark in range(1, 5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_room_is_made_for_workers_and_classes_and_what_is_new_is_zero():
    old = WorkerRows({"counts": np.ones((2, 2, 2)), "step": np.array([3, 4])})
    new = old.with_room(3, more_classes=1)
    counts = new.to_arrays()["counts"]
    assert counts.shape == (3, 3, 3)
    assert counts.sum() == 8 and counts[:2, :2, :2].all()
    assert new.to_arrays()["step"].tolist() == [3, 4, 0]
    assert old.with_room(2) is old
    assert old.to_arrays()["counts"].shape == (2, 2, 2)


def test_a_worker_can_be_cleared_and_the_old_version_keeps_him():
    old = WorkerRows({"counts": np.ones((2, 2, 2)), "step": np.array([3, 4])})
    assert old.cleared(1).to_arrays()["step"].tolist() == [3, 0]
    assert old.cleared(1).to_arrays()["counts"].sum() == 4
    assert old.to_arrays()["step"].tolist() == [3, 4]
