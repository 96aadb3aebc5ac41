"""Figures 2, 4, 5 and 6: what they show as JSON, and drawn.

matplotlib is used through its objects alone. Colours are Okabe and Ito's, which colour-blind
readers can tell apart; lines differ in their dashes too. Text stays text, and in the report it
takes the colour of the page.
"""

import io
import re
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

from cells import Measured, Summary
from claims import AXES, CROWDS, OPTIMISERS, PLAIN, STARTS, crowd, epoch_curves
from claims_online import ORDERS, curves
from matplotlib import rc_context
from matplotlib.figure import Figure
from verdicts import PAPER, PRESETS

from labelquorum.learn.bila import PRESETS as PRESET_SETTINGS

INK, QUIET, HAIRLINE = "#222222", "#767676", "#8884"
STYLES: dict[str, tuple[str, Any]] = {
    "mv": ("#e69f00", (0, (1, 1.2))),
    "oem": ("#009e73", (0, (5, 2))),
    "ommce": ("#cc79a7", (0, (5, 1.5, 1, 1.5))),
    "laa": ("#56b4e9", (0, (3, 1))),
    "authors": ("#d55e00", (0, (6, 1.5))),
    "www2021": ("#8a6d3b", (0, (2, 1))),
    "default": ("#0072b2", "-"),
    "oracle": (QUIET, (0, (1, 2.5))),
    "offline": (QUIET, (0, (4, 2.5))),
    "bounded_rmsprop": ("#0072b2", "-"),
    "rmsprop": ("#d55e00", (0, (5, 2))),
    "adam": ("#009e73", (0, (1, 1.2))),
}
TITLES = {
    "mv": "MV",
    "oem": "EM",
    "ommce": "MMCE",
    "laa": "LAA",
    "authors": "BiLA, authors",
    "www2021": "BiLA, www2021",
    "default": "BiLA()",
    "oracle": "oracle",
    **OPTIMISERS,
}
CHUNKS = (25, 50, 100, 200, 400, 800)
PAIRS = {"oem": "em", "ommce": "mmce", "laa": "laa"}  # online, offline
AXIS_TITLES = {"workers": "workers", "missing": "missing labels", "noise": "noise rate"}

Line = dict[str, Any]  # style, title, x, y and perhaps sd
Panel = dict[str, Any]  # title, x, lines and perhaps level


def _points(found: list[tuple[Any, Summary]], style: str, title: str) -> Line:
    return {
        "style": style,
        "title": title,
        "x": [x for x, _ in found],
        "y": [round(s.mean, 4) for _, s in found],
        "sd": [round(s.sd, 4) for _, s in found],
    }


def figure2(m: Measured) -> list[Panel]:
    """RTE online against offline, along the stream and by chunk size."""
    panels = []
    for order, told in ORDERS.items():
        for online, offline in PAIRS.items():
            run, level = m("rte", online, 50, order=order), m("rte", offline)
            if run and level:
                points = run.curve("curve")
                line = {"style": online, "title": "online, chunks of 50"}
                line |= {"x": [p[0] for p in points], "y": [round(p[1], 4) for p in points]}
                title = f"{TITLES[online]}, {told}"
                panels.append(_with_level(title, "items so far", [line], level))
        for online, offline in PAIRS.items():
            found = [(c, s) for c in CHUNKS if (s := m("rte", online, c, order=order))]
            level = m("rte", offline)
            if found and level:
                lines = [_points(found, online, "online, at the end")]
                title = f"{TITLES[online]}, {told}"
                panels.append(_with_level(title, "chunk size", lines, level))
    return panels


def _with_level(title: str, x: str, lines: list[Line], level: Summary) -> Panel:
    return {"title": title, "x": x, "lines": lines, "level": round(level.mean, 4)}


def figure4(m: Measured) -> list[Panel]:
    """The synthetic crowds by workers, missing labels and noise."""
    panels = []
    for data, title in CROWDS.items():
        for axis, values in AXES.items():
            lines = []
            for method in ("mv", "oem", *PRESETS, "oracle"):
                found = [(v, s) for v in values if (s := crowd(m, data, method, **{axis: v}))]
                if found:
                    lines.append(_points(found, method, TITLES[method]))
            if any(len(line["x"]) > 1 for line in lines):
                panels.append({"title": title, "x": AXIS_TITLES[axis], "lines": lines})
    return panels


def figure5(m: Measured) -> list[Panel]:
    """RTE along the stream, and BiLA by chunk size."""
    panels = []
    for order, told in ORDERS.items():
        lines = []
        for method, points in curves(m, order).items():
            line = {"style": method, "title": TITLES[method]}
            lines.append(
                line | {"x": [p[0] for p in points], "y": [round(p[1], 4) for p in points]}
            )
        if lines:
            panels.append({"title": f"chunks of 25, {told}", "x": "items so far", "lines": lines})
    for order, told in ORDERS.items():
        lines = []
        for preset in PRESETS:
            found = [(c, s) for c in CHUNKS if (s := m("rte", preset, c, order=order))]
            if found:
                lines.append(_points(found, preset, TITLES[preset]))
        if lines:
            panels.append({"title": f"by chunk size, {told}", "x": "chunk size", "lines": lines})
    return panels


def figure6(m: Measured) -> list[Panel]:
    """Error after every epoch, by optimiser."""
    panels = []
    for (data, start), by in epoch_curves(m).items():
        lines = []
        for optimiser in OPTIMISERS:
            if optimiser in by:
                errors = by[optimiser].curve("epoch_errors")
                line = {"style": optimiser, "title": TITLES[optimiser]}
                lines.append(line | {"x": list(range(1, len(errors) + 1)), "y": errors})
        title = f"{PAPER['table1'][data]['title']}, {STARTS[start]}"
        panels.append({"title": title, "x": "epochs of each chunk", "lines": lines})
    return panels


_CROWD, _RTE = PAPER["table2"]["pendigits"], PAPER["table2"]["rte"]
FIGURES: dict[str, tuple[Callable[[Measured], list[Panel]], int, str]] = {
    "figure2": (
        figure2,
        3,
        "Figure 2. RTE without an initial set: EM, MMCE and LAA along the stream in chunks of 50, "
        "and at its end by chunk size, against offline. EM and MMCE see each chunk alone; LAA goes "
        "on learning. Bars are one standard deviation over seeds.",
    ),
    "figure4": (
        figure4,
        3,
        "Figure 4. The synthetic crowds by number of workers, share of missing labels and noise "
        f"rate; those that do not vary are {PLAIN['workers']}, {PLAIN['missing']} and "
        f"{PLAIN['noise']}. Initial set {_CROWD['initial']}, chunks of {_CROWD['chunks'][0]}. The "
        "oracle knows the true confusion matrices.",
    ),
    "figure5": (
        figure5,
        2,
        f"Figure 5. RTE. First the error so far along the stream, initial set {_RTE['initial']}, "
        "chunks of 25; then BiLA's error at the end by chunk size, without an initial set. 800 is "
        "all items at once.",
    ),
    "figure6": (
        figure6,
        2,
        "Figure 6. The preset www2021 with each optimiser, all with the learning rate "
        f"{PRESET_SETTINGS['www2021']['learning_rate']}: error of all chunks' labels as they stood "
        "after so many epochs of training on their chunk. The paper shows Age. "
        f"RTE has random orders, initial set {_RTE['initial']} and chunks of 25; Pendigits' "
        f"crowd has initial set {_CROWD['initial']} and chunks of {_CROWD['chunks'][0]}.",
    ),
}
"""What gives the panels, how many stand side by side, and the caption."""


# ── drawing ──────────────────────────────────────────────────────────────────────────────────


def draw(panels: list[Panel], columns: int) -> Figure:
    """Panels side by side, all with the same way of telling lines apart."""
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(3.1 * columns, 2.6 * rows + 0.5), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    handles: dict[str, Any] = {}
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, panel in zip(grid.flat, panels, strict=False):
        for line in panel["lines"]:
            colour, dashes = STYLES[line["style"]]
            width = 2.4 if line["style"] in ("default", "bounded_rmsprop") else 1.5
            few = len(line["x"]) <= len(CHUNKS)
            [drawn] = axes.plot(
                line["x"],
                line["y"],
                color=colour,
                linestyle=dashes,
                linewidth=width,
                marker="o" if few else "",
                markersize=3.5,
            )
            if few and any(line.get("sd", [])):
                axes.errorbar(
                    line["x"], line["y"], line["sd"], fmt="none", ecolor=colour, capsize=2
                )
            handles.setdefault(line["title"], drawn)
        if "level" in panel:
            colour, dashes = STYLES["offline"]
            level = axes.axhline(panel["level"], color=colour, linestyle=dashes, linewidth=1.2)
            handles.setdefault("offline", level)
        if panel["x"] == "chunk size":
            axes.set_xscale("log", base=2)
            axes.set_xticks(panel["lines"][0]["x"], [str(x) for x in panel["lines"][0]["x"]])
            axes.minorticks_off()
        elif len(panel["lines"][0]["x"]) <= 3:
            axes.set_xticks(panel["lines"][0]["x"])
        axes.set_ylim(bottom=0)
        axes.set_title(panel["title"], fontsize=9, color=INK, loc="left")
        axes.set_xlabel(panel["x"], fontsize=8, color=INK)
        axes.grid(axis="y", color=QUIET, alpha=0.3, linewidth=0.6)
        axes.tick_params(length=0, labelsize=8, labelcolor=INK)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
        for side, spine in axes.spines.items():
            spine.set_visible(side == "bottom")
            spine.set_color(QUIET)
        axes.patch.set_visible(False)
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=min(len(handles), 2 * columns),
        fontsize=8,
        frameon=False,
        labelcolor=INK,
    )
    return figure


def svg(figure: Figure) -> str:
    """The picture as text; the same picture gives the same bytes."""
    page = io.StringIO()
    with rc_context({"svg.hashsalt": "labelquorum", "svg.fonttype": "none"}):
        figure.savefig(page, format="svg", transparent=True, metadata={"Date": None})
    return re.sub(r" *<metadata>.*?</metadata>\n", "", page.getvalue(), flags=re.DOTALL)


def save(picture: str, path: Path) -> None:
    """Write a picture as a file of its own, on white."""
    white = re.sub(r"(<svg [^>]*)>", r'\1 style="background: white">', picture, count=1)
    path.write_text(white, encoding="utf-8")


def inline(picture: str, name: str, caption: str) -> str:
    """The picture for a page: ink in the page's colour, words for those who do not see it."""
    text = picture[picture.index("<svg") :].replace(INK, "currentColor")
    text = re.sub(r' (width|height)="[\d.]+pt"', "", text, count=2)
    # Ids of several pictures on one page must differ.
    text = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{name}-", text)
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(caption)}" ', 1)
