"""Refitting: what all kept labels say together, beside what was answered as they came."""

from collections import Counter
from collections.abc import Hashable
from typing import Any, NamedTuple

import sqlalchemy as sa

from labelquorum.errors import StateError
from labelquorum.store.batch import decode, encode_id
from labelquorum.store.database import schema
from labelquorum.store.learner import AttributeRow, LabelColumns
from labelquorum.store.stream import Stream


class ChangedAnswer(NamedTuple):
    """A task of which the refit says something else."""

    task: Hashable
    label: Hashable  # as it was answered
    confidence: float
    refit_label: Hashable
    refit_confidence: float


class RefitReport(NamedTuple):
    """How far the answers of a stream are from those of all its labels taken at once."""

    answered: int  # tasks of the stream
    compared: int  # of them, those whose labels are all kept
    discarded: int  # chunks whose labels are gone
    differ: list[ChangedAnswer]

    def by_class(self) -> list[tuple[Hashable, Hashable, int]]:
        """What was answered, what the refit says, and how often; the most frequent first."""
        counts = Counter((one.label, one.refit_label) for one in self.differ)
        return [(*pair, count) for pair, count in counts.most_common()]


class _Kept(NamedTuple):
    """What a stream has kept."""

    labels: LabelColumns
    attributes: list[AttributeRow]
    truths: dict[Hashable, Hashable]
    given: dict[str, Any]  # answers by item
    whole: set[str]  # items whose labels are all there
    discarded: int


def refit(stream: Stream) -> RefitReport:
    """Fit all kept labels of a stream at once, with its own settings, and compare.

    The stream stays as it is: what was answered was answered. A task is compared only if all its
    labels are kept, so a stream that discards them has none to compare.
    """
    from labelquorum.learn.bila.presets import saved_settings
    from labelquorum.learn.estimators import estimator
    from labelquorum.store.model_rows import attributes_of, kept_table

    kept = _kept(stream)
    if not kept.labels.row:
        raise StateError(
            f"Stream {stream.name!r}: no labels of applied chunks are kept, so nothing can be "
            f"fitted again; its retention is {stream.rules.retention!r}. Set it to 'keep' for "
            "labels to come."
        )
    model = estimator(stream.configuration.method, **saved_settings(stream.settings))
    model.model_.learned.vocabulary.attributes.update(attributes_of(kept.attributes))
    # Not by `fit`, which refuses 1 beside "1": a stream may hold both.
    model.model_.learn(kept_table(kept.labels, f"stream {stream.name}"), kept.truths)
    answer = model.model_.answer
    intake, result, classes = answer.intake, answer.result, answer.classes
    differ, compared = [], 0
    for i in intake.order.tolist():
        item = encode_id(intake.item_ids[i], "task", "refit")
        if item not in kept.whole:
            continue
        compared += 1
        before, chosen = kept.given[item], int(result.aggregated[i])
        if decode(before.label) != classes[chosen]:
            sure = float(result.probs[i, chosen])
            answered = (intake.item_ids[i], decode(before.label), before.confidence)
            differ.append(ChangedAnswer(*answered, classes[chosen], sure))
    return RefitReport(len(kept.given), compared, kept.discarded, differ)


def _kept(stream: Stream) -> _Kept:
    labels, chunks, answers = schema.labels.c, schema.chunks.c, schema.answers.c
    gold, key = schema.gold.c, stream.ref.key
    applied = sa.and_(chunks.stream == key, chunks.state == "applied")
    with stream.ref.read() as connection:
        gone = sa.select(sa.func.count()).where(applied, chunks.labels_kept == 0)
        n_gone = connection.scalar(gone) or 0
        found = connection.execute(
            sa.select(*(labels[name] for name in LabelColumns._fields))
            .where(labels.stream == key, labels.chunk == chunks.id, applied)
            .order_by(labels.row)
        )
        kept = LabelColumns(*zip(*found.all(), strict=True))
        attributes = stream.ref.attributes(connection, kept.worker)
        found_truths = connection.execute(
            sa.select(gold.item, gold.label).where(gold.stream == key)
        ).all()
        columns = (answers.item, answers.label, answers.confidence, answers.n_labels)
        found = connection.execute(sa.select(*columns).where(answers.stream == key))
        given = {row.item: row for row in found}
    said = zip(kept.item, kept.row if stream.ref.counts_all else kept.worker, strict=True)
    n_kept = Counter(item for item, _ in set(said))
    whole = {item for item, row in given.items() if n_kept[item] >= row.n_labels}
    truths = {decode(row.item): decode(row.label) for row in found_truths if row.item in n_kept}
    return _Kept(kept, attributes, truths, given, whole, n_gone)
