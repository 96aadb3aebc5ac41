"""Chunk in, labels and confusion matrices out."""

from collections.abc import Callable

from labelquorum.learn.aggregator import Aggregator
from labelquorum.learn.baselines.majority_vote import majority_vote
from labelquorum.learn.bila import bila

__all__ = ["AGGREGATORS"]

AGGREGATORS: dict[str, Callable[..., Aggregator]] = {
    "bila": bila,
    "majority_vote": majority_vote,
}
"""Every method by name; the checks, the benchmark and the command line find them here."""
