"""Seeded crowds with known truth and known confusion matrices.

A crowd is made in three steps that know nothing of one another: who labels which item, what
each worker's confusion matrix is, and the draw of the labels from those matrices. The
generators differ in the first two; their workers are honest, and `roles.py` turns some of them
into others. `oracle.py` says what the best could make of the labels.
"""

from collections.abc import Sequence
from typing import Literal, get_args
from zlib import crc32

import numpy as np
from numpy.typing import ArrayLike

from labelquorum._types import Floats, Ints
from labelquorum.errors import StateError
from labelquorum.evaluation.simulate.oracle import (
    Crowd,
)

TRIES = 50  # draws before a race decides
RACERS = 1 << 22  # numbers in one block of a race

MissingPattern = Literal["random", "halves"]

PUBLISHED_WRONG = (0.534, 0.498, 0.545, 0.676, 0.365, 0.672, 0.410, 0.704, 0.513, 0.519)
"""The share of wrong labels of each worker in the file that the paper's authors published: in rows
0–63, 959–1,021, 11,954–12,016 and 35,857–35,919 of its 50,000, 222 to 244 labels of each."""

SHRINKAGE = 0.9
"""By this factor those rates are drawn towards their mean: so few labels exaggerate how workers
differ. A share has a standard error of 0.033, the ten have a standard deviation of 0.106, and
1 − 0.033²/0.106² = 0.90."""


def balanced_truth(n_items: int, n_classes: int = 10, *, seed: int = 0) -> Ints:
    """Give every class the same number of items (to within one), in random order.

    Returns
    -------
    truth : (N,)
    """
    check_count("n_items", "balanced_truth", n_items)
    check_count("n_classes", "balanced_truth", n_classes)
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


def published_noise_rates(n_workers: int = 10, mean: float = 0.6) -> Floats:
    """Give noise rates that differ from worker to worker as in the file the authors published.

    They follow from the shares of wrong labels of its ten workers: noise hits the truth of ten
    balanced classes one time in ten, so a worker with noise rate r is wrong with probability 0.9 r.
    They are shrunk to their mean by 0.9, because some 250 rows exaggerate how far workers differ,
    and moved to the mean that is asked for; if one would leave [0, 1] then, all are shrunk further.

    Parameters
    ----------
    n_workers
        Fewer than ten are the first of them; after ten they begin again.
    mean
        The mean noise rate.

    Returns
    -------
    noise_rates : (K,) in order of the workers

    Examples
    --------
    >>> print(published_noise_rates().round(2).tolist())
    [0.59, 0.55, 0.6, 0.73, 0.42, 0.73, 0.47, 0.76, 0.57, 0.58]
    """
    check_count("n_workers", "published_noise_rates", n_workers)
    check_share("mean", "published_noise_rates", mean)
    rates = np.resize(np.array(PUBLISHED_WRONG) / (1 - 1 / 10), n_workers)
    off = SHRINKAGE * (rates - rates.mean())
    room = np.where(off > 0, 1 - mean, mean)
    fits = np.min(np.divide(room, np.abs(off), np.ones(n_workers), where=off != 0), initial=1.0)
    return np.asarray(np.clip(mean + fits * off, 0, 1))  # against rounding alone


def bimodal_crowd(
    truth: ArrayLike,
    n_workers: int = 10,
    noise_rate: float | Sequence[float] | Floats = 0.6,
    missing_rate: float = 0.1,
    spread: float = 0.0,
    *,
    missing_pattern: MissingPattern = "random",
    n_classes: int = 10,
    seed: int = 0,
) -> Crowd:
    """Simulate the synthetic crowd of the paper on any vector of true classes.

    Every worker looks at every item. With probability `noise_rate` their label is drawn from
    `bimodal_noise`, whatever the truth (so it may hit it); otherwise it is the truth. Each
    label is then lost with probability `missing_rate`; an item that lost them all gets one
    back, of a worker drawn at random, so that every item can be aggregated.

    Parameters
    ----------
    truth
        (N,) true classes, integers from 0 to `n_classes` - 1. Their shares are the crowd's
        class prior.
    noise_rate
        One for all workers, or a list of one per worker, such as `published_noise_rates()`.
    spread
        Half the range of noise rates over the workers: they lie evenly from
        `noise_rate` - `spread` to `noise_rate` + `spread`, in random order. 0, the paper's
        text, makes all alike; `published_noise_rates` are what the authors' file shows. It needs
        one noise rate for all.
    missing_pattern
        "random" loses any label. "halves", as in the file the authors published, loses labels of
        workers 0, 2, 4, … in the first half of the items only and of workers 1, 3, 5, … in the
        second half only, each with twice the `missing_rate`.

    Examples
    --------
    >>> from labelquorum.evaluation import oracle_error
    >>> crowd = bimodal_crowd(balanced_truth(10_992), seed=1)
    >>> print(f"wrong labels {np.mean(crowd.label != crowd.truth[crowd.item]):.0%}")
    wrong labels 54%
    >>> print(f"oracle error {oracle_error(crowd):.0%}")
    oracle error 9%
    """
    true_class = _check_truth(truth, n_classes)
    check_count("n_workers", "bimodal_crowd", n_workers)
    centre = _check_noise(noise_rate, n_workers, spread)
    check_share("missing_rate", "bimodal_crowd", missing_rate)
    if missing_pattern not in get_args(MissingPattern):
        raise StateError(
            f"`missing_pattern` of bimodal_crowd must be one of {list(get_args(MissingPattern))}. "
            f"Got {missing_pattern!r}."
        )
    if missing_pattern == "halves" and missing_rate > 0.5:
        raise StateError(
            "`missing_rate` of bimodal_crowd must be at most 0.5 with missing_pattern='halves', "
            f"which takes twice as many labels from half of the items. Got {missing_rate}."
        )
    rng = np.random.default_rng(seed)

    noise = centre + spread * rng.permutation(_evenly(n_workers))  # (K,)
    confusion = (1 - noise)[:, None, None] * np.eye(n_classes)
    confusion = confusion + noise[:, None, None] * bimodal_noise(n_classes)

    lost: float | Floats = missing_rate
    if missing_pattern == "halves":
        first_half = 2 * np.arange(true_class.size) < true_class.size
        lost = 2 * missing_rate * (first_half[:, None] == (np.arange(n_workers) % 2 == 0))
    kept = rng.random((true_class.size, n_workers)) >= lost  # (N, K)
    bare = np.flatnonzero(~kept.any(axis=1))
    kept[bare, rng.integers(n_workers, size=bare.size)] = True
    item, worker = np.nonzero(kept)

    class_prior = np.bincount(true_class, minlength=n_classes) / true_class.size
    label = draw_labels(rng, confusion, worker, true_class[item])
    return Crowd(item, worker, label, true_class, confusion, class_prior)


def one_coin_crowd(
    n_items: int,
    n_workers: int,
    n_classes: int,
    labels_per_item: int,
    skill: tuple[float, float] = (0.5, 0.9),
    class_prior: ArrayLike | None = None,
    *,
    participation: float = 0.0,
    seed: int = 0,
) -> Crowd:
    """Simulate workers who each have one number: how often they are right, whatever the truth.

    Worker k is right with probability s, uniform in the range `skill`. Errors fall on every
    wrong class alike.

    Parameters
    ----------
    skill
        Lowest and highest probability of a right label.
    class_prior
        (C,) law of the true classes; None makes all alike.
    participation
        How unequally the work is shared, as in `class_conditional_crowd`.

    Examples
    --------
    >>> from labelquorum.evaluation import oracle_error
    >>> crowd = one_coin_crowd(1000, 20, 4, labels_per_item=5, seed=1)
    >>> print(f"oracle error {oracle_error(crowd):.1%}")
    oracle error 5.9%
    """
    where = "one_coin_crowd"
    _check_sizes(where, n_items, n_workers, n_classes, labels_per_item, participation)
    _check_skill(where, skill)
    prior = _check_prior(where, class_prior, n_classes)
    rng = np.random.default_rng(seed)
    truth = rng.choice(n_classes, size=n_items, p=prior)  # (N,)
    confusion = _one_coin(rng.uniform(*skill, size=n_workers), n_classes)
    return _draw_crowd(rng, truth, confusion, prior, labels_per_item, participation)


def class_conditional_crowd(
    n_items: int,
    n_workers: int,
    n_classes: int,
    labels_per_item: int,
    skill: tuple[float, float] = (0.5, 0.9),
    class_prior: ArrayLike | None = None,
    *,
    concentration: float = 20.0,
    participation: float = 0.0,
    seed: int = 0,
) -> Crowd:
    """Simulate workers who each have a confusion matrix of their own.

    Worker k has a skill s, uniform in the range `skill`; each row of their matrix is drawn from
    a Dirichlet law with mean s on the diagonal and (1 - s) / (C - 1) elsewhere. Every item is
    labelled by `labels_per_item` different workers, any such set as likely as any other.

    Parameters
    ----------
    skill
        Lowest and highest mean probability of a right label.
    class_prior
        (C,) law of the true classes; None makes all alike.
    concentration
        How closely a worker's rows keep to their mean (≥ 1): at 1 a worker is right about
        some classes and hopeless on others, at 1000 equally right about each.
    participation
        How unequally the work is shared (≥ 0): an item's workers are drawn by the weights
        r^-participation, r = 1 … K being their ranks, in random order. 0 makes all alike; at 1,
        Zipf's law, a few give most of the labels. No pair of worker and item occurs twice, so the
        labels of the busiest level off at `n_items`.

    Examples
    --------
    >>> from labelquorum.evaluation import oracle_error
    >>> crowd = class_conditional_crowd(1000, 20, 4, labels_per_item=5, seed=1)
    >>> print(f"wrong labels {np.mean(crowd.label != crowd.truth[crowd.item]):.0%}")
    wrong labels 27%
    >>> print(f"oracle error {oracle_error(crowd):.1%}")
    oracle error 3.9%
    """
    where = "class_conditional_crowd"
    _check_sizes(where, n_items, n_workers, n_classes, labels_per_item, participation)
    _check_skill(where, skill)
    if not concentration >= 1:
        raise StateError(f"`concentration` of {where} must be a number ≥ 1. Got {concentration}.")
    prior = _check_prior(where, class_prior, n_classes)
    rng = np.random.default_rng(seed)

    truth = rng.choice(n_classes, size=n_items, p=prior)  # (N,)
    mean = _one_coin(rng.uniform(*skill, size=n_workers), n_classes)
    # A Dirichlet draw is a row of gamma draws, normalised.
    gamma = rng.standard_gamma(concentration * mean)  # (K, C, C)
    confusion = gamma / gamma.sum(axis=2, keepdims=True)
    return _draw_crowd(rng, truth, confusion, prior, labels_per_item, participation)


def ordinal_crowd(
    n_items: int,
    n_workers: int,
    n_classes: int,
    labels_per_item: int,
    width: tuple[float, float] = (0.4, 1.2),
    class_prior: ArrayLike | None = None,
    *,
    bias: float = 0.3,
    participation: float = 0.0,
    seed: int = 0,
) -> Crowd:
    """Simulate workers who grade on a scale: the nearer a class to the truth, the likelier.

    Worker k says z of an item of class c with a probability proportional to
    exp(-(z - c - b)² / 2 w²). The width w is uniform in the range `width`; the bias b is normal
    with mean 0 and standard deviation `bias`: some are strict, some are lenient.

    Parameters
    ----------
    width
        Lowest and highest width (> 0), in classes: at 0.4 a worker is nearly always right, at
        1.2 right one time in three and seldom off by more than two.
    class_prior
        (C,) law of the true classes; None makes all alike.
    participation
        How unequally the work is shared, as in `class_conditional_crowd`.

    Examples
    --------
    >>> from labelquorum.evaluation import oracle_error
    >>> crowd = ordinal_crowd(1000, 20, 5, labels_per_item=5, seed=1)
    >>> off = np.abs(crowd.label - crowd.truth[crowd.item])
    >>> print(f"wrong labels {np.mean(off > 0):.0%}, by more than one class {np.mean(off > 1):.0%}")
    wrong labels 48%, by more than one class 6%
    >>> print(f"oracle error {oracle_error(crowd):.1%}")
    oracle error 17.8%
    """
    where = "ordinal_crowd"
    _check_sizes(where, n_items, n_workers, n_classes, labels_per_item, participation)
    if not 0 < width[0] <= width[1] < np.inf:
        raise StateError(
            f"`width` of {where} must be two numbers > 0, the lower first. Got {width}."
        )
    if not 0 <= bias < np.inf:
        raise StateError(f"`bias` of {where} must be a number ≥ 0. Got {bias}.")
    prior = _check_prior(where, class_prior, n_classes)
    rng = np.random.default_rng(seed)

    truth = rng.choice(n_classes, size=n_items, p=prior)  # (N,)
    worker_width = rng.uniform(*width, size=n_workers)[:, None, None]
    worker_bias = rng.normal(0, bias, size=n_workers)[:, None, None]
    classes = np.arange(n_classes)
    off = classes - classes[:, None] - worker_bias  # (K, C, C)
    log_confusion = -0.5 * (off / worker_width) ** 2
    confusion = np.exp(log_confusion - log_confusion.max(axis=2, keepdims=True))
    confusion /= confusion.sum(axis=2, keepdims=True)
    return _draw_crowd(rng, truth, confusion, prior, labels_per_item, participation)


def _one_coin(skill: Floats, n_classes: int) -> Floats:
    """Matrices (K, C, C) with a skill on the diagonal, and what is left spread evenly beside it."""
    right = skill[:, None, None]
    return np.where(np.eye(n_classes) > 0, right, (1 - right) / (n_classes - 1))


def _draw_crowd(
    rng: np.random.Generator,
    truth: Ints,
    confusion: Floats,
    class_prior: Floats,
    labels_per_item: int,
    participation: float,
) -> Crowd:
    """Draw who labels which item, then the labels."""
    item = np.repeat(np.arange(truth.size, dtype=np.int64), labels_per_item)
    worker = draw_workers(rng, truth.size, len(confusion), labels_per_item, participation).ravel()
    label = draw_labels(rng, confusion, worker, truth[item])
    return Crowd(item, worker, label, truth, confusion, class_prior)


def _evenly(n: int) -> Floats:
    """Space n numbers evenly from -1 to 1; a single one is 0."""
    return np.linspace(-1.0, 1.0, n) if n > 1 else np.zeros(n)


def _check_sizes(
    where: str,
    n_items: int,
    n_workers: int,
    n_classes: int,
    labels_per_item: int,
    participation: float,
) -> None:
    check_count("n_items", where, n_items)
    check_count("n_workers", where, n_workers)
    check_count("n_classes", where, n_classes, least=2)
    check_count("labels_per_item", where, labels_per_item)
    if labels_per_item > n_workers:
        raise StateError(
            f"`labels_per_item` of {where} must be at most `n_workers`, {n_workers}, because "
            f"each item gets one label per worker. Got {labels_per_item}."
        )
    if not 0 <= participation < np.inf:
        raise StateError(f"`participation` of {where} must be a number ≥ 0. Got {participation}.")


def _check_skill(where: str, skill: tuple[float, float]) -> None:
    low, high = skill
    if not 0 <= low <= high <= 1:
        raise StateError(
            f"`skill` of {where} must be two numbers from 0 to 1, the lower first. Got {skill}."
        )


def _check_noise(
    noise_rate: float | Sequence[float] | Floats, n_workers: int, spread: float
) -> float | Floats:
    """Give the noise rate of all, or those of the workers, (K,)."""
    rule = f"a number from 0 to 1, or one for each of the {n_workers} workers"
    wrong = StateError(f"`noise_rate` of bimodal_crowd must be {rule}. Got {noise_rate!r:.60}.")
    try:
        rates = np.asarray(noise_rate, np.float64)
    except (TypeError, ValueError):
        raise wrong from None
    if rates.ndim:
        if rates.shape != (n_workers,) or not np.all((rates >= 0) & (rates <= 1)):
            raise wrong
        if spread:
            raise StateError(
                "`spread` of bimodal_crowd must be 0 where `noise_rate` has one rate per worker. "
                f"Got {spread}."
            )
        return rates
    rate = float(rates)
    check_share("noise_rate", "bimodal_crowd", rate)
    if not 0 <= spread <= min(rate, 1 - rate):
        raise StateError(
            "`spread` of bimodal_crowd must be a number ≥ 0 that keeps every worker's noise rate "
            f"between 0 and 1 (`noise_rate` is {rate}). Got {spread}."
        )
    return rate


def _check_truth(truth: ArrayLike, n_classes: int) -> Ints:
    given = np.asarray(truth)
    whole = given.ndim == 1 and given.size > 0 and np.issubdtype(given.dtype, np.integer)
    if not whole or given.min() < 0 or given.max() >= n_classes:
        raise StateError(
            "`truth` of bimodal_crowd must be a vector of at least one class, each a whole number "
            f"from 0 to {n_classes - 1}. Got {truth!r:.60}; more classes need `n_classes`."
        )
    return given.astype(np.int64)


def _check_prior(where: str, class_prior: ArrayLike | None, n_classes: int) -> Floats:
    if class_prior is None:
        return np.full(n_classes, 1 / n_classes)
    prior = np.asarray(class_prior, dtype=np.float64)
    if prior.shape != (n_classes,) or not np.all(prior >= 0) or not np.isclose(prior.sum(), 1):
        raise StateError(
            f"`class_prior` of {where} must be {n_classes} numbers ≥ 0 with sum 1. "
            f"Got {class_prior!r:.60}."
        )
    return np.asarray(prior / prior.sum())


# ── draws, all rows at once ──────────────────────────────────────────────────────────────────
# Ten million labels are drawn together: nothing is as large as items × workers or labels × classes.


def generator(seed: int, purpose: str, turn: int = 0) -> np.random.Generator:
    """Give random numbers of their own to each purpose, so that seeds may be the same.

    A crowd and what is done to it later may have one seed. Were the numbers the same too, labels
    that should be independent would not be.
    """
    return np.random.default_rng([seed, crc32(purpose.encode()), turn])


def draw_labels(rng: np.random.Generator, confusion: Floats, worker: Ints, truth: Ints) -> Ints:
    """Draw a label from row `truth` of each worker's matrix; worker and truth are (L,)."""
    cumulative = np.cumsum(confusion, axis=2)
    cumulative /= cumulative[:, :, -1:]
    level = rng.random(worker.size)
    label = np.zeros(worker.size, dtype=np.int64)
    # Inverse of the cumulative law, class by class: no (L, C) array at ten million labels.
    for z in range(confusion.shape[2] - 1):
        label += level >= cumulative[worker, truth, z]
    return label


def draw_workers(
    rng: np.random.Generator, n_items: int, n_workers: int, size: int, participation: float
) -> Ints:
    """Draw `size` different workers for each item, sorted: (N, size).

    The worker of rank r has the weight r^-participation; who has which rank is drawn. An item's
    workers are drawn one after the other by weight, each from those who are left.
    """
    if participation == 0:
        return draw_distinct(rng, n_items, n_workers, size)
    log_weight = -participation * np.log(rng.permutation(np.arange(1.0, n_workers + 1)))
    return _draw_weighted(rng, log_weight, n_items, size)


def draw_distinct(rng: np.random.Generator, n_rows: int, n: int, size: int) -> Ints:
    """Draw `size` different numbers below n for each row, sorted: (n_rows, size).

    Floyd's algorithm (Bentley and Floyd, CACM 1987), all rows at once.
    """
    drawn = np.empty((size, n_rows), dtype=np.int64)
    for column, bound in enumerate(range(n - size, n)):
        pick = rng.integers(bound + 1, size=n_rows)
        taken = (drawn[:column] == pick).any(axis=0)
        drawn[column] = np.where(taken, bound, pick)
    return np.sort(drawn.T, axis=1)


def check_count(name: str, where: str, value: int, least: int = 1) -> None:
    """Refuse what is no count."""
    if value < least:
        raise StateError(f"`{name}` of {where} must be a whole number ≥ {least}. Got {value}.")


def check_share(name: str, where: str, value: float) -> None:
    """Refuse what is no share or probability."""
    if not 0 <= value <= 1:
        raise StateError(f"`{name}` of {where} must be a number from 0 to 1. Got {value}.")


def _draw_weighted(rng: np.random.Generator, log_weight: Floats, n_rows: int, size: int) -> Ints:
    """Draw different numbers by weight, each from those that are left, sorted: (n_rows, size)."""
    level = np.cumsum(np.exp(log_weight - log_weight.max()))
    level /= level[-1]
    drawn = np.empty((size, n_rows), dtype=np.int64)
    for column in range(size):
        # To draw from all and try again is to draw from those that are left.
        left = np.arange(n_rows)
        for _ in range(TRIES):
            pick = np.searchsorted(level, rng.random(left.size), side="right")
            drawn[column, left] = pick
            left = left[(drawn[:column, left] == pick).any(axis=0)]
            if not left.size:
                break
        # So is a race: the first of exponential times whose rates are the weights.
        for start in range(0, left.size, rows := max(1, RACERS // log_weight.size)):
            racing = left[start : start + rows]
            time = rng.standard_exponential((racing.size, log_weight.size))
            log_time = np.log(time, out=time) - log_weight
            np.put_along_axis(log_time, drawn[:column, racing].T, np.inf, axis=1)
            drawn[column, racing] = log_time.argmin(axis=1)
    return np.sort(drawn.T, axis=1)
