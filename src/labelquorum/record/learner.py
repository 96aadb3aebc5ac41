"""Who learns: the one part of a stream that needs JAX, behind a door of three calls.

What goes in and what comes out are plain values. So the learner may be this process (`Here`), or
one beside it, and a store takes labels and gives answers without it.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from labelquorum.record.rows import Configuration, Outcome, Work

__all__ = ["Here", "Learner"]


class Learner(Protocol):
    """What a store needs to have done."""

    def configure(self, method: str, settings: Mapping[str, Any]) -> Configuration:
        """Check what a stream is to learn by, and spell out every setting."""
        ...

    def learn(self, work: Work) -> Outcome:
        """Learn from a chunk, and say which rows are new."""
        ...

    def ask(self, work: Work, question: str, options: Mapping[str, Any]) -> Any:
        """What the model says of these workers and open items; see `questions.py`."""
        ...


class Here:
    """The process itself learns; JAX is imported when it is first asked to."""

    def configure(self, method: str, settings: Mapping[str, Any]) -> Configuration:
        """Check what a stream is to learn by, and spell out every setting."""
        from labelquorum.record.model import configure

        return configure(method, settings)

    def learn(self, work: Work) -> Outcome:
        """Learn from a chunk, and say which rows are new."""
        from labelquorum.record.model import learn

        return learn(work)

    def ask(self, work: Work, question: str, options: Mapping[str, Any]) -> Any:
        """What the model says of these workers and open items; see `questions.py`."""
        from labelquorum.record.questions import answer

        return answer(work, question, options)
