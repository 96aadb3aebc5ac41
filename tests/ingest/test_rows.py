"""Rows: C, and Python with NumPy, number cells and sort rows alike."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelquorum.ingest import rows
from labelquorum.ingest.rows import (
    IdIndex,
    encode_list,
    is_text,
    look_up,
    sort_rows,
    votes_of_items,
)
from labelquorum.ingest.vocabulary import Roster

needs_c = pytest.mark.skipif(
    rows._rows is None, reason="Nothing was compiled: there is no C compiler here."
)
cells = st.lists(
    st.integers(-3, 3) | st.booleans() | st.sampled_from(["a", "b", "ä", "", " "]) | st.just(0.5),
    max_size=40,
)
labelled = st.integers(1, 6).flatmap(
    lambda n_items: st.tuples(
        st.just(n_items),
        st.lists(
            st.tuples(
                st.integers(0, n_items - 1),
                st.integers(0, 3) | st.sampled_from([255, 256, 70_000, 2**31 - 1]),
                st.integers(0, 2),
            ),
            max_size=60,
        ),
    )
)


def without_c(monkeypatch_context, function, *arguments):
    with monkeypatch_context() as patched:
        patched.setattr(rows, "_rows", None)
        return function(*arguments)


@needs_c
@given(table=labelled, seed=st.integers(0, 99))
def test_votes_are_added_up_alike(table, seed):
    n_items, found = table
    item, _, label = np.array(found, np.int64).reshape(-1, 3).T.astype(np.int32)
    weight = np.random.default_rng(seed).random(len(item)).astype(np.float32)
    for n_classes in (0, 3):
        arguments = votes_of_items, item, label, weight, n_items, n_classes
        votes, total = votes_of_items(*arguments[1:])
        others = without_c(pytest.MonkeyPatch.context, *arguments)
        assert votes.tobytes() == others[0].tobytes() and total.tobytes() == others[1].tobytes()


@needs_c
@pytest.mark.parametrize("wrong", [{"item": [0, 9]}, {"label": [0, -1]}, {"weight": [1.0]}])
def test_votes_of_what_is_not_counted_are_refused(wrong):
    columns = {"item": [0, 1], "label": [0, 1], "weight": [1.0, 1.0]} | wrong
    item, label = (np.array(columns[name], np.int32) for name in ("item", "label"))
    with pytest.raises(ValueError, match=r"not among those counted|were expected"):
        votes_of_items(item, label, np.array(columns["weight"], np.float32), 2, 2)


@needs_c
@given(column=cells)
def test_cells_are_numbered_alike(column):
    (codes, values), (other_codes, other_values) = (
        encode_list(column),
        without_c(pytest.MonkeyPatch.context, encode_list, column),
    )
    assert codes.tolist() == other_codes.tolist()
    assert list(map(repr, values)) == list(map(repr, other_values))


@needs_c
@given(column=cells, ids=cells)
def test_cells_are_found_alike_by_dict_and_by_table(column, ids):
    ids = list(dict.fromkeys(ids))
    known = {identity: n for n, identity in enumerate(ids)}
    found = [
        look_up(column, known),
        IdIndex(ids, known).look_up(column),
        without_c(pytest.MonkeyPatch.context, look_up, column, known),
        without_c(pytest.MonkeyPatch.context, IdIndex(ids, known).look_up, column),
    ]
    as_lists = [None if index is None else index.tolist() for index in found]
    assert as_lists == [as_lists[0]] * 4
    assert (as_lists[0] is None) == (not set(column) <= set(ids))


@needs_c
@given(given_rows=labelled)
def test_rows_are_sorted_alike(given_rows):
    n_items, drawn = given_rows
    columns = np.array(drawn, np.int32).reshape(-1, 3).T.copy()
    one = sort_rows(*columns, None, n_items)
    other = without_c(pytest.MonkeyPatch.context, sort_rows, *columns, None, n_items)
    everything = np.arange(len(drawn))
    for name in one._fields:
        mine, theirs = getattr(one, name), getattr(other, name)
        if name == "order":  # rows that are sorted already are a slice
            mine, theirs = everything[mine], everything[theirs]
        np.testing.assert_array_equal(mine, theirs, err_msg=name)


@needs_c
def test_many_rows_of_one_item_are_sorted_alike():
    rng = np.random.default_rng(0)
    columns = rng.integers(0, (2, 90, 4), size=(500, 3)).astype(np.int32).T.copy()
    one = sort_rows(*columns, None, 2)
    other = without_c(pytest.MonkeyPatch.context, sort_rows, *columns, None, 2)
    assert one.has_repeats and other.has_repeats
    np.testing.assert_array_equal(one.order, other.order)


@needs_c
@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (["a", "b7"], True),
        ([], True),
        (["a", ""], False),
        (["a", " b"], False),
        (["a", "b\udc80"], False),
        (["a", 1], False),
        (["a", None], False),
    ],
)
def test_text_is_told_at_a_glance(column, expected):
    assert is_text(column) is expected


@needs_c
def test_a_table_of_ids_grows_and_skips_who_was_forgotten():
    ids = []
    known: dict[str, int] = {}
    index = IdIndex(ids, known)
    for n in range(1000):
        ids.append(f"worker{n}")
        index.update()
    assert index.look_up(["worker999", "worker0"]).tolist() == [999, 0]
    ids[7] = None
    assert index.look_up(["worker7"]) is None
    ids.append("worker7")
    index.update()
    assert index.look_up(["worker7"]).tolist() == [1000]


def test_a_roster_finds_its_workers_in_another_process():
    roster = Roster(workers=[f"worker{n}" for n in range(200)])
    code = (
        "import pickle, sys\n"
        "roster = pickle.load(sys.stdin.buffer)\n"
        "assert roster._workers.look_up(['worker150', 'worker3']).tolist() == [150, 3]\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    given = pickle.dumps(roster)
    subprocess.run([sys.executable, "-c", code], input=given, env=environment, check=True)


@needs_c
def test_an_id_that_cannot_be_hashed_is_an_error_and_no_crash():
    for look in (Roster()._workers.look_up, encode_list):
        with pytest.raises(TypeError, match="unhashable"):
            look([[1]])


@needs_c
@pytest.mark.parametrize(
    "columns",
    [
        ([0, 2], [0, 0], [0, 0]),  # an item beyond the last
        ([0, -1], [0, 0], [0, 0]),
        ([0, 0], [0, -1], [0, 0]),
        ([0, 0], [0], [0, 0]),
    ],
)
def test_rows_out_of_range_are_refused_in_c(columns):
    arrays = [np.array(column, np.int32) for column in columns]
    with pytest.raises(ValueError, match=r"among those counted|were expected"):
        sort_rows(*arrays, None, 2)


def test_learning_from_a_list_imports_no_pandas():
    code = (
        "import sys\n"
        "from labelquorum import BiLA\n"
        "model = BiLA().partial_fit([('q1', 'ann', 'cat'), ('q1', 'bob', 'cat')])\n"
        "assert not {'pandas', 'pyarrow', 'jax'} & set(sys.modules)\n"
        "assert model.labels_.to_dict() == {'q1': 'cat'}\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
