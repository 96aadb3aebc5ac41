"""Compare the lines of src that the quick tests cover with those that all tests cover.

    python3 run.py coverage [--reuse]

runs the quick tests, then the others, with the processes they start, and fails where the quick
tests cover less than MIN_SHARE of the lines that either covers. With `--reuse` it compares the files of the last run.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import coverage

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "labelquorum"
FOLDER = ROOT / ".pytest_cache" / "coverage"
MIN_SHARE = 0.85
RUNS = {"quick": [], "others": ["-m", "slow or browser or spark or kill or coverage"]}


def measure(name: str, arguments: list[str]) -> None:
    """Run the tests and leave one file of the lines they ran."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.glob(f"{name}*"):
        old.unlink()
    variables = {
        "COVERAGE_FILE": str(FOLDER / name),
        "COVERAGE_RCFILE": str(ROOT / "pyproject.toml"),
    }
    command = [sys.executable, "-m", "coverage"]
    tests = ["run", "-m", "pytest", "-q", "-n", "3", "--dist", "worksteal", *arguments]
    for step in (tests, ["combine", "-q"]):
        subprocess.run([*command, *step], cwd=ROOT, env=os.environ | variables)


def covered(name: str) -> dict[str, set[int]]:
    """Give the lines that ran, per file of src."""
    data = coverage.CoverageData(str(FOLDER / name))
    data.read()
    files = {file: Path(file) for file in data.measured_files()}
    return {
        str(path.relative_to(SOURCE)): set(data.lines(file) or ())
        for file, path in files.items()
        if path.is_relative_to(SOURCE)
    }


def main(arguments: list[str]) -> int:
    """Print the share per package and of all lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reuse", action="store_true", help="compare the files of the last run")
    if not parser.parse_args(arguments).reuse:
        for name, options in RUNS.items():
            measure(name, options)
    quick, others = (covered(name) for name in RUNS)
    everything = {file: quick.get(file, set()) | others.get(file, set()) for file in quick | others}
    packages = dict.fromkeys(sorted(file.partition("/")[0] for file in everything))
    rows = []
    for package in [*packages, ""]:
        files = [file for file in everything if file.startswith(package)]
        whole = sum(len(everything[file]) for file in files)
        shared = sum(len(everything[file] & quick.get(file, set())) for file in files)
        rows.append((package or "all", shared, whole, shared / max(whole, 1)))
        print("{:16}{:7,} of {:7,} lines  {:6.1%}".format(*rows[-1]))
    share = rows[-1][-1]
    print(
        f"The quick tests cover {share:.1%} of the lines all tests cover; at least {MIN_SHARE:.0%}."
    )
    return 0 if share >= MIN_SHARE else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
