"""Erasing a worker: their row, raw labels, part in open items, and id are removed from a stream.

What they contributed to shared numbers and to answers stays: it names nobody.
"""

from collections.abc import Callable, Iterator, Sequence
from math import inf
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
from labelquorum.store.database.sql import among, pick
from labelquorum.store.evidence import read_evidence, worker_places, write_evidence
from labelquorum.store.jobs import LAST_STEPS, Job, Jobs
from labelquorum.store.stream_ref import StreamRef

STEP = 500
"""Labels, or open items, of one transaction, which takes 0.05 to 0.1 s: others wait for its end."""

MAX_LABELS_AT_ONCE = 10_000
"""Labels of a worker during whose deletion, which takes 2 seconds, no chunk is cut."""

_LABEL = ("row", "item", "chunk")
REMOVED = "the reason was removed with a worker who was forgotten"


def is_known(ref: StreamRef, connection: sa.Connection, worker: str) -> bool:
    """Whether labels of a worker were accepted, and they were not forgotten since."""
    return any(
        connection.execute(
            sa.select(table.c.worker).where(table.c.stream == ref.key, table.c.worker == worker)
        ).first()
        for table in (schema.crowd, schema.workers)
    )


def erase(
    ref: StreamRef,
    acceptor: Acceptor,
    jobs: Jobs,
    job: Job,
    await_applied: Callable[[float], None],
) -> None:
    """Delete all rows of a worker in steps, and their id in the last one; counts their labels.

    While many labels are deleted, chunks are cut and applied. Then `LAST_STEPS` is noted, and none
    is cut: what those chunks brought is deleted too. `await_applied` returns once no chunk before
    a number is cut and not applied.
    """
    worker = job.body
    if LAST_STEPS not in job.progress:
        with ref.read() as connection:
            since = ref.row(connection).next_chunk
            n_labels = len(_labels_of(ref, connection, worker, -1, MAX_LABELS_AT_ONCE + 1))
        if n_labels > MAX_LABELS_AT_ONCE:
            await_applied(since)
            _erase_rows(ref, acceptor, jobs, job, 0)
        else:
            since = 0
        with ref.write() as connection:
            job.progress[LAST_STEPS] = since
            jobs.note(connection, job)
    await_applied(inf)
    last = _erase_rows(ref, acceptor, jobs, job, job.progress[LAST_STEPS])
    with ref.write() as connection:
        left = _labels_of(ref, connection, worker, last)
        _erase_labels(ref, connection, acceptor, job, _place_of(ref, connection, worker), left)
        _erase_id(ref, connection, worker)
        ref.add_event(connection, "forgot", {"labels": job.progress["labels"]})
        jobs.note(connection, job, done=True)


def _erase_rows(ref: StreamRef, acceptor: Acceptor, jobs: Jobs, job: Job, since: int) -> int:
    """Delete a worker's labels, and their part in items open since a chunk, in steps.

    Returns the last row that was looked at.
    """
    with ref.read() as connection:
        place = _place_of(ref, connection, job.body)
    after = -1
    while True:  # searched outside the transactions: most labels may be of others
        with ref.read() as connection:
            next_row = ref.row(connection).next_row
            found = _labels_of(ref, connection, job.body, after, STEP)
        if not found:
            break
        with ref.write() as connection:
            _erase_labels(ref, connection, acceptor, job, place, found)
            jobs.note(connection, job)
        after = found[-1].row
    for items in _open_items_with(ref, place, since):
        with ref.write() as connection:
            _leave_open_items(ref, connection, place, items)
            jobs.note(connection, job)
    return max(after, int(next_row) - 1)


def _erase_labels(
    ref: StreamRef,
    connection: sa.Connection,
    acceptor: Acceptor,
    job: Job,
    place: int | None,
    found: Sequence[Any],
) -> None:
    """Delete those of these labels that are in no chunk which is not applied yet."""
    labels, cut = schema.labels.c, set(ref.cut_chunks(connection))
    now = pick(connection, schema.labels, _LABEL, ref.key, "row", [row.row for row in found])
    rows = [row for row in now if row.chunk not in cut]
    these = among(connection, labels.row, [row.row for row in rows])
    gone = connection.execute(schema.labels.delete().where(labels.stream == ref.key, these))
    ref.release(connection, gone.rowcount)
    job.progress["labels"] += gone.rowcount
    acceptor.recount(connection, sorted({row.item for row in rows if row.chunk is None}))
    _erase_reasons(ref, connection, {row.chunk for row in rows} - {None})
    _leave_open_items(ref, connection, place, sorted({row.item for row in rows}))


def _place_of(ref: StreamRef, connection: sa.Connection, worker: str) -> int | None:
    """The place of a worker in the model; None if it has learned nothing of them."""
    workers = schema.workers.c
    its = (workers.stream == ref.key, workers.worker == worker)
    return connection.scalar(sa.select(workers.place).where(*its))


def _labels_of(
    ref: StreamRef, connection: sa.Connection, worker: str, after: int, limit: int | None = None
) -> Sequence[Any]:
    """The first labels of a worker after this row."""
    labels = schema.labels.c
    theirs = (labels.stream == ref.key, labels.row > after, labels.worker == worker)
    columns = [labels[name] for name in _LABEL]
    return connection.execute(
        sa.select(*columns).where(*theirs).order_by(labels.row).limit(limit)
    ).all()


def _erase_id(ref: StreamRef, connection: sa.Connection, worker: str) -> None:
    """Delete what goes by the worker's id, in a model of the next version."""
    models, streams = schema.models.c, schema.streams.c
    known = 0
    for table in (schema.attributes, schema.workers, schema.crowd):
        theirs = (table.c.stream == ref.key, table.c.worker == worker)
        known = connection.execute(table.delete().where(*theirs)).rowcount
    values: dict[str, Any] = {"version": models.version + 1}
    shared = ref.model(connection)["shared"]
    if shared is not None:
        values["shared"] = _without_gold(shared, id_key(decode(worker)))
    connection.execute(schema.models.update().where(models.stream == ref.key).values(values))
    connection.execute(
        schema.streams.update().where(streams.id == ref.key).values(n_crowd=streams.n_crowd - known)
    )


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


def _open_items_with(ref: StreamRef, place: int | None, since: int) -> Iterator[list[str]]:
    """The open items with a label of a worker, where labels of chunks were deleted.

    With `since`, those that this chunk or a later one answered: it may have put the label back.
    """
    chunks, items, answers = schema.chunks.c, schema.open_items.c, schema.answers.c
    same = (answers.stream == ref.key, answers.item == items.item, answers.chunk >= since)
    answered = sa.exists().where(*same) if since else sa.true()
    gone = sa.select(chunks.id).where(chunks.stream == ref.key, chunks.labels_kept == 0).limit(1)
    after: Any = ""
    while place is not None and after is not None:
        page = sa.select(items.item, items.evidence).where(
            items.stream == ref.key, items.item > after, answered
        )
        with ref.read() as connection:  # of a page each: a long one would keep the WAL
            if not since and connection.execute(gone).first() is None:
                return  # no others than those of their labels
            rows = connection.execute(page.order_by(items.item).limit(STEP)).all()
        after = rows[-1].item if rows else None
        if held := [row.item for row in rows if place in worker_places(row.evidence)]:
            yield held


def _leave_open_items(
    ref: StreamRef, connection: sa.Connection, place: int | None, items: Sequence[str]
) -> None:
    """Remove a worker's labels from the evidence of those of these items that are open."""
    rows = [] if place is None else ref.open_rows(connection, items)
    held = [row for row in rows if place in worker_places(row.evidence)]
    if not held:
        return
    evidence = [row.evidence for row in held]
    places = np.unique(np.concatenate([worker_places(one) for one in evidence]))
    left: list[bytes] = []
    for part in read_evidence([None] * len(held), evidence, [NO_NOTE] * len(held), places):
        some = part.without(places[part.worker] == place)
        left += write_evidence(some, np.arange(len(part.n_classes)), places)
    opened = schema.open_items.c
    changed = schema.open_items.update().where(
        opened.stream == ref.key, opened.item == sa.bindparam("its")
    )
    given = [{"its": row.item, "left": one} for row, one in zip(held, left, strict=True)]
    connection.execute(changed.values(evidence=sa.bindparam("left")), given)


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
