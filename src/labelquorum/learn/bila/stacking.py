"""Stacking: what gold says of each worker beyond the worker models, learned on gold tasks alone.

The worker models see gold as n tasks among N, so N − n tasks without truth can outvote it: a jury
that is wrong together swaps the classes, however good its few gold labels are. A stack asks gold
alone. Of each class c it learns the log-odds that it is the truth, one against the rest:

    f_c(i) = τ_c s_c(i) + β_c + Σ_b x_b · w_c[worker of b]

s_c are the log-odds of the worker models, x_b is label b as standardised indicators of the classes,
and where labels have scores or workers have a model, its score and the sum of x over the workers of
one model are features too. This is logistic regression with a normal prior, w ~ N(0, v), around
the answer of the worker models at a temperature (τ_c ~ N(0.3, 0.15)): ridge-logistic stacking.
Where gold says nothing of a task's workers, the class answered stays theirs. The answer is

    log p_c(i) = τ log q_c(i) + ½ (β_c + Σ_b x_b · w_c[worker of b]) + a constant

with the q of the worker models and one τ: a sum of what labels say, so that it can be explained. Of
two classes that is f itself; of more, two that compete gain on each other what f says of both.

How far to go (v, which features) is chosen by the evidence p(gold), which is the product of the
probabilities of each gold label given those before it: how well gold is predicted that was not
seen. One of the readings is the worker models alone at several temperatures; the more gold tasks a
worker has, the less probable it is a priori. The weights of all readings, each by its evidence, are
averaged, so a stack is one set of weights.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.ingest.chunks import Chunk
from labelquorum.learn.bila.gold import GoldTasks, vote_weights
from labelquorum.learn.bila.laplace import Covariance, Fit, laplace, log_evidence

RANDOM, SELECTED = "random", "selected"
"""How gold tasks were drawn: at random, or by what they are, such as disputed ones."""

TEMPERATURES = (0.25, 0.5, 1.0, 1.5)
"""τ of the readings that keep to the worker models."""

VARIANCES = (1.0, 4.0, 16.0, 64.0)
"""v: the variance of what a task's labels add to its log-odds."""

FEW_TASKS = 15.0
"""Gold tasks per worker with which the worker models alone are as likely to answer best, a priori,
as with what gold says of their workers."""

SLOPE, SLOPE_VARIANCE, BIAS_VARIANCE = 0.3, 0.15, 0.1
"""τ beside what gold says of workers, its variance, and that of β. Below 1: worker models whose
answers gold corrects are surer than they are right."""

MIXES: Sequence[tuple[tuple[str, float], ...]] = (
    (("votes", 1.0),),
    (("votes", 0.3), ("groups", 0.7)),
    (("votes", 0.3), ("scores", 0.7)),
    (("votes", 0.15), ("groups", 0.45), ("scores", 0.4)),
)
"""Shares of the variance v that features have."""

SCREENED_TASKS, MAX_READINGS, MAX_SCREENED_CLASSES = 128, 3, 3
"""All readings are fitted to at most 128 tasks and 3 classes, and the best three to all tasks."""

MAX_CELLS = 2_000_000
"""Workers × classes² of a stack at the most; with more, the worker models are kept to."""

SCORE_STRENGTH = 2.0
"""Weight of all judges' mean and spread of scores in those of one, in scores."""

GROWTH = 1.05
"""A stack is fitted again once gold has grown by this factor, so that its cost per gold task does
not grow with their number."""

MIN_TASKS = 5
"""Gold tasks from which on there is a stack: one or two say more of chance than of workers."""

MIN_SLOPE = TEMPERATURES[0]
"""τ at least, of tasks none of whose workers has gold: what gold says of others, such as that they
mislead, must not turn the answers of these over."""

HALF = 0.5
"""Of the log-odds of a class against the rest: with two classes, the other one loses as much."""


class Stack(NamedTuple):
    """What was learned, by keys; U workers, V models of workers, G gold tasks."""

    workers: NDArray[np.uint64]  # (U,) ascending
    votes: NDArray[np.float64]  # (U, C, C): what worker u adds to log p_c by saying z, [u, z, c]
    groups: NDArray[np.uint64]  # (V,) ascending
    group_votes: NDArray[np.float64]  # (V, C, C) likewise
    scores: NDArray[np.float64]  # (U, 2 + C): mean and spread, and the weight for each class
    slope: NDArray[np.float64]  # τ ()
    bias: NDArray[np.float64]  # (C,)
    seen: NDArray[np.int64]  # () gold tasks learned from when it was fitted
    tasks: NDArray[np.uint64]  # (G,) the gold tasks it was fitted to
    truth: NDArray[np.int32]  # (G,) and their classes

    @classmethod
    def read(cls, arrays: Mapping[str, NDArray[Any]]) -> "Stack | None":
        """That of a state; None where there was no gold."""
        return cls(**{name: arrays[name] for name in cls._fields}) if arrays else None

    def without_worker(self, key: int) -> "Stack":
        """Without the weights of a worker who is forgotten."""
        kept = self.workers != np.uint64(key)
        return self._replace(
            workers=self.workers[kept], votes=self.votes[kept], scores=self.scores[kept]
        )


class _Reading(NamedTuple):
    """One way to go beyond the worker models."""

    slope: float  # prior mean of τ
    slope_variance: float
    bias_variance: float
    variance: float  # v
    mix: tuple[tuple[str, float], ...]  # features, and their shares of v
    prior: float


def is_due(gold: GoldTasks, stack: Stack | None) -> bool:
    """Whether a stack should be fitted again: gold has grown, or a truth was corrected."""
    if stack is None:
        return len(gold.key) >= MIN_TASKS
    _, kept, fitted = np.intersect1d(gold.key, stack.tasks, return_indices=True)
    corrected = (gold.truth[kept] != stack.truth[fitted]).any()
    return bool(corrected) or int(gold.seen) >= GROWTH * int(stack.seen)


def fit(gold: GoldTasks, shares: Floats, sampling: str) -> Stack:
    """Fit a stack to gold.

    Parameters
    ----------
    shares
        How frequent labels of each class are, (C,), not necessarily summing to 1.
    sampling
        How gold was drawn. By `selected` gold, classes and errors are not as frequent as
        elsewhere, so that β and τ are left as they are.
    """
    n_classes = len(shares)
    features = _Features.of(gold, shares)
    classes = _modelled_classes(gold, n_classes)
    readings, fits = list(_readings(features, sampling)), _Fits(features, gold)
    n_screened = min(len(gold.key), SCREENED_TASKS)
    weight = fits.posterior(readings, classes[:MAX_SCREENED_CLASSES], n_screened)
    if n_screened < len(gold.key):
        best = np.argsort(-weight, kind="stable")[:MAX_READINGS]
        readings = [readings[r] for r in best]
        weight = fits.posterior(readings, classes, len(gold.key))
    kept = np.flatnonzero(weight > 0.01)
    readings, weight = [readings[r] for r in kept], weight[kept] / weight[kept].sum()
    return _averaged(readings, weight, features, fits, classes, n_classes)


def _readings(features: "_Features", sampling: str) -> Iterator[_Reading]:
    drawn = sampling == RANDOM
    temperatures = TEMPERATURES if drawn else (1.0,)
    slope, free, bias = (SLOPE, SLOPE_VARIANCE, BIAS_VARIANCE) if drawn else (1.0, 0.0, 0.0)
    # P(alone) = 1 / (1 + (n/n₀)²): what gold says of a worker is learned from their gold tasks, and
    # the evidence also counts how badly the first of them were predicted.
    alone = 1 / (1 + (features.tasks_per_worker / FEW_TASKS) ** 2)
    for temperature in temperatures:
        yield _Reading(temperature, 0.0, 0.0, 0.0, (), alone / len(temperatures))
    mixes = [mix for mix in MIXES if all(name in features.parts for name, _ in mix)]
    share = (1 - alone) / max(len(VARIANCES) * len(mixes), 1)
    for variance in VARIANCES:
        for mix in mixes:
            yield _Reading(slope, free, bias, variance, mix, share)


def _modelled_classes(gold: GoldTasks, n_classes: int) -> NDArray[np.intp]:
    """Classes with log-odds of their own, the most frequent truths first; of two, one is enough."""
    if n_classes == 2:
        return np.array([1])
    counts = np.bincount(gold.truth, minlength=n_classes)
    order = np.argsort(-counts, kind="stable")
    return np.asarray(order[counts[order] > 0])


# ── features ─────────────────────────────────────────────────────────────────────────────


class _Features(NamedTuple):
    """Features of gold tasks; each part has a mean squared norm of 1 per task."""

    parts: dict[str, Floats]  # (G, …): votes (G, U C), groups (G, V C), scores (G, U)
    workers: NDArray[np.uint64]  # (U,)
    groups: NDArray[np.uint64]  # (V,)
    indicators: Floats  # (C, C) x of a label z, by row, before its part is normed
    norms: dict[str, float]  # what each part was divided by
    score_scale: Floats  # (U, 2) mean and spread of each worker's scores
    tasks_per_worker: float  # gold tasks of the worker of a label, on average

    @classmethod
    def of(cls, gold: GoldTasks, shares: Floats) -> "_Features":
        n_tasks, n_classes = len(gold.key), len(shares)
        often = (shares + 1) / (shares + 1).sum()
        # x_b[z] = (1[l_b = z] − p_z) / √(p_z (1 − p_z))
        indicators = (np.eye(n_classes) - often) / np.sqrt(np.maximum(often * (1 - often), 1e-9))
        workers, worker = np.unique(gold.worker, return_inverse=True)
        groups, group = np.unique(gold.group, return_inverse=True)
        parts: dict[str, Floats] = {}
        if len(workers) * n_classes**2 <= MAX_CELLS:
            said = indicators[gold.label] * gold.weight[:, None]
            parts["votes"] = _summed(gold.task, worker, said, (n_tasks, len(workers)))
            known = gold.group != 0
            if 1 < len(groups) - (groups[:1] == 0).sum() < len(workers):
                parts["groups"] = _summed(
                    gold.task[known], group[known], said[known], (n_tasks, len(groups))
                )
        scale = np.zeros((len(workers), 2))
        scored = np.isfinite(gold.score)
        if "votes" in parts and scored.any():
            scale = _score_scale(gold.score[scored], worker[scored], len(workers))
            values = _standardised(gold.score[scored], scale[worker[scored]])
            parts["scores"] = _summed(
                gold.task[scored],
                worker[scored],
                (values * gold.weight[scored])[:, None],
                (n_tasks, len(workers)),
            )
        norms = {
            name: float(np.sqrt((part**2).sum() / max(n_tasks, 1))) for name, part in parts.items()
        }
        parts = {name: part / norms[name] for name, part in parts.items() if norms[name] > 0}
        if "votes" not in parts:  # then nothing is kept of single workers
            workers, groups, scale = workers[:0], groups[:0], scale[:0]
        # By weight: several votes of one worker on one task are one.
        seen = np.bincount(worker, gold.weight, len(workers))[worker]
        often_seen = float((seen * gold.weight).sum() / max(gold.weight.sum(), 1e-9))
        return cls(parts, workers, groups, indicators, norms, scale, often_seen)


def _summed(
    task: NDArray[Any], column: NDArray[Any], values: Floats, shape: tuple[int, int]
) -> Floats:
    """Add up rows (R, D) of one task and one column, (G, columns × D)."""
    n_tasks, n_columns = shape
    cell = task.astype(np.intp) * n_columns + column
    size = n_tasks * n_columns
    sums = [np.bincount(cell, values[:, d], size) for d in range(values.shape[1])]
    return np.asarray(np.stack(sums, axis=1).reshape(n_tasks, -1), np.float64)


def _score_scale(score: NDArray[Any], worker: NDArray[Any], n_workers: int) -> Floats:
    """Mean and spread of each worker's scores, shrunk to those of all, (U, 2)."""
    count = np.bincount(worker, minlength=n_workers)
    whole = count + SCORE_STRENGTH
    mean = (np.bincount(worker, score, n_workers) + SCORE_STRENGTH * score.mean()) / whole
    squares = np.bincount(worker, (score - mean[worker]) ** 2, n_workers)
    variance = (squares + SCORE_STRENGTH * score.var()) / whole
    return np.stack([mean, np.sqrt(variance)], axis=1)


def _standardised(score: NDArray[Any], scale: Floats) -> Floats:
    spread = np.where(scale[:, 1] > 0, scale[:, 1], 1)
    return np.asarray(np.where(np.isfinite(score), (score - scale[:, 0]) / spread, 0.0))


# ── fitting ──────────────────────────────────────────────────────────────────────────────


class _Fits:
    """Readings fitted to gold, each once to the classes and tasks asked for."""

    def __init__(self, features: _Features, gold: GoldTasks) -> None:
        self.gold = gold
        self._kernels = {name: _products(part) for name, part in features.parts.items()}
        self._found: dict[tuple[_Reading, int, int], tuple[Covariance, Fit]] = {}
        self._last: dict[tuple[int, int], Floats] = {}

    def posterior(
        self, readings: Sequence[_Reading], classes: NDArray[np.intp], n_tasks: int
    ) -> Floats:
        """How probable each reading is by the evidence of the first gold tasks, (readings,)."""
        log_prob = np.log([max(reading.prior, 1e-30) for reading in readings])
        for r, reading in enumerate(readings):
            covariance, found = self.get(reading, classes, n_tasks)
            screened = range(min(len(classes), MAX_SCREENED_CLASSES))
            evidence = sum(log_evidence(covariance, found, c) for c in screened)
            # One against the rest counts each of C classes; with two, both would be the same.
            log_prob[r] += evidence if len(classes) == 1 else evidence / 2
        weight = np.exp(log_prob - log_prob.max())
        return np.asarray(weight / weight.sum())

    def get(
        self, reading: _Reading, classes: NDArray[np.intp], n_tasks: int
    ) -> tuple[Covariance, Fit]:
        """Laplace's approximation of one reading of each class, by the first gold tasks."""
        key = reading, len(classes), n_tasks
        if key not in self._found:
            gold, some = self.gold, slice(n_tasks)
            is_true = (gold.truth[some] == classes[:, None]).astype(np.float64)
            log_odds = gold.log_odds[some, classes].T.astype(np.float64)
            n_known = is_true.shape[1]
            # Cov(f_i, f_j) = v k(i, j) + Var(τ) s_i s_j + Var(β)
            kernel = np.zeros((n_known, n_known))
            for name, share in reading.mix:
                kernel += reading.variance * share * self._kernels[name][some, some]
            slopes = np.sqrt(reading.slope_variance) * log_odds
            covariance = Covariance(kernel, slopes, reading.bias_variance)
            mean = reading.slope * log_odds
            found = laplace(covariance, is_true, mean, self._last.get(key[1:]))
            self._found[key], self._last[key[1:]] = (covariance, found), found.dual
        return self._found[key]


def _products(part: Floats) -> Floats:
    """k(i, j) = x_i · x_j, (G, G); in float32, which takes half the time and errs by 1e-6."""
    narrow = part.astype(np.float32)
    return np.asarray(narrow @ narrow.T, np.float64)


def _averaged(
    readings: Sequence[_Reading],
    weight: Floats,
    features: _Features,
    fits: _Fits,
    classes: NDArray[np.intp],
    n_classes: int,
) -> Stack:
    """One stack of several readings: f is linear in the weights, and so is its mean."""
    gold = fits.gold
    n_workers, n_groups = len(features.workers), len(features.groups)
    sizes = {"votes": n_workers * n_classes, "groups": n_groups * n_classes, "scores": n_workers}
    learned = {name: np.zeros((size, n_classes)) for name, size in sizes.items()}
    slope = np.full(n_classes, sum(w * r.slope for w, r in zip(weight, readings, strict=True)))
    bias = np.zeros(n_classes)
    for part, reading in zip(weight, readings, strict=True):
        dual = fits.get(reading, classes, len(gold.key))[1].dual
        bias[classes] += part * reading.bias_variance * dual.sum(axis=1)
        log_odds = gold.log_odds[:, classes].T
        slope[classes] += part * reading.slope_variance * (dual * log_odds).sum(axis=1)
        for name, mixed in reading.mix:
            scale = part * reading.variance * mixed / features.norms[name]
            learned[name][:, classes] += scale * (features.parts[name].T @ dual.T)
    if n_classes == 2:  # f_0 = −f_1
        for each in learned.values():
            each[:, 0] = -each[:, 1]
        slope[0], bias[0] = slope[1], -bias[1]
    common = float(slope[gold.truth].mean())

    def by_label(name: str, n_rows: int) -> Floats:
        # Σ_y x_z[y] w[y, c]: what saying z adds to class c
        cells = learned[name].reshape(n_rows, n_classes, n_classes)
        return np.asarray(HALF * np.einsum("zy,uyc->uzc", features.indicators, cells))

    return Stack(
        features.workers,
        by_label("votes", n_workers),
        features.groups,
        by_label("groups", n_groups),
        np.concatenate([features.score_scale, HALF * learned["scores"]], axis=1),
        np.array(common),
        HALF * bias,
        gold.seen,
        gold.key,
        gold.truth,
    )


# ── answering ────────────────────────────────────────────────────────────────────────────


def apply(
    stack: Stack,
    chunk: Chunk,
    log_scores: Floats,
    log_evidence: NDArray[Any],
    log_prior: Floats,
    temperature: Floats,
) -> tuple[Floats, NDArray[np.float32]]:
    """Log scores (N, C) and what each label says (B, C), before they are divided by a temperature.

    Parameters
    ----------
    log_scores, log_evidence, log_prior
        Of the worker models alone: log π (C,) and the evidence of its labels are an item's scores.
    temperature
        Of the items, (N,).
    """
    n_known, n_classes = len(stack.bias), chunk.n_classes
    added = np.zeros((chunk.n_labels, n_classes))
    known = chunk.label < n_known  # other classes were not known when it was fitted
    has_gold = np.zeros(chunk.n_labels, bool)  # the worker of a label, or their model
    for keys, table, of_rows in (
        (stack.workers, stack.votes, chunk.worker_keys[chunk.local_worker]),
        (stack.groups, stack.group_votes, _groups(chunk)),
    ):
        place, found = _places(keys, of_rows)
        has_gold |= found
        found &= known
        added[found, :n_known] += table[place[found], chunk.label[found]]
    if chunk.score is not None and stack.scores[:, 2:].any():
        place, found = _places(stack.workers, chunk.worker_keys[chunk.local_worker])
        rows_of = stack.scores[place[found]]
        added[found, :n_known] += (
            _standardised(chunk.score[found], rows_of[:, :2])[:, None] * rows_of[:, 2:]
        )
    added *= vote_weights(chunk)[:, None] * temperature[chunk.item, None]
    covered = np.bincount(chunk.item, has_gold, chunk.n_items)[:, None] > 0
    slope = np.where(covered, stack.slope, max(float(stack.slope), MIN_SLOPE))
    bias = covered * temperature[:, None] * np.pad(stack.bias, (0, n_classes - n_known))
    total = slope * log_scores + bias
    for c in range(n_classes):
        total[:, c] += np.bincount(chunk.item, added[:, c], chunk.n_items)
    # An answer is the prior and what labels say: they share what is added to the prior.
    share = chunk.weight / np.maximum(chunk.weight_by_item, 1e-9)[chunk.item]
    shared = (slope - 1) * log_prior + bias
    said = slope[chunk.item] * log_evidence + added + share[:, None] * shared[chunk.item]
    return total, said.astype(np.float32)


def log_odds(probs: NDArray[Any]) -> Floats:
    """Of each class against all others, (N, C)."""
    bounded = np.clip(probs.astype(np.float64), 1e-6, 1 - 1e-6)
    return np.log(bounded) - np.log1p(-bounded)


def _groups(chunk: Chunk) -> NDArray[np.uint64]:
    if chunk.worker_groups is None:
        return np.zeros(chunk.n_labels, np.uint64)
    return chunk.worker_groups[chunk.local_worker]


def _places(
    keys: NDArray[np.uint64], wanted: NDArray[np.uint64]
) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Where keys stand among sorted ones, and whether they do; 0 stands for none."""
    place = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
    found = (keys[place] == wanted) & (wanted != 0) if len(keys) else np.zeros(len(wanted), bool)
    return place, found
