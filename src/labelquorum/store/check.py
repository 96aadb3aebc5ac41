"""The store's doctor: is the database sound, does it keep its rules, what waits and what is stuck.

It reads beside whoever writes, and changes nothing.
"""

import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from labelquorum.errors import StoreError
from labelquorum.ingest.lint import Finding
from labelquorum.store.batch import CLOSED
from labelquorum.store.database import (
    FILE,
    check_at_rest,
    holder_of,
    is_url,
    newest_version,
    schema,
)
from labelquorum.store.store import Store
from labelquorum.store.stream import Stream

BROKEN = "broken"
"""The name of a finding that is no oddity but a fault of the store itself."""

WAL_RESET_BUG = ((3, 7, 0), (3, 51, 2))
"""Versions of SQLite in which two writers that reset the log at once may damage the file."""

MIN_FREE_BYTES = 1 << 30
"""With less free space in bytes, or less than the store itself takes, there is a warning."""


def examine_store(where: str | os.PathLike[str]) -> list[Finding]:
    """Say how a store is, a sentence a finding; those that want to be acted upon first.

    Parameters
    ----------
    where
        A folder, or the URL of a PostgreSQL database.
    """
    sealed = [] if is_url(where) else list(_seal(Path(where)))
    with Store.look(where) as store:
        findings = [*sealed, *_database(store, where), *_disk(where)]
        for name in store.streams():
            findings += _stream(store, store.stream(name))
    order = ("warning", "note", "ok")
    return sorted(findings, key=lambda finding: order.index(finding.severity))


def _seal(folder: Path) -> Iterator[Finding]:
    """Compare the file with its page checksums, before it is opened and locked."""
    try:
        check_at_rest(folder)
    except StoreError as error:
        yield Finding(BROKEN, 1, str(error), "warning")


def _database(store: Store, where: str | os.PathLike[str]) -> Iterator[Finding]:
    with store.read() as connection:
        if is_url(where):
            yield from _postgresql(connection)
            holder = holder_of(connection)
        else:
            yield from _sqlite(connection, Path(where))
            holder = holder_of(Path(where))
    yield _ok("tables", f"The tables are of version {newest_version()}, the newest.")
    if holder is None:
        yield _ok("writer", "No process holds the lock: nobody writes to the store now.")
    else:
        yield Finding("writer", 1, f"The store is in use by {holder}.", "note")


def _sqlite(connection: sa.Connection, folder: Path) -> Iterator[Finding]:
    version, (first, last) = sqlite3.sqlite_version_info, WAL_RESET_BUG
    shown = f"SQLite is {sqlite3.sqlite_version}"
    if first <= version <= last:
        spelled = ".".join(map(str, last))
        yield Finding(
            "SQLite",
            1,
            f"{shown}. Up to {spelled}, two processes that write at once may damage the file. Here "
            "one writes at a time, and this is checked; let no other program write to the file.",
            "note",
        )
    else:
        yield _ok("SQLite", f"{shown}.")
    mode = connection.scalar(sa.text("PRAGMA journal_mode"))
    if mode == "wal":
        yield _ok("journal", "The journal is a write-ahead log.")
    else:
        sentence = f"The journal is {mode!r}, and should be 'wal'. Open the store once."
        yield Finding("journal", 1, sentence, "warning")
    damage = list(connection.scalars(sa.text("PRAGMA integrity_check(10)")))
    if damage == ["ok"]:
        yield _ok("pages", "SQLite finds every page in order.")
    else:
        sentence = f"{folder / FILE} is damaged ({'; '.join(damage)}). Restore the last backup."
        yield Finding(BROKEN, len(damage), sentence, "warning")


def _postgresql(connection: sa.Connection) -> Iterator[Finding]:
    def setting(name: str) -> Any:
        return connection.scalar(sa.select(sa.func.current_setting(name)))

    yield _ok("PostgreSQL", f"PostgreSQL is {setting('server_version')}.")
    for name in ("fsync", "full_page_writes", "synchronous_commit"):
        if setting(name) == "off":
            yield Finding(
                "durability",
                1,
                f"The server has {name} off: what was acknowledged may be lost when it fails. "
                "Turn it on.",
                "warning",
            )


def _disk(where: str | os.PathLike[str]) -> Iterator[Finding]:
    if is_url(where):
        return
    free = shutil.disk_usage(where).free
    size = sum(path.stat().st_size for path in Path(where).glob(f"{FILE}*"))
    sentence = f"The store takes {size / 1e6:,.1f} MB, and {free / 1e6:,.0f} MB are free."
    if free < max(MIN_FREE_BYTES, size):
        yield Finding("disk", 1, f"{sentence} Make room.", "warning")
    else:
        yield _ok("disk", sentence)


# ── streams ──────────────────────────────────────────────────────────────────────────────


def _stream(store: Store, stream: Stream) -> Iterator[Finding]:
    who, count = f"Stream {stream.name!r}", stream.count()
    yield _ok(
        "stream",
        f"{who}: {count['answered_items']:,} tasks are answered, {count['waiting_items']:,} wait "
        f"with {count['waiting_labels']:,} labels; {count['held_labels']:,} labels are held.",
    )
    if late := count["late_labels"]:
        yield Finding("late", late, f"{who}: {late:,} labels were late. {CLOSED}", "note")
    with store.read() as connection:
        yield from _stuck(connection, stream, who)
        for n_wrong, rule in _broken(connection, stream):
            if n_wrong:
                sentence = f"{who}: {rule} ({n_wrong:,} times not so). Restore the last backup."
                yield Finding(BROKEN, n_wrong, sentence, "warning")


def _stuck(connection: sa.Connection, stream: Stream, who: str) -> Iterator[Finding]:
    chunks = schema.chunks.c
    here = sa.select(chunks.id, chunks.state, chunks.attempts, chunks.error).where(
        chunks.stream == stream.ref.key, chunks.state != "applied"
    )
    for row in connection.execute(here.order_by(chunks.id)):
        if row.state == "quarantined":
            sentence = f"{who}: chunk {row.id} is quarantined ({row.error}). Look at its labels."
            yield Finding("quarantined", 1, sentence, "warning")
        elif row.attempts:
            sentence = f"{who}: chunk {row.id} failed {row.attempts} times ({row.error})."
            yield Finding("failing", row.attempts, sentence, "warning")
    lag = sa.select(sa.func.count()).where(chunks.stream == stream.ref.key, chunks.state == "cut")
    if n_cut := connection.scalar(lag):
        sentence = f"{who}: {n_cut:,} chunks are cut and not applied yet. Is a process at work?"
        yield Finding("lag", n_cut, sentence, "note")


def _broken(connection: sa.Connection, stream: Stream) -> Iterator[tuple[int, str]]:
    """How often each rule of a sound stream is not kept."""
    labels, chunks, waiting = schema.labels.c, schema.chunks.c, schema.waiting.c
    key, row = stream.ref.key, stream.ref.row(connection)

    def count(query: sa.Select[Any]) -> int:
        return connection.scalar(sa.select(sa.func.count()).select_from(query.subquery())) or 0

    of_chunk = sa.and_(labels.stream == key, labels.chunk == chunks.id)
    n_labels = sa.select(sa.func.count()).where(of_chunk).scalar_subquery()
    ours = sa.select(chunks.id).where(chunks.stream == key)
    gone = ours.where(chunks.labels_kept == 0, chunks.state == "applied", n_labels > 0)
    yield count(gone), "a chunk whose labels were deleted has none left"
    short = ours.where(chunks.state == "cut", n_labels != chunks.n_labels)
    yield count(short), "a chunk that was cut holds its labels"
    yield count(ours.where(chunks.id >= row.next_chunk)), "chunks have numbers that were given out"
    held = sa.select(labels.row).where(labels.stream == key)
    yield abs(count(held) - row.held_labels), "a stream knows how many labels it holds"
    beyond = sa.select(labels.row).where(labels.stream == key, labels.row >= row.next_row)
    yield count(beyond), "labels have numbers that were given out"
    n_workers = labels.row if stream.ref.counts_all else sa.distinct(labels.worker)
    uncut = (
        sa.select(
            labels.item, sa.func.count(n_workers).label("n"), sa.func.min(labels.row).label("first")
        )
        .where(labels.stream == key, labels.chunk.is_(None))
        .group_by(labels.item)
        .subquery()
    )
    entry = sa.and_(waiting.stream == key, waiting.item == uncut.c.item)
    agree = sa.exists().where(
        entry, waiting.n_labels == uncut.c.n, waiting.first_row <= uncut.c.first
    )
    yield count(sa.select(uncut.c.item).where(~agree)), "a waiting task counts its labels"
    any_label = sa.exists().where(
        labels.stream == key, labels.item == waiting.item, labels.chunk.is_(None)
    )
    idle = sa.select(waiting.item).where(waiting.stream == key, waiting.n_labels > 0, ~any_label)
    yield count(idle), "a waiting task has labels"
    workers, models = schema.workers.c, schema.models.c
    strangers = sa.select(workers.place).where(
        workers.stream == key,
        models.stream == key,
        workers.place >= models.n_workers,
    )
    yield count(strangers), "workers have places that were given out"


def _ok(name: str, sentence: str) -> Finding:
    return Finding(name, 0, sentence, "ok")
