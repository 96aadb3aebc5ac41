"""Tables 1, 2 and 3: the printed figures beside ours, with a verdict on every cell and the reason.

A reason is given only where it was measured: a probe of the plan names a cell that differs in one
thing.
"""

from collections import Counter
from collections.abc import Mapping
from math import sqrt
from typing import Any

from cells import Measured, Summary
from plan import SYNTHETIC, Cell, Plan, changed
from verdicts import (
    ABILITY,
    BETTER,
    MATCHES,
    NO_DATA,
    NOT_MEASURED,
    PAPER,
    PRESETS,
    WORSE,
    judge,
    title,
)

Row = dict[str, Any]
SPREAD = 0.22  # of the rows in which workers differ
ONLINE = ("mv", "oem_paper", "oem", "ommce_paper", "ommce", "laa_paper", "laa", *PRESETS, *ABILITY)
OFFLINE = ("mv", "em_paper", "em", "bcc", "me", "mmce_paper", "mmce", "laa_paper", "laa")
OFFLINE += (*PRESETS, *ABILITY)
_CROWDS: list[tuple[str, dict[str, Any]]] = [
    ("", {}),
    ("initial set streamed again", {"again": True}),
    (f"noise rates of workers differ by ±{SPREAD}", {"spread": SPREAD}),
    ("structured crowd", {"crowd": "structured"}),
    ("structured crowd, initial set streamed again", {"crowd": "structured", "again": True}),
]
_ORDERS: list[tuple[str, dict[str, Any]]] = [
    ("file order", {}),
    ("random orders", {"order": "random"}),
    ("file order, initial set streamed again", {"again": True}),
]
PROTOCOLS = {"cifar10": _CROWDS, "pendigits": _CROWDS, "age": _ORDERS, "rte": _ORDERS}
"""The rows of Table 2 by data: how a row is called, and the fields of its cells."""


def column(method: str) -> str:
    """The paper's column of a method."""
    return "bila" if method in (*PRESETS, *ABILITY) else method.removesuffix("_paper")


# ── Table 1 ──────────────────────────────────────────────────────────────────────────────────


def table1(made: Mapping[str, Any]) -> list[Row]:
    """Counts as printed and as found, and what differs."""
    rows = []
    for data, printed in PAPER["table1"].items():
        found = made["counts"].get(data)
        row = {"data": data, "title": printed["title"], "printed": printed, "found": found}
        if found is None:
            absent = not made["data"].get(data, True)
            rows.append({**row, "verdict": NO_DATA if absent else NOT_MEASURED, "remark": ""})
            continue
        names = ("workers", "items", "labels", "classes")
        rounding = 0.005 if data in SYNTHETIC else 0  # the paper rounds these to thousands
        off = [n for n in names if abs(found[n] - printed[n]) > rounding * printed[n]]
        remark = "; ".join(
            f"{n}: printed {printed[n]:,}{_in_text(printed, n)}, found {found[n]:,}" for n in off
        )
        if data in SYNTHETIC and "labels" in off:
            tenfold = found["labels"] / printed["labels"]
            remark += f" ({tenfold:.1f} times as many)"
        row["same_file"] = data in SYNTHETIC or not {"workers", "items", "labels"} & set(off)
        rows.append({**row, "verdict": "differs" if off else "as printed", "remark": remark})
    return rows


def _in_text(printed: Mapping[str, Any], name: str) -> str:
    """What the text says, where it is not what Table 1 says."""
    other = printed.get(f"{name}_in_text")
    return "" if other is None else f" (the text says {other})"


# ── Tables 2 and 3 ───────────────────────────────────────────────────────────────────────────


def table2(measured: Measured, plan: Plan, made: Mapping[str, Any]) -> list[Row]:
    """The online errors: a row for each data set, protocol and chunk size."""
    rows = []
    for data, printed in PAPER["table2"].items():
        for variant, fields in PROTOCOLS[data]:
            for place, chunk in enumerate(printed["chunks"]):
                base = Cell(data, "mv", 0, chunk, printed["initial"], **fields)
                cells = [
                    _cell(measured, plan, base, method, printed[column(method)][place], place)
                    for method in ONLINE
                ]
                row = {
                    "data": data,
                    "title": title(data),
                    "variant": variant,
                    "chunk": chunk,
                    "initial": printed["initial"],
                    "cells": cells,
                    "available": any("mean" in cell for cell in cells),
                }
                crowd = {name: fields[name] for name in ("spread", "crowd") if name in fields}
                row["oracle"] = _figures(measured(data, "oracle", **crowd))
                if row["available"] or fields == {}:
                    rows.append(_without_data(row, made))
    return rows


def table3(measured: Measured, plan: Plan, made: Mapping[str, Any]) -> list[Row]:
    """The offline errors: a row for each data set."""
    rows = []
    for data, printed in PAPER["table3"].items():
        base = Cell(data, "mv", 0, 0)
        cells = [
            _cell(measured, plan, base, method, printed[column(method)], None) for method in OFFLINE
        ]
        available = any("mean" in cell for cell in cells)
        row = {"data": data, "title": title(data), "cells": cells, "available": available}
        rows.append(_without_data(row, made))
    return rows


def _without_data(row: Row, made: Mapping[str, Any]) -> Row:
    """Say of each cell that there is nothing to measure, where there is no data."""
    if not made["data"].get(row["data"], True):
        row["cells"] = [{**cell, "verdict": NO_DATA} for cell in row["cells"]]
    return row


def _figures(summary: Summary | None) -> dict[str, Any] | None:
    if summary is None:
        return None
    errors = list(summary.errors.values())
    return {"mean": round(summary.mean, 4), "sd": round(summary.sd, 4), "errors": errors}


def _cell(
    measured: Measured, plan: Plan, base: Cell, method: str, printed: float, place: int | None
) -> dict[str, Any]:
    """One method's figures, verdict and reasons; `place` is that of the chunk size in Table 2."""
    named = {"method": method, "title": plan.methods[method]["title"], "printed": printed}
    cell = changed(base, {"method": method})
    ours = measured.of(cell)
    if ours is None:
        return {**named, "verdict": NOT_MEASURED}
    verdict = judge(printed, ours)
    chunk_seconds, rounds = ours.average("chunk_seconds"), ours.average("rounds")
    explained = verdict.word == MATCHES or place is None
    return {
        **named,
        **(_figures(ours) or {}),
        "verdict": verdict.word,
        "difference": round(verdict.difference, 4),
        "noise": round(verdict.noise, 4),
        "chunk_milliseconds": None if chunk_seconds is None else round(1000 * chunk_seconds, 2),
        "rounds": None if rounds is None else round(rounds, 1),
        "why": [] if explained else reasons(measured, plan, cell, place or 0),
    }


# ── reasons ──────────────────────────────────────────────────────────────────────────────────


def reasons(measured: Measured, plan: Plan, cell: Cell, place: int) -> list[dict[str, Any]]:
    """What the probes of a cell of Table 2 measured."""
    found = []
    for probe in plan.probes:
        other = changed(cell, probe["change"])
        if cell.data not in probe["data"] or cell.method not in probe["methods"] or other == cell:
            continue
        before, after = measured.of(cell), measured.of(other)
        if before is None or after is None:
            continue
        printed = PAPER["table2"][cell.data][column(cell.method)][place]
        explains, relation = relate(printed, before, after)
        sentence = f"With {probe['says']}: {after}, {relation}."
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


# ── counts ───────────────────────────────────────────────────────────────────────────────────


def fractions() -> list[str]:
    """Printed offline errors that are no whole number of the items in Table 1."""
    found = []
    for data, printed in PAPER["table3"].items():
        n_items = PAPER["table1"][data]["items"]
        for method, error in printed.items():
            wrong = error * n_items / 100
            # Two decimals, rounded or cut.
            if abs(wrong - round(wrong)) > 0.0101 * n_items / 100:
                name = "BiLA" if method == "bila" else method.upper()
                found.append(f"{title(data)} {name} {error:.2f} % ({wrong:.1f} of {n_items})")
    return found


def tally(rows: list[Row], methods: tuple[str, ...]) -> dict[str, int]:
    """How many measured cells of these methods got each verdict."""
    words = Counter(c["verdict"] for row in rows for c in row["cells"] if c["method"] in methods)
    return {word: words[word] for word in (MATCHES, BETTER, WORSE)}
