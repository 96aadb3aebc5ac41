"""The options that commands share, and the model they describe."""

import json
import re
import sys
from collections import Counter
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labelquorum.errors import printable
from labelquorum.ingest.labels import LabelSpace, OnBad, Repeats

if TYPE_CHECKING:
    from labelquorum.learn.estimator import Estimator


MODEL, ROWS = "Model", "Rows"
_ACTING = re.compile(r"[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")  # on a terminal


def in_a_folder(path: Path | None) -> Path | None:
    """Refuse a file that could not be written, before hours of work."""
    if path is not None and not path.parent.is_dir():
        raise typer.BadParameter(f"There is no folder {str(path.parent)!r}. Make it first.")
    return path


def output_option(sentence: str, *names: str, **more: Any) -> Any:
    """--output, unless named otherwise: a file, in a folder that must be there."""
    names = names or ("--output", "-o")
    return typer.Option(*names, dir_okay=False, callback=in_a_folder, help=sentence, **more)


def store_option(sentence: str) -> Any:
    """--store: a folder or a database."""
    return typer.Option("--store", "-s", metavar="STORE", show_default=False, help=sentence)


_LABELS = typer.Argument(
    metavar="LABELS",
    show_default=False,
    help="Files with one row per label and the columns task, worker, label: .csv, .jsonl or "
    ".parquet; .wide.csv has one row per task and one column per worker. .gz may follow; "
    "- is standard input.",
)
Labels = Annotated[list[str], _LABELS]
MaybeLabels = Annotated[list[str] | None, _LABELS]
ModelFile = Annotated[
    Path | None,
    typer.Option(
        "--model",
        "-m",
        dir_okay=False,
        callback=in_a_folder,
        rich_help_panel=MODEL,
        help="File of the model. If it is there, go on from it; save what was learned to it.",
    ),
]
Method = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=MODEL,
        show_default="bila",
        help="How to aggregate, such as bila or majority_vote.",
    ),
]
Preset = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=MODEL,
        show_default="default",
        help="Settings of bila: default, recipe (the hierarchical worker model alone), "
        "network (by gradient steps), www2021 (the paper) or authors (their code).",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(min=0, rich_help_panel=MODEL, show_default="0", help="Seed of everything random."),
]
OpenItems = Annotated[
    int | None,
    typer.Option(
        "--open-items",
        min=0,
        rich_help_panel=MODEL,
        show_default="10000",
        help="Recent tasks kept open for late labels and corrections; 0 discards at once.",
    ),
]
WarmupItems = Annotated[
    int | None,
    typer.Option(
        "--warmup-items",
        min=0,
        rich_help_panel=MODEL,
        show_default="0",
        help="Hold the first chunks until they have this many tasks, then answer them together.",
    ),
]
Workers = Annotated[
    Path | None,
    typer.Option(
        "--workers",
        exists=True,
        dir_okay=False,
        metavar="FILE",
        rich_help_panel=ROWS,
        help="What is known of workers: a file with the columns worker, worker_kind (human, llm or "
        "model), model, prompt and order.",
    ),
]
Classes = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=ROWS,
        show_default="any label",
        metavar="A,B,…",
        help="The only labels there may be: cat,dog as text, or JSON such as [0, 1].",
    ),
]
OnRepeat = Annotated[
    Repeats | None,
    typer.Option(
        "--repeats",
        rich_help_panel=ROWS,
        show_default="last",
        help="Which labels count when a worker labels the same task again; majority makes votes "
        "one label.",
    ),
]
OnBadRow = Annotated[
    OnBad,
    typer.Option("--on-bad", rich_help_panel=ROWS, help="Stop at a bad row, or skip and count it."),
]
Abstain = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=ROWS,
        metavar="LABEL",
        show_default="none",
        help='The label for "I do not know": text, or JSON in brackets such as [-1].',
    ),
]


def _column(role: str) -> Any:
    return typer.Option(
        f"--{role}-column",
        rich_help_panel=ROWS,
        metavar="NAME",
        show_default="by its name",
        help=f"The column of the {role}, where its name is not a common one.",
    )


TaskColumn = Annotated[str | None, _column("task")]
WorkerColumn = Annotated[str | None, _column("worker")]
LabelColumn = Annotated[str | None, _column("label")]
Raw = Annotated[
    bool,
    typer.Option(
        "--raw", help="Leave CSV cells as they are, also those that a spreadsheet would run."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def columns_of(task: str | None, worker: str | None, label: str | None) -> dict[str, str] | None:
    """The columns that were named, as readers take them."""
    given = {"task": task, "worker": worker, "label": label}
    return {role: name for role, name in given.items() if name is not None} or None


def check_labels(path: Path, truths: Iterable[Hashable], labels: Iterable[Hashable]) -> None:
    """Warn of true labels that no worker gave: most often they are misspelled."""
    known = set(labels)
    other = Counter(truth for truth in truths if truth not in known)
    if other:
        tell(
            f"Warning: {path}: {sum(other.values()):,} true labels are none of the labels there "
            f"are: {', '.join(map(repr, list(other)[:3]))}, and not "
            f"{', '.join(map(repr, sorted(known, key=str)[:3]))}. Correct them, unless no judge "
            "found that class."
        )


def tell(sentence: str) -> None:
    """Report on standard error; standard output is left to the data."""
    typer.echo("\n".join(map(printable, sentence.split("\n"))), err=True)


def print_json(value: Any) -> None:
    """Print JSON in UTF-8, whatever the encoding of the terminal, which it cannot act on."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    typer.echo(_ACTING.sub(lambda found: json.dumps(found[0])[1:-1], text).encode())


def open_source(name: str) -> Any:
    """Give what a reader takes: a path, or standard input for "-"."""
    return sys.stdin.buffer if name == "-" else name


def open_model(
    path: Path | None,
    *,
    method: str | None,
    preset: str | None,
    classes: str | None,
    repeats: Repeats | None,
    abstain: str | None,
    **settings: int | None,
) -> "Estimator":
    """Load the model if its file is there, else make one that has learned nothing.

    A saved model keeps the settings it was made with: options that say otherwise are refused.
    """
    from labelquorum.learn.bila import PRESETS
    from labelquorum.learn.estimators import ESTIMATORS, load

    options: dict[str, Any] = {
        "method": _choose("--method", method, ESTIMATORS),
        "preset": _choose("--preset", preset, PRESETS),
        "classes": parse_classes(classes),
        "repeats": repeats,
        "abstain": parse_abstain(abstain),
        **settings,
    }
    given = {name: value for name, value in options.items() if value is not None}
    if path is not None and path.exists():
        model = load(path)
        whose = f"{path} was made"
    else:
        kind = ESTIMATORS[given.pop("method", "bila")]
        model = kind(**{name: given[name] for name in given if name in kind().get_params()})
        whose = f"The method {kind.method} works"
    made = {"method": model.method, **model.get_params()}
    for name, value in given.items():
        if name not in made or made[name] != value:
            has = f"with the {name} {made[name]!r}" if name in made else f"without {name}"
            raise typer.BadParameter(
                f"{whose} {has}. Leave the option out, or name another model file.",
                param_hint=f"'--{name.replace('_', '-')}'",
            )
    return model


def label_space(model: "Estimator", on_bad: OnBad) -> LabelSpace:
    """Say how rows are read: as the model wants, but for the bad ones, as this run wants."""
    classes = None if model.classes is None else tuple(model.classes)
    return LabelSpace(classes, model.repeats, on_bad, model.abstain)


class Summary:
    """Counts what became of the rows, chunk after chunk; nothing is dropped in silence."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._skipped: Counter[str] = Counter()

    def add(self, model: "Estimator") -> None:
        """Count the chunk a model has just learned from."""
        counts = model.tally_._asdict()
        self._skipped.update(counts.pop("skipped"))
        self._counts.update(counts, answers=len(model.model_.last_answer().intake.order))

    def sentence(self, model: "Estimator") -> str:
        """List the counts that are not zero."""
        known = self._counts["answers"] > 0
        counts = {
            "Tasks answered": self._counts["answers"],
            "Labels": self._counts["rows"],
            "Workers known": len(model.model_.known_workers()[0]) if known else 0,
            "Classes": len(model.model_.learned.vocabulary.classes),
            **{f"Left out, {reason}": count for reason, count in self._skipped.most_common()},
            "Repeated labels": self._counts["repeated"],
            "Corrected labels": self._counts["corrected"],
            "Tasks with late labels": self._counts["late_items"],
            "Closed tasks that came back": self._counts["returned_items"],
            "Labels that wait for the warm-up": model.held_labels_,
        }
        sentences = [f"{name}: {count:,}." for name, count in counts.items() if count]
        return " ".join(
            sentences if self._counts["rows"] else ["There were no labels.", *sentences]
        )


def parse_classes(text: str | None) -> list[Hashable] | None:
    """Read a list of classes: text with commas, or JSON."""
    if text is None:
        return None
    if text.startswith("["):
        return _parse_json("--classes", text)
    return [name.strip() for name in text.split(",")]


def parse_abstain(text: str | None) -> Hashable:
    """Read the label of an abstention: text, or JSON in brackets."""
    if text is None or not text.startswith("["):
        return text
    return _parse_json("--abstain", text)[0]


def _parse_json(option: str, text: str) -> list[Hashable]:
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not values or not all(isinstance(value, str | int | float) for value in values):
        raise typer.BadParameter(
            f"What starts with a bracket must be a JSON list of text and numbers. Got {text}",
            param_hint=f"'{option}'",
        )
    return list(values)


def _choose(option: str, value: str | None, known: Iterable[str]) -> str | None:
    if value is not None and value not in known:
        raise typer.BadParameter(
            f"{value!r} is not one of {', '.join(known)}.", param_hint=f"'{option}'"
        )
    return value
