"""`labelquorum judge`: the consensus of LLM judges, and how far their jury can be trusted."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from labelquorum.cli.aggregate import answers, encoding_of, write_file
from labelquorum.cli.options import (
    AsJson,
    LabelColumn,
    Labels,
    OnBadRow,
    Raw,
    TaskColumn,
    WorkerColumn,
    Workers,
    check_labels,
    columns_of,
    open_source,
    output_option,
    print_json,
    tell,
)
from labelquorum.errors import LabelError

if TYPE_CHECKING:
    from labelquorum.ingest.labels import LabelTable


Row = Mapping[str, Any]

ATTRIBUTES = ("model", "prompt", "order")
SPARE = (*ATTRIBUTES, "orders")  # columns that go where a table is wider than the terminal
SHOWN = 20  # judges in a table, half from either end, and judges with the largest order effects


def judge(
    labels: Labels,
    gold: Annotated[
        Path | None,
        typer.Option(
            "--gold",
            exists=True,
            dir_okay=False,
            metavar="FILE",
            help="True labels of some tasks, by people: CSV with the columns task and label.",
        ),
    ] = None,
    workers: Workers = None,
    on_bad: OnBadRow = "error",
    task_column: TaskColumn = None,
    worker_column: WorkerColumn = None,
    label_column: LabelColumn = None,
    output: Annotated[
        Path | None,
        output_option(
            "Where to write the consensus, .csv or .jsonl; it is not written unless given."
        ),
    ] = None,
    raw: Raw = False,
    as_json: AsJson = False,
) -> None:
    """Combine the votes of LLM judges, and report on their jury.

    Files have a row per vote: task, worker (the judge), label, and where known
    score, model, prompt and order (such as AB and BA; a judge that is asked in
    both orders is two workers). The report says for how many independent
    judges the jury counts, how often each judge is right, which judges err
    together, and what the order of the answers does.

    With --gold, errors are counted on true labels, and the consensus learns
    from them which judges to trust; 20 tasks drawn at random help most. Without,
    judges are compared with the consensus.

    In the consensus that is written with --gold, the column gold is 1 where the
    answer is a true label that was given, and 0 elsewhere.
    """
    from labelquorum.ingest.chunks import concatenate
    from labelquorum.ingest.labels import LabelSpace
    from labelquorum.ingest.readers import read_labels
    from labelquorum.ingest.worker_attributes import Attributes
    from labelquorum.ingest.writers import write_columns
    from labelquorum.learn.estimators import BiLA

    encoding = encoding_of(output, "--output")
    space = LabelSpace(on_bad=on_bad)
    columns = columns_of(task_column, worker_column, label_column)
    table = concatenate([read_labels(open_source(name), space, columns) for name in labels])
    truths = None if gold is None else _truths(gold, table)
    model = BiLA().fit(table, truths, workers=workers)
    found = model.jury()
    if workers is not None and not found.judges[list(Attributes._fields)].notna().any(axis=None):
        raise LabelError(
            f"{workers}: it tells nothing of the judges. Check that they have the same ids in both "
            f"files, and that it has one of the columns {', '.join(Attributes._fields)}."
        )
    if output is not None:
        consensus = answers(model)
        if truths is not None:
            consensus["gold"] = [int(task in truths) for task in consensus["task"]]
        target = io.BytesIO()
        n_tasks = write_columns(consensus, target, encoding, raw)
        write_file(output, target.getvalue())
    expected = model.expected_error()
    in_doubt = model.doubt().in_doubt
    report = {**found.to_dict(), "expected_error": asdict(expected), "in_doubt": in_doubt}
    if as_json:
        print_json(report)
    else:
        _print(report, str(expected))
    skipped = sum(model.tally_.skipped.values())
    if skipped:
        tell(f"Rows left out: {skipped:,}.")
    if output is not None:
        tell(f"Wrote the consensus on {n_tasks:,} tasks to {output}.")
    if report["reference"] != "gold":
        tell(_advice(report["gold_tasks"]))


def _truths(path: Path, table: "LabelTable") -> dict[Any, Any]:
    """True labels of the tasks judged, with the ids and classes that the votes have."""
    from labelquorum.evaluation.datasets.load import read_truth

    tasks = {str(task): task for task in table.item_ids}
    classes = {str(label): label for label in table.labels}
    known = read_truth(path)
    if not known:
        raise LabelError(f"{path} has no true label. Add rows of task and label.")
    found = {tasks[t]: classes.get(label, label) for t, label in known.items() if t in tasks}
    if not found:
        raise LabelError(
            f"{path}: none of its {len(known):,} tasks has a vote. Check that tasks have the same "
            "ids in both files."
        )
    if len(found) < len(known):
        tell(f"{path}: {len(known) - len(found):,} tasks have no vote, and were left out.")
    check_labels(path, found.values(), classes.values())
    return found


def _advice(n_gold: int) -> str:
    from labelquorum.learn.jury import MIN_GOLD_TASKS

    if n_gold >= MIN_GOLD_TASKS:
        return "Judges share too few gold tasks: give gold of tasks that most judges have labelled."
    more = f"{MIN_GOLD_TASKS - n_gold:,} more" if n_gold else f"{MIN_GOLD_TASKS}"
    return (
        f"{n_gold:,} gold labels: label {more} tasks by hand, drawn at random, and give them "
        "as --gold. They count real errors, show what all judges get wrong together, and "
        "teach the consensus which judges to trust."
    )


def _print(report: Row, expected: str) -> None:
    console = Console()
    console.print(Text(f"{report['text']} {expected}"))
    judges = sorted(report["judges"], key=lambda row: -(row["reliability"] or 0))
    more = max(len(judges) - SHOWN, 0)
    head = judges[: (len(judges) - more + 1) // 2]
    tail = judges[len(head) + more :]
    rows = [_judge_cells(row) for row in head]
    rows += [[f"… {more:,} more"]] if more else []
    rows += [_judge_cells(row) for row in tail]
    _table(console, "judge", ("right", "95 %", "by", "labels", *ATTRIBUTES), rows)
    if report["groups"]:
        rows = [
            [
                row["group"] if row["by"] == "model" else ", ".join(map(str, row["judges"])),
                f"{len(row['judges']):,}",
                _number(row["correlation"]),
                _between(row["low"], row["high"], _number),
                _number(row["effective"], 1),
                "yes" if (row["excess_low"] or 0) > 0 else "as the others",
            ]
            for row in report["groups"][:SHOWN]
        ]
        _table(console, "group", ("judges", "ρ", "95 %", "count as", "err together"), rows)
    if report["order_effects"]:
        rows = [
            [
                str(row["worker"]),
                f"{row['order']}, {row['other_order']}",
                f"{row['flips']:.0%}",
                _between(row["flips_low"], row["flips_high"], _share),
                "first shown" if row["first_shown"] else f"{row['label']} in {row['order']}",
                f"{row['shift']:+.0%}",
                _between(row["low"], row["high"], _share),
            ]
            for row in report["order_effects"][:SHOWN]
        ]
        heads = ("orders", "flips", "95 %", "prefers", "by", "95 %")
        _table(console, "judge", heads, rows)


def _judge_cells(row: Row) -> list[str]:
    return [
        str(row["worker"]),
        "–" if row["reliability"] is None else f"{row['reliability']:.1%}",
        _between(row["low"], row["high"], _share),
        row["by"],
        f"{row['labels']:,}",
        *(row[name] or "" for name in ATTRIBUTES),
    ]


def _table(console: Console, first: str, heads: Sequence[str], rows: Sequence[list[str]]) -> None:
    """Print a table without the columns that are empty in every row, or do not fit beside ids."""
    names = [first, *heads]
    cells = [row + [""] * (len(names) - len(row)) for row in rows]
    kept = [n for n in range(len(names)) if n == 0 or any(row[n] for row in cells)]
    wide = console.options.update(width=1000)
    while True:
        table = Table(box=SIMPLE_HEAD)
        for n in kept:
            numeric = n > 0 and names[n] not in SPARE
            justify: Any = "left" if n == 0 else "right"
            table.add_column(names[n], justify=justify, no_wrap=numeric, overflow="fold")
        for row in cells:
            shown = (row[n] for n in kept)
            table.add_row(*(Text(cell if cell.isprintable() else repr(cell)) for cell in shown))
        spare = [n for n in kept if names[n] in SPARE]
        if not spare or console.measure(table, options=wide).maximum <= console.width:
            break
        kept.remove(spare[-1])
    console.print(table)


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _share(value: float) -> str:
    return f"{value:.0%}"


def _between(low: float | None, high: float | None, write: Any) -> str:
    return "" if low is None or high is None else f"{write(low)} to {write(high)}"
