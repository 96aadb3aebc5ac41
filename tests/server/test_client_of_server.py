"""The client and the real service: everything one can ask of the other."""

from itertools import islice

import pandas as pd
import pytest

import labelquorum as lq
from labelquorum.client import transport
from labelquorum.errors import ConflictError, LabelError, StateError, StoreError
from labelquorum.evaluation import class_conditional_crowd, label_table
from labelquorum.store.database import schema

RULES = {
    "labels_per_item": 2,
    "chunk_items": 2,
    "max_wait": None,
    "max_chunk_wait": None,
    "retention": "discard",
    "grace": 0,
}
TABLE = {
    "t1": {"ann": "owl", "bob": "owl"},
    "t2": {"ann": "wren", "bob": "owl", "cat": "wren"},
}


@pytest.fixture
def client(running):
    with lq.Client(running.url, running.secret()) as client:
        yield client


@pytest.fixture
def name(client, request):
    """An empty stream of the test's own."""
    client.create(request.node.name, classes=["owl", "wren"], rules=RULES)
    return request.node.name


def settled(client, name, n_chunks=1):
    """Follow the events until `n_chunks` are applied, and return them."""
    events = client.follow(name, after=0)
    found = list(islice((event for event in events if event.kind == "applied"), n_chunks))
    events.close()
    return found


def test_a_stream_is_made_changed_and_told(client, name):
    assert name in client.streams()
    assert client.stream(name)["rules"]["chunk_items"] == 2
    assert client.change(name, chunk_items=5, max_wait=7.5)["rules"]["max_wait"] == 7.5
    assert client.stream(name)["settings"]["classes"] == ["owl", "wren"]
    with pytest.raises(ConflictError, match="already"):
        client.create(name)
    with pytest.raises(StateError, match="chunk_items"):
        client.change(name, chunk_items=0)
    with pytest.raises(StoreError, match="There is no stream 'no such'"):
        client.stream("no such")


def test_a_label_of_a_closed_task_comes_back_with_the_reason(client, name):
    assert client.send(name, TABLE).reason is None
    settled(client, name)
    late = client.send(name, {"t1": {"dan": "wren"}, "t9": {"dan": "owl"}})
    assert (late.accepted, late.late) == (1, 1) and "`grace`" in late.reason


def test_labels_of_a_stream_without_rules_change_its_answers(client, request):
    name = request.node.name
    made = client.create(name, classes=["owl", "wren"], rules={"max_chunk_wait": 0})
    assert made["rules"]["grace"] is None and made["rules"]["retention"] == "keep"
    client.send(name, {"t": {"ann": "owl"}})
    settled(client, name)
    assert client.items(name)["label"].to_dict() == {"t": "owl"}
    assert client.send(name, {"t": {"bob": "wren", "cy": "wren"}}).accepted == 2
    settled(client, name, 2)
    assert client.items(name)["label"].to_dict() == {"t": "wren"}
    assert client.change(name, grace=0)["rules"]["grace"] == 0
    assert client.change(name, grace=None)["rules"]["grace"] is None


def test_labels_go_in_and_answers_come_out(client, name):
    assert client.send(name, TABLE).accepted == 5
    [event] = settled(client, name)
    assert (event.kind, event.data["chunk"], event.data["items"]) == ("applied", 1, 2)
    items = client.items(name)
    assert items["label"].to_dict() == {"t1": "owl", "t2": "wren"}
    assert items["labels"].to_dict() == {"t1": 2, "t2": 3}
    assert client.items(name, changed_since=1).empty
    low = client.items(name, confidence_below=items["confidence"].max())
    assert low.index.tolist() == [items["confidence"].idxmin()]
    assert client.pending(name, 1.0, limit=1).index.tolist() == [items["confidence"].idxmin()]
    assert client.item(name, "t2")["probabilities"]["wren"] == items.loc["t2", "confidence"]
    workers = client.workers(name)
    assert workers["labels"].to_dict() == {"ann": 2, "bob": 2, "cat": 1}
    assert client.worker(name, "ann")["skill"] == workers.loc["ann", "skill"]
    assert client.chunks(name)["state"].tolist() == ["applied"]
    assert client.forget(name, "cat") == 0  # no label of theirs was waiting
    assert "cat" not in client.workers(name).index


def test_the_model_that_comes_is_that_of_the_library_fed_the_same_chunks(client, name):
    client.send(name, TABLE)
    settled(client, name)
    local = lq.BiLA(classes=["owl", "wren"]).partial_fit(TABLE)
    pd.testing.assert_series_equal(client.model(name).skills_, local.skills_)


def test_a_table_with_scores_and_attributes_is_sent_as_it_is(client, name):
    table = pd.DataFrame(
        {
            "task": ["t1", "t1", "t2", "t2"],
            "worker": ["j1", "ann"] * 2,
            "label": ["owl", "owl", "wren", "owl"],
            "score": [0.9, None, 0.4, None],
            "worker_kind": ["llm", "human"] * 2,
            "model": ["m", None] * 2,
        }
    )
    assert client.send(name, table).accepted == 4
    settled(client, name)
    workers = client.workers(name)
    assert workers["worker_kind"].to_dict() == {"j1": "llm", "ann": "human"}
    assert workers.loc["j1", "model"] == "m" and client.worker(name, "j1")["prompt"] is None
    local = lq.BiLA(classes=["owl", "wren"]).partial_fit(table)
    ours = client.model(name).model_.learned.vocabulary
    assert ours.attributes == local.model_.learned.vocabulary.attributes


def test_many_batches_are_counted_once_each(client, request, monkeypatch):
    monkeypatch.setattr(transport, "BATCH_ROWS", 7)
    table = label_table(class_conditional_crowd(30, 8, 3, labels_per_item=4, seed=2))
    name = request.node.name
    client.create(name, rules={**RULES, "labels_per_item": 4, "chunk_items": 10})
    assert client.send(name, table, key="crowd").accepted == 120
    again = client.send(name, table, key="crowd")
    assert (again.accepted, again.repeated) == (120, 18)
    settled(client, name, 3)
    assert (client.items(name)["labels"] == 4).all()
    assert client.stream(name)["counts"]["answered_items"] == 30


def test_refusals_are_the_services_own_sentences(client, name):
    with pytest.raises(LabelError, match=r"'eagle' is not one of the classes.*key='k'"):
        client.send(name, {"t1": {"ann": "eagle"}}, key="k")
    skipped = client.send(name, {"t1": {"ann": "eagle", "bob": "owl"}}, on_bad="skip")
    assert (skipped.accepted, skipped.skipped) == (1, {"unknown class": 1})
    client.send(name, {"t1": {"ann": "owl"}}, key="k")
    with pytest.raises(ConflictError, match="key"):
        client.send(name, {"t1": {"ann": "wren"}}, key="k")
    with lq.Client(client._wire.url, "wrong") as stranger, pytest.raises(StoreError, match="key"):
        stranger.streams()


def test_a_waiting_label_is_taken_back(client, name):
    client.send(name, {"t1": {"ann": "owl"}, 7: {3: "wren"}})
    assert client.items(name, undecided=True)["labels"].to_dict() == {"t1": 1, 7: 1}
    assert client.retract(name, 7, 3) == 1
    assert client.items(name, undecided=True).index.tolist() == ["t1"]
    with pytest.raises(StoreError, match="is waiting"):
        client.retract(name, 7, 3)


def test_true_labels_count(client, name):
    assert client.gold(name, {"t2": "owl"}) == 1
    client.send(name, TABLE)
    settled(client, name)
    assert client.items(name).loc["t2", "label"] == "owl"


def test_truths_sent_again_after_an_error_in_the_last_part_count_once(
    running, client, name, monkeypatch
):
    monkeypatch.setattr(transport, "MAX_TRUTHS", 2)
    client.send(name, [{"task": 9, "worker": "ann", "label": "owl"}])
    truths = {"1": "owl", "2": "wren", "3": "owl", "4": "owl"}
    client.change(name, retention="keep")
    with pytest.raises(LabelError, match=r"two ids.* Before it, 4 of 5 truths were accepted"):
        client.gold(name, {**truths, "9": "owl"})  # a text, where labels have a number
    assert client.gold(name, {**truths, "t9": "owl"}) == 5
    client.send(name, {task: {"ann": "wren", "bob": "wren"} for task in [*truths, "t9"]})
    settled(client, name, 2)
    assert client.items(name).loc[list(truths), "label"].to_dict() == truths
    ref = running.store.stream(name).ref
    with ref.read() as connection:
        rows = connection.execute(schema.gold.select().where(schema.gold.c.stream == ref.key))
        assert len(rows.all()) == 5


@pytest.mark.parametrize("task", ["a/b", "..", "ä ö?#%", "7", 7, -2.5, "null"])
def test_a_task_of_any_name_is_found_again(client, request, task):
    name = f"named {task!r}".replace("/", " slash ")
    client.create(name, rules={**RULES, "labels_per_item": 1, "chunk_items": 1})
    client.send(name, [{"task": task, "worker": task, "label": "owl"}])
    settled(client, name)
    assert client.items(name).index.tolist() == [task]
    assert client.item(name, task)["task"] == task
    assert client.worker(name, task)["worker"] == task


def test_events_are_resumed_after_one_that_is_known(client, name):
    client.send(name, TABLE)
    [first] = settled(client, name)
    client.send(name, {f"u{n}": {"ann": "owl", "bob": "owl"} for n in range(2)})
    following = client.follow(name, after=first.id)
    assert next(following).data["chunk"] == 2
    following.close()


def test_keys_open_what_they_are_for_until_they_are_revoked(client, name):
    secret = client.make_key("reader", "read", stream=name)
    with lq.Client(client._wire.url, secret) as reader:
        assert reader.streams() == [name]
        with pytest.raises(StoreError, match="scope"):
            reader.send(name, TABLE)
        table = client.keys()
        client.revoke_key(table.index[table["stream"] == name][0])
        with pytest.raises(StoreError, match="key"):
            reader.streams()


def test_a_client_asks_what_to_do_next_and_downloads_the_answers(client, name, tmp_path):
    client.send(name, TABLE)
    settled(client, name)
    assert client.summary(name)["workers"] == 3
    assert client.stopping(name)
    assert client.agreement(name)["workers"] == []  # its rules close tasks at once
    assert client.jury(name)["n_judges"] == 0
    assert list(client.ask(name).columns)[:3] == ["label", "confidence", "labels"]
    for suffix, read in (("csv", pd.read_csv), ("parquet", pd.read_parquet)):
        file = tmp_path / f"answers.{suffix}"
        client.export(name, file)
        assert sorted(read(file)["task"]) == ["t1", "t2"]
        assert file.stat().st_mode & 0o777 == 0o600
    client.export(name, tmp_path / "people", "workers", "csv")
    assert "ann" in (tmp_path / "people").read_text()


def test_a_stream_is_renamed_and_deleted_and_who_follows_it_is_told(client, name):
    client.send(name, TABLE)
    settled(client, name)
    key = client.make_key("own", "read", name)
    assert client.rename(name, f"{name} 2")["name"] == f"{name} 2"
    assert name not in client.streams() and f"{name} 2" in client.streams()
    assert client.keys().iloc[-1]["stream"] == f"{name} 2" and key
    assert len(client.items(f"{name} 2")) == 2
    client.send(f"{name} 2", {"t7": {"ann": "owl"}})
    with pytest.raises(ConflictError, match="already"):
        client.create(f"{name} 3", classes=["a", "b"])
        client.rename(f"{name} 3", f"{name} 2")
    assert client.delete(f"{name} 2") == 1
    assert f"{name} 2" not in client.streams()
    with pytest.raises(StoreError, match="There is no stream"):
        client.send(f"{name} 2", TABLE)
    with pytest.raises(StoreError, match="There is no stream"):
        list(client.follow(f"{name} 2"))
    client.create(name, classes=["owl", "wren"], rules=RULES)
    assert client.items(name).empty
