"""Cutting chunks: which items are ready, and which of them go together.

A cut is a transaction of its own. It writes the number of a chunk to the labels of its items, so
what a chunk holds is fixed before it is learned from.
"""

from functools import lru_cache
from math import inf
from typing import Any, NamedTuple

import sqlalchemy as sa

from labelquorum.store.batch import decode, encode
from labelquorum.store.database import schema
from labelquorum.store.database.sql import among_given, any_row, as_parameter
from labelquorum.store.failpoints import fault
from labelquorum.store.gold import GoldLabels
from labelquorum.store.jobs import LAST_STEPS
from labelquorum.store.rules import Rules
from labelquorum.store.stream_ref import StreamRef, rules_of

MAX_ROWS_PER_LABEL = 4
"""Labels are found by their rows if at most this many came per label of a chunk since its first;
else by their items, which costs a label as much as reading some ten rows."""

MAX_ITEMS_PER_COMMIT = 2_000
"""Tasks of chunks that are cut or applied in one transaction, unless one chunk alone has more:
labels wait for it, and larger transactions save no more time."""

MAX_CHUNKS_PER_COMMIT = 16
"""The same in chunks: each takes some statements of its own."""


class Cut(NamedTuple):
    """A chunk that was cut."""

    id: int
    first_row: int
    last_row: int
    n_items: int
    n_labels: int
    seed: int
    configuration: str


class Chunker:
    """Cuts a stream into chunks; see `Stream`, which offers the same methods."""

    def __init__(self, ref: StreamRef, gold: GoldLabels) -> None:
        self._ref, self._gold = ref, gold

    def cut(self, flush: bool = False) -> Cut | None:
        """Cut a chunk if it is time; None if it is not.

        Parameters
        ----------
        flush
            Cut what is there, ready or not: no more labels will come.
        """
        cuts = self._cut(flush, 1)
        return cuts[0] if cuts else None

    def cut_some(self) -> list[Cut]:
        """Cut the chunks that are due, in one transaction; not all where they are many."""
        return self._cut(False, MAX_CHUNKS_PER_COMMIT)

    def _cut(self, flush: bool, most: int) -> list[Cut]:
        with self._ref.read() as connection:  # blocks no writer
            rules, now = self._ref.rules(connection), self._ref.now()
            if not (flush or self._due(connection, rules, now)):
                return []
            if flush and not any_row(connection, schema.waiting, self._ref.key):
                return []
        with self._ref.write() as connection:
            if connection.execute(_FORGETTING, {"key": self._ref.key}).first():
                return []
            now, stream = self._ref.now(), self._ref.row(connection)
            rules = rules_of(stream.rules)
            chosen = self._chosen(connection, rules, now, flush, most)
            if not chosen:
                return []
            numbers = range(stream.next_chunk, stream.next_chunk + len(chosen))
            cuts = [
                self._write(connection, stream, number, one)
                for number, one in zip(numbers, chosen, strict=True)
            ]
            row = {"stream": self._ref.key, "state": "cut", "cut_at": now, "attempts": 0}
            row |= {"open_until": rules.open_until(now), "labels_kept": 1}
            connection.execute(schema.chunks.insert(), [{**row, **one._asdict()} for one in cuts])
            here = {"key": self._ref.key, "number": numbers[-1]}
            connection.execute(_NEXT, {**here, "now": now})
            fault("before_cut_commit")
        fault("after_cut")
        return cuts

    def _write(
        self, connection: sa.Connection, stream: Any, number: int, rows: list[tuple[int, str, int]]
    ) -> Cut:
        """Write the number of a chunk to its labels and truths."""
        first_rows, items, n_labels = zip(*rows, strict=True)
        dialect = connection.dialect.name
        these = {"key": self._ref.key, "items": as_parameter(connection, items)}
        here = {"key": self._ref.key, "number": number}
        by_row = stream.next_row - first_rows[0] <= MAX_ROWS_PER_LABEL * sum(n_labels)
        since = {"since": first_rows[0]} if by_row else {}
        taken = connection.execute(_take(dialect, by_row), {**here, **these, **since})
        connection.execute(_wait_no_longer(dialect), these)
        self._gold.cut(connection, items, number)
        first, last = connection.execute(_SPAN, here).one()
        return Cut(
            number,
            stream.next_row if first is None else first,  # of truths alone
            stream.next_row - 1 if last is None else last,
            len(items),
            taken.rowcount,
            self._ref.settings["seed"],
            self._ref.configuration.configuration,
        )

    def backlog(self) -> tuple[list[int], int]:
        """The chunks that are cut and not applied, and how many are due to be cut now."""
        with self._ref.read() as connection:
            rules = self._ref.rules(connection)
            return self._ref.cut_chunks(connection), self._due(connection, rules, self._ref.now())

    def change(self, **changes: Any) -> Rules:
        """Change some of the rules from now on; items that are ready stay so.

        With a `grace`, items that were to stay open for good close after it, from now.
        """
        waiting = schema.waiting.c
        with self._ref.write() as connection:
            rules = self._ref.rules(connection).changed(**changes)
            now = self._ref.now()
            if rules.grace is not None:  # what was to stay open for good now closes in time too
                items, chunks = schema.open_items.c, schema.chunks.c
                for table, is_open in (
                    (schema.open_items, items.open_until == inf),
                    (schema.chunks, sa.and_(chunks.state == "cut", chunks.open_until == inf)),
                ):
                    connection.execute(
                        table.update()
                        .where(table.c.stream == self._ref.key, is_open)
                        .values(open_until=now + rules.grace)
                    )
            connection.execute(
                schema.streams.update()
                .where(schema.streams.c.id == self._ref.key)
                .values(rules=encode(rules.as_dict()), moment=now)
            )
            connection.execute(
                schema.waiting.update()
                .where(
                    waiting.stream == self._ref.key,
                    waiting.ready_at.is_(None),
                    waiting.n_labels >= rules.labels_per_item,
                )
                .values(ready_at=now)
            )
            self._ref.add_event(connection, "rules", rules.as_dict())
        return rules

    def _due(self, connection: sa.Connection, rules: Rules, now: float) -> int:
        """How many chunks are due to be cut now."""
        counted = _COUNT_READY[rules.max_wait is not None]
        n_ready, first = connection.execute(counted, self._moments(rules, now)).one()
        return max(int(n_ready) // rules.chunk_items, int(rules.is_due(n_ready, first, now)))

    def _moments(self, rules: Rules, now: float) -> dict[str, Any]:
        """What the statements about ready items are given."""
        return {"key": self._ref.key, "wait": rules.max_wait or 0.0, "now": now}

    def _chosen(
        self, connection: sa.Connection, rules: Rules, now: float, flush: bool, most: int
    ) -> list[list[tuple[int, str, int]]]:
        """The items of the chunks to cut now, those first whose first labels came first.

        Each with the row of its first label and its number of labels.
        """
        n_due = 1 if flush else self._due(connection, rules, now)
        size = rules.chunk_items
        n_chunks = min(n_due, most, max(1, MAX_ITEMS_PER_COMMIT // size))
        if not n_chunks:
            return []
        which = "waiting" if flush else "ready" if rules.max_wait is None else "ready or waited"
        given = {**self._moments(rules, now), "limit": n_chunks * size}
        found = connection.execute(_choose(connection.dialect.name, which), given).scalar_one()
        rows = sorted(decode(found or "[]"))
        return [rows[start : start + size] for start in range(0, len(rows), size)]


def _ready(waited_too: bool, *columns: sa.Column[Any]) -> sa.Subquery:
    """These columns of the items that are ready, by labels or by waiting, and since when.

    A union of two queries, as each has an index; one query with OR would scan all that wait.
    """
    waiting = schema.waiting.c
    own = waiting.stream == sa.bindparam("key")
    ready = sa.select(*columns, waiting.ready_at.label("since")).where(
        own, waiting.ready_at > _NEVER
    )
    if not waited_too:
        return ready.subquery()
    wait, now = sa.bindparam("wait", type_=sa.Double), sa.bindparam("now", type_=sa.Double)
    waited = sa.select(*columns, (waiting.first_at + wait).label("since")).where(
        own, waiting.ready_at.is_(None), waiting.first_at <= now - wait
    )
    return ready.union_all(waited).subquery()


# Before every moment. SQLite uses an index for "later than this", but not for "is not NULL".
_NEVER = -inf

# Built once: building a statement takes longer than executing it.
_labels, _waiting = schema.labels.c, schema.waiting.c
_own = _labels.stream == sa.bindparam("key")
_SPAN = sa.select(  # each by an index; both in one query would read every row of the chunk
    *(
        sa.select(end(_labels.row))
        .where(_own, _labels.chunk == sa.bindparam("number"))
        .scalar_subquery()
        for end in (sa.func.min, sa.func.max)
    )
)
_FORGETTING = sa.select(schema.jobs.c.id).where(
    schema.jobs.c.stream == sa.bindparam("key"), schema.jobs.c.progress.contains(encode(LAST_STEPS))
)
_NEXT = (
    schema.streams.update()
    .where(schema.streams.c.id == sa.bindparam("key"))
    .values(next_chunk=sa.bindparam("number") + 1, moment=sa.bindparam("now"))
)
_COUNT_READY = {}  # by whether items are ready by waiting, too
for _waited_too in (False, True):
    _since = _ready(_waited_too, _waiting.stream).c.since  # an index has these columns
    _COUNT_READY[_waited_too] = sa.select(sa.func.count(), sa.func.min(_since))


@lru_cache(maxsize=16)
def _choose(dialect: str, which: str) -> sa.Select[str]:
    """Items that wait, or are ready, or are ready by waiting too, as JSON.

    Each is [first row, item, labels].
    """
    columns = (_waiting.item, _waiting.first_row, _waiting.n_labels)
    if which == "waiting":
        some: Any = sa.select(*columns).where(_waiting.stream == sa.bindparam("key")).subquery()
    else:
        some = _ready(which == "ready or waited", *columns)
    first = sa.select(some).order_by(some.c.first_row)
    chosen = first.limit(sa.bindparam("limit", type_=sa.Integer)).subquery()
    # One row: Python's driver lets other threads run after each, and waits for its turn again.
    of_postgresql = dialect == "postgresql"
    listed = sa.func.json_agg if of_postgresql else sa.func.json_group_array
    array = sa.func.json_build_array if of_postgresql else sa.func.json_array
    row = array(chosen.c.first_row, chosen.c.item, chosen.c.n_labels)
    return sa.select(sa.cast(listed(row), sa.Text))


@lru_cache(maxsize=16)
def _take(dialect: str, by_row: bool) -> sa.Update:
    """Write the number of a chunk to the labels of its items, found by their rows or their items.

    Labels that came one after the other are next to each other, and take half the time so.
    """
    item: Any = _labels.item
    rows = []
    if by_row:
        rows = [_labels.row >= sa.bindparam("since", type_=sa.BigInteger)]
        item = sa.func.coalesce(item, "")  # an expression: SQLite would go by the index of items
    these = among_given(dialect, item, "items")
    return (
        schema.labels.update()
        .where(_own, *rows, _labels.chunk.is_(None), these)
        .values(chunk=sa.bindparam("number"))
    )


@lru_cache(maxsize=16)
def _wait_no_longer(dialect: str) -> sa.Delete:
    these = among_given(dialect, _waiting.item, "items")
    return schema.waiting.delete().where(_waiting.stream == sa.bindparam("key"), these)
