"""Two targets of ours: the authors' log is followed, and `BiLA()` fails on no crowd of Figure 4."""

from typing import Any

from case import CROWDS, SYNTHETIC, Case
from cells import Measured
from claims_crowds import AWAY, PLAIN
from verdicts import PAPER, PAPERS, title

LOG = PAPER["log"]
LOG_TOLERANCES = {5_000: 1.2, 10_000: 0.7}
"""From that number of items on, the mean over seeds may differ from the log by that many points.
The earlier points depend on a few hundred items, and are only reported."""
LIMITS = {"mv": 0.0, "recipe": 3.0, "oracle": 8.0}
"""On no seed may the error of `BiLA()` be more than that many points above that of the method."""


def authors_log(m: Measured) -> dict[str, Any] | None:
    """Error so far at the points of the log: the log's, the mean over seeds, and the difference."""
    protocol = {"initial": LOG["initial"], "again": True, "crowd": "structured"}
    runs = [m("cifar10", method, LOG["chunk"], **protocol) for method in ("authors", "mv")]
    ours, vote = (dict(s.curve("curve")) if s else {} for s in runs)
    rows = []
    for n, printed, printed_vote in zip(LOG["items"], LOG["bila"], LOG["vote"], strict=True):
        if n in ours:
            difference, most = round(ours[n] - printed, 4), log_tolerance(n)
            row = {"items": n, "log": printed, "here": round(ours[n], 4), "difference": difference}
            row |= {"tolerance": most, "within": None if most is None else abs(difference) <= most}
            row |= {"log_vote": printed_vote, "vote": round(vote[n], 4) if n in vote else None}
            rows.append(row)
    if not rows or runs[0] is None:
        return None
    complete = len(rows) == len(LOG["items"])
    within = complete and all(row["within"] is not False for row in rows)
    return {"seeds": len(runs[0].errors), "complete": complete, "within": within, "rows": rows}


def log_tolerance(n_items: int) -> float | None:
    """The tolerance at a point of the log, in points."""
    reached = [points for start, points in LOG_TOLERANCES.items() if n_items >= start]
    return reached[-1] if reached else None


def default_limits(m: Measured) -> list[dict[str, Any]]:
    """A row for each crowd of Figure 4: mean errors, and the largest excess on any seed."""
    rows = []
    for crowd, fields in CROWDS.items():
        for data in SYNTHETIC:
            for away in AWAY:
                case, methods = Case(m, "default", PAPERS), ("default", *LIMITS)
                runs = {k: case.online(data, k, 0, **fields, **away) for k in methods}
                found = {k: s for k, s in runs.items() if s}
                if len(found) < len(runs):
                    continue
                seeds = set.intersection(*(set(s.errors) for s in found.values()))
                ours = found["default"].errors
                excess = {
                    k: max(round(ours[seed] - found[k].errors[seed], 4) for seed in seeds)
                    for k in LIMITS
                }
                rows.append(
                    {
                        "crowd": crowd,
                        "title": title(data),
                        **PLAIN,
                        **away,
                        "seeds": len(seeds),
                        "errors": {k: round(s.mean, 4) for k, s in found.items()},
                        "excess": excess,
                        "holds": all(excess[k] <= most for k, most in LIMITS.items()),
                    }
                )
    return rows
