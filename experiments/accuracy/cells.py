"""The cells of the accuracy tables: what they are, how one is run, and the table of all that were.

A cell is data × method × protocol × seed. `plan.toml` lists them, `measure` runs one, and
`Measured` finds those that differ by their seed alone.
"""

import ast
import json
import tomllib
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, lru_cache
from hashlib import sha256
from itertools import product
from pathlib import Path
from statistics import fmean, median, stdev
from time import process_time
from typing import Any, NamedTuple

import numpy as np

import labelquorum.evaluation as evaluation
from labelquorum import LabelError, estimator
from labelquorum.evaluation import Crowd, Dataset, dataset_info, list_datasets, read_dataset
from labelquorum.evaluation.benchmark import digest
from labelquorum.evaluation.replay import stream
from labelquorum.evaluation.simulate.oracle import HONEST

HERE = Path(__file__).parent
LONG = 20  # seconds; such cells come last
MEASURING = ("metrics", "replay", "datasets/load")
MEASURING += tuple(f"simulate/{name}" for name in ("oracle", "crowds", "roles"))
"""Modules of `labelquorum.evaluation` that a figure depends on."""


@dataclass(frozen=True)
class Cell:
    """One run."""

    data: str  # a data set, or a crowd of the plan
    method: str
    seed: int
    chunk: int = 50  # 0: everything at once
    initial: int = 0
    order: str = "file"
    arrival: str = "items"
    trouble: str = ""  # who is among the workers of a crowd
    without: bool = False  # their labels are left out again

    def to_json(self) -> dict[str, Any]:
        """What is not as usual."""
        usual = {field.name: field.default for field in fields(self)}
        return {name: value for name, value in asdict(self).items() if value != usual[name]}


class Plan(NamedTuple):
    """What is run."""

    methods: dict[str, dict[str, Any]]
    sets: dict[str, list[str]]
    crowds: dict[str, dict[str, Any]]
    troubles: dict[str, dict[str, Any]]
    blocks: list[dict[str, Any]]

    def cells(self, parts: Iterable[str] = ()) -> list[Cell]:
        """Every cell of some parts, or of all, once; the short ones first, one set's together."""
        wanted = set(parts)
        blocks = [block for block in self.blocks if not wanted or block["part"] in wanted]
        found = dict.fromkeys(cell for block in blocks for cell in self._expand(block))
        order = {cell.data: place for place, cell in enumerate(found)}
        return sorted(
            found,
            key=lambda c: (self.cost(c) > LONG, order[c.data], c.seed, c.trouble, c.without),
        )

    def names(self, data: str) -> list[str]:
        """The data a name of the plan stands for: a group's, or its own."""
        return self.sets.get(data, [data])

    def _expand(self, block: Mapping[str, Any]) -> Iterator[Cell]:
        lists = [name for name in block if name in FIELDS]
        for data, method in product(block["data"], block["methods"]):
            for name, values in product(self.names(data), product(*(block[n] for n in lists))):
                slow = name in self.sets.get("slow", ()) and "slow_seeds" in block
                protocol = dict(zip(lists, values, strict=True))
                for seed in range(block["slow_seeds" if slow else "seeds"]):
                    yield normal(Cell(name, method, seed, **protocol))

    def task(self, cell: Cell) -> tuple[Any, ...]:
        """What a process is to call."""
        crowd, trouble = self.crowds.get(cell.data), self.troubles.get(cell.trouble)
        method = self.methods[cell.method].get("estimator")
        return measure, cell, method, crowd, trouble, self.digests(cell)

    def cost(self, cell: Cell) -> float:
        """Seconds, about."""
        n_items, n_labels = self._size(cell.data)
        a_chunk, a_label = self.methods[cell.method]["cost"]
        chunks = n_items / cell.chunk if cell.chunk else 1
        chunks = n_labels if cell.arrival == "labels" else chunks
        return float(0.05 + chunks * a_chunk + n_labels * a_label)

    def _size(self, data: str) -> tuple[int, int]:
        if data in self.crowds:
            crowd = self.crowds[data]
            return crowd["n_items"], crowd["n_items"] * crowd.get("labels_per_item", 9)
        info = dataset_info(data)
        return (info.counts.n_items, info.counts.n_labels) if info else (100, 1000)

    def can_run(self, cell: Cell) -> bool:
        """A crowd can always be had, on balanced classes if need be."""
        return cell.data in self.crowds or has_data(cell.data)

    def digests(self, cell: Cell) -> dict[str, str]:
        """What tells the code and the data of a cell from others of the same name."""
        return {"code": code_digest(), "data": self._data_digest(cell)}

    def _data_digest(self, cell: Cell) -> str:
        if cell.data not in self.crowds:
            return _digest(cell.data)
        crowd = self.crowds[cell.data]
        made = {"crowd": crowd, "trouble": self.troubles.get(cell.trouble)}
        made |= {"truth": _digest(crowd["truth"])} if has_data(crowd.get("truth", "")) else {}
        return sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:16]


def normal(cell: Cell) -> Cell:
    """The oracle looks at the crowd, not at its chunks."""
    if cell.method != "oracle":
        return cell
    return Cell(cell.data, "oracle", cell.seed, 0, trouble=cell.trouble, without=cell.without)


FIELDS = ("chunk", "initial", "order", "arrival", "trouble", "without")


def read_plan(name: str) -> Plan:
    """Read a plan; what a plan does not say is as in the full one."""
    full, plan = (
        tomllib.loads((HERE / file).read_text(encoding="utf-8")) for file in ("plan.toml", name)
    )
    sets, crowds = (full[table] | plan.get(table, {}) for table in ("sets", "crowds"))
    return Plan(full["methods"], sets, crowds, full["troubles"], plan["block"])


@cache
def code_digest() -> str:
    """What tells the code that was measured from another; comments and docstrings do not count."""
    package = Path(evaluation.__file__).parents[1]
    files = [HERE / "cells.py", package / "learn" / "methods" / "majority_vote.py"]
    files += [package / "evaluation" / f"{name}.py" for name in MEASURING]
    files += [*package.glob("ingest/*.py"), *package.glob("learn/*.py")]
    files += [*package.glob("learn/bila/*.py"), *package.glob("learn/analysis/*.py")]
    whole = sha256()
    for file in sorted(files, key=lambda file: file.parts[-3:]):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list):
                node.body = [line for line in body if not _is_text(line)]  # type: ignore[attr-defined]
        whole.update(f"{file.parts[-3:]}\n{ast.dump(tree)}\n".encode())
    return whole.hexdigest()[:16]


def _is_text(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)


# ── data ─────────────────────────────────────────────────────────────────────────────────────


def has_data(name: str) -> bool:
    try:
        return name == "toy" or name in list_datasets()
    except LabelError:
        return False


@lru_cache(maxsize=2)
def _read(name: str) -> Dataset:
    return read_dataset(name)


@cache
def _digest(name: str) -> str:
    return digest(_read(name))


def draw_crowd(reply: Mapping[str, Any], seed: int) -> Crowd:
    """Draw a crowd as the plan tells."""
    given = dict(reply)
    kind, roles = given.pop("kind"), given.pop("roles", [])
    given.pop("title", None)
    if kind == "bimodal":
        name, n_items = given.pop("truth", ""), given.pop("n_items")
        truth = evaluation.balanced_truth(n_items)
        if has_data(name):
            truth = np.array([int(str(true)) for true in _read(name).truth.values()])[:n_items]
        crowd = evaluation.bimodal_crowd(truth, seed=seed, **given)
    else:
        if "skill" in given:
            given["skill"] = tuple(given["skill"])
        crowd = getattr(evaluation, f"{kind}_crowd")(seed=seed, **given)
    for role in roles:
        crowd = _with_role(crowd, role, seed)
    return crowd


def _with_role(crowd: Crowd, reply: Mapping[str, Any], seed: int) -> Crowd:
    given = {name: value for name, value in reply.items() if name not in ("title", "role", "extra")}
    changed: Crowd = getattr(evaluation, f"with_{reply['role']}")(crowd, seed=seed, **given)
    return changed


@lru_cache(maxsize=2)
def _crowd(reply: str, trouble: str, without: bool, seed: int) -> Crowd:
    crowd = draw_crowd(json.loads(reply), seed)
    if trouble == "null":
        return crowd
    crowd = _with_role(crowd, json.loads(trouble), seed)
    if not without:
        return crowd
    kept = (crowd.role == HONEST)[crowd.worker]
    rows = {"item": crowd.item[kept], "worker": crowd.worker[kept], "label": crowd.label[kept]}
    return crowd._replace(**rows)


# ── running one ──────────────────────────────────────────────────────────────────────────────


def measure(
    cell: Cell,
    method: str | None,
    crowd: Mapping[str, Any] | None,
    trouble: Mapping[str, Any] | None,
    digests: Mapping[str, str],
) -> dict[str, Any]:
    """Run a cell; errors in per cent."""
    began = process_time()
    drawn = None
    if crowd is not None:
        drawn = _crowd(json.dumps(crowd), json.dumps(trouble), cell.without, cell.seed)
    if method is None:
        assert drawn is not None
        found = _oracle(drawn)
    else:
        found = _run(cell, method, drawn)
    return {**found, "seconds": _round(process_time() - began, 2), **digests}


def _oracle(crowd: Crowd) -> dict[str, Any]:
    probs = evaluation.oracle_probs(crowd)
    return {
        "emitted": _round(100 * evaluation.oracle_error(crowd)),
        "log_loss": _round(evaluation.log_loss(probs, crowd.truth)),
        "ece": _round(100 * evaluation.calibration_error(probs, crowd.truth)),
        "bins": _bins(evaluation.reliability(probs, crowd.truth)),
        "scored": len(crowd.truth),
        "labels": len(crowd.label),
    }


def _run(cell: Cell, method: str, crowd: Crowd | None) -> dict[str, Any]:
    truth: Mapping[Hashable, Hashable]
    if crowd is None:
        table, truth = _read(cell.data).table, _read(cell.data).truth
    else:
        table = evaluation.label_table(crowd, text_ids=False)
        truth = dict(enumerate(crowd.truth.tolist()))
    n_items = len(set(table.item_ids))
    # Labels that come singly meet items that are still open; whole items are closed at once.
    open_items = n_items if cell.arrival == "labels" else 0
    run = stream(
        lambda: estimator(method, seed=cell.seed, open_items=open_items),
        table,
        truth,
        chunk_items=cell.chunk or n_items,
        warmup_items=cell.initial,
        order=cell.seed if cell.order == "random" else None,
        arrival="labels" if cell.arrival == "labels" else "items",
    )
    plain = cell.chunk == 50 and cell.arrival == "items" and not cell.trouble
    return {
        "emitted": _round(100 * run.emitted_error),
        "final": _round(100 * run.final_error),
        "log_loss": _round(run.log_loss),
        "ece": _round(100 * run.calibration_error),
        **({"bins": _bins(run.reliability)} if plain else {}),
        "scored": run.n_scored,
        "labels": len(table.labels),
        "chunk_ms": _round(1000 * median(run.seconds), 3),
    }


def _bins(counts: Any) -> list[list[float]]:
    """Items, confidence and right answers of each bin."""
    return [[int(n), _round(sure, 2), int(right)] for n, sure, right in counts]


def _round(value: float, digits: int = 4) -> float:
    return round(float(value), digits)


# ── what was measured ────────────────────────────────────────────────────────────────────────


class Summary(NamedTuple):
    """Runs that differ by their seed alone, in the order of their seeds."""

    runs: dict[int, dict[str, Any]]

    def values(self, field: str = "emitted") -> list[float]:
        return [run[field] for run in self.runs.values()]

    def mean(self, field: str = "emitted") -> float:
        return fmean(self.values(field))

    def bins(self) -> Any:
        """The counts of all runs, (15, 3)."""
        return np.sum(self.values("bins"), axis=0)


def standard_error(values: list[float]) -> float:
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


class Measured:
    """Finds what was measured."""

    def __init__(self, records: Iterable[Mapping[str, Any]], cells: Iterable[Cell]) -> None:
        """Take, of some records, those of some cells."""
        self.results = {Cell(**record["cell"]): record["result"] for record in records}
        self.wanted = list(cells)
        self._runs: dict[Cell, dict[int, dict[str, Any]]] = {}
        for cell in sorted(self.wanted, key=lambda cell: cell.seed):
            if cell in self.results:
                plain = replace(cell, seed=0)
                self._runs.setdefault(plain, {})[cell.seed] = self.results[cell]

    def __call__(self, data: str, method: str, chunk: int = 50, **others: Any) -> Summary | None:
        """The runs of a cell over all seeds; None if there are none."""
        runs = self._runs.get(normal(Cell(data, method, 0, chunk, **others)))
        return Summary(runs) if runs else None

    def done(self, cells: Iterable[Cell]) -> tuple[int, int]:
        """How many of these cells there are, and how many they are."""
        asked = list(cells)
        return sum(cell in self.results for cell in asked), len(asked)
