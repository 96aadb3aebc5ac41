"""Write what was measured as tables and a picture, for docs/spark.md.

    python3 run.py python experiments/spark/report.py

It reads results/*.json, and needs neither Spark nor Java. What was not measured is said so.
"""

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

RESULTS = Path(__file__).resolve().parent / "results"
INK, QUIET = "#222222", "#767676"
NAMES = {
    "bila": "BiLA, 5 rounds",
    "bila_one_pass": "BiLA, one pass",
    "dawid_skene": "Dawid–Skene",
    "stream": "BiLA, streaming",
    "plain": "Dawid–Skene by joins, 5 iterations",
    "crowdkit": "Crowd-Kit's Dawid–Skene, one machine",
}
STYLES: dict[str, tuple[str, Any]] = {  # Okabe and Ito's colours; dashes differ too
    "bila": ("#0072b2", "-"),
    "bila_one_pass": ("#56b4e9", (0, (5, 2))),
    "dawid_skene": ("#009e73", (0, (3, 1, 1, 1))),
    "stream": ("#cc79a7", (0, (1, 1))),
    "plain": ("#d55e00", (0, (4, 3))),
    "crowdkit": (QUIET, (0, (1, 2.5))),
}
PUBLISHED = (10**7, 111.0)
"""Labels and seconds of Dawid–Skene, as the authors of spark-crowd printed them."""


def reply(name: str) -> dict[str, Any] | None:
    file = RESULTS / f"{name}.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def tolerance(found: dict[str, Any]) -> str:
    """The error of four partitions beside one piece, set by set."""
    methods = list(dict.fromkeys(row["method"] for row in found["rows"]))
    cells = {(row["dataset"], row["method"]): row for row in found["rows"]}
    rows = []
    for name in dict.fromkeys(row["dataset"] for row in found["rows"]):
        measured = [cells[name, method] for method in methods if (name, method) in cells]
        line = [name, f"{measured[0]['labels']:,}"]
        for method in methods:
            row = cells.get((name, method))
            parts = ("one_piece", "four_partitions", "difference")
            line += ["–" if row is None else f"{row[part]:.2f}" for part in parts]
        rows.append(line)
    head = ["error in %", "labels"]
    for method in methods:
        head += [f"`{method}`, one piece", "four partitions", "difference"]
    worst = max(abs(row["difference"]) for row in found["rows"])
    return table(head, rows) + f"\nThe largest difference is {worst:.2f} points.\n"


def kills(found: dict[str, Any]) -> str:
    """Where the driver was killed, and what was left."""
    ways = found["kills_by_way"].items()
    rows = [[f"`{way}`" if "_" in way else way, str(count)] for way, count in ways]
    end = "equal to" if found["equal"] else "**not** equal to"
    return table(["killed", "times"], rows) + (
        f"\n{found['files']} micro-batches of {found['labels']:,} labels in all, "
        f"{found['kills']} kills: {found['counted']:,} labels counted, {found['late']} late, and "
        f"the state's hash is {end} that of a run nobody killed.\n"
    )


def scale(found: dict[str, Any]) -> str:
    """Labels per second and memory, cell by cell."""
    rows = []
    for row in sorted(found["rows"], key=lambda row: (row["labels"], [*NAMES].index(row["way"]))):
        peaks = row["peak_mb"]
        memory = [
            f"{peaks[kind]:,}" if kind in peaks else "–" for kind in ("driver", "java", "worker")
        ]
        if "ended" in row:
            speed = [f"ended at {row['ended']}", "–", "–"]
        else:
            wrong = f"{100 * row['error']:.2f}" if "error" in row else "–"
            speed = [f"{row['seconds']:,.1f}", f"{row['labels_per_second']:,}", wrong]
        rows.append([NAMES[row["way"]], f"{row['labels']:,}", str(row["cores"]), *speed, *memory])
    speeds = ["seconds", "labels/s", "error, %"]
    peaks = ["driver, MB", "Java, MB", "Python worker, MB"]
    limits, (n_labels, seconds) = found["made"]["limits"], PUBLISHED
    picture = "\n![Seconds against labels, by way](scale.svg)\n"
    return table(["", "labels", "cores", *speeds, *peaks], rows) + (
        f"\nEach has {limits['memory_gb']} GB; the last two ways also have {limits['seconds']} s, "
        "and a way that came to a limit was not tried with more labels. Memory is the most that "
        "one process of the kind had. The start of Spark is not counted. The authors of "
        f"spark-crowd printed {seconds:g} s for Dawid–Skene on {n_labels:,} labels.\n{picture}"
    )


def draw_scale(found: dict[str, Any], file: Path) -> None:
    """Draw seconds against labels, on all cores."""
    cores = max(row["cores"] for row in found["rows"])
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for way, (colour, dashes) in STYLES.items():
        rows = [row for row in found["rows"] if row["way"] == way and row["cores"] == cores]
        ended = sorted((row["labels"], row["seconds"]) for row in rows if "seconds" in row)
        if ended:
            name = NAMES[way]
            axes.plot(*zip(*ended, strict=True), color=colour, linestyle=dashes, marker="o", ms=3)
            axes.lines[-1].set_label(name)
    axes.plot(*PUBLISHED, "x", color=INK, label="spark-crowd, as published")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("labels", fontsize=8, color=INK)
    axes.set_ylabel(f"seconds, {cores} cores", fontsize=8, color=INK)
    axes.tick_params(labelsize=8)
    axes.legend(fontsize=7, frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    drawn = io.StringIO()
    with rc_context({"svg.hashsalt": "labelquorum", "svg.fonttype": "none"}):
        figure.savefig(drawn, format="svg", facecolor="white", metadata={"Date": None})
    text = re.sub(r" *<metadata>.*?</metadata>\n", "", drawn.getvalue(), flags=re.DOTALL)
    text = re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)
    file.write_text(text, encoding="utf-8")


PARTS = {"kills": kills, "scale": scale, "tolerance": tolerance}


def main() -> int:
    for name, make in PARTS.items():
        found = reply(name)
        if found is None:
            print(f"{name}: not measured", file=sys.stderr)
            continue
        text = f"{make(found)}\nMade by `{found['made']['command']}`.\n"
        (RESULTS / f"{name}.md").write_text(text, encoding="utf-8")
        if name == "scale":
            draw_scale(found, RESULTS / "scale.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
