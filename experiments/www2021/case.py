"""For whom a statement of the paper is judged: a preset, the baselines beside it, a protocol.

The paper speaks of its own algorithm, so every statement about it is judged once for each of our
presets, first beside baselines at the paper's settings, then beside ours.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from cells import Measured, Summary
from verdicts import BASELINES, PAPER, title

HOMOGENEOUS, STRUCTURED = "homogeneous crowd", "structured crowd"
FILE, RANDOM, AGAIN = "file order", "random orders", "initial set streamed again"
OFFLINE = "offline"
CROWDS: dict[str, dict[str, Any]] = {HOMOGENEOUS: {}, STRUCTURED: {"crowd": "structured"}}
ORDERS: dict[str, dict[str, Any]] = {FILE: {}, RANDOM: {"order": "random"}}
STREAMS = {**ORDERS, AGAIN: {"again": True}}
"""Protocols by name: of synthetic crowds; of real data without and with an initial set."""
PROTOCOLS = (HOMOGENEOUS, STRUCTURED, FILE, RANDOM, AGAIN, OFFLINE)
SYNTHETIC, REAL = ("cifar10", "pendigits"), ("rte", "age")
OTHERS = ("mv", "oem", "ommce", "laa")  # the baselines of Table 2
SIX = ("mv", "em", "bcc", "me", "mmce", "laa")  # those of Table 3
NAMES = {"mv": "MV", "oem": "EM", "ommce": "MMCE", "default": "BiLA()"}


class Part(NamedTuple):
    """One instance of a statement: whether it is so, and the figures that say it."""

    protocol: str
    holds: bool
    figures: str
    counts: bool = True  # False: shown beside, not part of the verdict


Parts = Iterable[Part]
Check = Callable[["Case", Any], Parts]


class Case(NamedTuple):
    """Finds what was measured for a preset and for the baselines beside it."""

    measured: Measured
    preset: str | None  # None: the baselines alone
    baselines: str

    @property
    def subjects(self) -> tuple[str, ...]:
        """The methods that a statement about all of them is judged for."""
        return ("mv", "oem") if self.preset is None else (self.preset,)

    def find(self, data: str, method: str, chunk: int = 0, **fields: Any) -> Summary | None:
        own = BASELINES[self.baselines].get(method, method)
        return self.measured(data, own, chunk, **fields)

    def online(self, data: str, method: str, place: int, **fields: Any) -> Summary | None:
        """A cell of Table 2 or Figure 4; place 0 is the small chunk."""
        if method == "oracle":  # it looks at the crowd, not at its chunks
            return self.find(data, method, **fields)
        printed = PAPER["table2"][data]
        chunk, initial = printed["chunks"][place], printed["initial"]
        return self.find(data, method, chunk, initial=initial, **fields)

    def others(self, data: str, place: int, **fields: Any) -> dict[str, Summary]:
        """The baselines of Table 2."""
        found = {name: self.online(data, name, place, **fields) for name in OTHERS}
        return {name: summary for name, summary in found.items() if summary}


def places() -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Where Table 2 is measured: protocol, data, both in words, and the fields of its cells."""
    for data, protocols in [(d, CROWDS) for d in SYNTHETIC] + [(d, STREAMS) for d in REAL]:
        for protocol, fields in protocols.items():
            yield protocol, data, title(data), fields


def name(method: str) -> str:
    return NAMES.get(method, method.upper() if method in SIX else method)


def best_of(found: dict[str, Summary]) -> str:
    return min(found, key=lambda method: found[method].mean)
