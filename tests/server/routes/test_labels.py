"""Labels over HTTP: every format, every limit, every kind of nonsense."""

import gzip
import io
import json
import re
from pathlib import Path
from time import sleep

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from labelquorum.ingest.untrusted import MAX_ROWS

ROWS = [
    {"task": "t1", "worker": "ann", "label": "owl"},
    {"task": "t1", "worker": "bob", "label": "wren"},
    {"task": "t2", "worker": "ann", "label": "owl"},
]


def parquet(rows, **options):
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), sink, **options)
    return sink.getvalue()


def csv(rows):
    lines = ["task,worker,label", *(",".join(map(str, row.values())) for row in rows)]
    return "\n".join(lines).encode()


BODIES = {
    "list": ("application/json", lambda rows: json.dumps(rows).encode()),
    "object": ("application/json", lambda rows: json.dumps({"labels": rows}).encode()),
    "ndjson": (
        "application/x-ndjson",
        lambda rows: "\n".join(map(json.dumps, rows)).encode(),
    ),
    "csv": ("text/csv; charset=utf-8", csv),
    "parquet": ("application/vnd.apache.parquet", parquet),
}


def send(client, stream, body, kind="application/json", **headers):
    headers = {"Content-Type": kind, **{n.replace("_", "-"): v for n, v in headers.items()}}
    return client.post(f"{stream}/labels", content=body, headers=headers)


@pytest.mark.parametrize("kind", ["list", "ndjson", "csv", "parquet"])
def test_scores_and_attributes_come_with_labels_and_are_shown(admin, stream, kind):
    known = {"score": 0.75, "worker_kind": "llm", "model": "m", "prompt": "p", "order": "AB"}
    rows = [
        {"task": task, "worker": worker, "label": "owl", **known}
        for task in ("t1", "t2")
        for worker in ("j1", "j2")
    ]
    media, write = BODIES[kind]
    body = write(rows)
    if kind == "csv":
        body = body.replace(b"task,worker,label", ",".join(rows[0]).encode(), 1)
    assert send(admin, stream, body, media).json()["accepted"] == 4
    for _ in range(100):
        workers = admin.get(f"{stream}/workers").json()["workers"]
        if workers:
            break
        sleep(0.05)
    attributes = {name: known[name] for name in known if name != "score"}
    assert [attributes.items() <= worker.items() for worker in workers] == [True, True]
    assert attributes.items() <= admin.get(f"{stream}/workers/j1").json().items()
    exported = admin.get(f"{stream}/export?what=workers&format=csv").text.splitlines()
    assert "worker_kind,model,prompt,order" in exported[0] and "llm,m,p,AB" in exported[1]
    answer = send(admin, stream, json.dumps([{**rows[0], "order": "BA"}]).encode())
    assert answer.status_code == 422
    assert "two worker ids, with the same model and prompt" in answer.text


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"score": "high"}, "the score is not a finite"),
        ({"worker_kind": "cat"}, "human, llm, model"),
    ],
)
def test_bad_scores_and_kinds_are_refused_with_their_row(admin, stream, change, word):
    answer = send(admin, stream, json.dumps([ROWS[0], ROWS[1] | change]).encode())
    assert answer.status_code == 422 and word in answer.text and "row 1" in answer.text


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("kind", BODIES)
def test_every_format_is_taken(admin, stream, kind, packed):
    media, write = BODIES[kind]
    body = write(ROWS)
    headers = {}
    if packed:
        body, headers = gzip.compress(body), {"Content_Encoding": "gzip"}
    answer = send(admin, stream, body, media, **headers)
    assert answer.status_code == 200, answer.text
    assert answer.json() == {
        "accepted": 3,
        "late": 0,
        "reason": None,
        "skipped": {},
        "repeated": False,
    }
    assert admin.get(stream).json()["counts"]["waiting_labels"] == 3


def test_one_label_is_an_object(admin, stream):
    label = {"task": 7, "worker": "ann", "label": "owl", "weight": 0.5, "timestamp": 3}
    assert send(admin, stream, json.dumps(label)).json()["accepted"] == 1
    [item] = admin.get(f"{stream}/items", params={"undecided": True}).json()["items"]
    assert item["task"] == 7 and item["labels"] == 1 and item["label"] is None


@pytest.mark.parametrize("kind", BODIES)
def test_bad_rows_are_named_and_nothing_is_taken(admin, stream, kind):
    media, write = BODIES[kind]
    bad = [{"task": f"t{n}", "worker": "ann", "label": "crow"} for n in range(30)]
    answer = send(admin, stream, write([ROWS[0], *bad]), media)
    reply = answer.json()
    assert answer.status_code == reply["status"] == 422 and reply["ok"] is False
    assert len(reply["errors"]) == 20 and reply["error"] == reply["errors"][0]
    place = {"ndjson": "body line 2", "csv": "body line 3"}.get(kind, "body row 1")
    assert reply["error"].startswith(f"{place}: label 'crow' is not one of the classes")
    assert admin.get(stream).json()["counts"]["waiting_labels"] == 0


@pytest.mark.parametrize("kind", BODIES)
def test_bad_rows_are_skipped_and_counted_if_wanted(admin, stream, kind):
    media, write = BODIES[kind]
    bad = [
        {"task": "t1", "worker": "ann", "label": "crow"},
        {"task": "t1", "worker": "a" * 300, "label": "owl"},
        {"task": "t\x1b[2J", "worker": "ann", "label": "owl"},
    ]
    answer = admin.post(
        f"{stream}/labels",
        params={"on_bad": "skip"},
        content=write([*bad, *ROWS]),
        headers={"Content-Type": media},
    )
    assert answer.json()["accepted"] == 3, answer.text
    assert answer.json()["skipped"] == {"unknown class": 1, "bad worker": 1, "bad task": 1}


def test_the_same_key_counts_once_and_another_body_under_it_is_a_conflict(admin, stream):
    first = send(admin, stream, json.dumps(ROWS), Idempotency_Key="één".encode())
    again = send(admin, stream, json.dumps(ROWS), Idempotency_Key="één".encode())
    other = send(admin, stream, json.dumps(ROWS[:1]), Idempotency_Key="één".encode())
    assert first.json()["repeated"] is False and again.json()["repeated"] is True
    assert again.json()["accepted"] == 3
    assert other.status_code == 409 and "key 'één' came before" in other.json()["error"]
    assert admin.get(stream).json()["counts"]["waiting_labels"] == 3


def test_a_label_is_taken_back_before_it_is_cut(admin, stream):
    send(admin, stream, json.dumps([*ROWS, {"task": 7, "worker": 8, "label": "owl"}]))

    def retract(task, worker):
        return admin.delete(f"{stream}/labels", params={"task": task, "worker": worker})

    assert retract("t1", "ann").json() == {"gone": 1}
    assert retract("7", "8").json() == {"gone": 1}
    again = retract("t1", "ann")
    assert again.status_code == 404 and "is waiting" in again.json()["error"]


NONSENSE = {
    "nothing": (b"", 422),
    "no JSON": (b"owl", 422),
    "no UTF-8": (b'{"task": "\xff", "worker": "ann", "label": "owl"}', 422),
    "NaN": (b'{"task": NaN, "worker": "ann", "label": "owl"}', 422),
    "Infinity": (b'{"task": 1, "worker": "ann", "label": "owl", "weight": -Infinity}', 422),
    "too large a number": (b'{"task": 1e999, "worker": "ann", "label": "owl"}', 422),
    "thousands of digits": (b'{"task": %s, "worker": 1, "label": "owl"}' % (b"9" * 5000), 422),
    "hundreds of digits": (b'{"task": %s, "worker": 1, "label": "owl"}' % (b"9" * 300), 422),
    "NUL": (b'{"task": "a\\u0000", "worker": "ann", "label": "owl"}', 422),
    "half a character": (b'{"task": "\\ud800", "worker": "ann", "label": "owl"}', 422),
    "a line break": (b'{"task": "a\\nb", "worker": "ann", "label": "owl"}', 422),
    "an escape": (b'{"task": "\\u001b[31m", "worker": "ann", "label": "owl"}', 422),
    "a long name": (b'{"task": "%s", "worker": "ann", "label": "owl"}' % (b"x" * 257), 422),
    "a giant name": (b'{"task": "%s", "worker": 1, "label": "owl"}' % (b"x" * 2**23), 422),
    "a list as a name": (b'{"task": ["a"], "worker": "ann", "label": "owl"}', 422),
    "a list as a timestamp": (
        b'{"task": 1, "worker": "ann", "label": "owl", "timestamp": [1]}',
        422,
    ),
    "a number": (b"7", 422),
    "null": (b"null", 422),
    "rows that are none": (b'[1, "a", null, []]', 422),
    "no label": (b'{"task": 1, "worker": 2}', 422),
    "a heavy label": (b'{"task": 1, "worker": 2, "label": "owl", "weight": 1e9}', 422),
    "deep lists": (b"[" * 100_000, 422),
    "deep objects": (b'{"task":' * 30_000, 422),
    "very many names": (b"{%s}" % b",".join(b'"%d":1' % n for n in range(1_200_000)), 413),
    "names that all differ": (
        b"[%s]" % b",".join(b'{"%d":1,"a%d":1,"b%d":1}' % (n, n, n) for n in range(99_000)),
        413,
    ),
    "too many rows": (b"[%s]" % b",".join([b"{}"] * (2 * MAX_ROWS + 1)), 413),
    "too large": (b" " * (16 * 2**20 + 1), 413),
}


def test_gzip_that_is_not_declared_is_told_as_such(admin, stream):
    answer = send(admin, stream, gzip.compress(b"task,worker,label\nt,ann,owl\n"), "text/csv")
    assert answer.status_code == 422 and "Send Content-Encoding: gzip" in answer.json()["error"]


def test_labels_that_would_be_classes_nobody_meant_are_refused(admin):
    rules = {"labels_per_item": 2, "chunk_items": 5}
    admin.post("/v1/streams", json={"name": "open", "rules": rules}).raise_for_status()
    row = {"task": "t", "worker": "ann", "label": 1}
    assert admin.post("/v1/streams/open/labels", json=row).status_code == 200
    answer = admin.post("/v1/streams/open/labels", json={**row, "worker": "bob", "label": "1"})
    assert answer.status_code == 422
    [sentence] = answer.json()["errors"]
    assert "label '1' (task 't', worker 'bob') is text" in sentence and "Convert" in sentence
    rows = [{"task": n, "worker": "ann", "label": n / 7} for n in range(90)]
    answer = admin.post("/v1/streams/open/labels", json=rows)
    assert answer.status_code == 422 and "Bin them" in answer.json()["errors"][0]
    answer = admin.post("/v1/streams/open/gold", json={"t": "1"})
    assert answer.status_code == 422 and "two classes" in answer.json()["errors"][0]
    assert admin.get("/v1/streams/open").json()["counts"]["waiting_labels"] == 1


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_is_refused_in_the_one_shape(admin, stream, name):
    body, status = NONSENSE[name]
    answer = send(admin, stream, body)
    reply = answer.json()
    assert answer.status_code == status, reply["error"][:300]
    assert (
        reply["status"] == status and reply["ok"] is False and reply["errors"][0] == reply["error"]
    )
    assert len(answer.content) < 2**15
    assert admin.get(stream).json()["counts"]["waiting_labels"] == 0


BOMBS = {
    "zeros": ("text/csv", gzip.compress(bytes(2**27), 9)),
    "members": ("text/csv", gzip.compress(bytes(2**20), 9) * 300),
    "cut off": ("text/csv", gzip.compress(b"task,worker,label\n" * 99)[:-9]),
    "no gzip": ("text/csv", b"task,worker,label"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_what_is_packed_does_not_grow_beyond_bounds(admin, running, stream, name):
    media, body = BOMBS[name]
    answer = send(admin, stream, body, media, Content_Encoding="gzip")
    assert answer.status_code == (413 if name in ("zeros", "members") else 422), answer.text
    assert running.app.service.bodies.held == 0


def of_one_value(value, rows):
    """A file in which one long value stands in many rows, and takes hardly any room."""
    again = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * rows, "int32"), [value])
    short = pyarrow.DictionaryArray.from_arrays(again.indices, ["owl"])
    sink = io.BytesIO()
    table = pyarrow.table({"task": again, "worker": short, "label": short})
    pyarrow.parquet.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def lying(rows):
    """A file of a great many rows that says it has nine."""
    again = pyarrow.DictionaryArray.from_arrays(np.zeros(rows, np.int32), ["owl"])
    table = pyarrow.table({"task": again, "worker": again, "label": again})
    sink, options = io.BytesIO(), {"store_schema": False, "write_statistics": False}
    pyarrow.parquet.write_table(table, sink, compression="zstd", row_group_size=rows, **options)
    body = sink.getvalue()
    footer = len(body) - 8 - int.from_bytes(body[-8:-4], "little")
    start = body.index(thrift_number(rows), footer)  # of the file; then come those of its parts
    end = start + len(thrift_number(rows))
    return body[:start] + thrift_number(9, end - start) + body[end:]


def thrift_number(number, width=0):
    """A field of Thrift's compact protocol with a whole number, padded to a width."""
    digits, number = [], 2 * number
    while number or len(digits) + 1 < width:
        digits.append(number & 127)
        number >>= 7
    return bytes([0x16, *(digit | 128 for digit in digits[:-1]), digits[-1]])


def of_one_length(length):
    """A file that is true to its word, with one value of a fixed length in every row."""
    kinds = [
        ("task", pyarrow.binary(length)),
        ("worker", pyarrow.utf8()),
        ("label", pyarrow.utf8()),
    ]
    rows, schema = 1000, pyarrow.schema(kinds)
    values = [[b"x" * length] * rows, ["ann"] * rows, ["owl"] * rows]
    part = pyarrow.record_batch(
        [pyarrow.array(*pair) for pair in zip(values, schema.types, strict=True)], schema=schema
    )
    sink = io.BytesIO()
    with pyarrow.parquet.ParquetWriter(sink, schema, compression="zstd") as writer:
        for _ in range(100):
            writer.write_batch(part)
    return sink.getvalue()


def peak_bytes(start=False):
    """The most memory that this process has had since the start."""
    if start:
        Path("/proc/self/clear_refs").write_text("5")
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return 1024 * int(found[1])


ONE = {"task": "t", "worker": "ann", "label": "owl"}
PARQUET_BOMBS = {
    "one long page": (lambda: of_one_value("x" * 10**8, 1), 413),
    "one value again and again": (lambda: of_one_value("x" * 10**5, 90_000), 413),
    "many rows": (lambda: of_one_value("t", MAX_ROWS + 1), 413),
    "fewer rows than there are": (lambda: lying(5_000_000), 413),
    "long values of one length": (lambda: of_one_length(2_000), 413),
    "lists": (lambda: parquet([{**ONE, "task": ["t"]}]), 422),
    "no file": (lambda: b"PAR1" + bytes(100) + b"PAR1", 422),
    "nothing": (lambda: b"", 422),
}


@pytest.mark.parametrize("name", PARQUET_BOMBS)
def test_parquet_that_needs_too_much_is_refused_and_takes_no_memory_here(admin, stream, name):
    make, status = PARQUET_BOMBS[name]
    body = make()
    before = peak_bytes(start=True)
    answer = send(admin, stream, body, "application/vnd.apache.parquet")
    assert answer.status_code == status, answer.text
    assert answer.json()["status"] == status
    assert peak_bytes() - before < 128 * 2**20


def test_parquet_with_any_bit_turned_is_read_or_refused(admin, stream):
    body = bytearray(parquet(ROWS))
    for bit in range(0, 8 * len(body), 101):
        body[bit // 8] ^= 1 << bit % 8
        answer = send(admin, stream, bytes(body), "application/vnd.apache.parquet")
        assert answer.status_code in (200, 413, 422), answer.text
        body[bit // 8] ^= 1 << bit % 8


def test_other_packings_media_and_choices_are_refused(admin, stream):
    body = json.dumps(ROWS)
    assert send(admin, stream, body, Content_Encoding="br").status_code == 415
    assert send(admin, stream, body, "multipart/form-data").status_code == 415
    answer = admin.post(f"{stream}/labels?on_bad=shrug", content=body)
    assert answer.status_code == 422 and "on_bad" in answer.json()["error"]
    assert send(admin, stream, body, Idempotency_Key="k" * 300).status_code == 422


def test_more_workers_than_the_rule_allows_are_refused_whole(admin, stream):
    admin.patch(stream, json={"max_workers": 2})
    rows = [{"task": "t", "worker": n, "label": "owl"} for n in range(3)]
    answer = send(admin, stream, json.dumps(rows))
    assert answer.status_code == 413 and "max_workers=2" in answer.json()["error"]
    assert send(admin, stream, json.dumps(rows[:2])).json()["accepted"] == 2
