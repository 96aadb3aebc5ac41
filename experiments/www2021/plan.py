"""What is run: a cell is data × method × protocol × seed, and a plan lists the cells."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
SYNTHETIC = {"cifar10": ("cifar10_truth", 50_000), "pendigits": ("pendigits_truth", 10_992)}
"""The true labels of each synthetic crowd, and their number."""
SLOW_SECONDS = 20  # cells that take longer are run last
LISTS = ("data", "chunk", "initial", "order", "again", "crowd", "spread")
"""Fields of a block that are lists: the block has every combination of them."""


@dataclass(frozen=True)
class Cell:
    """One run."""

    data: str
    method: str
    seed: int
    chunk: int  # 0: offline
    initial: int = 0
    order: str = "file"
    again: bool = False  # the initial set is streamed again
    crowd: str = "homogeneous"  # or "structured", as the file the authors published
    workers: int = 10
    noise: float = 0.6
    missing: float = 0.1
    spread: float = 0.0
    items: int = 0  # 0: all
    settings: tuple[tuple[str, Any], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The fields that differ from their defaults."""
        defaults = {field.name: field.default for field in fields(self)}
        given = {name: value for name, value in asdict(self).items() if value != defaults[name]}
        return given | ({"settings": dict(self.settings)} if self.settings else {})

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> "Cell":
        return cls(**{**given, "settings": tuple(sorted(given.get("settings", {}).items()))})

    @property
    def crowd_fields(self) -> tuple[Any, ...]:
        """What the labels depend on."""
        own = (self.crowd, self.workers, self.noise, self.missing, self.spread)
        return (self.data, *own, self.items, self.seed)


class Plan(NamedTuple):
    """The methods, the blocks of cells, and what is said about a cell that differs."""

    methods: dict[str, dict[str, Any]]
    blocks: list[dict[str, Any]]
    probes: list[dict[str, Any]]
    crowd_items: int  # maximum number of items of a synthetic crowd; 0: all

    def cells(self, seeds: int | None = None) -> list[Cell]:
        """Every cell once: slow cells last, small data first, cells of one crowd together."""
        found = [cell for block in self.blocks for cell in expand(block, seeds)]
        sized = [replace(cell, items=cell.items or self._size(cell)) for cell in found]
        sizes = {"pendigits": 1, "cifar10": 2}
        return sorted(
            dict.fromkeys(sized),
            key=lambda c: (self.cost(c) > SLOW_SECONDS, sizes.get(c.data, 0), *c.crowd_fields),
        )

    def _size(self, cell: Cell) -> int:
        return self.crowd_items if cell.data in SYNTHETIC else 0

    def cost(self, cell: Cell) -> float:
        """The expected time in seconds."""
        n_items = SYNTHETIC[cell.data][1] if cell.data in SYNTHETIC else 800
        slower = max(1.0, dict(cell.settings).get("epochs", 20) / 20)
        return 0.1 + slower * self.methods[cell.method]["cost"] * (cell.items or n_items) / 10_000


def read_plan(name: str) -> Plan:
    """Read a plan; one without methods has those of `plan.toml`."""
    full = tomllib.loads((HERE / "plan.toml").read_text(encoding="utf-8"))
    plan = tomllib.loads((HERE / name).read_text(encoding="utf-8"))
    methods = plan.get("methods", full["methods"])
    return Plan(methods, plan["block"], plan.get("probe", []), plan.get("crowd_items", 0))


def expand(block: Mapping[str, Any], seeds: int | None = None) -> Iterator[Cell]:
    """The cells of a block; `vary` changes one field at a time."""
    lists = {name: block[name] for name in LISTS if name in block}
    protocols = [dict(zip(lists, values, strict=True)) for values in product(*lists.values())]
    settings = block.get("settings", {})
    options = [
        tuple(sorted(zip(settings, values, strict=True))) for values in product(*settings.values())
    ]
    vary = block.get("vary", {})
    away = [{name: value} for name, values in vary.items() for value in values] or [{}]
    n_seeds = block["seeds"] if seeds is None else min(seeds, block["seeds"])
    for protocol, change, option, method in product(protocols, away, options, block["methods"]):
        for seed in range(n_seeds):
            own = {"settings": option, "items": block.get("items", 0), **protocol, **change}
            cell = Cell(method=method, seed=seed, **own)
            # The oracle looks at the crowd, not at its chunks.
            yield replace(cell, chunk=0, initial=0) if method == "oracle" else cell


def changed(cell: Cell, change: Mapping[str, Any]) -> Cell:
    """The same cell with other fields, or other settings of the method."""
    own = {name: value for name, value in change.items() if name in asdict(cell)}
    settings = {**dict(cell.settings), **{n: v for n, v in change.items() if n not in own}}
    return replace(cell, **own, settings=tuple(sorted(settings.items())))
