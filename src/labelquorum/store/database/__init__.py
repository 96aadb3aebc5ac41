"""The two databases: how each is opened, held by one writer, and brought up to date.

A folder holds one SQLite file, and a file whose lock says who writes. In PostgreSQL the lock has a
number, and ends with the connection that took it. Who only reads takes no lock.
"""

import fcntl
import os
import socket
import sqlite3
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from labelquorum.errors import StateError, StoreError
from labelquorum.store.database.page_checksums import PageChecksums
from labelquorum.store.database.sql import CACHED_STATEMENTS
from labelquorum.store.database.sqlite_wal import BUSY_SECONDS

__all__ = [
    "FILE",
    "LOCK_FILE",
    "check_at_rest",
    "expect",
    "hold_database",
    "hold_folder",
    "holder_of",
    "is_url",
    "newest_version",
    "open_postgresql",
    "open_sqlite",
    "read_only",
    "take_turn",
    "upgrade",
    "version_of",
]

FILE = "labelquorum.db"
LOCK_FILE = "labelquorum.lock"
LOCK_NUMBER = 0x6C_61_62_65_6C_71  # "labelq"; PostgreSQL's advisory locks have numbers
TURN_NUMBER = LOCK_NUMBER + 1
UPGRADE_SECONDS = 30
"""How long tables that are to be changed are waited for while others read them."""
LOCK_SECONDS = 1.5
"""How long to wait for the lock; a process that was just ended may still seem to hold it."""

# A server that is cut off says nothing: ask now and then whether it is there, and give up.
_PATIENCE = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",  # milliseconds
}

_HOLDER = sa.text(
    "SELECT a.application_name FROM pg_locks l JOIN pg_stat_activity a USING (pid) "
    "WHERE l.locktype = 'advisory' AND l.granted "
    "AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
    "AND (l.classid::bigint << 32 | l.objid::bigint) = :number"
)

# By index: how many labels there are, and how many go with its first column, its first two …
_EXPECTED = [
    ("labels", "1000000 500000 1"),  # the table itself
    ("labels_of_chunk", "1000000 500000 1000"),
    ("labels_of_item", "1000000 500000 4"),
]

_TURN = sa.select(sa.func.pg_advisory_xact_lock(TURN_NUMBER))


def is_url(where: object) -> bool:
    """Whether this is the URL of a database, not a folder."""
    return isinstance(where, str) and "://" in where


# ── opened ───────────────────────────────────────────────────────────────────────────────


def open_sqlite(file: Path, writes: bool = True) -> sa.Engine:
    """Connections to a SQLite file; without `writes`, those that can only read."""
    address = sa.URL.create("sqlite", database=str(file))
    if writes:
        settings = {"timeout": BUSY_SECONDS, "cached_statements": CACHED_STATEMENTS}
        engine = sa.create_engine(address, connect_args=settings)
    else:
        engine = sa.create_engine(address, creator=lambda: read_only(file))

    def on_connect(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # transactions begin where we say
        if writes:
            for setting in ("journal_mode = WAL", "synchronous = FULL", "wal_autocheckpoint = 0"):
                connection.execute(f"PRAGMA {setting}").close()

    def on_begin(connection: sa.Connection) -> None:
        at_once = connection.get_execution_options().get("writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if at_once else "BEGIN")

    sa.event.listen(engine, "connect", on_connect)
    sa.event.listen(engine, "begin", on_begin)
    return engine


def read_only(file: Path) -> sqlite3.Connection:
    """A connection to a SQLite file that can only read."""
    address = f"file:{quote(str(file.resolve()))}?mode=ro"
    return sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS, check_same_thread=False)


def open_postgresql(where: str) -> tuple[sa.Engine, str]:
    """Connections to a PostgreSQL database, and its URL without the password."""
    try:
        url = sa.make_url(where)
    except sa.exc.ArgumentError:
        url = sa.URL.create("unknown")
    if url.drivername.partition("+")[0] not in ("postgresql", "postgres"):
        raise StateError(
            "A store is a folder or a URL that starts with postgresql://. "
            f"Got one that starts with {url.drivername}://."
        )
    url = url.set(drivername="postgresql+psycopg")
    patient = url.set(query={**_PATIENCE, **url.query})
    try:
        engine = sa.create_engine(
            patient, connect_args={"application_name": f"labelquorum {_me()}"}
        )
    except ImportError as error:
        raise StoreError(
            "PostgreSQL takes psycopg, which is not installed. Run pip install labelquorum[store]."
        ) from error
    return engine, url.set(drivername="postgresql").render_as_string(hide_password=True)


# ── held by one writer ───────────────────────────────────────────────────────────────────


def hold_folder(lock: IO[str], folder: Path) -> None:
    """Take the lock of a folder and write down whose it is, or say who has it."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                lock.seek(0)
                holder = lock.read().strip() or "another process"
                lock.close()
                raise StoreError(_held(folder, holder)) from None
            time.sleep(0.05)
    with suppress(OSError):  # a full disk; the lock is held all the same
        os.ftruncate(lock.fileno(), 0)
        os.write(lock.fileno(), _me().encode())


def hold_database(connection: sa.Connection, where: str) -> None:
    """Take the lock of a PostgreSQL database, which ends with the connection."""
    ask = sa.select(sa.func.pg_try_advisory_lock(LOCK_NUMBER))
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        with connection.begin():
            if connection.scalar(ask):
                return
            holder = _holder(connection)
        if time.monotonic() > deadline:
            raise StoreError(_held(where, holder or "another process"))
        time.sleep(0.05)


def take_turn(connection: sa.Connection) -> None:
    """In PostgreSQL: wait until no other process of ours writes, to the end of the transaction."""
    connection.execute(_TURN)


def holder_of(where: Path | sa.Connection) -> str | None:
    """Who holds the lock of a folder or a database; None if no process does."""
    if isinstance(where, sa.Connection):
        return _holder(where)
    try:
        with (where / LOCK_FILE).open(encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except BlockingIOError:
        return (where / LOCK_FILE).read_text(encoding="utf-8").strip() or "another process"
    return None


def check_at_rest(folder: Path) -> None:
    """Refuse a SQLite file that differs from its checksums; its holder, if any, has checked it."""
    for again in (True, False):
        if holder_of(folder) is not None:
            return
        try:
            return _seal_of(folder / FILE).check()
        except OSError as error:
            raise StoreError(
                f"{folder / FILE}: the file cannot be read ({error.strerror or error}). Look at "
                "its disk and its rights."
            ) from error
        except StoreError:  # unless another process wrote and closed it in the meantime
            if not again:
                raise


@lru_cache
def _seal_of(file: Path) -> PageChecksums:
    """Cached: closing a file releases the locks of all readers of it in this process (POSIX)."""
    return PageChecksums(file)


def _holder(connection: sa.Connection) -> str | None:
    found: str | None = connection.scalar(_HOLDER, {"number": LOCK_NUMBER})
    return found


def _me() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _held(where: object, holder: str) -> str:
    return f"{where}: the store is in use by {holder}. Stop it first, or choose another store."


# ── brought up to date ───────────────────────────────────────────────────────────────────


def newest_version() -> str:
    """The latest version of the tables that is known here."""
    head = ScriptDirectory.from_config(_steps()).get_current_head()
    assert head is not None
    return head


def version_of(connection: sa.Connection) -> str | None:
    """The version of the tables in a database; None where there are none."""
    return MigrationContext.configure(connection).get_current_revision()


def upgrade(connection: sa.Connection, version: str = "head") -> None:
    """Run the steps that are missing, in the transaction that is going on."""
    if connection.dialect.name == "postgresql":  # another process may be reading for hours
        connection.execute(sa.text(f"SET LOCAL lock_timeout = '{UPGRADE_SECONDS}s'"))
    config = _steps()
    config.attributes["connection"] = connection
    command.upgrade(config, version)


def expect(connection: sa.Connection) -> None:
    """Write SQLite's planner statistics of the labels, unless they are there.

    Where it knows nothing, SQLite takes it that ten rows go with the first column of a key. So it
    would look for the labels of an item, or of a chunk, through all those of the stream.
    """
    if connection.dialect.name != "sqlite":
        return
    ask = connection.exec_driver_sql
    if ask("SELECT count(*) FROM sqlite_master WHERE name = 'sqlite_stat1'").scalar():
        known = ask("SELECT idx, stat FROM sqlite_stat1 WHERE tbl = 'labels'").all()
        if sorted(map(tuple, known)) == _EXPECTED:
            return
    ask("ANALYZE sqlite_master")  # counts nothing, but makes the table
    ask("DELETE FROM sqlite_stat1 WHERE tbl = 'labels'")
    for index, counts in _EXPECTED:
        ask("INSERT INTO sqlite_stat1 VALUES ('labels', ?, ?)", (index, counts))
    ask("ANALYZE sqlite_master")  # and has it read


def _steps() -> Config:
    folder = Path(__file__).with_name("migrations")
    config = Config()
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
