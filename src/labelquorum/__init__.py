"""LabelQuorum: the consensus of many noisy workers, online."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from labelquorum.errors import LabelError, LabelQuorumError, StateError, StoreError
from labelquorum.ingest.events import LabelEvent, LabelSpace

if TYPE_CHECKING:
    from labelquorum.learn.encoder import Encoder
    from labelquorum.learn.estimator import (
        BCC,
        BWA,
        EBCC,
        GLAD,
        IBCC,
        LAA,
        MACE,
        MMCE,
        SBIC,
        BiLA,
        DawidSkene,
        LAOnePass,
        LATwoPass,
        MajorityVote,
        MinimaxEntropy,
        OneCoin,
        StepwiseEM,
        StreamingVB,
        estimator,
        load,
    )
    from labelquorum.learn.generative import GenerativeModel
    from labelquorum.learn.merging import merge
    from labelquorum.serve import spark
    from labelquorum.serve.client import Client
    from labelquorum.trial.checks import check_aggregator

__all__ = [
    "BCC",
    "BWA",
    "EBCC",
    "GLAD",
    "IBCC",
    "LAA",
    "MACE",
    "MMCE",
    "SBIC",
    "BiLA",
    "Client",
    "DawidSkene",
    "Encoder",
    "GenerativeModel",
    "LAOnePass",
    "LATwoPass",
    "LabelError",
    "LabelEvent",
    "LabelQuorumError",
    "LabelSpace",
    "MajorityVote",
    "MinimaxEntropy",
    "OneCoin",
    "StateError",
    "StepwiseEM",
    "StoreError",
    "StreamingVB",
    "__version__",
    "check_aggregator",
    "estimator",
    "load",
    "merge",
    "spark",
]

__version__ = version("labelquorum")

# What needs JAX or httpx is imported when first used, so that `labelquorum --help` answers at once.
_LATER = {
    "BiLA": "labelquorum.learn.estimator",
    "BCC": "labelquorum.learn.estimator",
    "BWA": "labelquorum.learn.estimator",
    "EBCC": "labelquorum.learn.estimator",
    "GLAD": "labelquorum.learn.estimator",
    "IBCC": "labelquorum.learn.estimator",
    "LAA": "labelquorum.learn.estimator",
    "MACE": "labelquorum.learn.estimator",
    "MMCE": "labelquorum.learn.estimator",
    "SBIC": "labelquorum.learn.estimator",
    "DawidSkene": "labelquorum.learn.estimator",
    "LAOnePass": "labelquorum.learn.estimator",
    "LATwoPass": "labelquorum.learn.estimator",
    "MinimaxEntropy": "labelquorum.learn.estimator",
    "OneCoin": "labelquorum.learn.estimator",
    "StepwiseEM": "labelquorum.learn.estimator",
    "StreamingVB": "labelquorum.learn.estimator",
    "estimator": "labelquorum.learn.estimator",
    "Encoder": "labelquorum.learn.encoder",
    "GenerativeModel": "labelquorum.learn.generative",
    "MajorityVote": "labelquorum.learn.estimator",
    "Client": "labelquorum.serve.client",
    "check_aggregator": "labelquorum.trial.checks",
    "load": "labelquorum.learn.estimator",
    "merge": "labelquorum.learn.merging",
}
_MODULES = {"spark": "labelquorum.serve.spark"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name not in _LATER:
        raise AttributeError(f"module 'labelquorum' has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return __all__
