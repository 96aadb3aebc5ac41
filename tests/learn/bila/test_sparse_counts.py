"""Sparse counts: what matrices give, without a matrix per worker."""

import tracemalloc

import numpy as np
import pytest

import labelquorum as lq
from labelquorum.errors import StateError
from labelquorum.evaluation.checks import CHECKS
from labelquorum.evaluation.simulate.crowds import class_conditional_crowd
from labelquorum.ingest.chunks import make_chunk
from labelquorum.learn.aggregator import Part
from labelquorum.learn.bila import PRESETS, bila, sparse_counts
from labelquorum.learn.bila.sparse_counts import CELL, counts_of, dense_counts
from labelquorum.learn.model_file import state_arrays, state_from_arrays

DENSE = 10**6


def bound(monkeypatch, n_classes, min_prob=sparse_counts.MIN_PROB):
    """Matrices up to this many classes, and cells of at least this probability."""
    monkeypatch.setattr(sparse_counts, "MAX_DENSE_CLASSES", n_classes)
    monkeypatch.setattr(sparse_counts, "MIN_PROB", min_prob)


@pytest.fixture
def sparse(monkeypatch):
    bound(monkeypatch, 2)


@pytest.fixture
def every_cell(monkeypatch):
    """Sparse counts that leave nothing to the margins."""
    bound(monkeypatch, 2, 0.0)


def table_of(crowd, start, stop):
    rows = (crowd.item >= start) & (crowd.item < stop)
    columns = (crowd.item[rows], crowd.worker[rows], crowd.label[rows])
    return lq.LabelTable(*(column.tolist() for column in columns))


def matrices_of(model):
    """N of all workers."""
    return dense_counts(counts_of(model.model_.learned.state.rows.to_arrays(), "rich"))


def is_sparse(model):
    return "rich_cells" in model.model_.learned.state.rows.names


def assert_alike(one, other, atol=2e-6):
    """The same model to this tolerance, be its counts sparse or not.

    q is rounded to float32 before it is counted, and C and NumPy may round it to neighbours.
    """
    ours, theirs = one.model_.learned.state, other.model_.learned.state
    np.testing.assert_allclose(matrices_of(one), matrices_of(other), rtol=atol, atol=atol)
    for field in ("pooled", "class_counts", "unexplained"):
        for name, array in getattr(ours, field).items():
            np.testing.assert_allclose(array, getattr(theirs, field)[name], rtol=atol, atol=atol)
    theta = [state.rows.to_arrays()["rich_theta"] for state in (ours, theirs)]
    np.testing.assert_allclose(*theta, rtol=atol, atol=atol)


# ── what matrices give ───────────────────────────────────────────────────────────────────


def labels_of_every_kind(model):
    """Chunks, late labels, a correction, a true label, weights, a withdrawn label."""
    crowd = class_conditional_crowd(90, 12, 6, 4, skill=(0.3, 0.8), seed=3)
    for start in range(0, 90, 30):
        model.partial_fit(table_of(crowd, start, start + 30))
    model.partial_fit(lq.LabelTable([80, 81, 95], [11, 3, 4], [2, 5, 1], weights=[1.0, 0.5, 2.0]))
    model.partial_fit({82: {0: 3, 1: 3}}, true_labels={82: 3})
    task = int(crowd.item[-1])
    model.retract(task, int(crowd.worker[-1]))
    return model


@pytest.mark.parametrize("settings", [{}, {"preset": "recipe"}, {"repeats": "all"}])
def test_with_every_cell_kept_sparse_counts_give_what_matrices_give(monkeypatch, settings):
    models = []
    for most in (DENSE, 2):
        bound(monkeypatch, most, 0.0)
        models.append(labels_of_every_kind(lq.BiLA(newton_classes=0, **settings)))
    assert [is_sparse(model) for model in models] == [False, True]
    assert_alike(*models)
    scores = [model.report().items["consensus_quality_score"] for model in models]
    np.testing.assert_allclose(*scores, atol=1e-6)


def test_repeated_votes_are_counted_as_by_matrices(monkeypatch):
    rng = np.random.default_rng(0)
    task, worker, label = (rng.integers(n, size=600).tolist() for n in (40, 9, 4))
    for repeats in ("all", "majority"):
        models = []
        for most in (DENSE, 2):
            bound(monkeypatch, most, 0.0)
            model = lq.BiLA(newton_classes=0, repeats=repeats)
            models.append(model.fit(lq.LabelTable(task, worker, label)))
        assert_alike(*models)


@pytest.mark.parametrize(
    ("labels_per_item", "n_chunks", "tolerance"), [(4, 1, 0.001), (4, 6, 0.001), (2, 6, 0.005)]
)
def test_small_probabilities_may_go_into_the_margins(
    monkeypatch, labels_per_item, n_chunks, tolerance
):
    crowd = class_conditional_crowd(1200, 60, 150, labels_per_item, seed=labels_per_item)
    said, probs = [], []
    for most in (DENSE, sparse_counts.MAX_DENSE_CLASSES):
        bound(monkeypatch, most)
        model, parts, labels = lq.BiLA(open_items=0), [], []
        for start in range(0, 1200, 1200 // n_chunks):
            model.partial_fit(table_of(crowd, start, start + 1200 // n_chunks))
            parts.append(model.probas_.reindex(columns=range(150), fill_value=0.0).to_numpy())
            labels += model.labels_.tolist()
        probs.append(np.concatenate(parts))
        said.append(labels)
    difference = np.abs(probs[0] - probs[1]).max(axis=1)
    assert difference.max() < tolerance and difference.mean() < tolerance / 20
    assert said[0] == said[1]
    n_bytes = sum(map(len, model.model_.learned.state.rows.to_arrays()["rich_cells"]))
    assert n_bytes < 8 * 60 * 150**2 / 100


def test_margins_are_exact_whatever_is_left_out(monkeypatch):
    crowd = class_conditional_crowd(200, 10, 8, 3, seed=5)
    bound(monkeypatch, 2, 0.3)
    state = lq.BiLA().fit(table_of(crowd, 0, 200)).model_.learned.state
    counts = counts_of(state.rows.to_arrays(), "rich")
    n_labels = np.bincount(crowd.worker * 8 + crowd.label, minlength=80).reshape(10, 8)
    np.testing.assert_allclose(counts.margins[:, 1], n_labels, atol=1e-4)  # q is rounded
    np.testing.assert_allclose(counts.margins[:, 0].sum(axis=1), n_labels.sum(axis=1), atol=1e-4)
    assert 0 < len(counts.values) < 10 * 8 * 7


@pytest.mark.parametrize("law", [law for law in CHECKS if law != "memory"])
def test_sparse_counts_obey_every_law(sparse, law):
    """But "memory": cells are added until there are as many as in matrices."""
    CHECKS[law](bila())


def test_many_workers_and_classes_take_no_matrix_each(monkeypatch):
    rng, n_workers, n_classes = np.random.default_rng(0), 1500, 300
    item, first = np.repeat(np.arange(2000), 3), rng.integers(n_workers, size=2000)
    worker = (first[item] + np.tile([0, 1, 2], 2000)) % n_workers
    truth = rng.integers(n_classes, size=2000)
    label = np.where(rng.random(6000) < 0.7, truth[item], rng.integers(n_classes, size=6000))
    tracemalloc.start()
    model = lq.BiLA().fit(lq.LabelTable(item.tolist(), worker.tolist(), label.tolist()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * n_workers * n_classes**2 / 4
    assert np.mean(model.labels_.sort_index().to_numpy() != truth) < 0.2
    assert model.skills_.between(0, 1).all()
    monkeypatch.setattr(sparse_counts, "MAX_MATRIX_BYTES", 1 << 26)
    with pytest.raises(StateError, match=r"× 300 classes.*GiB.*model\.inspection\.confusion"):
        _ = model.confusion_
    assert model.inspection.confusion(np.arange(10)).sum(axis=2) == pytest.approx(1, abs=1e-5)


# ── saved, merged, forgotten, with more classes ──────────────────────────────────────────


def test_a_saved_model_goes_on_as_if_it_had_not_been_saved(sparse, tmp_path):
    crowd = class_conditional_crowd(120, 12, 6, 3, seed=2)
    model = lq.BiLA().partial_fit(table_of(crowd, 0, 60))
    model.forget(3)
    model.save(tmp_path / "model")
    loaded = lq.BiLA.load(tmp_path / "model")
    for each in (model, loaded):
        each.partial_fit(table_of(crowd, 60, 120))
    for name, array in state_arrays(model.model_.learned.state).items():
        assert array.tobytes() == state_arrays(loaded.model_.learned.state)[name].tobytes(), name
    assert is_sparse(loaded)


def test_cells_of_classes_that_are_not_there_are_refused(sparse):
    chunk = make_chunk([0, 0, 1], [0, 1, 1], [0, 1, 2], n_classes=4)
    method = bila()
    state, _ = method.update(method.init(chunk, 0), chunk)
    arrays = state_arrays(state)
    cells = arrays["rows/rich_cells.bytes"].view(CELL).copy()
    cells["truth"][0] = 9
    with pytest.raises(StateError, match=r"class 9.*4 classes"):
        state_from_arrays(method.state_type, {**arrays, "rows/rich_cells.bytes": cells.view("u1")})


@pytest.mark.parametrize("most", [2, 4])
def test_merging_sparse_counts_is_associative_to_nine_digits(monkeypatch, most):
    """Also where parts have matrices, and all of them together too many classes."""
    bound(monkeypatch, most)
    crowd, method = class_conditional_crowd(60, 9, 4, 4, seed=2), bila(**PRESETS["recipe"])
    parts = []
    for start in (0, 20, 40):
        rows = (crowd.item >= start) & (crowd.item < start + 20)
        columns = crowd.item[rows] - start, crowd.worker[rows], crowd.label[rows]
        chunk = make_chunk(*columns, n_workers=9, n_classes=4)
        state, _ = method.update(method.init(chunk, 0), chunk)
        parts.append(Part(state, np.arange(9), np.array([4, 1, 0, 2])))

    def merged(*some):
        return Part(method.counts.merge(some, None, 9, 5), np.arange(9), np.arange(5))

    a, b, c = parts
    one, other, flat = merged(a, merged(b, c)), merged(merged(a, b), c), merged(c, a, b)
    for name, array in state_arrays(one.state).items():
        for twin in (other, flat):
            if name.endswith(".bytes"):
                cells, same = (x.view(CELL) for x in (array, state_arrays(twin.state)[name]))
                np.testing.assert_allclose(cells["count"], same["count"], rtol=1e-9, atol=1e-9)
            else:
                same = state_arrays(twin.state)[name]
                np.testing.assert_allclose(same, array, rtol=1e-9, atol=1e-9)
    assert one.state.class_counts["rich"].sum() == pytest.approx(60, abs=1e-4)


def test_what_was_learned_before_sparse_shards_part_is_counted_once(sparse):
    crowd = class_conditional_crowd(120, 12, 6, 3, seed=2)
    base = lq.BiLA(open_items=0).partial_fit(table_of(crowd, 0, 40))
    shards = [lq.BiLA(open_items=0).partial_fit(table_of(crowd, 0, 40)) for _ in range(2)]
    for number, shard in enumerate(shards):
        shard.partial_fit(table_of(crowd, 40 + 40 * number, 80 + 40 * number))
    merged = lq.merge(*shards, base=base)
    margins = counts_of(merged.model_.learned.state.rows.to_arrays(), "rich").margins
    assert margins[:, 1].sum() == pytest.approx(360, abs=1e-3)


def test_sparse_counts_of_a_forgotten_worker_are_gone(sparse):
    crowd = class_conditional_crowd(60, 9, 5, 4, seed=2)
    model = lq.BiLA().fit(table_of(crowd, 0, 60))
    before = matrices_of(model)
    model.forget(model.workers_[2])
    after = matrices_of(model)
    assert before[2].any() and not after[2].any()
    np.testing.assert_array_equal(np.delete(after, 2, axis=0), np.delete(before, 2, axis=0))


def test_history_is_counted_in_cells(monkeypatch):
    known, counts = [], np.array([[[20.0, 3, 0], [0, 9, 1], [0, 0, 5]]])
    for most in (DENSE, 2):
        bound(monkeypatch, most)
        method = bila(newton_classes=0)
        nothing = make_chunk([], [], [], n_workers=1, n_classes=3)
        state = method.counts.add(method.init(nothing, 0), np.arange(1), counts)
        known.append(state)
    np.testing.assert_allclose(known[0].pooled["rich"], known[1].pooled["rich"], atol=1e-12)
    matrices = [method.confusion(state, np.arange(1)) for state in known]
    np.testing.assert_allclose(*matrices, atol=1e-6)


def test_matrices_become_sparse_when_classes_are_too_many(monkeypatch):
    crowd = class_conditional_crowd(120, 12, 6, 3, seed=2)
    few = {"t": {0: 0, 1: 1, 2: 0}, "u": {1: 1, 3: 2, 4: 2}}
    models = []
    for most in (4, 2):
        bound(monkeypatch, most, 0.0)
        model = lq.BiLA(newton_classes=0).partial_fit(few)
        assert is_sparse(model) == (most == 2)
        models.append(model.partial_fit(table_of(crowd, 0, 120)))
        assert is_sparse(model)
    assert_alike(*models, atol=1e-7)
