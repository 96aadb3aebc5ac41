"""Figures 2, 4, 5 and 6 and the authors' log: what they show as JSON, and drawn.

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

from case import CROWDS, ORDERS, Case
from cells import Measured, Summary
from claims_crowds import AXES, OPTIMISERS, PLAIN, STARTS, epoch_curves
from claims_online import curve
from matplotlib import rc_context
from matplotlib.figure import Figure
from targets import authors_log
from verdicts import OURS, PAPER, PAPERS, PRESETS, title

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
    "recipe": ("#56b4e9", (0, (3, 1))),
    "oracle": (QUIET, (0, (1, 2.5))),
    "offline": (QUIET, (0, (4, 2.5))),
    "ours": (QUIET, (0, (1, 1.2))),
    "log": ("#0072b2", "-"),
    "log_vote": ("#e69f00", "-"),
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
    "recipe": "BiLA, recipe",
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


def _along(points: list[list[float]], style: str, title: str) -> Line:
    line = {"style": style, "title": title, "x": [p[0] for p in points]}
    return line | {"y": [round(p[1], 4) for p in points]}


def figure2(m: Measured) -> list[Panel]:
    """RTE online against offline, along the stream and by chunk size, at both settings."""
    panels = []
    for protocol, fields in ORDERS.items():
        for x in ("items so far", "chunk size"):
            for online, offline in PAIRS.items():
                level = Case(m, None, PAPERS).find("rte", offline)
                lines = []
                for settings, style in ((PAPERS, online), (OURS, "ours")):
                    case, words = Case(m, None, settings), f"online, {settings}"
                    if x == "chunk size":
                        runs = [(c, case.find("rte", online, c, **fields)) for c in CHUNKS]
                        found = [(c, s) for c, s in runs if s]
                        lines += [_points(found, style, words)] if found else []
                    elif run := case.find("rte", online, 50, **fields):
                        lines.append(_along(run.curve("curve"), style, words))
                if lines and level:
                    panel = {"title": f"{TITLES[online]}, {protocol}", "x": x, "lines": lines}
                    panels.append(panel | {"level": round(level.mean, 4)})
    return panels


def figure4(m: Measured) -> list[Panel]:
    """The synthetic crowds by workers, missing labels and noise."""
    panels = []
    case = Case(m, None, PAPERS)
    for crowd, fields in CROWDS.items():
        for data in ("cifar10", "pendigits"):
            for axis, values in AXES.items():
                lines = []
                for method in ("mv", "oem", *PRESETS, "recipe", "oracle"):
                    at = [{axis: value, **fields} for value in values]
                    runs = [(f[axis], case.online(data, method, 0, **f)) for f in at]
                    if found := [(value, s) for value, s in runs if s]:
                        lines.append(_points(found, method, TITLES[method]))
                if any(len(line["x"]) > 1 for line in lines):
                    name = f"{title(data)}, {crowd}"
                    panels.append({"title": name, "x": AXIS_TITLES[axis], "lines": lines})
    return panels


def figure5(m: Measured) -> list[Panel]:
    """RTE along the stream, and by chunk size after the initial set and without one."""
    panels = []
    case = Case(m, None, PAPERS)
    for protocol, fields in ORDERS.items():
        lines = []
        for method in ("mv", "oem", "ommce", "laa", *PRESETS):
            if points := curve(case, method, **fields):
                lines.append(_along(points, method, TITLES[method]))
        if lines:
            panels.append(
                {"title": f"chunks of 25, {protocol}", "x": "items so far", "lines": lines}
            )
    for initial, words in ((_RTE["initial"], ""), (0, ", no initial set")):
        for protocol, fields in ORDERS.items():
            lines = []
            for method in ("oem", "ommce", *PRESETS):
                runs = [(c, case.find("rte", method, c, initial=initial, **fields)) for c in CHUNKS]
                found = [(c, s) for c, s in runs if s and c < 800]
                if found:
                    lines.append(_points(found, method, TITLES[method]))
            if lines:
                panels.append({"title": protocol + words, "x": "chunk size", "lines": lines})
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
        name = f"{title(data)}, {STARTS[start]}"
        panels.append({"title": name, "x": "epochs of each chunk", "lines": lines})
    return panels


def log_figure(m: Measured) -> list[Panel]:
    """The authors' log and ours."""
    found = authors_log(m)
    if found is None:
        return []
    names = {
        "log": ("log", "BiLA, the authors' log"),
        "here": ("authors", "BiLA, authors, here"),
        "log_vote": ("log_vote", "vote, the authors' log"),
        "vote": ("mv", "vote, here"),
    }
    lines = []
    for field, (style, words) in names.items():
        points = [[row["items"], row[field]] for row in found["rows"] if row[field] is not None]
        lines.append(_along(points, style, words))
    return [{"title": "CIFAR-10, structured crowd", "x": "items so far", "lines": lines}]


_CROWD, _RTE = PAPER["table2"]["pendigits"], PAPER["table2"]["rte"]
FIGURES: dict[str, tuple[Callable[[Measured], list[Panel]], int, str]] = {
    "log": (
        log_figure,
        1,
        "The authors' log. Error so far along CIFAR-10, initial set 1,000, streamed again, chunks "
        "of 500: the log of the released code, and the preset authors on a crowd with the noise "
        "rates and the missing pattern of the published file, mean over seeds.",
    ),
    "figure2": (
        figure2,
        3,
        "Figure 2. RTE without an initial set: EM, MMCE and LAA along the stream in chunks of 50, "
        "and at its end by chunk size, against offline, at the paper's settings and at ours. EM "
        "and MMCE see each chunk alone; LAA continues learning. Bars are one standard deviation "
        "over seeds.",
    ),
    "figure4": (
        figure4,
        3,
        "Figure 4. The synthetic crowds by number of workers, share of missing labels and noise "
        f"rate; those that do not vary are {PLAIN['workers']}, {PLAIN['missing']} and "
        f"{PLAIN['noise']}. Initial set {_CROWD['initial']}, chunks of {_CROWD['chunks'][0]}. EM "
        "is at the paper's settings. The oracle knows the true confusion matrices.",
    ),
    "figure5": (
        figure5,
        2,
        "Figure 5. RTE, baselines at the paper's settings. First the error so far along the "
        f"stream, initial set {_RTE['initial']}, chunks of 25; then the error at the end by chunk "
        "size, after the same initial set and without one. After it, chunks of 400 are the other "
        "300 items at once.",
    ),
    "figure6": (
        figure6,
        2,
        "Figure 6. The preset www2021 with each optimiser, all with the learning rate "
        f"{PRESET_SETTINGS['www2021']['learning_rate']}: error of all chunks' labels after that "
        "number of epochs of training on their chunk. The paper shows Age. "
        f"RTE has random orders, initial set {_RTE['initial']} and chunks of 25; Pendigits' "
        f"crowd has initial set {_CROWD['initial']} and chunks of {_CROWD['chunks'][0]}.",
    ),
}
"""What gives the panels, how many stand side by side, and the caption."""


# ── drawing ──────────────────────────────────────────────────────────────────────────────────


def draw(panels: list[Panel], columns: int) -> Figure:
    """Panels side by side, with one legend for all."""
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(max(3.1 * columns, 5), 2.6 * rows + 0.5), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    handles: dict[str, Any] = {}
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, panel in zip(grid.flat, panels, strict=False):
        for line in panel["lines"]:
            colour, dashes = STYLES[line["style"]]
            width = 2.4 if line["style"] in ("default", "bounded_rmsprop", "log") else 1.5
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
    """Write a picture as a file, on white."""
    white = re.sub(r"(<svg [^>]*)>", r'\1 style="background: white">', picture, count=1)
    path.write_text(white, encoding="utf-8")


def inline(picture: str, name: str, caption: str) -> str:
    """The picture for a page: ink in the page's colour, words for those who do not see it."""
    text = picture[picture.index("<svg") :].replace(INK, "currentColor")
    text = re.sub(r' (width|height)="[\d.]+pt"', "", text, count=2)
    # Ids of several pictures on one page must differ.
    text = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{name}-", text)
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(caption)}" ', 1)
