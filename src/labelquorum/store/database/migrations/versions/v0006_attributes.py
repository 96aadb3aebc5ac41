"""What judges say beside a label, and what is known of workers."""

from alembic import op
from sqlalchemy import Column, Double, Integer, Text

revision = "0006"
down_revision = "0005"

Key = Text().with_variant(Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add the column and the table; nothing is known yet."""
    op.add_column("labels", Column("score", Double))
    op.create_table(
        "attributes",
        Column("stream", Integer, primary_key=True, autoincrement=False),
        Column("worker", Key, primary_key=True),
        Column("worker_kind", Text),
        Column("model", Text),
        Column("prompt", Text),
        Column("order", Text),
        sqlite_with_rowid=False,
    )
