"""Whether results were made by the code as it is now.

The fingerprint of a method is what it answers on a small simulated crowd. It changes when the
method, the crowds or the measuring change, and not when code is moved, renamed or commented. Every
run remembers the fingerprint of the method that made it; `reproduce.py` runs those again whose
method has another one now, and a test refuses results of other code. Runs of a method with other
settings, such as those of Figure 6, go by the method's own.
"""

import json
from collections.abc import Iterable, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from cells import Watched, build, draw_crowd, run
from plan import Cell, Plan

from labelquorum.evaluation import (
    Crowd,
    balanced_truth,
    class_conditional_crowd,
    label_table,
    oracle,
    oracle_probs,
    truth_by_item,
)

FILE = "fingerprints.json"
N_ITEMS = 160
EVERY = 4  # the probability of every fourth item is kept
# Machines round differently in the seventh digit: with other instructions (SSE4.2 in place of
# AVX-512) no label changed, and no probability by more than 2e-6. A learning rate 10 % higher moves
# the median probability of the slowest learner, `authors`, by 7e-5.
MAX_DIFFERENT_LABELS = 0.01  # share
PROBABILITY_TOLERANCE = 2e-5
MAX_DIFFERENT_PROBS = 0.1  # share that may differ by more than the tolerance


class Fingerprint(NamedTuple):
    """What a method answers on a small crowd."""

    labels: str  # one character per item: the class
    probs: list[float]  # of the label given to every fourth item

    @property
    def id(self) -> str:
        """A short name for runs to remember."""
        return sha256(json.dumps(self).encode()).hexdigest()[:12]

    def agrees(self, other: "Fingerprint") -> bool:
        """Whether two are the same except for the rounding of different machines."""
        if len(self.labels) != len(other.labels) or len(self.probs) != len(other.probs):
            return False
        different = np.mean([a != b for a, b in zip(self.labels, other.labels, strict=True)])
        moved = np.mean(np.abs(np.subtract(self.probs, other.probs)) > PROBABILITY_TOLERANCE)
        return bool(different <= MAX_DIFFERENT_LABELS and moved <= MAX_DIFFERENT_PROBS)


@cache
def small_crowd(two_classes: bool) -> Crowd:
    """Half of the items from the paper's crowd, half from the structured one; or two classes.

    Six workers and a noise rate of 0.7 make the worker model that `BiLA()` selects matter.
    """
    if two_classes:
        skill = (0.5, 0.8)
        return class_conditional_crowd(N_ITEMS, 20, 2, labels_per_item=6, skill=skill, seed=3)
    truth = balanced_truth(N_ITEMS // 2)
    plain = draw_crowd(truth, "homogeneous", 6, 0.7, 0.1, 0.1, seed=1)
    other = draw_crowd(truth, "structured", 6, 0.7, 0.1, 0.0, seed=2)
    joined = {
        name: np.concatenate([getattr(plain, name), getattr(other, name)])
        for name in ("worker", "label", "truth")
    }
    return plain._replace(item=np.concatenate([plain.item, other.item + truth.size]), **joined)


class _Answers(Watched):
    """Keeps the last answer to each item, and its probability."""

    def partial_fit(self, labels: Any) -> "_Answers":
        super().partial_fit(labels)
        best = self.probas_.max(axis=1)
        self.answers = {**getattr(self, "answers", {}), **self.labels_.to_dict()}
        self.best = {**getattr(self, "best", {}), **best.to_dict()}
        return self


def fingerprint(name: str, method: Mapping[str, Any], online: bool) -> Fingerprint:
    """Run a method on the small crowd, in two chunks or at once."""
    crowd = small_crowd(method.get("two_classes", False))
    if name == "oracle":
        answers, best = oracle(crowd), oracle_probs(crowd).max(axis=1)
    else:
        half = N_ITEMS // 2  # initial set and chunk have one size, to compile once
        protocol = {"chunk": half, "initial": half} if online else {"chunk": 0}
        cell = Cell("fingerprint", name, 0, **protocol)
        truth = truth_by_item(crowd, text_ids=False)
        model = _Answers(build(cell, method), truth)
        run(cell, model, label_table(crowd, text_ids=False), truth)
        answers, best = model.answers, model.best
    labels = "".join(str(answers[item]) for item in range(N_ITEMS))
    return Fingerprint(labels, [round(float(best[i]), 6) for i in range(0, N_ITEMS, EVERY)])


def current(plan: Plan, cells: Iterable[Cell]) -> dict[str, Fingerprint]:
    """The fingerprint of every method among the cells, as the code is now."""
    online: dict[str, bool] = {}
    for cell in cells:
        online[cell.method] = online.get(cell.method, False) or cell.chunk > 0
    return {name: fingerprint(name, plan.methods[name], online[name]) for name in online}


def read(results: Path) -> dict[str, Fingerprint]:
    """The fingerprints that the results of a folder were made with."""
    file = results / FILE
    kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return {method: Fingerprint(each["labels"], each["probs"]) for method, each in kept.items()}


def write(results: Path, found: Mapping[str, Fingerprint]) -> None:
    lines = [
        f"{json.dumps(method)}: {json.dumps(found[method]._asdict())}" for method in sorted(found)
    ]
    (results / FILE).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def settle(
    before: Mapping[str, Fingerprint], now: Mapping[str, Fingerprint]
) -> dict[str, Fingerprint]:
    """What runs are to remember: the known fingerprint of a method where it still agrees."""
    return {
        method: before[method] if method in before and before[method].agrees(found) else found
        for method, found in now.items()
    }


def stale(records: Iterable[Mapping[str, Any]], known: Mapping[str, Fingerprint]) -> list[str]:
    """The methods of the runs that were not made by these fingerprints."""
    ids = {method: found.id for method, found in known.items()}
    made = {(record["cell"]["method"], record["result"].get("made_by")) for record in records}
    return sorted({method for method, made_by in made if ids.get(method) != made_by})
