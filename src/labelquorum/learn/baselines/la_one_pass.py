"""LA one-pass: a vote weighted by how often each worker was right so far.

Y. Yang, Z.-Q. Zhao, G. Wu, X. Zhuo, Q. Liu, Q. Bai and W. Li, A Lightweight, Effective, and
Efficient Model for Label Aggregation in Crowdsourcing, ACM TKDD, 2024 (arXiv:2212.00007).

Items are taken one by one, in the order of the chunk: the weighted vote answers an item, and the
answer tells which of its workers were right. The paper draws lots where a vote is tied; here a
worker is right by the share of the tied classes that he named, so that nothing hangs on the names
of the classes. The answers a chunk gets are weighted by what is known at its end.
"""

import numpy as np

from labelquorum.ingest.chunks import Chunk
from labelquorum.ingest.events import LabelSpace
from labelquorum.learn.aggregator import Aggregation, Aggregator, break_ties
from labelquorum.learn.lightweight import Credit, State, lightweight, qualities
from labelquorum.learn.offline import sum_by_item

__all__ = ["aggregate", "la_one_pass"]


def aggregate(state: State, chunk: Chunk, credit: Credit) -> Aggregation:
    """Give each item the class with the heaviest vote; ties fall by seed and item."""
    quality = qualities(state, chunk, credit)
    # Σ_k a_k 1[l_ik = c]
    evidence = np.eye(chunk.n_classes)[chunk.label] * quality[:, None]
    votes = sum_by_item(evidence, chunk)
    total = votes.sum(axis=1, keepdims=True)
    # An item without a counted label gets every class alike.
    alike = np.full_like(votes, 1 / max(chunk.n_classes, 1))
    shares = np.divide(votes, total, out=alike, where=total > 0)
    return Aggregation(
        aggregated=break_ties(shares, chunk.item_keys, state.seed),
        probs=shares.astype(np.float32),
        log_evidence=(evidence * chunk.weight[:, None]).astype(np.float32),
    )


def la_one_pass(
    space: LabelSpace | None = None, *, right: float = 1.0, wrong: float = 1.0
) -> Aggregator:
    """Build LA one-pass.

    Parameters
    ----------
    right, wrong
        Labels every worker is credited with before his first. 1 and 1 are the paper's prior,
        Beta(2, 2), at whose mode it estimates.

    Examples
    --------
    >>> from labelquorum.trial.checks import seeded_error
    >>> print(f"{seeded_error(la_one_pass()):.1%}")
    14.3%
    """
    return lightweight("la_one_pass", aggregate, right=right, wrong=wrong)
