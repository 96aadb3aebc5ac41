"""Streams, labels, chunks, models and answers."""

from alembic import op
from sqlalchemy import BigInteger, Column, Double, Integer, LargeBinary, Text, UniqueConstraint

revision = "0001"
down_revision = None

Key = Text().with_variant(Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Make the first tables."""
    op.create_table(
        "streams",
        Column("id", Integer, primary_key=True),
        Column("name", Key, nullable=False),
        Column("method", Text, nullable=False),
        Column("settings", Text, nullable=False),
        Column("configuration", Text, nullable=False),
        Column("rules", Text, nullable=False),
        Column("next_row", BigInteger, nullable=False),
        Column("next_chunk", BigInteger, nullable=False),
        Column("late_labels", BigInteger, nullable=False),
        Column("moment", Double, nullable=False),
        UniqueConstraint("name"),
    )
    op.create_table(
        "labels",
        Column("stream", Integer, primary_key=True, autoincrement=False),
        Column("row", BigInteger, primary_key=True, autoincrement=False),
        Column("item", Key, nullable=False),
        Column("worker", Key, nullable=False),
        Column("label", Text, nullable=False),
        Column("weight", Double),
        Column("group", Text),
        Column("timestamp", Text),
        Column("chunk", BigInteger),
        sqlite_with_rowid=False,
    )
    op.create_index("labels_of_item", "labels", ["stream", "item"])
    op.create_index("labels_of_chunk", "labels", ["stream", "chunk"])
    op.create_table(
        "waiting",
        Column("stream", Integer, primary_key=True, autoincrement=False),
        Column("item", Key, primary_key=True),
        Column("n_labels", Integer, nullable=False),
        Column("first_row", BigInteger, nullable=False),
        Column("first_at", Double, nullable=False),
        Column("ready_at", Double),
        sqlite_with_rowid=False,
    )
    op.create_index("waiting_ready", "waiting", ["stream", "ready_at"])
    op.create_index("waiting_first", "waiting", ["stream", "first_at"])
    op.create_table(
        "batches",
        Column("stream", Integer, primary_key=True, autoincrement=False),
        Column("key", Key, primary_key=True),
        Column("body", Text, nullable=False),
        Column("receipt", Text, nullable=False),
        Column("accepted_at", Double, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "positions",
        Column("stream", Integer, primary_key=True, autoincrement=False),
        Column("source", Key, primary_key=True),
        Column("position", Text, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "chunks",
        Column("stream", Integer, primary_key=True, autoincrement=False),
        Column("id", BigInteger, primary_key=True, autoincrement=False),
        Column("state", Text, nullable=False),
        Column("first_row", BigInteger, nullable=False),
        Column("last_row", BigInteger, nullable=False),
        Column("n_items", Integer, nullable=False),
        Column("n_labels", Integer, nullable=False),
        Column("seed", BigInteger, nullable=False),
        Column("configuration", Text, nullable=False),
        Column("cut_at", Double, nullable=False),
        Column("open_until", Double),
        Column("attempts", Integer, nullable=False),
        Column("error", Text),
        Column("version", BigInteger),
        Column("result", Text),
        Column("labels_kept", Integer, nullable=False),
    )
    op.create_index("chunks_by_state", "chunks", ["stream", "state"])
    op.create_table(
        "models",
        Column("stream", Integer, primary_key=True, autoincrement=False),
        Column("version", BigInteger, nullable=False),
        Column("classes", Text, nullable=False),
        Column("n_workers", BigInteger, nullable=False),
        Column("n_chunks", BigInteger, nullable=False),
        Column("shared", LargeBinary),
    )
    op.create_table(
        "workers",
        Column("stream", Integer, primary_key=True, autoincrement=False),
        Column("place", BigInteger, primary_key=True, autoincrement=False),
        Column("worker", Key, nullable=False),
        Column("n_classes", Integer, nullable=False),
        Column("state", LargeBinary, nullable=False),
        Column("labels", BigInteger, nullable=False),
        Column("agreed", BigInteger, nullable=False),
        UniqueConstraint("stream", "worker", name="workers_by_id"),
    )
    op.create_table(
        "answers",
        Column("stream", Integer, primary_key=True, autoincrement=False),
        Column("item", Key, primary_key=True),
        Column("label", Text, nullable=False),
        Column("confidence", Double, nullable=False),
        Column("probs", LargeBinary, nullable=False),
        Column("n_labels", Integer, nullable=False),
        Column("chunk", BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("answers_of_chunk", "answers", ["stream", "chunk"])
    op.create_table(
        "open_items",
        Column("stream", Integer, primary_key=True, autoincrement=False),
        Column("item", Key, primary_key=True),
        Column("evidence", LargeBinary, nullable=False),
        Column("note", Text, nullable=False),
        Column("open_until", Double, nullable=False),
    )
    op.create_index("open_items_until", "open_items", ["stream", "open_until"])
