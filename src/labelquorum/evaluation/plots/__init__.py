"""Pictures for papers and slides: PNG, SVG or PDF, by matplotlib, which is imported when needed."""

from labelquorum.evaluation.plots.streams import plot_error_along_stream, plot_stream
from labelquorum.evaluation.plots.workers import plot_calibration, plot_confusion, plot_skills

__all__ = [
    "plot_calibration",
    "plot_confusion",
    "plot_error_along_stream",
    "plot_skills",
    "plot_stream",
]
