"""Backups: a whole store as one SQLite file, taken while it is in use, put back anywhere.

A backup has the tables of the store it was taken from, whichever database that is, in one state
between two commits. Taking one needs no lock: SQLite gives a copy of one state to whoever may read
the file, PostgreSQL to a transaction that is REPEATABLE READ.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import sqlalchemy as sa
from alembic.util import CommandError

from labelquorum.errors import StoreError
from labelquorum.ingest.writers import replacing
from labelquorum.store.database import (
    FILE,
    check_at_rest,
    hold_database,
    is_url,
    newest_version,
    open_postgresql,
    open_sqlite,
    read_only,
    upgrade,
    version_of,
)
from labelquorum.store.learner import LocalLearner
from labelquorum.store.store import Store
from labelquorum.store.stream_ref import check_streams

_ROWS = 1_000  # copied at a time
_VERSIONS = "alembic_version"


def backup(where: str | os.PathLike[str], file: str | os.PathLike[str]) -> None:
    """Write all of a store to one file; whoever writes to the store may go on.

    Parameters
    ----------
    where
        A folder, or the URL of a PostgreSQL database.
    file
        What was there before is replaced, once the new one is whole and on the disk.
    """
    with replacing(file) as beside:
        if is_url(where):
            _copy_database(str(where), beside)
        else:
            source = Path(where) / FILE
            if not source.is_file():
                raise StoreError(f"{where}: there is no store in this folder. Check the path.")
            check_at_rest(Path(where))  # or else a sound backup might give way to a damaged one
            _copy_file(source, beside)
        _version(beside, f"{where}: the copy")


def restore(file: str | os.PathLike[str], where: str | os.PathLike[str]) -> None:
    """Make a store of a backup, in the same kind of database or the other.

    Parameters
    ----------
    file
        What `backup` wrote.
    where
        An empty folder, or one that is not there yet; or the URL of an empty database.
    """
    source = Path(file)
    if not source.is_file():
        raise StoreError(f"{source}: there is no such backup. Check the path.")
    version, newest = _version(source, str(source)), newest_version()
    if version <= newest:
        _check_tables(source, version)
    if version > newest:
        raise StoreError(
            f"{source}: the backup has tables of version {version}, this version of labelquorum "
            f"knows up to {newest}. Update labelquorum."
        )
    if is_url(where):
        _fill_database(source, version, str(where))
    else:
        _fill_folder(source, Path(where))
    Store.open(where).close()  # brings older tables up to date


def _version(file: Path, name: str) -> str:
    """The version of the tables in a file that is whole."""
    engine = open_sqlite(file, writes=False)
    try:
        with _refusing(name), engine.connect() as connection:
            found = list(connection.scalars(sa.text("PRAGMA integrity_check(3)")))
            version = version_of(connection)
    finally:
        engine.dispose()
    if found != ["ok"]:
        raise StoreError(f"{name}: the file is damaged ({'; '.join(found)}). Use another backup.")
    if version is None:
        raise StoreError(f"{name}: this is no store, nor a backup of one. Check the path.")
    return version


def _check_tables(source: Path, version: str) -> None:
    """Refuse a file with other tables than those of its version, or with code of its own."""
    expected, kept = sa.create_engine("sqlite://"), open_sqlite(source, writes=False)
    wrong = "this is no backup of labelquorum"
    try:
        with _refusing(str(source)), expected.begin() as ours, kept.connect() as theirs:
            try:
                upgrade(ours, version)
            except CommandError as error:
                raise StoreError(f"{source}: {wrong}: version {version!r} is not known.") from error
            want, has = _columns(ours), _columns(theirs)
            for kind, name in theirs.exec_driver_sql("SELECT type, name FROM sqlite_master"):
                own = name.startswith("sqlite_") or kind == "index"
                if not own and (kind != "table" or name not in want):
                    raise StoreError(f"{source}: {wrong}: it has a {kind} {name[:40]!r}.")
            for name, columns in want.items():
                if has.get(name) != columns:
                    raise StoreError(f"{source}: {wrong}: its table {name!r} is missing or other.")
            check_streams(theirs, str(source), LocalLearner().configure)
    finally:
        expected.dispose()
        kept.dispose()


def _columns(connection: sa.Connection) -> dict[str, list[str]]:
    """The columns of each table."""
    found = sa.inspect(connection)
    return {
        name: [column["name"] for column in found.get_columns(name)]
        for name in found.get_table_names()
    }


def _copy_file(source: Path, file: Path) -> None:
    """Copy one state of a database to a file that needs no other beside it."""
    with (
        _refusing(str(source)),
        closing(read_only(source)) as reading,
        closing(sqlite3.connect(file)) as writing,
    ):
        reading.backup(writing)  # in one step, so that a writer does not make it start again
        writing.execute("PRAGMA journal_mode = DELETE").close()


def _copy_database(where: str, file: Path) -> None:
    engine, shown = open_postgresql(where)
    target = sa.create_engine(sa.URL.create("sqlite", database=str(file)))
    snapshot = engine.execution_options(isolation_level="REPEATABLE READ")
    try:
        with _refusing(shown), snapshot.connect() as reading, reading.begin():
            version = version_of(reading)
            if version is None:
                raise StoreError(f"{shown}: there is no store in this database. Check the URL.")
            with target.begin() as writing:
                upgrade(writing, version)
                _copy_tables(reading, writing)
    finally:
        target.dispose()
        engine.dispose()


def _fill_folder(source: Path, folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StoreError(f"{folder}: this is not an empty folder. Name one that is, or a new one.")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with replacing(folder / FILE) as beside:
        _copy_file(source, beside)


def _fill_database(source: Path, version: str, where: str) -> None:
    """Fill an empty database, in one transaction."""
    engine, shown = open_postgresql(where)
    kept = open_sqlite(source, writes=False)
    try:
        with _refusing(shown), kept.connect() as reading, engine.connect() as writing:
            hold_database(writing, shown)
            with writing.begin():
                if found := sa.inspect(writing).get_table_names():
                    raise StoreError(
                        f"{shown}: the database is not empty, it has a table {found[0]!r}. "
                        "Name one that is."
                    )
                upgrade(writing, version)
                _copy_tables(reading, writing)
    finally:
        kept.dispose()
        engine.dispose()


def _copy_tables(reading: sa.Connection, writing: sa.Connection) -> None:
    """Copy the rows of all tables, which both have in one version."""
    known = sa.MetaData()
    known.reflect(writing)
    for table in known.sorted_tables:
        if table.name == _VERSIONS:
            continue
        query = sa.select(table).order_by(*table.primary_key.columns)
        found = reading.execute(query, execution_options={"yield_per": _ROWS})
        for some in found.mappings().partitions():
            writing.execute(table.insert(), [dict(row) for row in some])
        if writing.dialect.name == "postgresql" and "id" in table.c:
            _count_on(writing, table)


def _count_on(connection: sa.Connection, table: sa.Table) -> None:
    """Let the database number new rows after those it was given, where it numbers them."""
    sequence = connection.scalar(sa.select(sa.func.pg_get_serial_sequence(table.name, "id")))
    last = connection.scalar(sa.select(sa.func.max(table.c.id)))
    if sequence is not None and last is not None:
        connection.execute(sa.select(sa.func.setval(sequence, last)))


@contextmanager
def _refusing(name: str) -> Iterator[None]:
    """Say in a sentence what a database refuses."""
    try:
        yield
    except (sqlite3.Error, sa.exc.DBAPIError) as error:
        reason = " ".join(str(getattr(error, "orig", error)).split())
        if getattr(getattr(error, "orig", error), "sqlite_errorname", None) == "SQLITE_NOTADB":
            raise StoreError(
                f"{name}: this is no store, nor a backup of one ({reason}). Check the path."
            ) from error
        raise StoreError(
            f"{name}: the database refused ({reason}). Nothing was changed; try again once the "
            "cause is gone."
        ) from error
