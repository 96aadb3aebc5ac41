"""What a service needs: keys, events, true labels, and how large the crowd is."""

from alembic import op
from sqlalchemy import BigInteger, Column, Double, Integer, Text, UniqueConstraint

revision = "0002"
down_revision = "0001"

Key = Text().with_variant(Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add the tables, and count who is known so far."""
    op.create_table(
        "crowd",
        Column("stream", Integer, primary_key=True, autoincrement=False),
        Column("worker", Key, primary_key=True),
        sqlite_with_rowid=False,
    )
    op.execute(
        "INSERT INTO crowd (stream, worker) SELECT stream, worker FROM workers "
        "WHERE worker != 'null' UNION SELECT stream, worker FROM labels"
    )
    op.add_column("streams", Column("n_crowd", BigInteger, nullable=False, server_default="0"))
    op.execute(
        "UPDATE streams SET n_crowd = (SELECT count(*) FROM crowd WHERE crowd.stream = streams.id)"
    )
    op.create_table(
        "gold",
        Column("stream", Integer, primary_key=True, autoincrement=False),
        Column("item", Key, primary_key=True),
        Column("label", Text, nullable=False),
        Column("given_at", Double, nullable=False),
        Column("answered", Text),
        Column("chunk", BigInteger),
    )
    op.create_index("gold_of_chunk", "gold", ["stream", "chunk"])
    op.create_table(
        "events",
        Column("stream", Integer, primary_key=True, autoincrement=False),
        Column("id", BigInteger, primary_key=True, autoincrement=False),
        Column("at", Double, nullable=False),
        Column("kind", Text, nullable=False),
        Column("body", Text, nullable=False),
    )
    op.create_table(
        "keys",
        Column("id", Integer, primary_key=True),
        Column("name", Text, nullable=False),
        Column("digest", Text, nullable=False),
        Column("scope", Text, nullable=False),
        Column("stream", Integer),
        Column("created_at", Double, nullable=False),
        Column("revoked_at", Double),
        UniqueConstraint("digest"),
    )
    op.create_index("answers_by_confidence", "answers", ["stream", "confidence", "item"])
    op.drop_index("labels_of_item", "labels")
    op.create_index("labels_of_item", "labels", ["stream", "item", "chunk"])
