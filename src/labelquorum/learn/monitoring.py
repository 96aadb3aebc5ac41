"""The watch: what a model tells of its crowd over time, and of when to stop asking.

Like the window it is thin: ids in and tables out. The mathematics is in `analysis/flags.py`,
`analysis/drift.py`, `analysis/collusion.py` and `analysis/stopping.py`.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.errors import StateError
from labelquorum.ingest.chunks import Chunk
from labelquorum.learn.analysis import drift, stopping
from labelquorum.learn.analysis import flags as worker_flags
from labelquorum.learn.analysis.collusion import Pairs, pair_scores
from labelquorum.learn.analysis.explain import adds_up
from labelquorum.learn.inspection import DRAWS, MOST_CLASSES, Window, check_share, is_number

__all__ = ["Watch"]


class Watch(Window):
    """What a model tells of its crowd; `Estimator` is its door."""

    def flags(self, level: float = 0.95, workers: Iterable[Hashable] | None = None) -> pd.DataFrame:
        """Workers of whom something is odd, and why.

        Parameters
        ----------
        level
            How sure a flag must be.
        workers
            Those asked about; all unless given.

        Returns
        -------
        table : worker, flag, score, since, partners, says; a row a flag, workers in the order of
            `workers_`
        """
        _check_level(level)
        ids, index = self._chosen(workers)
        memory = self._fitted()
        names = memory.roster.worker_ids
        by_matrix = self._matrix_flags(index, level)
        by_track = worker_flags.drifting(memory.book.gather(index, ("track",))["track"], level)
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

    def track(self, worker: Hashable, level: float = 0.95) -> pd.DataFrame:
        """How far a worker went with the others over time, and where that changed.

        Returns
        -------
        table : index chunk, the last of a stretch; labels, agreement, crowd (that of all others in
            the same chunks), low, high, change (whether he became another at its beginning)
        """
        _check_level(level)
        _, index = self._chosen([worker])
        bins = self._fitted().book.gather(index, ("track",))["track"][0]
        told = drift.curve(bins, level)
        turns = [change.chunk for change in drift.changes(bins, level)]
        ends = [0, *(one.chunk for one in told)]
        begins = [end + 1 for end in ends[:-1]]
        table = pd.DataFrame(told, columns=list(drift.Bin._fields))
        table["change"] = [begin in turns for begin in begins]
        return table.set_index("chunk")

    def collusion(self) -> pd.DataFrame:
        """How often two workers gave the same answer to open tasks, beside what is expected.

        Returns
        -------
        table : worker, other, shared, same, expected, score; the most suspicious pair first
        """
        pairs, names = self._pairs(), self._fitted().roster.worker_ids
        columns = pairs._asdict()
        for side in ("worker", "other"):
            columns[side] = pd.Series([names[k] for k in columns[side].tolist()], dtype=object)
        return pd.DataFrame(columns)

    def stopping(self, thresholds: Sequence[float] | None = None) -> pd.DataFrame:
        """What closing open tasks as soon as their answer is so sure would have saved and cost.

        Tasks whose truth was given are left out.

        Returns
        -------
        table : threshold, labels_used, labels_saved (a share of all), expected_error
        """
        wanted = stopping.THRESHOLDS if thresholds is None else tuple(thresholds)
        for threshold in wanted:
            check_share("thresholds", threshold, is_number(threshold) and 0 <= threshold <= 1)
        memory, method = self._fitted(), self._aggregator
        chunk, _, evidence, _ = self._open_evidence()
        if not chunk.n_labels:
            told = []
        else:
            log_prior = adds_up(method, memory.state, chunk)
            if log_prior is None:
                raise StateError(
                    f"This {type(self).__name__} cannot replay tasks: its answer is no sum of what "
                    "labels say. Use BiLA()."
                )
            temperature = self._temperature if method.temperature is not None else None
            sums = stopping.stopping_sums(chunk, evidence, log_prior, temperature, wanted)
            told = stopping.curve(sums, wanted)
        return pd.DataFrame(told, columns=list(stopping.Stop._fields))

    # ── what these stand on ──────────────────────────────────────────────────────────────

    def _matrix_flags(
        self, index: NDArray[np.intp], level: float
    ) -> list[worker_flags.Flag | None]:
        memory, method = self._fitted(), self._aggregator
        found: list[worker_flags.Flag | None] = [None] * len(index)
        classes = memory.roster.classes
        if len(classes) > MOST_CLASSES:
            return found
        prior = method.class_prior(memory.state)
        labels = memory.book.gather(index, ("labels",))["labels"]
        confusion = self._matrices(index)
        asked = np.flatnonzero(worker_flags.suspects(confusion, prior, labels))
        start = 0
        for drawn in self._draws(index[asked], confusion[asked], prior, labels[asked]):
            some = asked[start : start + drawn.shape[1]]
            start += drawn.shape[1]
            told = worker_flags.matrix_flags(
                drawn, confusion[some], prior, labels[some], classes, level
            )
            for k, flag in zip(some.tolist(), told, strict=True):
                found[k] = flag
        return found

    def _draws(
        self, index: NDArray[np.intp], confusion: Floats, prior: Floats, labels: NDArray[Any]
    ) -> Iterable[NDArray[Any]]:
        """Matrices of these workers, (S, P, C, C) a block of them."""
        if not len(index):
            return []
        if self._aggregator.draws is None:
            return [worker_flags.guessed(confusion, prior, labels, DRAWS, self._seed)]
        memory, rng = self._fitted(), np.random.default_rng(self._seed)
        return self._aggregator.draws(memory.state, index, DRAWS, rng, memory.n_chunks)

    def _pairs(self) -> Pairs:
        chunk, probs, evidence, temperature = self._open_evidence()
        return pair_scores(chunk, probs, evidence, temperature, self._matrices)

    def _open_evidence(self) -> tuple[Chunk, Floats, Floats, Floats]:
        """Open tasks: labels, answers (N, C), what each label said (B, C), and temperature (N,)."""
        memory = self._fitted()
        ledger, n_classes = memory.ledger, len(memory.roster.classes)
        arrays = ledger.to_arrays()
        item = np.repeat(np.arange(len(ledger)), arrays["counts"])
        order = np.lexsort((arrays["weight"], arrays["label"], arrays["worker"], item))
        evidence = _wide(arrays["log_evidence"][order].astype(np.float64), n_classes)
        keys = np.array([ledger.key_of(task) for task in ledger], np.uint64)
        chunk = ledger.to_chunk(len(memory.roster.worker_ids), n_classes)
        chunk = chunk._replace(item_keys=keys, gold=arrays["gold"])
        probs = ledger.answers(n_classes)[0].astype(np.float64)
        return chunk, probs, evidence, arrays["heat"].astype(np.float64)


def _wide(evidence: Floats, n_classes: int) -> Floats:
    """Evidence for all classes: of one that was unknown then, the least there is of any."""
    wide = np.full((len(evidence), n_classes), np.nan)
    wide[:, : evidence.shape[1]] = evidence
    if len(wide):
        least = np.nanmin(wide, axis=1, keepdims=True, initial=0)
        wide = np.where(np.isnan(wide), least, wide)
    return wide


def _check_level(level: Any) -> None:
    check_share("level", level, is_number(level) and 0 < level < 1)
