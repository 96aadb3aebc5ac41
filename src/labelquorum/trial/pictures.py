"""Two pictures: error along the stream, and the workers' confusion matrices.

matplotlib is imported when a picture is asked for, and used through its objects alone, so
drawing changes no state of the program that calls. Colours are Okabe and Ito's, which
colour-blind readers can tell apart.
"""

from collections.abc import Hashable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelquorum.errors import LabelQuorumError, StateError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_confusion", "plot_error_along_stream"]

SUFFIXES = (".png", ".svg", ".pdf")
PIXELS_PER_INCH = 200  # twice matplotlib's usual screen density

INK, QUIET_INK, HAIRLINE = "#222222", "#6b6b6b", "#e3e3e3"
EMPHASIS_COLOUR = "#0072b2"
REFERENCE_COLOUR = "#6b6b6b"
OTHER_COLOURS = ("#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")

NUMBERED_CLASSES = 6  # up to so many, the cells of a heat map carry numbers
MAP_SIDE, MAP_GAP, MAP_TITLE, SHEET_TOP = 1.7, 0.3, 0.62, 0.5  # inches
MARGIN = 0.25
LONGEST_NAME = 20
ROOM_FOR_LETTERS = 24  # side by side under one heat map


def plot_error_along_stream(
    path: str | Path,
    curves: Mapping[str, Sequence[float]],
    items: Sequence[int],
    title: str = "Error so far along the stream",
    *,
    emphasis: str | None = None,
    reference: str = "oracle",
) -> Path:
    """Draw the error of several methods as the stream goes by.

    Each line carries its name and last value at its right end instead of a legend.

    Parameters
    ----------
    path
        Where to write, .png, .svg or .pdf.
    curves
        Name → (S,) errors as shares from 0 to 1, one for each entry of `items`; NaN leaves
        a gap.
    items
        (S,) items seen so far.
    emphasis
        The curve drawn thick; None takes the first.
    reference
        The curve drawn dashed and grey, a limit rather than a method, where there is one.

    Returns
    -------
    path
    """
    sizes = {name: len(errors) for name, errors in curves.items()}
    if set(sizes.values()) != {len(items)} or not len(items):
        raise StateError(
            "`curves` of plot_error_along_stream must be one or more curves with as many errors "
            f"as `items` has entries, {len(items)}, and at least one. Got {sizes}."
        )
    emphasis = next(iter(curves)) if emphasis is None else emphasis
    if emphasis not in curves:
        raise StateError(
            f"`emphasis` of plot_error_along_stream must be one of {list(curves)}. "
            f"Got {emphasis!r}."
        )
    figure = _new_figure(path, width=7.0, height=4.5)
    axes = figure.add_axes((0.08, 0.12, 0.9, 0.75))
    other_colours = cycle(OTHER_COLOURS)
    ends: dict[str, tuple[float, str]] = {}
    for name, errors in curves.items():
        per_cent = 100 * np.asarray(errors, dtype=np.float64)
        style: dict[str, Any] = {"linewidth": 1.6, "zorder": 3}
        if name == emphasis:
            style |= {"color": EMPHASIS_COLOUR, "linewidth": 2.8, "zorder": 4}
        elif name == reference:
            style |= {"color": REFERENCE_COLOUR, "linestyle": (0, (4, 2.5))}
        else:
            style |= {"color": next(other_colours)}
        axes.plot(items, per_cent, solid_capstyle="round", **style)
        known = per_cent[np.isfinite(per_cent)]
        if known.size:
            ends[name] = (float(known[-1]), style["color"])

    axes.set_xlim(0, items[-1])
    axes.set_ylim(bottom=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(QUIET_INK)
    axes.grid(axis="y", color=HAIRLINE, linewidth=0.8)
    axes.tick_params(length=0, labelcolor=QUIET_INK, labelsize=9, pad=6)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel("items seen", color=QUIET_INK, fontsize=9)
    _name_ends(axes, ends, emphasis)
    figure.text(0.02, 0.93, title, fontsize=13, weight="bold", color=INK, va="center")
    return _save(figure, path)


def plot_confusion(
    path: str | Path,
    confusion: ArrayLike,
    names: Sequence[Hashable],
    classes: Sequence[Hashable],
    *,
    columns: int = 4,
    label_counts: Sequence[int] | None = None,
    title: str = "What each worker says, given the truth",
) -> Path:
    """Draw workers' confusion matrices as small heat maps, from the worst worker to the best.

    Workers are ordered by the mean of their diagonal. All maps share one colour scale from
    0 to 1; with at most six classes each cell carries its per cent.

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
        (K,) labels given by each worker, shown beside his name.

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
    figure = _new_figure(path, width, height)
    accuracy = np.diagonal(matrices, axis1=1, axis2=2).mean(axis=1)  # (K,)
    for place, k in enumerate(np.argsort(accuracy, kind="stable")):
        row, column = divmod(place, columns)
        x = column * (MAP_SIDE + MAP_GAP)
        y = height - SHEET_TOP - (row + 1) * (MAP_TITLE + MAP_SIDE)
        axes = figure.add_axes((x / width, y / height, MAP_SIDE / width, MAP_SIDE / height))
        _draw_map(axes, matrices[k])
        first, last = column == 0, place + columns >= n_workers
        _name_classes(axes, classes if first else (), classes if last else ())
        heading = f"{100 * accuracy[k]:.0f} % right"
        if label_counts is not None:
            heading += f" · {label_counts[k]:,} label{'s' if label_counts[k] != 1 else ''}"
        name = _shortened(names[k])
        axes.text(0, 1.14, name, transform=axes.transAxes, color=INK, fontsize=9.5, weight="bold")
        axes.text(0, 1.04, heading, transform=axes.transAxes, color=QUIET_INK, fontsize=8)

    if n_classes > NUMBERED_CLASSES:
        _draw_scale(figure, width, height)
    figure.text(0, 1, title, fontsize=13, weight="bold", color=INK, va="top")
    explanation = "rows: the truth · columns: what the worker said · per cent of the row"
    figure.text(0, 1 - 0.32 / height, explanation, fontsize=8.5, color=QUIET_INK, va="top")
    return _save(figure, path)


def _name_ends(axes: "Axes", ends: Mapping[str, tuple[float, str]], emphasis: str) -> None:
    """Write each line's name and last value right of its end, moved apart where they crowd."""
    low, high = axes.get_ylim()
    # A line of text needs about a twentieth of the height.
    names = sorted(ends, key=lambda name: ends[name][0])
    heights = _moved_apart([(ends[name][0] - low) / (high - low) for name in names], 0.058)
    for name, height in zip(names, heights, strict=True):
        value, colour = ends[name]
        end = (value - low) / (high - low)
        axes.plot(
            (1.0, 1.012, 1.026),
            (end, end, height),
            transform=axes.transAxes,
            color=colour,
            linewidth=0.8,
            clip_on=False,
        )
        axes.text(
            1.034,
            height,
            f"{_plain(name)}  {value:.1f} %",
            transform=axes.transAxes,
            color=colour,
            fontsize=10,
            weight="bold" if name == emphasis else "normal",
            va="center_baseline",
        )


def _moved_apart(heights: Sequence[float], distance: float) -> list[float]:
    """Move ascending heights at least `distance` apart, and no further than need be.

    Pool adjacent violators: heights less their rank's share must not descend.
    """
    pools: list[list[float]] = []
    for rank, height in enumerate(heights):
        pools.append([height - rank * distance])
        while len(pools) > 1 and fmean(pools[-1]) < fmean(pools[-2]):
            crowded = pools.pop()
            pools[-1] += crowded
    levels = [fmean(pool) for pool in pools for _ in pool]
    return [level + rank * distance for rank, level in enumerate(levels)]


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
    axes.set_yticks(np.arange(len(rows)) + 0.5, [_shortened(name) for name in rows])
    axes.set_xticks(np.arange(len(columns)) + 0.5, [_shortened(name) for name in columns])
    if any(len(_shortened(name)) * len(columns) > ROOM_FOR_LETTERS for name in columns):
        axes.tick_params(axis="x", labelrotation=90)


def _shortened(name: Hashable) -> str:
    text = str(name)
    return _plain(text if len(text) <= LONGEST_NAME else text[: LONGEST_NAME - 1] + "…")


def _plain(name: str) -> str:
    """Keep matplotlib from reading a user's dollar signs as mathematics."""
    return name.replace("$", r"\$")


def _new_figure(path: str | Path, width: float, height: float) -> "Figure":
    """Open a white sheet of that many inches, once the file's kind is known to be possible."""
    if Path(path).suffix.lower() not in SUFFIXES:
        raise StateError(f"A picture's file must end in {', '.join(SUFFIXES)}. Got {str(path)!r}.")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise LabelQuorumError(
            "Pictures are drawn with matplotlib, which is not installed. "
            "Install it with: pip install 'labelquorum[plots]'"
        ) from error
    return Figure(figsize=(width, height), facecolor="white")


def _save(figure: "Figure", path: str | Path) -> Path:
    """Write the picture; the same picture gives the same bytes, without a date."""
    from matplotlib import rc_context

    target = Path(path)
    stamp = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    with rc_context({"svg.hashsalt": "labelquorum"}):
        figure.savefig(
            target,
            dpi=PIXELS_PER_INCH,
            bbox_inches="tight",  # names decide how much room they need
            pad_inches=MARGIN,
            metadata=stamp[target.suffix.lower()],
        )
    return target
