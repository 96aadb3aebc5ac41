"""How one cell is run, and the summary of all that were.

`measure` runs a cell; `Measured` finds the mean over seeds of the cells that have been run.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from statistics import fmean, median, stdev
from time import process_time
from typing import Any, NamedTuple

import numpy as np
from plan import SYNTHETIC, Cell

from labelquorum import LabelError, estimator
from labelquorum.evaluation import (
    Crowd,
    balanced_truth,
    bimodal_crowd,
    label_table,
    list_datasets,
    oracle_error,
    published_noise_rates,
    read_dataset,
)
from labelquorum.evaluation.replay import stream

MAX_CURVE_POINTS = 64  # of a run that does not stream the initial set again; those are all kept


# ── data ─────────────────────────────────────────────────────────────────────────────────────


def has_data(name: str) -> bool:
    try:
        return name in list_datasets()
    except LabelError:
        return False


def can_run(cell: Cell) -> bool:
    """A synthetic crowd is always available, on balanced digits if need be."""
    return cell.data in SYNTHETIC or has_data(cell.data)


@lru_cache
def synthetic_truth(data: str) -> list[int]:
    name, size = SYNTHETIC[data]
    if has_data(name):
        return [int(str(true)) for true in read_dataset(name).truth.values()]
    return list(balanced_truth(size).tolist())


def draw_crowd(
    truth: Any, kind: str, workers: int, noise: float, missing: float, spread: float, seed: int
) -> Crowd:
    """Draw the paper's crowd, or the one with the structure of the authors' published file."""
    if kind == "homogeneous":
        return bimodal_crowd(truth, workers, noise, missing, spread, seed=seed)
    rates = published_noise_rates(workers, noise)
    return bimodal_crowd(truth, workers, rates, missing, missing_pattern="halves", seed=seed)


@lru_cache(maxsize=2)
def _crowd(data: str, *fields: Any) -> Crowd:
    *how, items, seed = fields
    return draw_crowd(synthetic_truth(data)[: items or None], *how, seed)


@lru_cache(maxsize=2)
def _table(data: str, *fields: Any) -> tuple[Any, dict[Hashable, Hashable]]:
    """Labels and truth, by item."""
    if data not in SYNTHETIC:
        read = read_dataset(data)
        return read.table, dict(read.truth)
    drawn = _crowd(data, *fields)
    return label_table(drawn, text_ids=False), dict(enumerate(drawn.truth.tolist()))


def counts(data: str) -> dict[str, int]:
    """Workers, items, labels and classes of a data set, or of the first crowd drawn."""
    table, truth = _table(*Cell(data, "mv", 0, 0).crowd_fields)
    return {
        "workers": len(set(table.worker_ids)),
        "items": len(set(table.item_ids)),
        "labels": len(table.labels),
        "classes": len({*map(str, table.labels), *map(str, truth.values())}),
    }


# ── running one ──────────────────────────────────────────────────────────────────────────────


class Watched:
    """A model that records the time, the rounds and the errors of each chunk."""

    def __init__(self, model: Any, truth: Mapping[Hashable, Hashable]) -> None:
        self._model, self._truth = model, truth
        self.rounds: list[int] = []
        self.seconds: list[float] = []  # processor time, whatever else the machine does
        self.wrong: list[tuple[int, int]] = []  # items with truth and wrong labels of each chunk
        self.epoch_wrong: list[Any] = []  # (epochs,) of each chunk

    def partial_fit(self, labels: Any) -> "Watched":
        began = process_time()
        info = self._model.partial_fit(labels).info_
        self.seconds.append(process_time() - began)
        self.rounds.append(getattr(info, "epochs", getattr(info, "iterations", 0)))
        known = [(a, self._truth[i]) for i, a in self._model.labels_.items() if i in self._truth]
        self.wrong.append((len(known), sum(answer != true for answer, true in known)))
        if getattr(info, "epoch_labels", None) is not None:
            after = self._model.epoch_labels_
            truth = np.array([self._truth[item] for item in after.index])
            self.epoch_wrong.append((after.to_numpy() != truth[:, None]).sum(axis=0))
        return self

    def predict(self, labels: Any) -> Any:
        """The last chunk's answers: what the final model says of all items is not reported."""
        return self.labels_

    def curve(self, again: bool) -> list[list[float]]:
        """Items so far and their error in per cent after each chunk.

        Where the initial set is streamed again, counting begins with that, as in the authors' log.
        """
        so_far = np.cumsum(self.wrong[1 if again else 0 :], axis=0)
        return [[int(n), _round(100 * wrong / n)] for n, wrong in so_far if n]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def measure(cell: Cell, method: Mapping[str, Any], made_by: str = "") -> dict[str, Any]:
    """Run a cell; `made_by` is the fingerprint of the method (see fingerprints.py)."""
    began = process_time()
    if cell.method == "oracle":
        drawn = _crowd(*cell.crowd_fields)
        found = {"error": _round(100 * oracle_error(drawn)), "scored": len(drawn.truth)}
    else:
        table, truth = _table(*cell.crowd_fields)
        found = run(cell, Watched(build(cell, method), truth), table, truth)
    return {**found, "cell_seconds": _round(process_time() - began, 2), "made_by": made_by}


def build(cell: Cell, method: Mapping[str, Any]) -> Any:
    settings = {**method.get("settings", {}), **dict(cell.settings)}
    return estimator(method["estimator"], seed=cell.seed, open_items=0, **settings)


def run(cell: Cell, model: Watched, table: Any, truth: Mapping[Any, Hashable]) -> dict[str, Any]:
    """Feed a model the labels by the cell's protocol, and score the labels it emits."""
    result: dict[str, Any] = {}
    if cell.chunk == 0:
        answers = model.partial_fit(table).labels_.to_dict()
        error = fmean(answers.get(item) != true for item, true in truth.items())
        scored = len(truth)
    else:
        done = stream(
            lambda: model,
            table,
            truth,
            chunk_items=cell.chunk,
            warmup_items=cell.initial,
            repeat_warmup=cell.again,
            order=cell.seed if cell.order == "random" else None,
        )
        error, scored = done.emitted_error, done.n_scored
        if cell.again or len(model.wrong) <= MAX_CURVE_POINTS:
            result["curve"] = model.curve(cell.again)
    if model.epoch_wrong:
        wrong = np.sum(model.epoch_wrong, axis=0)
        result["epoch_errors"] = [_round(100 * each / scored, 3) for each in wrong]
    # The initial set has another size. The median ignores the chunk that includes compilation.
    later = slice(1 if cell.initial and len(model.rounds) > 1 else 0, None)
    return {
        "error": _round(100 * error),
        "scored": scored,
        "chunk_seconds": _round(median(model.seconds[later]), 5),
        "rounds": _round(fmean(model.rounds[later])),
        **result,
    }


def _round(value: float, digits: int = 4) -> float:
    return round(float(value), digits)


# ── what was measured ────────────────────────────────────────────────────────────────────────


class Summary(NamedTuple):
    """Runs that differ by their seed alone; errors in per cent."""

    mean: float
    sd: float
    errors: dict[int, float]  # by seed
    scored: int
    runs: list[dict[str, Any]]

    def average(self, field: str) -> float | None:
        values = [run[field] for run in self.runs if field in run]
        return fmean(values) if values else None

    def curve(self, field: str) -> list[list[float]]:
        """The mean over seeds of a list that every run has, entry by entry."""
        lists = [run[field] for run in self.runs if field in run]
        return np.mean(lists, axis=0).tolist() if lists else []

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.sd:.2f}"


class Measured:
    """Finds what was measured."""

    def __init__(self, records: Iterable[Mapping[str, Any]]) -> None:
        self._runs: dict[Cell, dict[int, dict[str, Any]]] = {}
        for record in records:
            cell = Cell.from_json(record["cell"])
            plain = replace(cell, seed=0, items=0)
            self._runs.setdefault(plain, {})[cell.seed] = record["result"]

    def __call__(self, data: str, method: str, chunk: int = 0, **others: Any) -> Summary | None:
        """The runs of a cell over all seeds; None if there are none."""
        return self.of(Cell(data, method, 0, chunk, **others))

    def cells(self) -> list[Cell]:
        """Every cell that was run, without its seed."""
        return list(self._runs)

    def of(self, cell: Cell) -> Summary | None:
        runs = self._runs.get(replace(cell, seed=0, items=0))
        if not runs:
            return None
        errors = {seed: runs[seed]["error"] for seed in sorted(runs)}
        sd = stdev(errors.values()) if len(errors) > 1 else 0.0
        found = [runs[seed] for seed in errors]
        return Summary(fmean(errors.values()), sd, errors, found[0]["scored"], found)
