"""`labelquorum datasets`: what is known, what is there, and whether it is right."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from labelquorum.cli.options import AsJson, print_json, tell
from labelquorum.errors import LabelError

Facts = Mapping[str, Any]

COUNTS = ("workers", "items", "labels", "classes", "truth")
COLUMNS = ("data set", "here", *COUNTS, "order", "licence")
WIDE, LICENCE = 116, 25  # what a line needs to hold all columns, and the last one
SAME_LINE = "\r\x1b[K"


def datasets(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]…", show_default=False, help="Tell all about these; otherwise list all."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            show_default="LABELQUORUM_DATA",
            help="The folder that holds a folder for each data set.",
        ),
    ] = None,
    download: Annotated[
        bool, typer.Option("--download", help="First get the named ones from their sources.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Hold counts and checksums of the named ones, or of all that are there, against "
            "the registry.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the data sets that are known, and those in your folder.

    What is in the folder and not in the registry is your own. Data belong to
    those who made them: mind the licence. Sets of one family share items or
    labels, and a comparison should count them once.
    """
    if download and not names:
        raise typer.BadParameter("Name the data sets to get.", param_hint="'--download'")
    if download and data is not None:
        data.mkdir(parents=True, exist_ok=True)
    root = _folder(data)
    if check and root is None and not names:
        tell("No folder is named by --data or LABELQUORUM_DATA: only the toy set was looked at.")
    if download:
        _download(names or [], root)
    there = _there(data, root)
    if check:
        _check(names or list(there), data, as_json)
    elif names:
        show = print_json if as_json else _print_in_full
        show([_facts(name, data, root, there) for name in names])
    else:
        show = print_json if as_json else _print_table
        show(_overview(data, root, there))
        _tell_the_way(root, there)


def _folder(data: Path | None) -> Path | None:
    """Find the folder, the first of several, if one is named."""
    from labelquorum.evaluation.datasets.load import DATA_VARIABLE, data_folder

    return data_folder(data) if data is not None or os.environ.get(DATA_VARIABLE) else None


def _there(data: Path | None, root: Path | None) -> dict[str, Path]:
    """Say where each data set is that can be read."""
    from labelquorum.evaluation.datasets.load import TOY, dataset_paths

    found = {} if root is None else dataset_paths(data)
    return {TOY.name: TOY, **found}


def _download(names: Sequence[str], root: Path | None) -> None:
    from labelquorum.evaluation.datasets.download import download_dataset

    again = SAME_LINE if sys.stderr.isatty() else ""

    def progress(path: str, done: int, total: int | None) -> None:
        whole = "" if total is None else f" of {total / 1e6:.1f}"
        typer.echo(f"{again}{path}: {done / 1e6:.1f}{whole} MB", err=True, nl=False)

    for name in names:
        place = download_dataset(name, root, progress=progress if again else None)
        tell(f"{again}{name} is in {place}.")


def _check(names: Sequence[str], data: Path | None, as_json: bool) -> None:
    """Say of each set whether it is right; a wrong one makes the exit code 1."""
    from labelquorum.evaluation import check_dataset, read_dataset

    findings: dict[str, list[str]] = {}
    for name in names:
        try:
            findings[name] = check_dataset(read_dataset(name, data))
        except LabelError as error:
            findings[name] = [str(error)]
    if as_json:
        print_json([{"name": name, "wrong": wrong} for name, wrong in findings.items()])
    else:
        for name, wrong in findings.items():
            typer.echo(f"{name}: {' '.join(wrong) or 'ok'}")
    if any(findings.values()):
        raise typer.Exit(1)


def _facts(name: str, data: Path | None, root: Path | None, there: Mapping[str, Path]) -> Facts:
    """Gather all about a data set; if it is there it is read."""
    from labelquorum.evaluation import check_dataset, dataset_info, read_dataset
    from labelquorum.evaluation.datasets.load import (
        count_dataset,
        data_folders,
        unknown_dataset,
        way_to_get,
    )

    info, place = dataset_info(name), there.get(name)
    if info is None and place is None:
        raise unknown_dataset(name, [] if root is None else data_folders(data))
    facts = _known(name, place)
    if place is not None:
        dataset = read_dataset(name, data)
        facts |= {"found": _counted(count_dataset(dataset)), "wrong": check_dataset(dataset)}
    elif info is not None:
        facts["get"] = way_to_get(info, root)
    return facts


def _overview(data: Path | None, root: Path | None, there: Mapping[str, Path]) -> list[Facts]:
    """Gather what the registry knows, and count your own, which may be broken."""
    from labelquorum.evaluation import known_datasets

    known = known_datasets()
    facts: list[Facts] = [_known(name, there.get(name)) for name in known]
    for name in there.keys() - known.keys():
        try:
            facts.append(_facts(name, data, root, there))
        except LabelError as error:
            facts.append(_known(name, there[name]) | {"wrong": [str(error)]})
    return sorted(facts, key=lambda fact: fact["name"])


def _tell_the_way(root: Path | None, there: Mapping[str, Path]) -> None:
    """Say how the sets can be had that are not there."""
    from labelquorum.evaluation import known_datasets

    if root is None:
        tell("No folder of data sets is named. Pass --data, or set LABELQUORUM_DATA.")
    absent = [info for info in known_datasets().values() if info.name not in there]
    by_hand = [info.name for info in absent if info.public and info.converter is None]
    private = [info.name for info in absent if not info.public]
    if any(info.converter for info in absent):
        tell("To get sets that are not here: labelquorum datasets --download NAME…")
    if by_hand:
        tell(f"Put the files there yourself: {', '.join(by_hand)}.")
    if private:
        tell(f"Data not available, not public: {', '.join(private)}.")


def _known(name: str, place: Path | None) -> dict[str, Any]:
    """Tell what the registry says, and where the set is."""
    from labelquorum.evaluation import known_datasets

    known = known_datasets()
    info = known.get(name)
    facts: dict[str, Any] = {
        "name": name,
        "known": info is not None,
        "folder": None if place is None else str(place),
    }
    if info is not None:
        fields = ("title", "citation", "licence", "sources", "family", "order", "public", "note")
        facts |= {field: getattr(info, field) for field in fields}
        kin = [other.name for other in known.values() if other.family == info.family]
        facts["relatives"] = [other for other in kin if other != name]
        facts["expected"] = _counted(info.counts)
        facts["sha256"] = {"labels": info.labels_sha256, "truth": info.truth_sha256}
    return facts


def _counted(counts: Sequence[int]) -> dict[str, int]:
    return dict(zip(COUNTS, counts, strict=True))


def _print_table(facts: Sequence[Facts]) -> None:
    """Print one row per data set; a narrow terminal leaves out the last two columns."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDE)
    columns = COLUMNS if console.width >= WIDE else COLUMNS[:-2]
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in COUNTS else "left", no_wrap=True)
    for fact in facts:
        here = "" if fact["folder"] is None else "yes" if fact["known"] else "own"
        counts = fact.get("expected") or fact.get("found") or {}
        numbers = [f"{counts[name]:,}" if name in counts else "?" for name in COUNTS]
        order = "" if fact.get("order", "source") == "source" else fact["order"].split()[0]
        cells = [fact["name"], here, *numbers, order, _short(fact.get("licence", ""))]
        table.add_row(*map(Text, cells[: len(columns)]), style=None if here else "dim")
    console.print(table)
    for fact in facts:
        for sentence in fact.get("wrong", ()):
            tell(sentence)


def _print_in_full(facts: Sequence[Facts]) -> None:
    console = Console(soft_wrap=True, highlight=False)
    for fact in facts:
        title = f": {fact['title']}" if fact["known"] else ", your own"
        console.print(Text(fact["name"], "bold") + Text(title, "not bold"))
        for name, value in _lines(fact):
            if value:
                console.print(Text(f"  {name:9} ", "dim") + Text(value, "default"))


def _lines(fact: Facts) -> list[tuple[str, str | None]]:
    """Write what is known of a data set line by line."""
    orders = {"source": "as in the source", "arrival": "as the labels arrived"}
    order = fact.get("order", "")
    lines = [
        ("citation", fact.get("citation")),
        ("licence", fact.get("licence")),
        *(("source", address) for address in fact.get("sources", ())),
        ("family", _family(fact)),
        ("order", orders.get(order, order)),
        ("note", fact.get("note")),
        ("expected", _in_words(fact.get("expected"))),
        ("found", _in_words(fact.get("found"))),
        ("in", fact["folder"]),
    ]
    if fact["known"] and "found" in fact and not fact["wrong"]:
        summed = any(fact["sha256"].values())
        lines.append(("check", "counts and checksums are right" if summed else "counts are right"))
    lines += [("wrong", sentence) for sentence in fact.get("wrong", ())]
    return [*lines, ("get it", fact.get("get"))]


def _family(fact: Facts) -> str | None:
    relatives = fact.get("relatives")
    return f"{fact['family']}, with {', '.join(relatives)}" if relatives else None


def _short(text: str) -> str:
    return text if len(text) <= LICENCE else f"{text[: LICENCE - 1]}…"


def _in_words(counts: Mapping[str, int] | None) -> str | None:
    if counts is None:
        return None
    parts = [f"{counts[name]:,} {name}" for name in COUNTS[:-1]]
    return f"{', '.join(parts)}, truth of {counts['truth']:,} items"
