"""The report: items and workers in the words of cleanlab, with the crowd's agreement."""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labelquorum.ingest.chunks import Chunk
from labelquorum.learn.agreement import class_agreement, krippendorff_alpha

__all__ = ["Report", "item_report", "worker_report"]


class Report(NamedTuple):
    """What `report()` gives."""

    items: pd.DataFrame
    """Index task: consensus_label, consensus_quality_score, annotator_agreement,
    num_annotations, and group where labels had one."""
    workers: pd.DataFrame
    """Index worker: annotator_quality, agreement_with_consensus, num_examples_labeled,
    worst_class."""
    krippendorff_alpha: float
    """Agreement beyond chance over the items above, nominal; NaN where nothing can disagree."""
    class_agreement: pd.DataFrame
    """Index label: how often another label of an item agrees with one of that class, plain
    (`agreement`) and beyond chance (`alpha`)."""


def item_report(
    chunk: Chunk,
    item_ids: Sequence[Hashable],
    probs: NDArray[np.float32],
    aggregated: NDArray[np.int32],
    classes: Sequence[Hashable],
) -> tuple[pd.DataFrame, float, pd.DataFrame]:
    """The items of a chunk as a table, Krippendorff's alpha, and the agreement by class."""
    agrees = chunk.label == aggregated[chunk.item]
    total = np.bincount(chunk.item, chunk.weight, chunk.n_items)
    share = np.bincount(chunk.item, chunk.weight * agrees, chunk.n_items)
    items = pd.DataFrame(
        {
            "consensus_label": [classes[c] for c in aggregated],
            "consensus_quality_score": probs[np.arange(len(aggregated)), aggregated],
            "annotator_agreement": np.divide(
                share, total, out=np.full(len(total), np.nan), where=total > 0
            ),
            "num_annotations": np.bincount(chunk.item, minlength=chunk.n_items),
        },
        index=pd.Index(item_ids, name="task"),
    )
    alpha = krippendorff_alpha(chunk.item, chunk.label, len(classes), chunk.weight)
    agreement = class_agreement(chunk.item, chunk.label, len(classes), chunk.weight)
    return (
        items,
        alpha,
        pd.DataFrame(agreement._asdict(), index=pd.Index(list(classes), name="label")),
    )


def worker_report(
    worker_ids: Sequence[Hashable],
    classes: Sequence[Hashable],
    confusion: NDArray[np.float32],
    class_prior: NDArray[np.float64],
    n_labels: NDArray[np.int64],
    n_agreed: NDArray[np.int64],
) -> pd.DataFrame:
    """The workers as a table; `confusion` is (K, C, C)."""
    right = np.diagonal(confusion, axis1=1, axis2=2)
    # The worst class is the one on which most of a worker's errors fall.
    errors = (1 - right) * class_prior
    worst = [classes[c] for c in errors.argmax(axis=1)] if len(classes) else []
    return pd.DataFrame(
        {
            "annotator_quality": right @ class_prior,
            "agreement_with_consensus": np.divide(
                n_agreed, n_labels, out=np.full(len(n_labels), np.nan), where=n_labels > 0
            ),
            "num_examples_labeled": n_labels,
            "worst_class": worst,
        },
        index=pd.Index(worker_ids, name="worker"),
    )
