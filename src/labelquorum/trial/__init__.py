"""Is it any good? Simulated crowds, real data sets, scores and pictures."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from labelquorum.trial.arrivals import bursts, trickle, whole_items
from labelquorum.trial.crowds import (
    Arrivals,
    Cast,
    Crowd,
    balanced_truth,
    bimodal_crowd,
    bimodal_noise,
    chunks,
    class_conditional_crowd,
    confusion_at,
    label_table,
    one_coin_crowd,
    oracle,
    oracle_error,
    oracle_probs,
    ordinal_crowd,
    published_noise_rates,
    truth_by_item,
)
from labelquorum.trial.datasets import (
    Dataset,
    check_dataset,
    count_dataset,
    data_folder,
    list_datasets,
    read_dataset,
)
from labelquorum.trial.download import download_dataset
from labelquorum.trial.registry import Counts, DatasetInfo, dataset_info, known_datasets
from labelquorum.trial.roles import (
    effective_workers,
    error_correlation,
    with_adversaries,
    with_bots,
    with_drifters,
    with_judges,
    with_ring,
    with_sleepers,
    with_spammers,
    worker_table,
)

if TYPE_CHECKING:
    from labelquorum.trial.metrics import (
        ClassAgreement,
        calibration_error,
        class_agreement,
        error_rate,
        krippendorff_alpha,
        log_loss,
        reliability,
    )
    from labelquorum.trial.pictures import (
        plot_calibration,
        plot_confusion,
        plot_error_along_stream,
        plot_skills,
        plot_stream,
    )
    from labelquorum.trial.prequential import Prequential, stream

__all__ = [
    "Arrivals",
    "Cast",
    "ClassAgreement",
    "Counts",
    "Crowd",
    "Dataset",
    "DatasetInfo",
    "Prequential",
    "balanced_truth",
    "bimodal_crowd",
    "bimodal_noise",
    "bursts",
    "calibration_error",
    "check_dataset",
    "chunks",
    "class_agreement",
    "class_conditional_crowd",
    "confusion_at",
    "count_dataset",
    "data_folder",
    "dataset_info",
    "download_dataset",
    "effective_workers",
    "error_correlation",
    "error_rate",
    "known_datasets",
    "krippendorff_alpha",
    "label_table",
    "list_datasets",
    "log_loss",
    "one_coin_crowd",
    "oracle",
    "oracle_error",
    "oracle_probs",
    "ordinal_crowd",
    "plot_calibration",
    "plot_confusion",
    "plot_error_along_stream",
    "plot_skills",
    "plot_stream",
    "published_noise_rates",
    "read_dataset",
    "reliability",
    "stream",
    "trickle",
    "truth_by_item",
    "whole_items",
    "with_adversaries",
    "with_bots",
    "with_drifters",
    "with_judges",
    "with_ring",
    "with_sleepers",
    "with_spammers",
    "worker_table",
]

# What needs JAX is imported when first used, so that a crowd is simulated, and a data set read, at
# once.
_LATER = {
    "ClassAgreement": "labelquorum.trial.metrics",
    "calibration_error": "labelquorum.trial.metrics",
    "class_agreement": "labelquorum.trial.metrics",
    "error_rate": "labelquorum.trial.metrics",
    "krippendorff_alpha": "labelquorum.trial.metrics",
    "log_loss": "labelquorum.trial.metrics",
    "reliability": "labelquorum.trial.metrics",
    "plot_calibration": "labelquorum.trial.pictures",
    "plot_confusion": "labelquorum.trial.pictures",
    "plot_error_along_stream": "labelquorum.trial.pictures",
    "plot_skills": "labelquorum.trial.pictures",
    "plot_stream": "labelquorum.trial.pictures",
    "Prequential": "labelquorum.trial.prequential",
    "stream": "labelquorum.trial.prequential",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'labelquorum.trial' has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return __all__
