"""What every test stands on: fixed Hypothesis seeds, and compiled code kept beside pytest's own."""

import fcntl
import json
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import jax
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


MAPS = Path("/proc/self/maps")  # of Linux, one a line
_tests = count(1)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Let go of compiled code in time; what is needed again is read from the cache of the checkout.

    Compiled programs take maps of memory, a hundred a second while much is compiled. Linux gives a
    process 65,530 and then nothing, of which it dies.
    """
    if next(_tests) % 50 or not MAPS.exists():
        return
    if MAPS.read_bytes().count(b"\n") > 20_000:
        jax.clear_caches()


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, Any]]:
    """Makes a folder once for all processes of a test run, however they share the tests.

    `once(name, make)` gives the folder, and what `make(folder)` told in the process that was first.
    """
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # what the processes have in common

    def made(name: str, make: Callable[[Path], Any]) -> tuple[Path, Any]:
        folder, told = base / name, base / f"{name}.json"
        with (base / f"{name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # let go of when it is closed
            if not told.exists():
                told.write_text(json.dumps(make(folder)), encoding="utf-8")
        return folder, json.loads(told.read_text(encoding="utf-8"))

    return made
