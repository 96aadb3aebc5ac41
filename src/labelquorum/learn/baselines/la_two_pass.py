"""LA two-pass: LA one-pass, and then a second vote with the qualities it ended with.

Y. Yang, Z.-Q. Zhao, G. Wu, X. Zhuo, Q. Liu, Q. Bai and W. Li, A Lightweight, Effective, and
Efficient Model for Label Aggregation in Crowdsourcing, ACM TKDD, 2024 (arXiv:2212.00007).

The first pass takes items one by one, in the order of the chunk: the weighted vote answers an
item, and the answer tells which of its workers were right. (Where a vote is tied a worker is right
by the share of the tied classes that he named; the paper draws lots.) The second pass answers all
items again, and this time a worker who is right less often than by chance counts against what he
says, so that a class nobody named may win (the authors' code chooses among the named ones). Online
the passes go over each chunk, and over everything when all items are asked for again.
"""

import numpy as np

from labelquorum.ingest.chunks import Chunk
from labelquorum.ingest.events import LabelSpace
from labelquorum.learn.aggregator import Aggregation, Aggregator, break_ties, softmax
from labelquorum.learn.lightweight import Credit, State, lightweight, qualities
from labelquorum.learn.offline import sum_by_item

__all__ = ["aggregate", "la_two_pass"]


def aggregate(state: State, chunk: Chunk, credit: Credit) -> Aggregation:
    """The second pass: vote with the qualities as they are now; ties fall by seed and item."""
    quality = qualities(state, chunk, credit)
    # Σ_k (C a_k − 1) 1[l_ik = c], times C / (C − 1): to first order around a_k = 1/C these are
    # the log-odds of workers who are right with probability a_k, so softmax makes probabilities.
    n_classes = chunk.n_classes
    scale = n_classes / max(n_classes - 1, 1)
    evidence = np.eye(n_classes)[chunk.label] * scale * (n_classes * quality[:, None] - 1)
    log_scores = sum_by_item(evidence, chunk)
    return Aggregation(
        aggregated=break_ties(log_scores, chunk.item_keys, state.seed),
        probs=softmax(log_scores),
        log_evidence=(evidence * chunk.weight[:, None]).astype(np.float32),
    )


def la_two_pass(
    space: LabelSpace | None = None, *, right: float = 1.0, wrong: float = 1.0
) -> Aggregator:
    """Build LA two-pass.

    Parameters
    ----------
    right, wrong
        Labels every worker is credited with before his first. 1 and 1 are the paper's prior,
        Beta(2, 2), at whose mode it estimates.

    Examples
    --------
    >>> from labelquorum.trial.checks import seeded_error
    >>> print(f"{seeded_error(la_two_pass()):.1%}")
    13.8%
    """
    return lightweight("la_two_pass", aggregate, right=right, wrong=wrong)
