"""Collusion: pairs of workers who say the same more often than two who do not talk would.

Given the truth, labels of two workers are independent. So on items both have labelled it can be
told how often they should say the same, once what both said is taken out of the answer. Labels of
all workers may lean on each other (hard items); what is common to all pairs is taken off.
`docs/crowd.md` has the formulas.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum.ingest.chunks import Chunk
from labelquorum.learn.offline import Floats

__all__ = ["Pairs", "believed", "pair_scores", "rings"]

FEWEST = 5
"""Items two workers must share."""

MOST_LABELS = 40
"""Of an item with more labels, those of so many workers are looked at."""

MOST_ROWS = 1_000_000
"""Pairs of labels that are looked at; those of the newest items."""

LEAST_EXCESS = 0.15
"""By so much of their shared items two must say the same more often than expected."""

TINY = 1e-30


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
    heat: Floats,
    workers: NDArray[np.integer[Any]],
    matrices: NDArray[Any],
) -> Pairs:
    """Compare all pairs that share items.

    Parameters
    ----------
    chunk
        The labels of the open items.
    probs, heat
        The answers, (N, C), and what their log scores were divided by, (N,).
    log_evidence
        What each label said for each class, (B, C).
    workers, matrices
        Those who labelled, ascending, (P,), and what they say of each class, (P, C, C).
    """
    one, two = _label_pairs(chunk)
    key = chunk.worker[one].astype(np.int64) * chunk.n_workers + chunk.worker[two]
    pairs, group, shared = np.unique(key, return_inverse=True, return_counts=True)
    often = shared >= FEWEST
    place = np.cumsum(often) - 1
    rows = often[group]
    one, two, group = one[rows], two[rows], place[group[rows]]
    first, second = pairs[often] // chunk.n_workers, pairs[often] % chunk.n_workers
    together = _together(
        matrices, np.searchsorted(workers, first), np.searchsorted(workers, second)
    )
    expected = _expected(
        chunk, probs, log_evidence, heat, one, two, together[group] if len(group) else together
    )
    said_same = chunk.label[one] == chunk.label[two]
    n_pairs = len(first)
    same = np.bincount(group[said_same], minlength=n_pairs)
    sums = np.bincount(group, expected, n_pairs)
    variance = np.bincount(group, expected * (1 - expected), n_pairs)
    expected, score = _judged(shared[often], same, sums, variance)
    order = np.argsort(-score, kind="stable")
    columns = (first, second, shared[often], same, expected, score)
    return Pairs(*(np.asarray(column)[order] for column in columns))


def believed(pairs: Pairs, level: float = 0.95) -> NDArray[np.bool_]:
    """Which pairs collude, at a level that allows for how many were looked at, (R,)."""
    n_pairs = max(len(pairs.score), 1)
    excess = (pairs.same - pairs.expected) / np.maximum(pairs.shared, 1)
    beyond = pairs.score >= np.log(n_pairs / (1 - level))
    return np.asarray(beyond & (excess >= LEAST_EXCESS))


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
    length = np.minimum(np.diff(edges), MOST_LABELS)
    n_rows = length * (length - 1) // 2
    kept = np.cumsum(n_rows[::-1])[::-1] <= MOST_ROWS  # the newest items stand last
    one, two = [], []
    for n in np.unique(length[kept & (length > 1)]).tolist():
        starts = edges[:-1][kept & (length == n)]
        low, high = np.triu_indices(n, 1)
        one.append((starts[:, None] + low).ravel())
        two.append((starts[:, None] + high).ravel())
    if not one:
        return np.zeros(0, np.intp), np.zeros(0, np.intp)
    rows_one, rows_two = np.concatenate(one), np.concatenate(two)
    others = chunk.worker[rows_one] != chunk.worker[rows_two]  # repeats="all" keeps several
    return rows_one[others], rows_two[others]


def _together(matrices: NDArray[Any], one: NDArray[np.intp], two: NDArray[np.intp]) -> Floats:
    """Σ_z m_j[c, z] m_k[c, z]: how often two say the same of an item of class c, (R, C)."""
    return np.asarray(
        np.einsum("rcz,rcz->rc", matrices[one].astype(np.float64), matrices[two])
        if len(one)
        else np.zeros((0, matrices.shape[1]))
    )


def _expected(
    chunk: Chunk,
    probs: NDArray[Any],
    log_evidence: NDArray[Any],
    heat: Floats,
    one: NDArray[np.intp],
    two: NDArray[np.intp],
    together: Floats,
) -> Floats:
    """How probable the same answer is on each shared item, (R,)."""
    item = chunk.item[one]
    said = np.clip(log_evidence[one].astype(np.float64) + log_evidence[two], -60, 60)
    # q_{-jk} ∝ q / exp((e_j + e_k) / heat)
    log_q = np.log(np.maximum(probs[item], TINY)) - said / heat[item, None]
    left = np.exp(log_q - log_q.max(axis=1, keepdims=True, initial=-np.inf))
    left /= left.sum(axis=1, keepdims=True)
    return np.asarray((left * together).sum(axis=1))


def _judged(
    shared: NDArray[np.intp], same: NDArray[np.intp], expected: Floats, variance: Floats
) -> tuple[Floats, Floats]:
    """What is expected with what is common to all pairs, and the scores, (R,) each."""
    usual = np.ones(len(shared), bool)
    for _ in range(2):
        # x = Σ (same − expected) / Σ variance over pairs that are not suspicious
        common = float((same - expected)[usual].sum() / max(variance[usual].sum(), TINY))
        likely = expected + max(common, 0) * variance
        score = _divergence(shared, same, likely)
        usual = score < np.log(max(len(shared), 1) / 0.05)
    return likely, score


def _divergence(shared: NDArray[np.intp], same: NDArray[np.intp], expected: Floats) -> Floats:
    """n KL(same / n ‖ expected / n) where they say the same too often, else 0, (R,)."""
    often = np.clip(same / np.maximum(shared, 1), 1e-12, 1 - 1e-12)
    likely = np.clip(expected / np.maximum(shared, 1), 1e-12, 1 - 1e-12)
    nats = often * np.log(often / likely) + (1 - often) * np.log((1 - often) / (1 - likely))
    return np.asarray(np.where(often > likely, shared * nats, 0.0))
