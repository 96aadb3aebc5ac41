"""The service over HTTP: labels in, consensus out.

One noun per module: `app` puts it together, `middleware` and `auth` guard it, `request_parsing`
reads requests within limits, `routes` has one module per resource, `uvicorn_server` runs it,
`write_queue` commits labels in groups, `learning_loop` learns in a `learner_process`. See
`docs/service.md`.
"""

from importlib.util import find_spec

from labelquorum.errors import StoreError

if find_spec("fastapi") is None or find_spec("uvicorn") is None:
    raise StoreError(
        "The service takes FastAPI and uvicorn, which are not installed. "
        "Run pip install labelquorum[serve]."
    )
