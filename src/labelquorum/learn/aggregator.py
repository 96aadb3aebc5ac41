"""The contract: an aggregator is three pure functions over a state handed from one to the next.

    init(chunk, seed) → State    update(state, chunk) → (State, Info)    aggregate(state, chunk)

`State` is what the next step needs, `Info` is diagnostics, `Aggregation` is what users see.
Two wrappers run any aggregator on a stream: `windowed` on each chunk alone, `refit` on all labels
again and again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.ingest.chunks import Chunk, make_chunk, scramble
from labelquorum.ingest.labels import MISSING
from labelquorum.learn.model_file import state_arrays, state_from_arrays

State = Any
Info = Any
Leaves = dict[str, NDArray[Any]]

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
    in_doubt: bool = False  # answers are votes, because the labels do not identify them


class Part(NamedTuple):
    """A state, and where its K workers and C classes stand among those of several states."""

    state: State
    workers: NDArray[np.intp]  # (K,) MISSING where a worker was forgotten
    classes: NDArray[np.intp]  # (C,)


class Counts(NamedTuple):
    """What can be done where the state is counts; such a method also learns from true labels.

    `add(state, workers, counts)` adds labels z of workers on items of class c, (P, C, C).
    `merge(parts, base, n_workers, n_classes)` adds up what each part counted beyond the base.
    `forget_gold(state, key)` removes what the worker with this key said of gold tasks.
    `recipe` has the constants of the method.
    """

    add: Callable[[State, NDArray[np.intp], NDArray[np.float64]], State]
    merge: Callable[[Sequence[Part], Part | None, int, int], State]
    forget_gold: Callable[[State, int], State]
    recipe: Any


class Aggregator(NamedTuple):
    """Three pure functions, two views of the state, and the laws it does not obey.

    `confusion(state, workers)` gives P(worker says z | truth c), (P, C, C); `class_prior(state)`
    gives (C,). `exceptions` names a law of `evaluation.checks` this aggregator does not obey, with
    the reason. `counts` is there where the state is counts.

    Some methods have two more views. `draws(state, workers, n_draws, rng, n_chunks)` gives
    matrices from the posterior of workers whose labels came in `n_chunks` chunks, (S, P, C, C)
    per block of workers. `temperature(state, n_workers, n_labels)` gives what the log-odds of items
    with labels of that many workers, and that many labels, are divided by to become probabilities,
    (N,). `doubt(state)` tells whether the labels identify the answers, a `Doubt`, and
    `readings(state, chunk)` what the vote and the worker model make of items, (N, C) each.
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
    temperature: Callable[[State, Floats, Floats], Floats] | None = None
    doubt: Callable[[State], Any] | None = None
    readings: Callable[[State, Chunk], tuple[Floats, Floats]] | None = None


def vote_counts(chunk: Chunk) -> NDArray[np.float64]:
    """How each present worker's labels z went with the vote c, (P, C, C).

    An item's vote is one for the class with most labels, shared by tied classes; labels of
    workers already counted on the item in an earlier chunk are left out.
    """
    shares = chunk.vote_shares
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


def one_row_per_worker(chunk: Chunk, log_evidence: NDArray[Any]) -> tuple[Chunk, NDArray[Any]]:
    """Labels of a worker on an item as one row: their most frequent label, all they said."""
    first = chunk.first_votes
    if first is None:
        return chunk, log_evidence
    heaviest = np.lexsort((chunk.label, -_weight_of_label(chunk), first))
    rows = heaviest[np.flatnonzero(np.diff(first[heaviest], prepend=-1))]
    starts = np.unique(first)
    weight = np.add.reduceat(chunk.weight, starts)
    merged = chunk._replace(
        item=chunk.item[rows],
        worker=chunk.worker[rows],
        label=chunk.label[rows],
        weight=weight,
        known=chunk.known[rows],
        replaced=chunk.replaced[rows],
        replaced_weight=chunk.replaced_weight[rows],
    )
    return merged, np.add.reduceat(log_evidence, starts, axis=0)


def _weight_of_label(chunk: Chunk) -> Floats:
    """What all labels of this class by this worker on this item weigh together, (B,)."""
    cell = np.zeros(chunk.n_labels, np.intp)
    change = np.zeros(chunk.n_labels, bool)
    for column in (chunk.item, chunk.worker, chunk.label):
        change[1:] |= column[1:] != column[:-1]
    np.cumsum(change, out=cell)
    return np.bincount(cell, chunk.weight)[cell].astype(np.float64)


def sum_by_item(values: Floats, chunk: Chunk) -> Floats:
    """Add up rows (B, C) of the same item, times their weight, (N, C)."""
    sums = np.zeros((chunk.n_items, values.shape[1]))
    item = chunk.item.astype(np.intp)  # once, and not for every class
    for c in range(values.shape[1]):
        sums[:, c] = np.bincount(item, values[:, c] * chunk.weight, chunk.n_items)
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
        log_evidence=np.multiply(
            evidence,
            chunk.weight[:, None],
            out=np.empty(evidence.shape, np.float32),
            casting="same_kind",  # computed as they are, and rounded once
        ),
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
    tied = log_scores >= _best(log_scores) - TIE_TOLERANCE
    best: NDArray[np.int32] = tied.argmax(axis=1).astype(np.int32)
    if np.count_nonzero(tied) != len(tied):
        rows = np.flatnonzero(tied.sum(axis=1) > 1)
        classes = np.arange(log_scores.shape[1], dtype=np.uint64)
        lot = scramble(
            item_keys[rows, None] ^ scramble(classes + np.uint64(seed * 0x10001 % 2**64))
        )
        best[rows] = np.where(tied[rows], lot >> np.uint64(1), 0).argmax(axis=1)
    return best


def softmax(log_scores: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """Log scores (N, C) as probabilities."""
    probs = log_scores - _best(log_scores)
    np.exp(probs, out=probs)
    probs /= _total(probs)
    return np.asarray(probs, np.float32)


FEW_CLASSES = 8
"""Below this many classes, rows are reduced class by class, ten times faster. NumPy adds fewer
than eight numbers one after the other, so that the sum is the same to the last bit."""


def _best(log_scores: NDArray[Any]) -> NDArray[Any]:
    """The largest of each row, (N, 1)."""
    if 0 < log_scores.shape[1] < FEW_CLASSES:
        return np.asarray(reduce(np.maximum, log_scores.T))[:, None]
    return np.asarray(log_scores.max(axis=1, keepdims=True, initial=-np.inf))


def _total(probs: NDArray[Any]) -> NDArray[Any]:
    """The sum of each row, (N, 1)."""
    if 0 < probs.shape[1] < FEW_CLASSES:
        return np.asarray(reduce(np.add, probs.T))[:, None]
    return np.asarray(probs.sum(axis=1, keepdims=True))


# ── wrappers ─────────────────────────────────────────────────────────────────────────────


def windowed(aggregator: Aggregator) -> Aggregator:
    """Discard the state at each chunk, so that the model sees that chunk alone.

    This is how the BiLA paper runs EM and MMCE on a stream: its oEM and oMMCE.
    """

    def update(state: Any, chunk: Chunk) -> tuple[Any, Any]:
        if not chunk.n_labels:
            return state, aggregator.update(state, chunk)[1]
        # The state that knew labels of open items is gone: to the new one they are all news.
        state, info = aggregator.update(aggregator.init(chunk, state.seed), _as_news(chunk))
        return state, _without_counts(info)

    return aggregator._replace(
        name=f"windowed:{aggregator.name}",
        update=update,
        counts=None,
        draws=_of_one_chunk(aggregator.draws),
    )


class RefitState(NamedTuple):
    """Every label so far, and the state they were last fitted to."""

    labels: Leaves  # "item_key", "worker", "label", "weight", (L,) each; "score" once there is one
    worker_keys: NDArray[np.uint64]  # (K,)
    fit: Leaves  # the aggregator's own state, by name
    seed: int


def refit(aggregator: Aggregator) -> Aggregator:
    """Keep all labels and fit them again at each chunk: the usual way without an online method.

    The cost of a chunk grows with all that came before, and so does the memory.
    """

    def unpack(state: RefitState) -> Any:
        return state_from_arrays(aggregator.state_type, state.fit)

    def fit(labels: Leaves, keys: NDArray[np.uint64], n_classes: int, seed: int) -> Any:
        item_keys, item = np.unique(labels["item_key"], return_inverse=True)
        everything = make_chunk(
            item,
            labels["worker"],
            labels["label"],
            weight=labels["weight"],
            score=labels.get("score"),
            item_keys=item_keys,
            worker_keys=keys,
            n_workers=len(keys),
            n_classes=n_classes,
        )
        return aggregator.update(aggregator.init(everything, seed), everything)

    def init(chunk: Chunk, seed: int) -> RefitState:
        nothing = {n: a[:0] for n, a in _labels(chunk).items() if n != "score"}
        return RefitState(
            nothing, np.zeros(0, np.uint64), state_arrays(aggregator.init(chunk, seed)), seed
        )

    def update(state: RefitState, chunk: Chunk) -> tuple[RefitState, Any]:
        if not chunk.n_labels:
            return state, aggregator.update(unpack(state), chunk)[1]
        labels = _replace_labels(state.labels, _labels(chunk))
        keys = np.zeros(chunk.n_workers, np.uint64)
        keys[: len(state.worker_keys)] = state.worker_keys
        keys[chunk.workers] = chunk.worker_keys
        inner, info = fit(labels, keys, chunk.n_classes, state.seed)
        return RefitState(labels, keys, state_arrays(inner), state.seed), _without_counts(info)

    def forget(state: RefitState, worker: int) -> RefitState:
        others = state.labels["worker"] != worker
        keys = state.worker_keys.copy()
        keys[worker] = 0  # it is a hash of their id
        return state._replace(
            worker_keys=keys,
            labels={name: values[others] for name, values in state.labels.items()},
            fit=state_arrays(aggregator.forget(unpack(state), worker)),
        )

    draws, temperature = _of_one_chunk(aggregator.draws), aggregator.temperature
    doubt, readings = aggregator.doubt, aggregator.readings
    return Aggregator(
        name=f"refit:{aggregator.name}",
        state_type=RefitState,
        init=init,
        update=update,
        aggregate=lambda state, chunk: aggregator.aggregate(unpack(state), chunk),
        confusion=lambda state, workers: aggregator.confusion(unpack(state), workers),
        class_prior=lambda state: aggregator.class_prior(unpack(state)),
        forget=forget,
        exceptions={
            **{law: why for law, why in aggregator.exceptions.items() if law != "cold_start"},
            "memory": "it keeps every label, to fit them again",
        },
        draws=None if draws is None else lambda state, *rest: draws(unpack(state), *rest),
        temperature=None
        if temperature is None
        else lambda state, *numbers: temperature(unpack(state), *numbers),
        doubt=None if doubt is None else lambda state: doubt(unpack(state)),
        readings=None if readings is None else lambda state, chunk: readings(unpack(state), chunk),
    )


WRAPPERS = {"windowed": windowed, "refit": refit}
"""By what stands before the colon of a method's name."""


def split_name(method: str) -> tuple[Callable[[Aggregator], Aggregator] | None, str]:
    """Part `windowed:mmce` into the wrapper and the name of what it wraps; most have no wrapper."""
    prefix, _, name = method.partition(":")
    return (WRAPPERS[prefix], name) if prefix in WRAPPERS else (None, method)


def _as_news(chunk: Chunk) -> Chunk:
    return chunk._replace(
        known=np.zeros_like(chunk.known),
        replaced=np.full_like(chunk.replaced, MISSING),
        replaced_weight=np.zeros_like(chunk.replaced_weight),
        counted_probs=None,
    )


def _without_counts(info: Any) -> Any:
    """What an update did, but by what items were counted: that is not taken back one by one."""
    return info._replace(counted_probs=None) if hasattr(info, "counted_probs") else info


def _of_one_chunk(draws: Draws | None) -> Draws | None:
    """Draws of a state that was made of one chunk, however many there were."""
    if draws is None:
        return None
    return lambda state, workers, n_draws, rng, n_chunks: draws(state, workers, n_draws, rng, 1)


def _labels(chunk: Chunk) -> Leaves:
    labels: Leaves = {
        "item_key": chunk.item_keys[chunk.item],
        "worker": chunk.worker,
        "label": chunk.label,
        "weight": chunk.weight,
    }
    return labels if chunk.score is None else {**labels, "score": chunk.score}


def _replace_labels(kept: Leaves, new: Leaves) -> Leaves:
    """Put labels after those kept; a worker's earlier labels of the same item give way."""
    pair = [("item_key", np.uint64), ("worker", np.int32)]

    def pairs(labels: Leaves) -> NDArray[Any]:
        packed = np.empty(len(labels["worker"]), pair)
        packed["item_key"], packed["worker"] = labels["item_key"], labels["worker"]
        return packed

    def column(labels: Leaves, name: str) -> NDArray[Any]:
        # Only "score" may lack.
        found = labels.get(name)
        return np.full(len(labels["worker"]), np.nan, np.float32) if found is None else found

    stays = ~np.isin(pairs(kept), pairs(new))
    return {
        name: np.concatenate([column(kept, name)[stays], column(new, name)])
        for name in {**kept, **new}
    }
