"""LabelQuorum: the consensus of many noisy workers, online."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from labelquorum.errors import LabelError, LabelQuorumError, StateError, StoreError
from labelquorum.ingest.labels import LabelEvent, LabelSpace

if TYPE_CHECKING:
    from labelquorum import spark
    from labelquorum.client import Client
    from labelquorum.evaluation.checks import check_aggregator
    from labelquorum.ingest.chunks import cut_chunks, make_chunk
    from labelquorum.ingest.labels import LabelTable
    from labelquorum.ingest.lint import examine
    from labelquorum.ingest.readers import iter_csv, read_labels, read_wide
    from labelquorum.learn.bila.encoder import Encoder
    from labelquorum.learn.bila.generative import GenerativeModel, Newcomers, Params
    from labelquorum.learn.bila.minibatch import Batch, sum_by_item
    from labelquorum.learn.estimators import (
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
    from labelquorum.learn.inspection import agreement
    from labelquorum.learn.merge import merge
    from labelquorum.store.rules import Rules
    from labelquorum.store.store import Store

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
    "Batch",
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
    "LabelTable",
    "MajorityVote",
    "MinimaxEntropy",
    "Newcomers",
    "OneCoin",
    "Params",
    "Rules",
    "StateError",
    "StepwiseEM",
    "Store",
    "StoreError",
    "StreamingVB",
    "__version__",
    "agreement",
    "check_aggregator",
    "cut_chunks",
    "estimator",
    "examine",
    "iter_csv",
    "load",
    "make_chunk",
    "merge",
    "read_labels",
    "read_wide",
    "spark",
    "sum_by_item",
]

if TYPE_CHECKING:
    __version__: str

# What needs pandas or httpx is imported when first used, so `labelquorum --help` answers at once.
_LATER = {
    "Batch": "labelquorum.learn.bila.minibatch",
    "LabelTable": "labelquorum.ingest.labels",
    "Newcomers": "labelquorum.learn.bila.generative",
    "Params": "labelquorum.learn.bila.generative",
    "Rules": "labelquorum.store.rules",
    "Store": "labelquorum.store.store",
    "cut_chunks": "labelquorum.ingest.chunks",
    "examine": "labelquorum.ingest.lint",
    "iter_csv": "labelquorum.ingest.readers",
    "make_chunk": "labelquorum.ingest.chunks",
    "read_labels": "labelquorum.ingest.readers",
    "read_wide": "labelquorum.ingest.readers",
    "sum_by_item": "labelquorum.learn.bila.minibatch",
    "BiLA": "labelquorum.learn.estimators",
    "BCC": "labelquorum.learn.estimators",
    "BWA": "labelquorum.learn.estimators",
    "EBCC": "labelquorum.learn.estimators",
    "GLAD": "labelquorum.learn.estimators",
    "IBCC": "labelquorum.learn.estimators",
    "LAA": "labelquorum.learn.estimators",
    "MACE": "labelquorum.learn.estimators",
    "MMCE": "labelquorum.learn.estimators",
    "SBIC": "labelquorum.learn.estimators",
    "DawidSkene": "labelquorum.learn.estimators",
    "LAOnePass": "labelquorum.learn.estimators",
    "LATwoPass": "labelquorum.learn.estimators",
    "MinimaxEntropy": "labelquorum.learn.estimators",
    "OneCoin": "labelquorum.learn.estimators",
    "StepwiseEM": "labelquorum.learn.estimators",
    "StreamingVB": "labelquorum.learn.estimators",
    "estimator": "labelquorum.learn.estimators",
    "Encoder": "labelquorum.learn.bila.encoder",
    "GenerativeModel": "labelquorum.learn.bila.generative",
    "MajorityVote": "labelquorum.learn.estimators",
    "Client": "labelquorum.client",
    "check_aggregator": "labelquorum.evaluation.checks",
    "load": "labelquorum.learn.estimators",
    "agreement": "labelquorum.learn.inspection",
    "merge": "labelquorum.learn.merge",
}
_MODULES = {"spark": "labelquorum.spark"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name == "__version__":  # to read it takes a tenth of the whole import
        return import_module("importlib.metadata").version("labelquorum")
    if name not in _LATER:
        raise AttributeError(f"module 'labelquorum' has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return __all__
