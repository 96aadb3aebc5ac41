"""Draws of workers' matrices: against the Hessian, recursions written down plainly, and chance."""

import jax
import numpy as np
import pytest

from labelquorum.evaluation.simulate.crowds import (
    class_conditional_crowd,
    draw_labels,
    one_coin_crowd,
)
from labelquorum.ingest.chunks import make_chunk
from labelquorum.learn.analysis import posterior
from labelquorum.learn.analysis.posterior import (
    Counted,
    Surroundings,
    draw_matrices,
    fisher_rows,
    how_known,
    observed_rows,
    variance_factor,
)
from labelquorum.learn.bila import PRESETS, bila
from labelquorum.learn.bila.hierarchical import Recipe, confusion, curvature, matrices

PRECISION = {n: np.r_[1.0, np.full(n, 0.4**-2)] for n in (2, 3, 4)}


def counted(n_workers=6, n_classes=3, seed=0, n_chunks=np.inf, scale=20.0, biases=True):
    """A crowd with counts of all sizes, the last worker without a label."""
    rng = np.random.default_rng(seed)
    centre = np.full((n_classes, n_classes), 0.3 / (n_classes - 1))
    np.fill_diagonal(centre, 0.7)
    counts = rng.exponential(scale, (n_workers, n_classes, n_classes)) * (1 + 4 * np.eye(n_classes))
    counts[-1] = 0
    theta = rng.normal(0, 0.3, (n_workers, 1 + n_classes * biases))
    precision = PRECISION[n_classes][: theta.shape[1]]
    class_counts = np.full(n_classes, counts.sum() / n_classes / 5)
    prior = np.full(n_classes, 1 / n_classes)
    return Counted(counts, theta, centre, precision, prior, class_counts, n_chunks)


def drawn(crowd, workers=None, n_draws=400, seed=0):
    workers = np.arange(len(crowd.counts)) if workers is None else np.asarray(workers)
    blocks = list(draw_matrices(crowd, workers, n_draws, np.random.default_rng(seed)))
    return np.concatenate(blocks, axis=1)


def certain(n_classes, times=4):
    """Items whose truth everybody knows."""
    truth = np.repeat(np.arange(n_classes), times)
    return Surroundings(truth, np.eye(n_classes)[truth], 0.0)


# ── what a label tells ───────────────────────────────────────────────────────────────────


def test_fisher_rows_add_up_to_the_hessian_of_the_recipe():
    crowd = counted()
    with jax.enable_x64(True):
        theta, counts = crowd.theta.T, np.moveaxis(crowd.counts, 0, -1)
        matrix = np.asarray(confusion(crowd.centre, theta))
        wanted = np.asarray(curvature(theta, counts, matrix, Recipe()))
    rows = fisher_rows(matrices(crowd.centre, crowd.theta), 4)
    hessian = np.einsum("kc,kcde->kde", crowd.counts.sum(axis=2), rows) + np.diag(crowd.precision)
    np.testing.assert_allclose(np.moveaxis(hessian, 0, -1), wanted, rtol=1e-6)


@pytest.mark.parametrize("n_params", [1, 4])
def test_where_the_truth_is_known_a_label_tells_all_it_can(n_params):
    matrix = matrices(counted().centre, counted().theta[:, :n_params])
    information, purity = observed_rows(matrix, np.ones((6, 3)), certain(3), n_params)
    np.testing.assert_allclose(information, fisher_rows(matrix, n_params), atol=1e-12)
    np.testing.assert_allclose(purity, 1)


def test_where_nobody_else_spoke_two_equal_classes_tell_of_biases_and_not_of_skill():
    matrix = np.array([[[0.8, 0.2], [0.2, 0.8]]])
    alone = Surroundings(np.repeat([0, 1], 4), np.full((8, 2), 0.5), 0.0)
    information, _ = observed_rows(matrix, np.ones((1, 2)), alone, 3)
    together = information.sum(axis=1)[0]
    assert abs(together[0, 0]) < 1e-12
    bias = np.array([0, 1, -1])
    # Half of all labels are 0; a step along b₀ − b₁ makes that 0.32 more. Two labels.
    assert bias @ together @ bias == pytest.approx(2 * 0.32**2 / 0.25)


def test_doubt_about_the_truth_takes_information_away():
    rng, crowd = np.random.default_rng(1), counted()
    truth = np.repeat(np.arange(3), 50)
    others = np.log(crowd.centre)[:, draw_labels(rng, crowd.centre[None], truth * 0, truth)].T
    others = np.exp(others) / np.exp(others).sum(axis=1, keepdims=True)
    matrix = matrices(crowd.centre, crowd.theta)
    information, purity = observed_rows(
        matrix, np.ones((6, 3)), Surroundings(truth, others, 0.0), 4
    )
    left = np.linalg.eigvalsh(fisher_rows(matrix, 4).sum(axis=1) - information.sum(axis=1))
    assert left.min() > -0.05
    assert left.max() > 0.1
    assert (purity < 0.95).all()


# ── a single pass ────────────────────────────────────────────────────────────────────────


def recursion(share, prior, n_labels):
    """The variance of θ along one direction, label after label; one label tells 1 if complete."""
    total, variance = prior, 1 / prior
    for _ in range(n_labels):
        total += 1
        variance = (1 - share / total) ** 2 * variance + share / total**2
    return variance * total


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("n_labels", [30, 500])
def test_the_variance_is_that_of_steps_taken_one_label_at_a_time(share, n_labels):
    prior = 10.0
    given = prior / (prior + n_labels)
    factor = variance_factor(np.array(share), np.array(given), np.array(float(n_labels)))
    assert factor == pytest.approx(recursion(share, prior, n_labels), rel=0.06)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_labels_of_one_chunk_are_weighed_together(share):
    # Louis: the inverse of the information that was observed
    factor = variance_factor(np.array(share), np.array(0.1), np.array(1.0))
    assert factor == pytest.approx(1 / (0.1 + 0.9 * share))


def test_the_variance_is_never_below_laplaces_nor_above_the_priors():
    share, given = np.meshgrid(np.linspace(0.001, 1, 40), np.linspace(0.001, 1, 40))
    for n_chunks in (1.0, 3.0, 1e3, 1e9):
        factor = variance_factor(share, given, np.full_like(share, n_chunks))
        assert (factor >= 1 - 1e-9).all()
        assert (factor <= 1 / given + 1e-9).all()


# ── how far matrices stray ───────────────────────────────────────────────────────────────


def state_of(crowd, **settings):
    method = bila(**{**PRESETS["recipe"], **settings})
    n_classes = len(crowd.class_prior)
    shape = {"n_workers": len(crowd.confusion), "n_classes": n_classes}
    chunk = make_chunk(crowd.item, crowd.worker, crowd.label, **shape)
    return method, method.update(method.init(chunk, 0), chunk)[0]


def spread_of(crowd, **settings):
    """What the draws say of a model that learned from a crowd."""
    method, state = state_of(crowd, **settings)
    with pytest.MonkeyPatch.context() as patch:
        reply = []
        patch.setattr(posterior, "how_known", lambda *parts: reply.append(parts[-1]) or 1 / 0)
        with pytest.raises(ZeroDivisionError):
            next(method.draws(state, np.arange(3), 10, np.random.default_rng(0), 1))
    return reply[0].spread


@pytest.mark.slow
@pytest.mark.parametrize(
    ("crowd", "low", "high"),
    [
        (one_coin_crowd(4000, 60, 4, 5, seed=1), 0.0, 0.004),
        (class_conditional_crowd(4000, 60, 4, 5, seed=1), 0.02, 0.06),
        (class_conditional_crowd(4000, 60, 4, 5, concentration=100, seed=1), 0.004, 0.02),
    ],
    ids=["one-coin", "τ = 20", "τ = 100"],
)
def test_it_is_told_without_truth_how_far_matrices_stray(crowd, low, high):
    assert low <= spread_of(crowd) <= high


@pytest.mark.slow
def test_right_and_wrong_alone_tell_it_too():
    crowd = class_conditional_crowd(4000, 60, 2, 10, seed=1)
    assert spread_of(crowd) == 0
    assert 0.02 <= spread_of(crowd, generative="one_coin") <= 0.08
    assert spread_of(one_coin_crowd(4000, 60, 3, 10, seed=1), generative="one_coin") <= 0.004


def test_what_was_not_counted_is_not_better_known_than_before():
    few, many = counted(biases=False), counted(biases=False, scale=2e5)
    spread = [drawn(crowd)[:, 0].std(axis=0) for crowd in (few, many)]
    right = np.eye(3, dtype=bool)
    assert (spread[1][right] < spread[0][right] / 2).all()
    # 1/(τ + 1) is about 0.03 here: of wrong labels it stays unknown which they are
    assert (spread[1][~right] > 0.01).all()


def test_with_two_classes_every_matrix_can_be_expressed():
    around = posterior.surroundings(counted(n_classes=2), np.random.default_rng(0))
    assert around.spread == 0


# ── draws ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("n_classes", [2, 3, 4])
def test_draws_are_matrices(n_classes, biases):
    values = drawn(counted(n_classes=n_classes, biases=biases))
    assert values.shape == (400, 6, n_classes, n_classes)
    assert values.dtype == np.float32
    assert (values >= 0).all()
    np.testing.assert_allclose(values.sum(axis=3), 1, atol=1e-5)


def test_the_draws_of_a_worker_do_not_depend_on_who_is_asked_about_with_him(monkeypatch):
    crowd = counted()
    everybody = drawn(crowd)
    np.testing.assert_allclose(drawn(crowd, [4, 1]), everybody[:, [4, 1]], atol=1e-6)
    monkeypatch.setattr(posterior, "MAX_ARRAY_SIZE", 1)  # one worker at a time
    np.testing.assert_allclose(drawn(crowd), everybody, atol=1e-6)


def test_who_gave_no_label_is_known_as_well_as_the_prior_knows_him():
    crowd = counted(n_classes=2)
    known = how_known(crowd, np.array([5]), certain(2))
    covariance = known.root[0] @ known.root[0].T
    np.testing.assert_allclose(covariance, np.diag(1 / crowd.precision), atol=1e-9)


def test_with_the_truth_known_the_covariance_is_the_inverse_hessian():
    crowd = counted(n_classes=2)
    known = how_known(crowd, np.arange(6), certain(2))
    rows = fisher_rows(matrices(crowd.centre, crowd.theta), 3)
    hessian = np.einsum("kc,kcde->kde", crowd.counts.sum(axis=2), rows) + np.diag(crowd.precision)
    covariance = known.root @ known.root.swapaxes(1, 2)
    np.testing.assert_allclose(covariance, np.linalg.inv(hessian), rtol=1e-6, atol=1e-9)


def test_more_labels_make_narrower_draws():
    few, many = (drawn(counted(scale=scale))[:, :5].std(axis=0).mean() for scale in (5.0, 200.0))
    assert many < few / 2


def test_a_crowd_of_nobody_and_one_of_one_class_have_draws():
    nobody = counted()._replace(counts=np.zeros((0, 3, 3)), theta=np.zeros((0, 4)))
    assert list(draw_matrices(nobody, np.zeros(0, int), 9, np.random.default_rng(0))) == []
    ones = Counted(
        np.ones((2, 1, 1)),
        np.zeros((2, 2)),
        np.ones((1, 1)),
        np.ones(2),
        np.ones(1),
        np.ones(1),
        1,
    )
    assert (drawn(ones, n_draws=9) == 1).all()


def test_shared_normals_are_evenly_spread_and_not_correlated():
    normal = posterior._even_normals(np.random.default_rng(0), 400, 5)
    np.testing.assert_allclose(np.cov(normal.T, bias=True), np.eye(5), atol=0.01)
    np.testing.assert_allclose(
        np.quantile(normal, [0.025, 0.975], axis=0)[1], np.full(5, 1.96), atol=0.15
    )


@pytest.mark.parametrize("shape", [0.05, 0.3, 1.0, 4.0, 60.0])
def test_gamma_draws_have_the_quantiles_of_gamma(shape):
    rng, size = np.random.default_rng(0), 100_000
    normal = rng.standard_normal(size).astype(np.float32)
    log_uniform = np.log(rng.random(size)).astype(np.float32)
    ours = posterior._gamma(np.full(size, shape, np.float32), normal, log_uniform)
    theirs = rng.standard_gamma(shape, size)
    levels = [0.05, 0.2, 0.5, 0.8, 0.95]
    close = {"rtol": 0.05, "atol": 0.003}
    np.testing.assert_allclose(np.quantile(ours, levels), np.quantile(theirs, levels), **close)
