"""How well a worker is known: draws of his matrix from its posterior, and what they must allow for.

Around its maximum J_k is a parabola, so that θ_k is normal with the inverse Hessian for its
covariance (Laplace). Three things make workers less well known than that, and are allowed for:
the truth is not known but inferred, what was inferred is never inferred anew, and no worker's
matrix is exactly one that θ can express. `docs/confidence.md` derives every line of this file.

Everything is NumPy in float64, a block of workers at a time. Arrays have the workers first. Row 0
of θ is the tilt; the biases follow, where the model has them.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum.learn.hierarchical import Recipe, class_prior, crowd_matrix
from labelquorum.learn.offline import Floats

__all__ = [
    "Crowd",
    "Known",
    "Surroundings",
    "draw_matrices",
    "draws",
    "fisher_rows",
    "how_known",
    "matrices",
    "observed_rows",
    "row_spread",
    "surroundings",
    "variance_factor",
]

ITEMS = 200
"""Items that are imagined to see how sure the crowd is of an item's truth."""

MOST_LABELS = 40
"""More labels on an imagined item change nothing."""

SAMPLE = 400
"""Workers from whom it is told how far matrices stray from what θ can express."""

SPREAD = 0.03
"""How far they stray before anything is known: 1/(τ + 1) is about so much, give or take as much."""

MOST_CELLS = 1 << 21
"""Numbers that are laid out at a time."""

LEAST = 1e-3
"""The least share of information that is reckoned with, and the least number of a Dirichlet law."""


class Crowd(NamedTuple):
    """Everybody's numbers, as the aggregator counted them."""

    counts: Floats  # N (K, C, C)
    theta: Floats  # (K, D); D is 1 + C with biases, 1 without
    centre: Floats  # G (C, C), the matrix of θ = 0
    precision: Floats  # (D,) of the prior of θ
    class_prior: Floats  # π (C,)
    class_counts: Floats  # ν (C,), the sum of q over items
    n_chunks: float  # in how many chunks the labels came


class Surroundings(NamedTuple):
    """What a label of somebody meets: imagined items, and how far matrices stray."""

    truth: NDArray[np.intp]  # (S,) each class equally often
    others: Floats  # r (S, C), what the labels of others say of the item
    spread: float  # 1/(τ + 1); 0 where every matrix is one that θ can express


class Known(NamedTuple):
    """The posterior of P workers."""

    theta: Floats  # (P, D)
    root: Floats  # (P, D, D), times its transpose the covariance of θ
    seen: Floats  # (P, C, C), what their labels add to the Dirichlet law of a row


def draws(
    state: Any,
    workers: NDArray[np.integer[Any]],
    n_draws: int,
    rng: np.random.Generator,
    n_chunks: float,
    recipe: Recipe,
) -> Iterator[NDArray[np.float32]]:
    """Draw matrices of workers from a state of `counting`; see `draw_matrices`."""
    rows, n_classes = state.rows.to_arrays(), len(state.pooled)
    scales = np.array([recipe.tilt_scale] + [recipe.bias_scale] * n_classes)
    crowd = Crowd(
        counts=rows["counts"],
        theta=rows["theta"],
        centre=crowd_matrix(state.pooled, recipe),
        precision=scales**-2.0,
        class_prior=class_prior(state.label_shares, state.class_counts, recipe),
        class_counts=state.class_counts,
        n_chunks=n_chunks,
    )
    return draw_matrices(crowd, workers, n_draws, rng)


def draw_matrices(
    crowd: Crowd, workers: NDArray[np.integer[Any]], n_draws: int, rng: np.random.Generator
) -> Iterator[NDArray[np.float32]]:
    """Draw the matrices of these workers from their posterior, (S, P, C, C) a block of them.

    The same generator gives a worker the same draws, whoever stands beside him.
    """
    n_classes, n_params = len(crowd.centre), crowd.theta.shape[1]
    around = surroundings(crowd, rng)
    # Shared by all: each worker's draws are right, and do not depend on who else is asked about.
    normal = rng.standard_normal((n_draws, n_params))
    row_normal = rng.standard_normal((n_draws, 1, n_classes, n_classes))
    row_uniform = rng.random((n_draws, 1, n_classes, n_classes))
    for some in _blocks(len(workers), max(len(around.truth), n_draws) * n_classes**2):
        known = how_known(crowd, workers[some], around)
        theta = known.theta + np.einsum("kde,se->skd", known.root, normal)
        matrix = matrices(crowd.centre, theta)
        if around.spread > 0:
            # p_k[c] ~ Dirichlet(τ m_θ[c] + what was seen of the row)
            shape = (1 / around.spread - 1) * matrix + known.seen
            matrix = _gamma(np.maximum(shape, LEAST), row_normal, row_uniform)
            matrix /= matrix.sum(axis=3, keepdims=True)
        yield matrix.astype(np.float32)


def matrices(centre: Floats, theta: Floats) -> Floats:
    """m[c, z] = softmax_z( log G[c, z] + a 1[c = z] + b_z ), (…, C, C); no b, no biases."""
    logits = np.log(centre) + theta[..., :1, None] * np.eye(len(centre))
    if theta.shape[-1] > 1:
        logits = logits + theta[..., None, 1:]
    matrix = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(matrix / matrix.sum(axis=-1, keepdims=True))


# ── what a label tells of θ ──────────────────────────────────────────────────────────────


def fisher_rows(matrix: Floats, n_params: int) -> Floats:
    """What a label on an item known to be c tells of θ: information (P, C, D, D).

    Times n_k[c], added up and with the prior's precision it is the Hessian of J_k.
    """
    # Σ_z m[c, z] (x − x̄)(x − x̄)ᵀ with x[c, z] = ∂η[c, z]/∂θ and x̄[c] its mean over row c
    design = _design(matrix.shape[1], n_params)
    mean = np.einsum("kcz,czd->kcd", matrix, design)
    second = np.einsum("kcz,czd,cze->kcde", matrix, design, design, optimize=True)
    return np.asarray(second - mean[..., :, None] * mean[..., None, :])


def observed_rows(
    matrix: Floats, totals: Floats, around: Surroundings, n_params: int
) -> tuple[Floats, Floats]:
    """What a label tells where the truth must be inferred from it and from labels of others.

    Parameters
    ----------
    matrix, totals
        m (P, C, C), and how many labels a worker gave on items of each class, (P, C).

    Returns
    -------
    information : (P, C, D, D), of a label on an item that is c
    purity : (P, C, C), Σ q² / Σ q over the labels z counted for c; 1 where the truth is known
    """
    n_workers, n_classes = len(matrix), matrix.shape[1]
    truth, others = around.truth, around.others
    # q[z, c] = r_c m[c, z] / Σ_d r_d m[d, z], what is believed once the worker has said z
    probs = others[None, :, None] * matrix.swapaxes(1, 2)[:, None]  # (P, S, Z, C)
    probs /= np.maximum(probs.sum(axis=3, keepdims=True), np.finfo(float).tiny)
    # the score of θ is the mean by q of x[c, z] − x̄[c]
    right = np.einsum("kcc->kc", matrix)[:, None, :, None]
    score = np.einsum("kszz->ksz", probs)[..., None] - probs @ right
    if n_params > 1:
        flat = probs.reshape(n_workers, -1, n_classes) @ matrix
        score = np.concatenate([score, np.eye(n_classes) - flat.reshape(probs.shape)], axis=3)
    said = matrix[:, truth]  # (P, S, Z), how often z is said of the item
    per_class = len(truth) // n_classes
    shape = (n_workers, n_classes, per_class * n_classes)
    weighted = (score * said[..., None]).reshape(*shape, n_params) / per_class
    information = weighted.swapaxes(2, 3) @ score.reshape(*shape, n_params)
    weight = said * totals[:, truth][:, :, None]
    total = np.einsum("ksz,kszc->kcz", weight, probs)
    squares = np.einsum("ksz,kszc->kcz", weight, probs**2)
    purity = np.divide(squares, total, out=np.ones_like(total), where=total > 0)
    return information, purity


def variance_factor(observed: Floats, prior: Floats, n_chunks: Floats) -> Floats:
    """By how much the variance exceeds 1/H along a direction.

    Parameters
    ----------
    observed
        A, the share of a label's information that is left where the truth is inferred.
    prior
        p, the prior's share of H.
    n_chunks
        J, in how many chunks the worker's labels came.
    """
    # the first chunk: u₀ = p + (1 − p)/J of the information, V₀ = 1 / (p + A (1 − p)/J)
    start = prior + (1 - prior) / n_chunks
    first = 1 / (prior + observed * (1 - prior) / n_chunks)
    # then dV/du = −2A V/u + A/u², to u = 1:  V = B + (u₀ V₀ − B) u₀^(2A − 1),  B = A/(2A − 1)
    power = 2 * observed - 1
    power = np.where(np.abs(power) < LEAST**2, LEAST**2, power)
    limit = observed / power
    return np.asarray(limit + (start * first - limit) * start**power)


# ── what all workers share ───────────────────────────────────────────────────────────────


def surroundings(crowd: Crowd, rng: np.random.Generator) -> Surroundings:
    """Imagine items as this crowd labels them, and tell how far its matrices stray."""
    n_classes = len(crowd.centre)
    labels = crowd.counts.sum(axis=(1, 2))
    chosen = np.flatnonzero(labels > 0)
    if not len(chosen):
        nobody = np.tile(crowd.class_prior, (n_classes, 1))
        return Surroundings(np.arange(n_classes), nobody, SPREAD if n_classes > 2 else 0.0)
    most = max(SAMPLE // 10, min(SAMPLE, 20 * SAMPLE // n_classes**2))  # they cost C⁴ each
    if len(chosen) > most:
        share = labels[chosen] / labels[chosen].sum()
        chosen = np.sort(rng.choice(chosen, most, replace=False, p=share))
    matrix = matrices(crowd.centre, crowd.theta[chosen])
    # n̄ labels an item: all that was counted, by the items it was counted on
    items = max(float(crowd.class_counts.sum()), 1.0)
    truth, others = _imagine(
        matrix, labels[chosen], crowd.class_prior, float(labels.sum()) / items, rng
    )
    around = Surroundings(truth, others, 0.0)
    if n_classes < 3:  # two classes: θ can express every matrix
        return around
    return around._replace(spread=row_spread(crowd, chosen, around))


def _imagine(
    matrix: Floats, labels: Floats, class_prior: Floats, n_labels: float, rng: np.random.Generator
) -> tuple[NDArray[np.intp], Floats]:
    """Draw items, equally many of each class, and what n̄ − 1 labels of others say of them."""
    n_classes = len(class_prior)
    truth = np.repeat(np.arange(n_classes), max(ITEMS // n_classes, 4))
    count = np.floor(np.clip(n_labels - 1, 0, MOST_LABELS) + rng.random(len(truth)))
    log_probs = np.tile(np.log(class_prior), (len(truth), 1))
    cumulative = np.cumsum(matrix, axis=2)
    for number in range(int(count.max(initial=0))):
        worker = rng.choice(len(matrix), len(truth), p=labels / labels.sum())
        level = rng.random((len(truth), 1))
        label = (level >= cumulative[worker, truth][:, :-1]).sum(axis=1)
        said = np.log(matrix[worker, :, label])
        log_probs += np.where((count > number)[:, None], said, 0)
    probs = np.exp(log_probs - log_probs.max(axis=1, keepdims=True))
    return truth, probs / probs.sum(axis=1, keepdims=True)


def row_spread(crowd: Crowd, workers: NDArray[np.integer[Any]], around: Surroundings) -> float:
    """1/(τ + 1): how far the rows of matrices stray from what θ can express.

    Were each row drawn from a Dirichlet law with mean m and strength τ, the counts would scatter
    around n m more than labels alone do. What θ can follow is taken out.
    """
    excess = weight = noise = 0.0
    n_classes, n_params = len(crowd.centre), crowd.theta.shape[1]
    for some in _blocks(len(workers), len(around.truth) * n_classes**2):
        counts, theta = crowd.counts[workers[some]], crowd.theta[workers[some]]
        matrix, totals = matrices(crowd.centre, theta), counts.sum(axis=2)
        information, purity = observed_rows(matrix, totals, around, n_params)
        observed = np.einsum("kc,kcde->kde", totals, information)
        complete = np.einsum("kc,kcde->kde", totals, fisher_rows(matrix, n_params))
        inverse = np.linalg.pinv(complete, hermitian=True)
        residual = counts - totals[:, :, None] * matrix
        expected = np.maximum(totals[:, :, None] * matrix, np.finfo(float).tiny)
        # Σ E² / (n m), less its part along θ
        slope = np.einsum("kcz,czd->kd", residual, _design(n_classes, n_params))
        scatter = (residual**2 / expected).sum(axis=(1, 2))
        scatter -= np.einsum("kd,kde,ke->k", slope, inverse, slope)
        # what labels alone would make of it: Σ_z' q² (1[z = z'] − m_z)² / (n m), less that part
        squares = purity * counts
        alone = squares * (1 - 2 * matrix) + matrix**2 * squares.sum(axis=2, keepdims=True)
        chance = (alone / expected).sum(axis=(1, 2)) - np.einsum("kde,ked->k", inverse, observed)
        # and how much of 1/(τ + 1) would show
        shown = ((1 - matrix) * purity**2).sum(axis=2) * np.maximum(totals - 1, 0)
        free = 1 - (n_params - (n_params > 1)) / (n_classes * (n_classes - 1))
        excess += float((scatter - chance).sum())
        weight += float(shown.sum()) * free
        noise += 2 * max(float(chance.sum()), 0.0)
    # a normal prior, and a normal law of the excess
    prior = 1 / SPREAD**2
    data = weight**2 / noise if noise > 0 else 0.0
    mean = excess / weight if weight > 0 else 0.0
    spread = (prior * SPREAD + data * mean) / (prior + data)
    return spread if spread > LEAST / 10 else 0.0


# ── what is known of each worker ─────────────────────────────────────────────────────────


def how_known(crowd: Crowd, workers: NDArray[np.integer[Any]], around: Surroundings) -> Known:
    """The posterior of these workers, as labels and the surroundings tell it."""
    counts, theta = crowd.counts[workers], crowd.theta[workers]
    n_params = theta.shape[1]
    matrix, totals = matrices(crowd.centre, theta), counts.sum(axis=2)
    information, purity = observed_rows(matrix, totals, around, n_params)
    # a row's share of information that is left: its cells' purity, by their variance m (1 − m)
    variance = matrix * (1 - matrix)
    left = (purity * variance).sum(axis=2) / np.maximum(variance.sum(axis=2), LEAST**3)
    # (A n m + E): what was seen of a row, no more of it than was observed
    seen = counts - ((1 - left) * totals)[:, :, None] * matrix
    # a row that strays tells less of θ: n (τ + 1) / (τ + 1 + A n)
    told = totals / (1 + around.spread * left * totals)
    prior = np.diag(crowd.precision)
    hessian = np.einsum("kc,kcde->kde", told, fisher_rows(matrix, n_params)) + prior
    observed = np.einsum("kc,kcde->kde", told, information)
    # U with Uᵀ H U = 1 and Uᵀ I U diagonal
    whitener = np.linalg.inv(np.linalg.cholesky(hessian))
    share, axes = np.linalg.eigh(whitener @ observed @ whitener.swapaxes(1, 2))
    axes = whitener.swapaxes(1, 2) @ axes
    given = np.clip(np.einsum("kde,d,kde->ke", axes, crowd.precision, axes), LEAST**3, 1)
    share = np.clip(share / np.maximum(1 - given, LEAST**3), LEAST, 1)
    n_chunks = np.clip(totals.sum(axis=1, keepdims=True), 1, max(crowd.n_chunks, 1))
    scale = np.sqrt(variance_factor(share, given, n_chunks))
    return Known(theta, axes * scale[:, None], seen)


def _design(n_classes: int, n_params: int) -> Floats:
    """x[c, z] = ∂η[c, z]/∂θ, (C, C, D): 1[c = z] for the tilt, and 1[y = z] for each bias b_y."""
    same = np.eye(n_classes)
    tilt = same[:, :, None]
    if n_params == 1:
        return tilt
    return np.concatenate([tilt, np.broadcast_to(same, (n_classes,) * 3)], axis=2)


def _gamma(shape: Floats, normal: Floats, uniform: Floats) -> Floats:
    """Gamma draws made of normal and uniform ones.

    Wilson and Hilferty (1931): the cube root is nearly normal, for a shape above 1; and a draw of
    shape + 1 times uniform^(1/shape) is one of shape.
    """
    more = shape + 1
    root = np.maximum(1 - 1 / (9 * more) + normal / (3 * np.sqrt(more)), 0)
    return np.asarray(more * root**3 * uniform ** (1 / shape) + np.finfo(float).tiny)


def _blocks(n_rows: int, cells: int) -> list[slice]:
    """Rows a block at a time, so many numbers each."""
    size = max(1, MOST_CELLS // max(cells, 1))
    return [slice(start, start + size) for start in range(0, n_rows, size)]
