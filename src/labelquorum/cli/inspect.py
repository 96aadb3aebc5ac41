"""`labelquorum workers`, `doctor`, `plot` and `report`: tables, JSON, pictures and a page."""

from collections.abc import Hashable, Mapping, Sequence
from itertools import chain
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from labelquorum.cli.options import (
    Abstain,
    AsJson,
    Classes,
    LabelColumn,
    MaybeLabels,
    TaskColumn,
    WorkerColumn,
    columns_of,
    open_source,
    output_option,
    parse_abstain,
    parse_classes,
    print_json,
    store_option,
    tell,
)
from labelquorum.cli.questions import MaybeStore, Source
from labelquorum.errors import StateError
from labelquorum.ingest.labels import LabelSpace

if TYPE_CHECKING:
    from labelquorum.ingest.lint import Finding
    from labelquorum.learn.estimator import Estimator
    from labelquorum.report import Gallery


Row = Mapping[str, Any]

Picture = Literal["stream", "workers", "confusion", "calibration"]
SHOWN = 20  # workers in a table
DRAWN = {"workers": 30, "confusion": 12}  # workers in a picture
BROKEN = "broken"  # what `store.check` calls a fault of the store itself
STYLES = {"ok": "green", "note": "cyan", "warning": "yellow"}


def workers(
    model: Annotated[Path, typer.Argument(help="A saved model.", show_default=False)],
    sort: Annotated[
        Literal["skill", "labels"],
        typer.Option(help="By skill, the worst first, or by labels, the most first."),
    ] = "skill",
    limit: Annotated[
        int | None,
        typer.Option(
            min=0,
            show_default=f"{SHOWN}, or all as JSON",
            help="Maximum number of workers, half from either end; 0 for all.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the worst and the best workers of a saved model.

    Skill is the probability that a worker is right, as estimated, with its
    95 % interval where the method has one (skill_low, skill_high); agreement,
    how often their label was the consensus; worst class, the true class of
    most of their errors.
    """
    from labelquorum.learn.estimators import load

    estimator = load(model)
    table = estimator.report().workers
    rows = [
        {
            "worker": worker,
            "skill": _number(row["annotator_quality"]),
            "labels": int(row["num_examples_labeled"]),
            "agreement": _number(row["agreement_with_consensus"]),
            "worst_class": row["worst_class"],
        }
        for worker, row in zip(table.index.tolist(), table.to_dict("records"), strict=True)
    ]
    rows.sort(key=lambda row: row["skill"] if sort == "skill" else -row["labels"])
    if limit is None:
        limit = 0 if as_json else SHOWN
    more = max(0, len(rows) - limit) if limit else 0
    head = rows[: (len(rows) - more + 1) // 2]
    tail = rows[len(head) + more :]
    bounds = _bounds(estimator, [row["worker"] for row in head + tail])
    head, tail = ([row | bounds.get(row["worker"], {}) for row in part] for part in (head, tail))
    if as_json:
        print_json(head + tail)
    else:
        _print_workers(head, tail, more)


def doctor(
    labels: MaybeLabels = None,
    store: Annotated[
        str | None,
        store_option("Examine a store instead: a folder, or the URL of a PostgreSQL database."),
    ] = None,
    as_json: AsJson = False,
    classes: Classes = None,
    abstain: Abstain = None,
    task_column: TaskColumn = None,
    worker_column: WorkerColumn = None,
    label_column: LabelColumn = None,
) -> None:
    """Say what is odd in files of labels, or in a store, a sentence each.

    Duplicates, missing labels, tasks with one label, workers who share no
    task with others, who always give one answer, ids that look alike, and
    more. Several files are taken as one input. Odd is not wrong: the exit
    code is 0 if the files can be read.

    Of a store: whether its file is sound and its rules are kept, the version
    of SQLite, who writes to it, free space, and what of each stream waits, is
    stuck or quarantined. The exit code is 1 if the store itself is broken.
    """
    if (store is None) == (not labels):
        raise typer.BadParameter("Name files of labels, or a store with --store.")
    columns = columns_of(task_column, worker_column, label_column)
    findings = (
        _examine_files(labels or [], classes, abstain, columns)
        if store is None
        else _examine(store)
    )
    if as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        console = Console(soft_wrap=True, highlight=False)
        for finding in findings:
            mark = Text(f"{finding.severity:8}", STYLES[finding.severity])
            console.print(mark + Text(finding.sentence))
    if store is not None and any(finding.name == BROKEN for finding in findings):
        raise typer.Exit(1)


def plot(
    kind: Annotated[Picture, typer.Argument(show_default=False, help="What to draw.")],
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            show_default=False,
            help="The name of a stream, with --store, or the file of a saved model.",
        ),
    ],
    output: Annotated[
        Path,
        output_option("Where to write: .png, .svg or .pdf.", show_default=False),
    ],
    store: Annotated[
        str | None,
        store_option(
            "The store that keeps the stream: a folder, or the URL of a PostgreSQL database."
        ),
    ] = None,
    truth: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            show_default=False,
            help="CSV with the columns task and label; calibration needs it.",
        ),
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,…",
            show_default="the worst and the best",
            help="Whom to draw, for workers and confusion.",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            show_default="30, of confusion 12",
            help="Maximum number of workers, half from either end.",
        ),
    ] = None,
    title: Annotated[str | None, typer.Option(show_default=False, help="Another title.")] = None,
) -> None:
    """Draw a stream or a model, for papers and slides.

    stream: tasks decided, confidence and classes along time (only of a
    stream). workers: how often each is right, and between which bounds that
    is known. confusion: what workers say, given the truth. calibration: how
    often answers of each confidence are right, for a --truth; tasks whose
    truth was sent are left out, and of a model file only open tasks are
    known. A store can be read while a service runs.
    """
    from labelquorum.evaluation.datasets.load import read_truth
    from labelquorum.report import opened

    if (kind == "calibration") != (truth is not None):
        raise typer.BadParameter(
            "Calibration is drawn for truths, and nothing else is. Name their file with --truth."
            if truth is None
            else f"A picture of {kind} takes no truths. Leave it out.",
            param_hint="'--truth'",
        )
    with opened(source, store) as gallery:
        if kind == "stream":
            gallery.draw_stream(output, title)
        elif kind == "calibration":
            assert truth is not None
            gallery.draw_calibration(output, read_truth(truth), title)
        else:
            chosen = _chosen(gallery, workers, limit or DRAWN[kind])
            draw = gallery.draw_workers if kind == "workers" else gallery.draw_confusion
            draw(output, chosen, title)
    tell(f"Wrote {output}.")


def report(
    source: Source,
    store: MaybeStore = None,
    output: Annotated[
        Path,
        output_option("Where to write the page."),
    ] = Path("report.html"),
) -> None:
    """Write a page about a stream or a model that can be sent by mail and read anywhere.

    One HTML file with its pictures inside: what was decided and how surely,
    the classes, the workers, the tasks that are least sure, and how often
    answers were right where the truth was sent later. A model's file knows
    only its workers and open tasks. The page loads nothing and runs no script.
    It names workers and tasks: think of who reads it.
    """
    from labelquorum.ingest.writers import replacing
    from labelquorum.report import opened, report_page

    with opened(source, store) as gallery:
        page = report_page(gallery)
    with replacing(output) as beside:
        beside.write_text(page, encoding="utf-8")
    tell(f"Wrote {output}, {len(page.encode()) / 1e6:,.1f} MB.")


def _examine_files(
    labels: Sequence[str],
    classes: str | None,
    abstain: str | None,
    columns: dict[str, str] | None,
) -> list["Finding"]:
    from labelquorum.ingest.lint import examine
    from labelquorum.ingest.readers import iter_labels

    known = parse_classes(classes)
    fixed = None if known is None else tuple(known)
    space = LabelSpace(fixed, on_bad="skip", abstain=parse_abstain(abstain))
    tables = (iter_labels(open_source(name), space, columns=columns) for name in labels)
    return examine(chain.from_iterable(tables))


def _examine(store: str) -> list["Finding"]:
    from labelquorum.store.check import examine_store

    return examine_store(store)


def _bounds(estimator: "Estimator", workers: Sequence[Hashable]) -> dict[Hashable, dict[str, Any]]:
    """Between what the skills of these workers lie; nothing of a method that does not tell."""
    try:
        table = estimator.skill_intervals(workers=workers)
    except StateError:
        return {}
    ends = zip(workers, table["low"].tolist(), table["high"].tolist(), strict=True)
    return {
        worker: {"skill_low": _number(low), "skill_high": _number(high)}
        for worker, low, high in ends
    }


def _print_workers(head: Sequence[Row], tail: Sequence[Row], more: int) -> None:
    table = Table("worker", box=SIMPLE_HEAD)
    bounded = any("skill_low" in row for row in head)
    for name in ("skill", *(["95 %"] if bounded else []), "labels", "agreement"):
        table.add_column(name, justify="right")
    table.add_column("worst class")
    for row in head:
        table.add_row(*_cells(row))
    if more:
        table.add_row(f"… {more:,} more", style="dim")
    for row in tail:
        table.add_row(*_cells(row))
    Console().print(table)


def _cells(row: Row) -> list[Text]:
    agreement = "" if row["agreement"] is None else f"{row['agreement']:.1%}"
    numbers = [f"{row['skill']:.1%}", f"{row['labels']:,}", agreement]
    if "skill_low" in row:
        numbers.insert(1, f"{row['skill_low']:.0%}–{row['skill_high']:.0%}")
    return [Text(cell) for cell in (_plain(row["worker"]), *numbers, _plain(row["worst_class"]))]


def _plain(identity: Hashable) -> str:
    """Write an id for a terminal, without what would move its cursor."""
    text = str(identity)
    return text if text.isprintable() else repr(text)


def _number(value: float) -> float | None:
    """A number as JSON knows it; NaN is none."""
    return None if isnan(value) else round(float(value), 6)


def _chosen(gallery: "Gallery", workers: str | None, limit: int) -> list[object]:
    """Those named, as the ids they have, or some of either end of the skills."""
    if workers is None:
        return list(gallery.busiest_ends(limit))
    by_text = {str(worker): worker for worker in gallery.model.workers_.tolist()}
    return [by_text.get(name.strip(), name.strip()) for name in workers.split(",")]
