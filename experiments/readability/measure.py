"""Measure how the code base reads: sizes, names, private reaches, duplicates, banned words.

    python3 run.py python experiments/readability/measure.py --before b96c7d2 --save

Prints a Markdown table of the working tree, or of a revision (`--at REV`), beside an earlier one.
With `--save`, writes results/measured.json and puts the table into README.md. The words are those
that `tests/words.py` lists today, counted in both revisions.
"""

import argparse
import importlib.util
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PACKAGE = "src/labelquorum"
MIN_DUPLICATE_LINES = 10
BEGIN, END = "<!-- measured -->\n", "<!-- /measured -->"


@contextmanager
def tree_of(revision: str | None) -> Iterator[Path]:
    """The files of a revision in a temporary folder; of none, the tracked files as they are."""
    if revision is None:
        revision = _git("stash", "create").strip() or "HEAD"
    with tempfile.TemporaryDirectory() as folder:
        packed = subprocess.run(
            ["git", "archive", revision], cwd=ROOT, capture_output=True, check=True
        ).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
        yield Path(folder)


def measure(root: Path) -> dict[str, Any]:
    """All figures of one tree."""
    modules = sorted((root / PACKAGE).rglob("*.py"))
    lines = {str(p.relative_to(root)): _lines(p) for p in modules}
    folders = Counter(str(p.parent.relative_to(root / "src")) for p in modules)
    names = Counter(p.name for p in modules if p.name != "__init__.py")
    longest = max(lines, key=lambda name: lines[name])
    folder, most = folders.most_common(1)[0]
    return {
        "modules in src": len(modules),
        "lines in src": sum(lines.values()),
        "lines in tests": sum(_lines(p) for p in (root / "tests").rglob("*.py")),
        "words in docs/*.md": sum(
            len(p.read_text(encoding="utf-8").split()) for p in (root / "docs").glob("*.md")
        ),
        "most modules in a folder": f"{most} ({folder.removeprefix('labelquorum/')})",
        "longest file in src": f"{lines[longest]} ({longest.removeprefix(PACKAGE + '/')})",
        "file names that recur": ", ".join(
            f"{name} ×{n}" for name, n in sorted(names.items()) if n > 1
        ),
        "private reaches (ruff SLF001)": _private_reaches(root),
        f"duplicates of {MIN_DUPLICATE_LINES} lines or more in src": _duplicates(root),
        "banned words": _words(root),
    }


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def _private_reaches(root: Path) -> int:
    found = subprocess.run(
        [
            "ruff",
            "check",
            "--isolated",
            "--ignore-noqa",
            "--select",
            "SLF001",
            "--output-format",
            "json",
            "src",
        ],
        cwd=root,
        capture_output=True,
        text=True,
    ).stdout
    return len(json.loads(found))


def _duplicates(root: Path) -> int | None:
    """Pairs that the program `duplicates` lists, if this machine has it."""
    if shutil.which("duplicates") is None:
        return None
    command = ["duplicates", "--repo", "src", "--most", "200", "--seconds", "120"]
    command += ["--min-lines", str(MIN_DUPLICATE_LINES)]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True).stdout
    pairs = re.findall(r"^D\d+ .*$", listed, re.MULTILINE)
    return sum("boilerplate" not in pair for pair in pairs)


def _words(root: Path) -> dict[str, int]:
    spec = importlib.util.spec_from_file_location("words", ROOT / "tests" / "words.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError("tests/words.py")
    words = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(words)
    counted = words.count(root)
    return {name: counted[name] for name in words.BANNED}


def table(before: dict[str, Any] | None, after: dict[str, Any]) -> str:
    """The figures as Markdown, the words last."""
    rows = [(name, (before or {}).get(name), value) for name, value in after.items()]
    words = after["banned words"]
    old = (before or {}).get("banned words", {})
    rows[-1] = ("banned words, all", sum(old.values()) if old else None, sum(words.values()))
    rows += [(f'"{word}"', old.get(word), n) for word, n in words.items()]

    def cell(value: Any) -> str:
        return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)

    head = "| | before | after |\n| --- | ---: | ---: |\n"
    return head + "".join(f"| {n} | {cell(a)} | {cell(b)} |\n" for n, a, b in rows)


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def main() -> None:
    """Measure, print, and save if asked to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--before", metavar="REV", help="an earlier revision to compare with")
    parser.add_argument("--at", metavar="REV", help="the revision; the working tree unless given")
    parser.add_argument("--save", action="store_true", help="write results/ and README.md")
    options = parser.parse_args()
    before = None
    if options.before:
        with tree_of(options.before) as root:
            before = measure(root)
    with tree_of(options.at) as root:
        after = measure(root)
    made = table(before, after)
    sys.stdout.write(made)
    if options.save:
        result = {"before": before, "after": after, "revision before": options.before}
        file = HERE / "results" / "measured.json"
        file.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        page = HERE / "README.md"
        start, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
        page.write_text(start + BEGIN + made + END + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
