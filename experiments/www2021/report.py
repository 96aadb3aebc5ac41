"""The report: JSON files, pictures, one HTML page that needs nothing else, and README's table.

Every sentence that tells a result is put together from the figures beside it.
"""

import json
from collections import Counter
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import figures
from cells import SYNTHETIC, Measured, Plan
from claims import FAILS, HOLDS, IN_PART, NOT_MEASURED, check_all
from pages import STYLE, badge, counted, figure, listing, section, table, write_readme
from verdicts import (
    MATCHES,
    NO_CELL,
    NONE,
    PAPER,
    PRESETS,
    RULE,
    WORSE,
    fractions,
    table1,
    table2,
    table3,
    tally,
)

SAID = {
    HOLDS: "true throughout",
    IN_PART: "true in part",
    FAILS: "not true here",
    NOT_MEASURED: "not measured",
}
Made = Mapping[str, Any]
Rows = list[dict[str, Any]]


def write_all(measured: Measured, plan: Plan, made: Made, folder: Path) -> None:
    """Write everything the report consists of."""
    results = folder / "results"
    tables = {
        "table1": table1(made),
        "table2": table2(measured, plan, made),
        "table3": table3(measured, plan, made),
    }
    prose = check_all(measured, {data for data, there in made["data"].items() if not there})
    for name, rows in {**tables, "prose": prose}.items():
        _write_json(results / f"{name}.json", {"made": made, "rows": rows})
    pictures = {}
    for name, (make, columns, caption) in figures.FIGURES.items():
        panels = make(measured)
        _write_json(results / f"{name}.json", {"made": made, "panels": panels})
        if panels:
            picture = figures.svg(figures.draw(panels, columns))
            figures.save(picture, results / f"{name}.svg")
            pictures[name] = figure(figures.inline(picture, name, caption), caption)
        else:
            pictures[name] = f"<p>{escape(caption.partition('.')[0])}: {NO_CELL}.</p>"
    html = whole_page(made, plan, tables, prose, pictures)
    (results / "report.html").write_text(html, encoding="utf-8")
    write_readme(folder, made, tables)


def _write_json(path: Path, content: Any) -> None:
    text = json.dumps(content, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


# ── the page ─────────────────────────────────────────────────────────────────────────────────


def whole_page(
    made: Made, plan: Plan, tables: dict[str, Rows], prose: Rows, pictures: dict[str, str]
) -> str:
    body = [
        "<h1>BiLA reproduced</h1>",
        f"<p class=lead>{escape(PAPER['source'])}, beside what LabelQuorum measures.</p>",
        _summary(made, tables, prose),
        section("How to read it", f"<p>{escape(RULE)}</p>" + _legend()),
        section("Where BiLA errs more than printed", _worse(tables)),
        section("Table 1: the data", _first_table(made, tables["table1"])),
        section("Table 2: online", _second_table(tables["table2"])),
        section("Time and iterations", _time_table(tables["table2"])),
        section("Table 3: offline", _third_table(tables["table3"], tables["table1"])),
        section("Figures 2, 4, 5 and 6", "".join(pictures.values())),
        section("What the text says", _prose(prose)),
        section("How it was made", _making(made, plan)),
    ]
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>BiLA reproduced</title><style>{STYLE}</style><main>{''.join(body)}</main></html>\n"
    )


def _summary(made: Made, tables: dict[str, Rows], prose: Rows) -> str:
    found = tally(tables["table2"], tables["table3"])
    n_cells = sum(found.values())
    said = Counter(row["verdict"] for row in prose)
    told = ", ".join(f"{said[word]} {verb}" for word, verb in SAID.items())
    missing = [row["title"] for row in tables["table1"] if row["verdict"] == NONE]
    lines = [
        f"{n_cells} cells of Tables 2 and 3 were measured, variants of the protocol included: "
        f"{counted(found)}.",
        f"{len(prose)} statements of the text: {told}.",
    ]
    if missing:
        lines.append(f"Data not available: {', '.join(missing)}.")
    for preset in PRESETS:
        counts = Counter(
            cell["verdict"]
            for name in ("table2", "table3")
            for row in tables[name]
            for cell in row["cells"]
            if cell["method"] == preset and "mean" in cell
        )
        if counts:
            lines.append(f"BiLA with the preset {preset}: {counted(counts)}.")
    return listing(escape(line) for line in lines)


def _worse(tables: dict[str, Rows]) -> str:
    """The cells of BiLA that err more than printed, each with what was measured about it."""
    lines = []
    for row in (*tables["table2"], *tables["table3"]):
        for cell in row["cells"]:
            if cell["method"] in PRESETS and cell["verdict"] == WORSE:
                variant = f", {row['variant']}" if row.get("variant") else ""
                how = f", chunks of {row['chunk']}" if "chunk" in row else ", offline"
                ours = f"{cell['mean']:.2f} ± {cell['sd']:.2f}"
                where = f"<b>{escape(cell['title'])}, {row['title']}{variant}{how}</b>"
                told = f"{ours}, printed {cell['printed']:.2f}. {_why(cell, variant)}"
                lines.append(f"{where}: {escape(told)}")
    return listing(lines) or "<p>None.</p>"


def _why(cell: Mapping[str, Any], variant: str = "") -> str:
    """What changing one thing does to a cell that differs; nothing more is known of the reason."""
    told = " ".join(reason["sentence"] for reason in cell["why"])
    if any(reason["explains"] for reason in cell["why"]):
        return told
    if told:
        return f"Nothing that was tried takes away half of it. {told}"
    if cell["method"] in ("default", "default_wa"):
        return "Not the paper's settings; docs/paper.md numbers where it departs."
    return f"Nothing was tried{' on this variant' if variant else ''}."


def _legend() -> str:
    return listing(
        [
            "<b>authors</b> behaves as the authors' released code, <b>www2021</b> is Algorithm 1 "
            "to the letter, <b>BiLA()</b> is our default.",
            "Figures are errors in per cent, mean ± standard deviation over seeds.",
            "The <b>oracle</b> is Bayes' rule with the crowd's true matrices: nobody can expect to "
            "err less.",
            "<b>oEM</b> and <b>oMMCE</b> see each chunk alone, as in the paper; LAA and BiLA learn "
            "on.",
            "<b>BiLA-WA</b>, for two classes, is held against the figure of BiLA-CM: the paper "
            "prints none for it.",
        ]
    )


def _first_table(made: Made, rows: Rows) -> str:
    names = ("workers", "items", "labels", "classes")
    head = [
        "data",
        *(f"{name}, printed" for name in names),
        *(f"{name}, here" for name in names),
        "",
    ]
    lines = []
    for row in rows:
        found = row["found"] or {}
        here = [f"{found[name]:,}" if name in found else "–" for name in names]
        printed = [f"{row['printed'][name]:,}" for name in names]
        lines.append(
            [escape(row["title"]), *printed, *here, badge(row["verdict"]) + f" {row['remark']}"]
        )
    notes = []
    for data, exact in made["truth"].items():
        if not exact:
            title = PAPER["table1"][data]["title"]
            notes.append(
                f"{title}: its true labels were not there; the crowd labelled balanced digits."
            )
    return table(head, lines) + listing(map(escape, notes))


def _second_table(rows: Rows) -> str:
    parts = []
    for data, variant in dict.fromkeys((row["data"], row["variant"]) for row in rows):
        pair = [row for row in rows if (row["data"], row["variant"]) == (data, variant)]
        title = f"{pair[0]['title']}{', ' if variant else ''}{variant}"
        parts.append(f"<h3>{escape(title)}</h3>")
        if not pair[0]["available"] and not pair[-1]["available"]:
            parts.append(f"<p>{badge(NO_CELL if data in SYNTHETIC else NONE)}</p>")
        parts.append(f"<p>Initial set {pair[0]['initial']}.{_limit(pair[0])}</p>")
        head = ["method"]
        for row in pair:
            head += [f"printed, chunks of {row['chunk']}", "here", "difference", "verdict"]
        lines = []
        for cells in zip(*(row["cells"] for row in pair), strict=True):
            if any("mean" in cell for cell in cells) or not pair[0]["available"]:
                if "-WA" in cells[0]["title"] and not any("mean" in cell for cell in cells):
                    continue
                lines.append(
                    [escape(cells[0]["title"]), *(text for c in cells for text in _four(c))]
                )
        parts.append(table(head, lines))
        parts.append(_reasons(pair))
    return "".join(parts)


def _limit(row: Mapping[str, Any]) -> str:
    if not row["oracle"]:
        return ""
    return f" The oracle errs on {row['oracle']['mean']:.2f} ± {row['oracle']['sd']:.2f} %."


def _four(cell: Mapping[str, Any]) -> list[str]:
    if "mean" not in cell:
        return [f"{cell['printed']:.2f}", "–", "–", badge(cell["verdict"])]
    ours = f"{cell['mean']:.2f} ± {cell['sd']:.2f}"
    return [f"{cell['printed']:.2f}", ours, f"{cell['difference']:+.2f}", badge(cell["verdict"])]


def _reasons(pair: Rows) -> str:
    lines = []
    for row in pair:
        for cell in row["cells"]:
            if "mean" not in cell or cell["verdict"] == MATCHES:
                continue
            where = f"{cell['title']}, chunks of {row['chunk']}, {cell['verdict']}"
            lines.append(f"<b>{escape(where)}</b>: {escape(_why(cell, row['variant']))}")
    if not lines:
        return ""
    told = f"{len(lines)} that differ, and what one change does"
    return f"<details><summary>{told}</summary>{listing(lines)}</details>"


def _time_table(rows: Rows) -> str:
    shown = [row for row in rows if row["available"]]
    if not shown:
        return f"<p>{NO_CELL}.</p>"
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
        "Median processor time a chunk after the initial set, on one core, and the mean number of "
        "rounds: epochs of LAA and BiLA, iterations of EM and MMCE. The chunk that is compiled for "
        "does not move the median."
    )
    return f"<p>{note}</p>" + table(head, lines)


def _third_table(rows: Rows, data: Rows) -> str:
    parts = []
    for row in rows:
        parts.append(f"<h3>{escape(row['title'])}</h3>")
        [facts] = (each for each in data if each["data"] == row["data"])
        if row["available"] and not facts["same_file"]:
            remark = f"Not the paper's counts ({facts['remark']}), so it may not be the same file."
            parts.append(f"<p>{escape(remark)}</p>")
        if not row["available"]:
            parts.append(f"<p>{badge(NONE)}</p>")
        lines = [
            [escape(cell["title"]), *_four(cell)]
            for cell in row["cells"]
            if "mean" in cell or not ("-WA" in cell["title"] or row["available"])
        ]
        parts.append(table(["method", "printed", "here", "difference", "verdict"], lines))
    if odd := fractions():
        sentence = f"{len(odd)} printed errors are no whole number of the items in Table 1: "
        parts.append(f"<p>{escape(sentence + '; '.join(odd))}.</p>")
    return "".join(parts)


def _prose(prose: Rows) -> str:
    parts = []
    for row in prose:
        marks = [
            f"{'✓' if part['holds'] else '✗'} {escape(part['figures'])}" for part in row["parts"]
        ]
        untested = f"; {' and '.join(row['untested'])} not available" if row["untested"] else ""
        read = f"<p>Read as: {escape(row['criterion'])}.</p>" if row["criterion"] else ""
        parts.append(
            f"<article><h3>{escape(row['says'])}</h3>"
            f"<p>{escape(row['where'])}. {badge(row['verdict'])}{untested}</p>"
            f"{read}{listing(marks)}</article>"
        )
    return "".join(parts)


def _making(made: Made, plan: Plan) -> str:
    minutes = made["cell_seconds"] / 60
    lines = [
        f"<code>{escape(made['command'])}</code>: {made['cells']} runs, {minutes:.0f} minutes of "
        f"processor time, {made['session_seconds'] / 60:.0f} by the clock on a machine of "
        f"{made['cores']} cores. Other work may have run beside it.",
        f"labelquorum {made['labelquorum']}, JAX {made['jax']}, NumPy {made['numpy']}, "
        f"{escape(made['machine'])}.",
        "The printed figures are in <code>paper.toml</code>, what is run in "
        "<code>plan.toml</code>, every run in <code>results/cells.jsonl</code>.",
        "RTE's items come in the order of the file, or in random orders drawn by the seed. On "
        "synthetic data the seed draws the crowd as well.",
    ]
    return listing(lines)
