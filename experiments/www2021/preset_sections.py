"""The part of the page about one preset: its figures, its own target, and the statements."""

from collections.abc import Mapping
from html import escape
from typing import Any

from claims import NOT_TESTABLE, verdict_of
from pages import badge, counted, details, listing, paragraph, table
from summary import Results, limit_sentence, log_sentence
from table_sections import four, why
from tables import tally
from targets import LIMITS, LOG_TOLERANCES
from verdicts import MATCHES, NOT_MEASURED, OURS, PAPERS

SAY = {
    "authors": "Behaves as the code the authors released.",
    "www2021": "Algorithm 1 as we read it. The text leaves much open; docs/paper.md numbers every "
    "choice. This reading was chosen among about 90 after seeing the printed figures.",
    "default": "Our successor: the same loss, with another p and solver. Not the paper's settings.",
}


def preset_section(preset: str, results: Results, picture: str) -> str:
    parts = [
        paragraph(SAY[preset]),
        "<h3>Its cells of Tables 2 and 3</h3>",
        _cells(preset, results),
    ]
    if preset == "authors":
        parts += ["<h3>Beside the authors' log</h3>", _log(results.log), picture]
    if preset == "www2021":
        parts += ["<h3>Its optimiser</h3>", picture]
    if preset == "default":
        parts += ["<h3>On the crowds of Figure 4</h3>", _limits(results)]
    parts += ["<h3>What the text says</h3>", statements(preset, results)]
    return "".join(parts)


def _cells(preset: str, results: Results) -> str:
    lines, reasons = [], []
    for row in results.cells:
        [cell] = (cell for cell in row["cells"] if cell["method"] == preset)
        if "mean" not in cell and row["available"]:
            continue
        variant = f", {row['variant']}" if row.get("variant") else ""
        how = f"chunks of {row['chunk']}" if "chunk" in row else "offline"
        oracle = f"{row['oracle']['mean']:.2f}" if row.get("oracle") else "–"
        where = escape(f"{row['title']}{variant}, {how}")
        lines.append([where, *four(cell)[:3], oracle, badge(cell["verdict"])])
        if "mean" in cell and cell["verdict"] != MATCHES and cell["why"]:
            reasons.append(f"<b>{where}</b>: {escape(why(cell, variant))}")
    found = paragraph(f"{counted(tally(results.cells, (preset,)))}.")
    head = ["data and protocol", "printed", "here", "difference", "oracle", "verdict"]
    more = details("What one change does to those that differ", listing(reasons)) if reasons else ""
    return found + table(head, lines) + more


def _log(log: Mapping[str, Any] | None) -> str:
    if log is None:
        return paragraph(NOT_MEASURED.capitalize() + ".")
    lines = []
    for row in log["rows"]:
        within = {None: "only reported", True: "within", False: "outside"}[row["within"]]
        most = "–" if row["tolerance"] is None else f"±{row['tolerance']:g}"
        vote = "–" if row["vote"] is None else f"{row['vote']:.2f}"
        figures = [f"{row['log']:.2f}", f"{row['here']:.2f}", f"{row['difference']:+.2f}", most]
        lines.append([f"{row['items']:,}", *figures, f"{row['log_vote']:.2f}", vote, badge(within)])
    head = ["items so far", "log", "here", "difference", "tolerance"]
    head += ["log, vote", "here, vote", ""]
    few = (
        f"Points before {min(LOG_TOLERANCES):,} items are only reported: they depend on few items."
    )
    return paragraph(f"{log_sentence(dict(log))} {few}") + table(head, lines)


def _limits(results: Results) -> str:
    names = {"mv": "vote", "recipe": "recipe", "oracle": "oracle"}
    head = ["crowd", "workers", "missing", "noise", "BiLA()", *names.values()]
    for method, most in LIMITS.items():
        limit = f"at most {most:g}" if most else "at most 0"
        head.append(f"worst seed less {names[method]} ({limit})")
    lines = []
    for row in results.limits:
        errors = [f"{row['errors'][k]:.2f}" for k in ("default", *LIMITS)]
        excess = [f"{row['excess'][k]:+.2f}" for k in LIMITS]
        crowd = [escape(f"{row['title']}, {row['crowd']}"), str(row["workers"])]
        crowd += [f"{row['missing']:g}", f"{row['noise']:g}"]
        lines.append([*crowd, *errors, *excess, badge("within" if row["holds"] else "outside")])
    sentence = paragraph(limit_sentence(results.limits))
    return sentence + (table([*head, ""], lines) if lines else "")


# ── statements ───────────────────────────────────────────────────────────────────────────────


def statements(subject: str, results: Results) -> str:
    """Every statement about a preset, or about the baselines alone, with its verdict."""
    judged = [(row, verdict_of(row, subject, PAPERS)) for row in results.prose]
    return "".join(_statement(row, one, subject) for row, one in judged if one)


def _statement(row: Mapping[str, Any], one: Mapping[str, Any], subject: str) -> str:
    other = verdict_of(dict(row), subject, OURS)
    lines = [f"{escape(row['where'])}. {badge(one['verdict'])}{_without(row, one)}."]
    if other is not one and other:
        lines[0] += f" Beside baselines at {OURS}: {badge(other['verdict'])}."
    if row["criterion"]:
        lines.append(f"Read as: {escape(row['criterion'])}.")
    if row.get("remark"):
        lines.append(escape(row["remark"]))
    by = "; ".join(f"{escape(p['protocol'])}: {badge(p['verdict'])}" for p in one["protocols"])
    body = _parts(one)
    if other is not one and other:
        body += paragraph(f"Beside baselines at {OURS}:") + _parts(other)
    more = details(by, body) if by else ""
    text = "".join(f"<p>{line}</p>" for line in lines)
    return f"<article><h4>{escape(row['says'])}</h4>{text}{more}</article>"


def _without(row: Mapping[str, Any], one: Mapping[str, Any]) -> str:
    if not row["untested"]:
        return ""
    absent = " and ".join(row["untested"])
    if one["verdict"] == NOT_TESTABLE:
        instead = "; other data stand in below" if one["protocols"] else ""
        return f" without {absent} (data not available){instead}"
    return f", not tested on {absent} (data not available)"


def _parts(one: Mapping[str, Any]) -> str:
    lines = []
    for each in one["protocols"]:
        beside = "" if each["counts"] else " (shown beside, not counted)"
        for part in each["parts"]:
            mark = "✓" if part["holds"] else "✗"
            lines.append(f"{mark} {escape(each['protocol'])}{beside}: {escape(part['figures'])}")
    return listing(lines)
