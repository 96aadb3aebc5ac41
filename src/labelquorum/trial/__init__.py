"""Is it any good? Simulated crowds, real data sets, scores and pictures."""

from labelquorum.trial.crowds import (
    Crowd,
    balanced_truth,
    bimodal_crowd,
    bimodal_noise,
    chunks,
    class_conditional_crowd,
    label_table,
    oracle,
    oracle_error,
    oracle_probs,
)
from labelquorum.trial.datasets import Dataset, data_folder, list_datasets, read_dataset
from labelquorum.trial.metrics import (
    ClassAgreement,
    calibration_error,
    class_agreement,
    error_rate,
    krippendorff_alpha,
    log_loss,
)
from labelquorum.trial.pictures import plot_confusion, plot_error_along_stream

__all__ = [
    "ClassAgreement",
    "Crowd",
    "Dataset",
    "balanced_truth",
    "bimodal_crowd",
    "bimodal_noise",
    "calibration_error",
    "chunks",
    "class_agreement",
    "class_conditional_crowd",
    "data_folder",
    "error_rate",
    "krippendorff_alpha",
    "label_table",
    "list_datasets",
    "log_loss",
    "oracle",
    "oracle_error",
    "oracle_probs",
    "plot_confusion",
    "plot_error_along_stream",
    "read_dataset",
]
