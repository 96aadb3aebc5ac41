"""Seeded crowds with known truth and known confusion matrices.

A crowd is made in three steps that know nothing of one another: who labels which item, what
each worker's confusion matrix is, and the draw of the labels from those matrices. The
generators differ in the first two. `oracle` is Bayes' rule with the true matrices: no
aggregator that sees only the labels can expect to err less.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelquorum.errors import StateError
from labelquorum.ingest.events import LabelTable

__all__ = [
    "Crowd",
    "balanced_truth",
    "bimodal_crowd",
    "bimodal_noise",
    "chunks",
    "class_conditional_crowd",
    "label_table",
    "oracle",
    "oracle_error",
    "oracle_probs",
]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Crowd(NamedTuple):
    """Labels of a simulated crowd, and everything that made them.

    The first three are flat and parallel, one entry a label, all labels of an item together,
    items in order 0 … N-1 and each with at least one label.
    """

    item: Ints  # (L,)
    worker: Ints  # (L,)
    label: Ints  # (L,)
    truth: Ints  # (N,)
    confusion: Floats  # (K, C, C), [k, c, z] = P(worker k says z | truth c)
    class_prior: Floats  # (C,)


def balanced_truth(n_items: int, n_classes: int = 10, *, seed: int = 0) -> Ints:
    """Give every class the same number of items (to within one), in random order.

    Returns
    -------
    truth : (N,)
    """
    _check_count("n_items", "balanced_truth", n_items)
    _check_count("n_classes", "balanced_truth", n_classes)
    return np.random.default_rng(seed).permutation(np.arange(n_items, dtype=np.int64) % n_classes)


def bimodal_noise(n_classes: int = 10) -> Floats:
    """Give the paper's noise law over the classes: two bells, around classes 3 and 7.

    Hong et al., WWW 2021, section 5: centres 3 and 7, widths 1 and 0.5, read as standard
    deviations, each density evaluated at the class indices, their even mixture normalised.

    Returns
    -------
    law : (C,)
    """
    classes = np.arange(n_classes)
    # 1/2 N(3, 1) + 1/2 N(7, 0.5), up to a factor that the normalisation removes
    density = sum(
        np.exp(-0.5 * ((classes - centre) / width) ** 2) / width
        for centre, width in ((3.0, 1.0), (7.0, 0.5))
    )
    return np.asarray(density / np.sum(density))


def bimodal_crowd(
    truth: ArrayLike,
    n_workers: int = 10,
    noise_rate: float = 0.6,
    missing_rate: float = 0.1,
    spread: float = 0.0,
    *,
    n_classes: int = 10,
    seed: int = 0,
) -> Crowd:
    """Simulate the synthetic crowd of the paper on any vector of true classes.

    Every worker looks at every item. With probability `noise_rate` his label is drawn from
    `bimodal_noise`, whatever the truth (so it may hit it); otherwise it is the truth. Each
    label is then lost with probability `missing_rate`; an item that lost them all gets one
    back, of a worker drawn at random, so that every item can be aggregated.

    Parameters
    ----------
    truth
        (N,) true classes, integers from 0 to `n_classes` - 1. Their shares are the crowd's
        class prior.
    spread
        Half the range of noise rates over the workers: they lie evenly from
        `noise_rate` - `spread` to `noise_rate` + `spread`, in random order. 0, the paper's
        text, makes all alike; 0.22 is about what the authors' published rows show.

    Examples
    --------
    >>> crowd = bimodal_crowd(balanced_truth(10_992), seed=1)
    >>> print(f"wrong labels {np.mean(crowd.label != crowd.truth[crowd.item]):.0%}")
    wrong labels 54%
    >>> print(f"oracle error {oracle_error(crowd):.0%}")
    oracle error 9%
    """
    true_class = _check_truth(truth, n_classes)
    _check_count("n_workers", "bimodal_crowd", n_workers)
    for name, share in (("noise_rate", noise_rate), ("missing_rate", missing_rate)):
        if not 0 <= share <= 1:
            raise StateError(
                f"`{name}` of bimodal_crowd must be a number from 0 to 1. Got {share}."
            )
    if not 0 <= spread <= min(noise_rate, 1 - noise_rate):
        raise StateError(
            "`spread` of bimodal_crowd must be a number ≥ 0 that keeps every worker's noise rate "
            f"between 0 and 1 (`noise_rate` is {noise_rate}). Got {spread}."
        )
    rng = np.random.default_rng(seed)

    noise = noise_rate + spread * rng.permutation(_evenly(n_workers))  # (K,)
    confusion = (1 - noise)[:, None, None] * np.eye(n_classes)
    confusion = confusion + noise[:, None, None] * bimodal_noise(n_classes)

    kept = rng.random((true_class.size, n_workers)) >= missing_rate  # (N, K)
    bare = np.flatnonzero(~kept.any(axis=1))
    kept[bare, rng.integers(n_workers, size=bare.size)] = True
    item, worker = np.nonzero(kept)

    class_prior = np.bincount(true_class, minlength=n_classes) / true_class.size
    label = _draw_labels(rng, confusion, worker, true_class[item])
    return Crowd(item, worker, label, true_class, confusion, class_prior)


def class_conditional_crowd(
    n_items: int,
    n_workers: int,
    n_classes: int,
    labels_per_item: int,
    skill: tuple[float, float] = (0.5, 0.9),
    class_prior: ArrayLike | None = None,
    *,
    concentration: float = 20.0,
    seed: int = 0,
) -> Crowd:
    """Simulate workers who each have a confusion matrix of their own.

    Worker k has a skill s, uniform in the range `skill`; each row of his matrix is drawn from
    a Dirichlet law with mean s on the diagonal and (1 - s) / (C - 1) elsewhere. Every item is
    labelled by `labels_per_item` different workers, any such set as likely as any other.

    Parameters
    ----------
    skill
        Lowest and highest mean probability of a right label.
    class_prior
        (C,) law of the true classes; None makes all alike.
    concentration
        How closely a worker's rows keep to their mean (≥ 1): at 1 he is right about some
        classes and hopeless on others, at 1000 equally right about each.

    Examples
    --------
    >>> crowd = class_conditional_crowd(1000, 20, 4, labels_per_item=5, seed=1)
    >>> print(f"wrong labels {np.mean(crowd.label != crowd.truth[crowd.item]):.0%}")
    wrong labels 27%
    >>> print(f"oracle error {oracle_error(crowd):.1%}")
    oracle error 3.9%
    """
    where = "class_conditional_crowd"
    _check_count("n_items", where, n_items)
    _check_count("n_workers", where, n_workers)
    _check_count("n_classes", where, n_classes, least=2)
    _check_count("labels_per_item", where, labels_per_item)
    if labels_per_item > n_workers:
        raise StateError(
            f"`labels_per_item` of {where} must be at most `n_workers`, {n_workers}, because "
            f"a worker labels an item once. Got {labels_per_item}."
        )
    low, high = skill
    if not 0 <= low <= high <= 1:
        raise StateError(
            f"`skill` of {where} must be two numbers from 0 to 1, the lower first. Got {skill}."
        )
    if not concentration >= 1:
        raise StateError(f"`concentration` of {where} must be a number ≥ 1. Got {concentration}.")
    prior = _check_prior(class_prior, n_classes)
    rng = np.random.default_rng(seed)

    truth = rng.choice(n_classes, size=n_items, p=prior)  # (N,)
    worker_skill = rng.uniform(low, high, size=n_workers)[:, None, None]
    mean = np.where(np.eye(n_classes) > 0, worker_skill, (1 - worker_skill) / (n_classes - 1))
    # A Dirichlet draw is a row of gamma draws, normalised.
    gamma = rng.standard_gamma(concentration * mean)  # (K, C, C)
    confusion = gamma / gamma.sum(axis=2, keepdims=True)

    item = np.repeat(np.arange(n_items, dtype=np.int64), labels_per_item)
    worker = _draw_distinct(rng, n_items, n_workers, labels_per_item).ravel()
    label = _draw_labels(rng, confusion, worker, truth[item])
    return Crowd(item, worker, label, truth, confusion, prior)


def label_table(crowd: Crowd, *, text_ids: bool = True) -> LabelTable:
    """Give the labels as a table a person could have collected.

    Parameters
    ----------
    text_ids
        True names items "t0000", "t0001", … and workers "w00", "w01", …, padded so that text
        order is number order; False keeps the integers. Labels are integers either way.
    """
    item_ids, worker_ids = crowd.item.tolist(), crowd.worker.tolist()
    if text_ids:
        item_names = _names("t", crowd.truth.size)
        worker_names = _names("w", len(crowd.confusion))
        item_ids = [item_names[i] for i in item_ids]
        worker_ids = [worker_names[k] for k in worker_ids]
    return LabelTable(item_ids, worker_ids, crowd.label.tolist(), source="simulated crowd")


def chunks(
    crowd: Crowd, chunk_items: int, warmup_items: int = 0
) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Walk through a crowd as a stream: item, worker and label columns of whole items.

    Parameters
    ----------
    chunk_items
        Items in a chunk; the last one may have fewer.
    warmup_items
        Items in a first, larger chunk (the paper's initial set L*); 0 leaves it out.
    """
    _check_count("chunk_items", "chunks", chunk_items)
    _check_count("warmup_items", "chunks", warmup_items, least=0)
    n_items = crowd.truth.size
    starts = [0] if warmup_items else []
    starts += range(warmup_items, n_items, chunk_items)
    rows = np.searchsorted(crowd.item, [*starts, n_items])
    for start, stop in pairwise(rows):
        yield crowd.item[start:stop], crowd.worker[start:stop], crowd.label[start:stop]


def oracle_probs(crowd: Crowd) -> Floats:
    """Give P(truth | labels) by Bayes' rule with the true matrices and the true class prior.

    Returns
    -------
    probs : (N, C)
    """
    n_items, n_classes = crowd.truth.size, crowd.class_prior.size
    with np.errstate(divide="ignore"):  # what cannot happen has log-probability -inf
        log_confusion = np.log(crowd.confusion)
        log_prior = np.log(crowd.class_prior)
    log_joint = np.empty((n_items, n_classes))
    for c in range(n_classes):  # class by class: no (L, C) array at ten million labels
        evidence = log_confusion[crowd.worker, c, crowd.label]
        # log p(y = c, l) = log p(y = c) + sum over labels of log confusion[k, c, l]
        log_joint[:, c] = log_prior[c] + np.bincount(crowd.item, evidence, minlength=n_items)
    log_joint -= log_joint.max(axis=1, keepdims=True)
    probs = np.exp(log_joint)
    return np.asarray(probs / probs.sum(axis=1, keepdims=True))


def oracle(crowd: Crowd) -> Ints:
    """Give the most probable class of every item under `oracle_probs`, ties to the lowest.

    Returns
    -------
    aggregated : (N,)
    """
    return np.asarray(np.argmax(oracle_probs(crowd), axis=1))


def oracle_error(crowd: Crowd) -> float:
    """Give the share of items on which the oracle errs: the limit to quote beside a method."""
    return float(np.mean(oracle(crowd) != crowd.truth))


def _draw_labels(rng: np.random.Generator, confusion: Floats, worker: Ints, truth: Ints) -> Ints:
    """Draw a label from row `truth` of each worker's matrix; worker and truth are (L,)."""
    cumulative = np.cumsum(confusion, axis=2)
    cumulative /= cumulative[:, :, -1:]
    level = rng.random(worker.size)
    label = np.zeros(worker.size, dtype=np.int64)
    # Inverse of the cumulative law, class by class: no (L, C) array at ten million labels.
    for z in range(confusion.shape[2] - 1):
        label += level >= cumulative[worker, truth, z]
    return label


def _draw_distinct(rng: np.random.Generator, n_rows: int, n: int, size: int) -> Ints:
    """Draw `size` different numbers below n for each row, sorted: (n_rows, size).

    Floyd's algorithm (Bentley and Floyd, CACM 1987), all rows at once.
    """
    drawn = np.empty((size, n_rows), dtype=np.int64)
    for column, bound in enumerate(range(n - size, n)):
        pick = rng.integers(bound + 1, size=n_rows)
        taken = (drawn[:column] == pick).any(axis=0)
        drawn[column] = np.where(taken, bound, pick)
    return np.sort(drawn.T, axis=1)


def _evenly(n: int) -> Floats:
    """Space n numbers evenly from -1 to 1; a single one is 0."""
    return np.linspace(-1.0, 1.0, n) if n > 1 else np.zeros(n)


def _names(letter: str, n: int) -> list[str]:
    width = len(str(n - 1))
    return [f"{letter}{index:0{width}d}" for index in range(n)]


def _check_count(name: str, where: str, value: int, least: int = 1) -> None:
    if value < least:
        raise StateError(f"`{name}` of {where} must be a whole number ≥ {least}. Got {value}.")


def _check_truth(truth: ArrayLike, n_classes: int) -> Ints:
    given = np.asarray(truth)
    whole = given.ndim == 1 and given.size > 0 and np.issubdtype(given.dtype, np.integer)
    if not whole or given.min() < 0 or given.max() >= n_classes:
        raise StateError(
            "`truth` of bimodal_crowd must be a vector of at least one class, each a whole number "
            f"from 0 to {n_classes - 1}. Got {truth!r:.60}; more classes need `n_classes`."
        )
    return given.astype(np.int64)


def _check_prior(class_prior: ArrayLike | None, n_classes: int) -> Floats:
    if class_prior is None:
        return np.full(n_classes, 1 / n_classes)
    prior = np.asarray(class_prior, dtype=np.float64)
    if prior.shape != (n_classes,) or not np.all(prior >= 0) or not np.isclose(prior.sum(), 1):
        raise StateError(
            f"`class_prior` of class_conditional_crowd must be {n_classes} numbers ≥ 0 with sum 1. "
            f"Got {class_prior!r:.60}."
        )
    return np.asarray(prior / prior.sum())
