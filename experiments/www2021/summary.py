"""The result in short: sentences and tables that the page and README.md share."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from case import PROTOCOLS
from claims import BASELINES, FAILS, HOLDS, IN_PART, NOT_TESTABLE, tally, tally_protocol
from pages import counted
from plan import HERE
from tables import OFFLINE, ONLINE
from tables import tally as tally_cells
from targets import LIMITS, LOG_TOLERANCES
from verdicts import BETTER, MATCHES, NOT_MEASURED, OURS, PAPERS, PRESET_TITLES, PRESETS, WORSE

BEGIN, END = "<!-- written by reproduce.py -->", "<!-- end -->"
MARKS = {MATCHES: "=", BETTER: "↓", WORSE: "↑"}
STATEMENTS = [HOLDS, IN_PART, FAILS, NOT_TESTABLE]
Rows = list[dict[str, Any]]


class Results(NamedTuple):
    """Everything that is reported."""

    made: Mapping[str, Any]
    table1: Rows
    table2: Rows
    table3: Rows
    prose: Rows
    log: dict[str, Any] | None
    limits: Rows

    @property
    def cells(self) -> Rows:
        return [*self.table2, *self.table3]


def subject_titles() -> dict[str, str]:
    return {**PRESET_TITLES, BASELINES: "the baselines alone"}


def statement_counts(results: Results) -> list[list[str]]:
    """How many statements hold for each subject; in brackets beside baselines at our settings."""
    lines = []
    for subject, words in subject_titles().items():
        papers, ours = (tally(results.prose, subject, b) for b in (PAPERS, OURS))
        if sum(papers[word] for word in STATEMENTS):
            lines.append([words, *(f"{papers[word]} ({ours[word]})" for word in STATEMENTS)])
    return lines


def protocol_counts(results: Results) -> list[list[str]]:
    """The same by protocol: how many hold, hold in part, do not hold."""
    lines = []
    for subject, words in subject_titles().items():
        found = [tally_protocol(results.prose, subject, protocol) for protocol in PROTOCOLS]
        texts = [
            " / ".join(map(str, each.values())) if any(each.values()) else "–" for each in found
        ]
        lines.append([words, *texts])
    return lines


def cell_sentences(results: Results) -> list[str]:
    """How many cells of Tables 2 and 3 match, by preset and for the baselines."""
    named = {PRESET_TITLES[preset]: (preset,) for preset in PRESETS}
    both = {method for method in (*ONLINE, *OFFLINE) if not method.startswith(PRESETS)}
    named["baselines at the paper's settings, MV, BCC and ME"] = tuple(
        method for method in both if f"{method}_paper" not in both
    )
    named["baselines at our settings"] = tuple(m for m in both if f"{m}_paper" in both)
    found = {words: tally_cells(results.cells, methods) for words, methods in named.items()}
    return [f"{words}: {counted(each)}." for words, each in found.items() if any(each.values())]


def log_sentence(log: dict[str, Any] | None) -> str:
    if log is None:
        return f"The authors' log: {NOT_MEASURED}."
    final = log["rows"][-1]
    most = " and ".join(f"{points} from {n:,} items on" for n, points in LOG_TOLERANCES.items())
    judged = [row for row in log["rows"] if row["within"] is not None]
    return (
        f'The authors\' log (CIFAR-10, chunks of 500): BiLA("authors") errs on '
        f"{final['here']:.2f} % after {final['items']:,} items, the log says {final['log']:.2f} %. "
        f"{sum(row['within'] for row in judged)} of {len(judged)} points are within the tolerance "
        f"({most}); mean of {log['seeds']} seeds."
    )


def limit_sentence(rows: Rows) -> str:
    if not rows:
        return f"BiLA() on the crowds of Figure 4: {NOT_MEASURED}."
    held = sum(row["holds"] for row in rows)
    worst = {method: max(row["excess"][method] for row in rows) for method in LIMITS}
    return (
        f"BiLA() on {len(rows)} crowds of Figure 4: on {held} of them no seed errs more than the "
        f"vote, than the recipe + {LIMITS['recipe']:g} or than the oracle + {LIMITS['oracle']:g}. "
        f"The worst seed is {worst['mv']:+.2f} points from the vote, {worst['recipe']:+.2f} from "
        f"the recipe and {worst['oracle']:+.2f} from the oracle."
    )


# ── README.md ────────────────────────────────────────────────────────────────────────────────


def write_readme(folder: Path, results: Results) -> None:
    """Put the tables of BiLA's rows and of the statements between the marks of README.md."""
    made = results.made
    errors = [["", "paper", "authors", "www2021", "BiLA()", "oracle"]]
    for row in results.table2:
        variant = f", {row['variant']}" if row["variant"] else ""
        errors.append(_readme_line(f"{row['title']}{variant}, chunks of {row['chunk']}", row))
    errors += [_readme_line(f"{row['title']}, offline", row) for row in results.table3]
    statements = [["statements of the text", *STATEMENTS], *statement_counts(results)]
    marks = ", ".join(f"{mark} {word}" for word, mark in MARKS.items())
    cells = "".join(f"- {sentence}\n" for sentence in cell_sentences(results))
    text = (
        f"{_markdown(errors)}\n"
        f"Error in per cent, mean ± standard deviation over seeds; {marks}. Of the measured cells "
        f"of Tables 2 and 3:\n\n{cells}\n"
        f"{_markdown(statements)}\n"
        f"Beside baselines at {PAPERS}; in brackets beside {OURS}.\n\n"
        f"{log_sentence(results.log)}\n\n{limit_sentence(results.limits)}\n\n"
        f"Made by `{made['command']}`: {made['cells']} runs, "
        f"{made['cell_seconds'] / 60:.0f} minutes of processor time."
    )
    readme = folder / "README.md"
    source = readme if readme.exists() else HERE / "README.md"
    before, rest = source.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    readme.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def _markdown(lines: list[list[str]]) -> str:
    head, *rest = lines
    ruled = [head, ["---", *["---:"] * (len(head) - 1)], *rest]
    return "".join(f"| {' | '.join(line)} |\n" for line in ruled)


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
