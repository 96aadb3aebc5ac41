"""`labelquorum flags`, `explain`, `ask`, `stopping` and `score`: questions about answers.

All but `score` take a file of labels, a model's file, or a stream with its store.
"""

import csv
import json
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from labelquorum.cli.options import AsJson, print_json, store_option, tell
from labelquorum.errors import LabelError, printable

if TYPE_CHECKING:
    from labelquorum.learn.estimator import Estimator


ASKED = 20  # rows of a table for people
ID_WIDTH = 36  # as a UUID has; longer text is folded

TABLES = (".csv", ".jsonl", ".ndjson", ".parquet", ".gz", ".json")

Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        show_default=False,
        help="Labels with task, worker and label, the file of a saved model, or the name of a "
        "stream with --store.",
    ),
]
MaybeStore = Annotated[
    str | None,
    store_option("The store that keeps the stream: a folder, or the URL of a PostgreSQL database."),
]
Level = Annotated[float, typer.Option(help="How certain a flag must be.")]


def flags(
    source: Source, store: MaybeStore = None, level: Level = 0.95, as_json: AsJson = False
) -> None:
    """List suspicious workers, and why: spammers, one answer, reversed, drifting, colluding."""
    with asked_model(source, store) as model:
        found = model.flags(level)
    _print_table(found[["worker", "flag", "score", "says"]], as_json, "No worker is suspicious.")


def explain(
    source: Source,
    tasks: Annotated[
        list[str], typer.Argument(metavar="TASK…", show_default=False, help="Open tasks.")
    ],
    store: MaybeStore = None,
    as_json: AsJson = False,
) -> None:
    """Say why open tasks have their answers, and what would change them."""
    with asked_model(source, store) as model:
        learned = model.model_.fitted()
        by_text = {str(task): task for task in learned.open_items}
        found = [model.explain(by_text.get(task, task)) for task in tasks]
    if as_json:
        names = ("task", "label", "confidence", "runner_up")
        print_json(
            [
                {name: getattr(one, name) for name in names}
                | {"sentence": str(one), "workers": _records(one.workers.reset_index())}
                for one in found
            ]
        )
        return
    for one in found:
        typer.echo(printable(str(one)))


def ask(
    source: Source,
    store: MaybeStore = None,
    workers: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,…", show_default="anybody", help="Who may be asked, for pairs with a task."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of rows.")] = ASKED,
    as_json: AsJson = False,
) -> None:
    """List the open tasks where one more label would help most, and whom to ask.

    Where it is in doubt which answers are right, because workers err
    together, the tasks whose true label decides it come first.
    """
    from labelquorum.learn.reports import CHOSEN_GOLD

    with asked_model(source, store) as model:
        known = {str(worker): worker for worker in model.workers_.tolist()}
        names = None if workers is None else [name.strip() for name in workers.split(",")]
        chosen = None if names is None else [known.get(name, name) for name in names]
        found = model.expected_gain(workers=chosen).reset_index()
        doubt = model.doubt()
        if doubt.in_doubt:
            tell(f"{doubt.says} {CHOSEN_GOLD}")
            decides = found["task"].isin(model.deciding_tasks().index)
            found = found.assign(decides=decides).sort_values(
                "decides", ascending=False, kind="stable"
            )
    _print_table(found.head(limit), as_json, "No task is open.")


def stopping(source: Source, store: MaybeStore = None, as_json: AsJson = False) -> None:
    """Show what closing open tasks at a confidence would have saved and cost."""
    with asked_model(source, store) as model:
        found = model.stopping()
    _print_table(found, as_json, "No task is open.")


def score(
    answers: Annotated[
        Path,
        typer.Argument(
            exists=True,
            dir_okay=False,
            metavar="ANSWERS",
            show_default=False,
            help="What aggregate or export wrote: .csv, .jsonl or .parquet.",
        ),
    ],
    truth: Annotated[
        Path,
        typer.Argument(
            exists=True,
            dir_okay=False,
            metavar="TRUTH",
            show_default=False,
            help="CSV with the columns task and label.",
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Compare answers with true labels: how many are wrong, and how far confidence can be trusted.

    The calibration error is the mean gap between confidence and the share
    of right answers. Ids and labels are compared as text. Answers that judge
    marks as gold are left out: they are the truth that was given.
    """
    import numpy as np

    from labelquorum.evaluation.datasets.load import read_truth
    from labelquorum.evaluation.metrics import by_confidence
    from labelquorum.learn.analysis.intervals import wilson

    known = read_truth(truth)
    rows = [
        (known.get(str(task)), str(label), sure)
        for task, label, sure, is_gold in read_answers(answers)
        if not is_gold
    ]
    scored = [(label == true, sure) for true, label, sure in rows if true is not None]
    if not scored:
        raise LabelError(
            f"{truth}: none of its {len(known):,} tasks is in {answers}, or all are gold there. "
            "Check that tasks have the same ids in both."
        )
    right = np.array([one for one, _ in scored])
    low, high = wilson(float(1 - right.mean()), len(right))
    counts = by_confidence(np.array([sure for _, sure in scored]), right)
    found = {
        "tasks": len(rows),
        "with_truth": len(scored),
        "wrong": int((~right).sum()),
        "error": round(float(1 - right.mean()), 6),
        "error_low": round(float(low), 6),
        "error_high": round(float(high), 6),
        "calibration_error": round(float(abs(counts[:, 1] - counts[:, 2]).sum()) / len(right), 6),
    }
    if as_json:
        print_json(found)
        return
    typer.echo(
        f"Tasks: {found['tasks']:,}, with truth: {found['with_truth']:,}. "
        f"Wrong: {found['wrong']:,} ({found['error']:.1%}, 95 % bounds {low:.1%}–{high:.1%}). "
        f"Calibration error: {found['calibration_error']:.1%}."
    )


@contextmanager
def asked_model(source: str, store: str | None) -> Iterator["Estimator"]:
    """The model of a stream or a file; a file of labels is fitted first."""
    if store is None and source.lower().endswith(TABLES):
        from labelquorum.learn.estimators import BiLA

        yield BiLA().fit(source)
        return
    from labelquorum.report import opened

    with opened(source, store) as gallery:
        yield gallery.model


def read_answers(path: Path) -> Iterable[tuple[Hashable, Hashable, float, bool]]:
    """Task, label, confidence of each row, and whether it is gold that was learned from.

    An apostrophe before a formula is taken off.
    """
    from labelquorum.ingest.writers import harmless

    def plain(cell: Any) -> Any:
        safe = isinstance(cell, str) and cell.startswith("'") and harmless(cell[1:]) == cell
        return cell[1:] if safe else cell

    for number, row in enumerate(answer_rows(path), 1):
        absent = [name for name in ("task", "label", "confidence") if row.get(name) is None]
        if absent:
            raise LabelError(
                f"{path} row {number}: answers have the columns task, label and confidence. It "
                f"lacks {absent}. Give a file that aggregate or export wrote."
            )
        is_gold = str(row.get("gold", 0)) in ("1", "true", "True")
        yield plain(row["task"]), plain(row["label"]), float(row["confidence"]), is_gold


def answer_rows(path: Path) -> Iterable[dict[str, Any]]:
    """The rows of a file of answers, by column."""
    kind = path.suffix.lower()
    if kind == ".parquet":
        from labelquorum.ingest.frames import require_pyarrow

        yield from require_pyarrow("pyarrow.parquet").read_table(path).to_pylist()
    elif kind in (".csv", ".jsonl", ".ndjson"):
        with path.open(encoding="utf-8-sig", newline="") as lines:
            yield from csv.DictReader(lines) if kind == ".csv" else map(json.loads, lines)
    else:
        raise typer.BadParameter(
            f"The suffix must be .csv, .jsonl or .parquet. Got {path.name!r}.",
            param_hint="'ANSWERS'",
        )


def _print_table(found: Any, as_json: bool, nothing: str) -> None:
    rows = _records(found)
    if as_json:
        print_json(rows)
        return
    if not rows:
        typer.echo(nothing)
        return
    table = Table(box=SIMPLE_HEAD)
    names = [name for name in found.columns if any(row[name] is not None for row in rows)]
    for name in names:
        number = all(isinstance(row[name], int | float) for row in rows)
        head = str(name).replace("_", " ")
        longest = max(len(_cell(row[name])) for row in rows)
        table.add_column(
            head,
            justify="right" if number else "left",
            min_width=max(map(len, head.split())),
            no_wrap=longest <= ID_WIDTH and not number,  # an id that is cut names nothing
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(Text(_cell(row[name])) for name in names))
    Console().print(table)


def _records(table: Any) -> Sequence[dict[str, Any]]:
    """Rows as JSON knows them; NaN is none."""
    columns = {str(name): table[name].tolist() for name in table.columns}
    rows = zip(*columns.values(), strict=True)
    return [
        {
            name: None if isinstance(value, float) and not isfinite(value) else value
            for name, value in zip(columns, row, strict=True)
        }
        for row in rows
    ]


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return text if text.isprintable() else repr(text)
