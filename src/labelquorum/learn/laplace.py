"""How well a worker is known: draws of his matrix from its posterior, and what they must allow for.

Around its maximum J_k is a parabola, so that θ_k is normal with the inverse Hessian for its
covariance (Laplace). Three things make workers less well known than that, and are allowed for:
the truth is not known but inferred, what was inferred is never inferred anew, and no worker's
matrix is exactly one that θ can express. `docs/confidence.md` derives every line of this file.

Everything is NumPy in float64, a block of workers at a time. Arrays have the workers first. Row 0
of θ is the tilt; the biases follow, where the model has them.
"""

from collections.abc import Iterator
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum.learn.accounts import ACCOUNTS
from labelquorum.learn.hierarchical import Recipe, class_prior
from labelquorum.learn.offline import Floats
from labelquorum.learn.surroundings import (
    LEAST,
    Counted,
    Surroundings,
    as_matrices,
    blocks,
    design,
    fisher_rows,
    matrices,
    normalised,
    observed_rows,
    surroundings,
)

__all__ = ["Known", "draw_matrices", "draws", "how_known", "variance_factor"]


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
    """Draw matrices of workers by the account of a counting state that speaks."""
    name, n_classes = recipe.accounts[state.speaks], state.n_classes
    account, rows = ACCOUNTS[name], state.rows.to_arrays()
    counts, theta = rows[f"{name}_counts"], rows[f"{name}_theta"]
    shared = account.crowd(state.pooled[name], recipe)
    nobody = np.zeros((1, *theta.shape[1:])), np.zeros((1, *counts.shape[1:]))
    scales = np.array([recipe.tilt_scale] + [recipe.bias_scale] * n_classes)[: theta.shape[1]]
    counted = Counted(
        counts=as_matrices(counts) if theta.shape[1] == 1 else counts,
        theta=theta,
        centre=account.confusion(*nobody, shared, recipe)[0],
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

    The same generator gives a worker the same draws, whoever stands beside him.
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
            alpha = np.maximum(prior + known.seen.astype(np.float32), np.float32(LEAST))
            matrix = normalised(_gamma(alpha, row_normal, row_uniform))
            if n_params == 1 and n_classes > 2:
                # of wrong labels it was not counted which: p_k[c, z] / (1 − p_k[c, c]) is τ's alone
                guess = _gamma(np.maximum(prior, np.float32(LEAST)), -row_normal, row_uniform)
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
    power = np.where(np.abs(power) < LEAST**2, LEAST**2, power)
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
    left = (purity * variance).sum(axis=2) / np.maximum(variance.sum(axis=2), LEAST**3)
    # (A n m + E): what was seen of a row, no more of it than was observed
    seen = counts - ((1 - left) * totals)[:, :, None] * matrix
    # a row that strays tells less of θ: n (τ + 1) / (τ + 1 + A n)
    told = totals / (1 + around.spread * left * totals)
    prior = np.diag(counted.precision)
    fisher = fisher_rows(matrix, n_params)
    hessian = np.einsum("kc,kcde->kde", told, fisher) + prior
    observed = np.einsum("kc,kcde->kde", told, information)
    # U with Uᵀ H U = 1 and Uᵀ I U diagonal
    whitener = np.linalg.inv(np.linalg.cholesky(hessian))
    share, axes = np.linalg.eigh(whitener @ observed @ whitener.swapaxes(1, 2))
    axes = whitener.swapaxes(1, 2) @ axes
    given = np.clip(np.einsum("kde,d,kde->ke", axes, counted.precision, axes), LEAST**3, 1)
    share = np.clip(share / np.maximum(1 - given, LEAST**3), LEAST, 1)
    n_chunks = np.clip(totals.sum(axis=1, keepdims=True), 1, max(counted.n_chunks, 1))
    scale = np.sqrt(variance_factor(share, given, n_chunks))
    root = axes * scale[:, None]
    # by rows alone, as if what is doubtful in one said nothing of another
    alone = np.linalg.inv(np.einsum("kc,kcde->kde", told * left, fisher) + prior)
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
