"""Dawid–Skene's EM over the few classes that an item can still be.

After a few labels nearly all q_i(c) are 0 to any precision that matters: of 500 classes an item
with five labels keeps two. A class c is a candidate for item i where a label of i is in a cell with
N_k[c, z] > 0. For every other class the score is at most π_c C^−n_i with n_i labels, because then
ψ_k[c, z] = s / (Σ_z N_k[c, z] + C s) ≤ 1 / C. Two errors are allowed, both far below the tolerance
of EM: all other classes of an item together have less than `MAX_MISSED` of its probability, or
else all its classes are candidates; and a count lacks less than `MAX_LOST` of the smoothing s.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.learn.methods._batch import Indices, has_settled, log_normalise
from labelquorum.learn.methods._cells import Cells, additive, log_joint

__all__ = ["fit_probs"]

MAX_MISSED = 1e-10
MAX_LOST = 1e-7
MAX_LINKS = 0.1
"""With more links of labels to candidates than this share of labels × classes, and so with as many
candidates, a dense sweep is as fast."""
DENSE_ROUNDS = 5
"""Dense rounds after which candidates are looked for again."""
MIN_USED = 0.7
"""Candidates are looked for again when fewer of them than this share are in use."""


def fit_probs(
    probs: Floats, cells: Cells, smoothing: float, tolerance: float, iterations: int
) -> tuple[Floats, list[float]]:
    """Iterate from probabilities (N, C), M step first, until the log-likelihood settles.

    Returns
    -------
    probs : (N, C) of the last E step, in Fortran order
    losses : minus the log-likelihood, after each iteration
    """
    labels, losses = cells.labels, list[float]()
    if not len(labels.item):
        return probs, losses
    largest = labels.total(cells.cell, None, len(cells.worker)).max(initial=1)
    least = MAX_LOST * smoothing / largest

    def is_done() -> bool:
        return len(losses) == iterations or has_settled(losses, tolerance)

    while not is_done():
        probs = _by_candidates(probs, cells, smoothing, least, losses, is_done)
        for _ in range(DENSE_ROUNDS):
            if is_done():
                break
            probs, log_evidence = log_normalise(log_joint(probs, cells, additive(smoothing))[0])
            losses.append(-float(log_evidence.sum()))
    return probs, losses


class _Sparse(NamedTuple):
    """Probabilities of some pairs of item and class; of all others they are 0."""

    pair: Indices  # (A,) item · C + class, ascending
    probs: Floats  # (A,)

    def spread(self, pair: Indices) -> Floats:
        """Their probabilities among more pairs."""
        probs = np.zeros(len(pair))
        probs[np.searchsorted(pair, self.pair)] = self.probs
        return probs


class _Links(NamedTuple):
    """Which numbers are added up where: target[to] += weight · source[of]."""

    of: Indices
    to: Indices
    weight: Floats | None
    size: int

    def add(self, source: Floats) -> Floats:
        values = source.take(self.of)
        if self.weight is not None:
            values *= self.weight
        return np.asarray(np.bincount(self.to, values, self.size), np.float64)


class _Candidates(NamedTuple):
    """The candidates of all items, laid out for many rounds."""

    pair: Indices  # (Q,) item · C + class, ascending; every item has one
    used: Indices  # (A,) those whose probabilities are counted
    counts: _Links  # used pairs → (U,) counts N_k[c, z]
    totals: _Links  # counts → (T,) Σ_z N_k[c, z]
    gains: _Links  # counts → pairs
    falls: _Links  # totals → pairs


def _by_candidates(
    probs: Floats,
    cells: Cells,
    smoothing: float,
    least: float,
    losses: list[float],
    is_done: Callable[[], bool],
) -> Floats:
    """Iterate while there are few candidates, dropping probabilities below `least`."""
    labels = cells.labels
    n_items, n_classes = probs.shape
    if np.count_nonzero(probs >= least) > MAX_LINKS * probs.size:
        return probs
    weight = labels.total(labels.item, None, n_items)
    log_missed = -weight * np.log(n_classes) - np.log(MAX_MISSED)
    pair = np.flatnonzero(probs >= least)
    # Items for which all classes are candidates; at first those without labels.
    wide = np.bincount(pair // n_classes, minlength=n_items) == 0
    now, candidates = _Sparse(pair, probs.ravel()[pair]), None
    begun = len(losses)
    while not is_done():
        if candidates is None:
            if np.count_nonzero(wide) > MAX_LINKS * n_items:
                break
            candidates = _find(now, wide, cells)
            if candidates is None:
                break
            used = now.spread(candidates.pair[candidates.used])
        found, log_evidence = _step(used, candidates, smoothing, n_items, n_classes)
        missed = (log_missed > log_evidence) & ~wide
        if missed.any():
            wide |= missed
            candidates = None  # the same round again
            continue
        losses.append(-float(log_evidence.sum()))
        kept = found >= least
        now, used = _Sparse(candidates.pair[kept], found[kept]), found[candidates.used]
        n_kept_and_used = np.count_nonzero(used >= least)
        if n_kept_and_used < max(len(now.pair), MIN_USED * len(used)):
            candidates = None
    if len(losses) == begun:
        return probs
    dense = np.zeros((n_classes, n_items))
    item, c = np.divmod(now.pair, n_classes)
    dense[c, item] = now.probs
    return dense.T


def _step(
    used: Floats, candidates: _Candidates, smoothing: float, n_items: int, n_classes: int
) -> tuple[Floats, Floats]:
    """M step and E step: probabilities of the candidates, (Q,), and the log evidence, (N,)."""
    item, c = np.divmod(candidates.pair, n_classes)
    class_counts = np.bincount(c[candidates.used], used, n_classes) + smoothing
    counts = candidates.counts.add(used)
    # log ψ_k[c, z] = log(1 + N_k[c, z] / s) − log(C + Σ_z N_k[c, z] / s)
    scores = np.log(class_counts / class_counts.sum())[c]
    scores += candidates.gains.add(np.log1p(counts / smoothing))
    scores -= candidates.falls.add(np.log(n_classes + candidates.totals.add(counts) / smoothing))
    first = np.searchsorted(item, np.arange(n_items))
    highest = np.maximum.reduceat(scores, first)
    probs = np.exp(scores - highest[item])
    total = np.add.reduceat(probs, first)
    return probs / total[item], highest + np.log(total)


def _find(now: _Sparse, wide: NDArray[np.bool_], cells: Cells) -> _Candidates | None:
    """Look for the candidates, given those that have a probability; None if they are many."""
    labels, n_classes = cells.labels, cells.labels.n_classes
    many = MAX_LINKS * len(labels.item) * n_classes
    every = (np.flatnonzero(wide)[:, None] * n_classes + np.arange(n_classes)).ravel()
    with_probs = np.union1d(now.pair, every)
    rows = np.argsort(labels.item, kind="stable")
    ends = np.cumsum(np.bincount(labels.item, minlength=labels.n_items))

    def labels_of(pair: Indices) -> tuple[Indices, Indices, Indices]:
        """Each pair with each label of its item: place of the pair, row of the label, class."""
        item, c = np.divmod(pair, n_classes)
        place, row = _ranges(np.append(0, ends), item)
        return place, rows[row], c[place]

    place, row, c = labels_of(with_probs)
    count, to = np.unique(cells.cell[row] * n_classes + c, return_inverse=True)
    counts = _Links(place, to, _take(labels.weight, row), len(count))
    of_cell, of_class = np.divmod(count, n_classes)
    starts = np.searchsorted(of_cell, np.arange(len(cells.worker) + 1))
    if max(len(place), np.diff(starts)[cells.cell].sum()) > many:
        return None
    label, gain = _ranges(starts, cells.cell)
    reached = labels.item[label] * n_classes + of_class[gain]
    pair = np.union1d(reached, with_probs)
    weight = _take(labels.weight, label)
    gains = _Links(gain, np.searchsorted(pair, reached), weight, len(pair))
    if len(pair) > MAX_LINKS * labels.n_items * n_classes:
        return None
    place, row, c = labels_of(pair)
    total, of = np.unique(labels.worker[row] * n_classes + c, return_inverse=True)
    falls = _Links(of, place, _take(labels.weight, row), len(pair))
    to = np.searchsorted(total, cells.worker[of_cell] * n_classes + of_class)
    totals = _Links(np.arange(len(count)), to, None, len(total))
    return _Candidates(pair, np.searchsorted(pair, with_probs), counts, totals, gains, falls)


def _ranges(starts: Indices, which: Indices) -> tuple[Indices, Indices]:
    """The ranges starts[w] … starts[w + 1] − 1 of each w, in a row, with the place of each w."""
    lengths = np.diff(starts)[which]
    place = np.repeat(np.arange(len(which)), lengths)
    skipped = np.cumsum(lengths) - lengths
    return place, np.arange(len(place)) + (starts[which] - skipped)[place]


def _take(weight: Floats | None, rows: Indices) -> Floats | None:
    return None if weight is None else weight[rows]
