"""Small questions that are asked often: how a worker did of late, what happened last, how much."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from math import sqrt
from typing import Any, NamedTuple

import sqlalchemy as sa

from labelquorum.store.codec import decode, encode_id
from labelquorum.store.database import schema
from labelquorum.store.store import Store
from labelquorum.store.stream import Stream

__all__ = [
    "GoldError",
    "Recent",
    "all_counts",
    "all_rows",
    "gold_error",
    "last_chunks",
    "last_event",
    "late_agreement",
    "model_version",
    "quarantined",
]

WINDOW = 20_000
"""So many of a stream's last labels are looked through."""


WILSON = 1.959964
"""Standard deviations to either side that hold 95 % of a normal law."""


class GoldError(NamedTuple):
    """How often answers were wrong whose truth was told later, and between which bounds."""

    items: int
    wrong: int
    error: float
    low: float
    high: float


class Recent(NamedTuple):
    """What a worker said of late, as far as labels are held."""

    labels: int
    agreed: int  # with the answer


def late_agreement(stream: Stream, workers: Sequence[Hashable]) -> dict[Hashable, Recent]:
    """How often each of these workers agreed with the answers lately.

    Only labels that are still held can be told, so a stream that discards them tells nothing.
    """
    names = [encode_id(worker, "worker", "recent") for worker in workers]
    labels, answers, streams = schema.labels.c, schema.answers.c, schema.streams.c
    last = sa.select(streams.next_row).where(streams.id == stream._key).scalar_subquery()
    agreed = sa.func.sum(sa.case((labels.label == answers.label, 1), else_=0))
    n_answered = sa.func.count(answers.item)
    # An outer join begins with the labels, which are few: SQLite might begin with all answers.
    with_answers = schema.labels.outerjoin(
        schema.answers, sa.and_(answers.stream == labels.stream, answers.item == labels.item)
    )
    query = (
        sa.select(labels.worker, n_answered, agreed)
        .select_from(with_answers)
        .where(
            labels.stream == stream._key,
            labels.row >= last - WINDOW,
            labels.worker.in_(names),
            labels.chunk.is_not(None),
        )
        .group_by(labels.worker)
        .having(n_answered > 0)
    )
    with stream._store.read() as connection:
        return {decode(name): Recent(n, int(a)) for name, n, a in connection.execute(query)}


def last_event(stream: Stream) -> int:
    """The number of the last event; 0 where there was none."""
    events = schema.events.c
    query = sa.select(sa.func.max(events.id)).where(events.stream == stream._key)
    with stream._store.read() as connection:
        return connection.scalar(query) or 0


def model_version(stream: Stream) -> int:
    """How many chunks were learned from."""
    models = schema.models.c
    with stream._store.read() as connection:
        return connection.scalar(sa.select(models.version).where(models.stream == stream._key)) or 0


def last_chunks(stream: Stream, limit: int = 10) -> list[Mapping[str, Any]]:
    """The chunks that were cut last, the newest first."""
    chunks = schema.chunks.c
    query = sa.select(schema.chunks).where(chunks.stream == stream._key)
    with stream._store.read() as connection:
        found = connection.execute(query.order_by(chunks.id.desc()).limit(limit))
        return [{**row._mapping} for row in found]


def quarantined(stream: Stream) -> list[int]:
    """The chunks that could not be learned from."""
    chunks = schema.chunks.c
    query = sa.select(chunks.id).where(chunks.stream == stream._key, chunks.state == "quarantined")
    with stream._store.read() as connection:
        return list(connection.scalars(query.order_by(chunks.id)))


def gold_error(stream: Stream) -> GoldError | None:
    """How often an answer was wrong, by truths that were told after it; None where none was."""
    gold = schema.gold.c
    wrong = sa.func.sum(sa.case((gold.answered != gold.label, 1), else_=0))
    query = sa.select(sa.func.count(), wrong).where(
        gold.stream == stream._key, gold.answered.is_not(None)
    )
    with stream._store.read() as connection:
        n_items, n_wrong = connection.execute(query).one()
    if not n_items:
        return None
    error = n_wrong / n_items
    # Wilson (1927)
    scale, z = 1 + WILSON**2 / n_items, WILSON
    centre = (error + z**2 / (2 * n_items)) / scale
    half = z * sqrt(error * (1 - error) / n_items + z**2 / (4 * n_items**2)) / scale
    return GoldError(n_items, int(n_wrong), error, max(0.0, centre - half), min(1.0, centre + half))


def all_rows(store: Store) -> dict[str, int]:
    """How many labels were accepted in each stream since it was made."""
    streams = schema.streams.c
    with store.read() as connection:
        return {
            name: rows - 1
            for name, rows in connection.execute(sa.select(streams.name, streams.next_row))
        }


def all_counts(store: Store, only: str | None = None) -> dict[str, dict[str, Any]]:
    """What `Stream.count` tells of each stream, with its rules and classes, in a few queries.

    Parameters
    ----------
    only
        Of the stream of this name alone.
    """
    streams, models = schema.streams.c, schema.models.c
    labels, waiting, answers = schema.labels.c, schema.waiting.c, schema.answers.c
    counted = {
        "waiting_items": sa.select(waiting.stream, sa.func.count()),
        "held_labels": sa.select(labels.stream, sa.func.count()),
        "cut_labels": sa.select(labels.stream, sa.func.count()).where(labels.chunk.is_not(None)),
        "answered_items": sa.select(answers.stream, sa.func.count()),
    }
    query = sa.select(
        streams.id, streams.name, streams.rules, streams.late_labels, models.version, models.classes
    ).where(models.stream == streams.id)
    if only is not None:
        own = sa.select(streams.id).where(streams.name == only).scalar_subquery()
        query = query.where(streams.name == only)
        counted = {name: one.where(sa.column("stream") == own) for name, one in counted.items()}
    with store.read() as connection:
        found: dict[str, Counter[int]] = {
            name: Counter(dict(map(tuple, connection.execute(one.group_by("stream")))))
            for name, one in counted.items()
        }
        # An index has the labels that are cut, and none those that are not.
        waiting_labels = found["held_labels"] - found.pop("cut_labels")
        found = {"waiting_labels": waiting_labels, **found}
        return {
            row.name: {
                "counts": {
                    **{name: by_stream[row.id] for name, by_stream in found.items()},
                    "late_labels": row.late_labels,
                    "version": row.version,
                },
                "rules": decode(row.rules),
                "classes": decode(row.classes),
            }
            for row in connection.execute(query.order_by(streams.name))
        }
