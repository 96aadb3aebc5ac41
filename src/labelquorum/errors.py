"""What LabelQuorum raises: one root, one sentence each.

Every message says where, what, the rule, what we got, and what to do next.
"""

from collections.abc import Sequence


def printable(text: str) -> str:
    """Escape what a terminal would act on, as `repr` does: controls, and marks of direction."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


class LabelQuorumError(Exception):
    """The root of everything this library raises on purpose."""


class LabelError(LabelQuorumError, ValueError):
    """The labels, or how they were described to us, break a rule.

    `sentences` has one for each of the first bad rows; the message is the first of them.
    """

    def __init__(self, sentence: str = "", others: Sequence[str] = ()) -> None:
        super().__init__(sentence)
        self.sentences = (sentence, *others)


class StateError(LabelQuorumError, ValueError):
    """A model or its saved file is not what it should be, or a setting is out of range."""


class StoreError(LabelQuorumError, RuntimeError):
    """The durable store refused or could not keep its promise."""


class ConflictError(StoreError):
    """What was asked does not go with what the store already holds."""


class LimitError(StoreError):
    """What was asked goes beyond a limit that was set."""


class FullError(StoreError):
    """The disk of the store is full; what was not acknowledged was not kept."""
