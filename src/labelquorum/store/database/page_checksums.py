"""Page checksums of SQLite's file, so that damage is noticed before anything is read from it.

SQLite has checksums of its WAL, not of its file. Between two checkpoints the file does not change,
so after a checkpoint the sums of its pages are written beside it, to `labelquorum.seal`. The file
carries a mark (`PRAGMA user_version`), which the first commit after the checkpoint changes. So the
sums are of exactly this state of the file, or they are known to be of another and prove nothing:
a checkpoint by another program, or another file in its place, is not taken for damage.

A reader may keep the WAL from being truncated after a checkpoint. If its beginning were damaged
then, the frames before the damage would be taken for newer than the file. So before a checkpoint a
checksum of the WAL is written to `labelquorum.log`, which it must match until it is truncated.

Files on which SQLite has locks are opened once and kept open: under POSIX, closing any handle of a
file releases all locks that the process has on it; another process would then take itself for the
last one, and remove the WAL.
"""

import json
import os
import secrets
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, NoReturn
from zlib import crc32

from labelquorum.errors import StoreError

HEADER = 100  # bytes of the file
LOG_HEADER, FRAME = 32, 24  # bytes before the log's first frame, and before each page in it
PIECE = 1 << 20  # bytes read at a time


def new_mark() -> int:
    """A mark that no other state of a file has."""
    return secrets.randbelow(2**31 - 1) + 1


class PageChecksums:
    """The sums of a file's pages, kept beside it."""

    def __init__(self, file: Path) -> None:
        self._file, self._log = file, Path(f"{file}-wal")
        self._beside = file.with_suffix(".seal")
        self._mark, self._sums = 0, array("I")
        self._noted = file.with_suffix(".log")
        self._summed = (b"", 0, 0)  # of the log: its salt, how many bytes of it, their sum
        self._followed: set[int] = set()  # the pages in those bytes
        self._opened: dict[Path, IO[bytes]] = {}

    def close(self) -> None:
        """Close the files, once SQLite has closed them."""
        for file in self._opened.values():
            file.close()
        self._opened.clear()

    def check(self) -> None:
        """Refuse a file that differs from its checksums; pages that are in the WAL may differ."""
        self._check_log()
        size = self._read()
        if not size:
            return
        try:
            head = self._head()
        except FileNotFoundError:
            self._refuse("it is gone")
        if len(head) < HEADER:
            self._refuse("it is empty")
        if _mark(head) != self._mark:
            self._mark = 0
            return
        in_log, file = self._pages_in_log(), self._kept(self._file)
        n_pages = os.fstat(file.fileno()).st_size // size
        for page in range(n_pages, len(self._sums)):
            if page + 1 not in in_log:
                self._refuse(f"page {page + 1} is missing")
        for page, found in enumerate(_sums(file, size, range(min(n_pages, len(self._sums))))):
            if found != self._sums[page] and page + 1 not in in_log:
                self._refuse(f"page {page + 1} is not as it was written")

    def is_of_file(self) -> bool:
        """Whether the checksums are of the file as it is, without the WAL."""
        return bool(self._mark) and _mark(self._head()) == self._mark

    def changing(self) -> set[int] | None:
        """The pages that the next checkpoint changes; None if any may change."""
        try:
            self.follow()
            return set(self._followed) if self.is_of_file() else None
        except OSError:
            return None

    def follow(self) -> int:
        """Sum the new frames of the WAL, so that few are left at a checkpoint; its bytes."""
        with self._log.open("rb", buffering=0) as log:
            head = log.read(LOG_HEADER)
            salt, size = _salt(head), int.from_bytes(head[8:12], "big")
            end = LOG_HEADER + self._n_frames() * (FRAME + size)
            known, start, total = self._summed
            if known != salt or start > end or total < 0:
                start, total, self._followed = LOG_HEADER, crc32(head), set()
            frame = FRAME + size
            most = PIECE // frame * frame
            while start < end and total >= 0:
                new = os.pread(log.fileno(), min(end - start, most), start)
                for place in range(0, len(new), frame):
                    self._followed.add(int.from_bytes(new[place : place + 4], "big"))
                start += len(new)
                total = crc32(new, total) if new else -1
        self._summed = (salt, end, total if salt else -1)
        return end

    def note(self) -> None:
        """Write the checksum of the WAL, before a checkpoint."""
        self.follow()
        salt, end, total = self._summed
        part = self._noted.with_suffix(".note")
        with part.open("wb") as file:
            file.write(json.dumps({"salt": salt.hex(), "bytes": end, "sum": total}).encode())
            file.flush()
            os.fsync(file.fileno())
        part.replace(self._noted)
        folder = os.open(self._noted.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _check_log(self) -> None:
        """Refuse a WAL that differs from its checksum."""
        try:
            header = json.loads(self._noted.read_bytes())
            salt, end, total = (
                bytes.fromhex(header["salt"]),
                int(header["bytes"]),
                int(header["sum"]),
            )
            log = self._log.open("rb", buffering=0)
        except (OSError, ValueError, KeyError, TypeError):
            return
        with log:
            head = log.read(LOG_HEADER)
            if not head or (_salt(head) != salt and _is_whole(head)):
                return  # it was emptied
            if _salt(head) != salt or _sum(log, 0, end, 0) != total:
                self._refuse("its log, of which it has a part, is not as it was written")

    def _n_frames(self) -> int:
        """How much of the log counts, as its index says."""
        index = self._kept(Path(f"{self._file}-shm"))
        return int.from_bytes(os.pread(index.fileno(), 4, 16), sys.byteorder)

    def renew(self, changed: set[int] | None) -> None:
        """Seal the file as it is, after these pages have changed and the log was emptied."""
        head = self._head()
        size = int.from_bytes(head[16:18], "big")
        size = 65_536 if size == 1 else size
        file = self._kept(self._file)
        n_pages = os.fstat(file.fileno()).st_size // size
        n_known = 0 if changed is None else min(len(self._sums), n_pages)
        del self._sums[n_known:]
        again = sorted(page - 1 for page in changed or () if 0 < page <= n_known)
        for page, found in zip(again, _sums(file, size, again), strict=True):
            self._sums[page] = found
        self._sums.extend(_sums(file, size, range(n_known, n_pages)))
        self._mark, mark = 0, _mark(head)  # there is none until it is written
        body = self._sums.tobytes()
        header: dict[str, Any] = {"mark": mark, "page": size}
        header["sha256"] = _digest(header, body)
        part = self._beside.with_suffix(".part")
        part.write_bytes(json.dumps(header).encode() + b"\n" + body)
        part.replace(self._beside)
        self._mark = mark
        self._noted.unlink(missing_ok=True)

    def _read(self) -> int:
        """Read the seal, and give the size of a page; 0 where there is none, or half of one."""
        try:
            head, _, body = self._beside.read_bytes().partition(b"\n")
            header = json.loads(head)
            if header.pop("sha256") != _digest(header, body):
                return 0
            self._mark, self._sums = int(header["mark"]), array("I", body)
            return int(header["page"])
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            return 0

    def _head(self) -> bytes:
        return os.pread(self._kept(self._file).fileno(), HEADER, 0)

    def _kept(self, path: Path) -> IO[bytes]:
        """A file that stays open, unless another was put in its place."""
        file = self._opened.get(path)
        if file is None or os.fstat(file.fileno()).st_ino != path.stat().st_ino:
            if file is not None:
                file.close()
            self._opened[path] = file = path.open("rb", buffering=0)
        return file

    def _pages_in_log(self) -> set[int]:
        """The pages that the log has; some of them may not count."""
        pages: set[int] = set()
        try:
            with self._log.open("rb", buffering=0) as log:
                size = int.from_bytes(log.read(LOG_HEADER)[8:12], "big")
                end = os.fstat(log.fileno()).st_size
                for place in range(LOG_HEADER, end - FRAME, FRAME + size) if size else ():
                    pages.add(int.from_bytes(os.pread(log.fileno(), 4, place), "big"))
        except FileNotFoundError:
            pass
        return pages

    def _refuse(self, what: str) -> NoReturn:
        raise StoreError(
            f"{self._file}: the file is damaged: {what}. No answer of it can be relied on. "
            "Restore a backup into another folder. Only if you had another program write to the "
            f"file (VACUUM, ANALYZE), remove {self._beside.name}: it is believed as it is then."
        )


def _salt(head: bytes) -> bytes:
    return head[16:24]  # another each time the WAL is restarted


def _is_whole(head: bytes) -> bool:
    """Whether the header of a log is as SQLite wrote it, by its own sum."""
    order: Any = "big" if head[3:4] == b"\x83" else "little"
    first = second = 0
    for at in range(0, 24, 8):
        first = (first + int.from_bytes(head[at : at + 4], order) + second) % 2**32
        second = (second + int.from_bytes(head[at + 4 : at + 8], order) + first) % 2**32
    return head[24:] == first.to_bytes(4, "big") + second.to_bytes(4, "big")


def _sum(file: IO[bytes], start: int, end: int, total: int) -> int:
    """The sum of these bytes, after those summed before; no sum where some are missing."""
    while start < end:
        piece = os.pread(file.fileno(), min(end - start, PIECE), start)
        if not piece:
            return -1
        total = crc32(piece, total)
        start += len(piece)
    return total


def _mark(head: bytes) -> int:
    return int.from_bytes(head[60:64], "big")  # where the file carries it


def _sums(file: IO[bytes], size: int, pages: Sequence[int]) -> Iterator[int]:
    """The sum of each of these pages."""
    for page in pages:
        yield crc32(os.pread(file.fileno(), size, page * size))


def _digest(header: Mapping[str, Any], body: bytes) -> str:
    return sha256(json.dumps(header, sort_keys=True).encode() + body).hexdigest()
