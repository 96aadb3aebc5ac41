"""Sparse counts: N_k of the hierarchical model where a matrix per worker would be too large.

    N_k[c, z] ≈ S_k[c, z] + ρ_k[c] γ_k[z] / Σ_d ρ_k[d],  c ≠ z

S_k adds up q_i(c) over labels z where q_i(c) is at least `MIN_PROB`: few classes of an item are
that probable. Row sums, column sums and the diagonal of N_k are exact; ρ_k and γ_k are what they
hold beyond the diagonal and S_k. All that is kept is linear in q, so it is added, taken back and
merged as matrices are. `docs/hierarchical.md` has the formulas.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.errors import StateError
from labelquorum.ingest.labels import MISSING
from labelquorum.learn.aggregator import Part
from labelquorum.learn.bila.hierarchical import HIERARCHICAL
from labelquorum.learn.bila.minibatch import CountedBatch
from labelquorum.learn.bila.worker_models import WORKER_MODELS
from labelquorum.learn.worker_table import Leaves

MAX_DENSE_CLASSES = 128
"""With more classes counts are sparse: 129² numbers are 130 KB per worker. The rule knows the
classes alone, so that streams, shards and resumed models follow it alike."""

MIN_PROB = 1 / 256
"""A q from which a label counts in a cell of S: 1.5 times the q of a class no one named, on an item
with one label, at 129 classes; so such classes take no cells."""

MIN_COUNT = 1e-9
"""What is less is rounding of counts that were taken back."""

MAX_MATRIX_BYTES = 1 << 30
"""The matrices of a chunk's workers may take this much; the solver holds about five copies."""

CELL = np.dtype([("truth", "<i4"), ("label", "<i4"), ("count", "<f8")])
"""A cell as it is kept, in the order of labels and then of truths."""

_FEWER = (
    "Use skills_ or report(), give fewer workers= where that can be given, or take the matrices of "
    "a few by their indices: model.inspection.confusion(np.arange(10))."
)

Indices = NDArray[np.integer[Any]]


class SparseCounts(NamedTuple):
    """The counts of P workers; cells by worker, label and truth, ascending."""

    margins: Floats  # (P, 3, C) n_k[c] = Σ_z N_k[c, z], Σ_c N_k[c, z], N_k[c, c]
    worker: Indices  # (U,) of the cells S_k[c, z] > 0, c ≠ z
    truth: Indices  # (U,)
    label: Indices  # (U,)
    values: Floats  # (U,)

    @property
    def n_classes(self) -> int:
        """C."""
        return int(self.margins.shape[2])

    def remainder(self) -> tuple[Floats, Floats]:
        """ρ (P, C) and γ / Σ ρ (P, C): N beyond the diagonal and the cells."""
        n_workers, _, n_classes = self.margins.shape
        beyond = self.margins[:, :2] - self.margins[:, 2:]
        size = n_workers * n_classes
        by_truth = np.bincount(self.worker * n_classes + self.truth, self.values, size)
        by_label = np.bincount(self.worker * n_classes + self.label, self.values, size)
        rows = np.maximum(beyond[:, 0] - by_truth.reshape(-1, n_classes), 0)
        columns = np.maximum(beyond[:, 1] - by_label.reshape(-1, n_classes), 0)
        total = rows.sum(axis=1, keepdims=True)
        columns /= np.where(total > MIN_COUNT, total, np.inf)
        return rows, columns

    def dense(self) -> Floats:
        """N of all these workers, (P, C, C), where that fits."""
        n_workers, _, n_classes = self.margins.shape
        check_matrices_fit(n_workers, n_classes, _FEWER)
        rows, columns = self.remainder()
        matrix = rows[:, :, None] * columns[:, None]
        matrix[self.worker, self.truth, self.label] += self.values
        same = np.arange(n_classes)
        matrix[:, same, same] = self.margins[:, 2]
        return np.asarray(matrix)


def dense_counts(counts: Any) -> Floats:
    """Counts as matrices, (P, …), whether or not they are sparse."""
    return counts.dense() if isinstance(counts, SparseCounts) else counts


def is_sparse(name: str, n_classes: int) -> bool:
    """Whether a worker model's counts are sparse with this many classes."""
    return name == HIERARCHICAL and n_classes > MAX_DENSE_CLASSES


def check_matrices_fit(n_workers: int, n_classes: int, advice: str) -> None:
    """Refuse matrices of more workers than fit into memory."""
    n_bytes = 8 * max(n_workers, 8) * n_classes**2  # the kernel solves eight workers at a time
    if n_bytes > MAX_MATRIX_BYTES:
        raise StateError(
            f"{n_workers:,} workers × {n_classes:,} classes: a matrix for each would take "
            f"{n_bytes / 2**30:.1f} GiB, and {MAX_MATRIX_BYTES / 2**30:.0f} may be taken. {advice}"
        )


def total(name: str, terms: Sequence[tuple[Any, Part, int]], n_workers: int, n_classes: int) -> Any:
    """Σ times × counts of parts among (K, C) workers and classes, nowhere below 0."""
    if not is_sparse(name, n_classes):
        model = WORKER_MODELS[name]
        counts = np.zeros((n_workers, *model.count_shape(n_classes)))
        for counted, (_, workers, classes), times in terms:
            axes = [classes if axis is None else np.arange(axis) for axis in model.count_axes]
            known = workers != MISSING
            counts[np.ix_(workers[known], *axes)] += times * counted[known]
        return np.maximum(counts, 0)
    margins, cells = np.zeros((n_workers, 3, n_classes)), []
    for counted, (_, workers, classes), times in terms:
        part, known = converted(counted, name, n_classes), workers != MISSING
        margins[np.ix_(workers[known], np.arange(3), classes)] += times * part.margins[known]
        at = known[part.worker]
        index = workers[part.worker[at]], classes[part.truth[at]], classes[part.label[at]]
        cells.append((*index, times * part.values[at]))
    joined = (np.concatenate(column) for column in zip(*cells, strict=True))
    return _ordered(np.maximum(margins, 0), *joined)


def added(one: Any, other: Any, times: float = 1.0) -> Any:
    """`one` + times × `other`, nowhere below 0: matrices, or sparse counts."""
    if not isinstance(one, SparseCounts):
        return np.maximum(one + times * other, 0)
    return _ordered(
        np.maximum(one.margins + times * other.margins, 0),
        np.concatenate([one.worker, other.worker]),
        np.concatenate([one.truth, other.truth]),
        np.concatenate([one.label, other.label]),
        np.concatenate([one.values, times * other.values]),
    )


def _ordered(
    margins: Floats, worker: Indices, truth: Indices, label: Indices, count: Floats
) -> SparseCounts:
    """Counts whose cells are in order, each of them once."""
    n_classes = margins.shape[2]
    key = (worker.astype(np.int64) * n_classes + label) * n_classes + truth
    order = np.argsort(key, kind="stable")
    key, count = key[order], count[order]
    first = np.flatnonzero(np.diff(key, prepend=-1))
    total = np.add.reduceat(count, first) if len(first) else count
    kept = total > MIN_COUNT
    rest, truth = np.divmod(key[first[kept]], n_classes)
    worker, label = np.divmod(rest, n_classes)
    return SparseCounts(margins, worker, truth, label, total[kept])


def converted(counts: Any, name: str, n_classes: int) -> Any:
    """Counts as they are kept with this many classes: matrices become sparse where they must."""
    if isinstance(counts, SparseCounts) or not is_sparse(name, n_classes):
        return counts
    same = np.arange(counts.shape[1])
    diagonal = counts[:, same, same]
    margins = np.stack([counts.sum(axis=2), counts.sum(axis=1), diagonal], axis=1)
    found = counts >= MIN_PROB
    found[:, same, same] = False
    worker, truth, label = np.nonzero(found)
    return _ordered(margins, worker, truth, label, counts[found])


def count(name: str, batch: CountedBatch, probs: NDArray[Any], n_workers: int) -> SparseCounts:
    """Count labels by q (N, C), as the engine `sparse` does."""
    n_classes, size = probs.shape[1], n_workers * probs.shape[1]
    item, worker, label = batch.item, batch.worker.astype(np.intp), batch.label
    weight = batch.counted_weight.astype(np.float64)
    cell = worker * n_classes + label
    # Σ_i w q_i(c), Σ_i w 1[l = z], Σ_i w q_i(c) 1[l = c]
    columns = np.bincount(cell, weight * probs.sum(axis=1, dtype=np.float64)[item], size)
    diagonal = np.bincount(cell, weight * probs[item, label], size)
    rows = _sums_by_worker(item, worker, weight, probs, n_workers)
    margins = np.stack([rows, columns.reshape(rows.shape), diagonal.reshape(rows.shape)], axis=1)
    # the classes an item can be, and its labels with each of them
    owner, candidate = np.nonzero(probs >= MIN_PROB)
    first = np.searchsorted(owner, np.arange(len(probs) + 1))
    of, at = expanded(first[item], first[item + 1])
    truth = candidate[at]
    kept = truth != label[of]
    of, truth = of[kept], truth[kept]
    values = weight[of] * probs[item[of], truth]
    return _ordered(margins, worker[of], truth, label[of], values)


def expanded(start: Indices, end: Indices) -> tuple[Indices, Indices]:
    """For ranges from `start` to `end`: the range of each member, and the member."""
    length = end - start
    of = np.repeat(np.arange(len(start)), length)
    within = np.arange(len(of)) - np.repeat(np.cumsum(length) - length, length)
    return of, start[of] + within


NUMBERS_PER_BLOCK = 1 << 18
"""Numbers, labels × classes, that are looked at together: they fit into a processor's cache."""


def _sums_by_worker(
    item: Indices, worker: Indices, weight: Floats, probs: NDArray[Any], n_workers: int
) -> Floats:
    """Σ w q_i(c) over the labels of each worker, (P, C)."""
    total = np.zeros((n_workers, probs.shape[1]))
    order = np.argsort(worker, kind="stable")
    size = max(NUMBERS_PER_BLOCK // probs.shape[1], 1)
    for start in range(0, len(order), size):
        some = order[start : start + size]
        rows = probs[item[some]] * weight[some, None]
        first = np.flatnonzero(np.diff(worker[some], prepend=-1))
        total[worker[some[first]]] += np.add.reduceat(rows, first, axis=0)
    return total


# ── the rows of workers ──────────────────────────────────────────────────────────────────


def blank_leaves(
    names: Iterable[str], n_workers: int, n_classes: int, *, dense: bool = False
) -> dict[str, NDArray[Any]]:
    """The rows of workers of whom nothing is known, by these worker models."""
    leaves: dict[str, NDArray[Any]] = {}
    for name in names:
        model = WORKER_MODELS[name]
        if is_sparse(name, n_classes) and not dense:
            leaves[f"{name}_cells"] = np.full(n_workers, b"", object)
            leaves[f"{name}_margins"] = np.zeros((n_workers, 3, n_classes))
        else:
            leaves[f"{name}_counts"] = np.zeros((n_workers, *model.count_shape(n_classes)))
        leaves[f"{name}_theta"] = np.zeros((n_workers, model.theta_size(n_classes)))
    return leaves


def counts_of(rows: Leaves, name: str) -> Any:
    """The counts of workers with these rows: (P, …), or sparse."""
    if f"{name}_counts" in rows:
        return rows[f"{name}_counts"]
    kept: Sequence[bytes] = [cells or b"" for cells in rows[f"{name}_cells"]]  # a cleared row is 0
    cells, n_classes = np.frombuffer(b"".join(kept), CELL), rows[f"{name}_margins"].shape[2]
    for index in (cells["truth"], cells["label"]):
        wrong = index[(index < 0) | (index >= n_classes)]
        if len(wrong):
            raise StateError(
                f"A count of class {wrong[0]} was saved with a model of {n_classes} classes. Use a "
                "copy that model.save wrote."
            )
    lengths = np.fromiter(map(len, kept), np.intp, len(kept)) // CELL.itemsize
    return SparseCounts(
        rows[f"{name}_margins"],
        np.repeat(np.arange(len(kept)), lengths),
        cells["truth"].astype(np.intp),
        cells["label"].astype(np.intp),
        cells["count"].copy(),
    )


def leaves_of(name: str, counts: Any) -> dict[str, NDArray[Any]]:
    """The rows in which counts are kept."""
    if not isinstance(counts, SparseCounts):
        return {f"{name}_counts": counts}
    n_workers = len(counts.margins)
    cells = np.empty(len(counts.values), CELL)
    cells["truth"], cells["label"], cells["count"] = counts.truth, counts.label, counts.values
    edges = np.searchsorted(counts.worker, np.arange(n_workers + 1)) * CELL.itemsize
    data = cells.tobytes()
    rows = np.empty(n_workers, object)
    rows[:] = [data[a:b] for a, b in pairwise(edges)]
    return {f"{name}_cells": rows, f"{name}_margins": counts.margins}


def padded(values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Zeros after the values along each axis, up to this shape."""
    return np.pad(values, [(0, size - had) for size, had in zip(shape, values.shape, strict=True)])


def as_matrices(leaves: Leaves, n_classes: int) -> dict[str, NDArray[Any]]:
    """Blank leaves as they were before counts could be sparse, in order."""
    blank = blank_leaves(worker_models_of(leaves), 0, n_classes, dense=True)
    return dict(sorted(blank.items()))


def worker_models_of(leaves: Leaves) -> list[str]:
    """The worker models that have rows."""
    return [name.removesuffix("_theta") for name in leaves if name.endswith("_theta")]


def rows_with_classes(leaves: Leaves, n_classes: int) -> dict[str, NDArray[Any]]:
    """The rows with room for this many classes."""
    wider: dict[str, NDArray[Any]] = {}
    for name in worker_models_of(leaves):
        wider |= _with_classes(leaves, name, n_classes)
    return wider


def _with_classes(rows: Leaves, name: str, n_classes: int) -> dict[str, NDArray[Any]]:
    model, theta = WORKER_MODELS[name], rows[f"{name}_theta"]
    wider = {f"{name}_theta": padded(theta, (len(theta), model.theta_size(n_classes)))}
    counts = counts_of(rows, name)
    if not is_sparse(name, n_classes):
        counts = padded(counts, (len(theta), *model.count_shape(n_classes)))
        return wider | leaves_of(name, counts)
    counts = converted(counts, name, n_classes)
    margins = padded(counts.margins, (len(theta), 3, n_classes))
    return wider | leaves_of(name, counts._replace(margins=margins))
