"""The number of labels that each stream holds: counting millions of rows takes seconds."""

from alembic import op
from sqlalchemy import BigInteger, Column

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the column, and count the labels once."""
    op.add_column("streams", Column("held_labels", BigInteger, nullable=False, server_default="0"))
    op.execute(
        "UPDATE streams SET held_labels = "
        "(SELECT count(*) FROM labels WHERE labels.stream = streams.id)"
    )
