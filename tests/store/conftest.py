"""Both databases: a folder for SQLite, and a real PostgreSQL."""

import pytest
from postgresql import empty_databases, running_server

from labelquorum.store.store import Store


@pytest.fixture(scope="session")
def server():
    """The URL of a PostgreSQL server on which databases can be made."""
    with running_server() as url:
        yield url


@pytest.fixture
def databases(server):
    """Makes empty databases, and gives their URLs."""
    with empty_databases(server) as make:
        yield make


@pytest.fixture
def database(databases):
    """The URL of an empty database."""
    return databases()


@pytest.fixture
def other_database(databases):
    """The URL of another empty database."""
    return databases()


def store_on(*databases):
    """Make a fixture that gives the place of an empty store, once for each database."""

    @pytest.fixture(params=databases)
    def where(request, tmp_path):
        if request.param == "sqlite":
            return str(tmp_path / "store")
        return request.getfixturevalue("database")

    return where


# The quick tests use PostgreSQL in test_accept.py and test_recorded.py alone.
where = store_on("sqlite", pytest.param("postgresql", marks=pytest.mark.slow))


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self):
        self.time = 1000.0

    def __call__(self):
        return self.time


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(where, clock):
    with Store.open(where, clock) as opened:
        yield opened
