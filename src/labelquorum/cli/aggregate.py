"""`labelquorum aggregate` and `labelquorum stream`: labels in, one row per task out.

`aggregate` takes files, all at once. `stream` takes standard input as it arrives, chunk by chunk:
for every chunk learn, write the answers, save the model, in this order. A crash between the last
two leaves the model as it was before the chunk, so the chunk, sent again, is learned from once and
gets the same answers: an answer may be written twice, none is lost, and no label counts twice.
"""

import io
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from hashlib import file_digest, sha256
from pathlib import Path
from select import select
from socket import socketpair
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal, Self

import typer
from rich.console import Console

from labelquorum.cli.options import (
    MODEL,
    Abstain,
    Classes,
    LabelColumn,
    Labels,
    Method,
    ModelFile,
    OnBadRow,
    OnRepeat,
    OpenItems,
    Preset,
    Raw,
    Seed,
    Summary,
    TaskColumn,
    WarmupItems,
    WorkerColumn,
    Workers,
    columns_of,
    label_space,
    open_model,
    open_source,
    output_option,
    tell,
)
from labelquorum.errors import LabelQuorumError, StateError

if TYPE_CHECKING:
    from labelquorum.ingest.labels import LabelTable
    from labelquorum.ingest.writers import Written
    from labelquorum.learn.estimator import Estimator


Encoding = Literal["csv", "jsonl"]

COLUMNS = ("task", "label", "confidence")
PROBABILITY = "prob_"  # before a class, so that no class can be taken for another column
DECIMALS = 6  # more than a 32-bit probability knows
ENCODINGS: Mapping[str, Encoding] = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
READ_BYTES = 1 << 16  # maximum per read


def aggregate(
    labels: Labels,
    output: Annotated[
        Path | None,
        output_option(
            "Where to write, .csv, .jsonl or .parquet; standard output as CSV unless given."
        ),
    ] = None,
    raw: Raw = False,
    model: ModelFile = None,
    again: Annotated[
        bool,
        typer.Option(
            "--again",
            rich_help_panel=MODEL,
            help="Learn from files that the model has learned from before: they count again.",
        ),
    ] = False,
    method: Method = None,
    preset: Preset = None,
    seed: Seed = None,
    open_items: OpenItems = None,
    classes: Classes = None,
    repeats: OnRepeat = None,
    on_bad: OnBadRow = "error",
    abstain: Abstain = None,
    task_column: TaskColumn = None,
    worker_column: WorkerColumn = None,
    label_column: LabelColumn = None,
    workers: Workers = None,
) -> None:
    """Find the consensus on every task of one or more files.

    Writes a row per task: task, label, confidence, and the probability of every
    class (prob_…). All files are learned from at once. With a --model that
    exists, learning goes on from there, and the tasks of these files are
    answered; what was learned is saved after the answers were written, so a
    run that was interrupted can be repeated. The model knows a file that it
    has learned from by its SHA-256, and refuses it: its labels would count
    twice.

    Ids come from strangers, and a spreadsheet runs a cell that starts with = +
    - or @. In CSV such text gets an apostrophe before it; numbers stay as they
    are. Use --raw when a program reads the file.
    """
    from labelquorum.ingest.chunks import concatenate
    from labelquorum.ingest.readers import read_labels
    from labelquorum.ingest.writers import write_columns

    encoding = _encoding(output, labels)
    estimator = open_model(
        model,
        method=method,
        preset=preset,
        classes=classes,
        repeats=repeats,
        abstain=abstain,
        seed=seed,
        open_items=open_items,
    )
    space = label_space(estimator, on_bad)
    sources = {name: _reopened(name) for name in labels}
    digests = {name: _digest(source) for name, source in sources.items()}
    known = [name for name in digests if digests[name] in estimator.model_.sources]
    if known and not again:
        raise StateError(
            f"{model} has learned from {', '.join(known)} before, and those labels would count "
            "twice. Leave the file out, or add --again to insist."
        )
    columns = columns_of(task_column, worker_column, label_column)
    with Console(stderr=True).status("Reading labels…") as status:
        table = concatenate([read_labels(sources[name], space, columns) for name in labels])
        if len(labels) > 1:
            table = table._replace(source=" + ".join(labels))
        status.update(f"Learning from {len(table.labels):,} labels…")
        estimator.partial_fit(table, workers=workers)
        status.update("Writing answers…")
        target = io.BytesIO()
        n_tasks = write_columns(answers(estimator), target, encoding, raw)
    if output is None:
        typer.echo(target.getvalue(), nl=False)
    else:
        write_file(output, target.getvalue())
    if model is not None:
        new = [digest for name, digest in digests.items() if digest and name not in known]
        estimator.model_.sources.extend(dict.fromkeys(new))
        estimator.save(model)
    summary = Summary()
    summary.add(estimator)
    written = [f"Wrote {path}." for path in (output, model) if path is not None]
    kept = len(estimator.model_.learned.open_items)
    if model is not None and kept < n_tasks:
        written.append(
            f"It keeps the last {kept:,} of these {n_tasks:,} tasks open, and tells about those "
            f"alone; a new model with --open-items {n_tasks} keeps them all."
        )
    tell(" ".join([summary.sentence(estimator), *written]))


def stream(
    chunk_items: Annotated[
        int, typer.Option("--chunk-items", min=1, help="Tasks that are answered together.")
    ] = 50,
    encoding_in: Annotated[
        Encoding | None,
        typer.Option(
            "--format", show_default="by the first line", help="How standard input is written."
        ),
    ] = None,
    encoding_out: Annotated[
        Encoding,
        typer.Option("--format-out", help="How to write; CSV leaves out the probabilities."),
    ] = "jsonl",
    raw: Raw = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Do not report every chunk on standard error.")
    ] = False,
    model: ModelFile = None,
    method: Method = None,
    preset: Preset = None,
    seed: Seed = None,
    open_items: OpenItems = None,
    warmup_items: WarmupItems = None,
    classes: Classes = None,
    repeats: OnRepeat = None,
    on_bad: OnBadRow = "error",
    abstain: Abstain = None,
    task_column: TaskColumn = None,
    worker_column: WorkerColumn = None,
    label_column: LabelColumn = None,
    workers: Workers = None,
) -> None:
    """Answer labels from standard input as they arrive.

    A chunk is answered as soon as the first label of one task too many is
    there; what is left at the end of the input is answered then. A label that
    comes late for a task is no loss: the task is answered again.

    With --model, the model is saved after each chunk's answers were written,
    and the next run goes on from it. Ctrl-C, SIGTERM and a bad line end the
    input early: what came before is answered and saved.
    """
    from labelquorum.ingest.chunks import cut_chunks
    from labelquorum.ingest.readers import iter_csv, iter_jsonl, iter_labels

    estimator = open_model(
        model,
        method=method,
        preset=preset,
        classes=classes,
        repeats=repeats,
        abstain=abstain,
        seed=seed,
        open_items=open_items,
        warmup_items=warmup_items,
    )
    readers = {"csv": iter_csv, "jsonl": iter_jsonl, None: iter_labels}
    summary = Summary()
    with _Input(sys.stdin.buffer) as source:
        # Row by row: a batch would wait for labels that may be long in coming.
        columns = columns_of(task_column, worker_column, label_column)
        space = label_space(estimator, on_bad)
        tables = readers[encoding_in](source.lines(), space, 1, columns)
        for index, chunk in enumerate(cut_chunks(source.sound(tables), chunk_items), 1):
            estimator.partial_fit(chunk, workers=workers if index == 1 else None)
            n_tasks = _emit(estimator, encoding_out, raw, header=index == 1)
            if model is not None:
                estimator.save(model)
            summary.add(estimator)
            if not quiet:
                until = f", up to line {chunk.lines[-1]:,}" if chunk.lines else ""
                saved = "" if model is None else ", saved"
                tell(f"Chunk {index:,}: tasks {n_tasks:,}{until}{saved}.")
    if model is None and estimator.held_labels_:  # no later run will complete the warm-up
        _emit(estimator.answer_held(), encoding_out, raw, header=False)
        summary.add(estimator)
    tell(summary.sentence(estimator))
    if source.error is not None:
        raise source.error


def _emit(estimator: "Estimator", encoding: Encoding, raw: bool, header: bool) -> int:
    """Write the answers to the last chunk, and return how many there are."""
    from labelquorum.ingest.columns import as_column
    from labelquorum.ingest.writers import encode_rows

    columns = answers(estimator)
    cells = zip(*map(as_column, columns.values()), strict=True)
    rows = [dict(zip(columns, row, strict=True)) for row in cells]
    names = COLUMNS if encoding == "csv" else tuple(columns)
    typer.echo(encode_rows(rows, names, encoding, raw=raw, header=header), nl=False)
    return len(rows)


class Alarm:
    """Ctrl-C and SIGTERM as a wish to stop: they break off nothing but the waiting for more.

    A second signal does what it always does.
    """

    def __init__(self) -> None:
        self.asked = False
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        # A signal leaves a byte to be read, so it is seen even if it comes before the wait.
        alarm, bell = (self._undo.enter_context(end) for end in socketpair())
        bell.setblocking(False)
        self._alarm = alarm.fileno()
        self._undo.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(bell.fileno()))
        for number in (signal.SIGINT, signal.SIGTERM):
            self._undo.callback(signal.signal, number, signal.signal(number, _only_once))
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def wait(self, *files: int, seconds: float | None = None) -> bool:
        """Wait for a file, a signal or the timeout; return whether a file has more."""
        ready = select([*files, self._alarm], [], [], seconds)[0]
        self.asked = self.asked or self._alarm in ready
        return not self.asked and bool(ready)

    def read(self, stream: IO[bytes], seconds: float | None = None) -> bytes | None:
        """What is there; nothing at the end or if a signal came, None if it took too long."""
        try:
            number = stream.fileno()
        except io.UnsupportedOperation:  # no file of the system, so there is nothing to wait for
            return stream.read(READ_BYTES)
        if self.wait(number, seconds=seconds):
            return os.read(number, READ_BYTES)
        return b"" if self.asked else None


class _Input(Alarm):
    """An input until it ends, a line is bad, or Ctrl-C or SIGTERM asks to stop.

    Whichever comes first looks like the end of the input, so that every line that was taken is
    answered as usual.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__()
        self.error: LabelQuorumError | None = None
        self._stream = stream

    def lines(self) -> Iterator[bytes]:
        """Give the lines as they arrive."""
        rest = b""
        while part := self.read(self._stream):
            *whole, rest = (rest + part).split(b"\n")
            yield from (line + b"\n" for line in whole)
        if rest and not self.asked:  # half a line is none, unless the input ends there
            yield rest

    def sound(self, tables: Iterator["LabelTable"]) -> Iterator["LabelTable"]:
        """Give the tables before the first bad line, and keep what is to be said about it."""
        try:
            yield from tables
        except LabelQuorumError as error:
            self.error = error


def _only_once(number: int, _: object) -> None:
    signal.signal(number, signal.SIG_DFL)


def answers(model: "Estimator") -> dict[str, Any]:
    """Give the last chunk's answers as columns, the tasks in order of appearance."""
    import numpy as np

    from labelquorum.ingest.writers import names_of

    answer = model.model_.last_answer()  # `labels_` would import pandas
    chosen, order = answer.chosen, answer.intake.order
    if not chosen:
        return {name: [] for name in COLUMNS}
    probs = answer.result.probs[order].astype(float).round(DECIMALS)
    confidence = probs[np.arange(len(chosen)), answer.result.aggregated[order]]
    names = [PROBABILITY + name for name in names_of(answer.classes)]
    columns = answer.task_ids, chosen, confidence, *probs.T
    return dict(zip((*COLUMNS, *names), columns, strict=True))


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


def _reopened(name: str) -> Any:
    """A source that can be read twice: standard input is kept in memory."""
    return io.BytesIO(sys.stdin.buffer.read()) if name == "-" else open_source(name)


def _digest(source: Any) -> str | None:
    """The SHA-256 of a file; None of what can be read only once, as a pipe can."""
    if isinstance(source, io.BytesIO):
        return sha256(source.getbuffer()).hexdigest()
    if not Path(source).is_file():
        return None
    with Path(source).open("rb") as file:
        return file_digest(file, sha256).hexdigest()


def _encoding(output: Path | None, labels: Sequence[str]) -> "Written":
    if output is None:
        return "csv"
    encoding: Written = (
        "parquet" if output.suffix.lower() == ".parquet" else encoding_of(output, "--output")
    )
    if output.exists() and any(name != "-" and _same(output, Path(name)) for name in labels):
        raise typer.BadParameter(
            f"{output} holds the labels, and they would be lost. Choose another file.",
            param_hint="'--output'",
        )
    return encoding


def _same(one: Path, other: Path) -> bool:
    return other.exists() and one.samefile(other)
