"""Pictures for papers and slides: PNG, SVG or PDF, by matplotlib, which is imported when needed."""

from labelquorum.trial.pictures.course import plot_stream
from labelquorum.trial.pictures.curves import plot_error_along_stream
from labelquorum.trial.pictures.matrices import plot_confusion
from labelquorum.trial.pictures.skills import plot_calibration, plot_skills

__all__ = [
    "plot_calibration",
    "plot_confusion",
    "plot_error_along_stream",
    "plot_skills",
    "plot_stream",
]
