"""Worker models: what a p must provide to be learned by counting, and which of two is selected.

The *hierarchical* model has a matrix per worker, the *one-coin* model an accuracy per worker. Each
reads the same stream with its own q. The first is selected unless it makes the average worker look
clearly less skilled than the second does, and its evidence does not settle the matter:
`docs/worker-models.md`.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.learn.bila import hierarchical
from labelquorum.learn.bila.dependence import evidence_gain, is_contradicted
from labelquorum.learn.bila.hierarchical import HIERARCHICAL, ONE_COIN, Recipe, worker_weight
from labelquorum.learn.bila.minibatch import CountedBatch, Leaf, array_namespace, segment_sum

DROP, NOISE = 0.10, 4.0
"""By so much the log skill may fall, and by so much / items more, before the hierarchical model is
distrusted: chosen on the development sets (`docs/accuracy.md`)."""

MIN_EVIDENCE_GAIN = 0.03
"""Nats per label by which the hierarchical model must explain labels better to be selected whatever
the skill: chosen on simulated crowds (`experiments/accuracy/selection.py`)."""


class WorkerModel(NamedTuple):
    """A p as functions of its counts.

    Those of the first group take arrays of NumPy or of JAX, with workers last: counts (…, K) and θ
    (D, K). Those of the second are NumPy's, with workers first: (P, …) and (P, D). "Crowd" is what
    all workers share: the matrix G, or the odds of being right.
    """

    count_axes: tuple[int | None, ...]  # the shape of a worker's counts; None is an axis of classes
    theta_size: Callable[[int], int]  # D, by the number of classes
    crowd: Callable[[Leaf, Recipe], Leaf]  # of pooled counts

    count_labels: Callable[[Leaf, CountedBatch, int], Leaf]  # ΔN of q (M, C) and K workers
    pool: Callable[[Leaf, Recipe], Leaf]  # P, of counts
    step: Callable[[Leaf, Leaf, Leaf, Recipe], Leaf]  # θ, of θ, counts and crowd
    right: Callable[[Leaf, Leaf, Leaf, Recipe], Leaf]  # P(k says c | c), (C, K), of the same
    log_powers: Callable[[Leaf, Leaf, Leaf, Recipe, float], Leaf]  # log Σ_z m[c, z]^λ, (C, K)
    # log m_k[c, l] by θ, counts, crowd, worker and label, (B, C)
    label_log_probs: Callable[[Leaf, Leaf, Leaf, Leaf, Leaf, Recipe], Leaf]

    confusion: Callable[[Floats, Floats, Floats, Recipe], Floats]  # m, (P, C, C)
    from_matrix: Callable[[Floats], Floats]  # counts of labels z on items of class c, (P, C, C)
    hits: Callable[[Floats], Floats]  # the diagonal of P and its row sums, (2, C)

    def count_shape(self, n_classes: int) -> tuple[int, ...]:
        """The shape of a worker's counts, and of P."""
        return tuple(n_classes if axis is None else axis for axis in self.count_axes)


class Known(NamedTuple):
    """What a worker model knows before a chunk."""

    counts: Any  # (P, …) of the chunk's workers, or `SparseCounts` of them
    theta: Floats  # (P, D)
    others: Floats  # what all other workers give to P
    class_counts: Floats  # ν (C,)
    label_shares: Floats  # f', the chunk's labels included (C,)


class Fitted(NamedTuple):
    """What a worker model learned from a chunk."""

    counts: Any  # the same with this chunk
    theta: Floats  # (P, D)
    class_probs: NDArray[Any]  # q (N, C)
    pooled: Floats  # P with this chunk
    unexplained: Floats  # `sums` of `dependence`
    numbers: Floats  # (2,) the mean of −log p(l_i), and the number of rounds
    class_sums: Floats  # (C,) the sum of q over the items that count in ν
    expected_errors: Floats = np.zeros(5)  # of `identification`, where they are asked for

    def settled(self, known: Known) -> "Settled":
        """Return the worker model as it is after the chunk."""
        class_counts = known.class_counts + self.class_sums
        return Settled(self.counts, self.theta, self.pooled, known.label_shares, class_counts)


class Settled(NamedTuple):
    """A worker model as it is after a chunk, as far as answers need it."""

    counts: Any  # (P, …), or `SparseCounts`
    theta: Floats  # (P, D)
    pooled: Floats  # P
    label_shares: Floats  # f (C,)
    class_counts: Floats  # ν (C,)


# ── which worker model is selected ───────────────────────────────────────────────────────


def select_worker_model(
    pooled: Mapping[str, Floats],
    unexplained: Mapping[str, Floats],
    n_items: float,
    recipe: Recipe,
) -> str:
    """The worker model whose answers are given, by the pooled counts and the sums of each."""
    if len(pooled) == 1:
        return next(iter(pooled))
    hits = [WORKER_MODELS[name].hits(pooled[name]) for name in (HIERARCHICAL, ONE_COIN)]
    skill, one_coin_skill = log_skill(np.array(hits), recipe)
    # log J_hierarchical − log J_one-coin > −(0.1 + 4/items)
    allowed = DROP + NOISE / max(n_items, 1e-12)
    if skill - one_coin_skill > -allowed or _is_established(pooled, unexplained, recipe):
        return HIERARCHICAL
    return ONE_COIN


def hierarchical_evidence_gain(
    pooled: Mapping[str, Floats], unexplained: Mapping[str, Floats], recipe: Recipe
) -> float:
    """How much better the hierarchical model explains a label than the one-coin model, in nats.

    Only what all workers share is asked, so a store that loads the workers of a chunk alone, and
    a shard, decide as the whole model does.
    """
    n_classes = len(pooled[HIERARCHICAL])
    # d = Σ_k Σ_c n_k[c] / (κ + n_k[c]) + C (C − 1) = P/κ + C (C − 1): a worker's rows, each by how
    # far labels determine it, and the crowd's matrix
    n_parameters = pooled[HIERARCHICAL].sum() / recipe.worker_cap + n_classes * (n_classes - 1)
    return evidence_gain(unexplained[HIERARCHICAL], unexplained[ONE_COIN], n_parameters)


def _is_established(
    pooled: Mapping[str, Floats], unexplained: Mapping[str, Floats], recipe: Recipe
) -> bool:
    """Whether the evidence establishes the hierarchical model and nothing contradicts it."""
    gain = hierarchical_evidence_gain(pooled, unexplained, recipe)
    return gain > MIN_EVIDENCE_GAIN and not is_contradicted(unexplained[HIERARCHICAL])


def log_skill(hits: Floats, recipe: Recipe) -> Floats:
    """Log J: how far above chance the average worker is, all classes alike, (A,) by (A, 2, C)."""
    odds = crowd_odds(hits, recipe)
    crowd_accuracy = (odds / (1 + odds))[:, None]  # ā
    # J = (mean_c G¹[c, c] − 1/C) / (1 − 1/C),  G¹ = (P + S) with rows divided by their sums
    chance = 1 / hits.shape[2]
    mean = ((hits[:, 0] + crowd_accuracy) / (hits[:, 1] + 1)).sum(axis=1) / hits.shape[2]
    skill: Floats = (mean - chance) / max(1 - chance, 1e-12)
    return np.log(np.maximum(skill, 1e-12))


# ── the one-coin model ───────────────────────────────────────────────────────────────────
#
#   m_k[c, z] = r_k if z = c, else (1 − r_k) / (C − 1),  r_k = σ(logit ā + a_k),  a_k ~ N(0, σ_a²)
#
# It is the hierarchical model with nothing but the tilt: softmax_z( log S[c, z] + a_k 1[c = z] ).
# The loss needs two counts per class: N_k[c, c], how often worker k was right on items expected to
# be c, and n_k[c], how many of those they labelled. They are stored one after the other, (2, C, K),
# classes before workers as in `hierarchical.py`; θ is (1, K).


def crowd_odds(pooled: Leaf, recipe: Recipe) -> Leaf:
    """ā / (1 − ā), how much oftener the crowd is right than wrong, (…), by P as (…, 2, C)."""
    hits, labels = pooled[..., 0, :].sum(axis=-1), pooled[..., 1, :].sum(axis=-1)
    # ā = (Σ_c P[c, c] + s ā₀) / (Σ P + s), as odds, which no crowd makes infinite
    prior = recipe.accuracy_strength * recipe.crowd_accuracy
    return (hits + prior) / (labels - hits + recipe.accuracy_strength - prior)


def one_coin_right(odds: Leaf, tilt_factor: Leaf) -> Leaf:
    """r_k, how often each worker is right, (K,); the factor is e^a."""
    return odds * tilt_factor / (1 + odds * tilt_factor)


def one_coin_loss(theta: Leaf, counts: Leaf, odds: Leaf, recipe: Recipe) -> Leaf:
    """−J_k, but for what no θ changes: minus the expected log-likelihood, and the prior, (K,)."""
    hits, labels = counts.sum(axis=1)
    xp = array_namespace(theta)
    often = one_coin_right(odds, xp.exp(theta[0]))
    # J_k = h log r + (n − h) log(1 − r) − a²/2σ_a²;  h = Σ_c N_k[c, c], n = Σ_c n_k[c]
    fit = hits * xp.log(often) + (labels - hits) * xp.log1p(-often)
    return theta[0] ** 2 / (2 * recipe.tilt_scale**2) - fit


def one_coin_derivatives(
    theta: Leaf, counts: Leaf, odds: Leaf, recipe: Recipe
) -> tuple[Leaf, Leaf]:
    """∂J/∂a and −∂²J/∂a², (K,) each."""
    hits, labels = counts.sum(axis=1)
    often = one_coin_right(odds, array_namespace(theta).exp(theta[0]))
    # ∂J/∂a = h − n r − a/σ_a²;  −∂²J/∂a² = n r (1 − r) + 1/σ_a²
    slope = hits - labels * often - theta[0] / recipe.tilt_scale**2
    return slope, labels * often * (1 - often) + 1 / recipe.tilt_scale**2


def _one_coin_step(theta: Leaf, counts: Leaf, odds: Leaf, recipe: Recipe) -> Leaf:
    """One Newton step of every worker, (1, K)."""
    slope, curvature = one_coin_derivatives(theta, counts, odds, recipe)
    # a ← a + clip(g / H, −1, 1)
    xp = array_namespace(slope)
    return theta + xp.clip(slope / curvature, -recipe.step_limit, recipe.step_limit)


def _one_coin_pool(counts: Leaf, recipe: Recipe) -> Leaf:
    """These workers' share of P, its diagonal and its row sums, (2, C)."""
    # Σ_k N_k[c, c] κ/(κ + n_k[c]) and Σ_k n_k[c] κ/(κ + n_k[c])
    return (counts * worker_weight(counts[1], recipe)).sum(axis=-1)


def _one_coin_count(class_probs: Leaf, batch: CountedBatch, n_workers: int) -> Leaf:
    n_classes = class_probs.shape[1]
    rows = class_probs[batch.item] * batch.counted_weight[:, None]
    # ΔN_k[c, c] = Σ_i q_i(c) 1[l_ik = c];  Δn_k[c] = Σ_i q_i(c)
    xp = array_namespace(rows)
    own = xp.where(batch.label[:, None] == np.arange(n_classes), rows, 0.0)
    total = segment_sum(xp.concatenate([own, rows], axis=1), batch.worker, n_workers)
    return total.T.reshape(2, n_classes, n_workers)


def _one_coin_label_log_probs(
    theta: Leaf, counts: Leaf, odds: Leaf, worker: Leaf, label: Leaf, recipe: Recipe
) -> Leaf:
    n_classes = counts.shape[1]
    xp = array_namespace(theta)
    right, wrong = _one_coin_logs(odds, xp.exp(theta[0]), n_classes)
    # log r_k where the label is c, log (1 − r_k)/(C − 1) where it is not
    is_label = label[:, None] == np.arange(n_classes)
    return xp.where(is_label, right[worker][:, None], wrong[worker][:, None])


def _one_coin_right(theta: Leaf, counts: Leaf, odds: Leaf, recipe: Recipe) -> Leaf:
    xp = array_namespace(theta)
    return xp.broadcast_to(one_coin_right(odds, xp.exp(theta[0])), counts.shape[1:])


def _one_coin_log_powers(
    theta: Leaf, counts: Leaf, odds: Leaf, recipe: Recipe, power: float
) -> Leaf:
    n_classes = counts.shape[1]
    xp = array_namespace(theta)
    right, wrong = _one_coin_logs(odds, xp.exp(theta[0]), n_classes)
    # log( r^λ + (C − 1) ((1 − r)/(C − 1))^λ )
    others = np.log(max(n_classes - 1, 1)) + power * wrong
    return xp.broadcast_to(xp.logaddexp(power * right, others), counts.shape[1:])


def _one_coin_confusion(theta: Floats, counts: Floats, odds: Floats, recipe: Recipe) -> Floats:
    n_classes = counts.shape[2]
    if n_classes == 1:
        return np.ones((len(theta), 1, 1))
    often = one_coin_right(odds, np.exp(theta[:, 0]))[:, None, None]
    same = np.eye(n_classes)
    return np.asarray(often * same + (1 - often) / (n_classes - 1) * (1 - same))


def _one_coin_logs(odds: Leaf, tilt_factor: Leaf, n_classes: int) -> tuple[Leaf, Leaf]:
    """What a label says for its class, log r_k, and for any other, log (1 − r_k)/(C − 1), (K,)."""
    xp = array_namespace(tilt_factor)
    often = odds * tilt_factor
    against = -xp.log1p(often)  # log (1 − r)
    return xp.log(often) + against, against - np.log(max(n_classes - 1, 1))


def _own_and_all(matrix: Floats) -> Floats:
    """The diagonal and the row sums of matrices (…, C, C), as (…, 2, C)."""
    both = np.empty((*matrix.shape[:-2], 2, matrix.shape[-1]))
    both[..., 0, :] = np.einsum("...cc->...c", matrix)
    both[..., 1, :] = matrix.sum(axis=-1)
    return both


WORKER_MODELS: Mapping[str, WorkerModel] = {
    HIERARCHICAL: WorkerModel(
        count_axes=(None, None),
        theta_size=lambda n_classes: 1 + n_classes,
        crowd=hierarchical.crowd_matrix,
        count_labels=hierarchical.count_labels,
        pool=hierarchical.pool,
        step=hierarchical.step,
        label_log_probs=hierarchical.label_log_probs,
        right=hierarchical.right,
        log_powers=hierarchical.log_powers,
        confusion=hierarchical.worker_matrices,
        from_matrix=lambda counts: counts,
        hits=_own_and_all,
    ),
    ONE_COIN: WorkerModel(
        count_axes=(2, None),
        theta_size=lambda n_classes: 1,
        crowd=crowd_odds,
        count_labels=_one_coin_count,
        pool=_one_coin_pool,
        step=_one_coin_step,
        label_log_probs=_one_coin_label_log_probs,
        right=_one_coin_right,
        log_powers=_one_coin_log_powers,
        confusion=_one_coin_confusion,
        from_matrix=_own_and_all,
        hits=lambda pooled: pooled,
    ),
}
"""By name; where there are both, the first is asked first."""
