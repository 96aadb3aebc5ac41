"""`labelquorum run`: files of a folder or standard input into a stream of a store, without HTTP."""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from labelquorum.cli.aggregate import Alarm, Encoding
from labelquorum.cli.options import (
    Abstain,
    Classes,
    OnBadRow,
    OnRepeat,
    Preset,
    Seed,
    parse_abstain,
    parse_classes,
    tell,
)
from labelquorum.cli.store import StoreOption, StreamName

if TYPE_CHECKING:
    from labelquorum.store.batch import Receipt
    from labelquorum.store.store import Store
    from labelquorum.store.stream import Stream


RULES = "Rules of the stream"
NEVER = "never"


def _seconds(text: str | None) -> str | None:
    if text is not None and text != NEVER:
        try:
            float(text)
        except ValueError:
            raise typer.BadParameter(
                f"It is a number of seconds, or never. Got {text!r}."
            ) from None
    return text


def _rule(option: str, default: str, sentence: str, **more: Any) -> Any:
    return typer.Option(option, rich_help_panel=RULES, show_default=default, help=sentence, **more)


def _wait_rule(option: str, default: str, sentence: str) -> Any:
    return _rule(option, default, sentence, metavar="SECONDS", callback=_seconds)


LabelsPerItem = Annotated[
    int | None, _rule("--labels-per-item", "1", "Number of labels that make a task ready.", min=1)
]
MaxWait = Annotated[
    str | None,
    _wait_rule(
        "--max-wait",
        "3600",
        "Seconds after its first label when a task is ready with fewer, or never.",
    ),
]
ChunkItems = Annotated[
    int | None, _rule("--chunk-items", "50", "Number of ready tasks that make a chunk.", min=1)
]
MaxChunkWait = Annotated[
    str | None,
    _wait_rule(
        "--max-chunk-wait",
        "60",
        "Seconds after the first is ready when a chunk is cut with fewer, or never.",
    ),
]
Kept = Annotated[
    Literal["discard", "keep_days", "keep"] | None,
    _rule("--retention", "keep", "What becomes of raw labels once they are answered."),
]
Days = Annotated[float | None, _rule("--days", "30", "How long keep_days keeps them.", min=0)]
Grace = Annotated[
    str | None,
    _wait_rule(
        "--grace",
        "never closed",
        "Seconds an answered task stays open for later labels, or never to close it.",
    ),
]
MaxWorkers = Annotated[
    int | None, _rule("--max-workers", "100000", "Labels of more workers are refused.", min=1)
]


def run(
    name: StreamName,
    store: StoreOption,
    source: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER",
            help="A folder of files that arrive or grow, or - for standard input.",
        ),
    ] = "-",
    once: Annotated[
        bool, typer.Option("--once", help="End when all files are read; do not wait for more.")
    ] = False,
    flush: Annotated[
        bool, typer.Option("--flush", help="At the end answer all that waits, ready or not.")
    ] = False,
    poll: Annotated[
        float, typer.Option("--poll", min=0.01, help="Seconds between two looks for more.")
    ] = 1.0,
    known_as: Annotated[
        str | None,
        typer.Option(
            "--source",
            metavar="NAME",
            show_default=False,
            help="A name for standard input: what was read under it before is passed over.",
        ),
    ] = None,
    encoding: Annotated[
        Encoding | None,
        typer.Option(
            "--format", show_default="by the first line", help="How standard input is written."
        ),
    ] = None,
    prints: Annotated[
        bool, typer.Option("--print", help="Write the answers of each chunk as JSON lines.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Do not report every chunk on standard error.")
    ] = False,
    preset: Preset = None,
    seed: Seed = None,
    labels_per_item: LabelsPerItem = None,
    max_wait: MaxWait = None,
    chunk_items: ChunkItems = None,
    max_chunk_wait: MaxChunkWait = None,
    retention: Kept = None,
    days: Days = None,
    grace: Grace = None,
    max_workers: MaxWorkers = None,
    classes: Classes = None,
    repeats: OnRepeat = None,
    on_bad: OnBadRow = "error",
    abstain: Abstain = None,
) -> None:
    """Take labels into a stream of a store, and answer them, until stopped.

    From a folder, files are read in the order of their names: .csv and .jsonl
    may grow by whole lines, .parquet and .gz must be moved in whole. How far
    each was read is committed with its labels, so after any end, kill -9 as
    well, the next run goes on without loss or double counts. From standard
    input, name it with --source if it may be sent again from its start.

    The stream is made if it is not there. Rules that are given change it from
    now on; other settings are fixed when it is made. Ctrl-C and SIGTERM end
    cleanly. A bad line ends it too, with all before it taken.
    """
    from labelquorum.store.file_source import FileSource
    from labelquorum.store.store import Store

    if source != "-" and not Path(source).is_dir():
        raise typer.BadParameter(f"There is no folder {source!r}.", param_hint="'FOLDER'")
    settings = {
        "preset": preset,
        "seed": seed,
        "classes": parse_classes(classes),
        "repeats": repeats,
        "abstain": parse_abstain(abstain),
    }
    waits = {"max_wait": max_wait, "max_chunk_wait": max_chunk_wait, "grace": grace}
    rules = {
        "labels_per_item": labels_per_item,
        "chunk_items": chunk_items,
        "retention": retention,
        "days": days,
        "max_workers": max_workers,
        **{rule: text if text in (None, NEVER) else float(text) for rule, text in waits.items()},
    }
    with Store.open(store) as opened:
        stream = _opened(opened, name, settings, rules)
        work = _Work(stream, prints, quiet)
        work.settle()  # what a run before has left
        feed = FileSource(stream, on_bad, tell)
        with Alarm() as alarm:
            receipts = (
                _lines(alarm, feed, known_as, encoding, poll)
                if source == "-"
                else _files(alarm, feed, source, once, poll)
            )
            try:
                work.take(receipts, alarm)
            finally:
                work.settle(flush and not alarm.asked)
                tell(work.sentence())


def _files(
    alarm: Alarm, feed: Any, folder: str, once: bool, poll: float
) -> Iterator["Receipt | None"]:
    """Take what is new in a folder, again and again; None where there is nothing."""
    while True:
        yield from feed.files(folder, final=once)
        if once:
            return
        yield None
        alarm.wait(seconds=poll)
        if alarm.asked:
            return


def _lines(
    alarm: Alarm, feed: Any, known_as: str | None, encoding: Encoding | None, poll: float
) -> Iterator["Receipt | None"]:
    """Take lines as they come; None where none came for a while."""
    from labelquorum.ingest.tail import Kind
    from labelquorum.store.file_source import LineSource

    kind = None if encoding is None else Kind(f".{encoding}")
    incoming = LineSource(feed, "standard input", known_as, kind)
    while (data := alarm.read(sys.stdin.buffer, poll)) != b"":
        if data is None:
            yield None
        else:
            yield from incoming.take(data)
    yield from incoming.take(b"", final=not alarm.asked)


class _Work:
    """Answers what was taken, and counts."""

    def __init__(self, stream: "Stream", prints: bool, quiet: bool) -> None:
        self._stream, self._prints, self._quiet = stream, prints, quiet
        self._counts: Counter[str] = Counter()
        self._skipped: Counter[str] = Counter()
        self._told = stream.last_event()

    def take(self, receipts: Iterable["Receipt | None"], alarm: Alarm) -> None:
        """Count what was taken, and answer what is due, until asked to stop."""
        for receipt in receipts:
            if receipt is not None:
                self._counts["taken"] += receipt.accepted
                self._counts["late"] += receipt.late
                self._skipped.update(receipt.skipped)
            self.settle()
            if alarm.asked:
                return

    def settle(self, flush: bool = False) -> None:
        """Cut and apply what is due, and say so."""
        applied = self._stream.settle(flush)
        if applied and self._prints:
            self._print([one.id for one in applied])
        self._counts["chunks"] += len(applied)
        self._counts["tasks"] += sum(one.n_items for one in applied)
        if not self._quiet:
            for one in applied:
                tell(f"Chunk {one.id:,}: tasks {one.n_items:,}, labels {one.n_labels:,}.")
        for event in self._stream.events(self._told):
            self._told = event["id"]
            if event["kind"] == "quarantined":
                body = event["body"]
                tell(f"Chunk {body['chunk']:,} is quarantined: {body['error']}.")

    def _print(self, chunks: list[int]) -> None:
        from labelquorum.ingest.writers import write_rows
        from labelquorum.store.export import exported

        lines = BytesIO()
        with exported(self._stream, "answers", chunks=chunks) as found:
            write_rows(found.rows, found.columns, lines, "jsonl")
        typer.echo(lines.getvalue(), nl=False)

    def sentence(self) -> str:
        """Tell the counts that are not zero."""
        from labelquorum.store.batch import CLOSED

        waiting = self._stream.count()
        reported = {
            "Labels taken": self._counts["taken"],
            "Late labels": self._counts["late"],
            **{f"Left out, {reason}": n for reason, n in self._skipped.most_common()},
            "Chunks applied": self._counts["chunks"],
            "Tasks answered": self._counts["tasks"],
            "Labels that wait": waiting["waiting_labels"],
        }
        sentences = [f"{what}: {count:,}." for what, count in reported.items() if count]
        if self._counts["late"]:
            sentences.append(CLOSED)
        return " ".join(sentences or ["There were no new labels."])


def _opened(store: "Store", name: str, settings: dict[str, Any], rules: dict[str, Any]) -> "Stream":
    """The stream of this name, made if it is not there, with these rules."""
    from labelquorum.store.batch import decode
    from labelquorum.store.rules import Rules

    given = {setting: value for setting, value in settings.items() if value is not None}
    changes = {
        rule: None if value == NEVER else value
        for rule, value in rules.items()
        if value is not None
    }
    if name not in store.streams():
        made = store.create(name, rules=Rules().changed(**changes), **given)
        tell(f"Made stream {name!r}.")
        return made
    stream = store.stream(name)
    known = decode(stream.configuration.settings)
    for setting, value in given.items():
        if known.get(setting) != value:
            raise typer.BadParameter(
                f"Stream {name!r} was made with the {setting} {known.get(setting)!r}, which is "
                "fixed. Leave the option out, or name another stream.",
                param_hint=f"'--{setting}'",
            )
    if changes and any(getattr(stream.rules, rule) != value for rule, value in changes.items()):
        stream.change(**changes)
    return stream
