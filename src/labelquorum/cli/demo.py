"""`labelquorum demo`: the first minute."""

from pathlib import Path
from typing import Annotated

import typer

from labelquorum.cli.options import Seed, tell

__all__ = ["demo"]


def demo(
    headless: Annotated[
        bool,
        typer.Option("--headless", help="Take pictures of the pages instead; needs chromium."),
    ] = False,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", file_okay=False, help="Folder for the pictures and summary.txt."
        ),
    ] = Path("labelquorum-demo"),
    seconds: Annotated[
        float | None,
        typer.Option(
            min=1,
            show_default="180, headless 30",
            help="Seconds the crowd labels for; half-way, one worker turns bad.",
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            "-s",
            metavar="STORE",
            show_default="a temporary folder",
            help="Where to keep what came in; it stays after the demo.",
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = 0,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Only print the address.")
    ] = False,
    seed: Seed = None,
) -> None:
    """Watch a simulated crowd being aggregated, in your browser.

    A service starts on a free port of this machine, 26 simulated workers
    label photos in real time, and the address of the dashboard is printed and
    opened. Some workers click at random, some always say cat, one lies, one
    turns bad half-way, two copy from each other. Control-C ends it, with a
    summary that holds what was found against what is true.

    Headless, it labels for 30 seconds and saves pictures of all pages and
    the summary to a folder.
    """
    from labelquorum.demo import HEADLESS_SECONDS, SECONDS, Plan, run_demo

    default = HEADLESS_SECONDS if headless else SECONDS
    plan = Plan(
        seconds=default if seconds is None else seconds,
        headless=headless,
        output=output,
        store=store,
        port=port,
        seed=seed or 0,
        opens_browser=not no_browser,
    )
    try:
        run_demo(plan, lambda text: typer.echo(text, nl=False), tell)
    except KeyboardInterrupt:
        tell("\nStopped.")
        raise typer.Exit(130) from None
