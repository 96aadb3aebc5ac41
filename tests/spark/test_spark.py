"""The same aggregator on Spark, with executors of their own: streams, tables, new names, ends."""

import os
import random
import runpy
import shutil
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, sleep
from types import SimpleNamespace

import numpy as np
import pytest

import labelquorum as lq
from labelquorum.errors import ConflictError, LabelError, StateError, StoreError
from labelquorum.evaluation import class_conditional_crowd, label_table
from labelquorum.ingest.chunks import take_rows
from labelquorum.ingest.readers import read_labels
from labelquorum.learn.bila.engines import matrix_engine
from labelquorum.spark.batch import _dealt
from labelquorum.store.rules import Rules
from labelquorum.store.store import Store

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
CI = "LABELQUORUM_CI"
MASTER = "local-cluster[2,1,1024]"  # executors are processes of their own
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.executor.memory": "768m",
    "spark.ui.showConsoleProgress": "false",
    "spark.task.maxFailures": "1",
}
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # which costs the least where little is done
NOW = {"availableNow": True}


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    missing = [name for name in ("pyspark", "pyarrow") if find_spec(name) is None]
    if missing or shutil.which("java") is None:
        reason = f"Spark takes Java 17 and the extra [spark]: no {(missing or ['java'])[0]} here"
        (pytest.fail if os.environ.get(CI) else pytest.skip)(reason)
    patch = pytest.MonkeyPatch()
    patch.setenv("JAVA_TOOL_OPTIONS", JAVA)
    folder = tmp_path_factory.mktemp("spark")
    places = {"spark.local.dir": str(folder), "spark.sql.warehouse.dir": str(folder / "tables")}
    session = lq.spark.session(MASTER, {**SETTINGS, **places})
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
    patch.undo()


@pytest.fixture(scope="module")
def crowd():
    return label_table(class_conditional_crowd(400, 20, 3, 5, seed=5))


def arrow(table):
    import pyarrow

    labels = [f"c{label}" for label in table.labels]
    return pyarrow.table({"task": table.item_ids, "worker": table.worker_ids, "label": labels})


def reply(answers):
    table = answers.toArrow()
    return dict(zip(table["task"].to_pylist(), table["label"].to_pylist(), strict=True))


# ── tables ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("method", ["bila", "dawid_skene"])
def test_one_partition_is_the_library_bit_for_bit(spark, crowd, method):
    labels = arrow(crowd)
    model = lq.estimator(method).fit(labels)
    found = lq.spark.aggregate(spark.createDataFrame(labels).repartition(3), method, partitions=1)
    answers = found.answers.toArrow().to_pandas().set_index("task").loc[model.labels_.index]
    assert answers["label"].tolist() == model.labels_.tolist()
    confidence = model.probas_.max(axis=1).to_numpy(np.float64)
    assert answers["confidence"].to_numpy().tobytes() == confidence.tobytes()
    workers = found.workers.toArrow().to_pandas().set_index("worker").loc[model.workers_]
    matrices = np.stack(workers["confusion"]).reshape(model.confusion_.shape)
    assert matrices.astype(np.float32).tobytes() == model.confusion_.tobytes()
    assert np.array(found.priors).tobytes() == model.priors_.to_numpy(np.float64).tobytes()
    assert found.classes == ["c0", "c1", "c2"]


@pytest.mark.parametrize(
    ("method", "settings", "rounds", "share"),
    [
        ("bila", {}, None, 0.01),
        ("bila", {}, 2, 0.02),
        ("dawid_skene", {"iterations": 4}, None, 0),
    ],
)
def test_four_partitions_answer_as_the_library_does(spark, crowd, method, settings, rounds, share):
    labels = arrow(crowd)
    model = lq.estimator(method, **settings).fit(labels)
    frame = spark.createDataFrame(labels)
    found = lq.spark.aggregate(frame, method, partitions=4, rounds=rounds, **settings)
    answers = reply(found.answers)
    assert answers.keys() == set(model.labels_.index)
    assert np.mean([answers[task] != label for task, label in model.labels_.items()]) <= share
    workers = found.workers.toArrow().to_pandas().set_index("worker")
    assert workers["labels"].sum() == len(crowd.item_ids)
    assert np.abs(workers["skill"] - model.skills_).max() < 0.05


@pytest.mark.parametrize("kind", ["int", "bigint", "double", "boolean", "string"])
@pytest.mark.parametrize("partitions", [1, 2])
def test_labels_keep_their_type(spark, kind, partitions):
    rows = [(i, worker, i % 2) for i in range(6) for worker in range(3)]
    frame = spark.createDataFrame(rows, "task int, worker int, label int")
    frame = frame.selectExpr("task", "worker", f"cast(label as {kind}) as label")
    found = lq.spark.aggregate(frame, "dawid_skene", partitions=partitions, iterations=2)
    assert dict(found.answers.dtypes)["label"] == kind
    expected = dict(frame.select("task", "label").distinct().collect())
    assert reply(found.answers) == expected
    assert found.classes == [expected[0], expected[1]]
    assert type(found.classes[0]) is type(expected[0])


def test_what_is_skipped_makes_no_class_in_shards(spark):
    rows = [(f"t{i}", f"w{k}", "ab"[i % 2]) for i in range(6) for k in range(3)]
    rows += [("t0", "w3", ""), ("t1", "w3", " "), ("t2", "w3", None), ("t3", None, "z")]
    frame = spark.createDataFrame(rows, "task string, worker string, label string")
    found = lq.spark.aggregate(frame, partitions=2, rounds=1, on_bad="skip")
    assert found.classes == ["a", "b"]
    assert found.answers.count() == 6


def test_each_shard_has_a_partition_of_its_own_and_nothing_is_left_behind(spark, crowd):
    before = spark.sparkContext._jsc.getPersistentRDDs().size()
    frame = spark.createDataFrame(arrow(crowd))
    pairs = _dealt(frame, 4).selectExpr("shard", "spark_partition_id()").distinct()
    assert sorted(map(tuple, pairs.collect())) == [(n, n) for n in range(4)]
    found = lq.spark.aggregate(frame, "dawid_skene", partitions=4, iterations=2)
    found.answers.unpersist()
    found.workers.unpersist()
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == before


def test_executors_solve_chunks_by_the_engine_of_the_driver(spark):
    def engines(batches):
        from pyarrow import RecordBatch, array

        from labelquorum.learn.bila.engines import matrix_engine

        for _ in batches:
            yield RecordBatch.from_arrays([array([matrix_engine().__name__])], ["engine"])

    found = spark.range(4, numPartitions=2).mapInArrow(engines, "engine string").collect()
    assert {row.engine for row in found} == {matrix_engine().__name__}


def test_a_history_is_refused_in_shards_rather_than_left_out(spark, crowd):
    options = {"partitions": 2, "history": {"w0": (9, 10)}, "classes": ["c0", "c1", "c2"]}
    with pytest.raises(StateError, match="is not counted in shards"):
        lq.spark.aggregate(spark.createDataFrame(arrow(crowd)), **options)


# ── streams ──────────────────────────────────────────────────────────────────────────────────


def files_of(table, folder, n_files):
    """Write a table as files of whole items, each with an age that says its turn."""
    folder.mkdir(exist_ok=True)
    items = list(dict.fromkeys(table.item_ids))
    turn = {item: i * n_files // len(items) for i, item in enumerate(items)}
    for number in range(n_files):
        rows = [row for row, item in enumerate(table.item_ids) if turn[item] == number]
        write(folder, number, take_rows(table, rows))


def write(folder, number, table):
    lines = ["task,worker,label"]
    rows = zip(table.item_ids, table.worker_ids, table.labels, strict=True)
    lines += [f"{task},{worker},c{label}" for task, worker, label in rows]
    file = folder / f"{number:03}.csv"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    os.utime(file, (1_000_000 + number, 1_000_000 + number))


def reading(spark, folder):
    """One file a micro-batch, the oldest first."""
    reader = spark.readStream.schema("task string, worker string, label string")
    return reader.option("header", True).option("maxFilesPerTrigger", 1).csv(str(folder))


def fed(spark, tmp_path, **options):
    """Feed all files that are there, and give the stream's answers and counts."""
    options = {"checkpoint": str(tmp_path / "checkpoint"), "trigger": NOW, **options}
    frame = reading(spark, tmp_path / "in")
    options = {"whole_items": True, **options}
    lq.spark.aggregate_stream(frame, str(tmp_path / "store"), "birds", **options).wait()


def look(tmp_path):
    return Store.look(tmp_path / "store")


def chunks(tmp_path):
    with look(tmp_path) as store:
        return store.stream("birds").chunks()


def test_a_stream_fed_by_spark_is_the_library_fed_the_same_chunks(spark, crowd, tmp_path):
    files_of(crowd, tmp_path / "in", 4)
    fed(spark, tmp_path, rules=Rules(chunk_items=1000))
    model, expected = lq.BiLA(), {}
    for file in sorted((tmp_path / "in").iterdir()):
        expected |= dict(model.partial_fit(str(file)).labels_.items())
    with look(tmp_path) as store:
        stream = store.stream("birds")
        assert {given.item_id: given.label for given in stream.answers()} == expected
        assert stream.estimator().confusion_.tobytes() == model.confusion_.tobytes()
        assert len(stream.chunks()) == 4


def test_new_workers_and_classes_come_in_mid_stream_and_a_restart_goes_on(spark, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    first = read_labels({f"a{i}": dict.fromkeys(("ann", "bob", "cat"), i % 2) for i in range(20)})
    write(folder, 0, first)
    fed(spark, tmp_path)
    later = read_labels({f"b{i}": dict.fromkeys(("bob", "cat", "dan"), i % 3) for i in range(20)})
    write(folder, 1, later)
    fed(spark, tmp_path)  # which reads the second file, and not the first again
    with look(tmp_path) as store:
        stream = store.stream("birds")
        assert stream.classes() == ["c0", "c1", "c2"]
        assert set(stream.estimator().workers_) == {"ann", "bob", "cat", "dan"}
        assert len(stream.answers()) == 40
        assert stream.count()["late_labels"] == 0


def test_a_micro_batch_that_comes_again_is_counted_and_written_once(spark, crowd, tmp_path):
    files_of(crowd, tmp_path / "in", 2)
    sink = str(tmp_path / "answers")
    fed(spark, tmp_path, sink=sink)
    with look(tmp_path) as store:
        before = store.stream("birds").state_hash()
    # Spark forgets that the last micro-batch was done, as if it had been killed before it knew.
    commits = tmp_path / "checkpoint" / "commits"
    for file in commits.iterdir():
        if file.name in ("1", ".1.crc"):
            file.unlink()
    fed(spark, tmp_path, sink=sink)
    with look(tmp_path) as store:
        assert store.stream("birds").state_hash() == before
    assert reply(spark.read.parquet(sink)).keys() == set(crowd.item_ids)
    assert spark.read.parquet(sink).count() == len(set(crowd.item_ids))


def test_two_sources_share_a_path_without_a_folder_in_common(spark, crowd, tmp_path):
    files_of(crowd, tmp_path / "in", 1)
    for source in ("spark", "a/b"):
        options = {"source": source, "checkpoint": str(tmp_path / f"c{len(source)}")}
        fed(spark, tmp_path, sink=str(tmp_path / "answers"), **options)
    found = spark.read.parquet(str(tmp_path / "answers")).where("source = 'spark'")
    assert reply(found).keys() == set(crowd.item_ids)
    assert (tmp_path / "answers" / "source=spark" / "batch=0").is_dir()


def test_answers_are_handed_to_a_function_with_the_number_of_the_micro_batch(
    spark, crowd, tmp_path
):
    files_of(crowd, tmp_path / "in", 2)
    given = []
    fed(spark, tmp_path, sink=lambda answers, number: given.append((number, reply(answers))))
    assert [number for number, _ in given] == [0, 1]
    assert given[0][1].keys() | given[1][1].keys() == set(crowd.item_ids)


def test_another_checkpoint_is_refused_rather_than_counted_twice(spark, crowd, tmp_path):
    files_of(crowd, tmp_path / "in", 2)
    fed(spark, tmp_path)
    with pytest.raises(ConflictError, match="by another checkpoint, up to micro-batch 1"):
        fed(spark, tmp_path, checkpoint=str(tmp_path / "other"))


def test_a_store_that_lost_micro_batches_is_refused_rather_than_gone_on_with(
    spark, crowd, tmp_path
):
    files_of(crowd, tmp_path / "in", 2)
    fed(spark, tmp_path)
    shutil.rmtree(tmp_path / "store")
    files_of(crowd, tmp_path / "in", 3)
    with pytest.raises(ConflictError, match="those between are missing"):
        fed(spark, tmp_path)


def test_a_checkpoint_that_is_older_than_the_store_is_refused_rather_than_passed_over(
    spark, crowd, tmp_path
):
    files_of(crowd, tmp_path / "in", 3)
    (tmp_path / "in" / "002.csv").rename(tmp_path / "002.csv")
    fed(spark, tmp_path)
    for kind in ("offsets", "commits", "sources/0"):  # as it was before its last micro-batch
        for name in ("1", ".1.crc"):
            (tmp_path / "checkpoint" / kind / name).unlink()
    (tmp_path / "in" / "001.csv").unlink()
    (tmp_path / "002.csv").rename(tmp_path / "in" / "002.csv")
    with pytest.raises(ConflictError, match="others as 1: the checkpoint is older"):
        fed(spark, tmp_path)


def test_rules_of_time_hold_while_no_micro_batch_comes(spark, tmp_path):
    (tmp_path / "in").mkdir()
    table = read_labels({f"a{i}": dict.fromkeys(("ann", "bob"), i % 2) for i in range(5)})
    write(tmp_path / "in", 0, table)
    rules = Rules(labels_per_item=2, max_chunk_wait=1)
    options = {"checkpoint": str(tmp_path / "checkpoint"), "rules": rules}
    frame = reading(spark, tmp_path / "in")
    with lq.spark.aggregate_stream(frame, str(tmp_path / "store"), "birds", **options) as feed:
        until = monotonic() + 60
        while len(feed.stream.answers()) < 5 and monotonic() < until:
            sleep(0.1)
        assert len(feed.stream.answers()) == 5


def test_what_goes_wrong_while_no_micro_batch_comes_ends_the_query(spark, tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    options = {"checkpoint": str(tmp_path / "checkpoint")}
    frame = reading(spark, tmp_path / "in")
    feed = lq.spark.aggregate_stream(frame, str(tmp_path / "store"), "birds", **options)

    def fail():
        raise StoreError("The disk is full.")

    monkeypatch.setattr("labelquorum.spark.streaming.CLOCK_SECONDS", 0.1)
    monkeypatch.setattr(feed.stream, "settle", fail)
    with pytest.raises(StoreError, match="The disk is full"):
        feed.wait(60)
    with pytest.raises(StoreError, match="The disk is full"):
        feed.stop()
    with Store.open(tmp_path / "store"):  # it was released
        pass


def test_a_feed_that_is_stopped_within_a_micro_batch_ends_without_an_error(spark, crowd, tmp_path):
    files_of(crowd, tmp_path / "in", 2)
    met = threading.Event()

    def dawdle(answers, number):
        met.set()
        answers.sparkSession.sparkContext.parallelize([1]).foreach(lambda _: sleep(60))

    options = {"checkpoint": str(tmp_path / "checkpoint"), "whole_items": True, "sink": dawdle}
    frame = reading(spark, tmp_path / "in")
    feed = lq.spark.aggregate_stream(frame, str(tmp_path / "store"), "birds", **options)
    assert met.wait(60)
    feed.stop()
    assert feed.wait(60)


def test_another_method_than_the_stream_has_is_refused(spark, crowd, tmp_path):
    files_of(crowd, tmp_path / "in", 1)
    for _ in range(2):
        fed(spark, tmp_path, classes=["c0", "c1", "c2"])
    for options in ({"method": "bila:recipe"}, {"seed": 7}):
        with pytest.raises(StateError, match="a stream keeps that"):
            fed(spark, tmp_path, **options)


def test_the_rate_source_is_read_without_gap_or_repeat_over_a_restart(spark, tmp_path):
    def go_on():
        rows = spark.readStream.format("rate").option("rowsPerSecond", 200).load()
        # Row n is label n % 5 of item n // 5.
        labels = rows.selectExpr("value div 5 as task", "value % 5 as worker", "1 as label")
        options = {"checkpoint": str(tmp_path / "checkpoint"), "classes": [0, 1]}
        rules = Rules(labels_per_item=5, chunk_items=20)
        feed = lq.spark.aggregate_stream(
            labels, str(tmp_path / "store"), "rate", rules=rules, **options
        )
        with feed:
            before, until = len(feed.stream.chunks()), monotonic() + 60
            while len(feed.stream.chunks()) < before + 3 and monotonic() < until:
                sleep(0.1)

    go_on()
    go_on()
    with look(tmp_path) as store:
        stream = store.stream("rate")
        answered = sorted(given.item_id for given in stream.answers())
        assert len(answered) >= 6 * 20
        assert answered == list(range(len(answered)))
        assert sum(chunk["n_labels"] for chunk in stream.chunks()) == 5 * len(answered)
        assert stream.count()["late_labels"] == 0


def test_a_table_without_rows_is_told_so(spark):
    with pytest.raises(LabelError, match="has no rows"):
        lq.spark.aggregate(spark.createDataFrame([], "task string, worker string, label string"))


def test_a_table_and_a_stream_are_told_apart_with_a_sentence(spark, tmp_path):
    table = spark.createDataFrame([("t", "w", "a")], "task string, worker string, label string")
    with pytest.raises(StateError, match="takes a streaming DataFrame"):
        lq.spark.aggregate_stream(table, str(tmp_path), "birds", checkpoint=str(tmp_path / "c"))
    (tmp_path / "in").mkdir()
    for options in ({"rules": {"labels_per_item": 5}}, {"trigger": "availableNow"}):
        [name] = options
        with pytest.raises(StateError, match=f"`{name}` must be .*, such as"):
            frame = reading(spark, tmp_path / "in")
            lq.spark.aggregate_stream(frame, str(tmp_path), "x", checkpoint="c", **options)
    with pytest.raises(StateError, match=r"a DataFrame of Spark.*Got 'labels\.csv'"):
        lq.spark.aggregate("labels.csv")
    with pytest.raises(StateError, match="Use aggregate_stream"):
        lq.spark.aggregate(reading(spark, tmp_path / "in"))


# ── processes of their own ───────────────────────────────────────────────────────────────────


def test_the_example_answers_all_tasks_and_a_second_run_none_again(
    spark, tmp_path, monkeypatch, capsys
):
    folders = [str(tmp_path / name) for name in ("in", "state")]
    monkeypatch.setattr(sys, "argv", ["06_spark_stream.py", *folders])
    monkeypatch.setattr(type(spark), "stop", lambda session: None)  # other tests go on with it
    for _ in range(2):
        runpy.run_path(str(ROOT / "examples" / "06_spark_stream.py"), run_name="__main__")
        shown = capsys.readouterr().out
        assert "300 tasks answered in 6 chunks" in shown
        assert "300 answers under" in shown


def test_where_a_driver_was_killed_another_goes_on_to_the_same_end(spark, tmp_path):
    kills = SimpleNamespace(**runpy.run_path(str(ROOT / "experiments" / "spark" / "kills.py")))
    whole, killed = (tmp_path / name for name in ("whole", "killed"))
    for folder in (whole, killed):
        folder.mkdir()
        n_labels = kills.write_files(folder / "in", 3, seed=0)
    assert kills.live(killed, "inside_apply", random.Random(1)) == (False, "inside_apply")
    with look(killed) as store:
        assert 0 < sum(chunk["n_labels"] for chunk in store.stream("birds").chunks()) < n_labels
    for folder in (whole, killed):
        kills.feed(spark, folder)
    one, other = map(kills.state_of, (whole, killed))
    assert one == other
    assert other["labels"] == n_labels
    assert other["late_labels"] == 0


def test_a_bad_row_is_told_as_the_library_tells_it(spark):
    rows = [("t1", "ann", "owl"), ("t1", None, "wren")]
    frame = spark.createDataFrame(rows, "task string, worker string, label string")
    with pytest.raises(LabelError, match=r"worker.*missing|no worker"):
        lq.spark.aggregate(frame)


def test_a_bad_row_of_a_stream_is_told_with_its_micro_batch(spark, crowd, tmp_path):
    files_of(crowd, tmp_path / "in", 1)
    options = {"checkpoint": str(tmp_path / "checkpoint"), "trigger": NOW}
    frame = reading(spark, tmp_path / "in")
    lq.spark.aggregate_stream(frame, str(tmp_path / "store"), "birds", **options).wait(60)
    (tmp_path / "in" / "bad.csv").write_text("task,worker,label\nt1,,owl\n", encoding="utf-8")
    frame = reading(spark, tmp_path / "in")
    feed = lq.spark.aggregate_stream(frame, str(tmp_path / "store"), "birds", **options)
    with pytest.raises(LabelError, match=r"^Micro-batch 1: .*worker is missing"):
        feed.wait(60)
    # The micro-batch comes again, and rows that lack something may then be passed over.
    feed = lq.spark.aggregate_stream(
        frame, str(tmp_path / "store"), "birds", on_bad="skip", **options
    )
    assert feed.wait(60)
    assert feed.skipped == 1


# ── without Spark ────────────────────────────────────────────────────────────────────────────


def test_without_java_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    pytest.importorskip("pyspark", reason="without pyspark another sentence comes first")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(StateError, match="Java 17 or newer, and there is none in JAVA_HOME"):
        lq.spark.session()


def fake_java(home, version):
    java = home / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    return java


def test_an_older_java_is_told_by_its_version(tmp_path, monkeypatch):
    pytest.importorskip("pyspark", reason="without pyspark another sentence comes first")
    java = fake_java(tmp_path, "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(StateError, match=f"{java} is Java 11"):
        lq.spark.session()


def test_without_pyspark_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(StateError, match=r"Run: pip install labelquorum\[spark\]"):
        lq.spark.session()


@pytest.mark.parametrize("master", [None, "local[1]", "local-cluster[1,1,1024]", "yarn"])
def test_what_spark_must_know_is_set_before_it_starts(master, tmp_path, monkeypatch):
    pyspark = pytest.importorskip("pyspark.sql", reason="without pyspark a sentence comes first")
    monkeypatch.setattr(pyspark.SparkSession.Builder, "getOrCreate", lambda self: None)
    fake_java(tmp_path, "17.0.1")
    monkeypatch.setattr(os, "environ", env := {"JAVA_HOME": str(tmp_path)})
    lq.spark.session(master)
    assert env["PYSPARK_PYTHON"] == sys.executable
    assert env.get("SPARK_LOCAL_IP") == (None if master == "yarn" else "127.0.0.1")
    assert ("SPARK_HOME" in env) == (master or "").startswith("local-cluster")
