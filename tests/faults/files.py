"""SQLite over files that fail or lose power: a VFS of apsw below, Python's own interface above.

`Disk` sees every write, sync and truncation before it happens, and may refuse it. It records
all of them, so that what would be on the disk after a loss of power can be put together.
`engine_on` makes the store's own engine run over it.
"""

import random
import sqlite3
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import apsw
import pytest
import sqlalchemy as sa

SECTOR = 512  # what a disk writes whole or not at all


class Step(NamedTuple):
    """What was asked of a file, or `acknowledged`, which is no file's."""

    what: str  # write, sync, truncate, delete, replace
    file: str
    start: int = 0
    data: bytes = b""


class Disk(apsw.VFS):
    """Files that fail when `refuse(step)` says so, by giving an error of apsw."""

    def __init__(self, name="failing", refuse=None):
        self.name, self.refuse, self.steps = name, refuse, []
        super().__init__(name, "")

    def xOpen(self, name, flags):
        return _File(self, name, flags)

    def xDelete(self, name, sync):
        self.asked(Step("delete", Path(name).name))
        return super().xDelete(name, sync)

    def asked(self, step):
        self.steps.append(step)
        error = self.refuse(step) if self.refuse else None
        if error is not None:
            self.steps.pop()
            raise error

    def excepthook(self, *_):
        """Errors that SQLite passes over, such as those of a last close, are nobody's."""


class _File(apsw.VFSFile):
    def __init__(self, disk, name, flags):
        self._disk = disk
        self._name = Path(
            name.filename() if isinstance(name, apsw.URIFilename) else name or ""
        ).name
        super().__init__("", name, flags)

    def xWrite(self, data, offset):
        self._disk.asked(Step("write", self._name, offset, bytes(data)))
        return super().xWrite(data, offset)

    def xSync(self, flags):
        self._disk.asked(Step("sync", self._name))
        return super().xSync(flags)

    def xTruncate(self, size):
        self._disk.asked(Step("truncate", self._name, size))
        return super().xTruncate(size)

    def excepthook(self, *_):
        pass


class Platter:
    """What a disk holds for good, step by step, and what it might hold when power goes."""

    def __init__(self):
        self._files: dict[str, bytearray] = {}
        self._unsynced: dict[str, list[Step]] = {}
        self._deleted: list[str] = []  # the folder does not know it for good yet
        self._replaced: dict[str, list[bytes]] = {}

    def do(self, step):
        """Go on by a step."""
        if step.what == "sync":
            if step.file not in self._files:  # SQLite syncs the folder with a new file
                while self._deleted:
                    self._files.pop(self._deleted.pop(), None)
            data = self._files.setdefault(step.file, bytearray())
            for one in self._unsynced.pop(step.file, []):
                _do(data, one)
        elif step.what in ("write", "truncate"):
            self._unsynced.setdefault(step.file, []).append(step)
        elif step.what == "delete":
            self._deleted.append(step.file)
            self._unsynced.pop(step.file, None)
        elif step.what == "replace":  # whole, and never synced
            self._replaced.setdefault(step.file, []).append(step.data)

    def after_power_loss(self, rng):
        """What was synced, and of the rest whatever happened to be written.

        Each write since a file's last sync may be there, or not, or torn between two sectors.
        """
        files = {name: bytearray(data) for name, data in self._files.items()}
        keep = rng.choice((0.0, 0.3, 0.7, 1.0))
        for name, rest in self._unsynced.items():
            for one in rest:
                if rng.random() < keep:
                    torn = one if rng.random() < 0.8 else _torn(one, rng)
                    _do(files.setdefault(name, bytearray()), torn)
        for name in self._deleted:
            if rng.random() < 0.5:
                files.pop(name, None)
        for name, versions in self._replaced.items():
            data = rng.choice([b"", *versions[-2:]])
            files[name] = data if rng.random() < 0.8 else data[: len(data) // 2]
        return files


def _do(data, step):
    if step.what == "truncate":
        del data[step.start :]
    else:
        if len(data) < step.start:
            data.extend(bytes(step.start - len(data)))
        data[step.start : step.start + len(step.data)] = step.data


def _torn(step, rng):
    if step.what != "write" or len(step.data) <= SECTOR:
        return step
    return step._replace(data=step.data[: SECTOR * rng.randrange(1, len(step.data) // SECTOR + 1)])


@contextmanager
def engine_on(disk):
    """Inside the block, new SQLite engines run over a disk, for as long as they live."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sa, "create_engine", partial(sa.create_engine, module=_Driver(disk)))
        yield


class _Driver:
    """As the module sqlite3, but over a disk."""

    paramstyle, sqlite_version, sqlite_version_info = "qmark", "3", sqlite3.sqlite_version_info
    Binary = bytes
    Error, DatabaseError, Warning = sqlite3.Error, sqlite3.DatabaseError, sqlite3.Warning
    OperationalError, IntegrityError = sqlite3.OperationalError, sqlite3.IntegrityError
    ProgrammingError, InterfaceError = sqlite3.ProgrammingError, sqlite3.InterfaceError
    InternalError, DataError = sqlite3.InternalError, sqlite3.DataError
    NotSupportedError = sqlite3.NotSupportedError

    def __init__(self, disk):
        self._disk = disk

    def connect(self, database, timeout=5, **_):
        return _Connection(database, self._disk.name, timeout)


@contextmanager
def _as_sqlite3():
    """Errors of apsw as those of sqlite3."""
    try:
        yield
    except apsw.Error as error:
        same = sqlite3.IntegrityError if isinstance(error, apsw.ConstraintError) else None
        reply = (same or sqlite3.OperationalError)(str(error) or "disk I/O error")
        reply.sqlite_errorcode = getattr(error, "result", 1)
        reply.sqlite_errorname = apsw.mapping_result_codes.get(reply.sqlite_errorcode, "")
        raise reply from error


class _Connection:
    isolation_level = None

    def __init__(self, database, vfs, timeout):
        with _as_sqlite3():
            self.database = apsw.Connection(database, vfs=vfs)
        self.database.set_busy_timeout(int(1000 * timeout))

    @property
    def total_changes(self):
        return self.database.total_changes()

    def cursor(self, *_):
        return _Cursor(self)

    def execute(self, *arguments):
        cursor = self.cursor()
        cursor.execute(*arguments)
        return cursor

    def create_function(self, *_, **__):
        pass

    def commit(self):
        self._if_in_transaction("COMMIT")

    def rollback(self):
        self._if_in_transaction("ROLLBACK")

    def _if_in_transaction(self, statement):
        if self.database.in_transaction:
            self.execute(statement)

    def close(self):
        with suppress(apsw.Error):  # SQLite passes over errors of a last close
            self.database.close()


class _Cursor:
    arraysize = 1

    def __init__(self, connection):
        self.connection, self.description = connection, None
        self.rowcount, self.lastrowid, self._rows = -1, None, iter(())

    def execute(self, statement, parameters=()):
        self.executemany(statement, [parameters])

    def executemany(self, statement, many):
        database = self.connection.database
        before, rows = database.total_changes(), []
        self.description = None
        with _as_sqlite3():
            cursor = database.cursor()
            cursor.exec_trace = self._describe
            for parameters in many:
                rows += cursor.execute(statement, tuple(parameters)).fetchall()
        self.rowcount = -1 if self.description else database.total_changes() - before
        self.lastrowid = database.last_insert_rowid()
        self._rows = iter(rows)

    def _describe(self, cursor, *_):
        reply = cursor.get_description()
        self.description = [(name, *[None] * 6) for name, *_ in reply] or None
        return True

    def fetchone(self):
        return next(self._rows, None)

    def fetchmany(self, size=1):
        return [row for _, row in zip(range(size), self._rows, strict=False)]

    def fetchall(self):
        return list(self._rows)

    def close(self):
        self._rows = iter(())


def rng(*seed):
    """A random generator by whatever names the trial."""
    return random.Random(repr(seed))
