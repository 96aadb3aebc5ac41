"""Labels that are refused because they would become unintended classes.

That is 1 beside "1", and more than 50 different fractions.

The library refuses them when it learns. In a store that is too late: they were accepted. So they
are refused when they come, by the labels that the stream has.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import sqlalchemy as sa

from labelquorum.errors import LabelError
from labelquorum.ingest.validate import kind_of_value
from labelquorum.store.batch import Batch, decode, encode
from labelquorum.store.database import schema
from labelquorum.store.stream_ref import StreamRef

MAX_FRACTIONAL_CLASSES = 50
"""As in `learn.model`, which is not imported where labels are accepted: it loads pandas."""

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?")


class NewClasses:
    """The labels of a stream, and the errors of new ones.

    They are read from the store once, for one process alone accepts labels. Those that are admitted
    are noted, within `admitting`. Before an error they are read again: some may have been deleted.
    """

    def __init__(self, ref: StreamRef) -> None:
        self._ref = ref
        self._known: set[str] | None = None  # as they are stored

    @contextmanager
    def admitting(self) -> Iterator[None]:
        """Read all labels again after an error: what was noted may not have been committed."""
        try:
            yield
        except BaseException:
            self._known = None
            raise

    def errors(
        self, connection: sa.Connection, batches: Mapping[int, Batch]
    ) -> dict[int, LabelError]:
        """The error of each batch whose labels are refused; those of the others are noted."""
        if self._ref.space.classes is not None:  # listed classes are checked one by one
            return {}
        found, known = self._errors(self._load(connection), batches)
        if found:
            self._known = None
            found, known = self._errors(self._load(connection), batches)
        self._known = known
        return found

    def _errors(
        self, known: set[str], batches: Mapping[int, Batch]
    ) -> tuple[dict[int, LabelError], set[str]]:
        """The errors, and the labels known once the other batches are admitted."""
        found: dict[int, LabelError] = {}
        for number, batch in batches.items():
            said = {row.label for row in batch.rows}
            if said <= known:
                continue
            where = {
                row.label: f"task {decode(row.item)!r}, worker {decode(row.worker)!r}"
                for row in reversed(batch.rows)
                if row.label not in known
            }
            error = self._error(known, where)
            if error is None:
                known = known | said
            else:
                found[number] = error
        return found, known

    def check_truths(self, connection: sa.Connection, truths: Mapping[str, str]) -> None:
        """Refuse true labels, by item, that would become unintended classes."""
        if self._ref.space.classes is not None:
            return
        where = {label: item for item, label in truths.items()}
        error = self._truth_error(connection, where)
        if error is not None:
            self._known = None
            error = self._truth_error(connection, where)
        if error is not None:
            raise error
        self._known = self._load(connection) | set(where)

    def _truth_error(
        self, connection: sa.Connection, where: Mapping[str, str]
    ) -> LabelError | None:
        known = self._load(connection)
        new = {label: item for label, item in where.items() if label not in known}
        said = {label: f"true label of task {decode(item)!r}" for label, item in new.items()}
        return self._error(known, said)

    def _load(self, connection: sa.Connection) -> set[str]:
        """Classes of the model, and labels and truths that it has not learned from."""
        if self._known is None:
            values = {"stream": self._ref.key}
            self._known = {*connection.scalars(_WAITING, values)}
            self._known.update(connection.scalars(_CUT, values))
            self._known.update(connection.scalars(_TRUTHS, values))
            self._known.update(map(encode, decode(self._ref.model(connection)["classes"])))
        return self._known

    def _error(self, known: set[str], where: Mapping[str, str]) -> LabelError | None:
        """What is wrong with new labels, given by where they are; None where nothing is."""
        if not where:
            return None
        all_labels = [decode(label) for label in (*sorted(where), *known)]
        twins = {str(label): label for label in all_labels}
        begin = f"Stream {self._ref.name!r}: "
        for text in sorted(where):
            label = decode(text)
            other = twins[str(label)]
            if other != label:
                return LabelError(
                    f"{begin}label {label!r} ({where[text]}) is {kind_of_value(label)}, and the "
                    f"label {other!r} {kind_of_value(other)}: they would be two classes. Nothing "
                    "of this was taken. Convert one of them to the other's type."
                )
        n_fractions = sum(map(_is_fraction, set(all_labels)))
        fraction = next((text for text in where if _is_fraction(decode(text))), None)
        if fraction is None or n_fractions <= MAX_FRACTIONAL_CLASSES:
            return None
        return LabelError(
            f"{begin}label {decode(fraction)!r} ({where[fraction]}) is a fraction, and with it "
            f"there are {n_fractions:,} different ones, more than {MAX_FRACTIONAL_CLASSES}: each "
            "would be a class. Nothing of this was taken. Bin them before they are sent, or make a "
            "stream with all of them as classes."
        )


def _is_fraction(label: object) -> bool:
    if isinstance(label, str) and _NUMBER.fullmatch(label):
        label = float(label)
    return isinstance(label, float) and not label.is_integer()


_key: sa.BindParameter[int] = sa.bindparam("stream")
_labels, _chunks, _waiting = schema.labels.c, schema.chunks.c, schema.waiting.c
_SAID = sa.select(_labels.label).distinct().where(_labels.stream == _key)
_WAITING = _SAID.where(
    _labels.chunk.is_(None),
    _labels.item.in_(sa.select(_waiting.item).where(_waiting.stream == _key)),
)
_CUT = _SAID.where(
    _labels.chunk.in_(sa.select(_chunks.id).where(_chunks.stream == _key, _chunks.state == "cut"))
)
_TRUTHS = sa.select(schema.gold.c.label).distinct().where(schema.gold.c.stream == _key)
