"""Pictures for papers and slides: PNG, SVG or PDF, by matplotlib, which is imported when needed."""

from labelquorum.trial.pictures.curves import plot_error_along_stream
from labelquorum.trial.pictures.matrices import plot_confusion

__all__ = ["plot_confusion", "plot_error_along_stream"]
