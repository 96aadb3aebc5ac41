"""Backups: one committed state, of either database, into either database."""

import sqlite3
import subprocess
import sys
import threading

import pytest
from store.driven import RULES, batches

from labelquorum.errors import StateError, StoreError
from labelquorum.store.backup import backup, restore
from labelquorum.store.check import examine_store
from labelquorum.store.database import open_sqlite, upgrade
from labelquorum.store.learner import LocalLearner
from labelquorum.store.store import Store


def fill(store, n_batches=3, name="s"):
    stream = store.create(name, rules=RULES)
    for number, batch in enumerate(batches()[:n_batches]):
        stream.accept(batch, key=f"{number}", source="file", position=f"{number}")
        stream.settle()
    return stream


def everything(store):
    """All rows of all tables."""
    from labelquorum.store.database import schema

    with store.read() as connection:
        return {
            table.name: sorted(map(tuple, connection.execute(table.select())), key=repr)
            for table in schema.metadata.sorted_tables
        }


@pytest.fixture(params=["sqlite", "postgresql"])
def elsewhere(request, tmp_path):
    """Where a store may be restored: once for each database."""
    if request.param == "sqlite":
        return str(tmp_path / "elsewhere")
    return request.getfixturevalue("other_database")


def test_a_store_in_use_is_backed_up_and_restored_to_either_database(
    store, where, clock, elsewhere, tmp_path
):
    stream = fill(store)
    fill(store, 1, "other")
    backup(where, tmp_path / "b.db")
    before, hash_then = everything(store), stream.state_hash()
    stream.accept(batches()[3])
    stream.settle()
    assert stream.state_hash() != hash_then
    restore(tmp_path / "b.db", elsewhere)
    with Store.open(elsewhere, clock) as again:
        assert everything(again) == before
        assert again.stream("s").state_hash() == hash_then
        restored = again.stream("s")
        restored.accept(batches()[3])
        restored.settle()
        assert restored.state_hash() == stream.state_hash()
        again.create("third")  # numbers go on after those that were restored
        assert again.streams() == ["other", "s", "third"]


def test_a_backup_under_load_is_a_committed_state(store, where, tmp_path):
    stream = store.create("s", rules=RULES)
    hashes, done = {stream.state_hash()}, threading.Event()

    def drive():
        try:
            for number, batch in enumerate(batches()):
                stream.accept(batch, key=f"{number}")
                while cut := stream.cut():
                    stream.advance(cut)
                    hashes.add(stream.state_hash())
        finally:
            done.set()

    thread = threading.Thread(target=drive)
    thread.start()
    n_taken = 0
    while not done.is_set() or not n_taken:
        backup(where, tmp_path / f"{n_taken}.db")
        n_taken += 1
    thread.join()
    for number in range(n_taken):
        restore(tmp_path / f"{number}.db", tmp_path / f"restored {number}")
        with Store.open(tmp_path / f"restored {number}") as again:
            assert again.stream("s").state_hash() in hashes


def test_a_backup_is_one_file_that_takes_the_place_of_the_last(store, where, tmp_path):
    folder = tmp_path / "backups"
    folder.mkdir()
    fill(store, 1)
    for _ in range(2):
        backup(where, folder / "b.db")
        assert [path.name for path in folder.iterdir()] == ["b.db"]


@pytest.mark.kill
def test_a_backup_of_a_process_that_was_killed_holds_what_was_acknowledged(tmp_path):
    program = (
        "import os, sys; from labelquorum.store.store import Store; "
        "store = Store.open(sys.argv[1]); stream = store.create('s'); "
        "stream.accept({'t': {'a': 1}}); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "s")], timeout=120)
    backup(tmp_path / "s", tmp_path / "b.db")
    restore(tmp_path / "b.db", tmp_path / "r")
    with Store.open(tmp_path / "r") as again:
        assert again.stream("s").count()["waiting_labels"] == 1


def test_what_is_not_empty_is_not_overwritten(store, where, tmp_path):
    fill(store, 1)
    backup(where, tmp_path / "b.db")
    before = everything(store)
    store.close()
    with pytest.raises(StoreError, match=r"not an empty folder|database is not empty"):
        restore(tmp_path / "b.db", where)
    with Store.open(where) as again:
        assert everything(again) == before


def test_a_damaged_backup_is_refused(tmp_path):
    with Store.open(tmp_path / "s") as store:
        fill(store)
    backup(tmp_path / "s", tmp_path / "b.db")
    content = bytearray((tmp_path / "b.db").read_bytes())
    content[4096:8192] = bytes(4096)
    (tmp_path / "b.db").write_bytes(content)
    with pytest.raises(StoreError, match=r"b\.db: (the file is damaged|the database refused)"):
        restore(tmp_path / "b.db", tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_a_sound_backup_does_not_give_way_to_a_damaged_store(tmp_path):
    with Store.open(tmp_path / "s") as store:
        fill(store)
        backup(tmp_path / "s", tmp_path / "b.db")  # also of a store that is held
    backup(tmp_path / "s", tmp_path / "b.db")
    sound, file = (tmp_path / "b.db").read_bytes(), tmp_path / "s" / "labelquorum.db"
    content = bytearray(file.read_bytes())
    content[content.index(b"configuration") + 3] ^= 1  # in a text, where SQLite finds nothing odd
    file.write_bytes(content)
    with pytest.raises(StoreError, match="not as it was written"):
        backup(tmp_path / "s", tmp_path / "b.db")
    assert (tmp_path / "b.db").read_bytes() == sound


def test_a_restored_store_is_sealed_and_so_is_one_that_was_only_opened(tmp_path):
    with Store.open(tmp_path / "s") as store:
        fill(store)
    backup(tmp_path / "s", tmp_path / "b.db")
    restore(tmp_path / "b.db", tmp_path / "r")
    seal = tmp_path / "r" / "labelquorum.seal"
    before = seal.read_bytes()
    Store.open(tmp_path / "r").close()
    assert seal.read_bytes() == before  # nothing was to be done
    seal.unlink()
    Store.open(tmp_path / "r").close()
    assert seal.is_file()
    Store.open(tmp_path / "r").close()  # and of this very file
    file = tmp_path / "r" / "labelquorum.db"
    connection = sqlite3.connect(file)  # another file in its place, that never had a mark
    connection.execute("PRAGMA user_version = 0")
    connection.execute("UPDATE streams SET moment = moment + 1")
    connection.commit()
    connection.execute("VACUUM")
    connection.close()
    for _ in range(3):
        Store.open(tmp_path / "r").close()
    assert examine_store(tmp_path / "r")
    with pytest.raises(StoreError, match="no store in this folder"):
        examine_store(file)


def test_a_file_that_is_no_backup_is_refused(tmp_path):
    (tmp_path / "text").write_text("no database " * 1000)
    sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE t (x)").connection.close()
    for name, sentence in (
        ("text", "no store, nor a backup of one .*not a database"),
        ("other.db", "no store, nor a backup"),
        ("none", "no such backup"),
    ):
        with pytest.raises(StoreError, match=sentence):
            restore(tmp_path / name, tmp_path / "r")


def test_a_backup_of_a_later_version_is_refused(tmp_path):
    with Store.open(tmp_path / "s") as store:
        fill(store, 1)
    backup(tmp_path / "s", tmp_path / "b.db")
    connection = sqlite3.connect(tmp_path / "b.db")
    connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.commit()
    connection.close()
    with pytest.raises(StoreError, match=r"version 9999.*Update labelquorum"):
        restore(tmp_path / "b.db", tmp_path / "r")


def test_a_backup_of_an_earlier_version_is_brought_up_to_date(tmp_path, elsewhere):
    engine = open_sqlite(tmp_path / "b.db")
    with engine.connect().execution_options(writes=True) as connection, connection.begin():
        upgrade(connection, "0001")
        connection.exec_driver_sql(
            "INSERT INTO streams VALUES (7, 's', ?, ?, ?, '{}', 1, 1, 0, 0.0)",
            tuple(LocalLearner().configure("bila", {})),
        )
        connection.exec_driver_sql("INSERT INTO models VALUES (7, 0, '[]', 0, 0, NULL)")
    engine.dispose()
    restore(tmp_path / "b.db", elsewhere)
    with Store.open(elsewhere) as store:
        assert store.streams() == ["s"]
        assert store.create("t").ref.key == 8


def test_where_there_is_no_store_nothing_is_made(tmp_path, database):
    with pytest.raises(StoreError, match="no store in this folder"):
        backup(tmp_path / "none", tmp_path / "b.db")
    with pytest.raises(StoreError, match="no store in this database"):
        backup(database, tmp_path / "b.db")
    for where in (tmp_path / "none", database):
        with pytest.raises(StoreError, match="no store in this"):
            Store.look(where)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StateError, match="starts with postgresql"):
        backup("mysql://x/y", tmp_path / "b.db")


def test_a_store_is_read_beside_its_writer_and_never_written(store, where):
    stream = fill(store, 2)
    with Store.look(where) as beside:
        assert beside.streams() == ["s"]
        assert beside.stream("s").state_hash() == stream.state_hash()
        with pytest.raises(StoreError, match="opened to be read"):
            beside.stream("s").accept({"t": {"a": 1}})


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (
            "CREATE TRIGGER evil AFTER INSERT ON labels BEGIN DELETE FROM keys; END",
            "a trigger 'evil'",
        ),
        ("CREATE VIEW evil AS SELECT 1", "a view 'evil'"),
        ("CREATE TABLE evil (a)", "a table 'evil'"),
        ("DROP TABLE labels", "table 'labels' is missing"),
        ("ALTER TABLE labels DROP COLUMN weight", "table 'labels' is missing or other"),
        ("UPDATE alembic_version SET version_num = '0000'", "version '0000' is not known"),
        ("UPDATE streams SET rules = '{}}'", "row of stream .s. cannot be read"),
        ('UPDATE streams SET rules = \'{"grace": "x"}\'', "row of stream .s. cannot be read"),
        ("UPDATE streams SET settings = '3'", "row of stream .s. cannot be read"),
        (
            "UPDATE streams SET settings = json_remove(settings, '$.repeats')",
            "row of stream .s. cannot be read \\('repeats' is missing",
        ),
        ("UPDATE streams SET settings = json_set(settings, '$.seed', 'x')", "its seed"),
        ("UPDATE streams SET settings = json_set(settings, '$.classes', 3)", "cannot be read"),
        ("UPDATE streams SET moment = 'noon'", "its moment is 'noon'"),
        ("UPDATE streams SET moment = 9e999", "its moment is 'inf'"),
        ("UPDATE streams SET next_row = 'one'", "its next_row is 'one'"),
        ("UPDATE streams SET name = x'00'", "its name is"),
        ("UPDATE streams SET method = 'magic'", "no method 'magic'"),
        ("UPDATE models SET classes = '{}'", "its model has no classes"),
        ("DELETE FROM models", "its model has no classes"),
    ],
)
def test_a_crafted_backup_is_refused_with_a_sentence(tmp_path, statement, said):
    with Store.open(tmp_path / "s") as store:
        store.create("s")
    backup(tmp_path / "s", tmp_path / "b")
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o600
    connection = sqlite3.connect(tmp_path / "b")
    connection.execute(statement)
    connection.commit()
    connection.close()
    with pytest.raises(StoreError, match=said):
        restore(tmp_path / "b", tmp_path / "r")
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    "change", ["moment = 'noon'", "settings = json_remove(settings, '$.repeats')"]
)
def test_a_store_with_a_row_that_is_no_streams_is_refused_with_a_sentence(tmp_path, change):
    with Store.open(tmp_path / "s") as store:
        store.create("s")
    backup(tmp_path / "s", tmp_path / "b")
    connection = sqlite3.connect(tmp_path / "b")
    connection.execute(f"UPDATE streams SET {change}")
    connection.commit()
    connection.close()
    (tmp_path / "r").mkdir()
    (tmp_path / "b").rename(tmp_path / "r" / "labelquorum.db")
    for use in (Store.open, Store.look, examine_store):
        with pytest.raises(StoreError, match=r"row of stream 's' cannot be read .*Restore"):
            use(tmp_path / "r")
