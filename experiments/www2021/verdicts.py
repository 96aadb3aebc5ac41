"""Tables 1, 2 and 3: the printed figures beside ours, with a verdict on every cell and the reason.

A reason is only given where it was measured: a probe of the plan changes one thing.
"""

import tomllib
from collections.abc import Mapping
from math import sqrt
from typing import Any, NamedTuple

from cells import HERE, SYNTHETIC, Cell, Measured, Plan, Summary, changed

PAPER = tomllib.loads((HERE / "paper.toml").read_text(encoding="utf-8"))
MATCHES, BETTER, WORSE, NONE = "matches within noise", "better", "worse", "data not available"
NO_CELL = "not measured"
RULE = (
    "A cell matches within noise if it differs from the printed figure by at most 2·√(s² + b²): "
    "s is our standard deviation over seeds, and b is the binomial standard deviation of the "
    "printed error over as many items as were scored, because the paper tells no deviation of its "
    "own. Otherwise the cell is better (fewer errors than printed) or worse. b is generous where "
    "the items are the paper's own, so the difference is told as well."
)
PRESETS = ("authors", "www2021", "default")
ABILITY = ("authors_wa", "www2021_wa", "default_wa")
SPREAD = 0.22  # of the row with workers who differ
ONLINE = ("mv", "oem", "ommce", "laa", *PRESETS, *ABILITY)
OFFLINE = ("mv", "em", "bcc", "me", "mmce", "laa", *PRESETS, *ABILITY)


class Verdict(NamedTuple):
    word: str
    difference: float  # ours less printed, in points
    noise: float  # the most that still matches


def judge(printed: float, ours: Summary) -> Verdict:
    """Hold a mean over seeds against one printed figure; `RULE` in words."""
    share = printed / 100
    binomial = 100 * sqrt(share * (1 - share) / ours.scored)
    noise = 2 * sqrt(ours.sd**2 + binomial**2)
    difference = ours.mean - printed
    if abs(difference) <= noise:
        return Verdict(MATCHES, difference, noise)
    return Verdict(BETTER if difference < 0 else WORSE, difference, noise)


def column(method: str) -> str:
    """The paper's column a method stands in."""
    return "bila" if method in (*PRESETS, *ABILITY) else method


# ── Table 1 ──────────────────────────────────────────────────────────────────────────────────


def table1(made: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Counts as printed and as found, and what differs."""
    rows = []
    for data, printed in PAPER["table1"].items():
        found = made["counts"].get(data)
        row = {"data": data, "title": printed["title"], "printed": printed, "found": found}
        if found is None:
            absent = not made["data"].get(data, True)
            rows.append({**row, "verdict": NONE if absent else NO_CELL, "remark": ""})
            continue
        names = ("workers", "items", "labels", "classes")
        rounding = 0.005 if data in SYNTHETIC else 0  # the paper rounds these to thousands
        off = [n for n in names if abs(found[n] - printed[n]) > rounding * printed[n]]
        told = "; ".join(
            f"{n}: printed {printed[n]:,}{_in_text(printed, n)}, found {found[n]:,}" for n in off
        )
        if data in SYNTHETIC and "labels" in off:
            tenfold = found["labels"] / printed["labels"]
            told += f" ({tenfold:.1f} times as many)"
        row["same_file"] = data in SYNTHETIC or not {"workers", "items", "labels"} & set(off)
        rows.append({**row, "verdict": "differs" if off else "as printed", "remark": told})
    return rows


def _in_text(printed: Mapping[str, Any], name: str) -> str:
    """What the text says, where it is not what Table 1 says."""
    other = printed.get(f"{name}_in_text")
    return "" if other is None else f" (the text says {other})"


# ── Table 2 ──────────────────────────────────────────────────────────────────────────────────

# The rows beside those of the paper: what else is different, and how it is told.
VARIANTS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "cifar10": [("", {}), (f"noise rates of workers differ by ±{SPREAD}", {"spread": SPREAD})],
    "pendigits": [("", {}), (f"noise rates of workers differ by ±{SPREAD}", {"spread": SPREAD})],
    "age": [("file order", {}), ("random orders", {"order": "random"})],
    "rte": [
        ("file order", {}),
        ("random orders", {"order": "random"}),
        ("file order, initial set streamed again", {"again": True}),
    ],
}


def table2(measured: Measured, plan: Plan, made: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The online errors: a row for each data set, variant and chunk size."""
    rows = []
    for data, printed in PAPER["table2"].items():
        for variant, fields in VARIANTS[data]:
            for place, chunk in enumerate(printed["chunks"]):
                base = Cell(data, "mv", 0, chunk, printed["initial"], **fields)
                row = {
                    "data": data,
                    "title": PAPER["table1"][data]["title"],
                    "variant": variant,
                    "chunk": chunk,
                    "initial": printed["initial"],
                    "cells": [
                        _cell(measured, plan, base, method, printed[column(method)][place], place)
                        for method in ONLINE
                    ],
                }
                limit = measured(data, "oracle", spread=fields.get("spread", 0.0))
                row["oracle"] = _told(limit)
                row["available"] = any("mean" in cell for cell in row["cells"])
                if row["available"] or fields == {}:
                    rows.append(_without_data(row, made))
    return rows


def _without_data(row: dict[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
    """Say of each cell that there is nothing to measure, where there is no data."""
    if not made["data"].get(row["data"], True):
        row["cells"] = [{**cell, "verdict": NONE} for cell in row["cells"]]
    return row


def _told(summary: Summary | None) -> dict[str, Any] | None:
    if summary is None:
        return None
    told = {"mean": summary.mean, "sd": summary.sd, "errors": summary.errors}
    return {**told, "mean": round(summary.mean, 4), "sd": round(summary.sd, 4)}


def _cell(
    measured: Measured, plan: Plan, base: Cell, method: str, printed: float, place: int | None
) -> dict[str, Any]:
    """One method's figures, verdict and reasons; `place` is that of the chunk size in Table 2."""
    told: dict[str, Any] = {
        "method": method,
        "title": plan.methods[method]["title"],
        "printed": printed,
    }
    cell = changed(base, {"method": method})
    ours = measured.of(cell)
    if ours is None:
        return {**told, "verdict": NO_CELL}
    verdict = judge(printed, ours)
    chunk_seconds, rounds = ours.average("chunk_seconds"), ours.average("rounds")
    return {
        **told,
        **(_told(ours) or {}),
        "verdict": verdict.word,
        "difference": round(verdict.difference, 4),
        "noise": round(verdict.noise, 4),
        "chunk_milliseconds": None if chunk_seconds is None else round(1000 * chunk_seconds, 2),
        "rounds": None if rounds is None else round(rounds, 1),
        "why": []
        if verdict.word == MATCHES or place is None
        else reasons(measured, plan, cell, place),
    }


# ── reasons ──────────────────────────────────────────────────────────────────────────────────


def reasons(measured: Measured, plan: Plan, cell: Cell, place: int) -> list[dict[str, Any]]:
    """What the probes of a cell of Table 2 measured; Pendigits stands in for CIFAR-10."""
    found = []
    for probe in plan.probes:
        data = cell.data if cell.data in probe["data"] else "pendigits"
        base = changed(cell, {"data": data})
        other = changed(base, probe["change"])
        stands_in = data == cell.data or cell.data == "cifar10"
        if not stands_in or data not in probe["data"] or cell.method != probe["method"]:
            continue
        before, after = measured.of(base), measured.of(other)
        if before is None or after is None or other == base:
            continue
        printed = PAPER["table2"][data][column(cell.method)][place]
        where = f"On {PAPER['table1'][data]['title']}, with " if data != cell.data else "With "
        explains, relation = relate(printed, before, after)
        sentence = f"{where}{probe['says']}: {after}, {relation}."
        found.append({"explains": explains, "sentence": sentence})
    return sorted(found, key=lambda reason: not reason["explains"])


def relate(printed: float, before: Summary, after: Summary) -> tuple[bool, str]:
    """Whether a change takes away half of a difference or more, and what it does to it."""
    gap, left = before.mean - printed, after.mean - printed
    # Both are means of ours: what counts is their standard errors.
    error = sqrt(sum(each.sd**2 / len(each.errors) for each in (before, after)))
    if abs(after.mean - before.mean) <= 2 * error:
        return False, "no change beyond noise"
    within = ", within noise" if judge(printed, after).word == MATCHES else ""
    return abs(left) <= abs(gap) / 2, f"which leaves {left:+.2f} of {gap:+.2f} points{within}"


# ── Table 3 ──────────────────────────────────────────────────────────────────────────────────


def table3(measured: Measured, plan: Plan, made: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The offline errors: a row for each data set."""
    rows = []
    for data, printed in PAPER["table3"].items():
        base = Cell(data, "mv", 0, 0)
        cells = [
            _cell(measured, plan, base, method, printed[column(method)], None) for method in OFFLINE
        ]
        title = PAPER["table1"][data]["title"]
        available = any("mean" in cell for cell in cells)
        row = {"data": data, "title": title, "cells": cells, "available": available}
        rows.append(_without_data(row, made))
    return rows


def fractions() -> list[str]:
    """Printed offline errors that are no whole number of the items Table 1 tells."""
    found = []
    for data, printed in PAPER["table3"].items():
        n_items = PAPER["table1"][data]["items"]
        for method, error in printed.items():
            wrong = error * n_items / 100
            # Two decimals, rounded or cut.
            if abs(wrong - round(wrong)) > 0.0101 * n_items / 100:
                title = PAPER["table1"][data]["title"]
                name = "BiLA" if method == "bila" else method.upper()
                found.append(f"{title} {name} {error:.2f} % ({wrong:.1f} of {n_items})")
    return found


def tally(*tables: list[dict[str, Any]]) -> dict[str, int]:
    """How many measured cells got each verdict."""
    words = [cell["verdict"] for table in tables for row in table for cell in row["cells"]]
    return {word: words.count(word) for word in (MATCHES, BETTER, WORSE)}
