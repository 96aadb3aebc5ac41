"""`labelquorum streams`, `backup`, `restore`, `export`, `refine`, `forget`: what a store holds."""

import json
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from labelquorum.cli.options import AsJson, Raw, output_option, print_json, store_option, tell
from labelquorum.errors import printable

if TYPE_CHECKING:
    from labelquorum.store.refit import RefitReport


Format = Literal["csv", "jsonl", "parquet"]
What = Literal["answers", "workers", "chunks", "labels"]

WHERE = "A folder, or the URL of a PostgreSQL database."
SUFFIXES: dict[str, Format] = {
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}

StoreOption = Annotated[str, store_option(WHERE)]
StoreName = Annotated[str, typer.Argument(metavar="STORE", show_default=False, help=WHERE)]
StreamName = Annotated[
    str, typer.Argument(metavar="STREAM", show_default=False, help="The name of a stream.")
]


def streams(store: StoreName, as_json: AsJson = False) -> None:
    """List the streams of a store, with what waits and what is answered.

    It reads beside a running service, and changes nothing.
    """
    from labelquorum.store.store import Store

    with Store.look(store) as opened:
        rows = [
            {"stream": name, "method": one.configuration.method, **one.count()}
            for name, one in ((name, opened.stream(name)) for name in opened.streams())
        ]
    if as_json:
        print_json(rows)
        return
    names = ("answered_items", "waiting_items", "waiting_labels", "held_labels", "late_labels")
    table = Table("stream", box=SIMPLE_HEAD)
    for name in names:
        table.add_column(name.replace("_", " ").replace("items", "tasks"), justify="right")
    for row in rows:
        table.add_row(Text(str(row["stream"])), *(f"{row[name]:,}" for name in names))
    Console().print(table)


def backup(
    store: StoreName,
    output: Annotated[
        Path,
        output_option(
            "The one file to write; what was there before is replaced.", show_default=False
        ),
    ],
) -> None:
    """Copy a whole store to one file, also while a service writes to it.

    The copy is one committed state, checked page by page, and takes the place
    of an older file only when it is whole and on the disk. It is a SQLite file
    whatever the store is. It holds all that the store holds, raw labels and
    people's ids among it: keep it as safe.
    """
    from labelquorum.store import backup as backups

    backups.backup(store, output)
    tell(f"Wrote {output}, {output.stat().st_size / 1e6:,.1f} MB.")


def restore(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", show_default=False, help="What backup wrote.")
    ],
    store: StoreName,
) -> None:
    """Make a store from a backup, in an empty folder or an empty database.

    Either kind of store can be made from either. What is not empty is left as
    it is, and an error says so.
    """
    from labelquorum.store import backup as backups
    from labelquorum.store.store import Store

    backups.restore(file, store)
    with Store.look(store) as opened:
        tell(f"Streams restored: {len(opened.streams()):,}. They are in {opened.where}.")


def export(
    name: StreamName,
    store: StoreOption,
    output: Annotated[
        Path | None,
        output_option(
            "Where to write, .csv, .jsonl or .parquet; standard output as CSV unless given."
        ),
    ] = None,
    encoding: Annotated[
        Format | None,
        typer.Option("--format", show_default="by the suffix", help="How to write."),
    ] = None,
    what: Annotated[
        What,
        typer.Option(help="Answers, what is known of workers, chunks, or labels still held."),
    ] = "answers",
    raw: Raw = False,
) -> None:
    """Write what a stream holds as CSV, JSON lines or Parquet.

    Answers have the columns task, label, confidence, labels (how many), chunk,
    and except in CSV the probability of every class (prob_…). It reads one
    state beside a running service, row by row, so it may be larger than memory.

    Ids come from strangers, and a spreadsheet runs a cell that starts with = +
    - or @. In CSV such text gets an apostrophe before it; numbers stay as they
    are. Use --raw when a program reads the file.
    """
    from labelquorum.ingest.writers import replacing, write_rows
    from labelquorum.store.export import exported
    from labelquorum.store.store import Store

    chosen = encoding or _format_of(output, " Or give --format.")
    if chosen == "parquet" and output is None:
        raise typer.BadParameter("Parquet goes to a file. Name it.", param_hint="'--output'")

    with Store.look(store) as opened:
        stream = opened.stream(name)

        def write(target: IO[bytes]) -> int:
            wide, typed = chosen != "csv", chosen == "parquet"
            with exported(stream, what, probabilities=wide, typed=typed) as found:
                return write_rows(found.rows, found.columns, target, chosen, raw)

        if output is None:
            n_rows = write(sys.stdout.buffer)
            sys.stdout.flush()
        else:
            with replacing(output) as beside, beside.open("wb") as file:
                n_rows = write(file)
    tell(f"Rows: {n_rows:,}." + (f" Wrote {output}." if output else ""))


def refine(
    name: StreamName,
    store: StoreOption,
    output: Annotated[
        Path | None,
        output_option("Where to write the tasks that differ, .csv, .jsonl or .parquet."),
    ] = None,
    raw: Raw = False,
    as_json: AsJson = False,
) -> None:
    """Fit all kept labels again at once, and compare with what was answered.

    An answer was given with what was known when its chunk came; all labels
    together know more. This tells how many answers would differ, and which.
    Nothing is changed. Labels must be kept for it (--retention keep).
    """
    from labelquorum.ingest.writers import replacing, write_rows
    from labelquorum.store.refit import ChangedAnswer, refit
    from labelquorum.store.store import Store

    chosen = _format_of(output)
    with Store.look(store) as opened, Console(stderr=True).status("Fitting all labels…"):
        found = refit(opened.stream(name))
    rows = [one._asdict() for one in found.differ]
    if output is not None:
        columns = {n: {type(row[n]) for row in rows} or {str} for n in ChangedAnswer._fields}
        with replacing(output) as beside, beside.open("wb") as file:
            write_rows(rows, columns, file, chosen, raw)
    if as_json:
        print_json({**found._asdict(), "differ": rows, "by_class": found.by_class()})
    else:
        _print_refined(found)
    if found.discarded:
        tell(
            f"Labels of {found.discarded:,} chunks were discarded, so {found.compared:,} of "
            f"{found.answered:,} answers could be compared."
        )
    elif found.compared < found.answered:
        tell(
            f"{found.compared:,} of {found.answered:,} answers could be compared: of the others "
            "not all labels are kept, for a worker was forgotten."
        )
    if output is not None:
        tell(f"Wrote {output}.")


def _print_refined(found: "RefitReport") -> None:
    n_differ, compared = len(found.differ), found.compared
    share = f" ({n_differ / compared:.1%})" if compared else ""
    typer.echo(f"Answers compared: {compared:,}. Answers that differ: {n_differ:,}{share}.")
    if not n_differ:
        return
    before = sum(one.confidence for one in found.differ) / n_differ
    after = sum(one.refit_confidence for one in found.differ) / n_differ
    typer.echo(f"Their mean confidence: {before:.1%} as answered, {after:.1%} refitted.")
    table = Table("answered", "refitted", box=SIMPLE_HEAD)
    table.add_column("tasks", justify="right")
    for label, refitted, count in found.by_class():
        names = (Text(printable(str(one))) for one in (label, refitted))
        table.add_row(*names, f"{count:,}")
    Console().print(table)


def forget(
    worker: Annotated[
        str, typer.Argument(metavar="WORKER", show_default=False, help="The worker's id.")
    ],
    name: Annotated[
        str,
        typer.Option("--stream", metavar="STREAM", show_default=False, help="Name of a stream."),
    ],
    store: StoreOption,
) -> None:
    """Erase a worker from a stream, as data protection law may demand.

    Their row, their labels that wait or are kept, their part in open tasks,
    and their id are erased. Chunks that were cut are applied first. What they
    contributed to shared counts and to answers stays: it identifies nobody.
    Earlier backups still hold them; make new ones and delete the old.
    """
    from labelquorum.store.store import Store

    with Store.open(store) as opened:
        n_labels = _forget(opened.stream(name), worker)
        opened.compact()
    tell(f"Worker {worker!r} is forgotten. Labels that were deleted: {n_labels:,}.")


def delete(
    name: StreamName,
    store: StoreOption,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")] = False,
) -> None:
    """Delete a stream with all it holds, for good.

    Labels, answers, the model, workers' ids and the keys for this stream alone
    are deleted in one transaction. Earlier backups still hold them.
    """
    from labelquorum.store.store import Store

    with Store.open(store) as opened:
        count = opened.stream(name).count()
        if not yes:
            typer.confirm(
                f"Stream {name!r} has {count['answered_items']:,} answers and "
                f"{count['held_labels']:,} labels. Delete it?",
                abort=True,
                err=True,
            )
        n_labels = opened.delete(name)
        opened.compact()
    tell(f"Stream {name!r} is deleted, with {n_labels:,} labels.")


def rename(
    name: StreamName,
    new: Annotated[str, typer.Argument(metavar="NEW", show_default=False, help="The new name.")],
    store: StoreOption,
) -> None:
    """Give a stream another name.

    What it holds, and keys that are for it alone, stay as they are.
    """
    from labelquorum.store.store import Store

    with Store.open(store) as opened:
        opened.rename(name, new)
    tell(f"Stream {name!r} is now {new!r}.")


def _forget(stream: Any, worker: str) -> int:
    """Forget who has this id: as text or, if nobody has, as the number it reads as."""
    from labelquorum.errors import LabelError

    try:
        return int(stream.forget(worker))
    except LabelError:
        try:
            number = json.loads(worker)
        except ValueError:
            number = None
        if not isinstance(number, int | float):
            raise
        return int(stream.forget(number))


def _format_of(output: Path | None, remedy: str = "") -> Format:
    """Tell from its suffix how a file is to be written; standard output is CSV."""
    if output is None:
        return "csv"
    if output.suffix.lower() not in SUFFIXES:
        raise typer.BadParameter(
            f"The suffix says how to write, and must be one of {', '.join(SUFFIXES)}. "
            f"Got {output.name!r}.{remedy}",
            param_hint="'--output'",
        )
    return SUFFIXES[output.suffix.lower()]
