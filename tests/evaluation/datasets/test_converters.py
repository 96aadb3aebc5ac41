"""Converters: small files in the form of each source, and real sets there and back again."""

import csv
import io
from datetime import datetime
from hashlib import sha256

import pytest

from labelquorum.evaluation.datasets import converters
from labelquorum.evaluation.datasets.converters import CONVERTERS, Tables, as_files
from labelquorum.evaluation.datasets.load import known_datasets, read_dataset

# ── there: our tables in the form of a source ────────────────────────────────────────────────


def table(rows, delimiter=","):
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def lines(rows, delimiter=" "):
    return "".join(delimiter.join(row) + "\n" for row in rows).encode()


def with_truth(tables):
    truth = dict(tables.truth)
    return [(*row, truth.get(row[0], "")) for row in tables.labels]


def snow(score):
    def write(tables):
        header = "!amt_annotation_ids", "!amt_worker_ids", "orig_id", "response", "gold"
        rows = [("id", w, t, score(z), score(y)) for t, w, z, y in with_truth(tables)]
        return [lines([header, *rows], "\t")]

    return write


def slr(criterion, gold):
    def write(tables):
        task = "paper ID" if criterion == "intervention" else f"{criterion} paper ID"
        vote = f"{criterion} {'Vote' if criterion == 'intervention' else 'vote'}"
        header = "other", task, f"{criterion} worker ID", vote, "classes", f"GOLD {gold}"
        return [table([header, *(("", t, w, z, "a, b", y) for t, w, z, y in with_truth(tables))])]

    return write


def assignments(tables):
    header = "HITId", "AssignmentId", "WorkerId", "AcceptTime", "WorkTimeInSeconds"
    header = *header, "Answer.0metaphorNovelty0", "Answer.1metaphorNovelty0", "Answer.example1"

    def write(rows):
        found = [header]
        for task, worker, label, time in rows:
            accepted = datetime.fromisoformat(time).strftime("%a %b %d %H:%M:%S PST %Y")
            found.append(("h", "a", worker, accepted, "0", f"{task} {label}", "", "3"))
        return table([*found, header])

    return [
        write(tables.labels),
        write((t, "E", y, "2017-01-17T14:25:07") for t, y in tables.truth),
    ]


def judgements(tables):
    names = "_unit_id", "_created_at", "_worker_id", "type_of_message", "type_of_message_gold"
    rows = [
        (t, datetime.fromisoformat(time).strftime("%m/%d/%Y %H:%M:%S"), w, z, y)
        for t, w, z, time, y in with_truth(tables)
    ]
    # The source has the judgements of an item together; gold stands with any of them.
    return [table([names, *sorted(rows, key=lambda row: int(row[0]))])]


def matrix(tables):
    cells = {(int(t), int(w)): z for t, w, z in tables.labels}
    n_items, n_workers = (1 + max(place[axis] for place in cells) for axis in (0, 1))
    rows = [
        [f"{float(cells.get((item, worker), -1)):.18e}" for worker in range(n_workers)]
        for item in range(n_items)
    ]
    return [lines(rows), lines([f"{float(y):e}"] for _, y in tables.truth)]


def digits(tables):
    def write(part):
        hot = ["0" * int(y) + "1" + "0" * (9 - int(y)) for t, y in tables.truth if t[:3] == part]
        return table([("47", "100", cell) for cell in hot])

    return [write("tra"), write("tes")]


def pair(write, header=(), order=(0, 1, 2)):
    def written(tables):
        labels = [tuple(row[column] for column in order) for row in tables.labels]
        return [write([*header[:1], *labels]), write([*header[1:], *tables.truth])]

    return written


def tabs(rows):
    return lines(rows, "\t")


SOURCES = {
    "adult_sites": pair(tabs, order=(1, 0, 2)),
    "adult_sites_reconstructed": pair(tabs, order=(1, 0, 2)),
    "adult_sites_with_truth": pair(tabs, order=(1, 0, 2)),
    "crisis_judgements": judgements,
    "crowd_toolkit": lambda tables: [
        table((w, t, z, y, "17") for t, w, z, y in with_truth(tables))
    ],
    "csv_pair": pair(table, header=[("item", "worker", "label"), ("item", "truth")]),
    "csv_pair_without_header": pair(table),
    "emotion_scores": snow({"0": "49", "1": "50", "": ""}.get),
    "matrix_head64": matrix,
    "metaphor_assignments": assignments,
    "one_hot_digits": digits,
    "slr_intervention": slr("intervention", "INTERVENTION"),
    "slr_older": slr("older adult", "OLD"),
    "slr_tech": slr("use of tech", "USE OF TECH"),
    "standardized": snow(str),
    "text_pair": pair(lines),
    "text_pair_worker_first": pair(lines, order=(1, 0, 2)),
    "truth_column": lambda tables: [lines([f"{float(y):.18e}"] for _, y in tables.truth)],
    "valence_scores": snow({"0": "-50", "1": "49.5", "2": "50", "": ""}.get),
}

SMALL = Tables(
    [("0", "0", "1"), ("0", "1", "0"), ("1", "0", "1"), ("2", "1", "0")], [("0", "1"), ("2", "0")]
)
TIMED = Tables(
    [(*row, f"2012-12-24T12:22:{second}") for second, row in enumerate(SMALL.labels, 40)],
    SMALL.truth,
)
LABELLED = Tables([row for row in SMALL.labels if row[0] != "1"], SMALL.truth)
SMALL_OF = {
    "crisis_judgements": TIMED,
    "metaphor_assignments": TIMED,
    "adult_sites_reconstructed": LABELLED,
    "adult_sites_with_truth": LABELLED,
    "matrix_head64": Tables(SMALL.labels, [("0", "1"), ("1", "0"), ("2", "0")]),
    "truth_column": Tables([], [("0", "3"), ("1", "9")]),
    "one_hot_digits": Tables([], [("tra00000", "8"), ("tra00001", "0"), ("tes00000", "9")]),
}


@pytest.fixture(autouse=True)
def no_lower_limit(request, monkeypatch):
    if "adult_sites_reconstructed" in request.node.name:
        monkeypatch.setattr(converters, "FEWEST_LABELS_A_WORKER", 1)


def test_every_converter_has_a_way_back():
    assert set(SOURCES) == set(CONVERTERS)


@pytest.mark.parametrize("name", CONVERTERS)
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_a_converter_undoes_what_the_source_did(name, newline):
    tables = SMALL_OF.get(name, SMALL)
    files = [file.replace(b"\n", newline) for file in SOURCES[name](tables)]
    assert CONVERTERS[name](files) == tables


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [info.name for info in known_datasets().values() if info.converter is not None]
)
def test_a_real_set_survives_the_way_to_its_source_and_back(real_sets, name):
    if name not in real_sets:
        pytest.skip(f"{name} is in none of the folders")
    info, data = known_datasets()[name], read_dataset(name)
    times = () if data.table.timestamps is None else (data.table.timestamps,)
    columns = data.table.item_ids, data.table.worker_ids, data.table.labels, *times
    tables = Tables(list(zip(*columns, strict=True)), list(data.truth.items()))
    made = as_files(CONVERTERS[info.converter](SOURCES[info.converter](tables)))
    expected = {"labels.csv": info.labels_sha256, "truth.csv": info.truth_sha256}
    assert {file: sha256(content).hexdigest() for file, content in made.items()} == {
        file: checksum for file, checksum in expected.items() if checksum is not None
    }


# ── what only a real file has ────────────────────────────────────────────────────────────────


def test_of_repeated_labels_the_first_counts_and_truth_needs_labels():
    labels = b"item,worker,label\n1,a,0\n1,a,1\n2,a,1\n"
    truth = b"item,truth\n9,1\n2,0\n2,1\n"
    made = CONVERTERS["csv_pair"]([labels, truth])
    assert made == Tables([("1", "a", "0"), ("2", "a", "1")], [("2", "0")])


def test_items_with_many_labels_and_workers_with_few_are_left_out(monkeypatch):
    monkeypatch.setattr(converters, "MOST_LABELS_AN_ITEM", 2)
    monkeypatch.setattr(converters, "FEWEST_LABELS_A_WORKER", 2)
    labels = b"a\tu\tG\nb\tu\tG\nc\tu\tG\na\tv\tP\nb\tv\tG\na\tw\tX\na\tx\tX\n"
    made = CONVERTERS["adult_sites_reconstructed"]([labels, b"u\tG\nv\tP\nw\tX\n"])
    assert made == Tables([("v", "a", "P"), ("w", "a", "X")], [("v", "P"), ("w", "X")])


def test_judgements_with_several_types_are_left_out_and_times_are_in_order():
    rows = [
        (
            "_golden",
            "_unit_id",
            "_created_at",
            "_worker_id",
            "type_of_message",
            "type_of_message_gold",
        ),
        ("true", "7", "1/2/2013 09:05:07", "w", "Other, more", "Other, more"),
        ("true", "7", "12/24/2012 13:41:45", "v", "Damage\nOther, more", "Other, more"),
        ("true", "8", "12/24/2012 13:41:46", "v", "Damage", "Damage\nOther, more"),
        ("false", "9", "12/24/2012 13:41:44", "v", "", ""),
    ]
    made = CONVERTERS["crisis_judgements"]([table(rows)])
    assert made.labels == [
        ("8", "v", "Damage", "2012-12-24T13:41:46"),
        ("7", "w", "Other, more", "2013-01-02T09:05:07"),
    ]
    assert made.truth == [("7", "Other, more")]


def test_a_byte_that_is_not_utf_8_does_no_harm_in_a_column_that_is_not_taken():
    text = (
        b"paper ID,use of tech paper ID,use of tech worker ID,use of tech vote,GOLD USE OF TECH\n"
    )
    made = CONVERTERS["slr_tech"]([text + b"\xff,1,w,-1,1\n1,,,,\n"])
    assert made == Tables([("1", "w", "-1")], [("1", "1")])


def test_assignments_are_ordered_by_the_time_they_were_handed_in():
    header = "HITId,WorkerId,AssignmentStatus,AcceptTime,WorkTimeInSeconds,Answer.0metaphorNovelty0"
    crowd = f"""{header},Answer.0metaphorNovelty1,Answer.example1
h,1,Approved,Mon Jan 09 23:59:59 PST 2017,62,a b 3,c 1,2
{header},Answer.example1
h,2,Rejected,Mon Jan 09 23:59:00 PST 2017,60,a b 0,1
"""
    expert = f"{header}\nh,E,Approved,Tue Jan 17 14:25:07 PST 2017,1,a b 2\n"
    made = CONVERTERS["metaphor_assignments"]([crowd.encode(), expert.encode()])
    assert made == Tables(
        [
            ("a b", "2", "0", "2017-01-10T00:00:00"),
            ("a b", "1", "3", "2017-01-10T00:01:01"),
            ("c", "1", "1", "2017-01-10T00:01:01"),
        ],
        [("a b", "2")],
    )


def test_only_the_first_rows_of_a_matrix_are_taken():
    made = CONVERTERS["matrix_head64"]([b"1 -1.0e+00\n" * 70, b"2\n" * 70])
    assert len(made.labels) == len(made.truth) == 64
    assert made.labels[-1] == ("63", "0", "1")


def test_tables_without_rows_give_no_file():
    assert as_files(Tables([], [("1", "a,b")])) == {"truth.csv": b'task,label\n1,"a,b"\n'}
