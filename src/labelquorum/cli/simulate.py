"""`labelquorum simulate`: crowds with known truth, for trying out everything else."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from labelquorum.cli.aggregate import Encoding, encoding_of, write_file
from labelquorum.cli.options import output_option, tell
from labelquorum.errors import StateError

if TYPE_CHECKING:
    from labelquorum.evaluation.simulate.oracle import Crowd


Kind = Literal["one-coin", "class-conditional", "ordinal", "bimodal", "judges"]
Arrival = Literal["items", "trickle", "bursts"]
Columns = Mapping[str, Iterable[Any]]

CROWD, ROLES = "Crowd", "Bad workers, each as a share of all workers"
SECONDS = 3  # decimals of a timestamp
SKILL = 6  # decimals of a skill
SIZES = {"n_workers": 20, "n_classes": 3, "labels_per_item": 5}
JUDGES = {"n_workers": 6, "n_classes": 2}
DETAILS = {"at": "turn_at", "amount": "drift"}  # settings of a role → options


def _number(what: str, default: str, least: float = 0, most: float | None = None) -> Any:
    return typer.Option(
        min=least,
        max=most,
        metavar="NUMBER",
        rich_help_panel=CROWD,
        show_default=default,
        help=what,
    )


def _range(what: str, default: str) -> Any:
    return typer.Option(metavar="LOW HIGH", rich_help_panel=CROWD, show_default=default, help=what)


def _share(what: str, default: str = "0") -> Any:
    return typer.Option(
        min=0,
        max=1,
        metavar="SHARE",
        rich_help_panel=ROLES,
        show_default=default,
        help=what,
    )


def simulate(
    output: Annotated[
        Path | None,
        output_option(
            "Where to write the labels, .csv or .jsonl; standard output as CSV unless given.",
        ),
    ] = None,
    truth: Annotated[
        Path | None,
        output_option("Where to write the true label of each task, .csv or .jsonl.", "--truth"),
    ] = None,
    roles: Annotated[
        Path | None, output_option("Where to write what each worker is, .csv or .jsonl.", "--roles")
    ] = None,
    kind: Annotated[
        Kind,
        typer.Option(
            rich_help_panel=CROWD,
            help="What the honest workers are like: one number each, a confusion matrix each, "
            "grading on a scale, the paper's crowd, or judges who err together.",
        ),
    ] = "class-conditional",
    n_items: Annotated[
        int, typer.Option("--items", min=1, rich_help_panel=CROWD, help="How many tasks.")
    ] = 1000,
    n_workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            min=1,
            rich_help_panel=CROWD,
            show_default="20; bimodal 10, judges 6",
            help="How many workers.",
        ),
    ] = None,
    n_classes: Annotated[
        int | None,
        typer.Option(
            "--classes",
            min=2,
            rich_help_panel=CROWD,
            show_default="3; bimodal 10, judges 2",
            help="How many classes; the labels are 0, 1, …",
        ),
    ] = None,
    labels_per_item: Annotated[
        int | None,
        typer.Option(
            min=1,
            rich_help_panel=CROWD,
            show_default="5; judges all",
            help="How many different workers label a task. Not for bimodal.",
        ),
    ] = None,
    participation: Annotated[
        float | None,
        _number("How unequally work is shared, 1 is Zipf's law. Not for bimodal.", "0, evenly"),
    ] = None,
    skill: Annotated[
        tuple[float, float] | None,
        _range("Of one-coin, class-conditional, judges: how often a worker is right.", "0.5 0.9"),
    ] = None,
    concentration: Annotated[
        float | None,
        _number("Of class-conditional, judges: how alike a matrix's rows are.", "20", 1),
    ] = None,
    width: Annotated[
        tuple[float, float] | None,
        _range("Of ordinal: how far a worker's grades spread, in classes.", "0.4 1.2"),
    ] = None,
    bias: Annotated[
        float | None, _number("Of ordinal: how far workers are strict or lenient.", "0.3")
    ] = None,
    noise_rate: Annotated[
        float | None, _number("Of bimodal: the share of labels that are noise.", "0.6", 0, 1)
    ] = None,
    missing_rate: Annotated[
        float | None, _number("Of bimodal: the share of labels that are missing.", "0.1", 0, 1)
    ] = None,
    missing_pattern: Annotated[
        Literal["random", "halves"] | None,
        typer.Option(
            rich_help_panel=CROWD,
            show_default="random",
            help="Of bimodal: which labels are missing, any, or as in the paper's published file "
            "those of every other worker in the first half of the tasks and of the rest in the "
            "second.",
        ),
    ] = None,
    spread: Annotated[
        float | None, _number("Of bimodal: half the range of noise rates.", "0", 0, 1)
    ] = None,
    correlation: Annotated[
        float | None, _number("Of judges: the correlation of two judges' errors.", "0.4", 0, 1)
    ] = None,
    spammers: Annotated[float, _share("They click at random.")] = 0.0,
    bots: Annotated[float, _share("Each always gives one answer.")] = 0.0,
    adversaries: Annotated[float, _share("They name a class they hold to be wrong.")] = 0.0,
    ring: Annotated[float, _share("They all give the same random answer to a task.")] = 0.0,
    sleepers: Annotated[float, _share("They turn into spammers on the way.")] = 0.0,
    turn_at: Annotated[
        float | None, _share("The share of the tasks after which sleepers turn.", "0.5")
    ] = None,
    drifters: Annotated[float, _share("They get worse slowly, from first to last.")] = 0.0,
    drift: Annotated[
        float | None, _share("The share of random clicks that drifters end up with.", "0.5")
    ] = None,
    arrival: Annotated[
        Arrival | None,
        typer.Option(
            show_default="task by task, without timestamps",
            help="When labels come in: those of a task at once, one by one, or in bursts of many "
            "tasks. Rows are in this order, with a column timestamp, in seconds.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
) -> None:
    """Simulate a crowd whose truth is known.

    Writes a row per label: task, worker, label. What else is known goes to
    other files: --truth has a row per task (task, label), --roles a row per
    worker (worker, role, since, group, labels, skill, skill_later). Put
    labels.csv and truth.csv into one folder, and it is a data set.
    """
    from labelquorum.evaluation.simulate.oracle import oracle_error

    files = {"--output": output, "--truth": truth, "--roles": roles}
    encodings = {option: encoding_of(path, option) for option, path in files.items()}
    _check_distinct(files)
    try:
        crowd = _draw(
            kind,
            {
                "n_items": n_items,
                "n_workers": n_workers,
                "n_classes": n_classes,
                "labels_per_item": labels_per_item,
                "participation": participation,
                "skill": skill,
                "concentration": concentration,
                "width": width,
                "bias": bias,
                "noise_rate": noise_rate,
                "missing_rate": missing_rate,
                "missing_pattern": missing_pattern,
                "spread": spread,
                "seed": seed,
            },
        )
        crowd = _give_roles(
            crowd,
            {
                "spammers": {"workers": spammers},
                "bots": {"workers": bots},
                "adversaries": {"workers": adversaries},
                "ring": {"workers": ring},
                "sleepers": {"workers": sleepers, "at": turn_at},
                "drifters": {"workers": drifters, "amount": drift},
            },
            seed,
        )
        crowd = _correlate(crowd, kind, correlation, seed)
    except StateError as error:
        raise typer.BadParameter(str(error)) from None
    data = {
        option: _encode(columns, encodings[option])
        for option, columns in _tables(crowd, arrival, seed).items()
    }
    for option, path in files.items():
        if path is not None:
            write_file(path, data[option])
    if output is None:
        typer.echo(data["--output"], nl=False)
    written = [f"Wrote {path}." for path in files.values() if path is not None]
    tell(" ".join([_counts(crowd), f"Oracle error: {oracle_error(crowd):.1%}.", *written]))


def _draw(kind: Kind, settings: Mapping[str, Any]) -> "Crowd":
    """Draw the honest crowd; a setting that is None is as the kind has it."""
    from labelquorum.evaluation.simulate import crowds

    builders: dict[Kind, Callable[..., Crowd]] = {
        "one-coin": crowds.one_coin_crowd,
        "class-conditional": crowds.class_conditional_crowd,
        "ordinal": crowds.ordinal_crowd,
        "bimodal": crowds.bimodal_crowd,
        "judges": crowds.class_conditional_crowd,
    }
    builder = builders[kind]
    given = {name: value for name, value in settings.items() if value is not None}
    for name in given:
        if name not in (*signature(builder).parameters, "n_items"):
            _refuse(name, f"The crowd {kind} has no such setting.")
    if kind == "bimodal":
        n_items, classes = given.pop("n_items"), {"n_classes": given.get("n_classes", 10)}
        return builder(crowds.balanced_truth(n_items, **classes, seed=given["seed"]), **given)
    sizes = {**SIZES, **given}
    if kind == "judges":
        sizes = {**JUDGES, "labels_per_item": given.get("n_workers", JUDGES["n_workers"]), **given}
    return builder(**sizes)


def _give_roles(crowd: "Crowd", wanted: Mapping[str, Mapping[str, Any]], seed: int) -> "Crowd":
    """Give each role to its share of the workers, one role after the other."""
    from labelquorum.evaluation.simulate import roles

    for name, settings in wanted.items():
        given = {setting: value for setting, value in settings.items() if value is not None}
        for setting in given.keys() - {"workers"}:
            if not given["workers"]:
                _refuse(DETAILS[setting], f"There are no {name}.", f"give --{name} a share")
        crowd = getattr(roles, f"with_{name}")(crowd, **given, seed=seed)
    return crowd


def _correlate(crowd: "Crowd", kind: Kind, correlation: float | None, seed: int) -> "Crowd":
    """Let those who are still honest err together, if they are judges."""
    from labelquorum.evaluation.simulate.oracle import HONEST
    from labelquorum.evaluation.simulate.roles import with_judges

    if kind == "judges":
        settings = {} if correlation is None else {"correlation": correlation}
        return with_judges(crowd, (crowd.role == HONEST).nonzero()[0], **settings, seed=seed)
    if correlation is not None:
        _refuse("correlation", f"The crowd {kind} has no such setting.")
    return crowd


def _refuse(setting: str, reason: str, remedy: str = "choose another --kind") -> NoReturn:
    raise typer.BadParameter(
        f"{reason} Leave the option out, or {remedy}.",
        param_hint=f"'--{setting.replace('_', '-')}'",
    )


def _check_distinct(files: Mapping[str, Path | None]) -> None:
    """Refuse to write two things to one file."""
    taken: dict[Path, str] = {}
    for option, path in files.items():
        if path is not None and (other := taken.setdefault(path.resolve(), option)) != option:
            raise typer.BadParameter(
                f"{path} is the file of {other} already. Choose another one.",
                param_hint=f"'{option}'",
            )


def _tables(crowd: "Crowd", arrival: Arrival | None, seed: int) -> dict[str, Columns]:
    """The columns of each file, by its option."""
    from labelquorum.evaluation.simulate.arrivals import ARRIVALS, label_table, truth_by_item
    from labelquorum.evaluation.simulate.roles import worker_table

    arrivals = None if arrival is None else ARRIVALS[arrival](crowd, seed=seed)
    table, truth = label_table(crowd, arrivals=arrivals), truth_by_item(crowd)
    labels = {"task": table.item_ids, "worker": table.worker_ids, "label": table.labels}
    if table.timestamps is not None:
        labels["timestamp"] = [round(time, SECONDS) for time in table.timestamps]
    workers = worker_table(crowd).round(SKILL).reset_index()
    return {
        "--output": labels,
        "--truth": {"task": truth.keys(), "label": truth.values()},
        "--roles": {str(name): workers[name].tolist() for name in workers.columns},
    }


def _encode(columns: Columns, encoding: Encoding) -> bytes:
    from labelquorum.ingest.writers import encode_rows

    names = tuple(columns)
    rows = (dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True))
    return encode_rows(rows, names, encoding, raw=True)


def _counts(crowd: "Crowd") -> str:
    roles = sorted(Counter(crowd.role.tolist()).items(), key=lambda role: (-role[1], role[0]))
    reported = ", ".join(f"{role} {count:,}" for role, count in roles)
    wrong = (crowd.label != crowd.truth[crowd.item]).mean()
    return (
        f"Tasks: {crowd.truth.size:,}. Workers: {reported}. "
        f"Labels: {crowd.label.size:,}, {wrong:.1%} of them wrong."
    )
