"""The hierarchical p: each formula against its definition, and derivatives against autodiff."""

import jax
import numpy as np
import pytest

from labelquorum.learn.bila.hierarchical import (
    Recipe,
    class_prior,
    confusion,
    crowd_matrix,
    curvature,
    diagonal_curvature,
    gradient,
    label_log_probs,
    loss,
    matrices,
    pool,
    right,
    step,
)

RECIPE = Recipe()
take_step = jax.jit(step, static_argnames="recipe")
by_classes = pytest.mark.parametrize("n_classes", [1, 2, 4, 20])


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def crowd_of(n_classes, n_workers=7, seed=0):
    """A crowd's matrix (C, C), parameters (C + 1, K) and counts (C, C, K)."""
    rng = np.random.default_rng(seed)
    crowd = rng.random((n_classes, n_classes)) + 3 * np.eye(n_classes)
    crowd /= crowd.sum(axis=1, keepdims=True)
    theta = rng.normal(size=(n_classes + 1, n_workers))
    counts = rng.exponential(3, size=(n_classes, n_classes, n_workers))
    return crowd, theta, counts


def softmax_matrix(crowd, theta):
    """m of one worker, as RECIPE.md writes it: softmax_z(log G[c, z] + a 1[c = z] + b[z])."""
    logits = np.log(crowd) + theta[0] * np.eye(len(crowd)) + theta[1:]
    return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)


@by_classes
def test_every_form_of_a_workers_matrix_is_the_same_softmax(
    n_classes,
):
    crowd, theta, counts = crowd_of(n_classes)
    matrix = jax.jit(confusion)(crowd, theta)
    recipe = Recipe(own_weight=0.0)
    diagonal = right(theta, counts, crowd, recipe)
    worker, label = (each.ravel() for each in np.indices((theta.shape[1], n_classes)))
    arrays = [np.asarray(each) for each in (theta, counts, crowd)]
    logs, numpy_logs = (
        label_log_probs(*each, worker, label, recipe).reshape(-1, n_classes, n_classes)
        for each in ((theta, counts, crowd), arrays)
    )
    assert isinstance(numpy_logs, np.ndarray)
    workers_first = matrices(np.asarray(crowd), np.asarray(theta).T)
    for k in range(theta.shape[1]):
        expected = softmax_matrix(np.asarray(crowd), np.asarray(theta)[:, k])
        np.testing.assert_allclose(matrix[:, :, k], expected, rtol=1e-10)
        np.testing.assert_allclose(workers_first[k], expected, rtol=1e-10)
        np.testing.assert_allclose(diagonal[:, k], np.diag(expected), rtol=1e-10)
        np.testing.assert_allclose(logs[k].T, np.log(expected), atol=1e-10)
        np.testing.assert_allclose(numpy_logs[k].T, np.log(expected), atol=1e-10)


@jax.jit
def derivatives(crowd, theta, counts):
    """Gradient, Hessian and the Hessian's diagonal by hand; gradient and Hessian by machine."""
    matrix = confusion(crowd, theta)

    def loss_of(one, its_counts):
        return loss(one[:, None], its_counts[:, :, None], crowd, RECIPE)[0]

    return {
        "gradient": gradient(theta, counts, matrix, RECIPE),
        "curvature": curvature(theta, counts, matrix, RECIPE),
        "diagonal": diagonal_curvature(theta, counts, matrix, RECIPE),
        "autodiff gradient": jax.grad(lambda t: loss(t, counts, crowd, RECIPE).sum())(theta),
        "autodiff hessian": jax.vmap(jax.hessian(loss_of), -1, -1)(theta, counts),
    }


@pytest.mark.slow
@by_classes
def test_gradient_and_curvature_are_those_of_the_loss(n_classes):
    found = derivatives(*crowd_of(n_classes))
    close = {"rtol": 1e-8, "atol": 1e-8}
    np.testing.assert_allclose(found["gradient"], -found["autodiff gradient"], **close)
    np.testing.assert_allclose(found["curvature"], found["autodiff hessian"], **close)
    np.testing.assert_allclose(found["diagonal"], np.einsum("iik->ik", found["curvature"]), **close)
    # Positive definite, so that there is one maximum.
    assert np.linalg.eigvalsh(np.moveaxis(found["autodiff hessian"], -1, 0)).min() > 0


@pytest.mark.slow
def test_the_settings_of_the_prior_are_in_loss_gradient_and_curvature():
    recipe = Recipe(tilt_scale=0.5, bias_scale=2.0)
    crowd, theta, _ = crowd_of(3)
    nothing = np.zeros((3, 3, 7))
    matrix = confusion(crowd, theta)
    np.testing.assert_allclose(
        loss(theta, nothing, crowd, recipe), 2 * theta[0] ** 2 + (theta[1:] ** 2).sum(axis=0) / 8
    )
    np.testing.assert_allclose(gradient(theta, nothing, matrix, recipe)[0], -4 * theta[0])
    np.testing.assert_allclose(curvature(theta, nothing, matrix, recipe)[1, 1], 0.25)


@pytest.mark.parametrize("newton_classes", [8, 0])
def test_steps_end_where_the_gradient_is_zero(newton_classes):
    recipe = Recipe(newton_classes=newton_classes)
    crowd, theta, counts = crowd_of(4)
    for _ in range(200):
        theta = take_step(theta, counts, crowd, recipe)
    slope = gradient(theta, counts, confusion(crowd, theta), recipe)
    np.testing.assert_allclose(slope, 0, atol=1e-9)
    # The prior wants biases that sum to zero, and the labels do not mind.
    np.testing.assert_allclose(theta[1:].sum(axis=0), 0, atol=1e-12)


@pytest.mark.slow
def test_a_step_is_newtons_within_its_limit():
    crowd, theta, counts = crowd_of(3)
    theta[1:] -= theta[1:].mean(axis=0)
    matrix = confusion(crowd, theta)
    hessian = np.moveaxis(curvature(theta, counts, matrix, RECIPE), -1, 0)
    slope = gradient(theta, counts, matrix, RECIPE).T[:, :, None]
    newton = np.linalg.solve(hessian, slope)[:, :, 0].T
    free = take_step(theta, counts, crowd, RECIPE._replace(step_limit=1e9)) - theta
    np.testing.assert_allclose(free, newton, rtol=1e-3, atol=1e-4)  # but for the damping
    short = take_step(theta, counts, crowd, RECIPE._replace(step_limit=0.01)) - theta
    assert np.abs(short[0]).max() <= 0.01 + 1e-12


@pytest.mark.parametrize("n_labels", [1e3, 1e6, 1e9])
@pytest.mark.parametrize("worker", ["perfect", "adversary", "bot"])
def test_in_float32_any_number_of_labels_gives_a_sound_matrix(n_labels, worker):
    crowd = np.asarray(np.full((3, 3), 0.1) + 0.7 * np.eye(3), np.float32)
    counts = np.zeros((3, 3, 1), np.float32)
    if worker == "bot":
        counts[:, 1] = n_labels
    else:
        counts[..., 0] = n_labels * (np.eye(3) if worker == "perfect" else np.roll(np.eye(3), 1, 1))
    theta = np.zeros((4, 1), np.float32)
    for _ in range(60):
        theta = take_step(theta, counts, crowd, RECIPE)
    assert theta.dtype == np.float32 and np.abs(theta).max() < 40
    matrix = np.asarray(confusion(crowd, theta))[:, :, 0]
    np.testing.assert_allclose(matrix.sum(axis=1), 1, rtol=1e-4)
    if worker == "perfect":
        assert matrix.diagonal().min() > 0.99
    elif worker == "bot":
        assert matrix[:, 1].min() > 0.9
    else:
        assert matrix.diagonal().max() < 0.01


# ── what all share ───────────────────────────────────────────────────────────────────────


def test_a_crowd_nobody_knows_is_right_seven_times_in_ten():
    nobody = crowd_matrix(np.zeros((4, 4)), RECIPE)
    np.testing.assert_allclose(nobody, np.full((4, 4), 0.1) + 0.6 * np.eye(4), rtol=1e-6)
    assert crowd_matrix(np.zeros((1, 1)), RECIPE) == 1


def test_the_crowds_matrix_leans_on_its_mean_accuracy():
    pooled = np.array([[90.0, 0.0], [10.0, 0.0]])
    accuracy = (90 + 7) / (100 + 10)
    expected = (pooled + 50 * np.array([[accuracy, 1 - accuracy], [1 - accuracy, accuracy]])) / [
        [140.0],
        [60.0],
    ]
    np.testing.assert_allclose(crowd_matrix(pooled, RECIPE), expected, rtol=1e-6)


def test_a_worker_counts_for_at_most_so_many_labels_in_the_crowds_matrix():
    counts = np.zeros((2, 2, 2))
    counts[0, 0] = [5.0, 1e9]  # the one has five labels, the other any number
    np.testing.assert_allclose(pool(counts, RECIPE), [[2.5 + 5.0, 0], [0, 0]], rtol=1e-6)


def test_the_class_prior_blends_what_was_said_with_what_was_inferred():
    said, inferred = np.array([8.0, 0.0]), np.array([3.0, 5.0])
    u, v = np.array([9, 1]) / 10, np.array([4, 6]) / 10
    w = np.sqrt(u * v) / np.sqrt(u * v).sum()
    np.testing.assert_allclose(class_prior(said, inferred, RECIPE), 0.8 * w + 0.1)
    running = class_prior(said, inferred, Recipe(class_prior="running"))
    np.testing.assert_allclose(running, 0.8 * u + 0.1)
    uniform = class_prior(said, inferred, Recipe(class_prior="uniform"))
    np.testing.assert_allclose(uniform, [0.5, 0.5])
