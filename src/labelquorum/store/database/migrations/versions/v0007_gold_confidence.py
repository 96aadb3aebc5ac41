"""How sure the answer of a gold task was before its truth came: certificates rest on it."""

from alembic import op
from sqlalchemy import Column, Double

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the column; gold that came before has nothing to tell there."""
    op.add_column("gold", Column("answered_confidence", Double))
