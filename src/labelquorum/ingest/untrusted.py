"""Packed bytes that strangers sent: gzip and Parquet that must not grow beyond bounds.

A few kilobytes may claim to be, or become, gigabytes. Gzip is unpacked piece by piece and given up
once it is too much. Parquet is decoded a few rows at a time, into a file, and given up likewise.
Nothing that a Parquet file says of its own size is believed. But its reader allocates pages and
dictionaries as large as the file says; so it runs in a fork whose memory and time are limited by
the kernel, and a file that needs more ends nothing else.
"""

import os
import resource
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from labelquorum import errors
from labelquorum.errors import LabelError, LabelQuorumError, LimitError
from labelquorum.ingest.frames import require_pyarrow
from labelquorum.ingest.validate import NAME_BYTES, find_columns

MAX_UNPACKED_BYTES = 256 * 2**20
"""Maximum unpacked size."""

MAX_RATIO = 100
"""Maximum ratio of unpacked to packed size, above `FREE_BYTES` unpacked."""

MAX_ROWS = 100_000
"""Maximum number of labels per body."""

MAX_TRUTHS = 10_000
"""Maximum number of true labels per body: of answered tasks they take a second."""

MAX_MEMBERS = 10_000
"""Gzip may be several in a row, and each costs something even if there is nothing in it."""

FREE_BYTES = 2**20
_PIECE, _WINDOW = 2**18, 2**14

MAX_DECODED_BYTES = 4 * NAME_BYTES * MAX_ROWS
"""Maximum size of the columns of a Parquet file, decoded: of as many labels as may come at once,
with the longest names."""

DECODED_ROWS = 1_000
"""Rows that are decoded at a time; what they take is known afterwards."""

FORK_BYTES, FORK_SECONDS = 512 * 2**20, 10
"""Memory and processor time in which a Parquet file is decoded: a few times what the largest table
takes; 100,000 labels take a tenth of a second."""


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


def decode_parquet(source: Path, target: Path, name: str = "body") -> None:
    """Decode the columns of labels of a Parquet file into an Arrow stream; this takes pyarrow.

    Parameters
    ----------
    source
        The file.
    target
        The file to write: the record batches, with no dictionaries.
    name
        How errors name the source.
    """
    pyarrow, parquet = map(require_pyarrow, ("pyarrow", "pyarrow.parquet"))
    unreadable = (pyarrow.ArrowException, OSError, ValueError, LookupError, TypeError)
    n_rows = size = 0
    try:
        with parquet.ParquetFile(source, pre_buffer=False) as file:
            names = file.schema_arrow.names
            columns = [names[at] for at in find_columns(names, name, "Rename a column.").values()]
            schema = _flat_schema(pyarrow, file.schema_arrow, columns, name)
            batches = file.iter_batches(DECODED_ROWS, columns=columns, use_threads=False)
            with pyarrow.ipc.new_stream(target, schema) as stream:
                for batch in batches:
                    # Categories become the values they stand for.
                    table = pyarrow.Table.from_batches([batch])
                    flat = table.select(columns).cast(schema)
                    n_rows, size = n_rows + flat.num_rows, size + flat.nbytes
                    if n_rows > MAX_ROWS:
                        raise LimitError(
                            f"{name}: at most {MAX_ROWS:,} labels are taken at once. "
                            "Send them in parts."
                        )
                    if size > MAX_DECODED_BYTES:
                        raise LimitError(
                            f"{name}: the file, decoded, has more than {MAX_DECODED_BYTES:,} bytes "
                            "in its columns. Send it in parts."
                        )
                    stream.write_table(flat)
    except MemoryError as error:
        raise LimitError(
            f"{name}: the file takes more memory than it may. Send it in parts."
        ) from error
    except LabelError:
        raise
    except unreadable as error:
        raise LabelError(
            f"{name}: the file is not readable as Parquet ({error}). Write it again."
        ) from error


def _flat_schema(pyarrow: Any, schema: Any, columns: list[str], name: str) -> Any:
    """The types of these columns; of categories, those of their values."""
    fields = []
    for column in columns:
        kind = schema.field(column).type
        kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
        if pyarrow.types.is_nested(kind):
            raise LabelError(
                f"{name}: the column {column!r} holds lists or records, and must hold text or "
                "numbers. Write it flat."
            )
        fields.append((column, kind))
    return pyarrow.schema(fields)


def decode_in_fork(source: str, target: str) -> None:
    """Decode a Parquet file in a fork with limits, of a process that has one thread.

    Parameters
    ----------
    source, target
        As for `decode_parquet`.
    """
    listening, speaking = os.pipe()
    fork = os.fork()
    if fork == 0:
        status, said = 1, ""
        try:
            _limit()
            decode_parquet(Path(source), Path(target))
            status = 0
        except LabelQuorumError as error:
            status, said = 0, f"{type(error).__name__} {error}"
        finally:
            os.write(speaking, said.encode("utf-8", "replace")[:4096])
            os._exit(status)
    os.close(speaking)
    with open(listening, "rb") as pipe:
        said = pipe.read().decode("utf-8", "replace")
    _, status = os.waitpid(fork, 0)
    if status:
        raise LimitError(
            f"body: the file cannot be decoded with {FORK_BYTES:,} bytes of memory in "
            f"{FORK_SECONDS} seconds. Send it in parts, or write it again."
        )
    if said:
        kind, _, sentence = said.partition(" ")
        raise getattr(errors, kind)(sentence)


def _limit() -> None:
    """Limit this process, from what it has already."""
    with suppress(OSError):  # only Linux has it; elsewhere decoding by batches is the limit
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + FORK_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (FORK_SECONDS, FORK_SECONDS))
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * MAX_DECODED_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pyarrow = require_pyarrow("pyarrow")
    pyarrow.set_memory_pool(pyarrow.system_memory_pool())  # which asks for no more than is needed


def _too_much(what: str, size: int, packed: int, max_bytes: int) -> LimitError:
    return LimitError(
        f"{what} has more than {max_bytes:,} bytes or {MAX_RATIO} times its own "
        f"{packed:,}: it came to {size:,}. Send it in parts."
    )
