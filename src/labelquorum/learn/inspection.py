"""Inspection: the tables of a model that people act on.

How well each worker is known, why a task has its answer, which tasks need another label and from
whom, who is suspicious, and when to stop asking. Ids in, tables out: the mathematics is in
`analysis/`. The parameters and columns are documented at `Estimator`, which delegates to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.errors import LabelError, StateError
from labelquorum.ingest.chunks import Chunk, id_order, make_chunk
from labelquorum.ingest.labels import MISSING, LabelSpace
from labelquorum.ingest.readers import read_labels
from labelquorum.ingest.vocabulary import Roster
from labelquorum.ingest.worker_attributes import attribute_columns
from labelquorum.learn.aggregator import one_row_per_worker
from labelquorum.learn.analysis import drift
from labelquorum.learn.analysis import flags as worker_flags
from labelquorum.learn.analysis import stopping as early_stopping
from labelquorum.learn.analysis.certificate import (
    Audit,
    Certificate,
    certificate,
)
from labelquorum.learn.analysis.collusion import Pairs, pair_scores
from labelquorum.learn.analysis.expected_error import ExpectedError, expected_error
from labelquorum.learn.analysis.explain import TINY, adds_up, gains, odds, prospects
from labelquorum.learn.analysis.intervals import wilson
from labelquorum.learn.audit import audit_of, read_audit
from labelquorum.learn.jury import Jury, jury_report
from labelquorum.learn.lazy import pd
from labelquorum.learn.model import Model, unknown_worker
from labelquorum.learn.reports import (
    Agreement,
    Doubt,
    Explanation,
    Report,
    agreement_report,
    id_index,
    item_report,
    worker_report,
)

__all__ = ["Inspection", "agreement"]

DRAWS = 400
"""Matrices drawn per worker for intervals: the 95 % bounds then rest on ten draws at each end."""

MAX_INTERVAL_CLASSES = 64
"""Classes up to which intervals are computed: the cost grows with their cube."""

MAX_POSTERIOR_CLASSES = 20
"""Classes up to which bounds of skills in a jury and in the service are those of the posterior: for
1,000 workers and 60 classes these take 25 s."""

MAX_MATRIX_NUMBERS = 1 << 22
"""Numbers in the matrices that are made at a time where only their diagonals are asked for."""

MAX_CANDIDATES = 1000
"""Workers considered for a task when none are named: those with most labels."""

MAX_AGREEMENT_WORKERS = 100
"""Workers that are compared with one another unless more are asked for: those with most labels."""

MAX_JURY_WORKERS = 300
"""Judges in the report on a jury unless more are asked for: those with most labels. The cost grows
with the tasks times their square."""

MAX_JURY_TASKS = 20_000
"""Tasks it rests on, the newest: with 300 judges their errors take 48 MB."""


def agreement(
    labels: Any,
    workers: Iterable[Hashable] | None = None,
    level: float = 0.95,
    max_workers: int = MAX_AGREEMENT_WORKERS,
) -> Agreement:
    """How well each worker agrees with each other one, beyond chance and without a model.

    Parameters
    ----------
    labels
        As `partial_fit` takes them. Where a worker has labelled a task more than once, each label
        counts by its share.
    workers
        The workers to compare. Unless given, those with most labels, `max_workers` of them: the
        cost grows with the labels times the workers.
    level
        The probability with which kappa lies between `low` and `high`.

    Returns
    -------
    agreement : the tables `kappa`, `low`, `high`, `agreement` and `shared`, worker × worker;
        `left_out` says how many workers are not in them, `pairs()` gives one row per pair

    Examples
    --------
    >>> votes = {"t1": {"ann": "x", "bob": "x"}, "t2": {"ann": "y", "bob": "y"},
    ...          "t3": {"ann": "x", "bob": "y"}, "t4": {"ann": "x", "bob": "x"}}
    >>> agreement(votes).kappa.round(2)
    other    ann  bob
    worker
    ann      NaN  0.5
    bob      0.5  NaN
    """
    roster = Roster(LabelSpace(repeats="all"))
    intake = roster.read(read_labels(labels, roster.space))
    roster.admit(intake)
    asked = None if workers is None else _several("workers", workers)
    return _agreement(intake.chunk, roster, asked, level, max_workers)


def _agreement(
    chunk: Chunk, roster: Roster, asked: list[Hashable] | None, level: float, max_workers: int
) -> Agreement:
    _check_share("level", level, is_open=True)
    _check_whole("max_workers", max_workers)
    if asked is None:
        index = _busiest(chunk, max_workers)
    else:
        index = np.array([_index_of(worker, roster) for worker in asked], np.intp)
    return agreement_report(chunk, roster.worker_ids, index, level)


def _busiest(chunk: Chunk, max_workers: int) -> NDArray[np.intp]:
    """The workers with most labels, ascending."""
    labels = np.bincount(chunk.worker, chunk.weight > 0, chunk.n_workers)
    busiest = np.argsort(-labels, kind="stable")[:max_workers]
    return np.sort(busiest[labels[busiest] > 0])


class Inspection:
    """What a model shows of its workers and its open tasks."""

    def __init__(self, model: Model) -> None:
        self._model, self._method = model, model.aggregator

    # ── workers ──────────────────────────────────────────────────────────────────────────

    def confusion(self, workers: NDArray[np.intp]) -> NDArray[np.float32]:
        """P(worker says z | truth c) of the workers with these indices, (P, C, C)."""
        return self._method.confusion(self._model.fitted().state, workers)

    def right(self, workers: NDArray[np.intp]) -> NDArray[np.float32]:
        """P(worker says c | truth c) of the workers with these indices, (P, C)."""
        n_classes = len(self._model.fitted().vocabulary.classes)
        size = max(MAX_MATRIX_NUMBERS // max(n_classes, 1) ** 2, 1)
        starts = range(0, max(len(workers), 1), size)
        some = (self.confusion(workers[start : start + size]) for start in starts)
        # A view of a diagonal would keep its matrices.
        return np.concatenate([np.diagonal(each, axis1=1, axis2=2).copy() for each in some])

    def class_prior(self) -> Floats:
        """P(class), (C,)."""
        return self._method.class_prior(self._model.fitted().state)

    def worker_stats(self, workers: NDArray[np.intp], name: str) -> NDArray[Any]:
        """The "labels", "agreed" or "track" of the workers with these indices, (P, …)."""
        return self._model.fitted().worker_stats.gather(workers, (name,))[name]

    def find_workers(
        self, workers: Iterable[Hashable] | None
    ) -> tuple[Sequence[Hashable], NDArray[np.intp]]:
        """The ids and indices of these workers; of all unless given."""
        ids, index = self._model.known_workers()
        if workers is None:
            return ids, index
        asked = _several("workers", workers)
        roster = self._model.fitted().vocabulary
        return asked, np.array([_index_of(worker, roster) for worker in asked], np.intp)

    def candidates(self) -> tuple[NDArray[np.intp], Floats]:
        """The workers with most labels, and how likely the next label is theirs, (P,) each."""
        _, index = self._model.known_workers()
        labels = self.worker_stats(index, "labels")
        busiest = np.sort(np.argsort(-labels, kind="stable")[:MAX_CANDIDATES])
        # One label each beforehand: workers with a history may have none yet.
        share = labels[busiest] + 1.0
        return index[busiest], share / share.sum()

    def skill_intervals(
        self, level: float = 0.95, workers: Iterable[Hashable] | None = None
    ) -> pd.DataFrame:
        """How often each worker is right, with bounds."""
        ids, index = self.find_workers(workers)
        prior = self.class_prior()
        skill = np.diagonal(self.confusion(index), axis1=1, axis2=2) @ prior
        low, high = self._bounds(
            index, level, skill, lambda drawn: np.einsum("skcc,c->sk", drawn, prior)
        )
        labels = self.worker_stats(index, "labels")
        columns = {"skill": skill, "low": low, "high": high, "labels": labels}
        return pd.DataFrame(columns, index=id_index(ids, "worker"))

    def skill_bounds(self, workers: NDArray[np.intp], level: float) -> Floats:
        """Skills and their bounds, (P, 3); NaN bounds of a method that has none.

        With many classes, bounds are Wilson's: those of the posterior take long.
        """
        learned, has_draws = self._model.fitted(), self._method.draws is not None
        if has_draws and len(learned.vocabulary.classes) <= MAX_POSTERIOR_CLASSES:
            ids = learned.vocabulary.worker_ids
            table = self.skill_intervals(level, [ids[k] for k in workers.tolist()])
            return table[["skill", "low", "high"]].to_numpy(np.float64)
        found = np.full((len(workers), 3), np.nan)
        found[:, 0] = self.right(workers) @ self.class_prior()
        if has_draws:
            counts = np.maximum(self.worker_stats(workers, "labels"), 1).tolist()
            found[:, 1:] = [wilson(p, n, level) for p, n in zip(found[:, 0], counts, strict=True)]
        return found

    def confusion_intervals(
        self, level: float = 0.95, workers: Iterable[Hashable] | None = None
    ) -> pd.DataFrame:
        """What each worker says of each class, with bounds."""
        ids, index = self.find_workers(workers)
        confusion = self.confusion(index)
        low, high = self._bounds(index, level, confusion, lambda drawn: drawn)
        classes = id_index(self._model.learned.vocabulary.classes, "label")
        parts = [id_index(ids, "worker"), classes.rename("truth"), classes]
        return pd.DataFrame(
            {"prob": confusion.ravel(), "low": low.ravel(), "high": high.ravel()},
            index=pd.MultiIndex.from_product(parts),
        )

    def _bounds(
        self,
        index: NDArray[np.intp],
        level: float,
        point: NDArray[Any],
        of: Callable[[NDArray[Any]], NDArray[Any]],
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Quantiles of a function of drawn matrices; the point itself is always between them."""
        _check_share("level", level, is_open=True)
        learned = self._model.fitted()
        if self._method.draws is None:
            raise StateError(
                f"This {self._model.name} has no intervals: it keeps no posterior of workers. "
                "Use BiLA()."
            )
        n_classes = len(learned.vocabulary.classes)
        if n_classes > MAX_INTERVAL_CLASSES:
            raise StateError(
                f"Intervals are computed for at most {MAX_INTERVAL_CLASSES} classes: for more they "
                f"take too long. This model knows {n_classes}. See skills_ and confusion_."
            )
        rng = np.random.default_rng(self._model.seed)
        low, high = np.empty_like(point), np.empty_like(point)
        start = 0
        for drawn in self._method.draws(learned.state, index, DRAWS, rng, learned.n_chunks):
            some = slice(start, start + drawn.shape[1])
            ends = np.quantile(of(drawn), [(1 - level) / 2, (1 + level) / 2], axis=0)
            low[some], high[some] = ends
            start = some.stop
        return np.minimum(low, point), np.maximum(high, point)

    def flags(self, level: float = 0.95, workers: Iterable[Hashable] | None = None) -> pd.DataFrame:
        """Suspicious workers, and why."""
        _check_share("level", level, is_open=True)
        ids, index = self.find_workers(workers)
        names = self._model.learned.vocabulary.worker_ids
        by_matrix = self._matrix_flags(index, level)
        by_track = worker_flags.drifting(self.worker_stats(index, "track"), level)
        by_pair = worker_flags.colluding(self._pairs(), lambda k: names[k], level)
        columns: dict[str, list[Any]] = {
            name: [] for name in ("worker", "flag", "score", "since", "partners", "says")
        }
        for worker, k, *found in zip(ids, index.tolist(), by_matrix, by_track, strict=True):
            for flag in (*found, by_pair.get(k)):
                if flag is None:
                    continue
                partners = None if flag.partners is None else [names[p] for p in flag.partners]
                row = (worker, flag.flag, flag.score, flag.since, partners, flag.says)
                for name, value in zip(columns, row, strict=True):
                    columns[name].append(value)
        return pd.DataFrame(
            {
                name: pd.Series(values, dtype=float if name == "score" else object)
                for name, values in columns.items()
            }
        )

    def _matrix_flags(
        self, index: NDArray[np.intp], level: float
    ) -> list[worker_flags.Flag | None]:
        found: list[worker_flags.Flag | None] = [None] * len(index)
        classes = self._model.learned.vocabulary.classes
        if len(classes) > MAX_INTERVAL_CLASSES:
            return found
        prior, labels = self.class_prior(), self.worker_stats(index, "labels")
        confusion = self._matrices(index)
        suspects = np.flatnonzero(worker_flags.suspects(confusion, prior, labels))
        start = 0
        for drawn in self._draws(index[suspects], confusion[suspects], prior, labels[suspects]):
            some = suspects[start : start + drawn.shape[1]]
            start += drawn.shape[1]
            flags = worker_flags.matrix_flags(
                drawn, confusion[some], prior, labels[some], classes, level
            )
            for k, flag in zip(some.tolist(), flags, strict=True):
                found[k] = flag
        return found

    def _draws(
        self, index: NDArray[np.intp], confusion: Floats, prior: Floats, labels: NDArray[Any]
    ) -> Iterable[NDArray[Any]]:
        """Drawn matrices of these workers, (S, P, C, C) per block of workers."""
        if not len(index):
            return []
        learned, seed = self._model.fitted(), self._model.seed
        if self._method.draws is None:
            return [worker_flags.guessed(confusion, prior, labels, DRAWS, seed)]
        rng = np.random.default_rng(seed)
        return self._method.draws(learned.state, index, DRAWS, rng, learned.n_chunks)

    def track(self, worker: Hashable, level: float = 0.95) -> pd.DataFrame:
        """How far a worker agreed with the others over time, and where that changed."""
        _check_share("level", level, is_open=True)
        _, index = self.find_workers([worker])
        bins = self.worker_stats(index, "track")[0]
        curve = drift.curve(bins, level)
        turns = [change.chunk for change in drift.changes(bins, level)]
        ends = [0, *(one.chunk for one in curve)]
        table = pd.DataFrame(curve, columns=list(drift.Bin._fields))
        table["change"] = [end + 1 in turns for end in ends[:-1]]
        return table.set_index("chunk")

    def collusion(self) -> pd.DataFrame:
        """How often two workers gave the same answer to open tasks, beside what is expected."""
        pairs, names = self._pairs(), self._model.fitted().vocabulary.worker_ids
        columns = pairs._asdict()
        for side in ("worker", "other"):
            columns[side] = pd.Series([names[k] for k in columns[side].tolist()], dtype=object)
        return pd.DataFrame(columns)

    def agreement(
        self,
        workers: Iterable[Hashable] | None = None,
        level: float = 0.95,
        max_workers: int = MAX_AGREEMENT_WORKERS,
    ) -> Agreement:
        """How well each worker agrees with each other one on open tasks, beyond chance."""
        roster = self._model.fitted().vocabulary
        asked = None if workers is None else _several("workers", workers)
        return _agreement(self._open()[0], roster, asked, level, max_workers)

    def jury(self, level: float = 0.95, max_workers: int = MAX_JURY_WORKERS) -> Jury:
        """For how many independent judges the workers count, and who errs with whom."""
        _check_share("level", level, is_open=True)
        _check_whole("max_workers", max_workers)
        vocabulary = self._model.fitted().vocabulary
        chunk, probs, evidence, _ = self._open_evidence()
        chunk, _ = one_row_per_worker(chunk, evidence)
        first = max(chunk.n_items - MAX_JURY_TASKS, 0)  # the newest stand last
        rows = chunk.item >= first
        gold = self._model.fitted().open_items.gold[first:]
        chunk = make_chunk(
            chunk.item[rows] - first,
            chunk.worker[rows],
            chunk.label[rows],
            weight=chunk.weight[rows],
            n_items=chunk.n_items - first,
            n_workers=chunk.n_workers,
            n_classes=chunk.n_classes,
        )
        workers = _busiest(chunk, max_workers)
        return jury_report(
            chunk,
            probs[first:],
            gold,
            workers,
            (vocabulary.worker_ids, vocabulary.classes, vocabulary.attributes),
            self.skill_bounds(workers, level),
            level,
        )

    def _pairs(self) -> Pairs:
        chunk, probs, evidence, temperature = self._open_evidence()
        return pair_scores(chunk, probs, evidence, temperature, self._matrices)

    # ── tasks ────────────────────────────────────────────────────────────────────────────

    def report(self) -> Report:
        """Items and workers under cleanlab's column names, with the crowd's agreement."""
        learned = self._model.fitted()
        classes, held = learned.vocabulary.classes, learned.open_items
        if len(held):
            chunk = held.to_chunk(len(learned.vocabulary.worker_ids), len(classes))
            probs, aggregated = held.answers(len(classes))
            item_ids, notes = list(held), held.notes
            shown = held.keys
        else:
            answer = self._model.answer  # of a loaded model, no tasks: its workers are known
            intake, result = answer.intake, answer.result
            chunk, item_ids, notes = intake.chunk, intake.item_ids, intake.notes or []
            probs, aggregated, shown = result.probs, result.aggregated, chunk.item_keys
        items, alpha, agreement = item_report(chunk, item_ids, probs, aggregated, classes, notes)
        ids, index = self._model.known_workers()
        stats = learned.worker_stats.gather(index)
        right, prior = self.right(index), self.class_prior()
        workers = worker_report(ids, classes, right, prior, stats["labels"], stats["agreed"])
        for role, values in attribute_columns(ids, learned.vocabulary.attributes).items():
            workers[role] = pd.Series(values, workers.index, object)
        closed = len(np.setdiff1d(held.closed_keys, shown))
        return Report(items, workers, alpha, agreement, closed, self.doubt().says)

    def explain(self, task: Hashable) -> Explanation:
        """Why an open task has its answer, and what would flip it."""
        learned = self._model.fitted()
        item = learned.open_items.get(task)
        if item is None:
            raise _not_open(task)
        classes, worker_ids = learned.vocabulary.classes, learned.vocabulary.worker_ids
        labels = make_chunk(
            np.zeros(len(item.worker)),
            item.worker,
            item.label,
            weight=item.weight,
            n_items=1,
            n_workers=len(worker_ids),
            n_classes=len(classes),
        )
        # What a worker said of the task is one row, however many votes it was.
        said, evidence = one_row_per_worker(labels, item.log_evidence)
        item = item._replace(
            worker=said.worker, label=said.label, weight=said.weight, log_evidence=evidence
        )
        temperature = item.temperature  # as the answer was given; today's may differ
        log_prior = adds_up(self._method, learned.state, labels)
        candidates, share = self.candidates()
        log_matrix = np.log(np.maximum(self._matrices(candidates), TINY))
        found = odds(item, temperature, log_prior, np.einsum("k,kcz->cz", share, log_matrix))
        order = np.argsort(-found.by_label, kind="stable")
        index = id_index([worker_ids[k] for k in item.worker[order].tolist()], "worker")
        columns = {
            "label": [classes[z] for z in item.label[order].tolist()],
            "weight": item.weight[order],
            "log_odds": found.by_label[order],
        }
        known = id_index(classes[: len(item.probs)], "label")
        return Explanation(
            task=task,
            label=classes[item.aggregated],
            confidence=float(item.probs[item.aggregated]),
            runner_up=None if found.runner_up == MISSING else classes[found.runner_up],
            prior_log_odds=found.prior,
            workers=pd.DataFrame(columns, index=index),
            evidence=pd.DataFrame(item.log_evidence[order], index=index, columns=known),
            total_log_odds=found.total,
            heat=temperature,
            flips=[worker_ids[item.worker[row]] for row in found.removals],
            further_labels=found.further_labels,
            truth_given=item.gold != MISSING,
        )

    def pending(self, threshold: float = 0.95) -> pd.DataFrame:
        """Open tasks answered with less confidence than this."""
        _check_share("threshold", threshold)
        learned, (chunk, probs, aggregated, gold) = self._model.fitted(), self._open()
        confidence = np.take_along_axis(probs, aggregated[:, None].astype(np.intp), axis=1)[:, 0]
        rows = np.flatnonzero((confidence < threshold) & (gold == MISSING))
        rows = rows[np.argsort(confidence[rows], kind="stable")]
        tasks, classes = list(learned.open_items), learned.vocabulary.classes
        return pd.DataFrame(
            {
                "label": [classes[c] for c in aggregated[rows].tolist()],
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
        """What one more label would likely do, by task or by task and worker."""
        if top is not None:
            _check_whole("top", top, ", or None")
        learned, (chunk, probs, _, gold) = self._model.fitted(), self._open()
        place = {task: row for row, task in enumerate(learned.open_items)}
        wanted = list(place) if tasks is None else _several("tasks", tasks)
        for task in wanted:
            if task not in place:
                raise _not_open(task)
        places = np.array([place[task] for task in wanted], np.intp)
        rows = places[gold[places] == MISSING]
        probs = probs[rows].astype(np.float64)
        temperature = self._temperature(
            chunk.workers_by_item[rows] + 1, chunk.weight_by_item[rows] + 1
        )
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
        candidates, share = self.candidates()
        asked = _asked(chunk, rows, candidates)
        found = prospects(probs, self._matrices(candidates), temperature, share, asked)
        confidence = probs.max(axis=1, initial=0)
        worker_ids = self._model.fitted().vocabulary.worker_ids
        ids = [worker_ids[k] for k in candidates.tolist()]
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
        ids, chosen = self.find_workers(workers)
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

    def doubt(self) -> Doubt:
        """How far it is in doubt which answers are right."""
        return self._model.doubt()

    def deciding_tasks(self, n: int = 10) -> pd.DataFrame:
        """Open tasks whose true label says which of two readings is right."""
        _check_whole("n", n)
        learned, (chunk, _, _, gold) = self._model.fitted(), self._open()
        if self._method.readings is None:
            raise StateError(f"This {self._model.name} has one reading of its labels. Use BiLA().")
        rows = np.flatnonzero(gold == MISSING)
        if not chunk.n_labels:
            rows = rows[:0]
        by_vote, by_model = self._method.readings(learned.state, chunk)
        # Half of Σ_c |p(c) − p'(c)|: how surely the two readings differ.
        apart = np.abs(by_vote - by_model).sum(axis=1)[rows] / 2
        labels = chunk.workers_by_item[rows]
        rows = rows[np.lexsort((-labels, -apart))][:n]
        tasks, classes = list(learned.open_items), learned.vocabulary.classes
        return pd.DataFrame(
            {
                "difference": np.abs(by_vote - by_model).sum(axis=1)[rows] / 2,
                "by_vote": [classes[c] for c in by_vote[rows].argmax(axis=1).tolist()],
                "by_model": [classes[c] for c in by_model[rows].argmax(axis=1).tolist()],
                "labels": np.bincount(chunk.item, minlength=chunk.n_items)[rows],
            },
            index=id_index([tasks[row] for row in rows], "task"),
        )

    def stopping(self, thresholds: Sequence[float] | None = None) -> pd.DataFrame:
        """What closing open tasks at a confidence would have saved and cost."""
        wanted = early_stopping.THRESHOLDS if thresholds is None else tuple(thresholds)
        for threshold in wanted:
            _check_share("thresholds", threshold)
        learned, method = self._model.fitted(), self._method
        chunk, _, evidence, _ = self._open_evidence()
        curve = []
        if chunk.n_labels:
            log_prior = adds_up(method, learned.state, chunk)
            if log_prior is None:
                raise StateError(
                    f"This {self._model.name} cannot replay tasks: its answer is not a sum of what "
                    "labels say. Use BiLA()."
                )
            temperature = self._temperature if method.temperature is not None else None
            is_stacked = early_stopping.has_stack(learned.state)
            sums = early_stopping.stopping_sums(
                chunk, evidence, log_prior, temperature, wanted, is_stacked
            )
            curve = early_stopping.curve(sums, wanted)
        return pd.DataFrame(curve, columns=list(early_stopping.Stop._fields))

    # ── trust ────────────────────────────────────────────────────────────────────────────

    def certify(self, error: float, confidence: float, audit: Any) -> Certificate:
        """Which answers of open tasks may stand, by gold drawn at random."""
        tasks, scores, gold = self._evidence(None, audit)
        return certificate(scores, gold, error, confidence).named(tasks.__getitem__)

    def expected_error(
        self, tasks: Iterable[Hashable] | None, level: float, audit: Any
    ) -> ExpectedError:
        """The expected share of wrong answers among open tasks."""
        _, scores, gold = self._evidence(tasks, audit)
        return expected_error(scores, gold, level)

    def _evidence(
        self, tasks: Iterable[Hashable] | None, audit: Any
    ) -> tuple[list[Hashable], Floats, Audit]:
        """Open tasks, how sure their answers are, and the gold among them.

        Tasks whose truth the model has learned are left out: it answers them with the truth.
        """
        learned, (_, probs, aggregated, known) = self._model.fitted(), self._open()
        answer, usable = aggregated.astype(np.intp), known == MISSING
        ids, place = list(learned.open_items), {t: n for n, t in enumerate(learned.open_items)}
        wanted = ids if tasks is None else _several("tasks", tasks)
        for task in wanted:
            if task not in place:
                raise _not_open(task)
        # Equal confidences stand in the order of ids: open tasks are reordered by truths.
        wanted = sorted(wanted, key=id_order)
        rows = np.array([place[task] for task in wanted if usable[place[task]]], np.intp)
        chosen = [ids[row] for row in rows.tolist()]
        confidence = np.clip(probs[rows, answer[rows]].astype(np.float64), 0, 1)
        truths = read_audit(audit)
        for task in truths:
            if task in place and not usable[place[task]]:
                raise LabelError(
                    f"audit: the model has learned the truth of task {task!r}, so its answer is no "
                    "evidence. Draw from the tasks whose truth was not given to fit."
                )
        asked = set(chosen)  # gold of other tasks says nothing about these
        truths = {task: truths[task] for task in truths if task in asked or task not in place}
        labels = [learned.vocabulary.classes[c] for c in answer[rows].tolist()]
        return chosen, confidence, audit_of(chosen, labels, truths)

    # ── shared by these ──────────────────────────────────────────────────────────────────

    def _matrices(self, workers: NDArray[np.intp]) -> Floats:
        return self.confusion(workers).astype(np.float64)

    def _temperature(self, n_workers: Floats, n_labels: Floats) -> Floats:
        """The temperature, by which log-odds are divided before they become probabilities, (N,)."""
        if self._method.temperature is None:
            return np.ones(len(n_labels))
        return self._method.temperature(self._model.fitted().state, n_workers, n_labels)

    def _open(self) -> tuple[Chunk, NDArray[np.float32], NDArray[np.int32], NDArray[np.int32]]:
        """Labels, answers and given true labels of the open tasks."""
        learned = self._model.fitted()
        held, n_classes = learned.open_items, len(learned.vocabulary.classes)
        chunk = held.to_chunk(len(learned.vocabulary.worker_ids), n_classes)
        chunk = chunk._replace(worker_groups=learned.vocabulary.groups_of(chunk.workers))
        return chunk, *held.answers(n_classes), held.gold

    def _open_evidence(self) -> tuple[Chunk, Floats, Floats, Floats]:
        """Open tasks: labels, answers (N, C), evidence of each label (B, C), temperatures (N,)."""
        chunk, probs, _, gold = self._open()
        held = self._model.fitted().open_items.everything()
        item = np.repeat(np.arange(len(held.counts)), held.counts)
        rows = np.lexsort((*map(held.column, ("weight", "label", "worker")), item))
        evidence = held.column("log_evidence", chunk.n_classes)[rows].astype(np.float64)
        if len(evidence):  # for a class that was unknown then, the least of any class
            least = np.nanmin(evidence, axis=1, keepdims=True, initial=0)
            evidence = np.where(np.isnan(evidence), least, evidence)
        chunk = chunk._replace(item_keys=held.column("key"), gold=gold)
        temperature = held.column("temperature").astype(np.float64)
        return chunk, probs.astype(np.float64), evidence, temperature


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


def _not_open(task: Hashable) -> LabelError:
    return LabelError(
        f"Task {task!r} is not open: its labels are no longer held, or never came. "
        "Check the id, or set open_items= higher to hold more tasks."
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and math.isfinite(value)


def _check_share(name: str, value: Any, is_open: bool = False) -> None:
    """Refuse a setting that is not from 0 to 1; both ends are refused where `is_open`."""
    if not _is_number(value) or not 0 <= value <= 1 or (is_open and value in (0, 1)):
        raise StateError(f"`{name}` must be a number between 0 and 1. Got {value!r}.")


def _check_whole(name: str, value: Any, otherwise: str = "") -> None:
    if not _is_number(value) or value != int(value) or value < 0:
        raise StateError(f"`{name}` must be a whole number ≥ 0{otherwise}. Got {value!r}.")


def _index_of(worker: Hashable, roster: Roster) -> int:
    k = roster.worker_index(worker)
    if k is None:
        raise unknown_worker(worker)
    return k


def _several(name: str, ids: Any) -> list[Hashable]:
    """Each once, in the order given."""
    if isinstance(ids, str) or not isinstance(ids, Iterable):
        raise StateError(f"`{name}` must be a list of ids, even of one. Got {ids!r}.")
    return list(dict.fromkeys(ids))
