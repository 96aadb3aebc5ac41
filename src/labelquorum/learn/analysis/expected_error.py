"""The expected share of wrong answers, with an interval.

Let f_i = 1 − confidence_i be what the model expects of task i, and y_i = 1 if its answer is wrong.
Without gold the estimate is the model's own, the mean of f, and its interval is the spread of a
Poisson-binomial sum: it holds as far as the confidences do.

With n gold tasks drawn at random from the N, the model's mean is corrected on them
(prediction-powered inference: Angelopoulos et al., Science 382, 2023; λ as in PPI++, 2023):

    θ = λ mean_N(f) + mean_n(y − λ f),      λ = cov_n(y, f) / var_n(f), held in [0, 1]      (1)
    var θ = (1 − n/N) var(y − λ f) / n                                                       (2)

f is known of all N tasks, so λ needs no allowance for its mean. The draw is without replacement, so
nothing is left to know at n = N. λ = 0 is the plain share of the gold, λ = 1 trusts the model.
The interval is Wilson's, of as many trials as give (2), because θ is often near 0, where a normal
interval would reach below 0, or have no width where no gold task is wrong:

    trials = n' / ((1 − n/N) ρ),     ρ = var(y − λ f) / var(y), 1 where gold has one outcome (3)

n' is n, or n − 1 where λ was fitted.
"""

from dataclasses import dataclass
from math import inf
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from labelquorum._types import Floats
from labelquorum.errors import LabelError
from labelquorum.learn.analysis.certificate import Audit, GoldSampling, check_level, checked_scores
from labelquorum.learn.analysis.intervals import wilson


class Doubts(NamedTuple):
    """What is summed over all tasks, f = 1 − confidence."""

    tasks: int
    total: float  # Σ f
    spread: float  # Σ f (1 − f)


@dataclass(frozen=True)
class ExpectedError:
    """The expected share of wrong answers among some tasks."""

    estimate: float
    low: float
    high: float
    level: float
    """The probability with which the share lies between `low` and `high`."""
    tasks: int
    n_gold: int
    """Gold tasks, drawn at random, by which the model's estimate was corrected."""
    method: Literal["model", "prediction-powered"]
    """"model": by the model's confidences alone, as far as these hold."""

    def __str__(self) -> str:
        by = "by the model's own confidence, which no gold checks"
        if self.n_gold:
            by = f"corrected on {self.n_gold:,} gold tasks"
        return (
            f"Expected error of {self.tasks:,} answers: {self.estimate:.1%} "
            f"({self.low:.1%} to {self.high:.1%} at {self.level:.0%}), {by}."
        )


def expected_error(
    confidence: ArrayLike,
    audit: Audit | None = None,
    level: float = 0.95,
    sampling: GoldSampling = "random",
) -> ExpectedError:
    """Estimate how many of these answers are wrong.

    Parameters
    ----------
    confidence
        Of the answer of each task, without knowing the truth of gold, (N,).
    audit
        The gold among them.
    level
        The probability with which the share lies in the interval.
    sampling
        "selected" where people chose the gold: then it is not used.

    Examples
    --------
    >>> sure = np.full(1000, 0.8)
    >>> expected_error(sure).method, round(expected_error(sure).high, 3)
    ('model', 0.226)
    >>> drawn = np.arange(0, 1000, 10)
    >>> print(expected_error(sure, Audit(drawn, drawn < 50)))
    Expected error of 1,000 answers: 5.0% (2.2% to 10.8% at 95%), corrected on 100 gold tasks.
    """
    doubt = 1 - checked_scores(confidence)
    doubts = Doubts(len(doubt), float(doubt.sum()), float((doubt * (1 - doubt)).sum()))
    if audit is None or sampling == "selected":
        return expected_error_of(doubts, np.zeros(0), np.zeros(0), level)
    return expected_error_of(doubts, doubt[audit.place], audit.wrong, level)


def expected_error_of(
    doubts: Doubts, expected: Floats, outcome: ArrayLike, level: float = 0.95
) -> ExpectedError:
    """`expected_error` by sums over all tasks, and of the gold f and whether it was wrong."""
    check_level("level", level)
    if not doubts.tasks:
        raise LabelError("expected_error: no task has an answer. Give labels first.")
    mean, wrong = doubts.total / doubts.tasks, np.asarray(outcome, np.float64)
    if not len(wrong):
        trials = mean * (1 - mean) * doubts.tasks**2 / doubts.spread if doubts.spread > 0 else inf
        return ExpectedError(mean, *_bounds(mean, trials, level), level, doubts.tasks, 0, "model")
    weight = _weight(wrong, expected)
    share = min(max(weight * mean + float((wrong - weight * expected).mean()), 0.0), 1.0)
    rest = (1 - len(wrong) / doubts.tasks) * _ratio(wrong, weight * expected)
    bounds = _bounds(share, (len(wrong) - (weight > 0)) / rest if rest > 0 else inf, level)
    return ExpectedError(share, *bounds, level, doubts.tasks, len(wrong), "prediction-powered")


def _weight(wrong: Floats, expected: Floats) -> float:
    """λ of (1); 0 where the confidences of gold are all alike."""
    spread = float(expected.var())
    if spread < 1e-12:
        return 0.0
    together = float(((wrong - wrong.mean()) * (expected - expected.mean())).mean())
    return min(max(together / spread, 0.0), 1.0)


def _ratio(wrong: Floats, explained: Floats) -> float:
    """ρ of (3)."""
    spread = float(wrong.var())
    return float((wrong - explained).var()) / spread if spread else 1.0


def _bounds(share: float, trials: float, level: float) -> tuple[float, float]:
    return (share, share) if trials == inf else wilson(share, trials, level)
