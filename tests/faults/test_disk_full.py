"""The disk is full: that is said, reads go on, and with space again everything goes on."""

import os
import subprocess
import time

import pytest
from faults.learners import Remembering
from faults.source import batches_of, drive, ended, labels_of, opened, table_of

from labelquorum.errors import FullError
from labelquorum.store.database import sqlite_wal
from labelquorum.store.store import Store

pytestmark = pytest.mark.kill

TODO = batches_of(labels_of(40), 8)
CI = "LABELQUORUM_CI"


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """A disk of 3 MiB, and a log that is small for it."""
    monkeypatch.setattr(sqlite_wal, "LOG_BYTES", 500_000)
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)]
    reply = subprocess.run(mount, capture_output=True, text=True)
    if reply.returncode:
        reason = f"a small disk takes the right to mount one: {reply.stderr.strip()}"
        (pytest.fail if os.environ.get(CI) else pytest.skip)(reason)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk, leave):
    """Take all space but `leave` bytes."""
    room = os.statvfs(disk)
    size = room.f_bavail * room.f_frsize - leave
    ballast = disk / "ballast"
    with ballast.open("ab") as file:
        file.write(bytes(max(size, 0)))
    return ballast


@pytest.fixture(scope="module")
def end(tmp_path_factory):
    with Store.open(tmp_path_factory.mktemp("end"), learner=Remembering()) as store:
        return ended(drive(store, TODO))


@pytest.mark.parametrize("leave", [0, 100_000, 300_000, 500_000])
def test_a_full_disk_is_said_reads_go_on_and_it_recovers(disk, end, record_property, leave):
    acknowledged = {}
    with Store.open(disk / "store", learner=Remembering()) as store:
        stream = opened(store)
        ballast = fill(disk, leave)
        with pytest.raises(FullError, match=r"the disk is full .*same key once there is space"):
            drive(store, TODO, acknowledged.__setitem__)
        fill(disk, 0)
        before = stream.answers()
        for _ in range(3):  # every further call fails the same way
            with pytest.raises(FullError):
                stream.accept(table_of([("new", "w", "a")] * 3000), "more")
            assert stream.count()["answered_items"] == len(before)
            stream.state_hash()
        ballast.unlink()
        space, again = time.monotonic(), []
        assert ended(drive(store, TODO, lambda *_: again.append(time.monotonic()))) == end
        record_property("seconds to recover", round(again[0] - space, 3))
        assert len(acknowledged) + len(again) == len(TODO)


def test_a_store_on_a_full_disk_is_refused_and_opens_when_there_is_space(disk, end):
    with Store.open(disk / "store", learner=Remembering()) as store:
        opened(store).accept(table_of(TODO[0]), "batch 0", "source", "1")
    ballast = fill(disk, 0)
    with pytest.raises(FullError, match="the disk is full"):
        Store.open(disk / "store", learner=Remembering())
    ballast.unlink()
    with Store.open(disk / "store", learner=Remembering()) as store:
        assert ended(drive(store, TODO)) == end
