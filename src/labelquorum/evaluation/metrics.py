"""Scores: how far aggregated labels and their probabilities are from the truth.

Truth is for scoring only and may cover part of the items: `MISSING` marks the others, which
are left out of every score. All scores are shares or nats, never per cent, and NaN when no
item has truth.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelquorum.errors import StateError
from labelquorum.ingest.labels import MISSING


def error_rate(aggregated: ArrayLike, truth: ArrayLike) -> float:
    """Give the share of items with truth whose aggregated class is another one.

    Parameters
    ----------
    aggregated
        (N,) class indices; `MISSING`, no answer, counts as an error.
    truth
        (N,) class indices, `MISSING` where unknown.

    Examples
    --------
    >>> error_rate([0, 1, 1, 0], truth=[0, 1, 0, -1])
    0.3333333333333333
    """
    inferred, true_class = np.asarray(aggregated), np.asarray(truth)
    _check_parallel("error_rate", "aggregated", inferred.shape, true_class.shape)
    known = true_class != MISSING
    return _mean(inferred[known] != true_class[known])


def log_loss(probs: ArrayLike, truth: ArrayLike, *, floor: float = 1e-12) -> float:
    """Give the mean of -log P(true class), in nats.

    Parameters
    ----------
    probs
        (N, C) class probabilities.
    truth
        (N,) class indices, `MISSING` where unknown.
    floor
        The least probability used, so that one confident mistake costs 27.6 and not infinity.

    Examples
    --------
    >>> round(log_loss([[0.5, 0.5], [0.8, 0.2]], truth=[0, 0]), 3)
    0.458
    """
    known_probs, known_truth = _with_truth("log_loss", probs, truth)
    true_probs = known_probs[np.arange(known_truth.size), known_truth]
    return _mean(-np.log(np.maximum(true_probs, floor)))


def calibration_error(probs: ArrayLike, truth: ArrayLike, bins: int = 15) -> float:
    """Give the expected calibration error (ECE) of the most probable class.

    Items are binned by their confidence, the largest class probability, into `bins` intervals
    of equal width, each open below and closed above. ECE is the mean over items of the gap
    |share right - mean confidence| of their bin (Guo et al., ICML 2017). The most probable
    class is the lowest where several tie.

    Parameters
    ----------
    probs
        (N, C) class probabilities.
    truth
        (N,) class indices, `MISSING` where unknown.

    Examples
    --------
    >>> round(calibration_error([[0.9, 0.1], [0.9, 0.1]], truth=[0, 1]), 3)
    0.4
    """
    counts = reliability(probs, truth, bins)
    n_scored = counts[:, 0].sum()
    if not n_scored:
        return float("nan")
    # sum over bins of (n_b / n) |right_b / n_b - confidence_b / n_b|; the n_b cancel
    return float(np.abs(counts[:, 2] - counts[:, 1]).sum() / n_scored)


def reliability(probs: ArrayLike, truth: ArrayLike, bins: int = 15) -> NDArray[np.float64]:
    """Count what a reliability diagram shows: how often answers of each confidence are right.

    The bins are those of `calibration_error`. Counts of several runs may be added.

    Parameters
    ----------
    probs
        (N, C) class probabilities.
    truth
        (N,) class indices, `MISSING` where unknown.

    Returns
    -------
    counts : (bins, 3)
        Items, the sum of their confidence, and how many of them are right, of each bin.

    Examples
    --------
    >>> reliability([[0.9, 0.1], [0.7, 0.3], [0.2, 0.8]], truth=[0, 1, 1], bins=2)
    array([[0. , 0. , 0. ],
           [3. , 2.4, 2. ]])
    """
    if bins < 1:
        raise StateError(f"`bins` of reliability must be a whole number ≥ 1. Got {bins}.")
    known_probs, known_truth = _with_truth("reliability", probs, truth)
    if not known_truth.size:
        return np.zeros((bins, 3))
    confidence = known_probs.max(axis=1)
    return by_confidence(confidence, known_probs.argmax(axis=1) == known_truth, bins)


def by_confidence(confidence: ArrayLike, right: ArrayLike, bins: int = 15) -> NDArray[np.float64]:
    """Count answers by their confidence, as `reliability` does, of which it is known who is right.

    Parameters
    ----------
    confidence, right
        (N,) how sure each answer is, and whether it is right.

    Returns
    -------
    counts : (bins, 3)
    """
    confidence = np.asarray(confidence, np.float64)
    bin_index = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    columns = (np.ones_like(confidence), confidence, np.asarray(right, np.float64))
    return np.stack([np.bincount(bin_index, column, bins) for column in columns], axis=1)


def _with_truth(
    where: str, probs: ArrayLike, truth: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Keep the items that have truth."""
    class_probs = np.asarray(probs, dtype=np.float64)
    true_class = np.asarray(truth, dtype=np.int64)
    _check_parallel(where, "probs", class_probs.shape[:1], true_class.shape)
    known = true_class != MISSING
    n_classes = class_probs.shape[-1]
    if np.any((true_class[known] < 0) | (true_class[known] >= n_classes)):
        raise StateError(
            f"`truth` of {where} must hold class indices below {n_classes}, the columns of "
            f"`probs`, or {MISSING} where unknown. Got {true_class.min()} to {true_class.max()}."
        )
    return class_probs[known], true_class[known]


def _check_parallel(
    where: str, name: str, shape: tuple[int, ...], truth_shape: tuple[int, ...]
) -> None:
    if shape != truth_shape:
        raise StateError(
            f"`{name}` and `truth` of {where} must have one entry for each item. "
            f"Got shapes {shape} and {truth_shape}."
        )


def _mean(values: NDArray[np.bool_] | NDArray[np.float64]) -> float:
    return float(np.mean(values)) if values.size else float("nan")
