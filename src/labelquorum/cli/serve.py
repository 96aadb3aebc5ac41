"""`labelquorum serve`, `labelquorum keys` for while it is not running, and `labelquorum demo`."""

import json
from contextlib import closing
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labelquorum.cli.options import AsJson, Seed, tell

if TYPE_CHECKING:
    from labelquorum.server.config import Settings
    from labelquorum.server.questions import Questions


DATA = "labelquorum-data"
Where = Annotated[
    str,
    typer.Argument(
        metavar="STORE",
        help="Folder of the store, or the URL of a PostgreSQL database; it is made if need be.",
    ),
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")]
Kept = Annotated[
    str, typer.Argument(metavar="STORE", help="Folder or URL of a store that no service holds.")
]


def serve(
    store: Where = DATA,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Port = 8765,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host",
            metavar="NAME",
            show_default="this machine's",
            help="A name under which the service may be asked for. May be given again.",
        ),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-origin",
            metavar="URL",
            show_default="its own",
            help="An origin whose pages may write, such as https://labels.example.org. "
            "May be given again.",
        ),
    ] = None,
    rate: Annotated[
        float, typer.Option(min=0.001, help="Requests per second allowed per key.")
    ] = 10_000.0,
    viewers: Annotated[
        int, typer.Option(min=0, help="How many may follow events at a time.")
    ] = 1_000,
    log_requests: Annotated[
        bool, typer.Option("--log-requests", help="Write a line for every request.")
    ] = False,
) -> None:
    """Serve a store over HTTP.

    At the first start a key with the scope admin for all streams is made, and
    printed once. What happens is written to standard error, a line of JSON
    each. Control-C commits what was taken and ends.
    """
    from labelquorum.server.config import Settings
    from labelquorum.server.questions import Questions

    settings = Settings(
        host=host,
        port=port,
        allow_host=tuple(allow_host or ()),
        allow_origin=tuple(allow_origin or ()),
        rate=rate,
        viewers=viewers,
        log_requests=log_requests,
    )
    with closing(Questions()) as learner:
        learner.start()  # it takes seconds, which we use
        _serve(store, learner, settings)


def _serve(store: str, learner: "Questions", settings: "Settings") -> None:
    from labelquorum.server.app import create_app
    from labelquorum.server.learning_loop import SubprocessLoop
    from labelquorum.server.uvicorn_server import check_free
    from labelquorum.server.uvicorn_server import serve as run
    from labelquorum.server.write_queue import WriteQueue
    from labelquorum.store.api_keys import Keys
    from labelquorum.store.store import Store

    with Store.open(store, learner=learner) as opened:
        check_free(settings)
        if not Keys(opened).all():
            tell(
                "This is the first start. Here is the key for everything; it is not shown again. "
                "Send it as the header Authorization: Bearer KEY."
            )
            typer.echo(Keys(opened).make("first start", "admin")[1])
        queue = WriteQueue(opened, SubprocessLoop(store, opened))
        if not _is_local(settings.host):
            tell(
                f"Warning: {settings.host} is reached from beyond this machine, and the service "
                "has no TLS: anyone on the way can read keys and labels. Listen on 127.0.0.1, "
                "behind a proxy with TLS."
            )
        tell(_where(settings))
        run(create_app(opened, queue, settings), settings)


def _is_local(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _where(settings: "Settings") -> str:
    """Where the dashboard is, for whoever sits at this machine."""
    if not settings.port:
        return "Open the address below, at `at_address`."
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    return f"Open http://{f'[{host}]' if ':' in host else host}:{settings.port}/"


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
    port: Port = 0,
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


keys = typer.Typer(
    no_args_is_help=True,
    help="Make, list and revoke keys while no service runs; a running one has /v1/keys.",
    epilog="Example: labelquorum keys make data --name dashboard --scope read",
)


@keys.command(epilog="Example: labelquorum keys make data --name dashboard --scope read")
def make(
    store: Kept,
    name: Annotated[str, typer.Option(help="What the key is for.")],
    scope: Annotated[str, typer.Option(metavar="read/write/admin", help="What it may do.")],
    stream: Annotated[
        str | None,
        typer.Option(show_default="all", help="The only stream it is for."),
    ] = None,
) -> None:
    """Make a key and print it, this once."""
    from labelquorum.store.api_keys import Keys
    from labelquorum.store.store import Store

    with Store.open(store) as opened:
        typer.echo(Keys(opened).make(name, scope, stream)[1])


@keys.command("list", epilog="Example: labelquorum keys list data --json")
def list_keys(store: Kept, as_json: AsJson = False) -> None:
    """List all keys, revoked ones too."""
    from labelquorum.store.api_keys import Keys
    from labelquorum.store.store import Store

    with Store.open(store) as opened:
        for key in Keys(opened).all():
            if as_json:
                typer.echo(json.dumps(key.shown()))
            else:
                state = "open" if key.revoked_at is None else "revoked"
                of = "all streams" if key.stream is None else key.stream
                typer.echo(f"{key.id:4}  {key.scope:6}  {state:8}  {of}  {key.name}")


@keys.command(epilog="Example: labelquorum keys revoke data 3")
def revoke(
    store: Kept,
    number: Annotated[int, typer.Argument(metavar="KEY", help="Its number in the list.")],
) -> None:
    """Revoke a key: it is no longer accepted."""
    from labelquorum.store.api_keys import Keys
    from labelquorum.store.store import Store

    with Store.open(store) as opened:
        if not Keys(opened).revoke(number):
            raise typer.BadParameter(
                f"There is no key {number} that opens anything. See labelquorum keys list.",
                param_hint="'KEY'",
            )
        tell(f"Key {number} is revoked.")
