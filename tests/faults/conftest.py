"""Both databases, as in the tests of the store, and what tests of faults cannot do without."""

import os

import pytest
from faults.kills import arena as made_arena
from record.conftest import clock, database, server, store, where  # noqa: F401


@pytest.fixture(scope="session")
def arena():
    with made_arena() as made:
        yield made


def lacking(reason):
    """Skip for want of something; where nothing may be skipped, fail."""
    (pytest.fail if os.environ.get("LABELQUORUM_CI") else pytest.skip)(reason)
