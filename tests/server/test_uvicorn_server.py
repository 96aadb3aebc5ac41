"""Connections that send, or fail to read, more than fits."""

import socket
import time

import pytest
from server.routes.test_events import raw
from server.served import serving, until

from labelquorum.server.uvicorn_server import MAX_HEADER_BYTES, MAX_UNANSWERED

GET = b"GET %b HTTP/1.1\r\nHost: localhost\r\n%b\r\n"
POST = b"POST /v1/streams/s/labels HTTP/1.1\r\nHost: localhost\r\n%b\r\n"
LABEL = b'{"task": 1, "worker": 2, "label": "owl"}'


@pytest.fixture(scope="module")
def hasty(tmp_path_factory):
    """A service that waits half a second for clients to send, and to read."""
    settings = {"read_seconds": 0.5, "keep_alive_seconds": 1}
    with serving(tmp_path_factory.mktemp("store"), **settings) as service:
        made = {"name": "s", "settings": {"classes": ["owl", "wren"]}}
        service.client().post("/v1/streams", json=made).raise_for_status()
        yield service


def connections(service):
    return service.server.server_state.connections


def bearer(service):
    return b"Authorization: Bearer %b\r\n" % service.secret("write").encode()


def unread(service):
    """A connection that takes next to nothing."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.connect(service.address)
    return made


def test_pipelined_requests_are_answered_in_order_however_they_are_cut(hasty):
    asked = [GET % (b"/assets/%d" % k, b"") for k in range(3 * MAX_UNANSWERED)]
    asked.insert(5, POST % (bearer(hasty) + b"Content-Length: %d\r\n" % len(LABEL)) + LABEL)
    asked.append(GET % (b"/assets/last", b"Connection: close\r\n"))
    whole = b"".join(asked)
    for parts in ([whole], [whole[:1000], whole[1000:]]):
        answers = raw(hasty, *parts).split(b"HTTP/1.1 ")[1:]
        assert len(answers) == len(asked) and answers.pop(5).startswith(b"200 ")
        for k, answer in enumerate(answers[:-1]):
            assert answer.startswith(b"404 ") and b"'%d'" % k in answer
        assert b"'last'" in answers[-1]


def test_a_connection_that_does_not_read_is_not_read_and_is_closed(hasty):
    key = bearer(hasty)
    with unread(hasty) as connection:
        connection.settimeout(5)
        with pytest.raises(OSError):  # its own buffers are full, and then it is closed
            while True:
                connection.sendall(GET % (b"/openapi.json", key) * 100)
                for one in connections(hasty):
                    assert one._n_unanswered <= MAX_UNANSWERED
    until(lambda: not connections(hasty) and not hasty.server.server_state.tasks)
    assert "error" not in {one["event"] for one in hasty.events()}


@pytest.mark.parametrize("what", [b"1;%b\r\nx\r\n0\r\n\r\n", b"0\r\nx: %b\r\n\r\n"])
def test_trailers_and_chunk_extensions_are_limited_like_headers(hasty, what):
    head = POST % (bearer(hasty) + b"Transfer-Encoding: chunked\r\n")
    label = b"%x\r\n%b\r\n" % (len(LABEL), LABEL)
    refused = raw(hasty, head, label, what % (b"a" * (MAX_HEADER_BYTES + 300)))
    assert b" 431 " in refused and b" 200 " not in refused
    assert b" 200 " in raw(hasty, head, label, b"0\r\nx: %b\r\n\r\n" % (b"a" * 1000))


def test_a_trailer_names_no_key(hasty):
    head = POST % b"Transfer-Encoding: chunked\r\n"
    first = GET % (b"/openapi.json", bearer(hasty))  # so that the next one waits, whole
    answer = raw(hasty, first + head + b"0\r\n" + bearer(hasty) + b"\r\n")
    assert b"HTTP/1.1 401 " in answer


@pytest.mark.parametrize(
    "header",
    [
        b"Content-Length: 9000000000\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Content-Length: 9\r\nExpect: 100-continue\r\n",
    ],
)
def test_a_refused_body_that_may_be_long_closes_the_connection(hasty, header):
    began = time.monotonic()
    answer = raw(hasty, POST % header)
    assert b" 401 " in answer and b"connection: close" in answer.lower()
    assert time.monotonic() - began < 0.4  # not by a timeout


def test_a_short_body_may_come_after_it_was_refused(hasty):
    with socket.create_connection(hasty.address, timeout=30) as connection:
        connection.sendall(POST % b"Content-Length: 9\r\n")
        assert b" 401 " in connection.recv(65536)
        connection.sendall(b"123456789" + GET % (b"/healthz", b""))
        assert b" 200 " in connection.recv(65536)
        connection.sendall(POST % b"Content-Length: 9\r\n")
        assert b" 401 " in connection.recv(65536)
        assert connection.recv(65536) == b""  # the rest never came: nothing is said twice


def test_line_breaks_do_not_keep_an_idle_connection(hasty):
    answer = raw(hasty, GET % (b"/healthz", b""), b"\r\n")
    assert b" 200 " in answer
