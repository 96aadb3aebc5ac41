"""One connection sends without end, or never reads; most of these need no key."""

import time

import pytest
from faults.service import running

pytestmark = pytest.mark.kill

MIB = 2**20
HEAD = b"Host: localhost\r\nContent-Type: application/json\r\n"
CHUNKED = b"POST /v1/streams/s/labels HTTP/1.1\r\n%bTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with running(tmp_path_factory.mktemp("store")) as service:
        with service.client() as http:
            http.post("/v1/streams", json={"name": "s"}).raise_for_status()
        service.start_memory = service.memory()
        yield service


def flood(connection, head, part, size, stalled):
    """Send a head, then a part repeatedly; return how many bytes were taken, and how it ended."""
    connection.settimeout(stalled)
    sent, block = 0, memoryview(part * (MIB // len(part)))
    try:
        connection.sendall(head)
        while sent < size:
            sent += connection.send(block[sent % len(block) :])
    except TimeoutError:
        return sent, "not read"
    except OSError:
        return sent, "closed"
    return sent, "taken"


def answer_of(connection):
    """What has come, until the other side closes or is silent."""
    answer = b""
    try:
        while piece := connection.recv(MIB):
            answer += piece
    except OSError:
        pass
    return answer


def back(service, start, seconds=10):
    """Seconds until the memory is back at 20 MB above its start, or all of them."""
    began = time.monotonic()
    while service.memory() > start + 20 and time.monotonic() < began + seconds:
        time.sleep(0.05)
    return time.monotonic() - began


def attack(service, size, record, head, part, mib, is_read=True):
    """Flood the service, and close; return the answer and how the flood ended."""
    start = service.start_memory
    with service.watching_memory() as peak:
        with service.connect() as connection:
            sent, ended = flood(connection, head, part, mib * MIB, size(3, 20))
            answer = answer_of(connection) if is_read else b""
        seconds = back(service, start)
    record("megabytes above the start", round(peak[0] - start))
    record("seconds until they are given back", round(seconds, 1))
    record("megabytes sent", round(sent / MIB, 1))
    with service.client() as http:
        assert http.get("/healthz").status_code == 200
    assert peak[0] - start < 100 and seconds < 5
    return answer, ended


@pytest.mark.parametrize("length", [b"Transfer-Encoding: chunked", b"Content-Length: %d" % 2**63])
def test_a_body_that_is_refused_is_not_read(service, size, record_property, length):
    part = b"8000\r\n" + bytes(2**15) + b"\r\n"
    head = b"POST /v1/streams/s/labels HTTP/1.1\r\n%b%b\r\n\r\n" % (HEAD, length)
    answer, ended = attack(service, size, record_property, head, part, size(64, 1024))
    assert ended == "closed"
    assert b" 401 " in answer and b"connection: close" in answer.lower()


@pytest.mark.parametrize("scope", ["no key", "write"])
@pytest.mark.parametrize("kind", ["chunk extensions", "trailers"])
def test_what_is_no_body_ends_a_chunked_request(service, size, record_property, scope, kind):
    key = b"" if scope == "no key" else b"Authorization: Bearer %b\r\n" % service.key.encode()
    begun = CHUNKED % (HEAD + key) + {"trailers": b"0\r\n", "chunk extensions": b"1;"}[kind]
    part = {"trailers": b"a: b\r\n", "chunk extensions": b"extension"}[kind]
    answer, ended = attack(service, size, record_property, begun, part, size(8, 120))
    assert ended == "closed"
    # Without a key it is answered at once, or else found too long before that.
    assert b" 431 " in answer or (scope == "no key" and b" 401 " in answer)


def test_pipelined_requests_whose_answers_are_not_read_are_not_read_either(
    service, size, record_property
):
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    _, ended = attack(service, size, record_property, b"", request, size(16, 70), is_read=False)
    assert ended == "not read"
