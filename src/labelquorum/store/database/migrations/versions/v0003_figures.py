"""What people look at: a worker over time, when a chunk was applied, what it came to."""

from alembic import op
from sqlalchemy import Column, Double, LargeBinary, Text

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the columns; what was learned before has nothing to tell there."""
    op.add_column("workers", Column("track", LargeBinary))
    op.add_column("chunks", Column("applied_at", Double))
    op.add_column("chunks", Column("summary", Text))
    op.add_column("gold", Column("replaced", Text))
