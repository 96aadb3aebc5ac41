"""Stacking: what gold says of each worker beyond the worker models, learned on gold tasks alone.

The worker models see gold as n tasks among N, so N − n tasks without truth can outvote it: a jury
that is wrong together swaps the classes, however good its few gold labels are. A stack asks gold
alone. Of each class c it learns the log-odds that it is the truth, one against the rest:

    f_c(i) = τ_c s_c(i) + β_c + Σ_b x_b · w_c[worker of b]

s_c are the log-odds of the worker models, x_b is label b as standardised indicators of the classes,
and where labels have scores or workers have a model, its score and the sum of x over the workers of
one model are features too. This is logistic regression with a normal prior, w ~ N(0, v), around
the answer of the worker models (τ = 1 and w = 0): ridge-logistic stacking. Where gold says nothing
of a task's workers, the answer stays theirs.

How far to go (v, whether τ is free, which features) is chosen by the evidence p(gold), which is the
product of the probabilities of each gold label given those before it: how well gold is predicted
that was not seen. One of the readings is the worker models alone at several temperatures. The
weights of all readings, each by its evidence, are averaged, so a stack is one set of weights.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.ingest.chunks import Chunk
from labelquorum.learn.bila.gold import GoldTasks, vote_weights

__all__ = ["RANDOM", "SELECTED", "Stack", "apply", "fit", "is_due", "log_odds"]

RANDOM, SELECTED = "random", "selected"
"""How gold tasks were drawn: at random, or by what they are, such as disputed ones."""

TEMPERATURES = (0.25, 0.5, 1.0, 1.5)
"""τ of the readings that keep to the worker models."""

VARIANCES = (0.5, 2.0, 8.0, 32.0)
"""v: the variance of what a task's labels add to its log-odds."""

ALONE_SHARE = 0.3
"""Prior probability that the worker models need nothing but a temperature."""

SLOPE_VARIANCE, BIAS_VARIANCE = 0.25, 0.1
"""Of τ, where it is free, and of β."""

MIXES: Sequence[Mapping[str, float]] = (
    {"votes": 1.0},
    {"votes": 0.3, "groups": 0.7},
    {"votes": 0.3, "scores": 0.7},
    {"votes": 0.15, "groups": 0.45, "scores": 0.4},
)
"""Shares of the variance v that features have."""

SCREENED_TASKS, MAX_READINGS, MAX_SCREENED_CLASSES = 128, 5, 8
"""All readings are fitted to so many tasks and classes, and the best of them to all."""

MAX_CELLS = 2_000_000
"""Workers × classes² of a stack at the most; with more, the worker models are kept to."""

SCORE_STRENGTH = 2.0
"""Weight of all judges' mean and spread of scores in those of one, in scores."""

GROWTH = 1.05
"""A stack is fitted again once gold has grown by this factor, so that its cost per gold task does
not grow with their number."""

MAX_ROUNDS, TOLERANCE = 30, 1e-6


class Stack(NamedTuple):
    """What was learned, by keys; U workers, V models of workers, G gold tasks."""

    workers: NDArray[np.uint64]  # (U,) ascending
    votes: NDArray[np.float64]  # (U, C, C): what worker u adds to class c by saying z, [u, z, c]
    groups: NDArray[np.uint64]  # (V,) ascending
    group_votes: NDArray[np.float64]  # (V, C, C) likewise
    scores: NDArray[np.float64]  # (U, 2 + C): mean and spread, and the weight for each class
    slope: NDArray[np.float64]  # τ (C,)
    bias: NDArray[np.float64]  # β (C,)
    seen: NDArray[np.int64]  # () gold tasks learned from when it was fitted
    held_out: NDArray[np.float32]  # (G, C) of each gold task, by a stack that did not see its truth

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
    mix: Mapping[str, float]
    prior: float


class _Fit(NamedTuple):
    """A reading fitted to one class."""

    dual: Floats  # (G,) weights are features × dual
    log_evidence: float
    held_out: Floats  # (G,) log-odds of each task by a fit to the others


def is_due(gold: GoldTasks, stack: Stack | None) -> bool:
    """Whether a stack should be fitted again."""
    return len(gold.key) > 0 and (stack is None or int(gold.seen) >= GROWTH * int(stack.seen))


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
    readings = list(_readings(features, sampling))
    screened = slice(min(len(gold.key), SCREENED_TASKS))
    few = classes[:MAX_SCREENED_CLASSES]
    weight = _posterior(readings, features, gold, few, screened)
    if len(gold.key) > SCREENED_TASKS:
        best = np.argsort(-weight, kind="stable")[:MAX_READINGS]
        readings = [readings[r] for r in best]
        weight = _posterior(readings, features, gold, few, slice(None))
    kept = np.flatnonzero(weight > 0.01)
    readings, weight = [readings[r] for r in kept], weight[kept] / weight[kept].sum()
    return _averaged(readings, weight, features, gold, classes, n_classes)


def _readings(features: "_Features", sampling: str) -> Iterator[_Reading]:
    temperatures = TEMPERATURES if sampling == RANDOM else (1.0,)
    bias = BIAS_VARIANCE if sampling == RANDOM else 0.0
    slopes = (0.0, SLOPE_VARIANCE) if sampling == RANDOM else (0.0,)
    mixes = [mix for mix in MIXES if all(name in features.parts for name in mix)]
    for slope in temperatures:
        yield _Reading(slope, 0.0, 0.0, 0.0, {}, ALONE_SHARE / len(temperatures))
    share = (1 - ALONE_SHARE) / max(len(slopes) * len(VARIANCES) * len(mixes), 1)
    for free in slopes:
        for variance in VARIANCES:
            for mix in mixes:
                yield _Reading(1.0, free, bias, variance, mix, share)


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
        return cls(parts, workers, groups, indicators, norms, scale)

    def kernel(self, mix: Mapping[str, float], tasks: slice) -> Floats:
        """Σ of each part's inner products by its share, (G, G)."""
        chosen = (np.sqrt(share) * self.parts[name][tasks] for name, share in mix.items())
        columns = np.concatenate(list(chosen), axis=1)
        return np.asarray(columns @ columns.T)


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


def _posterior(
    readings: Sequence[_Reading],
    features: _Features,
    gold: GoldTasks,
    classes: NDArray[np.intp],
    tasks: slice,
) -> Floats:
    """How probable each reading is by the evidence, (readings,)."""
    log_evidence = np.array([np.log(reading.prior) for reading in readings])
    kernels: dict[int, Floats] = {}
    for r, reading in enumerate(readings):
        for c in classes:
            found = _fit(reading, features, gold, int(c), tasks, kernels).log_evidence
            # One against the rest counts each of C classes; with two, both would be the same.
            log_evidence[r] += found if len(classes) == 1 else found / 2
    weight = np.exp(log_evidence - log_evidence.max())
    return np.asarray(weight / weight.sum())


def _fit(
    reading: _Reading,
    features: _Features,
    gold: GoldTasks,
    c: int,
    tasks: slice,
    kernels: dict[int, Floats],
) -> _Fit:
    """Laplace's approximation of one reading of one class."""
    is_true = (gold.truth[tasks] == c).astype(np.float64)
    log_odds = gold.log_odds[tasks, c].astype(np.float64)
    mean = reading.slope * log_odds
    if not reading.mix:
        return _Fit(np.zeros(len(mean)), -_log_loss(mean, is_true).sum(), mean)
    key = id(reading.mix)
    if key not in kernels:
        kernels[key] = features.kernel(reading.mix, tasks)
    # Cov(f_i, f_j) = v k(i, j) + Var(τ) s_i s_j + Var(β)
    covariance = reading.variance * kernels[key] + reading.bias_variance
    covariance += reading.slope_variance * np.outer(log_odds, log_odds)
    return _laplace(covariance, is_true, mean)


def _laplace(covariance: Floats, is_true: Floats, mean: Floats) -> _Fit:
    """The most probable f of a logistic likelihood under N(mean, covariance), by Newton's method.

    f = mean + covariance · dual, where dual = 1[true] − σ(f) at the maximum. Rasmussen and
    Williams, Gaussian Processes for Machine Learning (2006), section 3.4.
    """
    dual, log_odds = np.zeros_like(mean), mean
    objective = -_log_loss(log_odds, is_true).sum()
    identity = np.eye(len(mean))
    for _ in range(MAX_ROUNDS):
        prob = _sigmoid(log_odds)
        curvature = np.maximum(prob * (1 - prob), 1e-10)
        root = np.sqrt(curvature)
        matrix = identity + root[:, None] * covariance * root
        # b = W (f − m) + ∇ log p;  dual = b − W^½ B⁻¹ W^½ K b
        target = curvature * (log_odds - mean) + is_true - prob
        newton = target - root * np.linalg.solve(matrix, root * (covariance @ target))
        step, before = 1.0, objective
        while True:
            moved = dual + step * (newton - dual)
            log_odds = mean + covariance @ moved
            objective = -0.5 * moved @ (log_odds - mean) - _log_loss(log_odds, is_true).sum()
            if objective >= before - TOLERANCE or step < 1e-3:
                break
            step /= 2
        dual = moved
        if objective - before < TOLERANCE:
            break
    prob = _sigmoid(log_odds)
    curvature = np.maximum(prob * (1 - prob), 1e-10)
    root = np.sqrt(curvature)
    matrix = identity + root[:, None] * covariance * root
    log_evidence = objective - 0.5 * np.linalg.slogdet(matrix)[1]
    # Σ = (K⁻¹ + W)⁻¹; without task i, f_i falls by Σ_ii / (1 − W_ii Σ_ii) times its residual
    scaled = root[:, None] * covariance
    spread = np.diag(covariance) - (scaled * np.linalg.solve(matrix, scaled)).sum(axis=0)
    influence = spread / np.maximum(1 - curvature * spread, 1e-3)
    return _Fit(dual, float(log_evidence), log_odds - influence * (is_true - prob))


def _averaged(
    readings: Sequence[_Reading],
    weight: Floats,
    features: _Features,
    gold: GoldTasks,
    classes: NDArray[np.intp],
    n_classes: int,
) -> Stack:
    """One stack of several readings: f is linear in the weights, and so is its mean."""
    n_workers, n_groups = len(features.workers), len(features.groups)
    sizes = {"votes": n_workers * n_classes, "groups": n_groups * n_classes, "scores": n_workers}
    learned = {name: np.zeros((size, n_classes)) for name, size in sizes.items()}
    slope = np.full(n_classes, sum(w * r.slope for w, r in zip(weight, readings, strict=True)))
    bias, held_out = np.zeros(n_classes), slope * gold.log_odds.astype(np.float64)
    kernels: dict[int, Floats] = {}
    for c in map(int, classes):
        held_out[:, c] = 0
        for share, reading in zip(weight, readings, strict=True):
            found = _fit(reading, features, gold, c, slice(None), kernels)
            held_out[:, c] += share * found.held_out
            bias[c] += share * reading.bias_variance * found.dual.sum()
            log_odds = gold.log_odds[:, c].astype(np.float64)
            slope[c] += share * reading.slope_variance * (found.dual @ log_odds)
            for name, part in reading.mix.items():
                scale = share * reading.variance * part / features.norms[name]
                learned[name][:, c] += scale * (features.parts[name].T @ found.dual)
    if n_classes == 2:  # f_0 = −f_1
        held_out[:, 0] = -held_out[:, 1]
        for each in learned.values():
            each[:, 0] = -each[:, 1]
        slope[0], bias[0] = slope[1], -bias[1]

    def by_label(name: str, n_rows: int) -> Floats:
        # Σ_y x_z[y] w[y, c]: what saying z adds to class c
        cells = learned[name].reshape(n_rows, n_classes, n_classes)
        return np.asarray(np.einsum("zy,uyc->uzc", features.indicators, cells))

    return Stack(
        features.workers,
        by_label("votes", n_workers),
        features.groups,
        by_label("groups", n_groups),
        np.concatenate([features.score_scale, learned["scores"]], axis=1),
        slope,
        bias,
        gold.seen,
        _normalised(held_out).astype(np.float32),
    )


# ── answering ────────────────────────────────────────────────────────────────────────────


def apply(stack: Stack, chunk: Chunk, probs: NDArray[Any]) -> tuple[Floats, Floats]:
    """Log probabilities of classes, (N, C), up to a constant, and what each label adds, (B, C).

    Parameters
    ----------
    probs
        Of the worker models alone, (N, C).
    """
    n_known, n_classes = len(stack.slope), chunk.n_classes
    pad = n_classes - n_known  # classes that were not known when it was fitted
    slope, bias = np.pad(stack.slope, (0, pad), constant_values=1), np.pad(stack.bias, (0, pad))
    odds = log_odds(probs)
    added = np.zeros((chunk.n_labels, n_classes))
    known = chunk.label < n_known
    for keys, table, of_rows in (
        (stack.workers, stack.votes, chunk.worker_keys[chunk.local_worker]),
        (stack.groups, stack.group_votes, _groups(chunk)),
    ):
        place, found = _places(keys, of_rows)
        found &= known
        added[found, :n_known] += table[place[found], chunk.label[found]]
    if chunk.score is not None and stack.scores[:, 2:].any():
        place, found = _places(stack.workers, chunk.worker_keys[chunk.local_worker])
        rows_of = stack.scores[place[found]]
        added[found, :n_known] += (
            _standardised(chunk.score[found], rows_of[:, :2])[:, None] * rows_of[:, 2:]
        )
    added *= vote_weights(chunk)[:, None]
    total = slope * odds + bias
    for c in range(n_classes):
        total[:, c] += np.bincount(chunk.item, added[:, c], chunk.n_items)
    return np.log(np.maximum(_sigmoid(total), 1e-30)), added


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


def _normalised(log_odds: Floats) -> Floats:
    probs = _sigmoid(log_odds)
    return np.asarray(probs / probs.sum(axis=1, keepdims=True))


def _sigmoid(log_odds: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-np.clip(log_odds, -60, 60))))


def _log_loss(log_odds: Floats, is_true: Floats) -> Floats:
    return np.asarray(np.logaddexp(0, np.where(is_true > 0, -log_odds, log_odds)))
