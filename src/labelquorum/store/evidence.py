"""The evidence of an open item as bytes: its labels, what they weighed, and how it was answered.

Items are written and read by the thousand, so those with as many labels are one array. The bytes
of an item are little-endian words of 4 bytes: the header, then its arrays one after the other.
"""

from collections.abc import Hashable, Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelquorum.ingest.chunks import id_keys
from labelquorum.ingest.vocabulary import Note
from labelquorum.learn.item_columns import ItemColumns, edges_of

MAGIC = b"LQE1"
"""The first bytes, which name the format."""

HEADER_WORDS = 8
_LABELS, _CLASSES, _MODELS, _FLAGS, _AGGREGATED, _GOLD, _TEMPERATURE = range(1, HEADER_WORDS)

_HAS_VOTES, _HAS_SCORES = 1, 2  # of the flags


def worker_places(evidence: bytes) -> list[int]:
    """The places of the workers of an open item."""
    n_labels = int.from_bytes(evidence[4 * _LABELS : 4 * _CLASSES], "little")
    places: list[int] = np.frombuffer(evidence, "<i8", n_labels, 4 * HEADER_WORDS).tolist()
    return places


def write_evidence(
    columns: ItemColumns, items: NDArray[np.intp], places: NDArray[np.int64]
) -> list[bytes]:
    """The evidence of these items of the columns; `places` has the place of each worker."""
    written: list[bytes] = [b""] * len(items)
    most = columns.probs.shape[1] + 1
    sizes = np.diff(columns.edges)[items] * most + columns.n_classes[items]
    for size in np.unique(sizes).tolist():
        n_labels, n_classes = divmod(size, most)
        alike = np.flatnonzero(sizes == size)
        chosen = items[alike]
        n_models = columns.counted_probs.shape[1]
        flags = _HAS_VOTES * (columns.votes is not None) + _HAS_SCORES * (columns.score is not None)
        parts = _parts(n_labels, n_classes, n_models, flags)
        words = np.zeros((len(chosen), parts["score"].stop), "<i4")
        floats = words.view("<f4")
        words[:, 0] = int.from_bytes(MAGIC, "little")
        words[:, _LABELS:_AGGREGATED] = n_labels, n_classes, n_models, flags
        words[:, _AGGREGATED], words[:, _GOLD] = columns.aggregated[chosen], columns.gold[chosen]
        floats[:, _TEMPERATURE] = columns.temperature[chosen]
        rows = columns.edges[chosen, None] + np.arange(n_labels)
        words[:, parts["worker"]] = places[columns.worker[rows]].astype("<i8").view("<i4")
        words[:, parts["label"]] = columns.label[rows]
        for name, values in (
            ("weight", columns.weight[rows]),
            ("log_evidence", columns.log_evidence[rows, :n_classes]),
            ("probs", columns.probs[chosen, :n_classes]),
            ("counted_probs", columns.counted_probs[chosen, :, :n_classes]),
            ("votes", columns.votes[rows, : n_classes + 1] if columns.votes is not None else None),
            ("score", columns.score[rows] if columns.score is not None else None),
        ):
            if values is not None:
                floats[:, parts[name]] = values.reshape(len(chosen), -1)
        data, size = words.tobytes(), words.itemsize * words.shape[1]
        for n, start in zip(alike.tolist(), range(0, len(data), size), strict=True):
            written[n] = data[start : start + size]
    return written


def read_evidence(
    item_ids: Sequence[Hashable],
    evidence: Sequence[bytes],
    notes: Sequence[Note],
    places: NDArray[np.int64],
) -> Iterator[ItemColumns]:
    """The items in their order, as runs that know as many classes.

    `places` are those of their workers, in order, and perhaps of others.
    """
    size = 4 * HEADER_WORDS
    heads = np.frombuffer(b"".join(one[:size] for one in evidence), "<i4").reshape(-1, HEADER_WORDS)
    start = 0
    for _, run in groupby(heads[:, _CLASSES : _FLAGS + 1].tolist()):
        here = slice(start, start + len(list(run)))
        yield _read_run(item_ids[here], evidence[here], heads[here], notes[here], places)
        start = here.stop


def _read_run(
    item_ids: Sequence[Hashable],
    evidence: Sequence[bytes],
    heads: NDArray[np.int32],
    notes: Sequence[Note],
    places: NDArray[np.int64],
) -> ItemColumns:
    """Items that know as many classes, and of which all have votes, and scores, or none has."""
    counts = heads[:, _LABELS].astype(np.int64)
    edges, n_items, n_rows = edges_of(counts), len(heads), int(counts.sum())
    n_classes, n_models, flags = heads[0, _CLASSES : _FLAGS + 1].tolist()
    columns: dict[str, Any] = {
        "worker": np.zeros(n_rows, np.int64),
        "label": np.zeros(n_rows, np.int32),
        "weight": np.zeros(n_rows, np.float32),
        "log_evidence": np.zeros((n_rows, n_classes), np.float32),
        "votes": np.zeros((n_rows, 1 + n_classes), np.float32),
        "score": np.zeros(n_rows, np.float32),
        "probs": np.zeros((n_items, n_classes), np.float32),
        "counted_probs": np.zeros((n_items, n_models, n_classes), np.float32),
    }
    for n_labels in np.unique(counts).tolist():
        alike = np.flatnonzero(counts == n_labels)
        words = np.frombuffer(b"".join(evidence[n] for n in alike.tolist()), "<i4")
        words = words.reshape(len(alike), -1)
        rows = (edges[alike, None] + np.arange(n_labels)).ravel()
        for name, part in _parts(n_labels, n_classes, n_models, flags).items():
            column = columns[name]
            at = alike if name in ("probs", "counted_probs") else rows
            values = np.ascontiguousarray(words[:, part]).view(column.dtype)
            if values.size:
                column[at] = values.reshape(len(at), *column.shape[1:])
    columns["worker"] = np.searchsorted(places, columns["worker"]).astype(np.int32)
    if not flags & _HAS_VOTES:
        columns["votes"] = None
    if not flags & _HAS_SCORES:
        columns["score"] = None
    return ItemColumns(
        ids=item_ids,
        key=id_keys(item_ids),
        edges=edges,
        n_classes=np.full(n_items, n_classes, np.int32),
        aggregated=heads[:, _AGGREGATED].astype(np.int32),
        gold=heads[:, _GOLD].astype(np.int32),
        temperature=np.ascontiguousarray(heads[:, _TEMPERATURE]).view(np.float32),
        notes=notes,
        **columns,
    )


def _parts(n_labels: int, n_classes: int, n_models: int, flags: int) -> dict[str, slice]:
    """Which words hold what, in this order."""
    sizes = {
        "worker": 2 * n_labels,  # places are 8 bytes
        "label": n_labels,
        "weight": n_labels,
        "log_evidence": n_labels * n_classes,
        "probs": n_classes,
        "counted_probs": n_models * n_classes,
        "votes": n_labels * (1 + n_classes) if flags & _HAS_VOTES else 0,
        "score": n_labels if flags & _HAS_SCORES else 0,
    }
    parts, start = {}, HEADER_WORDS
    for name, size in sizes.items():
        parts[name] = slice(start, start + size)
        start += size
    return parts
