"""Dawid–Skene's EM over the few classes that an item can still be.

After a few labels nearly all q_i(c) are 0 to any precision that matters: of 500 classes an item
with five labels keeps two. A class c is a candidate for item i where a label of i is in a cell with
N_k[c, z] > 0. For every other class the score is at most π_c Π_k 1 / W_k over the labels of i,
because then ψ_k[c, z] ≤ 1 / W_k, with W_k the labels that have a share in a row of zeros: all C
with additive smoothing. Two errors are allowed, both far below the tolerance of EM: all other
classes of an item together have less than `MAX_MISSED` of its probability, or else all its classes
are candidates; and a count lacks less than a share `MAX_LOST` of what stands for 0. A probability
may double in every round, so the second must be that small: 1e-3 would move answers by 1e-6.
"""

from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.learn.methods._batch import Indices, has_settled, log_normalise
from labelquorum.learn.methods._cells import Cells, Smoothing, additive, log_joint, number

MAX_LOST = 1e-7
MAX_MISSED = 1e-10
MAX_LINKS = 0.1
"""With more links of labels to candidates than this share of labels × classes, and so with as many
candidates, a dense sweep is as fast."""
DENSE_ROUNDS = 5
"""Dense rounds after which candidates are looked for again."""
MARGIN = 1e-3
"""Probabilities are used down to this share of the least that must be, so that those near it do
not come and go: to look for candidates takes as long as ten rounds."""
MIN_USED = 0.7
"""Candidates are looked for again when fewer of them than this share are in use."""


class Sparse(NamedTuple):
    """Probabilities (N, C) of some pairs of item and class; of all others they are 0."""

    pair: Indices  # (A,) item · C + class, ascending
    probs: Floats  # (A,)
    shape: tuple[int, int]

    def dense(self) -> Floats:
        """All of them, (N, C) in Fortran order."""
        n_items, n_classes = self.shape
        probs = np.zeros((n_classes, n_items))
        item, c = np.divmod(self.pair, n_classes)
        probs[c, item] = self.probs
        return probs.T

    def among(self, pair: Indices) -> Floats:
        """Their probabilities among more pairs."""
        probs = np.zeros(len(pair))
        probs[np.searchsorted(pair, self.pair)] = self.probs
        return probs


class Round(NamedTuple):
    """An M step from the probabilities before, and an E step."""

    reported: float  # Σ N_k[c, z] log ψ_k[c, z]
    probs: Floats | Sparse
    log_evidence: Floats  # (N,)


def fit_probs(
    probs: Floats, cells: Cells, smoothing: float, tolerance: float, iterations: int
) -> tuple[Floats, list[float]]:
    """Iterate from probabilities (N, C), M step first, until the log-likelihood settles.

    Returns
    -------
    probs : (N, C) of the last E step, in Fortran order
    losses : minus the log-likelihood, after each iteration
    """
    losses: list[float] = []
    if not len(cells.labels.item):
        return probs, losses
    for found in em_rounds(probs, cells, additive(smoothing)):
        losses.append(-float(found.log_evidence.sum()))
        if len(losses) == iterations or has_settled(losses, tolerance):
            break
    return (found.probs.dense() if isinstance(found.probs, Sparse) else found.probs), losses


def em_rounds(
    probs: Floats,
    cells: Cells,
    smoothing: Smoothing,
    correct: Callable[[Floats], Floats] | None = None,
) -> Iterator[Round]:
    """Iterate from probabilities (N, C), M step first, without end.

    Parameters
    ----------
    correct
        What is done to the probabilities of each E step; then all rounds are dense.
    """
    while True:
        if correct is None:
            last = yield from _by_candidates(probs, cells, smoothing)
            probs = probs if last is None else last.dense()
        for _ in range(DENSE_ROUNDS):
            scores, reported = log_joint(probs, cells, smoothing)
            probs, log_evidence = log_normalise(scores)
            if correct is not None:
                probs = correct(probs)
            yield Round(reported, probs, log_evidence)


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
    widths: Floats  # (T,) W_k


def _by_candidates(
    probs: Floats, cells: Cells, smoothing: Smoothing
) -> Generator[Round, None, Sparse | None]:
    """Iterate while there are few candidates; then give the last probabilities, if any."""
    labels = cells.labels
    n_items, n_classes = probs.shape
    zero = smoothing.said(np.zeros(1))  # what stands for a count of 0
    heaviest = labels.total(cells.cell, None, len(cells.worker)).max()
    if not heaviest:
        return None
    least = MAX_LOST * float(zero[0]) / heaviest
    if np.count_nonzero(probs >= least) > MAX_LINKS * probs.size:
        return None
    widths = n_classes - cells.n_unsaid * (1 - smoothing.unsaid / zero)
    log_missed = -labels.total(labels.item, np.log(widths)[labels.worker], n_items)
    log_missed -= np.log(MAX_MISSED)
    pair = np.flatnonzero(probs >= least)
    now, candidates = Sparse(pair, probs.ravel()[pair], (n_items, n_classes)), None
    last: Sparse | None = None
    # Items for which all classes are candidates; at first those without labels.
    wide = np.bincount(pair // n_classes, minlength=n_items) == 0
    while True:
        if candidates is None:
            if np.count_nonzero(wide) > MAX_LINKS * n_items:
                return last
            candidates = _find(now, wide, cells, widths)
            if candidates is None:
                return last
            used = now.among(candidates.pair[candidates.used])
        reported, found, log_evidence = _step(used, candidates, smoothing, now.shape)
        missed = (log_missed > log_evidence) & ~wide
        if missed.any():
            wide |= missed
            candidates = None  # the same round again
            continue
        kept, used = found >= MARGIN * least, found[candidates.used]
        now = Sparse(candidates.pair[kept], found[kept], now.shape)
        n_needed = np.count_nonzero(found >= least)
        is_unused_needed = n_needed > np.count_nonzero(used >= least)
        if is_unused_needed or np.count_nonzero(kept) < MIN_USED * len(used):
            candidates = None
        last = now
        yield Round(reported, now, log_evidence)


def _step(
    used: Floats, candidates: _Candidates, smoothing: Smoothing, shape: tuple[int, int]
) -> tuple[float, Floats, Floats]:
    """M step and E step: Σ N log ψ, probabilities of the candidates, (Q,), log evidence, (N,)."""
    n_items, n_classes = shape
    item, c = np.divmod(candidates.pair, n_classes)
    class_counts = np.zeros(n_classes)
    class_counts += np.bincount(c[candidates.used], used, n_classes)
    class_counts = smoothing.classes(class_counts)
    counts = candidates.counts.add(used)
    # With N' = smooth(N) / smooth(0): log ψ_k[c, z] = log N'_k[c, z] − log(W_k + Σ_z (N' − 1))
    said = smoothing.said(counts) / smoothing.said(np.zeros(1))
    gains = np.log(said)
    falls = np.log(candidates.widths + candidates.totals.add(said - 1))
    reported = float((counts * (gains - falls[candidates.totals.to])).sum())
    scores = np.log(class_counts / class_counts.sum())[c]
    scores += candidates.gains.add(gains)
    scores -= candidates.falls.add(falls)
    first = np.searchsorted(item, np.arange(n_items))
    highest = np.maximum.reduceat(scores, first)
    probs = np.exp(scores - highest[item])
    total = np.add.reduceat(probs, first)
    return reported, probs / total[item], highest + np.log(total)


def _find(now: Sparse, wide: NDArray[np.bool_], cells: Cells, widths: Floats) -> _Candidates | None:
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
    count, to = number(cells.cell[row] * n_classes + c, len(cells.worker) * n_classes)
    counts = _Links(place, to, _take(labels.weight, row), len(count))
    of_cell, of_class = np.divmod(count, n_classes)
    starts = np.searchsorted(of_cell, np.arange(len(cells.worker) + 1))
    if max(len(place), np.diff(starts)[cells.cell].sum()) > many:
        return None
    label, gain = _ranges(starts, cells.cell)
    reached = labels.item[label] * n_classes + of_class[gain]
    together = np.concatenate([reached, with_probs])
    pair, place = number(together, labels.n_items * n_classes)
    to_pair, used = np.split(place, [len(reached)])
    gains = _Links(gain, to_pair, _take(labels.weight, label), len(pair))
    if len(pair) > MAX_LINKS * labels.n_items * n_classes:
        return None
    place, row, c = labels_of(pair)
    total, of = number(labels.worker[row] * n_classes + c, labels.n_workers * n_classes)
    falls = _Links(of, place, _take(labels.weight, row), len(pair))
    to = np.searchsorted(total, cells.worker[of_cell] * n_classes + of_class)
    totals = _Links(np.arange(len(count)), to, None, len(total))
    return _Candidates(pair, used, counts, totals, gains, falls, widths[total // n_classes])


def _ranges(starts: Indices, which: Indices) -> tuple[Indices, Indices]:
    """The ranges starts[w] … starts[w + 1] − 1 of each w, in a row, with the place of each w."""
    lengths = np.diff(starts)[which]
    place = np.repeat(np.arange(len(which)), lengths)
    skipped = np.cumsum(lengths) - lengths
    return place, np.arange(len(place)) + (starts[which] - skipped)[place]


def _take(weight: Floats | None, rows: Indices) -> Floats | None:
    return None if weight is None else weight[rows]
