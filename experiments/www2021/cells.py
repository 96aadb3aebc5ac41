"""The cells of the reproduction: what they are, how one is run, and the table of all that were.

A cell is data × method × protocol × seed. `plan.toml` lists them, `measure` runs one, and
`Measured` finds the mean over seeds of those that have been run.
"""

import tomllib
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from statistics import fmean, median, stdev
from time import process_time
from typing import Any, NamedTuple

import numpy as np

from labelquorum import LabelError, estimator
from labelquorum.trial import (
    Crowd,
    balanced_truth,
    bimodal_crowd,
    label_table,
    list_datasets,
    oracle_error,
    read_dataset,
)
from labelquorum.trial.prequential import stream

HERE = Path(__file__).parent
SYNTHETIC = {"cifar10": ("cifar10_truth", 50_000), "pendigits": ("pendigits_truth", 10_992)}
"""The truth each synthetic crowd looks at, and its size."""
LONGEST_CURVE = 64
LONG = 20  # seconds; such cells come last


@dataclass(frozen=True)
class Cell:
    """One run."""

    data: str
    method: str
    seed: int
    chunk: int  # 0: offline
    initial: int = 0
    order: str = "file"
    again: bool = False
    workers: int = 10
    noise: float = 0.6
    missing: float = 0.1
    spread: float = 0.0
    items: int = 0  # 0: all
    settings: tuple[tuple[str, Any], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """What is not as usual."""
        usual = {field.name: field.default for field in fields(self)}
        told = {name: value for name, value in asdict(self).items() if value != usual[name]}
        return told | ({"settings": dict(self.settings)} if self.settings else {})

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> "Cell":
        return cls(**{**told, "settings": tuple(sorted(told.get("settings", {}).items()))})


class Plan(NamedTuple):
    """What is run."""

    methods: dict[str, dict[str, Any]]
    blocks: list[dict[str, Any]]
    probes: list[dict[str, Any]]
    crowd_items: int  # of synthetic data, at most; 0: all

    def cells(self, seeds: int | None = None) -> list[Cell]:
        """Every cell once, the cheapest data first; those of one crowd stand together."""
        found = dict.fromkeys(cell for block in self.blocks for cell in _expand(block, seeds))
        for probe in self.probes:
            found |= dict.fromkeys(self.probe_cells(probe, seeds))
        sized = [replace(cell, items=cell.items or self._size(cell)) for cell in found]
        sizes = {"pendigits": 1, "cifar10": 2}
        return sorted(
            dict.fromkeys(sized),
            key=lambda c: (self.cost(c) > LONG, sizes.get(c.data, 0), *_crowd_of(c)),
        )

    def _size(self, cell: Cell) -> int:
        return self.crowd_items if cell.data in SYNTHETIC else 0

    def probe_cells(self, probe: Mapping[str, Any], seeds: int | None = None) -> Iterator[Cell]:
        """The cells of Table 2 that a probe looks at, with its change."""
        for block in self.blocks:
            for cell in _expand(block, seeds):
                looked_at = cell.data in probe["data"] and is_table2(cell, probe["method"])
                if looked_at and cell.seed < probe["seeds"]:
                    yield changed(cell, probe["change"])

    def cost(self, cell: Cell) -> float:
        """Seconds, about."""
        n_items = SYNTHETIC[cell.data][1] if cell.data in SYNTHETIC else 800
        epochs = dict(cell.settings).get("epochs", 20)
        slow = max(1.0, epochs / 20)
        return 0.4 + slow * self.methods[cell.method]["cost"] * (cell.items or n_items) / 10_000


def read_plan(name: str) -> Plan:
    """Read a plan; a plan that names no methods has those of the full one."""
    full = tomllib.loads((HERE / "plan.toml").read_text(encoding="utf-8"))
    plan = tomllib.loads((HERE / name).read_text(encoding="utf-8"))
    methods = plan.get("methods", full["methods"])
    return Plan(methods, plan["block"], plan.get("probe", []), plan.get("crowd_items", 0))


def is_table2(cell: Cell, method: str) -> bool:
    """Whether a cell is one of Table 2's: online after an initial set, nothing unusual."""
    usual = Cell(cell.data, method, cell.seed, cell.chunk, cell.initial, cell.order)
    return replace(cell, items=0) == usual and cell.chunk > 0 and cell.initial > 0


def changed(cell: Cell, change: Mapping[str, Any]) -> Cell:
    """The same cell with other fields, or other settings of the method."""
    own = {name: value for name, value in change.items() if name in asdict(cell)}
    settings = {**dict(cell.settings), **{n: v for n, v in change.items() if n not in own}}
    return replace(cell, **own, settings=tuple(sorted(settings.items())))


def _expand(block: Mapping[str, Any], seeds: int | None) -> Iterator[Cell]:
    lists = {
        name: block[name]
        for name in ("data", "chunk", "initial", "order", "again")
        if name in block
    }
    chosen = [dict(zip(lists, values, strict=True)) for values in product(*lists.values())]
    settings = block.get("settings", {})
    options = [
        tuple(sorted(zip(settings, values, strict=True))) for values in product(*settings.values())
    ]
    vary = block.get("vary", {})
    away = [{name: value} for name, values in vary.items() for value in values] or [{}]
    n_seeds = block["seeds"] if seeds is None else min(seeds, block["seeds"])
    for protocol, crowd, option, method in product(chosen, away, options, block["methods"]):
        for seed in range(n_seeds):
            cell = Cell(
                method=method,
                seed=seed,
                settings=option,
                items=block.get("items", 0),
                **protocol,
                **crowd,
            )
            # The oracle looks at the crowd, not at its chunks.
            yield replace(cell, chunk=0, initial=0) if method == "oracle" else cell


def _crowd_of(cell: Cell) -> tuple[Any, ...]:
    return (cell.data, cell.workers, cell.noise, cell.missing, cell.spread, cell.items, cell.seed)


# ── data ─────────────────────────────────────────────────────────────────────────────────────


def has_data(name: str) -> bool:
    try:
        return name in list_datasets()
    except LabelError:
        return False


def can_run(cell: Cell) -> bool:
    """A synthetic crowd can always be had, on balanced digits if need be."""
    return cell.data in SYNTHETIC or has_data(cell.data)


@lru_cache
def synthetic_truth(data: str) -> list[int]:
    name, size = SYNTHETIC[data]
    if has_data(name):
        return [int(str(true)) for true in read_dataset(name).truth.values()]
    return list(balanced_truth(size).tolist())


@lru_cache(maxsize=2)
def _crowd(
    data: str, workers: int, noise: float, missing: float, spread: float, items: int, seed: int
) -> Crowd:
    truth = synthetic_truth(data)[: items or None]
    return bimodal_crowd(truth, workers, noise, missing, spread, seed=seed)


@lru_cache(maxsize=2)
def _table(*crowd: Any) -> tuple[Any, dict[Hashable, Hashable]]:
    """Labels and truth, by item."""
    if crowd[0] not in SYNTHETIC:
        data = read_dataset(crowd[0])
        return data.table, dict(data.truth)
    drawn = _crowd(*crowd)
    return label_table(drawn, text_ids=False), dict(enumerate(drawn.truth.tolist()))


def counts(data: str) -> dict[str, int]:
    """Workers, items, labels and classes of a data set, or of the first crowd drawn."""
    table, truth = _table(*_crowd_of(Cell(data, "mv", 0, 0)))
    return {
        "workers": len(set(table.worker_ids)),
        "items": len(set(table.item_ids)),
        "labels": len(table.labels),
        "classes": len({*map(str, table.labels), *map(str, truth.values())}),
    }


# ── running one ──────────────────────────────────────────────────────────────────────────────


class Watched:
    """A model that notes what each chunk took, and how its labels stood after every epoch."""

    def __init__(self, model: Any, truth: Mapping[Hashable, Hashable]) -> None:
        self._model, self._truth = model, truth
        self.rounds: list[int] = []
        self.seconds: list[float] = []  # of computing, whatever else the machine does
        self.wrong: list[Any] = []  # (epochs,) of each chunk

    def partial_fit(self, labels: Any) -> "Watched":
        began = process_time()
        info = self._model.partial_fit(labels).info_
        self.seconds.append(process_time() - began)
        self.rounds.append(getattr(info, "epochs", getattr(info, "iterations", 0)))
        if getattr(info, "epoch_labels", None) is not None:
            after = self._model.epoch_labels_
            truth = np.array([self._truth[item] for item in after.index])
            self.wrong.append((after.to_numpy() != truth[:, None]).sum(axis=0))
        return self

    def predict(self, labels: Any) -> Any:
        """The last chunk's answers: what the final model would say of all items is not told."""
        return self.labels_

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def measure(cell: Cell, method: Mapping[str, Any]) -> dict[str, Any]:
    """Run a cell."""
    began = process_time()
    found = _oracle(cell) if cell.method == "oracle" else _run(cell, method)
    return {**found, "cell_seconds": _round(process_time() - began, 2)}


def _oracle(cell: Cell) -> dict[str, Any]:
    drawn = _crowd(*_crowd_of(cell))
    return {"error": _round(100 * oracle_error(drawn)), "scored": len(drawn.truth)}


def _run(cell: Cell, method: Mapping[str, Any]) -> dict[str, Any]:
    table, truth = _table(*_crowd_of(cell))
    settings = {**method.get("settings", {}), **dict(cell.settings)}
    model = Watched(estimator(method["estimator"], seed=cell.seed, open_items=0, **settings), truth)
    result: dict[str, Any] = {}
    if cell.chunk == 0:
        answers = model.partial_fit(table).labels_.to_dict()
        error = fmean(answers.get(item) != true for item, true in truth.items())
        scored = len(truth)
    else:
        run = stream(
            lambda: model,
            table,
            truth,
            chunk_items=cell.chunk,
            warmup_items=cell.initial,
            repeat_warmup=cell.again,
            order=cell.seed if cell.order == "random" else None,
        )
        error, scored = run.emitted_error, run.n_scored
        if len(run.curve) <= LONGEST_CURVE:
            result["curve"] = [[int(n), _round(100 * wrong)] for n, wrong in run.curve]
    if model.wrong:
        result["epoch_errors"] = [_round(100 * w / scored, 3) for w in np.sum(model.wrong, axis=0)]
    # The initial set is another size. The median passes over the chunk that was compiled for.
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
    errors: list[float]
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
        self._runs: dict[Cell, list[dict[str, Any]]] = {}
        for record in records:
            cell = Cell.from_json(record["cell"])
            plain = replace(cell, seed=0, items=0)
            self._runs.setdefault(plain, []).append({"seed": cell.seed, **record["result"]})

    def __call__(self, data: str, method: str, chunk: int = 0, **others: Any) -> Summary | None:
        """The runs of a cell over all seeds; None if there are none."""
        return self.of(Cell(data, method, 0, chunk, **others))

    def cells(self) -> list[Cell]:
        """Every cell that was run, less its seed."""
        return list(self._runs)

    def of(self, cell: Cell) -> Summary | None:
        runs = self._runs.get(replace(cell, seed=0, items=0))
        if not runs:
            return None
        runs = sorted(runs, key=lambda run: run["seed"])
        errors = [run["error"] for run in runs]
        spread = stdev(errors) if len(errors) > 1 else 0.0
        return Summary(fmean(errors), spread, errors, runs[0]["scored"], runs)
