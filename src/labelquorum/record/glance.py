"""Small questions that are asked often: how a worker did of late, and what happened last."""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from labelquorum.record import tables
from labelquorum.record.stream import Stream
from labelquorum.record.tables import decode, encode_id

__all__ = ["Recent", "last_event", "late_agreement", "model_version"]

WINDOW = 20_000
"""So many of a stream's last labels are looked through."""


class Recent(NamedTuple):
    """What a worker said of late, as far as labels are held."""

    labels: int
    agreed: int  # with the answer


def late_agreement(stream: Stream, workers: Sequence[Hashable]) -> dict[Hashable, Recent]:
    """How often each of these workers agreed with the answers lately.

    Only labels that are still held can be told, so a stream that discards them tells nothing.
    """
    names = [encode_id(worker, "worker", "recent") for worker in workers]
    labels, answers, streams = tables.labels.c, tables.answers.c, tables.streams.c
    last = sa.select(streams.next_row).where(streams.id == stream._key).scalar_subquery()
    agreed = sa.func.sum(sa.case((labels.label == answers.label, 1), else_=0))
    query = (
        sa.select(labels.worker, sa.func.count(), agreed)
        .where(
            labels.stream == stream._key,
            labels.row >= last - WINDOW,
            labels.worker.in_(names),
            labels.chunk.is_not(None),
            answers.stream == labels.stream,
            answers.item == labels.item,
        )
        .group_by(labels.worker)
    )
    with stream._store.read() as connection:
        return {decode(name): Recent(n, int(a)) for name, n, a in connection.execute(query)}


def last_event(stream: Stream) -> int:
    """The number of the last event; 0 where there was none."""
    events = tables.events.c
    query = sa.select(sa.func.max(events.id)).where(events.stream == stream._key)
    with stream._store.read() as connection:
        return connection.scalar(query) or 0


def model_version(stream: Stream) -> int:
    """How many chunks were learned from."""
    models = tables.models.c
    with stream._store.read() as connection:
        return connection.scalar(sa.select(models.version).where(models.stream == stream._key)) or 0
