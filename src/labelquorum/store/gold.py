"""True labels: told once, they count for items that can still learn, and answer all others.

A truth goes with its item into the chunk it is cut into, so that the update stays a pure function
of rows. What becomes of it, by where its item is then:

- Its labels wait, or are still to come: it goes with them.
- It was answered and is still open: the item is ready at once, and is answered anew.
- It is closed: the answer becomes the truth, with confidence 1, and nobody learns from it, for the
  labels it would be held against are gone.

What had been answered before is kept beside the truth, so that one can tell how often it was right.
"""

from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from typing import Any

import numpy as np
import sqlalchemy as sa

from labelquorum.errors import ConflictError, LabelError
from labelquorum.ingest.readers import read_gold
from labelquorum.store.accept import Entry, Inlet
from labelquorum.store.batch import Batch, Receipt, check_names
from labelquorum.store.codec import decode, encode, encode_id
from labelquorum.store.database import schema
from labelquorum.store.database.sql import among, any_row
from labelquorum.store.learner import Outcome
from labelquorum.store.stats import part_of

__all__ = ["TOO_LATE", "Truths"]

TOO_LATE = 0
"""In place of a chunk: the truth of an item that was closed."""

_GOLD = ("item", "label", "given_at", "answered", "chunk")


class Truths(Inlet):
    """What can be told of the truth; see `Stream`."""

    def gold(self, truths: Any, key: str | None = None) -> Receipt:
        """Take true labels; once this returns they are durable.

        The receipt says how many count (`accepted`), and how many came when their task was closed
        (`late`). Told again, a truth is no news; another one takes its place.

        Parameters
        ----------
        truths
            A dict {task: label}, or a Series indexed by task. What is refused changes nothing.
        key
            The sender's own name for these very truths. Sent again, they are taken once.
        """
        check_names(key=key)
        told = self._told(truths)
        body = sha256(encode(["gold", sorted(told.items())]).encode()).hexdigest()
        with self._store.write() as connection:
            before = self._seen(connection, [key]).get(key) if key else None
            if before is not None:
                if before[0] != body or before[1] is None:
                    raise ConflictError(
                        f"Stream {self.name!r}: key {key!r} came before with something else, and a "
                        "key names one thing for good. Send these truths under a key of their own."
                    )
                return before[1]._replace(repeated=True)
            receipt = self._take_truths(connection, told)
            batch = Batch([], {}, body, key, None, None)
            self._sign(connection, [batch], [receipt], self._store.now())
            counts = {"counted": receipt.accepted, "late": receipt.late}
            self._tell(connection, "gold", counts)
        return receipt

    def _told(self, truths: Any) -> dict[str, str]:
        """Truths as they are kept."""
        told, classes = {}, self._space.classes
        for task, label in read_gold(truths).items():
            where = f"true label of task {task!r}"
            if classes is not None and label not in classes:
                raise LabelError(
                    f"{where}: {label!r} is not one of the classes {list(classes)!r}. Fix it."
                )
            told[encode_id(task, "task", where)] = encode_id(label, "label", where)
        return told

    def _take_truths(self, connection: sa.Connection, told: Mapping[str, str]) -> Receipt:
        now, stream = self._store.now(), self._row(connection)
        known = {row.item: row for row in self._of_items(connection, schema.gold, list(told))}
        news = [item for item in told if item not in known or known[item].label != told[item]]
        self._refuse_while_learned_from(connection, [known[item] for item in news if item in known])
        waiting = self._of_items(connection, schema.waiting.c.item, news)
        others = sorted(set(news).difference(row.item for row in waiting))
        closed, again = self._answered(connection, others, now)
        self._check_same_ids(connection, [i for i in others if i not in closed | again])
        given = self._of_items(
            connection, (schema.answers.c.item, schema.answers.c.label), sorted(closed)
        )
        emitted = {row.item: row.label for row in given}
        rows = []
        for item in news:
            before = known[item].answered if item in known else None
            late = item in closed
            answered = emitted.get(item) if late and before is None else before
            rows.append((item, told[item], now, answered, TOO_LATE if late else None))
        self._put(connection, schema.gold, "item", _GOLD, rows)
        self._answer(connection, {item: told[item] for item in emitted})
        ready = [Entry(d, 0, stream.next_row + n, now, now) for n, d in enumerate(sorted(again))]
        self._put(connection, schema.waiting, "item", Entry._fields, ready)
        connection.execute(
            schema.streams.update()
            .where(schema.streams.c.id == self._key)
            .values(next_row=stream.next_row + len(ready), moment=now)
        )
        old = sum(known[item].chunk == TOO_LATE for item in told if item not in news)
        late = len(closed) + old
        return Receipt(len(told) - late, late, {}, None, None)

    def _refuse_while_learned_from(self, connection: sa.Connection, rows: Sequence[Any]) -> None:
        """A truth that is in a chunk just now cannot be changed."""
        chunks = schema.chunks.c
        cut = sa.select(chunks.id).where(
            chunks.stream == self._key,
            chunks.state == "cut",
            among(connection, chunks.id, [row.chunk for row in rows if row.chunk is not None]),
        )
        busy = set(connection.scalars(cut)) if rows else set()
        for row in rows:
            if row.chunk in busy:
                raise ConflictError(
                    f"Stream {self.name!r}: task {decode(row.item)!r} is just being answered with "
                    "another truth. Send this one again in a moment."
                )

    def _check_same_ids(self, connection: sa.Connection, items: Collection[str]) -> None:
        """Refuse truths whose ids are text where those of labels are numbers, or otherwise."""
        twins = {_twin(item): item for item in items if _twin(item) is not None}
        for column in (schema.labels.c.item, schema.answers.c.item):
            for row in self._of_items(connection, column, [twin for twin in twins if twin]):
                raise LabelError(
                    f"True labels name a task {decode(twins[row.item])!r}, labels name it "
                    f"{decode(row.item)!r}: a number and a text are two ids. Convert one of them."
                )

    # ── with their chunk ─────────────────────────────────────────────────────────────────

    def _cut_truths(self, connection: sa.Connection, items: Sequence[str], number: int) -> None:
        """Let truths go with their items into a chunk."""
        if not any_row(connection, schema.gold, self._key):
            return
        gold = schema.gold.c
        connection.execute(
            schema.gold.update()
            .where(
                gold.stream == self._key, gold.chunk.is_(None), among(connection, gold.item, items)
            )
            .values(chunk=number)
        )

    def _truths_of(self, connection: sa.Connection, number: int) -> list[tuple[str, str]]:
        if not any_row(connection, schema.gold, self._key):
            return []
        gold = schema.gold.c
        of_chunk = sa.select(gold.item, gold.label).where(
            gold.stream == self._key, gold.chunk == number
        )
        return [(row.item, row.label) for row in connection.execute(of_chunk.order_by(gold.item))]

    def _note_emitted(self, connection: sa.Connection, number: int) -> None:
        """Before a chunk is answered: what its items with a truth had been answered without it."""
        if not any_row(connection, schema.gold, self._key):
            return
        gold, answers = schema.gold.c, schema.answers.c
        emitted = (
            sa.select(answers.label)
            .where(answers.stream == self._key, answers.item == gold.item)
            .scalar_subquery()
        )
        connection.execute(
            schema.gold.update()
            .where(gold.stream == self._key, gold.chunk == number, gold.answered.is_(None))
            .values(answered=emitted)
        )

    def _apply_truths(self, connection: sa.Connection, number: int, outcome: Outcome) -> None:
        """Once a chunk is answered: truths that came after its cut, or found nothing to learn."""
        if not any_row(connection, schema.gold, self._key):
            return
        gold = schema.gold.c
        emitted = {row.item: row.label for row in outcome.answers}
        connection.execute(  # the figures of this chunk have what is answered now
            schema.gold.update()
            .where(
                gold.stream == self._key,
                gold.replaced.is_not(None),
                among(connection, gold.item, list(emitted)),
            )
            .values(replaced=None)
        )
        known = self._of_items(connection, schema.gold, list(emitted))
        late = {row.item: row for row in known if row.chunk == TOO_LATE}
        rows = [
            (row.item, row.label, row.given_at, row.answered or emitted[row.item], TOO_LATE)
            for row in late.values()
        ]
        self._put(connection, schema.gold, "item", _GOLD, rows)
        alone = [pair for pair in self._truths_of(connection, number) if pair[0] not in emitted]
        self._answer(connection, {row.item: row.label for row in late.values()} | dict(alone))

    def _free_truths(self, connection: sa.Connection, number: int) -> None:
        """Let truths of a chunk that is set aside go with the next labels of their items."""
        gold = schema.gold.c
        connection.execute(
            schema.gold.update()
            .where(gold.stream == self._key, gold.chunk == number)
            .values(chunk=None)
        )

    def _answer(self, connection: sa.Connection, truths: Mapping[str, str]) -> None:
        """Put truths in the place of answers that were given."""
        if not truths:
            return
        self._note_replaced(connection, list(truths))
        answers, classes = schema.answers.c, decode(self._shared(connection)["classes"])
        for truth in sorted(set(truths.values())):
            probs = np.array([encode(label) == truth for label in classes], np.float32)
            items = [item for item, label in truths.items() if label == truth]
            connection.execute(
                schema.answers.update()
                .where(answers.stream == self._key, among(connection, answers.item, items))
                .values(label=truth, confidence=1.0, probs=probs.tobytes())
            )

    def _note_replaced(self, connection: sa.Connection, items: Sequence[str]) -> None:
        """Keep what the figures of chunks have of answers, before truths take their place."""
        answers, gold = schema.answers.c, schema.gold.c
        found: dict[str, list[str]] = {}
        columns = (answers.item, answers.label, answers.confidence)
        for row in self._of_items(connection, columns, items):
            counted = encode([row.label, int(part_of(row.confidence))])
            found.setdefault(counted, []).append(row.item)
        for counted, alike in sorted(found.items()):
            connection.execute(
                schema.gold.update()
                .where(
                    gold.stream == self._key,
                    gold.replaced.is_(None),  # or else it is a truth that is replaced
                    among(connection, gold.item, alike),
                )
                .values(replaced=counted)
            )


def _twin(item: str) -> str | None:
    """The id that reads alike and is of the other type; None where there is none."""
    identity = decode(item)
    if not isinstance(identity, str):
        return encode(str(identity))
    try:
        number = decode(identity)
    except (ValueError, RecursionError):
        return None
    plain = isinstance(number, int | float) and not isinstance(number, bool)
    return encode(number) if plain and str(number) == identity else None
