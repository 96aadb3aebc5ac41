"""The crowds that calibration and the guard are measured on, each kind drawn by a seed.

`KINDS` are crowds whose majority is sound: 16 kinds that differ in dependence, difficulty, roles,
sparsity and skew. `draw_jury` draws juries of judges who err together, with or without tasks that
mislead most of them.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from labelquorum.evaluation import (
    Crowd,
    class_conditional_crowd,
    one_coin_crowd,
    ordinal_crowd,
    with_adversaries,
    with_bots,
    with_drifters,
    with_judges,
    with_ring,
    with_sleepers,
    with_spammers,
)
from labelquorum.evaluation.simulate.crowds import draw_labels, draw_workers

N_ITEMS = 2000


def _shuffled(crowd: Crowd, seed: int) -> Crowd:
    """The same crowd with its items in random order: what changed with time is then difficulty."""
    place = np.random.default_rng(seed).permutation(crowd.truth.size)
    truth = np.empty_like(crowd.truth)
    truth[place] = crowd.truth
    item = place[crowd.item]
    rows = np.argsort(item, kind="stable")
    return crowd._replace(
        item=item[rows], worker=crowd.worker[rows], label=crowd.label[rows], truth=truth
    )


def _plain(seed: int) -> Crowd:
    rng = np.random.default_rng(seed)
    sizes = int(rng.choice([20, 40, 80])), int(rng.choice([2, 3, 4])), int(rng.choice([5, 7]))
    return one_coin_crowd(N_ITEMS, *sizes, skill=(0.55, 0.9), seed=seed)


def _own_matrices(seed: int) -> Crowd:
    rng = np.random.default_rng(seed)
    sizes = int(rng.choice([20, 40, 80])), int(rng.choice([2, 3, 4])), int(rng.choice([5, 7]))
    spread = float(rng.choice([5, 20]))
    return class_conditional_crowd(
        N_ITEMS, *sizes, skill=(0.55, 0.9), concentration=spread, seed=seed
    )


def _graded(seed: int) -> Crowd:
    return ordinal_crowd(N_ITEMS, 40, 5, labels_per_item=5, width=(0.4, 1.0), seed=seed)


def _skewed(seed: int) -> Crowd:
    share = float(np.random.default_rng(seed).choice([0.8, 0.9, 0.95]))
    prior = [share, 1 - share]
    return one_coin_crowd(N_ITEMS, 60, 2, 5, skill=(0.6, 0.95), class_prior=prior, seed=seed)


def _sparse(seed: int) -> Crowd:
    per_item = 2 + seed % 2
    return class_conditional_crowd(N_ITEMS, 40, 3, per_item, skill=(0.6, 0.95), seed=seed)


def _many_classes(seed: int) -> Crowd:
    return class_conditional_crowd(N_ITEMS, 30, 10 + 10 * (seed % 2), 5, seed=seed)


def _biased(seed: int) -> Crowd:
    """With probability r_k a label follows a law that all workers share, as in the paper."""
    rng = np.random.default_rng(seed)
    n_classes, n_workers = 4, 20
    noise = rng.uniform(0.2, 0.7, n_workers)[:, None, None]
    confusion = (1 - noise) * np.eye(n_classes) + noise * rng.dirichlet(np.full(n_classes, 0.7))
    prior = np.full(n_classes, 1 / n_classes)
    truth = rng.choice(n_classes, N_ITEMS, p=prior)
    item = np.repeat(np.arange(N_ITEMS), 6)
    worker = draw_workers(rng, N_ITEMS, n_workers, 6, 0.0).ravel()
    label = draw_labels(rng, confusion, worker, truth[item])
    return Crowd(item, worker, label, truth, confusion, prior)


def _heavy_tailed(seed: int) -> Crowd:
    return class_conditional_crowd(
        N_ITEMS, 150, 3, 5, skill=(0.55, 0.95), participation=1.0, seed=seed
    )


def _small(seed: int) -> Crowd:
    return class_conditional_crowd(400, 6, 3, labels_per_item=4, skill=(0.6, 0.9), seed=seed)


def _spammers(seed: int) -> Crowd:
    crowd = with_spammers(one_coin_crowd(N_ITEMS, 40, 3, 6, (0.6, 0.95), seed=seed), 0.2, seed=seed)
    return with_bots(crowd, 0.1, seed=seed)


def _ring(seed: int) -> Crowd:
    crowd = one_coin_crowd(N_ITEMS, 40, 3, 6, (0.6, 0.95), seed=seed)
    return with_ring(crowd, 0.1, 0.5, seed=seed)


def _sleepers(seed: int) -> Crowd:
    crowd = one_coin_crowd(N_ITEMS, 40, 3, 6, (0.6, 0.95), seed=seed)
    crowd = with_adversaries(crowd, 0.05, seed=seed)
    return with_sleepers(crowd, 0.2, seed=seed)


def _drifting(seed: int) -> Crowd:
    crowd = class_conditional_crowd(N_ITEMS, 40, 3, 6, (0.6, 0.95), seed=seed)
    return with_drifters(crowd, 0.4, 0.7, seed=seed)


def _difficult(seed: int) -> Crowd:
    amount = float(np.random.default_rng(seed).choice([0.5, 0.8]))
    crowd = class_conditional_crowd(N_ITEMS, 60, 3, 5, (0.7, 0.95), seed=seed)
    return _shuffled(with_drifters(crowd, 1.0, amount, seed=seed), seed)


def _copying(seed: int) -> Crowd:
    """A third of the workers copy: they often give an answer they have in common."""
    crowd = one_coin_crowd(N_ITEMS, 30, 3, 5, (0.6, 0.9), seed=seed)
    return with_judges(crowd, 1 / 3, 0.3, seed=seed)


def _judges(seed: int) -> Crowd:
    rng = np.random.default_rng(seed)
    n_judges = int(rng.choice([6, 12, 24]))
    crowd = one_coin_crowd(N_ITEMS, n_judges, 2, n_judges, (0.65, 0.9), seed=seed)
    return with_judges(crowd, 1.0, float(rng.choice([0.05, 0.1, 0.2])), seed=seed)


KINDS: dict[str, Callable[[int], Crowd]] = {
    "one coin per worker": _plain,
    "a matrix per worker": _own_matrices,
    "grades on a scale of 5": _graded,
    "skewed classes": _skewed,
    "2 or 3 labels per task": _sparse,
    "10 or 20 classes": _many_classes,
    "workers with a shared bias": _biased,
    "few workers do most": _heavy_tailed,
    "6 workers, 400 tasks": _small,
    "spammers and bots": _spammers,
    "a ring": _ring,
    "sleepers and adversaries": _sleepers,
    "drifting workers": _drifting,
    "tasks of unequal difficulty": _difficult,
    "a third copies": _copying,
    "judges who err together": _judges,
}
"""Crowds by name; the seed draws everything."""


class Jury(NamedTuple):
    """Judges and what is true of them."""

    crowd: Crowd
    mean_accuracy: float  # the share of right labels


def draw_jury(seed: int, sound: bool) -> Jury:
    """Judges who see every task and err together, because the same surface appeals to them.

    A task has a strength a_i with which one of two answers appeals. Judge k is right with
    probability σ(c_k ± s_k a_i + z_{g(k), i}): competence c_k, susceptibility s_k, and what the
    judges of one model g have in common. A judge's label leans to one class by b_k. The sign is
    minus where the wrong answer appeals: on at most 15 % of the tasks of a sound jury, and on 85 %
    or more where tasks were chosen to mislead. More competent models are less susceptible.
    """
    rng = np.random.default_rng(seed)
    n_judges, n_items = int(rng.choice([12, 24, 60, 130])), int(rng.choice([50, 100, 200, 400]))
    n_models = int(rng.choice([4, 6, 8]))
    model = rng.integers(n_models, size=n_judges)
    strong = rng.random(n_models)[model]
    competence = rng.uniform(1.0, 2.5) * strong + rng.normal(0, 0.3, n_judges)
    susceptible = rng.uniform(1.0, 2.5) * (1 - strong) + np.abs(rng.normal(0, 0.3, n_judges))
    bias = rng.normal(0, rng.uniform(0, 0.6), n_judges)
    appeal = rng.exponential(1.0, n_items)
    misleading = rng.random(n_items) < (rng.uniform(0, 0.15) if sound else rng.uniform(0.85, 1.0))
    common = rng.uniform(0.3, 1.0) * rng.normal(size=(n_items, n_models))[:, model]
    truth = rng.integers(2, size=n_items)
    leaning = np.where(truth == 1, 1, -1)[:, None] * bias
    pull = np.where(misleading, -appeal, appeal)[:, None] * susceptible
    log_odds = competence + pull + common + leaning
    right = rng.random((n_items, n_judges)) < 1 / (1 + np.exp(-log_odds))
    said = np.where(right, truth[:, None], 1 - truth[:, None])
    item, worker = np.nonzero(rng.random((n_items, n_judges)) < 0.99)
    matrices = np.full((n_judges, 2, 2), 0.5)  # nobody reads what is true of these judges
    crowd = Crowd(item, worker, said[item, worker], truth, matrices, np.array([0.5, 0.5]))
    return Jury(crowd, float(right.mean()))
