"""What takes many transactions is recorded until it is done."""

from alembic import op
from sqlalchemy import BigInteger, Column, Integer, Text

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Add the table; nothing is under way."""
    op.create_table(
        "jobs",
        Column("stream", Integer, primary_key=True, autoincrement=False),
        Column("id", BigInteger, primary_key=True, autoincrement=False),
        Column("kind", Text, nullable=False),
        Column("body", Text, nullable=False),
        Column("progress", Text, nullable=False),
    )
