"""How a stream went: its answers by chunk, how sure they are, and what was found of truths."""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from labelquorum.record import tables
from labelquorum.record.figures import BINS
from labelquorum.record.tables import decode
from labelquorum.record.view import View

__all__ = ["Course", "Told", "confidence_parts", "course", "truths"]


class Course(NamedTuple):
    """A stream by chunk; only chunks that still have an answer are in it."""

    chunk: list[int]  # (S,)
    at: NDArray[np.float64]  # (S,) seconds since 1970 when it was cut
    items: NDArray[np.float64]  # (S, C) by the class they were answered with
    labels: NDArray[np.float64]  # (S,)
    confidence: NDArray[np.float64]  # (S,) mean
    classes: list[Hashable]  # (C,)
    histogram: NDArray[np.int64]  # (BINS,) of all answers, by confidence


class Told(NamedTuple):
    """A truth that was told, and what had been answered before, if anything had."""

    item_id: Hashable
    label: Hashable
    answered: Hashable | None


def course(stream: View) -> Course:
    """Read how a stream went, in one pass over its answers.

    An item that was answered again counts for the chunk of its last answer.
    """
    answers, chunks = tables.answers.c, tables.chunks.c
    own = answers.stream == stream._key
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
    with stream._store.read() as connection:
        classes = decode(stream._shared(connection)["classes"])
        rows = connection.execute(by_class).all()
        return _course(rows, classes, confidence_parts(connection, own))


def confidence_parts(
    connection: sa.Connection, chosen: sa.ColumnElement[bool]
) -> NDArray[np.int64]:
    """How many of these answers are in each of the equal parts of 0 to 1, (BINS,)."""
    sure = tables.answers.c.confidence
    # Counted from above and then taken apart: not every SQLite knows how to round.
    above = [sa.func.sum(sa.case((sure >= part / BINS, 1), else_=0)) for part in range(1, BINS)]
    counted = connection.execute(sa.select(sa.func.count(), *above).where(chosen)).one()
    at_least = np.array([n or 0 for n in counted] + [0], np.int64)
    return at_least[:-1] - at_least[1:]


def _course(rows: Sequence[Any], classes: list[Hashable], histogram: NDArray[np.int64]) -> Course:
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
    return Course(numbers, at, items, labels, sure, classes, histogram)


def truths(stream: View) -> list[Told]:
    """The truths that were told, by item."""
    gold = tables.gold.c
    query = sa.select(gold.item, gold.label, gold.answered).where(gold.stream == stream._key)
    with stream._store.read() as connection:
        return [
            Told(decode(item), decode(label), None if answered is None else decode(answered))
            for item, label, answered in connection.execute(query.order_by(gold.item))
        ]
