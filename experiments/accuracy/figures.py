"""Two pictures: how often answers of each confidence are right, and the error by chunk size.

matplotlib is used through its objects alone. Colours are Okabe and Ito's, which colour-blind
readers can tell apart; lines differ in their dashes too.
"""

import io
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from real import SIZES
from targets import RANDOM, Scores, over_sets

INK, QUIET = "#222222", "#767676"
STYLES: dict[str, tuple[str, Any, str]] = {
    "vote": ("#e69f00", (0, (1, 1.2)), "majority vote"),
    "recipe": ("#009e73", (0, (5, 2)), "bila:recipe"),
    "bila": ("#0072b2", "-", "bila"),
    "oracle": (QUIET, (0, (1, 2.5)), "oracle"),
}
LEAST = 0.005  # a bin with a smaller share of the items is not drawn


def reliability(scores: Scores) -> Figure | None:
    """Share right against confidence; each set, and each crowd, counts alike."""
    plan = scores.plan
    real, alone, together = map(plan.names, ("development", "independent", "dependent"))
    panels = {
        f"{len(real)} real sets": real,
        "simulated, independent": alone,
        "simulated, erring together": together,
    }
    figure, grid = _sheet(len(panels))
    drawn = False
    for axes, (title, names) in zip(grid, panels.items(), strict=True):
        axes.plot([0, 1], [0, 1], color=QUIET, linewidth=0.8)
        for method, (colour, dashes, name) in STYLES.items():
            sure, right = _curve(scores, names, method)
            if len(sure):
                drawn = True
                axes.plot(sure, right, color=colour, linestyle=dashes, label=name, marker="o", ms=3)
        axes.set_title(title, fontsize=9, color=INK, loc="left")
        axes.set_xlabel("confidence", fontsize=8, color=INK)
        axes.set_xlim(0.2, 1)
        axes.set_ylim(0.2, 1)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    grid[0].set_ylabel("share right", fontsize=8, color=INK)
    return _with_legend(figure, grid) if drawn else None


def _curve(scores: Scores, names: Iterable[str], method: str) -> tuple[Any, Any]:
    """Mean confidence and share right of each bin, sets weighted alike."""
    total = np.zeros((15, 3))
    for name in names:
        runs = scores.runs(name, method, **RANDOM)
        if runs is not None:
            counts = runs.bins()
            total += counts / counts[:, 0].sum()
    shown = total[:, 0] >= LEAST * max(total[:, 0].sum(), 1e-12)
    items, sure, right = total[shown].T
    return sure / items, right / items


def chunk_sizes(scores: Scores) -> Figure | None:
    """Emitted and final error by chunk size, means over the ten sets."""
    names = scores.plan.names("ten")
    sizes = (1, *SIZES)
    figure, grid = _sheet(2)
    drawn = False
    for axes, score in zip(grid, ("emitted", "final"), strict=True):
        for method in ("recipe", "bila"):
            colour, dashes, title = STYLES[method]
            errors = [over_sets(scores.means(names, method, score, chunk=size)) for size in sizes]
            known = [(place, e) for place, e in enumerate(errors) if e is not None]
            if known:
                drawn = True
                axes.plot(*zip(*known, strict=True), color=colour, linestyle=dashes, label=title)
                axes.plot(*zip(*known, strict=True), "o", color=colour, ms=4)
        axes.set_xticks(range(len(sizes)), [str(size) if size else "whole" for size in sizes])
        axes.set_title(f"{score} error", fontsize=9, color=INK, loc="left")
        axes.set_xlabel("items in a chunk", fontsize=8, color=INK)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
    return _with_legend(figure, grid) if drawn else None


FIGURES = {"reliability": reliability, "chunk_sizes": chunk_sizes}


def _sheet(columns: int) -> tuple[Figure, Any]:
    figure = Figure(figsize=(3.1 * columns, 3.3), layout="constrained")
    grid = figure.subplots(1, columns)
    for axes in grid:
        axes.grid(axis="y", color=QUIET, alpha=0.3, linewidth=0.6)
        axes.tick_params(length=0, labelsize=8, labelcolor=INK)
        for side, spine in axes.spines.items():
            spine.set_visible(side == "bottom")
            spine.set_color(QUIET)
    return figure, grid


def _with_legend(figure: Figure, grid: Any) -> Figure:
    handles = {}
    for axes in grid:
        for handle, title in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(title, handle)
    place = {"loc": "outside lower center", "ncols": len(handles), "frameon": False}
    figure.legend(list(handles.values()), list(handles), fontsize=8, labelcolor=INK, **place)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a picture on white; the same picture gives the same bytes."""
    page = io.StringIO()
    with rc_context({"svg.hashsalt": "labelquorum", "svg.fonttype": "none"}):
        figure.savefig(page, format="svg", facecolor="white", metadata={"Date": None})
    text = re.sub(r" *<metadata>.*?</metadata>\n", "", page.getvalue(), flags=re.DOTALL)
    path.write_text(text, encoding="utf-8")
