"""Pieces of the HTML page.

There is no script and no address in the page: it needs nothing but itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from verdicts import BETTER, MATCHES, WORSE

KINDS = {
    "matches within noise": "match",
    "as printed": "match",
    "holds": "match",
    "within": "match",
    "better": "better",
    "worse": "worse",
    "does not hold": "worse",
    "outside": "worse",
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
h4 { margin: 0; font-size: .95rem; }
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
article p { margin: .2rem 0; } article ul { font-size: .85rem; margin: .2rem 0; }
summary { cursor: pointer; } details { margin: .3rem 0; }
"""


def page(title: str, body: str) -> str:
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style><main>{body}</main></html>\n"
    )


def section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


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


def details(summary: str, body: str) -> str:
    return f"<details><summary>{summary}</summary>{body}</details>"


def badge(word: str) -> str:
    """A verdict; the word says it, the colour only helps."""
    return f'<span class="badge {KINDS.get(word, "none")}">{escape(word)}</span>'


def figure(picture: str, caption: str) -> str:
    return f"<figure>{picture}<figcaption>{escape(caption)}</figcaption></figure>"


def counted(counts: Mapping[str, int]) -> str:
    return (
        f"{counts.get(MATCHES, 0)} match within noise, {counts.get(BETTER, 0)} better, "
        f"{counts.get(WORSE, 0)} worse"
    )
