"""Algorithm 1 lines 22–27 by hand, and Theorem 1 held against online convex problems."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.optimize import linprog, lsq_linear

from labelquorum.errors import StateError
from labelquorum.ingest.chunks import make_chunk
from labelquorum.learn.bila import bila
from labelquorum.learn.bila.optimizer import (
    OPTIMIZERS,
    bounded_rmsprop,
    clipped_rmsprop,
    constant_bounds,
    dynamic_bounds,
    tf1_rmsprop,
)
from labelquorum.learn.bila.presets import settings_of

# --- lines 22–27 ---------------------------------------------------------------------------------


def lines_22_to_27(grads, learning_rate, decay, low, high):
    """θ after each step, (T, d), from θ = 0, and on which bounds each step size stood."""
    theta, v = np.zeros(grads.shape[1]), np.zeros(grads.shape[1])
    path, touched = [], set()
    for t, g in enumerate(grads, start=1):
        v = decay * v + (1 - decay) * (g * g)
        mu_t = learning_rate * np.sqrt(1 - decay**t)
        with np.errstate(divide="ignore"):
            ratio = mu_t / np.sqrt(v)
        touched |= set(np.select([ratio < low(t), ratio > high(t)], ["low", "high"], "between"))
        eta = np.clip(ratio, low(t), high(t)) / np.sqrt(t)
        theta = theta - eta * g
        path.append(theta)
    return np.array(path), touched


BOUNDS = {
    "dynamic": lambda decay: (
        lambda t: 0.1 - 0.1 / ((1 - decay) * t + 1),
        lambda t: 0.1 + 0.1 / ((1 - decay) * t),
    ),
    "constant": lambda decay: (lambda t: 0.05, lambda t: 0.3),
}


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9, 0.99, 0.999])
@pytest.mark.parametrize("kind", BOUNDS)
def test_bounded_rmsprop_is_lines_22_to_27(kind, decay):
    rng = np.random.default_rng(4)
    # From gradients so large that η_l holds to some so small, or zero, that η_u does.
    grads = rng.normal(size=(40, 6)) * np.array([0, 1e-3, 0.02, 0.1, 1, 30])
    low, high = BOUNDS[kind](decay)
    expected, touched = lines_22_to_27(grads, 0.01, decay, low, high)
    assert touched == {"low", "between", "high"}
    scale = np.abs(expected).max(axis=0)
    bounds = None if kind == "dynamic" else constant_bounds(0.05, 0.3)
    transform = bounded_rmsprop(0.01, decay, bounds)
    theta = {"a": jnp.zeros(2), "b": jnp.zeros((2, 2))}
    state = transform.init(theta)
    step = jax.jit(transform.update)
    for t, g in enumerate(grads):
        g = g.astype(np.float32)
        updates, state = step({"a": g[:2], "b": g[2:].reshape(2, 2)}, state, theta)
        theta = optax.apply_updates(theta, updates)
        ours = np.concatenate([theta["a"], theta["b"].ravel()])
        assert (np.abs(ours - expected[t]) <= 1e-5 * scale).all()
        assert state.step == t + 1


def test_a_parameter_without_gradient_stays_where_it_is():
    transform = bounded_rmsprop()
    theta = jnp.array([3.0, 3.0])
    state = transform.init(theta)
    for _ in range(3):
        updates, state = transform.update(jnp.array([0.0, 1.0]), state)
        theta = optax.apply_updates(theta, updates)
    assert theta[0] == 3.0 and theta[1] < 3.0
    assert state.second_moment[0] == 0.0


def test_the_bounds_close_in_on_each_other():
    low, high = dynamic_bounds(0.9)
    t = np.arange(1, 10_000)
    assert (np.diff(low(t)) > 0).all() and (np.diff(high(t)) < 0).all()
    assert (low(t) < 0.1).all() and (high(t) > 0.1).all()
    assert high(t[-1]) - low(t[-1]) < 1e-3
    assert low(1) == pytest.approx(0.1 - 0.1 / 1.1) and high(1) == pytest.approx(1.1)


def test_clipped_rmsprop_cuts_gradients_at_one():
    transform = clipped_rmsprop(learning_rate=0.01, decay=0.9)
    state = transform.init(jnp.zeros(3))
    updates, _ = transform.update(jnp.array([1.0, 100.0, -0.5]), state)
    # μ g / √((1 − γ) g²) = μ / √(1 − γ), whatever g is
    expected = 0.01 / np.sqrt(0.1) * np.array([-1, -1, 1])
    np.testing.assert_allclose(updates, expected, rtol=1e-5)
    small, _ = transform.update(jnp.array([1.0, 1.0, -0.5]), state)
    np.testing.assert_array_equal(updates, small)


def test_tf1_rmsprop_has_the_constants_of_tensorflow_1():
    """v from 1, ε = 1e-10 under the root, gradients cut at one: ten steps by hand, in float64."""
    rng = np.random.default_rng(6)
    grads = rng.normal(size=(10, 4)) * np.array([1e-7, 1e-4, 0.5, 30])
    transform, theta, v = tf1_rmsprop(0.01, 0.9), np.zeros(4), np.ones(4)
    ours = jnp.zeros(4)
    state = transform.init(ours)
    for g in grads:
        updates, state = transform.update(jnp.asarray(g, jnp.float32), state)
        ours = optax.apply_updates(ours, updates)
        g = np.clip(g, -1, 1)
        v = 0.9 * v + 0.1 * g * g
        theta = theta - 0.01 * g / np.sqrt(v + 1e-10)
        np.testing.assert_allclose(ours, theta, rtol=1e-4)
    # Once v has faded, ε decides the step of a small gradient, where 1e-7 would shorten it.
    for _ in range(400):
        updates, state = transform.update(jnp.full(4, 1e-5), state)
    np.testing.assert_allclose(updates, -0.01 * 1e-5 / np.sqrt(1e-10 + 1e-10), rtol=1e-3)


@pytest.mark.slow
def test_every_optimiser_can_be_selected_and_lowers_the_loss_by_a_path_of_its_own():
    rng = np.random.default_rng(0)
    truth = rng.integers(2, size=48)
    item, worker = (index.ravel() for index in np.indices((48, 5)))
    label = np.where(rng.random(240) < 0.8, truth[item], 1 - truth[item])
    chunk = make_chunk(item, worker, label)
    paths = set()
    for optimizer in OPTIMIZERS:
        # v starts at 1 in "tf1_rmsprop": its first steps are short
        rate = 0.2 if optimizer == "tf1_rmsprop" else 0.01
        method = bila(
            **settings_of(
                "network", optimizer=optimizer, learning_rate=rate, epochs=8, tolerance=0.0
            )
        )
        state, info = method.update(method.init(chunk, 0), chunk)
        assert info.losses[-1] < info.losses[0] - 0.01
        assert (method.aggregate(state, chunk).aggregated == truth).mean() > 0.8
        paths.add(info.losses.tobytes())
    assert len(paths) == len(OPTIMIZERS) == 4
    assert set(OPTIMIZERS) == {"bounded_rmsprop", "rmsprop", "tf1_rmsprop", "adam"}


def test_only_adam_moves_parameters_whose_gradient_is_zero():
    for name, build in OPTIMIZERS.items():
        transform, row_decay = build(0.01, 0.9).transform, build(0.01, 0.9).row_decay
        state = transform.init(jnp.zeros(1))
        _, state = transform.update(jnp.ones(1), state)
        updates, after = transform.update(jnp.zeros(1), state)
        if name == "adam":
            assert row_decay is None and updates[0] != 0
        else:
            assert row_decay == 0.9 and updates[0] == 0
            before, now = (
                [leaf for leaf in jax.tree.leaves(s) if leaf.shape == (1,)] for s in (state, after)
            )
            np.testing.assert_allclose(now, np.multiply(before, 0.9), rtol=1e-6)


@pytest.mark.parametrize("decay", [-0.1, 1.0, float("nan")])
def test_a_decay_outside_its_range_is_refused(decay):
    with pytest.raises(StateError, match=r"`decay` of bounded_rmsprop must lie in \[0, 1\)\. Got"):
        bounded_rmsprop(decay=decay)


@pytest.mark.parametrize("learning_rate", [0.0, -1.0, float("nan")])
def test_a_learning_rate_that_is_no_positive_number_is_refused(learning_rate):
    sentence = r"`learning_rate` of bounded_rmsprop must be a number > 0\. Got"
    with pytest.raises(StateError, match=sentence):
        bounded_rmsprop(learning_rate)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.2, 0.1), (-1.0, 1.0)])
def test_constant_bounds_out_of_order_are_refused(low, high):
    with pytest.raises(StateError, match=r"constant bounds must satisfy 0 < low ≤ high\. Got"):
        constant_bounds(low, high)


# --- Theorem 1 -----------------------------------------------------------------------------------


RADIUS, N_STEPS, DIMENSION = 1.0, 3000, 4
GRID = (1, 2, 3, 5, 10, 30, 100, 300, 1000, 3000)


class Squares:
    """f_t(θ) = ½ (x_t·θ − y_t)², with a best point partly outside the box."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.x = rng.normal(size=(N_STEPS, DIMENSION)).astype(np.float32)
        noise = 0.5 * rng.normal(size=N_STEPS)
        self.y = (self.x @ np.array([0.3, -0.7, 1.6, 0.0]) + noise).astype(np.float32)

    @staticmethod
    def grad(theta, x, y):
        return (x @ theta - y) * x

    def losses(self, theta):
        return 0.5 * ((self.x * theta).sum(axis=-1) - self.y) ** 2

    def best(self, n_steps):
        x, y = self.x[:n_steps].astype(np.float64), self.y[:n_steps].astype(np.float64)
        return lsq_linear(x, y, (-RADIUS, RADIUS), tol=1e-12).x


class Absolutes(Squares):
    """f_t(θ) = |x_t·θ − y_t|: no curvature, and a gradient that jumps."""

    @staticmethod
    def grad(theta, x, y):
        return jnp.sign(x @ theta - y) * x

    def losses(self, theta):
        return np.abs((self.x * theta).sum(axis=-1) - self.y)

    def best(self, n_steps):
        # min Σ s_t with −s_t ≤ x_t·θ − y_t ≤ s_t
        x, y, eye = self.x[:n_steps], self.y[:n_steps], np.eye(n_steps)
        found = linprog(
            np.concatenate([np.zeros(DIMENSION), np.ones(n_steps)]),
            A_ub=np.block([[x, -eye], [-x, -eye]]),
            b_ub=np.concatenate([y, -y]),
            bounds=[(-RADIUS, RADIUS)] * DIMENSION + [(0, None)] * n_steps,
        )
        assert found.success
        return found.x[:DIMENSION]


class Sawtooth(Squares):
    """f_t(θ) = x_t·θ, every third slope steep: where Adam ends in the wrong corner (Reddi 2018)."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        steep = np.arange(N_STEPS)[:, None] % 3 == rng.integers(3, size=DIMENSION)
        self.x = np.where(steep, 3.0, -1.0).astype(np.float32)
        self.y = np.zeros(N_STEPS, np.float32)

    @staticmethod
    def grad(theta, x, y):
        return x

    def losses(self, theta):
        return (self.x * theta).sum(axis=-1)

    def best(self, n_steps):
        return -RADIUS * np.sign(self.x[:n_steps].sum(axis=0))


def play(problem, transform, direction=1.0):
    """θ_1 … θ_T, (T, d), each step projected onto the box.

    The proof projects in the norm of η_t^{-1}, which is diagonal: on a box that is a clip.
    """

    @jax.jit
    def run(x, y):
        def step(carry, data):
            theta, memory = carry
            updates, memory = transform.update(problem.grad(theta, *data), memory)
            after = jnp.clip(theta + direction * updates, -RADIUS, RADIUS)
            return (after, memory), theta

        start = jnp.full(DIMENSION, -0.9)
        return jax.lax.scan(step, (start, transform.init(start)), (x, y))[1]

    return np.asarray(run(problem.x, problem.y), np.float64)


def regrets(problem, thetas):
    """R(T) against the best fixed point of the box in hindsight, at every T of the grid."""
    suffered = np.cumsum(problem.losses(thetas))
    return np.array([suffered[T - 1] - problem.losses(problem.best(T))[:T].sum() for T in GRID])


def grows_faster_than_root(regret):
    """Whether R(T)/√T is still rising in the last decade."""
    scaled = regret / np.sqrt(GRID)
    last = np.array(GRID) > 300
    return scaled[last].max() > 1.2 * scaled[~last].max()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("problem_type", [Squares, Absolutes, Sawtooth])
def test_the_regret_grows_no_faster_than_root_t(problem_type, seed):
    problem = problem_type(seed)
    thetas = play(problem, bounded_rmsprop(0.1, 0.9))
    assert np.abs(thetas).max() <= RADIUS
    regret = regrets(problem, thetas)
    assert not grows_faster_than_root(regret)
    assert regret[-1] / GRID[-1] < 0.25 * regret[GRID.index(100)] / 100


def test_the_regret_of_steps_uphill_would_be_noticed():
    problem = Squares(0)
    regret = regrets(problem, play(problem, bounded_rmsprop(0.1, 0.9), direction=-1.0))
    assert grows_faster_than_root(regret)


def test_adam_ends_in_the_wrong_corner_where_the_bounded_optimiser_does_not():
    problem = Sawtooth(0)
    adam = regrets(problem, play(problem, optax.adam(0.1, b1=0.0, b2=0.1)))
    assert grows_faster_than_root(adam)
