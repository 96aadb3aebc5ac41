"""The figures of a chunk: what it came to, told once, where it was learned from.

They are made by the learner and kept with the chunk, so that who looks at a stream adds up a few
numbers a chunk and reads no answers. An item that is answered anew is told with what it had been,
so the sums over all chunks are those of the answers that stand. A truth that takes the place of an
answer later is told beside the truth, by `replaced`.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelquorum.store.codec import encode

__all__ = ["BINS", "DEPTH", "figures_of", "histogram", "part_of"]

BINS = 20
"""Confidence is counted in so many equal parts of 0 to 1."""

DEPTH = 16
"""Items are counted by how many labels they have, up to so many."""

MOST_PRIORS = 64
"""Of more classes than so many it is not told how frequent the model takes them to be."""

DECIMALS = 6


def figures_of(
    classes: Sequence[Hashable],
    aggregated: NDArray[Any],
    confidence: NDArray[Any],
    n_labels: NDArray[Any],
    priors: NDArray[Any] | None,
    before: Sequence[tuple[int, float]] = (),
    stopping: tuple[Sequence[float], NDArray[Any]] | None = None,
) -> str:
    """The figures of a chunk as JSON.

    Parameters
    ----------
    classes
        Known by now, C of them.
    aggregated, confidence, n_labels
        Of its items, (N,): the answer, how sure, and how many labels it has.
    priors
        How frequent the classes are, (C,).
    before
        What items that are answered anew had been answered: the class, and how sure.
    stopping
        Confidences at which asking may stop, G of them, and what that would have come to: items,
        labels and errors, (G + 1, 3), the last row without stopping.
    """
    told: dict[str, Any] = {
        "items": len(aggregated),
        "labels": int(n_labels.sum()),
        "classes": _by_class(classes, aggregated.tolist()),
        "confidence": histogram(confidence),
        "sure": round(float(confidence.sum(dtype=np.float64)), DECIMALS),
        "depth": np.bincount(np.minimum(n_labels, DEPTH), minlength=DEPTH + 1).tolist(),
    }
    if priors is not None and len(classes) <= MOST_PRIORS:
        told["priors"] = np.asarray(priors, np.float64).round(DECIMALS).tolist()
    if before:
        told["before"] = {
            "classes": _by_class(classes, [label for label, _ in before]),
            "confidence": histogram(np.array([sure for _, sure in before])),
        }
    if stopping is not None:
        told["thresholds"] = list(stopping[0])
        told["stopping"] = np.asarray(stopping[1], np.float64).round(DECIMALS).tolist()
    return encode(told)


def histogram(confidence: NDArray[Any]) -> list[int]:
    """How many are in each of the equal parts of 0 to 1; 1 is in the last."""
    found: list[int] = np.bincount(part_of(confidence), minlength=BINS).tolist()
    return found


def part_of(confidence: Any) -> NDArray[np.intp]:
    """In which of the equal parts of 0 to 1 each is."""
    return np.minimum((np.asarray(confidence, np.float64) * BINS).astype(np.intp), BINS - 1)


def _by_class(classes: Sequence[Hashable], labels: list[int]) -> dict[str, int]:
    return {encode(classes[label]): n for label, n in sorted(Counter(labels).items())}
