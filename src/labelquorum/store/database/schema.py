"""The tables of the store, the same in SQLite and PostgreSQL.

Ids and labels are the user's own. They are kept as JSON text, so their type comes back, and NUL
and quotes are only text to either database.
"""

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)

metadata = MetaData()

# In SQLite, tables of many small rows are kept in the order of their keys: one tree less to write.

# Compared byte by byte in both databases, whatever the language of the server.
Key = Text().with_variant(Text(collation="C"), "postgresql")


def _partial(name: str, *columns: str) -> Index:
    """An index of the rows that have something in the last of these columns."""
    there = text(f"{columns[-1]} IS NOT NULL")
    return Index(name, *columns, sqlite_where=there, postgresql_where=there)


streams = Table(
    "streams",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Key, nullable=False, unique=True),
    Column("method", Text, nullable=False),
    Column("settings", Text, nullable=False),  # of the method, JSON
    Column("configuration", Text, nullable=False),  # SHA-256 of the two
    Column("rules", Text, nullable=False),  # chunking and retention, JSON; changeable live
    Column("next_row", BigInteger, nullable=False),
    Column("next_chunk", BigInteger, nullable=False),
    Column("late_labels", BigInteger, nullable=False),  # set aside: their items were closed
    Column("moment", Double, nullable=False),  # the latest the stream has seen; never goes back
    Column("n_crowd", BigInteger, nullable=False),  # workers of whom labels were accepted
    Column("held_labels", BigInteger, nullable=False),  # raw labels that are kept or wait
)

# Raw labels. `chunk` is NULL until they are cut.
labels = Table(
    "labels",
    metadata,
    Column("stream", Integer, primary_key=True, autoincrement=False),
    Column("row", BigInteger, primary_key=True, autoincrement=False),
    Column("item", Key, nullable=False),
    Column("worker", Key, nullable=False),
    Column("label", Text, nullable=False),
    Column("weight", Double),
    Column("group", Text),
    Column("timestamp", Text),
    Column("chunk", BigInteger),
    Column("score", Double),
    Index("labels_of_item", "stream", "item"),
    _partial("labels_of_chunk", "stream", "chunk"),
    sqlite_with_rowid=False,
)

# Items with labels that are not cut yet.
waiting = Table(
    "waiting",
    metadata,
    Column("stream", Integer, primary_key=True, autoincrement=False),
    Column("item", Key, primary_key=True),
    Column("n_labels", Integer, nullable=False),  # of different workers, unless all count
    Column("first_row", BigInteger, nullable=False),
    Column("first_at", Double, nullable=False),
    Column("ready_at", Double),  # when it had labels enough
    _partial("waiting_ready", "stream", "ready_at"),
    Index("waiting_first", "stream", "first_at"),
    sqlite_with_rowid=False,
)

# Workers of whom labels were accepted.
crowd = Table(
    "crowd",
    metadata,
    Column("stream", Integer, primary_key=True, autoincrement=False),
    Column("worker", Key, primary_key=True),
    sqlite_with_rowid=False,
)

# What is known of workers: only those of whom something is, and from when it was accepted.
attributes = Table(
    "attributes",
    metadata,
    Column("stream", Integer, primary_key=True, autoincrement=False),
    Column("worker", Key, primary_key=True),
    Column("worker_kind", Text),
    Column("model", Text),
    Column("prompt", Text),
    Column("order", Text),
    sqlite_with_rowid=False,
)

# Items whose truth is known. `chunk` is NULL until it is cut with its item.
gold = Table(
    "gold",
    metadata,
    Column("stream", Integer, primary_key=True, autoincrement=False),
    Column("item", Key, primary_key=True),
    Column("label", Text, nullable=False),
    Column("given_at", Double, nullable=False),
    Column("answered", Text),  # what had been answered before
    Column("chunk", BigInteger),
    Column("replaced", Text),  # what the statistics count in its place: class and part, JSON
    Column("answered_confidence", Double),  # of `answered`; NULL if unknown
    Index("gold_of_chunk", "stream", "chunk"),
)

# What was accepted under a key.
batches = Table(
    "batches",
    metadata,
    Column("stream", Integer, primary_key=True, autoincrement=False),
    Column("key", Key, primary_key=True),
    Column("body", Text, nullable=False),  # SHA-256
    Column("receipt", Text, nullable=False),  # JSON
    Column("accepted_at", Double, nullable=False),
    sqlite_with_rowid=False,
)

# How far each source was read.
positions = Table(
    "positions",
    metadata,
    Column("stream", Integer, primary_key=True, autoincrement=False),
    Column("source", Key, primary_key=True),
    Column("position", Text, nullable=False),
    sqlite_with_rowid=False,
)

chunks = Table(
    "chunks",
    metadata,
    Column("stream", Integer, primary_key=True, autoincrement=False),
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("state", Text, nullable=False),  # cut, applied, quarantined
    Column("first_row", BigInteger, nullable=False),
    Column("last_row", BigInteger, nullable=False),
    Column("n_items", Integer, nullable=False),
    Column("n_labels", Integer, nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("configuration", Text, nullable=False),
    Column("cut_at", Double, nullable=False),
    Column("open_until", Double),  # NULL: its items are closed at once; infinity: never
    Column("attempts", Integer, nullable=False),
    Column("error", Text),
    Column("version", BigInteger),  # of the model it made
    Column("result", Text),  # JSON
    Column("labels_kept", Integer, nullable=False),  # 1 while its raw labels are there
    Column("applied_at", Double),
    Column("summary", Text),  # its statistics, JSON
    Index("chunks_by_state", "stream", "state"),
)

# What all workers share.
models = Table(
    "models",
    metadata,
    Column("stream", Integer, primary_key=True, autoincrement=False),
    Column("version", BigInteger, nullable=False),
    Column("classes", Text, nullable=False),  # known so far, JSON
    Column("n_workers", BigInteger, nullable=False),  # places given so far
    Column("n_chunks", BigInteger, nullable=False),  # that had news
    Column("shared", LargeBinary),  # arrays; NULL until there was a chunk
)

workers = Table(
    "workers",
    metadata,
    Column("stream", Integer, primary_key=True, autoincrement=False),
    Column("place", BigInteger, primary_key=True, autoincrement=False),  # in order of appearance
    Column("worker", Key, nullable=False),
    Column("n_classes", Integer, nullable=False),  # when the row was written
    Column("state", LargeBinary, nullable=False),
    Column("labels", BigInteger, nullable=False),
    Column("agreed", BigInteger, nullable=False),
    Column("track", LargeBinary),  # agreement over time, float32; NULL before it was recorded
    UniqueConstraint("stream", "worker", name="workers_by_id"),
)

# No index by confidence: in it an answer goes anywhere, so writing one costs more than reading all
# answers now and then, 0.07 to 0.2 seconds per million.
answers = Table(
    "answers",
    metadata,
    Column("stream", Integer, primary_key=True, autoincrement=False),
    Column("item", Key, primary_key=True),
    Column("label", Text, nullable=False),
    Column("confidence", Double, nullable=False),
    Column("probs", LargeBinary, nullable=False),  # float32, in the order of the classes
    Column("n_labels", Integer, nullable=False),
    Column("chunk", BigInteger, nullable=False),
    Index("answers_of_chunk", "stream", "chunk"),
    sqlite_with_rowid=False,
)

# Answered items that are still open for late labels and corrections.
open_items = Table(
    "open_items",
    metadata,
    Column("stream", Integer, primary_key=True, autoincrement=False),
    Column("item", Key, primary_key=True),
    Column("evidence", LargeBinary, nullable=False),
    Column("note", Text, nullable=False),
    Column("open_until", Double, nullable=False),
    Index("open_items_until", "stream", "open_until"),
)

# What happened; written in the transaction of the change itself.
events = Table(
    "events",
    metadata,
    Column("stream", Integer, primary_key=True, autoincrement=False),
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("at", Double, nullable=False),
    Column("kind", Text, nullable=False),
    Column("body", Text, nullable=False),  # JSON
)

# What takes many transactions and is not done yet.
jobs = Table(
    "jobs",
    metadata,
    Column("stream", Integer, primary_key=True, autoincrement=False),
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),  # forget, withdraw
    Column("body", Text, nullable=False),  # what of, JSON
    Column("progress", Text, nullable=False),  # counts of the steps so far, JSON
)

# Who may ask for what. A key itself is shown once and never kept.
keys = Table(
    "keys",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False),
    Column("digest", Text, nullable=False, unique=True),  # SHA-256
    Column("scope", Text, nullable=False),  # read, write, admin
    Column("stream", Integer),  # NULL: every stream
    Column("created_at", Double, nullable=False),
    Column("revoked_at", Double),
)
