"""Where the real data sets are, if they are at hand."""

import os
from pathlib import Path

import pytest

from labelquorum.errors import LabelError
from labelquorum.evaluation.datasets.load import DATA_VARIABLE, dataset_paths


@pytest.fixture(scope="session")
def real_sets() -> dict[str, Path]:
    """Where each set is, in all folders that are named."""
    if not os.environ.get(DATA_VARIABLE):
        pytest.skip(f"real data sets are read only where {DATA_VARIABLE} names their folder")
    try:
        return dataset_paths()
    except LabelError as error:
        if os.environ.get("LABELQUORUM_CI") == "1":  # a named folder that is missing is a failure
            raise
        pytest.skip(str(error))
