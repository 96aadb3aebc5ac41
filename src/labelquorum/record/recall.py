"""The way back: labels that are not cut yet can be taken back, or put in another's place.

Some senders name what a label came from, not the label itself: an annotation that is changed, and
then deleted by its number. Each state of it is sent under a key of its own. The keys of one
annotation begin alike, and a later state's sorts after an earlier one's. So what is sent says by
its key what it takes the place of, and nothing else has to be remembered.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from labelquorum.errors import LabelError, LabelQuorumError
from labelquorum.record import tables
from labelquorum.record.faults import fault
from labelquorum.record.inlet import Inlet
from labelquorum.record.parcel import Parcel, Sent
from labelquorum.record.tables import decode, encode_id

__all__ = ["Recall", "Revised", "Revision"]


class Revision(NamedTuple):
    """A later state of something that was sent, or may have been."""

    beginning: str
    """How the keys of all its states begin."""
    sent: Sent
    """The labels it holds now, perhaps none, under a key that begins so."""


class Revised(NamedTuple):
    """What became of a revision."""

    accepted: int
    late: int  # set aside: their items are closed
    retracted: int  # labels of earlier states that are gone, or another stands in their place
    outdated: bool = False  # this state or a later one had come: nothing was done


class Recall(Inlet):
    """What can be taken back from a stream; see `Stream`."""

    def retract(self, task: Hashable, worker: Hashable) -> int:
        """Take back a worker's labels of a task that is not cut yet; say how many there were."""
        labels = tables.labels.c
        his = sa.and_(
            labels.item == encode_id(task, "task", "retract"),
            labels.worker == encode_id(worker, "worker", "retract"),
        )
        with self._store.write() as connection:
            n_gone = self._remove(connection, his)
            if not n_gone:
                raise LabelError(
                    f"No label of worker {worker!r} on task {task!r} is waiting: it never came, "
                    "or its chunk was cut. Check both ids, or send a correction."
                )
        return n_gone

    def revise_all(self, revisions: Sequence[Revision]) -> list[Revised | LabelQuorumError]:
        """Put labels in the place of those that came under keys that begin alike, once each.

        It is one transaction. A revision that is refused has its error in the place of what became
        of it; it changes nothing, and the others do not mind. What was cut stays as it is.
        """
        outcomes: list[Revised | LabelQuorumError] = []
        prepared: list[Parcel | LabelQuorumError] = []
        for revision in revisions:
            try:
                prepared.append(self.prepare(revision.sent))
            except LabelQuorumError as error:
                prepared.append(error)
        with self._store.write() as connection:
            for revision, parcel in zip(revisions, prepared, strict=True):
                if isinstance(parcel, Parcel):
                    outcomes.append(self._revise(connection, revision.beginning, parcel))
                else:
                    outcomes.append(parcel)
            fault("before_accept_commit")
        fault("after_accept")
        return outcomes

    def _revise(
        self, connection: sa.Connection, beginning: str, parcel: Parcel
    ) -> Revised | LabelQuorumError:
        batches, labels = tables.batches.c, tables.labels.c
        key = parcel.key or ""
        assert beginning and key.startswith(beginning)
        end = beginning[:-1] + chr(ord(beginning[-1]) + 1)  # the first text that does not begin so
        earlier = connection.execute(
            sa.select(batches.key, batches.receipt)
            .where(batches.stream == self._key, batches.key >= beginning, batches.key < end)
            .order_by(batches.key)
        ).all()
        if earlier and earlier[-1].key >= key:
            return Revised(0, 0, 0, outdated=True)
        refused = self._welcome(connection, {0: parcel})
        if refused:
            return refused[0]
        [receipt] = self._take(connection, [parcel])
        # After the new ones are in: an item that keeps a label keeps its place in the order.
        n_gone = 0
        for batch in earlier:
            rows = decode(batch.receipt)
            if rows["first_row"] is not None:
                span = labels.row.between(rows["first_row"], rows["last_row"])
                n_gone += self._remove(connection, span)
        return Revised(receipt.accepted, receipt.late, n_gone)

    def _remove(self, connection: sa.Connection, which: sa.ColumnElement[bool]) -> int:
        """Delete labels that are not cut, and count anew what their items have left."""
        labels = tables.labels.c
        uncut = sa.and_(labels.stream == self._key, labels.chunk.is_(None))
        items = list(connection.scalars(sa.select(labels.item).where(uncut, which).distinct()))
        n_gone = connection.execute(tables.labels.delete().where(uncut, which)).rowcount
        self._recount(connection, items)
        return n_gone
