"""Words that our code and prose do not use, and what they use instead.

    python tests/words.py            # every place: file:line: word → instead
    python tests/words.py docs src   # in these files or folders only

`tests/test_words.py` fails if there is any. A phrase is found across line breaks, comment marks and
the quotes of adjacent string literals.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent


class Rule(NamedTuple):
    """A word or phrase that is not used."""

    instead: str
    pattern: str = ""  # the word itself, unless given; a space stands for any white space


BANNED = {
    # gendered pronouns for workers, readers and judges
    "he": Rule("they, or the noun"),
    "she": Rule("they, or the noun"),
    "his": Rule("their, or the noun's"),
    "her": Rule("their, or the noun's", "hers?"),
    "him": Rule("them, or the noun"),
    "himself": Rule("themselves", "(?:him|her)self"),
    # metaphors for parts of the program
    "the door": Rule("the estimator", "(?:at|behind|below|through) the door"),
    "the gate": Rule("the middleware"),
    "a board": Rule("a cached table", "boards?"),
    "the litter": Rule("garbage collection", "litter"),
    "parcel": Rule("batch", "parcels?"),
    "inlet": Rule("accept", "inlets?"),
    "glance": Rule("queries", "glances?"),
    # the worker models of BiLA
    "rich / plain account": Rule(
        "hierarchical / one-coin worker model",
        "(?:rich|richer|plain|two|both|one|each|other) accounts?",
    ),
    "speaks": Rule("is selected", "(?:account|which|who|one|it|them) (?:that )?speaks"),
    "heat": Rule("temperature"),
    # old-fashioned or roundabout
    "refusal": Rule("error", "refusals?"),
    "told": Rule("given, returned, reported, shown"),
    "so many": Rule("a number, at most N"),
    "so long": Rule("a timeout in seconds"),
    "somebody": Rule("a client, a worker, someone"),
    "who sends": Rule("the sender", "who(?:ever)? sends"),
    "brought into the file": Rule("WAL checkpoint"),
    "however often it is sent": Rule("idempotent"),
    "a process of its own": Rule("a subprocess, a thread", "an? (?:process|thread) of its own"),
    "anew": Rule("again"),
    "of late": Rule("recently"),
    "any more": Rule("no longer"),
    "let go": Rule("release, released", "(?:let|lets|letting) go"),
    "meanwhile": Rule("until then, at the same time"),
    "a row a worker": Rule(
        "one row per worker",
        "(?:rows?|columns?|sums?|numbers?|counts?|lines?|requests?|labels|batches|bytes)"
        " an? (?:class|worker|task|item|label|chunk|second|stream|row)",
    ),
}


class Allowed(NamedTuple):
    """Places where a word may stand."""

    path: str  # with wildcards
    line: str  # a pattern that the line matches
    reason: str


ALLOWED = (
    Allowed("tests/*words.py", ".", "the list itself"),
    Allowed("experiments/readability/*", ".", "questions written before there was a list"),
    Allowed("*/heatmap.js", "heat", "a kind of chart"),
    Allowed("*", r"\"told\"|\bTold\b|^    told: int$", "a field and a schema of the HTTP API"),
    Allowed("*/test_use.py", r"he\|his\|him", "looks for these words itself"),
    Allowed("*", r"\bheat\b.*\bExplanation\b|`heat`|\.heat\b|\bheat=|\"heat\"", "a published name"),
    Allowed("src/labelquorum/learn/reports.py", "heat: float", "a published name"),
    Allowed("*", r"\bheat maps?\b", "the name of that kind of chart"),
)

TYPES = (".py", ".md", ".toml", ".html", ".js", ".css", ".yml", ".yaml", ".svg", ".txt", "")
FOLDERS = ("src", "docs", "tests", "examples", "experiments", "benchmarks", ".ci")
SKIPPED = {"results", "__pycache__", "fixtures", "vendor", "LICENSE"}
_GAP = r"""(?:[\s#>]|["']\s*[frb]*["'])+"""


class Hit(NamedTuple):
    """One place where a banned word stands."""

    path: str
    line: int
    word: str
    rule: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.word} → {BANNED[self.rule].instead}"


def files(root: Path = ROOT) -> Iterator[Path]:
    """All files of the project that hold prose or code; results of measurements are not."""
    for path in (*root.glob("*"), *(p for name in FOLDERS for p in (root / name).rglob("*"))):
        parts = path.relative_to(root).parts
        ours = path.is_file() and path.suffix in TYPES and not SKIPPED & {*parts}
        if ours and not parts[0].startswith((".git", ".coverage")):
            yield path


def find(root: Path = ROOT, under: tuple[str, ...] = ()) -> Iterator[Hit]:
    """Every banned word, file by file."""
    patterns = [(rule.pattern or name).replace(" ", _GAP) for name, rule in BANNED.items()]
    groups = "|".join(f"({pattern})" for pattern in patterns)
    banned, names = re.compile(rf"(?<![\w-])(?:{groups})(?![\w-])"), list(BANNED)
    for path in sorted({*files(root)}):
        name = path.relative_to(root).as_posix()
        if under and not name.startswith(under):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        lines = text.splitlines()
        allowed = [re.compile(one.line) for one in ALLOWED if fnmatch(name, one.path)]
        for match in banned.finditer(text.lower()):
            number = text.count("\n", 0, match.start()) + 1
            if not any(one.search(lines[number - 1]) for one in allowed):
                yield Hit(name, number, " ".join(match[0].split()), names[match.lastindex - 1])


def main() -> None:
    """Print every place."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("under", nargs="*", help="files or folders; all unless given")
    options = parser.parse_args()
    hits = list(find(ROOT, tuple(options.under)))
    sys.stdout.write("".join(f"{hit}\n" for hit in hits))
    sys.stdout.write(f"{len(hits)} places.\n")


if __name__ == "__main__":
    main()
