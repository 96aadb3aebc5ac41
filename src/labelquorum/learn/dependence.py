"""Dependence: how far labels of one item lean on each other, told from labels alone.

An account takes the labels of an item for independent, given the truth. Where they are not (hard
items, copied answers), it is too sure of itself. What it leaves unexplained is told by residuals:
with m = P(worker j says c | truth c), r_j = 1[l_j = c] − m has mean 0 and variance m (1 − m) on
items of class c, and two residuals of one item are uncorrelated if the account is right. Their
correlation ρ̂ is kept up to date by five sums a class. `docs/accounts.md` has the formula.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from labelquorum.learn.batch import Leaf

__all__ = ["N_SUMS", "correlation", "heat", "pair_sums"]

N_SUMS = 5
"""The sums of `pair_sums`."""

HALF = 0.02
"""The ρ̂ at which n labels are worth √n: chosen on the development sets (`docs/accuracy.md`)."""


def pair_sums(
    item: Leaf, label: Leaf, weight: Leaf, right: Leaf, class_probs: Leaf, counted_item: Leaf
) -> Leaf:
    """What a chunk adds to the sums behind ρ̂, (5, C).

    Parameters
    ----------
    item, label, weight
        Of the labels, (B,) each.
    right
        P(worker says c | truth c) for the worker of each label, (B, C).
    class_probs, counted_item
        q, and 1 where an item counts, (M, C) and (M,).
    """
    n_items, n_classes = class_probs.shape
    residual = ((label[:, None] == np.arange(n_classes)) - right) * weight[:, None]
    spread = jnp.sqrt(right * (1 - right)) * weight[:, None]
    columns = [residual, residual**2, spread, spread**2, weight[:, None], weight[:, None] ** 2]
    sums = jax.ops.segment_sum(
        jnp.concatenate(columns, axis=1), item, n_items, indices_are_sorted=True
    )
    ends = np.cumsum([column.shape[1] for column in columns])[:-1]
    residual, residual_2, spread, spread_2, labels, labels_2 = jnp.split(sums, ends, axis=1)
    # Σ_i q_i(c) · { Σ_{j ≠ j'} r_j r_j',  Σ_{j ≠ j'} √(v_j v_j'),  Σ_j r_j,  n_i,  n_i (n_i − 1) }
    told = residual**2 - residual_2, spread**2 - spread_2, residual, labels, labels**2 - labels_2
    believed = class_probs * counted_item[:, None]
    return jnp.stack([(believed * part).sum(axis=0) for part in told])


def correlation(sums: NDArray[np.float64]) -> float:
    """ρ̂, how far residuals of one item go together; 0 if the account is right."""
    products, spreads, residuals, labels, pairs = sums
    # The mean residual of a class is misfit of its rate, not dependence; it is taken off.
    mean = residuals / np.maximum(labels, 1e-12)
    # ρ̂ = (Σ r_j r_j' − Σ_c pairs_c · mean_c²) / Σ √(v_j v_j')
    return float((products - pairs * mean**2).sum() / max(spreads.sum(), 1e-12))


def heat(
    n_labels: NDArray[Any], dependence: float | str, sums: NDArray[np.float64]
) -> NDArray[np.float64]:
    """By what an item's log scores are divided, (N,): 1 for one label, at most n for n of them."""
    many = np.maximum(n_labels, 1.0)
    if dependence == "learned":
        # n^γ,  γ = ρ̂ / (ρ̂ + 0.02) where ρ̂ > 0, else 0
        beyond = max(correlation(sums), 0.0)
        return np.asarray(many ** (beyond / (beyond + HALF)))
    # 1 + ρ (n − 1)
    return np.asarray(1 + float(dependence) * (many - 1))
