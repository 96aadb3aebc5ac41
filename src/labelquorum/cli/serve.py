"""`labelquorum serve`, and `labelquorum keys` for while it is not running."""

import json
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from labelquorum.cli.options import AsJson, tell

if TYPE_CHECKING:
    from labelquorum.server.config import Settings
    from labelquorum.server.learner_process import LearnerProcess

__all__ = ["keys", "serve"]

DATA = "labelquorum-data"
Where = Annotated[
    str,
    typer.Argument(
        metavar="STORE",
        help="Folder of the store, or the URL of a PostgreSQL database; it is made if need be.",
    ),
]
Kept = Annotated[
    str, typer.Argument(metavar="STORE", help="Folder or URL of a store that no service holds.")
]


def serve(
    store: Where = DATA,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = 8765,
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
    from labelquorum.server.learner_process import LearnerProcess

    settings = Settings(
        host=host,
        port=port,
        allow_host=tuple(allow_host or ()),
        allow_origin=tuple(allow_origin or ()),
        rate=rate,
        viewers=viewers,
        log_requests=log_requests,
    )
    with closing(LearnerProcess()) as learner:
        learner.start()  # it takes seconds, which we use
        _serve(store, learner, settings)


def _serve(store: str, learner: "LearnerProcess", settings: "Settings") -> None:
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
        tell(_where(settings))
        run(create_app(opened, queue, settings), settings)


def _where(settings: "Settings") -> str:
    """Where the dashboard is, for whoever sits at this machine."""
    if not settings.port:
        return "Open the address below, at `at_address`."
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    return f"Open http://{f'[{host}]' if ':' in host else host}:{settings.port}/"


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
            reported = {name: value for name, value in key._asdict().items() if name != "digest"}
            if as_json:
                typer.echo(json.dumps(reported))
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
