"""Engines, which solve chunks and workers: modules of six functions.

    fit(name, batch, known, recipe, n_workers) → Fitted
    score(name, batch, settled, recipe) → log scores (N, C), what labels say for classes (B, C)
    past_unexplained(name, batch, probs, settled, recipe) → `sums`
    count(name, batch, probs, n_workers) → counts
    pool(name, counts, recipe) → P
    solve_workers(name, counts, pooled, recipe) → θ (P, D)

`name` is the worker model's, `n_workers` of `fit` the workers of items whose expected errors are
asked for, and 0 for others (N,). Counts in matrices have `kernel` (C), `reference` (NumPy) or `gpu`
(JAX), sparse counts have `sparse`.
"""

import os
import warnings
from functools import cache
from importlib.util import find_spec
from types import ModuleType

from labelquorum.errors import StateError
from labelquorum.learn.bila import gpu, kernel, reference

ENGINE = "LABELQUORUM_ENGINE"
ENGINES = {"c": kernel, "numpy": reference, "jax": gpu}
THREADED = {kernel, reference}  # a device has one queue; sparse counts take the most memory

REMEDY = (
    "Install a C compiler, or run pip install setuptools ziglang and set CC='python -m ziglang "
    "cc'; then install labelquorum again with pip install --force-reinstall --no-deps "
    "--no-cache-dir, and with ziglang also --no-build-isolation"
)
"""Tried with pip 23.2: in an isolated build the compiler's own package would not be found."""


@cache
def matrix_engine() -> ModuleType:
    """Return the engine of counts in matrices: the kernel if it was built, else `reference`.

    `LABELQUORUM_ENGINE`, read once per process, chooses another.
    """
    chosen = os.environ.get(ENGINE, "")
    if chosen and chosen not in ENGINES:
        raise StateError(f"{ENGINE} must be one of {list(ENGINES)}. Got {chosen!r}.")
    if chosen == "c" and not kernel.is_built():
        raise StateError(
            f"{ENGINE} asks for c, and the kernel cannot be loaded ({kernel.WHY_NOT}). "
            f"{REMEDY}; or unset the variable."
        )
    if chosen == "jax" and find_spec("jax") is None:
        raise StateError(
            f"{ENGINE} asks for jax, which is not installed. Run pip install 'labelquorum[jax]', "
            "or unset the variable."
        )
    if not chosen and not kernel.is_built():
        warnings.warn(
            f"BiLA's kernel in C was not built, and chunks take 4.5 to 13 times as long. {REMEDY}.",
            stacklevel=2,
        )
    return ENGINES[chosen or ("c" if kernel.is_built() else "numpy")]
