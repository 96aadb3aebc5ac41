"""Indexes that cost a label less, and what SQLite is to expect of them."""

from alembic import op
from sqlalchemy import text

revision = "0004"
down_revision = "0003"

# Where it knows nothing, SQLite takes it that ten rows go with the first column of a key. So it
# would look for the labels of an item, or of a chunk, through all those of the stream. The numbers
# are how many rows there are, and how many go with the first columns of each index.
_EXPECTED = (
    ("labels", "1000000 500000 1"),  # the table itself
    ("labels_of_item", "1000000 500000 4"),
    ("labels_of_chunk", "1000000 500000 1000"),
)


def upgrade() -> None:
    """Make the indexes anew: a label is put into two, and at the cut into one more."""
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
    connection = op.get_bind()
    if connection.dialect.name == "sqlite":  # PostgreSQL counts by itself
        connection.execute(text("ANALYZE sqlite_master"))  # counts nothing, but makes the table
        for index, counts in _EXPECTED:
            connection.execute(
                text("INSERT INTO sqlite_stat1 VALUES ('labels', :index, :counts)"),
                {"index": index, "counts": counts},
            )
        connection.execute(text("ANALYZE sqlite_master"))  # and has it read
