"""Label events: what one worker said about one item, as columns of many.

Everything that reads labels ends here, in a `LabelTable`: plain Python ids and labels in
order of arrival, already checked against a `LabelSpace`, with the line each came from.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from labelquorum.errors import StateError

MISSING = -1
"""The label index of "this worker did not label this item"."""

Repeats = Literal["last", "first", "majority", "all", "error"]
OnBad = Literal["error", "skip"]

# The first name is ours; the others are how the field's tools write the same column.
COLUMN_ALIASES: Mapping[str, tuple[str, ...]] = {
    "task": ("task", "item", "example", "question"),
    "worker": ("worker", "annotator", "rater", "performer"),
    "label": ("label", "rating", "value", "answer"),
    "weight": ("weight",),
    "group": ("group",),
    "timestamp": ("timestamp",),
    "score": ("score",),
    "worker_kind": ("worker_kind",),
    "model": ("model",),
    "prompt": ("prompt",),
    "order": ("order",),
}


# Read where no column has a name above, without regard to case, blanks and underscores.
COMMON_NAMES: Mapping[str, tuple[str, ...]] = {
    "task": (
        "task_id",
        "item_id",
        "example_id",
        "question_id",
        "sample_id",
        "document_id",
        "image_id",
        "text_id",
        "unit_id",
        "hit_id",
    ),
    "worker": (
        "worker_id",
        "annotator_id",
        "rater_id",
        "performer_id",
        "labeler",
        "labeler_id",
        "labeller",
        "judge",
        "judge_id",
        "coder",
        "user",
        "user_id",
    ),
    "label": ("class", "category", "response", "annotation", "judgment", "judgement", "vote"),
}


@dataclass(frozen=True, slots=True)
class LabelEvent:
    """One worker's label for one item."""

    item_id: Hashable
    worker_id: Hashable
    label: Hashable
    weight: float = 1.0
    group: Hashable = None
    timestamp: Any = None


@dataclass(frozen=True, slots=True)
class LabelSpace:
    """What a label may be, and what happens to a row that breaks a rule.

    Parameters
    ----------
    classes
        The fixed list of classes; None lets new classes appear at any time.
    repeats
        What a second label of one worker on one item does: "last" replaces the first,
        "first" is kept and the later dropped, "majority" makes them one label, the one with
        most votes, weighted by its share, "all" counts each, "error" refuses.
    on_bad
        "error" stops at the first bad row; "skip" leaves it out and counts it.
    abstain
        The value that says "I do not know": a missing label, counted, never an error.
    """

    classes: tuple[Hashable, ...] | None = None
    repeats: Repeats = "last"
    on_bad: OnBad = "error"
    abstain: Hashable = None

    def __post_init__(self) -> None:
        if self.repeats not in get_args(Repeats):
            raise StateError(
                f"`repeats` must be one of {list(get_args(Repeats))}. Got {self.repeats!r}."
            )
        if self.on_bad not in get_args(OnBad):
            raise StateError(
                f"`on_bad` must be one of {list(get_args(OnBad))}. Got {self.on_bad!r}."
            )
        try:
            hash(self.abstain)
        except TypeError:
            raise StateError(
                f"`abstain` must be one label, text or a number. Got {self.abstain!r}."
            ) from None
        if isinstance(self.classes, str | set | frozenset):
            raise StateError(
                "`classes` must be a list, in the order you want them. "
                f"Got {self.classes!r}, a {type(self.classes).__name__}."
            )
        if self.classes is not None:
            object.__setattr__(self, "classes", tuple(self.classes))
            if len(set(self.classes)) != len(self.classes) or not self.classes:
                raise StateError(
                    "`classes` must name at least one class, and each once. "
                    f"Got {list(self.classes)!r}."
                )


class LabelTable(NamedTuple):
    """Columns of label events in order of arrival; every row has an item, a worker, a label."""

    item_ids: Sequence[Hashable]
    worker_ids: Sequence[Hashable]
    labels: Sequence[Hashable]
    weights: Sequence[float] | None = None
    groups: Sequence[Hashable] | None = None
    timestamps: Sequence[Any] | None = None
    source: str = "labels"
    lines: Sequence[int] | None = None
    skipped: Mapping[str, int] = {}
    """Rows left out while reading, by reason ("missing label", "unknown class", "abstained")."""

    unit: str = "line"
    """What `lines` counts: lines of a file from 1, or rows of a table from 0."""

    scores: Sequence[float | None] | None = None
    """A judge's score or confidence beside the label; None where there is none."""

    worker_kinds: Sequence[str | None] | None = None
    models: Sequence[str | None] | None = None
    prompts: Sequence[str | None] | None = None
    orders: Sequence[str | None] | None = None
    """What is known of the row's worker; see `worker_attributes`."""

    def where(self, row: int) -> str:
        """Name the place of a row as a person would look for it."""
        if self.lines is None:
            return f"{self.source} row {row}"
        return f"{self.source} {self.unit} {self.lines[row]}"


class ValidTable(LabelTable):
    """A table whose rows keep the rules of a space, made by `validated`.

    `_replace` makes one that is not validated; its columns are not to be changed in place.
    """

    valid_for: LabelSpace | None = None

    def is_valid(self, space: LabelSpace) -> bool:
        """Whether every row was validated by the same classes and abstention."""
        known = self.valid_for
        return known is not None and (known.classes, known.abstain) == (
            space.classes,
            space.abstain,
        )


def validated(table: LabelTable, space: LabelSpace | None) -> LabelTable:
    """The same table, marked as validated by this space; unmarked for None."""
    if space is None:
        return table
    valid = ValidTable(*table)
    valid.valid_for = space
    return valid


def is_missing(value: object) -> bool:
    """Tell whether a cell is empty: None, NaN, NaT, or text with nothing in it."""
    if value is None:
        return True
    if isinstance(value, str):
        return not value.strip()
    try:
        return bool(value != value)  # NaN and NaT do not equal themselves
    except TypeError:  # pandas.NA refuses to be true or false
        return True
    except ValueError:  # an array is neither; it is no label either, but not a missing one
        return False
