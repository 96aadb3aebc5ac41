"""Gold labels: they teach the model about items that can still learn, and answer all others.

A truth goes with its item into the chunk it is cut into, so that the update stays a pure function
of rows. What becomes of it depends on its item:

- Its labels wait, or are still to come: the truth goes with them.
- It was answered and is still open: the item is ready at once, and is answered again.
- It is closed: the answer becomes the truth, with confidence 1, and nothing is learned from it,
  because the labels it would be compared with are gone.

The answer before, and how sure it was, is kept beside the truth, which measures how often answers
were right.
"""

from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from typing import Any

import numpy as np
import sqlalchemy as sa

from labelquorum.errors import ConflictError, LabelError
from labelquorum.ingest.frames import read_gold
from labelquorum.store.accept import Acceptor, WaitingItem
from labelquorum.store.batch import Batch, Receipt, check_names, decode, encode, encode_id
from labelquorum.store.database import schema
from labelquorum.store.database.sql import among, any_row
from labelquorum.store.failpoints import fault
from labelquorum.store.learner import Outcome
from labelquorum.store.stats import confidence_bin
from labelquorum.store.stream_ref import StreamRef

TOO_LATE = 0
"""In place of a chunk number: the truth of an item that was closed."""

TRUTHS_PER_COMMIT = 500
"""More are written in several transactions: others wait for each. Of answered tasks they take
0.05 s."""

_GOLD = ("item", "label", "given_at", "answered", "answered_confidence", "chunk")


class GoldLabels:
    """The true labels of a stream."""

    def __init__(self, ref: StreamRef, acceptor: Acceptor) -> None:
        self._ref, self._acceptor = ref, acceptor

    def accept(self, truths: Any, key: str | None = None) -> Receipt:
        """Accept true labels; once this returns they are durable.

        The receipt says how many count (`accepted`), and how many came when their task was closed
        (`late`). The same truth again changes nothing; another one replaces it.

        Parameters
        ----------
        truths
            A dict {task: label}, or a Series indexed by task. After an error nothing has changed.
        key
            The sender's idempotency key: the same truths under it are accepted once. Many truths
            take several transactions, and the last one writes the receipt: after a failure send
            them again.
        """
        check_names(key=key)
        by_item = self._checked(truths)
        body = sha256(encode(["gold", sorted(by_item.items())]).encode()).hexdigest()
        listed, late = list(by_item.items()), 0
        if len(listed) > TRUTHS_PER_COMMIT:  # no part is written before all are checked
            with self._ref.read() as connection:
                if self._receipt(connection, key, body) is None:
                    self._compare(connection, by_item)
        for start in range(0, max(len(listed), 1), TRUTHS_PER_COMMIT):
            part = listed[start : start + TRUTHS_PER_COMMIT]
            with self._acceptor.new_classes.admitting(), self._ref.write() as connection:
                before = self._receipt(connection, key, body)
                if before is not None:
                    return before
                if start == 0:
                    self._acceptor.new_classes.check_truths(connection, by_item)
                late += self._write(connection, dict(part))
                if start + len(part) == len(listed):
                    receipt = Receipt(len(listed) - late, late, {}, None, None)
                    batch = Batch([], {}, body, key, None, None)
                    self._acceptor.write_receipts(connection, [batch], [receipt], self._ref.now())
                    counts = {"counted": receipt.accepted, "late": receipt.late}
                    self._ref.add_event(connection, "gold", counts)
                fault("before_gold_commit")
        fault("after_gold")
        return receipt

    def _receipt(self, connection: sa.Connection, key: str | None, body: str) -> Receipt | None:
        """The receipt of the same truths under the same key, if they came before."""
        before = self._acceptor.receipts(connection, [key]).get(key) if key else None
        if before is None:
            return None
        if before[0] != body or before[1] is None:
            raise ConflictError(
                f"Stream {self._ref.name!r}: key {key!r} came before with something else, "
                "and a key names one thing for good. Send these truths under another key."
            )
        return before[1]._replace(repeated=True)

    def _checked(self, truths: Any) -> dict[str, str]:
        """Truths as they are stored."""
        found, classes = {}, self._ref.space.classes
        for task, label in read_gold(truths).items():
            where = f"true label of task {task!r}"
            if classes is not None and label not in classes:
                raise LabelError(
                    f"{where}: {label!r} is not one of the classes {list(classes)!r}. Fix it."
                )
            found[encode_id(task, "task", where)] = encode_id(label, "label", where)
        return found

    def _compare(
        self, connection: sa.Connection, truths: Mapping[str, str]
    ) -> tuple[dict[str, Any], list[str], set[str], set[str]]:
        """What came before, what is new, and what of it is closed or answered again.

        Those that cannot be taken are an error.
        """
        known = {row.item: row for row in self._ref.of_items(connection, schema.gold, list(truths))}
        news = [item for item in truths if item not in known or known[item].label != truths[item]]
        self._check_not_in_use(connection, [known[item] for item in news if item in known])
        waiting = self._ref.of_items(connection, schema.waiting.c.item, news)
        others = sorted(set(news).difference(row.item for row in waiting))
        closed, again = self._acceptor.closed_or_open(connection, others, self._ref.now())
        self._check_same_ids(connection, set(others) - closed - again)
        return known, news, closed, again

    def _write(self, connection: sa.Connection, truths: Mapping[str, str]) -> int:
        """Write truths; returns how many came when their item was closed."""
        now, stream = self._ref.now(), self._ref.row(connection)
        known, news, closed, again = self._compare(connection, truths)
        answers = schema.answers.c
        columns = (answers.item, answers.label, answers.confidence)
        given = self._ref.of_items(connection, columns, sorted(closed))
        emitted = {row.item: (row.label, row.confidence) for row in given}
        rows = []
        for item in news:
            before = (None, None)
            if item in known:
                before = (known[item].answered, known[item].answered_confidence)
            late = item in closed
            answered = emitted.get(item, before) if late and before[0] is None else before
            rows.append((item, truths[item], now, *answered, TOO_LATE if late else None))
        self._ref.put(connection, schema.gold, "item", _GOLD, rows)
        self._answer(connection, {item: truths[item] for item in emitted})
        ready = [
            WaitingItem(d, 0, stream.next_row + n, now, now) for n, d in enumerate(sorted(again))
        ]
        self._ref.put(connection, schema.waiting, "item", WaitingItem._fields, ready)
        connection.execute(
            schema.streams.update()
            .where(schema.streams.c.id == self._ref.key)
            .values(next_row=stream.next_row + len(ready), moment=now)
        )
        n_old: int = sum(known[i].chunk == TOO_LATE for i in truths.keys() - set(news))
        return len(closed) + n_old

    def _check_not_in_use(self, connection: sa.Connection, rows: Sequence[Any]) -> None:
        """Refuse to change a truth that is in a chunk which is being learned from."""
        chunks = schema.chunks.c
        cut = sa.select(chunks.id).where(
            chunks.stream == self._ref.key,
            chunks.state == "cut",
            among(connection, chunks.id, {row.chunk for row in rows if row.chunk is not None}),
        )
        busy = set(connection.scalars(cut)) if rows else set()
        for row in rows:
            if row.chunk in busy:
                raise ConflictError(
                    f"Stream {self._ref.name!r}: task {decode(row.item)!r} is being answered with "
                    "another truth. Send this one again in a moment."
                )

    def _check_same_ids(self, connection: sa.Connection, items: Collection[str]) -> None:
        """Refuse truths whose ids are text where those of labels are numbers, or vice versa."""
        twins = {twin: item for item in items if (twin := _twin(item)) is not None}
        for column in (schema.labels.c.item, schema.answers.c.item):
            for row in self._ref.of_items(connection, column, list(twins)):
                raise LabelError(
                    f"True labels name a task {decode(twins[row.item])!r}, labels name it "
                    f"{decode(row.item)!r}: a number and a text are two ids. Convert one of them."
                )

    # ── with their chunk ─────────────────────────────────────────────────────────────────

    def cut(self, connection: sa.Connection, items: Sequence[str], number: int) -> None:
        """Put truths with their items into a chunk."""
        if not any_row(connection, schema.gold, self._ref.key):
            return
        gold = schema.gold.c
        connection.execute(
            schema.gold.update()
            .where(
                gold.stream == self._ref.key,
                gold.chunk.is_(None),
                among(connection, gold.item, items),
            )
            .values(chunk=number)
        )

    def of_chunk(self, connection: sa.Connection, number: int) -> list[tuple[str, str]]:
        """The items of a chunk whose truth is known, and the truth."""
        if not any_row(connection, schema.gold, self._ref.key):
            return []
        gold = schema.gold.c
        of_chunk = sa.select(gold.item, gold.label).where(
            gold.stream == self._ref.key, gold.chunk == number
        )
        return [(row.item, row.label) for row in connection.execute(of_chunk.order_by(gold.item))]

    def keep_answers(self, connection: sa.Connection, number: int) -> None:
        """Before a chunk is answered: keep the answers its items had without the truth."""
        if not any_row(connection, schema.gold, self._ref.key):
            return
        gold, answers = schema.gold.c, schema.answers.c
        emitted, sure = (
            sa.select(column)
            .where(answers.stream == self._ref.key, answers.item == gold.item)
            .scalar_subquery()
            for column in (answers.label, answers.confidence)
        )
        connection.execute(
            schema.gold.update()
            .where(gold.stream == self._ref.key, gold.chunk == number, gold.answered.is_(None))
            .values(answered=emitted, answered_confidence=sure)
        )

    def apply(self, connection: sa.Connection, number: int, outcome: Outcome) -> None:
        """After a chunk is answered: truths that came after its cut, or taught nothing."""
        if not any_row(connection, schema.gold, self._ref.key):
            return
        gold = schema.gold.c
        given = outcome.answers
        emitted = dict(
            zip(given.item, zip(given.label, given.confidence, strict=True), strict=True)
        )
        connection.execute(  # the statistics of this chunk have the present answers
            schema.gold.update()
            .where(
                gold.stream == self._ref.key,
                gold.replaced.is_not(None),
                among(connection, gold.item, list(emitted)),
            )
            .values(replaced=None)
        )
        known = self._ref.of_items(connection, schema.gold, list(emitted))
        late = {row.item: row for row in known if row.chunk == TOO_LATE}
        rows = [
            (
                *(row.item, row.label, row.given_at),
                *((row.answered, row.answered_confidence) if row.answered else emitted[row.item]),
                TOO_LATE,
            )
            for row in late.values()
        ]
        self._ref.put(connection, schema.gold, "item", _GOLD, rows)
        alone = [pair for pair in self.of_chunk(connection, number) if pair[0] not in emitted]
        self._answer(connection, {row.item: row.label for row in late.values()} | dict(alone))

    def release(self, connection: sa.Connection, number: int) -> None:
        """Take truths out of a quarantined chunk: they go with the next labels of their items."""
        gold = schema.gold.c
        connection.execute(
            schema.gold.update()
            .where(gold.stream == self._ref.key, gold.chunk == number)
            .values(chunk=None)
        )

    def _answer(self, connection: sa.Connection, truths: Mapping[str, str]) -> None:
        """Replace answers by truths."""
        if not truths:
            return
        self._keep_replaced(connection, list(truths))
        answers, by_truth = schema.answers.c, dict[str, list[str]]()
        classes = list(map(encode, decode(self._ref.model(connection)["classes"])))
        for item, truth in truths.items():
            by_truth.setdefault(truth, []).append(item)
        for truth, items in sorted(by_truth.items()):
            probs = np.array([label == truth for label in classes], np.float32)
            connection.execute(
                schema.answers.update()
                .where(answers.stream == self._ref.key, among(connection, answers.item, items))
                .values(label=truth, confidence=1.0, probs=probs.tobytes())
            )

    def _keep_replaced(self, connection: sa.Connection, items: Sequence[str]) -> None:
        """Keep what the statistics of chunks count of answers, before truths replace them."""
        answers, gold = schema.answers.c, schema.gold.c
        found: dict[str, list[str]] = {}
        columns = (answers.item, answers.label, answers.confidence)
        for row in self._ref.of_items(connection, columns, items):
            counted = encode([row.label, int(confidence_bin(row.confidence))])
            found.setdefault(counted, []).append(row.item)
        for counted, alike in sorted(found.items()):
            connection.execute(
                schema.gold.update()
                .where(
                    gold.stream == self._ref.key,
                    gold.replaced.is_(None),  # else a truth is replaced, not an answer
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
