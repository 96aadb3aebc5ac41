"""The files of the dashboard: served as they are, under a strict policy, and no others."""

import http.client

import pytest

from labelquorum.server.static import TYPES, page_files


def test_the_dashboard_is_open_to_everybody_and_may_load_nothing_but_its_own(running):
    answer = running.client(None).get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.content == page_files()["index.html"].body
    policy = answer.headers["content-security-policy"]
    assert answer.headers.get_list("content-security-policy") == [policy]
    parts = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert parts["default-src"] == "'none'"
    assert parts["script-src"] == parts["style-src"] == parts["connect-src"] == "'self'"
    assert parts["frame-ancestors"] == parts["base-uri"] == parts["form-action"] == "'none'"
    assert "unsafe" not in policy
    assert answer.headers.get_list("cache-control") == ["no-cache"]
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_every_file_is_served_with_its_type(running):
    client = running.client(None)
    assert "index.html" in page_files()
    for path, file in page_files().items():
        answer = client.get(f"/assets/{path}")
        assert answer.status_code == 200 and answer.content == file.body
        assert answer.headers["content-type"] == file.type


def test_a_file_that_is_known_is_not_sent_again(running):
    client = running.client(None)
    tag = client.get("/").headers["etag"]
    for known in (tag, f'"other", W/{tag}'):
        again = client.get("/", headers={"If-None-Match": known})
        assert again.status_code == 304 and again.headers["etag"] == tag and not again.content
    assert client.get("/", headers={"If-None-Match": '"other"'}).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "nothing.js",
        "",
        ".",
        "../server/app.py",
        "..%2fserver%2fapp.py",
        "%2e%2e/server/app.py",
        "....//server/app.py",
        "..\\server\\app.py",
        "%2fetc%2fpasswd",
        "/etc/passwd",
        "index.html%00.js",
        "vendor/../index.html",
    ],
)
def test_no_address_leads_out_of_the_folder(running, path):
    host, port = running.address
    connection = http.client.HTTPConnection(host, port)  # which leaves the address as it is
    connection.request("GET", f"/assets/{path}")
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    assert answer.status in (401, 404), body
    assert b'"ok": false' in body


def test_files_of_python_and_hidden_ones_are_not_among_them():
    for path in page_files():
        name = path.rpartition("/")[2]
        assert not name.startswith((".", "_"))
        assert "." not in name or f".{name.rpartition('.')[2]}" in TYPES


def test_a_key_is_no_part_of_it_and_other_methods_are_refused(running):
    client = running.client(None)
    assert client.post("/").status_code == 405
    assert client.get("/", headers={"Authorization": "Bearer nonsense"}).status_code == 200
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 421
    assert client.get("/assetsx").status_code == 401
