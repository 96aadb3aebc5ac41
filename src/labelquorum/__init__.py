"""LabelQuorum: the consensus of many noisy workers, online."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from labelquorum.errors import LabelError, LabelQuorumError, StateError, StoreError
from labelquorum.ingest.events import LabelEvent, LabelSpace

if TYPE_CHECKING:
    from labelquorum.learn.encoder import Encoder
    from labelquorum.learn.estimator import BiLA, MajorityVote, load
    from labelquorum.learn.generative import GenerativeModel
    from labelquorum.trial.checks import check_aggregator

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
    "check_aggregator",
    "load",
]

__version__ = version("labelquorum")

# What needs JAX is imported when first used, so that `labelquorum --help` answers at once.
_LATER = {
    "BiLA": "labelquorum.learn.estimator",
    "Encoder": "labelquorum.learn.encoder",
    "GenerativeModel": "labelquorum.learn.generative",
    "MajorityVote": "labelquorum.learn.estimator",
    "check_aggregator": "labelquorum.trial.checks",
    "load": "labelquorum.learn.estimator",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'labelquorum' has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return __all__
