"""CSV that has no surprises, as columns: many cells at once instead of one row at a time.

A file is plain if every line has as many cells as the header, no cell holds a separator, a quote or
a line break, and those in quotes have them at both ends. Then separators and line breaks alone say
where cells are, and NumPy finds them at once. `split` returns None for any other file, which
`readers.py` reads row by row with Python's `csv`; both give the same table.
"""

from csv import field_size_limit
from importlib import import_module
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from labelquorum.ingest.columns import DictionaryColumn, encode, first_rows, join

BLOCK_BYTES = 1 << 24
"""Bytes that are split at once: positions take several times as much memory."""

_NEWLINE, _RETURN, _QUOTE = b'\n\r"'
_WORD_BYTES = 8
_MAX_WORDS = 5  # beyond 40 bytes, a slice per cell is as fast
_MIX = np.uint64(0x9E3779B97F4A7C15)  # odd, so that multiplication loses nothing
# The bytes of a word that belong to a cell of which n bytes are left, n = 0 … 8.
_MASKS = np.array([(1 << 8 * n) - 1 for n in range(_WORD_BYTES + 1)], "<u8")


def split(
    stream: IO[bytes], separator: str, width: int, wanted: list[int]
) -> list[DictionaryColumn] | None:
    """The wanted columns of what follows the header; None where a line is not plain.

    Parameters
    ----------
    stream
        A file after its first line.
    separator
        What separates cells.
    width
        How many cells every line has.
    wanted
        The positions of the columns.
    """
    if not separator.isascii():
        return None
    parts: list[list[DictionaryColumn]] = []
    rest = b""
    while data := stream.read(BLOCK_BYTES):
        lines, newline, rest = (rest + data).rpartition(b"\n")
        if newline:
            found = _split_block(lines + newline, separator.encode(), width, wanted)
            if found is None:
                return None
            parts.append(found)
    if rest:
        found = _split_block(rest + b"\n", separator.encode(), width, wanted)
        if found is None:
            return None
        parts.append(found)
    if not parts:
        return None
    return [cast(DictionaryColumn, join(columns)) for columns in zip(*parts, strict=True)]


def _split_block(
    block: bytes, separator: bytes, width: int, wanted: list[int]
) -> list[DictionaryColumn] | None:
    """The wanted columns of whole lines, or None."""
    if b"\0" in block:  # which pads cells below
        return None
    text = np.frombuffer(block, np.uint8)
    is_newline = text == _NEWLINE
    breaks = np.flatnonzero(is_newline | (text == separator[0]))
    n_rows = int(np.count_nonzero(is_newline))
    if len(breaks) != n_rows * width:
        return None
    starts = np.concatenate([[0], breaks[:-1] + 1]).reshape(-1, width)
    ends = breaks.reshape(-1, width)
    if not is_newline[ends[:, -1]].all():
        return None
    n_returns = block.count(b"\r")
    if n_returns:
        if n_returns != n_rows or not (text[ends[:, -1] - 1] == _RETURN).all():
            return None
        ends[:, -1] -= 1
    n_quotes = block.count(b'"')
    if n_quotes:
        is_quoted = (text[starts] == _QUOTE) & (text[ends - 1] == _QUOTE) & (ends - starts > 1)
        if n_quotes != 2 * np.count_nonzero(is_quoted):
            return None
        starts += is_quoted
        ends -= is_quoted
    lengths = ends - starts
    if lengths.max(initial=0) > field_size_limit():
        return None
    return [_encode(block, starts[:, at], lengths[:, at]) for at in wanted]


def _encode(
    block: bytes, starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> DictionaryColumn:
    """The cells at these places as codes into their distinct texts."""
    codes: NDArray[Any] | None = None
    if lengths.max(initial=0) <= _MAX_WORDS * _WORD_BYTES:
        codes = _codes_of_words(block, starts, lengths)
    if codes is None:
        ends = (starts + lengths).tolist()
        cells = [block[start:end] for start, end in zip(starts.tolist(), ends, strict=True)]
        codes = encode(cells).codes
    n_values = int(codes.max(initial=-1)) + 1
    first = first_rows(codes, n_values)
    begins, ends = starts[first].tolist(), (starts + lengths)[first].tolist()
    texts = [
        block[begin:end].decode("utf-8", "surrogateescape")
        for begin, end in zip(begins, ends, strict=True)
    ]
    return DictionaryColumn(codes, texts, in_order=True)


def _codes_of_words(
    block: bytes, starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.int32] | None:
    """Number cells by their bytes, eight at a time; None if two have one hash."""
    n_words = max(-(-int(lengths.max(initial=0)) // _WORD_BYTES), 1)
    padded = block + bytes(n_words * _WORD_BYTES)
    at_any_byte: NDArray[Any] = np.ndarray((len(padded) - 7,), "<u8", padded, strides=(1,))
    words = []
    for first in range(0, n_words * _WORD_BYTES, _WORD_BYTES):
        left = np.clip(lengths - first, 0, _WORD_BYTES)
        words.append(at_any_byte[starts + first * (left > 0)] & _MASKS[left])
    key = words[0]
    for word in words[1:]:
        key = key * _MIX + word
        key ^= key >> np.uint64(32)
    found, distinct = import_module("pandas").factorize(key)
    codes = np.asarray(found, np.int32)
    if n_words > 1:
        one = first_rows(codes, len(distinct))
        if not all((word == word[one][codes]).all() for word in words):
            return None
    return codes
