"""What every test needs: fixed Hypothesis seeds, groups of slow tests, one compilation cache."""

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

GROUPS = ("slow", "browser", "spark", "kill", "coverage")  # pyproject.toml says what each means


def pytest_configure(config: pytest.Config) -> None:
    # A test named by its node id runs, whatever group it is in.
    if any("::" in name for name in config.args) and "-m" not in config.invocation_params.args:
        config.option.markexpr = ""
    # Compilation is most of a quick run: without XLA's optimisations it takes 40 % less.
    # Every test is run as users run the code, with them.
    if config.option.markexpr:
        os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
    # Compiled code is kept in the checkout, for the processes tests start and for the next run;
    # the user's own cache folder is left alone.
    if "LABELQUORUM_CACHE" not in os.environ:
        cache = getattr(config, "cache", None)  # `-p no:cacheprovider` leaves none
        folder = "" if cache is None else str(cache.mkdir("compiled"))
        os.environ["LABELQUORUM_CACHE"] = folder


def pytest_report_header(config: pytest.Config) -> str | None:
    if not all(group in config.option.markexpr for group in GROUPS):
        return None
    return f"quick tests only; run.py test --all adds those marked {', '.join(GROUPS)}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        groups = {mark.name for mark in item.iter_markers()} & set(GROUPS)
        if len(groups) > 1:
            raise pytest.UsageError(f"{item.nodeid} is in the groups {sorted(groups)}: choose one.")


MEMORY_MAPS = Path("/proc/self/maps")  # Linux: one line per map
_tests = count(1)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Drop compiled programs before the process runs out of memory maps.

    They take a hundred maps per second while much is compiled. Linux allows a process 65,530 and
    kills it beyond. What is needed again is read from the compilation cache.
    """
    if next(_tests) % 50 or not MEMORY_MAPS.exists():
        return
    if MEMORY_MAPS.read_bytes().count(b"\n") > 20_000:
        jax.clear_caches()


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, Any]]:
    """Makes a folder once for all processes of a test run, whichever process needs it first.

    `once(name, make)` gives the folder, and what `make(folder)` returned to the process that made
    it.
    """
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # what the processes have in common

    def made(name: str, make: Callable[[Path], Any]) -> tuple[Path, Any]:
        folder, returned = base / name, base / f"{name}.json"
        with (base / f"{name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed
            if not returned.exists():
                returned.write_text(json.dumps(make(folder)), encoding="utf-8")
        return folder, json.loads(returned.read_text(encoding="utf-8"))

    return made
