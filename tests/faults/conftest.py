"""Both databases, as in the tests of the store, and how large tests of faults are.

With LABELQUORUM_FAULTS=long, as `python3 run.py faults --long` sets it, they take minutes. What a
test has measured it tells as a property, and the page docs/faults.md shows it.
"""

import os

import pytest
from faults.kills import arena as made_arena
from store.conftest import clock, database, databases, server, store, store_on  # noqa: F401

where = store_on("sqlite", "postgresql")


@pytest.fixture(scope="session")
def arena():
    with made_arena() as made:
        yield made


@pytest.fixture(scope="session")
def size():
    """One of two sizes: that of CI, or of a long run."""
    long = os.environ.get("LABELQUORUM_FAULTS") == "long"
    return lambda small, large: large if long else small
