"""Erasing a worker: their row, raw labels, part in open items, and id are removed from a stream.

What they contributed to shared numbers and to answers stays: it names nobody.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa
from safetensors.numpy import load, save

from labelquorum.ingest.chunks import id_key
from labelquorum.learn.bila.gold import GoldTasks
from labelquorum.learn.bila.stacking import Stack
from labelquorum.learn.item_columns import NO_NOTE
from labelquorum.store.accept import Acceptor
from labelquorum.store.batch import decode, encode
from labelquorum.store.database import schema
from labelquorum.store.evidence import read_evidence, worker_places, write_evidence
from labelquorum.store.stream_ref import StreamRef

REMOVED = "the reason was removed with a worker who was forgotten"


def erase(ref: StreamRef, acceptor: Acceptor, connection: sa.Connection, worker: str) -> int | None:
    """Delete all rows of a worker; returns how many labels they had, None if they are unknown.

    No chunk may be cut and not applied.
    """
    key, labels, crowd = ref.key, schema.labels.c, schema.crowd.c
    workers = schema.workers.c
    theirs = sa.and_(labels.stream == key, labels.worker == worker)
    found = connection.execute(sa.select(labels.item, labels.chunk).where(theirs)).all()
    place = connection.scalar(
        sa.select(workers.place).where(workers.stream == key, workers.worker == worker)
    )
    known = connection.execute(
        schema.crowd.delete().where(crowd.stream == key, crowd.worker == worker)
    ).rowcount
    attributes = schema.attributes
    connection.execute(
        attributes.delete().where(attributes.c.stream == key, attributes.c.worker == worker)
    )
    if not known and place is None and not found:
        return None
    connection.execute(schema.labels.delete().where(theirs))
    ref.release(connection, len(found))
    acceptor.recount(connection, sorted({row.item for row in found if row.chunk is None}))
    _erase_reasons(ref, connection, {row.chunk for row in found} - {None})
    if place is not None:
        connection.execute(
            schema.workers.delete().where(workers.stream == key, workers.place == place)
        )
        _leave_open_items(ref, connection, place, _open_items_of(ref, connection, found))
    models, streams = schema.models.c, schema.streams.c
    values: dict[str, Any] = {"version": models.version + 1}
    shared = ref.model(connection)["shared"]
    if shared is not None:
        values["shared"] = _without_gold(shared, id_key(decode(worker)))
    connection.execute(schema.models.update().where(models.stream == key).values(values))
    connection.execute(
        schema.streams.update().where(streams.id == key).values(n_crowd=streams.n_crowd - known)
    )
    return len(found)


def _without_gold(shared: bytes, worker_key: int) -> bytes:
    """The shared part of a model without what a worker said of gold tasks."""
    arrays = load(shared)
    for prefix, kind in (("gold/", GoldTasks), ("stack/", Stack)):
        own = {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}
        known = kind.read(own) if own else None
        if known is not None:
            left = known.without_worker(worker_key)._asdict()
            arrays |= {f"{prefix}{n}": np.asarray(a, order="C") for n, a in left.items()}
    return save(arrays)


def _open_items_of(
    ref: StreamRef, connection: sa.Connection, labels: Sequence[Any]
) -> Iterable[Any]:
    """The open items that may hold a label of a worker, whose labels that are kept these are.

    Where no chunk's labels were deleted, no others can. Millions of items may be open.
    """
    chunks, items = schema.chunks.c, schema.open_items.c
    gone = sa.select(chunks.id).where(chunks.stream == ref.key, chunks.labels_kept == 0).limit(1)
    if connection.execute(gone).first() is None:
        return ref.open_rows(connection, sorted({row.item for row in labels}))
    return connection.execute(
        sa.select(items.item, items.evidence).where(items.stream == ref.key),
        execution_options={"yield_per": 1000},
    )


def _leave_open_items(
    ref: StreamRef, connection: sa.Connection, place: int, held: Iterable[Any]
) -> None:
    """Remove a worker's labels from the evidence of these open items."""
    items = schema.open_items.c
    changed = []
    for row in held:
        places = np.unique(np.array(worker_places(row.evidence), np.int64))
        if place in places:
            [columns] = read_evidence([None], [row.evidence], [NO_NOTE], places)
            left = columns.without(places[columns.worker] == place)
            [evidence] = write_evidence(left, np.arange(1), places)
            changed.append((row.item, evidence))
    for item, evidence in changed:
        connection.execute(
            schema.open_items.update()
            .where(items.stream == ref.key, items.item == item)
            .values(evidence=evidence)
        )


def _erase_reasons(ref: StreamRef, connection: sa.Connection, chunks: set[Any]) -> None:
    """Remove the errors of chunks with their labels, which may name them."""
    columns, events = schema.chunks.c, schema.events.c
    failed: Sequence[int] = connection.scalars(
        sa.select(columns.id).where(columns.stream == ref.key, columns.error.is_not(None))
    ).all()
    for number in sorted(chunks.intersection(failed)):
        connection.execute(
            schema.chunks.update()
            .where(columns.stream == ref.key, columns.id == number)
            .values(error=REMOVED)
        )
    quarantined = sa.select(events.id, events.body).where(
        events.stream == ref.key, events.kind == "quarantined"
    )
    for row in connection.execute(quarantined).all():
        body = decode(row.body)
        if body["chunk"] in chunks:
            connection.execute(
                schema.events.update()
                .where(events.stream == ref.key, events.id == row.id)
                .values(body=encode({**body, "error": REMOVED}))
            )
