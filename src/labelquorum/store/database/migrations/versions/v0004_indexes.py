"""Indexes that cost a label less."""

from alembic import op
from sqlalchemy import text

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Rebuild the indexes: a label enters two, and one more when its chunk is cut."""
    for name in ("labels_of_item", "labels_of_chunk"):
        op.drop_index(name, "labels")
    op.drop_index("waiting_ready", "waiting")
    op.create_index("labels_of_item", "labels", ["stream", "item"])
    for name, table, column in (
        ("labels_of_chunk", "labels", "chunk"),
        ("waiting_ready", "waiting", "ready_at"),
    ):
        there = text(f"{column} IS NOT NULL")
        columns = ["stream", column]
        op.create_index(name, table, columns, sqlite_where=there, postgresql_where=there)
