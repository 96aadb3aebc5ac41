"""JAX and optax, imported when they are first used.

Importing JAX takes longer than everything else together, and only what is learned by gradient
steps needs it. They are in the extra [jax]; without it, their first use says what to install.
"""

import os
from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from labelquorum.errors import StateError
from labelquorum.learn.lazy import LazyModule

__all__ = ["jax", "jit", "jnp", "keep_compiled_code", "optax"]  # for mypy

Function = TypeVar("Function", bound=Callable[..., Any])


class _Lazy(LazyModule):
    def _load(self) -> ModuleType:
        return _imported(self._name)


@cache
def _imported(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise StateError(
            f"This method is learned by gradient steps, which takes JAX, and {error.name} is not "
            "installed. Run pip install 'labelquorum[jax]', or use BiLA() with its default preset."
        ) from error


if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
    import optax
else:
    jax, jnp, optax = _Lazy("jax"), _Lazy("jax.numpy"), _Lazy("optax")


def jit(**options: Any) -> Callable[[Function], Function]:
    """Compile a function with `jax.jit` at its first call."""

    def decorate(function: Function) -> Function:
        @cache
        def compiled() -> Callable[..., Any]:
            keep_compiled_code()
            return jax.jit(function, **options)

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return compiled()(*args, **kwargs)

        return cast("Function", call)

    return decorate


def keep_compiled_code() -> None:
    """Let JAX keep what it compiles in the user's cache folder, so the next process starts warm.

    `LABELQUORUM_CACHE` names another folder, or nothing for none; a cache the user already set up
    is left alone.
    """
    if jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    folder = os.environ.get("LABELQUORUM_CACHE")
    if folder is None:
        try:
            base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        except RuntimeError:  # a user without a home, as in some containers
            return
        folder = str(Path(base) / "labelquorum" / "compiled")
    if not folder:
        return
    for setting, value in (
        ("jax_compilation_cache_dir", folder),
        ("jax_persistent_cache_min_compile_time_secs", 0.05),
        ("jax_persistent_cache_min_entry_size_bytes", 0),
    ):
        jax.config.update(setting, value)  # type: ignore[no-untyped-call]
