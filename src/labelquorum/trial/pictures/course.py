"""How a stream went: tasks decided, how sure, and the classes, along time."""

from collections.abc import Hashable, Sequence
from datetime import UTC
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelquorum.errors import StateError
from labelquorum.trial.pictures.curves import moved_apart
from labelquorum.trial.pictures.sheet import (
    EMPHASIS_COLOUR,
    INK,
    OTHER_COLOURS,
    QUIET_INK,
    new_figure,
    quiet_axes,
    save,
    shortened,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_stream"]

POINTS = 200  # along time; more chunks than so many are drawn together
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
