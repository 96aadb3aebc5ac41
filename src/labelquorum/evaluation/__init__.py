"""Is it any good? Simulated crowds, real data sets, scores and pictures."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from labelquorum.evaluation.datasets.download import download_dataset
from labelquorum.evaluation.datasets.load import (
    Counts,
    Dataset,
    DatasetInfo,
    check_dataset,
    count_dataset,
    data_folder,
    data_folders,
    dataset_info,
    known_datasets,
    list_datasets,
    read_dataset,
)
from labelquorum.evaluation.simulate.arrivals import (
    Arrivals,
    bursts,
    chunks,
    label_table,
    trickle,
    truth_by_item,
    whole_items,
)
from labelquorum.evaluation.simulate.crowds import (
    balanced_truth,
    bimodal_crowd,
    bimodal_noise,
    class_conditional_crowd,
    one_coin_crowd,
    ordinal_crowd,
    published_noise_rates,
)
from labelquorum.evaluation.simulate.oracle import (
    Cast,
    Crowd,
    confusion_at,
    oracle,
    oracle_error,
    oracle_probs,
)
from labelquorum.evaluation.simulate.roles import (
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
    from labelquorum.evaluation.metrics import calibration_error, error_rate, log_loss, reliability
    from labelquorum.evaluation.plots import (
        plot_calibration,
        plot_confusion,
        plot_error_along_stream,
        plot_skills,
        plot_stream,
    )
    from labelquorum.evaluation.replay import Prequential, stream
    from labelquorum.learn.analysis.agreement import (
        ClassAgreement,
        class_agreement,
        krippendorff_alpha,
    )

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
    "data_folders",
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

# The methods are imported when first used, so that a crowd is simulated, and a data set read, at
# once.
_LATER = {
    "ClassAgreement": "labelquorum.learn.analysis.agreement",
    "calibration_error": "labelquorum.evaluation.metrics",
    "class_agreement": "labelquorum.learn.analysis.agreement",
    "error_rate": "labelquorum.evaluation.metrics",
    "krippendorff_alpha": "labelquorum.learn.analysis.agreement",
    "log_loss": "labelquorum.evaluation.metrics",
    "reliability": "labelquorum.evaluation.metrics",
    "plot_calibration": "labelquorum.evaluation.plots",
    "plot_confusion": "labelquorum.evaluation.plots",
    "plot_error_along_stream": "labelquorum.evaluation.plots",
    "plot_skills": "labelquorum.evaluation.plots",
    "plot_stream": "labelquorum.evaluation.plots",
    "Prequential": "labelquorum.evaluation.replay",
    "stream": "labelquorum.evaluation.replay",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'labelquorum.evaluation' has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return __all__
