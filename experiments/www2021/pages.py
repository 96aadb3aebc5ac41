"""Pieces of the HTML page, and the table of README.md.

There is no script and no address in the page: it needs nothing but itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from cells import HERE
from verdicts import BETTER, MATCHES, PRESETS, WORSE, tally

BEGIN, END = "<!-- written by reproduce.py -->", "<!-- end -->"
MARKS = {MATCHES: "=", BETTER: "↓", WORSE: "↑"}

KINDS = {
    "matches within noise": "match",
    "as printed": "match",
    "holds": "match",
    "better": "better",
    "worse": "worse",
    "does not hold": "worse",
    "differs": "worse",
    "holds in part": "part",
}

STYLE = """
:root { color-scheme: light dark; --ink: #222; --quiet: #666; --page: #fff; --line: #ddd;
  --match: #1a6b3c; --better: #0b5cad; --worse: #b3261e; --part: #8a5a00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --quiet: #a0a0a0; --page: #16181b;
  --line: #383b40; --match: #6fcf97; --better: #7db8f0; --worse: #ff8a80; --part: #e8b84a; } }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 76rem; margin: auto; padding: 1rem; }
h1 { line-height: 1.2; } h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); }
h3 { margin: 1.5rem 0 .3rem; font-size: 1rem; } .lead, figcaption { color: var(--quiet); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .85rem; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; font-variant-numeric: tabular-nums; }
th { white-space: normal; vertical-align: bottom; color: var(--quiet); font-weight: 600; }
th:first-child, td:first-child, th:last-child, td:last-child, td:has(.badge) { text-align: left; }
td:first-child { position: sticky; left: 0; background: var(--page); }
.badge { font-weight: 600; } .match { color: var(--match); } .better { color: var(--better); }
.worse { color: var(--worse); } .part { color: var(--part); } .none { color: var(--quiet); }
figure { margin: 1.5rem 0; } figure svg { width: 100%; height: auto; } li { margin: .2rem 0; }
article { border-left: 3px solid var(--line); padding-left: .8rem; margin: 1rem 0; }
article ul { font-size: .85rem; } summary { cursor: pointer; } details { margin: .5rem 0; }
"""


def section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table that scrolls sideways on a narrow screen; cells are HTML."""
    top = "".join(f"<th scope=col>{escape(cell)}</th>" for cell in head)
    rows = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in line)}</tr>" for line in lines)
    return (
        f"<div class=scroll><table><thead><tr>{top}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def listing(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{line}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""


def badge(word: str) -> str:
    """A verdict; the word tells it, the colour only helps."""
    return f'<span class="badge {KINDS.get(word, "none")}">{escape(word)}</span>'


def figure(picture: str, caption: str) -> str:
    return f"<figure>{picture}<figcaption>{escape(caption)}</figcaption></figure>"


def counted(counts: Mapping[str, int]) -> str:
    return (
        f"{counts.get(MATCHES, 0)} match within noise, {counts.get(BETTER, 0)} better, "
        f"{counts.get(WORSE, 0)} worse"
    )


# ── README.md ────────────────────────────────────────────────────────────────────────────────


def write_readme(folder: Path, made: Mapping[str, Any], tables: dict[str, Any]) -> None:
    """Put the table of BiLA's rows between the marks of README.md."""
    head = ["", "paper", "authors", "www2021", "BiLA()", "oracle"]
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for row in tables["table2"]:
        variant = f", {row['variant']}" if row["variant"] else ""
        lines.append(_readme_line(f"{row['title']}{variant}, chunks of {row['chunk']}", row))
    lines += [_readme_line(f"{row['title']}, offline", row) for row in tables["table3"]]
    found = tally(tables["table2"], tables["table3"])
    marks = ", ".join(f"{mark} {word}" for word, mark in MARKS.items())
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines) + (
        f"\n\nError in per cent, mean ± standard deviation over seeds; {marks}. Of all "
        f"{sum(found.values())} measured cells of Tables 2 and 3, those of other methods included, "
        f"{counted(found)}.\n\nMade by `{made['command']}`: {made['cells']} runs, "
        f"{made['cell_seconds'] / 60:.0f} minutes of processor time."
    )
    readme = folder / "README.md"
    source = readme if readme.exists() else HERE / "README.md"
    before, rest = source.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    readme.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def _readme_line(title: str, row: Mapping[str, Any]) -> list[str]:
    cells = {cell["method"]: cell for cell in row["cells"]}
    ours = [
        f"{cell['mean']:.2f} ± {cell['sd']:.2f} {MARKS[cell['verdict']]}" if "mean" in cell else "–"
        for cell in (cells[preset] for preset in PRESETS)
    ]
    if not row["available"]:
        ours = [cells["default"]["verdict"], *["–"] * (len(PRESETS) - 1)]
    limit = row.get("oracle")
    printed = f"{cells['default']['printed']:.2f}"
    return [title, printed, *ours, f"{limit['mean']:.2f}" if limit else "–"]
