"""All that is known of a simulated crowd, and the best that could be made of its labels.

`oracle` is Bayes' rule with everything known but the truth: no aggregator that sees only the
labels can expect to err less.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats, Ints

HONEST = "honest"


class Cast(NamedTuple):
    """Who plays what in a crowd, since when, and who gives the same answers as who.

    A worker's matrix is `confusion` before item `since`, `later` from item `until` on, and a
    mixture of the two in between, which moves in a straight line. The members of a group share
    one answer to each item; each of their labels is that answer with probability `share`.
    """

    role: NDArray[np.str_]  # (K,) such as "honest", "spammer", "sleeper"
    since: Ints  # (K,) the first item at which it is played
    until: Ints  # (K,) the first item at which the matrix is `later`
    later: Floats  # (K, C, C), equal to `confusion` for those who do not change
    group: Ints  # (K,) the worker's group, or -1
    share: Floats  # (K,) 0 for those without a group
    shared: Floats  # (G, C, C), [g, c, z] = P(group g's answer is z | truth c)

    def progress(self, worker: Ints, item: Ints) -> Floats:
        """How far workers are on the way from `confusion` to `later` at items: (L,), 0 to 1."""
        since, until = self.since[worker], self.until[worker]
        way = np.where(until > since, (item - since) / np.maximum(until - since, 1), item >= since)
        return np.clip(way, 0.0, 1.0)


class Crowd(NamedTuple):
    """Labels of a simulated crowd, and everything that made them.

    The first three are flat and parallel, one entry a label, all labels of an item together,
    items in order 0 … N-1 and each with at least one label. `confusion` is how the workers start;
    where some change on the way, `cast` says how, and `confusion_at` gives all matrices at an item.
    """

    item: Ints  # (L,)
    worker: Ints  # (L,)
    label: Ints  # (L,)
    truth: Ints  # (N,)
    confusion: Floats  # (K, C, C), [k, c, z] = P(worker k says z | truth c)
    class_prior: Floats  # (C,)
    cast: Cast | None = None  # None: all are honest, nobody changes, labels are independent

    @property
    def role(self) -> NDArray[np.str_]:
        """What each worker is: (K,), such as "honest" or "spammer"."""
        return np.full(len(self.confusion), HONEST) if self.cast is None else self.cast.role


def confusion_at(crowd: Crowd, item: int) -> Floats:
    """Give every worker's matrix as it is at an item: sleepers and drifters change.

    Returns
    -------
    confusion : (K, C, C)
    """
    if crowd.cast is None:
        return crowd.confusion
    workers = np.arange(len(crowd.confusion))
    progress = crowd.cast.progress(workers, np.full_like(workers, item))[:, None, None]
    return np.asarray((1 - progress) * crowd.confusion + progress * crowd.cast.later)


def oracle_probs(crowd: Crowd) -> Floats:
    """Give P(truth | labels) by Bayes' rule with everything known but the truth.

    The oracle knows the class prior, every worker's matrix at every item, and who shares
    answers with whom: a ring is one voice to it, and judges who err together are worth as many
    as they are. So this is the limit for every crowd that can be made here.

    Returns
    -------
    probs : (N, C)
    """
    n_items, n_classes = crowd.truth.size, crowd.class_prior.size
    cast = crowd.cast
    rows: Ints | slice = slice(None)
    if cast is not None:
        changes = (cast.later != crowd.confusion).any(axis=(1, 2))  # (K,)
        rows = np.flatnonzero((~changes & (cast.group < 0))[crowd.worker])
    item, worker, label = crowd.item[rows], crowd.worker[rows], crowd.label[rows]
    with np.errstate(divide="ignore"):  # what cannot happen has log-probability -inf
        log_confusion = np.log(crowd.confusion)
        log_prior = np.log(crowd.class_prior)
    log_joint = np.empty((n_items, n_classes))
    for c in range(n_classes):  # class by class: no (L, C) array at ten million labels
        evidence = log_confusion[worker, c, label]
        # log p(y = c, l) = log p(y = c) + sum over labels of log confusion[k, c, l]
        log_joint[:, c] = log_prior[c] + np.bincount(item, evidence, minlength=n_items)
    if cast is not None:
        log_joint += _changing_evidence(crowd, cast, changes)
        for group in range(len(cast.shared)):
            log_joint += _shared_evidence(crowd, cast, group)
    log_joint -= log_joint.max(axis=1, keepdims=True)
    probs = np.exp(log_joint)
    return np.asarray(probs / probs.sum(axis=1, keepdims=True))


def oracle(crowd: Crowd) -> Ints:
    """Give the most probable class of every item under `oracle_probs`, ties to the lowest.

    Returns
    -------
    aggregated : (N,)
    """
    return np.asarray(np.argmax(oracle_probs(crowd), axis=1))


def oracle_error(crowd: Crowd) -> float:
    """Give the share of items on which the oracle errs: the limit to quote beside a method."""
    return float(np.mean(oracle(crowd) != crowd.truth))


def _changing_evidence(crowd: Crowd, cast: Cast, changes: NDArray[np.bool_]) -> Floats:
    """Log-likelihood (N, C) of the labels of those whose matrix changes on the way."""
    rows = np.flatnonzero(changes[crowd.worker])
    item, worker, label = crowd.item[rows], crowd.worker[rows], crowd.label[rows]
    progress = cast.progress(worker, item)
    evidence = np.empty((crowd.truth.size, crowd.class_prior.size))
    for c in range(crowd.class_prior.size):
        before, after = crowd.confusion[worker, c, label], cast.later[worker, c, label]
        with np.errstate(divide="ignore"):
            log_label = np.log((1 - progress) * before + progress * after)
        evidence[:, c] = np.bincount(item, log_label, minlength=crowd.truth.size)
    return evidence


def _shared_evidence(crowd: Crowd, cast: Cast, group: int) -> Floats:
    """Log-likelihood (N, C) of the labels of a group, whatever its hidden answers were."""
    rows = np.flatnonzero((cast.group == group)[crowd.worker])
    worker, label = crowd.worker[rows], crowd.label[rows]
    item, place = np.unique(crowd.item[rows], return_inverse=True)
    share, shared = cast.share[worker], cast.shared[group]
    evidence = np.zeros((crowd.truth.size, crowd.class_prior.size))
    for c in range(crowd.class_prior.size):
        # (1 - share) × own, since a worker's matrix is share × shared + (1 - share) × own
        own = np.maximum(crowd.confusion[worker, c, label] - share * shared[c, label], 0)
        total = np.full(item.size, -np.inf)
        for s in range(crowd.class_prior.size):
            # log p(l | y = c) = log sum over s of shared[c, s] × prod of (share [l = s] + own)
            with np.errstate(divide="ignore"):
                log_label, log_shared = np.log(own + share * (label == s)), np.log(shared[c, s])
            total = np.logaddexp(total, log_shared + np.bincount(place, log_label, item.size))
        evidence[item, c] = total
    return evidence
