"""Packed bytes that strangers sent: gzip and Parquet that must not grow beyond bounds.

A few kilobytes may claim to be, or become, gigabytes. Gzip is unpacked piece by piece and given up
once it is too much. Of a Parquet file, every page says in its header how large it is unpacked, and
no reader unpacks more than that; so the headers are read before any page is.
"""

import zlib
from collections.abc import Iterator
from io import BytesIO
from typing import Any

from labelquorum.errors import LabelError, LimitError
from labelquorum.ingest.frames import collect, require_pyarrow
from labelquorum.ingest.labels import LabelSpace, LabelTable
from labelquorum.ingest.validate import ANY_LABEL, checked, find_columns

__all__ = ["MAX_RATIO", "MAX_ROWS", "MAX_UNPACKED_BYTES", "gunzip", "read_bounded_parquet"]

MAX_UNPACKED_BYTES = 256 * 2**20
"""Maximum unpacked size."""

MAX_RATIO = 100
"""Maximum ratio of unpacked to packed size, above `FREE_BYTES` unpacked."""

MAX_ROWS = 100_000
"""Maximum number of labels per body."""

MAX_MEMBERS = 10_000
"""Gzip may be several in a row, and each costs something even if there is nothing in it."""

FREE_BYTES = 2**20
_PIECE, _WINDOW = 2**18, 2**14
_FOOTER_BYTES = 2**20  # in which a Parquet file says what it is; each may make an object

# How values may be written in a page. Left out are those that spell a value as the end of the one
# before it, by which a short page becomes long text.
_ENCODINGS = {0: "PLAIN", 2: "PLAIN_DICTIONARY", 3: "RLE", 4: "BIT_PACKED", 8: "RLE_DICTIONARY"}
_ENCODINGS |= {5: "DELTA_BINARY_PACKED", 6: "DELTA_LENGTH_BYTE_ARRAY"}


def gunzip(packed: bytes, max_bytes: int = MAX_UNPACKED_BYTES) -> bytes:
    """Unpack gzip, or refuse as soon as it is too much.

    Parameters
    ----------
    packed
        One or more gzip members.
    max_bytes
        The largest result.

    Examples
    --------
    >>> import gzip
    >>> gunzip(gzip.compress(b"task,worker,label"))
    b'task,worker,label'
    """
    pieces: list[bytes] = []
    view = memoryview(packed)
    size = at = n_members = 0
    bound = min(max_bytes, max(FREE_BYTES, MAX_RATIO * len(packed)))
    try:
        while at < len(packed):
            n_members += 1
            if n_members > MAX_MEMBERS:
                raise LimitError(
                    f"The body is gzip of more than {MAX_MEMBERS:,} members. Pack it as one."
                )
            member = zlib.decompressobj(wbits=31)
            while not member.eof:
                # A few bytes at a time: zlib hands back a copy of what it did not use.
                given = view[at : at + _WINDOW]
                piece = member.decompress(given, _PIECE)
                left = member.unused_data or member.unconsumed_tail  # the first at its end alone
                at += len(given) - len(left)
                size += len(piece)
                if size > bound:
                    raise _too_much("The body, unpacked,", size, len(packed), max_bytes)
                pieces.append(piece)
                if not piece and at == len(packed) and not member.eof:
                    raise LabelError("The body is gzip that ends too soon. Send it whole.")
    except zlib.error as error:
        raise LabelError(
            f"The body is not gzip ({error}). Send it as it is, without Content-Encoding."
        ) from error
    return b"".join(pieces)


def read_bounded_parquet(
    body: bytes,
    space: LabelSpace = ANY_LABEL,
    source: str = "body",
    max_bytes: int = MAX_UNPACKED_BYTES,
) -> LabelTable:
    """Read a Parquet file that may be a trap; this takes pyarrow.

    Parameters
    ----------
    body
        The file.
    space
        What a label may be, and what happens to bad rows.
    source
        How errors name it.
    max_bytes
        The most that its columns may need.
    """
    pyarrow, parquet = map(require_pyarrow, ("pyarrow", "pyarrow.parquet"))
    limits = {"thrift_string_size_limit": 2**20, "thrift_container_size_limit": 2**18}
    try:
        names = _column_names(body)
        columns = [names[at] for at in find_columns(names, source, "Rename a column.").values()]
        _check_parts(body, columns, source, max_bytes)
        # Text stays in a dictionary: a value that stands a million times is held once.
        with parquet.ParquetFile(BytesIO(body), read_dictionary=columns, **limits) as file:
            table = file.read(columns)
        size = sum(_spelled_out(table[name]) for name in columns)
        if size > max_bytes:
            raise _too_much("The file, spelled out,", size, len(body), max_bytes)
        return checked(collect(table, source), space)
    except (
        pyarrow.ArrowException,
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
    ) as error:
        if isinstance(error, LabelError):
            raise
        raise LabelError(
            f"{source}: the file is not readable as Parquet ({error}). Write it again."
        ) from error


def _check_parts(body: bytes, columns: list[str], source: str, max_bytes: int) -> None:
    """Refuse a file that would need too much, by what it says of itself and by its pages."""
    reported = _footer(body)
    if reported[3] > MAX_ROWS:
        raise LimitError(
            f"{source}: at most {MAX_ROWS:,} labels are taken at once. Got {reported[3]:,}. "
            "Send them in parts."
        )
    bound = min(max_bytes, max(FREE_BYTES, MAX_RATIO * len(body)))
    size = 0
    for group in reported[4]:
        for part in (column[3] for column in group[1]):
            name, *deeper = (step.decode() for step in part[3])
            if name not in columns:
                continue
            if deeper:
                raise LabelError(
                    f"{source}: the column {name!r} holds lists or records, and must hold text "
                    "or numbers. Write it flat."
                )
            for page in _pages(part, body):
                size += page
                if size > bound:
                    raise _too_much("The file, unpacked,", size, len(body), max_bytes)


def _column_names(body: bytes) -> list[str]:
    """The columns of a file, those that hold columns themselves included."""
    root, *schema = _footer(body)[2]
    names, inside = [], 0
    for element in schema:
        if not inside:
            names.append(element[4].decode())
        inside = max(inside - 1, 0) + element.get(5, 0)
    return names[: root.get(5, 0)]


def _footer(body: bytes) -> dict[int, Any]:
    """What a file says of itself. pyarrow's own words for it end the process if they are wrong."""
    length = int.from_bytes(body[-8:-4], "little")
    if body[:4] != b"PAR1" or body[-4:] != b"PAR1" or length + 12 > len(body):
        raise ValueError("it does not begin and end as Parquet does")
    if length > _FOOTER_BYTES:
        raise ValueError(f"what it says of itself is longer than {_FOOTER_BYTES:,} bytes")
    reported, _ = _struct(body, len(body) - 8 - length)
    return reported


def _pages(part: dict[int, Any], body: bytes) -> Iterator[int]:
    """How large each page of a column is unpacked, as its header says."""
    at = min(start for start in (part[9], part.get(11, 0)) if start > 0)
    end = at + part[7]
    if end > len(body) or part[7] < 0:
        raise ValueError("a column lies outside the file")
    while at < end:
        header, at = _struct(body, at)
        unpacked, packed = header[2], header[3]
        if min(unpacked, packed) < 0:
            raise ValueError("a page has no size")
        encoding = header[5][2] if 5 in header else header[8][4] if 8 in header else 0
        if encoding not in _ENCODINGS:
            raise LabelError(
                f"The file has pages of encoding {encoding}, which may need more than they show. "
                f"Write it with one of {sorted(_ENCODINGS.values())}."
            )
        at += packed
        yield unpacked


def _spelled_out(column: Any) -> int:
    """How many bytes a column's text takes without its dictionary."""
    size = 0
    for chunk in column.chunks:
        if hasattr(chunk, "dictionary"):
            lengths = [len(value) if value else 0 for value in _texts(chunk.dictionary)]
            size += sum(lengths[at] for at in chunk.indices.to_pylist() if at is not None)
        else:
            size += chunk.nbytes
    return size


def _texts(dictionary: Any) -> list[Any]:
    values: list[Any] = dictionary.to_pylist()
    return [value if isinstance(value, str | bytes) else str(value) for value in values]


def _too_much(what: str, size: int, packed: int, max_bytes: int) -> LimitError:
    return LimitError(
        f"{what} has more than {max_bytes:,} bytes or {MAX_RATIO} times its own "
        f"{packed:,}: it came to {size:,}. Send it in parts."
    )


# ── Thrift's compact protocol, as far as Parquet needs it ───────────────────────────────


def _struct(data: bytes, at: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """Read a struct: its fields by number, and where it ends."""
    if depth > 8:
        raise ValueError("it is nested too deep")
    fields: dict[int, Any] = {}
    number = 0
    while (head := data[at]) != 0:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = _zigzag(data, at)
        fields[number], at = _value(data, at, head & 15, depth)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (1, 2):  # true, false
        return kind == 1, at
    if kind == 3:  # one byte
        return data[at], at + 1
    if kind in (4, 5, 6):  # whole numbers
        return _zigzag(data, at)
    if kind == 7:  # a double
        return None, at + 8
    if kind == 8:  # text
        length, at = _varint(data, at)
        return data[at : at + length], at + length
    if kind == 9:
        return _list(data, at, depth)
    if kind == 12:
        return _struct(data, at, depth + 1)
    raise ValueError("it has a field of an unknown kind")


def _list(data: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    length, kind = data[at] >> 4, data[at] & 15
    at += 1
    if length == 15:
        length, at = _varint(data, at)
    if length > min(len(data) - at, _FOOTER_BYTES):
        raise ValueError("it has a list that is longer than itself, or than any of ours")
    values = []
    for _ in range(length):
        value, at = (data[at] == 1, at + 1) if kind in (1, 2) else _value(data, at, kind, depth)
        values.append(value)
    return values, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if not byte & 128:
            return number, at
    raise ValueError("it has a number that is too long")


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    number, at = _varint(data, at)
    return (number >> 1) ^ -(number & 1), at
