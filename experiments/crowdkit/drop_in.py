"""Crowd-Kit's own tests of categorical aggregation, run against `labelquorum.compat.crowdkit`.

    python experiments/crowdkit/drop_in.py CHECKOUT [--time] [-o results/drop_in.md]

CHECKOUT is a folder with Crowd-Kit's repository; its tests are run there and not copied. Names of
`crowdkit.aggregation` and `crowdkit.metrics` that the drop-in has are replaced before a test
imports them. Every test is run with Crowd-Kit first: one that Crowd-Kit itself does not pass says
nothing. README.md names versions with which it passes all. `--time` measures each class beside
Crowd-Kit's, in turns in one process.
"""

import argparse
import json
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from time import perf_counter
from typing import Any

FILES = (
    "aggregation/test_classification_aggregation.py",
    "aggregation/test_classification_aggregation_edge_cases.py",
    "aggregation/test_ds_aggregation.py",
    "aggregation/test_glad_aggregation.py",
    "aggregation/test_kos_aggregation.py",
    "aggregation/test_mace_aggregation.py",
    "aggregation/test_majority_vote.py",
    "aggregation/test_binary_relevance_aggregation.py",
    "metrics/test_metrics.py",
    "postprocessing/test_entropy_threshold.py",
)
MODULES = (
    "crowdkit.aggregation",
    "crowdkit.aggregation.classification",
    "crowdkit.metrics.data",
    "crowdkit.metrics.workers",
)
PRIVATE = "calls private methods of Crowd-Kit's GLAD"
ORDER = "pins what Crowd-Kit's MACE does to workers that are not in alphabetical order"
NOT_APPLICABLE = {
    "test_glad_e_step": PRIVATE,
    "test_glad_derivative": PRIVATE,
    "test_aggregate_mace_on_simple[em]": ORDER,
    "test_thetas_on_simple": ORDER,
    "test_binary_relevance_": "of BinaryRelevance (several labels per task), which accepts only "
    "subclasses of Crowd-Kit's own base class",
    "test_segmentation_": "of image segmentation, which is not categorical",
    "test_golden_set_accuracy": "calls a function of Crowd-Kit's own alone",
}
"""Beginnings of the names of tests that say nothing about the drop-in, and why."""

TURNS = 2  # the faster one counts


class Outcomes:
    """A pytest plugin: whether each test passed, and what it said if not."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = report.nodeid.removeprefix("tests/")
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.found[name] = str(crash.message if crash else report.longrepr)
        elif report.when == "call":
            self.found[name] = ""


def run(checkout: Path, ours: bool) -> dict[str, str]:
    """Run the tests in this process; give what each said, nothing if it passed."""
    import pytest

    sys.path.insert(0, str(checkout))
    if ours:
        replace()
    outcomes = Outcomes()
    names = [str(checkout / "tests" / file) for file in FILES]
    pytest.main(
        ["-q", "--no-header", "-p", "no:cacheprovider", f"--rootdir={checkout}", *names],
        plugins=[outcomes],
    )
    return outcomes.found


def replace() -> None:
    """Put the drop-in's names in the place of Crowd-Kit's."""
    ours = import_module("labelquorum.compat.crowdkit")
    for name in MODULES:
        module = import_module(name)
        # Only there is every name categorical, and a test of one that is missing tests Crowd-Kit.
        if name != "crowdkit.aggregation" and (missing := set(module.__all__) - set(ours.__all__)):
            raise SystemExit(f"The drop-in lacks {sorted(missing)} of {name}.")
        for one in ours.__all__:
            if hasattr(module, one):
                setattr(module, one, getattr(ours, one))


def run_apart(checkout: Path, ours: bool) -> dict[str, str]:
    """Run the tests in a process of their own, for what was replaced stays replaced."""
    command = [sys.executable, __file__, str(checkout), "--raw", "ours" if ours else "theirs"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def reason_of(name: str) -> str | None:
    test = name.rpartition("::")[2]
    return next((why for start, why in NOT_APPLICABLE.items() if test.startswith(start)), None)


def table(theirs: dict[str, str], ours: dict[str, str]) -> Iterator[str]:
    """The lines of the result: a row per file, then the tests that do not apply or fail."""
    kinds = {name: kind_of(name, said, ours.get(name)) for name, said in theirs.items()}
    columns = ("passed", "failed", "not applicable")
    yield f"| tests | all | {' | '.join(columns)} |"
    yield "|---|--:|--:|--:|--:|"
    for file, names in groupby(kinds, key=lambda name: name.partition("::")[0]):
        counts = Counter(kinds[name] for name in names)
        yield f"| {file} | {counts.total()} | {' | '.join(str(counts[c]) for c in columns)} |"
    total = Counter(kinds.values())
    yield f"| **all** | {total.total()} | {' | '.join(str(total[c]) for c in columns)} |"
    yield ""
    for name, kind in kinds.items():
        test = name.rpartition("::")[2]
        if kind == "not applicable":
            why = reason_of(name) or f"Crowd-Kit fails it: {theirs[name].splitlines()[0]}"
            yield f"- not applicable: `{test}`, {why}."
        elif kind == "failed":
            said = (ours.get(name) or "it was not run").splitlines()[0]
            yield f"- failed: `{test}`, {said}"


def kind_of(name: str, theirs: str, ours: str | None) -> str:
    if reason_of(name) or theirs:
        return "not applicable"
    return "passed" if ours == "" else "failed"


def times() -> Iterator[str]:
    """How long a fit takes beside Crowd-Kit, on one crowd."""
    import pandas as pd

    ours = import_module("labelquorum.compat.crowdkit")
    from labelquorum.evaluation import class_conditional_crowd

    theirs = import_module("crowdkit.aggregation")
    metrics = import_module("crowdkit.metrics.data")
    workers = import_module("crowdkit.metrics.workers")
    crowd = class_conditional_crowd(400, 20, 2, labels_per_item=5, seed=0)
    data = pd.DataFrame(
        {
            "task": [f"t{i}" for i in crowd.item],
            "worker": [f"w{i}" for i in crowd.worker],
            "label": crowd.label,
        }
    )
    gold = pd.Series(crowd.truth, [f"t{i}" for i in range(400)])
    yield f"| {len(data):,} labels, 400 tasks, 20 workers | Crowd-Kit, s | ours, s | ratio |"
    yield "|---|--:|--:|--:|"
    for name in ours.__all__:
        place = next((m for m in (theirs, metrics, workers) if hasattr(m, name)), None)
        if place is None:
            continue
        arguments = (data, gold) if name == "GoldMajorityVote" else (data,)
        best = [float("inf"), float("inf")]
        for _ in range(TURNS):
            for side, module in enumerate((place, ours)):
                verb = getattr(module, name)
                began = perf_counter()
                if isinstance(verb, type):
                    verb().fit_predict(*arguments)
                else:
                    verb(*arguments)
                best[side] = min(best[side], perf_counter() - began)
        yield f"| {name} | {best[0]:.4f} | {best[1]:.4f} | {best[0] / best[1]:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--output", "-o", type=Path)
    parser.add_argument("--raw", choices=["ours", "theirs"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # of Crowd-Kit, by the hundred
    if given.raw:
        print("\n" + json.dumps(run(given.checkout.resolve(), given.raw == "ours")))
        return
    packages = ("pandas", "numpy", "scipy", "scikit-learn", "nltk")
    lines = [", ".join(f"{name} {version(name)}" for name in packages) + ".", ""]
    both = (run_apart(given.checkout, ours) for ours in (False, True))
    lines += table(*both)
    if given.time:
        sys.path.insert(0, str(given.checkout.resolve()))
        lines += ["", *times()]
    text = "\n".join(lines) + "\n"
    print(text)
    if given.output:
        given.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
