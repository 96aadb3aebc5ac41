"""Parameters of which a few run with the quick tests, and all with every test."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def slow_but(quick: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """Give the values for `parametrize`, with the marker `slow` on all that are not quick."""
    return [
        value if value in quick else pytest.param(value, marks=pytest.mark.slow) for value in values
    ]
