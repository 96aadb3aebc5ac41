"""The window: what a model shows that people can act on.

How sure it is of workers, why a task has its answer, which tasks want another label and whose.
It is as thin as the door: ids in and tables out. The mathematics is in `analysis/posterior.py` and
`analysis/explain.py`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.errors import LabelError, StateError
from labelquorum.ingest.chunks import Chunk, make_chunk
from labelquorum.ingest.labels import MISSING
from labelquorum.learn.aggregator import Aggregator
from labelquorum.learn.analysis.explain import TINY, adds_up, gains, odds, prospects, weight_by_item
from labelquorum.learn.model_state import Memory
from labelquorum.learn.reports import Explanation, id_index

__all__ = ["CANDIDATES", "DRAWS", "MOST_CLASSES", "Window", "check_share", "is_number"]

DRAWS = 400
"""Matrices that are drawn of each worker for his intervals."""

MOST_CLASSES = 64
"""Intervals are told for so many classes: the cost grows with their cube."""

CANDIDATES = 1000
"""So many workers, those with most labels, are considered for a task when none are named."""


class Window(ABC):
    """What a model shows; `Estimator` is its door."""

    @property
    @abstractmethod
    def _aggregator(self) -> Aggregator: ...

    @property
    @abstractmethod
    def _seed(self) -> int: ...

    @property
    @abstractmethod
    def loss_history_(self) -> list[float]:
        """One loss a chunk."""

    @abstractmethod
    def _fitted(self) -> Memory: ...

    @abstractmethod
    def _known(self) -> tuple[list[Hashable], NDArray[np.intp]]: ...

    # ── workers ──────────────────────────────────────────────────────────────────────────

    def skill_intervals(
        self, level: float = 0.95, workers: Iterable[Hashable] | None = None
    ) -> pd.DataFrame:
        """How often each worker is right, and between which bounds that is known.

        Parameters
        ----------
        level
            The probability with which the skill lies between `low` and `high`.
        workers
            Those asked about; all unless given.

        Returns
        -------
        table : index worker; skill, low, high, labels
        """
        ids, index = self._chosen(workers)
        memory = self._fitted()
        prior = self._aggregator.class_prior(memory.state)
        right = np.diagonal(self._aggregator.confusion(memory.state, index), axis1=1, axis2=2)
        low, high = self._bounds(
            index, level, right @ prior, lambda drawn: np.einsum("skcc,c->sk", drawn, prior)
        )
        labels = memory.book.gather(index)["labels"]
        columns = {"skill": right @ prior, "low": low, "high": high, "labels": labels}
        return pd.DataFrame(columns, index=id_index(ids, "worker"))

    def confusion_intervals(
        self, level: float = 0.95, workers: Iterable[Hashable] | None = None
    ) -> pd.DataFrame:
        """What each worker says of each class, and between which bounds that is known.

        Parameters
        ----------
        level
            The probability with which an entry lies between `low` and `high`.
        workers
            Those asked about; all unless given.

        Returns
        -------
        table : index worker, truth, label; prob, low, high
        """
        ids, index = self._chosen(workers)
        memory = self._fitted()
        confusion = self._aggregator.confusion(memory.state, index)
        low, high = self._bounds(index, level, confusion, lambda drawn: drawn)
        classes = id_index(memory.roster.classes, "label")
        parts = [id_index(ids, "worker"), classes.rename("truth"), classes]
        return pd.DataFrame(
            {"prob": confusion.ravel(), "low": low.ravel(), "high": high.ravel()},
            index=pd.MultiIndex.from_product(parts),
        )

    def _bounds(
        self, index: NDArray[np.intp], level: float, point: NDArray[Any], of: Any
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Quantiles of what draws of workers give; the point itself is always between them."""
        check_share("level", level, 0 < level < 1 if is_number(level) else False)
        if self._aggregator.draws is None:
            raise StateError(
                f"This {type(self).__name__} has no intervals: it keeps no posterior of workers. "
                "Use BiLA()."
            )
        n_classes = len(self._fitted().roster.classes)
        if n_classes > MOST_CLASSES:
            raise StateError(
                f"Intervals are told for at most {MOST_CLASSES} classes, beyond which they take "
                f"too long. This model knows {n_classes}. See skills_ and confusion_."
            )
        n_chunks = self._fitted().n_chunks
        rng = np.random.default_rng(self._seed)
        low, high = np.empty_like(point), np.empty_like(point)
        start = 0
        for drawn in self._aggregator.draws(self._fitted().state, index, DRAWS, rng, n_chunks):
            some = slice(start, start + drawn.shape[1])
            ends = np.quantile(of(drawn), [(1 - level) / 2, (1 + level) / 2], axis=0)
            low[some], high[some] = ends
            start = some.stop
        return np.minimum(low, point), np.maximum(high, point)

    # ── tasks ────────────────────────────────────────────────────────────────────────────

    def explain(self, task: Hashable) -> Explanation:
        """Why an open task has its answer, and what would flip it.

        Printed, it is a sentence: "t17: 'cat' with 0.93 because ann (+2.1) and bob (+1.9) outweigh
        eve (−1.4)." Labels of workers who were forgotten since are not told any more.
        """
        memory, method = self._fitted(), self._aggregator
        item = memory.ledger.get(task)
        if item is None:
            raise self._not_open(task)
        classes, worker_ids = memory.roster.classes, memory.roster.worker_ids
        labels = make_chunk(
            np.zeros(len(item.worker)),
            item.worker,
            item.label,
            weight=item.weight,
            n_items=1,
            n_workers=len(worker_ids),
            n_classes=len(classes),
        )
        temperature = item.temperature  # as the answer was given; today's may differ
        log_prior = adds_up(method, memory.state, labels)
        candidates, share = self._candidates()
        log_matrix = np.log(np.maximum(self._matrices(candidates), TINY))
        found = odds(item, temperature, log_prior, np.einsum("k,kcz->cz", share, log_matrix))
        order = np.argsort(-found.by_label, kind="stable")
        index = id_index([worker_ids[k] for k in item.worker[order].tolist()], "worker")
        said = {
            "label": [classes[z] for z in item.label[order].tolist()],
            "weight": item.weight[order],
            "log_odds": found.by_label[order],
        }
        columns = id_index(classes[: len(item.probs)], "label")
        return Explanation(
            task=task,
            label=classes[item.aggregated],
            confidence=float(item.probs[item.aggregated]),
            runner_up=None if found.runner_up == MISSING else classes[found.runner_up],
            prior_log_odds=found.prior,
            workers=pd.DataFrame(said, index=index),
            evidence=pd.DataFrame(item.log_evidence[order], index=index, columns=columns),
            total_log_odds=found.total,
            heat=temperature,
            flips=[worker_ids[item.worker[row]] for row in found.removals],
            further_labels=found.further_labels,
            truth_given=item.gold != MISSING,
        )

    def pending(self, threshold: float = 0.95) -> pd.DataFrame:
        """Open tasks that want another label: those answered with less confidence than this.

        Tasks whose truth was given want none.

        Returns
        -------
        table : index task, the least confident first; label, confidence, labels
        """
        check_share("threshold", threshold, is_number(threshold) and 0 <= threshold <= 1)
        memory, (chunk, probs, aggregated, gold) = self._fitted(), self._open()
        confidence = np.take_along_axis(probs, aggregated[:, None].astype(np.intp), axis=1)[:, 0]
        rows = np.flatnonzero((confidence < threshold) & (gold == MISSING))
        rows = rows[np.argsort(confidence[rows], kind="stable")]
        tasks = list(memory.ledger)
        return pd.DataFrame(
            {
                "label": [memory.roster.classes[c] for c in aggregated[rows].tolist()],
                "confidence": confidence[rows],
                "labels": np.bincount(chunk.item, minlength=chunk.n_items)[rows],
            },
            index=id_index([tasks[row] for row in rows], "task"),
        )

    def expected_gain(
        self,
        tasks: Iterable[Hashable] | None = None,
        workers: Iterable[Hashable] | None = None,
        top: int | None = None,
    ) -> pd.DataFrame:
        """What one more label would likely do: which tasks to ask about, and whom.

        The gain is by how much the label would raise the probability that the answer is right,
        on average over what the worker may say. Tasks whose truth was given are left out.

        Parameters
        ----------
        tasks
            Open tasks; all of them unless given.
        workers
            Those who may be asked. Unless given, the gain is the mean over the thousand workers
            with most labels, by how many they gave, and the best of them is named.
        top
            At most so many rows.

        Returns
        -------
        table : index task, the largest gain first; gain, confidence, expected_confidence,
            best_worker, best_gain. With `workers`: index task, worker; gain, confidence,
            expected_confidence. Nobody is asked about a task he has labelled; where all have,
            the gain is that of somebody new who is like them, and no best worker is named.
        """
        if top is not None and (not is_number(top) or top != int(top) or top < 0):
            raise StateError(f"`top` must be a whole number ≥ 0, or None. Got {top!r}.")
        memory, (chunk, probs, _, gold) = self._fitted(), self._open()
        place = {task: row for row, task in enumerate(memory.ledger)}
        wanted = list(place) if tasks is None else _several("tasks", tasks)
        for task in wanted:
            if task not in place:
                raise self._not_open(task)
        places = np.array([place[task] for task in wanted], np.intp)
        rows = places[gold[places] == MISSING]
        probs = probs[rows].astype(np.float64)
        temperature = self._temperature(weight_by_item(chunk)[rows] + 1)
        item_ids = [wanted[row] for row in np.flatnonzero(gold[places] == MISSING)]
        if workers is None:
            table = self._gain_by_task(chunk, rows, item_ids, probs, temperature)
        else:
            table = self._gain_by_worker(chunk, rows, item_ids, probs, temperature, workers)
        return table.sort_values("gain", ascending=False, kind="stable").head(
            len(table) if top is None else top
        )

    def _gain_by_task(
        self,
        chunk: Chunk,
        rows: NDArray[np.intp],
        item_ids: list[Hashable],
        probs: Floats,
        temperature: Floats,
    ) -> pd.DataFrame:
        candidates, share = self._candidates()
        asked = _asked(chunk, rows, candidates)
        found = prospects(probs, self._matrices(candidates), temperature, share, asked)
        confidence = probs.max(axis=1, initial=0)
        ids = [self._fitted().roster.worker_ids[k] for k in candidates.tolist()]
        return pd.DataFrame(
            {
                "gain": found.mean,
                "confidence": confidence,
                "expected_confidence": confidence + found.mean,
                "best_worker": [None if k == MISSING else ids[k] for k in found.worker.tolist()],
                "best_gain": found.gain,
            },
            index=id_index(item_ids, "task"),
        )

    def _gain_by_worker(
        self,
        chunk: Chunk,
        rows: NDArray[np.intp],
        item_ids: list[Hashable],
        probs: Floats,
        temperature: Floats,
        workers: Iterable[Hashable],
    ) -> pd.DataFrame:
        ids, chosen = self._chosen(workers)
        table = gains(probs, self._matrices(chosen), temperature)
        asked = _asked(chunk, rows, chosen)
        free = np.ones(table.shape, bool)
        free[asked.item, asked.worker] = False
        item, worker = np.nonzero(free)
        confidence, gain = probs.max(axis=1, initial=0)[item], table[item, worker]
        parts = [
            id_index([item_ids[i] for i in item.tolist()], "task"),
            id_index([ids[k] for k in worker.tolist()], "worker"),
        ]
        return pd.DataFrame(
            {"gain": gain, "confidence": confidence, "expected_confidence": confidence + gain},
            index=pd.MultiIndex.from_arrays(parts),
        )

    # ── what these stand on ──────────────────────────────────────────────────────────────

    def _open(self) -> tuple[Chunk, NDArray[np.float32], NDArray[np.int32], NDArray[np.int32]]:
        """Labels, answers and given truths of the open tasks."""
        memory = self._fitted()
        n_classes = len(memory.roster.classes)
        chunk = memory.ledger.to_chunk(len(memory.roster.worker_ids), n_classes)
        return chunk, *memory.ledger.answers(n_classes), memory.ledger.gold

    def _temperature(self, n_labels: Floats) -> Floats:
        """What log-odds are divided by before they are told as probabilities, (N,)."""
        if self._aggregator.temperature is None:
            return np.ones(len(n_labels))
        return self._aggregator.temperature(self._fitted().state, n_labels)

    def _matrices(self, workers: NDArray[np.intp]) -> Floats:
        return self._aggregator.confusion(self._fitted().state, workers).astype(np.float64)

    def _candidates(self) -> tuple[NDArray[np.intp], Floats]:
        """The workers with most labels, and how likely the next label is theirs, (P,) each."""
        memory, (_, index) = self._fitted(), self._known()
        labels = memory.book.gather(index)["labels"]
        busiest = np.sort(np.argsort(-labels, kind="stable")[:CANDIDATES])
        # A label each beforehand: of workers with a history none may have come yet.
        share = labels[busiest] + 1.0
        return index[busiest], share / share.sum()

    def _chosen(
        self, workers: Iterable[Hashable] | None
    ) -> tuple[Sequence[Hashable], NDArray[np.intp]]:
        ids, index = self._known()
        if workers is None:
            return ids, index
        asked = _several("workers", workers)
        found = [self._fitted().roster.worker_index(worker) for worker in asked]
        for worker, k in zip(asked, found, strict=True):
            if k is None:
                raise LabelError(
                    f"Worker {worker!r} is not known. See model.workers_ for those who are."
                )
        return asked, np.array(found, np.intp)

    def _not_open(self, task: Hashable) -> LabelError:
        return LabelError(
            f"Task {task!r} is not open: its labels are not held any more, or never came. "
            "Check the id, or set open_items= higher to hold more tasks."
        )


def is_number(value: Any) -> bool:
    """Whether a value is a finite number."""
    return isinstance(value, Real) and math.isfinite(value)


def check_share(name: str, value: Any, right: bool) -> None:
    """Refuse a setting that is not from 0 to 1."""
    if not right:
        raise StateError(f"`{name}` must be a number between 0 and 1. Got {value!r}.")


def _several(name: str, ids: Any) -> list[Hashable]:
    """Each once, in the order given."""
    if isinstance(ids, str) or not isinstance(ids, Iterable):
        raise StateError(f"`{name}` must be a list of ids, even of one. Got {ids!r}.")
    return list(dict.fromkeys(ids))


def _asked(chunk: Chunk, rows: NDArray[np.intp], workers: NDArray[np.intp]) -> Chunk:
    """Labels of these workers on these items, both as positions among those given."""
    item = np.full(chunk.n_items, -1, np.intp)
    item[rows] = np.arange(len(rows))
    worker = np.full(chunk.n_workers, -1, np.intp)
    worker[workers] = np.arange(len(workers))
    label = (item[chunk.item] >= 0) & (worker[chunk.worker] >= 0)
    return make_chunk(
        item[chunk.item[label]],
        worker[chunk.worker[label]],
        chunk.label[label],
        n_items=len(rows),
        n_workers=len(workers),
        n_classes=chunk.n_classes,
    )
