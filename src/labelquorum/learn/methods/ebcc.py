"""EBCC: enhanced Bayesian classifier combination, where workers may err together.

Y. Li, B. I. P. Rubinstein and T. Cohn, Exploiting Worker Correlation for Label Aggregation in
Crowdsourcing, ICML 2019. A class is a mixture of subtypes, and a worker has a row of label
probabilities for each of them: items that mislead everybody alike find a subtype of their own.
Mean-field variational Bayes from several random starts; the best lower bound wins.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.ingest.chunks import Chunk
from labelquorum.ingest.labels import LabelSpace
from labelquorum.learn.aggregator import Aggregator
from labelquorum.learn.methods._batch import (
    Fit,
    Incidence,
    Leaves,
    check_at_least,
    has_settled,
    incidence_of,
    log_normalise,
    offline,
)
from labelquorum.learn.methods._dirichlet import divergence, expected_log, worker_prior

UNUSED = 1e-6
"""A subtype whose items add up to less than this is left as the prior has it."""


class _Dirichlets(NamedTuple):
    """Dirichlet counts, or the expected logarithms under them."""

    classes: Floats  # (C,) τ ~ Dir(ν)
    subtypes: Floats  # (C, G) π_c ~ Dir(η_c), of G subtypes
    workers: Floats  # (A, P, C) v_ak ~ Dir(μ_ak), of A subtypes of all classes, in a row


def ebcc(
    space: LabelSpace | None = None,
    *,
    subtypes: int = 10,
    restarts: int = 10,
    right: float = 4.0,
    wrong: float = 1.0,
    subtype_strength: float = 0.1,
    class_strength: float | None = None,
    tolerance: float = 1e-7,
    iterations: int = 500,
) -> Aggregator:
    """Build enhanced Bayesian classifier combination.

    Parameters
    ----------
    subtypes
        Subtypes of each class (M in the paper); with one it is iBCC.
    restarts
        Random starts, of which the best lower bound is kept. The paper takes 40.
    right, wrong
        Prior counts of a worker for the label that agrees with the class, and for each other one
        (a_v and b_v in the paper).
    subtype_strength
        Prior count of the subtypes of a class, all together (a_π): below 1 it prefers few.
    class_strength
        Prior count of each class (α); unless given, the votes it got, as in the paper's results.
    tolerance, iterations
        A start ends when the lower bound changes by less, relatively, or after `iterations` rounds.

    Examples
    --------
    >>> from labelquorum.evaluation.checks import seeded_error
    >>> print(f"{seeded_error(ebcc(restarts=2)):.1%}")
    12.5%
    """
    check_at_least("ebcc", subtypes=(subtypes, 1), restarts=(restarts, 1))
    check_at_least("ebcc", right=(right, 1e-3), wrong=(wrong, 1e-3))
    check_at_least("ebcc", subtype_strength=(subtype_strength, 1e-3))
    if class_strength is not None:
        check_at_least("ebcc", class_strength=(class_strength, 1e-3))
    check_at_least("ebcc", tolerance=(tolerance, 0), iterations=(iterations, 1))

    def fit(chunk: Chunk, seed: int) -> Fit:
        rng = np.random.default_rng(seed % 2**63)
        shares, labels = chunk.vote_shares, incidence_of(chunk)
        # A class that got less than one vote counts one, as every class does in the paper's other
        # choice: a count of 0 would rule it out.
        votes = np.maximum(shares.sum(axis=0), 1.0)
        beta = worker_prior(chunk.n_classes, right, wrong)
        prior = _Dirichlets(
            votes if class_strength is None else np.full(chunk.n_classes, class_strength),
            np.full((chunk.n_classes, subtypes), subtype_strength / subtypes),
            np.repeat(beta, subtypes, axis=0)[:, None],  # (C · G, 1, C)
        )
        counts, losses = prior, [np.inf]
        for _ in range(restarts if subtypes > 1 and chunk.n_labels else 1):
            start = _scatter(shares, subtypes, rng)
            found = _climb(start, prior, labels, tolerance, iterations)
            if found[1][-1] < losses[-1]:
                counts, losses = found
        shape = chunk.n_classes, subtypes, labels.n_workers, chunk.n_classes
        return Fit(
            {"counts": counts.workers.reshape(shape).transpose(2, 0, 1, 3).copy()},
            {
                "class_prior": counts.classes / counts.classes.sum(),
                "class_counts": counts.classes,
                "subtype_counts": counts.subtypes,
                "prior": prior.workers.reshape(chunk.n_classes, subtypes, chunk.n_classes),
            },
            losses,
        )

    return offline(
        "ebcc",
        fit=fit,
        newcomer=lambda shared: {"counts": shared["prior"]},
        log_scores=_log_scores,
        confusion=_confusion,
    )._replace(
        exceptions={  # no "cold_start": its prior carries it
            "shared_errors": "200 items at a time are too few to tell shared errors from the truth"
        }
    )


def _scatter(shares: Floats, subtypes: int, rng: np.random.Generator) -> Floats:
    """Spread each item's votes over the subtypes at random, (C · G, N)."""
    n_items, n_classes = shares.shape
    # Classes take their draws in an order that hangs on their votes, not on their names.
    order = np.argsort(rng.random(n_items) @ shares)
    probs = np.empty((n_classes, subtypes, n_items))
    probs[order] = rng.standard_exponential(probs.shape)
    # q_i(c, g) = votes of i for c, times a draw from Dir(1, …, 1)
    probs *= shares.T[:, None] / probs.sum(axis=1, keepdims=True)
    return probs.reshape(n_classes * subtypes, n_items)


def _climb(
    probs: Floats, prior: _Dirichlets, labels: Incidence, tolerance: float, iterations: int
) -> tuple[_Dirichlets, list[float]]:
    """Raise the lower bound from one start, q_i(c, g) as (C · G, N)."""
    used = np.arange(len(probs))  # (A,)
    losses: list[float] = []
    for _ in range(iterations):
        counts = _count(probs, used, prior, labels)
        logs = _Dirichlets(*map(expected_log, counts))
        # q_i(c, g) ∝ exp(E[log τ_c] + E[log π_c[g]] + Σ_k E[log v_kcg[l_ik]])
        by_item, log_evidence = log_normalise(_log_joint(logs, used, labels).T)
        # With this q the lower bound is Σ_i log Z_i − KL(τ) − KL(π) − KL(v).
        before = prior._replace(workers=prior.workers[used])
        losses.append(sum(map(divergence, counts, before, logs)) - float(log_evidence.sum()))
        keep = _in_use(by_item.sum(axis=0), used, prior.subtypes.shape)
        probs, used = by_item.T[keep], used[keep]
        if has_settled(losses, tolerance):
            break
    counts = _count(probs, used, prior, labels)
    workers = np.repeat(prior.workers, labels.n_workers, axis=1)
    workers[used] = counts.workers
    return counts._replace(workers=workers), losses


def _in_use(mass: Floats, used: NDArray[np.intp], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Tell which subtypes still have items, (A,); the largest of each class always stays."""
    # Without items it is as the prior has it, and as such drew none: it need not be summed again.
    of_subtypes = np.full(shape, -1.0)
    of_subtypes.flat[used] = mass
    largest = of_subtypes.max(axis=1)[used // shape[1]]
    return np.asarray((mass > UNUSED) | (mass == largest))


def _count(
    probs: Floats, used: NDArray[np.intp], prior: _Dirichlets, labels: Incidence
) -> _Dirichlets:
    """Add the soft counts to those of the prior."""
    # ν_c = ν0_c + Σ_ig q_i(c, g);  η_c[g] = η0 + Σ_i q_i(c, g)
    # μ_kcg[z] = β[c, z] + Σ_i q_i(c, g) 1[l_ik = z]
    workers = np.empty((len(used), labels.n_workers, labels.n_classes))
    for a, of_items in enumerate(probs):
        workers[a].flat = labels.total(labels.cell, of_items.take(labels.item), workers[a].size)
    items = np.zeros_like(prior.subtypes)
    items.flat[used] = probs.sum(axis=1)
    return _Dirichlets(
        prior.classes + items.sum(axis=1),
        prior.subtypes + items,
        prior.workers[used] + workers,
    )


def _log_joint(logs: _Dirichlets, used: NDArray[np.intp], labels: Incidence) -> Floats:
    """E[log τ_c] + E[log π_c[g]] + Σ_k E[log v_kcg[l_ik]] of the subtypes in use, (A, N)."""
    joint = np.empty((len(used), labels.n_items))
    for a, of_cells in enumerate(logs.workers):
        joint[a] = labels.total(labels.item, of_cells.take(labels.cell), labels.n_items)
    return joint + (logs.classes[:, None] + logs.subtypes).ravel()[used, None]


def _log_scores(rows: Leaves, shared: Leaves, chunk: Chunk) -> Floats:
    """The logarithm of Σ_g q_i(c, g), up to a constant an item, (N, C)."""
    counts, subtypes = rows["counts"], shared["subtype_counts"]
    workers = counts.transpose(1, 2, 0, 3).reshape(subtypes.size, *counts.shape[::3])
    logs = map(expected_log, (shared["class_counts"], subtypes, workers))
    joint = _log_joint(_Dirichlets(*logs), np.arange(subtypes.size), incidence_of(chunk))
    by_class = joint.reshape(*subtypes.shape, chunk.n_items)
    return np.stack([log_normalise(of_class.T)[1] for of_class in by_class], axis=1)


def _confusion(rows: Leaves, shared: Leaves) -> Floats:
    """Mean matrices, the subtypes weighted by how common they are, (P, C, C)."""
    counts, subtypes = rows["counts"], shared["subtype_counts"]
    shares = subtypes / subtypes.sum(axis=1, keepdims=True)
    means = counts / counts.sum(axis=3, keepdims=True)
    return np.asarray(np.einsum("cg,kcgz->kcz", shares, means))
