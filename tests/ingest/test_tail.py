"""Files that grow: whole records, wherever the bytes were cut, and the lines they stand on."""

import csv
import io
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelquorum.errors import LabelError
from labelquorum.ingest.labels import LabelSpace
from labelquorum.ingest.tail import Kind, Lines, kind_of, looks_like, split_records

CSV, JSON = Kind(".csv"), Kind(".jsonl")
CELLS = st.text(st.sampled_from('ab",\n é'), max_size=6)


@given(
    st.lists(st.lists(CELLS, min_size=2, max_size=3), max_size=8),
    st.lists(st.integers(0, 200), max_size=6),
    st.sampled_from(["\n", "\r\n"]),
)
def test_records_of_csv_are_whole_wherever_the_bytes_were_cut(rows, cuts, newline):
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=newline).writerows(rows)
    data = text.getvalue().encode()
    found, rest, edges = [], b"", [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in pairwise(edges):
        records, rest = split_records(rest + data[start:end], CSV)
        found += records
    records, rest = split_records(rest, CSV, final=True)
    found += records
    assert rest == b""
    assert b"".join(line for record in found for line in record) == data
    assert [next(csv.reader(line.decode() for line in record)) for record in found] == rows


def test_a_line_without_its_newline_waits_unless_no_more_will_come():
    assert split_records(b'{"a": 1}\n{"b"', JSON) == ([[b'{"a": 1}\n']], b'{"b"')
    assert split_records(b'{"b": 1}', JSON, final=True) == ([[b'{"b": 1}']], b"")


def test_a_bad_row_does_not_hold_up_those_after_it():
    records, rest = split_records(b'a,"b"c\nd,e\nf,"g', CSV)
    assert (records, rest) == ([[b'a,"b"c\n'], [b"d,e\n"]], b'f,"g')


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.csv", CSV),
        ("A.CSV", CSV),
        ("a.wide.csv", Kind(".wide.csv")),
        ("a.jsonl.gz", Kind(".jsonl", packed=True)),
        ("a.parquet", Kind(".parquet")),
        ("a.csv.part", None),
        (".a.csv", None),
        ("csv", None),
    ],
)
def test_the_suffix_tells_the_kind(name, kind):
    assert kind_of(name) == kind


def test_a_brace_tells_json():
    assert looks_like(b'\xef\xbb\xbf \n{"task"') == JSON
    assert looks_like(b"task,worker") == CSV


@pytest.mark.parametrize(
    ("kind", "header", "good", "bad"),
    [
        (CSV, [b"task,worker,label\n"], b"t,a,x\n", b"t,,x\n"),
        (JSON, [], b'{"task": 1, "worker": 2, "label": "x"}\n', b"{]\n"),
        (Kind(".wide.csv"), [b"task,ann\n"], b"t,x\n", b"t,x,y\n"),
    ],
)
def test_a_row_stands_on_the_line_of_its_file(kind, header, good, bad):
    space = LabelSpace()
    table = Lines("f", kind, header, 100, [[good], [good]]).read(space)
    assert list(table.lines) == [101, 102]
    with pytest.raises(LabelError, match=r"^f line 102: "):
        Lines("f", kind, header, 100, [[good], [bad]]).read(space)
