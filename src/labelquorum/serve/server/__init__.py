"""The service over HTTP: labels in, consensus out.

A file a noun: `app` puts it together, `gate` and `access` guard it, `bodies` reads within limits,
`labels`, `hooks`, `streams`, `items`, `workers`, `events`, `keys` and `health` are the routes,
`running` serves. See `docs/service.md`.
"""

from importlib.util import find_spec

from labelquorum.errors import StoreError

if find_spec("fastapi") is None or find_spec("uvicorn") is None:
    raise StoreError(
        "The service takes FastAPI and uvicorn, which are not installed. "
        "Run pip install labelquorum[serve]."
    )
