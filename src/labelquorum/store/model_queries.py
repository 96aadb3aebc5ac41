"""What can be asked of a model that is kept in rows: each question a function to plain values.

A question comes with the rows it needs and no more: the workers and open items asked about, who
labelled them, and the busiest of the crowd, among whom they are seen.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from labelquorum.learn.analysis.drift import changes
from labelquorum.learn.estimator import Estimator
from labelquorum.learn.model_file import write_snapshot
from labelquorum.store.learner import Work
from labelquorum.store.model_rows import looked_at, snapshot_of


def answer(work: Work, question: str, options: Mapping[str, Any]) -> Any:
    """Ask a model of these workers and these open items."""
    if question == "snapshot":
        write_snapshot(options["path"], snapshot_of(work))
        return None
    return QUESTIONS[question](looked_at(work), **options)


def skills(
    model: Estimator, workers: list[Any], level: float = 0.95, matrices: bool = True
) -> list[dict[str, Any]]:
    """How often each of these workers is right, between which bounds, and what they confuse."""
    _, index = model.inspection.find_workers(workers)
    bounds = model.inspection.skill_bounds(index, level).tolist()
    reported: list[dict[str, Any]] = [
        {"worker": worker, "skill": skill, "low": _finite(low), "high": _finite(high)}
        for worker, (skill, low, high) in zip(workers, bounds, strict=True)
    ]
    if matrices:
        for one, matrix in zip(reported, model.inspection.confusion(index).tolist(), strict=True):
            one["confusion"] = matrix
    return reported


def priors(model: Estimator) -> dict[str, Any]:
    """The classes known so far, and how frequent they are."""
    return {"classes": model.classes_.tolist(), "priors": model.priors_.tolist()}


def explain(model: Estimator, task: Any) -> dict[str, Any]:
    """Why an open item has its answer: who spoke for it, who against, what would flip it."""
    found = model.explain(task)
    said = zip(
        found.workers.index.tolist(), *(found.workers[c] for c in found.workers), strict=True
    )
    return {
        "text": str(found),
        "runner_up": found.runner_up,
        "prior_log_odds": _finite(found.prior_log_odds),
        "total_log_odds": _finite(found.total_log_odds),
        "heat": float(found.heat),
        "workers": [
            {"worker": worker, "label": label, "weight": float(weight), "log_odds": float(odds)}
            for worker, label, weight, odds in said
        ],
        "flips": list(found.flips),
        "further_labels": found.further_labels,
        "truth_given": bool(found.truth_given),
    }


def gains(model: Estimator, tasks: list[Any], top: int | None = None) -> list[dict[str, Any]]:
    """What one more label of each of these open items would likely do, and who should give it.

    Where it is in doubt which answers are right, those whose true label decides it come first.
    """
    table = model.expected_gain(tasks=tasks)
    deciding = model.deciding_tasks().index if model.doubt().in_doubt else ()
    decides = table.index.isin(deciding)
    table = table.assign(decides=decides).iloc[np.argsort(~decides, kind="stable")[:top]]
    rows: list[dict[str, Any]] = table.reset_index().to_dict("records")  # type: ignore[assignment]
    return [{name: _finite(value) for name, value in row.items()} for row in rows]


def reasons(model: Estimator, task: Any) -> dict[str, Any]:
    """Why an open item has its answer, and what one more label of it would likely do."""
    gain = None
    for row in gains(model, [task]):  # none where the truth is known
        gain = {"mean": row["gain"], "worker": row["best_worker"], "worker_gain": row["best_gain"]}
    return {"why": explain(model, task), "gain": gain}


def worker_table(model: Estimator) -> dict[str, Any]:
    """How often each worker is right, and of whom what is odd."""
    columns = ("flag", "says", "score", "since", "partners")
    flags = [
        [row["worker"], {name: _plain(row[name]) for name in columns}]
        for row in model.flags().to_dict("records")
    ]
    return {"skill": model.skills_.to_numpy().tolist(), "flags": flags}


def agreement(model: Estimator, limit: int) -> dict[str, Any]:
    """How well each worker agrees with each other one on these open items, beyond chance."""
    found = model.agreement(max_workers=limit)
    tables = {name: getattr(found, name).to_numpy().tolist() for name in found._fields[:-1]}
    return {
        "workers": found.kappa.index.tolist(),
        "left_out": found.left_out,
        **{name: [list(map(_finite, row)) for row in rows] for name, rows in tables.items()},
    }


def jury(model: Estimator, limit: int) -> dict[str, Any]:
    """For how many independent judges the workers count on these open items, and why."""
    return model.jury(max_workers=limit).to_dict()


def profile(model: Estimator, workers: list[Any]) -> list[dict[str, Any]]:
    """`skills` of workers, beside the crowd's mean matrix, and how each did over time."""
    candidates, share = model.inspection.candidates()
    crowd = np.einsum("k,kcz->cz", share, model.inspection.confusion(candidates)).tolist()
    reported = []
    for one in skills(model, workers):
        stretches = model.track(one["worker"]).reset_index()
        _, index = model.inspection.find_workers([one["worker"]])
        bins = model.inspection.worker_stats(index, "track")[0]
        reported.append(
            {
                **one,
                "crowd_confusion": crowd,
                "track": [
                    {name: _plain(value) for name, value in row.items() if name != "change"}
                    for row in stretches.to_dict("records")
                ],
                "changes": [
                    {"chunk": int(c.chunk), "before": float(c.before), "after": float(c.after)}
                    for c in changes(bins)
                ],
            }
        )
    return reported


QUESTIONS: dict[str, Callable[..., Any]] = {
    "agreement": agreement,
    "worker_table": worker_table,
    "explain": explain,
    "gains": gains,
    "jury": jury,
    "priors": priors,
    "profile": profile,
    "reasons": reasons,
    "skills": skills,
}
"""By name. `snapshot` is asked like these, and answered in bytes."""


def _plain(value: Any) -> Any:
    """A value JSON can hold, without NumPy's own types."""
    return _finite(value.item() if isinstance(value, np.generic) else value)


def _finite(value: Any) -> Any:
    """A number JSON can hold; None in place of one it cannot."""
    return None if isinstance(value, float) and not np.isfinite(value) else value
