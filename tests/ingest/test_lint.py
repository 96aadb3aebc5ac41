"""The doctor finds what is odd, and says nothing of what is not."""

import numpy as np
import pytest

from labelquorum.ingest.labels import LabelSpace, LabelTable
from labelquorum.ingest.lint import Finding, examine
from labelquorum.ingest.readers import iter_csv, read_csv

WORKERS = ("ann", "bob", "eve")


def sound(n_items: int = 12) -> list[tuple[str, str, str]]:
    """Three workers who label every item and now and then differ."""
    return [
        (f"q{item}", worker, "dog" if (item + turn * (item % 3 == 0)) % 2 else "cat")
        for item in range(n_items)
        for turn, worker in enumerate(WORKERS)
    ]


def table_of(rows: list[tuple[object, ...]], **more: object) -> LabelTable:
    items, workers, labels = (list(column) for column in zip(*rows, strict=True))
    return LabelTable(items, workers, labels, **more)  # type: ignore[arg-type]


def found(rows: list[tuple[object, ...]], **more: object) -> dict[str, Finding]:
    return {finding.name: finding for finding in examine(table_of(rows, **more))}


def test_nothing_odd_is_all_clear_with_sizes() -> None:
    [finding] = examine(table_of(sound()))
    assert finding == Finding(
        "all clear", 36, "Nothing is odd in 36 labels of 12 tasks by 3 workers in 2 classes.", "ok"
    )


def test_no_labels_are_a_finding() -> None:
    assert [finding.name for finding in examine([])] == ["no labels"]
    assert [finding.name for finding in examine(LabelTable([], [], []))] == ["no labels"]


def test_many_tables_are_one_input() -> None:
    rows = sound()
    tables = [table_of(rows[start : start + 5]) for start in range(0, len(rows), 5)]
    assert examine(tables) == examine(iter(tables)) == examine(table_of(rows))


def test_repeats_are_counted_and_so_are_those_that_disagree() -> None:
    again = [("q1", "ann", "dog"), ("q1", "ann", "dog"), ("q2", "bob", "dog")]
    finding = found(sound() + again)["repeated labels"]
    assert (finding.count, finding.severity) == (3, "warning")
    assert "in 1 of 2 such pairs the labels differ" in finding.sentence
    assert found([*sound(), ("q1", "ann", "dog")])["repeated labels"].severity == "note"


def test_rows_left_out_are_counted_by_reason() -> None:
    lines = ["task,worker,label", "q1,ann,", "q1,bob,cat", "q1,eve,?", "q2,ann,", "q2"]
    space = LabelSpace(on_bad="skip", abstain="?")
    tables = iter_csv(lines, space, rows=2)
    counts = {finding.name: (finding.count, finding.severity) for finding in examine(tables)}
    assert counts["missing label"] == (2, "warning")
    assert counts["malformed row"] == (1, "warning")
    assert counts["abstained"] == (1, "note")


def test_single_label_tasks_are_named() -> None:
    alone = [("q98", "ann", "cat"), ("q99", "bob", "dog"), ("q99", "bob", "dog")]
    finding = found(sound() + alone)["single-label tasks"]
    assert finding.count == 2
    assert finding.sentence.startswith(
        "2 of 14 tasks have the label of one worker only, such as 'q98', 'q99'."
    )


def test_groups_of_workers_without_a_common_task_are_found() -> None:
    elsewhere = [(f"x{item}", f"{worker}2", label) for item, worker, label in sound()]
    finding = found(sound() + elsewhere)["disconnected workers"]
    assert finding.count == 2
    assert "of sizes 3, 3." in finding.sentence
    bridge = [("q1", "ann2", "dog")]
    assert "disconnected workers" not in found(sound() + elsewhere + bridge)


def test_a_long_chain_of_workers_is_one_group() -> None:
    order = np.random.default_rng(0).permutation(3000)
    rows = [
        (int(item), int(order[item + turn]), int(item + turn) % 2)
        for item in range(len(order) - 1)
        for turn in (0, 1)
    ]
    assert "disconnected workers" not in found(rows)
    middle = len(order) // 2
    cut = [row for row in rows if row[0] != middle]
    assert found(cut)["disconnected workers"].count == 2


def test_a_worker_with_one_answer_is_found_where_others_differ() -> None:
    bot = [(f"q{item}", "bot", "cat") for item in range(12)]
    finding = found(sound() + bot)["one-answer workers"]
    assert finding.count == 1
    assert "such as 'bot'" in finding.sentence
    assert "one-answer workers" not in found(sound() + bot[:9])


def test_a_worker_with_one_answer_is_fine_where_others_agree() -> None:
    easy = [(f"e{item}", worker, "cat") for item in range(12) for worker in (*WORKERS, "joe")]
    assert "one-answer workers" not in found(sound() + easy)


def test_workers_with_few_labels_are_counted() -> None:
    finding = found([*sound(), ("q1", "new", "cat")])["workers with few labels"]
    assert (finding.count, finding.severity) == (1, "note")
    assert finding.sentence.startswith("1 of 4 workers has fewer than 5 labels (2.7% of all)")


@pytest.mark.parametrize(
    "twins",
    [("w7", "W7"), ("w7", " w7 "), ("7", "007"), (7, "7"), ("7", "7.0"), ("é", "e\u0301")],
)
def test_ids_a_person_would_read_as_one_are_a_trap(twins: tuple[object, object]) -> None:
    names = {"ann": twins[0], "bob": twins[1], "eve": "eve"}
    rows = [(item, names[worker], label) for item, worker, label in sound()]
    finding = found(rows)["look-alike worker ids"]
    assert (finding.count, finding.severity) == (2, "warning")
    assert f"such as {twins[0]!r} and {twins[1]!r}" in finding.sentence
    swapped = [(worker, item, label) for item, worker, label in rows]
    assert found(swapped)["look-alike task ids"].count == 2


@pytest.mark.parametrize("others", [("w7", "w07"), (1, 10), ("1", "-1"), ("0", "00a"), (1, 1.5)])
def test_ids_that_differ_to_the_eye_are_no_trap(others: tuple[object, object]) -> None:
    names = {"ann": others[0], "bob": others[1], "eve": "eve"}
    rows = [(item, names[worker], label) for item, worker, label in sound()]
    assert list(found(rows)) == ["all clear"]


def test_classes_that_look_alike_are_found() -> None:
    rows = [*sound(), ("q1", "joe", "Cat")]
    assert "such as 'cat' and 'Cat'" in found(rows)["look-alike classes"].sentence


def test_rare_classes_are_found() -> None:
    rows = [*sound(400), ("q1", "joe", "bird")]
    finding = found(rows)["rare classes"]
    assert finding.count == 1
    assert "1 of 3 classes has less than 0.1% of the labels, such as 'bird'" in finding.sentence


def test_one_class_only_is_odd() -> None:
    rows = [(item, worker, "cat") for item, worker, _ in sound()]
    assert list(found(rows)) == ["one class"]


def test_free_text_is_not_taken_for_classes() -> None:
    rows = [(item, worker, f"I saw {n}") for n, (item, worker, _) in enumerate(sound(30))]
    finding = found(rows)["many classes"]
    assert finding.count == 90
    assert "looks like free text" in finding.sentence


def test_weights_of_zero_are_found() -> None:
    rows = sound()
    finding = found(rows, weights=[0.0] * len(rows))["zero weights"]
    assert (finding.count, finding.severity) == (36, "warning")
    finding = found(rows, weights=[0.0] + [1.0] * (len(rows) - 1))["zero weights"]
    assert (finding.count, finding.severity) == (1, "note")


def test_a_worker_with_two_models_is_found() -> None:
    rows = sound()
    models = ["m" if worker == "ann" else None for _, worker, _ in rows]
    assert set(found(rows, models=models)) == {"all clear"}
    models[-3] = "n"
    finding = found(rows, models=models)["contradicting attributes"]
    assert (finding.count, finding.severity) == (1, "warning")
    assert "row 33: worker 'ann' has the model 'n' here and 'm' before" in finding.sentence


@pytest.mark.parametrize(
    "times", [[3, 1, 2], ["2024-01-03", "2024-01-01T10:00:00Z", "2024-01-02"], [3.5, 1, 2]]
)
def test_timestamps_out_of_order_are_counted(times: list[object]) -> None:
    rows = sound()
    stamps = [times[0], times[1]] + [times[2]] * (len(rows) - 2)
    assert found(rows, timestamps=stamps)["timestamps out of order"].count == 1
    assert list(found(rows, timestamps=[times[1], *stamps[2:], times[0]])) == ["all clear"]


def test_timestamps_that_are_no_time_are_counted() -> None:
    rows = sound()
    stamps = [None, "yesterday"] + [5] * (len(rows) - 2)
    assert found(rows, timestamps=stamps)["unreadable timestamps"].count == 2


def test_every_finding_is_a_sentence_with_a_next_step() -> None:
    lines = [
        "task,worker,label,weight,timestamp",
        "1,a,,1,2",
        "1,a,x,0,1",
        "1,a,X,0,0",
        "01,b,x,0,-",
    ]
    for finding in examine(read_csv(lines, LabelSpace(on_bad="skip"))):
        assert finding.count > 0
        assert finding.severity in ("note", "warning")
        assert finding.sentence.endswith(".")
        assert finding.sentence.count(". ") == 1  # what it is, then what to do
