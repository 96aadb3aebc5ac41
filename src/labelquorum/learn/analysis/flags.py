"""Signs: what is odd about a worker, from the model's own state, and how sure that is.

A flag is raised only where the doubt that is left allows it, so that nobody is accused on a
handful of labels:

- `spammer`: answers hardly depend on the truth.
- `one_answer`: and are one and the same nearly always.
- `reversed`: answers are right less often than the same answers given blindly.
- `drifting`: since some chunk, agreement with the others is lower than before.
- `colluding`: says the same as another worker more often than two who do not talk would.

`docs/crowd.md` has the formulas and how often flags are right.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.learn.analysis import drift
from labelquorum.learn.analysis.collusion import Pairs, believed

FLAGS = ("spammer", "one_answer", "reversed", "drifting", "colluding")

MIN_LABELS = 20
"""Labels without which nothing is said against a worker's matrix."""

DEPENDS = 0.15
"""Whose answers depend on the truth by less is a spammer: 0 is blind, 1 always right."""

REVERSED = -0.05
"""And below this, the worker says anything but the truth."""

SAME_ANSWER = 0.8
"""Who gives an answer so often, whatever the truth, has one answer."""

Named = Callable[[int], Any]


class Flag(NamedTuple):
    """What is odd about a worker."""

    flag: str
    score: float  # see `docs/crowd.md`: a probability, or a log-likelihood ratio
    since: int | None  # chunk
    partners: tuple[int, ...] | None  # workers
    says: str  # one sentence, with the figures that made it


# ── what a matrix shows ──────────────────────────────────────────────────────────────────


def insight(matrix: NDArray[Any], prior: Floats) -> Floats:
    """κ, how far answers depend on the truth by being right, (…) of matrices (…, C, C).

    It is 0 for whoever answers blindly, in whichever proportions, 1 for who is always right.
    """
    # κ = (right − blind) / (1 − blind),  right = Σ_c π_c m[c, c],  blind = Σ_c π_c m̄[c]
    said = np.einsum("...cz,c->...z", matrix, prior)  # m̄
    right = np.einsum("...cc,c->...", matrix, prior)
    blind = said @ prior
    return np.asarray((right - blind) / np.maximum(1 - blind, 1e-9))


def spread(matrix: NDArray[Any], prior: Floats) -> Floats:
    """How far apart the rows of matrices are, right or wrong, from 0 to 1 in each, (…)."""
    # Σ_c π_c |m[c] − m̄| / 2, over what it is for a worker who is always right
    said = np.einsum("...cz,c->...z", matrix, prior)
    apart = np.abs(matrix - said[..., None, :]).sum(axis=-1) @ prior / 2
    return np.asarray(apart / max(float((prior * (1 - prior)).sum()), 1e-9))


def suspects(confusion: NDArray[Any], prior: Floats, labels: NDArray[Any]) -> NDArray[np.bool_]:
    """Of whom it is worth asking how sure it is, (P,): the others get no flag of this kind."""
    if confusion.shape[-1] < 2:
        return np.zeros(len(confusion), bool)
    return np.asarray((insight(confusion, prior) < DEPENDS) & (labels >= MIN_LABELS))


def matrix_flags(
    drawn: NDArray[Any],
    confusion: NDArray[Any],
    prior: Floats,
    labels: NDArray[Any],
    classes: Sequence[Any],
    level: float = 0.95,
) -> list[Flag | None]:
    """What the matrices of P workers show, by draws from their posterior.

    Parameters
    ----------
    drawn
        (S, P, C, C).
    confusion
        The matrices as they are reported, (P, C, C).
    prior, classes
        How frequent the classes are, (C,), and their names.
    labels
        How many each gave, (P,).
    level
        The probability a flag must have.
    """
    depends = insight(drawn, prior)  # (S, P)
    blind = (depends < DEPENDS).mean(axis=0)
    below = (depends < REVERSED).mean(axis=0)
    said = np.einsum("spcz,c->spz", drawn, prior)
    often = (said >= SAME_ANSWER).mean(axis=0)  # (P, C)
    apart = spread(confusion, prior)
    right = np.einsum("pcc,c->p", confusion, prior)
    share = np.einsum("pcz,c->pz", confusion, prior)
    found: list[Flag | None] = []
    for k in range(len(confusion)):
        chance, answer = float(share[k] @ prior), int(often[k].argmax())
        flag = None
        if labels[k] < MIN_LABELS:
            pass
        elif below[k] >= level:
            says = (
                f"They are right on {_percent(right[k])} of their {int(labels[k])} labels, where "
                f"the same answers given blindly would be on {_percent(chance)}."
            )
            flag = Flag("reversed", float(below[k]), None, None, says)
        elif blind[k] >= level and often[k, answer] >= level:
            says = (
                f"They answer {classes[answer]!r} on {_percent(share[k, answer])} of their "
                f"{int(labels[k])} labels, whatever the truth is."
            )
            flag = Flag("one_answer", float(min(blind[k], often[k, answer])), None, None, says)
        elif blind[k] >= level and apart[k] < 2 * DEPENDS:
            says = (
                f"Their answers hardly depend on the truth: they are right on {_percent(right[k])} "
                f"of their {int(labels[k])} labels, and the same answers given blindly would be on "
                f"{_percent(chance)}."
            )
            flag = Flag("spammer", float(blind[k]), None, None, says)
        found.append(flag)
    return found


def guessed(
    confusion: NDArray[Any], prior: Floats, labels: NDArray[Any], n_draws: int, seed: int
) -> Floats:
    """Matrices drawn where a method has no posterior: rows as if counted, (S, P, C, C)."""
    rng = np.random.default_rng(seed)
    n_classes = len(prior)
    counts = labels[:, None, None] * prior[None, :, None] * confusion + 1 / n_classes
    gamma = rng.standard_gamma(counts, size=(n_draws, *counts.shape))
    return np.asarray(gamma / np.maximum(gamma.sum(axis=-1, keepdims=True), 1e-30))


# ── what a track shows ───────────────────────────────────────────────────────────────────


def drifting(tracks: NDArray[np.float32], level: float = 0.95) -> list[Flag | None]:
    """Who goes with the others less than before, by tracks (P, BINS, WIDTH)."""
    found: list[Flag | None] = [None] * len(tracks)
    if not len(tracks):
        return found
    fallen = (-drift.scores(tracks)).max(axis=1) >= drift.limit(level)
    for k in np.flatnonzero(fallen).tolist():
        last = drift.changes(tracks[k], level)[-1:]
        if last and last[0].after < last[0].before:
            change = last[0]
            says = (
                f"Since chunk {change.chunk} they agree with the others on "
                f"{_percent(change.after)} of their labels, before on {_percent(change.before)}."
            )
            found[k] = Flag("drifting", change.score, change.chunk, None, says)
    return found


# ── what the open window shows ───────────────────────────────────────────────────────────


def colluding(pairs: Pairs, name: Named, level: float = 0.95) -> dict[int, Flag]:
    """Who says the same as another worker too often, by worker; `name` gives a worker's id."""
    partners: dict[int, list[tuple[float, int, int, int, float]]] = {}
    chosen = np.flatnonzero(believed(pairs, level)).tolist()
    for row in chosen:
        one, two = int(pairs.worker[row]), int(pairs.other[row])
        figures = int(pairs.shared[row]), int(pairs.same[row]), float(pairs.expected[row])
        for worker, other in ((one, two), (two, one)):
            partners.setdefault(worker, []).append((float(pairs.score[row]), other, *figures))
    found = {}
    for worker, others in partners.items():
        others.sort(key=lambda one: (-one[0], one[1]))
        score, other, shared, same, expected = others[0]
        says = (
            f"They gave the same answer as {name(other)} on {same} of {shared} tasks both had, "
            f"where {expected:.0f} would be expected of two who do not talk."
        )
        if len(others) > 1:
            says = f"{says[:-1]}; {len(others) - 1} more of their pairs are like it."
        found[worker] = Flag("colluding", score, None, tuple(one[1] for one in others), says)
    return found


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
