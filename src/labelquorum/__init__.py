"""LabelQuorum: the consensus of many noisy workers, online."""

from importlib.metadata import version

from labelquorum.errors import LabelError, LabelQuorumError, StateError, StoreError
from labelquorum.ingest.events import LabelEvent, LabelSpace
from labelquorum.learn.encoder import Encoder
from labelquorum.learn.estimator import BiLA, MajorityVote, load
from labelquorum.learn.generative import GenerativeModel

__all__ = [
    "BiLA",
    "Encoder",
    "GenerativeModel",
    "LabelError",
    "LabelEvent",
    "LabelQuorumError",
    "LabelSpace",
    "MajorityVote",
    "StateError",
    "StoreError",
    "__version__",
    "load",
]

__version__ = version("labelquorum")
