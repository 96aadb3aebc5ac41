"""Who gets in: the table of routes, walked with every kind of key; names, origins, rates."""

import asyncio
import json
import re
import socket
from itertools import product

import httpx
import pytest
from server.served import serving, until

from labelquorum.errors import StateError
from labelquorum.server.app import check_routes, create_app
from labelquorum.server.auth import ROUTES, Guarded, RateLimiter
from labelquorum.server.routes import export
from labelquorum.store.api_keys import SCOPES

CLOSED = [(method, path, need) for (method, path), need in ROUTES.items() if need is not None]
IDS = [f"{method} {path}" for method, path, _ in CLOSED]
BODIES = {"POST": b"{}", "PATCH": b"{}"}


@pytest.fixture(scope="module")
def walked(running, admin):
    """The service, with two streams."""
    for name in ("mine", "theirs"):
        made = admin.post("/v1/streams", json={"name": name, "settings": {"classes": ["a", "b"]}})
        assert made.status_code == 201
    return running


def ask(client, method, path, **options):
    path = re.sub(r"\{stream\}", "mine", path)
    path = re.sub(r"\{\w+(:path)?\}", "1", path)
    return client.request(method, path, content=BODIES.get(method), **options)


def check_shape(answer, status):
    reply = answer.json()
    assert answer.status_code == reply["status"] == status, reply
    assert reply["ok"] is False and reply["error"] == reply["errors"][0]
    assert re.fullmatch(r"[A-Z`].*[.]", reply["error"], re.S), reply["error"]


def test_every_route_of_the_app_is_declared_and_every_declared_one_is_there(walked):
    there = {(m, route.path) for route in walked.app.inner.routes for m in route.methods}
    assert there == set(ROUTES)


@pytest.mark.parametrize(("method", "path", "need"), CLOSED, ids=IDS)
def test_no_key_and_a_wrong_one_open_nothing(walked, method, path, need):
    client = walked.client(None)
    secret = walked.secret("admin")
    for header in (
        None,
        "",
        "Bearer",
        "Bearer lq_nonsense",
        f"Basic {secret}",
        f"Bearer {secret[:-1]}",
        f"Bearer {secret}x",
        secret,
    ):
        headers = {} if header is None else {"Authorization": header}
        answer = ask(client, method, path, headers=headers)
        check_shape(answer, 401)
        assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(("method", "path", "need"), CLOSED, ids=IDS)
def test_a_revoked_key_opens_nothing(walked, admin, method, path, need):
    made = admin.post("/v1/keys", json={"name": "soon gone", "scope": "admin"}).json()
    client = walked.client(None)
    client.headers["Authorization"] = f"Bearer {made['key']}"
    assert client.get("/v1/streams").status_code == 200
    assert admin.delete(f"/v1/keys/{made['id']}").status_code == 200
    check_shape(ask(client, method, path), 401)


@pytest.mark.parametrize(("method", "path", "need"), CLOSED, ids=IDS)
def test_a_lower_scope_is_not_enough(walked, method, path, need):
    for scope in SCOPES[: SCOPES.index(need.scope)]:
        check_shape(ask(walked.client(scope), method, path), 403)


@pytest.mark.parametrize(("method", "path", "need"), CLOSED, ids=IDS)
def test_a_key_of_another_stream_opens_nothing_of_this_one(walked, method, path, need):
    answer = ask(walked.client("admin", "theirs"), method, path)
    if need.reach == "any":
        assert answer.status_code == 200 and "mine" not in answer.text
    else:
        check_shape(answer, 403)
        assert "'theirs'" in answer.json()["error"]


def test_a_key_of_another_stream_does_not_learn_which_streams_there_are(walked):
    client = walked.client("admin", "theirs")
    there, nowhere = (client.get(f"/v1/streams/{name}") for name in ("mine", "nowhere"))
    assert there.json() == nowhere.json() and there.status_code == 403


def test_a_hook_may_carry_its_key_in_a_header_of_its_own(walked):
    client = walked.client(None)
    client.headers["X-LabelQuorum-Key"] = walked.secret("write", "mine")
    assert client.post("/v1/streams/mine/hooks/label-studio", json={}).status_code == 422
    check_shape(client.get("/v1/streams/mine"), 401)
    check_shape(client.post("/v1/streams/theirs/hooks/label-studio", json={}), 403)


def test_a_key_is_told_what_it_opens(walked):
    for scope, stream in product(SCOPES, (None, "mine")):
        reply = walked.client(scope, stream).get("/v1/key").json()
        assert (reply["scope"], reply["stream"]) == (scope, stream)
        assert "digest" not in reply and "key" not in reply


def test_health_is_open_to_everybody(walked):
    client = walked.client(None)
    for path in ("/healthz", "/readyz"):
        assert client.get(path).json() == {"ok": True}


def test_unknown_routes_tell_nothing_without_a_key(walked, admin):
    check_shape(walked.client(None).get("/v1/nothing"), 401)
    check_shape(admin.get("/v1/nothing"), 404)
    check_shape(admin.get("/v1/streams/"), 404)
    check_shape(admin.put("/v1/streams"), 405)
    check_shape(admin.get("/v1/streams/nowhere"), 404)
    check_shape(admin.get("/v1/streams/mine/items", params={"limit": "many"}), 422)
    check_shape(admin.get("/v1/streams/mine/items", params={"cursor": "!"}), 422)


def test_a_route_that_is_not_declared_is_open_to_nobody(walked):
    app = create_app(walked.store, None)

    @app.inner.get("/secret")
    def secret():
        return "shown"

    with pytest.raises(StateError, match="'/secret' does not say what key it takes"):
        check_routes(app.inner.routes)
    assert type(app.inner.routes[-1]) is Guarded

    async def walk():
        transport = httpx.ASGITransport(app=app)
        headers = {"Authorization": f"Bearer {walked.secret()}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            app.service.keyring.refresh()
            return await client.get("/secret", headers=headers)

    check_shape(asyncio.run(walk()), 403)


def test_a_fault_of_our_own_is_told_in_the_one_shape_and_without_its_secrets(walked, monkeypatch):
    def fail():
        raise KeyError("a password")

    client = walked.client()
    monkeypatch.setattr(walked.app.service.store, "streams", fail)
    answer = client.get("/v1/streams")
    check_shape(answer, 500)
    assert "password" not in answer.text
    until(lambda: any("KeyError" in str(event.get("error")) for event in walked.events()))


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "", "a:b:c", "127.0.0.1x"]
)
def test_a_name_that_is_not_ours_is_not_answered_to(walked, host):
    check_shape(walked.client().get("/v1/streams", headers={"Host": host}), 421)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:99", "127.0.0.1:1", "[::1]:80", "10.0.0.9"]
)
def test_our_own_names_and_addresses_are_answered_to(walked, host):
    assert walked.client().get("/v1/streams", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
def test_pages_of_other_origins_may_not_write(walked, headers):
    answer = walked.client().post("/v1/streams/mine/labels", json=[], headers=headers)
    check_shape(answer, 403)
    assert "access-control-allow-origin" not in answer.headers


def test_pages_of_our_own_origin_may_write(walked):
    headers = {"Origin": walked.url, "Sec-Fetch-Site": "same-origin"}
    sent = walked.client().post("/v1/streams/mine/labels", json=[], headers=headers)
    assert sent.status_code == 200


def test_a_preflight_is_answered_with_no_permission(walked):
    headers = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    answer = walked.client(None).options("/v1/streams/mine/labels", headers=headers)
    check_shape(answer, 401)
    assert not any(name.startswith("access-control") for name in answer.headers)


def test_names_and_origins_can_be_allowed(tmp_path):
    allowed = {"allow_host": ("labels.example",), "allow_origin": ("https://labels.example",)}
    with serving(tmp_path / "store", **allowed) as service:
        headers = {"Host": "labels.example", "Origin": "https://labels.example"}
        made = {"name": "s", "settings": {"classes": ["a", "b"]}}
        assert service.client().post("/v1/streams", json=made, headers=headers).status_code == 201


def test_answers_forbid_what_browsers_might_make_of_them(walked, admin):
    for answer in (admin.get("/v1/streams"), walked.client(None).get("/v1/streams")):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "server" not in answer.headers


def test_a_bucket_fills_steadily_and_never_beyond_its_brim():
    now = [0.0]
    rates = RateLimiter(2.0, lambda: now[0])
    assert [rates.take(1) for _ in range(5)] == [0, 0, 0, 0, 0.5]
    assert rates.take(2) == 0
    now[0] = 0.5
    assert rates.take(1) == 0 and rates.take(1) > 0
    now[0] = 1000.0
    assert [rates.take(1) > 0 for _ in range(5)] == [False] * 4 + [True]


def test_who_asks_too_often_is_told_when_to_come_back(tmp_path):
    with serving(tmp_path / "store", rate=0.01) as service:
        client = service.client("read")
        answers = [client.get("/v1/streams") for _ in range(2)]
        assert [one.status_code for one in answers] == [200, 429]
        check_shape(answers[1], 429)
        assert 1 <= int(answers[1].headers["retry-after"]) <= 100
        assert service.client("read").get("/v1/streams").status_code == 200
        assert client.get("/healthz").status_code == 200


def raw(service, *lines, body=b""):
    """What a request made of these lines gets: its status."""
    with socket.create_connection(service.address) as connection:
        connection.sendall("\r\n".join([*lines, "Connection: close", "", ""]).encode() + body)
        return int(connection.makefile("rb").readline().split()[1])


@pytest.mark.parametrize("host", ["localhost#evil", "localhost/x", "x@localhost", "localhost?y"])
def test_a_host_is_a_name_and_a_port(walked, host):
    assert raw(walked, "GET /healthz HTTP/1.1", f"Host: {host}") == 421
    assert raw(walked, "GET /healthz HTTP/1.1", "Host: localhost:1") == 200
    assert raw(walked, "GET /healthz HTTP/1.1", "Host: [::1]:1") == 200


def test_a_header_that_says_who_asks_comes_once(walked, admin):
    line = f"Authorization: {admin.headers['Authorization']}"
    asked = ["GET /v1/streams HTTP/1.1", "Host: localhost", line]
    assert raw(walked, *asked) == 200
    assert raw(walked, *asked, line) == 400
    assert raw(walked, *asked, "Host: localhost") == 400


def test_only_a_hook_takes_its_key_from_a_header_of_ours(walked):
    secret = {"X-LabelQuorum-Key": walked.secret()}
    anyone = walked.client(None)
    check_shape(anyone.get("/v1/streams/mine/items/a/hooks/b", headers=secret), 401)
    hook = "/v1/streams/mine/hooks/label-studio"
    body = b'{"action": "\\ud800"}'  # half a character
    assert anyone.post(hook, content=body, headers=secret).status_code == 200


def test_requests_without_a_key_neither_flood_the_log_nor_put_addresses_into_it(walked):
    anyone, before = walked.client(None), len(walked.events())
    for n in range(200):
        anyone.get(f"/v1/streems/mine/workers/ann-{n}")
    found = walked.events()[before:]
    assert 0 < len(found) < 150
    assert "ann-" not in json.dumps(found)


def test_wrong_keys_are_rate_limited_and_right_ones_are_not(walked, admin):
    wrong, answers = walked.client(None), []
    while not answers or (answers[-1] == 401 and len(answers) < 3000):
        key = {"Authorization": "Bearer wrong"}
        answers.append(wrong.get("/v1/streams", headers=key).status_code)
    assert answers[-1] == 429
    assert admin.get("/v1/streams").status_code == 200


def test_a_key_that_is_revoked_while_a_body_comes_sends_nothing(walked, admin):
    secret = walked.secret("write", "mine")
    body = json.dumps({"task": "late", "worker": "ann", "label": "a"}).encode()
    head = (
        f"POST /v1/streams/mine/labels HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Authorization: Bearer {secret}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    held = walked.app.service.bodies
    with socket.create_connection(walked.address) as connection:
        connection.sendall(head.encode() + body[:5])
        until(lambda: held.held == 5)
        number = admin.get("/v1/keys").json()["keys"][-1]["id"]
        admin.delete(f"/v1/keys/{number}").raise_for_status()
        connection.sendall(body[5:])
        assert int(connection.makefile("rb").readline().split()[1]) == 401
    assert admin.get("/v1/streams/mine/items/late").status_code == 404


@pytest.mark.parametrize("cause", ["stalled", "revoked"])
def test_a_download_that_stalls_or_whose_key_is_revoked_frees_its_slot(
    tmp_path, monkeypatch, cause
):
    monkeypatch.setattr(export, "_items", lambda stream, kind, file: file.write(bytes(2**26)))
    with serving(tmp_path / "store", read_seconds=0.5 if cause == "stalled" else 20) as service:
        admin, secret = service.client(), service.secret("read")
        admin.post("/v1/streams", json={"name": "s"}).raise_for_status()
        with socket.create_connection(service.address) as connection:
            asked = "GET /v1/streams/s/export HTTP/1.1\r\nHost: localhost\r\n"
            connection.sendall(f"{asked}Authorization: Bearer {secret}\r\n\r\n".encode())
            until(lambda: service.app.large.open.total() == 1)
            if cause == "revoked":
                admin.delete("/v1/keys/2").raise_for_status()
                size = 0
                while part := connection.recv(2**20):
                    size += len(part)
                assert size < 2**26
            until(lambda: service.app.large.open.total() == 0, 15)
