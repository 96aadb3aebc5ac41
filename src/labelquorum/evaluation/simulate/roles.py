"""Workers who do not play by the rules: crowds with spammers, rings, sleepers and the like.

Each function takes a crowd, gives a role to some of its honest workers, and draws again those of
their labels that the role changes. All other labels stay as they are, to the bit, so roles can be
given one after the other, and a crowd compared with what it was before. Who labels which item does
not change. `Crowd.role` and `Crowd.cast` say who plays what, since which item.
"""

from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from labelquorum._types import Floats, Ints
from labelquorum.errors import StateError
from labelquorum.evaluation.simulate.arrivals import names
from labelquorum.evaluation.simulate.crowds import check_share, draw_labels, generator
from labelquorum.evaluation.simulate.oracle import HONEST, Cast, Crowd

LONGEST = "U16"  # room for the name of a role


def with_spammers(crowd: Crowd, workers: ArrayLike = 0.2, *, seed: int = 0) -> Crowd:
    """Let some workers click at random, every class as often as any other.

    Parameters
    ----------
    workers
        A share of all workers, drawn from the honest ones; rounded, but at least one unless it
        is 0. Or a list of workers, who must be honest so far.

    Examples
    --------
    >>> from labelquorum.evaluation import class_conditional_crowd, oracle_error
    >>> crowd = class_conditional_crowd(2000, 40, 3, labels_per_item=5, seed=1)
    >>> spammed = with_spammers(crowd, 0.2)
    >>> print(f"oracle error {oracle_error(crowd):.1%}, with spammers {oracle_error(spammed):.1%}")
    oracle error 6.1%, with spammers 9.2%
    """
    chosen, rng = _choose(crowd, workers, "with_spammers", seed)
    guess = np.full((chosen.size, *crowd.confusion.shape[1:]), 1 / crowd.class_prior.size)
    return _play(crowd, chosen, "spammer", guess, rng)


def with_bots(
    crowd: Crowd, workers: ArrayLike = 0.1, answer: int | None = None, *, seed: int = 0
) -> Crowd:
    """Let some workers give one and the same answer to everything.

    Parameters
    ----------
    workers
        A share of all workers, or a list of them, as in `with_spammers`.
    answer
        The class they all name; None draws one for each of them.
    """
    n_classes = crowd.class_prior.size
    if answer is not None and not 0 <= answer < n_classes:
        raise StateError(
            f"`answer` of with_bots must be a class from 0 to {n_classes - 1}. Got {answer}."
        )
    chosen, rng = _choose(crowd, workers, "with_bots", seed)
    answers = rng.integers(n_classes, size=chosen.size) if answer is None else answer
    confusion = np.zeros((chosen.size, n_classes, n_classes))
    confusion[np.arange(chosen.size), :, answers] = 1
    return _play(crowd, chosen, "bot", confusion, rng)


def with_adversaries(crowd: Crowd, workers: ArrayLike = 0.1, *, seed: int = 0) -> Crowd:
    """Let some workers lie: they name any class but the one they hold to be true.

    They know as much as before: who was right 90 % of the time is now wrong as often.

    Parameters
    ----------
    workers
        A share of all workers, or a list of them, as in `with_spammers`.
    """
    chosen, rng = _choose(crowd, workers, "with_adversaries", seed)
    return _play(crowd, chosen, "adversary", _lies(crowd.confusion[chosen]), rng)


def with_ring(
    crowd: Crowd, workers: ArrayLike = 0.05, accuracy: float | None = None, *, seed: int = 0
) -> Crowd:
    """Let some workers collude: all members of the ring give the same answer to an item.

    Parameters
    ----------
    workers
        A share of all workers, or a list of them, as in `with_spammers`; at least two.
    accuracy
        How often the ring's answer is right; wrong classes are equally likely. None makes it a
        random click, 0 a common lie.
    """
    n_classes = crowd.class_prior.size
    right = 1 / n_classes if accuracy is None else accuracy
    check_share("accuracy", "with_ring", right)
    chosen, rng = _choose(crowd, workers, "with_ring", seed, least=2)
    wrong = (1 - right) / (n_classes - 1)
    answer = np.where(np.eye(n_classes) > 0, right, wrong)
    return _share(crowd, chosen, "ring", answer, 1.0, rng)


def with_judges(
    crowd: Crowd, workers: ArrayLike = 1.0, correlation: float = 0.4, *, seed: int = 0
) -> Crowd:
    """Let some workers err together, as language models do that learned from the same text.

    The judges have one hidden answer to each item in common, drawn from the mean of their
    matrices. Each gives it with probability √`correlation`, else their own label, so judges who are
    equally good have errors with just this correlation; `error_correlation` tells it for any.
    Skills move towards their mean. Six judges with 0.4 are worth two: `effective_workers`.

    Parameters
    ----------
    workers
        A share of all workers, or a list of them, as in `with_spammers`; at least two.
    correlation
        From 0, independent, to 1, one voice.

    Examples
    --------
    >>> from labelquorum.evaluation.simulate.crowds import one_coin_crowd
    >>> judges = with_judges(one_coin_crowd(1000, 6, 2, labels_per_item=6, skill=(0.8, 0.8)))
    >>> print(f"{effective_workers(judges):.1f} of 6")
    2.0 of 6
    """
    check_share("correlation", "with_judges", correlation)
    chosen, rng = _choose(crowd, workers, "with_judges", seed, least=2)
    answer = crowd.confusion[chosen].mean(axis=0) if chosen.size else crowd.confusion[0]
    return _share(crowd, chosen, "judge", answer, float(np.sqrt(correlation)), rng)


def with_sleepers(
    crowd: Crowd,
    workers: ArrayLike = 0.1,
    at: float = 0.5,
    then: Literal["spammer", "adversary"] = "spammer",
    *,
    seed: int = 0,
) -> Crowd:
    """Let some workers turn bad on the way: until then their labels are what they were.

    Parameters
    ----------
    workers
        A share of all workers, or a list of them, as in `with_spammers`.
    at
        The share of the items after which they turn; `Cast.since` is the first bad one.
    then
        What they turn into: a "spammer" clicks at random, an "adversary" lies.

    Examples
    --------
    >>> from labelquorum.evaluation.simulate.crowds import one_coin_crowd
    >>> crowd = with_sleepers(one_coin_crowd(1000, 20, 2, labels_per_item=5), [7])
    >>> print(crowd.role[7], "since item", crowd.cast.since[7])
    sleeper since item 500
    """
    check_share("at", "with_sleepers", at)
    if then not in ("spammer", "adversary"):
        raise StateError(f"`then` of with_sleepers must be 'spammer' or 'adversary'. Got {then!r}.")
    chosen, rng = _choose(crowd, workers, "with_sleepers", seed)
    before = crowd.confusion[chosen]
    after = _lies(before) if then == "adversary" else np.full_like(before, 1 / before.shape[1])
    turn = _whole(at * crowd.truth.size)
    return _change(crowd, chosen, "sleeper", after, turn, turn, rng)


def with_drifters(
    crowd: Crowd, workers: ArrayLike = 0.5, amount: float = 0.5, *, seed: int = 0
) -> Crowd:
    """Let some workers get slowly worse, from the first item to the last.

    Parameters
    ----------
    workers
        A share of all workers, or a list of them, as in `with_spammers`.
    amount
        The share of random clicks among their labels in the end; on the way it grows evenly.
    """
    check_share("amount", "with_drifters", amount)
    chosen, rng = _choose(crowd, workers, "with_drifters", seed)
    later = (1 - amount) * crowd.confusion[chosen] + amount / crowd.class_prior.size
    return _change(crowd, chosen, "drifter", later, 0, crowd.truth.size - 1, rng)


def error_correlation(crowd: Crowd, workers: ArrayLike | None = None) -> Floats:
    """Give the correlation of the errors of any two workers, given the truth.

    It follows from the matrices, not from the labels. The covariance of two errors is averaged
    over the classes, and so are the variances it is divided by. A worker who cannot err, or
    cannot be right, has no correlation: 0.

    Parameters
    ----------
    workers
        Whom to compare; None compares all K, which takes K × K numbers.

    Returns
    -------
    correlation : (K, K)
    """
    chosen = np.arange(len(crowd.confusion)) if workers is None else np.asarray(workers)
    right = np.diagonal(crowd.confusion[chosen], axis1=1, axis2=2)  # (K, C)
    deviation = np.sqrt((right * (1 - right)) @ crowd.class_prior)
    correlation = np.eye(chosen.size)
    if crowd.cast is None:
        return correlation
    group, share = crowd.cast.group[chosen], crowd.cast.share[chosen]
    hit = np.diagonal(crowd.cast.shared, axis1=1, axis2=2)  # (G, C)
    variance = (hit * (1 - hit)) @ crowd.class_prior
    for index in np.unique(group[group >= 0]):
        members = np.flatnonzero(group == index)
        # cov = share × share × variance of the shared answer's error; own answers are independent
        loading = np.divide(
            share[members], deviation[members], np.zeros(members.size), where=deviation[members] > 0
        )
        correlation[np.ix_(members, members)] = variance[index] * np.outer(loading, loading)
    np.fill_diagonal(correlation, 1.0)
    return correlation


def effective_workers(crowd: Crowd, workers: ArrayLike | None = None) -> float:
    """Tell how many independent workers these are worth: n / (1 + (n - 1) × mean correlation).

    Parameters
    ----------
    workers
        Whom to count; None counts all.
    """
    correlation = error_correlation(crowd, workers)
    # The same as n² over the sum of all entries: the variance of a mean (Kish's design effect).
    return float(len(correlation) ** 2 / correlation.sum()) if correlation.size else 0.0


def worker_table(crowd: Crowd, *, text_ids: bool = True) -> pd.DataFrame:
    """Give one row per worker: role and skill, by the ids of `label_table`.

    The columns are `role`; `since`, the first item at which it is played, None for never; `group`,
    the number of the ring or panel of judges, or -1; `labels`, how many they gave; `skill`, how
    often they are right at the start, and `skill_later`, at the end.
    """
    n_workers, n_items = len(crowd.confusion), crowd.truth.size
    cast = _cast(crowd)
    item_ids = names("t", n_items) if text_ids else range(n_items)
    since = [item_ids[item] if item < n_items else None for item in cast.since.tolist()]
    skill, later = (
        np.diagonal(matrices, axis1=1, axis2=2) @ crowd.class_prior
        for matrices in (crowd.confusion, cast.later)
    )
    ids = names("w", n_workers) if text_ids else range(n_workers)
    columns = {
        "role": cast.role,
        "since": pd.Series(since, ids, dtype=object),
        "group": cast.group,
        "labels": np.bincount(crowd.worker, minlength=n_workers),
        "skill": skill,
        "skill_later": later,
    }
    return pd.DataFrame(columns, index=pd.Index(ids, name="worker"))


def _choose(
    crowd: Crowd, workers: ArrayLike, where: str, seed: int, least: int = 1
) -> tuple[Ints, np.random.Generator]:
    """Draw the workers who get a role, sorted, and give the random numbers for their labels."""
    honest = np.flatnonzero(crowd.role == HONEST)
    n_workers = len(crowd.confusion)
    rng = generator(seed, where, n_workers - honest.size)
    given = np.asarray(workers)
    if given.ndim == 0 and np.issubdtype(given.dtype, np.number):
        check_share("workers", where, share := float(given))
        wanted = max(least, _whole(share * n_workers)) if share else 0
        if wanted > honest.size:
            raise StateError(
                f"{where} is to change {wanted} of {n_workers} workers, and {honest.size} are "
                "still honest. Give it a smaller share."
            )
        return np.sort(rng.choice(honest, wanted, replace=False)), rng
    chosen = np.unique(given)
    whole = given.ndim == 1 and (not given.size or np.issubdtype(given.dtype, np.integer))
    if not whole or chosen.size < given.size or not np.isin(chosen, range(n_workers)).all():
        raise StateError(
            f"`workers` of {where} must be a share of them from 0 to 1, or a list of different "
            f"workers, by number from 0 to {n_workers - 1}. Got {workers!r:.60}."
        )
    if (taken := np.setdiff1d(chosen, honest)).size:
        raise StateError(
            f"`workers` of {where} must still be honest. Worker {taken[0]} has the role "
            f"{str(crowd.role[taken[0]])!r} already; choose another."
        )
    if 0 < chosen.size < least:
        raise StateError(f"`workers` of {where} must be at least {least}. Got {workers!r:.60}.")
    return chosen.astype(np.int64), rng


def _play(
    crowd: Crowd, chosen: Ints, role: str, confusion: Floats, rng: np.random.Generator
) -> Crowd:
    """Let workers follow other matrices (J, C, C) from the first item on."""
    if not chosen.size:
        return crowd
    changed = _assign(crowd, chosen, role, confusion, later=confusion)
    rows, place = _rows_of(crowd, chosen)
    drawn = draw_labels(rng, confusion, place, crowd.truth[crowd.item[rows]])
    return _relabel(changed, rows, drawn)


def _change(
    crowd: Crowd,
    chosen: Ints,
    role: str,
    later: Floats,
    since: int,
    until: int,
    rng: np.random.Generator,
) -> Crowd:
    """Let workers go over to other matrices (J, C, C) between two items."""
    if not chosen.size:
        return crowd
    changed = _assign(
        crowd, chosen, role, crowd.confusion[chosen], later=later, since=since, until=until
    )
    rows, place = _rows_of(crowd, chosen)
    item = crowd.item[rows]
    # A mixture of two matrices: the label at hand comes from one, the one that is drawn from the
    # other. Which of the two it is, is drawn as well.
    drawn = draw_labels(rng, later, place, crowd.truth[item])
    moved = rng.random(rows.size) < _cast(changed).progress(crowd.worker[rows], item)
    return _relabel(changed, rows[moved], drawn[moved])


def _share(
    crowd: Crowd, chosen: Ints, role: str, answer: Floats, share: float, rng: np.random.Generator
) -> Crowd:
    """Let workers give, so often, one answer they share; it has the matrix (C, C)."""
    if not chosen.size:
        return crowd
    confusion = share * answer + (1 - share) * crowd.confusion[chosen]
    group = len(_cast(crowd).shared)
    changed = _assign(crowd, chosen, role, confusion, later=confusion, group=group, share=share)
    cast = _cast(changed)
    changed = changed._replace(cast=cast._replace(shared=np.append(cast.shared, [answer], axis=0)))
    answers = draw_labels(rng, answer[None], np.zeros_like(crowd.truth), crowd.truth)  # (N,)
    rows, _ = _rows_of(crowd, chosen)
    rows = rows[rng.random(rows.size) < share]
    return _relabel(changed, rows, answers[crowd.item[rows]])


def _assign(
    crowd: Crowd, chosen: Ints, role: str, confusion: Floats, later: Floats, **own: float
) -> Crowd:
    """Write down what workers are from now on; their labels are still the old ones."""
    columns = {name: column.copy() for name, column in _cast(crowd)._asdict().items()}
    for name, value in {"role": role, "later": later, **own}.items():
        columns[name][chosen] = value
    matrices = crowd.confusion.copy()
    matrices[chosen] = confusion
    return crowd._replace(confusion=matrices, cast=Cast(**columns))


def _cast(crowd: Crowd) -> Cast:
    """The cast of a crowd; where nobody plays anything, one that says so."""
    if crowd.cast is not None:
        return crowd.cast
    n_workers, n_classes = crowd.confusion.shape[:2]
    return Cast(
        role=np.full(n_workers, HONEST, dtype=LONGEST),
        since=np.zeros(n_workers, np.int64),
        until=np.zeros(n_workers, np.int64),
        later=crowd.confusion,
        group=np.full(n_workers, -1, np.int64),
        share=np.zeros(n_workers),
        shared=np.empty((0, n_classes, n_classes)),
    )


def _relabel(crowd: Crowd, rows: Ints, labels: Ints) -> Crowd:
    label = crowd.label.copy()
    label[rows] = labels
    return crowd._replace(label=label)


def _rows_of(crowd: Crowd, chosen: Ints) -> tuple[Ints, Ints]:
    """The rows of these workers, and whose each is, as a position in `chosen`."""
    place = np.full(len(crowd.confusion), -1, np.int64)
    place[chosen] = np.arange(chosen.size)
    place = place[crowd.worker]
    rows = np.flatnonzero(place >= 0)
    return rows, place[rows]


def _lies(confusion: Floats) -> Floats:
    """The matrices of workers who name any class but the one they would have named."""
    return np.asarray((1 - confusion) / (confusion.shape[2] - 1))


def _whole(number: float) -> int:
    """Round to the nearest whole number, a half upwards."""
    return int(np.floor(number + 0.5))
