"""Ways to run any aggregator on a stream: on each chunk alone, or on all labels again and again."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum.ingest.chunks import Chunk, make_chunk
from labelquorum.ingest.labels import MISSING
from labelquorum.learn.aggregator import Aggregator, Draws
from labelquorum.learn.model_file import state_arrays, state_from_arrays

__all__ = ["WRAPPERS", "RefitState", "refit", "split_name", "windowed"]

Leaves = dict[str, NDArray[Any]]


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

    labels: Leaves  # "item_key", "worker", "label", "weight", (L,) each
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
            item_keys=item_keys,
            worker_keys=keys,
            n_workers=len(keys),
            n_classes=n_classes,
        )
        return aggregator.update(aggregator.init(everything, seed), everything)

    def init(chunk: Chunk, seed: int) -> RefitState:
        nothing = {name: values[:0] for name, values in _labels(chunk).items()}
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
        else lambda state, n_labels: temperature(unpack(state), n_labels),
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
    return {
        "item_key": chunk.item_keys[chunk.item],
        "worker": chunk.worker,
        "label": chunk.label,
        "weight": chunk.weight,
    }


def _replace_labels(kept: Leaves, new: Leaves) -> Leaves:
    """Put labels after those kept; a worker's earlier labels of the same item give way."""
    pair = [("item_key", np.uint64), ("worker", np.int32)]

    def pairs(labels: Leaves) -> NDArray[Any]:
        packed = np.empty(len(labels["worker"]), pair)
        packed["item_key"], packed["worker"] = labels["item_key"], labels["worker"]
        return packed

    stays = ~np.isin(pairs(kept), pairs(new))
    return {name: np.concatenate([kept[name][stays], new[name]]) for name in new}
