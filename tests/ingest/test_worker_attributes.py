"""Worker attributes and scores: read by every reader, kept once per worker."""

import io
import json

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from labelquorum.errors import LabelError
from labelquorum.ingest.chunks import concatenate, cut_chunks, id_key, take_items, take_rows
from labelquorum.ingest.labels import LabelSpace, LabelTable
from labelquorum.ingest.readers import MIN_PLAIN_BYTES, read_csv, read_labels, read_workers
from labelquorum.ingest.vocabulary import Roster
from labelquorum.ingest.worker_attributes import Attributes, merged

ROWS = [
    {"task": "q1", "worker": "j1", "label": "a", "score": 0.9, "worker_kind": "llm", "model": "m"},
    {"task": "q1", "worker": "ann", "label": "b", "score": None, "worker_kind": "human"},
    {"task": "q2", "worker": "j1", "label": "b", "score": -2.0, "order": "BA"},
]


def frame():
    return pd.DataFrame(ROWS)


def written(tmp_path, suffix):
    path = tmp_path / f"labels{suffix}"
    if suffix == ".csv":
        frame().to_csv(path, index=False)
    elif suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    elif suffix == ".json":
        path.write_text(json.dumps(ROWS))
    elif suffix == ".parquet":
        frame().to_parquet(path)
    elif suffix == ".feather":
        frame().to_feather(path)
    else:
        frame().to_excel(path, index=False)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".json", ".parquet", ".feather", ".xlsx"])
def test_every_file_format_has_scores_and_attributes(suffix, tmp_path):
    check(read_labels(written(tmp_path, suffix)))


@pytest.mark.parametrize(
    "convert",
    [
        lambda f: f,
        pl.from_pandas,
        lambda f: pa.Table.from_pandas(f),
        lambda f: f.to_dict("list"),
        lambda f: ROWS,
        lambda f: f.set_index(["task", "worker"]).reset_index(),
    ],
)
def test_every_table_in_memory_has_scores_and_attributes(convert):
    check(read_labels(convert(frame())))


def check(table):
    assert list(table.scores) == [0.9, None, -2.0]
    assert list(table.worker_kinds) == ["llm", "human", None]
    assert list(table.models) == ["m", None, None]
    assert list(table.orders) == [None, None, "BA"]
    assert table.prompts is None


def test_the_fast_reader_of_large_csv_files_gives_the_same_table(tmp_path):
    rows = [f"q{n},w{n % 40},{n % 3},{n / 8 if n % 5 else ''},model {n % 2}" for n in range(9000)]
    text = "\n".join(["task,worker,label,score,model", *rows])
    path = tmp_path / "large.csv"
    path.write_text(text)
    assert path.stat().st_size > MIN_PLAIN_BYTES
    fast, slow = read_csv(path), read_csv(io.StringIO(text))
    assert list(fast.scores) == list(slow.scores)
    assert fast.scores[5] is None and fast.scores[9] == 9 / 8
    assert list(fast.models) == list(slow.models)


@pytest.mark.parametrize("cell", ["high", "inf", float("inf"), "nan", 1e39, [0.5]])
def test_a_score_that_is_no_finite_number_is_named_with_its_row(cell):
    rows = [{**ROWS[0], "score": 0.5}, {**ROWS[2], "score": cell}]
    with pytest.raises(LabelError, match=r"row 1: the score is not a finite number. Got task 'q2'"):
        read_labels(rows)
    assert read_labels(rows, LabelSpace(on_bad="skip")).skipped == {"bad score": 1}


def test_another_kind_of_worker_is_refused():
    with pytest.raises(LabelError, match=r"worker_kind is not one of human, llm, model. Got task"):
        read_labels([{**ROWS[0], "worker_kind": "robot"}])
    assert read_labels([{**ROWS[0], "worker_kind": " LLM"}]).worker_kinds == ["llm"]


def test_numbers_are_attributes_as_text():
    table = read_labels(pd.DataFrame(ROWS).assign(order=[1, None, 1]))  # 1.0 to pandas
    assert list(table.orders) == ["1", None, "1"]


def test_tables_are_cut_and_joined_with_their_scores_and_attributes():
    table, plain = read_labels(ROWS), read_labels([("q3", "ann", "a")])
    both = concatenate([table, plain])
    assert list(both.scores) == [0.9, None, -2.0, None]
    assert list(take_rows(both, [2, 3]).orders) == ["BA", None]
    assert [list(part.scores) for part in cut_chunks([both], 1)] == [[0.9, None], [-2.0], [None]]


@pytest.mark.parametrize(
    "workers",
    [
        pd.DataFrame({"worker": ["j1"], "kind": ["llm"], "model": ["m"], "prompt": ["p"]}),
        {"j1": {"worker_kind": "llm", "model": "m", "prompt": "p"}},
        [{"judge": "j1", "kind": "LLM", "model": "m", "prompt": "p"}],
        io.StringIO("worker,kind,model,prompt\nj1,llm,m,p\n"),
    ],
)
def test_a_table_of_workers_needs_no_tasks(workers):
    intake = Roster().read(LabelTable([], [], []), workers=read_workers(workers))
    assert intake.attributes == {"j1": Attributes("llm", "m", "p")}


def test_a_table_of_workers_without_workers_is_refused():
    with pytest.raises(LabelError, match=r"nothing names the worker.*Give a table with the column"):
        read_workers(pd.DataFrame({"model": ["m"]}))


@pytest.mark.parametrize(
    "workers", [pd.DataFrame({"worker": ["j1"], "modell": ["m"]}), {"j1": {"modell": "m"}}]
)
def test_a_table_of_workers_without_an_attribute_is_refused(workers):
    with pytest.raises(LabelError, match="one of the columns worker_kind, model, prompt, order"):
        read_workers(workers)


def test_a_later_value_fills_a_gap_and_another_value_is_refused():
    roster = Roster()
    roster.admit(roster.read(read_labels(ROWS)))
    assert roster.attributes["j1"] == Attributes("llm", "m", None, "BA")
    later = [{"task": "q3", "worker": "j1", "label": "a", "prompt": "p", "model": "m"}]
    roster.admit(roster.read(read_labels(later)))
    assert roster.attributes["j1"] == Attributes("llm", "m", "p", "BA")
    with pytest.raises(LabelError, match=r"row 0: worker 'j1' has the model 'n' here and 'm' befo"):
        roster.read(read_labels([{**later[0], "model": "n"}]))
    with pytest.raises(LabelError, match="two worker ids, with the same model and prompt"):
        roster.read(read_labels([{**later[0], "order": 1}]))
    assert roster.attributes["j1"] == Attributes("llm", "m", "p", "BA")


def test_two_values_in_one_table_are_refused_at_the_later_row():
    rows = [{**ROWS[0], "task": str(n), "model": "m" if n < 3 else "n"} for n in range(5)]
    with pytest.raises(LabelError, match="row 3: worker 'j1' has the model 'n'"):
        Roster().read(read_labels(rows))


def test_worker_groups_are_keys_of_models_and_0_where_none_is_known():
    roster = Roster()
    chunk = roster.read(read_labels(ROWS)).chunk
    assert chunk.worker_groups.tolist() == [0, id_key("m")]  # ann, j1
    assert chunk.worker_groups.dtype == np.uint64
    assert take_items(chunk, np.array([False, True])).worker_groups.tolist() == [id_key("m")]
    roster.admit(roster.read(read_labels(ROWS)))
    again = roster.read(read_labels([("q9", "zoe", "a"), ("q9", "j1", "a")])).chunk
    assert again.worker_groups.tolist() == [id_key("m"), 0]
    assert roster.read(read_labels([("q9", "zoe", "a")])).chunk.worker_groups is None


def test_scores_follow_their_labels_into_the_chunk():
    chunk = Roster().read(read_labels(ROWS)).chunk
    assert chunk.score.dtype == np.float32
    np.testing.assert_array_equal(chunk.score, np.float32([np.nan, 0.9, -2.0]))
    np.testing.assert_array_equal(take_items(chunk, np.array([False, True])).score, [-2.0])
    nothing = [{**row, "score": None} for row in ROWS]
    assert Roster().read(read_labels(nothing)).chunk.score is None


def test_scores_are_in_canonical_order_whatever_the_order_of_rows():
    rows = [{"task": "t", "worker": "w", "label": 0, "score": s} for s in (0.3, None, 0.1, 0.2)]
    roster = Roster(LabelSpace(repeats="all"))
    one = roster.read(read_labels(rows)).chunk.score
    np.testing.assert_array_equal(one, roster.read(read_labels(rows[::-1])).chunk.score)
    np.testing.assert_array_equal(one, np.float32([0.1, 0.2, 0.3, np.nan]))


def test_a_majority_has_the_mean_score_of_the_votes_for_it():
    votes = [("a", 0.5), ("b", 9.0), ("a", 1.0), ("a", None)]
    rows = [{"task": "t", "worker": "w", "label": z, "score": s} for z, s in votes]
    chunk = Roster(LabelSpace(repeats="majority")).read(read_labels(rows)).chunk
    np.testing.assert_array_equal(chunk.score, [0.75])


def test_merged_rosters_fill_one_anothers_gaps():
    one, other = {"j": Attributes("llm", "m")}, {"j": Attributes(None, "m", "p"), "k": Attributes()}
    assert merged([one, other])["j"] == Attributes("llm", "m", "p")
    with pytest.raises(LabelError, match="merge: worker 'j' has the model 'n' here and 'm' before"):
        merged([one, {"j": Attributes(model="n")}])
