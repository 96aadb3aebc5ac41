"""What every test stands on: fixed Hypothesis seeds, and compiled code kept beside pytest's own."""

import os

import pytest
from hypothesis import settings

settings.register_profile("labelquorum", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("labelquorum")


def pytest_configure(config: pytest.Config) -> None:
    # Compiled code is kept in the checkout, for the processes tests start and for the next run;
    # the user's own cache folder is left alone.
    if "LABELQUORUM_CACHE" not in os.environ:
        cache = getattr(config, "cache", None)  # `-p no:cacheprovider` leaves none
        folder = "" if cache is None else str(cache.mkdir("compiled"))
        os.environ["LABELQUORUM_CACHE"] = folder
