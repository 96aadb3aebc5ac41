"""BCC: Bayesian classifier combination by Gibbs sampling.

H.-C. Kim and Z. Ghahramani, Bayesian Classifier Combination, AISTATS 2012: their independent
model, where each worker has their own confusion matrix. Truths are drawn given the matrices,
matrices given the truths. The Dirichlet counts are fixed here, where the paper puts an exponential
law on them.
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
    incidence_of,
    log_likelihood,
    log_normalise,
    offline,
)
from labelquorum.learn.methods._dirichlet import worker_prior


class _Draw(NamedTuple):
    log_classes: Floats  # (C,) log κ
    log_workers: Floats  # (P, C, C) log π


def bcc(
    space: LabelSpace | None = None,
    *,
    right: float = 4.0,
    wrong: float = 1.0,
    class_strength: float = 1.0,
    burn_in: int = 100,
    samples: int = 50,
    thinning: int = 10,
) -> Aggregator:
    """Build Bayesian classifier combination.

    Parameters
    ----------
    right, wrong
        Prior counts on and off the diagonal of a worker's matrix; those of iBCC.
    class_strength
        Prior count of each class.
    burn_in
        Rounds of the sampler before the first draw is kept.
    samples
        Draws kept of every matrix; an answer is the mean over them.
    thinning
        Rounds from one draw kept to the next.

    Examples
    --------
    >>> from labelquorum.evaluation.checks import seeded_error
    >>> print(f"{seeded_error(bcc()):.1%}")
    12.7%
    """
    check_at_least("bcc", right=(right, 1e-3), wrong=(wrong, 1e-3))
    check_at_least("bcc", class_strength=(class_strength, 1e-3))
    check_at_least("bcc", burn_in=(burn_in, 0), samples=(samples, 1), thinning=(thinning, 1))

    def fit(chunk: Chunk, seed: int) -> Fit:
        rng = np.random.default_rng(seed % 2**63)
        shares, prior = chunk.vote_shares, worker_prior(chunk.n_classes, right, wrong)
        # In here the classes stand in an order that hangs on their votes, not on their names.
        order = np.argsort(rng.random(chunk.n_items) @ shares)
        place = np.argsort(order).astype(np.int32)
        labels = incidence_of(chunk._replace(label=place[chunk.label]))
        class_counts, counts = _count(_choose(shares[:, order], rng), labels)
        losses: list[float] = []
        kept: list[_Draw] = []
        for step in range(burn_in + samples * thinning):
            # κ ~ Dir(ν0 + Σ_i 1[t_i = c]);  π_k[c] ~ Dir(α0[c] + Σ_i 1[t_i = c, l_ik = z])
            draw = _Draw(
                _log_dirichlet(class_strength + class_counts, rng),
                _log_dirichlet(prior + counts, rng),
            )
            # P(t_i = c) ∝ κ_c Π_k π_k[c, l_ik]
            probs, log_evidence = log_normalise(_log_joint(draw, labels))
            losses.append(-float(log_evidence.sum()))
            class_counts, counts = _count(_choose(probs, rng), labels)
            if step >= burn_in and (step - burn_in + 1) % thinning == 0:
                kept.append(draw)
        log_classes = np.array([draw.log_classes for draw in kept])[:, place]
        log_workers = np.stack([draw.log_workers for draw in kept], axis=1).astype(np.float32)
        return Fit(
            {"log_draws": log_workers[:, :, place][..., place]},  # (P, S, C, C)
            {
                "class_prior": np.exp(log_classes).mean(axis=0),
                "log_classes": log_classes,  # (S, C)
                "prior": prior,
            },
            losses,
        )

    return offline(
        "bcc",
        fit=fit,
        newcomer=lambda shared: {"log_draws": _newcomer(shared)},
        log_scores=_log_scores,
        confusion=lambda rows, shared: np.exp(rows["log_draws"].astype(np.float64)).mean(axis=1),
    )._replace(
        exceptions={  # no "cold_start": its prior carries it
            "shared_errors": "200 items at a time are too few to tell shared errors from the truth"
        }
    )


def _log_dirichlet(counts: Floats, rng: np.random.Generator) -> Floats:
    """Draw log p, p ~ Dirichlet(counts), along the last axis."""
    draws = np.maximum(rng.standard_gamma(counts), 1e-300)
    return np.asarray(np.log(draws / draws.sum(axis=-1, keepdims=True)))


def _choose(probs: Floats, rng: np.random.Generator) -> NDArray[np.intp]:
    """Draw a class for each row of probs (N, C)."""
    below = np.cumsum(probs, axis=1)
    point = rng.random((len(probs), 1)) * below[:, -1:]
    return np.asarray((below[:, :-1] <= point).sum(axis=1))


def _count(truths: NDArray[np.intp], labels: Incidence) -> tuple[Floats, Floats]:
    """Items of each class, (C,), and each worker's labels z on items of class c, (P, C, C)."""
    shape = labels.n_workers, labels.n_classes, labels.n_classes
    cell = (labels.worker * shape[1] + truths.take(labels.item)) * shape[2] + labels.label
    items = np.bincount(truths, minlength=labels.n_classes).astype(np.float64)
    return items, labels.total(cell, None, shape[0] * shape[1] * shape[2]).reshape(shape)


def _log_joint(draw: _Draw, labels: Incidence) -> Floats:
    """The logarithm of κ_c Π_k π_k[c, l_ik], (N, C)."""
    return draw.log_classes + log_likelihood(draw.log_workers, labels)


def _newcomer(shared: Leaves) -> NDArray[np.float32]:
    """A worker of whom nothing is known is what the prior expects, in every draw, (S, C, C)."""
    mean = shared["prior"] / shared["prior"].sum(axis=1, keepdims=True)
    return np.repeat(np.log(mean)[None].astype(np.float32), len(shared["log_classes"]), axis=0)


def _log_scores(rows: Leaves, shared: Leaves, chunk: Chunk) -> Floats:
    """The logarithm of P(t_i = c | κ, π, labels of i), a mean over the draws kept, (N, C)."""
    labels = incidence_of(chunk)
    probs = np.zeros((chunk.n_items, chunk.n_classes))
    for s, log_classes in enumerate(shared["log_classes"]):
        draw = _Draw(log_classes, rows["log_draws"][:, s].astype(np.float64))
        probs += log_normalise(_log_joint(draw, labels))[0]
    return np.log(np.maximum(probs / len(shared["log_classes"]), 1e-300))
