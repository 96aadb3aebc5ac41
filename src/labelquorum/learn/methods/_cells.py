"""Confusion matrices kept as cells: only labels that a worker did give are counted.

K workers and C classes have K·C² numbers, 6 GB for 3,000 and 500. But a column N_k[·, z] is zero
unless worker k said z, so B labels have at most B columns, and all other numbers of a row are the
same. One class c at a time, a sweep needs no more memory than there are labels:

    N_k[c, z] = Σ_i q_i(c) [l_ik = z]          ψ_k[c, z] = smooth(N_k[c, z]) / Σ_z smooth(N_k[c, z])

Probabilities (N, C) are in Fortran order here, so that those of one class are contiguous.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.learn.methods._batch import Incidence, Indices, take


class Smoothing(NamedTuple):
    """How counts become positive."""

    said: Callable[[Floats], Floats]  # counts of labels that a worker did give
    unsaid: float  # in place of 0, for a label that they never gave
    classes: Callable[[Floats], Floats]  # expected items of each class


class Cells(NamedTuple):
    """Labels, and the S different pairs of worker and label among them."""

    labels: Incidence
    cell: Indices  # (B,) which of the S
    worker: Indices  # (S,) ascending
    label: Indices  # (S,)
    n_unsaid: NDArray[np.intp]  # (P,) labels that each worker never gave


class Swept(NamedTuple):
    """What a sweep finds for one class c."""

    counts: Floats  # (S,) N_k[c, z]
    log_said: Floats  # (S,) log ψ_k[c, z]
    log_unsaid: Floats  # (P,) log ψ_k[c, z] of every label that worker k never gave


def additive(smoothing: float) -> Smoothing:
    """Add the same number to every count."""
    return Smoothing(lambda counts: counts + smoothing, smoothing, lambda sums: sums + smoothing)


def cells_of(labels: Incidence) -> Cells:
    """Number the pairs of worker and label that occur."""
    pairs, cell = number(labels.cell, labels.n_workers * labels.n_classes)
    worker, label = np.divmod(pairs, max(labels.n_classes, 1))
    n_unsaid = labels.n_classes - np.bincount(worker, minlength=labels.n_workers)
    return Cells(labels, cell, worker, label, n_unsaid)


def number(keys: Indices, size: int) -> tuple[Indices, Indices]:
    """The different keys below `size`, ascending, and which of them each key is."""
    if size > 32 * len(keys):
        different, which = np.unique(keys, return_inverse=True)
        return different, which
    # A table of all possible keys is quicker than sorting those that occur.
    occurs = np.zeros(size, bool)
    occurs[keys] = True
    different = np.flatnonzero(occurs)
    place = np.empty(size, np.intp)
    place[different] = np.arange(len(different))
    return different, place[keys]


def sweep(probs: Floats, cells: Cells, smoothing: Smoothing) -> Iterator[Swept]:
    """M step, one class after the other; each overwrites what was given for the class before."""
    labels, n_cells = cells.labels, len(cells.worker)
    row, log_said = np.empty(len(labels.item)), np.empty(n_cells)  # fresh memory is slow
    with np.errstate(divide="ignore"):
        log_unsaid = np.log(smoothing.unsaid)
    for c in range(labels.n_classes):
        counts = labels.total(cells.cell, take(probs[:, c], labels.item, row), n_cells)
        said = smoothing.said(counts)
        total = np.bincount(cells.worker, said, labels.n_workers)
        log_total = np.log(total + cells.n_unsaid * smoothing.unsaid)
        np.subtract(np.log(said, out=said), take(log_total, cells.worker, log_said), out=log_said)
        yield Swept(counts, log_said, log_unsaid - log_total)


def log_joint(
    probs: Floats, cells: Cells, smoothing: Smoothing, columns: Floats | None = None
) -> tuple[Floats, float]:
    """M step, and the log scores of the next E step.

    Parameters
    ----------
    columns
        ψ_k[·, z] to use in place of what the M step finds, (S, C).

    Returns
    -------
    scores : (N, C) log π_c + Σ_k log ψ_k[c, l_ik]
    reported : Σ N_k[c, z] log ψ_k[c, z]
    """
    labels = cells.labels
    class_counts = smoothing.classes(probs.sum(axis=0))
    log_prior = np.log(class_counts / class_counts.sum())
    scores, reported = np.empty((labels.n_items, labels.n_classes), order="F"), 0.0
    row = np.empty(len(labels.item))
    for c, (counts, log_said, _) in enumerate(sweep(probs, cells, smoothing)):
        if columns is not None:
            log_said = np.log(columns[:, c])
        said = take(log_said, cells.cell, row)
        scores[:, c] = log_prior[c] + labels.total(labels.item, said, labels.n_items)
        # A product of vectors would start threads in BLAS, which takes longer than the sum.
        reported += float(np.multiply(counts, log_said, out=counts).sum())
    return scores, reported


def confusion_of(probs: Floats, cells: Cells, smoothing: Smoothing, dtype: Any) -> NDArray[Any]:
    """All matrices ψ, (P, C, C): large, so only for who asks for them."""
    n_workers, n_classes = cells.labels.n_workers, cells.labels.n_classes
    confusion = np.empty((n_workers, n_classes, n_classes), dtype)
    for c, found in enumerate(sweep(probs, cells, smoothing)):
        confusion[:, c] = np.exp(found.log_unsaid)[:, None]
        confusion[cells.worker, c, cells.label] = np.exp(found.log_said)
    return confusion


def find(cells: Cells, worker: Indices, label: Indices) -> Indices:
    """The cells of some labels, (B,), for a table of `log_said` followed by `log_unsaid`."""
    n_classes, n_cells = cells.labels.n_classes, len(cells.worker)
    pairs, wanted = cells.worker * n_classes + cells.label, worker * n_classes + label
    cell = np.searchsorted(pairs, wanted)
    said = np.append(pairs, -1)[cell] == wanted
    return np.asarray(np.where(said, cell, n_cells + worker), np.intp)
