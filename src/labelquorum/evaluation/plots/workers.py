"""Plots of workers and answers: confusion matrices, skills with their bounds, calibration."""

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelquorum.errors import StateError
from labelquorum.evaluation.plots.style import (
    EMPHASIS_COLOUR,
    INK,
    OTHER_COLOURS,
    QUIET_INK,
    REFERENCE_COLOUR,
    new_figure,
    plain,
    quiet_axes,
    save,
    shortened,
)
from labelquorum.learn.analysis.intervals import wilson

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


NUMBERED_CLASSES = 6  # the most with which the cells of a heat map carry numbers
MAP_SIDE, MAP_GAP, MAP_TITLE, SHEET_TOP = 1.7, 0.3, 0.62, 0.5  # inches
ROOM_FOR_LETTERS = 24  # side by side under one heat map


def plot_confusion(
    path: str | Path,
    confusion: ArrayLike,
    names: Sequence[Hashable],
    classes: Sequence[Hashable],
    *,
    columns: int = 4,
    label_counts: Sequence[int] | None = None,
    skills: ArrayLike | None = None,
    title: str = "What each worker says, given the truth",
) -> Path:
    """Draw workers' confusion matrices as small heat maps, from the worst worker to the best.

    Workers are ordered by their skill, or by the mean of their diagonal where it is not given.
    All maps share one colour scale from 0 to 1; with at most six classes each cell carries its
    per cent.

    Parameters
    ----------
    path
        Where to write, .png, .svg or .pdf.
    confusion
        (K, C, C) with confusion[k, c, z] = P(worker k says z | truth c). Pass the workers
        to be shown, not a thousand.
    names, classes
        (K,) workers and (C,) classes as a person knows them.
    columns
        Maps in a row.
    label_counts
        (K,) labels given by each worker, shown below the name.
    skills
        (K,) how often each worker is right, shown below the name. Frequent classes count for more
        in it than in the mean of the diagonal, which is shown otherwise.

    Returns
    -------
    path
    """
    matrices = np.asarray(confusion, dtype=np.float64)
    n_workers, n_classes = len(names), len(classes)
    if matrices.shape != (n_workers, n_classes, n_classes) or not matrices.size:
        raise StateError(
            "`confusion` of plot_confusion must have the shape (workers, classes, classes) that "
            f"`names` and `classes` give, and hold something. Got {matrices.shape} for "
            f"{n_workers} names and {n_classes} classes."
        )
    if label_counts is not None and len(label_counts) != n_workers:
        raise StateError(
            f"`label_counts` of plot_confusion must have an entry for each of the {n_workers} "
            f"workers. Got {len(label_counts)}."
        )
    if columns < 1:
        raise StateError(f"`columns` of plot_confusion must be a whole number ≥ 1. Got {columns}.")

    columns = min(columns, n_workers)
    rows = -(-n_workers // columns)
    width = columns * (MAP_SIDE + MAP_GAP)
    height = SHEET_TOP + rows * (MAP_TITLE + MAP_SIDE)
    figure = new_figure(path, width, height)
    diagonal = np.diagonal(matrices, axis1=1, axis2=2).mean(axis=1)  # (K,)
    accuracy = diagonal if skills is None else np.asarray(skills, np.float64)
    if accuracy.shape != diagonal.shape:
        raise StateError(
            f"`skills` of plot_confusion must have an entry for each of the {n_workers} workers. "
            f"Got the shape {accuracy.shape}."
        )
    meaning = "diagonal" if skills is None else "right"
    for place, k in enumerate(np.argsort(accuracy, kind="stable")):
        row, column = divmod(place, columns)
        x = column * (MAP_SIDE + MAP_GAP)
        y = height - SHEET_TOP - (row + 1) * (MAP_TITLE + MAP_SIDE)
        axes = figure.add_axes((x / width, y / height, MAP_SIDE / width, MAP_SIDE / height))
        _draw_map(axes, matrices[k])
        first, last = column == 0, place + columns >= n_workers
        _name_classes(axes, classes if first else (), classes if last else ())
        heading = f"{100 * accuracy[k]:.0f} % {meaning}"
        if label_counts is not None:
            heading += f" · {label_counts[k]:,} label{'s' if label_counts[k] != 1 else ''}"
        name = shortened(names[k])
        axes.text(0, 1.14, name, transform=axes.transAxes, color=INK, fontsize=9.5, weight="bold")
        axes.text(0, 1.04, heading, transform=axes.transAxes, color=QUIET_INK, fontsize=8)

    if n_classes > NUMBERED_CLASSES:
        _draw_scale(figure, width, height)
    figure.text(0, 1, title, fontsize=13, weight="bold", color=INK, va="top")
    explanation = "rows: the truth · columns: what the worker said · per cent of the row"
    figure.text(0, 1 - 0.32 / height, explanation, fontsize=8.5, color=QUIET_INK, va="top")
    return save(figure, path)


def _draw_map(axes: "Axes", matrix: NDArray[np.float64]) -> None:
    """Draw one confusion matrix (C, C), truth downwards, right answers in bold."""
    n_classes = len(matrix)
    edges = np.arange(n_classes + 1)
    line = 1.5 if n_classes <= NUMBERED_CLASSES else 0.5
    axes.pcolormesh(
        edges, edges, matrix, cmap="Blues", vmin=0, vmax=1, edgecolor="white", linewidth=line
    )
    axes.invert_yaxis()
    axes.tick_params(length=0, labelcolor=INK, labelsize=8, pad=3)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if n_classes <= NUMBERED_CLASSES:
        for (c, z), share in np.ndenumerate(matrix):
            axes.text(
                z + 0.5,
                c + 0.5,
                f"{100 * share:.0f}",
                ha="center",
                va="center_baseline",
                fontsize=9 if n_classes <= 4 else 8,
                weight="bold" if c == z else "normal",
                color="white" if share > 0.55 else INK,
            )


def _draw_scale(figure: "Figure", width: float, height: float) -> None:
    """Draw the colours' meaning beside the first row of heat maps."""
    mesh = figure.axes[0].collections[0]
    bottom = height - SHEET_TOP - MAP_TITLE - MAP_SIDE
    place = (1 - 0.1 / width, bottom / height, 0.08 / width, MAP_SIDE / height)
    scale = figure.colorbar(mesh, cax=figure.add_axes(place), ticks=[0, 0.5, 1])
    scale.ax.set_yticklabels(["0 %", "50 %", "100 %"])
    scale.ax.tick_params(length=0, labelcolor=QUIET_INK, labelsize=8, pad=3)
    scale.outline.set_visible(False)


def _name_classes(axes: "Axes", rows: Sequence[Hashable], columns: Sequence[Hashable]) -> None:
    """Name the rows and the columns of a heat map; an empty sequence names none."""
    axes.set_yticks(np.arange(len(rows)) + 0.5, [shortened(name) for name in rows])
    axes.set_xticks(np.arange(len(columns)) + 0.5, [shortened(name) for name in columns])
    if any(len(shortened(name)) * len(columns) > ROOM_FOR_LETTERS for name in columns):
        axes.tick_params(axis="x", labelrotation=90)


# ── skills and calibration ───────────────────────────────────────────────────────────────


ROW, TOP, BOTTOM = 0.21, 0.62, 0.5  # inches
FLAG_COLOUR = OTHER_COLOURS[0]


def plot_skills(
    path: str | Path,
    names: Sequence[Hashable],
    skill: ArrayLike,
    low: ArrayLike | None = None,
    high: ArrayLike | None = None,
    *,
    label_counts: Sequence[int] | None = None,
    flags: Sequence[str] | None = None,
    title: str = "How often each worker is right",
) -> Path:
    """Draw how often workers are right and between which bounds that is known, the worst on top.

    Parameters
    ----------
    path
        Where to write, .png, .svg or .pdf.
    names
        (K,) workers. Pass those to be shown, not a thousand.
    skill, low, high
        (K,) shares from 0 to 1; without bounds there are only points.
    label_counts
        (K,) labels given by each worker, written beside the bounds.
    flags
        (K,) what is odd about each worker, empty for nothing; such workers have another colour.

    Returns
    -------
    path
    """
    point = np.asarray(skill, np.float64)
    n_workers = len(names)
    columns = {"skill": point, "low": low, "high": high, "label_counts": label_counts}
    for name, column in {**columns, "flags": flags}.items():
        size = n_workers if column is None else len(np.asarray(column))
        if size != n_workers or not n_workers:
            raise StateError(
                f"`{name}` of plot_skills must have an entry for each worker, and there must be "
                f"one. Got {size} for {n_workers} workers."
            )
    height = TOP + BOTTOM + ROW * n_workers
    figure = new_figure(path, width=7.0, height=height)
    axes = figure.add_axes((0.2, BOTTOM / height, 0.5, ROW * n_workers / height))
    quiet_axes(axes, grid="x")
    order = np.argsort(point, kind="stable")
    rows = np.arange(n_workers)
    odd = [bool(flags[k]) if flags is not None else False for k in order]
    colours = [FLAG_COLOUR if one else EMPHASIS_COLOUR for one in odd]
    if low is not None and high is not None:
        ends = (np.asarray(low, np.float64)[order], np.asarray(high, np.float64)[order])
        axes.hlines(rows, *ends, colors=colours, linewidth=2.2, alpha=0.55)
    axes.scatter(point[order], rows, s=22, c=colours, zorder=3)
    axes.set_xlim(0, 1)
    axes.set_ylim(n_workers - 0.5, -0.5)
    axes.set_yticks(rows, [shortened(names[k]) for k in order])
    axes.tick_params(axis="y", labelcolor=INK)
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    axes.set_xlabel("right, of all labels · line: 95 % sure", color=QUIET_INK, fontsize=9)
    for row, k in enumerate(order):
        parts = [f"{100 * point[k]:.0f} %"]
        if label_counts is not None:
            parts.append(f"{label_counts[k]:,} label{'s' if label_counts[k] != 1 else ''}")
        if flags is not None and flags[k]:
            parts.append(plain(flags[k]))
        _beside(axes, row, " · ".join(parts), FLAG_COLOUR if odd[row] else QUIET_INK)
    figure.text(0.02, 1 - 0.2 / height, title, fontsize=13, weight="bold", color=INK, va="center")
    return save(figure, path)


def plot_calibration(
    path: str | Path, counts: ArrayLike, title: str = "Are confident answers right?"
) -> Path:
    """Draw how often answers of each confidence are right: on the dashed line is honest.

    Bars are 95 % intervals; below, how many tasks have which confidence.

    Parameters
    ----------
    path
        Where to write, .png, .svg or .pdf.
    counts
        (B, 3) tasks, the sum of their confidence, and how many are right, of each part of the
        confidence from 0 to 1; `evaluation.reliability` counts so.

    Returns
    -------
    path
    """
    table = np.asarray(counts, np.float64)
    if table.ndim != 2 or table.shape[1] != 3 or not table[:, 0].sum():
        raise StateError(
            "`counts` of plot_calibration must have the shape (parts, 3) and count some task. "
            f"Got {table.shape}."
        )
    n_parts = len(table)
    figure = new_figure(path, width=5.2, height=5.6)
    upper, lower = (
        figure.add_axes((0.12, 0.35, 0.84, 0.5)),
        figure.add_axes((0.12, 0.1, 0.84, 0.16)),
    )
    for axes in (upper, lower):
        quiet_axes(axes)
        axes.set_xlim(0, 1)
        axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    used = table[table[:, 0] > 0]
    items, sure, right = used[:, 0], used[:, 1] / used[:, 0], used[:, 2] / used[:, 0]
    bounds = np.array([wilson(*one) for one in zip(right, items, strict=True)]).reshape(-1, 2)
    upper.plot([0, 1], [0, 1], color=REFERENCE_COLOUR, linestyle=(0, (4, 2.5)), linewidth=1.2)
    upper.vlines(sure, bounds[:, 0], bounds[:, 1], colors=EMPHASIS_COLOUR, linewidth=2, alpha=0.55)
    upper.plot(sure, right, "o-", color=EMPHASIS_COLOUR, linewidth=1.2, markersize=4.5)
    upper.set_ylim(0, 1.02)
    upper.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    upper.set_title("tasks answered rightly", loc="left", fontsize=10, color=INK, pad=8)
    edges = np.linspace(0, 1, n_parts + 1)[:-1]
    lower.bar(edges, table[:, 0], width=0.92 / n_parts, align="edge", color=EMPHASIS_COLOUR)
    lower.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    lower.set_title("tasks", loc="left", fontsize=10, color=INK, pad=6)
    lower.set_xlabel("confidence", color=QUIET_INK, fontsize=9)
    gap = np.abs(table[:, 2] - table[:, 1]).sum() / table[:, 0].sum()
    reported = f"{table[:, 0].sum():,.0f} tasks · calibration error {100 * gap:.1f} points"
    figure.text(0.02, 0.98, title, fontsize=13, weight="bold", color=INK, va="center")
    figure.text(0.02, 0.935, reported, fontsize=9, color=QUIET_INK, va="center")
    return save(figure, path)


def _beside(axes: "Axes", row: int, text: str, colour: str) -> None:
    axes.annotate(
        text,
        (1.03, row),
        xycoords=axes.get_yaxis_transform(),
        color=colour,
        fontsize=8.5,
        va="center",
        annotation_clip=False,
    )
