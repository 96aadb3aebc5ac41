"""A certificate: how many answers may stand without a person, by gold drawn at random.

N tasks have an answer and a confidence. Gold tasks are drawn one by one, uniformly without
replacement, and a person says whether the answer was right. An answer that stands is *accepted*:
its confidence reaches a threshold and no person has seen it. All other tasks go to people, whose
labels count as right, as those of the gold do (PAC labels: Candès, Ilyas, Zrnic, arXiv 2506.10908).
The final label set then has an error of at most ε if at most m = ⌊εN⌋ accepted answers are wrong.

**Claim.** With probability 1 − α, at every moment at once and for the threshold that is chosen
after looking, at most m accepted answers are wrong.

*Nested sets.* Tasks are put in order, the surest first, ties in the order given. A_k is the first k
of them. R_n(k) counts the wrong answers in A_k that no one has seen after n draws. It only falls as
n grows, and only grows with k.

*The frontier.* Let F_n be the smallest A_k with R_n(k) > m. It has r = m + 1 unseen wrong answers,
so the next draw finds one of them with probability

    p_i = r / (N − i + 1)                                                                    (1)

whatever happened before. Let y_i = 1 if draw i does. Then r − 1 are left, and the frontier moves on
to the set that ends with the next unseen wrong answer; otherwise it stays.

*Its past.* Let x_i(k) = 1 if draw i found a wrong answer in A_k. Frontiers only grow, so what an
earlier one met lies in F_n as well: x_i(F_n) ≥ y_i for all i ≤ n.

*The bet.* For any set, stake on "wrong answers are found c times as often as (1)", 0 < c < 1:

    K_n(k; c) = Π_{i ≤ n} c^{x_i(k)} ((1 − c p_i) / (1 − p_i))^{1 − x_i(k)}                  (2)
    K_n(k)    = mean of K_n(k; c) over c = v², v uniform on (0, 1)                           (3)

With y in place of x each factor of (2) has the mean 1, so (3) is a nonnegative martingale that
starts at 1, and reaches 1/α ever with a probability of at most α (Ville). A found wrong answer has
the factor c < 1, any other draw one > 1, so K falls with x: K_n(F_n) never exceeds the martingale,
and K_n(k) falls with k. A_k is accepted once K(k) has reached 1/α, at n or before. If that set has
R > m, it contains F, so K(F) has reached 1/α too, and the martingale with it. ∎

This is a confidence sequence by betting (Waudby-Smith & Ramdas, JRSS B 86, 2024), without
replacement, with a mixture of bets in place of a plug-in. (3) is Jeffreys' prior of a rate: after
P = Σ p_i with no wrong answer found, log K ≈ P − ½ log P − 0.12, so the first certificate needs
about 3.9 / ε gold labels at 95 %. No level is divided among thresholds or moments.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from math import floor, lgamma, log
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelquorum._types import Floats
from labelquorum.errors import LabelError, StateError

GoldSampling = Literal["random", "selected"]

BETS = (np.arange(32) + 0.5) ** 2 / 32**2
"""c of (3). With 32 the last are 0.06 apart, as narrow as the best bet is known after 200 / ε
draws."""

_lgamma: Callable[[Any], Floats] = np.vectorize(lgamma, otypes=[np.float64])


@dataclass(frozen=True)
class Audit:
    """Gold drawn at random: the places of its tasks, in the order drawn, and who was wrong."""

    place: NDArray[np.intp]
    wrong: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.place)


@dataclass(frozen=True)
class Certificate:
    """Which answers may stand. Tasks are either accepted, gold, or still for people (`todo`)."""

    certified: bool
    error: float
    """The share of wrong labels that is allowed in the final label set."""
    confidence: float
    """The probability with which no certificate, whenever one looks, promises too much."""
    tasks: int
    gold: int
    """Tasks that were drawn at random and labelled by a person."""
    accepted: int
    """Answers that stand without a person."""
    threshold: float | None
    """The least confidence of an accepted answer, None where none is: of several with just this
    confidence, those that came first may be accepted and the rest be in `todo`."""
    error_bound: float
    """The largest share of wrong labels among all tasks, once people have labelled `todo`."""
    accepted_error_bound: float
    """The largest share of wrong answers among those accepted."""
    gold_needed: int | None
    """Without a certificate: gold labels in all that it takes, if those to come find no wrong
    answer among the surest."""
    todo: Sequence[Hashable]
    """The tasks a person must still see, the least sure first."""
    reason: str | None = None
    """Why there is none."""

    def __str__(self) -> str:
        if not self.certified:
            return f"No certificate: {self.reason}"
        return (
            f"Certified at {self.confidence:.0%}: {self.accepted:,} of {self.tasks:,} answers may "
            f"stand (confidence {self.threshold_text} or more), {len(self.todo):,} tasks are left "
            f"for people, {self.gold:,} are gold. At most {self.error_bound:.1%} of all labels are "
            f"then wrong, and at most {self.accepted_error_bound:.1%} of the accepted."
        )

    @property
    def threshold_text(self) -> str:
        """The threshold as people read it."""
        return "–" if self.threshold is None else f"{self.threshold:.3f}"

    def named(self, name: Callable[[int], Hashable]) -> "Certificate":
        """The same with the id of each task in `todo` in the place of its place."""
        return replace(self, todo=[name(place) for place in self.todo])  # type: ignore[arg-type]


def certificate(
    confidence: ArrayLike,
    audit: Audit,
    error: float = 0.02,
    level: float = 0.95,
    sampling: GoldSampling = "random",
) -> Certificate:
    """Say which answers may stand, so that at most a share `error` of all final labels is wrong.

    Parameters
    ----------
    confidence
        Of the answer of each task, in [0, 1], (N,); fixed without knowing the truth of gold. Equal
        ones stand in the order given, which must not depend on what was drawn.
    audit
        The gold; whether the answer without knowing the truth was wrong.
    error
        The share of wrong labels allowed.
    level
        The probability with which it holds at every moment.
    sampling
        "selected" where people chose the gold: then it says nothing about the other tasks.

    Examples
    --------
    >>> sure = np.linspace(0.5, 1, 1000)
    >>> drawn = np.random.default_rng(0).permutation(1000)[:100]
    >>> found = certificate(sure, Audit(drawn, sure[drawn] < 0.6), error=0.1)
    >>> found.certified, found.accepted + found.gold + len(found.todo), found.error_bound
    (True, 1000, 0.1)
    >>> certificate(sure, Audit(drawn[:20], np.zeros(20, bool)), error=0.1).gold_needed
    35
    """
    scores = checked_scores(confidence)
    check_level("error", error)
    check_level("confidence", level)
    n_tasks, allowed = len(scores), floor(error * len(scores) + 1e-9)
    if sampling == "selected":
        audit = Audit(audit.place[:0], audit.wrong[:0])
    order = np.argsort(-scores, kind="stable")
    rank = np.empty(n_tasks, np.intp)
    rank[order] = np.arange(n_tasks)
    seen = np.zeros(n_tasks, bool)
    seen[rank[audit.place]] = True
    rest = np.flatnonzero(~seen)  # ranks of tasks that no one has seen
    accepted, needed = len(rest), None
    if len(rest) > allowed:  # fewer cannot be wrong more often
        found, goal = _Found(rank, audit, allowed + 1), log(1 / (1 - level))
        accepted = int(np.searchsorted(rest, _end(found, goal)))
        if accepted <= allowed:
            accepted, needed = 0, _needed(found, goal, int(rest[allowed]))
    certified = needed is None and n_tasks > 0
    wrong = min(allowed, accepted)
    return Certificate(
        certified=certified,
        error=error,
        confidence=level,
        tasks=n_tasks,
        gold=len(audit),
        accepted=accepted,
        threshold=float(scores[order[rest[accepted - 1]]]) if accepted else None,
        error_bound=wrong / max(n_tasks, 1),
        accepted_error_bound=wrong / max(accepted, 1),
        gold_needed=needed,
        todo=order[rest[accepted:]][::-1].tolist(),
        reason=None if certified else _reason(audit, needed, n_tasks, sampling),
    )


def _reason(audit: Audit, needed: int | None, n_tasks: int, sampling: GoldSampling) -> str:
    if not n_tasks:
        return "no task has an answer yet."
    given = f"{len(audit):,} gold labels drawn at random are too few"
    if sampling == "selected":
        given = "gold that people selected says nothing about the other tasks"
    elif len(audit) and audit.wrong.any():
        given += f", with {int(audit.wrong.sum()):,} wrong answers among them"
    return f"{given}; it takes at least {needed:,} of {n_tasks:,} tasks, drawn at random."


# ── capital ──────────────────────────────────────────────────────────────────────────────


class _Found:
    """The wrong answers that gold found: at which draw, and at which rank of confidence."""

    def __init__(self, rank: NDArray[np.intp], audit: Audit, r: int) -> None:
        self.draw = np.flatnonzero(audit.wrong) + 1  # i of (1), in order
        self.rank = rank[audit.place[audit.wrong]]
        self.n, self.n_tasks, self.r = len(audit), len(rank), r
        # K rises with every draw that finds nothing: its peaks are before those that do, and at n.
        self._before = self.log_misses(self.draw - 1)
        left = len(rank) + 1.0 - self.draw[:, None]
        # A wrong answer has c in place of (1 − c p) / (1 − p).
        self._loss = np.log(BETS * (left - r) / (left - BETS * r))

    def log_misses(self, n: NDArray[np.intp]) -> Floats:
        """Log of Π (1 − c p_i) / (1 − p_i) over i ≤ n, where no draw finds anything, (n, C).

        It is Π (N − i + 1 − c r) / (N − i + 1 − r), a quotient of Gamma functions.
        """
        top, left = self.n_tasks + 1.0, self.n_tasks + 1.0 - n[:, None]
        bets, r = BETS[None, :] * self.r, float(self.r)
        return _lgamma(top - bets) - lgamma(top - r) - _lgamma(left - bets) + _lgamma(left - r)

    def log_capital(self, last: int, n: int) -> float:
        """The largest log K_i, i ≤ n, of the set of tasks up to this rank."""
        rows = self.rank <= last
        each = np.vstack([self._before[rows], self.log_misses(np.array([n]))])
        each[1:] += np.cumsum(self._loss[rows], axis=0)
        peak = each.max(axis=1)
        return float((peak + np.log(np.exp(each - peak[:, None]).mean(axis=1))).max())


def _end(found: _Found, goal: float) -> int:
    """The rank before which sets have the capital: that of the wrong answer which ends it."""
    if found.log_capital(-1, found.n) < goal:
        return 0
    bars = np.sort(found.rank)
    low, high = -1, len(bars)  # sets up to `low` have it, those up to `high` have not
    while high - low > 1:  # K falls with every wrong answer
        middle = (low + high) // 2
        if found.log_capital(int(bars[middle]), found.n) >= goal:
            low = middle
        else:
            high = middle
    return int(bars[high]) if high < len(bars) else found.n_tasks


def _needed(found: _Found, goal: float, last: int) -> int:
    """How many draws certify the tasks up to this rank, if those to come find nothing."""
    low, high = found.n, found.n_tasks - found.r + 1  # then no more are unseen than may be wrong
    while high - low > 1:
        middle = (low + high) // 2
        if found.log_capital(last, middle) >= goal:
            high = middle
        else:
            low = middle
    return high


# ── input ────────────────────────────────────────────────────────────────────────────────


def checked_scores(confidence: ArrayLike) -> Floats:
    """Confidences as an array; refuse what is not in [0, 1]."""
    scores = np.asarray(confidence, np.float64)
    if scores.ndim != 1 or not ((scores >= 0) & (scores <= 1)).all():
        raise StateError(
            "`confidence` must be one number from 0 to 1 per task. Got "
            f"{_first_outside(scores)}. Divide scores of another scale by their largest value."
        )
    return scores


def _first_outside(scores: Floats) -> str:
    if scores.ndim != 1:
        return f"an array of shape {scores.shape}"
    bad = int(np.flatnonzero(~((scores >= 0) & (scores <= 1)))[0])
    return f"{scores[bad]} at place {bad}"


def check_level(name: str, value: float) -> None:
    """Refuse what is not between 0 and 1."""
    if not 0 < value < 1:
        raise StateError(f"`{name}` must be a number between 0 and 1. Got {value!r}.")


def checked_audit(place: Sequence[int], wrong: Sequence[bool], n_tasks: int) -> Audit:
    """Gold by place; refuse a task that is named twice or is none of the tasks."""
    audit = Audit(np.asarray(place, np.intp), np.asarray(wrong, bool))
    if len(audit.place) != len(audit.wrong):
        raise LabelError(
            f"audit: {len(audit.place):,} tasks and {len(audit.wrong):,} outcomes. Give one each."
        )
    if len(audit) and not (audit.place.min() >= 0 and audit.place.max() < n_tasks):
        raise LabelError(f"audit: a place is not in 0 … {n_tasks - 1:,}. Name audited tasks only.")
    if len(np.unique(audit.place)) < len(audit):
        raise LabelError("audit: a task is drawn twice. Draw without replacement.")
    return audit
