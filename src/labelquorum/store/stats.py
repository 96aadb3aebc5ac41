"""Statistics of a stream: of each chunk, by chunk, and summed over all chunks.

`StreamStats` is held in memory by a service and reads only chunks that are new; after a restart it
reads all of them, once.
"""

import threading
from array import array
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from labelquorum.store.batch import decode, encode
from labelquorum.store.database import schema

if TYPE_CHECKING:
    from labelquorum.store.stream import Stream


BINS = 20
"""Number of equal bins of the confidence histogram."""

DEPTH = 16
"""Items are counted by their number of labels; the last bin holds this many and more."""

MAX_PRIOR_CLASSES = 64
"""With more classes, the class prior is left out of the statistics of a chunk."""

DECIMALS = 6


def chunk_summary(
    classes: Sequence[Hashable],
    aggregated: NDArray[Any],
    confidence: NDArray[Any],
    n_labels: NDArray[Any],
    priors: NDArray[Any] | None,
    before: Sequence[tuple[int, float]] = (),
    stopping: tuple[Sequence[float], NDArray[Any]] | None = None,
) -> str:
    """The statistics of a chunk as JSON.

    Parameters
    ----------
    classes
        Known by now, C of them.
    aggregated, confidence, n_labels
        Of its items, (N,): the answer, how sure, and how many labels it has.
    priors
        How frequent the classes are, (C,).
    before
        The answers before of items that are answered again: the class, and the confidence.
    stopping
        Confidences at which asking may stop, G of them, and what that would have come to: items,
        labels and errors, (G + 1, 3), the last row without stopping.
    """
    summary: dict[str, Any] = {
        "items": len(aggregated),
        "labels": int(n_labels.sum()),
        "classes": _by_class(classes, aggregated.tolist()),
        "confidence": histogram(confidence),
        "sure": round(float(confidence.sum(dtype=np.float64)), DECIMALS),
        "depth": np.bincount(np.minimum(n_labels, DEPTH), minlength=DEPTH + 1).tolist(),
    }
    if priors is not None and len(classes) <= MAX_PRIOR_CLASSES:
        summary["priors"] = np.asarray(priors, np.float64).round(DECIMALS).tolist()
    if before:
        summary["before"] = {
            "classes": _by_class(classes, [label for label, _ in before]),
            "confidence": histogram(np.array([sure for _, sure in before])),
        }
    if stopping is not None:
        summary["thresholds"] = list(stopping[0])
        summary["stopping"] = np.asarray(stopping[1], np.float64).round(DECIMALS).tolist()
    return encode(summary)


def histogram(confidence: NDArray[Any]) -> list[int]:
    """How many are in each of `BINS` equal bins of 0 to 1; 1 is in the last."""
    found: list[int] = np.bincount(confidence_bin(confidence), minlength=BINS).tolist()
    return found


def confidence_bin(confidence: Any) -> NDArray[np.intp]:
    """The bin of each confidence."""
    return np.minimum((np.asarray(confidence, np.float64) * BINS).astype(np.intp), BINS - 1)


def _by_class(classes: Sequence[Hashable], labels: list[int]) -> dict[str, int]:
    return {encode(classes[label]): n for label, n in sorted(Counter(labels).items())}


# ── a stream by chunk ─────


class ChunkSeries(NamedTuple):
    """A stream by chunk; only chunks that still have an answer are in it."""

    chunk: list[int]  # (S,)
    at: NDArray[np.float64]  # (S,) seconds since 1970 when it was cut
    items: NDArray[np.float64]  # (S, C) by the class they were answered with
    labels: NDArray[np.float64]  # (S,)
    confidence: NDArray[np.float64]  # (S,) mean
    classes: list[Hashable]  # (C,)
    histogram: NDArray[np.int64]  # (BINS,) of all answers, by confidence


class Truth(NamedTuple):
    """A truth, and the answer before it, if there was one."""

    item_id: Hashable
    label: Hashable
    answered: Hashable | None


def chunk_series(stream: "Stream") -> ChunkSeries:
    """Read how a stream went, in one pass over its answers.

    An item that was answered again counts for the chunk of its last answer.
    """
    answers, chunks = schema.answers.c, schema.chunks.c
    own = answers.stream == stream.ref.key
    by_class = (
        sa.select(
            answers.chunk,
            chunks.cut_at,
            answers.label,
            sa.func.count(),
            sa.func.sum(answers.confidence),
            sa.func.sum(answers.n_labels),
        )
        .where(own, chunks.stream == answers.stream, chunks.id == answers.chunk)
        .group_by(answers.chunk, chunks.cut_at, answers.label)
        .order_by(answers.chunk)
    )
    with stream.ref.read() as connection:
        classes = decode(stream.ref.model(connection)["classes"])
        rows = connection.execute(by_class).all()
        return _series(rows, classes, confidence_histogram(connection, own))


def confidence_histogram(
    connection: sa.Connection, chosen: sa.ColumnElement[bool]
) -> NDArray[np.int64]:
    """How many of these answers are in each bin, (BINS,)."""
    sure = schema.answers.c.confidence
    # Counted from above and then taken apart: not every SQLite knows how to round.
    above = [sa.func.sum(sa.case((sure >= part / BINS, 1), else_=0)) for part in range(1, BINS)]
    counted = connection.execute(sa.select(sa.func.count(), *above).where(chosen)).one()
    at_least = np.array([n or 0 for n in counted] + [0], np.int64)
    return at_least[:-1] - at_least[1:]


def _series(
    rows: Sequence[Any], classes: list[Hashable], histogram: NDArray[np.int64]
) -> ChunkSeries:
    """Sort rows of chunk, time, label and sums into tables."""
    numbers = list(dict.fromkeys(row[0] for row in rows))
    # A truth may name a class that no worker did.
    classes = list(dict.fromkeys([*classes, *(decode(row[2]) for row in rows)]))
    place = {number: s for s, number in enumerate(numbers)}
    column = {label: c for c, label in enumerate(classes)}
    at, sure, labels = (np.zeros(len(numbers)) for _ in range(3))
    items = np.zeros((len(numbers), len(classes)))
    for number, cut_at, label, n_items, confidence, n_labels in rows:
        s = place[number]
        at[s] = cut_at
        items[s, column[decode(label)]] += n_items
        sure[s] += confidence
        labels[s] += n_labels
    sure = sure / np.maximum(items.sum(axis=1), 1)
    return ChunkSeries(numbers, at, items, labels, sure, classes, histogram)


def truths(stream: "Stream") -> list[Truth]:
    """All truths, by item."""
    gold = schema.gold.c
    query = sa.select(gold.item, gold.label, gold.answered).where(gold.stream == stream.ref.key)
    with stream.ref.read() as connection:
        return [
            Truth(decode(item), decode(label), None if answered is None else decode(answered))
            for item, label, answered in connection.execute(query.order_by(gold.item))
        ]


# ── a stream, added up as its chunks come ────────────────────────────────────────────────


MAX_HELD_CHUNKS, MAX_POINTS = 2_000, 200
"""Number of last chunks that are held one by one, and of points they are shown as."""

CHUNKS_PER_READ = 1_000
"""Chunks read at a time."""

TIMED_CHUNKS = 200
"""Number of last chunks whose time from cut to answer is kept."""

RECENT_ITEMS = 500
"""Number of last answers that count as recent; their classes are counted by whole chunks."""

MIN_EXPECTED_ANSWERS = 10.0
"""A class is missing once this many answers of it were expected and none came."""


class Point(NamedTuple):
    """What one chunk, or a few together, came to."""

    chunk: int
    at: float | None
    items: int
    new_items: int  # those that had no answer before
    labels: int
    sure: float | None  # the sum of all confidences


class MissingClass(NamedTuple):
    """A class that is no longer answered."""

    label: Hashable
    since: int  # the chunk that had it last
    share: float  # until then
    answers: int  # since then


class _Seen(NamedTuple):
    chunk: int
    items: int  # answered by then
    of_class: int


class _RecentChunk(NamedTuple):
    items: int
    classes: Mapping[str, int]


class StreamStats:
    """The statistics of a stream; see `StreamStats.fresh`. Thread-safe."""

    def __init__(self, stream: "Stream") -> None:
        self._ref, self._turn = stream.ref, threading.Lock()
        self.chunk = 0  # the last that is counted
        self.n_chunks = 0
        self.labels = 0
        self._parts: NDArray[np.int64] = np.zeros(BINS, np.int64)  # of the confidence
        self.priors: list[float] | None = None
        self._stopping: tuple[list[float], NDArray[np.float64], int] | None = None
        self._classes: Counter[str] = Counter()
        # By truths that took the place of answers, on top of what chunks came to.
        self._truths: tuple[Counter[str], NDArray[np.int64]] = Counter(), np.zeros(BINS, np.int64)
        self._given = 0  # answers, repeated ones included
        self._seen: dict[str, _Seen] = {}
        self._points: deque[Point] = deque(maxlen=MAX_HELD_CHUNKS)
        self._update_seconds: deque[float] = deque(maxlen=TIMED_CHUNKS)
        self._recent_chunks: deque[_RecentChunk] = deque()
        self._depth: list[int] = [0] * (DEPTH + 1)
        self._numbers, self._moments = array("q"), array("d")  # of chunks

    @contextmanager
    def fresh(self) -> Iterator["StreamStats"]:
        """The statistics, brought up to date and locked inside the block."""
        with self._turn:
            self._refresh()
            yield self

    def _refresh(self) -> None:
        """Count the chunks that were applied since the last time: all of them, or none."""
        fixed = ("_ref", "_turn")
        held = {name: copy(value) for name, value in vars(self).items() if name not in fixed}
        try:
            self._count_new()
        except BaseException:
            vars(self).update(held)
            raise

    def _count_new(self) -> None:
        chunks = schema.chunks.c
        query = (
            sa.select(
                chunks.id,
                chunks.cut_at,
                chunks.applied_at,
                chunks.n_items,
                chunks.n_labels,
                chunks.summary,
            )
            .where(chunks.stream == self._ref.key, chunks.state == "applied")
            .order_by(chunks.id)
        )
        with self._ref.read() as connection:
            older, counted = None, self.chunk
            new = query.where(chunks.id > self.chunk)
            with connection.execute(new, execution_options={"yield_per": CHUNKS_PER_READ}) as rows:
                for row in rows:
                    self.chunk, self.n_chunks = row.id, self.n_chunks + 1
                    self.labels += row.n_labels
                    if row.applied_at is not None:
                        self._update_seconds.append(row.applied_at - row.cut_at)
                        self._numbers.append(row.id)
                        self._moments.append(row.applied_at)
                    if row.summary is None:  # it was applied before there were statistics
                        older = row.id
                        of_items = row.n_items, row.n_items  # which are new is not known
                        point = Point(row.id, row.applied_at, *of_items, row.n_labels, None)
                        self._points.append(point)
                    else:
                        self._add(row, decode(row.summary))
            if older is not None:
                self._add_older(connection, older)
                classes, parts = self._replaced(connection)  # the answers have it already
                self._classes.subtract(classes)
                self._parts -= parts
            self._truths = self._replaced(connection)
            if self.chunk != counted:
                self._depth = self._recent_depth(connection)

    def _replaced(self, connection: sa.Connection) -> tuple[Counter[str], NDArray[np.int64]]:
        """What truths that took the place of answers change: by class, and by confidence."""
        gold = schema.gold.c
        query = (
            sa.select(gold.replaced, gold.label, sa.func.count())
            .where(gold.stream == self._ref.key, gold.replaced.is_not(None))
            .group_by(gold.replaced, gold.label)
        )
        classes: Counter[str] = Counter()
        parts = np.zeros(BINS, np.int64)
        for counted, truth, n in connection.execute(query):
            label, part = decode(counted)
            classes[label] -= n
            classes[truth] += n
            parts[part] -= n
            parts[-1] += n
        return classes, parts

    def _recent_depth(self, connection: sa.Connection) -> list[int]:
        """Of the items that were answered last, how many have 0, 1, 2 … labels by now."""
        answers = schema.answers.c
        last = (
            sa.select(answers.n_labels)
            .where(answers.stream == self._ref.key)
            .order_by(answers.chunk.desc())
            .limit(RECENT_ITEMS)
        )
        n_labels = np.array(list(connection.scalars(last)), np.int64)
        found: list[int] = np.bincount(np.minimum(n_labels, DEPTH), minlength=DEPTH + 1).tolist()
        return found

    def _add(self, row: Any, summary: Mapping[str, Any]) -> None:
        items, classes = summary["items"], summary["classes"]
        n_new = items
        self._parts += summary["confidence"]
        self._classes.update(classes)
        if "before" in summary:
            self._parts -= summary["before"]["confidence"]
            self._classes.subtract(summary["before"]["classes"])
            n_new -= sum(summary["before"]["classes"].values())
        self._given += items
        for label, n in classes.items():
            before = self._seen[label].of_class if label in self._seen else 0
            self._seen[label] = _Seen(row.id, self._given, before + n)
        self.priors = summary.get("priors")
        point = Point(row.id, row.applied_at, items, n_new, row.n_labels, summary["sure"])
        self._points.append(point)
        self._recent_chunks.append(_RecentChunk(items, classes))
        while (
            sum(one.items for one in self._recent_chunks) - self._recent_chunks[0].items
            >= RECENT_ITEMS
        ):
            self._recent_chunks.popleft()
        if "stopping" in summary:
            thresholds, sums, n = (
                summary["thresholds"],
                np.array(summary["stopping"], np.float64),
                1,
            )
            if self._stopping is not None and self._stopping[0] == thresholds:
                sums, n = self._stopping[1] + sums, self._stopping[2] + 1
            self._stopping = thresholds, sums, n

    def _add_older(self, connection: sa.Connection, last: int) -> None:
        """Count all answers themselves, once, where some chunks have no statistics.

        What an item had been answered in such a chunk is not known once it was answered again.
        """
        answers = schema.answers.c
        every = answers.stream == self._ref.key
        by_class = sa.select(answers.label, sa.func.count()).group_by(answers.label)
        self._classes = Counter(dict(map(tuple, connection.execute(by_class.where(every)))))
        for label, n in connection.execute(by_class.where(every, answers.chunk <= last)):
            self._given += n
            known = self._seen.get(label, _Seen(last, 0, 0))
            self._seen[label] = known._replace(of_class=known.of_class + n)
        self._seen = {x: one._replace(items=self._given) for x, one in self._seen.items()}
        self._parts = confidence_histogram(connection, every)

    # ── what it comes to ──────────────────────────────────────────────────────────────────────

    @property
    def classes(self) -> dict[Hashable, int]:
        """How many answers of each class stand."""
        total = Counter(self._classes)
        total.update(self._truths[0])
        return {decode(label): max(n, 0) for label, n in total.items()}

    @property
    def confidence(self) -> NDArray[np.int64]:
        """How many answers stand in each bin of confidence."""
        return self._parts + self._truths[1]

    @property
    def recent(self) -> tuple[int, Counter[Hashable]]:
        """How many recent answers there are, and of which classes."""
        found: Counter[Hashable] = Counter()
        for one in self._recent_chunks:
            found.update({decode(label): n for label, n in one.classes.items()})
        return sum(one.items for one in self._recent_chunks), found

    @property
    def depth(self) -> list[int]:
        """Of the recent items, each once, how many have 0, 1, 2 … labels by now."""
        return list(self._depth)

    @property
    def moved_at(self) -> float | None:
        """When the last chunk was learned from, where that is known."""
        return self._moments[-1] if self._moments else None

    @property
    def update_seconds(self) -> list[float]:
        """From the cut of a chunk to its answers, in seconds; of the last chunks."""
        return list(self._update_seconds)

    def missing_classes(self) -> list[MissingClass]:
        """Classes of which answers were expected, and none came."""
        found = []
        for label, seen in self._seen.items():
            share = seen.of_class / max(seen.items, 1)
            since = self._given - seen.items
            if share * since >= MIN_EXPECTED_ANSWERS:
                found.append(MissingClass(decode(label), seen.chunk, share, since))
        return sorted(found, key=lambda one: -one.share)

    def points(self) -> list[Point]:
        """The last chunks in order; where there are many, a few together."""
        points = list(self._points)
        size = -(-len(points) // MAX_POINTS)
        return [_merge_points(points[k : k + size]) for k in range(0, len(points), size or 1)]

    def early_stopping(self) -> dict[str, Any]:
        """What closing items at each confidence would have saved and cost, over how many chunks."""
        if self._stopping is None:
            return {"items": 0, "labels": 0, "curve": [], "chunks": 0}
        thresholds, sums, n_chunks = self._stopping
        n_items, n_labels, _ = sums[-1].tolist()
        curve = [
            {
                "threshold": threshold,
                "labels_used": round(used),
                "labels_saved": max(0.0, 1 - used / max(n_labels, 1)),
                "expected_error": max(0.0, error / max(items, 1)),
            }
            for threshold, (items, used, error) in zip(thresholds, sums.tolist(), strict=False)
        ]
        return {
            "items": round(n_items),
            "labels": round(n_labels),
            "curve": curve,
            "chunks": n_chunks,
        }

    def applied_at(self, chunk: int) -> float | None:
        """When a chunk was applied, where that is known."""
        place = bisect_left(self._numbers, chunk)
        if place == len(self._numbers) or self._numbers[place] != chunk:
            return None
        return self._moments[place]


def _merge_points(points: list[Point]) -> Point:
    last = points[-1]
    sure = [one.sure for one in points if one.sure is not None]
    return Point(
        last.chunk,
        last.at,
        sum(one.items for one in points),
        sum(one.new_items for one in points),
        sum(one.labels for one in points),
        sum(sure) if len(sure) == len(points) else None,
    )
