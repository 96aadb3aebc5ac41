"""An answer enters two trees instead of three."""

from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Drop the index by confidence: in it an answer goes anywhere, so a chunk wrote most of it."""
    op.drop_index("answers_by_confidence", "answers")
