"""Engines: C, NumPy and JAX agree, padding changes nothing, workers are solved to the end."""

import inspect
import logging
import os
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelquorum.errors import StateError
from labelquorum.evaluation.simulate.crowds import class_conditional_crowd
from labelquorum.ingest.chunks import make_chunk
from labelquorum.learn.bila import PRESETS, bila, engines, gpu, kernel, reference, sparse
from labelquorum.learn.bila.engines import ENGINE, matrix_engine
from labelquorum.learn.bila.hierarchical import Recipe, confusion, crowd_matrix, gradient
from labelquorum.learn.bila.minibatch import pack_counted
from labelquorum.learn.bila.worker_models import WORKER_MODELS, Known, Settled

METHOD = bila(**PRESETS["recipe"])


@pytest.fixture(autouse=True)
def chosen_again():
    """Let each test choose an engine, and no later test keep it."""
    matrix_engine.cache_clear()
    yield
    matrix_engine.cache_clear()


needs_kernel = pytest.mark.skipif(
    not kernel.is_built(), reason="The kernel was not built: there is no C compiler here."
)


def test_the_kernel_was_built_where_there_is_a_compiler():
    if "LABELQUORUM_CI" not in os.environ and shutil.which("cc") is None:
        pytest.skip("there is no C compiler here")
    assert kernel.is_built() and matrix_engine() is kernel


SIX = ("fit", "score", "past_unexplained", "count", "pool", "solve_workers")


@pytest.mark.parametrize("function", SIX)
def test_every_engine_has_the_six_functions_with_the_same_parameters(function):
    first, *others = (
        list(inspect.signature(getattr(engine, function)).parameters)
        for engine in (kernel, reference, gpu, sparse)
    )
    assert others == [first] * 3


# ── the engines agree ────────────────────────────────────────────────────────────────────


def drawn_chunk(rng, n_classes, votes, weighted, gold):
    """Up to 40 items, up to 9 labels each, some without any; with `votes` several of a worker."""
    n_items, n_workers = rng.integers(1, 40), rng.integers(1, 12)
    item = np.repeat(np.arange(n_items), rng.integers(0, 9, n_items))
    truth = rng.integers(0, n_classes, n_items)
    worker = rng.integers(0, n_workers, len(item))
    guess = rng.integers(0, n_classes, len(item))
    label = np.where(rng.random(len(item)) < 0.7, truth[item], guess)
    if not votes:
        _, rows = np.unique(item * n_workers + worker, return_index=True)
        item, worker, label = item[rows], worker[rows], label[rows]
    weight = rng.random(len(item)).round(2) * 2 if weighted else None
    counts = {"n_items": n_items, "n_workers": n_workers, "n_classes": n_classes}
    chunk = make_chunk(item, worker, label, weight=weight, **counts)
    if gold:
        known = np.where(rng.random(n_items) < 0.3, truth, -1).astype(np.int32)
        chunk = chunk._replace(gold=known)
    return chunk


def drawn_known(rng, name, n_workers, n_classes):
    """Counts of what came before, and θ somewhere."""
    shape, size = WORKER_MODELS[name].count_shape(n_classes), WORKER_MODELS[name].theta_size
    counts = rng.exponential(3, size=(n_workers, *shape)) * (rng.random((n_workers, 1, 1)) < 0.7)
    others = rng.exponential(20, size=shape)
    if name == "plain":  # labels on items of a class are at least the right ones
        counts[:, 1] += counts[:, 0]
        others[1] += others[0]
    theta = rng.normal(scale=0.3, size=(n_workers, size(n_classes)))
    class_counts, label_shares = rng.exponential(9, size=(2, n_classes))
    return Known(counts, theta, others, class_counts, label_shares)


cases = given(
    seed=st.integers(0, 2**32 - 1),
    name=st.sampled_from(list(WORKER_MODELS)),
    n_classes=st.sampled_from([1, 2, 3, 4, 5, 7, 11]),
    votes=st.booleans(),
    weighted=st.booleans(),
    gold=st.booleans(),
    own_weight=st.sampled_from([0.0, 0.3]),
    class_prior=st.sampled_from(["blended", "running", "uniform"]),
)


@needs_kernel
@settings(max_examples=150, deadline=None)
@cases
def test_c_and_numpy_agree(seed, name, n_classes, votes, weighted, gold, own_weight, class_prior):
    rng = np.random.default_rng(seed)
    chunk = drawn_chunk(rng, n_classes, votes, weighted, gold)
    recipe = Recipe(own_weight=own_weight, class_prior=class_prior, inner_steps=4)
    known = drawn_known(rng, name, len(chunk.workers), n_classes)
    counted = (rng.random(chunk.n_items) < 0.8).astype(float)
    batch = pack_counted(chunk, chunk.weight, counted)
    asked = rng.integers(10, 20, chunk.n_items) * (counted > 0.0)
    one, other = (engine.fit(name, batch, known, recipe, asked) for engine in (kernel, reference))
    for field, value in one._asdict().items():
        # q is rounded to float32, and weights are squared in float32 by NumPy
        near = 2e-5 if field == "unexplained" else 2e-6
        np.testing.assert_allclose(
            value, getattr(other, field), rtol=near, atol=near, err_msg=field
        )
    settled = Settled(one.counts, one.theta, one.pooled, known.label_shares, known.class_counts)
    for mine, theirs in zip(
        kernel.score(name, batch, settled, recipe),
        reference.score(name, batch, settled, recipe),
        strict=True,
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-9)
    arguments = name, batch, one.class_probs, settled, recipe
    np.testing.assert_allclose(
        kernel.past_unexplained(*arguments),
        reference.past_unexplained(*arguments),
        rtol=1e-5,
        atol=1e-5,
    )
    n_workers = len(chunk.workers)
    np.testing.assert_allclose(
        kernel.count(name, batch, one.class_probs, n_workers),
        reference.count(name, batch, one.class_probs, n_workers),
        atol=1e-5,
    )
    if n_workers:
        arguments = name, known.counts, recipe
        np.testing.assert_allclose(kernel.pool(*arguments), reference.pool(*arguments))
        arguments = name, known.counts, known.others, recipe
        np.testing.assert_allclose(
            kernel.solve_workers(*arguments), reference.solve_workers(*arguments), atol=1e-9
        )


@needs_kernel
@pytest.mark.parametrize("name", WORKER_MODELS)
def test_an_item_that_is_very_clear_gains_as_much_in_c(name):
    """Its gain is thousands of nats, beyond what e^x holds."""
    rng = np.random.default_rng(3)
    chunk = drawn_chunk(rng, 3, votes=False, weighted=False, gold=False)
    chunk = chunk._replace(weight=np.where(chunk.item == chunk.item[0], 1e5, 1).astype(np.float32))
    known = drawn_known(rng, name, len(chunk.workers), 3)
    batch = pack_counted(chunk, chunk.weight, np.ones(chunk.n_items))
    one, other = (
        engine.fit(name, batch, known, Recipe(inner_steps=2)) for engine in (kernel, reference)
    )
    assert np.abs(one.unexplained[5]).max() > 1000
    np.testing.assert_allclose(one.unexplained, other.unexplained, rtol=1e-5, atol=1e-2)


@needs_kernel
@pytest.mark.parametrize("wrong", [np.nan, -30.0, np.inf])
def test_numbers_that_make_no_sense_come_out_as_nan_and_not_as_an_answer(wrong):
    rng = np.random.default_rng(3)
    chunk = drawn_chunk(rng, 3, votes=False, weighted=False, gold=False)
    known = drawn_known(rng, "rich", len(chunk.workers), 3)
    known.class_counts[1] = wrong
    batch = pack_counted(chunk, chunk.weight, np.ones(chunk.n_items))
    fitted = kernel.fit("rich", batch, known, Recipe())
    assert not np.isfinite(fitted.class_probs.sum())


@pytest.mark.parametrize("name", WORKER_MODELS)
@pytest.mark.parametrize("votes", [False, True])
def test_jax_agrees_within_1e_6(name, votes):
    """What a GPU runs, compiled for this processor: float64, and q is rounded to float32."""
    rng = np.random.default_rng(5)
    chunk = drawn_chunk(rng, 3, votes, weighted=True, gold=True)
    recipe, known = Recipe(own_weight=0.3), drawn_known(rng, name, len(chunk.workers), 3)
    batch = pack_counted(chunk, chunk.weight, np.ones(chunk.n_items))
    asked = rng.integers(10, 20, chunk.n_items) * (chunk.gold < 0.0)
    one, other = (engine.fit(name, batch, known, recipe, asked) for engine in (reference, gpu))
    for field, value in one._asdict().items():
        np.testing.assert_allclose(
            value, getattr(other, field), rtol=1e-6, atol=1e-6, err_msg=field
        )
    settled = one.settled(known)
    scores, evidence = reference.score(name, batch, settled, recipe)
    compiled_scores, compiled_evidence = gpu.score(name, batch, settled, recipe)
    np.testing.assert_allclose(scores, compiled_scores, rtol=1e-9)
    np.testing.assert_allclose(evidence, compiled_evidence, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("chosen", ["numpy", "jax"])
def test_every_engine_gives_the_same_labels(chosen, monkeypatch):
    """Answers of a stream, through the same code path as on a GPU."""
    crowd = class_conditional_crowd(200, 9, 3, 4, seed=2)

    def answers():
        method, state, probs = bila(), None, []
        for start in range(0, 200, 50):
            rows = (crowd.item >= start) & (crowd.item < start + 50)
            columns = crowd.item[rows] - start, crowd.worker[rows], crowd.label[rows]
            chunk = make_chunk(*columns, n_workers=9, n_classes=3)
            state = method.init(chunk, 0) if state is None else state
            state, _ = method.update(state, chunk)
            probs.append(method.aggregate(state, chunk).probs)
        return np.concatenate(probs)

    expected = answers()
    monkeypatch.setenv(ENGINE, chosen)
    matrix_engine.cache_clear()
    np.testing.assert_allclose(answers(), expected, atol=1e-6)


def test_an_engine_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setenv(ENGINE, "fortran")
    with pytest.raises(StateError, match=r"must be one of \['c', 'numpy', 'jax'\]. Got 'fortran'"):
        matrix_engine()


@needs_kernel
def test_the_kernel_refuses_arrays_it_could_not_read(crowd):
    chunk = first_items(crowd, 3)
    recipe, batch = Recipe(), pack_counted(chunk, chunk.weight, np.ones(3))
    known = drawn_known(np.random.default_rng(0), "rich", len(chunk.workers), 3)
    for change in (
        {"worker": batch.worker + 100},
        {"label": batch.label - 1},
        {"item": batch.item[::-1]},
        {"weight": batch.weight[1:]},
        {"gold": np.full(3, 3, np.int32)},
    ):
        with pytest.raises(ValueError, match=r"expected|sorted|true class"):
            kernel.fit("rich", batch._replace(**change), known, recipe)


@needs_kernel
def test_one_accuracy_per_worker_takes_no_memory_for_classes_squared():
    """Matrices of 20,000 classes would take 3 GB."""
    counts = np.ones((2, 2, 20_000))
    theta = kernel.solve_workers("plain", counts, counts.sum(axis=0), Recipe())
    assert theta.shape == (2, 1) and np.isfinite(theta).all()


def test_without_the_kernel_cost_and_remedy_are_said_once_per_process(monkeypatch):
    monkeypatch.setattr(kernel, "_kernel", None)
    with pytest.warns(UserWarning, match=r"4\.5 to 13 times as long.*ziglang.*--force") as said:
        assert matrix_engine() is matrix_engine() is reference
    assert len(said) == 1


def test_an_engine_that_cannot_be_loaded_is_named_with_what_to_do(monkeypatch):
    monkeypatch.setattr(kernel, "_kernel", None)
    monkeypatch.setenv(ENGINE, "c")
    with pytest.raises(StateError, match="--force-reinstall"):
        matrix_engine()
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    monkeypatch.setenv(ENGINE, "jax")
    with pytest.raises(StateError, match=r"pip install 'labelquorum\[jax\]', or unset"):
        matrix_engine()


def test_copies_of_what_is_imported_later_do_not_import_it():
    code = (
        "import copy, inspect, sys\n"
        "from labelquorum.learn.bila.lazy_jax import jax\n"
        "copy.copy(jax), inspect.unwrap(jax)\n"
        "assert 'jax' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_nothing_imports_jax_unless_it_is_used():
    code = (
        "import sys, labelquorum as lq\n"
        "lq.BiLA().fit_predict({'a': {'x': 1, 'y': 1}})\n"
        "assert not {'jax', 'optax', 'scipy'} & set(sys.modules), 'imported'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_needs_jax_says_what_to_install():
    code = (
        "import sys\n"
        "sys.modules['jax'] = None\n"  # as if it were not installed
        "import labelquorum as lq\n"
        "rows = {'a': {'x': 1, 'y': 1}}\n"
        "print(lq.BiLA().fit_predict(rows)['a'])\n"
        "for model in (lq.BiLA('www2021'), lq.estimator('laa')):\n"
        "    try:\n"
        "        model.fit_predict(rows)\n"
        "    except lq.LabelQuorumError as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    first, *errors = done.stdout.splitlines()
    assert first == "1" and len(errors) == 2
    assert all("pip install 'labelquorum[jax]'" in line for line in errors)


# ── padding, and workers solved to the end ───────────────────────────────────────────────


@pytest.fixture(scope="module")
def crowd():
    return class_conditional_crowd(60, 9, 3, 4, seed=2)


def first_items(crowd, n_items):
    rows = crowd.item < n_items
    columns = crowd.item[rows], crowd.worker[rows], crowd.label[rows]
    return make_chunk(*columns, n_items=n_items, n_workers=9, n_classes=3)


@pytest.mark.slow
def test_chunks_of_about_the_same_size_are_compiled_once_by_jax(crowd, caplog, monkeypatch):
    jax.clear_caches()
    monkeypatch.setenv(ENGINE, "jax")

    def compiled():
        return sum("Compiling jit(_fit)" in r.getMessage() for r in caplog.records)

    with caplog.at_level(logging.DEBUG, "jax"):
        for n_items in (60, 50, 40):
            chunk = first_items(crowd, n_items)
            METHOD.update(METHOD.init(chunk, 0), chunk)
    assert compiled() == 1


def test_a_batch_is_padded_to_a_power_of_two(crowd):
    chunk = first_items(crowd, 40)
    padded = gpu.on_device(pack_counted(chunk, chunk.weight, np.ones(40)))
    assert (len(padded.item), len(padded.gold)) == (256, 64)
    assert np.sum(padded.weight) == chunk.n_labels
    assert np.asarray(padded.counted_item).sum() == 40


@pytest.mark.parametrize("newton_classes", [8, 0])
@pytest.mark.parametrize("chosen", ["", "numpy"])
def test_a_worker_is_solved_where_the_gradient_is_zero(newton_classes, chosen, monkeypatch):
    monkeypatch.setenv(ENGINE, chosen)
    monkeypatch.setattr(reference, "WORKERS_PER_BLOCK", 4)  # ten workers are three blocks
    recipe = Recipe(newton_classes=newton_classes)
    rng = np.random.default_rng(0)
    counts = rng.exponential(20, size=(10, 3, 3)) * (rng.random((10, 1, 1)) < 0.8)
    counts[3] = 1e6 * np.eye(3)  # never wrong
    pooled = counts.sum(axis=0) / 100
    theta = matrix_engine().solve_workers("rich", counts, pooled, recipe)
    assert theta.dtype == np.float64 and theta.shape == (10, 4)
    crowd, last = crowd_matrix(pooled, recipe), np.moveaxis(counts, 0, -1)
    slope = gradient(theta.T, last, confusion(crowd, theta.T), recipe)
    # Next to a million labels, rounding is what is left.
    np.testing.assert_allclose(np.delete(slope, 3, axis=1), 0, atol=1e-8)
    np.testing.assert_allclose(slope[:, 3], 0, atol=1e-4)
    assert not theta[(counts == 0).all(axis=(1, 2))].any()
