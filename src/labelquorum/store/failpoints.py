"""Fault points: named places where a test may end the process or raise, as a failure would.

They cost one comparison while nothing is armed. A test compares these names with the calls in the
code, so that a new one cannot go unlisted.
"""

from collections.abc import Callable

POINTS = (
    "before_accept_commit",
    "after_accept",
    "before_cut_commit",
    "after_cut",
    "after_update",
    "inside_apply",
    "before_apply_commit",
    "after_apply",
)
"""In the order a label meets them."""

DELETE_POINTS = ("before_delete_commit", "after_delete")
"""Those of `Store.delete`."""

GOLD_POINTS = ("before_gold_commit", "after_gold")
"""Those of true labels that are accepted."""

JOB_POINTS = ("before_job_commit",)
"""Those of each step of a job."""

_hook: Callable[[str], None] | None = None


def arm(hook: Callable[[str], None] | None) -> None:
    """Call this with the name of every fault point that is passed; None for nothing more."""
    global _hook
    _hook = hook


def fault(point: str) -> None:
    """Pass a fault point."""
    if _hook is not None:
        _hook(point)
