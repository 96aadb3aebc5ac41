"""The sheet a picture is drawn on: its colours, how it is opened, named and saved.

matplotlib is imported when a picture is asked for, and used through its objects alone, so
drawing changes no state of the program that calls. Colours are Okabe and Ito's, which
colour-blind readers can tell apart.
"""

from collections.abc import Hashable
from pathlib import Path
from typing import TYPE_CHECKING

from labelquorum.errors import LabelQuorumError, StateError
from labelquorum.ingest.writers import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


SUFFIXES = (".png", ".svg", ".pdf")
PIXELS_PER_INCH = 200  # twice matplotlib's usual screen density

INK, QUIET_INK, HAIRLINE = "#222222", "#6b6b6b", "#e3e3e3"
EMPHASIS_COLOUR = "#0072b2"
REFERENCE_COLOUR = "#6b6b6b"
OTHER_COLOURS = ("#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")

MARGIN = 0.25  # inches
LONGEST_NAME = 20


def quiet_axes(axes: "Axes", grid: str = "y") -> None:
    """Leave of a frame what helps to read: a line below, and hairlines at the values."""
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(QUIET_INK)
    axes.grid(axis=grid, color=HAIRLINE, linewidth=0.8)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelcolor=QUIET_INK, labelsize=9, pad=6)


def shortened(name: Hashable) -> str:
    """Write a name so that it finds room."""
    text = str(name)
    return plain(text if len(text) <= LONGEST_NAME else text[: LONGEST_NAME - 1] + "…")


def plain(name: str) -> str:
    """Keep matplotlib from reading a user's dollar signs as mathematics."""
    return name.replace("$", r"\$")


def new_figure(path: str | Path, width: float, height: float) -> "Figure":
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


def save(figure: "Figure", path: str | Path) -> Path:
    """Write the picture; the same picture gives the same bytes, without a date."""
    from matplotlib import rc_context

    target = Path(path)
    stamp = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    kind = target.suffix.lower()
    with rc_context({"svg.hashsalt": "labelquorum"}), replacing(target) as beside:
        figure.savefig(
            beside,
            format=kind[1:],
            dpi=PIXELS_PER_INCH,
            bbox_inches="tight",  # names decide how much room they need
            pad_inches=MARGIN,
            metadata=stamp[kind],
        )
    return target
