"""The default engine: the solver in C, `_kernel.c`, one call per chunk whatever its size."""

from functools import lru_cache, partial
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.learn.bila.dependence import N_SUMS, N_VOTE_SUMS
from labelquorum.learn.bila.hierarchical import COUNTED_PRIORS, HIERARCHICAL, Recipe
from labelquorum.learn.bila.identification import expected_errors
from labelquorum.learn.bila.minibatch import CountedBatch
from labelquorum.learn.bila.worker_models import WORKER_MODELS, Fitted, Known, Settled

_kernel: Any = None
WHY_NOT = ""
"""Why there is no kernel: most often, no compiler was there when the package was installed."""
try:
    _kernel = import_module("labelquorum.learn.bila._kernel")
except ImportError as error:
    WHY_NOT = str(error)


def is_built() -> bool:
    """Return whether this installation has the kernel."""
    return _kernel is not None


def fit(
    name: str, batch: CountedBatch, known: Known, recipe: Recipe, n_workers: Floats | None = None
) -> Fitted:
    """Solve a chunk by one worker model together with all that was counted before."""
    n_items, n_classes = len(batch.gold), len(known.label_shares)
    filled = (  # the fields of `Fitted`, and log scores
        np.empty_like(known.counts, order="C"),
        np.array(known.theta, order="C"),  # where it starts, and what it becomes
        np.empty((n_items, n_classes)),
        np.empty_like(known.others, order="C"),
        np.empty((_n_sums(batch), n_classes)),
        np.empty(2),
        np.empty((0 if n_workers is None else n_items, n_classes)),
    )
    _kernel.fit(
        name != HIERARCHICAL,
        len(known.theta),
        n_classes,
        _constants(recipe),
        n_workers is not None,
        _arrays(batch),
        (_float64(known.counts), *map(_float64, known[2:]), *filled),
    )
    fitted = Fitted(*filled[:-1], batch.counted_item @ filled[2])
    if n_workers is None:
        return fitted
    return fitted._replace(expected_errors=expected_errors(filled[-1], n_workers))


def score(
    name: str, batch: CountedBatch, settled: Settled, recipe: Recipe
) -> tuple[Floats, NDArray[np.float32]]:
    """Return log scores of items, (N, C), and what labels say for classes, weighted, (B, C)."""
    n_classes = len(settled.label_shares)
    scores = np.empty((len(batch.gold), n_classes))
    evidence = np.empty((len(batch.item), n_classes), np.float32)
    given = (*map(_float64, settled), b"", scores)
    shape = len(settled.theta), n_classes
    _kernel.score(name != HIERARCHICAL, *shape, _constants(recipe), _arrays(batch), given, evidence)
    return scores, evidence


def past_unexplained(
    name: str, batch: CountedBatch, probs: Floats, settled: Settled, recipe: Recipe
) -> Floats:
    """Return what labels leave unexplained by the model as it is: `sums` of `dependence`."""
    n_classes = len(settled.label_shares)
    sums = np.empty((_n_sums(batch), n_classes))
    given = (*map(_float64, settled), _float64(probs), sums)
    shape = len(settled.theta), n_classes
    _kernel.unexplained(name != HIERARCHICAL, *shape, _constants(recipe), _arrays(batch), given)
    return sums


def count(name: str, batch: CountedBatch, probs: Floats, n_workers: int) -> Floats:
    """Count labels by q (N, C), (P, …)."""
    n_classes = probs.shape[1]
    counts = np.empty((n_workers, *WORKER_MODELS[name].count_shape(n_classes)))
    given = (_float64(probs), counts)
    _kernel.count(name != HIERARCHICAL, n_workers, n_classes, _arrays(batch), given)
    return counts


def pool(name: str, counts: Floats, recipe: Recipe) -> Floats:
    """Return what workers give to P, by their counts (P, …)."""
    n_classes = counts.shape[-1]
    pooled = np.empty(counts.shape[1:])
    given = (_float64(counts), b"", pooled)
    _kernel.pool(name != HIERARCHICAL, len(counts), n_classes, _constants(recipe), given)
    return pooled


def solve_workers(name: str, counts: Floats, pooled: Floats, recipe: Recipe) -> Floats:
    """Return θ of workers at the maximum of J, (P, D)."""
    n_classes = pooled.shape[-1]
    theta = np.empty((len(counts), WORKER_MODELS[name].theta_size(n_classes)))
    given = (_float64(counts), _float64(pooled), theta)
    _kernel.solve(name != HIERARCHICAL, len(counts), n_classes, _constants(recipe), given)
    return theta


_int32 = partial(np.ascontiguousarray, dtype=np.int32)
_float32 = partial(np.ascontiguousarray, dtype=np.float32)
_float64 = partial(np.ascontiguousarray, dtype=np.float64)


@lru_cache
def _constants(recipe: Recipe) -> NDArray[np.float64]:
    """Return the fields of `Recipe` in `_kernel.c`."""
    by_name: dict[str, Any] = recipe._asdict()
    by_name["class_prior"] = COUNTED_PRIORS.index(recipe.class_prior)
    left_out = ("dependence", "gold_sampling", "worker_models")  # no concern of the solver
    return np.array([float(by_name[name]) for name in by_name if name not in left_out])


def _arrays(batch: CountedBatch) -> tuple[Any, ...]:
    return (
        _int32(batch.item),
        _int32(batch.worker),
        _int32(batch.label),
        _float32(batch.weight),
        _float32(batch.counted_weight),
        _float64(batch.counted_item),
        _int32(batch.gold),
        b"" if batch.worker_share is None else _float32(batch.worker_share),
        b"" if batch.first_vote is None else _int32(batch.first_vote),
    )


def _n_sums(batch: CountedBatch) -> int:
    return N_SUMS + (0 if batch.first_vote is None else N_VOTE_SUMS)
