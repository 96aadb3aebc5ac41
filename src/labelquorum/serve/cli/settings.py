"""The options that commands share, and the model they describe."""

import json
import sys
from collections import Counter
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labelquorum.ingest.events import LabelSpace, OnBad, Repeats

if TYPE_CHECKING:
    from labelquorum.learn.door import Estimator

__all__ = [
    "Abstain",
    "AsJson",
    "Classes",
    "Labels",
    "Method",
    "ModelFile",
    "OnBadRow",
    "OnRepeat",
    "Preset",
    "Seed",
    "Summary",
    "choose",
    "label_space",
    "open_model",
    "open_source",
    "tell",
]

MODEL, ROWS = "Model", "Rows"


def in_a_folder(path: Path | None) -> Path | None:
    """Refuse a file that could not be written, before hours of work."""
    if path is not None and not path.parent.is_dir():
        raise typer.BadParameter(f"There is no folder {str(path.parent)!r}. Make it first.")
    return path


Labels = Annotated[
    list[str],
    typer.Argument(
        metavar="LABELS...",
        show_default=False,
        help="Files with one row a label and the columns task, worker, label: .csv, .jsonl or "
        ".parquet; .wide.csv has a row a task and a column a worker. .gz may follow; "
        "- is standard input.",
    ),
]
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
        help="Settings of bila: default, www2021 (the paper) or authors (their code).",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        rich_help_panel=MODEL, show_default="0", help="Everything random follows from it."
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
        help="Which labels count when a worker labels a task again.",
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
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def tell(sentence: str) -> None:
    """Speak to the person; standard output is left to the data."""
    typer.echo(sentence, err=True)


def choose(option: str, value: str, known: Iterable[str]) -> str:
    """Refuse a value that is none of the known ones."""
    if value not in known:
        raise typer.BadParameter(
            f"{value!r} is not one of {', '.join(known)}.", param_hint=f"'{option}'"
        )
    return value


def open_source(name: str) -> Any:
    """Give what a reader takes: a path, or standard input for "-"."""
    return sys.stdin.buffer if name == "-" else name


def open_model(
    path: Path | None,
    method: str | None,
    preset: str | None,
    classes: str | None,
    repeats: Repeats | None,
    abstain: str | None,
    seed: int | None,
) -> "Estimator":
    """Load the model if its file is there, else make one that has learned nothing.

    A saved model keeps the settings it was made with: options that say otherwise are refused.
    """
    from labelquorum.learn.bila import PRESETS
    from labelquorum.learn.estimator import ESTIMATORS, load

    given = {
        "preset": preset and choose("--preset", preset, PRESETS),
        "classes": None if classes is None else _values("--classes", classes, classes.split(",")),
        "repeats": repeats,
        "abstain": None if abstain is None else _values("--abstain", abstain, [abstain])[0],
        "seed": seed,
    }
    given = {name: value for name, value in given.items() if value is not None}
    saved = None if path is None or not path.exists() else load(path)
    chosen = choose("--method", method or (saved.method if saved else "bila"), ESTIMATORS)
    kind = ESTIMATORS[chosen] if saved is None else type(saved)
    has = ({} if saved is None else {"method": saved.method}) | (saved or kind()).get_params()
    for name, value in ({} if saved is None else {"method": chosen}) | given:
        ...
    return saved or kind(**given)
