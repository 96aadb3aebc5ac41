"""Files of a folder, or lines that come in, → a stream; how far each was read goes with its labels.

The position of a source is written in the transaction of its labels. So after any end one goes on
where the last commit was, and no label is lost or counts twice. A text file may grow by appended
lines; a Parquet or packed file is read once it is there, and must be moved into its place whole.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import IO, NamedTuple

from labelquorum.errors import LabelError, LimitError, StateError
from labelquorum.ingest.labels import LabelTable, OnBad
from labelquorum.ingest.readers import iter_labels
from labelquorum.ingest.tail import Kind, Lines, kind_of, looks_like, split_records
from labelquorum.store.batch import Receipt, decode, encode
from labelquorum.store.stream import Stream

BYTES_PER_COMMIT = 1 << 20
MAX_RECORD_BYTES = 16 << 20
TAIL_BYTES = 4096  # before a position; by their digest a source is recognised
ROWS_PER_COMMIT = 10_000  # of a file that cannot grow

Records = Sequence[Sequence[bytes]]


class Position(NamedTuple):
    """How far a source was read."""

    bytes: int = 0  # of a file that cannot grow, its size
    lines: int = 0
    tail: str = ""  # SHA-256 of what stands before, its beginning
    tables: int = 0  # taken of a file that cannot grow
    done: bool = False  # with such a file


class FileSource:
    """Reads files into a stream.

    Parameters
    ----------
    stream
        Where to.
    on_bad
        "error" stops at the first bad row, with all before it taken; "skip" leaves it out.
    tell
        Called with a sentence about what was left out.
    """

    def __init__(self, stream: Stream, on_bad: OnBad, tell: Callable[[str], None]) -> None:
        self.stream, self.tell = stream, tell
        self.space = replace(stream.space, on_bad=on_bad)
        self._growing: dict[str, LineSource] = {}
        self._done: dict[str, Position] = {}  # files that cannot grow, and are through
        self._left_alone: set[str] = set()

    def files(self, folder: str | os.PathLike[str], final: bool = False) -> Iterator[Receipt]:
        """Take what is new in the files of a folder, in the order of their names.

        Parameters
        ----------
        folder
            Its files end in .csv, .wide.csv, .jsonl, .ndjson or .parquet; .gz may follow. Hidden
            and other files are left alone.
        final
            No more will come: a last line counts even if its newline is missing.
        """
        for path in sorted(Path(folder).iterdir(), key=lambda path: path.name):
            kind = kind_of(path.name)
            if path.name.startswith(".") or not path.is_file():
                continue
            if kind is None:
                if path.name not in self._left_alone:
                    self._left_alone.add(path.name)
                    self.tell(f"{path}: left alone, because its suffix names no format.")
            elif kind.grows:
                yield from self._text(path, kind, final)
            else:
                yield from self._packed(path)

    def position(self, source: str) -> Position:
        """How far a source was read before."""
        text = self.stream.position(_checked(source))
        try:
            return Position() if text is None else Position(**decode(text))
        except (TypeError, ValueError):
            raise StateError(
                f"{source}: another reader has a source of this name into stream "
                f"{self.stream.name!r}, up to {text!r}. Choose another name."
            ) from None

    def _text(self, path: Path, kind: Kind, final: bool) -> Iterator[Receipt]:
        incoming = self._growing.get(path.name)
        if incoming is None:
            incoming = self._growing[path.name] = LineSource(self, str(path), path.name, kind)
        if path.stat().st_size == incoming.position.bytes:
            return
        with path.open("rb") as file:
            incoming.resume(file)
            while data := file.read(BYTES_PER_COMMIT):
                yield from incoming.take(data)
            if final:
                yield from incoming.take(b"", final=True)

    def _packed(self, path: Path) -> Iterator[Receipt]:
        """Take a file that cannot grow, some rows at a time."""
        size = path.stat().st_size
        position = self._done.get(path.name) or self.position(path.name)
        if position.bytes not in (0, size):
            raise LabelError(_changed(path))
        if not position.done:
            for number, table in enumerate(iter_labels(path, self.space, ROWS_PER_COMMIT), 1):
                if number > position.tables:
                    position = Position(bytes=size, tables=number)
                    yield self.accept(table, path.name, position)
            position = position._replace(bytes=size, done=True)
            self.stream.accept({}, source=path.name, position=encode(position._asdict()))
        self._done[path.name] = position

    def accept(self, table: LabelTable, source: str | None, position: Position) -> Receipt:
        """Take a table, and how far its source was read with it."""
        text = None if source is None else encode(position._asdict())
        return self.stream.accept(table, source=source, position=text)


class LineSource:
    """Lines of one source on their way into a stream.

    Parameters
    ----------
    feed
        Takes them.
    name
        Of the source, for messages.
    source
        Under which its position is kept; None of one that cannot be read again.
    kind
        How they are written; None to see by the first of them.
    """

    def __init__(self, feed: FileSource, name: str, source: str | None, kind: Kind | None) -> None:
        self.name, self.kind = name, kind
        self.position = Position() if source is None else feed.position(source)
        self._feed, self._source = feed, source
        self._to_skip = self.position.bytes
        self._header: list[bytes] = []
        self._lead = b""  # bytes that go with the next records: a header
        self._rest = b""  # of a record that is not whole
        self._recent = b""  # bytes before the position

    def resume(self, file: IO[bytes]) -> None:
        """Go on in a file where it was left; refuse another file under its name."""
        self._rest, self._to_skip = b"", 0
        if not self.position.bytes:
            self._header, self._lead = [], b""
            return
        if not self._recent:
            start = b""
            while self._lacks_header() and (line := file.readline()):
                start += line
                self._find_header(start)
        file.seek(max(0, self.position.bytes - TAIL_BYTES))
        self._recognise(file.read(min(TAIL_BYTES, self.position.bytes)))

    def take(self, data: bytes, final: bool = False) -> Iterator[Receipt]:
        """Take the records that are whole now; `final` says that no more will come."""
        if self._to_skip:
            data = self._skip(data)
        data = self._rest + data
        if self.kind is None:
            if not data.strip():
                self._rest = data
                return
            self.kind = looks_like(data)
        records, self._rest = split_records(data, self.kind, final)
        while records and self._lacks_header():
            first, *records = records
            self._lead += b"".join(first)
            self._find_header(self._lead)
        if records:
            yield from self._accept(records)
        if len(self._rest) > MAX_RECORD_BYTES:
            raise LabelError(
                f"{self.name} line {self.position.lines + 1}: a record is longer than "
                f"{MAX_RECORD_BYTES:,} bytes. Look for a quote that is left open."
            )

    def _accept(self, records: Records) -> Iterator[Receipt]:
        """Take records; where some are refused, those before the first of them."""
        assert self.kind is not None
        feed, lead = self._feed, self._lead
        n_before = self.position.lines + lead.count(b"\n")
        lines = Lines(self.name, self.kind, self._header, n_before, records)
        taken = lead + b"".join(line for record in records for line in record)
        recent = (self._recent + taken)[-TAIL_BYTES:]
        n_lines = n_before + sum(map(len, records))
        position = Position(self.position.bytes + len(taken), n_lines, _digest(recent))
        try:
            table = lines.read(feed.space)
            receipt = feed.accept(table, self._source, position)
        except (LabelError, LimitError):
            if len(records) == 1:
                raise
            half = len(records) // 2
            yield from self._accept(records[:half])
            yield from self._accept(records[half:])
            return
        self.position, self._lead, self._recent = position, b"", recent
        if set(receipt.skipped) - {"abstained"}:
            try:
                lines.read(replace(feed.space, on_bad="error"))
            except LabelError as error:
                feed.tell(f"Left out: {error}")
        yield receipt

    def _skip(self, data: bytes) -> bytes:
        """Pass over what was read under this name before, if it is the same."""
        known, data = data[: self._to_skip], data[self._to_skip :]
        self._to_skip -= len(known)
        self._recent = (self._recent + known)[-TAIL_BYTES:]
        if self.kind is None:
            self.kind = looks_like(known)
        if self._lacks_header():
            self._lead += known
            self._find_header(self._lead)
        if not self._to_skip:
            self._lead = b""
            self._recognise(self._recent)
        return data

    def _recognise(self, recent: bytes) -> None:
        if _digest(recent) != self.position.tail:
            raise LabelError(_changed(self.name))
        self._recent = recent

    def _lacks_header(self) -> bool:
        return self.kind is not None and self.kind.has_header and not self._header

    def _find_header(self, start: bytes) -> None:
        """Take the first record that is not blank for the header, with what stands before it."""
        assert self.kind is not None
        header: list[bytes] = []
        for record in split_records(start, self.kind)[0]:
            header += record
            if b"".join(record).strip(b"\xef\xbb\xbf\r\n \t"):
                self._header = header
                return


def _digest(recent: bytes) -> str:
    return sha256(recent).hexdigest()[:16]


def _changed(name: object) -> str:
    return (
        f"{name}: what was read of it before is no longer there: a file may grow, and must not "
        "change otherwise. Give a new file a name of its own."
    )


def _checked(source: str) -> str:
    try:
        source.encode()
    except UnicodeEncodeError:
        raise LabelError(f"{source!r}: the name of a file must be UTF-8. Rename it.") from None
    return source
