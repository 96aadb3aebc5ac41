"""pandas, imported when it is first used.

Importing it takes longer than everything else together, and only tables given to users need it: not
labels from a file, not the service, not the command line.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["LazyModule", "pd"]  # mypy refuses other imports of pd


class LazyModule:
    """A module that is imported when an attribute of it is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # what copy, pickle and inspect look for
            raise AttributeError(attribute)
        return getattr(self._load(), attribute)

    def _load(self) -> Any:
        return import_module(self._name)


if TYPE_CHECKING:
    import pandas as pd
else:
    pd = LazyModule("pandas")
