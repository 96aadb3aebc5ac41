"""Fitting: shapes that recur, padding that changes nothing, and workers solved to the end."""

import logging

import jax
import numpy as np
import pytest

from labelquorum.evaluation.simulate.crowds import class_conditional_crowd
from labelquorum.ingest.chunks import make_chunk
from labelquorum.learn.bila import PRESETS, bila, solver
from labelquorum.learn.bila.hierarchical import Recipe, confusion, crowd_matrix, gradient
from labelquorum.learn.bila.minibatch import worker_room, workers_last
from labelquorum.learn.bila.solver import solve_workers

METHOD = bila(**PRESETS["recipe"])


@pytest.fixture(scope="module")
def crowd():
    return class_conditional_crowd(60, 9, 3, 4, seed=2)


def first_items(crowd, n_items):
    rows = crowd.item < n_items
    columns = crowd.item[rows], crowd.worker[rows], crowd.label[rows]
    return make_chunk(*columns, n_items=n_items, n_workers=9, n_classes=3)


def learn(chunk, state=None):
    return METHOD.update(METHOD.init(chunk, 0) if state is None else state, chunk)[0]


def test_padding_changes_nothing(crowd):
    """129 labels take other room than 128; the same items must come out the same."""
    few = first_items(crowd, 32)
    more = make_chunk(
        np.append(few.item, 31),
        np.append(few.worker, 9),
        np.append(few.label, 0),
        weight=np.append(np.ones(few.n_labels), 0),
    )
    assert (few.n_labels, more.n_labels) == (128, 129)
    one, other = (learn(chunk).rows.to_arrays() for chunk in (few, more))
    for name, rows in one.items():
        np.testing.assert_allclose(rows, other[name][:9], atol=1e-5)


@pytest.mark.slow
def test_chunks_of_about_the_same_size_are_compiled_once(crowd, caplog):
    jax.clear_caches()

    def compiled():
        return sum("Compiling jit(_fit_flat)" in r.getMessage() for r in caplog.records)

    with caplog.at_level(logging.DEBUG, "jax"):
        state = learn(first_items(crowd, 60))
        assert compiled() == 1
        for n_items in (60, 50, 40):
            state = learn(first_items(crowd, n_items), state)
    assert compiled() == 1


def test_rows_of_workers_are_padded_to_a_few_sizes():
    assert {worker_room(n, 3) for n in range(1, 600)} == {128, 512, 2048}
    # A thousand classes make a worker large enough.
    assert worker_room(3, 1000) == 4
    assert workers_last(np.zeros((3, 7, 7)), 4).shape == (7, 7, 4)


@pytest.mark.slow
def test_counts_and_theta_take_the_same_room_however_many_classes_there_are():
    for n_classes in (1, 2, 7, 8, 9, 16, 17, 31, 33):  # around what is padded to
        rows = np.arange(200)
        chunk = make_chunk(rows % 100, rows, rows % n_classes, n_classes=n_classes)
        learn(chunk)


@pytest.mark.parametrize("newton_classes", [8, 0])
def test_a_worker_is_solved_where_his_gradient_is_zero(newton_classes, monkeypatch):
    monkeypatch.setattr(solver, "WORKERS_PER_BLOCK", 4)  # ten workers are three blocks
    recipe = Recipe(newton_classes=newton_classes)
    rng = np.random.default_rng(0)
    counts = rng.exponential(20, size=(10, 3, 3)) * (rng.random((10, 1, 1)) < 0.8)
    counts[3] = 1e6 * np.eye(3)  # never wrong
    pooled = counts.sum(axis=0) / 100
    theta = solve_workers("rich", counts, pooled, recipe)
    assert theta.dtype == np.float64 and theta.shape == (10, 4)
    with jax.enable_x64(True):
        crowd, last = crowd_matrix(pooled, recipe), np.moveaxis(counts, 0, -1)
        slope = gradient(theta.T, last, confusion(crowd, theta.T), recipe)
    # Next to a million labels, rounding is what is left.
    np.testing.assert_allclose(np.delete(slope, 3, axis=1), 0, atol=1e-8)
    np.testing.assert_allclose(slope[:, 3], 0, atol=1e-4)
    assert not theta[(counts == 0).all(axis=(1, 2))].any()
