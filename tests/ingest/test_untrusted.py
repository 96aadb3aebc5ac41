"""What strangers send: records, names, and packed bytes that want to grow."""

import gzip
import io

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelquorum.errors import LabelError, LimitError
from labelquorum.ingest import frames, records, untrusted
from labelquorum.ingest.labels import LabelSpace
from labelquorum.ingest.records import read_records
from labelquorum.ingest.untrusted import (
    FREE_BYTES,
    MAX_MEMBERS,
    MAX_RATIO,
    decode_parquet,
    gunzip,
)
from labelquorum.ingest.validate import ANY_LABEL, NAMED_ROWS, check_names, checked, fault_of_name

ROWS = [{"task": n, "worker": f"w{n % 3}", "label": "a", "weight": 0.5} for n in range(50)]


def parquet(rows, **options):
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), sink, **options)
    return sink.getvalue()


def read_parquet(folder, body):
    (folder / "body").write_bytes(body)
    decode_parquet(folder / "body", folder / "table")
    found = pyarrow.ipc.open_stream(folder / "table").read_all()
    return checked(frames.collect(found, "body"), ANY_LABEL)


@given(st.binary(max_size=3000), st.integers(1, 3))
def test_what_was_packed_comes_back(data, members):
    assert gunzip(gzip.compress(data) * members) == data * members


def test_what_unpacks_to_too_much_is_given_up():
    with pytest.raises(LimitError, match="Send it in parts"):
        gunzip(gzip.compress(bytes(FREE_BYTES + 1)))
    with pytest.raises(LimitError):
        gunzip(gzip.compress(b"abc"), max_bytes=2)
    packed = gzip.compress(bytes(FREE_BYTES))
    assert MAX_RATIO * len(packed) < FREE_BYTES
    assert len(gunzip(packed)) == FREE_BYTES


@pytest.mark.parametrize(
    "packed",
    [b"abc", gzip.compress(b"abc")[:-1], b"\x1f\x8b"],
    ids=["text", "cut off", "two bytes"],
)
def test_what_is_no_gzip_is_refused(packed):
    with pytest.raises(LabelError):
        gunzip(packed)
    assert gunzip(b"") == b""


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": "none"},
        {"compression": "zstd", "data_page_version": "2.0"},
        {"use_dictionary": False},
        {"write_page_index": True, "write_page_checksum": True},
        {"row_group_size": 7},
    ],
    ids=str,
)
def test_parquet_is_read_as_it_was_written(tmp_path, options):
    rows = [{**row, "more": [{"x": 2}]} for row in ROWS]
    table = read_parquet(tmp_path, parquet(rows, **options))
    assert table == read_parquet(tmp_path, parquet(ROWS))
    assert list(table.item_ids) == list(range(50)) and table.weights == [0.5] * 50
    assert table.where(3) == "body row 3"


def test_categories_of_a_parquet_file_are_read_as_their_values(tmp_path):
    workers = pyarrow.DictionaryArray.from_arrays([0, 1, 0], ["ann", "bob"])
    sink = io.BytesIO()
    table = pyarrow.table({"label": ["a", "b", "a"], "task": [1, 2, 3], "worker": workers})
    pyarrow.parquet.write_table(table, sink, row_group_size=2)
    assert read_parquet(tmp_path, sink.getvalue()).worker_ids == ["ann", "bob", "ann"]


def test_the_columns_of_a_parquet_file_have_a_maximum_size(tmp_path, monkeypatch):
    read_parquet(tmp_path, parquet(ROWS))
    monkeypatch.setattr(untrusted, "MAX_DECODED_BYTES", 1000)
    with pytest.raises(LimitError, match="decoded, has more than 1,000 bytes"):
        read_parquet(tmp_path, parquet(ROWS))


def test_records_are_read_alike_or_not():
    same = read_records(ROWS)
    mixed = read_records([dict(reversed(row.items())) for row in ROWS[:1]] + ROWS[1:])
    assert (same.item_ids, same.worker_ids, same.weights) == (
        mixed.item_ids,
        mixed.worker_ids,
        mixed.weights,
    )
    other = read_records([ROWS[0], {"Item": "q", "rater": "r", "value": 3, "note": "n"}])
    assert other.item_ids == [0, "q"] and other.weights == [0.5, 1.0]
    assert read_records([]).labels == []


def test_records_that_are_none_are_named():
    rows = [{"task": 1, "worker": 2, "label": 3}, 7, {"task": 1}, {"task": 1, "item": 2}]
    with pytest.raises(LabelError) as caught:
        read_records(rows, source="body")
    assert [s.partition(":")[0] for s in caught.value.sentences] == [
        f"body row {n}" for n in (1, 2, 3)
    ]
    skipped = read_records(rows, LabelSpace(on_bad="skip")).skipped
    assert skipped == {"malformed row": 2, "missing worker": 1}


def test_so_many_bad_rows_are_named_and_the_message_is_the_first():
    with pytest.raises(LabelError) as caught:
        read_records([{"task": n, "worker": 1, "label": None} for n in range(99)], source="body")
    assert len(caught.value.sentences) == NAMED_ROWS
    assert str(caught.value) == caught.value.sentences[0]
    assert caught.value.sentences[-1].startswith("body row 19: the label is missing")


@pytest.mark.parametrize(
    "name", ["a", "é" * 128, "a\xa0b", " a ", 7, 1.5, 10**200, True, "x" * 256]
)
def test_names_that_can_be_kept(name):
    assert fault_of_name(name) is None


@pytest.mark.parametrize(
    "name",
    ["a\n", "\0", "\x7f", "\x85", "\u2028", "\ud800", "é" * 129, "x" * 257, 10**300, '"' * 200],
)
def test_names_that_cannot(name):
    assert fault_of_name(name)


def test_bad_names_are_named_or_skipped():
    table = read_records([*ROWS[:2], {"task": "a\nb", "worker": 1, "label": 2, "weight": 1}])
    with pytest.raises(LabelError, match=r"records row 2: the task has a control character"):
        check_names(table, LabelSpace())
    kept = check_names(table, LabelSpace(on_bad="skip"))
    assert kept.item_ids == [0, 1] and kept.skipped == {"bad task": 1} and kept.lines == [0, 1]
    assert check_names(kept, LabelSpace()) is kept


def test_many_empty_members_are_given_up_before_they_cost_much():
    empty = gzip.compress(b"")
    assert gunzip(empty * MAX_MEMBERS) == b""
    full = gzip.compress(bytes(2**18))  # as much as is unpacked at a time
    assert len(gunzip(full * 3)) == 3 * 2**18
    with pytest.raises(LimitError, match="Pack it as one"):
        gunzip(empty * (MAX_MEMBERS + 1))


def test_records_with_a_great_many_keys_leave_nothing_behind():
    before = records._known_shape.cache_info().currsize
    for number in range(3):
        noise = {f"{number} {n}": n for n in range(1000)}
        assert read_records([{**noise, "task": 1, "worker": 2, "label": "a"}]).labels == ["a"]
    assert records._known_shape.cache_info().currsize == before
