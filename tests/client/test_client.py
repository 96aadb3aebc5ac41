"""The client over a real socket, against a service that misbehaves on purpose."""

import json
import socket
import subprocess
import sys
import time
from datetime import datetime

import numpy as np
import pandas as pd
import pytest
from client.fake_service import KEY, Fake, refused, serving
from client.hostile import head, hostile, request_of
from starlette.responses import HTMLResponse, JSONResponse, Response

import labelquorum as lq
from labelquorum.client import Acknowledged, Event, transport
from labelquorum.errors import ConflictError, LabelError, LimitError, StateError, StoreError

TABLE = {"q1": {"ann": "yes", "bob": "no"}, "q2": {"ann": "no"}}
ROWS = [
    {"task": "q1", "worker": "ann", "label": "yes"},
    {"task": "q1", "worker": "bob", "label": "no"},
    {"task": "q2", "worker": "ann", "label": "no"},
]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(transport, "FIRST_WAIT", 0.001)
    monkeypatch.setattr(transport, "LONGEST_WAIT", 0.01)


@pytest.fixture
def fake():
    return Fake()


@pytest.fixture
def client(fake):
    with serving(fake.app) as url, lq.Client(url, KEY) as client:
        yield client


# ── what is sent ─────────────────────────────────────────────────────────────────────────────


def path_of(frame, folder):
    frame.to_csv(folder / "labels.csv", index=False)
    return folder / "labels.csv"


def packed_path_of(frame, folder):
    frame.to_json(folder / "labels.jsonl.gz", orient="records", lines=True)
    return str(folder / "labels.jsonl.gz")


FORMS = {
    "dict": lambda frame, folder: TABLE,
    "frame": lambda frame, folder: frame,
    "path": path_of,
    "packed path": packed_path_of,
    "open file": lambda frame, folder: path_of(frame, folder).open(),
    "list of dicts": lambda frame, folder: ROWS,
    "generator of dicts": lambda frame, folder: (row for row in ROWS),
    "lines": lambda frame, folder: frame.to_csv(index=False).splitlines(),
}


@pytest.mark.parametrize("form", FORMS)
def test_labels_are_sent_in_any_form_the_library_reads(client, fake, tmp_path, form):
    labels = FORMS[form](pd.DataFrame(ROWS), tmp_path)
    assert client.send("s", labels, key="k") == Acknowledged(3, 0, {}, 0, "k")
    assert fake.batches == {"k.0": ROWS}
    if form == "open file":
        labels.close()


def test_types_weights_groups_and_moments_are_kept(client, fake):
    row = {"task": np.int64(7), "worker": 2.5, "label": True, "weight": 0.5, "group": "g"}
    client.send("s", [{**row, "timestamp": datetime(2026, 1, 2)}])
    moment = "2026-01-02T00:00:00"
    assert fake.rows == [{**row, "task": 7, "timestamp": moment}]


def test_many_labels_go_in_batches_each_under_a_key_of_its_own(client, fake, monkeypatch):
    monkeypatch.setattr(transport, "BATCH_ROWS", 2)
    sent = client.send("s", TABLE)
    assert (sent.accepted, sent.repeated) == (3, 0)
    assert list(fake.batches) == [f"{sent.key}.0", f"{sent.key}.1"]
    assert fake.rows == ROWS
    again = client.send("s", ROWS, key=sent.key)
    assert (again.accepted, again.repeated) == (3, 2)
    assert fake.rows == ROWS


def test_a_long_file_is_read_as_it_is_sent(client, fake, monkeypatch):
    monkeypatch.setattr(transport, "BATCH_ROWS", 10)
    seen = []

    def rows():
        for number in range(35):
            seen.append(len(fake.batches))
            yield {"task": number, "worker": "ann", "label": "yes"}

    assert client.send("s", rows()).accepted == 35
    assert seen[-1] == 3


@pytest.mark.parametrize(("distinct", "packed"), [(True, True), (False, False)])
def test_a_body_is_packed_unless_it_would_look_like_a_bomb(client, fake, distinct, packed):
    worker = (lambda n: n) if distinct else (lambda n: 1)
    client.send("s", [{"task": 1, "worker": worker(n), "label": "yes"} for n in range(4000)])
    assert len(fake.rows) == 4000
    [(_, _, headers)] = fake.asked
    assert (headers.get("content-encoding") == "gzip") == packed


@pytest.mark.parametrize(
    "nothing", [[], {}, iter(()), pd.DataFrame(columns=["task", "worker", "label"])]
)
def test_no_labels_are_no_error_and_no_request(client, fake, nothing):
    assert client.send("s", nothing, key="k") == Acknowledged(0, 0, {}, 0, "k")
    assert not fake.asked


def test_a_bad_row_is_found_before_anything_is_sent(client, fake):
    bad = pd.DataFrame([*ROWS, {"task": "q3", "worker": None, "label": "yes"}])
    with pytest.raises(LabelError, match="row 3: the worker is missing"):
        client.send("s", bad)
    assert not fake.asked
    sent = client.send("s", bad, on_bad="skip")
    assert (sent.accepted, sent.skipped) == (3, {"missing worker": 1})


@pytest.mark.parametrize("key", ["", " ", "a\nb", "ä", "k" * 201])
def test_a_key_that_no_header_can_carry_is_refused_at_once(client, fake, key):
    with pytest.raises(StateError, match="`key` of send"):
        client.send("s", TABLE, key=key)
    assert not fake.asked


def test_what_is_no_label_at_all_is_refused_in_a_sentence(client):
    with pytest.raises(LabelError, match="A label is a dict of text and numbers"):
        client.send("s", [{"task": object()}])


# ── asked again ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("status", [429, 502, 503, 504, 507])
def test_a_service_that_says_not_now_is_asked_again(client, fake, status):
    fake.trouble = [refused(status, "Not now.")] * 2
    assert client.send("s", TABLE).accepted == 3
    assert len(fake.asked) == 3
    assert len({headers["idempotency-key"] for _, _, headers in fake.asked}) == 1


def test_labels_whose_acknowledgement_is_lost_count_once(client, fake):
    fake.trouble = ["lose", "lose"]
    sent = client.send("s", TABLE)
    assert (sent.accepted, sent.repeated) == (3, 1)
    assert fake.rows == ROWS


def test_the_service_is_left_alone_for_as_long_as_it_asks(client, fake, monkeypatch):
    waits = []
    monkeypatch.setattr(transport.time, "sleep", waits.append)
    fake.trouble = [refused(503, "Busy.", Retry_After="7"), refused(503, "Busy.")]
    client.send("s", TABLE)
    assert waits[0] == 7
    assert waits[1] < 1


def test_pauses_grow_and_are_not_all_alike(client, fake, monkeypatch):
    waits = []
    monkeypatch.setattr(transport, "FIRST_WAIT", 1.0)
    monkeypatch.setattr(transport, "LONGEST_WAIT", 4.0)
    monkeypatch.setattr(transport.time, "sleep", waits.append)
    fake.trouble = [refused(503, "Busy.")] * 6
    client.send("s", TABLE)
    for wait, most in zip(waits, [1, 2, 4, 4, 4, 4], strict=True):
        assert most / 2 <= wait <= most
    assert len(set(waits)) == 6


def test_after_timeout_the_last_reason_is_told_and_how_to_go_on(fake):
    fake.trouble = [refused(503, "The store is away.", Retry_After="5")] * 2
    said = r"within 3 seconds.*The store is away\..*key='k'"
    with (
        serving(fake.app) as url,
        lq.Client(url, KEY, timeout=3) as client,
        pytest.raises(StoreError, match=said),
    ):
        client.send("s", TABLE, key="k")
    assert len(fake.asked) == 1


def test_a_service_that_is_not_there_is_told_so():
    with serving(Fake().app) as url:
        pass
    with lq.Client(url, KEY, timeout=2) as client, pytest.raises(StoreError, match="refused"):
        client.streams()


def test_a_stream_whose_making_was_not_acknowledged_is_made_once(client, fake):
    fake.trouble = ["lose"]
    made = client.create("birds", classes=["owl"], rules={"chunk_items": 5})
    assert made["settings"] == {"classes": ["owl"]}
    with pytest.raises(ConflictError, match="There is such a stream"):
        client.create("birds", classes=["owl"])


def test_a_stream_of_another_is_not_taken_for_ones_own(client, fake):
    client.create("birds", classes=["owl"])
    fake.trouble = ["lose"]
    with pytest.raises(ConflictError):
        client.create("birds", classes=["wren"])


def test_a_label_that_went_by_a_lost_request_is_gone(client, fake):
    path = ("DELETE", "/streams/s/labels?task=q1&worker=7")
    fake.answers[path] = {"gone": 2}
    assert client.retract("s", "q1", 7) == 2
    fake.answers[path] = refused(404, "No such label is waiting.")
    with pytest.raises(StoreError, match="No such label"):
        client.retract("s", "q1", 7)
    for trouble in (
        "lose",
        refused(503, "Busy."),
    ):  # a service that says 503 may have done it all the same
        fake.trouble = [trouble]
        assert client.retract("s", "q1", 7) == 0
    fake.trouble = [refused(429, "Too many.")]
    with pytest.raises(StoreError, match="No such label"):
        client.retract("s", "q1", 7)


# ── a service that means harm (the attacks in full are in tests/faults) ──────────────────────


def seconds_of(url, ask, timeout=0.5):
    """How long it takes until a client says that the time is over."""
    with lq.Client(url, KEY, timeout=timeout) as client:
        began = time.monotonic()
        with pytest.raises(StoreError, match=f"for|within {timeout:g} seconds"):
            ask(client)
        return time.monotonic() - began


BODY, HEAD = head(length=10**6), b"HTTP/1.1 200 OK\r\nX: "


@pytest.mark.parametrize(
    ("begin", "ask"),
    [(HEAD, "streams"), (BODY, "streams"), (HEAD, "export"), (BODY, "export"), (HEAD, "follow")],
)
def test_one_timeout_bounds_all_that_a_request_takes(tmp_path, begin, ask):
    def drip(connection):
        request_of(connection)
        connection.sendall(begin)
        server.drip(connection, b" ", 0.05)

    calls = {
        "streams": lambda client: client.streams(),
        "export": lambda client: client.export("s", tmp_path / "answers.csv"),
        "follow": lambda client: next(client.follow("s")),
    }
    with hostile(seconds=5) as server:
        took = seconds_of(f"http://127.0.0.1:{server.serve(drip)}", calls[ask])
    assert 0.3 < took < 2
    assert not list(tmp_path.iterdir())


def test_all_addresses_of_a_name_share_the_time_to_connect(monkeypatch):
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for one in (first, second):  # now that its queue is full, nobody else is let in
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        found = socket.getaddrinfo(*full.getsockname(), type=socket.SOCK_STREAM)
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found * 4)
        port = full.getsockname()[1]
        assert seconds_of(f"http://127.0.0.1:{port}", lambda client: client.streams()) < 1.2


def test_a_file_may_take_longer_as_long_as_it_comes(tmp_path):
    def send(connection):
        request_of(connection)
        connection.sendall(head(length=20 * 2**14))
        for _ in range(20):
            connection.sendall(b"a" * 2**14)
            time.sleep(0.05)

    with hostile() as server:
        url = f"http://127.0.0.1:{server.serve(send)}"
        with lq.Client(url, KEY, timeout=0.5) as client:
            client.export("s", tmp_path / "answers.csv")
    assert (tmp_path / "answers.csv").read_bytes() == b"a" * 20 * 2**14


def test_a_download_that_breaks_off_begins_again(client, fake, tmp_path):
    fake.answers["GET", "/streams/s/export?what=items&format=csv"] = Response(b"task,label\n")
    fake.trouble = ["lose", "lose"]
    client.export("s", tmp_path / "answers.csv")
    assert (tmp_path / "answers.csv").read_bytes() == b"task,label\n"
    with pytest.raises(StoreError, match="There is no"):
        client.export("other", tmp_path / "answers.csv")
    assert (tmp_path / "answers.csv").read_bytes() == b"task,label\n"


def test_an_answer_beyond_its_limit_is_refused(client, fake, monkeypatch):
    monkeypatch.setattr(transport, "MAX_JSON_BYTES", 1_000)
    fake.answers["GET", "/streams"] = {"streams": ["s" * 900]}
    assert client.streams() == ["s" * 900]
    fake.answers["GET", "/streams"] = {"streams": ["s" * 1_000]}
    with pytest.raises(LimitError, match="may have 1,000 bytes"):
        client.streams()
    fake.answers["GET", "/streams"] = refused(422, "s" * 1_000)
    with pytest.raises(LimitError, match="may have 1,000 bytes"):
        client.streams()


def test_an_event_beyond_its_limit_is_refused_and_many_small_ones_are_not(
    client, fake, monkeypatch
):
    monkeypatch.setattr(transport, "MAX_EVENT_BYTES", 70_000)
    fake.events = ["".join(event(n) for n in range(5_000)) + f"data: {'x' * 70_000}\n\n"]
    following = client.follow("s")
    assert [next(following).id for _ in range(5_000)] == [str(n) for n in range(5_000)]
    with pytest.raises(LimitError, match="may have 70,000 bytes"):
        next(following)


def test_no_answer_is_unpacked(client, fake):
    fake.trouble = [
        Response(b"bomb", status, {"Content-Encoding": "gzip"}) for status in (200, 500)
    ]
    for _ in range(2):
        with pytest.raises(StoreError, match="packed"):
            client.streams()
    assert fake.asked[0][2]["accept-encoding"] == "identity"


def test_json_that_is_nested_too_deep_is_an_error_of_ours(client, fake):
    deep = b"[" * 100_000
    fake.trouble = [Response(deep), Response(deep, 500)]
    for said in ("Check the address", "the answer was 500 Internal Server Error"):
        with pytest.raises(StoreError, match=said):
            client.streams()
    fake.events = [f"data: {deep.decode()}\n\n"]
    assert next(client.follow("s")).data == deep.decode()


def test_what_a_service_says_cannot_act_on_a_terminal(client, fake):
    fake.trouble = [refused(422, "Not \x1b[2J\x9b1m \u202e\u2066 'é'.\r\nready $")]
    with pytest.raises(StateError) as raised:
        client.streams()
    assert str(raised.value).endswith(r"Not \x1b[2J\x9b1m \u202e\u2066 'é'.\r\nready $")
    receipt = {"accepted": 0, "late": 3, "skipped": {}, "repeated": 0}
    fake.trouble = [JSONResponse({**receipt, "reason": "Late\x07."})]
    assert client.send("s", TABLE).reason == r"Late\x07."


def test_an_id_of_an_event_that_no_header_can_carry_is_not_kept(client, fake):
    fake.events = ["id: ä\ndata: 1\n\n", event(8)]
    following = client.follow("s", after=3)
    assert [next(following).id, next(following).id] == ["", "8"]
    assert [headers.get("last-event-id") for _, _, headers in fake.asked] == ["3", "3"]


# ── refused ──────────────────────────────────────────────────────────────────────────────────


def test_a_batch_that_is_refused_says_why_and_what_was_taken(client, fake, monkeypatch):
    monkeypatch.setattr(transport, "BATCH_ROWS", 2)
    bad = [*ROWS[:2], {**ROWS[2], "label": "bad"}]
    said = r"'bad' is not one of the classes. There are 1 more such. Rows from 2 on .* key='k'"
    with pytest.raises(LabelError, match=said):
        client.send("s", bad, key="k")
    sent = client.send("s", ROWS, key="k")  # corrected
    assert (sent.accepted, sent.repeated) == (3, 1)
    assert fake.rows == ROWS


def test_other_labels_under_a_key_are_a_conflict(client):
    client.send("s", TABLE, key="k")
    with pytest.raises(ConflictError, match=r"came before with other labels\.$"):
        client.send("s", {"q9": {"ann": "yes"}}, key="k")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, StoreError),
        (403, StoreError),
        (404, transport.AbsentError),
        (409, ConflictError),
        (413, LimitError),
        (422, StateError),
        (500, StoreError),
    ],
)
def test_a_refusal_is_the_error_it_stands_for_with_the_services_own_sentence(
    client, fake, status, kind
):
    fake.trouble = [refused(status, "So it is.")]
    with pytest.raises(kind, match="So it is") as raised:
        client.streams()
    assert type(raised.value) is kind
    assert len(fake.asked) == 1


def test_what_is_no_service_of_ours_is_told_so(client, fake):
    fake.trouble = [HTMLResponse("<p>Welcome"), HTMLResponse("<p>Go away", 418)]
    with pytest.raises(StoreError, match="Check the address"):
        client.streams()
    with pytest.raises(StateError, match="the answer was 418"):
        client.streams()


@pytest.mark.parametrize("url", ["", "service", "ftp://service", "http://", "http://a:b", None])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(StateError, match="`url` of Client"):
        lq.Client(url, KEY)


def test_a_key_and_a_timeout_are_checked():
    for key in ("", None, "two\nlines", "ä"):
        with pytest.raises(StateError, match="`key` of Client"):
            lq.Client("http://127.0.0.1", key)
    for timeout in (0, -1, float("nan"), float("inf")):
        with pytest.raises(StateError, match="`timeout` of Client"):
            lq.Client("http://127.0.0.1", KEY, timeout=timeout)


def test_a_key_is_not_shown(client):
    assert KEY not in repr(client)


def test_no_proxy_stands_between_a_machine_and_itself(fake, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://192.0.2.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    fake.answers["GET", "/streams"] = {"streams": ["s"]}
    with serving(fake.app) as url, lq.Client(url, KEY) as client:
        assert client.streams() == ["s"]


# ── read ─────────────────────────────────────────────────────────────────────────────────────


def answer(task, **more):
    return {"task": task, "label": "yes", "confidence": 0.5, "labels": 3, "chunk": 1, **more}


def test_items_are_a_table_by_task_read_page_by_page(client, fake):
    here = "/streams/s/items?confidence_below=0.9&limit=1000"
    fake.answers["GET", here] = {"items": [answer("a"), answer(7)], "next": "x"}
    fake.answers["GET", f"{here}&cursor=x"] = {"items": [answer("b", open=True)], "next": None}
    table = client.items("s", confidence_below=0.9)
    assert table.index.tolist() == ["a", 7, "b"]
    assert table.index.name == "task"
    assert table.columns.tolist() == ["label", "confidence", "labels", "chunk"]
    one_by_one = client.iter_items("s", confidence_below=0.9)
    assert [one["task"] for one in one_by_one] == ["a", 7, "b"]


def test_no_items_are_an_empty_table_with_the_same_columns(client, fake):
    fake.answers["GET", "/streams/s/items?undecided=true&limit=1000"] = {"items": [], "next": None}
    table = client.items("s", undecided=True)
    assert table.empty
    assert table.columns.tolist() == ["label", "confidence", "labels", "chunk"]


def test_workers_pending_and_chunks_are_tables(client, fake):
    worker = {"worker": 5, "skill": 0.9, "low": 0.8, "high": 1.0, "labels": 4, "agreed": 3}
    fake.answers["GET", "/streams/s/workers?limit=1000"] = {
        "workers": [{**worker, "flags": [{"flag": "spammer", "says": "…"}], "trend": None}],
        "next": None,
    }
    assert client.workers("s").loc[5, ["skill", "flags"]].tolist() == [0.9, "spammer"]
    fake.answers["GET", "/streams/s/pending?threshold=0.8&limit=5"] = {
        "items": [answer("a", open=True)]
    }
    assert client.pending("s", 0.8, limit=5).loc["a", "open"]
    chunk = {"id": 1, "state": "applied", "items": 2, "labels": 4, "cut_at": 1.0, "attempts": 0}
    fake.answers["GET", "/streams/s/chunks?limit=1000"] = {
        "chunks": [{**chunk, "error": None, "version": 1}],
        "next": None,
    }
    assert client.chunks("s").loc[1, "state"] == "applied"


@pytest.mark.parametrize(
    ("task", "spelled"),
    [
        ("a/b ?#%", "a%2Fb%20%3F%23%25"),
        ("..", "%2E%2E"),
        ("ä", "%C3%A4"),
        (7, "7"),
        (np.int64(7), "7"),
    ],
)
def test_any_name_can_stand_in_an_address(client, fake, task, spelled):
    fake.answers["GET", f"/streams/s/items/{spelled}"] = answer("a")
    assert client.item("s", task) == answer("a")


def test_true_labels_keep_the_type_of_their_tasks(client, fake):
    fake.answers["POST", "/streams/s/gold"] = {"told": 2}
    assert client.gold("s", pd.Series({7: "yes", 8: "no"})) == 2
    with pytest.raises(LabelError, match="true_labels must be"):
        client.gold("s", [("q1", "yes")])


def keep_truths(fake, classes=("yes", "no")):
    """Keep a stream s, and the true labels that are sent to it, by idempotency key."""
    fake.streams["s"] = {"settings": {"classes": classes and list(classes)}}
    found = {}

    def do(request, path, body):
        if not path.endswith("/gold"):
            return usual(request, path, body)
        rows = json.loads(body)
        if any(row["task"] == "busy" for row in rows):
            return refused(409, "Task 'busy' is being answered with another truth.")
        found[request.headers["idempotency-key"]] = rows
        return JSONResponse({"told": len(rows)})

    usual, fake.do = fake.do, do
    return found


TRUTHS = {f"q{n}": "yes" for n in range(5)}


def test_many_true_labels_go_in_parts_each_under_a_key_of_its_own(client, fake, monkeypatch):
    monkeypatch.setattr(transport, "MAX_TRUTHS", 2)
    found = keep_truths(fake)
    assert client.gold("s", dict(reversed(TRUTHS.items()))) == 5
    assert [[row["task"] for row in rows] for rows in found.values()] == [
        ["q0", "q1"],
        ["q2", "q3"],
        ["q4"],
    ]
    assert len({key.partition(".")[0] for key in found}) == 1
    keep_truths(fake, classes=None)
    assert client.gold("s", {**TRUTHS, 7: "maybe"}) == 6  # any label is a class
    assert client.gold("s", {}) == 0


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"q9": "maybe"}, "'q9': the label is not one of the classes"),
        ({"q9": 1}, "'q9': the label is not one of the classes"),
        ({"q\x00": "yes"}, "the task has a control character in it"),
        ({"q" * 257: "yes"}, "the task is longer than 256 bytes"),
        ({"q\ud800": "yes"}, "neither text"),
    ],
)
def test_a_bad_truth_of_the_last_part_is_found_before_the_first_is_sent(
    client, fake, monkeypatch, bad, said
):
    monkeypatch.setattr(transport, "MAX_TRUTHS", 2)
    found = keep_truths(fake)
    with pytest.raises(LabelError, match=said):
        client.gold("s", {**TRUTHS, **bad})
    assert not found


def test_an_error_in_the_last_part_says_how_many_truths_were_accepted(client, fake, monkeypatch):
    monkeypatch.setattr(transport, "MAX_TRUTHS", 2)
    keep_truths(fake)
    truths = {"a1": "yes", "a2": "yes", "busy": "no"}
    with pytest.raises(ConflictError, match=r"another truth\. Before it, 2 of 3 truths were acc"):
        client.gold("s", truths)


def test_a_model_comes_as_the_librarys_own(client, fake, tmp_path):
    lq.BiLA().fit(TABLE).save(tmp_path / "model.lq")
    fake.answers["GET", "/streams/s/model"] = Response((tmp_path / "model.lq").read_bytes())
    assert client.model("s").skills_.index.tolist() == ["ann", "bob"]


def test_keys_are_made_listed_and_revoked(client, fake):
    reply = {"id": 3, "name": "hook", "scope": "write", "stream": "s", "created_at": 1.0}
    fake.answers["POST", "/keys"] = {**reply, "revoked_at": None, "key": "secret"}
    fake.answers["GET", "/keys"] = {"keys": [{**reply, "revoked_at": 2.0}]}
    fake.answers["DELETE", "/keys/3"] = {}
    assert client.make_key("hook", "write", stream="s") == "secret"
    assert client.keys().loc[3, "scope"] == "write"
    client.revoke_key(np.int64(3))
    assert fake.asked[-1][:2] == ("DELETE", "/v1/keys/3")


# ── events ───────────────────────────────────────────────────────────────────────────────────


def event(number, more=""):
    return f'id: {number}\nevent: applied\ndata: {{"chunk": {number}}}\n{more}\n'


def test_events_go_on_where_they_were_cut_off(client, fake):
    fake.events = [
        f': hello\n\n{event(1)}{event(2)}id: 3\nevent: applied\ndata: {{"chu',
        "",
        event(3),
    ]
    following = client.follow("s")
    got = [next(following) for _ in range(3)]
    following.close()
    assert got == [Event(str(n), "applied", {"chunk": n}) for n in (1, 2, 3)]
    after = [headers.get("last-event-id") for _, _, headers in fake.asked]
    assert after == [None, "2", "2"]


def test_events_go_on_from_where_the_service_stood_even_if_none_had_come(client, fake):
    fake.events = ["id: 7\n: hello\n\n", event(8)]
    assert next(client.follow("s")).id == "8"
    assert [headers.get("last-event-id") for _, _, headers in fake.asked] == [None, "7"]


def test_events_after_one_that_is_known_can_be_asked_for(client, fake):
    fake.events = [event(8)]
    assert next(client.follow("s", after=7)).id == "8"
    assert fake.asked[0][2]["last-event-id"] == "7"


def test_events_are_asked_for_again_when_the_service_is_away(client, fake):
    fake.trouble = [refused(503, "Busy."), "lose"]
    fake.events = ["", event(1)]
    assert next(client.follow("s")).id == "1"


def test_events_that_stay_away_for_timeout_are_an_error_that_says_how_to_go_on(fake):
    with serving(fake.app) as url, lq.Client(url, KEY, timeout=1) as client:
        fake.events = [event(4)]
        fake.trouble = [None, *[refused(503, "The store is away.")] * 10_000]
        following = client.follow("s")
        next(following)
        with pytest.raises(StoreError, match=r"The store is away.*after='4'"):
            next(following)


def test_a_refusal_to_tell_events_is_raised(client, fake):
    fake.trouble = [refused(404, "There is no stream 's'.")]
    with pytest.raises(StoreError, match="no stream 's'"):
        next(client.follow("s"))


def test_data_of_several_lines_is_one_value(client, fake):
    fake.events = ["id:1\ndata: [1,\ndata: 2]\n\nid: 2\ndata:plain\n\n"]
    following = client.follow("s")
    assert next(following) == Event("1", "message", [1, 2])
    assert next(following) == Event("2", "message", "plain")


# ── imports ──────────────────────────────────────────────────────────────────────────────────


def test_the_client_needs_neither_jax_nor_the_store():
    code = (
        "import sys; from labelquorum import Client; Client('http://127.0.0.1:1', 'k');"
        "assert not {'jax', 'sqlalchemy', 'fastapi'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
