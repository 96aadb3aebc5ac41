"""Where the real data sets are, if they are at hand."""

import os
from pathlib import Path

import pytest

from labelquorum.evaluation.datasets.load import DATA_VARIABLE, data_folder


@pytest.fixture(scope="session")
def real_folder() -> Path:
    if not os.environ.get(DATA_VARIABLE):
        pytest.skip(f"real data sets are read only where {DATA_VARIABLE} names their folder")
    if not Path(os.environ[DATA_VARIABLE]).is_dir() and os.environ.get("LABELQUORUM_CI") != "1":
        pytest.skip(f"{DATA_VARIABLE} names {os.environ[DATA_VARIABLE]!r}, which is no folder")
    return data_folder()  # in CI a named folder that is missing is a failure
