"""The parts of the page that show Tables 1, 2 and 3 for all methods."""

from collections.abc import Mapping
from html import escape
from typing import Any

from pages import badge, details, listing, paragraph, table
from plan import SYNTHETIC
from summary import Results, Rows
from tables import fractions
from verdicts import MATCHES, NO_DATA, NOT_MEASURED, title

Cell = Mapping[str, Any]


def first_table(results: Results) -> str:
    names = ("workers", "items", "labels", "classes")
    head = ["data", *(f"{name}, printed" for name in names), *(f"{name}, here" for name in names)]
    lines = []
    for row in results.table1:
        found = row["found"] or {}
        here = [f"{found[name]:,}" if name in found else "–" for name in names]
        printed = [f"{row['printed'][name]:,}" for name in names]
        remark = f"{badge(row['verdict'])} {escape(row['remark'])}"
        lines.append([escape(row["title"]), *printed, *here, remark])
    notes = [
        f"{title(data)}: its true labels were not there; the crowd labelled balanced digits."
        for data, exact in results.made["truth"].items()
        if not exact
    ]
    return table([*head, ""], lines) + listing(map(escape, notes))


def second_table(rows: Rows) -> str:
    parts = []
    for data, variant in dict.fromkeys((row["data"], row["variant"]) for row in rows):
        pair = [row for row in rows if (row["data"], row["variant"]) == (data, variant)]
        crowd = variant or "homogeneous crowd"
        parts.append(f"<h3>{escape(pair[0]['title'])}, {escape(crowd)}</h3>")
        if not any(row["available"] for row in pair):
            parts.append(f"<p>{badge(NOT_MEASURED if data in SYNTHETIC else NO_DATA)}</p>")
        parts.append(f"<p>Initial set {pair[0]['initial']}.{_limit(pair[0])}</p>")
        head = ["method"]
        for row in pair:
            head += [f"printed, chunks of {row['chunk']}", "here", "difference", "verdict"]
        lines = [
            [escape(cells[0]["title"]), *(text for cell in cells for text in four(cell))]
            for cells in zip(*(row["cells"] for row in pair), strict=True)
            if any("mean" in cell for cell in cells)
        ]
        parts.append(table(head, lines) if lines else "")
        parts.append(_reasons(pair))
    return "".join(parts)


def _limit(row: Mapping[str, Any]) -> str:
    if not row["oracle"]:
        return ""
    return f" The oracle errs on {row['oracle']['mean']:.2f} ± {row['oracle']['sd']:.2f} %."


def four(cell: Cell) -> list[str]:
    """Printed, ours, the difference, and the verdict."""
    if "mean" not in cell:
        return [f"{cell['printed']:.2f}", "–", "–", badge(cell["verdict"])]
    ours = f"{cell['mean']:.2f} ± {cell['sd']:.2f}"
    return [f"{cell['printed']:.2f}", ours, f"{cell['difference']:+.2f}", badge(cell["verdict"])]


def why(cell: Cell, variant: str = "") -> str:
    """What changing one thing does to a cell that differs; no more is known of the reason."""
    sentences = " ".join(reason["sentence"] for reason in cell["why"])
    if any(reason["explains"] for reason in cell["why"]):
        return sentences
    if sentences:
        return f"Nothing that was tried takes away half of it. {sentences}"
    return f"Nothing was tried{' on this variant' if variant else ''}."


def _reasons(pair: Rows) -> str:
    lines = []
    for row in pair:
        for cell in row["cells"]:
            if "mean" not in cell or cell["verdict"] == MATCHES or not cell["why"]:
                continue
            where = f"{cell['title']}, chunks of {row['chunk']}, {cell['verdict']}"
            lines.append(f"<b>{escape(where)}</b>: {escape(why(cell, row['variant']))}")
    return details("What one change does to those that differ", listing(lines)) if lines else ""


def time_table(rows: Rows) -> str:
    shown = [row for row in rows if row["available"]]
    if not shown:
        return paragraph(NOT_MEASURED.capitalize() + ".")
    head = ["method"]
    for row in shown:
        variant = f", {row['variant']}" if row["variant"] else ""
        head.append(f"{row['title']}{variant}, chunks of {row['chunk']}")
    lines = []
    for cells in zip(*(row["cells"] for row in shown), strict=True):
        if any("mean" in cell for cell in cells):
            texts = [
                f"{cell['chunk_milliseconds']:.1f} ms · {cell['rounds']:g}"
                if "mean" in cell
                else "–"
                for cell in cells
            ]
            lines.append([escape(cells[0]["title"]), *texts])
    note = (
        "Median processor time per chunk after the initial set, on one core, and the mean number "
        "of rounds: epochs of LAA and BiLA, iterations of EM and MMCE. Compilation does not affect "
        "the median."
    )
    return paragraph(note) + table(head, lines)


def third_table(results: Results) -> str:
    parts = []
    for row in results.table3:
        parts.append(f"<h3>{escape(row['title'])}</h3>")
        [facts] = (each for each in results.table1 if each["data"] == row["data"])
        if row["available"] and not facts["same_file"]:
            remark = f"Not the paper's counts ({facts['remark']}), so it may not be the same file."
            parts.append(paragraph(remark))
        if not row["available"]:
            parts.append(f"<p>{badge(row['cells'][0]['verdict'])}</p>")
            continue
        lines = [[escape(cell["title"]), *four(cell)] for cell in row["cells"] if "mean" in cell]
        parts.append(table(["method", "printed", "here", "difference", "verdict"], lines))
    if odd := fractions():
        sentence = f"{len(odd)} printed errors are no whole number of the items in Table 1: "
        parts.append(paragraph(f"{sentence}{'; '.join(odd)}."))
    return "".join(parts)
