"""p, the generative model: how likely a worker's label is, given the truth.

A generative model is two functions of its parameters, differentiable in them, and a way to start:

    init(newcomers)               → Params
    log_likelihood(params, batch) → (M, C)      log p(labels of item i | truth c)
    confusion(params)             → (K, C, C)   P(worker k says z | truth c)
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, Literal, NamedTuple, get_args

from labelquorum.errors import StateError
from labelquorum.learn.bila.lazy_jax import jax, jnp
from labelquorum.learn.bila.minibatch import Batch, Leaf, sum_by_item


class Params(NamedTuple):
    """Parameters in two parts; the second has one row per worker."""

    shared: Any  # any pytree
    per_worker: Any  # a pytree of arrays (K, …)


class Newcomers(NamedTuple):
    """What is known of workers on the day they first label; P of them, C classes."""

    votes: jax.Array  # (P, C, C) labels z of the worker where the majority said c
    crowd_votes: jax.Array  # (C, C) the same summed over everybody before
    keys: jax.Array  # (P,) one random key a worker, from seed and id
    shared_key: jax.Array  # () the random key of what is shared
    n_workers: Leaf  # () workers known, these included
    initial: Leaf = True  # () whether they are of the initial set, L*

    @property
    def n_classes(self) -> int:
        """C, all classes known so far."""
        return int(self.votes.shape[-1])


NewcomerRows = Literal["votes", "flat"]


class GenerativeModel(NamedTuple):
    """p: a way to start and two functions of the parameters."""

    name: str
    init: Callable[[Newcomers], Params]
    log_likelihood: Callable[[Params, Batch], jax.Array]
    confusion: Callable[[Params], jax.Array]
    max_classes: int | None = None


def confusion_matrix(
    init_from: Literal["log_frequencies", "frequencies"] = "log_frequencies",
    init_strength: float = 1.0,
    init_accuracy: float = 0.7,
    init_smoothing: float = 0.0,
    newcomer_rows: NewcomerRows = "votes",
) -> GenerativeModel:
    """BiLA-CM: each worker has a confusion matrix, the softmax of free logits.

    Parameters
    ----------
    init_from
        A worker starts from how often their labels went with the majority vote: the logarithm of
        the frequencies (the paper: ψ *is* the frequencies then), or the frequencies themselves
        used as logits (the authors' code: nearly flat).
    init_strength
        How many labels per row the crowd's average counts for beside the worker's own;
        0 takes the bare frequencies, where there are any.
    init_accuracy
        The diagonal of a matrix nobody has said anything about yet.
    init_smoothing
        Added to every count before frequencies are taken. At 0, a frequency counts as at least
        0.001, and a row without labels is the crowd's average.
    newcomer_rows
        A worker absent from the initial set starts from their own "votes" in the first chunk in
        which they appear, or from "flat" rows of 1/C (the authors' code; line 4 of Algorithm 1
        uses the initial set alone).

    Examples
    --------
    >>> model = confusion_matrix()
    >>> model.name
    'confusion_matrix'
    """
    if init_from not in ("log_frequencies", "frequencies"):
        raise StateError(
            "`init_from` of confusion_matrix must be 'log_frequencies' or 'frequencies'. "
            f"Got {init_from!r}."
        )
    _check_start("confusion_matrix", init_strength, init_accuracy, init_smoothing, newcomer_rows)

    def init(newcomers: Newcomers) -> Params:
        crowd = _crowd_average(newcomers.crowd_votes, init_accuracy)
        counts = newcomers.votes + init_strength * crowd + init_smoothing
        total = counts.sum(axis=-1, keepdims=True)
        frequencies = jnp.where(total > 0, counts / jnp.where(total > 0, total, 1), 0)
        if init_from == "frequencies":
            logits, flat = frequencies, jnp.zeros(())
        else:
            # A row nobody filled starts as the crowd's; a cell nobody filled as one in a thousand.
            frequencies = jnp.where(total > 0, frequencies, crowd)
            logits = jnp.log(frequencies if init_smoothing else jnp.maximum(frequencies, 1e-3))
            flat = -jnp.log(newcomers.n_classes)
        if newcomer_rows == "flat":
            logits = jnp.where(newcomers.initial, logits, flat)
        return Params(shared={}, per_worker={"confusion_logits": logits})

    def log_likelihood(params: Params, batch: Batch) -> jax.Array:
        # Eq. (psi), Alg. 1 line 16: ψ_ck = softmax(ω_ck)
        log_confusion = jax.nn.log_softmax(params.per_worker["confusion_logits"], axis=-1)
        # Alg. 1 line 21: log p(l_i | y = c) = Σ_{k ∈ S_i} log ψ_{ck, l_ik}
        return sum_by_item(log_confusion[batch.worker, :, batch.label], batch)

    def confusion(params: Params) -> jax.Array:
        return jax.nn.softmax(params.per_worker["confusion_logits"], axis=-1)

    return GenerativeModel("confusion_matrix", init, log_likelihood, confusion)


def worker_ability(
    init_strength: float = 1.0,
    init_accuracy: float = 0.7,
    init_smoothing: float = 0.0,
    newcomer_rows: NewcomerRows = "votes",
) -> GenerativeModel:
    """BiLA-WA: two classes, and a worker is right on class c with probability 1/(1+exp(−λ_ck)).

    Parameters
    ----------
    init_strength, init_accuracy, init_smoothing, newcomer_rows
        As for `confusion_matrix`.

    Examples
    --------
    >>> worker_ability().max_classes
    2
    """
    _check_start("worker_ability", init_strength, init_accuracy, init_smoothing, newcomer_rows)

    def init(newcomers: Newcomers) -> Params:
        crowd = _crowd_average(newcomers.crowd_votes, init_accuracy)
        counts = newcomers.votes + init_strength * crowd + init_smoothing
        right = jnp.diagonal(counts, axis1=-2, axis2=-1)
        total = counts.sum(axis=-1)
        rate = jnp.where(total > 0, right / jnp.where(total > 0, total, 1), init_accuracy)
        rate = jnp.clip(rate, 1e-3, 1 - 1e-3)
        if newcomer_rows == "flat":
            rate = jnp.where(newcomers.initial, rate, 0.5)
        return Params(shared={}, per_worker={"ability_logits": jnp.log(rate) - jnp.log1p(-rate)})

    def log_likelihood(params: Params, batch: Batch) -> jax.Array:
        # Eq. (workercorr): log p(l = c | c) = −log(1 + e^{−λ}), log p(l ≠ c | c) = −log(1 + e^{λ})
        ability = params.per_worker["ability_logits"][batch.worker]  # (B, C)
        right = batch.label[:, None] == jnp.arange(ability.shape[1])
        return sum_by_item(jax.nn.log_sigmoid(jnp.where(right, ability, -ability)), batch)

    def confusion(params: Params) -> jax.Array:
        ability = params.per_worker["ability_logits"][:, :, None]  # (K, C, 1)
        if ability.shape[1] == 1:
            return jnp.ones(ability.shape)
        return jax.nn.sigmoid(jnp.where(jnp.eye(2) > 0, ability, -ability))

    return GenerativeModel("worker_ability", init, log_likelihood, confusion, max_classes=2)


GENERATIVE_MODELS: dict[str, Callable[..., GenerativeModel]] = {
    "confusion_matrix": confusion_matrix,
    "worker_ability": worker_ability,
}


def _check_start(
    model: str,
    init_strength: float,
    init_accuracy: float,
    init_smoothing: float,
    newcomer_rows: str,
) -> None:
    if not init_strength >= 0:
        raise StateError(f"`init_strength` of {model} must be a number ≥ 0. Got {init_strength!r}.")
    if not 0 < init_accuracy < 1:
        raise StateError(
            f"`init_accuracy` of {model} must lie between 0 and 1. Got {init_accuracy!r}."
        )
    if not 0 <= init_smoothing < inf:
        raise StateError(
            f"`init_smoothing` of {model} must be a number ≥ 0. Got {init_smoothing!r}."
        )
    if newcomer_rows not in get_args(NewcomerRows):
        raise StateError(
            f"`newcomer_rows` of {model} must be one of {list(get_args(NewcomerRows))}. "
            f"Got {newcomer_rows!r}."
        )


def _crowd_average(crowd_votes: jax.Array, accuracy: float) -> jax.Array:
    """The crowd's own matrix by majority vote, leaning on one of the given accuracy, (C, C)."""
    n_classes = crowd_votes.shape[-1]
    same = jnp.eye(n_classes)
    wrong = (1 - accuracy) / max(n_classes - 1, 1)
    guess = accuracy * same + wrong * (1 - same) if n_classes > 1 else same
    # The guess counts for ten labels per row.
    counts = crowd_votes + 10 * guess
    return counts / counts.sum(axis=-1, keepdims=True)
