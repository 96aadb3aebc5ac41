"""`labelquorum plot` and `labelquorum report`: pictures and a page of a stream or a model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from labelquorum.cli.options import in_a_folder, tell

if TYPE_CHECKING:
    from labelquorum.report.pictures import Gallery

__all__ = ["plot", "report"]

Kind = Literal["stream", "workers", "confusion", "calibration"]
SHOWN = {"workers": 30, "confusion": 12}  # workers in a picture

Where = Annotated[
    str | None,
    typer.Option(
        "--store",
        "-s",
        metavar="STORE",
        show_default=False,
        help="The store that keeps the stream: a folder, or the URL of a PostgreSQL database.",
    ),
]


def plot(
    kind: Annotated[Kind, typer.Argument(show_default=False, help="What to draw.")],
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
        typer.Option(
            "--output",
            "-o",
            dir_okay=False,
            callback=in_a_folder,
            show_default=False,
            help="Where to write: .png, .svg or .pdf.",
        ),
    ],
    store: Where = None,
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
    truth was told are left out, and of a model's file only open tasks are
    known. A store is read beside a running service.
    """
    from labelquorum.evaluation.datasets.load import read_truth
    from labelquorum.report.pictures import opened

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
            chosen = _chosen(gallery, workers, limit or SHOWN[kind])
            draw = gallery.draw_workers if kind == "workers" else gallery.draw_confusion
            draw(output, chosen, title)
    tell(f"Wrote {output}.")


def report(
    name: Annotated[
        str, typer.Argument(metavar="STREAM", show_default=False, help="The name of a stream.")
    ],
    store: Annotated[
        str,
        typer.Option(
            "--store",
            "-s",
            metavar="STORE",
            show_default=False,
            help="A folder, or the URL of a PostgreSQL database.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            dir_okay=False,
            callback=in_a_folder,
            help="Where to write the page.",
        ),
    ] = Path("report.html"),
) -> None:
    """Write a page about a stream that can be sent by mail and read anywhere.

    One HTML file with its pictures inside: what was decided and how surely,
    the classes, the workers, the tasks that are least sure, and how often
    truths that were told had been found. It asks for nothing from elsewhere
    and runs no script. It names workers and tasks: think of who reads it.
    """
    from labelquorum.ingest.writers import replacing
    from labelquorum.report.html import report_page
    from labelquorum.report.pictures import opened

    with opened(name, store) as gallery:
        page = report_page(gallery)
    with replacing(output) as beside:
        beside.write_text(page, encoding="utf-8")
    tell(f"Wrote {output}, {len(page.encode()) / 1e6:,.1f} MB.")


def _chosen(gallery: "Gallery", workers: str | None, limit: int) -> list[object]:
    """Those named, as the ids they have, or some of either end of the skills."""
    if workers is None:
        return list(gallery.busiest_ends(limit))
    by_text = {str(worker): worker for worker in gallery.model.workers_.tolist()}
    return [by_text.get(name.strip(), name.strip()) for name in workers.split(",")]
