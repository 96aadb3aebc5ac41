"""The plain p: one accuracy a worker, whatever the class.

    m_k[c, z] = r_k if z = c, else (1 − r_k) / (C − 1),  r_k = σ(logit ā + a_k),  a_k ~ N(0, σ_a²)

It is the hierarchical p with nothing but the tilt: softmax_z( log S[c, z] + a_k 1[c = z] ).
`docs/worker-models.md` says what it is for. The loss needs two counts a class: N_k[c, c], how often
worker k was right on items expected to be c, and n_k[c], how many of those he labelled. They stand
one after the other, (2, C, K), classes before workers as in `hierarchical.py`; θ is (1, K).
"""

import jax.numpy as jnp

from labelquorum.learn.bila.hierarchical import Recipe, worker_weight
from labelquorum.learn.bila.minibatch import Leaf

__all__ = ["crowd_odds", "gradient_and_curvature", "loss", "pool", "right", "step"]


def crowd_odds(pooled: Leaf, recipe: Recipe) -> Leaf:
    """ā / (1 − ā), how much oftener the crowd is right than wrong, (…), by P as (…, 2, C)."""
    hits, labels = pooled[..., 0, :].sum(axis=-1), pooled[..., 1, :].sum(axis=-1)
    # ā = (Σ_c P[c, c] + s ā₀) / (Σ P + s), as odds, which no crowd makes infinite
    prior = recipe.accuracy_strength * recipe.crowd_accuracy
    return (hits + prior) / (labels - hits + recipe.accuracy_strength - prior)


def right(odds: Leaf, tilt_factor: Leaf) -> Leaf:
    """r_k, how often each worker is right, (K,); the factor is e^a."""
    return odds * tilt_factor / (1 + odds * tilt_factor)


def loss(theta: Leaf, counts: Leaf, odds: Leaf, recipe: Recipe) -> Leaf:
    """−J_k, but for what no θ changes: minus the expected log-likelihood, and the prior, (K,)."""
    hits, labels = counts.sum(axis=1)
    often = right(odds, jnp.exp(theta[0]))
    # J_k = h log r + (n − h) log(1 − r) − a²/2σ_a²;  h = Σ_c N_k[c, c], n = Σ_c n_k[c]
    fit = hits * jnp.log(often) + (labels - hits) * jnp.log1p(-often)
    return theta[0] ** 2 / (2 * recipe.tilt_scale**2) - fit


def gradient_and_curvature(
    theta: Leaf, counts: Leaf, odds: Leaf, recipe: Recipe
) -> tuple[Leaf, Leaf]:
    """∂J/∂a and −∂²J/∂a², (K,) each."""
    hits, labels = counts.sum(axis=1)
    often = right(odds, jnp.exp(theta[0]))
    # ∂J/∂a = h − n r − a/σ_a²;  −∂²J/∂a² = n r (1 − r) + 1/σ_a²
    slope = hits - labels * often - theta[0] / recipe.tilt_scale**2
    return slope, labels * often * (1 - often) + 1 / recipe.tilt_scale**2


def step(theta: Leaf, counts: Leaf, odds: Leaf, recipe: Recipe) -> Leaf:
    """One Newton step of every worker, (1, K)."""
    slope, curvature = gradient_and_curvature(theta, counts, odds, recipe)
    # a ← a + clip(g / H, −1, 1)
    return theta + jnp.clip(slope / curvature, -recipe.step_limit, recipe.step_limit)


def pool(counts: Leaf, recipe: Recipe) -> Leaf:
    """These workers' share of P, its diagonal and its row sums, (2, C)."""
    # Σ_k N_k[c, c] κ/(κ + n_k[c]) and Σ_k n_k[c] κ/(κ + n_k[c])
    return (counts * worker_weight(counts[1], recipe)).sum(axis=-1)
