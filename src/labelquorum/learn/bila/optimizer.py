"""The paper's stochastic optimiser, Algorithm 1 lines 22–27.

RMSProp whose element-wise step size is bias-corrected, clipped between two bounds that close in
on each other, and divided by √t.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, log
from typing import Any, NamedTuple

from labelquorum.errors import StateError
from labelquorum.learn.bila.lazy_jax import jax, jnp, optax

Bounds = tuple[Callable[[Any], Any], Callable[[Any], Any]]
"""η_l(t) and η_u(t), functions of the step t = 1, 2, …"""


class BoundedRMSPropState(NamedTuple):
    """t − 1 and v of Algorithm 1."""

    step: jax.Array  # ()
    second_moment: Any  # as the parameters


class Optimizer(NamedTuple):
    """An optax transformation, and what it does to a parameter whose gradient is zero.

    `row_decay` is the factor by which one step shrinks all it remembers of such a parameter, the
    parameter itself staying put: rows of absent workers can then wait. None: it moves them.
    """

    name: str
    transform: optax.GradientTransformation
    row_decay: float | None


def dynamic_bounds(decay: float = 0.9, final: float = 0.1) -> Bounds:
    """Bounds that meet at `final` (Savarese 2019): wide at first, so early steps adapt freely."""
    return (
        lambda t: final - final / ((1 - decay) * t + 1),
        lambda t: final + final / ((1 - decay) * t),
    )


def constant_bounds(low: float, high: float) -> Bounds:
    """The same bounds at every step."""
    if not 0 < low <= high:
        raise StateError(f"constant bounds must satisfy 0 < low ≤ high. Got {low} and {high}.")
    return (lambda t: 0.0 * t + low, lambda t: 0.0 * t + high)


def bounded_rmsprop(
    learning_rate: float = 0.01, decay: float = 0.9, bounds: Bounds | None = None
) -> optax.GradientTransformation:
    """Algorithm 1, lines 22–27, as an optax transformation.

    Parameters
    ----------
    learning_rate
        μ.
    decay
        γ, in [0, 1).
    bounds
        η_l(t) and η_u(t); `dynamic_bounds(decay)` unless given.

    Examples
    --------
    >>> optimizer = bounded_rmsprop()
    >>> state = optimizer.init(jnp.array([3.0]))
    >>> updates, state = optimizer.update(jnp.array([6.0]), state)
    >>> print(f"{updates[0]:.4f}")
    -0.0545
    """
    if not learning_rate > 0:
        raise StateError(
            f"`learning_rate` of bounded_rmsprop must be a number > 0. Got {learning_rate!r}."
        )
    if not 0 <= decay < 1:
        raise StateError(f"`decay` of bounded_rmsprop must lie in [0, 1). Got {decay!r}.")
    step_floor, step_ceiling = dynamic_bounds(decay) if bounds is None else bounds
    log_decay = log(decay) if decay else -inf

    def init(params: optax.Params) -> BoundedRMSPropState:
        return BoundedRMSPropState(jnp.zeros((), jnp.int32), jax.tree.map(jnp.zeros_like, params))

    def update(
        grads: optax.Updates, state: BoundedRMSPropState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, BoundedRMSPropState]:
        t = (state.step + 1).astype(jnp.float32)
        # Line 23: v_t = γ v_{t−1} + (1 − γ) g_t ⊙ g_t
        second_moment = jax.tree.map(
            lambda v, g: decay * v + (1 - decay) * g * g, state.second_moment, grads
        )
        # Line 24: μ_t = μ √(1 − γ^t); in float32, 1 − 0.999^t would lose four digits at first.
        corrected_rate = learning_rate * jnp.sqrt(-jnp.expm1(t * log_decay))

        def step(v: jax.Array, g: jax.Array) -> jax.Array:
            # Line 25: η_t = Clip(μ_t / √v_t, η_l(t), η_u(t)) / √t
            step_size = jnp.clip(corrected_rate / jnp.sqrt(v), step_floor(t), step_ceiling(t))
            # Line 26: θ_{t+1} = θ_t − η_t ⊙ g_t
            return -step_size / jnp.sqrt(t) * g

        return (
            jax.tree.map(step, second_moment, grads),
            BoundedRMSPropState(state.step + 1, second_moment),  # line 27
        )

    return optax.GradientTransformation(init, update)  # type: ignore[arg-type]


def clipped_rmsprop(
    learning_rate: float = 1e-4, decay: float = 0.9, clip: float = 1.0
) -> optax.GradientTransformation:
    """RMSProp at a constant rate with gradients clipped to ±clip; v starts at 0, ε = 1e-7."""
    return optax.chain(optax.clip(clip), optax.rmsprop(learning_rate, decay=decay, eps=1e-7))


def tf1_rmsprop(
    learning_rate: float = 1e-4, decay: float = 0.9, clip: float = 1.0
) -> optax.GradientTransformation:
    """RMSProp as TensorFlow 1 has it by default, with gradients clipped to ±clip: the authors'.

    θ_{t+1} = θ_t − μ g_t / √(v_t + 1e-10), and v starts at 1: the first steps are short.
    """
    rmsprop = optax.rmsprop(
        learning_rate, decay=decay, eps=1e-10, eps_in_sqrt=True, initial_scale=1.0
    )
    return optax.chain(optax.clip(clip), rmsprop)


def _bounded(learning_rate: float, decay: float) -> Optimizer:
    return Optimizer("bounded_rmsprop", bounded_rmsprop(learning_rate, decay), decay)


def _clipped(learning_rate: float, decay: float) -> Optimizer:
    return Optimizer("rmsprop", clipped_rmsprop(learning_rate, decay), decay)


def _tf1(learning_rate: float, decay: float) -> Optimizer:
    return Optimizer("tf1_rmsprop", tf1_rmsprop(learning_rate, decay), decay)


def _adam(learning_rate: float, decay: float) -> Optimizer:
    return Optimizer("adam", optax.adam(learning_rate), None)


OPTIMIZERS: dict[str, Callable[[float, float], Optimizer]] = {
    "bounded_rmsprop": _bounded,
    "rmsprop": _clipped,
    "tf1_rmsprop": _tf1,
    "adam": _adam,
}
