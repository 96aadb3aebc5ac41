"""The command line: data to standard output, everything else to standard error.

`options` has what commands share, `aggregate` also `stream`, `judge` the report on a jury,
`inspect` the commands `workers`, `doctor`, `plot` and `report`, `questions` what is asked of a
model's answers, `serve` also `keys` and `demo`, `store` those that read or change a store. Slow
imports are in the command that needs them, so that `--help` is fast.
"""

import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from labelquorum.cli.aggregate import aggregate, stream
from labelquorum.cli.datasets import datasets
from labelquorum.cli.evaluate import evaluate
from labelquorum.cli.inspect import doctor, plot, report, workers
from labelquorum.cli.judge import judge
from labelquorum.cli.options import tell
from labelquorum.cli.questions import ask, explain, flags, score, stopping
from labelquorum.cli.run import run
from labelquorum.cli.serve import demo, keys, serve
from labelquorum.cli.simulate import simulate
from labelquorum.cli.store import (
    backup,
    delete,
    export,
    forget,
    refine,
    rename,
    restore,
    streams,
)
from labelquorum.errors import LabelQuorumError

__all__ = ["app", "main"]


class _OneSentence(TyperGroup):
    """Commands that say what went wrong in a sentence, not in a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except LabelQuorumError as error:
            tell(str(error))
        except BrokenPipeError:  # whoever read our output has gone: no news for anybody
            raise
        except OSError as error:
            where = "" if error.filename is None else f"{error.filename}: "
            tell(f"{where}{error.strerror or error}. Check the path and try again.")
        raise typer.Exit(1)


app = typer.Typer(
    cls=_OneSentence,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: labelquorum aggregate labels.csv -o consensus.csv. "
    "Every command has its own --help.",
)
app.command(
    epilog="Example: labelquorum aggregate labels.csv -o consensus.csv --model crowd.lq",
)(aggregate)
app.command(
    epilog="Example: tail -n 0 -f labels.jsonl | labelquorum stream --model crowd.lq",
)(stream)
app.command(
    epilog="Example: labelquorum judge votes.csv --gold gold.csv -o consensus.csv",
)(judge)
app.command(epilog="Example: labelquorum workers crowd.lq --limit 10")(workers)
app.command(epilog="Example: labelquorum flags crowd.lq")(flags)
app.command(epilog="Example: labelquorum explain crowd.lq t17")(explain)
app.command(epilog="Example: labelquorum ask crowd.lq --limit 50")(ask)
app.command(epilog="Example: labelquorum stopping crowd.lq")(stopping)
app.command(epilog="Example: labelquorum score consensus.csv truth.csv")(score)
app.command(epilog="Example: labelquorum doctor labels.csv")(doctor)
app.command(epilog="Example: labelquorum datasets --download rte web --data my-data")(datasets)
app.command(
    epilog="Example: labelquorum simulate -o labels.csv --truth truth.csv --spammers 0.2",
)(simulate)
app.command(
    epilog="Example: labelquorum evaluate mydata --methods bila,dawid_skene --orders 10 --json",
)(evaluate)
app.command(epilog="Example: labelquorum serve data --port 8000")(serve)
app.add_typer(keys, name="keys")

app.command(epilog="Example: labelquorum run birds incoming --store data --chunk-items 20")(run)
app.command(epilog="Example: labelquorum streams data")(streams)
app.command(
    epilog="Example: labelquorum export birds --store data -o birds.parquet",
)(export)
app.command(epilog="Example: labelquorum refine birds --store data -o differ.csv")(refine)
app.command(epilog="Example: labelquorum backup data -o monday.backup")(backup)
app.command(epilog="Example: labelquorum restore monday.backup data-again")(restore)
app.command(
    epilog="Example: labelquorum plot workers birds --store data -o workers.svg",
)(plot)
app.command(epilog="Example: labelquorum report birds --store data -o birds.html")(report)
app.command(epilog="Example: labelquorum forget ann --stream birds --store data")(forget)
app.command(epilog="Example: labelquorum rename birds owls --store data")(rename)
app.command(epilog="Example: labelquorum delete birds --store data")(delete)


app.command(epilog="Example: labelquorum demo --headless --output pictures")(demo)


@app.command(epilog="Example: labelquorum version")
def version() -> None:
    """Print the version."""
    from importlib.metadata import version

    typer.echo(version("labelquorum"))


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def labelquorum(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and stop."
        ),
    ] = False,
) -> None:
    """Find the consensus of many noisy workers, and how far each can be trusted.

    Labels come as files or as a stream: one row per label, with the
    columns task, worker and label. What is learned about the workers can
    be saved to a model file and continued later.
    """


def main() -> None:
    """Run the command line; warnings are sentences on standard error, without lines of code."""
    warnings.showwarning = lambda message, *_: typer.echo(f"Warning: {message}", err=True)
    app()
