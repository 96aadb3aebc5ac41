"""Identification: whether labels tell which answer is right, or only that workers agree.

Where judges share what misleads them, a worker model finds what they have in common and takes it
for the truth; it may as well be the opposite. No statistic of labels tells the two apart, but two
tell when the question arises. n independent workers of any skill make an answer sure as n grows.
If ten or more labelled a task and the model, by its own dependence, still expects errors nearly
half as often as a guess, then further workers of this kind would not help: what separates the
classes is no larger than what workers have in common within a class. And the less two workers
agree, the nearer they are to chance, so the harder a swap would be to notice.

    Ē(γ) = mean_i (1 − max_c q_i(c)^(1/n_i^γ) / Z) / (1 − 1/C),  over tasks with n_i ≥ 10
    S² = mean_i ((n_i Σ_c v_i(c)² − 1) / (n_i − 1) − 1/C) / (1 − 1/C),  v_i the shares of votes
    in doubt:  Ē > 0.44 + 0.45 (S − 0.55) + 5.5 / n

If all workers had the skill S, with 0 for chance and 1 for always right, two would agree as often
as these do. γ is the dependence of today (`dependence.exponent`), so the sum is kept at five values
of γ and interpolated. Both are means over the latest answers: those before count for half after 50
more, because a stream whose tasks begin to mislead should be doubted then, and not once half of it
misleads. Then the answer falls back to the vote, as if all labels of a task were one label of an
average worker. Ten true labels lift the doubt: they, and no longer the labels alone, tell which
answer is right.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.learn.bila.minibatch import Leaf, array_namespace
from labelquorum.learn.reports import NO_DOUBT, Doubt

MIN_WORKERS = 10
"""Workers of a task from which on an unsure answer is doubted: with fewer, any crowd is unsure."""

MIN_SHARE = 0.5
"""The share of tasks that must have ten workers or more: the others say nothing of this."""

MAX_EXPECTED_ERROR, MID_SKILL, PER_SKILL, NOISE = 0.44, 0.55, 0.45, 5.5
"""The expected error, 1 for a guess, above which identification is in doubt where S is 0.55; by how
much it rises with S; and by how much / tasks it is raised where tasks are few and γ uncertain.
Chosen on simulated juries (`docs/doubt.md` says what else was in view)."""

MIN_TRUTHS = 10
"""Given true labels of such tasks from which on nothing is in doubt by labels alone."""

HALF_LIFE = 50
"""Answers after which an answer counts for half: a chunk of the default size."""

MAX_PAST = 100.0
"""What all earlier answers count for at most when more come: as much as they do in a stream of
chunks of 50, so that a stream that began with one large chunk is doubted as soon."""

GAMMAS = np.array([0.0, 0.25, 0.5, 0.75, 1.0])
N_COUNTS = 3
NO_ANSWERS: Floats = np.zeros(N_COUNTS + 2 + len(GAMMAS))
"""What is kept of tasks with ten workers or more. Counts: how many have a given truth, how many
have not, and how often one of the latter was answered. Sums over the latest of these answers: 1,
S², and Ē at each γ."""

BLOCK_CELLS = 1 << 15
"""Log scores taken at once, to bound memory; each is needed at every γ."""

MIN_VOTE_LOG_ODDS = 0.05
"""What a label says for its class when all count alike, if the crowd seems no better than chance:
the vote is then followed, with next to no confidence."""


def expected_errors(log_scores: Floats, n_workers: Floats) -> Floats:
    """The sum over tasks of Ē at each γ, (…, 5).

    Parameters
    ----------
    log_scores
        (…, N, C), of several models at once.
    n_workers
        (N,); a task with 0 does not count.
    """
    counted, (*models, _, n_classes) = np.flatnonzero(n_workers), log_scores.shape
    sums, block = np.zeros((*models, len(GAMMAS))), max(BLOCK_CELLS // max(n_classes, 1), 1)
    for start in range(0, len(counted), block):
        items = counted[start : start + block]
        # NumPy takes few long rows several times faster than many short ones.
        by_class = np.ascontiguousarray(log_scores[..., items, :].swapaxes(-1, -2))
        sums += expected_error_of(by_class, n_workers[items]).sum(axis=-1)
    return sums


def expected_error_of(by_class: Leaf, n_workers: Leaf) -> Leaf:
    """Ē of each task at each γ, (…, 5, N), by log scores (…, C, N)."""
    xp, n_classes = array_namespace(by_class), by_class.shape[-2]
    behind = (by_class - by_class.max(axis=-2, keepdims=True))[..., None, :, :]
    independent = xp.exp(-GAMMAS[:, None] * xp.log(n_workers))  # n^−γ
    # max_c softmax(s)_c = 1 / Σ_c e^(s_c − max s)
    surest = 1 / xp.exp(behind * independent[:, None]).sum(axis=-2)
    return (1 - surest) / max(1 - 1 / n_classes, 1e-12)


def answer_sums(
    errors: Floats, votes: Floats, n_workers: Floats, given: NDArray[np.bool_]
) -> Floats:
    """What answers add to the sums behind `doubt_of`, (A, 10).

    Parameters
    ----------
    errors
        `expected_errors` of the tasks whose truth is not given, of A models, (A, 5).
    votes
        v, the shares of votes, (N, C).
    n_workers
        (N,); a task with 0 does not count.
    given
        (N,) whether the truth of a task was given.
    """
    many, n_classes = n_workers >= MIN_WORKERS, votes.shape[1]
    unknown = np.flatnonzero(many & ~given)
    n, squares = n_workers[unknown], np.einsum("ic,ic->i", votes, votes)[unknown]
    agreement = ((n * squares - 1) / (n - 1) - 1 / n_classes).sum() / max(1 - 1 / n_classes, 1e-12)
    sums = np.empty((len(errors), len(NO_ANSWERS)))
    sums[:, : N_COUNTS + 2] = np.count_nonzero(many & given), *[len(n)] * N_COUNTS, agreement
    sums[:, N_COUNTS + 2 :] = errors
    return sums


def with_answers(sums: Floats, more: Floats, before: tuple[int, int] = (0, 0)) -> Floats:
    """The sums with more answers; `before` counts what of their tasks was counted before."""
    following: Floats = _past(sums, more[2]) + more
    following[:N_COUNTS] = sums[:N_COUNTS] + more[:N_COUNTS]
    following[:2] = np.maximum(following[:2] - before, 0)
    return following


def merged_answers(parts: Sequence[Floats], base: Floats) -> Floats:
    """The sums of parts that all went on from a base."""
    # base + Σ_i (part_i − base), where answers of the base count for less by all that came after
    new = np.sum([part - _past(base, part[2] - base[2]) for part in parts], axis=0)
    counts = base + np.sum([part - base for part in parts], axis=0)
    total: Floats = _past(base, counts[2] - base[2]) + new
    total[:N_COUNTS] = counts[:N_COUNTS]
    return np.maximum(total, 0.0)


def doubt_of(sums: Floats, gamma: float, n_items: float) -> Doubt:
    """Whether identification is in doubt, by `expected_errors`, γ and the number of tasks."""
    truths, tasks, _, answers, agreement = sums[: N_COUNTS + 2]
    if tasks < 1 or answers <= 0:
        return NO_DOUBT
    expected = float(np.interp(gamma, GAMMAS, sums[N_COUNTS + 2 :]) / answers)
    skill = np.sqrt(max(agreement / answers, 0.0))
    limit = MAX_EXPECTED_ERROR + PER_SKILL * (skill - MID_SKILL) + NOISE / min(answers, tasks)
    in_doubt = expected > limit and truths + tasks >= MIN_SHARE * n_items and truths < MIN_TRUTHS
    return Doubt(bool(in_doubt), expected, round(float(tasks)))


def _past(sums: Floats, n_answers: float) -> Floats:
    """What earlier answers count for once `n_answers` more have come."""
    if not n_answers:
        return sums
    share = min(1.0, MAX_PAST / max(sums[N_COUNTS], 1e-12))
    return np.asarray(sums * share * 0.5 ** (n_answers / HALF_LIFE))


def vote_log_odds(crowd_odds: float, n_classes: int) -> float:
    """What a label says for its class if all workers are as good as the crowd."""
    # log a / ((1 − a) / (C − 1))
    return max(float(np.log(crowd_odds * max(n_classes - 1, 1))), MIN_VOTE_LOG_ODDS)
