"""Text files that grow: whole records of the bytes that are there, with the lines they stand on.

A record is a line of JSON, or a row of CSV, which a quoted cell may stretch over several lines.
What is not whole yet waits for the rest of it.
"""

import csv
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, repeat
from typing import NamedTuple

from labelquorum.errors import LabelError
from labelquorum.ingest.files import PACKED
from labelquorum.ingest.labels import LabelSpace, LabelTable
from labelquorum.ingest.readers import FORMATS

GROWING = (".wide.csv", ".csv", ".tsv", ".jsonl", ".ndjson")
"""The formats to which lines can be appended."""


class Kind(NamedTuple):
    """How a file is written."""

    suffix: str  # of `FORMATS`
    packed: bool = False

    @property
    def grows(self) -> bool:
        """Tell whether lines may be appended to such a file."""
        return self.suffix in GROWING and not self.packed

    @property
    def has_header(self) -> bool:
        """Tell whether the first record names the columns."""
        return self.suffix.endswith((".csv", ".tsv"))


def kind_of(name: str) -> Kind | None:
    """How a file of this name is written; None of one that is not for us.

    Examples
    --------
    >>> kind_of("monday.csv"), kind_of("monday.csv.part"), kind_of(".monday.csv")
    (Kind(suffix='.csv', packed=False), None, None)
    """
    bare, last = os.path.splitext(name.lower())
    packed = last in (*PACKED, ".zip")
    for suffix in FORMATS:
        if (bare if packed else name.lower()).endswith(suffix) and not name.startswith("."):
            return Kind(suffix, packed)
    return None


def looks_like(data: bytes) -> Kind:
    """JSON if it starts with a brace, else CSV."""
    start = data.removeprefix(b"\xef\xbb\xbf").lstrip()
    return Kind(".jsonl") if start.startswith(b"{") else Kind(".csv")


def split_records(data: bytes, kind: Kind, final: bool = False) -> tuple[list[list[bytes]], bytes]:
    r"""Split bytes into whole records, each a list of lines, and what is left of the last.

    Parameters
    ----------
    data
        Bytes from the start of a record.
    kind
        How they are written.
    final
        No more will come: what is left counts as whole.

    Examples
    --------
    >>> split_records(b'a,"b\nc"\nd,', Kind(".csv"))
    ([[b'a,"b\n', b'c"\n']], b'd,')
    """
    end = len(data) if final else data.rfind(b"\n") + 1
    lines = data[:end].splitlines(keepends=True) if b"\r" not in data else _split(data[:end])
    if not kind.has_header or b'"' not in data:
        return [[line] for line in lines], data[end:]
    records, n_whole = [], 0
    for until in _ends(lines, final, "\t" if kind.suffix == ".tsv" else ","):
        records.append(lines[n_whole:until])
        n_whole = until
    return records, b"".join(lines[n_whole:]) + data[end:]


class Lines(NamedTuple):
    """Records of a file that grows, and where they stand."""

    name: str
    kind: Kind
    header: Sequence[bytes]  # its first record, if it names the columns
    n_before: int  # lines of the file before these records
    records: Sequence[Sequence[bytes]]

    def read(self, space: LabelSpace) -> LabelTable:
        """Read them as a table; an error names file and line."""
        read, header = FORMATS[self.kind.suffix].read, list(self.header)
        rows = [line for record in self.records for line in record]
        with suppress(LabelError):
            table = read(_Named(self.name, [*header, *rows]), space)
            shift = self.n_before - len(header)
            return table._replace(lines=[line + shift for line in table.lines or ()])
        # Blank lines in place of those before, so that the error names the right one.
        blank = repeat(b"\n", self.n_before - len(header))
        return read(_Named(self.name, chain(header, blank, rows)), space)


class _Named:
    """Lines that know what they are read from."""

    def __init__(self, name: str, lines: Iterable[bytes]) -> None:
        self.name, self._lines = name, lines

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._lines)


def _split(data: bytes) -> list[bytes]:
    """Lines by their newlines alone, as files are read."""
    *whole, rest = data.split(b"\n")
    return [line + b"\n" for line in whole] + ([rest] if rest else [])


def _ends(lines: Sequence[bytes], final: bool, separator: str) -> Iterator[int]:
    """After how many lines each row of CSV ends; one whose quote is left open has no end yet."""
    text = (line.decode("utf-8", "surrogateescape") for line in lines)
    reader = csv.reader(text, delimiter=separator, strict=True)
    while True:
        try:
            next(reader)
        except StopIteration:
            return
        except csv.Error:  # a bad row, for the reader to name; or one that is not whole
            if reader.line_num == len(lines) and not final:
                return
        yield reader.line_num
