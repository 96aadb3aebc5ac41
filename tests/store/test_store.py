"""The store: one writer, tables of one version, and nothing lost or doubled by any end."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from store.driven import RULES, batches, drive

from labelquorum.errors import ConflictError, StateError, StoreError
from labelquorum.store import batch, failpoints
from labelquorum.store import database as database_module
from labelquorum.store.api_keys import Keys
from labelquorum.store.database import schema
from labelquorum.store.database.sql import put
from labelquorum.store.learner import read_until
from labelquorum.store.rules import Rules
from labelquorum.store.search import find_items
from labelquorum.store.store import Store

STORE = Path(failpoints.__file__).parent


# ── faults ───────────────────────────────────────────────────────────────────────────────


def test_every_fault_point_is_listed():
    calls = {
        point
        for path in STORE.rglob("*.py")
        for point in re.findall(r"\bfault\(\"(\w+)\"\)", path.read_text())
    }
    known = {*failpoints.DELETE_POINTS, *failpoints.GOLD_POINTS, *failpoints.JOB_POINTS}
    assert calls == known.union(failpoints.POINTS)


def test_a_stream_passes_every_fault_point(tmp_path):
    passed = []
    failpoints.arm(passed.append)
    try:
        drive(str(tmp_path))
    finally:
        failpoints.arm(None)
    assert set(passed) == set(failpoints.POINTS)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    outcome = drive(str(tmp_path_factory.mktemp("uninterrupted")))
    assert outcome[:2] == (sum(map(len, batches())), 0)
    return outcome


# Processes that are killed are in tests/faults.


@pytest.mark.parametrize("point", failpoints.POINTS)
def test_an_error_at_any_point_leaves_a_stream_that_goes_on(where, uninterrupted, point):
    passed = []

    def hook(name):
        passed.append(name)
        if passed.count(point) == 2 and name == point:
            raise KeyboardInterrupt

    failpoints.arm(hook)
    try:
        with pytest.raises(KeyboardInterrupt):
            drive(where)
    finally:
        failpoints.arm(None)
    assert drive(where) == uninterrupted


# ── deadlines ────────────────────────────────────────────────────────────────────────────


def test_a_query_past_the_deadline_is_interrupted_and_the_connection_goes_on(store):
    numbers = sa.select(sa.literal(1).label("n")).cte("numbers", recursive=True)
    endless = numbers.union_all(sa.select(numbers.c.n + 1).where(numbers.c.n > 0))
    token, began = read_until.set(time.monotonic() + 0.3), time.monotonic()
    try:
        with pytest.raises(TimeoutError, match="reading took too long"), store.read() as connection:
            connection.scalar(sa.select(sa.func.count()).select_from(endless))
    finally:
        read_until.reset(token)
    assert 0.2 < time.monotonic() - began < 5
    with store.read() as connection:  # the same one, without a deadline
        few = numbers.union_all(sa.select(numbers.c.n + 1).where(numbers.c.n < 3_000_000))
        assert connection.scalar(sa.select(sa.func.count()).select_from(few)) == 3_000_000


# ── deleted and renamed ──────────────────────────────────────────────────────────────────


def rows_by_table(store):
    with store.read() as connection:
        return {
            table.name: n
            for table in schema.metadata.sorted_tables
            if (n := connection.scalar(sa.select(sa.func.count()).select_from(table)))
        }


def filled(store, name):
    stream = store.create(name, rules=RULES)
    stream.accept(batches()[0], key="k", source="source", position="1")
    stream.accept(batches()[1])
    stream.settle(flush=True)
    stream.gold({"t0": 1})
    stream.accept(batches()[2])
    Keys(store).make("only", "read", name)
    return stream


def test_a_deleted_stream_leaves_no_row_and_others_stay(store):
    other = filled(store, "other")
    before, hashed = rows_by_table(store), other.state_hash()
    gone = filled(store, "gone")
    held = gone.count()["held_labels"]
    assert held and store.delete("gone") == held
    assert rows_by_table(store) == before and other.state_hash() == hashed
    for use in (gone.count, gone.settle, lambda: gone.accept({"t": {"a": 1}}), gone.snapshot):
        with pytest.raises(StateError, match="was deleted"):
            use()
    again = store.create("gone", rules=RULES)  # no row of the one before, nor its id
    assert again.ref.key != gone.ref.key and not again.count()["held_labels"]
    with pytest.raises(StateError, match="was deleted"):
        gone.accept({"t": {"a": 1}})
    with pytest.raises(StoreError, match="no stream 'never'"):
        store.delete("never")


@pytest.mark.parametrize("point", failpoints.DELETE_POINTS)
def test_an_error_while_a_stream_is_deleted_leaves_it_whole_or_gone(where, point):
    def hook(name):
        if name == point:
            raise KeyboardInterrupt

    with Store.open(where) as store:
        hashed = filled(store, "s").state_hash()
        failpoints.arm(hook)
        try:
            with pytest.raises(KeyboardInterrupt):
                store.delete("s")
        finally:
            failpoints.arm(None)
    with Store.open(where) as store:
        if point == "before_delete_commit":
            assert store.stream("s").state_hash() == hashed
        else:
            assert store.streams() == [] and not rows_by_table(store)


def test_a_renamed_stream_is_the_same_under_another_name(store):
    stream = filled(store, "s")
    hashed, count = stream.state_hash(), stream.count()
    store.create("taken")
    with pytest.raises(ConflictError, match="already"):
        store.rename("s", "taken")
    with pytest.raises(StateError, match="can be printed"):
        store.rename("s", "")
    renamed = store.rename("s", "new")
    assert store.streams() == ["new", "taken"]
    assert (renamed.state_hash(), renamed.count()) == (hashed, count)
    assert stream.count() == count  # who held it by its old name goes on
    assert [key.stream for key in Keys(store).all()] == ["new"]


def test_the_file_of_a_store_is_for_its_owner_alone(tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o755)
    with Store.open(folder) as store:
        store.create("s")
        for file in folder.glob("labelquorum.db*"):
            assert file.stat().st_mode & 0o777 == 0o600, file


def test_a_forgotten_id_does_not_stay_in_the_log(tmp_path):
    with Store.open(tmp_path) as store:
        stream = store.create("s", rules=Rules(chunk_items=1))
        stream.accept({"t": {"someone": "x", "b": "x"}})
        stream.settle()
        assert b"someone" in (tmp_path / "labelquorum.db-wal").read_bytes()
        stream.forget("someone")
        assert b"someone" not in (tmp_path / "labelquorum.db-wal").read_bytes()


# ── one writer ───────────────────────────────────────────────────────────────────────────


def test_a_second_writer_is_refused_with_the_holders_name(where):
    with Store.open(where), pytest.raises(StoreError, match=r"in use by .*process \d+ on "):
        Store.open(where)
    Store.open(where).close()


def test_a_commit_that_fails_is_not_acknowledged(store):
    stream = store.create("s")

    def fail(point):
        if point == "before_accept_commit":
            raise sa.exc.OperationalError("COMMIT", {}, OSError("disk I/O error"))

    failpoints.arm(fail)
    try:
        with pytest.raises(StoreError, match=r"refused .disk I/O error.*same key"):
            stream.accept({"t": {"a": 1}}, key="k")
    finally:
        failpoints.arm(None)
    assert not stream.accept({"t": {"a": 1}}, key="k").repeated
    assert stream.count()["waiting_labels"] == 1


def test_a_connection_that_was_ended_is_made_again(database):
    end = sa.text("SELECT pg_terminate_backend(:pid)")
    with Store.open(database) as store:
        stream = store.create("s")
        with store.write() as connection:
            pid = connection.scalar(sa.text("SELECT pg_backend_pid()"))
        with store.read() as connection:
            connection.execute(end, {"pid": pid})
        with pytest.raises(StoreError, match="the database refused"):
            stream.accept({"t": {"a": 1}}, key="k")
        assert stream.accept({"t": {"a": 1}}, key="k").accepted == 1
        with pytest.raises(StoreError, match="in use by"):
            Store.open(database)  # the lock was taken again


def test_sqlite_waits_for_the_disk_at_every_commit(tmp_path):
    with Store.open(tmp_path) as store, store.read() as connection:
        assert connection.scalar(sa.text("PRAGMA synchronous")) == 2  # FULL
        assert connection.scalar(sa.text("PRAGMA journal_mode")) == "wal"


# ── tables ───────────────────────────────────────────────────────────────────────────────


def test_the_migrations_make_the_tables_of_the_code(store):
    with store.read() as connection:
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, schema.metadata) == []


def indexes_of(connection):
    """The indexes as the database spells them, without quotes and in one line."""
    column, table = ("sql", "sqlite_master WHERE type = 'index'")
    if connection.dialect.name == "postgresql":
        column, table = ("indexdef", "pg_indexes WHERE schemaname = 'public'")
    found = connection.scalars(sa.text(f"SELECT {column} FROM {table}")).all()
    return {" ".join(one.replace('"', "").split()) for one in found if one}


def test_a_store_of_before_the_last_migration_goes_on(where, uninterrupted):
    first, *_ = batches()
    with Store.open(where) as store:
        stream = store.create("s", rules=RULES)
        stream.accept(first, key="batch 0", source="source", position="1")
        with store.write() as connection:
            of_today = indexes_of(connection)
            for statement in _DOWN:
                connection.execute(sa.text(statement))
            if connection.dialect.name == "sqlite":
                connection.execute(sa.text("DELETE FROM sqlite_stat1"))
            assert indexes_of(connection) != of_today
    with Store.open(where) as store, store.read() as connection:
        assert indexes_of(connection) == of_today
        assert store.stream("s").count()["held_labels"] == len(first)
        partial = {one.split()[2] for one in of_today if " IS NOT NULL" in one}
        assert partial == {"labels_of_chunk", "waiting_ready"}
    assert drive(where) == uninterrupted


def test_tables_that_others_read_are_not_waited_for_without_end(database, monkeypatch):
    monkeypatch.setattr(database_module, "UPGRADE_SECONDS", 1)
    with Store.open(database) as store, store.write() as connection:
        for statement in _DOWN:
            connection.execute(sa.text(statement))
    engine, _ = database_module.open_postgresql(database)
    with engine.connect() as reader:
        reader.execute(sa.text("SELECT * FROM labels"))
        with pytest.raises(StoreError, match="lock timeout"):
            Store.open(database)
    engine.dispose()
    Store.open(database).close()


_DOWN = (  # from the tables of today to those of 0003
    "CREATE INDEX answers_by_confidence ON answers (stream, confidence, item)",
    "DROP TABLE jobs",
    "DROP TABLE attributes",
    "ALTER TABLE labels DROP COLUMN score",
    "ALTER TABLE gold DROP COLUMN answered_confidence",
    "ALTER TABLE streams DROP COLUMN held_labels",
    "DROP INDEX labels_of_item",
    "DROP INDEX labels_of_chunk",
    "DROP INDEX waiting_ready",
    "CREATE INDEX labels_of_item ON labels (stream, item, chunk)",
    "CREATE INDEX labels_of_chunk ON labels (stream, chunk)",
    "CREATE INDEX waiting_ready ON waiting (stream, ready_at)",
    "UPDATE alembic_version SET version_num = '0003'",
)


@pytest.mark.parametrize("before", ["", "DELETE FROM sqlite_stat1", "ANALYZE"])
def test_labels_and_what_is_ready_are_found_without_looking_at_all_of_a_stream(tmp_path, before):
    """With labels that are kept, taking in and learning would else be slower with every chunk."""
    if before:  # of people who count the rows of their file
        with Store.open(tmp_path) as store, store.write() as connection:
            connection.execute(sa.text(before))
    asked, found = set(), set()

    def listen(connection, _):
        connection.set_trace_callback(asked.add)

    sa.event.listen(sa.pool.Pool, "connect", listen)
    try:
        with Store.open(tmp_path) as store:
            asked.clear()
            rules = RULES.changed(max_wait=3600, retention="keep", grace=None)
            stream = store.create("s", rules=rules)
            for batch in batches():
                stream.accept(batch)
                stream.settle()
            stream.suggestions()
            stream.worker_table()
            stream.pending()
            stream.model_file()
            find_items(stream, sort="confidence")
            [task, *_] = batch["task"]
            stream.item(task)
            stream.reasons(task)
            stream.count()
            with store.write() as connection:
                for statement in set(asked):
                    if statement.startswith(("SELECT", "UPDATE", "DELETE")):
                        plain = statement.replace("-Inf", "-1e999").replace(" Inf", " 1e999")
                        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {plain}")
                        found.update(row.detail for row in plan)
    finally:
        sa.event.remove(sa.pool.Pool, "connect", listen)
    tables = "labels|waiting|open_items"
    steps = {re.sub("COVERING ", "", step) for step in found if re.search(tables, step)}
    assert steps == {
        "SEARCH labels USING INDEX labels_of_chunk (stream=? AND chunk=?)",
        "SEARCH labels USING INDEX labels_of_item (stream=? AND item=?)",
        "SEARCH labels USING INDEX labels_of_item (stream=? AND item=?) LEFT-JOIN",
        "SEARCH labels USING PRIMARY KEY (stream=? AND row>?)",  # those of a chunk, all near
        "SEARCH open_items USING INDEX open_items_until (stream=?)",  # whether there is any
        "SEARCH open_items USING INDEX open_items_until (stream=? AND open_until<?)",
        "SEARCH open_items USING INDEX open_items_until (stream=? AND open_until>?)",  # 10,000
        "SEARCH open_items USING INDEX sqlite_autoindex_open_items_1 (stream=? AND item=?)",
        "SEARCH waiting USING INDEX waiting_first (stream=?)",
        "SEARCH waiting USING INDEX waiting_first (stream=? AND first_at<?)",
        "SEARCH waiting USING INDEX waiting_ready (stream=? AND ready_at>?)",
        "SEARCH waiting USING PRIMARY KEY (stream=? AND item=?)",
    }


def test_a_store_of_a_later_version_is_refused(where):
    with Store.open(where) as store, store.write() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreError, match=r"version 9999.*Update labelquorum"):
        Store.open(where)


@pytest.mark.parametrize("n_rows", [0, 1, 15, 16, 17, 31, 255, 256, 257, 271, 272, 600])
def test_any_number_of_rows_is_written_once(store, n_rows):
    rows = [(7, f"w{n}") for n in range(n_rows)]
    blobs = [(7, n, f"{n}", 2, bytes([n % 256]), n, n) for n in range(n_rows)]
    columns = ("stream", "place", "worker", "n_classes", "state", "labels", "agreed")
    with store.write() as connection:
        for _ in range(2):  # again, in place of themselves
            put(connection, schema.crowd, ("stream", "worker"), rows, ("stream", "worker"))
            put(connection, schema.workers, columns, blobs, ("stream", "place"))
    with store.read() as connection:
        assert sorted(connection.execute(sa.select(schema.crowd))) == sorted(rows)
        kept = [schema.workers.c[name] for name in columns]
        found = connection.execute(sa.select(*kept).order_by(schema.workers.c.place))
        assert list(map(tuple, found)) == blobs


def test_many_texts_are_decoded_as_each_alone():
    values = ["a", 'with "quotes", and commas', 1, 1.5, True, None, ["in", "a", "list"]]
    assert batch.decode_all(list(map(batch.encode, values))) == values
    assert batch.decode_all([]) == []
    with pytest.raises(ValueError, match="not one value"):
        batch.decode_all(['"a"', '"b","c"'])


# ── the page ─────────────────────────────────────────────────────────────────────────────


def test_the_page_names_every_table_rule_and_fault_point():
    page = (STORE.parents[2] / "docs" / "store.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", page, re.M))
    assert set(schema.metadata.tables) <= set(rows)
    reply = {name: rows[name].strip("`") for name in Rules().as_dict()}
    assert reply == {name: repr(value) for name, value in Rules().as_dict().items()}
    points = {*failpoints.DELETE_POINTS, *failpoints.GOLD_POINTS, *failpoints.JOB_POINTS}
    assert points.union(failpoints.POINTS) <= set(re.findall(r"`(\w+)`", page))


# ── what is refused ──────────────────────────────────────────────────────────────────────


def test_streams_have_names_of_their_own(store):
    store.create("one")
    with pytest.raises(StoreError, match="there is a stream 'one' already"):
        store.create("one")
    with pytest.raises(StoreError, match=r"no stream 'two'.*\['one'\]"):
        store.stream("two")


@pytest.mark.parametrize("name", ["", " ", "a\nb", "a\0b", "x" * 257, 5, "\ud800"])
def test_a_name_that_cannot_be_printed_is_refused(store, name):
    with pytest.raises(StateError, match="stream's name must be text"):
        store.create(name)


@pytest.mark.parametrize("url", ["mysql://host/db", "sqlite:///file", "://", "http://x"])
def test_another_database_is_refused(url):
    with pytest.raises(StateError, match="folder or a URL that starts with postgresql"):
        Store.open(url)


def test_a_server_that_is_not_there_is_one_sentence():
    with pytest.raises(StoreError, match="the database refused") as caught:
        Store.open("postgresql://user:secret@127.0.0.1:1/none")
    assert "secret" not in str(caught.value)


def test_a_folder_that_is_made_is_for_its_owner_alone(tmp_path):
    Store.open(tmp_path / "store").close()
    assert (tmp_path / "store").stat().st_mode & 0o777 == 0o700


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="no store can be kept there"):
        Store.open(tmp_path / "file")


def test_a_file_that_is_no_database_is_refused(tmp_path):
    (tmp_path / "labelquorum.db").write_bytes(b"no database" * 1000)
    with pytest.raises(StoreError, match="not a database"):
        Store.open(tmp_path)


def test_the_library_needs_no_database():
    code = (
        "import sys, labelquorum as lq; lq.BiLA; assert 'sqlalchemy' not in sys.modules; "
        "sys.modules['sqlalchemy'] = None; import labelquorum.learn.estimators"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_store_that_was_closed_writes_no_more(tmp_path):
    first = Store.open(tmp_path / "store")
    stream = first.create("s", classes=["a", "b"])
    first.close()
    with Store.open(tmp_path / "store") as second:
        with pytest.raises(StoreError, match="was closed"):
            stream.accept({"t": {"w": "a"}})
        assert second.stream("s").count()["held_labels"] == 0


def test_who_finds_no_free_connection_is_told_so(tmp_path, monkeypatch):
    with Store.open(tmp_path / "store") as store:
        pool = store._engine.pool
        monkeypatch.setattr(pool, "_timeout", 0.01)
        held = [store._engine.connect() for _ in range(pool.size() + pool._max_overflow - 1)]
        with pytest.raises(StoreError, match="too many read"):
            store.streams()
        for connection in held:
            connection.close()
        assert store.streams() == []


@pytest.mark.parametrize("rule", ["labels_per_item", "chunk_items", "max_workers"])
def test_a_count_no_database_can_hold_is_no_rule(rule):
    with pytest.raises(StateError, match="from 1 to"):
        Rules(**{rule: 2**63})
