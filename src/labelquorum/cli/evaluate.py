"""`labelquorum evaluate`: which method is best on your own data, and on everybody's."""

import json
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, current_thread, main_thread
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from labelquorum.cli.options import AsJson, tell
from labelquorum.errors import LabelError

if TYPE_CHECKING:
    from labelquorum.evaluation.benchmark import Protocol, Row
    from labelquorum.evaluation.results import Results


SHORT_LIST = ("bila", "majority_vote", "dawid_skene", "one_coin", "glad")
"""What is run unless methods are named: those that people compare first, in minutes."""

CURVES = 6  # methods in a picture
FORMS = {
    "final_error": ".2f",
    "log_loss": ".3f",
    "calibration_error": ".1f",
    "batch_gap": "+.2f",
    "latency_p50_ms": ".1f",
}
WIDE = 130  # columns of a table that goes into a file


def evaluate(
    data: Annotated[
        list[str] | None,
        typer.Argument(
            help="Folders of data sets, single data sets (labels.csv and truth.csv), or names.",
            show_default="all of --data",
            metavar="DIR…",
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Names with commas; windowed: and refit: may stand before each. all is every "
            "method, and Crowd-Kit's: hours on large sets.",
            show_default=", ".join(SHORT_LIST),
        ),
    ] = None,
    chunk_items: Annotated[int, typer.Option(min=1, help="Items in a chunk.")] = 50,
    orders: Annotated[int, typer.Option(min=1, help="Random orders, each with its seed.")] = 10,
    order: Annotated[
        Literal["random", "file", "time"],
        typer.Option(help="Items at random, as in the file, or by their first timestamp."),
    ] = "random",
    arrival: Annotated[
        Literal["items", "labels"],
        typer.Option(help="Whole items, or single labels trickling in (chunks then count labels)."),
    ] = "items",
    warmup_items: Annotated[int, typer.Option(min=0, help="Items in a larger first chunk.")] = 0,
    min_truth: Annotated[
        int,
        typer.Option(
            min=1, help="Of a folder's sets, only those with truth on at least this many tasks."
        ),
    ] = 1,
    time_cap: Annotated[
        float,
        typer.Option(min=1, help="Seconds of processor time a method may spend on a data set."),
    ] = 150,
    peer_cap: Annotated[float, typer.Option(min=1, help="The same for Crowd-Kit's, if less.")] = 60,
    memory: Annotated[
        bool,
        typer.Option("--memory", help="Measure peak memory: a process for each, which is slower."),
    ] = False,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes.", show_default="one per core")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--data", help="Where named data sets are.", show_default="LABELQUORUM_DATA"),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            file_okay=False,
            help="Folder for results as JSON, a Markdown table and pictures. What is already "
            "there is not run again.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Stream data sets with known truth through methods, and score them.

    Items come whole, in chunks, in random orders. The emitted error counts
    the label given when an item's chunk arrived, the final error the label
    the last model gives; both in per cent of the items with truth. Methods
    that cannot stream are fitted once on everything and marked batch.
    """
    from labelquorum.evaluation.benchmark import (
        METHODS,
        Protocol,
        check_method,
        digest,
        evaluate_all,
    )
    from labelquorum.evaluation.datasets.load import read_dataset
    from labelquorum.evaluation.results import Results

    names = list(SHORT_LIST) if methods is None else [n.strip() for n in methods.split(",")]
    if names == ["all"]:
        names = list(METHODS)
    for name in names:
        check_method(name)
    protocol = Protocol(chunk_items, orders, order, arrival, warmup_items, time_cap, peer_cap)
    sets = _find(data or [], folder, min_truth)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)  # fails now rather than after the first result
    results = None if output is None else Results(output)

    digests = {path: digest(read_dataset(path.name, path.parent)) for path in sets if results}

    def done(path: Path, method: str) -> bool:
        return results is not None and results.has(path.name, method, protocol, digests[path])

    rows: list[Row] = []
    jobs = jobs or os.cpu_count() or 1
    work = evaluate_all(sets, names, protocol, jobs=jobs, memory=memory, done=done)
    try:
        with _progress() as advance, _stopping() as stopped:
            for row, finished, total in work:
                rows.append(row)
                if results is not None:
                    results.add(row)
                advance(f"{row['dataset']}: {row['method']}", finished, total)
                if stopped.is_set():
                    raise KeyboardInterrupt
    except KeyboardInterrupt:
        work.close()
        tell(
            f"Stopped after {len(rows)} results. "
            + (
                "They are shown; with --output DIR the same command could go on."
                if output is None
                else f"They are in {output}; the same command goes on from there."
            )
        )
        rows.sort(key=lambda row: (row["dataset"], names.index(row["method"])))
        _show(rows, as_json)
        raise
    if results is not None and output is not None:
        chosen = {path.name for path in sets}
        kept = results.rows(protocol)
        rows = [row for row in kept if row["dataset"] in chosen and row["method"] in names]
        _write(output, results, protocol)
    rows.sort(key=lambda row: (row["dataset"], names.index(row["method"])))
    _show(rows, as_json)


def _show(rows: "Sequence[Row]", as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"results": rows}))
    else:
        _print(rows)


def _find(data: Sequence[str], folder: Path | None, min_truth: int) -> list[Path]:
    """The folder of each data set that was asked for, the largest first."""
    from labelquorum.evaluation.datasets.load import (
        data_folder,
        is_dataset,
        list_datasets,
        read_dataset,
    )

    found: dict[Path, None] = {}
    for name in data or [str(data_folder(folder))]:
        path = Path(name)
        if not path.is_dir():
            found[read_dataset(name, folder).folder] = None
        elif is_dataset(path):
            found[path.resolve()] = None
        else:
            inside = list_datasets(path)
            if not inside:
                raise LabelError(
                    f"{path}: no data set is in this folder. A data set is a folder with "
                    "labels.csv and truth.csv."
                )
            sets = [read_dataset(one, path) for one in inside]
            for one in sets:
                scored = len(set(one.table.item_ids) & set(one.truth))
                if scored >= min_truth:
                    found[one.folder.resolve()] = None
    if not found:
        raise LabelError(f"No data set here has truth on {min_truth} items or more.")
    names = [path.name for path in found]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise LabelError(
            f"Results are kept by the name of the folder, and {', '.join(sorted(twice))} is there "
            "twice. Rename one of the folders, or run them one after the other."
        )
    sizes = {path: sum(file.stat().st_size for file in path.iterdir()) for path in found}
    return sorted(found, key=lambda path: -sizes[path])


@contextmanager
def _stopping() -> Iterator[Event]:
    """Remember Ctrl-C: where JAX collects garbage, the exception alone would be swallowed."""
    stopped = Event()

    def stop(*_: Any) -> None:
        stopped.set()
        raise KeyboardInterrupt

    if current_thread() is not main_thread():  # only the main thread gets signals
        yield stopped
        return
    before = signal.signal(signal.SIGINT, stop)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _progress() -> Iterator[Any]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    if not console.is_terminal:  # a bar would show nothing there
        yield lambda what, finished, total: tell(f"{finished} of {total}: {what}.")
        return
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("Starting…", total=None)
        yield lambda what, finished, total: progress.update(
            task, description=what, completed=finished, total=total
        )


def _print(rows: "Sequence[Row]") -> None:
    table = Table(box=SIMPLE_HEAD)
    for name in ("data set", "method", "kind"):
        table.add_column(name, no_wrap=True)
    for name in ("emitted %", "final %", "log loss", "ECE %", "gap", "p50 ms", "orders"):
        table.add_column(name, justify="right", no_wrap=True)
    scored = [row for row in rows if row.get("emitted_error") is not None]
    for row in scored:
        table.add_row(
            *(row[name] for name in ("dataset", "method", "kind")),
            _with_deviation(row),
            *(
                "–" if _says_nothing(row, name) else f"{row[name]:{form}}"
                for name, form in FORMS.items()
            ),
            str(row["orders"]),
        )
    console = Console(highlight=False)
    if not console.is_terminal:  # a file has no width to fit
        console = Console(highlight=False, width=WIDE)
    if scored:
        console.print(table)
    for row in rows:
        if "reason" in row:
            tell(f"{row['dataset']}, {row['method']}: {row['reason'].rstrip('.')}.")


def _with_deviation(row: "Row") -> str:
    error = f"{row['emitted_error']:.2f}"
    return f"{error} ± {row['emitted_error_sd']:.2f}" if row["orders"] > 1 else error


def _says_nothing(row: "Row", name: str) -> bool:
    """A batch method has no gap to itself, and its one fit is no chunk."""
    return row[name] is None or (row["kind"] == "batch" and name in ("batch_gap", "latency_p50_ms"))


def _write(output: Path, results: "Results", protocol: "Protocol") -> None:
    """Write the tables and the pictures of all rows of this protocol."""
    from labelquorum.evaluation.results import error_table, score_table

    rows = results.rows(protocol)
    methods = list(dict.fromkeys(row["method"] for row in rows))
    text = (
        f"# Errors in per cent, chunks of {protocol.chunk_items}\n\n"
        f"Means over the sets that all methods did; sets that overlap count as one.\n\n"
        f"{score_table(rows)}\n## Emitted error on each set\n\n{error_table(rows, methods)}"
    )
    (output / "table.md").write_text(text, encoding="utf-8")
    tell(f"Wrote {output / 'table.md'} and {len({row['dataset'] for row in rows})} JSON files.")
    try:
        drawn = _draw(output, rows)
    except ImportError:
        drawn = 0
    if drawn:
        tell(f"Drew {drawn} pictures of the error along the stream in {output}.")


def _draw(output: Path, rows: "Sequence[Row]") -> int:
    """Draw the best few methods along each stream."""
    from labelquorum.evaluation.plots import plot_error_along_stream

    drawn = 0
    for name in sorted({row["dataset"] for row in rows}):
        streams = [
            row
            for row in rows
            if row["dataset"] == name and row.get("curve") and row["kind"] != "batch"
        ]
        streams.sort(key=lambda row: row["emitted_error"])
        items = [int(point[0]) for point in streams[0]["curve"]] if streams else []
        curves = {
            row["method"]: [point[1] / 100 for point in row["curve"]]
            for row in streams
            if [int(point[0]) for point in row["curve"]] == items
        }
        best = dict(list(curves.items())[:CURVES])
        if len(items) > 1:
            title = f"{name}: error so far along the stream"
            plot_error_along_stream(output / f"{name}.png", best, items, title)
            drawn += 1
    return drawn
