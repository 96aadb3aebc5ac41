"""The contract: an aggregator is three pure functions over a state handed from one to the next.

    init(chunk, seed) → State    update(state, chunk) → (State, Info)    aggregate(state, chunk)

`State` is what the next step needs, `Info` is diagnostics, `Aggregation` is what users see.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.ingest.chunks import Chunk

__all__ = [
    "Aggregation",
    "Aggregator",
    "Counts",
    "Draws",
    "Part",
    "break_ties",
    "consensus",
    "softmax",
    "sum_by_item",
    "vote_counts",
    "vote_shares",
]

State = Any
Info = Any

Draws = Callable[
    [State, NDArray[np.integer[Any]], int, np.random.Generator, float],
    Iterator[NDArray[np.float32]],
]

TIE_TOLERANCE = 1e-6
"""Classes whose log scores differ by no more than this are tied."""


class Aggregation(NamedTuple):
    """The consensus on a chunk's items."""

    aggregated: NDArray[np.int32]  # (N,) the winning class
    probs: NDArray[np.float32]  # (N, C)
    log_evidence: NDArray[np.float32]  # (B, C) what each label said for each class
    temperature: NDArray[np.float64] | None = None  # (N,) divides log scores; None for 1


class Part(NamedTuple):
    """A state, and where its K workers and C classes stand among those of several states."""

    state: State
    workers: NDArray[np.intp]  # (K,) MISSING where a worker was forgotten
    classes: NDArray[np.intp]  # (C,)


class Counts(NamedTuple):
    """What can be done where the state is counts; such a method also learns from true labels.

    `add(state, workers, counts)` adds labels z of workers on items of class c, (P, C, C).
    `merge(parts, base, n_workers, n_classes)` adds up what each part counted beyond the base.
    `recipe` has the constants of the method.
    """

    add: Callable[[State, NDArray[np.intp], NDArray[np.float64]], State]
    merge: Callable[[Sequence[Part], Part | None, int, int], State]
    recipe: Any


class Aggregator(NamedTuple):
    """Three pure functions, two views of the state, and the laws it does not obey.

    `confusion(state, workers)` gives P(worker says z | truth c), (P, C, C); `class_prior(state)`
    gives (C,). `exceptions` names a law of `evaluation.checks` this aggregator does not obey, with
    the reason. `counts` is there where the state is counts.

    Some methods have two more views. `draws(state, workers, n_draws, rng, n_chunks)` gives
    matrices from the posterior of workers whose labels came in `n_chunks` chunks, (S, P, C, C)
    per block of workers. `temperature(state, n_labels)` gives what the log-odds of items with that
    many labels are divided by to become probabilities, (N,).
    """

    name: str
    state_type: type
    init: Callable[[Chunk, int], State]
    update: Callable[[State, Chunk], tuple[State, Info]]
    aggregate: Callable[[State, Chunk], Aggregation]
    confusion: Callable[[State, NDArray[np.integer[Any]]], NDArray[np.float32]]
    class_prior: Callable[[State], NDArray[np.float64]]
    forget: Callable[[State, int], State]
    exceptions: Mapping[str, str] = {}
    counts: Counts | None = None
    draws: Draws | None = None
    temperature: Callable[[State, NDArray[np.float64]], NDArray[np.float64]] | None = None


def vote_shares(chunk: Chunk) -> NDArray[np.float64]:
    """The share of each item's labels that each class got, (N, C); no labels, no shares."""
    cell = chunk.item * chunk.n_classes + chunk.label
    votes: NDArray[np.float64] = np.zeros(chunk.n_items * chunk.n_classes)
    votes += np.bincount(cell, chunk.weight, len(votes))
    votes = votes.reshape(chunk.n_items, chunk.n_classes)
    total = votes.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(votes, total, out=np.zeros_like(votes), where=total > 0))


def vote_counts(chunk: Chunk) -> NDArray[np.float64]:
    """How each present worker's labels z went with the vote c, (P, C, C).

    An item's vote is one for the class with most labels, shared by tied classes; labels of
    workers already counted on the item in an earlier chunk are left out.
    """
    shares = vote_shares(chunk)
    best = shares >= shares.max(axis=1, keepdims=True, initial=0) - TIE_TOLERANCE
    majority = np.where(best, 1.0, 0.0) / best.sum(axis=1, keepdims=True)
    n_classes, n_workers = chunk.n_classes, len(chunk.workers)
    cell = (chunk.local_worker[:, None] * n_classes + np.arange(n_classes)) * n_classes
    counts = np.zeros(n_workers * n_classes * n_classes)
    counts += np.bincount(
        (cell + chunk.label[:, None]).ravel(),
        (chunk.counted_weight[:, None] * majority[chunk.item]).ravel(),
        len(counts),
    )
    return counts.reshape(n_workers, n_classes, n_classes)


def sum_by_item(values: Floats, chunk: Chunk) -> Floats:
    """Add up rows (B, C) of the same item, times their weight, (N, C)."""
    sums = np.zeros((chunk.n_items, values.shape[1]))
    for c in range(values.shape[1]):
        sums[:, c] = np.bincount(chunk.item, values[:, c] * chunk.weight, chunk.n_items)
    return sums


def consensus(
    log_scores: NDArray[np.floating[Any]],
    evidence: NDArray[np.floating[Any]],
    chunk: Chunk,
    seed: int,
    temperature: NDArray[np.float64] | None = None,
) -> Aggregation:
    """Give each item its most probable class; ties fall by seed and item.

    Parameters
    ----------
    log_scores
        (N, C), up to a constant per item.
    evidence
        What each label says for each class, before its weight, (B, C).
    temperature
        What the log scores are divided by to become probabilities, (N,); None for 1.
    """
    return Aggregation(
        aggregated=break_ties(log_scores, chunk.item_keys, seed),
        probs=softmax(log_scores if temperature is None else log_scores / temperature[:, None]),
        log_evidence=(evidence * chunk.weight[:, None]).astype(np.float32),
        temperature=temperature,
    )


def break_ties(
    log_scores: NDArray[np.floating[Any]], item_keys: NDArray[np.uint64], seed: int
) -> NDArray[np.int32]:
    """Choose the best class of each item; a tie falls to a class drawn by seed and item.

    The draw is a hash of the seed, the item's id and the class: the same item is always decided
    the same way, whatever else is in the chunk.

    Parameters
    ----------
    log_scores
        (N, C).
    item_keys
        (N,).
    """
    if not log_scores.size:
        return np.zeros(len(log_scores), np.int32)
    tied = log_scores >= log_scores.max(axis=1, keepdims=True) - TIE_TOLERANCE
    if np.count_nonzero(tied) == len(tied):
        return np.asarray(tied.argmax(axis=1), np.int32)
    classes = np.arange(log_scores.shape[1], dtype=np.uint64)
    lot = _mix(item_keys[:, None] ^ _mix(classes + np.uint64(seed * 0x10001 % 2**64)))
    return np.asarray(np.where(tied, lot >> np.uint64(1), 0).argmax(axis=1), np.int32)


def softmax(log_scores: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """Log scores (N, C) as probabilities."""
    probs = np.exp(log_scores - log_scores.max(axis=1, keepdims=True, initial=-np.inf))
    return np.asarray(probs / probs.sum(axis=1, keepdims=True), np.float32)


def _mix(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scramble 64 bits (the finaliser of SplitMix64)."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
