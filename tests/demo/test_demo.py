"""The demo: an honest crowd, figures that can be recounted, and nothing left behind."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cli.test_cli import run
from server.served import until

import labelquorum as lq
from labelquorum import demo
from labelquorum.demo import browser, crowd
from labelquorum.errors import StoreError
from labelquorum.evaluation.simulate.oracle import oracle
from labelquorum.store.api_keys import Keys
from labelquorum.store.store import Store

PATIENCE = 180  # seconds a test waits for another process before it fails
N_ITEMS = 1_000


@pytest.fixture(scope="module")
def scene():
    return crowd.simulate(N_ITEMS, rate=10_000.0, turn=0.5, seed=1)


# ── the crowd ────────────────────────────────────────────────────────────────────────────


def test_crowd_holds_every_kind_of_worker_with_the_habits_of_his_kind(scene):
    made = scene.crowd
    assert len(scene.kinds) == len(set(crowd.WORKERS)) == len(made.confusion) == 26
    for kind in crowd.KINDS:
        assert scene.kinds.count(kind.name) == len(scene.of_kind(kind.name)) == kind.n_workers
    favourite = made.confusion[scene.kinds.index("wrong on purpose")].argmax(axis=1)
    assert [crowd.CLASSES[z] for z in favourite] == ["dog", "cat", "owl", "fox"]
    assert np.all(np.bincount(made.item) == crowd.LABELS_PER_ITEM)
    assert len(set(zip(made.item, made.worker, strict=True))) == made.item.size


def test_one_worker_turns_bad_half_way(scene):
    made, k = scene.crowd, scene.kinds.index(crowd.SLEEPER)
    mine = made.worker == k
    right = made.label == made.truth[made.item]
    before, after = (right[mine & late].mean() for late in (made.item < 500, made.item >= 500))
    assert before > 0.8 and after < 0.5


def test_two_workers_always_say_the_same(scene):
    made = scene.crowd
    said = [
        dict(zip(made.item[made.worker == k], made.label[made.worker == k], strict=True))
        for k, kind in enumerate(scene.kinds)
        if kind == crowd.PAIR
    ]
    shared = said[0].keys() & said[1].keys()
    assert len(shared) > 10 and all(said[0][item] == said[1][item] for item in shared)


# ── the feeder ───────────────────────────────────────────────────────────────────────────


class Taker:
    """Takes what a client is given to send."""

    def __init__(self, refuse=False):
        self.rows, self.keys, self.truths, self.refuse = [], [], {}, refuse

    def send(self, stream, labels, key):
        if self.refuse:
            raise StoreError("The disk is full.")
        self.rows += labels
        self.keys.append(key)

    def gold(self, stream, truths):
        self.truths |= truths


def test_every_label_is_sent_once_and_some_truths_later(scene, monkeypatch):
    monkeypatch.setattr(crowd, "GOLD_SECONDS", 0.3)
    taker = Taker()
    feeding = crowd.Feeder(taker, "s", scene)
    feeding.start()
    until(lambda: feeding.done)
    assert feeding.error is None and feeding.sent == len(taker.rows) == scene.crowd.item.size
    made = scene.crowd
    expected = {
        (scene.tasks[i], crowd.WORKERS[k], crowd.CLASSES[z])
        for i, k, z in zip(made.item, made.worker, made.label, strict=True)
    }
    assert {(row["task"], row["worker"], row["label"]) for row in taker.rows} == expected
    assert len(set(taker.keys)) == len(taker.keys)
    truth = {task: crowd.CLASSES[c] for task, c in zip(scene.tasks, made.truth, strict=True)}
    assert taker.truths == {task: truth[task] for task in scene.tasks[:: crowd.GOLD_EVERY]}


def test_a_feeder_that_is_refused_says_why_and_one_that_is_stopped_does_not(scene):
    feeding = crowd.Feeder(Taker(refuse=True), "s", scene)
    feeding.start()
    until(lambda: feeding.done)
    assert str(feeding.error) == "The disk is full."
    stopped = crowd.Feeder(Taker(), "s", crowd.simulate(100, 0.01, 0.5))
    stopped.start()
    stopped.stop()
    assert stopped.done and stopped.error is None


# ── the summary ──────────────────────────────────────────────────────────────────────────


def test_errors_are_those_of_the_methods_themselves(scene):
    made = scene.crowd
    said = made.truth.copy()
    wrong = [i for i in range(200) if i % crowd.GOLD_EVERY][:30]
    said[wrong] = (said[wrong] + 1) % len(crowd.CLASSES)
    decided = pd.Series([crowd.CLASSES[c] for c in said[:200]], scene.tasks[:200])
    found = crowd.errors_of(scene, decided, sent=len(scene.arrivals.row))
    kept = [i for i in range(200) if i % crowd.GOLD_EVERY]
    assert found.n_items == len(kept) and found.wrong["BiLA"] == 30
    assert found.wrong["oracle"] == (oracle(made) != made.truth)[kept].sum()
    votes = np.zeros((N_ITEMS, len(crowd.CLASSES)))
    np.add.at(votes, (made.item, made.label), 1)
    ranked = np.sort(votes, axis=1)
    sure = (ranked[:, -1] > ranked[:, -2])[kept]
    lost = (votes.argmax(axis=1) != made.truth)[kept]
    assert lost[sure].sum() <= found.wrong["majority vote"] <= lost[sure].sum() + (~sure).sum()


def test_only_labels_that_were_sent_count_for_the_others(scene):
    rows = scene.arrivals.row[:50]
    decided = pd.Series(["cat"], [scene.tasks[1]])
    found = crowd.errors_of(scene, decided, sent=50)
    labels = scene.crowd.label[rows][scene.crowd.item[rows] == 1]
    if not len(labels):  # nobody named a class yet: the oracle knows the commonest
        assert found.wrong["oracle"] == int(scene.crowd.truth[1] != 0)
    assert found.n_items == 1


# ── the whole ────────────────────────────────────────────────────────────────────────────


class Demo:
    """A demo in a process group of its own, as a person starts it in a terminal."""

    def __init__(self, folder, *arguments):
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background
        # may have it switched off. A browser's socket needs a short path.
        self.temporary = Path(tempfile.mkdtemp(prefix="lq"))
        self._out = folder / "out.txt"
        environment = {**os.environ, "TMPDIR": str(self.temporary), "DISPLAY": ""}
        environment.pop("WAYLAND_DISPLAY", None)
        with self._out.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "labelquorum", "demo", *arguments],
                cwd=folder,
                env=environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        signal.signal(signal.SIGINT, before)

    def said(self):
        return self._out.read_text(encoding="utf-8")

    def link(self):
        """Where it says the dashboard is, and the key."""

        def found():
            assert self.process.poll() is None, self.said()
            return re.search(
                r"^Open (http://127\.0\.0\.1:\d+)/#key=(\S+?)&go=/s/(\S+)$", self.said(), re.M
            )

        return until(found, PATIENCE).groups()

    def family(self):
        """The processes it has started, and those they have."""
        pids = [self.process.pid]
        for pid in pids:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            threads = Path(f"/proc/{pid}/task").iterdir()
            for thread in threads:
                with suppress(FileNotFoundError):  # a thread that has just ended
                    children += (thread / "children").read_text().split()
            pids += sorted({int(child) for child in children} - set(pids))
        return pids[1:]

    def end(self, number):
        os.killpg(self.process.pid, number)
        return self.process.wait(PATIENCE)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.temporary)


@pytest.fixture
def started(tmp_path):
    demos = []

    def start(*arguments):
        demos.append(Demo(tmp_path, *arguments))
        return demos[-1]

    yield start
    for one in demos:
        one.kill()


def gone(pids):
    """Whether all of these processes have ended; a zombie has."""

    def ended(pid):
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    return all(map(ended, pids))


linux = pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are looked up in /proc")


@pytest.mark.slow
@linux
def test_demo_serves_decides_and_leaves_nothing_behind_at_control_c(started, tmp_path):
    running = started("--seconds", "6", "--store", "kept")
    url, key, stream = running.link()
    assert stream == demo.STREAM
    with lq.Client(url, key) as client:
        until(lambda: client.stream(stream)["counts"]["answered_items"] > 100, PATIENCE)
        assert client.stream(stream)["rules"]["grace"] is None
        until(lambda: "All labels are in." in running.said(), PATIENCE)
    family = running.family()
    assert len(family) >= 3  # the service, the learner, and those that answer questions
    assert running.end(signal.SIGINT) == 0
    assert gone(family)
    said = running.said()
    assert "Traceback" not in said
    assert re.search(r"BiLA got \d+ wrong, the majority vote \d+, and an oracle", said)
    k = crowd.simulate(360, 60.0, 0.5).kinds.index("wrong on purpose")
    assert re.search(rf"^ *{crowd.WORKERS[k]} +wrong on purpose +\d+% +\d+%", said, re.M)
    assert list(running.temporary.iterdir()) == []
    with Store.open(tmp_path / "kept") as store:  # nobody holds it
        assert all(one.revoked_at is not None for one in Keys(store).all())
        assert store.stream(stream).count()["answered_items"] > 100


@pytest.mark.kill
@linux
def test_a_demo_that_is_killed_leaves_no_process(started):
    running = started("--no-browser")
    running.link()
    family = running.family()
    assert family
    assert running.end(signal.SIGKILL) == -signal.SIGKILL
    until(lambda: gone(family), PATIENCE)


def test_a_demo_that_is_told_to_end_ends_as_at_control_c():
    before = signal.getsignal(signal.SIGTERM)
    for number in (signal.SIGTERM, signal.SIGHUP):
        with pytest.raises(KeyboardInterrupt), demo._interrupted_by_signals():
            signal.raise_signal(number)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.slow
def test_a_port_that_is_taken_is_told_in_a_sentence():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        said = run("demo", "--port", str(taken.getsockname()[1]), code=1)
    assert "the service cannot listen there" in said.stderr.splitlines()[-1]
    assert "Traceback" not in said.stderr


def test_the_service_of_the_demo_and_its_crowd_import_no_jax():
    code = (
        "import sys, labelquorum.demo.service, labelquorum.server.app\n"
        "import labelquorum.demo.crowd, labelquorum.evaluation.datasets.load\n"
        "assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE)


def test_a_second_demo_on_a_store_takes_another_name():
    assert demo._free_name([]) == "animals"
    assert demo._free_name(["animals", "animals 2"]) == "animals 3"


@pytest.mark.parametrize("variable", ["DISPLAY", "WAYLAND_DISPLAY", None])
def test_a_browser_is_opened_only_where_there_is_a_display(monkeypatch, variable):
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, ":0")
    opened, reply = [], []
    monkeypatch.setattr("webbrowser.open", opened.append)
    for plan in (demo.Plan(), demo.Plan(opens_browser=False)):
        running = demo.Running(plan, None, None, "a b", None, None, "http://127.0.0.1:1", "lq_k")
        demo._show(running, reply.append)
    link = "http://127.0.0.1:1/#key=lq_k&go=/s/a%20b"
    assert opened == ([link] if variable else [])
    assert reply[0] == reply[2] == f"Open {link}"


# ── headless ─────────────────────────────────────────────────────────────────────────────


def test_without_a_browser_headless_says_so_and_starts_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(subprocess, "Popen", None)
    said = run("demo", "--headless", "--output", str(tmp_path / "out"), code=1)
    assert said.stderr.startswith("Pictures of the dashboard take a browser, and there is no")
    assert said.stderr.count("\n") == 1 and not (tmp_path / "out").exists()


def test_without_playwright_headless_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(browser, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    said = run("demo", "--headless", "--output", str(tmp_path), code=1)
    assert said.stderr.endswith("Run pip install labelquorum[browser].\n")


@pytest.mark.browser
def test_headless_demo_saves_a_picture_of_every_page_and_the_summary(started, tmp_path):
    if shutil.which("chromium") is None:
        if os.environ.get("LABELQUORUM_CI"):
            pytest.fail("there is no chromium on this machine")
        pytest.skip("there is no chromium on this machine")
    running = started("--headless", "--seconds", "8", "--output", "new/pictures")
    assert running.process.wait(PATIENCE) == 0, running.said()
    folder = tmp_path / "new" / "pictures"
    names = [shot.name for shot in browser.shots_of("s", "t", "w")]
    assert {"streams", "stream", "items", "item", "workers", "worker", "ask", "settings"} <= {
        *names
    }
    pictures = sorted(folder.glob("*.png"))
    assert [path.stem.partition("-")[2] for path in pictures] == names
    for path in pictures:
        assert path.read_bytes().startswith(b"\x89PNG")
        assert f"Saved new/pictures/{path.name}" in running.said()
    text = (folder / "summary.txt").read_text(encoding="utf-8")
    assert "BiLA got" in text and text in running.said()
    assert list(running.temporary.glob("labelquorum-*")) == []
