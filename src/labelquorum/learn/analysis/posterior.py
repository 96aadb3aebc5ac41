"""How well a worker is known: draws of their matrix from its posterior.

Around its maximum J_k is a parabola, so that θ_k is normal with the inverse Hessian for its
covariance (Laplace). Three things make workers less well known than that, and are allowed for:
the truth is not known but inferred, what was inferred is never inferred again, and no worker's
matrix is exactly one that θ can express.

A label tells less of a worker where the truth of its item is not known for sure. How sure the
crowd is of its items is not kept, but follows from what is: items are imagined as this crowd
would label them. From how far its counts scatter follows how far matrices stray from what θ can
express. `docs/confidence.md` derives every line of this file.

Everything is NumPy in float64, a block of workers at a time. Arrays have the workers first. Row 0
of θ is the tilt; the biases follow, where the model has them.
"""

from collections.abc import Iterator
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.learn.bila.hierarchical import Recipe, class_prior, matrices, normalised
from labelquorum.learn.bila.worker_models import WORKER_MODELS

ITEMS = 200
"""Items that are imagined to see how sure the crowd is of an item's truth."""

MAX_LABELS_PER_ITEM = 40
"""More labels on an imagined item change nothing."""

MAX_SAMPLED_WORKERS = 400
"""Workers by whom we estimate how far matrices stray from what θ can express."""

SPREAD = 0.03
"""How far they stray before anything is known: mean and standard deviation of 1/(τ + 1)."""

MAX_ARRAY_SIZE = 1 << 21
"""Numbers in an array at a time."""

MIN_SHARE = 1e-3
"""The least share of information that is reckoned with, and the least number of a Dirichlet law."""


class Counted(NamedTuple):
    """Everybody's numbers, as the aggregator counted them."""

    counts: Floats  # N (K, C, C); without biases only their diagonals and row sums are used
    theta: Floats  # (K, D); D is 1 + C with biases, 1 without
    centre: Floats  # G (C, C), the matrix of θ = 0
    precision: Floats  # (D,) of the prior of θ
    class_prior: Floats  # π (C,)
    class_counts: Floats  # ν (C,), the sum of q over items
    n_chunks: float  # in how many chunks the labels came


class Surroundings(NamedTuple):
    """What a worker's label meets: imagined items, and how far matrices stray."""

    truth: NDArray[np.intp]  # (S,) each class equally often
    others: Floats  # r (S, C), what the labels of others say of the item
    spread: float  # 1/(τ + 1); 0 where every matrix is one that θ can express


# ── matrices, and what a label tells of θ ────────────────────────────────────────────────


def fisher_rows(matrix: Floats, n_params: int) -> Floats:
    """What a label on an item known to be c tells of θ: information (P, C, D, D).

    Times n_k[c], added up and with the prior's precision it is the Hessian of J_k.
    """
    # Σ_z m[c, z] (x − x̄)(x − x̄)ᵀ with x[c, z] = ∂η[c, z]/∂θ and x̄[c] its mean over row c
    slopes = design(matrix.shape[1], n_params)
    mean = np.einsum("kcz,czd->kcd", matrix, slopes)
    second = np.einsum("kcz,czd,cze->kcde", matrix, slopes, slopes, optimize=True)
    return np.asarray(second - mean[..., :, None] * mean[..., None, :])


def observed_rows(
    matrix: Floats, totals: Floats, around: Surroundings, n_params: int
) -> tuple[Floats, Floats]:
    """What a label tells where the truth must be inferred from it and from labels of others.

    Parameters
    ----------
    matrix, totals
        m (P, C, C), and how many labels each worker gave on items of each class, (P, C).

    Returns
    -------
    information : (P, C, D, D), of a label on an item that is c
    purity : (P, C, C), Σ q² / Σ q over the labels z counted for c; 1 where the truth is known
    """
    n_workers, n_classes = len(matrix), matrix.shape[1]
    truth, others = around.truth, around.others
    # q[z, c] = r_c m[c, z] / Σ_d r_d m[d, z], what is believed once the worker has said z
    probs = others[None, :, None] * matrix.swapaxes(1, 2)[:, None]  # (P, S, Z, C)
    probs = normalised(np.maximum(probs, np.finfo(float).tiny))
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


def design(n_classes: int, n_params: int) -> Floats:
    """x[c, z] = ∂η[c, z]/∂θ, (C, C, D): 1[c = z] for the tilt, and 1[y = z] for each bias b_y."""
    same = np.eye(n_classes)
    tilt = same[:, :, None]
    if n_params == 1:
        return tilt
    return np.concatenate([tilt, np.broadcast_to(same, (n_classes,) * 3)], axis=2)


def as_matrices(counts: Floats) -> Floats:
    """Counts of right labels and of all, (K, 2, C), as matrices: mistakes are spread evenly."""
    right, total = counts[:, 0, :, None], counts[:, 1, :, None]
    same = np.eye(counts.shape[2])
    return np.asarray(right * same + (total - right) / max(len(same) - 1, 1) * (1 - same))


def _right_or_wrong(
    counts: Floats, matrix: Floats, purity: Floats
) -> tuple[Floats, Floats, Floats, Floats]:
    """Rows of two cells, right and wrong, (P, C, 2) each, and how they move with the tilt."""

    def two(cells: Floats) -> Floats:
        right = np.einsum("kcc->kc", cells)
        return np.stack([right, cells.sum(axis=2) - right], axis=2)

    pure = two(purity * matrix) / np.maximum(two(matrix), np.finfo(float).tiny)
    n_classes = matrix.shape[1]
    return two(counts), two(matrix), pure, np.tile([[[1.0], [0.0]]], (n_classes, 1, 1))


# ── what all workers share ───────────────────────────────────────────────────────────────


def surroundings(counted: Counted, rng: np.random.Generator) -> Surroundings:
    """Imagine items as this crowd labels them, and tell how far its matrices stray."""
    n_classes = len(counted.centre)
    labels = counted.counts.sum(axis=(1, 2))
    chosen = np.flatnonzero(labels > 0)
    if not len(chosen):
        nobody = np.tile(counted.class_prior, (n_classes, 1))
        return Surroundings(np.arange(n_classes), nobody, SPREAD if n_classes > 2 else 0.0)
    most = max(
        MAX_SAMPLED_WORKERS // 10,
        min(MAX_SAMPLED_WORKERS, 20 * MAX_SAMPLED_WORKERS // n_classes**2),
    )  # they cost C⁴ each
    if len(chosen) > most:
        share = labels[chosen] / labels[chosen].sum()
        chosen = np.sort(rng.choice(chosen, most, replace=False, p=share))
    matrix = matrices(counted.centre, counted.theta[chosen])
    # n̄ labels per item: all that was counted, by the items it was counted on
    items = max(float(counted.class_counts.sum()), 1.0)
    truth, others = _imagine(
        matrix, labels[chosen], counted.class_prior, float(labels.sum()) / items, rng
    )
    around = Surroundings(truth, others, 0.0)
    # With biases θ can express every matrix of two classes.
    if n_classes < 2 or (n_classes == 2 and counted.theta.shape[1] > 1):
        return around
    return around._replace(spread=row_spread(counted, chosen, around))


def _imagine(
    matrix: Floats, labels: Floats, class_prior: Floats, n_labels: float, rng: np.random.Generator
) -> tuple[NDArray[np.intp], Floats]:
    """Draw items, equally many of each class, and what n̄ − 1 labels of others say of them."""
    n_classes = len(class_prior)
    truth = np.repeat(np.arange(n_classes), max(ITEMS // n_classes, 4))
    count = np.floor(np.clip(n_labels - 1, 0, MAX_LABELS_PER_ITEM) + rng.random(len(truth)))
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


def row_spread(counted: Counted, workers: NDArray[np.integer[Any]], around: Surroundings) -> float:
    """1/(τ + 1): how far the rows of matrices stray from what θ can express.

    Were each row drawn from a Dirichlet law with mean m and strength τ, the counts would scatter
    around n m more than labels alone do. What θ can follow is taken out.
    """
    excess = weight = noise = 0.0
    n_classes, n_params = len(counted.centre), counted.theta.shape[1]
    for some in blocks(len(workers), len(around.truth) * n_classes**2):
        counts, theta = counted.counts[workers[some]], counted.theta[workers[some]]
        matrix, totals = matrices(counted.centre, theta), counts.sum(axis=2)
        information, purity = observed_rows(matrix, totals, around, n_params)
        observed = np.einsum("kc,kcde->kde", totals, information)
        complete = np.einsum("kc,kcde->kde", totals, fisher_rows(matrix, n_params))
        inverse = np.linalg.pinv(complete, hermitian=True)
        slopes = design(n_classes, n_params)
        if n_params == 1:
            counts, matrix, purity, slopes = _right_or_wrong(counts, matrix, purity)
        residual = counts - totals[:, :, None] * matrix
        expected = np.maximum(totals[:, :, None] * matrix, np.finfo(float).tiny)
        # Σ E² / (n m), less its part along θ
        slope = np.einsum("kcz,czd->kd", residual, slopes)
        scatter = (residual**2 / expected).sum(axis=(1, 2))
        scatter -= np.einsum("kd,kde,ke->k", slope, inverse, slope)
        # what labels alone would make of it: Σ_z' q² (1[z = z'] − m_z)² / (n m), less that part
        squares = purity * counts
        alone = squares * (1 - 2 * matrix) + matrix**2 * squares.sum(axis=2, keepdims=True)
        chance = (alone / expected).sum(axis=(1, 2)) - np.einsum("kde,ked->k", inverse, observed)
        # and how much of 1/(τ + 1) would show
        shown = ((1 - matrix) * purity**2).sum(axis=2) * np.maximum(totals - 1, 0)
        free = 1 - max(n_params - 1, 1) / (n_classes * (matrix.shape[2] - 1))
        excess += float((scatter - chance).sum())
        weight += float(shown.sum()) * free
        noise += 2 * max(float(chance.sum()), 0.0)
    # a normal prior, and a normal law of the excess
    prior = 1 / SPREAD**2
    data = weight**2 / noise if noise > 0 else 0.0
    mean = excess / weight if weight > 0 else 0.0
    spread = (prior * SPREAD + data * mean) / (prior + data)
    return spread if spread > MIN_SHARE / 10 else 0.0


def blocks(n_rows: int, cells: int) -> list[slice]:
    """Blocks of rows, of at most MAX_ARRAY_SIZE numbers each."""
    size = max(1, MAX_ARRAY_SIZE // max(cells, 1))
    return [slice(start, start + size) for start in range(0, n_rows, size)]


# ── draws from the posterior ─────────────────────────────────────────────────────────────


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
    """Draw matrices of workers by the selected worker model of a counting state."""
    name, n_classes = recipe.worker_models[state.speaks], state.n_classes
    model, rows = WORKER_MODELS[name], state.rows.to_arrays()
    counts, theta = rows[f"{name}_counts"], rows[f"{name}_theta"]
    shared = model.crowd(state.pooled[name], recipe)
    nobody = np.zeros((1, *theta.shape[1:])), np.zeros((1, *counts.shape[1:]))
    scales = np.array([recipe.tilt_scale] + [recipe.bias_scale] * n_classes)[: theta.shape[1]]
    counted = Counted(
        counts=as_matrices(counts) if theta.shape[1] == 1 else counts,
        theta=theta,
        centre=model.confusion(*nobody, shared, recipe)[0],
        precision=scales**-2.0,
        class_prior=class_prior(state.label_shares, state.class_counts[name], recipe),
        class_counts=state.class_counts[name],
        n_chunks=n_chunks,
    )
    return draw_matrices(counted, workers, n_draws, rng)


def draw_matrices(
    counted: Counted, workers: NDArray[np.integer[Any]], n_draws: int, rng: np.random.Generator
) -> Iterator[NDArray[np.float32]]:
    """Draw the matrices of these workers from their posterior, (S, P, C, C) a block of them.

    The same generator gives a worker the same draws, whichever others are asked for.
    """
    n_classes, n_params = len(counted.centre), counted.theta.shape[1]
    around = surroundings(counted, rng)
    # Shared by all: nobody's draws depend on who else is asked about.
    normal = _even_normals(rng, n_draws, n_params)
    shape = (n_draws, 1, n_classes, n_classes)
    row_normal = _even_normals(rng, n_draws, n_classes**2).reshape(shape)
    row_uniform = np.log(_even_uniforms(rng, n_draws, n_classes**2)).reshape(shape)
    for some in blocks(len(workers), max(len(around.truth), n_draws) * n_classes**2):
        known = how_known(counted, workers[some], around)
        root, theta = known.root.astype(np.float32), known.theta.astype(np.float32)
        theta = theta + np.tensordot(normal, root, (1, 2))
        matrix = matrices(counted.centre.astype(np.float32), theta)
        if around.spread > 0:
            # p_k[c] ~ Dirichlet(τ m_θ[c] + what was seen of the row)
            prior = np.float32(1 / around.spread - 1) * matrix
            alpha = np.maximum(prior + known.seen.astype(np.float32), np.float32(MIN_SHARE))
            matrix = normalised(_gamma(alpha, row_normal, row_uniform))
            if n_params == 1 and n_classes > 2:
                # of wrong labels it was not counted which: p_k[c, z] / (1 − p_k[c, c]) is τ's alone
                guess = _gamma(np.maximum(prior, np.float32(MIN_SHARE)), -row_normal, row_uniform)
                matrix = _share_out(matrix, guess)
        yield matrix


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
    power = np.where(np.abs(power) < MIN_SHARE**2, MIN_SHARE**2, power)
    limit = observed / power
    return np.asarray(limit + (start * first - limit) * start**power)


# ── what is known of each worker ─────────────────────────────────────────────────────────


def how_known(counted: Counted, workers: NDArray[np.integer[Any]], around: Surroundings) -> Known:
    """The posterior of these workers, as labels and the surroundings tell it."""
    counts, theta = counted.counts[workers], counted.theta[workers]
    n_params = theta.shape[1]
    matrix, totals = matrices(counted.centre, theta), counts.sum(axis=2)
    information, purity = observed_rows(matrix, totals, around, n_params)
    # a row's share of information that is left: its cells' purity, by their variance m (1 − m)
    variance = matrix * (1 - matrix)
    left = (purity * variance).sum(axis=2) / np.maximum(variance.sum(axis=2), MIN_SHARE**3)
    # (A n m + E): what was seen of a row, no more of it than was observed
    seen = counts - ((1 - left) * totals)[:, :, None] * matrix
    # a row that strays tells less of θ: n (τ + 1) / (τ + 1 + A n)
    reported = totals / (1 + around.spread * left * totals)
    prior = np.diag(counted.precision)
    fisher = fisher_rows(matrix, n_params)
    hessian = np.einsum("kc,kcde->kde", reported, fisher) + prior
    observed = np.einsum("kc,kcde->kde", reported, information)
    # U with Uᵀ H U = 1 and Uᵀ I U diagonal
    whitener = np.linalg.inv(np.linalg.cholesky(hessian))
    share, axes = np.linalg.eigh(whitener @ observed @ whitener.swapaxes(1, 2))
    axes = whitener.swapaxes(1, 2) @ axes
    given = np.clip(np.einsum("kde,d,kde->ke", axes, counted.precision, axes), MIN_SHARE**3, 1)
    share = np.clip(share / np.maximum(1 - given, MIN_SHARE**3), MIN_SHARE, 1)
    n_chunks = np.clip(totals.sum(axis=1, keepdims=True), 1, max(counted.n_chunks, 1))
    scale = np.sqrt(variance_factor(share, given, n_chunks))
    root = axes * scale[:, None]
    # by rows alone, as if what is doubtful in one said nothing of another
    alone = np.linalg.inv(np.einsum("kc,kcde->kde", reported * left, fisher) + prior)
    slope = _skill_slope(matrix, counted.class_prior, n_params)
    ratio = (np.einsum("kde,kd->ke", root, slope) ** 2).sum(axis=1) / np.maximum(
        np.einsum("kd,kde,ke->k", slope, alone, slope), np.finfo(float).tiny
    )
    # Where the truth is doubtful rows are known together and not one by one: what was seen of
    # them counts for less, by as much as the skill is less well known.
    return Known(theta, root, seen / np.maximum(ratio, 1)[:, None, None])


def _skill_slope(matrix: Floats, class_prior: Floats, n_params: int) -> Floats:
    """How the skill Σ_c π_c m[c, c] moves with θ, (P, D)."""
    # Σ_c π_c m[c, c] (x[c, c] − x̄[c])
    slopes = design(matrix.shape[1], n_params)
    right = np.einsum("kcc->kc", matrix) * class_prior
    mean = np.einsum("kcz,czd->kcd", matrix, slopes)
    return np.asarray(np.einsum("kc,kcd->kd", right, np.einsum("ccd->cd", slopes) - mean))


def _share_out(matrix: NDArray[np.float32], parts: NDArray[np.float32]) -> NDArray[np.float32]:
    """The same diagonals, and what is left of each row shared out by these parts."""
    wrong = 1 - np.eye(matrix.shape[-1], dtype=np.float32)
    right = matrix * (1 - wrong)
    left = 1 - right.sum(axis=-1, keepdims=True)
    return np.asarray(right + left * normalised(parts * wrong))


def _even_uniforms(rng: np.random.Generator, n_draws: int, n_columns: int) -> NDArray[np.float32]:
    """Numbers from 0 to 1 in random order, each column evenly spread: (S, columns)."""
    order = rng.permuted(np.tile(np.arange(n_draws), (n_columns, 1)), axis=1).T
    return np.asarray((order + 0.5) / n_draws, np.float32)


def _even_normals(rng: np.random.Generator, n_draws: int, n_columns: int) -> NDArray[np.float32]:
    """Normal draws, each column evenly spread and, where there are enough, none correlated.

    All workers share them, so that chance must not make them wide or narrow.
    """
    level = np.array([NormalDist().inv_cdf((row + 0.5) / n_draws) for row in range(n_draws)])
    order = rng.permuted(np.tile(np.arange(n_draws), (n_columns, 1)), axis=1).T
    normal: Floats = level[order]
    if n_draws > 2 * n_columns:
        covariance = normal.T @ normal / n_draws
        normal = normal @ np.linalg.inv(np.linalg.cholesky(covariance)).T
    return np.asarray(normal, np.float32)


def _gamma(
    shape: NDArray[np.float32], normal: NDArray[np.float32], log_uniform: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Gamma draws made of normal and uniform ones.

    Wilson and Hilferty (1931): the cube root is nearly normal, for a shape above 1; and a draw of
    shape + 1 times uniform^(1/shape) is one of shape.
    """
    more = shape + 1
    root = np.maximum(1 - 1 / (9 * more) + normal / (3 * np.sqrt(more)), 0)
    drawn = more * root * root * root * np.exp(log_uniform / shape)
    return np.asarray(drawn + np.finfo(np.float32).tiny)
