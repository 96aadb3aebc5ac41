"""`labelquorum aggregate`: files of labels in, one row per task out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from labelquorum.cli.options import (
    Abstain,
    Classes,
    Labels,
    Method,
    ModelFile,
    OnBadRow,
    OnRepeat,
    Preset,
    Seed,
    Summary,
    in_a_folder,
    label_space,
    open_model,
    open_source,
    tell,
)

if TYPE_CHECKING:
    from labelquorum.learn.estimator import Estimator

__all__ = ["COLUMNS", "Encoding", "aggregate", "answers", "encoding_of", "write_file"]

Encoding = Literal["csv", "jsonl"]
Row = Mapping[str, Any]

COLUMNS = ("task", "label", "confidence")
PROBABILITY = "prob_"  # before a class, so that no class can be taken for another column
DECIMALS = 6  # more than a 32-bit probability knows
ENCODINGS: Mapping[str, Encoding] = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}


def aggregate(
    labels: Labels,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            dir_okay=False,
            callback=in_a_folder,
            help="Where to write, .csv or .jsonl; standard output as CSV unless given.",
        ),
    ] = None,
    model: ModelFile = None,
    method: Method = None,
    preset: Preset = None,
    seed: Seed = None,
    classes: Classes = None,
    repeats: OnRepeat = None,
    on_bad: OnBadRow = "error",
    abstain: Abstain = None,
) -> None:
    """Find the consensus on every task of one or more files.

    Writes a row per task: task, label, confidence, and the probability of every
    class (prob_…). All files are learned from at once. With a --model that
    exists, learning goes on from there, and the tasks of these files are
    answered; what was learned is saved after the answers were written, so a
    run that was interrupted can be repeated.
    """
    from labelquorum.ingest.chunks import concatenate
    from labelquorum.ingest.readers import read_labels
    from labelquorum.ingest.writers import encode_rows

    encoding = _encoding(output, labels)
    estimator = open_model(
        model,
        method=method,
        preset=preset,
        classes=classes,
        repeats=repeats,
        abstain=abstain,
        seed=seed,
    )
    space = label_space(estimator, on_bad)
    table = concatenate([read_labels(open_source(name), space) for name in labels])
    if len(labels) > 1:
        table = table._replace(source=" + ".join(labels))
    with Console(stderr=True).status(f"Learning from {len(table.labels):,} labels…"):
        estimator.partial_fit(table)
    rows = answers(estimator)
    data = encode_rows(rows, rows[0] if rows else COLUMNS, encoding, raw=True)
    if output is None:
        typer.echo(data, nl=False)
    else:
        write_file(output, data)
    if model is not None:
        estimator.save(model)
    summary = Summary()
    summary.add(estimator)
    written = [f"Wrote {path}." for path in (output, model) if path is not None]
    tell(" ".join([summary.sentence(estimator), *written]))


def answers(model: "Estimator") -> list[Row]:
    """Give the last chunk's answers, a row per task, in order of appearance."""
    from labelquorum.ingest.writers import names_of

    labels, probas = model.labels_, model.probas_
    classes = probas.columns.tolist()
    columns = [PROBABILITY + name for name in names_of(classes)]
    position = {label: c for c, label in enumerate(classes)}
    probs = probas.to_numpy().astype(float).round(DECIMALS).tolist()
    return [
        {"task": task, "label": label, "confidence": row[position[label]]}
        | dict(zip(columns, row, strict=True))
        for task, label, row in zip(labels.index.tolist(), labels.tolist(), probs, strict=True)
    ]


def encoding_of(path: Path | None, option: str) -> Encoding:
    """Tell from its suffix how a file is to be written; standard output is CSV."""
    if path is None:
        return "csv"
    if path.suffix.lower() not in ENCODINGS:
        raise typer.BadParameter(
            f"The suffix says how to write, and must be one of {', '.join(ENCODINGS)}. "
            f"Got {path.name!r}.",
            param_hint=f"'{option}'",
        )
    return ENCODINGS[path.suffix.lower()]


def write_file(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    from labelquorum.ingest.writers import replacing

    with replacing(path) as beside:  # on disk before the model is saved, which says it was answered
        beside.write_bytes(data)


def _encoding(output: Path | None, labels: Sequence[str]) -> Encoding:
    encoding = encoding_of(output, "--output")
    if output is None:
        return encoding
    if output.exists() and any(name != "-" and _same(output, Path(name)) for name in labels):
        raise typer.BadParameter(
            f"{output} holds the labels, and they would be lost. Choose another file.",
            param_hint="'--output'",
        )
    return encoding


def _same(one: Path, other: Path) -> bool:
    return other.exists() and one.samefile(other)
