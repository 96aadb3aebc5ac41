"""What makes a stream durable: the store, its streams, and when chunks are cut."""

from importlib.util import find_spec

from labelquorum.errors import StoreError

if find_spec("sqlalchemy") is None or find_spec("alembic") is None:
    raise StoreError(
        "A store takes SQLAlchemy and alembic, which are not installed. "
        "Run pip install labelquorum[store]."
    )
