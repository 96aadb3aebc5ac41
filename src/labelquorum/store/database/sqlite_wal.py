"""SQLite's write-ahead log: when it is checkpointed, and by which process.

By default SQLite checkpoints the WAL now and then and overwrites it from its beginning. If some of
it were damaged then, the frames before the damage would pass for newer than the file, and be mixed
with it. So every checkpoint truncates the WAL, and the page checksums of the file are written.

Two processes may write: the one that holds the store, and one that joined it. Each waits for a lock
(`labelquorum.turn`), and has it before the other has it again. Only the first checkpoints and
writes checksums; whatever the other writes makes them out of date.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from labelquorum.store.database.page_checksums import PageChecksums, new_mark

LOG_BYTES = 16_000_000
"""A WAL of this size is checkpointed."""
FOLLOW_BYTES = 1_000_000
"""The checksum of the WAL is updated when it has grown by this much."""
CACHE_BYTES = 64 << 20
"""Page cache of the connection that writes."""
BUSY_SECONDS = 5.0
"""Seconds to wait for another process's lock."""
READ_SECONDS = 1.0
"""Seconds until the next checkpoint, where a reader kept the WAL from being truncated."""
IO_ERROR, FULL = 10, 13  # as SQLite numbers them
INDEX_BYTES = 32_768
"""What the index of the log takes at least."""


class WriteAheadLog:
    """The WAL of a file, and the page checksums that go with it."""

    def __init__(self, file: Path, joined: bool = False) -> None:
        self._file, self._seal, self._joined = file, PageChecksums(file), joined
        self._marked = False  # the file's mark was changed since it was sealed
        self._next_try = 0.0
        self._followed = 0  # bytes of the log
        self._turns, self._next = (file.with_suffix(end).open("a") for end in (".turn", ".next"))

    def close(self) -> None:
        """Close all files, once SQLite has closed them."""
        self._turns.close()
        self._next.close()
        self._seal.close()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """While no other process writes; SQLite alone would have us ask again and again.

        The process that waits holds `next`, so the one that writes cannot have two turns in a row.
        """
        fcntl.flock(self._next, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._turns, fcntl.LOCK_EX)
        finally:
            fcntl.flock(self._next, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._turns, fcntl.LOCK_UN)

    def prepare(self, connection: sa.Connection) -> None:
        """Give the connection that writes room to keep what it has read."""
        raw: Any = connection.connection
        raw.execute(f"PRAGMA cache_size = -{CACHE_BYTES // 1024}").close()

    def check(self) -> None:
        """Refuse a file that was damaged."""
        self._seal.check()

    @contextmanager
    def noting(self, connection: sa.Connection) -> Iterator[None]:
        """A transaction; the first that changes anything breaks the seal."""
        raw: Any = connection.connection
        with connection.begin():
            before = raw.total_changes
            yield
            marks = not self._marked and raw.total_changes != before
            if marks:
                connection.exec_driver_sql(f"PRAGMA user_version = {new_mark()}")
        self._marked = (self._marked or marks) and not self._joined

    def shorten(self, connection: sa.Connection, least: int | None = None) -> bool:
        """Checkpoint the WAL and truncate it, if it is long; False if the disk failed.

        Parameters
        ----------
        connection
            The one that writes, between two transactions.
        least
            Length in bytes from which it is done; `LOG_BYTES` unless given.
        """
        least = LOG_BYTES if least is None else least
        if self._joined:
            return True
        try:
            size = self._size()
            if size - self._followed > FOLLOW_BYTES or size < self._followed:
                self._followed = self._seal.follow()
            too_soon = time.monotonic() < self._next_try and least == LOG_BYTES
            if too_soon or size < least:
                return True
        except OSError:
            return True
        raw: Any = connection.connection
        driver: Any = connection.dialect.loaded_dbapi
        changing = self._seal.changing()
        with suppress(OSError):  # a full disk, which an emptied log may help
            self._seal.note()
        try:
            raw.execute("PRAGMA busy_timeout = 0").close()
            is_read, *_ = raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            raw.execute(f"PRAGMA busy_timeout = {1000 * BUSY_SECONDS:.0f}").close()
        except driver.Error:  # what was committed stays so
            return False
        if is_read:
            self._next_try = time.monotonic() + READ_SECONDS
            return True
        self._marked = False
        with suppress(OSError):  # then this state of the file has none
            self._seal.renew(changing)
        return True

    def finish(self, connection: sa.Connection) -> None:
        """Checkpoint the WAL and write the checksums, also if nothing was written."""
        if self._joined:
            return
        raw: Any = connection.connection
        driver: Any = connection.dialect.loaded_dbapi
        with suppress(OSError, driver.Error):  # a full disk: then it has no seal
            if not self._seal.is_of_file():
                raw.execute(f"PRAGMA user_version = {new_mark()}").close()
        self.shorten(connection, least=1)

    def rewrite(self, connection: sa.Connection) -> None:
        """VACUUM the file, so that nothing of what was deleted is left in its pages."""
        raw: Any = connection.connection
        # A new mark first: until the file is sealed again, the old seal says nothing.
        for order in (f"user_version = {new_mark()}", "wal_checkpoint(TRUNCATE)"):
            raw.execute(f"PRAGMA {order}").close()
        raw.execute("VACUUM").close()
        self._marked = True
        self.shorten(connection, least=1)

    def lacks_space(self, error: Any) -> bool:
        """Whether an error of SQLite means that the disk is full."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == IO_ERROR:  # so it is called when the log's index has no room
            with suppress(OSError):
                disk = os.statvfs(self._file.parent)
                return disk.f_bavail * disk.f_frsize < INDEX_BYTES
        return code == FULL

    def _size(self) -> int:
        return Path(f"{self._file}-wal").stat().st_size
