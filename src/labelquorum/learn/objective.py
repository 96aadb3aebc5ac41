"""f, the loss: how far q is from p, with exact expectations, in logs from end to end."""

from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from labelquorum.errors import StateError

__all__ = ["ClassPrior", "check_class_prior", "count_labels", "log_class_prior", "loss"]

ClassPrior = Literal["warmup", "running", "chunk", "uniform", "learned", "blended"]

LABEL_FLOOR = 0.5
"""A class nobody named counts as half a label, so that its logarithm is finite."""


def loss(
    class_log_probs: jax.Array,
    log_likelihood: jax.Array,
    log_prior: jax.Array,
    item_mask: jax.Array,
    kl_weight: float,
) -> jax.Array:
    """The mini-batch loss, Eq. (minilossprac), a mean over the items that are no padding.

    Parameters
    ----------
    class_log_probs
        log q(c | l_i), (M, C).
    log_likelihood
        log p(l_i | c), (M, C).
    log_prior
        log p(c), (C,).
    item_mask
        (M,).
    kl_weight
        ζ, the weight of the divergence from the prior.
    """
    class_probs = jnp.exp(class_log_probs)
    # Eq. (klcalc): KL(q ‖ p(y)) = −Σ_c q_c log(p_c / q_c)
    divergence = -(class_probs * (log_prior - class_log_probs)).sum(axis=1)
    # Eq. (ecalc): E_q[log p(l | y)] = Σ_c q_c log p(l | c)
    expectation = (class_probs * log_likelihood).sum(axis=1)
    # Eq. (minilossprac): f = 1/M Σ_i { ζ KL_i − E_i }
    return ((kl_weight * divergence - expectation) * item_mask).sum() / item_mask.sum()


def count_labels(
    label: NDArray[np.integer[Any]], weight: NDArray[np.floating[Any]], n_classes: int
) -> NDArray[np.float64]:
    """The numerator of Eq. (priorest): how often each class was named, (C,)."""
    return np.bincount(label, weight, minlength=n_classes).astype(np.float64)


def log_class_prior(counts: NDArray[np.float64]) -> NDArray[np.float32]:
    """Eq. (priorest): the share of the labels that named each class, in logs, (C,)."""
    floored = np.maximum(counts, LABEL_FLOOR)
    return np.asarray(np.log(floored / floored.sum()), np.float32)


def check_class_prior(class_prior: str) -> None:
    """Refuse a way of estimating the class prior that does not exist."""
    if class_prior not in get_args(ClassPrior):
        raise StateError(
            f"`class_prior` of bila must be one of {list(get_args(ClassPrior))}. "
            f"Got {class_prior!r}."
        )
