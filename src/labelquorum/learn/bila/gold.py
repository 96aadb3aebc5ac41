"""Gold tasks: what workers said of tasks whose truth is known, kept to learn how far to trust them.

The counts hold a gold task as one among many. `stacking.py` learns from gold tasks alone, so
their labels are kept with the state, by the keys of tasks and workers: of at most MAX_TASKS tasks
and MAX_LABELS labels. Where there are more, those with the smallest keys stay. A key is a hash of
an id, so they are a random sample, the same whatever the order in which gold came, and the samples
of two models merge into the sample of both.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.ingest.chunks import Chunk, take_items
from labelquorum.ingest.labels import MISSING

MAX_TASKS, MAX_LABELS = 512, 20_000
"""Gold that is kept: a stack of 512 tasks is fitted in a tenth of a second, and 20,000 labels are
0.6 MB of state."""

_ROWS = ("task", "worker", "group", "label", "weight", "score")


class GoldTasks(NamedTuple):
    """Gold tasks in the order of their keys, and their labels in the order of tasks and workers."""

    key: NDArray[np.uint64]  # (G,)
    truth: NDArray[np.int32]  # (G,) the class
    log_odds: NDArray[np.float32]  # (G, C) of each class by the worker models alone
    task: NDArray[np.int32]  # (R,) position among the tasks
    worker: NDArray[np.uint64]  # (R,) key
    group: NDArray[np.uint64]  # (R,) key of the worker's `model`; 0 for none
    label: NDArray[np.int32]  # (R,)
    weight: NDArray[np.float32]  # (R,) those of a worker on a task add up to at most 1
    score: NDArray[np.float32]  # (R,) NaN for none
    seen: NDArray[np.int64]  # () how many gold tasks were learned from, those not kept included

    @classmethod
    def read(cls, arrays: Mapping[str, NDArray[Any]]) -> "GoldTasks":
        """Those of a state, which has none at the start."""
        if arrays:
            return cls(**{name: arrays[name] for name in cls._fields})
        nothing = np.zeros(0)
        rows = dict.fromkeys(_ROWS, nothing)
        return cls(
            nothing.astype(np.uint64),
            nothing.astype(np.int32),
            np.zeros((0, 0), np.float32),
            **_typed(rows),
            seen=np.array(0),
        )

    def without_worker(self, key: int) -> "GoldTasks":
        """Without the labels of a worker who is forgotten."""
        return self._take(self.worker != np.uint64(key))

    def without_tasks(self, keys: NDArray[np.uint64]) -> "GoldTasks":
        """Without these tasks, as far as they are kept."""
        kept = ~np.isin(self.key, keys)
        left, place = self._take(kept[self.task]), np.cumsum(kept) - 1
        return left._replace(
            key=self.key[kept],
            truth=self.truth[kept],
            log_odds=self.log_odds[kept],
            task=place[left.task].astype(np.int32),
        )

    def unchanged_since(self, other: "GoldTasks") -> NDArray[np.uint64]:
        """The keys of tasks that have the same truth and the same labels in another."""
        mine, theirs = _by_task(self), _by_task(other)
        return np.array([key for key in mine if theirs.get(key) == mine[key]], np.uint64)

    def with_classes(self, places: NDArray[np.intp], n_classes: int) -> "GoldTasks":
        """With class c as `places[c]` among more classes."""
        wide = np.full((len(self.key), n_classes), -MAX_LOG_ODDS, np.float32)
        wide[:, places[: self.log_odds.shape[1]]] = self.log_odds
        return self._replace(
            truth=places[self.truth].astype(np.int32),
            label=places[self.label].astype(np.int32),
            log_odds=wide,
        )

    def _take(self, rows: NDArray[np.bool_]) -> "GoldTasks":
        return self._replace(**{name: getattr(self, name)[rows] for name in _ROWS})


MAX_LOG_ODDS = 5.0
"""Log-odds beyond are taken for this much when a stack is fitted: a model that was sure, and wrong,
on one gold task would otherwise decide alone."""


def gold_items(chunk: Chunk) -> tuple[Chunk | None, NDArray[np.uint64]]:
    """The items of a chunk whose truth is given, None without any, and keys of those withdrawn."""
    if chunk.gold is None:
        return None, chunk.item_keys[:0]
    given, has_labels = chunk.gold != MISSING, chunk.weight_by_item > 0
    items = given & has_labels
    return (
        take_items(chunk, items) if items.any() else None,
        chunk.item_keys[given & ~has_labels],
    )


def vote_weights(chunk: Chunk) -> Floats:
    """The weight of each label, (B,); several of one worker on one item share that of one."""
    weight = chunk.weight.astype(np.float64)
    first = chunk.first_votes
    return weight if first is None else weight / np.bincount(first, minlength=len(first))[first]


def remember(gold: GoldTasks, chunk: Chunk, log_odds: Floats) -> GoldTasks:
    """Gold with the items of a chunk, which all have a truth; what was kept of them is replaced."""
    assert chunk.gold is not None
    groups, counts = chunk.worker_groups, chunk.weight > 0  # others were withdrawn
    rows: dict[str, NDArray[Any]] = {
        "task": chunk.item,
        "worker": chunk.worker_keys[chunk.local_worker],
        "group": np.zeros(chunk.n_labels) if groups is None else groups[chunk.local_worker],
        "label": chunk.label,
        "weight": vote_weights(chunk),
        "score": np.full(chunk.n_labels, np.nan) if chunk.score is None else chunk.score,
    }
    news = GoldTasks(
        chunk.item_keys,
        chunk.gold,
        np.clip(log_odds, -MAX_LOG_ODDS, MAX_LOG_ODDS).astype(np.float32),
        **_typed({name: column[counts] for name, column in rows.items()}),
        seen=np.array(chunk.n_items),
    )
    return join([gold, news], chunk.n_classes)


def join(parts: Iterable[GoldTasks], n_classes: int) -> GoldTasks:
    """Gold of several parts; a task that is in two is taken from the later one."""
    everything = [part.with_classes(np.arange(n_classes), n_classes) for part in parts]
    keys = np.concatenate([part.key for part in everything])
    last = len(keys) - 1 - np.unique(keys[::-1], return_index=True)[1]  # by key, ascending
    starts = np.cumsum([0, *(len(part.key) for part in everything)])
    task = np.concatenate(
        [part.task + start for part, start in zip(everything, starts, strict=False)]
    )
    n_labels = np.cumsum(np.bincount(task, minlength=len(keys))[last])
    kept = last[: max(1, min(MAX_TASKS, int((n_labels <= MAX_LABELS).sum())))]
    place = np.full(len(keys), MISSING)
    place[kept] = np.arange(len(kept))
    columns = {
        name: np.concatenate([getattr(part, name) for part in everything]) for name in _ROWS[1:]
    }
    task = place[task]
    order = np.lexsort((columns["label"], columns["worker"], task))
    order = order[task[order] != MISSING]
    return GoldTasks(
        keys[kept],
        np.concatenate([part.truth for part in everything])[kept],
        np.concatenate([part.log_odds for part in everything])[kept],
        **_typed({"task": task[order], **{n: column[order] for n, column in columns.items()}}),
        seen=np.array(sum(int(part.seen) for part in everything)),
    )


def _by_task(gold: GoldTasks) -> dict[int, tuple[Any, ...]]:
    """The truth and the labels of each task, by its key."""
    edges = np.searchsorted(gold.task, np.arange(len(gold.key) + 1))
    columns = [getattr(gold, name) for name in _ROWS[1:]]
    return {
        key: (int(gold.truth[n]), *(c[edges[n] : edges[n + 1]].tobytes() for c in columns))
        for n, key in enumerate(gold.key.tolist())
    }


def _typed(rows: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    types = (np.int32, np.uint64, np.uint64, np.int32, np.float32, np.float32)
    return {name: rows[name].astype(kind) for name, kind in zip(_ROWS, types, strict=True)}
