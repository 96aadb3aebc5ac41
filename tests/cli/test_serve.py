"""`labelquorum serve` and `labelquorum keys`, as programs."""

import json
import os
import re
import signal
import socket
import subprocess
import sys

import httpx
import pytest
from server.served import until
from typer.testing import CliRunner

from labelquorum.cli import app
from labelquorum.cli.serve import _where as where
from labelquorum.server.config import Settings
from labelquorum.store.api_keys import Keys, digest_of
from labelquorum.store.store import Store


class Program:
    """`labelquorum serve` in a subprocess."""

    def __init__(self, folder, *options):
        command = [sys.executable, "-W", "error", "-m", "labelquorum", "serve", str(folder)]
        self.process = subprocess.Popen(
            [*command, "--port", "0", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self.said = []
        for line in self.process.stderr:
            self.said.append(line)
            if '"serving"' in line:
                [address] = json.loads(line)["at_address"]
                self.url = f"http://{address}"
                return
        raise AssertionError(self.said)

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        out, rest = self.process.communicate(timeout=60)
        self.said += rest.splitlines()
        return out


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
def test_plain_HTTP_beyond_this_machine_is_warned_of(tmp_path, monkeypatch, host):
    monkeypatch.setattr("labelquorum.server.uvicorn_server.serve", lambda *_: None)
    options = ["--host", host, "--port", "0"]
    reply = CliRunner().invoke(app, ["serve", str(tmp_path / "data"), *options])
    assert reply.exit_code == 0, reply.output
    assert ("has no TLS" in reply.stderr) == (host == "0.0.0.0")


def test_a_port_that_is_taken_is_told_in_a_sentence_and_no_key_is_made(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        reply = CliRunner().invoke(app, ["serve", str(tmp_path / "data"), "--port", port])
    assert reply.exit_code == 1 and reply.stdout == ""
    assert f"127.0.0.1:{port}: the service cannot listen there (Address already" in reply.stderr
    with Store.open(tmp_path / "data") as store:
        assert not Keys(store).all()


@pytest.mark.slow
def test_the_first_start_shows_a_key_once_and_labels_survive_the_end(tmp_path):
    first = Program(tmp_path / "data")
    try:
        secret = first.process.stdout.readline().strip()
        assert re.fullmatch(r"lq_[\w-]{43}", secret)
        headers = {"Authorization": f"Bearer {secret}"}
        with httpx.Client(base_url=first.url, headers=headers, timeout=60) as client:
            settings = {"classes": ["owl", "wren"]}
            rules = {"labels_per_item": 1, "chunk_items": 1}
            made = {"name": "birds", "settings": settings, "rules": rules}
            assert client.post("/v1/streams", json=made).status_code == 201
            label = {"task": "t", "worker": "ann", "label": "owl"}
            assert client.post("/v1/streams/birds/labels", json=label).json()["accepted"] == 1
            until(lambda: client.get("/v1/streams/birds/items").json()["items"], seconds=60)
            assert client.get("/v1/streams/birds/workers/ann").json()["labels"] == 1
            late = {"task": "u", "worker": "ann", "label": "owl"}
            client.patch("/v1/streams/birds", json={"labels_per_item": 9})
            client.post("/v1/streams/birds/labels", json=late)
    finally:
        assert first.stop() == ""
    assert first.process.returncode == 0
    reply = [json.loads(line) for line in first.said if line.startswith("{")]
    assert {"serving", "created", "stopping", "stopped"} <= {event["event"] for event in reply}
    assert not any(secret in line for line in first.said)
    assert any(line.startswith("Open the address below") for line in first.said)
    for file in (tmp_path / "data").iterdir():
        assert secret.encode() not in file.read_bytes()

    again = Program(tmp_path / "data")
    try:
        with httpx.Client(base_url=again.url, headers=headers, timeout=60) as client:
            counts = client.get("/v1/streams/birds").json()["counts"]
            assert counts["answered_items"] == 1 and counts["waiting_labels"] == 1
        refused = CliRunner().invoke(app, ["keys", "list", str(tmp_path / "data")])
        assert refused.exit_code == 1 and "is in use by process" in refused.stderr
    finally:
        assert again.stop(signal.SIGINT) == ""


def test_keys_are_made_listed_and_revoked_while_no_service_runs(tmp_path):
    def run(*arguments):
        done = CliRunner().invoke(app, ["keys", *arguments])
        return done.exit_code, done.stdout, done.stderr

    folder = str(tmp_path / "data")
    with Store.open(folder) as store:
        store.create("birds", classes=["owl", "wren"])
    code, secret, _ = run("make", folder, "--name", "a client", "--scope", "write")
    assert code == 0 and secret.startswith("lq_")
    assert run("make", folder, "--name", "x", "--scope", "read", "--stream", "birds")[0] == 0
    assert run("make", folder, "--name", "x", "--scope", "all")[0] == 1
    assert run("make", folder, "--name", "x", "--scope", "read", "--stream", "bees")[0] == 1
    assert run("make", folder, "--name", "a\nb", "--scope", "read")[0] == 1
    _, listed, _ = run("list", folder, "--json")
    keys = [json.loads(line) for line in listed.splitlines()]
    assert [(key["scope"], key["stream"]) for key in keys] == [("write", None), ("read", "birds")]
    assert "digest" not in keys[0] and secret.strip() not in listed
    assert run("revoke", folder, "1")[0] == 0
    assert run("revoke", folder, "1")[0] == 2
    assert run("revoke", folder, "99")[0] == 2
    assert "revoked" in run("list", folder)[1].splitlines()[0]
    with Store.open(folder) as store:
        [first, _] = Keys(store).all()
        assert first.revoked_at is not None and first.digest == digest_of(secret.strip())


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "http://127.0.0.1:8765/"),
        ("0.0.0.0", "http://127.0.0.1:8765/"),
        ("::", "http://[::1]:8765/"),
    ],
)
def test_where_the_dashboard_is_is_told(host, address):
    assert where(Settings(host=host)) == f"Open {address}"


def test_no_two_keys_are_alike(tmp_path):
    with Store.open(tmp_path / "data") as store:
        made = [Keys(store).make("k", "read")[1] for _ in range(20)]
    assert len(set(made)) == 20


def test_a_setting_out_of_range_is_refused():
    with pytest.raises(ValueError, match="`rate` must be a number > 0"):
        Settings(rate=0)
