"""Plots along a stream: the error of each method; tasks decided, confidence, classes over time."""

from collections.abc import Hashable, Mapping, Sequence
from datetime import UTC
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

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

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    figure = new_figure(path, width=7.0, height=4.5)
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
    quiet_axes(axes)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel("items seen", color=QUIET_INK, fontsize=9)
    _name_ends(axes, ends, emphasis)
    figure.text(0.02, 0.93, title, fontsize=13, weight="bold", color=INK, va="center")
    return save(figure, path)


def _name_ends(axes: "Axes", ends: Mapping[str, tuple[float, str]], emphasis: str) -> None:
    """Write each line's name and last value right of its end, moved apart where they crowd."""
    low, high = axes.get_ylim()
    # A line of text needs about a twentieth of the height.
    names = sorted(ends, key=lambda name: ends[name][0])
    heights = moved_apart([(ends[name][0] - low) / (high - low) for name in names], 0.058)
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
            f"{plain(name)}  {value:.1f} %",
            transform=axes.transAxes,
            color=colour,
            fontsize=10,
            weight="bold" if name == emphasis else "normal",
            va="center_baseline",
        )


def moved_apart(heights: Sequence[float], distance: float) -> list[float]:
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


# ── a stream along time ──────────────────────────────────────────────────────────────────


POINTS = 200  # along time; of more chunks, several make one point
NAMED_CLASSES = 8  # the others are drawn as one
LEFT, WIDE, BESIDE = 0.09, 0.72, 0.15  # shares of the width: the curves, and what stands beside
COLOURS = (EMPHASIS_COLOUR, *OTHER_COLOURS)


class _Course(NamedTuple):
    """A stream by point of time, (P,) each but the shares (P, C)."""

    at: NDArray[np.datetime64]
    decided: NDArray[np.float64]
    confidence: NDArray[np.float64]
    shares: NDArray[np.float64]


def plot_stream(
    path: str | Path,
    at: ArrayLike,
    items: ArrayLike,
    confidence: ArrayLike,
    classes: Sequence[Hashable],
    *,
    histogram: ArrayLike = (),
    title: str = "How the stream went",
) -> Path:
    """Draw a stream along time: tasks decided, the confidence of each chunk, shares of the classes.

    Parameters
    ----------
    path
        Where to write, .png, .svg or .pdf.
    at
        (S,) seconds since 1970 of each chunk, ascending.
    items
        (S, C) tasks of each chunk by the class they were answered with.
    confidence
        (S,) mean confidence of each chunk's answers.
    classes
        (C,) classes as a person knows them.
    histogram
        (B,) tasks by confidence, in B equal parts from 0 to 1; drawn beside the confidence.

    Returns
    -------
    path
    """
    counts = np.asarray(items, dtype=np.float64)
    moments, sure = np.asarray(at, np.float64), np.asarray(confidence, np.float64)
    if (
        counts.shape != (len(moments), len(classes))
        or len(sure) != len(moments)
        or not counts.sum()
    ):
        raise StateError(
            "`items` of plot_stream must have the shape (chunks, classes) that `at`, `confidence` "
            f"and `classes` give, and hold something. Got {counts.shape} for {len(moments)} and "
            f"{len(sure)} chunks and {len(classes)} classes."
        )
    names, counts = _gathered(classes, counts)
    course = _together(moments, counts, sure)
    figure = new_figure(path, width=7.0, height=6.2)
    heights = {"decided": (0.72, 0.2), "sure": (0.41, 0.2), "classes": (0.08, 0.22)}
    panels = {
        name: figure.add_axes((LEFT, low, WIDE, high)) for name, (low, high) in heights.items()
    }
    for name, heading in (
        ("decided", "tasks decided"),
        ("sure", "mean confidence of a chunk"),
        ("classes", "classes, share of a chunk's tasks"),
    ):
        quiet_axes(panels[name])
        panels[name].set_title(heading, loc="left", fontsize=10, color=INK, pad=8)
        _lay_time(panels[name], course.at, last=name == "classes")

    panels["decided"].plot(course.at, course.decided, color=EMPHASIS_COLOUR, linewidth=2.2)
    panels["decided"].set_ylim(bottom=0)
    panels["decided"].yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    _note_end(panels["decided"], f"{course.decided[-1]:,.0f}", EMPHASIS_COLOUR, course.decided[-1])

    panels["sure"].plot(course.at, course.confidence, color=EMPHASIS_COLOUR, linewidth=1.8)
    panels["sure"].set_ylim(0, 1)
    low, high = heights["sure"]
    bars = np.asarray(histogram, np.float64)
    if bars.sum():
        _draw_histogram(figure.add_axes((LEFT + WIDE + 0.02, low, BESIDE, high)), bars)
    _draw_shares(panels["classes"], course, names)
    for name in ("sure", "classes"):
        panels[name].yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    figure.text(0.02, 0.985, title, fontsize=13, weight="bold", color=INK, va="center")
    return save(figure, path)


def _gathered(
    classes: Sequence[Hashable], counts: NDArray[np.float64]
) -> tuple[list[str], NDArray[np.float64]]:
    """The classes with most tasks by name, most first, and all others as one."""
    order = np.argsort(-counts.sum(axis=0), kind="stable")
    kept, rest = order[:NAMED_CLASSES], order[NAMED_CLASSES:]
    names, columns = [shortened(classes[c]) for c in kept], counts[:, kept]
    if rest.size:
        names.append(f"{rest.size} others")
        columns = np.column_stack([columns, counts[:, rest].sum(axis=1)])
    return names, columns


def _together(
    at: NDArray[np.float64], counts: NDArray[np.float64], confidence: NDArray[np.float64]
) -> _Course:
    """Draw neighbouring chunks together where they are more than there are points."""
    n_points = min(POINTS, len(at))
    starts = np.linspace(0, len(at), n_points, endpoint=False).astype(np.intp)
    sizes = counts.sum(axis=1)
    items = np.add.reduceat(counts, starts, axis=0)
    total = np.maximum(items.sum(axis=1), 1e-12)
    ends = np.append(starts[1:], len(at)) - 1
    return _Course(
        (1000 * at[ends]).astype(np.int64).astype("datetime64[ms]"),
        np.cumsum(items.sum(axis=1)),
        np.add.reduceat(sizes * np.nan_to_num(confidence), starts) / total,
        items / total[:, None],
    )


def _lay_time(axes: "Axes", at: NDArray[np.datetime64], last: bool) -> None:
    """Write the time below the last panel, in UTC."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    # Nearer to each other, no step of its list fits some spans of time, of which it warns.
    fewest, most = 3, 8
    locator = AutoDateLocator(tz=UTC, minticks=fewest, maxticks=most)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    formatter = ConciseDateFormatter(locator, tz=UTC)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(formatter)
    alone = np.timedelta64(30 if at[0] == at[-1] else 0, "s")  # a single moment needs some room
    axes.set_xlim(at[0] - alone, at[-1] + alone)
    if last:
        axes.set_xlabel("time, UTC", color=QUIET_INK, fontsize=9)
    else:
        axes.tick_params(axis="x", labelbottom=False)


def _draw_histogram(axes: "Axes", bars: NDArray[np.float64]) -> None:
    """Draw how many tasks have which confidence, lying, on the scale of the curve beside it."""
    edges = np.linspace(0, 1, len(bars) + 1)
    axes.barh(edges[:-1], bars, height=0.9 / len(bars), align="edge", color=EMPHASIS_COLOUR)
    axes.set_ylim(0, 1)
    quiet_axes(axes)
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title("all tasks", loc="left", fontsize=9, color=QUIET_INK, pad=8)


def _draw_shares(axes: "Axes", course: _Course, names: Sequence[str]) -> None:
    colours = [colour for colour, _ in zip(cycle(COLOURS), names, strict=False)]
    axes.stackplot(course.at, course.shares.T, colors=colours, alpha=0.85, linewidth=0)
    axes.set_ylim(0, 1)
    items = np.diff(course.decided, prepend=0)
    totals = items @ course.shares / items.sum()  # of all tasks, whichever chunk they were in
    middles = np.cumsum(course.shares[-1]) - course.shares[-1] / 2
    heights = moved_apart(middles.tolist(), 0.1)
    for name, share, colour, height in zip(names, totals, colours, heights, strict=True):
        text = f"{name}  {100 * share:.0f} %"
        axes.text(
            1.02, height, text, transform=axes.transAxes, color=colour, fontsize=9, va="center"
        )


def _note_end(axes: "Axes", text: str, colour: str, value: float) -> None:
    axes.annotate(
        text,
        (1.02, value),
        xycoords=axes.get_yaxis_transform(),
        color=colour,
        fontsize=10,
        weight="bold",
        va="center",
        annotation_clip=False,
    )
