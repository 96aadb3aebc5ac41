"""Crowd-Kit's categorical aggregators and metrics under their own names, run by LabelQuorum.

Replace `from crowdkit.aggregation import DawidSkene` by
`from labelquorum.compat.crowdkit import DawidSkene`: the arguments, the tables and the values are
those of Crowd-Kit 1.4, the time is a fraction. Where they differ:

- a row without a task, worker or label is refused; Crowd-Kit drops it, or fails later;
- `silent` and `verbose` are accepted, and nothing is printed;
- a true label that no worker gave is a class of probability 0 to begin with, not NaN;
- in `MACE` each worker has a habit of their own. Crowd-Kit's mixes them up unless the names of
  workers and labels first appear in alphabetical order, and gives NaN where a task has very many
  labels;
- in `KOS` messages are scaled so that they do not overflow; Crowd-Kit's stops where they would.
  A task whose sum is 0 gets the first class; Crowd-Kit's fails;
- the signs of `MMSR` are those of an exact eigenvector; Crowd-Kit's starts at random.

`experiments/crowdkit` runs Crowd-Kit's own tests against these names.
"""

from labelquorum.compat.crowdkit.em import GLAD, MACE, DawidSkene, OneCoinDawidSkene
from labelquorum.compat.crowdkit.metrics import (
    accuracy_on_aggregates,
    alpha_krippendorff,
    consistency,
    uncertainty,
)
from labelquorum.compat.crowdkit.rank_one import KOS, MMSR
from labelquorum.compat.crowdkit.votes import (
    GoldMajorityVote,
    MajorityVote,
    Wawa,
    ZeroBasedSkill,
)

__all__ = [
    "GLAD",
    "KOS",
    "MACE",
    "MMSR",
    "DawidSkene",
    "GoldMajorityVote",
    "MajorityVote",
    "OneCoinDawidSkene",
    "Wawa",
    "ZeroBasedSkill",
    "accuracy_on_aggregates",
    "alpha_krippendorff",
    "consistency",
    "uncertainty",
]
