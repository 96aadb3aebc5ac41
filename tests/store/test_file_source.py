"""Files into a stream: in order, as they grow, and each line once whatever ends the reading."""

import gzip

import pytest

from labelquorum.errors import LabelError, StateError
from labelquorum.store import failpoints, file_source
from labelquorum.store.file_source import FileSource, LineSource
from labelquorum.store.rules import Rules
from labelquorum.store.store import Store

HEADER = "task,worker,label\n"
RULES = Rules(labels_per_item=2, chunk_items=2, max_wait=None, max_chunk_wait=None)


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "in"
    made.mkdir()
    return made


@pytest.fixture
def stream(store):
    return store.create("s", classes=["x", "y"], rules=RULES.changed(retention="keep"))


def read(stream, folder, final=False, on_bad="error", tell=pytest.fail):
    return list(FileSource(stream, on_bad, tell).files(folder, final))


def held(stream):
    """The tasks of the labels that were taken, in the order they came."""
    from labelquorum.store.export import exported

    with exported(stream, "labels") as found:
        return [row["task"] for row in found.rows]


def lines(*tasks):
    return "".join(f"{task},w,x\n" for task in tasks)


def test_files_are_read_in_the_order_of_their_names(stream, folder):
    (folder / "b.csv").write_text(HEADER + lines("b1", "b2"))
    (folder / "a.jsonl").write_text('{"task": "a1", "worker": 1, "label": "x"}\n')
    (folder / "c.wide.csv").write_text("task,ann,bob\nc1,x,y\n")
    with gzip.open(folder / "d.csv.gz", "wt") as file:
        file.write(HEADER + lines("d1"))
    assert sum(one.accepted for one in read(stream, folder)) == 6
    assert held(stream) == ["a1", "b1", "b2", "c1", "c1", "d1"]
    assert read(stream, folder) == []


def test_parquet_is_read_once(stream, folder, monkeypatch):
    import pandas as pd

    monkeypatch.setattr(file_source, "ROWS_PER_COMMIT", 2)
    tasks = [f"t{n}" for n in range(5)]
    frame = pd.DataFrame({"task": tasks, "worker": "w", "label": "x"})
    frame.to_parquet(folder / "a.parquet")
    reader = FileSource(stream, "error", pytest.fail).files(folder)
    next(reader)
    reader.close()  # as if it had ended here
    assert held(stream) == tasks[:2]
    assert sum(one.accepted for one in read(stream, folder)) == 3
    assert held(stream) == tasks
    assert read(stream, folder) == []
    frame[:1].to_parquet(folder / "a.parquet")
    with pytest.raises(LabelError, match=r"a\.parquet: what was read of it before"):
        read(stream, folder)


def test_a_file_is_followed_as_it_grows(stream, folder):
    path, reader = folder / "a.csv", FileSource(stream, "error", pytest.fail)
    path.write_text("task,wor")
    assert list(reader.files(folder)) == []
    for part, tasks in (("ker,label\n", 0), (lines("t1") + "t2,w", 1), (",x\n\n" + "t3", 2)):
        with path.open("a") as file:
            file.write(part)
        list(reader.files(folder))
        assert len(held(stream)) == tasks
    with path.open("a") as file:
        file.write(",w,x")
    list(reader.files(folder))
    assert held(stream) == ["t1", "t2"]
    list(reader.files(folder, final=True))
    assert held(stream) == ["t1", "t2", "t3"]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_whoever_reads_next_goes_on_where_it_was_left(stream, folder, newline):
    text = "\ufeff" + HEADER + 't1,"w",x\n' + 't2,w,"x"\n'
    path = folder / "a.csv"
    for end in range(len(text) + 1):
        path.write_text(text[:end].replace("\n", newline), newline="")
        read(stream, folder)
    assert held(stream) == ["t1", "t2"]


def test_a_cell_may_hold_a_newline(stream, folder):
    text = 'task,worker,label,note\nt1,w,x,"a\nb"\nt2,w,x,"c\n'
    (folder / "a.csv").write_text(text)
    read(stream, folder)
    assert held(stream) == ["t1"]
    (folder / "a.csv").write_text(text + 'd"\nt3,,x,\n')
    with pytest.raises(LabelError, match=r"a\.csv line 6: the worker is missing"):
        read(stream, folder)
    assert held(stream) == ["t1", "t2"]


def test_a_quote_that_is_never_closed_is_told(stream, folder, monkeypatch):
    monkeypatch.setattr(file_source, "MAX_RECORD_BYTES", 100)
    (folder / "a.csv").write_text(HEADER + lines("t1") + '"' + lines(*"abc" * 10))
    with pytest.raises(LabelError, match=r"a\.csv line 3: a record is longer"):
        read(stream, folder)
    assert held(stream) == ["t1"]


def test_a_bad_line_is_named_and_all_before_it_is_taken(stream, folder):
    good = lines(*(f"t{n}" for n in range(100)))
    path = folder / "a.csv"
    path.write_text(HEADER + good + "u,w,z\n" + lines("v"))
    for _ in range(2):
        with pytest.raises(LabelError, match=r"a\.csv line 102: label 'z' is not one of"):
            read(stream, folder)
    assert len(held(stream)) == 100
    path.write_text(HEADER + good + "u,w,y\n" + lines("v"))
    read(stream, folder)
    assert held(stream)[-2:] == ["u", "v"]
    assert len(held(stream)) == 102


def test_a_bad_line_may_be_left_out_and_is_told(stream, folder):
    (folder / "a.csv").write_text(HEADER + lines("t") + "u,w,z\n" + lines("v"))
    said = []
    [receipt] = read(stream, folder, on_bad="skip", tell=said.append)
    assert receipt.skipped == {"unknown class": 1}
    assert held(stream) == ["t", "v"]
    assert len(said) == 1 and "a.csv line 3: label 'z'" in said[0]


def test_a_file_that_is_not_what_it_was_is_refused(stream, folder):
    path = folder / "a.csv"
    path.write_text(HEADER + lines("t1", "t2"))
    read(stream, folder)
    for text in (HEADER + lines("t1"), HEADER + lines("t1", "u2", "u3"), ""):
        path.write_text(text)
        with pytest.raises(LabelError, match=r"a\.csv: what was read of it before is no longer"):
            read(stream, folder)
    path.write_text(HEADER + lines("t1", "t2", "t3"))
    read(stream, folder)
    assert held(stream) == ["t1", "t2", "t3"]


def test_other_files_are_left_alone(stream, folder):
    (folder / "notes.txt").write_text("x")
    (folder / ".hidden.csv").write_text("x")
    (folder / "sub.csv").mkdir()
    said = []
    reader = FileSource(stream, "error", said.append)
    assert list(reader.files(folder)) + list(reader.files(folder)) == []
    assert [sentence.split(":")[0].split("/")[-1] for sentence in said] == ["notes.txt"]


def test_a_position_that_is_not_ours_is_refused(stream, folder):
    stream.accept({"t": {"a": "x"}}, source="a.csv", position="10")
    (folder / "a.csv").write_text(HEADER)
    with pytest.raises(StateError, match="another reader has a source of this name"):
        read(stream, folder)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("json_lines", [True, False])
def test_lines_that_come_again_under_a_name_are_passed_over(stream, named, json_lines):
    rows = [f"t{n}" for n in range(4)]
    text = HEADER + lines(*rows)
    if json_lines:
        text = "".join(f'{{"task": "{t}", "worker": "w", "label": "x"}}\n' for t in rows)
    data = text.encode()
    for sent in (data[: 3 * len(data) // 4], data):
        reader = FileSource(stream, "error", pytest.fail)
        incoming = LineSource(reader, "input", "january" if named else None, None)
        for start in range(0, len(sent), 5):
            list(incoming.take(sent[start : start + 5]))
        list(incoming.take(b"", final=sent is data))
    assert (held(stream) == rows) is named
    if named:
        incoming = LineSource(FileSource(stream, "error", pytest.fail), "input", "january", None)
        with pytest.raises(LabelError, match="input: what was read of it before"):
            list(incoming.take(b"-" * len(data)))


@pytest.mark.parametrize("point", ["before_accept_commit", "after_accept", "inside_apply"])
def test_what_ends_the_reading_loses_and_doubles_nothing(where, clock, folder, monkeypatch, point):
    monkeypatch.setattr(file_source, "BYTES_PER_COMMIT", 40)
    for number in range(3):
        rows = "".join(f"t{number}{n},{w},x\n" for n in range(4) for w in "ab")
        (folder / f"{number}.csv").write_text(HEADER + rows)

    def drive(name):
        with Store.open(where, clock) as store:
            stream = (
                store.stream(name)
                if name in store.streams()
                else store.create(name, classes=["x", "y"], rules=RULES)
            )
            stream.settle()
            for _ in FileSource(stream, "error", pytest.fail).files(folder):
                stream.settle()
            return stream.state_hash(), sum(chunk["n_labels"] for chunk in stream.chunks())

    uninterrupted = drive("whole")
    assert uninterrupted[1] == 24
    ends = 0
    for times in (1, 2, 4):
        left = [times]

        def hook(passed, left=left):
            left[0] -= passed == point
            if not left[0]:
                raise KeyboardInterrupt

        failpoints.arm(hook)
        try:
            drive("broken")
        except KeyboardInterrupt:
            ends += 1
        finally:
            failpoints.arm(None)
    assert ends == 3
    assert drive("broken") == uninterrupted
