"""BWA: Bayesian weighted average, labels as noisy numbers with a precision for each worker.

Y. Li, B. I. P. Rubinstein and T. Cohn, Truth Inference at Scale: A Bayesian Model for Adjudicating
Highly Redundant Crowd Annotations, WWW 2019. Each class is asked for by itself: a label is 1 where
it names the class and 0 where it does not, drawn from a normal law around the item's number z.
"""

from typing import NamedTuple

import numpy as np

from labelquorum._types import Floats
from labelquorum.ingest.chunks import Chunk
from labelquorum.ingest.labels import LabelSpace
from labelquorum.learn.aggregator import Aggregator
from labelquorum.learn.methods._batch import (
    Fit,
    Incidence,
    Leaves,
    check_at_least,
    has_settled,
    incidence_of,
    offline,
    soft_counts,
    sum_votes,
)

MIN_VARIANCE = 1e-6
"""The prior variance of a label where nobody ever disagrees on a class."""

SMOOTHING = 0.5
"""Added to each cell of the matrices, which are for the reader: the model has none."""


class _Params(NamedTuple):
    mean: Floats  # (C,) μ, what an item's number is before any label
    precision: Floats  # (P, C) v


def bwa(
    space: LabelSpace | None = None,
    *,
    strength: float = 15.0,
    item_precision: float = 1.0,
    tolerance: float = 1e-7,
    iterations: int = 500,
) -> Aggregator:
    """Build the Bayesian weighted average.

    Parameters
    ----------
    strength
        How many labels the prior on a worker's precision is worth (a_v in the paper).
    item_precision
        How closely the items' numbers are held to their mean (λ in the paper).
    tolerance, iterations
        It ends when the objective changes by less, relatively, or after `iterations` rounds.

    Examples
    --------
    >>> from labelquorum.evaluation.checks import seeded_error
    >>> print(f"{seeded_error(bwa()):.1%}")
    13.6%
    """
    check_at_least("bwa", strength=(strength, 1e-3), item_precision=(item_precision, 1e-3))
    check_at_least("bwa", tolerance=(tolerance, 0), iterations=(iterations, 1))

    def fit(chunk: Chunk, seed: int) -> Fit:
        labels, numbers = incidence_of(chunk), chunk.vote_shares.copy()  # (N, C) z
        rate = strength * _prior_variance(numbers, chunk)  # (C,) b
        numbers[numbers.sum(axis=1) == 0] = 1 / max(chunk.n_classes, 1)  # no label counts
        weight = strength + labels.total(labels.worker, None, labels.n_workers)[:, None]  # a + N
        losses: list[float] = []
        for _ in range(iterations):
            # v_kc = (a + N_k) / (b_c + Σ_i (z_ic − y_ikc)²);  μ_c = mean_i z_ic
            spread = rate + _squares(numbers, labels)
            params = _Params(_mean(numbers), weight / spread)
            # −log p(z, v, y), up to a constant, is what each update lowers: ½ Σ_c of
            # λ Σ_i (z_ic − μ_c)² + Σ_k [v_kc (b_c + Σ_i (z_ic − y_ikc)²) − (a + N_k) log v_kc]
            of_items = item_precision * ((numbers - params.mean) ** 2).sum()
            of_workers = (params.precision * spread - weight * np.log(params.precision)).sum()
            losses.append(0.5 * float(of_items + of_workers))
            if has_settled(losses, tolerance):
                break
            numbers = _numbers(params, item_precision, labels)
        counts = soft_counts(_shares(numbers), labels) + SMOOTHING
        return Fit(
            {"precision": params.precision, "confusion": _shares(counts)},
            {
                "class_prior": _shares(params.mean),
                "mean": params.mean,
                "newcomer": strength / rate,
                "crowd": _shares(counts.sum(axis=0) + SMOOTHING),
                "item_precision": np.array(item_precision),
            },
            losses,
        )

    return offline(
        "bwa",
        fit=fit,
        newcomer=lambda shared: {"precision": shared["newcomer"], "confusion": shared["crowd"]},
        log_scores=_log_scores,
        confusion=lambda rows, shared: rows["confusion"],
    )._replace(  # no "cold_start": its prior carries it
        exceptions={
            "shared_errors": "one accuracy per worker cannot tell to which labels errors go"
        }
    )


def _prior_variance(shares: Floats, chunk: Chunk) -> Floats:
    """The mean variance of a label around its item's vote, (C,), on the scale of two classes."""
    weight = np.bincount(chunk.item, chunk.weight, chunk.n_items)
    variance = weight @ (shares * (1 - shares)) / max(weight.sum(), 1e-300)
    # The paper's correction, 4 (1 − 1/C): with many classes most of a class's labels are 0.
    return np.asarray(np.maximum(variance * 4 * (1 - 1 / max(chunk.n_classes, 1)), MIN_VARIANCE))


def _squares(numbers: Floats, labels: Incidence) -> Floats:
    """Σ_i (z_ic − y_ikc)² of each worker and class, (P, C)."""
    squares = np.empty((labels.n_workers, labels.n_classes))
    for c, of_items in enumerate(numbers.T):
        residual = of_items.take(labels.item) - (labels.label == c)
        squares[:, c] = labels.total(labels.worker, residual * residual, labels.n_workers)
    return squares


def _numbers(params: _Params, item_precision: float, labels: Incidence) -> Floats:
    """z_ic = (λ μ_c + Σ_k v_kc y_ikc) / (λ + Σ_k v_kc), (N, C)."""
    named = sum_votes(params.precision.take(labels.cell), labels)
    total = np.empty_like(named)
    for c, of_workers in enumerate(params.precision.T):
        total[:, c] = labels.total(labels.item, of_workers.take(labels.worker), labels.n_items)
    return np.asarray((item_precision * params.mean + named) / (item_precision + total))


def _mean(numbers: Floats) -> Floats:
    if not len(numbers):
        return np.full(numbers.shape[1], 1 / max(numbers.shape[1], 1))
    return np.asarray(numbers.mean(axis=0))


def _shares(values: Floats) -> Floats:
    return np.asarray(values / values.sum(axis=-1, keepdims=True))


def _log_scores(rows: Leaves, shared: Leaves, chunk: Chunk) -> Floats:
    """The items' numbers as shares: the paper takes the class of the highest."""
    params = _Params(shared["mean"], rows["precision"])
    numbers = _numbers(params, float(shared["item_precision"]), incidence_of(chunk))
    return np.log(np.maximum(numbers, 1e-300))
