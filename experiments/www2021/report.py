"""The report: JSON files, pictures, one HTML page that needs nothing else, and README's tables.

Every sentence that states a result is put together from the figures beside it.
"""

import json
from html import escape
from pathlib import Path
from typing import Any

import figures
from case import PROTOCOLS
from cells import Measured
from claims import BASELINES, FAILS, HOLDS, IN_PART, NOT_TESTABLE, check_all
from pages import badge, figure, listing, page, paragraph, section, table
from plan import Plan
from preset_sections import preset_section, statements
from summary import (
    Results,
    cell_sentences,
    limit_sentence,
    log_sentence,
    protocol_counts,
    statement_counts,
    write_readme,
)
from table_sections import first_table, second_table, third_table, time_table
from tables import table1, table2, table3
from targets import authors_log, default_limits
from verdicts import NO_DATA, NOT_MEASURED, OURS, PAPER, PAPERS, PRESET_TITLES, RULE, SETTINGS


def write_all(measured: Measured, plan: Plan, made: dict[str, Any], folder: Path) -> None:
    """Write everything the report consists of."""
    target = folder / "results"
    results = Results(
        made,
        table1(made),
        table2(measured, plan, made),
        table3(measured, plan, made),
        check_all(measured, {data for data, there in made["data"].items() if not there}),
        authors_log(measured),
        default_limits(measured),
    )
    for name in ("table1", "table2", "table3", "prose", "log", "limits"):
        _write_json(target / f"{name}.json", {"made": made, "rows": getattr(results, name)})
    pictures = {}
    for name, (make, columns, caption) in figures.FIGURES.items():
        panels = make(measured)
        if name != "log":  # log.json has more than the picture
            _write_json(target / f"{name}.json", {"made": made, "panels": panels})
        if panels:
            picture = figures.svg(figures.draw(panels, columns))
            figures.save(picture, target / f"{name}.svg")
            pictures[name] = figure(figures.inline(picture, name, caption), caption)
        else:
            pictures[name] = paragraph(f"{caption.partition('.')[0]}: {NOT_MEASURED}.")
    html = whole_page(plan, results, pictures)
    (target / "report.html").write_text(html, encoding="utf-8")
    write_readme(folder, results)


def _write_json(path: Path, content: Any) -> None:
    text = json.dumps(content, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def whole_page(plan: Plan, results: Results, pictures: dict[str, str]) -> str:
    log = pictures.pop("log")
    body = [
        "<h1>BiLA reproduced</h1>",
        f"<p class=lead>{escape(PAPER['source'])}, beside what LabelQuorum measures.</p>",
        _summary(results),
        section("How to read it", _legend()),
    ]
    for preset, words in PRESET_TITLES.items():
        extra = {"authors": log, "www2021": pictures["figure6"]}.get(preset, "")
        body.append(section(words, preset_section(preset, results, extra)))
    pictures.pop("figure6")
    body += [
        section("What the text says of the baselines alone", statements(BASELINES, results)),
        section("Table 1: the data", first_table(results)),
        section("Table 2: online, all methods", second_table(results.table2)),
        section("Time and iterations", time_table(results.table2)),
        section("Table 3: offline, all methods", third_table(results)),
        section("Figures 2, 4 and 5", "".join(pictures.values())),
        section("How it was made", _making(plan, results)),
    ]
    return page("BiLA reproduced", "".join(body))


def _summary(results: Results) -> str:
    missing = [row["title"] for row in results.table1 if row["verdict"] == NO_DATA]
    lines = [log_sentence(results.log), limit_sentence(results.limits)]
    if missing:
        lines.append(f"Data not available: {', '.join(missing)}.")
    shorter = {HOLDS: "hold", IN_PART: "hold in part", FAILS: "do not hold"}
    head = ["judged for", *shorter.values(), NOT_TESTABLE]
    return (
        listing(map(escape, lines))
        + "<h3>Cells of Tables 2 and 3, all protocols</h3>"
        + listing(map(escape, cell_sentences(results)))
        + "<h3>Statements of the text</h3>"
        + paragraph(f"Beside baselines at {PAPERS}; in brackets beside {OURS}.")
        + table(head, [[*map(escape, line)] for line in statement_counts(results)])
        + paragraph("By protocol: how many hold / hold in part / do not hold.")
        + table(
            ["judged for", *PROTOCOLS], [[*map(escape, line)] for line in protocol_counts(results)]
        )
    )


def _legend() -> str:
    return paragraph(RULE) + listing(
        [
            "<b>authors</b> behaves as the authors' released code, <b>www2021</b> is our reading "
            "of Algorithm 1, <b>BiLA()</b> is our default: the same loss, another p and solver.",
            "The paper speaks of its own algorithm, so each statement about it is judged for each "
            f"preset alone: it {badge(HOLDS)} in all protocols, {badge(IN_PART)} in some, or "
            f"{badge(FAILS)}. It {badge(NOT_TESTABLE)} where none of its data are available.",
            escape(SETTINGS),
            "The <b>homogeneous crowd</b> is the paper's text: all workers alike. The "
            "<b>structured crowd</b> has the noise rates of the workers and the missing pattern of "
            "the file the authors published.",
            "RTE's items come in the <b>order of the file</b>, or in <b>random orders</b> drawn by "
            "the seed. The released code <b>streams the initial set again</b>.",
            "Figures are errors in per cent, mean ± standard deviation over seeds.",
            "The <b>oracle</b> is Bayes' rule with the crowd's true matrices: no method can expect "
            "to err less.",
            "<b>oEM</b> and <b>oMMCE</b> see each chunk alone, as in the paper; LAA and BiLA "
            "continue learning.",
            "<b>BiLA-WA</b>, for two classes, is compared with the figure of BiLA-CM: the paper "
            "prints none for it.",
        ]
    )


def _making(plan: Plan, results: Results) -> str:
    made = results.made
    few = sorted(
        {
            f"{cell['title']} on {row['title']}{', ' if row['variant'] else ''}{row['variant']} "
            f"({len(cell['errors'])})"
            for row in results.table2
            for cell in row["cells"]
            if "mean" in cell and len(cell["errors"]) < 5
        }
    )
    lines = [
        f"<code>{escape(made['command'])}</code>: {made['cells']} runs, "
        f"{made['cell_seconds'] / 60:.0f} minutes of processor time, "
        f"{made['session_seconds'] / 60:.0f} by the clock on a machine of {made['cores']} cores. "
        "Other work may have run beside it.",
        f"labelquorum {made['labelquorum']}{_commit(made)}, JAX {made['jax']}, NumPy "
        f"{made['numpy']}, {escape(made['machine'])}.",
        "The printed figures are in <code>paper.toml</code>, what is run in "
        "<code>plan.toml</code>, every run in <code>results/cells.jsonl</code>, and what each "
        "method answered on a small crowd, by which results of other code are recognised, in "
        "<code>results/fingerprints.json</code>.",
        "Five seeds; on synthetic data the seed draws the crowd as well. "
        + (f"Fewer seeds, to save time: {escape('; '.join(few))}." if few else ""),
    ]
    return listing(lines)


def _commit(made: dict[str, Any]) -> str:
    return f" at commit {escape(made['commit'])}" if made.get("commit") else ""
