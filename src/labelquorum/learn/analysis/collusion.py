"""Collusion: pairs of workers who say the same more often than two who do not talk would.

Given the truth, labels of two workers are independent. So on items both have labelled we know
how often they should say the same, once what both said is taken out of the answer. Labels of
all workers may lean on each other (hard items); what is common to all pairs is taken off.
`docs/crowd.md` has the formulas.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.ingest.chunks import Chunk
from labelquorum.learn.aggregator import one_row_per_worker

MIN_SHARED_ITEMS = 5
"""Items two workers must share."""

MAX_LABELS_PER_ITEM = 40
"""Per item; of an item with more, the labels of this many workers are looked at."""

MAX_ARRAY_SIZE = 1 << 23
"""Numbers per array, and the most pairs of labels, times classes, that are looked at: those of the
newest items."""

MAX_WORKER_PAIRS = 100_000
"""Pairs of workers that are compared; those who share most items."""

MIN_WORKER_PAIRS = 10
"""Pairs there must be to tell what is common to all."""

MIN_EXCESS_SHARE = 0.15
"""The share of their shared items by which two must agree more often than expected."""

TINY = 1e-30

Matrices = Callable[[NDArray[np.intp]], Floats]


class Pairs(NamedTuple):
    """Pairs of workers, the most suspicious first."""

    worker: NDArray[np.intp]  # (R,)
    other: NDArray[np.intp]  # (R,)
    shared: NDArray[np.intp]  # (R,) items both have labelled
    same: NDArray[np.intp]  # (R,) of which with the same answer
    expected: Floats  # (R,) and how many that would be of two who do not talk
    score: (
        Floats  # (R,) n KL(same / n ‖ expected / n): chance does as much with probability e^-score
    )


def pair_scores(
    chunk: Chunk,
    probs: NDArray[Any],
    log_evidence: NDArray[Any],
    temperature: Floats,
    matrices: Matrices,
) -> Pairs:
    """Compare all pairs that share items.

    Parameters
    ----------
    chunk
        The labels of the open items.
    probs, temperature
        The answers, (N, C), and what their log scores were divided by, (N,).
    log_evidence
        What each label said for each class, (B, C).
    matrices
        What given workers (P,) say of each class, (P, C, C).
    """
    chunk, log_evidence = one_row_per_worker(chunk, log_evidence)
    one, two = _label_pairs(chunk)
    key = chunk.worker[one].astype(np.int64) * chunk.n_workers + chunk.worker[two]
    keys, group, shared = np.unique(key, return_inverse=True, return_counts=True)
    chosen = np.sort(np.argsort(-shared, kind="stable")[:MAX_WORKER_PAIRS])
    chosen = chosen[shared[chosen] >= MIN_SHARED_ITEMS]
    place = np.full(len(keys), -1, np.intp)
    place[chosen] = np.arange(len(chosen))
    rows = place[group] >= 0
    one, two, group, shared = one[rows], two[rows], place[group[rows]], shared[chosen]
    first, second = np.divmod(keys[chosen], max(chunk.n_workers, 1))
    together = _together(matrices, first, second, chunk.n_classes)
    expected = _expected(chunk, probs, log_evidence, temperature, (one, two), together[group])
    same = np.bincount(group[chunk.label[one] == chunk.label[two]], minlength=len(first))
    sums, variance = np.zeros((2, len(first)))
    sums += np.bincount(group, expected, len(first))
    variance += np.bincount(group, expected * (1 - expected), len(first))
    likely, score = _judged(shared, same, sums, variance)
    order = np.argsort(-score, kind="stable")
    return Pairs(
        first[order], second[order], shared[order], same[order], likely[order], score[order]
    )


def believed(pairs: Pairs, level: float = 0.95) -> NDArray[np.bool_]:
    """Which pairs collude, at a level that allows for how many were looked at, (R,)."""
    n_pairs = max(len(pairs.score), 1)
    excess = (pairs.same - pairs.expected) / np.maximum(pairs.shared, 1)
    beyond = pairs.score >= np.log(n_pairs / (1 - level))
    return np.asarray(beyond & (excess >= MIN_EXCESS_SHARE))


def rings(pairs: Pairs, chosen: NDArray[np.bool_]) -> list[list[int]]:
    """Workers who hang together by chosen pairs, each ring ascending."""
    ring: dict[int, set[int]] = {}
    for one, two in zip(pairs.worker[chosen].tolist(), pairs.other[chosen].tolist(), strict=True):
        joined = ring.get(one, {one}) | ring.get(two, {two})
        for member in joined:
            ring[member] = joined
    return [list(members) for members in sorted({tuple(sorted(m)) for m in ring.values()})]


def _label_pairs(chunk: Chunk) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows of labels of one item by two workers, the one of the lower index first, (R,) each."""
    edges = np.searchsorted(chunk.item, np.arange(chunk.n_items + 1))
    length = np.minimum(np.diff(edges), MAX_LABELS_PER_ITEM)
    n_rows = length * (length - 1) // 2
    most = MAX_ARRAY_SIZE // max(chunk.n_classes, 1)
    kept = np.cumsum(n_rows[::-1])[::-1] <= most  # the newest items stand last
    one, two = [], []
    for n in np.unique(length[kept & (length > 1)]).tolist():
        starts = edges[:-1][kept & (length == n)]
        low, high = np.triu_indices(n, 1)
        one.append((starts[:, None] + low).ravel())
        two.append((starts[:, None] + high).ravel())
    if not one:
        return np.zeros(0, np.intp), np.zeros(0, np.intp)
    return np.concatenate(one), np.concatenate(two)


def _together(
    matrices: Matrices, one: NDArray[np.intp], two: NDArray[np.intp], n_classes: int
) -> Floats:
    """Σ_z m_j[c, z] m_k[c, z]: how often two say the same of an item of class c, (R, C)."""
    together = np.empty((len(one), n_classes))
    length = max(1, MAX_ARRAY_SIZE // n_classes**2) if n_classes else 1
    for start in range(0, len(one), length):
        some = slice(start, start + length)
        together[some] = np.einsum("rcz,rcz->rc", matrices(one[some]), matrices(two[some]))
    return together


def _expected(
    chunk: Chunk,
    probs: NDArray[Any],
    log_evidence: NDArray[Any],
    temperature: Floats,
    rows: tuple[NDArray[np.intp], NDArray[np.intp]],
    together: Floats,
) -> Floats:
    """How probable the same answer is on each shared item, (R,); `rows` are the two labels'."""
    one, two = rows
    item = chunk.item[one]
    said = np.clip(log_evidence[one].astype(np.float64) + log_evidence[two], -60, 60)
    # q_{-jk} ∝ q / exp((e_j + e_k) / temperature)
    log_q = np.log(np.maximum(probs[item], TINY)) - said / temperature[item, None]
    left = np.exp(log_q - log_q.max(axis=1, keepdims=True, initial=-np.inf))
    left /= left.sum(axis=1, keepdims=True)
    return np.asarray((left * together).sum(axis=1))


def _judged(
    shared: NDArray[np.intp], same: NDArray[np.intp], expected: Floats, variance: Floats
) -> tuple[Floats, Floats]:
    """What is expected with what is common to all pairs, and the scores, (R,) each."""
    excess, common = same - expected, 0.0
    if len(shared) >= MIN_WORKER_PAIRS:
        common = float(np.median(excess / np.maximum(variance, TINY)))
    for _ in range(2):
        likely = expected + max(common, 0) * variance
        score = _divergence(shared, same, likely)
        usual = score < np.log(max(len(shared), 1) / 0.05)
        # x = Σ (same − expected) / Σ variance over pairs that are not suspicious
        if len(shared) >= MIN_WORKER_PAIRS:
            common = float(excess[usual].sum() / max(variance[usual].sum(), TINY))
    return likely, score


def _divergence(shared: NDArray[np.intp], same: NDArray[np.intp], expected: Floats) -> Floats:
    """The scores: n KL(same / n ‖ expected / n) where that is too often, else 0, (R,)."""
    often = np.clip(same / np.maximum(shared, 1), 1e-12, 1 - 1e-12)
    likely = np.clip(expected / np.maximum(shared, 1), 1e-12, 1 - 1e-12)
    nats = often * np.log(often / likely) + (1 - often) * np.log((1 - often) / (1 - likely))
    return np.asarray(np.where(often > likely, shared * nats, 0.0))
