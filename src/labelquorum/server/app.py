"""The app: all routes behind the middleware, over one store."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.routing import BaseRoute

from labelquorum import __version__
from labelquorum.errors import StateError
from labelquorum.server import static
from labelquorum.server.auth import ROUTES, Guarded
from labelquorum.server.config import Log, Settings
from labelquorum.server.context import Service
from labelquorum.server.errors import add_error_handlers
from labelquorum.server.middleware import Middleware
from labelquorum.server.routes import (
    certificate,
    export,
    health,
    items,
    keys,
    labels,
    streams,
    summary,
    webhooks,
    workers,
)
from labelquorum.store.store import Store

# Routes are looked through in this order, and most requests bring labels.
PARTS = (
    labels,
    webhooks,
    items,
    workers,
    summary,
    certificate,
    export,
    streams,
    keys,
    health,
    static,
)


def create_app(
    store: Store, write_queue: Any, settings: Settings | None = None, log: Log | None = None
) -> Middleware:
    """Make the app.

    Parameters
    ----------
    store
        Where the streams are.
    write_queue
        Accepts labels and learns; it is started and stopped with the app.
    settings
        Of the service.
    log
        Where events are logged; standard error unless given.
    """
    service = Service(store, write_queue, settings or Settings(), log or Log())
    inner = FastAPI(
        title="LabelQuorum",
        version=__version__,
        description="Labels in, consensus out. Every route but its pages and health takes a key.",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
        lifespan=_lifespan,
    )
    inner.state.service = service
    inner.router.route_class = Guarded
    add_error_handlers(inner)
    for part in PARTS:
        inner.router.routes.extend(part.router.routes)  # flat: each is looked at once
    check_routes(inner.routes)
    _describe_keys(inner)
    return Middleware(inner, service)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    service: Service = app.state.service
    check_routes(app.routes)  # whatever was added since
    service.start()
    try:
        yield
    finally:
        await service.stop()


def check_routes(routes: list[BaseRoute]) -> None:
    """Refuse to start with a route that asks for no key and was not declared to be open."""
    for route in routes:
        declared = isinstance(route, Guarded) and all(
            (method, route.path) in ROUTES for method in route.methods or ()
        )
        if not declared:
            raise StateError(
                f"The route {getattr(route, 'path', route)!r} does not say what key it takes. "
                "Declare it in auth.ROUTES."
            )


def _describe_keys(app: FastAPI) -> None:
    """Say in OpenAPI which routes take a key."""
    make = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = make()
            schema.setdefault("components", {})["securitySchemes"] = {
                "key": {"type": "http", "scheme": "bearer"}
            }
            for (method, path), need in ROUTES.items():
                plain = path.replace(":path", "")
                if need is not None and plain in schema["paths"]:
                    operation = schema["paths"][plain][method.lower()]
                    operation["security"] = [{"key": []}]
                    reach = {"stream": "that stream", "any": "any stream", "all": "all streams"}
                    operation["x-scope"] = need.scope
                    operation["description"] = (
                        f"{operation.get('description', '')}\n\n"
                        f"Takes a key with the scope {need.scope} for {reach[need.reach]}."
                    ).strip()
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]
