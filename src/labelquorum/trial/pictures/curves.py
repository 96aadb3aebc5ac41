"""Error along the stream: a line a method."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from labelquorum.errors import StateError
from labelquorum.trial.pictures.sheet import (
    EMPHASIS_COLOUR,
    INK,
    OTHER_COLOURS,
    QUIET_INK,
    REFERENCE_COLOUR,
    new_figure,
    plain,
    quiet_axes,
    save,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["moved_apart", "plot_error_along_stream"]


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
