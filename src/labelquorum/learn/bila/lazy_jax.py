"""JAX and optax, imported when they are first used.

Importing JAX takes longer than everything else together, and only what is learned by gradient
steps needs it. They are in the extra [jax]; without it, their first use says what to install.
"""

from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from labelquorum.errors import StateError
from labelquorum.learn.lazy import LazyModule

__all__ = ["jax", "jit", "jnp", "optax"]

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
            return jax.jit(function, **options)

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return compiled()(*args, **kwargs)

        return cast("Function", call)

    return decorate
