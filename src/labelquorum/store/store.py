"""The store: streams that survive anything but the loss of their disk.

A folder holds one SQLite file; a URL names a PostgreSQL database. Either has one holder at a time,
whose lock says who it is; a subprocess of the holder may join it. Everything is written in
transactions, one after the other, and what a call returns was committed before it returned.
"""

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import IO, Any, NoReturn, Self

import sqlalchemy as sa

from labelquorum.errors import ConflictError, FullError, StateError, StoreError
from labelquorum.ingest.validate import NAME_BYTES, is_printable_name
from labelquorum.store.batch import decode, encode
from labelquorum.store.database import (
    FILE,
    LOCK_FILE,
    expect,
    hold_database,
    hold_folder,
    is_url,
    newest_version,
    open_postgresql,
    open_sqlite,
    schema,
    take_turn,
    upgrade,
    version_of,
)
from labelquorum.store.database.sqlite_wal import WriteAheadLog
from labelquorum.store.failpoints import fault
from labelquorum.store.learner import Configuration, Learner, LocalLearner, read_until
from labelquorum.store.rules import Rules
from labelquorum.store.stream import Stream
from labelquorum.store.stream_ref import StreamRef, check_streams
from labelquorum.store.turn import Turn

DISK_FULL = "53100"  # so PostgreSQL calls it

DEADLINE_STEPS = 1_000_000
"""Steps of SQLite, some 20 ms, between two looks at the clock, each of which takes the GIL."""


class Store:
    """Streams in one SQLite file or one PostgreSQL database; see `Store.open`."""

    def __init__(
        self,
        engine: sa.Engine,
        where: str,
        lock: IO[str] | None,
        clock: Callable[[], float],
        learner: Learner,
        log: WriteAheadLog | None = None,
    ) -> None:
        self.where, self.learner = where, learner
        self._engine, self._lock_file, self._clock = engine, lock, clock
        self._turn = Turn()  # one writer, also among threads
        self._tick = threading.Lock()
        driver: Any = engine.dialect.loaded_dbapi
        self._driver_error: type[Exception] = driver.Error
        self._learning: dict[int, threading.RLock] = {}  # by stream
        self._working: dict[int, threading.RLock] = {}
        self._writer: sa.Connection | None = None
        self._only_looks = self._joined = self._closed = False
        self.has_loop = False
        """Whether a learning loop applies what is cut; else the thread that needs it does."""
        self._log = log  # of SQLite
        self._offset, self._latest = 0.0, float("-inf")
        self._last_id = 0  # of the streams that were deleted

    @classmethod
    def open(
        cls,
        where: str | os.PathLike[str],
        clock: Callable[[], float] | None = None,
        learner: Learner | None = None,
    ) -> "Store":
        """Open a store, and make it where there is none.

        Parameters
        ----------
        where
            A folder, or the URL of a PostgreSQL database.
        clock
            Seconds; the time of day at the start and a steady clock from then on, unless given.
            A clock that jumps back goes on from where it was.
        learner
            Who learns; this process unless given.
        """
        start = time.time() - time.monotonic()
        ticking = clock or (lambda: start + time.monotonic())
        if is_url(where):
            engine, shown = open_postgresql(str(where))
            store = cls(engine, shown, None, ticking, learner or LocalLearner())
        else:
            folder = Path(where)
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                lock = (folder / LOCK_FILE).open("a+", encoding="utf-8")
                hold_folder(lock, folder)
                (folder / FILE).touch(mode=0o600)  # it names workers; SQLite's own default is 0644
                log = WriteAheadLog(folder / FILE)
            except OSError as error:
                raise StoreError(
                    f"{folder}: no store can be kept there ({error.strerror or error}). "
                    "Name a folder that can be written to."
                ) from error
            engine = open_sqlite(folder / FILE)
            store = cls(engine, str(folder), lock, ticking, learner or LocalLearner(), log)
        try:
            if store._log is not None:
                store._log.check()
            store._migrate()
            store._go_on()
        except BaseException:
            store.close()
            raise
        return store

    @classmethod
    def join(cls, where: str | os.PathLike[str], start: float) -> "Store":
        """Open, in a subprocess, a store that its parent process holds, and write to it.

        Parameters
        ----------
        where
            A folder, or the URL of a PostgreSQL database.
        start
            The holder's `Store.start`, so that there is one time.
        """
        if is_url(where):
            engine, shown, log = *open_postgresql(str(where)), None
        else:
            file = Path(where) / FILE
            if not file.is_file():
                raise StoreError(f"{where}: there is no store in this folder. Check the path.")
            engine, shown, log = open_sqlite(file), str(where), WriteAheadLog(file, joined=True)
        store = cls(engine, shown, None, lambda: start + time.monotonic(), LocalLearner(), log)
        store._joined = True
        try:
            store._go_on()
        except BaseException:
            store.close()
            raise
        return store

    @classmethod
    def look(cls, where: str | os.PathLike[str], learner: Learner | None = None) -> "Store":
        """Open a store that is there to read it, also while another process writes to it.

        Parameters
        ----------
        where
            A folder, or the URL of a PostgreSQL database.
        learner
            Who is asked what only the model knows; this process unless given.
        """
        if is_url(where):
            engine, shown = open_postgresql(str(where))
        else:
            engine, shown = open_sqlite(Path(where) / FILE, writes=False), str(where)
            if not (Path(where) / FILE).is_file():
                raise StoreError(f"{shown}: there is no store in this folder. Check the path.")
        store = cls(engine, shown, None, time.time, learner or LocalLearner())
        store._only_looks = True
        try:
            with store.read() as connection:
                present, newest = version_of(connection), newest_version()
            if present is None:
                raise StoreError(f"{shown}: there is no store in this database. Check the URL.")
            if present != newest:
                remedy = "Open it once to write." if present < newest else "Update labelquorum."
                raise StoreError(
                    f"{shown}: the store has tables of version {present}, and this version of "
                    f"labelquorum reads {newest}. {remedy}"
                )
            with store.read() as connection:
                check_streams(connection, shown)
        except BaseException:
            store.close()
            raise
        return store

    def close(self) -> None:
        """Close the store and release its lock."""
        with self._turn:
            self._closed = True
            if self._writer is not None:
                if self._log is not None:
                    with self._log.turn():
                        self._log.finish(self._writer)
                self._writer.close()
                self._writer = None
            self._engine.dispose()
            if self._log is not None:
                self._log.close()
            if self._lock_file is not None:
                self._lock_file.close()
                self._lock_file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ── streams ──────────────────────────────────────────────────────────────────────────

    def create(
        self,
        name: str,
        method: str = "bila",
        *,
        rules: Rules | None = None,
        **settings: Any,
    ) -> Stream:
        """Make a stream.

        Parameters
        ----------
        name
            Any text of at most 256 bytes that can be printed.
        method
            One whose update needs nothing but what is shared and its own workers: bila, with the
            preset default or recipe.
        rules
            When chunks are cut and labels deleted.
        settings
            Of the method, `classes` among them.
        """
        _check_name(name)
        configuration = self.learner.configure(method, settings)
        row = {
            "name": name,
            **configuration._asdict(),
            "rules": encode((rules or Rules()).as_dict()),
            "next_row": 1,
            "next_chunk": 1,
            "late_labels": 0,
            "n_crowd": 0,
            "held_labels": 0,
        }
        with self.write() as connection:
            if name in self._names(connection):
                raise StoreError(
                    f"{self.where}: there is a stream {name!r} already. Choose another name."
                )
            row["moment"] = self.now()
            if connection.dialect.name == "sqlite":  # which would give out a deleted id again
                largest = connection.scalar(sa.select(sa.func.max(schema.streams.c.id))) or 0
                row["id"] = max(largest, self._last_id) + 1
            made = connection.execute(schema.streams.insert().values(row)).inserted_primary_key
            assert made is not None
            classes = decode(configuration.settings)["classes"] or []
            model = {"stream": made[0], "version": 0, "classes": encode(classes)}
            connection.execute(schema.models.insert().values(**model, n_workers=0, n_chunks=0))
        return self.stream(name)

    def stream(self, name: str) -> Stream:
        """A stream by its name."""
        found = self.find(name)
        if found is None:
            raise StoreError(
                f"{self.where}: there is no stream {name!r}. There are {self.streams()!r}."
            )
        return found

    def find(self, name: str) -> Stream | None:
        """A stream by its name, None if there is no such stream."""
        with self.read() as connection:
            found = connection.execute(_BY_NAME, {"stream": name}).one_or_none()
        return None if found is None else self._made_of(found)

    def by_key(self, key: int) -> Stream:
        """A stream by the key of its row, whatever its name is; no other one gets that key."""
        with self.read() as connection:
            found = connection.execute(_BY_KEY, {"stream": key}).one_or_none()
        if found is None:
            raise StateError(f"{self.where}: this stream was deleted. Name another.")
        return self._made_of(found)

    def _made_of(self, row: Any) -> Stream:
        configuration = Configuration(row.method, row.settings, row.configuration)
        return Stream(StreamRef(self, row.id, row.name, configuration))

    def delete(self, stream: str | Stream) -> int:
        """Delete a stream with all its rows and the keys that are for it alone.

        It is one transaction: after a crash the stream is whole or gone. Who still learns in it, or
        sends to it, gets an error.

        Parameters
        ----------
        stream
            Its name; or the stream, which is refused if it has another name by now.

        Returns
        -------
        n_labels : raw labels that were deleted
        """
        known = self.stream(stream) if isinstance(stream, str) else stream
        key = known.ref.key
        with self.learning(key), self.write() as connection:
            row = self._row(connection, known)
            for table in schema.metadata.sorted_tables:
                if "stream" in table.c:
                    connection.execute(table.delete().where(table.c.stream == key))
            connection.execute(schema.streams.delete().where(schema.streams.c.id == key))
            self._last_id = max(self._last_id, key)
            fault("before_delete_commit")
        fault("after_delete")
        self.checkpoint()
        return int(row.held_labels)

    def rename(self, stream: str | Stream, new: str) -> Stream:
        """Give a stream another name; its keys stay its keys. See `delete` for `stream`."""
        _check_name(new)
        known = self.stream(stream) if isinstance(stream, str) else stream
        key = known.ref.key
        with self.write() as connection:
            self._row(connection, known)
            if new in self._names(connection):
                raise ConflictError(
                    f"{self.where}: there is a stream {new!r} already. Choose another name."
                )
            connection.execute(
                schema.streams.update().where(schema.streams.c.id == key).values(name=new)
            )
        return self.by_key(key)

    def streams(self) -> list[str]:
        """The names of all streams, in order."""
        with self.read() as connection:
            return self._names(connection)

    def unsettled(self) -> list[int]:
        """The keys of the streams with items that wait, or chunks that are cut."""
        streams, waiting, chunks = schema.streams.c, schema.waiting.c, schema.chunks.c
        waits = sa.exists().where(waiting.stream == streams.id)
        is_cut = sa.exists().where(chunks.stream == streams.id, chunks.state == "cut")
        with self.read() as connection:
            return list(connection.scalars(sa.select(streams.id).where(waits | is_cut)))

    def _row(self, connection: sa.Connection, stream: Stream) -> Any:
        """The row of a stream, if it still has its name."""
        row = connection.execute(_BY_KEY, {"stream": stream.ref.key}).one_or_none()
        if row is None or row.name != stream.name:  # by another thread, in the meantime
            raise ConflictError(
                f"{self.where}: stream {stream.name!r} was deleted or renamed in the meantime. "
                "Nothing was changed. List the streams, and name one of them."
            )
        return row

    def resume(self, on_done: Callable[[int], object] = lambda stream: None) -> None:
        """Go on with the jobs that were recorded and are not done; see `store.jobs`.

        `on_done` is called with the key of each stream in which one was done. After an error in one
        stream the others follow, and the first error is raised.
        """
        errors = list[Exception]()
        with self.read() as connection:
            found = list(connection.scalars(sa.select(schema.jobs.c.stream).distinct()))
        for key in found:
            try:
                if self.by_key(key).resume():
                    on_done(key)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _names(self, connection: sa.Connection) -> list[str]:
        return list(connection.scalars(sa.select(schema.streams.c.name).order_by("name")))

    # ── transactions ─────────────────────────────────────────────────────────────────────

    def now(self) -> float:
        """The time, which never goes back, not even over a restart."""
        with self._tick:  # not the lock of a transaction: reading the time waits for no writer
            moment = self._clock() + self._offset
            if moment < self._latest:
                self._offset += self._latest - moment
                moment = self._latest
            self._latest = moment
            return moment

    @property
    def start(self) -> float:
        """When the machine's steady clock stood at 0, in this store's time."""
        return self.now() - time.monotonic()

    def learning(self, stream: int) -> threading.RLock:
        """Held by who learns in a stream: two would learn from the same chunk, one in vain."""
        return self._learning.setdefault(stream, threading.RLock())

    def working(self, stream: int) -> threading.RLock:
        """Held by the thread that does the jobs of a stream."""
        return self._working.setdefault(stream, threading.RLock())

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A connection that sees one state of the store."""
        until = read_until.get()
        try:
            with self._engine.connect() as connection:
                if self._engine.dialect.name == "postgresql":
                    connection.execution_options(isolation_level="REPEATABLE READ")
                try:
                    with connection.begin(), _interrupted(connection, until):
                        yield connection
                except self._driver_error:
                    connection.invalidate()
                    raise
        except (sa.exc.DBAPIError, self._driver_error) as error:
            if time.monotonic() >= until:
                raise TimeoutError(f"{self.where}: reading took too long.") from error
            self._refuse(error)
        except sa.exc.TimeoutError as error:  # all connections are in use, for half a minute
            raise StoreError(
                f"{self.where}: too many read at the moment. Come back later."
            ) from error

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """A transaction; it is committed when the block is left without an error."""
        if self._only_looks:
            raise StoreError(f"{self.where}: the store was opened to be read. Use Store.open.")
        with self._turn:
            if self._closed:  # the lock is gone, and may be another's by now
                raise StoreError(f"{self.where}: the store was closed. Open it again.")
            try:
                connection = self._writing()
                if self._log is None:
                    with connection.begin():
                        take_turn(connection)
                        yield connection
                    return
                with self._log.turn():
                    with self._log.noting(connection):
                        yield connection
                    if not self._log.shorten(connection):
                        self._drop_handles()
            except (sa.exc.DBAPIError, self._driver_error) as error:
                # A commit that failed may or may not have happened.
                self._drop_handles()
                self._refuse(error)

    def checkpoint(self) -> None:
        """Checkpoint SQLite's WAL, in which what was deleted would stay until it is long."""
        if self._log is None or self._only_looks:
            return
        with self._turn, self._log.turn():
            self._log.shorten(self._writing(), least=1)

    def compact(self) -> None:
        """VACUUM a SQLite file, so that nothing of what was deleted is left in its pages."""
        if self._log is None or self._only_looks:
            return
        with self._turn, self._log.turn():
            try:
                self._log.rewrite(self._writing())
            except sqlite3.Error as error:
                raise StoreError(
                    f"{self.where}: the file could not be rewritten ({error}). Make room, and "
                    "run VACUUM."
                ) from error

    def _drop_handles(self) -> None:
        """Use none of the handles again: one of them failed to reach the disk or the server."""
        if self._writer is not None:
            self._writer.invalidate()
            self._writer.close()
            self._writer = None
        self._engine.dispose()

    def _writing(self) -> sa.Connection:
        if self._writer is None:
            self._writer = self._engine.connect().execution_options(writes=True)
            if self._log is not None:
                self._log.prepare(self._writer)
            if self._engine.dialect.name == "postgresql" and not self._joined:
                try:
                    hold_database(self._writer, self.where)
                except BaseException:
                    self._writer.close()
                    self._writer = None
                    raise
        return self._writer

    def _refuse(self, error: Exception) -> NoReturn:
        cause = getattr(error, "orig", error)  # the driver's own, or what SQLAlchemy made of it
        reason = " ".join(str(cause).split())
        lacks_space = getattr(cause, "sqlstate", None) == DISK_FULL
        if lacks_space or (self._log is not None and self._log.lacks_space(cause)):
            raise FullError(
                f"{self.where}: the disk is full ({reason}). What was not acknowledged can be sent "
                "again under the same key once there is space."
            ) from error
        raise StoreError(
            f"{self.where}: the database refused ({reason}). What was not acknowledged can be sent "
            "again under the same key once the cause is gone."
        ) from error

    def _go_on(self) -> None:
        """Continue from the latest time in the store."""
        with self.write() as connection:
            check_streams(connection, self.where)
            latest = connection.scalar(sa.select(sa.func.max(schema.streams.c.moment)))
        self._latest = float("-inf") if latest is None else latest

    def _migrate(self) -> None:
        newest = newest_version()
        with self.write() as connection:
            present = version_of(connection)
            if present is not None and present > newest:
                raise StoreError(
                    f"{self.where}: the store has tables of version {present}, this version of "
                    f"labelquorum knows up to {newest}. Update labelquorum."
                )
            if present != newest:
                upgrade(connection)
            expect(connection)


@contextmanager
def _interrupted(connection: sa.Connection, until: float) -> Iterator[None]:
    """Interrupt the queries of a transaction at the deadline."""
    if until == inf:
        yield
    elif connection.dialect.name == "postgresql":
        milliseconds = max(1, int(1000 * (until - time.monotonic())))  # 0 would be no limit
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = {milliseconds}")
        yield
    else:
        driver: Any = connection.connection.dbapi_connection
        driver.set_progress_handler(lambda: time.monotonic() >= until, DEADLINE_STEPS)
        try:
            yield
        finally:  # the connection is used again
            driver.set_progress_handler(None, 0)


# Built once: building a statement takes longer than executing it.
_BY_NAME = sa.select(schema.streams).where(schema.streams.c.name == sa.bindparam("stream"))
_BY_KEY = sa.select(schema.streams).where(schema.streams.c.id == sa.bindparam("stream"))


def _check_name(name: object) -> None:
    if not is_printable_name(name):
        raise StateError(
            "A stream's name must be text that can be printed, of at most "
            f"{NAME_BYTES} bytes. Got {str(name)[:40]!r}."
        )
