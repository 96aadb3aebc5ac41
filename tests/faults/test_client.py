"""A service that means harm: no answer of it holds up the client, fills memory, or ends otherwise
than in a sentence.

Each attack is a server in this process. The client is a subprocess, whose memory is
then its own, and uses nothing but `lq.Client`, so it may be that of any commit.
"""

import json
import subprocess
import sys
import time
import zlib

import pytest
from client.hostile import head, hostile, request_of

pytestmark = pytest.mark.kill

TIMEOUT = 3.0
MB = 2**20

CLIENT = """
import json, sys, threading, time
import labelquorum as lq

attacks, timeout = json.loads(sys.argv[1]), float(sys.argv[2])

def ask(client, what, folder):
    if what == "follow":
        for event in client.follow("s"):
            pass
    elif what == "export":
        client.export("s", folder + "/answers.csv")
    elif what == "create":
        client.create("s", classes=["a" * 2**24])
    else:
        getattr(client, what)(*(["s"] if what == "model" else []))

def memory(kind):
    for line in open("/proc/self/status"):
        if line.startswith(kind):
            return int(line.split()[1]) / 1024

def made(name, port):
    scheme = "https" if name == "tls" else "http"
    return lq.Client("%s://127.0.0.1:%d" % (scheme, port), "key", timeout=timeout)

def run(client, name, port, what, folder):
    began = time.monotonic()
    try:
        ask(client, what, folder)
        kind, said = "None", ""
    except BaseException as error:
        kind, said = type(error).__name__, str(error)
    found[name] = {"seconds": time.monotonic() - began, "error": kind, "said": said}

found = {}
with lq.Client("http://127.0.0.1:9", "key", timeout=0.1) as client:  # imports what is needed
    try:
        client.model("s")
    except lq.LabelQuorumError:
        pass
clients = [made(name, port) for name, port, _, _ in attacks]
start = memory("VmRSS")
threads = [threading.Thread(target=run, args=(client, *attack), daemon=True)
           for client, attack in zip(clients, attacks)]
for thread in threads:
    thread.start()
    thread.join(None if sys.argv[3] == "False" else 0)
for thread in threads:
    thread.join()
print(json.dumps({"answers": found, "megabytes": memory("VmHWM") - start}))
"""


def attack(tmp_path, attacks, timeout=TIMEOUT, at_once=True):
    """Have clients ask; give what became of each, and the memory that all took."""
    named = [[name, port, what, str(tmp_path)] for name, (port, what) in attacks.items()]
    command = [sys.executable, "-c", CLIENT, json.dumps(named), str(timeout), str(at_once)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    return json.loads(done.stdout)


def test_a_service_that_drips_its_answer_ends_with_the_timeout(tmp_path, size, record_property):
    with hostile(size(8, 25)) as server:

        def dripping(first, piece):
            def answer(connection):
                request_of(connection)
                connection.sendall(first)
                server.drip(connection, piece)

            return server.serve(answer)

        def unread(connection):
            ends = time.monotonic() + size(8, 25)
            while time.monotonic() < ends and connection.recv(1000):
                time.sleep(0.02)

        def silent(connection):
            server.drip(connection, b"")

        found = attack(
            tmp_path,
            {
                "body": (dripping(head(length=10**6), b" "), "streams"),
                "chunks": (
                    dripping(head("200 OK", None, "Transfer-Encoding: chunked"), b"1\r\n \r\n"),
                    "streams",
                ),
                "error page": (dripping(head("500 Error", 10**6), b" "), "streams"),
                "head": (dripping(b"HTTP/1.1 200 OK\r\nX: ", b"x"), "streams"),
                "1xx": (dripping(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), "streams"),
                "model": (dripping(head(length=10**6), b"x"), "model"),
                "export": (dripping(head(length=10**6), b"x"), "export"),
                "events": (dripping(b"HTTP/1.1 200 OK\r\nX: ", b"x"), "follow"),
                "unread": (server.serve(unread, 2_000), "create"),
                "tls": (server.serve(silent), "streams"),
            },
        )
    answers = found["answers"]
    over = {name: answer["seconds"] - TIMEOUT for name, answer in answers.items()}
    record_property("seconds over a timeout of 3", round(max(over.values()), 2))
    assert {answer["error"] for answer in answers.values()} == {"StoreError"}, answers
    assert max(over.values()) <= size(1.0, 0.1 * TIMEOUT), over  # CI has other work at this time
    assert min(over.values()) > -2, "they were dripped upon"


def bomb(megabytes):
    """Gzip of zeros: a thousandth of their size."""
    packer, zeros = zlib.compressobj(9, zlib.DEFLATED, 31), bytes(MB)
    return b"".join([*(packer.compress(zeros) for _ in range(megabytes)), packer.flush()])


def whole(body, status="200 OK", *more):
    def answer(connection):
        request_of(connection)
        connection.sendall(head(status, len(body), *more))
        connection.sendall(body)

    return answer


def endless(first, piece, megabytes):
    def answer(connection):
        request_of(connection)
        connection.sendall(first)
        for _ in range(megabytes * MB // len(piece)):
            connection.sendall(piece)

    return answer


def test_a_service_that_sends_without_end_takes_little_memory(tmp_path, size, record_property):
    megabytes = size(256, 1024)
    packed, gzip, a = bomb(megabytes), "Content-Encoding: gzip", b"a" * MB
    with hostile() as server:
        attacks = {
            "gzip error page": (server.serve(whole(packed, "500 Error", gzip)), "streams"),
            "gzip answer": (server.serve(whole(packed, "200 OK", gzip)), "streams"),
            "answer": (server.serve(endless(head() + b'{"streams": ["', a, megabytes)), "streams"),
            "event": (server.serve(endless(head() + b"data: ", a, megabytes)), "follow"),
        }
        found = attack(tmp_path, attacks, timeout=30.0, at_once=False)
    answers = found["answers"]
    record_property("MB above the start", round(found["megabytes"], 1))
    record_property(
        "seconds for a gzip error page", round(answers["gzip error page"]["seconds"], 2)
    )
    assert found["megabytes"] <= 64
    assert {answer["error"] for answer in answers.values()} <= {"StoreError", "LimitError"}, found
    assert all("may have" in answers[name]["said"] for name in ("answer", "event")), found


def test_what_a_service_says_ends_in_a_sentence_without_control_characters(
    tmp_path, record_property
):
    said = "\x1b]0;mine\x07\x1b[2J \x9b2J \u202eevil\u2066\r\nready $ "
    sentence = json.dumps({"errors": [said]}).encode()
    deep = b"[" * 200_000
    with hostile() as server:
        answers = {
            "sentence": whole(sentence, "422 Unprocessable"),
            "deep answer": whole(deep),
            "deep error": whole(deep, "500 Error"),
            "reason": whole(b"", "500 \x9b2J"),
        }
        found = attack(
            tmp_path, {name: (server.serve(one), "streams") for name, one in answers.items()}
        )["answers"]
    loose = [one for each in found.values() for one in each["said"] if not one.isprintable()]
    other = [each["error"] for each in found.values() if not each["error"].endswith("eError")]
    record_property("control characters in sentences", len(loose))
    record_property("errors that are none of ours", len(other))
    assert not loose, found
    assert not other, found
    assert found["sentence"]["error"] == "StateError"
    assert "evil" in found["sentence"]["said"]
