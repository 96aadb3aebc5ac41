"""The solver of `counts.py`: θ and q in turn on a chunk, a worker's maximum, and answers.

This is the update of `docs/hierarchical.md`, for one worker model. It is written twice, side by
side: in C (`kernel`), and over arrays (`array_solver`), which NumPy runs where nothing was compiled
and JAX runs on a GPU. `LABELQUORUM_ENGINE` chooses: c, numpy or jax. Sparse counts, of many
classes, have a solver of their own (`sparse_solver`).
"""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec as _find_spec
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.errors import StateError
from labelquorum.learn.bila import array_solver, kernel, sparse_solver
from labelquorum.learn.bila.hierarchical import Recipe
from labelquorum.learn.bila.identification import expected_errors
from labelquorum.learn.bila.minibatch import CountedBatch
from labelquorum.learn.bila.sparse_counts import SparseCounts, count_sparsely, is_sparse
from labelquorum.learn.bila.worker_models import Fitted, Known, Settled

ENGINE = "LABELQUORUM_ENGINE"
Engine = Literal["c", "numpy", "jax"]

MIN_THREADED_LABELS = 50_000
"""Labels from which the worker models are fitted in threads: to start one costs about 50 µs."""


find_spec = cache(_find_spec)  # it looks through the folders of the path


def engine() -> Engine:
    """What solves: C if it was built, else NumPy, unless `LABELQUORUM_ENGINE` says otherwise."""
    chosen = os.environ.get(ENGINE, "")
    if not chosen:
        return "c" if kernel.is_built() else "numpy"
    if chosen not in get_args(Engine):
        raise StateError(f"{ENGINE} must be one of {list(get_args(Engine))}. Got {chosen!r}.")
    if chosen == "c" and not kernel.is_built():
        raise StateError(
            f"{ENGINE} asks for c, and the kernel cannot be loaded ({kernel.WHY_NOT}). Install a C "
            "compiler, then labelquorum again with pip install --force-reinstall --no-deps "
            "--no-cache-dir, or unset the variable."
        )
    if chosen == "jax" and find_spec("jax") is None:
        raise StateError(
            f"{ENGINE} asks for jax, which is not installed. Run pip install 'labelquorum[jax]', "
            "or unset the variable."
        )
    return cast("Engine", chosen)


def fit_each(
    batch: CountedBatch,
    known: Mapping[str, Known],
    label_shares: Floats,
    recipe: Recipe,
    n_workers: Floats | None = None,
) -> dict[str, Fitted]:
    """Steps (2) and (3) of the update by each worker model: θ and q in turn.

    Parameters
    ----------
    known
        What was counted before, by worker model.
    label_shares
        f', this chunk's labels included, (C,).
    n_workers
        The workers of items whose expected errors are asked for, and 0 for others, (N,).
    """
    chosen, asked = engine(), n_workers is not None

    def one(name: str) -> Fitted:
        before = known[name]
        is_sparse = isinstance(before.counts, SparseCounts)
        if is_sparse:
            fitted = sparse_solver.fit(batch, before, label_shares, recipe)
        elif chosen == "c":
            return kernel.fit(name, batch, before, label_shares, recipe, asked)
        else:
            fit = array_solver.fit if chosen == "numpy" else array_solver.fit_compiled
            fitted = fit(name, batch, before, label_shares, recipe)
        if n_workers is None:
            return fitted
        shared = fitted.pooled, label_shares, before.class_counts + fitted.class_sums
        settled = Settled(fitted.counts, fitted.theta, *shared)
        if chosen == "jax" and not is_sparse:
            errors = array_solver.expected_errors_compiled(name, batch, settled, n_workers, recipe)
            return fitted._replace(expected_errors=errors)
        return fitted._replace(log_scores=score(name, batch, settled, recipe)[0])

    few = len(known) == 1 or len(batch.item) < MIN_THREADED_LABELS or chosen == "jax"
    # Of many classes, what two models hold at a time would be the most memory.
    if few or any(isinstance(each.counts, SparseCounts) for each in known.values()):
        found = {name: one(name) for name in known}
    else:
        with ThreadPoolExecutor(len(known)) as threads:
            found = dict(zip(known, threads.map(one, known), strict=True))
    scored = [name for name, fitted in found.items() if fitted.log_scores is not None]
    if n_workers is not None and scored:
        errors = expected_errors(np.array([found[name].log_scores for name in scored]), n_workers)
        for name, own in zip(scored, errors, strict=True):
            found[name] = found[name]._replace(log_scores=None, expected_errors=own)
    return found


def score(
    name: str, batch: CountedBatch, settled: Settled, recipe: Recipe
) -> tuple[Floats, NDArray[np.float32]]:
    """Log scores of items, (N, C), and what each label says for each class, weighted, (B, C)."""
    if isinstance(settled.counts, SparseCounts):
        return sparse_solver.score(batch, settled, recipe)
    by_engine = {
        "c": kernel.score,
        "numpy": array_solver.score,
        "jax": array_solver.score_compiled,
    }
    return by_engine[engine()](name, batch, settled, recipe)


def past_unexplained(
    name: str, batch: CountedBatch, probs: Floats, settled: Settled, recipe: Recipe
) -> Floats:
    """What labels counted before left unexplained, as the model sees it now: `sums`."""
    if isinstance(settled.counts, SparseCounts):
        return sparse_solver.past_unexplained(batch, probs, settled, recipe)
    chosen = kernel.past_unexplained if _in_c() else array_solver.past_unexplained
    return chosen(name, batch, probs, settled, recipe)


def count(name: str, batch: CountedBatch, probs: Floats, n_workers: int) -> Any:
    """The counts of labels by q (N, C), (P, …), or sparse."""
    if is_sparse(name, probs.shape[1]):
        return count_sparsely(batch, probs, n_workers)
    chosen = kernel.count if _in_c() else array_solver.count
    return chosen(name, batch, probs, n_workers)


def pool(name: str, counts: Any, recipe: Recipe) -> Floats:
    """What workers give to P, of their counts (P, …), or sparse ones."""
    if isinstance(counts, SparseCounts):
        return sparse_solver.pool(counts, recipe)
    chosen = kernel.pool if _in_c() else array_solver.pool
    return chosen(name, counts, recipe)


def solve_workers(name: str, counts: Any, pooled: Floats, recipe: Recipe) -> Floats:
    """θ of workers at the maximum of J, (P, D)."""
    if isinstance(counts, SparseCounts):
        return sparse_solver.solve_workers(counts, pooled, recipe)
    chosen = kernel.solve_workers if _in_c() else array_solver.solve_workers
    return chosen(name, counts, pooled, recipe)


def _in_c() -> bool:
    """Whether what is computed in float64 is computed by the kernel."""
    return kernel.is_built() and engine() != "numpy"
