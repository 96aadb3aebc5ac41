"""Identification: whether labels tell which answer is right, or only that workers agree.

Where judges share what misleads them, a worker model finds what they have in common and takes it
for the truth; it may as well be the opposite. No statistic of labels tells the two apart, but two
tell when the question arises. n independent workers of any skill make an answer sure as n grows.
If ten or more labelled a task and the model, by its own dependence, still expects errors nearly
half as often as a guess, then further workers of this kind would not help: what separates the
classes is no larger than what workers have in common within a class. And the average worker's
skill J is then nearer to chance than to certainty, so a swap would be hard to notice.

    Ē(γ) = Σ_i (1 − max_c q_i(c)^(1/n_i^γ) / Z) / ((1 − 1/C) · N),  over tasks with n_i ≥ 10

γ is the dependence of today (`dependence.exponent`), so the sum is kept at five values of γ and
interpolated: sums add up, and shards merge. Then the answer falls back to the vote, as if all
labels of a task were one label of an average worker. Ten true labels lift the doubt: they, and no
longer the labels alone, tell which answer is right.
"""

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.learn.reports import NO_DOUBT, Doubt

__all__ = [
    "MIN_TRUTHS",
    "MIN_WORKERS",
    "N_EXPECTED",
    "doubt_of",
    "expected_errors",
    "vote_log_odds",
]

MIN_WORKERS = 10
"""Workers of a task from which on an unsure answer is doubted: with fewer, any crowd is unsure."""

MIN_SHARE = 0.5
"""The share of tasks that must have ten workers or more: the others say nothing of this."""

MAX_EXPECTED_ERROR, MIN_SKILL = 0.45, 0.5
"""The expected error, 1 for a guess, above which identification is in doubt, and the skill J of the
average worker, 1 for never wrong, from which on it is not: chosen on simulated juries
(`docs/trust.md` says what else was in view)."""

MIN_TRUTHS = 10
"""Given true labels of such tasks from which on nothing is in doubt by labels alone."""

GAMMAS = np.array([0.0, 0.25, 0.5, 0.75, 1.0])
N_EXPECTED = 2 + len(GAMMAS)
"""What is kept of tasks with ten workers or more: how many have a given truth, how many have not,
and of the latter the sum of Ē at each γ."""

BLOCK_ITEMS = 1 << 12
"""Tasks taken at once, to bound memory."""

MIN_VOTE_LOG_ODDS = 0.05
"""What a label says for its class when all count alike, if the crowd seems no better than chance:
the vote is then followed, with next to no confidence."""


def expected_errors(log_scores: Floats, n_workers: Floats, given: NDArray[np.bool_]) -> Floats:
    """What tasks add to the sums behind `doubt_of`, (…, 7).

    Parameters
    ----------
    log_scores
        (…, N, C), of several models at once.
    n_workers
        (N,); a task with 0 does not count.
    given
        (N,) whether the truth of a task was given.
    """
    many, (*models, _, n_classes) = n_workers >= MIN_WORKERS, log_scores.shape
    unknown = np.flatnonzero(many & ~given)
    sums = np.zeros((*models, N_EXPECTED))
    sums[..., 0] = np.count_nonzero(many & given)
    sums[..., 1] = len(unknown)
    for start in range(0, len(unknown), BLOCK_ITEMS):
        items = unknown[start : start + BLOCK_ITEMS]
        # γ by class by item: NumPy takes few long rows several times faster than many short ones.
        behind = np.ascontiguousarray(log_scores[..., items, :].swapaxes(-1, -2))[..., None, :, :]
        behind -= behind.max(axis=-2, keepdims=True)
        independent = np.exp(-GAMMAS[:, None] * np.log(n_workers[items]))  # n^−γ
        # max_c softmax(s)_c = 1 / Σ_c e^(s_c − max s)
        surest = 1 / np.exp(behind * independent[:, None]).sum(axis=-2)
        sums[..., 2:] += (1 - surest).sum(axis=-1)
    sums[..., 2:] /= max(1 - 1 / n_classes, 1e-12)
    return sums


def doubt_of(sums: Floats, gamma: float, skill: float, n_items: float) -> Doubt:
    """Whether identification is in doubt, by `expected_errors`, γ, J and the number of tasks."""
    if sums[1] < 1:
        return NO_DOUBT
    truths, tasks = sums[:2]
    expected = float(np.interp(gamma, GAMMAS, sums[2:]) / tasks)
    in_doubt = (
        expected > MAX_EXPECTED_ERROR
        and skill < MIN_SKILL
        and truths + tasks >= MIN_SHARE * n_items
        and truths < MIN_TRUTHS
    )
    return Doubt(bool(in_doubt), expected, round(float(tasks)))


def vote_log_odds(crowd_odds: float, n_classes: int) -> float:
    """What a label says for its class if all workers are as good as the crowd."""
    # log a / ((1 − a) / (C − 1))
    return max(float(np.log(crowd_odds * max(n_classes - 1, 1))), MIN_VOTE_LOG_ODDS)
