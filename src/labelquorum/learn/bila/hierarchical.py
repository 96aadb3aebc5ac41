"""The hierarchical worker model: a matrix the crowd shares, and how each worker departs from it.

    m_k[c, z] = softmax_z( log G[c, z] + a_k 1[c = z] + b_k[z] )

G is the crowd's matrix, a_k the tilt of worker k towards the truth, b_k[z] their bias for label
z; a_k ~ N(0, σ_a²) and b_k[z] ~ N(0, σ_b²). `docs/hierarchical.md` derives every line of this file.

Of all labels ever seen the loss needs only the counts N_k[c, z]: labels z of worker k on items
expected to be c. Arrays have the classes first and the workers last, (C, C, K) and (C + 1, K):
a sum over few classes of many workers is then vector code. Row 0 of θ is a, the others are b.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.learn.bila.lazy_jax import jax
from labelquorum.learn.bila.minibatch import CountedBatch, Leaf, array_namespace, segment_sum

MAX_UNROLLED_CLASSES = 16
"""Sums over at most this many classes are written out term by term: XLA vectorises those better."""

DAMPING = 1e-5
"""Relative enlargement of the Hessian's diagonal: in float32 no pivot can then come out negative,
be it after 10⁹ labels of one worker."""

HIERARCHICAL, ONE_COIN = "rich", "plain"
"""The worker models, as arrays in saved models are named after them."""


class Recipe(NamedTuple):
    """The constants of model and update; `Settings` says what each of them means."""

    tilt_scale: float = 1.0  # σ_a
    bias_scale: float = 0.4  # σ_b
    worker_cap: float = 5.0  # κ
    crowd_strength: float = 50.0  # g₀
    crowd_accuracy: float = 0.7
    accuracy_strength: float = 10.0
    class_prior: str = "blended"
    class_strength: float = 1.0
    prior_mix: float = 0.8
    inner_steps: int = 10
    step_limit: float = 1.0
    newton_classes: int = 8
    own_weight: float = 0.0
    dependence: float | str = 0.2  # ρ, or "learned"
    tolerance: float = 0.0  # q moves by less: the rounds end
    gold_sampling: str = "random"
    worker_models: tuple[str, ...] = (HIERARCHICAL,)


COUNTED_PRIORS = ("blended", "running", "uniform")
"""What `class_prior` may be."""


# ── what all workers share ───────────────────────────────────────────────────────────────
# These are plain arithmetic: NumPy's arrays give NumPy's, JAX's give JAX's.


def worker_weight(totals: Leaf, recipe: Recipe) -> Leaf:
    """How much of a worker's labels on items of class c goes into the crowd's matrix."""
    # κ / (κ + n_k[c]): together they count for less than κ labels
    return recipe.worker_cap / (recipe.worker_cap + totals)


def crowd_matrix(pooled: Leaf, recipe: Recipe) -> Leaf:
    """G, what the crowd does on average, (C, C), from the pooled counts P."""
    n_classes = len(pooled)
    same = np.eye(n_classes, dtype=np.float32)
    # ā = (Σ_c P[c, c] + s ā₀) / (Σ P + s), and 1 − ā, which must not be rounded to 0
    prior = recipe.accuracy_strength * recipe.crowd_accuracy
    hits = (pooled * same).sum() + prior
    misses = (pooled * (1 - same)).sum() + recipe.accuracy_strength - prior
    # S = ā on the diagonal, (1 − ā)/(C − 1) off it
    spread = (hits * same + misses / max(n_classes - 1, 1) * (1 - same)) / (hits + misses)
    # G = (P + g₀ S), each row divided by its sum
    counts = pooled + recipe.crowd_strength * spread
    return counts / counts.sum(axis=1, keepdims=True)


def class_prior(label_shares: Leaf, class_counts: Leaf, recipe: Recipe) -> Leaf:
    """π, how frequent the classes are, (C,), by what was said (f) and what was inferred (ν)."""
    # u ∝ f + 1,  v ∝ ν + 1,  w ∝ √(u v);  the square root loses both constants
    said, inferred = label_shares + recipe.class_strength, class_counts + recipe.class_strength
    blend = {
        "blended": (said / said.sum() * inferred / inferred.sum()) ** 0.5,
        "running": said,
        "uniform": 0 * said + 1,
    }[recipe.class_prior]
    # π = 0.8 w + 0.2 / C
    return recipe.prior_mix * blend / blend.sum() + (1 - recipe.prior_mix) / len(label_shares)


# ── a worker's matrix ────────────────────────────────────────────────────────────────────


def row_sums(crowd: Leaf, tilt_factor: Leaf, bias_factor: Leaf) -> Leaf:
    """R_k[c], what the rows of G e^{a 1 + b} sum to, (C, K); factors are e^a (K,), e^b (C, K)."""
    off_diagonal = crowd * (1 - np.eye(len(crowd), dtype=np.float32))
    # R_k[c] = Σ_{z ≠ c} G[c, z] e^{b_z} + G[c, c] e^{b_c} e^a
    return off_diagonal @ bias_factor + _diagonal(crowd)[:, None] * bias_factor * tilt_factor


def confusion(crowd: Leaf, theta: Leaf) -> Leaf:
    """m_k[c, z], (C, C, K).

    No exponent overflows: the priors hold θ to logarithms of counts.
    """
    xp = array_namespace(crowd, theta)
    tilt_factor, bias_factor = xp.exp(theta[0]), xp.exp(theta[1:])
    same = np.eye(len(crowd), dtype=bool)[:, :, None]
    share = 1 / row_sums(crowd, tilt_factor, bias_factor)
    return crowd[:, :, None] * bias_factor * xp.where(same, tilt_factor, 1.0) * share[:, None]


def label_log_probs(
    theta: Leaf, counts: Leaf, crowd: Leaf, worker: Leaf, label: Leaf, recipe: Recipe
) -> Leaf:
    """What labels say: log m_k[c, l] by worker and label, (B, C)."""
    xp, n_classes = array_namespace(crowd, theta), len(crowd)
    log_sums = xp.log(row_sums(crowd, xp.exp(theta[0]), xp.exp(theta[1:])))
    tilt, bias = theta[0][:, None, None], theta[1:].T[:, :, None]
    # log m_k[c, z] = log G[c, z] + a 1[c = z] + b_z − log R_k[c], as an array [k, z, c]
    same = np.eye(n_classes, dtype=np.float32)
    table = xp.log(crowd).T + tilt * same + bias - log_sums.T[:, None]
    cell = worker * n_classes + label
    said = table.reshape(-1, n_classes)[cell]
    if not recipe.own_weight:
        return said
    known = counts.transpose(2, 1, 0).reshape(-1, n_classes)[cell]  # N_k[c, l]
    totals = counts.sum(axis=1).T[worker]  # n_k[c]
    return xp.log(with_own(xp.exp(said), known, totals, recipe))


def right(theta: Leaf, counts: Leaf, crowd: Leaf, recipe: Recipe) -> Leaf:
    """P(k says c | c), the diagonal of m, (C, K)."""
    xp = array_namespace(crowd, theta)
    tilt_factor, bias_factor = xp.exp(theta[0]), xp.exp(theta[1:])
    # m_k[c, c] = G[c, c] e^{a + b_c} / R_k[c]
    own = _diagonal(crowd)[:, None] * bias_factor * tilt_factor
    share = own / row_sums(crowd, tilt_factor, bias_factor)
    return with_own(share, _diagonal(counts), counts.sum(axis=1), recipe)


def log_powers(theta: Leaf, counts: Leaf, crowd: Leaf, recipe: Recipe, power: float) -> Leaf:
    """Compute log Σ_z m_k[c, z]^λ, (C, K)."""
    matrix = confusion(crowd, theta)
    matrix = with_own(matrix, counts, counts.sum(axis=1, keepdims=True), recipe)
    return array_namespace(matrix).log((matrix**power).sum(axis=1))


def matrices(centre: NDArray[Any], theta: NDArray[Any]) -> NDArray[Any]:
    """`confusion` in NumPy with the workers first, (…, C, C), from θ (…, D); D is 1 without b."""
    logits = np.log(centre) + theta[..., :1, None] * np.eye(len(centre), dtype=centre.dtype)
    if theta.shape[-1] > 1:
        logits = logits + theta[..., None, 1:]
    return normalised(np.exp(logits))


def worker_matrices(theta: Floats, counts: Floats, crowd: Floats, recipe: Recipe) -> Floats:
    """M with the worker's own counts, (P, C, C), from θ (P, C + 1) and counts (P, C, C)."""
    totals = counts.sum(axis=2, keepdims=True)
    return np.asarray(with_own(matrices(crowd, theta), counts, totals, recipe))


def normalised(rows: NDArray[Any]) -> NDArray[Any]:
    """Divide by the sum along the last axis, in place; this is faster than a short `sum`."""
    rows /= np.einsum("...z->...", rows)[..., None]
    return rows


def with_own(matrix: Leaf, counts: Leaf, totals: Leaf, recipe: Recipe) -> Leaf:
    """Entries of m, moved towards the worker's own counts.

    Parameters
    ----------
    matrix, counts, totals
        m_k[c, z], N_k[c, z] and n_k[c], of shapes that go together.
    """
    # (m + w N) / (1 + w n): the mean of a row whose prior is Dirichlet(m / w)
    return (matrix + recipe.own_weight * counts) / (1 + recipe.own_weight * totals)


# ── the loss of a worker, its gradient and its Hessian ───────────────────────────────────


def loss(theta: Leaf, counts: Leaf, crowd: Leaf, recipe: Recipe) -> Leaf:
    """−J_k: minus the expected log-likelihood of all labels seen, and the prior, (K,)."""
    # J_k = Σ_{c,z} N_k[c, z] log m_k[c, z] − a² / 2σ_a² − |b|² / 2σ_b²
    matrix = confusion(crowd, theta)
    fit = (counts * array_namespace(matrix).log(matrix)).sum(axis=(0, 1))
    return (_precision(theta, recipe) * theta**2 / 2).sum(axis=0) - fit


def gradient(theta: Leaf, counts: Leaf, matrix: Leaf, recipe: Recipe) -> Leaf:
    """∂J/∂θ, (C + 1, K); `matrix` is m."""
    totals = _sum(counts, 1)
    # E = N − n m;  ∂J/∂a = Σ_c E[c, c] − a/σ_a²;  ∂J/∂b_z = Σ_c E[c, z] − b_z/σ_b²
    tilt = _sum(_diagonal(counts) - totals * _diagonal(matrix), 0)
    bias = _sum(counts, 0) - _sum(totals[:, None] * matrix, 0)
    xp = array_namespace(theta, matrix)
    return xp.concatenate([tilt[None], bias]) - _precision(theta, recipe) * theta


def curvature(theta: Leaf, counts: Leaf, matrix: Leaf, recipe: Recipe) -> Leaf:
    """−∂²J/∂θ², (C + 1, C + 1, K): positive definite, so J has one maximum."""
    totals, right = _sum(counts, 1), _diagonal(matrix)
    expected = totals[:, None] * matrix  # n_c m[c, z]
    # H_aa = Σ_c n_c m_cc (1 − m_cc);  H_ab[z] = n_z m_zz − Σ_c n_c m_cc m_cz
    tilt = _sum(totals * right * (1 - right), 0)
    both = totals * right - _sum(right[:, None] * expected, 0)
    # H_bb[z, y] = 1[z = y] Σ_c n_c m_cz − Σ_c n_c m_cz m_cy
    same = np.eye(len(matrix), dtype=np.float32)[:, :, None]
    bias = same * _sum(expected, 0) - _sum(expected[:, :, None] * matrix[:, None], 0)
    xp = array_namespace(matrix)
    top = xp.concatenate([tilt[None], both])
    hessian = xp.concatenate([top[None], xp.concatenate([both[:, None], bias], axis=1)])
    # and the prior's 1/σ² on the diagonal
    return hessian + np.eye(len(theta), dtype=np.float32)[:, :, None] * _precision(theta, recipe)


def diagonal_curvature(theta: Leaf, counts: Leaf, matrix: Leaf, recipe: Recipe) -> Leaf:
    """The diagonal of `curvature` alone, (C + 1, K), for many classes."""
    totals, right = _sum(counts, 1), _diagonal(matrix)
    tilt = _sum(totals * right * (1 - right), 0)
    bias = _sum(totals[:, None] * matrix * (1 - matrix), 0)
    return array_namespace(matrix).concatenate([tilt[None], bias]) + _precision(theta, recipe)


def step(theta: Leaf, counts: Leaf, crowd: Leaf, recipe: Recipe) -> Leaf:
    """One curvature step of every worker, (C + 1, K)."""
    matrix = confusion(crowd, theta)
    slope = gradient(theta, counts, matrix, recipe)
    if len(crowd) <= recipe.newton_classes:
        # θ ← θ + clip(H⁻¹ g, −1, 1)
        hessian = curvature(theta, counts, matrix, recipe)
        damped = 1 + DAMPING * np.eye(len(theta), dtype=theta.dtype)
        move = _solve(hessian * damped[:, :, None], slope)
    else:
        # θ ← θ + clip(½ g / diag H, −1, 1)
        move = slope / diagonal_curvature(theta, counts, matrix, recipe) / 2
    xp = array_namespace(theta, matrix)
    theta = theta + xp.clip(move, -recipe.step_limit, recipe.step_limit)
    # The same number added to all b_z changes no m, and the prior wants their sum to be 0.
    return xp.concatenate([theta[:1], theta[1:] - _sum(theta[1:], 0) / len(crowd)])


# ── counting ─────────────────────────────────────────────────────────────────────────────


def count_labels(class_probs: Leaf, batch: CountedBatch, n_workers: int) -> Leaf:
    """ΔN of q (M, C), (C, C, K)."""
    n_classes = class_probs.shape[1]
    # ΔN_k[c, z] = Σ_i q_i(c) 1[l_ik = z]
    rows = class_probs[batch.item] * batch.counted_weight[:, None]
    cell = batch.worker * n_classes + batch.label
    total = segment_sum(rows, cell, n_workers * n_classes)
    return total.reshape(n_workers, n_classes, n_classes).transpose(2, 1, 0)


def pool(counts: Leaf, recipe: Recipe) -> Leaf:
    """These workers' share of P, (C, C)."""
    # Σ_k N_k[c, z] κ/(κ + n_k[c])
    weight = worker_weight(_sum(counts, 1), recipe)
    return array_namespace(counts).einsum("czk,ck->cz", counts, weight)


def _precision(theta: Leaf, recipe: Recipe) -> Any:
    """1/σ_a² for the tilt, 1/σ_b² for the biases, (C + 1, 1)."""
    scales = [recipe.tilt_scale] + [recipe.bias_scale] * (len(theta) - 1)
    return np.asarray(scales, theta.dtype)[:, None] ** -2


def _solve(matrix: Leaf, vector: Leaf) -> Leaf:
    """Gauss, all workers at once: (D, D, K) and (D, K) give (D, K); no pivot of ours is zero."""
    xp = array_namespace(matrix)
    table = xp.concatenate([matrix, vector[:, None]], axis=1)
    rows: list[Leaf] = []
    for _ in range(len(vector)):
        rows.append(table[0, 1:] / table[0, 0])
        table = table[1:, 1:] - table[1:, :1] * rows[-1]
    solution: list[Leaf] = []  # from the last unknown to the first
    for row in reversed(rows):
        known = [row[i] * value for i, value in enumerate(reversed(solution))]
        solution.append(row[-1] - sum(known))
    return xp.stack(solution[::-1])


def _diagonal(square: Leaf) -> Leaf:
    index = np.arange(len(square))
    return square[index, index]


def _sum(values: Leaf, axis: int) -> Leaf:
    """Add up along an axis of classes."""
    if values.shape[axis] > MAX_UNROLLED_CLASSES or isinstance(values, np.ndarray):
        return values.sum(axis=axis)
    parts = [jax.lax.index_in_dim(values, c, axis, False) for c in range(values.shape[axis])]
    return sum(parts[1:], parts[0])
