"""MMCE: minimax conditional entropy, with a matrix for each worker and one for each item.

D. Zhou, Q. Liu, J. C. Platt and C. Meek, Aggregating Ordinal Labels from Crowds by Minimax
Conditional Entropy, ICML 2014; with N. B. Shah, Regularized Minimax Conditional Entropy for
Crowdsourcing, arXiv:1503.07240. This is their multiclass method, the "MMCE" of the BiLA paper.

Labels shall be as random as the counts of each worker and of each item allow, and the truth is
what leaves them least random. With Lagrange multipliers σ_k and τ_i for the counts,

    p(k says z of i | truth c) = exp(σ_k[c, z] + τ_i[c, z]) / Σ_z' exp(σ_k[c, z'] + τ_i[c, z'])

and the regularised dual, minimised over (σ, τ) and over q in turn, is

    F = −Σ_i Σ_c q_i(c) Σ_k log p(l_ik | c) − Σ_i H(q_i) + α/2 ‖σ‖² + β/2 ‖τ‖²

Numbers the papers leave open are those of the code that Q. Liu released with the first of them.
"""

import numpy as np

from labelquorum._types import Floats
from labelquorum.ingest.chunks import Chunk
from labelquorum.ingest.labels import LabelSpace
from labelquorum.learn.aggregator import Aggregator, vote_shares
from labelquorum.learn.methods._batch import (
    Fit,
    Incidence,
    Leaves,
    check_at_least,
    incidence_of,
    log_normalise,
    offline,
)
from labelquorum.learn.methods.minimax_entropy import (
    Logits,
    confusion,
    descend,
    label_log_probs,
    mean_logits,
    take_items,
)

__all__ = ["mmce"]


def mmce(
    space: LabelSpace | None = None,
    *,
    worker_penalty: float | None = None,
    item_penalty: float | None = None,
    strength: float = 0.25,
    tolerance: float = 5e-3,
    iterations: int = 50,
    steps: int = 25,
    step_tolerance: float = 1e-3,
) -> Aggregator:
    """Build MMCE.

    Parameters
    ----------
    worker_penalty, item_penalty
        α and β. Unless given, α = `strength` · C² and β = α times the mean number of labels a
        worker gave over the mean number of labels an item got.
    strength
        γ of this rule. The released code demonstrates ¼, and can choose among ¼, ½, 1, 2 and 4 by
        the likelihood of labels held out.
    tolerance, iterations
        It ends when no class probability moves by more, or after so many rounds.
    steps, step_tolerance
        A round takes so many steps in σ and τ, or until no entry moves by more.

    Examples
    --------
    >>> from labelquorum.evaluation.checks import seeded_error
    >>> print(f"{seeded_error(mmce()):.1%}")
    13.3%
    """
    for name, penalty in (("worker_penalty", worker_penalty), ("item_penalty", item_penalty)):
        if penalty is not None:
            check_at_least("mmce", **{name: (penalty, 1e-9)})
    check_at_least("mmce", strength=(strength, 1e-9), tolerance=(tolerance, 0))
    check_at_least("mmce", iterations=(iterations, 1), steps=(steps, 1))
    check_at_least("mmce", step_tolerance=(step_tolerance, 0))

    def fit(chunk: Chunk, seed: int) -> Fit:
        labels = incidence_of(chunk)
        N, P, C = labels.n_items, labels.n_workers, labels.n_classes
        # α = γ C²;  β = α · (labels a worker) / (labels an item), and that is α N / P
        alpha = worker_penalty or strength * C**2
        beta = item_penalty or alpha * (N / P if P else 1)
        logits = [Logits(np.zeros((C, P)), np.zeros((C, N))) for _ in range(C)]
        probs = vote_shares(chunk)
        losses: list[float] = []
        for _ in range(iterations if chunk.n_labels else 0):
            # Given q, the dual falls apart into a convex problem for each truth c.
            logits = [
                _descend(logits[c], probs[:, c], labels, alpha, beta, steps, step_tolerance)
                for c in range(C)
            ]
            # q_i(c) ∝ Π_k p(l_ik | c), after which F = penalties − Σ_i log Σ_c Π_k p(l_ik | c)
            before, (probs, log_evidence) = probs, log_normalise(_log_likelihood(logits, labels))
            penalty = sum(
                alpha * np.square(each.worker).sum() + beta * np.square(each.item).sum()
                for each in logits
            )
            losses.append(float(penalty / 2 - log_evidence.sum()))
            if np.abs(probs - before).max() <= tolerance:
                break
        workers = np.array([each.worker for each in logits]).reshape(C, C, P)
        return Fit(
            {"worker_logits": workers.transpose(2, 0, 1)},
            {
                "class_prior": np.full(C, 1 / max(C, 1)),  # the method has no other
                "crowd": mean_logits(workers, labels),
                "item_penalty": np.array(beta),
            },
            losses,
        )

    def log_scores(rows: Leaves, shared: Leaves, chunk: Chunk) -> Floats:
        """Find the items' τ and q as in a fit, but with the workers' σ held, (N, C).

        Every item is done when it has settled itself, so nothing depends on its company.
        """
        beta = float(shared["item_penalty"])
        labels, probs = incidence_of(chunk), vote_shares(chunk)
        N, C = labels.n_items, labels.n_classes
        workers = np.ascontiguousarray(rows["worker_logits"].transpose(1, 2, 0))
        logits = [Logits(workers[c], np.zeros((C, N))) for c in range(C)]
        scores, open_items = np.zeros((N, C)), np.arange(N)
        for _ in range(iterations):
            logits = [_descend_items(logits[c], probs[:, c], labels, beta, steps) for c in range(C)]
            found = _log_likelihood(logits, labels)
            scores[open_items] = found
            before, (probs, _) = probs, log_normalise(found)
            moving = np.abs(probs - before).max(axis=1, initial=0) > tolerance
            if not moving.any():
                break
            open_items, probs = open_items[moving], probs[moving]
            labels = take_items(labels, moving)
            logits = [each._replace(item=each.item[:, moving]) for each in logits]
        return scores

    return offline(
        "mmce",
        fit=fit,
        newcomer=lambda shared: {"worker_logits": shared["crowd"]},
        log_scores=log_scores,
        confusion=confusion,
        exceptions={
            "no_worse_than_majority": "α = γ C² outweighs what 320 items say of ten classes",
            "shared_errors": "α = γ C² outweighs what 200 items say of ten classes",
        },
    )


def _descend(
    start: Logits,
    probs: Floats,
    labels: Incidence,
    alpha: float,
    beta: float,
    steps: int,
    tolerance: float,
) -> Logits:
    """Minimise F over the σ and τ of one truth c, given q(c), (N,).

    A label depends on two rows, which counts the curvature of its softmax, ½, twice:
    ∇² ≼ Σ_i q_i(c) + α for the row of a worker, likewise with β for that of an item.
    """
    share = np.take(probs, labels.item)
    bound = Logits(
        labels.total(labels.worker, share, labels.n_workers) + alpha,
        labels.total(labels.item, share, labels.n_items) + beta,
    )
    observed = _observed(share, labels)

    def gradient(at: Logits) -> Logits:
        expected = _expected(at, share, labels)
        # ∂F/∂σ_k[c, z] = Σ_i q_i(c) (p(z | c) − 1[l_ik = z]) + α σ_k[c, z]; τ likewise
        return Logits(
            expected.worker - observed.worker + alpha * at.worker,
            expected.item - observed.item + beta * at.item,
        )

    return descend(start, gradient, bound, steps, tolerance)


def _descend_items(
    logits: Logits, probs: Floats, labels: Incidence, beta: float, steps: int
) -> Logits:
    """Minimise F over the τ of one truth c alone, given q(c), (N,); every item for itself."""
    share = np.take(probs, labels.item)
    # ∇² ≼ ½ Σ_k q_i(c) + β
    bound = labels.total(labels.item, share, labels.n_items) / 2 + beta
    observed = _observed(share, labels).item
    for _ in range(steps):
        grad = _expected(logits, share, labels).item - observed + beta * logits.item
        logits = logits._replace(item=logits.item - grad / bound)
    return logits


def _observed(share: Floats, labels: Incidence) -> Logits:
    """Σ q_i(c) 1[l_ik = z] over the labels of each worker, and of each item."""
    N, P, C = labels.n_items, labels.n_workers, labels.n_classes
    return Logits(
        labels.total(labels.cell, share, P * C).reshape(P, C).T,
        labels.total(labels.ballot, share, C * N).reshape(C, N),
    )


def _expected(logits: Logits, share: Floats, labels: Incidence) -> Logits:
    """Σ q_i(c) p(z | c) over the labels of each worker, and of each item."""
    probs = np.exp(label_log_probs(logits.worker, logits.item, labels)) * share
    return Logits(
        np.array([labels.total(labels.worker, row, labels.n_workers) for row in probs]),
        np.array([labels.total(labels.item, row, labels.n_items) for row in probs]),
    )


def _log_likelihood(logits: list[Logits], labels: Incidence) -> Floats:
    """Σ_k log p(l_ik | c), (N, C)."""
    scores = np.zeros((labels.n_items, labels.n_classes))
    for c, each in enumerate(logits):
        said = label_log_probs(each.worker, each.item, labels)[
            labels.label, np.arange(len(labels.label))
        ]
        scores[:, c] = labels.total(labels.item, said, labels.n_items)
    return scores
