"""Power is lost, and bytes are damaged: what is found is a prefix of the commits, or refused."""

import shutil
import sqlite3
from contextlib import contextmanager

import pytest
from faults.files import Disk, Platter, Step, engine_on, rng
from faults.source import batches_of, drive, ended, fingerprint, labels_of

from labelquorum.errors import StoreError
from labelquorum.store.database import sqlite_wal
from labelquorum.store.store import FILE, Store

pytestmark = pytest.mark.kill

TODO = batches_of(labels_of(60), 4)
TRIALS = 300
REFUSED = -1
WAL, SEAL = f"{FILE}-wal", "labelquorum.seal"


class Run:
    """One run to its end: all that was asked of the disk, the states it had, and some copies."""

    def __init__(self, folder):
        self.disk, self.states, self.copies = Disk(f"power {folder.name}"), [], []
        self.folder, self.clock = folder / "store", lambda: 1000.0
        with engine_on(self.disk), small_log(), Store.open(self.folder, self.clock) as store:
            self._note(store)
            with noting(store, self._note):
                stream = drive(store, TODO)
            self.end = ended(stream)

    def _note(self, store):
        self.states.append(fingerprint(store))
        self.disk.steps.append(Step("committed", ""))
        files = {name: (self.folder / name).read_bytes() for name in (FILE, WAL)}
        if (self.folder / SEAL).exists():
            files[SEAL] = (self.folder / SEAL).read_bytes()
            if not self.copies or self.copies[-1].get(SEAL) != files[SEAL]:
                self.disk.steps.append(Step("replace", SEAL, data=files[SEAL]))
        self.copies.append(files)


@contextmanager
def small_log():
    """Inside the block, checkpoint the WAL often."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite_wal, "LOG_BYTES", 600_000)
        yield


@contextmanager
def noting(store, note):
    """Call a function after every commit of a store."""
    write = store.write

    @contextmanager
    def noted():
        with write() as connection:
            yield connection
        note(store)

    store.write = noted
    try:
        yield
    finally:
        store.write = write


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return Run(tmp_path_factory.mktemp("run"))


def found(run, files, folder):
    """What is found in such files: the number of the state, unless the start is refused."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    try:
        with Store.open(folder, run.clock) as store:
            state = fingerprint(store)
    except StoreError as error:
        assert str(folder) in str(error)
        return REFUSED
    assert state in run.states, "a state that never was"
    return run.states.index(state)


def test_after_a_loss_of_power_all_that_was_acknowledged_is_there(
    run, tmp_path, size, record_property
):
    steps, platter, done, n_committed = run.disk.steps, Platter(), 0, 0
    record_property("trials", size(TRIALS, 3 * TRIALS))
    moments = sorted(
        rng("moments", n).randrange(len(steps)) for n in range(size(TRIALS, 3 * TRIALS))
    )
    for trial, moment in enumerate(moments):
        for step in steps[done:moment]:
            platter.do(step)
            n_committed += step.what == "committed"
        done, chance = moment, rng("power", trial)
        state = found(run, platter.after_power_loss(chance), tmp_path / "store")
        assert n_committed - 1 <= state <= n_committed, trial
        if trial % 30 == 0:
            with Store.open(tmp_path / "store", run.clock) as store:
                assert ended(drive(store, TODO)) == run.end


def cut(data, chance):
    return data[: chance.randrange(len(data))]


def zero(data, chance):
    start = chance.randrange(len(data))
    size = min(chance.choice((1, 24, 512, 4096, len(data))), len(data) - start)
    return data[:start] + bytes(size) + data[start + size :]


def flip(data, chance):
    damaged = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 8))):
        damaged[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(damaged)


@pytest.mark.parametrize("damage", [cut, zero, flip])
@pytest.mark.parametrize("name", [WAL, FILE, SEAL])
def test_damaged_bytes_give_a_prefix_of_the_commits_or_a_refusal(
    run, tmp_path, size, record_property, damage, name
):
    refused, trials = 0, size(TRIALS // 3, TRIALS)
    for trial in range(trials):
        chance = rng(damage.__name__, name, trial)
        files = dict(chance.choice([one for one in run.copies if one.get(name)]))
        files[name] = damage(files[name], chance)
        refused += found(run, files, tmp_path / "store") == REFUSED
    figures = {"trials": trials, "refused": refused, "prefixes": trials - refused, "wrong": 0}
    for label, value in figures.items():
        record_property(label, value)


def test_whoever_else_writes_the_log_into_the_file_breaks_no_seal(run, tmp_path):
    for trial in range(5):
        chance = rng("others", trial)
        files = chance.choice([one for one in run.copies if SEAL in one and one[WAL]])
        state = found(run, files, tmp_path / "store")
        for name, data in files.items():
            (tmp_path / "store" / name).write_bytes(data)
        database = sqlite3.connect(tmp_path / "store" / FILE)  # as its shell would
        database.execute("PRAGMA user_version").fetchone()
        database.close()
        assert not (tmp_path / "store" / WAL).exists()
        with Store.open(tmp_path / "store", run.clock) as store:
            assert fingerprint(store) == run.states[state]
            assert ended(drive(store, TODO)) == run.end
        Store.open(tmp_path / "store", run.clock).close()


def test_a_log_that_is_damaged_after_it_was_brought_into_the_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite_wal, "LOG_BYTES", 100_000)
    monkeypatch.setattr(sqlite_wal, "READ_SECONDS", 0.0)
    whole, draw = tmp_path / "whole", rng("a log that is read")

    def labels(n):
        return {f"{draw.randrange(10**9):09}": {"w": "a"} for _ in range(n)}

    with Store.open(whole) as store:
        stream = store.create("s", classes=["a", "b"])
        for _ in range(10):
            stream.accept(labels(200))
    with Store.open(whole) as store:
        stream = store.stream("s")
        for _ in range(10):
            with store.read() as connection:  # which keeps the log from being emptied
                connection.exec_driver_sql("SELECT 1 FROM streams").all()
                stream.accept(labels(5))
        count = stream.count()
        for number in range(12):
            copy = tmp_path / str(number)
            copy.mkdir()
            for file in whole.iterdir():
                if not file.name.endswith("-shm"):
                    shutil.copy(file, copy)
            log = bytearray((copy / WAL).read_bytes())
            if number:
                log[draw.randrange(len(log) // 2)] ^= 255
                (copy / WAL).write_bytes(log)
                with pytest.raises(StoreError, match="its log"):
                    Store.open(copy)
            else:
                with Store.open(copy) as good:
                    assert good.stream("s").count() == count
    with Store.open(whole) as store:
        assert store.stream("s").count() == count
