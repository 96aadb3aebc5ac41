"""Drift: a bounded history of how each worker goes with the others, and where it broke.

A worker's track has `BINS` bins, the newest last. A bin is five numbers: labels, the sum of their
agreement, of its squares, the agreement the crowd would have had in those chunks, and the chunk at
its end; a bin that is not used is zero. New bins are one chunk each. Once all are used, the
adjacent pair is merged that is the smallest beside what came after it, so that the track is fine
where it is new and coarse where it is old (an exponential histogram). No raw label is kept.
`docs/crowd.md` has the formulas.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.learn.analysis.intervals import wilson

_tracks: Any = None
with suppress(ImportError):  # no compiler was there when the package was installed
    _tracks = import_module("labelquorum.learn.analysis._tracks")


BINS = 16
"""Bins of a track."""

LABELS, AGREED, SQUARES, CROWD, CHUNK = range(5)
"""What stands in a bin."""

WIDTH = 5
"""Numbers of a bin."""

LIMIT = 7.0
"""The log-likelihood ratio beyond which a change is believed, at level 0.95: chosen on crowds
whose workers do not change (`docs/crowd.md`)."""

LEVEL = 0.95

MIN_AGREEMENT_DROP = 0.1
"""How far the agreement must move for a change to be worth reporting."""

MIN_LABELS_PER_SIDE = 8.0
"""Labels there must be on either side of a change."""

PRIOR_LABELS = 10.0
"""How many labels the belief that agreement varies like a coin counts for."""

MIN_VARIANCE_RATIO = 0.1
"""The variance of agreement is at least this share of a coin's."""

MAX_CHANGES = 4

NEARLY = 1e-3

TINY = 1e-30

BATCH_LABELS, MAX_BATCH_NUMBERS = 1 << 15, 1 << 20
"""Labels compared with their item's answer at once, and labels × classes at most: what that needs
stays in the cache."""

Track = NDArray[np.float32]  # (…, BINS, WIDTH)


class Change(NamedTuple):
    """Where a worker became another."""

    chunk: int  # the first of the new time
    before: float  # agreement
    after: float
    score: float  # the log-likelihood ratio


class Bin(NamedTuple):
    """A stretch of a worker's time."""

    chunk: int  # at its end
    labels: float
    agreement: float
    crowd: float  # the crowd's agreement in the same chunks
    low: float  # between these bounds the agreement is known
    high: float


def fresh_track(n_workers: int) -> Track:
    """The tracks of workers of whom nothing is known, (K, BINS, WIDTH)."""
    return np.zeros((n_workers, BINS, WIDTH), np.float32)


# ── making a track ───────────────────────────────────────────────────────────────────────


def left_out(
    probs: NDArray[Any],
    temperature: NDArray[Any] | None,
    item: NDArray[Any],
    log_evidence: NDArray[Any],
    label: NDArray[Any],
) -> Floats:
    """How far each label goes with what all others say of its item, (B,), from 0 to 1.

    It is the probability of what the worker said once their own label is taken out of the answer.

    Parameters
    ----------
    probs, temperature
        The answer of each item, (N, C), and what its log scores were divided by, (N,); None for 1.
    item, label
        (B,) each.
    log_evidence
        What each label said for each class, (B, C).
    """
    agreement = np.empty(len(label))
    log_probs = np.where(probs > 0, np.log(np.maximum(probs, TINY)), np.float32(-np.inf))
    size = min(BATCH_LABELS, max(MAX_BATCH_NUMBERS // probs.shape[1], 1))
    for start in range(0, len(label), size):
        batch = slice(start, start + size)
        said = np.clip(log_evidence[batch], -60, 60)
        said[np.isnan(said)] = 0
        before = log_probs.take(item[batch], axis=0)
        # Class by class, (C, B): NumPy takes long rows several times faster than short ones.
        left = np.empty(said.T.shape)
        # q_{-j} ∝ q / exp(log_evidence_j / temperature), at the label itself
        left[:] = said.T
        if temperature is not None:
            left /= temperature.take(item[batch])
        np.subtract(before.T, left, out=left)
        left -= left.max(axis=0, initial=-1e9)
        np.exp(left, out=left)
        own = left.ravel().take(label[batch] * np.intp(len(said)) + np.arange(len(said)))
        # By rows, a sum of eight or more is added in another order, and differs in the last bit.
        total = left.sum(axis=0) if len(left) < 8 else np.ascontiguousarray(left.T).sum(axis=1)
        np.divide(own, np.maximum(total, TINY), out=agreement[batch])
    return agreement


def count(
    track: Track,
    worker: NDArray[np.int32],
    agreement: Floats,
    agrees: NDArray[np.bool_],
    chunk: float,
) -> tuple[NDArray[np.int64], NDArray[np.int64], Track]:
    """Count labels of one chunk by worker, (P,), and those that agreed; extend the tracks.

    Parameters
    ----------
    track
        (P, BINS, WIDTH); it may be changed in place.
    worker
        The position of each label's worker, (B,).
    agreement, agrees
        Of each label, `left_out` and whether it is the consensus, (B,) each.
    chunk
        Its number, from 1.
    """
    if _tracks is None:
        return count_in_numpy(track, worker, agreement, agrees, chunk)
    labels, agreed = np.empty(len(track), np.int64), np.empty(len(track), np.int64)
    track = np.ascontiguousarray(track)
    _tracks.count(chunk, worker, agreement, agrees, labels, agreed, track)
    return labels, agreed, track


def count_in_numpy(
    track: Track,
    worker: NDArray[np.int32],
    agreement: Floats,
    agrees: NDArray[np.bool_],
    chunk: float,
) -> tuple[NDArray[np.int64], NDArray[np.int64], Track]:
    """`count` where nothing was compiled."""
    n_workers = len(track)
    labels = np.bincount(worker, minlength=n_workers)
    agreed = np.bincount(worker, agrees, n_workers).astype(np.int64)
    own = np.bincount(worker, agreement, n_workers)
    squares = np.bincount(worker, agreement**2, n_workers)
    news = np.stack([labels, own, squares, _of_others(labels, own)], axis=1)
    return labels, agreed, extend(track, news, chunk)


def _of_others(labels: NDArray[Any], own: NDArray[Any]) -> NDArray[np.float64]:
    """How far each worker's labels would agree if they were like the others', (P,)."""
    others = labels.sum() - labels
    total = np.cumsum(own)[-1:]  # one after the other, as in C
    mean = np.divide(total - own, others, np.zeros(len(own)), where=others > 0)
    return np.asarray(np.where(others > 0, labels * mean, own))


def extend(track: Track, news: NDArray[Any], chunk: float) -> Track:
    """Add a chunk to the tracks of some workers.

    Parameters
    ----------
    track
        (P, BINS, WIDTH).
    news
        What the chunk has of each of them, (P, WIDTH - 1): labels, their agreement, its squares,
        and as much agreement as the crowd's would have been. Without labels, a worker stays.
    chunk
        Its number, from 1.
    """
    spoke = news[:, LABELS] > 0
    if not spoke.all():
        longer = track.copy()
        longer[spoke] = extend(track[spoke], news[spoke], chunk)
        return longer
    bins = np.zeros((len(track), BINS + 1, WIDTH), np.float32)
    bins[:, :-1] = track
    chunks = np.ascontiguousarray(track[:, :, CHUNK].T)
    newest = np.empty((len(track), WIDTH), np.float32)
    newest[:, :CHUNK] = news
    newest[:, CHUNK] = np.maximum(chunk, chunks.max(axis=0))  # one that failed may come late
    bins[np.arange(len(track)), np.count_nonzero(chunks, axis=0)] = newest
    return _merged(bins)


def joined(tracks: Sequence[Track], base: Track | None = None) -> Track:
    """The tracks of workers as several models have them, (K, BINS, WIDTH) each, as one.

    Chunks stand in the order of their numbers, whichever model they are of. What the models have
    from their base is not counted twice.
    """
    parts = list(tracks)
    if base is not None:
        parts = [base, *(_beyond(track, base) for track in tracks)]
    bins = np.concatenate(parts, axis=1)
    when = np.where(bins[:, :, CHUNK] > 0, bins[:, :, CHUNK], np.inf)
    bins = np.take_along_axis(bins, np.argsort(when, axis=1, kind="stable")[:, :, None], axis=1)
    while bins.shape[1] > BINS:
        bins = _merged(bins)
    return np.asarray(bins, np.float32)


def _beyond(track: Track, base: Track) -> Track:
    """What tracks have that the base they went on from has not, (K, BINS, WIDTH)."""
    later = track[:, :, CHUNK] > base[:, :, CHUNK].max(axis=1, keepdims=True)
    bins = np.where(later[:, :, None], track, 0).astype(np.float64)
    sums = track[:, :, :CHUNK].sum(axis=1) - base[:, :, :CHUNK].sum(axis=1)
    # A bin may have begun before the base ended: so much of it is not new.
    over = bins[:, :, :CHUNK].sum(axis=1) - np.maximum(sums, 0)
    row, oldest = np.arange(len(bins)), later.argmax(axis=1)
    some = later.any(axis=1)
    less = np.maximum(bins[row, oldest, :CHUNK] - over, 0)
    bins[row[some], oldest[some], :CHUNK] = less[some]
    return bins.astype(np.float32)


def _merged(bins: NDArray[Any]) -> NDArray[Any]:
    """One bin less, an unused one, or else one that two others become, (P, M - 1, WIDTH).

    What is given is used up.
    """
    n_workers, n_bins = bins.shape[:2]
    drop = np.full(n_workers, n_bins - 1)
    full = np.flatnonzero(bins[:, -1, CHUNK] > 0)
    if len(full):
        size = bins[:, :, LABELS].T.astype(np.float64, order="C").take(full, axis=1)  # (M, P)
        so_far = np.cumsum(size, axis=0)
        # the pair whose size is the smallest beside what came after it; the newest has nothing
        joint, after = size[:-2] + size[1:-1], so_far[-1] - so_far[1:-1]
        pair = (joint / np.maximum(after, TINY)).argmin(axis=0)
        bins[full, pair + 1, :CHUNK] += bins[full, pair, :CHUNK]
        drop[full] = pair
    stays = np.ones((n_workers, n_bins), bool)
    stays[np.arange(n_workers), drop] = False
    kept = bins.reshape(-1, bins.shape[2]).take(np.flatnonzero(stays), axis=0)
    return kept.reshape(n_workers, n_bins - 1, bins.shape[2])


def taken_back(track: Track, labels: float, agreed: float) -> Track:
    """A worker's track (BINS, WIDTH) without some labels; it is not kept when they came.

    So they are taken from all bins alike, which moves no change.
    """
    total = float(track[:, LABELS].sum())
    if total <= labels:
        return np.zeros_like(track)
    less = track.astype(np.float64)
    share = less[:, LABELS] / total
    rate = less[:, CROWD] / np.maximum(less[:, LABELS], TINY)
    less[:, SQUARES] *= 1 - labels / total
    less[:, LABELS] -= labels * share
    less[:, AGREED] = np.clip(less[:, AGREED] - agreed * share, 0, less[:, LABELS])
    less[:, CROWD] = rate * less[:, LABELS]
    return less.astype(np.float32)


# ── reading a track ──────────────────────────────────────────────────────────────────────


def curve(track: Track, level: float = LEVEL) -> list[Bin]:
    """A worker's agreement over time, with Wilson's bounds; `track` is (BINS, WIDTH)."""
    reported = []
    for labels, agreed, _, crowd, chunk in track[track[:, CHUNK] > 0].astype(float).tolist():
        if labels <= 0:
            continue
        rate = agreed / labels
        low, high = wilson(rate, labels, level)
        reported.append(Bin(int(chunk), labels, rate, crowd / labels, low, high))
    return reported


def scores(track: Track) -> Floats:
    """The log-likelihood ratio of a change after each bin, (P, BINS - 1), negative for a fall.

    Both the agreement and the agreement beside the crowd's must have moved, in one direction: the
    smaller of the two ratios counts.
    """
    bins = track.astype(np.float64)
    labels, agreed, squares, crowd = (bins[..., column] for column in range(CHUNK))
    total = labels.sum(axis=-1, keepdims=True)
    usual = crowd.sum(axis=-1, keepdims=True) / np.maximum(total, TINY)
    # a hard stretch for all is taken out of every label: δ = crowd − its mean
    harder = crowd / np.maximum(labels, TINY) - usual
    beside = agreed - labels * harder
    beside_squares = squares - 2 * harder * agreed + labels * harder**2
    raw, adjusted = _ratio(labels, agreed, squares), _ratio(labels, beside, beside_squares)
    same_way = np.sign(raw) == np.sign(adjusted)
    smaller = np.sign(raw) * np.minimum(np.abs(raw), np.abs(adjusted))
    return np.asarray(np.where(same_way, smaller, 0.0))


def _ratio(labels: Floats, agreed: Floats, squares: Floats) -> Floats:
    """The signed log-likelihood ratio of two rates against one, for every split, (…, M - 1)."""
    total, sum_all = labels.sum(-1, keepdims=True), agreed.sum(-1, keepdims=True)
    n_before, a_before = np.cumsum(labels, -1)[..., :-1], np.cumsum(agreed, -1)[..., :-1]
    n_after, a_after = total - n_before, sum_all - a_before
    before, after = a_before / np.maximum(n_before, TINY), a_after / np.maximum(n_after, TINY)
    within = squares.sum(-1, keepdims=True) - n_before * before**2 - n_after * after**2
    one, before, after = (
        np.clip(p, NEARLY, 1 - NEARLY) for p in (sum_all / np.maximum(total, TINY), before, after)
    )
    # n₁ KL(p₁ ‖ p) + n₂ KL(p₂ ‖ p), as if every label agreed or did not
    ratio = n_before * _divergence(before, one) + n_after * _divergence(after, one)
    # φ, how far agreement varies beside that of a coin, which it is taken for beforehand
    coin = n_before * before * (1 - before) + n_after * after * (1 - after)
    prior = PRIOR_LABELS * one * (1 - one)
    varies = np.maximum((within + prior) / (coin + prior), MIN_VARIANCE_RATIO)
    rise = after - before
    enough = (
        (n_before >= MIN_LABELS_PER_SIDE)
        & (n_after >= MIN_LABELS_PER_SIDE)
        & (np.abs(rise) >= MIN_AGREEMENT_DROP)
    )
    return np.asarray(np.where(enough, np.sign(rise) * ratio / varies, 0.0))


def _divergence(rate: Floats, other: Floats) -> Floats:
    """KL(p ‖ r) of a coin."""
    right, wrong = np.log(rate / other), np.log((1 - rate) / (1 - other))
    return np.asarray(rate * right + (1 - rate) * wrong)


def limit(level: float) -> float:
    """What a log-likelihood ratio must reach to be believed at a level."""
    return LIMIT + float(np.log((1 - LEVEL) / (1 - level)))


def changes(track: Track, level: float = LEVEL) -> list[Change]:
    """Where a worker changed, in order of time; `track` is (BINS, WIDTH).

    The likeliest split is taken if its ratio is beyond the limit, then each part is looked at in
    the same way (binary segmentation).
    """
    bins = track[track[:, CHUNK] > 0]
    cuts: dict[int, float] = {}
    parts = [(0, len(bins))]
    while parts and len(cuts) < MAX_CHANGES:
        first, last = parts.pop(0)
        if last - first < 2:
            continue
        score = scores(bins[None, first:last])[0]
        best = int(np.abs(score).argmax())
        if abs(score[best]) >= limit(level):
            cut = first + best + 1
            cuts[cut] = float(abs(score[best]))
            parts += [(first, cut), (cut, last)]
    while (spare := _straddled(bins, cuts)) is not None:
        del cuts[spare]
    rate = _rates(bins, cuts)
    return [
        Change(int(bins[cut - 1, CHUNK]) + 1, rate[i], rate[i + 1], cuts[cut])
        for i, cut in enumerate(sorted(cuts))
    ]


def _rates(bins: NDArray[np.float32], cuts: Mapping[int, float]) -> list[float]:
    """The agreement of each part."""
    parts = pairwise([0, *sorted(cuts), len(bins)])
    sums = [bins[first:last].sum(axis=0, dtype=np.float64) for first, last in parts]
    return [float(part[AGREED] / max(part[LABELS], TINY)) for part in sums]


def _straddled(bins: NDArray[np.float32], cuts: Mapping[int, float]) -> int | None:
    """The weaker of two cuts around one bin in which a single change lies, if there are such."""
    rate, ordered = _rates(bins, cuts), sorted(cuts)
    for i, (one, two) in enumerate(pairwise(ordered)):
        if two == one + 1 and (rate[i] < rate[i + 1]) == (rate[i + 1] < rate[i + 2]):
            return min(one, two, key=lambda cut: cuts[cut])
    return None
