"""Certificates and expected errors of a stream, by what it had answered before truths came.

Each gold task counts with the answer it had, and its confidence, before its truth was known. Gold
whose truth came with the first labels, or before, was never answered without it, and is left out
with its task. The guarantee rests on gold drawn at random from the tasks answered so far, and is
approximate where the stream has learned from that gold, which then moved other answers.
"""

from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa

from labelquorum._types import Floats
from labelquorum.learn.analysis.certificate import (
    Certificate,
    GoldSampling,
    certificate,
    checked_audit,
)
from labelquorum.learn.analysis.expected_error import Doubts, ExpectedError, expected_error_of
from labelquorum.store.batch import decode_all
from labelquorum.store.database import schema
from labelquorum.store.stream_ref import StreamRef


class _Gold(NamedTuple):
    """Gold tasks with what was answered before, in the order they came."""

    items: list[str]
    confidence: Floats
    wrong: list[bool]


def stream_expected_error(
    ref: StreamRef, level: float = 0.95, sampling: GoldSampling = "random"
) -> ExpectedError | None:
    """The expected share of wrong answers of a stream; None where nothing was answered."""
    answers, gold = schema.answers.c, schema.gold.c
    doubt = 1 - answers.confidence
    sums = sa.select(sa.func.count(), sa.func.sum(doubt), sa.func.sum(doubt * (1 - doubt)))
    everything = sums.where(answers.stream == ref.key)
    true = (  # their answers are the truth
        sums.select_from(
            schema.gold.join(
                schema.answers, sa.and_(answers.stream == gold.stream, answers.item == gold.item)
            )
        ).where(gold.stream == ref.key)
    )
    with ref.read() as connection:
        total = [value or 0 for value in connection.execute(everything).one()]
        known = [value or 0 for value in connection.execute(true).one()]
        found = _gold(ref, connection)
    doubts = 1 - found.confidence
    own = (len(doubts), float(doubts.sum()), float((doubts * (1 - doubts)).sum()))
    tasks, doubted, spread = (a - b + c for a, b, c in zip(total, known, own, strict=True))
    if not tasks:
        return None
    # A sum of float64 less some of its terms may end just below 0.
    of_all = Doubts(int(tasks), max(doubted, 0.0), max(spread, 0.0))
    if sampling == "selected":
        return expected_error_of(of_all, np.zeros(0), [], level)
    return expected_error_of(of_all, doubts, found.wrong, level)


def stream_certificate(
    ref: StreamRef,
    error: float = 0.02,
    confidence: float = 0.95,
    sampling: GoldSampling = "random",
) -> Certificate:
    """Which answers of a stream may stand, and which tasks a person must still see."""
    answers, gold = schema.answers.c, schema.gold.c
    # In the order of ids, which no draw of gold changes: it decides between equal confidences.
    of_stream = answers.stream == ref.key
    with ref.read() as connection:
        # By columns: a row of each of a million tasks would be a tuple of its own.
        items, sure = (
            list(connection.scalars(sa.select(column).where(of_stream).order_by(answers.item)))
            for column in (answers.item, answers.confidence)
        )
        known = set(connection.scalars(sa.select(gold.item).where(gold.stream == ref.key)))
        found = _gold(ref, connection)
    left_out = known.difference(found.items)
    scores = np.array(sure, np.float64)[[item not in left_out for item in items]]
    items = [item for item in items if item not in left_out]
    place = dict.fromkeys(found.items, 0)
    place.update((item, n) for n, item in enumerate(items) if item in place)
    drawn = [place[item] for item in found.items]
    scores[drawn] = found.confidence
    audit, ids = checked_audit(drawn, found.wrong, len(items)), decode_all(items)
    sampled = certificate(np.clip(scores, 0, 1), audit, error, confidence, sampling)
    return sampled.named(ids.__getitem__)


def _gold(ref: StreamRef, connection: sa.Connection) -> _Gold:
    gold, answers = schema.gold.c, schema.answers.c
    pairs = (
        sa.select(gold.item, gold.given_at, gold.label, gold.answered, gold.answered_confidence)
        .select_from(
            schema.gold.join(
                schema.answers, sa.and_(answers.stream == gold.stream, answers.item == gold.item)
            )
        )
        .where(gold.stream == ref.key, gold.answered_confidence.is_not(None))
    )
    # What came together has no order of its own; that of the ids might follow the truth.
    rows: list[Any] = sorted(
        connection.execute(pairs),
        key=lambda row: (row.given_at, sha256(row.item.encode()).digest()),
    )
    return _Gold(
        [row.item for row in rows],
        np.array([row.answered_confidence for row in rows], np.float64),
        [row.answered != row.label for row in rows],
    )
