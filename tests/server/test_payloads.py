"""Names that want to be more than names: they come back as they were typed, and do nothing else."""

import http.client
import json
from pathlib import Path
from urllib.parse import quote

import pytest

NAMES = [
    "'",
    '"',
    "' OR '1'='1",
    "'; DROP TABLE labels; --",
    '" UNION SELECT digest FROM keys --',
    "%27%3B",
    "$1",
    ":stream",
    "?",
    "{stream}",
    "{{7*7}}",
    "${jndi:ldap://127.0.0.1/x}",
    "$(touch /tmp/pwned)",
    "`id`",
    "; ls",
    "../",
    "../../etc/passwd",
    "..",
    ".",
    "/etc/passwd",
    "//evil.example/x",
    "..\\..\\windows",
    "%2e%2e%2f",
    "%2e",
    "%252e%252e%252f",
    "%00",
    "file:///etc/passwd",
    "C:\\",
    "labelquorum.db",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "javascript:alert(1)",
    "</title><script>alert(1)</script>",
    "<!--",
    "]]>",
    "&lt;b&gt;",
    "&#x3c;",
    "=1+1",
    "+1",
    "-1",
    "@SUM(A1)",
    "a,b",
    'a"b',
    "a;b",
    "null",
    "true",
    "NaN",
    "undefined",
    "__proto__",
    "constructor",
    "0",
    "007",
    "1e3",
    "-0",
    "9" * 40,
    "ｆｕｌｌ",
    "ß",
    "e\u0301",
    "\u200b zero",
    "👩‍👩‍👧",
    "\ufeffmark",
    " outer ",
    "x" * 256,
    "#frag",
    "a b",
    "a+b",
    "a&b=c",
    "a%20b",
    "*",
    "~",
]
REFUSED = [
    "\u202egnirts",
    "a\u2066b",
    "a\nb",
    "a\r\nSet-Cookie: x=1",
    "a\tb",
    "a\x00b",
    "\x1b[31mred",
    "\x1b]0;title\x07",
    "\x7f",
    "\x85",
    "\u2028",
    "x" * 257,
    "é" * 129,
    "",
    "   ",
]


@pytest.fixture(scope="module")
def open_stream(admin):
    """A stream whose classes are whatever comes, and whose labels wait."""
    rules = {"labels_per_item": 9, "chunk_items": 9, "max_wait": None, "max_chunk_wait": None}
    made = admin.post("/v1/streams", json={"name": "open", "rules": rules})
    assert made.status_code == 201, made.text
    return "/v1/streams/open"


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_name_comes_back_as_it_was_typed(admin, open_stream, name):
    label = {"task": name, "worker": name, "label": name}
    key = {"Idempotency-Key": quote(name)[:200]}
    sent = admin.post(f"{open_stream}/labels", json=label, headers=key)
    assert sent.status_code == 200, sent.text
    found = admin.get(f"{open_stream}/items/{quote(name, safe='').replace('.', '%2E')}")
    assert found.status_code == 200, found.text
    assert found.json()["task"] == name
    gone = admin.delete(f"{open_stream}/labels", params={"task": name, "worker": name})
    assert gone.json() == {"gone": 1}


@pytest.mark.parametrize("name", REFUSED, ids=ascii)
@pytest.mark.parametrize("role", ["task", "worker", "label"])
def test_a_name_that_breaks_lines_or_limits_is_refused(admin, open_stream, role, name):
    label = {"task": "t", "worker": "w", "label": "a"} | {role: name}
    sent = admin.post(f"{open_stream}/labels", json=label)
    assert sent.status_code == 422
    assert role in sent.json()["error"]
    assert sent.text.isprintable()


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_stream_of_any_name_is_made_and_found_or_refused(running, admin, name):
    made = admin.post("/v1/streams", json={"name": name, "settings": {"classes": ["a", "b"]}})
    path = f"/v1/streams/{quote(name, safe='').replace('.', '%2E')}"
    if made.status_code == 201:
        assert admin.get("/v1/streams").json()["streams"].count(name) == 1
        assert admin.get(path).json()["name"] == name
        label = {"task": "t", "worker": "w", "label": "a"}
        assert admin.post(f"{path}/labels", json=label).json()["accepted"] == 1
    else:
        assert made.status_code == 422 and made.json()["status"] == 422
        assert "/" in name or not name.isprintable() or not name.strip(".")
        assert admin.get(path).status_code == 404


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/v1/streams/../../../etc/passwd",
        "/v1/streams/%2e%2e/%2e%2e/etc/passwd",
        "/v1/streams/..%2f..%2fetc%2fpasswd/items",
        "/v1/streams/a%00b/items",
        "/v1/streams/%ff%fe/items",
        "/v1/streams/open/items/%ff",
        "/v1/streams/open/items/%00",
        "/v1/streams/open/items/%0d%0aX:%20y",
        "/v1/streams/open/workers/%1b%5b2J",
        "/v1/streams/open/items/",
        "/v1/streams/open/model/../../../labelquorum.db",
        "//etc/passwd",
        "/static/../labelquorum.db",
        "/openapi.json/..%5c..%5c",
    ],
)
def test_addresses_lead_nowhere_but_to_routes(running, admin, open_stream, path):
    connection = http.client.HTTPConnection(*running.address)  # sends a path as it is
    headers = {"Authorization": admin.headers["Authorization"]}
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    reply = json.loads(answer.read())
    assert answer.status in (404, 422) and reply["status"] == answer.status
    assert not any(name.lower() == "x" for name in answer.headers)
    connection.close()


def test_none_of_it_left_a_trace_beside_the_store_or_broke_a_line_of_the_log(running):
    assert not Path("/tmp/pwned").exists()
    names = {path.name.partition("-")[0] for path in Path(running.store.where).iterdir()}
    kept = {f"labelquorum.{suffix}" for suffix in ("db", "lock", "log", "seal", "turn", "next")}
    assert {"labelquorum.db", "labelquorum.lock"} <= names <= kept
    for line in running.lines.getvalue().split("\n")[:-1]:
        assert line.isascii() and line.isprintable() and isinstance(json.loads(line), dict)
